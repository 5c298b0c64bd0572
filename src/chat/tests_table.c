/* The tests that follow `is`. */
#include "chat/eval.h"
#include "chat/jstr.h"
#include "chat/print.h"
#include "chat/str_methods.h"

#define TEST(name) static struct value name(struct vm *vm, struct value self, const struct value *a)
/* A test without arguments that is one expression of `self`. */
#define SIMPLE_TEST(name, answer) \
    TEST(name)                    \
    {                             \
        (void)vm;                 \
        (void)a;                  \
        return val_bool(answer);  \
    }

SIMPLE_TEST(test_defined, self.type != VAL_UNDEFINED)
SIMPLE_TEST(test_undefined, self.type == VAL_UNDEFINED)
SIMPLE_TEST(test_none, self.type == VAL_NONE)
SIMPLE_TEST(test_boolean, self.type == VAL_BOOL)
SIMPLE_TEST(test_true, self.type == VAL_BOOL && self.b)
SIMPLE_TEST(test_false, self.type == VAL_BOOL && !self.b)
SIMPLE_TEST(test_integer, self.type == VAL_INT)
SIMPLE_TEST(test_float, self.type == VAL_FLOAT)
SIMPLE_TEST(test_number, val_is_number(self))
SIMPLE_TEST(test_string, self.type == VAL_STR)
SIMPLE_TEST(test_mapping, self.type == VAL_DICT)
SIMPLE_TEST(test_iterable, val_is_iterable(self) || self.type == VAL_LOOP)
SIMPLE_TEST(test_callable, val_is_callable(self))
SIMPLE_TEST(test_escaped, self.type == VAL_STR && self.str->markup)
SIMPLE_TEST(test_lower, str_all_case(vm, val_to_str(vm, self), false))
SIMPLE_TEST(test_upper, str_all_case(vm, val_to_str(vm, self), true))

TEST(test_sequence) /* what has a length and can be subscripted: dicts and Undefined too */
{
    (void)vm;
    (void)a;
    switch (self.type) {
    case VAL_UNDEFINED:
    case VAL_STR:
    case VAL_BYTES:
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
    case VAL_RANGE:
        return val_bool(true);
    default:
        return val_bool(false);
    }
}

TEST(test_odd)
{
    (void)a;
    return val_bool(val_equal(vm, binary_op(vm, OP_MOD, self, val_int(2)), val_int(1)));
}

TEST(test_even)
{
    (void)a;
    return val_bool(val_equal(vm, binary_op(vm, OP_MOD, self, val_int(2)), val_int(0)));
}

TEST(test_divisibleby)
{
    return val_bool(val_equal(vm, binary_op(vm, OP_MOD, self, a[0]), val_int(0)));
}

TEST(test_sameas)
{
    if (self.type != a[0].type)
        return val_bool(false);
    switch (self.type) {
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
        return val_bool(self.seq == a[0].seq);
    default: /* equal small values are one object in Python too */
        return val_bool(val_equal(vm, self, a[0]));
    }
}

TEST(test_in)
{
    return val_bool(val_contains(vm, a[0], self));
}

TEST(test_filter)
{
    (void)vm;
    (void)a;
    return val_bool(self.type == VAL_STR && find_filter(self.str->bytes, self.str->len));
}

TEST(test_test)
{
    (void)vm;
    (void)a;
    return val_bool(self.type == VAL_STR && find_test(self.str->bytes, self.str->len));
}

#define COMPARE_TEST(name, op)                           \
    TEST(name)                                           \
    {                                                    \
        return val_bool(compare_op(vm, op, self, a[0])); \
    }
COMPARE_TEST(test_eq, OP_EQ)
COMPARE_TEST(test_ne, OP_NE)
COMPARE_TEST(test_lt, OP_LT)
COMPARE_TEST(test_le, OP_LE)
COMPARE_TEST(test_gt, OP_GT)
COMPARE_TEST(test_ge, OP_GE)

#define ONE(text, function)            \
    {                                  \
        .name = text, .call = function \
    }
#define WITH(text, function)                                                   \
    {                                                                          \
        .name = text, .call = function, .n_required = 1, .params = { "other" } \
    }

static const struct builtin tests[] = {
    ONE("boolean", test_boolean),
    ONE("callable", test_callable),
    ONE("defined", test_defined),
    {.name = "divisibleby", .call = test_divisibleby, .n_required = 1, .params = {"num"}},
    ONE("escaped", test_escaped),
    ONE("even", test_even),
    ONE("false", test_false),
    ONE("filter", test_filter),
    ONE("float", test_float),
    {.name = "in", .call = test_in, .n_required = 1, .params = {"seq"}},
    ONE("integer", test_integer),
    ONE("iterable", test_iterable),
    ONE("lower", test_lower),
    ONE("mapping", test_mapping),
    ONE("none", test_none),
    ONE("number", test_number),
    ONE("odd", test_odd),
    WITH("sameas", test_sameas),
    ONE("sequence", test_sequence),
    ONE("string", test_string),
    ONE("test", test_test),
    ONE("true", test_true),
    ONE("undefined", test_undefined),
    ONE("upper", test_upper),
    WITH("==", test_eq),
    WITH("eq", test_eq),
    WITH("equalto", test_eq),
    WITH("!=", test_ne),
    WITH("ne", test_ne),
    WITH("<", test_lt),
    WITH("lt", test_lt),
    WITH("lessthan", test_lt),
    WITH("<=", test_le),
    WITH("le", test_le),
    WITH(">", test_gt),
    WITH("gt", test_gt),
    WITH("greaterthan", test_gt),
    WITH(">=", test_ge),
    WITH("ge", test_ge),
    {0},
};

const struct builtin *find_test(const char *name, size_t len)
{
    return builtin_find(tests, name, len);
}
