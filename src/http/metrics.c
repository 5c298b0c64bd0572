#include "http/metrics_page.h"

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
static const double reply_times[] = {0.1, 0.5, 1};
static const double fine_reply_times[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1,  1.5, 2,
                                          2.5,  3,     3.5,  4,     4.5, 5,    7.5, 10,   30, 60};

#define BOUNDS(a)                                          \
    (struct histogram)                                     \
    {                                                      \
        .bounds = (a), .n = (int)(sizeof(a) / sizeof *(a)) \
    }

void metrics_init(struct metrics *m, int max_model_len, const struct metrics_buckets *custom)
{
    memset(m, 0, sizeof *m);
    m->ttft = BOUNDS(first_times);
    m->gap = m->per_token = BOUNDS(token_times);
    m->e2e = m->queue = m->prefill = m->decode = m->inference = BOUNDS(long_times);
    m->iteration_tokens = BOUNDS(step_tokens);
    m->params_n = BOUNDS(answers);
    m->preemptions = BOUNDS(few);
    m->http_seconds = BOUNDS(fine_reply_times);
    for (int i = 0; i < METRICS_ROUTES; i++)
        m->http[i][0].seconds = m->http[i][1].seconds = BOUNDS(reply_times);
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
    if (custom)
        metrics_use_buckets(m, custom);
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

void metrics_add_reply(struct metrics *m, int route, bool post, int status, double seconds,
                       size_t request_bytes, size_t response_bytes)
{
    struct http_metrics *h = &m->http[route][post];
    h->replies[status / 100 % 6]++;
    h->n++;
    h->request_bytes += (double)request_bytes;
    h->response_bytes += (double)response_bytes;
    histogram_add(&h->seconds, seconds, 1);
    histogram_add(&m->http_seconds, seconds, 1);
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

static void write_requests(struct page *p, const struct metrics *m)
{
    static const char *const reasons[FINISHED_N] = {"stop", "length", "abort", "error", "repetition"};
    static const char *const requests[TOOL_REQUESTS_N] = {"chat_completions", "responses", "other"};
    page_heading(p, "vllm:request_success_total", "counter", "Finished answers by reason.");
    for (int i = 0; i < FINISHED_N; i++)
        str_addf(p->out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", p->labels,
                 reasons[i], (unsigned long long)m->finished[i]);
    page_heading(p, "vllm:tool_call_parser_invocations_total", "counter", "Answers read for tool calls.");
    for (int i = 0; i < TOOL_REQUESTS_N * 2 * 2; i++) {
        int type = i / 4, stream = i / 2 % 2, called = i % 2;
        str_addf(p->out,
                 "vllm:tool_call_parser_invocations_total{%s,mode=\"%s\",outcome=\"%s\",request_type=\"%s\"} "
                 "%llu\n",
                 p->model, stream ? "streaming" : "non_streaming", called ? "tool_call" : "no_tool_call",
                 requests[type], (unsigned long long)m->tool_parses[type][stream][called]);
    }
    page_write_histograms(p, m);
}

static const char *const methods[2] = {"GET", "POST"};

/* One of the two sizes of a handler, its methods together. */
static void write_sizes(struct page *p, const struct metrics *m, const struct metrics_page *page,
                        const char *name, const char *help, bool of_request)
{
    page_heading(p, name, "summary", help);
    for (int r = 0; r < page->n_routes; r++) {
        const struct http_metrics *get = &m->http[r][0], *post = &m->http[r][1];
        if (get->n + post->n == 0)
            continue;
        double sum = of_request ? get->request_bytes + post->request_bytes
                                : get->response_bytes + post->response_bytes;
        str_addf(p->out, "%s_count{handler=\"%s\"} %llu\n%s_sum{handler=\"%s\"} %.17g\n", name,
                 page->routes[r], (unsigned long long)(get->n + post->n), name, page->routes[r], sum);
    }
}

/* Only what was asked for: these series are many, and exist from their first reply. */
static void write_http(struct page *p, const struct metrics *m, const struct metrics_page *page)
{
    page_heading(p, "http_requests_total", "counter", "HTTP requests by handler, method and kind of status.");
    for (int r = 0; r < page->n_routes; r++)
        for (int post = 0; post < 2; post++)
            for (int s = 0; s < 6; s++)
                if (m->http[r][post].replies[s])
                    str_addf(
                        p->out, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n",
                        page->routes[r], methods[post], s, (unsigned long long)m->http[r][post].replies[s]);
    write_sizes(p, m, page, "http_request_size_bytes", "Bytes of request bodies by handler.", true);
    write_sizes(p, m, page, "http_response_size_bytes", "Bytes of response bodies by handler.", false);
    page_heading(p, "http_request_duration_seconds", "histogram",
                 "From a request's first byte to the end of its reply, by handler and method.");
    for (int r = 0; r < page->n_routes; r++)
        for (int post = 0; post < 2; post++) {
            char labels[200];
            snprintf(labels, sizeof labels, "handler=\"%s\",method=\"%s\"", page->routes[r], methods[post]);
            if (m->http[r][post].n)
                page_buckets(p, "http_request_duration_seconds", labels, &m->http[r][post].seconds);
        }
    page_heading(p, "http_request_duration_highr_seconds", "histogram",
                 "The same for all handlers together, in finer buckets.");
    page_buckets(p, "http_request_duration_highr_seconds", "", &m->http_seconds);
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
    page_escape(name, sizeof name, page->model_name);
    snprintf(p.model, sizeof p.model, "model_name=\"%s\"", name);
    snprintf(p.labels, sizeof p.labels, "%s,engine=\"0\"", p.model);
    if (!page->no_engine) {
        page_write_engine(&p, page);
        write_requests(&p, m);
    }
    write_http(&p, m, page);
    write_process(out, page->started);
}
