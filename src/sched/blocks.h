/* The KV block pool: which blocks are in use, by how many requests, and what the others still remember.
 *
 * A block holds block_size positions of all layers. When no request uses it any more it is either free, or
 * *cached*: its content is known by a key (parent block, tokens), so that a later prompt can take it again
 * (sched/prefix.h). Cached blocks are given up, least recently used first, when the free ones run out: to the
 * scheduler both are available. Private to src/sched. */
#ifndef SLUICE_SCHED_BLOCKS_H
#define SLUICE_SCHED_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct block {
    int refs;            /* requests that use it */
    uint32_t generation; /* raised when its content is forgotten: stale links to it then fail */
    bool cached;         /* its key is in the prefix index */
    uint64_t hash;       /* of its key, while cached */
    int32_t parent;      /* key: the block before it, -1 for the first … */
    uint32_t parent_generation;
    uint64_t salt[2];     /* … and the tenant's digest; the tokens stand in prefix_cache.tokens */
    int32_t chain;        /* next in the hash bucket; -1 ends */
    int32_t older, newer; /* list of cached blocks without a user; -1 ends */
    int32_t snapshot;     /* recurrent state after its last position; -1 = none */
};

struct block_pool {
    struct block *blocks; /* [n_blocks] */
    int32_t *free;        /* [n_free] a stack of blocks without content */
    int n_free, n_blocks, block_size;
    int32_t oldest, newest; /* cached blocks without a user */
    int n_idle;             /* how many those are */
    /* Called before a cached block's content is given up. */
    void (*forget)(void *arg, int32_t block);
    void *forget_arg;
};

struct block_table {
    int32_t *blocks; /* [capacity], the first n in use: position p lives in blocks[p / block_size] */
    int n, capacity;
};

void block_pool_init(struct block_pool *p, int n_blocks, int block_size);
void block_pool_free(struct block_pool *p);

/* Blocks that n_tokens positions need in all. */
static inline int blocks_for(const struct block_pool *p, int n_tokens)
{
    return (n_tokens + p->block_size - 1) / p->block_size;
}

/* Blocks that can be had: free ones and cached ones without a user. */
static inline int blocks_available(const struct block_pool *p)
{
    return p->n_free + p->n_idle;
}

/* Adds one user to a cached block (taking it off the idle list). */
void block_ref(struct block_pool *p, int32_t block);

/* Grows the table to hold n_tokens positions. false, with nothing changed, if too few blocks are available.
 * The table's capacity is the caller's business: it was sized for the request's longest possible length. */
bool block_table_grow(struct block_pool *p, struct block_table *t, int n_tokens);
/* Gives all blocks back, the last first: of one sequence, the end is forgotten before the beginning. */
void block_table_clear(struct block_pool *p, struct block_table *t);

#endif
