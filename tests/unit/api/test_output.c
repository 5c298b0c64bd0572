/* The output pipeline: the text that a client sees depends on the answer's bytes alone, never on how tokens
 * cut them, and no byte of a stop string is ever given out. */
#include <jansson.h>

#include "api/output.h"
#include "unit.h"

static struct model_file *file;
static struct tokenizer *tokenizer;
static int32_t byte_ids[256]; /* the token that is this byte alone; -1 = none */

static int set_up(void **state)
{
    (void)state;
    struct err e = {0};
    file = model_file_open(fixture("models/llama-tiny"), &e);
    tokenizer = file ? tokenizer_open(file, &e) : NULL;
    if (!tokenizer)
        return -1;
    memset(byte_ids, -1, sizeof byte_ids);
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        size_t len;
        const char *bytes = tokenizer_bytes(tokenizer, id, &len);
        if (len == 1 && !tokenizer_is_special(tokenizer, id))
            byte_ids[(unsigned char)bytes[0]] = id;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    model_file_close(file);
    return 0;
}

struct result {
    struct str text;
    int hit, n_tokens;
};

static const struct output_parsing no_parsing;

/* Runs ids through the pipeline. Every prefix of what is given out must be a prefix of `never_beyond` (NULL =
 * no check): text that is sent cannot be taken back. */
static struct result run(const int32_t *ids, size_t n, const char *const *stops, int n_stops, bool include,
                         int min_tokens, const char *never_beyond)
{
    struct stop_string list[4];
    for (int i = 0; i < n_stops; i++)
        list[i] = (struct stop_string){(char *)(uintptr_t)stops[i], strlen(stops[i])};
    struct output o;
    struct result r = {.hit = -1};
    struct parts parts = {0};
    output_init(&o, tokenizer, true, list, n_stops, include, min_tokens, &no_parsing);
    for (size_t i = 0; i < n && r.hit < 0; i++) {
        r.hit = output_add(&o, ids[i], &parts);
        r.n_tokens++;
        r.text = parts.content;
        assert_int_equal(utf8_valid_prefix(str_text(&r.text), r.text.len), r.text.len);
        if (never_beyond)
            assert_memory_equal(str_text(&r.text), never_beyond, r.text.len);
    }
    if (r.hit < 0)
        output_finish(&o, TEXT_STOPPED, &parts);
    r.text = parts.content; /* handed over */
    output_free(&o);
    return r;
}

/* The ids of text, one a byte. */
static size_t spell(const char *text, int32_t *ids)
{
    size_t n = 0;
    for (; text[n]; n++) {
        ids[n] = byte_ids[(unsigned char)text[n]];
        assert_true(ids[n] >= 0);
    }
    return n;
}

static void expect(const char *text, const char *const *stops, int n_stops, bool include,
                   const char *expected, int hit)
{
    int32_t ids[512];
    size_t n = spell(text, ids);
    struct result r = run(ids, n, stops, n_stops, include, 0, expected);
    assert_string_equal(str_text(&r.text), expected);
    assert_int_equal(r.hit, hit);
    str_free(&r.text);
    /* and as the tokenizer cuts it */
    struct token_list list = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, 0, &list, NULL), 0);
    r = run(list.ids, list.n, stops, n_stops, include, 0, expected);
    assert_string_equal(str_text(&r.text), expected);
    assert_int_equal(r.hit, hit);
    str_free(&r.text);
    token_list_free(&list);
}

static void test_stops(void **state)
{
    (void)state;
    expect("one two three", (const char *[]){"two"}, 1, false, "one ", 0);
    expect("one two three", (const char *[]){"two"}, 1, true, "one two", 0);
    expect("one two three", (const char *[]){"absent"}, 1, false, "one two three", -1);
    /* two that share a head; the other one comes */
    expect("say hello world", (const char *[]){"help", "hello w"}, 2, false, "say ", 1);
    /* a false start that overlaps the true one */
    expect("aaab", (const char *[]){"aab"}, 1, false, "a", 0);
    expect("ababac", (const char *[]){"abac"}, 1, false, "ab", 0);
    /* complete first wins; of two that end together the longer */
    expect("x abcd", (const char *[]){"abcd", "bc"}, 2, false, "x a", 1);
    expect("x abcd", (const char *[]){"cd", "abcd"}, 2, false, "x ", 1);
    /* at the very start, and of one character */
    expect("stop", (const char *[]){"st"}, 1, false, "", 0);
    expect("a\nb", (const char *[]){"\n"}, 1, false, "a", 0);
    /* a stop in characters of several bytes, cut anywhere */
    expect("gr\xc3\xbc\xc3\x9f dich \xe2\x82\xac"
           "5",
           (const char *[]){"\xe2\x82\xac"}, 1, false, "gr\xc3\xbc\xc3\x9f dich ", 0);
}

static void test_held_text_is_flushed(void **state)
{
    (void)state;
    /* the answer ends on a proper prefix of a stop string */
    expect("done ###", (const char *[]){"####"}, 1, false, "done ###", -1);
    expect("User", (const char *[]){"User:"}, 1, false, "User", -1);
    int32_t ids[8] = {byte_ids['a'], byte_ids[0xE2], byte_ids[0x82]};
    struct result r = run(ids, 3, (const char *[]){"zz"}, 1, false, 0, NULL);
    assert_string_equal(str_text(&r.text), "a\xEF\xBF\xBD"); /* half a character at the end */
    str_free(&r.text);
}

static void test_nothing_is_held_needlessly(void **state)
{
    (void)state;
    struct stop_string stop = {(char *)(uintptr_t) "END", 3};
    struct output o;
    struct parts delta = {0};
    output_init(&o, tokenizer, true, &stop, 1, false, 0, &no_parsing);
    output_add(&o, byte_ids['x'], &delta);
    assert_string_equal(str_text(&delta.content), "x"); /* cannot begin END: given out at once */
    output_add(&o, byte_ids['E'], &delta);
    assert_string_equal(str_text(&delta.content), "x");
    output_add(&o, byte_ids['x'], &delta);
    assert_string_equal(str_text(&delta.content), "xEx");
    parts_free(&delta);
    output_free(&o);
}

static void test_min_tokens(void **state)
{
    (void)state;
    int32_t ids[64];
    size_t n = spell("a.b.c.d", ids);
    struct result r = run(ids, n, (const char *[]){"."}, 1, false, 3, NULL);
    assert_string_equal(str_text(&r.text), "a.b"); /* the first one ends within the first three tokens */
    assert_int_equal(r.hit, 0);
    assert_int_equal(r.n_tokens, 4);
    str_free(&r.text);
}

/* What the stop rule means, said again the slow way: the shortest prefix of text that ends in a stop. */
static size_t reference_cut(const char *text, const char *const *stops, int n_stops)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            size_t len = strlen(stops[i]);
            if (len <= end && len > longest && memcmp(text + end - len, stops[i], len) == 0)
                longest = len;
        }
        if (longest)
            return end - longest;
    }
    return strlen(text);
}

/* Recorded streams of ids, with stops taken from their own text, as recorded and spelled byte by byte. */
static void test_recorded_streams(void **state)
{
    (void)state;
    size_t len;
    char *lines = read_whole(fixture("tokenizers/stream-llama-tiny.jsonl"), &len);
    assert_non_null(lines);
    int checked = 0;
    unsigned random = 1;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *record = json_loads(line, 0, NULL);
        json_t *list = json_object_get(record, "ids");
        size_t n = json_array_size(list);
        int32_t *ids = calloc(n + 1, sizeof *ids);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        struct str text = {0};
        tokenizer_decode(tokenizer, ids, n, true, &text);
        struct result plain = run(ids, n, NULL, 0, false, 0, str_text(&text));
        assert_string_equal(str_text(&plain.text), str_text(&text));
        str_free(&plain.text);
        if (text.len < 4 || strstr(text.data, "\xEF\xBF\xBD") || strlen(text.data) != text.len) {
            str_free(&text);
            free(ids);
            json_decref(record);
            continue;
        }
        int32_t *spelled = calloc(text.len + 1, sizeof *spelled);
        size_t n_spelled = spell(text.data, spelled);
        for (int k = 0; k < 30; k++) {
            char stops[2][16];
            const char *given[2] = {stops[0], stops[1]};
            for (int i = 0; i < 2; i++) {
                random = random * 1103515245u + 12345u;
                size_t size = 1 + (random >> 16) % 8;
                if (size > text.len)
                    size = text.len;
                size_t at = (random >> 20) % (text.len - size + 1);
                /* whole characters: a client cannot send half of one */
                while (at > 0 && ((unsigned char)text.data[at] & 0xC0) == 0x80)
                    at--;
                while (((unsigned char)text.data[at + size] & 0xC0) == 0x80)
                    size++;
                memcpy(stops[i], text.data + at, size);
                stops[i][size] = '\0';
            }
            int n_stops = 1 + k % 2;
            char *expected = strndup(text.data, reference_cut(text.data, given, n_stops));
            for (int way = 0; way < 2; way++) {
                struct result r =
                    run(way ? spelled : ids, way ? n_spelled : n, given, n_stops, false, 0, expected);
                assert_string_equal(str_text(&r.text), expected);
                str_free(&r.text);
                checked++;
            }
            free(expected);
        }
        free(spelled);
        str_free(&text);
        free(ids);
        json_decref(record);
    }
    free(lines);
    assert_true(checked > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_held_text_is_flushed),
        cmocka_unit_test(test_nothing_is_held_needlessly),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_recorded_streams),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
