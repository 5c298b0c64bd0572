/* kv_write and attention of every level against a plain two-pass softmax in double precision, over scrambled
 * block tables, several sequences, windows, head sizes and cache types; law 3. */
#include "ops_test.h"

#include <float.h>

#include "ops/cpu/cpu.h"

struct shape {
    int n_heads, n_kv_heads, head_dim, block_size, window;
    enum dtype dtype;
};

static const struct shape shapes[] = {
    {9, 3, 64, 16, 0, DT_F16},   {4, 4, 32, 16, 0, DT_F32},  {14, 2, 64, 16, 0, DT_BF16},
    {16, 4, 256, 16, 0, DT_F16}, {4, 1, 256, 16, 7, DT_F16}, {3, 1, 48, 16, 20, DT_F32},
    {70, 2, 32, 16, 0, DT_F16},  {8, 2, 128, 32, 0, DT_F16}, {6, 3, 20, 5, 9, DT_BF16},
    {2, 1, 128, 8, 0, DT_BF16},  {8, 8, 40, 24, 0, DT_F16},  {9, 3, 64, 16, 0, DT_I8},
    {14, 2, 64, 16, 0, DT_I8},   {6, 3, 20, 5, 9, DT_I8},    {4, 1, 256, 16, 7, DT_I8},
    {8, 2, 128, 32, 0, DT_I8},   {3, 1, 33, 7, 0, DT_I8},    {20, 2, 48, 16, 0, DT_I8},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

#define N_LAYERS 2
#define N_SEQS   3
#define LENGTH   45

/* Three sequences of LENGTH tokens, their q, k and v, and room for them in a cache whose blocks are dealt out
 * of order. */
struct scene {
    struct shape s;
    struct kv_cache cache;
    size_t cache_bytes;
    int32_t *blocks; /* [N_SEQS, per_seq] */
    int per_seq;
    float *q, *k, *v; /* [N_SEQS, LENGTH, heads, head_dim] */
};

static struct scene scene(struct backend *b, struct shape s)
{
    struct scene w = {.s = s, .per_seq = (LENGTH + s.block_size - 1) / s.block_size};
    w.cache = (struct kv_cache){NULL,         s.dtype,      N_LAYERS,  N_SEQS * w.per_seq + 2,
                                s.block_size, s.n_kv_heads, s.head_dim};
    w.cache_bytes = (size_t)w.cache.n_blocks * N_LAYERS * 2 * (size_t)s.n_kv_heads * kv_plane_bytes(&w.cache);
    w.cache.data = b->ops->alloc(b, w.cache_bytes, NULL);
    memset(w.cache.data, 0xff, w.cache_bytes); /* NaN: what nobody wrote must not be used */
    w.blocks = malloc((size_t)(N_SEQS * w.per_seq) * sizeof *w.blocks);
    for (int i = 0; i < N_SEQS * w.per_seq; i++)
        w.blocks[i] = i + 1;
    for (int i = N_SEQS * w.per_seq - 1; i > 0; i--) {
        int j = random_int(0, i);
        int32_t swap = w.blocks[i];
        w.blocks[i] = w.blocks[j];
        w.blocks[j] = swap;
    }
    w.q = random_floats((size_t)(N_SEQS * LENGTH * s.n_heads * s.head_dim));
    w.k = random_floats((size_t)(N_SEQS * LENGTH * s.n_kv_heads * s.head_dim));
    w.v = random_floats((size_t)(N_SEQS * LENGTH * s.n_kv_heads * s.head_dim));
    for (int i = 0; i < s.head_dim; i++)
        w.k[7 * s.n_kv_heads * s.head_dim + i] *= 30; /* one loud key */
    return w;
}

static void scene_free(struct backend *b, struct scene *w)
{
    b->ops->release(b, w->cache.data, w->cache_bytes);
    free(w->blocks);
    free(w->q);
    free(w->k);
    free(w->v);
}

/* Steps through the sequences, `chunks[i]` new tokens of each in turn as long as it has some left; writes
 * layer `layer`, attends, and puts the outputs to out [N_SEQS, LENGTH, n_heads * head_dim]. only: a single
 * sequence, or -1 for all. */
static void run(struct backend *b, struct scene *w, const int *chunks, int n_chunks, int only, float *out)
{
    const struct shape *s = &w->s;
    int done[N_SEQS] = {0}, q_row = s->n_heads * s->head_dim, kv_row = s->n_kv_heads * s->head_dim;
    memset(w->cache.data, 0xff, w->cache_bytes);
    float *q = malloc((size_t)(TEST_MAX_TOKENS * q_row) * sizeof *q),
          *o = malloc((size_t)(TEST_MAX_TOKENS * q_row) * sizeof *o);
    float *k = malloc((size_t)(TEST_MAX_TOKENS * kv_row) * sizeof *k),
          *v = malloc((size_t)(TEST_MAX_TOKENS * kv_row) * sizeof *v);
    for (int step = 0;; step++) {
        struct seq_slice seqs[N_SEQS];
        int32_t positions[TEST_MAX_TOKENS];
        struct batch batch = {.positions = positions, .seqs = seqs};
        for (int i = 0; i < N_SEQS; i++) {
            int n = chunks[(step + (only < 0 ? i : 0)) % n_chunks];
            if (n > LENGTH - done[i])
                n = LENGTH - done[i];
            if (n > TEST_MAX_TOKENS - batch.n_tokens)
                n = TEST_MAX_TOKENS - batch.n_tokens;
            if (n == 0 || (only >= 0 && i != only))
                continue;
            seqs[batch.n_seqs++] = (struct seq_slice){.first = batch.n_tokens,
                                                      .count = n,
                                                      .kv_blocks = w->blocks + i * w->per_seq,
                                                      .state_slot = -1};
            for (int t = 0; t < n; t++, batch.n_tokens++, done[i]++) {
                size_t from = (size_t)(i * LENGTH + done[i]), to = (size_t)batch.n_tokens;
                positions[to] = done[i];
                memcpy(q + to * (size_t)q_row, w->q + from * (size_t)q_row, (size_t)q_row * sizeof *q);
                memcpy(k + to * (size_t)kv_row, w->k + from * (size_t)kv_row, (size_t)kv_row * sizeof *k);
                memcpy(v + to * (size_t)kv_row, w->v + from * (size_t)kv_row, (size_t)kv_row * sizeof *v);
            }
        }
        if (batch.n_tokens == 0)
            break;
        b->ops->kv_write(b, &w->cache, 1, k, v, &batch);
        struct attention a = {q, o, 1, s->n_heads, 0.125f, s->window};
        b->ops->attention(b, &w->cache, &a, &batch);
        for (int i = 0; i < batch.n_seqs; i++) {
            int seq = (int)((seqs[i].kv_blocks - w->blocks) / w->per_seq);
            memcpy(out + (seq * LENGTH + positions[seqs[i].first]) * q_row, o + seqs[i].first * q_row,
                   (size_t)(seqs[i].count * q_row) * sizeof *out);
        }
    }
    free(q);
    free(k);
    free(v);
    free(o);
}

/* The transform of 8-bit keys by its definition: entry i of a block is the sum of all with the sign of the
 * parity of i & j. Its own inverse, but for the length of a block, which is returned. */
static int transform(const float *row, int dim, float *out)
{
    int n = 1;
    while (dim % (2 * n) == 0)
        n *= 2;
    for (int i = 0; i < dim; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += (double)row[i / n * n + j] * (__builtin_parity((unsigned)(i % n & j)) ? -1 : 1);
        out[i] = (float)sum;
    }
    return n;
}

/* What a cache without a transform keeps of value i of a row. */
static double stored(const struct scene *w, const float *row, int i)
{
    float most = 0;
    switch (w->s.dtype) {
    case DT_F16:
        return (double)half_to_float(float_to_half(row[i]));
    case DT_BF16:
        return (double)bf16_to_float(float_to_bf16(row[i]));
    case DT_I8:
        for (int d = 0; d < w->s.head_dim; d++)
            most = fmaxf(most, fabsf(row[d]));
        return (double)rintf(row[i] * (127 / most)) * (double)(most / 127);
    default:
        return (double)row[i];
    }
}

/* What a cache of keys or values keeps of a row. */
static void stored_row(const struct scene *w, bool key, const float *row, double *out)
{
    float spread[256], back[256];
    int dim = w->s.head_dim, n;
    if (w->s.dtype == DT_I8 && key) {
        /* In the levels' own order, so that the nearest integers are the same; and right by the definition.
         */
        transform(row, dim, back);
        memcpy(spread, row, (size_t)dim * sizeof *row);
        kv_transform(spread, dim);
        check_close(spread, back, (size_t)dim, 1e-4f, "transform");
        for (int i = 0; i < dim; i++)
            back[i] = (float)stored(w, spread, i);
        n = transform(back, dim, spread);
        for (int i = 0; i < dim; i++)
            out[i] = (double)spread[i] / n;
        return;
    }
    for (int i = 0; i < dim; i++)
        out[i] = stored(w, row, i);
}

static void expected(const struct scene *w, float *out)
{
    const struct shape *s = &w->s;
    int rows = N_SEQS * LENGTH * s->n_kv_heads;
    double *keys = malloc((size_t)(rows * s->head_dim) * sizeof *keys);
    double *values = malloc((size_t)(rows * s->head_dim) * sizeof *values);
    for (int i = 0; i < rows; i++) {
        stored_row(w, true, w->k + i * s->head_dim, keys + i * s->head_dim);
        stored_row(w, false, w->v + i * s->head_dim, values + i * s->head_dim);
    }
    for (int seq = 0; seq < N_SEQS; seq++) {
        for (int t = 0; t < LENGTH; t++) {
            for (int h = 0; h < s->n_heads; h++) {
                int kv = h / (s->n_heads / s->n_kv_heads), row = seq * LENGTH + t;
                const float *q = w->q + (row * s->n_heads + h) * s->head_dim;
                double score[LENGTH], sum = 0, max = -INFINITY, acc[256] = {0};
                int first = s->window && t >= s->window ? t - s->window + 1 : 0;
                for (int p = first; p <= t; p++) {
                    const double *k = keys + ((seq * LENGTH + p) * s->n_kv_heads + kv) * s->head_dim;
                    score[p] = 0;
                    for (int i = 0; i < s->head_dim; i++)
                        score[p] += (double)q[i] * k[i] * 0.125;
                    max = fmax(max, score[p]);
                }
                for (int p = first; p <= t; p++) {
                    const double *v = values + ((seq * LENGTH + p) * s->n_kv_heads + kv) * s->head_dim;
                    double weight = exp(score[p] - max);
                    sum += weight;
                    for (int i = 0; i < s->head_dim; i++)
                        acc[i] += weight * v[i];
                }
                for (int i = 0; i < s->head_dim; i++)
                    out[(row * s->n_heads + h) * s->head_dim + i] = (float)(acc[i] / sum);
            }
        }
    }
    free(keys);
    free(values);
}

static void attention_is_right(void **state)
{
    (void)state;
    static const int mixed[] = {13, 1, 32, 2, 7};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        for (size_t i = 0; i < N_SHAPES; i++) {
            struct scene w = scene(b, shapes[i]);
            size_t n = (size_t)(N_SEQS * LENGTH * w.s.n_heads * w.s.head_dim);
            float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
            expected(&w, want);
            run(b, &w, mixed, 5, -1, got);
            char what[64];
            snprintf(what, sizeof what, "%s, shape %zu", b->ops->name, i);
            /* The fast levels take queries in 16 bits against an 8-bit cache. */
            check_close(got, want, n, w.s.dtype == DT_I8 ? 2e-3f : 3e-6f, what);
            free(want);
            free(got);
            scene_free(b, &w);
        }
        b->ops->destroy(b);
    }
}

static void company_changes_no_bit(void **state)
{
    (void)state;
    static const int single[] = {1}, whole[] = {LENGTH}, seven[] = {7}, mixed[] = {3, 40, 1, 17};
    for (int l = 0; test_level(l); l++) {
        struct backend *backends[3] = {test_backend(test_level(l), 1), test_backend(test_level(l), 2),
                                       test_backend(test_level(l), 4)};
        for (size_t i = 0; i < N_SHAPES; i++) {
            struct scene w = scene(backends[0], shapes[i]);
            size_t row = (size_t)(LENGTH * w.s.n_heads * w.s.head_dim), n = N_SEQS * row;
            float *alone = malloc(n * sizeof *alone), *got = malloc(n * sizeof *got);
            for (int seq = 0; seq < N_SEQS; seq++)
                run(backends[0], &w, single, 1, seq, alone);
            run(backends[0], &w, whole, 1, 1, got);
            check_bits(got + row, alone + row, row, "whole prompt");
            run(backends[1], &w, seven, 1, -1, got);
            check_bits(got, alone, n, "chunks of seven, two threads");
            run(backends[2], &w, mixed, 4, -1, got);
            check_bits(got, alone, n, "mixed chunks, four threads");
            free(alone);
            free(got);
            scene_free(backends[0], &w);
        }
        for (int i = 0; i < 3; i++)
            backends[i]->ops->destroy(backends[i]);
    }
}

/* Contexts of several spans, whose sums are closed and joined: right, and the same bits alone on one thread,
 * which goes from span to span, and on several, which share the spans of a single token. */
static void spans_are_joined(void **state)
{
    (void)state;
    enum {
        CONTEXT = 2900,
        HEADS = 6,
        KV_HEADS = 2,
        DIM = 24,
        ROW = HEADS * DIM,
        KV_ROW = KV_HEADS * DIM,
        LAST = 9
    };
    static const struct {
        enum dtype dtype;
        int window;
    } kinds[] = {{DT_F16, 0}, {DT_F32, 1500}, {DT_I8, 0}};
    float *q = random_floats(LAST * ROW), *k = random_floats(CONTEXT * KV_ROW),
          *v = random_floats(CONTEXT * KV_ROW);
    int32_t blocks[CONTEXT / 16 + 1], positions[CONTEXT];
    for (int i = 0; i <= CONTEXT / 16; i++)
        blocks[i] = CONTEXT / 16 - i;
    for (int i = 0; i < CONTEXT; i++)
        positions[i] = i;
    for (int l = 0; test_level(l); l++) {
        for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
            float *want = NULL;
            for (int threads = 1; threads <= 4; threads += 3) {
                struct err e = {0};
                struct backend *b = backend_cpu(test_level(l), threads, &e);
                assert_int_equal(b->ops->reserve(b, 1024, TEST_MAX_COLS, &e), 0); /* room for the parts */
                struct scene w = {.s = {HEADS, KV_HEADS, DIM, 16, kinds[kind].window, kinds[kind].dtype}};
                w.cache = (struct kv_cache){NULL, w.s.dtype, 1, CONTEXT / 16 + 1, 16, KV_HEADS, DIM};
                w.cache_bytes = 2 * (size_t)(w.cache.n_blocks * KV_HEADS) * kv_plane_bytes(&w.cache);
                w.cache.data = b->ops->alloc(b, w.cache_bytes, NULL);
                struct seq_slice seq = {.kv_blocks = blocks, .state_slot = -1};
                struct batch batch = {.n_seqs = 1, .seqs = &seq};
                for (int at = 0; at < CONTEXT; at += seq.count) {
                    batch.n_tokens = seq.count = CONTEXT - at < 64 ? CONTEXT - at : 64;
                    batch.positions = positions + at;
                    b->ops->kv_write(b, &w.cache, 0, k + at * KV_ROW, v + at * KV_ROW, &batch);
                }
                float whole[LAST * ROW], single[LAST * ROW];
                struct attention a = {q, whole, 0, HEADS, 0.2f, w.s.window};
                batch.positions = positions + CONTEXT - LAST;
                batch.n_tokens = seq.count = LAST;
                b->ops->attention(b, &w.cache, &a, &batch);
                batch.n_tokens = seq.count = 1;
                for (int t = 0; t < LAST; t++, batch.positions++) {
                    a.q = q + t * ROW;
                    a.out = single + t * ROW;
                    b->ops->attention(b, &w.cache, &a, &batch);
                }
                check_bits(single, whole, LAST * ROW, "one token at a time");
                if (want)
                    check_bits(whole, want, LAST * ROW, "threads");
                else
                    want = copy_floats(whole, LAST * ROW);
                b->ops->release(b, w.cache.data, w.cache_bytes);
                b->ops->destroy(b);
                for (int row = 0; row < LAST * HEADS && threads == 1; row += 13) {
                    int p = CONTEXT - LAST + row / HEADS, kv = row % HEADS / (HEADS / KV_HEADS);
                    double sum = 0, acc[DIM] = {0};
                    for (int i = w.s.window ? p - w.s.window + 1 : 0; i <= p; i++) {
                        double score = 0, kept_k[256], kept_v[256];
                        stored_row(&w, true, k + i * KV_ROW + kv * DIM, kept_k);
                        stored_row(&w, false, v + i * KV_ROW + kv * DIM, kept_v);
                        for (int d = 0; d < DIM; d++)
                            score += (double)q[row * DIM + d] * kept_k[d] * 0.2;
                        sum += exp(score);
                        for (int d = 0; d < DIM; d++)
                            acc[d] += exp(score) * kept_v[d];
                    }
                    for (int d = 0; d < DIM; d++)
                        assert_true(fabs(acc[d] / sum - (double)whole[row * DIM + d]) < 1e-5);
                }
            }
            free(want);
        }
    }
    free(q);
    free(k);
    free(v);
}

/* Values beyond the cache's type are clamped to it, NaN stays; all levels store the same bits. */
static void stored_values(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        for (int d = 0; d < 3; d++) {
            uint8_t data[2 * 20 * 4 + 64] = {0};
            struct kv_cache c = {data, types[d], 1, 1, 1, 1, 20};
            float *k = random_floats(20), *v = random_floats(20);
            k[0] = 1e30f;
            k[1] = -1e30f;
            k[2] = INFINITY;
            k[3] = 1e-7f;
            k[17] = NAN;
            k[18] = -INFINITY;
            int32_t block = 0, position = 0;
            struct seq_slice seq = {.count = 1, .kv_blocks = &block, .state_slot = -1};
            struct batch batch = {1, NULL, &position, 1, &seq, 0};
            b->ops->kv_write(b, &c, 0, k, v, &batch);
            for (int i = 0; i < 40; i++) {
                float x = i < 20 ? k[i] : v[i - 20];
                if (types[d] == DT_F32) {
                    assert_memory_equal(data + 4 * i, &x, 4);
                    continue;
                }
                float limit = types[d] == DT_F16 ? 65504.0f : 0x1.fep127f;
                x = x > limit ? limit : x < -limit ? -limit : x;
                uint16_t h, want = types[d] == DT_F16 ? float_to_half(x) : float_to_bf16(x);
                memcpy(&h, data + 2 * i, 2);
                if (isnan(x))
                    assert_true(isnan(types[d] == DT_F16 ? half_to_float(h) : bf16_to_float(h)));
                else
                    assert_int_equal(h, want);
            }
            assert_int_equal(b->count.kv_write_bytes, 2 * kv_row_bytes(types[d], 20));
            b->count.kv_write_bytes = 0;
            free(k);
            free(v);
        }
        b->ops->destroy(b);
    }
}

/* 8-bit values: the scale is what the largest asks for, integers are the nearest; zeros, infinities and NaN.
 * All levels store the same bytes, keys too. */
static void stored_integers(void **state)
{
    (void)state;
    enum { DIM = 20, SLOTS = 3, PLANE = SLOTS * (DIM + 4) };
    uint8_t first[6][2 * PLANE];
    float *rows[6];
    for (int i = 0; i < 6; i++)
        rows[i] = random_floats(DIM);
    rows[1][4] = 117.25f;
    memset(rows[2], 0, DIM * sizeof(float));
    rows[3][7] = -INFINITY;
    rows[4][19] = NAN;
    for (int i = 0; i < DIM; i++)
        rows[5][i] *= 1e-38f;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        for (int i = 0; i < 6; i++) {
            uint8_t cache[2 * PLANE + 64], *data = cache + PLANE;
            memset(cache, 0x55, sizeof cache);
            struct kv_cache c = {cache, DT_I8, 1, 1, SLOTS, 1, DIM};
            int32_t block = 0, position = 1;
            struct seq_slice seq = {.count = 1, .kv_blocks = &block, .state_slot = -1};
            struct batch batch = {1, NULL, &position, 1, &seq, 0};
            b->ops->kv_write(b, &c, 0, rows[i], rows[i], &batch);
            assert_int_equal(b->count.kv_write_bytes, 2 * (DIM + 4));
            b->count.kv_write_bytes = 0;
            float scale, most = 0;
            memcpy(&scale, data + SLOTS * DIM + 4, 4);
            for (int d = 0; d < DIM; d++)
                most = fmaxf(most, fminf(fabsf(rows[i][d]), FLT_MAX));
            if (i == 4)
                assert_true(isnan(scale));
            else
                assert_true(scale == (i == 2 || i == 5 ? 0 : most / 127));
            for (int d = 0; d < DIM; d++) {
                int8_t got = (int8_t)data[DIM + d];
                float want = scale > 0 ? rintf(fmaxf(rows[i][d], -FLT_MAX) * (127 / most)) : 0;
                assert_true((float)got == want);
            }
            for (int at = 0; at < PLANE + 64; at++) /* nothing else is touched */
                if (at / DIM != 1 && (at < SLOTS * DIM + 4 || at >= SLOTS * DIM + 8) && at < PLANE)
                    assert_int_equal(data[at], 0x55);
            if (l == 0)
                memcpy(first[i], cache, sizeof first[i]);
            else if (i != 4) /* NaN has many forms */
                assert_memory_equal(cache, first[i], sizeof first[i]);
        }
        b->ops->destroy(b);
    }
    for (int i = 0; i < 6; i++)
        free(rows[i]);
}

/* A lone token reads its keys and values once, however many heads share them. */
static void reads_are_counted(void **state)
{
    (void)state;
    struct backend *b = test_backend(NULL, 2);
    if (!strcmp(b->ops->name, "cpu/reference")) {
        b->ops->destroy(b);
        print_message("skipped: this CPU has no fast level\n");
        skip();
    }
    struct scene w = scene(b, shapes[0]);
    float *out = malloc((size_t)(N_SEQS * LENGTH * 9 * 64) * sizeof *out);
    static const int single[] = {1};
    b->count = (struct op_counts){0};
    run(b, &w, single, 1, 0, out);
    uint64_t seen = LENGTH * (LENGTH + 1) / 2;
    assert_int_equal(b->count.kv_read_bytes, seen * 3 * 64 * 2 * 2);
    assert_int_equal(b->count.flops, seen * 9 * 64 * 4);
    free(out);
    scene_free(b, &w);
    b->ops->destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right), cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(spans_are_joined),   cmocka_unit_test(stored_values),
        cmocka_unit_test(stored_integers),    cmocka_unit_test(reads_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
