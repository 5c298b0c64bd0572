#include "cli/session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/str.h"
#include "chat/messages.h"

void session_open(struct session *s, struct sluice *engine, const struct tokenizer *t,
                  const struct chat_template *template, const struct sluice_sampling *sampling)
{
    *s = (struct session){.engine = engine,
                          .tokenizer = t,
                          .template = template,
                          .sampling = *sampling,
                          .messages = json_array()};
    s->sampling.n_stop_ids = tokenizer_stop_ids(t, s->stop_ids, SESSION_MAX_STOP_IDS);
    s->sampling.stop_ids = s->stop_ids;
}

void session_close(struct session *s)
{
    json_decref(s->messages);
    s->messages = NULL;
}

static void add_message(struct session *s, const char *role, const char *text, size_t len)
{
    /* Any bytes: chat_messages_prepare makes them text. */
    json_array_append_new(s->messages,
                          json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(text, len)));
}

void session_reset(struct session *s, const char *text)
{
    json_array_clear(s->messages);
    if (text)
        add_message(s, "system", text, strlen(text));
}

static void set_token(const struct session *s, json_t *context, const char *key, int32_t id)
{
    if (id < 0)
        return;
    size_t len;
    const char *name = tokenizer_name(s->tokenizer, id, &len);
    json_object_set_new(context, key, json_stringn(name, len));
}

/* The prompt of the messages as they stand. */
static int encode(const struct session *s, struct token_list *out, struct err *e)
{
    if (!s->template) {
        json_t *last = json_array_get(s->messages, json_array_size(s->messages) - 1);
        const json_t *content = json_object_get(last, "content");
        return tokenizer_encode(s->tokenizer, json_string_value(content), json_string_length(content), NULL,
                                TOKENIZER_ADD_SPECIAL, 0, out, e);
    }
    json_t *messages = chat_messages_prepare(s->messages, chat_template_caps(s->template), e);
    if (!messages)
        return -1;
    json_t *context = json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", 1);
    set_token(s, context, "bos_token", tokenizer_bos(s->tokenizer));
    set_token(s, context, "eos_token", tokenizer_eos(s->tokenizer));
    struct chat_text prompt;
    int rc = chat_template_render(s->template, context, time(NULL), &prompt, e);
    json_decref(context);
    if (rc)
        return rc;
    rc = tokenizer_encode(s->tokenizer, prompt.text, prompt.len, prompt.literal, TOKENIZER_PARSE_SPECIAL, 0,
                          out, e);
    chat_text_free(&prompt);
    return rc;
}

/* Encodes, dropping the oldest exchange (never a system message or the newest message) until prompt and
 * answer fit the context. */
static int encode_to_fit(struct session *s, struct token_list *out, int *forgotten, struct err *e)
{
    int room = sluice_plan(s->engine)->max_model_len;
    *forgotten = 0;
    for (;;) {
        out->n = 0;
        if (encode(s, out, e))
            return -1;
        if (out->n < (size_t)room)
            return 0;
        size_t first = 0, n = json_array_size(s->messages);
        const char *role = json_string_value(json_object_get(json_array_get(s->messages, 0), "role"));
        if (role && strcmp(role, "system") == 0)
            first = 1;
        if (n < first + 3)
            return err_set(e, ERR_LIMIT,
                           "the prompt has %zu tokens and the context holds %d: shorten it, or raise --ctx",
                           out->n, room);
        json_array_remove(s->messages, first);
        json_array_remove(s->messages, first);
        *forgotten += 2;
    }
}

static double moved_bytes(struct sluice *engine)
{
    struct sluice_stats stats;
    sluice_stats(engine, &stats);
    return sluice_ledger_bytes(&stats.total);
}

/* Steps until the request ends; text goes out as whole characters. */
static void run_request(struct session *s, struct sluice_request *r, struct str *answer,
                        void (*emit)(void *arg, const char *text, size_t len), void *arg,
                        struct session_answer *out)
{
    struct detokenizer d;
    detokenizer_init(&d, s->tokenizer, true);
    struct sluice_progress p;
    int done = 0;
    double bytes_at_first = 0;
    do {
        sluice_step(s->engine);
        sluice_request_progress(r, &p);
        if (p.n_tokens > 0 && done == 0)
            bytes_at_first = moved_bytes(s->engine);
        size_t before = answer->len;
        const int32_t *tokens = sluice_request_tokens(r);
        for (; done < p.n_tokens; done++)
            detokenizer_add(&d, tokens[done], answer);
        if (p.finish != SLUICE_RUNNING)
            detokenizer_flush(&d, answer);
        if (answer->len > before)
            emit(arg, answer->data + before, answer->len - before);
        if (s->interrupted && *s->interrupted)
            sluice_cancel(r);
    } while (p.finish == SLUICE_RUNNING);
    out->tokens = p.n_tokens;
    out->cached_tokens = p.cached_tokens;
    out->finish = p.finish;
    if (p.n_tokens > 0) {
        out->first_seconds = p.first_token - p.arrived;
        out->decode_seconds = p.last_token - p.first_token;
        out->decode_bytes = moved_bytes(s->engine) - bytes_at_first;
    }
}

int session_ask(struct session *s, const char *text, size_t len,
                void (*emit)(void *arg, const char *text, size_t len), void *arg, struct session_answer *out,
                struct err *e)
{
    *out = (struct session_answer){0};
    struct token_list prompt = {0};
    struct sluice_request *r = NULL;
    struct str answer = {0};
    json_t *before = json_copy(s->messages); /* the messages themselves are never changed: shallow will do */
    int rc = -1;

    add_message(s, "user", text, len);
    if (encode_to_fit(s, &prompt, &out->forgotten, e))
        goto done;
    out->prompt_tokens = (int)prompt.n;
    r = sluice_submit(s->engine, prompt.ids, (int)prompt.n, &s->sampling, e);
    if (!r)
        goto done;
    run_request(s, r, &answer, emit, arg, out);
    if (out->finish == SLUICE_ERROR) {
        err_set(e, ERR_INVALID, "the engine failed: %s", sluice_request_error(r));
        goto done;
    }
    add_message(s, "assistant", str_text(&answer), answer.len);
    rc = 0;
done:
    if (rc) {
        json_t *failed = s->messages;
        s->messages = before;
        before = failed;
    }
    json_decref(before);
    if (r)
        sluice_request_free(r);
    token_list_free(&prompt);
    str_free(&answer);
    return rc;
}
