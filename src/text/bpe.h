/* Byte-pair encoding: a piece of text becomes symbols, and neighbours are merged, lowest rank first. */
#ifndef SLUICE_TEXT_BPE_H
#define SLUICE_TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/vocab.h"

struct merge {
    int32_t left, right; /* ids; left < 0 = empty bucket */
    uint32_t rank;       /* lower merges first */
    int32_t result;
};

struct bpe {
    struct merge *merges; /* [merge_mask + 1] by hash of (left, right), linear probing */
    size_t merge_mask, n_merges;
    bool byte_level;       /* symbols are bytes; else characters */
    bool byte_fallback;    /* characters that the vocabulary lacks become their bytes */
    bool ignore_merges;    /* a piece that is an entry itself is that token (Llama 3) */
    bool fuse_unk;         /* neighbouring unknown characters are one unknown token */
    int32_t byte_ids[256]; /* of single bytes, -1 = none: for byte_level and byte_fallback */
    int32_t unk;           /* -1 = unknown characters are dropped */
    size_t longest_name;   /* of an entry: no longer piece can be one (ignore_merges) */
    bool all_bytes;        /* every byte has a token: no text is dropped or fused */
};

/* Memory of one encoding thread, reused from piece to piece. Zero-initialise. */
struct bpe_work {
    struct symbol *symbols;
    struct candidate *heap;
    size_t symbols_cap, heap_cap, heap_len;
};
void bpe_work_free(struct bpe_work *w);

void bpe_free(struct bpe *b);
/* A later merge of the same pair replaces the earlier one. */
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t result);
/* Once the vocabulary is complete: finds the tokens of the 256 bytes, and unknown's. */
void bpe_finish(struct bpe *b, const struct vocab *v);

/* Appends the ids of the piece, valid UTF-8 (for byte_level: any bytes), shorter than 2 GB.
 * O(len log len), whatever the text: every merge removes a symbol and adds at most two candidates. */
void bpe_encode(const struct bpe *b, const struct vocab *v, struct bpe_work *w, const char *piece, size_t len,
                struct token_list *out);
/* A number of tokens that no encoding of a piece of len bytes can be below. */
size_t bpe_fewest_tokens(const struct bpe *b, size_t len);
/* Appends the id of one byte that is not part of a valid character; U+FFFD where bytes have no token. */
void bpe_encode_byte(const struct bpe *b, const struct vocab *v, struct bpe_work *w, unsigned char byte,
                     struct token_list *out);

#endif
