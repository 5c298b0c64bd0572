/* JSON Schema, one type at a time: strings, numbers, arrays and objects with the keywords that are theirs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_schema.h"

/* A count (minLength …): its value, or `otherwise` if it is not there. Counts beyond any answer are no end
 * (-1). */
static int count_of(struct schema *x, const json_t *s, const char *key, int otherwise)
{
    const json_t *v = json_object_get(s, key);
    if (!v)
        return otherwise;
    double n = json_number_value(v);
    if (!json_is_number(v) || !(n >= 0) || n != floor(n)) {
        schema_fail(x, ERR_INVALID, "%s must be a whole number of at least 0", key);
        return otherwise;
    }
    if (n <= GRAMMAR_MAX_REPEAT)
        return (int)n;
    if (strncmp(key, "min", 3) == 0)
        schema_fail(x, ERR_INVALID, "%s is larger than any answer can be", key);
    return -1;
}

/* The counts of one kind, checked against each other. false with the error set. */
static bool counts(struct schema *x, const json_t *s, const char *min_key, const char *max_key, int *min,
                   int *max)
{
    *min = count_of(x, s, min_key, 0);
    *max = count_of(x, s, max_key, -1);
    if (!builder_failed(x->b) && *max >= 0 && *max < *min)
        schema_fail(x, ERR_INVALID, "%s is less than %s: nothing can match", max_key, min_key);
    return !builder_failed(x->b);
}

/* --- strings ------------------------------------------------------------------------------------- */

static grammar_node pattern_node(struct schema *x, const json_t *pattern)
{
    if (!json_is_string(pattern))
        return schema_fail(x, ERR_INVALID, "pattern must be a string");
    grammar_node n = grammar_regex_node(x->b, json_string_value(pattern), json_string_length(pattern), true);
    schema_locate(x);
    return n;
}

grammar_node schema_string_content(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    const json_t *one = json_object_get(s, "pattern"), *list = json_object_get(s, SCHEMA_PATTERNS), *v;
    const json_t *format = json_object_get(s, "format");
    const char *regex = json_is_string(format) ? grammar_format_regex(json_string_value(format)) : NULL;
    grammar_node out = -1;
    int min, max;
    size_t i;
    if (format && !json_is_string(format))
        return schema_fail(x, ERR_INVALID, "format must be a string");
    if (!counts(x, s, "minLength", "maxLength", &min, &max))
        return -1;
    if (regex)
        out = grammar_regex(b, regex, strlen(regex));
    if (one) {
        grammar_node n = pattern_node(x, one);
        out = out < 0 ? n : grammar_intersect(b, out, n);
    }
    json_array_foreach(list, i, v)
    {
        grammar_node n = pattern_node(x, v);
        out = out < 0 ? n : grammar_intersect(b, out, n);
    }
    if (out >= 0 && (min > 0 || max >= 0))
        out = grammar_intersect(b, out, grammar_repeat(b, json_any_char(b), min, max));
    schema_locate(x);
    return builder_failed(b) ? -1 : out;
}

static bool has_pattern_with(const json_t *s, char c)
{
    const json_t *list = json_object_get(s, SCHEMA_PATTERNS), *v;
    const char *one = json_string_value(json_object_get(s, "pattern"));
    bool found = one && strchr(one, c);
    size_t i;
    json_array_foreach(list, i, v)
    {
        found |= json_is_string(v) && strchr(json_string_value(v), c);
    }
    return found;
}

grammar_node schema_string_in_tag(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    int min, max;
    grammar_node content = schema_string_content(x, s);
    if (builder_failed(b) || !counts(x, s, "minLength", "maxLength", &min, &max))
        return -1;
    grammar_node plain = grammar_regex_node(b, "[^<]", 4, false);
    if (content >= 0)
        return has_pattern_with(s, '<') ? content
                                        : grammar_intersect(b, content, grammar_repeat(b, plain, 0, -1));
    return min > 0 || max >= 0 ? grammar_repeat(b, plain, min, max) : -1;
}

static grammar_node string_node(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    struct json_parts *p = x->parts;
    int min, max;
    grammar_node content = schema_string_content(x, s), quote = grammar_text(b, "\"");
    if (builder_failed(b) || !counts(x, s, "minLength", "maxLength", &min, &max))
        return -1;
    if (content >= 0)
        return grammar_seq3(b, quote, grammar_json_escaped(b, content), quote);
    if (max >= 0)
        return grammar_seq2(
            b, quote,
            grammar_kept(b, NULL, grammar_seq2(b, grammar_repeat(b, p->character, min, max), quote)));
    if (min > 0)
        return grammar_seq3(b, quote, grammar_repeat(b, p->character, min, min), p->string_tail);
    return p->string;
}

/* --- numbers ------------------------------------------------------------------------------------- */

static bool bound(struct schema *x, const json_t *s, const char *key, char out[64])
{
    const json_t *v = json_object_get(s, key);
    if (!v || json_is_boolean(v)) /* a boolean is draft 4's exclusiveMinimum: see number_node */
        return false;
    if (!json_is_number(v)) {
        schema_fail(x, ERR_INVALID, "%s must be a number", key);
        return false;
    }
    double n = json_number_value(v);
    if (number_decimal(v, out))
        return true;
    if (n > 1 || n < -1) { /* beyond any number that we write */
        snprintf(out, 64, "%s9999999999999999999999999999999999999999", n < 0 ? "-" : "");
        return true;
    }
    schema_fail(x, ERR_UNSUPPORTED, "%s with more than ten digits after the point is not supported", key);
    return false;
}

/* Takes the tighter of an inclusive and an exclusive bound. */
static void tighter(struct schema *x, const json_t *s, const char *open_key, bool upper, bool *has,
                    bool *open, char out[64])
{
    char other[64];
    const json_t *v = json_object_get(s, open_key);
    if (json_is_boolean(v))
        *open = *has && json_is_true(v);
    if (!bound(x, s, open_key, other))
        return;
    double a = *has ? strtod(out, NULL) : 0, z = strtod(other, NULL);
    if (*has && (upper ? a < z : a > z))
        return;
    *has = *open = true;
    memcpy(out, other, 64);
}

static grammar_node number_node(struct schema *x, const json_t *s, bool integer)
{
    struct number_form f = {.integer = integer};
    f.has_min = bound(x, s, "minimum", f.min);
    f.has_max = bound(x, s, "maximum", f.max);
    tighter(x, s, "exclusiveMinimum", false, &f.has_min, &f.open_min, f.min);
    tighter(x, s, "exclusiveMaximum", true, &f.has_max, &f.open_max, f.max);
    if (json_object_get(s, "multipleOf"))
        bound(x, s, "multipleOf", f.multiple_of);
    if (builder_failed(x->b))
        return -1;
    if (!f.has_min && !f.has_max && !f.multiple_of[0])
        return integer ? x->parts->any_integer : x->parts->any_number;
    grammar_node n = grammar_number(x->b, &f);
    schema_locate(x);
    return n;
}

/* --- arrays -------------------------------------------------------------------------------------- */

static grammar_node array_node(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    struct json_parts *p = x->parts;
    int min, max;
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    const char *prefix_key = "prefixItems", *rest_key = "items";
    if (schema_refuse(x, s, "contains") || !counts(x, s, "minItems", "maxItems", &min, &max))
        return -1;
    if (json_is_true(json_object_get(s, "uniqueItems")) && (max < 0 || max > 1))
        return schema_fail(x, ERR_UNSUPPORTED, "\"uniqueItems\" is not supported");
    if (json_is_array(items)) { /* before 2020 a list of items was what prefixItems is now */
        prefix = items;
        items = json_object_get(s, "additionalItems");
        prefix_key = "items";
        rest_key = "additionalItems";
    }
    if (!items)
        items = json_object_get(s, "unevaluatedItems");
    if (prefix && !json_is_array(prefix))
        return schema_fail(x, ERR_INVALID, "prefixItems must be an array of schemas");
    int n = (int)json_array_size(prefix);
    /* After a prefix, other items come only where they are asked for. */
    bool rest_allowed = items ? !json_is_false(items) : n == 0 || min > n || x->open_objects;
    if (!rest_allowed) {
        if (min > n)
            return schema_never(x);
        max = max < 0 || max > n ? n : max;
    }
    grammar_node rest = -1;
    if (rest_allowed && (max < 0 || max > n))
        rest = items ? schema_under(x, rest_key, items) : p->value;
    grammar_node open = grammar_seq2(b, grammar_text(b, "["), p->ws), close = grammar_text(b, "]");
    grammar_node end = grammar_seq2(b, p->ws, close);
    if (n == 0) {
        if (rest < 0)
            return grammar_seq2(b, open, close);
        grammar_node list = grammar_seq2(b, json_list(p, rest, min > 1 ? min : 1, max), p->ws);
        return grammar_seq3(b, open, min == 0 ? grammar_optional(b, list) : list, close);
    }
    /* State 2i + 2: i items were written; 2i + 3: and a comma. */
    struct graph_edge *edges = mem_alloc(((size_t)n * 3 + 4) * sizeof *edges);
    int k = 0;
    edges[k++] = (struct graph_edge){0, 2, open};
    if (min == 0)
        edges[k++] = (struct graph_edge){2, 1, close};
    for (int i = 0; i < n && (max < 0 || i < max); i++) {
        size_t before = schema_enter_index(x, prefix_key, (size_t)i);
        grammar_node item = schema_node(x, json_array_get(prefix, (size_t)i));
        schema_leave(x, before);
        if (i)
            edges[k++] = (struct graph_edge){2 * i + 2, 2 * i + 3, p->comma};
        edges[k++] = (struct graph_edge){i ? 2 * i + 3 : 2, 2 * i + 4, item};
        if (i + 1 >= min && (i + 1 < n || rest < 0))
            edges[k++] = (struct graph_edge){2 * i + 4, 1, end};
    }
    if (rest >= 0) {
        grammar_node more =
            grammar_repeat(b, grammar_seq2(b, p->comma, rest), min > n ? min - n : 0, max < 0 ? -1 : max - n);
        edges[k++] = (struct graph_edge){2 * n + 2, 1, grammar_seq2(b, more, end)};
    }
    grammar_node out = grammar_graph(b, 2 * n + 4, edges, k);
    free(edges);
    return out;
}

/* --- objects ------------------------------------------------------------------------------------- */

struct property {
    const char *name;
    grammar_node pair; /* key, colon, value */
    bool required;
};

struct object {
    struct property *list; /* [n] in the schema's order */
    const char **names;    /* [n] */
    int n, n_required;
    grammar_node other; /* a pair that is not listed; -1 = there may be none */
    int min, max;       /* of all pairs; max -1 = any */
};

/* Does the regular expression match in text? -1 if it cannot be compiled. */
static int pattern_matches(const char *pattern, const char *text)
{
    struct grammar_builder *b = grammar_builder_create();
    struct grammar *g =
        grammar_builder_finish(b, grammar_regex_node(b, pattern, strlen(pattern), true), NULL);
    if (!g)
        return -1;
    struct grammar_matcher *m = grammar_matcher_create(g);
    bool ok = grammar_matcher_advance(m, text, strlen(text)) && grammar_matcher_can_end(m);
    grammar_matcher_free(m);
    grammar_unref(g);
    return ok;
}

/* Is there a text in which both match? */
static bool patterns_overlap(const char *p, const char *q)
{
    struct grammar_builder *b = grammar_builder_create();
    grammar_node x = grammar_regex_node(b, p, strlen(p), true), y = grammar_regex_node(b, q, strlen(q), true);
    struct err e = {0};
    struct grammar *g = grammar_builder_finish(b, grammar_intersect(b, x, y), &e);
    grammar_unref(g);
    return g || !strstr(e.msg, "no text at all");
}

/* The pairs of patternProperties. No key may fall under two rules: such schemas are refused. */
static grammar_node pattern_pairs(struct schema *x, const json_t *patterns, const struct object *o)
{
    struct grammar_builder *b = x->b;
    grammar_node ways = schema_never(x);
    const char *pattern, *second;
    json_t *value, *other;
    if (!json_is_object(patterns))
        return schema_fail(x, ERR_INVALID, "patternProperties must be an object");
    if (json_object_size(patterns) > 20)
        return schema_fail(x, ERR_UNSUPPORTED, "more than 20 patternProperties are not supported");
    json_object_foreach((json_t *)patterns, pattern, value)
    {
        size_t before = schema_enter(x, "patternProperties");
        schema_enter(x, pattern);
        json_t *text = json_string(pattern);
        grammar_node key = pattern_node(x, text);
        json_decref(text);
        for (int i = 0; i < o->n && !builder_failed(b); i++)
            if (pattern_matches(pattern, o->names[i]) != 0)
                schema_fail(x, ERR_UNSUPPORTED, "the property \"%.100s\" matches this pattern too",
                            o->names[i]);
        json_object_foreach((json_t *)patterns, second, other)
        {
            if (builder_failed(b) || second == pattern)
                break; /* each pair once */
            if (!json_equal(value, other) && patterns_overlap(pattern, second))
                schema_fail(x, ERR_UNSUPPORTED, "a key can match this pattern and \"%.100s\"", second);
        }
        grammar_node quote = grammar_text(b, "\"");
        key = grammar_seq3(b, quote, grammar_json_escaped(b, key), quote);
        ways = grammar_alt2(b, ways, grammar_seq3(b, key, x->parts->colon, schema_node(x, value)));
        schema_leave(x, before);
        if (builder_failed(b))
            return -1;
    }
    return ways;
}

/* The pair of a property that is not listed; -1 (without error) if there may be none. */
static grammar_node other_pair(struct schema *x, const json_t *s, const struct object *o)
{
    struct grammar_builder *b = x->b;
    const json_t *patterns = json_object_get(s, "patternProperties"),
                 *names = json_object_get(s, "propertyNames");
    const json_t *other = json_object_get(s, "additionalProperties");
    const char *key = "additionalProperties";
    if (names && o->n > 0)
        return schema_fail(x, ERR_UNSUPPORTED, "propertyNames and properties together are not supported");
    if (patterns && json_object_size(patterns) > 0)
        /* Additional ones may not match a pattern; they are left out. */
        return names ? schema_fail(x, ERR_UNSUPPORTED,
                                   "propertyNames and patternProperties together are not supported")
                     : pattern_pairs(x, patterns, o);
    if (!other) {
        other = json_object_get(s, "unevaluatedProperties");
        key = "unevaluatedProperties";
    }
    if (other ? json_is_false(other) : json_object_get(s, "properties") && !x->open_objects)
        return -1;
    grammar_node name = json_other_key(x->parts, o->names, o->n);
    if (names) {
        json_t *string = json_pack("{s:s}", "type", "string");
        json_array_append_new(x->made, string);
        names = schema_merge(x, string, names);
        name = names ? schema_under(x, "propertyNames", names) : -1;
    }
    grammar_node value = other ? schema_under(x, key, other) : x->parts->value;
    return grammar_seq3(b, name, x->parts->colon, value);
}

static bool is_required(const json_t *required, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(required, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), name) == 0)
            return true;
    }
    return false;
}

/* Reads the properties: those listed, then those that are only required. */
static int read_properties(struct schema *x, const json_t *s, struct object *o)
{
    struct grammar_builder *b = x->b;
    const json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required");
    const json_t *other = json_object_get(s, "additionalProperties");
    if (properties && !json_is_object(properties))
        return schema_fail(x, ERR_INVALID, "properties must be an object");
    if (required && !json_is_array(required))
        return schema_fail(x, ERR_INVALID, "required must be an array of strings");
    size_t most = json_object_size(properties) + json_array_size(required), i;
    o->list = mem_zalloc(most, sizeof *o->list);
    o->names = mem_zalloc(most, sizeof *o->names);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)properties, name, value)
    {
        size_t before = schema_enter(x, "properties");
        schema_enter(x, name);
        struct property *p = &o->list[o->n];
        *p = (struct property){.name = name, .required = is_required(required, name)};
        o->names[o->n++] = name;
        grammar_node key = json_string_node(b, name, strlen(name));
        p->pair = grammar_seq3(b, key, x->parts->colon, schema_node(x, value));
        schema_leave(x, before);
        if (builder_failed(b))
            return -1;
    }
    json_array_foreach(required, i, value)
    {
        if (!json_is_string(value))
            return schema_fail(x, ERR_INVALID, "required must be an array of strings");
        name = json_string_value(value);
        bool known = false;
        for (int k = 0; k < o->n && !known; k++)
            known = strcmp(o->names[k], name) == 0;
        if (known)
            continue;
        if (json_object_size(json_object_get(s, "patternProperties")) > 0)
            return schema_fail(x, ERR_UNSUPPORTED, "\"%.100s\" is required but not among the properties",
                               name);
        grammar_node any = other ? schema_under(x, "additionalProperties", other) : x->parts->value;
        grammar_node key = json_string_node(b, name, strlen(name));
        o->list[o->n] = (struct property){name, grammar_seq3(b, key, x->parts->colon, any), true};
        o->names[o->n++] = name;
    }
    for (int k = 0; k < o->n; k++)
        o->n_required += o->list[k].required;
    return builder_failed(b) ? -1 : 0;
}

/* Pairs where their number does not matter. State 4i + 2: nothing was written, property i may come; 4i + 3:
 * something was written, and a comma and property i may come; 4i + 4: after the comma; 4i + 5: property i
 * comes. Properties are skipped after the comma, not before, so that what may follow a pair is one comma and
 * not one for each property. */
static grammar_node plain_object(struct schema *x, const struct object *o)
{
    struct grammar_builder *b = x->b;
    const struct json_parts *p = x->parts;
    grammar_node empty = grammar_text(b, ""), close = grammar_text(b, "}"),
                 end = grammar_seq2(b, p->ws, close);
    struct graph_edge *edges = mem_alloc(((size_t)o->n * 7 + 9) * sizeof *edges);
    int k = 0, n = o->n, last_required = -1;
    for (int i = 0; i < n; i++)
        last_required = o->list[i].required ? i : last_required;
    edges[k++] = (struct graph_edge){0, 2, grammar_seq2(b, grammar_text(b, "{"), p->ws)};
    for (int i = 0; i <= n; i++) {
        int none = 4 * i + 2, some = none + 1, after_comma = none + 2, now = none + 3;
        if (i < n || o->other >= 0) {
            /* A pair that is not listed may be followed by another. */
            edges[k++] =
                (struct graph_edge){now, i < n ? some + 4 : some, i < n ? o->list[i].pair : o->other};
            edges[k++] = (struct graph_edge){some, after_comma, p->comma};
            edges[k++] = (struct graph_edge){after_comma, now, empty};
            edges[k++] = (struct graph_edge){none, now, empty};
        }
        if (i < n && !o->list[i].required) {
            edges[k++] = (struct graph_edge){none, none + 4, empty};
            edges[k++] = (struct graph_edge){after_comma, after_comma + 4, empty};
        }
        if (i > last_required)
            edges[k++] = (struct graph_edge){some, 1, end};
    }
    edges[k++] = (struct graph_edge){4 * n + 2, 1, close};
    grammar_node out = grammar_graph(b, 4 * n + 6, edges, k);
    free(edges);
    return out;
}

/* The same where the number of pairs is bounded: a state for every property and every number of pairs before
 * it. */
static grammar_node counted_object(struct schema *x, const struct object *o)
{
    struct grammar_builder *b = x->b;
    const struct json_parts *p = x->parts;
    grammar_node open = grammar_seq2(b, grammar_text(b, "{"), p->ws), close = grammar_text(b, "}");
    grammar_node end = grammar_seq2(b, p->ws, close), empty = grammar_text(b, "");
    int n = o->n;
    if (n == 0) {
        grammar_node list = json_list(x->parts, o->other, o->min > 1 ? o->min : 1, o->max);
        list = grammar_seq2(b, list, p->ws);
        return grammar_seq3(b, open, o->min == 0 ? grammar_optional(b, list) : list, close);
    }
    if (n > 64)
        return schema_fail(x, ERR_UNSUPPORTED,
                           "minProperties or maxProperties with more than 64 properties is not supported");
    grammar_node *pairs = mem_alloc(((size_t)n + 1) * sizeof *pairs);
    for (int i = 0; i < n; i++)
        grammar_define(b, pairs[i] = grammar_rule(b, o->list[i].name), o->list[i].pair);
    if (o->other >= 0)
        grammar_define(b, pairs[n] = grammar_rule(b, "other property"), o->other);
    struct graph_edge *edges = mem_alloc(((size_t)(n + 1) * (size_t)(n + 1) * 2 + 2) * sizeof *edges);
    int k = 0;
    /* State 2 + i * (n + 1) + c: properties before i are dealt with, c pairs are written. */
    edges[k++] = (struct graph_edge){0, 2, open};
    for (int i = 0; i < n; i++)
        for (int c = 0; c <= i; c++) {
            int at = 2 + i * (n + 1) + c, next = at + n + 1;
            edges[k++] =
                (struct graph_edge){at, next + 1, c ? grammar_seq2(b, p->comma, pairs[i]) : pairs[i]};
            if (!o->list[i].required)
                edges[k++] = (struct graph_edge){at, next, empty};
        }
    for (int c = 0; c <= n; c++) {
        int at = 2 + n * (n + 1) + c, least = o->min > c ? o->min - c : 0,
            most = o->max < 0 ? -1 : o->max - c;
        if ((o->max >= 0 && c > o->max) || (o->other < 0 && least > 0))
            continue;
        grammar_node more = empty;
        if (o->other >= 0 && most != 0)
            more = c ? grammar_repeat(b, grammar_seq2(b, p->comma, pairs[n]), least, most)
                     : json_list(x->parts, pairs[n], least, most);
        edges[k++] = (struct graph_edge){at, 1, grammar_seq2(b, more, end)};
    }
    grammar_node out = grammar_graph(b, 2 + (n + 1) * (n + 1) + n + 1, edges, k);
    free(pairs);
    free(edges);
    return out;
}

static grammar_node object_node(struct schema *x, const json_t *s)
{
    struct object o = {.other = -1};
    grammar_node out = -1;
    if (schema_refuse(x, s, "dependentRequired") || schema_refuse(x, s, "dependentSchemas") ||
        schema_refuse(x, s, "dependencies") ||
        !counts(x, s, "minProperties", "maxProperties", &o.min, &o.max))
        return -1;
    if (read_properties(x, s, &o))
        goto done;
    o.other = other_pair(x, s, &o);
    if (builder_failed(x->b))
        goto done;
    if (o.min <= o.n_required && (o.max < 0 || (o.other < 0 && o.max >= o.n)))
        out = plain_object(x, &o);
    else if (o.other < 0 && o.n == 0)
        out = schema_never(x);
    else
        out = counted_object(x, &o);
done:
    free(o.list);
    free(o.names);
    return out;
}

grammar_node schema_of_type(struct schema *x, const json_t *s, const char *type)
{
    if (strcmp(type, "string") == 0)
        return string_node(x, s);
    if (strcmp(type, "number") == 0)
        return number_node(x, s, false);
    if (strcmp(type, "integer") == 0)
        return number_node(x, s, true);
    if (strcmp(type, "boolean") == 0)
        return grammar_alt2(x->b, grammar_text(x->b, "true"), grammar_text(x->b, "false"));
    if (strcmp(type, "null") == 0)
        return grammar_text(x->b, "null");
    if (strcmp(type, "array") == 0)
        return array_node(x, s);
    if (strcmp(type, "object") == 0)
        return object_node(x, s);
    return schema_fail(x, ERR_INVALID, "the type \"%.60s\" is not one of JSON's", type);
}
