#include "chat/filters.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "chat/eval.h"
#include "chat/format.h"
#include "chat/jstr.h"
#include "chat/print.h"
#include "chat/str_methods.h"

/* --- numbers
 * ------------------------------------------------------------------------------------------------ */

/* s without white space around and with single underscores between digits removed, in buf; false if it is too
 * long or an underscore stands elsewhere. */
static bool number_text(const struct jstr *s, char *buf, size_t size)
{
    size_t begin = 0, end = s->len, n = 0;
    while (begin < end && isspace((unsigned char)s->bytes[begin]))
        begin++;
    while (end > begin && isspace((unsigned char)s->bytes[end - 1]))
        end--;
    if (end - begin >= size)
        return false;
    for (size_t i = begin; i < end; i++) {
        if (!s->bytes[i])
            return false;
        if (s->bytes[i] == '_') {
            if (i == begin || i + 1 == end || !isalnum((unsigned char)s->bytes[i - 1]) ||
                !isalnum((unsigned char)s->bytes[i + 1]))
                return false;
            continue;
        }
        buf[n++] = s->bytes[i];
    }
    buf[n] = '\0';
    return n > 0;
}

/* The same for int(s, base); base 0: by the prefix. */
static bool parse_int(const struct jstr *s, int base, wide_int *out)
{
    char buf[256];
    if (!number_text(s, buf, sizeof buf))
        return false;
    const char *p = buf;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    int prefix = 0;
    if (p[0] == '0' && p[1])
        prefix = (p[1] | 32) == 'x' ? 16 : (p[1] | 32) == 'o' ? 8 : (p[1] | 32) == 'b' ? 2 : 0;
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        p += 2;
    }
    if (base == 0)
        base = 10;
    if (!*p)
        return false;
    wide_int v = 0;
    for (; *p; p++) {
        int d = *p >= '0' && *p <= '9' ? *p - '0' : isalpha((unsigned char)*p) ? (*p | 32) - 'a' + 10 : 99;
        if (d >= base || __builtin_mul_overflow(v, (wide_int)base, &v) ||
            __builtin_add_overflow(v, (wide_int)d, &v))
            return false;
    }
    *out = negative ? -v : v;
    return true;
}

bool parse_float(const struct jstr *s, double *out)
{
    char buf[256], *end;
    if (!number_text(s, buf, sizeof buf) || strpbrk(buf, "xXpP()"))
        return false;
    *out = strtod(buf, &end);
    return *end == '\0';
}

static FILTER(filter_abs)
{
    (void)a;
    if (self.type == VAL_FLOAT)
        return val_float(fabs(self.f));
    if (!val_is_integer(self))
        vm_fail(vm, "bad operand type for abs(): '%s'", val_type_name(self));
    return val_integer(self) < 0 ? negate(vm, self) : val_int(val_integer(self));
}

static FILTER(filter_int)
{
    struct value missing = a[0].type == VAL_MISSING ? val_int(0) : a[0];
    wide_int base = arg_int(vm, a[1], "base", 10), i;
    double f;
    if (self.type == VAL_UNDEFINED)
        val_fail_undefined(vm, self);
    if (base != 0 && (base < 2 || base > 36))
        return missing;
    if (val_is_integer(self))
        return val_int(val_integer(self));
    if (self.type == VAL_STR) {
        if (parse_int(self.str, (int)base, &i))
            return val_int(i);
        if (!parse_float(self.str, &f))
            return missing;
    } else if (self.type == VAL_FLOAT) {
        f = self.f;
    } else {
        return missing;
    }
    if (!isfinite(f))
        return missing;
    if (fabs(f) >= 0x1p126)
        vm_fail(vm, "int: the number does not fit in 128 bits");
    return val_int((wide_int)f);
}

static FILTER(filter_float)
{
    struct value missing = a[0].type == VAL_MISSING ? val_float(0) : a[0];
    double f;
    if (self.type == VAL_UNDEFINED)
        val_fail_undefined(vm, self);
    if (val_is_number(self))
        return val_float(val_double(self));
    return self.type == VAL_STR && parse_float(self.str, &f) ? val_float(f) : missing;
}

/* Python's round(f, digits): to the nearest, on a tie to the even one, of f's exact value. */
static double round_float(double f, int digits)
{
    char buf[400];
    if (!isfinite(f) || digits > 60)
        return f;
    if (digits < 0) {
        double unit = pow(10, -digits);
        return digits < -308 ? 0 : nearbyint(f / unit) * unit;
    }
    snprintf(buf, sizeof buf, "%.*f", digits, f);
    return strtod(buf, NULL);
}

static FILTER(filter_round)
{
    wide_int precision = arg_int(vm, a[0], "precision", 0);
    const struct jstr *method = arg_str(vm, a[1], "method", "common");
    if (self.type == VAL_UNDEFINED)
        val_fail_undefined(vm, self);
    if (!val_is_number(self))
        vm_fail(vm, "round: a number is needed, not %s", val_type_name(self));
    if (precision > 400 || precision < -400)
        vm_fail(vm, "round: the precision is too large");
    if (jstr_is(method, "common")) {
        if (self.type == VAL_FLOAT)
            return val_float(round_float(self.f, (int)precision));
        if (precision >= 0)
            return val_int(val_integer(self));
        double r = round_float(val_double(self), (int)precision);
        return fabs(r) < 0x1p126 ? val_int((wide_int)r) : val_float(r);
    }
    double unit = pow(10, (double)precision), scaled = val_double(self) * unit;
    if (jstr_is(method, "ceil"))
        return val_float(ceil(scaled) / unit + 0.0); /* never -0.0 */
    if (jstr_is(method, "floor"))
        return val_float(floor(scaled) / unit + 0.0);
    vm_fail(vm, "round: the method must be common, ceil or floor");
}

/* --- any value
 * ---------------------------------------------------------------------------------------------- */

static FILTER(filter_attr)
{
    const struct jstr *name = arg_str(vm, a[0], "name", NULL);
    if (self.type == VAL_UNDEFINED)
        val_fail_undefined(vm, self);
    if (self.type == VAL_DICT && !find_method(self, name))
        return val_undefined(vm, NULL, "dict", a[0]); /* attributes only, no items */
    return get_attr(vm, self, name);
}

static FILTER(filter_default)
{
    (void)vm;
    if (self.type != VAL_UNDEFINED && !(arg_bool(a[1], false) && !val_truthy(self)))
        return self;
    return a[0].type == VAL_MISSING ? val_str(jstr_c(vm, "")) : a[0];
}

static FILTER(filter_length)
{
    (void)a;
    return val_int((wide_int)val_length(vm, self));
}

static FILTER(filter_string)
{
    (void)a;
    return val_str(val_to_str(vm, self));
}

static FILTER(filter_safe)
{
    (void)a;
    return val_str(jstr_mark(vm, val_to_str(vm, self), true));
}

static FILTER(filter_escape)
{
    (void)a;
    const struct jstr *s = val_to_str(vm, self);
    if (s->markup)
        return self;
    size_t start = vm->text_len;
    jstr_put_escaped(vm, s);
    return val_str(jstr_mark(vm, vm_take(vm, start), true));
}

static FILTER(filter_forceescape)
{
    return filter_escape(vm, val_str(jstr_mark(vm, val_to_str(vm, self), false)), a);
}

static FILTER(filter_upper)
{
    (void)a;
    return val_str(str_upper(vm, val_to_str(vm, self)));
}

static FILTER(filter_lower)
{
    (void)a;
    return val_str(str_lower(vm, val_to_str(vm, self)));
}

static FILTER(filter_capitalize)
{
    (void)a;
    return val_str(str_capitalize(vm, val_to_str(vm, self)));
}

static FILTER_RAW(filter_format)
{
    if (args->n && args->n_named)
        vm_fail(vm, "format takes positional or named arguments, not both");
    if (!args->n_named)
        return format_percent(vm, val_to_str(vm, self), val_tuple(vm, args->positional, args->n));
    struct dict *d = dict_new(vm, args->n_named);
    for (size_t i = 0; i < args->n_named; i++)
        dict_set(vm, d, val_str(args->names[i]), args->named[i]);
    return format_percent(vm, val_to_str(vm, self), val_dict(d));
}

static FILTER(filter_tojson)
{
    struct json_style style = {.ascii = arg_bool(a[0], false), .sort_keys = arg_bool(a[3], false)};
    bool indented = a[1].type != VAL_MISSING && a[1].type != VAL_NONE;
    size_t start = vm->text_len;
    if (indented && a[1].type == VAL_STR) {
        style.indent = a[1].str;
    } else if (indented) {
        vm_put_repeat(vm, jstr_c(vm, " "), arg_int(vm, a[1], "indent", 0));
        style.indent = vm_take(vm, start);
    }
    style.item_sep = jstr_c(vm, indented ? "," : ", ");
    style.key_sep = jstr_c(vm, ": ");
    if (a[2].type != VAL_MISSING && a[2].type != VAL_NONE) {
        size_t n;
        const struct value *pair = val_items(vm, a[2], &n);
        if (n != 2)
            vm_fail(vm, "tojson: separators must be two strings");
        style.item_sep = arg_str(vm, pair[0], "separators", NULL);
        style.key_sep = arg_str(vm, pair[1], "separators", NULL);
    }
    vm_put_json(vm, self, &style);
    return vm_take_value(vm, start);
}

/* Jinja's random, pprint and urlize are left out: no chat template has a use for them. */
static const struct builtin filters[] = {
    {.name = "abs", .call = filter_abs},
    {.name = "attr", .call = filter_attr, .n_required = 1, .params = {"name"}},
    {.name = "batch", .call = filter_batch, .n_required = 1, .params = {"linecount", "fill_with"}},
    {.name = "capitalize", .call = filter_capitalize},
    {.name = "center", .call = filter_center, .params = {"width"}},
    {.name = "count", .call = filter_length},
    {.name = "d", .call = filter_default, .params = {"default_value", "boolean"}},
    {.name = "default", .call = filter_default, .params = {"default_value", "boolean"}},
    {.name = "dictsort", .call = filter_dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "e", .call = filter_escape},
    {.name = "escape", .call = filter_escape},
    {.name = "filesizeformat", .call = filter_filesizeformat, .params = {"binary"}},
    {.name = "first", .call = filter_first},
    {.name = "float", .call = filter_float, .params = {"default"}},
    {.name = "forceescape", .call = filter_forceescape},
    {.name = "format", .call_raw = filter_format},
    {.name = "groupby",
     .call = filter_groupby,
     .n_required = 1,
     .params = {"attribute", "default", "case_sensitive"}},
    {.name = "indent", .call = filter_indent, .params = {"width", "first", "blank"}},
    {.name = "int", .call = filter_int, .params = {"default", "base"}},
    {.name = "items", .call = filter_items},
    {.name = "join", .call = filter_join, .params = {"d", "attribute"}},
    {.name = "last", .call = filter_last},
    {.name = "length", .call = filter_length},
    {.name = "list", .call = filter_list},
    {.name = "lower", .call = filter_lower},
    {.name = "map", .call_raw = filter_map},
    {.name = "max", .call = filter_max, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .call = filter_min, .params = {"case_sensitive", "attribute"}},
    {.name = "reject", .call_raw = filter_reject},
    {.name = "rejectattr", .call_raw = filter_rejectattr},
    {.name = "replace", .call = filter_replace, .n_required = 2, .params = {"old", "new", "count"}},
    {.name = "reverse", .call = filter_reverse},
    {.name = "round", .call = filter_round, .params = {"precision", "method"}},
    {.name = "safe", .call = filter_safe},
    {.name = "select", .call_raw = filter_select},
    {.name = "selectattr", .call_raw = filter_selectattr},
    {.name = "slice", .call = filter_slice, .n_required = 1, .params = {"slices", "fill_with"}},
    {.name = "sort", .call = filter_sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "string", .call = filter_string},
    {.name = "striptags", .call = filter_striptags},
    {.name = "sum", .call = filter_sum, .params = {"attribute", "start"}},
    {.name = "title", .call = filter_title},
    {.name = "tojson",
     .call = filter_tojson,
     .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "trim", .call = filter_trim, .params = {"chars"}},
    {.name = "truncate", .call = filter_truncate, .params = {"length", "killwords", "end", "leeway"}},
    {.name = "unique", .call = filter_unique, .params = {"case_sensitive", "attribute"}},
    {.name = "upper", .call = filter_upper},
    {.name = "urlencode", .call = filter_urlencode},
    {.name = "wordcount", .call = filter_wordcount},
    {.name = "wordwrap",
     .call = filter_wordwrap,
     .params = {"width", "break_long_words", "wrapstring", "break_on_hyphens"}},
    {.name = "xmlattr", .call = filter_xmlattr, .params = {"autospace"}},
    {0},
};

const struct builtin *find_filter(const char *name, size_t len)
{
    return builtin_find(filters, name, len);
}
