/* Every golden tokenizer case and stream, for each form in which the tokenizer exists: tokenizer.json, GGUF,
 * and the real models' files where they are (SLUICE_MODELS names their folder). */
#include "text/open.h"

/* Prints the first few differences only: one cause makes hundreds. */
static void report(int *n_wrong, const char *name, int line, const char *text, const json_t *want,
                   const struct token_list *got)
{
    if (++*n_wrong > 5)
        return;
    print_error("%s:%d: \"%s\"\n  want", name, line, text);
    for (size_t i = 0; i < json_array_size(want); i++)
        print_error(" %d", (int)json_integer_value(json_array_get(want, i)));
    print_error("\n  got ");
    for (size_t i = 0; i < got->n; i++)
        print_error(" %d", got->ids[i]);
    print_error("\n");
}

static bool same_ids(const json_t *want, const struct token_list *got)
{
    if (json_array_size(want) != got->n)
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, i)) != got->ids[i])
            return false;
    return true;
}

static void check_case(const struct tokenizer *t, const char *name, int line, const json_t *test,
                       int *n_wrong)
{
    const json_t *text = json_object_get(test, "text"), *ids = json_object_get(test, "ids");
    const json_t *decoded = json_object_get(test, "decoded");
    unsigned flags = json_is_true(json_object_get(test, "special")) ? TOKENIZER_PARSE_SPECIAL : 0;
    struct token_list got = encode_marked(t, json_string_value(text), json_string_length(text), NULL, flags);
    if (!same_ids(ids, &got))
        report(n_wrong, name, line, json_string_value(text), ids, &got);
    got.n = 0;
    for (size_t i = 0; i < json_array_size(ids); i++)
        token_list_add(&got, (int32_t)json_integer_value(json_array_get(ids, i)));
    struct str back = {0};
    tokenizer_decode(t, got.ids, got.n, false, &back);
    if (back.len != json_string_length(decoded) ||
        memcmp(str_text(&back), json_string_value(decoded), back.len) != 0) {
        if (++*n_wrong <= 5)
            print_error("%s:%d: decoded \"%s\", want \"%s\"\n", name, line, str_text(&back),
                        json_string_value(decoded));
    }
    str_free(&back);
    token_list_free(&got);
}

static void check_stream(const struct tokenizer *t, const char *name, int line, const json_t *test,
                         int *n_wrong)
{
    const json_t *ids = json_object_get(test, "ids"), *pieces = json_object_get(test, "pieces");
    struct detokenizer d;
    detokenizer_init(&d, t, false);
    struct token_list list = {0};
    struct str piece = {0}, all = {0}, whole = {0};
    for (size_t i = 0; i <= json_array_size(ids); i++) {
        bool last = i == json_array_size(ids);
        const char *want =
            json_string_value(last ? json_object_get(test, "flush") : json_array_get(pieces, i));
        str_clear(&piece);
        if (last) {
            detokenizer_flush(&d, &piece);
        } else {
            token_list_add(&list, (int32_t)json_integer_value(json_array_get(ids, i)));
            detokenizer_add(&d, list.ids[i], &piece);
        }
        if (strcmp(str_text(&piece), want) != 0 && ++*n_wrong <= 5)
            print_error("%s:%d: piece %zu is \"%s\", want \"%s\"\n", name, line, i, str_text(&piece), want);
        str_add(&all, str_text(&piece), piece.len);
    }
    tokenizer_decode(t, list.ids, list.n, false, &whole);
    if (whole.len != all.len || memcmp(str_text(&whole), str_text(&all), all.len) != 0)
        ++*n_wrong;
    token_list_free(&list);
    str_free(&piece);
    str_free(&all);
    str_free(&whole);
}

static int each_line(const struct tokenizer *t, const char *kind, const char *name,
                     void (*check)(const struct tokenizer *, const char *, int, const json_t *, int *))
{
    char path[200];
    snprintf(path, sizeof path, "tokenizers/%s-%s.jsonl", kind, name);
    FILE *f = fopen(fixture(path), "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    int n = 0, n_wrong = 0;
    while (getline(&line, &cap, f) > 0) {
        json_t *test = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(test);
        check(t, path, ++n, test, &n_wrong);
        json_decref(test);
    }
    free(line);
    fclose(f);
    assert_true(n >= 100);
    if (n_wrong)
        print_error("%s: %d of %d wrong\n", path, n_wrong, n);
    return n_wrong;
}

/* Runs all cases and streams of `name`, and frees t. */
static void check_tokenizer(struct tokenizer *t, const struct err *e, const char *name)
{
    if (!t)
        print_error("%s: %s\n", name, e->msg);
    assert_non_null(t);
    int n_wrong = each_line(t, "cases", name, check_case) + each_line(t, "stream", name, check_stream);
    tokenizer_free(t);
    assert_int_equal(n_wrong, 0);
}

/* --- the tiny models ------------------------------------------------------------------------------ */

static void tiny_json(void **state)
{
    const char *name = *state;
    char path[200];
    snprintf(path, sizeof path, "models/%s", name);
    struct err e = {0};
    check_tokenizer(open_dir(fixture(path), &e), &e, name);
}

struct gguf_form {
    const char *file, *cases;
};

static void tiny_gguf(void **state)
{
    const struct gguf_form *form = *state;
    char path[200];
    snprintf(path, sizeof path, "gguf/%s", form->file);
    skip_without(path);
    struct err e = {0};
    check_tokenizer(open_gguf(fixture(path), &e), &e, form->cases);
}

/* --- the real ones -------------------------------------------------------------------------------- */

static void real_gguf(void **state)
{
    const struct gguf_form *form = *state;
    const char *dir = getenv("SLUICE_MODELS");
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "", form->file);
    FILE *f = dir ? fopen(path, "rb") : NULL;
    if (!f) {
        print_message("skipped: %s is not in SLUICE_MODELS=%s\n", form->file, dir ? dir : "(unset)");
        skip();
    }
    fclose(f);
    struct err e = {0};
    check_tokenizer(open_gguf(path, &e), &e, form->cases);
}

/* The file is 20 MB of JSON and kept compressed; without a zstd program there is nothing to test with. */
static void real_qwen35(void **state)
{
    (void)state;
    skip_without("tokenizers/qwen3.5/tokenizer.json.zst");
    char command[1200];
    snprintf(command, sizeof command, "zstd -dc '%s' 2>/dev/null",
             fixture("tokenizers/qwen3.5/tokenizer.json.zst"));
    FILE *f = popen(command, "r");
    assert_non_null(f);
    json_t *root = json_loadf(f, 0, NULL);
    if (pclose(f) != 0 || !root) {
        print_message("skipped: zstd is not installed\n");
        json_decref(root);
        skip();
    }
    struct err e = {0};
    check_tokenizer(open_json(root, NULL, NULL, NULL, &e), &e, "qwen3.5");
}

int main(void)
{
    static struct gguf_form tiny[] = {
        {"llama-tiny-f16.gguf", "llama-tiny"},         {"llama3-tiny-bf16.gguf", "llama3-tiny"},
        {"qwen2-tiny-f16.gguf", "qwen2-tiny"},         {"qwen35-tiny-q8_0.gguf", "qwen35-tiny"},
        {"qwen35-tiny-full-bf16.gguf", "qwen35-tiny"}, {"gemma3-tiny-f16.gguf", "gemma3-tiny"},
    };
    static struct gguf_form real[] = {
        {"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"},
        {"qwen2.5-coder-0.5b.gguf", "qwen2.5-coder"},
        {"gemma-3-270m-q4_k_m.gguf", "gemma3"},
    };
    static char names[][16] = {"llama-tiny", "llama3-tiny", "qwen2-tiny", "qwen35-tiny", "gemma3-tiny"};
    const struct CMUnitTest tests[] = {
        {"llama-tiny, tokenizer.json", tiny_json, NULL, NULL, names[0]},
        {"llama3-tiny, tokenizer.json", tiny_json, NULL, NULL, names[1]},
        {"qwen2-tiny, tokenizer.json", tiny_json, NULL, NULL, names[2]},
        {"qwen35-tiny, tokenizer.json", tiny_json, NULL, NULL, names[3]},
        {"gemma3-tiny, tokenizer.json", tiny_json, NULL, NULL, names[4]},
        {"llama-tiny, GGUF", tiny_gguf, NULL, NULL, &tiny[0]},
        {"llama3-tiny, GGUF", tiny_gguf, NULL, NULL, &tiny[1]},
        {"qwen2-tiny, GGUF", tiny_gguf, NULL, NULL, &tiny[2]},
        {"qwen35-tiny, GGUF", tiny_gguf, NULL, NULL, &tiny[3]},
        {"qwen35-tiny-full, GGUF", tiny_gguf, NULL, NULL, &tiny[4]},
        {"gemma3-tiny, GGUF", tiny_gguf, NULL, NULL, &tiny[5]},
        {"smollm2, GGUF", real_gguf, NULL, NULL, &real[0]},
        {"qwen2.5-coder, GGUF", real_gguf, NULL, NULL, &real[1]},
        {"gemma3, GGUF", real_gguf, NULL, NULL, &real[2]},
        cmocka_unit_test(real_qwen35),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
