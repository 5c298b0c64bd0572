/* What /metrics shows. Counters and histograms of requests are kept here, by the event loop's thread; the
 * engine's own counters are read when the page is made. Names and buckets are vLLM's, since dashboards and
 * autoscalers key on them; what only sluice has begins with "sluice:". */
#ifndef SLUICE_HTTP_METRICS_H
#define SLUICE_HTTP_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "sluice.h"

#define HISTOGRAM_MAX 32

struct histogram {
    const double *bounds; /* [n] ascending; the last bucket, +Inf, is implied */
    int n;
    uint64_t counts[HISTOGRAM_MAX + 1];
    double sum;
};

enum finished_reason {
    FINISHED_STOP,
    FINISHED_LENGTH,
    FINISHED_ABORT,
    FINISHED_ERROR,
    FINISHED_REPETITION,
    FINISHED_N
};

/* One answer that ended. Times are clock_now(); 0 = that point was not reached. */
struct finished_answer {
    enum finished_reason reason;
    double arrived, queued, scheduled, first_token, last_token;
    int prompt_tokens, cached_tokens, tokens, max_tokens, n, preemptions;
};

enum tool_request { TOOL_REQUESTS_CHAT, TOOL_REQUESTS_RESPONSES, TOOL_REQUESTS_OTHER, TOOL_REQUESTS_N };

#define METRICS_ROUTES 48

struct metrics {
    struct histogram ttft, gap, per_token, e2e, queue, prefill, decode, inference;
    struct histogram prompt_tokens, generation_tokens, max_generation_tokens, params_max_tokens, params_n,
        preemptions, computed_tokens, iteration_tokens;
    double token_bounds[HISTOGRAM_MAX]; /* 1, 2, 5, 10 … up to the model's context */
    uint64_t finished[FINISHED_N];
    /* answers read for tool calls: by protocol, whole or streamed, without or with calls */
    uint64_t tool_parses[TOOL_REQUESTS_N][2][2];
    struct http_metrics {
        uint64_t replies[6]; /* by hundreds of the status */
        uint64_t n;          /* as many replies, timed and measured: */
        double request_bytes, response_bytes;
        struct histogram seconds;
    } http[METRICS_ROUTES][2];     /* by route, GET or POST */
    struct histogram http_seconds; /* of all */
    struct sluice_stats seen;      /* as of the last metrics_add_steps */
};

/* Bounds in place of the usual ones, by histogram; n 0 = as usual. */
#define METRICS_HISTOGRAMS 16
struct metrics_buckets {
    double bounds[METRICS_HISTOGRAMS][HISTOGRAM_MAX];
    int n[METRICS_HISTOGRAMS];
};
/* Reads {"time_to_first_token_seconds": [0.1, 1], …}; names may begin with "vllm:". -1 and *e. */
int metrics_buckets_parse(struct metrics_buckets *b, const char *json, struct err *e);

/* `custom` may be NULL; else it must outlive m. */
void metrics_init(struct metrics *m, int max_model_len, const struct metrics_buckets *custom);
void histogram_add(struct histogram *h, double value, uint64_t times);
void metrics_add_answer(struct metrics *m, const struct finished_answer *a);
/* A reply was sent, or its last piece. Times in seconds. */
void metrics_add_reply(struct metrics *m, int route, bool post, int status, double seconds,
                       size_t request_bytes, size_t response_bytes);
/* Called whenever the engine made steps: tokens a step. */
void metrics_add_steps(struct metrics *m, const struct sluice_stats *now);

struct metrics_page {
    const char *model_name;
    const char *const *routes; /* [n_routes] handlers, for http_requests_total */
    int n_routes;
    const struct sluice_stats *stats;
    const struct sluice_plan *plan;
    double read_bandwidth; /* bytes a second; 0 = not measured */
    double started;        /* time_t of the process's start */
    bool no_engine;        /* leave out what the engine and its requests count (--disable-log-stats) */
};
void metrics_write(const struct metrics *m, const struct metrics_page *page, struct str *out);

#endif
