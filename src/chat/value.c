/* What Python's data model says of our values: truth, length, equality, order, iteration, membership. */
#include "chat/value.h"

#include <math.h>
#include <string.h>

#include "chat/jstr.h"
#include "chat/print.h"
#include "chat/vm.h"

struct value val_undefined(struct vm *vm, const char *hint, const char *of, struct value name)
{
    struct undefined *u = vm_alloc(vm, 1, sizeof *u);
    *u = (struct undefined){hint, of, name};
    return (struct value){.type = VAL_UNDEFINED, .undef = u};
}

void val_fail_undefined(struct vm *vm, struct value v)
{
    const struct undefined *u = v.undef;
    if (!u)
        vm_fail(vm, "an undefined value was used");
    if (u->hint)
        vm_fail(vm, "%s", u->hint);
    size_t start = vm->text_len;
    vm_put_repr(vm, u->name);
    const struct jstr *name = vm_take(vm, start);
    int len = name->len > 200 ? 200 : (int)name->len;
    if (!u->of)
        vm_fail(vm, "%.*s is undefined", len, name->bytes);
    vm_fail(vm, "'%s object' has no %s %.*s", u->of, u->name.type == VAL_STR ? "attribute" : "element", len,
            name->bytes);
}

static struct value seq_value(struct vm *vm, enum value_type type, const struct value *items, size_t n)
{
    struct seq *s = vm_alloc(vm, 1, sizeof *s);
    *s = (struct seq){.items = items, .n = n};
    return (struct value){.type = type, .seq = s};
}

static const struct value *copied(struct vm *vm, const struct value *items, size_t n)
{
    struct value *copy = vm_alloc(vm, n, sizeof *copy);
    vm_charge(vm, n / 4 + 1);
    if (n)
        memcpy(copy, items, n * sizeof *copy);
    return copy;
}

struct value val_tuple(struct vm *vm, const struct value *items, size_t n)
{
    return seq_value(vm, VAL_TUPLE, copied(vm, items, n), n);
}

struct value val_list_of(struct vm *vm, const struct value *items, size_t n)
{
    return seq_value(vm, VAL_LIST, items, n);
}

struct value val_iter_of(struct vm *vm, const struct value *items, size_t n)
{
    struct iter *it = vm_alloc(vm, 1, sizeof *it);
    *it = (struct iter){.items = items, .n = n};
    return (struct value){.type = VAL_ITER, .iter = it};
}

const char *val_type_name(struct value v)
{
    switch (v.type) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
        return "Undefined";
    case VAL_NONE:
        return "NoneType";
    case VAL_BOOL:
        return "bool";
    case VAL_INT:
        return "int";
    case VAL_FLOAT:
        return "float";
    case VAL_STR:
        return v.str->markup ? "Markup" : "str";
    case VAL_BYTES:
        return "bytes";
    case VAL_LIST:
        return "list";
    case VAL_TUPLE:
        return "tuple";
    case VAL_DICT:
        return "dict";
    case VAL_VIEW:
        return v.seq->kind;
    case VAL_RANGE:
        return "range";
    case VAL_ITER:
        return "generator";
    case VAL_NAMESPACE:
        return "Namespace";
    case VAL_MACRO:
        return "Macro";
    case VAL_FUNCTION:
        return "function";
    case VAL_METHOD:
        return "builtin_function_or_method";
    case VAL_LOOP:
        return "LoopContext";
    case VAL_CYCLER:
        return "Cycler";
    case VAL_JOINER:
        return "Joiner";
    }
    return "object";
}

bool val_truthy(struct value v)
{
    switch (v.type) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
    case VAL_NONE:
        return false;
    case VAL_BOOL:
        return v.b;
    case VAL_INT:
        return v.i != 0;
    case VAL_FLOAT:
        return v.f != 0;
    case VAL_STR:
    case VAL_BYTES:
        return v.str->len != 0;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_VIEW:
        return v.seq->n != 0;
    case VAL_DICT:
        return v.dict->n != 0;
    case VAL_RANGE:
        return v.range->n != 0;
    case VAL_LOOP:
        return v.loop->n != 0;
    default:
        return true;
    }
}

/* The sign of i - f, exactly; *unordered if f is NaN. */
static int compare_mixed(wide_int i, double f, bool *unordered)
{
    if (isnan(f))
        return *unordered = true, 1;
    if (f >= 0x1p127)
        return -1;
    if (f < -0x1p127)
        return 1;
    double whole = floor(f);
    wide_int w = (wide_int)whole;
    if (i != w)
        return i < w ? -1 : 1;
    return f > whole ? -1 : 0;
}

static int compare_numbers(struct value a, struct value b, bool *unordered)
{
    if (a.type == VAL_FLOAT && b.type == VAL_FLOAT) {
        if (isnan(a.f) || isnan(b.f))
            return *unordered = true, 1;
        return a.f < b.f ? -1 : a.f > b.f;
    }
    if (a.type == VAL_FLOAT)
        return -compare_mixed(val_integer(b), a.f, unordered);
    if (b.type == VAL_FLOAT)
        return compare_mixed(val_integer(a), b.f, unordered);
    wide_int x = val_integer(a), y = val_integer(b);
    return x < y ? -1 : x > y;
}

static bool dict_equal(struct vm *vm, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *other = dict_get(vm, b, a->entries[i].key);
        if (!other || !val_equal(vm, a->entries[i].value, *other))
            return false;
    }
    return true;
}

bool val_equal(struct vm *vm, struct value a, struct value b)
{
    vm_charge(vm, 1);
    if (val_is_number(a) && val_is_number(b)) {
        bool unordered = false;
        return compare_numbers(a, b, &unordered) == 0 && !unordered;
    }
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
    case VAL_NONE:
        return true;
    case VAL_STR:
    case VAL_BYTES:
        if (a.str->len == b.str->len)
            vm_charge_bytes(vm, a.str->len);
        return jstr_eq(a.str, b.str);
    case VAL_LIST:
    case VAL_TUPLE: {
        if (a.seq->n != b.seq->n)
            return false;
        vm_enter(vm);
        bool same = true;
        for (size_t i = 0; same && i < a.seq->n; i++)
            same = val_equal(vm, a.seq->items[i], b.seq->items[i]);
        vm_leave(vm);
        return same;
    }
    case VAL_DICT: {
        vm_enter(vm);
        bool same = dict_equal(vm, a.dict, b.dict);
        vm_leave(vm);
        return same;
    }
    case VAL_RANGE:
        return a.range->n == b.range->n &&
               (!a.range->n ||
                (a.range->start == b.range->start && (a.range->n == 1 || a.range->step == b.range->step)));
    default:
        return a.seq == b.seq; /* identity */
    }
}

int val_compare(struct vm *vm, struct value a, struct value b, const char *op)
{
    vm_charge(vm, 1);
    if (a.type == VAL_UNDEFINED)
        val_fail_undefined(vm, a);
    if (b.type == VAL_UNDEFINED)
        val_fail_undefined(vm, b);
    if (val_is_number(a) && val_is_number(b)) {
        bool unordered = false;
        int c = compare_numbers(a, b, &unordered);
        if (unordered) /* every comparison with NaN is false */
            return op[0] == '<' ? 1 : -1;
        return c;
    }
    if (a.type == VAL_STR && b.type == VAL_STR) {
        vm_charge_bytes(vm, a.str->len < b.str->len ? a.str->len : b.str->len);
        return jstr_cmp(a.str, b.str);
    }
    if (val_is_seq(a) && a.type == b.type) {
        size_t n = a.seq->n < b.seq->n ? a.seq->n : b.seq->n;
        for (size_t i = 0; i < n; i++)
            if (!val_equal(vm, a.seq->items[i], b.seq->items[i])) {
                vm_enter(vm);
                int c = val_compare(vm, a.seq->items[i], b.seq->items[i], op);
                vm_leave(vm);
                return c;
            }
        return a.seq->n < b.seq->n ? -1 : a.seq->n > b.seq->n;
    }
    vm_fail(vm, "'%s' not supported between instances of '%s' and '%s'", op, val_type_name(a),
            val_type_name(b));
}

size_t val_length(struct vm *vm, struct value v)
{
    switch (v.type) {
    case VAL_UNDEFINED:
        return 0;
    case VAL_STR:
        return jstr_chars(vm, v.str);
    case VAL_BYTES:
        return v.str->len;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_VIEW:
        return v.seq->n;
    case VAL_DICT:
        return v.dict->n;
    case VAL_RANGE:
        return v.range->n;
    case VAL_LOOP:
        return v.loop->n;
    default:
        vm_fail(vm, "object of type '%s' has no len()", val_type_name(v));
    }
}

bool val_is_iterable(struct value v)
{
    switch (v.type) {
    case VAL_UNDEFINED:
    case VAL_STR:
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_VIEW:
    case VAL_DICT:
    case VAL_RANGE:
    case VAL_ITER:
        return true;
    default:
        return false;
    }
}

static const struct value *characters(struct vm *vm, const struct jstr *s, size_t *n)
{
    *n = jstr_chars(vm, s);
    vm_charge(vm, *n);
    struct value *items = vm_alloc(vm, *n, sizeof *items);
    size_t at = 0;
    unsigned cp;
    for (size_t i = 0; i < *n; i++) {
        size_t len = (size_t)char_at(s->bytes + at, s->len - at, &cp);
        items[i] = val_str(jstr_mark(vm, jstr_sub(vm, s, at, len), false));
        at += len;
    }
    return items;
}

const struct value *val_items(struct vm *vm, struct value v, size_t *n)
{
    *n = 0;
    switch (v.type) {
    case VAL_UNDEFINED:
        return NULL;
    case VAL_STR:
        return characters(vm, v.str, n);
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_VIEW:
        *n = v.seq->n;
        return v.seq->items;
    case VAL_DICT: {
        struct value *keys = vm_alloc(vm, v.dict->n, sizeof *keys);
        vm_charge(vm, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++)
            keys[i] = v.dict->entries[i].key;
        *n = v.dict->n;
        return keys;
    }
    case VAL_RANGE: {
        struct value *items = vm_alloc(vm, v.range->n, sizeof *items);
        vm_charge(vm, v.range->n);
        for (size_t i = 0; i < v.range->n; i++)
            items[i] = val_int(v.range->start + (wide_int)i * v.range->step);
        *n = v.range->n;
        return items;
    }
    case VAL_ITER: {
        struct iter *it = v.iter;
        const struct value *rest = it->items + it->pos;
        *n = it->n - it->pos;
        it->pos = it->n;
        return rest;
    }
    default:
        vm_fail(vm, "'%s' object is not iterable", val_type_name(v));
    }
}

bool val_contains(struct vm *vm, struct value container, struct value item)
{
    switch (container.type) {
    case VAL_STR:
        if (item.type != VAL_STR)
            vm_fail(vm, "'in <string>' requires string as left operand, not %s", val_type_name(item));
        return jstr_find(vm, container.str, item.str, 0) != SIZE_MAX;
    case VAL_DICT:
        return dict_get(vm, container.dict, item) != NULL;
    case VAL_RANGE: {
        const struct range *r = container.range;
        if (item.type == VAL_FLOAT && item.f == floor(item.f) && fabs(item.f) < 0x1p63)
            item = val_int((wide_int)item.f);
        if (!val_is_integer(item) || !r->n)
            return false;
        wide_int off;
        if (__builtin_sub_overflow(val_integer(item), r->start, &off) || off % r->step)
            return false;
        return off / r->step >= 0 && off / r->step < (wide_int)r->n;
    }
    case VAL_ITER: /* reads on until found, as Python does */
        while (container.iter->pos < container.iter->n)
            if (val_equal(vm, container.iter->items[container.iter->pos++], item))
                return true;
        return false;
    case VAL_UNDEFINED:
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_VIEW: {
        size_t n;
        const struct value *items = val_items(vm, container, &n);
        for (size_t i = 0; i < n; i++)
            if (val_equal(vm, items[i], item))
                return true;
        return false;
    }
    default:
        vm_fail(vm, "argument of type '%s' is not iterable", val_type_name(container));
    }
}

void val_sort(struct vm *vm, struct value *items, struct value *keys, size_t n, bool reverse)
{
    /* Merge sort, bottom up, over indices: stable, and nothing to free when a comparison fails. */
    uint32_t *order = vm_alloc(vm, n, sizeof *order), *merged = vm_alloc(vm, n, sizeof *merged);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t mid = begin + width < n ? begin + width : n;
            size_t end = begin + 2 * width < n ? begin + 2 * width : n;
            size_t a = begin, b = mid, out = begin;
            while (a < mid && b < end) {
                int c = reverse ? val_compare(vm, keys[order[a]], keys[order[b]], "<")
                                : val_compare(vm, keys[order[b]], keys[order[a]], "<");
                merged[out++] = c < 0 ? order[b++] : order[a++];
            }
            while (a < mid)
                merged[out++] = order[a++];
            while (b < end)
                merged[out++] = order[b++];
        }
        uint32_t *swap = order;
        order = merged;
        merged = swap;
    }
    struct value *sorted = vm_alloc(vm, n, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[i] = items[order[i]];
    if (n)
        memcpy(items, sorted, n * sizeof *items);
    for (size_t i = 0; i < n; i++)
        sorted[i] = keys[order[i]];
    if (n)
        memcpy(keys, sorted, n * sizeof *keys);
}
