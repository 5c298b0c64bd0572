/* Encoding, private to src/quant. All formats that are written have one shape: a block of 32 or 256 weights
 * falls into groups, and weight j of group g stands for scale[g] * code[j] + min[g], with whole codes between
 * lo and hi. Formats differ in how scale and min may be chosen and in where the bits go; choosing codes is
 * the same for all (quantize.c), so that errors can be fed back from weight to weight in one place. */
#ifndef SLUICE_QUANT_ENCODE_H
#define SLUICE_QUANT_ENCODE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "quant/dtype.h"

enum { ENCODE_MAX_BLOCK = 256, ENCODE_MAX_GROUPS = 16 };

struct block_code {
    uint16_t d, dmin;                                       /* fp16, as they are stored */
    int16_t scale_code[ENCODE_MAX_GROUPS];                  /* K formats: scale[g] = d * scale_code[g] */
    int16_t min_code[ENCODE_MAX_GROUPS];                    /* … min[g] = -dmin * min_code[g] */
    float scale[ENCODE_MAX_GROUPS], min[ENCODE_MAX_GROUPS]; /* exactly what the decoder will have */
    int16_t codes[ENCODE_MAX_BLOCK];
};

struct block_format {
    enum dtype dtype;
    int block, group; /* weights */
    int lo, hi;       /* codes */
    /* Chooses the scales and mins for x [block], so that the sum of w [block] times squared errors is small.
     */
    void (*fit)(const struct block_format *f, struct block_code *c, const float *x, const float *w);
    /* Chooses group g's again for other x, w [group], keeping what groups share. NULL where a block is one
     * group: then fit does it. */
    void (*refit)(const struct block_format *f, struct block_code *c, int g, const float *x, const float *w);
    void (*store)(const struct block_code *c, uint8_t *out);
};

extern const struct block_format format_q4_0, format_q4_1, format_q5_0, format_q5_1, format_q8_0;
extern const struct block_format format_q4_k, format_q5_k, format_q6_k;

/* NULL for a type that is not written here. */
const struct block_format *block_format(enum dtype dtype);

/* Nearest whole number (ties to even), for |x| < 2^22. */
static inline float round_near(float x)
{
    const float magic = 12582912.0f;
    return x + magic - magic;
}

static inline int nearest_code(float x, float scale, float min, int lo, int hi)
{
    if (scale == 0)
        return 0;
    float q = (x - min) / scale;
    return !(q > (float)lo) ? lo : q >= (float)hi ? hi : (int)round_near(q); /* NaN: lo */
}

/* fp16 of x, at most the largest finite one; 0 for NaN. */
static inline uint16_t to_half(float x)
{
    const float most = 65504.0f;
    return float_to_half(x > most ? most : x < -most ? -most : x == x ? x : 0);
}

/* Searches the scale s of x [n] (n a multiple of 4, at most 32) ≈ s * code, lo <= code <= hi. */
float search_scale(const float *x, const float *w, int n, int lo, int hi);
/* Searches s >= 0 and m of x [n] ≈ s * code + m, 0 <= code <= hi; with `below`, m is at most 0. */
void search_scale_min(const float *x, const float *w, int n, int hi, bool below, float *s, float *m);
/* Sum of w (x - nearest)² for a scale and a min. */
float fit_error(const float *x, const float *w, int n, int lo, int hi, float s, float m);

static inline void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

#endif
