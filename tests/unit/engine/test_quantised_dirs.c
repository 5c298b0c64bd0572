/* Quantised directories compute what the same weights in F32 compute: the same bits at the reference level
 * where the conversion is exact, the same greedy text, and logits within the stated loss where it is not. The
 * memory plan counts the bytes that are really held. */
#include "unit.h"

#include <math.h>

#include "engine/engine.h"

#define DIR SLUICE_SOURCE_DIR "/tests/fixtures/quantised/"

enum { VOCAB = 64, PROMPT = 9, TEXT = 24 };

static const struct {
    const char *dir, *weights;
    bool exact;
} layouts[] = {
    {"ct-sym-g128", "sym-g128", true},
    {"gptq-sym-g128", "sym-g128", true},
    {"ct-asym-g32", "asym-g32", true},
    {"gptq-asym-g32", "asym-g32", true},
    {"awq-g32", "asym-g32", true},
    {"ct-asym-channel", "asym-channel", true},
    {"ct-int8-channel", "int8-channel", true},
    {"gptq-8bit-channel", "int8-channel", true},
    {"fp8-block-powers", "fp8-block-powers", true},
    {"ct-sym-g64-f32", "sym-g64", false},
    {"gptq-act-order", "act-order", false},
    {"fp8-tensor", "fp8-tensor", false},
    {"fp8-channel", "fp8-channel", false},
    {"fp8-block", "fp8-block", false},
};

static void record(void *arg, struct backend *b, const char *name, int layer, const float *data, int rows,
                   int cols)
{
    (void)layer;
    if (strcmp(name, "logits") == 0)
        b->ops->read(b, arg, data + (size_t)(rows - 1) * (size_t)cols, VOCAB * sizeof(float));
}

static void feed(struct engine *en, const int32_t *ids, int start, int n)
{
    int32_t positions[64], blocks[4] = {0, 1, 2, 3};
    for (int i = 0; i < n; i++)
        positions[i] = start + i;
    struct row_job job = {.n_probs = -1};
    struct seq_slice slice = {.count = n, .kv_blocks = blocks, .n_logits = 1};
    struct batch b = {.n_tokens = n,
                      .tokens = ids + start,
                      .positions = positions,
                      .n_seqs = 1,
                      .seqs = &slice,
                      .n_logits = 1};
    struct sluice_ledger ledger = {0};
    engine_step(en, &b, &job, &ledger);
}

/* TEXT logits [TEXT, VOCAB], each after the tokens that `ids` [PROMPT + TEXT] then has; where `choose`, they
 * are chosen greedily. Returns the weights' bytes in memory. */
static size_t run(const char *dir, const char *level, int32_t *ids, bool choose, float *logits)
{
    struct err e = {0};
    char path[300];
    snprintf(path, sizeof path, DIR "%s", dir);
    struct model_file *file = model_file_open(path, &e);
    struct sluice_options o = {
        .threads = 2, .cpu_level = level, .max_num_seqs = 1, .kv_dtype = "fp32", .max_model_len = 64};
    struct engine *en = file ? engine_open(file, &o, &e) : NULL;
    if (!en)
        fail_msg("%s", e.msg);
    float row[VOCAB];
    model_set_probe(engine_model(en), record, row);
    feed(en, ids, 0, PROMPT);
    for (int k = 0; k < TEXT; k++) {
        memcpy(logits + k * VOCAB, row, sizeof row);
        if (choose) {
            struct sluice_prob best[2];
            sample_logprobs(row, VOCAB, 0, 1, best, NULL);
            ids[PROMPT + k] = best[1].id;
        }
        feed(en, ids, PROMPT + k, 1);
    }
    size_t bytes = model_weight_bytes(engine_model(en));
    engine_free(en);
    model_file_close(file);
    return bytes;
}

/* The largest difference of two runs' logits. */
static double worst_of(const float *a, const float *b)
{
    double worst = 0;
    for (int i = 0; i < TEXT * VOCAB; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = !(d <= worst) ? d : worst;
    }
    return worst;
}

static void same_text_as_plain(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        static float want[TEXT * VOCAB], got[TEXT * VOCAB], fast[TEXT * VOCAB];
        int32_t plain[PROMPT + TEXT] = {3, 60, 11, 5, 41, 2, 33, 33, 20}, ids[PROMPT + TEXT];
        memcpy(ids, plain, sizeof ids);
        char dir[100];
        snprintf(dir, sizeof dir, "%s-f32", layouts[i].weights);
        size_t plain_bytes = run(dir, "reference", plain, true, want);
        size_t bytes = run(layouts[i].dir, "reference", ids, true, got);
        double worst = worst_of(want, got);
        if (layouts[i].exact ? worst != 0 : !(worst <= 0.01))
            fail_msg("%s: logits differ by %g", layouts[i].dir, worst);
        assert_memory_equal(ids, plain, sizeof ids);
        assert_true(bytes < plain_bytes);
        run(layouts[i].dir, NULL, plain, false, fast); /* int8 activations */
        worst = worst_of(want, fast);
        if (!(worst <= 0.35))
            fail_msg("%s: logits of the best level differ by %g", layouts[i].dir, worst);
    }
}

static void the_model_names_what_it_lacks(void **state)
{
    (void)state;
    struct err e = {0};
    struct model_file *file = model_file_open(DIR "awq-g32", &e);
    assert_non_null(file);
    file->quantised.refusal = strdup("quantization_config: quant_method \"x\" is not supported");
    struct sluice_options o = {.threads = 1};
    assert_null(engine_open(file, &o, &e));
    assert_non_null(strstr(e.msg, "awq-g32/config.json: quantization_config: quant_method \"x\""));
    model_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_text_as_plain),
                                       cmocka_unit_test(the_model_names_what_it_lacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
