/* Regular expressions: the part of the usual syntax (ECMAScript's, Python's) that describes a regular
 * language. What does not (look-around, back-references) is refused by name, and so is what no two engines
 * agree on.
 *
 *   . [a-z] [^…] \d \w \s \D \W \S \p{L} \n \t \xHH \uHHHH \u{H…} (…) (?:…) (?<name>…) (?i) | * + ? {m,n} ^ $
 *
 * \d, \w, \s are ASCII's; `.` is any character but a line's end; lazy quantifiers are as good as greedy ones,
 * because only the set of texts counts. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum { MAX_GROUPS = 200, MAX_TIMES = 100000, MAX_PATTERN = 64 << 10 };

struct regex {
    struct grammar_builder *b;
    const char *begin, *p, *end;
    int nest;
    bool fold_case, dot_all;
};

/* A growable list of nodes. */
struct node_list {
    grammar_node *n;
    int len, cap;
};

static void push(struct node_list *l, grammar_node n)
{
    GROW(l->n, l->len, l->cap, 1);
    l->n[l->len++] = n;
}

#define fail(r, code, ...) regex_fail(r, (r)->p, code, __VA_ARGS__)
static grammar_node regex_fail(struct regex *r, const char *at, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static grammar_node regex_fail(struct regex *r, const char *at, enum err_code code, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    builder_fail(r->b, code, "regular expression, byte %d: %s", (int)(at - r->begin), what);
    r->p = r->end;
    return -1;
}

static bool more(const struct regex *r)
{
    return r->p < r->end && !builder_failed(r->b);
}

static bool take(struct regex *r, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, text, n) != 0)
        return false;
    r->p += n;
    return true;
}

/* --- characters ---------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* n hexadecimal digits; -1 and an error if they are not there. */
static int64_t hex(struct regex *r, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        int d = r->p < r->end ? hex_digit(*r->p) : -1;
        if (d < 0)
            return fail(r, ERR_INVALID, "%d hexadecimal digits are expected here", n);
        v = 16 * v + d;
        r->p++;
    }
    return v;
}

/* After "\u": HHHH, a surrogate pair HHHH\uHHHH, or {H…}. */
static int64_t unicode_escape(struct regex *r)
{
    if (take(r, "{")) {
        int64_t v = 0;
        for (int n = 0; r->p < r->end && hex_digit(*r->p) >= 0 && n < 8; n++)
            v = 16 * v + hex_digit(*r->p++);
        if (!take(r, "}") || v > 0x10FFFF)
            return fail(r, ERR_INVALID, "\\u{…} wants a code point up to 10FFFF");
        return v;
    }
    int64_t v = hex(r, 4);
    if (v >= 0xD800 && v <= 0xDBFF && take(r, "\\u")) {
        int64_t low = hex(r, 4);
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(r, ERR_INVALID, "half of a surrogate pair");
        return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    }
    if (v >= 0xD800 && v <= 0xDFFF)
        return fail(r, ERR_INVALID, "half of a surrogate pair");
    return v;
}

/* \d \w \s and their negations, after the backslash; false if c is none of them. */
static bool add_shorthand(struct charset *out, char c)
{
    static const struct char_range digit[] = {{'0', '9'}};
    static const struct char_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct char_range space[] = {{'\t', '\r'}, {' ', ' '}};
    const struct char_range *r;
    int n;
    switch (c | 0x20) {
    case 'd':
        r = digit, n = 1;
        break;
    case 'w':
        r = word, n = 4;
        break;
    case 's':
        r = space, n = 2;
        break;
    default:
        return false;
    }
    struct charset s = {0};
    charset_add_ranges(&s, r, n);
    if (c < 'a')
        charset_negate(&s);
    charset_add_ranges(out, s.r, s.n);
    charset_free(&s);
    return true;
}

/* \p{…} or \P{…}, after the letter. */
static void add_property(struct regex *r, struct charset *out, bool negate)
{
    const char *at = r->p;
    char name[40];
    size_t n = 0;
    if (take(r, "{")) {
        while (r->p < r->end && *r->p != '}' && n < sizeof name - 1)
            name[n++] = *r->p++;
        if (!take(r, "}")) {
            fail(r, ERR_INVALID, "\\p{ has no closing brace");
            return;
        }
    } else if (r->p < r->end) {
        name[n++] = *r->p++;
    }
    name[n] = '\0';
    static const char *const long_names[][2] = {
        {"Letter", "L"},   {"Lowercase_Letter", "Ll"}, {"Uppercase_Letter", "Lu"}, {"Mark", "M"},
        {"Number", "N"},   {"Decimal_Number", "Nd"},   {"Punctuation", "P"},       {"Symbol", "S"},
        {"Separator", "Z"}};
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++)
        if (strcmp(name, long_names[i][0]) == 0)
            n = strlen(strcpy(name, long_names[i][1]));
    struct charset s = {0};
    if (!charset_add_category(&s, name, n)) {
        r->p = at;
        fail(r, ERR_UNSUPPORTED,
             "the Unicode property \"%s\" is not supported; general categories (L, Lu, Nd, …) are", name);
    }
    if (negate)
        charset_negate(&s);
    charset_add_ranges(out, s.r, s.n);
    charset_free(&s);
}

/* An escape that stands for one character, after the backslash; `in_class`: between brackets. */
static int64_t single_escape(struct regex *r, bool in_class)
{
    char c = *r->p++;
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
    case 'a':
        return '\a';
    case 'e':
        return 0x1B;
    case 'x':
        return hex(r, 2);
    case 'u':
        return unicode_escape(r);
    case 'U':
        return hex(r, 8);
    case 'c':
        if (r->p < r->end && ((*r->p | 0x20) >= 'a' && (*r->p | 0x20) <= 'z'))
            return *r->p++ & 31;
        r->p -= 2;
        return fail(r, ERR_INVALID, "\\c wants a letter");
    case '0':
        if (r->p < r->end && *r->p >= '0' && *r->p <= '9') {
            r->p -= 2;
            return fail(r, ERR_UNSUPPORTED, "octal escapes are not supported: write \\xHH");
        }
        return 0;
    case 'b':
        if (in_class)
            return '\b';
        r->p -= 2;
        return fail(r, ERR_UNSUPPORTED, "the word boundary \\b is not supported");
    case 'B':
        r->p -= 2;
        return fail(r, ERR_UNSUPPORTED, "the word boundary \\B is not supported");
    case 'k':
        r->p -= 2;
        return fail(r, ERR_UNSUPPORTED, "back-references (\\k) are not supported");
    default:
        break;
    }
    if (c >= '1' && c <= '9') {
        r->p -= 2;
        return fail(r, ERR_UNSUPPORTED, "back-references (\\%c) are not supported", c);
    }
    if (((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) {
        r->p -= 2;
        return fail(r, ERR_UNSUPPORTED, "the escape \\%c is not known", c);
    }
    r->p--; /* punctuation, or some other character, stands for itself */
    unsigned ch;
    int n = utf8_decode(r->p, (size_t)(r->end - r->p), &ch);
    if (n == 0)
        return fail(r, ERR_INVALID, "not valid UTF-8");
    r->p += n;
    return ch;
}

static int64_t plain_char(struct regex *r)
{
    unsigned ch;
    int n = utf8_decode(r->p, (size_t)(r->end - r->p), &ch);
    if (n == 0)
        return fail(r, ERR_INVALID, "not valid UTF-8");
    r->p += n;
    return ch;
}

static grammar_node class_node(struct regex *r, struct charset *s)
{
    if (r->fold_case)
        charset_fold_case(s);
    charset_normalise(s);
    grammar_node n = grammar_class(r->b, s->r, s->n);
    charset_free(s);
    return n;
}

static grammar_node one_char(struct regex *r, int64_t c)
{
    struct charset s = {0};
    if (c < 0)
        return -1;
    charset_add(&s, (uint32_t)c, (uint32_t)c);
    return class_node(r, &s);
}

/* One member of a class: a character, or a set such as \d (added to *out; then -2). */
static int64_t class_member(struct regex *r, struct charset *out)
{
    if (*r->p == '[' && r->p + 1 < r->end && r->p[1] == ':')
        return fail(r, ERR_UNSUPPORTED, "POSIX classes ([:alpha:]) are not supported: write a-zA-Z");
    if (*r->p != '\\')
        return plain_char(r);
    r->p++;
    if (r->p == r->end)
        return fail(r, ERR_INVALID, "a lone backslash at the end");
    if (add_shorthand(out, *r->p)) {
        r->p++;
        return -2;
    }
    if (*r->p == 'p' || *r->p == 'P') {
        bool negate = *r->p++ == 'P';
        add_property(r, out, negate);
        return builder_failed(r->b) ? -1 : -2;
    }
    return single_escape(r, true);
}

/* After "[". */
static grammar_node bracket_class(struct regex *r)
{
    const char *open = r->p - 1;
    struct charset s = {0};
    bool negate = take(r, "^");
    for (bool first = true; more(r) && (*r->p != ']' || first); first = false) {
        if (*r->p == ']') {
            /* Python's "[]a]" holds a bracket; ECMAScript's "[]" is empty. Neither is meant, likely. */
            fail(r, ERR_INVALID, "an empty character class; write \\] for a bracket in it");
            break;
        }
        int64_t lo = class_member(r, &s);
        if (lo == -1)
            break;
        if (r->p + 1 < r->end && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            int64_t hi = class_member(r, &s);
            if (hi == -1)
                break;
            if (lo == -2 || hi == -2) { /* "\w-x": the dash is a character */
                charset_add(&s, '-', '-');
                if (lo >= 0)
                    charset_add(&s, (uint32_t)lo, (uint32_t)lo);
                if (hi >= 0)
                    charset_add(&s, (uint32_t)hi, (uint32_t)hi);
                continue;
            }
            if (hi < lo) {
                fail(r, ERR_INVALID, "a range of characters that ends before it begins");
                break;
            }
            charset_add(&s, (uint32_t)lo, (uint32_t)hi);
        } else if (lo >= 0) {
            charset_add(&s, (uint32_t)lo, (uint32_t)lo);
        }
    }
    if (!take(r, "]") && !builder_failed(r->b))
        regex_fail(r, open, ERR_INVALID, "this [ is never closed");
    if (builder_failed(r->b)) {
        charset_free(&s);
        return -1;
    }
    if (r->fold_case)
        charset_fold_case(&s); /* before it is negated */
    if (negate)
        charset_negate(&s);
    charset_normalise(&s);
    grammar_node n = grammar_class(r->b, s.r, s.n);
    charset_free(&s);
    return n;
}

static grammar_node any_char(struct regex *r)
{
    struct charset s = {0};
    if (!r->dot_all) {
        charset_add(&s, '\n', '\n');
        charset_add(&s, '\r', '\r');
        charset_add(&s, 0x2028, 0x2029);
    }
    charset_negate(&s);
    grammar_node n = grammar_class(r->b, s.r, s.n);
    charset_free(&s);
    return n;
}

/* --- structure ----------------------------------------------------------------------------------- */

static grammar_node alternation(struct regex *r);

static grammar_node anchor(struct regex *r, enum node_kind kind)
{
    /* Made by hand: no other front end knows anchors. */
    grammar_node n = grammar_text(r->b, "");
    if (n >= 0) {
        r->b->nodes[n].kind = kind;
        r->b->nodes[n].has_begin = kind == NODE_BEGIN;
        r->b->nodes[n].has_end = kind == NODE_END;
    }
    return n;
}

/* Flags after "(?": letters up to ":" or ")". False, with an error, if one is not known. */
static bool flags(struct regex *r)
{
    for (; more(r) && *r->p != ')' && *r->p != ':'; r->p++) {
        switch (*r->p) {
        case 'i':
            r->fold_case = true;
            break;
        case 's':
            r->dot_all = true;
            break;
        case 'u':
        case 'a':
            break; /* what we do anyway */
        default:
            fail(r, ERR_UNSUPPORTED, "the inline flag \"%c\" is not supported", *r->p);
            return false;
        }
    }
    return more(r);
}

/* After "(". */
static grammar_node group(struct regex *r)
{
    const char *open = r->p - 1;
    bool fold_case = r->fold_case, dot_all = r->dot_all;
    if (take(r, "?")) {
        if (take(r, "=") || take(r, "!"))
            return regex_fail(r, open, ERR_UNSUPPORTED, "look-ahead, (?= or (?!, is not supported");
        if (take(r, "<=") || take(r, "<!"))
            return regex_fail(r, open, ERR_UNSUPPORTED, "look-behind, (?<= or (?<!, is not supported");
        if (take(r, ">"))
            return regex_fail(r, open, ERR_UNSUPPORTED, "atomic groups, (?>, are not supported");
        if (take(r, "("))
            return regex_fail(r, open, ERR_UNSUPPORTED, "conditionals, (?(, are not supported");
        if (take(r, "P=") || take(r, "P>") || take(r, "R") || take(r, "&"))
            return regex_fail(r, open, ERR_UNSUPPORTED,
                              "back-references and recursion by name are not supported");
        if (take(r, "#")) {
            while (more(r) && *r->p != ')')
                r->p++;
            if (!take(r, ")"))
                return regex_fail(r, open, ERR_INVALID, "this comment is never closed");
            return grammar_text(r->b, "");
        }
        if (take(r, "P<") || take(r, "<") || take(r, "'")) {
            while (more(r) && *r->p != '>' && *r->p != '\'' && *r->p != ')')
                r->p++;
            if (!take(r, ">") && !take(r, "'"))
                return regex_fail(r, open, ERR_INVALID, "the name of this group is never closed");
        } else {
            if (!flags(r))
                return builder_failed(r->b) ? -1
                                            : regex_fail(r, open, ERR_INVALID, "this group is never closed");
            if (take(r, ")"))
                return grammar_text(r->b, ""); /* for the rest of the group around it */
            r->p++;                            /* ":" */
        }
    }
    if (++r->nest > MAX_GROUPS)
        return regex_fail(r, open, ERR_INVALID, "groups are nested deeper than %d", MAX_GROUPS);
    grammar_node n = alternation(r);
    r->nest--;
    if (!take(r, ")") && !builder_failed(r->b))
        return regex_fail(r, open, ERR_INVALID, "this ( is never closed");
    r->fold_case = fold_case;
    r->dot_all = dot_all;
    return n;
}

static grammar_node atom(struct regex *r)
{
    char c = *r->p;
    switch (c) {
    case '(':
        r->p++;
        return group(r);
    case '[':
        r->p++;
        return bracket_class(r);
    case '.':
        r->p++;
        return any_char(r);
    case '^':
        r->p++;
        return anchor(r, NODE_BEGIN);
    case '$':
        r->p++;
        return anchor(r, NODE_END);
    case '*':
    case '+':
    case '?':
        return fail(r, ERR_INVALID, "\"%c\" has nothing to repeat", c);
    case '\\':
        break;
    default:
        return one_char(r, plain_char(r));
    }
    r->p++;
    if (r->p == r->end)
        return fail(r, ERR_INVALID, "a lone backslash at the end");
    struct charset s = {0};
    if (add_shorthand(&s, *r->p)) {
        r->p++;
        return class_node(r, &s);
    }
    if (*r->p == 'p' || *r->p == 'P') {
        bool negate = *r->p++ == 'P';
        add_property(r, &s, negate);
        return class_node(r, &s);
    }
    if (take(r, "A"))
        return anchor(r, NODE_BEGIN);
    if (take(r, "z") || take(r, "Z"))
        return anchor(r, NODE_END);
    return one_char(r, single_escape(r, false));
}

/* A number of times in braces; false, with nothing taken, if there is none. */
static bool times(struct regex *r, int *min, int *max)
{
    const char *at = r->p;
    int64_t v[2] = {-1, -1};
    int k = 0;
    if (!take(r, "{"))
        return false;
    for (; r->p < r->end && *r->p != '}'; r->p++) {
        if (*r->p == ',' && k == 0) {
            k = 1;
        } else if (*r->p >= '0' && *r->p <= '9') {
            v[k] = (v[k] < 0 ? 0 : v[k]) * 10 + (*r->p - '0');
            v[k] = v[k] > MAX_TIMES + 1 ? MAX_TIMES + 1 : v[k];
        } else {
            break;
        }
    }
    if (!take(r, "}") || (v[0] < 0 && v[1] < 0)) {
        r->p = at;
        return false;
    }
    *min = v[0] < 0 ? 0 : (int)v[0];
    *max = k == 0 ? *min : (int)v[1];
    if (*min > MAX_TIMES || *max > MAX_TIMES) {
        r->p = at;
        fail(r, ERR_INVALID, "a repetition may be bounded by at most %d times", MAX_TIMES);
    } else if (*max >= 0 && *max < *min) {
        r->p = at;
        fail(r, ERR_INVALID, "a repetition of %d to %d times", *min, *max);
    }
    return true;
}

static bool is_quantifier(const struct regex *r)
{
    if (r->p == r->end)
        return false;
    struct regex probe = *r;
    int min, max;
    return strchr("*+?", *r->p) ? *r->p != '\0' : *r->p == '{' && times(&probe, &min, &max);
}

static grammar_node piece(struct regex *r)
{
    const char *at = r->p;
    grammar_node n = atom(r);
    int min = 0, max = -1;
    if (!more(r))
        return n;
    const char *quantifier = r->p;
    if (take(r, "+"))
        min = 1;
    else if (take(r, "?"))
        max = 1;
    else if (!take(r, "*") && !times(r, &min, &max))
        return n;
    if (builder_failed(r->b))
        return -1;
    if (r->b->nodes[n].kind == NODE_BEGIN || r->b->nodes[n].kind == NODE_END)
        return regex_fail(r, at, ERR_INVALID, "an anchor cannot be repeated");
    if (take(r, "+"))
        return regex_fail(r, quantifier, ERR_UNSUPPORTED, "possessive quantifiers are not supported");
    take(r, "?"); /* lazy: the same texts */
    if (is_quantifier(r))
        return fail(r, ERR_INVALID, "a quantifier follows another: there is nothing to repeat");
    return grammar_repeat(r->b, n, min, max);
}

static grammar_node alternation(struct regex *r)
{
    struct node_list ways = {0}, seq = {0};
    while (!builder_failed(r->b)) {
        if (r->p < r->end && *r->p != '|' && *r->p != ')') {
            push(&seq, piece(r));
            continue;
        }
        push(&ways, grammar_seq(r->b, seq.n, seq.len));
        seq.len = 0;
        if (!take(r, "|"))
            break;
    }
    grammar_node n = builder_failed(r->b) ? -1 : grammar_alt(r->b, ways.n, ways.len);
    free(ways.n);
    free(seq.n);
    return n;
}

/* --- anchors ------------------------------------------------------------------------------------- */

/* Takes the anchors of one side (^ or $) out of a tree that stands at that side of the whole expression:
 * where one stands, nothing may come before (or after); where none does, `free` may (any text when searching,
 * else nothing). An anchor further inside can never hold and is refused. */
static grammar_node anchor_side(struct regex *r, grammar_node node, bool begin, grammar_node free_text)
{
    struct grammar_builder *b = r->b;
    if (builder_failed(b))
        return -1;
    struct node n = b->nodes[node];
    bool has = begin ? n.has_begin : n.has_end;
    if (!has)
        return begin ? grammar_seq2(b, free_text, node) : grammar_seq2(b, node, free_text);
    enum node_kind mark = begin ? NODE_BEGIN : NODE_END;
    if (n.kind == mark)
        return grammar_text(b, "");
    if (n.kind == NODE_SEQ || n.kind == NODE_ALT) {
        struct node_list list = {0};
        for (int i = 0; i < n.n; i++)
            push(&list, b->kids[n.first + i]);
        grammar_node out = -1;
        if (n.kind == NODE_ALT) {
            for (int i = 0; i < n.n; i++)
                list.n[i] = anchor_side(r, list.n[i], begin, free_text);
            out = grammar_alt(b, list.n, list.len);
        } else {
            int step = begin ? 1 : -1, edge = begin ? 0 : n.n - 1;
            const struct node *kid = &b->nodes[list.n[edge]];
            while (kid->kind == NODE_LITERAL && kid->n == 0) /* a flag, a comment */
                kid = &b->nodes[list.n[edge += step]];
            list.n[edge] = anchor_side(r, list.n[edge], begin, free_text);
            /* "^(^a|b)": after an anchor more may follow. */
            bool inside = false, at_edge = b->nodes[b->kids[n.first + edge]].kind == mark;
            for (int k = edge + step; k >= 0 && k < n.n; k += step) {
                grammar_node part = b->kids[n.first + k];
                bool marked = begin ? b->nodes[part].has_begin : b->nodes[part].has_end;
                inside |= marked && !at_edge;
                if (marked && at_edge)
                    list.n[k] = anchor_side(r, part, begin, grammar_text(b, ""));
                at_edge &= b->nodes[part].kind == mark;
            }
            if (inside)
                builder_fail(b, ERR_UNSUPPORTED,
                             "regular expression: the anchor %s is only supported at the %s",
                             begin ? "^" : "$", begin ? "beginning" : "end");
            out = grammar_seq(b, list.n, list.len);
        }
        free(list.n);
        return out;
    }
    return builder_fail(b, ERR_UNSUPPORTED,
                        "regular expression: the anchor %s inside a repetition is not supported",
                        begin ? "^" : "$");
}

grammar_node grammar_regex_node(struct grammar_builder *b, const char *pattern, size_t len, bool search)
{
    if (builder_failed(b))
        return -1;
    if (len > MAX_PATTERN)
        return builder_fail(b, ERR_INVALID, "regular expression: longer than %d bytes", MAX_PATTERN);
    struct regex r = {.b = b, .begin = pattern, .p = pattern, .end = pattern + len};
    grammar_node n = alternation(&r);
    if (!builder_failed(b) && r.p < r.end)
        return fail(&r, ERR_INVALID, "\"%c\" closes nothing", *r.p);
    grammar_node around = grammar_text(b, "");
    if (search) {
        struct charset any = {0};
        charset_negate(&any);
        around = grammar_repeat(b, grammar_class(b, any.r, any.n), 0, -1);
        charset_free(&any);
    }
    n = anchor_side(&r, n, true, around);
    return anchor_side(&r, n, false, around);
}

grammar_node grammar_regex(struct grammar_builder *b, const char *pattern, size_t len)
{
    return grammar_regex_node(b, pattern, len, false);
}
