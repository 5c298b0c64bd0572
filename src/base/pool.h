/* The thread pool: parallel loops over the items of one op (rows of a matrix, heads, tokens).
 *
 * Threads claim chunks of items from an atomic counter, because cores are shared and uneven: with a
 * static split everyone waits for the slowest. A job is over when its *items* are done, not when every
 * worker has shown up, so a worker whose core was taken away delays nobody unless it holds a chunk.
 * Workers spin briefly between jobs (a decode step is hundreds of jobs) and then sleep.
 *
 * Which thread runs which item is not fixed; an item's result must not depend on it (law 3). */
#ifndef SLUICE_BASE_POOL_H
#define SLUICE_BASE_POOL_H

#include <stdint.h>

#include "base/error.h"

struct pool;

/* Runs items begin … end-1. `thread` (0 … n_threads-1) is for per-thread scratch only. */
typedef void pool_fn(void *arg, int64_t begin, int64_t end, int thread);

/* A pool of n_threads threads, the caller of pool_run among them (so n_threads - 1 are started).
 * n_threads is 1 … 1024. NULL and *e on failure. */
struct pool *pool_create(int n_threads, struct err *e);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);

/* Runs fn over items 0 … n_items-1, `chunk` at a time (at least 1), and returns when all are done.
 * One caller at a time. Up to 2^39 items. */
void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t n_items, int64_t chunk);

/* Number of CPUs this process may run on (affinity and cgroup quota respected), at least 1. */
int pool_cpu_count(void);

#endif
