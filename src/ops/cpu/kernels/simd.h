/* Vectors of the instruction set that this build of the kernels is for: P fp32 lanes (4 with NEON, 8 with
 * AVX2, 16 with AVX-512) in REGISTERS registers. The rest of kernels/ is written once over these few
 * operations, which simd_avx512.h defines with comments, and the others alike.
 *
 * LEVEL (neon, avx2 or avx512, from CMakeLists.txt) is appended to every name that leaves its file. */
#ifndef SLUICE_OPS_CPU_SIMD_H
#define SLUICE_OPS_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LEVEL_GLUE(name, level)   name##_##level
#define LEVEL_EXPAND(name, level) LEVEL_GLUE(name, level)
#define LEVEL_NAME(name)          LEVEL_EXPAND(name, LEVEL)

#define UNROLL _Pragma("GCC unroll 16") /* before loops over registers */
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "ops/cpu/kernels/simd_avx512.h"
#elif defined(__AVX2__)
#include "ops/cpu/kernels/simd_avx2.h"
#else
#include "ops/cpu/kernels/simd_neon.h"
#endif

/* Asks for a line of memory that is needed soon, or later: into the first or the second cache. */
INLINE void prefetch(const void *at)
{
    __builtin_prefetch(at, 0, 3);
}
INLINE void prefetch_far(const void *at)
{
    __builtin_prefetch(at, 0, 2);
}

/* Vector bytes: the unit in which panels are laid out. */
#define V (4 * P)

/* e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, times 2^n. The same bits for a
 * value in whatever lane. 0 for -inf and below -87.3 or so; NaN stays NaN. */
INLINE vf vf_exp(vf x)
{
    x = vf_max(vf_set1(-200.0f), x); /* in this order NaN passes */
    x = vf_min(vf_set1(89.0f), x);   /* e^89 is already infinite */
    vf n = vf_round(vf_mul(x, vf_set1(0x1.715476p0f)));
    vf r = vf_fma(n, vf_set1(-0x1.62e400p-1f), x); /* ln 2 in two parts: n times the first is exact */
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(1.0f / 5040); /* Taylor: the next term is 5e-9 of the result at most */
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale2(p, n);
}

/* The lanes of a row of n that begin at i (all of them, but at the row's end). */
INLINE vmask vmask_left(int64_t i, int64_t n)
{
    int64_t left = n - i;
    return vmask_range(0, left < P ? (int)left : P);
}

#endif
