/* A growable byte string, always NUL-terminated once anything was appended. Zero-initialise it:
 * `struct str s = {0};`, free with str_free. `data` may be stolen by taking the pointer and zeroing. */
#ifndef SLUICE_BASE_STR_H
#define SLUICE_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

struct str {
    char *data; /* [len] bytes and a NUL; NULL while empty and untouched */
    size_t len, cap;
};

void str_free(struct str *s);
void str_clear(struct str *s); /* len = 0, keeps the memory */
void str_reserve(struct str *s, size_t extra);
void str_add(struct str *s, const char *bytes, size_t n);
void str_adds(struct str *s, const char *text);
void str_addc(struct str *s, char c);
void str_addf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns s's text ("" while untouched), NUL-terminated, owned by s. */
const char *str_text(const struct str *s);
/* Hands the buffer to the caller (never NULL, free with free()) and leaves s empty. */
char *str_take(struct str *s);

/* Appends code point cp as UTF-8 (U+FFFD if it is not a scalar value). */
void str_add_utf8(struct str *s, unsigned cp);
/* Length in bytes of the longest prefix of [s, s+n) that is valid UTF-8 by whole characters. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* Decodes the character at s (n >= 1 bytes left): its length 1..4, code point in *cp; 0 if malformed or cut
 * short. */
int utf8_decode(const char *s, size_t n, unsigned *cp);

#endif
