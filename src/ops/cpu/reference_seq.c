/* The reference level's operations with a memory: the paged KV cache and attention over it, the causal
 * convolution and the gated delta net over their state slots. All go through the past in order of position,
 * so a sequence's results do not depend on how its tokens were cut into batches. */
#include "ops/cpu/reference.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float clamp(float v, float limit)
{
    return v > limit ? limit : v < -limit ? -limit : v; /* NaN passes */
}

/* One head's row of one token to slot `slot` of the head at `plane`; room [head_dim]. */
static void put_row(const struct kv_cache *c, size_t plane, int slot, const float *src, bool key, float *room)
{
    size_t dim = (size_t)c->head_dim, at = plane + (size_t)slot * dim;
    if (c->dtype == DT_F32) {
        memcpy((float *)c->data + at, src, dim * sizeof *src);
        return;
    }
    if (c->dtype != DT_I8) {
        uint16_t *dst = (uint16_t *)c->data + at;
        for (size_t i = 0; i < dim; i++)
            dst[i] = c->dtype == DT_F16 ? float_to_half(clamp(src[i], 65504.0f))
                                        : float_to_bf16(clamp(src[i], 0x1.fep127f));
        return;
    }
    if (key) {
        memcpy(room, src, dim * sizeof *src);
        kv_transform(room, c->head_dim);
        src = room;
    }
    int8_t *dst = (int8_t *)c->data + at;
    float most = 0, poison = 0; /* NaN in the row makes all of it NaN */
    for (size_t i = 0; i < dim; i++) {
        float x = fabsf(clamp(src[i], FLT_MAX));
        most = x > most ? x : most;
        poison += isnan(x) ? NAN : 0;
    }
    float scale = kv_scale_of(most) + poison, inverse = scale > 0 ? 127.0f / most : 0;
    for (size_t i = 0; i < dim; i++)
        dst[i] = scale > 0 ? (int8_t)rintf(clamp(src[i], FLT_MAX) * inverse) : 0;
    memcpy(kv_scales(c, plane) + (size_t)slot * sizeof scale, &scale, sizeof scale);
}

void ref_kv_write(struct backend *b, struct kv_cache *c, int layer, const float *k, const float *v,
                  const struct batch *batch)
{
    size_t dim = (size_t)c->head_dim;
    float *room = cpu_of(b)->scratch; /* [max_cols] at least */
    for (int s = 0; s < batch->n_seqs; s++) {
        const struct seq_slice *seq = &batch->seqs[s];
        for (int t = seq->first; t < seq->first + seq->count; t++) {
            int p = batch->positions[t], slot = p % c->block_size;
            int32_t block = seq->kv_blocks[p / c->block_size];
            for (int h = 0; h < c->n_kv_heads; h++) {
                size_t from = ((size_t)t * (size_t)c->n_kv_heads + (size_t)h) * dim;
                put_row(c, kv_offset(c, block, layer, 0, h), slot, k + from, true, room);
                put_row(c, kv_offset(c, block, layer, 1, h), slot, v + from, false, room);
            }
        }
    }
    b->count.kv_write_bytes +=
        2 * (uint64_t)batch->n_tokens * (uint64_t)c->n_kv_heads * kv_row_bytes(c->dtype, c->head_dim);
}

struct attention_job {
    const struct kv_cache *c;
    const struct attention *a;
    const struct batch *batch;
    struct cpu *cpu;
};

/* One head's keys or values at one position: values from `at` on, times `scale`. */
struct kv_row {
    const struct kv_cache *c;
    size_t at;
    float scale;
};

static struct kv_row kv_row(const struct kv_cache *c, size_t plane, int slot)
{
    struct kv_row row = {c, plane + (size_t)slot * (size_t)c->head_dim, 1};
    if (c->dtype == DT_I8)
        memcpy(&row.scale, kv_scales(c, plane) + (size_t)slot * sizeof row.scale, sizeof row.scale);
    return row;
}

static float kv_value(const struct kv_row *row, int i)
{
    size_t at = row->at + (size_t)i;
    if (row->c->dtype == DT_I8)
        return (float)((const int8_t *)row->c->data)[at] * row->scale;
    if (row->c->dtype == DT_F32)
        return ((const float *)row->c->data)[at];
    uint16_t v = ((const uint16_t *)row->c->data)[at];
    return row->c->dtype == DT_F16 ? half_to_float(v) : bf16_to_float(v);
}

/* One token, one head, room [dim]: out = Σ softmax(scale q·k_p) v_p. The running maximum m keeps exp in
 * range; when it grows, what was summed so far shrinks by exp(old m - new m). */
static void attend(const struct attention_job *j, const struct seq_slice *seq, int token, int head,
                   float *room)
{
    const struct kv_cache *c = j->c;
    int dim = c->head_dim, kv_head = head / (j->a->n_heads / c->n_kv_heads);
    const float *q = j->a->q + ((size_t)token * (size_t)j->a->n_heads + (size_t)head) * (size_t)dim;
    float *out = j->a->out + ((size_t)token * (size_t)j->a->n_heads + (size_t)head) * (size_t)dim;
    float m = -INFINITY, sum = 0, scale = j->a->scale;
    if (c->dtype == DT_I8) {
        memcpy(room, q, (size_t)dim * sizeof *q);
        kv_transform(room, dim);
        scale /= (float)kv_block_length(dim);
        q = room;
    }
    memset(out, 0, (size_t)dim * sizeof *out);
    int last = j->batch->positions[token];
    for (int p = attention_first(j->a, last); p <= last; p++) {
        int32_t block = seq->kv_blocks[p / c->block_size];
        struct kv_row k = kv_row(c, kv_offset(c, block, j->a->layer, 0, kv_head), p % c->block_size);
        struct kv_row v = kv_row(c, kv_offset(c, block, j->a->layer, 1, kv_head), p % c->block_size);
        float score = 0;
        for (int i = 0; i < dim; i++)
            score += q[i] * kv_value(&k, i);
        score *= scale;
        if (score > m) {
            float shrink = expf(m - score);
            sum *= shrink;
            for (int i = 0; i < dim; i++)
                out[i] *= shrink;
            m = score;
        }
        float weight = expf(score - m);
        sum += weight;
        for (int i = 0; i < dim; i++)
            out[i] += weight * kv_value(&v, i);
    }
    for (int i = 0; i < dim; i++)
        out[i] /= sum;
}

/* Items are (token, head). */
static void attention_items(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *j = arg;
    const struct seq_slice *seq = j->batch->seqs;
    for (int64_t item = begin; item < end; item++) {
        int token = (int)(item / j->a->n_heads), head = (int)(item % j->a->n_heads);
        while (token >= seq->first + seq->count)
            seq++;
        attend(j, seq, token, head, (float *)j->cpu->scratch + thread * j->cpu->max_cols);
    }
}

void ref_attention(struct backend *b, const struct kv_cache *c, const struct attention *a,
                   const struct batch *batch)
{
    struct attention_job j = {c, a, batch, cpu_of(b)};
    for (int t = 0; t < batch->n_tokens; t++) {
        uint64_t rows = (uint64_t)(batch->positions[t] - attention_first(a, batch->positions[t]) + 1) *
                        (uint64_t)a->n_heads;
        b->count.flops += 4 * rows * (uint64_t)c->head_dim;
        b->count.kv_read_bytes += 2 * rows * kv_row_bytes(c->dtype, c->head_dim);
    }
    pool_run(cpu_of(b)->pool, attention_items, &j, (int64_t)batch->n_tokens * a->n_heads, 1);
}

/* Value i of a recurrent state. */
static float state_get(const char *state, enum dtype dtype, size_t i)
{
    if (dtype == DT_F32)
        return ((const float *)(const void *)state)[i];
    return bf16_to_float(((const uint16_t *)(const void *)state)[i]);
}

static void state_put(char *state, enum dtype dtype, size_t i, float x)
{
    if (dtype == DT_F32)
        ((float *)(void *)state)[i] = x;
    else
        ((uint16_t *)(void *)state)[i] = float_to_bf16(x);
}

/* A sequence's state of one layer (`bytes` a slot, slots `stride` apart) as its step begins: copied from
 * another slot if asked, zero at position 0. `offset` into the slot selects a part, a head of it. */
static char *state_begin(char *slots, size_t stride, size_t offset, size_t bytes, const struct seq_slice *seq,
                         const struct batch *batch)
{
    char *state = slots + (size_t)seq->state_slot * stride + offset;
    if (batch->positions[seq->first] == 0) /* positions are consecutive: 0 is nowhere else in the slice */
        memset(state, 0, bytes);
    else if (state_is_copied(seq, batch))
        memcpy(state, slots + (size_t)seq->state_from * stride + offset, bytes);
    return state;
}

/* Stores the copies that were asked for after `done` tokens. */
static void state_save(char *slots, size_t stride, size_t offset, size_t bytes, const struct seq_slice *seq,
                       int done)
{
    const char *state = slots + (size_t)seq->state_slot * stride + offset;
    for (int i = 0; i < seq->n_saves; i++)
        if (seq->saves[i].after == done)
            memcpy(slots + (size_t)seq->saves[i].slot * stride + offset, state, bytes);
}

void ref_conv1d(struct backend *b, const struct conv1d *c, const struct batch *batch)
{
    size_t n = (size_t)c->channels, row = n * state_value_bytes(c->state_dtype);
    int past = c->kernel - 1;
    size_t bytes = (size_t)past * row;
    for (int s = 0; s < batch->n_seqs; s++) {
        const struct seq_slice *seq = &batch->seqs[s];
        char *state = state_begin(c->state, c->state_stride, 0, bytes, seq, batch);
        for (int t = seq->first; t < seq->first + seq->count; t++) {
            const float *x = c->x + (size_t)t * n;
            for (size_t ch = 0; ch < n; ch++) {
                const float *w = c->weight + ch * (size_t)c->kernel;
                float y = 0;
                for (int i = 0; i < past; i++)
                    y += w[i] * state_get(state, c->state_dtype, (size_t)i * n + ch);
                y += w[past] * x[ch];
                c->out[(size_t)t * n + ch] = y / (1.0f + expf(-y));
            }
            if (past > 0) {
                memmove(state, state + row, bytes - row);
                for (size_t ch = 0; ch < n; ch++)
                    state_put(state + bytes - row, c->state_dtype, ch, x[ch]);
            }
            state_save(c->state, c->state_stride, 0, bytes, seq, t - seq->first + 1);
        }
    }
    b->count.state_bytes += (2 * (uint64_t)batch->n_seqs + state_copies(batch)) * bytes;
}

struct delta_job {
    const struct delta_net *d;
    const struct batch *batch;
};

/* One token of one value head. S [k_dim, v_dim]. */
static void delta_token(const struct delta_net *d, char *S, int token, int head)
{
    int kd = d->k_dim, vd = d->v_dim;
    int k_head = d->tiled ? head % d->n_k_heads : head / (d->n_v_heads / d->n_k_heads);
    const float *row = d->qkv + (size_t)token * (size_t)(2 * d->n_k_heads * kd + d->n_v_heads * vd);
    const float *q = row + (size_t)k_head * (size_t)kd;
    const float *k = q + (size_t)d->n_k_heads * (size_t)kd;
    const float *v = row + (size_t)(2 * d->n_k_heads) * (size_t)kd + (size_t)head * (size_t)vd;
    size_t at = (size_t)token * (size_t)d->n_v_heads + (size_t)head;
    float *out = d->out + at * (size_t)vd;

    float q_inv = 1.0f / sqrtf(ref_dot(q, q, kd) + d->eps) / sqrtf((float)kd);
    float k_inv = 1.0f / sqrtf(ref_dot(k, k, kd) + d->eps);
    float beta = 1.0f / (1.0f + expf(-d->b[at]));
    float dt = d->a[at] + d->dt_bias[head];
    float softplus = dt > 20.0f ? dt : log1pf(expf(dt));
    float decay = expf(d->neg_exp_a[head] * softplus);

    for (int c = 0; c < vd; c++) {
        float recalled = 0;
        for (int i = 0; i < kd; i++)
            recalled += state_get(S, d->state_dtype, (size_t)(i * vd + c)) * decay * (k[i] * k_inv);
        float delta = beta * (v[c] - recalled);
        float o = 0;
        for (int i = 0; i < kd; i++) {
            size_t at_s = (size_t)(i * vd + c);
            float s = state_get(S, d->state_dtype, at_s) * decay + k[i] * k_inv * delta;
            state_put(S, d->state_dtype, at_s, s);
            o += s * (q[i] * q_inv);
        }
        out[c] = o;
    }
}

/* Items are (sequence, value head). */
static void delta_items(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct delta_job *j = arg;
    const struct delta_net *d = j->d;
    size_t size = (size_t)d->k_dim * (size_t)d->v_dim * state_value_bytes(d->state_dtype);
    for (int64_t item = begin; item < end; item++) {
        const struct seq_slice *seq = &j->batch->seqs[item / d->n_v_heads];
        int head = (int)(item % d->n_v_heads);
        size_t offset = (size_t)head * size;
        char *S = state_begin(d->state, d->state_stride, offset, size, seq, j->batch);
        for (int t = 0; t < seq->count; t++) {
            delta_token(d, S, seq->first + t, head);
            state_save(d->state, d->state_stride, offset, size, seq, t + 1);
        }
    }
}

void ref_delta_net(struct backend *b, const struct delta_net *d, const struct batch *batch)
{
    struct delta_job j = {d, batch};
    uint64_t values = (uint64_t)d->n_v_heads * (uint64_t)d->k_dim * (uint64_t)d->v_dim;
    b->count.state_bytes +=
        (2 * (uint64_t)batch->n_seqs + state_copies(batch)) * values * state_value_bytes(d->state_dtype);
    pool_run(cpu_of(b)->pool, delta_items, &j, (int64_t)batch->n_seqs * d->n_v_heads, 1);
}
