/* Every element type decodes to the floats that another program got (quant/types.gguf and .safetensors), to
 * one unit in the last place; and llama-quantize's files of the full set to the same sums. */
#include "unit.h"

#include <math.h>

#include "file/gguf.h"
#include "file/model_file.h"

/* The distance in floats; signed zeros are equal. */
static int64_t ulps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    int64_t i = x < 0 ? -(int64_t)(x & 0x7FFFFFFF) : x, j = y < 0 ? -(int64_t)(y & 0x7FFFFFFF) : y;
    return i > j ? i - j : j - i;
}

static struct model_file *open_or_fail(const char *path,
                                       struct model_file *(*open)(const char *, struct err *))
{
    struct err e = {0};
    struct model_file *f = open(path, &e);
    if (!f)
        fail_msg("%s", e.msg);
    return f;
}

static int64_t elements(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static void every_type_decodes(void **state)
{
    (void)state;
    struct model_file *f = open_or_fail(fixture("quant/types.gguf"), model_file_open);
    struct model_file *expected =
        open_or_fail(fixture("quant/types.safetensors"), model_file_open_safetensors);
    assert_int_equal(f->n_tensors, 26);
    assert_int_equal(expected->n_tensors, f->n_tensors);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        assert_string_equal(dtype_info(t->dtype)->name, t->name);
        assert_true(dtype_info(t->dtype)->decodable);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->shape[0], 3);
        assert_int_equal(t->shape[1], 512);
        const struct tensor *want = model_file_tensor(expected, t->name);
        assert_non_null(want);
        assert_int_equal(want->dtype, DT_F32);
        assert_int_equal(want->bytes, 3 * 512 * sizeof(float));
        static float got[3 * 512], ref[3 * 512];
        dtype_to_float(t->dtype, t->data, got, 3 * 512);
        memcpy(ref, want->data, sizeof ref);
        for (int j = 0; j < 3 * 512; j++)
            if (!(ulps(got[j], ref[j]) <= 1))
                fail_msg("%s[%d]: %.9g, not %.9g", t->name, j, (double)got[j], (double)ref[j]);
    }
    model_file_close(expected);
    model_file_close(f);
}

/* Blocks may lie at any address, and runs of blocks decode as the whole does. */
static void alignment_does_not_matter(void **state)
{
    (void)state;
    struct model_file *f = open_or_fail(fixture("quant/types.gguf"), model_file_open);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        const int block = dtype_info(t->dtype)->block, bytes = dtype_info(t->dtype)->bytes;
        static float whole[3 * 512], part[256];
        dtype_to_float(t->dtype, t->data, whole, 3 * 512);
        char *moved = malloc((size_t)bytes + 1); /* exactly one block, at an odd address, for the sanitizer */
        for (int j = 0; j < 3 * 512; j += block) {
            memcpy(moved + 1, (const char *)t->data + j / block * bytes, (size_t)bytes);
            dtype_to_float(t->dtype, moved + 1, part, block);
            assert_memory_equal(part, whole + j, (size_t)block * sizeof(float));
        }
        free(moved);
    }
    model_file_close(f);
}

/* The sums of whole models quantised by llama-quantize (full fixtures only). */
static void quantised_models_sum_up(void **state)
{
    (void)state;
    static const char *const types[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q4_k_m", "q6_k", "q3_k_m", "iq4_xs"};
    int seen = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char name[100];
        snprintf(name, sizeof name, "quant/qwen35-tiny-256-%s.gguf", types[i]);
        if (!fixture_exists(name))
            continue;
        struct model_file *f = open_or_fail(fixture(name), model_file_open);
        snprintf(name, sizeof name, "quant/qwen35-tiny-256-%s.dequant.json", types[i]);
        json_t *sums = json_load_file(fixture(name), 0, NULL), *sum;
        assert_non_null(sums);
        const char *key;
        json_object_foreach(sums, key, sum)
        {
            const struct tensor *t = model_file_tensor(f, key);
            if (!t)
                fail_msg("no tensor %s", key);
            const int64_t n = elements(t);
            float *x = malloc((size_t)n * sizeof *x);
            double total = 0, squares = 0;
            dtype_to_float(t->dtype, t->data, x, n);
            for (int64_t j = 0; j < n; j++)
                total += (double)x[j], squares += (double)x[j] * (double)x[j];
            free(x);
            assert_string_equal(dtype_info(t->dtype)->name, json_string_value(json_object_get(sum, "type")));
            assert_true(fabs(total - json_number_value(json_object_get(sum, "sum"))) <=
                        1e-6 * sqrt(squares * (double)n));
            assert_true(fabs(squares - json_number_value(json_object_get(sum, "sumsq"))) <= 1e-6 * squares);
            seen++;
        }
        json_decref(sums);
        model_file_close(f);
    }
    if (!seen)
        skip_without("quant/qwen35-tiny-256-*.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes),
        cmocka_unit_test(alignment_does_not_matter),
        cmocka_unit_test(quantised_models_sum_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
