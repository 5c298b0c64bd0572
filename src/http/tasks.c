/* Requests under way. A task's body is read by a worker; a generation that comes of it stays in the list of
 * tasks, and each time the engine has news all of them are looked at. The cost of a look is a few loads,
 * so thousands of waiting requests do no harm. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "api/json_write.h"
#include "api/responses.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/internal.h"

#define HEAVY_BODY ((size_t)256 << 10) /* bytes: reading one may take long */

static void task_free(struct task *t)
{
    struct server *s = t->server;
    *(t->prev ? &t->prev->next : &s->tasks) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    s->n_tasks--;
    s->n_background -= t->background;
    generation_free(t->generation);
    str_free(&t->reply);
    free(t->body);
    free(t);
}

/* The client hung up. The engine drops its requests before the next step. */
static void task_gone(struct http_exchange *x)
{
    struct task *t = x->user;
    t->x = NULL;
    atomic_store(&t->abandoned, true);
    if (t->server->options.log_requests)
        log_info("%s hung up after %.3f s", t->request_id, clock_now() - t->arrived);
    if (t->live) /* else a worker holds it, and it is freed when that is done */
        task_free(t);
}

/* The request's name: the header X-Request-Id where it is usable, else random. */
static void name_task(struct task *t, const struct http_exchange *x)
{
    const char *given = http_head_get(&x->head, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    bool usable = n > 0 && n <= 128;
    for (size_t i = 0; i < n && usable; i++)
        usable = given[i] > ' ' && given[i] <= '~';
    if (usable) {
        memcpy(t->request_id, given, n + 1);
        t->id_is_header = true;
        return;
    }
    uint64_t id = (uint64_t)(uintptr_t)t;
    if (getrandom(&id, sizeof id, 0) < 0)
        id ^= (uint64_t)(clock_now() * 1e9);
    snprintf(t->request_id, sizeof t->request_id, "%016llx", (unsigned long long)id);
}

/* What else the headers ask for. Values that make no sense are ignored, as unknown headers are. */
static void read_headers(struct task *t, const struct http_exchange *x)
{
    const char *priority = http_head_get(&x->head, "X-Vllm-Priority"),
               *format = http_head_get(&x->head, "endpoint-load-metrics-format");
    char *end;
    if (priority) {
        long v = strtol(priority, &end, 10);
        t->has_priority = end > priority && !*end && v >= INT_MIN && v <= INT_MAX;
        t->priority = t->has_priority ? (int)v : 0;
    }
    if (format)
        t->load_format = strcasecmp(format, "text") == 0   ? LOAD_TEXT
                         : strcasecmp(format, "json") == 0 ? LOAD_JSON
                                                           : LOAD_NONE;
}

/* Header lines of a whole answer: how busy the server is, for load balancers that asked, and the id. */
static void answer_headers(struct server *s, const struct task *t, struct str *out)
{
    if (s->options.request_id_headers)
        str_addf(out, "X-Request-Id: %s\r\n", t->request_id);
    if (t->load_format == LOAD_NONE)
        return;
    struct sluice_stats now;
    sluice_stats(s->model->engine, &now);
    double used = now.kv_blocks > 0 ? (double)now.kv_blocks_used / now.kv_blocks : 0;
    str_addf(out,
             t->load_format == LOAD_TEXT
                 ? "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=%.6g, "
                   "named_metrics.num_requests_waiting=%d\r\n"
                 : "endpoint-load-metrics: JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6g, "
                   "\"num_requests_waiting\": %d}}\r\n",
             used, now.waiting);
}

static void run(struct job *j)
{
    struct task *t = (struct task *)j;
    if (!atomic_load(&t->abandoned))
        route_work(t);
}

void task_start(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct task *t = mem_zalloc(1, sizeof *t);
    t->job.run = run;
    t->server = s;
    t->route = r;
    t->x = x;
    t->model = s->model;
    t->body_len = x->body_bytes = x->body.len;
    t->job.heavy = t->body_len > HEAVY_BODY;
    t->body = str_take(&x->body);
    t->arrived = x->arrived;
    name_task(t, x);
    read_headers(t, x);
    t->next = s->tasks;
    if (s->tasks)
        s->tasks->prev = t;
    s->tasks = t;
    s->n_tasks++;
    x->user = t;
    x->gone = task_gone;
    workers_add(s->workers, &t->job);
}

/* --- metrics of a generation --------------------------------------------------------------------- */

static void saw_first_token(void *arg, double seconds)
{
    histogram_add(&((struct metrics *)arg)->ttft, seconds, 1);
}

static void saw_gap(void *arg, double seconds, int count)
{
    histogram_add(&((struct metrics *)arg)->gap, seconds, (uint64_t)count);
}

static enum finished_reason reason_of(const struct choice *c)
{
    static const char *const names[FINISHED_N] = {"stop", "length", "abort", "error", "repetition"};
    for (int i = 0; i < FINISHED_N; i++)
        if (c->finish && strcmp(c->finish, names[i]) == 0)
            return (enum finished_reason)i;
    return FINISHED_ERROR;
}

static enum tool_request tool_request_of(const struct generation *g)
{
    if (g->writer == &chat_writer)
        return TOOL_REQUESTS_CHAT;
    return g->writer == &responses_writer ? TOOL_REQUESTS_RESPONSES : TOOL_REQUESTS_OTHER;
}

static void record(struct server *s, const struct task *t)
{
    const struct generation *g = t->generation;
    int longest = 0;
    for (int i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        const struct sluice_progress *p = &c->progress;
        metrics_add_answer(&s->metrics, &(struct finished_answer){.reason = reason_of(c),
                                                                  .arrived = g->arrived,
                                                                  .queued = p->arrived,
                                                                  .scheduled = p->scheduled,
                                                                  .first_token = p->first_token,
                                                                  .last_token = p->last_token,
                                                                  .prompt_tokens = (int)c->prompt->ids.n,
                                                                  .cached_tokens = p->cached_tokens,
                                                                  .tokens = c->n_tokens,
                                                                  .max_tokens = c->max_tokens,
                                                                  .n = g->request->n,
                                                                  .preemptions = p->preemptions});
        if (g->request->tools)
            s->metrics.tool_parses[tool_request_of(g)][g->request->stream][c->output.calls.n_calls > 0]++;
        if (c->n_tokens > longest)
            longest = c->n_tokens;
    }
    histogram_add(&s->metrics.max_generation_tokens, longest, 1);
    if (!s->options.log_requests)
        return;
    struct usage u = generation_usage(g);
    const struct sluice_progress *p = &g->choices[0].progress;
    log_info("%s POST %s -> %d, prompt %lld tokens (%lld cached), answer %lld tokens, first after %.3f s, "
             "done after "
             "%.3f s, %s",
             t->request_id, g->writer->path, g->error.status ? g->error.status : 200, (long long)u.prompt,
             (long long)u.cached, (long long)u.completion,
             p->first_token > 0 ? p->first_token - g->arrived : 0, clock_now() - g->arrived,
             g->choices[0].finish ? g->choices[0].finish : "error");
}

/* The first `max` characters of text, as one line. */
static void log_text(const struct task *t, const char *what, const struct str *text, int max)
{
    const char *s = str_text(text);
    size_t n = 0;
    for (int left = max; n < text->len; n++)
        if (((unsigned char)s[n] & 0xC0) != 0x80 && left-- == 0)
            break;
    struct str line = {0};
    json_write_string(&line, s, n);
    log_info("%s %s: %s%s", t->request_id, what, str_text(&line), n < text->len ? "…" : "");
    str_free(&line);
}

/* What was asked and answered, where the operator wants to see it. */
static void log_texts(const struct server *s, const struct task *t)
{
    const struct generation *g = t->generation;
    const struct tokenizer *tokenizer = g->model->tokenizer;
    struct str text = {0};
    for (int i = 0; s->options.log_prompt_len > 0 && i < g->request->n_prompts; i++) {
        /* a token is at least a byte, but for a few: so many tokens hold what is shown */
        const struct token_list *ids = &g->request->prompts[i].ids;
        size_t n =
            (size_t)s->options.log_prompt_len + 64 < ids->n ? (size_t)s->options.log_prompt_len + 64 : ids->n;
        str_clear(&text);
        tokenizer_decode(tokenizer, ids->ids, n, false, &text);
        log_text(t, "prompt", &text, s->options.log_prompt_len);
    }
    for (int i = 0; s->options.log_output_len > 0 && i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        str_clear(&text);
        tokenizer_decode(tokenizer, sluice_request_tokens(c->request), (size_t)c->n_tokens, false, &text);
        log_text(t, "answer", &text, s->options.log_output_len);
    }
    str_free(&text);
}

/* --- progress ------------------------------------------------------------------------------------ */

/* Gives the client what the engine has made. The task may be gone afterwards. */
static void advance(struct server *s, struct task *t)
{
    const struct generation_observer observer = {&s->metrics, saw_first_token, saw_gap};
    struct generation *g = t->generation;
    struct http_exchange *x = t->x;
    struct str out = {0};
    bool done = generation_advance(g, &observer, &out);
    if (t->background) {
        if (done) {
            if (g->error.status)
                g->writer->body(g, &out); /* keeps it; advance has kept an answer */
            record(s, t);
            log_texts(s, t);
            task_free(t);
        }
        str_free(&out);
        return;
    }
    if (g->request->stream) {
        if (out.len > 0)
            t->sent = clock_now();
        x->sent_bytes += out.len;
        http_stream_add(x, str_text(&out), out.len);
    }
    if (done) {
        record(s, t);
        log_texts(s, t);
        x->gone = NULL;
        if (g->request->stream) {
            count_reply(s, t->route, x, 200);
            http_stream_end(x);
        } else if (g->error.status) {
            reply_error(s, x, t->route, t, &g->error);
        } else {
            struct str headers = {0};
            answer_headers(s, t, &headers);
            reply_json(s, x, t->route, t, 200, str_text(&headers), &out);
            str_free(&headers);
        }
        task_free(t);
    } else if (g->request->stream && http_stream_pending(x) > s->options.max_stream_bytes) {
        log_warn("%s cancelled: its client does not read, and %zu bytes wait for it", t->request_id,
                 http_stream_pending(x));
        http_abort(x);
        task_free(t);
    }
    str_free(&out);
}

/* The client of an answer in the background is told so, and waited for no longer. */
static void accept_background(struct server *s, struct task *t)
{
    struct http_exchange *x = t->x;
    struct str body = {0};
    t->x = NULL;
    t->background = true;
    s->n_background++;
    t->generation->writer->accepted(t->generation, &body);
    x->gone = NULL;
    reply_json(s, x, t->route, t, 200, NULL, &body);
    str_free(&body);
}

struct generation *tasks_find_background(struct server *s, const char *id)
{
    for (struct task *t = s->tasks; t; t = t->next)
        if (t->background && strcmp(t->generation->request->id, id) == 0)
            return t->generation;
    return NULL;
}

/* A worker is done with a task. */
static void settle(struct server *s, struct task *t)
{
    free(t->body);
    t->body = NULL;
    if (!t->x) {
        task_free(t);
        return;
    }
    /* no connection bounds these: as many as there may be connections */
    if (t->generation && t->generation->request->background &&
        s->n_background >= s->options.max_connections) {
        generation_free(t->generation);
        t->generation = NULL;
        api_fail(&t->error, 503, "Service Unavailable", NULL,
                 "%d answers are made in the background already: try again later", s->n_background);
    }
    if (t->generation) {
        t->live = true;
        if (s->aborted) /* it came out of the worker too late */
            generation_cancel(t->generation);
        if (t->generation->request->background)
            accept_background(s, t);
        if (t->generation->request->stream) {
            char headers[300];
            snprintf(headers, sizeof headers, "Cache-Control: no-cache\r\n%s%s%s",
                     s->options.request_id_headers ? "X-Request-Id: " : "",
                     s->options.request_id_headers ? t->request_id : "",
                     s->options.request_id_headers ? "\r\n" : "");
            http_stream_begin(t->x, "text/event-stream; charset=utf-8", headers);
            t->sent = clock_now();
        }
        advance(s, t);
        return;
    }
    t->x->gone = NULL;
    if (t->error.status)
        reply_error(s, t->x, t->route, t, &t->error);
    else
        reply_json(s, t->x, t->route, t, 200, NULL, &t->reply);
    task_free(t);
}

void tasks_advance(struct server *s)
{
    for (struct task *t = s->tasks, *next; t; t = next) {
        next = t->next;
        if (t->live)
            advance(s, t);
    }
    struct job *j;
    while ((j = workers_take(s->workers)))
        settle(s, (struct task *)j);
}

void tasks_keep_alive(struct server *s)
{
    static const char comment[] = ": keep-alive\n\n";
    double now = clock_now();
    for (struct task *t = s->tasks; t; t = t->next) {
        if (!t->live || !t->generation->request->stream || now - t->sent < s->options.sse_keep_alive_seconds)
            continue;
        t->sent = now;
        http_stream_add(t->x, comment, sizeof comment - 1);
    }
}

void tasks_abort(struct server *s)
{
    for (struct task *t = s->tasks; t; t = t->next)
        if (t->live)
            generation_cancel(t->generation);
}

void tasks_free(struct server *s)
{
    struct job *j;
    while ((j = workers_take(s->workers)) || (j = workers_take_undone(s->workers)))
        task_free((struct task *)j);
    for (struct task *t = s->tasks, *next; t; t = next) {
        next = t->next;
        task_free(t);
    }
}
