/* Tokenizer files that are wrong, or of a kind that is not supported: each is refused with a message that
 * says what and where. */
#include "file/build.h"
#include "text/open.h"

/* --- tokenizer.json ------------------------------------------------------------------------------- */

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void refused_json(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } files[] = {
        {"{}", "\"model\" is missing"},
        {"[]", "\"model\" is missing"},
        {"{\"model\":[]}", "\"model\" is missing"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "a model has no \"type\""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\""},
        {"{\"model\":{\"type\":7,\"merges\":[]}}", "no \"type\""},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "\"model.vocab\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "\"model.vocab\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[\"a\"],\"merges\":[]}}", "\"model.vocab\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "\"model.merges\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":{}}}", "\"model.merges\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "id of \"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", "id of \"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "id -1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}", "id 4194304"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":9223372036854775807},\"merges\":[]}}", "outside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":3,\"b\":3},\"merges\":[]}}", "same id 3"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}", "\"ab\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"ax\":1},\"merges\":[\"a x\"]}}",
         "merges\"[0] names \"x\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merges\"[0] must be"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}", "merges\"[0] must be"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merges\"[0] must be"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", "merges\"[0] must be"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[null]}}", "merges\"[0] must be"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         "suffix"},
        {"{" MODEL ",\"added_tokens\":{}}", "\"added_tokens\" must be a list"},
        {"{" MODEL ",\"added_tokens\":[{}]}", "\"added_tokens\"[0]"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":\"5\",\"content\":\"x\"}]}", "\"added_tokens\"[0]"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5,\"content\":\"x\"},{\"id\":5,\"content\":\"y\"}]}",
         "same id 5"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]}", "same id 0"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":-2,\"content\":\"x\"}]}", "id -2"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":99999999999,\"content\":\"x\"}]}", "id 99999999999"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5,\"content\":\"\"}]}", "0 bytes"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}}", "a normalizer of type \"Precompiled\""},
        {"{" MODEL ",\"normalizer\":{}}", "a normalizer has no \"type\""},
        {"{" MODEL ",\"normalizer\":\"NFC\"}", "a normalizer has no \"type\""},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", "\"normalizers\""},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"},\"content\":\"\"}}",
         "Regex"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}}",
         "pattern"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}}", "\"content\""},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Prepend\"}}", "\"prepend\""},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspaces\"}}", "a pre-tokenizer of type \"Metaspaces\""},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}",
         "pattern \"(\": missing closing parenthesis"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":"
         "\"Isolated\"}}",
         "sets within sets"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":"
         "\"Isolated\"}}",
         "sets within sets"},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}}",
         "\"Sideways\""},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}}", "pattern"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
         "{\"type\":\"Digits\"}]}}",
         "after ByteLevel"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"RobertaProcessing\"}}", "\"RobertaProcessing\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\"}}", "\"single\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{}]}}", "\"single\"[0]"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"x\"}}]}}",
         "special_tokens"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"x\"}}],"
         "\"special_tokens\":{\"x\":{\"ids\":[77]}}}}",
         "outside the vocabulary"},
        {"{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", "a decoder of type \"WordPiece\""},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"x\",\"start\":1,\"stop\":0}}", "strips"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct err e = {0};
        struct tokenizer *t = open_text(files[i].json, &e);
        if (t || !strstr(e.msg, files[i].says) || strncmp(e.msg, "test/tokenizer.json: ", 21) != 0)
            print_error("%s\n  says: %s\n  want: %s\n", files[i].json, t ? "(opened)" : e.msg, files[i].says);
        assert_null(t);
        assert_non_null(strstr(e.msg, files[i].says));
        assert_int_not_equal(e.code, ERR_NONE);
    }
}

static void no_tokenizer(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(open_json(NULL, NULL, NULL, NULL, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "tokenizer.json"));
}

/* Endings of other files are passed over when they make no sense. */
static void odd_configs(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t =
        open_json(json_loads("{" MODEL "}", 0, NULL),
                  json_loads("{\"eos_token\":{\"content\":\"b\"},\"bos_token\":5}", 0, NULL),
                  json_loads("{\"eos_token_id\":[0,99,-1,\"x\",[2],null]}", 0, NULL),
                  json_loads("{\"text_config\":{\"eos_token_id\":2,\"bos_token_id\":0}}", 0, NULL), &e);
    assert_non_null(t);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_int_equal(tokenizer_bos(t), 0);
    int32_t ids[8];
    assert_int_equal(tokenizer_stop_ids(t, ids, 8), 3);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 0);
    assert_int_equal(ids[2], 2);
    tokenizer_free(t);
}

/* Text alone never becomes a special token, whatever the merges say. */
static void merges_make_nothing_special(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t =
        open_text("{" MODEL ",\"added_tokens\":[{\"id\":2,\"content\":\"ab\",\"special\":true}]}", &e);
    assert_non_null(t);
    assert_ids(t, "ab", 0, 0, 1);
    assert_ids(t, "ab", TOKENIZER_PARSE_SPECIAL, 2);
    tokenizer_free(t);
}

/* Each way a Split can treat its matches, and each of the other stages that are data. */
static void pretokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *stage;
        int32_t ids[8];
        int n;
    } cases[] = {
        /* "abab": the vocabulary has a 0, b 1, ab 2, ba 3, aba 4; what may merge shows the cut */
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Isolated\"}", {0, 1, 0, 1}, 4},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\"}", {0, 0}, 2},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithPrevious\"}",
         {2, 2},
         2},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithNext\"}", {0, 3, 1}, 3},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"MergedWithNext\"}", {2, 2}, 2},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"MergedWithPrevious\"}",
         {0, 3, 1},
         3},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a|b\"},\"behavior\":\"Contiguous\"}", {4, 1}, 2},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\",\"invert\":true}",
         {0, 0},
         2},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x*\"},\"behavior\":\"Isolated\"}", {4, 1}, 2},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=b)\\\\Ka\"},\"behavior\":\"Isolated\"}",
         {2, 0, 1},
         3},
        {"{\"type\":\"Digits\"}", {4, 1}, 2},
        {"null", {4, 1}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct str json = {0};
        struct err e = {0};
        str_addf(
            &json,
            "{\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3,"
            "\"aba\":4},\"merges\":[\"b a\",\"a ba\",\"a b\"]}}",
            cases[i].stage);
        struct tokenizer *t = open_text(json.data, &e);
        if (!t)
            print_error("%s: %s\n", cases[i].stage, e.msg);
        assert_non_null(t);
        struct token_list ids = encode(t, "abab", 0);
        if (ids.n != (size_t)cases[i].n || memcmp(ids.ids, cases[i].ids, ids.n * sizeof *ids.ids) != 0)
            print_error("%s\n", cases[i].stage);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.ids, cases[i].ids, ids.n * sizeof *ids.ids);
        token_list_free(&ids);
        tokenizer_free(t);
        str_free(&json);
    }
}

/* A pattern that backtracks without end is stopped; the text is still encoded whole. */
static void hostile_pattern(void **state)
{
    (void)state;
    struct err e = {0};
    struct tokenizer *t =
        open_text("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+(?!a)(?<!a)\"},"
                  "\"behavior\":\"Isolated\"}," MODEL "}",
                  &e);
    assert_non_null(t);
    char text[201];
    memset(text, 'a', 200);
    text[200] = '\0';
    struct token_list ids = encode(t, text, 0);
    assert_int_equal(ids.n, 200);
    token_list_free(&ids);
    tokenizer_free(t);
}

/* --- GGUF ----------------------------------------------------------------------------------------- */

struct gguf_spec {
    const char *model, *pre;
    const char *tokens[8];
    int n_tokens;
    int32_t types[8];
    int n_types;
    float scores[8];
    int n_scores;
    const char *merges[4];
    int n_merges;
    int64_t eos, eot; /* 0 = not written */
};

static void put_f32(struct str *s, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put(s, 4, bits);
}

/* A GGUF of nothing but that tokenizer. NULL and *e if it is refused. */
static struct tokenizer *open_spec(const struct gguf_spec *g, struct err *e)
{
    struct str s = {0};
    int n = 1 + !!g->model + !!g->pre + !!g->n_tokens + !!g->n_types + !!g->n_scores + !!g->n_merges +
            !!g->eos + !!g->eot;
    put_header(&s, 3, 0, (uint64_t)n);
    put_key(&s, "general.architecture", GGUF_STR), put_string(&s, "llama");
    if (g->model)
        put_key(&s, "tokenizer.ggml.model", GGUF_STR), put_string(&s, g->model);
    if (g->pre)
        put_key(&s, "tokenizer.ggml.pre", GGUF_STR), put_string(&s, g->pre);
    if (g->n_tokens)
        put_array(&s, "tokenizer.ggml.tokens", GGUF_STR, (uint64_t)g->n_tokens);
    for (int i = 0; i < g->n_tokens; i++)
        put_string(&s, g->tokens[i]);
    if (g->n_types)
        put_array(&s, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)g->n_types);
    for (int i = 0; i < g->n_types; i++)
        put(&s, 4, (uint32_t)g->types[i]);
    if (g->n_scores)
        put_array(&s, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)g->n_scores);
    for (int i = 0; i < g->n_scores; i++)
        put_f32(&s, g->scores[i]);
    if (g->n_merges)
        put_array(&s, "tokenizer.ggml.merges", GGUF_STR, (uint64_t)g->n_merges);
    for (int i = 0; i < g->n_merges; i++)
        put_string(&s, g->merges[i]);
    if (g->eos)
        put_key(&s, "tokenizer.ggml.eos_token_id", GGUF_U32), put(&s, 4, (uint64_t)g->eos);
    if (g->eot)
        put_key(&s, "tokenizer.ggml.eot_token_id", GGUF_U32), put(&s, 4, (uint64_t)g->eot);
    temp_write("t.gguf", s.data, s.len);
    str_free(&s);
    struct tokenizer *t = open_gguf(temp_path("t.gguf"), e);
    if (!t && e->code == ERR_NONE)
        print_error("no message\n");
    return t;
}

static void refused_gguf(void **state)
{
    (void)state;
    static const struct {
        struct gguf_spec file;
        const char *says;
    } files[] = {
        {{.n_tokens = 0}, "tokenizer.ggml.model"},
        {{.model = "bert", .tokens = {"a"}, .n_tokens = 1}, "\"bert\""},
        {{.model = "gpt2", .pre = "no-such-pre", .tokens = {"a"}, .n_tokens = 1}, "\"no-such-pre\""},
        {{.model = "gpt2", .pre = "gpt-2"}, "tokenizer.ggml.tokens"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .n_tokens = 1}, "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a", "b"}, .n_tokens = 2, .types = {1}, .n_types = 1},
         "1 entries for 2 tokens"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .n_tokens = 1, .types = {9}, .n_types = 1},
         "type 9"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .n_tokens = 1, .types = {-1}, .n_types = 1},
         "type -1"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .n_tokens = 1, .merges = {"ab"}, .n_merges = 1},
         "merges[0]"},
        {{.model = "gpt2", .pre = "gpt-2", .tokens = {"a"}, .n_tokens = 1, .merges = {""}, .n_merges = 1},
         "merges[0]"},
        {{.model = "llama", .tokens = {"a"}, .n_tokens = 1}, "tokenizer.ggml.scores"},
        {{.model = "llama", .tokens = {"a", "b"}, .n_tokens = 2, .scores = {1}, .n_scores = 1},
         "each of the 2 tokens"},
        {{.model = "llama",
          .tokens = {"a", "<0x-1>"},
          .n_tokens = 2,
          .types = {1, 6},
          .n_types = 2,
          .scores = {0, 0},
          .n_scores = 2},
         "token 1 is a byte, but its name is \"<0x-1>\""},
        {{.model = "llama", .tokens = {"<0x0>"}, .n_tokens = 1, .types = {6}, .n_types = 1, .n_scores = 1},
         "\"<0x0>\""},
        {{.model = "llama", .tokens = {"a"}, .n_tokens = 1, .scores = {0.0f / 0.0f}, .n_scores = 1},
         "scores[0]"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct err e = {0};
        struct tokenizer *t = open_spec(&files[i].file, &e);
        if (t || !strstr(e.msg, files[i].says))
            print_error("%zu says: %s\n  want: %s\n", i, t ? "(opened)" : e.msg, files[i].says);
        assert_null(t);
        assert_non_null(strstr(e.msg, files[i].says));
        assert_non_null(strstr(e.msg, "t.gguf"));
    }
}

/* An ordinary token of that name is just text. */
static void byte_like_name(void **state)
{
    (void)state;
    static const struct gguf_spec file = {.model = "llama",
                                          .tokens = {"<unk>", "<0x-1>", "<0x41>", "x"},
                                          .n_tokens = 4,
                                          .types = {2, 1, 6, 1},
                                          .n_types = 4,
                                          .n_scores = 4};
    struct err e = {0};
    struct tokenizer *t = open_spec(&file, &e);
    assert_non_null(t);
    size_t len;
    assert_memory_equal(tokenizer_bytes(t, 1, &len), "<0x-1>", 6);
    assert_int_equal(len, 6);
    assert_memory_equal(tokenizer_bytes(t, 2, &len), "A", 1);
    assert_int_equal(len, 1);
    tokenizer_free(t);
}

/* The highest score merges first, the leftmost pair among equals; a space is put before the text. */
static void scores(void **state)
{
    (void)state;
    static const struct gguf_spec file = {.model = "llama",
                                          .tokens = {"\xE2\x96\x81", "a", "b", "ab", "ba",
                                                     "\xE2\x96\x81"
                                                     "a",
                                                     "aa"},
                                          .n_tokens = 7,
                                          .scores = {-1, -1, -1, -3, -2, -4, -3},
                                          .n_scores = 7};
    struct err e = {0};
    struct tokenizer *t = open_spec(&file, &e);
    assert_non_null(t);
    assert_ids(t, "aba", 0, 5, 4);
    assert_ids(t, "b ab", 0, 0, 2, 0, 3);
    assert_ids(t, "baaa", 0, 0, 4, 6);
    tokenizer_free(t);
}

/* Merges of unknown names are passed over; a missing list of types means that all are ordinary. */
static void tolerated_gguf(void **state)
{
    (void)state;
    static const struct gguf_spec file = {.model = "gpt2",
                                          .pre = "gpt-2",
                                          .tokens = {"a", "b", "ab", "a"},
                                          .n_tokens = 4,
                                          .merges = {"a x", "a b"},
                                          .n_merges = 2};
    struct err e = {0};
    struct tokenizer *t = open_spec(&file, &e);
    assert_non_null(t);
    assert_ids(t, "ab", 0, 2);
    assert_int_equal(tokenizer_find(t, "a"), 0); /* the first of two of that name */
    assert_int_equal(tokenizer_eos(t), -1);
    int32_t ids[4];
    assert_int_equal(tokenizer_stop_ids(t, ids, 4), 0);
    tokenizer_free(t);
}

static void gguf_stop_ids(void **state)
{
    (void)state;
    struct gguf_spec file = {.model = "gpt2",
                             .pre = "gpt-2",
                             .tokens = {"a", "<|endoftext|>", "<|im_end|>", "<|eom|>", "x"},
                             .n_tokens = 5,
                             .types = {1, 3, 3, 3, 1},
                             .n_types = 5,
                             .merges = {"a a"},
                             .n_merges = 1};
    static const struct {
        int64_t eos, eot;
        int32_t ids[3];
        int n;
    } cases[] = {
        {0, 0, {1, 2}, 2},    /* both by name */
        {3, 0, {3, 2, 1}, 3}, /* a turn's and a document's end by name */
        {3, 4, {3, 4, 1}, 3}, /* both as the file says */
        {2, 0, {2, 1}, 2},    /* the same token twice is one */
        {99, 99, {1, 2}, 2},  /* outside the vocabulary: as if not there */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        file.eos = cases[i].eos;
        file.eot = cases[i].eot;
        struct err e = {0};
        struct tokenizer *t = open_spec(&file, &e);
        assert_non_null(t);
        int32_t ids[8];
        assert_int_equal(tokenizer_stop_ids(t, ids, 8), cases[i].n);
        assert_memory_equal(ids, cases[i].ids, (size_t)cases[i].n * sizeof *ids);
        assert_int_equal(tokenizer_eos(t), ids[0]);
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_json),  cmocka_unit_test(no_tokenizer),
        cmocka_unit_test(odd_configs),   cmocka_unit_test(merges_make_nothing_special),
        cmocka_unit_test(pretokenizers), cmocka_unit_test(hostile_pattern),
        cmocka_unit_test(refused_gguf),  cmocka_unit_test(byte_like_name),
        cmocka_unit_test(scores),        cmocka_unit_test(tolerated_gguf),
        cmocka_unit_test(gguf_stop_ids),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
