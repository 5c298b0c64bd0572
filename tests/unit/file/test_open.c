/* Good files: every fixture opens with the tensors it has, values come back in every width, shards and splits
 * come together. */
#include "build.h"

#include <math.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "file/model_file.h"

static struct model_file *open_or_fail(const char *path)
{
    struct err e = {0};
    struct model_file *f = model_file_open(path, &e);
    if (!f)
        fail_msg("%s", e.msg);
    return f;
}

/* Opening must fail with `code`, naming `part`. */
static void assert_refused(const char *path, enum err_code code, const char *part)
{
    struct err e = {0};
    assert_null(model_file_open(path, &e));
    if (e.code != code || !strstr(e.msg, part))
        fail_msg("code %d, \"%s\" does not mention \"%s\"", (int)e.code, e.msg, part);
}

/* Names rise, and every tensor has the bytes that its shape and type need, inside of a mapped file. */
static void assert_sound(const struct model_file *f)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        assert_true(i == 0 || strcmp(f->tensors[i - 1].name, t->name) < 0);
        size_t rows = 1;
        for (int d = 0; d < TENSOR_MAX_DIMS; d++) {
            assert_true(t->shape[d] >= 1 && (d < t->n_dims || t->shape[d] == 1));
            rows *= d < t->n_dims - 1 ? (size_t)t->shape[d] : 1;
        }
        assert_int_equal(t->bytes, rows * dtype_row_bytes(t->dtype, t->n_dims ? t->shape[t->n_dims - 1] : 1));
        bool inside = false;
        for (int m = 0; m < f->n_maps; m++) {
            const uint8_t *data = f->maps[m].data, *begin = t->data;
            inside |= begin >= data && begin + t->bytes <= data + f->maps[m].size;
        }
        assert_true(inside);
        assert_ptr_equal(model_file_tensor(f, t->name), t);
    }
    assert_null(model_file_tensor(f, "no such tensor"));
    assert_string_equal(model_file_why_missing(f, "no such tensor"), "is not in the file");
}

static void directories_open(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int n_tensors, n_unread, n_maps;
    } cases[] = {
        {"gemma3-tiny-alt", 54, 0, 1}, {"llama-tiny", 38, 0, 1},        {"llama3-tiny", 21, 0, 1},
        {"qwen2-tiny", 38, 0, 1},      {"qwen3-tiny", 35, 0, 1},        {"qwen35-tiny", 108, 0, 1},
        {"gemma3-tiny", 80, 0, 1},     {"qwen35-tiny-full", 131, 1, 2}, {"qwen35-tiny-256", 55, 0, 1},
    };
    int opened = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[200];
        snprintf(path, sizeof path, "models/%s/%s", cases[i].name,
                 cases[i].n_maps > 1 ? "model.safetensors.index.json" : "model.safetensors");
        if (!fixture_exists(path)) /* the last three are in the full set only */
            continue;
        opened++;
        snprintf(path, sizeof path, "models/%s", cases[i].name);
        struct model_file *f = open_or_fail(fixture(path));
        assert_int_equal(f->kind, MODEL_FILE_HF);
        assert_int_equal(f->n_tensors, cases[i].n_tensors);
        assert_int_equal(f->n_unread, cases[i].n_unread);
        assert_int_equal(f->n_maps, cases[i].n_maps);
        assert_sound(f);
        assert_non_null(f->config);
        assert_non_null(f->generation_config);
        assert_non_null(f->tokenizer_config);
        assert_non_null(json_object_get(f->tokenizer, "model"));
        snprintf(path, sizeof path, "models/%s/chat_template.jinja", cases[i].name);
        char *template = read_whole(fixture(path), NULL);
        assert_string_equal(f->chat_template, template);
        free(template);

        const json_t *text = json_object_get(f->config, "text_config");
        text = text ? text : f->config;
        const struct tensor *embed = model_file_tensor(
            f, cases[i].n_unread ? "model.language_model.embed_tokens.weight" : "model.embed_tokens.weight");
        assert_non_null(embed);
        assert_int_equal(embed->n_dims, 2);
        assert_int_equal(embed->dtype, DT_BF16);
        assert_int_equal(embed->shape[0], json_integer_value(json_object_get(text, "vocab_size")));
        assert_int_equal(embed->shape[1], json_integer_value(json_object_get(text, "hidden_size")));
        if (cases[i].n_unread) {
            assert_string_equal(f->unread[0].name, "model.visual.patch_embed.proj.weight");
            assert_non_null(strstr(model_file_why_missing(f, f->unread[0].name), "5 dimensions"));
        }
        model_file_close(f);
    }
    assert_true(opened >= 6);
}

static void gguf_files_open(void **state)
{
    (void)state;
    static const struct {
        const char *path, *architecture;
        int n_tensors, n_values, dtype;
    } cases[] = {
        {"gguf/llama-tiny-f16.gguf", "llama", 38, 31, DT_F16},
        {"gguf/llama3-tiny-bf16.gguf", "llama", 22, 34, DT_BF16},
        {"gguf/qwen2-tiny-f16.gguf", "qwen2", 38, 25, DT_F16},
        {"gguf/qwen3-tiny-q8_0.gguf", "qwen3", 35, 27, DT_Q8_0},
        {"gguf/qwen35-tiny-q8_0.gguf", "qwen35", 108, 36, DT_Q8_0},
        {"gguf/gemma3-tiny-f16.gguf", "gemma3", 80, 35, DT_F16},
        {"gguf/qwen3-tiny-bf16.gguf", "qwen3", 35, 27, DT_BF16},
        {"gguf/qwen35-tiny-bf16.gguf", "qwen35", 108, 36, DT_BF16},
        {"gguf/qwen35-tiny-full-bf16.gguf", "qwen35", 124, 37, DT_BF16},
    };
    int opened = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!fixture_exists(cases[i].path)) /* the last four are in the full set only */
            continue;
        opened++;
        struct model_file *f = open_or_fail(fixture(cases[i].path));
        assert_int_equal(f->kind, MODEL_FILE_GGUF);
        assert_int_equal(f->n_tensors, cases[i].n_tensors);
        assert_int_equal(gguf_count(f->gguf), cases[i].n_values);
        assert_int_equal(gguf_version(f->gguf), 3);
        assert_sound(f);
        assert_string_equal(gguf_str(f->gguf, "general.architecture", NULL), cases[i].architecture);
        const struct tensor *embed = model_file_tensor(f, "token_embd.weight");
        assert_non_null(embed);
        assert_int_equal(embed->dtype, cases[i].dtype);
        assert_int_equal(embed->shape[0], gguf_array_len(f->gguf, "tokenizer.ggml.tokens"));
        assert_int_equal(embed->shape[1], 128);
        if (f->chat_template) {
            size_t len;
            assert_string_equal(f->chat_template, gguf_str(f->gguf, "tokenizer.chat_template", &len));
            assert_int_equal(strlen(f->chat_template), len);
        }
        model_file_close(f);
    }
    assert_true(opened >= 5);
}

/* The same model in both forms: equal weights, bit for bit, and an equal vocabulary. */
static void both_forms_agree(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                           {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
                                           {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"}};
    struct model_file *g = open_or_fail(fixture("gguf/llama3-tiny-bf16.gguf"));
    struct model_file *h = open_or_fail(fixture("models/llama3-tiny"));
    for (int i = 0; i < 3; i++) {
        const struct tensor *a = model_file_tensor(g, names[i][0]), *b = model_file_tensor(h, names[i][1]);
        assert_true(a && b);
        assert_int_equal(a->dtype, b->dtype);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    const json_t *vocab = json_object_get(json_object_get(h->tokenizer, "model"), "vocab"), *id;
    const char *token;
    assert_true(json_object_size(vocab) > 500);
    json_object_foreach((json_t *)vocab, token, id)
    {
        size_t len;
        const char *s = gguf_array_str(g->gguf, "tokenizer.ggml.tokens", json_integer_value(id), &len);
        assert_non_null(s);
        assert_int_equal(len, strlen(token));
        assert_memory_equal(s, token, len);
    }
    int64_t layers;
    assert_true(gguf_i64(g->gguf, "llama.block_count", &layers));
    assert_int_equal(layers, json_integer_value(json_object_get(h->config, "num_hidden_layers")));
    model_file_close(h);
    model_file_close(g);
}

static void values_of_every_type(void **state)
{
    (void)state;
    struct str s = {0};
    struct tensor_list l = {0};
    struct err e = {0};
    put_good_gguf(&s);
    struct gguf *g = gguf_parse((const uint8_t *)s.data, s.len, &l, &e);
    if (!g)
        fail_msg("%s", e.msg);
    int64_t i = 77;
    double f = 77;
    bool b = false;
    size_t len;
    static const struct {
        const char *key, *type, *text;
        bool is_int, is_number;
        int64_t i;
        double f;
    } want[16] = {
        {"u8", "u8", "200", true, true, 200, 200},
        {"i8", "i8", "-1", true, true, -1, -1},
        {"u16", "u16", "60000", true, true, 60000, 60000},
        {"i16", "i16", "-32768", true, true, -32768, -32768},
        {"u32", "u32", "4000000000", true, true, 4000000000, 4e9},
        {"i32", "i32", "-2", true, true, -2, -2},
        {"f32", "f32", "1.5", false, true, 77, 1.5},
        {"bool", "bool", "true", true, false, 1, 77},
        {"str", "str", "\"h\xC3\xA9\\n\\x01\"", false, false, 77, 77},
        {"u64", "u64", "18446744073709551615", false, true, 77, 18446744073709551616.0},
        {"i64", "i64", "-9223372036854775808", true, true, INT64_MIN, -9223372036854775808.0},
        {"f64", "f64", "-2.5", false, true, 77, -2.5},
        {"strings", "arr[str]", "3: \"a\", \"\", \"ccc\"", false, false, 77, 77},
        {"shorts", "arr[i16]", "3: 1, -1, 3", false, false, 77, 77},
        {"none", "arr[u64]", "0: ", false, false, 77, 77},
        {"general.alignment", "u32", "64", true, true, 64, 64},
    };
    assert_int_equal(gguf_count(g), 16);
    for (int k = 0; k < 16; k++) {
        const char *type;
        char text[100], shorter[6];
        assert_string_equal(gguf_key(g, k), want[k].key);
        assert_true(gguf_has(g, want[k].key));
        gguf_describe(g, k, &type, text, sizeof text);
        assert_string_equal(type, want[k].type);
        assert_string_equal(text, want[k].text);
        gguf_describe(g, k, &type, shorter, sizeof shorter);
        assert_true(strlen(shorter) < sizeof shorter &&
                    utf8_valid_prefix(shorter, strlen(shorter)) == strlen(shorter));
        i = 77, f = 77;
        assert_int_equal(gguf_i64(g, want[k].key, &i), want[k].is_int);
        assert_true(i == want[k].i);
        assert_int_equal(gguf_f64(g, want[k].key, &f), want[k].is_number);
        assert_true(f == want[k].f);
    }
    assert_true(gguf_bool(g, "bool", &b) && b);
    assert_true(gguf_bool(g, "u8", &b) && b);
    assert_false(gguf_bool(g, "f32", &b) || gguf_bool(g, "absent", &b));
    assert_string_equal(gguf_str(g, "str", &len), "h\xC3\xA9\n\x01");
    assert_int_equal(len, 5);
    assert_null(gguf_str(g, "u8", &len));
    assert_null(gguf_str(g, "strings", NULL));
    assert_int_equal(gguf_array_len(g, "strings"), 3);
    assert_int_equal(gguf_array_len(g, "none"), 0);
    assert_int_equal(gguf_array_len(g, "u8"), -1);
    assert_int_equal(gguf_array_len(g, "absent"), -1);
    assert_memory_equal(gguf_array_str(g, "strings", 2, &len), "ccc", 3);
    assert_int_equal(len, 3);
    assert_non_null(gguf_array_str(g, "strings", 1, &len));
    assert_int_equal(len, 0);
    assert_null(gguf_array_str(g, "strings", 3, &len));
    assert_null(gguf_array_str(g, "strings", -1, &len));
    assert_null(gguf_array_str(g, "shorts", 0, &len));
    assert_true(gguf_array_i64(g, "shorts", 1, &i) && i == -1);
    assert_true(gguf_array_f64(g, "shorts", 2, &f) && f == 3);
    assert_false(gguf_array_i64(g, "shorts", 3, &i) || gguf_array_i64(g, "none", 0, &i));

    assert_int_equal(l.n, 3);
    assert_int_equal(tensor_list_sort(&l, &e), 0);
    const struct tensor *matrix = tensor_list_find(&l, "matrix"), *scalar = tensor_list_find(&l, "scalar");
    assert_true(matrix->shape[0] == 2 && matrix->shape[1] == 32 && matrix->bytes == 68);
    assert_int_equal(*(const uint8_t *)matrix->data, 64);
    assert_true(scalar->n_dims == 0 && scalar->bytes == 4);
    tensor_list_free(&l);
    gguf_free(g);
    str_free(&s);
}

/* Version 2 is laid out like version 3. */
static void version_2_opens(void **state)
{
    (void)state;
    struct str s = {0};
    put_good_gguf(&s);
    s.data[4] = 2;
    temp_write("v2.gguf", s.data, s.len);
    struct model_file *f = open_or_fail(temp_path("v2.gguf"));
    assert_int_equal(gguf_version(f->gguf), 2);
    model_file_close(f);
    str_free(&s);
}

/* Writes part `part` of `count`: one tensor named after the part, whose bytes are the part's number. */
static void write_part(const char *name, int part, int count, int total, const char *tensor)
{
    struct str s = {0};
    put_header(&s, 3, 1, part ? 3 : 4);
    put_key(&s, "split.no", GGUF_U16), put(&s, 2, (uint64_t)part);
    put_key(&s, "split.count", GGUF_U16), put(&s, 2, (uint64_t)count);
    put_key(&s, "split.tensors.count", GGUF_I32), put(&s, 4, (uint64_t)total);
    if (!part)
        put_key(&s, "general.architecture", GGUF_STR), put_string(&s, "llama");
    put_tensor(&s, tensor, 1, (const uint64_t[]){4}, DT_I8, 0);
    pad(&s, 32);
    put(&s, 4, 0x01010101u * (unsigned)part);
    temp_write(name, s.data, s.len);
    str_free(&s);
}

static void split_files_come_together(void **state)
{
    (void)state;
    const char *first = "m-00001-of-00003.gguf";
    write_part(first, 0, 3, 3, "c");
    write_part("m-00002-of-00003.gguf", 1, 3, 3, "b");
    assert_refused(temp_path(first), ERR_NOT_FOUND, "m-00003-of-00003.gguf");
    write_part("m-00003-of-00003.gguf", 2, 3, 3, "a");
    struct model_file *f = open_or_fail(temp_path(first));
    assert_int_equal(f->n_tensors, 3);
    assert_int_equal(f->n_maps, 3);
    assert_int_equal(*(const char *)model_file_tensor(f, "a")->data, 2);
    assert_int_equal(*(const char *)model_file_tensor(f, "b")->data, 1);
    assert_string_equal(gguf_str(f->gguf, "general.architecture", NULL), "llama");
    model_file_close(f);

    assert_refused(temp_path("m-00002-of-00003.gguf"), ERR_INVALID, "m-00001-of-00003.gguf");
    write_part("m-00003-of-00003.gguf", 1, 3, 3, "a");
    assert_refused(temp_path(first), ERR_INVALID, "part 2 of 3");
    write_part("m-00003-of-00003.gguf", 2, 3, 3, "b");
    assert_refused(temp_path(first), ERR_INVALID, "two tensors named 'b'");
    write_part("m-00003-of-00003.gguf", 2, 3, 3, "a");
    write_part(first, 0, 3, 4, "c");
    assert_refused(temp_path(first), ERR_INVALID, "instead of 4");
    write_part("renamed.gguf", 0, 3, 3, "c");
    assert_refused(temp_path("renamed.gguf"), ERR_INVALID, "must be named");
    write_part("bad-00001-of-00003.gguf", 5, 3, 3, "c");
    assert_refused(temp_path("bad-00001-of-00003.gguf"), ERR_INVALID, "split.no");
}

static void write_shard(const char *name, const char *tensor)
{
    struct str s = {0};
    char header[200];
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"format\":\"pt\"},\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"
             "[0,8]}}",
             tensor);
    put_safetensors(&s, header, 8);
    temp_write(name, s.data, s.len);
    str_free(&s);
}

static void shards_come_together(void **state)
{
    (void)state;
    assert_int_equal(mkdir(temp_path("sharded"), 0777), 0);
    temp_write_text("sharded/config.json", "{}");
    temp_write_text("sharded/model.safetensors.index.json",
                    "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    write_shard("sharded/s1.safetensors", "a");
    assert_refused(temp_path("sharded"), ERR_NOT_FOUND, "s2.safetensors");
    write_shard("sharded/s2.safetensors", "b");
    struct model_file *f = open_or_fail(temp_path("sharded"));
    assert_int_equal(f->n_tensors, 2);
    assert_int_equal(f->n_maps, 2);
    assert_null(f->tokenizer);
    assert_null(f->chat_template);
    model_file_close(f);

    write_shard("sharded/s2.safetensors", "c");
    assert_refused(temp_path("sharded"), ERR_INVALID, "tensor 'b' is not in s2.safetensors");
    write_shard("sharded/s2.safetensors", "a");
    assert_refused(temp_path("sharded"), ERR_INVALID, "two tensors named 'a'");
    temp_write_text("sharded/model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../s1.safetensors\"}}");
    assert_refused(temp_path("sharded"), ERR_INVALID, "plain file name");
    temp_write_text("sharded/model.safetensors.index.json", "{\"weight_map\":{}}");
    assert_refused(temp_path("sharded"), ERR_INVALID, "weight_map");
}

static void chat_template_forms(void **state)
{
    (void)state;
    assert_int_equal(mkdir(temp_path("chat"), 0777), 0);
    temp_write_text("chat/config.json", "{}");
    write_shard("chat/model.safetensors", "a");
    static const struct {
        const char *config, *template;
    } cases[] = {
        {"{\"chat_template\": \"one\"}", "one"},
        {"{\"chat_template\": [{\"name\": \"tool\", \"template\": \"t\"},"
         "{\"name\": \"default\", \"template\": \"d\"}]}",
         "d"},
        {"{\"chat_template\": [{\"name\": \"tool\", \"template\": \"t\"}, 3]}", NULL},
        {"{\"chat_template\": 7}", NULL},
        /* an integer past 64 bits, as transformers writes for "no limit" */
        {"{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"x\"}", "x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        temp_write_text("chat/tokenizer_config.json", cases[i].config);
        struct model_file *f = open_or_fail(temp_path("chat"));
        if (cases[i].template)
            assert_string_equal(f->chat_template, cases[i].template);
        else
            assert_null(f->chat_template);
        model_file_close(f);
    }
    temp_write_text("chat/chat_template.jinja", "file");
    struct model_file *f = open_or_fail(temp_path("chat"));
    assert_string_equal(f->chat_template, "file");
    model_file_close(f);
}

/* Dropping gives a tensor's pages back and changes nothing in what is read later. */
static void dropped_pages_leave(void **state)
{
    (void)state;
    const size_t size = (size_t)64 << 20;
    struct str s = {0};
    put_header(&s, 3, 2, 0);
    put_tensor(&s, "big", 1, (const uint64_t[]){size}, DT_I8, 32);
    put_tensor(&s, "small", 1, (const uint64_t[]){3}, DT_I8, 0);
    pad(&s, 32);
    str_adds(&s, "abc");
    temp_write("drop.gguf", s.data, s.len);
    assert_int_equal(truncate(temp_path("drop.gguf"), (off_t)(s.len + 29 + size)),
                     0); /* a hole: reads as 0 */
    str_free(&s);
    struct model_file *f = open_or_fail(temp_path("drop.gguf"));
    const struct tensor *big = model_file_tensor(f, "big");
    const volatile char *data = big->data;
    int sum = 0;
    for (size_t i = 0; i < size; i += 512)
        sum += data[i];
    const size_t before = mem_resident();
    model_file_drop(f, big);
    const size_t after = mem_resident();
    assert_true(before > after && before - after > size / 4 * 3);
    assert_memory_equal(model_file_tensor(f, "small")->data, "abc", 3);
    for (size_t i = 0; i < size; i += 65536)
        sum += data[i];
    assert_int_equal(sum, 0);
    model_file_drop(f, model_file_tensor(f, "small")); /* no whole page: nothing to do */
    model_file_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories_open),     cmocka_unit_test(gguf_files_open),
        cmocka_unit_test(both_forms_agree),     cmocka_unit_test(values_of_every_type),
        cmocka_unit_test(version_2_opens),      cmocka_unit_test(split_files_come_together),
        cmocka_unit_test(shards_come_together), cmocka_unit_test(chat_template_forms),
        cmocka_unit_test(dropped_pages_leave),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
