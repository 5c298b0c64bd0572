/* The op interface: what a back end (CPU now, CUDA later) does for a model.
 *
 * Buffers are `float *` handed out by the back end (device memory on a GPU); models pass them on and never
 * look inside. Matrices are opaque: each back end repacks them for itself at load. Ops run in call order.
 *
 * Law 1: a matmul reads each byte of its matrices once, however many tokens it is given; the back end
 *        counts those bytes in `count`, and the reads of each matrix in mat->reads.
 * Law 3: every output element's reduction runs in an order fixed by the shapes and absolute positions,
 *        never by n_tokens, the other rows, or the number of threads.
 * Law 4: nothing is allocated after backend_reserve. */
#ifndef SLUICE_OPS_OPS_H
#define SLUICE_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"
#include "ops/batch.h"
#include "quant/dtype.h"

/* A weight matrix in the back end's own layout. y = W x, W: [rows (outputs), cols (inputs)]. */
struct mat {
    int64_t rows, cols;
    enum dtype dtype; /* of the source */
    size_t bytes;     /* streamed by one matmul */
    uint64_t reads;   /* matmuls that streamed it since load (the ledger and law 1's test) */
};

/* Where a matrix comes from. */
struct mat_source {
    enum dtype dtype;
    int64_t rows, cols;
    const void *data; /* [rows, cols] in dtype's blocks, row after row; may be unaligned */
    const int32_t
        *row_map; /* NULL, or [rows]: row r of the matrix is row row_map[r] of data (GGUF's permuted q/k) */
};

/* One of several matrices applied to the same input, so that it is read and quantised once. */
struct mat_use {
    const struct mat *w;
    const float *bias; /* [rows] or NULL */
    float *out;        /* [n_tokens, rows] */
    bool add;          /* out += W x (+ bias) instead of out = */
};

/* The paged KV cache. Layout: [block][layer][k, v][kv head][slot in block][head_dim], so that one block of
 * all layers is contiguous (copied, swapped and freed as one).
 *
 * DT_I8: a row of head_dim values is stored as integers of -127 … 127 and one float scale, value = integer *
 * scale; after the block's slots of a head follow their scales. Of keys not the values are stored but their
 * Walsh-Hadamard transform, in blocks of the largest power of two that divides head_dim: it spreads the few
 * loud dimensions that keys have, which would leave nothing of the others in 8 bits. Products with a query
 * that is transformed too are the same, but for the factor of a block's length. */
struct kv_cache {
    void *data;
    enum dtype dtype; /* DT_F32, DT_F16, DT_BF16 or DT_I8 */
    int n_layers;     /* layers that have KV: attention layers, counted from 0 */
    int n_blocks, block_size, n_kv_heads, head_dim;
};

/* Bytes of one token's keys (or values) of one kv head. */
static inline size_t kv_row_bytes(enum dtype dtype, int head_dim)
{
    size_t value = dtype == DT_F32 ? 4 : dtype == DT_I8 ? 1 : 2;
    return (size_t)head_dim * value + (dtype == DT_I8 ? sizeof(float) : 0);
}

struct attention {
    const float *q; /* [n_tokens, n_heads, head_dim], normed and roped */
    float *out;     /* [n_tokens, n_heads, head_dim] */
    int layer;      /* KV layer */
    int n_heads; /* a multiple of the cache's n_kv_heads: head h reads kv head h / (n_heads / n_kv_heads) */
    float scale; /* on q·k */
    int window;  /* 0, or only the last `window` positions (the token's own included) are seen */
};

/* Rotary embedding of the first 2*n_freq dimensions of each head as two halves (rotate-half):
 * (x[i], x[i+n_freq]) turned by position * inv_freq[i], times `magnitude`. */
struct rope {
    const float *inv_freq; /* [n_freq], host memory */
    int n_freq;
    float magnitude; /* 1 unless the scaling type asks otherwise */
};

/* Recurrent states are DT_F32, or DT_BF16: then rounded to it (nearest even) after every token, so that it
 * does not matter where a step ends; results are taken before the rounding. */

/* Gated delta net, one layer (shared/qwen3.5.md). Per value head h with key head kh(h), token by token:
 *   S ← exp(g) S;  S ← S + k ⊗ (beta (v − Sᵀk));  o = Sᵀq,
 * q = l2norm(q)/sqrt(Dk), k = l2norm(k), beta = sigmoid(b), g = −exp(A_log) softplus(a + dt_bias),
 * l2norm(x) = x / sqrt(Σx² + eps). */
struct delta_net {
    int n_k_heads, n_v_heads, k_dim, v_dim; /* heads and their dimensions; k_dim for q and k */
    bool tiled;             /* kh(h) = h mod n_k_heads (GGUF's order), else h / (n_v_heads / n_k_heads) */
    const float *neg_exp_a; /* [n_v_heads] −exp(A_log) */
    const float *dt_bias;   /* [n_v_heads] */
    float eps;
    const float *qkv;    /* [n_tokens, 2*n_k_heads*k_dim + n_v_heads*v_dim] after conv and silu: q | k | v */
    const float *a, *b;  /* [n_tokens, n_v_heads] raw projections */
    float *out;          /* [n_tokens, n_v_heads, v_dim] */
    void *state;         /* slot 0's S of this layer [n_v_heads, k_dim, v_dim] */
    size_t state_stride; /* bytes from one slot to the next */
    enum dtype state_dtype; /* DT_F32 or DT_BF16 */
};

/* Causal depthwise convolution + silu, kernel K over the channel's K-1 previous raw inputs (kept in state).
 */
struct conv1d {
    int channels, kernel;
    const float *weight;    /* [channels, kernel], newest input last */
    const float *x;         /* [n_tokens, channels] raw */
    float *out;             /* [n_tokens, channels]; may not alias x */
    void *state;            /* slot 0's state of this layer [kernel-1, channels], oldest first */
    size_t state_stride;    /* bytes from one slot to the next */
    enum dtype state_dtype; /* DT_F32 or DT_BF16 */
};

/* What the ops did since the counters were last cleared: the raw material of the ledger. */
struct op_counts {
    uint64_t weight_bytes, kv_read_bytes, kv_write_bytes, state_bytes;
    uint64_t flops; /* multiply-adds of matmuls and attention, times two */
};

struct backend;

struct backend_ops {
    const char *name; /* "cpu/avx512" */
    void (*destroy)(struct backend *b);

    /* --- memory and weights (load time) --- */
    void *(*alloc)(struct backend *b, size_t bytes, struct err *e); /* zeroed; 64-byte aligned */
    void (*release)(struct backend *b, void *p, size_t bytes);
    void (*write)(struct backend *b, void *dst, const void *src, size_t bytes); /* host to back end */
    void (*read)(struct backend *b, void *dst, const void *src,
                 size_t bytes); /* back end to host; waits for the ops */
    bool (*mat_supported)(enum dtype dtype);
    size_t (*mat_bytes)(enum dtype dtype, int64_t rows,
                        int64_t cols); /* memory a matrix will take: for the plan */
    struct mat *(*mat_create)(struct backend *b, const struct mat_source *src, struct err *e);
    void (*mat_free)(struct backend *b, struct mat *m);

    /* Scratch for steps of up to max_tokens tokens over matrices of up to max_cols columns. mat_scratch tells
     * the plan how many bytes that takes. */
    size_t (*scratch_bytes)(const struct backend *b, int max_tokens, int64_t max_cols);
    int (*reserve)(struct backend *b, int max_tokens, int64_t max_cols, struct err *e);

    /* Host work on the back end's CPU threads (threads(b) of them), between ops: fn over items 0 … n-1 as
     * pool_run does, one at a time. Each item's result must not depend on the thread. */
    int (*threads)(const struct backend *b);
    void (*parallel)(struct backend *b, pool_fn *fn, void *arg, int64_t n);

    /* --- the step --- */
    /* out [n, cols] = rows ids[i] of m, times scale. ids are host memory, checked by the caller. */
    void (*embed)(struct backend *b, const struct mat *m, const int32_t *ids, int n, float scale, float *out);
    /* x [n_tokens, cols]; uses [n_uses], all with the same cols. out must not alias x. */
    void (*matmul)(struct backend *b, const float *x, int n_tokens, struct mat_use *uses, int n_uses);
    /* Rows of dim values: out = x / sqrt(mean(x²) + eps) * w. w [dim]. in/out strides in floats; out may be
     * x. */
    void (*rmsnorm)(struct backend *b, const float *x, size_t x_stride, const float *w, float eps,
                    int64_t rows, int dim, float *out, size_t out_stride);
    /* x [n_tokens, stride]: n_heads heads of head_dim from the row's start, in place. positions host memory.
     */
    void (*rope)(struct backend *b, float *x, size_t stride, int n_heads, int head_dim, const struct rope *r,
                 const int32_t *positions, int n_tokens);
    /* Stores k, v [n_tokens, n_kv_heads, head_dim] of the batch's tokens. Values beyond the dtype's range are
     * clamped; DT_I8: scale = max |value| / 127 of the row, integer = value / scale to the nearest. */
    void (*kv_write)(struct backend *b, struct kv_cache *c, int layer, const float *k, const float *v,
                     const struct batch *batch);
    /* Online softmax over positions 0 … p of the token's sequence (after kv_write), block by block in order.
     */
    void (*attention)(struct backend *b, const struct kv_cache *c, const struct attention *a,
                      const struct batch *batch);
    void (*silu_mul)(struct backend *b, float *gate, const float *up, int64_t n); /* gate = silu(gate) * up */
    void (*gelu_mul)(struct backend *b, float *gate, const float *up,
                     int64_t n); /* gate = gelu_tanh(gate) * up */
    void (*sigmoid_mul)(struct backend *b, float *x, const float *gate, int64_t n); /* x *= sigmoid(gate) */
    void (*add)(struct backend *b, float *x, const float *y, int64_t n);            /* x += y */
    /* out [n, dim]: rows of x [.., dim] chosen by index (host memory). */
    void (*gather)(struct backend *b, const float *x, const int32_t *index, int n, int dim, float *out);
    /* out [rows, w] : columns c0 … c0+w-1 of each of n_groups groups of x [rows, n_groups, group]: splits
     * q|gate. */
    void (*slice)(struct backend *b, const float *x, int64_t rows, int n_groups, int group, int c0, int w,
                  float *out);
    void (*conv1d)(struct backend *b, const struct conv1d *c, const struct batch *batch);
    void (*delta_net)(struct backend *b, const struct delta_net *d, const struct batch *batch);
};

struct backend {
    const struct backend_ops *ops;
    struct op_counts count;
};

/* The CPU back end with n_threads threads. level: "reference" (plain C over dequantised rows and fp32
 * activations: the definition that fast paths are checked against), "avx2", "avx512", or NULL for the best
 * the CPU has, which the environment variable SLUICE_CPU overrides. NULL and *e if the level is unknown or
 * not on this CPU. */
struct backend *backend_cpu(const char *level, int n_threads, struct err *e);
/* Comma-separated levels this CPU can run, best first: "avx512,avx2,reference". */
const char *backend_cpu_levels(void);

#endif
