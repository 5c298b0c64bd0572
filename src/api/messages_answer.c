/* The answers of /v1/messages: blocks, in this order: thinking, text, calls. A stream tells where a block
 * begins, how it grows and where it stops; message_delta at its end says why the model stopped. */
#include <string.h>

#include "api/answer.h"
#include "api/json_write.h"
#include "api/messages.h"
#include "api/salt.h"

static struct messages *told(const struct generation *g)
{
    return g->request->told;
}

/* --- parts of both forms --------------------------------------------------------------------------- */

/* "usage":{…}. Tokens that were found in the cache are told apart where the server tells of them at all. */
static void write_usage(const struct generation *g, struct str *out)
{
    struct usage u = generation_usage(g);
    bool details = g->model->prompt_tokens_details;
    str_addf(out, "\"usage\":{\"input_tokens\":%lld,\"output_tokens\":%lld",
             (long long)(details ? u.prompt - u.cached : u.prompt), (long long)u.completion);
    if (details)
        str_addf(out, ",\"cache_read_input_tokens\":%lld", (long long)u.cached);
    str_addc(out, '}');
}

/* "stop_reason":…,"stop_sequence":… */
static void write_stop(const struct generation *g, struct str *out)
{
    const struct choice *c = &g->choices[0];
    const char *reason = NULL; /* the server ended it */
    if (c->stop)
        reason = "stop_sequence";
    else if (c->finish && strcmp(c->finish, "length") == 0)
        reason = "max_tokens";
    else if (c->finish && strcmp(c->finish, "abort") != 0)
        reason = c->output.calls.n_calls > 0 ? "tool_use" : "end_turn";
    str_adds(out, "\"stop_reason\":");
    json_write_text(out, reason);
    str_adds(out, ",\"stop_sequence\":");
    if (c->stop)
        json_write_string(out, c->stop->text, c->stop->len);
    else
        str_adds(out, "null");
}

/* The name of a thought: a keyed digest. Clients send it back with the thought; it is not checked. */
static void write_signature(const struct str *thought, struct str *out)
{
    uint64_t digest[2];
    salt_digest(str_text(thought), thought->len, digest);
    str_addf(out, "\"signature\":\"%016llx%016llx\"", (unsigned long long)digest[0],
             (unsigned long long)digest[1]);
}

/* {"type": "tool_use", "id", "name", "input": without the input's value */
static void begin_tool_use(const struct generation *g, const struct call_part *call, struct str *out)
{
    str_addf(out,
             "{\"type\":\"tool_use\",\"id\":\"toolu_%016llx%02x\",\"name\":", (unsigned long long)told(g)->id,
             call->index);
    json_write_string(out, str_text(&call->name), call->name.len);
    str_adds(out, ",\"input\":");
}

/* {"id", "type", …, "content": without the content's value */
static void begin_message(const struct generation *g, struct str *out)
{
    str_adds(out, "{\"id\":");
    json_write_text(out, g->request->id);
    str_adds(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_write_text(out, g->model->names[0]);
    str_adds(out, ",\"content\":");
}

/* --- whole ----------------------------------------------------------------------------------------- */

/* Arguments are an object, if the model wrote one. */
static void write_input(const struct call_part *call, struct str *out)
{
    json_t *v = json_loadb(str_text(&call->arguments), call->arguments.len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(v))
        str_add(out, call->arguments.data, call->arguments.len);
    else
        str_adds(out, "{}");
    json_decref(v);
}

static void messages_body(struct generation *g, struct str *out)
{
    const struct parts *p = &g->choices[0].parts;
    const char *comma = "";
    begin_message(g, out);
    str_addc(out, '[');
    if (p->reasoning.len && !g->request->hide_reasoning) {
        str_adds(out, "{\"type\":\"thinking\",\"thinking\":");
        json_write_string(out, p->reasoning.data, p->reasoning.len);
        str_addc(out, ',');
        write_signature(&p->reasoning, out);
        str_addc(out, '}');
        comma = ",";
    }
    if (p->content.len || (p->n_calls == 0 && !*comma)) { /* an answer without anything has an empty text */
        str_addf(out, "%s{\"type\":\"text\",\"text\":", comma);
        json_write_string(out, str_text(&p->content), p->content.len);
        str_addc(out, '}');
        comma = ",";
    }
    for (int i = 0; i < p->n_calls; i++) {
        str_adds(out, comma);
        begin_tool_use(g, &p->calls[i], out);
        write_input(&p->calls[i], out);
        str_addc(out, '}');
        comma = ",";
    }
    str_adds(out, "],");
    write_stop(g, out);
    str_addc(out, ',');
    write_usage(g, out);
    str_addc(out, '}');
}

/* --- streamed -------------------------------------------------------------------------------------- */

static void begin_event(const char *type, struct str *out)
{
    str_addf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct str *out)
{
    str_adds(out, "}\n\n");
}

static void begin_block_event(const struct generation *g, const char *type, struct str *out)
{
    begin_event(type, out);
    str_addf(out, ",\"index\":%d", told(g)->n_blocks - 1);
}

/* "delta":{"type":…,FIELD:text} */
static void delta_event(const struct generation *g, const char *type, const char *field,
                        const struct str *text, struct str *out)
{
    begin_block_event(g, "content_block_delta", out);
    str_addf(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, field);
    json_write_string(out, str_text(text), text->len);
    str_addc(out, '}');
    end_event(out);
}

static void close_block(const struct generation *g, struct str *out)
{
    struct messages *s = told(g);
    if (s->open == BLOCK_NONE)
        return;
    if (s->open == BLOCK_THINKING) {
        begin_block_event(g, "content_block_delta", out);
        str_adds(out, ",\"delta\":{\"type\":\"signature_delta\",");
        write_signature(&s->thought, out);
        str_addc(out, '}');
        end_event(out);
    }
    begin_block_event(g, "content_block_stop", out);
    end_event(out);
    s->open = BLOCK_NONE;
}

/* Begins a block, unless it is open. `call` is the tool_use's. */
static void open_block(const struct generation *g, enum block kind, const struct call_part *call,
                       struct str *out)
{
    struct messages *s = told(g);
    if (s->open == kind && !call)
        return;
    close_block(g, out);
    s->open = kind;
    s->n_blocks++;
    begin_block_event(g, "content_block_start", out);
    str_adds(out, ",\"content_block\":");
    if (kind == BLOCK_THINKING) {
        str_adds(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else if (kind == BLOCK_TEXT) {
        str_adds(out, "{\"type\":\"text\",\"text\":\"\"}");
    } else {
        begin_tool_use(g, call, out);
        str_adds(out, "{}}");
    }
    end_event(out);
}

static void messages_open(const struct generation *g, const struct choice *c, struct str *out)
{
    (void)c;
    told(g)->begun = true;
    begin_event("message_start", out);
    str_adds(out, ",\"message\":");
    begin_message(g, out);
    str_adds(out, "[],\"stop_reason\":null,\"stop_sequence\":null,");
    write_usage(g, out);
    str_addc(out, '}');
    end_event(out);
}

static void messages_event(struct generation *g, struct choice *c, const struct delta *d, struct str *out)
{
    (void)c;
    struct messages *s = told(g);
    const struct parts *fresh = d->parts;
    if (fresh->reasoning.len) {
        open_block(g, BLOCK_THINKING, NULL, out);
        str_add(&s->thought, fresh->reasoning.data, fresh->reasoning.len);
        delta_event(g, "thinking_delta", "thinking", &fresh->reasoning, out);
    }
    if (fresh->content.len) {
        open_block(g, BLOCK_TEXT, NULL, out);
        delta_event(g, "text_delta", "text", &fresh->content, out);
    }
    for (int i = 0; i < fresh->n_calls; i++) {
        const struct call_part *call = &fresh->calls[i];
        if (call->opens)
            open_block(g, BLOCK_TOOL_USE, call, out);
        if (call->arguments.len)
            delta_event(g, "input_json_delta", "partial_json", &call->arguments, out);
    }
}

static void messages_end(struct generation *g, struct str *out)
{
    struct messages *s = told(g);
    if (g->error.status) {
        str_adds(out, "event: error\ndata: ");
        messages_error_write(&g->error, out);
        str_adds(out, "\n\n");
        return;
    }
    if (!s->begun)
        messages_open(g, &g->choices[0], out);
    if (s->n_blocks == 0)
        open_block(g, BLOCK_TEXT, NULL, out);
    close_block(g, out);
    begin_event("message_delta", out);
    str_adds(out, ",\"delta\":{");
    write_stop(g, out);
    str_adds(out, "},");
    write_usage(g, out);
    end_event(out);
    begin_event("message_stop", out);
    end_event(out);
}

const struct answer_writer messages_writer = {
    .path = "/v1/messages",
    .open = messages_open,
    .event = messages_event,
    .end = messages_end,
    .body = messages_body,
};

/* --- refusals -------------------------------------------------------------------------------------- */

void messages_error_write(const struct api_error *e, struct str *out)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = e->status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == e->status)
            type = types[i].type;
    str_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    json_write_text(out, e->message);
    str_adds(out, "}}");
}
