/* Filters on sequences. Those that are generators in Jinja (map, select, unique …) return an iterator whose
 * items are already computed: the order of errors apart, nobody can tell. */
#include <string.h>

#include "chat/eval.h"
#include "chat/filters.h"
#include "chat/jstr.h"
#include "chat/print.h"
#include "chat/str_methods.h"

/* --- attribute paths
 * ------------------------------------------------------------------------------------------ */

/* A path such as "user.name" or "0.id", to be looked up item by item. */
struct getter {
    const struct value *parts; /* [n] */
    size_t n;
    struct value missing; /* what an undefined step becomes; MISSING: stays undefined */
    bool fold;            /* strings in lower case */
};

static struct getter getter_of_text(struct vm *vm, const struct jstr *path)
{
    size_t n = 1, at = 0;
    vm_charge_chars(vm, path->len);
    for (size_t i = 0; i < path->len; i++)
        n += path->bytes[i] == '.';
    struct value *parts = vm_alloc(vm, n, sizeof *parts);
    for (size_t i = 0; i < n; i++) {
        size_t end = at;
        bool number = true;
        wide_int index = 0;
        for (; end < path->len && path->bytes[end] != '.'; end++) {
            number = number && path->bytes[end] >= '0' && path->bytes[end] <= '9' && end - at < 18;
            if (number)
                index = index * 10 + path->bytes[end] - '0';
        }
        parts[i] = number && end > at ? val_int(index) : val_str(jstr_sub(vm, path, at, end - at));
        at = end + 1;
    }
    return (struct getter){.parts = parts, .n = n, .missing = val_missing()};
}

static struct getter getter_of(struct vm *vm, struct value attribute)
{
    if (attribute.type == VAL_STR)
        return getter_of_text(vm, attribute.str);
    struct getter g = {.missing = val_missing()};
    if (attribute.type != VAL_MISSING && attribute.type != VAL_NONE) {
        struct value *part = vm_alloc(vm, 1, sizeof *part);
        *part = attribute;
        g.parts = part;
        g.n = 1;
    }
    return g;
}

static struct value get_path(struct vm *vm, const struct getter *g, struct value v)
{
    vm_charge(vm, g->n + 1);
    for (size_t i = 0; i < g->n; i++) {
        v = get_item(vm, v, g->parts[i]);
        if (v.type == VAL_UNDEFINED && g->missing.type != VAL_MISSING && g->missing.type != VAL_NONE)
            v = g->missing;
    }
    if (g->fold && v.type == VAL_STR)
        v = val_str(str_lower(vm, v.str));
    return v;
}

/* --- whole to part
 * ---------------------------------------------------------------------------------------------- */

FILTER(filter_first)
{
    (void)a;
    size_t n;
    if (self.type == VAL_ITER) { /* takes one item and leaves the others */
        struct iter *it = self.iter;
        if (it->pos < it->n)
            return it->items[it->pos++];
    } else if (self.type == VAL_STR && self.str->len) {
        return val_str(jstr_mark(vm, get_item(vm, self, val_int(0)).str, false));
    } else {
        const struct value *items = val_items(vm, self, &n);
        if (n)
            return items[0];
    }
    return val_undefined(vm, "there is no first item: the sequence is empty", NULL, val_none());
}

FILTER(filter_last)
{
    (void)a;
    size_t n;
    if (self.type == VAL_ITER)
        vm_fail(vm, "last: a generator has no last item; use `| list | last`");
    if (self.type == VAL_STR && self.str->len)
        return val_str(jstr_mark(vm, get_item(vm, self, val_int(-1)).str, false));
    const struct value *items = val_items(vm, self, &n);
    if (n)
        return items[n - 1];
    return val_undefined(vm, "there is no last item: the sequence is empty", NULL, val_none());
}

static struct value extreme(struct vm *vm, struct value self, const struct value *a, bool largest)
{
    size_t n;
    struct getter g = getter_of(vm, a[1]);
    g.fold = !arg_bool(a[0], false);
    const struct value *items = val_items(vm, self, &n);
    if (!n)
        return val_undefined(vm, "there is no smallest or largest item: the sequence is empty", NULL,
                             val_none());
    struct value best = items[0], best_key = get_path(vm, &g, best);
    for (size_t i = 1; i < n; i++) {
        struct value key = get_path(vm, &g, items[i]);
        int c = largest ? val_compare(vm, key, best_key, ">") : -val_compare(vm, key, best_key, "<");
        if (c > 0) {
            best = items[i];
            best_key = key;
        }
    }
    return best;
}

FILTER(filter_max)
{
    return extreme(vm, self, a, true);
}

FILTER(filter_min)
{
    return extreme(vm, self, a, false);
}

FILTER(filter_sum)
{
    size_t n;
    struct getter g = getter_of(vm, a[0]);
    struct value total = a[1].type == VAL_MISSING ? val_int(0) : a[1];
    const struct value *items = val_items(vm, self, &n);
    if (total.type == VAL_STR)
        vm_fail(vm, "sum cannot add up strings: use join");
    for (size_t i = 0; i < n; i++)
        total = binary_op(vm, OP_ADD, total, get_path(vm, &g, items[i]));
    return total;
}

FILTER(filter_join)
{
    size_t n, start = vm->text_len;
    struct getter g = getter_of(vm, a[1]);
    const struct value *items = val_items(vm, self, &n);
    const struct jstr *sep = a[0].type == VAL_MISSING ? jstr_c(vm, "") : val_to_str(vm, a[0]);
    for (size_t i = 0; i < n; i++) {
        if (i)
            vm_put_jstr(vm, sep);
        vm_put_str(vm, get_path(vm, &g, items[i]));
    }
    return vm_take_value(vm, start);
}

/* --- whole to whole
 * ----------------------------------------------------------------------------------------------- */

FILTER(filter_list)
{
    (void)a;
    size_t n;
    const struct value *items = val_items(vm, self, &n);
    return val_list_of(vm, items, n);
}

FILTER(filter_items)
{
    (void)a;
    if (self.type == VAL_UNDEFINED)
        return val_iter_of(vm, NULL, 0);
    if (self.type != VAL_DICT)
        vm_fail(vm, "items: only a mapping has items, not %s", val_type_name(self));
    return val_iter_of(vm, dict_pairs(vm, self.dict), self.dict->n);
}

FILTER(filter_reverse)
{
    (void)a;
    if (self.type == VAL_STR)
        return get_slice(vm, self, val_none(), val_none(), val_int(-1));
    size_t n;
    const struct value *items = val_items(vm, self, &n);
    struct value *reversed = vm_alloc(vm, n, sizeof *reversed);
    vm_charge(vm, n);
    for (size_t i = 0; i < n; i++)
        reversed[i] = items[n - 1 - i];
    return self.type == VAL_ITER ? val_list_of(vm, reversed, n) : val_iter_of(vm, reversed, n);
}

/* A copy of the items, to be sorted. */
static struct value *own_items(struct vm *vm, struct value v, size_t *n)
{
    const struct value *items = val_items(vm, v, n);
    struct value *own = vm_alloc(vm, *n, sizeof *own);
    vm_charge(vm, *n);
    if (*n)
        memcpy(own, items, *n * sizeof *own);
    return own;
}

FILTER(filter_sort)
{
    size_t n, n_paths = 0;
    struct value *items = own_items(vm, self, &n), *keys = vm_alloc(vm, n, sizeof *keys);
    bool fold = !arg_bool(a[1], false);
    struct getter *paths;
    if (a[2].type == VAL_STR) { /* several attributes, after one another: "age,name" */
        size_t at = 0, count = 1;
        for (size_t i = 0; i < a[2].str->len; i++)
            count += a[2].str->bytes[i] == ',';
        paths = vm_alloc(vm, count, sizeof *paths);
        while (at <= a[2].str->len) {
            size_t end = at;
            while (end < a[2].str->len && a[2].str->bytes[end] != ',')
                end++;
            paths[n_paths++] = getter_of_text(vm, jstr_sub(vm, a[2].str, at, end - at));
            at = end + 1;
        }
    } else {
        paths = vm_alloc(vm, 1, sizeof *paths);
        paths[n_paths++] = getter_of(vm, a[2]);
    }
    for (size_t k = 0; k < n_paths; k++)
        paths[k].fold = fold;
    for (size_t i = 0; i < n; i++) {
        struct value *parts = vm_alloc(vm, n_paths, sizeof *parts);
        for (size_t k = 0; k < n_paths; k++)
            parts[k] = get_path(vm, &paths[k], items[i]);
        keys[i] = n_paths == 1 ? parts[0] : val_list_of(vm, parts, n_paths);
    }
    val_sort(vm, items, keys, n, arg_bool(a[0], false));
    return val_list_of(vm, items, n);
}

FILTER(filter_dictsort)
{
    const struct jstr *by = arg_str(vm, a[1], "by", "key");
    if (self.type != VAL_DICT)
        vm_fail(vm, "dictsort: a dict is needed, not %s", val_type_name(self));
    if (!jstr_is(by, "key") && !jstr_is(by, "value"))
        vm_fail(vm, "dictsort: by must be 'key' or 'value'");
    size_t n = self.dict->n;
    struct value *pairs = vm_alloc(vm, n, sizeof *pairs), *keys = vm_alloc(vm, n, sizeof *keys);
    if (n)
        memcpy(pairs, dict_pairs(vm, self.dict), n * sizeof *pairs);
    for (size_t i = 0; i < n; i++) {
        keys[i] = jstr_is(by, "key") ? self.dict->entries[i].key : self.dict->entries[i].value;
        if (keys[i].type == VAL_STR && !arg_bool(a[0], false))
            keys[i] = val_str(str_lower(vm, keys[i].str));
    }
    val_sort(vm, pairs, keys, n, arg_bool(a[2], false));
    return val_list_of(vm, pairs, n);
}

FILTER(filter_unique)
{
    size_t n, kept = 0;
    struct getter g = getter_of(vm, a[1]);
    g.fold = !arg_bool(a[0], false);
    const struct value *items = val_items(vm, self, &n);
    struct value *unique = vm_alloc(vm, n, sizeof *unique);
    struct dict *seen = dict_new(vm, 8);
    for (size_t i = 0; i < n; i++) {
        struct value key = get_path(vm, &g, items[i]);
        if (dict_get(vm, seen, key))
            continue;
        dict_set(vm, seen, key, val_none());
        unique[kept++] = items[i];
    }
    return val_iter_of(vm, unique, kept);
}

FILTER(filter_groupby)
{
    size_t n, n_groups = 0;
    struct getter g = getter_of(vm, a[0]);
    g.missing = a[1];
    g.fold = !arg_bool(a[2], false);
    struct value *items = own_items(vm, self, &n), *keys = vm_alloc(vm, n, sizeof *keys);
    struct value *groups = vm_alloc(vm, n, sizeof *groups);
    for (size_t i = 0; i < n; i++)
        keys[i] = get_path(vm, &g, items[i]);
    val_sort(vm, items, keys, n, false);
    g.fold = false; /* a group is named by its first item's own spelling */
    for (size_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && val_equal(vm, keys[begin], keys[end]);)
            end++;
        struct value *pair = vm_alloc(vm, 2, sizeof *pair);
        pair[0] = get_path(vm, &g, items[begin]);
        pair[1] = val_list_of(vm, items + begin, end - begin);
        struct seq *s = vm_alloc(vm, 1, sizeof *s);
        *s = (struct seq){pair, 2, "group"};
        groups[n_groups++] = (struct value){.type = VAL_TUPLE, .seq = s};
    }
    return val_list_of(vm, groups, n_groups);
}

FILTER(filter_batch)
{
    size_t n, n_rows = 0;
    wide_int per_row = arg_int(vm, a[0], "linecount", 1);
    if (per_row < 1)
        vm_fail(vm, "batch: linecount must be at least 1");
    const struct value *items = val_items(vm, self, &n);
    size_t row = per_row > (wide_int)n ? n : (size_t)per_row;
    struct value *rows = vm_alloc(vm, row ? n / row + 1 : 1, sizeof *rows);
    bool fill = a[1].type != VAL_MISSING && a[1].type != VAL_NONE;
    for (size_t at = 0; at < n; at += row) {
        size_t here = n - at < row ? n - at : row;
        size_t padded = fill && (wide_int)here < per_row ? here + (size_t)(per_row - (wide_int)here) : here;
        if (fill && per_row > (1 << 20))
            vm_fail(vm, "batch: linecount is too large to fill up");
        struct value *part = vm_alloc(vm, padded, sizeof *part);
        vm_charge(vm, padded);
        memcpy(part, items + at, here * sizeof *part);
        for (size_t i = here; i < padded; i++)
            part[i] = a[1];
        rows[n_rows++] = val_list_of(vm, part, padded);
    }
    return val_iter_of(vm, rows, n_rows);
}

FILTER(filter_slice)
{
    size_t n, at = 0;
    wide_int slices = arg_int(vm, a[0], "slices", 1);
    if (slices < 1 || slices > (1 << 20))
        vm_fail(vm, "slice: the number of slices must be between 1 and %d", 1 << 20);
    const struct value *items = val_items(vm, self, &n);
    size_t count = (size_t)slices, base = n / count, extra = n % count;
    struct value *columns = vm_alloc(vm, count, sizeof *columns);
    bool fill = a[1].type != VAL_MISSING && a[1].type != VAL_NONE;
    for (size_t c = 0; c < count; c++) {
        size_t here = base + (c < extra), padded = here + (fill && c >= extra);
        struct value *part = vm_alloc(vm, padded, sizeof *part);
        vm_charge(vm, padded + 1);
        if (here)
            memcpy(part, items + at, here * sizeof *part);
        if (padded > here)
            part[here] = a[1];
        at += here;
        columns[c] = val_list_of(vm, part, padded);
    }
    return val_iter_of(vm, columns, count);
}

/* --- with a filter or a test for each item
 * ------------------------------------------------------------------------- */

FILTER_RAW(filter_map)
{
    size_t n;
    if (!val_truthy(self)) /* whatever it is */
        return val_iter_of(vm, NULL, 0);
    const struct value *items = val_items(vm, self, &n);
    struct value *mapped = vm_alloc(vm, n, sizeof *mapped);
    if (!args->n) {
        static const char *const params[] = {"attribute", "default"};
        struct value a[2];
        args_bind(vm, "map", args, 1, 2, params, a);
        struct getter g = getter_of(vm, a[0]);
        g.missing = a[1];
        for (size_t i = 0; i < n; i++)
            mapped[i] = get_path(vm, &g, items[i]);
        return val_iter_of(vm, mapped, n);
    }
    const struct jstr *name = arg_str(vm, args->positional[0], "filter", NULL);
    const struct builtin *filter = find_filter(name->bytes, name->len);
    if (!filter)
        vm_fail(vm, "map: there is no filter named '%.*s'", (int)(name->len > 100 ? 100 : name->len),
                name->bytes);
    struct args rest = *args;
    rest.positional++;
    rest.n--;
    for (size_t i = 0; i < n; i++) {
        vm_charge(vm, 1);
        mapped[i] = builtin_call(vm, filter, items[i], &rest);
    }
    return val_iter_of(vm, mapped, n);
}

/* The items (by an attribute of theirs, if by_attr) for which the test named in args answers `wanted`. */
static struct value choose(struct vm *vm, struct value self, const struct args *args, bool by_attr,
                           bool wanted)
{
    size_t n, kept = 0;
    if (!val_truthy(self))
        return val_iter_of(vm, NULL, 0);
    const struct value *items = val_items(vm, self, &n);
    struct value *chosen = vm_alloc(vm, n, sizeof *chosen);
    struct args rest = *args;
    struct getter g = {.missing = val_missing()};
    const struct builtin *test = NULL;
    if (by_attr) {
        if (!rest.n)
            vm_fail(vm, "the name of the attribute is missing");
        g = getter_of(vm, *rest.positional++);
        rest.n--;
    }
    if (rest.n) {
        const struct jstr *name = arg_str(vm, *rest.positional++, "test", NULL);
        rest.n--;
        test = find_test(name->bytes, name->len);
        if (!test)
            vm_fail(vm, "there is no test named '%.*s'", (int)(name->len > 100 ? 100 : name->len),
                    name->bytes);
    }
    for (size_t i = 0; i < n; i++) {
        struct value v = get_path(vm, &g, items[i]);
        if (val_truthy(test ? builtin_call(vm, test, v, &rest) : v) == wanted)
            chosen[kept++] = items[i];
    }
    return val_iter_of(vm, chosen, kept);
}

FILTER_RAW(filter_select)
{
    return choose(vm, self, args, false, true);
}

FILTER_RAW(filter_reject)
{
    return choose(vm, self, args, false, false);
}

FILTER_RAW(filter_selectattr)
{
    return choose(vm, self, args, true, true);
}

FILTER_RAW(filter_rejectattr)
{
    return choose(vm, self, args, true, false);
}
