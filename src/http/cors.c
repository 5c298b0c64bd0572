#include "http/cors.h"

#include <string.h>
#include <strings.h>

#define PREFLIGHT_SECONDS 600 /* for which a browser may remember an answer */

static bool is_all(const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0)
            return true;
    return n == 0;
}

/* Methods and origins are compared exactly, header names whatever their case. */
static bool holds(const char *const *list, int n, const char *name, size_t len, bool any_case)
{
    for (int i = 0; i < n; i++)
        if (strlen(list[i]) == len &&
            (any_case ? strncasecmp(list[i], name, len) : strncmp(list[i], name, len)) == 0)
            return true;
    return false;
}

static bool allows_origin(const struct cors *c, const char *origin)
{
    return is_all(c->origins, c->n_origins) || holds(c->origins, c->n_origins, origin, strlen(origin), false);
}

void cors_reply_headers(const struct cors *c, const struct http_head *h, struct str *out)
{
    if (c->n_origins == 0)
        return;
    /* with credentials, browsers accept no "*": the origin itself is named, and caches must know */
    bool by_name = c->credentials || !is_all(c->origins, c->n_origins);
    if (by_name)
        str_adds(out, "Vary: Origin\r\n");
    const char *origin = http_head_get(h, "Origin");
    if (!origin || !allows_origin(c, origin))
        return;
    str_addf(out, "Access-Control-Allow-Origin: %s\r\n", by_name ? origin : "*");
    if (c->credentials)
        str_adds(out, "Access-Control-Allow-Credentials: true\r\n");
    str_adds(out, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
}

bool cors_is_preflight(const struct cors *c, const struct http_head *h)
{
    return c->n_origins > 0 && strcmp(h->method, "OPTIONS") == 0 && http_head_get(h, "Origin") &&
           http_head_get(h, "Access-Control-Request-Method");
}

/* Whether every name of the comma-separated list is allowed. */
static bool allows_headers(const struct cors *c, const char *list)
{
    /* these need no permission */
    static const char *const safe[] = {"Accept", "Accept-Language", "Content-Language", "Content-Type"};
    if (is_all(c->headers, c->n_headers))
        return true;
    for (const char *p = list; *p;) {
        p += strspn(p, " \t,");
        size_t n = strcspn(p, " \t,");
        if (n > 0 && !holds(safe, 4, p, n, true) && !holds(c->headers, c->n_headers, p, n, true))
            return false;
        p += n;
    }
    return true;
}

static void add_list(struct str *out, const char *name, const char *const *list, int n)
{
    str_addf(out, "%s: ", name);
    for (int i = 0; i < n; i++)
        str_addf(out, i ? ", %s" : "%s", list[i]);
    str_adds(out, "\r\n");
}

int cors_preflight(const struct cors *c, const struct http_head *h, struct str *headers, struct str *text)
{
    const char *method = http_head_get(h, "Access-Control-Request-Method");
    const char *wanted = http_head_get(h, "Access-Control-Request-Headers");
    const char *why = NULL;
    if (!allows_origin(c, http_head_get(h, "Origin")))
        why = "origin (--allowed-origins)";
    else if (!is_all(c->methods, c->n_methods) &&
             !holds(c->methods, c->n_methods, method, strlen(method), false))
        why = "method (--allowed-methods)";
    else if (wanted && !allows_headers(c, wanted))
        why = "headers (--allowed-headers)";
    if (why) {
        str_addf(text, "Disallowed CORS %s", why);
        return 400;
    }
    if (is_all(c->methods, c->n_methods))
        str_adds(headers, "Access-Control-Allow-Methods: GET, HEAD, OPTIONS, POST\r\n");
    else
        add_list(headers, "Access-Control-Allow-Methods", c->methods, c->n_methods);
    if (wanted && is_all(c->headers, c->n_headers))
        str_addf(headers, "Access-Control-Allow-Headers: %s\r\n", wanted);
    else if (c->n_headers > 0)
        add_list(headers, "Access-Control-Allow-Headers", c->headers, c->n_headers);
    str_addf(headers, "Access-Control-Max-Age: %d\r\n", PREFLIGHT_SECONDS);
    str_adds(text, "OK");
    return 200;
}
