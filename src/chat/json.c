/* tojson as transformers has it: Python's json.dumps, not Jinja's HTML-safe one. */
#include <math.h>
#include <stdio.h>

#include "chat/jstr.h"
#include "chat/print.h"

static void put_string(struct vm *vm, const struct jstr *s, bool ascii)
{
    vm_puts(vm, "\"");
    size_t plain = 0;
    vm_charge_chars(vm, s->len);
    for (size_t i = 0; i < s->len;) {
        unsigned char c = (unsigned char)s->bytes[i];
        if (c >= 0x20 && c < 0x7F && c != '"' && c != '\\') {
            i++;
            continue;
        }
        unsigned cp;
        int len = char_at(s->bytes + i, s->len - i, &cp);
        char esc[16] = "";
        switch (cp) {
        case '"':
        case '\\':
            snprintf(esc, sizeof esc, "\\%c", (char)cp);
            break;
        case '\n':
            snprintf(esc, sizeof esc, "\\n");
            break;
        case '\r':
            snprintf(esc, sizeof esc, "\\r");
            break;
        case '\t':
            snprintf(esc, sizeof esc, "\\t");
            break;
        case '\b':
            snprintf(esc, sizeof esc, "\\b");
            break;
        case '\f':
            snprintf(esc, sizeof esc, "\\f");
            break;
        default:
            if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000))
                snprintf(esc, sizeof esc, "\\u%04x", cp);
            else if (ascii && cp >= 0x10000)
                snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                         0xDC00 + ((cp - 0x10000) & 0x3FF));
        }
        if (esc[0]) {
            vm_put_sub(vm, s, plain, i - plain);
            vm_put(vm, esc, strlen(esc), s->marks ? s->marks[i] : s->literal);
            plain = i + (size_t)len;
        }
        i += (size_t)len;
    }
    vm_put_sub(vm, s, plain, s->len - plain);
    vm_puts(vm, "\"");
}

static void put_number(struct vm *vm, double f)
{
    if (isnan(f))
        vm_puts(vm, "NaN");
    else if (isinf(f))
        vm_puts(vm, f < 0 ? "-Infinity" : "Infinity");
    else
        vm_put_float(vm, f);
}

static void put_key(struct vm *vm, struct value key, bool ascii)
{
    switch (key.type) {
    case VAL_STR:
        put_string(vm, key.str, ascii);
        return;
    case VAL_NONE:
        vm_puts(vm, "\"null\"");
        return;
    case VAL_BOOL:
        vm_puts(vm, key.b ? "\"true\"" : "\"false\"");
        return;
    case VAL_INT:
        vm_puts(vm, "\"");
        vm_put_int(vm, key.i);
        vm_puts(vm, "\"");
        return;
    case VAL_FLOAT:
        vm_puts(vm, "\"");
        put_number(vm, key.f);
        vm_puts(vm, "\"");
        return;
    default:
        vm_fail(vm, "tojson: keys must be str, int, float, bool or None, not %s", val_type_name(key));
    }
}

static void put_break(struct vm *vm, const struct json_style *style, int level)
{
    if (!style->indent)
        return;
    vm_puts(vm, "\n");
    vm_put_repeat(vm, style->indent, level);
}

static void put_value(struct vm *vm, struct value v, const struct json_style *style, int level);

static void put_array(struct vm *vm, const struct value *items, size_t n, const struct json_style *style,
                      int level)
{
    vm_puts(vm, "[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            vm_put_jstr(vm, style->item_sep);
        put_break(vm, style, level + 1);
        put_value(vm, items[i], style, level + 1);
    }
    if (n)
        put_break(vm, style, level);
    vm_puts(vm, "]");
}

static void put_object(struct vm *vm, const struct dict *d, const struct json_style *style, int level)
{
    struct value *keys = vm_alloc(vm, d->n, sizeof *keys), *values = vm_alloc(vm, d->n, sizeof *values);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        values[i] = d->entries[i].value;
    }
    if (style->sort_keys)
        val_sort(vm, values, keys, d->n, false);
    vm_puts(vm, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            vm_put_jstr(vm, style->item_sep);
        put_break(vm, style, level + 1);
        put_key(vm, keys[i], style->ascii);
        vm_put_jstr(vm, style->key_sep);
        put_value(vm, values[i], style, level + 1);
    }
    if (d->n)
        put_break(vm, style, level);
    vm_puts(vm, "}");
}

static void put_value(struct vm *vm, struct value v, const struct json_style *style, int level)
{
    vm_enter(vm);
    switch (v.type) {
    case VAL_NONE:
        vm_puts(vm, "null");
        break;
    case VAL_BOOL:
        vm_puts(vm, v.b ? "true" : "false");
        break;
    case VAL_INT:
        vm_put_int(vm, v.i);
        break;
    case VAL_FLOAT:
        put_number(vm, v.f);
        break;
    case VAL_STR:
        put_string(vm, v.str, style->ascii);
        break;
    case VAL_LIST:
    case VAL_TUPLE:
        put_array(vm, v.seq->items, v.seq->n, style, level);
        break;
    case VAL_DICT:
        put_object(vm, v.dict, style, level);
        break;
    default:
        vm_fail(vm, "tojson: object of type %s is not JSON serializable", val_type_name(v));
    }
    vm_leave(vm);
}

void vm_put_json(struct vm *vm, struct value v, const struct json_style *style)
{
    put_value(vm, v, style, 0);
}
