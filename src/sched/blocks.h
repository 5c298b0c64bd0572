/* The KV block pool: which blocks are free, and each request's block table. A block holds block_size
 * positions of all layers; whose they are is only known by the tables. Private to src/sched. */
#ifndef SLUICE_SCHED_BLOCKS_H
#define SLUICE_SCHED_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct block_pool {
    int32_t *free; /* [n_free] a stack of free blocks */
    int n_free, n_blocks, block_size;
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

/* Grows the table to hold n_tokens positions. false, with nothing changed, if too few blocks are free. The
 * table's capacity is the caller's business: it was sized for the request's longest possible length. */
bool block_table_grow(struct block_pool *p, struct block_table *t, int n_tokens);
/* Gives all blocks back. */
void block_table_clear(struct block_pool *p, struct block_table *t);

#endif
