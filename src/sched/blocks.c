#include "sched/blocks.h"

#include <stdlib.h>

#include "base/mem.h"

void block_pool_init(struct block_pool *p, int n_blocks, int block_size)
{
    *p = (struct block_pool){.n_free = n_blocks, .n_blocks = n_blocks, .block_size = block_size};
    p->free = mem_zalloc((size_t)n_blocks, sizeof *p->free);
    for (int i = 0; i < n_blocks;
         i++) /* block 0 on top: low blocks are used first, so untouched memory stays so */
        p->free[i] = n_blocks - 1 - i;
}

void block_pool_free(struct block_pool *p)
{
    free(p->free);
    p->free = NULL;
}

bool block_table_grow(struct block_pool *p, struct block_table *t, int n_tokens)
{
    int more = blocks_for(p, n_tokens) - t->n;
    if (more > p->n_free)
        return false;
    for (; more > 0; more--)
        t->blocks[t->n++] = p->free[--p->n_free];
    return true;
}

void block_table_clear(struct block_pool *p, struct block_table *t)
{
    while (t->n > 0)
        p->free[p->n_free++] = t->blocks[--t->n];
}
