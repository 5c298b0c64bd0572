/* An arena: allocations that live and die together, those of one parsed template or of one render. Nothing is
 * freed singly; the total is bounded. Zero-initialise it with its limit: `struct arena a = {.limit = n};`. */
#ifndef SLUICE_CHAT_ARENA_H
#define SLUICE_CHAT_ARENA_H

#include <stddef.h>

struct arena_block;

struct arena {
    struct arena_block *blocks; /* newest first; the newest has the free space */
    char *free, *end;
    size_t used, limit; /* bytes taken from the system, and how many may be */
};

/* Uninitialised memory for count items of `size` bytes, aligned for any value; NULL past the limit, on
 * overflow and when the system refuses. */
void *jinja_arena_alloc(struct arena *a, size_t count, size_t size);
void jinja_arena_free(struct arena *a);

#endif
