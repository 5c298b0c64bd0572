#include "chat/format.h"

#include <math.h>
#include <stdio.h>

#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/print.h"

#define MAX_PRECISION 200

/* How one value is laid out. */
struct spec {
    const struct jstr *fill; /* one character; NULL: a space */
    char align;              /* '<', '>', '^', '=' (between sign and digits) or 0: by type */
    char sign;               /* '+', ' ' or 0 */
    char grouping;           /* ',' or '_' between thousands, or 0 */
    char type;               /* or 0 */
    bool alternate;
    wide_int width;
    int precision; /* -1: not given */
};

static void put_padding(struct vm *vm, const struct spec *spec, wide_int n)
{
    vm_put_repeat(vm, spec->fill ? spec->fill : jstr_c(vm, " "), n);
}

/* Pads what was put since `start` (n characters) to the width. */
static void pad(struct vm *vm, const struct spec *spec, size_t start, size_t n, char align)
{
    wide_int room = spec->width - (wide_int)n;
    if (room <= 0)
        return;
    const struct jstr *body = vm_take(vm, start);
    wide_int left = align == '<' ? 0 : align == '^' ? room / 2 : room;
    put_padding(vm, spec, left);
    vm_put_jstr(vm, body);
    put_padding(vm, spec, room - left);
}

static void put_text(struct vm *vm, const struct spec *spec, const struct jstr *s)
{
    size_t start = vm->text_len, n = jstr_chars(vm, s);
    if (spec->precision >= 0 && (size_t)spec->precision < n) {
        n = (size_t)spec->precision;
        s = jstr_sub(vm, s, 0, jstr_offset(vm, s, n));
    }
    vm_put_jstr(vm, s);
    pad(vm, spec, start, n, spec->align && spec->align != '=' ? spec->align : '<');
}

/* A number from its parts. */
static void put_number(struct vm *vm, const struct spec *spec, bool negative, const char *prefix,
                       const char *digits)
{
    size_t start = vm->text_len;
    char sign[2] = {negative ? '-' : spec->sign, 0};
    size_t n_digits = strlen(digits), n_whole = strspn(digits, "0123456789abcdefABCDEF");
    if (spec->type == 'e' || spec->type == 'E' || spec->type == 'g' || spec->type == 'G' || !spec->type)
        n_whole = strspn(digits, "0123456789");
    vm_puts(vm, sign);
    vm_puts(vm, prefix);
    size_t n = strlen(sign) + strlen(prefix) + n_digits;
    bool zeros = spec->align == '=';
    if (zeros && (wide_int)n < spec->width) {
        put_padding(vm, spec, spec->width - (wide_int)n);
        n = (size_t)spec->width;
    }
    for (size_t i = 0; i < n_digits; i++) {
        if (spec->grouping && i && i < n_whole && (n_whole - i) % 3 == 0) {
            vm_put(vm, &spec->grouping, 1, false);
            n++;
        }
        vm_put(vm, digits + i, 1, false);
    }
    if (!zeros)
        pad(vm, spec, start, n, spec->align ? spec->align : '>');
}

static void put_integer(struct vm *vm, const struct spec *spec, wide_int i)
{
    char buf[JINJA_INT_DIGITS], padded[MAX_PRECISION + JINJA_INT_DIGITS];
    unsigned base = 10;
    const char *prefix = "";
    if (spec->type == 'x' || spec->type == 'X')
        base = 16, prefix = spec->type == 'x' ? "0x" : "0X";
    else if (spec->type == 'o')
        base = 8, prefix = "0o";
    else if (spec->type == 'b')
        base = 2, prefix = "0b";
    const char *digits =
        print_digits(buf, i < 0 ? -(unsigned __int128)i : (unsigned __int128)i, base, spec->type == 'X');
    int n = (int)strlen(digits);
    if (spec->precision > n) {
        snprintf(padded, sizeof padded, "%0*d%s", spec->precision - n, 0, digits);
        digits = padded;
    }
    put_number(vm, spec, i < 0, spec->alternate ? prefix : "", digits);
}

static void put_float(struct vm *vm, const struct spec *spec, double f)
{
    char buf[700];
    bool negative = signbit(f) && !isnan(f);
    int precision = spec->precision < 0 ? 6 : spec->precision;
    double size = fabs(f);
    if (isnan(f) || isinf(f)) {
        snprintf(buf, sizeof buf, "%s", isnan(f) ? "nan" : "inf");
    } else if (!spec->type && spec->precision < 0) {
        size_t start = vm->text_len;
        vm_put_float(vm, size);
        const struct jstr *s = vm_take(vm, start);
        snprintf(buf, sizeof buf, "%.*s", (int)s->len, s->bytes);
    } else if (spec->type == '%') {
        snprintf(buf, sizeof buf, "%.*f%%", precision, size * 100);
    } else {
        char how[8] = {'%', '.', '*', spec->type ? spec->type : 'g', 0};
        if (spec->alternate)
            snprintf(how, sizeof how, "%%#.*%c", spec->type ? spec->type : 'g');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(buf, sizeof buf, how, precision, size);
#pragma GCC diagnostic pop
        if (!spec->type && strspn(buf, "0123456789") == strlen(buf))
            strcat(buf, ".0"); /* without a type a float always looks like one */
    }
    put_number(vm, spec, negative, "", buf);
}

static wide_int to_integer(struct vm *vm, struct value v, char type)
{
    if (val_is_integer(v))
        return val_integer(v);
    if (v.type == VAL_UNDEFINED)
        val_fail_undefined(vm, v);
    if (v.type == VAL_FLOAT && (type == 'd' || type == 'i' || type == 'u') && fabs(v.f) < 0x1p126)
        return (wide_int)v.f;
    vm_fail(vm, "format '%c' needs an integer, not %s", type, val_type_name(v));
}

static double to_float(struct vm *vm, struct value v, char type)
{
    if (v.type == VAL_UNDEFINED)
        val_fail_undefined(vm, v);
    if (!val_is_number(v))
        vm_fail(vm, "format '%c' needs a number, not %s", type, val_type_name(v));
    return val_double(v);
}

static const struct jstr *to_character(struct vm *vm, struct value v)
{
    if (v.type == VAL_STR && jstr_chars(vm, v.str) == 1)
        return v.str;
    if (!val_is_integer(v) || val_integer(v) < 0 || val_integer(v) > 0x10FFFF)
        vm_fail(vm, "format 'c' needs a character or its number");
    size_t start = vm->text_len;
    char_put(vm, (unsigned)val_integer(v), false);
    return vm_take(vm, start);
}

/* str(v) or repr(v); inside markup what is not markup is escaped. */
static const struct jstr *to_text(struct vm *vm, struct value v, bool repr, bool markup)
{
    size_t start = vm->text_len;
    if (repr)
        vm_put_repr(vm, v);
    const struct jstr *s = repr ? vm_take(vm, start) : val_to_str(vm, v);
    if (!markup || s->markup)
        return s;
    jstr_put_escaped(vm, s);
    return vm_take(vm, start);
}

/* --- "%"
 * ----------------------------------------------------------------------------------------------------- */

/* The string being read, and where. */
struct reader {
    struct vm *vm;
    const struct jstr *s;
    size_t at;
};

static char peek(const struct reader *r)
{
    return r->at < r->s->len ? r->s->bytes[r->at] : '\0';
}

static wide_int read_number(struct reader *r)
{
    wide_int n = 0;
    while (peek(r) >= '0' && peek(r) <= '9') {
        n = n * 10 + (peek(r) - '0');
        r->at++;
        if (n > INT32_MAX)
            vm_fail(r->vm, "a width or precision in a format is too large");
    }
    return n;
}

static int read_precision(struct reader *r)
{
    wide_int n = read_number(r);
    if (n > MAX_PRECISION)
        vm_fail(r->vm, "a precision in a format is over %d", MAX_PRECISION);
    return (int)n;
}

struct percent_args {
    struct value all;
    const struct value *items; /* [n] */
    size_t n, next;
};

static struct value next_arg(struct vm *vm, struct percent_args *a)
{
    if (a->next >= a->n)
        vm_fail(vm, "not enough arguments for the format string");
    return a->items[a->next++];
}

static struct value named_arg(struct reader *r, const struct percent_args *a)
{
    size_t begin = ++r->at;
    int depth = 1;
    while (r->at < r->s->len && (depth += (peek(r) == '(') - (peek(r) == ')')) > 0)
        r->at++;
    if (r->at >= r->s->len)
        vm_fail(r->vm, "a %%(name) in the format string is not closed");
    if (a->all.type != VAL_DICT)
        vm_fail(r->vm, "a format with names needs a mapping, not %s", val_type_name(a->all));
    const struct jstr *name = jstr_sub(r->vm, r->s, begin, r->at++ - begin);
    const struct value *v = dict_get_str(r->vm, a->all.dict, name);
    if (!v)
        vm_fail(r->vm, "the format string names '%.*s', which is not there",
                (int)(name->len > 100 ? 100 : name->len), name->bytes);
    return *v;
}

static void put_conversion(struct vm *vm, const struct spec *spec, struct value v, bool markup)
{
    switch (spec->type) {
    case 's':
        put_text(vm, spec, to_text(vm, v, false, markup));
        return;
    case 'r':
    case 'a':
        put_text(vm, spec, to_text(vm, v, true, markup));
        return;
    case 'c':
        put_text(vm, spec, to_character(vm, v));
        return;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        put_integer(vm, spec, to_integer(vm, v, spec->type));
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        put_float(vm, spec, to_float(vm, v, spec->type));
        return;
    default:
        vm_fail(vm, "unknown conversion '%%%c' in a format string", spec->type > ' ' ? spec->type : '?');
    }
}

/* One conversion, the reader being after its "%". */
static void percent_one(struct reader *r, struct percent_args *a)
{
    struct vm *vm = r->vm;
    struct spec spec = {.precision = -1, .align = '>'};
    struct value v = val_missing();
    bool left = false, zero = false;
    if (peek(r) == '%') {
        vm_put_sub(vm, r->s, r->at++, 1);
        return;
    }
    if (peek(r) == '(')
        v = named_arg(r, a);
    for (char c; (c = peek(r)) && strchr("-+ #0", c); r->at++) {
        left |= c == '-';
        zero |= c == '0';
        spec.alternate |= c == '#';
        if (c == '+' || (c == ' ' && !spec.sign))
            spec.sign = c;
    }
    if (peek(r) == '*') {
        r->at++;
        spec.width = to_integer(vm, next_arg(vm, a), '*');
        left |= spec.width < 0;
        spec.width = spec.width < 0 ? -spec.width : spec.width;
    } else {
        spec.width = read_number(r);
    }
    if (peek(r) == '.') {
        r->at++;
        spec.precision = read_precision(r);
    }
    while (peek(r) == 'l' || peek(r) == 'h' || peek(r) == 'L')
        r->at++;
    if (r->at >= r->s->len)
        vm_fail(vm, "incomplete conversion at the end of a format string");
    spec.type = r->s->bytes[r->at++];
    if (left) {
        spec.align = '<';
    } else if (zero && !strchr("srac", spec.type)) {
        spec.align = '=';
        spec.fill = jstr_c(vm, "0");
    }
    put_conversion(vm, &spec, v.type == VAL_MISSING ? next_arg(vm, a) : v, r->s->markup);
}

struct value format_percent(struct vm *vm, const struct jstr *s, struct value value)
{
    struct percent_args a = {.all = value, .items = &a.all, .n = 1};
    if (value.type == VAL_TUPLE) {
        a.items = value.seq->items;
        a.n = value.seq->n;
    }
    struct reader r = {vm, s, 0};
    size_t start = vm->text_len;
    vm_charge_chars(vm, s->len);
    while (r.at < s->len) {
        const char *percent = memchr(s->bytes + r.at, '%', s->len - r.at);
        size_t end = percent ? (size_t)(percent - s->bytes) : s->len;
        vm_put_sub(vm, s, r.at, end - r.at);
        r.at = end + 1;
        if (percent)
            percent_one(&r, &a);
    }
    bool is_one = value.type == VAL_DICT || value.type == VAL_LIST || value.type == VAL_RANGE ||
                  value.type == VAL_UNDEFINED; /* what Python takes for a mapping may stay unused */
    if (a.next < a.n && !is_one)
        vm_fail(vm, "not all arguments were used by the format string");
    return val_str(jstr_mark(vm, vm_take(vm, start), s->markup));
}

/* --- "{}"
 * ---------------------------------------------------------------------------------------------------- */

/* The format spec after ":", as "[[fill]align][sign][#][0][width][,][.precision][type]". */
static struct spec read_spec(struct vm *vm, const struct jstr *s)
{
    struct spec spec = {.precision = -1};
    struct reader r = {vm, s, 0};
    unsigned cp;
    size_t first = s->len ? (size_t)char_at(s->bytes, s->len, &cp) : 0;
    if (first && first < s->len && strchr("<>^=", s->bytes[first])) {
        spec.fill = jstr_sub(vm, s, 0, first);
        spec.align = s->bytes[first];
        r.at = first + 1;
    } else if (peek(&r) && strchr("<>^=", peek(&r))) {
        spec.align = s->bytes[r.at++];
    }
    if (peek(&r) == '+' || peek(&r) == '-' || peek(&r) == ' ') {
        spec.sign = peek(&r) == '-' ? 0 : peek(&r);
        r.at++;
    }
    if (peek(&r) == '#') {
        spec.alternate = true;
        r.at++;
    }
    if (peek(&r) == '0') {
        if (!spec.align)
            spec.align = '=';
        if (!spec.fill)
            spec.fill = jstr_c(vm, "0");
        r.at++;
    }
    spec.width = read_number(&r);
    if (peek(&r) == ',' || peek(&r) == '_')
        spec.grouping = s->bytes[r.at++];
    if (peek(&r) == '.') {
        r.at++;
        spec.precision = read_precision(&r);
    }
    if (r.at < s->len)
        spec.type = s->bytes[r.at++];
    if (r.at < s->len)
        vm_fail(vm, "invalid format specifier '%.*s'", (int)(s->len > 100 ? 100 : s->len), s->bytes);
    return spec;
}

static void put_field(struct vm *vm, struct value v, const struct jstr *spec_text, bool markup)
{
    if (!spec_text->len) {
        vm_put_jstr(vm, to_text(vm, v, false, markup));
        return;
    }
    struct spec spec = read_spec(vm, spec_text);
    char t = spec.type;
    if (v.type == VAL_STR && (spec.sign || spec.grouping))
        vm_fail(vm, "a sign or grouping is not allowed in the format of a string");
    if (val_is_integer(v) && spec.precision >= 0 && (!t || !strchr("eEfFgG%n", t)))
        vm_fail(vm, "a precision is not allowed in the format of an integer");
    if (v.type == VAL_STR && (!t || t == 's'))
        put_text(vm, &spec, to_text(vm, v, false, markup));
    else if (val_is_integer(v) && (!t || t == 'd' || t == 'n' || strchr("xXob", t)))
        put_integer(vm, &spec, val_integer(v));
    else if (val_is_integer(v) && t == 'c')
        put_text(vm, &spec, to_character(vm, v));
    else if (val_is_number(v) && (!t || strchr("eEfFgG%n", t))) {
        if (t == 'n')
            spec.type = 'g';
        put_float(vm, &spec, val_double(v));
    } else {
        vm_fail(vm, "the format specifier '%.*s' does not suit a %s",
                (int)(spec_text->len > 100 ? 100 : spec_text->len), spec_text->bytes, val_type_name(v));
    }
}

struct fields {
    const struct args *args;
    size_t next; /* automatic number of the next "{}" */
};

/* The value of a field such as "0", "name", "user.age" or "rows[1]". */
static struct value field_value(struct vm *vm, const struct jstr *name, struct fields *f)
{
    size_t end = 0;
    while (end < name->len && name->bytes[end] != '.' && name->bytes[end] != '[')
        end++;
    const struct jstr *first = jstr_sub(vm, name, 0, end);
    struct value v = val_missing();
    bool number = true;
    size_t index = 0;
    for (size_t i = 0; i < end; i++) {
        number = number && name->bytes[i] >= '0' && name->bytes[i] <= '9' && i < 9;
        index = index * 10 + (size_t)(unsigned char)name->bytes[i] - '0';
    }
    if (!end)
        index = f->next++;
    if (number && index < f->args->n)
        v = f->args->positional[index];
    for (size_t i = 0; !number && i < f->args->n_named; i++)
        if (jstr_eq(f->args->names[i], first))
            v = f->args->named[i];
    if (v.type == VAL_MISSING)
        vm_fail(vm, "format() got no argument for the field '%.*s'",
                (int)(first->len > 100 ? 100 : first->len), first->bytes);
    while (end < name->len) {
        size_t begin = end + 1;
        bool is_attr = name->bytes[end] == '.';
        for (end = begin; end < name->len; end++)
            if (is_attr ? name->bytes[end] == '.' || name->bytes[end] == '[' : name->bytes[end] == ']')
                break;
        const struct jstr *key = jstr_sub(vm, name, begin, end - begin);
        if (is_attr) {
            v = get_attr(vm, v, key);
            continue;
        }
        if (end >= name->len)
            vm_fail(vm, "a '[' in a format field is not closed");
        end++;
        wide_int number_key = 0;
        bool is_index = key->len && key->len < 10;
        for (size_t i = 0; is_index && i < key->len; i++) {
            is_index = key->bytes[i] >= '0' && key->bytes[i] <= '9';
            number_key = number_key * 10 + key->bytes[i] - '0';
        }
        v = get_item(vm, v, is_index ? val_int(number_key) : val_str(key));
    }
    return v;
}

static const struct jstr *format_into(struct vm *vm, const struct jstr *s, struct fields *f, int depth);

/* One replacement field; the reader is after its "{". */
static void brace_field(struct reader *r, struct fields *f, int depth)
{
    struct vm *vm = r->vm;
    const char *b = r->s->bytes;
    size_t begin = r->at, name_end = begin;
    while (name_end < r->s->len && b[name_end] != '!' && b[name_end] != ':' && b[name_end] != '}' &&
           b[name_end] != '{') {
        if (b[name_end] == '[')
            while (name_end < r->s->len && b[name_end] != ']')
                name_end++;
        if (name_end < r->s->len)
            name_end++;
    }
    struct value v = field_value(vm, jstr_sub(vm, r->s, begin, name_end - begin), f);
    r->at = name_end;
    if (peek(r) == '!') {
        char how = r->at + 1 < r->s->len ? b[r->at + 1] : 0;
        r->at += 2;
        if (how != 's' && how != 'r' && how != 'a')
            vm_fail(vm, "unknown conversion after '!' in a format field");
        v = val_str(to_text(vm, v, how != 's', false));
    }
    const struct jstr *spec = jstr_c(vm, "");
    if (peek(r) == ':') {
        size_t spec_begin = ++r->at;
        int open = 1;
        while (r->at < r->s->len && (open += (peek(r) == '{') - (peek(r) == '}')) > 0)
            r->at++;
        spec = format_into(vm, jstr_sub(vm, r->s, spec_begin, r->at - spec_begin), f, depth + 1);
    }
    if (peek(r) != '}')
        vm_fail(vm, "expected '}' in a format string");
    r->at++;
    put_field(vm, v, spec, r->s->markup);
}

static const struct jstr *format_into(struct vm *vm, const struct jstr *s, struct fields *f, int depth)
{
    struct reader r = {vm, s, 0};
    size_t start = vm->text_len;
    vm_charge_chars(vm, s->len);
    if (depth > 1)
        vm_fail(vm, "format fields are nested too deep");
    while (r.at < s->len) {
        char c = s->bytes[r.at], next = r.at + 1 < s->len ? s->bytes[r.at + 1] : 0;
        if (c != '{' && c != '}') {
            size_t end = r.at;
            while (end < s->len && s->bytes[end] != '{' && s->bytes[end] != '}')
                end++;
            vm_put_sub(vm, s, r.at, end - r.at);
            r.at = end;
        } else if (next == c) {
            vm_put_sub(vm, s, r.at, 1);
            r.at += 2;
        } else if (c == '}') {
            vm_fail(vm, "single '}' in a format string");
        } else {
            r.at++;
            brace_field(&r, f, depth);
        }
    }
    return vm_take(vm, start);
}

struct value format_braces(struct vm *vm, const struct jstr *s, const struct args *args)
{
    struct fields f = {args, 0};
    return val_str(jstr_mark(vm, format_into(vm, s, &f, 0), s->markup));
}
