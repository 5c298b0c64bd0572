/* Tokenizers written as GGUF: equal to what the reference's converter wrote for the same tokenizer, the same
 * ids after reading back, and refusals for what GGUF cannot say. */
#include "file/build.h"
#include "text/open.h"

#include "file/gguf.h"
#include "text/write_gguf.h"

static struct err e;

/* Writes the tokenizer of `dir` for `rows` rows, and opens the file. */
static struct model_file *converted(const char *dir, int rows)
{
    struct model_file *hf = model_file_open_tokenizer(dir, &e);
    if (!hf)
        fail_msg("%s", e.msg);
    struct gguf_writer *w = gguf_writer_open(temp_path("t.gguf"), &e);
    if (tokenizer_write_gguf(hf, rows, w, &e) || gguf_writer_begin(w, &e) || gguf_writer_finish(w, &e))
        fail_msg("%s", e.msg);
    gguf_writer_close(w);
    model_file_close(hf);
    struct model_file *f = model_file_open(temp_path("t.gguf"), &e);
    assert_non_null(f);
    return f;
}

/* The element of an array as text, whatever it is made of; NULL past its end. */
static const char *element(const struct gguf *g, const char *key, int64_t i, char *buf, size_t n)
{
    size_t len;
    int64_t v;
    const char *s = gguf_array_str(g, key, i, &len);
    if (s)
        snprintf(buf, n, "%.*s", (int)len, s);
    else if (gguf_array_i64(g, key, i, &v))
        snprintf(buf, n, "%lld", (long long)v);
    else
        return NULL;
    return buf;
}

static void same_array(const struct gguf *a, const struct gguf *b, const char *key, int64_t n)
{
    char x[600], y[600];
    for (int64_t i = 0; i < n; i++) {
        const char *s = element(a, key, i, x, sizeof x), *t = element(b, key, i, y, sizeof y);
        if (!s || !t || strcmp(s, t) != 0)
            fail_msg("%s[%lld]: \"%s\", want \"%s\"", key, (long long)i, s ? s : "(none)", t ? t : "(none)");
    }
}

/* That converter calls control whatever is written <|so|>; tokenizer.json's word is kept here. */
static void same_types(const struct gguf *got, const struct gguf *want, const struct tokenizer *hf, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t x, y;
        size_t len;
        assert_true(gguf_array_i64(got, "tokenizer.ggml.token_type", i, &x));
        assert_true(gguf_array_i64(want, "tokenizer.ggml.token_type", i, &y));
        const char *name = tokenizer_name(hf, (int32_t)i, &len);
        if (x == 4 && y == 3 && !tokenizer_is_special(hf, (int32_t)i) && strncmp(name, "<|", 2) == 0)
            continue;
        if (x != y)
            fail_msg("the type of %.*s is %lld, want %lld", (int)len, name, (long long)x, (long long)y);
    }
}

static void same_scalar(const struct gguf *a, const struct gguf *b, const char *key)
{
    int64_t x = -1, y = -1;
    gguf_i64(a, key, &x);
    gguf_i64(b, key, &y);
    if (x != y)
        fail_msg("%s: %lld, want %lld", key, (long long)x, (long long)y);
    const char *s = gguf_str(a, key, NULL), *t = gguf_str(b, key, NULL);
    assert_true(!s == !t);
    if (s)
        assert_string_equal(s, t);
}

static void test_equals_the_reference_converter(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *gguf;
    } pairs[] = {{"models/qwen35-tiny", "gguf/qwen35-tiny-q8_0.gguf"},
                 {"models/qwen3-tiny", "gguf/qwen3-tiny-q8_0.gguf"},
                 {"models/qwen2-tiny", "gguf/qwen2-tiny-f16.gguf"},
                 {"models/llama3-tiny", "gguf/llama3-tiny-bf16.gguf"},
                 {"models/llama-tiny", "gguf/llama-tiny-f16.gguf"}};
    for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        struct model_file *want = model_file_open(fixture(pairs[k].gguf), &e);
        assert_non_null(want);
        int64_t rows = gguf_array_len(want->gguf, "tokenizer.ggml.tokens");
        struct model_file *got = converted(fixture(pairs[k].dir), (int)rows);
        struct tokenizer *own = open_gguf(temp_path("t.gguf"), &e), *hf = open_dir(fixture(pairs[k].dir), &e);
        assert_true(own && hf);
        assert_int_equal(gguf_array_len(got->gguf, "tokenizer.ggml.tokens"), rows);
        /* ids past the tokenizer's are called otherwise there */
        same_array(got->gguf, want->gguf, "tokenizer.ggml.tokens", tokenizer_size(hf));
        same_types(got->gguf, want->gguf, hf, rows);
        int64_t n_merges = gguf_array_len(want->gguf, "tokenizer.ggml.merges");
        assert_int_equal(gguf_array_len(got->gguf, "tokenizer.ggml.merges"), n_merges);
        same_array(got->gguf, want->gguf, "tokenizer.ggml.merges", n_merges);
        same_scalar(got->gguf, want->gguf, "tokenizer.ggml.model");
        same_scalar(got->gguf, want->gguf, "tokenizer.ggml.pre");
        same_scalar(got->gguf, want->gguf, "tokenizer.ggml.eos_token_id");
        same_scalar(got->gguf, want->gguf, "tokenizer.chat_template");
        assert_int_equal(tokenizer_adds_bos(own), tokenizer_adds_bos(hf));
        assert_int_equal(tokenizer_bos(own), tokenizer_bos(hf));
        int32_t stops[8], own_stops[8];
        int n = tokenizer_stop_ids(hf, stops, 8), n_own = tokenizer_stop_ids(own, own_stops, 8);
        for (int i = 0; i < n; i++) {
            int at = 0;
            while (at < n_own && own_stops[at] != stops[i])
                at++;
            assert_true(at < n_own);
        }
        tokenizer_free(own);
        tokenizer_free(hf);
        model_file_close(got);
        model_file_close(want);
    }
}

/* A directory of the fixtures, a tokenizer.json in it, and things that are neither. */
static void test_paths(void **state)
{
    (void)state;
    char path[1200];
    snprintf(path, sizeof path, "%s/tokenizer.json", fixture("models/qwen35-tiny"));
    struct model_file *f = model_file_open_tokenizer(path, &e);
    assert_non_null(f);
    assert_non_null(f->tokenizer);
    assert_non_null(f->chat_template);
    assert_int_equal(f->n_tensors, 0);
    model_file_close(f);
    temp_write_text("my-tokenizer.json", "{}");
    assert_null(model_file_open_tokenizer(temp_path("my-tokenizer.json"), &e));
    assert_non_null(strstr(e.msg, "must be called tokenizer.json"));
    assert_null(model_file_open_tokenizer(temp_dir, &e));
    assert_non_null(strstr(e.msg, "there is no tokenizer.json"));
    assert_null(model_file_open_tokenizer("/no/such/place", &e));
    temp_write_text("tokenizer.json", "[");
    assert_null(model_file_open_tokenizer(temp_path("tokenizer.json"), &e));
    assert_non_null(strstr(e.msg, "tokenizer.json: line 1"));
}

static void refused(const char *dir, int rows, const char *words)
{
    struct model_file *hf = model_file_open_tokenizer(dir, &e);
    assert_non_null(hf);
    struct gguf_writer *w = gguf_writer_open(temp_path("t.gguf"), &e);
    assert_int_equal(tokenizer_write_gguf(hf, rows, w, &e), -1);
    if (!strstr(e.msg, words))
        fail_msg("expected \"%s\", got: %s", words, e.msg);
    gguf_writer_close(w);
    model_file_close(hf);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(fixture("models/gemma3-tiny"), 1 << 20, "only byte-level BPE can be written");
    refused(fixture("models/qwen35-tiny"), 500, "tokens, more than the model's 500");
    temp_write_text("tokenizer.json",
                    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []},"
                    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
                    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}, \"behavior\": \"Isolated\", "
                    "\"invert\": false}, {\"type\": \"ByteLevel\", \"use_regex\": false, "
                    "\"add_prefix_space\": false}]}}");
    refused(temp_dir, 500, "GGUF has no name for its way of cutting texts");
}

/* All byte values come back, controls are matched, and the other ids exist. */
static void test_bytes(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_open(temp_path("b.gguf"), &e);
    tokenizer_write_bytes("qwen35", 1000, w);
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    assert_int_equal(gguf_writer_finish(w, &e), 0);
    gguf_writer_close(w);
    struct tokenizer *t = open_gguf(temp_path("b.gguf"), &e);
    if (!t)
        fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_size(t), 1000);
    for (int byte = 0; byte < 256; byte++) {
        size_t len;
        const char *s = tokenizer_bytes(t, byte, &len);
        assert_int_equal(len, 1);
        assert_int_equal((uint8_t)*s, byte);
    }
    assert_ids(t, "a\xC3\xA9 z", 0, 'a', 0xC3, 0xA9, ' ', 'z');
    assert_ids(t, "<|im_start|>u\n<|im_end|>", TOKENIZER_PARSE_SPECIAL, 257, 'u', '\n', 258);
    assert_ids(t, "<|unused_300|>", TOKENIZER_PARSE_SPECIAL, '<', '|', 'u', 'n', 'u', 's', 'e', 'd', '_', '3',
               '0', '0', '|', '>');
    struct str text = {0};
    tokenizer_decode(t, (const int32_t[]){'x', 300, 258}, 3, true, &text);
    assert_string_equal(str_text(&text), "x<|unused_300|>");
    str_free(&text);
    assert_int_equal(tokenizer_eos(t), 258);
    int32_t stops[8];
    assert_int_equal(tokenizer_stop_ids(t, stops, 8), 2);
    assert_int_equal(stops[0], 258);
    assert_int_equal(stops[1], 256);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equals_the_reference_converter, temp_setup, temp_teardown),
        cmocka_unit_test_setup_teardown(test_paths, temp_setup, temp_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, temp_setup, temp_teardown),
        cmocka_unit_test_setup_teardown(test_bytes, temp_setup, temp_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
