/* Statements. */
#include <string.h>

#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/limits.h"
#include "chat/print.h"

/* Sets a name, a namespace's attribute, or several of them from the items of v. */
static void assign(struct vm *vm, const struct node *target, struct value v)
{
    if (target->type == NODE_NAME) {
        scope_set(vm, vm->scope, target->name, v);
        return;
    }
    if (target->type == NODE_NSREF) {
        struct value ns = name_lookup(vm, target->nsref.object);
        vm->line = target->line;
        if (ns.type != VAL_NAMESPACE)
            vm_fail(vm, "cannot set an attribute of a %s: only a namespace() has attributes to set",
                    val_type_name(ns));
        dict_set(vm, ns.ns, val_str(target->nsref.name), v);
        return;
    }
    size_t n;
    vm->line = target->line;
    const struct value *items = val_items(vm, v, &n);
    if (n != target->list.n)
        vm_fail(vm, "cannot unpack %zu values into %zu names", n, target->list.n);
    for (size_t i = 0; i < n; i++)
        assign(vm, target->list.items[i], items[i]);
}

/* --- for ------------------------------------------------------------------------------------------------ */

/* The items that pass the loop's `if`. */
static const struct value *filtered(struct vm *vm, const struct node *n, const struct value *items,
                                    size_t *count)
{
    struct value *kept = vm_alloc(vm, *count, sizeof *kept);
    size_t n_kept = 0;
    struct scope *outer = vm->scope;
    vm->scope = scope_new(vm, outer);
    for (size_t i = 0; i < *count; i++) {
        if (vm->scope->kept)
            vm->scope = scope_new(vm, outer);
        assign(vm, n->loop.target, items[i]);
        if (val_truthy(eval(vm, n->loop.test)))
            kept[n_kept++] = items[i];
    }
    vm->scope = outer;
    *count = n_kept;
    return kept;
}

static enum flow run_loop(struct vm *vm, const struct node *n, struct value iterable, int depth0)
{
    size_t count;
    vm->line = n->line;
    const struct value *items = val_items(vm, iterable, &count);
    if (n->loop.test)
        items = filtered(vm, n, items, &count);
    struct scope *outer = vm->scope;
    struct scope *scope = scope_new(vm, outer);
    enum flow flow = FLOW_NEXT;
    bool completed = false; /* an iteration ran to its end: else Jinja takes the loop for empty */
    struct loop *loop = vm_alloc(vm, 1, sizeof *loop);
    *loop = (struct loop){.items = items,
                          .n = count,
                          .depth0 = depth0,
                          .recursive = n->loop.recursive ? n : NULL,
                          .scope = outer};
    for (size_t i = 0; i < count && flow != FLOW_BREAK; i++) {
        vm_charge(vm, 1);
        if (scope->kept)
            scope = scope_new(vm, outer);
        scope->n = 0;
        vm->scope = scope;
        loop->index0 = i;
        scope_set(vm, scope, vm->program->loop, (struct value){.type = VAL_LOOP, .loop = loop});
        assign(vm, n->loop.target, items[i]);
        flow = exec_list(vm, &n->loop.body);
        completed |= flow == FLOW_NEXT;
    }
    flow = FLOW_NEXT;
    if (!completed) {
        vm->scope = scope_new(vm, outer);
        flow = exec_list(vm, &n->loop.otherwise);
    }
    vm->scope = outer;
    return flow;
}

struct value loop_recurse(struct vm *vm, const struct loop *l, struct value items)
{
    if (!l->recursive)
        vm_fail(vm, "the loop must be marked 'recursive' to be called");
    size_t start = vm->text_len;
    struct scope *scope = vm->scope;
    vm->scope = l->scope;
    run_loop(vm, l->recursive, items, l->depth0 + 1);
    vm->scope = scope;
    return vm_take_value(vm, start);
}

/* --- macros --------------------------------------------------------------------------------------------- */

/* The macro object of a MACRO or CALL_BLOCK node; it keeps the current scope. */
static struct value make_macro(struct vm *vm, const struct node *n)
{
    struct macro *m = vm_alloc(vm, 1, sizeof *m);
    const struct jstr *name = n->macro.name_text;
    char *text = vm_alloc(vm, name->len + 1, 1);
    memcpy(text, name->bytes, name->len);
    text[name->len] = '\0';
    *m = (struct macro){.def = n, .scope = vm->scope, .name = text};
    for (struct scope *s = vm->scope; s && !s->kept; s = s->outer)
        s->kept = true;
    return (struct value){.type = VAL_MACRO, .macro = m};
}

/* The keyword argument `name`, taken out of the list (`used` marks it), or MISSING. */
static struct value take_named(const struct args *args, bool *used, const struct jstr *name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (!used[i] && jstr_eq(args->names[i], name)) {
            used[i] = true;
            return args->named[i];
        }
    return val_missing();
}

static void bind_parameters(struct vm *vm, const struct macro *m, const struct args *args, bool *used,
                            struct scope *scope)
{
    const struct node *def = m->def;
    const struct program *p = vm->program;
    int n = def->macro.n_params, first_default = n - def->macro.n_defaults;
    struct value *given = vm_alloc(vm, (size_t)n, sizeof *given);
    for (int i = 0; i < n; i++)
        given[i] = (size_t)i < args->n ? args->positional[i]
                                       : take_named(args, used, p->names[def->macro.params[i]]);
    for (int i = 0; i < n; i++) {
        struct value v = given[i];
        if (v.type == VAL_MISSING && i >= first_default)
            v = eval(vm, def->macro.defaults[i - first_default]); /* may use the parameters before it */
        else if (v.type == VAL_MISSING)
            v = val_undefined(vm, "a macro's parameter was used that was not provided", NULL, val_none());
        scope_set(vm, scope, def->macro.params[i], v);
    }
}

/* Binds caller, kwargs and varargs where the body uses them; fails on arguments that have no place. */
static void bind_rest(struct vm *vm, const struct macro *m, const struct args *args, bool *used,
                      struct scope *scope)
{
    const struct node *def = m->def;
    const struct program *p = vm->program;
    size_t n_params = (size_t)def->macro.n_params;
    bool is_param[3] = {false};
    for (size_t i = 0; i < n_params; i++) {
        is_param[0] |= def->macro.params[i] == p->caller;
        is_param[1] |= def->macro.params[i] == p->kwargs;
        is_param[2] |= def->macro.params[i] == p->varargs;
    }
    if (def->macro.uses_caller && !is_param[0]) {
        struct value caller = take_named(args, used, p->names[p->caller]);
        if (caller.type == VAL_MISSING)
            caller = val_undefined(vm, "the macro was not called by a call block: there is no caller", NULL,
                                   val_none());
        scope_set(vm, scope, p->caller, caller);
    }
    bool catches = def->macro.uses_kwargs && !is_param[1];
    struct dict *rest = catches ? dict_new(vm, args->n_named) : NULL;
    for (size_t i = 0; i < args->n_named; i++) {
        if (used[i])
            continue;
        if (!catches)
            vm_fail(vm, "macro '%s' takes no keyword argument '%.*s'", m->name,
                    (int)(args->names[i]->len > 100 ? 100 : args->names[i]->len), args->names[i]->bytes);
        dict_set(vm, rest, val_str(args->names[i]), args->named[i]);
    }
    if (catches)
        scope_set(vm, scope, p->kwargs, val_dict(rest));
    size_t n_rest = args->n > n_params ? args->n - n_params : 0;
    if (def->macro.uses_varargs && !is_param[2])
        scope_set(vm, scope, p->varargs, val_tuple(vm, args->positional + (args->n - n_rest), n_rest));
    else if (n_rest)
        vm_fail(vm, "macro '%s' takes not more than %zu argument(s)", m->name, n_params);
}

struct value macro_call(struct vm *vm, const struct macro *m, const struct args *args)
{
    bool *used = vm_alloc(vm, args->n_named, sizeof *used);
    if (args->n_named)
        memset(used, 0, args->n_named * sizeof *used);
    struct scope *caller_scope = vm->scope;
    struct scope *scope = scope_new(vm, m->scope);
    size_t start = vm->text_len;
    vm_enter(vm);
    vm->scope = scope;
    bind_parameters(vm, m, args, used, scope);
    bind_rest(vm, m, args, used, scope);
    exec_list(vm, &m->def->macro.body);
    vm->scope = caller_scope;
    vm_leave(vm);
    return vm_take_value(vm, start);
}

static void exec_call_block(struct vm *vm, const struct node *n)
{
    struct value caller = make_macro(vm, n);
    const struct node *call = n->macro.call;
    struct value callee = eval(vm, call->call.callee);
    struct args args;
    eval_args(vm, &call->call.args, &args);
    const struct jstr **names = vm_alloc(vm, args.n_named + 1, sizeof *names);
    struct value *named = vm_alloc(vm, args.n_named + 1, sizeof *named);
    if (args.n_named) {
        memcpy(names, args.names, args.n_named * sizeof *names);
        memcpy(named, args.named, args.n_named * sizeof *named);
    }
    names[args.n_named] = vm->program->names[vm->program->caller];
    named[args.n_named] = caller;
    args.names = names;
    args.named = named;
    args.n_named++;
    vm->line = n->line;
    vm_put_str(vm, val_call(vm, callee, &args));
}

/* --- the rest ---------------------------------------------------------------------------------------------
 */

static enum flow exec_if(struct vm *vm, const struct node *n)
{
    for (size_t i = 0; i < n->branches.tests.n; i++)
        if (val_truthy(eval(vm, n->branches.tests.items[i])))
            return exec_list(vm, &n->branches.bodies[i]);
    return exec_list(vm, &n->branches.otherwise);
}

/* Runs a body in a scope of its own. */
static enum flow exec_scoped(struct vm *vm, const struct node_list *body)
{
    struct scope *outer = vm->scope;
    vm->scope = scope_new(vm, outer);
    enum flow flow = exec_list(vm, body);
    vm->scope = outer;
    return flow;
}

static enum flow exec_set_block(struct vm *vm, const struct node *n)
{
    size_t start = vm->text_len;
    enum flow flow = exec_scoped(vm, &n->set.body);
    struct value text = vm_take_value(vm, start);
    if (flow != FLOW_NEXT) /* a break out of the block: nothing is set */
        return flow;
    assign(vm, n->set.target, eval_filters(vm, n->set.value, text));
    return FLOW_NEXT;
}

static enum flow exec_filter_block(struct vm *vm, const struct node *n)
{
    size_t start = vm->text_len;
    enum flow flow = exec_scoped(vm, &n->block.body);
    struct value text = vm_take_value(vm, start);
    if (flow == FLOW_NEXT)
        vm_put_str(vm, eval_filters(vm, n->block.filter, text));
    return flow;
}

static enum flow exec_with(struct vm *vm, const struct node *n)
{
    size_t count = n->block.values.n;
    struct value *values = vm_alloc(vm, count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = eval(vm, n->block.values.items[i]);
    struct scope *outer = vm->scope;
    vm->scope = scope_new(vm, outer);
    for (size_t i = 0; i < count; i++)
        assign(vm, n->block.targets.items[i], values[i]);
    enum flow flow = exec_list(vm, &n->block.body);
    vm->scope = outer;
    return flow;
}

static enum flow exec(struct vm *vm, const struct node *n)
{
    struct value v;
    vm->line = n->line;
    switch (n->type) {
    case NODE_TEXT:
        vm_put_jstr(vm, n->constant.str);
        return FLOW_NEXT;
    case NODE_OUTPUT:
        if (!eval_onto_text(vm, n->operand, &v))
            vm_put_str(vm, v);
        return FLOW_NEXT;
    case NODE_IF:
        return exec_if(vm, n);
    case NODE_FOR:
        return run_loop(vm, n, eval(vm, n->loop.iterable), 0);
    case NODE_SET:
        assign(vm, n->set.target, eval(vm, n->set.value));
        return FLOW_NEXT;
    case NODE_SET_BLOCK:
        return exec_set_block(vm, n);
    case NODE_MACRO:
        scope_set(vm, vm->scope, n->macro.name, make_macro(vm, n));
        return FLOW_NEXT;
    case NODE_CALL_BLOCK:
        exec_call_block(vm, n);
        return FLOW_NEXT;
    case NODE_FILTER_BLOCK:
        return exec_filter_block(vm, n);
    case NODE_WITH:
        return exec_with(vm, n);
    case NODE_SCOPE:
        return exec_scoped(vm, &n->block.body);
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        vm_fail(vm, "this is not a statement");
    }
}

enum flow exec_list(struct vm *vm, const struct node_list *list)
{
    enum flow flow = FLOW_NEXT;
    vm_enter(vm);
    for (size_t i = 0; i < list->n && flow == FLOW_NEXT; i++) {
        vm_charge(vm, 1);
        flow = exec(vm, list->items[i]);
    }
    vm_leave(vm);
    return flow;
}
