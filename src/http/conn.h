/* HTTP/1.1 connections on libevent's bufferevents.
 *
 * libevent has an HTTP server of its own (evhttp), but while a reply is pending it stops reading, so it sees
 * no client hang up; and bytes that arrive in that state end the process. Here reading goes on, and a
 * closed connection is reported at once, whatever state its request is in.
 *
 * All functions belong to the thread that runs the event loop. Nothing here blocks. */
#ifndef SLUICE_HTTP_CONN_H
#define SLUICE_HTTP_CONN_H

#include <event2/event.h>
#include <event2/util.h>
#include <stdbool.h>

#include "base/str.h"
#include "http/head.h"
#include "http/tls.h"

struct http;          /* the connections of one server */
struct http_exchange; /* one request and its reply */

struct http_limits {
    size_t max_head, max_body; /* bytes of one request */
    size_t max_bodies;         /* bytes of all bodies being read; more is refused with 503 */
    int max_connections; /* beyond it the connection idle for longest makes room, or the new one is refused */
    double head_seconds; /* from a request's first byte to the end of its head */
    double body_seconds; /* between two pieces of a body */
    double idle_seconds; /* between requests */
    double write_seconds; /* a client that takes nothing for so long is dropped */
};
void http_limits_init(struct http_limits *l);

struct http_exchange {
    struct http_head head;
    struct str body;
    double arrived;                /* clock_now() when the body was complete */
    int status;                    /* of the reply; 0 before it */
    size_t body_bytes, sent_bytes; /* of the request's body, and of the reply's so far */
    /* For whoever answers later. `gone` is called if the client hangs up first: the exchange must not be
     * touched afterwards. */
    void *user;
    void (*gone)(struct http_exchange *x);
};

struct http_handlers {
    void *arg;
    /* The head is in, the body is not: may reply (refuse) at once. */
    void (*begin)(void *arg, struct http_exchange *x);
    /* The request is complete: reply, or set x->gone and reply later. */
    void (*request)(void *arg, struct http_exchange *x);
    /* A malformed request was refused with `status`: appends the body that explains it. How much of the head
     * is there depends on what was wrong. */
    void (*refusal)(void *arg, const struct http_exchange *x, int status, const char *why, struct str *out);
    /* Appends header lines that this reply has besides its own (CORS). */
    void (*headers)(void *arg, const struct http_exchange *x, struct str *out);
};

/* `tls` (NULL = none) is borrowed. */
struct http *http_create(struct event_base *base, const struct http_limits *l, const struct http_handlers *h,
                         struct tls *tls);
void http_free(struct http *h);                       /* closes all connections */
void http_accept(struct http *h, evutil_socket_t fd); /* takes over a new, non-blocking socket */
/* From now on every reply closes its connection, and idle ones are closed. */
void http_drain(struct http *h);
int http_connections(const struct http *h);

/* Sends a whole reply. `headers` (NULL = none) are complete lines, each with its CR LF. */
void http_reply(struct http_exchange *x, int status, const char *content_type, const char *headers,
                const char *body, size_t len);
/* A reply in pieces, each sent as soon as it is added. */
void http_stream_begin(struct http_exchange *x, const char *content_type, const char *headers);
void http_stream_add(struct http_exchange *x, const char *bytes, size_t len);
void http_stream_end(struct http_exchange *x);
size_t http_stream_pending(const struct http_exchange *x); /* bytes that the client has not taken yet */
/* Closes the connection without a (complete) reply; does not call gone. */
void http_abort(struct http_exchange *x);

#endif
