#include "sched/blocks.h"

#include <stdlib.h>

#include "base/mem.h"

void block_pool_init(struct block_pool *p, int n_blocks, int block_size)
{
    *p = (struct block_pool){
        .n_free = n_blocks, .n_blocks = n_blocks, .block_size = block_size, .oldest = -1, .newest = -1};
    p->free = mem_zalloc((size_t)n_blocks, sizeof *p->free);
    p->blocks = mem_zalloc((size_t)n_blocks, sizeof *p->blocks);
    for (int i = 0; i < n_blocks;
         i++) { /* block 0 on top: low blocks are used first, so untouched memory stays so */
        p->free[i] = n_blocks - 1 - i;
        p->blocks[i].snapshot = p->blocks[i].older = p->blocks[i].newer = p->blocks[i].chain = -1;
    }
}

void block_pool_free(struct block_pool *p)
{
    free(p->free);
    free(p->blocks);
    p->free = NULL;
    p->blocks = NULL;
}

static void idle_remove(struct block_pool *p, int32_t i)
{
    struct block *b = &p->blocks[i];
    *(b->older >= 0 ? &p->blocks[b->older].newer : &p->oldest) = b->newer;
    *(b->newer >= 0 ? &p->blocks[b->newer].older : &p->newest) = b->older;
    b->older = b->newer = -1;
    p->n_idle--;
}

static void idle_append(struct block_pool *p, int32_t i)
{
    struct block *b = &p->blocks[i];
    b->older = p->newest;
    b->newer = -1;
    *(p->newest >= 0 ? &p->blocks[p->newest].newer : &p->oldest) = i;
    p->newest = i;
    p->n_idle++;
}

void block_ref(struct block_pool *p, int32_t block)
{
    if (p->blocks[block].refs++ == 0)
        idle_remove(p, block);
}

static void block_unref(struct block_pool *p, int32_t block)
{
    struct block *b = &p->blocks[block];
    if (--b->refs > 0)
        return;
    if (b->cached)
        idle_append(p, block);
    else
        p->free[p->n_free++] = block;
}

bool block_table_grow(struct block_pool *p, struct block_table *t, int n_tokens)
{
    int more = blocks_for(p, n_tokens) - t->n;
    if (more > blocks_available(p))
        return false;
    for (; more > 0; more--) {
        int32_t block;
        if (p->n_free > 0) {
            block = p->free[--p->n_free];
        } else {
            block = p->oldest;
            idle_remove(p, block);
            p->forget(p->forget_arg, block);
        }
        p->blocks[block].refs = 1;
        t->blocks[t->n++] = block;
    }
    return true;
}

void block_table_clear(struct block_pool *p, struct block_table *t)
{
    while (t->n > 0)
        block_unref(p, t->blocks[--t->n]);
}
