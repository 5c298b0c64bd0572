/* Builds model files byte by byte, right or wrong, and temporary directories to put them in. */
#ifndef SLUICE_TESTS_FILE_BUILD_H
#define SLUICE_TESTS_FILE_BUILD_H

#include "unit.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "file/gguf_internal.h"

static inline void put(struct str *s, int n_bytes, uint64_t v)
{
    for (int i = 0; i < n_bytes; i++)
        str_addc(s, (char)(v >> 8 * i));
}

static inline void put_string(struct str *s, const char *text)
{
    put(s, 8, strlen(text));
    str_adds(s, text);
}

static inline void put_header(struct str *s, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    str_adds(s, "GGUF");
    put(s, 4, version);
    put(s, 8, n_tensors);
    put(s, 8, n_values);
}

static inline void put_key(struct str *s, const char *key, uint32_t type)
{
    put_string(s, key);
    put(s, 4, type);
}

static inline void put_array(struct str *s, const char *key, uint32_t type, uint64_t count)
{
    put_key(s, key, GGUF_ARR);
    put(s, 4, type);
    put(s, 8, count);
}

static inline void put_tensor(struct str *s, const char *name, int n_dims, const uint64_t *dims,
                              uint32_t type, uint64_t offset)
{
    put_string(s, name);
    put(s, 4, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        put(s, 8, dims[i]);
    put(s, 4, type);
    put(s, 8, offset);
}

static inline void pad(struct str *s, size_t alignment)
{
    while (s->len % alignment)
        str_addc(s, 0);
}

/* A valid file with a value of every type and three tensors. */
static inline void put_good_gguf(struct str *s)
{
    put_header(s, 3, 3, 16);
    put_key(s, "u8", GGUF_U8), put(s, 1, 200);
    put_key(s, "i8", GGUF_I8), put(s, 1, 0xFF);
    put_key(s, "u16", GGUF_U16), put(s, 2, 60000);
    put_key(s, "i16", GGUF_I16), put(s, 2, 0x8000);
    put_key(s, "u32", GGUF_U32), put(s, 4, 4000000000u);
    put_key(s, "i32", GGUF_I32), put(s, 4, 0xFFFFFFFE);
    put_key(s, "f32", GGUF_F32), put(s, 4, 0x3FC00000); /* 1.5 */
    put_key(s, "bool", GGUF_BOOL), put(s, 1, 1);
    put_key(s, "str", GGUF_STR), put_string(s, "h\xC3\xA9\n\x01");
    put_key(s, "u64", GGUF_U64), put(s, 8, UINT64_MAX);
    put_key(s, "i64", GGUF_I64), put(s, 8, (uint64_t)INT64_MIN);
    put_key(s, "f64", GGUF_F64), put(s, 8, 0xC004000000000000); /* -2.5 */
    put_array(s, "strings", GGUF_STR, 3), put_string(s, "a"), put_string(s, ""), put_string(s, "ccc");
    put_array(s, "shorts", GGUF_I16, 3), put(s, 2, 1), put(s, 2, 0xFFFF), put(s, 2, 3);
    put_array(s, "none", GGUF_U64, 0);
    put_key(s, "general.alignment", GGUF_U32), put(s, 4, 64);
    put_tensor(s, "matrix", 2, (const uint64_t[]){32, 2}, DT_Q8_0, 64);
    put_tensor(s, "scalar", 0, NULL, DT_F32, 192);
    put_tensor(s, "bias", 1, (const uint64_t[]){3}, DT_F16, 0);
    pad(s, 64);
    for (int i = 0; i < 196; i++)
        str_addc(s, (char)i);
}

/* "u64 length, header, n_data zero bytes": a safetensors file around a header. */
static inline void put_safetensors(struct str *s, const char *header, size_t n_data)
{
    put(s, 8, strlen(header));
    str_adds(s, header);
    for (size_t i = 0; i < n_data; i++)
        str_addc(s, (char)i);
}

/* ---- Temporary files ------------------------------------------------------------------------------------
 */

static char temp_dir[1024];

static inline int temp_setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(temp_dir, sizeof temp_dir, "%s/sluice-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(temp_dir) ? 0 : -1;
}

static inline int temp_remove(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline int temp_teardown(void **state)
{
    (void)state;
    return nftw(temp_dir, temp_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of a file in the temporary directory, in a static buffer that the next call but three overwrites.
 */
static inline const char *temp_path(const char *name)
{
    static char paths[4][2048];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir, name);
    return path;
}

static inline void temp_write(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(temp_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static inline void temp_write_text(const char *name, const char *text)
{
    temp_write(name, text, strlen(text));
}

#endif
