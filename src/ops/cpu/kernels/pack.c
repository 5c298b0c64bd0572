/* From a file's blocks to panels (panel.h), at load. Each row's block is taken apart into codes and scales,
 * which are put into the row's lane of its half. Below, `panel`
 * and `group` are where that half begins. Plain scalar code, run in parallel over panels. */
#include "ops/cpu/kernels/panel.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* −127 −104 −83 −65 −49 −35 −22 −10 1 13 25 38 53 69 89 113 */
const uint8_t LEVEL_NAME(cpu_iq4_codes)[16] = {
    0x81 ^ CODE8_FLIP, 0x98 ^ CODE8_FLIP, 0xad ^ CODE8_FLIP, 0xbf ^ CODE8_FLIP,
    0xcf ^ CODE8_FLIP, 0xdd ^ CODE8_FLIP, 0xea ^ CODE8_FLIP, 0xf6 ^ CODE8_FLIP,
    0x01 ^ CODE8_FLIP, 0x0d ^ CODE8_FLIP, 0x19 ^ CODE8_FLIP, 0x26 ^ CODE8_FLIP,
    0x35 ^ CODE8_FLIP, 0x45 ^ CODE8_FLIP, 0x59 ^ CODE8_FLIP, 0x71 ^ CODE8_FLIP,
};

/* The panels a file's type is kept in. Types that are small integers times a scale and have no panel of
 * their own become CODE16; whatever else can be decoded is kept as fp32, exact but large. */
enum panel_format LEVEL_NAME(cpu_panel_format)(enum dtype dtype)
{
    switch (dtype) {
    case DT_F16:
        return PF_F16;
    case DT_BF16:
        return PF_BF16;
    case DT_Q8_0:
        return PF_Q8_0;
    case DT_Q4_0:
        return PF_Q4_0;
    case DT_Q4_1:
        return PF_Q4_1;
    case DT_Q5_0:
        return PF_Q5_0;
    case DT_Q5_1:
        return PF_Q5_1;
    case DT_IQ4_NL:
        return PF_IQ4_NL;
    case DT_Q4_K:
        return PF_Q4_K;
    case DT_Q5_K:
        return PF_Q5_K;
    case DT_Q6_K:
        return PF_Q6_K;
    case DT_Q2_K:
        return PF_Q2_K;
    case DT_Q3_K:
        return PF_Q3_K;
    case DT_IQ4_XS:
        return PF_IQ4_XS;
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ3_XXS:
    case DT_IQ3_S:
    case DT_IQ1_S:
    case DT_IQ1_M:
    case DT_TQ1_0:
    case DT_TQ2_0:
    case DT_MXFP4:
    case DT_NVFP4:
        return PF_CODE16;
    default:
        return PF_F32;
    }
}

size_t LEVEL_NAME(cpu_panel_bytes)(enum panel_format f, int64_t cols)
{
    switch (f) {
    case PF_F32:
        return (size_t)cols * 2 * V;
    case PF_F16: /* two columns a step; the last may be half empty */
    case PF_BF16:
        return (size_t)((cols + 1) / 2) * 2 * V;
    default: {
        int64_t group = 32 * pf_group_blocks(f);
        return (size_t)((cols + group - 1) / group) * 2 * (size_t)pf_group_bytes(f);
    }
    }
}

/* --- putting one row's block of 32 codes into its lane --- */

static void put8(uint8_t *at, int lane, const uint8_t codes[32])
{
    for (int g = 0; g < 8; g++)
        memcpy(at + g * V + lane * 4, codes + 4 * g, 4);
}

static void put4(uint8_t *at, int lane, const uint8_t codes[32])
{
    for (int k = 0; k < 16; k++)
        at[k / 4 * V + lane * 4 + k % 4] = (uint8_t)((codes[k] & 15) | (codes[k + 16] & 15) << 4);
}

static void put2(uint8_t *at, int lane, const uint8_t codes[32])
{
    for (int k = 0; k < 32; k++)
        at[k / 16 * V + lane * 4 + k % 4] |= (uint8_t)((codes[k] & 3) << (k / 4 % 4 * 2));
}

static void put1(uint8_t *at, int lane, const uint8_t bits[32])
{
    for (int k = 0; k < 32; k++)
        at[lane * 4 + k % 4] |= (uint8_t)((bits[k] & 1) << (k / 4));
}

static void put_half(uint8_t *at, int lane, const uint8_t *half) /* copied as it is */
{
    memcpy(at + 2 * lane, half, 2);
}

static void put_float(uint8_t *at, int lane, float x)
{
    memcpy(at + 4 * lane, &x, 4);
}

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return half_to_float(h);
}

/* --- the formats with a scale per 32: block number `b` of a row goes to half b % 2 of a group --- */

/* The low nibbles of 16 bytes, then the high ones, to codes. */
static void nibbles(const uint8_t qs[16], uint8_t codes[32])
{
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

static void pack_small(enum panel_format f, uint8_t *group, int half, int lane, const uint8_t *src)
{
    uint8_t codes[32], bits[32];
    int to = half * (V / 2); /* a block's scales are P halves */
    put_half(group + to, lane, src);
    src += 2;
    uint8_t *at = group + V;
    if (f == PF_Q4_1 || f == PF_Q5_1) {
        put_half(at + to, lane, src);
        src += 2;
        at += V;
    }
    if (f == PF_Q8_0) {
        for (int k = 0; k < 32; k++)
            codes[k] = src[k] ^ CODE8_FLIP;
        put8(at + half * 8 * V, lane, codes);
        return;
    }
    if (f == PF_Q5_0 || f == PF_Q5_1) {
        for (int k = 0; k < 32; k++)
            bits[k] = src[k / 8] >> (k % 8) & 1;
        put1(at + half * V, lane, bits);
        src += 4;
        at += 2 * V;
    }
    nibbles(src, codes);
    put4(at + half * 4 * V, lane, codes);
}

/* --- the formats with superblocks of 256 --- */

/* Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes. */
static void scales_6bit(const uint8_t packed[12], uint8_t sc[8], uint8_t m[8])
{
    for (int i = 0; i < 4; i++) {
        sc[i] = packed[i] & 63;
        m[i] = packed[i + 4] & 63;
        sc[i + 4] = (uint8_t)((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        m[i + 4] = (uint8_t)(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
}

static void pack_q4_q5_k(enum panel_format f, uint8_t *group, int lane, const uint8_t *src)
{
    uint8_t sc[8], m[8], codes[32], bits[32];
    put_half(group, lane, src);
    put_half(group + V / 2, lane, src + 2);
    scales_6bit(src + 4, sc, m);
    for (int b = 0; b < 8; b++) {
        group[V + b * P + lane] = sc[b];
        group[3 * V + b * P + lane] = m[b];
    }
    const uint8_t *high = src + 16, *qs = f == PF_Q5_K ? src + 48 : src + 16;
    uint8_t *planes = group + 5 * V, *at = f == PF_Q5_K ? planes + 8 * V : planes;
    for (int b = 0; b < 8; b++) {
        for (int k = 0; k < 32; k++) {
            codes[k] = b % 2 ? qs[b / 2 * 32 + k] >> 4 : qs[b / 2 * 32 + k] & 15;
            bits[k] = high[k] >> b & 1;
        }
        put4(at + b * 4 * V, lane, codes);
        if (f == PF_Q5_K)
            put1(planes + b * V, lane, bits);
    }
}

static void pack_q6_k(uint8_t *group, int lane, const uint8_t *src)
{
    const uint8_t *low = src, *high = src + 128, *scales = src + 192;
    put_float(group, lane, half_at(src + 208));
    for (int s = 0; s < 16; s++)
        group[V + s * P + lane] = scales[s];
    for (int b = 0; b < 8; b++) {
        uint8_t codes[32], top[32];
        int n = b / 4, j = b % 4; /* half of the superblock, 32 of that half */
        for (int k = 0; k < 32; k++) {
            uint8_t byte = low[n * 64 + j % 2 * 32 + k];
            codes[k] = j / 2 ? byte >> 4 : byte & 15;
            top[k] = high[n * 32 + k] >> (2 * j) & 3;
        }
        put2(group + 5 * V + b * 2 * V, lane, top);
        put4(group + 21 * V + b * 4 * V, lane, codes);
    }
}

static void pack_q2_k(uint8_t *group, int lane, const uint8_t *src)
{
    put_half(group, lane, src + 80);
    put_half(group + V / 2, lane, src + 82);
    for (int s = 0; s < 16; s++)
        group[V + s * P + lane] = src[s];
    for (int b = 0; b < 8; b++) {
        uint8_t codes[32];
        for (int k = 0; k < 32; k++)
            codes[k] = src[16 + b / 4 * 32 + k] >> (b % 4 * 2) & 3;
        put2(group + 5 * V + b * 2 * V, lane, codes);
    }
}

static void pack_q3_k(uint8_t *group, int lane, const uint8_t *src)
{
    const uint8_t *high = src, *qs = src + 32, *packed = src + 96;
    put_float(group, lane, half_at(src + 108));
    for (int s = 0; s < 16; s++) {
        int low4 = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
        int high2 = packed[8 + s % 4] >> (s / 4 * 2) & 3;
        group[V + s * P + lane] = (uint8_t)((low4 | high2 << 4) - 32);
    }
    for (int b = 0; b < 8; b++) {
        uint8_t codes[32], bits[32];
        for (int k = 0; k < 32; k++) {
            codes[k] = qs[b / 4 * 32 + k] >> (b % 4 * 2) & 3;
            bits[k] = high[k] >> b & 1;
        }
        put1(group + 5 * V + b * V, lane, bits);
        put2(group + 13 * V + b * 2 * V, lane, codes);
    }
}

static void pack_iq4_xs(uint8_t *group, int lane, const uint8_t *src)
{
    put_float(group, lane, half_at(src));
    int high = src[2] | src[3] << 8;
    for (int b = 0; b < 8; b++) {
        uint8_t codes[32];
        int low4 = src[4 + b / 2] >> (b % 2 * 4) & 15;
        group[V + b * P + lane] = (uint8_t)((low4 | (high >> (2 * b) & 3) << 4) - 32);
        nibbles(src + 8 + 16 * b, codes);
        put4(group + 3 * V + b * 4 * V, lane, codes);
    }
}

/* --- CODE16: integers recovered from decoded weights --- */

/* Finds codes and a scale with codes[i] * scale == w[i] for 16 weights that are known to be small integers
 * times a common scale: the smallest magnitude is 1, 2, 3 … times it. False if none fits. */
static bool recover_codes(const float w[16], int8_t codes[16], float *scale)
{
    float least = INFINITY, most = 0;
    for (int i = 0; i < 16; i++) {
        float a = fabsf(w[i]);
        if (a > 0 && a < least)
            least = a;
        if (!(a <= most))
            most = a; /* NaN too */
    }
    if (most == 0 || !isfinite(most)) { /* a broken scale in the file shows as itself */
        *scale = most;
        memset(codes, most == 0 ? 0 : 1, 16);
        return true;
    }
    for (int unit = 1; unit <= 127 && most / (least / (float)unit) < 127.5f; unit++) {
        float s = least / (float)unit;
        int i = 0;
        for (; i < 16; i++) {
            float code = rintf(w[i] / s), error = fabsf(code * s - w[i]);
            if (error > fabsf(w[i]) * 0x1p-23f)
                break;
            codes[i] = (int8_t)code;
        }
        if (i == 16) {
            *scale = s;
            return true;
        }
    }
    return false;
}

static bool pack_code16(const struct panel_mat *m, uint8_t *panel, int lane, const float *row)
{
    for (int64_t k = 0; k < m->m.cols; k += 32) {
        uint8_t *group = panel + k / 64 * 2 * pf_group_bytes(PF_CODE16), codes[32];
        int half = k / 32 % 2;
        for (int s = 0; s < 2; s++) {
            float w[16] = {0}, scale;
            int8_t c[16];
            for (int i = 0; i < 16 && k + 16 * s + i < m->m.cols; i++)
                w[i] = row[k + 16 * s + i];
            if (!recover_codes(w, c, &scale))
                return false;
            put_float(group + (2 * half + s) * V, lane, scale);
            for (int i = 0; i < 16; i++)
                codes[16 * s + i] = (uint8_t)c[i] ^ CODE8_FLIP;
        }
        put8(group + 4 * V + half * 8 * V, lane, codes);
    }
    return true;
}

/* --- a whole matrix --- */

static void pack_float_row(const struct panel_mat *m, uint8_t *panel, int lane, const uint8_t *src,
                           float *row)
{
    if (m->format == PF_F32) {
        dtype_to_float(m->m.dtype, src, row, m->m.cols);
        for (int64_t k = 0; k < m->m.cols; k++)
            put_float(panel + k * 2 * V, lane, row[k]);
        return;
    }
    for (int64_t k = 0; k < m->m.cols; k++) {
        int at = (int)(k % 2) * (m->format == PF_F16 ? V / 2 : 2) + lane * (m->format == PF_F16 ? 2 : 4);
        memcpy(panel + k / 2 * 2 * V + at, src + 2 * k, 2);
    }
}

static void pack_code_row(const struct panel_mat *m, uint8_t *panel, int lane, const uint8_t *src)
{
    const struct dtype_info *info = dtype_info((int)m->m.dtype);
    int64_t n = m->m.cols / info->block;
    for (int64_t b = 0; b < n; b++, src += info->bytes) {
        int64_t step = b * info->block / (32 * pf_group_blocks(m->format));
        uint8_t *group = panel + step * 2 * pf_group_bytes(m->format);
        switch (m->format) {
        case PF_Q4_K:
        case PF_Q5_K:
            pack_q4_q5_k(m->format, group, lane, src);
            break;
        case PF_Q6_K:
            pack_q6_k(group, lane, src);
            break;
        case PF_Q2_K:
            pack_q2_k(group, lane, src);
            break;
        case PF_Q3_K:
            pack_q3_k(group, lane, src);
            break;
        case PF_IQ4_XS:
            pack_iq4_xs(group, lane, src);
            break;
        default:
            pack_small(m->format, group, (int)(b % 2), lane, src);
        }
    }
}

struct pack_job {
    const struct mat_source *src;
    struct panel_mat *m;
    size_t row_bytes;
    float *rows; /* [threads, cols] decoded row, where the format needs it */
    _Atomic bool failed;
};

static void pack_panels(void *arg, int64_t begin, int64_t end, int thread)
{
    struct pack_job *j = arg;
    struct panel_mat *m = j->m;
    float *row = j->rows ? j->rows + thread * m->m.cols : NULL;
    for (int64_t p = begin; p < end; p++) {
        uint8_t *panel = m->data + (size_t)p * m->panel_bytes;
        for (int i = 0; i < PANEL_ROWS && p * PANEL_ROWS + i < m->m.rows; i++) {
            int lane = i % P;
            uint8_t *half = panel + i / P * (m->format < PF_FIRST_CODE ? V : pf_group_bytes(m->format));
            int64_t r = p * PANEL_ROWS + i;
            int64_t from = j->src->row_map ? j->src->row_map[r] : r;
            const uint8_t *src = (const uint8_t *)j->src->data + (size_t)from * j->row_bytes;
            if (m->format < PF_FIRST_CODE) {
                pack_float_row(m, half, lane, src, row);
            } else if (m->format == PF_CODE16) {
                dtype_to_float(m->m.dtype, src, row, m->m.cols);
                if (!pack_code16(m, half, lane, row))
                    j->failed = true;
            } else {
                pack_code_row(m, half, lane, src);
            }
        }
    }
}

struct mat *LEVEL_NAME(cpu_mat_create)(struct backend *b, const struct mat_source *src, struct err *e)
{
    if (cpu_check_source(src, e))
        return NULL;
    struct pool *pool = cpu_of(b)->pool;
    enum panel_format f = LEVEL_NAME(cpu_panel_format)(src->dtype);
    struct panel_mat *m = mem_zalloc(1, sizeof *m);
    struct pack_job j = {.src = src, .m = m, .row_bytes = dtype_row_bytes(src->dtype, src->cols)};
    m->format = f;
    m->n_panels = (src->rows + PANEL_ROWS - 1) / PANEL_ROWS;
    m->panel_bytes = LEVEL_NAME(cpu_panel_bytes)(f, src->cols);
    if (f >= PF_FIRST_CODE)
        m->n_blocks = (int64_t)(m->panel_bytes / 2 / (size_t)pf_group_bytes(f)) * pf_group_blocks(f);
    m->m = (struct mat){.rows = src->rows,
                        .cols = src->cols,
                        .dtype = src->dtype,
                        .bytes = (size_t)m->n_panels * m->panel_bytes};
    m->data = mem_map(m->m.bytes);
    if (f == PF_F32 || f == PF_CODE16)
        j.rows = mem_try_alloc((size_t)pool_threads(pool) * (size_t)src->cols, sizeof *j.rows);
    if (!m->data || ((f == PF_F32 || f == PF_CODE16) && !j.rows)) {
        err_set(e, ERR_NO_MEMORY, "the system refused %zu MB for a matrix", m->m.bytes >> 20);
        goto fail;
    }
    pool_run(pool, pack_panels, &j, m->n_panels, 1);
    if (j.failed) {
        err_set(e, ERR_UNSUPPORTED, "the %s weights are not integers times a scale, as the format promises",
                dtype_info((int)src->dtype)->name);
        goto fail;
    }
    free(j.rows);
    return &m->m;
fail:
    mem_unmap(m->data, m->m.bytes);
    free(j.rows);
    free(m);
    return NULL;
}
