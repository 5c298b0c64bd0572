#include "chat/jstr.h"

#include <utf8proc.h>

#include "base/str.h"

const struct jstr *jstr_wrap(struct vm *vm, const char *bytes, size_t len, bool literal)
{
    struct jstr *s = vm_alloc(vm, 1, sizeof *s);
    *s = (struct jstr){.bytes = bytes, .len = len, .literal = literal, .chars = -1};
    return s;
}

const struct jstr *jstr_c(struct vm *vm, const char *text)
{
    return jstr_wrap(vm, text, strlen(text), false);
}

const struct jstr *jstr_sub(struct vm *vm, const struct jstr *s, size_t offset, size_t len)
{
    if (len == s->len)
        return s;
    struct jstr *sub = vm_alloc(vm, 1, sizeof *sub);
    *sub = *s;
    sub->bytes += offset;
    sub->len = len;
    if (sub->marks)
        sub->marks += offset;
    sub->chars = s->chars == (int64_t)s->len ? (int64_t)len : -1; /* all ASCII: so is the part */
    return sub;
}

const struct jstr *jstr_mark(struct vm *vm, const struct jstr *s, bool markup)
{
    if (s->markup == markup)
        return s;
    struct jstr *copy = vm_alloc(vm, 1, sizeof *copy);
    *copy = *s;
    copy->markup = markup;
    return copy;
}

int jstr_cmp(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->bytes, b->bytes, n) : 0;
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

size_t jstr_chars(struct vm *vm, const struct jstr *s)
{
    if (s->chars >= 0)
        return (size_t)s->chars;
    vm_charge_chars(vm, s->len);
    size_t n = 0;
    unsigned cp;
    for (size_t i = 0; i < s->len; n++)
        i += (size_t)char_at(s->bytes + i, s->len - i, &cp);
    /* Only strings made by this render are uncounted (the parser counts its own), so no other thread reads
     * it. */
    ((struct jstr *)s)->chars = (int64_t)n;
    return n;
}

size_t jstr_offset(struct vm *vm, const struct jstr *s, size_t index)
{
    size_t chars = jstr_chars(vm, s);
    if (chars == s->len || index == 0)
        return index;
    if (index >= chars)
        return s->len;
    size_t at = 0;
    unsigned cp;
    if (index <= chars / 2) {
        vm_charge_chars(vm, index);
        for (size_t i = 0; i < index; i++)
            at += (size_t)char_at(s->bytes + at, s->len - at, &cp);
    } else {
        vm_charge_chars(vm, chars - index);
        at = s->len;
        for (size_t i = chars; i > index; i--)
            at -= (size_t)char_before(s->bytes, at, &cp);
    }
    return at;
}

size_t jstr_find(struct vm *vm, const struct jstr *s, const struct jstr *needle, size_t from)
{
    if (from > s->len || needle->len > s->len - from)
        return SIZE_MAX;
    if (!needle->len)
        return from;
    const char *hit = memmem(s->bytes + from, s->len - from, needle->bytes, needle->len);
    vm_charge_bytes(vm, hit ? (size_t)(hit - s->bytes) - from : s->len - from);
    return hit ? (size_t)(hit - s->bytes) : SIZE_MAX;
}

size_t jstr_rfind(struct vm *vm, const struct jstr *s, const struct jstr *needle, size_t end)
{
    if (needle->len > end)
        return SIZE_MAX;
    for (size_t at = end - needle->len;; at--) {
        bool begins = !needle->len || s->bytes[at] == needle->bytes[0];
        if (begins && !memcmp(s->bytes + at, needle->bytes, needle->len))
            return at;
        vm_charge(vm, (begins ? needle->len / 32 : 0) + (at % 16 == 0));
        if (!at)
            return SIZE_MAX;
    }
}

bool jstr_starts(struct vm *vm, const struct jstr *s, const struct jstr *prefix)
{
    vm_charge_bytes(vm, prefix->len);
    return s->len >= prefix->len && !memcmp(s->bytes, prefix->bytes, prefix->len);
}

bool jstr_ends(struct vm *vm, const struct jstr *s, const struct jstr *suffix)
{
    vm_charge_bytes(vm, suffix->len);
    return s->len >= suffix->len && !memcmp(s->bytes + s->len - suffix->len, suffix->bytes, suffix->len);
}

static bool strips(const struct jstr *chars, const char *at, int len, unsigned cp)
{
    if (!chars)
        return char_is_space(cp);
    unsigned other;
    for (size_t i = 0; i < chars->len;) {
        int n = char_at(chars->bytes + i, chars->len - i, &other);
        if (n == len && !memcmp(chars->bytes + i, at, (size_t)n))
            return true;
        i += (size_t)n;
    }
    return false;
}

const struct jstr *jstr_strip(struct vm *vm, const struct jstr *s, const struct jstr *chars,
                              enum jstr_side sides)
{
    size_t begin = 0, end = s->len, cost = chars ? chars->len / 8 + 1 : 1;
    unsigned cp;
    while (sides & JSTR_LEFT && begin < end) {
        int n = char_at(s->bytes + begin, end - begin, &cp);
        if (!strips(chars, s->bytes + begin, n, cp))
            break;
        vm_charge(vm, cost);
        begin += (size_t)n;
    }
    while (sides & JSTR_RIGHT && begin < end) {
        int n = char_before(s->bytes + begin, end - begin, &cp);
        if (!strips(chars, s->bytes + end - n, n, cp))
            break;
        vm_charge(vm, cost);
        end -= (size_t)n;
    }
    return jstr_sub(vm, s, begin, end - begin);
}

void jstr_put_escaped(struct vm *vm, const struct jstr *s)
{
    size_t plain = 0;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len; i++) {
        const char *entity;
        switch (s->bytes[i]) {
        case '<':
            entity = "&lt;";
            break;
        case '>':
            entity = "&gt;";
            break;
        case '&':
            entity = "&amp;";
            break;
        case '"':
            entity = "&#34;";
            break;
        case '\'':
            entity = "&#39;";
            break;
        default:
            continue;
        }
        vm_put_sub(vm, s, plain, i - plain);
        vm_put(vm, entity, strlen(entity), s->marks ? s->marks[i] : s->literal);
        plain = i + 1;
    }
    vm_put_sub(vm, s, plain, s->len - plain);
}

const struct jstr *jstr_concat(struct vm *vm, const struct jstr *a, const struct jstr *b)
{
    bool markup = a->markup || b->markup;
    if (!markup && !a->len)
        return b;
    if (!markup && !b->len)
        return a;
    size_t start = vm->text_len;
    if (markup && !a->markup)
        jstr_put_escaped(vm, a);
    else
        vm_put_jstr(vm, a);
    if (markup && !b->markup)
        jstr_put_escaped(vm, b);
    else
        vm_put_jstr(vm, b);
    return jstr_mark(vm, vm_take(vm, start), markup);
}

int char_at_wide(const char *s, size_t n, unsigned *cp)
{
    int len = utf8_decode(s, n, cp);
    if (len)
        return len;
    *cp = 0xFFFD;
    return 1;
}

int char_before(const char *s, size_t n, unsigned *cp)
{
    for (int len = 1; len <= 4 && (size_t)len <= n; len++)
        if (((unsigned char)s[n - (size_t)len] & 0xC0) != 0x80) {
            if (utf8_decode(s + n - len, (size_t)len, cp) == len)
                return len;
            break;
        }
    *cp = 0xFFFD;
    return 1;
}

bool char_is_space(unsigned cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 31);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(unsigned cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool char_is_alpha(unsigned cp)
{
    if (cp < 0x80)
        return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool char_is_decimal(unsigned cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool char_is_digit(unsigned cp)
{
    if (char_is_decimal(cp))
        return true;
    /* Python adds the digits that are no decimals: superscripts, subscripts and enclosed ones. */
    return cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468) ||
           (cp >= 0x2474 && cp <= 0x247C) || (cp >= 0x2488 && cp <= 0x2490);
}

bool char_is_numeric(unsigned cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool char_is_printable(unsigned cp)
{
    if (cp < 0x80)
        return cp >= 0x20 && cp < 0x7F;
    utf8proc_category_t c = category(cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

bool char_is_lower(unsigned cp)
{
    if (cp < 0x80)
        return cp >= 'a' && cp <= 'z';
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA;
}

bool char_is_upper(unsigned cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z';
    return category(cp) == UTF8PROC_CATEGORY_LU;
}

bool char_is_line_break(unsigned cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

void char_put(struct vm *vm, unsigned cp, bool literal)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)cp, bytes);
    vm_put(vm, (const char *)bytes, (size_t)n, literal);
}

void char_put_case(struct vm *vm, unsigned cp, enum char_case to, bool literal)
{
    if (cp == 0xDF && to != CASE_LOWER) { /* ß is the one common letter that grows */
        vm_put(vm, to == CASE_UPPER ? "SS" : "Ss", 2, literal);
        return;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    c = to == CASE_UPPER ? utf8proc_toupper(c) : to == CASE_LOWER ? utf8proc_tolower(c) : utf8proc_totitle(c);
    char_put(vm, (unsigned)c, literal);
}
