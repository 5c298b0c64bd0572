#include "api/fields.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

/* What the parsed tree may take: "[{},{},…" is a hundred times its text. Generous for what is sent in earnest
 * (four million token ids), and small beside a model. Strings count once, as the body's own length. */
#define MAX_TREE_BYTES  ((size_t)256 << 20)
#define CONTAINER_BYTES 224 /* an empty object, the larger of the two kinds */
#define ITEM_BYTES      64  /* a number and its place in a list; keys pay for their pair by the ':' */

/* Depth and size are checked before parsing, in one pass: a parser that recurses must not be the one to find
 * out, the trees it makes are walked by recursive code elsewhere (templates, frees), and a few large ones at
 * once would take the machine's memory. */
static int check_shape(const char *text, size_t len, int max_depth, struct api_error *e)
{
    int depth = 0;
    size_t bytes = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == ',' || c == ':') {
            bytes += ITEM_BYTES;
        } else if (c == '{' || c == '[') {
            bytes += CONTAINER_BYTES;
            if (++depth > max_depth) {
                char param[64];
                snprintf(param, sizeof param, "body.%zu", i);
                return api_fail(e, 400, "Bad Request", param,
                                "1 validation error: the JSON is nested more than %d deep at offset %zu",
                                max_depth, i);
            }
        } else if (c == '}' || c == ']') {
            depth--;
        }
        if (bytes > MAX_TREE_BYTES) {
            char param[64];
            snprintf(param, sizeof param, "body.%zu", i);
            return api_fail(
                e, 400, "Bad Request", param,
                "1 validation error: the JSON holds too many values: from offset %zu on they would "
                "take more than %zu MB; send less in one request",
                i, MAX_TREE_BYTES >> 20);
        }
    }
    return 0;
}

json_t *fields_parse(const char *text, size_t len, int max_depth, struct api_error *e)
{
    if (len == 0) {
        api_fail(e, 400, "Bad Request", "body",
                 "1 validation error: the body is empty; it must be a JSON object");
        return NULL;
    }
    if (check_shape(text, len, max_depth, e))
        return NULL;
    json_error_t why;
    json_t *body = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!body) {
        char param[64];
        snprintf(param, sizeof param, "body.%d", why.position);
        api_fail(e, 400, "Bad Request", param,
                 "1 validation error: the body is not valid JSON: %s (offset %d)", why.text, why.position);
        return NULL;
    }
    if (!json_is_object(body)) {
        api_fail(e, 400, "Bad Request", "body", "1 validation error: the body must be a JSON object");
        json_decref(body);
        return NULL;
    }
    return body;
}

/* The field's value, or NULL when it is absent or null. */
static const json_t *field_get(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

/* A C string without NULs inside, or NULL: numbers and words hold none. */
static const char *plain_text(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

bool value_int(const json_t *v, int64_t *out)
{
    switch (json_typeof(v)) {
    case JSON_INTEGER:
        *out = json_integer_value(v);
        return true;
    case JSON_REAL: {
        double d = json_real_value(v);
        if (d != floor(d) || fabs(d) > 9007199254740992.0)
            return false;
        *out = (int64_t)d;
        return true;
    }
    case JSON_TRUE:
    case JSON_FALSE:
        *out = json_is_true(v);
        return true;
    case JSON_STRING: {
        const char *s = plain_text(v);
        if (!s || !*s || s[strspn(s, "+-0123456789")] != '\0')
            return false;
        char *end;
        errno = 0;
        long long n = strtoll(s, &end, 10);
        if (errno || *end || end == s)
            return false;
        *out = n;
        return true;
    }
    default:
        return false;
    }
}

bool value_float(const json_t *v, double *out)
{
    double d;
    switch (json_typeof(v)) {
    case JSON_INTEGER:
    case JSON_REAL:
        d = json_number_value(v);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        d = json_is_true(v);
        break;
    case JSON_STRING: {
        const char *s = plain_text(v);
        if (!s || !*s || s[strspn(s, "+-0123456789.eE")] != '\0')
            return false;
        char *end;
        d = strtod(s, &end);
        if (*end || end == s)
            return false;
        break;
    }
    default:
        return false;
    }
    if (!isfinite(d))
        return false;
    *out = d;
    return true;
}

int field_int(const json_t *body, const char *name, int64_t *out, struct api_error *e)
{
    const json_t *v = field_get(body, name);
    if (!v)
        return 0;
    return value_int(v, out) ? 1 : api_bad_type(e, name, v, "an integer");
}

int field_float(const json_t *body, const char *name, double *out, struct api_error *e)
{
    const json_t *v = field_get(body, name);
    if (!v)
        return 0;
    return value_float(v, out) ? 1 : api_bad_type(e, name, v, "a finite number");
}

int field_bool(const json_t *body, const char *name, bool *out, struct api_error *e)
{
    static const char *const yes[] = {"true", "1", "yes", "on", "t", "y"};
    static const char *const no[] = {"false", "0", "no", "off", "f", "n"};
    const json_t *v = field_get(body, name);
    if (!v)
        return 0;
    if (json_is_boolean(v)) {
        *out = json_is_true(v);
        return 1;
    }
    double d;
    if (json_is_number(v) && ((d = json_number_value(v)) == 0 || d == 1)) {
        *out = d == 1;
        return 1;
    }
    const char *s = plain_text(v);
    for (size_t i = 0; s && i < sizeof yes / sizeof *yes; i++) {
        if (!strcasecmp(s, yes[i]) || !strcasecmp(s, no[i])) {
            *out = !strcasecmp(s, yes[i]);
            return 1;
        }
    }
    return api_bad_type(e, name, v, "a boolean");
}

/* The three readers of values that are taken as they are. */
static int field_typed(const json_t *body, const char *name, json_type type, const char *expected,
                       const json_t **out, struct api_error *e)
{
    const json_t *v = field_get(body, name);
    if (!v)
        return 0;
    if (json_typeof(v) != type)
        return api_bad_type(e, name, v, expected);
    *out = v;
    return 1;
}

int field_string(const json_t *body, const char *name, const json_t **out, struct api_error *e)
{
    return field_typed(body, name, JSON_STRING, "a string", out, e);
}

int field_array(const json_t *body, const char *name, const json_t **out, struct api_error *e)
{
    return field_typed(body, name, JSON_ARRAY, "a list", out, e);
}

int field_object(const json_t *body, const char *name, const json_t **out, struct api_error *e)
{
    return field_typed(body, name, JSON_OBJECT, "an object", out, e);
}

int field_ids(const json_t *body, const char *name, int vocab, size_t max, int32_t **ids, int *n,
              struct api_error *e)
{
    const json_t *list = NULL;
    int set = field_array(body, name, &list, e);
    if (set <= 0)
        return set;
    size_t count = json_array_size(list);
    if (count > max)
        return api_fail(e, 400, "BadRequestError", name, "%s holds %zu ids; at most %zu are allowed", name,
                        count, max);
    int32_t *copy = mem_alloc((count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id;
        if (!value_int(v, &id)) {
            char path[128];
            snprintf(path, sizeof path, "%s.%zu", name, i);
            free(copy);
            return api_bad_type(e, path, v, "an integer");
        }
        if (id < 0 || id >= vocab) {
            free(copy);
            return api_bad_value(e, name, v, "token id out of the vocabulary, which is 0 to %d", vocab - 1);
        }
        copy[i] = (int32_t)id;
    }
    *ids = copy;
    *n = (int)count;
    return 1;
}
