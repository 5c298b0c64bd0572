/* conv1d and delta_net of every level against the formulas in double precision; chunks, company, threads and
 * used slots change no bit (law 3, and no state leaks between requests). */
#include "ops_test.h"

#include "ops/cpu/cpu.h"

#define N_SEQS  3
#define LENGTH  50
#define N_SLOTS 5

struct shape {
    int kh, vh, kd, vd; /* delta net */
    bool tiled;
    int kernel, channels; /* convolution */
};
static const struct shape shapes[] = {
    {4, 8, 128, 128, false, 4, 2048}, {2, 4, 16, 16, true, 4, 77},  {1, 3, 32, 20, true, 2, 16},
    {2, 2, 24, 64, false, 1, 300},    {3, 6, 33, 72, false, 9, 31}, {1, 1, 8, 5, true, 20, 40},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static const enum dtype types[] = {DT_F32, DT_BF16}; /* of states */

struct scene {
    struct shape s;
    enum dtype type;
    int qkv_row;                    /* floats */
    size_t conv_state, delta_state; /* bytes */
    float *qkv, *a, *b;             /* [N_SEQS, LENGTH, …] */
    float *neg_exp_a, *dt_bias;
    float *conv_x, *conv_w;
};

static struct scene scene(struct shape s, enum dtype type)
{
    size_t size = state_value_bytes(type);
    struct scene w = {.s = s,
                      .type = type,
                      .qkv_row = 2 * s.kh * s.kd + s.vh * s.vd,
                      .conv_state = (size_t)((s.kernel - 1) * s.channels) * size,
                      .delta_state = (size_t)(s.vh * s.kd * s.vd) * size};
    size_t n = N_SEQS * LENGTH;
    w.qkv = random_floats(n * (size_t)w.qkv_row);
    w.a = random_floats(n * (size_t)s.vh);
    w.b = random_floats(n * (size_t)s.vh);
    w.neg_exp_a = random_floats((size_t)s.vh);
    w.dt_bias = random_floats((size_t)s.vh);
    w.conv_x = random_floats(n * (size_t)s.channels);
    w.conv_w = random_floats((size_t)(s.channels * s.kernel));
    for (int h = 0; h < s.vh; h++)
        w.neg_exp_a[h] = -fabsf(w.neg_exp_a[h]);
    w.a[3] = 40; /* beyond where softplus is computed in full */
    return w;
}

static void scene_free(struct scene *w)
{
    free(w->qkv);
    free(w->a);
    free(w->b);
    free(w->neg_exp_a);
    free(w->dt_bias);
    free(w->conv_x);
    free(w->conv_w);
}

static void check_bytes(const char *got, const char *want, size_t n, const char *what)
{
    if (memcmp(got, want, n))
        fail_msg("%s: other bytes", what);
}

/* Rows `from … from+n-1` of a sequence appended to a batch array of row width `width`. */
static void put(float *to, int at, const float *all, int seq, int from, int n, int width)
{
    memcpy(to + (size_t)at * (size_t)width, all + (size_t)(seq * LENGTH + from) * (size_t)width,
           (size_t)(n * width) * sizeof *to);
}

struct result {
    float *conv, *delta;            /* [N_SEQS, LENGTH, channels], [.., vh*vd] */
    char *conv_state, *delta_state; /* [N_SLOTS, …] */
};

static struct result result(const struct scene *w)
{
    return (struct result){
        calloc((size_t)(N_SEQS * LENGTH * w->s.channels), sizeof(float)),
        calloc((size_t)(N_SEQS * LENGTH * w->s.vh * w->s.vd), sizeof(float)),
        calloc(N_SLOTS, w->conv_state + 1),
        calloc(N_SLOTS, w->delta_state),
    };
}

static void result_free(struct result *r)
{
    free(r->conv);
    free(r->delta);
    free(r->conv_state);
    free(r->delta_state);
}

/* Runs sequence i in slot slots[i] (or only sequence `only`), chunk by chunk, from dirty slots. */
static void run(struct backend *b, const struct scene *w, const int *chunks, int n_chunks, int only,
                const int slots[N_SEQS], struct result *r)
{
    const struct shape *s = &w->s;
    int done[N_SEQS] = {0}, out_row = s->vh * s->vd;
    memset(r->conv_state, 0xff, N_SLOTS * w->conv_state); /* the last user's: NaN */
    memset(r->delta_state, 0xff, N_SLOTS * w->delta_state);
    size_t n_max = TEST_MAX_TOKENS;
    float *qkv = malloc(n_max * (size_t)w->qkv_row * sizeof *qkv),
          *a = malloc(n_max * (size_t)s->vh * sizeof *a);
    float *bb = malloc(n_max * (size_t)s->vh * sizeof *bb),
          *out = malloc(n_max * (size_t)out_row * sizeof *out);
    float *cx = malloc(n_max * (size_t)s->channels * sizeof *cx),
          *co = malloc(n_max * (size_t)s->channels * sizeof *co);
    for (int step = 0;; step++) {
        struct seq_slice seqs[N_SEQS];
        int which[N_SEQS];
        int32_t positions[TEST_MAX_TOKENS];
        struct batch batch = {.positions = positions, .seqs = seqs};
        for (int i = 0; i < N_SEQS; i++) {
            int n = chunks[(step + (only < 0 ? i : 0)) % n_chunks];
            if (n > LENGTH - done[i])
                n = LENGTH - done[i];
            if (n > TEST_MAX_TOKENS - batch.n_tokens)
                n = TEST_MAX_TOKENS - batch.n_tokens;
            if (n == 0 || (only >= 0 && i != only))
                continue;
            put(qkv, batch.n_tokens, w->qkv, i, done[i], n, w->qkv_row);
            put(a, batch.n_tokens, w->a, i, done[i], n, s->vh);
            put(bb, batch.n_tokens, w->b, i, done[i], n, s->vh);
            put(cx, batch.n_tokens, w->conv_x, i, done[i], n, s->channels);
            which[batch.n_seqs] = i;
            seqs[batch.n_seqs++] =
                (struct seq_slice){.first = batch.n_tokens, .count = n, .state_slot = slots[i]};
            for (int t = 0; t < n; t++)
                positions[batch.n_tokens++] = done[i]++;
        }
        if (batch.n_tokens == 0)
            break;
        struct conv1d c = {s->channels, s->kernel, w->conv_w, cx, co, r->conv_state, w->conv_state, w->type};
        b->ops->conv1d(b, &c, &batch);
        struct delta_net d = {s->kh, s->vh, s->kd, s->vd, s->tiled,       w->neg_exp_a,   w->dt_bias, 1e-6f,
                              qkv,   a,     bb,    out,   r->delta_state, w->delta_state, w->type};
        b->ops->delta_net(b, &d, &batch);
        for (int i = 0; i < batch.n_seqs; i++) {
            size_t row = (size_t)(which[i] * LENGTH + positions[seqs[i].first]), n = (size_t)seqs[i].count;
            memcpy(r->delta + row * (size_t)out_row, out + seqs[i].first * out_row,
                   n * (size_t)out_row * sizeof *out);
            memcpy(r->conv + row * (size_t)s->channels, co + seqs[i].first * s->channels,
                   n * (size_t)s->channels * sizeof *out);
        }
    }
    free(qkv);
    free(a);
    free(bb);
    free(out);
    free(cx);
    free(co);
}

static double kept(const struct scene *w, double x)
{
    return w->type == DT_F32 ? x : (double)bf16_to_float(float_to_bf16((float)x));
}

static void expected(const struct scene *w, struct result *r)
{
    const struct shape *s = &w->s;
    for (int seq = 0; seq < N_SEQS; seq++) {
        for (int t = 0; t < LENGTH; t++) {
            int row = seq * LENGTH + t;
            for (int c = 0; c < s->channels; c++) {
                double y = 0;
                for (int i = 0; i < s->kernel; i++)
                    if (t - s->kernel + 1 + i >= 0)
                        y += (double)w->conv_w[c * s->kernel + i] *
                             (i + 1 < s->kernel
                                  ? kept(w, (double)w->conv_x[(row - s->kernel + 1 + i) * s->channels + c])
                                  : (double)w->conv_x[row * s->channels + c]);
                r->conv[row * s->channels + c] = (float)(y / (1 + exp(-y)));
            }
        }
        for (int h = 0; h < s->vh; h++) {
            double *S = calloc((size_t)(s->kd * s->vd), sizeof *S);
            int kh = s->tiled ? h % s->kh : h / (s->vh / s->kh);
            for (int t = 0; t < LENGTH; t++) {
                int row = seq * LENGTH + t;
                const float *q = w->qkv + row * w->qkv_row + kh * s->kd, *k = q + s->kh * s->kd;
                const float *v = w->qkv + row * w->qkv_row + 2 * s->kh * s->kd + h * s->vd;
                double qq = 1e-6, kk = 1e-6;
                for (int i = 0; i < s->kd; i++) {
                    qq += (double)q[i] * (double)q[i];
                    kk += (double)k[i] * (double)k[i];
                }
                double dt = (double)w->a[row * s->vh + h] + (double)w->dt_bias[h];
                double decay = exp((double)w->neg_exp_a[h] * log1p(exp(dt)));
                double beta = 1 / (1 + exp(-(double)w->b[row * s->vh + h]));
                for (int c = 0; c < s->vd; c++) {
                    double recalled = 0, o = 0;
                    for (int i = 0; i < s->kd; i++)
                        recalled += (S[i * s->vd + c] *= decay) * (double)k[i] / sqrt(kk);
                    for (int i = 0; i < s->kd; i++) {
                        S[i * s->vd + c] += (double)k[i] / sqrt(kk) * beta * ((double)v[c] - recalled);
                        o += S[i * s->vd + c] * (double)q[i] / sqrt(qq) / sqrt(s->kd);
                        S[i * s->vd + c] = kept(w, S[i * s->vd + c]);
                    }
                    r->delta[row * s->vh * s->vd + h * s->vd + c] = (float)o;
                }
            }
            free(S);
        }
    }
}

static void results_are_right(void **state)
{
    (void)state;
    static const int mixed[] = {9, 1, 30, 2}, slots[N_SEQS] = {4, 0, 2};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        for (size_t i = 0; i < 2 * N_SHAPES; i++) {
            struct scene w = scene(shapes[i / 2], types[i % 2]);
            struct result want = result(&w), got = result(&w);
            expected(&w, &want);
            run(b, &w, mixed, 4, -1, slots, &got);
            char what[64];
            snprintf(what, sizeof what, "%s, shape %zu, state type %d", b->ops->name, i / 2, (int)w.type);
            check_close(got.conv, want.conv, (size_t)(N_SEQS * LENGTH * w.s.channels), 3e-6f, what);
            /* A bf16 state may be rounded the other way where the sums differ in their last bit. */
            check_close(got.delta, want.delta, (size_t)(N_SEQS * LENGTH * w.s.vh * w.s.vd),
                        w.type == DT_F32 ? 3e-6f : 2e-3f, what);
            result_free(&want);
            result_free(&got);
            scene_free(&w);
        }
        b->ops->destroy(b);
    }
}

static void company_changes_no_bit(void **state)
{
    (void)state;
    static const int single[] = {1}, whole[] = {LENGTH}, seven[] = {7}, mixed[] = {3, 40, 1, 17};
    static const int slots[N_SEQS] = {4, 0, 2}, others[N_SEQS] = {1, 3, 4};
    for (int l = 0; test_level(l); l++) {
        struct backend *backends[3] = {test_backend(test_level(l), 1), test_backend(test_level(l), 2),
                                       test_backend(test_level(l), 4)};
        for (size_t i = 0; i < 2 * N_SHAPES; i++) {
            struct scene w = scene(shapes[i / 2], types[i % 2]);
            struct result alone = result(&w), got = result(&w), part = result(&w);
            size_t n_conv = (size_t)(N_SEQS * LENGTH * w.s.channels);
            size_t n_delta = (size_t)(N_SEQS * LENGTH * w.s.vh * w.s.vd);
            for (int seq = 0; seq < N_SEQS; seq++) {
                run(backends[0], &w, single, 1, seq, slots, &alone);
                run(backends[0], &w, whole, 1, seq, others, &got);
                size_t at = (size_t)slots[seq], other = (size_t)others[seq];
                check_bytes(got.conv_state + other * w.conv_state, alone.conv_state + at * w.conv_state,
                            w.conv_state, "conv state");
                check_bytes(got.delta_state + other * w.delta_state, alone.delta_state + at * w.delta_state,
                            w.delta_state, "delta state");
            }
            check_bits(got.conv, alone.conv, n_conv, "conv, whole prompts");
            check_bits(got.delta, alone.delta, n_delta, "delta net, whole prompts");
            run(backends[1], &w, seven, 1, -1, slots, &part);
            check_bits(part.conv, alone.conv, n_conv, "conv, sevens, 2 threads");
            check_bits(part.delta, alone.delta, n_delta, "delta net, sevens, 2 threads");
            run(backends[2], &w, mixed, 4, -1, others, &part);
            check_bits(part.conv, alone.conv, n_conv, "conv, mixed, 4 threads");
            check_bits(part.delta, alone.delta, n_delta, "delta net, mixed, 4 threads");
            result_free(&alone);
            result_free(&got);
            result_free(&part);
            scene_free(&w);
        }
        for (int i = 0; i < 3; i++)
            backends[i]->ops->destroy(backends[i]);
    }
}

/* One sequence's tokens from … to-1, with state copied in and out as `seq` asks. */
static void run_slice(struct backend *b, const struct scene *w, int from, int to, struct seq_slice seq,
                      struct result *r)
{
    const struct shape *s = &w->s;
    int32_t positions[LENGTH];
    for (int t = from; t < to; t++)
        positions[t - from] = t;
    seq.count = to - from;
    struct batch batch = {.n_tokens = seq.count, .positions = positions, .n_seqs = 1, .seqs = &seq};
    struct conv1d c = {.channels = s->channels,
                       .kernel = s->kernel,
                       .weight = w->conv_w,
                       .x = w->conv_x + from * s->channels,
                       .out = r->conv + from * s->channels,
                       .state = r->conv_state,
                       .state_stride = w->conv_state,
                       .state_dtype = w->type};
    b->ops->conv1d(b, &c, &batch);
    struct delta_net d = {.n_k_heads = s->kh,
                          .n_v_heads = s->vh,
                          .k_dim = s->kd,
                          .v_dim = s->vd,
                          .tiled = s->tiled,
                          .neg_exp_a = w->neg_exp_a,
                          .dt_bias = w->dt_bias,
                          .eps = 1e-6f,
                          .qkv = w->qkv + from * w->qkv_row,
                          .a = w->a + from * s->vh,
                          .b = w->b + from * s->vh,
                          .out = r->delta + from * s->vh * s->vd,
                          .state = r->delta_state,
                          .state_stride = w->delta_state,
                          .state_dtype = w->type};
    b->ops->delta_net(b, &d, &batch);
}

/* States saved on the way are the states a shorter run ends with, and a run that starts from a copy goes on
 * as if it had never stopped. */
static void saved_states(void **state)
{
    (void)state;
    static const struct state_save saves[] = {{1, 1}, {33, 2}, {LENGTH, 3}};
    for (int l = 0; test_level(l); l++) {
        struct backend *b = test_backend(test_level(l), 2);
        for (size_t i = 0; i < 2 * N_SHAPES; i++) {
            struct scene w = scene(shapes[i / 2], types[i % 2]);
            struct result whole = result(&w), part = result(&w);
            size_t conv = w.conv_state, delta = w.delta_state, row = (size_t)(w.s.vh * w.s.vd);
            struct seq_slice seq = {.state_slot = 0, .saves = saves, .n_saves = 3}, last = {.state_slot = 4};
            b->count.state_bytes = 0;
            run_slice(b, &w, 0, LENGTH, seq, &whole);
            assert_int_equal(b->count.state_bytes, (2 + 3) * (conv + delta));
            for (int n = 0; n < 3; n++) {
                run_slice(b, &w, 0, saves[n].after, last, &part);
                size_t slot = (size_t)saves[n].slot;
                check_bytes(whole.conv_state + slot * conv, part.conv_state + 4 * conv, conv, "saved conv");
                check_bytes(whole.delta_state + slot * delta, part.delta_state + 4 * delta, delta,
                            "saved delta");
            }
            memcpy(part.conv_state, whole.conv_state, N_SLOTS * conv);
            memcpy(part.delta_state, whole.delta_state, N_SLOTS * delta);
            last.state_from = 2;
            run_slice(b, &w, 33, LENGTH, last, &part);
            size_t n = LENGTH - 33, channels = (size_t)w.s.channels;
            check_bits(part.conv + 33 * channels, whole.conv + 33 * channels, n * channels,
                       "conv from a copy");
            check_bits(part.delta + 33 * row, whole.delta + 33 * row, n * row, "delta net from a copy");
            check_bytes(part.delta_state + 4 * delta, whole.delta_state, delta, "state at the end");
            check_bytes(part.delta_state + 2 * delta, whole.delta_state + 2 * delta, delta,
                        "the copy's source");
            result_free(&whole);
            result_free(&part);
            scene_free(&w);
        }
        b->ops->destroy(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),
        cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(saved_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
