/* simd.h for AVX2, FMA and F16C. */
#ifndef SLUICE_OPS_CPU_SIMD_AVX2_H
#define SLUICE_OPS_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define P         8
#define REGISTERS 16
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vmask;

INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vmask vmask_range(int from, int to)
{
    vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
}
INLINE vf vf_select(vmask m, vf on, vf off)
{
    return _mm256_blendv_ps(off, on, _mm256_castsi256_ps(m));
}
INLINE vf vf_load_masked(const float *p, vmask m)
{
    return _mm256_maskload_ps(p, m);
}
INLINE void vf_store_masked(float *p, vmask m, vf x)
{
    if (_mm256_movemask_ps(_mm256_castsi256_ps(m)) == 0xff) /* maskstore is very slow on some */
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, m, x);
}
INLINE vf vf_scale2(vf x, vf n)
{
    /* Below 2^-126 the result is called 0; above 2^127 it is reached in two steps, to infinity. */
    vf top = _mm256_min_ps(n, _mm256_set1_ps(127.0f));
    vi bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(top), _mm256_set1_epi32(127)), 23);
    vi rest = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_sub_ps(n, top)), _mm256_set1_epi32(127)), 23);
    vf y = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(bits)), _mm256_castsi256_ps(rest));
    return _mm256_andnot_ps(_mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), y);
}
INLINE vf vf_gather(const float *p, int stride, vmask m)
{
    vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_mask_i32gather_ps(vf_zero(), p, _mm256_mullo_epi32(lane, _mm256_set1_epi32(stride)),
                                    _mm256_castsi256_ps(m), 4);
}
INLINE float vf_hsum(vf x)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INLINE float vf_hmax(vf x)
{
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
INLINE vf vf_from_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_from_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE void vf_to_half(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE void vf_to_bf16(uint16_t *p, vf x)
{
    vi u = _mm256_castps_si256(x);
    vi odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(u));
}
INLINE vf vf_bf16_low(vi pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
INLINE vf vf_bf16_high(vi pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INLINE void vi_store(void *p, vi x)
{
    _mm256_storeu_si256(p, x);
}
INLINE vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
INLINE vi vi_set1_8(int x)
{
    return _mm256_set1_epi8((char)x);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
INLINE vi vi_shl(vi a, int n)
{
    return (vi)((__v8su)a << n);
}
INLINE vi vi_shr(vi a, int n)
{
    return (vi)((__v8su)a >> n);
}
INLINE vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}
INLINE vi vi_from_float(vf a)
{
    return _mm256_cvtps_epi32(a);
}
INLINE int32_t vi_hsum(vi a)
{
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    q = _mm_add_epi32(q, _mm_unpackhi_epi64(q, q));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 1)));
}
INLINE int32_t vi_hmax(vi a)
{
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    q = _mm_max_epi32(q, _mm_unpackhi_epi64(q, q));
    return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 1)));
}
INLINE void vi_to_i8(int8_t *p, vi a)
{
    __m128i q = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(q, q));
}
INLINE vi vf_bits(vf a)
{
    return _mm256_castps_si256(a);
}
INLINE vf vi_to_float(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
INLINE vf vf_from_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf vf_from_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vi vi_lookup16(const uint8_t table[16], vi index)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}
/* Rows of 16 bytes: lane group i of the result (128 bits) is row[4 i]. */
INLINE vi vi_load_rows(const void *const *row)
{
    vi x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)row[0]));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)row[4]), 1);
}
/* In each group of 128 bits: r[i] lane j <-> r[j] lane i. */
INLINE void vi_transpose4(vi r[4])
{
    vi a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    vi c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm256_unpacklo_epi64(a, c);
    r[1] = _mm256_unpackhi_epi64(a, c);
    r[2] = _mm256_unpacklo_epi64(b, d);
    r[3] = _mm256_unpackhi_epi64(b, d);
}
/* The even and the odd signed bytes of every lane, as two 16-bit integers. */
INLINE vi vi_even_bytes(vi x)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}
INLINE vi vi_odd_bytes(vi x)
{
    return _mm256_srai_epi16(x, 8);
}
/* sum + the dot product of each lane's two signed 16-bit integers. */
INLINE vi vi_dot2(vi sum, vi a, vi b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

INLINE void vf_transpose(vf r[P])
{
    vf t[P];
    UNROLL for (int i = 0; i < P; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < P; i += 4)
    {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    UNROLL for (int i = 0; i < P; i++) r[i] = t[i];
}

#endif
