/* `sluice serve MODEL`: the HTTP server. The port is bound first, so that one in use fails at once; the model
 * is then loaded by a thread of its own while the server already answers (503, loading). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/responses_store.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/http_options.h"
#include "cli/options.h"
#include "cli/served_model.h"
#include "http/metrics.h"
#include "http/server.h"
#include "ops/cpu/limits.h"

struct serve {
    struct served_model model;
    bool measure_limits;
    struct server *server;
    _Atomic bool loaded; /* the thread below is done */
};

/* Opens, loads and attaches. Ends the server with a status when something fails. */
static void *load_main(void *arg)
{
    struct serve *s = arg;
    struct served_model *m = &s->model;
    struct err e = {0};
    if (served_model_load("serve", m))
        goto fail;
    if (s->measure_limits) {
        struct cpu_limits limits;
        int threads = sluice_plan(m->engine)->threads;
        if (cpu_limits_measure(m->engine_options.cpu_level, threads, &limits, &e)) {
            log_warn("the machine's limits cannot be measured: %s", e.msg);
        } else {
            log_info("this machine reads %.1f GB/s with %d threads", limits.read_gbs, threads);
            server_set_read_bandwidth(s->server, limits.read_gbs * 1e9);
        }
    }
    if (server_attach(s->server, &m->api, &e)) {
        fprintf(stderr, "sluice serve: %s\n", e.msg);
        goto fail;
    }
    log_info("serving %s at %s", m->api.names[0], server_url(s->server));
    log_info("Application startup complete.");
    s->loaded = true;
    return NULL;
fail:
    s->loaded = true;
    server_stop(s->server, EXIT_FAILED);
    return NULL;
}

int cmd_serve(int argc, char **argv)
{
    struct serve s = {0};
    served_model_init(&s.model);
    struct server_options server;
    server_options_init(&server);
    struct sluice_options *engine = &s.model.engine_options;
    struct http_options http;
    http_options_init(&http);
    bool disable_log_stats = false;
    const char *buckets_json = NULL;
    struct metrics_buckets buckets;
    uint64_t max_body = server.max_body_bytes, responses_bytes = 0;
    const char *policy = "fcfs", *config = NULL;
    const struct option_spec options[] = {
        {.group = "Server"},
        {.name = "config",
         .text = &config,
         .value = "FILE.yaml",
         .help = "options from a file: keys are their names, and the command line wins"},
        {.name = "model", .text = &s.model.path, .value = "MODEL", .help = "the same as the word MODEL"},
        {.name = "host",
         .text = &server.host,
         .initial = "all interfaces",
         .value = "NAME",
         .help = "address to listen on"},
        {.name = "port",
         .num = &server.port,
         .min = 0,
         .max = 65535,
         .value = "N",
         .help = "TCP port; 0 = a free one"},
        {.name = "uds", .text = &server.uds, .value = "PATH", .help = "listen on a Unix socket instead"},
        {.name = "api-key",
         .list = &http.keys,
         .initial = "SLUICE_API_KEY or VLLM_API_KEY",
         .value = "KEY",
         .help = "requests to /v1 must carry one of these keys (Authorization: Bearer KEY)"},
        HTTP_OPTIONS(http, server),
        {.group = "Answers"},
        ANSWER_OPTIONS(s.model),
        {.name = "stream-interval",
         .num = &s.model.api.stream_interval,
         .min = 1,
         .max = 1e9,
         .initial = "1",
         .value = "N",
         .help = "tokens an event of a stream, at least; the first and the last never wait"},
        {.name = "enable-force-include-usage",
         .flag = &s.model.api.force_usage,
         .help = "streams tell their usage in every event, as if all requests asked for it"},
        {.name = "responses-store-bytes",
         .big = &responses_bytes,
         .max = 1e12,
         .initial = "0 = none; 256 MiB with SLUICE_ENABLE_RESPONSES_API_STORE=1",
         .value = "N",
         .help = "answers of /v1/responses kept in memory, for previous_response_id, background and GET"},
        {.group = "Limits"},
        {.name = "max-body-bytes",
         .big = &max_body,
         .min = 1024,
         .max = 1e12,
         .value = "N",
         .help = "of one request"},
        {.name = "max-connections",
         .num = &server.max_connections,
         .min = 1,
         .max = 1000000,
         .value = "N",
         .help = "clients connected at once"},
        {.name = "keep-alive-timeout",
         .real = &server.keep_alive_seconds,
         .min = 0.1,
         .max = 86400,
         .given = &http.keep_alive_given,
         .value = "S",
         .help = "seconds after which an idle connection is closed"},
        {.name = "shutdown-timeout",
         .real = &server.shutdown_seconds,
         .min = 0,
         .max = 86400,
         .value = "S",
         .help =
             "seconds that requests may go on after SIGTERM or Ctrl-C; a second signal ends them at once"},
        {.name = "engine-stall-timeout",
         .real = &server.stall_seconds,
         .min = 0.1,
         .max = 86400,
         .value = "S",
         .help = "/health fails when a busy engine has ended no step for so long"},
        {.group = "Log"},
        {.name = "enable-log-requests",
         .flag = &server.log_requests,
         .help = "a line for each request, without its text"},
        HTTP_LOG_OPTIONS(http, server),
        {.name = "disable-log-stats",
         .flag = &disable_log_stats,
         .help =
             "no lines of throughput (else every 10 seconds, or SLUICE_LOG_STATS_INTERVAL), and no series of "
             "the engine and its requests in /metrics"},
        {.name = "custom-histogram-buckets",
         .text = &buckets_json,
         .initial = "vLLM's",
         .value = "JSON",
         .help = "bounds of histograms in /metrics: {\"time_to_first_token_seconds\": [0.1, 1, 10], …}"},
        {.name = "measure-limits",
         .flag = &s.measure_limits,
         .help = "measure the memory's read bandwidth at the start (a second), so that the throughput lines "
                 "say how much of it is used"},
        {.name = "enable-request-id-headers",
         .flag = &server.request_id_headers,
         .help = "replies carry X-Request-Id"},
        {.name = "trace",
         .text = &engine->trace_path,
         .value = "FILE",
         .help = "write a timeline of steps and requests for Perfetto or chrome://tracing"},
        {.group = "Scheduler"},
        POOL_OPTIONS(*engine, s.model.kv_bytes),
        SWAP_OPTION(s.model.swap_gib),
        {.name = "long-prefill-token-threshold",
         .num = &engine->long_prefill_threshold,
         .min = 0,
         .initial = "none",
         .value = "N",
         .help = "the most tokens of one prompt in a step that others share"},
        {.name = "max-num-prefills",
         .num = &engine->max_prefills,
         .min = 0,
         .initial = "no cap",
         .value = "N",
         .help = "prompts computed in one step"},
        {.name = "scheduling-policy",
         .text = &policy,
         .choices = "fcfs|priority",
         .value = "P",
         .help = "who goes first: by arrival, or by the request's priority field (lower first)"},
        {.name = "max-num-queued-reqs",
         .num = &engine->max_queued,
         .min = 0,
         .initial = "no bound",
         .value = "N",
         .help = "requests that may wait; more get 503 with Retry-After"},
        {.name = "max-queue",
         .num = &engine->max_queued,
         .min = 0,
         .initial = "no bound",
         .value = "N",
         .help = "another name of --max-num-queued-reqs"},
        {.name = "max-num-queued-tokens",
         .num = &engine->max_queued_tokens,
         .min = 0,
         .initial = "no bound",
         .value = "N",
         .help = "prompt tokens that may wait to be computed; a prompt that would make it more gets 503 "
                 "with Retry-After, unless none wait"},
        PREFIX_CACHE_OPTIONS(s.model),
        DISK_CACHE_OPTIONS(*engine),
        ENGINE_OPTIONS(*engine),
        GONE_OPTIONS,
        {0},
    };
    const struct option_positional words[] = {
        {"MODEL", &s.model.path, true, "a .gguf file or a Hugging Face directory"}, {0}};
    const struct option_command command = {
        "serve", "Serves a model over HTTP with the OpenAI API. Stops with SIGTERM or Ctrl-C.", words,
        options};
    struct err e = {0};
    struct expanded words_of_both;
    if (config_expand(argc, argv, &words_of_both, &e))
        return options_usage_error(&command, "%s", e.msg);
    int status = options_parse(&command, words_of_both.argc, words_of_both.argv);
    if (status < 0)
        status = http_options_finish(&http, &command, &server);
    if (status < 0 && buckets_json && metrics_buckets_parse(&buckets, buckets_json, &e))
        status = options_usage_error(&command, "--custom-histogram-buckets: %s", e.msg);
    if (status >= 0)
        goto free_options;
    engine->priority_scheduling = strcmp(policy, "priority") == 0;
    struct api_limits *limits = &s.model.api.limits;
    limits->max_prompts = (int)environment_number("MAX_COMPLETION_PROMPTS", 1, 1e6, limits->max_prompts);
    limits->max_choices = (int)environment_number("MAX_N_SEQUENCES", 1, 1e6, limits->max_choices);
    s.model.api.any_name = environment_number("SKIP_MODEL_NAME_VALIDATION", 0, 1, 0) > 0;
    /* all answers to a request wait at first: more than may wait would get "try again later" for ever */
    int *max_choices = &s.model.api.limits.max_choices;
    if (engine->max_queued > 0 && engine->max_queued < *max_choices)
        *max_choices = engine->max_queued;
    if (responses_bytes == 0 && environment_number("ENABLE_RESPONSES_API_STORE", 0, 1, 0) == 1)
        responses_bytes = (uint64_t)256 << 20;
    if (responses_bytes > 0)
        s.model.api.responses = response_store_create(responses_bytes);
    server.max_body_bytes = max_body;
    server.no_engine_metrics = disable_log_stats;
    server.buckets = buckets_json ? &buckets : NULL;
    server.stats_seconds = disable_log_stats ? 0 : environment_number("LOG_STATS_INTERVAL", 0.01, 86400, 10);

    pthread_t loader;
    status = EXIT_FAILED;
    s.server = server_create(&server, &e);
    if (!s.server) {
        fprintf(stderr, "sluice serve: %s\n", e.msg);
        goto done;
    }
    if (!server.uds && (!server.host || !server.host[0]) && http.keys.n == 0)
        log_warn("listening on all interfaces without a key: --host 127.0.0.1 keeps it to this machine, "
                 "--api-key asks "
                 "for a key");
    log_info("listening at %s, loading %s", server_url(s.server), s.model.path);
    int rc = pthread_create(&loader, NULL, load_main, &s);
    if (rc) {
        fprintf(stderr, "sluice serve: the system refused a thread: %s\n", strerror(rc));
        goto done;
    }
    status = server_run(s.server);
    if (!s.loaded) /* stopped while loading: nothing to keep, and the loader cannot be interrupted */
        _exit(status);
    pthread_join(loader, NULL);
done:
    /* the engine first: until it is closed, its thread may wake the server */
    sluice_close(s.model.engine);
    s.model.engine = NULL;
    server_free(s.server);
    response_store_free(s.model.api.responses);
    served_model_free(&s.model);
free_options:
    http_options_free(&http);
    expanded_free(&words_of_both);
    return status;
}
