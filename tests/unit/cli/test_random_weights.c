/* Random weights: the same whatever parts they are made in, different for each seed and tensor, of the
 * variance that keeps activations in range; and the shapes that they are made for have the published sizes.
 */
#include "unit.h"

#include <math.h>

#include "cli/model_like.h"
#include "cli/random_weights.h"

enum { COLS = 2560, ROWS = 40 };

static const enum dtype types[] = {DT_BF16, DT_Q8_0, DT_Q4_0, DT_Q4_K};

static void test_parts(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        struct random_tensor t = {types[k], WEIGHTS_MATRIX, COLS, random_key(7, 3)};
        size_t n = ROWS * dtype_row_bytes(types[k], COLS), unit = random_unit_bytes(types[k]);
        uint8_t *whole = malloc(n), *parts = malloc(n);
        random_weights(&t, 0, whole, n);
        for (size_t at = 0, units = 1; at < n; units = units % 997 + 13) {
            size_t len = units * unit < n - at ? units * unit : n - at;
            random_weights(&t, at, parts + at, len);
            at += len;
        }
        assert_memory_equal(parts, whole, n);
        t.key = random_key(7, 4);
        random_weights(&t, 0, parts, n);
        assert_memory_not_equal(parts, whole, n);
        t.key = random_key(8, 3);
        random_weights(&t, 0, parts, n);
        assert_memory_not_equal(parts, whole, n);
        free(whole);
        free(parts);
    }
}

/* Variance 1 / columns, no bias, and no weight that is far outside or not a number. */
static void test_variance(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        struct random_tensor t = {types[k], WEIGHTS_MATRIX, COLS, random_key(0, 0)};
        size_t n = ROWS * COLS;
        uint8_t *bytes = malloc(ROWS * dtype_row_bytes(types[k], COLS));
        float *w = malloc(n * sizeof *w);
        random_weights(&t, 0, bytes, ROWS * dtype_row_bytes(types[k], COLS));
        dtype_to_float(types[k], bytes, w, (int64_t)n);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < n; i++) {
            assert_true(fabsf(w[i]) <= 2.0f / sqrtf(COLS));
            sum += (double)w[i];
            squares += (double)w[i] * (double)w[i];
        }
        double mean = sum / (double)n * sqrt(COLS), deviation = sqrt(squares / (double)n * COLS);
        if (fabs(mean) > 0.02 || fabs(deviation - 1) > 0.01)
            fail_msg("%s: mean %.4f, standard deviation %.4f", dtype_info((int)types[k])->name, mean,
                     deviation);
        free(bytes);
        free(w);
    }
}

static void test_vectors(void **state)
{
    (void)state;
    static const struct {
        enum weight_kind kind;
        float least, most;
    } kinds[] = {{WEIGHTS_NORM, 0.9f, 1.1f},
                 {WEIGHTS_DECAY, -16, -1},
                 {WEIGHTS_CONV, -0.8661f, 0.8661f},
                 {WEIGHTS_DT, -6.91f, -2.25f}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct random_tensor t = {DT_F32, kinds[k].kind, 4, random_key(0, 1)};
        float x[1000], y[1000], least = INFINITY, most = -INFINITY;
        random_weights(&t, 0, x, sizeof x);
        random_weights(&t, 400, y + 100, sizeof y - 400);
        assert_memory_equal(y + 100, x + 100, sizeof x - 400);
        for (int i = 0; i < 1000; i++) {
            least = fminf(least, x[i]);
            most = fmaxf(most, x[i]);
        }
        float slack = 0.01f * (kinds[k].most - kinds[k].least);
        assert_true(least >= kinds[k].least && least < kinds[k].least + slack);
        assert_true(most <= kinds[k].most && most > kinds[k].most - slack);
    }
}

static void count(void *arg, const char *name, enum weight_kind kind, int n_dims, const int64_t *shape)
{
    (void)name, (void)kind;
    *(int64_t *)arg += n_dims == 2 ? shape[0] * shape[1] : shape[0];
}

/* The published numbers of parameters, in millions, are of whole checkpoints; those of Qwen3.5 count the
 * drafting block and the vision encoder too, which has about 100, 331, 334 and 456 million in the first four
 * sizes. */
static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool mtp;
        double millions, vision;
    } sizes[] = {{"qwen3.5-0.8b", true, 873, 100},  {"qwen3.5-2b", true, 2274, 331},
                 {"qwen3.5-4b", true, 4660, 334},   {"qwen3.5-9b", true, 9653, 456},
                 {"qwen3.5-4b", false, 4205.8, 0},  {"qwen3-0.6b", false, 596.05, 0},
                 {"smollm2-135m", false, 134.52, 0}};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int64_t n = 0;
        struct model_like like = *model_like_find(sizes[k].name);
        like.mtp = sizes[k].mtp;
        model_like_tensors(&like, count, &n);
        double got = (double)n / 1e6 + sizes[k].vision;
        if (fabs(got / sizes[k].millions - 1) > (sizes[k].vision > 0 ? 0.005 : 0.0002))
            fail_msg("%s has %.2f M parameters, should have %.2f M", sizes[k].name, got, sizes[k].millions);
    }
    char names[] = MODEL_LIKE_NAMES; /* each of them is in the table */
    for (char *name = strtok(names, "|"); name; name = strtok(NULL, "|"))
        assert_non_null(model_like_find(name));
    assert_null(model_like_find("qwen3.5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_variance),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
