/* Attention over the paged cache. An item is one kv head of a few tokens of one sequence: all the query heads
 * that share the kv head, for all those tokens, pass together over its keys and values, which are widened to
 * fp32 once for the lot of them.
 *
 * The cache is walked in chunks of P positions (whole multiples of P within each block). In a chunk, scores
 * are taken with a lane a position (keys transposed, so that no sum crosses lanes), one maximum and one
 * rescaling are made, and the values are added in order of position. Chunks lie at absolute positions and a
 * row skips those it sees nothing of, so a query's arithmetic depends on its own position and nothing else.
 */
#include "ops/cpu/kernels/kernels.h"

#include <math.h>

#define MAX_ROWS 32 /* (token, head) rows of an item */

struct attention_job {
    const struct kv_cache *c;
    const struct attention *a;
    const struct batch *batch;
    struct cpu *cpu;
    int group;       /* query heads a kv head */
    int item_heads;  /* of those, in an item */
    int head_parts;  /* items that the group is cut into */
    int item_tokens; /* tokens in an item */
};

struct row {
    const float *q;  /* [head_dim] */
    float *out;      /* [head_dim], the running sum of weight * value */
    int first, last; /* positions it sees */
    float max, sum;
};

INLINE vf kv_load(const struct kv_cache *c, size_t at)
{
    switch (c->dtype) {
    case DT_F32:
        return vf_load((const float *)c->data + at);
    case DT_F16:
        return vf_from_half((const uint16_t *)c->data + at);
    default:
        return vf_from_bf16((const uint16_t *)c->data + at);
    }
}

/* As kv_load, of the n < P values that are left. */
static vf kv_load_tail(const struct kv_cache *c, size_t at, int n)
{
    float x[P] = {0};
    uint16_t h[P] = {0};
    if (c->dtype == DT_F32) {
        memcpy(x, (const float *)c->data + at, (size_t)n * 4);
        return vf_load(x);
    }
    memcpy(h, (const uint16_t *)c->data + at, (size_t)n * 2);
    return c->dtype == DT_F16 ? vf_from_half(h) : vf_from_bf16(h);
}

/* n positions from `at` on, to keys [dim rounded up to P][P], a lane a position, and values [n][dim rounded
 * up]; lanes from n on are zero. */
static void load_chunk(const struct kv_cache *c, size_t k_at, size_t v_at, int n, float *keys, float *values)
{
    int dim = c->head_dim, padded = (dim + P - 1) / P * P;
    for (int d = 0; d < dim; d += P) {
        vf tile[P];
        bool whole = d + P <= dim;
        for (int j = 0; j < P; j++) {
            size_t offset = (size_t)j * (size_t)dim + (size_t)d;
            if (j >= n) {
                tile[j] = vf_zero();
                continue;
            }
            tile[j] = whole ? kv_load(c, k_at + offset) : kv_load_tail(c, k_at + offset, dim - d);
            vf_store(values + j * padded + d,
                     whole ? kv_load(c, v_at + offset) : kv_load_tail(c, v_at + offset, dim - d));
        }
        vf_transpose(tile);
        for (int j = 0; j < P; j++)
            vf_store(keys + (d + j) * P, tile[j]);
    }
}

/* Raw scores of n rows (at most 4) against the chunk: one chain over d for each. */
INLINE void score_rows(const struct row *rows, int n, const float *keys, int dim, vf score[4])
{
    vf s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int d = 0; d < dim; d++) {
        vf k = vf_load(keys + d * P);
        for (int r = 0; r < n; r++)
            s[r] = vf_fma(vf_set1(rows[r].q[d]), k, s[r]);
    }
    for (int r = 0; r < n; r++)
        score[r] = s[r];
}

/* out = out * shrink + Σ weight[j] value[j] for n rows that see the same positions from … to-1. */
INLINE void add_values(const struct row *rows, int n, const float *values, int dim, int from, int to,
                       const float shrink[4], float weight[4][P])
{
    int padded = (dim + P - 1) / P * P;
    for (int d = 0; d < dim; d += P) {
        vmask on = vmask_left(d, dim);
        vf acc[4];
        for (int r = 0; r < n; r++)
            acc[r] = vf_mul(vf_load_masked(rows[r].out + d, on), vf_set1(shrink[r]));
        for (int j = from; j < to; j++) {
            vf v = vf_load(values + j * padded + d);
            for (int r = 0; r < n; r++)
                acc[r] = vf_fma(vf_set1(weight[r][j]), v, acc[r]);
        }
        for (int r = 0; r < n; r++)
            vf_store_masked(rows[r].out + d, on, acc[r]);
    }
}

/* Up to 4 rows against the chunk of positions p0 … p0+P-1. */
static void attend_rows(struct row *rows, int n, int p0, float scale, int dim, const float *keys,
                        const float *values)
{
    vf score[4];
    if (n == 4)
        score_rows(rows, 4, keys, dim, score);
    else
        score_rows(rows, n, keys, dim, score);
    float shrink[4], weight[4][P];
    int from[4], to[4];
    bool same = true;
    for (int r = 0; r < n; r++) {
        from[r] = rows[r].first > p0 ? rows[r].first - p0 : 0;
        to[r] = rows[r].last - p0 + 1 < P ? rows[r].last - p0 + 1 : P;
        same &= from[r] == from[0] && to[r] == to[0];
        if (from[r] >= to[r])
            continue;
        vmask seen = vmask_range(from[r], to[r]);
        vf s = vf_select(seen, vf_mul(score[r], vf_set1(scale)), vf_set1(-INFINITY));
        float max = vf_hmax(s);
        if (!(max > rows[r].max))
            max = rows[r].max;
        float old[P];
        vf_store(old, vf_exp(vf_set1(rows[r].max - max)));
        shrink[r] = old[0];
        vf w = vf_exp(vf_sub(s, vf_set1(max)));
        vf_store(weight[r], w);
        rows[r].sum = rows[r].sum * shrink[r] + vf_hsum(w);
        rows[r].max = max;
    }
    if (same && from[0] >= to[0])
        return;
    if (same && n == 4) {
        add_values(rows, 4, values, dim, from[0], to[0], shrink, weight);
        return;
    }
    for (int r = 0; r < n; r++)
        if (from[r] < to[r])
            add_values(rows + r, 1, values, dim, from[r], to[r], shrink + r, weight + r);
}

/* kv_head for tokens t0 … t1-1 of a sequence, query heads h0 … h1-1. */
static void attend(const struct attention_job *j, const struct seq_slice *seq, int t0, int t1, int kv_head,
                   int h0, int h1, uint8_t *scratch)
{
    const struct kv_cache *c = j->c;
    int dim = c->head_dim, padded = (dim + P - 1) / P * P;
    float *keys = (float *)scratch, *values = keys + padded * P;
    struct row rows[MAX_ROWS];
    int n = 0;
    for (int t = t0; t < t1; t++) {
        for (int h = h0; h < h1; h++) {
            size_t at = ((size_t)t * (size_t)j->a->n_heads + (size_t)h) * (size_t)dim;
            int last = j->batch->positions[t];
            rows[n++] =
                (struct row){j->a->q + at, j->a->out + at, attention_first(j->a, last), last, -INFINITY, 0};
            memset(j->a->out + at, 0, (size_t)dim * sizeof(float));
        }
    }
    int first = rows[0].first, last = rows[n - 1].last; /* positions grow with the token */
    for (int block = first / c->block_size; block <= last / c->block_size; block++) {
        size_t k_at = kv_offset(c, seq->kv_blocks[block], j->a->layer, 0, kv_head);
        size_t v_at = kv_offset(c, seq->kv_blocks[block], j->a->layer, 1, kv_head);
        int p_end = (block + 1) * c->block_size;
        for (int p0 = block * c->block_size; p0 < p_end && p0 <= last; p0 += P) {
            int p1 = p0 + P < p_end ? p0 + P : p_end; /* a block need not be a multiple of P */
            int count = (p1 <= last + 1 ? p1 : last + 1) - p0;
            if (p0 + count <= first)
                continue;
            size_t offset = (size_t)(p0 - block * c->block_size) * (size_t)dim;
            load_chunk(c, k_at + offset, v_at + offset, count, keys, values);
            for (int r = 0; r < n; r += 4) {
                struct row clipped[4];
                int m = n - r < 4 ? n - r : 4;
                for (int i = 0; i < m; i++) {
                    clipped[i] = rows[r + i];
                    if (clipped[i].last > p1 - 1)
                        clipped[i].last = p1 - 1;
                }
                attend_rows(clipped, m, p0, j->a->scale, dim, keys, values);
                for (int i = 0; i < m; i++) {
                    rows[r + i].max = clipped[i].max;
                    rows[r + i].sum = clipped[i].sum;
                }
            }
        }
    }
    for (int r = 0; r < n; r++) {
        vf inverse = vf_set1(1.0f / rows[r].sum);
        for (int d = 0; d < dim; d += P) {
            vmask on = vmask_left(d, dim);
            vf_store_masked(rows[r].out + d, on, vf_mul(vf_load_masked(rows[r].out + d, on), inverse));
        }
    }
}

/* Items: for every sequence its tiles of tokens; for every tile the kv heads; for those the head parts. */
static void attention_items(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *j = arg;
    int per_tile = j->c->n_kv_heads * j->head_parts;
    const struct seq_slice *seq = j->batch->seqs;
    int64_t base = 0; /* item of seq's first tile */
    for (int64_t item = begin; item < end; item++) {
        int64_t n;
        while (item - base >= (n = (int64_t)ceil_div(seq->count, j->item_tokens) * per_tile)) {
            base += n;
            seq++;
        }
        int tile = (int)((item - base) / per_tile), rest = (int)((item - base) % per_tile);
        int kv_head = rest / j->head_parts, part = rest % j->head_parts;
        int t0 = tile * j->item_tokens;
        int t1 = t0 + j->item_tokens < seq->count ? t0 + j->item_tokens : seq->count;
        int h0 = part * j->item_heads;
        int h1 = h0 + j->item_heads < j->group ? h0 + j->item_heads : j->group;
        attend(j, seq, seq->first + t0, seq->first + t1, kv_head, kv_head * j->group + h0,
               kv_head * j->group + h1, thread_scratch(j->cpu, thread));
    }
}

void LEVEL_NAME(cpu_attention)(struct backend *b, const struct kv_cache *c, const struct attention *a,
                               const struct batch *batch)
{
    struct attention_job j = {.c = c, .a = a, .batch = batch, .cpu = cpu_of(b)};
    j.group = a->n_heads / c->n_kv_heads;
    j.item_heads = j.group < MAX_ROWS ? j.group : MAX_ROWS;
    j.head_parts = ceil_div(j.group, j.item_heads);
    j.item_tokens = MAX_ROWS / j.item_heads;
    int64_t tiles = 0;
    uint64_t seen = 0, read = 0; /* positions by all queries; positions loaded, once a tile */
    for (int s = 0; s < batch->n_seqs; s++) {
        const struct seq_slice *seq = &batch->seqs[s];
        tiles += ceil_div(seq->count, j.item_tokens);
        for (int t = 0; t < seq->count; t++) {
            int p = batch->positions[seq->first + t];
            seen += (uint64_t)(p - attention_first(a, p) + 1);
            if (t % j.item_tokens == 0)
                read -= (uint64_t)attention_first(a, p);
            if (t % j.item_tokens == j.item_tokens - 1 || t == seq->count - 1)
                read += (uint64_t)p + 1;
        }
    }
    uint64_t dim = (uint64_t)c->head_dim;
    b->count.flops += 4 * seen * (uint64_t)a->n_heads * dim;
    b->count.kv_read_bytes +=
        2 * read * (uint64_t)c->n_kv_heads * (uint64_t)j.head_parts * dim * kv_value_bytes(c);
    int64_t items = tiles * c->n_kv_heads * j.head_parts;
    run_items(b, attention_items, &j, items, (int64_t)(seen * (uint64_t)a->n_heads * dim) / items / 4);
}

/* --- kv_write --- */

struct kv_write_job {
    struct kv_cache *c;
    int layer;
    const float *k, *v;
    const struct batch *batch;
};

static void put_values(const struct kv_cache *c, size_t at, const float *src)
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

static void kv_write_tokens(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct kv_write_job *j = arg;
    const struct kv_cache *c = j->c;
    const struct seq_slice *seq = j->batch->seqs;
    size_t dim = (size_t)c->head_dim;
    for (int64_t t = begin; t < end; t++) {
        while (t >= seq->first + seq->count)
            seq++;
        int p = j->batch->positions[t];
        int32_t block = seq->kv_blocks[p / c->block_size];
        size_t slot = (size_t)(p % c->block_size) * dim;
        for (int h = 0; h < c->n_kv_heads; h++) {
            size_t at = ((size_t)t * (size_t)c->n_kv_heads + (size_t)h) * dim;
            put_values(c, kv_offset(c, block, j->layer, 0, h) + slot, j->k + at);
            put_values(c, kv_offset(c, block, j->layer, 1, h) + slot, j->v + at);
        }
    }
}

void LEVEL_NAME(cpu_kv_write)(struct backend *b, struct kv_cache *c, int layer, const float *k,
                              const float *v, const struct batch *batch)
{
    struct kv_write_job j = {c, layer, k, v, batch};
    uint64_t values = 2 * (uint64_t)c->n_kv_heads * (uint64_t)c->head_dim;
    b->count.kv_write_bytes += (uint64_t)batch->n_tokens * values * kv_value_bytes(c);
    run_items(b, kv_write_tokens, &j, batch->n_tokens, (int64_t)values);
}
