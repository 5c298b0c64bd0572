/* Responses and Anthropic messages on a fake engine: what their bodies become, the golden order of their
 * streams, streams against whole answers, failures on the way, the names in refusals, the store of answers.
 */
#include "api/fields.h"
#include "api/generation.h"
#include "api/messages.h"
#include "api/protocols.h"
#include "api/responses.h"
#include "api/responses_store.h"
#include "api/translate.h"
#include "served.h"

#define RESPONSES "/v1/responses"
#define MESSAGES  "/v1/messages"

static struct served served;

static int set_up(void **state)
{
    (void)state;
    served_open(&served);
    served.model.reasoning = REASONING_THINK_FIRST;
    served.model.tool_format = TOOLS_QWEN3_CODER;
    served.model.max_model_len = 1000;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    served_close(&served);
    return 0;
}

static struct api_request *read_body(const char *path, const char *text, struct api_error *e)
{
    json_t *body = fields_parse(text, strlen(text), 128, e);
    assert_non_null(body);
    struct api_request *r = protocol_of(path)->read(&served.model, body, "id", false, e);
    json_decref(body);
    return r;
}

static struct generation *start(const char *path, const char *text)
{
    struct api_error e = {0};
    return served_start(&served, read_body(path, text, &e), text, &e);
}

static char *finish(struct generation *g)
{
    char *out = served_finish(&served, g, 2000);
    generation_free(g);
    return out;
}

static json_t *whole(const char *path, const char *text)
{
    return served_json(finish(start(path, text)));
}

/* The events of a stream as [data, …]; checks that each names its type. */
static json_t *events_of(char *text)
{
    json_t *events = json_array();
    for (char *at = text; *at;) {
        char *end = strstr(at, "\n\n"), *data = strstr(at, "\ndata: ");
        assert_non_null(end);
        assert_non_null(data);
        assert_memory_equal(at, "event: ", 7);
        *end = *data = '\0';
        json_t *event = json_loads(data + 7, 0, NULL);
        assert_non_null(event);
        assert_string_equal(json_string_value(json_object_get(event, "type")), at + 7);
        json_array_append_new(events, event);
        at = end + 2;
    }
    free(text);
    return events;
}

/* Names of events, those that repeat once: "a b c". */
static void expect_order(json_t *events, const char *expected)
{
    struct str names = {0};
    const char *before = "";
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(events, i), "type"));
        if (strcmp(name, before) == 0)
            continue;
        if (names.len)
            str_addc(&names, ' ');
        str_adds(&names, strncmp(name, "response.", 9) == 0 ? name + 9 : name);
        before = name;
    }
    assert_string_equal(str_text(&names), expected);
    str_free(&names);
}

static json_t *last(json_t *events)
{
    return json_array_get(events, json_array_size(events) - 1);
}

/* Answers with `text`, a byte a token, and ends. */
static void script(const char *text)
{
    static int32_t ids[2000];
    int n = 0;
    for (; text[n]; n++) {
        struct token_list l = {0};
        const char one[2] = {text[n], 0};
        tokenizer_encode(served.tokenizer, one, 1, NULL, 0, 0, &l, NULL);
        assert_int_equal(l.n, 1);
        ids[n] = l.ids[0];
        token_list_free(&l);
    }
    ids[n] = served.model.stop_ids[0];
    served.engine.script = ids;
    served.engine.n_script = n + 1;
}

#define CALL(value)                                                                               \
    "<tool_call>\n<function=w>\n<parameter=city>\n" value "\n</parameter>\n<parameter=days>\n3\n" \
    "</parameter>\n</function>\n</tool_call>"
#define ALL "I look.\n</think>\n\nA moment.\n\n" CALL("Paris") "\n" CALL("\"Rome\"")
#define SCHEMA                                                                                        \
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": " \
    "\"integer\"}}}"
#define ASK_RESPONSES \
    "\"input\": \"hi\", \"tools\": [{\"type\": \"function\", \"name\": \"w\", \"parameters\": " SCHEMA "}]"
#define ASK_MESSAGES                                                                   \
    "\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], " \
    "\"tools\": [{\"name\": \"w\", \"input_schema\": " SCHEMA "}]"

/* Everything an answer can hold: the order of events, sequence numbers, the response at the end. */
static void test_responses_stream(void **state)
{
    (void)state;
    script(ALL);
    json_t *body = whole(RESPONSES, "{" ASK_RESPONSES "}");
    json_t *events = events_of(finish(start(RESPONSES, "{" ASK_RESPONSES ", \"stream\": true}")));
    expect_order(events, "created in_progress "
                         "output_item.added content_part.added reasoning_text.delta reasoning_text.done "
                         "content_part.done output_item.done "
                         "output_item.added content_part.added output_text.delta output_text.done "
                         "content_part.done output_item.done "
                         "output_item.added function_call_arguments.delta function_call_arguments.done "
                         "output_item.done "
                         "output_item.added function_call_arguments.delta function_call_arguments.done "
                         "output_item.done completed");
    for (size_t i = 0; i < json_array_size(events); i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(events, i), "sequence_number")),
                         i);
    json_t *end = json_object_get(last(events), "response");
    json_t *output = json_object_get(body, "output"), *streamed = json_object_get(end, "output");
    assert_int_equal(json_array_size(output), 4);
    static const char *const texts[] = {"I look.", "A moment."};
    for (size_t i = 0; i < 4; i++) {
        json_t *a = json_array_get(output, i), *b = json_array_get(streamed, i);
        assert_string_equal(json_string_value(json_object_get(a, "status")), "completed");
        json_object_del(a, "id"); /* each answer has its own */
        json_object_del(b, "id");
        json_object_del(a, "call_id");
        json_object_del(b, "call_id");
        assert_true(json_equal(a, b));
        if (i < 2)
            assert_string_equal(
                json_string_value(json_object_get(json_array_get(json_object_get(a, "content"), 0), "text")),
                texts[i]);
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(output, 3), "arguments")),
                        "{\"city\": \"\\\"Rome\\\"\", \"days\": 3}");
    assert_true(json_equal(json_object_get(body, "usage"), json_object_get(end, "usage")));
    assert_string_equal(json_string_value(json_object_get(end, "id")), "resp_id");
    json_decref(events);
    json_decref(body);
}

static void test_messages_stream(void **state)
{
    (void)state;
    script(ALL);
    json_t *body = whole(MESSAGES, "{" ASK_MESSAGES ", \"max_tokens\": 900}");
    json_t *events =
        events_of(finish(start(MESSAGES, "{" ASK_MESSAGES ", \"max_tokens\": 900, \"stream\": true}")));
    expect_order(events, "message_start "
                         "content_block_start content_block_delta content_block_stop "
                         "content_block_start content_block_delta content_block_stop "
                         "content_block_start content_block_delta content_block_stop "
                         "content_block_start content_block_delta content_block_stop "
                         "message_delta message_stop");
    static const char *const fields[] = {"thinking", "text", "partial_json", "partial_json"};
    struct str pieces[4] = {{0}}, signature = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i), *delta = json_object_get(event, "delta");
        int64_t index = json_integer_value(json_object_get(event, "index"));
        if (!json_object_get(delta, "type"))
            continue;
        const char *given = json_string_value(json_object_get(delta, fields[index]));
        str_adds(given ? &pieces[index] : &signature,
                 given ? given : json_string_value(json_object_get(delta, "signature")));
    }
    json_t *content = json_object_get(body, "content");
    assert_int_equal(json_array_size(content), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *block = json_array_get(content, i);
        if (i < 2) {
            assert_string_equal(json_string_value(json_object_get(block, fields[i])), str_text(&pieces[i]));
        } else {
            json_t *input = json_loads(str_text(&pieces[i]), 0, NULL);
            assert_true(json_equal(json_object_get(block, "input"), input));
            json_decref(input);
        }
        str_free(&pieces[i]);
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(content, 0), "signature")),
                        str_text(&signature));
    assert_string_equal(json_string_value(json_object_get(body, "stop_reason")), "tool_use");
    str_free(&signature);
    json_decref(events);
    json_decref(body);
}

/* A limit anywhere in the answer: streams stay in order, whole answers stay JSON. */
static void test_every_limit(void **state)
{
    (void)state;
    script(ALL);
    for (int n = 1; n <= (int)strlen(ALL); n += 3) {
        char text[1200];
        snprintf(text, sizeof text, "{" ASK_RESPONSES ", \"max_output_tokens\": %d, \"stream\": true}", n);
        json_t *events = events_of(finish(start(RESPONSES, text)));
        assert_string_equal(json_string_value(json_object_get(last(events), "type")), "response.incomplete");
        json_t *output = json_object_get(json_object_get(last(events), "response"), "output");
        for (size_t i = 0; i < json_array_size(output); i++)
            assert_string_equal(json_string_value(json_object_get(json_array_get(output, i), "status")),
                                i + 1 == json_array_size(output) ? "incomplete" : "completed");
        json_decref(events);
        snprintf(text, sizeof text, "{" ASK_MESSAGES ", \"max_tokens\": %d, \"stream\": true}", n);
        events = events_of(finish(start(MESSAGES, text)));
        assert_string_equal(json_string_value(json_object_get(last(events), "type")), "message_stop");
        json_decref(events);
        snprintf(text, sizeof text, "{" ASK_MESSAGES ", \"max_tokens\": %d}", n);
        json_t *body = whole(MESSAGES, text);
        assert_string_equal(json_string_value(json_object_get(body, "stop_reason")), "max_tokens");
        assert_true(json_array_size(json_object_get(body, "content")) > 0);
        json_decref(body);
    }
}

/* The engine fails before the first token, or behind some. */
static void test_failures(void **state)
{
    (void)state;
    script("I look.\n</think>\n\nHi");
    for (int steps = 0; steps < 20; steps += 19) {
        struct generation *r = start(RESPONSES, "{\"input\": \"hi\", \"stream\": true}");
        struct generation *m = start(MESSAGES, "{" ASK_MESSAGES ", \"max_tokens\": 50, \"stream\": true}");
        struct str out = {0}, other = {0};
        for (int i = 0; i < steps; i++) {
            sluice_step(&served.engine);
            generation_advance(r, NULL, &out);
            generation_advance(m, NULL, &other);
        }
        served.engine.fails = true;
        sluice_step(&served.engine);
        assert_true(generation_advance(r, NULL, &out));
        assert_true(generation_advance(m, NULL, &other));
        served.engine.fails = false;
        json_t *events = events_of(str_take(&out));
        assert_string_equal(json_string_value(json_object_get(json_array_get(events, 0), "type")),
                            "response.created");
        json_t *response = json_object_get(last(events), "response");
        assert_string_equal(json_string_value(json_object_get(last(events), "type")), "response.failed");
        assert_string_equal(json_string_value(json_object_get(response, "status")), "failed");
        assert_non_null(json_object_get(json_object_get(response, "error"), "message"));
        assert_true((json_array_size(json_object_get(response, "output")) > 0) == (steps > 0));
        json_decref(events);
        events = events_of(str_take(&other));
        assert_string_equal(json_string_value(json_object_get(last(events), "type")), "error");
        assert_string_equal(
            json_string_value(json_object_get(json_object_get(last(events), "error"), "type")), "api_error");
        json_decref(events);
        generation_free(r);
        generation_free(m);
    }
}

/* Cancelled by the server: not complete, and said so. */
static void test_aborted(void **state)
{
    (void)state;
    script("abcdef");
    struct generation *g = start(RESPONSES, "{\"input\": \"hi\", \"max_output_tokens\": 100}");
    sluice_step(&served.engine);
    generation_cancel(g);
    char *text = finish(g);
    json_t *body = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(body, "status")), "cancelled");
    json_decref(body);
    free(text);
    g = start(MESSAGES, "{" ASK_MESSAGES ", \"max_tokens\": 100}");
    generation_cancel(g);
    text = finish(g);
    body = json_loads(text, 0, NULL);
    assert_true(json_is_null(json_object_get(body, "stop_reason")));
    assert_int_equal(json_array_size(json_object_get(body, "content")), 1);
    json_decref(body);
    free(text);
}

/* The same conversation in three protocols is the same prompt. */
static void test_one_conversation(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
    } forms[] = {
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "
         "\"U\"}, {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"V\"}], "
         "\"max_tokens\": 5, \"temperature\": 0.5, \"top_k\": 7}"},
        {RESPONSES,
         "{\"instructions\": \"S\", \"input\": [{\"role\": \"user\", \"content\": \"U\"}, {\"type\": "
         "\"message\", \"role\": \"assistant\", \"content\": [{\"type\": \"output_text\", \"text\": "
         "\"A\"}]}, {\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"V\"}]}], "
         "\"max_output_tokens\": 5, \"temperature\": 0.5, \"top_k\": 7}"},
        {MESSAGES, "{\"model\": \"tiny\", \"system\": \"S\", \"messages\": [{\"role\": \"user\", "
                   "\"content\": \"U\"}, {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": "
                   "\"user\", \"content\": [{\"type\": \"text\", \"text\": \"V\"}]}], \"max_tokens\": 5, "
                   "\"temperature\": 0.5, \"top_k\": 7}"},
    };
    struct api_error e = {0};
    struct api_request *first = read_body(forms[0].path, forms[0].body, &e);
    assert_non_null(first);
    for (int i = 1; i < 3; i++) {
        struct api_request *r = read_body(forms[i].path, forms[i].body, &e);
        assert_non_null(r);
        assert_int_equal(r->prompts[0].ids.n, first->prompts[0].ids.n);
        assert_memory_equal(r->prompts[0].ids.ids, first->prompts[0].ids.ids,
                            r->prompts[0].ids.n * sizeof(int32_t));
        assert_true(r->sampling.p.temperature == first->sampling.p.temperature);
        assert_int_equal(r->sampling.p.top_k, 7);
        assert_int_equal(r->sampling.max_tokens, 5);
        api_request_free(r);
    }
    api_request_free(first);
}

static void test_names_in_refusals(void **state)
{
    (void)state;
    static const struct renamed table[] = {{"max_completion_tokens", "max_output_tokens"},
                                           {".function", ""},
                                           {"messages", "input"},
                                           {NULL, NULL}};
    struct api_error e;
    api_fail(&e, 400, "BadRequestError", "max_completion_tokens",
             "max_completion_tokens must be less (parameter=max_completion_tokens, "
             "value=\"max_completion_tokens\")");
    translate_error(&e, table);
    assert_string_equal(e.param, "max_output_tokens");
    assert_string_equal(e.message, "max_output_tokens must be less (parameter=max_output_tokens, "
                                   "value=\"max_completion_tokens\")");
    api_fail(&e, 400, "Bad Request", "body.tools.0.function.name",
             "body.tools.0.function.name is functional");
    translate_error(&e, table);
    assert_string_equal(e.param, "body.tools.0.name");
    assert_string_equal(e.message, "body.tools.0.name is functional");
    api_fail(&e, 400, "Bad Request", "messages", "your messages are wrong");
    translate_error(&e, table);
    assert_string_equal(e.param, "input");
    assert_string_equal(e.message, "your messages are wrong");
    /* longer than the buffers: cut, never past them */
    memset(e.param, 'x', sizeof e.param);
    memcpy(e.param, "messages.", 9);
    e.param[sizeof e.param - 1] = '\0';
    static const struct renamed longer[] = {{"messages", "a_much_longer_name"}, {NULL, NULL}};
    translate_error(&e, longer);
    assert_int_equal(strlen(e.param), sizeof e.param - 1);
}

static void put(struct response_store *s, int i, size_t len)
{
    char id[32];
    struct str conversation = {0}, body = {0};
    snprintf(id, sizeof id, "resp_%d", i);
    str_addf(&conversation, "[{\"role\": \"user\", \"content\": \"%d\"}]", i);
    for (size_t k = 0; k < len; k++)
        str_addc(&body, 'x');
    response_store_put(s, id, &conversation, &body);
    str_free(&body);
}

static bool holds(struct response_store *s, int i)
{
    char id[32];
    struct str body = {0};
    snprintf(id, sizeof id, "resp_%d", i);
    bool found = response_store_body(s, id, &body);
    str_free(&body);
    return found;
}

static void test_store(void **state)
{
    (void)state;
    struct response_store *s = response_store_create(10000);
    for (int i = 0; i < 6; i++)
        put(s, i, 1000);
    assert_true(holds(s, 0)); /* and is the newest now */
    for (int i = 6; i < 12; i++)
        put(s, i, 1000);
    assert_true(holds(s, 0));
    assert_false(holds(s, 1));
    assert_true(holds(s, 11));
    json_t *messages = response_store_conversation(s, "resp_11");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "content")), "11");
    json_decref(messages);
    put(s, 11, 2000); /* again: the new one counts */
    struct str body = {0};
    assert_true(response_store_body(s, "resp_11", &body));
    assert_int_equal(body.len, 2000);
    str_free(&body);
    put(s, 12, 20000); /* too large to keep, and makes no room for itself */
    assert_false(holds(s, 12));
    assert_true(holds(s, 11));
    for (int i = 0; i < 20000; i++)
        put(s, i % 500 + 100, 1);
    assert_false(holds(s, 11));
    assert_null(response_store_conversation(NULL, "resp_1"));
    assert_false(response_store_body(NULL, "resp_1", &body));
    response_store_free(s);
    response_store_free(NULL);
}

/* What an answer adds to the conversation is what a client would send back. */
static void test_going_on(void **state)
{
    (void)state;
    served.model.responses = response_store_create(100000);
    script(ALL);
    free(finish(start(RESPONSES, "{" ASK_RESPONSES ", \"instructions\": \"S\"}")));
    json_t *messages = response_store_conversation(served.model.responses, "resp_id");
    assert_int_equal(json_array_size(messages), 2); /* without the instructions */
    json_t *answer = json_array_get(messages, 1), *calls = json_object_get(answer, "tool_calls");
    assert_string_equal(json_string_value(json_object_get(answer, "role")), "assistant");
    assert_string_equal(json_string_value(json_object_get(answer, "content")), "A moment.");
    assert_string_equal(json_string_value(json_object_get(answer, "reasoning")), "I look.");
    assert_int_equal(json_array_size(calls), 2);
    json_t *function = json_object_get(json_array_get(calls, 0), "function");
    assert_string_equal(json_string_value(json_object_get(function, "name")), "w");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                        "{\"city\": \"Paris\", \"days\": 3}");
    json_decref(messages);
    struct api_error e = {0};
    struct api_request *r =
        read_body(RESPONSES, "{\"input\": \"and?\", \"previous_response_id\": \"resp_id\"}", &e);
    assert_non_null(r);
    api_request_free(r);
    assert_null(read_body(RESPONSES, "{\"input\": \"and?\", \"previous_response_id\": \"resp_no\"}", &e));
    assert_int_equal(e.status, 404);
    response_store_free(served.model.responses);
    served.model.responses = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_responses_stream),  cmocka_unit_test(test_messages_stream),
        cmocka_unit_test(test_every_limit),       cmocka_unit_test(test_failures),
        cmocka_unit_test(test_aborted),           cmocka_unit_test(test_one_conversation),
        cmocka_unit_test(test_names_in_refusals), cmocka_unit_test(test_store),
        cmocka_unit_test(test_going_on),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
