#include "cli/http_options.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/mem.h"

#define MAX_OUTPUT_LOGGED 65536 /* characters, where --max-log-len does not say */

const char *environment(const char *name)
{
    static const char *const prefixes[] = {"SLUICE_", "VLLM_"};
    for (int i = 0; i < 2; i++) {
        char full[80];
        snprintf(full, sizeof full, "%s%s", prefixes[i], name);
        const char *value = getenv(full);
        if (value && *value)
            return value;
    }
    return NULL;
}

double environment_number(const char *name, double min, double max, double otherwise)
{
    const char *text = environment(name);
    if (!text)
        return otherwise;
    char *end;
    double v = strtod(text, &end);
    if (end != text && !*end && v >= min && v <= max)
        return v;
    log_warn("the environment's %s is \"%.40s\", not a number from %g to %g: left out", name, text, min, max);
    return otherwise;
}

void http_options_init(struct http_options *h)
{
    *h = (struct http_options){.max_log_len = -1};
}

void http_options_free(struct http_options *h)
{
    option_list_free(&h->keys);
    option_list_free(&h->origins);
    option_list_free(&h->methods);
    option_list_free(&h->headers);
    free(h->environment_keys);
    for (int i = 0; i < h->n_made; i++)
        free(h->made[i]);
    free(h->made);
}

/* Keys of the command line, else of the environment (comma-separated). */
static void read_keys(struct http_options *h)
{
    const char *value = environment("API_KEY");
    if (h->keys.n || !value)
        return;
    h->environment_keys = mem_strdup(value);
    char *rest = h->environment_keys, *key;
    while ((key = strsep(&rest, ","))) {
        if (!*key)
            continue;
        h->keys.values = mem_realloc(h->keys.values, (size_t)h->keys.n + 1, sizeof *h->keys.values);
        h->keys.values[h->keys.n++] = key;
    }
}

/* Values that are JSON lists, as vLLM writes them, become their words. */
static int expand(struct http_options *h, struct option_list *l, const char *name,
                  const struct option_command *c)
{
    struct option_list words = {0};
    for (int i = 0; i < l->n; i++) {
        json_t *list = l->values[i][0] == '[' ? json_loads(l->values[i], 0, NULL) : NULL;
        size_t n = list ? json_array_size(list) : 1;
        words.values = mem_realloc(words.values, (size_t)words.n + n + 1, sizeof *words.values);
        if (!list)
            words.values[words.n++] = l->values[i];
        for (size_t k = 0; list && k < n; k++) {
            const char *word = json_string_value(json_array_get(list, k));
            if (!word) {
                json_decref(list);
                option_list_free(&words);
                return options_usage_error(c, "--%s: %s must be a list of strings", name, l->values[i]);
            }
            h->made = mem_realloc(h->made, (size_t)h->n_made + 1, sizeof *h->made);
            words.values[words.n++] = h->made[h->n_made++] = mem_strdup(word);
        }
        json_decref(list);
    }
    for (int i = 0; i < words.n; i++)
        for (const char *p = words.values[i]; *p; p++)
            if ((unsigned char)*p <= ' ' || *p == 0x7F || *p == ',' || *p == '[') {
                const char *word = words.values[i];
                option_list_free(&words);
                return options_usage_error(c, "--%s: '%.60s' is neither a name nor a JSON list of names",
                                           name, word);
            }
    option_list_free(l);
    *l = words;
    return -1;
}

static int check_tls(const struct http_options *h, const struct option_command *c, struct server_options *s)
{
    struct tls_options *t = &s->tls;
    t->client_certificates = h->cert_reqs;
    if (!t->cert_file && (t->key_file || t->ca_file || t->ciphers || t->refresh || h->cert_reqs))
        return options_usage_error(c, "%s needs --ssl-certfile",
                                   t->key_file  ? "--ssl-keyfile"
                                   : t->ca_file ? "--ssl-ca-certs"
                                   : t->ciphers ? "--ssl-ciphers"
                                   : t->refresh ? "--enable-ssl-refresh"
                                                : "--ssl-cert-reqs");
    if (h->cert_reqs && !t->ca_file)
        return options_usage_error(
            c, "--ssl-cert-reqs %d needs --ssl-ca-certs: who signs clients' certificates", h->cert_reqs);
    if (t->ca_file && !h->cert_reqs)
        return options_usage_error(c, "--ssl-ca-certs needs --ssl-cert-reqs 1 or 2: at 0 no client is asked "
                                      "for a certificate");
    return -1;
}

static enum log_level level_of(const char *name)
{
    static const struct {
        const char *name;
        enum log_level level;
    } levels[] = {{"trace", LOG_LEVEL_DEBUG},   {"debug", LOG_LEVEL_DEBUG}, {"info", LOG_LEVEL_INFO},
                  {"warning", LOG_LEVEL_WARN},  {"warn", LOG_LEVEL_WARN},   {"error", LOG_LEVEL_ERROR},
                  {"critical", LOG_LEVEL_ERROR}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcasecmp(name, levels[i].name) == 0)
            return levels[i].level;
    log_warn("the environment's LOGGING_LEVEL is \"%.40s\", which is no level: left out", name);
    return LOG_LEVEL_INFO;
}

int http_options_finish(struct http_options *h, const struct option_command *c, struct server_options *s)
{
    int status = expand(h, &h->origins, "allowed-origins", c);
    if (status < 0)
        status = expand(h, &h->methods, "allowed-methods", c);
    if (status < 0)
        status = expand(h, &h->headers, "allowed-headers", c);
    if (status < 0)
        status = check_tls(h, c, s);
    if (status >= 0)
        return status;
    if (h->origins.n == 0 && (h->methods.n || h->headers.n || s->cors.credentials))
        return options_usage_error(c, "CORS is off without --allowed-origins");
    if (s->root_path && s->root_path[0] != '/')
        return options_usage_error(c, "--root-path: '%s' must begin with /", s->root_path);
    if (!s->log_requests && (h->log_outputs || h->max_log_len >= 0))
        return options_usage_error(c, "%s needs --enable-log-requests",
                                   h->log_outputs ? "--enable-log-outputs" : "--max-log-len");
    read_keys(h);
    s->api_keys = h->keys.values;
    s->n_api_keys = h->keys.n;
    s->cors.origins = h->origins.values;
    s->cors.n_origins = h->origins.n;
    s->cors.methods = h->methods.values;
    s->cors.n_methods = h->methods.n;
    s->cors.headers = h->headers.values;
    s->cors.n_headers = h->headers.n;
    s->log_prompt_len = h->max_log_len > 0 ? h->max_log_len : 0;
    s->log_output_len = !h->log_outputs ? 0 : h->max_log_len >= 0 ? h->max_log_len : MAX_OUTPUT_LOGGED;
    if (!h->keep_alive_given)
        s->keep_alive_seconds =
            environment_number("HTTP_TIMEOUT_KEEP_ALIVE", 0.1, 86400, s->keep_alive_seconds);
    const char *level = h->log_level ? h->log_level : environment("LOGGING_LEVEL");
    if (level)
        log_set_level(level_of(level));
    return -1;
}
