#include "sched/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "sched/prefix_disk.h"

enum { GRID = 64 };

/* The product's two halves, folded: every bit of the result depends on all bits of h, x and the seed. */
static uint64_t mix(const uint64_t *seed, uint64_t h, uint64_t x)
{
    unsigned __int128 product = (unsigned __int128)(h ^ x) * seed[1];
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Where to look for a block. Keyed, so that nobody can write prompts that all fall into one bucket; what is
 * found does not depend on it. */
static uint64_t key_hash(const struct prefix_cache *c, int32_t parent, uint32_t generation,
                         const uint64_t *salt, const int32_t *tokens)
{
    uint64_t h = mix(c->seed, c->seed[0], (uint64_t)(uint32_t)parent << 32 | generation);
    h = mix(c->seed, mix(c->seed, h, salt[0]), salt[1]);
    for (int i = 0; i < c->pool->block_size; i++)
        h = mix(c->seed, h + 1, (uint64_t)(uint32_t)tokens[i]);
    return h;
}

static void drop_snapshot(struct prefix_cache *c, int i)
{
    if (c->snapshots[i].block >= 0)
        c->pool->blocks[c->snapshots[i].block].snapshot = -1;
    c->snapshots[i].block = -1;
}

/* The pool takes a cached block's memory: its key and its snapshot go, and links to it become stale. */
static void forget(void *arg, int32_t block)
{
    struct prefix_cache *c = arg;
    struct block *b = &c->pool->blocks[block];
    prefix_spill(c, block, false);
    int32_t *link = &c->buckets[b->hash & (c->n_buckets - 1)];
    while (*link != block)
        link = &c->pool->blocks[*link].chain;
    *link = b->chain;
    b->chain = -1;
    b->cached = false;
    b->generation++;
    if (b->snapshot >= 0)
        drop_snapshot(c, b->snapshot);
}

void prefix_init(struct prefix_cache *c, struct block_pool *pool, bool enabled, bool has_state,
                 int first_slot, int n_snapshots)
{
    *c = (struct prefix_cache){
        .pool = pool, .enabled = enabled, .has_state = has_state, .first_slot = first_slot, .grid = GRID};
    while (c->grid % pool->block_size)
        c->grid += GRID;
    c->n_buckets = 64;
    while (c->n_buckets < (uint32_t)pool->n_blocks)
        c->n_buckets *= 2;
    if (getrandom(c->seed, sizeof c->seed, 0) != sizeof c->seed)
        c->seed[0] = c->seed[1] = UINT64_C(0x9e3779b97f4a7c15); /* finds as much, keeps no secret */
    c->seed[1] |= 1;
    c->buckets = mem_alloc(c->n_buckets * sizeof *c->buckets);
    for (uint32_t i = 0; i < c->n_buckets; i++)
        c->buckets[i] = -1;
    c->tokens = mem_zalloc((size_t)pool->n_blocks * (size_t)pool->block_size, sizeof *c->tokens);
    c->n_snapshots = has_state ? n_snapshots : 0;
    c->snapshots = mem_zalloc((size_t)c->n_snapshots, sizeof *c->snapshots);
    for (int i = 0; i < c->n_snapshots; i++)
        c->snapshots[i].block = -1;
    pool->forget = forget;
    pool->forget_arg = c;
}

void prefix_free(struct prefix_cache *c)
{
    free(c->buckets);
    free(c->tokens);
    free(c->snapshots);
    free(c->keys);
}

int32_t prefix_find(const struct prefix_cache *c, int32_t parent, const uint64_t *salt, const int32_t *tokens)
{
    const struct block_pool *p = c->pool;
    uint32_t generation = parent >= 0 ? p->blocks[parent].generation : 0;
    uint64_t hash = key_hash(c, parent, generation, salt, tokens);
    size_t bytes = (size_t)p->block_size * sizeof *tokens;
    for (int32_t i = c->buckets[hash & (c->n_buckets - 1)]; i >= 0; i = p->blocks[i].chain) {
        const struct block *b = &p->blocks[i];
        if (b->hash == hash && b->parent == parent && b->parent_generation == generation &&
            b->salt[0] == salt[0] && b->salt[1] == salt[1] &&
            memcmp(c->tokens + (size_t)i * (size_t)p->block_size, tokens, bytes) == 0)
            return i;
    }
    return -1;
}

struct prefix_match prefix_take(struct prefix_cache *c, struct sluice_request *r)
{
    struct block_pool *p = c->pool;
    struct prefix_match m = {0};
    r->n_learned = r->branch = r->state_from = 0;
    r->parent = r->rolling = -1;
    if (!c->enabled || r->n_prompt_logprobs >= 0)
        return m;
    int most = (r->n_tokens - 1) / p->block_size; /* at least one token is computed: its logits are needed */
    int found = 0, usable = 0;
    int32_t parent = -1, snapshot = -1, last = -1;
    for (; found < r->n_tokens / p->block_size; found++) {
        int32_t b = prefix_find(c, parent, r->salt, r->tokens + found * p->block_size);
        if (b < 0)
            break;
        r->table.blocks[found] = b; /* taken below, as far as usable */
        parent = b;
        if (found >= most)
            continue;
        if (!c->has_state) {
            usable = found + 1;
            last = b;
        } else if (p->blocks[b].snapshot >= 0) {
            usable = found + 1;
            last = b;
            snapshot = p->blocks[b].snapshot;
        }
    }
    for (int i = 0; i < usable; i++)
        block_ref(p, r->table.blocks[i]);
    r->table.n = usable;
    r->n_learned = usable;
    r->parent = last;
    r->parent_generation = last >= 0 ? p->blocks[last].generation : 0;
    m.shared = found * p->block_size;
    m.usable = usable * p->block_size;
    r->n_computed = r->last_snapshot = m.usable;
    if (snapshot >= 0) {
        c->snapshots[snapshot].last_used = ++c->clock;
        c->snapshots[snapshot].resuming++;
        r->state_from = c->first_slot + snapshot;
    }
    r->branch = c->has_state && m.shared > m.usable ? m.shared / c->grid * c->grid : 0;
    return m;
}

/* r's step is over, or will not be: its snapshot may be overwritten again. */
static void end_resuming(struct prefix_cache *c, struct sluice_request *r)
{
    if (r->state_from > 0)
        c->snapshots[r->state_from - c->first_slot].resuming--;
    r->state_from = 0;
}

void prefix_give_back(struct prefix_cache *c, struct sluice_request *r)
{
    end_resuming(c, r);
    block_table_clear(c->pool, &r->table);
    r->n_computed = 0;
}

void prefix_enter(struct prefix_cache *c, int32_t block, int32_t parent, const uint64_t *salt,
                  const int32_t *tokens)
{
    struct block_pool *p = c->pool;
    struct block *b = &p->blocks[block];
    b->parent = parent;
    b->parent_generation = parent >= 0 ? p->blocks[parent].generation : 0;
    memcpy(b->salt, salt, sizeof b->salt);
    b->hash = key_hash(c, parent, b->parent_generation, salt, tokens);
    memcpy(c->tokens + (size_t)block * (size_t)p->block_size, tokens, (size_t)p->block_size * sizeof *tokens);
    b->chain = c->buckets[b->hash & (c->n_buckets - 1)];
    c->buckets[b->hash & (c->n_buckets - 1)] = block;
    b->cached = true;
    if (c->keys)
        offload_key(parent >= 0 ? c->keys[parent] : NULL, salt, tokens, p->block_size, c->keys[block]);
}

/* Puts r's block number i under its key, unless another block is already there. Either way r->parent becomes
 * the block that holds the key. */
static void learn_block(struct prefix_cache *c, struct sluice_request *r, int i)
{
    struct block_pool *p = c->pool;
    const int32_t *tokens = r->tokens + i * p->block_size;
    if (r->parent >= 0 && p->blocks[r->parent].generation != r->parent_generation)
        r->parent = -2; /* the chain before it was given up: nothing can find what comes after */
    if (r->parent == -2)
        return;
    int32_t known = prefix_find(c, r->parent, r->salt, tokens);
    if (known < 0) {
        known = r->table.blocks[i];
        prefix_enter(c, known, r->parent, r->salt, tokens);
    }
    r->parent = known;
    r->parent_generation = p->blocks[known].generation;
}

void prefix_attach_snapshot(struct prefix_cache *c, int i, int32_t block, int gain)
{
    c->pool->blocks[block].snapshot = i;
    c->snapshots[i] = (struct snapshot){.block = block, .gain = gain, .last_used = ++c->clock};
}

/* Binds snapshot slot i to the block that r's chain has reached, whose end is at `position`. */
static void attach(struct prefix_cache *c, struct sluice_request *r, int i, int position)
{
    struct block *b = r->parent >= 0 ? &c->pool->blocks[r->parent] : NULL;
    if (!b || b->snapshot >= 0) { /* a twin of the same prompt was faster */
        c->snapshots[i].block = -1;
        return;
    }
    prefix_attach_snapshot(c, i, r->parent, position - r->last_snapshot);
    /* an answer's snapshot replaces the one before, unless that ends the prompt */
    if (position > r->n_prompt && r->rolling >= 0 && c->snapshots[r->rolling].block >= 0 &&
        c->snapshots[r->rolling].block == r->rolling_block) {
        c->snapshots[i].gain += c->snapshots[r->rolling].gain;
        drop_snapshot(c, r->rolling);
    }
    if (position > r->n_prompt) {
        r->rolling = i;
        r->rolling_block = r->parent;
    }
    r->last_snapshot = position;
}

void prefix_learn(struct prefix_cache *c, struct sluice_request *r)
{
    end_resuming(c, r);
    if (!c->enabled)
        return;
    int bs = c->pool->block_size, save = 0;
    while ((r->n_learned + 1) * bs <= r->n_computed) {
        learn_block(c, r, r->n_learned++);
        int position = r->n_learned * bs;
        if (save < r->n_saves && r->save_positions[save] == position) {
            attach(c, r, r->saves[save].slot - c->first_slot, position);
            save++;
        }
    }
    r->n_saves = 0;
}

/* A slot for a new snapshot: a free one, or the one that saves least for its age. -1 if there is none. Slots
 * reserved in this step (block == -2) are not given up. */
int prefix_reserve_snapshot(struct prefix_cache *c)
{
    int best = -1;
    double least = 0;
    for (int i = 0; i < c->n_snapshots; i++) {
        const struct snapshot *s = &c->snapshots[i];
        if (s->resuming)
            continue;
        if (s->block == -1) {
            best = i;
            break;
        }
        double worth = (double)s->gain / (double)(1 + c->clock - s->last_used);
        if (s->block >= 0 && (best < 0 || worth < least)) {
            best = i;
            least = worth;
        }
    }
    if (best >= 0) {
        if (c->snapshots[best].block >= 0)
            prefix_spill_state(c, c->snapshots[best].block, false);
        drop_snapshot(c, best);
        c->snapshots[best].block = -2;
    }
    return best;
}

int prefix_keep_state(struct prefix_cache *c)
{
    int i = prefix_reserve_snapshot(c);
    return i < 0 ? -1 : c->first_slot + i;
}

void prefix_resume_from(struct prefix_cache *c, struct sluice_request *r, int slot)
{
    c->snapshots[slot - c->first_slot].resuming++;
    r->state_from = slot;
}

void prefix_drop_state(struct prefix_cache *c, int slot)
{
    c->snapshots[slot - c->first_slot].block = -1;
}

static bool is_power_of_two(int x)
{
    return x > 0 && (x & (x - 1)) == 0;
}

static bool wanted(const struct prefix_cache *c, const struct sluice_request *r, int position)
{
    if (position > r->n_prompt)
        return true;
    if (position == (r->n_prompt - 1) / c->grid * c->grid || position == r->branch ||
        is_power_of_two(position / c->grid))
        return true;
    for (int i = 0; i < r->n_borders; i++)
        if (position == r->borders[i] / c->grid * c->grid)
            return true;
    return false;
}

void prefix_plan_saves(struct prefix_cache *c, struct sluice_request *r, int count)
{
    r->n_saves = 0;
    if (!c->enabled || !c->has_state || r->parent == -2)
        return;
    int end = r->n_computed + count;
    for (int p = (r->n_computed / c->grid + 1) * c->grid; p <= end && r->n_saves < REQUEST_MAX_SAVES;
         p += c->grid) {
        if (!wanted(c, r, p))
            continue;
        int i = prefix_reserve_snapshot(c);
        if (i < 0)
            return;
        r->save_positions[r->n_saves] = p;
        r->saves[r->n_saves++] = (struct state_save){.after = p - r->n_computed, .slot = c->first_slot + i};
    }
}
