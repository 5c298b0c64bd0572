/* Text to token ids and back. Built from GGUF metadata or from a tokenizer.json; immutable afterwards
 * and safe to share between threads. */
#ifndef SLUICE_TEXT_TOKENIZER_H
#define SLUICE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "file/model_file.h"

struct tokenizer;

/* A growable list of ids. Zero-initialise; free with token_list_free. */
struct token_list {
    int32_t *ids; /* [n] */
    size_t n, cap;
};
void token_list_free(struct token_list *l);
void token_list_add(struct token_list *l, int32_t id);

/* NULL and *e if the file has no tokenizer, or one of a kind that this build does not know (named). */
struct tokenizer *tokenizer_open(const struct model_file *f, struct err *e);
void tokenizer_free(struct tokenizer *t);

enum tokenizer_flags {
    TOKENIZER_ADD_SPECIAL = 1, /* add BOS / EOS where the model's tokenizer says so */
    TOKENIZER_PARSE_SPECIAL =
        2, /* tokens flagged special ("<|im_end|>") are recognised in the text. Other added tokens
              ("<think>") are recognised with and without this flag, as the reference does */
};

/* Appends the ids of text [len] (any bytes; invalid UTF-8 is encoded byte by byte where the vocabulary
 * allows, else as U+FFFD) to *out. Time is O(len log len) in the worst case. Fails only when max_tokens (0 =
 * no limit) would be passed, or for a text of more than 1 GiB.
 *
 * `literal` (NULL = none) marks bytes [len] that must never become control tokens: no special or added token
 * is recognised over a range that holds a non-zero byte, except tokens of white space alone (Gemma's runs of
 * newlines), which are text. It is how message text stays text (see chat/template.h). Nor do merges ever make
 * a special token of ordinary text. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, const uint8_t *literal,
                     unsigned flags, size_t max_tokens, struct token_list *out, struct err *e);

/* Number of ids (the largest id + 1). Ids below it may still be unused: their bytes are empty. The model's
 * embedding may have more rows than this. */
int tokenizer_size(const struct tokenizer *t);

/* The bytes that id adds to a text (owned by t; byte-level and byte-fallback tokens give raw bytes, which
 * need not be whole characters). Never NULL; length 0 for ids out of range. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len);
/* The token as its vocabulary writes it ("Ġthe"), for token_strs. Same rules. */
const char *tokenizer_name(const struct tokenizer *t, int32_t id, size_t *len);

bool tokenizer_is_special(const struct tokenizer *t,
                          int32_t id); /* flagged special: skip_special_tokens hides it */
int32_t tokenizer_find(const struct tokenizer *t,
                       const char *name);         /* exact added token or vocabulary entry; -1 if none */
int32_t tokenizer_bos(const struct tokenizer *t); /* -1 if none */
int32_t tokenizer_eos(const struct tokenizer *t); /* the tokenizer's own; -1 if none */
bool tokenizer_adds_bos(const struct tokenizer *t);
/* Ids that end a turn: the tokenizer's EOS and EOT, the generation config's and config's eos_token_id, and
 * what the GGUF names (eos, eot, eom); a GGUF that names no eot ends turns with the control token of its
 * vocabulary that does so in the known chat formats (<|im_end|>, <|eot_id|>, <end_of_turn>), and documents
 * with the one named <|endoftext|> or the like. First is the primary EOS. Returns the count, at most max. */
int tokenizer_stop_ids(const struct tokenizer *t, int32_t *ids, int max);

/* Appends the text of ids [n] as valid UTF-8 (malformed bytes become U+FFFD as Python's decoder does).
 * Equals what a detokenizer fed the same ids, then flushed, emits. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct str *out);

/* The streaming detokenizer: ids in one by one, whole characters out. Holds back at most 3 bytes (and for
 * SentencePiece nothing more). Zero-initialise, then detokenizer_init. Owns no memory. */
struct detokenizer {
    const struct tokenizer *t;
    bool skip_special;
    bool started; /* SentencePiece drops the first leading space where the tokenizer adds one */
    unsigned char held[4];
    int n_held;
};
void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool skip_special);
void detokenizer_add(struct detokenizer *d, int32_t id, struct str *out);
/* Emits what is still held (as U+FFFD). */
void detokenizer_flush(struct detokenizer *d, struct str *out);

#endif
