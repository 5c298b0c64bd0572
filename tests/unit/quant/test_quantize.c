/* Encoders against the decoders (dequant_*.c) and against plain searches; error feedback against the
 * definition of the cost that it makes small. */
#include "unit.h"

#include <math.h>

#include "quant/feedback.h"
#include "quant/mix.h"
#include "quant/quantize.h"

static uint64_t state = 1;

static float uniform(void) /* -1 … 1 */
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static float gaussian(void)
{
    float s = 0;
    for (int i = 0; i < 6; i++)
        s += uniform();
    return s * 0.7071f;
}

static const enum dtype block_types[] = {DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1,
                                         DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K};
enum { N_TYPES = sizeof block_types / sizeof block_types[0], COLS = 512 };

/* Encodes and decodes a row; returns Σ w (x - y)². */
static double round_trip(enum dtype t, const float *x, const float *importance, const float *w, float *y)
{
    uint8_t bytes[COLS * 4];
    assert_true(quantize_row(t, x, COLS, importance, bytes));
    dtype_to_float(t, bytes, y, COLS);
    double e = 0;
    for (int i = 0; i < COLS; i++)
        e += (w ? (double)w[i] : 1) * (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
    return e;
}

/* What rounding to nearest with the full range costs: q4_0 … as converters without a search do. */
static double plain_error(const float *x, int group, int levels)
{
    double e = 0;
    for (int g = 0; g < COLS; g += group) {
        float lo = 0, hi = 0;
        for (int i = g; i < g + group; i++) {
            lo = fminf(lo, x[i]);
            hi = fmaxf(hi, x[i]);
        }
        float s = (hi - lo) / (float)(levels - 1);
        for (int i = g; i < g + group; i++) {
            float d = s > 0 ? x[i] - (lo + s * rintf((x[i] - lo) / s)) : x[i];
            e += (double)d * (double)d;
        }
    }
    return e;
}

static void better_than_rounding(void **unused)
{
    (void)unused;
    static const int levels[N_TYPES] = {16, 16, 32, 32, 255, 16, 32, 64};
    /* symmetric types are held to a range that is not: they may be as bad as this, and no worse */
    static const double most[N_TYPES] = {1.25, 0.95, 1.25, 0.95, 1.6, 1.05, 1.05, 1.3};
    double ours[N_TYPES] = {0}, plain[N_TYPES] = {0};
    for (int row = 0; row < 20; row++) {
        float x[COLS], y[COLS];
        for (int i = 0; i < COLS; i++)
            x[i] = 0.02f * gaussian();
        for (int t = 0; t < N_TYPES; t++) {
            ours[t] += round_trip(block_types[t], x, NULL, NULL, y);
            plain[t] += plain_error(x, block_types[t] == DT_Q6_K ? 16 : 32, levels[t]);
        }
    }
    for (int t = 0; t < N_TYPES; t++)
        if (ours[t] > most[t] * plain[t])
            fail_msg("%s: error %g, rounding's %g", dtype_info(block_types[t])->name, ours[t], plain[t]);
}

/* Q4_0's scale against all scales on a fine ladder. */
static void near_the_best_scale(void **unused)
{
    (void)unused;
    for (int trial = 0; trial < 30; trial++) {
        float x[COLS] = {0}, y[COLS];
        float peak = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = gaussian();
            peak = fmaxf(peak, fabsf(x[i]));
        }
        /* the encoder weighs errors by the weights' sizes: so does the search */
        float w[COLS] = {0}, square = 0;
        for (int i = 0; i < 32; i++)
            square += x[i] * x[i] / 32;
        for (int i = 0; i < 32; i++)
            w[i] = sqrtf(square + x[i] * x[i]);
        double ours = round_trip(DT_Q4_0, x, NULL, w, y), best = INFINITY;
        for (int k = -4000; k <= 4000; k++) {
            float s = peak / 4 * (float)k / 4000;
            double e = 0;
            for (int i = 0; i < 32 && s != 0; i++) {
                float q = fmaxf(-8, fminf(7, rintf(x[i] / s))), d = x[i] - s * q;
                e += (double)(w[i] * d * d);
            }
            if (s != 0 && e < best)
                best = e;
        }
        assert_true(ours <= 1.04 * best + 1e-9);
    }
}

static void importance_is_obeyed(void **unused)
{
    (void)unused;
    for (int t = 0; t < N_TYPES; t++) {
        double with = 0, without = 0;
        for (int row = 0; row < 10; row++) {
            float x[COLS], w[COLS], y[COLS];
            for (int i = 0; i < COLS; i++) {
                x[i] = gaussian();
                w[i] = expf(3 * uniform());
            }
            with += round_trip(block_types[t], x, w, w, y);
            without += round_trip(block_types[t], x, NULL, w, y);
        }
        assert_true(with < without);
    }
}

static void odd_blocks(void **unused)
{
    (void)unused;
    float x[COLS], y[COLS], zero[COLS] = {0};
    for (int t = 0; t < N_TYPES; t++) {
        uint8_t bytes[COLS * 4];
        assert_true(round_trip(block_types[t], zero, NULL, NULL, y) == 0);
        assert_true(round_trip(block_types[t], zero, zero, NULL, y) == 0);
        /* one weight among zeros; all alike; all above zero; tiny; huge */
        static const float scales[] = {1, 1e-30f, 1e-7f, 1e4f};
        for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
            for (int shape = 0; shape < 4; shape++) {
                for (int i = 0; i < COLS; i++)
                    x[i] = scales[k] * (shape == 0   ? (float)(i % 32 == 5)
                                        : shape == 1 ? -1
                                        : shape == 2 ? 2 + uniform()
                                                     : uniform());
                double e = round_trip(block_types[t], x, NULL, NULL, y), all = 0;
                for (int i = 0; i < COLS; i++)
                    all += (double)x[i] * (double)x[i];
                assert_true(isfinite(e));
                if (scales[k] >= 1e-5f)
                    assert_true(e < 0.02 * all);
            }
        }
        /* no importance at all in a block is no reason to lose it */
        for (int i = 0; i < COLS; i++)
            x[i] = uniform();
        double blind = round_trip(block_types[t], x, zero, NULL, y);
        assert_true(blind < 0.02 * COLS);
        x[77] = NAN;
        assert_false(quantize_row(block_types[t], x, COLS, NULL, bytes));
        x[77] = -INFINITY;
        assert_false(quantize_row(block_types[t], x, COLS, NULL, bytes));
    }
    /* values past fp16's range become its largest, not infinity */
    for (int i = 0; i < COLS; i++)
        x[i] = 1e30f * uniform();
    for (int t = 0; t < N_TYPES; t++) {
        round_trip(block_types[t], x, NULL, NULL, y);
        for (int i = 0; i < COLS; i++)
            assert_true(isfinite(y[i]));
    }
}

/* --- feedback --- */

enum { N_INPUTS = 900, WIDE = 320 };

/* Inputs of which neighbours are alike, as they are in models. */
static float *correlated_inputs(void)
{
    float *x = malloc(sizeof *x * N_INPUTS * WIDE);
    for (int i = 0; i < N_INPUTS; i++) {
        float common = gaussian(), drift = 0;
        for (int k = 0; k < WIDE; k++) {
            drift = 0.9f * drift + gaussian();
            x[i * WIDE + k] = drift + common * (float)(k % 7);
        }
    }
    return x;
}

static double output_error(const float *x, const float *w, const float *v)
{
    double sum = 0;
    for (int i = 0; i < N_INPUTS; i++) {
        double d = 0;
        for (int k = 0; k < WIDE; k++)
            d += (double)x[i * WIDE + k] * (double)(w[k] - v[k]);
        sum += d * d;
    }
    return sum / N_INPUTS;
}

static void encode_rows(struct quantize_job *j, struct pool *pool)
{
    j->scratch = malloc((size_t)pool_threads(pool) * quantize_scratch_floats(j->cols) * sizeof(float));
    pool_run(pool, quantize_tiles, j, quantize_tile_count(j->rows), 1);
    free(j->scratch);
}

/* The factor is what feedback.h says: R Rᵀ = H. */
static void factor_is_right(void **unused)
{
    (void)unused;
    struct err e;
    struct pool *pool = pool_create(2, &e);
    float *x = correlated_inputs();
    struct error_feedback *f = feedback_create(WIDE, 512), *h = feedback_create(WIDE, 512);
    feedback_add(f, pool, x, N_INPUTS);
    feedback_add(h, pool, x, N_INPUTS);
    assert_true(feedback_factor(f, pool, 1e-6f));
    for (int a = 0; a < WIDE; a += 13) {
        for (int b = a; b < WIDE; b += 7) {
            double sum = 0; /* R_aj R_bj over j >= b; R_ij = (row i, column j) times R_jj */
            for (int j = b; j < WIDE; j++) {
                double ra = a == j ? 1 : (double)f->h[a * WIDE + j],
                       rb = b == j ? 1 : (double)f->h[b * WIDE + j];
                sum += ra * rb * (double)f->cost[j];
            }
            assert_float_equal(sum / (double)h->h[a * WIDE + a],
                               (double)(h->h[a * WIDE + b] / h->h[a * WIDE + a]), 2e-3);
        }
    }
    feedback_free(f);
    feedback_free(h);
    free(x);
    pool_free(pool);
}

static void feedback_helps(void **unused)
{
    (void)unused;
    enum { ROWS = 35 }; /* not whole tiles */
    struct err e;
    struct pool *pool = pool_create(2, &e), *alone = pool_create(1, &e);
    float *x = correlated_inputs(), importance[WIDE];
    float *w = malloc(sizeof *w * ROWS * WIDE), *v = malloc(sizeof *v * ROWS * WIDE);
    for (int i = 0; i < ROWS * WIDE; i++)
        w[i] = gaussian();
    struct error_feedback *f = feedback_create(WIDE, 512);
    feedback_add(f, pool, x, N_INPUTS);
    feedback_importance(f, importance);
    assert_true(feedback_factor(f, pool, 0.01f));
    for (int t = 0; t < 5; t++) { /* the types whose rows need not be whole blocks of 256 */
        size_t row = dtype_row_bytes(block_types[t], WIDE);
        uint8_t *fed = malloc(ROWS * row), *again = malloc(ROWS * row), *weighed = malloc(ROWS * row);
        struct quantize_job j = {.from = DT_F32,
                                 .to = block_types[t],
                                 .rows = ROWS,
                                 .cols = WIDE,
                                 .data = (const uint8_t *)w,
                                 .out = weighed,
                                 .importance = importance};
        encode_rows(&j, pool);
        j.feedback = f;
        j.out = fed;
        encode_rows(&j, pool);
        j.out = again;
        encode_rows(&j, alone);
        assert_memory_equal(fed, again, ROWS * row); /* threads change nothing */
        double a = 0, b = 0;
        for (int r = 0; r < ROWS; r++) {
            dtype_to_float(block_types[t], weighed + (size_t)r * row, v, WIDE);
            a += output_error(x, w + r * WIDE, v);
            dtype_to_float(block_types[t], fed + (size_t)r * row, v, WIDE);
            b += output_error(x, w + r * WIDE, v);
        }
        if (b > 0.6 * a)
            fail_msg("%s: output error %g with feedback, %g with importance",
                     dtype_info(block_types[t])->name, b, a);
        free(fed);
        free(again);
        free(weighed);
    }
    feedback_free(f);
    free(x);
    free(w);
    free(v);
    pool_free(pool);
    pool_free(alone);
}

/* NaN and giants among the inputs; none at all. */
static void strange_inputs(void **unused)
{
    (void)unused;
    struct err e;
    struct pool *pool = pool_create(1, &e);
    float x[8 * 64], importance[64];
    struct error_feedback *f = feedback_create(64, 256);
    assert_false(feedback_factor(f, pool, 0.01f));
    for (int i = 0; i < 8 * 64; i++)
        x[i] = 1;
    x[64] = NAN;
    x[2 * 64 + 3] = INFINITY;
    for (int k = 0; k < 64; k++)
        x[3 * 64 + k] = 1000;
    feedback_add(f, pool, x, 8);
    assert_int_equal(f->n, 6);
    feedback_importance(f, importance);
    for (int k = 0; k < 64; k++)
        assert_float_equal(importance[k], 9.0f / 6, 1e-5); /* five ones and a giant that counts as four */
    assert_true(feedback_factor(f, pool, 0.01f));          /* of rank one: damping makes it definite */
    feedback_free(f);
    pool_free(pool);
}

static void mix_rule(void **unused)
{
    (void)unused;
    static const struct {
        enum dtype target;
        const char *name;
        int n_dims;
        int64_t cols;
        enum dtype expected;
    } cases[] = {
        {DT_Q4_K, "token_embd.weight", 2, 2560, DT_Q6_K},
        {DT_Q4_K, "output.weight", 2, 2560, DT_Q6_K},
        {DT_Q4_0, "token_embd.weight", 2, 576, DT_Q8_0},
        {DT_Q4_K, "blk.3.attn_q.weight", 2, 576, DT_Q5_0},
        {DT_Q4_K, "blk.3.ffn_up.weight", 2, 2560, DT_Q4_K},
        {DT_Q4_K, "blk.0.ffn_down.weight", 2, 9216, DT_Q6_K},
        {DT_Q4_K, "blk.4.ffn_down.weight", 2, 9216, DT_Q4_K},
        {DT_Q4_K, "blk.6.attn_v.weight", 2, 2560, DT_Q6_K},
        {DT_Q4_K, "blk.1.attn_qkv.weight", 2, 2560, DT_Q5_K},
        {DT_Q8_0, "output.weight", 2, 2560, DT_Q8_0},
        {DT_Q4_0, "blk.1.ffn_up.weight", 2, 100, DT_F16},
        {DT_Q4_K, "blk.0.ssm_alpha.weight", 2, 2560, DT_BF16},
        {DT_Q4_K, "blk.0.attn_norm.weight", 1, 2560, DT_BF16},
        {DT_Q4_K, "blk.0.ssm_conv1d.weight", 2, 4, DT_BF16},
        {DT_Q4_0, "blk.0.attn_q.bias", 1, 2560, DT_BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(
            mix_choose(cases[i].target, cases[i].name, cases[i].n_dims, cases[i].cols, 32, DT_BF16),
            cases[i].expected);
    assert_int_equal(mix_type("q4_k"), DT_Q4_K);
    assert_int_equal(mix_type("q9"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(better_than_rounding), cmocka_unit_test(near_the_best_scale),
        cmocka_unit_test(importance_is_obeyed), cmocka_unit_test(odd_blocks),
        cmocka_unit_test(factor_is_right),      cmocka_unit_test(feedback_helps),
        cmocka_unit_test(strange_inputs),       cmocka_unit_test(mix_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
