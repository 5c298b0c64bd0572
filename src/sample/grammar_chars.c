/* Trees as sets of texts, character by character: texts in which certain strings do not occur, texts of two
 * trees at once, and texts as they stand inside a JSON string. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

/* --- free text: the automaton of Aho and Corasick ------------------------------------------------ */

/* A node of the trie of all strings. */
struct trie_node {
    uint32_t c; /* the character that leads here */
    int32_t child, sibling, fail;
    int32_t string; /* the string that ends here, -1 = none */
};

struct trie {
    struct trie_node *nodes; /* [n]; 0 is the root */
    int n, cap;
};

static int32_t trie_child(const struct trie *t, int32_t at, uint32_t c)
{
    for (int32_t k = t->nodes[at].child; k >= 0; k = t->nodes[k].sibling)
        if (t->nodes[k].c == c)
            return k;
    return -1;
}

/* Where character c leads from node `at`, by fail links where the trie has no child. */
static int32_t trie_next(const struct trie *t, int32_t at, uint32_t c)
{
    for (;;) {
        int32_t k = trie_child(t, at, c);
        if (k >= 0 || at == 0)
            return k >= 0 ? k : 0;
        at = t->nodes[at].fail;
    }
}

static int trie_insert(struct trie *t, const char *text, int32_t id, struct grammar_builder *b)
{
    int32_t at = 0;
    size_t len = strlen(text);
    for (size_t i = 0; i < len;) {
        unsigned c;
        int n = utf8_decode(text + i, len - i, &c);
        if (n == 0)
            return builder_fail(b, ERR_INVALID, "a string to look for is not valid UTF-8");
        i += (size_t)n;
        int32_t k = trie_child(t, at, c);
        if (k < 0) {
            GROW(t->nodes, t->n, t->cap, 1);
            k = t->n++;
            t->nodes[k] =
                (struct trie_node){.c = c, .child = -1, .sibling = t->nodes[at].child, .string = -1};
            t->nodes[at].child = k;
        }
        at = k;
    }
    if (at == 0)
        return builder_fail(b, ERR_INVALID, "a string to look for is empty");
    if (t->nodes[at].string >= 0)
        return builder_fail(b, ERR_INVALID, "the string \"%.100s\" to look for is there twice", text);
    t->nodes[at].string = id;
    return 0;
}

/* Fills in the fail links, breadth first; refuses a string that holds another, which would never be found. */
static int trie_link(struct trie *t, const char *const *strings, struct grammar_builder *b)
{
    int32_t *queue = mem_alloc((size_t)t->n * sizeof *queue);
    int head = 0, tail = 0, rc = 0;
    queue[tail++] = 0;
    while (head < tail && rc == 0) {
        int32_t at = queue[head++];
        for (int32_t k = t->nodes[at].child; k >= 0; k = t->nodes[k].sibling) {
            struct trie_node *n = &t->nodes[k];
            n->fail = at == 0 ? 0 : trie_next(t, t->nodes[at].fail, n->c);
            int32_t inner = t->nodes[n->fail].string;
            if (inner >= 0 || (n->string >= 0 && n->child >= 0))
                rc = builder_fail(b, ERR_INVALID, "of the strings to look for, one holds another: \"%.100s\"",
                                  strings[inner >= 0 ? inner : n->string]);
            queue[tail++] = k;
        }
    }
    free(queue);
    return rc;
}

struct edge_list {
    struct graph_edge *e;
    int n, cap;
};

static void add_edge(struct edge_list *l, int from, int to, grammar_node label)
{
    GROW(l->e, l->n, l->cap, 1);
    l->e[l->n++] = (struct graph_edge){from, to, label};
}

/* The trie's node as a state of the graph, whose state 1 is the end. */
static int graph_state(int32_t node)
{
    return node == 0 ? 0 : node + 1;
}

grammar_node grammar_free_text(struct grammar_builder *b, const char *const *strings,
                               const grammar_node *found, int n)
{
    struct trie t = {0};
    struct edge_list edges = {0};
    grammar_node out = -1;
    if (builder_failed(b))
        return -1;
    GROW(t.nodes, t.n, t.cap, 1);
    t.nodes[t.n++] = (struct trie_node){.child = -1, .sibling = -1, .string = -1};
    for (int i = 0; i < n; i++)
        if (trie_insert(&t, strings[i], i, b))
            goto done;
    if (t.n > 20000) {
        builder_fail(b, ERR_INVALID, "the strings to look for are too long: more than 20000 characters");
        goto done;
    }
    if (trie_link(&t, strings, b))
        goto done;
    grammar_node empty = grammar_text(b, "");
    for (int32_t s = 0; s < t.n; s++) {
        if (t.nodes[s].string >= 0)
            continue;
        struct charset rest = {0};
        /* Only children of s and of the nodes on its chain of fail links lead anywhere but to the root. */
        for (int32_t f = s;; f = t.nodes[f].fail) {
            for (int32_t k = t.nodes[f].child; k >= 0; k = t.nodes[k].sibling) {
                uint32_t c = t.nodes[k].c;
                if (charset_has(rest.r, rest.n, c))
                    continue; /* a longer match has it */
                charset_add(&rest, c, c);
                int32_t id = t.nodes[k].string;
                grammar_node one = grammar_class(b, &(struct char_range){c, c}, 1);
                if (id < 0)
                    add_edge(&edges, graph_state(s), graph_state(k), one);
                else if (found)
                    add_edge(&edges, graph_state(s), 1, grammar_seq2(b, one, found[id]));
            }
            if (f == 0)
                break;
        }
        charset_negate(&rest);
        add_edge(&edges, graph_state(s), 0, grammar_class(b, rest.r, rest.n));
        charset_free(&rest);
        if (!found)
            add_edge(&edges, graph_state(s), 1, empty);
        if (builder_failed(b))
            goto done;
    }
    out = grammar_graph(b, t.n + 1, edges.e, edges.n);
done:
    free(t.nodes);
    free(edges.e);
    return out;
}

/* --- intersection -------------------------------------------------------------------------------- */

/* A tree as a graph whose edges are labelled by single characters: sets[set], or nothing for set -1. */
struct char_graph {
    struct char_edge {
        int32_t from, to, set;
    } * e;
    struct char_range *ranges;
    struct {
        int32_t first, n;
    } * sets;
    int32_t *first; /* [n_states + 1] edges of each state, once sorted */
    int n_states, n, cap, n_ranges, cap_ranges, n_sets, cap_sets;
};

enum { CHAR_GRAPH_STATES = 20000, PRODUCT_STATES = 40000, PRODUCT_TABLE = 8 << 20 };

static void char_graph_free(struct char_graph *g)
{
    free(g->e);
    free(g->ranges);
    free(g->sets);
    free(g->first);
}

static int new_state(struct char_graph *g, struct grammar_builder *b)
{
    if (g->n_states >= CHAR_GRAPH_STATES) {
        builder_fail(b, ERR_INVALID,
                     "a pattern combined with a length or another pattern is too large: more than "
                     "%d characters",
                     CHAR_GRAPH_STATES);
        return 0;
    }
    return g->n_states++;
}

static void char_edge(struct char_graph *g, int from, int to, int set)
{
    GROW(g->e, g->n, g->cap, 1);
    g->e[g->n++] = (struct char_edge){from, to, set};
}

static int add_set(struct char_graph *g, const struct char_range *r, int n)
{
    GROW(g->sets, g->n_sets, g->cap_sets, 1);
    g->sets[g->n_sets].first = g->n_ranges;
    g->sets[g->n_sets].n = n;
    GROW(g->ranges, g->n_ranges, g->cap_ranges, n);
    for (int i = 0; i < n; i++)
        g->ranges[g->n_ranges++] = r[i];
    return g->n_sets++;
}

/* Adds paths from `from` to `to` that spell the texts of node. */
static void flatten(struct char_graph *g, struct grammar_builder *b, grammar_node node, int from, int to)
{
    if (builder_failed(b))
        return;
    struct node n = b->nodes[node];
    switch (n.kind) {
    case NODE_LITERAL: {
        for (int32_t i = 0; i < n.n;) {
            unsigned c;
            int len = utf8_decode(b->bytes.data + n.first + i, (size_t)(n.n - i), &c);
            if (len == 0) {
                builder_fail(b, ERR_INVALID, "a text is not valid UTF-8");
                return;
            }
            int next = new_state(g, b);
            char_edge(g, from, next, add_set(g, &(struct char_range){c, c}, 1));
            from = next;
            i += len;
        }
        char_edge(g, from, to, -1);
        return;
    }
    case NODE_CLASS:
        char_edge(g, from, to, add_set(g, b->ranges + n.first, n.n));
        return;
    case NODE_SEQ:
        for (int i = 0; i < n.n; i++) {
            int next = i + 1 < n.n ? new_state(g, b) : to;
            flatten(g, b, b->kids[n.first + i], from, next);
            from = next;
        }
        if (n.n == 0)
            char_edge(g, from, to, -1);
        return;
    case NODE_ALT:
        for (int i = 0; i < n.n; i++)
            flatten(g, b, b->kids[n.first + i], from, to);
        return;
    case NODE_REPEAT: {
        grammar_node kid = b->kids[n.first];
        for (int i = 0; i < n.min && !builder_failed(b); i++) {
            int next = new_state(g, b);
            flatten(g, b, kid, from, next);
            from = next;
        }
        if (n.max == GRAMMAR_NO_END) {
            int loop = new_state(g, b);
            char_edge(g, from, loop, -1);
            flatten(g, b, kid, loop, loop);
            char_edge(g, loop, to, -1);
            return;
        }
        char_edge(g, from, to, -1);
        for (int i = n.min; i < n.max && !builder_failed(b); i++) {
            int next = new_state(g, b);
            flatten(g, b, kid, from, next);
            char_edge(g, next, to, -1);
            from = next;
        }
        return;
    }
    case NODE_GRAPH: {
        int base = g->n_states;
        for (int i = 2; i < n.min; i++)
            new_state(g, b);
        int enter = new_state(g, b), leave = new_state(g, b); /* others may loop through from and to */
        char_edge(g, from, enter, -1);
        char_edge(g, leave, to, -1);
        for (int i = 0; i < n.n && !builder_failed(b); i++) {
            struct graph_edge e = b->edges[n.first + i];
            int x = e.from == 0 ? enter : e.from == 1 ? leave : base + e.from - 2;
            int y = e.to == 0 ? enter : e.to == 1 ? leave : base + e.to - 2;
            flatten(g, b, e.label, x, y);
        }
        return;
    }
    default:
        builder_fail(b, ERR_UNSUPPORTED, "a pattern with rules cannot be combined with another");
    }
}

static int by_from(const void *a, const void *b)
{
    const struct char_edge *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void char_graph_make(struct char_graph *g, struct grammar_builder *b, grammar_node node)
{
    g->n_states = 2;
    flatten(g, b, node, 0, 1);
    if (g->n)
        qsort(g->e, (size_t)g->n, sizeof *g->e, by_from);
    g->first = mem_zalloc((size_t)g->n_states + 1, sizeof *g->first);
    for (int i = 0; i < g->n; i++)
        g->first[g->e[i].from + 1]++;
    for (int i = 0; i < g->n_states; i++)
        g->first[i + 1] += g->first[i];
}

struct product {
    struct char_graph x, y;
    int32_t *id;      /* [x.n_states, y.n_states] state of the result, -1 = none yet */
    int32_t *classes; /* [x.n_sets, y.n_sets] node of the intersection, -1 = not made, -2 = empty */
    int64_t *queue;   /* pairs in the order of their ids */
    int n, cap;
    struct edge_list edges;
};

static int pair_id(struct product *p, int x, int y)
{
    int64_t at = (int64_t)x * p->y.n_states + y;
    if (p->id[at] < 0) {
        GROW(p->queue, p->n, p->cap, 1);
        p->queue[p->n] = at;
        p->id[at] = p->n++;
    }
    return p->id[at];
}

static grammar_node common_class(struct product *p, struct grammar_builder *b, int sx, int sy)
{
    int32_t *known = &p->classes[(int64_t)sx * p->y.n_sets + sy];
    if (*known == -1) {
        struct charset both = {0};
        charset_intersect(&both, p->x.ranges + p->x.sets[sx].first, p->x.sets[sx].n,
                          p->y.ranges + p->y.sets[sy].first, p->y.sets[sy].n);
        *known = both.n ? grammar_class(b, both.r, both.n) : -2;
        charset_free(&both);
    }
    return *known;
}

grammar_node grammar_intersect(struct grammar_builder *b, grammar_node nx, grammar_node ny)
{
    struct product p = {0};
    grammar_node out = -1;
    char_graph_make(&p.x, b, nx);
    char_graph_make(&p.y, b, ny);
    if (builder_failed(b))
        goto done;
    if ((int64_t)p.x.n_states * p.y.n_states > PRODUCT_TABLE ||
        (int64_t)p.x.n_sets * p.y.n_sets > PRODUCT_TABLE) {
        builder_fail(b, ERR_INVALID, "a pattern combined with a length or another pattern is too large");
        goto done;
    }
    size_t pairs = (size_t)p.x.n_states * (size_t)p.y.n_states;
    size_t classes = (size_t)p.x.n_sets * (size_t)p.y.n_sets;
    p.id = mem_alloc(pairs * sizeof *p.id);
    memset(p.id, 0xFF, pairs * sizeof *p.id);
    p.classes = mem_alloc(classes * sizeof *p.classes);
    memset(p.classes, 0xFF, classes * sizeof *p.classes);
    grammar_node empty = grammar_text(b, "");
    pair_id(&p, 0, 0);
    pair_id(&p, 1, 1);
    for (int i = 0; i < p.n; i++) {
        int x = (int)(p.queue[i] / p.y.n_states), y = (int)(p.queue[i] % p.y.n_states);
        for (int j = p.x.first[x]; j < p.x.first[x + 1]; j++) {
            struct char_edge ex = p.x.e[j];
            if (ex.set < 0) {
                add_edge(&p.edges, i, pair_id(&p, ex.to, y), empty);
                continue;
            }
            for (int k = p.y.first[y]; k < p.y.first[y + 1]; k++) {
                struct char_edge ey = p.y.e[k];
                grammar_node both = ey.set < 0 ? -2 : common_class(&p, b, ex.set, ey.set);
                if (both >= 0)
                    add_edge(&p.edges, i, pair_id(&p, ex.to, ey.to), both);
            }
        }
        for (int k = p.y.first[y]; k < p.y.first[y + 1]; k++)
            if (p.y.e[k].set < 0)
                add_edge(&p.edges, i, pair_id(&p, x, p.y.e[k].to), empty);
        if (p.n > PRODUCT_STATES || p.edges.n > 8 * PRODUCT_STATES)
            builder_fail(b, ERR_INVALID, "a pattern combined with a length or another pattern is too large");
        if (builder_failed(b))
            goto done;
    }
    out = grammar_graph(b, p.n, p.edges.e, p.edges.n);
done:
    char_graph_free(&p.x);
    char_graph_free(&p.y);
    free(p.id);
    free(p.classes);
    free(p.queue);
    free(p.edges.e);
    return out;
}

/* --- inside a JSON string ----------------------------------------------------------------------- */

static const char controls[] = "\b\f\n\r\t"; /* those that a JSON string escapes by a letter */

/* The characters of a class as a JSON string writes them: as they are, but for the quote, the backslash and
 * control characters, which are escaped. */
static grammar_node escaped_class(struct grammar_builder *b, const struct char_range *r, int n)
{
    static const struct char_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    static const char letters[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: the character, the letter that escapes it */
    struct charset raw = {0};
    grammar_node ways[3 + 32];
    int k = 0;
    charset_intersect(&raw, r, n, plain, 3);
    if (raw.n)
        ways[k++] = grammar_class(b, raw.r, raw.n);
    charset_free(&raw);
    struct charset shorts = {0};
    for (int i = 0; letters[i]; i += 2)
        if (charset_has(r, n, (uint32_t)letters[i]))
            charset_add(&shorts, (uint32_t)letters[i + 1], (uint32_t)letters[i + 1]);
    charset_normalise(&shorts);
    if (shorts.n)
        ways[k++] = grammar_seq2(b, grammar_text(b, "\\"), grammar_class(b, shorts.r, shorts.n));
    charset_free(&shorts);
    for (uint32_t c = 0; c < 0x20; c++) {
        if (!charset_has(r, n, c) || memchr(controls, (int)c, 5))
            continue;
        char code[8];
        snprintf(code, sizeof code, "\\u00%x", (unsigned)(c >> 4));
        uint32_t low = (c & 15) < 10 ? '0' + (c & 15) : 'a' + (c & 15) - 10;
        struct char_range digit[2] = {{low, low}, {low, low}};
        if (low >= 'a') /* either case */
            digit[0] = (struct char_range){low - 32, low - 32};
        ways[k++] = grammar_seq2(b, grammar_text(b, code), grammar_class(b, digit, low >= 'a' ? 2 : 1));
    }
    return grammar_alt(b, ways, k);
}

static grammar_node escape(struct grammar_builder *b, grammar_node node, grammar_node *done)
{
    if (builder_failed(b))
        return -1;
    if (done && done[node] >= 0)
        return done[node];
    struct node n = b->nodes[node];
    grammar_node out = -1;
    switch (n.kind) {
    case NODE_LITERAL: {
        struct str text = {0};
        for (int i = 0; i < n.n; i++) {
            unsigned char c = (unsigned char)b->bytes.data[n.first + i];
            const char *at = memchr(controls, c, 5);
            if (c == '"' || c == '\\')
                str_addf(&text, "\\%c", c);
            else if (at)
                str_addf(&text, "\\%c", "bfnrt"[at - controls]);
            else if (c < 0x20)
                str_addf(&text, "\\u%04x", c);
            else
                str_addc(&text, (char)c);
        }
        out = grammar_literal(b, str_text(&text), text.len);
        str_free(&text);
        break;
    }
    case NODE_CLASS: {
        /* A copy: making nodes may move the builder's ranges. */
        struct charset set = {0};
        charset_add_ranges(&set, b->ranges + n.first, n.n);
        out = escaped_class(b, set.r, set.n);
        charset_free(&set);
        break;
    }
    case NODE_SEQ:
    case NODE_ALT: {
        grammar_node *list = mem_alloc((size_t)n.n * sizeof *list);
        for (int i = 0; i < n.n; i++)
            list[i] = escape(b, b->kids[n.first + i], done);
        out = n.kind == NODE_SEQ ? grammar_seq(b, list, n.n) : grammar_alt(b, list, n.n);
        free(list);
        break;
    }
    case NODE_REPEAT:
        out =
            grammar_repeat(b, escape(b, b->kids[n.first], done), n.min, n.max == GRAMMAR_NO_END ? -1 : n.max);
        break;
    case NODE_GRAPH: {
        struct graph_edge *list = mem_alloc((size_t)n.n * sizeof *list);
        for (int i = 0; i < n.n; i++) {
            list[i] = b->edges[n.first + i];
            list[i].label = escape(b, list[i].label, done);
        }
        out = grammar_graph(b, n.min, list, n.n);
        free(list);
        break;
    }
    default:
        return builder_fail(b, ERR_UNSUPPORTED, "a text with rules cannot stand in a JSON string");
    }
    if (done)
        done[node] = out;
    return out;
}

grammar_node grammar_json_escaped(struct grammar_builder *b, grammar_node x)
{
    if (builder_failed(b))
        return -1;
    if (b->nodes[x].kind == NODE_LITERAL || b->nodes[x].kind == NODE_CLASS)
        return escape(b, x, NULL); /* no parts, so none twice */
    size_t n = (size_t)b->n_nodes;
    grammar_node *done = mem_alloc(n * sizeof *done);
    memset(done, 0xFF, n * sizeof *done);
    grammar_node out = escape(b, x, done);
    free(done);
    return out;
}
