/* The operations with a memory at decode: attention over long contexts, in GB/s of keys and values, and the
 * delta net, in GB/s of states, beside what the machine can read.
 *
 *     memory_bench [--level avx2] [--threads 2] [--seqs 1] [--context 4096] [--type i8] [--state]
 *
 * Layers follow one another until they exceed the last-level cache, as in a model. Best of several rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/limits.h"

#define POOL_BYTES (size_t)(256 << 20)
#define BLOCK_SIZE 16

static const struct {
    const char *what;
    int heads, kv_heads, dim;
} shapes[] = {
    {"SmolLM2-135M", 9, 3, 64}, {"Qwen2.5-0.5B", 14, 2, 64}, {"gemma-3-270m", 4, 1, 256},
    {"Qwen3.5-4B", 16, 4, 256}, {"Llama-3-8B", 32, 8, 128},
};

static const struct {
    const char *name;
    enum dtype dtype;
} types[] = {{"f32", DT_F32}, {"f16", DT_F16}, {"bf16", DT_BF16}, {"i8", DT_I8}};

static float random_float(void)
{
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) / 2147483648.0f;
}

static float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

struct setting {
    struct backend *b;
    const struct cpu_limits *limits;
    int n_seqs, context;
    const char *type; /* NULL = all */
};

/* Each sequence has one token to compute, at position context - 1. */
static struct batch decode(const struct setting *s, int blocks)
{
    struct seq_slice *seqs = calloc((size_t)s->n_seqs, sizeof *seqs);
    int32_t *positions = calloc((size_t)s->n_seqs, sizeof *positions);
    int32_t *table = malloc((size_t)(s->n_seqs * blocks + 1) * sizeof *table);
    for (int i = 0; i < s->n_seqs * blocks; i++)
        table[i] = i;
    for (int i = 0; i < s->n_seqs; i++) {
        seqs[i] = (struct seq_slice){
            .first = i, .count = 1, .kv_blocks = table + i * blocks, .state_slot = i, .n_logits = 1};
        positions[i] = s->context - 1;
    }
    return (struct batch){.n_tokens = s->n_seqs, .positions = positions, .n_seqs = s->n_seqs, .seqs = seqs};
}

static void batch_free(struct batch *batch)
{
    free((void *)batch->seqs[0].kv_blocks);
    free((void *)batch->seqs);
    free((void *)batch->positions);
}

/* Calls step(arg, i) for i = 0 … n-1, round after round; seconds of the best call. Single calls are timed, so
 * that on a busy machine some are undisturbed. */
static double best_of(void (*step)(void *arg, int i), void *arg, int n)
{
    double best = 1e9, until = clock_now() + 1.5;
    for (int round = 0; round < 3 || clock_now() < until; round++) {
        for (int i = 0; i < n; i++) {
            double start = clock_now();
            step(arg, i);
            double s = clock_now() - start;
            best = s < best ? s : best;
        }
    }
    return best;
}

struct attention_run {
    const struct setting *s;
    struct kv_cache cache;
    struct attention a;
    struct batch batch;
};

static void attention_step(void *arg, int layer)
{
    struct attention_run *r = arg;
    r->a.layer = layer;
    r->s->b->ops->attention(r->s->b, &r->cache, &r->a, &r->batch);
}

static void bench_attention(const struct setting *s, size_t shape, size_t type)
{
    int heads = shapes[shape].heads, kv_heads = shapes[shape].kv_heads, dim = shapes[shape].dim;
    int blocks = (s->context + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct attention_run r = {.s = s, .batch = decode(s, blocks)};
    r.cache = (struct kv_cache){.dtype = types[type].dtype,
                                .n_layers = 1,
                                .n_blocks = s->n_seqs * blocks,
                                .block_size = BLOCK_SIZE,
                                .n_kv_heads = kv_heads,
                                .head_dim = dim};
    size_t layer = 2 * (size_t)r.cache.n_blocks * (size_t)kv_heads * kv_plane_bytes(&r.cache);
    r.cache.n_layers = (int)(POOL_BYTES / layer) + 1;
    size_t bytes = layer * (size_t)r.cache.n_layers;
    struct err e = {0};
    r.cache.data = s->b->ops->alloc(s->b, bytes, &e);
    if (!r.cache.data) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    /* One position of every sequence at a time, so that the blocks are written as serving writes them. */
    float *kv = random_floats((size_t)(s->n_seqs * kv_heads * dim));
    for (int l = 0; l < r.cache.n_layers; l++)
        for (int p = 0; p < s->context; p++) {
            for (int i = 0; i < s->n_seqs; i++)
                ((int32_t *)r.batch.positions)[i] = p;
            s->b->ops->kv_write(s->b, &r.cache, l, kv, kv, &r.batch);
        }
    float *q = random_floats((size_t)(s->n_seqs * heads * dim)),
          *out = random_floats((size_t)(s->n_seqs * heads * dim));
    r.a = (struct attention){.q = q, .out = out, .n_heads = heads, .scale = 0.1f};
    double seconds = best_of(attention_step, &r, r.cache.n_layers), gbs = 1e-9 * (double)layer / seconds;
    printf("%-14s %2d/%d heads of %-3d  %-4s  %2d x %6d  %9.1f us  %6.2f GB/s %4.0f %%\n", shapes[shape].what,
           heads, kv_heads, dim, types[type].name, s->n_seqs, s->context, 1e6 * seconds, gbs,
           100 * gbs / s->limits->read_gbs);
    fflush(stdout);
    s->b->ops->release(s->b, r.cache.data, bytes);
    batch_free(&r.batch);
    free(kv);
    free(q);
    free(out);
}

struct state_run {
    const struct setting *s;
    struct delta_net d;
    struct batch batch;
    char *states; /* [layers][seqs] */
    size_t layer_bytes;
};

static void state_step(void *arg, int layer)
{
    struct state_run *r = arg;
    r->d.state = r->states + (size_t)layer * r->layer_bytes;
    r->s->b->ops->delta_net(r->s->b, &r->d, &r->batch);
}

/* A decode step's delta net of one Qwen3.5-4B layer: each state is read and written. */
static void bench_state(const struct setting *s, enum dtype dtype)
{
    enum { K_HEADS = 16, V_HEADS = 32, DIM = 128, ROW = (2 * K_HEADS + V_HEADS) * DIM };
    size_t n = (size_t)s->n_seqs;
    struct state_run r = {.s = s, .batch = decode(s, 1)};
    r.d = (struct delta_net){.n_k_heads = K_HEADS,
                             .n_v_heads = V_HEADS,
                             .k_dim = DIM,
                             .v_dim = DIM,
                             .eps = 1e-6f,
                             .state_dtype = dtype,
                             .state_stride = (size_t)V_HEADS * DIM * DIM * (dtype == DT_F32 ? 4 : 2)};
    r.layer_bytes = n * r.d.state_stride;
    int layers = (int)(POOL_BYTES / r.layer_bytes) + 2;
    struct err e = {0};
    size_t bytes = (size_t)layers * r.layer_bytes;
    r.states = s->b->ops->alloc(s->b, bytes, &e);
    if (!r.states) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    memset(r.states, 0, bytes);
    float *heads = random_floats(2 * V_HEADS), *qkv = random_floats(n * ROW),
          *ab = random_floats(2 * n * V_HEADS);
    float *out = random_floats(n * V_HEADS * DIM);
    for (int i = 0; i < V_HEADS; i++)
        heads[i] = -0.1f;
    r.d.neg_exp_a = heads;
    r.d.dt_bias = heads + V_HEADS;
    r.d.qkv = qkv;
    r.d.a = ab;
    r.d.b = ab + n * V_HEADS;
    r.d.out = out;
    double seconds = best_of(state_step, &r, layers), gbs = 2e-9 * (double)r.layer_bytes / seconds;
    printf("delta net, Qwen3.5-4B, %-4s  %2d sequences  %9.1f us  %6.2f GB/s %4.0f %%\n",
           dtype == DT_F32 ? "f32" : "bf16", s->n_seqs, 1e6 * seconds, gbs, 100 * gbs / s->limits->read_gbs);
    s->b->ops->release(s->b, r.states, bytes);
    batch_free(&r.batch);
    free(heads);
    free(qkv);
    free(ab);
    free(out);
}

int main(int argc, char **argv)
{
    const char *level = NULL;
    struct setting s = {.n_seqs = 1, .context = 4096};
    int threads = 2;
    bool state = argc > 1 && !strcmp(argv[argc - 1], "--state");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--level"))
            level = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seqs"))
            s.n_seqs = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--context"))
            s.context = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--type"))
            s.type = argv[i + 1];
    }
    struct err e = {0};
    struct cpu_limits limits;
    s.limits = &limits;
    s.b = backend_cpu(level, threads, &e);
    if (!s.b || s.b->ops->reserve(s.b, 512, 16384, &e) || cpu_limits_measure(level, threads, &limits, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("%s, %d threads: %.1f GB/s read\n", s.b->ops->name, threads, limits.read_gbs);
    if (state) {
        bench_state(&s, DT_F32);
        bench_state(&s, DT_BF16);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && !state; i++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
            if (!s.type || !strcmp(s.type, types[t].name))
                bench_attention(&s, i, t);
    s.b->ops->destroy(s.b);
    return 0;
}
