/* Quantised directories (tests/fixtures/make_quantised.py): every layout gives the weights that numpy
 * computed from the same codes, in the type that the docs promise; and what is missing, misshapen or out of
 * range is refused with the tensor and the reason. */
#include "build.h"

#include <math.h>

#include "file/packed.h"

#define DIR SLUICE_SOURCE_DIR "/tests/fixtures/quantised/"
#define Q   "model.layers.0.self_attn.q_proj"

static struct err e;

/* The tensor as floats; the caller frees. */
static float *floats_of(const struct tensor *t)
{
    size_t n = (size_t)(t->shape[0] * t->shape[1]);
    float *out = malloc(n * sizeof *out);
    assert_non_null(out);
    if (!t->packed) {
        dtype_to_float(t->dtype, t->data, out, (int64_t)n);
        return out;
    }
    struct packed_job j = {.p = t->packed, .to = t->dtype, .out = malloc(t->bytes)};
    j.scratch = malloc(packed_scratch_bytes(t->packed));
    for (int64_t i = packed_tile_count(t->shape[0]); i-- > 0;) /* tiles stand for themselves */
        packed_tiles(&j, i, i + 1, 0);
    assert_false(j.bad);
    dtype_to_float(t->dtype, j.out, out, (int64_t)n);
    free(j.scratch);
    free(j.out);
    return out;
}

static const struct {
    const char *dir, *weights;
    enum dtype dtype;
    bool rounded;
} layouts[] = {
    {"ct-sym-g128", "sym-g128", DT_Q4_0, false},
    {"gptq-sym-g128", "sym-g128", DT_Q4_0, false},
    {"ct-asym-g32", "asym-g32", DT_Q5_0, false},
    {"gptq-asym-g32", "asym-g32", DT_Q5_0, false},
    {"gptq-v2-asym-g32", "asym-g32", DT_Q5_0, false},
    {"awq-g32", "asym-g32", DT_Q5_0, false},
    {"ct-asym-channel", "asym-channel", DT_Q5_0, false},
    {"ct-int8-channel", "int8-channel", DT_Q8_0, false},
    {"gptq-8bit-channel", "int8-channel", DT_Q8_0, false},
    {"fp8-block-powers", "fp8-block-powers", DT_BF16, false},
    /* with a loss: scales in fp16, weights in fp16 */
    {"ct-sym-g64-f32", "sym-g64", DT_Q4_0, true},
    {"gptq-act-order", "act-order", DT_F16, true},
    {"fp8-tensor", "fp8-tensor", DT_F16, true},
    {"fp8-channel", "fp8-channel", DT_F16, true},
    {"fp8-block", "fp8-block", DT_F16, true},
};

/* The weight that the type makes of `want`. */
static bool as_promised(enum dtype dtype, bool rounded, float want, float got)
{
    if (!rounded)
        return got == want;
    if (dtype == DT_F16)
        return got == half_to_float(float_to_half(want));
    return fabsf(got - want) <= fabsf(want) * 0x1p-11f;
}

static void layouts_give_their_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char path[300];
        snprintf(path, sizeof path, DIR "%s", layouts[i].dir);
        struct model_file *f = model_file_open(path, &e);
        snprintf(path, sizeof path, DIR "%s-f32", layouts[i].weights);
        struct model_file *plain = model_file_open(path, &e);
        if (!f || !plain)
            fail_msg("%s", e.msg);
        assert_non_null(f->quantised.format);
        assert_null(f->quantised.refusal);
        assert_int_equal(f->quantised.n_mats, 7);
        assert_int_equal(f->quantised.n_rounded, layouts[i].rounded ? 7 : 0);
        assert_int_equal(f->n_tensors, plain->n_tensors); /* nothing is left of codes and scales */
        assert_int_equal(f->n_unread, 0);
        for (int k = 0; k < plain->n_tensors; k++) {
            const struct tensor *want = &plain->tensors[k], *got = model_file_tensor(f, want->name);
            assert_non_null(got);
            assert_memory_equal(got->shape, want->shape, sizeof want->shape);
            assert_int_equal(got->packed != NULL, strstr(got->name, "proj") != NULL);
            if (got->packed)
                assert_int_equal(got->dtype, layouts[i].dtype);
            float *a = floats_of(want), *b = floats_of(got);
            for (int64_t n = 0; n < want->shape[0] * want->shape[1]; n++)
                if (!as_promised(got->dtype, got->packed && layouts[i].rounded, a[n], b[n]))
                    fail_msg("%s: %s: weight %lld is %.9g, not %.9g", layouts[i].dir, got->name, (long long)n,
                             (double)b[n], (double)a[n]);
            free(a);
            free(b);
            model_file_drop(f, got);
        }
        uint64_t digest[2];
        model_file_digest(f, digest);
        model_file_close(plain);
        model_file_close(f);
    }
}

/* ---- Changed checkpoints --------------------------------------------------------------------------------
 */

/* Sets the members of `patch` in `object`, down to objects inside; null removes. */
static void apply(json_t *object, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)patch, key, value)
    {
        json_t *old = json_object_get(object, key);
        if (json_is_null(value))
            json_object_del(object, key);
        else if (json_is_object(value) && json_is_object(old))
            apply(old, value);
        else
            json_object_set(object, key, value);
    }
}

/* A copy of a layout with its config and its tensors' header patched, and four bytes at the start of the
 * tensor `poke` (or NULL) set to `value`. */
static void make_dir(const char *layout, const char *config_patch, const char *header_patch, const char *poke,
                     uint32_t value)
{
    char path[2200];
    snprintf(path, sizeof path, DIR "%s/config.json", layout);
    json_t *config = json_load_file(path, 0, NULL), *patch = json_loads(config_patch, 0, NULL);
    if (!config || !patch)
        fail_msg("%s: %s", path, config_patch);
    apply(config, patch);
    json_decref(patch);
    mkdir(temp_path("model"), 0700);
    snprintf(path, sizeof path, "%s/config.json", temp_path("model"));
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);

    size_t size, n;
    snprintf(path, sizeof path, DIR "%s/model.safetensors", layout);
    char *file = read_whole(path, &size);
    assert_non_null(file);
    memcpy(&n, file, 8);
    json_t *header = json_loadb(file + 8, n, 0, NULL);
    patch = json_loads(header_patch, 0, NULL);
    if (!header || !patch)
        fail_msg("%s", header_patch);
    apply(header, patch);
    if (poke) {
        json_t *offsets = json_object_get(json_object_get(header, poke), "data_offsets");
        memcpy(file + 8 + n + json_integer_value(json_array_get(offsets, 0)), &value, 4);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    struct str out = {0};
    put(&out, 8, strlen(text));
    str_adds(&out, text);
    str_add(&out, file + 8 + n, size - 8 - n);
    temp_write("model/model.safetensors", out.data, out.len);
    str_free(&out);
    free(text);
    json_decref(patch);
    json_decref(header);
    free(file);
}

static const struct {
    const char *layout, *config, *header, *poke;
    uint32_t value;
    const char *words; /* of the refusal, or of why q_proj is not read */
} broken[] = {
#define QC(x)           "{\"quantization_config\": {" x "}}"
#define W(x)            QC("\"config_groups\": {\"group_0\": {\"weights\": {" x "}}}")
#define DROP(s)         "{\"" Q s "\": null}"
#define SHAPE(s, shape) "{\"" Q s "\": {\"shape\": " shape "}}"
    /* the config */
    {"awq-g32", QC("\"quant_method\": \"exl2\""), "{}", NULL, 0, "quant_method \"exl2\"|supported are|gptq"},
    {"awq-g32", QC("\"quant_method\": 4"), "{}", NULL, 0, "quant_method \"?\""},
    {"awq-g32", QC("\"quant_method\": null"), "{}", NULL, 0, "quant_method \"?\""},
    {"awq-g32", QC("\"bits\": 3"), "{}", NULL, 0, "awq|bits 3|4 is"},
    {"awq-g32", QC("\"bits\": 8"), "{}", NULL, 0, "awq|bits 8"},
    {"awq-g32", QC("\"version\": \"gemv\""), "{}", NULL, 0, "version \"gemv\""},
    {"awq-g32", QC("\"group_size\": 48"), "{}", NULL, 0, "group_size 48|multiples of 32"},
    {"awq-g32", QC("\"group_size\": 0"), "{}", NULL, 0, "group_size 0"},
    {"awq-g32", QC("\"group_size\": \"32\""), "{}", NULL, 0, "group_size"},
    {"gptq-asym-g32", QC("\"bits\": 3"), "{}", NULL, 0, "gptq|bits 3|and 8"},
    {"gptq-asym-g32", QC("\"bits\": null"), "{}", NULL, 0, "gptq|bits"},
    {"gptq-asym-g32", QC("\"checkpoint_format\": \"marlin\""), "{}", NULL, 0, "checkpoint_format \"marlin\""},
    {"gptq-asym-g32", QC("\"group_size\": -32"), "{}", NULL, 0, "group_size -32"},
    {"ct-asym-g32", QC("\"format\": \"marlin-24\""), "{}", NULL, 0, "format \"marlin-24\""},
    {"ct-asym-g32", QC("\"config_groups\": null"), "{}", NULL, 0, "config_groups"},
    {"ct-asym-g32", QC("\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}"), "{}", NULL, 0,
     "sparsity"},
    {"ct-asym-g32", QC("\"transform_config\": {\"config_groups\": {\"u\": {}}}"), "{}", NULL, 0, "transform"},
    {"ct-asym-g32", W("\"num_bits\": 3"), "{}", NULL, 0, "group_0|num_bits 3"},
    {"ct-asym-g32", W("\"num_bits\": null"), "{}", NULL, 0, "group_0|num_bits"},
    {"ct-asym-g32", W("\"type\": \"float\""), "{}", NULL, 0, "type \"float\"|num_bits 4"},
    {"ct-asym-g32", W("\"group_size\": 31"), "{}", NULL, 0, "group_size 31"},
    {"ct-asym-g32", W("\"strategy\": \"token\""), "{}", NULL, 0, "strategy \"token\""},
    {"ct-asym-g32", QC("\"config_groups\": {\"group_0\": {\"weights\": null}}"), "{}", NULL, 0,
     "\"weights\""},
    {"fp8-block", QC("\"fmt\": \"e5m2\""), "{}", NULL, 0, "fmt \"e5m2\""},
    {"fp8-block", QC("\"weight_block_size\": [128]"), "{}", NULL, 0, "weight_block_size"},
    {"fp8-block", QC("\"weight_block_size\": [0, 128]"), "{}", NULL, 0, "weight_block_size"},
    /* parts that are not there */
    {"ct-asym-g32", "{}", DROP(".weight_scale"), NULL, 0, "weight_scale"},
    {"ct-asym-g32", "{}", DROP(".weight_zero_point"), NULL, 0, "weight_zero_point"},
    {"ct-asym-g32", "{}", DROP(".weight_packed"), NULL, 0, "is not in the file"},
    {"gptq-asym-g32", "{}", DROP(".scales"), NULL, 0, "scales"},
    {"gptq-asym-g32", "{}", DROP(".qzeros"), NULL, 0, "qzeros"},
    {"awq-g32", "{}", DROP(".qzeros"), NULL, 0, "qzeros"},
    {"awq-g32", "{}", DROP(".qweight"), NULL, 0, "is not in the file"},
    {"fp8-block", "{}", DROP(".weight_scale_inv"), NULL, 0, "weight_scale_inv"},
    {"fp8-tensor", "{}", DROP(".weight_scale"), NULL, 0, "weight_scale"},
    /* parts of other shapes and types; q_proj is [64, 64] */
    {"ct-asym-g32", "{}", SHAPE(".weight_packed", "[512]"), NULL, 0, "weight_packed|32-bit words"},
    {"ct-asym-g32", "{}", SHAPE(".weight_packed", "[32, 16]"), NULL, 0, "weight_shape|32 x 16"},
    {"ct-asym-g32", "{}", SHAPE(".weight_packed", "[64, 4, 2]"), NULL, 0, "weight_packed"},
    {"ct-asym-g32", "{}", SHAPE(".weight_scale", "[32, 4]"), NULL, 0, "weight_scale|[32, 4]|[64, 2]"},
    {"ct-asym-g32", "{}", SHAPE(".weight_scale", "[128]"), NULL, 0, "weight_scale|[128]|[64, 2]"},
    {"ct-asym-g32", W("\"group_size\": 64"), "{}", NULL, 0, "weight_scale|[64, 2]|[64, 1]"},
    {"ct-asym-g32", W("\"num_bits\": 8"), "{}", NULL, 0, "no scheme|4 bits"},
    {"ct-asym-g32", "{}", SHAPE(".weight_zero_point", "[2, 8]"), NULL, 0, "weight_zero_point|[2, 8]|[8, 2]"},
    {"ct-asym-g32", "{}", "{\"" Q ".weight_scale\": {\"dtype\": \"I16\"}}", NULL, 0, "weight_scale|I16"},
    {"ct-asym-g32", "{}", "{}", Q ".weight_shape", 63, "weight_shape"},
    {"ct-asym-g32", "{}", "{}", Q ".weight_shape", 0xFFFFFFFF, "weight_shape"},
    {"ct-sym-g128", "{}", "{}", Q ".weight_scale", 0x7FC07FC0, "scale of row 0|finite"},
    {"ct-int8-channel", "{}", SHAPE(".weight", "[32, 128]"), NULL, 0, "weight_scale|[64, 1]|[32, 1]"},
    {"gptq-asym-g32", "{}", SHAPE(".qweight", "[4, 128]"), NULL, 0, "scales|[2, 64]|[1, 128]"},
    {"gptq-asym-g32", "{}", SHAPE(".qzeros", "[16]"), NULL, 0, "qzeros|[16]|[2, 8]"},
    {"gptq-asym-g32", "{}", SHAPE(".qweight", "[1, 512]"), NULL, 0, "whole blocks of 32|8"},
    {"gptq-asym-g32", "{}", SHAPE(".g_idx", "[1, 64]"), NULL, 0, "g_idx"},
    {"gptq-asym-g32", "{}", "{}", Q ".g_idx", 2, "g_idx|group 2|there are 2"},
    {"gptq-asym-g32", "{}", "{}", Q ".g_idx", 0xFFFFFFFF, "g_idx|group -1"},
    {"gptq-asym-g32", "{}", "{}", Q ".scales", 0x7C007C00, "scale of row 0|finite"},
    {"awq-g32", "{}", SHAPE(".qweight", "[32, 16]"), NULL, 0, "scales|[2, 64]|[1, 128]"},
    {"awq-g32", "{}", SHAPE(".scales", "[64, 2]"), NULL, 0, "scales|[64, 2]|[2, 64]"},
    {"fp8-channel", "{}", SHAPE(".weight_scale", "[1, 64]"), NULL, 0, "weight_scale|[1, 64]|[64, 1]"},
    {"fp8-tensor", "{}", "{}", Q ".weight_scale", 0x7F800000, "finite"},
    {"fp8-block", QC("\"weight_block_size\": [32, 32]"), "{}", NULL, 0, "weight_scale_inv|[1, 1]|[2, 2]"},
};

static void broken_ones_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        make_dir(broken[i].layout, broken[i].config, broken[i].header, broken[i].poke, broken[i].value);
        struct model_file *f = model_file_open(temp_path("model"), &e);
        if (!f)
            fail_msg("case %zu: does not open at all: %s", i, e.msg);
        const char *refusal = f->quantised.refusal;
        assert_null(model_file_tensor(f, Q ".weight"));
        char text[1200], words[300];
        snprintf(text, sizeof text, "%s", refusal ? refusal : model_file_why_missing(f, Q ".weight"));
        snprintf(words, sizeof words, "%s", broken[i].words);
        for (char *word = strtok(words, "|"); word; word = strtok(NULL, "|"))
            if (!strstr(text, word))
                fail_msg("case %zu (%s): expected \"%s\" in: %s", i, broken[i].layout, word, text);
        if (!refusal) /* only that one is broken */
            assert_true(f->quantised.n_mats == 6 || strstr(broken[i].config, "weights") ||
                        strstr(broken[i].config, "block_size"));
        model_file_close(f);
    }
}

/* Scales that fp16 has not: the weights are as exact, in a larger type. NaN among codes shows when they are
 * unpacked. */
static void other_types(void **state)
{
    (void)state;
    make_dir("ct-sym-g64-f32", "{}", "{}", Q ".weight_scale", 0x2F800000); /* 2^-32 */
    struct model_file *f = model_file_open(temp_path("model"), &e);
    assert_non_null(f);
    const struct tensor *t = model_file_tensor(f, Q ".weight");
    assert_int_equal(t->dtype, DT_F32);
    float *x = floats_of(t);
    for (int i = 0; i < 64; i++)
        assert_true(fabsf(x[i]) <= 8 * 0x1p-32f && x[i] * 0x1p32f == rintf(x[i] * 0x1p32f));
    free(x);
    model_file_close(f);

    make_dir("fp8-tensor", "{}", "{}", Q ".weight_scale", 0x37000000); /* 2^-17 */
    f = model_file_open(temp_path("model"), &e);
    assert_non_null(f);
    assert_int_equal(model_file_tensor(f, Q ".weight")->dtype, DT_BF16);
    model_file_close(f);

    make_dir("fp8-tensor", "{}", "{}", Q ".weight", 0x7F);
    f = model_file_open(temp_path("model"), &e);
    assert_non_null(f);
    t = model_file_tensor(f, Q ".weight");
    struct packed_job j = {.p = t->packed, .to = t->dtype, .out = malloc(t->bytes)};
    j.scratch = malloc(packed_scratch_bytes(t->packed));
    packed_tiles(&j, 0, 1, 0);
    assert_true(j.bad);
    free(j.scratch);
    free(j.out);
    model_file_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_give_their_weights),
        cmocka_unit_test(broken_ones_are_refused),
        cmocka_unit_test(other_types),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
