#include "http/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/internal.h"

#define N_WORKERS       3
#define BACKLOG         1024
#define QUIET_LOOK_USEC 100000 /* between two looks for silent streams */
#define RESERVED_FILES  64     /* descriptors that are not connections */

void server_options_init(struct server_options *o)
{
    *o = (struct server_options){.port = 8000,
                                 .max_body_bytes = (size_t)32 << 20,
                                 .max_stream_bytes = (size_t)8 << 20,
                                 .max_connections = 8192,
                                 .keep_alive_seconds = 60,
                                 .shutdown_seconds = 30,
                                 .stall_seconds = 300,
                                 .stats_seconds = 10};
}

/* --- waking the loop ----------------------------------------------------------------------------- */

/* Any thread; never blocks. */
static void wake(void *arg)
{
    struct server *s = arg;
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(s->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct server *s = arg;
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
        log_warn("reading the wake-up descriptor: %s", strerror(errno));
    if (atomic_load(&s->stopping)) {
        event_base_loopbreak(s->base);
        return;
    }
    if (!s->model && (s->model = atomic_load(&s->attached)))
        metrics_init(&s->metrics, s->model->max_model_len, s->options.buckets);
    if (!s->model)
        return;
    struct sluice_stats stats;
    sluice_stats(s->model->engine, &stats);
    metrics_add_steps(&s->metrics, &stats);
    tasks_advance(s);
}

int server_attach(struct server *s, const struct api_model *m, struct err *e)
{
    if (sluice_start(m->engine, wake, s, e))
        return -1;
    atomic_store(&s->attached, m);
    wake(s);
    return 0;
}

void server_set_read_bandwidth(struct server *s, double bandwidth)
{
    s->read_bandwidth = bandwidth;
}

void server_stop(struct server *s, int status)
{
    atomic_store(&s->status, status);
    atomic_store(&s->stopping, true);
    wake(s);
}

/* --- listening ----------------------------------------------------------------------------------- */

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int len, void *arg)
{
    (void)l, (void)from, (void)len;
    struct server *s = arg;
    http_accept(s->http, fd);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct server *s = arg;
    for (int i = 0; i < s->n_listeners; i++)
        evconnlistener_enable(s->listeners[i]);
}

/* Out of descriptors or the like: the connection stays in the backlog, so trying at once would spin. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    (void)l;
    struct server *s = arg;
    log_warn("cannot accept a connection: %s", strerror(errno));
    for (int i = 0; i < s->n_listeners; i++)
        evconnlistener_disable(s->listeners[i]);
    event_add(s->accept_timer, &(struct timeval){.tv_usec = 200000});
}

/* Takes over a listening socket. */
static int add_listener(struct server *s, int fd, struct err *e)
{
    struct evconnlistener *l =
        evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!l) {
        close(fd);
        return err_set(e, ERR_NO_MEMORY, "no memory for the event loop");
    }
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners[s->n_listeners++] = l;
    return 0;
}

/* A socket that listens, or -1 with errno. */
static int listening_socket(const struct sockaddr *address, socklen_t len)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int on = 1, off = 0;
    if (address->sa_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6) /* "::" takes IPv4 clients too */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, len) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int listen_unix(struct server *s, struct err *e)
{
    const char *path = s->options.uds;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(e, ERR_INVALID,
                       "the socket path %.80s… is longer than the system's limit of %zu bytes", path,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    struct stat st;
    if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        /* left behind by a server that is gone? Then nobody answers */
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool dead =
            probe >= 0 && connect(probe, (struct sockaddr *)&a, sizeof a) < 0 && errno == ECONNREFUSED;
        if (probe >= 0)
            close(probe);
        if (dead)
            unlink(path);
    }
    int fd = listening_socket((struct sockaddr *)&a, sizeof a);
    if (fd < 0)
        return err_set(e, ERR_IO, "cannot listen on %s: %s", path, strerror(errno));
    snprintf(s->url, sizeof s->url, "unix:%.200s", path);
    return add_listener(s, fd, e);
}

static int port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    socklen_t len = sizeof a;
    memset(&a, 0, sizeof a);
    if (getsockname(fd, &a.any, &len))
        return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

static int bind_error(const struct server *s, int why, struct err *e)
{
    const char *host = s->options.host ? s->options.host : "*";
    const char *advice = why == EADDRINUSE      ? ": stop the program that uses it, or choose another --port"
                         : why == EACCES        ? ": ports below 1024 need privileges, choose another --port"
                         : why == EADDRNOTAVAIL ? ": this machine has no such address, choose another --host"
                                                : "";
    return err_set(e, ERR_IO, "cannot listen on %s:%d: %s%s", host, s->port, strerror(why), advice);
}

static int listen_tcp(struct server *s, struct err *e)
{
    const char *host = s->options.host && s->options.host[0] ? s->options.host : NULL;
    s->port = s->options.port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    /* for "all interfaces" the IPv6 wildcard takes IPv4 too, where the system has IPv6 */
    int rc = host ? getaddrinfo(host, "0", &hints, &list) : 0;
    if (rc)
        return err_set(e, ERR_IO, "cannot listen on %s: %s", host, gai_strerror(rc));
    int why = EADDRNOTAVAIL;
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in any4 = {.sin_family = AF_INET};
    struct addrinfo second = {
        .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&any4, .ai_addrlen = sizeof any4};
    struct addrinfo first = {.ai_family = AF_INET6,
                             .ai_addr = (struct sockaddr *)&any6,
                             .ai_addrlen = sizeof any6,
                             .ai_next = &second};
    for (struct addrinfo *a = host ? list : &first; a && s->n_listeners < MAX_LISTENERS; a = a->ai_next) {
        if (a->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons((uint16_t)s->port);
        else if (a->ai_family == AF_INET)
            ((struct sockaddr_in *)a->ai_addr)->sin_port = htons((uint16_t)s->port);
        else
            continue;
        int fd = listening_socket(a->ai_addr, a->ai_addrlen);
        if (fd < 0) {
            why = errno;
            if (why == EADDRINUSE || why == EACCES)
                break;
            continue; /* an address family that this machine lacks */
        }
        s->port = port_of(fd); /* with port 0 all addresses get the first one's */
        if (add_listener(s, fd, e)) {
            why = -1;
            break;
        }
        if (!host)
            break;
        why = 0;
    }
    if (list)
        freeaddrinfo(list);
    if (why == -1)
        return -1;
    if (s->n_listeners == 0 || why == EADDRINUSE)
        return bind_error(s, why, e);
    const char *shown = host ? host : "0.0.0.0";
    snprintf(s->url, sizeof s->url, strchr(shown, ':') ? "%s://[%.200s]:%d" : "%s://%.200s:%d",
             s->options.tls.cert_file ? "https" : "http", shown, s->port);
    return 0;
}

static void close_listeners(struct server *s)
{
    for (int i = 0; i < s->n_listeners; i++)
        evconnlistener_free(s->listeners[i]);
    if (s->n_listeners && s->options.uds)
        unlink(s->options.uds);
    s->n_listeners = 0;
}

/* --- shutting down ------------------------------------------------------------------------------- */

static void on_drain(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct server *s = arg;
    double now = clock_now();
    if (s->n_tasks == 0 && (http_connections(s->http) == 0 || now > s->drain_since + 1)) {
        /* the second is for clients that have yet to take the end of their answer, or to close */
        event_base_loopbreak(s->base);
        return;
    }
    if (s->n_tasks > 0)
        s->drain_since = now;
    if (!s->aborted && now >= s->drain_deadline) {
        log_warn("%d requests are not done after %g s and are ended", s->n_tasks,
                 s->options.shutdown_seconds);
        s->aborted = true;
        tasks_abort(s);
    } else if (s->aborted && now >= s->drain_deadline + 5) {
        log_warn("the engine does not end its step: leaving anyway");
        event_base_loopbreak(s->base);
    }
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    (void)what;
    struct server *s = arg;
    if (s->draining || !s->model) {
        log_info("stopped by signal %d", (int)number);
        if (s->draining)
            _exit(0);
        event_base_loopbreak(s->base);
        return;
    }
    log_info("signal %d: no new requests; %d in flight have %g s (a second signal ends them now)",
             (int)number, s->n_tasks, s->options.shutdown_seconds);
    s->draining = true;
    s->drain_since = clock_now();
    s->drain_deadline = s->drain_since + s->options.shutdown_seconds;
    close_listeners(s);
    http_drain(s->http);
    event_add(s->drain_timer, &(struct timeval){.tv_usec = 20000});
}

static void on_quiet(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    tasks_keep_alive(arg);
}

/* --- the line of throughput ------------------------------------------------------------------- */

static void on_stats(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct server *s = arg;
    if (!s->model)
        return;
    struct sluice_stats now;
    sluice_stats(s->model->engine, &now);
    const struct sluice_stats *then = &s->reported;
    double t = clock_now(), seconds = t - s->reported_at;
    uint64_t steps = now.steps - then->steps;
    if (steps > 0 || now.running + now.waiting > 0) {
        double busy = now.total.seconds - then->total.seconds;
        double bytes = (double)(now.total.weight_bytes - then->total.weight_bytes);
        uint64_t prompt = now.prompt_tokens - then->prompt_tokens,
                 cached = now.cached_tokens + now.offload.found_tokens - then->cached_tokens -
                          then->offload.found_tokens; /* in memory, and on disk */
        uint64_t looked_up = now.looked_up_tokens - then->looked_up_tokens;
        char share[64] = "";
        if (s->read_bandwidth > 0 && busy > 0)
            snprintf(share, sizeof share, " (%.0f%% of the measured bandwidth)",
                     100 * bytes / busy / s->read_bandwidth);
        log_info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: "
            "%d reqs, "
            "Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%, weight "
            "stream: %.2f "
            "GB/s%s shared by %.1f reqs",
            (double)prompt / seconds, (double)(now.generation_tokens - then->generation_tokens) / seconds,
            now.running, now.waiting, now.kv_blocks ? 100.0 * now.kv_blocks_used / now.kv_blocks : 0,
            looked_up ? 100.0 * (double)cached / (double)looked_up : 0, busy > 0 ? bytes / busy / 1e9 : 0,
            share, steps ? (double)(now.total.seqs - then->total.seqs) / (double)steps : 0);
    }
    s->reported = now;
    s->reported_at = t;
}

/* --- life ---------------------------------------------------------------------------------------- */

/* Lets this process have as many connections as it may, and returns how many that is. */
static int connection_limit(int wanted)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return wanted;
    if (files.rlim_cur < files.rlim_max && files.rlim_cur < (rlim_t)wanted + RESERVED_FILES) {
        files.rlim_cur = files.rlim_max < (rlim_t)wanted + RESERVED_FILES ? files.rlim_max
                                                                          : (rlim_t)wanted + RESERVED_FILES;
        setrlimit(RLIMIT_NOFILE, &files);
        getrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur >= (rlim_t)wanted + RESERVED_FILES)
        return wanted;
    int fits = files.rlim_cur > 2 * RESERVED_FILES ? (int)files.rlim_cur - RESERVED_FILES : RESERVED_FILES;
    log_warn("the limit of open files allows %d connections, not %d (ulimit -n)", fits, wanted);
    return fits;
}

struct server *server_create(const struct server_options *o, struct err *e)
{
    struct server *s = mem_zalloc(1, sizeof *s);
    s->options = *o;
    s->started = (double)time(NULL);
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->base = event_base_new();
    if (s->wake_fd < 0 || !s->base) {
        err_set(e, ERR_IO, "the system refused an event loop: %s", strerror(errno));
        goto fail;
    }
    signal(SIGPIPE, SIG_IGN);
    s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->signals[0] = evsignal_new(s->base, SIGINT, on_signal, s);
    s->signals[1] = evsignal_new(s->base, SIGTERM, on_signal, s);
    s->stats_timer = event_new(s->base, -1, EV_PERSIST, on_stats, s);
    s->drain_timer = event_new(s->base, -1, EV_PERSIST, on_drain, s);
    s->accept_timer = evtimer_new(s->base, on_accept_again, s);
    s->quiet_timer = event_new(s->base, -1, EV_PERSIST, on_quiet, s);
    if (!s->wake || !s->signals[0] || !s->signals[1] || !s->stats_timer || !s->drain_timer ||
        !s->accept_timer || !s->quiet_timer) {
        err_set(e, ERR_NO_MEMORY, "no memory for the event loop");
        goto fail;
    }
    struct http_limits limits;
    http_limits_init(&limits);
    limits.max_body = o->max_body_bytes;
    if (limits.max_bodies < limits.max_body)
        limits.max_bodies = limits.max_body;
    limits.idle_seconds = o->keep_alive_seconds;
    limits.max_connections = connection_limit(o->max_connections);
    if (o->tls.cert_file && !(s->tls = tls_create(&o->tls, e)))
        goto fail;
    const struct http_handlers handlers = {s, routes_begin, routes_request, routes_refusal, routes_headers};
    s->http = http_create(s->base, &limits, &handlers, s->tls);
    if (o->uds ? listen_unix(s, e) : listen_tcp(s, e))
        goto fail;
    s->workers = workers_create(N_WORKERS, wake, s, e);
    if (!s->workers)
        goto fail;
    return s;
fail:
    server_free(s);
    return NULL;
}

int server_run(struct server *s)
{
    event_add(s->wake, NULL);
    event_add(s->signals[0], NULL);
    event_add(s->signals[1], NULL);
    s->reported_at = clock_now();
    double every = s->options.stats_seconds;
    if (every > 0)
        event_add(s->stats_timer,
                  &(struct timeval){(time_t)every, (suseconds_t)((every - (double)(time_t)every) * 1e6)});
    if (s->options.sse_keep_alive_seconds > 0)
        event_add(s->quiet_timer, &(struct timeval){.tv_usec = QUIET_LOOK_USEC});
    event_base_dispatch(s->base);
    close_listeners(s);
    http_free(s->http); /* hangs up on whoever is left: their tasks end */
    s->http = NULL;
    workers_stop(s->workers);
    tasks_free(s);
    return atomic_load(&s->status);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    close_listeners(s);
    http_free(s->http);
    tls_free(s->tls);
    if (s->workers)
        workers_stop(s->workers);
    workers_free(s->workers);
    struct event *events[] = {s->wake,        s->signals[0],   s->signals[1], s->stats_timer,
                              s->drain_timer, s->accept_timer, s->quiet_timer};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    free(s);
}

const char *server_url(const struct server *s)
{
    return s->url;
}

int server_port(const struct server *s)
{
    return s->port;
}
