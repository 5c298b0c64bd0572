/* The vocabulary as a trie over the bytes of its tokens, laid out in preorder: masks are made by one walk
 * over it, which skips whole subtrees that the grammar does not allow. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum { MAX_IDS = 4 << 20, MAX_TOKEN_BYTES = 255 };

struct entry {
    uint32_t at; /* in the bytes of all tokens */
    int32_t id;
    uint8_t len;
};

/* qsort has no argument for it. Vocabularies are made one at a time: see the lock. */
static const char *sort_bytes;
static pthread_mutex_t sort_lock = PTHREAD_MUTEX_INITIALIZER;

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = memcmp(sort_bytes + x->at, sort_bytes + y->at, x->len < y->len ? x->len : y->len);
    return order ? order : x->len != y->len ? (int)x->len - y->len : x->id - y->id;
}

/* The usable tokens in the order of their bytes; *total is the number of nodes that they need. */
static int collect(struct entry *list, struct str *all, int n_ids, grammar_bytes_fn *bytes, void *arg,
                   size_t *total)
{
    int n = 0;
    for (int32_t id = 0; id < n_ids; id++) {
        size_t len;
        const char *text = bytes(arg, id, &len);
        if (len == 0 || len > MAX_TOKEN_BYTES)
            continue;
        list[n++] = (struct entry){(uint32_t)all->len, id, (uint8_t)len};
        str_add(all, text, len);
    }
    pthread_mutex_lock(&sort_lock);
    sort_bytes = all->data;
    if (n > 1)
        qsort(list, (size_t)n, sizeof *list, by_bytes);
    pthread_mutex_unlock(&sort_lock);
    *total = 1 + all->len;
    return n;
}

static size_t shared_prefix(const char *a, size_t na, const char *b, size_t nb)
{
    size_t n = 0;
    while (n < na && n < nb && a[n] == b[n])
        n++;
    return n;
}

struct grammar_vocab *grammar_vocab_create(int n_ids, grammar_bytes_fn *bytes, void *arg, struct err *e)
{
    if (n_ids < 1 || n_ids > MAX_IDS) {
        err_set(e, ERR_INVALID, "a vocabulary of %d tokens; 1 to %d are possible", n_ids, MAX_IDS);
        return NULL;
    }
    struct grammar_vocab *v = mem_zalloc(1, sizeof *v);
    struct entry *list = mem_try_alloc((size_t)n_ids, sizeof *list);
    struct str all = {0};
    size_t total = 0;
    v->n_ids = n_ids;
    v->same = mem_try_alloc((size_t)n_ids, sizeof *v->same);
    if (!list || !v->same)
        goto no_memory;
    int n = collect(list, &all, n_ids, bytes, arg, &total);
    v->byte = mem_try_alloc(total, 1);
    v->depth = mem_try_alloc(total, 1);
    v->skip = mem_try_alloc(total, sizeof *v->skip);
    v->token = mem_try_alloc(total, sizeof *v->token);
    if (!v->byte || !v->depth || !v->skip || !v->token)
        goto no_memory;
    memset(v->same, 0xFF, (size_t)n_ids * sizeof *v->same);
    /* path[d] is the node of depth d above where we are. */
    uint32_t path[MAX_TOKEN_BYTES + 1] = {0};
    size_t depth = 0;
    v->token[0] = -1;
    v->n_nodes = 1;
    for (int i = 0; i < n; i++) {
        const char *text = all.data + list[i].at;
        size_t len = list[i].len;
        size_t shared = i ? shared_prefix(text, len, all.data + list[i - 1].at, list[i - 1].len) : 0;
        for (; depth > shared; depth--)
            v->skip[path[depth]] = (uint32_t)v->n_nodes;
        for (; depth < len; depth++) {
            uint32_t node = (uint32_t)v->n_nodes++;
            v->byte[node] = (uint8_t)text[depth];
            v->depth[node] = (uint8_t)(depth + 1);
            v->token[node] = -1;
            path[depth + 1] = node;
        }
        v->max_len = (int)len > v->max_len ? (int)len : v->max_len;
        v->same[list[i].id] = v->token[path[len]];
        v->token[path[len]] = list[i].id;
    }
    for (size_t d = 0; d <= depth; d++)
        v->skip[path[d]] = (uint32_t)v->n_nodes;
    /* Give back what shared prefixes saved. */
    size_t used = (size_t)v->n_nodes;
    v->byte = mem_realloc(v->byte, used, 1);
    v->depth = mem_realloc(v->depth, used, 1);
    v->skip = mem_realloc(v->skip, used, sizeof *v->skip);
    v->token = mem_realloc(v->token, used, sizeof *v->token);
    free(list);
    str_free(&all);
    return v;
no_memory:
    err_set(e, ERR_NO_MEMORY, "no memory for the trie of a vocabulary of %d tokens", n_ids);
    free(list);
    str_free(&all);
    grammar_vocab_free(v);
    return NULL;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    free(v->byte);
    free(v->depth);
    free(v->skip);
    free(v->token);
    free(v->same);
    free(v);
}

size_t grammar_vocab_memory(const struct grammar_vocab *v)
{
    return sizeof *v + (size_t)v->n_nodes * (2 + sizeof *v->skip + sizeof *v->token) +
           (size_t)v->n_ids * sizeof *v->same;
}
