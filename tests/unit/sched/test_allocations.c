/* Law 4: the step path allocates nothing. From the first step to the end of the last request, with chunks,
 * several answers to one prompt, preemption with and without swap space, prefix cache, grammars, sampling and
 * log-probabilities, the counter of allocations must stand still. */
#include "unit.h"

#include "allocations.h"
#include "file/model_file.h"
#include "sample/grammar.h"
#include "sluice.h"

/* The texts of the tokens: marks of JSON, or two letters. */
static const char *text_of(void *arg, int32_t id, size_t *len)
{
    static const char marks[] = "{}[]\",: 0",
                      letters[] = "abacadaeafagahaiajakalamanaoapaqarasatauavawaxayaz";
    (void)arg;
    *len = id < 3 ? 0 : id % 3 == 2 ? 2 : 1;
    return id % 3 ? &letters[id % 49] : &marks[id / 3 % 10];
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    struct err none = {0};
    struct grammar_vocab *vocab = NULL;
    static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny", "models/gemma3-tiny-alt",
                                         "gguf/qwen3-tiny-q8_0.gguf"};
    enum { N = 8, GROUP = 3 };
    uint64_t forked = 0;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct err e = {0};
        struct sluice_options o = {
            .threads = 2, .max_num_seqs = 4, .max_model_len = 240, .max_num_batched_tokens = 48};
        struct sluice *s = NULL;
        for (int pass = 0; pass < 2; pass++) { /* the second time with a pool that is too small for four … */
            struct model_file *f = model_file_open(fixture(models[m]), &e);
            sluice_close(s);
            s = f ? sluice_open(f, &o, &e) : NULL;
            if (!s)
                fail_msg("%s: %s", models[m], e.msg);
            model_file_close(f);
            o.kv_cache_bytes = sluice_plan(s)->kv_bytes_per_token * 400;
            o.swap_bytes = m % 2 ? o.kv_cache_bytes * 4 : 0; /* … with and without swap space */
        }
        struct sluice_request *r[N + GROUP];
        /* two are constrained, and the masks are made on the way */
        grammar_vocab_free(vocab);
        vocab = grammar_vocab_create(sluice_info(s)->vocab, text_of, NULL, &none);
        struct grammar *g = grammar_from_json_object(NULL, &none);
        grammar_bind(g, vocab, 0);
        for (int i = 0; i < N; i++) {
            int32_t ids[150];
            for (int t = 0; t < 150; t++)
                ids[t] = t < 100 ? t + 3 : (t * 7 + i) % 900 + 3; /* a beginning in common */
            struct sluice_sampling p;
            sluice_sampling_init(&p);
            p.max_tokens = 60;
            p.n_logprobs = 3;
            p.n_prompt_logprobs = i == 3 ? 2 : -1;
            p.temperature = i % 2 ? 1 : 0;
            p.top_p = i == 5 ? 0.9f : 1;
            p.top_k = i == 1 ? 20 : 0;
            p.repetition_penalty = i == 7 ? 1.2f : 1;
            p.grammar = i == 2 || i == 6 ? g : NULL;
            p.n_logprobs = i == 6 ? -1 : 3;
            r[i] = sluice_submit(s, ids, 150, &p, &e);
            if (!r[i])
                fail_msg("%s", e.msg);
        }
        int32_t shared[90];
        struct sluice_sampling many;
        sluice_sampling_init(&many);
        many.max_tokens = 40;
        many.temperature = 1;
        for (int t = 0; t < 90; t++)
            shared[t] = t * 5 % 900 + 3;
        if (sluice_submit_group(s, shared, 90, &many, GROUP, r + N, &e))
            fail_msg("%s", e.msg);
        int before = allocations;
        assert_true(before > 0); /* the counters count */
        while (sluice_step(s) > 0)
            ;
        assert_int_equal(allocations, before);
        struct sluice_stats stats;
        sluice_stats(s, &stats);
        assert_int_equal(stats.finished[SLUICE_LENGTH] + stats.finished[SLUICE_STOP], N + GROUP);
        assert_true(stats.swapped_in > 0 || !o.swap_bytes);
        forked += stats.forked;
        assert_true(stats.finished[SLUICE_STOP] <= 2);
        assert_true(stats.preemptions > 0 && stats.lookups_hit > 0);
        for (int i = 0; i < N + GROUP; i++)
            sluice_request_free(r[i]);
        grammar_unref(g);
        sluice_close(s);
    }
    assert_true(forked > 0);
    grammar_vocab_free(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
