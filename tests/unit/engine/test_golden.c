/* Golden answers: each tiny model, in each form it has in the fixtures, at each level this CPU has, against
 * what transformers computed in float32: logits, hidden states, projections, keys and values, greedy
 * continuations, log-probabilities. Prompts go in at once, in chunks and token by token, through a block
 * table in scrambled order, and must give the same bits each way. */
#include "unit.h"

#include <math.h>

#include "engine/engine.h"

/* The sanitizers look for wrong memory, not for wrong numbers, and are slow: the best level is enough for
 * them. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { LEVELS = 1 };
#else
enum { LEVELS = 100 };
#endif

enum { MAX_TOKENS = 400 };

struct form {
    const char *path, *expected;
    bool exact; /* weights are the expected ones (not quantised): float32 tolerances hold */
};

static const struct form forms[] = {
    {"models/llama-tiny", "llama-tiny", true},
    {"gguf/llama-tiny-f16.gguf", "llama-tiny", true},
    {"models/llama3-tiny", "llama3-tiny", true},
    {"gguf/llama3-tiny-bf16.gguf", "llama3-tiny", true},
    {"models/qwen2-tiny", "qwen2-tiny", true},
    {"gguf/qwen2-tiny-f16.gguf", "qwen2-tiny", true},
    {"models/qwen3-tiny", "qwen3-tiny", true},
    {"gguf/qwen3-tiny-bf16.gguf", "qwen3-tiny", true},
    {"gguf/qwen3-tiny-q8_0.gguf", "qwen3-tiny", false},
    {"models/qwen35-tiny", "qwen35-tiny", true},
    {"gguf/qwen35-tiny-bf16.gguf", "qwen35-tiny", true},
    {"gguf/qwen35-tiny-q8_0.gguf", "qwen35-tiny", false},
    {"models/qwen35-tiny-full", "qwen35-tiny-full", true},
    {"gguf/qwen35-tiny-full-bf16.gguf", "qwen35-tiny-full", true},
    {"models/gemma3-tiny-alt", "gemma3-tiny-alt", true},
    {"models/gemma3-tiny", "gemma3-tiny", true},
    {"gguf/gemma3-tiny-f16.gguf", "gemma3-tiny", true},
    {"models/qwen35-tiny-256", "qwen35-tiny-256", true},
};

/* What a probe saw: the last data of one (name, layer). */
struct seen {
    char name[32];
    int layer, rows, cols;
    float *data;
};

struct bench {
    struct engine *en;
    struct model_file *expected;
    const struct form *form;
    char label[200];
    struct seen seen[400];
    int n_seen;
    int32_t blocks[MAX_TOKENS / 16 + 1];
};

static void record(void *arg, struct backend *b, const char *name, int layer, const float *data, int rows,
                   int cols)
{
    struct bench *t = arg;
    int i = 0;
    while (i < t->n_seen && (t->seen[i].layer != layer || strcmp(t->seen[i].name, name) != 0))
        i++;
    if (i == t->n_seen) {
        assert_true(t->n_seen < 400);
        t->n_seen++;
        snprintf(t->seen[i].name, sizeof t->seen[i].name, "%s", name);
        t->seen[i].layer = layer;
    }
    struct seen *s = &t->seen[i];
    s->rows = rows;
    s->cols = cols;
    s->data = realloc(s->data, (size_t)rows * (size_t)cols * sizeof(float));
    b->ops->read(b, s->data, data, (size_t)rows * (size_t)cols * sizeof(float));
}

static const struct seen *saw(struct bench *t, const char *name, int layer)
{
    for (int i = 0; i < t->n_seen; i++)
        if (t->seen[i].layer == layer && strcmp(t->seen[i].name, name) == 0)
            return &t->seen[i];
    fail_msg("%s: the step showed no %s of layer %d", t->label, name, layer);
    return NULL;
}

static const struct tensor *want(struct bench *t, const char *fmt, int i)
{
    char name[100];
    snprintf(name, sizeof name, fmt, i);
    return model_file_tensor(t->expected, name);
}

/* Runs tokens start … start+n-1 of ids as one slice; all of the last n_logits rows are recorded as "logits".
 */
static void feed(struct bench *t, const int32_t *ids, int start, int n, int n_logits)
{
    int32_t positions[MAX_TOKENS];
    struct row_job rows[MAX_TOKENS];
    for (int i = 0; i < n; i++)
        positions[i] = start + i;
    for (int i = 0; i < n_logits; i++)
        rows[i] = (struct row_job){.n_probs = -1};
    struct seq_slice slice = {
        .first = 0, .count = n, .kv_blocks = t->blocks, .state_slot = 1, .n_logits = n_logits};
    struct batch b = {.n_tokens = n,
                      .tokens = ids + start,
                      .positions = positions,
                      .n_seqs = 1,
                      .seqs = &slice,
                      .n_logits = n_logits};
    struct sluice_ledger ledger = {0};
    engine_step(t->en, &b, rows, &ledger);
}

static void compare(struct bench *t, const char *what, const float *got, const float *expected, int n,
                    double tolerance)
{
    double worst = 0, sum = 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)expected[i]);
        sum += d * d;
        if (!(d <= worst))
            worst = d, at = i;
    }
    double rms = sqrt(sum / n);
    if (t->form->exact ? !(worst <= tolerance) : !(rms <= 0.4))
        fail_msg("%s: %s differs by %g at %d of %d (rms %g; allowed %g)", t->label, what, worst, at, n, rms,
                 tolerance);
}

static void compare_tensor(struct bench *t, const char *expected, int i, const char *name, int layer,
                           double tolerance)
{
    const struct tensor *e = want(t, expected, i);
    if (!e || e->shape[0] % 5) /* Gemma's q_norm and k_norm are stored head by head */
        return;
    const struct seen *s = saw(t, name, layer);
    int64_t n = (int64_t)s->rows * s->cols;
    assert_int_equal((int64_t)(e->bytes / 4), n);
    compare(t, expected, s->data, e->data, (int)n, tolerance);
}

/* logits of all positions, at once; then in chunks of 1, 7 and 64: the same bits. */
static void check_prompt(struct bench *t, int i)
{
    int vocab = engine_info(t->en)->vocab;
    const struct tensor *ids_t = want(t, "prompt.%d.ids", i);
    const int32_t *ids = ids_t->data;
    int n = (int)ids_t->shape[0];
    size_t row = (size_t)vocab * sizeof(float);
    feed(t, ids, 0, n, n < engine_max_logits(t->en) ? n : 1);
    const struct seen *logits = saw(t, "logits", -1);
    float *whole = malloc(row);
    memcpy(whole, logits->data + (size_t)(logits->rows - 1) * (size_t)vocab, row);
    const struct tensor *all = want(t, "prompt.%d.logits", i);
    if (all)
        compare(t, "logits", logits->data, all->data, n * vocab, 2e-3);
    compare(t, "last_logits", whole, want(t, "prompt.%d.last_logits", i)->data, vocab, 2e-3);

    if (i == 2 && t->form->exact) {
        compare_tensor(t, "p2.hidden.embed", 0, "embed", -1, 2e-4);
        compare_tensor(t, "p2.hidden.final_norm", 0, "final_norm", -1, 2e-3);
        static const char *const inner[] = {"q_proj",    "k_proj",       "v_proj",        "q_norm",
                                            "k_norm",    "o_proj_input", "in_proj_a",     "in_proj_b",
                                            "in_proj_z", "in_proj_qkv",  "core_attn_out", "gated_norm"};
        bool reordered =
            strstr(t->form->path, ".gguf"); /* value heads of delta nets, from the seventh name on */
        for (int layer = 0; layer < engine_info(t->en)->n_layers; layer++) {
            compare_tensor(t, "p2.hidden.%02d", layer, "layer", layer, 2e-4);
            for (size_t k = 0; k < (reordered ? 6 : sizeof inner / sizeof inner[0]); k++) {
                char name[64];
                snprintf(name, sizeof name, "p2.inner.%02d.%s", layer, inner[k]);
                compare_tensor(t, name, 0, inner[k], layer, 1e-3);
            }
        }
    }
    static const int chunks[] = {1, 7, 64};
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        for (int at = 0; at < n; at += chunks[c])
            feed(t, ids, at, n - at < chunks[c] ? n - at : chunks[c], n - at <= chunks[c]);
        const struct seen *last = saw(t, "logits", -1);
        if (memcmp(last->data, whole, row) != 0)
            fail_msg("%s: prompt %d in chunks of %d gives other bits than at once", t->label, i, chunks[c]);
    }
    free(whole);
}

/* Keys or values of one KV layer, for the positions that the fixture kept. */
static void check_kv_layer(struct bench *t, int kv_layer, const struct tensor *e, int which, int n)
{
    const struct kv_cache *c = engine_kv(t->en);
    size_t head = (size_t)c->block_size * (size_t)c->head_dim;
    const float *expected = e->data;
    int kept = (int)e->shape[1];
    for (int h = 0; h < c->n_kv_heads; h++)
        for (int p = n - kept; p < n; p++, expected += c->head_dim) {
            size_t plane =
                (((size_t)t->blocks[p / c->block_size] * (size_t)c->n_layers + (size_t)kv_layer) * 2 +
                 (size_t)which) *
                    (size_t)c->n_kv_heads +
                (size_t)h;
            const float *got =
                (const float *)c->data + plane * head + (size_t)(p % c->block_size) * (size_t)c->head_dim;
            compare(t, which ? "values" : "keys", got, expected, c->head_dim, 1e-3);
        }
}

/* What the model remembers after the 64-token prompt: keys and values, recurrent states S and convolution
 * inputs. */
static void check_memory(struct bench *t)
{
    const struct tensor *ids = want(t, "prompt.%d.ids", 3);
    int n = (int)ids->shape[0], kv_layer = 0;
    feed(t, ids->data, 0, n, 1);
    size_t per_seq = model_config(engine_model(t->en))->state_bytes / sizeof(float);
    const float *state =
        engine_state(t->en) ? (const float *)engine_state(t->en) + per_seq : NULL; /* slot 1 */
    for (int layer = 0; layer < engine_info(t->en)->n_layers; layer++) {
        const struct tensor *k = want(t, "p3.kv.%02d.k", layer), *v = want(t, "p3.kv.%02d.v", layer);
        if (k && v) {
            check_kv_layer(t, kv_layer, k, 0, n);
            check_kv_layer(t, kv_layer++, v, 1, n);
        }
        const struct tensor *s = want(t, "p3.state.%02d.S", layer),
                            *conv = want(t, "p3.state.%02d.conv", layer);
        if (!s || !conv || strstr(t->form->path, ".gguf")) /* GGUF files reorder value heads */
            continue;
        int n_state = (int)(s->bytes / 4), channels = (int)conv->shape[0], kept = (int)conv->shape[1];
        compare(t, "S", state, s->data, n_state, 2e-4);
        state += n_state;
        for (int i = 0; i < kept - 1;
             i++, state += channels) { /* ours: [kernel - 1, channels], oldest first */
            float expected[1024];
            for (int ch = 0; ch < channels; ch++)
                expected[ch] = ((const float *)conv->data)[ch * kept + i + 1];
            compare(t, "convolution state", state, expected, channels, 1e-3);
        }
    }
    assert_true(kv_layer > 0);
}

/* Greedy continuation, as far as the margins allow, and its log-probabilities. */
static void check_greedy(struct bench *t, int i)
{
    int32_t ids[MAX_TOKENS];
    int vocab = engine_info(t->en)->vocab;
    const struct tensor *prompt = want(t, "prompt.%d.ids", i), *greedy = want(t, "prompt.%d.greedy_ids", i);
    const struct tensor *margin = want(t, "prompt.%d.greedy_margin", i),
                        *logprob = want(t, "prompt.%d.greedy_logprob", i);
    int n = (int)prompt->shape[0], steps = (int)greedy->shape[0];
    memcpy(ids, prompt->data, (size_t)n * sizeof *ids);
    feed(t, ids, 0, n, 1);
    for (int k = 0; k < steps; k++) {
        const float *row = saw(t, "logits", -1)->data;
        struct sluice_prob best[2];
        sample_logprobs(row, vocab, 0, 1, best, NULL);
        double allowed = t->form->exact ? 4e-3 : 1.0;
        if (((const float *)margin->data)[k] < allowed)
            return; /* a tie: later steps do not count */
        if (best[1].id != ((const int32_t *)greedy->data)[k])
            fail_msg("%s: prompt %d: greedy token %d is %d, expected %d", t->label, i, k, best[1].id,
                     ((const int32_t *)greedy->data)[k]);
        if (t->form->exact)
            assert_true(fabsf(best[1].logprob - ((const float *)logprob->data)[k]) < 4e-3f);
        ids[n + k] = best[1].id;
        feed(t, ids, n + k, 1, 1);
    }
}

/* log p(ids[t+1] | ids[..t]) over the whole prompt. */
static void check_token_logprobs(struct bench *t, int i)
{
    const struct tensor *prompt = want(t, "prompt.%d.ids", i),
                        *expected = want(t, "prompt.%d.token_logprobs", i);
    int n = (int)prompt->shape[0], vocab = engine_info(t->en)->vocab;
    for (int at = 0; at < n - 1; at += 32) {
        int count = n - 1 - at < 32 ? n - 1 - at : 32;
        feed(t, prompt->data, at, count, count);
        for (int k = 0; k < count; k++) {
            struct sluice_prob got;
            sample_logprobs(saw(t, "logits", -1)->data + (size_t)k * (size_t)vocab, vocab,
                            ((const int32_t *)prompt->data)[at + k + 1], 0, &got, NULL);
            if (t->form->exact)
                assert_true(fabsf(got.logprob - ((const float *)expected->data)[at + k]) < 4e-3f);
        }
    }
}

static void check_form(const struct form *form, const char *level, int threads)
{
    struct err e = {0};
    char name[100];
    struct bench *t = calloc(1, sizeof *t);
    t->form = form;
    snprintf(t->label, sizeof t->label, "%s (%s, %d threads)", form->path, level, threads);
    for (int i = 0; i < MAX_TOKENS / 16; i++) /* scrambled: 7 is coprime to the number of blocks */
        t->blocks[i] = (i * 7 + 3) % (MAX_TOKENS / 16 + 1);
    struct model_file *file = model_file_open(fixture(form->path), &e);
    if (!file)
        fail_msg("%s", e.msg);
    snprintf(name, sizeof name, "expected/%s.safetensors", form->expected);
    t->expected = model_file_open_safetensors(fixture(name), &e);
    if (!t->expected)
        fail_msg("%s", e.msg);
    struct sluice_options o = {.threads = threads,
                               .cpu_level = level,
                               .max_num_seqs = 4,
                               .kv_dtype = "fp32",
                               .max_num_batched_tokens = MAX_TOKENS,
                               .max_model_len = MAX_TOKENS};
    t->en = engine_open(file, &o, &e);
    if (!t->en)
        fail_msg("%s", e.msg);
    model_set_probe(engine_model(t->en), record, t);
    for (int i = 0; i < 6; i++) {
        check_prompt(t, i);
        check_greedy(t, i);
        check_token_logprobs(t, i);
    }
    if (form->exact)
        check_memory(t);
    engine_free(t->en);
    model_file_close(t->expected);
    model_file_close(file);
    for (int i = 0; i < t->n_seen; i++)
        free(t->seen[i].data);
    free(t);
}

/* The committed set has some model folders without their weights: the tokenizer alone. */
static const char *weights_of(const char *path)
{
    static char file[200];
    snprintf(file, sizeof file, "%s%s", path, strstr(path, ".gguf") ? "" : "/config.json");
    if (strstr(path, ".gguf"))
        return file;
    char name[250];
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    if (!fixture_exists(name))
        snprintf(file, sizeof file, "%s/model.safetensors.index.json", path);
    return file;
}

static void golden(void **state)
{
    const struct form *form = *state;
    skip_without(form->path);
    skip_without(weights_of(form->path));
    char levels[100], *save = NULL;
    snprintf(levels, sizeof levels, "%s", backend_cpu_levels());
    int left = LEVELS;
    for (char *level = strtok_r(levels, ",", &save); level && left-- > 0; level = strtok_r(NULL, ",", &save))
        check_form(form, level, strcmp(level, "reference") == 0 ? 1 : 2);
}

int main(int argc, char **argv)
{
    if (argc > 1) /* for debugging: only the forms that match a pattern, as "gguf*" */
        cmocka_set_test_filter(argv[1]);
    enum { N = sizeof forms / sizeof forms[0] };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){forms[i].path, golden, NULL, NULL, (void *)&forms[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
