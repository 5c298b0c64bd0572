/* The walk goes through the trie in preorder with a level of the simulation for each byte above; a byte that
 * leads nowhere skips its whole subtree. Two short cuts carry nearly all nodes: a single state that only
 * reads bytes steps by a table, and the end of one turn of a counted rule whose body is a character leads
 * straight to the next. */
#include "sample/grammar_walk.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    WALK_ITEMS = 32768,
    WALK_FRAMES = 8192,
    WALK_RETURNS = 16384,
    WALK_EXITS = 256, /* different counts at one node */
    MAX_WALK_WORK = 30000000,
    MAX_ROWS = 2048, /* tables of states with many edges */
    ROW_EDGES = 2,   /* what is not many */
};

void walk_init(struct walk *w, const struct grammar *g, const struct grammar_vocab *v)
{
    *w = (struct walk){.g = g, .v = v, .words = (v->n_ids + 31) / 32};
    struct sim *s = &w->sim;
    s->g = g;
    s->items = mem_alloc(WALK_ITEMS * sizeof *s->items);
    s->frames = mem_alloc(WALK_FRAMES * sizeof *s->frames);
    s->returns = mem_alloc(WALK_RETURNS * sizeof *s->returns);
    s->exits = mem_alloc(WALK_EXITS * sizeof *s->exits);
    s->cap_frames = WALK_FRAMES;
    s->cap_returns = WALK_RETURNS;
    s->cap_exits = WALK_EXITS;
    w->base = mem_zalloc(WALK_FRAMES, sizeof *w->base);
    w->bits = mem_zalloc((size_t)w->words, sizeof *w->bits);
    w->need = mem_alloc((size_t)v->n_ids * sizeof *w->need);
    w->stays = mem_zalloc((size_t)g->n_states, sizeof *w->stays);
    w->row_of = mem_alloc((size_t)g->n_states * sizeof *w->row_of);
    memset(w->row_of, 0xFF, (size_t)g->n_states * sizeof *w->row_of);
    w->cap_rows = g->n_states < MAX_ROWS ? g->n_states : MAX_ROWS;
    w->rows = mem_alloc((size_t)w->cap_rows * sizeof *w->rows);
    w->exits.cap = w->tails.cap = 2 * v->n_nodes + 1024;
    w->exits.e = mem_alloc((size_t)w->exits.cap * sizeof *w->exits.e);
    w->tails.e = mem_alloc((size_t)w->tails.cap * sizeof *w->tails.e);
}

void walk_free(struct walk *w)
{
    free(w->bits);
    free(w->need);
    free(w->exits.e);
    free(w->tails.e);
    free(w->sim.items);
    free(w->sim.frames);
    free(w->sim.returns);
    free(w->sim.exits);
    free(w->base);
    free(w->stays);
    free(w->row_of);
    free(w->rows);
}

static uint32_t scan_edges(const struct grammar *g, uint32_t state, uint8_t byte)
{
    for (uint32_t x = g->states[state].first_edge; x < g->states[state + 1].first_edge; x++)
        if (byte >= g->edges[x].lo && byte <= g->edges[x].hi)
            return g->edges[x].to;
    return NO_STATE;
}

/* Where a state leads by a byte, if each byte has at most one way. */
static uint32_t next_state(struct walk *w, uint32_t state, uint8_t byte)
{
    const struct grammar *g = w->g;
    int32_t row = w->row_of[state];
    if (row >= 0)
        return w->rows[row][byte];
    uint32_t first = g->states[state].first_edge, end = g->states[state + 1].first_edge;
    if (end - first <= ROW_EDGES || w->n_rows == w->cap_rows)
        return scan_edges(g, state, byte);
    row = w->row_of[state] = w->n_rows++;
    memset(w->rows[row], 0xFF, sizeof w->rows[row]);
    for (uint32_t x = first; x < end; x++)
        for (unsigned b = g->edges[x].lo; b <= g->edges[x].hi; b++)
            w->rows[row][b] = g->edges[x].to;
    return w->rows[row][byte];
}

/* --- results ------------------------------------------------------------------------------------- */

/* What does not fit is left out: fewer tokens are allowed then. */
static void add_node(struct node_list *l, uint32_t node, int32_t turns)
{
    if (l->n < l->cap)
        l->e[l->n++] = (struct node_turns){node, turns};
}

static void allow(struct walk *w, uint32_t node, int need)
{
    for (int32_t id = vocab_first(w->v, node); id >= 0; id = vocab_next(w->v, node, id)) {
        uint32_t *word = &w->bits[id >> 5], bit = UINT32_C(1) << (id & 31);
        if (w->plain && w->v->plain[id >> 5] & bit)
            continue;
        if (!(*word & bit)) {
            *word |= bit;
            w->n_tokens++;
            if (w->counted)
                w->need[id] = need;
        } else if (w->counted && need < w->need[id]) {
            w->need[id] = need;
        }
    }
}

/* All tokens that end at node or below it are allowed (in a rule that is not counted). */
static void allow_below(struct walk *w, uint32_t node)
{
    const struct grammar_vocab *v = w->v;
    for (uint32_t i = v->first[node]; i < v->first[v->skip[node]]; i++) {
        uint32_t *word = &w->bits[v->order[i] >> 5], bit = UINT32_C(1) << (v->order[i] & 31);
        w->n_tokens += !(*word & bit);
        *word |= bit;
    }
}

static void add_exits(struct walk *w, uint32_t node)
{
    if (w->v->skip[node] > node + 1) /* else nothing follows in any token */
        for (int i = 0; i < w->sim.n_exits; i++)
            add_node(&w->exits, node, w->sim.exits[i]);
}

/* --- states that stay ------------------------------------------------------------------------------ */

/* Where all bytes lo … hi lead from a state, NO_STATE if they differ. */
static uint32_t all_to(const struct grammar *g, uint32_t state, unsigned lo, unsigned hi)
{
    for (uint32_t x = g->states[state].first_edge; x < g->states[state + 1].first_edge; x++)
        if (g->edges[x].lo <= lo && g->edges[x].hi >= hi)
            return g->edges[x].to;
    return NO_STATE;
}

/* Do all characters beyond ASCII lead from `state` to `to`? */
static bool others_to(const struct grammar *g, uint32_t state, uint32_t to)
{
    /* first byte, second byte, length: the well-formed sequences of UTF-8 */
    static const uint8_t forms[][5] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                                       {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                                       {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                                       {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (int i = 0; i < 8; i++)
        for (unsigned lead = forms[i][0]; lead <= forms[i][1]; lead++) {
            uint32_t at = all_to(g, state, lead, lead);
            for (int k = 2; k <= forms[i][4] && at != NO_STATE; k++) {
                if (!(g->states[at].flags & STATE_SIMPLE))
                    return false;
                at = k == 2 ? all_to(g, at, forms[i][2], forms[i][3]) : all_to(g, at, 0x80, 0xBF);
            }
            if (at != to)
                return false;
        }
    return true;
}

#define STAYS_KNOWN (UINT64_C(1) << 63)

/* The classes of bytes of which every text leads from the state back to it. */
static uint64_t stays(struct walk *w, uint32_t state)
{
    if (!w->stays[state]) {
        uint64_t out = (UINT64_C(1) << CLASS_NOT_ASCII) - 1;
        for (unsigned c = 0; c < 0x80; c++)
            if (all_to(w->g, state, c, c) != state)
                out &= ~(UINT64_C(1) << vocab_class(c));
        if (others_to(w->g, state, state))
            out |= UINT64_C(1) << CLASS_NOT_ASCII;
        w->stays[state] = out | STAYS_KNOWN;
    }
    return w->stays[state];
}

/* Is every plain character one turn of this counted rule, which ends in a tail? Then plain tokens need as
 * many turns as they have characters, and the rule ends in none of them. */
static bool counts_plain(const struct walk *w, uint32_t state)
{
    const struct grammar *g = w->g;
    const struct grammar_rule_info *r = &g->rules[g->states[state].rule];
    const uint8_t end = STATE_FINAL | STATE_STOP;
    uint32_t to = all_to(g, state, 'a', 'a');
    if (state != r->start || r->tail == NO_STATE || !(g->states[state].flags & STATE_TABLE) ||
        to == NO_STATE || (g->states[to].flags & end) != end)
        return false;
    for (unsigned c = 0; c < 0x80; c++)
        if (vocab_plain_char(c) && all_to(g, state, c, c) != to)
            return false;
    return others_to(g, state, to);
}

/* --- levels -------------------------------------------------------------------------------------- */

/* The turns done when the frames of this place were opened: the least over all ways into them. */
static void find_bases(struct walk *w)
{
    struct sim *s = &w->sim;
    for (int f = s->here; f < s->n_frames; f++)
        w->base[f] = NO_NEED - 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (int f = s->here; f < s->n_frames; f++)
            for (int32_t r = s->frames[f].returns; r >= 0; r = s->returns[r].next) {
                const struct item *to = &s->returns[r].to;
                int base = to->frame ? w->base[to->frame] : to->count;
                changed |= base < w->base[f];
                w->base[f] = base < w->base[f] ? base : w->base[f];
            }
    }
}

static bool in_tail(const struct walk *w, const struct item *it)
{
    return it->frame == 0 && w->g->states[it->state].flags & STATE_TAIL;
}

/* How many turns of frame 0 an item needs: those done, and the one that it is in. */
static int turns_needed(const struct walk *w, const struct item *it)
{
    if (in_tail(w, it))
        return NO_NEED;
    if (it->frame)
        return w->base[it->frame] + 1;
    return it->count + (it->state != w->g->rules[w->g->states[it->state].rule].start);
}

/* Reads bytes alone, each by at most one way. */
static bool only_bytes(const struct walk *w, uint32_t state)
{
    const uint8_t both = STATE_SIMPLE | STATE_TABLE;
    return (w->g->states[state].flags & both) == both;
}

/* Closes the place under construction and makes it level l: what a token that ends at node (0 = none can)
 * needs, and the items that can go on. */
static void make_level(struct walk *w, struct level *l, uint32_t node)
{
    struct sim *s = &w->sim;
    sim_close(s);
    if (w->counted)
        find_bases(w);
    *l = (struct level){.first = s->begin,
                        .n_frames = s->n_frames,
                        .n_returns = s->n_returns,
                        .need = w->counted ? NO_NEED : 0};
    int n = s->begin;
    for (int i = s->begin; i < s->n_items; i++) {
        struct item it = s->items[i];
        if (w->counted) {
            int need = turns_needed(w, &it);
            l->need = need < l->need ? need : l->need;
            if (node && vocab_first(w->v, node) >= 0 && in_tail(w, &it))
                add_node(&w->tails, node, it.count);
        }
        if (!(w->g->states[it.state].flags & STATE_STOP))
            s->items[n++] = it;
    }
    l->n = n - s->begin;
    const struct item *first = &s->items[s->begin];
    if (l->n == 1 && only_bytes(w, first->state)) {
        l->simple = true;
        l->tail = NO_STATE;
        l->only = *first;
    }
    if (l->n == 2 && only_bytes(w, first[0].state) && only_bytes(w, first[1].state) && w->counted &&
        in_tail(w, &first[1]) && first[0].frame == 0 && first[0].count == first[1].count) {
        l->simple = true;
        l->tail = first[1].state;
        l->only = first[0];
    }
}

/* Begins a place below a level. */
static void open_below(struct walk *w, const struct level *from)
{
    struct sim *s = &w->sim;
    s->n_items = from->first + from->n;
    s->n_frames = from->n_frames;
    s->n_returns = from->n_returns;
    sim_open(s);
    s->cap_items = s->begin + GRAMMAR_MAX_ITEMS < WALK_ITEMS ? s->begin + GRAMMAR_MAX_ITEMS : WALK_ITEMS;
}

/* From a simple level by one byte. false if there is no way. */
static bool descend_simple(struct walk *w, const struct level *from, struct level *to, uint32_t node)
{
    const struct grammar *g = w->g;
    struct sim *s = &w->sim;
    uint8_t byte = w->v->byte[node];
    uint32_t state = next_state(w, from->only.state, byte);
    uint32_t tail = from->tail == NO_STATE ? NO_STATE : scan_edges(g, from->tail, byte);
    if (tail == NO_STATE && state == NO_STATE)
        return false;
    if (tail == NO_STATE && from->only.frame == 0) {
        const struct grammar_rule_info *r = &g->rules[g->states[state].rule];
        uint8_t flags = g->states[state].flags;
        bool turn = w->counted && !(flags & STATE_TAIL), end = flags & STATE_FINAL && flags & STATE_STOP;
        to->first = from->first + from->n;
        to->n = 0;
        to->n_frames = from->n_frames;
        to->n_returns = from->n_returns;
        to->tail = NO_STATE;
        to->simple = true;
        s->n_exits = 0;
        if (only_bytes(w, state)) {
            to->only = (struct item){state, 0, from->only.count};
            to->need = !w->counted ? 0 : turn ? from->only.count + 1 : NO_NEED;
            if (w->counted && !turn && vocab_first(w->v, node) >= 0)
                add_node(&w->tails, node, from->only.count);
            return true;
        }
        if (s->unknown && end && turn && only_bytes(w, r->start) &&
            (r->tail == NO_STATE || only_bytes(w, r->tail))) { /* one turn is over */
            int count = from->only.count + 1;
            to->only = (struct item){r->start, 0, count};
            to->tail = r->tail;
            to->need = count;
            if (r->tail == NO_STATE)
                s->exits[s->n_exits++] = count;
            return true;
        }
    }
    open_below(w, from);
    if (state != NO_STATE)
        sim_add(s, (struct item){state, from->only.frame, from->only.count});
    if (tail != NO_STATE)
        sim_add(s, (struct item){tail, from->only.frame, from->only.count});
    make_level(w, to, node);
    return true;
}

static bool descend(struct walk *w, const struct level *from, struct level *to, uint32_t node)
{
    if (from->simple)
        return descend_simple(w, from, to, node);
    struct sim *s = &w->sim;
    open_below(w, from);
    sim_step(s, s->items + from->first, from->n, w->v->byte[node]);
    if (s->n_items == s->begin)
        return false;
    make_level(w, to, node);
    return true;
}

/* Walks below `root` from level 0. 0, or -1 if it takes too much work. */
static int walk_below(struct walk *w, uint32_t root)
{
    const struct grammar_vocab *v = w->v;
    unsigned top = v->depth[root];
    for (uint32_t i = root + 1; i < v->skip[root];) {
        struct level *to = &w->levels[v->depth[i] - top];
        if ((w->plain && !v->mixed[i]) || !descend(w, to - 1, to, i)) {
            i = v->skip[i];
            continue;
        }
        w->nodes++;
        if (to->simple && !w->counted && (v->below[i] & ~stays(w, to->only.state)) == 0) {
            allow_below(w, i);
            i = v->skip[i];
            continue;
        }
        if (v->token[i] != VOCAB_NONE && to->need != NO_NEED)
            allow(w, i, to->need);
        if (w->sim.n_exits && !w->endless)
            add_exits(w, i);
        if (w->sim.work + w->nodes > MAX_WALK_WORK)
            return -1;
        i++;
    }
    return 0;
}

static void begin_walk(struct walk *w, bool unknown)
{
    struct sim *s = &w->sim;
    memset(w->bits, 0, (size_t)w->words * sizeof *w->bits);
    w->n_tokens = w->exits.n = w->tails.n = 0;
    w->nodes = 0;
    w->counted = w->plain = false;
    s->unknown = unknown;
    s->lost = false;
    s->max_height = 0;
    s->work = 0;
    s->n_items = s->n_returns = 0;
    s->cap_items = GRAMMAR_MAX_ITEMS;
}

/* --- entries ------------------------------------------------------------------------------------- */

int walk_state(struct walk *w, uint32_t state, const uint32_t *nodes, int n)
{
    static const uint32_t trie_root = 0;
    struct sim *s = &w->sim;
    uint32_t rule = w->g->states[state].rule;
    begin_walk(w, true);
    w->endless = rule == 0;
    w->counted = w->g->rules[rule].counted && !(w->g->states[state].flags & STATE_TAIL);
    w->plain = !nodes && w->counted && counts_plain(w, state);
    s->frames[0] = (struct frame){.rule = rule, .returns = -1};
    s->n_frames = 1;
    sim_open(s);
    sim_add(s, (struct item){state, 0, 0});
    struct level *top = &w->levels[0];
    if (nodes) {
        make_level(w, top, 0);
    } else {
        /* At the root of the trie nothing was read yet: the matcher itself has followed the calls of the
         * state and the end of its rule, and what they lead to are items of their own. Only bytes count. */
        *top = (struct level){.simple = (w->g->states[state].flags & STATE_TABLE) != 0,
                              .tail = NO_STATE,
                              .only = s->items[0],
                              .n = 1,
                              .n_frames = 1};
        s->n_exits = 0;
    }
    int n_first = s->n_exits;
    int32_t first[WALK_EXITS];
    memcpy(first, s->exits, (size_t)n_first * sizeof *first);
    for (int i = 0; i < (nodes ? n : 1); i++) {
        uint32_t root = nodes ? nodes[i] : trie_root;
        for (int k = 0; k < n_first && w->v->skip[root] > root + 1; k++)
            add_node(&w->exits, root, first[k]);
        if (walk_below(w, root))
            return -1;
    }
    w->max_height = s->max_height;
    return 0;
}

int walk_matcher(struct walk *w, const struct grammar_matcher *m)
{
    struct sim *s = &w->sim;
    const struct sim *from = &m->sim;
    begin_walk(w, false);
    w->endless = true;
    memcpy(s->items, from->items, (size_t)from->n_items * sizeof *from->items);
    memcpy(s->frames, from->frames, (size_t)from->n_frames * sizeof *from->frames);
    memcpy(s->returns, from->returns, (size_t)from->n_returns * sizeof *from->returns);
    s->n_items = from->n_items;
    s->n_frames = from->n_frames;
    s->n_returns = from->n_returns;
    w->levels[0] = (struct level){.n = s->n_items, .n_frames = s->n_frames, .n_returns = s->n_returns};
    return walk_below(w, 0);
}
