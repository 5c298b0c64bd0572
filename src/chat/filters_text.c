/* Filters on texts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/eval.h"
#include "chat/filters.h"
#include "chat/jstr.h"
#include "chat/print.h"
#include "chat/str_methods.h"

FILTER(filter_trim)
{
    const struct jstr *s = val_to_str(vm, self);
    const struct jstr *chars =
        a[0].type == VAL_NONE || a[0].type == VAL_MISSING ? NULL : arg_str(vm, a[0], "chars", NULL);
    return val_str(jstr_strip(vm, s, chars, JSTR_BOTH));
}

FILTER(filter_replace)
{
    wide_int count = a[2].type == VAL_NONE ? -1 : arg_int(vm, a[2], "count", -1);
    const struct jstr *s = jstr_mark(vm, val_to_str(vm, self), false);
    return val_str(str_replace(vm, s, val_to_str(vm, a[0]), val_to_str(vm, a[1]), count));
}

FILTER(filter_center)
{
    return val_str(str_center(vm, val_to_str(vm, self), arg_int(vm, a[0], "width", 80), jstr_c(vm, " ")));
}

/* Words begin after white space, "-" and opening brackets, unlike in str.title. */
FILTER(filter_title)
{
    (void)a;
    const struct jstr *s = val_to_str(vm, self);
    size_t start = vm->text_len;
    bool begins = true;
    unsigned cp;
    for (size_t i = 0; i < s->len;) {
        int len = char_at(s->bytes + i, s->len - i, &cp);
        char_put_case(vm, cp, begins ? CASE_UPPER : CASE_LOWER, s->marks ? s->marks[i] : s->literal);
        begins = char_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (char)cp));
        i += (size_t)len;
    }
    return vm_take_value(vm, start);
}

FILTER(filter_indent)
{
    size_t start = vm->text_len;
    const struct jstr *by;
    if (a[0].type == VAL_STR) {
        by = a[0].str;
    } else {
        vm_put_repeat(vm, jstr_c(vm, " "), arg_int(vm, a[0], "width", 4));
        by = vm_take(vm, start);
    }
    if (self.type != VAL_STR)
        vm_fail(vm, "indent: a string is needed, not %s", val_type_name(self));
    bool first = arg_bool(a[1], false), blank = arg_bool(a[2], false);
    /* The added newline makes a line of an empty end, too. */
    struct value lines = str_splitlines(vm, jstr_concat(vm, self.str, jstr_c(vm, "\n")), false);
    if (first)
        vm_put_jstr(vm, by);
    for (size_t i = 0; i < lines.seq->n; i++) {
        const struct jstr *line = lines.seq->items[i].str;
        if (i)
            vm_puts(vm, "\n");
        if (i && (blank || line->len))
            vm_put_jstr(vm, by);
        vm_put_jstr(vm, line);
    }
    return val_str(jstr_mark(vm, vm_take(vm, start), self.str->markup));
}

FILTER(filter_wordcount)
{
    (void)a;
    const struct jstr *s = val_to_str(vm, self);
    wide_int words = 0;
    bool inside = false;
    unsigned cp;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len;) {
        i += (size_t)char_at(s->bytes + i, s->len - i, &cp);
        bool word = cp == '_' || char_is_alpha(cp) || char_is_numeric(cp);
        words += word && !inside;
        inside = word;
    }
    return val_int(words);
}

FILTER(filter_truncate)
{
    if (self.type == VAL_UNDEFINED)
        return val_str(jstr_c(vm, ""));
    const struct jstr *s = arg_str(vm, self, "text", NULL), *end = arg_str(vm, a[2], "end", "...");
    wide_int length = arg_int(vm, a[0], "length", 255), n_end = (wide_int)jstr_chars(vm, end);
    wide_int leeway = a[3].type == VAL_NONE ? 5 : arg_int(vm, a[3], "leeway", 5);
    if (length < n_end || leeway < 0)
        vm_fail(vm, "truncate: the length must hold the end mark, and the leeway must not be negative");
    wide_int chars = (wide_int)jstr_chars(vm, s);
    if (chars <= length || chars - length <= leeway)
        return self;
    const struct jstr *kept = jstr_sub(vm, s, 0, jstr_offset(vm, s, (size_t)(length - n_end)));
    if (!arg_bool(a[1], false)) {
        size_t space = jstr_rfind(vm, kept, jstr_c(vm, " "), kept->len);
        if (space != SIZE_MAX)
            kept = jstr_sub(vm, kept, 0, space);
    }
    return val_str(jstr_concat(vm, kept, end));
}

/* --- wrapping
 * ----------------------------------------------------------------------------------------------------- */

struct wrapper {
    struct str_list lines;
    const struct jstr *text; /* one paragraph */
    size_t begin, end;       /* of the line under construction, as bytes; begin == end: none */
    size_t width, used;      /* in characters */
};

static size_t count_chars(struct vm *vm, const struct jstr *s, size_t begin, size_t end)
{
    return jstr_chars(vm, jstr_sub(vm, s, begin, end - begin));
}

static void end_line(struct vm *vm, struct wrapper *w)
{
    const struct jstr *line = jstr_sub(vm, w->text, w->begin, w->end - w->begin);
    line = jstr_strip(vm, line, NULL, JSTR_RIGHT);
    if (line->len)
        str_list_add(vm, &w->lines, line);
    w->begin = w->end;
    w->used = 0;
}

/* Adds the chunk [at, end), which is all white space or has none. */
static void add_chunk(struct vm *vm, struct wrapper *w, size_t at, size_t end, bool space, bool break_long)
{
    size_t n = count_chars(vm, w->text, at, end);
    if (space && w->used == 0 &&
        w->lines.n) { /* white space at the start of a line is dropped, but not the first */
        w->begin = w->end = end;
        return;
    }
    if (w->used + n > w->width && w->used && n <= w->width) {
        end_line(vm, w);
        if (space) {
            w->begin = w->end = end;
            return;
        }
        w->begin = at;
    }
    while (w->used + n > w->width && !space) {
        if (!break_long) {
            if (w->used)
                end_line(vm, w);
            w->begin = w->used ? w->begin : at;
            break;
        }
        size_t fits = w->width - w->used;
        const struct jstr *rest = jstr_sub(vm, w->text, at, end - at);
        size_t cut = at + jstr_offset(vm, rest, fits);
        w->end = cut;
        w->used += fits;
        end_line(vm, w);
        w->begin = at = cut;
        n -= fits;
    }
    if (!w->used)
        w->begin = at;
    w->end = end;
    w->used += n;
}

static bool is_letter_at(const struct jstr *s, size_t i)
{
    unsigned cp;
    if (i >= s->len)
        return false;
    char_at(s->bytes + i, s->len - i, &cp);
    return char_is_alpha(cp);
}

static void wrap(struct vm *vm, struct wrapper *w, bool break_long, bool on_hyphens)
{
    const struct jstr *s = w->text;
    unsigned cp;
    for (size_t at = 0, end; at < s->len; at = end) {
        size_t len;
        char_at(s->bytes + at, s->len - at, &cp);
        bool space = char_is_space(cp), letter_before = false;
        for (end = at; end < s->len; end += len) {
            len = (size_t)char_at(s->bytes + end, s->len - end, &cp);
            if (char_is_space(cp) != space)
                break;
            if (on_hyphens && cp == '-' && letter_before && is_letter_at(s, end + 1)) {
                end++;
                break;
            }
            letter_before = char_is_alpha(cp);
        }
        vm_charge(vm, 1);
        add_chunk(vm, w, at, end, space, break_long);
    }
    if (w->used)
        end_line(vm, w);
}

FILTER(filter_wordwrap)
{
    const struct jstr *s = arg_str(vm, self, "text", NULL);
    wide_int width = arg_int(vm, a[0], "width", 79);
    if (width < 1)
        vm_fail(vm, "wordwrap: the width must be at least 1");
    const struct jstr *sep = a[2].type == VAL_NONE ? jstr_c(vm, "\n") : arg_str(vm, a[2], "wrapstring", "\n");
    struct value paragraphs = str_splitlines(vm, s, false);
    size_t start = vm->text_len;
    for (size_t i = 0; i < paragraphs.seq->n; i++) {
        struct wrapper w = {.text = paragraphs.seq->items[i].str,
                            .width = width > INT32_MAX ? INT32_MAX : (size_t)width};
        wrap(vm, &w, arg_bool(a[1], true), arg_bool(a[3], true));
        if (i)
            vm_put_jstr(vm, sep);
        for (size_t k = 0; k < w.lines.n; k++) {
            if (k)
                vm_put_jstr(vm, sep);
            vm_put_jstr(vm, w.lines.items[k].str);
        }
    }
    return vm_take_value(vm, start);
}

/* --- HTML and URLs
 * ------------------------------------------------------------------------------------------------- */

/* Appends s with HTML's common entities resolved. */
static void put_unescaped(struct vm *vm, const struct jstr *s)
{
    static const struct {
        const char *name;
        unsigned cp;
    } entities[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&nbsp;", 0xA0}};
    size_t plain = 0;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len; i++) {
        if (s->bytes[i] != '&')
            continue;
        unsigned cp = 0;
        size_t len = 0;
        for (size_t k = 0; k < sizeof entities / sizeof entities[0]; k++) {
            size_t n = strlen(entities[k].name);
            if (n <= s->len - i && !memcmp(s->bytes + i, entities[k].name, n)) {
                cp = entities[k].cp;
                len = n;
            }
        }
        if (!len && s->len - i > 3 && s->bytes[i + 1] == '#') {
            size_t at = i + 2;
            for (; at < s->len && s->bytes[at] >= '0' && s->bytes[at] <= '9' && cp < 0x110000; at++)
                cp = cp * 10 + (unsigned)(s->bytes[at] - '0');
            bool valid = cp && cp < 0x110000 && (cp < 0xD800 || cp > 0xDFFF);
            len = valid && at < s->len && s->bytes[at] == ';' ? at + 1 - i : 0;
        }
        if (!len)
            continue;
        vm_put_sub(vm, s, plain, i - plain);
        char_put(vm, cp, s->marks ? s->marks[i] : s->literal);
        plain = i + len;
        i = plain - 1;
    }
    vm_put_sub(vm, s, plain, s->len - plain);
}

FILTER(filter_striptags)
{
    (void)a;
    const struct jstr *s = val_to_str(vm, self);
    const struct jstr *tag = jstr_c(vm, "<"), *comment = jstr_c(vm, "<!--");
    size_t start = vm->text_len, at = 0, open;
    while ((open = jstr_find(vm, s, tag, at)) != SIZE_MAX) {
        bool is_comment = jstr_starts(vm, jstr_sub(vm, s, open, s->len - open), comment);
        size_t close = is_comment ? jstr_find(vm, s, jstr_c(vm, "-->"), open + 4)
                                  : jstr_find(vm, s, jstr_c(vm, ">"), open);
        if (close == SIZE_MAX)
            break;
        vm_put_sub(vm, s, at, open - at);
        at = close + (is_comment ? 3 : 1);
    }
    vm_put_sub(vm, s, at, s->len - at);
    struct value words = str_split_space(vm, vm_take(vm, start), -1);
    for (size_t i = 0; i < words.seq->n; i++) {
        if (i)
            vm_puts(vm, " ");
        vm_put_jstr(vm, words.seq->items[i].str);
    }
    put_unescaped(vm, vm_take(vm, start));
    return vm_take_value(vm, start);
}

static void put_quoted_url(struct vm *vm, struct value v, bool in_query)
{
    const struct jstr *s = val_to_str(vm, v);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->bytes[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c == '.' ||
                     c == '-' || c == '~' || (c == '/' && !in_query);
        bool literal = s->marks ? s->marks[i] : s->literal;
        char hex[4];
        if (plain) {
            vm_put_sub(vm, s, i, 1);
        } else if (c == ' ' && in_query) {
            vm_put(vm, "+", 1, literal);
        } else {
            snprintf(hex, sizeof hex, "%%%02X", c);
            vm_put(vm, hex, 3, literal);
        }
    }
}

FILTER(filter_urlencode)
{
    (void)a;
    size_t n, n_pair, start = vm->text_len;
    if (self.type == VAL_STR || !val_is_iterable(self)) {
        put_quoted_url(vm, self, false);
        return vm_take_value(vm, start);
    }
    n = self.type == VAL_DICT ? self.dict->n : 0;
    const struct value *pairs = self.type == VAL_DICT ? dict_pairs(vm, self.dict) : val_items(vm, self, &n);
    for (size_t i = 0; i < n; i++) {
        const struct value *pair = val_items(vm, pairs[i], &n_pair);
        if (n_pair != 2)
            vm_fail(vm, "urlencode: pairs of a name and a value are needed");
        if (i)
            vm_puts(vm, "&");
        put_quoted_url(vm, pair[0], true);
        vm_puts(vm, "=");
        put_quoted_url(vm, pair[1], true);
    }
    return vm_take_value(vm, start);
}

FILTER(filter_xmlattr)
{
    if (self.type != VAL_DICT)
        vm_fail(vm, "xmlattr: a dict is needed, not %s", val_type_name(self));
    size_t start = vm->text_len;
    for (size_t i = 0; i < self.dict->n; i++) {
        struct value key = self.dict->entries[i].key, v = self.dict->entries[i].value;
        if (v.type == VAL_NONE || v.type == VAL_UNDEFINED)
            continue;
        const struct jstr *name = arg_str(vm, key, "key", NULL);
        for (size_t k = 0; k < name->len; k++)
            if (strchr(" \t\n\r\f\v/>=", name->bytes[k]))
                vm_fail(vm, "xmlattr: invalid character in an attribute name");
        if (vm->text_len > start || arg_bool(a[0], true))
            vm_puts(vm, " ");
        jstr_put_escaped(vm, name);
        vm_puts(vm, "=\"");
        const struct jstr *text = val_to_str(vm, v);
        if (text->markup)
            vm_put_jstr(vm, text);
        else
            jstr_put_escaped(vm, text);
        vm_puts(vm, "\"");
    }
    return vm_take_value(vm, start);
}

FILTER(filter_filesizeformat)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool is_binary = arg_bool(a[0], false);
    double base = is_binary ? 1024 : 1000, bytes;
    char out[400];
    if (self.type == VAL_UNDEFINED)
        val_fail_undefined(vm, self);
    if (val_is_number(self))
        bytes = val_double(self);
    else if (self.type != VAL_STR || !parse_float(self.str, &bytes))
        vm_fail(vm, "filesizeformat: a number is needed");
    if (bytes == 1) {
        snprintf(out, sizeof out, "1 Byte");
    } else if (bytes < base) {
        snprintf(out, sizeof out, "%.0f Bytes", trunc(bytes));
    } else {
        double unit = base * base;
        int i = 0;
        for (; i < 7 && !(bytes < unit); i++)
            unit *= base;
        snprintf(out, sizeof out, "%.1f %s", base * bytes / unit, (is_binary ? binary : decimal)[i]);
    }
    size_t start = vm->text_len;
    vm_puts(vm, out);
    return vm_take_value(vm, start);
}
