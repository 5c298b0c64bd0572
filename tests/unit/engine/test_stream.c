/* Law 1, matrix by matrix: a step reads every weight matrix exactly once, whatever is in it, and the ledger
 * says so in bytes. */
#include "unit.h"

#include "engine/engine.h"

static const char *const models[] = {"models/llama-tiny", "gguf/qwen3-tiny-q8_0.gguf", "models/qwen35-tiny",
                                     "models/gemma3-tiny-alt"};

struct reads {
    uint64_t want, bytes;
    int n;
};

static void check_reads(void *arg, const char *name, const struct mat *w)
{
    struct reads *r = arg;
    if (w->reads != r->want)
        fail_msg("%s was read %llu times in %llu steps", name, (unsigned long long)w->reads,
                 (unsigned long long)r->want);
    r->bytes += w->bytes;
    r->n++;
}

/* A step of n_seqs sequences that begin with `count` tokens each. */
static void step(struct engine *en, int n_seqs, int count, struct sluice_ledger *ledger)
{
    enum { MAX = 64 };
    int32_t tokens[MAX], positions[MAX], blocks[8][2];
    struct seq_slice slices[8];
    struct row_job rows[8];
    assert_true(n_seqs <= 8 && n_seqs * count <= MAX && count <= 32);
    for (int i = 0; i < n_seqs; i++) {
        blocks[i][0] = 2 * i;
        blocks[i][1] = 2 * i + 1;
        slices[i] = (struct seq_slice){
            .first = i * count, .count = count, .kv_blocks = blocks[i], .state_slot = i, .n_logits = 1};
        rows[i] = (struct row_job){.n_probs = -1};
        for (int t = 0; t < count; t++) {
            tokens[i * count + t] = 5 + i + t;
            positions[i * count + t] = t;
        }
    }
    struct batch b = {.n_tokens = n_seqs * count,
                      .tokens = tokens,
                      .positions = positions,
                      .n_seqs = n_seqs,
                      .seqs = slices,
                      .n_logits = n_seqs};
    engine_step(en, &b, rows, ledger);
}

static void every_matrix_once_a_step(void **state)
{
    (void)state;
    char levels[100], *save = NULL;
    snprintf(levels, sizeof levels, "%s", backend_cpu_levels());
    for (char *level = strtok_r(levels, ",", &save); level; level = strtok_r(NULL, ",", &save))
        for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
            struct err e = {0};
            struct sluice_options o = {
                .threads = 2, .cpu_level = level, .max_num_seqs = 8, .max_model_len = 64};
            struct model_file *f = model_file_open(fixture(models[m]), &e);
            struct engine *en = f ? engine_open(f, &o, &e) : NULL;
            if (!en)
                fail_msg("%s: %s", models[m], e.msg);
            model_file_close(f);
            static const int shapes[][2] = {{1, 1}, {1, 13}, {8, 1}, {3, 7}, {8, 8}}; /* sequences, tokens */
            for (uint64_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
                struct sluice_ledger ledger = {0};
                step(en, shapes[s][0], shapes[s][1], &ledger);
                struct reads r = {.want = s + 1};
                model_each_mat(engine_model(en), check_reads, &r);
                assert_true(r.n > 10);
                assert_int_equal(ledger.weight_bytes, r.bytes);
                assert_int_equal(r.bytes, model_stream_bytes(engine_model(en)));
                assert_int_equal(ledger.seqs, shapes[s][0]);
            }
            engine_free(en);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_matrix_once_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
