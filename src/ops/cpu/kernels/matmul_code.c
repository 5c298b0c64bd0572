/* Matrix products with code panels (panel.h): unsigned or signed integer weights times int8 activations,
 * summed as integers over a block, then one fp32 multiply-add a block and scale.
 *
 * An output's floats are added block after block, in the same operations whatever the tile's width and
 * whether the panel was expanded: that is law 3 here. The integer sums are exact in any order. */
#include "ops/cpu/kernels/panel.h"

/* A block of a panel: where its codes are, and its scales and minima, one lane a row. */
struct block {
    const uint8_t *codes, *plane; /* plane: the 1- or 2-bit plane */
    const uint8_t *plane1;        /* Q3_K's 1-bit plane */
    vf scale[2], min[2];
};

INLINE void block_open(enum panel_format f, bool expanded, const uint8_t *group, int n, struct block *b)
{
    if (expanded) {
        for (int s = 0; s < pf_scales(f); s++, group += V)
            b->scale[s] = vf_load((const float *)group);
        for (int s = 0; pf_has_min(f) && s < pf_scales(f); s++, group += V)
            b->min[s] = vf_load((const float *)group);
        b->codes = group;
        return;
    }
    const uint16_t *half = (const uint16_t *)(group + n * (V / 2));
    switch (f) {
    case PF_Q8_0:
        b->scale[0] = vf_from_half(half);
        b->codes = group + V + n * 8 * V;
        break;
    case PF_Q4_0:
    case PF_IQ4_NL:
        b->scale[0] = vf_from_half(half);
        b->codes = group + V + n * 4 * V;
        break;
    case PF_Q4_1:
        b->scale[0] = vf_from_half(half);
        b->min[0] = vf_from_half(half + V / 2);
        b->codes = group + 2 * V + n * 4 * V;
        break;
    case PF_Q5_0:
        b->scale[0] = vf_from_half(half);
        b->plane = group + V + n * V;
        b->codes = group + 3 * V + n * 4 * V;
        break;
    case PF_Q5_1:
        b->scale[0] = vf_from_half(half);
        b->min[0] = vf_from_half(half + V / 2);
        b->plane = group + 2 * V + n * V;
        b->codes = group + 4 * V + n * 4 * V;
        break;
    case PF_CODE16:
        b->scale[0] = vf_load((const float *)(group + 2 * n * V));
        b->scale[1] = vf_load((const float *)(group + (2 * n + 1) * V));
        b->codes = group + 4 * V + n * 8 * V;
        break;
    case PF_Q4_K:
    case PF_Q5_K: {
        vf d = vf_from_half((const uint16_t *)group), dmin = vf_from_half((const uint16_t *)(group + V / 2));
        b->scale[0] = vf_mul(d, vf_from_u8(group + V + n * P));
        b->min[0] = vf_mul(vf_sub(vf_zero(), dmin), vf_from_u8(group + 3 * V + n * P));
        b->plane = group + 5 * V + n * V;
        b->codes = group + (f == PF_Q5_K ? 13 : 5) * V + n * 4 * V;
        break;
    }
    case PF_Q2_K: {
        vf d = vf_from_half((const uint16_t *)group), dmin = vf_from_half((const uint16_t *)(group + V / 2));
        for (int s = 0; s < 2; s++) {
            vf both = vf_from_u8(group + V + (2 * n + s) * P); /* scale + 16 * minimum */
            vf m = vf_round(vf_fma(both, vf_set1(1.0f / 16), vf_set1(-15.0f / 32)));
            b->scale[s] = vf_mul(d, vf_fma(m, vf_set1(-16.0f), both));
            b->min[s] = vf_mul(vf_sub(vf_zero(), dmin), m);
        }
        b->plane = group + 5 * V + n * 2 * V;
        break;
    }
    case PF_Q6_K:
    case PF_Q3_K: {
        vf d = vf_load((const float *)group);
        for (int s = 0; s < 2; s++)
            b->scale[s] = vf_mul(d, vf_from_i8((const int8_t *)group + V + (2 * n + s) * P));
        b->plane1 = group + 5 * V + n * V;
        b->plane = group + (f == PF_Q3_K ? 13 : 5) * V + n * 2 * V;
        b->codes = group + 21 * V + n * 4 * V;
        break;
    }
    case PF_IQ4_XS:
        b->scale[0] = vf_mul(vf_load((const float *)group), vf_from_i8((const int8_t *)group + V + n * P));
        b->codes = group + 3 * V + n * 4 * V;
        break;
    default:
        __builtin_unreachable();
    }
}

/* Bits of each byte of `plane`, from bit `from`, moved to bit `to` and masked. */
INLINE vi plane_bits(const uint8_t *plane, int from, int to, int mask)
{
    vi x = vi_load(plane);
    x = from < to ? vi_shl(x, to - from) : vi_shr(x, from - to);
    return vi_and(x, vi_set1_8(mask));
}

/* Codes k = 4g … 4g+3 of every row. g is a constant once the loops are unrolled. */
INLINE vi block_codes(enum panel_format f, bool expanded, const struct block *b, int g)
{
    if (expanded || f == PF_Q8_0 || f == PF_CODE16)
        return vi_load(b->codes + g * V);
    if (f == PF_Q2_K || f == PF_Q3_K) {
        vi two = plane_bits(b->plane + g / 4 * V, g % 4 * 2, 0, 3);
        return f == PF_Q2_K ? two : vi_or(two, plane_bits(b->plane1, g, 2, 4));
    }
    vi low = vi_load(b->codes + g % 4 * V);
    low = vi_and(g < 4 ? low : vi_shr(low, 4), vi_set1_8(15));
    switch (f) {
    case PF_Q5_0:
    case PF_Q5_1:
    case PF_Q5_K:
        return vi_or(low, plane_bits(b->plane, g, 4, 0x10));
    case PF_Q6_K:
        return vi_or(low, plane_bits(b->plane + g / 4 * V, g % 4 * 2, 4, 0x30));
    case PF_IQ4_NL:
    case PF_IQ4_XS:
        return vi_lookup16(LEVEL_NAME(cpu_iq4_codes), low);
    default:
        return low;
    }
}

/* One block of np halves times nt tokens, added to acc. */
INLINE void block_dot(enum panel_format f, bool expanded, int np, int nt, const struct block *b,
                      const uint8_t *qx, vf acc[][CODE_TILE])
{
    const float *scale = (const float *)qx, *scale_sum = scale + nt;
    const int32_t *neg = (const int32_t *)(scale_sum + nt), *neg_low = neg + nt;
    const uint8_t *codes = qx + 16 * nt;
    const int n_scales = pf_scales(f), groups = 8 / n_scales, shift = pf_shift(f);
    UNROLL for (int s = 0; s < n_scales; s++)
    {
        vi sum[2][CODE_TILE];
        UNROLL for (int t = 0; t < nt; t++)
        {
            vi start = vi_zero();
            if (shift >= 0)
                start = vi_shl(vi_set1(n_scales == 1 ? neg[t]
                                       : s == 0      ? neg_low[t]
                                                     : neg[t] - neg_low[t]),
                               shift);
            UNROLL for (int p = 0; p < np; p++) sum[p][t] = start;
        }
#if !defined(DOT4_CODES)
        vi part[2][CODE_TILE]; /* 16-bit sums of as many products as cannot overflow */
        const int run = pf_bits(f) == 4 ? groups : pf_bits(f) == 5 ? 4 : pf_bits(f) == 6 ? 2 : 1;
        const vi ones = _mm256_set1_epi16(1);
#endif
        UNROLL for (int g = s * groups; g < (s + 1) * groups; g++)
        {
            vi w[2];
            UNROLL for (int p = 0; p < np; p++) w[p] = block_codes(f, expanded, &b[p], g);
            UNROLL for (int t = 0; t < nt; t++)
            {
                int32_t x4;
                memcpy(&x4, codes + (g * nt + t) * 4, 4);
                vi x = vi_set1(x4);
                UNROLL for (int p = 0; p < np; p++)
                {
#if defined(DOT4_CODES)
                    sum[p][t] = vi_dot4(sum[p][t], w[p], x);
#else
                    vi product = pf_bits(f) == 8
                                     ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[p]), _mm256_sign_epi8(x, w[p]))
                                     : _mm256_maddubs_epi16(w[p], x);
                    part[p][t] = g % run == 0 ? product : _mm256_add_epi16(part[p][t], product);
                    if (g % run == run - 1)
                        sum[p][t] = vi_add(sum[p][t], _mm256_madd_epi16(part[p][t], ones));
#endif
                }
            }
        }
        UNROLL for (int t = 0; t < nt; t++)
        {
            float sums =
                n_scales == 1 ? scale_sum[t] : scale[t] * (float)(s == 0 ? -neg_low[t] : neg_low[t] - neg[t]);
            UNROLL for (int p = 0; p < np; p++)
            {
                acc[p][t] =
                    vf_fma(vi_to_float(sum[p][t]), vf_mul(b[p].scale[s], vf_set1(scale[t])), acc[p][t]);
                if (pf_has_min(f))
                    acc[p][t] = vf_fma(b[p].min[s], vf_set1(sums), acc[p][t]);
            }
        }
    }
}

/* One half (np 1) of a panel, or both, against a tile of nt tokens; adds to sums [np][nt] vectors. */
INLINE void code_tile(enum panel_format f, bool expanded, int np, int nt, const uint8_t *w, int64_t n_blocks,
                      const uint8_t *qx, float *sums, struct ahead ahead)
{
    const int group_blocks = expanded ? 1 : pf_group_blocks(f);
    const int group_bytes = expanded ? pf_expanded_bytes(f) : pf_group_bytes(f);
    vf acc[2][CODE_TILE];
    UNROLL for (int p = 0; p < np; p++) UNROLL for (int t = 0; t < nt; t++) acc[p][t] =
        vf_load(sums + (p * nt + t) * P);
    for (int64_t i = 0; i < n_blocks; i += group_blocks, w += 2 * group_bytes) {
        for (int n = 0; n < group_blocks; n++, qx += QX_BLOCK * nt) {
            if (nt == 1) { /* nothing else passes: the block that lies AHEAD of this one */
                const int bytes = 2 * group_bytes / group_blocks;
                UNROLL for (int at = 0; at < bytes; at += 64) prefetch(w + n * bytes + AHEAD + at);
            }
            for (int64_t line = 0; line < ahead.lines; line++, ahead.at += 64)
                prefetch(ahead.at);
            struct block b[2];
            UNROLL for (int p = 0; p < np; p++) block_open(f, expanded, w + p * group_bytes, n, &b[p]);
            block_dot(f, expanded, np, nt, b, qx, acc);
        }
    }
    UNROLL for (int p = 0; p < np; p++) UNROLL for (int t = 0; t < nt; t++)
        vf_store(sums + (p * nt + t) * P, acc[p][t]);
}

/* With few registers (AVX2) wide tiles take one half after the other. */
#define HALVES_AT_ONCE(width) (REGISTERS == 32 || (width) <= 2 ? 2 : 1)

#define KERNEL(f, expanded, width)                                                                           \
    static void f##_##expanded##_##width(const uint8_t *w, int64_t n_blocks, const uint8_t *qx, float *sums, \
                                         struct ahead ahead)                                                 \
    {                                                                                                        \
        const int half = expanded ? pf_expanded_bytes(f) : pf_group_bytes(f);                                \
        const struct ahead nothing = {NULL, 0};                                                              \
        code_tile(f, expanded, HALVES_AT_ONCE(width), width, w, n_blocks, qx, sums, ahead);                  \
        if (HALVES_AT_ONCE(width) == 1)                                                                      \
            code_tile(f, expanded, 1, width, w + half, n_blocks, qx, sums + (width)*P, nothing);             \
    }
/* Tokens are cut evenly into tiles, so that the many that expansion is for are never narrower than these. */
#if REGISTERS == 32
#define PACKED(f) \
    KERNEL(f, 0, 1) KERNEL(f, 0, 2) KERNEL(f, 0, 3) KERNEL(f, 0, 4) KERNEL(f, 0, 5) KERNEL(f, 0, 6)
#define PACKED_ROW(f)                                        \
    {                                                        \
        f##_0_1, f##_0_2, f##_0_3, f##_0_4, f##_0_5, f##_0_6 \
    }
#define EXPANDED(f) KERNEL(f, 1, 5) KERNEL(f, 1, 6)
#define EXPANDED_ROW(f)                          \
    {                                            \
        NULL, NULL, NULL, NULL, f##_1_5, f##_1_6 \
    }
#else
#define PACKED(f) KERNEL(f, 0, 1) KERNEL(f, 0, 2) KERNEL(f, 0, 3) KERNEL(f, 0, 4)
#define PACKED_ROW(f)                      \
    {                                      \
        f##_0_1, f##_0_2, f##_0_3, f##_0_4 \
    }
#define EXPANDED(f) KERNEL(f, 1, 3) KERNEL(f, 1, 4)
#define EXPANDED_ROW(f)              \
    {                                \
        NULL, NULL, f##_1_3, f##_1_4 \
    }
#endif

#define BOTH(f) PACKED(f) EXPANDED(f)
PACKED(PF_Q8_0)
PACKED(PF_Q4_0)
PACKED(PF_Q4_1)
PACKED(PF_IQ4_NL)
PACKED(PF_CODE16)
BOTH(PF_Q5_0)
BOTH(PF_Q5_1)
BOTH(PF_Q4_K)
BOTH(PF_Q5_K)
BOTH(PF_Q6_K)
BOTH(PF_Q2_K)
BOTH(PF_Q3_K)
BOTH(PF_IQ4_XS)

code_kernel *LEVEL_NAME(cpu_code_kernel)(enum panel_format f, bool expanded, int width)
{
#define SIMPLE(f)    [f] = { PACKED_ROW(f) }
#define LABORIOUS(f) [f] = {PACKED_ROW(f), EXPANDED_ROW(f)}
    static code_kernel *const table[PF_COUNT][2][CODE_TILE] = {
        SIMPLE(PF_Q8_0),    SIMPLE(PF_Q4_0),    SIMPLE(PF_Q4_1),      SIMPLE(PF_IQ4_NL),  SIMPLE(PF_CODE16),
        LABORIOUS(PF_Q5_0), LABORIOUS(PF_Q5_1), LABORIOUS(PF_Q4_K),   LABORIOUS(PF_Q5_K), LABORIOUS(PF_Q6_K),
        LABORIOUS(PF_Q2_K), LABORIOUS(PF_Q3_K), LABORIOUS(PF_IQ4_XS),
    };
    return table[f][expanded][width - 1];
}

/* --- expansion --- */

INLINE void expand(enum panel_format f, const uint8_t *w, int64_t n_blocks, uint8_t *out)
{
    for (int64_t i = 0; i < n_blocks; i += pf_group_blocks(f), w += 2 * pf_group_bytes(f)) {
        for (int n = 0; n < 2 * pf_group_blocks(f); n++) {
            struct block b;
            block_open(f, false, w + n % 2 * pf_group_bytes(f), n / 2, &b);
            for (int s = 0; s < pf_scales(f); s++, out += V)
                vf_store((float *)out, b.scale[s]);
            for (int s = 0; pf_has_min(f) && s < pf_scales(f); s++, out += V)
                vf_store((float *)out, b.min[s]);
            UNROLL for (int g = 0; g < 8; g++, out += V) vi_store(out, block_codes(f, false, &b, g));
        }
    }
}

/* n_blocks: whole groups. out: [n_blocks][2 halves][pf_expanded_bytes]. */
void LEVEL_NAME(cpu_expand)(enum panel_format f, const uint8_t *w, int64_t n_blocks, uint8_t *out)
{
#define EXPAND(f)                    \
    case f:                          \
        expand(f, w, n_blocks, out); \
        break;
    switch (f) {
        EXPAND(PF_Q8_0)
        EXPAND(PF_Q4_0)
        EXPAND(PF_Q4_1)
        EXPAND(PF_Q5_0)
        EXPAND(PF_Q5_1)
        EXPAND(PF_IQ4_NL)
        EXPAND(PF_CODE16)
        EXPAND(PF_Q4_K)
        EXPAND(PF_Q5_K)
        EXPAND(PF_Q6_K)
        EXPAND(PF_Q2_K)
        EXPAND(PF_Q3_K)
        EXPAND(PF_IQ4_XS)
    default:
        __builtin_unreachable();
    }
}

/* --- activations --- */

/* Quantises `width` rows of x [width, cols] to n_blocks >= cols/32 blocks: code = round(x * 127 / max |x|).
 * Each row for itself, so that company does not change it. A NaN makes its block's scale NaN. */
void LEVEL_NAME(cpu_quantize_tile)(const float *x, int64_t cols, int64_t n_blocks, int width, uint8_t *qx)
{
    for (int64_t i = 0; i < n_blocks; i++, qx += QX_BLOCK * width) {
        if (32 * i >= cols) {
            memset(qx, 0, (size_t)QX_BLOCK * (size_t)width);
            continue;
        }
        float *scale = (float *)qx, *scale_sum = scale + width;
        int32_t *neg = (int32_t *)(scale_sum + width), *neg_low = neg + width;
        uint8_t *codes = qx + 16 * width;
        for (int t = 0; t < width; t++) {
            const float *src = x + t * cols + 32 * i;
            vi most = vi_zero(); /* |x| as integers order like floats, NaN above all */
            for (int j = 0; j < 32; j += P)
                most = vi_max(most, vi_and(vf_bits(vf_load(src + j)), vi_set1(0x7fffffff)));
            int32_t bits = vi_hmax(most);
            float max, inverse = 0;
            memcpy(&max, &bits, 4);
            if (max < 1e-30f)
                max = 0; /* 127 / max must stay finite */
            else
                inverse = 127.0f / max;
            int8_t q[32];
            int32_t sum[2] = {0, 0};
            for (int j = 0; j < 32; j += P) {
                vf scaled = vf_min(vf_mul(vf_load(src + j), vf_set1(inverse)), vf_set1(127)); /* NaN: 127 */
                vi c = vi_from_float(vf_max(scaled, vf_set1(-127)));
                sum[j / 16] += vi_hsum(c);
                vi_to_i8(q + j, c);
            }
            for (int g = 0; g < 8; g++)
                memcpy(codes + (g * width + t) * 4, q + 4 * g, 4);
            scale[t] = max / 127.0f;
            scale_sum[t] = scale[t] * (float)(sum[0] + sum[1]);
            neg[t] = -(sum[0] + sum[1]);
            neg_low[t] = -sum[0];
        }
    }
}
