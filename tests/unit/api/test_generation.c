/* Answers, step by step on a fake engine: the shape of chunks and bodies, that a stream adds up to the whole
 * answer, why an answer ends and how that is said, usage, log-probabilities. */
#include "api/fields.h"
#include "api/generation.h"
#include "served.h"

static struct served served;

static int set_up(void **state)
{
    (void)state;
    served_open(&served);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    served_close(&served);
    return 0;
}

static struct generation *start(enum api_kind kind, const char *text)
{
    struct api_error e = {0};
    json_t *body = fields_parse(text, strlen(text), 128, &e);
    struct api_request *r = body ? api_request_read(&served.model, kind, body, "id", false, &e) : NULL;
    json_decref(body);
    return served_start(&served, r, text, &e);
}

static char *finish(struct generation *g)
{
    return served_finish(&served, g, 1000);
}

static char *answer(enum api_kind kind, const char *body)
{
    struct generation *g = start(kind, body);
    char *text = finish(g);
    generation_free(g);
    return text;
}

static json_t *whole(enum api_kind kind, const char *body)
{
    return served_json(answer(kind, body));
}

/* The events of a stream as an array; checks the framing, and that [DONE] ends it. */
static json_t *stream(enum api_kind kind, const char *body)
{
    char *text = answer(kind, body);
    json_t *events = json_array();
    bool done = false;
    for (char *at = text; *at;) {
        char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_false(done);
        assert_memory_equal(at, "data: ", 6);
        *end = '\0';
        assert_null(strchr(at, '\n'));
        if (strcmp(at + 6, "[DONE]") == 0) {
            done = true;
        } else {
            json_t *event = json_loads(at + 6, 0, NULL);
            assert_non_null(event);
            json_array_append_new(events, event);
        }
        at = end + 2;
    }
    assert_true(done);
    free(text);
    return events;
}

/* Follows keys (strings) and indices ("#0") down a value. */
static json_t *at(json_t *v, const char *path)
{
    char copy[200];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *key = strtok(copy, "."); key && v; key = strtok(NULL, "."))
        v = key[0] == '#' ? json_array_get(v, (size_t)atoi(key + 1)) : json_object_get(v, key);
    return v;
}

static const char *text_at(json_t *v, const char *path)
{
    const char *s = json_string_value(at(v, path));
    if (!s)
        fail_msg("no string at %s in %s", path, json_dumps(v, 0));
    return s;
}

static long long int_at(json_t *v, const char *path)
{
    if (!json_is_integer(at(v, path)))
        fail_msg("no number at %s in %s", path, json_dumps(v, 0));
    return json_integer_value(at(v, path));
}

#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]"

/* Joins the deltas of choice `index`; counts its token events. */
static char *joined(json_t *events, int index, bool chat, int *n_events)
{
    struct str text = {0};
    *n_events = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *choice = at(json_array_get(events, i), "choices.#0");
        if (!choice || int_at(choice, "index") != index)
            continue;
        str_adds(&text, text_at(choice, chat ? "delta.content" : "text"));
        *n_events += at(choice, "delta.role") == NULL;
    }
    return str_take(&text);
}

static void test_chat_stream_equals_whole(void **state)
{
    (void)state;
    json_t *body = whole(API_CHAT, "{" CHAT ", \"max_tokens\": 12, \"seed\": 1}");
    json_t *events = stream(API_CHAT, "{" CHAT ", \"max_tokens\": 12, \"seed\": 1, \"stream\": true,"
                                      "\"stream_options\": {\"include_usage\": true}}");
    int n;
    char *text = joined(events, 0, true, &n);
    assert_string_equal(text, text_at(body, "choices.#0.message.content"));
    assert_true(strlen(text) > 10);
    free(text);
    assert_int_equal(n, 12); /* one event a token */
    size_t last = json_array_size(events) - 1;
    assert_int_equal(last, 13); /* the role, twelve tokens, usage */
    assert_string_equal(text_at(json_array_get(events, 0), "choices.#0.delta.role"), "assistant");
    assert_string_equal(text_at(json_array_get(events, 0), "choices.#0.delta.content"), "");
    for (size_t i = 0; i <= last; i++) {
        json_t *event = json_array_get(events, i);
        assert_string_equal(text_at(event, "id"), "chatcmpl-id");
        assert_string_equal(text_at(event, "object"), "chat.completion.chunk");
        assert_string_equal(text_at(event, "model"), "tiny");
        assert_int_equal(int_at(event, "created"), int_at(json_array_get(events, 0), "created"));
        assert_true((at(event, "choices.#0.delta.role") != NULL) == (i == 0));
        assert_true((at(event, "usage") != NULL) == (i == last));
        assert_true(json_is_string(at(event, "choices.#0.finish_reason")) == (i == last - 1));
    }
    json_t *end = json_array_get(events, last);
    assert_int_equal(json_array_size(at(end, "choices")), 0);
    assert_int_equal(int_at(end, "usage.completion_tokens"), 12);
    assert_int_equal(int_at(end, "usage.total_tokens"), int_at(end, "usage.prompt_tokens") + 12);
    assert_string_equal(text_at(json_array_get(events, last - 1), "choices.#0.finish_reason"), "length");
    /* the whole answer's shape: null fields are written */
    assert_string_equal(text_at(body, "object"), "chat.completion");
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "length");
    assert_true(json_is_null(at(body, "choices.#0.stop_reason")));
    assert_true(json_is_null(at(body, "choices.#0.logprobs")));
    assert_true(json_is_null(at(body, "choices.#0.message.refusal")));
    assert_null(at(body, "choices.#0.message.tool_calls"));
    assert_int_equal(int_at(body, "usage.completion_tokens"), 12);
    assert_true(json_is_null(at(body, "usage.prompt_tokens_details")));
    json_decref(body);
    json_decref(events);
}

static void test_completion_stream_equals_whole(void **state)
{
    (void)state;
    json_t *body =
        whole(API_COMPLETION,
              "{\"prompt\": [\"ab\", \"cd\"], \"n\": 2, \"max_tokens\": 5, \"echo\": true, \"seed\": 3}");
    json_t *events =
        stream(API_COMPLETION, "{\"prompt\": [\"ab\", \"cd\"], \"n\": 2, \"max_tokens\": 5, \"echo\": true,"
                               "\"seed\": 3, \"stream\": true, \"stream_options\": {\"include_usage\": true,"
                               "\"continuous_usage_stats\": true}}");
    assert_int_equal(json_array_size(at(body, "choices")), 4);
    for (int i = 0; i < 4; i++) {
        char path[40];
        int n;
        snprintf(path, sizeof path, "choices.#%d.text", i);
        char *text = joined(events, i, false, &n);
        assert_string_equal(text, text_at(body, path));
        assert_memory_equal(text, i < 2 ? "ab" : "cd", 2);
        free(text);
        assert_int_equal(n, 5);
    }
    assert_int_equal(int_at(body, "usage.completion_tokens"), 20);
    long long before = 0;
    for (size_t i = 0; i < json_array_size(events); i++) { /* cumulative */
        long long now = int_at(json_array_get(events, i), "usage.completion_tokens");
        assert_true(now >= before);
        before = now;
    }
    assert_int_equal(before, 20);
    json_decref(body);
    json_decref(events);
}

/* Finds the ids of the letters, to write scripts with. */
static int32_t letter(char c)
{
    struct token_list l = {0};
    const char text[2] = {c, 0};
    tokenizer_encode(served.tokenizer, text, 1, NULL, 0, 0, &l, NULL);
    assert_int_equal(l.n, 1);
    int32_t id = l.ids[0];
    token_list_free(&l);
    return id;
}

static int script(const char *text, int32_t *ids)
{
    int n = 0;
    for (; text[n]; n++)
        ids[n] = letter(text[n]);
    served.engine.script = ids;
    served.engine.n_script = n;
    return n;
}

static void test_reasons(void **state)
{
    (void)state;
    int32_t ids[32];
    int n = script("hello", ids);
    int32_t eos = served.model.stop_ids[0];
    ids[n] = eos;
    served.engine.n_script = n + 1;
    /* EOS: its text is not shown, it is counted */
    json_t *body =
        whole(API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 20, \"return_token_ids\": true}");
    assert_string_equal(text_at(body, "choices.#0.text"), "hello");
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "stop");
    assert_true(json_is_null(at(body, "choices.#0.stop_reason")));
    assert_int_equal(int_at(body, "usage.completion_tokens"), 6);
    assert_int_equal(json_array_size(at(body, "choices.#0.token_ids")), 6);
    json_decref(body);
    /* the last allowed token is EOS: stop, not length */
    body = whole(API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 6}");
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "stop");
    json_decref(body);
    /* ignored: exactly max_tokens */
    body = whole(API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 15, \"ignore_eos\": true}");
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "length");
    assert_string_equal(text_at(body, "choices.#0.text"), "hellohellohel");
    assert_int_equal(int_at(body, "usage.completion_tokens"), 15);
    json_decref(body);
    /* a stop token of the client: its id is the reason; shown only on request */
    char request[300];
    snprintf(request, sizeof request, "{\"prompt\": \"a\", \"stop_token_ids\": [%d]}", ids[2]);
    body = whole(API_COMPLETION, request);
    assert_string_equal(text_at(body, "choices.#0.text"), "he");
    assert_int_equal(int_at(body, "choices.#0.stop_reason"), ids[2]);
    assert_int_equal(int_at(body, "usage.completion_tokens"), 3);
    json_decref(body);
    snprintf(request, sizeof request,
             "{\"prompt\": \"a\", \"stop_token_ids\": [%d], \"include_stop_str_in_output\": true}", ids[2]);
    body = whole(API_COMPLETION, request);
    assert_string_equal(text_at(body, "choices.#0.text"), "hel");
    json_decref(body);
    /* EOS with special tokens shown, in both modes */
    static const char *const shown = "\"prompt\": \"a\", \"skip_special_tokens\": false";
    snprintf(request, sizeof request, "{%s}", shown);
    body = whole(API_COMPLETION, request);
    assert_string_equal(text_at(body, "choices.#0.text"), "hello");
    json_decref(body);
    snprintf(request, sizeof request, "{%s, \"stream\": true}", shown);
    json_t *events = stream(API_COMPLETION, request);
    int n_events;
    char *text = joined(events, 0, false, &n_events);
    assert_string_equal(text, "hello");
    free(text);
    assert_int_equal(n_events, 6);
    json_decref(events);
    served.engine.script = NULL;
}

/* Stop strings: what the engine makes behind one is neither shown nor counted, however late the cancellation
 * reaches it. */
static void test_stop_string(void **state)
{
    (void)state;
    int32_t ids[32];
    script("abcdefgh", ids);
    struct generation *g =
        start(API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 50, \"stop\": [\"def\", \"zz\"]}");
    for (int i = 0; i < 12; i++)
        sluice_step(&served.engine);
    char *text = finish(g);
    generation_free(g);
    json_t *body = json_loads(text, 0, NULL);
    free(text);
    assert_string_equal(text_at(body, "choices.#0.text"), "abc");
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "stop");
    assert_string_equal(text_at(body, "choices.#0.stop_reason"), "def");
    assert_int_equal(int_at(body, "usage.completion_tokens"), 6);
    json_decref(body);
    json_t *events = stream(API_COMPLETION,
                            "{\"prompt\": \"a\", \"max_tokens\": 50, \"stop\": \"def\", \"stream\": true}");
    assert_int_equal(json_array_size(events), 6);
    for (size_t i = 3; i < 6; i++)
        assert_string_equal(text_at(json_array_get(events, i), "choices.#0.text"), "");
    assert_string_equal(text_at(json_array_get(events, 5), "choices.#0.stop_reason"), "def");
    json_decref(events);
    /* the answer ends on the head of a stop string: it is flushed with the last token */
    events =
        stream(API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": 5, \"stop\": \"def\", \"stream\": true}");
    assert_string_equal(text_at(json_array_get(events, 4), "choices.#0.text"), "de");
    assert_string_equal(text_at(json_array_get(events, 4), "choices.#0.finish_reason"), "length");
    json_decref(events);
    sluice_step(&served.engine); /* lets the engine drop what was cancelled */
    served.engine.script = NULL;
}

/* The engine publishes a token before it says that it was the last one. */
static void test_late_verdict(void **state)
{
    (void)state;
    int32_t ids[8];
    script("ab", ids);
    ids[2] = served.model.stop_ids[0];
    served.engine.n_script = 3;
    struct generation *g =
        start(API_COMPLETION, "{\"prompt\": \"a\", \"skip_special_tokens\": false, \"stream\": true}");
    for (int i = 0; i < 3; i++)
        sluice_step(&served.engine);
    struct sluice_progress *p = &g->choices[0].request->progress;
    assert_int_equal(p->finish, SLUICE_STOP);
    p->finish = SLUICE_RUNNING; /* not said yet */
    struct str out = {0};
    assert_false(generation_advance(g, NULL, &out));
    assert_int_equal(g->choices[0].n_tokens, 2);
    assert_null(strstr(str_text(&out), "<|im_end|>"));
    p->finish = SLUICE_STOP;
    assert_true(generation_advance(g, NULL, &out));
    assert_null(strstr(str_text(&out), "<|im_end|>"));
    str_free(&out);
    generation_free(g);
    served.engine.script = NULL;
}

static void test_logprobs(void **state)
{
    (void)state;
    json_t *body = whole(API_CHAT, "{" CHAT ", \"max_tokens\": 3, \"logprobs\": true, \"top_logprobs\": 2}");
    json_t *content = at(body, "choices.#0.logprobs.content");
    assert_int_equal(json_array_size(content), 3);
    assert_int_equal(json_array_size(at(content, "#0.top_logprobs")), 2);
    assert_true(json_is_real(at(content, "#0.logprob")));
    assert_true(json_is_array(at(content, "#0.bytes")));
    json_decref(body);
    body = whole(API_CHAT,
                 "{" CHAT ", \"max_tokens\": 2, \"logprobs\": true, \"return_tokens_as_token_ids\": true}");
    assert_memory_equal(text_at(body, "choices.#0.logprobs.content.#1.token"), "token_id:", 9);
    assert_int_equal(json_array_size(at(body, "choices.#0.logprobs.content.#0.top_logprobs")), 0);
    json_decref(body);
    /* completions with echo: the prompt is scored too, its first token has no probability */
    static const char *const request =
        "\"prompt\": [310, 320, 330], \"max_tokens\": 2, \"echo\": true, \"logprobs\": 1";
    char text[200];
    snprintf(text, sizeof text, "{%s}", request);
    body = whole(API_COMPLETION, text);
    json_t *l = at(body, "choices.#0.logprobs");
    assert_int_equal(json_array_size(at(l, "tokens")), 5);
    assert_int_equal(json_array_size(at(l, "top_logprobs")), 5);
    assert_true(json_is_null(at(l, "token_logprobs.#0")));
    assert_true(json_is_real(at(l, "token_logprobs.#1")));
    assert_int_equal(int_at(l, "text_offset.#0"), 0);
    /* offsets are where the tokens begin in the text */
    for (int i = 0; i < 5; i++) {
        char path[40];
        snprintf(path, sizeof path, "text_offset.#%d", i);
        size_t offset = (size_t)int_at(l, path);
        snprintf(path, sizeof path, "tokens.#%d", i);
        const char *token = text_at(l, path);
        assert_memory_equal(text_at(body, "choices.#0.text") + offset, token, strlen(token));
    }
    snprintf(text, sizeof text, "{%s, \"stream\": true}", request);
    json_t *events = stream(API_COMPLETION, text);
    assert_int_equal(json_array_size(events), 2);
    assert_int_equal(json_array_size(at(json_array_get(events, 0), "choices.#0.logprobs.tokens")), 4);
    assert_int_equal(json_array_size(at(json_array_get(events, 1), "choices.#0.logprobs.tokens")), 1);
    assert_int_equal(int_at(json_array_get(events, 1), "choices.#0.logprobs.text_offset.#0"),
                     int_at(l, "text_offset.#4"));
    json_decref(events);
    json_decref(body);
    /* scoring alone */
    body =
        whole(API_COMPLETION, "{\"prompt\": [310, 320], \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0}");
    assert_int_equal(json_array_size(at(body, "choices.#0.logprobs.tokens")), 2);
    assert_string_equal(text_at(body, "choices.#0.finish_reason"), "length");
    assert_int_equal(int_at(body, "usage.completion_tokens"), 0);
    json_decref(body);
    events = stream(
        API_COMPLETION,
        "{\"prompt\": [310, 320], \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0, \"stream\": true}");
    assert_int_equal(json_array_size(events), 1);
    assert_string_equal(text_at(json_array_get(events, 0), "choices.#0.finish_reason"), "length");
    assert_true(strlen(text_at(json_array_get(events, 0), "choices.#0.text")) > 0);
    json_decref(events);
    body = whole(API_CHAT, "{" CHAT ", \"max_tokens\": 1, \"prompt_logprobs\": 1}");
    assert_int_equal(json_array_size(at(body, "prompt_logprobs")), int_at(body, "usage.prompt_tokens"));
    assert_true(json_is_null(at(body, "prompt_logprobs.#0")));
    assert_true(json_is_object(at(body, "prompt_logprobs.#1")));
    json_decref(body);
}

/* --- thoughts and calls ------------------------------------------------------------------------------ */

#define WEATHER                                                                                       \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": " \
    "{\"type\": "                                                                                     \
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}]"

#define THOUGHT "I look.\n</think>\n\n"
#define CALL                                                                                            \
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n" \
    "</parameter>\n</function>\n</tool_call>"

/* What a stream adds up to, in the form of a whole answer's choice: {"message", "finish_reason"}. */
static json_t *assemble(json_t *events)
{
    struct str content = {0}, reasoning = {0};
    json_t *calls = json_array(), *finish = NULL;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *choice = at(json_array_get(events, i), "choices.#0"), *v;
        if (!choice)
            continue;
        json_t *delta = at(choice, "delta");
        assert_int_equal(at(delta, "role") != NULL, i == 0);
        assert_null(finish); /* nothing behind it */
        if (i > 0 && !json_is_string(at(choice, "finish_reason")))
            assert_true(json_object_size(delta) > 0);
        if ((v = at(delta, "content")) && i > 0) {
            assert_true(json_string_length(v) > 0); /* no empty events behind parsers */
            str_adds(&content, json_string_value(v));
        }
        if ((v = at(delta, "reasoning")))
            str_adds(&reasoning, json_string_value(v));
        for (size_t k = 0; k < json_array_size(at(delta, "tool_calls")); k++) {
            json_t *piece = json_array_get(at(delta, "tool_calls"), k);
            size_t index = (size_t)int_at(piece, "index");
            if (index == json_array_size(calls)) {
                assert_memory_equal(text_at(piece, "id"), "chatcmpl-tool-", 14);
                json_array_append_new(
                    calls, json_pack("{s:s, s:s}", "name", text_at(piece, "function.name"), "arguments", ""));
            } else {
                assert_null(at(piece, "id")); /* never again */
                assert_null(at(piece, "function.name"));
            }
            json_t *call = json_array_get(calls, index);
            assert_non_null(call);
            json_object_set_new(
                call, "arguments",
                json_sprintf("%s%s", text_at(call, "arguments"), text_at(piece, "function.arguments")));
        }
        if (json_is_string(at(choice, "finish_reason")))
            finish = at(choice, "finish_reason");
    }
    json_t *all =
        json_pack("{s:s*, s:s*, s:o, s:O}", "content", content.len ? content.data : NULL, "reasoning",
                  reasoning.len ? reasoning.data : NULL, "calls", calls, "finish_reason", finish);
    str_free(&content);
    str_free(&reasoning);
    return all;
}

/* The same of a whole answer. */
static json_t *reduce(json_t *body)
{
    json_t *choice = at(body, "choices.#0"), *calls = json_array();
    for (size_t k = 0; k < json_array_size(at(choice, "message.tool_calls")); k++) {
        json_t *call = json_array_get(at(choice, "message.tool_calls"), k);
        assert_memory_equal(text_at(call, "id"), "chatcmpl-tool-", 14);
        assert_int_equal(strlen(text_at(call, "id")), 14 + 16);
        assert_string_equal(text_at(call, "type"), "function");
        assert_null(at(call, "index"));
        json_array_append(calls, at(call, "function"));
    }
    assert_true(json_array_size(calls) > 0 || !at(choice, "message.tool_calls"));
    assert_non_null(at(choice, "message.content")); /* null is written */
    assert_non_null(at(choice, "message.reasoning"));
    return json_pack("{s:s*, s:s*, s:o, s:O}", "content", json_string_value(at(choice, "message.content")),
                     "reasoning", json_string_value(at(choice, "message.reasoning")), "calls", calls,
                     "finish_reason", at(choice, "finish_reason"));
}

/* The scripted answer in both modes, which must agree with each other and with `expected` (JSON). Returns the
 * whole body. */
static json_t *expect_both(const char *fields, const char *expected)
{
    struct str request = {0};
    str_addf(&request, "{" CHAT ", %s}", fields);
    json_t *body = whole(API_CHAT, str_text(&request));
    str_clear(&request);
    str_addf(&request, "{" CHAT ", %s, \"stream\": true, \"stream_options\": {\"include_usage\": true}}",
             fields);
    json_t *events = stream(API_CHAT, str_text(&request));
    str_free(&request);
    json_t *streamed = assemble(events), *reduced = reduce(body), *wanted = json_loads(expected, 0, NULL);
    assert_non_null(wanted);
    char *a = json_dumps(streamed, JSON_SORT_KEYS), *b = json_dumps(reduced, JSON_SORT_KEYS),
         *c = json_dumps(wanted, JSON_SORT_KEYS);
    assert_string_equal(b, c);
    assert_string_equal(a, b);
    json_t *usage = at(json_array_get(events, json_array_size(events) - 1), "usage");
    assert_true(
        json_equal(at(usage, "completion_tokens_details"), at(body, "usage.completion_tokens_details")));
    free(a);
    free(b);
    free(c);
    json_decref(wanted);
    json_decref(streamed);
    json_decref(reduced);
    json_decref(events);
    return body;
}

/* A script of one byte a token, ended by EOS. */
static void script_answer(const char *text, int32_t *ids)
{
    int n = script(text, ids);
    ids[n] = served.model.stop_ids[0];
    served.engine.n_script = n + 1;
}

static void test_thoughts_and_calls(void **state)
{
    (void)state;
    int32_t ids[400];
    served.model.reasoning = REASONING_THINK_FIRST;
    served.model.tool_format = TOOLS_QWEN3_CODER;
    script_answer(THOUGHT "Hi!", ids);
    json_t *body =
        expect_both("\"n\": 1", "{\"content\": \"Hi!\", \"reasoning\": \"I look.\", \"calls\": [], "
                                "\"finish_reason\": \"stop\"}");
    assert_int_equal(int_at(body, "usage.completion_tokens_details.reasoning_tokens"),
                     8); /* with the newline */
    assert_int_equal(int_at(body, "usage.completion_tokens"), strlen(THOUGHT "Hi!") + 1);
    json_decref(body);
    /* the limit falls into the thought */
    body = expect_both("\"max_tokens\": 5", "{\"reasoning\": \"I loo\", \"calls\": [], \"finish_reason\": "
                                            "\"length\"}");
    assert_true(json_is_null(at(body, "choices.#0.message.content")));
    assert_int_equal(int_at(body, "usage.completion_tokens_details.reasoning_tokens"), 5);
    json_decref(body);
    /* hidden: neither text nor tokens of it */
    served.engine.script = ids;
    body = expect_both("\"include_reasoning\": false, \"return_token_ids\": true, \"logprobs\": true",
                       "{\"content\": \"Hi!\", \"calls\": [], \"finish_reason\": \"stop\"}");
    size_t shown = 2 + 3 + 1; /* the newlines, the text, EOS */
    assert_int_equal(json_array_size(at(body, "choices.#0.token_ids")), shown);
    assert_int_equal(json_array_size(at(body, "choices.#0.logprobs.content")), shown);
    assert_int_equal(int_at(body, "usage.completion_tokens_details.reasoning_tokens"), 8);
    json_decref(body);
    json_t *events = stream(API_CHAT, "{" CHAT ", \"include_reasoning\": false, \"return_token_ids\": true, "
                                      "\"logprobs\": true, \"stream\": true}");
    size_t n_ids = 0, n_probs = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        n_ids += json_array_size(at(json_array_get(events, i), "choices.#0.token_ids"));
        n_probs += json_array_size(at(json_array_get(events, i), "choices.#0.logprobs.content"));
    }
    assert_int_equal(n_ids, shown);
    assert_int_equal(n_probs, shown);
    json_decref(events);
    /* every token is in some event, also those that gave no text when they came */
    events = stream(API_CHAT, "{" CHAT ", \"return_token_ids\": true, \"stream\": true}");
    n_ids = 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        n_ids += json_array_size(at(json_array_get(events, i), "choices.#0.token_ids"));
    assert_int_equal(n_ids, strlen(THOUGHT "Hi!") + 1);
    json_decref(events);

    /* calls */
    static const char two[] =
        "{\"reasoning\": \"I look.\", \"calls\": [{\"name\": \"get_weather\", \"arguments\": "
        "\"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}, {\"name\": \"get_weather\", "
        "\"arguments\": \"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}], "
        "\"finish_reason\": \"tool_calls\"}";
    static int32_t long_ids[600];
    script_answer(THOUGHT CALL "\n" CALL, long_ids);
    served.model.max_model_len = 1000;
    json_decref(expect_both(WEATHER, two));
    json_decref(
        expect_both(WEATHER ", \"parallel_tool_calls\": false",
                    "{\"reasoning\": \"I look.\", \"calls\": [{\"name\": \"get_weather\", \"arguments\": "
                    "\"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}], \"finish_reason\": "
                    "\"tool_calls\"}"));
    /* no calls where none may be: the text stays text */
    body = expect_both(
        WEATHER ", \"tool_choice\": \"none\"",
        "{\"reasoning\": \"I look.\", \"content\": \"<tool_call>\\n<function=get_weather>\\n<parameter="
        "city>\\nParis\\n</parameter>\\n<parameter=days>\\n3\\n</parameter>\\n</function>\\n</"
        "tool_call>\\n<tool_call>\\n<function=get_weather>\\n<parameter=city>\\nParis\\n</"
        "parameter>\\n<parameter=days>\\n3\\n</parameter>\\n</function>\\n</tool_call>\", \"calls\": "
        "[], \"finish_reason\": \"stop\"}");
    json_decref(body);
    /* the limit sweeps over a call: never tool_calls, and always JSON when it is not streamed */
    for (int limit = 1; limit < (int)strlen(THOUGHT CALL); limit += 5) {
        char request[700];
        snprintf(request, sizeof request, "{" CHAT ", " WEATHER ", \"max_tokens\": %d}", limit);
        body = whole(API_CHAT, request);
        assert_string_equal(text_at(body, "choices.#0.finish_reason"), "length");
        if (at(body, "choices.#0.message.tool_calls")) {
            json_t *arguments =
                json_loads(text_at(body, "choices.#0.message.tool_calls.#0.function.arguments"), 0, NULL);
            assert_true(json_is_object(arguments));
            json_decref(arguments);
        }
        json_decref(body);
        snprintf(request, sizeof request, "{" CHAT ", " WEATHER ", \"max_tokens\": %d, \"stream\": true}",
                 limit);
        events = stream(API_CHAT, request);
        json_t *all = assemble(events);
        assert_string_equal(text_at(all, "finish_reason"), "length");
        json_decref(all);
        json_decref(events);
    }
    served.model.max_model_len = 256;
    /* held back by a stop string, then released into the parsers */
    script_answer(THOUGHT "Hi!", ids);
    json_decref(
        expect_both("\"stop\": [\"</think>\\n\\nHi!?\", \"!x\"]",
                    "{\"content\": \"Hi!\", \"reasoning\": \"I look.\", \"calls\": [], \"finish_reason\": "
                    "\"stop\"}"));
    served.model.reasoning = REASONING_NONE;
    served.model.tool_format = TOOLS_NONE;
    served.engine.script = NULL;
}

static void test_engine_error(void **state)
{
    (void)state;
    served.engine.fails = true;
    struct generation *g = start(API_CHAT, "{" CHAT "}");
    char *text = finish(g);
    assert_int_equal(g->error.status, 500);
    assert_string_equal(text, "");
    free(text);
    generation_free(g);
    json_t *events = stream(API_CHAT, "{" CHAT ", \"stream\": true, \"n\": 2}");
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_int_equal(int_at(last, "error.code"), 500);
    json_decref(events);
    served.engine.fails = false;
    sluice_step(&served.engine);
}

static void test_cancel_frees_at_once(void **state)
{
    (void)state;
    struct generation *g = start(API_CHAT, "{" CHAT ", \"n\": 3, \"stream\": true}");
    sluice_step(&served.engine);
    generation_cancel(g);
    char *text = finish(g); /* a shutdown ends answers so: they say abort */
    assert_non_null(strstr(text, "\"finish_reason\":\"abort\""));
    free(text);
    generation_free(g);
    g = start(API_CHAT, "{" CHAT ", \"n\": 3}"); /* a hang-up: freed while it waits, and while it runs */
    generation_free(g);
    g = start(API_CHAT, "{" CHAT ", \"n\": 3}");
    sluice_step(&served.engine);
    generation_free(g);
    sluice_step(&served.engine);
    assert_int_equal(served.engine.stats.running, 0);
    assert_int_equal(served.engine.stats.waiting, 0);
    assert_int_equal(served.engine.n_submitted, served.engine.n_freed);
}

static void test_refused_by_the_engine(void **state)
{
    (void)state;
    served.engine.plan.kv_blocks = 1; /* a pool of 16 tokens */
    struct api_error e = {0};
    struct str body = {0};
    str_adds(&body, "{\"prompt\": [[300], [300");
    for (int i = 0; i < 30; i++)
        str_adds(&body, ",300");
    str_adds(&body, "]]}");
    json_t *json = json_loads(str_text(&body), 0, NULL);
    struct api_request *r = api_request_read(&served.model, API_COMPLETION, json, "id", false, &e);
    assert_non_null(r);
    assert_null(generation_start(&served.model, r, 0, &e));
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "KV pool"));
    json_decref(json);
    str_free(&body);
    served.engine.plan.kv_blocks = 100;
    sluice_step(&served.engine);
    assert_int_equal(served.engine.n_submitted, served.engine.n_freed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_stream_equals_whole),
        cmocka_unit_test(test_completion_stream_equals_whole),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_stop_string),
        cmocka_unit_test(test_late_verdict),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_thoughts_and_calls),
        cmocka_unit_test(test_engine_error),
        cmocka_unit_test(test_cancel_frees_at_once),
        cmocka_unit_test(test_refused_by_the_engine),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
