/* The operations of a fast level, by file. */
#ifndef SLUICE_OPS_CPU_KERNELS_H
#define SLUICE_OPS_CPU_KERNELS_H

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels/simd.h"

/* Scratch (cpu->scratch): one area a thread, then the quantised activations. A thread's area holds expanded
 * blocks and sums of tokens, or a chunk of K and V (2 * P floats a column of head_dim <= max_cols) and up to
 * 16K floats of rows, as sums and in 16 bits (attention.c), or a head's normalised q and k. */
static inline size_t thread_scratch_bytes(int max_tokens, int64_t max_cols)
{
    size_t expanded = 64 * 1024 + (size_t)max_tokens * 2 * V, keys = (size_t)(max_cols + P) * 2 * V;
    size_t rows = 96 * 1024 + (size_t)(max_cols + P) * 6;
    size_t attention = (keys > 64 * 1024 ? keys : 64 * 1024) + (rows + 63) / 64 * 64;
    return expanded > attention ? expanded : attention;
}
static inline uint8_t *thread_scratch(const struct cpu *c, int thread)
{
    return (uint8_t *)c->scratch + (size_t)thread * thread_scratch_bytes(c->max_tokens, c->max_cols);
}

static inline int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* matmul.c */
size_t LEVEL_NAME(cpu_scratch_bytes)(const struct backend *b, int max_tokens, int64_t max_cols);
void LEVEL_NAME(cpu_matmul)(struct backend *b, const float *x, int n_tokens, struct mat_use *uses,
                            int n_uses);
void LEVEL_NAME(cpu_embed)(struct backend *b, const struct mat *m, const int32_t *ids, int n, float scale,
                           float *out);

/* elementwise.c */
void LEVEL_NAME(cpu_rmsnorm)(struct backend *b, const float *x, size_t x_stride, const float *w, float eps,
                             int64_t rows, int dim, float *out, size_t out_stride);
void LEVEL_NAME(cpu_rope)(struct backend *b, float *x, size_t stride, int n_heads, int head_dim,
                          const struct rope *r, const int32_t *positions, int n_tokens);
void LEVEL_NAME(cpu_silu_mul)(struct backend *b, float *x, const float *y, int64_t n);
void LEVEL_NAME(cpu_gelu_mul)(struct backend *b, float *x, const float *y, int64_t n);
void LEVEL_NAME(cpu_sigmoid_mul)(struct backend *b, float *x, const float *y, int64_t n);
void LEVEL_NAME(cpu_add)(struct backend *b, float *x, const float *y, int64_t n);

/* attention.c */
void LEVEL_NAME(cpu_kv_write)(struct backend *b, struct kv_cache *c, int layer, const float *k,
                              const float *v, const struct batch *batch);
void LEVEL_NAME(cpu_attention)(struct backend *b, const struct kv_cache *c, const struct attention *a,
                               const struct batch *batch);

/* recurrent.c */
void LEVEL_NAME(cpu_conv1d)(struct backend *b, const struct conv1d *c, const struct batch *batch);
void LEVEL_NAME(cpu_delta_net)(struct backend *b, const struct delta_net *d, const struct batch *batch);

/* Runs fn over n items that cost about `cost` fp32 operations each: in the calling thread where waking
 * others would take longer, else in chunks, a few for every thread. */
static inline void run_items(struct backend *b, pool_fn *fn, void *arg, int64_t n, int64_t cost)
{
    struct pool *pool = cpu_of(b)->pool;
    int64_t least = (16384 + cost) / (cost + 1), fair = n / (4 * pool_threads(pool));
    pool_run(pool, fn, arg, n, least > fair ? least : fair);
}

#endif
