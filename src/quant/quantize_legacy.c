/* Encoding the formats with one fp16 scale, and for the _1 kinds one fp16 minimum, a block of 32 (layouts:
 * dequant_legacy.c). */
#include <stdbool.h>

#include "quant/encode.h"

/* The three fp16 values about the best scale: rounding may cost more on one side than on the other. */
static void fit_symmetric(const struct block_format *f, struct block_code *c, const float *x, const float *w)
{
    uint16_t nearest = to_half(search_scale(x, w, 32, f->lo, f->hi));
    float best = INFINITY;
    c->d = nearest; /* stands where all errors overflow */
    for (int step = -1; step <= 1; step++) {
        uint16_t d = (uint16_t)(nearest + step);
        if ((nearest & 0x7FFF) == 0 && step)
            continue; /* zero has no neighbours worth a try, and -1 would make a NaN of it */
        if ((d & 0x7C00) == 0x7C00)
            continue;
        float e = fit_error(x, w, 32, f->lo, f->hi, half_to_float(d), 0);
        if (e < best) {
            best = e;
            c->d = d;
        }
    }
    c->dmin = 0;
    c->scale[0] = half_to_float(c->d);
    c->min[0] = 0;
}

static void fit_affine(const struct block_format *f, struct block_code *c, const float *x, const float *w)
{
    float s, m;
    search_scale_min(x, w, 32, f->hi, false, &s, &m);
    c->d = to_half(s);
    c->dmin = to_half(m);
    c->scale[0] = half_to_float(c->d);
    c->min[0] = half_to_float(c->dmin);
}

static void store_nibbles(const int16_t *codes, int plus, uint8_t *out)
{
    for (int j = 0; j < 16; j++)
        out[j] = (uint8_t)(((codes[j] + plus) & 15) | ((codes[j + 16] + plus) & 15) << 4);
}

static void store_fifth_bits(const int16_t *codes, int plus, uint8_t *out)
{
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)((codes[j] + plus) >> 4 & 1) << j;
    store_u16(out, (uint16_t)high);
    store_u16(out + 2, (uint16_t)(high >> 16));
}

static void store_q4_0(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    store_nibbles(c->codes, 8, out + 2);
}

static void store_q4_1(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    store_u16(out + 2, c->dmin);
    store_nibbles(c->codes, 0, out + 4);
}

static void store_q5_0(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    store_fifth_bits(c->codes, 16, out + 2);
    store_nibbles(c->codes, 16, out + 6);
}

static void store_q5_1(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    store_u16(out + 2, c->dmin);
    store_fifth_bits(c->codes, 0, out + 4);
    store_nibbles(c->codes, 0, out + 8);
}

static void store_q8_0(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    for (int j = 0; j < 32; j++)
        out[2 + j] = (uint8_t)(int8_t)c->codes[j];
}

const struct block_format format_q4_0 = {DT_Q4_0, 32, 32, -8, 7, fit_symmetric, NULL, store_q4_0};
const struct block_format format_q5_0 = {DT_Q5_0, 32, 32, -16, 15, fit_symmetric, NULL, store_q5_0};
/* -128 is left out: other readers negate codes. */
const struct block_format format_q8_0 = {DT_Q8_0, 32, 32, -127, 127, fit_symmetric, NULL, store_q8_0};
const struct block_format format_q4_1 = {DT_Q4_1, 32, 32, 0, 15, fit_affine, NULL, store_q4_1};
const struct block_format format_q5_1 = {DT_Q5_1, 32, 32, 0, 31, fit_affine, NULL, store_q5_1};
