/* Matrix products: how the work of one call is cut up. All matrices of the call are one job whose items are
 * panels, claimed in runs. Whoever claims a run streams those panels from memory once and applies
 * them to all tokens (law 1). Code panels: a piece of a panel that stays in the first-level cache is passed
 * over by every tile of tokens, and the sums so far wait in memory for the next piece; formats that are
 * laborious to decode are decoded once a piece when many tiles follow. Float panels need no decoding: tiles
 * pass over as many panels as stay in the second-level cache. */
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/panel.h"

#include <assert.h>

_Static_assert(2 * PIECE_BLOCKS * EXPANDED_MOST <= 64 * 1024, "what thread_scratch_bytes sets aside");

#define CACHE_BYTES (320 * 1024)

struct matmul_job {
    struct cpu *cpu;
    const float *x; /* [n_tokens, cols] */
    uint8_t *qx;    /* the same in int8 tiles, where a matrix wants them */
    int n_tokens;
    int64_t cols;
    const struct mat_use *uses;
};

static int64_t blocks_of(int64_t cols) /* the same for every code format that can have such rows */
{
    return (cols + 63) / 64 * 2;
}

static uint8_t *qx_tile(const struct matmul_job *j, int first_token)
{
    return j->qx + (size_t)first_token * (size_t)blocks_of(j->cols) * QX_BLOCK;
}

/* Stores a panel's sums for a tile of tokens: sums [2 halves][width][P]. */
static void store(const struct mat_use *u, int64_t panel, int token, int width, const float *sums)
{
    int64_t rows = u->w->rows, row = panel * PANEL_ROWS;
    for (int half = 0; half < 2 && row < rows; half++, row += P, sums += width * P) {
        vmask on = vmask_left(row, rows);
        vf bias = u->bias ? vf_load_masked(u->bias + row, on) : vf_zero();
        for (int t = 0; t < width; t++) {
            float *out = u->out + (token + t) * rows + row;
            vf y = vf_load(sums + t * P);
            if (u->bias)
                y = vf_add(y, bias);
            if (u->add)
                y = vf_add(vf_load_masked(out, on), y);
            vf_store_masked(out, on, y);
        }
    }
}

/* Asks for the memory that store will write: a line or two a token, far apart. */
INLINE void ask_for_output(const struct mat_use *u, int64_t panel, int token, int width)
{
    const char *out = (const char *)(u->out + token * u->w->rows + panel * PANEL_ROWS);
    for (int t = 0; t < width; t++, out += u->w->rows * (int64_t)sizeof(float))
        for (int line = 0; line < 2 * V; line += 64)
            __builtin_prefetch(out + line, 1);
}

/* Panels first … last-1 of a float matrix. */
static void float_panels(const struct matmul_job *j, const struct mat_use *u, int64_t first, int64_t last)
{
    const struct panel_mat *m = (const struct panel_mat *)u->w;
    int tiles = tile_count(j->n_tokens, FLOAT_TILE), step = j->n_tokens == 1 ? 2 : 1;
    float sums[2 * FLOAT_TILE * P];
    _Static_assert(FLOAT_TILE >= 2, "room for the two panels of a single token");
    int64_t group = CACHE_BYTES / (int64_t)m->panel_bytes / step * step;
    if (group < step)
        group = step;
    for (int64_t begin = first; begin < last; begin += group) {
        int64_t end = begin + group < last ? begin + group : last;
        for (int i = 0; i < tiles; i++) {
            int t0 = tile_begin(j->n_tokens, tiles, i);
            int width = tile_begin(j->n_tokens, tiles, i + 1) - t0;
            float_kernel *kernel = LEVEL_NAME(cpu_float_kernel)(m->format, width);
            for (int64_t p = begin; p < end; p += step) {
                const uint8_t *panels[2] = {m->data + (size_t)p * m->panel_bytes};
                panels[1] = p + 1 < end ? panels[0] + m->panel_bytes : panels[0]; /* again, for nothing */
                kernel(panels, j->x + t0 * j->cols, j->cols, sums);
                for (int n = 0; n < step && p + n < end; n++)
                    store(u, p + n, t0, width, sums + n * 2 * P);
            }
        }
    }
}

/* Panels first … last-1 of a code matrix. */
static void code_panels(const struct matmul_job *j, const struct mat_use *u, int64_t first, int64_t last,
                        uint8_t *scratch)
{
    const struct panel_mat *m = (const struct panel_mat *)u->w;
    enum panel_format f = m->format;
    int tiles = tile_count(j->n_tokens, CODE_TILE);
    bool expanded = pf_expands(f) && tiles > 4;
    int64_t step = tiles > 1 ? PIECE_BLOCKS : m->n_blocks,
            block_bytes = 2 * pf_group_bytes(f) / pf_group_blocks(f);
    /* The next piece is asked for while the first few tiles pass; a single token's kernel asks for itself. */
    int ahead_tiles = j->n_tokens == 1 ? 0 : tiles < 4 ? tiles : 4;
    int64_t ahead_lines = ahead_tiles ? (block_bytes + 64 * ahead_tiles - 1) / (64 * ahead_tiles) : 0;
    float *sums = (float *)(scratch + 2 * PIECE_BLOCKS * EXPANDED_MOST); /* [token][2 halves] vectors */
    for (int64_t p = first; p < last; p++) {
        const uint8_t *panel = m->data + (size_t)p * m->panel_bytes;
        memset(sums, 0, (size_t)j->n_tokens * 2 * V);
        for (int64_t block = 0; block < m->n_blocks; block += step) {
            int64_t n = block + step < m->n_blocks ? step : m->n_blocks - block;
            bool last_piece = block + n == m->n_blocks;
            const uint8_t *w = panel + block * block_bytes;
            const uint8_t *next = w + (tiles > 1 ? n * block_bytes : AHEAD);
            if (expanded) {
                LEVEL_NAME(cpu_expand)(f, w, n, scratch);
                w = scratch;
            }
            for (int i = 0; i < tiles; i++) {
                int t0 = tile_begin(j->n_tokens, tiles, i);
                int width = tile_begin(j->n_tokens, tiles, i + 1) - t0;
                code_kernel *kernel = LEVEL_NAME(cpu_code_kernel)(f, expanded, width);
                struct ahead ahead = {next, i < ahead_tiles ? ahead_lines : 0};
                float *sum = sums + t0 * 2 * P;
                if (last_piece)
                    ask_for_output(u, p, t0, width);
                kernel(w, n, qx_tile(j, t0) + block * width * QX_BLOCK, sum, ahead);
                next += n * ahead.lines * 64;
                if (last_piece)
                    store(u, p, t0, width, sum);
            }
        }
    }
}

static int64_t panels_of(const struct mat *m)
{
    return ((const struct panel_mat *)m)->n_panels;
}

/* Items are the panels of all matrices, one matrix after the other. */
static void matmul_panels(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct matmul_job *j = arg;
    int64_t base = 0; /* item of u's first panel */
    for (const struct mat_use *u = j->uses; begin < end; base += panels_of((u++)->w)) {
        int64_t from = begin - base, to = end - base, n = panels_of(u->w);
        if (from >= n)
            continue;
        if (to > n)
            to = n;
        if (((const struct panel_mat *)u->w)->format < PF_FIRST_CODE)
            float_panels(j, u, from, to);
        else
            code_panels(j, u, from, to, thread_scratch(j->cpu, thread));
        begin = base + to;
    }
}

/* Items are tiles of tokens. */
static void quantize_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    int tiles = tile_count(j->n_tokens, CODE_TILE);
    for (int64_t i = begin; i < end; i++) {
        int t0 = tile_begin(j->n_tokens, tiles, (int)i);
        LEVEL_NAME(cpu_quantize_tile)
        (j->x + t0 * j->cols, j->cols, blocks_of(j->cols), tile_begin(j->n_tokens, tiles, (int)i + 1) - t0,
         qx_tile(j, t0));
    }
}

void LEVEL_NAME(cpu_matmul)(struct backend *b, const float *x, int n_tokens, struct mat_use *uses, int n_uses)
{
    struct cpu *c = cpu_of(b);
    struct matmul_job j = {.cpu = c, .x = x, .n_tokens = n_tokens, .cols = uses[0].w->cols, .uses = uses};
    assert(n_tokens <= c->max_tokens && j.cols <= c->max_cols);
    int n_threads = pool_threads(c->pool);
    j.qx = thread_scratch(c, n_threads);
    int64_t panels = 0;
    size_t bytes = 0;
    bool codes = false;
    for (int i = 0; i < n_uses; i++) {
        panels += panels_of(uses[i].w);
        bytes += uses[i].w->bytes;
        codes |= ((const struct panel_mat *)uses[i].w)->format >= PF_FIRST_CODE;
        cpu_count_matmul(b, uses[i].w, n_tokens);
    }
    if (codes)
        run_items(b, quantize_tiles, &j, tile_count(n_tokens, CODE_TILE), j.cols * CODE_TILE * 2);
    /* Runs are small enough that nobody waits long for the last one, large enough that a run is worth its
     * claim and, with many tokens, fills the cache with panels. */
    int64_t chunk = panels / (8 * n_threads), most = (int64_t)(256 * 1024 * panels / bytes);
    if (chunk > most)
        chunk = most;
    int64_t least = (int64_t)(8192 * panels / (bytes * (size_t)n_tokens)); /* a microsecond or so of work */
    if (chunk < least)
        chunk = least;
    if (chunk < 1)
        chunk = 1;
    pool_run(c->pool, matmul_panels, &j, panels,
             (chunk + 1) / 2 * 2); /* even, for float kernels of one token */
}

size_t LEVEL_NAME(cpu_scratch_bytes)(const struct backend *b, int max_tokens, int64_t max_cols)
{
    const struct cpu *c = (const struct cpu *)b;
    return (size_t)pool_threads(c->pool) * thread_scratch_bytes(max_tokens, max_cols) +
           (size_t)max_tokens * (size_t)blocks_of(max_cols) * QX_BLOCK;
}

/* --- rows --- */

/* Row `lane` of half `half` of a panel as floats: exactly what the file's format says. */
static void panel_row(const struct panel_mat *m, const uint8_t *panel, int half, int lane, float *out)
{
    if (m->format < PF_FIRST_CODE) {
        panel += half * V;
        for (int64_t k = 0; k < m->m.cols; k++) {
            if (m->format == PF_F32) {
                memcpy(&out[k], panel + k * 2 * V + 4 * lane, 4);
                continue;
            }
            const uint8_t *pair = panel + k / 2 * 2 * V;
            uint16_t h;
            memcpy(&h, pair + (m->format == PF_F16 ? k % 2 * (V / 2) + 2 * lane : k % 2 * 2 + 4 * lane), 2);
            out[k] = m->format == PF_F16 ? half_to_float(h) : bf16_to_float(h);
        }
        return;
    }
    int blocks = pf_group_blocks(m->format), scales = pf_scales(m->format);
    int shift = pf_shift(m->format), bytes = pf_expanded_bytes(m->format);
    uint8_t group[8 * 2 * EXPANDED_MOST];
    for (int64_t k = 0; k < m->m.cols; k++) {
        int64_t block = k / 32;
        if (k % (32 * blocks) == 0)
            LEVEL_NAME(cpu_expand)
        (m->format, panel + block / blocks * 2 * pf_group_bytes(m->format), blocks, group);
        const uint8_t *at = group + (block % blocks * 2 + half) * bytes;
        int s = scales == 2 ? (int)(k % 32 / 16) : 0;
        float scale, min = 0;
        memcpy(&scale, at + s * V + 4 * lane, 4);
        if (pf_has_min(m->format))
            memcpy(&min, at + (scales + s) * V + 4 * lane, 4);
        uint8_t code = at[bytes - 8 * V + k % 32 / 4 * V + 4 * lane + k % 4];
        int value =
            pf_bits(m->format) == 8 ? (int8_t)(code ^ CODE8_FLIP) : code - (shift < 0 ? 0 : 1 << shift);
        out[k] = scale * (float)value;
        if (pf_has_min(m->format))
            out[k] += min;
    }
}

struct embed_job {
    const struct panel_mat *m;
    const int32_t *ids;
    float scale;
    float *out;
};

static void embed_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct embed_job *j = arg;
    const struct panel_mat *m = j->m;
    for (int64_t i = begin; i < end; i++) {
        int32_t id = j->ids[i];
        float *row = j->out + i * m->m.cols;
        panel_row(m, m->data + (size_t)(id / PANEL_ROWS) * m->panel_bytes, id / P % 2, id % P, row);
        for (int64_t k = 0; j->scale != 1.0f && k < m->m.cols; k++)
            row[k] *= j->scale;
    }
}

void LEVEL_NAME(cpu_embed)(struct backend *b, const struct mat *m, const int32_t *ids, int n, float scale,
                           float *out)
{
    struct embed_job j = {(const struct panel_mat *)m, ids, scale, out};
    run_items(b, embed_rows, &j, n, 8 * m->cols);
}
