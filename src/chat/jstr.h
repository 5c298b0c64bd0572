/* Strings of the template interpreter: immutable UTF-8 with marks of origin (value.h). Slices share bytes and
 * marks with the string they come from. Python counts characters, we store bytes: functions say which they
 * mean. */
#ifndef SLUICE_CHAT_JSTR_H
#define SLUICE_CHAT_JSTR_H

#include <string.h>

#include "chat/vm.h"

/* Wraps bytes that outlive the render. */
const struct jstr *jstr_wrap(struct vm *vm, const char *bytes, size_t len, bool literal);
/* A string of ours, such as a type's name. */
const struct jstr *jstr_c(struct vm *vm, const char *text);
/* Bytes offset … offset+len-1 of s, which must be whole characters; keeps `markup`. */
const struct jstr *jstr_sub(struct vm *vm, const struct jstr *s, size_t offset, size_t len);
/* s with another markup flag. */
const struct jstr *jstr_mark(struct vm *vm, const struct jstr *s, bool markup);

static inline bool jstr_eq(const struct jstr *a, const struct jstr *b)
{
    return a->len == b->len && (a->bytes == b->bytes || !memcmp(a->bytes, b->bytes, a->len));
}
static inline bool jstr_is(const struct jstr *s, const char *text)
{
    return s->len == strlen(text) && !memcmp(s->bytes, text, s->len);
}
/* As memcmp: order by bytes, which for UTF-8 is Python's order by code points. */
int jstr_cmp(const struct jstr *a, const struct jstr *b);

/* Number of characters. */
size_t jstr_chars(struct vm *vm, const struct jstr *s);
/* Byte offset of character `index` (0 … number of characters). */
size_t jstr_offset(struct vm *vm, const struct jstr *s, size_t index);
/* Offset of the first `needle` in s at or after byte `from`; SIZE_MAX if there is none. */
size_t jstr_find(struct vm *vm, const struct jstr *s, const struct jstr *needle, size_t from);
/* Offset of the last one that ends at or before byte `end`. */
size_t jstr_rfind(struct vm *vm, const struct jstr *s, const struct jstr *needle, size_t end);
bool jstr_starts(struct vm *vm, const struct jstr *s, const struct jstr *prefix);
bool jstr_ends(struct vm *vm, const struct jstr *s, const struct jstr *suffix);

/* Strips the characters in `chars` (NULL: white space) from the left end, the right end or both. */
enum jstr_side { JSTR_LEFT = 1, JSTR_RIGHT = 2, JSTR_BOTH = 3 };
const struct jstr *jstr_strip(struct vm *vm, const struct jstr *s, const struct jstr *chars,
                              enum jstr_side sides);
/* Appends s to the text with <, >, &, ' and " escaped for HTML. */
void jstr_put_escaped(struct vm *vm, const struct jstr *s);
/* Concatenation as Python's `+`: if one side is markup the other is escaped. */
const struct jstr *jstr_concat(struct vm *vm, const struct jstr *a, const struct jstr *b);

/* --- characters ---------------------------------------------------------------------------------- */

/* Length (>= 1) of the character at s, n >= 1 bytes left; a byte that is no UTF-8 counts as U+FFFD. */
int char_at_wide(const char *s, size_t n, unsigned *cp);
static inline int char_at(const char *s, size_t n, unsigned *cp)
{
    if ((unsigned char)*s >= 0x80)
        return char_at_wide(s, n, cp);
    *cp = (unsigned char)*s;
    return 1;
}
/* Length of the last character of [s, s+n), n >= 1. */
int char_before(const char *s, size_t n, unsigned *cp);
bool char_is_space(unsigned cp); /* str.isspace */
bool char_is_alpha(unsigned cp);
bool char_is_digit(unsigned cp);   /* str.isdigit */
bool char_is_decimal(unsigned cp); /* str.isdecimal */
bool char_is_numeric(unsigned cp);
bool char_is_printable(unsigned cp);
bool char_is_lower(unsigned cp);
bool char_is_upper(unsigned cp);
bool char_is_line_break(unsigned cp); /* for str.splitlines */

enum char_case { CASE_UPPER, CASE_LOWER, CASE_TITLE };
/* Appends cp in the given case; the bytes get the mark `literal`. */
void char_put_case(struct vm *vm, unsigned cp, enum char_case to, bool literal);
void char_put(struct vm *vm, unsigned cp, bool literal);

#endif
