/* Measures memory bandwidth and arithmetic peaks (limits.h). */
#include "ops/cpu/limits.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/cpu/cpu.h"

#define READ_BYTES  (INT64_C(512) << 20) /* well beyond any cache that counts */
#define READ_CHUNK  (INT64_C(256) << 10)
#define REPEATS     7
#define ROUNDS      20000
#define ROUND_ITEMS 64

struct limit_job {
    const struct cpu_peak *peak;
    uint8_t *buffer;
    enum { READ, FP32, INT8, BF16 } kind;
    _Atomic int sink;
};

static void limit_items(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    struct limit_job *j = arg;
    float x = 0;
    for (int64_t i = begin; i < end; i++) {
        if (j->kind == READ)
            x += j->peak->read(j->buffer + i * READ_CHUNK, READ_CHUNK);
        else
            x += (j->kind == FP32 ? j->peak->fp32 : j->kind == INT8 ? j->peak->int8 : j->peak->bf16)(ROUNDS);
    }
    j->sink += x > 0.5f;
}

static void fill(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    struct limit_job *j = arg;
    memset(j->buffer + begin * READ_CHUNK, 0,
           (size_t)((end - begin) * READ_CHUNK)); /* makes the pages real */
}

static bool cpu_has_bf16(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* Seconds of the fastest repeat. */
static double best(struct pool *pool, struct limit_job *j, int kind, int64_t items)
{
    double least = 0;
    j->kind = kind;
    for (int i = 0; i < REPEATS; i++) {
        double start = clock_now();
        pool_run(pool, limit_items, j, items, 1);
        double t = clock_now() - start;
        if (i == 0 || t < least)
            least = t;
    }
    return least;
}

int cpu_limits_measure(const char *level, int n_threads, struct cpu_limits *out, struct err *e)
{
    struct backend *b = backend_cpu(level, n_threads, e);
    if (!b)
        return -1;
    struct limit_job j = {.peak = cpu_peak_of(b->ops), .buffer = mem_map(READ_BYTES)};
    int rc = -1;
    if (!j.buffer) {
        err_set(e, ERR_NO_MEMORY, "the system refused %d MB to measure memory with", (int)(READ_BYTES >> 20));
        goto done;
    }
    struct pool *pool = cpu_of(b)->pool;
    pool_run(pool, fill, &j, READ_BYTES / READ_CHUNK, 8);
    double work = 1e-9 * ROUNDS * ROUND_ITEMS;
    out->read_gbs = 1e-9 * (double)READ_BYTES / best(pool, &j, READ, READ_BYTES / READ_CHUNK);
    out->fp32_gflops = work * j.peak->fp32_ops / best(pool, &j, FP32, ROUND_ITEMS);
    out->int8_gops = work * j.peak->int8_ops / best(pool, &j, INT8, ROUND_ITEMS);
    out->bf16_gflops = 0;
    if (j.peak->bf16 && cpu_has_bf16())
        out->bf16_gflops = work * j.peak->bf16_ops / best(pool, &j, BF16, ROUND_ITEMS);
    rc = 0;
done:
    mem_unmap(j.buffer, READ_BYTES);
    b->ops->destroy(b);
    return rc;
}

/* --- the reference level's loops: what a compiler makes of plain C --- */

static float read_plain(const void *p, size_t bytes)
{
    uint64_t sum[8] = {0};
    const uint8_t *at = p, *end = at + bytes;
    for (; at < end; at += 64) {
        uint64_t v[8];
        memcpy(v, at, 64);
        for (int i = 0; i < 8; i++)
            sum[i] += v[i];
    }
    return (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
}

static float fp32_plain(int64_t rounds)
{
    volatile float seed = 0.999f;
    float acc[48], factor = seed;
    for (int i = 0; i < 48; i++)
        acc[i] = (float)i;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 48; i++)
            acc[i] = acc[i] * factor + factor;
    float total = 0;
    for (int i = 0; i < 48; i++)
        total += acc[i];
    return total;
}

static float int8_plain(int64_t rounds)
{
    volatile int8_t seed = 3;
    int8_t a[64], x[64];
    for (int i = 0; i < 64; i++) {
        a[i] = (int8_t)(i + seed);
        x[i] = (int8_t)(i * seed);
    }
    int32_t total = 0;
    for (int64_t r = 0; r < rounds; r++) {
        int32_t sum = 0;
        for (int i = 0; i < 64; i++)
            sum += a[i] * x[i];
        total += sum;
        x[r & 63] = (int8_t)total;
    }
    return (float)total;
}

const struct cpu_peak cpu_peak_reference = {
    .read = read_plain, .fp32 = fp32_plain, .int8 = int8_plain, .fp32_ops = 2.0 * 48, .int8_ops = 2.0 * 64};
