/* Norm, rope, the pointwise functions, gather and slice of every level against double precision, at odd
 * sizes; a value's bits do not depend on where it stands or on the thread count. */
#include "ops_test.h"

static void rmsnorm_rows(void **state)
{
    (void)state;
    static const int dims[] = {1, 5, 16, 64, 100, 576, 1023};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        struct backend *one = test_backend(test_level(l), 1);
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            int dim = dims[d], rows = 70, x_stride = dim + 3, out_stride = dim + 1;
            float *x = random_floats((size_t)(rows * x_stride)), *w = random_floats((size_t)dim);
            float *out = calloc((size_t)(rows * out_stride), sizeof *out),
                  *single = malloc((size_t)dim * sizeof *single);
            b->ops->rmsnorm(b, x, (size_t)x_stride, w, 1e-5f, rows, dim, out, (size_t)out_stride);
            for (int r = 0; r < rows; r++) {
                double sum = 0;
                float *want = malloc((size_t)dim * sizeof *want);
                for (int i = 0; i < dim; i++)
                    sum += (double)x[r * x_stride + i] * (double)x[r * x_stride + i];
                for (int i = 0; i < dim; i++)
                    want[i] = (float)((double)x[r * x_stride + i] / sqrt(sum / dim + 1e-5) * (double)w[i]);
                check_close(out + r * out_stride, want, (size_t)dim, 1e-6f, b->ops->name);
                assert_true(out[r * out_stride + dim] == 0); /* the gap is left alone */
                one->ops->rmsnorm(one, x + r * x_stride, 1, w, 1e-5f, 1, dim, single, 1);
                check_bits(out + r * out_stride, single, (size_t)dim, b->ops->name);
                free(want);
            }
            b->ops->rmsnorm(b, x, (size_t)x_stride, w, 1e-5f, rows, dim, x, (size_t)x_stride); /* in place */
            for (int r = 0; r < rows; r++)
                check_bits(x + r * x_stride, out + r * out_stride, (size_t)dim, "in place");
            free(x);
            free(w);
            free(out);
            free(single);
        }
        b->ops->destroy(b);
        one->ops->destroy(one);
    }
}

static void rope_turns(void **state)
{
    (void)state;
    static const struct {
        int n_heads, head_dim, n_freq;
    } shapes[] = {{3, 64, 32}, {2, 256, 32}, {5, 20, 10}, {1, 128, 64}, {2, 6, 1}};
    static const int32_t positions[] = {0, 1, 2, 100, 4095, 131071, 1000000};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        for (size_t s = 0; s < 5; s++) {
            int heads = shapes[s].n_heads, dim = shapes[s].head_dim, n = shapes[s].n_freq;
            int stride = heads * dim + 5, tokens = 7;
            float *x = random_floats((size_t)(tokens * stride)),
                  *was = copy_floats(x, (size_t)(tokens * stride));
            float freq[64];
            for (int i = 0; i < n; i++)
                freq[i] = powf(10000.0f, -(float)i / (float)n);
            struct rope r = {freq, n, 1.25f};
            b->ops->rope(b, x, (size_t)stride, heads, dim, &r, positions, tokens);
            for (int t = 0; t < tokens; t++) {
                for (int i = 0; i < stride; i++) {
                    int h = i / dim, k = i % dim;
                    double want = (double)was[t * stride + i];
                    if (h < heads && k < 2 * n) {
                        /* the angle itself is fp32, as in the models' own code */
                        double angle = (double)((float)positions[t] * freq[k % n]);
                        double other = (double)was[t * stride + h * dim + (k + n) % (2 * n)];
                        want = 1.25 * (want * cos(angle) + (k < n ? -other : other) * sin(angle));
                    }
                    float w = (float)want;
                    check_close(&x[t * stride + i], &w, 1, 1e-6f, b->ops->name);
                }
            }
            free(x);
            free(was);
        }
        b->ops->destroy(b);
    }
}

typedef void pointwise_op(struct backend *b, float *x, const float *y, int64_t n);

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double pointwise_expected(int op, double x, double y)
{
    switch (op) {
    case 0:
        return x * sigmoid(x) * y;
    case 1:
        return 0.5 * x * (1 + tanh(0.797884560802865355879892 * (x + 0.044715 * x * x * x))) * y;
    case 2:
        return x * sigmoid(y);
    default:
        return x + y;
    }
}

static void pointwise(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        pointwise_op *const ops[] = {
            b->ops->silu_mul,
            b->ops->gelu_mul,
            b->ops->sigmoid_mul,
            b->ops->add,
        };
        static const int sizes[] = {1, 15, 16, 17, 1000, 1024, 1025, 300000};
        for (int op = 0; op < 4; op++) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                size_t n = (size_t)sizes[s];
                float *x = random_floats(n + 1), *y = random_floats(n + 1);
                for (size_t i = 0; i < n; i++) {
                    x[i] *= i % 3 ? 5 : 120;
                    y[i] *= i % 5 ? 3 : 120;
                }
                float *was = copy_floats(x, n + 1);
                ops[op](b, x, y, (int64_t)n);
                for (size_t i = 0; i < n; i++) {
                    float want = (float)pointwise_expected(op, (double)was[i], (double)y[i]);
                    check_close(&x[i], &want, 1, 2e-6f, b->ops->name);
                }
                assert_memory_equal(&x[n], &was[n], sizeof *x); /* nothing past the end */
                for (size_t i = 0; i < n; i += 1 + n / 50) {    /* the same bits alone */
                    float one = was[i];
                    ops[op](b, &one, &y[i], 1);
                    check_bits(&x[i], &one, 1, b->ops->name);
                }
                free(x);
                free(y);
                free(was);
            }
        }
        b->ops->destroy(b);
    }
}

static void gather_and_slice(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        float *x = random_floats(10 * 24), out[10 * 24];
        static const int32_t index[] = {7, 0, 7, 9};
        b->ops->gather(b, x, index, 4, 24, out);
        for (int i = 0; i < 4; i++)
            assert_memory_equal(out + i * 24, x + index[i] * 24, 24 * sizeof *x);
        b->ops->slice(b, x, 10, 3, 8, 2, 5, out); /* columns 2 … 6 of each group of 8 */
        for (int i = 0; i < 10 * 3; i++)
            assert_memory_equal(out + i * 5, x + i * 8 + 2, 5 * sizeof *x);
        free(x);
        b->ops->destroy(b);
    }
}

static void memory(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        uint8_t *p = b->ops->alloc(b, 1000, NULL), out[1000];
        assert_int_equal((uintptr_t)p % 64, 0);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(p[i], 0);
        memset(out, 7, sizeof out);
        b->ops->write(b, p, out, 1000);
        memset(out, 0, sizeof out);
        b->ops->read(b, out, p, 1000);
        assert_int_equal(out[999], 7);
        b->ops->release(b, p, 1000);
        struct err e = {0};
        assert_null(b->ops->alloc(b, SIZE_MAX / 2, &e));
        assert_int_equal(e.code, ERR_NO_MEMORY);
        b->ops->destroy(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_rows),     cmocka_unit_test(rope_turns), cmocka_unit_test(pointwise),
        cmocka_unit_test(gather_and_slice), cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
