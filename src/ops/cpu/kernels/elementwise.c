/* Norm, rotary embedding and the pointwise functions. Tails go through the same vector code under a mask, so
 * a value's bits do not depend on its place in the row. */
#include "ops/cpu/kernels/kernels.h"

#include <math.h>

/* --- rmsnorm --- */

struct rmsnorm_job {
    const float *x, *w;
    float *out;
    size_t x_stride, out_stride;
    float eps;
    int dim;
};

static void rmsnorm_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct rmsnorm_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + (size_t)r * j->x_stride;
        float *out = j->out + (size_t)r * j->out_stride;
        vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        int i = 0;
        for (; i + 4 * P <= j->dim; i += 4 * P) {
            for (int n = 0; n < 4; n++) {
                vf v = vf_load(x + i + n * P);
                sum[n] = vf_fma(v, v, sum[n]);
            }
        }
        for (; i < j->dim; i += P) {
            vf v = vf_load_masked(x + i, vmask_left(i, j->dim));
            sum[0] = vf_fma(v, v, sum[0]);
        }
        float total = vf_hsum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
        vf inverse = vf_set1(1.0f / sqrtf(total / (float)j->dim + j->eps));
        for (i = 0; i < j->dim; i += P) {
            vmask on = vmask_left(i, j->dim);
            vf y = vf_mul(vf_mul(vf_load_masked(x + i, on), inverse), vf_load_masked(j->w + i, on));
            vf_store_masked(out + i, on, y);
        }
    }
}

void LEVEL_NAME(cpu_rmsnorm)(struct backend *b, const float *x, size_t x_stride, const float *w, float eps,
                             int64_t rows, int dim, float *out, size_t out_stride)
{
    struct rmsnorm_job j = {x, w, out, x_stride, out_stride, eps, dim};
    run_items(b, rmsnorm_rows, &j, rows, dim);
}

/* --- rope --- */

/* sin and cos of P angles. The quadrant is taken off in double precision, so that large positions lose
 * nothing; then the Taylor polynomials of sin and cos on +-pi/4, good to an ulp. */
static void sincos_lanes(const float angle[P], float sine[P], float cosine[P])
{
    for (int i = 0; i < P; i++) {
        double a = (double)angle[i], n = rint(a * 0.63661977236758134308);
        double d = (a - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a626331p-34; /* pi/2 in two parts */
        float r = (float)d, r2 = r * r;
        float s = -1.0f / 39916800;
        s = s * r2 + 1.0f / 362880;
        s = s * r2 - 1.0f / 5040;
        s = s * r2 + 1.0f / 120;
        s = s * r2 - 1.0f / 6;
        s = s * r2 * r + r;
        float c = 1.0f / 479001600;
        c = c * r2 - 1.0f / 3628800;
        c = c * r2 + 1.0f / 40320;
        c = c * r2 - 1.0f / 720;
        c = c * r2 + 1.0f / 24;
        c = c * r2 * r2 - 0.5f * r2 + 1.0f;
        int quadrant = (int)((int64_t)n & 3);
        float sin_abs = quadrant & 1 ? c : s, cos_abs = quadrant & 1 ? s : c;
        sine[i] = quadrant & 2 ? -sin_abs : sin_abs;
        cosine[i] = quadrant == 1 || quadrant == 2 ? -cos_abs : cos_abs;
    }
}

struct rope_job {
    float *x;
    size_t stride;
    int n_heads, head_dim;
    const struct rope *r;
    const int32_t *positions;
};

static void rope_tokens(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct rope_job *j = arg;
    int n = j->r->n_freq;
    for (int64_t t = begin; t < end; t++) {
        for (int i = 0; i < n; i += P) {
            vmask on = vmask_left(i, n);
            float angle[P] = {0}, sine[P], cosine[P];
            for (int l = 0; l < P && i + l < n; l++)
                angle[l] = (float)j->positions[t] * j->r->inv_freq[i + l];
            sincos_lanes(angle, sine, cosine);
            vf s = vf_mul(vf_load(sine), vf_set1(j->r->magnitude));
            vf c = vf_mul(vf_load(cosine), vf_set1(j->r->magnitude));
            for (int h = 0; h < j->n_heads; h++) {
                float *v = j->x + (size_t)t * j->stride + (size_t)h * (size_t)j->head_dim + i;
                vf low = vf_load_masked(v, on), high = vf_load_masked(v + n, on);
                vf_store_masked(v, on, vf_sub(vf_mul(low, c), vf_mul(high, s)));
                vf_store_masked(v + n, on, vf_add(vf_mul(high, c), vf_mul(low, s)));
            }
        }
    }
}

void LEVEL_NAME(cpu_rope)(struct backend *b, float *x, size_t stride, int n_heads, int head_dim,
                          const struct rope *r, const int32_t *positions, int n_tokens)
{
    struct rope_job j = {x, stride, n_heads, head_dim, r, positions};
    run_items(b, rope_tokens, &j, n_tokens, (int64_t)r->n_freq * (20 + 2 * n_heads));
}

/* --- pointwise --- */

struct pointwise_job {
    float *x;
    const float *y;
    int64_t n;
};

/* A function over vectors of x and y, and the pool job over runs of CHUNK values. */
#define CHUNK 1024
#define POINTWISE(name, expression, cost)                                                \
    static void name##_chunks(void *arg, int64_t begin, int64_t end, int thread)         \
    {                                                                                    \
        (void)thread;                                                                    \
        const struct pointwise_job *j = arg;                                             \
        int64_t last = end * CHUNK < j->n ? end * CHUNK : j->n;                          \
        for (int64_t i = begin * CHUNK; i < last; i += P) {                              \
            vmask on = vmask_left(i, last);                                              \
            vf x = vf_load_masked(j->x + i, on), y = vf_load_masked(j->y + i, on);       \
            vf_store_masked(j->x + i, on, expression);                                   \
        }                                                                                \
    }                                                                                    \
    void LEVEL_NAME(cpu_##name)(struct backend * b, float *x, const float *y, int64_t n) \
    {                                                                                    \
        struct pointwise_job j = {x, y, n};                                              \
        run_items(b, name##_chunks, &j, (n + CHUNK - 1) / CHUNK, CHUNK * (cost));        \
    }

INLINE vf sigmoid(vf x)
{
    return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

INLINE vf silu(vf x)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE vf gelu_tanh(vf x)
{
    vf cube = vf_mul(vf_mul(x, x), vf_mul(x, vf_set1(0.044715f)));
    vf u = vf_mul(vf_set1(-2 * 0.797884560802865f), vf_add(x, cube));
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(u)));
}

POINTWISE(silu_mul, vf_mul(silu(x), y), 4)
POINTWISE(gelu_mul, vf_mul(gelu_tanh(x), y), 4)
POINTWISE(sigmoid_mul, vf_mul(x, sigmoid(y)), 4)
POINTWISE(add, vf_add(x, y), 1)
