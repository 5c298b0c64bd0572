/* The answers of /v1/responses. An answer is up to three kinds of items, in this order: a thought, a message,
 * calls. A stream opens an item, tells how it grows, closes it, and ends with the whole response; what it
 * ends with is what a client that does not stream gets. */
#include <string.h>

#include "api/answer.h"
#include "api/json_write.h"
#include "api/responses.h"
#include "api/responses_store.h"

static struct responses *told(const struct generation *g)
{
    return g->request->told;
}

/* --- items ----------------------------------------------------------------------------------------- */

static void write_item_id(const struct responses *s, enum item kind, int call, struct str *out)
{
    const char *prefix = kind == ITEM_REASONING ? "rs" : kind == ITEM_MESSAGE ? "msg" : "fc";
    str_addf(out, "\"%s_%016llx%02x\"", prefix, (unsigned long long)s->id, kind == ITEM_CALL ? call : 0);
}

static void write_text_part(const char *type, const char *text, size_t len, struct str *out)
{
    str_addf(out, "{\"type\":\"%s\",\"text\":", type);
    json_write_string(out, text, len);
}

/* {"type": "output_text", …}. The tokens behind the thought are the text's. */
static void write_output_text(const struct generation *g, const struct choice *c, const struct str *text,
                              struct str *out)
{
    int first = c->output.n_thought;
    write_text_part("output_text", str_text(text), text->len, out);
    str_adds(out, ",\"annotations\":[],\"logprobs\":");
    answer_write_logprobs(g, c, first, c->n_tokens - first, out);
    str_addc(out, '}');
}

/* An item of the answer. `empty`: as it begins. */
static void write_item(const struct generation *g, const struct choice *c, enum item kind,
                       const struct parts *p, int call, bool empty, const char *status, struct str *out)
{
    const struct responses *s = told(g);
    str_adds(out, "{\"id\":");
    write_item_id(s, kind, call, out);
    switch (kind) {
    case ITEM_REASONING:
        str_adds(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (!empty) {
            write_text_part("reasoning_text", p->reasoning.data, p->reasoning.len, out);
            str_addc(out, '}');
        }
        str_addc(out, ']');
        break;
    case ITEM_MESSAGE:
        str_adds(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (!empty)
            write_output_text(g, c, &p->content, out);
        str_addc(out, ']');
        break;
    case ITEM_CALL:
    case ITEM_NONE:
        str_addf(out, ",\"type\":\"function_call\",\"call_id\":\"call_%016llx%02x\",\"name\":",
                 (unsigned long long)s->id, call);
        json_write_string(out, str_text(&p->calls[call].name), p->calls[call].name.len);
        str_adds(out, ",\"arguments\":");
        if (empty)
            str_adds(out, "\"\"");
        else
            json_write_string(out, str_text(&p->calls[call].arguments), p->calls[call].arguments.len);
        break;
    }
    str_addf(out, ",\"status\":\"%s\"}", status);
}

/* An answer without anything has an empty message. */
static bool has_message(const struct generation *g, const struct parts *p, bool thought)
{
    return p->content.len > 0 || (p->n_calls == 0 && !thought && !g->error.status);
}

/* [item, …]; the last of them has `status`, those before are completed. */
static void write_output(const struct generation *g, const struct choice *c, const struct parts *p,
                         const char *status, struct str *out)
{
    bool thought = p->reasoning.len > 0 && !g->request->hide_reasoning, message = has_message(g, p, thought);
    str_addc(out, '[');
    if (thought) {
        bool last = !message && p->n_calls == 0;
        write_item(g, c, ITEM_REASONING, p, 0, false, last ? status : "completed", out);
    }
    if (message) {
        if (thought)
            str_addc(out, ',');
        write_item(g, c, ITEM_MESSAGE, p, 0, false, p->n_calls == 0 ? status : "completed", out);
    }
    for (int i = 0; i < p->n_calls; i++) {
        if (i || thought || message)
            str_addc(out, ',');
        write_item(g, c, ITEM_CALL, p, i, false, i + 1 == p->n_calls ? status : "completed", out);
    }
    str_addc(out, ']');
}

/* --- the response ---------------------------------------------------------------------------------- */

/* What became of it, in this protocol's words. */
static const char *status_of(const struct generation *g)
{
    const char *finish = g->choices[0].finish;
    if (g->error.status)
        return "failed";
    if (told(g)->cancelled)
        return "cancelled";
    if (!finish)
        return "in_progress";
    if (strcmp(finish, "length") == 0)
        return "incomplete";
    return strcmp(finish, "abort") == 0 ? "cancelled" : "completed";
}

static const char *item_status(const struct generation *g)
{
    const char *status = status_of(g);
    return strcmp(status, "completed") == 0 || strcmp(status, "in_progress") == 0 ? status : "incomplete";
}

/* What goes into the cache costs nothing and is not counted. */
static void write_usage(const struct generation *g, struct str *out)
{
    struct usage u = generation_usage(g);
    str_addf(out,
             ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,"
             "\"cache_write_tokens\":0},\"output_tokens\":%lld,\"output_tokens_details\":{"
             "\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
             (long long)u.prompt, (long long)u.cached, (long long)u.completion, (long long)u.reasoning,
             (long long)(u.prompt + u.completion));
}

/* The response object, with the answer where `p` is given. */
static void write_response(const struct generation *g, const struct parts *p, struct str *out)
{
    const struct choice *c = &g->choices[0];
    const char *status = status_of(g);
    str_adds(out, "{\"id\":");
    json_write_text(out, g->request->id);
    str_addf(out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":",
             (long long)g->request->created, status);
    if (g->error.status) {
        str_adds(out, "{\"code\":\"server_error\",\"message\":");
        json_write_text(out, g->error.message);
        str_addc(out, '}');
    } else {
        str_adds(out, "null");
    }
    str_adds(out, ",\"incomplete_details\":");
    str_adds(out, strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    str_adds(out, ",\"model\":");
    json_write_text(out, g->model->names[0]);
    str_adds(out, ",\"output\":");
    if (p)
        write_output(g, c, p, item_status(g), out);
    else
        str_adds(out, "[]");
    str_add(out, told(g)->echo.data, told(g)->echo.len);
    if (p)
        write_usage(g, out);
    else
        str_adds(out, ",\"usage\":null");
    str_addc(out, '}');
}

/* Keeps the answer, for requests that go on from it: as the message it will be then. */
static void store(const struct generation *g, const struct parts *p, const struct str *body)
{
    struct responses *s = told(g);
    struct str *to = &s->conversation;
    if (!s->stored)
        return;
    s->stored = false;
    if (g->error.status) { /* nothing can go on from it, but whoever waits for it must see it */
        str_clear(to);
        if (g->request->background)
            response_store_put(g->model->responses, g->request->id, to, body);
        return;
    }
    str_adds(to,
             to->len > 1 ? ",{\"role\":\"assistant\",\"content\":" : "{\"role\":\"assistant\",\"content\":");
    json_write_string(to, str_text(&p->content), p->content.len);
    if (p->reasoning.len) {
        str_adds(to, ",\"reasoning\":");
        json_write_string(to, p->reasoning.data, p->reasoning.len);
    }
    for (int i = 0; i < p->n_calls; i++) {
        str_addf(to, "%s{\"id\":\"call_%016llx%02x\",\"type\":\"function\",\"function\":{\"name\":",
                 i ? "," : ",\"tool_calls\":[", (unsigned long long)s->id, i);
        json_write_string(to, str_text(&p->calls[i].name), p->calls[i].name.len);
        str_adds(to, ",\"arguments\":");
        json_write_string(to, str_text(&p->calls[i].arguments), p->calls[i].arguments.len);
        str_adds(to, "}}");
    }
    str_adds(to, p->n_calls ? "]}]" : "}]");
    response_store_put(g->model->responses, g->request->id, to, body);
}

static void responses_body(struct generation *g, struct str *out)
{
    struct str body = {0};
    write_response(g, &g->choices[0].parts, &body);
    store(g, &g->choices[0].parts, &body);
    str_add(out, str_text(&body), body.len);
    str_free(&body);
}

/* The response without its answer, kept for those who ask for it. Nothing can go on from it yet. */
static void responses_accepted(struct generation *g, struct str *out)
{
    struct str body = {0}, none = {0};
    write_response(g, NULL, &body);
    response_store_put(g->model->responses, g->request->id, &none, &body);
    str_add(out, body.data, body.len);
    str_free(&body);
}

void responses_cancel(struct generation *g, struct str *out)
{
    told(g)->cancelled = true;
    generation_cancel(g);
    responses_accepted(g, out);
}

/* --- the stream ------------------------------------------------------------------------------------ */

static void begin_event(const struct generation *g, const char *type, struct str *out)
{
    str_addf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type,
             told(g)->sequence++);
}

static void end_event(struct str *out)
{
    str_adds(out, "}\n\n");
}

/* … of the item that is open. */
static void begin_item_event(const struct generation *g, const char *type, bool of_content, struct str *out)
{
    const struct responses *s = told(g);
    begin_event(g, type, out);
    str_addf(out, ",\"output_index\":%d,\"item_id\":", s->n_items - 1);
    write_item_id(s, s->open, s->all.n_calls - 1, out);
    if (of_content)
        str_adds(out, ",\"content_index\":0");
}

static void whole_item_event(const struct generation *g, const struct choice *c, const char *type, bool empty,
                             const char *status, struct str *out)
{
    const struct responses *s = told(g);
    begin_event(g, type, out);
    str_addf(out, ",\"output_index\":%d,\"item\":", s->n_items - 1);
    write_item(g, c, s->open, &s->all, s->all.n_calls - 1, empty, status, out);
    end_event(out);
}

static void part_event(const struct generation *g, const struct choice *c, const char *type, bool empty,
                       struct str *out)
{
    const struct responses *s = told(g);
    const struct str nothing = {0};
    begin_item_event(g, type, true, out);
    str_adds(out, ",\"part\":");
    if (s->open == ITEM_MESSAGE && empty) {
        str_adds(out, "{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[],\"logprobs\":[]}");
    } else if (s->open == ITEM_MESSAGE) {
        write_output_text(g, c, &s->all.content, out);
    } else {
        const struct str *text = empty ? &nothing : &s->all.reasoning;
        write_text_part("reasoning_text", str_text(text), text->len, out);
        str_addc(out, '}');
    }
    end_event(out);
}

/* The whole of the open item's text: done. */
static void text_done_event(const struct generation *g, const struct choice *c, struct str *out)
{
    const struct responses *s = told(g);
    bool message = s->open == ITEM_MESSAGE;
    const struct str *text = message ? &s->all.content : &s->all.reasoning;
    begin_item_event(g, message ? "response.output_text.done" : "response.reasoning_text.done", true, out);
    str_adds(out, ",\"text\":");
    json_write_string(out, str_text(text), text->len);
    if (message) {
        int first = c->output.n_thought;
        str_adds(out, ",\"logprobs\":");
        answer_write_logprobs(g, c, first, c->n_tokens - first, out);
    }
    end_event(out);
}

static void close_item(const struct generation *g, const struct choice *c, const char *status,
                       struct str *out)
{
    struct responses *s = told(g);
    if (s->open == ITEM_NONE)
        return;
    if (s->open == ITEM_CALL) {
        const struct call_part *call = &s->all.calls[s->all.n_calls - 1];
        begin_item_event(g, "response.function_call_arguments.done", false, out);
        str_adds(out, ",\"name\":");
        json_write_string(out, str_text(&call->name), call->name.len);
        str_adds(out, ",\"arguments\":");
        json_write_string(out, str_text(&call->arguments), call->arguments.len);
        end_event(out);
    } else {
        text_done_event(g, c, out);
        part_event(g, c, "response.content_part.done", false, out);
    }
    whole_item_event(g, c, "response.output_item.done", false, status, out);
    s->open = ITEM_NONE;
}

static void open_item(const struct generation *g, const struct choice *c, enum item kind, struct str *out)
{
    struct responses *s = told(g);
    if (s->open == kind && kind != ITEM_CALL)
        return;
    s->open = kind;
    s->n_items++;
    whole_item_event(g, c, "response.output_item.added", true, "in_progress", out);
    if (kind != ITEM_CALL)
        part_event(g, c, "response.content_part.added", true, out);
}

/* A piece of the open item's text or arguments. */
static void delta_event(const struct generation *g, const char *type, bool of_content, const struct str *text,
                        struct str *out)
{
    begin_item_event(g, type, of_content, out);
    str_adds(out, ",\"delta\":");
    json_write_string(out, str_text(text), text->len);
}

static void responses_open(const struct generation *g, const struct choice *c, struct str *out)
{
    (void)c;
    static const char *const events[] = {"response.created", "response.in_progress"};
    for (int i = 0; i < 2; i++) {
        begin_event(g, events[i], out);
        str_adds(out, ",\"response\":");
        write_response(g, NULL, out);
        end_event(out);
    }
}

static void call_events(const struct generation *g, const struct choice *c, const struct parts *fresh,
                        struct str *out)
{
    struct responses *s = told(g);
    for (int i = 0; i < fresh->n_calls; i++) {
        const struct call_part *call = &fresh->calls[i];
        if (call->opens) {
            close_item(g, c, "completed", out);
            parts_open_call(&s->all, call->index, str_text(&call->name), call->name.len);
            open_item(g, c, ITEM_CALL, out);
        }
        if (call->arguments.len == 0)
            continue;
        parts_add_arguments(&s->all, call->index, str_text(&call->arguments), call->arguments.len);
        delta_event(g, "response.function_call_arguments.delta", false, &call->arguments, out);
        end_event(out);
    }
}

static void responses_event(struct generation *g, struct choice *c, const struct delta *d, struct str *out)
{
    struct responses *s = told(g);
    const struct parts *fresh = d->parts;
    if (fresh->reasoning.len) {
        open_item(g, c, ITEM_REASONING, out);
        str_add(&s->all.reasoning, fresh->reasoning.data, fresh->reasoning.len);
        delta_event(g, "response.reasoning_text.delta", true, &fresh->reasoning, out);
        end_event(out);
    }
    if (fresh->content.len) {
        if (s->open == ITEM_REASONING)
            close_item(g, c, "completed", out);
        open_item(g, c, ITEM_MESSAGE, out);
        str_add(&s->all.content, fresh->content.data, fresh->content.len);
        delta_event(g, "response.output_text.delta", true, &fresh->content, out);
        int behind = d->first + d->n, first = d->first > c->output.n_thought ? d->first : c->output.n_thought;
        str_adds(out, ",\"logprobs\":");
        answer_write_logprobs(g, c, first, behind - first, out);
        end_event(out);
    }
    call_events(g, c, fresh, out);
}

static void responses_end(struct generation *g, struct str *out)
{
    struct responses *s = told(g);
    const struct choice *c = &g->choices[0];
    if (s->sequence == 0)
        responses_open(g, c, out);
    if (s->n_items == 0 && !g->error.status)
        open_item(g, c, ITEM_MESSAGE, out);
    close_item(g, c, item_status(g), out);
    const char *status = status_of(g);
    const char *event = strcmp(status, "completed") == 0 ? "response.completed"
                        : strcmp(status, "failed") == 0  ? "response.failed"
                                                         : "response.incomplete";
    struct str body = {0};
    write_response(g, &s->all, &body);
    begin_event(g, event, out);
    str_adds(out, ",\"response\":");
    str_add(out, str_text(&body), body.len);
    end_event(out);
    store(g, &s->all, &body);
    str_free(&body);
}

const struct answer_writer responses_writer = {
    .path = "/v1/responses",
    .open = responses_open,
    .event = responses_event,
    .end = responses_end,
    .body = responses_body,
    .accepted = responses_accepted,
};
