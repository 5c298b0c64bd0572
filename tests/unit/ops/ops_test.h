/* What the tests of the ops share: the back ends of every level this CPU has, random inputs, and comparison
 * with the reference level. */
#ifndef SLUICE_TESTS_OPS_TEST_H
#define SLUICE_TESTS_OPS_TEST_H

#include "unit.h"

#include <math.h>
#include <stdbool.h>

#include "ops/ops.h"

#define TEST_MAX_TOKENS 80
#define TEST_MAX_COLS   1024

static inline struct backend *test_backend(const char *level, int threads)
{
    struct err e = {0};
    struct backend *b = backend_cpu(level, threads, &e);
    if (!b || b->ops->reserve(b, TEST_MAX_TOKENS, TEST_MAX_COLS, &e))
        fail_msg("%s", e.msg);
    return b;
}

/* Level i of this CPU, best first, or NULL after the last. */
static inline const char *test_level(int i)
{
    static char names[64];
    snprintf(names, sizeof names, "%s", backend_cpu_levels());
    for (char *at = names, *next; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (i-- == 0)
            return at;
    }
    return NULL;
}

static uint64_t test_seed = 1;
static inline uint32_t random_bits(void)
{
    test_seed = test_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(test_seed >> 32);
}
static inline int random_int(int from, int to) /* both included */
{
    return from + (int)(random_bits() % (uint32_t)(to - from + 1));
}
static inline float random_float(void) /* -1 … 1 */
{
    return (float)(int32_t)random_bits() / 2147483648.0f;
}
static inline float *random_floats(size_t n)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}
static inline float *copy_floats(const float *x, size_t n)
{
    float *y = malloc((n ? n : 1) * sizeof *y);
    memcpy(y, x, n * sizeof *y);
    return y;
}

static inline void check_close(const float *got, const float *want, size_t n, float tolerance,
                               const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tolerance * (1 + fabsf(want[i]))))
            fail_msg("%s: value %zu of %zu is %.9g, the reference says %.9g", what, i, n, (double)got[i],
                     (double)want[i]);
}

static inline void check_bits(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s: value %zu of %zu is %a, but was %a", what, i, n, (double)got[i], (double)want[i]);
}

#endif
