/* The metrics page: every family is well formed, histograms are cumulative, and what was counted is shown. */
#include "http/metrics.h"
#include "unit.h"

static double value_of(const char *page, const char *series)
{
    const char *at = page;
    size_t n = strlen(series);
    while ((at = strstr(at, series))) {
        if ((at == page || at[-1] == '\n') && at[n] == ' ')
            return strtod(at + n, NULL);
        at += n;
    }
    fail_msg("no series %s", series);
    return 0;
}

static char *page_of(const struct metrics *m, const struct sluice_stats *stats, const char *name)
{
    static const char *const routes[] = {"/v1/completions"};
    struct sluice_plan plan = {.kv_blocks = 50, .block_size = 16, .max_model_len = 256};
    const struct metrics_page page = {.model_name = name,
                                      .routes = routes,
                                      .n_routes = 1,
                                      .stats = stats,
                                      .plan = &plan,
                                      .read_bandwidth = 100,
                                      .started = 1000};
    struct str out = {0};
    metrics_write(m, &page, &out);
    return str_take(&out);
}

static void test_page(void **state)
{
    (void)state;
    struct metrics m;
    metrics_init(&m, 2048, NULL);
    struct sluice_stats s = {.running = 3, .waiting = 2, .kv_blocks_used = 10, .kv_blocks = 50, .steps = 4};
    s.prompt_tokens = 100;
    s.prompt_tokens_cached = 30;
    s.prompt_tokens_disk = 10;
    s.waiting_for_disk = 1;
    s.offload.found_tokens = 12;
    s.offload.missed_damaged = 4;
    s.last.weight_bytes = 50;
    s.last.seconds = 1;
    s.looked_up_tokens = 250; /* of prompts that are not all computed yet */
    s.cached_tokens = 130;
    s.refused = 6;
    s.generation_tokens = 40;
    s.total.prompt_tokens = 100;
    s.total.decode_tokens = 20;
    s.total.weight_bytes = 12345678901234u;
    metrics_add_steps(&m, &s);
    histogram_add(&m.ttft, 0.03, 1);
    histogram_add(&m.ttft, 1e9, 1);
    histogram_add(&m.gap, 0.01, 3);
    metrics_add_answer(&m, &(struct finished_answer){.reason = FINISHED_LENGTH,
                                                     .arrived = 10,
                                                     .queued = 10.1,
                                                     .scheduled = 10.2,
                                                     .first_token = 10.5,
                                                     .last_token = 11.5,
                                                     .prompt_tokens = 7,
                                                     .tokens = 11,
                                                     .max_tokens = 11,
                                                     .n = 1});
    for (int i = 0; i < 9; i++)
        metrics_add_reply(&m, 0, true, 200, 0.3, 10, 1000);
    char *page = page_of(&m, &s, "a\"b\\c");
#define L "{model_name=\"a\\\"b\\\\c\",engine=\"0\""
    assert_true(value_of(page, "vllm:num_requests_running" L "}") == 3);
    assert_true(value_of(page, "vllm:num_requests_waiting" L "}") == 2);
    assert_true(value_of(page, "vllm:kv_cache_usage_perc" L "}") == 0.2);
    assert_true(value_of(page, "vllm:prompt_tokens_total" L "}") == 100);
    assert_true(value_of(page, "vllm:prompt_tokens_cached_total" L "}") == 30);
    assert_true(value_of(page, "vllm:prompt_tokens_by_source_total" L ",source=\"local_compute\"}") == 70);
    assert_true(value_of(page, "vllm:prompt_tokens_by_source_total" L ",source=\"local_cache_hit\"}") == 20);
    assert_true(value_of(page, "vllm:prefix_cache_queries_total" L "}") == 250);
    assert_true(value_of(page, "vllm:prefix_cache_hits_total" L "}") == 130);
    assert_true(value_of(page, "vllm:admission_rejections_total{model_name=\"a\\\"b\\\\c\","
                               "reason=\"max_num_queued_reqs\"}") == 6);
    assert_true(value_of(page, "vllm:generation_tokens_total" L "}") == 40);
    assert_true(value_of(page, "vllm:request_success_total" L ",finished_reason=\"length\"}") == 1);
    assert_true(value_of(page, "vllm:request_success_total" L ",finished_reason=\"stop\"}") == 0);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" L ",le=\"0.02\"}") == 0);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" L ",le=\"0.04\"}") == 1);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" L ",le=\"2560.0\"}") == 1);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" L ",le=\"+Inf\"}") == 2);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_count" L "}") == 2);
    assert_true(value_of(page, "vllm:inter_token_latency_seconds_bucket" L ",le=\"0.01\"}") ==
                3); /* le is <= */
    assert_true(value_of(page, "vllm:e2e_request_latency_seconds_sum" L "}") == 1.5);
    assert_true(value_of(page, "vllm:request_decode_time_seconds_sum" L "}") == 1);
    assert_true(value_of(page, "vllm:request_time_per_output_token_seconds_bucket" L ",le=\"0.1\"}") == 1);
    assert_true(value_of(page, "vllm:request_prompt_tokens_bucket" L ",le=\"5.0\"}") == 0);
    assert_true(value_of(page, "vllm:request_prompt_tokens_bucket" L ",le=\"10.0\"}") == 1);
    assert_true(value_of(page, "vllm:request_prompt_tokens_bucket" L ",le=\"2000.0\"}") == 1);
    assert_null(strstr(page, "le=\"5000.0\"")); /* beyond the context */
    assert_true(value_of(page, "vllm:iteration_tokens_total_bucket" L ",le=\"32.0\"}") ==
                4); /* 120 tokens, 4 steps */
    assert_true(value_of(page, "sluice:weight_bytes_total" L "}") == 12345678901234.0);
    assert_true(
        value_of(page, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}") ==
        9);
    assert_true(value_of(page,
                         "http_request_duration_seconds_bucket{handler=\"/v1/completions\",method=\"POST\","
                         "le=\"0.5\"}") == 9);
    assert_true(value_of(page, "http_request_duration_highr_seconds_count") == 9);
    assert_true(value_of(page, "http_request_size_bytes_sum{handler=\"/v1/completions\"}") == 90);
    assert_true(value_of(page, "http_response_size_bytes_sum{handler=\"/v1/completions\"}") == 9000);
    assert_true(value_of(page, "vllm:prompt_tokens_by_source_total" L ",source=\"external_kv_transfer\"}") ==
                10);
    assert_true(value_of(page, "vllm:prompt_tokens_cached_by_source_total" L ",source=\"device\"}") == 20);
    assert_true(value_of(page, "vllm:prompt_tokens_cached_by_source_total" L ",source=\"disk\"}") == 10);
    assert_true(value_of(page, "vllm:external_prefix_cache_hits_total" L "}") == 12);
    assert_true(value_of(page, "vllm:num_requests_waiting_by_reason" L ",reason=\"deferred\"}") == 1);
    assert_true(value_of(page, "sluice:kv_offload_misses_total" L ",reason=\"damaged\"}") == 4);
    assert_non_null(strstr(page, "block_size=\"16\",num_gpu_blocks=\"50\""));
    assert_non_null(strstr(page, "kv_cache_max_concurrency=\"3.12\""));
    assert_true(value_of(page, "sluice:last_step_share_of_read_limit" L "}") == 0.5);
    assert_true(value_of(page, "process_resident_memory_bytes") > 1e6);
    assert_true(value_of(page, "process_open_fds") >= 3);
    free(page);
}

/* Each sample follows a # TYPE of its family, names are legal, buckets never fall. */
static void test_format(void **state)
{
    (void)state;
    struct metrics m;
    metrics_init(&m, 100, NULL);
    for (int i = 0; i < 1000; i++) {
        histogram_add(&m.ttft, i * 0.01, 1);
        histogram_add(&m.prompt_tokens, i, 1);
    }
    for (int i = 0; i < 100; i++)
        metrics_add_reply(&m, 0, i % 2, i % 3 ? 200 : 404, i * 0.05, 100, 200);
    struct sluice_stats s = {0};
    char *page = page_of(&m, &s, "x");
    char family[128] = "", type[32] = "";
    double last_bucket = -1;
    for (char *line = strtok(page, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (strncmp(line, "# TYPE ", 7) == 0) {
            assert_int_equal(sscanf(line + 7, "%127s %31s", family, type), 2);
            last_bucket = -1;
            continue;
        }
        size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:");
        assert_true(line[n] == '{' || line[n] == ' ');
        assert_memory_equal(line, family, strlen(family));
        const char *suffix = line + strlen(family);
        double value = strtod(strrchr(line, ' '), NULL);
        if (strcmp(type, "histogram") == 0) {
            assert_true(strncmp(suffix, "_bucket{", 8) == 0 || strncmp(suffix, "_sum", 4) == 0 ||
                        strncmp(suffix, "_count", 6) == 0);
            if (suffix[1] == 'b') {
                assert_true(value >= last_bucket);
                last_bucket = value;
            } else if (suffix[1] == 'c') {
                assert_true(value == last_bucket);
                last_bucket = -1; /* of the next labels */
            }
        } else if (strcmp(type, "summary") == 0) {
            assert_true(strncmp(suffix, "_sum{", 5) == 0 || strncmp(suffix, "_count{", 7) == 0);
        } else {
            assert_int_equal(n, strlen(family));
        }
    }
    free(page);
}

/* --disable-log-stats: only what belongs to the process and to HTTP is left. */
static void test_without_engine(void **state)
{
    (void)state;
    struct metrics m;
    metrics_init(&m, 100, NULL);
    struct sluice_stats s = {0};
    struct sluice_plan plan = {0};
    const struct metrics_page page = {.model_name = "x", .stats = &s, .plan = &plan, .no_engine = true};
    struct str out = {0};
    metrics_write(&m, &page, &out);
    assert_null(strstr(out.data, "vllm:"));
    assert_null(strstr(out.data, "sluice:"));
    assert_true(value_of(out.data, "http_request_duration_highr_seconds_count") == 0);
    str_free(&out);
}

static void test_custom_buckets(void **state)
{
    (void)state;
    struct metrics m;
    struct metrics_buckets b;
    struct err e = {0};
    assert_int_equal(metrics_buckets_parse(&b,
                                           "{\"vllm:time_to_first_token_seconds\": [0.5, 2], "
                                           "\"request_params_n\": [3]}",
                                           &e),
                     0);
    metrics_init(&m, 100, &b);
    histogram_add(&m.ttft, 1, 1);
    histogram_add(&m.params_n, 4, 1);
    struct sluice_stats s = {0};
    char *page = page_of(&m, &s, "x");
#define X "{model_name=\"x\",engine=\"0\",le="
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" X "\"0.5\"}") == 0);
    assert_true(value_of(page, "vllm:time_to_first_token_seconds_bucket" X "\"2.0\"}") == 1);
    assert_true(value_of(page, "vllm:request_params_n_bucket" X "\"3.0\"}") == 0);
    assert_true(value_of(page, "vllm:request_params_n_bucket" X "\"+Inf\"}") == 1);
    assert_null(strstr(page, "time_to_first_token_seconds_bucket" X "\"0.001\"}"));
    assert_non_null(strstr(page, "inter_token_latency_seconds_bucket" X "\"0.01\"}"));
    free(page);
    static const char *const wrong[] = {
        "",
        "[]",
        "{\"ttft\": 1}",
        "{\"request_params_n\": []}",
        "{\"request_params_n\": [2, 1]}",
        "{\"request_params_n\": [1, 1]}",
        "{\"request_params_n\": [\"1\"]}",
        "{\"request_params_n\": {}}",
        "{\"request_params_n\": "
        "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,"
        "31,32,33]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e.msg[0] = '\0';
        assert_int_equal(metrics_buckets_parse(&b, wrong[i], &e), -1);
        assert_true(e.msg[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page), cmocka_unit_test(test_format),
                                       cmocka_unit_test(test_without_engine),
                                       cmocka_unit_test(test_custom_buckets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
