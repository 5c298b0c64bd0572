/* The laws, on a real (tiny) model through the public interface: a request's tokens and the bits of its
 * log-probabilities are the same alone and in company, whatever the chunk size and the thread count, after
 * preemption, and only new tokens are computed. */
#include "opened.h"

#include "engine/engine.h"
#include "sched/request.h"

enum { N_REQUESTS = 9, ANSWER = 24, VOCAB = 1024, PROBS = 3 };

struct answer {
    int32_t tokens[ANSWER];
    struct sluice_prob probs[ANSWER][1 + PROBS];
    struct sluice_prob prompt_probs[300][1 + PROBS];
    int n, n_prompt, preemptions;
    enum sluice_finish finish;
};

static const char *const models[] = {"models/llama-tiny", "gguf/qwen3-tiny-q8_0.gguf", "models/qwen35-tiny",
                                     "models/qwen35-tiny"};
enum { SMALL_TYPES = 3 }; /* the model with keys, values and states in fewer bits */

static void types_of(int model, struct sluice_options *o)
{
    if (model == SMALL_TYPES) {
        o->kv_dtype = "int8_per_token_head";
        o->state_dtype = o->conv_dtype = "bfloat16";
    }
}

static int prompt_of(int who, int32_t *ids)
{
    int n = 1 + (who * 37) % 200;
    for (int i = 0; i < n; i++)
        ids[i] = (who * 131 + i * 17 + i * i % 29) % 900 + 3;
    return n;
}

/* Every third request samples, the others are greedy; request 0 has its prompt scored. */
static void sampling_of(int who, struct sluice_sampling *p)
{
    sluice_sampling_init(p);
    p->max_tokens = ANSWER;
    p->n_logprobs = PROBS;
    p->n_prompt_logprobs = who == 0 ? PROBS : -1;
    if (who % 3 == 1) {
        p->temperature = 0.9f;
        p->top_p = 0.95f;
        p->seed = (uint64_t)who;
        p->repetition_penalty = 1.1f;
    }
}

static void collect(struct sluice_request *r, struct answer *a, int who)
{
    int32_t ids[300];
    struct sluice_progress g;
    memset(a, 0, sizeof *a);
    sluice_request_progress(r, &g);
    a->n = g.n_tokens;
    a->finish = g.finish;
    a->preemptions = g.preemptions;
    memcpy(a->tokens, sluice_request_tokens(r), (size_t)g.n_tokens * sizeof(int32_t));
    for (int i = 0; i < a->n; i++)
        memcpy(a->probs[i], sluice_request_logprobs(r, i, NULL), sizeof a->probs[i]);
    a->n_prompt = prompt_of(who, ids);
    if (sluice_request_prompt_logprobs(r, 0, NULL)) {
        assert_int_equal(g.n_prompt_scored, a->n_prompt);
        for (int i = 1; i < a->n_prompt; i++)
            memcpy(a->prompt_probs[i], sluice_request_prompt_logprobs(r, i, NULL), sizeof a->prompt_probs[i]);
    }
}

/* Runs requests first … first+n-1 together; those past the first join one step after another. */
static void run(struct sluice *s, int first, int n, struct answer *out, struct sluice_stats *stats)
{
    struct sluice_request *r[N_REQUESTS];
    struct err e = {0};
    for (int i = 0; i < n; i++) {
        int32_t ids[300];
        struct sluice_sampling p;
        int len = prompt_of(first + i, ids);
        sampling_of(first + i, &p);
        r[i] = sluice_submit(s, ids, len, &p, &e);
        if (!r[i])
            fail_msg("%s", e.msg);
        sluice_step(s);
    }
    int guard = 0;
    while (sluice_step(s) > 0)
        assert_true(guard++ < 100000);
    sluice_stats(s, stats);
    assert_int_equal(stats->running + stats->waiting, 0);
    assert_int_equal(stats->kv_blocks_used, 0);
    for (int i = 0; i < n; i++) {
        collect(r[i], &out[i], first + i);
        assert_int_equal(out[i].finish, SLUICE_LENGTH);
        sluice_request_free(r[i]);
    }
}

static void same(const struct answer *a, const struct answer *b, const char *what, int who)
{
    struct answer x = *a, y = *b;
    x.preemptions = y.preemptions = 0;
    if (memcmp(&x, &y, sizeof x) != 0)
        fail_msg("request %d %s differs from its solo run", who, what);
}

/* Solo answers at one level: one thread, whole prompts. */
static void solo_answers(int model, const char *level, struct answer *out)
{
    struct sluice_options o = {.threads = 1, .cpu_level = level, .max_num_seqs = 16, .max_model_len = 400};
    types_of(model, &o);
    struct sluice *s = open_model(models[model], &o);
    struct sluice_stats stats;
    for (int i = 0; i < N_REQUESTS; i++)
        run(s, i, 1, &out[i], &stats);
    sluice_close(s);
}

/* ThreadSanitizer looks for races, not for wrong bits, and is slow: one model and one level are enough for
 * it. */
#ifdef __SANITIZE_THREAD__
enum { FIRST_MODEL = SMALL_TYPES, MODELS = 4, LEVELS = 1 };
#else
enum { FIRST_MODEL = 0, MODELS = 4, LEVELS = 100 };
#endif

static void company_chunks_and_threads_change_nothing(void **state)
{
    (void)state;
    int levels_left = LEVELS;
    struct answer *solo = calloc(N_REQUESTS, sizeof *solo), *got = calloc(N_REQUESTS, sizeof *got);
    char levels[100], what[100], *save = NULL;
    snprintf(levels, sizeof levels, "%s", backend_cpu_levels());
    for (char *level = strtok_r(levels, ",", &save); level && levels_left-- > 0;
         level = strtok_r(NULL, ",", &save))
        for (int m = FIRST_MODEL; m < MODELS; m++) {
            solo_answers(m, level, solo);
            static const int budgets[] = {16, 23, 64, 2048}, caps[] = {1, 7, 0, 0};
            for (size_t k = 0; k < sizeof budgets / sizeof budgets[0]; k++)
                for (int threads = 1; threads <= 2; threads++) {
                    struct sluice_options o = {.threads = threads,
                                               .cpu_level = level,
                                               .max_num_seqs = 16,
                                               .max_model_len = 400,
                                               .max_num_batched_tokens = budgets[k],
                                               .long_prefill_threshold = caps[k]};
                    types_of(m, &o);
                    struct sluice *s = open_model(models[m], &o);
                    struct sluice_stats stats;
                    run(s, 0, N_REQUESTS, got, &stats);
                    snprintf(what, sizeof what, "in company (%s %d, %s, budget %d, cap %d, %d threads)",
                             models[m], m, level, budgets[k], caps[k], threads);
                    uint64_t prompts = 0;
                    for (int i = 0; i < N_REQUESTS; i++) {
                        same(&solo[i], &got[i], what, i);
                        prompts += (uint64_t)got[i].n_prompt;
                    }
                    /* law 2: every prompt token once, every answer token but the last once */
                    assert_int_equal(stats.total.prompt_tokens, prompts);
                    assert_int_equal(stats.total.decode_tokens, N_REQUESTS * (ANSWER - 1));
                    assert_int_equal(stats.recomputed_tokens, 0);
                    sluice_close(s);
                }
        }
    free(solo);
    free(got);
}

/* A pool in which a third of the requests finds room: those that lose it begin again. */
static void check_preemption(int model, const char *level)
{
    struct answer *solo = calloc(N_REQUESTS, sizeof *solo), *got = calloc(N_REQUESTS, sizeof *got);
    solo_answers(model, level, solo);
    struct sluice_options o = {.threads = 1, .cpu_level = level, .max_num_seqs = 16, .max_model_len = 224};
    types_of(model, &o);
    struct sluice *probe = open_model(models[model], &o);
    size_t per_token = sluice_plan(probe)->kv_bytes_per_token;
    sluice_close(probe);
    o.kv_cache_bytes = per_token * 240; /* 15 blocks: about a third of what the nine need together */
    struct sluice *s = open_model(models[model], &o);
    struct sluice_stats stats;
    run(s, 0, N_REQUESTS, got, &stats);
    assert_true(stats.preemptions > 0);
    assert_true(stats.recomputed_tokens > 0);
    int counted = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        same(&solo[i], &got[i], "after preemption", i);
        counted += got[i].preemptions;
    }
    assert_int_equal(counted, stats.preemptions);
    sluice_close(s);
    free(solo);
    free(got);
}

static void preemption_changes_nothing(void **state)
{
    (void)state;
    check_preemption(0, "reference");
    check_preemption(SMALL_TYPES, NULL);
}

/* The second time prompts come from the prefix cache, as far as a state was kept: the same bits. */
static void hits_change_nothing_in_few_bits(void **state)
{
    (void)state;
    struct answer *first = calloc(N_REQUESTS, sizeof *first), *second = calloc(N_REQUESTS, sizeof *second);
    struct sluice_options o = {.threads = 2, .max_num_seqs = 16, .max_model_len = 400};
    types_of(SMALL_TYPES, &o);
    struct sluice *s = open_model(models[SMALL_TYPES], &o);
    struct sluice_stats stats;
    run(s, 0, N_REQUESTS, first, &stats);
    uint64_t found = stats.cached_tokens;
    run(s, 0, N_REQUESTS, second, &stats);
    assert_true(stats.cached_tokens > found + 256);
    for (int i = 0; i < N_REQUESTS; i++)
        same(&first[i], &second[i], "after a hit", i);
    sluice_close(s);
    free(first);
    free(second);
}

static void each_step_is_one_stream(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 2, .max_num_seqs = 16, .max_model_len = 400};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    struct sluice_stats stats;
    uint64_t stream = 0;
    struct sluice_request *r[8];
    for (int i = 0; i < 8; i++) {
        int32_t ids[300];
        struct sluice_sampling p;
        int len = prompt_of(i, ids);
        sampling_of(i, &p);
        r[i] = sluice_submit(s, ids, len, &p, &e);
        assert_non_null(r[i]);
        sluice_step(s);
        sluice_stats(s, &stats);
        if (i == 0)
            stream = stats.last.weight_bytes;
        assert_int_equal(stats.last.weight_bytes,
                         stream); /* a prompt more, a request more: the same stream */
        assert_int_equal(stats.last.seqs, i + 1);
    }
    assert_true(stream > 0);
    for (int i = 0; i < 8; i++)
        sluice_request_free(r[i]);
    sluice_close(s);
}

static void a_cancelled_request_is_gone_at_the_next_step(void **state)
{
    (void)state;
    struct sluice_options o = {
        .threads = 1, .max_num_seqs = 2, .max_model_len = 400, .max_num_batched_tokens = 32};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    struct sluice_stats stats;
    struct sluice_request *r[4]; /* two run (one in prefill), two wait */
    for (int i = 0; i < 4; i++) {
        int32_t ids[300];
        struct sluice_sampling p;
        int len = prompt_of(5, ids);
        sampling_of(5, &p);
        r[i] = sluice_submit(s, ids, len, &p, &e);
        assert_non_null(r[i]);
    }
    sluice_step(s);
    sluice_stats(s, &stats);
    assert_true(stats.running >= 1);
    assert_int_equal(stats.running + stats.waiting, 4);
    for (int i = 0; i < 4; i++)
        sluice_cancel(r[i]);
    sluice_step(s);
    sluice_stats(s, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.kv_blocks_used, 0);
    assert_int_equal(stats.finished[SLUICE_ABORTED], 4);
    for (int i = 0; i < 4; i++) {
        struct sluice_progress g;
        sluice_request_progress(r[i], &g);
        assert_int_equal(g.finish, SLUICE_ABORTED);
        sluice_request_free(r[i]);
    }
    sluice_close(s);
}

static void what_can_never_run_is_refused(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1, .max_num_seqs = 2, .max_model_len = 64};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = i;
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    assert_null(sluice_submit(s, ids, 0, &p, &e));
    assert_null(sluice_submit(s, ids, 64, &p, &e));
    assert_non_null(strstr(e.msg, "maximum context length is 64 tokens"));
    assert_null(sluice_submit(s, ids, 100, &p, &e));
    ids[3] = VOCAB;
    assert_null(sluice_submit(s, ids, 10, &p, &e));
    assert_non_null(strstr(e.msg, "token id 1024"));
    ids[3] = -1;
    assert_null(sluice_submit(s, ids, 10, &p, &e));
    ids[3] = VOCAB - 1;
    struct sluice_bias bias = {VOCAB, 1};
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_null(sluice_submit(s, ids, 10, &p, &e));
    p.n_logit_bias = 0;
    p.temperature = 0.0f / 0.0f;
    assert_null(sluice_submit(s, ids, 10, &p, &e));
    p.temperature = 0;
    p.max_tokens = 1000; /* clamped to what is left */
    struct sluice_request *r = sluice_submit(s, ids, 60, &p, &e);
    assert_non_null(r);
    while (sluice_step(s) > 0)
        ;
    struct sluice_progress g;
    sluice_request_progress(r, &g);
    assert_int_equal(g.n_tokens, 4);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    sluice_request_free(r);
    p.max_tokens = 0; /* a full context may still be scored */
    p.n_prompt_logprobs = 0;
    r = sluice_submit(s, ids, 64, &p, &e);
    assert_non_null(r);
    while (sluice_step(s) > 0)
        ;
    sluice_request_progress(r, &g);
    assert_int_equal(g.n_tokens, 0);
    assert_int_equal(g.n_prompt_scored, 64);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    sluice_request_free(r);
    sluice_close(s);
}

/* A request longer than the whole pool, though not than the model's context, could only wait for ever. */
static void what_the_pool_cannot_hold_is_refused(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1, .max_num_seqs = 2, .max_model_len = 1024};
    struct sluice *probe = open_model(models[0], &o);
    o.kv_cache_bytes = sluice_plan(probe)->kv_bytes_per_token * 160;
    sluice_close(probe);
    struct sluice *s = open_model(models[0], &o);
    assert_int_equal(sluice_plan(s)->max_model_len, 160);
    struct err e = {0};
    int32_t ids[300] = {0};
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    assert_null(sluice_submit(s, ids, 200, &p, &e));
    assert_non_null(strstr(e.msg, "maximum context length is 160 tokens"));
    p.max_tokens = 1000; /* an answer that would outgrow it ends with the pool */
    struct sluice_request *r = sluice_submit(s, ids, 150, &p, &e);
    assert_non_null(r);
    while (sluice_step(s) > 0)
        ;
    struct sluice_progress g;
    sluice_request_progress(r, &g);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    assert_int_equal(g.n_tokens, 10);
    sluice_request_free(r);
    sluice_close(s);
}

/* max_queued holds at every moment, also in the middle of a step that has just emptied the inbox. */
static void no_more_wait_than_may(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1,
                               .cpu_level = "reference",
                               .max_num_seqs = 1,
                               .max_model_len = 400,
                               .max_num_batched_tokens = 64,
                               .max_queued = 2};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.max_tokens = 50;
    int32_t ids[320];
    for (int i = 0; i < 320; i++)
        ids[i] = i % 900 + 3;
    struct sluice_request *first = sluice_submit(s, ids, 320, &p, &e), *waiting[3] = {0};
    assert_non_null(first);
    assert_int_equal(sluice_start(s, NULL, NULL, &e), 0);
    struct sluice_progress g;
    int accepted = 0;
    uint64_t refused = 0;
    do {
        struct sluice_request *r = sluice_submit(s, ids, 320, &p, &e);
        sluice_request_progress(first, &g);
        if (!r) {
            assert_int_equal(e.code, ERR_BUSY);
            refused++;
        } else {
            assert_true(accepted < 2);
            waiting[accepted++] = r;
        }
    } while (g.n_tokens == 0); /* five steps or so */
    struct sluice_stats stats;
    sluice_stats(s, &stats);
    assert_int_equal(accepted, 2);
    assert_int_equal(stats.refused, refused);
    sluice_close(s);
    sluice_request_free(first);
    for (int i = 0; i < accepted; i++)
        sluice_request_free(waiting[i]);
}

/* All requests together hold a bounded amount; what is over it is told to try again, and is welcome
 * afterwards. */
static void requests_together_are_bounded(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1, .max_num_seqs = 2, .max_model_len = 400};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    int32_t ids[10] = {0};
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.max_tokens = 300;
    p.n_logprobs = 60;
    request_limit_memory(400000); /* each takes about 150 kB */
    struct sluice_request *r[3];
    for (int i = 0; i < 3; i++)
        r[i] = sluice_submit(s, ids, 10, &p, &e);
    assert_non_null(r[1]);
    assert_null(r[2]);
    assert_int_equal(e.code, ERR_BUSY);
    sluice_request_free(r[0]);
    sluice_request_free(r[1]);
    while (sluice_step(s) > 0)
        ;
    r[2] = sluice_submit(s, ids, 10, &p, &e);
    assert_non_null(r[2]);
    sluice_request_free(r[2]);
    sluice_close(s);
}

static void stop_ids_end_the_answer(void **state)
{
    (void)state;
    struct answer *solo = calloc(N_REQUESTS, sizeof *solo);
    solo_answers(0, "reference", solo);
    struct sluice_options o = {
        .threads = 1, .cpu_level = "reference", .max_num_seqs = 2, .max_model_len = 400};
    struct sluice *s = open_model(models[0], &o);
    struct err e = {0};
    int32_t ids[300], stop = solo[2].tokens[5];
    int at = 0;
    while (solo[2].tokens[at] != stop)
        at++;
    struct sluice_sampling p;
    sampling_of(2, &p);
    p.stop_ids = &stop;
    p.n_stop_ids = 1;
    struct sluice_request *r = sluice_submit(s, ids, prompt_of(2, ids), &p, &e);
    assert_non_null(r);
    while (sluice_step(s) > 0)
        ;
    struct sluice_progress g;
    sluice_request_progress(r, &g);
    assert_int_equal(g.finish, SLUICE_STOP);
    assert_int_equal(g.n_tokens, at + 1);
    assert_int_equal(sluice_request_tokens(r)[at], stop);
    sluice_request_free(r);
    sluice_close(s);
    free(solo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_chunks_and_threads_change_nothing),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(hits_change_nothing_in_few_bits),
        cmocka_unit_test(each_step_is_one_stream),
        cmocka_unit_test(a_cancelled_request_is_gone_at_the_next_step),
        cmocka_unit_test(what_can_never_run_is_refused),
        cmocka_unit_test(what_the_pool_cannot_hold_is_refused),
        cmocka_unit_test(no_more_wait_than_may),
        cmocka_unit_test(requests_together_are_bounded),
        cmocka_unit_test(stop_ids_end_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
