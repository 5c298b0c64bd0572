/* Error feedback: what a calibration pass knows of a layer's inputs, made ready for the encoder.
 *
 * With H = mean of x xᵀ over inputs x, replacing a row w by v costs (w - v)ᵀ H (w - v). Factor H = R Rᵀ with
 * R upper triangular: the cost is the sum over columns j of (R_jj e_j + Σ_{i<j} R_ij e_i)², e = w - v. So
 * columns are encoded from left to right, and column j aims not at w_j but at w_j + Σ_{i<j} e_i R_ij / R_jj,
 * which undoes what the columns before it did wrong as far as their inputs are alike; what rounding j then
 * costs is R_jj² times its squared distance from that aim. This is successive cancellation, known from GPTQ
 * and LDLQ.
 *
 * H takes cols² numbers, so wide layers get it in diagonal blocks of at most `width` columns: columns in
 * different blocks are taken to be independent. */
#ifndef SLUICE_QUANT_FEEDBACK_H
#define SLUICE_QUANT_FEEDBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "quant/dtype.h"

enum { FEEDBACK_STEP = 256 }; /* blocks of columns are multiples of it, but the last */

struct error_feedback {
    int64_t cols, width;
    float *h;    /* blocks one after another, each [w][w]: H summed; after feedback_factor row i holds, for
                    j > i, R_ij / R_jj */
    float *cost; /* [cols] R_jj² */
    int64_t n;   /* inputs summed */
    bool factored;
};

size_t feedback_bytes(int64_t cols, int64_t width);
/* width: a multiple of FEEDBACK_STEP. NULL if there is no memory. */
struct error_feedback *feedback_create(int64_t cols, int64_t width);
void feedback_free(struct error_feedback *f);

/* Adds the inputs x [n, cols]. Those with a NaN or an infinity are left out, and giants among them count no
 * more than four times the median one. */
void feedback_add(struct error_feedback *f, struct pool *pool, const float *x, int64_t n);
/* importance [cols] = mean square of each column's input. Before feedback_factor. */
void feedback_importance(const struct error_feedback *f, float *importance);
/* Factors H, each column's diagonal made larger by a share `damping` of itself: inputs differ from those that
 * were seen, each in its own measure (a few columns are often a hundred times as large as the others, so a
 * share of the mean would drown these). False if that does not make it positive definite (no inputs, or all
 * zero): then importance is all there is. */
bool feedback_factor(struct error_feedback *f, struct pool *pool, float damping);

static inline const float *feedback_block(const struct error_feedback *f, int64_t begin)
{
    return f->h + begin * f->width; /* begin is a multiple of width */
}
static inline int64_t feedback_block_width(const struct error_feedback *f, int64_t begin)
{
    return f->cols - begin < f->width ? f->cols - begin : f->width;
}

/* c [rows, n] += sign * Σ_i a(r, i) b[i]: the one loop that all the arithmetic here is made of. a(r, i) is
 * a[r * a_row + i * a_step], b [depth] rows of n at stride ldb. Sums run over i in order. */
void feedback_multiply(float *c, int64_t ldc, int rows, int64_t n, const float *a, int64_t a_row,
                       int64_t a_step, const float *b, int64_t ldb, int depth, float sign);

#endif
