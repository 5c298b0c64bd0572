/* The whole server over real sockets, before a fake engine whose speed the test sets: framing, limits,
 * hang-ups in every state, slow clients, draining. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/server.h"
#include "served.h"

struct running {
    struct served served;
    struct server_options options;
    struct server *server;
    pthread_t thread;
    int status;
};

static void *run_main(void *arg)
{
    struct running *r = arg;
    r->status = server_run(r->server);
    return NULL;
}

/* Binds and runs the loop, without a model. */
static void launch(struct running *r)
{
    struct err e = {0};
    served_open(&r->served);
    r->served.engine.step_seconds = 0.001;
    r->options.host = "127.0.0.1";
    r->options.port = 0;
    r->options.stats_seconds = 0;
    r->server = server_create(&r->options, &e);
    if (!r->server)
        fail_msg("%s", e.msg);
    pthread_create(&r->thread, NULL, run_main, r);
}

static void launch_served(struct running *r)
{
    struct err e = {0};
    launch(r);
    assert_int_equal(server_attach(r->server, &r->served.model, &e), 0);
}

static void init(struct running *r)
{
    memset(r, 0, sizeof *r);
    server_options_init(&r->options);
}

/* Waits for the loop to end and frees all. */
static void reap(struct running *r)
{
    pthread_join(r->thread, NULL);
    served_close(&r->served);
    server_free(r->server);
}

static void stop(struct running *r)
{
    server_stop(r->server, 7);
    reap(r);
    assert_int_equal(r->status, 7);
}

/* --- a client ------------------------------------------------------------------------------------ */

static int dial(struct running *r)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)server_port(r->server)),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void say(int fd, const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), n);
}

/* Reads until `stop` appears, the peer closes, or a minute passed (a hang). Returns what came (static). */
static const char *hear(int fd, const char *until)
{
    static char text[1 << 20];
    size_t n = 0;
    text[0] = '\0';
    while (n + 1 < sizeof text) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 60000) <= 0)
            fail_msg("nothing more after: %s", text);
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        text[n] = '\0';
        if (until && strstr(text, until))
            break;
    }
    return text;
}

/* One request on a new connection that the server closes. */
static const char *ask(struct running *r, const char *method, const char *path, const char *body)
{
    char text[4096];
    snprintf(text, sizeof text,
             "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             method, path, strlen(body), body);
    int fd = dial(r);
    assert_true(fd >= 0);
    say(fd, text);
    const char *reply = hear(fd, NULL);
    close(fd);
    return reply;
}

static int status_of(const char *reply)
{
    int status = 0;
    sscanf(reply, "HTTP/1.1 %d", &status);
    return status;
}

static void nap(double seconds)
{
    sluice_wait(NULL, seconds);
}

static void expect_idle(struct running *r)
{
    struct sluice_stats s;
    for (int i = 0; i < 500; i++) {
        sluice_stats(&r->served.engine, &s);
        if (s.running + s.waiting == 0)
            return;
        nap(0.01);
    }
    fail_msg("%d running, %d waiting after the client left", s.running, s.waiting);
}

static void post(int fd, const char *path, const char *body)
{
    char text[4096];
    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
    say(fd, text);
}

#define LONG_STREAM "{\"prompt\": \"a\", \"max_tokens\": 250, \"ignore_eos\": true, \"stream\": true}"
#define LONG_WHOLE  "{\"prompt\": \"a\", \"max_tokens\": 250, \"ignore_eos\": true}"
#define SHORT       "{\"prompt\": \"a\", \"max_tokens\": 3, \"seed\": 1}"

/* --- tests --------------------------------------------------------------------------------------- */

static void test_routes(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    launch(&r);
    const char *reply = ask(&r, "GET", "/health", "");
    assert_int_equal(status_of(reply), 503);
    assert_non_null(strstr(reply, "Loading model"));
    assert_int_equal(status_of(ask(&r, "POST", "/v1/completions", SHORT)), 503);
    assert_int_equal(status_of(ask(&r, "GET", "/version", "")), 200);
    struct err e;
    assert_int_equal(server_attach(r.server, &r.served.model, &e), 0);
    nap(0.02);
    reply = ask(&r, "GET", "/health", "");
    assert_int_equal(status_of(reply), 200);
    assert_non_null(strstr(reply, "Content-Length: 0\r\n"));
    assert_int_equal(status_of(ask(&r, "POST", "/ping", "")), 200);
    assert_non_null(strstr(ask(&r, "GET", "/v1/models", ""), "\"id\":\"tiny\""));
    assert_non_null(strstr(ask(&r, "GET", "/v1/models/alias%2Fof-tiny", ""), "\"id\":\"alias/of-tiny\""));
    assert_int_equal(status_of(ask(&r, "GET", "/v1/models/none", "")), 404);
    assert_non_null(strstr(ask(&r, "GET", "/load", ""), "{\"server_load\":0}"));
    reply = ask(&r, "GET", "/nowhere", "");
    assert_int_equal(status_of(reply), 404);
    assert_non_null(strstr(reply, "{\"detail\":\"Not Found\"}"));
    reply = ask(&r, "GET", "/v1/completions", "");
    assert_int_equal(status_of(reply), 405);
    assert_non_null(strstr(reply, "Allow: POST\r\n"));
    assert_non_null(strstr(reply, "{\"detail\":\"Method Not Allowed\"}"));
    reply = ask(&r, "HEAD", "/v1/models", "");
    assert_int_equal(status_of(reply), 405);
    assert_string_equal(strstr(reply, "\r\n\r\n"), "\r\n\r\n"); /* no body after HEAD */
    reply = ask(&r, "POST", "/v1/completions", SHORT);
    assert_int_equal(status_of(reply), 200);
    assert_non_null(strstr(reply, "\"finish_reason\":\"length\""));
    assert_int_equal(status_of(ask(&r, "POST", "/v1/completions", "{")), 400);
    assert_int_equal(status_of(ask(&r, "POST", "/tokenize", "{\"prompt\": \"a b\"}")), 200);
    assert_int_equal(status_of(ask(&r, "POST", "/detokenize", "{\"tokens\": [300]}")), 200);
    reply = ask(&r, "GET", "/metrics", "");
    assert_non_null(strstr(reply, "Content-Type: text/plain; version=1.0.0; charset=utf-8"));
    assert_non_null(strstr(reply, "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0\n"));
    assert_non_null(strstr(
        reply,
        "vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"length\"} 1\n"));
    assert_non_null(
        strstr(reply, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"4xx\"} 1\n"));
    int fd = dial(&r);
    say(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: "
            "2\r\n\r\n{}");
    reply = hear(fd, NULL);
    assert_int_equal(status_of(reply), 400);
    assert_non_null(strstr(reply, "application/json"));
    close(fd);
    stop(&r);
}

static void test_stream(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.request_id_headers = true;
    launch_served(&r);
    int fd = dial(&r);
    say(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json; charset=utf-8\r\n"
            "X-Request-Id: my-name\r\nContent-Length: 60\r\n\r\n"
            "{\"prompt\": \"a\", \"max_tokens\": 3, \"seed\": 1, \"stream\": true }");
    const char *reply = hear(fd, "0\r\n\r\n");
    assert_int_equal(status_of(reply), 200);
    assert_non_null(strstr(reply, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    assert_non_null(strstr(reply, "Transfer-Encoding: chunked\r\n"));
    assert_non_null(strstr(reply, "X-Request-Id: my-name\r\n"));
    assert_null(strstr(reply, "Content-Length"));
    assert_non_null(strstr(reply, "\"id\":\"cmpl-my-name\""));
    assert_non_null(strstr(reply, "data: [DONE]\n\n"));
    /* the connection lives on */
    post(fd, "/v1/completions", SHORT);
    reply = hear(fd, "\"metrics\":null}");
    assert_int_equal(status_of(reply), 200);
    close(fd);
    /* HTTP/1.0 has no chunks: the end is the connection's */
    fd = dial(&r);
    say(fd, "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n"
            "{\"prompt\": \"a\", \"max_tokens\": 3, \"seed\": 1, \"stream\": true }");
    reply = hear(fd, NULL);
    assert_non_null(strstr(reply, "data: [DONE]\n\n"));
    assert_null(strstr(reply, "chunked"));
    close(fd);
    stop(&r);
}

static void test_framing(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.max_body_bytes = 1000;
    launch_served(&r);
    /* three requests at once, the middle one slow: answers in order */
    int fd = dial(&r);
    char text[2000];
    snprintf(text, sizeof text,
             "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
             "%zu\r\n\r\n%s"
             "\r\nGET /load HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
             strlen(SHORT), SHORT);
    say(fd, text);
    const char *reply = hear(fd, NULL);
    const char *version = strstr(reply, "{\"version\""), *answer = strstr(reply, "text_completion"),
               *load = strstr(reply, "server_load");
    assert_true(version && answer && load && version < answer && answer < load);
    close(fd);
    /* chunked, byte by byte */
    fd = dial(&r);
    say(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
    assert_non_null(strstr(hear(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue"));
    const char *body = SHORT;
    for (size_t i = 0; i < strlen(body); i++) {
        snprintf(text, sizeof text, "1;x=y\r\n%c\r\n", body[i]);
        say(fd, text);
    }
    say(fd, "0\r\nTrailer: x\r\n\r\n");
    assert_int_equal(status_of(hear(fd, "\"metrics\":null}")), 200);
    close(fd);
    /* malformed and oversized ones */
    static const struct {
        const char *text;
        int status;
    } bad[] = {
        {"GARBAGE\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
         "1001\r\n\r\n",
         413},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "zz\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "ffffffffffffffff\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "fffffffffffffff\r\n",
         413},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "3e9\r\n",
         413},
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "1\r\nabc",
         400},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fd = dial(&r);
        say(fd, bad[i].text);
        reply = hear(fd, NULL);
        if (status_of(reply) != bad[i].status || !strstr(reply, "Connection: close") ||
            !strstr(reply, "\"error\""))
            fail_msg("%s gives %s", bad[i].text, reply);
        close(fd);
    }
    /* a huge head */
    fd = dial(&r);
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\nA: ");
    char *filler = malloc(70001);
    memset(filler, 'a', 70000);
    filler[70000] = '\0';
    if (send(fd, filler, 70000, MSG_NOSIGNAL) < 0)
        assert_int_equal(errno, EPIPE);
    assert_int_equal(status_of(hear(fd, NULL)), 431);
    close(fd);
    free(filler);
    assert_int_equal(status_of(ask(&r, "GET", "/health", "")), 200);
    stop(&r);
}

/* A client that leaves is noticed at once and its requests end, whatever state they are in. */
static void test_hang_up(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        LONG_STREAM, LONG_WHOLE,
        "{\"prompt\": [\"a\", \"b\"], \"n\": 2, \"max_tokens\": 250, \"ignore_eos\": true}"};
    struct running r;
    init(&r);
    launch_served(&r);
    r.served.engine.step_seconds = 0.02;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int reset = 0; reset < 2; reset++) {
            int fd = dial(&r);
            post(fd, "/v1/completions", bodies[i]);
            struct sluice_stats s = {0};
            for (int k = 0; k < 500 && s.running == 0; k++) {
                nap(0.005);
                sluice_stats(&r.served.engine, &s);
            }
            assert_true(s.running > 0);
            if (reset) { /* RST in place of FIN */
                struct linger now = {1, 0};
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
            }
            sluice_stats(&r.served.engine, &s);
            uint64_t step = s.steps;
            close(fd);
            expect_idle(&r);
            sluice_stats(&r.served.engine, &s);
            assert_true(s.steps - step <= 3); /* the one under way, and at most two more */
        }
    /* in prefill */
    r.served.engine.prefill_steps = 1000;
    int fd = dial(&r);
    post(fd, "/v1/completions", LONG_WHOLE);
    nap(0.1);
    close(fd);
    expect_idle(&r);
    r.served.engine.prefill_steps = 0;
    /* while the engine stands still, so that the request only waits */
    r.served.engine.frozen = true;
    nap(0.05);
    fd = dial(&r);
    post(fd, "/v1/completions", LONG_STREAM);
    nap(0.1);
    close(fd);
    nap(0.1);
    pthread_mutex_lock(&r.served.engine.lock);
    assert_true(r.served.engine.requests && r.served.engine.requests->cancelled);
    r.served.engine.frozen = false;
    pthread_mutex_unlock(&r.served.engine.lock);
    expect_idle(&r);
    /* in the middle of the head, and of the body */
    fd = dial(&r);
    say(fd, "POST /v1/comp");
    close(fd);
    fd = dial(&r);
    say(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            "500\r\n\r\n{\"pro");
    close(fd);
    /* hang-ups are no successes */
    const char *reply = ask(&r, "GET", "/metrics", "");
    assert_non_null(strstr(reply, "finished_reason=\"abort\"} 0\n"));
    stop(&r);
}

/* A client that does not read: others go on, and beyond the bound it is dropped. */
static void test_slow_client(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.max_stream_bytes = 100000;
    launch_served(&r);
    r.served.engine.step_seconds = 0.0002;
    int fd = socket(AF_INET, SOCK_STREAM, 0), small = 2048;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)server_port(r.server)),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    post(fd, "/v1/completions",
         "{\"prompt\": \"a\", \"n\": 64, \"max_tokens\": 250, \"ignore_eos\": true, \"logprobs\": 20, "
         "\"stream\": true}");
    nap(0.05);
    for (int i = 0; i < 5; i++)
        assert_int_equal(status_of(ask(&r, "POST", "/v1/completions", SHORT)), 200);
    expect_idle(&r);
    const char *reply = hear(fd, NULL);
    assert_null(strstr(reply, "[DONE]")); /* it was cut off */
    close(fd);
    reply = ask(&r, "GET", "/metrics", "");
    assert_non_null(strstr(reply, "finished_reason=\"length\"} 5\n"));
    stop(&r);
}

static void test_auth(void **state)
{
    (void)state;
    static const char *const keys[] = {"secret", "other"};
    struct running r;
    init(&r);
    r.options.api_keys = keys;
    r.options.n_api_keys = 2;
    launch_served(&r);
    const char *reply = ask(&r, "POST", "/v1/completions", SHORT);
    assert_int_equal(status_of(reply), 401);
    assert_non_null(strstr(reply, "\"code\":401"));
    assert_int_equal(status_of(ask(&r, "GET", "/v1/models", "")), 401);
    assert_int_equal(status_of(ask(&r, "GET", "/health", "")), 200);
    int fd = dial(&r);
    say(fd, "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: bearer other\r\nConnection: close\r\n\r\n");
    assert_int_equal(status_of(hear(fd, NULL)), 200);
    close(fd);
    stop(&r);
}

static void test_connections(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.max_connections = 50;
    r.options.keep_alive_seconds = 0.5;
    launch_served(&r);
    int fds[200];
    for (int i = 0; i < 200; i++)
        assert_true((fds[i] = dial(&r)) >= 0);
    assert_int_equal(status_of(ask(&r, "GET", "/health", "")), 200); /* the idlest made room */
    char c;
    assert_int_equal(recv(fds[0], &c, 1, 0), 0);
    for (int i = 1; i < 200; i++)
        close(fds[i]);
    close(fds[0]);
    int fd = dial(&r);
    assert_string_equal(hear(fd, NULL), ""); /* closed after half a second of silence */
    close(fd);
    /* all busy: the next is told so */
    r.served.engine.step_seconds = 0.05;
    for (int i = 0; i < 50; i++) {
        fds[i] = dial(&r);
        post(fds[i], "/v1/completions", LONG_WHOLE);
    }
    nap(0.2);
    fd = dial(&r);
    assert_int_equal(status_of(hear(fd, NULL)), 503);
    close(fd);
    for (int i = 0; i < 50; i++)
        close(fds[i]);
    expect_idle(&r);
    stop(&r);
}

static void test_stalled_engine(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.stall_seconds = 1; /* a busy machine may keep a thread from running for a while */
    launch_served(&r);
    r.served.engine.prefill_steps = 1000000;
    int fd = dial(&r);
    post(fd, "/v1/completions", LONG_WHOLE);
    nap(0.05);
    assert_int_equal(status_of(ask(&r, "GET", "/health", "")), 200);
    r.served.engine.frozen = true;
    nap(1.2);
    const char *reply = ask(&r, "GET", "/health", "");
    assert_int_equal(status_of(reply), 503);
    assert_non_null(strstr(reply, "stalled"));
    close(fd);
    stop(&r);
}

static void test_drain(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    launch_served(&r);
    r.served.engine.step_seconds = 0.002;
    int idle = dial(&r), busy = dial(&r), half = dial(&r);
    say(half, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
              "50\r\n");
    post(busy, "/v1/completions", LONG_STREAM);
    hear(busy, "data: ");
    kill(getpid(), SIGTERM);
    assert_string_equal(hear(idle, NULL), ""); /* closed */
    assert_int_equal(dial(&r), -1);            /* no new connections */
    say(half, "\r\n");
    assert_int_equal(status_of(hear(half, NULL)), 503); /* no new work */
    const char *rest = hear(busy, NULL);
    assert_non_null(strstr(rest, "data: [DONE]\n\n")); /* what runs is finished */
    assert_non_null(strstr(rest, "\"finish_reason\":\"length\""));
    reap(&r);
    assert_int_equal(r.status, 0);
    close(idle);
    close(busy);
    close(half);
}

static void test_drain_limit(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    r.options.shutdown_seconds = 0.1;
    launch_served(&r);
    r.served.engine.step_seconds = 0.02; /* five seconds for the answer */
    int fd = dial(&r);
    post(fd, "/v1/completions", LONG_STREAM);
    hear(fd, "data: ");
    double began = clock_now();
    kill(getpid(), SIGTERM);
    const char *rest = hear(fd, NULL);
    assert_non_null(strstr(rest, "\"finish_reason\":\"abort\""));
    assert_non_null(strstr(rest, "data: [DONE]\n\n"));
    reap(&r);
    assert_int_equal(r.status, 0);
    assert_true(clock_now() - began < 3);
    close(fd);
}

static void test_port_in_use(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    launch_served(&r);
    struct server_options o;
    struct err e;
    server_options_init(&o);
    o.host = "127.0.0.1";
    o.port = server_port(r.server);
    assert_null(server_create(&o, &e));
    char where[64];
    snprintf(where, sizeof where, "127.0.0.1:%d", o.port);
    assert_non_null(strstr(e.msg, where));
    assert_non_null(strstr(e.msg, "--port"));
    o.host = "256.256.256.256";
    assert_null(server_create(&o, &e));
    stop(&r);
}

/* Many at once: each gets what it gets alone. */
static void test_concurrent(void **state)
{
    (void)state;
    struct running r;
    init(&r);
    launch_served(&r);
    r.served.engine.step_seconds = 0.0005;
    char solo[8][4096], body[200];
    int fds[8];
    for (int i = 0; i < 8; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"word %d\", \"max_tokens\": 40, \"ignore_eos\": true}", i);
        const char *reply = ask(&r, "POST", "/v1/completions", body);
        snprintf(solo[i], sizeof solo[i], "%s", strstr(reply, "\"text\""));
        *strstr(solo[i], "\"logprobs\"") = '\0';
    }
    assert_string_not_equal(solo[0], solo[1]);
    for (int i = 0; i < 8; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"word %d\", \"max_tokens\": 40, \"ignore_eos\": true}", i);
        fds[i] = dial(&r);
        post(fds[i], "/v1/completions", body);
    }
    for (int i = 0; i < 8; i++) {
        assert_non_null(strstr(hear(fds[i], "usage"), solo[i]));
        close(fds[i]);
    }
    stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),      cmocka_unit_test(test_stream),
        cmocka_unit_test(test_framing),     cmocka_unit_test(test_hang_up),
        cmocka_unit_test(test_slow_client), cmocka_unit_test(test_auth),
        cmocka_unit_test(test_connections), cmocka_unit_test(test_stalled_engine),
        cmocka_unit_test(test_drain),       cmocka_unit_test(test_drain_limit),
        cmocka_unit_test(test_port_in_use), cmocka_unit_test(test_concurrent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
