/* JSON Schema in C: masks near every kind of border, limits, and grammars shared by threads. What is valid
 * and what is not is checked against jsonschema in tests/grammar. */
#include "grammar_test.h"

#include <pthread.h>

static struct grammar *schema(const char *text)
{
    struct err e = {0};
    json_t *root = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(root);
    struct grammar *g = grammar_from_schema(root, NULL, &e);
    json_decref(root);
    return bound(g, &e);
}

#define PERSON                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"," \
    "\"minimum\":0,"                                                                                     \
    "\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":20},"    \
    "\"maxItems\":40}},"                                                                                 \
    "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}"

/* Masks equal trying every token, along random answers to schemas of every kind. */
static void masks(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        PERSON,
        "{}",
        "{\"type\":\"object\"}",
        "{\"type\":\"string\",\"minLength\":3,\"maxLength\":50}",
        "{\"type\":\"string\",\"maxLength\":3}",
        "{\"type\":\"string\",\"minLength\":40}",
        "{\"type\":\"string\",\"pattern\":\"a+b\",\"minLength\":4,\"maxLength\":60}",
        "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,"
        "\"maxItems\":50},\"minItems\":3,"
        "\"maxItems\":60}",
        "{\"type\":\"number\",\"exclusiveMinimum\":-12.5,\"maximum\":1000}",
        "{\"type\":\"string\",\"format\":\"date-time\"}",
        "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"x\"},\"name2\":{\"type\":\"null\"}},"
        "\"additionalProperties\":{\"type\":"
        "\"boolean\"}}",
        "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
        "t\"},{\"type\":\"integer\"}]}},"
        "\"required\":[\"a\"]}},\"$ref\":\"#/$defs/t\"}",
        "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":10},{\"type\":\"string\",\"pattern\":\"^(ab)*$\"},{"
        "\"enum\":[\"abc\",\"abab\"]}]}",
    };
    unsigned seed = 11;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) {
        struct grammar *g = schema(schemas[i]);
        for (int k = 0; k < 6; k++) {
            char *text = random_text(g, &seed, 10 + 15 * k);
            json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
            if (!value)
                print_error("not JSON: %s\n", text);
            assert_non_null(value);
            json_decref(value);
            free(text);
        }
        grammar_unref(g);
    }
}

/* An answer longer than any pool: what is closed is forgotten. */
static void long_answer(void **state)
{
    (void)state;
    struct grammar *g = schema("{\"type\":\"array\",\"items\":{\"type\":\"object\"}}");
    struct grammar_matcher *m = grammar_matcher_create(g);
    assert_true(goes_on(m, "["));
    for (int i = 0; i < 30000; i++)
        assert_true(goes_on(m, "{\"a\": [1, {\"b\" : null}], \"c\":\"d\"} ,\n"));
    check_mask(m);
    assert_true(goes_on(m, "{}]"));
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_free(m);
    grammar_unref(g);
}

/* Nesting ends somewhere, and the masks know where: whatever is opened can be closed. */
static void nesting(void **state)
{
    (void)state;
    struct grammar *g = schema("{}");
    struct grammar_matcher *m = grammar_matcher_create(g);
    int depth = 0;
    for (; depth < 5000 && goes_on(m, depth % 2 ? "{\"a\":" : "["); depth++)
        if (depth > 50 && depth % 3 == 0)
            check_mask(m);
    assert_true(depth > 60 && depth < 1000);
    check_mask(m);
    /* In the innermost array there may be no room for a value any more; in an object there is. */
    assert_true(goes_on(m, "0") || depth % 2 == 1);
    while (depth-- > 0) {
        assert_true(goes_on(m, depth % 2 ? "}" : "]"));
        if (depth % 7 == 0)
            check_mask(m);
    }
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_free(m);
    grammar_unref(g);
}

static void forced(void **state)
{
    (void)state;
    struct grammar *g;
    struct err e = {0};
    const struct grammar_json_options compact = {.no_whitespace = true};
    json_t *root = json_loads(PERSON, 0, NULL);
    g = bound(grammar_from_schema(root, &compact, &e), &e);
    json_decref(root);
    struct grammar_matcher *m = grammar_matcher_create(g);
    char text[100];
    size_t n = grammar_matcher_forced(m, text, sizeof text);
    assert_int_equal(n, 9);
    assert_memory_equal(text, "{\"name\":\"", 9);
    assert_int_equal(grammar_matcher_accepts(m, "{\"name\":\"x\",\"b", 14), 13);
    assert_true(goes_on(m, "{\"name\":\"x\""));
    n = grammar_matcher_forced(m, text, 4);
    assert_int_equal(n, 4);
    assert_memory_equal(text, ",\"ag", 4);
    assert_false(goes_on(m, ",\"agX"));
    assert_true(goes_on(m, ",\"age\":15"));
    assert_int_equal(grammar_matcher_forced(m, text, 100), 0);
    check_mask(m);
    grammar_matcher_free(m);
    grammar_unref(g);
}

/* A cache far too small drops its masks again and again; they stay right. */
static void small_cache(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *root = json_loads(PERSON, 0, NULL);
    struct grammar *g = grammar_from_schema(root, NULL, &e);
    json_decref(root);
    grammar_bind(g, test_vocab(), 3000);
    unsigned seed = 5;
    for (int i = 0; i < 5; i++)
        free(random_text(g, &seed, 50));
    struct grammar_size size;
    grammar_size(g, &size);
    assert_true(size.cache_bytes < 20000);
    grammar_warm(g, 1); /* stops at the limit */
    grammar_size(g, &size);
    assert_true(size.cache_bytes < 20000);
    grammar_unref(g);
}

/* One grammar, several threads: each with its own matcher. */
struct writer {
    struct grammar *g;
    unsigned seed;
};

static void *write_texts(void *arg)
{
    struct writer *w = arg;
    for (int i = 0; i < 4; i++)
        free(random_text(w->g, &w->seed, 30));
    grammar_unref(w->g);
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    struct grammar *g = schema(PERSON);
    pthread_t t[4];
    struct writer w[4];
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct writer){grammar_ref(g), 100 + i};
        assert_int_equal(pthread_create(&t[i], NULL, write_texts, &w[i]), 0);
    }
    grammar_warm(g, 1);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    grammar_unref(g);
}

/* The place of the fault is named; no half of a schema is let through. */
static void refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"properties\":{\"a\":{\"items\":{\"pattern\":\"foo**\"}}}}",
         "schema at #/properties/a/items: regular expression, byte 4"},
        {"{\"anyOf\":[{},{\"not\":{}}]}", "schema at #/anyOf/1: \"not\" is not supported"},
        {"{\"$ref\":\"#/$defs/x\"}", "schema at #: $ref \"#/$defs/x\" names nothing"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{\"$ref\":\"#\"}}}",
         "no text at all"},
        {"7", "schema at #: a schema must be an object or a boolean"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        json_t *root = json_loads(cases[i][0], JSON_DECODE_ANY, NULL);
        struct grammar *g = grammar_from_schema(root, NULL, &e);
        if (g || !strstr(e.msg, cases[i][1]))
            print_error("%s: %s\n", cases[i][0], g ? "accepted" : e.msg);
        assert_null(g);
        assert_non_null(strstr(e.msg, cases[i][1]));
        json_decref(root);
    }
    struct err e = {0};
    assert_null(grammar_from_schema(NULL, NULL, &e));
    const struct grammar_json_options bad = {.whitespace_pattern = "(?=x)"};
    assert_null(grammar_from_json_object(&bad, &e));
    assert_non_null(strstr(e.msg, "look-ahead"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks),   cmocka_unit_test(long_answer), cmocka_unit_test(nesting),
        cmocka_unit_test(forced),  cmocka_unit_test(small_cache), cmocka_unit_test(threads),
        cmocka_unit_test(refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_vocab_free(test_vocab());
    return failed;
}
