/* A trie of the added tokens, walked from every place of the text that can begin one: leftmost, then longest.
 * The walk is bounded by ADDED_TOKEN_MAX_BYTES, so time is linear in the text. */
#include "text/added_tokens.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/str.h"

struct trie_edge {
    int32_t node; /* -1 = empty bucket */
    int32_t child;
    uint8_t byte;
};

void added_tokens_free(struct added_tokens *a)
{
    free(a->items);
    free(a->edges);
    free(a->node_item);
    *a = (struct added_tokens){0};
}

static struct trie_edge *find_edge(const struct added_tokens *a, int32_t node, uint8_t byte)
{
    uint64_t h = ((uint64_t)(uint32_t)node << 8 | byte) * 0x9E3779B97F4A7C15u;
    size_t i = (h >> 32) & a->edge_mask;
    for (;; i = (i + 1) & a->edge_mask) {
        struct trie_edge *edge = &a->edges[i];
        if (edge->node < 0 || (edge->node == node && edge->byte == byte))
            return edge;
    }
}

static void grow_edges(struct added_tokens *a)
{
    struct trie_edge *old = a->edges;
    size_t n_old = old ? a->edge_mask + 1 : 0;
    size_t n = n_old ? n_old * 2 : 256;
    a->edges = mem_realloc(NULL, n, sizeof *a->edges);
    for (size_t i = 0; i < n; i++)
        a->edges[i].node = -1;
    a->edge_mask = n - 1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].node >= 0)
            *find_edge(a, old[i].node, old[i].byte) = old[i];
    free(old);
}

static int32_t new_node(struct added_tokens *a)
{
    if (a->n_nodes == a->nodes_cap) {
        a->nodes_cap = a->nodes_cap ? a->nodes_cap * 2 : 256;
        a->node_item = mem_realloc(a->node_item, (size_t)a->nodes_cap, sizeof *a->node_item);
    }
    a->node_item[a->n_nodes] = -1;
    return a->n_nodes++;
}

/* White space as Unicode's property of that name has it. */
static bool is_space(unsigned c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static bool is_word(unsigned c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* The character that ends before `at`, and its length; 0 if there is none or it is malformed. */
static int char_before(const char *text, size_t at, unsigned *c)
{
    for (int n = 1; n <= 4 && (size_t)n <= at; n++)
        if (((unsigned char)text[at - (size_t)n] & 0xC0) != 0x80)
            return utf8_decode(text + at - n, (size_t)n, c) == n ? n : 0;
    return 0;
}

static int char_after(const char *text, size_t len, size_t at, unsigned *c)
{
    return at < len ? utf8_decode(text + at, len - at, c) : 0;
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned c;
        int n = utf8_decode(text + i, len - i, &c);
        if (!n || !(is_space(c) || c == 0x2581)) /* U+2581 is how SentencePiece writes a space */
            return false;
        i += (size_t)n;
    }
    return true;
}

int added_tokens_add(struct added_tokens *a, const char *text, size_t len, struct added_token token,
                     struct err *e)
{
    if (len == 0 || len > ADDED_TOKEN_MAX_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "added token %d is %zu bytes long; 1 … %d are possible",
                       (int)token.id, len, ADDED_TOKEN_MAX_BYTES);
    if (!a->n_nodes)
        new_node(a);
    int32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        if ((size_t)a->n_nodes * 2 >= a->edge_mask)
            grow_edges(a);
        struct trie_edge *edge = find_edge(a, node, (uint8_t)text[i]);
        if (edge->node < 0) {
            *edge = (struct trie_edge){node, new_node(a), (uint8_t)text[i]};
        }
        node = edge->child;
    }
    if (a->node_item[node] < 0) {
        if (a->n == a->cap) {
            a->cap = a->cap ? a->cap * 2 : 32;
            a->items = mem_realloc(a->items, (size_t)a->cap, sizeof *a->items);
        }
        a->node_item[node] = a->n++;
    }
    token.blank = is_blank(text, len);
    a->items[a->node_item[node]] = token;
    a->starts[(uint8_t)text[0]] = true;
    return 0;
}

/* The longest token that begins exactly at `at`, NULL if none; *end is set. */
static const struct added_token *longest_at(const struct added_tokens *a, const char *text, size_t len,
                                            const uint8_t *literal, size_t at, size_t *end)
{
    const struct added_token *best = NULL;
    int32_t node = 0;
    bool has_literal = false;
    for (size_t i = at; i < len; i++) {
        const struct trie_edge *edge = find_edge(a, node, (uint8_t)text[i]);
        if (edge->node < 0)
            break;
        node = edge->child;
        has_literal |= literal && literal[i];
        int32_t item = a->node_item[node];
        if (item >= 0 && (!has_literal || a->items[item].blank)) {
            best = &a->items[item];
            *end = i + 1;
        }
    }
    return best;
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t end)
{
    unsigned c;
    return !(char_before(text, start, &c) && is_word(c)) && !(char_after(text, len, end, &c) && is_word(c));
}

bool added_tokens_next(const struct added_tokens *a, const char *text, size_t len, const uint8_t *literal,
                       size_t from, bool parse_special, size_t *start, size_t *end, int32_t *id)
{
    if (a->n == 0)
        return false;
    for (size_t at = from; at < len; at++) {
        if (!a->starts[(uint8_t)text[at]])
            continue;
        size_t stop = at;
        const struct added_token *t = longest_at(a, text, len, literal, at, &stop);
        if (!t)
            continue;
        if ((t->special && !parse_special) || (t->single_word && !stands_alone(text, len, at, stop))) {
            at = stop - 1;
            continue;
        }
        *start = at;
        *end = stop;
        *id = t->id;
        unsigned c;
        int n;
        while (t->lstrip && *start > from && (n = char_before(text, *start, &c)) && is_space(c) &&
               *start - from >= (size_t)n && !(literal && literal[*start - 1]))
            *start -= (size_t)n;
        while (t->rstrip && (n = char_after(text, len, *end, &c)) && is_space(c) &&
               !(literal && literal[*end]))
            *end += (size_t)n;
        return true;
    }
    return false;
}
