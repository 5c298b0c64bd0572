#include "chat/arena.h"

#include <stdalign.h>
#include <stdlib.h>

#define FIRST_BLOCK ((size_t)8 << 10)
#define LAST_BLOCK  ((size_t)1 << 20)

struct arena_block {
    struct arena_block *older;
    alignas(max_align_t) char data[];
};

void *jinja_arena_alloc(struct arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > a->limit)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->free || bytes > (size_t)(a->end - a->free)) {
        /* Blocks grow with what was used, so that a small render stays small and a large one is not slow. */
        size_t block = a->used < FIRST_BLOCK ? FIRST_BLOCK : a->used > LAST_BLOCK ? LAST_BLOCK : a->used;
        if (block < bytes)
            block = bytes;
        if (block > a->limit - a->used)
            block = bytes;
        if (block > a->limit - a->used)
            return NULL;
        struct arena_block *b = malloc(sizeof *b + block);
        if (!b)
            return NULL;
        b->older = a->blocks;
        a->blocks = b;
        a->free = b->data;
        a->end = b->data + block;
        a->used += block;
    }
    void *p = a->free;
    a->free += bytes;
    return p;
}

void jinja_arena_free(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *older = a->blocks->older;
        free(a->blocks);
        a->blocks = older;
    }
    a->free = a->end = NULL;
    a->used = 0;
}
