/* Small bookkeeping allocations. These abort with a message when the system has no memory left: their
 * sizes are bounded by limits checked elsewhere, and there is no useful way to go on. Sizes that come
 * from a file or a client are checked against a limit first and use mem_try_alloc. */
#ifndef SLUICE_BASE_MEM_H
#define SLUICE_BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t bytes);                         /* uninitialised */
void *mem_zalloc(size_t count, size_t size);           /* zeroed; aborts if count * size overflows */
void *mem_realloc(void *p, size_t count, size_t size); /* aborts if count * size overflows */
char *mem_strdup(const char *s);                       /* s may be NULL: returns NULL */
char *mem_strndup(const char *s, size_t n);            /* copies exactly n bytes and adds a NUL */
void *mem_try_alloc(size_t count, size_t size);        /* zeroed; NULL on overflow or no memory */

/* Large long-lived memory (weights, KV pool, scratch): anonymous, zeroed, page aligned, huge pages where
 * the system grants them. NULL if the system refuses. Freed with mem_unmap and the same size. */
void *mem_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

/* Bytes of memory this process may use: the smaller of RAM and the limits of its cgroup and of those around
 * it. */
size_t mem_total(void);
/* Bytes that could be had now without swapping: the kernel's MemAvailable, or what the cgroups' limits leave;
 * SIZE_MAX if nobody says. */
size_t mem_available(void);
/* What the process's own cgroup and those around it say (v1 and v2, by /proc/self/cgroup): the lowest limit,
 * and the least that a limit leaves beside what is in use, page cache not counted. SIZE_MAX where there is
 * none. `root` goes before every path: "" but in tests. */
void mem_cgroup(const char *root, size_t *limit, size_t *left);
/* Resident set size of this process in bytes. */
size_t mem_resident(void);

#endif
