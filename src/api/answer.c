#include "api/answer.h"

#include <string.h>
#include <sys/random.h>

#include "api/json_write.h"
#include "base/clock.h"

void answer_write_usage(const struct generation *g, bool with_nulls, struct str *out)
{
    struct usage u = generation_usage(g);
    str_addf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld,\"completion_tokens\":%lld",
             (long long)u.prompt, (long long)u.prompt + (long long)u.completion, (long long)u.completion);
    if (g->model->prompt_tokens_details)
        str_addf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)u.cached);
    else
        str_adds(out, with_nulls ? ",\"prompt_tokens_details\":null" : "");
    if (g->request->parsing.reasoning)
        str_addf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}", (long long)u.reasoning);
    str_addc(out, '}');
}

static void write_ms(const char *name, double from, double to, struct str *out)
{
    str_addf(out, "\"%s\":", name);
    if (from > 0 && to >= from)
        str_addf(out, "%.3f,", 1e3 * (to - from));
    else
        str_adds(out, "null,");
}

void answer_write_metrics(const struct generation *g, bool with_nulls, struct str *out)
{
    if (!g->model->request_metrics || g->n_choices != 1) {
        str_adds(out, with_nulls ? ",\"metrics\":null" : "");
        return;
    }
    const struct choice *c = &g->choices[0];
    const struct sluice_progress *p = &c->progress;
    str_adds(out, ",\"metrics\":{");
    write_ms("time_to_first_token_ms", p->scheduled, p->first_token, out);
    write_ms("generation_time_ms", p->first_token, p->last_token, out);
    write_ms("queue_time_ms", p->arrived, p->scheduled, out);
    double gaps = p->n_tokens > 1 ? p->last_token - p->first_token : 0;
    if (gaps > 0)
        str_addf(out, "\"mean_itl_ms\":%.3f,\"tokens_per_second\":%.3f", 1e3 * gaps / (p->n_tokens - 1),
                 (p->n_tokens - 1) / gaps);
    else
        str_adds(out, "\"mean_itl_ms\":null,\"tokens_per_second\":null");
    str_addf(out,
             ",\"sluice\":{\"prompt_tokens_computed\":%d,\"prompt_tokens_from_memory\":%d,"
             "\"prompt_tokens_from_disk\":%d,\"preemptions\":%d,\"steps\":%llu,\"weight_bytes\":%llu}}",
             (int)c->prompt->ids.n - p->cached_tokens, p->cached_tokens - p->disk_tokens, p->disk_tokens,
             p->preemptions, (unsigned long long)p->steps, (unsigned long long)p->weight_bytes);
}

void answer_write_finish(const struct choice *c, struct str *out)
{
    str_adds(out, "\"finish_reason\":");
    bool called =
        c->finish && strcmp(c->finish, "stop") == 0 && c->output.calls.n_calls > 0 && !c->output.named_call;
    json_write_text(out, called ? "tool_calls" : c->finish);
    str_adds(out, ",\"stop_reason\":");
    if (c->stop)
        json_write_string(out, c->stop->text, c->stop->len);
    else if (c->finish && strcmp(c->finish, "repetition") == 0)
        str_adds(out, "\"repetition_detected\"");
    else if (c->stop_token >= 0)
        str_addf(out, "%d", c->stop_token);
    else
        str_adds(out, "null");
}

void answer_write_end(const struct generation *g, struct str *out)
{
    if (g->error.status) {
        str_adds(out, "data: ");
        api_error_write(&g->error, out);
        str_adds(out, "\n\n");
    }
    str_adds(out, "data: [DONE]\n\n");
}

void answer_token_text(const struct generation *g, int32_t id, struct str *out)
{
    str_clear(out);
    if (g->request->tokens_as_ids) {
        str_addf(out, "token_id:%d", id);
        return;
    }
    size_t len;
    const char *bytes = tokenizer_bytes(g->model->tokenizer, id, &len);
    for (size_t i = 0; i < len;) { /* a token may be part of a character */
        unsigned cp;
        int n = utf8_decode(bytes + i, len - i, &cp);
        if (n > 0)
            str_add(out, bytes + i, (size_t)n);
        else
            str_add_utf8(out, 0xFFFD);
        i += n > 0 ? (size_t)n : 1;
    }
}

/* {"token","logprob","bytes"} without the closing brace */
static void write_prob(const struct generation *g, struct sluice_prob p, struct str *scratch, struct str *out)
{
    answer_token_text(g, p.id, scratch);
    str_adds(out, "{\"token\":");
    json_write_string(out, str_text(scratch), scratch->len);
    str_adds(out, ",\"logprob\":");
    json_write_float(out, p.logprob);
    size_t len;
    const char *bytes = tokenizer_bytes(g->model->tokenizer, p.id, &len);
    str_adds(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        str_addf(out, i ? ",%d" : "%d", (unsigned char)bytes[i]);
    str_addc(out, ']');
}

void answer_write_logprobs(const struct generation *g, const struct choice *c, int first, int n,
                           struct str *out)
{
    int k = g->request->sampling.p.n_logprobs;
    struct str scratch = {0};
    str_addc(out, '[');
    for (int i = first; k >= 0 && i < first + n; i++) {
        const struct sluice_prob *p = sluice_request_logprobs(c->request, i, NULL);
        if (i > first)
            str_addc(out, ',');
        write_prob(g, p[0], &scratch, out);
        str_adds(out, ",\"top_logprobs\":[");
        for (int j = 1; j <= k; j++) {
            if (j > 1)
                str_addc(out, ',');
            write_prob(g, p[j], &scratch, out);
            str_addc(out, '}');
        }
        str_adds(out, "]}");
    }
    str_addc(out, ']');
    str_free(&scratch);
}

uint64_t answer_new_id(void)
{
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        id = (uint64_t)(clock_now() * 1e9);
    return id;
}

static void write_prompt_entry(const struct generation *g, struct sluice_prob p, int rank,
                               struct str *scratch, struct str *out)
{
    str_addf(out, "\"%d\":{\"logprob\":", p.id);
    json_write_float(out, p.logprob);
    str_addf(out, ",\"rank\":%d,\"decoded_token\":", rank);
    answer_token_text(g, p.id, scratch);
    json_write_string(out, str_text(scratch), scratch->len);
    str_addc(out, '}');
}

void answer_write_prompt_logprobs(const struct generation *g, const struct choice *c, struct str *out)
{
    int k = g->request->prompt_logprobs;
    if (k < 0) {
        str_adds(out, "null");
        return;
    }
    struct str scratch = {0};
    str_adds(out, "[null");
    for (int i = 1; i < c->progress.n_prompt_scored; i++) {
        int rank = 0;
        const struct sluice_prob *p = sluice_request_prompt_logprobs(c->request, i, &rank);
        str_adds(out, ",{");
        write_prompt_entry(g, p[0], rank, &scratch, out);
        for (int j = 1; j <= k; j++) {
            if (p[j].id == p[0].id)
                continue;
            str_addc(out, ',');
            write_prompt_entry(g, p[j], j, &scratch, out);
        }
        str_addc(out, '}');
    }
    str_addc(out, ']');
    str_free(&scratch);
}

size_t answer_characters(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}
