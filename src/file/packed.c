/* From codes, scales and zeros to rows of a type that back ends know. Eight rows of codes are unpacked at a
 * time, because a word of some layouts holds codes of eight rows; each row is then written by itself. */
#include "file/packed.h"

#include <math.h>
#include <string.h>

enum { STRIP_ROWS = 8 };

static uint32_t word_at(const struct tensor *t, int64_t i)
{
    const uint8_t *p = (const uint8_t *)t->data + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float scale_at(const struct packed *p, int64_t row, int64_t group)
{
    float x;
    int64_t i = p->scales_by_group ? group * p->rows + row : row / p->group_rows * p->n_groups + group;
    size_t bytes = p->scales.dtype == DT_F32 ? 4 : 2;
    dtype_to_float(p->scales.dtype, (const uint8_t *)p->scales.data + (size_t)i * bytes, &x, 1);
    return x;
}

/* Where in a word AWQ has the code of row r, by r % 8. */
static const int awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static int zero_at(const struct packed *p, int64_t row, int64_t group)
{
    int n = 32 / p->bits, mask = (1 << p->bits) - 1;
    if (!p->zeros.data)
        return 1 << (p->bits - 1);
    if (p->zeros.dtype == DT_I8)
        return ((const int8_t *)p->zeros.data)[row * p->n_groups + group] + (1 << (p->bits - 1));
    if (p->layout == PACKED_AWQ)
        return (int)(word_at(&p->zeros, group * (p->rows / 8) + row / 8) >> (4 * awq_place[row % 8])) & mask;
    int64_t i =
        p->layout == PACKED_GPTQ ? group * ((p->rows + n - 1) / n) + row / n : row / n * p->n_groups + group;
    return ((int)(word_at(&p->zeros, i) >> (p->bits * (row % n))) & mask) + p->zero_plus;
}

static int64_t group_at(const struct packed *p, int64_t col)
{
    return p->g_idx.data ? (int64_t)word_at(&p->g_idx, col) : col / p->group_cols;
}

/* --- the type --- */

/* What must be known of all scales and zeros. */
struct survey {
    bool middle;       /* every zero is the middle of the codes */
    bool small;        /* every zero is one that leaves -16 … 15 */
    bool halves;       /* every scale is fp16, or within 2^-11 of it */
    bool exact_halves; /* every scale is fp16 */
    bool short_scales; /* no scale has more than four significant bits */
    float least, most; /* magnitudes of scales that are not 0 */
};

static int look(const struct packed *p, struct survey *s, struct err *e)
{
    *s = (struct survey){true, true, true, true, true, INFINITY, 0};
    int64_t step = p->group_rows;
    for (int64_t row = 0; row < p->rows; row += step) {
        for (int64_t g = 0; g < p->n_groups; g++) {
            float x = scale_at(p, row, g), a = fabsf(x);
            if (!isfinite(x))
                return err_set(e, ERR_INVALID,
                               "cannot be read: its scale of row %lld, group %lld is not a finite number",
                               (long long)row, (long long)g);
            float half = half_to_float(float_to_half(x));
            uint32_t bits;
            memcpy(&bits, &x, 4);
            s->halves &= fabsf(half - x) <= a * 0x1p-11f;
            s->exact_halves &= half == x;
            s->short_scales &= (bits & 0xFFFFF) == 0;
            s->most = a > s->most ? a : s->most;
            s->least = a > 0 && a < s->least ? a : s->least;
        }
    }
    for (int64_t row = 0; p->zeros.data && row < p->rows; row++) {
        for (int64_t g = 0; g < p->n_groups; g++) {
            int zero = zero_at(p, row, g);
            s->middle &= zero == 1 << (p->bits - 1);
            s->small &= zero >= 0 && zero <= 16;
        }
    }
    return 0;
}

static enum dtype choose_fp8(struct packed *p, const struct survey *s)
{
    if (s->short_scales && s->least >= 0x1p-100f && s->most <= 0x1p100f)
        return DT_BF16;
    p->rounded = true;
    /* within 2^-11, or 2^-25 of small weights; beside the codes' own steps that is little, unless
     * the scales are tiny */
    return s->least >= 0x1p-16f && s->most <= 146 ? DT_F16 : DT_BF16;
}

int packed_choose(struct packed *p, enum dtype *type, struct err *e)
{
    struct survey s;
    if (look(p, &s, e))
        return -1;
    bool runs = true; /* groups are runs of columns */
    for (int64_t c = 0; p->g_idx.data && c < p->cols; c++) {
        int64_t g = group_at(p, c);
        if (g >= p->n_groups)
            return err_set(e, ERR_INVALID,
                           "cannot be read: g_idx says that column %lld is in group %d, but there are %lld",
                           (long long)c, (int)(int32_t)g, (long long)p->n_groups);
        runs &= g == c / p->group_cols;
    }
    if (runs)
        p->g_idx = (struct tensor){0};
    if (p->layout == PACKED_FP8) {
        *type = choose_fp8(p, &s);
        return 0;
    }
    bool codes = runs && (p->bits == 4 ? s.small : s.middle);
    if (s.halves && codes)
        *type = p->bits == 8 ? DT_Q8_0 : s.middle ? DT_Q4_0 : DT_Q5_0;
    else if (s.halves && s.most * (float)(1 << p->bits) <= 65504)
        *type = DT_F16;
    else
        *type = DT_F32;
    p->rounded = *type == DT_F16 || (*type != DT_F32 && !s.exact_halves);
    return 0;
}

/* --- the bytes --- */

size_t packed_scratch_bytes(const struct packed *p)
{
    return STRIP_ROWS * (size_t)p->cols;
}

/* The codes of rows row … row+n-1, n <= STRIP_ROWS and row a multiple of it, to strip [n, cols]. */
static void unpack_strip(const struct packed *p, int64_t row, int n, uint8_t *strip)
{
    const int per_word = 32 / p->bits, mask = (1 << p->bits) - 1;
    const int64_t cols = p->cols, words = (cols + per_word - 1) / per_word;
    const uint8_t *bytes = p->codes.data;
    switch (p->layout) {
    case PACKED_ALONG_ROWS:
    case PACKED_GPTQ:
        for (int64_t w = 0; w < words; w++) {
            for (int i = 0; i < n; i++) {
                int64_t at = p->layout == PACKED_GPTQ ? w * p->rows + row + i : (row + i) * words + w;
                uint32_t word = word_at(&p->codes, at);
                int64_t c = w * per_word, end = c + per_word < cols ? c + per_word : cols;
                for (; c < end; c++, word >>= p->bits)
                    strip[i * cols + c] = (uint8_t)(word & (uint32_t)mask);
            }
        }
        break;
    case PACKED_AWQ: /* rows are a multiple of 8, so n is 8 */
        for (int64_t c = 0; c < cols; c++) {
            uint32_t word = word_at(&p->codes, c * (p->rows / 8) + row / 8);
            for (int i = 0; i < n; i++)
                strip[i * cols + c] = (uint8_t)(word >> (4 * awq_place[i]) & 15);
        }
        break;
    case PACKED_BYTES:
        for (int64_t i = 0; i < n * cols; i++)
            strip[i] = bytes[row * cols + i] ^ 0x80;
        break;
    case PACKED_FP8:
        memcpy(strip, bytes + row * cols, (size_t)(n * cols));
        break;
    }
}

/* e4m3: 4 bits of exponent around 7, 3 of mantissa; no infinities, one NaN. */
static float fp8_to_float(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float x = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((code & 0x7F) == 0x7F)
        x = NAN;
    return code & 0x80 ? -x : x;
}

/* A block of 32 codes of one group. */
static uint8_t *write_block(enum dtype to, const uint8_t *codes, float scale, int zero, uint8_t *out)
{
    uint16_t d = float_to_half(scale);
    uint8_t v[32];
    int plus = to == DT_Q4_0 ? 8 : to == DT_Q5_0 ? 16 : 0;
    for (int i = 0; i < 32; i++)
        v[i] = (uint8_t)(codes[i] - zero + plus);
    *out++ = (uint8_t)d;
    *out++ = (uint8_t)(d >> 8);
    if (to == DT_Q8_0) {
        memcpy(out, v, 32);
        return out + 32;
    }
    if (to == DT_Q5_0) {
        memset(out, 0, 4);
        for (int i = 0; i < 32; i++)
            out[i / 8] |= (uint8_t)(v[i] >> 4 << (i % 8));
        out += 4;
    }
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((v[i] & 15) | v[i + 16] << 4);
    return out + 16;
}

static uint8_t *write_float(enum dtype to, float x, uint8_t *out)
{
    if (to == DT_F32) {
        memcpy(out, &x, 4);
        return out + 4;
    }
    uint16_t h = to == DT_F16 ? float_to_half(x) : float_to_bf16(x);
    memcpy(out, &h, 2);
    return out + 2;
}

/* One row from its codes [cols]. False if a weight is not finite. */
static bool write_row(const struct packed_job *j, int64_t row, const uint8_t *codes, const float *fp8,
                      uint8_t *out)
{
    const struct packed *p = j->p;
    if (dtype_info((int)j->to)->block == 32) {
        for (int64_t c = 0; c < p->cols; c += 32) {
            int64_t g = c / p->group_cols;
            out = write_block(j->to, codes + c, scale_at(p, row, g), zero_at(p, row, g), out);
        }
        return true;
    }
    float scale = 0;
    int zero = 0;
    int64_t group = -1;
    bool good = true;
    for (int64_t c = 0; c < p->cols; c++) {
        int64_t g = group_at(p, c);
        if (g != group) {
            scale = scale_at(p, row, g);
            zero = p->layout == PACKED_FP8 ? 0 : zero_at(p, row, g);
            group = g;
        }
        float x = (fp8 ? fp8[codes[c]] : (float)(codes[c] - zero)) * scale;
        good &= isfinite(x);
        out = write_float(j->to, x, out);
    }
    return good;
}

void packed_tiles(void *job, int64_t begin, int64_t end, int thread)
{
    struct packed_job *j = job;
    const struct packed *p = j->p;
    const size_t row_bytes = dtype_row_bytes(j->to, p->cols);
    uint8_t *strip = j->scratch + (size_t)thread * packed_scratch_bytes(p);
    float fp8[256];
    for (int i = 0; i < 256; i++)
        fp8[i] = fp8_to_float((uint8_t)i);
    int64_t last = end * PACKED_TILE_ROWS < p->rows ? end * PACKED_TILE_ROWS : p->rows;
    for (int64_t row = begin * PACKED_TILE_ROWS; row < last; row += STRIP_ROWS) {
        int n = last - row < STRIP_ROWS ? (int)(last - row) : STRIP_ROWS;
        unpack_strip(p, row, n, strip);
        for (int i = 0; i < n; i++)
            if (!write_row(j, row + i, strip + i * p->cols, p->layout == PACKED_FP8 ? fp8 : NULL,
                           j->out + (size_t)(row + i) * row_bytes))
                j->bad = true;
    }
}
