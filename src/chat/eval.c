#include "chat/eval.h"

#include <string.h>

#include "chat/jstr.h"
#include "chat/print.h"

/* --- variables --------------------------------------------------------------------------------------- */

struct scope *scope_new(struct vm *vm, struct scope *outer)
{
    struct scope *s = vm_alloc(vm, 1, sizeof *s);
    *s = (struct scope){.outer = outer};
    return s;
}

void scope_set(struct vm *vm, struct scope *s, int name, struct value v)
{
    for (int i = 0; i < s->n; i++)
        if (s->vars[i].name == name) {
            s->vars[i].value = v;
            return;
        }
    vm_charge(vm, (size_t)s->n / 8);
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        struct binding *vars = vm_alloc(vm, (size_t)cap, sizeof *vars);
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct binding){name, v};
}

/* Converts JSON to a value. Strings point into the JSON, which outlives the render. */
static struct value from_json(struct vm *vm, const json_t *j, bool literal)
{
    vm_charge(vm, 1);
    switch (json_typeof(j)) {
    case JSON_NULL:
        return val_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return val_bool(json_is_true(j));
    case JSON_INTEGER:
        return val_int(json_integer_value(j));
    case JSON_REAL:
        return val_float(json_real_value(j));
    case JSON_STRING:
        return val_str(jstr_wrap(vm, json_string_value(j), json_string_length(j), literal));
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        struct value *items = vm_alloc(vm, n, sizeof *items);
        vm_enter(vm);
        for (size_t i = 0; i < n; i++)
            items[i] = from_json(vm, json_array_get(j, i), literal);
        vm_leave(vm);
        return val_list_of(vm, items, n);
    }
    case JSON_OBJECT: {
        struct dict *d = dict_new(vm, json_object_size(j));
        vm_enter(vm);
        json_t *object = (json_t *)j; /* jansson iterates over non-const objects only; nothing is changed */
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            const struct jstr *key =
                jstr_wrap(vm, json_object_iter_key(it), json_object_iter_key_len(it), literal);
            dict_set(vm, d, val_str(key), from_json(vm, json_object_iter_value(it), literal));
        }
        vm_leave(vm);
        return val_dict(d);
    }
    }
    vm_fail(vm, "the context holds JSON of an unknown type");
}

/* The special tokens' texts are the template's own, whoever passes them; anything else is a user's. */
static bool is_context_literal(const struct jstr *name)
{
    return !(name->len >= 6 && !memcmp(name->bytes + name->len - 6, "_token", 6));
}

static struct value global_lookup(struct vm *vm, int name)
{
    struct value *g = &vm->globals[name];
    if (g->type != VAL_MISSING)
        return *g;
    const struct jstr *text = vm->program->names[name];
    const json_t *j = json_object_getn(vm->context, text->bytes, text->len);
    const struct function *f;
    if (j)
        *g = from_json(vm, j, is_context_literal(text));
    else if ((f = find_function(text)))
        *g = (struct value){.type = VAL_FUNCTION, .function = f};
    else
        *g = val_undefined(vm, NULL, NULL, val_str(text));
    return *g;
}

struct value name_lookup(struct vm *vm, int name)
{
    for (const struct scope *s = vm->scope; s; s = s->outer) {
        vm_charge(vm, (size_t)s->n / 8 + 1);
        for (int i = 0; i < s->n; i++)
            if (s->vars[i].name == name)
                return s->vars[i].value;
    }
    return global_lookup(vm, name);
}

/* --- expressions ------------------------------------------------------------------------------------- */

static struct value eval_items(struct vm *vm, const struct node_list *list, enum value_type type)
{
    struct value *items = vm_alloc(vm, list->n, sizeof *items);
    for (size_t i = 0; i < list->n; i++)
        items[i] = eval(vm, list->items[i]);
    struct value v = val_list_of(vm, items, list->n);
    v.type = type;
    return v;
}

static struct value eval_dict(struct vm *vm, const struct node_list *list)
{
    struct dict *d = dict_new(vm, list->n / 2);
    for (size_t i = 0; i + 1 < list->n; i += 2) {
        struct value key = eval(vm, list->items[i]);
        dict_set(vm, d, key, eval(vm, list->items[i + 1]));
    }
    return val_dict(d);
}

static bool eval_compare(struct vm *vm, const struct node *n)
{
    struct value left = eval(vm, n->compare.first);
    for (size_t i = 0; i < n->compare.rest.n; i++) {
        struct value right = eval(vm, n->compare.rest.items[i]);
        vm->line = n->line;
        if (!compare_op(vm, n->compare.ops[i], left, right))
            return false;
        left = right;
    }
    return true;
}

/* a + b + c …: templates glue whole messages together this way, so the parts are put straight onto the text
 * buffer, each copied once, however long the chain. Returns as eval_onto_text. */
static bool eval_sum(struct vm *vm, const struct node *n, struct value *v)
{
    size_t count = 0;
    for (const struct node *s = n; s->type == NODE_BINARY && s->binary.op == OP_ADD; s = s->binary.left)
        count++;
    const struct node **sums = vm_alloc(vm, count, sizeof *sums); /* innermost first */
    const struct node *first = n;
    for (size_t i = count; i-- > 0; first = first->binary.left)
        sums[i] = first;
    size_t start = vm->text_len;
    bool on_text = false;
    *v = eval(vm, first);
    for (size_t i = 0; i < count; i++) {
        struct value b = eval(vm, sums[i]->binary.right);
        vm->line = sums[i]->line;
        bool plain = b.type == VAL_STR && !b.str->markup;
        if (!on_text && plain && v->type == VAL_STR && !v->str->markup) {
            vm_put_jstr(vm, v->str);
            on_text = true;
        }
        if (on_text && plain) {
            vm_put_jstr(vm, b.str);
            continue;
        }
        if (on_text)
            *v = vm_take_value(vm, start);
        on_text = false;
        *v = binary_op(vm, OP_ADD, *v, b);
    }
    return on_text;
}

bool eval_onto_text(struct vm *vm, const struct node *n, struct value *v)
{
    if (n->type == NODE_BINARY && n->binary.op == OP_ADD) {
        vm_enter(vm);
        bool on_text = eval_sum(vm, n, v);
        vm_leave(vm);
        return on_text;
    }
    if (n->type == NODE_CONCAT) {
        for (size_t i = 0; i < n->list.n; i++)
            vm_put_str(vm, eval(vm, n->list.items[i]));
        return true;
    }
    *v = eval(vm, n);
    return false;
}

void eval_args(struct vm *vm, const struct call_args *a, struct args *out)
{
    *out = (struct args){0};
    size_t n = a->positional.n, n_named = a->keyword.n, n_star = 0;
    struct value *positional = vm_alloc(vm, n, sizeof *positional);
    for (size_t i = 0; i < n; i++)
        positional[i] = eval(vm, a->positional.items[i]);
    struct value *named = vm_alloc(vm, n_named, sizeof *named);
    for (size_t i = 0; i < n_named; i++)
        named[i] = eval(vm, a->keyword.items[i]);
    *out = (struct args){positional, n, a->keyword_names, named, n_named};
    if (a->star) {
        const struct value *more = val_items(vm, eval(vm, a->star), &n_star);
        struct value *all = vm_alloc(vm, n + n_star, sizeof *all);
        if (n)
            memcpy(all, positional, n * sizeof *all);
        if (n_star)
            memcpy(all + n, more, n_star * sizeof *all);
        out->positional = all;
        out->n = n + n_star;
    }
    if (a->star_star) {
        struct value d = eval(vm, a->star_star);
        if (d.type != VAL_DICT)
            vm_fail(vm, "the argument after ** must be a dict, not %s", val_type_name(d));
        const struct jstr **names = vm_alloc(vm, n_named + d.dict->n, sizeof *names);
        struct value *all = vm_alloc(vm, n_named + d.dict->n, sizeof *all);
        if (n_named) {
            memcpy(names, a->keyword_names, n_named * sizeof *names);
            memcpy(all, named, n_named * sizeof *all);
        }
        for (size_t i = 0; i < d.dict->n; i++) {
            if (d.dict->entries[i].key.type != VAL_STR)
                vm_fail(vm, "keywords must be strings, not %s", val_type_name(d.dict->entries[i].key));
            names[n_named + i] = d.dict->entries[i].key.str;
            all[n_named + i] = d.dict->entries[i].value;
        }
        out->names = names;
        out->named = all;
        out->n_named = n_named + d.dict->n;
    }
}

static struct value apply(struct vm *vm, const struct node *n, struct value input)
{
    struct args args;
    if (!n->apply.def) {
        vm->line = n->line;
        vm_fail(vm, "there is no %s named '%.*s'", n->type == NODE_FILTER ? "filter" : "test",
                (int)(n->apply.name->len > 100 ? 100 : n->apply.name->len), n->apply.name->bytes);
    }
    eval_args(vm, &n->apply.args, &args);
    vm->line = n->line;
    return builtin_call(vm, n->apply.def, input, &args);
}

struct value eval_filters(struct vm *vm, const struct node *n, struct value input)
{
    if (!n)
        return input;
    vm_enter(vm);
    struct value v = apply(vm, n, eval_filters(vm, n->apply.input, input));
    vm_leave(vm);
    return v;
}

static struct value eval_call(struct vm *vm, const struct node *n)
{
    struct args args;
    struct value callee = eval(vm, n->call.callee);
    eval_args(vm, &n->call.args, &args);
    vm->line = n->line;
    struct value v = val_call(vm, callee, &args);
    vm->line = n->line; /* a macro left its own */
    return v;
}

static struct value eval_slice(struct vm *vm, const struct node *n)
{
    struct value object = eval(vm, n->slice.object);
    struct value bounds[3] = {val_none(), val_none(), val_none()};
    const struct node *nodes[3] = {n->slice.start, n->slice.stop, n->slice.step};
    for (int i = 0; i < 3; i++)
        if (nodes[i])
            bounds[i] = eval(vm, nodes[i]);
    vm->line = n->line;
    return get_slice(vm, object, bounds[0], bounds[1], bounds[2]);
}

static struct value eval_node(struct vm *vm, const struct node *n)
{
    struct value a, b;
    size_t start;
    switch (n->type) {
    case NODE_CONST:
        return n->constant;
    case NODE_NAME:
        return name_lookup(vm, n->name);
    case NODE_TUPLE:
        return eval_items(vm, &n->list, VAL_TUPLE);
    case NODE_LIST:
        return eval_items(vm, &n->list, VAL_LIST);
    case NODE_DICT:
        return eval_dict(vm, &n->list);
    case NODE_NOT:
        return val_bool(!val_truthy(eval(vm, n->operand)));
    case NODE_NEG:
        return negate(vm, eval(vm, n->operand));
    case NODE_POS:
        a = eval(vm, n->operand);
        negate(vm, a); /* for its errors */
        return a.type == VAL_BOOL ? val_int(a.b) : a;
    case NODE_BINARY:
        if (n->binary.op == OP_ADD) {
            start = vm->text_len;
            return eval_sum(vm, n, &a) ? vm_take_value(vm, start) : a;
        }
        a = eval(vm, n->binary.left);
        b = eval(vm, n->binary.right);
        vm->line = n->line;
        return binary_op(vm, n->binary.op, a, b);
    case NODE_CONCAT:
        start = vm->text_len;
        eval_onto_text(vm, n, &a);
        return vm_take_value(vm, start);
    case NODE_AND:
        a = eval(vm, n->binary.left);
        return val_truthy(a) ? eval(vm, n->binary.right) : a;
    case NODE_OR:
        a = eval(vm, n->binary.left);
        return val_truthy(a) ? a : eval(vm, n->binary.right);
    case NODE_COMPARE:
        return val_bool(eval_compare(vm, n));
    case NODE_COND:
        if (val_truthy(eval(vm, n->cond.test)))
            return eval(vm, n->cond.yes);
        if (n->cond.no)
            return eval(vm, n->cond.no);
        return val_undefined(vm, "the inline if was false and has no else", NULL, val_none());
    case NODE_GETATTR:
        a = eval(vm, n->attr.object);
        vm->line = n->line;
        return get_attr(vm, a, n->attr.name);
    case NODE_GETITEM:
        a = eval(vm, n->item.object);
        b = eval(vm, n->item.index);
        vm->line = n->line;
        return get_item(vm, a, b);
    case NODE_SLICE:
        return eval_slice(vm, n);
    case NODE_CALL:
        return eval_call(vm, n);
    case NODE_FILTER:
    case NODE_TEST:
        return apply(vm, n, eval(vm, n->apply.input));
    default:
        vm_fail(vm, "this is not an expression");
    }
}

struct value eval(struct vm *vm, const struct node *n)
{
    vm_charge(vm, 1);
    vm_enter(vm);
    struct value v = eval_node(vm, n);
    vm_leave(vm);
    return v;
}
