/* Writing block formats: the nearest that a row of floats can come to in so many bits.
 *
 * What "near" means decides the quality. Plain: the squared error of each weight counts alike. With an
 * importance per column (the mean square of the inputs that meet it), errors count as they show in the
 * layer's output if inputs were independent. With feedback (feedback.h) they count as they do show: inputs
 * are correlated, so the error of one weight can be made up for by the weights after it. */
#ifndef SLUICE_QUANT_QUANTIZE_H
#define SLUICE_QUANT_QUANTIZE_H

#include "base/pool.h"
#include "quant/feedback.h"

/* A matrix to encode. */
struct quantize_job {
    enum dtype from, to; /* to: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K */
    int64_t rows, cols;
    const uint8_t *data;                   /* [rows, cols] in from's blocks, which must be decodable */
    const float *importance;               /* [cols] or NULL; ignored with feedback */
    const struct error_feedback *feedback; /* or NULL */
    uint8_t *out;                          /* [rows, cols] in to's blocks */
    float *scratch;                        /* [threads, quantize_scratch_floats(cols)] */
    _Atomic int64_t bad_row; /* 1 + a row that holds NaN or infinity (encoded as zeros); 0 = none */
};

/* Rows are encoded so many at a time; each tile's bytes depend on the job alone. */
enum { QUANTIZE_TILE_ROWS = 16 };
static inline int64_t quantize_tile_count(int64_t rows)
{
    return (rows + QUANTIZE_TILE_ROWS - 1) / QUANTIZE_TILE_ROWS;
}
size_t quantize_scratch_floats(int64_t cols);
/* A pool_fn: encodes tiles begin … end-1 of `job`, a struct quantize_job. */
void quantize_tiles(void *job, int64_t begin, int64_t end, int thread);

/* One row, plainly or by importance: for tests and small tensors. False if x holds NaN or infinity. */
bool quantize_row(enum dtype to, const float *x, int64_t cols, const float *importance, uint8_t *out);

#endif
