/* Calling: functions, methods, filters, tests and macros, with Python's positional and keyword arguments. */
#ifndef SLUICE_CHAT_CALL_H
#define SLUICE_CHAT_CALL_H

#include "chat/value.h"

struct args {
    const struct value *positional; /* [n] */
    size_t n;
    const struct jstr **names; /* [n_named] */
    const struct value *named; /* [n_named] */
    size_t n_named;
};

#define BUILTIN_MAX_PARAMS 6

/* A filter, a test or a method. `self` is what it is applied to. With `call`, arguments are bound to the
 * parameters first: a[i] is parameter i's value or MISSING. With `call_raw`, it takes them as they are. */
struct builtin {
    const char *name;
    struct value (*call)(struct vm *vm, struct value self, const struct value *a);
    int n_required;
    const char *params[BUILTIN_MAX_PARAMS + 1]; /* NULL-terminated */
    struct value (*call_raw)(struct vm *vm, struct value self, const struct args *args);
};

/* The entry of that name in a table that ends with a nameless one; NULL if there is none. */
const struct builtin *builtin_find(const struct builtin *table, const char *name, size_t len);
const struct builtin *find_filter(const char *name, size_t len);
const struct builtin *find_test(const char *name, size_t len);
/* The method `name` of v's type, or NULL. */
const struct builtin *find_method(struct value v, const struct jstr *name);
const struct function *find_function(const struct jstr *name);

struct value builtin_call(struct vm *vm, const struct builtin *def, struct value self,
                          const struct args *args);
/* Calls any callable value. */
struct value val_call(struct vm *vm, struct value callee, const struct args *args);
bool val_is_callable(struct value v);
/* Binds args to n parameters `params`, of which n_required must be given; the others become MISSING. */
void args_bind(struct vm *vm, const char *callee, const struct args *args, int n_required, int n,
               const char *const *params, struct value *out);

/* Readers of bound arguments: the default where MISSING, an error naming the parameter where of a wrong type.
 */
wide_int arg_int(struct vm *vm, struct value a, const char *param, wide_int missing);
bool arg_bool(struct value a, bool missing);
const struct jstr *arg_str(struct vm *vm, struct value a, const char *param, const char *missing);

#endif
