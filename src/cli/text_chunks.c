#include "cli/text_chunks.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

enum { MAX_TEXT = 1 << 30 };

static int read_text(struct str *text, const char *path, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "cannot open the text %s: %m", path);
    char block[65536];
    size_t n;
    int rc = 0;
    while ((n = fread(block, 1, sizeof block, f)) > 0 && text->len + n <= MAX_TEXT)
        str_add(text, block, n);
    if (ferror(f))
        rc = err_set(e, ERR_IO, "cannot read the text %s", path);
    else if (n > 0)
        rc = err_set(e, ERR_LIMIT, "the text %s is larger than 1 GiB", path);
    fclose(f);
    return rc;
}

int text_chunks_read(struct text_chunks *c, const char *path, const struct tokenizer *t, int vocab,
                     int context, int most_chunks, struct err *e)
{
    struct str text = {0};
    *c = (struct text_chunks){.context = context};
    int rc = read_text(&text, path, e);
    if (rc == 0)
        rc = tokenizer_encode(t, str_text(&text), text.len, NULL, TOKENIZER_ADD_SPECIAL, 0, &c->ids, e);
    str_free(&text);
    for (size_t i = 0; rc == 0 && i < c->ids.n; i++)
        if (c->ids.ids[i] >= vocab)
            rc = err_set(e, ERR_INVALID, "the tokenizer gives id %d, but the model has %d tokens",
                         c->ids.ids[i], vocab);
    if (rc == 0 && c->ids.n < (size_t)context)
        rc = err_set(e, ERR_INVALID,
                     "the text %s has %zu tokens, fewer than one chunk of %d: give a longer one, "
                     "or a shorter --context",
                     path, c->ids.n, context);
    if (rc) {
        text_chunks_free(c);
        return -1;
    }
    c->n_chunks = (int)(c->ids.n / (size_t)context);
    if (most_chunks && c->n_chunks > most_chunks)
        c->n_chunks = most_chunks;
    if (tokenizer_adds_bos(t))
        for (int i = 0; i < c->n_chunks; i++)
            text_chunk(c, i)[0] = tokenizer_bos(t);
    return 0;
}

void text_chunks_free(struct text_chunks *c)
{
    token_list_free(&c->ids);
}
