#include "chat/call.h"

#include <string.h>

#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/print.h"

const struct builtin *builtin_find(const struct builtin *table, const char *name, size_t len)
{
    for (; table->name; table++)
        if (strlen(table->name) == len && !memcmp(table->name, name, len))
            return table;
    return NULL;
}

void args_bind(struct vm *vm, const char *callee, const struct args *args, int n_required, int n,
               const char *const *params, struct value *out)
{
    if (args->n > (size_t)n)
        vm_fail(vm, "%s takes at most %d argument(s), %zu were given", callee, n, args->n);
    for (int i = 0; i < n; i++)
        out[i] = (size_t)i < args->n ? args->positional[i] : val_missing();
    for (size_t k = 0; k < args->n_named; k++) {
        int i = 0;
        while (i < n && !jstr_is(args->names[k], params[i]))
            i++;
        int len = args->names[k]->len > 100 ? 100 : (int)args->names[k]->len;
        if (i == n)
            vm_fail(vm, "%s has no parameter '%.*s'", callee, len, args->names[k]->bytes);
        if (out[i].type != VAL_MISSING)
            vm_fail(vm, "%s: '%.*s' is given twice", callee, len, args->names[k]->bytes);
        out[i] = args->named[k];
    }
    for (int i = 0; i < n_required; i++)
        if (out[i].type == VAL_MISSING)
            vm_fail(vm, "%s needs its argument '%s'", callee, params[i]);
}

struct value builtin_call(struct vm *vm, const struct builtin *def, struct value self,
                          const struct args *args)
{
    if (def->call_raw)
        return def->call_raw(vm, self, args);
    struct value bound[BUILTIN_MAX_PARAMS];
    int n = 0;
    while (def->params[n])
        n++;
    args_bind(vm, def->name, args, def->n_required, n, def->params, bound);
    return def->call(vm, self, bound);
}

bool val_is_callable(struct value v)
{
    switch (v.type) {
    case VAL_UNDEFINED: /* it can be called; it only fails then */
    case VAL_MACRO:
    case VAL_FUNCTION:
    case VAL_METHOD:
    case VAL_LOOP:
    case VAL_JOINER:
        return true;
    default:
        return false;
    }
}

static struct value call_joiner(struct vm *vm, struct joiner *j, const struct args *args)
{
    args_bind(vm, "joiner", args, 0, 0, NULL, NULL);
    if (j->used)
        return j->sep;
    j->used = true;
    return val_str(jstr_c(vm, ""));
}

struct value val_call(struct vm *vm, struct value callee, const struct args *args)
{
    struct value v;
    static const char *const params[] = {"iterable"};
    vm_enter(vm);
    switch (callee.type) {
    case VAL_UNDEFINED:
        val_fail_undefined(vm, callee);
    case VAL_MACRO:
        v = macro_call(vm, callee.macro, args);
        break;
    case VAL_FUNCTION:
        v = callee.function->call(vm, args);
        break;
    case VAL_METHOD:
        v = builtin_call(vm, callee.method->def, callee.method->self, args);
        break;
    case VAL_JOINER:
        v = call_joiner(vm, callee.joiner, args);
        break;
    case VAL_LOOP:
        args_bind(vm, "loop", args, 1, 1, params, &v);
        v = loop_recurse(vm, callee.loop, v);
        break;
    default:
        vm_fail(vm, "'%s' object is not callable", val_type_name(callee));
    }
    vm_leave(vm);
    return v;
}

wide_int arg_int(struct vm *vm, struct value a, const char *param, wide_int missing)
{
    if (a.type == VAL_MISSING)
        return missing;
    if (a.type == VAL_UNDEFINED)
        val_fail_undefined(vm, a);
    if (!val_is_integer(a))
        vm_fail(vm, "'%s' must be an integer, not %s", param, val_type_name(a));
    return val_integer(a);
}

bool arg_bool(struct value a, bool missing)
{
    return a.type == VAL_MISSING ? missing : val_truthy(a);
}

const struct jstr *arg_str(struct vm *vm, struct value a, const char *param, const char *missing)
{
    if (a.type == VAL_MISSING)
        return missing ? jstr_c(vm, missing) : NULL;
    if (a.type == VAL_UNDEFINED)
        val_fail_undefined(vm, a);
    if (a.type != VAL_STR)
        vm_fail(vm, "'%s' must be a string, not %s", param, val_type_name(a));
    return a.str;
}
