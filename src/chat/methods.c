/* Methods of dicts, lists, tuples and Jinja's objects; those of strings are in str_methods.c. Methods that
 * would change a list or dict do not exist here: the sandbox forbids them (attr.c says so when they are
 * called). */
#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/str_methods.h"

static struct value view(struct vm *vm, const char *kind, const struct value *items, size_t n)
{
    struct seq *s = vm_alloc(vm, 1, sizeof *s);
    *s = (struct seq){items, n, kind};
    return (struct value){.type = VAL_VIEW, .seq = s};
}

static struct value dict_keys(struct vm *vm, struct value self, const struct value *a)
{
    (void)a;
    size_t n;
    const struct value *keys = val_items(vm, self, &n);
    return view(vm, "dict_keys", keys, n);
}

static struct value dict_values(struct vm *vm, struct value self, const struct value *a)
{
    (void)a;
    size_t n = self.dict->n;
    struct value *values = vm_alloc(vm, n, sizeof *values);
    vm_charge(vm, n);
    for (size_t i = 0; i < n; i++)
        values[i] = self.dict->entries[i].value;
    return view(vm, "dict_values", values, n);
}

const struct value *dict_pairs(struct vm *vm, const struct dict *d)
{
    struct value *pairs = vm_alloc(vm, d->n, sizeof *pairs);
    for (size_t i = 0; i < d->n; i++)
        pairs[i] = val_tuple(vm, (struct value[]){d->entries[i].key, d->entries[i].value}, 2);
    return pairs;
}

static struct value dict_items(struct vm *vm, struct value self, const struct value *a)
{
    (void)a;
    return view(vm, "dict_items", dict_pairs(vm, self.dict), self.dict->n);
}

static struct value dict_method_get(struct vm *vm, struct value self, const struct value *a)
{
    const struct value *v = dict_get(vm, self.dict, a[0]);
    if (v)
        return *v;
    return a[1].type == VAL_MISSING ? val_none() : a[1];
}

static struct value same(struct vm *vm, struct value self, const struct value *a)
{
    (void)vm;
    (void)a;
    return self; /* values do not change: a copy is the value itself */
}

static struct value seq_index(struct vm *vm, struct value self, const struct value *a)
{
    size_t n;
    const struct value *items = val_items(vm, self, &n);
    wide_int first = arg_int(vm, a[1], "start", 0), last = arg_int(vm, a[2], "stop", (wide_int)n);
    if (first < 0)
        first = first + (wide_int)n < 0 ? 0 : first + (wide_int)n;
    if (last < 0)
        last += (wide_int)n;
    for (wide_int i = first; i < last && i < (wide_int)n; i++)
        if (val_equal(vm, items[i], a[0]))
            return val_int(i);
    vm_fail(vm, "index: the value is not in the %s", val_type_name(self));
}

static struct value seq_count(struct vm *vm, struct value self, const struct value *a)
{
    size_t n, found = 0;
    const struct value *items = val_items(vm, self, &n);
    for (size_t i = 0; i < n; i++)
        found += val_equal(vm, items[i], a[0]);
    return val_int((wide_int)found);
}

static struct value loop_cycle(struct vm *vm, struct value self, const struct args *args)
{
    if (!args->n || args->n_named)
        vm_fail(vm, "loop.cycle needs the items to cycle through");
    return args->positional[self.loop->index0 % args->n];
}

static struct value loop_changed(struct vm *vm, struct value self, const struct args *args)
{
    struct value now = val_tuple(vm, args->positional, args->n);
    struct loop *l = self.loop;
    if (l->changed.type != VAL_MISSING && val_equal(vm, l->changed, now))
        return val_bool(false);
    l->changed = now;
    return val_bool(true);
}

static struct value cycler_next(struct vm *vm, struct value self, const struct value *a)
{
    (void)vm;
    (void)a;
    struct cycler *c = self.cycler;
    struct value v = c->items[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return v;
}

static struct value cycler_reset(struct vm *vm, struct value self, const struct value *a)
{
    (void)vm;
    (void)a;
    self.cycler->pos = 0;
    return val_none();
}

static struct value float_is_integer(struct vm *vm, struct value self, const struct value *a)
{
    (void)vm;
    (void)a;
    return val_bool(self.f == (double)(int64_t)(self.f > -9e18 && self.f < 9e18 ? self.f : 0));
}

static const struct builtin of_dict[] = {
    {.name = "get", .call = dict_method_get, .n_required = 1, .params = {"key", "default"}},
    {.name = "items", .call = dict_items},
    {.name = "keys", .call = dict_keys},
    {.name = "values", .call = dict_values},
    {.name = "copy", .call = same},
    {0},
};
static const struct builtin of_list[] = {
    {.name = "index", .call = seq_index, .n_required = 1, .params = {"value", "start", "stop"}},
    {.name = "count", .call = seq_count, .n_required = 1, .params = {"value"}},
    {.name = "copy", .call = same},
    {0},
};
static const struct builtin of_tuple[] = {
    {.name = "index", .call = seq_index, .n_required = 1, .params = {"value", "start", "stop"}},
    {.name = "count", .call = seq_count, .n_required = 1, .params = {"value"}},
    {0},
};
static const struct builtin of_loop[] = {
    {.name = "cycle", .call_raw = loop_cycle},
    {.name = "changed", .call_raw = loop_changed},
    {0},
};
static const struct builtin of_cycler[] = {
    {.name = "next", .call = cycler_next},
    {.name = "reset", .call = cycler_reset},
    {0},
};
static const struct builtin of_float[] = {
    {.name = "is_integer", .call = float_is_integer},
    {0},
};

const struct builtin *find_method(struct value v, const struct jstr *name)
{
    const struct builtin *table;
    switch (v.type) {
    case VAL_STR:
        table = str_methods;
        break;
    case VAL_DICT:
        table = of_dict;
        break;
    case VAL_LIST:
        table = of_list;
        break;
    case VAL_TUPLE:
    case VAL_RANGE:
        table = of_tuple;
        break;
    case VAL_LOOP:
        table = of_loop;
        break;
    case VAL_CYCLER:
        table = of_cycler;
        break;
    case VAL_FLOAT:
        table = of_float;
        break;
    default:
        return NULL;
    }
    return builtin_find(table, name->bytes, name->len);
}
