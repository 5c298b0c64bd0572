/* Matrix products and embedding rows of every level against decoded weights, for every type, odd shapes and
 * token counts; law 1 (each byte once) and law 3 (company and threads change no bit). */
#include "ops_test.h"

/* A matrix of random blocks of a type whose weights are finite and not large, with its decoded rows. */
struct test_mat {
    struct mat_source src;
    uint8_t *data;
    float *rows; /* [rows, cols], row map applied */
    int32_t *row_map;
};

static struct test_mat test_mat(enum dtype dtype, int rows, int cols, bool mapped)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    size_t row_bytes = dtype_row_bytes(dtype, cols);
    struct test_mat m = {.data = malloc(row_bytes * (size_t)rows),
                         .rows = malloc((size_t)rows * (size_t)cols * sizeof(float)),
                         .row_map = mapped ? malloc((size_t)rows * sizeof(int32_t)) : NULL};
    float decoded[256];
    for (size_t b = 0; b < row_bytes * (size_t)rows / (size_t)info->bytes; b++) {
        uint8_t *block = m.data + b * (size_t)info->bytes;
        float most;
        int tries = 0;
        do {
            for (int i = 0; i < info->bytes; i++)
                block[i] = (uint8_t)random_bits();
            dtype_to_float(dtype, block, decoded, info->block);
            most = 0;
            for (int i = 0; i < info->block; i++)
                most = !(fabsf(decoded[i]) <= most) ? fabsf(decoded[i]) : most;
        } while (!(most < 8 && most > 1e-4f) && tries++ < 1000);
        if (tries > 1000)
            memset(block, 0, (size_t)info->bytes);
    }
    for (int r = 0; r < rows; r++) {
        int from = mapped ? (r * 7 + 3) % rows : r; /* not always a permutation; any map will do */
        if (mapped)
            m.row_map[r] = from;
        dtype_to_float(dtype, m.data + (size_t)from * row_bytes, m.rows + (size_t)r * (size_t)cols, cols);
    }
    m.src = (struct mat_source){dtype, rows, cols, m.data, m.row_map};
    return m;
}

static void test_mat_free(struct test_mat *m)
{
    free(m->data);
    free(m->rows);
    free(m->row_map);
}

/* The most that rounding activations to 1/127 of their block's maximum, and fp32 sums, can do to w·x. */
static double error_bound(const float *w, const float *x, int n, bool rounded)
{
    double bound = 0;
    for (int k = 0; k < n; k += 32) {
        double most = 0, weight = 0, product = 0;
        for (int i = k; i < n && i < k + 32; i++) {
            most = fmax(most, fabs((double)x[i]));
            weight += fabs((double)w[i]);
            product += fabs((double)w[i] * (double)x[i]);
        }
        bound += (rounded ? most / 127 * 0.5001 * weight : 0) + product * 1e-5;
    }
    /* Types with a minimum add sums that partly cancel: their rounding is bounded by the larger terms. */
    return bound + 1e-5 * n;
}

static const int shapes[][2] = {{1, 256},  {2, 256},  {7, 512},  {8, 256},   {15, 768}, {16, 256},
                                {17, 256}, {31, 512}, {33, 256}, {37, 1024}, {64, 256}, {80, 256}};
static const int token_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 23, 25, 41};

static void check_product(struct backend *b, const struct test_mat *m, const struct mat *w, int n_tokens,
                          bool rounded, const char *what)
{
    int rows = (int)m->src.rows, cols = (int)m->src.cols;
    float *x = random_floats((size_t)n_tokens * (size_t)cols);
    float *bias = random_floats((size_t)rows), *before = random_floats((size_t)(n_tokens * rows));
    float *out = copy_floats(before, (size_t)(n_tokens * rows));
    struct mat_use use = {w, random_bits() % 2 ? bias : NULL, out, random_bits() % 2};
    b->ops->matmul(b, x, n_tokens, &use, 1);
    for (int t = 0; t < n_tokens; t++) {
        for (int r = 0; r < rows; r++) {
            const float *wr = m->rows + (size_t)r * (size_t)cols, *xt = x + t * cols;
            double want = (use.bias ? (double)bias[r] : 0) + (use.add ? (double)before[t * rows + r] : 0);
            for (int k = 0; k < cols; k++)
                want += (double)wr[k] * (double)xt[k];
            double error = fabs((double)out[t * rows + r] - want), most = error_bound(wr, xt, cols, rounded);
            if (!(error <= most))
                fail_msg("%s, %d x %d, %d tokens: token %d row %d is %g, should be %g +- %g", what, rows,
                         cols, n_tokens, t, r, (double)out[t * rows + r], want, most);
        }
    }
    free(x);
    free(bias);
    free(before);
    free(out);
}

static bool is_float(enum dtype d)
{
    return d == DT_F32 || d == DT_F16 || d == DT_BF16;
}

static bool is_weight_type(int d)
{
    const struct dtype_info *info = dtype_info(d);
    return info->name && info->decodable && d != DT_F64 && d != DT_I8 && d != DT_I16 && d != DT_I32 &&
           d != DT_I64;
}

static void products_of_every_type(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        bool exact = !strcmp(test_level(l), "reference");
        for (int d = 0; d < DT_COUNT; d++) {
            if (!is_weight_type(d))
                continue;
            char what[64];
            snprintf(what, sizeof what, "%s %s", b->ops->name, dtype_info(d)->name);
            for (size_t s = (size_t)d % 2; s < sizeof shapes / sizeof shapes[0]; s += 2) {
                int cols = shapes[s][1];
                if (dtype_info(d)->block == 1)
                    cols -= random_int(0, 40);
                else if (dtype_info(d)->block == 32)
                    cols -= 32 * random_int(0, 3);
                struct test_mat m = test_mat((enum dtype)d, shapes[s][0], cols, s % 3 == 1);
                struct err e = {0};
                struct mat *w = b->ops->mat_create(b, &m.src, &e);
                if (!w)
                    fail_msg("%s: %s", what, e.msg);
                assert_int_equal(w->bytes, b->ops->mat_bytes((enum dtype)d, w->rows, w->cols));
                for (size_t n = s % 4; n < sizeof token_counts / sizeof token_counts[0]; n += 4)
                    check_product(b, &m, w, token_counts[n], !exact && !is_float((enum dtype)d), what);
                b->ops->mat_free(b, w);
                test_mat_free(&m);
            }
        }
        b->ops->destroy(b);
    }
}

/* A packed matrix still holds exactly what the file said. */
static void rows_are_exact(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        for (int d = 0; d < DT_COUNT; d++) {
            if (!is_weight_type(d))
                continue;
            int rows = 37, cols = dtype_info(d)->block == 1 ? 77 : dtype_info(d)->block == 32 ? 352 : 512;
            struct test_mat m = test_mat((enum dtype)d, rows, cols, d % 2);
            struct mat *w = b->ops->mat_create(b, &m.src, NULL);
            assert_non_null(w);
            float *out = malloc((size_t)(rows * cols) * sizeof *out);
            int32_t ids[37];
            for (int i = 0; i < rows; i++)
                ids[i] = rows - 1 - i;
            for (int scaled = 0; scaled < 2; scaled++) {
                float scale = scaled ? 5.5f : 1.0f;
                b->ops->embed(b, w, ids, rows, scale, out);
                for (int i = 0; i < rows * cols; i++) {
                    float want = m.rows[ids[i / cols] * cols + i % cols] * scale;
                    if (!(fabsf(out[i] - want) <= fabsf(want) * 0x1p-23f))
                        fail_msg("%s %s: row %d column %d is %a, the file says %a", b->ops->name,
                                 dtype_info(d)->name, ids[i / cols], i % cols, (double)out[i], (double)want);
                }
            }
            free(out);
            b->ops->mat_free(b, w);
            test_mat_free(&m);
        }
        b->ops->destroy(b);
    }
}

/* Law 3: a token's outputs are the same bits alone, in any company, with any number of threads. */
static void company_changes_no_bit(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *backends[3] = {test_backend(test_level(l), 1), test_backend(test_level(l), 2),
                                       test_backend(test_level(l), 4)};
        for (int d = 0; d < DT_COUNT; d++) {
            if (!is_weight_type(d))
                continue;
            int rows = 43, cols = 256;
            struct test_mat m = test_mat((enum dtype)d, rows, cols, false);
            float *x = random_floats((size_t)(41 * cols)),
                  *alone = malloc((size_t)(41 * rows) * sizeof *alone);
            float *out = malloc((size_t)(41 * rows) * sizeof *out);
            for (int i = 0; i < 3; i++) {
                struct backend *b = backends[i];
                struct mat *w = b->ops->mat_create(b, &m.src, NULL);
                for (int t = 0; i == 0 && t < 41; t++) {
                    struct mat_use use = {w, NULL, alone + t * rows, false};
                    b->ops->matmul(b, x + t * cols, 1, &use, 1);
                }
                for (size_t n = 0; n < sizeof token_counts / sizeof token_counts[0]; n++) {
                    struct mat_use use = {w, NULL, out, false};
                    int first = random_int(0, 41 - token_counts[n]);
                    b->ops->matmul(b, x + first * cols, token_counts[n], &use, 1);
                    char what[128];
                    snprintf(what, sizeof what, "%s %s, tokens %d … of %d, %d threads", b->ops->name,
                             dtype_info(d)->name, first, token_counts[n], 1 << i);
                    check_bits(out, alone + first * rows, (size_t)(token_counts[n] * rows), what);
                }
                b->ops->mat_free(b, w);
            }
            free(x);
            free(alone);
            free(out);
            test_mat_free(&m);
        }
        for (int i = 0; i < 3; i++)
            backends[i]->ops->destroy(backends[i]);
    }
}

/* Several matrices in one call: each gets what it would get alone, and is streamed once (law 1). */
static void one_stream_a_call(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_Q4_K, DT_F32, DT_BF16, DT_Q6_K, DT_Q8_0};
    static const int rows[] = {48, 5, 33, 100, 16};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 3);
        struct test_mat m[5];
        struct mat *w[5];
        struct mat_use uses[5];
        uint64_t bytes = 0;
        for (int i = 0; i < 5; i++) {
            m[i] = test_mat(types[i], rows[i], 256, false);
            w[i] = b->ops->mat_create(b, &m[i].src, NULL);
            assert_non_null(w[i]);
            bytes += w[i]->bytes;
            uses[i] = (struct mat_use){w[i], NULL, malloc((size_t)(17 * rows[i]) * sizeof(float)), false};
        }
        float *x = random_floats(17 * 256), *single = malloc(17 * 100 * sizeof *single);
        static const int counts[] = {1, 4, 17};
        for (int n = 0; n < 3; n++) {
            for (int i = 0; i < 5; i++)
                w[i]->reads = 0;
            b->count = (struct op_counts){0};
            b->ops->matmul(b, x, counts[n], uses, 5);
            assert_int_equal(b->count.weight_bytes, bytes);
            assert_int_equal(b->count.flops, 2u * 202 * 256 * (unsigned)counts[n]);
            for (int i = 0; i < 5; i++) {
                assert_int_equal(w[i]->reads, 1);
                struct mat_use use = {w[i], NULL, single, false};
                b->ops->matmul(b, x, counts[n], &use, 1);
                check_bits(uses[i].out, single, (size_t)(counts[n] * rows[i]), b->ops->name);
            }
        }
        for (int i = 0; i < 5; i++) {
            b->ops->mat_free(b, w[i]);
            free(uses[i].out);
            test_mat_free(&m[i]);
        }
        free(x);
        free(single);
        b->ops->destroy(b);
    }
}

/* Activations that cannot be scaled to int8 the ordinary way. */
static void strange_activations(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        struct test_mat m = test_mat(DT_Q4_1, 20, 256, false);
        struct mat *w = b->ops->mat_create(b, &m.src, NULL);
        float x[256] = {0}, out[20];
        struct mat_use use = {w, NULL, out, false};
        b->ops->matmul(b, x, 1, &use, 1);
        for (int r = 0; r < 20; r++)
            assert_true(out[r] == 0);
        x[3] = 1e-40f;
        x[200] = 1e-35f;
        b->ops->matmul(b, x, 1, &use, 1);
        for (int r = 0; r < 20; r++)
            assert_true(fabsf(out[r]) < 1e-30f);
        x[100] = NAN;
        b->ops->matmul(b, x, 1, &use, 1);
        for (int r = 0; r < 20; r++)
            assert_true(isnan(out[r])); /* a broken value shows, it does not become a plausible number */
        b->ops->mat_free(b, w);
        test_mat_free(&m);
        b->ops->destroy(b);
    }
}

static void bad_sources_are_refused(void **state)
{
    (void)state;
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 1);
        struct err e = {0};
        uint8_t data[64] = {0};
        struct mat_source src = {DT_Q4_0, 1, 33, data, NULL};
        assert_null(b->ops->mat_create(b, &src, &e));
        assert_non_null(strstr(e.msg, "blocks of 32"));
        src = (struct mat_source){(enum dtype)5, 1, 32, data, NULL};
        assert_null(b->ops->mat_create(b, &src, &e));
        assert_int_equal(e.code, ERR_UNSUPPORTED);
        src = (struct mat_source){DT_F32, 0, 32, data, NULL};
        assert_null(b->ops->mat_create(b, &src, &e));
        src = (struct mat_source){DT_F32, INT64_C(1) << 40, INT64_C(1) << 40, data, NULL};
        assert_null(b->ops->mat_create(b, &src, &e));
        b->ops->destroy(b);
    }
}

static void levels(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(backend_cpu("sse9", 1, &e));
    assert_non_null(strstr(e.msg, "sse9"));
    assert_non_null(strstr(e.msg, backend_cpu_levels()));
    assert_null(backend_cpu("reference", 0, &e));
    setenv("SLUICE_CPU", "reference", 1);
    struct backend *b = backend_cpu(NULL, 1, &e);
    assert_string_equal(b->ops->name, "cpu/reference");
    b->ops->destroy(b);
    setenv("SLUICE_CPU", "avx1024", 1);
    assert_null(backend_cpu(NULL, 1, &e));
    assert_non_null(strstr(e.msg, "SLUICE_CPU"));
    unsetenv("SLUICE_CPU");
    b = backend_cpu(NULL, 1, &e);
    assert_int_equal(strncmp(b->ops->name + 4, backend_cpu_levels(), strlen(b->ops->name) - 4), 0);
    b->ops->destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_type),
        cmocka_unit_test(rows_are_exact),
        cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(one_stream_a_call),
        cmocka_unit_test(strange_activations),
        cmocka_unit_test(bad_sources_are_refused),
        cmocka_unit_test(levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
