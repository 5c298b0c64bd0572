#include "api/generation.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Queues the n answers to one prompt, whose choices begin at c. */
static int submit(const struct generation *g, struct choice *c, struct api_error *e)
{
    const struct request_sampling *s = &g->request->sampling;
    const struct prompt *prompt = c->prompt;
    struct sluice_sampling p = s->p;
    int n = g->request->n, left = g->model->max_model_len - (int)prompt->ids.n;
    p.max_tokens = s->max_tokens >= 0 && s->max_tokens < left ? (int)s->max_tokens : left;
    p.borders = prompt->borders;
    p.n_borders = prompt->n_borders;
    struct err why = {0};
    struct sluice_request **made = mem_alloc((size_t)n * sizeof *made);
    int rc = sluice_submit_group(g->model->engine, prompt->ids.ids, (int)prompt->ids.n, &p, n, made, &why);
    for (int i = 0; rc == 0 && i < n; i++) {
        c[i].request = made[i];
        c[i].max_tokens = p.max_tokens;
    }
    free(made);
    if (rc)
        api_from_err(e, NULL, &why);
    return rc;
}

struct generation *generation_start(const struct api_model *m, struct api_request *r, double arrived,
                                    struct api_error *e)
{
    struct generation *g = mem_zalloc(1, sizeof *g);
    g->model = m;
    g->request = r;
    g->writer = r->writer ? r->writer : r->kind == API_CHAT ? &chat_writer : &completion_writer;
    g->arrived = arrived;
    g->n_choices = r->n_prompts * r->n;
    g->choices = mem_zalloc((size_t)g->n_choices, sizeof *g->choices);
    const struct request_sampling *s = &r->sampling;
    for (int i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        c->index = i;
        c->prompt = &r->prompts[i / r->n];
        c->stop_token = -1;
        output_init(&c->output, m->tokenizer, s->skip_special, s->stops, s->n_stops, s->include_stop,
                    s->p.min_tokens, &r->parsing);
        repetition_init(&c->repetition, &s->repetition);
    }
    for (int i = 0; i < g->n_choices; i += r->n) {
        if (submit(g, &g->choices[i], e)) {
            generation_free(g);
            return NULL;
        }
        g->n_open += r->n;
    }
    return g;
}

void generation_cancel(struct generation *g)
{
    for (int i = 0; i < g->n_choices; i++)
        if (g->choices[i].request)
            sluice_cancel(g->choices[i].request);
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        if (c->request)
            sluice_request_free(c->request);
        output_free(&c->output);
        parts_free(&c->parts);
        repetition_free(&c->repetition);
    }
    free(g->choices);
    api_request_free(g->request);
    free(g);
}

struct usage generation_usage(const struct generation *g)
{
    struct usage u = {0};
    for (int i = 0; i < g->request->n_prompts; i++)
        u.prompt += (int64_t)g->request->prompts[i].ids.n;
    for (int i = 0; i < g->n_choices; i++) {
        u.completion += g->choices[i].n_tokens;
        u.reasoning += g->choices[i].output.n_reasoning;
        if (i % g->request->n == 0)
            u.cached += g->choices[i].progress.cached_tokens;
    }
    return u;
}

/* Tells the observer about tokens that appeared since `before`. Tokens published together share the time. */
static void observe(const struct generation *g, const struct choice *c, const struct sluice_progress *before,
                    const struct generation_observer *o)
{
    int fresh = c->progress.n_tokens - before->n_tokens;
    if (fresh <= 0)
        return;
    double since = before->last_token;
    if (before->n_tokens == 0) {
        o->first_token(o->arg, c->progress.first_token - g->arrived);
        since = c->progress.first_token;
        fresh--;
    }
    if (fresh > 0)
        o->gap(o->arg, (c->progress.last_token - since) / fresh, fresh);
}

/* Does the token end answers? The last one of a constrained answer may be text as well. */
static bool is_stop_token(const struct generation *g, int32_t id)
{
    const struct sluice_sampling *p = &g->request->sampling.p;
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

/* The engine ended the answer: finish_reason and stop_reason. `last` is the last token, if there is one. */
static void finish_as(struct generation *g, struct choice *c, int32_t last)
{
    const struct request_sampling *s = &g->request->sampling;
    switch (c->progress.finish) {
    case SLUICE_STOP:
        c->finish = "stop";
        if (is_stop_token(g, last) &&
            (s->ignore_eos || g->model->n_stop_ids == 0 || last != g->model->stop_ids[0]))
            c->stop_token = last;
        break;
    case SLUICE_LENGTH:
        c->finish = "length";
        break;
    case SLUICE_ERROR: {
        const char *why = sluice_request_error(c->request);
        c->finish = "error";
        api_fail(&g->error, 500, "InternalServerError", NULL, "%s", why ? why : "the engine failed");
        break;
    }
    case SLUICE_ABORTED:
    case SLUICE_RUNNING:
        c->finish = "abort";
        break;
    }
}

/* The engine ended the answer: what the pipeline holds back comes out. */
static void finish_output(struct generation *g, struct choice *c)
{
    bool stopped = c->progress.finish == SLUICE_STOP;
    output_finish(&c->output, stopped ? TEXT_STOPPED : TEXT_CUT, &c->parts);
    if (!g->request->stream)
        tool_calls_keep_complete(&c->output.calls, &c->parts);
}

/* Is it time for an event? The first token and the last do not wait for others. Where parsers read the
 * answer, tokens that leave nothing to show yet do. */
static bool is_due(const struct generation *g, const struct choice *c)
{
    if (c->finish)
        return true;
    if (c->output.parses && parts_empty(&c->parts))
        return false;
    return c->n_sent == 0 || c->n_tokens - c->n_sent >= g->request->stream_interval;
}

/* Writes what is new. */
static void emit(struct generation *g, struct choice *c, struct str *out)
{
    if (!g->request->stream || g->error.status)
        return;
    if (g->request->hide_reasoning)
        str_clear(&c->parts.reasoning);
    if (!c->opened && g->writer->open)
        g->writer->open(g, c, out);
    if (is_due(g, c)) {
        const struct delta d = {&c->parts, c->n_sent, c->n_tokens - c->n_sent};
        g->writer->event(g, c, &d, out);
        c->n_sent = c->n_tokens;
        parts_clear(&c->parts);
    }
    c->opened = true;
}

/* One token through the pipeline: one event. `is_last`: the engine ended the answer with it. */
static void take_token(struct generation *g, struct choice *c, int32_t id, bool is_last, struct str *out)
{
    bool stops = is_last && c->progress.finish == SLUICE_STOP && is_stop_token(g, id);
    int hit = -1;
    if (stops && !c->output.include_stop)
        output_skip(&c->output);
    else
        hit = output_add(&c->output, id, &c->parts);
    c->n_tokens++;
    if (hit >= 0) {
        c->finish = "stop";
        c->stop = &c->output.stops[hit];
        sluice_cancel(c->request);
    } else if (is_last) {
        finish_output(g, c);
        finish_as(g, c, id);
    } else if (repetition_add(&c->repetition, sluice_request_tokens(c->request), c->n_tokens)) {
        finish_output(g, c);
        c->finish = "repetition";
        sluice_cancel(c->request);
    }
    emit(g, c, out);
}

/* The engine publishes a token a moment before it says that it was the last. A token that ends the answer is
 * left alone until it has: only then is it known how to show it. */
static bool awaits_verdict(const struct generation *g, const struct choice *c, int32_t id)
{
    if (c->progress.finish != SLUICE_RUNNING)
        return false;
    return c->n_tokens + 1 >= c->max_tokens || is_stop_token(g, id);
}

static void advance_choice(struct generation *g, struct choice *c, const struct generation_observer *o,
                           struct str *out)
{
    struct sluice_progress before = c->progress;
    sluice_request_progress(c->request, &c->progress);
    if (o)
        observe(g, c, &before, o);
    const int32_t *ids = sluice_request_tokens(c->request);
    while (!c->finish && c->n_tokens < c->progress.n_tokens && !awaits_verdict(g, c, ids[c->n_tokens])) {
        bool is_last = c->progress.finish != SLUICE_RUNNING && c->n_tokens + 1 == c->progress.n_tokens;
        take_token(g, c, ids[c->n_tokens], is_last, out);
    }
    if (!c->finish && c->progress.finish != SLUICE_RUNNING) { /* it ended without another token */
        finish_output(g, c);
        finish_as(g, c, -1);
        emit(g, c, out);
    }
    if (c->finish)
        g->n_open--;
}

bool generation_advance(struct generation *g, const struct generation_observer *o, struct str *out)
{
    for (int i = 0; i < g->n_choices && !g->error.status; i++)
        if (!g->choices[i].finish)
            advance_choice(g, &g->choices[i], o, out);
    if (g->error.status) {
        generation_cancel(g);
        if (g->request->stream)
            g->writer->end(g, out);
        return true;
    }
    if (g->n_open > 0)
        return false;
    if (g->request->stream)
        g->writer->end(g, out);
    else
        g->writer->body(g, out);
    return true;
}
