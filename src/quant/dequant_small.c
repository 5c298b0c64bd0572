/* Formats of very few values: ternary (TQ1_0, TQ2_0) and the 4-bit floats of the microscaling standards
 * (MXFP4, NVFP4).
 *
 *   TQ1_0  48 + 4 bytes of five (four) base-3 digits, d     256 weights, w = d * (digit - 1)
 *   TQ2_0  64 bytes of four 2-bit codes, d                  256 weights, w = d * (q - 1)
 *   MXFP4  one E8M0 exponent, 16 bytes of E2M1 pairs        32 weights
 *   NVFP4  four UE4M3 scales, 4 x 8 bytes of E2M1 pairs     64 weights in groups of 16 */
#include "quant/dequant.h"

#include <math.h>

/* Byte b is ceil(256 v / 243) for the five-digit number v = digits after a ternary point: multiplying by 3^k
 * modulo 256 moves digit k to the front, where times three over 256 reads it. */
static int ternary_digit(uint8_t b, int k)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(b * power[k]) * 3 >> 8;
}

void dequant_tq1_0(const uint8_t *b, float *dst, int64_t n_blocks)
{
    /* Digit k of a run of `count` bytes gives `count` neighbouring weights: runs of 32, 16 and 4 bytes. */
    static const struct {
        int first, count, digits;
    } runs[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    for (int64_t i = 0; i < n_blocks; i++, b += 54) {
        const float d = load_half(b + 52);
        for (int r = 0; r < 3; r++)
            for (int k = 0; k < runs[r].digits; k++)
                for (int j = 0; j < runs[r].count; j++)
                    *dst++ = d * (float)(ternary_digit(b[runs[r].first + j], k) - 1);
    }
}

void dequant_tq2_0(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 66, dst += 256) {
        const float d = load_half(b + 64);
        for (int g = 0; g < 8; g++)
            for (int j = 0; j < 32; j++)
                dst[g * 32 + j] = d * (float)((b[g / 4 * 32 + j] >> g % 4 * 2 & 3) - 1);
    }
}

/* E2M1 (sign, two exponent bits, one of mantissa) times two, so that it is a whole number; scales below are
 * halved for it. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void dequant_mxfp4(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 17, dst += 32) {
        const float d = ldexpf(1.0f, (int)b[0] - 128); /* 2^(e - 127), halved; 2^-128 is subnormal, exact */
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)e2m1_doubled[b[1 + j] & 15];
            dst[j + 16] = d * (float)e2m1_doubled[b[1 + j] >> 4];
        }
    }
}

/* Unsigned E4M3 (bias 7), halved. The top bit is ignored, and 0x7F, the format's only NaN, counts as zero. */
static float ue4m3_halved(uint8_t x)
{
    const int exponent = x >> 3 & 15, mantissa = x & 7;
    if (x == 0x7F)
        return 0;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 11) : ldexpf((float)mantissa, -10);
}

void dequant_nvfp4(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 36, dst += 64)
        for (int g = 0; g < 4; g++) {
            const float d = ue4m3_halved(b[g]);
            const uint8_t *q = b + 4 + g * 8;
            for (int j = 0; j < 8; j++) {
                dst[g * 16 + j] = d * (float)e2m1_doubled[q[j] & 15];
                dst[g * 16 + j + 8] = d * (float)e2m1_doubled[q[j] >> 4];
            }
        }
}
