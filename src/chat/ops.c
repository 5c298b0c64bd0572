/* Python's operators. Integers that outgrow 128 bits are an error, not another type. */
#include <math.h>
#include <string.h>

#include "chat/eval.h"
#include "chat/format.h"
#include "chat/jstr.h"

static const char *const op_text[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

_Noreturn static void fail_types(struct vm *vm, enum op op, struct value a, struct value b)
{
    if (op == OP_ADD && a.type == VAL_STR)
        vm_fail(vm, "can only concatenate str (not \"%s\") to str", val_type_name(b));
    vm_fail(vm, "unsupported operand types for %s: '%s' and '%s'", op_text[op], val_type_name(a),
            val_type_name(b));
}

_Noreturn static void fail_overflow(struct vm *vm)
{
    vm_fail(vm, "the result does not fit in 128 bits");
}

static struct value float_result(struct vm *vm, double f, bool finite)
{
    if (finite && isinf(f))
        vm_fail(vm, "the result is too large for a float");
    return val_float(f);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (b < 0) != (m < 0))
        m += b;
    return m == 0 ? copysign(0, b) : m;
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        q -= 1;
    if (q == 0)
        return copysign(0, a / b);
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static struct value float_op(struct vm *vm, enum op op, double a, double b)
{
    bool finite = isfinite(a) && isfinite(b);
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        vm_fail(vm, "division by zero");
    switch (op) {
    case OP_ADD:
        return val_float(a + b);
    case OP_SUB:
        return val_float(a - b);
    case OP_MUL:
        return val_float(a * b);
    case OP_DIV:
        return val_float(a / b);
    case OP_FLOORDIV:
        return val_float(float_floordiv(a, b));
    case OP_MOD:
        return val_float(float_mod(a, b));
    default: /* OP_POW */
        if (a == 0 && b < 0)
            vm_fail(vm, "zero cannot be raised to a negative power");
        if (a < 0 && finite && b != floor(b))
            vm_fail(vm, "a negative number to a fractional power would be complex");
        return float_result(vm, pow(a, b), finite);
    }
}

static struct value int_pow(struct vm *vm, wide_int base, wide_int exponent)
{
    if (exponent < 0) {
        if (!base)
            vm_fail(vm, "zero cannot be raised to a negative power");
        return val_float(pow((double)base, (double)exponent));
    }
    wide_int result = 1;
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            fail_overflow(vm);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            fail_overflow(vm);
    }
    return val_int(result);
}

static struct value int_op(struct vm *vm, enum op op, wide_int a, wide_int b)
{
    wide_int r;
    if (!b && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        vm_fail(vm, "division by zero");
    if (b == -1 && a == WIDE_MIN && (op == OP_FLOORDIV || op == OP_MOD))
        fail_overflow(vm);
    switch (op) {
    case OP_ADD:
        if (__builtin_add_overflow(a, b, &r))
            fail_overflow(vm);
        return val_int(r);
    case OP_SUB:
        if (__builtin_sub_overflow(a, b, &r))
            fail_overflow(vm);
        return val_int(r);
    case OP_MUL:
        if (__builtin_mul_overflow(a, b, &r))
            fail_overflow(vm);
        return val_int(r);
    case OP_DIV:
        return val_float((double)((long double)a / (long double)b));
    case OP_FLOORDIV:
        r = a / b;
        return val_int(a % b && (a < 0) != (b < 0) ? r - 1 : r);
    case OP_MOD:
        r = a % b;
        return val_int(r && (r < 0) != (b < 0) ? r + b : r);
    default: /* OP_POW */
        return int_pow(vm, a, b);
    }
}

static struct value repeat(struct vm *vm, struct value seq, wide_int times)
{
    if (times < 0)
        times = 0;
    if (seq.type == VAL_STR) {
        size_t start = vm->text_len;
        vm_put_repeat(vm, seq.str, times);
        return val_str(jstr_mark(vm, vm_take(vm, start), seq.str->markup));
    }
    size_t n = seq.seq->n, total;
    if (n && times > (wide_int)(SIZE_MAX / sizeof(struct value) / n))
        vm_fail(vm, "the list would be too long");
    total = n ? n * (size_t)times : 0;
    struct value *items = vm_alloc(vm, total, sizeof *items);
    vm_charge(vm, total);
    for (size_t i = 0; i < total; i++)
        items[i] = seq.seq->items[i % n];
    struct value v = val_list_of(vm, items, total);
    v.type = seq.type;
    return v;
}

static struct value join_lists(struct vm *vm, struct value a, struct value b)
{
    size_t n = a.seq->n + b.seq->n;
    struct value *items = vm_alloc(vm, n, sizeof *items);
    vm_charge(vm, n / 4 + 1);
    if (a.seq->n)
        memcpy(items, a.seq->items, a.seq->n * sizeof *items);
    if (b.seq->n)
        memcpy(items + a.seq->n, b.seq->items, b.seq->n * sizeof *items);
    struct value v = val_list_of(vm, items, n);
    v.type = a.type;
    return v;
}

struct value binary_op(struct vm *vm, enum op op, struct value a, struct value b)
{
    if (a.type == VAL_UNDEFINED)
        val_fail_undefined(vm, a);
    if (b.type == VAL_UNDEFINED && !(op == OP_MOD && a.type == VAL_STR))
        val_fail_undefined(vm, b);
    if (val_is_integer(a) && val_is_integer(b))
        return int_op(vm, op, val_integer(a), val_integer(b));
    if (val_is_number(a) && val_is_number(b))
        return float_op(vm, op, val_double(a), val_double(b));
    if (op == OP_ADD && a.type == VAL_STR && b.type == VAL_STR)
        return val_str(jstr_concat(vm, a.str, b.str));
    if (op == OP_ADD && val_is_seq(a) && a.type == b.type)
        return join_lists(vm, a, b);
    if (op == OP_MUL && (a.type == VAL_STR || val_is_seq(a)) && val_is_integer(b))
        return repeat(vm, a, val_integer(b));
    if (op == OP_MUL && (b.type == VAL_STR || val_is_seq(b)) && val_is_integer(a))
        return repeat(vm, b, val_integer(a));
    if (op == OP_MOD && a.type == VAL_STR)
        return format_percent(vm, a.str, b);
    fail_types(vm, op, a, b);
}

struct value negate(struct vm *vm, struct value v)
{
    if (v.type == VAL_UNDEFINED)
        val_fail_undefined(vm, v);
    if (v.type == VAL_FLOAT)
        return val_float(-v.f);
    if (!val_is_integer(v))
        vm_fail(vm, "bad operand type for a sign: '%s'", val_type_name(v));
    if (val_integer(v) == WIDE_MIN)
        fail_overflow(vm);
    return val_int(-val_integer(v));
}

bool compare_op(struct vm *vm, enum op op, struct value a, struct value b)
{
    switch (op) {
    case OP_EQ:
        return val_equal(vm, a, b);
    case OP_NE:
        return !val_equal(vm, a, b);
    case OP_LT:
        return val_compare(vm, a, b, "<") < 0;
    case OP_LE:
        return val_compare(vm, a, b, "<=") <= 0;
    case OP_GT:
        return val_compare(vm, a, b, ">") > 0;
    case OP_GE:
        return val_compare(vm, a, b, ">=") >= 0;
    case OP_IN:
        return val_contains(vm, b, a);
    case OP_NOT_IN:
        return !val_contains(vm, b, a);
    default:
        fail_types(vm, op, a, b);
    }
}
