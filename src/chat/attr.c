/* Attributes, subscripts and slices. Jinja's sandbox tries for obj.name the attribute, then the item; for
 * obj[x] the item, then the attribute; what is neither is Undefined. Attributes that would change an object,
 * and Python's __internals__, are Undefined too and fail when called. */
#include <string.h>

#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/print.h"

static struct value unsafe(struct vm *vm, struct value obj, const struct jstr *name)
{
    size_t start = vm->text_len;
    vm_puts(vm, "access to attribute '");
    vm_put_sub(vm, name, 0, name->len > 100 ? 0 : name->len);
    vm_puts(vm, "' of '");
    vm_puts(vm, val_type_name(obj));
    vm_puts(vm, "' object is unsafe: the sandbox allows no changes of objects");
    vm_put(vm, "", 1, false);
    return val_undefined(vm, vm_take(vm, start)->bytes, NULL, val_none());
}

static bool is_unsafe(struct value obj, const struct jstr *name)
{
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = obj.type == VAL_LIST ? of_list : obj.type == VAL_DICT ? of_dict : NULL;
    for (; names && *names; names++)
        if (jstr_is(name, *names))
            return true;
    return false;
}

static struct value loop_attr(struct vm *vm, struct loop *l, const struct jstr *name)
{
    size_t i = l->index0;
    if (jstr_is(name, "index"))
        return val_int((wide_int)i + 1);
    if (jstr_is(name, "index0"))
        return val_int((wide_int)i);
    if (jstr_is(name, "first"))
        return val_bool(i == 0);
    if (jstr_is(name, "last"))
        return val_bool(i + 1 == l->n);
    if (jstr_is(name, "length"))
        return val_int((wide_int)l->n);
    if (jstr_is(name, "revindex"))
        return val_int((wide_int)(l->n - i));
    if (jstr_is(name, "revindex0"))
        return val_int((wide_int)(l->n - i) - 1);
    if (jstr_is(name, "depth"))
        return val_int(l->depth0 + 1);
    if (jstr_is(name, "depth0"))
        return val_int(l->depth0);
    if (jstr_is(name, "previtem"))
        return i ? l->items[i - 1] : val_undefined(vm, "there is no previous item", NULL, val_none());
    if (jstr_is(name, "nextitem"))
        return i + 1 < l->n ? l->items[i + 1] : val_undefined(vm, "there is no next item", NULL, val_none());
    return val_missing();
}

static struct value macro_attr(struct vm *vm, const struct macro *m, const struct jstr *name)
{
    const struct node *def = m->def;
    if (jstr_is(name, "name"))
        return val_str(def->macro.name_text);
    if (jstr_is(name, "arguments")) {
        size_t n = (size_t)def->macro.n_params;
        struct value *items = vm_alloc(vm, n, sizeof *items);
        for (size_t i = 0; i < n; i++)
            items[i] = val_str(vm->program->names[def->macro.params[i]]);
        return val_tuple(vm, items, n);
    }
    if (jstr_is(name, "caller"))
        return val_bool(def->macro.uses_caller);
    if (jstr_is(name, "catch_kwargs"))
        return val_bool(def->macro.uses_kwargs);
    if (jstr_is(name, "catch_varargs"))
        return val_bool(def->macro.uses_varargs);
    return val_missing();
}

/* What Python's getattr gives, or MISSING. */
static struct value attribute(struct vm *vm, struct value obj, const struct jstr *name)
{
    struct value v = val_missing();
    const struct value *found;
    switch (obj.type) {
    case VAL_NAMESPACE:
        found = dict_get_str(vm, obj.ns, name);
        return found ? *found : v;
    case VAL_LOOP:
        v = loop_attr(vm, obj.loop, name);
        break;
    case VAL_MACRO:
        v = macro_attr(vm, obj.macro, name);
        break;
    case VAL_TUPLE:
        if (obj.seq->kind && jstr_is(name, "grouper"))
            return obj.seq->items[0];
        if (obj.seq->kind && jstr_is(name, "list"))
            return obj.seq->items[1];
        break;
    case VAL_RANGE:
        if (jstr_is(name, "start"))
            return val_int(obj.range->start);
        if (jstr_is(name, "stop"))
            return val_int(obj.range->stop);
        if (jstr_is(name, "step"))
            return val_int(obj.range->step);
        break;
    case VAL_CYCLER:
        if (jstr_is(name, "current"))
            return obj.cycler->items[obj.cycler->pos];
        break;
    default:
        break;
    }
    if (v.type != VAL_MISSING)
        return v;
    const struct builtin *def = find_method(obj, name);
    if (def) {
        struct bound_method *m = vm_alloc(vm, 1, sizeof *m);
        *m = (struct bound_method){obj, def};
        return (struct value){.type = VAL_METHOD, .method = m};
    }
    if (is_unsafe(obj, name))
        return unsafe(vm, obj, name);
    return v;
}

static struct value nothing(struct vm *vm, struct value obj, struct value name)
{
    const char *type = val_type_name(obj);
    return val_undefined(vm, NULL, obj.type == VAL_NONE ? "None" : type, name);
}

/* Item `index` of n, counted from the end if negative: its position, or SIZE_MAX if there is none. */
static size_t position(wide_int index, size_t n)
{
    if (index < 0)
        index += (wide_int)n;
    return index >= 0 && index < (wide_int)n ? (size_t)index : SIZE_MAX;
}

/* What Python's obj[index] gives, or MISSING where it would raise. */
static struct value item(struct vm *vm, struct value obj, struct value index)
{
    size_t at;
    if (obj.type == VAL_DICT) {
        if (!val_hashable(index))
            return val_missing();
        const struct value *found = dict_get(vm, obj.dict, index);
        return found ? *found : val_missing();
    }
    if (!val_is_integer(index))
        return val_missing();
    wide_int i = val_integer(index);
    switch (obj.type) {
    case VAL_STR: {
        at = position(i, jstr_chars(vm, obj.str));
        if (at == SIZE_MAX)
            break;
        size_t offset = jstr_offset(vm, obj.str, at);
        unsigned cp;
        int len = char_at(obj.str->bytes + offset, obj.str->len - offset, &cp);
        return val_str(jstr_sub(vm, obj.str, offset, (size_t)len));
    }
    case VAL_LIST:
    case VAL_TUPLE:
        at = position(i, obj.seq->n);
        if (at != SIZE_MAX)
            return obj.seq->items[at];
        break;
    case VAL_RANGE:
        at = position(i, obj.range->n);
        if (at != SIZE_MAX)
            return val_int(obj.range->start + (wide_int)at * obj.range->step);
        break;
    default:
        break;
    }
    return val_missing();
}

struct value get_attr(struct vm *vm, struct value obj, const struct jstr *name)
{
    if (obj.type == VAL_UNDEFINED)
        val_fail_undefined(vm, obj);
    struct value v = attribute(vm, obj, name);
    if (v.type == VAL_MISSING)
        v = item(vm, obj, val_str(name));
    return v.type == VAL_MISSING ? nothing(vm, obj, val_str(name)) : v;
}

struct value get_item(struct vm *vm, struct value obj, struct value index)
{
    if (obj.type == VAL_UNDEFINED)
        val_fail_undefined(vm, obj);
    struct value v = item(vm, obj, index);
    if (v.type == VAL_MISSING && index.type == VAL_STR)
        v = attribute(vm, obj, index.str);
    return v.type == VAL_MISSING ? nothing(vm, obj, index) : v;
}

/* --- slices ------------------------------------------------------------------------------------------------
 */

static wide_int bound(struct vm *vm, struct value v, wide_int n, wide_int low, wide_int high,
                      wide_int missing)
{
    if (v.type == VAL_NONE)
        return missing;
    if (!val_is_integer(v))
        vm_fail(vm, "slice indices must be integers or None, not %s", val_type_name(v));
    wide_int i = val_integer(v);
    if (i < 0 && i >= -n)
        i += n;
    else if (i < 0)
        i = low;
    return i < low ? low : i > high ? high : i;
}

/* Every step-th character of s from character `start` on, count of them. */
static struct value slice_str(struct vm *vm, const struct jstr *s, wide_int start, wide_int step,
                              size_t count)
{
    if (step == 1) {
        size_t begin = jstr_offset(vm, s, (size_t)start);
        size_t end = jstr_offset(vm, s, (size_t)start + count);
        return val_str(jstr_sub(vm, s, begin, end - begin));
    }
    /* Other steps are rare (reversing): the offsets of all characters are laid out first. */
    size_t chars = jstr_chars(vm, s), text = vm->text_len;
    size_t *offsets = vm_alloc(vm, chars + 1, sizeof *offsets);
    unsigned cp;
    vm_charge(vm, chars);
    offsets[0] = 0;
    for (size_t i = 0; i < chars; i++)
        offsets[i + 1] = offsets[i] + (size_t)char_at(s->bytes + offsets[i], s->len - offsets[i], &cp);
    for (size_t i = 0; i < count; i++) {
        size_t at = (size_t)(start + (wide_int)i * step);
        vm_put_sub(vm, s, offsets[at], offsets[at + 1] - offsets[at]);
    }
    return val_str(jstr_mark(vm, vm_take(vm, text), s->markup));
}

struct value get_slice(struct vm *vm, struct value obj, struct value start, struct value stop,
                       struct value step)
{
    if (obj.type == VAL_UNDEFINED)
        val_fail_undefined(vm, obj);
    if (obj.type != VAL_STR && !val_is_seq(obj) && obj.type != VAL_RANGE)
        vm_fail(vm, "'%s' object cannot be sliced", val_type_name(obj));
    wide_int n = (wide_int)val_length(vm, obj);
    wide_int by = step.type == VAL_NONE ? 1 : arg_int(vm, step, "step", 1);
    if (!by)
        vm_fail(vm, "slice step cannot be zero");
    wide_int low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    wide_int first = bound(vm, start, n, low, high, by < 0 ? high : low);
    wide_int last = bound(vm, stop, n, low, high, by < 0 ? low : high);
    if (by > n + 1) /* then one item at most; kept small so that nothing overflows */
        by = n + 1;
    if (by < -n - 1)
        by = -n - 1;
    size_t count = 0;
    if (by > 0 && last > first)
        count = (size_t)((last - first - 1) / by + 1);
    else if (by < 0 && first > last)
        count = (size_t)((first - last - 1) / -by + 1);
    if (obj.type == VAL_STR)
        return slice_str(vm, obj.str, first, by, count);
    if (obj.type == VAL_RANGE) {
        struct range *r = vm_alloc(vm, 1, sizeof *r);
        const struct range *of = obj.range;
        *r = (struct range){.start = of->start + first * of->step,
                            .stop = of->start + last * of->step,
                            .step = of->step * by,
                            .n = count};
        return (struct value){.type = VAL_RANGE, .range = r};
    }
    struct value v = obj;
    if (by == 1) {
        struct seq *s = vm_alloc(vm, 1, sizeof *s); /* shares the items */
        *s = (struct seq){.items = obj.seq->items + first, .n = count};
        v.seq = s;
        return v;
    }
    struct value *items = vm_alloc(vm, count, sizeof *items);
    vm_charge(vm, count);
    for (size_t i = 0; i < count; i++)
        items[i] = obj.seq->items[(size_t)(first + (wide_int)i * by)];
    v = val_list_of(vm, items, count);
    v.type = obj.type;
    return v;
}
