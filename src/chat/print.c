#include "chat/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "chat/ast.h"
#include "chat/jstr.h"

const char *print_digits(char *buf, unsigned __int128 i, unsigned base, bool upper)
{
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char *p = buf + JINJA_INT_DIGITS;
    *--p = '\0';
    do {
        *--p = digits[i % base];
        i /= base;
    } while (i);
    return p;
}

void vm_put_int(struct vm *vm, wide_int i)
{
    char buf[JINJA_INT_DIGITS];
    if (i < 0)
        vm_puts(vm, "-");
    vm_puts(vm, print_digits(buf, i < 0 ? -(unsigned __int128)i : (unsigned __int128)i, 10, false));
}

void vm_put_float(struct vm *vm, double f)
{
    if (isnan(f)) {
        vm_puts(vm, "nan");
        return;
    }
    if (signbit(f))
        vm_puts(vm, "-");
    f = fabs(f);
    if (isinf(f)) {
        vm_puts(vm, "inf");
        return;
    }
    /* The fewest digits that read back: "d.ddde±xx". */
    char sci[40];
    int precision = 0;
    do
        snprintf(sci, sizeof sci, "%.*e", precision, f);
    while (precision++ < 17 && strtod(sci, NULL) != f);
    char digits[24];
    int n = 0;
    const char *p = sci;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    int exponent = *p ? atoi(p + 1) : 0;
    while (n > 1 && digits[n - 1] == '0')
        n--;

    char out[64];
    int at = 0;
    if (exponent < -4 || exponent >= 16) {
        out[at++] = digits[0];
        if (n > 1) {
            out[at++] = '.';
            for (int i = 1; i < n; i++)
                out[at++] = digits[i];
        }
        snprintf(out + at, sizeof out - (size_t)at, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        if (exponent < 0) {
            out[at++] = '0';
            out[at++] = '.';
            for (int i = -1; i > exponent; i--)
                out[at++] = '0';
            for (int i = 0; i < n; i++)
                out[at++] = digits[i];
        } else {
            for (int i = 0; i < n || i <= exponent; i++) {
                if (i == exponent + 1)
                    out[at++] = '.';
                out[at++] = i < n ? digits[i] : '0';
            }
            if (n <= exponent + 1) {
                out[at++] = '.';
                out[at++] = '0';
            }
        }
        out[at] = '\0';
    }
    vm_puts(vm, out);
}

/* repr of a string or of bytes. The quotes are ours, the contents keep their marks. */
static void put_quoted(struct vm *vm, const struct jstr *s, bool bytes)
{
    bool single = memchr(s->bytes, '\'', s->len) != NULL;
    char quote = single && !memchr(s->bytes, '"', s->len) ? '"' : '\'';
    vm_put(vm, &quote, 1, false);
    size_t plain = 0;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len;) {
        unsigned char c = (unsigned char)s->bytes[i];
        if (c >= 0x20 && c < 0x7F && c != (unsigned char)quote && c != '\\') {
            i++;
            continue;
        }
        unsigned cp;
        int len = char_at(s->bytes + i, s->len - i, &cp);
        if (bytes) {
            len = 1;
            cp = (unsigned char)s->bytes[i];
        }
        char esc[16] = "";
        if (cp == (unsigned)quote || cp == '\\')
            snprintf(esc, sizeof esc, "\\%c", (char)cp);
        else if (cp == '\n')
            snprintf(esc, sizeof esc, "\\n");
        else if (cp == '\r')
            snprintf(esc, sizeof esc, "\\r");
        else if (cp == '\t')
            snprintf(esc, sizeof esc, "\\t");
        else if (bytes ? cp < 0x20 || cp >= 0x7F : !char_is_printable(cp))
            snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        if (esc[0]) {
            vm_put_sub(vm, s, plain, i - plain);
            vm_put(vm, esc, strlen(esc), s->marks ? s->marks[i] : s->literal);
            plain = i + (size_t)len;
        }
        i += (size_t)len;
    }
    vm_put_sub(vm, s, plain, s->len - plain);
    vm_put(vm, &quote, 1, false);
}

static void put_items(struct vm *vm, const char *open, const struct value *items, size_t n, const char *close)
{
    vm_puts(vm, open);
    for (size_t i = 0; i < n; i++) {
        if (i)
            vm_puts(vm, ", ");
        vm_put_repr(vm, items[i]);
    }
    vm_puts(vm, close);
}

static void put_dict(struct vm *vm, const struct dict *d)
{
    vm_puts(vm, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            vm_puts(vm, ", ");
        vm_put_repr(vm, d->entries[i].key);
        vm_puts(vm, ": ");
        vm_put_repr(vm, d->entries[i].value);
    }
    vm_puts(vm, "}");
}

static void put_object(struct vm *vm, const char *what, const char *name)
{
    vm_puts(vm, "<");
    vm_puts(vm, what);
    if (name) {
        vm_puts(vm, " ");
        vm_puts(vm, name);
    }
    vm_puts(vm, ">");
}

void vm_put_repr(struct vm *vm, struct value v)
{
    vm_enter(vm);
    switch (v.type) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
        vm_puts(vm, "Undefined");
        break;
    case VAL_NONE:
        vm_puts(vm, "None");
        break;
    case VAL_BOOL:
        vm_puts(vm, v.b ? "True" : "False");
        break;
    case VAL_INT:
        vm_put_int(vm, v.i);
        break;
    case VAL_FLOAT:
        vm_put_float(vm, v.f);
        break;
    case VAL_STR:
        if (v.str->markup)
            vm_puts(vm, "Markup(");
        put_quoted(vm, v.str, false);
        if (v.str->markup)
            vm_puts(vm, ")");
        break;
    case VAL_BYTES:
        vm_puts(vm, "b");
        put_quoted(vm, v.str, true);
        break;
    case VAL_LIST:
        put_items(vm, "[", v.seq->items, v.seq->n, "]");
        break;
    case VAL_TUPLE:
        put_items(vm, "(", v.seq->items, v.seq->n, v.seq->n == 1 ? ",)" : ")");
        break;
    case VAL_VIEW:
        vm_puts(vm, v.seq->kind);
        put_items(vm, "([", v.seq->items, v.seq->n, "])");
        break;
    case VAL_DICT:
        put_dict(vm, v.dict);
        break;
    case VAL_NAMESPACE:
        vm_puts(vm, "<Namespace ");
        put_dict(vm, v.ns);
        vm_puts(vm, ">");
        break;
    case VAL_RANGE:
        vm_puts(vm, "range(");
        vm_put_int(vm, v.range->start);
        vm_puts(vm, ", ");
        vm_put_int(vm, v.range->stop);
        if (v.range->step != 1) {
            vm_puts(vm, ", ");
            vm_put_int(vm, v.range->step);
        }
        vm_puts(vm, ")");
        break;
    case VAL_LOOP:
        vm_puts(vm, "<LoopContext ");
        vm_put_int(vm, (wide_int)v.loop->index0 + 1);
        vm_puts(vm, "/");
        vm_put_int(vm, (wide_int)v.loop->n);
        vm_puts(vm, ">");
        break;
    case VAL_MACRO:
        put_object(vm, "Macro", v.macro->name);
        break;
    case VAL_FUNCTION:
        put_object(vm, "function", v.function->name);
        break;
    case VAL_ITER:
    case VAL_METHOD:
    case VAL_CYCLER:
    case VAL_JOINER:
        put_object(vm, val_type_name(v), NULL);
        break;
    }
    vm_leave(vm);
}

void vm_put_str(struct vm *vm, struct value v)
{
    if (v.type == VAL_STR)
        vm_put_jstr(vm, v.str);
    else if (v.type != VAL_UNDEFINED && v.type != VAL_MISSING)
        vm_put_repr(vm, v);
}

const struct jstr *val_to_str(struct vm *vm, struct value v)
{
    if (v.type == VAL_STR)
        return v.str;
    size_t start = vm->text_len;
    vm_put_str(vm, v);
    return vm_take(vm, start);
}
