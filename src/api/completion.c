/* The answers of /v1/completions. */
#include <string.h>

#include "api/answer.h"
#include "api/json_write.h"

/* The four columns of a logprobs object, filled token by token. */
struct columns {
    struct str tokens, token_logprobs, top_logprobs, offsets, token;
    int n;
};

/* {"text": logprob, …}: the token itself first, then the likeliest. Two tokens may read alike (halves of
 * characters do): the first keeps the name. */
static void write_top(const struct generation *g, const struct sluice_prob *p, int k, struct str *out)
{
    struct str seen = {0}, text = {0};
    str_addc(out, '{');
    for (int j = 0; j <= k; j++) {
        answer_token_text(g, p[j].id, &text);
        bool again = false;
        for (int i = 0; i < j && !again; i++) {
            answer_token_text(g, p[i].id, &seen);
            again = seen.len == text.len && memcmp(str_text(&seen), str_text(&text), text.len) == 0;
        }
        if (again)
            continue;
        if (j)
            str_addc(out, ',');
        json_write_string(out, str_text(&text), text.len);
        str_addc(out, ':');
        json_write_float(out, p[j].logprob);
    }
    str_addc(out, '}');
    str_free(&seen);
    str_free(&text);
}

/* Adds a token; p is NULL for the first prompt token, which nothing predicts. */
static void add_token(const struct generation *g, struct choice *c, struct columns *t, int32_t id,
                      const struct sluice_prob *p)
{
    const char *comma = t->n++ ? "," : "";
    answer_token_text(g, id, &t->token);
    str_adds(&t->tokens, comma);
    json_write_string(&t->tokens, str_text(&t->token), t->token.len);
    str_adds(&t->token_logprobs, comma);
    str_adds(&t->top_logprobs, comma);
    if (p) {
        json_write_float(&t->token_logprobs, p[0].logprob);
        write_top(g, p, g->request->sampling.p.n_logprobs, &t->top_logprobs);
    } else {
        str_adds(&t->token_logprobs, "null");
        str_adds(&t->top_logprobs, "null");
    }
    str_addf(&t->offsets, "%s%zu", comma, c->offset);
    c->offset += answer_characters(str_text(&t->token), t->token.len);
}

/* The logprobs object of answer tokens first … first + n - 1, after the prompt's with `with_prompt`. */
static void write_logprobs(const struct generation *g, struct choice *c, int first, int n, bool with_prompt,
                           struct str *out)
{
    if (g->request->sampling.p.n_logprobs < 0) {
        str_adds(out, "null");
        return;
    }
    struct columns t = {0};
    for (int i = 0; with_prompt && i < c->progress.n_prompt_scored; i++)
        add_token(g, c, &t, c->prompt->ids.ids[i],
                  i ? sluice_request_prompt_logprobs(c->request, i, NULL) : NULL);
    for (int i = first; i < first + n; i++)
        add_token(g, c, &t, sluice_request_tokens(c->request)[i],
                  sluice_request_logprobs(c->request, i, NULL));
    str_addf(out, "{\"text_offset\":[%s],\"token_logprobs\":[%s],\"tokens\":[%s],\"top_logprobs\":[%s]}",
             str_text(&t.offsets), str_text(&t.token_logprobs), str_text(&t.tokens),
             str_text(&t.top_logprobs));
    str_free(&t.tokens);
    str_free(&t.token_logprobs);
    str_free(&t.top_logprobs);
    str_free(&t.offsets);
    str_free(&t.token);
}

static void write_head(const struct generation *g, struct str *out)
{
    str_adds(out, "{\"id\":");
    json_write_text(out, g->request->id);
    str_addf(out,
             ",\"object\":\"text_completion\",\"created\":%lld,\"model\":", (long long)g->request->created);
    json_write_text(out, g->model->names[0]);
    str_adds(out, ",\"choices\":[");
}

static void completion_event(struct generation *g, struct choice *c, const struct delta *d, struct str *out)
{
    bool echo = g->request->echo && !c->opened;
    struct str text = {0};
    if (echo)
        str_add(&text, str_text(&c->prompt->text), c->prompt->text.len);
    str_add(&text, str_text(&d->parts->content), d->parts->content.len);
    str_adds(out, "data: ");
    write_head(g, out);
    str_addf(out, "{\"index\":%d,\"text\":", c->index);
    json_write_string(out, str_text(&text), text.len);
    str_free(&text);
    str_adds(out, ",\"logprobs\":");
    write_logprobs(g, c, d->first, d->n, echo, out);
    str_addc(out, ',');
    answer_write_finish(c, out);
    if (g->request->return_token_ids) {
        str_adds(out, ",\"prompt_token_ids\":");
        if (c->opened)
            str_adds(out, "null");
        else
            json_write_ids(out, c->prompt->ids.ids, (int)c->prompt->ids.n);
        str_adds(out, ",\"token_ids\":");
        json_write_ids(out, sluice_request_tokens(c->request) + d->first, d->n);
    }
    str_adds(out, "}]");
    if (c->finish && !g->request->include_usage)
        answer_write_metrics(g, false, out);
    if (g->request->continuous_usage)
        answer_write_usage(g, false, out);
    str_adds(out, "}\n\n");
}

static void completion_end(struct generation *g, struct str *out)
{
    if (g->request->include_usage && !g->error.status) {
        str_adds(out, "data: ");
        write_head(g, out);
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
    struct str text = {0};
    if (g->request->echo)
        str_add(&text, str_text(&c->prompt->text), c->prompt->text.len);
    str_add(&text, str_text(&c->parts.content), c->parts.content.len);
    str_addf(out, "{\"index\":%d,\"text\":", c->index);
    json_write_string(out, str_text(&text), text.len);
    str_free(&text);
    str_adds(out, ",\"logprobs\":");
    write_logprobs(g, c, 0, c->n_tokens, g->request->echo, out);
    str_addc(out, ',');
    answer_write_finish(c, out);
    bool ids = g->request->return_token_ids;
    str_adds(out, ",\"token_ids\":");
    if (ids)
        json_write_ids(out, sluice_request_tokens(c->request), c->n_tokens);
    else
        str_adds(out, "null");
    str_adds(out, ",\"prompt_logprobs\":");
    answer_write_prompt_logprobs(g, c, out);
    str_adds(out, ",\"prompt_token_ids\":");
    if (ids)
        json_write_ids(out, c->prompt->ids.ids, (int)c->prompt->ids.n);
    else
        str_adds(out, "null");
    str_addc(out, '}');
}

static void completion_body(struct generation *g, struct str *out)
{
    write_head(g, out);
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            str_addc(out, ',');
        write_choice(g, &g->choices[i], out);
    }
    str_adds(out, "],\"service_tier\":null,\"system_fingerprint\":");
    json_write_text(out, g->model->fingerprint);
    answer_write_usage(g, true, out);
    answer_write_metrics(g, true, out);
    str_addc(out, '}');
}

const struct answer_writer completion_writer = {
    .path = "/v1/completions",
    .event = completion_event,
    .end = completion_end,
    .body = completion_body,
};
