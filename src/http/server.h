/* The HTTP server: one thread that owns all connections, two that read requests, and the engine's. Law 7:
 * the network never waits for the engine, nor the engine for a client; they meet in an eventfd.
 *
 *   struct server *s = server_create(&options, &e);     binds, so that a port in use fails at once
 *   … another thread loads the model, then calls server_attach(s, &model, &e)
 *   int status = server_run(s);                         answers 503 until then; returns after SIGTERM or
 * SIGINT sluice_close(engine); server_free(s);               in this order: the engine still notifies the
 * server */
#ifndef SLUICE_HTTP_SERVER_H
#define SLUICE_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "api/model.h"
#include "base/error.h"
#include "http/cors.h"
#include "http/tls.h"

struct metrics_buckets;
struct server;

struct server_options {
    const char *host;            /* NULL = all interfaces */
    int port;                    /* 0 = a free one */
    const char *uds;             /* a Unix socket's path, in place of host and port; NULL = none */
    const char *const *api_keys; /* [n_api_keys]; none = open to all */
    int n_api_keys;
    size_t max_body_bytes;   /* of one request */
    size_t max_stream_bytes; /* waiting for a client that reads slowly; beyond it the request is cancelled */
    int max_connections;     /* clamped to the limit of open files */
    double keep_alive_seconds;
    double shutdown_seconds; /* requests in flight may go on for so long after the first signal */
    double stall_seconds;    /* /health fails when a busy engine has made no step for so long */
    bool log_requests;       /* a line for each, without its text unless … */
    bool no_access_log;      /* … only for those that generate */
    const char *quiet_paths; /* no line for these: "/health,/metrics"; NULL = none */
    int log_prompt_len;      /* … so many characters of the prompt are shown; 0 = none */
    int log_output_len;      /* the same for answers */
    double stats_seconds;    /* between lines of throughput while busy; 0 = none */
    const struct metrics_buckets *buckets; /* of the histograms in /metrics; NULL = the usual ones */
    bool no_engine_metrics;                /* /metrics leaves out the engine's and the requests' series */
    bool request_id_headers;               /* replies carry X-Request-Id */
    bool load_tracking;                    /* /load counts requests in flight; else it says 0 */
    bool tokenizer_info;                   /* GET /tokenizer_info is there */
    bool no_docs;                          /* GET /openapi.json and /docs are not */
    const char *root_path;                 /* of a proxy that does not strip it: "/llm"; NULL = none */
    double sse_keep_alive_seconds; /* a comment goes into a stream that is silent for so long; 0 = never */
    struct tls_options tls;
    struct cors cors;
};
void server_options_init(struct server_options *o);

/* Binds and listens. The options are copied, what they point to is not. NULL and *e on failure. */
struct server *server_create(const struct server_options *o, struct err *e);
void server_free(struct server *s);
const char *server_url(const struct server *s); /* "http://127.0.0.1:8000" */
int server_port(const struct server *s);

/* Starts the model's engine and serves it from now on. From any thread; m must outlive server_run. */
int server_attach(struct server *s, const struct api_model *m, struct err *e);
/* What this machine can read, in bytes a second: the throughput lines then say how much of it the weights
 * use. Before server_attach, by the same thread. */
void server_set_read_bandwidth(struct server *s, double bandwidth);
/* Ends server_run with this status, at once. From any thread. */
void server_stop(struct server *s, int status);

/* Runs until a signal (0: SIGINT and SIGTERM drain, a second one ends the process) or server_stop. */
int server_run(struct server *s);

#endif
