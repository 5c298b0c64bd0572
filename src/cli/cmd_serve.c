/* `sluice serve MODEL`: the HTTP server. The port is bound first, so that one in use fails at once; the model
 * is then loaded by a thread of its own while the server already answers (503, loading). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "http/server.h"
#include "ops/cpu/limits.h"

#define MAX_TEMPLATE_BYTES ((size_t)1 << 20)

struct serve {
    const char *path; /* of the model */
    const char *template_path, *generation_config;
    struct sluice_options engine_options;
    bool measure_limits;
    struct server *server;
    struct api_model model; /* what the server is given once all is loaded */
    struct sluice *engine;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    _Atomic bool loaded; /* the thread below is done */
};

/* The whole text of a --chat-template FILE. */
static char *read_template(const char *path, size_t *len, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        err_set(e, ERR_IO, "--chat-template: cannot open %s: %m", path);
        return NULL;
    }
    char *text = mem_alloc(MAX_TEMPLATE_BYTES + 1);
    *len = fread(text, 1, MAX_TEMPLATE_BYTES + 1, f);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed || *len > MAX_TEMPLATE_BYTES) {
        err_set(e, ERR_INVALID, "--chat-template: %s %s", path,
                failed ? "cannot be read" : "is larger than a template may be (1 MiB)");
        free(text);
        return NULL;
    }
    return text;
}

/* The template that the command line or the checkpoint gives. None is fine, then only completions work; a
 * checkpoint's that does not parse is warned of and left out, the command line's is an error. */
static int load_template(struct serve *s, const struct model_file *file, struct err *e)
{
    if (s->template_path) {
        size_t len;
        char *text = read_template(s->template_path, &len, e);
        s->template = text ? chat_template_parse(text, len, e) : NULL;
        bool parsed = s->template != NULL;
        if (text && !parsed)
            err_prefix(e, "--chat-template %s", s->template_path);
        free(text);
        return parsed ? 0 : -1;
    }
    if (!file->chat_template) {
        log_warn("the model has no chat template: /v1/chat/completions will refuse (--chat-template FILE "
                 "adds one)");
        return 0;
    }
    s->template = chat_template_parse(file->chat_template, strlen(file->chat_template), e);
    if (!s->template)
        log_warn("the model's chat template is not usable, so /v1/chat/completions will refuse: %s", e->msg);
    return 0;
}

/* Opens, loads and attaches. Ends the server with a status when something fails. */
static void *load_main(void *arg)
{
    struct serve *s = arg;
    struct err e = {0};
    struct model_file *file = model_file_open(s->path, &e);
    if (!file)
        goto fail;
    s->tokenizer = tokenizer_open(file, &e);
    if (!s->tokenizer || load_template(s, file, &e))
        goto fail;
    sampling_defaults_read(&s->model.defaults, strcmp(s->generation_config, "vllm") == 0 ? NULL : file);
    s->engine = load_engine("serve", file, &s->engine_options, true);
    if (!s->engine) {
        e.msg[0] = '\0'; /* load_engine has said why */
        goto fail;
    }
    model_file_close(file);
    s->model.engine = s->engine;
    s->model.tokenizer = s->tokenizer;
    s->model.template = s->template;
    api_model_init(&s->model);
    if (s->measure_limits) {
        struct cpu_limits limits;
        int threads = sluice_plan(s->engine)->threads;
        if (cpu_limits_measure(s->engine_options.cpu_level, threads, &limits, &e)) {
            log_warn("the machine's limits cannot be measured: %s", e.msg);
        } else {
            log_info("this machine reads %.1f GB/s with %d threads", limits.read_gbs, threads);
            server_set_read_bandwidth(s->server, limits.read_gbs * 1e9);
        }
    }
    if (server_attach(s->server, &s->model, &e)) {
        file = NULL;
        goto fail;
    }
    log_info("serving %s at %s", s->model.names[0], server_url(s->server));
    log_info("Application startup complete.");
    s->loaded = true;
    return NULL;
fail:
    if (e.msg[0])
        fprintf(stderr, "sluice serve: %s\n", e.msg);
    model_file_close(file);
    s->loaded = true;
    server_stop(s->server, EXIT_FAILED);
    return NULL;
}

/* Without --served-model-name the model is called as its path is written, as clients of vLLM expect. */
static void set_names(struct api_model *m, const struct option_list *names, const char *const *path)
{
    m->names = names->n ? names->values : path;
    m->n_names = names->n ? names->n : 1;
    m->root = *path;
}

/* Keys of the command line, else of the environment (comma-separated). */
static void read_keys(struct option_list *keys, char **from_environment)
{
    const char *value = getenv("SLUICE_API_KEY");
    if (!value || !*value)
        value = getenv("VLLM_API_KEY");
    if (keys->n || !value || !*value)
        return;
    *from_environment = mem_strdup(value);
    char *rest = *from_environment, *key;
    while ((key = strsep(&rest, ","))) {
        if (!*key)
            continue;
        keys->values = mem_realloc(keys->values, (size_t)keys->n + 1, sizeof *keys->values);
        keys->values[keys->n++] = key;
    }
}

/* Seconds between the lines of throughput. */
static double stats_interval(void)
{
    const char *value = getenv("SLUICE_LOG_STATS_INTERVAL");
    if (!value)
        value = getenv("VLLM_LOG_STATS_INTERVAL");
    double seconds = value ? strtod(value, NULL) : 0;
    return seconds >= 0.01 && seconds <= 86400 ? seconds : 10;
}

int cmd_serve(int argc, char **argv)
{
    struct serve s = {.generation_config = "auto"};
    struct server_options server;
    server_options_init(&server);
    api_limits_init(&s.model.limits);
    struct sluice_options *engine = &s.engine_options;
    struct option_list names = {0}, keys = {0};
    char *environment_keys = NULL;
    bool disable_log_stats = false, log_requests = false;
    uint64_t max_body = server.max_body_bytes, kv_bytes = 0;
    uint64_t state_cache = 0;
    bool prefix_caching = true;
    const char *policy = "fcfs";
    const struct option_spec options[] = {
        {.group = "Server"},
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
        {.name = "served-model-name",
         .list = &names,
         .initial = "MODEL as written",
         .value = "NAME",
         .help =
             "names that requests may use for the model; the first one is reported and labels the metrics"},
        {.name = "api-key",
         .list = &keys,
         .initial = "SLUICE_API_KEY or VLLM_API_KEY",
         .value = "KEY",
         .help = "requests to /v1 must carry one of these keys (Authorization: Bearer KEY)"},
        {.name = "chat-template",
         .text = &s.template_path,
         .initial = "the model's",
         .value = "FILE",
         .help = "Jinja template for chats"},
        {.name = "generation-config",
         .text = &s.generation_config,
         .choices = "auto|vllm",
         .value = "WHICH",
         .help = "sampling defaults: auto = the model's generation config, vllm = none of it"},
        {.name = "max-logprobs",
         .num = &s.model.limits.max_logprobs,
         .min = 0,
         .max = SLUICE_MAX_LOGPROBS,
         .value = "N",
         .help = "the most alternatives a request may ask for at each token"},
        {.name = "enable-prompt-tokens-details",
         .flag = &s.model.prompt_tokens_details,
         .help = "usage says how many prompt tokens came from the prefix cache"},
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
         .flag = &log_requests,
         .help = "a line for each request, without its text"},
        {.name = "disable-log-stats",
         .flag = &disable_log_stats,
         .help = "no lines of throughput (else every 10 seconds, or SLUICE_LOG_STATS_INTERVAL)"},
        {.name = "measure-limits",
         .flag = &s.measure_limits,
         .help = "measure the memory's read bandwidth at the start (a second), so that the throughput lines "
                 "say how much of it is used"},
        {.name = "enable-request-id-headers",
         .flag = &server.request_id_headers,
         .help = "replies carry X-Request-Id"},
        {.group = "Scheduler"},
        POOL_OPTIONS(s.engine_options, kv_bytes),
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
        {.name = "enable-prefix-caching",
         .flag = &prefix_caching,
         .help = "keep what was computed of a prompt for the next that begins alike"},
        {.name = "state-cache-memory-bytes",
         .big = &state_cache,
         .initial = "a tenth of what the weights leave",
         .value = "N",
         .help = "recurrent states kept for the prefix cache (models that have them)"},
        ENGINE_OPTIONS(s.engine_options),
        {0},
    };
    const struct option_positional words[] = {
        {"MODEL", &s.path, true, "a .gguf file or a Hugging Face directory"}, {0}};
    const struct option_command command = {
        "serve", "Serves a model over HTTP with the OpenAI API. Stops with SIGTERM or Ctrl-C.", words,
        options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (engine->max_model_len < 0)
        engine->max_model_len = 0;
    engine->kv_cache_bytes = kv_bytes;
    engine->state_cache_bytes = state_cache;
    engine->no_prefix_cache = !prefix_caching;
    engine->priority_scheduling = strcmp(policy, "priority") == 0;
    read_keys(&keys, &environment_keys);
    set_names(&s.model, &names, &s.path);
    server.api_keys = keys.values;
    server.n_api_keys = keys.n;
    server.max_body_bytes = max_body;
    server.log_requests = log_requests;
    server.stats_seconds = disable_log_stats ? 0 : stats_interval();

    struct err e = {0};
    pthread_t loader;
    status = EXIT_FAILED;
    s.server = server_create(&server, &e);
    if (!s.server) {
        fprintf(stderr, "sluice serve: %s\n", e.msg);
        goto done;
    }
    if (!server.uds && (!server.host || !server.host[0]) && keys.n == 0)
        log_warn("listening on all interfaces without a key: --host 127.0.0.1 keeps it to this machine, "
                 "--api-key asks "
                 "for a key");
    log_info("listening at %s, loading %s", server_url(s.server), s.path);
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
    sluice_close(s.engine);
    server_free(s.server);
    chat_template_free(s.template);
    tokenizer_free(s.tokenizer);
    option_list_free(&names);
    option_list_free(&keys);
    free(environment_keys);
    return status;
}
