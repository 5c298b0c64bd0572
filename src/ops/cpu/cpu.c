/* What the levels of the CPU back end share: the choice of level, memory, and the operations that only move
 * data. */
#include "ops/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool has_reference(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    unsigned a, b, c, d; /* clang 14's __builtin_cpu_supports does not know f16c */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(__aarch64__)
static bool has_neon(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

/* Best first. */
static const struct level {
    const char *name;
    const struct backend_ops *ops;
    const struct cpu_peak *peak;
    bool (*on_this_cpu)(void);
} levels[] = {
#if defined(__x86_64__)
    {"avx512", &cpu_ops_avx512, &cpu_peak_avx512, has_avx512},
    {"avx2", &cpu_ops_avx2, &cpu_peak_avx2, has_avx2},
#endif
#if defined(__aarch64__)
    {"neon", &cpu_ops_neon, &cpu_peak_neon, has_neon},
#endif
    {"reference", &cpu_ops_reference, &cpu_peak_reference, has_reference},
};
#define N_LEVELS (sizeof levels / sizeof levels[0])

const char *backend_cpu_levels(void)
{
    static char text[64]; /* the same bytes whoever writes them */
    size_t n = 0;
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (!levels[i].on_this_cpu())
            continue;
        size_t len = strlen(levels[i].name);
        if (n)
            text[n++] = ',';
        memcpy(text + n, levels[i].name, len);
        n += len;
    }
    text[n] = '\0';
    return text;
}

const struct cpu_peak *cpu_peak_of(const struct backend_ops *ops)
{
    size_t i = 0;
    while (levels[i].ops != ops)
        i++;
    return levels[i].peak;
}

struct backend *backend_cpu(const char *level, int n_threads, struct err *e)
{
    const char *origin = "";
    if (!level) {
        level = getenv("SLUICE_CPU");
        origin = "SLUICE_CPU: ";
        if (level && !*level)
            level = NULL;
    }
    const struct level *chosen = NULL;
    for (size_t i = 0; i < N_LEVELS && !chosen; i++) {
        if (level ? !strcmp(level, levels[i].name) : levels[i].on_this_cpu())
            chosen = &levels[i];
    }
    if (!chosen || !chosen->on_this_cpu()) {
        err_set(e, chosen ? ERR_UNSUPPORTED : ERR_INVALID, "%sthe CPU level \"%s\" is %s; choose one of %s",
                origin, level, chosen ? "not on this machine" : "unknown", backend_cpu_levels());
        return NULL;
    }
    struct pool *pool = pool_create(n_threads, e);
    if (!pool)
        return NULL;
    struct cpu *c = mem_zalloc(1, sizeof *c);
    c->base.ops = chosen->ops;
    c->pool = pool;
    return &c->base;
}

void cpu_destroy(struct backend *b)
{
    if (!b)
        return;
    struct cpu *c = cpu_of(b);
    pool_free(c->pool);
    mem_unmap(c->scratch, c->scratch_bytes);
    free(c);
}

void *cpu_alloc(struct backend *b, size_t bytes, struct err *e)
{
    (void)b;
    void *p = mem_map(bytes);
    if (!p)
        err_set(e, ERR_NO_MEMORY, "the system refused %zu MB of memory", bytes >> 20);
    return p;
}

void cpu_release(struct backend *b, void *p, size_t bytes)
{
    (void)b;
    mem_unmap(p, bytes);
}

void cpu_write(struct backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    if (bytes)
        memcpy(dst, src, bytes);
}

void cpu_read(struct backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    if (bytes)
        memcpy(dst, src, bytes);
}

int cpu_reserve(struct backend *b, int max_tokens, int64_t max_cols, struct err *e)
{
    struct cpu *c = cpu_of(b);
    size_t bytes = b->ops->scratch_bytes(b, max_tokens, max_cols);
    void *scratch = mem_map(bytes);
    if (!scratch)
        return err_set(e, ERR_NO_MEMORY, "the system refused %zu MB of scratch memory", bytes >> 20);
    mem_unmap(c->scratch, c->scratch_bytes);
    c->scratch = scratch;
    c->scratch_bytes = bytes;
    c->max_tokens = max_tokens;
    c->max_cols = max_cols;
    return 0;
}

int cpu_check_source(const struct mat_source *src, struct err *e)
{
    const struct dtype_info *info = dtype_info((int)src->dtype);
    if (!info->name || !info->decodable)
        return err_set(e, ERR_UNSUPPORTED, "matrices of type %s cannot be decoded by this build",
                       info->name ? info->name : "(unknown)");
    if (src->rows < 1 || src->cols < 1 || src->rows > INT32_MAX || src->cols > INT32_MAX)
        return err_set(e, ERR_INVALID, "a matrix of %lld x %lld is outside 1 … 2^31-1", (long long)src->rows,
                       (long long)src->cols);
    if (!dtype_row_fits(src->dtype, src->cols))
        return err_set(e, ERR_INVALID, "rows of %lld weights are not whole %s blocks of %d",
                       (long long)src->cols, info->name, info->block);
    size_t floats; /* the widest form a level may keep */
    if (__builtin_mul_overflow((size_t)(src->rows + 64), (size_t)(src->cols + 64) * 4, &floats))
        return err_set(e, ERR_NO_MEMORY, "a matrix of %lld x %lld does not fit in memory",
                       (long long)src->rows, (long long)src->cols);
    return 0;
}

void cpu_count_matmul(struct backend *b, const struct mat *w, int n_tokens)
{
    ((struct mat *)w)->reads++; /* const to its users; the back end made it and may write it */
    b->count.weight_bytes += w->bytes;
    b->count.flops += 2 * (uint64_t)w->rows * (uint64_t)w->cols * (uint64_t)n_tokens;
}

int cpu_threads(const struct backend *b)
{
    return pool_threads(((const struct cpu *)b)->pool);
}

void cpu_parallel(struct backend *b, pool_fn *fn, void *arg, int64_t n)
{
    pool_run(cpu_of(b)->pool, fn, arg, n, 1);
}

void cpu_gather(struct backend *b, const float *x, const int32_t *index, int n, int dim, float *out)
{
    (void)b;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * (size_t)dim, x + (size_t)index[i] * (size_t)dim, (size_t)dim * sizeof *out);
}

void cpu_slice(struct backend *b, const float *x, int64_t rows, int n_groups, int group, int c0, int w,
               float *out)
{
    (void)b;
    for (int64_t i = 0; i < rows * n_groups; i++)
        memcpy(out + i * w, x + i * group + c0, (size_t)w * sizeof *out);
}
