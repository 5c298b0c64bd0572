#include "model/params.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "file/gguf.h"

/* The value at key in config.json's text object, else in its root; NULL if absent or null. */
static const json_t *hf_value(const struct params *p, const char *key)
{
    if (!key)
        return NULL;
    const json_t *v = json_object_get(p->config, key);
    if (!v)
        v = json_object_get(p->root, key);
    return json_is_null(v) ? NULL : v;
}

/* "prefix.key" in buf, or NULL when key is NULL or absent from the file. Keys that start with '.' have no
 * prefix. */
static const char *gguf_name(const struct params *p, const char *key, char *buf, size_t n)
{
    if (!key)
        return NULL;
    if (key[0] == '.')
        snprintf(buf, n, "%s", key + 1);
    else
        snprintf(buf, n, "%s.%s", p->prefix, key);
    return gguf_has(p->file->gguf, buf) ? buf : NULL;
}

static int missing(const struct params *p, const char *hf, const char *gguf, struct err *e)
{
    if (p->config)
        return err_set(e, ERR_NOT_FOUND, "%s/config.json: key \"%s\" is missing", p->file->path,
                       hf ? hf : gguf);
    return err_set(e, ERR_NOT_FOUND, "%s: metadata key \"%s.%s\" is missing", p->file->path, p->prefix,
                   gguf ? gguf : hf);
}

static int bad(const struct params *p, const char *key, const char *why, struct err *e)
{
    return err_set(e, ERR_INVALID, "%s%s: \"%s\" %s", p->file->path, p->config ? "/config.json" : "", key,
                   why);
}

/* Reads a number of either world: found = 0 absent, 1 read. */
static int number(const struct params *p, const char *hf, const char *gguf, bool integer, bool *found,
                  double *out, const char **key, char *buf, size_t n, struct err *e)
{
    *found = false;
    if (p->config) {
        const json_t *v = hf_value(p, hf);
        if (!v)
            return 0;
        *key = hf;
        if (integer ? !json_is_integer(v) : !json_is_number(v))
            return bad(p, hf, integer ? "must be an integer" : "must be a number", e);
        *out = json_number_value(v);
    } else {
        *key = gguf_name(p, gguf, buf, n);
        if (!*key)
            return 0;
        int64_t i;
        if (integer && gguf_i64(p->file->gguf, *key, &i))
            *out = (double)i;
        else if (integer || !gguf_f64(p->file->gguf, *key, out))
            return bad(p, *key, integer ? "must be an integer" : "must be a number", e);
    }
    *found = true;
    return 0;
}

int params_int(const struct params *p, const char *hf, const char *gguf, bool required, int min, int max,
               int *out, struct err *e)
{
    char buf[200], why[100];
    const char *key;
    double v;
    bool found;
    if (number(p, hf, gguf, true, &found, &v, &key, buf, sizeof buf, e))
        return -1;
    if (!found)
        return required ? missing(p, hf, gguf, e) : 0;
    if (v < min || v > max) {
        snprintf(why, sizeof why, "is %.0f, outside %d … %d", v, min, max);
        return bad(p, key, why, e);
    }
    *out = (int)v;
    return 0;
}

int params_float(const struct params *p, const char *hf, const char *gguf, bool required, double min,
                 double max, float *out, struct err *e)
{
    char buf[200], why[100];
    const char *key;
    double v;
    bool found;
    if (number(p, hf, gguf, false, &found, &v, &key, buf, sizeof buf, e))
        return -1;
    if (!found)
        return required ? missing(p, hf, gguf, e) : 0;
    if (!(v >= min && v <= max)) {
        snprintf(why, sizeof why, "is %g, outside %g … %g", v, min, max);
        return bad(p, key, why, e);
    }
    *out = (float)v;
    return 0;
}

int params_bool(const struct params *p, const char *hf, const char *gguf, bool *out, struct err *e)
{
    if (p->config) {
        const json_t *v = hf_value(p, hf);
        if (v && !json_is_boolean(v))
            return bad(p, hf, "must be true or false", e);
        if (v)
            *out = json_is_true(v);
        return 0;
    }
    char buf[200];
    const char *key = gguf_name(p, gguf, buf, sizeof buf);
    if (key && !gguf_bool(p->file->gguf, key, out))
        return bad(p, key, "must be a bool", e);
    return 0;
}

int params_str(const struct params *p, const char *hf, const char *gguf, const char **out, struct err *e)
{
    *out = NULL;
    if (p->config) {
        const json_t *v = hf_value(p, hf);
        if (v && !json_is_string(v))
            return bad(p, hf, "must be a string", e);
        *out = json_string_value(v);
        return 0;
    }
    char buf[200];
    const char *key = gguf_name(p, gguf, buf, sizeof buf);
    if (key && !(*out = gguf_str(p->file->gguf, key, NULL)))
        return bad(p, key, "must be a string", e);
    return 0;
}
