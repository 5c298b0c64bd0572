/* JSON Schema to grammar. What is generated is valid, with two confessions: oneOf is taken as anyOf, so a
 * value may fit two of its schemas; and a key that is not listed may come twice and then counts twice for
 * minProperties. It need not be all that is valid:
 *
 *   - properties come in the order in which the schema lists them, then any others;
 *   - an object that lists properties is closed unless additionalProperties says otherwise (or open_objects);
 *   - without a `type`, the types that the keywords speak of are meant;
 *   - texts that match a pattern or format are written without needless escapes.
 *
 * Annotations and unknown keywords are ignored, as the standard says; keywords that would change what is
 * valid and are not supported are refused with the path of their schema. */
#include "sample/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

grammar_node schema_fail(struct schema *x, enum err_code code, const char *fmt, ...)
{
    char what[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return builder_fail(x->b, code, "schema at %.300s: %s", str_text(&x->path), what);
}

void schema_locate(struct schema *x)
{
    if (builder_failed(x->b) && strncmp(x->b->e.msg, "schema at", 9) != 0)
        err_prefix(&x->b->e, "schema at %.300s", str_text(&x->path));
}

bool schema_step(struct schema *x)
{
    if (++x->work > SCHEMA_MAX_WORK)
        schema_fail(x, ERR_INVALID, "the schema is too large: it expands to more than %d schemas",
                    SCHEMA_MAX_WORK);
    return !builder_failed(x->b);
}

bool schema_is_constraint(const char *keyword)
{
    static const char *const list[] = {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "additionalProperties",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "patternProperties",
        "minimum",
        "maximum",
        "multipleOf",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "minProperties",
        "not",
        "if",
        "then",
        "else",
        "maxProperties",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependencies",
        "additionalItems",
        "$dynamicRef",
        "$recursiveRef",
        "dependentRequired",
        SCHEMA_PATTERNS,
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(keyword, list[i]) == 0)
            return true;
    return false;
}

/* Adds "/key" to the path; the result is given to schema_leave. */
size_t schema_enter(struct schema *x, const char *key)
{
    size_t before = x->path.len;
    str_addc(&x->path, '/');
    for (; *key && x->path.len < before + 60; key++) {
        if (*key == '~' || *key == '/')
            str_adds(&x->path, *key == '~' ? "~0" : "~1");
        else
            str_addc(&x->path, (unsigned char)*key < 0x20 ? '?' : *key);
    }
    return before;
}

size_t schema_enter_index(struct schema *x, const char *key, size_t i)
{
    char text[80];
    size_t before = schema_enter(x, key);
    snprintf(text, sizeof text, "%zu", i);
    schema_enter(x, text);
    return before;
}

void schema_leave(struct schema *x, size_t before)
{
    x->path.len = before;
    x->path.data[before] = '\0';
}

grammar_node schema_under(struct schema *x, const char *key, const json_t *s)
{
    size_t before = schema_enter(x, key);
    grammar_node n = schema_node(x, s);
    schema_leave(x, before);
    return n;
}

grammar_node schema_never(struct schema *x)
{
    return grammar_alt(x->b, NULL, 0);
}

bool schema_refuse(struct schema *x, const json_t *s, const char *key)
{
    if (!json_object_get(s, key))
        return false;
    schema_fail(x, ERR_UNSUPPORTED, "\"%s\" is not supported", key);
    return true;
}

/* --- values, types, combinations ----------------------------------------------------------------- */

static int json_depth(const json_t *v, int limit)
{
    int deepest = 0;
    const char *key;
    json_t *part;
    size_t i;
    if (limit < 0)
        return 1;
    json_object_foreach((json_t *)v, key, part)
    {
        int d = json_depth(part, limit - 1);
        deepest = d > deepest ? d : deepest;
    }
    json_array_foreach(v, i, part)
    {
        int d = json_depth(part, limit - 1);
        deepest = d > deepest ? d : deepest;
    }
    return deepest + 1;
}

static bool has_type(const json_t *type, const json_t *v)
{
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    const json_t *t;
    size_t i;
    if (!type)
        return true;
    if (json_is_array(type)) {
        json_array_foreach(type, i, t)
        {
            if (has_type(t, v))
                return true;
        }
        return false;
    }
    const char *name = json_is_string(type) ? json_string_value(type) : "";
    bool whole = json_is_real(v) && json_real_value(v) == (double)(int64_t)json_real_value(v);
    return strcmp(name, names[json_typeof(v)]) == 0 || (strcmp(name, "number") == 0 && json_is_number(v)) ||
           (strcmp(name, "integer") == 0 && whole && json_real_value(v) < 9e15 && json_real_value(v) > -9e15);
}

/* The grammar of what else s says beside enum and const, NULL if it is nothing but a type. */
static struct grammar *other_constraints(struct schema *x, const json_t *s)
{
    json_t *rest = json_object();
    const char *key;
    json_t *v;
    bool any = false;
    json_object_foreach((json_t *)s, key, v)
    {
        if (strcmp(key, "enum") == 0 || strcmp(key, "const") == 0 || !schema_is_constraint(key))
            continue;
        json_object_set(rest, key, v);
        any |= strcmp(key, "type") != 0;
    }
    struct grammar *g = NULL;
    if (any) {
        struct grammar_builder *b = grammar_builder_create();
        const struct grammar_json_options options = {.no_whitespace = true, .open_objects = true};
        struct schema y;
        schema_open(&y, b, x->root, &options);
        y.depth = x->depth;
        y.work = x->work;
        str_adds(&y.path, str_text(&x->path) + 1);
        grammar_node root = schema_node(&y, rest);
        x->work = y.work;
        schema_close(&y);
        /* That none of the values fits is no error here. */
        root = grammar_alt2(b, root, grammar_text(b, "no value"));
        struct err e = {0};
        g = grammar_builder_finish(b, root, &e);
        if (!g)
            builder_fail(x->b, e.code, "%s", e.msg);
    }
    json_decref(rest);
    return g;
}

static bool fits(struct grammar *g, const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (!text)
        return false;
    struct grammar_matcher *m = grammar_matcher_create(g);
    bool ok = grammar_matcher_advance(m, text, strlen(text)) && grammar_matcher_can_end(m);
    grammar_matcher_free(m);
    free(text);
    return ok;
}

static grammar_node enum_node(struct schema *x, const json_t *s)
{
    struct grammar_builder *b = x->b;
    const json_t *list = json_object_get(s, "enum"), *one = json_object_get(s, "const");
    json_t *values = one ? json_pack("[O]", one) : json_incref((json_t *)list), *v;
    grammar_node *ways = NULL, out = -1;
    int n = 0;
    size_t i;
    if (!json_is_array(values)) {
        schema_fail(x, ERR_INVALID, "enum must be an array");
        goto done;
    }
    struct grammar *rest = other_constraints(x, s);
    ways = mem_alloc((json_array_size(values) + 1) * sizeof *ways);
    json_array_foreach(values, i, v)
    {
        if (json_depth(v, SCHEMA_MAX_DEPTH) > SCHEMA_MAX_DEPTH)
            schema_fail(x, ERR_INVALID, "a value of enum or const is nested deeper than %d",
                        SCHEMA_MAX_DEPTH);
        if (builder_failed(b))
            break;
        bool listed = !one || !list;
        for (size_t k = 0; k < json_array_size(list) && !listed; k++)
            listed = json_equal(v, json_array_get(list, k));
        if (listed && has_type(json_object_get(s, "type"), v) && (!rest || fits(rest, v)))
            ways[n++] = json_value_node(x->parts, v);
    }
    grammar_unref(rest);
    if (!builder_failed(b))
        out = grammar_alt(b, ways, n);
done:
    free(ways);
    json_decref(values);
    return out;
}

/* The types that a schema without `type` speaks of. */
static int implied_types(const json_t *s, const char *out[7])
{
    static const struct {
        const char *type, *keys[12];
    } table[] = {
        {"object",
         {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
          "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
          "unevaluatedProperties"}},
        {"array",
         {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "additionalItems",
          "unevaluatedItems"}},
        {"string", {"minLength", "maxLength", "pattern", "format", SCHEMA_PATTERNS}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int k = 0; k < 12 && table[i].keys[k]; k++)
            if (json_object_get(s, table[i].keys[k])) {
                out[n++] = table[i].type;
                break;
            }
    return n;
}

static grammar_node typed_node(struct schema *x, const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *v;
    const char *names[7];
    int n = 0;
    size_t i;
    if (json_is_string(type)) {
        names[n++] = json_string_value(type);
    } else if (json_is_array(type)) {
        json_array_foreach(type, i, v)
        {
            if (!json_is_string(v) || n == 7)
                return schema_fail(x, ERR_INVALID, "type must be a name or an array of different names");
            names[n++] = json_string_value(v);
        }
        if (n == 0)
            return schema_never(x);
    } else if (type) {
        return schema_fail(x, ERR_INVALID, "type must be a name or an array of names");
    } else {
        n = implied_types(s, names);
        if (n == 0)
            return x->parts->value;
    }
    grammar_node ways[7];
    for (int k = 0; k < n; k++)
        ways[k] = schema_of_type(x, s, names[k]);
    return grammar_alt(x->b, ways, n);
}

const json_t *schema_resolve(struct schema *x, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        schema_fail(x, ERR_UNSUPPORTED,
                    "$ref \"%.100s\" is not supported: only places in this schema are (\"#/$defs/name\")",
                    text ? text : "?");
        return NULL;
    }
    const json_t *at = x->root;
    struct str key = {0};
    for (const char *p = text + 1; at && *p == '/';) {
        str_clear(&key);
        for (p++; *p && *p != '/'; p++) {
            unsigned byte;
            if (*p == '%' && sscanf(p + 1, "%2x", &byte) == 1 && p[1] && p[2] && byte) {
                str_addc(&key, (char)byte);
                p += 2;
            } else if (*p == '~' && (p[1] == '0' || p[1] == '1')) {
                str_addc(&key, *++p == '0' ? '~' : '/');
            } else {
                str_addc(&key, *p);
            }
        }
        if (json_is_array(at)) {
            char *end;
            size_t i = strtoul(str_text(&key), &end, 10);
            at = *end || !key.len ? NULL : json_array_get(at, i);
        } else {
            at = json_object_get(at, str_text(&key));
        }
    }
    str_free(&key);
    if (!at)
        schema_fail(x, ERR_INVALID, "$ref \"%.100s\" names nothing in this schema", text);
    return at;
}

/* A rule for the target of a $ref. Its body is made later, by read_refs: so schemas may refer to themselves,
 * and a chain of references is not read by recursion. */
static grammar_node ref_node(struct schema *x, const json_t *ref)
{
    const json_t *target = schema_resolve(x, ref);
    if (!target)
        return -1;
    for (int i = 0; i < x->n_refs; i++)
        if (x->refs[i].target == target)
            return x->refs[i].rule;
    grammar_node rule = grammar_rule(x->b, json_string_value(ref));
    GROW(x->refs, x->n_refs, x->cap_refs, 1);
    x->refs[x->n_refs].target = target;
    x->refs[x->n_refs].path = json_string_value(ref);
    x->refs[x->n_refs++].rule = rule;
    return rule;
}

static void read_refs(struct schema *x)
{
    for (; x->n_read < x->n_refs && !builder_failed(x->b); x->n_read++) {
        str_clear(&x->path);
        str_add(&x->path, x->refs[x->n_read].path, strnlen(x->refs[x->n_read].path, 300));
        grammar_node rule = x->refs[x->n_read].rule; /* reading may move the list */
        grammar_define(x->b, rule, schema_node(x, x->refs[x->n_read].target));
    }
}

const json_t *schema_without(struct schema *x, const json_t *s, const char *key)
{
    json_t *copy = json_copy((json_t *)s);
    json_object_del(copy, key);
    json_array_append_new(x->made, copy);
    return copy;
}

static bool constrains(const json_t *s, const char *but)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)s, key, v)
    {
        if (strcmp(key, but) != 0 && schema_is_constraint(key))
            return true;
    }
    return false;
}

/* anyOf and oneOf: each way, together with what stands beside it. */
static grammar_node any_node(struct schema *x, const json_t *s, const char *key)
{
    const json_t *list = json_object_get(s, key), *v;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return schema_fail(x, ERR_INVALID, "%s must be an array of at least one schema", key);
    const json_t *rest = constrains(s, key) ? schema_without(x, s, key) : NULL;
    grammar_node *ways = mem_alloc(json_array_size(list) * sizeof *ways), out = -1;
    int n = 0;
    json_array_foreach(list, i, v)
    {
        size_t before = schema_enter_index(x, key, i);
        const json_t *way = rest ? schema_merge(x, rest, v) : v;
        ways[n++] = way ? schema_node(x, way) : -1;
        schema_leave(x, before);
        if (builder_failed(x->b))
            break;
    }
    if (!builder_failed(x->b))
        out = grammar_alt(x->b, ways, n);
    free(ways);
    return out;
}

const json_t *schema_all(struct schema *x, const json_t *s)
{
    const json_t *list = json_object_get(s, "allOf"), *v;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_fail(x, ERR_INVALID, "allOf must be an array of at least one schema");
        return NULL;
    }
    const json_t *all = schema_without(x, s, "allOf");
    json_array_foreach(list, i, v)
    {
        size_t before = schema_enter_index(x, "allOf", i);
        all = schema_merge(x, all, v);
        schema_leave(x, before);
        if (!all)
            break;
    }
    return all;
}

static grammar_node all_node(struct schema *x, const json_t *s)
{
    const json_t *list = json_object_get(s, "allOf");
    if (json_array_size(list) == 1 && !constrains(s, "allOf")) {
        size_t before = schema_enter_index(x, "allOf", 0);
        grammar_node n = schema_node(x, json_array_get(list, 0));
        schema_leave(x, before);
        return n;
    }
    const json_t *all = schema_all(x, s);
    return all ? schema_node(x, all) : -1;
}

static grammar_node object_schema(struct schema *x, const json_t *s)
{
    static const char *const refused[] = {"not", "$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (schema_refuse(x, s, refused[i]))
            return -1;
    if (json_object_get(s, "if") && (json_object_get(s, "then") || json_object_get(s, "else")))
        return schema_fail(x, ERR_UNSUPPORTED, "\"if\" is not supported");
    const json_t *ref = json_object_get(s, "$ref");
    if (ref && !constrains(s, "$ref"))
        return ref_node(x, ref);
    if (ref) {
        const json_t *merged = schema_merge(x, s, json_true());
        return merged ? schema_node(x, merged) : -1;
    }
    if (json_object_get(s, "anyOf"))
        return any_node(x, s, "anyOf");
    if (json_object_get(s, "oneOf"))
        return any_node(x, s, "oneOf");
    if (json_object_get(s, "allOf"))
        return all_node(x, s);
    if (json_object_get(s, "enum") || json_object_get(s, "const"))
        return enum_node(x, s);
    return typed_node(x, s);
}

grammar_node schema_node(struct schema *x, const json_t *s)
{
    if (!schema_step(x))
        return -1;
    if (json_is_true(s))
        return x->parts->value;
    if (json_is_false(s))
        return schema_never(x);
    if (!json_is_object(s))
        return schema_fail(x, ERR_INVALID, "a schema must be an object or a boolean");
    if (x->depth >= SCHEMA_MAX_DEPTH)
        return schema_fail(x, ERR_INVALID, "schemas are nested deeper than %d", SCHEMA_MAX_DEPTH);
    x->depth++;
    grammar_node n = object_schema(x, s);
    x->depth--;
    return n;
}

/* --- entries ------------------------------------------------------------------------------------- */

void schema_open(struct schema *x, struct grammar_builder *b, const json_t *root,
                 const struct grammar_json_options *o)
{
    *x = (struct schema){.b = b, .root = root, .made = json_array(), .open_objects = o && o->open_objects};
    str_adds(&x->path, "#");
    x->parts = json_parts_of(b, o);
}

void schema_close(struct schema *x)
{
    read_refs(x);
    str_free(&x->path);
    json_decref(x->made);
    free(x->refs);
}

grammar_node grammar_schema(struct grammar_builder *b, const json_t *schema,
                            const struct grammar_json_options *o)
{
    if (builder_failed(b))
        return -1;
    struct schema x;
    schema_open(&x, b, schema, o);
    grammar_node n = schema_node(&x, schema);
    schema_close(&x);
    return n;
}

grammar_node grammar_json_object(struct grammar_builder *b, const struct grammar_json_options *o)
{
    return builder_failed(b) ? -1 : json_parts_of(b, o)->object;
}

struct grammar *grammar_from_schema(const json_t *schema, const struct grammar_json_options *o, struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    return grammar_builder_finish(b, grammar_schema(b, schema, o), e);
}

struct grammar *grammar_from_json_object(const struct grammar_json_options *o, struct err *e)
{
    struct grammar_builder *b = grammar_builder_create();
    return grammar_builder_finish(b, grammar_json_object(b, o), e);
}
