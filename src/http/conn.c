#include "http/conn.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/mem.h"

/* While a request is answered its connection goes on reading, to see a hang-up; so much may arrive early. */
#define MAX_PIPELINED ((size_t)64 << 10)
#define MAX_LINE      256                /* of a chunk's size or a trailer */
#define MAX_COPIED    ((size_t)64 << 10) /* of a reply's body, to make one piece of it and its head */

enum conn_state {
    CONN_HEAD,    /* waiting for a request, or inside its head */
    CONN_BODY,    /* of known length */
    CONN_SIZE,    /* chunked: at the line with the size */
    CONN_CHUNK,   /* inside a chunk */
    CONN_CRLF,    /* behind a chunk */
    CONN_TRAILER, /* behind the last chunk */
    CONN_BUSY,    /* the request is complete and not answered yet */
    CONN_STREAM,  /* half answered */
    CONN_FLUSH,   /* close once all is written */
    CONN_LINGER,  /* written; the client may still be sending: wait, or the reset would eat the reply */
};

struct conn {
    struct http_exchange x; /* first: an exchange is its connection */
    struct http *http;
    struct bufferevent *bev;
    enum conn_state state;
    bool processing;                    /* inside process(): it will look for the next request itself */
    bool body_unread;                   /* replied before the body was in */
    size_t left;                        /* bytes of the body or chunk still to come */
    size_t counted;                     /* bytes of this body in http->bodies */
    double since;                       /* when this state's clock began */
    struct conn *prev, *next;           /* all connections */
    struct conn *idle_prev, *idle_next; /* those without a request, the longest idle first */
    bool idle;
};

struct http {
    struct event_base *base;
    struct http_limits limits;
    struct http_handlers handlers;
    struct tls *tls;    /* NULL = none */
    struct str scratch; /* what is written next */
    struct conn *conns;
    struct conn *idle_first, *idle_last;
    int n_conns;
    size_t bodies;
    bool draining;
};

void http_limits_init(struct http_limits *l)
{
    *l = (struct http_limits){.max_head = (size_t)64 << 10,
                              .max_body = (size_t)32 << 20,
                              .max_bodies = (size_t)1 << 30,
                              .max_connections = 8192,
                              .head_seconds = 30,
                              .body_seconds = 30,
                              .idle_seconds = 60,
                              .write_seconds = 60};
}

static void process(struct conn *c);

/* --- life of a connection ------------------------------------------------------------------------ */

static void set_timeouts(struct conn *c, double read_seconds)
{
    struct timeval r = {(time_t)read_seconds,
                        (suseconds_t)((read_seconds - (double)(time_t)read_seconds) * 1e6)};
    double ws = c->http->limits.write_seconds;
    struct timeval w = {(time_t)ws, (suseconds_t)((ws - (double)(time_t)ws) * 1e6)};
    bufferevent_set_timeouts(c->bev, read_seconds > 0 ? &r : NULL, &w);
}

static void idle_add(struct conn *c)
{
    struct http *h = c->http;
    if (c->idle)
        return;
    c->idle = true;
    c->idle_next = NULL;
    c->idle_prev = h->idle_last;
    *(h->idle_last ? &h->idle_last->idle_next : &h->idle_first) = c;
    h->idle_last = c;
}

static void idle_remove(struct conn *c)
{
    struct http *h = c->http;
    if (!c->idle)
        return;
    c->idle = false;
    *(c->idle_prev ? &c->idle_prev->idle_next : &h->idle_first) = c->idle_next;
    *(c->idle_next ? &c->idle_next->idle_prev : &h->idle_last) = c->idle_prev;
}

static void drop_exchange(struct conn *c)
{
    http_head_free(&c->x.head);
    str_free(&c->x.body);
    c->http->bodies -= c->counted;
    c->counted = 0;
    c->x.user = NULL;
    c->x.gone = NULL;
    c->x.status = 0;
    c->x.arrived = 0;
    c->x.body_bytes = c->x.sent_bytes = 0;
}

static void conn_close(struct conn *c)
{
    struct http *h = c->http;
    idle_remove(c);
    drop_exchange(c);
    *(c->prev ? &c->prev->next : &h->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->n_conns--;
    if (h->tls)
        tls_say_goodbye(c->bev);
    bufferevent_free(c->bev);
    free(c);
}

/* The client is gone: tells whoever works for it, then closes. */
static void conn_lost(struct conn *c)
{
    if (c->x.gone && (c->state == CONN_BUSY || c->state == CONN_STREAM))
        c->x.gone(&c->x);
    conn_close(c);
}

/* Everything of the reply is in the output buffer. */
static void reply_done(struct conn *c)
{
    bool keep = c->x.head.keep_alive && !c->body_unread && !c->http->draining;
    drop_exchange(c);
    if (!keep) {
        c->state = CONN_FLUSH;
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) /* else the write callback closes */
            bufferevent_trigger(c->bev, EV_WRITE, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    c->state = CONN_HEAD;
    c->since = 0;
    set_timeouts(c, c->http->limits.idle_seconds);
    idle_add(c);
    if (!c->processing && evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    if (c->state == CONN_LINGER) {
        struct evbuffer *in = bufferevent_get_input(bev);
        evbuffer_drain(in, evbuffer_get_length(in));
        if (clock_now() - c->since > 10)
            conn_close(c);
        return;
    }
    process(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    if (c->state != CONN_FLUSH || evbuffer_get_length(bufferevent_get_output(bev)) > 0)
        return;
    if (!c->body_unread) {
        conn_close(c);
        return;
    }
    if (c->http->tls)
        tls_say_goodbye(bev);
    shutdown(bufferevent_getfd(bev), SHUT_WR);
    c->state = CONN_LINGER;
    c->since = clock_now();
    set_timeouts(c, 2);
    bufferevent_enable(bev, EV_READ);
    on_read(bev, c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct conn *c = arg;
    if (what & BEV_EVENT_CONNECTED) /* TLS: the handshake is done */
        return;
    bool clean_eof = (what & BEV_EVENT_EOF) && !(what & BEV_EVENT_ERROR);
    bool answered = c->state == CONN_HEAD || c->state == CONN_FLUSH;
    if (clean_eof && answered && evbuffer_get_length(bufferevent_get_output(bev)) > 0) {
        /* it sends no more but may still read what it asked for */
        idle_remove(c);
        c->state = CONN_FLUSH;
        c->body_unread = false;
        return;
    }
    if ((what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_READING) && answered &&
        evbuffer_get_length(bufferevent_get_output(bev)) > 0) {
        bufferevent_enable(bev, EV_READ); /* it is still taking a reply: only the writing is timed */
        return;
    }
    conn_lost(c);
}

struct http *http_create(struct event_base *base, const struct http_limits *l,
                         const struct http_handlers *handlers, struct tls *tls)
{
    struct http *h = mem_zalloc(1, sizeof *h);
    h->base = base;
    h->tls = tls;
    h->limits = *l;
    h->handlers = *handlers;
    return h;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    for (struct conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        conn_lost(c);
    }
    str_free(&h->scratch);
    free(h);
}

int http_connections(const struct http *h)
{
    return h->n_conns;
}

void http_drain(struct http *h)
{
    h->draining = true;
    for (struct conn *c = h->idle_first, *next; c; c = next) {
        next = c->idle_next;
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0) {
            idle_remove(c);
            c->state = CONN_FLUSH;
        } else {
            conn_close(c);
        }
    }
}

void http_accept(struct http *h, evutil_socket_t fd)
{
    if (h->n_conns >= h->limits.max_connections) {
        struct conn *oldest = h->idle_first;
        while (oldest && evbuffer_get_length(bufferevent_get_output(oldest->bev)) > 0)
            oldest = oldest->idle_next;
        if (!oldest) {
            static const char busy[] =
                "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
                "Content-Length: 0\r\n\r\n";
            if (!h->tls && send(fd, busy, sizeof busy - 1, MSG_NOSIGNAL) < 0) {
                /* nothing is lost: it is closed either way */
            }
            evutil_closesocket(fd);
            return;
        }
        conn_close(oldest);
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails harmlessly on a Unix socket */
    struct conn *c = mem_zalloc(1, sizeof *c);
    c->http = h;
    c->bev =
        h->tls ? tls_accept(h->tls, h->base, fd) : bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) {
        evutil_closesocket(fd);
        free(c);
        return;
    }
    c->next = h->conns;
    if (h->conns)
        h->conns->prev = c;
    h->conns = c;
    h->n_conns++;
    c->x.head.content_length = -1;
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    size_t early = h->limits.max_head > MAX_PIPELINED ? h->limits.max_head : MAX_PIPELINED;
    bufferevent_setwatermark(c->bev, EV_READ, 0, early);
    set_timeouts(c, h->limits.idle_seconds);
    idle_add(c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

/* --- reading requests ---------------------------------------------------------------------------- */

/* Refuses a request that cannot be read further. */
static void refuse(struct conn *c, int status, const char *why)
{
    struct str body = {0};
    c->body_unread = true;
    idle_remove(c);
    c->state = CONN_BUSY;
    c->http->handlers.refusal(c->http->handlers.arg, &c->x, status, why, &body);
    http_reply(&c->x, status, "application/json", NULL, str_text(&body), body.len);
    str_free(&body);
}

/* Takes a line of at most MAX_LINE bytes. 1 = *line is it, 0 = not there yet, -1 = too long. */
static int take_line(struct evbuffer *in, char line[MAX_LINE + 1])
{
    struct evbuffer_ptr end = evbuffer_search_eol(in, NULL, NULL, EVBUFFER_EOL_CRLF_STRICT);
    if (end.pos < 0)
        return evbuffer_get_length(in) > MAX_LINE ? -1 : 0;
    if (end.pos > MAX_LINE)
        return -1;
    evbuffer_remove(in, line, (size_t)end.pos);
    line[end.pos] = '\0';
    evbuffer_drain(in, 2);
    return 1;
}

static void body_complete(struct conn *c)
{
    c->state = CONN_BUSY;
    c->x.arrived = clock_now();
    set_timeouts(c, 0);
    c->http->handlers.request(c->http->handlers.arg, &c->x);
}

/* false: not enough input yet, or refused. */
static bool read_head(struct conn *c, struct evbuffer *in)
{
    /* blank lines before a request are skipped, as old clients send them */
    while (evbuffer_get_length(in) >= 2 && memcmp(evbuffer_pullup(in, 2), "\r\n", 2) == 0)
        evbuffer_drain(in, 2);
    size_t have = evbuffer_get_length(in);
    if (have == 0)
        return false;
    if (c->idle) {
        idle_remove(c);
        c->since = clock_now();
        set_timeouts(c, c->http->limits.head_seconds);
    }
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    if (end.pos < 0 || (size_t)end.pos + 4 > c->http->limits.max_head) {
        if (end.pos >= 0 || have >= c->http->limits.max_head)
            refuse(c, 431, "the request's headers are too large");
        else if (clock_now() - c->since > c->http->limits.head_seconds)
            refuse(c, 408, "the request's headers took too long to arrive");
        return false;
    }
    size_t len = (size_t)end.pos + 4;
    const char *why = NULL;
    int status = http_head_parse(&c->x.head, (const char *)evbuffer_pullup(in, (ev_ssize_t)len), len, &why);
    evbuffer_drain(in, len);
    if (status) {
        refuse(c, status, why);
        return false;
    }
    struct http_head *head = &c->x.head;
    bool has_body = head->chunked || head->content_length > 0;
    c->body_unread =
        has_body; /* until it is in; tells a reply sent from `begin` that the connection is spent */
    c->state = CONN_BUSY;
    c->http->handlers.begin(c->http->handlers.arg, &c->x);
    if (c->state != CONN_BUSY) /* answered */
        return true;
    if (head->content_length > 0 && (size_t)head->content_length > c->http->limits.max_body) {
        refuse(c, 413, "the request's body is too large");
        return false;
    }
    if (has_body && head->expects_continue && !head->is_http10)
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    if (!has_body) {
        body_complete(c);
        return true;
    }
    set_timeouts(c, c->http->limits.body_seconds);
    c->state = head->chunked ? CONN_SIZE : CONN_BODY;
    c->left = head->chunked ? 0 : (size_t)head->content_length;
    return true;
}

/* Moves up to c->left bytes of input to the body. false = refused. */
static bool read_body_bytes(struct conn *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_length(in);
    if (n > c->left)
        n = c->left;
    if (c->http->bodies + n > c->http->limits.max_bodies) {
        refuse(c, 503, "the server is busy with other large requests: try again later");
        return false;
    }
    c->http->bodies += n;
    c->counted += n;
    str_reserve(&c->x.body, n);
    evbuffer_remove(in, c->x.body.data + c->x.body.len, n);
    c->x.body.len += n;
    c->x.body.data[c->x.body.len] = '\0';
    c->left -= n;
    return true;
}

static bool read_chunk_size(struct conn *c, struct evbuffer *in)
{
    char line[MAX_LINE + 1];
    int got = take_line(in, line);
    if (got == 0)
        return false;
    size_t digits = got < 0 ? 0 : strspn(line, "0123456789abcdefABCDEF");
    if (digits == 0 || digits > 15 || (line[digits] && line[digits] != ';' && line[digits] != ' ')) {
        refuse(c, 400, "malformed chunk size");
        return false;
    }
    c->left = strtoull(line, NULL, 16);
    if (c->left > c->http->limits.max_body - c->x.body.len) {
        refuse(c, 413, "the request's body is too large");
        return false;
    }
    c->state = c->left ? CONN_CHUNK : CONN_TRAILER;
    return true;
}

/* Trailers are read and forgotten, up to the blank line. */
static bool read_trailer(struct conn *c, struct evbuffer *in)
{
    char line[MAX_LINE + 1];
    int got = take_line(in, line);
    if (got < 0 || (got > 0 && ++c->left > 64))
        refuse(c, 431, "the request's trailers are too large");
    if (got <= 0 || c->state != CONN_TRAILER)
        return false;
    if (line[0] == '\0') {
        c->body_unread = false;
        body_complete(c);
    }
    return true;
}

/* Reads on as far as the input goes, request after request. */
static void process(struct conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    bool more = true;
    c->processing = true;
    while (more) {
        switch (c->state) {
        case CONN_HEAD:
            more = read_head(c, in);
            break;
        case CONN_BODY:
            more = evbuffer_get_length(in) > 0 && read_body_bytes(c, in);
            if (more && c->left == 0) {
                c->body_unread = false;
                body_complete(c);
            }
            break;
        case CONN_SIZE:
            more = read_chunk_size(c, in);
            break;
        case CONN_CHUNK:
            more = evbuffer_get_length(in) > 0 && read_body_bytes(c, in);
            if (more && c->left == 0)
                c->state = CONN_CRLF;
            break;
        case CONN_CRLF:
            more = evbuffer_get_length(in) >= 2;
            if (!more)
                break;
            if (memcmp(evbuffer_pullup(in, 2), "\r\n", 2) != 0) {
                refuse(c, 400, "malformed chunk");
                break;
            }
            evbuffer_drain(in, 2);
            c->state = CONN_SIZE;
            break;
        case CONN_TRAILER:
            more = read_trailer(c, in);
            break;
        case CONN_BUSY:
        case CONN_STREAM:
        case CONN_FLUSH:
        case CONN_LINGER:
            more = false;
            break;
        }
    }
    c->processing = false;
}

/* --- writing replies ----------------------------------------------------------------------------- */

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Status";
    }
}

/* Adds to the output what is in scratch and then `body`. In one piece where that is cheap: under TLS each
 * piece that finds the output empty becomes a record, and a packet, of its own. */
static void flush(struct conn *c, const char *body, size_t len)
{
    struct str *s = &c->http->scratch;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (len <= MAX_COPIED) {
        str_add(s, body, len);
        len = 0;
    }
    evbuffer_add(out, str_text(s), s->len);
    if (len > 0)
        evbuffer_add(out, body, len);
    str_clear(s);
}

static void write_head(struct conn *c, int status, const char *content_type, const char *headers)
{
    char date[64];
    evutil_date_rfc1123(date, sizeof date, NULL);
    c->x.status = status;
    if (c->http->draining || c->body_unread)
        c->x.head.keep_alive = false;
    struct str *s = &c->http->scratch;
    str_addf(s, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: sluice\r\n", status, reason(status), date);
    if (content_type)
        str_addf(s, "Content-Type: %s\r\n", content_type);
    if (headers)
        str_adds(s, headers);
    c->http->handlers.headers(c->http->handlers.arg, &c->x, s);
    if (!c->x.head.keep_alive)
        str_adds(s, "Connection: close\r\n");
    else if (c->x.head.is_http10)
        str_adds(s, "Connection: keep-alive\r\n");
}

void http_reply(struct http_exchange *x, int status, const char *content_type, const char *headers,
                const char *body, size_t len)
{
    struct conn *c = (struct conn *)x;
    write_head(c, status, content_type, headers);
    str_addf(&c->http->scratch, "Content-Length: %zu\r\n\r\n", len);
    bool head_only = x->head.method && strcmp(x->head.method, "HEAD") == 0;
    flush(c, body, head_only ? 0 : len);
    reply_done(c);
}

void http_stream_begin(struct http_exchange *x, const char *content_type, const char *headers)
{
    struct conn *c = (struct conn *)x;
    if (x->head.is_http10)
        x->head.keep_alive = false; /* it knows no chunks: the end is the connection's */
    write_head(c, 200, content_type, headers);
    str_adds(&c->http->scratch, x->head.is_http10 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    flush(c, "", 0);
    c->state = CONN_STREAM;
}

void http_stream_add(struct http_exchange *x, const char *bytes, size_t len)
{
    struct conn *c = (struct conn *)x;
    if (len == 0)
        return;
    if (!x->head.is_http10)
        str_addf(&c->http->scratch, "%zx\r\n", len);
    str_add(&c->http->scratch, bytes, len);
    flush(c, "\r\n", x->head.is_http10 ? 0 : 2);
}

void http_stream_end(struct http_exchange *x)
{
    struct conn *c = (struct conn *)x;
    if (!x->head.is_http10)
        flush(c, "0\r\n\r\n", 5);
    reply_done(c);
}

size_t http_stream_pending(const struct http_exchange *x)
{
    return evbuffer_get_length(bufferevent_get_output(((const struct conn *)x)->bev));
}

void http_abort(struct http_exchange *x)
{
    conn_close((struct conn *)x);
}
