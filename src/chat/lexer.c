#include "chat/lexer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "chat/jstr.h"
#include "chat/limits.h"

void lexer_fail(struct lexer *lx, int line, const char *fmt, ...)
{
    char msg[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    msg[utf8_valid_prefix(msg, strlen(msg))] = '\0';
    err_set(lx->err, ERR_INVALID, "chat template, line %d: %s", line, msg);
    longjmp(*lx->escape, 1);
}

void *lexer_alloc(struct lexer *lx, size_t count, size_t size)
{
    void *p = jinja_arena_alloc(lx->arena, count, size);
    if (!p)
        lexer_fail(lx, lx->line, "the template takes more than %zu MiB once parsed", JINJA_MAX_PARSED >> 20);
    return p;
}

void lexer_init(struct lexer *lx, const char *source, size_t len)
{
    char *text = lexer_alloc(lx, len, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            text[n++] = '\n';
            if (i + 1 < len && source[i + 1] == '\n')
                i++;
        } else {
            text[n++] = source[i];
        }
    }
    if (n && text[n - 1] == '\n') /* one newline at the end does not count */
        n--;
    lx->src = text;
    lx->len = n;
    lx->line = 1;
    lx->line_starting = true;
    lx->pending = TOKEN_EOF;
}

/* --- small readers ------------------------------------------------------------------------------- */

/* Moves on to byte `to`, counting lines. */
static void advance(struct lexer *lx, size_t to)
{
    for (size_t i = lx->pos; i < to; i++)
        lx->line += lx->src[i] == '\n';
    if (to > lx->pos)
        lx->line_starting = lx->src[to - 1] == '\n';
    lx->pos = to;
}

static bool looking_at(const struct lexer *lx, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at <= lx->len && n <= lx->len - at && !memcmp(lx->src + at, text, n);
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
    unsigned cp;
    while (at < lx->len) {
        int n = char_at(lx->src + at, lx->len - at, &cp);
        if (!char_is_space(cp))
            break;
        at += (size_t)n;
    }
    return at;
}

/* Where a tag that ends at `at` with `close` ("%}", "}}", "#}") really ends: after the white space or the
 * newline that goes with it. 0 if it does not end here. `trims`: a newline after it goes. */
static size_t tag_end(const struct lexer *lx, size_t at, const char *close, bool trims)
{
    char with_sign[4] = {'-', close[0], close[1], 0};
    if (looking_at(lx, at, with_sign))
        return skip_space(lx, at + 3);
    with_sign[0] = '+';
    if (trims && looking_at(lx, at, with_sign))
        return at + 3;
    if (!looking_at(lx, at, close))
        return 0;
    at += 2;
    return trims && at < lx->len && lx->src[at] == '\n' ? at + 1 : at;
}

/* Matches "{%", an optional sign, `word` and the close of the tag; returns its end or 0; *sign is '-', '+' or
 * 0. */
static size_t whole_tag(const struct lexer *lx, size_t at, const char *word, bool trims, char *sign)
{
    if (!looking_at(lx, at, "{%"))
        return 0;
    at += 2;
    *sign = 0;
    if (at < lx->len && (lx->src[at] == '-' || lx->src[at] == '+'))
        *sign = lx->src[at++];
    at = skip_space(lx, at);
    if (!looking_at(lx, at, word))
        return 0;
    at = skip_space(lx, at + strlen(word));
    if (trims)
        return tag_end(lx, at, "%}", true);
    if (looking_at(lx, at, "-%}"))
        return skip_space(lx, at + 3);
    return looking_at(lx, at, "%}") ? at + 2 : 0;
}

/* The end of the text [begin, end) once the tag after it, with that sign, took its white space. */
static size_t stripped(const struct lexer *lx, size_t begin, size_t end, char sign, bool is_variable)
{
    unsigned cp;
    if (sign == '-') {
        while (end > begin) {
            int n = char_before(lx->src + begin, end - begin, &cp);
            if (!char_is_space(cp))
                break;
            end -= (size_t)n;
        }
        return end;
    }
    if (sign == '+' || is_variable)
        return end;
    size_t line = end;
    while (line > begin && lx->src[line - 1] != '\n')
        line--;
    if (line == begin && !lx->line_starting)
        return end;
    return skip_space(lx, line) >= end ? line : end;
}

/* --- outside of tags ----------------------------------------------------------------------------- */

static struct token text_token(const struct lexer *lx, size_t begin, size_t end)
{
    return (struct token){.type = TOKEN_TEXT, .line = lx->line, .text = lx->src + begin, .len = end - begin};
}

/* The text of a raw block whose opening tag ends at `body`; leaves behind its end tag. */
static struct token raw_block(struct lexer *lx, size_t body)
{
    int line = lx->line;
    advance(lx, body);
    for (size_t at = body; at < lx->len; at++) {
        char sign;
        size_t end = lx->src[at] == '{' ? whole_tag(lx, at, "endraw", true, &sign) : 0;
        if (end) {
            struct token t = text_token(lx, body, stripped(lx, body, at, sign, false));
            advance(lx, end);
            return t;
        }
    }
    lexer_fail(lx, line, "the raw block is never closed: {%% endraw %%} is missing");
}

static void skip_comment(struct lexer *lx, size_t body)
{
    for (size_t at = body; at + 1 < lx->len; at++) {
        if (lx->src[at] != '#' || lx->src[at + 1] != '}')
            continue;
        bool sign = at > body && (lx->src[at - 1] == '-' || lx->src[at - 1] == '+');
        advance(lx, tag_end(lx, sign ? at - 1 : at, "#}", true));
        return;
    }
    lexer_fail(lx, lx->line, "the comment is never closed: #} is missing");
}

static bool opens_tag(const struct lexer *lx, size_t at)
{
    if (lx->src[at] != '{' || at + 1 >= lx->len)
        return false;
    char c = lx->src[at + 1];
    return c == '{' || c == '%' || c == '#';
}

/* Reads text up to the next tag that is not a comment. Returns the text, or if there is none the tag. */
static struct token next_outside(struct lexer *lx)
{
    for (;;) {
        size_t begin = lx->pos, at = begin;
        while (at < lx->len && !opens_tag(lx, at))
            at++;
        if (at >= lx->len) {
            if (begin == lx->len)
                return (struct token){.type = TOKEN_EOF, .line = lx->line};
            struct token t = text_token(lx, begin, lx->len);
            advance(lx, lx->len);
            return t;
        }
        char kind = lx->src[at + 1], sign = 0;
        size_t raw = kind == '%' ? whole_tag(lx, at, "raw", false, &sign) : 0;
        size_t body = at + 2;
        if (!raw) {
            sign = 0;
            if (body < lx->len && (lx->src[body] == '-' || lx->src[body] == '+'))
                sign = lx->src[body++];
        }
        struct token t = text_token(lx, begin, stripped(lx, begin, at, sign, kind == '{'));
        advance(lx, at);
        if (raw) {
            if (t.len) /* come back for the block itself; what came before is gone by then */
                return t;
            t = raw_block(lx, raw);
            if (t.len)
                return t;
            continue;
        }
        if (kind == '#') {
            skip_comment(lx, body);
            if (t.len)
                return t;
            continue;
        }
        advance(lx, body);
        lx->mode = kind == '%' ? LEX_BLOCK : LEX_VARIABLE;
        lx->n_open = 0;
        enum token_type tag = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_VARIABLE_BEGIN;
        if (!t.len)
            return (struct token){.type = tag, .line = lx->line};
        lx->pending = tag;
        return t;
    }
}

/* --- inside of tags ------------------------------------------------------------------------------ */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return 99;
}

/* The end of a run of digits of `base` at `at`, single underscores between them; `at` if there is none.
 * `leading`: an underscore may come first. */
static size_t digits(const struct lexer *lx, size_t at, int base, bool leading)
{
    size_t end = at;
    for (;;) {
        size_t next = end;
        if (next < lx->len && lx->src[next] == '_' && (leading || end > at))
            next++;
        if (next >= lx->len || digit_of(lx->src[next]) >= base)
            return end;
        end = next + 1;
    }
}

static wide_int whole_number(struct lexer *lx, size_t at, size_t end, int base)
{
    wide_int v = 0;
    for (; at < end; at++) {
        if (lx->src[at] == '_')
            continue;
        if (__builtin_mul_overflow(v, (wide_int)base, &v) ||
            __builtin_add_overflow(v, (wide_int)digit_of(lx->src[at]), &v))
            lexer_fail(lx, lx->line, "the number does not fit in 128 bits");
    }
    return v;
}

static double real_number(struct lexer *lx, size_t at, size_t end)
{
    char *copy = lexer_alloc(lx, end - at + 1, 1);
    size_t n = 0;
    for (; at < end; at++)
        if (lx->src[at] != '_')
            copy[n++] = lx->src[at];
    copy[n] = '\0';
    return strtod(copy, NULL);
}

static struct token number(struct lexer *lx)
{
    struct token t = {.type = TOKEN_NUMBER, .line = lx->line};
    size_t begin = lx->pos, end = digits(lx, begin, 10, false);
    bool after_dot = begin > 0 && lx->src[begin - 1] == '.'; /* then x.0.5 is two subscripts */
    if (!after_dot) {
        size_t real = end, frac = end;
        if (frac < lx->len && lx->src[frac] == '.') {
            size_t e = digits(lx, frac + 1, 10, false);
            if (e > frac + 1)
                real = frac = e;
        }
        if (frac < lx->len && (lx->src[frac] | 32) == 'e') {
            size_t exp = frac + 1;
            if (exp < lx->len && (lx->src[exp] == '+' || lx->src[exp] == '-'))
                exp++;
            size_t e = digits(lx, exp, 10, false);
            if (e > exp)
                real = e;
        }
        if (real > end) {
            t.number = val_float(real_number(lx, begin, real));
            advance(lx, real);
            return t;
        }
    }
    int base = 10;
    if (lx->src[begin] == '0') {
        char kind = begin + 1 < lx->len ? (char)(lx->src[begin + 1] | 32) : 0;
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        end = base == 10 ? digits(lx, begin, 1, false) : digits(lx, begin + 2, base, true);
        if (base != 10 && end == begin + 2) { /* "0x" and no digits: the number 0, then a name */
            base = 10;
            end = begin + 1;
        }
    }
    t.number = val_int(whole_number(lx, base == 10 ? begin : begin + 2, end, base));
    advance(lx, end);
    return t;
}

/* Reads n hex digits of an escape; fails if there are fewer before `end`. */
static unsigned hex_escape(struct lexer *lx, size_t at, size_t end, int n)
{
    unsigned v = 0;
    for (int i = 0; i < n; i++, at++) {
        if (at >= end || digit_of(lx->src[at]) > 15)
            lexer_fail(lx, lx->line, "a \\x, \\u or \\U escape needs %d hexadecimal digits", n);
        v = v * 16 + (unsigned)digit_of(lx->src[at]);
    }
    return v;
}

static size_t put_utf8(char *out, unsigned cp)
{
    struct str s = {0};
    str_add_utf8(&s, cp);
    size_t n = s.len;
    memcpy(out, s.data, n);
    str_free(&s);
    return n;
}

/* Resolves the escape after the backslash at `at`; appends to out, returns where it ends. */
static size_t escape(struct lexer *lx, size_t at, size_t end, char *out, size_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = lx->src[at + 1];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        out[(*n)++] = to[simple - from];
        return at + 2;
    }
    if (c == '\n')
        return at + 2;
    if (c >= '0' && c <= '7') {
        unsigned v = 0;
        size_t i = at + 1;
        for (; i < end && i < at + 4 && lx->src[i] >= '0' && lx->src[i] <= '7'; i++)
            v = v * 8 + (unsigned)(lx->src[i] - '0');
        *n += put_utf8(out + *n, v);
        return i;
    }
    int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width) {
        unsigned cp = hex_escape(lx, at + 2, end, width);
        at += 2 + (size_t)width;
        if (cp > 0x10FFFF)
            lexer_fail(lx, lx->line, "\\U%08x is beyond Unicode", cp);
        if (cp >= 0xD800 && cp < 0xDC00 && at + 1 < end && lx->src[at] == '\\' && lx->src[at + 1] == 'u') {
            unsigned low = hex_escape(lx, at + 2, end, 4);
            if (low >= 0xDC00 && low < 0xE000) { /* a pair of surrogates is one character */
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                at += 6;
            }
        }
        *n += put_utf8(out + *n, cp);
        return at;
    }
    if (c == 'N')
        lexer_fail(lx, lx->line, "\\N{…} escapes are not supported: write the character or \\u…");
    out[(*n)++] = '\\'; /* an unknown escape stays as it is */
    return at + 1;
}

static struct token string(struct lexer *lx)
{
    char quote = lx->src[lx->pos];
    size_t begin = lx->pos + 1, end = begin;
    bool escapes = false;
    while (end < lx->len && lx->src[end] != quote) {
        if (lx->src[end] == '\\') {
            escapes = true;
            end++;
        }
        end++;
    }
    if (end >= lx->len)
        lexer_fail(lx, lx->line, "the string that begins here is never closed");
    struct token t = {.type = TOKEN_STRING, .line = lx->line, .text = lx->src + begin, .len = end - begin};
    if (escapes) {
        char *out = lexer_alloc(lx, end - begin + 4, 1); /* no escape is shorter than what it stands for */
        size_t n = 0;
        for (size_t i = begin; i < end;) {
            if (lx->src[i] == '\\')
                i = escape(lx, i, end, out, &n);
            else
                out[n++] = lx->src[i++];
        }
        t.text = out;
        t.len = n;
    }
    advance(lx, end + 1);
    return t;
}

static bool is_name_char(unsigned char c)
{
    return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static void track_brackets(struct lexer *lx, char c)
{
    if (strchr("([{", c)) {
        if (lx->n_open == (int)sizeof lx->open)
            lexer_fail(lx, lx->line, "more than %zu brackets inside each other", sizeof lx->open);
        lx->open[lx->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!lx->n_open)
            lexer_fail(lx, lx->line, "unexpected '%c'", c);
        if (lx->open[--lx->n_open] != c)
            lexer_fail(lx, lx->line, "unexpected '%c', expected '%c'", c, lx->open[lx->n_open]);
    }
}

static struct token next_inside(struct lexer *lx)
{
    advance(lx, skip_space(lx, lx->pos));
    struct token t = {.type = TOKEN_EOF, .line = lx->line};
    if (lx->pos >= lx->len)
        return t;
    if (!lx->n_open) {
        bool block = lx->mode == LEX_BLOCK;
        size_t end = tag_end(lx, lx->pos, block ? "%}" : "}}", block);
        if (end) {
            advance(lx, end);
            lx->mode = LEX_TEXT;
            t.type = block ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END;
            return t;
        }
    }
    char c = lx->src[lx->pos];
    if (c >= '0' && c <= '9')
        return number(lx);
    if (c == '\'' || c == '"')
        return string(lx);
    t.text = lx->src + lx->pos;
    if (is_name_char((unsigned char)c)) {
        t.type = TOKEN_NAME;
        while (lx->pos + t.len < lx->len && is_name_char((unsigned char)t.text[t.len]))
            t.len++;
        advance(lx, lx->pos + t.len);
        return t;
    }
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    t.type = TOKEN_OPERATOR;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && !t.len; i++)
        if (looking_at(lx, lx->pos, pairs[i]))
            t.len = 2;
    if (!t.len) {
        if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
            if (c > 0x20 && c < 0x7F)
                lexer_fail(lx, lx->line, "unexpected character '%c'", c);
            lexer_fail(lx, lx->line, "unexpected byte 0x%02x", (unsigned char)c);
        }
        track_brackets(lx, c);
        t.len = 1;
    }
    advance(lx, lx->pos + t.len);
    return t;
}

struct token lexer_next(struct lexer *lx)
{
    if (lx->pending != TOKEN_EOF) {
        struct token t = {.type = lx->pending, .line = lx->line};
        lx->pending = TOKEN_EOF;
        return t;
    }
    return lx->mode == LEX_TEXT ? next_outside(lx) : next_inside(lx);
}
