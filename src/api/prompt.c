/* From what the client wrote to the ids that the model reads. Message text must stay text: the template
 * marks every byte that came from a message, and the tokenizer makes no control token of those. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/fields.h"
#include "api/request.h"
#include "api/structured.h"
#include "chat/messages.h"

/* The ids of text, at most one more than the context holds (that is enough to refuse it) where `limit`. */
static int encode(const struct api_model *m, const char *text, size_t len, const uint8_t *literal,
                  unsigned flags, bool limit, struct token_list *ids, struct api_error *e)
{
    struct err why = {0};
    if (tokenizer_encode(m->tokenizer, text, len, literal, flags, limit ? (size_t)m->max_model_len : 0, ids,
                         &why) == 0)
        return 0;
    if (why.code == ERR_LIMIT)
        return api_fail(
            e, 400, "BadRequestError", "input_tokens",
            "The prompt is too long: this model's maximum context length is %d tokens, and the prompt "
            "alone holds more. Shorten it. (parameter=input_tokens, value=more than %d)",
            m->max_model_len, m->max_model_len);
    return api_from_err(e, "input_text", &why);
}

int prompt_encode_text(const struct api_model *m, const char *text, size_t len, bool add_special, bool limit,
                       struct token_list *ids, struct api_error *e)
{
    return encode(m, text, len, NULL, TOKENIZER_PARSE_SPECIAL | (add_special ? TOKENIZER_ADD_SPECIAL : 0),
                  limit, ids, e);
}

int prompt_fit(const struct api_model *m, const json_t *body, bool scored_only, struct token_list *ids,
               struct api_error *e)
{
    int64_t keep = 0;
    int set = field_int(body, "truncate_prompt_tokens", &keep, e);
    if (set < 0)
        return -1;
    if (set) {
        if (keep == -1)
            keep = m->max_model_len - 1;
        if (keep < 1 || keep > m->max_model_len)
            return api_bad_value(e, "truncate_prompt_tokens", json_object_get(body, "truncate_prompt_tokens"),
                                 "truncate_prompt_tokens must be -1 (what the context holds) or 1 to %d",
                                 m->max_model_len);
        const json_t *side = NULL;
        if (field_string(body, "truncation_side", &side, e) < 0)
            return -1;
        bool right = side && strcmp(json_string_value(side), "right") == 0;
        if (side && !right && strcmp(json_string_value(side), "left") != 0)
            return api_bad_value(e, "truncation_side", side, "truncation_side must be \"left\" or \"right\"");
        if (ids->n > (size_t)keep) {
            if (!right)
                memmove(ids->ids, ids->ids + (ids->n - (size_t)keep), (size_t)keep * sizeof *ids->ids);
            ids->n = (size_t)keep;
        }
    }
    if (ids->n == 0)
        return api_fail(e, 400, "BadRequestError", "prompt",
                        "The prompt is empty: it must hold at least one token");
    size_t room = (size_t)m->max_model_len;
    if (ids->n > room)
        return api_fail(
            e, 400, "BadRequestError", "input_tokens",
            "The prompt is too long: this model's maximum context length is %d tokens, and the prompt "
            "holds %zu. Shorten it. (parameter=input_tokens, value=%zu)",
            m->max_model_len, ids->n, ids->n);
    if (ids->n == room && !scored_only)
        return api_fail(
            e, 400, "BadRequestError", "max_tokens",
            "The prompt fills the context: this model's maximum context length is %d tokens, and the "
            "prompt holds all of them, so none is left for the answer. (parameter=max_tokens, value=0)",
            m->max_model_len);
    return 0;
}

/* The tools as templates expect them: each {"type", "function": {"name", "description", "parameters", …}} in
 * that order, with null for what is not given. */
static json_t *normal_tools(const json_t *tools, struct api_error *e)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        const json_t *type = json_object_get(tool, "type");
        const char *wrong = NULL;
        if (!json_is_object(tool) ||
            (type && (!json_is_string(type) || strcmp(json_string_value(type), "function"))))
            wrong = "", function = tool;
        else if (!json_is_object(function))
            wrong = ".function";
        else if (!json_is_string(json_object_get(function, "name")))
            wrong = ".function.name", function = json_object_get(function, "name");
        if (wrong) {
            char path[64];
            snprintf(path, sizeof path, "tools.%zu%s", i, wrong);
            json_decref(out);
            api_bad_type(e, path, function,
                         strstr(wrong, "name") ? "a string"
                                               : "an object like {\"type\": \"function\", \"function\": …}");
            return NULL;
        }
        static const char *const first[] = {"name", "description", "parameters"};
        json_t *f = json_object();
        for (size_t k = 0; k < 3; k++) {
            json_t *v = json_object_get(function, first[k]);
            json_object_set(f, first[k], v ? v : json_null());
        }
        json_object_update_missing(f, (json_t *)(uintptr_t)function);
        json_array_append_new(out, json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    return out;
}

/* *tools is a new reference: the list for the template, or NULL. */
static int read_tools(const json_t *body, json_t **tools, struct api_error *e)
{
    const json_t *list = NULL;
    if (field_array(body, "tools", &list, e) < 0)
        return -1;
    const json_t *given = json_object_get(body, "tool_choice");
    enum tool_choice choice;
    const char *name;
    if (tool_choice_read(body, &choice, &name, e))
        return -1;
    if (list && json_array_size(list) == 0)
        return api_bad_value(e, "tools", list, "tools must not be empty: leave it out to use none");
    if (!list && given && !json_is_null(given) && choice != TOOL_NONE)
        return api_bad_value(e, "tool_choice", given, "tool_choice needs tools");
    *tools = list ? normal_tools(list, e) : NULL;
    return list && !*tools ? -1 : 0;
}

/* Adds the server's template variables, and over them reasoning_effort and chat_template_kwargs. */
static int add_kwargs(const struct api_model *m, const json_t *body, json_t *context, struct api_error *e)
{
    if (m->template_kwargs)
        json_object_update(context, (json_t *)(uintptr_t)m->template_kwargs);
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const json_t *effort, *kwargs;
    int set = field_string(body, "reasoning_effort", &effort, e);
    if (set < 0)
        return -1;
    if (set) {
        bool known = false;
        for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
            known |= strcmp(json_string_value(effort), efforts[i]) == 0;
        if (!known)
            return api_bad_type(e, "reasoning_effort", effort,
                                "one of none, minimal, low, medium, high, xhigh and max");
        json_object_set(context, "reasoning_effort", (json_t *)(uintptr_t)effort);
        json_object_set_new(context, "enable_thinking",
                            json_boolean(strcmp(json_string_value(effort), "none")));
    }
    set = field_object(body, "chat_template_kwargs", &kwargs, e);
    if (set <= 0)
        return set;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)kwargs, key, v)
    {
        if (!api_may_set_variable(key))
            return api_fail(e, 400, "BadRequestError", "chat_template_kwargs",
                            "chat_template_kwargs may not set %.60s", key);
        json_object_set(context, key, v);
    }
    return 0;
}

const json_t *prompt_last_text(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    if (json_is_array(content) && json_array_size(content) > 0)
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    return json_is_string(content) ? content : NULL;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* continue_final_message: cuts the text behind the last message's content, so that the model goes on inside
 * it. Templates may have trimmed the content; then it ends where the trimmed text does. *begins is where the
 * content begins. */
static int cut_after(struct chat_text *t, const json_t *content, size_t *begins, struct api_error *e)
{
    const char *s = content ? json_string_value(content) : "";
    size_t len = content ? json_string_length(content) : 0, begin = 0, end = len;
    while (begin < end && is_space(s[begin]))
        begin++;
    while (end > begin && is_space(s[end - 1]))
        end--;
    if (begin == end)
        return api_fail(e, 400, "BadRequestError", "continue_final_message",
                        "continue_final_message needs text in the last message");
    size_t n = end - begin;
    for (size_t at = t->len >= n ? t->len - n + 1 : 0; at-- > 0;) {
        if (!t->literal[at] || memcmp(t->text + at, s + begin, n) != 0)
            continue;
        size_t whole = len - begin; /* with the blanks at its end, if the template kept them */
        if (at + whole <= t->len && memcmp(t->text + at, s + begin, whole) == 0)
            n = whole;
        t->len = at + n;
        t->text[t->len] = '\0';
        *begins = at;
        return 0;
    }
    return api_fail(
        e, 400, "BadRequestError", "continue_final_message",
        "the chat template does not print the last message's text as it is, so it cannot be continued");
}

static void set_token(json_t *context, const char *name, const struct tokenizer *t, int32_t id)
{
    size_t len = 0;
    const char *text = id >= 0 ? tokenizer_bytes(t, id, &len) : NULL;
    json_t *v = text ? json_stringn(text, len) : NULL;
    json_object_set_new(context, name, v ? v : json_null());
}

/* Renders the context: ids, and what *p holds but the tools. */
static int render(const struct api_model *m, const struct chat_template *template, const json_t *messages,
                  const json_t *context, bool continue_final, bool add_special, bool limit,
                  struct token_list *ids, struct chat_prompt *p, struct api_error *e)
{
    struct chat_text text = {0};
    struct err why = {0};
    if (chat_template_render(template, context, (int64_t)time(NULL), &text, &why))
        return api_from_err(e, NULL, &why);
    int failed = 0;
    size_t own = text.len; /* where the message begins that the answer continues */
    if (continue_final) {
        failed = cut_after(&text, prompt_last_text(messages), &own, e);
    }
    p->start = reasoning_start(m->reasoning, text.text, text.len, text.literal, own);
    if (!failed)
        failed = encode(m, text.text, text.len, text.literal,
                        TOKENIZER_PARSE_SPECIAL | (add_special ? TOKENIZER_ADD_SPECIAL : 0), limit, ids, e);
    if (p->text)
        str_add(p->text, text.text, text.len);
    chat_text_free(&text);
    return failed;
}

void chat_prompt_free(struct chat_prompt *p)
{
    json_decref(p->tools);
    *p = (struct chat_prompt){0};
}

int prompt_render_chat(const struct api_model *m, const json_t *body, bool limit, struct token_list *ids,
                       struct chat_prompt *p, struct api_error *e)
{
    const json_t *messages, *documents = NULL, *source = NULL;
    int set = field_string(body, "chat_template", &source, e);
    if (set < 0)
        return -1;
    if (!m->template && !source)
        return api_fail(e, 400, "BadRequestError", "messages",
                        "this model has no chat template: use /v1/completions, or start the server with "
                        "--chat-template FILE");
    set = field_array(body, "messages", &messages, e);
    if (set < 0)
        return -1;
    if (set == 0)
        return api_missing(e, "messages");
    if (json_array_size(messages) == 0)
        return api_bad_value(e, "messages", messages, "messages must hold at least one message");
    if (field_array(body, "documents", &documents, e) < 0)
        return -1;
    if (source && !m->trust_request_template)
        return api_fail(e, 400, "BadRequestError", "chat_template",
                        "this server takes no chat template from requests: start it with "
                        "--trust-request-chat-template where all clients may shape prompts freely");
    bool generation = true, continue_final = false, add_special = false;
    int generation_set = field_bool(body, "add_generation_prompt", &generation, e);
    if (generation_set < 0 || field_bool(body, "continue_final_message", &continue_final, e) < 0 ||
        field_bool(body, "add_special_tokens", &add_special, e) < 0)
        return -1;
    if (continue_final && generation_set && generation)
        return api_fail(e, 400, "BadRequestError", "continue_final_message",
                        "continue_final_message and add_generation_prompt cannot both be true");
    if (continue_final)
        generation = false;

    json_t *prepared = NULL, *context = NULL;
    struct chat_template *own = NULL;
    int failed = -1;
    struct err why = {0};
    if (source) {
        own = chat_template_parse(json_string_value(source), json_string_length(source), &why);
        if (!own)
            return api_from_err(e, "chat_template", &why);
    }
    const struct chat_template *template = own ? own : m->template;
    if (read_tools(body, &p->tools, e))
        goto done;
    prepared = chat_messages_prepare(messages, chat_template_caps(template), &why);
    if (!prepared) {
        api_from_err(e, "messages", &why);
        goto done;
    }
    context = json_object();
    if (add_kwargs(m, body, context, e))
        goto done;
    json_object_set(context, "messages", prepared);
    const char *choice = json_string_value(json_object_get(body, "tool_choice"));
    bool hidden = m->exclude_tools_when_none && choice && strcmp(choice, "none") == 0;
    json_object_set(context, "tools", p->tools && !hidden ? p->tools : json_null());
    json_object_set(context, "documents", documents ? (json_t *)(uintptr_t)documents : json_null());
    json_object_set_new(context, "add_generation_prompt", json_boolean(generation));
    set_token(context, "bos_token", m->tokenizer, tokenizer_bos(m->tokenizer));
    set_token(context, "eos_token", m->tokenizer, tokenizer_eos(m->tokenizer));
    failed = render(m, template, prepared, context, continue_final, add_special, limit, ids, p, e);
done:
    chat_template_free(own);
    json_decref(prepared);
    json_decref(context);
    return failed;
}
