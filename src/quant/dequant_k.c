/* The K formats: 256 weights a super-block, whose scale `d` (and minimum `dmin`) in fp16 are multiplied by
 * small integer scales of its groups of 16 or 32 weights.
 *
 *   Q2_K  16 scales, 64 codes, d, dmin             groups of 16: w = d*s * q - dmin*m
 *   Q3_K  32 high bits, 64 codes, 12 scales, d     groups of 16: w = d*(s - 32) * (q - 4)
 *   Q4_K  d, dmin, 12 scales, 128 codes            groups of 32: w = d*s * q - dmin*m
 *   Q5_K  d, dmin, 12 scales, 32 high bits, 128    groups of 32: as Q4_K with a fifth bit
 *   Q6_K  128 low bits, 64 high bits, 16 scales, d groups of 16: w = d*s * (q - 32), s signed
 *
 * (Numbers are bytes.) Codes lie in planes, made for wide registers: 32 bytes hold weight j of several groups
 * of 32 side by side, lowest bits first. */
#include "quant/dequant.h"

void dequant_q2_k(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 84, dst += 256) {
        const uint8_t *scales = b, *codes = b + 16;
        const float d = load_half(b + 80), dmin = load_half(b + 82);
        for (int g = 0; g < 16; g++) { /* group g: half g/8 of the codes, plane g/2 % 4, side g % 2 */
            const float scale = d * (float)(scales[g] & 15), min = dmin * (float)(scales[g] >> 4);
            const uint8_t *q = codes + g / 8 * 32 + g % 2 * 16;
            const int shift = g / 2 % 4 * 2;
            for (int j = 0; j < 16; j++)
                dst[g * 16 + j] = scale * (float)(q[j] >> shift & 3) - min;
        }
    }
}

void dequant_q3_k(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 110, dst += 256) {
        const uint8_t *high = b, *codes = b + 32, *scales = b + 96;
        const float d = load_half(b + 108);
        for (int g = 0; g < 16; g++) {
            /* 6-bit scales: the low nibbles of 0…7 and then 8…15 share 8 bytes, their top pairs 4 bytes */
            int low = scales[g % 8] >> g / 8 * 4 & 15, top = scales[8 + g % 4] >> g / 4 * 2 & 3;
            const float scale = d * (float)((low | top << 4) - 32);
            const uint8_t *q = codes + g / 8 * 32 + g % 2 * 16, *h = high + g % 2 * 16;
            const int shift = g / 2 % 4 * 2, bit = g / 2;
            for (int j = 0; j < 16; j++) /* a *clear* high bit means minus four */
                dst[g * 16 + j] = scale * (float)((q[j] >> shift & 3) - (h[j] >> bit & 1 ? 0 : 4));
        }
    }
}

/* Q4_K and Q5_K: 6-bit scale and minimum of group g = 0…7 out of 12 bytes. The first four of each are the low
 * six bits of bytes 0…3 and 4…7, whose top pairs complete the nibbles that bytes 8…11 hold for the others. */
static void scale_and_min(const uint8_t *s, int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *min = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

void dequant_q4_k(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 144, dst += 256) {
        const float d = load_half(b), dmin = load_half(b + 2);
        for (int g = 0; g < 8; g++) {
            int s, m;
            scale_and_min(b + 4, g, &s, &m);
            const float scale = d * (float)s, min = dmin * (float)m;
            const uint8_t *q = b + 16 + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int j = 0; j < 32; j++)
                dst[g * 32 + j] = scale * (float)(q[j] >> shift & 15) - min;
        }
    }
}

void dequant_q5_k(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 176, dst += 256) {
        const float d = load_half(b), dmin = load_half(b + 2);
        const uint8_t *high = b + 16;
        for (int g = 0; g < 8; g++) {
            int s, m;
            scale_and_min(b + 4, g, &s, &m);
            const float scale = d * (float)s, min = dmin * (float)m;
            const uint8_t *q = b + 48 + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int j = 0; j < 32; j++)
                dst[g * 32 + j] = scale * (float)((q[j] >> shift & 15) | (high[j] >> g & 1) << 4) - min;
        }
    }
}

void dequant_q6_k(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 210, dst += 256) {
        const uint8_t *low = b, *high = b + 128, *scales = b + 192;
        const float d = load_half(b + 208);
        for (int g = 0; g < 16; g++) {
            const float scale = d * (float)(int8_t)scales[g];
            /* within each half of 128: nibbles in two planes of 64 bytes, top pairs in four planes of 32 */
            const uint8_t *l = low + g / 8 * 64 + g % 4 * 16, *h = high + g / 8 * 32 + g % 2 * 16;
            const int shift = g / 4 % 2 * 4, pair = g / 2 % 4 * 2;
            for (int j = 0; j < 16; j++)
                dst[g * 16 + j] = scale * (float)(((l[j] >> shift & 15) | (h[j] >> pair & 3) << 4) - 32);
        }
    }
}
