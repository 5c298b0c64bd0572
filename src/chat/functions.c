/* The global functions of a chat template: Jinja's own, and the two that transformers adds. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "chat/call.h"
#include "chat/jstr.h"
#include "chat/limits.h"
#include "chat/print.h"

static struct value fn_range(struct vm *vm, const struct args *args)
{
    static const char *const params[] = {"start", "stop", "step"};
    struct value a[3];
    args_bind(vm, "range", args, 1, 3, params, a);
    bool one = a[1].type == VAL_MISSING;
    wide_int start = one ? 0 : arg_int(vm, a[0], "start", 0);
    wide_int stop = one ? arg_int(vm, a[0], "stop", 0) : arg_int(vm, a[1], "stop", 0);
    wide_int step = arg_int(vm, a[2], "step", 1);
    const wide_int most = (wide_int)1 << 62;
    if (!step)
        vm_fail(vm, "range() step must not be zero");
    if (start > most || start < -most || stop > most || stop < -most || step > most || step < -most)
        vm_fail(vm, "range() got a number that is too large");
    wide_int n = 0;
    if (step > 0 && stop > start)
        n = (stop - start - 1) / step + 1;
    else if (step < 0 && start > stop)
        n = (start - stop - 1) / -step + 1;
    if (n > JINJA_MAX_RANGE)
        vm_fail(vm, "range() of more than %d items", JINJA_MAX_RANGE);
    struct range *r = vm_alloc(vm, 1, sizeof *r);
    *r = (struct range){.start = start, .stop = stop, .step = step, .n = (size_t)n};
    return (struct value){.type = VAL_RANGE, .range = r};
}

/* dict(mapping or pairs, **named), also for namespace(). */
static struct dict *make_dict(struct vm *vm, const char *callee, const struct args *args)
{
    if (args->n > 1)
        vm_fail(vm, "%s takes at most one positional argument", callee);
    struct dict *d = dict_new(vm, args->n_named + 4);
    struct value from = args->n ? args->positional[0] : val_missing();
    if (from.type == VAL_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            dict_set(vm, d, from.dict->entries[i].key, from.dict->entries[i].value);
    } else if (from.type != VAL_MISSING) {
        size_t n, n_pair;
        const struct value *pairs = val_items(vm, from, &n);
        for (size_t i = 0; i < n; i++) {
            const struct value *pair = val_items(vm, pairs[i], &n_pair);
            if (n_pair != 2)
                vm_fail(vm, "%s: item %zu has %zu parts, a key and a value are expected", callee, i, n_pair);
            dict_set(vm, d, pair[0], pair[1]);
        }
    }
    for (size_t i = 0; i < args->n_named; i++)
        dict_set(vm, d, val_str(args->names[i]), args->named[i]);
    return d;
}

static struct value fn_dict(struct vm *vm, const struct args *args)
{
    return val_dict(make_dict(vm, "dict", args));
}

static struct value fn_namespace(struct vm *vm, const struct args *args)
{
    return (struct value){.type = VAL_NAMESPACE, .ns = make_dict(vm, "namespace", args)};
}

static struct value fn_cycler(struct vm *vm, const struct args *args)
{
    if (!args->n || args->n_named)
        vm_fail(vm, "cycler needs at least one item, and no named ones");
    struct cycler *c = vm_alloc(vm, 1, sizeof *c);
    *c = (struct cycler){.items = args->positional, .n = args->n};
    return (struct value){.type = VAL_CYCLER, .cycler = c};
}

static struct value fn_joiner(struct vm *vm, const struct args *args)
{
    static const char *const params[] = {"sep"};
    struct value sep;
    args_bind(vm, "joiner", args, 0, 1, params, &sep);
    struct joiner *j = vm_alloc(vm, 1, sizeof *j);
    *j = (struct joiner){.sep = sep.type == VAL_MISSING ? val_str(jstr_c(vm, ", ")) : sep};
    return (struct value){.type = VAL_JOINER, .joiner = j};
}

static struct value fn_raise_exception(struct vm *vm, const struct args *args)
{
    static const char *const params[] = {"message"};
    struct value message;
    args_bind(vm, "raise_exception", args, 1, 1, params, &message);
    const struct jstr *s = val_to_str(vm, message);
    vm_raise(vm, s->bytes, s->len);
}

/* Appends what strftime gives for one directive, such as "%Y" or "%-d". */
static void put_time(struct vm *vm, const char *directive, const struct tm *t, bool literal)
{
    char out[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(out, sizeof out, directive, t);
#pragma GCC diagnostic pop
    vm_put(vm, out, n, literal);
}

static struct value fn_strftime_now(struct vm *vm, const struct args *args)
{
    static const char *const params[] = {"format"};
    struct value v;
    args_bind(vm, "strftime_now", args, 1, 1, params, &v);
    const struct jstr *f = arg_str(vm, v, "format", NULL);
    time_t now = (time_t)vm->now;
    struct tm t;
    if (!gmtime_r(&now, &t))
        vm_fail(vm, "strftime_now: the time is out of range");
    size_t start = vm->text_len;
    for (size_t i = 0; i < f->len;) {
        if (f->bytes[i] != '%') {
            vm_put_sub(vm, f, i++, 1);
            continue;
        }
        char directive[5] = "%";
        size_t n = 1;
        bool literal = f->marks ? f->marks[i] : f->literal;
        i++;
        while (i < f->len && n < 3 && strchr("-_0^#EO", f->bytes[i]) && f->bytes[i])
            directive[n++] = f->bytes[i++];
        char what = i < f->len ? f->bytes[i++] : '\0';
        directive[n] = what;
        if (what == 'f') /* Python's microseconds: we have whole seconds */
            vm_put(vm, "000000", 6, literal);
        else if (what && strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%", what))
            put_time(vm, directive, &t, literal);
        else if (what != 'z' && what != 'Z') /* a time without zone has no name for it */
            vm_fail(vm, "strftime_now: unknown directive in the format");
    }
    return vm_take_value(vm, start);
}

static struct value fn_lipsum(struct vm *vm, const struct args *args)
{
    (void)args;
    vm_fail(vm, "lipsum() makes random text and is not provided");
}

const struct function *find_function(const struct jstr *name)
{
    static const struct function functions[] = {
        {"range", fn_range},         {"dict", fn_dict},
        {"namespace", fn_namespace}, {"cycler", fn_cycler},
        {"joiner", fn_joiner},       {"raise_exception", fn_raise_exception},
        {"lipsum", fn_lipsum},       {"strftime_now", fn_strftime_now},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (jstr_is(name, functions[i].name))
            return &functions[i];
    return NULL;
}
