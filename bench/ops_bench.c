/* Matrix products of model shapes, in GB/s of weights and GFLOP/s, beside what the machine can do.
 *
 *     ops_bench [--level avx2] [--threads 2] [--type Q4_1] [--tokens 1] [--rows R --cols C] [--copies 1]
 *
 * A shape's matrix is there so often that the copies exceed the last-level cache, and calls go through them
 * in turn: a decode step never finds its weights in a cache. With --copies 1 a small one stays there, which
 * shows what the arithmetic alone takes. Best of several rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ops/cpu/limits.h"
#include "ops/ops.h"

#define COPIES_BYTES (size_t)(160 << 20)
#define MAX_COPIES   256
#define MAX_TOKENS   512

static const struct {
    int rows, cols;
    const char *what;
} shapes[] = {
    {576, 576, "SmolLM2 q, o"},   {1536, 576, "SmolLM2 gate, up"},     {576, 1536, "SmolLM2 down"},
    {49152, 576, "SmolLM2 head"}, {9216, 2560, "Qwen3.5-4B gate, up"}, {2560, 9216, "Qwen3.5-4B down"},
};
static const enum dtype types[] = {DT_Q4_1, DT_Q4_0, DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_BF16, DT_F16, DT_F32};
static const int tokens[] = {1, 2, 4, 8, 16, 64, 512};

static uint32_t random_bits(void)
{
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static void bench(struct backend *b, const struct cpu_limits *limits, enum dtype type, int rows, int cols,
                  const char *what, int only_tokens, int only_copies)
{
    const struct dtype_info *info = dtype_info((int)type);
    if (!dtype_row_fits(type, cols))
        return;
    size_t bytes = dtype_row_bytes(type, cols) * (size_t)rows;
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) /* small magnitudes, so that no scale is NaN or infinite */
        data[i] = (uint8_t)(random_bits() & 0x3f);
    struct mat_source src = {type, rows, cols, data, NULL};
    size_t packed = b->ops->mat_bytes(type, rows, cols);
    int copies = only_copies ? only_copies : (int)(COPIES_BYTES / packed) + 1;
    if (copies > MAX_COPIES)
        copies = MAX_COPIES;
    struct mat *mats[MAX_COPIES];
    struct err e = {0};
    for (int i = 0; i < copies; i++) {
        mats[i] = b->ops->mat_create(b, &src, &e);
        if (!mats[i]) {
            fprintf(stderr, "%s\n", e.msg);
            exit(1);
        }
    }
    float *x = malloc((size_t)MAX_TOKENS * (size_t)cols * sizeof *x);
    float *out = malloc((size_t)MAX_TOKENS * (size_t)rows * sizeof *out);
    for (int i = 0; i < MAX_TOKENS * cols; i++)
        x[i] = (float)(int32_t)random_bits() / 2147483648.0f;
    for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
        int n = tokens[t];
        if (only_tokens && n != only_tokens)
            continue;
        double flops = 2.0 * rows * cols * n, best = 1e9;
        int calls = n == 1 && copies > 1 ? copies : (int)(1e9 / flops) + 1;
        double until = clock_now() + 0.6;
        for (int round = 0; round < 5 || clock_now() < until; round++) {
            double start = clock_now();
            for (int i = 0; i < calls; i++) {
                struct mat_use use = {mats[i % copies], NULL, out, false};
                b->ops->matmul(b, x, n, &use, 1);
            }
            double s = (clock_now() - start) / calls;
            if (s < best)
                best = s;
        }
        double gbs = 1e-9 * (double)packed / best, gflops = 1e-9 * flops / best;
        double peak =
            type == DT_F32 || type == DT_F16 || type == DT_BF16 ? limits->fp32_gflops : limits->int8_gops;
        printf("%-20s %6d x %-5d %-5s %4d tokens  %9.1f us  %6.2f GB/s %4.0f %%  %8.1f GFLOP/s %4.0f %%\n",
               what, rows, cols, info->name, n, 1e6 * best, gbs, 100 * gbs / limits->read_gbs, gflops,
               100 * gflops / peak);
        fflush(stdout);
    }
    for (int i = 0; i < copies; i++)
        b->ops->mat_free(b, mats[i]);
    free(data);
    free(x);
    free(out);
}

int main(int argc, char **argv)
{
    const char *level = NULL, *type = NULL;
    int threads = 2, only_tokens = 0, rows = 0, cols = 0, copies = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--level"))
            level = argv[i + 1];
        else if (!strcmp(argv[i], "--type"))
            type = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--tokens"))
            only_tokens = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--rows"))
            rows = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--cols"))
            cols = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--copies"))
            copies = atoi(argv[i + 1]);
    }
    struct err e = {0};
    struct cpu_limits limits;
    struct backend *b = backend_cpu(level, threads, &e);
    if (!b || b->ops->reserve(b, MAX_TOKENS, 16384, &e) || cpu_limits_measure(level, threads, &limits, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("%s, %d threads: %.1f GB/s read, %.0f GFLOP/s fp32, %.0f GOP/s int8\n", b->ops->name, threads,
           limits.read_gbs, limits.fp32_gflops, limits.int8_gops);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        if (type && strcmp(type, dtype_info((int)types[t])->name))
            continue;
        if (rows && cols) {
            bench(b, &limits, types[t], rows, cols, "", only_tokens, copies);
            continue;
        }
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            bench(b, &limits, types[t], shapes[s].rows, shapes[s].cols, shapes[s].what, only_tokens, copies);
    }
    b->ops->destroy(b);
    return 0;
}
