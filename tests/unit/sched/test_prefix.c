/* The prefix cache: what must be found is found, a hit gives the same bits as a miss, tenants do not share,
 * and nothing leaks when pool and snapshots are far too small. On a pure attention model and on a hybrid. */
#include "opened.h"

enum { ANSWER = 40, PROBS = 2, MAX_LEN = 1024 };

static const char *const models[] = {"models/llama-tiny", "models/qwen35-tiny"};

struct answer {
    int32_t tokens[ANSWER];
    struct sluice_prob probs[ANSWER][1 + PROBS];
    int cached;
};

static void sampling(struct sluice_sampling *p, int n_answer)
{
    sluice_sampling_init(p);
    p->max_tokens = n_answer;
    p->n_logprobs = PROBS;
}

static struct sluice_request *submit(struct sluice *s, const int32_t *ids, int n, uint64_t tenant,
                                     int n_answer)
{
    struct err e = {0};
    struct sluice_sampling p;
    sampling(&p, n_answer);
    p.cache_salt[0] = tenant;
    struct sluice_request *r = sluice_submit(s, ids, n, &p, &e);
    if (!r)
        fail_msg("%s", e.msg);
    return r;
}

static void collect(struct sluice_request *r, struct answer *a)
{
    struct sluice_progress g;
    memset(a, 0, sizeof *a);
    sluice_request_progress(r, &g);
    assert_int_equal(g.finish, SLUICE_LENGTH);
    memcpy(a->tokens, sluice_request_tokens(r), (size_t)g.n_tokens * sizeof(int32_t));
    for (int i = 0; i < g.n_tokens; i++)
        memcpy(a->probs[i], sluice_request_logprobs(r, i, NULL), sizeof a->probs[i]);
    a->cached = g.cached_tokens;
    sluice_request_free(r);
}

static struct answer ask(struct sluice *s, const int32_t *ids, int n, uint64_t tenant)
{
    struct answer a;
    struct sluice_request *r = submit(s, ids, n, tenant, ANSWER);
    while (sluice_step(s) > 0)
        ;
    collect(r, &a);
    return a;
}

static void same(const struct answer *a, const struct answer *b, const char *what)
{
    if (memcmp(a->tokens, b->tokens, sizeof a->tokens) != 0)
        fail_msg("%s: other tokens than the cold run", what);
    if (memcmp(a->probs, b->probs, sizeof a->probs) != 0)
        fail_msg("%s: other log-probability bits than the cold run", what);
}

static void make_prompt(int32_t *ids, int n, int seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((unsigned)(i * 7919 + seed * 104729 + i * i % 31) % 900) + 3;
}

static void repeats_branches_and_turns_hit(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        struct sluice_options o = {.threads = 1, .max_num_seqs = 4, .max_model_len = MAX_LEN};
        struct sluice_options plain = o;
        plain.no_prefix_cache = true;
        struct sluice *s = open_model(models[m], &o), *cold = open_model(models[m], &plain);
        int32_t ids[MAX_LEN];
        make_prompt(ids, 200, 1);
        struct answer first = ask(s, ids, 200, 0), want = ask(cold, ids, 200, 0);
        assert_int_equal(first.cached, 0);
        same(&first, &want, "first");

        struct answer again = ask(s, ids, 200, 0); /* the very same prompt */
        assert_true(again.cached >= 192);
        same(&again, &want, "again");

        make_prompt(ids + 200, 20, 2); /* and 20 tokens more */
        struct answer more = ask(s, ids, 220, 0);
        assert_true(more.cached >= 192);
        want = ask(cold, ids, 220, 0);
        same(&more, &want, "20 tokens more");

        memcpy(ids + 220, more.tokens, sizeof more.tokens); /* the next turn: the answer and a question */
        make_prompt(ids + 220 + ANSWER, 30, 3);
        struct answer turn = ask(s, ids, 250 + ANSWER, 0);
        assert_true(turn.cached >= 256 - (m == 0 ? 0 : 64)); /* hybrid: the grid point in the answer */
        assert_true(turn.cached > 220 - (m == 0 ? 0 : 64));
        want = ask(cold, ids, 250 + ANSWER, 0);
        same(&turn, &want, "next turn");

        struct answer other = ask(s, ids, 200, 77); /* another tenant shares nothing */
        assert_int_equal(other.cached, 0);
        other = ask(s, ids, 200, 77);
        assert_true(other.cached > 0);

        static const int tails[] = {50, 100, 150, 200}; /* a shared beginning, private ends */
        make_prompt(ids, 300, 9);
        for (int i = 0; i < 4; i++) {
            make_prompt(ids + 300, tails[i], 20 + i);
            struct answer a = ask(s, ids, 300 + tails[i], 0);
            want = ask(cold, ids, 300 + tails[i], 0);
            same(&a, &want, "shared beginning");
            if (i > 0)
                assert_true(a.cached >= 256);
        }
        struct sluice_stats stats;
        sluice_stats(s, &stats);
        assert_int_equal(stats.kv_blocks_used, 0);
        assert_true(stats.cached_tokens > 0 && stats.cached_tokens < stats.looked_up_tokens);
        assert_int_equal(stats.lookups, stats.lookups_hit + stats.lookups_unknown + stats.lookups_no_state +
                                            stats.lookups_short + stats.lookups_bypassed);
        assert_true(stats.lookups_unknown > 0);
        sluice_stats(cold, &stats);
        assert_int_equal(stats.cached_tokens, 0);
        assert_int_equal(stats.lookups, 0);
        sluice_close(s);
        sluice_close(cold);
    }
}

/* While prompts that share a beginning are computed piece by piece, more tokens were found in the cache than
 * belong to prompts that are done: the two kinds of count are kept apart. */
static void prompts_count_when_they_are_done(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1,
                               .max_num_seqs = 4,
                               .max_model_len = MAX_LEN,
                               .max_num_batched_tokens = 32,
                               .long_prefill_threshold = 8};
    struct sluice *s = open_model(models[0], &o);
    int32_t ids[MAX_LEN];
    make_prompt(ids, 200, 1);
    ask(s, ids, 200, 0);
    struct sluice_request *r[3];
    for (int i = 0; i < 3; i++) {
        make_prompt(ids + 192, 100, 5 + i);
        r[i] = submit(s, ids, 292, 0, ANSWER);
    }
    bool ahead = false;
    struct sluice_stats stats;
    do {
        sluice_step(s);
        sluice_stats(s, &stats);
        assert_true(stats.prompt_tokens_cached <= stats.prompt_tokens);
        ahead |= stats.cached_tokens > stats.prompt_tokens;
    } while (stats.running + stats.waiting > 0);
    assert_true(ahead); /* else this tests nothing */
    assert_int_equal(stats.prompt_tokens, 200 + 3 * 292);
    assert_int_equal(stats.prompt_tokens_cached, 3 * 192);
    for (int i = 0; i < 3; i++)
        sluice_request_free(r[i]);
    sluice_close(s);
}

/* Message borders are kept even when nothing else would ask for state there. */
static void borders_are_kept(void **state)
{
    (void)state;
    struct sluice_options o = {.threads = 1, .max_num_seqs = 2, .max_model_len = MAX_LEN};
    struct sluice *s = open_model(models[1], &o);
    struct err e = {0};
    int32_t ids[MAX_LEN];
    make_prompt(ids, 700, 4);
    struct sluice_sampling p;
    sampling(&p, 4);
    int borders[] = {390};
    p.borders = borders;
    p.n_borders = 1;
    struct sluice_request *r = sluice_submit(s, ids, 700, &p, &e);
    assert_non_null(r);
    while (sluice_step(s) > 0)
        ;
    sluice_request_free(r);
    make_prompt(ids + 400, 100, 5);
    struct answer a = ask(s, ids, 500, 0);
    assert_int_equal(a.cached, 384); /* 256 by powers of two alone */
    sluice_close(s);
}

/* Many requests over a few shared beginnings, joining and cancelled at random, in a pool that forces
 * evictions and preemptions and with two or no snapshots to spare: each answer equals its cold run, and
 * nothing is left. */
static void chaos_equals_cold_runs(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    enum {
        PROMPTS = 12,
        LIVE = 6,
        ROUNDS = 60,
        MOST_SNAPSHOTS = 1
    }; /* slow, and not what sanitizers look for */
#else
    enum { PROMPTS = 12, LIVE = 6, ROUNDS = 60, MOST_SNAPSHOTS = 9 };
#endif
    for (size_t m = 0; m < 2; m++) {
        struct sluice_options o = {
            .threads = 1, .max_num_seqs = 4, .max_model_len = 400, .no_prefix_cache = true};
        struct sluice *cold = open_model(models[m], &o);
        static int32_t prompts[PROMPTS][400];
        static struct answer want[PROMPTS];
        int len[PROMPTS];
        for (int i = 0; i < PROMPTS; i++) {
            len[i] = 40 + i * 53 % 250;
            make_prompt(prompts[i], 400, i % 3);
            make_prompt(prompts[i] + len[i] / 2, len[i] - len[i] / 2, 50 + i);
            want[i] = ask(cold, prompts[i], len[i], 0);
        }
        const struct sluice_plan *plan = sluice_plan(cold);
        size_t block = plan->kv_bytes_per_token * (size_t)plan->block_size,
               state_bytes = plan->state_bytes_per_seq;
        sluice_close(cold);
        for (int snapshots = 1; snapshots <= MOST_SNAPSHOTS; snapshots += 4) {
            o = (struct sluice_options){.threads = 1,
                                        .max_num_seqs = 4,
                                        .max_model_len = 400,
                                        .max_num_batched_tokens = 96,
                                        .kv_cache_bytes = 30 * block,
                                        .state_cache_bytes = (size_t)snapshots * state_bytes};
            struct sluice *s = open_model(models[m], &o);
            struct sluice_request *live[LIVE] = {0};
            int who[LIVE] = {0};
            unsigned rng = 12345 + (unsigned)snapshots;
            for (int round = 0; round < ROUNDS * 20; round++) {
                rng = rng * 1664525 + 1013904223;
                int i = (int)(rng >> 8) % LIVE;
                if (live[i]) {
                    struct sluice_progress g;
                    sluice_request_progress(live[i], &g);
                    if (g.finish == SLUICE_LENGTH) {
                        struct answer got;
                        collect(live[i], &got);
                        same(&got, &want[who[i]], "chaos");
                        live[i] = NULL;
                    } else if (rng >> 28 == 0) {
                        sluice_request_free(live[i]); /* hang up */
                        live[i] = NULL;
                    }
                } else {
                    who[i] = (int)(rng >> 16) % PROMPTS;
                    live[i] = submit(s, prompts[who[i]], len[who[i]], 0, ANSWER);
                }
                sluice_step(s);
            }
            for (int i = 0; i < LIVE; i++)
                sluice_request_free(live[i]);
            while (sluice_step(s) > 0)
                ;
            struct sluice_stats stats;
            sluice_stats(s, &stats);
            assert_int_equal(stats.running + stats.waiting, 0);
            assert_int_equal(stats.kv_blocks_used, 0);
            assert_true(stats.lookups_hit > 0);
            assert_true(stats.preemptions > 0);
            sluice_close(s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_branches_and_turns_hit),
        cmocka_unit_test(prompts_count_when_they_are_done),
        cmocka_unit_test(borders_are_kept),
        cmocka_unit_test(chaos_equals_cold_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
