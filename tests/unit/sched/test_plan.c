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
    struct dtypes types;
    return dtypes_choose(m->file, o, &types, &e) || plan_make(m->m, o, &types, 1, p, &e) ? -1 : 0;
}

static size_t sum(const struct sluice_plan *p)
{
    return p->weights + p->kv_pool + p->bookkeeping + p->state + p->state_cache + p->scratch + p->logits +
           p->swap;
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

/* Bytes that a block of 16 tokens takes, with what is remembered of it. */
static size_t block_cost(const struct sluice_plan *p)
{
    return 16 * p->kv_bytes_per_token + p->bookkeeping / (size_t)p->kv_blocks;
}

/* A grant in which about 50 requests' states and logits fit. */
static size_t room_for_50(const struct opened *m)
{
    struct sluice_plan p;
    struct sluice_options o = granted((size_t)2 << 30);
    o.max_num_seqs = 50;
    assert_int_equal(make(m, &o, &p), 0);
    assert_int_equal(p.max_num_seqs, 50);
    return p.total - p.kv_pool - p.bookkeeping - p.state_cache + 2 * block_cost(&p) + 100;
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
        size_t block = block_cost(&p);
        assert_int_equal(p.kv_blocks, o.kv_cache_bytes / (16 * p.kv_bytes_per_token));
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
        {{.kv_dtype = "fp8"}, "--kv-cache-dtype: there is no \"fp8\" here: use auto (float16)"},
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

/* A refusal names, for each setting by itself, the largest value that fits: that one does, one more does not.
 */
static void test_refusals_name_what_fits(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_OFF);
    struct opened m = open_model("models/qwen35-tiny");
    struct sluice_options base = granted((size_t)64 << 20);
    struct sluice_options o;
    const struct {
        const char *name;
        int *number;
        size_t *bytes;
        size_t ask;
    } knobs[] = {
        {"max-model-len", &o.max_model_len, NULL, 4096},
        {"num-gpu-blocks-override", &o.num_kv_blocks, NULL, 1 << 20},
        {"kv-cache-memory-bytes", NULL, &o.kv_cache_bytes, (size_t)1 << 30},
        {"state-cache-memory-bytes", NULL, &o.state_cache_bytes, (size_t)1 << 30},
        {"max-num-batched-tokens", &o.max_num_batched_tokens, NULL, 1 << 18},
    };
    for (size_t i = 0; i < sizeof knobs / sizeof knobs[0]; i++) {
        struct sluice_plan p;
        o = base;
        o.max_num_seqs = 1;
        assert_int_equal(make(&m, &o, &p), 0);
        /* Room for 100 blocks, less than a request at its longest; or for few states. */
        size_t blocks = knobs[i].bytes == &o.state_cache_bytes ? 2 : 100;
        o = granted(p.total - p.kv_pool - p.bookkeeping + blocks * block_cost(&p) +
                    3 * p.state_bytes_per_seq);
        o.no_prefix_cache = blocks == 100;
        o.max_num_seqs = 1;
        if (knobs[i].number)
            *knobs[i].number = (int)knobs[i].ask;
        else
            *knobs[i].bytes = knobs[i].ask;
        assert_int_equal(make(&m, &o, &p), -1);
        char words[64];
        snprintf(words, sizeof words, "--%s ", knobs[i].name);
        const char *at = strstr(e.msg, words);
        if (!at)
            fail_msg("expected \"%s\", got: %s", words, e.msg);
        unsigned long long value, now;
        assert_int_equal(sscanf(at + strlen(words), "%llu (now %llu)", &value, &now), 2);
        assert_int_equal(now, knobs[i].ask);
        for (int more = 0; more < 2; more++) {
            if (knobs[i].number)
                *knobs[i].number = (int)value + more;
            else
                *knobs[i].bytes = (size_t)value + (size_t)more;
            assert_int_equal(make(&m, &o, &p), more ? -1 : 0);
        }
    }
    o = base;
    o.max_num_seqs = 1;
    o.max_model_len = 4096;
    o.kv_dtype = "float32";
    struct sluice_plan p;
    o.memory_utilization = 0.5;
    assert_int_equal(make(&m, &o, &p), 0);
    o = granted(p.total - p.kv_pool / 4);
    o.max_num_seqs = 1;
    o.max_model_len = 4096;
    o.kv_dtype = "float32";
    refused(&m, &o, "--kv-cache-dtype int8_per_token_head (now float32)");
    o.kv_dtype = "int8_per_token_head";
    assert_int_equal(make(&m, &o, &p), 0);
    close_model(&m);
    log_set_level(LOG_LEVEL_INFO);
}

/* Types by vLLM's names and the short ones; bytes follow them. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *name, *means;
        int bits;
    } kv[] = {
        {NULL, "float16", 16},
        {"auto", "float16", 16},
        {"float16", "float16", 16},
        {"fp16", "float16", 16},
        {"bf16", "bfloat16", 16},
        {"bfloat16", "bfloat16", 16},
        {"fp32", "float32", 32},
        {"float32", "float32", 32},
        {"int8", "int8_per_token_head", 8},
        {"q8_0", "int8_per_token_head", 8},
    };
    struct opened m = open_model("models/qwen35-tiny");
    const struct model_config *c = model_config(m.m);
    size_t rows = 2 * (size_t)(c->n_kv_layers * c->n_kv_heads);
    struct sluice_plan p;
    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++) {
        struct sluice_options o = {.max_num_seqs = 2, .kv_dtype = kv[i].name};
        assert_int_equal(make(&m, &o, &p), 0);
        assert_string_equal(p.kv_dtype, kv[i].means);
        assert_int_equal(p.kv_bytes_per_token,
                         rows * (size_t)(c->head_dim * kv[i].bits / 8 + (kv[i].bits == 8 ? 4 : 0)));
        assert_int_equal(p.kv_bytes_per_token_8bit, rows * (size_t)(c->head_dim + 4));
        assert_string_equal(p.state_dtype, "float32");
    }
    struct sluice_plan only;
    struct sluice_info info;
    struct sluice_options o = {.max_num_seqs = 2};
    assert_int_equal(sluice_plan_only(m.file, &o, &p, &info, &e), 0);
    o.state_dtype = o.conv_dtype = "bfloat16";
    assert_int_equal(sluice_plan_only(m.file, &o, &only, &info, &e), 0);
    assert_int_equal(2 * only.state_bytes_per_seq, p.state_bytes_per_seq);
    assert_string_equal(only.conv_dtype, "bfloat16");
    /* --dtype: the file's own, or float32, which decides what auto is for keys and values. */
    static const char *const types[] = {"float16", "bfloat16", "float32", "half", "float", "auto"};
    int taken = 0;
    for (size_t i = 0; i < 6; i++) {
        o = (struct sluice_options){.max_num_seqs = 2, .dtype = types[i]};
        if (sluice_plan_only(m.file, &o, &p, &info, &e)) {
            assert_non_null(strstr(e.msg, "weights keep the type of their file"));
            continue;
        }
        taken++;
        assert_string_equal(p.kv_dtype, i == 5   ? "float16"
                                        : i == 3 ? "float16"
                                        : i == 4 ? "float32"
                                                 : types[i]);
        o.kv_dtype = "int8";
        assert_int_equal(sluice_plan_only(m.file, &o, &p, &info, &e), 0);
        assert_string_equal(p.kv_dtype, "int8_per_token_head");
    }
    assert_in_range(taken, 3, 4); /* float32, float, auto, and the file's if that is of 16 bits */
    close_model(&m);
}

/* As many blocks as were asked for, whatever the requests could use; a length of auto is what fits. */
static void test_blocks_and_length(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_OFF);
    struct opened m = open_model("models/llama-tiny");
    struct sluice_plan p;
    struct sluice_options o = {
        .max_num_seqs = 1, .max_model_len = 64, .num_kv_blocks = 1000, .block_size = 32};
    assert_int_equal(make(&m, &o, &p), 0);
    assert_int_equal(p.kv_blocks, 1000);
    assert_int_equal(p.kv_pool, 1000 * 32 * p.kv_bytes_per_token);
    assert_int_equal(p.max_model_len, 64);
    o = granted((size_t)1 << 30);
    o.max_num_seqs = 1;
    o.num_kv_blocks = 7;
    assert_int_equal(make(&m, &o, &p), 0);
    assert_int_equal(p.max_model_len, 7 * 16);
    o = granted(p.total + 5 * block_cost(&p) + 10);
    o.max_num_seqs = 1;
    assert_int_equal(make(&m, &o, &p), 0);
    assert_int_equal(p.max_model_len, 12 * 16);
    assert_int_equal(p.kv_blocks, 12);
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
        cmocka_unit_test(test_refusals_name_what_fits),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_blocks_and_length),
        cmocka_unit_test(test_plan_only_is_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
