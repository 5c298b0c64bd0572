#include "http/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"

/* Bucket bounds in seconds and tokens. */
static const double long_times[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double first_times[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double token_times[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                     0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double step_tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double answers[] = {1, 2, 5, 10, 20};
static const double few[] = {1, 2, 3, 4, 5, 10, 20};

#define BOUNDS(a)                                          \
    (struct histogram)                                     \
    {                                                      \
        .bounds = (a), .n = (int)(sizeof(a) / sizeof *(a)) \
    }

void metrics_init(struct metrics *m, int max_model_len)
{
    memset(m, 0, sizeof *m);
    m->ttft = BOUNDS(first_times);
    m->gap = m->per_token = BOUNDS(token_times);
    m->e2e = m->queue = m->prefill = m->decode = m->inference = BOUNDS(long_times);
    m->iteration_tokens = BOUNDS(step_tokens);
    m->params_n = BOUNDS(answers);
    m->preemptions = BOUNDS(few);
    struct histogram tokens = {.bounds = m->token_bounds};
    static const int mantissas[] = {1, 2, 5};
    for (double scale = 1; tokens.n < HISTOGRAM_MAX; scale *= 10)
        for (int i = 0; i < 3 && tokens.n < HISTOGRAM_MAX; i++) {
            if (mantissas[i] * scale > max_model_len)
                goto full;
            m->token_bounds[tokens.n++] = mantissas[i] * scale;
        }
full:
    m->prompt_tokens = m->generation_tokens = m->max_generation_tokens = tokens;
    m->params_max_tokens = m->computed_tokens = tokens;
}

void histogram_add(struct histogram *h, double value, uint64_t times)
{
    int i = 0;
    while (i < h->n && value > h->bounds[i])
        i++;
    h->counts[i] += times;
    h->sum += value * (double)times;
}

void metrics_add_answer(struct metrics *m, const struct finished_answer *a)
{
    m->finished[a->reason]++;
    histogram_add(&m->prompt_tokens, a->prompt_tokens, 1);
    histogram_add(&m->generation_tokens, a->tokens, 1);
    histogram_add(&m->params_max_tokens, a->max_tokens, 1);
    histogram_add(&m->params_n, a->n, 1);
    histogram_add(&m->preemptions, a->preemptions, 1);
    histogram_add(&m->computed_tokens, a->prompt_tokens - a->cached_tokens, 1);
    if (a->scheduled > 0)
        histogram_add(&m->queue, a->scheduled - a->queued, 1);
    if (a->first_token > 0 && a->last_token > 0) {
        histogram_add(&m->e2e, a->last_token - a->arrived, 1);
        histogram_add(&m->prefill, a->first_token - a->scheduled, 1);
        histogram_add(&m->decode, a->last_token - a->first_token, 1);
        histogram_add(&m->inference, a->last_token - a->scheduled, 1);
        if (a->tokens > 1)
            histogram_add(&m->per_token, (a->last_token - a->first_token) / (a->tokens - 1), 1);
    }
}

void metrics_add_steps(struct metrics *m, const struct sluice_stats *now)
{
    uint64_t steps = now->steps - m->seen.steps;
    uint64_t tokens = now->total.prompt_tokens + now->total.decode_tokens - m->seen.total.prompt_tokens -
                      m->seen.total.decode_tokens;
    /* several steps between two looks share their tokens evenly */
    if (steps > 0)
        histogram_add(&m->iteration_tokens, (double)tokens / (double)steps, steps);
    m->seen = *now;
}

/* --- the page ------------------------------------------------------------------------------------ */

struct page {
    struct str *out;
    char model[580];  /* model_name="…" */
    char labels[600]; /* model_name="…",engine="0" */
};

static void heading(struct page *p, const char *name, const char *type, const char *help)
{
    str_addf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct page *p, const char *name, const char *help, double v)
{
    heading(p, name, "gauge", help);
    str_addf(p->out, "%s{%s} %.17g\n", name, p->labels, v);
}

/* `name` without _total. */
static void counter(struct page *p, const char *name, const char *help, double v)
{
    char full[128];
    snprintf(full, sizeof full, "%s_total", name);
    heading(p, full, "counter", help);
    str_addf(p->out, "%s{%s} %.17g\n", full, p->labels, v);
}

static void histogram(struct page *p, const char *name, const char *help, const struct histogram *h)
{
    heading(p, name, "histogram", help);
    uint64_t sum = 0;
    for (int i = 0; i < h->n; i++) {
        sum += h->counts[i];
        char bound[32];
        snprintf(bound, sizeof bound, "%.15g", h->bounds[i]);
        str_addf(p->out, "%s_bucket{%s,le=\"%s%s\"} %llu\n", name, p->labels, bound,
                 strpbrk(bound, ".e") ? "" : ".0", (unsigned long long)sum);
    }
    sum += h->counts[h->n];
    str_addf(p->out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, p->labels, (unsigned long long)sum);
    str_addf(p->out, "%s_sum{%s} %.17g\n%s_count{%s} %llu\n", name, p->labels, h->sum, name, p->labels,
             (unsigned long long)sum);
}

/* A label's value: backslash, quote and newline escaped. */
static void label_text(char *out, size_t n, const char *text)
{
    size_t at = 0;
    for (; *text && at + 3 < n; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[at++] = '\\';
        out[at++] = *text == '\n' ? 'n' : *text;
    }
    out[at] = '\0';
}

static void write_engine(struct page *p, const struct sluice_stats *s, const struct sluice_plan *plan)
{
    gauge(p, "vllm:num_requests_running", "Requests in the running batch.", s->running);
    gauge(p, "vllm:num_requests_waiting", "Requests waiting to be scheduled.", s->waiting);
    heading(p, "vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.");
    str_addf(p->out, "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d\n", p->labels,
             s->waiting);
    str_addf(p->out, "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} 0\n", p->labels);
    gauge(p, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 1 = all.",
          s->kv_blocks > 0 ? (double)s->kv_blocks_used / s->kv_blocks : 0);
    heading(p, "vllm:engine_sleep_state", "gauge", "Whether the engine is awake.");
    str_addf(p->out, "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} 1\n", p->labels);
    str_addf(p->out, "vllm:engine_sleep_state{%s,sleep_state=\"weights_offloaded\"} 0\n", p->labels);
    str_addf(p->out, "vllm:engine_sleep_state{%s,sleep_state=\"discard_all\"} 0\n", p->labels);
    heading(p, "vllm:cache_config_info", "gauge", "Settings of the KV cache.");
    str_addf(
        p->out,
        "vllm:cache_config_info{engine=\"0\",block_size=\"%d\",num_gpu_blocks=\"%d\",num_cpu_blocks=\"0\","
        "kv_cache_size_tokens=\"%lld\",kv_bytes_per_token=\"%zu\"} 1\n",
        plan->block_size, plan->kv_blocks, (long long)plan->kv_blocks * plan->block_size,
        plan->kv_bytes_per_token);
    counter(p, "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
            (double)s->looked_up_tokens);
    counter(p, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.",
            (double)s->cached_tokens);
    counter(p, "vllm:num_preemptions", "Requests that lost their blocks to others and were put back.",
            (double)s->preemptions);
    counter(p, "vllm:prompt_tokens", "Prompt tokens of prefilled requests, cached ones included.",
            (double)s->prompt_tokens);
    counter(p, "vllm:prompt_tokens_cached", "Prompt tokens that came from the cache.",
            (double)s->prompt_tokens_cached);
    heading(p, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where they came from.");
    const struct {
        const char *source;
        uint64_t tokens;
    } sources[] = {{"local_compute", s->prompt_tokens - s->prompt_tokens_cached},
                   {"local_cache_hit", s->prompt_tokens_cached},
                   {"external_kv_transfer", 0}};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        str_addf(p->out, "vllm:prompt_tokens_by_source_total{%s,source=\"%s\"} %llu\n", p->labels,
                 sources[i].source, (unsigned long long)sources[i].tokens);
    counter(p, "vllm:generation_tokens", "Generated tokens.", (double)s->generation_tokens);
    heading(p, "vllm:admission_rejections_total", "counter", "Requests refused because too many waited.");
    str_addf(p->out, "vllm:admission_rejections_total{%s,reason=\"max_num_queued_reqs\"} %llu\n", p->model,
             (unsigned long long)s->refused);
}

static void write_ledger(struct page *p, const struct sluice_stats *s)
{
    const struct sluice_ledger *t = &s->total, *l = &s->last;
    counter(p, "sluice:steps", "Steps of the engine: passes of the weights.", (double)s->steps);
    counter(p, "sluice:weight_bytes", "Bytes of weights read.", (double)t->weight_bytes);
    counter(p, "sluice:kv_read_bytes", "Bytes of the KV cache read.", (double)t->kv_read_bytes);
    counter(p, "sluice:kv_write_bytes", "Bytes of the KV cache written.", (double)t->kv_write_bytes);
    counter(p, "sluice:state_bytes", "Bytes of recurrent state read and written.", (double)t->state_bytes);
    counter(p, "sluice:flops", "Arithmetic operations.", (double)t->flops);
    counter(p, "sluice:step_prompt_tokens", "Prompt tokens computed in steps.", (double)t->prompt_tokens);
    counter(p, "sluice:step_decode_tokens", "Answer tokens computed in steps.", (double)t->decode_tokens);
    counter(p, "sluice:step_seqs", "Requests in each step, summed: by steps, the requests that share a pass.",
            (double)t->seqs);
    counter(p, "sluice:step_seconds", "Time spent in steps.", t->seconds);
    gauge(p, "sluice:last_step_weight_bytes", "Bytes of weights read by the last step.",
          (double)l->weight_bytes);
    gauge(p, "sluice:last_step_kv_read_bytes", "Bytes of the KV cache read by the last step.",
          (double)l->kv_read_bytes);
    gauge(p, "sluice:last_step_state_bytes", "Bytes of recurrent state moved by the last step.",
          (double)l->state_bytes);
    gauge(p, "sluice:last_step_flops", "Arithmetic operations of the last step.", (double)l->flops);
    gauge(p, "sluice:last_step_prompt_tokens", "Prompt tokens in the last step.", (double)l->prompt_tokens);
    gauge(p, "sluice:last_step_decode_tokens", "Answer tokens in the last step.", (double)l->decode_tokens);
    gauge(p, "sluice:last_step_seqs", "Requests in the last step.", (double)l->seqs);
    gauge(p, "sluice:last_step_seconds", "Duration of the last step.", l->seconds);
}

/* Why the prefix cache did or did not help: a silent miss is what angers. */
static void write_lookups(struct page *p, const struct sluice_stats *s)
{
    const struct {
        const char *result;
        uint64_t n;
    } results[] = {{"hit", s->lookups_hit},
                   {"unknown", s->lookups_unknown},
                   {"no_state", s->lookups_no_state},
                   {"short", s->lookups_short},
                   {"bypassed", s->lookups_bypassed}};
    heading(p, "sluice:prefix_lookups_total", "counter",
            "Lookups in the prefix cache by how they ended: hit; unknown tokens; known, but without a "
            "recurrent state "
            "to resume from; prompt too short; not looked up because the prompt is scored.");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        str_addf(p->out, "sluice:prefix_lookups_total{%s,result=\"%s\"} %llu\n", p->labels, results[i].result,
                 (unsigned long long)results[i].n);
    counter(p, "sluice:recomputed_tokens", "Tokens computed again because their blocks were taken.",
            (double)s->recomputed_tokens);
}

static void write_requests(struct page *p, const struct metrics *m)
{
    static const char *const reasons[FINISHED_N] = {"stop", "length", "abort", "error", "repetition"};
    heading(p, "vllm:request_success_total", "counter", "Finished answers by reason.");
    for (int i = 0; i < FINISHED_N; i++)
        str_addf(p->out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", p->labels,
                 reasons[i], (unsigned long long)m->finished[i]);
    heading(p, "vllm:tool_call_parser_invocations_total", "counter", "Answers read for tool calls.");
    for (int stream = 0; stream < 2; stream++)
        for (int called = 0; called < 2; called++)
            str_addf(p->out,
                     "vllm:tool_call_parser_invocations_total{%s,mode=\"%s\",outcome=\"%s\",request_type="
                     "\"chat_completions\"} %llu\n",
                     p->model, stream ? "streaming" : "non_streaming", called ? "tool_call" : "no_tool_call",
                     (unsigned long long)m->tool_parses[stream][called]);
    histogram(p, "vllm:iteration_tokens_total", "Tokens computed in a step.", &m->iteration_tokens);
    histogram(p, "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
              &m->ttft);
    histogram(p, "vllm:inter_token_latency_seconds", "Between the tokens of an answer.", &m->gap);
    histogram(p, "vllm:request_time_per_output_token_seconds",
              "Time for each token after the first, by answer.", &m->per_token);
    histogram(p, "vllm:e2e_request_latency_seconds", "From a request's arrival to its last token.", &m->e2e);
    histogram(p, "vllm:request_queue_time_seconds", "From the queue to the first step.", &m->queue);
    histogram(p, "vllm:request_prefill_time_seconds", "From the first step to the first token.", &m->prefill);
    histogram(p, "vllm:request_decode_time_seconds", "From the first token to the last.", &m->decode);
    histogram(p, "vllm:request_inference_time_seconds", "From the first step to the last token.",
              &m->inference);
    histogram(p, "vllm:request_prompt_tokens", "Prompt tokens of a request.", &m->prompt_tokens);
    histogram(p, "vllm:request_generation_tokens", "Tokens of an answer.", &m->generation_tokens);
    histogram(p, "vllm:request_max_num_generation_tokens", "Tokens of the longest of n answers.",
              &m->max_generation_tokens);
    histogram(p, "vllm:request_params_max_tokens", "The max_tokens asked for.", &m->params_max_tokens);
    histogram(p, "vllm:request_params_n", "The n asked for.", &m->params_n);
    histogram(p, "vllm:request_num_preemptions", "Times that a request lost its blocks.", &m->preemptions);
    histogram(p, "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed, not cached.",
              &m->computed_tokens);
}

static void write_http(struct page *p, const struct metrics *m, const struct metrics_page *page)
{
    static const char *const methods[2] = {"GET", "POST"};
    heading(p, "http_requests_total", "counter", "HTTP requests by handler, method and kind of status.");
    for (int r = 0; r < page->n_routes; r++)
        for (int method = 0; method < 2; method++)
            for (int s = 0; s < 6; s++)
                if (m->http[r][method][s])
                    str_addf(p->out,
                             "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n",
                             page->routes[r], methods[method], s, (unsigned long long)m->http[r][method][s]);
}

static void plain(struct str *out, const char *name, const char *type, const char *help, double v)
{
    str_addf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static int count_open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* ".", ".." and the directory itself */
}

static void write_process(struct str *out, double started)
{
    struct rusage u;
    struct rlimit fds;
    getrusage(RUSAGE_SELF, &u);
    getrlimit(RLIMIT_NOFILE, &fds);
    plain(out, "process_resident_memory_bytes", "gauge", "Resident memory.", (double)mem_resident());
    plain(out, "process_cpu_seconds_total", "counter", "User and system time.",
          (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
              1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec));
    plain(out, "process_start_time_seconds", "gauge", "Start of the process, seconds since the epoch.",
          started);
    plain(out, "process_open_fds", "gauge", "Open file descriptors.", count_open_fds());
    plain(out, "process_max_fds", "gauge", "Limit of open file descriptors.", (double)fds.rlim_cur);
}

void metrics_write(const struct metrics *m, const struct metrics_page *page, struct str *out)
{
    struct page p = {.out = out};
    char name[500];
    label_text(name, sizeof name, page->model_name);
    snprintf(p.model, sizeof p.model, "model_name=\"%s\"", name);
    snprintf(p.labels, sizeof p.labels, "%s,engine=\"0\"", p.model);
    write_engine(&p, page->stats, page->plan);
    write_requests(&p, m);
    write_ledger(&p, page->stats);
    write_lookups(&p, page->stats);
    write_http(&p, m, page);
    write_process(out, page->started);
}
