/* Bad files: each gives an error that names what is wrong, and none a crash (run this under ASan and UBSan).
 * The bytes are parsed from a heap block of exactly their size, so that the sanitizer sees a read one byte
 * too far. */
#include "build.h"

#include "file/model_file.h"

/* ---- Parsing from memory --------------------------------------------------------------------------------
 */

static unsigned checksum; /* of all that was read, so that no read is optimised away */

/* Reads every byte of a tensor. */
static void read_tensors(const struct tensor_list *l)
{
    for (int i = 0; i < l->n; i++) {
        const struct tensor *t = &l->tensors[i];
        for (size_t j = 0; j < t->bytes; j++)
            checksum += ((const uint8_t *)t->data)[j];
    }
}

/* Reads every value through every getter. */
static void read_values(const struct gguf *g)
{
    for (int64_t i = 0; i < gguf_count(g); i++) {
        const char *type, *key = gguf_key(g, i), *s;
        char text[40];
        int64_t n;
        double f;
        bool b;
        size_t len;
        gguf_describe(g, i, &type, text, sizeof text);
        checksum += (unsigned)strlen(text) + (unsigned)strlen(type);
        if (gguf_i64(g, key, &n))
            checksum += (unsigned)n;
        checksum += gguf_f64(g, key, &f) + gguf_bool(g, key, &b);
        if ((s = gguf_str(g, key, &len)) != NULL)
            checksum += (unsigned)s[len];
        for (int64_t j = 0; j < gguf_array_len(g, key); j++) {
            checksum += gguf_array_f64(g, key, j, &f);
            if (gguf_array_i64(g, key, j, &n))
                checksum += (unsigned)n;
            if ((s = gguf_array_str(g, key, j, &len)) != NULL && len)
                checksum += (unsigned char)s[0] + (unsigned char)s[len - 1];
        }
    }
}

/* Parses bytes; 0, with all that was found read, or -1 with a message in *e. */
static int try_gguf(const void *bytes, size_t n, struct err *e)
{
    struct tensor_list l = {0};
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, bytes, n);
    *e = (struct err){0};
    struct gguf *g = gguf_parse(n ? copy : copy + 1, n, &l, e);
    if (g) {
        read_values(g);
        read_tensors(&l);
    } else {
        assert_true(e->code != ERR_NONE && e->msg[0] && e->code != ERR_NO_MEMORY);
    }
    int result = g ? 0 : -1;
    gguf_free(g);
    tensor_list_free(&l);
    free(copy);
    return result;
}

static int try_safetensors(const void *bytes, size_t n, struct err *e)
{
    struct tensor_list l = {0};
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, bytes, n);
    *e = (struct err){0};
    int result = safetensors_parse(n ? copy : copy + 1, n, &l, e);
    if (result == 0)
        result = tensor_list_sort(&l, e);
    if (result == 0)
        read_tensors(&l);
    else
        assert_true(e->code != ERR_NONE && e->msg[0]);
    tensor_list_free(&l);
    free(copy);
    return result;
}

/* Frees s; its parsing must have failed with a message that holds `part`. */
static void assert_bad(int (*try)(const void *, size_t, struct err *), struct str *s, const char *part)
{
    struct err e;
    int result = try(s->data, s->len, &e);
    if (result == 0 || !strstr(e.msg, part))
        fail_msg("%s: \"%s\" does not mention \"%s\"", result ? "refused" : "accepted", e.msg, part);
    str_free(s);
}

static void bad_gguf(struct str *s, const char *part)
{
    assert_bad(try_gguf, s, part);
}

static void bad_safetensors(const char *header, const char *part)
{
    struct str s = {0};
    put_safetensors(&s, header, 16);
    assert_bad(try_safetensors, &s, part);
}

/* ---- GGUF -----------------------------------------------------------------------------------------------
 */

static void headers_that_lie(void **state)
{
    (void)state;
    struct str s = {0};
    put_header(&s, 1, 0, 0), bad_gguf(&s, "version 1");
    put_header(&s, 4, 0, 0), bad_gguf(&s, "version 4");
    put_header(&s, 0x03000000, 0, 0), bad_gguf(&s, "big-endian");
    str_adds(&s, "GGUX"), put(&s, 8, 3), bad_gguf(&s, "GGUF");
    str_adds(&s, "GGUF"), bad_gguf(&s, "cut short");
    const uint64_t counts[] = {1, 1000, 1ull << 32, 1ull << 60, 1ull << 63, UINT64_MAX, UINT64_MAX / 40 + 2};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        put_header(&s, 3, counts[i], 0), bad_gguf(&s, "tensor list");
        put_header(&s, 3, 0, counts[i]), bad_gguf(&s, "metadata");
    }
    struct err e;
    put_header(&s, 3, 0, 0); /* nothing in it, but nothing wrong either */
    assert_int_equal(try_gguf(s.data, s.len, &e), 0);
    str_free(&s);
}

static void metadata_that_lies(void **state)
{
    (void)state;
    struct str s = {0};
    put_header(&s, 3, 0, 1), put_key(&s, "", GGUF_U8), put(&s, 8, 1), bad_gguf(&s, "metadata key 0");
    put_header(&s, 3, 0, 1), put_key(&s, "a\nb", GGUF_U8), put(&s, 8, 1), bad_gguf(&s, "metadata key 0");
    put_header(&s, 3, 0, 1), put_key(&s, "a\xFF", GGUF_U8), put(&s, 8, 1), bad_gguf(&s, "metadata key 0");
    put_header(&s, 3, 0, 1), put(&s, 8, UINT64_MAX), put(&s, 8, 0), bad_gguf(&s, "metadata");
    put_header(&s, 3, 0, 1), put_key(&s, "key.x", 13), put(&s, 8, 1),
        bad_gguf(&s, "'key.x' has the value type 13");
    put_header(&s, 3, 0, 1), put_key(&s, "key.x", 0xFFFFFFFF), put(&s, 8, 1), bad_gguf(&s, "key.x");
    put_header(&s, 3, 0, 1), put_key(&s, "key.x", GGUF_U64), put(&s, 4, 1), bad_gguf(&s, "key.x");
    put_header(&s, 3, 0, 1), put_key(&s, "key.x", GGUF_ARR), put(&s, 4, 0), bad_gguf(&s, "key.x");
    put_header(&s, 3, 0, 2), put_key(&s, "twice", GGUF_U8), put(&s, 1, 1), put_key(&s, "twice", GGUF_U8);
    put(&s, 1, 1), bad_gguf(&s, "'twice' occurs twice");
    put_header(&s, 3, 0, 1), put_array(&s, "nested", GGUF_ARR, 1), put_array(&s, "", GGUF_U8, 0);
    bad_gguf(&s, "'nested' is an array of arrays");

    /* strings and arrays past the end, up to lengths that wrap when multiplied */
    const uint64_t lengths[] = {17, 1ull << 31, 1ull << 32, 1ull << 60, 1ull << 61, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        put_header(&s, 3, 0, 1), put_key(&s, "key.x", GGUF_STR), put(&s, 8, lengths[i]), put(&s, 8, 0);
        put(&s, 8, 0), bad_gguf(&s, "key.x");
        for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++) {
            put_header(&s, 3, 0, 1), put_array(&s, "key.x", type, lengths[i]), put(&s, 8, 0), put(&s, 8, 0);
            bad_gguf(&s, "key.x");
        }
    }
    put_header(&s, 3, 0, 1), put_array(&s, "key.x", GGUF_STR, 2), put_string(&s, "ok"), put(&s, 8, 9);
    bad_gguf(&s, "key.x");
}

static void alignment_that_lies(void **state)
{
    (void)state;
    struct str s = {0};
    const uint32_t bad[] = {0, 3, 31, 48, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_header(&s, 3, 0, 1), put_key(&s, "general.alignment", GGUF_U32), put(&s, 4, bad[i]);
        bad_gguf(&s, "general.alignment");
    }
    for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++) {
        if (type == GGUF_U32 || type == GGUF_ARR)
            continue;
        put_header(&s, 3, 0, 1), put_key(&s, "general.alignment", type),
            put(&s, 8, type == GGUF_STR ? 0 : 32);
        bad_gguf(&s, "general.alignment");
    }
    put_header(&s, 3, 0, 1), put_array(&s, "general.alignment", GGUF_U32, 1), put(&s, 4, 32);
    bad_gguf(&s, "general.alignment");
    const uint64_t one = 1; /* the largest power of two puts the data far past the end */
    put_header(&s, 3, 1, 1), put_key(&s, "general.alignment", GGUF_U32), put(&s, 4, 1u << 31);
    put_tensor(&s, "t.x", 1, &one, DT_F32, 0), put(&s, 8, 0), bad_gguf(&s, "'t.x'");
}

/* One tensor of that entry, before 64 bytes of data. */
static void bad_tensor(int n_dims, const uint64_t *dims, uint32_t type, uint64_t offset, const char *part)
{
    struct str s = {0};
    put_header(&s, 3, 1, 0);
    put_tensor(&s, "t.x", n_dims, dims, type, offset);
    pad(&s, 32);
    for (int i = 0; i < 8; i++)
        put(&s, 8, 0);
    bad_gguf(&s, part);
}

static void tensors_that_lie(void **state)
{
    (void)state;
    struct str s = {0};
    bad_tensor(2, (const uint64_t[]){4, 0}, DT_F32, 0, "'t.x': its dimension 1 is 0");
    bad_tensor(2, (const uint64_t[]){0, 4}, DT_F32, 0, "'t.x': its dimension 0 is 0");
    bad_tensor(2, (const uint64_t[]){0, 4}, DT_Q8_0, 0, "'t.x'");
    bad_tensor(2, (const uint64_t[]){1ull << 32, 1ull << 32}, DT_I8, 0, "'t.x': its dimensions multiply");
    bad_tensor(4, (const uint64_t[]){1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, DT_I8, 0, "'t.x'");
    bad_tensor(2, (const uint64_t[]){UINT64_MAX, UINT64_MAX}, DT_I8, 0, "'t.x'");
    bad_tensor(1, (const uint64_t[]){1ull << 63}, DT_I8, 0, "'t.x'");
    bad_tensor(1, (const uint64_t[]){1ull << 62}, DT_F32, 0,
               "'t.x': its size overflows"); /* wraps to 0 bytes */
    bad_tensor(1, (const uint64_t[]){(1ull << 61) + 1}, DT_F64, 0, "'t.x': its size overflows");
    bad_tensor(1, (const uint64_t[]){33}, DT_Q8_0, 0, "blocks of 32 of Q8_0");
    bad_tensor(0, NULL, DT_Q4_K, 0, "blocks of 256 of Q4_K");
    bad_tensor(1, (const uint64_t[]){17}, DT_F32, 0, "'t.x' (68 bytes at byte 0");
    bad_tensor(1, (const uint64_t[]){4}, DT_F32, 64, "'t.x' (16 bytes at byte 64");
    bad_tensor(1, (const uint64_t[]){4}, DT_F32, 1ull << 63, "'t.x'");
    bad_tensor(1, (const uint64_t[]){16}, DT_F32, UINT64_MAX - 31, "'t.x'"); /* its end wraps to 32 */
    bad_tensor(1, (const uint64_t[]){4}, DT_F32, 4, "multiple of the alignment");
    const uint32_t unknown[] = {4, 5, 31, 36, DT_COUNT, 1000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        bad_tensor(1, (const uint64_t[]){4}, unknown[i], 0, "'t.x' has the element type");

    const uint32_t dims[] = {5, 9, 1000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        put_header(&s, 3, 1, 0), put_string(&s, "t.x"), put(&s, 4, dims[i]);
        for (int k = 0; k < 16; k++)
            put(&s, 8, 1);
        bad_gguf(&s, "'t.x' has");
    }
    const uint64_t n = 8; /* 32 bytes each */
    put_header(&s, 3, 2, 0), put_tensor(&s, "one", 1, &n, DT_F32, 0), put_tensor(&s, "two", 1, &n, DT_F64, 0);
    pad(&s, 32);
    for (int i = 0; i < 8; i++)
        put(&s, 8, 0);
    bad_gguf(&s, "lie on the same bytes");
    put_header(&s, 3, 1, 0), put_tensor(&s, "", 1, &n, DT_F32, 0), put(&s, 8, 0),
        bad_gguf(&s, "tensor's name");
    put_header(&s, 3, 1, 0), put(&s, 8, 1ull << 62), put(&s, 8, 0), put(&s, 8, 0), put(&s, 8, 0);
    bad_gguf(&s, "tensor list");
}

/* ---- Safetensors ----------------------------------------------------------------------------------------
 */

static void safetensors_that_lie(void **state)
{
    (void)state;
    struct str s = {0};
    put(&s, 7, 0), assert_bad(try_safetensors, &s, "7 bytes");
    put(&s, 8, 1), assert_bad(try_safetensors, &s, "past the end");
    put(&s, 8, UINT64_MAX), put(&s, 8, 0), assert_bad(try_safetensors, &s, "header");
    put(&s, 8, 100000001), put(&s, 8, 0), assert_bad(try_safetensors, &s, "limit");
    put(&s, 8, 0), assert_bad(try_safetensors, &s, "JSON");
    bad_safetensors("[]", "JSON object");
    bad_safetensors("{\"a\":", "JSON object");
#define ENTRY(dtype, shape, offsets) \
    "{\"t.x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    bad_safetensors("{\"t.x\":7}", "'t.x': its header entry");
    bad_safetensors("{\"\":{}}", "name");
    bad_safetensors("{\"a\\u0001\":{}}", "name");
    bad_safetensors(ENTRY("3", "[2]", "[0,8]"), "'t.x'");
    bad_safetensors(ENTRY("\"F32\"", "2", "[0,8]"), "'t.x'");
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[0,8,8]"), "data_offsets");
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[8,0]"), "data_offsets");
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[-8,0]"), "data_offsets");
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[0.0,8.0]"), "data_offsets");
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[0,18446744073709551615]"), "JSON"); /* too big for any parser */
    bad_safetensors(ENTRY("\"F32\"", "[2]", "[0,9223372036854775807]"), "'t.x' ends at byte");
    bad_safetensors(ENTRY("\"F32\"", "[5]", "[0,20]"), "'t.x' ends at byte 20");
    bad_safetensors(ENTRY("\"F32\"", "[3]", "[0,16]"), "'t.x': its shape and type");
    bad_safetensors(ENTRY("\"F32\"", "[-4]", "[0,16]"), "dimension 0");
    bad_safetensors(ENTRY("\"F32\"", "[4.0]", "[0,16]"), "dimension 0");
    bad_safetensors(ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,0]"), "'t.x': its dimensions multiply");
    bad_safetensors(ENTRY("\"F32\"", "[4611686018427387904]", "[0,0]"),
                    "'t.x': its shape and type"); /* wraps */
    bad_safetensors(ENTRY("\"F8_E4M3\"", "[4]", "[0,16]"), "'t.x': its shape and type");
    bad_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
                    "'a' and 'b' lie on the same bytes");
    bad_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                    "duplicate");
    for (int i = 0; i < 100000; i++) /* deeper than any stack should follow */
        str_addc(&s, '[');
    struct str deep = {0};
    put_safetensors(&deep, s.data, 0);
    str_free(&s);
    assert_bad(try_safetensors, &deep, "JSON");
}

/* What sluice cannot use is set aside, named, and only missed by who needs it. */
static void odd_tensors_are_set_aside(void **state)
{
    (void)state;
    struct str s = {0};
    put_safetensors(&s,
                    "{\"fp8\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]},"
                    "\"new\":{\"dtype\":\"F4_X\",\"shape\":[4],\"data_offsets\":[4,6]},"
                    "\"conv\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,2],\"data_offsets\":[6,8]},"
                    "\"empty\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[8,8]},"
                    "\"good\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]}}",
                    12);
    temp_write("odd.safetensors", s.data, s.len);
    struct err e = {0};
    struct model_file *f = model_file_open_safetensors(temp_path("odd.safetensors"), &e);
    if (!f)
        fail_msg("%s", e.msg);
    assert_int_equal(f->n_tensors, 1);
    assert_int_equal(f->n_unread, 4);
    assert_int_equal(model_file_tensor(f, "good")->n_dims, 0);
    assert_null(model_file_tensor(f, "fp8"));
    assert_non_null(strstr(model_file_why_missing(f, "fp8"), "F8_E4M3"));
    assert_non_null(strstr(model_file_why_missing(f, "new"), "F4_X"));
    assert_non_null(strstr(model_file_why_missing(f, "conv"), "5 dimensions"));
    assert_non_null(strstr(model_file_why_missing(f, "empty"), "no elements"));
    model_file_close(f);
    str_free(&s);
}

/* ---- Damage ---------------------------------------------------------------------------------------------
 */

/* Cut at every byte: an error, except where only bytes after the last tensor are lost. */
static void cut_everywhere(int (*try)(const void *, size_t, struct err *), const char *data, size_t n)
{
    struct err e;
    assert_int_equal(try(data, n, &e), 0);
    for (size_t i = 0; i < n; i++)
        if (try(data, i, &e) == 0)
            fail_msg("cut at byte %zu of %zu, and accepted", i, n);
}

static void truncated_files(void **state)
{
    (void)state;
    struct str s = {0};
    size_t n;
    put_good_gguf(&s);
    cut_everywhere(try_gguf, s.data, s.len);
    str_free(&s);
    put_safetensors(&s, ENTRY("\"F32\"", "[2,2]", "[0,16]"), 16);
    cut_everywhere(try_safetensors, s.data, s.len);
    str_free(&s);
    char *types = read_whole(fixture("quant/types.gguf"), &n);
    assert_non_null(types);
    struct err e;
    for (size_t i = 0; i < n; i += i < 3000 ? 1 : 97) /* all of its header, and some of the data */
        assert_true(try_gguf(types, i, &e) != 0);
    free(types);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Changes 1 … 4 bytes of the first `head`, many times over: whatever comes out, it must not crash. Some of it
 * must be accepted and some refused, or the test would not be trying both. */
static void damage(int (*try)(const void *, size_t, struct err *), const char *data, size_t n, size_t head,
                   int rounds)
{
    uint64_t seed = 0x9E3779B97F4A7C15;
    int accepted = 0;
    char *copy = malloc(n);
    for (int i = 0; i < rounds; i++) {
        memcpy(copy, data, n);
        for (uint64_t k = next_random(&seed) % 4 + 1; k; k--) {
            const uint64_t r = next_random(&seed);
            const char values[4] = {0, -1, (char)(r >> 40), (char)(copy[r % head] ^ 1 << (r >> 40 & 7))};
            copy[r % head] = values[r >> 60 & 3];
        }
        struct err e;
        accepted += try(copy, n, &e) == 0;
    }
    free(copy);
    assert_in_range(accepted, 1, rounds - 1);
}

static void flipped_bytes(void **state)
{
    (void)state;
    struct str s = {0};
    size_t n;
    put_good_gguf(&s);
    damage(try_gguf, s.data, s.len, s.len, 40000);
    str_free(&s);
    put_safetensors(&s,
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                    "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[8,16]}}",
                    16);
    damage(try_safetensors, s.data, s.len, s.len, 40000);
    str_free(&s);
    char *types = read_whole(fixture("quant/types.gguf"), &n);
    assert_non_null(types);
    damage(try_gguf, types, n, 1600, 2000);
    free(types);
}

/* ---- Paths ----------------------------------------------------------------------------------------------
 */

static void refused(const char *name, enum err_code code, const char *part)
{
    struct err e = {0};
    const char *path = temp_path(name);
    assert_null(model_file_open(path, &e));
    if (e.code != code || !strstr(e.msg, part) || !strstr(e.msg, path))
        fail_msg("code %d, \"%s\" does not mention \"%s\" and the path", (int)e.code, e.msg, part);
}

static void paths_that_are_no_model(void **state)
{
    (void)state;
    refused("missing.gguf", ERR_NOT_FOUND, "No such file");
    temp_write_text("empty.gguf", "");
    refused("empty.gguf", ERR_INVALID, "empty");
    temp_write_text("text.txt", "hello, world");
    refused("text.txt", ERR_INVALID, "not a GGUF file");
    temp_write_text("w.safetensors", "hello, world");
    refused("w.safetensors", ERR_INVALID, "give the directory");
    temp_write_text("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    refused("lfs.gguf", ERR_INVALID, "git lfs pull");
    temp_write_text("short.gguf", "GGUF\3");
    refused("short.gguf", ERR_INVALID, "cut short");
    assert_int_equal(mkfifo(temp_path("fifo.gguf"), 0600), 0);
    refused("fifo.gguf", ERR_INVALID, "regular file");
    struct err e = {0};
    assert_null(model_file_open_safetensors(temp_path("text.txt"), &e));
    assert_non_null(strstr(e.msg, "text.txt: its header"));
    assert_null(model_file_open("", &e));

    assert_int_equal(mkdir(temp_path("dir"), 0777), 0);
    refused("dir", ERR_NOT_FOUND, "no config.json");
    temp_write_text("dir/z.gguf", "GGUF");
    refused("dir", ERR_NOT_FOUND, "z.gguf");
    temp_write_text("dir/config.json", "{\"a\": }");
    refused("dir", ERR_INVALID, "config.json: line 1, column 7");
    temp_write_text("dir/config.json", "[1]");
    refused("dir", ERR_INVALID, "config.json: is not a JSON object");
    temp_write_text("dir/config.json", "{}");
    refused("dir", ERR_NOT_FOUND, "neither model.safetensors nor");
    temp_write_text("dir/model.safetensors", "abc");
    refused("dir", ERR_INVALID, "model.safetensors: 3 bytes are too few");
    temp_write_text("dir/tokenizer.json", "{");
    refused("dir", ERR_INVALID, "tokenizer.json: line 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_lie),        cmocka_unit_test(metadata_that_lies),
        cmocka_unit_test(alignment_that_lies),     cmocka_unit_test(tensors_that_lie),
        cmocka_unit_test(safetensors_that_lie),    cmocka_unit_test(odd_tensors_are_set_aside),
        cmocka_unit_test(truncated_files),         cmocka_unit_test(flipped_bytes),
        cmocka_unit_test(paths_that_are_no_model),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
