/* Messages of all dialects become what templates read. */
#include "unit.h"

#include <jansson.h>

#include "chat/messages.h"

static const struct chat_caps strings = {.system_role = true, .tools = true, .tool_calls = true};
static const struct chat_caps parts = {.system_role = true, .content_parts = true};

/* JSON written with ' for ", for the eye. */
static json_t *json_of(const char *text)
{
    char *copy = strdup(text);
    json_error_t je;
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_t *j = json_loads(copy, JSON_ALLOW_NUL | JSON_DECODE_ANY, &je);
    if (!j)
        fail_msg("bad test: %s in %s", je.text, copy);
    free(copy);
    return j;
}

static void expect(const struct chat_caps *caps, const char *messages, const char *want)
{
    struct err e = {0};
    json_t *in = json_of(messages), *wanted = json_of(want), *before = json_deep_copy(in);
    json_t *out = chat_messages_prepare(in, caps, &e);
    if (!out)
        fail_msg("%s: %s", messages, e.msg);
    if (!json_equal(out, wanted)) {
        char *got = json_dumps(out, 0);
        fail_msg("%s\n  became %s\n  wanted %s", messages, got, want);
    }
    assert_true(json_equal(in, before));
    json_decref(before);
    json_decref(out);
    json_decref(in);
    json_decref(wanted);
}

static void refuse(const char *messages, const char *message)
{
    struct err e = {0};
    json_t *in = json_of(messages);
    assert_null(chat_messages_prepare(in, &strings, &e));
    assert_int_equal(e.code, ERR_INVALID);
    assert_string_equal(e.msg, message);
    assert_null(chat_messages_prepare(in, &parts, NULL));
    json_decref(in);
}

static void contents(void **state)
{
    (void)state;
    expect(&strings, "[]", "[]");
    expect(&strings, "[{'role':'user','content':'hi','name':'Ann','tool_calls':null,'x':{'y':[1,null]}}]",
           "[{'role':'user','content':'hi','name':'Ann','x':{'y':[1,null]}}]");
    expect(
        &strings, "[{'role':'user','content':null},{'role':'assistant'},{'role':'assistant','content':null}]",
        "[{'role':'user','content':''},{'role':'assistant','content':''},{'role':'assistant','content':''}]");
    const char *list = "[{'role':'user','content':[{'type':'text','text':'a','cache_control':{}},'b',"
                       "{'type':'input_text','text':'c'},{'text':''},{'type':'refusal','refusal':'d'}]}]";
    expect(&strings, list, "[{'role':'user','content':'a\\nb\\nc\\n\\nd'}]");
    expect(&parts, list,
           "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'},"
           "{'type':'text','text':'c'},{'type':'text','text':''},{'type':'text','text':'d'}]}]");
    expect(&parts, "[{'role':'user','content':[]},{'role':'user','content':'s'}]",
           "[{'role':'user','content':''},{'role':'user','content':'s'}]");
    expect(&parts,
           "[{'role':'tool','tool_call_id':'1','content':[{'type':'text','text':'a'},{'type':'text','text':'"
           "b'}]}]",
           "[{'role':'tool','tool_call_id':'1','content':'a\\nb'}]");
    expect(&strings, "[{'role':'assistant','content':null,'refusal':'no','annotations':null,'audio':null}]",
           "[{'role':'assistant','content':'no','refusal':'no'}]");
    expect(&strings, "[{'role':'user','content':'a\\u0000b \\ud83d\\ude00'}]",
           "[{'role':'user','content':'a\\u0000b \\ud83d\\ude00'}]");
}

static void what_is_not_utf8_is_replaced(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *in =
        json_pack("[{s:s, s:o, s:[o]}]", "role", "user", "content",
                  json_stringn_nocheck("a\xed\xa0\xbd\0z\xff", 7), "tags", json_string_nocheck("\xc3"));
    json_t *out = chat_messages_prepare(in, &strings, &e);
    assert_non_null(out);
    json_t *content = json_object_get(json_array_get(out, 0), "content");
    assert_int_equal(json_string_length(content), 1 + 9 + 2 + 3);
    assert_memory_equal(json_string_value(content), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\0z\xef\xbf\xbd",
                        15);
    json_t *tag = json_array_get(json_object_get(json_array_get(out, 0), "tags"), 0);
    assert_string_equal(json_string_value(tag), "\xef\xbf\xbd");
    json_decref(out);
    json_decref(in);
}

static void tool_calls(void **state)
{
    (void)state;
    static const char *const arguments[][2] = {
        {"'{\\\"city\\\": \\\"K\\u00f6ln\\\", \\\"n\\\": [1, 2.5]}'", "{'city':'K\\u00f6ln','n':[1,2.5]}"},
        {"''", "{}"},
        {"'[1]'", "{}"},
        {"'{\\\"a\\\": '", "{}"},
        {"'nonsense'", "{}"},
        {"null", "{}"},
        {"7", "{}"},
        {"{'a':{'b':null}}", "{'a':{'b':null}}"},
        {"'{\\\"n\\\": 123456789012345678901234567890}'", "{'n':123456789012345678901234567890.0}"},
    };
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        char in[500], want[500];
        snprintf(in, sizeof in,
                 "[{'role':'assistant','content':null,'tool_calls':[{'id':'c1','function':{'name':'f',"
                 "'arguments':%s}}]}]",
                 arguments[i][0]);
        snprintf(
            want, sizeof want,
            "[{'role':'assistant','content':'','tool_calls':[{'id':'c1','type':'function','function':{'name':"
            "'f','arguments':%s}}]}]",
            arguments[i][1]);
        expect(&strings, in, want);
    }
    expect(&strings, "[{'role':'assistant','content':'x','tool_calls':[]}]",
           "[{'role':'assistant','content':'x'}]");
    expect(&strings, "[{'role':'assistant','content':'x','tool_calls':null,'function_call':null}]",
           "[{'role':'assistant','content':'x'}]");
}

static void reasoning(void **state)
{
    (void)state;
    const char *both = "[{'role':'assistant','content':'x','reasoning':'r','reasoning_content':'r'}]";
    expect(&strings, "[{'role':'assistant','content':'x','reasoning':'r'}]", both);
    expect(&strings, "[{'role':'assistant','content':'x','reasoning_content':'r','reasoning':null}]", both);
    expect(&parts, both, both);
    expect(&strings,
           "[{'role':'assistant','content':[{'type':'thinking','thinking':'r'},{'type':'text','text':'x'}]}]",
           both);
    expect(&strings, "[{'role':'assistant','content':'x','reasoning':'','reasoning_content':null}]",
           "[{'role':'assistant','content':'x','reasoning':'','reasoning_content':''}]");
    expect(&strings, "[{'role':'assistant','content':'x','reasoning':null}]",
           "[{'role':'assistant','content':'x'}]");
}

static void developers(void **state)
{
    (void)state;
    expect(&strings, "[{'role':'developer','content':'d'},{'role':'user','content':'u'}]",
           "[{'role':'system','content':'d'},{'role':'user','content':'u'}]");
    expect(
        &strings,
        "[{'role':'system','content':'s'},{'role':'developer','content':'d'},{'role':'user','content':'u'},"
        "{'role':'developer','content':[{'type':'text','text':'e'},{'type':'text','text':'f'}]}]",
        "[{'role':'system','content':'s\\n\\nd\\n\\ne\\nf'},{'role':'user','content':'u'}]");
    expect(&strings, "[{'role':'user','content':'u'},{'role':'developer','content':'d'}]",
           "[{'role':'system','content':'d'},{'role':'user','content':'u'}]");
    expect(&parts,
           "[{'role':'developer','content':[{'type':'text','text':'d'}]},{'role':'user','content':'u'},"
           "{'role':'developer','content':'e'}]",
           "[{'role':'system','content':'d\\n\\ne'},{'role':'user','content':'u'}]");
}

static void errors_name_the_place(void **state)
{
    (void)state;
    refuse("{}", "messages must be an array");
    refuse("[{'role':'user','content':'a'},7]", "messages[1] must be an object");
    refuse("[{'content':'a'}]", "messages[0].role must be a string");
    refuse("[{'role':'bot','content':'a'}]",
           "messages[0].role: unknown role \"bot\"; known are system, developer, user, assistant, tool");
    refuse("[{'role':'user'}]", "messages[0].content is missing");
    refuse("[{'role':'user','content':5}]",
           "messages[0].content must be a string, null or an array of parts");
    refuse("[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image_url','image_url':{}}]}]",
           "messages[0].content[1].type: this model is text only, it takes no \"image_url\" parts");
    refuse("[{'role':'user','content':[{'type':'input_audio'}]}]",
           "messages[0].content[0].type: this model is text only, it takes no \"input_audio\" parts");
    refuse("[{'role':'user','content':[{'type':'poem'}]}]",
           "messages[0].content[0].type: unknown type \"poem\"; \"text\" is known");
    refuse("[{'role':'user','content':[{'type':'thinking','thinking':'x'}]}]",
           "messages[0].content[0].type: unknown type \"thinking\"; \"text\" is known");
    refuse("[{'role':'user','content':[{'type':'text'}]}]", "messages[0].content[0].text must be a string");
    refuse("[{'role':'assistant','tool_calls':{}}]", "messages[0].tool_calls must be an array");
    refuse("[{'role':'assistant','tool_calls':[{'id':'x'}]}]",
           "messages[0].tool_calls[0].function must be an object");
    refuse("[{'role':'assistant','tool_calls':[{'function':{'arguments':'{}'}}]}]",
           "messages[0].tool_calls[0].function.name must be a string");
    refuse("[{'role':'assistant','content':'x','reasoning':['r']}]",
           "messages[0].reasoning must be a string");
    refuse("[{'role':'user','content':[7]}]",
           "messages[0].content[0] must be an object with a type, such as {\"type\": \"text\", \"text\": …}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents),   cmocka_unit_test(what_is_not_utf8_is_replaced),
        cmocka_unit_test(tool_calls), cmocka_unit_test(reasoning),
        cmocka_unit_test(developers), cmocka_unit_test(errors_name_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
