/* The CPU back end, private part. Each level is one table of operations over the same struct cpu:
 * reference.c and reference_seq.c are the definition in plain C; kernels/ holds the fast path, one source
 * built once for each instruction set. Memory, threads and the choice of level are shared (cpu.c). */
#ifndef SLUICE_OPS_CPU_CPU_H
#define SLUICE_OPS_CPU_CPU_H

#include "base/pool.h"
#include "ops/cpu/limits.h"
#include "ops/ops.h"

struct cpu {
    struct backend base; /* first: a struct backend * of this back end is a struct cpu * */
    struct pool *pool;
    int max_tokens; /* what backend_reserve was asked for */
    int64_t max_cols;
    void
        *scratch; /* ops->scratch_bytes(max_tokens, max_cols) bytes, 64-byte aligned; laid out by the level */
    size_t scratch_bytes;
};

static inline struct cpu *cpu_of(struct backend *b)
{
    return (struct cpu *)b;
}

/* Operations shared by all levels (cpu.c). */
void cpu_destroy(struct backend *b);
void *cpu_alloc(struct backend *b, size_t bytes, struct err *e);
void cpu_release(struct backend *b, void *p, size_t bytes);
void cpu_write(struct backend *b, void *dst, const void *src, size_t bytes);
void cpu_read(struct backend *b, void *dst, const void *src, size_t bytes);
int cpu_reserve(struct backend *b, int max_tokens, int64_t max_cols, struct err *e);
int cpu_threads(const struct backend *b);
void cpu_parallel(struct backend *b, pool_fn *fn, void *arg, int64_t n);
void cpu_gather(struct backend *b, const float *x, const int32_t *index, int n, int dim, float *out);
void cpu_slice(struct backend *b, const float *x, int64_t rows, int n_groups, int group, int c0, int w,
               float *out);

/* 0 if src is a matrix that a level can take (decodable type, whole blocks, a size that fits in memory, rows
 * in range); else -1 and *e. */
int cpu_check_source(const struct mat_source *src, struct err *e);

/* Counts one stream of w for n_tokens tokens. Rows gathered by embed are not a stream and not counted. */
void cpu_count_matmul(struct backend *b, const struct mat *w, int n_tokens);

/* Bytes of one KV value. */
static inline size_t kv_value_bytes(const struct kv_cache *c)
{
    return c->dtype == DT_F32 ? 4 : c->dtype == DT_I8 ? 1 : 2;
}

/* Bytes of a head's keys (or values) in one block. */
static inline size_t kv_plane_bytes(const struct kv_cache *c)
{
    return (size_t)c->block_size * kv_row_bytes(c->dtype, c->head_dim);
}

/* Values from the start of kv->data to slot 0 of `block`, head `head`: its slots follow one another, head_dim
 * values each. which: 0 for keys, 1 for values. */
static inline size_t kv_offset(const struct kv_cache *c, int32_t block, int layer, int which, int head)
{
    size_t plane =
        (((size_t)block * (size_t)c->n_layers + (size_t)layer) * 2 + (size_t)which) * (size_t)c->n_kv_heads +
        (size_t)head;
    return plane * (kv_plane_bytes(c) / kv_value_bytes(c));
}

/* DT_I8: where the scales of the head at kv_offset `plane` are, one float a slot, at any address. */
static inline char *kv_scales(const struct kv_cache *c, size_t plane)
{
    return (char *)c->data + plane + (size_t)c->block_size * (size_t)c->head_dim;
}

/* DT_I8: length of the blocks in which keys and queries are transformed. */
static inline int kv_block_length(int head_dim)
{
    return head_dim & -head_dim;
}

/* The transform, unscaled: sums and differences in one order, so that all levels come to the same bits. What
 * is larger than 1e30 counts as that, so that no sum is infinite. */
static inline void kv_transform(float *x, int head_dim)
{
    int n = kv_block_length(head_dim);
    for (int i = 0; i < head_dim; i++)
        x[i] = x[i] > 1e30f ? 1e30f : x[i] < -1e30f ? -1e30f : x[i]; /* NaN stays */
    for (int at = 0; at < head_dim; at += n)
        for (int half = n / 2; half > 0; half /= 2)
            for (int i = at; i < at + n; i += 2 * half)
                for (int j = i; j < i + half; j++) {
                    float a = x[j], b = x[j + half];
                    x[j] = a + b;
                    x[j + half] = a - b;
                }
}

/* DT_I8: the scale of a row whose largest |value| is `most`, or 0 where all of it is as good as zero. */
static inline float kv_scale_of(float most)
{
    return most < 0x1p-100f ? 0.0f : most / 127.0f;
}

/* Bytes of one value of a recurrent state. */
static inline size_t state_value_bytes(enum dtype dtype)
{
    return dtype == DT_F32 ? 4 : 2;
}

/* Whether a sequence's recurrent state starts, this step, as a copy of slot seq->state_from. */
static inline bool state_is_copied(const struct seq_slice *seq, const struct batch *batch)
{
    return seq->state_from > 0 && seq->state_from != seq->state_slot && batch->positions[seq->first] != 0;
}

/* Copies of one layer's state that a step makes beside its ordinary read and write. */
static inline uint64_t state_copies(const struct batch *batch)
{
    uint64_t n = 0;
    for (int s = 0; s < batch->n_seqs; s++)
        n += (uint64_t)batch->seqs[s].n_saves;
    return n;
}

/* First position that the token at `position` sees. */
static inline int attention_first(const struct attention *a, int position)
{
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

extern const struct backend_ops cpu_ops_reference;
extern const struct cpu_peak cpu_peak_reference;
#if defined(__x86_64__)
extern const struct backend_ops cpu_ops_avx2, cpu_ops_avx512;
extern const struct cpu_peak cpu_peak_avx2, cpu_peak_avx512;
#elif defined(__aarch64__)
extern const struct backend_ops cpu_ops_neon;
extern const struct cpu_peak cpu_peak_neon;
#endif

/* The loops that measure the limits of the level whose operations are ops. */
const struct cpu_peak *cpu_peak_of(const struct backend_ops *ops);

#endif
