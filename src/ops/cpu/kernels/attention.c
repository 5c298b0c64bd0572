/* Attention over the paged cache. An item is one kv head of a few tokens of one sequence: all the query heads
 * that share the kv head, for all those tokens, pass together over its keys and values, which are widened to
 * fp32 once for the lot of them.
 *
 * The positions are walked in chunks of 1, 2 or 4 vectors. In a chunk, scores are taken with a lane a
 * position (keys transposed, so that no sum crosses lanes), one maximum and one rescaling are made, and the
 * values are added in order of position. Chunks lie at absolute positions, a row skips those it sees nothing
 * of, and positions it does not see are not touched; so a query's arithmetic depends on its own position, and
 * on nothing else. */
#include "ops/cpu/kernels/kernels.h"

#include <assert.h>
#include <math.h>

#define MAX_ROWS   64                /* (token, head) rows of an item */
#define GROUP      (P == 16 ? 8 : 4) /* rows that share a pass over a chunk's keys: by the registers there are */
#define MAX_CHUNK  (4 * P)
#define SCRATCH_OK (2 * MAX_CHUNK * 64 * sizeof(float) <= 64 * 1024) /* see chunk_vectors */

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

/* Vectors of positions in a chunk: what keeps small heads' keys and values in the first-level cache, large
 * heads' in thread_scratch. */
static int chunk_vectors(int head_dim)
{
    _Static_assert(SCRATCH_OK, "chunks of small heads fit the least thread_scratch_bytes");
    return head_dim <= 64 ? 4 : head_dim <= 128 ? 2 : 1;
}

/* P values of the cache from index `at` on, or the n < P that are left of a head. */
INLINE vf kv_load(const void *data, enum dtype dtype, size_t at)
{
    switch (dtype) {
    case DT_F32:
        return vf_load((const float *)data + at);
    case DT_F16:
        return vf_from_half((const uint16_t *)data + at);
    default:
        return vf_from_bf16((const uint16_t *)data + at);
    }
}

INLINE vf kv_load_tail(const void *data, enum dtype dtype, size_t at, int n)
{
    float x[P] = {0};
    uint16_t h[P] = {0};
    if (dtype == DT_F32)
        memcpy(x, (const float *)data + at, (size_t)n * 4);
    else
        memcpy(h, (const uint16_t *)data + at, (size_t)n * 2);
    return dtype == DT_F32 ? vf_load(x) : kv_load(h, dtype, 0);
}

/* Where the cache holds positions p0 … p0+n-1 of a sequence: offsets of keys and of values. */
static void locate(const struct attention_job *j, const struct seq_slice *seq, int kv_head, int p0, int n,
                   size_t keys[MAX_CHUNK], size_t values[MAX_CHUNK])
{
    const struct kv_cache *c = j->c;
    size_t plane = kv_offset(c, 0, j->a->layer, 1, kv_head) - kv_offset(c, 0, j->a->layer, 0, kv_head);
    for (int i = 0; i < n; i++) {
        int32_t block = seq->kv_blocks[(p0 + i) / c->block_size];
        size_t slot = (size_t)((p0 + i) % c->block_size) * (size_t)c->head_dim;
        keys[i] = kv_offset(c, block, j->a->layer, 0, kv_head) + slot;
        values[i] = keys[i] + plane;
    }
}

/* Asks for n rows of keys and values. */
static void ask_for(const struct kv_cache *c, const size_t *keys, const size_t *values, int n)
{
    size_t size = kv_value_bytes(c), bytes = (size_t)c->head_dim * size;
    const char *data = c->data;
    for (int i = 0; i < n; i++) {
        for (size_t at = 0; at < bytes; at += 64) {
            _mm_prefetch(data + keys[i] * size + at, _MM_HINT_T1);
            _mm_prefetch(data + values[i] * size + at, _MM_HINT_T1);
        }
    }
}

/* n <= P positions to keys [dim rounded up to P][P], a lane a position, and values [n][dim rounded up]. Lanes
 * from n on hold anything: nobody uses their scores. */
INLINE void load_typed(const void *data, enum dtype dtype, int dim, const size_t *k_at, const size_t *v_at,
                       int n, float *keys, float *values)
{
    int padded = (dim + P - 1) / P * P, whole = dim / P * P;
    for (int d = 0; d < dim; d += P) {
        vf tile[P];
        if (d < whole) {
            UNROLL for (int j = 0; j < P; j++) tile[j] =
                kv_load(data, dtype, k_at[j < n ? j : 0] + (size_t)d);
        } else {
            for (int j = 0; j < P; j++)
                tile[j] = kv_load_tail(data, dtype, k_at[j < n ? j : 0] + (size_t)d, dim - d);
        }
        vf_transpose(tile);
        UNROLL for (int j = 0; j < P; j++) vf_store(keys + (d + j) * P, tile[j]);
    }
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < whole; d += P)
            vf_store(values + j * padded + d, kv_load(data, dtype, v_at[j] + (size_t)d));
        if (whole < dim)
            vf_store(values + j * padded + whole,
                     kv_load_tail(data, dtype, v_at[j] + (size_t)whole, dim - whole));
    }
}

static void load_positions(const struct kv_cache *c, const size_t *k_at, const size_t *v_at, int n,
                           float *keys, float *values)
{
    switch (c->dtype) {
    case DT_F32:
        load_typed(c->data, DT_F32, c->head_dim, k_at, v_at, n, keys, values);
        break;
    case DT_F16:
        load_typed(c->data, DT_F16, c->head_dim, k_at, v_at, n, keys, values);
        break;
    default:
        load_typed(c->data, DT_BF16, c->head_dim, k_at, v_at, n, keys, values);
    }
}

/* Raw scores of n rows against P positions, d0 … d1-1 of the sum: two chains, over the even and the odd d,
 * for each row. keys [d1 - d0][P]; d0 is even. */
INLINE void score_dims(const struct row *rows, int n, const float *keys, int d0, int d1, vf even[], vf odd[])
{
    int d = d0;
    for (; d + 2 <= d1; d += 2, keys += 2 * P) {
        vf k0 = vf_load(keys), k1 = vf_load(keys + P);
        UNROLL for (int r = 0; r < n; r++)
        {
            even[r] = vf_fma(vf_set1(rows[r].q[d]), k0, even[r]);
            odd[r] = vf_fma(vf_set1(rows[r].q[d + 1]), k1, odd[r]);
        }
    }
    if (d < d1)
        UNROLL for (int r = 0; r < n; r++) even[r] = vf_fma(vf_set1(rows[r].q[d]), vf_load(keys), even[r]);
}

/* Where a chunk's keys and values are: in scratch, widened and transposed (direct false), or in the cache. */
struct chunk {
    bool direct;
    int p0, vectors, low, high; /* positions low … high-1 of it are there */
    int dim;
    const float *keys; /* [vectors][dim rounded up][P] */
    const size_t *k_at;
    const void *data; /* values: row j begins at value_at[j] */
    enum dtype dtype;
    const size_t *v_at;
    const size_t *next_k, *next_v; /* direct: the next chunk's, asked for while this one's are used */
};

/* Asks for n values of the cache from index `at` on. */
INLINE void ask_values(const void *data, enum dtype dtype, size_t at, int n)
{
    size_t size = dtype == DT_F32 ? 4 : 2;
    const char *from = (const char *)data + at * size;
    UNROLL for (size_t i = 0; i < (size_t)n * size; i += 64) _mm_prefetch(from + i, _MM_HINT_T0);
}

/* The same against positions in the cache, for the few rows of a decode step: transposed keys stay in the
 * first-level cache for a moment only. The sums are made in the same order. */
INLINE void score_direct(const struct row *rows, int n, const struct chunk *c, enum dtype dtype, int v,
                         vf even[], vf odd[])
{
    float keys[P * P];
    const size_t *k_at = c->k_at + v * P, *next = c->next_k + v * P;
    int dim = c->dim, count = c->high - c->p0 - v * P;
    for (int d = 0; d < dim; d += P) {
        vf tile[P];
        if (d + P <= dim) {
            UNROLL for (int j = 0; j < P; j++)
            {
                tile[j] = kv_load(c->data, dtype, k_at[j < count ? j : 0] + (size_t)d);
                ask_values(c->data, dtype, next[j] + (size_t)d, P);
            }
        } else {
            for (int j = 0; j < P; j++)
                tile[j] = kv_load_tail(c->data, dtype, k_at[j < count ? j : 0] + (size_t)d, dim - d);
        }
        vf_transpose(tile);
        UNROLL for (int j = 0; j < P; j++) vf_store(keys + j * P, tile[j]);
        score_dims(rows, n, keys, d, d + P < dim ? d + P : dim, even, odd);
    }
}

INLINE void score_rows(const struct row *rows, int n, const struct chunk *c, int v, vf *score)
{
    vf even[GROUP], odd[GROUP];
    UNROLL for (int r = 0; r < n; r++) even[r] = odd[r] = vf_zero();
    int padded = (c->dim + P - 1) / P * P;
    if (!c->direct)
        score_dims(rows, n, c->keys + v * padded * P, 0, c->dim, even, odd);
    else if (c->high - c->p0 <= v * P) /* nothing there */
        ;
    else if (c->dtype == DT_F16)
        score_direct(rows, n, c, DT_F16, v, even, odd);
    else if (c->dtype == DT_BF16)
        score_direct(rows, n, c, DT_BF16, v, even, odd);
    else
        score_direct(rows, n, c, DT_F32, v, even, odd);
    UNROLL for (int r = 0; r < n; r++) score[r] = vf_add(even[r], odd[r]);
}

/* w vectors of out, from d on: out = out * shrink + Σ weight[j] value[j], j from … to-1, for n rows. */
INLINE void add_columns(const struct row *rows, int n, int w, const struct chunk *c, enum dtype dtype, int d,
                        int from, int to, const float *shrink, float weight[][MAX_CHUNK])
{
    vf acc[4][4];
    vmask on = vmask_left(d, c->dim);
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int i = 0; i < w; i++) acc[r][i] =
        vf_mul(vf_load_masked(rows[r].out + d + i * P, on), vf_set1(shrink[r]));
    for (int j = from; j < to; j++) {
        vf v[4];
        size_t at = c->v_at[j] + (size_t)d;
        if (w == 1 && d + P > c->dim) {
            v[0] = kv_load_tail(c->data, dtype, at, c->dim - d);
        } else {
            UNROLL for (int i = 0; i < w; i++) v[i] = kv_load(c->data, dtype, at + (size_t)(i * P));
        }
        if (c->next_v)
            ask_values(c->data, dtype, c->next_v[j] + (size_t)d, w * P);
        UNROLL for (int r = 0; r < n; r++)
        {
            vf p = vf_set1(weight[r][j]);
            UNROLL for (int i = 0; i < w; i++) acc[r][i] = vf_fma(p, v[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int i = 0; i < w; i++)
        vf_store_masked(rows[r].out + d + i * P, on, acc[r][i]);
}

INLINE void add_typed(const struct row *rows, int n, const struct chunk *c, enum dtype dtype, int from,
                      int to, const float *shrink, float weight[][MAX_CHUNK])
{
    int d = 0;
    for (; d + 4 * P <= c->dim; d += 4 * P)
        add_columns(rows, n, 4, c, dtype, d, from, to, shrink, weight);
    for (; d < c->dim; d += P)
        add_columns(rows, n, 1, c, dtype, d, from, to, shrink, weight);
}

INLINE void add_values(const struct row *rows, int n, const struct chunk *c, int from, int to,
                       const float *shrink, float weight[][MAX_CHUNK])
{
    switch (c->dtype) {
    case DT_F32:
        add_typed(rows, n, c, DT_F32, from, to, shrink, weight);
        break;
    case DT_F16:
        add_typed(rows, n, c, DT_F16, from, to, shrink, weight);
        break;
    default:
        add_typed(rows, n, c, DT_BF16, from, to, shrink, weight);
    }
}

/* Up to GROUP rows against a chunk. */
static void attend_rows(struct row *rows, int n, const struct chunk *c, float scale)
{
    int p0 = c->p0, vectors = c->vectors, length = vectors * P;
    float weight[GROUP][MAX_CHUNK], old[P] = {0}, new[P] = {0}, shrink[P];
    int from[GROUP], to[GROUP];
    for (int v = 0; v < vectors; v++) {
        vf score[GROUP];
        switch (n) {
#define ROWS(n)                           \
    case n:                               \
        score_rows(rows, n, c, v, score); \
        break;
#if P == 16
            ROWS(8)
            ROWS(7)
            ROWS(6)
            ROWS(5)
#endif
            ROWS(4)
            ROWS(3)
            ROWS(2)
            ROWS(1)
#undef ROWS
        default:
            __builtin_unreachable();
        }
        for (int r = 0; r < n; r++)
            vf_store(weight[r] + v * P, score[r]);
    }
    for (int r = 0; r < n; r++) {
        from[r] = rows[r].first > p0 ? rows[r].first - p0 : 0;
        to[r] = rows[r].last - p0 + 1 < length ? rows[r].last - p0 + 1 : length;
        old[r] = new[r] = rows[r].max;
        if (from[r] >= to[r])
            continue;
        vf most = vf_set1(-INFINITY);
        for (int v = 0; v < vectors; v++) {
            vf s = vf_mul(vf_load(weight[r] + v * P), vf_set1(scale));
            s = vf_select(vmask_range(from[r] - v * P, to[r] - v * P), s, vf_set1(-INFINITY));
            vf_store(weight[r] + v * P, s);
            most = vf_max(most, s);
        }
        float max = vf_hmax(most);
        if (max > rows[r].max)
            new[r] = rows[r].max = max;
    }
    vf_store(shrink, vf_exp(vf_sub(vf_load(old), vf_load(new))));
    for (int r = 0; r < n; r++) {
        if (from[r] >= to[r]) {
            shrink[r] = 1;
            continue;
        }
        vf sum = vf_zero();
        for (int v = 0; v < vectors; v++) {
            vf w = vf_exp(vf_sub(vf_load(weight[r] + v * P), vf_set1(new[r])));
            vf_store(weight[r] + v * P, w);
            sum = vf_add(sum, w);
        }
        rows[r].sum = rows[r].sum * shrink[r] + vf_hsum(sum);
    }
    for (int r = 0, m; r < n; r += m) {
        m = n - r < 4 ? n - r : 4;
        /* What all see is added for all at once; before and after it, each row's own. */
        int low = from[r], high = to[r];
        for (int i = r + 1; i < r + m; i++) {
            low = from[i] > low ? from[i] : low;
            high = to[i] < high ? to[i] : high;
        }
        if (low >= high)
            low = high = length;
        for (int i = r; i < r + m; i++) {
            int end = to[i] < low ? to[i] : low;
            if (from[i] < end) {
                add_values(rows + i, 1, c, from[i], end, shrink + i, weight + i);
                shrink[i] = 1;
            }
        }
        if (low >= high)
            continue;
        switch (m) {
        case 4:
            add_values(rows + r, 4, c, low, high, shrink + r, weight + r);
            break;
        case 3:
            add_values(rows + r, 3, c, low, high, shrink + r, weight + r);
            break;
        case 2:
            add_values(rows + r, 2, c, low, high, shrink + r, weight + r);
            break;
        default:
            add_values(rows + r, 1, c, low, high, shrink + r, weight + r);
        }
        for (int i = r; i < r + m; i++) {
            float one = 1;
            if (high < to[i])
                add_values(rows + i, 1, c, high, to[i], &one, weight + i);
        }
    }
}

/* kv_head for tokens t0 … t1-1 of a sequence, query heads h0 … h1-1. */
static void attend(const struct attention_job *j, const struct seq_slice *seq, int t0, int t1, int kv_head,
                   int h0, int h1, uint8_t *scratch)
{
    const struct kv_cache *c = j->c;
    int dim = c->head_dim, padded = (dim + P - 1) / P * P;
    int vectors = chunk_vectors(dim), length = vectors * P;
    float *keys = (float *)scratch, *values = keys + length * padded;
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
    int first = attention_first(j->a, j->batch->positions[t0]), last = j->batch->positions[t1 - 1];
    size_t k_at[2][MAX_CHUNK], v_at[2][MAX_CHUNK]; /* of this chunk and the next */
    size_t scratch_at[MAX_CHUNK];                  /* of values in scratch */
    for (int i = 0; i < length; i++)
        scratch_at[i] = (size_t)(i * padded);
    struct chunk ch = {.direct = n <= GROUP, .p0 = first / length * length, .vectors = vectors, .dim = dim};
    ch.keys = keys;
    ch.data = ch.direct ? c->data : values;
    ch.dtype = ch.direct ? c->dtype : DT_F32;
    /* Positions before `first` may lie in blocks that were given back: they are not looked at. */
    ch.low = first;
    ch.high = ch.p0 + length <= last + 1 ? ch.p0 + length : last + 1;
    locate(j, seq, kv_head, ch.low, ch.high - ch.low, k_at[0] + (ch.low - ch.p0), v_at[0] + (ch.low - ch.p0));
    for (int here = 0; ch.p0 <= last; here ^= 1) {
        for (int i = 0; i < ch.low - ch.p0; i++) { /* any position will do; nobody uses its score */
            k_at[here][i] = k_at[here][ch.low - ch.p0];
            v_at[here][i] = v_at[here][ch.low - ch.p0];
        }
        ch.k_at = k_at[here];
        ch.v_at = ch.direct ? v_at[here] : scratch_at;
        for (int v = 0; v < vectors && !ch.direct; v++) {
            int count = ch.high - ch.p0 - v * P;
            if (count > 0)
                load_positions(c, k_at[here] + v * P, v_at[here] + v * P, count < P ? count : P,
                               keys + v * padded * P, values + v * P * padded);
        }
        int next = ch.p0 + length, end = next + length <= last + 1 ? next + length : last + 1;
        if (next < end)
            locate(j, seq, kv_head, next, end - next, k_at[here ^ 1], v_at[here ^ 1]);
        for (int i = next < end ? end - next : 0; i < length; i++) { /* nothing new to ask for */
            k_at[here ^ 1][i] = k_at[here][ch.low - ch.p0];
            v_at[here ^ 1][i] = v_at[here][ch.low - ch.p0];
        }
        if (ch.direct) {
            ch.next_k = k_at[here ^ 1];
            ch.next_v = v_at[here ^ 1];
        } else if (next < end) {
            ask_for(c, k_at[here ^ 1], v_at[here ^ 1], end - next);
        }
        for (int r = 0; r < n; r += GROUP)
            attend_rows(rows + r, n - r < GROUP ? n - r : GROUP, &ch, j->a->scale);
        ch.p0 = ch.low = next;
        ch.high = end;
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
    assert(c->head_dim <=
           j.cpu->max_cols); /* room in thread_scratch: the output projection has more columns */
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
