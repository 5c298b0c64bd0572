/* Grammars as text: llama.cpp's GBNF, and the EBNF that people write for other servers, which is nearly the
 * same.
 *
 *     root  ::= "yes" | "no" reason?        # a comment
 *     reason ::= [a-zA-Z ]{1,40} ("!" | ".")
 *
 * A rule goes on until the next `name ::=`, however it is broken into lines. Recursion of any kind is
 * allowed. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum { MAX_TEXT = 1 << 20, MAX_GROUPS = 200, MAX_TIMES = 100000 };

struct ebnf {
    struct grammar_builder *b;
    const char *begin, *p, *end;
    const char *counted; /* lines are counted up to here, not from the beginning for each rule */
    int lines;           /* before it */
    int nest;
    /* rules by name: open addressing */
    struct named {
        const char *name; /* in the text */
        size_t len;
        grammar_node rule;
        bool defined;
        int line; /* of its first use */
    } * names;
    int n_names, n_slots;
};

static int line_of(struct ebnf *x, const char *at)
{
    if (at < x->counted) {
        x->counted = x->begin;
        x->lines = 0;
    }
    for (; x->counted < at; x->counted++)
        x->lines += *x->counted == '\n';
    return x->lines + 1;
}

#define fail(x, ...) ebnf_fail(x, (x)->p, __VA_ARGS__)
static grammar_node ebnf_fail(struct ebnf *x, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static grammar_node ebnf_fail(struct ebnf *x, const char *at, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    builder_fail(x->b, ERR_INVALID, "grammar, line %d: %s", line_of(x, at), what);
    x->p = x->end;
    return -1;
}

static void skip_space(struct ebnf *x)
{
    for (; x->p < x->end; x->p++) {
        if (*x->p == '#')
            while (x->p < x->end && *x->p != '\n')
                x->p++;
        if (x->p == x->end || !strchr(" \t\r\n", *x->p) || *x->p == '\0')
            return;
    }
}

static bool take(struct ebnf *x, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(x->end - x->p) < n || memcmp(x->p, text, n) != 0)
        return false;
    x->p += n;
    return true;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

static size_t name_length(const struct ebnf *x)
{
    size_t n = 0;
    /* A dot begins no name, or [a-z].b would be hard to tell. */
    while (x->p + n < x->end && name_char(x->p[n]) && !(n == 0 && x->p[n] == '.'))
        n++;
    return n;
}

/* Is the name at p followed by "::="? */
static bool at_rule(const struct ebnf *x)
{
    struct ebnf probe = *x;
    size_t n = name_length(x);
    if (n == 0)
        return false;
    probe.p += n;
    skip_space(&probe);
    return take(&probe, "::=");
}

static struct named *slot(struct ebnf *x, const char *name, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * 16777619u;
    uint32_t mask = (uint32_t)x->n_slots - 1;
    for (uint32_t at = h & mask;; at = (at + 1) & mask)
        if (!x->names[at].name || (x->names[at].len == len && memcmp(x->names[at].name, name, len) == 0))
            return &x->names[at];
}

static struct named *rule_named(struct ebnf *x, const char *name, size_t len)
{
    if (2 * (x->n_names + 1) > x->n_slots) {
        struct named *old = x->names;
        int n = x->n_slots;
        x->n_slots = n ? 2 * n : 64;
        x->names = mem_zalloc((size_t)x->n_slots, sizeof *x->names);
        for (int i = 0; i < n; i++)
            if (old[i].name)
                *slot(x, old[i].name, old[i].len) = old[i];
        free(old);
    }
    struct named *s = slot(x, name, len);
    if (!s->name) {
        char *copy = mem_strndup(name, len < 100 ? len : 100);
        *s = (struct named){name, len, grammar_rule(x->b, copy), false, line_of(x, name)};
        free(copy);
        x->n_names++;
    }
    return s;
}

/* --- characters ---------------------------------------------------------------------------------- */

static int64_t hex(struct ebnf *x, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++, x->p++) {
        char c = x->p < x->end ? *x->p : 'x';
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return fail(x, "%d hexadecimal digits are expected", n);
        v = 16 * v + d;
    }
    return v <= 0x10FFFF && !(v >= 0xD800 && v <= 0xDFFF) ? v
                                                          : fail(x, "U+%X is not a character", (unsigned)v);
}

/* One character of a literal or a class, which may be escaped; -1 and an error. */
static int64_t character(struct ebnf *x)
{
    if (*x->p != '\\') {
        unsigned c;
        int n = utf8_decode(x->p, (size_t)(x->end - x->p), &c);
        if (n == 0)
            return fail(x, "not valid UTF-8");
        x->p += n;
        return c;
    }
    x->p++;
    if (x->p == x->end)
        return fail(x, "a lone backslash at the end");
    char c = *x->p++;
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'f':
        return '\f';
    case 'v':
        return '\v';
    case 'b':
        return '\b';
    case '0':
        return 0;
    case 'x':
        return hex(x, 2);
    case 'u':
        return hex(x, 4);
    case 'U':
        return hex(x, 8);
    default:
        break;
    }
    if ((c | 32) >= 'a' && (c | 32) <= 'z') {
        x->p -= 2;
        return fail(x, "the escape \\%c is not known", c);
    }
    if ((unsigned char)c >= 0x80 || (unsigned char)c < 0x20) {
        x->p--;
        return fail(x, "a backslash before a character that needs none");
    }
    return (unsigned char)c;
}

static grammar_node literal(struct ebnf *x, char quote)
{
    const char *open = x->p - 1;
    struct str text = {0};
    while (x->p < x->end && *x->p != quote && *x->p != '\n') {
        int64_t c = character(x);
        if (c < 0)
            break;
        str_add_utf8(&text, (unsigned)c);
    }
    char close[2] = {quote, '\0'};
    grammar_node n = -1;
    if (take(x, close))
        n = grammar_literal(x->b, str_text(&text), text.len);
    else
        ebnf_fail(x, open, "a text in quotes is not closed on its line");
    str_free(&text);
    return n;
}

static grammar_node char_class(struct ebnf *x)
{
    const char *open = x->p - 1;
    struct charset s = {0};
    bool negate = take(x, "^");
    while (x->p < x->end && *x->p != ']') {
        int64_t lo = character(x), hi = lo;
        if (lo < 0)
            break;
        if (x->p + 1 < x->end && *x->p == '-' && x->p[1] != ']') {
            x->p++;
            hi = character(x);
            if (hi < 0)
                break;
            if (hi < lo) {
                fail(x, "a range of characters that ends before it begins");
                break;
            }
        }
        charset_add(&s, (uint32_t)lo, (uint32_t)hi);
    }
    grammar_node n = -1;
    if (take(x, "]")) {
        if (negate)
            charset_negate(&s);
        charset_normalise(&s);
        n = grammar_class(x->b, s.r, s.n);
    } else if (!builder_failed(x->b)) {
        ebnf_fail(x, open, "this [ is never closed");
    }
    charset_free(&s);
    return n;
}

/* --- structure ----------------------------------------------------------------------------------- */

static grammar_node alternatives(struct ebnf *x);

static grammar_node atom(struct ebnf *x)
{
    const char *at = x->p;
    if (take(x, "\""))
        return literal(x, '"');
    if (take(x, "'"))
        return literal(x, '\'');
    if (take(x, "["))
        return char_class(x);
    if (take(x, ".")) {
        struct charset any = {0};
        charset_negate(&any);
        grammar_node n = grammar_class(x->b, any.r, any.n);
        charset_free(&any);
        return n;
    }
    if (take(x, "(")) {
        if (++x->nest > MAX_GROUPS)
            return ebnf_fail(x, at, "groups are nested deeper than %d", MAX_GROUPS);
        grammar_node n = alternatives(x);
        x->nest--;
        skip_space(x);
        if (!take(x, ")") && !builder_failed(x->b))
            return ebnf_fail(x, at, "this ( is never closed");
        return n;
    }
    size_t n = name_length(x);
    if (n > 0) {
        const char *name = x->p;
        x->p += n;
        return rule_named(x, name, n)->rule;
    }
    if (*x->p == '<' || *x->p == '!')
        return fail(x, "tokens (<[id]>) are not supported: write their text");
    if (*x->p == '/')
        return fail(x, "regular expressions (/…/) are not supported here: this is EBNF, not Lark");
    return fail(x, "\"%c\" is not expected here", *x->p);
}

/* A number of at most MAX_TIMES; -1 if there is none. */
static int number(struct ebnf *x)
{
    int v = -1;
    skip_space(x);
    for (; x->p < x->end && *x->p >= '0' && *x->p <= '9'; x->p++) {
        v = (v < 0 ? 0 : v) * 10 + (*x->p - '0');
        if (v > MAX_TIMES) {
            fail(x, "a repetition may be bounded by at most %d times", MAX_TIMES);
            return -1;
        }
    }
    skip_space(x);
    return v;
}

/* After "{". */
static grammar_node times(struct ebnf *x, grammar_node n)
{
    const char *at = x->p - 1;
    int min = number(x), max = min;
    if (take(x, ",")) {
        max = number(x);
        min = min < 0 ? 0 : min;
    } else if (min < 0) {
        return builder_failed(x->b) ? -1 : ebnf_fail(x, at, "{ wants a number of times");
    }
    if (!take(x, "}") && !builder_failed(x->b))
        return ebnf_fail(x, at, "this { is never closed, or holds more than {min,max}");
    if (max >= 0 && max < min)
        return ebnf_fail(x, at, "a repetition of %d to %d times", min, max);
    return grammar_repeat(x->b, n, min, max);
}

static grammar_node alternatives(struct ebnf *x)
{
    grammar_node *list[2] = {NULL, NULL}; /* the parts of one way, and the ways */
    int n[2] = {0, 0}, cap[2] = {0, 0};
    for (;;) {
        skip_space(x);
        bool over = x->p == x->end || builder_failed(x->b) || *x->p == ')' || *x->p == '|' || at_rule(x);
        if (over) {
            GROW(list[1], n[1], cap[1], 1);
            list[1][n[1]++] = grammar_seq(x->b, list[0], n[0]);
            n[0] = 0;
            if (builder_failed(x->b) || !take(x, "|"))
                break;
            continue;
        }
        grammar_node part = atom(x);
        for (skip_space(x); x->p < x->end && !builder_failed(x->b); skip_space(x)) {
            if (take(x, "*"))
                part = grammar_repeat(x->b, part, 0, -1);
            else if (take(x, "+"))
                part = grammar_repeat(x->b, part, 1, -1);
            else if (take(x, "?"))
                part = grammar_repeat(x->b, part, 0, 1);
            else if (take(x, "{"))
                part = times(x, part);
            else
                break;
        }
        GROW(list[0], n[0], cap[0], 1);
        list[0][n[0]++] = part;
    }
    grammar_node out = builder_failed(x->b) ? -1 : grammar_alt(x->b, list[1], n[1]);
    free(list[0]);
    free(list[1]);
    return out;
}

grammar_node grammar_ebnf(struct grammar_builder *b, const char *text, size_t len)
{
    if (builder_failed(b))
        return -1;
    if (len > MAX_TEXT)
        return builder_fail(b, ERR_INVALID, "grammar: longer than %d bytes", MAX_TEXT);
    struct ebnf x = {.b = b, .begin = text, .p = text, .end = text + len, .counted = text};
    grammar_node root = -1;
    for (skip_space(&x); x.p < x.end && !builder_failed(b); skip_space(&x)) {
        const char *name = x.p;
        size_t n = name_length(&x);
        if (!at_rule(&x)) {
            fail(&x, "a rule is expected here: name ::= … (Lark grammars are not supported)");
            break;
        }
        x.p += n;
        skip_space(&x);
        take(&x, "::=");
        struct named *rule = rule_named(&x, name, n);
        if (rule->defined) {
            ebnf_fail(&x, name, "the rule \"%.*s\" is defined twice", (int)(n < 100 ? n : 100), name);
            break;
        }
        rule->defined = true;
        grammar_node node = rule->rule;
        grammar_define(b, node, alternatives(&x));
        if (n == 4 && memcmp(name, "root", 4) == 0)
            root = node;
        if (x.p < x.end && *x.p == ')')
            fail(&x, "\")\" closes nothing");
    }
    for (int i = 0; i < x.n_slots && !builder_failed(b); i++)
        if (x.names[i].name && !x.names[i].defined)
            builder_fail(b, ERR_INVALID, "grammar, line %d: the rule \"%.*s\" is used but not defined",
                         x.names[i].line, (int)(x.names[i].len < 100 ? x.names[i].len : 100),
                         x.names[i].name);
    if (root < 0)
        builder_fail(b, ERR_INVALID, "grammar: there is no rule named \"root\"");
    free(x.names);
    return builder_failed(b) ? -1 : root;
}
