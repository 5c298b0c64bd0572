/* From the syntax tree to the automaton, in four steps:
 *
 *   1. each rule becomes a nondeterministic automaton over bytes, with edges that consume nothing; small
 * rules are copied into their callers, long repetitions become counted rules of their own;
 *   2. rules that can match nothing at all ("nullable") are found, so that calls of them may be skipped and
 * no rule need ever be entered and left without a byte;
 *   3. each automaton is made deterministic, as far as that does not make it too large;
 *   4. states that cannot reach an end are cut off, so that a matcher never walks into a dead end.
 *
 * The work of every step is counted and limited. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum {
    INLINE_SIZE = 24,           /* rules up to this size are copied into their callers */
    UNROLL_SIZE = 40,           /* repetitions up to this size are written out */
    MAX_INLINE_DEPTH = 3000,    /* of the search for them; rules further down are called */
    MAX_SUBSET_WORK = 30000000, /* steps of all subset constructions */
    MAX_RULE_WORK = 6000000,    /* of one; a rule that needs more stays nondeterministic */
};

struct nfa_edge {
    int32_t to, next;
    uint8_t lo, hi;
};

struct nfa_link {
    int32_t to, next, rule; /* rule -1: nothing is consumed; else an automaton's rule is called */
};

/* A rule of the automaton under construction. */
struct out_rule {
    grammar_node body;
    int32_t min, max; /* counted */
    bool counted, nullable;
    int32_t source;     /* the builder's rule, -1 = the root or a repetition */
    int32_t start, end; /* states of the NFA */
    grammar_node tail;  /* what follows the last turn, -1 = nothing */
    int32_t tail_start, tail_end;
};

struct compiler {
    struct grammar_builder *b;
    struct err *e;
    bool failed;
    /* NFA of all rules */
    int32_t *edge_head, *link_head; /* [n_states] */
    struct nfa_edge *edges;
    struct nfa_link *links;
    int n_states, n_edges, n_links, cap_edge_head, cap_link_head, cap_edges, cap_links;
    struct out_rule *rules;
    int n_rules, cap_rules;
    int32_t *out_of;  /* [builder's rules] its out_rule, -1 = none yet */
    bool *inlined;    /* [builder's rules] */
    int32_t *counted; /* [builder's nodes] the counted rule of a repetition, -1 = none yet */
    /* the automaton */
    struct grammar_state *states;
    struct grammar_edge *out_edges;
    struct grammar_call *out_calls;
    int n_out, n_out_edges, n_out_calls, cap_out, cap_out_edges, cap_out_calls;
    int64_t work;
};

static int fail_size(struct compiler *c, const char *what, int limit)
{
    if (!c->failed)
        err_set(c->e, ERR_INVALID, "the grammar is too large: more than %d %s", limit, what);
    c->failed = true;
    return -1;
}

/* --- 1: tree to NFA ------------------------------------------------------------------------------ */

static int32_t add_state(struct compiler *c)
{
    if (c->n_states >= GRAMMAR_MAX_NFA) {
        fail_size(c, "states", GRAMMAR_MAX_NFA);
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
        fail_size(c, "edges", 4 * GRAMMAR_MAX_NFA);
        return;
    }
    GROW(c->edges, c->n_edges, c->cap_edges, 1);
    c->edges[c->n_edges] = (struct nfa_edge){to, c->edge_head[from], (uint8_t)lo, (uint8_t)hi};
    c->edge_head[from] = c->n_edges++;
}

static void add_link(struct compiler *c, int32_t from, int32_t to, int32_t rule)
{
    if (c->n_links >= 4 * GRAMMAR_MAX_NFA) {
        fail_size(c, "links", 4 * GRAMMAR_MAX_NFA);
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
        return fail_size(c, "rules", GRAMMAR_MAX_RULES), 0;
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

/* --- 2: rules that can match nothing ------------------------------------------------------------- */

/* Marks with `mark` all states that `state` reaches without consuming anything, and lists them. */
struct closure {
    uint32_t *marks; /* [n_states] */
    uint32_t mark;
    int32_t *list; /* [n_states] */
    int n;
};

static void closure_add(struct compiler *c, struct closure *k, int32_t state)
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

static void closure_begin(struct closure *k)
{
    k->mark++;
    k->n = 0;
}

static void find_nullable(struct compiler *c, struct closure *k)
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
        if (c->work > MAX_SUBSET_WORK)
            fail_size(c, "steps to compile it", MAX_SUBSET_WORK);
    }
}

/* --- 3: subset construction ---------------------------------------------------------------------- */

/* The subsets of NFA states met so far in one rule; each is a state of the automaton. */
struct subsets {
    int32_t *members; /* all subsets, one behind the other, each sorted */
    struct subset {
        int first, n;
        uint32_t hash;
        int32_t next; /* in its bucket */
        bool entry;   /* the start of a counted rule: may not end at once, though its members may */
    } * list;
    int32_t *buckets; /* [n_buckets] */
    int n, cap, n_members, cap_members, n_buckets;
};

static void subsets_free(struct subsets *s)
{
    free(s->members);
    free(s->list);
    free(s->buckets);
}

static void rehash(struct subsets *s)
{
    s->n_buckets = s->n_buckets ? 4 * s->n_buckets : 256;
    s->buckets = mem_realloc(s->buckets, (size_t)s->n_buckets, sizeof *s->buckets);
    memset(s->buckets, 0xFF, (size_t)s->n_buckets * sizeof *s->buckets);
    for (int i = 0; i < s->n; i++) {
        int at = (int)(s->list[i].hash & (uint32_t)(s->n_buckets - 1));
        s->list[i].next = s->buckets[at];
        s->buckets[at] = i;
    }
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The subset of what the closure listed, made if it is new; -1 for the empty one. Only states that have an
 * edge, a call or the rule's end matter. */
static int subset_of(struct compiler *c, struct subsets *s, struct closure *k, int32_t end, bool entry)
{
    int n = 0;
    for (int i = 0; i < k->n; i++) {
        int32_t state = k->list[i];
        bool matters = c->edge_head[state] >= 0 || state == end;
        for (int32_t l = c->link_head[state]; l >= 0 && !matters; l = c->links[l].next)
            matters = c->links[l].rule >= 0;
        if (matters)
            k->list[n++] = state;
    }
    if (n == 0)
        return -1;
    if (n > 1)
        qsort(k->list, (size_t)n, sizeof *k->list, by_value);
    c->work += n;
    uint32_t hash = 2166136261u + entry;
    for (int i = 0; i < n; i++)
        hash = (hash ^ (uint32_t)k->list[i]) * 16777619u;
    hash ^= hash >> 15;
    if (s->n >= s->n_buckets / 2)
        rehash(s);
    int32_t *bucket = &s->buckets[hash & (uint32_t)(s->n_buckets - 1)];
    for (int32_t i = *bucket; i >= 0; i = s->list[i].next)
        if (s->list[i].hash == hash && s->list[i].n == n && s->list[i].entry == entry &&
            memcmp(s->members + s->list[i].first, k->list, (size_t)n * sizeof *k->list) == 0)
            return i;
    GROW(s->members, s->n_members, s->cap_members, n);
    memcpy(s->members + s->n_members, k->list, (size_t)n * sizeof *k->list);
    GROW(s->list, s->n, s->cap, 1);
    s->list[s->n] =
        (struct subset){.first = s->n_members, .n = n, .hash = hash, .next = *bucket, .entry = entry};
    s->n_members += n;
    *bucket = s->n;
    return s->n++;
}

static void out_edge(struct compiler *c, uint32_t to, unsigned lo, unsigned hi)
{
    GROW(c->out_edges, c->n_out_edges, c->cap_out_edges, 1);
    c->out_edges[c->n_out_edges++] = (struct grammar_edge){to, (uint8_t)lo, (uint8_t)hi};
}

static void out_call(struct compiler *c, uint32_t rule, uint32_t to)
{
    GROW(c->out_calls, c->n_out_calls, c->cap_out_calls, 1);
    c->out_calls[c->n_out_calls++] = (struct grammar_call){rule, to};
}

/* The part of a rule whose states are being made. */
struct part {
    int rule;
    int32_t start, end; /* in the NFA */
    bool entry;         /* the start of a counted rule: see struct subset */
    uint8_t flags;      /* of all its states */
};

static void out_state(struct compiler *c, const struct part *p, bool final, bool table)
{
    GROW(c->states, c->n_out, c->cap_out, 1);
    c->states[c->n_out++] = (struct grammar_state){
        .first_edge = (uint32_t)c->n_out_edges,
        .first_call = (uint32_t)c->n_out_calls,
        .rule = (uint32_t)p->rule,
        .flags = (uint8_t)(p->flags | (final ? STATE_FINAL : 0) | (table ? STATE_TABLE : 0))};
}

struct call_to {
    int32_t rule, to;
};

static int by_rule(const void *a, const void *b)
{
    const struct call_to *x = a, *y = b;
    return x->rule != y->rule ? (x->rule < y->rule ? -1 : 1) : x->to < y->to ? -1 : x->to > y->to;
}

/* The scratch of one subset's ways on. */
struct ways {
    struct nfa_edge *edges; /* next is unused */
    struct call_to *calls;
    int n_edges, n_calls, cap_edges, cap_calls;
};

static void collect(struct compiler *c, struct ways *w, const int32_t *members, int n)
{
    w->n_edges = w->n_calls = 0;
    for (int i = 0; i < n; i++) {
        for (int32_t x = c->edge_head[members[i]]; x >= 0; x = c->edges[x].next) {
            GROW(w->edges, w->n_edges, w->cap_edges, 1);
            w->edges[w->n_edges++] = c->edges[x];
        }
        for (int32_t l = c->link_head[members[i]]; l >= 0; l = c->links[l].next) {
            if (c->links[l].rule < 0)
                continue;
            GROW(w->calls, w->n_calls, w->cap_calls, 1);
            w->calls[w->n_calls++] = (struct call_to){c->links[l].rule, c->links[l].to};
        }
    }
    if (w->n_calls > 1)
        qsort(w->calls, (size_t)w->n_calls, sizeof *w->calls, by_rule);
}

/* Makes the states of a part deterministic over bytes, and gives each called rule one way on. false, with
 * nothing added, when that takes too many states or steps. */
static bool determinise(struct compiler *c, const struct part *r, struct closure *k, struct ways *w)
{
    struct subsets s = {0};
    int base = c->n_out, edges = c->n_out_edges, calls = c->n_out_calls;
    int64_t begun = c->work;
    bool fits = true;
    closure_begin(k);
    closure_add(c, k, r->start);
    if (subset_of(c, &s, k, r->end, r->entry) < 0)
        out_state(c, r, false, true); /* nothing matches: a start all the same */
    for (int i = 0; i < s.n && fits; i++) {
        struct subset u = s.list[i];
        collect(c, w, s.members + u.first, u.n);
        bool final = false;
        for (int m = 0; m < u.n; m++)
            final |= s.members[u.first + m] == r->end;
        out_state(c, r, final && !u.entry, true);
        /* Between two cuts all bytes go to the same states. */
        bool cut[257] = {false};
        for (int x = 0; x < w->n_edges; x++)
            cut[w->edges[x].lo] = cut[w->edges[x].hi + 1] = true;
        int first_edge = c->n_out_edges;
        for (unsigned lo = 0, hi; lo < 256 && w->n_edges; lo = hi + 1) {
            for (hi = lo; hi < 255 && !cut[hi + 1]; hi++)
                ;
            closure_begin(k);
            for (int x = 0; x < w->n_edges; x++)
                if (w->edges[x].lo <= lo && w->edges[x].hi >= hi)
                    closure_add(c, k, w->edges[x].to);
            c->work += w->n_edges;
            int to = subset_of(c, &s, k, r->end, false);
            if (to < 0)
                continue;
            struct grammar_edge *last =
                c->n_out_edges > first_edge ? &c->out_edges[c->n_out_edges - 1] : NULL;
            if (last && last->to == (uint32_t)(base + to) && last->hi + 1u == lo)
                last->hi = (uint8_t)hi;
            else
                out_edge(c, (uint32_t)(base + to), lo, hi);
        }
        for (int x = 0; x < w->n_calls;) {
            int32_t callee = w->calls[x].rule;
            closure_begin(k);
            for (; x < w->n_calls && w->calls[x].rule == callee; x++)
                closure_add(c, k, w->calls[x].to);
            int to = subset_of(c, &s, k, r->end, false);
            if (to >= 0)
                out_call(c, (uint32_t)callee, (uint32_t)(base + to));
        }
        fits = c->work - begun < MAX_RULE_WORK && s.n < GRAMMAR_MAX_STATES / 2;
    }
    if (!fits) {
        c->n_out = base;
        c->n_out_edges = edges;
        c->n_out_calls = calls;
    }
    subsets_free(&s);
    return fits;
}

/* The states of a rule as they are, only without the edges that consume nothing. */
static void copy_nfa(struct compiler *c, const struct part *r, struct closure *k, struct ways *w)
{
    int32_t *ids = mem_alloc((size_t)c->n_states * sizeof *ids),
            *queue = mem_alloc((size_t)c->n_states * sizeof *queue);
    int n = 0;
    int base = c->n_out;
    memset(ids, 0xFF, (size_t)c->n_states * sizeof *ids);
    bool entry = r->entry; /* the start again, as a state of its own that is not final */
    queue[n++] = r->start;
    if (!entry)
        ids[r->start] = 0;
    for (int i = 0; i < n && !c->failed; i++) {
        closure_begin(k);
        closure_add(c, k, queue[i]);
        bool final = k->marks[r->end] == k->mark && !(i == 0 && entry);
        collect(c, w, k->list, k->n);
        c->work += w->n_edges + w->n_calls;
        out_state(c, r, final, false);
        for (int x = 0; x < w->n_edges; x++) {
            if (ids[w->edges[x].to] < 0 && n < c->n_states) {
                ids[w->edges[x].to] = n;
                queue[n++] = w->edges[x].to;
            }
            out_edge(c, (uint32_t)(base + ids[w->edges[x].to]), w->edges[x].lo, w->edges[x].hi);
        }
        for (int x = 0; x < w->n_calls; x++) {
            if (ids[w->calls[x].to] < 0 && n < c->n_states) {
                ids[w->calls[x].to] = n;
                queue[n++] = w->calls[x].to;
            }
            out_call(c, (uint32_t)w->calls[x].rule, (uint32_t)(base + ids[w->calls[x].to]));
        }
        if (c->work > 2 * (int64_t)MAX_SUBSET_WORK)
            fail_size(c, "steps to compile it", MAX_SUBSET_WORK);
        if (c->n_out > GRAMMAR_MAX_STATES || c->n_out_edges > 8 * GRAMMAR_MAX_STATES ||
            c->n_out_calls > 8 * GRAMMAR_MAX_STATES)
            fail_size(c, "states", GRAMMAR_MAX_STATES);
    }
    free(ids);
    free(queue);
}

/* --- 4: dead ends -------------------------------------------------------------------------------- */

/* The height of a state is the least number of rules that must be open at a time, below its own, on a way to
 * its rule's end: 0 where bytes alone lead there. A state without a height reaches no end. Heights are found
 * in rising order, each state once; so a call s -R-> t, whose height is the larger of that of t and one more
 * than R's, is settled when the second of the two is. */
struct heights {
    struct compiler *c;
    int32_t *height;      /* [n_out] -1 = none yet */
    int32_t *rule_height; /* [n_rules] */
    /* who depends on whom, as lists: edges by target, calls by target and by rule */
    int32_t *edge_from, *edge_next, *edge_at; /* [n_out_edges], and heads [n_out] */
    int32_t *call_from, *call_next, *call_at, *rule_next,
        *rule_at;           /* [n_out_calls]; heads [n_out], [n_rules] */
    int32_t *queue, *later; /* [n_out] states of this height whose dependents are to be seen; of the next */
    int n_queue, n_later, cap_queue, cap_later;
};

static void settle(struct heights *h, int32_t state, int height, int now)
{
    if (h->height[state] >= 0)
        return;
    if (height > now) {
        GROW(h->later, h->n_later, h->cap_later, 1);
        h->later[h->n_later++] = state;
        return;
    }
    h->height[state] = now;
    GROW(h->queue, h->n_queue, h->cap_queue, 1);
    h->queue[h->n_queue++] = state;
}

static void find_heights(struct heights *h)
{
    struct compiler *c = h->c;
    for (int i = 0; i < c->n_out; i++)
        if (c->states[i].flags & STATE_FINAL)
            settle(h, i, 0, 0);
    for (int now = 0; h->n_queue || h->n_later; now++) {
        if (!h->n_queue) {
            int n = h->n_later;
            h->n_later = 0;
            for (int i = 0; i < n; i++)
                settle(h, h->later[i], now, now);
        }
        for (int i = 0; i < h->n_queue; i++) {
            int32_t state = h->queue[i], rule = (int32_t)c->states[state].rule;
            for (int32_t x = h->edge_at[state]; x >= 0; x = h->edge_next[x])
                settle(h, h->edge_from[x], now, now);
            for (int32_t x = h->call_at[state]; x >= 0; x = h->call_next[x]) {
                int32_t below = h->rule_height[c->out_calls[x].rule];
                if (below >= 0)
                    settle(h, h->call_from[x], below + 1 > now ? below + 1 : now, now);
            }
            if (state != c->rules[rule].start) /* here: the automaton's start state, see grammar_compile */
                continue;
            h->rule_height[rule] = now;
            for (int32_t x = h->rule_at[rule]; x >= 0; x = h->rule_next[x])
                if (h->height[c->out_calls[x].to] >= 0)
                    settle(h, h->call_from[x], now + 1, now);
        }
        h->n_queue = 0;
    }
}

static int32_t *heads(int n)
{
    int32_t *p = mem_alloc((size_t)n * sizeof *p + 1);
    memset(p, 0xFF, (size_t)n * sizeof *p);
    return p;
}

/* Finds the heights of all states and removes edges and calls to where no end is reached. */
static void cut_dead_ends(struct compiler *c)
{
    struct heights h = {.c = c};
    h.height = heads(c->n_out);
    h.rule_height = heads(c->n_rules);
    h.edge_from = heads(c->n_out_edges);
    h.edge_next = heads(c->n_out_edges);
    h.edge_at = heads(c->n_out);
    h.call_from = heads(c->n_out_calls);
    h.call_next = heads(c->n_out_calls);
    h.call_at = heads(c->n_out);
    h.rule_next = heads(c->n_out_calls);
    h.rule_at = heads(c->n_rules);
    for (int i = 0; i < c->n_out; i++) {
        for (uint32_t x = c->states[i].first_edge; x < c->states[i + 1].first_edge; x++) {
            h.edge_from[x] = i;
            h.edge_next[x] = h.edge_at[c->out_edges[x].to];
            h.edge_at[c->out_edges[x].to] = (int32_t)x;
        }
        for (uint32_t x = c->states[i].first_call; x < c->states[i + 1].first_call; x++) {
            struct grammar_call call = c->out_calls[x];
            h.call_from[x] = i;
            h.call_next[x] = h.call_at[call.to];
            h.call_at[call.to] = (int32_t)x;
            h.rule_next[x] = h.rule_at[call.rule];
            h.rule_at[call.rule] = (int32_t)x;
        }
    }
    find_heights(&h);
    uint32_t edges = 0, calls = 0;
    for (int i = 0; i < c->n_out; i++) {
        struct grammar_state *s = &c->states[i];
        uint32_t x = s->first_edge, y = s->first_call;
        s->first_edge = edges;
        s->first_call = calls;
        for (; x < s[1].first_edge; x++)
            if (h.height[c->out_edges[x].to] >= 0)
                c->out_edges[edges++] = c->out_edges[x];
        for (; y < s[1].first_call; y++) {
            struct grammar_call call = c->out_calls[y];
            if (h.height[call.to] >= 0 && h.rule_height[call.rule] >= 0)
                c->out_calls[calls++] = call;
        }
        /* One that reaches no end is never entered: any height will do. */
        s->height = (uint16_t)(h.height[i] < 0 || h.height[i] > UINT16_MAX ? UINT16_MAX : h.height[i]);
        if (edges == s->first_edge && calls == s->first_call)
            s->flags |= STATE_STOP;
        if (calls == s->first_call && (s->rule == 0 || !(s->flags & STATE_FINAL)))
            s->flags |= STATE_SIMPLE;
    }
    c->states[c->n_out].first_edge = edges;
    c->states[c->n_out].first_call = calls;
    c->n_out_edges = (int)edges;
    c->n_out_calls = (int)calls;
    int root = h.rule_height[0];
    if (root < 0 || root > GRAMMAR_MAX_DEPTH - 2) {
        if (root < 0)
            err_set(c->e, ERR_INVALID,
                    "no text at all can match: every way on runs into something impossible or needs itself "
                    "again");
        else
            err_set(c->e, ERR_INVALID, "the shortest text that matches is nested deeper than %d",
                    GRAMMAR_MAX_DEPTH);
        c->failed = true;
    }
    free(h.height);
    free(h.rule_height);
    free(h.edge_from);
    free(h.edge_next);
    free(h.edge_at);
    free(h.call_from);
    free(h.call_next);
    free(h.call_at);
    free(h.rule_next);
    free(h.rule_at);
    free(h.queue);
    free(h.later);
}

/* --- all together -------------------------------------------------------------------------------- */

static int check_rules(struct compiler *c)
{
    for (int i = 0; i < c->b->n_rules; i++)
        if (c->b->rules[i].body < 0) {
            c->failed = true;
            return err_set(c->e, ERR_INVALID, "the rule \"%.100s\" is used but not defined",
                           c->b->rules[i].name ? c->b->rules[i].name : "?");
        }
    return 0;
}

static void make_automaton(struct compiler *c)
{
    struct closure k = {.marks = mem_zalloc((size_t)c->n_states, sizeof *k.marks),
                        .list = mem_alloc((size_t)c->n_states * sizeof *k.list)};
    struct ways w = {0};
    find_nullable(c, &k);
    for (int i = 0; i < c->n_rules && !c->failed; i++) {
        struct out_rule *r = &c->rules[i];
        struct part parts[2] = {{i, r->start, r->end, r->counted, 0},
                                {i, r->tail_start, r->tail_end, false, STATE_TAIL}};
        /* From here on start is a state of the automaton. */
        r->start = c->n_out;
        for (int which = 0; which < (r->tail < 0 ? 1 : 2); which++) {
            if (which)
                r->tail_start = c->n_out;
            if (c->work > MAX_SUBSET_WORK || !determinise(c, &parts[which], &k, &w))
                copy_nfa(c, &parts[which], &k, &w);
        }
        if (c->n_out > GRAMMAR_MAX_STATES || c->n_out_edges > 8 * GRAMMAR_MAX_STATES)
            fail_size(c, "states", GRAMMAR_MAX_STATES);
    }
    free(k.marks);
    free(k.list);
    free(w.edges);
    free(w.calls);
    if (c->failed)
        return;
    out_state(c, &(struct part){0}, false, false); /* the end of the lists */
    c->n_out--;
    cut_dead_ends(c);
}

struct grammar *grammar_compile(struct grammar_builder *b, grammar_node root, struct err *e)
{
    struct compiler c = {.b = b, .e = e};
    struct grammar *g = NULL;
    if (root < 0 || root >= b->n_nodes) {
        err_set(e, ERR_INVALID, "the grammar has no root");
        return NULL;
    }
    c.out_of = heads(b->n_rules);
    c.inlined = mem_zalloc((size_t)b->n_rules, sizeof *c.inlined);
    c.counted = heads(b->n_nodes);
    if (check_rules(&c))
        goto done;
    choose_inlined(&c);
    add_rule(&c, root, -1);
    for (int i = 0; i < c.n_rules && !c.failed; i++) {
        int32_t start = add_state(&c), end = add_state(&c);
        c.rules[i].start = start;
        c.rules[i].end = end;
        build(&c, c.rules[i].body, start, end);
        if (c.rules[i].tail >= 0) {
            int32_t tail_start = add_state(&c), tail_end = add_state(&c);
            c.rules[i].tail_start = tail_start;
            c.rules[i].tail_end = tail_end;
            build(&c, c.rules[i].tail, tail_start, tail_end);
        }
    }
    if (!c.failed)
        make_automaton(&c);
    if (c.failed)
        goto done;
    g = mem_zalloc(1, sizeof *g);
    g->states = c.states;
    g->edges = c.out_edges;
    g->calls = c.out_calls;
    g->n_states = c.n_out;
    g->n_edges = c.n_out_edges;
    g->n_calls = c.n_out_calls;
    g->n_rules = c.n_rules;
    g->rules = mem_zalloc((size_t)c.n_rules, sizeof *g->rules);
    for (int i = 0; i < c.n_rules; i++)
        g->rules[i] = (struct grammar_rule_info){
            .start = (uint32_t)c.rules[i].start,
            .tail = c.rules[i].tail < 0 ? NO_STATE : (uint32_t)c.rules[i].tail_start,
            .min = c.rules[i].min,
            .max = c.rules[i].max,
            .height = g->states[c.rules[i].start].height,
            .counted = c.rules[i].counted,
            .nullable = c.rules[i].nullable};
    atomic_init(&g->refs, 1);
    c.states = NULL;
    c.out_edges = NULL;
    c.out_calls = NULL;
done:
    free(c.edge_head);
    free(c.link_head);
    free(c.edges);
    free(c.links);
    free(c.rules);
    free(c.out_of);
    free(c.inlined);
    free(c.counted);
    free(c.states);
    free(c.out_edges);
    free(c.out_calls);
    return g;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    mask_cache_free(g->cache);
    free(g->states);
    free(g->edges);
    free(g->calls);
    free(g->rules);
    free(g);
}
