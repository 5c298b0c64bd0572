#include "api/translate.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/tokens.h"

/* --- places ---------------------------------------------------------------------------------------- */

static void write_place(const struct place *at, struct str *out)
{
    if (!at)
        return;
    write_place(at->in, out);
    if (out->len)
        str_addc(out, '.');
    if (at->key)
        str_adds(out, at->key);
    else
        str_addf(out, "%zu", at->index);
}

static void write_path(const struct place *at, const char *key, struct str *out)
{
    const struct place last = {at, key, 0};
    write_place(key ? &last : at, out);
}

int place_bad(struct api_error *e, const struct place *at, const char *key, const json_t *value,
              const char *expected)
{
    struct str path = {0};
    write_path(at, key, &path);
    api_bad_type(e, str_text(&path), value, expected);
    str_free(&path);
    return -1;
}

int place_missing(struct api_error *e, const struct place *at, const char *key)
{
    struct str path = {0};
    write_path(at, key, &path);
    api_missing(e, str_text(&path));
    str_free(&path);
    return -1;
}

int place_refuse(struct api_error *e, const struct place *at, const char *key, const json_t *value,
                 const char *why)
{
    struct str path = {0};
    write_path(at, key, &path);
    api_bad_value(e, str_text(&path), value, "%s: %s", str_text(&path), why);
    str_free(&path);
    return -1;
}

static const char *type_name(json_type type)
{
    switch (type) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    default:
        return "of another type";
    }
}

int place_get(const json_t *object, const struct place *at, const char *key, json_type type,
              const json_t **out, struct api_error *e)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return 0;
    if (json_typeof(v) != type)
        return place_bad(e, at, key, v, type_name(type));
    *out = v;
    return 1;
}

int place_need(const json_t *object, const struct place *at, const char *key, json_type type,
               const json_t **out, struct api_error *e)
{
    int set = place_get(object, at, key, type, out, e);
    if (set == 0)
        return place_missing(e, at, key);
    return set < 0 ? -1 : 0;
}

/* --- fields ---------------------------------------------------------------------------------------- */

json_t *value_share(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

void translate_common(const json_t *from, json_t *chat)
{
    static const char *const names[] = {"model",
                                        "stream",
                                        "stream_interval",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "seed",
                                        "stop",
                                        "stop_token_ids",
                                        "include_stop_str_in_output",
                                        "ignore_eos",
                                        "min_tokens",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repetition_penalty",
                                        "repetition_detection",
                                        "logit_bias",
                                        "bad_words",
                                        "allowed_token_ids",
                                        "skip_special_tokens",
                                        "spaces_between_special_tokens",
                                        "structured_outputs",
                                        "thinking_token_budget",
                                        "include_reasoning",
                                        "chat_template",
                                        "chat_template_kwargs",
                                        "documents",
                                        "truncate_prompt_tokens",
                                        "truncation_side",
                                        "parallel_tool_calls",
                                        "priority",
                                        "cache_salt",
                                        "request_id"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(from, names[i]);
        if (v)
            json_object_set_new(chat, names[i], value_share(v));
    }
}

json_t *translate_tool(const json_t *name, const json_t *description, const json_t *parameters,
                       const json_t *strict)
{
    json_t *function = json_object();
    json_object_set_new(function, "name", value_share(name));
    if (description)
        json_object_set_new(function, "description", value_share(description));
    if (parameters)
        json_object_set_new(function, "parameters", value_share(parameters));
    if (strict && !json_is_null(strict))
        json_object_set_new(function, "strict", value_share(strict));
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

json_t *translate_choice(const json_t *name)
{
    return json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name", value_share(name));
}

/* --- conversations --------------------------------------------------------------------------------- */

void conversation_free(struct conversation *c)
{
    json_decref(c->messages);
    json_decref(c->turn);
    *c = (struct conversation){0};
}

void conversation_end_turn(struct conversation *c)
{
    if (!c->messages)
        c->messages = json_array();
    if (c->turn)
        json_array_append_new(c->messages, c->turn);
    c->turn = NULL;
}

void conversation_add(struct conversation *c, const char *role, json_t *content)
{
    conversation_end_turn(c);
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", content));
}

void conversation_add_result(struct conversation *c, const json_t *call_id, json_t *content)
{
    conversation_end_turn(c);
    json_array_append_new(c->messages, json_pack("{s:s, s:o, s:o}", "role", "tool", "tool_call_id",
                                                 value_share(call_id), "content", content));
}

static json_t *turn(struct conversation *c)
{
    if (!c->turn)
        c->turn = json_pack("{s:s}", "role", "assistant");
    return c->turn;
}

/* The turn's list of this name. */
static json_t *list_of(struct conversation *c, const char *name)
{
    json_t *list = json_object_get(turn(c), name);
    if (!list) {
        list = json_array();
        json_object_set_new(c->turn, name, list);
    }
    return list;
}

void conversation_think(struct conversation *c, const char *text, size_t len)
{
    const json_t *before = json_object_get(turn(c), "reasoning");
    struct str all = {0};
    if (before) {
        str_add(&all, json_string_value(before), json_string_length(before));
        str_addc(&all, '\n');
    }
    str_add(&all, text, len);
    json_object_set_new(c->turn, "reasoning", json_stringn(str_text(&all), all.len));
    str_free(&all);
}

void conversation_say(struct conversation *c, const json_t *text)
{
    content_add_text(list_of(c, "content"), text);
}

void conversation_call(struct conversation *c, const json_t *id, const json_t *name, json_t *arguments)
{
    json_array_append_new(list_of(c, "tool_calls"),
                          json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", value_share(id), "type", "function",
                                    "function", "name", value_share(name), "arguments", arguments));
}

bool conversation_has(const struct conversation *c, const char *field)
{
    return json_object_get(c->turn, field) != NULL;
}

void content_add_text(json_t *list, const json_t *text)
{
    json_array_append_new(list, json_pack("{s:s, s:o}", "type", "text", "text", value_share(text)));
}

void translate_id(struct api_request *r, const char *prefix)
{
    struct str id = {0};
    str_adds(&id, prefix);
    str_adds(&id, strchr(r->id, '-') + 1);
    free(r->id);
    r->id = str_take(&id);
}

/* --- errors ---------------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Copies text with `from`, as a whole word, written as `to`. */
static void replace(const char *text, size_t len, const char *from, const char *to, struct str *out)
{
    size_t n = strlen(from);
    for (size_t i = 0; i < len;) {
        bool here = i + n <= len && memcmp(text + i, from, n) == 0 &&
                    (i == 0 || !is_word(from[0]) || !is_word(text[i - 1])) &&
                    (i + n == len || !is_word(text[i + n]));
        if (here)
            str_adds(out, to);
        else
            str_addc(out, text[i]);
        i += here ? n : 1;
    }
}

void translate_error(struct api_error *e, const struct renamed *table)
{
    for (; table->chat; table++) {
        struct str text = {0};
        replace(e->param, strlen(e->param), table->chat, table->client, &text);
        snprintf(e->param, sizeof e->param, "%s", str_text(&text));
        /* words of the language are left alone; so is the client's value at the end */
        if (strpbrk(table->chat, "_.")) {
            str_clear(&text);
            const char *value = strstr(e->message, ", value=");
            size_t len = value ? (size_t)(value - e->message) : strlen(e->message);
            replace(e->message, len, table->chat, table->client, &text);
            str_adds(&text, e->message + len);
            snprintf(e->message, sizeof e->message, "%s", str_text(&text));
        }
        str_free(&text);
    }
}

/* --- the translated body --------------------------------------------------------------------------- */

struct api_request *translate_read(const struct api_model *m, const json_t *chat, const char *request_id,
                                   bool id_is_header, const struct renamed *table, struct api_error *e)
{
    struct api_request *r = api_request_read(m, API_CHAT, chat, request_id, id_is_header, e);
    if (!r)
        translate_error(e, table);
    return r;
}

int translate_count(const struct api_model *m, const json_t *chat, const struct renamed *table, size_t *n,
                    struct api_error *e)
{
    int failed = api_count_chat(m, chat, n, e);
    if (failed)
        translate_error(e, table);
    return failed;
}
