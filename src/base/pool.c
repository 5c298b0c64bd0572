/* One 64-bit word holds the job's generation and the next unclaimed item. A worker claims by compare and
 * swap on that word, so a claim succeeds only for the very job whose fn and arg it has read: before those
 * are overwritten the word is closed (a new generation with nothing to claim), and they are stored with
 * release and read with acquire, so whoever sees a new field also sees that the old word is gone. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

#define NEXT_BITS   40
#define NEXT_MASK   ((UINT64_C(1) << NEXT_BITS) - 1)
#define SPIN_WORKER 20000 /* pauses before a worker sleeps: about the longest serial gap inside a step */
#define SPIN_CALLER 2000  /* pauses before the caller yields its core while waiting for the last chunk */

struct pool {
    int n_threads;
    pthread_t *workers;                 /* [n_threads - 1] */
    _Alignas(64) _Atomic uint64_t word; /* generation << NEXT_BITS | next item */
    _Alignas(64) _Atomic int64_t done;  /* items finished */
    _Alignas(64) _Atomic uint32_t gen;  /* bumped with every job: what sleepers wait on */
    _Atomic int sleepers;
    _Atomic int stop;
    _Atomic(pool_fn *) fn;
    void *_Atomic arg;
    _Atomic int64_t n_items, chunk;
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Claims and runs chunks of the current job until none is left. */
static void work(struct pool *p, int thread)
{
    for (;;) {
        uint64_t w = atomic_load_explicit(&p->word, memory_order_acquire);
        int64_t next = (int64_t)(w & NEXT_MASK);
        int64_t n = atomic_load_explicit(&p->n_items, memory_order_acquire);
        int64_t chunk = atomic_load_explicit(&p->chunk, memory_order_acquire);
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&p->arg, memory_order_acquire);
        if (next >= n)
            return;
        int64_t end = next + chunk < n ? next + chunk : n;
        uint64_t claimed = (w & ~NEXT_MASK) | (uint64_t)end;
        if (!atomic_compare_exchange_strong(&p->word, &w, claimed))
            continue;
        fn(arg, next, end, thread);
        atomic_fetch_add_explicit(&p->done, end - next, memory_order_release);
    }
}

struct worker_arg {
    struct pool *p;
    int thread;
};

static void *worker_main(void *varg)
{
    struct worker_arg a = *(struct worker_arg *)varg;
    free(varg);
    struct pool *p = a.p;
    uint32_t seen = 0;
    for (;;) {
        uint32_t g = atomic_load_explicit(&p->gen, memory_order_acquire);
        for (int i = 0; g == seen && i < SPIN_WORKER; i++) {
            cpu_pause();
            g = atomic_load_explicit(&p->gen, memory_order_acquire);
        }
        if (g == seen) {
            atomic_fetch_add(&p->sleepers, 1);
            syscall(SYS_futex, &p->gen, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_fetch_sub(&p->sleepers, 1);
            continue;
        }
        seen = g;
        if (atomic_load(&p->stop))
            return NULL;
        work(p, a.thread);
    }
}

/* Announces a new generation to spinning and sleeping workers. */
static void announce(struct pool *p)
{
    atomic_fetch_add(&p->gen, 1);
    if (atomic_load(&p->sleepers) > 0)
        syscall(SYS_futex, &p->gen, FUTEX_WAKE_PRIVATE, p->n_threads, NULL, NULL, 0);
}

struct pool *pool_create(int n_threads, struct err *e)
{
    if (n_threads < 1 || n_threads > 1024) {
        err_set(e, ERR_INVALID, "thread count %d is outside 1 … 1024", n_threads);
        return NULL;
    }
    struct pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) {
        err_set(e, ERR_NO_MEMORY, "no memory for the thread pool");
        return NULL;
    }
    *p = (struct pool){.n_threads = 1};
    p->workers = mem_zalloc((size_t)n_threads, sizeof *p->workers);
    for (int i = 1; i < n_threads; i++) {
        struct worker_arg *a = mem_alloc(sizeof *a);
        *a = (struct worker_arg){p, i};
        int rc = pthread_create(&p->workers[i - 1], NULL, worker_main, a);
        if (rc) {
            free(a);
            err_set(e, ERR_IO, "the system refused thread %d of %d (error %d): use fewer --threads", i + 1,
                    n_threads, rc);
            pool_free(p);
            return NULL;
        }
        p->n_threads = i + 1;
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    announce(p);
    for (int i = 0; i < p->n_threads - 1; i++)
        pthread_join(p->workers[i], NULL);
    free(p->workers);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t n_items, int64_t chunk)
{
    if (n_items <= 0)
        return;
    if (chunk < 1)
        chunk = 1;
    if (p->n_threads == 1 || n_items <= chunk) {
        for (int64_t i = 0; i < n_items; i += chunk)
            fn(arg, i, i + chunk < n_items ? i + chunk : n_items, 0);
        return;
    }
    uint64_t generation = atomic_load_explicit(&p->word, memory_order_relaxed) >> NEXT_BITS;
    atomic_store(&p->word, (generation + 1) << NEXT_BITS | NEXT_MASK); /* closed */
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    atomic_store_explicit(&p->chunk, chunk, memory_order_release);
    atomic_store_explicit(&p->n_items, n_items, memory_order_release);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->word, (generation + 2) << NEXT_BITS); /* open at item 0 */
    announce(p);
    work(p, 0);
    for (int i = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n_items; i++) {
        if (i < SPIN_CALLER)
            cpu_pause();
        else
            sched_yield();
    }
}

int pool_cpu_count(void)
{
    cpu_set_t set;
    int n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f) {
        long long quota, period;
        if (fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            int q = (int)((quota + period - 1) / period);
            if (q < n)
                n = q;
        }
        fclose(f);
    }
    return n < 1 ? 1 : n;
}
