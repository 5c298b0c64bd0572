/* A tokenizer's parts, as the loaders fill them in and encoding and decoding read them. */
#ifndef SLUICE_TEXT_PRIVATE_H
#define SLUICE_TEXT_PRIVATE_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#define MAX_AROUND   8 /* ids put before or after a text */
#define MAX_STOP_IDS 32

struct tokenizer {
    struct vocab vocab;
    struct added_tokens raw;        /* matched in the text as it comes */
    struct normalizer normalizer;   /* of what is between them */
    struct added_tokens normalized; /* matched in the normalised text */
    struct pretokenizer pretokenizer;
    struct bpe bpe;
    struct decoder decoder;

    int32_t before[MAX_AROUND], after[MAX_AROUND]; /* BOS and the like: [n_before], [n_after] */
    int n_before, n_after;
    int32_t bos, eos; /* -1 = none */
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids;
};

/* Fill in *t, which is zeroed but for ids of -1. */
int tokenizer_load_hf(struct tokenizer *t, const struct model_file *f, struct err *e);
int tokenizer_load_gguf(struct tokenizer *t, const struct model_file *f, struct err *e);

/* Names an added token and makes it known to the matcher. */
int tokenizer_add_token(struct tokenizer *t, const char *text, size_t len, struct added_token token,
                        bool normalized, struct err *e);
/* The merge of two ids into the entry that their names make together: 1 added, 0 there is no such entry. A
 * special token is never the result, so that text alone cannot become one. */
int tokenizer_add_merge(struct tokenizer *t, int32_t left, int32_t right, uint32_t rank, struct str *scratch);
/* Adds id to the stop ids, once; ids outside the vocabulary are passed over. */
void tokenizer_add_stop(struct tokenizer *t, int64_t id);
/* GPT-2's cut, which the byte-level pre-tokenizer of a tokenizer.json names without spelling out. */
extern const char gpt2_pattern[];

/* What a name in tokenizer.ggml.pre stands for. */
struct gguf_pre {
    const char *name;
    const char *cuts[2]; /* each cuts the pieces of the one before; the second may be NULL */
    bool nfc;            /* these models' own tokenizers normalise first; the file does not say so */
    bool ignore_merges, add_bos;
};
extern const struct gguf_pre gguf_pres[]; /* ended by one without a name */

/* The numbers in tokenizer.ggml.token_type. */
enum gguf_token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER_DEFINED,
    TYPE_UNUSED,
    TYPE_BYTE
};

#endif
