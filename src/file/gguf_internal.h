/* How parsed GGUF metadata is kept: written by gguf.c, read by gguf_values.c. */
#ifndef SLUICE_FILE_GGUF_INTERNAL_H
#define SLUICE_FILE_GGUF_INTERNAL_H

#include "file/gguf.h"
#include "file/internal.h"

/* A scalar is kept as an array of one. */
struct gguf_value {
    char *key;
    enum gguf_type type; /* of the elements; never GGUF_ARR */
    bool is_array;
    uint64_t count;
    const uint8_t *data; /* numbers: [count] packed elements, in the file */
    uint64_t *strings;   /* strings: [count] offsets from data of each one's length field */
    char *text;          /* a scalar string: a NUL-terminated copy; its length is in the file */
};

struct gguf {
    int version;
    int64_t n_values;
    struct gguf_value *values;  /* [n_values] in file order */
    struct gguf_value **by_key; /* [n_values] sorted */
};

/* NULL if there is no such key. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
/* String `index` (< count) of a value of type GGUF_STR. */
const char *gguf_value_str(const struct gguf_value *v, uint64_t index, size_t *len);

#endif
