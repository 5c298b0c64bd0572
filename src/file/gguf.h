/* GGUF metadata: typed key-value pairs. Getters convert between integer widths when the value fits;
 * a missing key, another type or a value out of range is `false` (and *out is untouched). */
#ifndef SLUICE_FILE_GGUF_H
#define SLUICE_FILE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file/model_file.h"

/* What a value is made of: the format's numbers. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARR,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT,
};

bool gguf_has(const struct gguf *g, const char *key);
bool gguf_i64(const struct gguf *g, const char *key, int64_t *out); /* any integer type or bool */
bool gguf_f64(const struct gguf *g, const char *key, double *out);  /* any number */
bool gguf_bool(const struct gguf *g, const char *key, bool *out);   /* bool or integer */
const char *gguf_str(const struct gguf *g, const char *key,
                     size_t *len); /* NUL-terminated copy owned by g (may hold
                                      NULs inside: use *len); NULL if none */
/* Arrays: the number of elements, or -1 if the key is absent or not an array (of that kind). */
int64_t gguf_array_len(const struct gguf *g, const char *key);
bool gguf_array_i64(const struct gguf *g, const char *key, int64_t index, int64_t *out);
bool gguf_array_f64(const struct gguf *g, const char *key, int64_t index, double *out);
/* Not NUL-terminated. O(1): string arrays are indexed when the file is opened. */
const char *gguf_array_str(const struct gguf *g, const char *key, int64_t index, size_t *len);

/* For `inspect`: the i-th pair in file order. type_name is "u32", "str", "arr[str]" …; text is a short
 * rendering (at most n bytes with its NUL). */
int64_t gguf_count(const struct gguf *g);
const char *gguf_key(const struct gguf *g, int64_t i);
void gguf_describe(const struct gguf *g, int64_t i, const char **type_name, char *text, size_t n);
int gguf_version(const struct gguf *g);

#endif
