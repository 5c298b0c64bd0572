/* Regular expressions, EBNF, choices, built grammars: what they accept, what they refuse and how it is said,
 * and that masks equal trying every token. */
#include "grammar_test.h"

static struct grammar *regex(const char *pattern)
{
    struct err e = {0};
    struct grammar *g = grammar_from_regex(pattern, strlen(pattern), &e);
    if (!g)
        print_error("%s: %s\n", pattern, e.msg);
    return bound(g, &e);
}

static struct grammar *ebnf(const char *text)
{
    struct err e = {0};
    struct grammar *g = grammar_from_ebnf(text, strlen(text), &e);
    return bound(g, &e);
}

/* yes and no are lists of texts that end with NULL. */
static void check_texts(struct grammar *g, const char *name, const char *const *yes, const char *const *no)
{
    for (; *yes; yes++) {
        if (!accepts(g, *yes, strlen(*yes)))
            print_error("%s must accept \"%s\"\n", name, *yes);
        assert_true(accepts(g, *yes, strlen(*yes)));
    }
    for (; *no; no++) {
        if (accepts(g, *no, strlen(*no)))
            print_error("%s must not accept \"%s\"\n", name, *no);
        assert_false(accepts(g, *no, strlen(*no)));
    }
    unsigned seed = 7;
    for (int i = 0; i < 6; i++)
        free(random_text(g, &seed, 5 + 10 * i));
    grammar_unref(g);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void regexes(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        const char *yes[6], *no[8];
    } cases[] = {
        {"abc", {"abc"}, {"ab", "abcd", "", "xabc"}},
        {"a|b|", {"a", "b", ""}, {"ab", "c"}},
        {"(foo|bar)+", {"foo", "barfoo", "foofoo"}, {"", "fo", "foob"}},
        {"a{2,4}", {"aa", "aaa", "aaaa"}, {"a", "aaaaa"}},
        {"a{2,}", {"aa", "aaaaaaaaaaaaaaaaaaaa"}, {"a", ""}},
        {"a{3}", {"aaa"}, {"aa", "aaaa"}},
        {"a{,2}b", {"b", "aab"}, {"aaab"}},
        {"x{a}", {"x{a}"}, {"xa"}},
        {"[a-c]+[^a-c]", {"abcd", "a\xc3\xa9", "c\n"}, {"abc", "d"}},
        {"[\\w.-]+@\\w+\\.com", {"a.b-c@foo.com"}, {"@foo.com", "a@foocom"}},
        {"\\d{4}-\\d\\d", {"2024-01"}, {"2024-1", "20240-1"}},
        {"[\\d\\-x]*", {"1-x", ""}, {"a"}},
        {".", {"a", "\xf0\x9f\x98\x80", "\xc3\xa9"}, {"\n", "ab", "\xc3", ""}},
        {"(?s).", {"\n"}, {""}},
        {"(?i)h\\xc9llo", {"H\xc3\x89LLO", "h\xc3\xa9llo"}, {"hello"}},
        {"a(?i:b)c", {"abc", "aBc"}, {"Abc", "abC"}},
        {"\\u00e9\\u{1F600}\\ud83d\\ude00", {"\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80"}, {"\xc3\xa9"}},
        {"\\p{Lu}\\p{Ll}*", {"Abc", "\xc3\x89t"}, {"abc", "AB"}},
        {"\\P{L}", {"1", " "}, {"a", "\xc3\xa9"}},
        {"\\S\\s\\S", {"a b", "\xc3\xa9\t."}, {"  b", "abc"}},
        {"^abc$", {"abc"}, {"^abc$", "ab"}},
        {"^(a|^b)$|c", {"a", "b", "c"}, {"ac", "ab"}},
        {"(?:a+?b*?)??c", {"c", "ac", "aabbc"}, {"bc"}},
        {"(?P<year>\\d+)(?<x>z)", {"12z"}, {"z"}},
        {"(a*)*b", {"b", "aaab"}, {"a"}},
        {"(a|aa){0,300}b", {"b", "aaaaab"}, {"a"}},
        {"(ab?){2,200}", {"aa", "abab", "abaab"}, {"a", "b", "ab"}},
        {"([ab]{1,3},){1,50}", {"a,", "aba,b,"}, {"a", "abab,", ","}},
        {"\\x41\\t\\.\\/\\$\\cA", {"A\t./$\x01"}, {"A"}},
        {"(a(?#comment)b)", {"ab"}, {"a"}},
        {"[^\\x00-\\x7f]+", {"\xc3\xa9\xe2\x82\xac"}, {"a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_texts(regex(cases[i].pattern), cases[i].pattern, cases[i].yes, cases[i].no);
}

/* Long repetitions: the bounds hold exactly, at every place near them. */
static void counted(void **state)
{
    (void)state;
    struct grammar *g = regex("a{3,60}b|(c[de]){55}|(x{1,70}y){2,40}");
    char text[4000];
    for (int n = 0; n < 70; n++) {
        memset(text, 'a', (size_t)n);
        text[n] = 'b';
        assert_int_equal(accepts(g, text, (size_t)n + 1), n >= 3 && n <= 60);
        for (int i = 0; i < n; i++)
            memcpy(text + 2 * i, i % 3 ? "cd" : "ce", 2);
        assert_int_equal(accepts(g, text, 2 * (size_t)n), n == 55);
        for (int i = 0; i < n; i++)
            memcpy(text + 2 * i, "xy", 2);
        assert_int_equal(accepts(g, text, 2 * (size_t)n), n >= 2 && n <= 40);
    }
    unsigned seed = 3;
    for (int i = 0; i < 20; i++)
        free(random_text(g, &seed, 400));
    grammar_unref(g);
    g = regex("a{5,9}c?a{0,100}|[ab]{30,33}");
    for (int i = 0; i < 30; i++)
        free(random_text(g, &seed, 100));
    grammar_unref(g);
    g = regex("[^\"]{0,2000}");
    struct grammar_size size;
    grammar_size(g, &size);
    assert_true(size.states < 50);
    grammar_unref(g);
}

static void refused_regexes(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *reason;
    } cases[] = {
        {"foo**", "nothing to repeat"},
        {"*a", "nothing to repeat"},
        {"a++", "possessive"},
        {"(?=a)b", "look-ahead"},
        {"a(?!b)", "look-ahead"},
        {"(?<=a)b", "look-behind"},
        {"(?<!a)b", "look-behind"},
        {"(a)\\1", "back-reference"},
        {"(?P<x>a)(?P=x)", "back-reference"},
        {"\\bfoo", "word boundary"},
        {"(?>a)", "atomic"},
        {"(a", "never closed"},
        {"a)", "closes nothing"},
        {"[a", "never closed"},
        {"[b-a]", "ends before it begins"},
        {"[]", "class"},
        {"[]-a]", "class"},
        {"a{3,2}", "3 to 2"},
        {"a{1,999999}", "at most"},
        {"\\p{Greek}", "Unicode property"},
        {"a^b", "only supported at the beginning"},
        {"a$b", "only supported at the end"},
        {"(^a)*", "anchor"},
        {"\\", "backslash"},
        {"\\q", "not known"},
        {"\\ud800", "surrogate"},
        {"\xff", "UTF-8"},
        {"(?x)a", "inline flag"},
        {"[[:alpha:]]", "POSIX"},
        {"", "empty"},
        {"[^\\s\\S]", "no text at all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct grammar *g = grammar_from_regex(cases[i].pattern, strlen(cases[i].pattern), &e);
        if (g || !strstr(e.msg, cases[i].reason))
            print_error("%s: %s\n", cases[i].pattern, g ? "accepted" : e.msg);
        assert_null(g);
        assert_true(e.code == ERR_INVALID || e.code == ERR_UNSUPPORTED);
        assert_non_null(strstr(e.msg, cases[i].reason));
    }
}

static void grammars(void **state)
{
    (void)state;
    check_texts(
        ebnf("root ::= \"yes\" | \"no\" reason? # comment\nreason ::= \" \" [a-z]{1,5} ('!' | \".\")\n"),
        "yes/no", TEXTS("yes", "no", "no abc!", "no abcde."), TEXTS("yes abc!", "no abcdef!", ""));
    /* left recursion, right recursion, both, nested, and through nothing */
    check_texts(ebnf("root ::= root \"+\" [0-9]+ | [0-9]+"), "left", TEXTS("1", "1+22+3"),
                TEXTS("+1", "1+", ""));
    check_texts(ebnf("root ::= [ab] root | \"c\""), "right", TEXTS("c", "ababababc"), TEXTS("ab", "cc"));
    check_texts(ebnf("expr ::= expr [-+] expr | expr [*/] expr | \"(\" expr \")\" | [a-z]\nroot ::= expr"),
                "ambiguous", TEXTS("a", "a+b*c", "((a))*(b+c)"), TEXTS("a+", "(a", "ab"));
    check_texts(ebnf("root ::= \"(\" root \")\" root |"), "brackets", TEXTS("", "()", "(())()", "()()"),
                TEXTS("(", ")(", "())"));
    check_texts(ebnf("root ::= a a a\na ::= b | \"\"\nb ::= a \"x\" a"), "hidden left recursion",
                TEXTS("", "x", "xxxxx"), TEXTS("y"));
    check_texts(ebnf("root ::= e root | \"z\"\ne ::= \"\" | \"y\""), "nullable", TEXTS("z", "yyz"),
                TEXTS("y"));
    /* layout: rules over several lines, definitions after uses, CRLF, comments anywhere */
    check_texts(ebnf("root ::=\r\n  # one\r\n  (\"a\"\n  | b )* # two\n  | "
                     "\"end\"\nb::=\"\\x42\\u00e9\\n\\\"\" [^\\]a-c\\\\-]"),
                "layout", TEXTS("", "aa", "end", "B\xc3\xa9\n\"d", "aB\xc3\xa9\n\"xa"),
                TEXTS("B\xc3\xa9\n\"a", "enda"));
    check_texts(ebnf("root ::= list{2,3}\nlist ::= item (\",\" item)* \";\"\nitem ::= [0-9]{,2} \"x\"{0}"),
                "counts", TEXTS("1,22;3;", ";;", "1;,;2;"), TEXTS("1;", "333;1;"));
}

/* A long answer with right recursion, and one with many open rules: no piling up, and a limit that masks
 * know. */
static void long_answers(void **state)
{
    (void)state;
    struct grammar *g = ebnf("root ::= item root | \".\"\nitem ::= word \" \"\nword ::= [a-z] word | [a-z]");
    struct grammar_matcher *m = grammar_matcher_create(g);
    for (int i = 0; i < 100000; i++)
        assert_true(grammar_matcher_advance(m, i % 9 == 8 ? " " : "x", 1));
    check_mask(m);
    assert_true(goes_on(m, " ."));
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_free(m);
    grammar_unref(g);

    g = ebnf("root ::= v\nv ::= \"(\" v \")\" v | \"[\" v \"]\" | \"x\"");
    m = grammar_matcher_create(g);
    int depth = 0;
    while (depth < 10000 && goes_on(m, "(")) {
        depth++;
        if (depth > 380)
            check_mask(m);
    }
    assert_true(depth > 100 && depth < 450);
    assert_true(goes_on(m, "x"));
    for (; depth > 0; depth--) {
        check_mask(m);
        assert_true(goes_on(m, ")x"));
    }
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_free(m);
    grammar_unref(g);
}

static void refused_grammars(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "no rule named"},
        {"start: \"a\"", "a rule is expected"},
        {"a ::= \"b\"", "no rule named"},
        {"root ::= b", "line 1: the rule \"b\" is used but not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule \"root\" is defined twice"},
        {"root ::= root", "needs itself again"},
        {"root ::= root \"a\"", "needs itself again"},
        {"root ::= a\na ::= b \"x\"\nb ::= a", "needs itself again"},
        {"root ::= \"a", "not closed"},
        {"root ::= (\"a\"", "never closed"},
        {"root ::= \"a\")", "closes nothing"},
        {"root ::= [a", "never closed"},
        {"root ::= \"a\"{2,1}", "2 to 1"},
        {"root ::= \"a\"{x}", "number of times"},
        {"root ::= \"\\q\"", "not known"},
        {"root ::= <[1000]>", "tokens"},
        {"root ::= /a/", "Lark"},
        {"root ::= \"a\" = \"b\"", "not expected"},
        {"root ::= []", "no text at all"},
        {"root ::= [\\ud800]", "not a character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct grammar *g = grammar_from_ebnf(cases[i].text, strlen(cases[i].text), &e);
        if (g || !strstr(e.msg, cases[i].reason))
            print_error("%s: %s\n", cases[i].text, g ? "accepted" : e.msg);
        assert_null(g);
        assert_non_null(strstr(e.msg, cases[i].reason));
    }
}

static void choices(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *list = json_pack("[s, s, s]", "foo", "foobar", "\xc3\xa9");
    struct grammar *g = bound(grammar_from_choice(list, &e), &e);
    check_texts(g, "choice", TEXTS("foo", "foobar", "\xc3\xa9"), TEXTS("fo", "foob", ""));
    json_decref(list);
    const char *bad[] = {"[]", "{}", "[1]", "[\"\"]"};
    for (int i = 0; i < 4; i++) {
        list = json_loads(bad[i], 0, NULL);
        assert_null(grammar_from_choice(list, &e));
        assert_non_null(strstr(e.msg, "choice"));
        json_decref(list);
    }
}

/* The public builder, by Qwen3.5's form of a tool call. */
static void built(void **state)
{
    (void)state;
    struct err e = {0};
    struct grammar_builder *b = grammar_builder_create();
    const char *end = "\n</parameter>\n";
    grammar_node none = grammar_text(b, "");
    grammar_node value = grammar_free_text(b, &end, &none, 1);
    grammar_node city[] = {grammar_text(b, "<parameter=city>\n"), value};
    grammar_node days[] = {grammar_text(b, "<parameter=days>\n"), grammar_regex(b, "[1-9]", 5),
                           grammar_text(b, end)};
    grammar_node call[] = {grammar_text(b, "<tool_call>\n<function=weather>\n"), grammar_seq(b, city, 2),
                           grammar_repeat(b, grammar_seq(b, days, 3), 0, 1),
                           grammar_text(b, "</function>\n</tool_call>")};
    struct grammar *g = bound(grammar_builder_finish(b, grammar_seq(b, call, 4), &e), &e);
    struct grammar_matcher *m = grammar_matcher_create(g);
    char forced[200];
    size_t n = grammar_matcher_forced(m, forced, sizeof forced);
    assert_int_equal(n, strlen("<tool_call>\n<function=weather>\n<parameter=city>\n"));
    assert_memory_equal(forced, "<tool_call>\n<function=weather>\n<parameter=city>\n", n);
    assert_true(grammar_matcher_advance(m, forced, n));
    assert_true(goes_on(m, "New\n</York\n</parameter>\n"));
    n = grammar_matcher_forced(m, forced, 3);
    assert_int_equal(n, 1); /* another parameter, or the end */
    assert_memory_equal(forced, "<", 1);
    struct grammar_matcher *other = grammar_matcher_fork(m);
    assert_true(goes_on(m, "<parameter=days>\n7\n</parameter>\n</function>\n</tool_call>"));
    assert_true(grammar_matcher_must_end(m));
    check_mask(other);
    assert_false(goes_on(other, "</function>\n</tool_call>x"));
    assert_true(goes_on(other, "</function>\n</tool_call>"));
    grammar_matcher_copy(m, other);
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_free(m);
    grammar_matcher_free(other);
    grammar_unref(g);

    b = grammar_builder_create();
    grammar_node bad[] = {grammar_text(b, "a"), grammar_regex(b, "a**", 3), 12345};
    assert_null(grammar_builder_finish(b, grammar_seq(b, bad, 3), &e));
    assert_non_null(strstr(e.msg, "nothing to repeat")); /* the first error, not the last */
}

static void free_text(void **state)
{
    (void)state;
    struct err e = {0};
    const char *strings[] = {"abab", "\xc3\xa9x", "ac"};
    struct grammar_builder *b = grammar_builder_create();
    struct grammar *g = bound(grammar_builder_finish(b, grammar_free_text(b, strings, NULL, 3), &e), &e);
    check_texts(g, "without", TEXTS("", "aba", "abaab", "\xc3\xa9\xc3\xa9", "aab", "hello"),
                TEXTS("abab", "aabab", "xababx", "\xc3\xa9\xc3\xa9x", "ac", "aac", "abac", "ab\xc3"));
    b = grammar_builder_create();
    grammar_node found[] = {grammar_text(b, "1"), grammar_text(b, "2"), grammar_text(b, "3")};
    g = bound(grammar_builder_finish(b, grammar_free_text(b, strings, found, 3), &e), &e);
    check_texts(g, "until", TEXTS("abab1", "xx\xc3\xa9\xc3\xa9x2", "abaabab1", "abac3"),
                TEXTS("", "abab2", "aba", "ababx1"));
    const char *bad[][2] = {{"ab", "xabx"}, {"ab", "abc"}, {"a", "a"}, {"", "a"}, {"\xff", "a"}};
    for (int i = 0; i < 5; i++) {
        b = grammar_builder_create();
        assert_null(grammar_builder_finish(b, grammar_free_text(b, bad[i], NULL, 2), &e));
        assert_non_null(strstr(e.msg, "to look for"));
    }
}

/* Things made to hurt: each ends with a clear error, or works, within a second. */
static void hostile(void **state)
{
    (void)state;
    struct err e = {0};
    size_t n = 60000;
    char *text = malloc(8 * n + 100);
    assert_non_null(text);
    memset(text, '(', n);
    assert_null(grammar_from_regex(text, n, &e));
    assert_non_null(strstr(e.msg, "deeper"));
    memset(text, '[', n);
    assert_null(grammar_from_regex(text, n, &e));
    const char *exponential[] = {
        "(a|b)*a(a|b){20}",
        "((((((((((a{10}){10}){10}){10}){10}){10}){10}){10}){10}){10})",
        "(((a?){50}){50}){50}",
        "((a|aa|aaa){1,1000}(a|aa|aaa){1,1000}){1,1000}",
        "(\\p{L}\\p{N}|\\p{L}\\P{N}){1,1000}",
        "(.*)*(.*)*(.*)*x",
        "((((a*)*)*)*)*",
        "(x+x+)+y",
    };
    for (size_t i = 0; i < sizeof exponential / sizeof exponential[0]; i++) {
        struct grammar *g = grammar_from_regex(exponential[i], strlen(exponential[i]), &e);
        if (!g)
            print_message("%s: %s\n", exponential[i], e.msg);
        if (g) {
            grammar_bind(g, test_vocab(), 0);
            unsigned seed = (unsigned)i;
            struct grammar_matcher *m = grammar_matcher_create(g);
            for (int k = 0; k < 40; k++) {
                uint32_t bits[(N_IDS + 31) / 32];
                if (grammar_matcher_mask(m, bits, &e))
                    break;
                seed = seed * 1103515245u + 12345u;
                size_t len;
                const char *bytes = test_bytes(NULL, (int32_t)(seed >> 8) % (N_IDS - 1), &len);
                grammar_matcher_advance(m, bytes, len);
                goes_on(m, "a");
            }
            grammar_matcher_free(m);
            grammar_unref(g);
        }
    }
    /* long chains of rules, in the order that is worst for finding which may be empty */
    struct {
        char *data;
        size_t len;
    } s = {text, 0};
    s.len += (size_t)sprintf(s.data + s.len, "root ::= r0\n");
    for (int i = 0; i < 3000; i++)
        s.len += (size_t)sprintf(s.data + s.len, "r%d ::= r%d \"\" r%d\n", i, i + 1, i + 1);
    s.len += (size_t)sprintf(s.data + s.len, "r3000 ::= \"\" | \"a\"\n");
    struct grammar *g = grammar_from_ebnf(text, s.len, &e);
    if (g) {
        grammar_bind(g, test_vocab(), 0);
        struct grammar_matcher *m = grammar_matcher_create(g);
        uint32_t bits[(N_IDS + 31) / 32];
        grammar_matcher_mask(m, bits, &e);
        goes_on(m, "a");
        grammar_matcher_free(m);
        grammar_unref(g);
    }
    s.len = (size_t)sprintf(s.data, "root ::= ");
    for (int i = 0; i < 50000; i++)
        s.len += (size_t)sprintf(s.data + s.len, "(");
    assert_null(grammar_from_ebnf(text, s.len, &e));
    assert_non_null(strstr(e.msg, "deeper"));
    free(text);
}

static void bounds(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(grammar_vocab_create(0, test_bytes, NULL, &e));
    assert_null(grammar_vocab_create(1 << 30, test_bytes, NULL, &e));
    struct grammar *g = grammar_from_regex("a", 1, &e);
    struct grammar_matcher *m = grammar_matcher_create(g);
    uint32_t bits[1];
    assert_int_equal(grammar_matcher_mask(m, bits, &e), -1); /* not bound */
    grammar_matcher_free(m);
    grammar_unref(g);
    /* a vocabulary without the byte that must come */
    struct grammar_vocab *v = grammar_vocab_create('b', test_bytes, NULL, &e);
    g = grammar_from_regex("ab", 2, &e);
    grammar_bind(g, v, 0);
    m = grammar_matcher_create(g);
    uint32_t words[4];
    assert_int_equal(grammar_matcher_mask(m, words, &e), 0);
    assert_true(goes_on(m, "a"));
    assert_int_equal(grammar_matcher_mask(m, words, &e), -1);
    assert_non_null(strstr(e.msg, "vocabulary"));
    grammar_matcher_free(m);
    grammar_unref(g);
    grammar_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regexes),  cmocka_unit_test(counted),      cmocka_unit_test(refused_regexes),
        cmocka_unit_test(grammars), cmocka_unit_test(long_answers), cmocka_unit_test(refused_grammars),
        cmocka_unit_test(choices),  cmocka_unit_test(built),        cmocka_unit_test(free_text),
        cmocka_unit_test(hostile),  cmocka_unit_test(bounds),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grammar_vocab_free(test_vocab());
    return failed;
}
