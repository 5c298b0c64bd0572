/* The memory plan: parts that add up, the largest number of requests that fits, a default that leaves room
 * for the KV pool, refusals that say what would fit, and the same plan with and without loading. */
#include "unit.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/plan.h"
#include "sluice.h"

static struct err e;

struct opened {
    struct model_file *file;
    struct backend *b;
    struct model *m;
};

static struct opened open_model(const char *name)
{
    struct opened o = {.file = model_file_open(fixture(name), &e)};
    o.b = backend_cpu("reference", 1, &e);
    o.m = o.file && o.b ? model_open(o.file, o.b, 0, &e) : NULL;
    if (!o.m)
        fail_msg("%s", e.msg);
    return o;
}

static void close_model(struct opened *o)
{
    model_free(o->m);
    o->b->ops->destroy(o->b);
    model_file_close(o->file);
}

static int make(const struct opened *m, const struct sluice_options *o, struct sluice_plan *p)
{
    enum dtype kv;
    return plan_make(m->m, o, 1, p, &kv, &e);
}

static size_t sum(const struct sluice_plan *p)
{
    return p->weights + p->kv_pool + p->state + p->state_cache + p->scratch + p->logits + p->swap;
}

/* Options under which exactly `bytes` are granted, give or take a rounding. */
static struct sluice_options granted(size_t bytes)
{
    return (struct sluice_options){.memory_utilization = (double)bytes / (double)mem_total(),
                                   .max_num_batched_tokens = 256,
                                   .no_prefix_cache = true};
}

static const char *const names[] = {"models/llama-tiny", "models/qwen35-tiny", "gguf/qwen35-tiny-q8_0.gguf"};

static void test_parts(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct opened m = open_model(names[k]);
        const struct model_config *c = model_config(m.m);
        struct sluice_plan p;
        struct sluice_options o = {.max_num_seqs = 4, .max_model_len = 512};
        assert_int_equal(make(&m, &o, &p), 0);
        assert_int_equal(p.total, sum(&p));
        assert_true(p.total <= p.available);
        assert_int_equal(p.max_num_seqs, 4);
        assert_int_equal(p.weights, model_weight_bytes(m.m));
        assert_int_equal(p.kv_bytes_per_token, 2 * 2 * c->n_kv_layers * c->n_kv_heads * c->head_dim);
        assert_int_equal(p.kv_blocks, 4 * 512 / 16); /* every request at its longest, and no more */
        assert_int_equal(p.kv_pool, (size_t)p.kv_blocks * 16 * p.kv_bytes_per_token);
        assert_int_equal(p.state_bytes_per_seq, c->state_bytes);
        assert_int_equal(p.state, 4 * p.state_bytes_per_seq);
        assert_int_equal(p.logits, (size_t)plan_max_logits(&p) * (size_t)c->vocab * sizeof(float));
        close_model(&m);
    }
}

/* A grant in which about 50 requests' states and logits fit. */
static size_t room_for_50(const struct opened *m)
{
    struct sluice_plan p;
    struct sluice_options o = granted((size_t)2 << 30);
    o.max_num_seqs = 50;
    assert_int_equal(make(m, &o, &p), 0);
    assert_int_equal(p.max_num_seqs, 50);
    return p.total - p.kv_pool + 2 * 16 * p.kv_bytes_per_token + 100;
}

static void test_clamped_to_the_largest_that_fits(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_OFF);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct opened m = open_model(names[k]);
        struct sluice_plan p;
        struct sluice_options o = granted(room_for_50(&m));
        o.max_num_seqs = 200;
        assert_int_equal(make(&m, &o, &p), 0);
        assert_int_equal(p.max_num_seqs, 50);
        assert_true(p.kv_blocks >= 2);
        o.max_num_seqs = 50;
        assert_int_equal(make(&m, &o, &p), 0);
        assert_int_equal(p.max_num_seqs, 50);
        o.max_num_seqs = 49;
        assert_int_equal(make(&m, &o, &p), 0);
        assert_int_equal(p.max_num_seqs, 49);
        /* A KV pool of a given size comes first, as far as the requests could fill it. */
        o.max_num_seqs = 200;
        o.kv_cache_bytes = 20 * (p.state_bytes_per_seq + 4 * (size_t)model_config(m.m)->vocab);
        assert_int_equal(make(&m, &o, &p), 0);
        size_t one_more = p.state_bytes_per_seq + 4 * (size_t)model_config(m.m)->vocab +
                          4 * (size_t)model_config(m.m)->hidden;
        size_t block = 16 * p.kv_bytes_per_token;
        assert_int_equal(p.kv_pool, o.kv_cache_bytes / block * block);
        assert_in_range(p.max_num_seqs, 2, 49);
        assert_true(p.available - p.total < one_more + block);
        close_model(&m);
    }
    log_set_level(LOG_LEVEL_INFO);
}

static void test_default_leaves_three_quarters(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_OFF);
    struct opened m = open_model("models/qwen35-tiny");
    struct sluice_plan p, more;
    struct sluice_options o = granted(room_for_50(&m));
    assert_int_equal(make(&m, &o, &p), 0);
    size_t left = p.available - p.weights;
    assert_in_range(p.max_num_seqs, 1, 20);
    assert_true(p.max_num_seqs == 1 || p.state + p.logits <= left / 4);
    o.max_num_seqs = p.max_num_seqs + 1; /* asked for, it would fit */
    assert_int_equal(make(&m, &o, &more), 0);
    assert_int_equal(more.max_num_seqs, p.max_num_seqs + 1);
    assert_true(more.state + more.logits > left / 4);
    o = granted((size_t)2 << 30); /* plenty: nothing is lowered */
    assert_int_equal(make(&m, &o, &p), 0);
    assert_int_equal(p.max_num_seqs, 128);
    o.kv_cache_bytes = SIZE_MAX / 2; /* more than all requests could use: what they could */
    assert_int_equal(make(&m, &o, &p), 0);
    assert_int_equal(p.max_num_seqs, 128);
    assert_int_equal(p.kv_blocks, 128 * 4096 / 16);
    o = granted(room_for_50(&m) + (100 << 20));
    o.kv_cache_bytes = SIZE_MAX / 2;
    o.no_prefix_cache = false;
    assert_int_equal(make(&m, &o, &p), 0);
    assert_in_range(p.max_num_seqs, 2, 127);
    assert_int_equal(p.kv_blocks, p.max_num_seqs * 4096 / 16);
    close_model(&m);
    log_set_level(LOG_LEVEL_INFO);
}

static void refused(const struct opened *m, const struct sluice_options *o, const char *words)
{
    struct sluice_plan p;
    assert_int_equal(make(m, o, &p), -1);
    if (!strstr(e.msg, words))
        fail_msg("expected \"%s\", got: %s", words, e.msg);
}

static void test_refusals(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_OFF);
    struct opened m = open_model("models/qwen35-tiny");
    struct sluice_options o = granted(1 << 20);
    refused(&m, &o, "the model needs at least");
    o = granted(room_for_50(&m));
    o.max_model_len = 4096;
    o.kv_dtype = "fp32";
    o.max_num_batched_tokens = 2048; /* scratch that leaves little */
    refused(&m, &o, "--max");
    static const struct {
        struct sluice_options o;
        const char *words;
    } wrong[] = {
        {{.kv_dtype = "fp8"}, "KV cache type \"fp8\" is not one this build has"},
        {{.block_size = -1}, "block size is -1"},
        {{.max_num_seqs = 100000}, "max_num_seqs is 100000"},
        {{.max_num_batched_tokens = -5}, "max_num_batched_tokens is -5"},
        {{.max_model_len = 5000}, "max_model_len 5000 is longer than the model's context of 4096"},
        {{.memory_utilization = 1.5}, "memory utilization 1.5 is above 1"},
        {{.kv_cache_bytes = 10}, "kv_cache_bytes 10 is less than one block"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refused(&m, &wrong[i].o, wrong[i].words);
    close_model(&m);
    log_set_level(LOG_LEVEL_INFO);
}

static void test_plan_only_is_the_plan(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct model_file *f = model_file_open(fixture(names[k]), &e);
        struct sluice_options o = {.threads = 2, .max_num_seqs = 4, .max_model_len = 256};
        struct sluice_plan plan;
        struct sluice_info info;
        assert_int_equal(sluice_plan_only(f, &o, &plan, &info, &e), 0);
        struct sluice *s = sluice_open(f, &o, &e);
        assert_non_null(s);
        struct sluice_plan loaded = *sluice_plan(s);
        loaded.available = plan.available; /* what is free changes by the minute */
        assert_memory_equal(&plan, &loaded, sizeof plan);
        assert_memory_equal(&info, sluice_info(s), sizeof info);
        sluice_close(s);
        o.max_model_len = 1 << 20;
        assert_int_equal(sluice_plan_only(f, &o, &plan, &info, &e), -1);
        model_file_close(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_clamped_to_the_largest_that_fits),
        cmocka_unit_test(test_default_leaves_three_quarters),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_plan_only_is_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
