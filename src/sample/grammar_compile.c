/* From the syntax tree to the automaton, in four steps, the first two of which are in grammar_nfa.c:
 *
 *   1. each rule becomes a nondeterministic automaton over bytes, with edges that consume nothing; small
 *      rules are copied into their callers, long repetitions become counted rules of their own;
 *   2. rules that can match nothing at all ("nullable") are found, so that calls of them may be skipped
 *      and no rule need ever be entered and left without a byte;
 *   3. each automaton is made deterministic, as far as that does not make it too large;
 *   4. states that cannot reach an end are cut off, so that a matcher never walks into a dead end.
 *
 * The work of every step is counted and limited. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_compile.h"

enum { MAX_RULE_WORK = 6000000 }; /* a rule whose subsets need more steps stays nondeterministic */

/* --- subset construction ------------------------------------------------------------------------- */

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
        if (c->work > 2 * (int64_t)COMPILE_MAX_WORK)
            compile_fail_size(c, "steps to compile it", COMPILE_MAX_WORK);
        if (c->n_out > GRAMMAR_MAX_STATES || c->n_out_edges > 8 * GRAMMAR_MAX_STATES ||
            c->n_out_calls > 8 * GRAMMAR_MAX_STATES)
            compile_fail_size(c, "states", GRAMMAR_MAX_STATES);
    }
    free(ids);
    free(queue);
}

/* --- dead ends ----------------------------------------------------------------------------------- */

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
    nfa_find_nullable(c, &k);
    for (int i = 0; i < c->n_rules && !c->failed; i++) {
        struct out_rule *r = &c->rules[i];
        struct part parts[2] = {{i, r->start, r->end, r->counted, 0},
                                {i, r->tail_start, r->tail_end, false, STATE_TAIL}};
        /* From here on start is a state of the automaton. */
        r->start = c->n_out;
        for (int which = 0; which < (r->tail < 0 ? 1 : 2); which++) {
            if (which)
                r->tail_start = c->n_out;
            if (c->work > COMPILE_MAX_WORK || !determinise(c, &parts[which], &k, &w))
                copy_nfa(c, &parts[which], &k, &w);
        }
        if (c->n_out > GRAMMAR_MAX_STATES || c->n_out_edges > 8 * GRAMMAR_MAX_STATES)
            compile_fail_size(c, "states", GRAMMAR_MAX_STATES);
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
    nfa_build(&c, root);
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
