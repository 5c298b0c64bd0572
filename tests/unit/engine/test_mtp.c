/* The MTP head of qwen35-tiny-full against transformers: hidden states and logits of every pair, and four
 * greedy drafts, for both ways of pairing: (h_i, x_{i+1}) at position i, and llama.cpp's (h_{p-1}, x_p) at
 * position p with h_{-1} = 0. The model is in the full set of fixtures only. */
#include "unit.h"

#include <math.h>

#include "engine/engine.h"

enum { MAX_TOKENS = 128 };

struct bench {
    struct engine *en;
    struct backend *b;
    struct model_file *expected;
    float *in, *out, *logits; /* back end: [MAX_TOKENS, hidden] twice, [MAX_TOKENS, vocab] */
    int hidden, vocab;
    int32_t blocks[MAX_TOKENS / 16];
};

static const float *want(struct bench *t, const char *fmt, int prompt, const char *way)
{
    char name[100];
    snprintf(name, sizeof name, fmt, prompt, way);
    const struct tensor *x = model_file_tensor(t->expected, name);
    return x ? x->data : NULL;
}

static void compare(struct bench *t, const char *what, const float *device, const float *expected, int n,
                    double tolerance)
{
    float *got = malloc((size_t)n * sizeof *got);
    t->b->ops->read(t->b, got, device, (size_t)n * sizeof *got);
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)expected[i]) <= tolerance))
            fail_msg("%s: element %d is %g, expected %g", what, i, (double)got[i], (double)expected[i]);
    free(got);
}

static struct step make_step(struct bench *t, struct batch *b, struct seq_slice *slice, const int32_t *ids,
                             int32_t *positions, int start, int n, int n_logits)
{
    for (int i = 0; i < n; i++)
        positions[i] = start + i;
    *slice = (struct seq_slice){.count = n, .kv_blocks = t->blocks, .state_slot = 0, .n_logits = n_logits};
    *b = (struct batch){.n_tokens = n,
                        .tokens = ids,
                        .positions = positions,
                        .n_seqs = 1,
                        .seqs = slice,
                        .n_logits = n_logits};
    return (struct step){
        .batch = b, .kv = engine_kv(t->en), .state = engine_state(t->en), .logits = t->logits};
}

static int32_t greedy(struct bench *t, int row)
{
    float *logits = malloc((size_t)t->vocab * sizeof *logits);
    t->b->ops->read(t->b, logits, t->logits + (size_t)row * (size_t)t->vocab,
                    (size_t)t->vocab * sizeof *logits);
    struct sluice_prob best[2];
    sample_logprobs(logits, t->vocab, 0, 1, best, NULL);
    free(logits);
    return best[1].id;
}

/* One prompt, one way of pairing. shift = 0: (h_i, x_{i+1}); 1: (h_{p-1}, x_p). */
static void check_way(struct bench *t, int prompt, const char *way, int shift)
{
    struct model *m = engine_model(t->en);
    struct batch batch;
    struct seq_slice slice;
    int32_t ids[MAX_TOKENS + 8], positions[MAX_TOKENS];
    char name[64];
    snprintf(name, sizeof name, "prompt.%d.ids", prompt);
    const struct tensor *prompt_ids = model_file_tensor(t->expected, name);
    int n = (int)prompt_ids->shape[0];
    size_t row = (size_t)t->hidden * sizeof(float);
    memcpy(ids, prompt_ids->data, (size_t)n * sizeof *ids);

    struct step s = make_step(t, &batch, &slice, ids, positions, 0, n, n);
    model_step(m, &s);
    ids[n] = greedy(t, n - 1);
    float *h = malloc((size_t)(n + 1) * row);
    memset(h, 0, row);
    t->b->ops->read(t->b, h + (shift ? t->hidden : 0), model_hidden(m), (size_t)n * row);
    int pairs = n + shift; /* with the shift, the pair (0, x_0) comes first */
    t->b->ops->write(t->b, t->in, h, (size_t)pairs * row);
    free(h);

    s = make_step(t, &batch, &slice, ids + 1 - shift, positions, 0, pairs, pairs);
    model_draft(m, &s, t->in, t->out);
    const float *hidden = want(t, "p%d.mtp.%s.hidden", prompt, way),
                *logits = want(t, "p%d.mtp.%s.logits", prompt, way);
    if (hidden && logits) {
        compare(t, "MTP hidden", t->out, hidden, pairs * t->hidden, 2e-3);
        compare(t, "MTP logits", t->logits, logits, pairs * t->vocab, 2e-3);
    } else {
        compare(t, "MTP last hidden", t->out + (size_t)(pairs - 1) * (size_t)t->hidden,
                want(t, "p%d.mtp.%s.hidden_last", prompt, way), t->hidden, 2e-3);
        compare(t, "MTP last logits", t->logits + (size_t)(pairs - 1) * (size_t)t->vocab,
                want(t, "p%d.mtp.%s.logits_last", prompt, way), t->vocab, 2e-3);
    }

    const int32_t *drafts = (const int32_t *)(const void *)want(t, "p%d.mtp.%s.drafts", prompt, way);
    int32_t draft = greedy(t, pairs - 1);
    t->b->ops->write(t->b, t->in, t->out + (size_t)(pairs - 1) * (size_t)t->hidden, row);
    for (int k = 0; k < 4; k++) {
        if (draft != drafts[k])
            fail_msg("prompt %d (%s): draft %d is %d, expected %d", prompt, way, k, draft, drafts[k]);
        s = make_step(t, &batch, &slice, &draft, positions, pairs + k, 1, 1);
        model_draft(m, &s, t->in, t->out);
        draft = greedy(t, 0);
        t->b->ops->write(t->b, t->in, t->out, row);
    }
}

static void drafts_agree(void **state)
{
    const char *path = *state;
    struct err e = {0};
    skip_without(path);
    char levels[100], *save = NULL;
    snprintf(levels, sizeof levels, "%s", backend_cpu_levels());
    for (char *level = strtok_r(levels, ",", &save); level; level = strtok_r(NULL, ",", &save)) {
        struct bench t = {0};
        for (int i = 0; i < MAX_TOKENS / 16; i++)
            t.blocks[i] = MAX_TOKENS / 16 - 1 - i;
        struct model_file *file = model_file_open(fixture(path), &e);
        t.expected = model_file_open_safetensors(fixture("expected/qwen35-tiny-full.safetensors"), &e);
        struct sluice_options o = {.threads = 2,
                                   .cpu_level = level,
                                   .max_num_seqs = MAX_TOKENS,
                                   .kv_dtype = "fp32",
                                   .max_num_batched_tokens = MAX_TOKENS,
                                   .max_model_len = MAX_TOKENS,
                                   .mtp = true,
                                   .kv_cache_bytes = 16 << 20};
        t.en = file && t.expected ? engine_open(file, &o, &e) : NULL;
        if (!t.en)
            fail_msg("%s", e.msg);
        assert_true(model_has_mtp(engine_model(t.en)));
        t.b = engine_backend(t.en);
        t.hidden = engine_info(t.en)->hidden;
        t.vocab = engine_info(t.en)->vocab;
        size_t states = (size_t)MAX_TOKENS * (size_t)t.hidden * sizeof(float);
        size_t logits = (size_t)MAX_TOKENS * (size_t)t.vocab * sizeof(float);
        t.in = t.b->ops->alloc(t.b, states, &e);
        t.out = t.b->ops->alloc(t.b, states, &e);
        t.logits = t.b->ops->alloc(t.b, logits, &e);
        for (int prompt = 2; prompt <= 3; prompt++) {
            check_way(&t, prompt, "ref", 0);
            check_way(&t, prompt, "zero", 1);
        }
        t.b->ops->release(t.b, t.in, states);
        t.b->ops->release(t.b, t.out, states);
        t.b->ops->release(t.b, t.logits, logits);
        engine_free(t.en);
        model_file_close(file);
        model_file_close(t.expected);
    }
}

int main(void)
{
    struct CMUnitTest tests[2];
    static char hf[] = "models/qwen35-tiny-full", gguf[] = "gguf/qwen35-tiny-full-bf16.gguf";
    tests[0] = (struct CMUnitTest){hf, drafts_agree, NULL, NULL, hf};
    tests[1] = (struct CMUnitTest){gguf, drafts_agree, NULL, NULL, gguf};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
