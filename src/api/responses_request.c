/* A body of /v1/responses -> a chat request. A model's turn comes as several items (a thought, text, calls):
 * those that follow each other become one message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "api/fields.h"
#include "api/json_write.h"
#include "api/responses.h"
#include "api/responses_store.h"
#include "api/translate.h"
#include "base/mem.h"

static const struct renamed names[] = {{"max_completion_tokens", "max_output_tokens"},
                                       {"max_tokens", "max_output_tokens"},
                                       {"reasoning_effort", "reasoning.effort"},
                                       {"response_format.json_schema", "text.format"},
                                       {"response_format", "text.format"},
                                       {"tool_choice.function", "tool_choice"},
                                       {".function", ""},
                                       {"messages", "input"},
                                       {NULL, NULL}};

/* --- items ----------------------------------------------------------------------------------------- */

/* The text of one part of a content or of an output: parts of the user, or of the assistant. */
static int read_part(const json_t *part, const struct place *at, const json_t **text, struct api_error *e)
{
    const json_t *type;
    if (!json_is_object(part))
        return place_bad(e, at, NULL, part, "an object like {\"type\": \"input_text\", \"text\": …}");
    if (place_need(part, at, "type", JSON_STRING, &type, e))
        return -1;
    const char *name = json_string_value(type);
    if (strcmp(name, "input_text") == 0 || strcmp(name, "output_text") == 0 || strcmp(name, "text") == 0)
        return place_need(part, at, "text", JSON_STRING, text, e);
    if (strcmp(name, "refusal") == 0)
        return place_need(part, at, "refusal", JSON_STRING, text, e);
    if (strcmp(name, "input_image") == 0 || strcmp(name, "input_file") == 0 ||
        strcmp(name, "input_audio") == 0)
        return place_refuse(e, at, "type", type, "this model is text only");
    return place_bad(e, at, "type", type, "input_text or output_text");
}

/* A string, or a list of parts: a content for the chat, a new reference. NULL and *e. */
static json_t *read_content(const json_t *content, const struct place *at, struct api_error *e)
{
    if (json_is_string(content))
        return value_share(content);
    if (!json_is_array(content)) {
        place_bad(e, at, NULL, content, "a string or a list of parts");
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(content); i++) {
        const struct place here = {at, NULL, i};
        const json_t *text;
        if (read_part(json_array_get(content, i), &here, &text, e)) {
            json_decref(list);
            return NULL;
        }
        content_add_text(list, text);
    }
    return list;
}

static int read_message(struct conversation *c, const json_t *item, const struct place *at,
                        struct api_error *e)
{
    const json_t *role, *content = json_object_get(item, "content");
    const struct place below = {at, "content", 0};
    if (place_need(item, at, "role", JSON_STRING, &role, e))
        return -1;
    if (!content || json_is_null(content))
        return place_missing(e, at, "content");
    const char *name = json_string_value(role);
    bool assistant = strcmp(name, "assistant") == 0;
    if (!assistant && strcmp(name, "user") != 0 && strcmp(name, "system") != 0 &&
        strcmp(name, "developer") != 0)
        return place_bad(e, at, "role", role, "one of user, assistant, system and developer");
    json_t *told = read_content(content, &below, e);
    if (!told)
        return -1;
    if (!assistant) {
        /* templates that know a system message know it at the front: as a developer's it is moved there */
        conversation_add(c, strcmp(name, "user") == 0 ? "user" : "developer", told);
        return 0;
    }
    if (conversation_has(c, "content") || conversation_has(c, "tool_calls"))
        conversation_end_turn(c);
    if (json_is_string(told))
        conversation_say(c, told);
    for (size_t i = 0; i < json_array_size(told); i++)
        conversation_say(c, json_object_get(json_array_get(told, i), "text"));
    json_decref(told);
    return 0;
}

/* A thought: its text is the content, or where that is missing the summary. */
static int read_reasoning(struct conversation *c, const json_t *item, const struct place *at,
                          struct api_error *e)
{
    static const char *const fields[] = {"content", "summary"};
    struct str text = {0};
    for (int f = 0; f < 2; f++) {
        const json_t *list = NULL, *piece;
        if (place_get(item, at, fields[f], JSON_ARRAY, &list, e) < 0)
            goto fail;
        const struct place below = {at, fields[f], 0};
        bool take = text.len == 0;
        for (size_t i = 0; i < json_array_size(list); i++) {
            const struct place here = {&below, NULL, i};
            const json_t *part = json_array_get(list, i);
            if (!json_is_object(part)) {
                place_bad(e, &here, NULL, part, "an object like {\"type\": \"reasoning_text\", \"text\": …}");
                goto fail;
            }
            if (place_need(part, &here, "text", JSON_STRING, &piece, e))
                goto fail;
            if (take && text.len)
                str_addc(&text, '\n');
            if (take)
                str_add(&text, json_string_value(piece), json_string_length(piece));
        }
    }
    if (conversation_has(c, "content") || conversation_has(c, "tool_calls"))
        conversation_end_turn(c);
    if (text.len) /* else all of it is encrypted, by someone else */
        conversation_think(c, text.data, text.len);
    str_free(&text);
    return 0;
fail:
    str_free(&text);
    return -1;
}

static int read_call(struct conversation *c, const json_t *item, const struct place *at, struct api_error *e)
{
    const json_t *id, *name, *arguments;
    if (place_need(item, at, "call_id", JSON_STRING, &id, e) ||
        place_need(item, at, "name", JSON_STRING, &name, e) ||
        place_need(item, at, "arguments", JSON_STRING, &arguments, e))
        return -1;
    conversation_call(c, id, name, value_share(arguments));
    return 0;
}

static int read_result(struct conversation *c, const json_t *item, const struct place *at,
                       struct api_error *e)
{
    const json_t *id, *output = json_object_get(item, "output");
    const struct place below = {at, "output", 0};
    if (place_need(item, at, "call_id", JSON_STRING, &id, e))
        return -1;
    if (!output || json_is_null(output))
        return place_missing(e, at, "output");
    json_t *content = read_content(output, &below, e);
    if (!content)
        return -1;
    conversation_add_result(c, id, content);
    return 0;
}

static int read_item(struct conversation *c, const json_t *item, const struct place *at, struct api_error *e)
{
    const json_t *type = NULL;
    if (!json_is_object(item))
        return place_bad(e, at, NULL, item, "an object like {\"role\": \"user\", \"content\": …}");
    int set = place_get(item, at, "type", JSON_STRING, &type, e);
    if (set < 0)
        return -1;
    const char *name = set ? json_string_value(type) : "message";
    if (strcmp(name, "message") == 0)
        return read_message(c, item, at, e);
    if (strcmp(name, "reasoning") == 0)
        return read_reasoning(c, item, at, e);
    if (strcmp(name, "function_call") == 0)
        return read_call(c, item, at, e);
    if (strcmp(name, "function_call_output") == 0)
        return read_result(c, item, at, e);
    return place_bad(e, at, "type", type,
                     "one of message, reasoning, function_call and function_call_output");
}

/* What earlier answers said, the instructions, the input. */
static int read_conversation(struct conversation *c, const struct api_model *m, const json_t *body,
                             struct api_error *e)
{
    const json_t *instructions = NULL, *previous = NULL, *input = json_object_get(body, "input");
    int set = place_get(body, NULL, "previous_response_id", JSON_STRING, &previous, e);
    if (set < 0 || place_get(body, NULL, "instructions", JSON_STRING, &instructions, e) < 0)
        return -1;
    if (set) {
        c->messages = response_store_conversation(m->responses, json_string_value(previous));
        if (!c->messages)
            return api_fail(e, 404, "NotFoundError", "previous_response_id",
                            m->responses ? "the response \"%.100s\" is not stored (any more)"
                                         : "the response \"%.100s\" is not stored: this server keeps no "
                                           "responses unless it is started with --responses-store-bytes",
                            json_string_value(previous));
    }
    if (!input || json_is_null(input))
        return place_missing(e, NULL, "input");
    if (json_is_string(input))
        conversation_add(c, "user", value_share(input));
    else if (!json_is_array(input))
        return place_bad(e, NULL, "input", input, "a string or a list of items");
    const struct place at = {NULL, "input", 0};
    if (json_is_array(input) && json_array_size(input) == 0 && !set)
        return place_refuse(e, NULL, "input", input, "the input must hold at least one item");
    for (size_t i = 0; i < json_array_size(input); i++) {
        const struct place here = {&at, NULL, i};
        if (read_item(c, json_array_get(input, i), &here, e))
            return -1;
    }
    conversation_end_turn(c);
    if (instructions) /* at the front, whence they are left out of what is stored: they hold for this answer
                       */
        json_array_insert_new(
            c->messages, 0,
            json_pack("{s:s, s:o}", "role", "developer", "content", value_share(instructions)));
    return 0;
}

/* --- fields ---------------------------------------------------------------------------------------- */

/* The flat tools of this protocol. No tools and an empty list are the same. */
static int read_tools(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *tools = NULL, *choice = json_object_get(body, "tool_choice");
    if (place_get(body, NULL, "tools", JSON_ARRAY, &tools, e) < 0)
        return -1;
    const struct place at = {NULL, "tools", 0};
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const struct place here = {&at, NULL, i};
        const json_t *tool = json_array_get(tools, i), *type, *name, *description = NULL, *parameters = NULL;
        int failed = !json_is_object(tool) ? place_bad(e, &here, NULL, tool,
                                                       "an object like {\"type\": \"function\", \"name\": …}")
                                           : place_need(tool, &here, "type", JSON_STRING, &type, e);
        if (!failed && strcmp(json_string_value(type), "function") != 0)
            failed = place_refuse(e, &here, "type", type,
                                  "this server has no tools of its own, only \"function\"");
        if (failed || place_need(tool, &here, "name", JSON_STRING, &name, e) ||
            place_get(tool, &here, "description", JSON_STRING, &description, e) < 0 ||
            place_get(tool, &here, "parameters", JSON_OBJECT, &parameters, e) < 0) {
            json_decref(list);
            return -1;
        }
        json_array_append_new(list,
                              translate_tool(name, description, parameters, json_object_get(tool, "strict")));
    }
    bool any = json_array_size(list) > 0;
    if (any)
        json_object_set(chat, "tools", list);
    json_decref(list);
    if (!choice || json_is_null(choice))
        return 0;
    if (json_is_string(choice)) {
        /* without tools there is nothing to choose */
        if (any || strcmp(json_string_value(choice), "auto") != 0)
            json_object_set_new(chat, "tool_choice", value_share(choice));
        return 0;
    }
    const json_t *type, *name;
    const struct place below = {NULL, "tool_choice", 0};
    if (!json_is_object(choice))
        return place_bad(e, NULL, "tool_choice", choice, "\"none\", \"auto\", \"required\" or an object");
    if (place_need(choice, &below, "type", JSON_STRING, &type, e))
        return -1;
    if (strcmp(json_string_value(type), "function") != 0)
        return place_refuse(e, &below, "type", type, "only \"function\" is known");
    if (place_need(choice, &below, "name", JSON_STRING, &name, e))
        return -1;
    json_object_set_new(chat, "tool_choice", translate_choice(name));
    return 0;
}

/* text.format, as response_format. */
static int read_format(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *text = NULL, *format = NULL, *type, *name, *schema;
    const struct place at = {NULL, "text", 0}, below = {&at, "format", 0};
    int set = place_get(body, NULL, "text", JSON_OBJECT, &text, e);
    if (set > 0)
        set = place_get(text, &at, "format", JSON_OBJECT, &format, e);
    if (set <= 0)
        return set;
    if (place_need(format, &below, "type", JSON_STRING, &type, e))
        return -1;
    if (strcmp(json_string_value(type), "json_schema") != 0) {
        json_object_set_new(chat, "response_format", value_share(format));
        return 0;
    }
    if (place_need(format, &below, "name", JSON_STRING, &name, e) ||
        place_need(format, &below, "schema", JSON_OBJECT, &schema, e))
        return -1;
    json_t *inner = json_pack("{s:o, s:o}", "name", value_share(name), "schema", value_share(schema));
    const json_t *strict = json_object_get(format, "strict");
    if (strict && !json_is_null(strict))
        json_object_set_new(inner, "strict", value_share(strict));
    json_object_set_new(chat, "response_format",
                        json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", inner));
    return 0;
}

/* include and top_logprobs: log-probabilities are given where both ask for them. */
static int read_logprobs(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *include = NULL, *k = json_object_get(body, "top_logprobs");
    int64_t ignored;
    if (place_get(body, NULL, "include", JSON_ARRAY, &include, e) < 0 ||
        field_int(body, "top_logprobs", &ignored, e) < 0)
        return -1;
    const struct place at = {NULL, "include", 0};
    bool wanted = false;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const struct place here = {&at, NULL, i};
        const json_t *v = json_array_get(include, i);
        if (!json_is_string(v))
            return place_bad(e, &here, NULL, v, "a string");
        wanted |= strcmp(json_string_value(v), "message.output_text.logprobs") == 0;
    }
    if (!wanted)
        return 0;
    json_object_set_new(chat, "logprobs", json_true());
    if (k)
        json_object_set_new(chat, "top_logprobs", value_share(k));
    return 0;
}

/* truncation "auto" drops the oldest tokens, so that the answer has room. */
static int read_truncation(const struct api_model *m, const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *truncation = NULL;
    int set = place_get(body, NULL, "truncation", JSON_STRING, &truncation, e);
    if (set <= 0 || strcmp(json_string_value(truncation), "disabled") == 0)
        return set < 0 ? -1 : 0;
    if (strcmp(json_string_value(truncation), "auto") != 0)
        return place_bad(e, NULL, "truncation", truncation, "\"auto\" or \"disabled\"");
    int64_t max_tokens = 1;
    if (field_int(body, "max_output_tokens", &max_tokens, e) < 0)
        return -1;
    if (max_tokens < 1 || max_tokens >= m->max_model_len)
        max_tokens = m->max_model_len - 1;
    json_object_set_new(chat, "truncate_prompt_tokens", json_integer(m->max_model_len - max_tokens));
    return 0;
}

/* Fields that would change the answer, and that need what this server has not. */
static int refuse_unserved(const struct api_model *m, const json_t *body, struct api_error *e)
{
    static const struct {
        const char *field, *why;
    } unserved[] = {{"prompt", "this server keeps no prompt templates"},
                    {"conversation", "this server keeps no conversations"}};
    bool background = false, stream = false, store = true;
    for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++) {
        const json_t *v = json_object_get(body, unserved[i].field);
        if (v && !json_is_null(v))
            return place_refuse(e, NULL, unserved[i].field, v, unserved[i].why);
    }
    if (field_bool(body, "background", &background, e) < 0 || field_bool(body, "stream", &stream, e) < 0 ||
        field_bool(body, "store", &store, e) < 0)
        return -1;
    if (background && (!m->responses || !store))
        return place_refuse(e, NULL, "background", json_object_get(body, "background"),
                            "an answer in the background must be stored: it needs --responses-store-bytes, "
                            "and store must not be false");
    if (background && stream)
        return place_refuse(e, NULL, "background", json_object_get(body, "background"),
                            "an answer in the background cannot be streamed: leave out stream");
    return 0;
}

/* The body told as a chat request, a new reference; NULL and *e. */
static json_t *translate(const struct api_model *m, const json_t *body, struct api_error *e)
{
    const json_t *reasoning = NULL, *ignored, *limit = json_object_get(body, "max_output_tokens");
    struct conversation c = {0};
    json_t *chat = json_object();
    translate_common(body, chat);
    if (refuse_unserved(m, body, e) || read_conversation(&c, m, body, e) || read_tools(body, chat, e) ||
        read_format(body, chat, e) || read_logprobs(body, chat, e) || read_truncation(m, body, chat, e) ||
        place_get(body, NULL, "metadata", JSON_OBJECT, &ignored, e) < 0 ||
        place_get(body, NULL, "stream_options", JSON_OBJECT, &ignored, e) < 0)
        goto fail;
    int set = place_get(body, NULL, "reasoning", JSON_OBJECT, &reasoning, e);
    if (set < 0)
        goto fail;
    const json_t *effort = json_object_get(reasoning, "effort");
    if (effort)
        json_object_set_new(chat, "reasoning_effort", value_share(effort));
    if (limit)
        json_object_set_new(chat, "max_completion_tokens", value_share(limit));
    json_object_set(chat, "messages", c.messages);
    conversation_free(&c);
    return chat;
fail:
    conversation_free(&c);
    json_decref(chat);
    return NULL;
}

/* --- what the answer needs of it --------------------------------------------------------------------- */

/* ,"name":value with the request's value, or `otherwise` (JSON text). */
static void echo(struct responses *s, const json_t *body, const char *name, const char *otherwise)
{
    const json_t *v = json_object_get(body, name);
    str_addf(&s->echo, ",\"%s\":", name);
    if (v && !json_is_null(v))
        json_write_value(&s->echo, v);
    else
        str_adds(&s->echo, otherwise);
}

static void echo_number(struct responses *s, const json_t *body, const char *name, double otherwise)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", otherwise);
    echo(s, body, name, text);
}

static void write_echo(struct responses *s, const struct api_model *m, const json_t *body)
{
    const json_t *tools = json_object_get(body, "tools");
    const json_t *text = json_object_get(body, "text");
    echo(s, body, "instructions", "null");
    echo(s, body, "max_output_tokens", "null");
    echo(s, body, "max_tool_calls", "null");
    echo(s, body, "metadata", "{}");
    echo(s, body, "parallel_tool_calls", "true");
    echo(s, body, "previous_response_id", "null");
    echo(s, body, "reasoning", "{\"effort\":null,\"summary\":null}");
    echo(s, body, "safety_identifier", "null");
    echo(s, body, "service_tier", "null");
    echo_number(s, body, "temperature", m->defaults.temperature);
    echo_number(s, body, "top_p", m->defaults.top_p);
    if (json_is_object(json_object_get(text, "format")))
        echo(s, body, "text", "null");
    else
        str_adds(&s->echo, ",\"text\":{\"format\":{\"type\":\"text\"}}");
    echo(s, body, "tool_choice", json_array_size(tools) > 0 ? "\"auto\"" : "\"none\"");
    echo(s, body, "tools", "[]");
    echo(s, body, "top_logprobs", "0");
    echo(s, body, "truncation", "\"disabled\"");
    echo(s, body, "user", "null");
    echo(s, body, "background", "false");
    str_addf(&s->echo, ",\"store\":%s", s->stored ? "true" : "false");
}

static void told_free(void *told)
{
    struct responses *s = told;
    str_free(&s->echo);
    str_free(&s->conversation);
    parts_free(&s->all);
    free(s);
}

struct api_request *responses_read(const struct api_model *m, const json_t *body, const char *request_id,
                                   bool id_is_header, struct api_error *e)
{
    bool store = true, background = false;
    if (field_bool(body, "store", &store, e) < 0 || field_bool(body, "background", &background, e) < 0)
        return NULL;
    json_t *chat = translate(m, body, e);
    if (!chat)
        return NULL;
    struct api_request *r = translate_read(m, chat, request_id, id_is_header, names, e);
    if (!r) {
        json_decref(chat);
        return NULL;
    }
    struct responses *s = mem_zalloc(1, sizeof *s);
    s->id = answer_new_id();
    s->stored = store && m->responses;
    write_echo(s, m, body);
    if (s->stored) {
        json_t *messages = json_object_get(chat, "messages");
        if (json_is_string(json_object_get(body, "instructions")))
            json_array_remove(messages, 0);
        json_write_value(&s->conversation, messages);
        s->conversation.len--; /* the answer comes before the bracket */
    }
    json_decref(chat);
    translate_id(r, "resp_");
    r->writer = &responses_writer;
    r->background = background;
    r->told = s;
    r->told_free = told_free;
    return r;
}

int responses_count_tokens(const struct api_model *m, const json_t *body, struct str *out,
                           struct api_error *e)
{
    json_t *chat = translate(m, body, e);
    if (!chat)
        return -1;
    size_t n;
    int failed = translate_count(m, chat, names, &n, e);
    if (!failed)
        str_addf(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", n);
    json_decref(chat);
    return failed;
}
