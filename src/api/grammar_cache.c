#include "api/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    MASK_BYTES = 32 << 20, /* of one grammar's masks, at most: rarely more than one is needed */
    MAX_KEPT = 1024,
};
#define WARM_SECONDS \
    0.02 /* for masks worked out ahead: what is left takes the engine half a millisecond each */

struct kept {
    struct str text;
    struct grammar *grammar;
    struct kept *next; /* from the latest used to the longest unused */
};

struct grammar_cache {
    const struct tokenizer *tokenizer;
    int n_ids;
    size_t limit;
    pthread_mutex_t lock;
    struct grammar_vocab *vocab; /* NULL until it is needed */
    struct kept *first;
};

struct grammar_cache *grammar_cache_create(const struct tokenizer *t, int vocab, size_t limit)
{
    struct grammar_cache *c = mem_zalloc(1, sizeof *c);
    c->tokenizer = t;
    c->n_ids = vocab;
    c->limit = limit;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void drop(struct kept *k)
{
    grammar_unref(k->grammar);
    str_free(&k->text);
    free(k);
}

void grammar_cache_free(struct grammar_cache *c)
{
    if (!c)
        return;
    for (struct kept *k = c->first, *next; k; k = next) {
        next = k->next;
        drop(k);
    }
    grammar_vocab_free(c->vocab);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Control tokens are no text, but for the marks of thoughts and calls, which some models flag so. */
static const char *bytes_of(void *arg, int32_t id, size_t *len)
{
    static const char *const marks[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    const struct tokenizer *t = arg;
    const char *bytes = tokenizer_bytes(t, id, len);
    if (!tokenizer_is_special(t, id))
        return bytes;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (*len == strlen(marks[i]) && memcmp(bytes, marks[i], *len) == 0)
            return bytes;
    *len = 0;
    return bytes;
}

struct grammar_vocab *grammar_cache_vocab(struct grammar_cache *c, struct err *e)
{
    pthread_mutex_lock(&c->lock);
    if (!c->vocab)
        c->vocab = grammar_vocab_create(c->n_ids, bytes_of, (void *)(uintptr_t)c->tokenizer, e);
    struct grammar_vocab *v = c->vocab;
    pthread_mutex_unlock(&c->lock);
    return v;
}

/* Under the lock: the grammar of a text, which becomes the latest used. */
static struct grammar *find(struct grammar_cache *c, const struct str *text)
{
    for (struct kept **at = &c->first; *at; at = &(*at)->next) {
        struct kept *k = *at;
        if (k->text.len != text->len || memcmp(str_text(&k->text), str_text(text), text->len) != 0)
            continue;
        *at = k->next;
        k->next = c->first;
        c->first = k;
        return grammar_ref(k->grammar);
    }
    return NULL;
}

struct grammar *grammar_cache_find(struct grammar_cache *c, const struct str *text)
{
    pthread_mutex_lock(&c->lock);
    struct grammar *g = find(c, text);
    pthread_mutex_unlock(&c->lock);
    return g;
}

/* Under the lock: drops what is beyond the bound. The latest stays. */
static void trim(struct grammar_cache *c)
{
    size_t bytes = 0;
    int n = 0;
    for (struct kept **at = &c->first; *at;) {
        struct kept *k = *at;
        struct grammar_size size;
        grammar_size(k->grammar, &size);
        bytes += k->text.len + size.bytes + size.cache_bytes;
        if (n++ == 0 || (bytes <= c->limit && n <= MAX_KEPT)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        drop(k);
    }
}

struct grammar *grammar_cache_add(struct grammar_cache *c, const struct str *text, struct grammar *g,
                                  struct err *e)
{
    struct grammar_vocab *v = grammar_cache_vocab(c, e);
    if (!v) {
        grammar_unref(g);
        return NULL;
    }
    if (!grammar_bind(g, v, MASK_BYTES)) {
        err_set(e, ERR_BUSY, "no memory for the masks of one more grammar: try again later");
        grammar_unref(g);
        return NULL;
    }
    grammar_warm(g, WARM_SECONDS);
    pthread_mutex_lock(&c->lock);
    struct grammar *other = find(c, text);
    if (other) {
        grammar_unref(g);
        g = other;
    } else {
        struct kept *k = mem_zalloc(1, sizeof *k);
        str_add(&k->text, str_text(text), text->len);
        k->grammar = grammar_ref(g);
        k->next = c->first;
        c->first = k;
        trim(c);
    }
    pthread_mutex_unlock(&c->lock);
    return g;
}
