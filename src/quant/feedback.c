#include "quant/feedback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The loop is built for wider registers too and chosen when the program starts. No sum crosses lanes and
 * nothing is contracted, so all builds give the same bits. (Sanitizers cannot run in the chooser.) */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define WIDE_BUILDS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE_BUILDS
#endif

typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16, TILE = 4 };

WIDE_BUILDS
void feedback_multiply(float *c, int64_t ldc, int rows, int64_t n, const float *a, int64_t a_row,
                       int64_t a_step, const float *b, int64_t ldb, int depth, float sign)
{
    for (int r0 = 0; r0 < rows; r0 += TILE) {
        int tile = rows - r0 < TILE ? rows - r0 : TILE;
        const float *a0 = a + r0 * a_row, *a1 = a0 + (tile > 1 ? a_row : 0),
                    *a2 = a0 + (tile > 2 ? 2 * a_row : 0), *a3 = a0 + (tile > 3 ? 3 * a_row : 0);
        int64_t k = 0;
        for (; k + LANES <= n; k += LANES) {
            wide s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
            for (int64_t i = 0; i < depth; i++) {
                wide v = *(const wide *)(b + i * ldb + k);
                s0 += a0[i * a_step] * v;
                s1 += a1[i * a_step] * v;
                s2 += a2[i * a_step] * v;
                s3 += a3[i * a_step] * v;
            }
            float *out = c + r0 * ldc + k;
            *(wide *)out += sign * s0;
            if (tile > 1)
                *(wide *)(out + ldc) += sign * s1;
            if (tile > 2)
                *(wide *)(out + 2 * ldc) += sign * s2;
            if (tile > 3)
                *(wide *)(out + 3 * ldc) += sign * s3;
        }
        for (; k < n; k++) {
            for (int r = 0; r < tile; r++) {
                float s = 0;
                for (int64_t i = 0; i < depth; i++)
                    s += a0[r * a_row + i * a_step] * b[i * ldb + k];
                c[(r0 + r) * ldc + k] += sign * s;
            }
        }
    }
}

static size_t h_floats(int64_t cols, int64_t width)
{
    int64_t last = cols % width;
    return (size_t)(cols / width) * (size_t)width * (size_t)width + (size_t)last * (size_t)last;
}

size_t feedback_bytes(int64_t cols, int64_t width)
{
    return (h_floats(cols, width) + (size_t)cols) * sizeof(float);
}

struct error_feedback *feedback_create(int64_t cols, int64_t width)
{
    struct error_feedback *f = mem_zalloc(1, sizeof *f);
    f->cols = cols;
    f->width = width;
    f->h = mem_map(h_floats(cols, width) * sizeof(float));
    f->cost = mem_zalloc((size_t)cols, sizeof(float));
    if (!f->h) {
        feedback_free(f);
        return NULL;
    }
    return f;
}

void feedback_free(struct error_feedback *f)
{
    if (!f)
        return;
    mem_unmap(f->h, h_floats(f->cols, f->width) * sizeof(float));
    free(f->cost);
    free(f);
}

/* --- summing --- */

enum { SUM_ROWS = 64 }; /* rows of H that a thread takes at a time */

struct sum_job {
    struct error_feedback *f;
    const float *x; /* [n, cols] */
    int n;
};

/* The upper triangle, in tiles. */
static void sum_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    struct sum_job *j = arg;
    struct error_feedback *f = j->f;
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t i0 = tile * SUM_ROWS, first = i0 / f->width * f->width, w = feedback_block_width(f, first);
        int64_t rows = f->cols - i0 < SUM_ROWS ? f->cols - i0 : SUM_ROWS, at = i0 - first;
        float *h = (float *)feedback_block(f, first) + at * w + at;
        feedback_multiply(h, w, (int)rows, w - at, j->x + i0, 1, f->cols, j->x + i0, f->cols, j->n, 1);
    }
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Writes to `even` [n, cols] the finite inputs of x, those that are many times as large as the median one cut
 * down to LARGEST times its energy: many models make the first token of a text a giant, thousands of times
 * the others, and what is right for it alone would be all that H knows. Returns how many there are. */
static int64_t even_out(const float *x, int64_t n, int64_t cols, float *even)
{
    const float LARGEST = 4;
    float *energy = mem_alloc((size_t)(2 * n) * sizeof *energy), *sorted = energy + n;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < cols; k++)
            sum += (double)x[i * cols + k] * (double)x[i * cols + k];
        energy[i] = (float)sum;
        if (isfinite(energy[i]))
            sorted[finite++] = energy[i];
    }
    qsort(sorted, (size_t)finite, sizeof *sorted, by_size);
    float cap = finite ? LARGEST * sorted[finite / 2] : 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(energy[i]))
            continue;
        float scale = cap > 0 && energy[i] > cap ? sqrtf(cap / energy[i]) : 1;
        for (int64_t k = 0; k < cols; k++)
            even[kept * cols + k] = scale * x[i * cols + k];
        kept++;
    }
    free(energy);
    return kept;
}

void feedback_add(struct error_feedback *f, struct pool *pool, const float *x, int64_t n)
{
    enum { AT_ONCE = 128 }; /* inputs, so that a tile's part of them stays near */
    float *even = mem_alloc((size_t)(n * f->cols) * sizeof *even);
    int64_t kept = even_out(x, n, f->cols, even);
    struct sum_job j = {.f = f};
    for (int64_t i = 0; i < kept; i += AT_ONCE) {
        j.x = even + i * f->cols;
        j.n = (int)(kept - i < AT_ONCE ? kept - i : AT_ONCE);
        pool_run(pool, sum_rows, &j, (f->cols + SUM_ROWS - 1) / SUM_ROWS, 1);
    }
    f->n += kept;
    free(even);
}

void feedback_importance(const struct error_feedback *f, float *importance)
{
    for (int64_t j = 0; j < f->cols; j++) {
        int64_t first = j / f->width * f->width, w = feedback_block_width(f, first), at = j - first;
        importance[j] = f->n ? feedback_block(f, first)[at * w + at] / (float)f->n : 0;
    }
}

/* --- factoring --- */

enum { PANEL = 64, COLUMNS = 512 };

struct factor_job {
    float *u; /* [w][w]: the matrix, of which the upper triangle becomes U with G = UᵀU */
    int64_t w, p0, panel;
};

/* Rows p0 … of U right of the panel's own columns, for a tile of columns. */
static void solve_columns(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    struct factor_job *j = arg;
    int64_t k0 = j->p0 + j->panel + begin * COLUMNS, k1 = j->p0 + j->panel + end * COLUMNS;
    k1 = k1 < j->w ? k1 : j->w;
    for (int64_t p = 0; p < j->panel; p++) {
        float *row = j->u + (j->p0 + p) * j->w;
        feedback_multiply(row + k0, 0, 1, k1 - k0, j->u + j->p0 * j->w + j->p0 + p, 0, j->w,
                          j->u + j->p0 * j->w + k0, j->w, (int)p, -1);
        float inverse = 1 / row[j->p0 + p];
        for (int64_t k = k0; k < k1; k++)
            row[k] *= inverse;
    }
}

static void update_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    struct factor_job *j = arg;
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t r = j->p0 + j->panel + tile * PANEL, rows = j->w - r < PANEL ? j->w - r : PANEL;
        const float *panel = j->u + j->p0 * j->w + r;
        feedback_multiply(j->u + r * j->w + r, j->w, (int)rows, j->w - r, panel, 1, j->w, panel, j->w,
                          (int)j->panel, -1);
    }
}

static bool factor(float *u, int64_t w, struct pool *pool)
{
    for (int64_t p0 = 0; p0 < w; p0 += PANEL) {
        struct factor_job j = {u, w, p0, w - p0 < PANEL ? w - p0 : PANEL};
        for (int64_t p = p0; p < p0 + j.panel; p++) { /* the panel's own square */
            for (int64_t k = p; k < p0 + j.panel; k++) {
                float s = u[p * w + k];
                for (int64_t q = p0; q < p; q++)
                    s -= u[q * w + p] * u[q * w + k];
                if (k == p) {
                    if (!(s > 0) || !isfinite(s))
                        return false;
                    u[p * w + p] = sqrtf(s);
                } else {
                    u[p * w + k] = s / u[p * w + p];
                }
            }
        }
        int64_t left = w - p0 - j.panel;
        if (left > 0) {
            pool_run(pool, solve_columns, &j, (left + COLUMNS - 1) / COLUMNS, 1);
            pool_run(pool, update_rows, &j, (left + PANEL - 1) / PANEL, 1);
        }
    }
    return true;
}

/* G = H turned about, so that H = R Rᵀ with an upper R is the usual G = UᵀU. */
static bool factor_block(float *h, float *cost, int64_t w, struct pool *pool, float damping)
{
    const float LEAST = 1e-3f; /* of the mean: for columns that saw next to nothing */
    float *u = mem_map((size_t)w * (size_t)w * sizeof *u);
    bool done = false;
    double mean = 0;
    for (int64_t i = 0; i < w; i++)
        mean += (double)h[i * w + i] / (double)w;
    for (int attempt = 0; u && mean > 0 && isfinite(mean) && attempt < 4 && !done; attempt++, damping *= 10) {
        for (int64_t i = 0; i < w; i++)
            for (int64_t k = i; k < w; k++)
                u[(w - 1 - k) * w + (w - 1 - i)] = h[i * w + k];
        for (int64_t i = 0; i < w; i++)
            u[i * w + i] += damping * (u[i * w + i] + LEAST * (float)mean);
        done = factor(u, w, pool);
    }
    for (int64_t j = 0; done && j < w; j++) {
        const float *row = u + (w - 1 - j) * w; /* R's column j, from the diagonal up */
        float diagonal = row[w - 1 - j], inverse = 1 / diagonal;
        cost[j] = diagonal * diagonal;
        for (int64_t i = 0; i < j; i++)
            h[i * w + j] = row[w - 1 - i] * inverse;
    }
    mem_unmap(u, (size_t)w * (size_t)w * sizeof *u);
    return done;
}

bool feedback_factor(struct error_feedback *f, struct pool *pool, float damping)
{
    if (f->n == 0)
        return false;
    for (int64_t first = 0; first < f->cols; first += f->width) {
        int64_t w = feedback_block_width(f, first);
        if (!factor_block((float *)feedback_block(f, first), f->cost + first, w, pool, damping))
            return false;
    }
    f->factored = true;
    return true;
}
