/* The prefix cache: what was computed for one request and can serve the next.
 *
 * Full KV blocks are found by their key: the block before them and their tokens (compared, never trusted to
 * a hash alone), the first one also by the tenant's salt. A model with recurrent state needs more than keys
 * and values: it can only resume where its state was kept. States are kept as snapshots on a grid of
 * positions, attached to the block that ends there, in slots of their own; when those run out, the snapshot
 * that saves least for its age goes.
 *
 * Where snapshots are taken while a prompt is computed: the last grid point before its end, the borders that
 * the client names (message ends), the point where a lookup found shared tokens but no state, and the powers
 * of two of the grid, so that a prefix shared by surprise is never more than half lost. While an answer is
 * made, each grid point replaces the one before. Private to src/sched. */
#ifndef SLUICE_SCHED_PREFIX_H
#define SLUICE_SCHED_PREFIX_H

#include "sched/blocks.h"
#include "sched/request.h"

struct offload;

struct snapshot {
    int32_t block;      /* whose end it belongs to; -1 = free, -2 = reserved, not yet or not for the cache */
    int gain;           /* tokens between it and the snapshot before it when it was taken */
    uint64_t last_used; /* clock of the cache */
    int resuming;       /* requests that start from it in the step under way: not to be overwritten */
};

struct prefix_cache {
    struct block_pool *pool;
    int32_t *buckets; /* [n_buckets] heads of chains; a power of two */
    uint32_t n_buckets;
    uint64_t seed[2]; /* of the hash, random at each start */
    int32_t *tokens;  /* [n_blocks, block_size] of cached blocks */
    bool enabled, has_state;
    int grid;                   /* positions where snapshots may be: a multiple of the block size */
    int first_slot;             /* snapshot i lives in state slot first_slot + i */
    struct snapshot *snapshots; /* [n_snapshots] */
    int n_snapshots;
    uint64_t clock;
    int n_fetching;          /* requests whose prefix is being read from disk */
    struct offload *offload; /* where things go that are given up (sched/prefix_disk.h); NULL = nowhere */
    uint64_t (*keys)[2];     /* [n_blocks] of cached blocks: what they are called there; NULL without */
};

/* n_snapshots may be 0; ignored without state. Installs itself as the pool's `forget`. */
void prefix_init(struct prefix_cache *c, struct block_pool *pool, bool enabled, bool has_state,
                 int first_slot, int n_snapshots);
void prefix_free(struct prefix_cache *c);

/* What a lookup found. */
struct prefix_match {
    int shared; /* tokens whose keys and values are there */
    int usable; /* tokens that need not be computed: less than n_tokens, and where state is kept */
};

/* Gives back what prefix_take took, when r cannot be admitted after all. */
void prefix_give_back(struct prefix_cache *c, struct sluice_request *r);

/* Looks up r's tokens and, for what is usable, takes the blocks into r's (empty) table. Sets r->n_computed,
 * and r->state_from for the next step. Finds nothing for requests that want their prompt scored. */
struct prefix_match prefix_take(struct prefix_cache *c, struct sluice_request *r);

/* After a step: makes r's newly filled blocks known, and attaches the snapshots of its saves. */
void prefix_learn(struct prefix_cache *c, struct sluice_request *r);

/* Positions in (r->n_computed, r->n_computed + count] after which the step should save r's state: fills
 * r->saves and takes slots for them. */
void prefix_plan_saves(struct prefix_cache *c, struct sluice_request *r, int count);

/* A slot outside of the cache's knowledge, for a state that somebody keeps for a while (sched/fork.h); it is
 * not given up before prefix_drop_state. -1 if there is none. Also while the cache is off. */
int prefix_keep_state(struct prefix_cache *c);
/* r's next step starts from the state in such a slot. */
void prefix_resume_from(struct prefix_cache *c, struct sluice_request *r, int slot);
void prefix_drop_state(struct prefix_cache *c, int slot);

/* --- for sched/prefix_disk.c --- */
/* The cached block with this key; -1 if there is none. */
int32_t prefix_find(const struct prefix_cache *c, int32_t parent, const uint64_t *salt,
                    const int32_t *tokens);
/* Makes a block known under its key, which no other has. */
void prefix_enter(struct prefix_cache *c, int32_t block, int32_t parent, const uint64_t *salt,
                  const int32_t *tokens);
/* A snapshot slot to fill, -1 if there is none; and binding it to the block at whose end its state is. */
int prefix_reserve_snapshot(struct prefix_cache *c);
void prefix_attach_snapshot(struct prefix_cache *c, int i, int32_t block, int gain);

#endif
