/* The answers of /v1/chat/completions. */
#include "api/answer.h"
#include "api/json_write.h"

/* The logprobs object of tokens first … first + n - 1, or null when none were asked for. */
static void write_logprobs(const struct generation *g, const struct choice *c, int first, int n,
                           struct str *out)
{
    if (g->request->sampling.p.n_logprobs < 0 || n == 0) {
        str_adds(out, "null");
        return;
    }
    str_adds(out, "{\"content\":");
    answer_write_logprobs(g, c, first, n, out);
    str_addc(out, '}');
}

/* Everything of a chunk up to its choices. */
static void write_chunk_head(const struct generation *g, struct str *out)
{
    str_adds(out, "data: {\"id\":");
    json_write_text(out, g->request->id);
    str_addf(out, ",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":",
             (long long)g->request->created);
    json_write_text(out, g->model->names[0]);
    str_adds(out, ",\"choices\":[");
}

static void write_chunk_tail(const struct generation *g, struct str *out)
{
    if (g->request->continuous_usage)
        answer_write_usage(g, false, out);
    str_adds(out, "}\n\n");
}

/* The first chunk of a choice tells the role, and no later one does. */
static void chat_open(const struct generation *g, const struct choice *c, struct str *out)
{
    write_chunk_head(g, out);
    str_addf(out, "{\"index\":%d,\"delta\":{\"role\":", c->index);
    json_write_text(out, g->request->role);
    str_adds(out, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    if (g->request->return_token_ids) {
        str_adds(out, ",\"prompt_token_ids\":");
        json_write_ids(out, c->prompt->ids.ids, (int)c->prompt->ids.n);
    }
    write_chunk_tail(g, out);
    if (g->request->echo_text.len) {
        write_chunk_head(g, out);
        str_addf(out, "{\"index\":%d,\"delta\":{\"content\":", c->index);
        json_write_string(out, g->request->echo_text.data, g->request->echo_text.len);
        str_adds(out, "},\"logprobs\":null,\"finish_reason\":null}]");
        write_chunk_tail(g, out);
    }
}

/* [{"index", "id", "type", "function": {"name", "arguments"}}, …]: a stream's first entry of a call has id
 * and name, later ones bring more of its arguments. */
static void write_calls(const struct parts *p, bool with_index, struct str *out)
{
    str_adds(out, "\"tool_calls\":[");
    for (int i = 0; i < p->n_calls; i++) {
        const struct call_part *call = &p->calls[i];
        str_adds(out, i ? ",{" : "{");
        if (with_index)
            str_addf(out, "\"index\":%d,", call->index);
        if (call->opens) {
            str_addf(out, "\"id\":\"chatcmpl-tool-%016llx\",\"type\":\"function\",",
                     (unsigned long long)answer_new_id());
        }
        str_adds(out, "\"function\":{");
        if (call->opens) {
            str_adds(out, "\"name\":");
            json_write_string(out, str_text(&call->name), call->name.len);
            str_addc(out, ',');
        }
        str_adds(out, "\"arguments\":");
        json_write_string(out, str_text(&call->arguments), call->arguments.len);
        str_adds(out, "}}");
    }
    str_addc(out, ']');
}

/* {"reasoning", "content", "tool_calls"}: what there is of them. */
static void write_delta(const struct parts *p, bool parsed, struct str *out)
{
    const char *comma = "";
    str_addc(out, '{');
    if (p->reasoning.len) {
        str_adds(out, "\"reasoning\":");
        json_write_string(out, p->reasoning.data, p->reasoning.len);
        comma = ",";
    }
    if (p->content.len || !parsed) {
        str_addf(out, "%s\"content\":", comma);
        json_write_string(out, str_text(&p->content), p->content.len);
        comma = ",";
    }
    if (p->n_calls) {
        str_adds(out, comma);
        write_calls(p, true, out);
    }
    str_addc(out, '}');
}

/* Hidden reasoning hides its tokens too: moves *first behind them. */
static void skip_hidden(const struct generation *g, const struct choice *c, int *first, int *n)
{
    int hidden = g->request->hide_reasoning ? c->output.n_thought - *first : 0;
    if (hidden <= 0)
        return;
    if (hidden > *n)
        hidden = *n;
    *first += hidden;
    *n -= hidden;
}

static void chat_event(struct generation *g, struct choice *c, const struct delta *d, struct str *out)
{
    int first = d->first, n = d->n;
    skip_hidden(g, c, &first, &n);
    write_chunk_head(g, out);
    str_addf(out, "{\"index\":%d,\"delta\":", c->index);
    write_delta(d->parts, c->output.parses, out);
    str_adds(out, ",\"logprobs\":");
    write_logprobs(g, c, first, n, out);
    if (c->finish) {
        str_addc(out, ',');
        answer_write_finish(c, out);
    } else {
        str_adds(out, ",\"finish_reason\":null");
    }
    if (g->request->return_token_ids) {
        str_adds(out, ",\"token_ids\":");
        json_write_ids(out, sluice_request_tokens(c->request) + first, n);
    }
    str_adds(out, "}]");
    if (c->finish && !g->request->include_usage)
        answer_write_metrics(g, false, out);
    write_chunk_tail(g, out);
}

static void chat_end(struct generation *g, struct str *out)
{
    if (g->request->include_usage && !g->error.status) {
        write_chunk_head(g, out);
        str_adds(out, "],\"system_fingerprint\":");
        json_write_text(out, g->model->fingerprint);
        answer_write_usage(g, false, out);
        answer_write_metrics(g, false, out);
        str_adds(out, "}\n\n");
    }
    answer_write_end(g, out);
}

static void write_choice(const struct generation *g, struct choice *c, struct str *out)
{
    const struct parts *p = &c->parts;
    int first = 0, n = c->n_tokens;
    skip_hidden(g, c, &first, &n);
    struct str content = {0};
    str_add(&content, str_text(&g->request->echo_text), g->request->echo_text.len);
    str_add(&content, str_text(&p->content), p->content.len);
    str_addf(out, "{\"index\":%d,\"message\":{\"role\":", c->index);
    json_write_text(out, g->request->role);
    str_adds(out, ",\"content\":");
    if (content.len || !c->output.parses || (c->output.must_call && p->n_calls))
        json_write_string(out, str_text(&content), content.len);
    else
        str_adds(out, "null"); /* all of it was thought, or calls */
    str_free(&content);
    str_adds(out,
             ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":");
    if (p->reasoning.len && !g->request->hide_reasoning)
        json_write_string(out, p->reasoning.data, p->reasoning.len);
    else
        str_adds(out, "null");
    if (p->n_calls) {
        str_addc(out, ',');
        write_calls(p, false, out);
    }
    str_adds(out, "},\"logprobs\":");
    write_logprobs(g, c, first, n, out);
    str_addc(out, ',');
    answer_write_finish(c, out);
    str_adds(out, ",\"token_ids\":");
    if (g->request->return_token_ids)
        json_write_ids(out, sluice_request_tokens(c->request) + first, n);
    else
        str_adds(out, "null");
    str_addc(out, '}');
}

static void chat_body(struct generation *g, struct str *out)
{
    str_adds(out, "{\"id\":");
    json_write_text(out, g->request->id);
    str_addf(out,
             ",\"object\":\"chat.completion\",\"created\":%lld,\"model\":", (long long)g->request->created);
    json_write_text(out, g->model->names[0]);
    str_adds(out, ",\"choices\":[");
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            str_addc(out, ',');
        write_choice(g, &g->choices[i], out);
    }
    str_adds(out, "],\"service_tier\":null,\"system_fingerprint\":");
    json_write_text(out, g->model->fingerprint);
    answer_write_usage(g, true, out);
    str_adds(out, ",\"prompt_logprobs\":");
    answer_write_prompt_logprobs(g, &g->choices[0], out);
    str_adds(out, ",\"prompt_token_ids\":");
    if (g->request->return_token_ids)
        json_write_ids(out, g->request->prompts[0].ids.ids, (int)g->request->prompts[0].ids.n);
    else
        str_adds(out, "null");
    answer_write_metrics(g, true, out);
    str_addc(out, '}');
}

const struct answer_writer chat_writer = {
    .path = "/v1/chat/completions",
    .open = chat_open,
    .event = chat_event,
    .end = chat_end,
    .body = chat_body,
};
