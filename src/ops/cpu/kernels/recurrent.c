/* The operations over recurrent state slots. Both are cut along independent columns (channels; value
 * dimensions of a head), and a cut keeps its piece of the state in the first-level cache while it goes
 * through all of a sequence's tokens: the state is read and written once a step. */
#include "ops/cpu/kernels/kernels.h"

#include <assert.h>
#include <math.h>

#include "ops/cpu/reference.h"

/* The first n (or P) values at p, which are fp32 or bf16. */
INLINE vf state_load(const char *p, enum dtype dtype, int n)
{
    if (dtype == DT_F32)
        return vf_load_masked((const float *)p, vmask_left(0, n));
    uint16_t h[P] = {0};
    if (n >= P)
        return vf_from_bf16((const uint16_t *)p);
    memcpy(h, p, (size_t)n * sizeof *h);
    return vf_from_bf16(h);
}

INLINE void state_store(char *p, enum dtype dtype, int n, vf x)
{
    if (dtype == DT_F32) {
        vf_store_masked((float *)p, vmask_left(0, n), x);
        return;
    }
    uint16_t h[P];
    vf_to_bf16(n >= P ? (uint16_t *)p : h, x);
    if (n < P)
        memcpy(p, h, (size_t)n * sizeof *h);
}

/* What state_store and state_load make of x. */
INLINE vf round_to_bf16(vf x)
{
    vi u = vf_bits(x), odd = vi_and(vi_shr(u, 16), vi_set1(1));
    return vf_bf16_high(vi_add(u, vi_add(odd, vi_set1(0x7fff))));
}

/* --- causal depthwise convolution --- */

#define MAX_KERNEL  16
#define CHANNEL_RUN (16 * P) /* channels of an item */

struct conv_job {
    const struct conv1d *c;
    const struct batch *batch;
    int runs; /* items a sequence */
};

/* P channels (those on, up to `last`) of one sequence. */
INLINE void conv_lanes(const struct conv1d *c, enum dtype dtype, const struct seq_slice *seq,
                       const struct batch *batch, int channel, int last)
{
    int past = c->kernel - 1, width = last - channel;
    size_t n = (size_t)c->channels, size = state_value_bytes(dtype), row = n * size;
    bool reset = batch->positions[seq->first] == 0; /* positions are consecutive: nowhere else */
    char *slots = (char *)c->state + (size_t)channel * size;
    char *state = slots + (size_t)seq->state_slot * c->state_stride;
    const char *from =
        state_is_copied(seq, batch) ? slots + (size_t)seq->state_from * c->state_stride : state;
    const float *x = c->x + (size_t)seq->first * n + channel;
    float *out = c->out + (size_t)seq->first * n + channel;
    vmask on = vmask_left(0, width);
    vf w[MAX_KERNEL], seen[MAX_KERNEL]; /* seen: the last `past` inputs, oldest first */
    for (int i = 0; i <= past; i++)
        w[i] = vf_gather(c->weight + (size_t)channel * (size_t)c->kernel + i, c->kernel, on);
    for (int i = 0; i < past; i++)
        seen[i] = reset ? vf_zero() : state_load(from + (size_t)i * row, dtype, width);
    int save = 0;
    for (int t = 0; t < seq->count; t++) {
        seen[past] = vf_load_masked(x + (size_t)t * n, on);
        vf y = vf_mul(w[0], seen[0]);
        for (int i = 1; i <= past; i++)
            y = vf_fma(w[i], seen[i], y);
        if (dtype == DT_BF16)
            seen[past] = round_to_bf16(seen[past]); /* to those after it */
        for (int i = 0; i < past; i++)
            seen[i] = seen[i + 1];
        y = vf_div(y, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), y))));
        vf_store_masked(out + (size_t)t * n, on, y);
        for (; save < seq->n_saves && seq->saves[save].after == t + 1; save++)
            for (int i = 0; i < past; i++)
                state_store(slots + (size_t)seq->saves[save].slot * c->state_stride + (size_t)i * row, dtype,
                            width, seen[i]);
    }
    for (int i = 0; i < past; i++)
        state_store(state + (size_t)i * row, dtype, width, seen[i]);
}

static void conv_items(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct conv_job *j = arg;
    for (int64_t item = begin; item < end; item++) {
        const struct seq_slice *seq = &j->batch->seqs[item / j->runs];
        int channel = (int)(item % j->runs) * CHANNEL_RUN;
        int last = channel + CHANNEL_RUN < j->c->channels ? channel + CHANNEL_RUN : j->c->channels;
        for (; channel < last; channel += P) {
            if (j->c->state_dtype == DT_F32)
                conv_lanes(j->c, DT_F32, seq, j->batch, channel, last);
            else
                conv_lanes(j->c, DT_BF16, seq, j->batch, channel, last);
        }
    }
}

void LEVEL_NAME(cpu_conv1d)(struct backend *b, const struct conv1d *c, const struct batch *batch)
{
    if (c->kernel > MAX_KERNEL) { /* no model has one; right is enough */
        ref_conv1d(b, c, batch);
        return;
    }
    struct conv_job j = {c, batch, (c->channels + CHANNEL_RUN - 1) / CHANNEL_RUN};
    b->count.state_bytes += (2 * (uint64_t)batch->n_seqs + state_copies(batch)) * (uint64_t)(c->kernel - 1) *
                            (uint64_t)c->channels * state_value_bytes(c->state_dtype);
    run_items(b, conv_items, &j, (int64_t)batch->n_seqs * j.runs,
              (int64_t)CHANNEL_RUN * c->kernel * (1 + batch->n_tokens / batch->n_seqs));
}

/* --- gated delta net --- */

struct delta_job {
    const struct delta_net *d;
    const struct batch *batch;
    struct cpu *cpu;
    int block; /* tokens whose q and k are normalised at a time */
};

/* Per token of a block. */
struct delta_token {
    float decay, beta;
    const float *v;
    float *out;
};

static float sum_squares(const float *x, int n)
{
    vf sum = vf_zero();
    for (int i = 0; i < n; i += P) {
        vf v = vf_load_masked(x + i, vmask_left(i, n));
        sum = vf_fma(v, v, sum);
    }
    return vf_hsum(sum);
}

static void scale_to(float *to, const float *x, int n, float factor)
{
    for (int i = 0; i < n; i += P) {
        vmask on = vmask_left(i, n);
        vf_store_masked(to + i, on, vf_mul(vf_load_masked(x + i, on), vf_set1(factor)));
    }
}

/* One token through w vectors of columns (the first `left` columns) of S [k_dim][stride bytes]:
 * delta = beta (v - decay Sᵀk); S = decay S + k ⊗ delta; out = Sᵀq. Each sum is two chains over the even and
 * the odd rows, so that latency does not bound it. */
INLINE void delta_columns(char *S, enum dtype dtype, int k_dim, size_t stride, int w, int left,
                          const float *q, const float *k, const struct delta_token *t, int column)
{
    vf decay = vf_set1(t->decay), sum[2][4], delta[4];
    int size = (int)state_value_bytes(dtype);
    UNROLL for (int c = 0; c < w; c++) sum[0][c] = sum[1][c] = vf_zero();
    for (int i = 0; i < k_dim; i += 2) {
        UNROLL for (int e = 0; e < 2; e++)
        {
            if (i + e == k_dim) /* an odd number of rows */
                break;
            UNROLL for (int c = 0; c < w; c++) sum[e][c] =
                vf_fma(state_load(S + (size_t)(i + e) * stride + c * P * size, dtype, left - c * P),
                       vf_set1(k[i + e]), sum[e][c]);
        }
    }
    UNROLL for (int c = 0; c < w; c++)
    {
        vf recalled = vf_mul(decay, vf_add(sum[0][c], sum[1][c]));
        vf v = vf_load_masked(t->v + column + c * P, vmask_left(c * P, left));
        delta[c] = vf_mul(vf_set1(t->beta), vf_sub(v, recalled));
        sum[0][c] = sum[1][c] = vf_zero();
    }
    for (int i = 0; i < k_dim; i += 2) {
        UNROLL for (int e = 0; e < 2; e++)
        {
            if (i + e == k_dim)
                break;
            vf k_i = vf_set1(k[i + e]), q_i = vf_set1(q[i + e]);
            UNROLL for (int c = 0; c < w; c++)
            {
                char *at = S + (size_t)(i + e) * stride + c * P * size;
                vf s = vf_fma(k_i, delta[c], vf_mul(decay, state_load(at, dtype, left - c * P)));
                state_store(at, dtype, left - c * P, s);
                sum[e][c] = vf_fma(s, q_i, sum[e][c]);
            }
        }
    }
    UNROLL for (int c = 0; c < w; c++)
        vf_store_masked(t->out + column + c * P, vmask_left(c * P, left), vf_add(sum[0][c], sum[1][c]));
}

/* n tokens through all columns of a head, a cut of columns after another. qk [n][q, k][k_dim]. */
INLINE void delta_tokens(const struct delta_net *d, enum dtype dtype, char *S,
                         const struct delta_token *tokens, const float *qk, int n)
{
    int kd = d->k_dim, vd = d->v_dim;
    size_t size = state_value_bytes(dtype), stride = (size_t)vd * size;
    for (int c = 0, w; c < vd; c += w * P) {
        w = c + 4 * P <= vd ? 4 : 1;
        for (int i = 0; i < n; i++) {
            const float *q = qk + 2 * i * kd, *k = q + kd;
            if (w == 4)
                delta_columns(S + (size_t)c * size, dtype, kd, stride, 4, 4 * P, q, k, &tokens[i], c);
            else if (c + P <= vd)
                delta_columns(S + (size_t)c * size, dtype, kd, stride, 1, P, q, k, &tokens[i], c);
            else
                delta_columns(S + (size_t)c * size, dtype, kd, stride, 1, vd - c, q, k, &tokens[i], c);
        }
    }
}

static void delta_head(const struct delta_job *j, const struct seq_slice *seq, int head, uint8_t *scratch)
{
    const struct delta_net *d = j->d;
    int kd = d->k_dim, vd = d->v_dim;
    int k_head = d->tiled ? head % d->n_k_heads : head / (d->n_v_heads / d->n_k_heads);
    size_t row = (size_t)(2 * d->n_k_heads) * (size_t)kd + (size_t)d->n_v_heads * (size_t)vd;
    size_t bytes = (size_t)kd * (size_t)vd * state_value_bytes(d->state_dtype);
    char *slots = (char *)d->state + (size_t)head * bytes;
    char *S = slots + (size_t)seq->state_slot * d->state_stride;
    int save = 0;
    struct delta_token *tokens = (struct delta_token *)scratch;
    float *qk = (float *)(tokens + j->block); /* [block][q, k][kd] */
    if (j->batch->positions[seq->first] == 0)
        memset(S, 0, bytes);
    else if (state_is_copied(seq, j->batch))
        memcpy(S, slots + (size_t)seq->state_from * d->state_stride, bytes);
    for (int t0 = 0, n; t0 < seq->count; t0 += n) {
        n = seq->count - t0 < j->block ? seq->count - t0 : j->block;
        if (save < seq->n_saves && seq->saves[save].after - t0 < n)
            n = seq->saves[save].after - t0; /* a block ends where the state is to be saved */
        for (int i = 0; i < n; i++) {
            size_t token = (size_t)(seq->first + t0 + i), at = token * (size_t)d->n_v_heads + (size_t)head;
            const float *q = d->qkv + token * row + (size_t)k_head * (size_t)kd;
            const float *k = q + (size_t)d->n_k_heads * (size_t)kd;
            float dt = d->a[at] + d->dt_bias[head];
            float softplus = dt > 20.0f ? dt : log1pf(expf(dt));
            tokens[i].decay = expf(d->neg_exp_a[head] * softplus);
            tokens[i].beta = 1.0f / (1.0f + expf(-d->b[at]));
            tokens[i].v =
                d->qkv + token * row + (size_t)(2 * d->n_k_heads) * (size_t)kd + (size_t)head * (size_t)vd;
            tokens[i].out = d->out + at * (size_t)vd;
            scale_to(qk + 2 * i * kd, q, kd, 1.0f / sqrtf(sum_squares(q, kd) + d->eps) / sqrtf((float)kd));
            scale_to(qk + (2 * i + 1) * kd, k, kd, 1.0f / sqrtf(sum_squares(k, kd) + d->eps));
        }
        if (d->state_dtype == DT_F32)
            delta_tokens(d, DT_F32, S, tokens, qk, n);
        else
            delta_tokens(d, DT_BF16, S, tokens, qk, n);
        for (; save < seq->n_saves && seq->saves[save].after == t0 + n; save++)
            memcpy(slots + (size_t)seq->saves[save].slot * d->state_stride, S, bytes);
    }
}

/* Items are (sequence, value head). */
static void delta_items(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct delta_job *j = arg;
    for (int64_t item = begin; item < end; item++)
        delta_head(j, &j->batch->seqs[item / j->d->n_v_heads], (int)(item % j->d->n_v_heads),
                   thread_scratch(j->cpu, thread));
}

void LEVEL_NAME(cpu_delta_net)(struct backend *b, const struct delta_net *d, const struct batch *batch)
{
    size_t token = sizeof(struct delta_token) + 2 * (size_t)d->k_dim * sizeof(float);
    size_t room = thread_scratch_bytes(cpu_of(b)->max_tokens, cpu_of(b)->max_cols) / token;
    struct delta_job j = {d, batch, cpu_of(b), room < 32 ? (int)room : 32};
    assert(j.block > 0);
    uint64_t values = (uint64_t)d->n_v_heads * (uint64_t)d->k_dim * (uint64_t)d->v_dim;
    b->count.state_bytes +=
        (2 * (uint64_t)batch->n_seqs + state_copies(batch)) * values * state_value_bytes(d->state_dtype);
    run_items(b, delta_items, &j, (int64_t)batch->n_seqs * d->n_v_heads, (int64_t)d->k_dim * d->v_dim);
}
