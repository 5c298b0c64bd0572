/* The reference level: every operation in the plainest C that is right. Matrices stay in the file's own
 * format and are decoded a row at a time; activations are fp32. The fast levels are checked against this
 * one, and it runs on any machine. Operations that need the sequences of a batch are in reference_seq.c. */
#include "ops/cpu/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct ref_mat {
    struct mat m;
    size_t row_bytes;
    uint8_t *data; /* [rows][row_bytes] */
};

static bool mat_supported(enum dtype dtype)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    return info->name && info->decodable;
}

static size_t mat_bytes(enum dtype dtype, int64_t rows, int64_t cols)
{
    return dtype_row_bytes(dtype, cols) * (size_t)rows;
}

static struct mat *mat_create(struct backend *b, const struct mat_source *src, struct err *e)
{
    (void)b;
    if (cpu_check_source(src, e))
        return NULL;
    size_t row_bytes = dtype_row_bytes(src->dtype, src->cols);
    size_t bytes = row_bytes * (size_t)src->rows;
    uint8_t *data = mem_map(bytes);
    if (!data) {
        err_set(e, ERR_NO_MEMORY, "the system refused %zu MB for a matrix", bytes >> 20);
        return NULL;
    }
    for (int64_t r = 0; r < src->rows; r++) {
        size_t from = (size_t)(src->row_map ? src->row_map[r] : r);
        memcpy(data + (size_t)r * row_bytes, (const uint8_t *)src->data + from * row_bytes, row_bytes);
    }
    struct ref_mat *m = mem_zalloc(1, sizeof *m);
    m->m = (struct mat){.rows = src->rows, .cols = src->cols, .dtype = src->dtype, .bytes = bytes};
    m->row_bytes = row_bytes;
    m->data = data;
    return &m->m;
}

static void mat_free(struct backend *b, struct mat *mat)
{
    (void)b;
    struct ref_mat *m = (struct ref_mat *)mat;
    if (!m)
        return;
    mem_unmap(m->data, m->m.bytes);
    free(m);
}

static void mat_row(const struct ref_mat *m, int64_t row, float *out)
{
    dtype_to_float(m->m.dtype, m->data + (size_t)row * m->row_bytes, out, m->m.cols);
}

static size_t scratch_bytes(const struct backend *b, int max_tokens, int64_t max_cols)
{
    (void)max_tokens; /* one decoded row a thread */
    const struct cpu *c = (const struct cpu *)b;
    return (size_t)pool_threads(c->pool) * (size_t)max_cols * sizeof(float);
}

static void embed(struct backend *b, const struct mat *mat, const int32_t *ids, int n, float scale,
                  float *out)
{
    (void)b;
    for (int i = 0; i < n; i++) {
        float *row = out + (size_t)i * (size_t)mat->cols;
        mat_row((const struct ref_mat *)mat, ids[i], row);
        for (int64_t c = 0; c < mat->cols; c++)
            row[c] *= scale;
    }
}

/* Σ a[i] b[i], in eight interleaved partial sums: better rounding than one sum, and still one fixed order. */
float ref_dot(const float *a, const float *b, int64_t n)
{
    float sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++)
        sum[j] += a[i] * b[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

struct matmul_job {
    struct cpu *cpu;
    const float *x; /* [n_tokens, cols] */
    int n_tokens;
    int64_t cols;
    const struct mat_use *uses;
};

/* Items are the rows of all matrices, one matrix after the other. */
static void matmul_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct matmul_job *j = arg;
    float *row = (float *)j->cpu->scratch + thread * j->cpu->max_cols;
    const struct mat_use *u = j->uses;
    int64_t base = 0; /* item of u's row 0 */
    for (int64_t item = begin; item < end; item++) {
        while (item - base >= u->w->rows)
            base += (u++)->w->rows;
        int64_t r = item - base;
        mat_row((const struct ref_mat *)u->w, r, row);
        for (int t = 0; t < j->n_tokens; t++) {
            float y = ref_dot(row, j->x + t * j->cols, j->cols);
            float *out = &u->out[t * u->w->rows + r];
            if (u->bias)
                y += u->bias[r];
            *out = u->add ? *out + y : y;
        }
    }
}

static void matmul(struct backend *b, const float *x, int n_tokens, struct mat_use *uses, int n_uses)
{
    struct cpu *c = cpu_of(b);
    struct matmul_job j = {.cpu = c, .x = x, .n_tokens = n_tokens, .cols = uses[0].w->cols, .uses = uses};
    assert(j.cols <= c->max_cols);
    int64_t rows = 0;
    for (int i = 0; i < n_uses; i++) {
        rows += uses[i].w->rows;
        cpu_count_matmul(b, uses[i].w, n_tokens);
    }
    pool_run(c->pool, matmul_rows, &j, rows, 16);
}

static void rmsnorm(struct backend *b, const float *x, size_t x_stride, const float *w, float eps,
                    int64_t rows, int dim, float *out, size_t out_stride)
{
    (void)b;
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + (size_t)r * x_stride;
        float *y = out + (size_t)r * out_stride;
        float inv = 1.0f / sqrtf(ref_dot(in, in, dim) / (float)dim + eps);
        for (int i = 0; i < dim; i++)
            y[i] = in[i] * inv * w[i];
    }
}

static void rope(struct backend *b, float *x, size_t stride, int n_heads, int head_dim, const struct rope *r,
                 const int32_t *positions, int n_tokens)
{
    (void)b;
    for (int t = 0; t < n_tokens; t++) {
        for (int i = 0; i < r->n_freq; i++) {
            float angle = (float)positions[t] * r->inv_freq[i];
            float cosine = cosf(angle) * r->magnitude, sine = sinf(angle) * r->magnitude;
            for (int h = 0; h < n_heads; h++) {
                float *v = x + (size_t)t * stride + (size_t)h * (size_t)head_dim;
                float lo = v[i], hi = v[i + r->n_freq];
                v[i] = lo * cosine - hi * sine;
                v[i + r->n_freq] = hi * cosine + lo * sine;
            }
        }
    }
}

static void silu_mul(struct backend *b, float *gate, const float *up, int64_t n)
{
    (void)b;
    for (int64_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

/* x/2 (1 + tanh u) as x / (1 + e^-2u): nothing cancels where tanh is near -1. */
static void gelu_mul(struct backend *b, float *gate, const float *up, int64_t n)
{
    (void)b;
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i];
        float u = 0.797884560802865f * (x + 0.044715f * x * x * x); /* sqrt(2/pi) */
        gate[i] = x / (1.0f + expf(-2.0f * u)) * up[i];
    }
}

static void sigmoid_mul(struct backend *b, float *x, const float *gate, int64_t n)
{
    (void)b;
    for (int64_t i = 0; i < n; i++)
        x[i] *= 1.0f / (1.0f + expf(-gate[i]));
}

static void add(struct backend *b, float *x, const float *y, int64_t n)
{
    (void)b;
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

const struct backend_ops cpu_ops_reference = {
    .name = "cpu/reference",
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .write = cpu_write,
    .read = cpu_read,
    .mat_supported = mat_supported,
    .mat_bytes = mat_bytes,
    .mat_create = mat_create,
    .mat_free = mat_free,
    .scratch_bytes = scratch_bytes,
    .reserve = cpu_reserve,
    .embed = embed,
    .matmul = matmul,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .kv_write = ref_kv_write,
    .attention = ref_attention,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .sigmoid_mul = sigmoid_mul,
    .add = add,
    .threads = cpu_threads,
    .parallel = cpu_parallel,
    .gather = cpu_gather,
    .slice = cpu_slice,
    .conv1d = ref_conv1d,
    .delta_net = ref_delta_net,
};
