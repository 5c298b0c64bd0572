/* New keys and values into the paged cache. */
#include "ops/cpu/kernels/kernels.h"

#include <float.h>

struct kv_write_job {
    struct kv_cache *c;
    int layer;
    const float *k, *v;
    const struct batch *batch;
    struct cpu *cpu;
};

static void put_floats(const struct kv_cache *c, size_t at, const float *src)
{
    int dim = c->head_dim;
    if (c->dtype == DT_F32) {
        memcpy((float *)c->data + at, src, (size_t)dim * sizeof *src);
        return;
    }
    vf limit = vf_set1(c->dtype == DT_F16 ? 65504.0f : 0x1.fep127f);
    vf negative = vf_sub(vf_zero(), limit);
    for (int d = 0; d < dim; d += P) {
        vf x = vf_load_masked(src + d, vmask_left(d, dim));
        x = vf_max(negative, vf_min(limit, x)); /* NaN passes */
        uint16_t h[P], *to = (uint16_t *)c->data + at + d;
        bool whole = d + P <= dim;
        if (c->dtype == DT_F16)
            vf_to_half(whole ? to : h, x);
        else
            vf_to_bf16(whole ? to : h, x);
        if (!whole)
            memcpy(to, h, (size_t)(dim - d) * sizeof *h);
    }
}

/* A row as integers and their scale, which is returned. A NaN in the row makes all of it NaN. */
static float put_integers(int8_t *to, const float *src, int dim)
{
    vf most = vf_zero(), poison = vf_zero(), limit = vf_set1(FLT_MAX), negative = vf_set1(-FLT_MAX);
    for (int d = 0; d < dim; d += P) {
        vf x = vf_load_masked(src + d, vmask_left(d, dim));
        x = vf_max(negative, vf_min(limit, x)); /* NaN passes */
        poison = vf_fma(x, vf_zero(), poison);
        most = vf_max(vf_max(x, vf_sub(vf_zero(), x)), most); /* NaN does not */
    }
    float max = vf_hmax(most), scale = kv_scale_of(max) + vf_hsum(poison);
    if (!(scale > 0)) {
        memset(to, 0, (size_t)dim);
        return scale;
    }
    vf inverse = vf_set1(127.0f / max);
    for (int d = 0; d < dim; d += P) {
        vf x = vf_load_masked(src + d, vmask_left(d, dim));
        int8_t q[P];
        bool whole = d + P <= dim;
        vi_to_i8(whole ? to + d : q, vi_from_float(vf_mul(vf_max(negative, vf_min(limit, x)), inverse)));
        if (!whole)
            memcpy(to + d, q, (size_t)(dim - d));
    }
    return scale;
}

/* room [head_dim], for keys. */
static void put_row(const struct kv_cache *c, size_t plane, int slot, const float *src, bool key, float *room)
{
    size_t at = plane + (size_t)slot * (size_t)c->head_dim;
    if (c->dtype != DT_I8) {
        put_floats(c, at, src);
        return;
    }
    if (key) {
        memcpy(room, src, (size_t)c->head_dim * sizeof *src);
        kv_transform(room, c->head_dim);
        src = room;
    }
    float scale = put_integers((int8_t *)c->data + at, src, c->head_dim);
    memcpy(kv_scales(c, plane) + (size_t)slot * sizeof scale, &scale, sizeof scale);
}

static void kv_write_tokens(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct kv_write_job *j = arg;
    float *room = (float *)thread_scratch(j->cpu, thread);
    const struct kv_cache *c = j->c;
    const struct seq_slice *seq = j->batch->seqs;
    size_t dim = (size_t)c->head_dim;
    for (int64_t t = begin; t < end; t++) {
        while (t >= seq->first + seq->count)
            seq++;
        int p = j->batch->positions[t], slot = p % c->block_size;
        int32_t block = seq->kv_blocks[p / c->block_size];
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t from = ((size_t)t * (size_t)c->n_kv_heads + (size_t)h) * dim;
            put_row(c, kv_offset(c, block, j->layer, 0, h), slot, j->k + from, true, room);
            put_row(c, kv_offset(c, block, j->layer, 1, h), slot, j->v + from, false, room);
        }
    }
}

void LEVEL_NAME(cpu_kv_write)(struct backend *b, struct kv_cache *c, int layer, const float *k,
                              const float *v, const struct batch *batch)
{
    struct kv_write_job j = {c, layer, k, v, batch, cpu_of(b)};
    uint64_t rows = 2 * (uint64_t)c->n_kv_heads;
    b->count.kv_write_bytes += (uint64_t)batch->n_tokens * rows * kv_row_bytes(c->dtype, c->head_dim);
    run_items(b, kv_write_tokens, &j, batch->n_tokens, (int64_t)rows * c->head_dim);
}
