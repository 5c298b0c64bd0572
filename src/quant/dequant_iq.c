/* The IQ formats: weights in groups of 8 (or 4) are one point of a fixed grid (iq_grids.h), with signs apart;
 * IQ4_NL and IQ4_XS instead look each weight up in a table of 16 uneven steps. 256 weights a super-block
 * (IQ4_NL: 32), scale `d` in fp16.
 *
 *   IQ2_XXS  d, 8 x (four 8-bit codes; four 7-bit signs and a 4-bit scale)
 *   IQ2_XS   d, 32 x (9-bit code, 7-bit signs), 16 scales of 4 bits
 *   IQ2_S    d, 32 low codes, 32 signs, 32 top pairs of the codes, 16 scales of 4 bits
 *   IQ3_XXS  d, 64 codes, 8 x (four 7-bit signs and a 4-bit scale)
 *   IQ3_S    d, 64 low codes, 64 ninth bits, 32 signs, 8 scales of 4 bits
 *   IQ1_S    d, 32 low codes, 8 x (four top triples, 3-bit scale, sign of the shift)
 *   IQ1_M    32 low codes, 32 x (top triple, sign of the shift), 16 scales of 3 bits with d in between
 *   IQ4_NL   d, 16 bytes       IQ4_XS   d, 8 top pairs and 8 low nibbles of 6-bit scales, 128 bytes */
#include "quant/dequant.h"
#include "quant/iq_grids.h"

/* Seven stored signs; the eighth makes the number of minuses even. */
static unsigned even_signs(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* dst[j] = scale * point[j], minus where bit j of signs is set. */
static void signed_point(float *dst, float scale, const int8_t *point, int n, unsigned signs)
{
    for (int j = 0; j < n; j++)
        dst[j] = scale * (float)(signs >> j & 1 ? -point[j] : point[j]);
}

void dequant_iq2_xxs(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 66, dst += 256) {
        const float d = load_half(b);
        for (int g = 0; g < 8; g++) {
            const uint8_t *codes = b + 2 + g * 8;
            const uint32_t rest = load_u32(codes + 4);
            const float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
            for (int k = 0; k < 4; k++)
                signed_point(dst + g * 32 + k * 8, scale, grids->iq2_xxs[codes[k]], 8,
                             even_signs(rest >> 7 * k & 127));
        }
    }
}

void dequant_iq2_xs(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 74, dst += 256) {
        const float d = load_half(b);
        for (int k = 0; k < 32; k++) {
            const unsigned code = load_u16(b + 2 + k * 2), nibble = b[66 + k / 4] >> k / 2 % 2 * 4 & 15;
            signed_point(dst + k * 8, d * (0.5f + (float)nibble) * 0.25f, grids->iq2_xs[code & 511], 8,
                         even_signs(code >> 9));
        }
    }
}

void dequant_iq2_s(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 82, dst += 256) {
        const uint8_t *low = b + 2, *signs = b + 34, *top = b + 66, *scales = b + 74;
        const float d = load_half(b);
        for (int k = 0; k < 32; k++) {
            const int code = low[k] | (top[k / 4] >> k % 4 * 2 & 3) << 8;
            const int nibble = scales[k / 4] >> k / 2 % 2 * 4 & 15;
            signed_point(dst + k * 8, d * (0.5f + (float)nibble) * 0.25f, grids->iq2_s[code], 8, signs[k]);
        }
    }
}

void dequant_iq3_xxs(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 98, dst += 256) {
        const float d = load_half(b);
        for (int g = 0; g < 8; g++) {
            const uint8_t *codes = b + 2 + g * 8;
            const uint32_t rest = load_u32(b + 66 + g * 4);
            const float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
            for (int k = 0; k < 8; k++) {
                const unsigned signs = even_signs(rest >> 7 * (k / 2) & 127);
                signed_point(dst + g * 32 + k * 4, scale, grids->iq3_xxs[codes[k]], 4, signs >> k % 2 * 4);
            }
        }
    }
}

void dequant_iq3_s(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 110, dst += 256) {
        const uint8_t *low = b + 2, *ninth = b + 66, *signs = b + 74, *scales = b + 106;
        const float d = load_half(b);
        for (int k = 0; k < 64; k++) {
            const int code = low[k] | (ninth[k / 8] >> k % 8 & 1) << 8;
            const int nibble = scales[k / 16] >> k / 8 % 2 * 4 & 15;
            signed_point(dst + k * 4, d * (float)(1 + 2 * nibble), grids->iq3_s[code], 4,
                         (unsigned)signs[k / 2] >> k % 2 * 4);
        }
    }
}

/* The IQ1 formats move a whole point of -1, 0, 1 up or down by an eighth. */
static void shifted_point(float *dst, float scale, const int8_t *point, bool down)
{
    const float shift = down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++)
        dst[j] = scale * ((float)point[j] + shift);
}

void dequant_iq1_s(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 50, dst += 256) {
        const float d = load_half(b);
        for (int k = 0; k < 32; k++) {
            const unsigned rest = load_u16(b + 34 + k / 4 * 2);
            const unsigned code = b[2 + k] | (rest >> k % 4 * 3 & 7) << 8;
            shifted_point(dst + k * 8, d * (float)(2 * (rest >> 12 & 7) + 1), grids->iq1[code], rest >> 15);
        }
    }
}

void dequant_iq1_m(const uint8_t *b, float *dst, int64_t n_blocks)
{
    const struct iq_grids *grids = iq_grids();
    for (int64_t i = 0; i < n_blocks; i++, b += 56, dst += 256) {
        const uint8_t *low = b, *top = b + 32, *scales = b + 48;
        unsigned half = 0; /* d: one nibble in the top of each word of scales, lowest first */
        for (int w = 0; w < 4; w++)
            half |= (unsigned)load_u16(scales + w * 2) >> 12 << w * 4;
        const float d = half_to_float((uint16_t)half);
        for (int k = 0; k < 32; k++) {
            const unsigned triple = load_u16(scales + k / 8 * 2) >> k / 2 % 4 * 3 & 7;
            const unsigned rest = top[k / 2] >> k % 2 * 4;
            shifted_point(dst + k * 8, d * (float)(2 * triple + 1), grids->iq1[low[k] | (rest & 7) << 8],
                          rest & 8);
        }
    }
}

static const int8_t uneven_steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

/* 32 weights from 16 bytes: weight j below, j + 16 above. */
static void look_up(float *dst, float scale, const uint8_t *q)
{
    for (int j = 0; j < 16; j++) {
        dst[j] = scale * (float)uneven_steps[q[j] & 15];
        dst[j + 16] = scale * (float)uneven_steps[q[j] >> 4];
    }
}

void dequant_iq4_nl(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 18, dst += 32)
        look_up(dst, load_half(b), b + 2);
}

void dequant_iq4_xs(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 136, dst += 256) {
        const float d = load_half(b);
        const int top = load_u16(b + 2);
        for (int g = 0; g < 8; g++) {
            const int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (top >> 2 * g & 3) << 4;
            look_up(dst + g * 32, d * (float)(scale - 32), b + 8 + g * 16);
        }
    }
}
