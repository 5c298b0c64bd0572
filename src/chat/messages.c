#include "chat/messages.h"

#include <stdint.h>
#include <string.h>

#include "base/str.h"

/* --- texts ------------------------------------------------------------------------------------------ */

/* jansson's increment takes no const, but changes only the count of owners. */
static json_t *share(const json_t *j)
{
    return json_incref((json_t *)(uintptr_t)j);
}

/* A string of s's text: s itself, or a copy with U+FFFD for what is not UTF-8 (jansson's parser lets nothing
 * such through, but its callers can make strings unchecked). */
static json_t *clean_string(const json_t *s)
{
    const char *text = json_string_value(s);
    size_t len = json_string_length(s), valid = utf8_valid_prefix(text, len);
    if (valid == len)
        return share(s);
    struct str out = {0};
    while (valid < len) {
        str_add(&out, text, valid);
        str_add_utf8(&out, 0xFFFD);
        text += valid + 1;
        len -= valid + 1;
        valid = utf8_valid_prefix(text, len);
    }
    str_add(&out, text, len);
    json_t *copy = json_stringn(out.data, out.len);
    str_free(&out);
    return copy;
}

/* A copy of any JSON with all its strings cleaned. (Nesting is bounded by jansson's parser.) */
static json_t *clean(const json_t *j)
{
    if (json_is_string(j))
        return clean_string(j);
    if (json_is_array(j)) {
        json_t *copy = json_array();
        for (size_t i = 0; i < json_array_size(j); i++)
            json_array_append_new(copy, clean(json_array_get(j, i)));
        return copy;
    }
    if (json_is_object(j)) {
        json_t *copy = json_object();
        json_t *object = (json_t *)(uintptr_t)j;
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it))
            json_object_setn_new(copy, json_object_iter_key(it), json_object_iter_key_len(it),
                                 clean(json_object_iter_value(it)));
        return copy;
    }
    return share(j);
}

/* How many bytes of s a message shows: 40 at most, whole characters. */
static int shown(const char *s)
{
    return (int)utf8_valid_prefix(s, strnlen(s, 40));
}

static void add_text(struct str *to, const char *between, const json_t *s)
{
    if (to->len)
        str_adds(to, between);
    str_add(to, json_string_value(s), json_string_length(s));
}

static json_t *take_string(struct str *s)
{
    json_t *j = json_stringn(str_text(s), s->len);
    str_free(s);
    return j;
}

/* --- content ----------------------------------------------------------------------------------------- */

/* Where a content part keeps its text, by its type; NULL if it is no text. */
static const char *text_key(const char *type)
{
    if (!strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text"))
        return "text";
    return !strcmp(type, "refusal") ? "refusal" : NULL;
}

static bool is_media(const char *type)
{
    static const char *const kinds[] = {"image", "audio", "video", "file"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strstr(type, kinds[i]))
            return true;
    return false;
}

/* The text of part k of messages[i].content, a new reference; a "thinking" part's goes to *thinking and NULL
 * is returned with *e untouched. NULL and *e->code set on error. */
static json_t *part_text(const json_t *part, size_t i, size_t k, bool assistant, struct str *thinking,
                         struct err *e)
{
    if (json_is_string(part))
        return clean_string(part);
    const json_t *type_field = json_object_get(part, "type");
    const char *type = type_field ? json_string_value(type_field) : "text";
    if (!json_is_object(part) || !type) {
        err_set(e, ERR_INVALID,
                "messages[%zu].content[%zu] must be an object with a type, such as {\"type\": "
                "\"text\", \"text\": …}",
                i, k);
        return NULL;
    }
    bool thought = assistant && (!strcmp(type, "thinking") || !strcmp(type, "reasoning"));
    const char *key = thought ? "thinking" : text_key(type);
    if (!key) {
        if (is_media(type))
            err_set(e, ERR_INVALID,
                    "messages[%zu].content[%zu].type: this model is text only, it takes no \"%.*s\" parts", i,
                    k, shown(type), type);
        else
            err_set(e, ERR_INVALID,
                    "messages[%zu].content[%zu].type: unknown type \"%.*s\"; \"text\" is known", i, k,
                    shown(type), type);
        return NULL;
    }
    const json_t *text = json_object_get(part, key);
    if (thought && !text)
        text = json_object_get(part, "text");
    if (!json_is_string(text)) {
        err_set(e, ERR_INVALID, "messages[%zu].content[%zu].%s must be a string", i, k, key);
        return NULL;
    }
    json_t *copy = clean_string(text);
    if (!thought)
        return copy;
    add_text(thinking, "\n", copy);
    json_decref(copy);
    return NULL;
}

/* The content for the template, a new reference, or NULL and *e. */
static json_t *prepare_content(const json_t *content, size_t i, const char *role, bool keep_parts,
                               struct str *thinking, struct err *e)
{
    bool assistant = !strcmp(role, "assistant");
    if (json_is_string(content))
        return clean_string(content);
    if (json_is_null(content) || (!content && assistant))
        return json_string("");
    if (!content) {
        err_set(e, ERR_INVALID, "messages[%zu].content is missing", i);
        return NULL;
    }
    if (!json_is_array(content)) {
        err_set(e, ERR_INVALID, "messages[%zu].content must be a string, null or an array of parts", i);
        return NULL;
    }
    json_t *parts = json_array();
    struct str joined = {0};
    bool any = false;
    for (size_t k = 0; k < json_array_size(content); k++) {
        struct err why = {0};
        json_t *text = part_text(json_array_get(content, k), i, k, assistant, thinking, &why);
        if (why.code) {
            *e = why;
            json_decref(parts);
            str_free(&joined);
            return NULL;
        }
        if (!text)
            continue;
        if (any)
            str_addc(&joined, '\n');
        str_add(&joined, json_string_value(text), json_string_length(text));
        any = true;
        json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", text));
    }
    if (keep_parts && any && strcmp(role, "tool") != 0) {
        str_free(&joined);
        return parts;
    }
    json_decref(parts);
    return take_string(&joined);
}

/* --- tool calls and reasoning --------------------------------------------------------------------------- */

/* The arguments of a call as an object: what a JSON string holds, or {}. */
static json_t *prepare_arguments(const json_t *arguments)
{
    json_t *object = NULL;
    if (json_is_object(arguments))
        return clean(arguments);
    if (json_is_string(arguments)) {
        const char *text = json_string_value(arguments);
        size_t len = json_string_length(arguments);
        object = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
        if (!object) /* an integer may be over 64 bits: better a rounded one than no arguments */
            object = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    }
    if (json_is_object(object))
        return object;
    json_decref(object);
    return json_object();
}

/* The calls for the template, a new array, or NULL and *e. */
static json_t *prepare_calls(const json_t *calls, size_t i, struct err *e)
{
    if (!json_is_array(calls)) {
        err_set(e, ERR_INVALID, "messages[%zu].tool_calls must be an array", i);
        return NULL;
    }
    json_t *out = json_array();
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k), *function = json_object_get(call, "function");
        const json_t *name = json_object_get(function, "name");
        if (!json_is_object(function)) {
            err_set(e, ERR_INVALID, "messages[%zu].tool_calls[%zu].function must be an object", i, k);
            goto fail;
        }
        if (!json_is_string(name)) {
            err_set(e, ERR_INVALID, "messages[%zu].tool_calls[%zu].function.name must be a string", i, k);
            goto fail;
        }
        json_t *copy = clean(call), *body = json_object_get(copy, "function");
        json_object_set_new(body, "arguments", prepare_arguments(json_object_get(function, "arguments")));
        if (!json_object_get(copy, "type"))
            json_object_set_new(copy, "type", json_string("function"));
        json_array_append_new(out, copy);
    }
    return out;
fail:
    json_decref(out);
    return NULL;
}

/* Gives the assistant's reasoning, from either field or from thinking parts, under both names. */
static int set_reasoning(json_t *out, const json_t *message, size_t i, struct str *thinking, struct err *e)
{
    static const char *const names[] = {"reasoning_content", "reasoning"};
    json_t *text = NULL;
    for (int k = 0; k < 2; k++) {
        const json_t *field = json_object_get(message, names[k]);
        if (!field || json_is_null(field))
            continue;
        if (!json_is_string(field)) {
            json_decref(text);
            return err_set(e, ERR_INVALID, "messages[%zu].%s must be a string", i, names[k]);
        }
        if (!text)
            text = clean_string(field);
    }
    if (!text && thinking->len)
        text = take_string(thinking);
    if (text) {
        json_object_set(out, names[0], text);
        json_object_set(out, names[1], text);
        json_decref(text);
    }
    return 0;
}

/* --- messages ------------------------------------------------------------------------------------------- */

static const char *prepare_role(const json_t *message, size_t i, struct err *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const json_t *field = json_object_get(message, "role");
    const char *role = json_string_value(field);
    for (size_t k = 0; role && k < sizeof roles / sizeof roles[0]; k++)
        if (!strcmp(role, roles[k]))
            return roles[k];
    if (role)
        err_set(
            e, ERR_INVALID,
            "messages[%zu].role: unknown role \"%.*s\"; known are system, developer, user, assistant, tool",
            i, shown(role), role);
    else
        err_set(e, ERR_INVALID, "messages[%zu].role must be a string", i);
    return NULL;
}

/* Copies the fields that get no treatment of their own. */
static void copy_fields(json_t *out, const json_t *message)
{
    static const char *const treated[] = {"role", "content", "tool_calls", "reasoning", "reasoning_content"};
    json_t *object = (json_t *)(uintptr_t)message;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        bool skip = json_is_null(json_object_iter_value(it));
        for (size_t k = 0; k < sizeof treated / sizeof treated[0]; k++)
            skip |= !strcmp(key, treated[k]);
        if (!skip)
            json_object_setn_new(out, key, json_object_iter_key_len(it), clean(json_object_iter_value(it)));
    }
}

/* Message i for the template; the role "developer" is left for merge_developers. */
static json_t *prepare_message(const json_t *message, size_t i, const struct chat_caps *caps, struct err *e)
{
    if (!json_is_object(message)) {
        err_set(e, ERR_INVALID, "messages[%zu] must be an object", i);
        return NULL;
    }
    const char *role = prepare_role(message, i, e);
    if (!role)
        return NULL;
    struct str thinking = {0};
    json_t *out = json_object();
    json_object_set_new(out, "role", json_string(role));
    json_t *content =
        prepare_content(json_object_get(message, "content"), i, role, caps->content_parts, &thinking, e);
    if (!content)
        goto fail;
    const json_t *refusal = json_object_get(message, "refusal");
    bool empty = json_is_string(content) && !json_string_length(content);
    if (empty && json_is_string(refusal)) { /* what the assistant answered was this */
        json_decref(content);
        content = clean_string(refusal);
    }
    json_object_set_new(out, "content", content);
    copy_fields(out, message);
    if (!strcmp(role, "assistant")) {
        const json_t *calls = json_object_get(message, "tool_calls");
        if (calls && !json_is_null(calls)) {
            json_t *prepared = prepare_calls(calls, i, e);
            if (!prepared)
                goto fail;
            if (json_array_size(prepared))
                json_object_set(out, "tool_calls", prepared);
            json_decref(prepared);
        }
        if (set_reasoning(out, message, i, &thinking, e))
            goto fail;
    }
    str_free(&thinking);
    return out;
fail:
    str_free(&thinking);
    json_decref(out);
    return NULL;
}

/* Appends a content, string or parts, to a text, an empty line between. */
static void add_content(struct str *to, const json_t *content)
{
    if (json_is_string(content)) {
        add_text(to, "\n\n", content);
        return;
    }
    for (size_t k = 0; k < json_array_size(content); k++)
        add_text(to, k ? "\n" : "\n\n", json_object_get(json_array_get(content, k), "text"));
}

static bool has_role(const json_t *message, const char *role)
{
    return !strcmp(json_string_value(json_object_get(message, "role")), role);
}

/* No template of ours tells developers from the system: a first message of theirs becomes the system's, later
 * ones are added to it, for many templates allow a system message at the front only. */
static void merge_developers(json_t *messages)
{
    size_t developers = 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        developers += has_role(json_array_get(messages, i), "developer");
    json_t *front = json_array_get(messages, 0);
    if (!developers)
        return;
    if (has_role(front, "developer")) {
        json_object_set_new(front, "role", json_string("system"));
        developers--;
    } else if (!has_role(front, "system")) {
        front = json_pack("{s:s, s:s}", "role", "system", "content", "");
        json_array_insert_new(messages, 0, front);
    }
    if (!developers)
        return;
    struct str all = {0};
    add_content(&all, json_object_get(front, "content"));
    for (size_t i = 1; i < json_array_size(messages);) {
        json_t *message = json_array_get(messages, i);
        if (has_role(message, "developer")) {
            add_content(&all, json_object_get(message, "content"));
            json_array_remove(messages, i);
        } else {
            i++;
        }
    }
    json_object_set_new(front, "content", take_string(&all));
}

json_t *chat_messages_prepare(const json_t *messages, const struct chat_caps *caps, struct err *e)
{
    if (!json_is_array(messages)) {
        err_set(e, ERR_INVALID, "messages must be an array");
        return NULL;
    }
    struct err ignored;
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = prepare_message(json_array_get(messages, i), i, caps, e ? e : &ignored);
        if (!message) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, message);
    }
    merge_developers(out);
    return out;
}
