/* The server's insides. Private to src/http. */
#ifndef SLUICE_HTTP_INTERNAL_H
#define SLUICE_HTTP_INTERNAL_H

#include <event2/event.h>
#include <event2/listener.h>
#include <stdatomic.h>

#include "api/generation.h"
#include "http/conn.h"
#include "http/metrics.h"
#include "http/server.h"
#include "http/workers.h"

#define MAX_LISTENERS 8

struct route;

struct server {
    struct server_options options;
    struct event_base *base;
    struct evconnlistener *listeners[MAX_LISTENERS];
    int n_listeners;
    char url[256];
    int port;
    struct tls *tls; /* NULL = none */
    struct http *http;
    struct workers *workers;
    struct task *tasks; /* all requests with a body that are not answered */
    int n_tasks, n_background;

    /* other threads' way in: set something, then write to wake_fd */
    int wake_fd;
    _Atomic(const struct api_model *) attached;
    _Atomic bool stopping;
    _Atomic int status;

    const struct api_model *model; /* attached, as the loop's thread knows it; NULL while loading */
    struct metrics metrics;
    double started;        /* time_t */
    double read_bandwidth; /* bytes/s; 0 = not known */
    struct event *wake, *signals[2], *stats_timer, *drain_timer, *accept_timer, *quiet_timer;
    bool draining, aborted;
    double drain_since, drain_deadline;
    struct sluice_stats reported; /* as of the last stats line */
    double reported_at;
};

/* A request with a body, from its last byte to its answer: a job for the workers, then, if it generates,
 * one of the live requests that every step is looked at for. */
struct task {
    struct job job; /* first */
    struct server *server;
    const struct route *route;
    struct http_exchange *x; /* NULL once the client is gone; the loop's thread only */
    _Atomic bool abandoned;  /* the same for the worker: what it does is for nothing */
    bool background;         /* its client has been answered, and is gone */
    bool live;               /* its generation is in the loop's hands; the loop's thread only */
    const struct api_model *model;
    char *body; /* [body_len] */
    size_t body_len;
    char request_id[132];
    bool id_is_header;
    bool has_priority; /* X-Vllm-Priority says it, over the body */
    int priority;
    enum load_format { LOAD_NONE, LOAD_TEXT, LOAD_JSON } load_format; /* endpoint-load-metrics-format */
    double arrived;
    double sent; /* when something last went into its stream */
    /* what the worker made: one of these */
    struct generation *generation;
    struct str reply;
    struct api_error error; /* status != 0 */
    struct task *prev, *next;
};

/* --- routes.c --- */
void routes_begin(void *arg, struct http_exchange *x);
void routes_request(void *arg, struct http_exchange *x);
void routes_refusal(void *arg, const struct http_exchange *x, int status, const char *why, struct str *out);
void routes_headers(void *arg, const struct http_exchange *x, struct str *out);
/* Replies with a JSON body, counts it, and logs it. `t` may be NULL. */
void reply_json(struct server *s, struct http_exchange *x, const struct route *r, const struct task *t,
                int status, const char *headers, const struct str *body);
void reply_error(struct server *s, struct http_exchange *x, const struct route *r, const struct task *t,
                 const struct api_error *e);
void count_reply(struct server *s, const struct route *r, const struct http_exchange *x, int status);
/* Runs on a worker: fills t->generation, t->reply or t->error. */
void route_work(struct task *t);

/* --- tasks.c --- */
void task_start(struct server *s, const struct route *r, struct http_exchange *x);
/* Looks at everything that workers and engine may have finished. */
void tasks_advance(struct server *s);
void tasks_keep_alive(struct server *s); /* a comment into each stream that has been silent */
/* The answer of this id that is made in the background, or NULL. */
struct generation *tasks_find_background(struct server *s, const char *id);
void tasks_abort(struct server *s); /* cancels all generations; their answers end as aborted */
void tasks_free(struct server *s);  /* after the workers stopped */

#endif
