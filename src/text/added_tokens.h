/* Added tokens: strings that become one token wherever they stand, before anything else sees the text. */
#ifndef SLUICE_TEXT_ADDED_TOKENS_H
#define SLUICE_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Longer added tokens are refused: a match looks at no more bytes than this from each place in the text. */
#define ADDED_TOKEN_MAX_BYTES 512

struct added_token {
    int32_t id;
    bool special;        /* recognised only when special tokens are parsed */
    bool single_word;    /* not next to a word character */
    bool lstrip, rstrip; /* takes the white space before, after */
    bool blank;          /* white space alone (Gemma's runs of newlines): text, not control */
};

/* A trie. Its edges are in one hash table, its nodes are numbers, 0 the root. */
struct added_tokens {
    struct added_token *items; /* [n] */
    int n, cap;
    struct trie_edge *edges; /* [edge_mask + 1] by hash of (node, byte) */
    size_t edge_mask;
    int32_t *node_item; /* [n_nodes] the item that ends at a node, -1 = none */
    int32_t n_nodes, nodes_cap;
    bool starts[256]; /* bytes that begin a token: most of a text is skipped by this table */
};

void added_tokens_free(struct added_tokens *a);
/* Adds text [len]; blank is found out here. The same text again replaces the earlier one. */
int added_tokens_add(struct added_tokens *a, const char *text, size_t len, struct added_token token,
                     struct err *e);

/* Finds the next added token of text [len] at or after `from`: the leftmost, and there the longest. False if
 * there is none. [*start, *end) is what it takes of the text, white space of lstrip (not before `from`) and
 * rstrip included.
 *
 * With parse_special false, a special token is passed over whole: what is inside it is not looked at again.
 * literal (NULL = none, else [len]): no token is found over a non-zero byte, unless it is blank. */
bool added_tokens_next(const struct added_tokens *a, const char *text, size_t len, const uint8_t *literal,
                       size_t from, bool parse_special, size_t *start, size_t *end, int32_t *id);

#endif
