/* Templates and contexts that mean harm: whatever they ask for, the answer is text or an error, soon, and
 * never a crash, a leak (run under AddressSanitizer) or a full memory. */
#include "unit.h"

#include <jansson.h>
#include <pthread.h>
#include <time.h>

#include "base/str.h"
#include "chat/ast.h"
#include "chat/caps.h"
#include "chat/limits.h"
#include "chat/template.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_KIB 8192 /* its frames are several times larger */
#else
#define STACK_KIB 1024
#endif

/* CPU seconds of this thread: limits hold on a busy machine too. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Parses and renders source with a part of the usual budget, so that many cases take little time. Returns the
 * error code. */
static enum err_code outcome_of(const char *source, size_t len, const json_t *context)
{
    struct err e = {0};
    struct chat_text text = {0};
    double began = cpu_now();
    struct program *p = program_parse(source, len, &e);
    if (p && !program_render(p, context, 0, JINJA_PROBE_STEPS, &text, &e))
        assert_int_equal(e.code, ERR_NONE);
    else
        assert_true(e.code != ERR_NONE && e.msg[0]);
    if (cpu_now() - began > 5)
        fail_msg("took %.1f s: %.80s", cpu_now() - began, source);
    chat_text_free(&text);
    program_free(p);
    return e.code;
}

static json_t *small_context(void)
{
    json_t *deep = json_array();
    for (int i = 0; i < 3000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    return json_pack("{s:s, s:i, s:[i,i,i], s:o}", "s", "abc", "n", 7, "xs", 3, 1, 2, "deep", deep);
}

/* before + part × n + after */
static char *repeated(const char *before, const char *part, size_t n, const char *after)
{
    struct str s = {0};
    str_adds(&s, before);
    for (size_t i = 0; i < n; i++)
        str_adds(&s, part);
    str_adds(&s, after);
    return str_take(&s);
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *before, *part;
        int n;
        const char *after;
    } cases[] = {
        {"{{ ", "(", 5000, "1 }}"},
        {"{{ ", "[", 5000, "1 }}"},
        {"{{ ", "{1:", 5000, "1 }}"},
        {"{{ ", "not ", 50000, "1 }}"},
        {"{{ ", "-", 50000, "1 }}"},
        {"{{ 1", "**(-1", 5000, " }}"},
        {"{{ 1", " if 1 else 2", 50000, " }}"},
        {"{{ 1", "-1", 50000, " }}"},
        {"{{ 1", " and 1", 50000, " }}"},
        {"{{ 1", " < 2", 50000, " }}"},
        {"{{ s", ".a", 100000, " }}"},
        {"{{ s", "[0]", 50000, " }}"},
        {"{{ s", "()", 50000, " }}"},
        {"{{ s", "|upper", 50000, " }}"},
        {"{{ s", "|default(s", 5000, " }}"},
        {"{{ s is in ", "[s is in ", 5000, " }}"},
        {"", "{% if 1 %}", 5000, ""},
        {"", "{% for a in xs %}", 5000, ""},
        {"", "{% macro f() %}", 5000, ""},
        {"", "{% set a %}", 5000, ""},
        {"", "{% filter upper %}", 5000, ""},
        {"", "{% call(a) f() %}", 5000, ""},
        {"", "{% with a = 1 %}", 5000, ""},
        {"{% set a", ", a", 5000, " = 1 %}"},
        {"{% set ", "(", 5000, "a = 1 %}"},
        {"{% macro f(a", ", a", 5000, ") %}{% endmacro %}"},
        {"{{ deep }}", "", 0, ""},
        {"{{ deep|tojson }}", "", 0, ""},
        {"{{ deep == deep }}", "", 0, ""},
        {"{{ deep < deep }}", "", 0, ""},
        {"{% for x in deep recursive %}{{ loop(x) }}{% endfor %}", "", 0, ""},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", 0, ""},
        {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", "", 0, ""},
        {"{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ "
         "ns.x }}",
         "", 0, ""},
        {"{% set ns = namespace(x=()) %}{% for i in range(90000) %}{% set ns.x = (ns.x,) %}{% endfor %}"
         "{{ {ns.x: 1} }}",
         "", 0, ""},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "", 0, ""},
        {"{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}", "", 0, ""},
    };
    json_t *context = small_context();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *source = repeated(cases[i].before, cases[i].part, (size_t)cases[i].n, cases[i].after);
        if (outcome_of(source, strlen(source), context) != ERR_INVALID)
            fail_msg("no error: %.100s", source);
        free(source);
    }
    /* A long chain that needs no nesting is no harm. */
    char *sum = repeated("{{ 1", "+1", 50000, " }}"), *joined = repeated("{{ s", "~s", 50000, " }}");
    assert_int_equal(outcome_of(sum, strlen(sum), context), ERR_NONE);
    assert_int_equal(outcome_of(joined, strlen(joined), context), ERR_NONE);
    free(sum);
    free(joined);
    json_decref(context);
}

static void growth_is_bounded(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 10**30 }}",
        "{{ [0] * 10**9 }}",
        "{{ (0,) * 10**30 }}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% "
        "endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x|replace('', ns.x) %}{% "
        "endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% "
        "endfor %}",
        "{% set ns = namespace(x=['\"']) %}{% for i in range(99) %}{% set ns.x = [ns.x|tojson] %}{% endfor "
        "%}",
        "{{ 'x'.center(10**9) }}",
        "{{ 'x'.ljust(10**20) }}",
        "{{ 'x'.zfill(2**62) }}",
        "{{ '\\t'.expandtabs(10**12) }}",
        "{{ s|center(2**100) }}",
        "{{ 'a\\nb'|indent(10**9) }}",
        "{{ [[1]]|tojson(indent=10**9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1 }}",
        "{{ '%*d' % (2**100, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:99999999999999999999}'.format(1) }}",
        "{{ '{:.999999}'.format(1.5) }}",
        "{{ [1]|batch(10**9, 'x')|list }}",
        "{{ [1]|slice(10**9)|list }}",
        "{{ 2**(10**9) }}",
        "{{ 3**100 * 3**100 }}",
        "{{ 170141183460469231731687303715884105727 + 1 }}",
        "{{ -170141183460469231731687303715884105727 - 2 }}",
        "{{ (-170141183460469231731687303715884105727 - 1) // -1 }}",
        "{{ -(-170141183460469231731687303715884105727 - 1) }}",
        "{{ (-170141183460469231731687303715884105727 - 1)|abs }}",
        "{{ 999999999999999999999999999999999999999999 }}",
        "{{ 1e300|int }}",
        "{{ range(0, 2**126, 2**126)[::2**126]|list|length + none }}",
        "{{ range(2**100) }}",
        "{{ ''|wordwrap(0) }}",
        "{{ s[::0] }}",
        "{{ 1|round(10**9) }}",
        "{{ raise_exception() }}",
    };
    json_t *context = small_context();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (outcome_of(cases[i], strlen(cases[i]), context) != ERR_INVALID)
            fail_msg("no error: %s", cases[i]);
    json_decref(context);
}

/* Work that one step must not hide: operations over a large text, many times. */
static void large_operations_are_charged(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{% if 'zz' in big %}{% endif %}",
        "{% if big == big2 %}{% endif %}",
        "{% if big < big2 %}{% endif %}",
        "{% if big.rfind('zz') %}{% endif %}",
        "{% if big.count('zz') %}{% endif %}",
        "{% if big.split('zz') %}{% endif %}",
        "{% if big.split() %}{% endif %}",
        "{% if big.upper() %}{% endif %}",
        "{% if big|wordcount %}{% endif %}",
        "{% if big|list %}{% endif %}",
        "{% if big.strip('a') %}{% endif %}",
        "{% if big.isalpha() %}{% endif %}",
        "{% if big|tojson %}{% endif %}",
        "{% if big|e %}{% endif %}",
        "{% if big[::-1] %}{% endif %}",
        "{% if (big ~ 'é')[i] %}{% endif %}",
        "{% if big is lower %}{% endif %}",
        "{% if big|striptags %}{% endif %}",
        "{% if big|title %}{% endif %}",
        "{% if big.find('zz', i) %}{% endif %}",
        "{% if big.startswith(big) %}{% endif %}",
        "{% if big.endswith(('b', big)) %}{% endif %}",
        "{% if '%s' % big %}{% endif %}",
        "{% if big % [] %}{% endif %}",
        "{% if ('{0[' ~ big ~ ']}').format({}) %}{% endif %}",
        "{% if [{}]|map(attribute=big)|list %}{% endif %}",
        "{% if big|replace('a', 'b') %}{% endif %}",
        "{% if big.partition('z') %}{% endif %}",
        "{% if big|urlencode %}{% endif %}",
        "{% if [big]|string %}{% endif %}",
        "{% if big.splitlines() %}{% endif %}",
        "{% if big|indent %}{% endif %}",
        "{% if big|wordwrap(9) %}{% endif %}",
        "{% if [big, big2]|sort %}{% endif %}",
        "{% if [big, big]|unique|list %}{% endif %}",
        "{% set x %}{{ big }}{% endset %}",
        "{% if big ~ i %}{% endif %}",
        "{% if {'a': big} == {'a': big2} %}{% endif %}",
    };
    json_t *context = json_object();
    char *big = repeated("", "a", 200000, "");
    json_object_set_new(context, "big", json_string(big));
    big[199999] = 'b';
    json_object_set_new(context, "big2", json_string(big));
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char source[300];
        snprintf(source, sizeof source, "{%% for i in range(99999) %%}%s{%% endfor %%}", bodies[i]);
        if (outcome_of(source, strlen(source), context) != ERR_INVALID)
            fail_msg("no error: %s", source);
    }
    free(big);
    json_decref(context);
}

/* The whole budget of a real render is spent in seconds, too. */
static void the_full_budget_is_short(void **state)
{
    (void)state;
    const char *source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ s.upper()|length }}{% "
                         "endfor %}{% endfor %}";
    struct err e = {0};
    struct chat_text text;
    json_t *context = small_context();
    double began = cpu_now();
    struct chat_template *t = chat_template_parse(source, strlen(source), &e);
    assert_non_null(t);
    assert_int_equal(chat_template_render(t, context, 0, &text, &e), -1);
    assert_non_null(strstr(e.msg, "steps"));
    assert_true(cpu_now() - began < 20);
    chat_template_free(t);
    json_decref(context);
}

static void malformed_templates_are_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{{",
        "{%",
        "{# x",
        "{{ 'x }}",
        "{{ \"x\\\" }}",
        "{% raw %}",
        "{% if 1 %}",
        "{% for %}",
        "{% endif %}",
        "{% nope %}",
        "{{ 1 + }}",
        "{{ a. }}",
        "{{ a[ }}",
        "{{ f( }}",
        "{{ f(a=1, a=2) }}",
        "{{ f(a=1, 2) }}",
        "{{ '\\u12' }}",
        "{{ '\\N{DASH}' }}",
        "{{ a ! b }}",
        "{{ a $ }}",
        "{{ s|nope }}",
        "{{ s is nope }}",
        "{% break %}",
        "{% set 1 = 2 %}",
        "{% macro f(a=1, b) %}{% endmacro %}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{% include 'x' %}",
        "{% for x in xs %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
        "{{ (1] }}",
        "{{ 1 2 }}",
        "{% call 1 %}{% endcall %}",
        "\xff",
        "{{ '\xc3' }}",
        "a\xed\xa0\x80",
    };
    json_t *context = small_context();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct chat_template *t = chat_template_parse(cases[i], strlen(cases[i]), &e);
        if (t || e.code != ERR_INVALID)
            fail_msg("accepted: %s", cases[i]);
    }
    struct err e = {0};
    char *large = repeated("", "0123456789abcdef", 70000, "");
    assert_null(chat_template_parse(large, strlen(large), &e));
    assert_int_equal(e.code, ERR_LIMIT);
    free(large);
    json_t *array = json_array();
    assert_int_equal(outcome_of("x", 1, array), ERR_INVALID);
    json_decref(array);
    json_decref(context);
}

static void errors_name_the_line(void **state)
{
    (void)state;
    struct err e = {0};
    struct chat_text text;
    assert_null(chat_template_parse("a\nb\n{{ 1 +\n}}", 13, &e));
    assert_non_null(strstr(e.msg, "line 4"));
    const char *source = "{% macro f(x) %}\n{{ x.y.z }}\n{% endmacro %}\n\n{{ f(1) }}";
    struct chat_template *t = chat_template_parse(source, strlen(source), &e);
    json_t *context = json_object();
    assert_non_null(t);
    assert_int_equal(chat_template_render(t, context, 0, &text, &e), -1);
    assert_string_equal(e.msg, "chat template, line 2: 'int object' has no attribute 'y'");
    assert_null(text.text);
    chat_template_free(t);
    json_decref(context);
}

/* Every prefix of every shipped template parses or not; what parses renders or not. */
static void truncated_templates(void **state)
{
    (void)state;
    static const char *const names[] = {"gemma3", "llama3.2", "qwen2.5-coder", "qwen3.5",
                                        "qwen3",  "smollm2",  "smollm3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[100];
        size_t len = 0;
        snprintf(path, sizeof path, "chat/templates/%s.jinja", names[i]);
        char *source = read_whole(fixture(path), &len);
        assert_non_null(source);
        for (size_t n = 0; n <= len; n++) {
            struct err e = {0};
            char *cut = malloc(n + !n); /* of the exact size, for AddressSanitizer */
            memcpy(cut, source, n);
            struct program *p = program_parse(cut, n, &e);
            free(cut);
            assert_true(p || e.code == ERR_INVALID);
            program_free(p);
        }
        free(source);
    }
}

/* Returns NULL if all went as it should (cmocka's assertions work on its own thread only). */
static void *render_deep(void *arg)
{
    json_t *context = small_context();
    static const char *const sources[] = {
        "{{ deep }}",
        "{{ deep|tojson }}",
        "{{ deep == deep }}",
        "{% macro f(x) %}{% if x %}{% for y in [x] %}{{ [(f(x - 1) ~ '')|upper] }}{% endfor %}{% endif %}"
        "{% endmacro %}{{ f(9999) }}",
        "{% for x in deep recursive %}{% filter upper %}{{ loop(x)|trim }}{% endfilter %}{% endfor %}",
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        wrong += outcome_of(sources[i], strlen(sources[i]), context) != ERR_INVALID;
    char *nested = repeated("{{ ", "[(", 40, "1"), *closed = repeated(nested, ")]", 40, " }}");
    wrong += outcome_of(closed, strlen(closed), context) != ERR_NONE;
    free(nested);
    free(closed);
    json_decref(context);
    return wrong ? arg : NULL;
}

/* The depth limit fits a thread with a small stack. */
static void depth_fits_the_stack(void **state)
{
    (void)state;
    static int marker;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)STACK_KIB << 10), 0);
    void *failed = NULL;
    assert_int_equal(pthread_create(&thread, &attr, render_deep, &marker), 0);
    pthread_join(thread, &failed);
    pthread_attr_destroy(&attr);
    assert_null(failed);
}

struct shared {
    struct chat_template *t;
    json_t *context;
    const char *want;
};

static void *render_many(void *arg)
{
    const struct shared *s = arg;
    for (int i = 0; i < 300; i++) {
        struct chat_text text;
        struct err e;
        if (chat_template_render(s->t, s->context, 0, &text, &e) || strcmp(text.text, s->want))
            return arg;
        chat_text_free(&text);
    }
    return NULL;
}

static void one_template_on_several_threads(void **state)
{
    (void)state;
    const char *source = "{% macro f(x, y='é—') %}{{ y[1] }}{{ x|length }}{% endmacro %}"
                         "{% for x in xs|sort %}{{ f(x ~ 'ü') }},{% endfor %}{{ 'é—ü'[::-1] }}{{ s|length }}";
    struct err e = {0};
    struct shared s = {.t = chat_template_parse(source, strlen(source), &e),
                       .context = small_context(),
                       .want = "—2,—2,—2,ü—é3"};
    pthread_t threads[4];
    assert_non_null(s.t);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, &s), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    chat_template_free(s.t);
    json_decref(s.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(large_operations_are_charged),
        cmocka_unit_test(the_full_budget_is_short),
        cmocka_unit_test(malformed_templates_are_refused),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(truncated_templates),
        cmocka_unit_test(depth_fits_the_stack),
        cmocka_unit_test(one_template_on_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
