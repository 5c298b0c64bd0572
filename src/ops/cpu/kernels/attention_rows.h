/* A few rows, each a query head of a token, against a chunk of positions: scores with a lane a position
 * (keys transposed, so that no sum crosses lanes), one maximum, one rescaling, and the values added in order
 * of position. A row's arithmetic depends on its own position and on nothing else.
 *
 * 8-bit caches: a score is a sum of integer products, keys times the query in 16 bits, which is exact in any
 * order; the keys' scales join the finished sums, and the values' scales the weights. Part of attention.c. */
#ifndef SLUICE_OPS_CPU_ATTENTION_ROWS_H
#define SLUICE_OPS_CPU_ATTENTION_ROWS_H

#include "ops/cpu/kernels/kernels.h"

#include <math.h>

#define GROUP \
    (REGISTERS == 32 ? 8 : 4) /* rows that share a pass over a chunk's keys: by the registers there are */
#define WIDE      (REGISTERS == 32 ? 4 : 2) /* vectors of values that are summed at a time: the same */
#define MAX_CHUNK (4 * P)                   /* positions */
#define KEY_TILE  16                        /* dimensions of 8-bit keys that are transposed together */

struct row {
    const float *q;      /* [head_dim] */
    const int16_t *q_16; /* 8-bit caches: q / q_scale, in the order that score_bytes takes */
    float *out;          /* [head_dim], the running sum of weight * value */
    int first, last;     /* positions it sees */
    float scale;         /* of scores */
    float max, sum;
};

/* Where a chunk's keys and values are: in scratch, widened and transposed (direct false), or in the cache. */
struct chunk {
    bool direct;
    int p0, vectors, low, high; /* positions low … high-1 of it are there */
    int dim;
    const void *cache;
    enum dtype cached; /* the cache's type */
    const void *keys;  /* not direct: [vectors][dim rounded up][P] floats, or pairs of 16 bits (key_pairs) */
    const size_t *k_at;
    const void *data; /* values: row j begins at v_at[j] */
    enum dtype dtype;
    const size_t *v_at;
    const size_t *next_k, *next_v; /* direct: the next chunk's, asked for while this one's are used */
    float k_scale[MAX_CHUNK], v_scale[MAX_CHUNK]; /* 8-bit caches */
};

/* P values of the cache from index `at` on, or the n < P that are left of a head. */
INLINE vf kv_load(const void *data, enum dtype dtype, size_t at)
{
    switch (dtype) {
    case DT_F32:
        return vf_load((const float *)data + at);
    case DT_F16:
        return vf_from_half((const uint16_t *)data + at);
    case DT_I8: /* the integers: scales are for the caller */
        return vf_from_i8((const int8_t *)data + at);
    default:
        return vf_from_bf16((const uint16_t *)data + at);
    }
}

INLINE vf kv_load_tail(const void *data, enum dtype dtype, size_t at, int n)
{
    float x[P] = {0}; /* values of any type */
    size_t size = dtype == DT_F32 ? 4 : dtype == DT_I8 ? 1 : 2;
    memcpy(x, (const char *)data + at * size, (size_t)n * size);
    return kv_load(x, dtype, 0);
}

/* n positions' values [n][dim rounded up]. */
INLINE void load_values(const void *data, enum dtype dtype, int dim, const size_t *v_at, int n, float *values)
{
    int padded = (dim + P - 1) / P * P, whole = dim / P * P;
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < whole; d += P)
            vf_store(values + j * padded + d, kv_load(data, dtype, v_at[j] + (size_t)d));
        if (whole < dim)
            vf_store(values + j * padded + whole,
                     kv_load_tail(data, dtype, v_at[j] + (size_t)whole, dim - whole));
    }
}

/* n <= P positions to keys [dim rounded up to P][P], a lane a position, and values. Lanes from n on hold
 * anything: nobody uses their scores. */
INLINE void load_typed(const void *data, enum dtype dtype, int dim, const size_t *k_at, const size_t *v_at,
                       int n, float *keys, float *values)
{
    for (int d = 0; d < dim; d += P) {
        vf tile[P];
        if (d + P <= dim) {
            UNROLL for (int j = 0; j < P; j++) tile[j] =
                kv_load(data, dtype, k_at[j < n ? j : 0] + (size_t)d);
        } else {
            for (int j = 0; j < P; j++)
                tile[j] = kv_load_tail(data, dtype, k_at[j < n ? j : 0] + (size_t)d, dim - d);
        }
        vf_transpose(tile);
        UNROLL for (int j = 0; j < P; j++) vf_store(keys + (d + j) * P, tile[j]);
    }
    load_values(data, dtype, dim, v_at, n, values);
}

/* Bytes of keys to pairs of 16 bits, a lane a position, for vi_dot2: KEY_TILE dimensions of P positions
 * (those from n on are anything) from d on, as KEY_TILE/2 vectors: dimensions 0 and 2, 1 and 3, 4 and 6, … */
INLINE void key_pairs(const int8_t *data, const size_t *k_at, int n, int d, int dim, vi pairs[KEY_TILE / 2])
{
    const void *row[P];
    int8_t tail[P][KEY_TILE];
    vi r[4];
    UNROLL for (int j = 0; j < P; j++) row[j] = data + k_at[j < n ? j : 0] + d;
    if (d + KEY_TILE > dim) {
        memset(tail, 0, sizeof tail);
        for (int j = 0; j < P; j++)
            row[j] = memcpy(tail[j], row[j], (size_t)(dim - d));
    }
    UNROLL for (int i = 0; i < 4; i++) r[i] = vi_load_rows(row + i);
    vi_transpose4(r);
    UNROLL for (int i = 0; i < 4; i++)
    {
        pairs[2 * i] = vi_even_bytes(r[i]);
        pairs[2 * i + 1] = vi_odd_bytes(r[i]);
    }
}

/* q, transformed as the keys are, as integers of 16 bits in the order of key_pairs, zeros up to whole tiles;
 * returns their scale. With up to 512 dimensions sums of products fit 32 bits; with more the integers are
 * smaller. room [dim]. */
static float query_pairs(const float *q, int dim, int16_t *to, float *room)
{
    memcpy(room, q, (size_t)dim * sizeof *q);
    kv_transform(room, dim);
    q = room;
    static const int order[4] = {0, 2, 1, 3};
    vf most = vf_zero(), poison = vf_zero();
    for (int d = 0; d < dim; d += P) {
        vf x = vf_load_masked(q + d, vmask_left(d, dim));
        poison = vf_fma(x, vf_zero(), poison); /* NaN and infinities spoil the row, as they do in floats */
        most = vf_max(vf_max(x, vf_sub(vf_zero(), x)), most);
    }
    float max = vf_hmax(most), top = dim <= 512 ? 32767.0f : floorf(16777216.0f / (float)dim);
    float scale = max < 0x1p-100f ? 0 : max / top, inverse = scale > 0 && max < INFINITY ? top / max : 0;
    int padded = (dim + KEY_TILE - 1) / KEY_TILE * KEY_TILE;
    for (int d = 0; d < padded; d += P) {
        int32_t x[P];
        vi_store(x, vi_from_float(vf_mul(vf_load_masked(q + d, vmask_left(d, dim)), vf_set1(inverse))));
        for (int i = 0; i < P; i++)
            to[(d + i) / 4 * 4 + order[i % 4]] = (int16_t)x[i];
    }
    return (scale + vf_hsum(poison)) / (float)kv_block_length(dim);
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

/* Asks for the cache lines that begin in n values from dimension d of the row at `at` on. */
INLINE void ask_values(const void *data, enum dtype dtype, size_t at, int d, int n)
{
    size_t size = dtype == DT_F32 ? 4 : dtype == DT_I8 ? 1 : 2;
    const char *row = (const char *)data + at * size;
    size_t from = (size_t)d * size;
    if ((size_t)n * size >= 64 || from % 64 == 0)
        UNROLL for (size_t i = 0; i < (size_t)n * size; i += 64) prefetch(row + from + i);
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
                tile[j] = kv_load(c->cache, dtype, k_at[j < count ? j : 0] + (size_t)d);
                ask_values(c->cache, dtype, next[j], d, P);
            }
        } else {
            for (int j = 0; j < P; j++)
                tile[j] = kv_load_tail(c->cache, dtype, k_at[j < count ? j : 0] + (size_t)d, dim - d);
        }
        vf_transpose(tile);
        UNROLL for (int j = 0; j < P; j++) vf_store(keys + j * P, tile[j]);
        score_dims(rows, n, keys, d, d + P < dim ? d + P : dim, even, odd);
    }
}

/* Sums of n rows over KEY_TILE dimensions from d on, on two chains each. */
INLINE void score_pairs(const struct row *rows, int n, const vi pairs[KEY_TILE / 2], int d, vi even[],
                        vi odd[])
{
    UNROLL for (int i = 0; i < KEY_TILE / 2; i += 2)
    {
        UNROLL for (int r = 0; r < n; r++)
        {
            int32_t a, b;
            memcpy(&a, rows[r].q_16 + d + 2 * i, sizeof a);
            memcpy(&b, rows[r].q_16 + d + 2 * i + 2, sizeof b);
            even[r] = vi_dot2(even[r], pairs[i], vi_set1(a));
            odd[r] = vi_dot2(odd[r], pairs[i + 1], vi_set1(b));
        }
    }
}

/* Raw scores of n rows against vector v of a chunk of an 8-bit cache. */
INLINE void score_bytes(const struct row *rows, int n, const struct chunk *c, int v, vf *score)
{
    vi even[GROUP], odd[GROUP];
    UNROLL for (int r = 0; r < n; r++) even[r] = odd[r] = vi_zero();
    int padded = (c->dim + KEY_TILE - 1) / KEY_TILE * KEY_TILE, count = c->high - c->p0 - v * P;
    const vi *keys = (const vi *)c->keys + (size_t)v * (size_t)(padded / 2);
    for (int d = 0; d < c->dim && count > 0; d += KEY_TILE) {
        vi pairs[KEY_TILE / 2];
        if (!c->direct) {
            UNROLL for (int i = 0; i < KEY_TILE / 2; i++) pairs[i] = vi_load(keys + d / 2 + i);
        } else {
            key_pairs(c->cache, c->k_at + v * P, count, d, c->dim, pairs);
            UNROLL for (int j = 0; j < P; j++) ask_values(c->cache, DT_I8, c->next_k[v * P + j], d, KEY_TILE);
        }
        score_pairs(rows, n, pairs, d, even, odd);
    }
    vf scale = vf_load(c->k_scale + v * P);
    UNROLL for (int r = 0; r < n; r++) score[r] = vf_mul(vi_to_float(vi_add(even[r], odd[r])), scale);
}

INLINE void score_rows(const struct row *rows, int n, const struct chunk *c, int v, vf *score)
{
    if (c->cached == DT_I8) {
        score_bytes(rows, n, c, v, score);
        return;
    }
    vf even[GROUP], odd[GROUP];
    UNROLL for (int r = 0; r < n; r++) even[r] = odd[r] = vf_zero();
    int padded = (c->dim + P - 1) / P * P;
    if (!c->direct)
        score_dims(rows, n, (const float *)c->keys + v * padded * P, 0, c->dim, even, odd);
    else if (c->high - c->p0 <= v * P) /* nothing there */
        ;
    else if (c->cached == DT_F16)
        score_direct(rows, n, c, DT_F16, v, even, odd);
    else if (c->cached == DT_BF16)
        score_direct(rows, n, c, DT_BF16, v, even, odd);
    else
        score_direct(rows, n, c, DT_F32, v, even, odd);
    UNROLL for (int r = 0; r < n; r++) score[r] = vf_add(even[r], odd[r]);
}

/* w vectors of out, from d on: out = out * shrink + Σ weight[j] value[j], j from … to-1, for n rows. */
INLINE void add_columns(const struct row *rows, int n, int w, const struct chunk *c, enum dtype dtype, int d,
                        int from, int to, const float *shrink, float weight[][MAX_CHUNK])
{
    vf acc[4][WIDE];
    vmask on = vmask_left(d, c->dim);
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int i = 0; i < w; i++) acc[r][i] =
        vf_mul(vf_load_masked(rows[r].out + d + i * P, on), vf_set1(shrink[r]));
    for (int j = from; j < to; j++) {
        vf v[WIDE];
        size_t at = c->v_at[j] + (size_t)d;
        if (w == 1 && d + P > c->dim) {
            v[0] = kv_load_tail(c->data, dtype, at, c->dim - d);
        } else {
            UNROLL for (int i = 0; i < w; i++) v[i] = kv_load(c->data, dtype, at + (size_t)(i * P));
        }
        if (c->direct)
            ask_values(c->data, dtype, c->next_v[j], d, w * P);
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
    for (; d + WIDE * P <= c->dim; d += WIDE * P)
        add_columns(rows, n, WIDE, c, dtype, d, from, to, shrink, weight);
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
    case DT_I8:
        add_typed(rows, n, c, DT_I8, from, to, shrink, weight);
        break;
    default:
        add_typed(rows, n, c, DT_BF16, from, to, shrink, weight);
    }
}

/* Up to GROUP rows against a chunk. */
static void attend_rows(struct row *rows, int n, const struct chunk *c)
{
    int p0 = c->p0, vectors = c->vectors, length = vectors * P;
    enum { LANES = GROUP > P ? GROUP : P };
    float weight[GROUP][MAX_CHUNK], old[LANES] = {0}, new[LANES] = {0}, shrink[LANES];
    int from[GROUP], to[GROUP];
    for (int v = 0; v < vectors; v++) {
        vf score[GROUP];
        switch (n) {
#define ROWS(n)                           \
    case n:                               \
        score_rows(rows, n, c, v, score); \
        break;
#if REGISTERS == 32
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
            vf s = vf_mul(vf_load(weight[r] + v * P), vf_set1(rows[r].scale));
            s = vf_select(vmask_range(from[r] - v * P, to[r] - v * P), s, vf_set1(-INFINITY));
            vf_store(weight[r] + v * P, s);
            most = vf_max(most, s);
        }
        float max = vf_hmax(most);
        if (max > rows[r].max)
            new[r] = rows[r].max = max;
    }
    for (int r = 0; r < n; r += P)
        vf_store(shrink + r, vf_exp(vf_sub(vf_load(old + r), vf_load(new + r))));
    for (int r = 0; r < n; r++) {
        if (from[r] >= to[r]) {
            shrink[r] = 1;
            continue;
        }
        vf sum = vf_zero();
        for (int v = 0; v < vectors; v++) {
            vf w = vf_exp(vf_sub(vf_load(weight[r] + v * P), vf_set1(new[r])));
            sum = vf_add(sum, w);
            if (c->cached == DT_I8)
                w = vf_mul(w, vf_load(c->v_scale + v * P));
            vf_store(weight[r] + v * P, w);
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

#endif
