/* Masks: which tokens may come next.
 *
 * Trying a quarter of a million tokens at every step is too slow, and a table for every place that an answer
 * can be in has no end. So a mask is put together from parts that do have an end. A part ("entry") belongs to
 * a *state*: walk the vocabulary's trie from that state without knowing who called its rule. That gives
 *
 *     the tokens that stay within the rule (and rules that it calls): they are allowed whoever called it;
 *     the exits: nodes of the trie, inside of tokens, at which the rule ends and the caller must go on.
 *
 * Calls that the state makes before the first byte are not part of it: the called rules' states are items of
 * the matcher, with parts of their own. For the exits the walk goes on in the state that a caller waits in:
 * again a part, of (exits, state), and again it may have exits. A mask is the union over the items of a
 * matcher of such chains; all parts are kept, so after a few tokens a mask costs a few ORs. For instance the
 * inside of a JSON string is one part of nearly all tokens, whose exits are the tokens with a quote in them,
 * whatever schema the string is for.
 *
 * Counted rules: a walk counts turns from 0 and does not know how many are left. So their parts are kept with
 * what they need: token: at least so many turns must be left; exit: it happens after so many turns. A
 * *variant* of a part is cut from it for given numbers: the most turns that may follow, the fewest that must.
 * They are clipped to what makes a difference within one token.
 *
 * Masks are made while the engine steps, and a step allocates nothing: parts live in a room that is set aside
 * when the grammar is bound. The system gives memory to it only as it is written. When it is full all parts
 * are dropped and made again as they are needed. */
#include <stdlib.h>
#include <string.h>

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sample/grammar_walk.h"

struct mask_entry {
    uint32_t *dense; /* [words], or */
    int32_t *ids;    /* [n_ids] if there are few */
    int n_ids;
    int exits;      /* list of exits, -1 = none */
    int max_height; /* rules open at a time below the state's own, at most */
    bool failed;    /* the walk took too much work */
    /* counted rules instead of the above: */
    bool counted;
    bool plain;                /* and all plain tokens, which need a turn for each character */
    int32_t *by_need;          /* ids in the order of turns needed */
    int32_t *upto;             /* [max_need + 2] ids that need less than i turns */
    struct node_turns *tails;  /* [n_tails] nodes of tokens that end in the tail */
    struct node_turns *tagged; /* [n_tagged] exits */
    int max_need, n_tails, n_tagged, max_turns;
};

struct exit_list {
    uint32_t *nodes; /* [n] rising */
    int n;
};

enum {
    MAX_ENTRIES = 1 << 15,
    MAX_EXITS = 1 << 15,
    N_SLOTS = 1 << 18, /* a power of two; half of them are used at most */
    MAX_VISITED = 1 << 12,
    ONE_MASK = 64, /* parts that a single mask needs room for, beyond the limit */
};

enum key_kind { KEY_STATE = 1, KEY_CHILD, KEY_VARIANT, KEY_EXITS };

struct slot {
    uint32_t kind, a, b, c;
    int32_t value;
};

struct mask_cache {
    const struct grammar *g;
    const struct grammar_vocab *v;
    pthread_mutex_t lock;
    int words;
    struct mask_entry *entries; /* [n_entries of MAX_ENTRIES] */
    struct exit_list *exits;    /* [n_exits of MAX_EXITS] */
    int n_entries, n_exits;
    struct slot *slots; /* [N_SLOTS] open addressing; kind 0 = free */
    int n_used;
    char *room; /* [size] what entries and exits point to: the first `used` bytes */
    size_t used, size, limit;
    bool full; /* something did not fit */
    struct walk walk;
    struct {
        int exits, frame;
    } * visited; /* [n_visited of MAX_VISITED] of one mask */
    int n_visited;
    _Atomic size_t shown_bytes; /* for mask_size, which must not keep the engine waiting */
    _Atomic int shown_entries;
};

/* --- the cache ----------------------------------------------------------------------------------- */

struct mask_cache *mask_cache_create(const struct grammar *g, const struct grammar_vocab *v, size_t limit)
{
    int words = (v->n_ids + 31) / 32;
    size_t size =
        limit + ONE_MASK * (size_t)words * sizeof(uint32_t) + 8 * (size_t)v->n_ids * sizeof(int32_t);
    char *room = mem_try_alloc(size, 1);
    if (!room)
        return NULL;
    struct mask_cache *c = mem_zalloc(1, sizeof *c);
    c->g = g;
    c->v = v;
    c->limit = limit;
    pthread_mutex_init(&c->lock, NULL);
    c->words = words;
    c->size = size;
    c->room = room;
    c->entries = mem_alloc(MAX_ENTRIES * sizeof *c->entries);
    c->exits = mem_alloc(MAX_EXITS * sizeof *c->exits);
    c->slots = mem_zalloc(N_SLOTS, sizeof *c->slots);
    c->visited = mem_alloc(MAX_VISITED * sizeof *c->visited);
    walk_init(&c->walk, g, v);
    return c;
}

static void drop_entries(struct mask_cache *c)
{
    memset(c->slots, 0, N_SLOTS * sizeof *c->slots);
    c->n_entries = c->n_exits = c->n_used = 0;
    c->used = 0;
    c->full = false;
}

/* A piece of the room; NULL, and `full`, if there is not so much left. */
static void *take(struct mask_cache *c, size_t n, size_t size)
{
    size_t bytes = (n * size + 7) & ~(size_t)7;
    if (c->full || bytes > c->size - c->used) {
        c->full = true;
        return NULL;
    }
    void *p = c->room + c->used;
    c->used += bytes;
    return p;
}

void mask_cache_free(struct mask_cache *c)
{
    if (!c)
        return;
    free(c->room);
    free(c->entries);
    free(c->exits);
    free(c->slots);
    walk_free(&c->walk);
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
        struct slot *s = &c->slots[h & (N_SLOTS - 1)];
        if (s->kind == 0 || (s->kind == key.kind && s->a == key.a && s->b == key.b && s->c == key.c))
            return s;
    }
}

/* The value of a key, -1 if it has none. */
static int lookup(struct mask_cache *c, enum key_kind kind, uint32_t a, uint32_t b, uint32_t d)
{
    const struct slot *s = find_slot(c, (struct slot){kind, a, b, d, 0});
    return s->kind ? s->value : -1;
}

static void remember(struct mask_cache *c, enum key_kind kind, uint32_t a, uint32_t b, uint32_t d, int value)
{
    if (value < 0 || c->n_used == N_SLOTS / 2) {
        c->full = true;
        return;
    }
    *find_slot(c, (struct slot){kind, a, b, d, 0}) = (struct slot){kind, a, b, d, value};
    c->n_used++;
}

/* The list of exits with these nodes (rising), which were the last piece taken of the room; lists are equal
 * only if they are the same one. -1 if there are none. */
static int intern_exits(struct mask_cache *c, uint32_t *nodes, int n)
{
    if (n == 0)
        return -1;
    size_t before = (size_t)((char *)nodes - c->room);
    uint32_t h[2] = {(uint32_t)n, 0x811c9dc5u};
    for (int i = 0; i < n; i++) {
        h[0] = mix(h[0] ^ nodes[i]);
        h[1] = (h[1] ^ nodes[i]) * 0x01000193u;
    }
    int at;
    for (; (at = lookup(c, KEY_EXITS, h[0], h[1], (uint32_t)n)) >= 0; h[0]++)
        if (memcmp(c->exits[at].nodes, nodes, (size_t)n * sizeof *nodes) == 0) {
            c->used = before;
            return at;
        }
    if (c->n_exits == MAX_EXITS) {
        c->full = true;
        return -1;
    }
    c->exits[c->n_exits] = (struct exit_list){nodes, n};
    remember(c, KEY_EXITS, h[0], h[1], (uint32_t)n, c->n_exits);
    return c->n_exits++;
}

/* -1 if the entry, or a part of it, did not fit. */
static int add_entry(struct mask_cache *c, struct mask_entry e)
{
    if (c->full || c->n_entries == MAX_ENTRIES) {
        c->full = true;
        return -1;
    }
    c->entries[c->n_entries] = e;
    return c->n_entries++;
}

/* Keeps a set of n tokens in e, in the smaller form. */
static void keep_set(struct mask_cache *c, struct mask_entry *e, const uint32_t *bits, int n)
{
    if (n > c->words / 2) {
        e->dense = take(c, (size_t)c->words, sizeof *e->dense);
        if (e->dense)
            memcpy(e->dense, bits, (size_t)c->words * sizeof *e->dense);
        return;
    }
    e->ids = take(c, (size_t)n, sizeof *e->ids);
    for (int w = 0; e->ids && w < c->words && e->n_ids < n; w++)
        for (uint32_t x = bits[w]; x; x &= x - 1)
            e->ids[e->n_ids++] = 32 * w + __builtin_ctz(x);
}

/* --- parts --------------------------------------------------------------------------------------- */

static int by_node(const void *a, const void *b)
{
    const struct node_turns *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : x->turns < y->turns ? -1 : x->turns > y->turns;
}

/* Sorts a list by nodes and leaves out what is there twice. */
static void sort_nodes(struct node_list *l)
{
    int n = 0;
    if (l->n > 1)
        qsort(l->e, (size_t)l->n, sizeof *l->e, by_node);
    for (int i = 0; i < l->n; i++)
        if (n == 0 || by_node(&l->e[i], &l->e[n - 1]) != 0)
            l->e[n++] = l->e[i];
    l->n = n;
}

/* A sorted copy of a list of *n; *most becomes the largest number of turns in it. */
static struct node_turns *keep_nodes(struct mask_cache *c, struct node_list *l, int *n, int *most)
{
    sort_nodes(l);
    struct node_turns *out = take(c, (size_t)l->n, sizeof *out);
    for (int i = 0; out && i < l->n; i++) {
        out[i] = l->e[i];
        *most = out[i].turns > *most ? out[i].turns : *most;
    }
    *n = out ? l->n : 0;
    return out;
}

/* The tokens of a counted walk in the order of their needs, and what has turns. */
static void keep_counted(struct mask_cache *c, struct mask_entry *e)
{
    struct walk *w = &c->walk;
    e->counted = true;
    e->plain = w->plain;
    e->max_need = w->plain ? c->v->max_chars : 0; /* one table serves both kinds of tokens */
    for (int i = 0; i < c->words; i++)
        for (uint32_t x = w->bits[i]; x; x &= x - 1) {
            int need = w->need[32 * i + __builtin_ctz(x)];
            e->max_need = need > e->max_need ? need : e->max_need;
        }
    size_t rows = (size_t)e->max_need + 2;
    int32_t *next = take(c, rows, sizeof *next);
    e->upto = take(c, rows, sizeof *e->upto);
    e->by_need = take(c, (size_t)w->n_tokens, sizeof *e->by_need);
    if (c->full)
        return;
    memset(next, 0, rows * sizeof *next);
    for (int i = 0; i < c->words; i++)
        for (uint32_t x = w->bits[i]; x; x &= x - 1)
            next[w->need[32 * i + __builtin_ctz(x)] + 1]++;
    for (int i = 0; i <= e->max_need; i++)
        next[i + 1] += next[i];
    memcpy(e->upto, next, rows * sizeof *next);
    for (int i = 0; i < c->words; i++)
        for (uint32_t x = w->bits[i]; x; x &= x - 1) {
            int32_t id = 32 * i + __builtin_ctz(x);
            e->by_need[next[w->need[id]]++] = id;
        }
    e->tails = keep_nodes(c, &w->tails, &e->n_tails, &e->max_turns);
    e->tagged = keep_nodes(c, &w->exits, &e->n_tagged, &e->max_turns);
}

/* The exits in l as a list, their turns left out. */
static int plain_exits(struct mask_cache *c, struct node_list *l)
{
    sort_nodes(l);
    uint32_t *nodes = take(c, (size_t)l->n, sizeof *nodes);
    int n = 0;
    for (int i = 0; nodes && i < l->n; i++)
        if (n == 0 || nodes[n - 1] != l->e[i].node)
            nodes[n++] = l->e[i].node;
    return intern_exits(c, nodes, n);
}

/* Makes the entry of `state` from the root of the trie (exits -1) or from a list of exits. It and the
 * following return -1 if the cache is full. */
static int make_entry(struct mask_cache *c, uint32_t state, int exits)
{
    struct walk *w = &c->walk;
    struct mask_entry e = {.exits = -1};
    e.failed = walk_state(w, state, exits < 0 ? NULL : c->exits[exits].nodes,
                          exits < 0 ? 0 : c->exits[exits].n) != 0;
    e.max_height = w->max_height;
    if (e.failed)
        return add_entry(c, e);
    if (w->counted) {
        keep_counted(c, &e);
        return add_entry(c, e);
    }
    keep_set(c, &e, w->bits, w->n_tokens);
    e.exits = plain_exits(c, &w->exits);
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

static int set_bit(uint32_t *bits, int32_t id)
{
    uint32_t bit = UINT32_C(1) << (id & 31);
    int fresh = !(bits[id >> 5] & bit);
    bits[id >> 5] |= bit;
    return fresh;
}

/* Sets bits, which are clear, to the plain tokens of at most so many characters; returns how many they are.
 */
static int set_plain(const struct mask_cache *c, uint32_t *bits, int most)
{
    const struct grammar_vocab *v = c->v;
    int n = v->upto[(most < v->max_chars ? most : v->max_chars) + 1];
    if (n < v->n_plain / 4) {
        for (int i = 0; i < n; i++)
            set_bit(bits, v->by_chars[i]);
        return n;
    }
    memcpy(bits, v->plain, (size_t)c->words * sizeof *bits);
    for (int i = n; i < v->n_plain; i++)
        bits[v->by_chars[i] >> 5] &= ~(UINT32_C(1) << (v->by_chars[i] & 31));
    return n;
}

/* A counted entry where at most `most` turns may follow and at least `least` must. */
static int variant(struct mask_cache *c, int entry, int most, int least)
{
    const struct mask_entry *e = &c->entries[entry];
    struct walk *w = &c->walk;
    int clip = e->max_need > e->max_turns ? e->max_need : e->max_turns;
    most = most < clip ? most : clip;
    least = least < 0 ? 0 : least < e->max_turns + 1 ? least : e->max_turns + 1;
    int at = lookup(c, KEY_VARIANT, (uint32_t)entry, (uint32_t)most, (uint32_t)least);
    if (at >= 0)
        return at;
    struct mask_entry v = {.exits = -1, .max_height = e->max_height};
    int n = 0, first = e->upto[(most < e->max_need ? most : e->max_need) + 1];
    memset(w->bits, 0, (size_t)c->words * sizeof *w->bits);
    if (e->plain)
        n = set_plain(c, w->bits, most);
    for (int i = 0; i < first; i++)
        n += set_bit(w->bits, e->by_need[i]);
    for (int i = 0; i < e->n_tails; i++)
        if (e->tails[i].turns <= most && e->tails[i].turns >= least)
            for (int32_t id = vocab_first(c->v, e->tails[i].node); id >= 0;
                 id = vocab_next(c->v, e->tails[i].node, id))
                n += set_bit(w->bits, id);
    w->exits.n = 0;
    for (int i = 0; i < e->n_tagged; i++)
        if (e->tagged[i].turns <= most && e->tagged[i].turns >= least) /* they came from this list */
            w->exits.e[w->exits.n++] = e->tagged[i];
    keep_set(c, &v, w->bits, n);
    v.exits = plain_exits(c, &w->exits);
    at = add_entry(c, v);
    remember(c, KEY_VARIANT, (uint32_t)entry, (uint32_t)most, (uint32_t)least, at);
    return at;
}

/* --- a matcher's mask ---------------------------------------------------------------------------- */

enum { MASK_DONE = 0, MASK_FAILED = -1, MASK_TOO_DEEP = 1, MASK_FULL = 2 };

/* Adds what `entry` allows to a matcher that stands in frame with so many turns done, and what its callers
 * allow after its exits. */
static int add_masks(struct mask_cache *c, const struct grammar_matcher *m, int entry, int32_t frame,
                     int32_t count, uint32_t *bits)
{
    const struct frame *f = &m->frames[frame];
    if (entry < 0)
        return MASK_FULL;
    if (c->entries[entry].failed)
        return MASK_FAILED;
    if (f->depth + c->entries[entry].max_height > GRAMMAR_MAX_DEPTH)
        return MASK_TOO_DEEP;
    if (c->entries[entry].counted) {
        const struct grammar_rule_info *r = &c->g->rules[f->rule];
        entry = variant(c, entry, r->max == GRAMMAR_NO_END ? GRAMMAR_NO_END : r->max - count, r->min - count);
        if (entry < 0)
            return MASK_FULL;
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
    if (c->n_visited == MAX_VISITED)
        return MASK_FAILED;
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

static void show(struct mask_cache *c)
{
    atomic_store(&c->shown_bytes,
                 c->used + (size_t)c->n_entries * (sizeof *c->entries + 2 * sizeof *c->slots));
    atomic_store(&c->shown_entries, c->n_entries);
}

static int from_parts(struct mask_cache *c, const struct grammar_matcher *m, uint32_t *bits)
{
    int rc = MASK_DONE;
    memset(bits, 0, (size_t)c->words * sizeof *bits);
    c->n_visited = 0;
    for (int i = 0; i < m->sim.n_items && rc == MASK_DONE; i++) {
        const struct item *it = &m->sim.items[i];
        const struct grammar_state *state = &c->g->states[it->state];
        if (state->first_edge == state[1].first_edge)
            continue; /* what it calls, and what called it, are items too */
        rc = add_masks(c, m, entry_of_state(c, it->state), it->frame, it->count, bits);
    }
    return rc;
}

int mask_compute(struct mask_cache *c, const struct grammar_matcher *m, uint32_t *bits)
{
    pthread_mutex_lock(&c->lock);
    if (c->used > c->limit)
        drop_entries(c);
    int rc = from_parts(c, m, bits);
    if (rc == MASK_FULL) {
        drop_entries(c);
        rc = from_parts(c, m, bits);
    }
    if (rc == MASK_TOO_DEEP) {
        /* Near the limit of open rules what is known of a state does not do. */
        rc = walk_matcher(&c->walk, m);
        if (rc == 0)
            memcpy(bits, c->walk.bits, (size_t)c->words * sizeof *bits);
    }
    show(c);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void mask_warm(struct mask_cache *c, double seconds)
{
    double until = clock_now() + seconds;
    for (uint32_t i = 0; i < (uint32_t)c->g->n_states && clock_now() < until; i++) {
        if (c->g->states[i].first_edge == c->g->states[i + 1].first_edge)
            continue;
        pthread_mutex_lock(&c->lock);
        bool full = c->used > c->limit / 2 || c->full;
        if (!full)
            entry_of_state(c, i);
        show(c);
        pthread_mutex_unlock(&c->lock);
        if (full)
            return;
    }
}

void mask_size(struct mask_cache *c, struct grammar_size *out)
{
    out->cache_bytes = atomic_load(&c->shown_bytes);
    out->cached = atomic_load(&c->shown_entries);
}
