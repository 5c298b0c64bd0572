#include "sched/prefix_disk.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { MOST_TRIES = 4 }; /* fetches for one request: a damaged file may lead to a shorter prefix */

void prefix_use_disk(struct prefix_cache *c, struct offload *o)
{
    if (!c->enabled)
        return;
    c->offload = o;
    c->keys = mem_zalloc((size_t)c->pool->n_blocks, sizeof *c->keys);
}

/* --- out ----------------------------------------------------------------------------------------- */

/* Fills tokens [most] with the whole text that ends with this block. Its length; -1 if a block before was
 * given up, so that nobody could come from the beginning to this one. */
static int collect_tokens(const struct prefix_cache *c, int32_t block, int32_t *tokens, int most)
{
    const struct block *blocks = c->pool->blocks;
    int bs = c->pool->block_size, n = 1;
    for (int32_t b = block; blocks[b].parent >= 0; b = blocks[b].parent, n++)
        if (blocks[blocks[b].parent].generation != blocks[b].parent_generation)
            return -1;
    if (n > most / bs)
        return -1;
    for (int i = n - 1; i >= 0; i--, block = blocks[block].parent)
        memcpy(tokens + i * bs, c->tokens + (size_t)block * (size_t)bs, (size_t)bs * sizeof *tokens);
    return n * bs;
}

/* Queues what belongs to this block and lies at `index` of the pool or the states. Returns about how many
 * bytes of the directory it takes, whether it is new or there already. */
static size_t spill(struct prefix_cache *c, enum offload_kind kind, int32_t block, int index, bool patient)
{
    struct offload_slot *s = offload_begin(c->offload, kind, c->keys[block], patient);
    if (!s)
        return offload_size(c->offload, kind, 0);
    s->n_tokens = collect_tokens(c, block, s->tokens, offload_max_tokens(c->offload));
    memcpy(s->salt, c->pool->blocks[block].salt, sizeof s->salt);
    size_t bytes = s->n_tokens > 0 ? offload_size(c->offload, kind, s->n_tokens) : 0;
    offload_commit(c->offload, s, s->n_tokens > 0 ? index : -1);
    return bytes;
}

size_t prefix_spill(struct prefix_cache *c, int32_t block, bool patient)
{
    if (!c->offload)
        return 0;
    return spill(c, OFFLOAD_KV, block, block, patient) + prefix_spill_state(c, block, patient);
}

size_t prefix_spill_state(struct prefix_cache *c, int32_t block, bool patient)
{
    int32_t snapshot = c->pool->blocks[block].snapshot;
    if (!c->offload || snapshot < 0)
        return 0;
    return spill(c, OFFLOAD_STATE, block, c->first_slot + snapshot, patient);
}

void prefix_spill_all(struct prefix_cache *c, double seconds)
{
    if (!c->offload)
        return;
    double end = clock_now() + seconds;
    const struct block_pool *p = c->pool;
    size_t spent = 0,
           limit = offload_limit(c->offload); /* what is older would only push out what went before */
    for (int32_t b = p->newest; b >= 0 && spent < limit; b = p->blocks[b].older) {
        if (clock_now() > end) {
            log_warn("not all of the prefix cache was written to disk in %g s", seconds);
            return;
        }
        spent += prefix_spill(c, b, true);
    }
}

/* --- in ------------------------------------------------------------------------------------------ */

/* How far the text of r can be brought in: *end blocks in all, *with_state if the state after them is on
 * disk. */
static void look(struct prefix_cache *c, const struct sluice_request *r, const struct prefix_match *m,
                 int *end, bool *with_state)
{
    int bs = c->pool->block_size, found = m->shared / bs, most = (r->n_tokens - 1) / bs;
    uint64_t key[2];
    *end = m->usable / bs;
    *with_state = false;
    for (int i = 0; i < most; i++) {
        offload_key(i ? key : NULL, r->salt, r->tokens + i * bs, bs, key);
        if (i >= found && !offload_has(c->offload, OFFLOAD_KV, key))
            return;
        if (i < *end)
            continue;
        if (!c->has_state) {
            *end = i + 1;
        } else if ((i + 1) * bs % c->grid == 0 && offload_has(c->offload, OFFLOAD_STATE, key)) {
            *end = i + 1;
            *with_state = true;
        }
    }
}

/* Makes the blocks that r found, but cannot use yet, as young as those it could: they are needed soon. */
static void touch(struct prefix_cache *c, struct sluice_request *r, const struct prefix_match *m)
{
    int bs = c->pool->block_size, from = m->usable / bs, n = m->shared / bs - from;
    struct block_table t = {.blocks = r->table.blocks + from, .n = n, .capacity = n};
    for (int i = 0; i < n; i++)
        block_ref(c->pool, t.blocks[i]);
    block_table_clear(c->pool, &t);
}

/* After a prefix_take that found *m: begins a fetch if the disk has more, and is fast enough. */
static bool fetch(struct prefix_cache *c, struct sluice_request *r, const struct prefix_match *m)
{
    if (r->disk_tries++ == 0)
        r->local_tokens = m->usable;
    int bs = c->pool->block_size, found = m->shared / bs, end;
    bool with_state;
    look(c, r, m, &end, &with_state);
    int more = end > found ? end - found : 0;
    if (!offload_worthwhile(c->offload, more, with_state, end * bs - m->usable))
        return false;
    struct offload_fetch f = {
        .r = r, .first = found, .coming = found, .end = end, .with_state = with_state, .parent = -1};
    if (end < found) /* the state belongs to a block in the middle of what memory has */
        f.first = f.coming = end;
    if (f.first > 0) {
        f.parent = r->table.blocks[f.first - 1];
        f.parent_generation = c->pool->blocks[f.parent].generation;
    }
    if (!offload_fetch(c->offload, &f))
        return false;
    touch(c, r, m);
    c->n_fetching++;
    return true;
}

bool prefix_waits_for_disk(struct prefix_cache *c, struct sluice_request *r)
{
    if (!c->offload || r->disk == DISK_DONE || r->n_prompt_logprobs >= 0)
        return false;
    if (r->disk == DISK_UNASKED) {
        struct prefix_match m = prefix_take(c, r);
        r->disk = fetch(c, r, &m) ? DISK_READS : DISK_DONE;
        prefix_give_back(c, r);
    }
    return r->disk == DISK_READS;
}

static bool parent_is_there(const struct prefix_cache *c, const struct offload_fetch *f)
{
    return f->parent < 0 || c->pool->blocks[f->parent].generation == f->parent_generation;
}

/* Puts a block that was read into the pool, after the one before it, as cached and unused. */
static bool adopt_block(struct prefix_cache *c, const struct offload_slot *s)
{
    struct block_pool *p = c->pool;
    struct offload_fetch *f = s->fetch;
    const int32_t *tokens = f->r->tokens + s->block * p->block_size;
    if (s->block != f->coming || !parent_is_there(c, f))
        return false;
    int32_t b = prefix_find(c, f->parent, f->r->salt, tokens);
    if (b < 0) {
        struct block_table t = {.blocks = &b, .capacity = 1};
        if (!block_table_grow(p, &t, p->block_size))
            return false;
        bool there = parent_is_there(c, f); /* it may have been the one to make room */
        if (there) {
            offload_take(c->offload, s, b);
            prefix_enter(c, b, f->parent, f->r->salt, tokens);
        }
        block_table_clear(p, &t);
        if (!there)
            return false;
    }
    f->parent = b;
    f->parent_generation = p->blocks[b].generation;
    f->coming++;
    return true;
}

static bool adopt_state(struct prefix_cache *c, const struct offload_slot *s)
{
    const struct offload_fetch *f = s->fetch;
    if (s->block != f->coming - 1 || f->parent < 0 || !parent_is_there(c, f))
        return false;
    if (c->pool->blocks[f->parent].snapshot >= 0)
        return true; /* somebody else computed it meanwhile */
    int i = prefix_reserve_snapshot(c);
    if (i < 0)
        return false;
    offload_take(c->offload, s, c->first_slot + i);
    prefix_attach_snapshot(c, i, f->parent, f->coming * c->pool->block_size - f->r->local_tokens);
    return true;
}

void prefix_collect(struct prefix_cache *c)
{
    if (!c->offload)
        return;
    for (struct offload_slot *s; (s = offload_arrived(c->offload));) {
        if (!(s->kind == OFFLOAD_KV ? adopt_block(c, s) : adopt_state(c, s)))
            offload_stop(c->offload, s->fetch);
        offload_release(c->offload, s);
    }
    bool failed;
    for (struct sluice_request *r; (r = offload_finished(c->offload, &failed));) {
        r->disk = failed && r->disk_tries < MOST_TRIES ? DISK_UNASKED : DISK_DONE;
        c->n_fetching--;
        request_unref(r);
    }
}

int prefix_count_disk(struct prefix_cache *c, struct sluice_request *r, const struct prefix_match *m)
{
    if (!c->offload || r->disk_tries == 0)
        return 0;
    int n = m->usable > r->local_tokens ? m->usable - r->local_tokens : 0;
    offload_note_lookup(c->offload, r->n_prompt - r->local_tokens, n);
    return n;
}

void prefix_saw_prefill(struct prefix_cache *c, int n_tokens, double seconds)
{
    if (c->offload)
        offload_note_prefill(c->offload, n_tokens, seconds);
}

void prefix_disk_stats(struct prefix_cache *c, struct sluice_offload_stats *out)
{
    if (c->offload)
        offload_stats(c->offload, out);
}
