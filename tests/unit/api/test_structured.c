/* From fields of a body to the grammar of an answer: what it accepts, in each format of calls, before and
 * behind a thought; and the cache of grammars, from several threads. */
#include "unit.h"

#include <pthread.h>

#include "api/grammar_cache.h"
#include "api/structured.h"
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

static struct grammar *read_form(const char *text, const struct structured_context *c)
{
    struct api_error e = {0};
    struct grammar *g = NULL;
    json_t *body = json_loads(text, 0, NULL);
    assert_non_null(body);
    if (structured_read(&served.model, c, body, &g, &e))
        fail_msg("%s: %s (%s)", text, e.message, e.param);
    json_decref(body);
    return g;
}

/* Is the text a whole answer? A '~' before it: the text can neither be one nor become one. A '+': it can
 * become one. */
static void check(struct grammar *g, const char *const *texts)
{
    for (; *texts; texts++) {
        const char *text = *texts + (**texts == '~' || **texts == '+');
        struct grammar_matcher *m = grammar_matcher_create(g);
        bool fits = grammar_matcher_advance(m, text, strlen(text));
        bool whole = fits && grammar_matcher_can_end(m);
        if (fits == (**texts == '~') || whole != (**texts != '~' && **texts != '+'))
            fail_msg("\"%s\" %s", text, whole ? "is whole" : fits ? "fits" : "does not fit");
        grammar_matcher_free(m);
    }
}

static void check_form(const char *body, const struct structured_context *c, const char *const *texts)
{
    struct grammar *g = read_form(body, c);
    assert_non_null(g);
    check(g, texts);
    grammar_unref(g);
}

#define INTEGER "{\"structured_outputs\": {\"json\": {\"type\": \"integer\"}}}"

static void forms_begin_behind_the_thought(void **state)
{
    (void)state;
    struct structured_context c = {.start = THOUGHT_NONE};
    check_form(INTEGER, &c, (const char *const[]){"5", "-12", "~x", "~</think>5", "+", NULL});
    c.start = THOUGHT_OPEN;
    check_form(INTEGER, &c,
               (const char *const[]){"so {\"a\"</think>5", "</think>\n\n5", "a\n</think>\n7", "+5",
                                     "+thought", "~</think>x", "~</think>\n\n\n5", "~a</think></think>5",
                                     NULL});
    c.start = THOUGHT_MAY_OPEN;
    check_form(INTEGER, &c,
               (const char *const[]){"5", "<think>a</think>\n5", "+<think>5", "~thought</think>5", NULL});
    struct grammar *none =
        read_form("{\"response_format\": {\"type\": \"text\"}, \"structured_outputs\": null}", &c);
    assert_null(none);
}

#define TOOL(name, strict, parameters)                                                    \
    "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"strict\": " strict \
    ", \"parameters\": " parameters "}}"
#define CITY                                                                                          \
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": " \
    "\"integer\"}}, \"required\": [\"city\"]}"

static json_t *tools_of(const char *strict)
{
    char text[2000];
    snprintf(text, sizeof text, "[" TOOL("w", "%s", CITY) ", " TOOL("now", "false", "null") "]", strict);
    json_t *tools = json_loads(text, 0, NULL);
    assert_non_null(tools);
    return tools;
}

#define XML_W(city) \
    "<tool_call>\n<function=w>\n<parameter=city>\n" city "\n</parameter>\n</function>\n</tool_call>"
#define XML_NOW "<tool_call>\n<function=now>\n</function>\n</tool_call>"

static void calls_in_xml(void **state)
{
    (void)state;
    json_t *tools = tools_of("true");
    struct structured_context c = {.format = TOOLS_QWEN3_CODER, .tools = tools, .choice = TOOL_REQUIRED};
    check_form(
        "{}", &c,
        (const char *const[]){
            XML_W("Paris\n<b>"), XML_NOW, XML_W("a") "\n" XML_NOW "\n" XML_W("b"), "~" XML_W("a") XML_NOW,
            "~text", "~" XML_NOW "\n ", "+<tool_call>\n<function=", "~<tool_call>\n<function=x",
            "~<tool_call>\n<function=w>\n</function>",
            "<tool_call>\n<function=w>\n<parameter=city>\nX\n</parameter>\n<parameter=days>\n"
            "3\n</parameter>\n</function>\n</tool_call>",
            "~<tool_call>\n<function=w>\n<parameter=city>\nX\n</parameter>\n<parameter=days>\nx", NULL});
    c.one_call = true;
    check_form("{}", &c, (const char *const[]){XML_NOW, "~" XML_NOW "\n", NULL});
    c.one_call = false;
    c.choice = TOOL_NAMED;
    c.name = "now";
    check_form("{}", &c, (const char *const[]){XML_NOW, "~<tool_call>\n<function=w", "~" XML_NOW "\n", NULL});
    c.choice = TOOL_REQUIRED;
    c.start = THOUGHT_OPEN; /* a call may also break the thought off */
    check_form("{}", &c,
               (const char *const[]){"so</think>\n\n" XML_NOW, "so " XML_W("a"), "~so</think>text",
                                     "~so <tool_call>\n<function=x", NULL});
    c.start = THOUGHT_NONE;
    c.choice = TOOL_AUTO;
    check_form("{}", &c,
               (const char *const[]){
                   "", "text", "text " XML_W("a"), XML_W("a") "\nand " XML_NOW " then", "~text <tool_call>x",
                   "~<function=w>", "~<tool_call>\n<function=w>\n</function>", /* strict */
                   "<tool_call>\n<function=now>\nanything\n</function>\n</tool_call>", NULL});
    check_form(INTEGER, &c, (const char *const[]){"5", XML_W("a") "\n" XML_NOW, "~text", "~5" XML_NOW, NULL});
    json_decref(tools);
    tools = tools_of("false");
    c.tools = tools;
    assert_null(read_form("{}", &c)); /* nothing is asked for */
    c.choice = TOOL_NONE;
    c.format = TOOLS_NONE;
    assert_null(read_form("{}", &c));
    json_decref(tools);
}

#define HERMES(name, arguments) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static void calls_in_json(void **state)
{
    (void)state;
    json_t *tools = tools_of("true");
    struct structured_context c = {.format = TOOLS_HERMES, .tools = tools, .choice = TOOL_REQUIRED};
    check_form("{}", &c,
               (const char *const[]){HERMES("w", "{\"city\": \"X\", \"days\": 2}"), HERMES("now", "{}"),
                                     HERMES("now", "{}") "\n" HERMES("w", "{\"city\": \"\"}"),
                                     "~<tool_call>\n{\"name\": \"x", "~{\"name\"",
                                     "~" HERMES("w", "{\"days\": 2}"), NULL});
    c.choice = TOOL_AUTO;
    check_form("{}", &c,
               (const char *const[]){"text", "{\"name\": \"w\"}", "so: " HERMES("w", "{\"city\": \"X\"}") "!",
                                     "~" HERMES("w", "{}"), HERMES("now", "{\"any\": [1]}"), NULL});
    c.format = TOOLS_LLAMA3_JSON;
    check_form(
        "{}", &c,
        (const char *const[]){"text { more", "", "{\"name\": \"w\", \"parameters\": {\"city\": \"X\"}}",
                              "~{\"name\": \"x", "~ {", "~{\"name\": \"w\", \"parameters\": {}}", NULL});
    c.choice = TOOL_NAMED;
    c.name = "w";
    check_form("{}", &c,
               (const char *const[]){"{\"name\": \"w\", \"parameters\": {\"city\": \"X\"}}", "~text",
                                     "~{\"name\": \"now", NULL});
    json_decref(tools);
}

static void equal_forms_share_a_grammar(void **state)
{
    (void)state;
    struct structured_context c = {.start = THOUGHT_NONE};
    struct grammar *a = read_form(INTEGER, &c),
                   *b = read_form("{\"structured_outputs\": {\"json\":{\"type\":\"integer\"}}}", &c);
    assert_ptr_equal(a, b);
    struct grammar *text =
        read_form("{\"structured_outputs\": {\"json\": \"{\\\"type\\\": \\\"integer\\\"}\"}}", &c);
    assert_ptr_equal(a, text);
    struct grammar *tight = read_form("{\"structured_outputs\": {\"json\": {\"type\": \"integer\"}, "
                                      "\"disable_any_whitespace\": true}}",
                                      &c);
    assert_ptr_not_equal(a, tight);
    c.start = THOUGHT_OPEN;
    struct grammar *behind = read_form(INTEGER, &c);
    assert_ptr_not_equal(a, behind);
    grammar_unref(a);
    grammar_unref(b);
    grammar_unref(text);
    grammar_unref(tight);
    grammar_unref(behind);
}

static void the_cache_is_bounded(void **state)
{
    (void)state;
    struct grammar_cache *c = grammar_cache_create(served.tokenizer, 1024, 200000);
    struct err e = {0};
    int kept = 0;
    enum { N = 60 };
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            struct str key = {0};
            char pattern[60];
            snprintf(pattern, sizeof pattern, "[a-z]{1,%d}@[a-z\\d]+\\.(com|org|%d)", i + 40, i);
            str_adds(&key, pattern);
            struct grammar *g = grammar_cache_find(c, &key);
            kept += g != NULL;
            if (round == 0) {
                assert_null(g);
                g = grammar_cache_add(c, &key, grammar_from_regex(pattern, strlen(pattern), &e), &e);
                assert_non_null(g);
            }
            grammar_unref(g);
            str_free(&key);
        }
    assert_in_range(kept, 1, N - 1); /* some, and not all */
    grammar_cache_free(c);
}

/* Workers that ask for a few forms at once, and follow the grammars meanwhile. */
static void *ask(void *arg)
{
    uint32_t x = (uint32_t)(uintptr_t)arg;
    uint32_t bits[1024 / 32];
    for (int i = 0; i < 60; i++) {
        x = x * 1664525 + 1013904223;
        char body[100];
        snprintf(body, sizeof body, "{\"structured_outputs\": {\"regex\": \"x[0-9]{%d}\"}}",
                 (int)(x >> 16) % 5 + 1);
        struct structured_context c = {.start = THOUGHT_NONE};
        json_t *json = json_loads(body, 0, NULL);
        struct grammar *g = NULL;
        struct api_error e = {0};
        struct err why = {0};
        if (structured_read(&served.model, &c, json, &g, &e))
            return (void *)(uintptr_t) "refused";
        json_decref(json);
        struct grammar_matcher *m = grammar_matcher_create(g);
        if (grammar_matcher_mask(m, bits, &why) || !grammar_matcher_advance(m, "x", 1) ||
            grammar_matcher_mask(m, bits, &why))
            return (void *)(uintptr_t) "no mask";
        grammar_matcher_free(m);
        grammar_unref(g);
    }
    return NULL;
}

static void workers_share_the_cache(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, (void *)(uintptr_t)(i + 1)), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong)
            fail_msg("%s", (const char *)wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms_begin_behind_the_thought),
                                       cmocka_unit_test(calls_in_xml),
                                       cmocka_unit_test(calls_in_json),
                                       cmocka_unit_test(equal_forms_share_a_grammar),
                                       cmocka_unit_test(the_cache_is_bounded),
                                       cmocka_unit_test(workers_share_the_cache)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
