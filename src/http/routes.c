/* Which path means what. Refusals that need no body (unknown path, wrong method, missing key, still loading)
 * are made before the body is read. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/fields.h"
#include "api/llamacpp.h"
#include "api/messages.h"
#include "api/protocols.h"
#include "api/render.h"
#include "api/responses.h"
#include "api/responses_store.h"
#include "api/tokenizer_info.h"
#include "api/tokens.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "http/auth.h"
#include "http/docs.h"
#include "http/internal.h"

enum { GET = 1, POST = 2, HEAD = 4 };

struct route {
    const char *path;
    const char *pattern; /* not NULL: `path` is a prefix, the rest an argument; how metrics call it */
    int methods;
    enum { BY_PATH, OPEN, GUARDED } access; /* is a key needed? */
    bool quiet;                             /* probes: neither counted nor logged */
    bool needs_model;                       /* 503 until it is loaded */
    /* answered at once … */
    void (*now)(struct server *s, const struct route *r, struct http_exchange *x);
    /* … or by a worker from the parsed body */
    void (*work)(struct task *t, const json_t *body);
};

static int route_names(const char **names); /* of all routes, for http_requests_total; returns their number */

/* --- replies ------------------------------------------------------------------------------------- */

/* Whether --disable-access-log-for-endpoints lists the path. */
static bool is_quiet_path(const struct server *s, const char *path)
{
    size_t n = strlen(path);
    for (const char *p = s->options.quiet_paths ? s->options.quiet_paths : ""; *p;) {
        p += strspn(p, ", ");
        size_t len = strcspn(p, ", ");
        if (len == n && strncmp(p, path, n) == 0)
            return true;
        p += len;
    }
    return false;
}

static void log_reply(const struct server *s, const struct route *r, const struct http_exchange *x,
                      const struct task *t, int status)
{
    if (!s->options.log_requests || (r && r->quiet) || (t && t->generation && status == 200))
        return; /* an answer has a line of its own (tasks.c) */
    if (s->options.no_access_log || (x->head.path && is_quiet_path(s, x->head.path)))
        return;
    char path[128]; /* from the client: only what is harmless in a log */
    size_t n = 0;
    for (const char *p = x->head.path ? x->head.path : "?"; *p && n + 1 < sizeof path; p++)
        path[n++] = isprint((unsigned char)*p) ? *p : '?';
    path[n] = '\0';
    log_info("%s %s %s -> %d, %.3f s", t ? t->request_id : "-", x->head.method ? x->head.method : "?", path,
             status, clock_now() - (t ? t->arrived : x->arrived));
}

void reply_json(struct server *s, struct http_exchange *x, const struct route *r, const struct task *t,
                int status, const char *headers, const struct str *body)
{
    char id[200] = "";
    if (t && s->options.request_id_headers)
        snprintf(id, sizeof id, "X-Request-Id: %s\r\n", t->request_id);
    x->sent_bytes = body->len;
    count_reply(s, r, x, status);
    log_reply(s, r, x, t, status);
    http_reply(x, status, "application/json", headers ? headers : id, str_text(body), body->len);
}

/* The clients of these routes know errors in another form, and send their key in a header of its own. */
static bool speaks_anthropic(const struct http_exchange *x)
{
    return x->head.path && strncmp(x->head.path, "/v1/messages", strlen("/v1/messages")) == 0;
}

static void write_error(const struct http_exchange *x, const struct api_error *e, struct str *out)
{
    if (speaks_anthropic(x))
        messages_error_write(e, out);
    else
        api_error_write(e, out);
}

void reply_error(struct server *s, struct http_exchange *x, const struct route *r, const struct task *t,
                 const struct api_error *e)
{
    struct str body = {0};
    write_error(x, e, &body);
    const char *headers = e->status == 401   ? "WWW-Authenticate: Bearer\r\n"
                          : e->status == 503 ? "Retry-After: 1\r\n"
                                             : NULL;
    reply_json(s, x, r, t, e->status, headers, &body);
    str_free(&body);
}

/* {"detail": …}: the shape of a framework that clients know for unknown paths and methods. */
static void reply_detail(struct server *s, struct http_exchange *x, int status, const char *headers,
                         const char *detail)
{
    struct str body = {0};
    str_addf(&body, "{\"detail\":\"%s\"}", detail);
    reply_json(s, x, NULL, NULL, status, headers, &body);
    str_free(&body);
}

void routes_refusal(void *arg, const struct http_exchange *x, int status, const char *why, struct str *out)
{
    (void)arg;
    struct api_error e;
    const char *type = status == 503                    ? "Service Unavailable"
                       : status == 501 || status == 505 ? "NotImplementedError"
                                                        : "Bad Request";
    api_fail(&e, status, type, NULL, "%s", why);
    write_error(x, &e, out);
}

void routes_headers(void *arg, const struct http_exchange *x, struct str *out)
{
    const struct server *s = arg;
    cors_reply_headers(&s->options.cors, &x->head, out);
}

static void reply_preflight(struct server *s, struct http_exchange *x)
{
    struct str headers = {0}, text = {0};
    int status = cors_preflight(&s->options.cors, &x->head, &headers, &text);
    http_reply(x, status, "text/plain; charset=utf-8", str_text(&headers), str_text(&text), text.len);
    str_free(&headers);
    str_free(&text);
}

/* --- answered at once ---------------------------------------------------------------------------- */

static void unavailable(struct server *s, const struct route *r, struct http_exchange *x, const char *why)
{
    struct api_error e;
    api_fail(&e, 503, "unavailable_error", NULL, "%s", why);
    reply_error(s, x, r, NULL, &e);
}

static const char shutting_down[] = "The server is shutting down and takes no new requests";

static void health(struct server *s, const struct route *r, struct http_exchange *x)
{
    if (!s->model) {
        unavailable(s, r, x, "Loading model");
        return;
    }
    if (s->draining) {
        unavailable(s, r, x, shutting_down);
        return;
    }
    struct sluice_stats stats;
    sluice_stats(s->model->engine, &stats);
    double silent = clock_now() - stats.engine_heartbeat;
    if (stats.running + stats.waiting > 0 && silent > s->options.stall_seconds) {
        char why[160];
        snprintf(why, sizeof why,
                 "The engine is stalled: %d requests run or wait, and no step has ended for %.0f s",
                 stats.running + stats.waiting, silent);
        unavailable(s, r, x, why);
        return;
    }
    http_reply(x, 200, NULL, NULL, "", 0);
}

static void version(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    str_adds(&body, "{\"version\":\"" SLUICE_VERSION "\"}");
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void load(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    str_addf(&body, "{\"server_load\":%d}", s->options.load_tracking ? s->n_tasks : 0);
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void metrics(struct server *s, const struct route *r, struct http_exchange *x)
{
    (void)r;
    const char *names[METRICS_ROUTES];
    int n_names = route_names(names);
    struct sluice_stats stats;
    sluice_stats(s->model->engine, &stats);
    metrics_add_steps(&s->metrics, &stats);
    const struct metrics_page page = {.model_name = s->model->names[0],
                                      .routes = names,
                                      .n_routes = n_names,
                                      .stats = &stats,
                                      .plan = sluice_plan(s->model->engine),
                                      .read_bandwidth = s->read_bandwidth,
                                      .started = s->started,
                                      .no_engine = s->options.no_engine_metrics};
    struct str body = {0};
    metrics_write(&s->metrics, &page, &body);
    http_reply(x, 200, "text/plain; version=1.0.0; charset=utf-8", NULL, str_text(&body), body.len);
    str_free(&body);
}

/* What an option switches on or off is as unknown as any other path. */
static bool is_off(struct server *s, struct http_exchange *x, bool off)
{
    if (off)
        reply_detail(s, x, 404, NULL, "Not Found");
    return off;
}

static void openapi(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    if (is_off(s, x, s->options.no_docs))
        return;
    docs_write_openapi(s->options.root_path, &body);
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void docs(struct server *s, const struct route *r, struct http_exchange *x)
{
    (void)r;
    struct str body = {0};
    if (is_off(s, x, s->options.no_docs))
        return;
    docs_write_page(&body);
    http_reply(x, 200, "text/html; charset=utf-8", NULL, str_text(&body), body.len);
    str_free(&body);
}

static void tokenizer_info(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    if (is_off(s, x, !s->options.tokenizer_info))
        return;
    tokenizer_info_write(s->model, &body);
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void models(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    api_models_write(s->model, (int64_t)time(NULL), &body);
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void model(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    struct api_error e;
    if (api_model_write(s->model, x->head.path + strlen(r->path), (int64_t)time(NULL), &body, &e))
        reply_error(s, x, r, NULL, &e);
    else
        reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

/* Is `pair` ("name=value") one of those in a query? */
static bool query_has(const char *query, const char *pair)
{
    size_t n = strlen(pair);
    for (const char *p = query; p; p = strchr(p, '&')) {
        p += *p == '&';
        if (strncmp(p, pair, n) == 0 && (p[n] == '\0' || p[n] == '&'))
            return true;
    }
    return false;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* GET /v1/responses/{id}, and POST /v1/responses/{id}/cancel, which is for answers made in the background. */
static void response(struct server *s, const struct route *r, struct http_exchange *x)
{
    static const char cancel[] = "/cancel";
    char id[256];
    struct api_error e;
    struct str body = {0};
    bool post = strcmp(x->head.method, "POST") == 0;
    snprintf(id, sizeof id, "%s", x->head.path + strlen(r->path));
    if (post && !ends_with(id, cancel)) {
        reply_detail(s, x, 405, "Allow: GET\r\n", "Method Not Allowed");
        return;
    }
    if (post)
        id[strlen(id) - strlen(cancel)] = '\0';
    struct generation *running = post ? tasks_find_background(s, id) : NULL;
    e.status = 0;
    if (!post && query_has(x->head.query, "stream=true"))
        api_fail(&e, 400, "BadRequestError", "stream",
                 "a response that is kept is not streamed: ask again until its status is another than "
                 "in_progress");
    else if (running)
        responses_cancel(running, &body);
    else if (!response_store_body(s->model->responses, id, &body))
        api_fail(&e, 404, "NotFoundError", "response_id", "the response \"%.100s\" is not stored%s", id,
                 s->model->responses ? " (any more)"
                                     : ": this server keeps no responses unless it is started with "
                                       "--responses-store-bytes");
    else if (post)
        api_fail(&e, 400, "BadRequestError", "response_id",
                 "the response \"%.100s\" is complete: only one that is made in the background can be "
                 "cancelled",
                 id);
    if (e.status)
        reply_error(s, x, r, NULL, &e);
    else
        reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

static void props(struct server *s, const struct route *r, struct http_exchange *x)
{
    struct str body = {0};
    llamacpp_props(s->model, &body);
    reply_json(s, x, r, NULL, 200, NULL, &body);
    str_free(&body);
}

/* --- answered by a worker ------------------------------------------------------------------------ */

static void render(struct task *t, const json_t *body)
{
    char path[64]; /* of the protocol: without "/render" */
    snprintf(path, sizeof path, "%.*s", (int)(strlen(t->route->path) - strlen("/render")), t->route->path);
    struct api_request *r =
        protocol_of(path)->read(t->model, body, t->request_id, t->id_is_header, &t->error);
    if (r)
        render_write(t->model, r, &t->reply);
    api_request_free(r);
}

static void apply_template(struct task *t, const json_t *body)
{
    llamacpp_apply_template(t->model, body, &t->reply, &t->error);
}

static void generate(struct task *t, const json_t *body)
{
    const struct protocol *p = protocol_of(t->route->path);
    struct api_request *r = p->read(t->model, body, t->request_id, t->id_is_header, &t->error);
    if (!r)
        return;
    if (t->has_priority)
        r->sampling.p.priority = t->priority;
    if (atomic_load(&t->abandoned)) { /* the client left while we read: start nothing */
        api_request_free(r);
        api_fail(&t->error, 499, "Abandoned", NULL, "the client left");
        return;
    }
    t->generation = generation_start(t->model, r, t->arrived, &t->error);
}

static void tokenize(struct task *t, const json_t *body)
{
    api_tokenize(t->model, body, &t->reply, &t->error);
}

static void detokenize(struct task *t, const json_t *body)
{
    api_detokenize(t->model, body, &t->reply, &t->error);
}

static void count_messages(struct task *t, const json_t *body)
{
    messages_count_tokens(t->model, body, &t->reply, &t->error);
}

static void count_responses(struct task *t, const json_t *body)
{
    responses_count_tokens(t->model, body, &t->reply, &t->error);
}

static void count_chat(struct task *t, const json_t *body)
{
    size_t n;
    if (api_count_chat(t->model, body, &n, &t->error) == 0)
        str_addf(&t->reply, "{\"input_tokens\":%zu}", n);
}

void route_work(struct task *t)
{
    json_t *body = fields_parse(t->body, t->body_len, t->model->limits.max_json_depth, &t->error);
    if (body)
        t->route->work(t, body);
    json_decref(body);
}

/* --- the table ----------------------------------------------------------------------------------- */

static const struct route routes[] = {
    {"/v1/chat/completions", .methods = POST, .needs_model = true, .work = generate},
    {"/v1/completions", .methods = POST, .needs_model = true, .work = generate},
    {"/v1/responses", .methods = POST, .needs_model = true, .work = generate},
    {"/v1/messages", .methods = POST, .needs_model = true, .work = generate},
    {"/v1/messages/count_tokens", .methods = POST, .needs_model = true, .work = count_messages},
    {"/v1/chat/completions/batch", .methods = POST, .needs_model = true, .work = generate},
    {"/v1/chat/completions/render", .methods = POST, .needs_model = true, .work = render},
    {"/v1/completions/render", .methods = POST, .needs_model = true, .work = render},
    {"/apply-template", .methods = POST, .access = GUARDED, .needs_model = true, .work = apply_template},
    {"/props", .methods = GET, .access = GUARDED, .needs_model = true, .now = props},
    {"/v1/responses/input_tokens", .methods = POST, .needs_model = true, .work = count_responses},
    {"/v1/chat/completions/input_tokens", .methods = POST, .needs_model = true, .work = count_chat},
    {"/v1/responses/", .pattern = "/v1/responses/{id}", .methods = GET | POST, .needs_model = true,
     .now = response},
    {"/chat/completions", .methods = POST, .access = GUARDED, .needs_model = true, .work = generate},
    {"/responses", .methods = POST, .access = GUARDED, .needs_model = true, .work = generate},
    {"/models", .methods = GET, .access = GUARDED, .needs_model = true, .now = models},
    {"/v1/models", .methods = GET, .needs_model = true, .now = models},
    {"/v1/models/", .pattern = "/v1/models/{id}", .methods = GET, .needs_model = true, .now = model},
    {"/tokenize", .methods = POST, .needs_model = true, .work = tokenize},
    {"/detokenize", .methods = POST, .needs_model = true, .work = detokenize},
    {"/health", .methods = GET | HEAD, .quiet = true, .now = health},
    {"/v1/health", .methods = GET | HEAD, .access = OPEN, .quiet = true, .now = health},
    {"/ping", .methods = GET | HEAD | POST, .quiet = true, .now = health},
    {"/version", .methods = GET | HEAD, .quiet = true, .now = version},
    {"/load", .methods = GET | HEAD, .quiet = true, .now = load},
    {"/metrics", .methods = GET | HEAD, .quiet = true, .needs_model = true, .now = metrics},
    {"/tokenizer_info", .methods = GET, .quiet = true, .needs_model = true, .now = tokenizer_info},
    {"/openapi.json", .methods = GET | HEAD, .quiet = true, .now = openapi},
    {"/docs", .methods = GET | HEAD, .quiet = true, .now = docs},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert(N_ROUTES <= METRICS_ROUTES, "one counter a route");

static int route_names(const char **names)
{
    for (int i = 0; i < N_ROUTES; i++)
        names[i] = routes[i].pattern ? routes[i].pattern : routes[i].path;
    return N_ROUTES;
}

static const struct route *find(const char *path)
{
    for (int i = 0; i < N_ROUTES; i++) {
        const struct route *r = &routes[i];
        size_t n = strlen(r->path);
        if (r->pattern ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0)
            return r;
    }
    return NULL;
}

void count_reply(struct server *s, const struct route *r, const struct http_exchange *x, int status)
{
    if (r && !r->quiet && s->model)
        metrics_add_reply(&s->metrics, (int)(r - routes), x->head.method[0] == 'P', status,
                          clock_now() - (x->arrived > 0 ? x->arrived : clock_now()), x->body_bytes,
                          x->sent_bytes);
}

/* A proxy may leave its prefix on the path (--root-path): taken off, where it is there. */
static void strip_root(const struct server *s, struct http_head *h)
{
    const char *root = s->options.root_path ? s->options.root_path : "";
    size_t n = strlen(root);
    while (n > 0 && root[n - 1] == '/')
        n--;
    if (n > 0 && strncmp(h->path, root, n) == 0 && h->path[n] == '/')
        h->path += n;
}

static bool is_json(const char *content_type)
{
    if (!content_type || strncasecmp(content_type, "application/json", 16) != 0)
        return false;
    return strchr(" \t;", content_type[16]) != NULL; /* or its end */
}

static bool needs_key(const struct route *r, const char *path)
{
    return r && r->access != BY_PATH ? r->access == GUARDED : auth_guards(path);
}

static bool has_key(const struct server *s, const struct http_exchange *x)
{
    const char *const *keys = s->options.api_keys;
    int n = s->options.n_api_keys;
    return auth_allows(http_head_get(&x->head, "Authorization"), keys, n) ||
           (speaks_anthropic(x) && auth_allows_key(http_head_get(&x->head, "x-api-key"), keys, n));
}

void routes_begin(void *arg, struct http_exchange *x)
{
    struct server *s = arg;
    struct api_error e;
    const char *method = x->head.method;
    x->arrived = clock_now();
    if (cors_is_preflight(&s->options.cors, &x->head)) {
        reply_preflight(s, x);
        return;
    }
    strip_root(s, &x->head);
    const struct route *r = find(x->head.path);
    if (needs_key(r, x->head.path) && strcmp(method, "OPTIONS") != 0 && !has_key(s, x)) {
        api_fail(&e, 401, "AuthenticationError", NULL,
                 "Unauthorized: this server needs an API key, sent as \"Authorization: Bearer KEY\"");
        reply_error(s, x, NULL, NULL, &e);
        return;
    }
    if (!r) {
        reply_detail(s, x, 404, NULL, "Not Found");
        return;
    }
    int bit = strcmp(method, "GET") == 0    ? GET
              : strcmp(method, "POST") == 0 ? POST
              : strcmp(method, "HEAD") == 0 ? HEAD
                                            : 0;
    if (!(r->methods & bit)) {
        char allow[64];
        snprintf(allow, sizeof allow, "Allow: %s%s%s%s\r\n", r->methods & GET ? "GET" : "",
                 r->methods & HEAD ? ", HEAD" : "", (r->methods & (GET | POST)) == (GET | POST) ? ", " : "",
                 r->methods & POST ? "POST" : "");
        reply_detail(s, x, 405, allow, "Method Not Allowed");
        return;
    }
    if (r->needs_model && !s->model) {
        unavailable(s, r, x, "Loading model");
        return;
    }
    if (!r->work)
        return;
    if (s->draining) {
        unavailable(s, r, x, shutting_down);
        return;
    }
    if (!is_json(http_head_get(&x->head, "Content-Type"))) {
        api_fail(&e, 400, "Bad Request", NULL,
                 "1 validation error: the Content-Type must be application/json");
        reply_error(s, x, r, NULL, &e);
    }
}

void routes_request(void *arg, struct http_exchange *x)
{
    struct server *s = arg;
    const struct route *r = find(x->head.path);
    if (r->now)
        r->now(s, r, x);
    else if (s->draining) /* since its head came */
        unavailable(s, r, x, shutting_down);
    else
        task_start(s, r, x);
}
