/* Panels: how weights lie in memory. A panel holds 2P rows and is read front to back, one step of k after the
 * other, a step's first half for rows 0 … P-1, its second half for the others. In a half, lane r of a vector
 * belongs to row r: one activation, broadcast, then feeds P rows at once and no sum crosses lanes. Two halves
 * make use of it twice. The same panel serves one token or two thousand.
 *
 * Float panels: a step is [row] for one k, or for two of f16 [2][row] and of bf16 [row][2], so that a shift
 * and a mask make two fp32 vectors.
 *
 * Code panels hold integer codes, w = scale * (code - offset) + min, in groups (steps) of 64 or 256 columns
 * (the last group is filled up with zeros). A 32-bit lane holds codes of four consecutive k, which is what
 * the integer dot product instructions take. With V the bytes of a vector, a block of 32 columns is 8-bit
 * codes  8V  vector g: k = 4g … 4g+3 4-bit codes  4V  vector i: low nibbles k = 4i …, high nibbles k = 16+4i
 * … 2-bit plane  2V  vector i, bits 2s, 2s+1 of each byte: k = 16i + 4s … 1-bit plane  1V  bit g of each
 * byte: k = 4g … and the layout of a group's half is in pf_group_bytes. Packing loses nothing: every format's
 * scales are kept exactly, 6-bit scales widened to a byte. */
#ifndef SLUICE_OPS_CPU_PANEL_H
#define SLUICE_OPS_CPU_PANEL_H

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels/simd.h"

enum panel_format {
    PF_F32,
    PF_F16,
    PF_BF16,
    PF_Q8_0,
    PF_Q4_0,
    PF_Q4_1,
    PF_Q5_0,
    PF_Q5_1,
    PF_IQ4_NL,
    PF_CODE16, /* int8 codes with an fp32 scale per 16: any format whose weights are small integers * scale */
    PF_Q4_K,
    PF_Q5_K,
    PF_Q6_K,
    PF_Q2_K,
    PF_Q3_K,
    PF_IQ4_XS,
    PF_COUNT,
};
#define PF_FIRST_CODE PF_Q8_0
#define PANEL_ROWS    (2 * P)

struct panel_mat {
    struct mat m;
    enum panel_format format;
    int64_t n_panels;   /* ceil(rows / PANEL_ROWS) */
    int64_t n_blocks;   /* code panels: blocks of 32 columns, whole groups */
    size_t panel_bytes; /* a multiple of V */
    uint8_t *data;      /* [n_panels][panel_bytes] */
};

/* What the kernels must know of a code format at compile time. Bytes are of one half of a group. */
INLINE int pf_group_blocks(enum panel_format f)
{
    return f >= PF_Q4_K ? 8 : 2;
}
INLINE int pf_group_bytes(enum panel_format f)
{
    switch (f) {
    case PF_Q8_0:
        return 17 * V; /* d16[2] | codes */
    case PF_Q4_0:
    case PF_IQ4_NL:
        return 9 * V; /* d16[2] | codes4 */
    case PF_Q4_1:
        return 10 * V; /* d16[2] | m16[2] | codes4 */
    case PF_Q5_0:
        return 11 * V; /* d16[2] | plane1 | codes4 */
    case PF_Q5_1:
        return 12 * V; /* d16[2] | m16[2] | plane1 | codes4 */
    case PF_CODE16:
        return 20 * V; /* d32[4] | codes */
    case PF_Q4_K:
        return 37 * V; /* d16, dmin16 | sc8[8] | m8[8] | codes4 */
    case PF_Q5_K:
        return 45 * V; /* d16, dmin16 | sc8[8] | m8[8] | plane1 | codes4 */
    case PF_Q6_K:
        return 53 * V; /* d32 | sc8[16] | plane2 | codes4 */
    case PF_Q2_K:
        return 21 * V; /* d16, dmin16 | scm8[16] | plane2 */
    case PF_Q3_K:
        return 29 * V; /* d32 | sc8[16] | plane1 | plane2 */
    case PF_IQ4_XS:
        return 35 * V; /* d32 | sc8[8] | codes4 */
    default:
        return 0;
    }
}
/* Scales per block of 32. */
INLINE int pf_scales(enum panel_format f)
{
    return f == PF_CODE16 || f == PF_Q6_K || f == PF_Q2_K || f == PF_Q3_K ? 2 : 1;
}
INLINE bool pf_has_min(enum panel_format f)
{
    return f == PF_Q4_1 || f == PF_Q5_1 || f == PF_Q4_K || f == PF_Q5_K || f == PF_Q2_K;
}
/* Bits of a code: what fits into 16-bit sums. 8: any byte. */
INLINE int pf_bits(enum panel_format f)
{
    switch (f) {
    case PF_Q8_0:
    case PF_IQ4_NL:
    case PF_IQ4_XS:
    case PF_CODE16:
        return 8;
    case PF_Q6_K:
        return 6;
    case PF_Q5_0:
    case PF_Q5_1:
    case PF_Q5_K:
        return 5;
    default:
        return 4;
    }
}
/* 8-bit codes are signed where the dot product has no unsigned 8-bit form that cannot overflow (AVX2, NEON),
 * and have 128 added where it has one (VNNI). */
#if defined(__AVX512F__)
#define CODE8_SHIFT 7
#define CODE8_FLIP  0x80
#else
#define CODE8_SHIFT -1
#define CODE8_FLIP  0
#endif
/* log2 of the offset, -1 for none. */
INLINE int pf_shift(enum panel_format f)
{
    switch (f) {
    case PF_Q8_0:
    case PF_IQ4_NL:
    case PF_IQ4_XS:
    case PF_CODE16:
        return CODE8_SHIFT;
    case PF_Q4_0:
        return 3;
    case PF_Q5_0:
        return 4;
    case PF_Q6_K:
        return 5;
    case PF_Q3_K:
        return 2;
    default:
        return -1;
    }
}

/* Formats that take more than a mask and a shift to decode are worth expanding. */
INLINE bool pf_expands(enum panel_format f)
{
    return f == PF_Q5_0 || f == PF_Q5_1 || f >= PF_Q4_K;
}

/* Expanded blocks: every block of 32 as two halves of [scale fp32 vectors][min fp32 vectors][codes 8V],
 * decoded once when many token tiles will pass over it. Bytes of a half. */
INLINE int pf_expanded_bytes(enum panel_format f)
{
    return (8 + pf_scales(f) * (pf_has_min(f) ? 2 : 1)) * V;
}

#define EXPANDED_MOST (12 * V) /* of any format */
#define PIECE_BLOCKS  16       /* that many tiles pass over at a time: they stay in the first-level cache */

/* Activations for code panels, quantised to int8 with a scale per 32, in tiles of `width` tokens. A tile is
 * [block] of { float scale[width]; float scale_sum[width]; int32 neg_sum[width], neg_sum_low[width];
 * int8 codes[8][width][4] }: scale_sum = scale * Σ codes, neg_sum = -Σ codes, neg_sum_low of the first 16. */
#define QX_BLOCK 48 /* bytes a token and block */

/* The balanced cut of n tokens into tiles of at most `max`: tile i covers tokens tile_begin(i) … */
INLINE int tile_count(int n, int max)
{
    return (n + max - 1) / max;
}
INLINE int tile_begin(int n, int tiles, int i)
{
    return (int)((int64_t)n * i / tiles);
}

/* Iq4 code book, as the bytes of this build's 8-bit codes. */
extern const uint8_t LEVEL_NAME(cpu_iq4_codes)[16];

/* pack.c */
enum panel_format LEVEL_NAME(cpu_panel_format)(enum dtype dtype);
size_t LEVEL_NAME(cpu_panel_bytes)(enum panel_format f, int64_t cols);
struct mat *LEVEL_NAME(cpu_mat_create)(struct backend *b, const struct mat_source *src, struct err *e);

/* matmul_code.c. A kernel takes n_blocks blocks of a panel, packed or expanded, times a tile of tokens, and
 * adds them to sums [2 halves][width] vectors. Meanwhile it asks for memory that is needed next, `lines`
 * cache lines from `at` on for every block: with the arithmetic in the way, the hardware would not look far
 * enough. */
#define AHEAD \
    6144 /* bytes from where the float kernels and those of a single token read to what they ask for */
struct ahead {
    const uint8_t *at;
    int64_t lines;
};
#define CODE_TILE (REGISTERS == 32 ? 6 : 4) /* widest tile of tokens */
typedef void code_kernel(const uint8_t *w, int64_t n_blocks, const uint8_t *qx, float *sums,
                         struct ahead ahead);
code_kernel *LEVEL_NAME(cpu_code_kernel)(enum panel_format f, bool expanded, int width);
void LEVEL_NAME(cpu_expand)(enum panel_format f, const uint8_t *w, int64_t n_blocks, uint8_t *out);
void LEVEL_NAME(cpu_quantize_tile)(const float *x, int64_t cols, int64_t n_blocks, int width, uint8_t *qx);

/* matmul_float.c. A kernel takes a panel (two of them when width is 1) times a tile of tokens; sums is
 * [panel] [2 halves][width] vectors. x rows are `cols` apart. */
#define FLOAT_TILE (REGISTERS == 32 ? 12 : 4) /* by the registers there are */
typedef void float_kernel(const uint8_t *const panels[], const float *x, int64_t cols, float *sums);
float_kernel *LEVEL_NAME(cpu_float_kernel)(enum panel_format f, int width);

#endif
