/* Reading GGUF metadata that gguf.c has checked: look a key up, convert what it holds, or say that it does
 * not fit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "file/gguf_internal.h"

static int compare_key(const void *key, const void *entry)
{
    const struct gguf_value *const *v = entry;
    return strcmp(key, (*v)->key);
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_value **v =
        g->n_values ? bsearch(key, g->by_key, (size_t)g->n_values, sizeof *g->by_key, compare_key) : NULL;
    return v ? *v : NULL;
}

/* Element `index` as an integer; false if it is of another kind or does not fit. */
static bool to_i64(const struct gguf_value *v, uint64_t index, int64_t *out)
{
#define READ(type)                                        \
    {                                                     \
        type x;                                           \
        memcpy(&x, v->data + index * sizeof x, sizeof x); \
        *out = (int64_t)x;                                \
        return true;                                      \
    }
    switch (v->type) {
    case GGUF_U8:
        READ(uint8_t)
    case GGUF_I8:
        READ(int8_t)
    case GGUF_U16:
        READ(uint16_t)
    case GGUF_I16:
        READ(int16_t)
    case GGUF_U32:
        READ(uint32_t)
    case GGUF_I32:
        READ(int32_t)
    case GGUF_I64:
        READ(int64_t)
#undef READ
    case GGUF_BOOL:
        *out = v->data[index] != 0;
        return true;
    case GGUF_U64: {
        uint64_t x;
        memcpy(&x, v->data + index * sizeof x, sizeof x);
        if (x > INT64_MAX)
            return false;
        *out = (int64_t)x;
        return true;
    }
    default:
        return false;
    }
}

/* Element `index` as a floating-point number; bool is not one. */
static bool to_f64(const struct gguf_value *v, uint64_t index, double *out)
{
    int64_t i;
    uint64_t u;
    float f;
    switch (v->type) {
    case GGUF_F32:
        memcpy(&f, v->data + index * sizeof f, sizeof f);
        *out = (double)f;
        return true;
    case GGUF_F64:
        memcpy(out, v->data + index * sizeof *out, sizeof *out);
        return true;
    case GGUF_U64:
        memcpy(&u, v->data + index * sizeof u, sizeof u);
        *out = (double)u;
        return true;
    case GGUF_BOOL:
        return false;
    default:
        if (!to_i64(v, index, &i))
            return false;
        *out = (double)i;
        return true;
    }
}

const char *gguf_value_str(const struct gguf_value *v, uint64_t index, size_t *len)
{
    uint64_t n;
    const uint8_t *s = v->data + v->strings[index];
    memcpy(&n, s, sizeof n);
    *len = (size_t)n;
    return (const char *)s + sizeof n;
}

/* ---- Scalars --------------------------------------------------------------------------------------------
 */

static const struct gguf_value *find_scalar(const struct gguf *g, const char *key)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v && !v->is_array ? v : NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_find(g, key) != NULL;
}

bool gguf_i64(const struct gguf *g, const char *key, int64_t *out)
{
    const struct gguf_value *v = find_scalar(g, key);
    return v && to_i64(v, 0, out);
}

bool gguf_f64(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *v = find_scalar(g, key);
    return v && to_f64(v, 0, out);
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out)
{
    int64_t i;
    if (!gguf_i64(g, key, &i))
        return false;
    *out = i != 0;
    return true;
}

const char *gguf_str(const struct gguf *g, const char *key, size_t *len)
{
    const struct gguf_value *v = find_scalar(g, key);
    if (!v || v->type != GGUF_STR)
        return NULL;
    if (len)
        gguf_value_str(v, 0, len);
    return v->text;
}

/* ---- Arrays ---------------------------------------------------------------------------------------------
 */

/* The array of that key if `index` is in it. */
static const struct gguf_value *find_element(const struct gguf *g, const char *key, int64_t index)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v && v->is_array && index >= 0 && (uint64_t)index < v->count ? v : NULL;
}

int64_t gguf_array_len(const struct gguf *g, const char *key)
{
    const struct gguf_value *v = gguf_find(g, key);
    return v && v->is_array ? (int64_t)v->count : -1;
}

bool gguf_array_i64(const struct gguf *g, const char *key, int64_t index, int64_t *out)
{
    const struct gguf_value *v = find_element(g, key, index);
    return v && to_i64(v, (uint64_t)index, out);
}

bool gguf_array_f64(const struct gguf *g, const char *key, int64_t index, double *out)
{
    const struct gguf_value *v = find_element(g, key, index);
    return v && to_f64(v, (uint64_t)index, out);
}

const char *gguf_array_str(const struct gguf *g, const char *key, int64_t index, size_t *len)
{
    const struct gguf_value *v = find_element(g, key, index);
    return v && v->type == GGUF_STR ? gguf_value_str(v, (uint64_t)index, len) : NULL;
}

/* ---- For people -----------------------------------------------------------------------------------------
 */

int64_t gguf_count(const struct gguf *g)
{
    return g->n_values;
}

const char *gguf_key(const struct gguf *g, int64_t i)
{
    return g->values[i].key;
}

int gguf_version(const struct gguf *g)
{
    return g->version;
}

/* Appends a string in quotes, at most `limit` bytes of it, escapes and "…" not counted. */
static void add_quoted(struct str *out, const char *s, size_t len, size_t limit)
{
    const size_t shown = utf8_valid_prefix(s, len < limit ? len : limit);
    str_addc(out, '"');
    for (size_t i = 0; i < shown; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            str_adds(out, "\\n");
        else if (c == '"' || c == '\\')
            str_addf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            str_addf(out, "\\x%02x", c);
        else
            str_addc(out, (char)c);
    }
    str_adds(out, shown < len ? "…\"" : "\"");
}

static void add_element(struct str *out, const struct gguf_value *v, uint64_t index, size_t limit)
{
    double f;
    int64_t i;
    uint64_t u;
    size_t len;
    if (v->type == GGUF_STR) {
        const char *s = gguf_value_str(v, index, &len);
        add_quoted(out, s, len, limit);
    } else if (v->type == GGUF_BOOL) {
        str_adds(out, v->data[index] ? "true" : "false");
    } else if (v->type == GGUF_U64) {
        memcpy(&u, v->data + index * sizeof u, sizeof u);
        str_addf(out, "%llu", (unsigned long long)u);
    } else if (to_i64(v, index, &i)) {
        str_addf(out, "%lld", (long long)i);
    } else if (to_f64(v, index, &f)) {
        str_addf(out, v->type == GGUF_F32 ? "%.7g" : "%.15g", f);
    }
}

void gguf_describe(const struct gguf *g, int64_t i, const char **type_name, char *text, size_t n)
{
    static const char *const names[2][GGUF_TYPE_COUNT] = {
        {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "", "u64", "i64", "f64"},
        {"arr[u8]", "arr[i8]", "arr[u16]", "arr[i16]", "arr[u32]", "arr[i32]", "arr[f32]", "arr[bool]",
         "arr[str]", "", "arr[u64]", "arr[i64]", "arr[f64]"}};
    const struct gguf_value *v = &g->values[i];
    struct str out = {0};
    *type_name = names[v->is_array][v->type];
    if (n == 0)
        return;
    if (v->is_array) {
        str_addf(&out, "%llu: ", (unsigned long long)v->count);
        for (uint64_t k = 0; k < v->count && out.len < n; k++) {
            str_adds(&out, k ? ", " : "");
            add_element(&out, v, k, 24);
        }
    } else {
        add_element(&out, v, 0, n);
    }
    if (out.len < n) {
        memcpy(text, str_text(&out), out.len + 1);
    } else { /* cut between characters, with a mark where there is room for it */
        static const char mark[] = "…";
        const bool marked = n >= sizeof mark;
        const size_t kept = utf8_valid_prefix(out.data, marked ? n - sizeof mark : n - 1);
        memcpy(text, out.data, kept);
        memcpy(text + kept, marked ? mark : "", marked ? sizeof mark : 1);
    }
    str_free(&out);
}
