/* Running the automaton: all ways through the grammar at once, each a state in an open rule.
 *
 * Open rules form a graph, not a stack: all callers of a rule at one place in the text share one frame, which
 * lists where to return to. So ambiguous grammars, and left recursion (a frame that returns into itself),
 * take polynomial time. Because no rule is ever entered and left without a byte between (grammar_compile.c),
 * a frame's list is complete before it is first used.
 *
 * A call at the very end of a rule hands on the rule's own returns, so right recursion does not pile up
 * frames. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

/* --- simulation ---------------------------------------------------------------------------------- */

void sim_add(struct sim *s, struct item it)
{
    int height = s->frames[it.frame].depth + s->g->states[it.state].height;
    s->work++;
    if (height > s->max_height)
        s->max_height = height;
    if (height > GRAMMAR_MAX_DEPTH && !s->unknown)
        return; /* too deep to be closed again: not a way */
    for (int i = s->begin; i < s->n_items; i++) {
        const struct item *x = &s->items[i];
        if (x->state == it.state && x->frame == it.frame && x->count == it.count)
            return;
    }
    s->work += (s->n_items - s->begin) / 4;
    if (s->n_items == s->cap_items) {
        s->lost = true;
        return;
    }
    s->items[s->n_items++] = it;
}

/* Adds `to` to the places that frame returns to. */
static void add_return(struct sim *s, int32_t frame, struct item to)
{
    for (int32_t r = s->frames[frame].returns; r >= 0; r = s->returns[r].next) {
        const struct item *x = &s->returns[r].to;
        s->work++;
        if (x->state == to.state && x->frame == to.frame && x->count == to.count)
            return;
    }
    if (s->n_returns == s->cap_returns) {
        s->lost = true;
        return;
    }
    s->returns[s->n_returns] = (struct frame_return){to, s->frames[frame].returns};
    s->frames[frame].returns = s->n_returns++;
}

/* Opens a rule from item `it`, to go on at state `to`. */
static void open_rule(struct sim *s, struct item it, uint32_t rule, uint32_t to)
{
    const struct grammar *g = s->g;
    /* What follows the call may be nothing but the end of the caller's rule: then it returns to the caller's
     * callers. Those of a frame opened at this place are not all known yet. */
    bool tail = g->states[to].flags & STATE_STOP && g->states[to].flags & STATE_FINAL &&
                !g->rules[g->states[to].rule].counted && it.frame != 0 && it.frame < s->here;
    int depth = s->frames[it.frame].depth + !tail;
    if (depth + g->rules[rule].height > GRAMMAR_MAX_DEPTH && !s->unknown)
        return;
    int32_t f = s->here;
    while (f < s->n_frames && s->frames[f].rule != rule)
        f++;
    s->work += f - s->here;
    if (f == s->n_frames) {
        if (f == s->cap_frames) {
            s->lost = true;
            return;
        }
        s->frames[s->n_frames++] = (struct frame){.rule = rule, .returns = -1, .depth = depth};
        sim_add(s, (struct item){g->rules[rule].start, f, 0});
        if (g->rules[rule].tail != NO_STATE && g->rules[rule].min == 0)
            sim_add(s, (struct item){g->rules[rule].tail, f, 0});
    } else if (s->frames[f].depth < depth) {
        s->frames[f].depth = depth;
    }
    if (!tail)
        add_return(s, f, (struct item){to, it.frame, it.count});
    else
        for (int32_t r = s->frames[it.frame].returns; r >= 0; r = s->returns[r].next)
            add_return(s, f, s->returns[r].to);
}

/* Item `it` is at the end of its rule, or of one turn of it. */
static void close_rule(struct sim *s, struct item it)
{
    const struct grammar_rule_info *r = &s->g->rules[s->g->states[it.state].rule];
    bool unknown = it.frame == 0 && s->unknown;
    int32_t count = it.count;
    if (r->counted && !(s->g->states[it.state].flags & STATE_TAIL)) {
        /* Without an end only the minimum matters: counting stops there, so that places repeat. */
        int32_t stop = unknown || r->max != GRAMMAR_NO_END ? GRAMMAR_NO_END : r->min;
        count += count < stop;
        if (unknown || count < r->max)
            sim_add(s, (struct item){r->start, it.frame, count});
        if (!unknown && count < r->min)
            return;
        if (r->tail != NO_STATE) {
            sim_add(s, (struct item){r->tail, it.frame, unknown ? count : 0});
            return;
        }
    }
    if (it.frame == 0) {
        s->ended = true;
        for (int i = 0; i < s->n_exits; i++)
            if (s->exits[i] == count)
                return;
        if (s->n_exits < s->cap_exits)
            s->exits[s->n_exits++] = count;
        else if (s->cap_exits)
            s->lost = true;
        return;
    }
    for (int32_t x = s->frames[it.frame].returns; x >= 0; x = s->returns[x].next)
        sim_add(s, s->returns[x].to);
}

void sim_close(struct sim *s)
{
    const struct grammar *g = s->g;
    for (int i = s->begin; i < s->n_items; i++) {
        struct item it = s->items[i];
        const struct grammar_state *state = &g->states[it.state];
        for (uint32_t c = state->first_call; c < state[1].first_call; c++)
            open_rule(s, it, g->calls[c].rule, g->calls[c].to);
        /* A frame opened at this place is left only when a byte was read. */
        if (state->flags & STATE_FINAL && it.frame < s->here)
            close_rule(s, it);
    }
}

void sim_step(struct sim *s, const struct item *items, int n, uint8_t c)
{
    const struct grammar *g = s->g;
    for (int i = 0; i < n; i++) {
        const struct grammar_state *state = &g->states[items[i].state];
        for (uint32_t x = state->first_edge; x < state[1].first_edge; x++) {
            s->work++;
            if (c >= g->edges[x].lo && c <= g->edges[x].hi) {
                sim_add(s, (struct item){g->edges[x].to, items[i].frame, items[i].count});
                if (state->flags & STATE_TABLE)
                    break;
            }
        }
    }
}

/* --- matcher ------------------------------------------------------------------------------------- */

enum {
    COLLECT_FRAMES = 512, /* collect closed rules when there are more frames or returns than this */
    COLLECT_RETURNS = 1024,
};

/* The inside pointers of a matcher that was made or copied. */
static void set_arrays(struct grammar_matcher *m)
{
    m->sim.g = m->g;
    m->sim.items = m->items[m->slot];
    m->sim.frames = m->frames;
    m->sim.returns = m->returns;
    m->sim.cap_items = GRAMMAR_MAX_ITEMS;
    m->sim.cap_frames = GRAMMAR_MAX_FRAMES;
    m->sim.cap_returns = GRAMMAR_MAX_RETURNS;
}

struct grammar_matcher *grammar_matcher_create(struct grammar *g)
{
    struct grammar_matcher *m = mem_alloc(sizeof *m);
    memset(&m->sim, 0, sizeof m->sim);
    m->g = grammar_ref(g);
    m->slot = 0;
    set_arrays(m);
    m->frames[0] = (struct frame){.rule = 0, .returns = -1};
    m->sim.n_frames = 1;
    sim_open(&m->sim);
    sim_add(&m->sim, (struct item){g->rules[0].start, 0, 0});
    sim_close(&m->sim);
    m->can_end = m->sim.ended;
    return m;
}

void grammar_matcher_free(struct grammar_matcher *m)
{
    if (!m)
        return;
    grammar_unref(m->g);
    free(m);
}

size_t grammar_matcher_bytes(void)
{
    return sizeof(struct grammar_matcher);
}

void grammar_matcher_copy(struct grammar_matcher *dst, const struct grammar_matcher *src)
{
    const struct sim *s = &src->sim;
    dst->sim = *s;
    dst->can_end = src->can_end;
    dst->slot = src->slot;
    set_arrays(dst);
    memcpy(dst->items[dst->slot], s->items, (size_t)s->n_items * sizeof *s->items);
    memcpy(dst->frames, src->frames, (size_t)s->n_frames * sizeof *src->frames);
    memcpy(dst->returns, src->returns, (size_t)s->n_returns * sizeof *src->returns);
}

struct grammar_matcher *grammar_matcher_fork(const struct grammar_matcher *m)
{
    struct grammar_matcher *copy = mem_alloc(sizeof *copy);
    copy->g = grammar_ref(m->g);
    grammar_matcher_copy(copy, m);
    return copy;
}

/* Drops the frames that no item can return to any more, and slides the others down. */
static void collect(struct grammar_matcher *m)
{
    enum { DEAD = -1, FOUND = -2, SEEN = -3 };
    struct sim *s = &m->sim;
    int32_t *frame_map = m->frame_map, *return_map = m->return_map;
    for (int i = 0; i < s->n_frames; i++)
        frame_map[i] = DEAD;
    for (int i = 0; i < s->n_returns; i++)
        return_map[i] = DEAD;
    frame_map[0] = SEEN;
    for (int i = 0; i < s->n_items; i++)
        if (s->items[i].frame)
            frame_map[s->items[i].frame] = FOUND;
    /* Frames return to older ones, or to some made at the same place: mostly one round from young to old. */
    for (bool again = true; again;) {
        again = false;
        for (int f = s->n_frames - 1; f > 0; f--) {
            if (frame_map[f] != FOUND)
                continue;
            frame_map[f] = SEEN;
            for (int32_t r = m->frames[f].returns; r >= 0; r = m->returns[r].next) {
                int32_t to = m->returns[r].to.frame;
                return_map[r] = FOUND;
                if (frame_map[to] == DEAD) {
                    frame_map[to] = FOUND;
                    again |= to > f;
                }
            }
        }
    }
    int n_frames = 0, n_returns = 0;
    for (int i = 0; i < s->n_frames; i++)
        if (frame_map[i] == SEEN) {
            frame_map[i] = n_frames;
            m->frames[n_frames++] = m->frames[i];
        }
    for (int i = 0; i < s->n_returns; i++)
        if (return_map[i] == FOUND) {
            return_map[i] = n_returns;
            m->returns[n_returns++] = m->returns[i];
        }
    for (int i = 0; i < n_frames; i++)
        if (m->frames[i].returns >= 0)
            m->frames[i].returns = return_map[m->frames[i].returns];
    for (int i = 0; i < n_returns; i++) {
        struct frame_return *r = &m->returns[i];
        r->to.frame = frame_map[r->to.frame];
        r->next = r->next >= 0 ? return_map[r->next] : -1;
    }
    for (int i = 0; i < s->n_items; i++)
        s->items[i].frame = frame_map[s->items[i].frame];
    s->n_frames = n_frames;
    s->n_returns = n_returns;
}

/* Where a matcher stands, to go back to: frames and returns only grow until they are collected. */
struct place {
    int slot, n_items, n_frames, n_returns;
    bool can_end;
};

static struct place place_of(const struct grammar_matcher *m)
{
    return (struct place){m->slot, m->sim.n_items, m->sim.n_frames, m->sim.n_returns, m->can_end};
}

static void go_back(struct grammar_matcher *m, const struct place *p)
{
    m->slot = p->slot;
    m->sim.items = m->items[p->slot];
    m->sim.n_items = p->n_items;
    m->sim.n_frames = p->n_frames;
    m->sim.n_returns = p->n_returns;
    m->can_end = p->can_end;
}

/* Goes on by one byte, into a slot that is neither the current one nor `keep`. false if there is no way. */
static bool step(struct grammar_matcher *m, int keep, uint8_t c)
{
    struct sim *s = &m->sim;
    const struct item *from = s->items;
    int n = s->n_items;
    m->slot = (m->slot + 1) % 3 != keep ? (m->slot + 1) % 3 : (m->slot + 2) % 3;
    s->items = m->items[m->slot];
    s->n_items = 0;
    sim_open(s);
    sim_step(s, from, n, c);
    sim_close(s);
    m->can_end = s->ended;
    return s->n_items > 0;
}

bool grammar_matcher_advance(struct grammar_matcher *m, const char *bytes, size_t n)
{
    struct place before = place_of(m);
    for (size_t i = 0; i < n; i++)
        if (!step(m, before.slot, (uint8_t)bytes[i])) {
            go_back(m, &before);
            return false;
        }
    if (m->sim.n_frames > COLLECT_FRAMES || m->sim.n_returns > COLLECT_RETURNS)
        collect(m);
    return true;
}

size_t grammar_matcher_accepts(struct grammar_matcher *m, const char *bytes, size_t n)
{
    struct place before = place_of(m);
    size_t i = 0;
    while (i < n && step(m, before.slot, (uint8_t)bytes[i]))
        i++;
    go_back(m, &before);
    return i;
}

bool grammar_matcher_can_end(const struct grammar_matcher *m)
{
    return m->can_end;
}

bool grammar_matcher_must_end(const struct grammar_matcher *m)
{
    if (!m->can_end)
        return false;
    for (int i = 0; i < m->sim.n_items; i++)
        if (!(m->g->states[m->sim.items[i].state].flags & STATE_STOP))
            return false;
    return true;
}

/* The only byte that may come next, -1 if there is none or more than one. */
static int only_byte(const struct grammar_matcher *m)
{
    const struct grammar *g = m->g;
    int only = -1;
    for (int i = 0; i < m->sim.n_items; i++) {
        const struct grammar_state *state = &g->states[m->sim.items[i].state];
        for (uint32_t x = state->first_edge; x < state[1].first_edge; x++) {
            if (g->edges[x].lo != g->edges[x].hi || (only >= 0 && g->edges[x].lo != only))
                return -1;
            only = g->edges[x].lo;
        }
    }
    return only;
}

size_t grammar_matcher_forced(struct grammar_matcher *m, char *out, size_t cap)
{
    struct place before = place_of(m);
    size_t n = 0;
    while (n < cap && !m->can_end) {
        int c = only_byte(m);
        if (c < 0 || !step(m, before.slot, (uint8_t)c))
            break;
        out[n++] = (char)c;
    }
    go_back(m, &before);
    return n;
}

int grammar_matcher_mask(struct grammar_matcher *m, uint32_t *bits, struct err *e)
{
    if (!m->g->cache)
        return err_set(e, ERR_INVALID, "the grammar is not bound to a vocabulary");
    if (mask_compute(m->g->cache, m, bits))
        return err_set(e, ERR_LIMIT, "the grammar is too ambiguous to be followed here");
    if (m->can_end)
        return 0;
    int words = grammar_mask_words(m->g);
    for (int i = 0; i < words; i++)
        if (bits[i])
            return 0;
    return err_set(e, ERR_INVALID, "no token of this model's vocabulary can continue the constrained text");
}
