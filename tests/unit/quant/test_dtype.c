/* The type table and the scalar conversions. The decoders themselves are compared with another program's
 * answers in tests/unit/file/test_types.c, which needs a file reader. */
#include "unit.h"

#include <math.h>

#include "quant/dtype.h"

static void the_table_answers_for_any_number(void **state)
{
    (void)state;
    const int numbers[] = {-1, 4, 5, 31, 32, 33, 36, 37, 38, DT_COUNT, 1 << 30, -2147483647};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_non_null(dtype_info(numbers[i]));
        assert_null(dtype_info(numbers[i])->name);
        assert_false(dtype_info(numbers[i])->decodable);
    }
    int named = 0;
    for (int t = 0; t < DT_COUNT; t++)
        named += dtype_info(t)->name != NULL;
    assert_int_equal(named, 34);
    assert_string_equal(dtype_info(DT_Q4_K)->name, "Q4_K");
}

static void rows(void **state)
{
    (void)state;
    assert_int_equal(dtype_row_bytes(DT_F32, 7), 28);
    assert_int_equal(dtype_row_bytes(DT_Q4_K, 512), 288);
    assert_int_equal(dtype_row_bytes(DT_Q8_0, 64), 68);
    assert_true(dtype_row_fits(DT_Q6_K, 768));
    assert_false(dtype_row_fits(DT_Q6_K, 800));
    assert_true(dtype_row_fits(DT_BF16, 1));
}

/* Every half is a float that rounds back to it; between two neighbours the nearer wins, and at the middle
 * the even one. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        float f = half_to_float((uint16_t)h);
        float up = h + 1 < 0x7C00 ? half_to_float((uint16_t)(h + 1)) : 65536.0f;
        float middle = f + (up - f) / 2; /* exact: floats have 13 more bits */
        assert_true(up > f);
        assert_int_equal(float_to_half(f), h);
        assert_int_equal(float_to_half(-f), h | 0x8000);
        assert_int_equal(float_to_half(middle), h + (h & 1));
        assert_int_equal(float_to_half(nextafterf(middle, 0)), h);
        assert_int_equal(float_to_half(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_true(half_to_float(0x3C00) == 1.0f && half_to_float(0x0001) == 0x1p-24f);
    assert_true(half_to_float(0xFBFF) == -65504.0f);
}

static void special_halves(void **state)
{
    (void)state;
    assert_true(isinf(half_to_float(0x7C00)) && half_to_float(0xFC00) == -INFINITY);
    for (uint32_t h = 0x7C01; h < 0x8000; h++) {
        assert_true(isnan(half_to_float((uint16_t)h)));
        uint16_t back = float_to_half(half_to_float((uint16_t)h));
        assert_true((back & 0x7C00) == 0x7C00 && (back & 0x3FF) != 0);
    }
    assert_int_equal(float_to_half(INFINITY), 0x7C00);
    assert_int_equal(float_to_half(-1e30f), 0xFC00);
    assert_int_equal(float_to_half(1e-30f), 0);
    assert_int_equal(float_to_half(-0.0f), 0x8000);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x7F80; b++) {
        union {
            uint32_t u;
            float f;
        } middle = {.u = b << 16 | 0x8000}, below = {.u = b << 16 | 0x7FFF}, above = {.u = b << 16 | 0x8001};
        assert_int_equal(float_to_bf16(bf16_to_float((uint16_t)b)), b);
        assert_int_equal(float_to_bf16(middle.f), b + (b & 1));
        assert_int_equal(float_to_bf16(below.f), b);
        assert_int_equal(float_to_bf16(-above.f), (b + 1) | 0x8000);
    }
    assert_int_equal(float_to_bf16(INFINITY), 0x7F80);
    union {
        uint32_t u;
        float f;
    } nan = {.u = 0x7F800001};
    assert_true(isnan(bf16_to_float(float_to_bf16(nan.f))));
}

static void casts(void **state)
{
    (void)state;
    float out[3];
    const int8_t i8[3] = {-128, 0, 127};
    const int16_t i16[2] = {-32768, 258};
    const int32_t i32[2] = {-7, 1 << 24};
    const int64_t i64[2] = {-1, 1LL << 40};
    const double f64[2] = {0.1, -1e300};
    dtype_to_float(DT_I8, i8, out, 3);
    assert_true(out[0] == -128 && out[1] == 0 && out[2] == 127);
    dtype_to_float(DT_I16, i16, out, 2);
    assert_true(out[0] == -32768 && out[1] == 258);
    dtype_to_float(DT_I32, i32, out, 2);
    assert_true(out[0] == -7 && out[1] == 0x1p24f);
    dtype_to_float(DT_I64, i64, out, 2);
    assert_true(out[0] == -1 && out[1] == 0x1p40f);
    dtype_to_float(DT_F64, f64, out, 2);
    assert_true(out[0] == 0.1f && out[1] == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_answers_for_any_number), cmocka_unit_test(rows),
        cmocka_unit_test(halves_round_to_nearest_even),     cmocka_unit_test(special_halves),
        cmocka_unit_test(bf16_rounds_to_nearest_even),      cmocka_unit_test(casts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
