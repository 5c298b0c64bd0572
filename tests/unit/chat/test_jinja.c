/* Every golden case: Jinja snippets and the shipped chat templates, rendered text or error, against what
 * transformers' environment gave. */
#include "unit.h"

#include <jansson.h>

#include "chat/template.h"

#define NOW 1741064767 /* 2025-03-04 05:06:07 UTC, as the fixtures' strftime_now */

/* Reads one line of a .jsonl file; NULL at its end. */
static json_t *next_line(char **at)
{
    char *end = strchr(*at, '\n');
    if (!**at)
        return NULL;
    size_t len = end ? (size_t)(end - *at) : strlen(*at);
    json_error_t je;
    json_t *j = json_loadb(*at, len, JSON_ALLOW_NUL, &je);
    if (!j)
        fail_msg("bad fixture line: %s", je.text);
    *at += len + (end != NULL);
    return j;
}

/* Renders and compares with the case's "rendered" or "error". Returns whether it agrees. */
static int agrees(const char *source, size_t len, json_t *test)
{
    struct err e = {0};
    struct chat_text text = {0};
    json_t *rendered = json_object_get(test, "rendered"), *error = json_object_get(test, "error");
    struct chat_template *t = chat_template_parse(source, len, &e);
    int rc = t ? chat_template_render(t, json_object_get(test, "context"), NOW, &text, &e) : -1;
    int ok;
    if (rendered) {
        ok = !rc && text.len == json_string_length(rendered) &&
             !memcmp(text.text, json_string_value(rendered), text.len);
    } else {
        const char *type = json_string_value(json_object_get(test, "error_type"));
        ok = rc && e.code != ERR_NONE && e.msg[0];
        if (!strcmp(type, "TemplateError"))
            ok = ok && e.code == ERR_RAISED && !strcmp(e.msg, json_string_value(error));
        else
            ok = ok && e.code == ERR_INVALID && strstr(e.msg, "line ");
    }
    if (!ok)
        print_error("template: %.*s\n  want: %s\n  got:  %s\n", len > 300 ? 300 : (int)len, source,
                    json_string_value(rendered ? rendered : error), rc ? e.msg : text.text);
    chat_text_free(&text);
    chat_template_free(t);
    return ok;
}

static void jinja_snippets(void **state)
{
    (void)state;
    char *data = read_whole(fixture("chat/jinja.jsonl"), NULL), *at = data;
    assert_non_null(data);
    int n = 0, bad = 0;
    for (json_t *test; (test = next_line(&at)); n++) {
        json_t *source = json_object_get(test, "template_source");
        bad += !agrees(json_string_value(source), json_string_length(source), test);
        json_decref(test);
    }
    free(data);
    assert_true(n > 200);
    assert_int_equal(bad, 0);
}

static void chat_templates(void **state)
{
    (void)state;
    char *data = read_whole(fixture("chat/chat.jsonl"), NULL), *at = data;
    assert_non_null(data);
    int n = 0, bad = 0;
    for (json_t *test; (test = next_line(&at)); n++) {
        char path[200];
        size_t len = 0;
        snprintf(path, sizeof path, "chat/templates/%s.jinja",
                 json_string_value(json_object_get(test, "template")));
        char *source = read_whole(fixture(path), &len);
        assert_non_null(source);
        bad += !agrees(source, len, test);
        free(source);
        json_decref(test);
    }
    free(data);
    assert_true(n > 200);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(jinja_snippets), cmocka_unit_test(chat_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
