/* The GGUF writer: what is written reads back equal, mistakes are named, and a file appears whole or not at
 * all. */
#include "file/build.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "file/gguf_write.h"

static struct err e;

/* Files in the temporary directory whose name begins with `prefix`. */
static int count_files(const char *prefix)
{
    int n = 0;
    DIR *d = opendir(temp_dir);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

/* A row of bytes that differ from tensor to tensor and along the row. */
static void pattern(int tensor, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(i * 7 + i / 256 + (size_t)tensor * 31);
}

static const struct {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t shape[4];
} tensors[] = {
    {"matrix", DT_Q8_0, 2, {3, 64}}, {"scalar", DT_F32, 0, {0}},        {"bias", DT_F16, 1, {5}},
    {"cube", DT_BF16, 3, {2, 3, 4}}, {"four", DT_F32, 4, {2, 1, 3, 2}}, {"k", DT_Q4_K, 2, {2, 256}},
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };

/* One value of each type, into a writer. */
static void put_values(struct gguf_writer *w)
{
    gguf_writer_str(w, "general.architecture", "none");
    gguf_writer_number(w, "u8", GGUF_U8, &(uint8_t){200});
    gguf_writer_number(w, "i8", GGUF_I8, &(int8_t){-1});
    gguf_writer_number(w, "u16", GGUF_U16, &(uint16_t){60000});
    gguf_writer_number(w, "i16", GGUF_I16, &(int16_t){-32768});
    gguf_writer_u32(w, "u32", 4000000000u);
    gguf_writer_number(w, "i32", GGUF_I32, &(int32_t){-2});
    gguf_writer_f32(w, "f32", 1.5f);
    gguf_writer_bool(w, "bool", true);
    gguf_writer_number(w, "u64", GGUF_U64, &(uint64_t){UINT64_MAX});
    gguf_writer_number(w, "i64", GGUF_I64, &(int64_t){INT64_MIN});
    gguf_writer_number(w, "f64", GGUF_F64, &(double){-2.5});
    gguf_writer_text(w, "text", (struct gguf_text){"a\0b\n", 4});
    gguf_writer_texts(w, "texts", (const struct gguf_text[]){{"one", 3}, {"", 0}, {"th\0ree", 6}}, 3);
    gguf_writer_texts(w, "no texts", NULL, 0);
    gguf_writer_numbers(w, "shorts", GGUF_I16, (const int16_t[]){1, -2, 3}, 3);
    gguf_writer_numbers(w, "no numbers", GGUF_F64, NULL, 0);
}

static struct gguf_writer *good_writer(const char *name)
{
    struct gguf_writer *w = gguf_writer_open(temp_path(name), &e);
    assert_non_null(w);
    put_values(w);
    for (int i = 0; i < N_TENSORS; i++)
        assert_int_equal(
            gguf_writer_tensor(w, tensors[i].name, tensors[i].dtype, tensors[i].n_dims, tensors[i].shape), i);
    return w;
}

static void write_tensors(struct gguf_writer *w)
{
    uint8_t bytes[1024];
    for (int i = N_TENSORS - 1; i >= 0; i--) { /* any order will do, and any pieces */
        size_t n = gguf_writer_tensor_bytes(w, i), half = n / 2;
        assert_true(n <= sizeof bytes);
        pattern(i, bytes, n);
        assert_int_equal(gguf_writer_data(w, i, half, bytes + half, n - half, &e), 0);
        assert_int_equal(gguf_writer_data(w, i, 0, bytes, half, &e), 0);
    }
}

static void check_values(const struct gguf *g)
{
    int64_t i;
    double f;
    size_t len;
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"u8", 200},         {"i8", -1},  {"u16", 60000}, {"i16", -32768},
                {"u32", 4000000000}, {"i32", -2}, {"bool", 1},    {"i64", INT64_MIN}};
    for (size_t k = 0; k < sizeof ints / sizeof ints[0]; k++) {
        assert_true(gguf_i64(g, ints[k].key, &i));
        assert_true(i == ints[k].value);
    }
    assert_false(gguf_i64(g, "u64", &i)); /* does not fit */
    assert_true(gguf_f64(g, "u64", &f) && f == 18446744073709551616.0);
    assert_true(gguf_f64(g, "f32", &f) && f == 1.5);
    assert_true(gguf_f64(g, "f64", &f) && f == -2.5);
    const char *s = gguf_str(g, "text", &len);
    assert_int_equal(len, 4);
    assert_memory_equal(s, "a\0b\n", 4);
    assert_int_equal(gguf_array_len(g, "texts"), 3);
    s = gguf_array_str(g, "texts", 2, &len);
    assert_int_equal(len, 6);
    assert_memory_equal(s, "th\0ree", 6);
    assert_non_null(gguf_array_str(g, "texts", 1, &len));
    assert_int_equal(len, 0);
    assert_int_equal(gguf_array_len(g, "no texts"), 0);
    assert_int_equal(gguf_array_len(g, "no numbers"), 0);
    assert_int_equal(gguf_array_len(g, "shorts"), 3);
    assert_true(gguf_array_i64(g, "shorts", 1, &i) && i == -2);
    assert_int_equal(gguf_version(g), 3);
}

static void check_tensors(const struct model_file *f)
{
    assert_int_equal(f->n_tensors, N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++) {
        const struct tensor *t = model_file_tensor(f, tensors[i].name);
        uint8_t bytes[1024];
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        for (int d = 0; d < t->n_dims; d++)
            assert_int_equal(t->shape[d], tensors[i].shape[d]);
        pattern(i, bytes, t->bytes);
        assert_memory_equal(t->data, bytes, t->bytes);
        assert_int_equal((uintptr_t)t->data % 32, 0);
    }
}

static void test_reads_back_equal(void **state)
{
    (void)state;
    temp_write_text("good.gguf", "an older file of that name");
    struct gguf_writer *w = good_writer("good.gguf");
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    write_tensors(w);
    assert_int_equal(count_files("good.gguf"), 2); /* the older one, and the new one under another name */
    assert_int_equal(gguf_writer_finish(w, &e), 0);
    gguf_writer_close(w);
    assert_int_equal(count_files("good.gguf"), 1);
    struct model_file *f = model_file_open(temp_path("good.gguf"), &e);
    if (!f)
        fail_msg("%s", e.msg);
    check_values(f->gguf);
    check_tensors(f);

    /* every pair copied from it reads the same again */
    w = gguf_writer_open(temp_path("copy.gguf"), &e);
    for (int64_t i = 0; i < gguf_count(f->gguf); i++)
        gguf_writer_copy(w, f->gguf, i);
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    assert_int_equal(gguf_writer_finish(w, &e), 0);
    gguf_writer_close(w);
    struct model_file *copy = model_file_open(temp_path("copy.gguf"), &e);
    assert_non_null(copy);
    check_values(copy->gguf);
    assert_int_equal(gguf_count(copy->gguf), gguf_count(f->gguf));
    assert_int_equal(copy->n_tensors, 0);
    model_file_close(copy);
    model_file_close(f);
}

/* Files that other programs wrote, copied pair by pair and tensor by tensor, are equal to themselves. */
static void test_copies_of_fixtures(void **state)
{
    (void)state;
    static const char *const names[] = {"gguf/qwen35-tiny-q8_0.gguf", "gguf/llama-tiny-f16.gguf",
                                        "quant/types.gguf"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct model_file *f = model_file_open(fixture(names[k]), &e);
        assert_non_null(f);
        struct gguf_writer *w = gguf_writer_open(temp_path("fixture.gguf"), &e);
        for (int64_t i = 0; i < gguf_count(f->gguf); i++)
            gguf_writer_copy(w, f->gguf, i);
        for (int i = 0; i < f->n_tensors; i++)
            gguf_writer_tensor(w, f->tensors[i].name, f->tensors[i].dtype, f->tensors[i].n_dims,
                               f->tensors[i].shape);
        assert_int_equal(gguf_writer_begin(w, &e), 0);
        for (int i = 0; i < f->n_tensors; i++)
            assert_int_equal(gguf_writer_data(w, i, 0, f->tensors[i].data, f->tensors[i].bytes, &e), 0);
        assert_int_equal(gguf_writer_finish(w, &e), 0);
        gguf_writer_close(w);

        struct model_file *copy = model_file_open(temp_path("fixture.gguf"), &e);
        assert_non_null(copy);
        assert_int_equal(gguf_count(copy->gguf), gguf_count(f->gguf));
        for (int64_t i = 0; i < gguf_count(f->gguf); i++) {
            const char *type, *copied_type;
            char text[200], copied[200];
            gguf_describe(f->gguf, i, &type, text, sizeof text);
            gguf_describe(copy->gguf, i, &copied_type, copied, sizeof copied);
            assert_string_equal(gguf_key(copy->gguf, i), gguf_key(f->gguf, i));
            assert_string_equal(copied_type, type);
            assert_string_equal(copied, text);
        }
        int64_t n = gguf_array_len(f->gguf, "tokenizer.ggml.tokens");
        assert_int_equal(gguf_array_len(copy->gguf, "tokenizer.ggml.tokens"), n);
        for (int64_t i = 0; i < n; i++) {
            size_t len, copied_len;
            const char *s = gguf_array_str(f->gguf, "tokenizer.ggml.tokens", i, &len);
            const char *copied = gguf_array_str(copy->gguf, "tokenizer.ggml.tokens", i, &copied_len);
            assert_int_equal(copied_len, len);
            assert_memory_equal(copied, s, len);
        }
        assert_int_equal(copy->n_tensors, f->n_tensors);
        for (int i = 0; i < f->n_tensors; i++) {
            assert_string_equal(copy->tensors[i].name, f->tensors[i].name);
            assert_int_equal(copy->tensors[i].dtype, f->tensors[i].dtype);
            assert_int_equal(copy->tensors[i].bytes, f->tensors[i].bytes);
            assert_memory_equal(copy->tensors[i].shape, f->tensors[i].shape, sizeof f->tensors[i].shape);
            assert_memory_equal(copy->tensors[i].data, f->tensors[i].data, f->tensors[i].bytes);
        }
        model_file_close(copy);
        model_file_close(f);
    }
}

struct slice {
    struct gguf_writer *w;
    int first, step;
};

static void *write_slice(void *arg)
{
    const struct slice *s = arg;
    uint8_t row[1000];
    for (int i = s->first; i < 100; i += s->step) {
        memset(row, i, sizeof row);
        assert_int_equal(gguf_writer_data(s->w, 0, (size_t)i * sizeof row, row, sizeof row, NULL), 0);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_open(temp_path("threads.gguf"), &e);
    gguf_writer_tensor(w, "rows", DT_I8, 2, (const int64_t[]){100, 1000});
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    pthread_t thread;
    struct slice even = {w, 0, 2}, odd = {w, 1, 2};
    assert_int_equal(pthread_create(&thread, NULL, write_slice, &even), 0);
    write_slice(&odd);
    pthread_join(thread, NULL);
    assert_int_equal(gguf_writer_finish(w, &e), 0);
    gguf_writer_close(w);
    struct model_file *f = model_file_open(temp_path("threads.gguf"), &e);
    assert_non_null(f);
    const uint8_t *data = model_file_tensor(f, "rows")->data;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(data[i], i / 1000);
    model_file_close(f);
}

/* Begins w, expects a message with `words`, and that no file is left. */
static void refused(struct gguf_writer *w, const char *words)
{
    assert_int_equal(gguf_writer_begin(w, &e), -1);
    if (!strstr(e.msg, words) || !strstr(e.msg, "bad.gguf"))
        fail_msg("expected \"%s\", got: %s", words, e.msg);
    gguf_writer_close(w);
    assert_int_equal(count_files("bad.gguf"), 0);
}

static void test_mistakes_are_named(void **state)
{
    (void)state;
    struct gguf_writer *w = good_writer("bad.gguf");
    gguf_writer_u32(w, "u32", 1);
    refused(w, "\"u32\" is given twice");
    w = good_writer("bad.gguf");
    gguf_writer_u32(w, "", 1);
    refused(w, "metadata key \"\" is empty");
    w = good_writer("bad.gguf");
    gguf_writer_u32(w, "general.alignment", 64);
    refused(w, "general.alignment");
    w = good_writer("bad.gguf");
    gguf_writer_number(w, "x", GGUF_ARR, "");
    refused(w, "\"x\": values of type 9 are not numbers");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "bias", DT_F32, 1, (const int64_t[]){1});
    refused(w, "tensor \"bias\" is given twice");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "t", DT_Q8_0, 2, (const int64_t[]){2, 33});
    refused(w, "rows of 33 do not divide into the blocks of 32 of Q8_0");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "t", DT_F32, 2, (const int64_t[]){2, 0});
    refused(w, "tensor \"t\": its dimension 1 is 0");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "t", DT_F32, 2, (const int64_t[]){INT64_MAX, INT64_MAX});
    refused(w, "tensor \"t\"");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "t", DT_F32, 2, (const int64_t[]){(int64_t)1 << 40, (int64_t)1 << 22});
    refused(w, "tensor \"t\": its size overflows");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "t", (enum dtype)4, 1, (const int64_t[]){32});
    refused(w, "of type 4");
    w = good_writer("bad.gguf");
    gguf_writer_tensor(w, "a\nb", DT_F32, 1, (const int64_t[]){32});
    refused(w, "a tensor's name");
}

static void test_incomplete_files_do_not_appear(void **state)
{
    (void)state;
    struct gguf_writer *w = good_writer("half.gguf");
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    uint8_t bytes[1024] = {0};
    assert_int_equal(gguf_writer_data(w, 0, 200, bytes, 5, &e), -1);
    assert_non_null(strstr(e.msg, "past the end of tensor \"matrix\" of 204"));
    assert_int_equal(gguf_writer_data(w, 0, SIZE_MAX, bytes, 5, &e), -1);
    assert_int_equal(gguf_writer_data(w, 0, 0, bytes, 200, &e), 0);
    assert_int_equal(gguf_writer_finish(w, &e), -1);
    assert_non_null(strstr(e.msg, "tensor \"matrix\" got 200 of its 204 bytes"));
    gguf_writer_close(w);
    assert_int_equal(count_files("half.gguf"), 0);
}

static void test_paths_that_cannot_be(void **state)
{
    (void)state;
    assert_null(gguf_writer_open(temp_path("no/such/folder.gguf"), &e));
    assert_non_null(strstr(e.msg, "cannot create it: No such file or directory"));
    assert_null(gguf_writer_open(temp_dir, &e));
    assert_non_null(strstr(e.msg, "is not a regular file"));
}

/* A limit on the size of files stands for a full disk: both make the system refuse. */
static void test_no_room(void **state)
{
    (void)state;
    struct rlimit before, small = {.rlim_cur = 100000};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    struct gguf_writer *w = gguf_writer_open(temp_path("bad.gguf"), &e);
    gguf_writer_tensor(w, "t", DT_F32, 1, (const int64_t[]){1000000});
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = gguf_writer_begin(w, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, -1);
    if (!strstr(e.msg, "bad.gguf") || !strstr(e.msg, "4000064 bytes") || !strstr(e.msg, "File too large"))
        fail_msg("%s", e.msg);
    gguf_writer_close(w);

    w = gguf_writer_open(temp_path("bad.gguf"), &e);
    gguf_writer_tensor(w, "t", DT_F32, 1, (const int64_t[]){1000000});
    assert_int_equal(gguf_writer_begin(w, &e), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = gguf_writer_data(w, 0, 200000, "abcd", 4, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, -1);
    if (!strstr(e.msg, "bad.gguf") || !strstr(e.msg, "cannot write 4 bytes at byte 200064"))
        fail_msg("%s", e.msg);
    gguf_writer_close(w);
    assert_int_equal(count_files("bad.gguf"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_back_equal),
        cmocka_unit_test(test_copies_of_fixtures),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_incomplete_files_do_not_appear),
        cmocka_unit_test(test_paths_that_cannot_be),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
