/* What a tokenizer does with texts that the golden cases do not have: hostile sizes, bytes that are no
 * characters, marks of literal text, limits; and the small contracts of its other calls. */
#include "text/open.h"

#include <pthread.h>

static struct tokenizer *qwen, *smol, *llama3, *gemma, *gemma_gguf;

static int setup(void **state)
{
    (void)state;
    struct err e = {0};
    qwen = open_dir(fixture("models/qwen35-tiny"), &e);
    smol = open_gguf(fixture("gguf/llama-tiny-f16.gguf"), &e);
    llama3 = open_dir(fixture("models/llama3-tiny"), &e);
    gemma = open_dir(fixture("models/gemma3-tiny"), &e);
    if (fixture_exists("gguf/gemma3-tiny-f16.gguf"))
        gemma_gguf = open_gguf(fixture("gguf/gemma3-tiny-f16.gguf"), &e);
    return qwen && smol && llama3 && gemma ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(qwen);
    tokenizer_free(smol);
    tokenizer_free(llama3);
    tokenizer_free(gemma);
    tokenizer_free(gemma_gguf);
    return 0;
}

/* Encodes, decodes, and expects the same bytes back. Returns the number of ids. */
static size_t round_trip(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_list ids = encode_marked(t, text, len, NULL, TOKENIZER_PARSE_SPECIAL);
    struct str bytes = {0};
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *b = tokenizer_bytes(t, ids.ids[i], &n);
        str_add(&bytes, b, n);
    }
    assert_int_equal(bytes.len, len);
    assert_memory_equal(str_text(&bytes), text, len);
    size_t n = ids.n;
    str_free(&bytes);
    token_list_free(&ids);
    return n;
}

/* A text of len bytes that repeats `unit` is encoded, and the ids are not more than the bytes. */
static void repeat(const struct tokenizer *t, const char *unit, size_t len)
{
    const size_t n = strlen(unit);
    char *text = malloc(len);
    assert_non_null(text);
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % n];
    struct token_list ids = encode_marked(t, text, len - len % n, NULL, TOKENIZER_PARSE_SPECIAL);
    assert_true(ids.n > 0 && ids.n <= len);
    token_list_free(&ids);
    free(text);
}

/* A megabyte that is one word, one run, one heap: quadratic code would not come back from these. */
static void megabytes(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "\xCC\x81\xCC\xA7" /* marks in the wrong order */};
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        repeat(qwen, units[u], 1 << 20);
        repeat(gemma, units[u], 1 << 20);
    }
}

static void long_runs(void **state)
{
    (void)state;
    const struct tokenizer *all[] = {qwen, smol, llama3, gemma, gemma_gguf};
    static const char *const units[] = {"a", " ", "\n",       " \n",       "\xE2\x96\x81",
                                        "'", "1", "\xCC\x81", "<|im_end|", "<|im_end|>"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t u = 0; all[i] && u < sizeof units / sizeof units[0]; u++)
            repeat(all[i], units[u], 1 << 15);
}

static void random_bytes(void **state)
{
    (void)state;
    const size_t n = 1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        text[i] = (char)(x >> 24);
    }
    round_trip(smol, text, n);
    round_trip(gemma, text, n);
    struct token_list ids = encode_marked(qwen, text, n, NULL, 0); /* NFC may change it */
    assert_true(ids.n > 0);
    token_list_free(&ids);
    free(text);
}

/* One tokenizer, several threads. */
static void *encode_often(void *arg)
{
    (void)arg;
    size_t n = 0;
    for (int i = 0; i < 50; i++) {
        struct token_list ids = {0};
        const char *text = "It's 2025<|im_end|>\n\n  e\xCC\x81t\xC3\xA9 \xFF";
        if (tokenizer_encode(qwen, text, strlen(text), NULL, TOKENIZER_PARSE_SPECIAL, 0, &ids, NULL) == 0)
            n += ids.n;
        token_list_free(&ids);
    }
    return (void *)n;
}

static void shared_between_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    void *counts[4], *alone = encode_often(NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, NULL), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &counts[i]);
        assert_ptr_equal(counts[i], alone);
    }
}

static void invalid_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } texts[] = {
        {"\xFF", 1},
        {"ab\x80 cd", 6},
        {"\xE2\x82", 2},
        {"\xED\xA0\x80", 3},
        {"\xC0\xAF", 2},
        {"\xF4\x90\x80\x80", 4},
        {"a\0b\0\0", 5},
        {"\0", 1},
        {"hi \xF0\x9F\x98", 6},
        {"\xF0\x9F\x98\x80\xF0", 5},
        {"<|im_end|>\xFF<|im_end|>", 21},
    };
    const struct tokenizer *all[] = {qwen, smol, llama3, gemma, gemma_gguf};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t j = 0; all[i] && j < sizeof texts / sizeof texts[0]; j++)
            assert_true(round_trip(all[i], texts[j].text, texts[j].len) > 0);
    /* the tokens on both sides of a bad byte are still recognised */
    struct token_list ids =
        encode_marked(qwen, "<|im_end|>\xFF<|im_end|>", 21, NULL, TOKENIZER_PARSE_SPECIAL);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.ids[0], tokenizer_find(qwen, "<|im_end|>"));
    assert_int_equal(ids.ids[2], ids.ids[0]);
    token_list_free(&ids);
}

/* Without byte tokens, bad bytes are the replacement character. */
static void no_byte_tokens(void **state)
{
    (void)state;
    struct err e;
    struct tokenizer *t = open_text("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,"
                                    "\"vocab\":{\"?\":0,\"a\":1,\"\xEF\xBF\xBD\":2},\"merges\":[]}}",
                                    &e);
    assert_non_null(t);
    assert_ids(t,
               "a\xFF"
               "a",
               0, 1, 2, 1);
    assert_ids(t, "axyza", 0, 1, 0, 1);
    tokenizer_free(t);
    t = open_text(
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1},\"merges\":[]}}", &e);
    assert_non_null(t);
    assert_ids(t, "axya\xFF", 0, 1, 0, 0, 1, 0);
    tokenizer_free(t);
}

/* --- literal text --------------------------------------------------------------------------------- */

static bool has_id(const struct token_list *l, int32_t id)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->ids[i] == id)
            return true;
    return false;
}

/* Every placement of one literal byte over "<|im_end|>" hides it; beside it, it is found. */
static void literal_hides_tokens(void **state)
{
    (void)state;
    static const char *const names[] = {"<|im_end|>", "<think>"};
    const char *before = "a";
    for (int which = 0; which < 2; which++) {
        char text[40];
        snprintf(text, sizeof text, "%s%s%s", before, names[which], before);
        size_t len = strlen(text);
        int32_t id = tokenizer_find(qwen, names[which]);
        assert_true(id >= 0);
        for (size_t i = 0; i < len; i++) {
            uint8_t literal[40] = {0};
            literal[i] = 255;
            struct token_list ids = encode_marked(qwen, text, len, literal, TOKENIZER_PARSE_SPECIAL);
            assert_int_equal(has_id(&ids, id), i == 0 || i == len - 1);
            struct str back = {0};
            tokenizer_decode(qwen, ids.ids, ids.n, false, &back);
            assert_string_equal(back.data, text);
            str_free(&back);
            token_list_free(&ids);
        }
    }
    /* "<think>" without special parsing is a token, unless it is literal */
    uint8_t all[7];
    memset(all, 1, sizeof all);
    struct token_list ids = encode(qwen, "<think>", 0);
    assert_int_equal(ids.n, 1);
    token_list_free(&ids);
    ids = encode_marked(qwen, "<think>", 7, all, TOKENIZER_PARSE_SPECIAL);
    assert_true(ids.n > 1);
    token_list_free(&ids);
}

/* Gemma's newline runs are text, in a message as well; its control tokens are not. */
static void literal_newlines(void **state)
{
    (void)state;
    const struct tokenizer *all[] = {gemma, gemma_gguf};
    const char *text = "a\n\n<end_of_turn>";
    uint8_t literal[17];
    memset(literal, 1, sizeof literal);
    for (int i = 0; i < 2 && all[i]; i++) {
        struct token_list ids = encode_marked(all[i], text, strlen(text), literal, TOKENIZER_PARSE_SPECIAL);
        assert_true(has_id(&ids, tokenizer_find(all[i], "\n\n")));
        assert_false(has_id(&ids, tokenizer_find(all[i], "<end_of_turn>")));
        token_list_free(&ids);
    }
}

/* Tokens that are matched in normalised text: marks follow the text through NFC and replacement. */
static const char normalized_json[] =
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":false,\"unk_token\":\"?\",\"vocab\":{\"?\":0,"
    "\"\xE2\x96\x81\":1,"
    "\"a\":2,\"\xC3\xA9\":3,\"<\":4,\">\":5},\"merges\":[]},"
    "\"added_tokens\":[{\"id\":9,\"content\":\"<a a>\",\"normalized\":true,\"special\":true},"
    "{\"id\":10,\"content\":\"<\xC3\xA9>\",\"normalized\":true,\"special\":false}]}";

static void literal_normalized(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t = open_text(normalized_json, &e);
    if (!t)
        print_error("%s\n", e.msg);
    assert_non_null(t);
    assert_ids(t, "a <a a>", TOKENIZER_PARSE_SPECIAL, 2, 1, 9);
    assert_ids(t, "a<e\xCC\x81>", 0, 2, 10); /* decomposed in the text, composed when matched */
    assert_ids(t, "a <a a>", 0, 2, 1, 4, 2, 1, 2, 5);
    for (size_t i = 0; i < 7; i++) {
        uint8_t literal[7] = {0};
        literal[i] = 1;
        struct token_list ids = encode_marked(t, "a <a a>", 7, literal, TOKENIZER_PARSE_SPECIAL);
        assert_int_equal(has_id(&ids, 9), i < 2);
        token_list_free(&ids);
    }
    for (size_t i = 0; i < 6; i++) {
        uint8_t literal[6] = {0};
        literal[i] = 1;
        struct token_list ids = encode_marked(t, "a<e\xCC\x81>", 6, literal, TOKENIZER_PARSE_SPECIAL);
        assert_int_equal(has_id(&ids, 10), i == 0);
        token_list_free(&ids);
    }
    tokenizer_free(t);
}

/* --- added tokens --------------------------------------------------------------------------------- */

static const char strips_json[] = "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\" "
                                  "\":1,\"a\":2,\"b\":3,\"[\":4,\"]\":5},"
                                  "\"merges\":[]},\"added_tokens\":["
                                  "{\"id\":10,\"content\":\"[l]\",\"lstrip\":true,\"special\":true},"
                                  "{\"id\":11,\"content\":\"[r]\",\"rstrip\":true,\"special\":true},"
                                  "{\"id\":12,\"content\":\"ab\",\"single_word\":true,\"special\":false},"
                                  "{\"id\":13,\"content\":\"[l]]\",\"special\":true},"
                                  "{\"id\":14,\"content\":\"[[r]\",\"special\":true}]}";

static void strips_and_words(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t = open_text(strips_json, &e);
    assert_non_null(t);
    const unsigned special = TOKENIZER_PARSE_SPECIAL;
    assert_ids(t, "a  [l] a", special, 2, 10, 1, 2);
    assert_ids(t,
               "a [r]\t \xE3\x80\x80"
               "a",
               special, 2, 1, 11, 2);
    assert_ids(t, "[r] [l]", special, 11, 10); /* the space is taken once */
    assert_ids(t, "[l]]", special, 13);        /* the longest */
    assert_ids(t, "[[r]", special, 14);        /* the leftmost */
    assert_ids(t, "ab aab ab", special, 12, 1, 2, 2, 3, 1, 12);
    assert_ids(t, "ab\xC3\xA9 ab", special, 2, 3, 0, 1, 12); /* a letter by Unicode */
    /* literal white space stays where it is */
    uint8_t literal[8] = {0, 1, 0, 0, 0, 0, 0, 0};
    struct token_list ids = encode_marked(t, "a  [l] a", 8, literal, special);
    const int32_t want[] = {2, 1, 10, 1, 2};
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.ids, want, sizeof want);
    token_list_free(&ids);
    tokenizer_free(t);
}

/* --- limits and the rest -------------------------------------------------------------------------- */

static void token_limit(void **state)
{
    (void)state;
    struct token_list all = encode(qwen, "one two three four", 0), ids = {0};
    struct err e = {0};
    token_list_add(&ids, 5); /* what is there already does not count */
    assert_int_equal(tokenizer_encode(qwen, "one two three four", 18, NULL, 0, all.n, &ids, &e), 0);
    assert_int_equal(ids.n, all.n + 1);
    assert_int_equal(tokenizer_encode(qwen, "one two three four", 18, NULL, 0, all.n - 1, &ids, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    token_list_free(&ids);
    token_list_free(&all);
}

static void special_ids(void **state)
{
    (void)state;
    assert_true(tokenizer_adds_bos(llama3));
    assert_ids(llama3, "", TOKENIZER_ADD_SPECIAL, 960);
    assert_false(tokenizer_adds_bos(qwen));
    assert_false(tokenizer_adds_bos(smol));
    assert_true(tokenizer_adds_bos(gemma));
    assert_ids(gemma, "", TOKENIZER_ADD_SPECIAL, 2);
    struct token_list none = encode(smol, "", TOKENIZER_ADD_SPECIAL);
    assert_int_equal(none.n, 0);
    token_list_free(&none);

    int32_t ids[8];
    assert_int_equal(tokenizer_stop_ids(qwen, ids, 8), 2);
    assert_int_equal(ids[0], tokenizer_find(qwen, "<|im_end|>"));
    assert_int_equal(ids[1], tokenizer_find(qwen, "<|endoftext|>"));
    assert_int_equal(tokenizer_stop_ids(qwen, ids, 1), 1);
    assert_int_equal(tokenizer_stop_ids(smol, ids, 8), 2); /* a GGUF: the second by name */
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], tokenizer_find(smol, "<|endoftext|>"));
    const struct tokenizer *gemmas[] = {gemma, gemma_gguf};
    for (int i = 0; i < 2 && gemmas[i]; i++) {
        assert_int_equal(tokenizer_eos(gemmas[i]), 1);
        assert_int_equal(tokenizer_bos(gemmas[i]), 2);
        assert_int_equal(tokenizer_stop_ids(gemmas[i], ids, 8), 2);
        assert_int_equal(ids[0], 1);
        assert_int_equal(ids[1], tokenizer_find(gemmas[i], "<end_of_turn>"));
    }
}

static void outside_the_vocabulary(void **state)
{
    (void)state;
    const int32_t ids[] = {-1, INT32_MIN, INT32_MAX, tokenizer_size(qwen), tokenizer_size(qwen) + 5};
    size_t len;
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(tokenizer_bytes(qwen, ids[i], &len), "");
        assert_int_equal(len, 0);
        assert_string_equal(tokenizer_name(qwen, ids[i], &len), "");
        assert_false(tokenizer_is_special(qwen, ids[i]));
    }
    struct str out = {0};
    tokenizer_decode(qwen, ids, 5, false, &out);
    assert_int_equal(out.len, 0);
    str_free(&out);
    /* a GGUF pads its vocabulary to the embedding's rows: those are no text */
    assert_int_equal(tokenizer_find(smol, "[PAD1020]"), -1);
    tokenizer_bytes(smol, 1020, &len);
    assert_int_equal(len, 0);
    assert_int_equal(tokenizer_find(qwen, "no such token"), -1);
}

static void names_and_bytes(void **state)
{
    (void)state;
    int32_t id = tokenizer_find(qwen, "\xC4\xA0the"); /* "Ġthe" */
    assert_true(id >= 0);
    size_t len;
    const char *bytes = tokenizer_bytes(qwen, id, &len);
    assert_int_equal(len, 4);
    assert_memory_equal(bytes, " the", 4);
    const char *name = tokenizer_name(qwen, id, &len);
    assert_int_equal(len, 5);
    assert_memory_equal(name, "\xC4\xA0the", 5);
}

static void skip_special(void **state)
{
    (void)state;
    struct token_list ids = encode(qwen, "<|im_start|>hi<think><|im_end|>", TOKENIZER_PARSE_SPECIAL);
    struct str out = {0};
    tokenizer_decode(qwen, ids.ids, ids.n, true, &out);
    assert_string_equal(out.data, "hi<think>");
    str_free(&out);
    token_list_free(&ids);
}

/* A leading space that the tokenizer put there is taken away again, once. */
static void leading_space(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t = open_text(
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"\xE2\x96\x81\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"\xE2\x96\x81\":0,\"a\":1,"
        "\"\xE2\x96\x81"
        "a\":2,\"<0x0A>\":3},\"merges\":[\"\xE2\x96\x81 a\"]}}",
        &e);
    assert_non_null(t);
    assert_ids(t, "a a\n", 0, 2, 2, 3);
    const int32_t ids[] = {2, 2, 3};
    struct str out = {0};
    tokenizer_decode(t, ids, 3, false, &out);
    assert_string_equal(out.data, "a a\n");
    str_free(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megabytes),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(shared_between_threads),
        cmocka_unit_test(invalid_bytes),
        cmocka_unit_test(no_byte_tokens),
        cmocka_unit_test(literal_hides_tokens),
        cmocka_unit_test(literal_newlines),
        cmocka_unit_test(literal_normalized),
        cmocka_unit_test(strips_and_words),
        cmocka_unit_test(token_limit),
        cmocka_unit_test(special_ids),
        cmocka_unit_test(outside_the_vocabulary),
        cmocka_unit_test(names_and_bytes),
        cmocka_unit_test(skip_special),
        cmocka_unit_test(leading_space),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
