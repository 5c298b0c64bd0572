/* Quantised models (llama-quantize's files of qwen35-tiny-256) against transformers over their dequantised
 * weights: exact at the reference level; within what int8 activations cost at the fast levels. These files
 * are in the full set of fixtures only. */
#include "unit.h"

#include <math.h>

#include <jansson.h>

#include "engine/engine.h"

/* The sanitizers look for wrong memory, not for wrong numbers, and are slow: the best level is enough for
 * them. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { LEVELS = 1 };
#else
enum { LEVELS = 100 };
#endif

static const char *const types[] = {"q4_0",   "q4_1",   "q5_0",   "q5_1", "q8_0",   "q2_k",
                                    "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs"};

struct row {
    float logits[4096];
    int n;
};

static void record(void *arg, struct backend *b, const char *name, int layer, const float *data, int rows,
                   int cols)
{
    struct row *r = arg;
    (void)layer;
    if (strcmp(name, "logits") != 0)
        return;
    assert_true(cols <= 4096);
    r->n = cols;
    b->ops->read(b, r->logits, data + (size_t)(rows - 1) * (size_t)cols, (size_t)cols * sizeof(float));
}

static void feed(struct engine *en, const int32_t *ids, int start, int n)
{
    int32_t positions[512], blocks[32];
    for (int i = 0; i < n; i++)
        positions[i] = start + i;
    for (int i = 0; i < 32; i++)
        blocks[i] = i;
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

/* Greedy ids of the fixture's .json, up to the first margin that the level's tolerance cannot tell from a
 * tie. */
static void check_greedy(struct engine *en, struct row *row, const char *label, const int32_t *prompt, int n,
                         const json_t *answer, double tie)
{
    int32_t ids[512];
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    const json_t *greedy = json_object_get(answer, "greedy_ids"),
                 *margins = json_object_get(answer, "greedy_margin");
    assert_true(json_array_size(greedy) > 0);
    for (size_t k = 0; k < json_array_size(greedy); k++) {
        if (json_number_value(json_array_get(margins, k)) < tie)
            return;
        struct sluice_prob best[2];
        sample_logprobs(row->logits, row->n, 0, 1, best, NULL);
        if (best[1].id != json_integer_value(json_array_get(greedy, k)))
            fail_msg("%s: greedy token %zu is %d, expected %lld", label, k, best[1].id,
                     (long long)json_integer_value(json_array_get(greedy, k)));
        ids[n + (int)k] = best[1].id;
        feed(en, ids, n + (int)k, 1);
    }
}

static void check(const char *type, const char *level)
{
    struct err e = {0};
    char path[200], label[200];
    bool reference = strcmp(level, "reference") == 0;
    snprintf(label, sizeof label, "%s at level %s", type, level);
    snprintf(path, sizeof path, "quant/qwen35-tiny-256-%s.gguf", type);
    struct model_file *file = model_file_open(fixture(path), &e);
    snprintf(path, sizeof path, "quant/qwen35-tiny-256-%s.expected.safetensors", type);
    struct model_file *expected = model_file_open_safetensors(fixture(path), &e);
    struct model_file *prompts =
        model_file_open_safetensors(fixture("expected/qwen35-tiny-256.safetensors"), &e);
    if (!file || !expected || !prompts)
        fail_msg("%s", e.msg);
    snprintf(path, sizeof path, "quant/qwen35-tiny-256-%s.expected.json", type);
    json_t *answers = json_load_file(fixture(path), 0, NULL);
    assert_non_null(answers);

    struct sluice_options o = {
        .threads = 2, .cpu_level = level, .max_num_seqs = 1, .kv_dtype = "fp32", .max_model_len = 512};
    struct engine *en = engine_open(file, &o, &e);
    if (!en)
        fail_msg("%s", e.msg);
    static struct row row;
    model_set_probe(engine_model(en), record, &row);
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "prompt.%d.ids", i);
        const struct tensor *ids = model_file_tensor(prompts, name);
        snprintf(name, sizeof name, "prompt.%d.last_logits", i);
        const float *want = model_file_tensor(expected, name)->data;
        feed(en, ids->data, 0, (int)ids->shape[0]);
        double worst = 0, sum = 0;
        for (int k = 0; k < row.n; k++) {
            double d = fabs((double)row.logits[k] - (double)want[k]);
            sum += d * d;
            worst = !(d <= worst) ? d : worst;
        }
        double rms = sqrt(sum / row.n);
        if (reference ? !(worst <= 2e-3) : !(rms <= 0.3))
            fail_msg("%s: last logits of prompt %d differ by %g (rms %g)", label, i, worst, rms);
        check_greedy(en, &row, label, ids->data, (int)ids->shape[0],
                     json_array_get(json_object_get(answers, "prompts"), (size_t)i), reference ? 4e-3 : 1.0);
    }
    engine_free(en);
    json_decref(answers);
    model_file_close(prompts);
    model_file_close(expected);
    model_file_close(file);
}

static void quantised(void **state)
{
    char path[200], levels[100], *save = NULL;
    snprintf(path, sizeof path, "quant/qwen35-tiny-256-%s.gguf", (const char *)*state);
    skip_without(path);
    snprintf(levels, sizeof levels, "%s", backend_cpu_levels());
    int left = LEVELS;
    for (char *level = strtok_r(levels, ",", &save); level && left-- > 0; level = strtok_r(NULL, ",", &save))
        check(*state, level);
}

int main(void)
{
    enum { N = sizeof types / sizeof types[0] };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){types[i], quantised, NULL, NULL, (void *)types[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
