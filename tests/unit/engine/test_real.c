/* The real models against transformers' answers over the same dequantised weights: greedy tokens up to the
 * first near-tie, and the log-probabilities of a text. Needs the models: SLUICE_MODELS names their folder
 * (scripts/get-model fetches them); what is not there is skipped. The reference level would take minutes
 * and is checked on the tiny models; here run the levels that users run. */
#include "unit.h"

#include <math.h>

#include "engine/engine.h"

struct real {
    const char *file, *expected;
};

static const struct real reals[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-q4_1"},
    {"qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-0.5b"},
    {"gemma-3-270m-q4_k_m.gguf", "gemma3-270m"},
};

enum { MAX_TOKENS = 512 };

struct run {
    struct engine *en;
    int32_t blocks[MAX_TOKENS / 16];
};

/* Runs ids start … start+n-1; scores token `next[i]` after each of the last n_rows (NULL: picks greedily).
 * Returns the last row's token. */
static int32_t feed(struct run *t, const int32_t *ids, int start, int n, const int32_t *next, int n_rows,
                    struct sluice_prob *probs)
{
    static struct row_job rows[MAX_TOKENS];
    static int32_t positions[MAX_TOKENS];
    struct sluice_sampling greedy;
    sluice_sampling_init(&greedy);
    struct sampler *sampler = sampler_create(&greedy, engine_info(t->en)->vocab, NULL, 0);
    for (int i = 0; i < n; i++)
        positions[i] = start + i;
    for (int i = 0; i < n_rows; i++)
        rows[i] = (struct row_job){.sampler = next ? NULL : sampler,
                                   .token = next ? next[i] : 0,
                                   .n_probs = probs ? 0 : -1,
                                   .probs = probs ? &probs[i] : NULL};
    struct seq_slice slice = {.count = n, .kv_blocks = t->blocks, .state_slot = 0, .n_logits = n_rows};
    struct batch b = {.n_tokens = n,
                      .tokens = ids + start,
                      .positions = positions,
                      .n_seqs = 1,
                      .seqs = &slice,
                      .n_logits = n_rows};
    struct sluice_ledger ledger = {0};
    engine_step(t->en, &b, rows, &ledger);
    sampler_free(sampler);
    return rows[n_rows - 1].token;
}

static const struct tensor *want(const struct model_file *f, const char *fmt, int i)
{
    char name[64];
    snprintf(name, sizeof name, fmt, i);
    return model_file_tensor(f, name);
}

static void greedy_and_text_agree(void **state)
{
    const struct real *real = *state;
    const char *dir = getenv("SLUICE_MODELS");
    char path[1024], expected[200];
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "", real->file);
    FILE *there = dir ? fopen(path, "rb") : NULL;
    if (!there) {
        print_message("skipped: %s is not in SLUICE_MODELS=%s\n", real->file, dir ? dir : "(unset)");
        skip();
    }
    fclose(there);
    struct err e = {0};
    snprintf(expected, sizeof expected, "real/%s.safetensors", real->expected);
    struct model_file *want_file = model_file_open_safetensors(fixture(expected), &e);
    struct model_file *file = model_file_open(path, &e);
    if (!want_file || !file)
        fail_msg("%s", e.msg);
    struct run t = {0};
    struct sluice_options o = {
        .max_num_seqs = 1, .max_model_len = MAX_TOKENS, .max_num_batched_tokens = MAX_TOKENS};
    t.en = engine_open(file, &o, &e);
    if (!t.en)
        fail_msg("%s", e.msg);
    for (int i = 0; i < MAX_TOKENS / 16; i++)
        t.blocks[i] = MAX_TOKENS / 16 - 1 - i;

    int compared = 0;
    for (int i = 0; want(want_file, "prompt.%d.ids", i); i++) {
        const struct tensor *prompt = want(want_file, "prompt.%d.ids", i);
        const int32_t *greedy = want(want_file, "prompt.%d.greedy_ids", i)->data;
        const float *margin = want(want_file, "prompt.%d.greedy_margin", i)->data;
        int32_t ids[MAX_TOKENS];
        int n = (int)prompt->shape[0];
        memcpy(ids, prompt->data, (size_t)n * sizeof *ids);
        int32_t token = feed(&t, ids, 0, n, NULL, 1, NULL);
        for (int k = 0; k < 40 && margin[k] >= 0.2f; k++, compared++) {
            if (token != greedy[k])
                fail_msg("%s: prompt %d: greedy token %d is %d, expected %d (margin %g)", real->file, i, k,
                         token, greedy[k], (double)margin[k]);
            ids[n + k] = token;
            token = feed(&t, ids, n + k, 1, NULL, 1, NULL);
        }
    }
    assert_true(compared > 20);

    const struct tensor *text = want(want_file, "text.ids", 0);
    const float *logprobs = want(want_file, "text.token_logprobs", 0)->data;
    const int32_t *ids = text->data;
    int n = (int)text->shape[0] - 1;
    double got = 0, expect = 0, off = 0;
    for (int at = 0; at < n; at += 64) {
        struct sluice_prob probs[64];
        int count = n - at < 64 ? n - at : 64;
        feed(&t, ids, at, count, ids + at + 1, count, probs);
        for (int k = 0; k < count; k++) {
            got += (double)probs[k].logprob / n;
            expect += (double)logprobs[at + k] / n;
            off += fabs((double)probs[k].logprob - (double)logprobs[at + k]) / n;
        }
    }
    print_message("%s on %s: %d greedy tokens agree; text log-probability %.4f, expected %.4f (mean "
                  "|difference| %.4f)\n",
                  real->file, engine_info(t.en)->backend, compared, got, expect, off);
    assert_true(fabs(got - expect) < 0.02);
    engine_free(t.en);
    model_file_close(file);
    model_file_close(want_file);
}

int main(void)
{
    enum { N = sizeof reals / sizeof reals[0] };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){reals[i].file, greedy_and_text_agree, NULL, NULL, (void *)&reals[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
