/* Constrained decoding: which tokens may come next, so that an answer has the form that was asked for.
 *
 *     struct grammar *g = grammar_from_schema(schema, NULL, &e);         once a schema (any thread)
 *     grammar_bind(g, vocab, 0);                                         once
 *     struct grammar_matcher *m = grammar_matcher_create(g);             once a request
 *     each token:  grammar_matcher_mask(m, bits)                         sample among the set bits,
 *                  grammar_matcher_advance(m, bytes of the token)        then go on
 *
 * JSON Schema, regular expressions, lists of choices, EBNF (llama.cpp's GBNF) and structural tags all become
 * one thing: a pushdown automaton over bytes. A grammar is immutable and shared; a matcher is where one
 * answer stands in it. Every state of the automaton can still reach an end, so an answer never gets stuck in
 * a dead end, whatever is sampled from the mask.
 *
 * Everything is bounded: sizes, nesting, work at compile time, memory of a matcher. What is too large, wrong
 * or not supported is refused when it is compiled, with the place that is at fault; nothing is ever decoded
 * unconstrained instead. */
#ifndef SLUICE_SAMPLE_GRAMMAR_H
#define SLUICE_SAMPLE_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct grammar;
struct grammar_vocab;
struct grammar_matcher;

/* --- vocabulary ---------------------------------------------------------------------------------- */

/* The bytes that token `id` adds to a text, with their number in *len: 0 for a token that must never be part
 * of a constrained text (control tokens, unused ids). */
typedef const char *grammar_bytes_fn(void *arg, int32_t id, size_t *len);

/* The vocabulary of n_ids tokens (rows of logits) as a trie: one for each model, shared by all grammars. It
 * must outlive them, and `arg` must outlive it. Tokens of more than 255 bytes are left out. NULL and *e if
 * n_ids is out of range or there is no memory. */
struct grammar_vocab *grammar_vocab_create(int n_ids, grammar_bytes_fn *bytes, void *arg, struct err *e);
void grammar_vocab_free(struct grammar_vocab *v);
size_t grammar_vocab_memory(const struct grammar_vocab *v);
/* What `bytes` says of a token; 0 bytes for ids out of range. */
const char *grammar_vocab_text(const struct grammar_vocab *v, int32_t id, size_t *len);
/* Of the tokens that a text [n] begins with, the longest; -1 if there is none, or if the text could be the
 * beginning of a longer one still. */
int32_t grammar_vocab_longest(const struct grammar_vocab *v, const char *text, size_t n);

/* --- grammars ------------------------------------------------------------------------------------ */

struct grammar_json_options {
    bool no_whitespace; /* compact JSON; else up to 64 white space characters between its tokens */
    bool open_objects;  /* an object that lists `properties` and says nothing of additionalProperties may have
                           others (as the standard says); else it may not (as people mean) */
    const char *whitespace_pattern; /* a regular expression for that white space; NULL = as above */
};

/* Each compiles one kind of structured output. NULL and *e (what, where, what to do) on failure; options may
 * be NULL. Returned with one reference. */
struct grammar *grammar_from_schema(const json_t *schema, const struct grammar_json_options *o,
                                    struct err *e);
struct grammar *grammar_from_json_object(const struct grammar_json_options *o, struct err *e);
struct grammar *grammar_from_regex(const char *pattern, size_t len, struct err *e); /* of the whole text */
struct grammar *grammar_from_choice(const json_t *strings, struct err *e);          /* an array of strings */
struct grammar *grammar_from_ebnf(const char *text, size_t len, struct err *e);     /* from its rule `root` */
struct grammar *grammar_from_structural_tag(const json_t *tag, const struct grammar_json_options *o,
                                            struct err *e);

struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g);

/* Says which vocabulary grammar_matcher_mask speaks of, and how many bytes of masks to keep (0 =
 * GRAMMAR_CACHE_BYTES; when they are passed, all are dropped and made again as needed). Before g is shared;
 * once. False if the system refuses the memory: the grammar can't be used then. */
bool grammar_bind(struct grammar *g, struct grammar_vocab *v, size_t cache_bytes);
const struct grammar_vocab *grammar_vocab_of(const struct grammar *g); /* NULL before grammar_bind */
/* Prepares the masks that are costly when first needed (milliseconds: the insides of strings), within about
 * `seconds`. For a thread that may wait, so that the engine's need not. */
void grammar_warm(struct grammar *g, double seconds);

struct grammar_size {
    int rules, states, edges;
    size_t bytes;       /* of the automaton */
    size_t cache_bytes; /* of the cached masks: at most the limit and what one mask adds; scratch of 1 to 4
                           MiB is not counted */
    int cached;         /* masks in the cache */
};
void grammar_size(struct grammar *g, struct grammar_size *out);
#define GRAMMAR_CACHE_BYTES (64u << 20)

/* --- matching ------------------------------------------------------------------------------------ */

/* A matcher belongs to one thread at a time. It keeps a reference to g and allocates nothing later. */
struct grammar_matcher *grammar_matcher_create(struct grammar *g);
void grammar_matcher_free(struct grammar_matcher *m);
size_t grammar_matcher_bytes(void);
/* A second matcher at the same place; or, without allocating, moves dst (of the same grammar) to src's. */
struct grammar_matcher *grammar_matcher_fork(const struct grammar_matcher *m);
void grammar_matcher_copy(struct grammar_matcher *dst, const struct grammar_matcher *src);

/* Goes on by bytes [n]. false, with nothing changed, if the grammar does not allow them. (For a token of the
 * last mask that can only be in a grammar so ambiguous that more ways are open than are followed: end the
 * answer with an error then.) */
bool grammar_matcher_advance(struct grammar_matcher *m, const char *bytes, size_t n);
/* How many of the bytes [n] could be matched from here; nothing changes. */
size_t grammar_matcher_accepts(struct grammar_matcher *m, const char *bytes, size_t n);
/* The text so far is complete: the answer may end here. */
bool grammar_matcher_can_end(const struct grammar_matcher *m);
/* The text so far is complete and nothing may follow. */
bool grammar_matcher_must_end(const struct grammar_matcher *m);

/* 32-bit words of a mask over the bound vocabulary: bit (id & 31) of word id / 32. */
int grammar_mask_words(const struct grammar *g);
/* Sets the bits of the tokens that may come next and clears all others. The caller adds its end tokens when
 * grammar_matcher_can_end. Fails only for a grammar so ambiguous that the work passes a limit, or when no
 * token fits and the text may not end (a vocabulary that lacks a byte): the answer must then end with an
 * error. */
int grammar_matcher_mask(struct grammar_matcher *m, uint32_t *bits, struct err *e);
/* The bytes that must come next because there is only one way on: writes at most cap, returns how many. */
size_t grammar_matcher_forced(struct grammar_matcher *m, char *out, size_t cap);

/* --- building ------------------------------------------------------------------------------------ */

/* For forms made of several parts, such as the calls of a chat format. Every function returns a node, to be
 * used any number of times as a part of others. Errors stick: after one, nodes are -1 and are accepted
 * everywhere, and the last call says what was wrong. */
struct grammar_builder;
typedef int32_t grammar_node;

struct grammar_builder *grammar_builder_create(void);
void grammar_builder_free(struct grammar_builder *b);
/* The grammar of root; NULL and *e if any step failed. The builder is freed in any case. */
struct grammar *grammar_builder_finish(struct grammar_builder *b, grammar_node root, struct err *e);

grammar_node grammar_literal(struct grammar_builder *b, const char *bytes, size_t n); /* "" matches nothing */
grammar_node grammar_text(struct grammar_builder *b, const char *text);               /* NUL-terminated */
grammar_node grammar_seq(struct grammar_builder *b, const grammar_node *list, int n);
grammar_node grammar_alt(struct grammar_builder *b, const grammar_node *list, int n); /* 0 = no way at all */
grammar_node grammar_repeat(struct grammar_builder *b, grammar_node part, int min,
                            int max); /* max -1 = any */

/* A rule to be defined later, for recursion. The node returned stands for the rule. */
grammar_node grammar_rule(struct grammar_builder *b, const char *name);
void grammar_define(struct grammar_builder *b, grammar_node rule, grammar_node body);

grammar_node grammar_regex(struct grammar_builder *b, const char *pattern, size_t len);
grammar_node grammar_ebnf(struct grammar_builder *b, const char *text, size_t len);
grammar_node grammar_choice(struct grammar_builder *b, const json_t *strings);
grammar_node grammar_schema(struct grammar_builder *b, const json_t *schema,
                            const struct grammar_json_options *o);
grammar_node grammar_json_object(struct grammar_builder *b, const struct grammar_json_options *o);
grammar_node grammar_tag(struct grammar_builder *b, const json_t *structural_tag,
                         const struct grammar_json_options *o);
/* The arguments of a tool call in the form of Qwen3.5, by the schema of its parameters, in its order:
 * "<parameter=KEY>\nVALUE\n</parameter>\n", where strings stand without quotes and other values are JSON. */
grammar_node grammar_xml_parameters(struct grammar_builder *b, const json_t *schema,
                                    const struct grammar_json_options *o);

/* Free text (whole characters) in which none of the strings occurs; with `found`, it ends with string i and
 * then goes on with found[i]. Without strings: any text. Strings are not empty, and none holds another. */
grammar_node grammar_free_text(struct grammar_builder *b, const char *const *strings,
                               const grammar_node *found, int n);

#endif
