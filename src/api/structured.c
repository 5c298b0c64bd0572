#include "api/structured.h"

#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/grammar_cache.h"
#include "base/mem.h"

enum { MAX_FORM_DEPTH = 64, MAX_PATTERN = 1 << 20 };

enum form_kind { FORM_NONE, FORM_SCHEMA, FORM_OBJECT, FORM_REGEX, FORM_CHOICE, FORM_EBNF, FORM_TAG };

/* The form that the fields ask for. */
struct form {
    enum form_kind kind;
    const json_t *value;
    json_t *parsed;    /* owned: a value that came as JSON in a string */
    const char *field; /* where the value stands, for errors */
    struct grammar_json_options o;
};

/* --- fields ---------------------------------------------------------------------------------------- */

int tool_choice_read(const json_t *body, enum tool_choice *choice, const char **name, struct api_error *e)
{
    const json_t *v = json_object_get(body, "tool_choice");
    static const char *const words[] = {"auto", "none", "required"};
    *choice = TOOL_AUTO;
    *name = NULL;
    if (!v || json_is_null(v))
        return 0;
    for (int i = 0; i < 3 && json_is_string(v); i++)
        if (strcmp(json_string_value(v), words[i]) == 0) {
            *choice = (enum tool_choice)i;
            return 0;
        }
    if (!json_is_object(v))
        return api_bad_type(e, "tool_choice", v, "\"none\", \"auto\", \"required\" or an object");
    const json_t *type = json_object_get(v, "type");
    if (type && !(json_is_string(type) && strcmp(json_string_value(type), "function") == 0))
        return api_bad_type(e, "tool_choice.type", type, "\"function\"");
    const json_t *wanted = json_object_get(json_object_get(v, "function"), "name");
    if (!json_is_string(wanted))
        return api_bad_type(e, "tool_choice.function.name", wanted, "a string");
    *choice = TOOL_NAMED;
    *name = json_string_value(wanted);
    return 0;
}

static int depth_of(const json_t *v, int most)
{
    int deepest = 0, depth;
    const char *key;
    json_t *item;
    size_t i;
    if (most == 0 || !(json_is_object(v) || json_is_array(v)))
        return 0;
    json_object_foreach((json_t *)(uintptr_t)v, key, item) deepest =
        (depth = depth_of(item, most - 1)) > deepest ? depth : deepest;
    json_array_foreach(v, i, item) deepest = (depth = depth_of(item, most - 1)) > deepest ? depth : deepest;
    return 1 + deepest;
}

/* Takes a schema or a tag: an object, or a string that holds its JSON. */
static int take_json(struct form *f, enum form_kind kind, const char *field, const json_t *v,
                     struct api_error *e)
{
    f->kind = kind;
    f->field = field;
    f->value = v;
    if (json_is_string(v)) {
        f->value = f->parsed = fields_parse(json_string_value(v), json_string_length(v), MAX_FORM_DEPTH, e);
        if (!f->parsed)
            return api_bad_value(e, field, v,
                                 "%s is a string, but not one that holds a JSON object of at most %d levels",
                                 field, MAX_FORM_DEPTH);
    }
    if (!json_is_object(f->value) && !(kind == FORM_SCHEMA && json_is_boolean(f->value)))
        return api_bad_value(e, field, v, "%s must be a JSON object", field);
    if (depth_of(f->value, MAX_FORM_DEPTH + 1) > MAX_FORM_DEPTH)
        return api_fail(e, 400, "BadRequestError", field, "%s is nested deeper than %d levels", field,
                        MAX_FORM_DEPTH);
    return 0;
}

static int take_text(struct form *f, enum form_kind kind, const char *field, const json_t *v,
                     struct api_error *e)
{
    f->kind = kind;
    f->field = field;
    f->value = v;
    if (!json_is_string(v))
        return api_bad_type(e, field, v, "a string");
    if (json_string_length(v) == 0 || json_string_length(v) > MAX_PATTERN)
        return api_bad_value(e, field, v, "%s must hold 1 to %d bytes", field, MAX_PATTERN);
    return 0;
}

static int read_response_format(struct form *f, const json_t *body, struct api_error *e)
{
    const json_t *format;
    int set = field_object(body, "response_format", &format, e);
    if (set <= 0)
        return set;
    const json_t *type = json_object_get(format, "type");
    const char *name = json_string_value(type);
    if (!name)
        return api_bad_type(e, "response_format.type", type, "a string");
    if (strcmp(name, "text") == 0)
        return 0;
    if (strcmp(name, "json_object") == 0) {
        f->kind = FORM_OBJECT;
        f->field = "response_format";
        return 0;
    }
    if (strcmp(name, "structural_tag") == 0)
        return take_json(f, FORM_TAG, "response_format", format, e);
    if (strcmp(name, "json_schema") != 0)
        return api_bad_value(e, "response_format.type", type,
                             "response_format.type must be text, json_object, json_schema or structural_tag");
    const json_t *spec = json_object_get(format, "json_schema");
    if (!json_is_object(spec))
        return api_bad_value(e, "response_format.json_schema", spec,
                             "response_format of type json_schema needs an object json_schema");
    bool strict = false;
    if (!json_is_string(json_object_get(spec, "name")))
        return api_bad_type(e, "response_format.json_schema.name", json_object_get(spec, "name"), "a string");
    if (field_bool(spec, "strict", &strict, e) < 0)
        return -1;
    const json_t *schema = json_object_get(spec, "schema");
    if (!schema || json_is_null(schema))
        return api_missing(e, "response_format.json_schema.schema");
    return take_json(f, FORM_SCHEMA, "response_format.json_schema.schema", schema, e);
}

/* One of the kinds of structured_outputs. */
static int take_kind(struct form *f, const char *kind, const json_t *v, struct api_error *e)
{
    if (strcmp(kind, "json") == 0)
        return take_json(f, FORM_SCHEMA, "structured_outputs.json", v, e);
    if (strcmp(kind, "structural_tag") == 0)
        return take_json(f, FORM_TAG, "structured_outputs.structural_tag", v, e);
    if (strcmp(kind, "regex") == 0)
        return take_text(f, FORM_REGEX, "structured_outputs.regex", v, e);
    if (strcmp(kind, "grammar") == 0)
        return take_text(f, FORM_EBNF, "structured_outputs.grammar", v, e);
    if (strcmp(kind, "json_object") == 0) {
        f->kind = FORM_OBJECT;
        f->field = "structured_outputs.json_object";
        return json_is_true(v) ? 0
                               : api_bad_value(e, f->field, v, "%s can only be true: leave it out", f->field);
    }
    f->kind = FORM_CHOICE;
    f->field = "structured_outputs.choice";
    f->value = v;
    if (!json_is_array(v))
        return api_bad_type(e, f->field, v, "a list of strings");
    if (json_array_size(v) == 0)
        return api_bad_value(e, f->field, v, "%s must hold at least one string", f->field);
    return 0;
}

static int read_structured_outputs(struct form *f, const json_t *body, struct api_error *e)
{
    static const char *const kinds[] = {"json",    "regex",       "choice",
                                        "grammar", "json_object", "structural_tag"};
    const json_t *fields, *pattern = NULL;
    int set = field_object(body, "structured_outputs", &fields, e), n = f->kind != FORM_NONE;
    if (set <= 0)
        return set;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const json_t *v = json_object_get(fields, kinds[i]);
        if (!v || json_is_null(v))
            continue;
        if (n++)
            return api_fail(
                e, 400, "BadRequestError", "structured_outputs",
                "one form can be asked for, not several: structured_outputs.%s comes on top of %s", kinds[i],
                f->field);
        if (take_kind(f, kinds[i], v, e))
            return -1;
    }
    if (n == 0)
        return api_bad_value(
            e, "structured_outputs", fields,
            "structured_outputs needs exactly one of json, regex, choice, grammar, json_object "
            "and structural_tag");
    bool closed = true;
    if (field_bool(fields, "disable_any_whitespace", &f->o.no_whitespace, e) < 0 ||
        field_bool(fields, "disable_additional_properties", &closed, e) < 0 ||
        field_string(fields, "whitespace_pattern", &pattern, e) < 0)
        return -1;
    /* an object that lists its properties is closed unless its schema, or this field, says otherwise */
    f->o.open_objects = !closed;
    if (pattern && json_string_length(pattern) == 0)
        return api_bad_value(
            e, "structured_outputs.whitespace_pattern", pattern,
            "whitespace_pattern must not be empty: disable_any_whitespace forbids white space");
    f->o.whitespace_pattern = json_string_value(pattern);
    return 0;
}

/* --- the grammar ----------------------------------------------------------------------------------- */

static grammar_node form_node(struct grammar_builder *b, const struct form *f)
{
    const json_t *v = f->value;
    switch (f->kind) {
    case FORM_SCHEMA:
        return grammar_schema(b, v, &f->o);
    case FORM_OBJECT:
        return grammar_json_object(b, &f->o);
    case FORM_REGEX:
        return grammar_regex(b, json_string_value(v), json_string_length(v));
    case FORM_EBNF:
        return grammar_ebnf(b, json_string_value(v), json_string_length(v));
    case FORM_TAG:
        return grammar_tag(b, v, &f->o);
    case FORM_CHOICE:
        return grammar_choice(b, v);
    case FORM_NONE:
        break;
    }
    return -1;
}

/* The thought, and behind it the answer; or, where a thought may be broken off by a call, what follows a
 * <tool_call>. */
static grammar_node behind_thought(struct grammar_builder *b, enum thought start, grammar_node answer,
                                   grammar_node resume)
{
    if (start == THOUGHT_NONE)
        return answer;
    static const char blanks[] = "\\n{0,2}";
    const char *const marks[] = {"</think>", "<tool_call>"};
    grammar_node rest[] = {grammar_regex(b, blanks, strlen(blanks)), answer};
    grammar_node found[] = {grammar_seq(b, rest, 2), resume};
    grammar_node thought = grammar_free_text(b, marks, found, resume >= 0 ? 2 : 1);
    if (start == THOUGHT_OPEN)
        return thought;
    grammar_node opened[] = {grammar_text(b, "<think>"), thought};
    grammar_node ways[] = {answer, grammar_seq(b, opened, 2)};
    return grammar_alt(b, ways, 2);
}

/* 400 with the place in the schema: "schema at #/properties/x: …" is at FIELD.properties.x. */
static int refuse(struct api_error *e, const char *field, const struct err *why)
{
    char param[128];
    size_t n = (size_t)snprintf(param, sizeof param, "%s", field);
    static const char at[] = "schema at #";
    if (strncmp(why->msg, at, strlen(at)) == 0)
        for (const char *p = why->msg + strlen(at); *p && *p != ':' && n + 1 < sizeof param; p++) {
            param[n++] = *p == '/' ? '.' : *p;
            param[n] = '\0';
        }
    if (why->code == ERR_NO_MEMORY)
        return api_from_err(e, NULL, why);
    return api_fail(e, 400, "BadRequestError", param,
                    "%s cannot be used as the form of an answer: %s (parameter=%s)", field, why->msg, param);
}

static int dump(const char *bytes, size_t n, void *to)
{
    str_add(to, bytes, n);
    return 0;
}

/* All that the grammar depends on, as the key of the cache. */
static void write_key(const struct structured_context *c, const struct form *f, bool calls, struct str *key)
{
    str_addf(key, "%d %d %d %d %d ", c->start, f->kind, f->o.no_whitespace, f->o.open_objects,
             f->o.whitespace_pattern != NULL);
    if (f->o.whitespace_pattern)
        str_addf(key, "%zu %s ", strlen(f->o.whitespace_pattern), f->o.whitespace_pattern);
    if (f->value)
        json_dump_callback(f->value, dump, key, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!calls)
        return;
    const char *name = c->choice == TOOL_NAMED ? c->name : "";
    str_addf(key, " %d %d %d %d %zu %s ", c->format, c->choice, c->one_call, c->strictness, strlen(name),
             name);
    json_dump_callback(c->tools, dump, key, JSON_COMPACT);
}

static struct grammar *compile(const struct structured_context *c, const struct form *f, bool calls,
                               struct api_error *e)
{
    struct grammar_builder *b = grammar_builder_create();
    bool must = calls && c->choice != TOOL_AUTO;
    grammar_node form = f->kind != FORM_NONE && !must ? form_node(b, f) : -1;
    bool form_failed = f->kind != FORM_NONE && !must && form < 0;
    struct call_grammar call = {.answer = form, .resume = -1, .failed_tool = -1};
    if (calls && !form_failed)
        call_grammar_build(b, c, form, &call);
    struct err why = {0};
    struct grammar *g =
        grammar_builder_finish(b, behind_thought(b, c->start, call.answer, call.resume), &why);
    if (g)
        return g;
    char field[64];
    if (call.failed_tool >= 0)
        snprintf(field, sizeof field, "tools.%d.function.parameters", call.failed_tool);
    refuse(e, call.failed_tool >= 0 ? field : f->field ? f->field : "tools", &why);
    return NULL;
}

/* The names of tools stand between < and > in one of the formats. */
static int check_names(const struct structured_context *c, struct api_error *e)
{
    for (size_t i = 0; i < json_array_size(c->tools) && c->format == TOOLS_QWEN3_CODER; i++) {
        const json_t *name =
            json_object_get(json_object_get(json_array_get(c->tools, i), "function"), "name");
        char path[64];
        snprintf(path, sizeof path, "tools.%zu.function.name", i);
        if (json_string_length(name) == 0 || strpbrk(json_string_value(name), "<>\n"))
            return api_bad_value(e, path, name,
                                 "the name of a tool must not be empty, nor hold <, > or a line's end");
    }
    return 0;
}

/* Are calls part of the grammar? */
static bool wants_calls(const struct structured_context *c, const struct form *f)
{
    if (c->format == TOOLS_NONE || !c->tools)
        return false;
    return c->choice != TOOL_AUTO || f->kind != FORM_NONE || c->strictness > 0 || tools_are_strict(c->tools);
}

int structured_read(const struct api_model *m, const struct structured_context *c, const json_t *body,
                    struct grammar **g, struct api_error *e)
{
    struct form f = {0};
    struct str key = {0};
    struct err why = {0};
    int failed = -1;
    *g = NULL;
    f.o.no_whitespace = m->compact_json;
    if (read_response_format(&f, body, e) || read_structured_outputs(&f, body, e))
        goto done;
    if (f.kind != FORM_NONE && c->choice == TOOL_NAMED) {
        api_fail(e, 400, "BadRequestError", f.field,
                 "%s asks for a form of the text, but tool_choice names a tool: its call is all that the "
                 "answer holds",
                 f.field);
        goto done;
    }
    bool calls = wants_calls(c, &f);
    if (f.kind == FORM_NONE && !calls) {
        failed = 0;
        goto done;
    }
    if (calls && check_names(c, e))
        goto done;
    write_key(c, &f, calls, &key);
    if (!(*g = grammar_cache_find(m->grammars, &key)) && (*g = compile(c, &f, calls, e)) &&
        !(*g = grammar_cache_add(m->grammars, &key, *g, &why)))
        api_from_err(e, NULL, &why);
    failed = *g ? 0 : -1;
done:
    json_decref(f.parsed);
    str_free(&key);
    return failed;
}
