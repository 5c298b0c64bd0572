/* Chat and completion bodies -> struct api_request. Fields nobody knows are ignored, as clients of this
 * protocol expect; fields with a meaning that this server cannot serve are refused (sampling.c). */
#include "api/request.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/fields.h"
#include "api/grammar_cache.h"
#include "api/structured.h"
#include "base/mem.h"

/* stream, stream_options and the flags that shape the response. */
static int read_delivery(struct api_request *r, const struct api_model *m, const json_t *body,
                         struct api_error *e)
{
    const json_t *options;
    int64_t interval = 1;
    r->tokens_as_ids = m->tokens_as_ids;
    if (field_bool(body, "stream", &r->stream, e) < 0 ||
        field_int(body, "stream_interval", &interval, e) < 0 ||
        field_bool(body, "return_token_ids", &r->return_token_ids, e) < 0 ||
        field_bool(body, "return_tokens_as_token_ids", &r->tokens_as_ids, e) < 0)
        return -1;
    if (interval < 1 || interval > INT32_MAX)
        return api_bad_value(e, "stream_interval", json_object_get(body, "stream_interval"),
                             "stream_interval must be at least 1");
    r->stream_interval = interval > m->stream_interval ? (int)interval : m->stream_interval;
    r->include_usage = r->continuous_usage = m->force_usage;
    int set = field_object(body, "stream_options", &options, e);
    if (set <= 0)
        return set;
    if (!r->stream)
        return api_bad_value(e, "stream_options", options, "stream_options needs stream: true");
    bool continuous = false;
    if (field_bool(options, "include_usage", &r->include_usage, e) < 0 ||
        field_bool(options, "continuous_usage_stats", &continuous, e) < 0)
        return -1;
    r->include_usage |= m->force_usage;
    r->continuous_usage = (continuous && r->include_usage) || m->force_usage;
    return 0;
}

/* A request id goes into the response and the log: only short printable ones are taken. */
static bool usable_id(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > 128)
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] > '~')
            return false;
    return true;
}

static int read_id(struct api_request *r, const json_t *body, const char *request_id, bool id_is_header,
                   struct api_error *e)
{
    const json_t *given;
    int set = field_string(body, "request_id", &given, e);
    if (set < 0)
        return -1;
    if (set && !id_is_header && usable_id(json_string_value(given)))
        request_id = json_string_value(given);
    struct str id = {0};
    str_addf(&id, "%s-%s", r->kind == API_CHAT ? "chatcmpl" : "cmpl", request_id);
    r->id = str_take(&id);
    return 0;
}

static int read_n(struct api_request *r, const struct api_model *m, const json_t *body, struct api_error *e)
{
    int64_t n = 1;
    if (field_int(body, "n", &n, e) < 0)
        return -1;
    if (n < 1 || n > m->limits.max_choices)
        return api_bad_value(e, "n", json_object_get(body, "n"), "n must be 1 to %d", m->limits.max_choices);
    r->n = (int)n;
    return 0;
}

static int read_prompt_logprobs(struct api_request *r, const struct api_model *m, const json_t *body,
                                struct api_error *e)
{
    int64_t k = -1;
    int set = field_int(body, "prompt_logprobs", &k, e);
    if (set < 0)
        return -1;
    r->prompt_logprobs = -1;
    if (!set)
        return 0;
    const json_t *v = json_object_get(body, "prompt_logprobs");
    if (k < 0 || k > m->limits.max_logprobs)
        return api_bad_value(e, "prompt_logprobs", v, "prompt_logprobs must be 0 to %d (--max-logprobs)",
                             m->limits.max_logprobs);
    if (r->stream)
        return api_bad_value(e, "prompt_logprobs", v, "prompt_logprobs cannot be streamed: leave out stream");
    r->prompt_logprobs = (int)k;
    return 0;
}

/* A prompt of ids, copied and checked. */
static int prompt_from_ids(struct prompt *p, const struct api_model *m, const json_t *list, bool show,
                           struct api_error *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id;
        if (!json_is_number(v) || !value_int(v, &id))
            return api_bad_type(e, "prompt", v,
                                "a string, a list of strings, a list of token ids or a list of those");
        if (id < 0 || id >= m->vocab)
            return api_bad_value(e, "prompt", v, "token id out of the vocabulary, which is 0 to %d",
                                 m->vocab - 1);
        token_list_add(&p->ids, (int32_t)id);
    }
    if (p->ids.n == 0)
        return api_bad_value(e, "prompt", list, "the prompt must not be empty");
    if (show)
        tokenizer_decode(m->tokenizer, p->ids.ids, p->ids.n, true, &p->text);
    return 0;
}

static int prompt_from_text(struct prompt *p, const struct api_model *m, const json_t *text, bool add_special,
                            bool limit, bool show, struct api_error *e)
{
    if (json_string_length(text) == 0)
        return api_bad_value(e, "prompt", text, "the prompt must not be empty");
    if (show)
        str_add(&p->text, json_string_value(text), json_string_length(text));
    return prompt_encode_text(m, json_string_value(text), json_string_length(text), add_special, limit,
                              &p->ids, e);
}

/* The four shapes of a completion's prompt: "text", ["text", …], [id, …], [[id, …], …]. */
static int read_completion_prompts(struct api_request *r, const struct api_model *m, const json_t *body,
                                   struct api_error *e)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (!prompt)
        return api_missing(e, "prompt");
    bool add_special = true;
    if (field_bool(body, "add_special_tokens", &add_special, e) < 0)
        return -1;
    bool one = json_is_string(prompt) || json_is_number(json_array_get(prompt, 0));
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return json_is_null(prompt)
                   ? api_bad_value(e, "prompt", prompt, "the prompt must not be null")
                   : api_bad_type(e, "prompt", prompt,
                                  "a string, a list of strings, a list of token ids or a list of those");
    size_t n = one ? 1 : json_array_size(prompt);
    if (n == 0)
        return api_bad_value(e, "prompt", prompt, "the prompt must not be empty");
    if (n > (size_t)m->limits.max_prompts)
        return api_fail(e, 400, "BadRequestError", "prompt",
                        "a request may hold at most %d prompts, this one holds %zu", m->limits.max_prompts,
                        n);
    r->prompts = mem_zalloc(n, sizeof *r->prompts);
    r->n_prompts = (int)n;
    const json_t *truncate = json_object_get(body, "truncate_prompt_tokens");
    bool limit = !truncate || json_is_null(truncate);
    bool scored_only = r->sampling.max_tokens == 0;
    const json_t *first = one ? prompt : json_array_get(prompt, 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = one ? prompt : json_array_get(prompt, i);
        struct prompt *p = &r->prompts[i];
        if (json_typeof(v) != json_typeof(first) || (!json_is_string(v) && !json_is_array(v)))
            return api_bad_type(e, "prompt", v,
                                "a string, a list of strings, a list of token ids or a list of those");
        if (json_is_string(v) ? prompt_from_text(p, m, v, add_special, limit, r->echo, e)
                              : prompt_from_ids(p, m, v, r->echo, e))
            return -1;
        if (prompt_fit(m, body, scored_only, &p->ids, e))
            return -1;
    }
    return 0;
}

/* The grammar of the answer, if its form is asked for. */
static int read_form(struct api_request *r, const struct api_model *m, const struct structured_context *c,
                     const json_t *body, struct api_error *e)
{
    if (structured_read(m, c, body, &r->grammar, e))
        return -1;
    r->sampling.p.grammar = r->grammar;
    r->parsing.constrained = r->grammar != NULL;
    return 0;
}

static int read_completion(struct api_request *r, const struct api_model *m, const json_t *body,
                           struct api_error *e)
{
    const json_t *suffix, *embeds = json_object_get(body, "prompt_embeds");
    int set = field_string(body, "suffix", &suffix, e);
    if (set < 0 || field_bool(body, "echo", &r->echo, e) < 0)
        return -1;
    if (set)
        return api_bad_value(e, "suffix", suffix, "suffix is not supported by this model");
    if (embeds && !json_is_null(embeds))
        return api_fail(e, 400, "BadRequestError", "prompt_embeds",
                        "prompt_embeds is not supported by this server");
    int64_t budget = -1;
    if (field_int(body, "thinking_token_budget", &budget, e) < 0)
        return -1;
    if (budget != -1)
        return api_bad_value(e, "thinking_token_budget", json_object_get(body, "thinking_token_budget"),
                             "thinking_token_budget is for chats: a completion is not read for thoughts");
    const struct structured_context plain = {.start = THOUGHT_NONE};
    return read_form(r, m, &plain, body, e) || read_completion_prompts(r, m, body, e) ? -1 : 0;
}

/* A message ends behind a token that ends a turn, and only the template writes such tokens. */
static void find_borders(struct prompt *p, const struct api_model *m)
{
    p->borders = mem_alloc((p->ids.n + 1) * sizeof *p->borders);
    for (size_t i = 0; i < p->ids.n; i++)
        for (int k = 0; k < m->n_stop_ids; k++)
            if (p->ids.ids[i] == m->stop_ids[k]) {
                p->borders[p->n_borders++] = (int)i + 1;
                break;
            }
}

static bool is_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

/* thinking_token_budget: what is written when the thought has had so many tokens. */
static int read_thinking_budget(struct api_request *r, const struct api_model *m, const json_t *body,
                                struct api_error *e)
{
    static const char end[] = "\n</think>\n\n";
    bool by_default = m->limits_thoughts && m->reasoning != REASONING_NONE;
    int64_t budget = by_default ? m->thinking_budget : -1;
    if (field_int(body, "thinking_token_budget", &budget, e) < 0)
        return -1;
    if (budget == -1)
        return 0;
    const json_t *v = json_object_get(body, "thinking_token_budget");
    if (budget < 0 || budget > INT32_MAX)
        return api_bad_value(e, "thinking_token_budget", v,
                             "thinking_token_budget must be -1 (no limit) or at least 0");
    if (m->reasoning == REASONING_NONE)
        return api_bad_value(
            e, "thinking_token_budget", v,
            "thinking_token_budget needs a reasoning parser, and this model's template shows "
            "no thoughts: restart the server with --reasoning-parser");
    if (r->parsing.start == THOUGHT_NONE)
        return 0;
    struct err why = {0};
    struct sluice_sampling *p = &r->sampling.p;
    p->texts = grammar_cache_vocab(m->grammars, &why);
    if (!p->texts ||
        tokenizer_encode(m->tokenizer, end, strlen(end), NULL, TOKENIZER_PARSE_SPECIAL, 0, &r->end_ids, &why))
        return api_from_err(e, "thinking_token_budget", &why);
    p->thinking_end = r->end_ids.ids;
    p->n_thinking_end = (int)r->end_ids.n;
    p->thinking_budget = (int)budget;
    p->thinking_open = r->parsing.start == THOUGHT_OPEN;
    return 0;
}

/* Which parsers read the answer, and what form it must have. Takes the tools over. */
static int set_parsing(struct api_request *r, const struct api_model *m, struct chat_prompt *chat,
                       const json_t *body, struct api_error *e)
{
    bool parallel = true, include_reasoning = true;
    if (field_bool(body, "parallel_tool_calls", &parallel, e) < 0 ||
        field_bool(body, "include_reasoning", &include_reasoning, e) < 0)
        return -1;
    r->hide_reasoning = !include_reasoning;
    r->parsing = (struct output_parsing){
        .reasoning = m->reasoning != REASONING_NONE, .start = chat->start, .only_first_call = !parallel};
    const char *strictness = m->tool_strictness ? m->tool_strictness : "off";
    struct structured_context c = {.start = chat->start,
                                   .one_call = !parallel,
                                   .strictness = (strcmp(strictness, "off") != 0) +
                                                 (strcmp(strictness, "parameter") == 0)};
    if (read_thinking_budget(r, m, body, e) || tool_choice_read(body, &c.choice, &c.name, e))
        return -1;
    if (!chat->tools || c.choice == TOOL_NONE)
        return read_form(r, m, &c, body, e);
    if (c.choice == TOOL_NAMED && !is_tool(chat->tools, c.name))
        return api_bad_value(e, "tool_choice", json_object_get(body, "tool_choice"),
                             "tool_choice names the tool \"%.100s\", which is not among tools", c.name);
    if (c.choice != TOOL_AUTO && m->tool_format == TOOLS_NONE)
        return api_bad_value(
            e, "tool_choice", json_object_get(body, "tool_choice"),
            "a tool_choice that makes the model call needs a --tool-call-parser, and this model's "
            "template shows no format of calls that is known");
    if (c.choice == TOOL_AUTO && (m->no_auto_tool_choice || m->tool_format == TOOLS_NONE))
        return api_fail(
            e, 400, "BadRequestError", "tool_choice",
            "tool_choice \"auto\" needs --enable-auto-tool-choice and a --tool-call-parser, and %s: "
            "restart the server with them, or send tool_choice \"none\"",
            m->no_auto_tool_choice ? "the former is switched off"
                                   : "this model's template shows no format of calls that is known");
    r->tools = chat->tools;
    chat->tools = NULL;
    r->parsing.format = c.format = m->tool_format;
    r->parsing.tools = c.tools = r->tools;
    r->parsing.must_call = c.choice != TOOL_AUTO;
    r->parsing.named_call = c.choice == TOOL_NAMED;
    return read_form(r, m, &c, body, e);
}

static int read_chat(struct api_request *r, const struct api_model *m, const json_t *body,
                     struct api_error *e)
{
    bool echo = false, continues = false, opens = true;
    if (field_bool(body, "echo", &echo, e) < 0 ||
        field_bool(body, "continue_final_message", &continues, e) < 0 ||
        field_bool(body, "add_generation_prompt", &opens, e) < 0)
        return -1;
    const json_t *truncate = json_object_get(body, "truncate_prompt_tokens");
    r->prompts = mem_zalloc(1, sizeof *r->prompts);
    r->n_prompts = 1;
    struct chat_prompt chat = {0};
    int failed =
        prompt_render_chat(m, body, !truncate || json_is_null(truncate), &r->prompts[0].ids, &chat, e) ||
        prompt_fit(m, body, false, &r->prompts[0].ids, e) || set_parsing(r, m, &chat, body, e);
    chat_prompt_free(&chat);
    if (failed)
        return -1;
    find_borders(&r->prompts[0], m);
    /* an answer that does not open a turn has the role of the last message */
    const json_t *messages = json_object_get(body, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *own = m->response_role ? m->response_role : "assistant";
    const char *last_role = json_string_value(json_object_get(last, "role"));
    r->role = mem_strdup((continues || !opens) && last_role ? last_role : own);
    const json_t *text = prompt_last_text(messages);
    if (echo && text && last_role && strcmp(last_role, r->role) == 0)
        str_add(&r->echo_text, json_string_value(text), json_string_length(text));
    return 0;
}

/* The answers of one request are kept until it is done: refuses what would pass the bound. */
int request_check_size(const struct api_request *r, const struct api_model *m, struct api_error *e)
{
    if ((int64_t)r->n * r->n_prompts > m->limits.max_choices)
        return api_fail(e, 400, "BadRequestError", "n",
                        "a request may have at most %d answers (prompts times n), this one asks for %lld",
                        m->limits.max_choices, (long long)r->n * r->n_prompts);
    const struct sluice_sampling *p = &r->sampling.p;
    double bytes = 0;
    for (int i = 0; i < r->n_prompts; i++) {
        double prompt = (double)r->prompts[i].ids.n, left = m->max_model_len - prompt;
        double asked = r->sampling.max_tokens >= 0 ? (double)r->sampling.max_tokens : left;
        if (asked > left)
            asked = left;
        /* ids, what the penalties count, log-probabilities, and each sampler's own copies */
        bytes +=
            r->n * ((prompt + asked) * 24 + asked * (p->n_logprobs + 1.0) * sizeof(struct sluice_prob) +
                    prompt * (p->n_prompt_logprobs + 1.0) * sizeof(struct sluice_prob) +
                    (p->n_allowed_ids ? m->vocab : 0) + (p->grammar ? (double)grammar_matcher_bytes() : 0) +
                    8.0 * p->n_logit_bias + 4.0 * r->sampling.repetition.max_size + 2048);
    }
    if (bytes > (double)m->limits.max_answer)
        return api_fail(
            e, 400, "BadRequestError", "n",
            "the answers could need %.0f MB, more than the %.0f MB that one request may use: lower n, "
            "max_tokens or the number of log-probabilities",
            bytes / 1e6, (double)m->limits.max_answer / 1e6);
    return 0;
}

struct api_request *api_request_read(const struct api_model *m, enum api_kind kind, const json_t *body,
                                     const char *request_id, bool id_is_header, struct api_error *e)
{
    struct api_request *r = mem_zalloc(1, sizeof *r);
    r->kind = kind;
    r->created = (int64_t)time(NULL);
    if (api_model_check_name(m, body, e) || read_delivery(r, m, body, e) ||
        read_id(r, body, request_id, id_is_header, e) || read_n(r, m, body, e) ||
        read_prompt_logprobs(r, m, body, e) || request_sampling_read(&r->sampling, m, kind, r->n, body, e))
        goto fail;
    if (kind == API_CHAT ? read_chat(r, m, body, e) : read_completion(r, m, body, e))
        goto fail;
    /* echo with logprobs scores the prompt as well */
    struct sluice_sampling *p = &r->sampling.p;
    p->n_prompt_logprobs = r->prompt_logprobs;
    if (kind == API_COMPLETION && r->echo && p->n_logprobs > p->n_prompt_logprobs)
        p->n_prompt_logprobs = p->n_logprobs;
    if (request_check_size(r, m, e))
        goto fail;
    return r;
fail:
    api_request_free(r);
    return NULL;
}

void api_request_free(struct api_request *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_prompts; i++) {
        token_list_free(&r->prompts[i].ids);
        str_free(&r->prompts[i].text);
        free(r->prompts[i].borders);
    }
    free(r->prompts);
    str_free(&r->echo_text);
    json_decref(r->tools);
    grammar_unref(r->grammar);
    token_list_free(&r->end_ids);
    request_sampling_free(&r->sampling);
    free(r->role);
    if (r->told_free)
        r->told_free(r->told);
    free(r->id);
    free(r);
}
