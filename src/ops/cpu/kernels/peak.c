/* Loops that read, multiply fp32, int8 and bf16 as fast as this instruction set can: the limits that the
 * kernels are held against (ops/cpu/limits.h). */
#include "ops/cpu/kernels/simd.h"
#include "ops/cpu/limits.h"

#include "ops/cpu/cpu.h"

#define UNROLL_CHAINS _Pragma("GCC unroll 32")
#define CHAINS                                                                                  \
    (REGISTERS == 32 ? 24 : 12) /* more than latency times throughput, fewer than the registers \
                                 */

/* Asks for memory as far ahead as the kernels do: without that, less comes. */
static float read_memory(const void *p, size_t bytes)
{
    vi sum[4] = {vi_zero(), vi_zero(), vi_zero(), vi_zero()};
    const uint8_t *at = p;
    for (size_t i = 0; i < bytes; i += 4 * V) {
        UNROLL_CHAINS for (int line = 0; line < 4 * V; line += 64) prefetch(at + i + 6144 + line);
        UNROLL_CHAINS for (int n = 0; n < 4; n++) sum[n] = vi_or(sum[n], vi_load(at + i + (size_t)n * V));
    }
    return (float)vi_hsum(vi_or(vi_or(sum[0], sum[1]), vi_or(sum[2], sum[3])));
}

static float multiply_fp32(int64_t rounds)
{
    volatile float seed = 0.999f;
    vf acc[CHAINS], factor = vf_set1(seed);
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1((float)i);
    for (int64_t r = 0; r < rounds; r++)
        UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) acc[i] = vf_fma(acc[i], factor, factor);
    vf total = vf_zero();
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) total = vf_add(total, acc[i]);
    return vf_hsum(total);
}

static float multiply_int8(int64_t rounds)
{
    volatile int seed = 3;
    vi acc[CHAINS], x = vi_set1_8(seed);
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) acc[i] = vi_set1(i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL_CHAINS for (int i = 0; i < CHAINS; i++)
        {
#if defined(DOT4_CODES)
            acc[i] = vi_dot4(acc[i], x, x);
#else
            acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(acc[i], x));
#endif
        }
    }
    vi total = vi_zero();
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) total = vi_add(total, acc[i]);
    return (float)vi_hsum(total);
}

#if defined(__AVX512F__)
__attribute__((target("avx512bf16"))) static float multiply_bf16(int64_t rounds)
{
    volatile int seed = 0x3f80; /* 1 */
    __m512 acc[CHAINS];
    __m512bh x = (__m512bh)vi_set1(seed);
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1((float)i);
    for (int64_t r = 0; r < rounds; r++)
        UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbf16_ps(acc[i], x, x);
    vf total = vf_zero();
    UNROLL_CHAINS for (int i = 0; i < CHAINS; i++) total = vf_add(total, acc[i]);
    return vf_hsum(total);
}
#else
#define multiply_bf16 NULL
#endif

const struct cpu_peak LEVEL_NAME(cpu_peak) = {.read = read_memory,
                                              .fp32 = multiply_fp32,
                                              .int8 = multiply_int8,
                                              .fp32_ops = 2.0 * CHAINS * P,
                                              .int8_ops = 2.0 * CHAINS * V,
                                              .bf16 = multiply_bf16,
                                              .bf16_ops = 4.0 * CHAINS * P};
