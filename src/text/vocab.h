/* The tokens: their names as the vocabulary writes them, the bytes they add to a text, and their kinds. */
#ifndef SLUICE_TEXT_VOCAB_H
#define SLUICE_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

/* The largest vocabularies have a quarter of a million entries. A file that names an id beyond this is
 * damaged, and must not make us allocate a table of that size. */
#define VOCAB_MAX_ID (4 << 20)

enum token_flags {
    TOKEN_USED = 1,    /* the id has a name */
    TOKEN_MODEL = 2,   /* an entry of the merge model: ordinary text may become it */
    TOKEN_ADDED = 4,   /* an added token: matched whole, before the merge model sees the text */
    TOKEN_SPECIAL = 8, /* hidden by skip_special_tokens */
};

struct token {
    uint32_t name, name_len; /* in vocab.blob */
    uint32_t text, text_len; /* the bytes it adds, in vocab.blob */
    unsigned flags;
};

struct vocab {
    struct token *tokens; /* [n] by id; ids may have holes */
    int n, cap;
    struct str blob;  /* names and texts */
    int32_t *buckets; /* [bucket_mask + 1] ids by hash of name, -1 = empty; linear probing */
    size_t bucket_mask, n_names;
};

void vocab_free(struct vocab *v);

/* Names an id. Naming it again with the same name adds the flags; with another name, or an id outside
 * 0 … VOCAB_MAX_ID - 1, it is an error. When two ids share a name, vocab_find keeps giving the first. */
int vocab_add(struct vocab *v, int64_t id, const char *name, size_t len, unsigned flags, struct err *e);
/* The id of that exact name, -1 if none. */
int32_t vocab_find(const struct vocab *v, const char *name, size_t len);
/* The same, for entries of the merge model alone. */
int32_t vocab_find_model(const struct vocab *v, const char *name, size_t len);

static inline const char *vocab_name(const struct vocab *v, int32_t id, size_t *len)
{
    *len = v->tokens[id].name_len;
    return v->blob.data + v->tokens[id].name;
}

/* How a name becomes the bytes of a text: what the "decoder" of a tokenizer.json says. */
struct decoder {
    bool byte_level;    /* names are written in GPT-2's byte alphabet */
    bool byte_fallback; /* "<0x0A>" is the byte 10 */
    int n_replace;
    struct decoder_replace {
        struct str from, to;
    } replace[4];             /* in every name, in this order */
    bool strip_leading_space; /* of the whole text: see struct detokenizer */
};
void decoder_free(struct decoder *d);
/* Fills in the text of every token. */
int vocab_decode_names(struct vocab *v, const struct decoder *d, struct err *e);

/* "<0x0A>" is 10; -1 for any other name. */
int vocab_byte_name(const char *name, size_t len);

/* GPT-2's byte alphabet writes each of the 256 bytes as a visible character below U+0144. */
unsigned byte_to_char(unsigned char byte);
int char_to_byte(unsigned c); /* -1 if the character is not in the alphabet */

#endif
