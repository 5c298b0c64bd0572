/* A text file as token ids in chunks of equal length, as perplexity is customarily measured: the whole text
 * is encoded once and cut, what is left at the end is dropped, and where the model's tokenizer begins texts
 * with BOS, each chunk's first id is replaced by it. */
#ifndef SLUICE_CLI_TEXT_CHUNKS_H
#define SLUICE_CLI_TEXT_CHUNKS_H

#include "text/tokenizer.h"

struct text_chunks {
    struct token_list ids; /* n_chunks * context of them are used */
    int n_chunks, context;
};

/* vocab: rows of the model's logits. most_chunks: 0 = all. -1 and *e on failure, also when the text is
 * shorter than one chunk. */
int text_chunks_read(struct text_chunks *c, const char *path, const struct tokenizer *t, int vocab,
                     int context, int most_chunks, struct err *e);
void text_chunks_free(struct text_chunks *c);

static inline int32_t *text_chunk(const struct text_chunks *c, int i)
{
    return c->ids.ids + (size_t)i * (size_t)c->context;
}

#endif
