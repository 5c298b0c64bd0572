/* simd.h for ARMv8.2 with the dot product instructions. min and max give their second operand where one is
 * NaN, as x86 does: the kernels count on it. */
#ifndef SLUICE_OPS_CPU_SIMD_NEON_H
#define SLUICE_OPS_CPU_SIMD_NEON_H

#include <arm_neon.h>

#define P          4
#define REGISTERS  32
#define DOT4_CODES /* vi_dot4 multiplies signed bytes: 8-bit codes keep their sign, the others are small */

typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vmask;

INLINE vf vf_zero(void)
{
    return vdupq_n_f32(0);
}
INLINE vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
INLINE vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
INLINE vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
INLINE vf vf_round(vf a)
{
    return vrndnq_f32(a);
}
INLINE vmask vmask_range(int from, int to)
{
    const int32_t lanes[4] = {0, 1, 2, 3};
    vi lane = vld1q_s32(lanes);
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(from)), vcltq_s32(lane, vdupq_n_s32(to)));
}
INLINE vf vf_select(vmask m, vf on, vf off)
{
    return vbslq_f32(m, on, off);
}
INLINE vf vf_load_masked(const float *p, vmask m)
{
    if (vminvq_u32(m))
        return vld1q_f32(p);
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = m[i] ? p[i] : 0;
    return vld1q_f32(x);
}
INLINE void vf_store_masked(float *p, vmask m, vf x)
{
    if (vminvq_u32(m)) {
        vst1q_f32(p, x);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (m[i])
            p[i] = x[i];
}
INLINE vf vf_scale2(vf x, vf n)
{
    /* Below 2^-126 the result is called 0; above 2^127 it is reached in two steps, to infinity. */
    vf top = vf_min(n, vdupq_n_f32(127.0f));
    vi bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(top), vdupq_n_s32(127)), 23);
    vi rest = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(vsubq_f32(n, top)), vdupq_n_s32(127)), 23);
    vf y = vmulq_f32(vmulq_f32(x, vreinterpretq_f32_s32(bits)), vreinterpretq_f32_s32(rest));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(n, vdupq_n_f32(-126.0f))));
}
INLINE vf vf_gather(const float *p, int stride, vmask m)
{
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = m[i] ? p[i * stride] : 0;
    return vld1q_f32(x);
}
INLINE float vf_hsum(vf x)
{
    return (x[0] + x[2]) + (x[1] + x[3]);
}
INLINE float vf_hmax(vf x)
{
    return vmaxvq_f32(x);
}
INLINE vf vf_from_half(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
INLINE vf vf_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
INLINE void vf_to_half(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
INLINE void vf_to_bf16(uint16_t *p, vf x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}
INLINE vf vf_bf16_low(vi pairs)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(pairs, 16));
}
INLINE vf vf_bf16_high(vi pairs)
{
    return vreinterpretq_f32_s32(vandq_s32(pairs, vdupq_n_s32((int)0xffff0000)));
}

INLINE vi vi_zero(void)
{
    return vdupq_n_s32(0);
}
INLINE vi vi_load(const void *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
INLINE void vi_store(void *p, vi x)
{
    vst1q_u8(p, vreinterpretq_u8_s32(x));
}
INLINE vi vi_set1(int32_t x)
{
    return vdupq_n_s32(x);
}
INLINE vi vi_set1_8(int x)
{
    return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)x));
}
INLINE vi vi_and(vi a, vi b)
{
    return vandq_s32(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return vorrq_s32(a, b);
}
INLINE vi vi_add(vi a, vi b)
{
    return vaddq_s32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return vsubq_s32(a, b);
}
INLINE vi vi_shl(vi a, int n)
{
    return (vi)((uint32x4_t)a << (unsigned)n);
}
INLINE vi vi_shr(vi a, int n)
{
    return (vi)((uint32x4_t)a >> (unsigned)n);
}
INLINE vi vi_max(vi a, vi b)
{
    return vmaxq_s32(a, b);
}
INLINE vi vi_from_float(vf a)
{
    return vcvtnq_s32_f32(a);
}
INLINE int32_t vi_hsum(vi a)
{
    return vaddvq_s32(a);
}
INLINE int32_t vi_hmax(vi a)
{
    return vmaxvq_s32(a);
}
INLINE void vi_to_i8(int8_t *p, vi a)
{
    int16x4_t words = vmovn_s32(a);
    int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
    memcpy(p, &four, 4);
}
INLINE vi vf_bits(vf a)
{
    return vreinterpretq_s32_f32(a);
}
INLINE vi vi_dot4(vi sum, vi w, vi x)
{
    return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
INLINE vf vi_to_float(vi a)
{
    return vcvtq_f32_s32(a);
}
INLINE vf vf_from_u8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
INLINE vf vf_from_i8(const int8_t *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
INLINE vi vi_lookup16(const uint8_t table[16], vi index)
{
    return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(index)));
}
INLINE vi vi_load_rows(const void *const *row)
{
    return vi_load(row[0]);
}
INLINE void vi_transpose4(vi r[4])
{
    vi a = vzip1q_s32(r[0], r[2]), b = vzip2q_s32(r[0], r[2]);
    vi c = vzip1q_s32(r[1], r[3]), d = vzip2q_s32(r[1], r[3]);
    r[0] = vzip1q_s32(a, c);
    r[1] = vzip2q_s32(a, c);
    r[2] = vzip1q_s32(b, d);
    r[3] = vzip2q_s32(b, d);
}
INLINE vi vi_even_bytes(vi x)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(x), 8), 8));
}
INLINE vi vi_odd_bytes(vi x)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(x), 8));
}
INLINE vi vi_dot2(vi sum, vi a, vi b)
{
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}

INLINE void vf_transpose(vf r[P])
{
    vi t[4];
    for (int i = 0; i < 4; i++)
        t[i] = vreinterpretq_s32_f32(r[i]);
    vi_transpose4(t);
    for (int i = 0; i < 4; i++)
        r[i] = vreinterpretq_f32_s32(t[i]);
}

#endif
