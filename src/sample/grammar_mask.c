/* Masks: which tokens may come next.
 *
 * Trying a quarter of a million tokens at every step is too slow, and a table for every place that an answer
 * can be in has no end. So a mask is put together from parts that do have an end. A part ("entry") belongs to
 * a *state*: walk the vocabulary's trie from that state without knowing who called its rule. That gives
 *
 *     the tokens that stay within the rule (and rules that it calls): they are allowed whoever called it;
 *     the exits: nodes of the trie, inside of tokens, at which the rule ends and the caller must go on.
 *
 * For the exits the walk goes on in the state that a caller waits in: again a part, of (exits, state), and
 * again it may have exits. A mask is the union over the items of a matcher of such chains; all parts are
 * kept, so after a few tokens a mask costs a few ORs. For instance the inside of a JSON string is one part of
 * nearly all tokens, whose exits are the tokens with a quote in them, whatever schema the string is for.
 *
 * Counted rules: a walk counts turns from 0 and does not know how many are left. So their parts are kept with
 * what they need: token: at least so many turns must be left; exit: it happens after so many turns. A
 * *variant* of a part is cut from it for given numbers: the most turns that may follow, the fewest that must.
 * They are clipped to what makes a difference within one token. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sample/grammar_internal.h"

enum {
    WALK_ITEMS = 32768,
    WALK_FRAMES = 8192,
    WALK_RETURNS = 16384,
    WALK_EXITS = 256, /* different counts at one node */
    MAX_WALK_WORK = 30000000,
    N_ROWS = 256,  /* tables of states with many edges */
    ROW_EDGES = 4, /* what is many */
};

/* An exit with the turns that were made. */
struct tagged_exit {
    uint32_t node;
    int32_t turns;
};

struct mask_entry {
    uint32_t *dense; /* [words], or */
    int32_t *ids;    /* [n_ids] if there are few */
    int n_ids;
    int exits;      /* list of exits, -1 = none */
    int max_height; /* rules open at a time below the state's own, at most */
    bool failed;    /* the walk took too much work */
    /* counted rules instead of the above: */
    bool counted;
    int32_t *by_need;           /* ids in the order of turns needed */
    int32_t *upto;              /* [max_need + 2] ids that need less than i turns */
    struct tagged_exit *tagged; /* [n_tagged] */
    int max_need, n_tagged, max_turns;
};

struct exit_list {
    uint32_t *nodes; /* [n] rising */
    int n;
};

enum key_kind { KEY_STATE = 1, KEY_CHILD, KEY_VARIANT, KEY_EXITS };

struct slot {
    uint32_t kind, a, b, c;
    int32_t value;
};

/* One level of a walk: the ways that the bytes down to here leave. Mostly it is one simple state. */
struct level {
    struct item only;
    bool simple; /* only `only`; else items[first … first + n) */
    int first, n;
    int n_frames, n_returns;
};

struct mask_cache {
    const struct grammar *g;
    const struct grammar_vocab *v;
    pthread_mutex_t lock;
    int words;
    struct mask_entry *entries;
    struct exit_list *exits;
    int n_entries, cap_entries, n_exits, cap_exits;
    struct slot *slots; /* [n_slots] open addressing; kind 0 = free */
    int n_slots, n_used;
    size_t bytes;
    /* scratch of walks */
    struct sim sim;
    int32_t *base; /* [WALK_FRAMES] turns of frame 0 when a frame was opened, at least */
    struct level levels[256];
    uint32_t (*rows)[256]; /* [N_ROWS] */
    uint32_t row_state[N_ROWS];
    uint32_t *bits; /* [words] */
    int32_t *need;  /* [n_ids], where bits is set */
    struct tagged_exit *tagged;
    int n_tagged, cap_tagged;
    struct {
        int exits, frame;
    } * visited; /* of one mask */
    int n_visited, cap_visited;
};

/* --- the cache
 * ------------------------------------------------------------------------------------------------- */

struct mask_cache *mask_cache_create(const struct grammar *g, const struct grammar_vocab *v)
{
    struct mask_cache *c = mem_zalloc(1, sizeof *c);
    c->g = g;
    c->v = v;
    pthread_mutex_init(&c->lock, NULL);
    c->words = (v->n_ids + 31) / 32;
    c->sim.g = g;
    return c;
}

/* Scratch is made at the first walk: a grammar that is never decoded with costs nothing. */
static void make_scratch(struct mask_cache *c)
{
    if (c->rows)
        return;
    struct sim *s = &c->sim;
    s->items = mem_zalloc(WALK_ITEMS, sizeof *s->items);
    s->frames = mem_zalloc(WALK_FRAMES, sizeof *s->frames);
    s->returns = mem_zalloc(WALK_RETURNS, sizeof *s->returns);
    s->exits = mem_zalloc(WALK_EXITS, sizeof *s->exits);
    s->cap_frames = WALK_FRAMES;
    s->cap_returns = WALK_RETURNS;
    s->cap_exits = WALK_EXITS;
    c->base = mem_zalloc(WALK_FRAMES, sizeof *c->base);
    c->rows = mem_zalloc(N_ROWS, sizeof *c->rows);
    memset(c->row_state, 0xFF, sizeof c->row_state);
    c->bits = mem_zalloc((size_t)c->words, sizeof *c->bits);
    c->need = mem_zalloc((size_t)c->v->n_ids, sizeof *c->need);
}

static void drop_entries(struct mask_cache *c)
{
    for (int i = 0; i < c->n_entries; i++) {
        free(c->entries[i].dense);
        free(c->entries[i].ids);
        free(c->entries[i].by_need);
        free(c->entries[i].upto);
        free(c->entries[i].tagged);
    }
    for (int i = 0; i < c->n_exits; i++)
        free(c->exits[i].nodes);
    if (c->n_slots)
        memset(c->slots, 0, (size_t)c->n_slots * sizeof *c->slots);
    c->n_entries = c->n_exits = c->n_used = 0;
    c->bytes = 0;
}

void mask_cache_free(struct mask_cache *c)
{
    if (!c)
        return;
    drop_entries(c);
    free(c->entries);
    free(c->exits);
    free(c->slots);
    free(c->sim.items);
    free(c->sim.frames);
    free(c->sim.returns);
    free(c->sim.exits);
    free(c->base);
    free(c->rows);
    free(c->bits);
    free(c->need);
    free(c->tagged);
    free(c->visited);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static uint32_t mix(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

static struct slot *find_slot(struct mask_cache *c, struct slot key)
{
    uint32_t h = mix(key.a * 0x9e3779b9u + mix(key.b + mix(key.c * 31 + key.kind)));
    for (;; h++) {
        struct slot *s = &c->slots[h & (uint32_t)(c->n_slots - 1)];
        if (s->kind == 0 || (s->kind == key.kind && s->a == key.a && s->b == key.b && s->c == key.c))
            return s;
    }
}

/* The value of a key, -1 if it has none. */
static int lookup(struct mask_cache *c, enum key_kind kind, uint32_t a, uint32_t b, uint32_t d)
{
    if (c->n_slots == 0)
        return -1;
    const struct slot *s = find_slot(c, (struct slot){kind, a, b, d, 0});
    return s->kind ? s->value : -1;
}

static void remember(struct mask_cache *c, enum key_kind kind, uint32_t a, uint32_t b, uint32_t d, int value)
{
    if (2 * (c->n_used + 1) > c->n_slots) {
        struct slot *old = c->slots;
        int n = c->n_slots;
        c->n_slots = n ? 2 * n : 1024;
        c->slots = mem_zalloc((size_t)c->n_slots, sizeof *c->slots);
        for (int i = 0; i < n; i++)
            if (old[i].kind)
                *find_slot(c, old[i]) = old[i];
        free(old);
    }
    *find_slot(c, (struct slot){kind, a, b, d, 0}) = (struct slot){kind, a, b, d, value};
    c->n_used++;
}

/* The list of exits with these nodes (rising); lists are equal only if they are the same one. */
static int intern_exits(struct mask_cache *c, const uint32_t *nodes, int n)
{
    if (n == 0)
        return -1;
    uint32_t h[2] = {(uint32_t)n, 0x811c9dc5u};
    for (int i = 0; i < n; i++) {
        h[0] = mix(h[0] ^ nodes[i]);
        h[1] = (h[1] ^ nodes[i]) * 0x01000193u;
    }
    int at;
    for (; (at = lookup(c, KEY_EXITS, h[0], h[1], (uint32_t)n)) >= 0; h[0]++)
        if (memcmp(c->exits[at].nodes, nodes, (size_t)n * sizeof *nodes) == 0)
            return at;
    GROW(c->exits, c->n_exits, c->cap_exits, 1);
    uint32_t *copy = mem_alloc((size_t)n * sizeof *copy);
    memcpy(copy, nodes, (size_t)n * sizeof *copy);
    c->exits[c->n_exits] = (struct exit_list){copy, n};
    c->bytes += (size_t)n * sizeof *copy;
    remember(c, KEY_EXITS, h[0], h[1], (uint32_t)n, c->n_exits);
    return c->n_exits++;
}

static int add_entry(struct mask_cache *c, struct mask_entry e)
{
    GROW(c->entries, c->n_entries, c->cap_entries, 1);
    c->bytes += sizeof e + sizeof(struct slot) * 2;
    c->entries[c->n_entries] = e;
    return c->n_entries++;
}

/* Keeps the set in c->bits (n tokens) in e, in the smaller form. */
static void keep_set(struct mask_cache *c, struct mask_entry *e, const uint32_t *bits, int n)
{
    if (n > c->words / 2) {
        e->dense = mem_alloc((size_t)c->words * sizeof *e->dense);
        memcpy(e->dense, bits, (size_t)c->words * sizeof *e->dense);
        c->bytes += (size_t)c->words * sizeof *e->dense;
        return;
    }
    e->ids = mem_alloc((size_t)n * sizeof *e->ids);
    c->bytes += (size_t)n * sizeof *e->ids;
    for (int w = 0; w < c->words && e->n_ids < n; w++)
        for (uint32_t x = bits[w]; x; x &= x - 1)
            e->ids[e->n_ids++] = 32 * w + __builtin_ctz(x);
}

/* --- walking the trie
 * -------------------------------------------------------------------------------------------- */

/* Where a state leads by a byte, if each byte has at most one way. */
static uint32_t next_state(struct mask_cache *c, uint32_t state, uint8_t byte)
{
    const struct grammar *g = c->g;
    uint32_t first = g->states[state].first_edge, end = g->states[state + 1].first_edge;
    if (end - first <= ROW_EDGES) {
        for (uint32_t x = first; x < end; x++)
            if (byte >= g->edges[x].lo && byte <= g->edges[x].hi)
                return g->edges[x].to;
        return NO_STATE;
    }
    uint32_t at = state % N_ROWS;
    if (c->row_state[at] != state) {
        c->row_state[at] = state;
        memset(c->rows[at], 0xFF, sizeof c->rows[at]);
        for (uint32_t x = first; x < end; x++)
            for (unsigned b = g->edges[x].lo; b <= g->edges[x].hi; b++)
                c->rows[at][b] = g->edges[x].to;
    }
    return c->rows[at][byte];
}

/* One walk: its results are in c->bits (with c->need) and c->tagged. */
struct walk {
    struct mask_cache *c;
    bool counted; /* the rule of frame 0 is, and is not known: tokens and exits have turns */
    uint32_t start;
    int n_tokens;
    int64_t nodes;
};

static void allow(struct walk *w, uint32_t node, int need)
{
    struct mask_cache *c = w->c;
    for (int32_t id = c->v->token[node]; id >= 0; id = c->v->same[id]) {
        uint32_t *word = &c->bits[id >> 5], bit = UINT32_C(1) << (id & 31);
        if (!(*word & bit)) {
            *word |= bit;
            w->n_tokens++;
            c->need[id] = need;
        } else if (need < c->need[id]) {
            c->need[id] = need;
        }
    }
}

static void add_exits(struct walk *w, uint32_t node)
{
    struct mask_cache *c = w->c;
    if (!c->sim.unknown || c->v->skip[node] == node + 1)
        return; /* nothing follows in any token */
    for (int i = 0; i < c->sim.n_exits; i++) {
        GROW(c->tagged, c->n_tagged, c->cap_tagged, 1);
        c->tagged[c->n_tagged++] = (struct tagged_exit){node, c->sim.exits[i]};
    }
}

/* How many turns of frame 0 an item needs: those done, and the one that it is in. */
static int turns_needed(const struct walk *w, const struct item *it)
{
    if (it->frame)
        return w->c->base[it->frame] + 1;
    return it->count + (it->state != w->start);
}

/* The turns done when the frames of this place were opened: the least over all ways into them. */
static void find_bases(struct walk *w)
{
    struct mask_cache *c = w->c;
    struct sim *s = &c->sim;
    for (int f = s->here; f < s->n_frames; f++)
        c->base[f] = INT32_MAX - 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (int f = s->here; f < s->n_frames; f++)
            for (int32_t r = s->frames[f].returns; r >= 0; r = s->returns[r].next) {
                const struct item *to = &s->returns[r].to;
                int base = to->frame ? c->base[to->frame] : to->count;
                changed |= base < c->base[f];
                c->base[f] = base < c->base[f] ? base : c->base[f];
            }
    }
}

/* Closes the place under construction and notes it as level l. */
static void make_level(struct walk *w, struct level *l, bool complete_bottom)
{
    struct sim *s = &w->c->sim;
    s->cap_items = s->begin + GRAMMAR_MAX_ITEMS < WALK_ITEMS ? s->begin + GRAMMAR_MAX_ITEMS : WALK_ITEMS;
    sim_close(s, complete_bottom);
    if (w->counted)
        find_bases(w);
    *l = (struct level){
        .first = s->begin, .n = s->n_items - s->begin, .n_frames = s->n_frames, .n_returns = s->n_returns};
    if (l->n == 1) {
        uint8_t flags = w->c->g->states[s->items[s->begin].state].flags;
        l->simple = flags & STATE_SIMPLE && flags & STATE_TABLE;
        l->only = s->items[s->begin];
    }
}

/* From level `from` by one byte to level `to`; false if there is no way. */
static bool descend(struct walk *w, const struct level *from, struct level *to, uint32_t node)
{
    struct mask_cache *c = w->c;
    const struct grammar *g = c->g;
    struct sim *s = &c->sim;
    uint8_t byte = c->v->byte[node];
    w->nodes++;
    if (from->simple) {
        uint32_t state = next_state(c, from->only.state, byte);
        if (state == NO_STATE)
            return false;
        if (g->states[state].flags & STATE_SIMPLE) {
            *to = *from;
            to->only.state = state;
            to->n = 0;
            to->simple = (g->states[state].flags & STATE_TABLE) != 0;
            if (!to->simple) {
                /* Of a rule that was not made deterministic: as a list of one. */
                s->n_items = from->first + from->n;
                to->first = s->n_items;
                to->n = 1;
                s->items[s->n_items++] = to->only;
            } else {
                to->first = from->first + from->n;
            }
            s->n_exits = 0;
            return true;
        }
        s->n_items = from->first + from->n;
        s->n_frames = from->n_frames;
        s->n_returns = from->n_returns;
        sim_open(s);
        s->cap_items = s->begin + GRAMMAR_MAX_ITEMS < WALK_ITEMS ? s->begin + GRAMMAR_MAX_ITEMS : WALK_ITEMS;
        sim_add(s, (struct item){state, from->only.frame, from->only.count});
    } else {
        s->n_items = from->first + from->n;
        s->n_frames = from->n_frames;
        s->n_returns = from->n_returns;
        sim_open(s);
        s->cap_items = s->begin + GRAMMAR_MAX_ITEMS < WALK_ITEMS ? s->begin + GRAMMAR_MAX_ITEMS : WALK_ITEMS;
        sim_step(s, s->items + from->first, from->n, byte);
    }
    if (s->n_items == s->begin)
        return false;
    make_level(w, to, true);
    return true;
}

static int level_need(const struct walk *w, const struct level *l)
{
    if (!w->counted)
        return 0;
    if (l->simple)
        return turns_needed(w, &l->only);
    int need = INT32_MAX;
    for (int i = 0; i < l->n; i++) {
        int n = turns_needed(w, &w->c->sim.items[l->first + i]);
        need = n < need ? n : need;
    }
    return need;
}

/* Walks below `root` from level 0. 0, or -1 if it takes too much work. */
static int walk_below(struct walk *w, uint32_t root)
{
    struct mask_cache *c = w->c;
    const struct grammar_vocab *v = c->v;
    unsigned top = v->depth[root];
    for (uint32_t i = root + 1; i < v->skip[root];) {
        struct level *to = &c->levels[v->depth[i] - top];
        if (!descend(w, to - 1, to, i)) {
            i = v->skip[i];
            continue;
        }
        if (v->token[i] >= 0)
            allow(w, i, level_need(w, to));
        if (c->sim.n_exits)
            add_exits(w, i);
        if (c->sim.work + w->nodes > MAX_WALK_WORK)
            return -1;
        i++;
    }
    return 0;
}

static int by_node(const void *a, const void *b)
{
    const struct tagged_exit *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : x->turns < y->turns ? -1 : x->turns > y->turns;
}

/* Sorts the exits that were found and leaves out those found twice. */
static void sort_exits(struct mask_cache *c)
{
    int n = 0;
    if (c->n_tagged > 1)
        qsort(c->tagged, (size_t)c->n_tagged, sizeof *c->tagged, by_node);
    for (int i = 0; i < c->n_tagged; i++)
        if (n == 0 || c->tagged[i].node != c->tagged[n - 1].node ||
            c->tagged[i].turns != c->tagged[n - 1].turns)
            c->tagged[n++] = c->tagged[i];
    c->n_tagged = n;
}

/* The tokens in the order of their needs, and the exits with their turns. */
static void keep_counted(struct mask_cache *c, struct mask_entry *e, int n)
{
    e->counted = true;
    for (int w = 0; w < c->words; w++)
        for (uint32_t x = c->bits[w]; x; x &= x - 1) {
            int need = c->need[32 * w + __builtin_ctz(x)];
            e->max_need = need > e->max_need ? need : e->max_need;
        }
    e->upto = mem_zalloc((size_t)e->max_need + 2, sizeof *e->upto);
    e->by_need = mem_alloc((size_t)n * sizeof *e->by_need);
    for (int w = 0; w < c->words; w++)
        for (uint32_t x = c->bits[w]; x; x &= x - 1)
            e->upto[c->need[32 * w + __builtin_ctz(x)] + 1]++;
    for (int i = 0; i <= e->max_need; i++)
        e->upto[i + 1] += e->upto[i];
    /* Filling moves each start to the next one's: afterwards they are shifted back. */
    for (int w = 0; w < c->words; w++)
        for (uint32_t x = c->bits[w]; x; x &= x - 1) {
            int32_t id = 32 * w + __builtin_ctz(x);
            e->by_need[e->upto[c->need[id]]++] = id;
        }
    memmove(e->upto + 1, e->upto, ((size_t)e->max_need + 1) * sizeof *e->upto);
    e->upto[0] = 0;
    sort_exits(c);
    e->n_tagged = c->n_tagged;
    e->tagged = mem_alloc((size_t)c->n_tagged * sizeof *e->tagged);
    for (int i = 0; i < c->n_tagged; i++) {
        e->tagged[i] = c->tagged[i];
        e->max_turns = c->tagged[i].turns > e->max_turns ? c->tagged[i].turns : e->max_turns;
    }
    c->bytes += (size_t)n * 4 + (size_t)e->max_need * 4 + (size_t)c->n_tagged * sizeof *e->tagged;
}

/* The exits in c->tagged as a list, their turns left out. */
static int plain_exits(struct mask_cache *c)
{
    sort_exits(c);
    uint32_t *nodes = mem_alloc((size_t)c->n_tagged * sizeof *nodes);
    int n = 0;
    for (int i = 0; i < c->n_tagged; i++)
        if (n == 0 || nodes[n - 1] != c->tagged[i].node)
            nodes[n++] = c->tagged[i].node;
    int at = intern_exits(c, nodes, n);
    free(nodes);
    return at;
}

static void begin_walk(struct mask_cache *c, bool unknown)
{
    struct sim *s = &c->sim;
    make_scratch(c);
    memset(c->bits, 0, (size_t)c->words * sizeof *c->bits);
    c->n_tagged = 0;
    s->unknown = unknown;
    s->lost = false;
    s->max_height = 0;
    s->work = 0;
    s->n_items = s->n_returns = 0;
    s->cap_items = GRAMMAR_MAX_ITEMS;
}

/* Makes the entry of `state` from the root of the trie (exits -1) or from a list of exits. */
static int make_entry(struct mask_cache *c, uint32_t state, int exits)
{
    struct sim *s = &c->sim;
    uint32_t rule = c->g->states[state].rule;
    struct walk w = {.c = c, .counted = c->g->rules[rule].counted, .start = c->g->rules[rule].start};
    struct mask_entry e = {.exits = -1};
    begin_walk(c, true);
    s->frames[0] = (struct frame){.rule = rule, .returns = -1};
    s->n_frames = 1;
    sim_open(s);
    sim_add(s, (struct item){state, 0, 0});
    /* At the root of the trie nothing was read yet: the matcher has followed the end of the rule itself. */
    make_level(&w, &c->levels[0], exits >= 0);
    int32_t first_exits[WALK_EXITS];
    int n_first = s->n_exits;
    memcpy(first_exits, s->exits, (size_t)n_first * sizeof *first_exits);
    for (int i = 0; i < (exits < 0 ? 1 : c->exits[exits].n) && !e.failed; i++) {
        uint32_t root = exits < 0 ? 0 : c->exits[exits].nodes[i];
        memcpy(s->exits, first_exits, (size_t)n_first * sizeof *first_exits);
        s->n_exits = n_first;
        add_exits(&w, root);
        e.failed = walk_below(&w, root) != 0;
    }
    e.max_height = s->max_height;
    if (e.failed)
        return add_entry(c, e);
    if (w.counted) {
        keep_counted(c, &e, w.n_tokens);
    } else {
        keep_set(c, &e, c->bits, w.n_tokens);
        e.exits = plain_exits(c);
    }
    return add_entry(c, e);
}

static int entry_of_state(struct mask_cache *c, uint32_t state)
{
    int at = lookup(c, KEY_STATE, state, 0, 0);
    if (at < 0) {
        at = make_entry(c, state, -1);
        remember(c, KEY_STATE, state, 0, 0, at);
    }
    return at;
}

static int entry_of_exits(struct mask_cache *c, int exits, uint32_t state)
{
    int at = lookup(c, KEY_CHILD, (uint32_t)exits, state, 0);
    if (at < 0) {
        at = make_entry(c, state, exits);
        remember(c, KEY_CHILD, (uint32_t)exits, state, 0, at);
    }
    return at;
}

/* A counted entry where at most `most` turns may follow and at least `least` must. */
static int variant(struct mask_cache *c, int entry, int most, int least)
{
    const struct mask_entry *e = &c->entries[entry];
    int clip = e->max_need > e->max_turns ? e->max_need : e->max_turns;
    most = most < clip ? most : clip;
    least = least < 0 ? 0 : least < e->max_turns + 1 ? least : e->max_turns + 1;
    int at = lookup(c, KEY_VARIANT, (uint32_t)entry, (uint32_t)most, (uint32_t)least);
    if (at >= 0)
        return at;
    struct mask_entry v = {.exits = -1, .max_height = e->max_height};
    int n = e->upto[(most < e->max_need ? most : e->max_need) + 1];
    make_scratch(c);
    memset(c->bits, 0, (size_t)c->words * sizeof *c->bits);
    for (int i = 0; i < n; i++)
        c->bits[e->by_need[i] >> 5] |= UINT32_C(1) << (e->by_need[i] & 31);
    c->n_tagged = 0;
    for (int i = 0; i < e->n_tagged; i++)
        if (e->tagged[i].turns <= most && e->tagged[i].turns >= least) {
            GROW(c->tagged, c->n_tagged, c->cap_tagged, 1);
            c->tagged[c->n_tagged++] = e->tagged[i];
        }
    keep_set(c, &v, c->bits, n);
    v.exits = plain_exits(c);
    at = add_entry(c, v);
    remember(c, KEY_VARIANT, (uint32_t)entry, (uint32_t)most, (uint32_t)least, at);
    return at;
}

/* --- a matcher's mask
 * ------------------------------------------------------------------------------------------------ */

/* The mask where what is known of a state does not do: by a walk with the matcher's own open rules. */
static int mask_exactly(struct mask_cache *c, const struct grammar_matcher *m, uint32_t *bits)
{
    struct sim *s = &c->sim;
    const struct sim *from = &m->sim;
    struct walk w = {.c = c};
    begin_walk(c, false);
    memcpy(s->items, from->items, (size_t)from->n_items * sizeof *from->items);
    memcpy(s->frames, from->frames, (size_t)from->n_frames * sizeof *from->frames);
    memcpy(s->returns, from->returns, (size_t)from->n_returns * sizeof *from->returns);
    s->n_items = from->n_items;
    s->n_frames = from->n_frames;
    s->n_returns = from->n_returns;
    c->levels[0] = (struct level){.n = s->n_items, .n_frames = s->n_frames, .n_returns = s->n_returns};
    if (walk_below(&w, 0))
        return -1;
    memcpy(bits, c->bits, (size_t)c->words * sizeof *bits);
    return 0;
}

enum { MASK_DONE = 0, MASK_FAILED = -1, MASK_TOO_DEEP = 1 };

/* Adds what `entry` allows to a matcher that stands in frame with so many turns done, and what its callers
 * allow after its exits. */
static int add_masks(struct mask_cache *c, const struct grammar_matcher *m, int entry, int32_t frame,
                     int32_t count, uint32_t *bits)
{
    const struct frame *f = &m->frames[frame];
    if (c->entries[entry].failed)
        return MASK_FAILED;
    if (f->depth + c->entries[entry].max_height > GRAMMAR_MAX_DEPTH)
        return MASK_TOO_DEEP;
    if (c->entries[entry].counted) {
        const struct grammar_rule_info *r = &c->g->rules[f->rule];
        entry = variant(c, entry, r->max == GRAMMAR_NO_END ? GRAMMAR_NO_END : r->max - count, r->min - count);
    }
    const struct mask_entry *e = &c->entries[entry];
    if (e->dense)
        for (int i = 0; i < c->words; i++)
            bits[i] |= e->dense[i];
    for (int i = 0; i < e->n_ids; i++)
        bits[e->ids[i] >> 5] |= UINT32_C(1) << (e->ids[i] & 31);
    int exits = e->exits;
    if (exits < 0 || frame == 0)
        return MASK_DONE;
    for (int i = 0; i < c->n_visited; i++)
        if (c->visited[i].exits == exits && c->visited[i].frame == frame)
            return MASK_DONE;
    GROW(c->visited, c->n_visited, c->cap_visited, 1);
    c->visited[c->n_visited].exits = exits;
    c->visited[c->n_visited++].frame = frame;
    for (int32_t r = f->returns; r >= 0; r = m->returns[r].next) {
        const struct item *to = &m->returns[r].to;
        int rc = add_masks(c, m, entry_of_exits(c, exits, to->state), to->frame, to->count, bits);
        if (rc)
            return rc;
    }
    return MASK_DONE;
}

int mask_compute(struct mask_cache *c, const struct grammar_matcher *m, uint32_t *bits)
{
    int rc = MASK_DONE;
    pthread_mutex_lock(&c->lock);
    if (c->bytes > GRAMMAR_CACHE_BYTES)
        drop_entries(c);
    memset(bits, 0, (size_t)c->words * sizeof *bits);
    c->n_visited = 0;
    for (int i = 0; i < m->sim.n_items && rc == MASK_DONE; i++) {
        const struct item *it = &m->sim.items[i];
        /* What rules opened here allow is part of what their callers allow. */
        if (it->frame >= m->sim.here || c->g->states[it->state].flags & STATE_STOP)
            continue;
        rc = add_masks(c, m, entry_of_state(c, it->state), it->frame, it->count, bits);
    }
    if (rc == MASK_TOO_DEEP)
        rc = mask_exactly(c, m, bits);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void mask_warm(struct mask_cache *c, double seconds)
{
    double until = clock_now() + seconds;
    for (uint32_t i = 0; i < (uint32_t)c->g->n_states && clock_now() < until; i++) {
        if (c->g->states[i].flags & STATE_STOP)
            continue;
        pthread_mutex_lock(&c->lock);
        bool full = c->bytes > GRAMMAR_CACHE_BYTES / 2;
        if (!full)
            entry_of_state(c, i);
        pthread_mutex_unlock(&c->lock);
        if (full)
            return;
    }
}

void mask_size(struct mask_cache *c, struct grammar_size *out)
{
    pthread_mutex_lock(&c->lock);
    out->cache_bytes = c->bytes;
    out->cached = c->n_entries;
    pthread_mutex_unlock(&c->lock);
}
