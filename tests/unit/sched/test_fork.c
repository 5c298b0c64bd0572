/* Several answers to one prompt, and swap space, on real (tiny) models: the prompt is computed once, with and
 * without the prefix cache, for pure attention and for recurrent states; each answer has the bits of a solo
 * run with its seed, also when siblings do not fit, are cancelled, preempted or swapped out. */
#include "opened.h"

enum { MOST = 8, ANSWER = 24, PROBS = 2, MAX_LEN = 400 };

static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny"};
enum { MODELS = 2 };

struct answer {
    int n;
    int32_t tokens[ANSWER];
    struct sluice_prob probs[ANSWER][1 + PROBS];
    struct sluice_prob prompt_probs[MAX_LEN][1 + PROBS];
};

static void make_prompt(int32_t *ids, int n, int which)
{
    for (int i = 0; i < n; i++)
        ids[i] = (which * 131 + i * 17 + i * i % 29) % 900 + 3;
}

static struct sluice_sampling sampling(int which)
{
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.temperature = 1;
    p.seed = (uint64_t)which * 100;
    p.max_tokens = ANSWER;
    p.n_logprobs = PROBS;
    p.repetition_penalty = which % 2 ? 1.2f : 1;
    return p;
}

static void submit(struct sluice *s, int which, int n_prompt, const struct sluice_sampling *p, int n,
                   struct sluice_request **r)
{
    int32_t ids[MAX_LEN];
    struct err e = {0};
    make_prompt(ids, n_prompt, which);
    if (sluice_submit_group(s, ids, n_prompt, p, n, r, &e))
        fail_msg("%s", e.msg);
}

static void run(struct sluice *s)
{
    for (int guard = 0; sluice_step(s) > 0; guard++)
        assert_true(guard < 100000);
    struct sluice_stats stats;
    sluice_stats(s, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.kv_blocks_used, 0);
    assert_int_equal(stats.swap_used, 0);
    assert_int_equal(stats.queued_tokens, 0);
}

static void collect(struct sluice_request *r, int n_prompt, struct answer *a)
{
    struct sluice_progress g;
    memset(a, 0, sizeof *a);
    sluice_request_progress(r, &g);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    a->n = g.n_tokens;
    memcpy(a->tokens, sluice_request_tokens(r), (size_t)g.n_tokens * sizeof(int32_t));
    for (int i = 0; i < g.n_tokens; i++)
        memcpy(a->probs[i], sluice_request_logprobs(r, i, NULL), sizeof a->probs[i]);
    if (sluice_request_prompt_logprobs(r, 0, NULL)) {
        assert_int_equal(g.n_prompt_scored, n_prompt);
        for (int i = 1; i < n_prompt; i++)
            memcpy(a->prompt_probs[i], sluice_request_prompt_logprobs(r, i, NULL), sizeof a->prompt_probs[i]);
    }
    sluice_request_free(r);
}

/* Answers 0 … n-1, each computed alone without a prefix cache. */
static void solo(const char *model, int which, int n_prompt, const struct sluice_sampling *p, int n,
                 struct answer *out)
{
    struct sluice_options o = {
        .threads = 1, .max_num_seqs = 2, .max_model_len = MAX_LEN, .no_prefix_cache = true};
    struct sluice *s = open_model(model, &o);
    for (int i = 0; i < n; i++) {
        struct sluice_sampling own = *p;
        struct sluice_request *r;
        own.seed += (uint64_t)i;
        submit(s, which, n_prompt, &own, 1, &r);
        run(s);
        collect(r, n_prompt, &out[i]);
    }
    sluice_close(s);
}

static void same(const struct answer *a, const struct answer *b, const char *what, int i)
{
    if (memcmp(a, b, sizeof *a) != 0)
        fail_msg("%s: answer %d differs from its solo run", what, i);
}

/* Prompt lengths around a block's and the grid's border. */
static const int lengths[] = {1, 16, 37, 64, 150};
enum { LENGTHS = 5 };

static void the_prompt_is_computed_once(void **state)
{
    (void)state;
    static struct answer want[MOST], got;
    for (int m = 0; m < MODELS; m++)
        for (int l = 0; l < LENGTHS; l++) {
            struct sluice_sampling p = sampling(l);
            p.n_prompt_logprobs = l == 2 ? PROBS : -1;
            solo(models[m], l, lengths[l], &p, MOST, want);
            assert_true(memcmp(&want[0], &want[1], sizeof want[0]) != 0); /* the seeds matter */
            for (int seqs = 2; seqs <= MOST; seqs += MOST - 2)            /* two at once, or all */
                for (int cache = 0; cache < 2; cache++) {
                    struct sluice_options o = {.threads = 2,
                                               .max_num_seqs = seqs,
                                               .max_model_len = MAX_LEN,
                                               .max_num_batched_tokens = 48,
                                               .no_prefix_cache = !cache};
                    struct sluice *s = open_model(models[m], &o);
                    struct sluice_request *r[MOST];
                    struct sluice_stats stats;
                    submit(s, l, lengths[l], &p, MOST, r);
                    run(s);
                    sluice_stats(s, &stats);
                    for (int i = 0; i < MOST; i++) {
                        collect(r[i], lengths[l], &got);
                        same(&want[i], &got, "group", i);
                    }
                    assert_int_equal(stats.total.prompt_tokens, lengths[l]);
                    assert_int_equal(stats.total.decode_tokens, MOST * (ANSWER - 1));
                    assert_int_equal(stats.prompt_tokens, lengths[l]);
                    assert_int_equal(stats.generation_tokens, MOST * ANSWER);
                    assert_int_equal(stats.recomputed_tokens, 0);
                    assert_int_equal(stats.forked, MOST - 1);
                    sluice_close(s);
                }
        }
}

static void a_group_may_be_scored_only(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct sluice_options o = {.threads = 1, .max_num_seqs = 2, .max_model_len = MAX_LEN};
        struct sluice *s = open_model(models[m], &o);
        static struct answer first, other;
        struct sluice_sampling p = sampling(0);
        p.max_tokens = 0;
        p.n_prompt_logprobs = PROBS;
        struct sluice_request *r[3];
        struct sluice_stats stats;
        submit(s, 0, 90, &p, 3, r);
        run(s);
        sluice_stats(s, &stats);
        assert_int_equal(stats.total.prompt_tokens, 90);
        collect(r[0], 90, &first);
        assert_int_equal(first.n, 0);
        for (int i = 1; i < 3; i++) {
            collect(r[i], 90, &other);
            same(&first, &other, "scores", i);
        }
        sluice_close(s);
    }
}

/* Siblings are cancelled at every moment of the group's life: the others do not notice. */
static void siblings_may_go(void **state)
{
    (void)state;
    static struct answer want[4], got;
    enum { LENGTH = 100 };
    for (int m = 0; m < MODELS; m++) {
        struct sluice_sampling p = sampling(3);
        solo(models[m], 3, LENGTH, &p, 4, want);
        for (int victim = 0; victim < 4; victim++)
            for (int at = 0; at < 10; at += 1 + at / 4) { /* prefill takes steps 0 … 2 */
                struct sluice_options o = {.threads = 1,
                                           .max_num_seqs = victim % 2 ? 4 : 2,
                                           .max_model_len = MAX_LEN,
                                           .max_num_batched_tokens = 40,
                                           .no_prefix_cache = true};
                struct sluice *s = open_model(models[m], &o);
                struct sluice_request *r[4];
                submit(s, 3, LENGTH, &p, 4, r);
                for (int i = 0; i < at; i++)
                    sluice_step(s);
                sluice_cancel(r[victim]);
                run(s);
                for (int i = 0; i < 4; i++)
                    if (i == victim)
                        sluice_request_free(r[i]);
                    else {
                        collect(r[i], LENGTH, &got);
                        same(&want[i], &got, "after a cancel", i);
                    }
                sluice_close(s);
            }
    }
}

/* Four groups in a pool that holds little more than one answer of each: members wait, are preempted, are
 * swapped out and in. */
static void pressure_changes_nothing(void **state)
{
    (void)state;
    enum { GROUPS = 4, EACH = 3, LENGTH = 70 };
    static struct answer want[GROUPS][EACH], got;
    for (int m = 0; m < MODELS; m++) {
        for (int g = 0; g < GROUPS; g++) {
            struct sluice_sampling p = sampling(g);
            solo(models[m], g, LENGTH + g, &p, EACH, want[g]);
        }
        for (int swap = 0; swap < 2; swap++)
            for (int cache = 0; cache < 2; cache++) {
                struct sluice_options o = {.threads = 1,
                                           .max_num_seqs = 8,
                                           .max_model_len = 112,
                                           .max_num_batched_tokens = 64,
                                           .no_prefix_cache = !cache};
                struct sluice *probe = open_model(models[m], &o);
                const struct sluice_plan *plan = sluice_plan(probe);
                o.kv_cache_bytes = plan->kv_bytes_per_token * 16 * 14;
                if (swap)
                    o.swap_bytes = plan->kv_bytes_per_token * 16 * 60 + 8 * plan->state_bytes_per_seq;
                sluice_close(probe);
                struct sluice *s = open_model(models[m], &o);
                struct sluice_request *r[GROUPS][EACH];
                struct sluice_stats stats;
                for (int g = 0; g < GROUPS; g++) {
                    struct sluice_sampling p = sampling(g);
                    submit(s, g, LENGTH + g, &p, EACH, r[g]);
                }
                run(s);
                sluice_stats(s, &stats);
                assert_true(stats.preemptions > 0);
                assert_true(swap ? stats.swapped_out > 0 : stats.swapped_out == 0);
                assert_int_equal(stats.swapped_in, stats.swapped_out);
                assert_int_equal(stats.swapped_in_bytes, stats.swapped_out_bytes);
                for (int g = 0; g < GROUPS; g++)
                    for (int i = 0; i < EACH; i++) {
                        collect(r[g][i], LENGTH + g, &got);
                        same(&want[g][i], &got, "under pressure", i);
                    }
                sluice_close(s);
            }
    }
}

static void prompt_tokens_that_wait_are_bounded(void **state)
{
    (void)state;
    struct sluice_options o = {
        .threads = 1, .max_num_seqs = 1, .max_model_len = MAX_LEN, .max_queued_tokens = 250};
    struct sluice *s = open_model(models[0], &o);
    struct sluice_sampling p = sampling(0);
    struct sluice_request *r[3], *refused;
    struct sluice_stats stats;
    struct err e = {0};
    int32_t ids[MAX_LEN];
    make_prompt(ids, 300, 0);
    submit(s, 0, 300, &p, 1, &r[0]); /* more than the bound, but none wait */
    assert_null(sluice_submit(s, ids, 1, &p, &e));
    assert_int_equal(e.code, ERR_BUSY);
    assert_non_null(strstr(e.msg, "--max-num-queued-tokens"));
    sluice_step(s); /* its prompt is computed */
    assert_int_equal(sluice_submit_group(s, ids, 200, &p, 2, &r[1], &e),
                     0); /* a group's prompt counts once */
    assert_int_equal(sluice_submit_group(s, ids, 51, &p, 1, &refused, &e), -1);
    sluice_stats(s, &stats);
    assert_int_equal(stats.queued_tokens, 200);
    assert_int_equal(stats.refused_tokens, 2);
    assert_int_equal(stats.refused, 0);
    run(s);
    for (int i = 0; i < 3; i++)
        sluice_request_free(r[i]);
    sluice_close(s);
}

/* A prompt with more borders than states are kept in a step: the group's own comes on top of them. */
static void states_of_a_step_are_bounded(void **state)
{
    (void)state;
    enum { BORDERS = 20, PROMPT = 64 * BORDERS + 10 };
    struct sluice_options o = {
        .threads = 1, .max_num_seqs = 4, .max_model_len = PROMPT + ANSWER, .max_num_batched_tokens = 2048};
    struct sluice *s = open_model(models[1], &o);
    struct sluice_sampling p = sampling(1);
    struct sluice_request *group[2], *alone;
    static int32_t ids[PROMPT];
    int borders[BORDERS];
    struct err e = {0};
    assert_true(sluice_plan(s)->state_snapshots > BORDERS);
    make_prompt(ids, PROMPT, 1);
    for (int i = 0; i < BORDERS; i++)
        borders[i] = 64 * (i + 1);
    p.borders = borders;
    p.n_borders = BORDERS;
    assert_int_equal(sluice_submit_group(s, ids, PROMPT, &p, 2, group, &e), 0);
    run(s);
    for (int i = 0; i < 2; i++, p.seed++) { /* again, alone, from what was kept */
        assert_non_null(alone = sluice_submit(s, ids, PROMPT, &p, &e));
        run(s);
        assert_memory_equal(sluice_request_tokens(alone), sluice_request_tokens(group[i]),
                            ANSWER * sizeof(int32_t));
        sluice_request_free(alone);
        sluice_request_free(group[i]);
    }
    sluice_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prompt_is_computed_once),
        cmocka_unit_test(a_group_may_be_scored_only),
        cmocka_unit_test(siblings_may_go),
        cmocka_unit_test(states_of_a_step_are_bounded),
        cmocka_unit_test(pressure_changes_nothing),
        cmocka_unit_test(prompt_tokens_that_wait_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
