/* simd.h for AVX-512 F, BW, VL, DQ and VNNI. */
#ifndef SLUICE_OPS_CPU_SIMD_AVX512_H
#define SLUICE_OPS_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define P          16
#define REGISTERS  32
#define DOT4_CODES /* vi_dot4 multiplies unsigned by signed bytes */
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vmask;

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c) /* a*b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE vf vf_round(vf a) /* to the nearest integer, ties to even */
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Lanes from … to-1 are on; any ints. */
INLINE vmask vmask_range(int from, int to)
{
    from = from < 0 ? 0 : from > P ? P : from;
    to = to < 0 ? 0 : to > P ? P : to;
    return (vmask)(((1u << to) - 1) & ~((1u << from) - 1));
}
INLINE vf vf_select(vmask m, vf on, vf off)
{
    return _mm512_mask_blend_ps(m, off, on);
}
INLINE vf vf_load_masked(const float *p, vmask m) /* 0 where off; memory there is not touched */
{
    return _mm512_maskz_loadu_ps(m, p);
}
INLINE void vf_store_masked(float *p, vmask m, vf x)
{
    _mm512_mask_storeu_ps(p, m, x);
}
INLINE vf vf_scale2(vf x, vf n) /* x * 2^n for integral n; 0 below the range */
{
    return _mm512_scalef_ps(x, n);
}
INLINE vf vf_gather(const float *p, int stride, vmask m) /* p[lane * stride], 0 where off */
{
    vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_i32gather_ps(vf_zero(), m, _mm512_mullo_epi32(lane, _mm512_set1_epi32(stride)), p, 4);
}
INLINE float vf_hsum(vf x) /* one fixed tree */
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INLINE float vf_hmax(vf x)
{
    return _mm512_reduce_max_ps(x);
}
/* P halves or bfloats, or masked ones, to fp32 and back (round to nearest even). */
INLINE vf vf_from_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf vf_from_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE void vf_to_half(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE void vf_to_bf16(uint16_t *p, vf x) /* x is no NaN */
{
    vi u = _mm512_castps_si512(x);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
/* Two bf16 weights a lane, the first in the low half. */
INLINE vf vf_bf16_low(vi pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
INLINE vf vf_bf16_high(vi pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE void vi_store(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
INLINE vi vi_set1_8(int x)
{
    return _mm512_set1_epi8((char)x);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_shl(vi a, int n)
{
    return (vi)((__v16su)a << n);
}
INLINE vi vi_shr(vi a, int n)
{
    return (vi)((__v16su)a >> n);
}
INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}
INLINE vi vi_from_float(vf a) /* to the nearest, ties to even */
{
    return _mm512_cvtps_epi32(a);
}
INLINE int32_t vi_hsum(vi a)
{
    return _mm512_reduce_add_epi32(a);
}
INLINE int32_t vi_hmax(vi a)
{
    return _mm512_reduce_max_epi32(a);
}
INLINE void vi_to_i8(int8_t *p, vi a) /* P lanes in -128 … 127 to P bytes */
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}
INLINE vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
/* sum + the dot product of each lane's four unsigned bytes of w and signed bytes of x. Written out because
 * gcc 12 surrounds the intrinsic with register copies. */
INLINE vi vi_dot4(vi sum, vi w, vi x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}
INLINE vf vi_to_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
INLINE vf vf_from_u8(const uint8_t *p) /* P bytes */
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vf vf_from_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vi vi_lookup16(const uint8_t table[16], vi index) /* table[index] for every byte */
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), index);
}
/* Rows of 16 bytes: lane group i of the result (128 bits) is row[4 i]. */
INLINE vi vi_load_rows(const void *const *row)
{
    vi x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)row[0]));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)row[4]), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)row[8]), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)row[12]), 3);
}
/* In each group of 128 bits: r[i] lane j <-> r[j] lane i. */
INLINE void vi_transpose4(vi r[4])
{
    vi a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    vi c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm512_unpacklo_epi64(a, c);
    r[1] = _mm512_unpackhi_epi64(a, c);
    r[2] = _mm512_unpacklo_epi64(b, d);
    r[3] = _mm512_unpackhi_epi64(b, d);
}
/* The even and the odd signed bytes of every lane, as two 16-bit integers. */
INLINE vi vi_even_bytes(vi x)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
}
INLINE vi vi_odd_bytes(vi x)
{
    return _mm512_srai_epi16(x, 8);
}
/* sum + the dot product of each lane's two signed 16-bit integers. */
INLINE vi vi_dot2(vi sum, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* rows[i] lane j <-> rows[j] lane i. */
INLINE void vf_transpose(vf r[P])
{
    vf t[P];
    UNROLL for (int i = 0; i < P; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < P; i += 4)
    {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
