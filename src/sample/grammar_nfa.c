/* The first half of compiling a grammar: from the syntax tree to nondeterministic automata over bytes, one
 * for each rule. See grammar_compile.c for the whole. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_compile.h"

enum {
    INLINE_SIZE = 24,        /* rules up to this size are copied into their callers */
    UNROLL_SIZE = 40,        /* repetitions up to this size are written out */
    MAX_INLINE_DEPTH = 3000, /* of the search for them; rules further down are called */
};

int compile_fail_size(struct compiler *c, const char *what, int limit)
{
    if (!c->failed)
        err_set(c->e, ERR_INVALID, "the grammar is too large: more than %d %s", limit, what);
    c->failed = true;
    return -1;
}

/* --- tree to NFA --------------------------------------------------------------------------------- */

static int32_t add_state(struct compiler *c)
{
    if (c->n_states >= GRAMMAR_MAX_NFA) {
        compile_fail_size(c, "states", GRAMMAR_MAX_NFA);
        return 0;
    }
    GROW(c->edge_head, c->n_states, c->cap_edge_head, 1);
    GROW(c->link_head, c->n_states, c->cap_link_head, 1);
    c->edge_head[c->n_states] = c->link_head[c->n_states] = -1;
    return c->n_states++;
}

static void add_edge(struct compiler *c, int32_t from, int32_t to, unsigned lo, unsigned hi)
{
    if (c->n_edges >= 4 * GRAMMAR_MAX_NFA) {
        compile_fail_size(c, "edges", 4 * GRAMMAR_MAX_NFA);
        return;
    }
    GROW(c->edges, c->n_edges, c->cap_edges, 1);
    c->edges[c->n_edges] = (struct nfa_edge){to, c->edge_head[from], (uint8_t)lo, (uint8_t)hi};
    c->edge_head[from] = c->n_edges++;
}

static void add_link(struct compiler *c, int32_t from, int32_t to, int32_t rule)
{
    if (c->n_links >= 4 * GRAMMAR_MAX_NFA) {
        compile_fail_size(c, "links", 4 * GRAMMAR_MAX_NFA);
        return;
    }
    GROW(c->links, c->n_links, c->cap_links, 1);
    c->links[c->n_links] = (struct nfa_link){to, c->link_head[from], rule};
    c->link_head[from] = c->n_links++;
}

/* Adds n bytes from `from` to `to` that spell the numbers lo … hi, six bits a byte but for the first, which
 * is marked by `mark`. any[k] (-1 = not yet made) is a state from which any k continuation bytes lead to
 * `to`. */
static void add_utf8(struct compiler *c, int32_t from, int32_t to, uint32_t lo, uint32_t hi, int n,
                     unsigned mark, int32_t any[4])
{
    if (n == 1) {
        add_edge(c, from, to, mark | lo, mark | hi);
        return;
    }
    unsigned shift = 6 * (unsigned)(n - 1);
    uint32_t rest = (UINT32_C(1) << shift) - 1, first = lo >> shift, last = hi >> shift;
    bool whole = (lo & rest) == 0 && (hi & rest) == rest;
    if (whole) {
        for (int k = 1; k < n; k++)
            if (any[k] < 0) {
                any[k] = add_state(c);
                add_edge(c, any[k], k == 1 ? to : any[k - 1], 0x80, 0xBF);
            }
        add_edge(c, from, any[n - 1], mark | first, mark | last);
    } else if (first == last) {
        int32_t at = add_state(c);
        add_edge(c, from, at, mark | first, mark | first);
        add_utf8(c, at, to, lo & rest, hi & rest, n - 1, 0x80, any);
    } else {
        /* At least one end covers only a part of its first byte's block: cut there. */
        uint32_t cut = (lo & rest) != 0 ? lo | rest : (hi & ~rest) - 1;
        add_utf8(c, from, to, lo, cut, n, mark, any);
        add_utf8(c, from, to, cut + 1, hi, n, mark, any);
    }
}

static void add_class(struct compiler *c, int32_t from, int32_t to, const struct node *n)
{
    static const struct {
        uint32_t lo, hi;
        unsigned mark;
    } lengths[5] = {
        {0, 0, 0}, {0, 0x7F, 0}, {0x80, 0x7FF, 0xC0}, {0x800, 0xFFFF, 0xE0}, {0x10000, 0x10FFFF, 0xF0}};
    int32_t any[4] = {-1, -1, -1, -1};
    for (int i = 0; i < n->n; i++) {
        struct char_range r = c->b->ranges[n->first + i];
        for (int k = 1; k <= 4; k++) {
            uint32_t lo = r.lo > lengths[k].lo ? r.lo : lengths[k].lo;
            uint32_t hi = r.hi < lengths[k].hi ? r.hi : lengths[k].hi;
            if (lo <= hi)
                add_utf8(c, from, to, lo, hi, k, lengths[k].mark, any);
        }
    }
}

/* Better counted than written out. */
static bool long_repeat(const struct node *n)
{
    int64_t times = n->max == GRAMMAR_NO_END ? n->min : n->max;
    return times > 1 && (int64_t)n->size * times > UNROLL_SIZE;
}

/* The automaton's rule for a body; the caller remembers it. */
static int32_t add_rule(struct compiler *c, grammar_node body, int32_t source)
{
    if (c->n_rules >= GRAMMAR_MAX_RULES)
        return compile_fail_size(c, "rules", GRAMMAR_MAX_RULES), 0;
    struct out_rule r = {.body = body, .source = source, .tail = -1};
    const struct node *n = &c->b->nodes[body];
    if (source >= 0 && n->kind == NODE_SEQ && n->n == 2) {
        /* x{2,99}"…": with its end in the rule, the rule ends where the end is seen and not after every x. */
        const struct node *first = &c->b->nodes[c->b->kids[n->first]],
                          *last = &c->b->nodes[c->b->kids[n->first + 1]];
        if (first->kind == NODE_REPEAT && long_repeat(first) && last->kind == NODE_LITERAL && last->n > 0) {
            r.tail = c->b->kids[n->first + 1];
            n = first;
        }
    }
    if (source >= 0 && n->kind == NODE_REPEAT && long_repeat(n)) {
        /* The rule is one long repetition: it is itself counted. */
        r.body = c->b->kids[n->first];
        r.counted = true;
        r.min = n->min;
        r.max = n->max;
    }
    GROW(c->rules, c->n_rules, c->cap_rules, 1);
    c->rules[c->n_rules] = r;
    return c->n_rules++;
}

static int32_t rule_for(struct compiler *c, int32_t source)
{
    if (c->out_of[source] < 0)
        c->out_of[source] = add_rule(c, c->b->rules[source].body, source);
    return c->out_of[source];
}

static void build(struct compiler *c, grammar_node node, int32_t from, int32_t to);

static void build_repeat(struct compiler *c, grammar_node node, int32_t from, int32_t to)
{
    struct node n = c->b->nodes[node];
    grammar_node kid = c->b->kids[n.first];
    if (long_repeat(&n)) {
        if (c->counted[node] < 0) {
            int32_t rule = add_rule(c, kid, -1);
            struct out_rule *r = &c->rules[rule];
            r->counted = true;
            r->min = n.min;
            r->max = n.max;
            c->counted[node] = rule;
        }
        add_link(c, from, to, c->counted[node]);
        return;
    }
    for (int i = 0; i < n.min - (n.max == GRAMMAR_NO_END && n.min > 0); i++) {
        int32_t next = add_state(c);
        build(c, kid, from, next);
        from = next;
    }
    if (n.max == GRAMMAR_NO_END) {
        int32_t enter = add_state(c), leave = n.min > 0 ? add_state(c) : enter;
        add_link(c, from, enter, -1);
        build(c, kid, enter, leave);
        if (leave != enter)
            add_link(c, leave, enter, -1);
        add_link(c, leave, to, -1);
        return;
    }
    add_link(c, from, to, -1);
    for (int i = n.min; i < n.max; i++) {
        int32_t next = add_state(c);
        build(c, kid, from, next);
        add_link(c, next, to, -1);
        from = next;
    }
}

/* Adds ways from `from` to `to` that spell the texts of node. */
static void build(struct compiler *c, grammar_node node, int32_t from, int32_t to)
{
    if (c->failed)
        return;
    struct node n = c->b->nodes[node];
    switch (n.kind) {
    case NODE_LITERAL:
        for (int i = 0; i < n.n; i++) {
            unsigned char byte = (unsigned char)c->b->bytes.data[n.first + i];
            int32_t next = i + 1 < n.n ? add_state(c) : to;
            add_edge(c, from, next, byte, byte);
            from = next;
        }
        if (n.n == 0)
            add_link(c, from, to, -1);
        return;
    case NODE_CLASS:
        add_class(c, from, to, &n);
        return;
    case NODE_SEQ:
        for (int i = 0; i < n.n; i++) {
            int32_t next = i + 1 < n.n ? add_state(c) : to;
            build(c, c->b->kids[n.first + i], from, next);
            from = next;
        }
        if (n.n == 0)
            add_link(c, from, to, -1);
        return;
    case NODE_ALT:
        for (int i = 0; i < n.n; i++)
            build(c, c->b->kids[n.first + i], from, to);
        return;
    case NODE_REPEAT:
        build_repeat(c, node, from, to);
        return;
    case NODE_RULE:
        if (c->inlined[n.first])
            build(c, c->b->rules[n.first].body, from, to);
        else
            add_link(c, from, to, rule_for(c, n.first));
        return;
    case NODE_GRAPH: {
        int32_t base = c->n_states;
        for (int i = 0; i < n.min; i++)
            add_state(c);
        if (c->failed)
            return;
        add_link(c, from, base, -1);
        add_link(c, base + 1, to, -1);
        for (int i = 0; i < n.n; i++) {
            struct graph_edge e = c->b->edges[n.first + i];
            build(c, e.label, base + e.from, base + e.to);
        }
        return;
    }
    case NODE_BEGIN:
    case NODE_END:
        break;
    }
    err_set(c->e, ERR_INVALID, "an anchor outside of a regular expression");
    c->failed = true;
}

/* --- which rules are copied into their callers --------------------------------------------------- */

struct inliner {
    struct compiler *c;
    uint8_t *colour; /* [rules] 0 = new, 1 = open, 2 = done */
    uint32_t *size;  /* [rules] with what is copied into it */
    bool *refused;   /* [rules] met while open (so recursive), or too far down to tell */
    int32_t *seen;   /* [nodes] last rule that visited it, so that shared parts are visited once a rule */
};

static void inline_rule(struct inliner *in, int32_t rule, int depth);

static void inline_node(struct inliner *in, grammar_node node, int32_t rule, int depth)
{
    const struct grammar_builder *b = in->c->b;
    if (in->seen[node] == rule)
        return;
    in->seen[node] = rule;
    const struct node *n = &b->nodes[node];
    if (n->kind == NODE_RULE) {
        int32_t to = n->first;
        if (b->rules[to].body < 0)
            return; /* reported elsewhere */
        if (in->colour[to] == 1 || (in->colour[to] == 0 && depth >= MAX_INLINE_DEPTH)) {
            in->refused[to] = true;
            return;
        }
        inline_rule(in, to, depth + 1);
        if (!in->refused[to] && in->size[to] <= INLINE_SIZE)
            in->size[rule] += in->size[to];
        return;
    }
    if (n->kind == NODE_SEQ || n->kind == NODE_ALT || n->kind == NODE_REPEAT)
        for (int i = 0; i < n->n; i++)
            inline_node(in, b->kids[n->first + i], rule, depth + 1);
    if (n->kind == NODE_GRAPH)
        for (int i = 0; i < n->n; i++)
            inline_node(in, b->edges[n->first + i].label, rule, depth + 1);
}

static void inline_rule(struct inliner *in, int32_t rule, int depth)
{
    if (in->colour[rule])
        return;
    in->colour[rule] = 1;
    const struct rule_def *r = &in->c->b->rules[rule];
    in->size[rule] = in->c->b->nodes[r->body].size;
    in->refused[rule] |= r->keep;
    inline_node(in, r->body, rule, depth + 1);
    in->colour[rule] = 2;
}

/* A rule is copied if it is small and not recursive. A rule met while it is open is recursive; every cycle
 * has such a rule, so copying ends. */
static void choose_inlined(struct compiler *c)
{
    size_t n = (size_t)c->b->n_rules, nodes = (size_t)c->b->n_nodes;
    struct inliner in = {.c = c,
                         .colour = mem_zalloc(n, 1),
                         .size = mem_zalloc(n, sizeof *in.size),
                         .refused = mem_zalloc(n, sizeof *in.refused),
                         .seen = mem_alloc(nodes * sizeof *in.seen)};
    memset(in.seen, 0xFF, nodes * sizeof *in.seen);
    for (int32_t i = 0; i < c->b->n_rules; i++)
        if (c->b->rules[i].body >= 0)
            inline_rule(&in, i, 0);
    for (int32_t i = 0; i < c->b->n_rules; i++)
        c->inlined[i] = c->b->rules[i].body >= 0 && !in.refused[i] && in.size[i] <= INLINE_SIZE;
    free(in.colour);
    free(in.size);
    free(in.refused);
    free(in.seen);
}

void nfa_build(struct compiler *c, grammar_node root)
{
    choose_inlined(c);
    add_rule(c, root, -1);
    /* Rules are added behind as they are called. */
    for (int i = 0; i < c->n_rules && !c->failed; i++) {
        int32_t start = add_state(c), end = add_state(c);
        c->rules[i].start = start;
        c->rules[i].end = end;
        build(c, c->rules[i].body, start, end);
        if (c->rules[i].tail >= 0) {
            int32_t tail_start = add_state(c), tail_end = add_state(c);
            c->rules[i].tail_start = tail_start;
            c->rules[i].tail_end = tail_end;
            build(c, c->rules[i].tail, tail_start, tail_end);
        }
    }
}

/* --- rules that can match nothing ---------------------------------------------------------------- */

void closure_add(struct compiler *c, struct closure *k, int32_t state)
{
    if (k->marks[state] == k->mark)
        return;
    k->marks[state] = k->mark;
    int done = k->n;
    k->list[k->n++] = state;
    for (; done < k->n; done++)
        for (int32_t l = c->link_head[k->list[done]]; l >= 0; l = c->links[l].next) {
            const struct nfa_link *link = &c->links[l];
            c->work++;
            if ((link->rule < 0 || c->rules[link->rule].nullable) && k->marks[link->to] != k->mark) {
                k->marks[link->to] = k->mark;
                k->list[k->n++] = link->to;
            }
        }
}

void closure_begin(struct closure *k)
{
    k->mark++;
    k->n = 0;
}

void nfa_find_nullable(struct compiler *c, struct closure *k)
{
    for (bool changed = true; changed && !c->failed;) {
        changed = false;
        for (int i = 0; i < c->n_rules; i++) {
            struct out_rule *r = &c->rules[i];
            if (r->nullable)
                continue;
            closure_begin(k);
            closure_add(c, k, r->start);
            if (k->marks[r->end] != k->mark && !(r->counted && r->min == 0))
                continue;
            if (r->counted)
                r->min = 0; /* an empty turn counts as one, so none is needed */
            if (r->tail < 0)
                r->nullable = changed = true;
        }
        if (c->work > COMPILE_MAX_WORK)
            compile_fail_size(c, "steps to compile it", COMPILE_MAX_WORK);
    }
}
