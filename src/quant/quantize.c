#include "quant/quantize.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"
#include "quant/encode.h"

const struct block_format *block_format(enum dtype dtype)
{
    static const struct block_format *const all[] = {&format_q4_0, &format_q4_1, &format_q5_0, &format_q5_1,
                                                     &format_q8_0, &format_q4_k, &format_q5_k, &format_q6_k};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->dtype == dtype)
            return all[i];
    return NULL;
}

static void cast_row(enum dtype to, const float *x, int64_t n, uint8_t *out)
{
    if (to == DT_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t v = to == DT_F16 ? to_half(x[i]) : float_to_bf16(x[i]);
        memcpy(out + 2 * i, &v, 2);
    }
}

/* Rows of a tile, all in one place. */
struct tile {
    float *x;      /* [TILE_ROWS, cols] as they are */
    float *aim;    /* [TILE_ROWS, cols] as they should become: with earlier columns' errors */
    float *errors; /* [TILE_ROWS, ENCODE_MAX_BLOCK] of the block of columns at hand */
    float *weight; /* [cols] */
};

size_t quantize_scratch_floats(int64_t cols)
{
    return (size_t)(2 * QUANTIZE_TILE_ROWS + 1) * (size_t)cols + QUANTIZE_TILE_ROWS * ENCODE_MAX_BLOCK;
}

/* Without feedback: errors of large weights of a block also count more, because the sizes of weights and of
 * their inputs go together beyond what the columns' means say. */
static void plain_weights(const float *x, const float *importance, int64_t n, float *w)
{
    float square = 0;
    for (int64_t i = 0; i < n; i++)
        square += x[i] * x[i];
    square /= (float)n;
    for (int64_t i = 0; i < n; i++)
        w[i] = (importance ? importance[i] : 1) * sqrtf(square + x[i] * x[i]);
    /* a block that nothing was seen of: all alike */
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += w[i];
    for (int64_t i = 0; !(sum > 0) && i < n; i++)
        w[i] = 1;
}

static void encode_plain(const struct block_format *f, const float *x, const float *importance, uint8_t *out)
{
    struct block_code c;
    float w[ENCODE_MAX_BLOCK];
    for (int g = 0; g < f->block; g += 32)
        plain_weights(x + g, importance ? importance + g : NULL, 32, w + g);
    f->fit(f, &c, x, w);
    for (int j = 0; j < f->block; j++) {
        int g = j / f->group;
        c.codes[j] = (int16_t)nearest_code(x[j], c.scale[g], c.min[g], f->lo, f->hi);
    }
    f->store(&c, out);
}

/* One block of one row. push: row i of it is what column i's error adds to the aims of the columns after it.
 */
static void encode_fed(const struct block_format *f, const float *x, float *aim, const float *cost,
                       const float *push, int64_t ld, float *errors, uint8_t *out)
{
    struct block_code c;
    f->fit(f, &c, aim, cost);
    for (int g = 0; g < f->block / f->group; g++) {
        int first = g * f->group;
        if (f->refit && g > 0) /* the aims have moved */
            f->refit(f, &c, g, aim + first, cost + first);
        for (int j = first; j < first + f->group; j++) {
            int q = nearest_code(aim[j], c.scale[g], c.min[g], f->lo, f->hi);
            float e = x[j] - (c.scale[g] * (float)q + c.min[g]);
            c.codes[j] = (int16_t)q;
            errors[j] = e;
            const float *p = push + j * ld;
            for (int k = j + 1; k < first + f->group; k++)
                aim[k] += e * p[k];
        }
        int after = first + f->group;
        feedback_multiply(aim + after, 0, 1, f->block - after, errors + first, 0, 1,
                          push + first * ld + after, ld, f->group, 1);
    }
    f->store(&c, out);
}

static void encode_tile_fed(const struct quantize_job *j, const struct block_format *f, struct tile *t,
                            int64_t row, int rows)
{
    const struct error_feedback *fb = j->feedback;
    size_t row_bytes = dtype_row_bytes(j->to, j->cols), block_bytes = (size_t)dtype_info((int)j->to)->bytes;
    memcpy(t->aim, t->x, (size_t)(rows * j->cols) * sizeof *t->x);
    for (int64_t c0 = 0; c0 < j->cols; c0 += f->block) {
        int64_t first = c0 / fb->width * fb->width, w = feedback_block_width(fb, first), at = c0 - first;
        const float *push = feedback_block(fb, first) + at * w + at;
        for (int r = 0; r < rows; r++)
            encode_fed(f, t->x + r * j->cols + c0, t->aim + r * j->cols + c0, fb->cost + c0, push, w,
                       t->errors + r * f->block,
                       j->out + (size_t)(row + r) * row_bytes + (size_t)(c0 / f->block) * block_bytes);
        feedback_multiply(t->aim + c0 + f->block, j->cols, rows, w - at - f->block, t->errors, f->block, 1,
                          push + f->block, w, f->block, 1);
    }
}

static bool is_finite(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * 0.0f; /* NaN for NaN and infinity */
    return sum == 0;
}

void quantize_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
    struct quantize_job *j = arg;
    const struct block_format *f = block_format(j->to);
    size_t from_bytes = dtype_row_bytes(j->from, j->cols), to_bytes = dtype_row_bytes(j->to, j->cols);
    struct tile t = {.x = j->scratch + (size_t)thread * quantize_scratch_floats(j->cols)};
    t.aim = t.x + QUANTIZE_TILE_ROWS * j->cols;
    t.weight = t.aim + QUANTIZE_TILE_ROWS * j->cols;
    t.errors = t.weight + j->cols;
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t row = tile * QUANTIZE_TILE_ROWS;
        int rows = (int)(j->rows - row < QUANTIZE_TILE_ROWS ? j->rows - row : QUANTIZE_TILE_ROWS);
        for (int r = 0; r < rows; r++) {
            float *x = t.x + r * j->cols;
            dtype_to_float(j->from, j->data + (size_t)(row + r) * from_bytes, x, j->cols);
            if (!is_finite(x, j->cols)) {
                atomic_store(&j->bad_row, row + r + 1);
                memset(x, 0, (size_t)j->cols * sizeof *x);
            }
        }
        if (f && j->feedback) {
            encode_tile_fed(j, f, &t, row, rows);
            continue;
        }
        for (int r = 0; r < rows; r++) {
            uint8_t *out = j->out + (size_t)(row + r) * to_bytes;
            const float *x = t.x + r * j->cols;
            if (!f)
                cast_row(j->to, x, j->cols, out);
            for (int64_t c0 = 0; f && c0 < j->cols; c0 += f->block)
                encode_plain(f, x + c0, j->importance ? j->importance + c0 : NULL,
                             out + (size_t)(c0 / f->block) * (size_t)dtype_info((int)j->to)->bytes);
        }
    }
}

bool quantize_row(enum dtype to, const float *x, int64_t cols, const float *importance, uint8_t *out)
{
    struct quantize_job j = {.from = DT_F32,
                             .to = to,
                             .rows = 1,
                             .cols = cols,
                             .data = (const uint8_t *)x,
                             .importance = importance,
                             .out = out,
                             .scratch = mem_alloc(quantize_scratch_floats(cols) * sizeof(float))};
    quantize_tiles(&j, 0, 1, 0);
    free(j.scratch);
    return j.bad_row == 0;
}
