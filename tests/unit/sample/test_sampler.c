/* The sampler against the definition: frequencies of draws against the distribution that the parameters
 * describe, masks, penalties, edge values, and the independence of its random numbers. */
#include "unit.h"

#include <math.h>

#include "sample/sampler.h"

enum { V = 50 };

static void fill(float *logits)
{
    for (int i = 0; i < V; i++)
        logits[i] = (float)sin(i * 1.7) * 3 - (float)i * 0.01f;
}

static int32_t draw(const struct sluice_sampling *p, int index)
{
    float logits[V];
    struct sample_scratch scratch;
    sample_scratch_init(&scratch, V);
    struct sampler *s = sampler_create(p, V, NULL, 0);
    fill(logits);
    int32_t id = sampler_pick(s, logits, index, &scratch);
    sampler_free(s);
    sample_scratch_free(&scratch);
    return id;
}

/* The distribution by the plain definition: sort, cut, normalise. */
static void define(const struct sluice_sampling *p, double *prob)
{
    float logits[V];
    fill(logits);
    double sum = 0, max = 0;
    for (int i = 0; i < V; i++)
        sum += prob[i] = exp((double)logits[i] / (double)p->temperature);
    for (int i = 0; i < V; i++) {
        prob[i] /= sum;
        max = prob[i] > max ? prob[i] : max;
    }
    for (int i = 0; i < V; i++)
        if (prob[i] < (double)p->min_p * max)
            prob[i] = 0;
    bool kept[V] = {0};
    double total = 0, mass = 0;
    int k = p->top_k ? p->top_k : V;
    double in_k = 0;
    bool taken[V] = {0};
    for (int n = 0; n < k; n++) { /* mass of the top k, for top_p */
        int best = -1;
        for (int i = 0; i < V; i++)
            if (!taken[i] && (best < 0 || prob[i] > prob[best]))
                best = i;
        taken[best] = true;
        in_k += prob[best];
    }
    for (int n = 0; n < k; n++) {
        int best = -1;
        for (int i = 0; i < V; i++)
            if (!kept[i] && (best < 0 || prob[i] > prob[best]))
                best = i;
        kept[best] = true;
        mass += prob[best];
        if (mass >= (double)p->top_p * in_k)
            break;
    }
    for (int i = 0; i < V; i++)
        total += prob[i] = kept[i] ? prob[i] : 0;
    for (int i = 0; i < V; i++)
        prob[i] /= total;
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    static const struct {
        float temperature, top_p, min_p;
        int top_k;
    } cases[] = {{1, 1, 0, 0},     {0.7f, 1, 0, 0},  {1, 0.9f, 0, 0},  {1, 0.5f, 0, 0},
                 {1, 1, 0.2f, 0},  {1, 1, 0, 5},     {1, 0.8f, 0, 20}, {2, 0.95f, 0.05f, 10},
                 {1, 1e-4f, 0, 0}, {0.01f, 1, 0, 0}, {1, 1, 1, 0},     {1, 1, 0, V + 100}};
    enum { DRAWS = 20000 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sluice_sampling p;
        sluice_sampling_init(&p);
        p.temperature = cases[c].temperature;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        p.top_k = cases[c].top_k < V ? cases[c].top_k : 0;
        double prob[V];
        define(&p, prob);
        p.top_k = cases[c].top_k;
        int count[V] = {0};
        for (int i = 0; i < DRAWS; i++) {
            p.seed = (uint64_t)i / 100;
            int32_t id = draw(&p, i % 100);
            assert_in_range(id, 0, V - 1);
            count[id]++;
        }
        for (int i = 0; i < V; i++) {
            double expected = prob[i] * DRAWS, sigma = sqrt(expected * (1 - prob[i])) + 1;
            if (fabs(count[i] - expected) > 5 * sigma || (prob[i] == 0 && count[i]))
                fail_msg("case %zu: token %d drawn %d times, expected %.1f", c, i, count[i], expected);
        }
    }
}

static void greedy_takes_the_lowest_id_of_equals(void **state)
{
    (void)state;
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    struct sample_scratch scratch;
    sample_scratch_init(&scratch, V);
    struct sampler *s = sampler_create(&p, V, NULL, 0);
    float logits[V] = {0};
    logits[7] = logits[3] = 2;
    assert_int_equal(sampler_pick(s, logits, 0, &scratch), 3);
    for (int i = 0; i < V; i++)
        logits[i] = NAN;
    assert_int_equal(sampler_pick(s, logits, 0, &scratch), -1);
    sampler_free(s);
    sample_scratch_free(&scratch);
}

static void masks_biases_and_minimum_length(void **state)
{
    (void)state;
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    float logits[V];
    fill(logits);
    struct sluice_prob best[2];
    sample_logprobs(logits, V, 0, 1, best, NULL);
    int32_t top = best[1].id;
    assert_int_equal(draw(&p, 0), top);

    p.stop_ids = &top;
    p.n_stop_ids = 1;
    p.min_tokens = 3;
    assert_int_not_equal(draw(&p, 2), top);
    assert_int_equal(draw(&p, 3), top);
    p.min_tokens = 0;

    struct sluice_bias bias[] = {{11, 100}, {12, 50}};
    p.logit_bias = bias;
    p.n_logit_bias = 2;
    assert_int_equal(draw(&p, 0), 11);
    int32_t allowed[] = {12, 30};
    p.allowed_ids = allowed;
    p.n_allowed_ids = 2;
    assert_int_equal(draw(&p, 0), 12);
    bias[1].bias = -INFINITY;
    bias[0].id = 30;
    bias[0].bias = -INFINITY;
    assert_int_equal(draw(&p, 0), 12); /* all masked: the lowest allowed */
}

static void penalties_follow_their_formulas(void **state)
{
    (void)state;
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.repetition_penalty = 2;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    p.max_tokens = 10;
    const int32_t prompt[] = {1, 2, 2};
    struct sample_scratch scratch;
    sample_scratch_init(&scratch, V);
    struct sampler *s = sampler_create(&p, V, prompt, 3);
    sampler_accept(s, 2);
    sampler_accept(s, 4);
    sampler_accept(s, 4);
    float logits[V];
    for (int i = 0; i < V; i++)
        logits[i] = i % 2 ? -1.0f : 1.0f;
    sampler_pick(s, logits, 0, &scratch);
    assert_float_equal(logits[0], 1, 1e-6);
    assert_float_equal(logits[1], -2, 1e-6);                  /* prompt only: repetition, negative logit */
    assert_float_equal(logits[2], 0.5f - 0.5f - 0.25f, 1e-6); /* prompt and answer once */
    assert_float_equal(logits[4], 0.5f - 0.5f - 0.5f, 1e-6);  /* answer twice */
    sampler_free(s);
    sample_scratch_free(&scratch);
}

static void logprobs_are_sorted_and_normalised(void **state)
{
    (void)state;
    float logits[V];
    fill(logits);
    struct sluice_prob out[V + 1];
    int rank;
    sample_logprobs(logits, V, 17, V, out, &rank);
    double sum = 0;
    for (int i = 1; i <= V; i++) {
        sum += exp((double)out[i].logprob);
        assert_true(i == 1 || out[i].logprob <= out[i - 1].logprob);
        if (out[i].id == 17) {
            assert_int_equal(rank, i);
            assert_true(out[i].logprob == out[0].logprob);
        }
    }
    assert_float_equal(sum, 1, 1e-5);
    /* of given ids: the same values, in the order asked for */
    const int32_t ids[] = {V - 1, 0, 17, 0};
    struct sluice_prob some[5];
    int again;
    sample_logprobs_of(logits, V, 17, ids, 4, some, &again);
    assert_int_equal(again, rank);
    for (int i = 0; i < 5; i++) {
        int32_t id = i ? ids[i - 1] : 17;
        assert_int_equal(some[i].id, id);
        for (int j = 1; j <= V; j++)
            assert_true(out[j].id != id || out[j].logprob == some[i].logprob);
    }
}

static void random_numbers_depend_on_seed_and_position_only(void **state)
{
    (void)state;
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    p.temperature = 1;
    int same = 0;
    for (int i = 0; i < 200; i++) {
        p.seed = 5;
        int32_t a = draw(&p, i), b = draw(&p, i);
        assert_int_equal(a, b);
        p.seed = 6;
        same += draw(&p, i) == a;
    }
    assert_true(same < 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_equals),
        cmocka_unit_test(masks_biases_and_minimum_length),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(logprobs_are_sorted_and_normalised),
        cmocka_unit_test(random_numbers_depend_on_seed_and_position_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
