/* A body of /v1/messages -> a chat request. A user's message may hold the results of calls beside text: each
 * becomes a message of its own, in order. */
#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "api/fields.h"
#include "api/json_write.h"
#include "api/messages.h"
#include "api/translate.h"
#include "base/mem.h"

#define MIN_THINKING_BUDGET 1024

static const struct renamed names[] = {{"max_completion_tokens", "max_tokens"},
                                       {"reasoning_effort", "output_config.effort"},
                                       {"thinking_token_budget", "thinking.budget_tokens"},
                                       {"response_format.json_schema.schema", "output_config.format.schema"},
                                       {"response_format.json_schema", "output_config.format"},
                                       {"response_format", "output_config.format"},
                                       {"tool_choice.function", "tool_choice"},
                                       {".function.parameters", ".input_schema"},
                                       {".function", ""},
                                       {NULL, NULL}};

/* --- blocks ---------------------------------------------------------------------------------------- */

static const char text_block[] = "an object like {\"type\": \"text\", \"text\": …}";

/* NULL and *e for what is no block. */
static const char *block_type(const json_t *block, const struct place *at, struct api_error *e)
{
    const json_t *name;
    if (!json_is_object(block)) {
        place_bad(e, at, NULL, block, text_block);
        return NULL;
    }
    return place_need(block, at, "type", JSON_STRING, &name, e) ? NULL : json_string_value(name);
}

static int bad_block(const json_t *block, const struct place *at, const char *known, struct api_error *e)
{
    const json_t *type = json_object_get(block, "type");
    const char *name = json_string_value(type);
    if (strcmp(name, "image") == 0 || strcmp(name, "document") == 0)
        return place_refuse(e, at, "type", type, "this model is text only");
    return place_bad(e, at, "type", type, known);
}

/* A string, or a list of text blocks: a content for the chat, a new reference. NULL and *e. */
static json_t *read_texts(const json_t *content, const struct place *at, struct api_error *e)
{
    if (json_is_string(content))
        return value_share(content);
    if (!json_is_array(content)) {
        place_bad(e, at, NULL, content, "a string or a list of text blocks");
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(content); i++) {
        const struct place here = {at, NULL, i};
        const json_t *block = json_array_get(content, i), *text;
        const char *type = block_type(block, &here, e);
        if (!type)
            goto fail;
        if (strcmp(type, "text") != 0) {
            bad_block(block, &here, "text", e);
            goto fail;
        }
        if (place_need(block, &here, "text", JSON_STRING, &text, e))
            goto fail;
        content_add_text(list, text);
    }
    return list;
fail:
    json_decref(list);
    return NULL;
}

static int read_result(struct conversation *c, const json_t *block, const struct place *at,
                       struct api_error *e)
{
    const json_t *id, *content = json_object_get(block, "content");
    const struct place below = {at, "content", 0};
    if (place_need(block, at, "tool_use_id", JSON_STRING, &id, e))
        return -1;
    json_t *told = content && !json_is_null(content) ? read_texts(content, &below, e) : json_string("");
    if (!told)
        return -1;
    conversation_add_result(c, id, told);
    return 0;
}

/* Blocks of the user: text that stands together is one message, each result another. */
static int read_user_blocks(struct conversation *c, const json_t *blocks, const struct place *at,
                            struct api_error *e)
{
    json_t *texts = NULL; /* the content of the message they go to */
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const struct place here = {at, NULL, i};
        const json_t *block = json_array_get(blocks, i), *text;
        const char *type = block_type(block, &here, e);
        if (!type)
            return -1;
        if (strcmp(type, "tool_result") == 0) {
            texts = NULL;
            if (read_result(c, block, &here, e))
                return -1;
        } else if (strcmp(type, "text") != 0) {
            return bad_block(block, &here, "text or tool_result", e);
        } else if (place_need(block, &here, "text", JSON_STRING, &text, e)) {
            return -1;
        } else {
            if (!texts)
                conversation_add(c, "user", texts = json_array());
            content_add_text(texts, text);
        }
    }
    return 0;
}

static int read_tool_use(struct conversation *c, const json_t *block, const struct place *at,
                         struct api_error *e)
{
    const json_t *id, *name, *input;
    if (place_need(block, at, "id", JSON_STRING, &id, e) ||
        place_need(block, at, "name", JSON_STRING, &name, e) ||
        place_need(block, at, "input", JSON_OBJECT, &input, e))
        return -1;
    conversation_call(c, id, name, value_share(input));
    return 0;
}

static int read_assistant_blocks(struct conversation *c, const json_t *blocks, const struct place *at,
                                 struct api_error *e)
{
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const struct place here = {at, NULL, i};
        const json_t *block = json_array_get(blocks, i), *text;
        const char *type = block_type(block, &here, e);
        if (!type)
            return -1;
        if (strcmp(type, "text") == 0) {
            if (place_need(block, &here, "text", JSON_STRING, &text, e))
                return -1;
            conversation_say(c, text);
        } else if (strcmp(type, "thinking") == 0) {
            if (place_need(block, &here, "thinking", JSON_STRING, &text, e))
                return -1;
            conversation_think(c, json_string_value(text), json_string_length(text));
        } else if (strcmp(type, "tool_use") == 0) {
            if (read_tool_use(c, block, &here, e))
                return -1;
        } else if (strcmp(type, "redacted_thinking") != 0) { /* that one nobody here can read */
            return bad_block(block, &here, "text, thinking or tool_use", e);
        }
    }
    return 0;
}

static int read_message(struct conversation *c, const json_t *message, const struct place *at,
                        struct api_error *e)
{
    const json_t *role, *content = json_object_get(message, "content");
    const struct place below = {at, "content", 0};
    if (!json_is_object(message))
        return place_bad(e, at, NULL, message, "an object like {\"role\": \"user\", \"content\": …}");
    if (place_need(message, at, "role", JSON_STRING, &role, e))
        return -1;
    if (!content || json_is_null(content))
        return place_missing(e, at, "content");
    if (!json_is_string(content) && !json_is_array(content))
        return place_bad(e, at, "content", content, "a string or a list of blocks");
    const char *name = json_string_value(role);
    if (strcmp(name, "system") == 0) {
        json_t *told = read_texts(content, &below, e);
        if (told) /* as a developer's it is moved to the front, where templates know it */
            conversation_add(c, "developer", told);
        return told ? 0 : -1;
    }
    bool assistant = strcmp(name, "assistant") == 0;
    if (!assistant && strcmp(name, "user") != 0)
        return place_bad(e, at, "role", role, "one of user, assistant and system");
    if (json_is_string(content) && !assistant) {
        conversation_add(c, "user", value_share(content));
        return 0;
    }
    conversation_end_turn(c);
    if (json_is_string(content))
        conversation_say(c, content);
    return assistant ? read_assistant_blocks(c, content, &below, e) : read_user_blocks(c, content, &below, e);
}

static int read_conversation(struct conversation *c, const json_t *body, struct api_error *e)
{
    const json_t *messages, *system = json_object_get(body, "system");
    const struct place system_at = {NULL, "system", 0}, at = {NULL, "messages", 0};
    if (system && !json_is_null(system)) {
        json_t *told = read_texts(system, &system_at, e);
        if (!told)
            return -1;
        conversation_add(c, "developer", told);
    }
    if (place_need(body, NULL, "messages", JSON_ARRAY, &messages, e))
        return -1;
    if (json_array_size(messages) == 0)
        return place_refuse(e, NULL, "messages", messages, "there must be at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const struct place here = {&at, NULL, i};
        if (read_message(c, json_array_get(messages, i), &here, e))
            return -1;
    }
    conversation_end_turn(c);
    if (json_array_size(c->messages) == 0)
        return place_refuse(e, NULL, "messages", messages, "at least one message must have content");
    return 0;
}

/* --- fields ---------------------------------------------------------------------------------------- */

static int read_tools(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *tools = NULL;
    if (place_get(body, NULL, "tools", JSON_ARRAY, &tools, e) < 0)
        return -1;
    const struct place at = {NULL, "tools", 0};
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const struct place here = {&at, NULL, i};
        const json_t *tool = json_array_get(tools, i), *type = NULL, *name, *description = NULL, *schema;
        if (!json_is_object(tool)) {
            place_bad(e, &here, NULL, tool, "an object like {\"name\": …, \"input_schema\": …}");
            goto fail;
        }
        int set = place_get(tool, &here, "type", JSON_STRING, &type, e);
        if (set < 0)
            goto fail;
        if (set && strcmp(json_string_value(type), "custom") != 0) {
            place_refuse(e, &here, "type", type, "this server has no tools of its own, only \"custom\" ones");
            goto fail;
        }
        if (place_need(tool, &here, "name", JSON_STRING, &name, e) ||
            place_get(tool, &here, "description", JSON_STRING, &description, e) < 0 ||
            place_need(tool, &here, "input_schema", JSON_OBJECT, &schema, e))
            goto fail;
        json_array_append_new(list,
                              translate_tool(name, description, schema, json_object_get(tool, "strict")));
    }
    if (json_array_size(list) > 0)
        json_object_set(chat, "tools", list);
    json_decref(list);
    return 0;
fail:
    json_decref(list);
    return -1;
}

static int read_tool_choice(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *choice = NULL, *type, *name;
    const struct place at = {NULL, "tool_choice", 0};
    int set = place_get(body, NULL, "tool_choice", JSON_OBJECT, &choice, e);
    if (set <= 0)
        return set;
    if (place_need(choice, &at, "type", JSON_STRING, &type, e))
        return -1;
    const char *kind = json_string_value(type);
    bool one = false;
    if (field_bool(choice, "disable_parallel_tool_use", &one, e) < 0)
        return place_bad(e, &at, "disable_parallel_tool_use",
                         json_object_get(choice, "disable_parallel_tool_use"), "a boolean");
    if (one)
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    if (strcmp(kind, "tool") == 0) {
        if (place_need(choice, &at, "name", JSON_STRING, &name, e))
            return -1;
        json_object_set_new(chat, "tool_choice", translate_choice(name));
        return 0;
    }
    if (strcmp(kind, "auto") != 0 && strcmp(kind, "any") != 0 && strcmp(kind, "none") != 0)
        return place_bad(e, &at, "type", type, "one of auto, any, tool and none");
    if (strcmp(kind, "auto") != 0 || json_object_get(chat, "tools"))
        json_object_set_new(chat, "tool_choice", json_string(strcmp(kind, "any") == 0 ? "required" : kind));
    return 0;
}

/* The template's variable, over which chat_template_kwargs of the request go. */
static void enable_thinking(json_t *chat, bool on)
{
    json_t *kwargs = json_object_get(chat, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs) && !json_is_null(kwargs))
        return; /* the chat reader refuses it */
    json_t *all = json_pack("{s:b}", "enable_thinking", on);
    if (json_is_object(kwargs))
        json_object_update(all, kwargs);
    json_object_set_new(chat, "chat_template_kwargs", all);
}

/* thinking: without it the template decides. A model that does not think stays within any budget. */
static int read_thinking(const struct api_model *m, const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *thinking = NULL, *type, *display = NULL;
    const struct place at = {NULL, "thinking", 0};
    int set = place_get(body, NULL, "thinking", JSON_OBJECT, &thinking, e);
    if (set <= 0)
        return set;
    if (place_need(thinking, &at, "type", JSON_STRING, &type, e) ||
        place_get(thinking, &at, "display", JSON_STRING, &display, e) < 0)
        return -1;
    const char *kind = json_string_value(type);
    bool enabled = strcmp(kind, "enabled") == 0;
    if (!enabled && strcmp(kind, "adaptive") != 0 && strcmp(kind, "disabled") != 0)
        return place_bad(e, &at, "type", type, "one of enabled, disabled and adaptive");
    enable_thinking(chat, strcmp(kind, "disabled") != 0);
    if (display && strcmp(json_string_value(display), "omitted") == 0)
        json_object_set_new(chat, "include_reasoning", json_false());
    if (!enabled)
        return 0;
    const json_t *given = json_object_get(thinking, "budget_tokens");
    int64_t budget, max_tokens = INT64_MAX;
    if (!given || json_is_null(given))
        return place_missing(e, &at, "budget_tokens");
    if (!value_int(given, &budget))
        return place_bad(e, &at, "budget_tokens", given, "an integer");
    if (field_int(body, "max_tokens", &max_tokens, e) < 0)
        return -1;
    if (budget < MIN_THINKING_BUDGET || budget >= max_tokens)
        return place_refuse(e, &at, "budget_tokens", given,
                            "it must be at least 1024 and less than max_tokens");
    if (m->reasoning != REASONING_NONE && budget < m->max_model_len)
        json_object_set_new(chat, "thinking_token_budget", json_integer(budget));
    return 0;
}

/* output_config: how hard to think, and the form of the answer. */
static int read_output_config(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *config = NULL, *format = NULL, *effort = NULL, *type, *schema;
    const struct place at = {NULL, "output_config", 0}, below = {&at, "format", 0};
    int set = place_get(body, NULL, "output_config", JSON_OBJECT, &config, e);
    if (set <= 0)
        return set;
    if (place_get(config, &at, "effort", JSON_STRING, &effort, e) < 0)
        return -1;
    if (effort)
        json_object_set_new(chat, "reasoning_effort", value_share(effort));
    set = place_get(config, &at, "format", JSON_OBJECT, &format, e);
    if (set <= 0)
        return set;
    if (place_need(format, &below, "type", JSON_STRING, &type, e))
        return -1;
    if (strcmp(json_string_value(type), "json_schema") != 0)
        return place_bad(e, &below, "type", type, "\"json_schema\"");
    if (place_need(format, &below, "schema", JSON_OBJECT, &schema, e))
        return -1;
    json_object_set_new(chat, "response_format",
                        json_pack("{s:s, s:{s:s, s:o, s:b}}", "type", "json_schema", "json_schema", "name",
                                  "answer", "schema", value_share(schema), "strict", 1));
    return 0;
}

static int read_stop_sequences(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *list = NULL;
    const struct place at = {NULL, "stop_sequences", 0};
    int set = place_get(body, NULL, "stop_sequences", JSON_ARRAY, &list, e);
    if (set <= 0)
        return set;
    if (json_array_size(list) > API_MAX_STOP_STRINGS)
        return place_refuse(e, NULL, "stop_sequences", list, "at most 4 are allowed");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct place here = {&at, NULL, i};
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v))
            return place_bad(e, &here, NULL, v, "a string");
        if (json_string_length(v) == 0 || json_string_length(v) > API_MAX_STOP_STRING_LEN)
            return place_refuse(e, &here, NULL, v, "it must be 1 to 2048 bytes long");
    }
    json_object_set_new(chat, "stop", value_share(list));
    return 0;
}

/* In this protocol an answer goes on from a last message that is the assistant's. */
static void continue_last(const json_t *messages, json_t *chat)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const char *text = json_string_value(prompt_last_text(messages));
    bool blank = !text || text[strspn(text, " \t\r\n\v\f")] == '\0';
    if (strcmp(role, "assistant") != 0 || json_object_get(last, "tool_calls") || blank)
        return;
    json_object_set_new(chat, "continue_final_message", json_true());
    json_object_set_new(chat, "add_generation_prompt", json_false());
}

/* The body told as a chat request, a new reference; NULL and *e. `counting`: nothing will be generated. */
static json_t *translate(const struct api_model *m, const json_t *body, bool counting, struct api_error *e)
{
    const json_t *ignored, *max_tokens = json_object_get(body, "max_tokens");
    int64_t n;
    struct conversation c = {0};
    json_t *chat = json_object();
    translate_common(body, chat);
    if (place_need(body, NULL, "model", JSON_STRING, &ignored, e))
        goto fail;
    if (!counting) {
        int set = field_int(body, "max_tokens", &n, e);
        if (set <= 0) {
            if (set == 0)
                place_missing(e, NULL, "max_tokens");
            goto fail;
        }
        json_object_set_new(chat, "max_completion_tokens", value_share(max_tokens));
    }
    if (read_conversation(&c, body, e) || read_tools(body, chat, e) || read_tool_choice(body, chat, e) ||
        read_thinking(m, body, chat, e) || read_output_config(body, chat, e) ||
        read_stop_sequences(body, chat, e) || place_get(body, NULL, "metadata", JSON_OBJECT, &ignored, e) < 0)
        goto fail;
    json_object_set(chat, "messages", c.messages);
    continue_last(c.messages, chat);
    conversation_free(&c);
    return chat;
fail:
    conversation_free(&c);
    json_decref(chat);
    return NULL;
}

static void told_free(void *told)
{
    struct messages *s = told;
    str_free(&s->thought);
    free(s);
}

struct api_request *messages_read(const struct api_model *m, const json_t *body, const char *request_id,
                                  bool id_is_header, struct api_error *e)
{
    json_t *chat = translate(m, body, false, e);
    if (!chat)
        return NULL;
    struct api_request *r = translate_read(m, chat, request_id, id_is_header, names, e);
    json_decref(chat);
    if (!r)
        return NULL;
    struct messages *s = mem_zalloc(1, sizeof *s);
    s->id = answer_new_id();
    translate_id(r, "msg_");
    r->writer = &messages_writer;
    r->told = s;
    r->told_free = told_free;
    return r;
}

int messages_count_tokens(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e)
{
    json_t *chat = translate(m, body, true, e);
    if (!chat)
        return -1;
    size_t n;
    int failed = translate_count(m, chat, names, &n, e);
    if (!failed)
        str_addf(out, "{\"input_tokens\":%zu}", n);
    json_decref(chat);
    return failed;
}
