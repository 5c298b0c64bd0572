/* Tensor element types: what a file's bytes mean. Quantised types store blocks: `block` weights in
 * `bytes` bytes. Numbers are ggml's, so that a GGUF type is a cast after a range check. */
#ifndef SLUICE_QUANT_DTYPE_H
#define SLUICE_QUANT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_Q4_0 = 2,
    DT_Q4_1 = 3,
    DT_Q5_0 = 6,
    DT_Q5_1 = 7,
    DT_Q8_0 = 8,
    DT_Q8_1 = 9,
    DT_Q2_K = 10,
    DT_Q3_K = 11,
    DT_Q4_K = 12,
    DT_Q5_K = 13,
    DT_Q6_K = 14,
    DT_Q8_K = 15,
    DT_IQ2_XXS = 16,
    DT_IQ2_XS = 17,
    DT_IQ3_XXS = 18,
    DT_IQ1_S = 19,
    DT_IQ4_NL = 20,
    DT_IQ3_S = 21,
    DT_IQ2_S = 22,
    DT_IQ4_XS = 23,
    DT_I8 = 24,
    DT_I16 = 25,
    DT_I32 = 26,
    DT_I64 = 27,
    DT_F64 = 28,
    DT_IQ1_M = 29,
    DT_BF16 = 30,
    DT_TQ1_0 = 34,
    DT_TQ2_0 = 35,
    DT_MXFP4 = 39,
    DT_NVFP4 = 40,
    DT_Q1_0 = 41,
    DT_COUNT = 42,
};

struct dtype_info {
    const char *name; /* "Q4_K"; NULL for a number that names no type */
    int block;        /* weights per block; rows are a multiple of it */
    int bytes;        /* bytes per block */
    bool decodable;   /* dtype_to_float knows it */
};

/* Never NULL; for an unknown number, an entry whose name is NULL. */
const struct dtype_info *dtype_info(int dtype);

/* Bytes of a row of `cols` weights. cols must be a multiple of the block (see dtype_row_fits). */
size_t dtype_row_bytes(enum dtype dtype, int64_t cols);
bool dtype_row_fits(enum dtype dtype, int64_t cols);

/* Decodes n weights (a multiple of the block) at src, which need not be aligned, into dst [n].
 * The plain reference: exact by the format's definition. The type must be decodable. */
void dtype_to_float(enum dtype dtype, const void *src, float *dst, int64_t n);

/* Scalars. float -> half and bf16 round to nearest even; NaN stays NaN, overflow becomes infinity. */
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
static inline float bf16_to_float(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)b << 16};
    return v.f;
}
uint16_t float_to_bf16(float f);

#endif
