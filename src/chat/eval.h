/* Running a syntax tree: eval.c expressions, exec.c statements, ops.c operators, attr.c attributes and
 * subscripts.
 *
 * Variables live in scopes, linked outward; a name not found in any is looked up in the context, then among
 * the built-in functions. A scope is made for every loop iteration, macro call and block that Jinja gives
 * one; `if` is not among them. Macros keep the scope they were defined in, and see its later changes. */
#ifndef SLUICE_CHAT_EVAL_H
#define SLUICE_CHAT_EVAL_H

#include "chat/ast.h"
#include "chat/call.h"
#include "chat/vm.h"

struct binding {
    int name;
    struct value value;
};

struct scope {
    struct scope *outer;
    struct binding *vars; /* [n], room for cap */
    int n, cap;
    bool kept; /* a macro refers to it: the next iteration of a loop must not use it again */
};

struct scope *scope_new(struct vm *vm, struct scope *outer);
void scope_set(struct vm *vm, struct scope *s, int name, struct value v);
/* The value of a variable: Undefined if there is none. */
struct value name_lookup(struct vm *vm, int name);

struct value eval(struct vm *vm, const struct node *n);
/* As eval, but a text made of several parts may stay on the text buffer: then true, and *v is not set. */
bool eval_onto_text(struct vm *vm, const struct node *n, struct value *v);
void eval_args(struct vm *vm, const struct call_args *a, struct args *out);
/* A chain of filters whose innermost input is `input` (set and filter blocks). */
struct value eval_filters(struct vm *vm, const struct node *n, struct value input);

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum flow exec_list(struct vm *vm, const struct node_list *list);
/* Calls a macro, `caller` (or MISSING) being what a call block passes. */
struct value macro_call(struct vm *vm, const struct macro *m, const struct args *args);
/* loop(items) in a recursive for: the loop's body over other items. */
struct value loop_recurse(struct vm *vm, const struct loop *l, struct value items);

struct value binary_op(struct vm *vm, enum op op, struct value a, struct value b);
struct value negate(struct vm *vm, struct value v);
bool compare_op(struct vm *vm, enum op op, struct value a, struct value b);

/* obj.name and obj[index], with the fallbacks of Jinja's sandbox; Undefined if there is nothing. */
struct value get_attr(struct vm *vm, struct value obj, const struct jstr *name);
struct value get_item(struct vm *vm, struct value obj, struct value index);
/* obj[start:stop:step]; a bound not given is None. */
struct value get_slice(struct vm *vm, struct value obj, struct value start, struct value stop,
                       struct value step);

#endif
