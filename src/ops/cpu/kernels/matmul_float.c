/* Matrix products with float panels: weights widened to fp32 in registers, fp32 activations. Each output is
 * one chain of multiply-adds over k = 0, 1, 2 …, whatever the tile. One token takes two panels at once, so
 * that there are chains enough to hide a multiply-add's latency. */
#include "ops/cpu/kernels/panel.h"

INLINE void step(int np, int nt, const vf w[4], const float *x, int64_t cols, vf acc[][FLOAT_TILE])
{
    UNROLL for (int t = 0; t < nt; t++)
    {
        vf xt = vf_set1(x[t * cols]);
        UNROLL for (int p = 0; p < np; p++) acc[p][t] = vf_fma(w[p], xt, acc[p][t]);
    }
}

/* np panels' halves in turn: w[2p + half]. */
INLINE void float_tile(enum panel_format f, int np, int nt, const uint8_t *const panels[], const float *x,
                       int64_t cols, float *sums)
{
    const int n_steps = f == PF_F32 ? 2 : 1; /* for two k */
    vf acc[4][FLOAT_TILE], w[4], odd[4];
    const uint8_t *at[2];
    UNROLL for (int p = 0; p < np; p++)
    {
        at[p] = panels[p];
        UNROLL for (int t = 0; t < nt; t++) acc[2 * p][t] = acc[2 * p + 1][t] = vf_zero();
    }
    for (int64_t k = 0; k < cols; k += 2) {
        UNROLL for (int p = 0; p < np; p++)
        {
            UNROLL for (int line = 0; line < n_steps * 2 * V; line += 64) prefetch(at[p] + AHEAD + line);
            UNROLL for (int h = 0; h < 2; h++)
            {
                if (f == PF_BF16) {
                    vi pairs = vi_load(at[p] + h * V);
                    w[2 * p + h] = vf_bf16_low(pairs);
                    odd[2 * p + h] = vf_bf16_high(pairs);
                } else if (f == PF_F16) {
                    w[2 * p + h] = vf_from_half((const uint16_t *)(at[p] + h * V));
                    odd[2 * p + h] = vf_from_half((const uint16_t *)(at[p] + h * V + V / 2));
                } else {
                    w[2 * p + h] = vf_load((const float *)(at[p] + h * V));
                }
            }
        }
        step(2 * np, nt, w, x + k, cols, acc);
        if (k + 1 == cols)
            break;
        UNROLL for (int p = 0; p < np; p++)
        {
            UNROLL for (int h = 0; f == PF_F32 && h < 2; h++) odd[2 * p + h] =
                vf_load((const float *)(at[p] + (2 + h) * V));
            at[p] += n_steps * 2 * V;
        }
        step(2 * np, nt, odd, x + k + 1, cols, acc);
    }
    UNROLL for (int p = 0; p < 2 * np; p++) UNROLL for (int t = 0; t < nt; t++)
        vf_store(sums + (p * nt + t) * P, acc[p][t]);
}

#define KERNEL(f, width)                                                                              \
    static void f##_##width(const uint8_t *const panels[], const float *x, int64_t cols, float *sums) \
    {                                                                                                 \
        float_tile(f, (width) == 1 ? 2 : 1, width, panels, x, cols, sums);                            \
    }
#if REGISTERS == 32
#define KERNELS_WIDE(f) \
    KERNEL(f, 5) KERNEL(f, 6) KERNEL(f, 7) KERNEL(f, 8) KERNEL(f, 9) KERNEL(f, 10) KERNEL(f, 11) KERNEL(f, 12)
#define ROW(f)                                                                                \
    {                                                                                         \
        f##_1, f##_2, f##_3, f##_4, f##_5, f##_6, f##_7, f##_8, f##_9, f##_10, f##_11, f##_12 \
    }
#else
#define KERNELS_WIDE(f)
#define ROW(f)                     \
    {                              \
        f##_1, f##_2, f##_3, f##_4 \
    }
#endif
#define KERNELS_OF(f) KERNEL(f, 1) KERNEL(f, 2) KERNEL(f, 3) KERNEL(f, 4) KERNELS_WIDE(f)

KERNELS_OF(PF_F32)
KERNELS_OF(PF_F16)
KERNELS_OF(PF_BF16)

float_kernel *LEVEL_NAME(cpu_float_kernel)(enum panel_format f, int width)
{
    static float_kernel *const table[3][FLOAT_TILE] = {
        [PF_F32] = ROW(PF_F32), [PF_F16] = ROW(PF_F16), [PF_BF16] = ROW(PF_BF16)};
    return table[f][width - 1];
}
