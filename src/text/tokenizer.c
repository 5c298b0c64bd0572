/* A tokenizer as its users see it: opened from a model file, asked about its tokens, closed. How text becomes
 * ids is in encode.c, how ids become text in detokenizer.c. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/private.h"

void token_list_free(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

void token_list_add(struct token_list *l, int32_t id)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 64;
        l->ids = mem_realloc(l->ids, l->cap, sizeof *l->ids);
    }
    l->ids[l->n++] = id;
}

struct tokenizer *tokenizer_open(const struct model_file *f, struct err *e)
{
    struct tokenizer *t = mem_zalloc(1, sizeof *t);
    t->bos = t->eos = t->bpe.unk = -1;
    int status = f->kind == MODEL_FILE_GGUF ? tokenizer_load_gguf(t, f, e) : tokenizer_load_hf(t, f, e);
    if (status == 0)
        status = vocab_decode_names(&t->vocab, &t->decoder, e);
    if (status) {
        tokenizer_free(t);
        return NULL;
    }
    bpe_finish(&t->bpe, &t->vocab);
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_free(&t->vocab);
    added_tokens_free(&t->raw);
    added_tokens_free(&t->normalized);
    normalizer_free(&t->normalizer);
    pretokenizer_free(&t->pretokenizer);
    bpe_free(&t->bpe);
    decoder_free(&t->decoder);
    free(t);
}

/* --- for the loaders ------------------------------------------------------------------------------ */

const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

int tokenizer_add_token(struct tokenizer *t, const char *text, size_t len, struct added_token token,
                        bool normalized, struct err *e)
{
    unsigned flags = TOKEN_ADDED | (token.special ? TOKEN_SPECIAL : 0);
    if (vocab_add(&t->vocab, token.id, text, len, flags, e))
        return -1;
    if (!normalized)
        return added_tokens_add(&t->raw, text, len, token, e);
    struct str form = {0};
    normalizer_run(&t->normalizer, text, len, false, &form);
    int status = added_tokens_add(&t->normalized, form.data, form.len, token, e);
    str_free(&form);
    return status;
}

int tokenizer_add_merge(struct tokenizer *t, int32_t left, int32_t right, uint32_t rank, struct str *scratch)
{
    const struct vocab *v = &t->vocab;
    size_t len;
    str_clear(scratch);
    const char *name = vocab_name(v, left, &len);
    str_add(scratch, name, len);
    name = vocab_name(v, right, &len);
    str_add(scratch, name, len);
    int32_t result = vocab_find_model(v, scratch->data, scratch->len);
    if (result < 0)
        return 0;
    if (!(v->tokens[result].flags & TOKEN_SPECIAL))
        bpe_add_merge(&t->bpe, left, right, rank, result);
    return 1;
}

void tokenizer_add_stop(struct tokenizer *t, int64_t id)
{
    if (id < 0 || id >= t->vocab.n || t->n_stop_ids == MAX_STOP_IDS)
        return;
    for (int i = 0; i < t->n_stop_ids; i++)
        if (t->stop_ids[i] == id)
            return;
    t->stop_ids[t->n_stop_ids++] = (int32_t)id;
}

/* --- questions ------------------------------------------------------------------------------------ */

int tokenizer_size(const struct tokenizer *t)
{
    return t->vocab.n;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->vocab.n || !t->vocab.tokens[id].text_len) {
        *len = 0;
        return "";
    }
    *len = t->vocab.tokens[id].text_len;
    return t->vocab.blob.data + t->vocab.tokens[id].text;
}

const char *tokenizer_name(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->vocab.n || !t->vocab.tokens[id].name_len) {
        *len = 0;
        return "";
    }
    return vocab_name(&t->vocab, id, len);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && t->vocab.tokens[id].flags & TOKEN_SPECIAL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *name)
{
    int32_t id = vocab_find(&t->vocab, name, strlen(name));
    return id >= 0 && t->vocab.tokens[id].flags & (TOKEN_MODEL | TOKEN_ADDED) ? id : -1;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->bos >= 0 && t->n_before > 0 && t->before[0] == t->bos;
}

int tokenizer_stop_ids(const struct tokenizer *t, int32_t *ids, int max)
{
    int n = t->n_stop_ids < max ? t->n_stop_ids : max;
    for (int i = 0; i < n; i++)
        ids[i] = t->stop_ids[i];
    return n > 0 ? n : 0;
}
