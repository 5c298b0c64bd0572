/* One JSON Schema from two that must both hold: what allOf means, and any keyword that stands beside a $ref
 * or an anyOf. Most keywords combine by themselves (the larger minimum, the union of what is required); those
 * that do not are refused. */
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_schema.h"

static const json_t *keep(struct schema *x, json_t *made)
{
    if (made)
        json_array_append_new(x->made, made);
    return made;
}

static json_t *both(json_t *a, json_t *b)
{
    if (json_equal(a, b) || json_is_true(b))
        return json_incref(a);
    if (json_is_true(a))
        return json_incref(b);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

/* Both, either of which may be missing (NULL: no constraint). NULL if both are. */
static json_t *both_if(json_t *a, json_t *b)
{
    return a && b ? both(a, b) : json_incref(a ? a : b);
}

/* The members of a that are in b as well. */
static json_t *common(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            /* 1 and 1.0 are one value in JSON Schema. */
            if (json_equal(x, y) ||
                (json_is_number(x) && json_is_number(y) && json_number_value(x) == json_number_value(y))) {
                json_array_append(out, x);
                break;
            }
        }
    }
    return out;
}

static json_t *as_array(json_t *v)
{
    return json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
}

static bool has_text(const json_t *array, const char *text)
{
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), text) == 0)
            return true;
    }
    return false;
}

static json_t *merge_types(json_t *a, json_t *b)
{
    json_t *x = as_array(a), *y = as_array(b), *out = common(x, y);
    /* An integer is a number. */
    bool integer = (has_text(x, "integer") && has_text(y, "number")) ||
                   (has_text(x, "number") && has_text(y, "integer"));
    if (integer && !has_text(out, "integer") && !has_text(out, "number"))
        json_array_append_new(out, json_string("integer"));
    json_decref(x);
    json_decref(y);
    return out;
}

static json_t *merge_required(json_t *a, json_t *b)
{
    json_t *out = json_copy(a), *v;
    size_t i;
    json_array_foreach(b, i, v)
    {
        if (json_is_string(v) && !has_text(out, json_string_value(v)))
            json_array_append(out, v);
    }
    return out;
}

static json_t *larger(json_t *a, json_t *b, bool want_larger)
{
    bool a_larger = json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) >= json_integer_value(b)
                                                             : json_number_value(a) >= json_number_value(b);
    return json_incref(a_larger == want_larger ? a : b);
}

static json_t *merge_multiples(struct schema *x, json_t *a, json_t *b)
{
    if (!json_is_integer(a) || !json_is_integer(b) || json_integer_value(a) < 1 ||
        json_integer_value(b) < 1 || json_integer_value(a) > 1000000 || json_integer_value(b) > 1000000) {
        schema_fail(x, ERR_UNSUPPORTED,
                    "two different multipleOf cannot be combined unless both are whole numbers");
        return NULL;
    }
    json_int_t p = json_integer_value(a), q = json_integer_value(b);
    while (q) {
        json_int_t r = p % q;
        p = q;
        q = r;
    }
    return json_integer(json_integer_value(a) / p * json_integer_value(b));
}

static json_t *merge_patterns(json_t *a, json_t *b)
{
    json_t *x = as_array(a), *y = as_array(b), *out = json_copy(x);
    json_array_extend(out, y);
    json_decref(x);
    json_decref(y);
    return out;
}

/* --- objects ------------------------------------------------------------------------------------- */

/* What `from` says of a property that it does not list: its additionalProperties. */
static json_t *for_others(const json_t *from)
{
    json_t *other = json_object_get(from, "additionalProperties");
    return other ? other : json_object_get(from, "unevaluatedProperties");
}

/* Adds the properties of a to out, each with what b says of it. */
static void add_properties(json_t *out, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(a, "properties"), key, value)
    {
        json_t *other = json_object_get(json_object_get(b, "properties"), key);
        if (!json_object_get(out, key))
            json_object_set_new(out, key, both_if(value, other ? other : for_others(b)));
    }
}

static int merge_objects(struct schema *x, json_t *out, const json_t *a, const json_t *b)
{
    json_t *other_a = for_others(a), *other_b = for_others(b);
    json_t *pattern_a = json_object_get(a, "patternProperties"),
           *pattern_b = json_object_get(b, "patternProperties");
    json_t *listed_a = json_object_get(a, "properties"), *listed_b = json_object_get(b, "properties");
    bool closed_a = other_a && !json_is_true(other_a), closed_b = other_b && !json_is_true(other_b);
    if ((pattern_a && (pattern_b || listed_b || closed_b)) || (pattern_b && (listed_a || closed_a)))
        return schema_fail(x, ERR_UNSUPPORTED,
                           "patternProperties cannot be combined with the properties of another schema");
    bool listed = listed_a || listed_b;
    if (listed) {
        json_t *properties = json_object();
        add_properties(properties, a, b);
        add_properties(properties, b, a);
        json_object_set_new(out, "properties", properties);
    }
    if (other_a || other_b)
        json_object_set_new(out, "additionalProperties", both_if(other_a, other_b));
    json_object_del(out, "unevaluatedProperties");
    return 0;
}

/* --- arrays -------------------------------------------------------------------------------------- */

/* The positional schemas of an array: prefixItems, or items where that is a list, as it was before 2020. */
static json_t *prefix_of(const json_t *s)
{
    json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    return prefix ? prefix : json_is_array(items) ? items : NULL;
}

/* The schema of those that come after. */
static json_t *rest_of(const json_t *s)
{
    json_t *items = json_object_get(s, "items");
    return json_is_array(items) ? json_object_get(s, "additionalItems") : items;
}

static void merge_arrays(json_t *out, const json_t *a, const json_t *b)
{
    json_t *prefix_a = prefix_of(a), *prefix_b = prefix_of(b), *rest_a = rest_of(a), *rest_b = rest_of(b);
    size_t na = json_array_size(prefix_a), nb = json_array_size(prefix_b), n = na > nb ? na : nb;
    json_object_del(out, "items");
    json_object_del(out, "additionalItems");
    if (n > 0) {
        json_t *prefix = json_array();
        for (size_t i = 0; i < n; i++) {
            json_t *item = both_if(i < na ? json_array_get(prefix_a, i) : rest_a,
                                   i < nb ? json_array_get(prefix_b, i) : rest_b);
            json_array_append_new(prefix, item ? item : json_true());
        }
        json_object_set_new(out, "prefixItems", prefix);
    }
    if (rest_a || rest_b)
        json_object_set_new(out, "items", both_if(rest_a, rest_b));
}

/* --- one keyword --------------------------------------------------------------------------------- */

/* The value of a keyword that both a and b have, differently; NULL with the error set if there is none. */
static json_t *merge_keyword(struct schema *x, const char *key, json_t *a, json_t *b)
{
    static const char *const largest[] = {"minLength", "minItems", "minProperties", "minimum",
                                          "exclusiveMinimum"};
    static const char *const smallest[] = {"maxLength", "maxItems", "maxProperties", "maximum",
                                           "exclusiveMaximum"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(key, largest[i]) != 0 && strcmp(key, smallest[i]) != 0)
            continue;
        if (json_is_number(a) && json_is_number(b))
            return larger(a, b, strcmp(key, largest[i]) == 0);
    }
    if (strcmp(key, "type") == 0)
        return merge_types(a, b);
    if (strcmp(key, "enum") == 0)
        return common(a, b);
    if (strcmp(key, "required") == 0 && json_is_array(a) && json_is_array(b))
        return merge_required(a, b);
    if (strcmp(key, "multipleOf") == 0)
        return merge_multiples(x, a, b);
    if (strcmp(key, SCHEMA_PATTERNS) == 0)
        return merge_patterns(a, b);
    if (strcmp(key, "propertyNames") == 0)
        return both(a, b);
    if (strcmp(key, "uniqueItems") == 0)
        return json_boolean(json_is_true(a) || json_is_true(b));
    if (strcmp(key, "allOf") == 0 && json_is_array(a) && json_is_array(b)) {
        json_t *out = json_copy(a);
        json_array_extend(out, b);
        return out;
    }
    schema_fail(x, ERR_UNSUPPORTED, "two different \"%s\" cannot be combined", key);
    return NULL;
}

/* A copy of s that has only constraints, with a pattern and a const in the form that merges. */
static json_t *constraints(const json_t *s)
{
    json_t *out = json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s, key, value)
    {
        if (strcmp(key, "pattern") == 0)
            json_object_set_new(out, SCHEMA_PATTERNS, json_pack("[O]", value));
        else if (strcmp(key, "const") == 0 && !json_object_get(s, "enum"))
            json_object_set_new(out, "enum", json_pack("[O]", value));
        else if (schema_is_constraint(key))
            json_object_set(out, key, value);
    }
    json_t *one = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    if (one && list) {
        json_t *array = json_pack("[O]", one);
        json_object_set_new(out, "enum", common(array, list));
        json_decref(array);
    }
    return out;
}

static bool handled_together(const char *key)
{
    static const char *const list[] = {"properties", "additionalProperties", "unevaluatedProperties",
                                       "items",      "prefixItems",          "additionalItems"};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

/* Replaces a schema that is a $ref by what it names, together with what stands beside it. */
static const json_t *without_ref(struct schema *x, const json_t *s)
{
    json_t *ref = json_is_object(s) ? json_object_get(s, "$ref") : NULL;
    if (!ref)
        return s;
    const json_t *target = schema_resolve(x, ref);
    if (!target || !schema_step(x))
        return NULL;
    json_t *rest = json_copy((json_t *)s);
    json_object_del(rest, "$ref");
    if (++x->depth > SCHEMA_MAX_DEPTH) {
        schema_fail(x, ERR_INVALID, "$ref goes round in a circle, or schemas are nested deeper than %d",
                    SCHEMA_MAX_DEPTH);
        target = NULL;
    }
    const json_t *out = target ? schema_merge(x, keep(x, rest), target) : NULL;
    if (!target)
        json_decref(rest);
    x->depth--;
    return out;
}

const json_t *schema_merge(struct schema *x, const json_t *a, const json_t *b)
{
    if (!schema_step(x) || !(a = without_ref(x, a)) || !(b = without_ref(x, b)))
        return NULL;
    if (json_is_false(a) || json_is_true(b))
        return a;
    if (json_is_false(b) || json_is_true(a))
        return b;
    if (!json_is_object(a) || !json_is_object(b)) {
        schema_fail(x, ERR_INVALID, "a schema must be an object or a boolean");
        return NULL;
    }
    json_t *p = constraints(a), *q = constraints(b), *out = json_copy(p), *value;
    const char *key;
    json_object_foreach(q, key, value)
    {
        json_t *mine = json_object_get(p, key);
        if (handled_together(key)) {
            if (!mine)
                json_object_set(out, key, value);
        } else if (!mine) {
            json_object_set(out, key, value);
        } else if ((strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) && !json_equal(mine, value)) {
            /* One stays here; the other is one more thing that must hold. */
            json_t *more = json_pack("{s:O}", key, value), *all = json_object_get(out, "allOf");
            all = all ? json_copy(all) : json_array();
            json_array_append_new(all, more);
            json_object_set_new(out, "allOf", all);
        } else if (!json_equal(mine, value)) {
            json_t *merged = merge_keyword(x, key, mine, value);
            if (!merged)
                goto fail;
            json_object_set_new(out, key, merged);
        }
    }
    if (merge_objects(x, out, p, q))
        goto fail;
    merge_arrays(out, p, q);
    json_decref(p);
    json_decref(q);
    return keep(x, out);
fail:
    json_decref(p);
    json_decref(q);
    json_decref(out);
    return NULL;
}
