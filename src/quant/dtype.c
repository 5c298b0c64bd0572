/* The table of element types, the scalar conversions, and dtype_to_float, which sends a row of blocks to its
 * decoder. */
#include "quant/dtype.h"

#include <assert.h>
#include <string.h>

#include "quant/dequant.h"

/* ---- Types that hold one number per element ------------------------------------------------------------ */

static void cast_f32(const uint8_t *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void cast_f16(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = load_half(src + 2 * i);
}

static void cast_bf16(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bf16_to_float(load_u16(src + 2 * i));
}

static void cast_f64(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, src + 8 * i, 8);
        dst[i] = (float)x;
    }
}

static void cast_i8(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)(int8_t)src[i];
}

static void cast_i16(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)(int16_t)load_u16(src + 2 * i);
}

static void cast_i32(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)(int32_t)load_u32(src + 4 * i);
}

static void cast_i64(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t x;
        memcpy(&x, src + 8 * i, 8);
        dst[i] = (float)x;
    }
}

/* ---- The table ------------------------------------------------------------------------------------------
 */

static const struct {
    struct dtype_info info;
    dequant_fn *decode;
} types[DT_COUNT] = {
#define TYPE(name, block, bytes, decode) [DT_##name] = {{#name, block, bytes, true}, decode}
#define NAME(name, block, bytes)         [DT_##name] = {{#name, block, bytes, false}, NULL}
    TYPE(F32, 1, 4, cast_f32),
    TYPE(F16, 1, 2, cast_f16),
    TYPE(Q4_0, 32, 18, dequant_q4_0),
    TYPE(Q4_1, 32, 20, dequant_q4_1),
    TYPE(Q5_0, 32, 22, dequant_q5_0),
    TYPE(Q5_1, 32, 24, dequant_q5_1),
    TYPE(Q8_0, 32, 34, dequant_q8_0),
    NAME(Q8_1, 32, 36), /* Q8_1 and Q8_K are forms of activations: no file of weights has them */
    TYPE(Q2_K, 256, 84, dequant_q2_k),
    TYPE(Q3_K, 256, 110, dequant_q3_k),
    TYPE(Q4_K, 256, 144, dequant_q4_k),
    TYPE(Q5_K, 256, 176, dequant_q5_k),
    TYPE(Q6_K, 256, 210, dequant_q6_k),
    NAME(Q8_K, 256, 292),
    TYPE(IQ2_XXS, 256, 66, dequant_iq2_xxs),
    TYPE(IQ2_XS, 256, 74, dequant_iq2_xs),
    TYPE(IQ3_XXS, 256, 98, dequant_iq3_xxs),
    TYPE(IQ1_S, 256, 50, dequant_iq1_s),
    TYPE(IQ4_NL, 32, 18, dequant_iq4_nl),
    TYPE(IQ3_S, 256, 110, dequant_iq3_s),
    TYPE(IQ2_S, 256, 82, dequant_iq2_s),
    TYPE(IQ4_XS, 256, 136, dequant_iq4_xs),
    TYPE(I8, 1, 1, cast_i8),
    TYPE(I16, 1, 2, cast_i16),
    TYPE(I32, 1, 4, cast_i32),
    TYPE(I64, 1, 8, cast_i64),
    TYPE(F64, 1, 8, cast_f64),
    TYPE(IQ1_M, 256, 56, dequant_iq1_m),
    TYPE(BF16, 1, 2, cast_bf16),
    TYPE(TQ1_0, 256, 54, dequant_tq1_0),
    TYPE(TQ2_0, 256, 66, dequant_tq2_0),
    TYPE(MXFP4, 32, 17, dequant_mxfp4),
    TYPE(NVFP4, 64, 36, dequant_nvfp4),
    NAME(Q1_0, 128, 18),
#undef TYPE
#undef NAME
};

const struct dtype_info *dtype_info(int dtype)
{
    static const struct dtype_info unknown = {.block = 1};
    if (dtype < 0 || dtype >= DT_COUNT || !types[dtype].info.name)
        return &unknown;
    return &types[dtype].info;
}

bool dtype_row_fits(enum dtype dtype, int64_t cols)
{
    return cols % dtype_info((int)dtype)->block == 0;
}

size_t dtype_row_bytes(enum dtype dtype, int64_t cols)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    return (size_t)(cols / info->block) * (size_t)info->bytes;
}

void dtype_to_float(enum dtype dtype, const void *src, float *dst, int64_t n)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    assert(info->decodable && n % info->block == 0); /* the caller's promise, not a check of input */
    types[dtype].decode(src, dst, n / info->block);
}

/* ---- Scalars --------------------------------------------------------------------------------------------
 */

static float float_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    if (exponent == 31) /* infinity or NaN, its payload kept */
        return float_from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent)
        return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Zero or subnormal, mantissa * 2^-24, which floats hold exactly. */
    return float_from_bits(sign | float_bits((float)mantissa * 0x1p-24f));
}

uint16_t float_to_half(float f)
{
    const uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN: quiet, the upper payload kept */
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) /* below 2^-14: subnormal; the addition of 0.5 rounds at bit 2^-24 */
        return (uint16_t)(sign | (float_bits(float_from_bits(magnitude) + 0.5f) - 0x3F000000));
    const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
}

uint16_t float_to_bf16(float f)
{
    const uint32_t u = float_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) /* NaN: its low payload must not vanish and leave infinity */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
