/* Thoughts and calls of tools, told apart from text: recorded and broken answers of each format with what
 * must come of them, fed whole and in pieces of every size from every offset. A stream must add up to the
 * whole answer, calls that the model ended must be JSON, and nothing may depend on how the text was cut. */
#include "api/formats.h"
#include "api/output.h"
#include "unit.h"

static json_t *tools;

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": "
    "\"object\","
    "\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"},"
    "\"share\": {\"type\": \"number\"}, \"fast\": {\"type\": \"boolean\"},"
    "\"unit\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]},"
    "\"place\": {\"$ref\": \"#/$defs/Place\"}, \"tags\": {\"type\": \"array\", \"items\": {}},"
    "\"level\": {\"enum\": [1, 2]}, \"id\": {\"type\": [\"integer\", \"string\", \"null\"]},"
    "\"bare\": {\"description\": \"no type\"}},"
    "\"$defs\": {\"Place\": {\"type\": \"object\"}}}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": null}}]";

static int set_up(void **state)
{
    (void)state;
    tools = json_loads(tools_text, 0, NULL);
    return tools ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

struct way {
    enum thought start;
    enum tool_format format;
    bool only_first;
    enum text_end end;
};

/* Reasoning and calls, as output.c joins them, over text cut into pieces: the first of `first` bytes, then of
 * `size`. As JSON text: [reasoning, content, [[name, arguments], …]]. `whole`: one growing answer; else
 * deltas, joined here. */
static char *parse(const struct way *w, const char *text, size_t len, size_t first, size_t size, bool whole)
{
    struct reasoning r;
    struct tool_calls t;
    struct parts all = {0}, delta = {0}, *to = whole ? &all : &delta;
    struct str rest = {0};
    reasoning_init(&r, w->start);
    tool_calls_init(&t, w->format, tools, w->only_first);
    if (w->format != TOOLS_NONE) {
        r.call_begins = tool_calls_begin_at;
        r.arg = &t;
    }
    for (size_t at = 0, n; at <= len; at += n) {
        bool ends = at == len;
        n = at == 0 && first ? first : size;
        if (n > len - at)
            n = len - at;
        /* exactly the bytes of the piece, so that reading past them is seen */
        char *piece = malloc(n ? n : 1);
        memcpy(piece, text + at, n);
        str_clear(&rest);
        if (ends)
            reasoning_finish(&r, &to->reasoning, &rest);
        else
            reasoning_add(&r, piece, n, &to->reasoning, &rest);
        tool_calls_add(&t, str_text(&rest), rest.len, to);
        if (ends)
            tool_calls_finish(&t, w->end, to);
        free(piece);
        if (!whole) {
            str_add(&all.reasoning, str_text(&delta.reasoning), delta.reasoning.len);
            str_add(&all.content, str_text(&delta.content), delta.content.len);
            for (int i = 0; i < delta.n_calls; i++) {
                struct call_part *c = &delta.calls[i];
                if (c->opens)
                    parts_open_call(&all, c->index, str_text(&c->name), c->name.len);
                assert_int_equal(c->index, all.n_calls - 1); /* and never an earlier call again */
                parts_add_arguments(&all, c->index, str_text(&c->arguments), c->arguments.len);
            }
            parts_clear(&delta);
        }
        if (ends)
            break;
    }
    if (whole)
        tool_calls_keep_complete(&t, &all);
    struct str out = {0};
    str_addf(&out, "think: %s\ntext: %s\n", str_text(&all.reasoning), str_text(&all.content));
    for (int i = 0; i < all.n_calls; i++) {
        struct call_part *c = &all.calls[i];
        str_addf(&out, "call: %s %s\n", str_text(&c->name), str_text(&c->arguments));
        if (w->end == TEXT_STOPPED || whole || i + 1 < all.n_calls) {
            json_t *v =
                json_loadb(str_text(&c->arguments), c->arguments.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            /* half characters are the damaging test's own */
            if (!v && utf8_valid_prefix(text, len) == len)
                fail_msg("the arguments are not JSON: %s\nof: %s", str_text(&c->arguments), text);
            json_decref(v);
        }
    }
    parts_free(&all);
    parts_free(&delta);
    str_free(&rest);
    reasoning_free(&r);
    tool_calls_free(&t);
    return str_take(&out);
}

/* The same however the text is cut; returns it. */
static char *parse_all_ways(const struct way *w, const char *text)
{
    size_t len = strlen(text);
    char *expected = parse(w, text, len, 0, len ? len : 1, false);
    for (size_t size = 1; size <= len; size += size < 24 ? 1 : 17)
        for (size_t first = 0; first < size; first++) {
            char *got = parse(w, text, len, first, size, false);
            if (strcmp(got, expected) != 0)
                fail_msg("cut after %zu, then every %zu: %s\nin place of: %s\nof: %s", first, size, got,
                         expected, text);
            free(got);
        }
    for (size_t cut = 1; cut < len; cut++) { /* two pieces */
        char *got = parse(w, text, len, cut, len, false);
        assert_string_equal(got, expected);
        free(got);
    }
    char *whole = parse(w, text, len, 0, 3, true);
    if (w->end == TEXT_STOPPED)
        assert_string_equal(whole, expected);
    free(whole);
    return expected;
}

struct sample {
    enum thought start;
    const char *text, *expected;
};

static void check(enum tool_format f, const struct sample *samples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct way w = {samples[i].start, f, false, TEXT_STOPPED};
        char *got = parse_all_ways(&w, samples[i].text);
        if (strcmp(got, samples[i].expected) != 0)
            fail_msg("%s\ngives: %s\nin place of: %s", samples[i].text, got, samples[i].expected);
        free(got);
        /* a limit may cut it anywhere: what was given out stays a beginning of it, calls stay in order */
        w.end = TEXT_CUT;
        size_t len = strlen(samples[i].text);
        for (size_t cut = 0; cut < len; cut++) {
            char *whole = parse(&w, samples[i].text, cut, 0, 7, true); /* checks that arguments are JSON */
            free(whole);
            free(parse(&w, samples[i].text, cut, 0, 7, false));
        }
    }
}

#define CHECK(format, samples) check(format, samples, sizeof(samples) / sizeof *(samples))

static const struct sample thoughts[] = {
    {THOUGHT_OPEN, "Let me see.\n</think>\n\nHello!", "think: Let me see.\ntext: Hello!\n"},
    {THOUGHT_OPEN, "\nTwo\n\n  lines \n\n</think>\n\n  Hello \n", "think: Two\n\n  lines\ntext: Hello \n\n"},
    {THOUGHT_OPEN, "<think>\nagain\n</think>x", "think: again\ntext: x\n"},
    {THOUGHT_OPEN, "cut short by the lim", "think: cut short by the lim\ntext: \n"},
    {THOUGHT_OPEN, "a < b, </thin, <think>, </thinks", "think: a < b, </thin, <think>, </thinks\ntext: \n"},
    {THOUGHT_OPEN, "once</think>\n\n</think>\n\ntwice</think> more", "think: once\ntext: twice more\n"},
    {THOUGHT_OPEN, "</think>\n\nnothing thought", "think: \ntext: nothing thought\n"},
    {THOUGHT_OPEN, "\n\n</think>\n\n", "think: \ntext: \n"},
    {THOUGHT_OPEN, "", "think: \ntext: \n"},
    {THOUGHT_OPEN, "ends </think", "think: ends </think\ntext: \n"},
    {THOUGHT_OPEN, "done</think>tail </thi", "think: done\ntext: tail </thi\n"},
    {THOUGHT_OPEN, "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80</think>\xe4\xbd\xa0\xe5\xa5\xbd",
     "think: gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\ntext: \xe4\xbd\xa0\xe5\xa5\xbd\n"},
    {THOUGHT_MAY_OPEN, "<think>\nhm\n</think>\n\nHi", "think: hm\ntext: Hi\n"},
    {THOUGHT_MAY_OPEN, "\n <think>hm</think>Hi", "think: hm\ntext: Hi\n"},
    {THOUGHT_MAY_OPEN, "  Hi <think>no</think>", "think: \ntext:   Hi <think>no</think>\n"},
    {THOUGHT_MAY_OPEN, "<thing>", "think: \ntext: <thing>\n"},
    {THOUGHT_MAY_OPEN, "<thin", "think: \ntext: <thin\n"},
    {THOUGHT_MAY_OPEN, " \n", "think: \ntext:  \n\n"},
    {THOUGHT_NONE, "<think>shown</think> all", "think: \ntext: <think>shown</think> all\n"},
};

static void test_reasoning(void **state)
{
    (void)state;
    CHECK(TOOLS_NONE, thoughts);
}

#define CALL(parameters)      "<tool_call>\n<function=get_weather>\n" parameters "</function>\n</tool_call>"
#define PARAMETER(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static const struct sample xml[] = {
    {THOUGHT_NONE, "Just text, no call.\n", "think: \ntext: Just text, no call.\n\n"},
    {THOUGHT_NONE, CALL(PARAMETER("city", "Paris")),
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\n"},
    {THOUGHT_NONE, "I will look.\n\n" CALL(PARAMETER("city", "Paris") PARAMETER("days", "3")),
     "think: \ntext: I will look.\ncall: get_weather {\"city\": \"Paris\", \"days\": 3}\n"},
    {THOUGHT_OPEN,
     "The user asks.\n</think>\n\n" CALL(PARAMETER("city", "Paris")) "\n" CALL(PARAMETER("city", "Rome")),
     "think: The user asks.\ntext: \ncall: get_weather {\"city\": \"Paris\"}\ncall: get_weather {\"city\": "
     "\"Rome\"}\n"},
    /* the thought is not closed */
    {THOUGHT_OPEN, "I should call.\n" CALL(PARAMETER("city", "Paris")),
     "think: I should call.\ntext: \ncall: get_weather {\"city\": \"Paris\"}\n"},
    {THOUGHT_OPEN, "I may use <tool_call> and <function=get_weather> here",
     "think: I may use <tool_call> and "
     "<function=get_weather> here\ntext: \n"},
    /* values are what stands between the tags */
    {THOUGHT_NONE, CALL(PARAMETER("city", "a \"b\" \\ <c> </d>\n\n  e\t<parameters> </parameter")),
     "think: \ntext: \ncall: get_weather {\"city\": \"a \\\"b\\\" \\\\ <c> </d>\\n\\n  e\\t<parameters> "
     "</parameter\"}\n"},
    {THOUGHT_NONE, CALL(PARAMETER("city", "def f():\n    return '</function>'\n\n# </function>\n")),
     "think: \ntext: \ncall: get_weather {\"city\": \"def f():\\n    return '</function>'\\n\\n# "
     "</function>\\n\"}\n"},
    {THOUGHT_NONE,
     CALL("<parameter=city></parameter><parameter=unit>\n</parameter><parameter=x>\n\n</parameter>"),
     "think: \ntext: \ncall: get_weather {\"city\": \"\", \"unit\": \"\", \"x\": \"\"}\n"},
    {THOUGHT_NONE, CALL(PARAMETER("city", "M\xc3\xbcnchen \xf0\x9f\x98\x80")),
     "think: \ntext: \ncall: get_weather {\"city\": \"M\xc3\xbcnchen \xf0\x9f\x98\x80\"}\n"},
    /* types */
    {THOUGHT_NONE,
     CALL(PARAMETER("days", "-07") PARAMETER("share", "0.50") PARAMETER("fast", "True")
              PARAMETER("unit", "null") PARAMETER("place", "{\"a\": [1, 2]}")
                  PARAMETER("tags", "[\"x\", null]") PARAMETER("level", "2") PARAMETER("id", "None")
                      PARAMETER("bare", "5") PARAMETER("other", "true")),
     "think: \ntext: \ncall: get_weather {\"days\": -7, \"share\": 0.50, \"fast\": true, \"unit\": null, "
     "\"place\": {\"a\": [1, 2]}, \"tags\": [\"x\", null], \"level\": 2, \"id\": null, \"bare\": \"5\", "
     "\"other\": \"true\"}\n"},
    {THOUGHT_NONE,
     CALL(PARAMETER("days", "soon") PARAMETER("share", "+.5") PARAMETER("fast", "1")
              PARAMETER("unit", "nullable") PARAMETER("place", "{'a': 1}") PARAMETER("tags", "{}")
                  PARAMETER("id", "12") PARAMETER("share", "1e5")),
     "think: \ntext: \ncall: get_weather {\"days\": \"soon\", \"share\": 0.5, \"fast\": true, \"unit\": "
     "\"nullable\", \"place\": \"{'a': 1}\", \"tags\": \"{}\", \"id\": 12, \"share\": 1e5}\n"},
    {THOUGHT_NONE,
     CALL(PARAMETER("id", "12b") PARAMETER("days", " 5 ") PARAMETER("unit", "nul") PARAMETER("share", "inf")
              PARAMETER("days", "1.0") PARAMETER("place", "{\"a\": 1} x")),
     "think: \ntext: \ncall: get_weather {\"id\": \"12b\", \"days\": 5, \"unit\": \"nul\", \"share\": "
     "\"inf\", "
     "\"days\": \"1.0\", \"place\": \"{\\\"a\\\": 1} x\"}\n"},
    /* no arguments; a tool that nobody offered; one without a schema */
    {THOUGHT_NONE, CALL(""), "think: \ntext: \ncall: get_weather {}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=unknown>\n" PARAMETER("n", "1") "</function>\n</tool_call>",
     "think: \ntext: \ncall: unknown {\"n\": \"1\"}\n"},
    {THOUGHT_NONE, "<tool_call><function=now></function></tool_call>", "think: \ntext: \ncall: now {}\n"},
    /* without the outer tag: only a tool that is there */
    {THOUGHT_NONE, "So: <function=get_weather>\n" PARAMETER("city", "Rome") "</function>",
     "think: \ntext: So:\ncall: get_weather {\"city\": \"Rome\"}\n"},
    {THOUGHT_NONE, "Write <function=name> here.", "think: \ntext: Write <function=name> here.\n"},
    {THOUGHT_NONE, "The tag <tool_call> opens a call, </tool_call> ends it.",
     "think: \ntext: The tag <tool_call> opens a call, </tool_call> ends it.\n"},
    /* forgotten closing tags */
    {THOUGHT_NONE,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</parameter>\n"
     "</function>\n</tool_call>",
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\", \"days\": 2}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</tool_call>\n" CALL(""),
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\ncall: get_weather {}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n" PARAMETER("city", "Paris") CALL(""),
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\ncall: get_weather {}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
     "think: \ntext: \ncall: get_weather {\"city\": \"Par\"}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n",
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\n"},
    {THOUGHT_NONE, "<tool_call>\n<function=get_weather>\n<parameter=days>\n4\n</para",
     "think: \ntext: \ncall: get_weather {\"days\": \"4\\n</para\"}\n"},
    /* noise between the tags, two functions in one tag, text behind */
    {THOUGHT_NONE,
     "<tool_call>\n<function=get_weather>\nnoise <x>\n" PARAMETER(
         "city", "A") "</function>\n<function="
                      "now>\n</function>\n</tool_call>\nAnd now?",
     "think: \ntext: \ncall: get_weather {\"city\": \"A\"}\ncall: now {}\n"},
    /* no call after all */
    {THOUGHT_NONE, "<tool_call>\n<function=a b>\n</tool_call>",
     "think: \ntext: <tool_call>\n<function=a "
     "b>\n</tool_call>\n"},
    {THOUGHT_NONE, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
     "think: \ntext: <tool_call>\n{\"name\": \"now\"}\n</tool_call>\n"},
    {THOUGHT_NONE, "<tool_call>\n<func", "think: \ntext: <tool_call>\n<func\n"},
};

static void test_qwen3_coder(void **state)
{
    (void)state;
    CHECK(TOOLS_QWEN3_CODER, xml);
}

#define HERMES(json) "<tool_call>\n" json "\n</tool_call>"

static const struct sample hermes[] = {
    {THOUGHT_NONE, "Hi there", "think: \ntext: Hi there\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}"),
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\", \"days\": 3}\n"},
    {THOUGHT_MAY_OPEN,
     "<think>\nhm\n</think>\n\nI look.\n" HERMES("{\"name\":\"now\",\"arguments\":{}}") "\n" HERMES(
         "{\"name\":\"get_weather\",\"arguments\":{\"tags\":[1,[2,{\"a\":null}]],\"city\":\"}\\\"{"
         "\\u00e9\"}}"),
     "think: hm\ntext: I look.\ncall: now {}\ncall: get_weather "
     "{\"tags\":[1,[2,{\"a\":null}]],\"city\":\"}\\\"{\\u00e9\"}\n"},
    {THOUGHT_OPEN, "I call\n" HERMES("{\"name\": \"now\", \"arguments\": {}}"),
     "think: I call\ntext: \ncall: now {}\n"},
    /* other orders and keys, no arguments, arguments as text */
    {THOUGHT_NONE, HERMES("{\"arguments\": {\"city\": \"A\"}, \"id\": 5, \"name\": \"get_weather\"}"),
     "think: \ntext: \ncall: get_weather {\"city\": \"A\"}\n"},
    {THOUGHT_NONE, HERMES("{\"n\\u0061me\": \"n\\u006fw\"}"), "think: \ntext: \ncall: now {}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"arguments\": null}"), "think: \ntext: \ncall: now {}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"parameters\": {\"a\": 1}}"),
     "think: \ntext: \ncall: now {\"a\": 1}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": \\\"b\\\"}\"}"),
     "think: \ntext: \ncall: now {\"a\": \"b\"}\n"},
    {THOUGHT_NONE, HERMES("{\"arguments\": [1, 2], \"name\": \"now\"}"),
     "think: \ntext: \ncall: now [1, 2]\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"arguments\": 12}"), "think: \ntext: \ncall: now 12\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"arguments\": {\"code\": \"a\n\tb\"}}"),
     "think: \ntext: \ncall: now {\"code\": \"a\\n\\tb\"}\n"},
    {THOUGHT_NONE,
     HERMES("{\"name\": \"now\", \"arguments\": {\"a\": 1}, \"arguments\": {\"b\": 2}, \"name\": \"x\"}"),
     "think: \ntext: \ncall: now {\"a\": 1}\n"},
    /* JSON that breaks */
    {THOUGHT_NONE, HERMES("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"A\", \"days\": tru}}"),
     "think: \ntext: \ncall: get_weather {\"city\": \"A\", \"days\": true}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"A\",}}"),
     "think: \ntext: \ncall: get_weather {\"city\": \"A\",\"\": null}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\", \"arguments\": {\"a\": [1, {\"b\": \"c"),
     "think: \ntext: \ncall: now {\"a\": [1, {\"b\": \"c\\n</tool_call>\"}]}\n"},
    {THOUGHT_NONE, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": -",
     "think: \ntext: \ncall: now {\"a\": -0}\n"},
    {THOUGHT_NONE, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"\\u00",
     "think: \ntext: \ncall: now {\"a\": \"\\u0000\"}\n"},
    {THOUGHT_NONE, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"\\",
     "think: \ntext: \ncall: now {\"a\": \"\\\\\"}\n"},
    {THOUGHT_NONE, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a",
     "think: \ntext: \ncall: now {\"a\": null}\n"},
    {THOUGHT_NONE, "<tool_call>{\"name\": \"now\", \"argu", "think: \ntext: \ncall: now {}\n"},
    {THOUGHT_NONE, HERMES("{\"name\": \"now\"") "\n" HERMES("{\"name\": \"now\"}"),
     "think: \ntext: \ncall: now {}\ncall: now {}\n"},
    /* no call */
    {THOUGHT_NONE, HERMES("{'name': 'now'}"), "think: \ntext: <tool_call>\n{'name': 'now'}\n</tool_call>\n"},
    {THOUGHT_NONE, HERMES("{\"arguments\": {}}"),
     "think: \ntext: <tool_call>\n{\"arguments\": {}}\n</tool_call>\n"},
    {THOUGHT_NONE, HERMES("{\"name\": 5}"), "think: \ntext: <tool_call>\n{\"name\": 5}\n</tool_call>\n"},
    {THOUGHT_NONE, "Use <tool_call> {json} </tool_call> so:\n" HERMES("{\"name\": \"now\"}"),
     "think: \ntext: Use <tool_call> {json} </tool_call> so:\ncall: now {}\n"},
    {THOUGHT_NONE, "So: {\"name\": \"now\", \"arguments\": {}}",
     "think: \ntext: So: {\"name\": \"now\", \"arguments\": {}}\n"},
    {THOUGHT_NONE, "{\"name\": \"Ada\", \"arguments\": {}} " HERMES("{\"name\": \"now\"}"),
     "think: \ntext: {\"name\": \"Ada\", \"arguments\": {}}\ncall: now {}\n"},
    /* tags forgotten: calls if they name a tool, and nothing else has been said */
    {THOUGHT_OPEN,
     "hm</think>\n\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}",
     "think: hm\ntext: \ncall: now {}\ncall: now {\"a\": 1}\n"},
    {THOUGHT_NONE,
     "{\"name\": \"now\", \"arguments\": {}}\nso {\"name\": \"now\", \"arguments\": {\"a\": 1}}",
     "think: \ntext: \ncall: now {}\n"},
    {THOUGHT_NONE, "<tool_call>\n{\"na", "think: \ntext: <tool_call>\n{\"na\n"},
};

static void test_hermes(void **state)
{
    (void)state;
    CHECK(TOOLS_HERMES, hermes);
}

static const struct sample llama3[] = {
    {THOUGHT_NONE, "Hello.", "think: \ntext: Hello.\n"},
    {THOUGHT_NONE, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
     "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\n"},
    {THOUGHT_NONE,
     "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {\"a\": 1}}",
     "think: \ntext: \ncall: now {}\ncall: now {\"a\": 1}\n"},
    {THOUGHT_NONE, "\n{\"parameters\": {\"a\": \"x\"}, \"name\": \"now\"}\n",
     "think: \ntext: \ncall: now {\"a\": \"x\"}\n"},
    /* JSON that is the answer */
    {THOUGHT_NONE, "{\"name\": \"Ada\", \"parameters\": {\"born\": 1815}}",
     "think: \ntext: {\"name\": \"Ada\", \"parameters\": {\"born\": 1815}}\n"},
    {THOUGHT_NONE, "{\"name\": \"now\"}", "think: \ntext: {\"name\": \"now\"}\n"},
    {THOUGHT_NONE, "{\"answer\": 42} and more", "think: \ntext: {\"answer\": 42} and more\n"},
    {THOUGHT_NONE, "{ not json", "think: \ntext: { not json\n"},
    {THOUGHT_NONE, "See {\"name\": \"now\", \"parameters\": {}}",
     "think: \ntext: See {\"name\": \"now\", \"parameters\": {}}\n"},
    {THOUGHT_NONE, "{\"name\": \"now\", \"parameters\": {\"a\": 1",
     "think: \ntext: \ncall: now {\"a\": 1}\n"},
    {THOUGHT_NONE, "{\"name\": \"now\", \"para", "think: \ntext: {\"name\": \"now\", \"para\n"},
};

static void test_llama3_json(void **state)
{
    (void)state;
    CHECK(TOOLS_LLAMA3_JSON, llama3);
}

/* Cut by a limit: the stream has what came, the whole answer the complete members. */
static void expect_cut(enum tool_format f, const char *text, const char *stream, const char *whole)
{
    struct way w = {THOUGHT_NONE, f, false, TEXT_CUT};
    char *got = parse_all_ways(&w, text);
    assert_string_equal(got, stream);
    free(got);
    got = parse(&w, text, strlen(text), 0, 5, true);
    assert_string_equal(got, whole);
    free(got);
}

static void test_cut_calls(void **state)
{
    (void)state;
    expect_cut(TOOLS_QWEN3_CODER,
               "<tool_call>\n<function=get_weather>\n" PARAMETER("city", "Paris") "<parameter=unit>\ncel",
               "think: \ntext: \ncall: get_weather {\"city\": \"Paris\", \"unit\": \"cel\n",
               "think: \ntext: \ncall: get_weather {\"city\": \"Paris\"}\n");
    expect_cut(TOOLS_QWEN3_CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</param",
               "think: \ntext: \ncall: get_weather {\"city\": \"Paris\n",
               "think: \ntext: \ncall: get_weather {}\n");
    expect_cut(TOOLS_QWEN3_CODER, "Look:\n<tool_call>\n<function=get_wea", "think: \ntext: Look:\n\n",
               "think: \ntext: Look:\n\n");
    expect_cut(TOOLS_QWEN3_CODER, "a <tool_c", "think: \ntext: a <tool_c\n", "think: \ntext: a <tool_c\n");
    expect_cut(TOOLS_HERMES,
               "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 12, \"b\": [1, 2], \"c\": {\"d\": 1",
               "think: \ntext: \ncall: now {\"a\": 12, \"b\": [1, 2], \"c\": {\"d\": 1\n",
               "think: \ntext: \ncall: now {\"a\": 12, \"b\": [1, 2]}\n");
    expect_cut(TOOLS_HERMES, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 12",
               "think: \ntext: \ncall: now {\"a\": 12\n", "think: \ntext: \ncall: now {}\n");
    expect_cut(TOOLS_HERMES, "<tool_call>\n{\"arguments\": {\"a\": 12, \"b\": 1}, \"name\": \"now\"",
               "think: \ntext: \ncall: now {\"a\": 12, \"b\": 1}\n",
               "think: \ntext: \ncall: now {\"a\": 12, \"b\": 1}\n");
    expect_cut(TOOLS_HERMES, "<tool_call>\n{\"arguments\": {\"a\": 12", "think: \ntext: \n",
               "think: \ntext: \n");
    expect_cut(TOOLS_LLAMA3_JSON, "{\"name\": \"now\", \"parameters\": {\"a\": \"b\", \"c\"",
               "think: \ntext: \ncall: now {\"a\": \"b\", \"c\"\n",
               "think: \ntext: \ncall: now {\"a\": \"b\"}\n");
}

static void test_only_first(void **state)
{
    (void)state;
    struct way w = {THOUGHT_NONE, TOOLS_QWEN3_CODER, true, TEXT_STOPPED};
    char *got = parse_all_ways(&w, CALL(PARAMETER("city", "A")) CALL(PARAMETER("city", "B")) CALL(""));
    assert_string_equal(got, "think: \ntext: \ncall: get_weather {\"city\": \"A\"}\n");
    free(got);
    w.format = TOOLS_HERMES;
    got = parse_all_ways(&w, HERMES("{\"name\": \"now\"}")
                                 HERMES("{\"name\": \"now\", \"arguments\": {\"a\": 1}}"));
    assert_string_equal(got, "think: \ntext: \ncall: now {}\n");
    free(got);
}

/* Arguments flow: all but a few bytes of a long string value are out before it ends, and so is text. */
static void test_nothing_is_held_needlessly(void **state)
{
    (void)state;
    static const char *const heads[] = {"<tool_call>\n<function=get_weather>\n<parameter=city>\n",
                                        "<tool_call>\n<function=get_weather>\n<parameter=unit>\n",
                                        "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"", "", ""};
    for (size_t i = 0; i < 4; i++) {
        struct tool_calls t;
        struct parts p = {0};
        tool_calls_init(&t, i == 2 ? TOOLS_HERMES : TOOLS_QWEN3_CODER, tools, false);
        tool_calls_add(&t, heads[i], strlen(heads[i]), &p);
        for (size_t n = 1; n < 300; n++) {
            tool_calls_add(&t, "word <" + n % 6, 1, &p);
            size_t out = i < 3 ? p.calls[0].arguments.len : p.content.len;
            assert_true(out + 4 >= n);
        }
        parts_free(&p);
        tool_calls_free(&t);
    }
}

/* Recorded answers, damaged at random: still the same however they are cut, still JSON. */
static void test_damaged(void **state)
{
    (void)state;
    const struct {
        enum tool_format format;
        const struct sample *samples;
        size_t n;
    } sets[] = {{TOOLS_QWEN3_CODER, xml, sizeof xml / sizeof *xml},
                {TOOLS_HERMES, hermes, sizeof hermes / sizeof *hermes},
                {TOOLS_LLAMA3_JSON, llama3, sizeof llama3 / sizeof *llama3},
                {TOOLS_QWEN3_CODER, thoughts, sizeof thoughts / sizeof *thoughts}};
    static const char *const pieces[] = {"<",
                                         "</think>",
                                         "<tool_call>",
                                         "\n",
                                         "{",
                                         "}",
                                         "\"",
                                         "\\",
                                         ",",
                                         ":",
                                         "</parameter>",
                                         "</function>",
                                         "null",
                                         "<think>",
                                         "1",
                                         "e",
                                         "-",
                                         "[",
                                         "\xc3\xa9",
                                         "</tool_call>",
                                         "<function=now>",
                                         "<parameter=days>"};
    uint32_t random = 7;
#define RANDOM(n) ((random = random * 1664525u + 1013904223u), (random >> 8) % (uint32_t)(n))
    for (int round = 0; round < 4000; round++) {
        size_t set = RANDOM(4);
        const struct sample *s = &sets[set].samples[RANDOM(sets[set].n)];
        struct str text = {0};
        str_adds(&text, s->text);
        for (uint32_t k = 1 + RANDOM(3); k > 0; k--) {
            size_t at = RANDOM(text.len + 1), end = at + RANDOM(9);
            while (at < text.len && ((unsigned char)text.data[at] & 0xC0) == 0x80)
                at++;
            if (end < at)
                end = at;
            while (end < text.len && ((unsigned char)text.data[end] & 0xC0) == 0x80)
                end++;
            if (end > text.len)
                end = text.len;
            struct str next = {0};
            str_add(&next, str_text(&text), at);
            if (RANDOM(2))
                str_adds(&next, pieces[RANDOM(sizeof pieces / sizeof *pieces)]);
            str_adds(&next, str_text(&text) + (RANDOM(2) ? at : end));
            str_free(&text);
            text = next;
        }
        struct way w = {s->start, sets[set].format, RANDOM(4) == 0, RANDOM(2) ? TEXT_STOPPED : TEXT_CUT};
        char *expected = parse(&w, str_text(&text), text.len, 0, text.len + 1, false);
        for (size_t size = 1; size < 8; size++) {
            char *got = parse(&w, str_text(&text), text.len, RANDOM(size), size, false);
            if (strcmp(got, expected) != 0)
                fail_msg("pieces of %zu: %s\nin place of: %s\nof: %s", size, got, expected, str_text(&text));
            free(got);
        }
        char *whole = parse(&w, str_text(&text), text.len, 0, 2, true);
        if (w.end == TEXT_STOPPED)
            assert_string_equal(whole, expected);
        free(whole);
        free(expected);
        str_free(&text);
    }
}

/* Hostile text takes time in proportion. */
static void test_long(void **state)
{
    (void)state;
    static const char *const units[] = {"<tool_call>",
                                        "<tool_call>\n{\"a",
                                        " ",
                                        "<",
                                        "</parameter>\n",
                                        "{\"name\":",
                                        "<tool_call> <function=now><parameter=a>",
                                        "\n",
                                        "</think>",
                                        "[",
                                        "\\"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        for (int f = TOOLS_QWEN3_CODER; f <= TOOLS_LLAMA3_JSON; f++) {
            struct way w = {THOUGHT_OPEN, (enum tool_format)f, false, TEXT_STOPPED};
            struct str text = {0};
            while (text.len < 100000)
                str_adds(&text, units[u]);
            free(parse(&w, text.data, text.len, 0, 5, true));
            w.start = THOUGHT_NONE;
            free(parse(&w, text.data, text.len, 0, 5, true));
            str_free(&text);
        }
}

/* --- what the prompt and the template say ------------------------------------------------------------ */

static enum thought start_of(enum reasoning_format f, const char *prompt, size_t own, size_t literal_from,
                             size_t literal_to)
{
    uint8_t literal[256] = {0};
    size_t len = strlen(prompt);
    for (size_t i = literal_from; i < literal_to; i++)
        literal[i] = 1;
    return reasoning_start(f, prompt, len, literal, own < len ? own : len);
}

static void test_starts(void **state)
{
    (void)state;
    const enum reasoning_format think = REASONING_THINK;
    assert_int_equal(start_of(think, "user hi assistant\n<think>\n", 999, 0, 0), THOUGHT_OPEN);
    assert_int_equal(start_of(think, "assistant\n<think>\n\n</think>\n\n", 999, 0, 0), THOUGHT_NONE);
    assert_int_equal(start_of(think, "assistant\n", 999, 0, 0), THOUGHT_MAY_OPEN);
    assert_int_equal(start_of(REASONING_NONE, "assistant\n<think>\n", 999, 0, 0), THOUGHT_NONE);
    assert_int_equal(start_of(REASONING_THINK_FIRST, "assistant\n", 999, 0, 0), THOUGHT_OPEN);
    assert_int_equal(start_of(REASONING_THINK_FIRST, "assistant\n<think></think>", 999, 0, 0), THOUGHT_NONE);
    /* an earlier turn's thought */
    assert_int_equal(start_of(think, "<think>a</think>b user c assistant\n", 999, 0, 0), THOUGHT_MAY_OPEN);
    /* what a user writes opens nothing */
    assert_int_equal(start_of(think, "user <think> assistant\n", 999, 5, 12), THOUGHT_MAY_OPEN);
    /* the answer continues a message */
    assert_int_equal(start_of(think, "assistant\n<think>so far", 10, 10, 23), THOUGHT_OPEN);
    assert_int_equal(start_of(think, "assistant\n<think>a</think>so far", 10, 10, 32), THOUGHT_NONE);
    assert_int_equal(start_of(think, "assistant\nso far", 10, 10, 16), THOUGHT_NONE);
}

static void test_templates(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        enum reasoning_format reasoning;
        enum tool_format tools;
    } templates[] = {
        {"gemma3", REASONING_NONE, TOOLS_NONE},          {"llama3.2", REASONING_NONE, TOOLS_LLAMA3_JSON},
        {"qwen2.5-coder", REASONING_NONE, TOOLS_HERMES}, {"qwen3", REASONING_THINK, TOOLS_HERMES},
        {"qwen3.5", REASONING_THINK, TOOLS_QWEN3_CODER}, {"smollm2", REASONING_NONE, TOOLS_NONE},
        {"smollm3", REASONING_THINK, TOOLS_NONE}};
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        char name[80];
        snprintf(name, sizeof name, "chat/templates/%s.jinja", templates[i].file);
        size_t len;
        char *source = read_whole(fixture(name), &len);
        assert_non_null(source);
        struct err e = {0};
        struct chat_template *t = chat_template_parse(source, len, &e);
        assert_non_null(t);
        if (reasoning_format_choose(NULL, t) != templates[i].reasoning ||
            tool_format_choose("auto", t) != templates[i].tools)
            fail_msg("%s: %s, %s", templates[i].file, reasoning_format_name(reasoning_format_choose(NULL, t)),
                     tool_format_name(tool_format_choose("auto", t)));
        assert_int_equal(reasoning_format_choose("none", t), REASONING_NONE);
        assert_int_equal(reasoning_format_choose("deepseek_r1", t), REASONING_THINK_FIRST);
        assert_int_equal(tool_format_choose("none", t), TOOLS_NONE);
        assert_int_equal(tool_format_choose("qwen3_xml", t), TOOLS_QWEN3_CODER);
        chat_template_free(t);
        free(source);
    }
    assert_int_equal(tool_format_choose(NULL, NULL), TOOLS_NONE);
    assert_int_equal(reasoning_format_choose("auto", NULL), REASONING_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_qwen3_coder),
        cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_llama3_json),
        cmocka_unit_test(test_cut_calls),
        cmocka_unit_test(test_only_first),
        cmocka_unit_test(test_nothing_is_held_needlessly),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_starts),
        cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
