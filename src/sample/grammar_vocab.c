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

/* The states of reading UTF-8: how many continuation bytes are missing, and which range the next one is from.
 */
enum utf8_state {
    WHOLE,
    ONE,
    TWO,
    THREE,
    AFTER_E0,
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    UTF8_STATES,
    MALFORMED = UTF8_STATES
};

static enum utf8_state utf8_next(enum utf8_state s, unsigned byte)
{
    static const struct {
        uint8_t lo, hi, next;
    } then[UTF8_STATES] = {
        [ONE] = {0x80, 0xBF, WHOLE},    [TWO] = {0x80, 0xBF, ONE},      [THREE] = {0x80, 0xBF, TWO},
        [AFTER_E0] = {0xA0, 0xBF, ONE}, [AFTER_ED] = {0x80, 0x9F, ONE}, [AFTER_F0] = {0x90, 0xBF, TWO},
        [AFTER_F4] = {0x80, 0x8F, TWO}};
    if (s != WHOLE)
        return byte >= then[s].lo && byte <= then[s].hi ? then[s].next : MALFORMED;
    if (byte < 0x80)
        return WHOLE;
    if (byte < 0xC2 || byte > 0xF4)
        return MALFORMED;
    if (byte < 0xE0)
        return ONE;
    if (byte < 0xF0)
        return byte == 0xE0 ? AFTER_E0 : byte == 0xED ? AFTER_ED : TWO;
    return byte == 0xF0 ? AFTER_F0 : byte == 0xF4 ? AFTER_F4 : THREE;
}

/* Fills in the classes below each node, from the leaves up: in preorder a subtree lies behind its root. */
static int find_classes(struct grammar_vocab *v)
{
    /* Bit s: read from UTF-8 state s, something below is malformed. */
    uint8_t *malformed = mem_try_alloc((size_t)v->n_nodes, 1);
    if (!malformed)
        return -1;
    for (int i = v->n_nodes - 1; i >= 0; i--) {
        for (uint32_t k = (uint32_t)i + 1; k < v->skip[i]; k = v->skip[k]) {
            v->below[i] |= v->below[k] & ~(UINT64_C(1) << CLASS_MALFORMED);
            v->below[i] |= UINT64_C(1) << vocab_class(v->byte[k]);
            for (int s = 0; s < UTF8_STATES; s++) {
                enum utf8_state next = utf8_next((enum utf8_state)s, v->byte[k]);
                if (next == MALFORMED || malformed[k] >> next & 1)
                    malformed[i] |= (uint8_t)(1 << s);
            }
        }
        if (malformed[i] >> WHOLE & 1)
            v->below[i] |= UINT64_C(1) << CLASS_MALFORMED;
    }
    free(malformed);
    return 0;
}

/* The number of characters of a plain token, 0 if it is not plain. */
static int plain_chars(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; n++) {
        unsigned c;
        int step = utf8_decode(text + i, len - i, &c);
        if (step == 0 || !vocab_plain_char(c))
            return 0;
        i += (size_t)step;
    }
    return n;
}

/* Finds the plain tokens, once the trie is there. */
static int sort_plain(struct grammar_vocab *v, const struct entry *list, const char *bytes, int n)
{
    int32_t *chars = mem_try_alloc((size_t)v->n_ids, sizeof *chars); /* of each id */
    v->plain = mem_try_alloc((size_t)(v->n_ids + 31) / 32, sizeof *v->plain);
    v->by_chars = mem_try_alloc((size_t)v->n_ids, sizeof *v->by_chars);
    v->mixed = mem_try_alloc((size_t)v->n_nodes, sizeof *v->mixed);
    v->upto = mem_try_alloc(MAX_TOKEN_BYTES + 2, sizeof *v->upto);
    if (!chars || !v->plain || !v->by_chars || !v->mixed || !v->upto) {
        free(chars);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        int k = plain_chars(bytes + list[i].at, list[i].len);
        chars[list[i].id] = k;
        v->max_chars = k > v->max_chars ? k : v->max_chars;
        if (k)
            v->upto[k + 1]++;
    }
    for (int k = 0; k <= v->max_chars; k++)
        v->upto[k + 1] += v->upto[k];
    v->n_plain = v->upto[v->max_chars + 1];
    int32_t next[MAX_TOKEN_BYTES + 2];
    memcpy(next, v->upto, sizeof next);
    for (int32_t id = 0; id < v->n_ids; id++)
        if (chars[id]) {
            v->by_chars[next[chars[id]]++] = id;
            v->plain[id >> 5] |= UINT32_C(1) << (id & 31);
        }
    /* From the leaves up: in preorder, a subtree lies behind its root. */
    for (int i = v->n_nodes - 1; i >= 0; i--) {
        for (int32_t id = vocab_first(v, (uint32_t)i); id >= 0; id = vocab_next(v, (uint32_t)i, id))
            v->mixed[i] |= !chars[id];
        for (uint32_t k = (uint32_t)i + 1; k < v->skip[i] && !v->mixed[i]; k = v->skip[k])
            v->mixed[i] |= v->mixed[k];
    }
    free(chars);
    return 0;
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
    v->bytes = bytes;
    v->arg = arg;
    v->same = mem_try_alloc((size_t)n_ids, sizeof *v->same);
    if (!list || !v->same)
        goto no_memory;
    int n = collect(list, &all, n_ids, bytes, arg, &total);
    v->byte = mem_try_alloc(total, 1);
    v->depth = mem_try_alloc(total, 1);
    v->skip = mem_try_alloc(total, sizeof *v->skip);
    v->token = mem_try_alloc(total, sizeof *v->token);
    v->first = mem_try_alloc(total + 1, sizeof *v->first);
    v->order = mem_try_alloc((size_t)n, sizeof *v->order);
    if (!v->byte || !v->depth || !v->skip || !v->token || !v->first || !v->order)
        goto no_memory;
    memset(v->same, 0xFF, (size_t)n_ids * sizeof *v->same);
    /* path[d] is the node of depth d above where we are. */
    uint32_t path[MAX_TOKEN_BYTES + 1] = {0};
    size_t depth = 0;
    v->token[0] = VOCAB_NONE;
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
            v->token[node] = VOCAB_NONE;
            v->first[node] = (uint32_t)i;
            path[depth + 1] = node;
        }
        v->max_len = (int)len > v->max_len ? (int)len : v->max_len;
        v->order[i] = list[i].id;
        int32_t *token = &v->token[path[len]];
        v->same[list[i].id] = vocab_first(v, path[len]);
        *token = *token == VOCAB_NONE ? list[i].id : -2 - list[i].id;
    }
    for (size_t d = 0; d <= depth; d++)
        v->skip[path[d]] = (uint32_t)v->n_nodes;
    v->n_tokens = n;
    v->first[v->n_nodes] = (uint32_t)n;
    /* Give back what shared prefixes saved. */
    size_t used = (size_t)v->n_nodes;
    v->byte = mem_realloc(v->byte, used, 1);
    v->depth = mem_realloc(v->depth, used, 1);
    v->skip = mem_realloc(v->skip, used, sizeof *v->skip);
    v->token = mem_realloc(v->token, used, sizeof *v->token);
    v->first = mem_realloc(v->first, used + 1, sizeof *v->first);
    v->below = mem_try_alloc(used, sizeof *v->below);
    if (!v->below || find_classes(v))
        goto no_memory;
    if (sort_plain(v, list, all.data, n))
        goto no_memory;
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
    free(v->order);
    free(v->first);
    free(v->below);
    free(v->mixed);
    free(v->plain);
    free(v->by_chars);
    free(v->upto);
    free(v);
}

size_t grammar_vocab_memory(const struct grammar_vocab *v)
{
    size_t node = 3 + sizeof *v->skip + sizeof *v->token + sizeof *v->first + sizeof *v->below;
    size_t id = sizeof *v->same + sizeof *v->order + sizeof *v->by_chars;
    return sizeof *v + (size_t)v->n_nodes * node + (size_t)v->n_ids * id + (size_t)v->n_ids / 8;
}

const char *grammar_vocab_text(const struct grammar_vocab *v, int32_t id, size_t *len)
{
    *len = 0;
    return id >= 0 && id < v->n_ids ? v->bytes(v->arg, id, len) : "";
}

int32_t grammar_vocab_longest(const struct grammar_vocab *v, const char *text, size_t n)
{
    uint32_t node = 0;
    int32_t longest = -1;
    for (size_t i = 0; i < n; i++) {
        uint32_t child = node + 1;
        while (child < v->skip[node] && v->byte[child] != (uint8_t)text[i])
            child = v->skip[child];
        if (child >= v->skip[node])
            return longest;
        node = child;
        if (v->token[node] != VOCAB_NONE)
            longest = vocab_first(v, node);
    }
    return v->skip[node] == node + 1 ? longest : -1;
}
