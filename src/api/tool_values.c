/* Arguments written as plain text -> JSON. The tool's schema says which types a parameter may have; of those
 * the first that the text can be read as is taken, string last. Models print scalars as Python does (True,
 * None), since the templates show them so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/tool_format.h"

#define MAX_SCHEMA_DEPTH 8 /* of anyOf and $ref around a type */

static unsigned type_named(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"null", TYPE_NULL},       {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                 {"boolean", TYPE_BOOLEAN}, {"object", TYPE_OBJECT},   {"array", TYPE_ARRAY},
                 {"string", TYPE_STRING}};
    for (size_t i = 0; json_is_string(name) && i < sizeof types / sizeof *types; i++)
        if (strcmp(json_string_value(name), types[i].name) == 0)
            return types[i].type;
    return 0;
}

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_STRING;
    }
}

/* What "#/…" names within root, or NULL. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    if (strncmp(ref, "#/", 2) != 0)
        return NULL;
    const json_t *at = root;
    for (const char *key = ref + 2; at;) {
        size_t n = strcspn(key, "/");
        at = json_object_getn(at, key, n);
        if (!key[n])
            return at;
        key += n + 1;
    }
    return NULL;
}

/* The types that a schema allows; 0 = it does not say. */
static unsigned types_of(const json_t *root, const json_t *schema, int depth)
{
    if (!json_is_object(schema) || depth == MAX_SCHEMA_DEPTH)
        return 0;
    unsigned types = 0;
    size_t i;
    const json_t *type = json_object_get(schema, "type"), *v;
    types |= type_named(type);
    json_array_foreach(type, i, v) types |= type_named(v);
    if (types)
        return types;
    const json_t *ref = json_object_get(schema, "$ref");
    if (json_is_string(ref))
        types |= types_of(root, resolve(root, json_string_value(ref)), depth + 1);
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    for (size_t k = 0; k < 3; k++)
        json_array_foreach(json_object_get(schema, lists[k]), i, v) types |= types_of(root, v, depth + 1);
    json_array_foreach(json_object_get(schema, "enum"), i, v) types |= type_of(v);
    if ((v = json_object_get(schema, "const")))
        types |= type_of(v);
    if (!types && json_object_get(schema, "properties"))
        types = TYPE_OBJECT;
    if (!types && json_object_get(schema, "items"))
        types = TYPE_ARRAY;
    return types;
}

unsigned tool_value_types(const json_t *function, const char *key, size_t len)
{
    const json_t *parameters = json_object_get(function, "parameters");
    const json_t *schema = json_object_getn(json_object_get(parameters, "properties"), key, len);
    unsigned types = types_of(parameters, schema, 0);
    return types ? types : TYPE_STRING;
}

/* --- reading --------------------------------------------------------------------------------------- */

static bool is_word(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(text, word, len) == 0;
}

bool tool_value_may_be_null(const char *text, size_t len)
{
    return len <= 4 && (strncasecmp(text, "null", len) == 0 || strncasecmp(text, "none", len) == 0);
}

/* Digits with a sign, as JSON writes them: no plus, no zeros before. */
static bool write_integer(const char *text, size_t len, struct str *out)
{
    size_t at = len > 0 && (*text == '-' || *text == '+');
    if (at == len)
        return false;
    for (size_t i = at; i < len; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    while (at + 1 < len && text[at] == '0')
        at++;
    if (*text == '-' && !(at + 1 == len && text[at] == '0'))
        str_addc(out, '-');
    str_add(out, text + at, len - at);
    return true;
}

/* As it is where that is JSON, else (".5", "+1", "2.") as its value. */
static bool write_number(const char *text, size_t len, struct str *out)
{
    struct json_scan s;
    json_scan_init(&s);
    size_t n = 0;
    while (n < len && (text[n] == '-' || (text[n] >= '0' && text[n] <= '9') || s.state == SCAN_NUMBER) &&
           !is_blank(text[n]) && json_scan_byte(&s, text[n]))
        n++;
    if (n == len && len > 0 && json_scan_byte(&s, ' ')) {
        str_add(out, text, len);
        return true;
    }
    char copy[64], *end;
    if (len == 0 || len >= sizeof copy || strspn(text, "+-.0123456789eE") < len)
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    double v = strtod(copy, &end);
    if (*end || !isfinite(v))
        return false;
    str_addf(out, "%.17g", v);
    return true;
}

static bool write_boolean(const char *text, size_t len, struct str *out)
{
    bool yes = is_word(text, len, "true") || is_word(text, len, "1");
    if (!yes && !is_word(text, len, "false") && !is_word(text, len, "0"))
        return false;
    str_adds(out, yes ? "true" : "false");
    return true;
}

/* An object or array that is JSON already. */
static bool write_json(const char *text, size_t len, char bracket, struct str *out)
{
    if (len == 0 || *text != bracket)
        return false;
    struct json_scan s;
    json_scan_init(&s);
    size_t before = out->len;
    for (size_t i = 0; i < len; i++) {
        bool raw = s.state == SCAN_STRING && (unsigned char)text[i] < 0x20;
        if (!json_scan_byte(&s, text[i])) {
            out->len = before;
            return false;
        }
        if (raw)
            json_escape(out, text + i, 1);
        else
            str_addc(out, text[i]);
    }
    if (s.state == SCAN_DONE)
        return true;
    out->len = before;
    return false;
}

void tool_value_write(unsigned types, const char *text, size_t len, struct str *out)
{
    const char *trimmed = text;
    size_t n = len;
    while (n > 0 && is_blank(trimmed[n - 1]))
        n--;
    while (n > 0 && is_blank(*trimmed))
        trimmed++, n--;
    if (types & TYPE_NULL && (is_word(text, len, "null") || is_word(text, len, "none"))) {
        str_adds(out, "null");
        return;
    }
    if ((types & TYPE_INTEGER && write_integer(trimmed, n, out)) ||
        (types & TYPE_NUMBER && write_number(trimmed, n, out)) ||
        (types & TYPE_BOOLEAN && write_boolean(trimmed, n, out)) ||
        (types & TYPE_OBJECT && write_json(trimmed, n, '{', out)) ||
        (types & TYPE_ARRAY && write_json(trimmed, n, '[', out)))
        return;
    str_addc(out, '"');
    json_escape(out, text, len);
    str_addc(out, '"');
}
