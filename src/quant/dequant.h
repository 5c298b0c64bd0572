/* The block decoders behind dtype_to_float, one a format. Private to src/quant.
 *
 * Each decodes n_blocks consecutive blocks at `blocks` (any alignment) into dst [n_blocks * weights a block].
 * They are references: written for being read, and exact, each float operation in the order in which the
 * format's definition has it. Kernels are tested against them. */
#ifndef SLUICE_QUANT_DEQUANT_H
#define SLUICE_QUANT_DEQUANT_H

#include <stdint.h>
#include <string.h>

#include "quant/dtype.h"

typedef void dequant_fn(const uint8_t *blocks, float *dst, int64_t n_blocks);

dequant_fn dequant_q4_0, dequant_q4_1, dequant_q5_0, dequant_q5_1, dequant_q8_0;
dequant_fn dequant_q2_k, dequant_q3_k, dequant_q4_k, dequant_q5_k, dequant_q6_k;
dequant_fn dequant_iq2_xxs, dequant_iq2_xs, dequant_iq2_s, dequant_iq3_xxs, dequant_iq3_s;
dequant_fn dequant_iq1_s, dequant_iq1_m, dequant_iq4_nl, dequant_iq4_xs;
dequant_fn dequant_tq1_0, dequant_tq2_0, dequant_mxfp4, dequant_nvfp4;

/* Little-endian fields at any alignment. */
static inline uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}

static inline float load_half(const uint8_t *p)
{
    return half_to_float(load_u16(p));
}

#endif
