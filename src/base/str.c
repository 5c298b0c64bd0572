#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void str_free(struct str *s)
{
    free(s->data);
    *s = (struct str){0};
}

void str_clear(struct str *s)
{
    s->len = 0;
    if (s->data)
        s->data[0] = '\0';
}

void str_reserve(struct str *s, size_t extra)
{
    size_t need = s->len + extra + 1;
    if (need <= s->cap)
        return;
    size_t cap = s->cap ? s->cap : 32;
    while (cap < need)
        cap *= 2;
    s->data = mem_realloc(s->data, cap, 1);
    s->cap = cap;
}

void str_add(struct str *s, const char *bytes, size_t n)
{
    str_reserve(s, n);
    if (n)
        memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = '\0';
}

void str_adds(struct str *s, const char *text)
{
    str_add(s, text, strlen(text));
}

void str_addc(struct str *s, char c)
{
    str_add(s, &c, 1);
}

void str_addf(struct str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        str_reserve(s, (size_t)n);
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

const char *str_text(const struct str *s)
{
    return s->data ? s->data : "";
}

char *str_take(struct str *s)
{
    if (!s->data)
        str_reserve(s, 0), s->data[0] = '\0';
    char *data = s->data;
    *s = (struct str){0};
    return data;
}

void str_add_utf8(struct str *s, unsigned cp)
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = 0xFFFD;
    char b[4];
    size_t n;
    if (cp < 0x80) {
        b[0] = (char)cp, n = 1;
    } else if (cp < 0x800) {
        b[0] = (char)(0xC0 | cp >> 6), b[1] = (char)(0x80 | (cp & 63)), n = 2;
    } else if (cp < 0x10000) {
        b[0] = (char)(0xE0 | cp >> 12), b[1] = (char)(0x80 | (cp >> 6 & 63)), b[2] = (char)(0x80 | (cp & 63)),
        n = 3;
    } else {
        b[0] = (char)(0xF0 | cp >> 18), b[1] = (char)(0x80 | (cp >> 12 & 63));
        b[2] = (char)(0x80 | (cp >> 6 & 63)), b[3] = (char)(0x80 | (cp & 63)), n = 4;
    }
    str_add(s, b, n);
}

int utf8_decode(const char *s, size_t n, unsigned *cp)
{
    const unsigned char *b = (const unsigned char *)s;
    unsigned c = b[0], min;
    int len;
    if (c < 0x80)
        return *cp = c, 1;
    if (c >= 0xC2 && c <= 0xDF)
        len = 2, c &= 31, min = 0x80;
    else if (c >= 0xE0 && c <= 0xEF)
        len = 3, c &= 15, min = 0x800;
    else if (c >= 0xF0 && c <= 0xF4)
        len = 4, c &= 7, min = 0x10000;
    else
        return 0;
    if (n < (size_t)len)
        return 0;
    for (int i = 1; i < len; i++) {
        if ((b[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (b[i] & 63);
    }
    if (c < min || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *cp = c;
    return len;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    unsigned cp;
    while (i < n) {
        int len = utf8_decode(s + i, n - i, &cp);
        if (!len)
            break;
        i += (size_t)len;
    }
    return i;
}
