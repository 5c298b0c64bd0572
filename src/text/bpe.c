/* Byte-pair encoding with a heap. The symbols of a piece form a linked list; every pair of neighbours that
 * has a merge waits in a heap ordered by (rank, position). Merging makes older candidates stale; they stay in
 * the heap and are dropped when they come up and their pair is no longer there. Scanning for the best pair
 * instead, as the textbook does, is quadratic: a megabyte of one letter would take hours. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct symbol {
    int32_t id;         /* -1 = merged into the one before */
    int32_t prev, next; /* -1 = none */
};

struct candidate {
    uint32_t rank;
    uint32_t at;         /* index of the left symbol */
    int32_t left, right; /* the ids it was made for: stale when they have changed */
};

void bpe_free(struct bpe *b)
{
    free(b->merges);
    *b = (struct bpe){0};
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (struct bpe_work){0};
}

static struct merge *find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    size_t i = (h ^ h >> 32) & b->merge_mask;
    for (;; i = (i + 1) & b->merge_mask) {
        struct merge *m = &b->merges[i];
        if (m->left < 0 || (m->left == left && m->right == right))
            return m;
    }
}

static void grow_merges(struct bpe *b)
{
    struct merge *old = b->merges;
    size_t n_old = old ? b->merge_mask + 1 : 0;
    size_t n = n_old ? n_old * 2 : 1024;
    b->merges = mem_realloc(NULL, n, sizeof *b->merges);
    for (size_t i = 0; i < n; i++)
        b->merges[i].left = -1;
    b->merge_mask = n - 1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].left >= 0)
            *find_merge(b, old[i].left, old[i].right) = old[i];
    free(old);
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t result)
{
    if (b->n_merges * 2 >= b->merge_mask)
        grow_merges(b);
    struct merge *m = find_merge(b, left, right);
    if (m->left < 0)
        b->n_merges++;
    *m = (struct merge){left, right, rank, result};
}

void bpe_finish(struct bpe *b, const struct vocab *v)
{
    if (!b->merges)
        grow_merges(b);
    b->all_bytes = true;
    for (int i = 0; i < 256; i++) {
        struct str name = {0};
        if (b->byte_level)
            str_add_utf8(&name, byte_to_char((unsigned char)i));
        else
            str_addf(&name, "<0x%02X>", (unsigned)i);
        b->byte_ids[i] = b->byte_level || b->byte_fallback ? vocab_find_model(v, name.data, name.len) : -1;
        str_free(&name);
        b->all_bytes &= b->byte_ids[i] >= 0;
    }
    b->longest_name = 0;
    for (int id = 0; id < v->n; id++)
        if (v->tokens[id].flags & TOKEN_MODEL && v->tokens[id].name_len > b->longest_name)
            b->longest_name = v->tokens[id].name_len;
}

/* --- the heap: smallest (rank, at) first --------------------------------------------------------- */

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    struct candidate moving = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &moving))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void sift_up(struct candidate *heap, size_t i)
{
    struct candidate moving = heap[i];
    for (; i > 0 && before(&moving, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = moving;
}

/* Appends the candidate for symbols at and its next, if they have a merge. The caller restores the heap. */
static bool add_candidate(const struct bpe *b, struct bpe_work *w, int32_t at)
{
    int32_t next = w->symbols[at].next;
    if (next < 0)
        return false;
    int32_t left = w->symbols[at].id, right = w->symbols[next].id;
    const struct merge *m = find_merge(b, left, right);
    if (m->left < 0)
        return false;
    if (w->heap_len == w->heap_cap) {
        w->heap_cap = w->heap_cap ? w->heap_cap * 2 : 64;
        w->heap = mem_realloc(w->heap, w->heap_cap, sizeof *w->heap);
    }
    w->heap[w->heap_len++] = (struct candidate){m->rank, (uint32_t)at, left, right};
    return true;
}

/* --- pieces -------------------------------------------------------------------------------------- */

static void push_symbol(struct bpe_work *w, size_t *n, int32_t id)
{
    struct symbol *s = &w->symbols[*n];
    *s = (struct symbol){id, (int32_t)*n - 1, (int32_t)*n + 1};
    (*n)++;
}

/* A character or byte without a token of its own. */
static void push_unknown(const struct bpe *b, struct bpe_work *w, size_t *n)
{
    if (b->unk < 0 || (b->fuse_unk && *n && w->symbols[*n - 1].id == b->unk))
        return;
    push_symbol(w, n, b->unk);
}

static bool push_bytes(const struct bpe *b, struct bpe_work *w, size_t *n, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte_ids[(unsigned char)bytes[i]] < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        push_symbol(w, n, b->byte_ids[(unsigned char)bytes[i]]);
    return true;
}

/* The piece as symbols: at most one a byte. Returns their number. */
static size_t make_symbols(const struct bpe *b, const struct vocab *v, struct bpe_work *w, const char *piece,
                           size_t len)
{
    size_t n = 0;
    for (size_t i = 0, size; i < len; i += size) {
        unsigned c;
        size = 1;
        if (!b->byte_level && !(size = (size_t)utf8_decode(piece + i, len - i, &c)))
            size = 1;
        int32_t id = b->byte_level ? -1 : vocab_find_model(v, piece + i, size);
        if (id >= 0)
            push_symbol(w, &n, id);
        else if (!push_bytes(b, w, &n, piece + i, size))
            push_unknown(b, w, &n);
    }
    if (n)
        w->symbols[n - 1].next = -1;
    return n;
}

/* The entry that is the whole piece, -1 if none. */
static int32_t whole_piece(const struct bpe *b, const struct vocab *v, const char *piece, size_t len)
{
    if (len > b->longest_name)
        return -1;
    int32_t id;
    if (b->byte_level) {
        struct str name = {0};
        for (size_t i = 0; i < len; i++)
            str_add_utf8(&name, byte_to_char((unsigned char)piece[i]));
        id = vocab_find_model(v, name.data, name.len);
        str_free(&name);
    } else {
        id = vocab_find_model(v, piece, len);
    }
    return id >= 0 && v->tokens[id].flags & TOKEN_SPECIAL ? -1 : id;
}

void bpe_encode(const struct bpe *b, const struct vocab *v, struct bpe_work *w, const char *piece, size_t len,
                struct token_list *out)
{
    if (len == 0)
        return;
    if (b->ignore_merges) {
        int32_t id = whole_piece(b, v, piece, len);
        if (id >= 0) {
            token_list_add(out, id);
            return;
        }
    }
    if (len > w->symbols_cap) {
        w->symbols_cap = len < 128 ? 128 : len;
        w->symbols = mem_realloc(w->symbols, w->symbols_cap, sizeof *w->symbols);
    }
    size_t n = make_symbols(b, v, w, piece, len);
    w->heap_len = 0;
    for (size_t i = 0; i + 1 < n; i++)
        add_candidate(b, w, (int32_t)i);
    for (size_t i = w->heap_len / 2; i-- > 0;)
        sift_down(w->heap, w->heap_len, i);

    struct symbol *s = w->symbols;
    while (w->heap_len) {
        struct candidate c = w->heap[0];
        w->heap[0] = w->heap[--w->heap_len];
        if (w->heap_len)
            sift_down(w->heap, w->heap_len, 0);
        int32_t at = (int32_t)c.at, next = s[at].next;
        if (s[at].id != c.left || next < 0 || s[next].id != c.right)
            continue;
        s[at].id = find_merge(b, c.left, c.right)->result;
        s[at].next = s[next].next;
        if (s[next].next >= 0)
            s[s[next].next].prev = at;
        s[next].id = -1;
        if (s[at].prev >= 0 && add_candidate(b, w, s[at].prev))
            sift_up(w->heap, w->heap_len - 1);
        if (add_candidate(b, w, at))
            sift_up(w->heap, w->heap_len - 1);
    }
    for (int32_t i = n ? 0 : -1; i >= 0; i = s[i].next)
        token_list_add(out, s[i].id);
}

size_t bpe_fewest_tokens(const struct bpe *b, size_t len)
{
    if (!b->all_bytes || b->longest_name == 0)
        return 0;
    return len / b->longest_name; /* a name is no shorter than the bytes it stands for */
}

void bpe_encode_byte(const struct bpe *b, const struct vocab *v, struct bpe_work *w, unsigned char byte,
                     struct token_list *out)
{
    if (b->byte_ids[byte] >= 0)
        token_list_add(out, b->byte_ids[byte]);
    else
        bpe_encode(b, v, w, "\xEF\xBF\xBD", 3, out);
}
