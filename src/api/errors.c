#include "api/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/json_write.h"

int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt, ...)
{
    e->status = status;
    e->type = type;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return -1;
}

/* Collects the first bytes of a dump and then stops it, so that a value of megabytes costs nothing. */
struct excerpt {
    char text[204];
    size_t n;
    bool cut;
};

static int excerpt_add(const char *bytes, size_t n, void *arg)
{
    struct excerpt *x = arg;
    size_t room = 200 - x->n;
    size_t take = n < room ? n : room;
    memcpy(x->text + x->n, bytes, take);
    x->n += take;
    if (take == n)
        return 0;
    x->cut = true;
    return -1;
}

static const char *excerpt_of(struct excerpt *x, const json_t *value)
{
    *x = (struct excerpt){0};
    if (!value)
        return "nothing";
    json_dump_callback(value, excerpt_add, x, JSON_ENCODE_ANY);
    x->n = utf8_valid_prefix(x->text, x->n);
    memcpy(x->text + x->n, x->cut ? "..." : "", x->cut ? 4 : 1);
    return x->text;
}

int api_bad_type(struct api_error *e, const char *path, const json_t *value, const char *expected)
{
    struct excerpt x;
    char param[128];
    snprintf(param, sizeof param, "body.%s", path);
    return api_fail(e, 400, "Bad Request", param, "1 validation error: %s must be %s, not %s", param,
                    expected, excerpt_of(&x, value));
}

int api_missing(struct api_error *e, const char *path)
{
    char param[128];
    snprintf(param, sizeof param, "body.%s", path);
    return api_fail(e, 400, "Bad Request", param, "1 validation error: %s is required", param);
}

int api_bad_value(struct api_error *e, const char *param, const json_t *value, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct excerpt x;
    return api_fail(e, 400, "BadRequestError", param, "%s (parameter=%s, value=%s)", text, param,
                    excerpt_of(&x, value));
}

int api_from_err(struct api_error *e, const char *param, const struct err *from)
{
    switch (from->code) {
    case ERR_NO_MEMORY:
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "%s", from->msg);
    case ERR_BUSY:
        return api_fail(e, 503, "Service Unavailable", NULL, "%s", from->msg);
    case ERR_UNSUPPORTED:
        return api_fail(e, 501, "NotImplementedError", param, "%s", from->msg);
    case ERR_INVALID:
    case ERR_NOT_FOUND:
    case ERR_LIMIT:
    case ERR_RAISED:
        return api_fail(e, 400, "BadRequestError", param, "%s", from->msg);
    case ERR_NONE:
    case ERR_IO:
        break;
    }
    return api_fail(e, 500, "InternalServerError", NULL, "%s", from->msg);
}

void api_error_write(const struct api_error *e, struct str *out)
{
    str_adds(out, "{\"error\":{\"message\":");
    json_write_string(out, e->message, strlen(e->message));
    str_adds(out, ",\"type\":");
    json_write_string(out, e->type, strlen(e->type));
    str_adds(out, ",\"param\":");
    if (e->param[0])
        json_write_string(out, e->param, strlen(e->param));
    else
        str_adds(out, "null");
    str_addf(out, ",\"code\":%d}}", e->status);
}
