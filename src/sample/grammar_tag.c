/* Structural tags: free text with parts in it that have a form, each between a begin and an end marker. Two
 * ways of writing them are known: a list of `structures` with `triggers`, and a tree of `format`s.
 *
 * And the form in which Qwen3.5 (and Qwen3-Coder) give the arguments of a tool call, which is not JSON:
 *
 *     <parameter=city>
 *     Paris
 *     </parameter>
 *
 * Markers are found by their text. Inside of free text a marker always begins its part: the model cannot
 * write it and then go on as if it had not. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_schema.h"

enum { MAX_TAG_DEPTH = 32, MAX_TAGS = 10000 };

struct tags {
    struct grammar_builder *b;
    const struct grammar_json_options *o;
    int depth;
};

static grammar_node tag_fail(struct tags *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static grammar_node tag_fail(struct tags *t, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return builder_fail(t->b, ERR_INVALID, "structural tag: %s", what);
}

static grammar_node format_node(struct tags *t, const json_t *f, const char *end);

/* A string member; NULL and an error if it is missing. `empty_ok`: "" will do. */
static const char *text_of(struct tags *t, const json_t *o, const char *key, bool empty_ok)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    if (text && (empty_ok || *text) && strlen(text) == json_string_length(v))
        return text;
    tag_fail(t, "\"%s\" must be a string%s", key, empty_ok ? "" : " that is not empty");
    return NULL;
}

static grammar_node literal(struct tags *t, const char *text)
{
    return grammar_text(t->b, text ? text : "");
}

/* Any text up to and with `end`; any text at all without one. */
static grammar_node any_text(struct tags *t, const char *end)
{
    grammar_node empty = grammar_text(t->b, "");
    return end && *end ? grammar_free_text(t->b, &end, &empty, 1) : grammar_free_text(t->b, NULL, NULL, 0);
}

/* begin, content, end, of which the first `skip` bytes are already written. */
static grammar_node tag_node(struct tags *t, const json_t *tag, size_t skip)
{
    const char *begin = text_of(t, tag, "begin", true);
    const json_t *end = json_object_get(tag, "end"), *schema = json_object_get(tag, "schema");
    if (!begin)
        return -1;
    grammar_node parts[2] = {grammar_text(t->b, begin + skip), -1};
    if (schema || !json_object_get(tag, "content")) {
        const char *close = text_of(t, tag, "end", true);
        parts[1] =
            grammar_seq2(t->b, grammar_schema(t->b, schema ? schema : json_true(), t->o), literal(t, close));
    } else if (json_is_array(end)) { /* any of several ends */
        grammar_node *ways = mem_alloc((json_array_size(end) + 1) * sizeof *ways);
        int n = 0;
        const json_t *v;
        size_t i;
        json_array_foreach(end, i, v)
        {
            if (!json_is_string(v))
                tag_fail(t, "\"end\" must be a string or an array of strings");
            ways[n++] = format_node(t, json_object_get(tag, "content"), json_string_value(v));
        }
        parts[1] = grammar_alt(t->b, ways, n);
        free(ways);
    } else {
        const char *close = text_of(t, tag, "end", true);
        parts[1] = format_node(t, json_object_get(tag, "content"), close);
    }
    return grammar_seq(t->b, parts, 2);
}

/* Free text in which tags begin by their triggers; and `end` at last, if there is one. */
static grammar_node triggered(struct tags *t, const json_t *f, const json_t *tags, const char *end)
{
    struct grammar_builder *b = t->b;
    const json_t *triggers = json_object_get(f, "triggers"), *v;
    size_t n = json_array_size(triggers), n_tags = json_array_size(tags), i;
    bool at_least_one = json_is_true(json_object_get(f, "at_least_one"));
    bool only_one = json_is_true(json_object_get(f, "stop_after_first"));
    if (n == 0 || n_tags == 0)
        return tag_fail(t, "triggers and tags must be arrays of at least one");
    if (n > MAX_TAGS || n_tags > MAX_TAGS)
        return tag_fail(t, "more than %d triggers or tags", MAX_TAGS);
    const char **strings = mem_zalloc(n + 1, sizeof *strings);
    grammar_node *found = mem_alloc((n + 1) * sizeof *found), out = -1, no_way = grammar_alt(b, NULL, 0);
    json_array_foreach(triggers, i, v)
    {
        strings[i] = json_string_value(v);
        found[i] = no_way;
        if (!strings[i] || !*strings[i]) {
            tag_fail(t, "triggers must be strings that are not empty");
            goto fail;
        }
    }
    json_array_foreach(tags, i, v)
    {
        const char *begin = text_of(t, v, "begin", false);
        int mine = -1;
        for (size_t k = 0; k < n && begin; k++)
            if (strncmp(begin, strings[k], strlen(strings[k])) == 0)
                mine = mine < 0 ? (int)k : -2;
        if (begin && mine < 0)
            tag_fail(t, "the tag \"%.100s\" must begin with exactly one trigger", begin);
        if (builder_failed(b))
            goto fail;
        found[mine] = grammar_alt2(b, found[mine], tag_node(t, v, strlen(strings[mine])));
    }
    /* Pieces of free text, each with a tag behind it, then free text up to the end marker. In all of it
     * neither triggers nor the marker may occur otherwise. A loop, not a rule that calls itself: so all of it
     * is one rule, whose states know what follows them. */
    bool marked = end && *end;
    int n_all = (int)n + marked;
    strings[n] = end;
    found[n] = no_way;
    grammar_node piece = grammar_free_text(b, strings, found, n_all);
    for (size_t k = 0; k < n; k++)
        found[k] = no_way;
    found[n] = grammar_text(b, "");
    grammar_node last =
        only_one ? literal(t, end) : grammar_free_text(b, strings, marked ? found : NULL, n_all);
    grammar_node pieces = grammar_repeat(b, piece, at_least_one, only_one ? 1 : -1);
    if (only_one && !at_least_one) /* none at all: text to the end */
        out = grammar_alt2(b, grammar_seq2(b, piece, last),
                           grammar_free_text(b, strings, marked ? found : NULL, n_all));
    else
        out = grammar_seq2(b, pieces, last);
fail:
    free(strings);
    free(found);
    return builder_failed(b) ? -1 : out;
}

/* Tags one after the other with a separator between. */
static grammar_node separated(struct tags *t, const json_t *f)
{
    struct grammar_builder *b = t->b;
    const json_t *tags = json_object_get(f, "tags"), *v;
    const char *separator = text_of(t, f, "separator", true);
    size_t n = json_array_size(tags), i;
    if (n == 0 || n > MAX_TAGS)
        return tag_fail(t, "tags must be an array of 1 to %d", MAX_TAGS);
    grammar_node *ways = mem_alloc(n * sizeof *ways);
    json_array_foreach(tags, i, v)
    {
        ways[i] = tag_node(t, v, 0);
    }
    grammar_node one = grammar_alt(b, ways, (int)n);
    free(ways);
    if (!json_is_true(json_object_get(f, "stop_after_first"))) {
        struct graph_edge edges[] = {{0, 2, one}, {2, 0, literal(t, separator)}, {2, 1, grammar_text(b, "")}};
        one = grammar_graph(b, 3, edges, 3);
    }
    return json_is_true(json_object_get(f, "at_least_one")) ? one : grammar_optional(b, one);
}

static grammar_node elements(struct tags *t, const json_t *f, const char *end, bool sequence)
{
    const json_t *list = json_object_get(f, "elements"), *v;
    size_t n = json_array_size(list), i;
    if (n == 0 || n > MAX_TAGS)
        return tag_fail(t, "elements must be an array of 1 to %d", MAX_TAGS);
    grammar_node *parts = mem_alloc(n * sizeof *parts);
    json_array_foreach(list, i, v)
    {
        parts[i] = format_node(t, v, !sequence || i + 1 == n ? end : NULL);
    }
    grammar_node out = sequence ? grammar_seq(t->b, parts, (int)n) : grammar_alt(t->b, parts, (int)n);
    free(parts);
    return out;
}

/* A format, then `end` (NULL or "" = nothing). Free text knows where to end, so the end is passed down to it.
 */
static grammar_node format_node(struct tags *t, const json_t *f, const char *end)
{
    struct grammar_builder *b = t->b;
    const char *type = json_string_value(json_object_get(f, "type"));
    grammar_node n = -1;
    if (builder_failed(b))
        return -1;
    if (!type)
        return tag_fail(t, "a format must be an object with a \"type\"");
    if (t->depth >= MAX_TAG_DEPTH)
        return tag_fail(t, "formats are nested deeper than %d", MAX_TAG_DEPTH);
    t->depth++;
    if (strcmp(type, "any_text") == 0) {
        n = any_text(t, end);
        end = NULL;
    } else if (strcmp(type, "triggered_tags") == 0) {
        n = triggered(t, f, json_object_get(f, "tags"), end);
        end = NULL;
    } else if (strcmp(type, "sequence") == 0 || strcmp(type, "or") == 0) {
        n = elements(t, f, end, strcmp(type, "sequence") == 0);
        end = NULL;
    } else if (strcmp(type, "const_string") == 0) {
        n = literal(t, text_of(t, f, "value", true));
    } else if (strcmp(type, "json_schema") == 0) {
        const json_t *schema = json_object_get(f, "json_schema");
        n = schema ? grammar_schema(b, schema, t->o) : tag_fail(t, "json_schema is missing");
    } else if (strcmp(type, "qwen_xml_parameter") == 0) {
        const json_t *schema = json_object_get(f, "json_schema");
        n = schema ? grammar_xml_parameters(b, schema, t->o) : tag_fail(t, "json_schema is missing");
    } else if (strcmp(type, "regex") == 0) {
        const char *pattern = text_of(t, f, "pattern", false);
        n = pattern ? grammar_regex(b, pattern, strlen(pattern)) : -1;
    } else if (strcmp(type, "grammar") == 0) {
        const char *text = text_of(t, f, "grammar", false);
        n = text ? grammar_ebnf(b, text, strlen(text)) : -1;
    } else if (strcmp(type, "tag") == 0) {
        n = tag_node(t, f, 0);
    } else if (strcmp(type, "tags_with_separator") == 0) {
        n = separated(t, f);
    } else if (strcmp(type, "optional") == 0) {
        n = grammar_optional(b, format_node(t, json_object_get(f, "content"), NULL));
    } else if (strcmp(type, "star") == 0) {
        n = grammar_repeat(b, format_node(t, json_object_get(f, "content"), NULL), 0, -1);
    } else if (strcmp(type, "plus") == 0) {
        n = grammar_repeat(b, format_node(t, json_object_get(f, "content"), NULL), 1, -1);
    } else {
        n = tag_fail(t, "the format \"%.60s\" is not supported", type);
    }
    t->depth--;
    return end && *end ? grammar_seq2(b, n, grammar_text(b, end)) : n;
}

grammar_node grammar_tag(struct grammar_builder *b, const json_t *tag, const struct grammar_json_options *o)
{
    struct tags t = {.b = b, .o = o};
    if (builder_failed(b))
        return -1;
    if (!json_is_object(tag))
        return tag_fail(&t, "it must be an object");
    const json_t *format = json_object_get(tag, "format"), *structures = json_object_get(tag, "structures");
    if (!format && !structures)
        return tag_fail(&t, "\"format\", or \"structures\" and \"triggers\", are missing");
    return format ? format_node(&t, format, NULL) : triggered(&t, tag, structures, NULL);
}

struct grammar *grammar_from_structural_tag(const json_t *tag, const struct grammar_json_options *o,
                                            struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    return grammar_builder_finish(b, grammar_tag(b, tag, o), e);
}

/* --- parameters in tags -------------------------------------------------------------------------- */

static const char parameter_end[] = "\n</parameter>\n";

/* May a value of this schema be a string? Anything then: a reader of the form takes what fits no other type
 * as one. */
static bool may_be_string(struct schema *x, const json_t *s, int depth)
{
    const json_t *v, *type = json_object_get(s, "type"), *ref = json_object_get(s, "$ref");
    const char *const lists[] = {"anyOf", "oneOf"};
    size_t i;
    if (depth > 16 || builder_failed(x->b))
        return false;
    if (!json_is_object(s))
        return json_is_true(s);
    if (ref) {
        v = schema_resolve(x, ref);
        return v && may_be_string(x, v, depth + 1);
    }
    json_array_foreach(json_object_get(s, "allOf"), i, v)
    {
        if (!may_be_string(x, v, depth + 1))
            return false;
    }
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(s, lists[k]);
        bool any = false;
        json_array_foreach(list, i, v)
        {
            any |= may_be_string(x, v, depth + 1);
        }
        if (list)
            return any;
    }
    if (json_is_array(type)) {
        json_array_foreach(type, i, v)
        {
            if (json_is_string(v) && strcmp(json_string_value(v), "string") == 0)
                return true;
        }
        return false;
    }
    if (type)
        return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
    const json_t *one = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v))
            return true;
    }
    return one ? json_is_string(one)
               : !list && !json_object_get(s, "properties") && !json_object_get(s, "items");
}

static grammar_node parameter_value(struct schema *x, const json_t *s, int depth);

/* Of enum and const: strings as they are, other values as JSON. */
static grammar_node listed_value(struct schema *x, const json_t *s, grammar_node end)
{
    struct grammar_builder *b = x->b;
    const json_t *one = json_object_get(s, "const"), *list = json_object_get(s, "enum"), *v;
    const char *type = json_string_value(json_object_get(s, "type"));
    bool strings = type && strcmp(type, "string") == 0;
    json_t *values = one ? json_pack("[O]", one) : json_incref((json_t *)list);
    grammar_node *ways = mem_alloc((json_array_size(values) + 1) * sizeof *ways);
    int n = 0;
    size_t i;
    if (!json_is_array(values))
        schema_fail(x, ERR_INVALID, "enum must be an array");
    json_array_foreach(values, i, v)
    {
        const char *text = json_string_value(v);
        bool listed = !one || !list;
        for (size_t k = 0; k < json_array_size(list) && !listed; k++)
            listed = json_equal(v, json_array_get(list, k));
        if (text && listed && !strstr(text, "\n</parameter>"))
            ways[n++] = grammar_literal(b, text, json_string_length(v));
        else if (!text && listed && !strings)
            ways[n++] = json_value_node(x->parts, v);
    }
    grammar_node out = builder_failed(b) ? -1 : grammar_seq2(b, grammar_alt(b, ways, n), end);
    free(ways);
    json_decref(values);
    return out;
}

/* One way for each of a list: the schemas of anyOf or oneOf, or the types. */
static grammar_node parameter_ways(struct schema *x, const json_t *s, const char *key, int depth)
{
    const json_t *list = json_object_get(s, key), *rest = schema_without(x, s, key), *v;
    grammar_node *ways = mem_alloc((json_array_size(list) + 1) * sizeof *ways), out = -1;
    int n = 0;
    size_t i;
    json_array_foreach(list, i, v)
    {
        json_t *type = strcmp(key, "type") == 0 ? json_pack("{s:O}", key, v) : NULL;
        const json_t *way = schema_merge(x, rest, type ? type : v);
        ways[n++] = way ? parameter_value(x, way, depth + 1) : -1;
        json_decref(type);
        if (builder_failed(x->b))
            break;
    }
    if (!builder_failed(x->b))
        out = grammar_alt(x->b, ways, n);
    free(ways);
    return out;
}

/* The value of one parameter and what ends it. Strings stand there without quotes; other values as JSON. */
static grammar_node parameter_value(struct schema *x, const json_t *s, int depth)
{
    struct grammar_builder *b = x->b;
    grammar_node end = grammar_text(b, parameter_end), empty = grammar_text(b, "");
    const char *stop = parameter_end;
    if (depth > 16)
        return schema_fail(x, ERR_INVALID, "the schema of a parameter goes round in a circle, or too deep");
    if (!may_be_string(x, s, 0))
        return grammar_seq2(b, schema_node(x, s), end);
    if (json_object_get(s, "$ref") || json_object_get(s, "allOf")) {
        s = json_object_get(s, "$ref") ? schema_merge(x, s, json_true()) : schema_all(x, s);
        return s ? parameter_value(x, s, depth + 1) : -1;
    }
    const char *const lists[] = {"anyOf", "oneOf", "type"};
    for (int i = 0; i < 3; i++)
        if (json_is_array(json_object_get(s, lists[i])))
            return parameter_ways(x, s, lists[i], depth);
    if (json_object_get(s, "enum") || json_object_get(s, "const"))
        return listed_value(x, s, end);
    grammar_node content = schema_string_in_tag(x, s);
    return content >= 0 ? grammar_seq2(b, content, end) : grammar_free_text(b, &stop, &empty, 1);
}

static grammar_node parameter(struct schema *x, const char *name, const json_t *schema)
{
    struct grammar_builder *b = x->b;
    if (strpbrk(name, ">\n<"))
        return schema_fail(x, ERR_UNSUPPORTED,
                           "the name of a parameter cannot hold <, > or a line's end in this format");
    grammar_node parts[] = {grammar_text(b, "<parameter="), grammar_text(b, name), grammar_text(b, ">\n"),
                            parameter_value(x, schema, 0)};
    return builder_failed(b) ? -1 : grammar_seq(b, parts, 4);
}

/* The schema of all parameters as one without references; NULL and an error if it says what cannot be kept
 * to here. */
static const json_t *parameters_schema(struct schema *x, const json_t *s)
{
    static const char *const kept[] = {"type", "properties", "required", "additionalProperties",
                                       "unevaluatedProperties"};
    const char *key, *why = "the parameters of a tool must be an object with properties";
    json_t *v;
    size_t i;
    if (json_object_get(s, "$ref"))
        s = schema_merge(x, s, json_true());
    if (s && json_object_get(s, "allOf"))
        s = schema_all(x, s);
    if (!s)
        return NULL;
    const json_t *type = json_object_get(s, "type"), *properties = json_object_get(s, "properties"),
                 *required = json_object_get(s, "required");
    bool object = !type || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
    json_array_foreach(type, i, v)
    {
        object |= json_is_string(v) && strcmp(json_string_value(v), "object") == 0;
    }
    if (!json_is_object(s) || !object || (properties && !json_is_object(properties)))
        schema_fail(x, ERR_UNSUPPORTED, "%s", why);
    json_object_foreach((json_t *)s, key, v)
    {
        bool known = !schema_is_constraint(key);
        for (i = 0; i < sizeof kept / sizeof kept[0] && !known; i++)
            known = strcmp(key, kept[i]) == 0;
        if (!known)
            schema_fail(x, ERR_UNSUPPORTED, "\"%s\" is not supported beside the properties of a tool", key);
    }
    if (required && !json_is_array(required))
        schema_fail(x, ERR_INVALID, "required must be an array of strings");
    json_array_foreach(required, i, v)
    {
        if (!json_is_string(v))
            schema_fail(x, ERR_INVALID, "required must be an array of strings");
    }
    return builder_failed(x->b) ? NULL : s;
}

/* The parameters of the schema's list in its order, then those that are only required. */
static grammar_node parameters(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    const json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required"),
                 *other = json_object_get(s, "additionalProperties");
    grammar_node out = grammar_text(b, ""), *list;
    const char *name;
    json_t *value, *v;
    int n = 0;
    size_t i;
    list = mem_alloc((json_object_size(properties) + json_array_size(required) + 1) * sizeof *list);
    json_object_foreach((json_t *)properties, name, value)
    {
        size_t before = schema_enter(x, "properties");
        schema_enter(x, name);
        bool must = false;
        json_array_foreach(required, i, v)
        {
            must |= strcmp(json_string_value(v), name) == 0;
        }
        grammar_node one = parameter(x, name, value);
        list[n++] = must ? one : grammar_optional(b, one);
        schema_leave(x, before);
        if (builder_failed(b))
            break;
    }
    json_array_foreach(required, i, v)
    {
        bool known = json_object_get(properties, json_string_value(v));
        for (size_t k = 0; k < i && !known; k++)
            known = json_equal(v, json_array_get(required, k));
        if (!known && !builder_failed(b))
            list[n++] = parameter(x, json_string_value(v), other ? other : json_true());
    }
    if (n && !builder_failed(b))
        out = grammar_seq(b, list, n);
    free(list);
    return out;
}

grammar_node grammar_xml_parameters(struct grammar_builder *b, const json_t *schema,
                                    const struct grammar_json_options *o)
{
    if (builder_failed(b))
        return -1;
    struct schema x;
    schema_open(&x, b, schema, o);
    const json_t *s = parameters_schema(&x, schema);
    grammar_node out = s ? parameters(&x, s) : -1;
    schema_close(&x);
    return builder_failed(b) ? -1 : out;
}
