/* The first formats: 32 weights a block, one scale `d` (and for the _1 kinds one minimum `m`) in fp16.
 *
 *   Q4_0  d, 16 bytes          w = d * (q - 8)
 *   Q4_1  d, m, 16 bytes       w = d * q + m
 *   Q5_0  d, 4 + 16 bytes      w = d * (q - 16)
 *   Q5_1  d, m, 4 + 16 bytes   w = d * q + m
 *   Q8_0  d, 32 signed bytes   w = d * q
 *
 * Byte j of the nibbles holds weight j below and weight j + 16 above. The fifth bits of the 5-bit kinds stand
 * before the nibbles, bit j that of weight j. */
#include "quant/dequant.h"

void dequant_q4_0(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 18, dst += 32) {
        const float d = load_half(b);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)((b[2 + j] & 15) - 8);
            dst[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
        }
    }
}

void dequant_q4_1(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 20, dst += 32) {
        const float d = load_half(b), m = load_half(b + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)(b[4 + j] & 15) + m;
            dst[j + 16] = d * (float)(b[4 + j] >> 4) + m;
        }
    }
}

void dequant_q5_0(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 22, dst += 32) {
        const float d = load_half(b);
        const uint32_t high = load_u32(b + 2);
        for (int j = 0; j < 16; j++) {
            int low = b[6 + j] & 15, up = b[6 + j] >> 4;
            dst[j] = d * (float)((low | (int)(high >> j & 1) << 4) - 16);
            dst[j + 16] = d * (float)((up | (int)(high >> (j + 16) & 1) << 4) - 16);
        }
    }
}

void dequant_q5_1(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 24, dst += 32) {
        const float d = load_half(b), m = load_half(b + 2);
        const uint32_t high = load_u32(b + 4);
        for (int j = 0; j < 16; j++) {
            int low = b[8 + j] & 15, up = b[8 + j] >> 4;
            dst[j] = d * (float)(low | (int)(high >> j & 1) << 4) + m;
            dst[j + 16] = d * (float)(up | (int)(high >> (j + 16) & 1) << 4) + m;
        }
    }
}

void dequant_q8_0(const uint8_t *b, float *dst, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; i++, b += 34, dst += 32) {
        const float d = load_half(b);
        for (int j = 0; j < 32; j++)
            dst[j] = d * (float)(int8_t)b[2 + j];
    }
}
