/* A batch is one request with several prompts, as a list of prompts is in completions. What shapes the
 * answers (sampling, stop strings, form) is read once, with the first conversation, and holds for all. */
#include "api/chat_batch.h"

#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "base/mem.h"

/* What one answer a conversation cannot have, or would have once for all. */
static int refuse(const json_t *body, struct api_error *e)
{
    static const char *const flags[] = {"stream", "echo", "return_token_ids", "continue_final_message"};
    static const char *const values[] = {"tools", "tool_choice", "prompt_logprobs"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool on = false;
        if (field_bool(body, flags[i], &on, e) < 0)
            return -1;
        if (on)
            return api_bad_value(e, flags[i], json_object_get(body, flags[i]), "%s cannot be used in a batch",
                                 flags[i]);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const json_t *v = json_object_get(body, values[i]);
        if (v && !json_is_null(v))
            return api_bad_value(e, values[i], v, "%s cannot be used in a batch", values[i]);
    }
    int64_t n = 1;
    if (field_int(body, "n", &n, e) < 0)
        return -1;
    if (n != 1)
        return api_bad_value(e, "n", json_object_get(body, "n"), "a batch has one answer to a conversation");
    return 0;
}

/* "messages" -> "messages.3", where the refusal is about a conversation. */
static void name_conversation(struct api_error *e, size_t i)
{
    static const char field[] = "messages";
    char *at = strstr(e->param, field);
    char rest[sizeof e->param], text[sizeof e->message];
    snprintf(text, sizeof text, "%s", e->message);
    snprintf(e->message, sizeof e->message, "conversation %zu: %.1400s", i, text);
    if (!at)
        return;
    at += strlen(field);
    snprintf(rest, sizeof rest, "%s", at);
    snprintf(at, (size_t)(e->param + sizeof e->param - at), ".%zu%s", i, rest);
}

/* Moves the only prompt of `from` behind those of `to`. */
static int move_prompt(struct api_request *to, struct api_request *from, struct api_error *e)
{
    if (to->parsing.start != from->parsing.start)
        return api_fail(e, 400, "BadRequestError", "messages",
                        "the chat template begins the answers of this batch in different ways: send the "
                        "conversations one by one");
    to->prompts[to->n_prompts++] = from->prompts[0];
    from->prompts[0] = (struct prompt){0};
    return 0;
}

struct api_request *chat_batch_read(const struct api_model *m, const json_t *body, const char *request_id,
                                    bool id_is_header, struct api_error *e)
{
    const json_t *list = NULL;
    int set = field_array(body, "messages", &list, e);
    if (set < 0 || refuse(body, e))
        return NULL;
    size_t n = json_array_size(list);
    if (set == 0) {
        api_missing(e, "messages");
        return NULL;
    }
    if (n == 0 || n > (size_t)m->limits.max_prompts || n > (size_t)m->limits.max_choices) {
        api_fail(
            e, 400, "BadRequestError", "messages",
            "a batch may hold 1 to %d conversations, this one holds %zu",
            m->limits.max_prompts < m->limits.max_choices ? m->limits.max_prompts : m->limits.max_choices, n);
        return NULL;
    }
    struct api_request *all = NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_copy((json_t *)(uintptr_t)body);
        json_object_set(one, "messages", json_array_get(list, i));
        struct api_request *r = api_request_read(m, API_CHAT, one, request_id, id_is_header, e);
        json_decref(one);
        if (!r) {
            name_conversation(e, i);
            goto fail;
        }
        if (!all) {
            all = r;
            all->prompts = mem_realloc(all->prompts, n, sizeof *all->prompts);
            memset(all->prompts + 1, 0, (n - 1) * sizeof *all->prompts);
            continue;
        }
        int failed = move_prompt(all, r, e);
        api_request_free(r);
        if (failed)
            goto fail;
    }
    if (request_check_size(all, m, e))
        goto fail;
    return all;
fail:
    api_request_free(all);
    return NULL;
}
