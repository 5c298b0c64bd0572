/* Attention over the paged cache. An item is one kv head of a few tokens of one sequence: all the query heads
 * that share the kv head, for all those tokens, pass together over its keys and values, which are widened
 * once for the lot of them.
 *
 * The positions are walked in chunks of 1, 2 or 4 vectors (attention_rows.h). Chunks lie at absolute
 * positions, a row skips those it sees nothing of, and positions it does not see are not touched. Every SPAN
 * positions, at absolute positions too, a row's sums are closed and joined to those of the spans before. So a
 * query's arithmetic depends on its own position, and on nothing else; and where a step has fewer items than
 * threads (one request with a long context), the spans are computed by different threads and joined
 * afterwards, to the same bits. */
#include "ops/cpu/kernels/attention_rows.h"

#include <assert.h>

#define MAX_ROWS   64    /* (token, head) rows of an item … */
#define ROW_FLOATS 16384 /* … and the floats that their sums may take, unless one row takes more */
#define SPAN       1024  /* positions, a multiple of every chunk's */
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
    bool split;      /* items are cut at spans, whose sums go to parts */
    float *parts;    /* [items][item_tokens * item_heads][padded + 2]: sums, their maximum and their weight */
};

static int padded_dim(int head_dim)
{
    return ceil_div(head_dim, P) * P;
}

/* Vectors of positions in a chunk: what keeps small heads' keys and values in the first-level cache, large
 * heads' in thread_scratch. */
static int chunk_vectors(int head_dim)
{
    _Static_assert(SCRATCH_OK, "chunks of small heads fit the least thread_scratch_bytes");
    _Static_assert(SPAN % MAX_CHUNK == 0, "a chunk lies in one span");
    return head_dim <= 64 ? 4 : head_dim <= 128 ? 2 : 1;
}

/* --- one item --- */

struct item {
    const struct attention_job *j;
    const struct seq_slice *seq;
    int t0, t1;      /* tokens */
    int kv_head;     /* … */
    int h0, h1;      /* … and of its group, query heads h0 … h1-1 */
    int first, last; /* positions to go through: all that the tokens see, or those of one span */
};

/* Where the cache holds positions p0 … p0+n-1 of the sequence: keys and values. */
static void locate(const struct item *it, int p0, int n, size_t *keys, size_t *values)
{
    const struct kv_cache *c = it->j->c;
    int layer = it->j->a->layer, slot = p0 % c->block_size, block = p0 / c->block_size;
    size_t plane = kv_offset(c, 0, layer, 1, it->kv_head) - kv_offset(c, 0, layer, 0, it->kv_head);
    for (int i = 0; i < n; block++, slot = 0) {
        size_t at = kv_offset(c, it->seq->kv_blocks[block], layer, 0, it->kv_head);
        if (c->dtype == DT_I8) { /* the chunk after this one will want them */
            prefetch(kv_scales(c, at) + (size_t)slot * sizeof(float));
            prefetch(kv_scales(c, at + plane) + (size_t)slot * sizeof(float));
        }
        for (; i < n && slot < c->block_size; i++, slot++) {
            keys[i] = at + (size_t)slot * (size_t)c->head_dim;
            values[i] = keys[i] + plane;
        }
    }
}

/* The scales of positions p0 … p0+n-1 of an 8-bit cache. */
static void load_scales(const struct item *it, int p0, int n, float *keys, float *values)
{
    const struct kv_cache *c = it->j->c;
    int slot = p0 % c->block_size, block = p0 / c->block_size;
    for (int i = 0, run; i < n; i += run, block++, slot = 0) {
        run = c->block_size - slot < n - i ? c->block_size - slot : n - i;
        for (int which = 0; which < 2; which++) {
            size_t at = kv_offset(c, it->seq->kv_blocks[block], it->j->a->layer, which, it->kv_head);
            memcpy((which ? values : keys) + i, kv_scales(c, at) + (size_t)slot * sizeof(float),
                   (size_t)run * sizeof(float));
        }
    }
}

/* Asks for n rows of keys and values. */
static void ask_for(const struct kv_cache *c, const size_t *keys, const size_t *values, int n)
{
    size_t size = kv_value_bytes(c), bytes = (size_t)c->head_dim * size;
    const char *data = c->data;
    for (int i = 0; i < n; i++) {
        for (size_t at = 0; at < bytes; at += 64) {
            prefetch_far(data + keys[i] * size + at);
            prefetch_far(data + values[i] * size + at);
        }
    }
}

/* n <= P positions, vector v of a chunk, to its keys and values in scratch. */
static void load_positions(const struct kv_cache *c, const size_t *k_at, const size_t *v_at, int n, int v,
                           float *keys, float *values)
{
    int padded = padded_dim(c->head_dim), tiles = ceil_div(c->head_dim, KEY_TILE);
    values += v * P * padded;
    switch (c->dtype) {
    case DT_F32:
        load_typed(c->data, DT_F32, c->head_dim, k_at, v_at, n, keys + v * padded * P, values);
        break;
    case DT_F16:
        load_typed(c->data, DT_F16, c->head_dim, k_at, v_at, n, keys + v * padded * P, values);
        break;
    case DT_I8:
        for (int t = 0; t < tiles; t++) {
            vi pairs[KEY_TILE / 2];
            key_pairs(c->data, k_at, n, t * KEY_TILE, c->head_dim, pairs);
            for (int i = 0; i < KEY_TILE / 2; i++)
                vi_store((vi *)keys + (v * tiles + t) * (KEY_TILE / 2) + i, pairs[i]);
        }
        load_values(c->data, DT_I8, c->head_dim, v_at, n, values);
        break;
    default:
        load_typed(c->data, DT_BF16, c->head_dim, k_at, v_at, n, keys + v * padded * P, values);
    }
}

/* Adds to rows what their heads see of positions it->first … it->last, one span or a part of it. */
static void attend_span(const struct item *it, struct row *rows, int n, uint8_t *scratch)
{
    const struct kv_cache *c = it->j->c;
    int dim = c->head_dim, padded = padded_dim(dim), first = it->first, last = it->last;
    int vectors = chunk_vectors(dim), length = vectors * P;
    float *keys = (float *)scratch, *values = keys + length * padded;
    size_t k_at[2][MAX_CHUNK], v_at[2][MAX_CHUNK]; /* of this chunk and the next */
    size_t scratch_at[MAX_CHUNK];                  /* of values in scratch */
    for (int i = 0; i < length; i++)
        scratch_at[i] = (size_t)(i * padded);
    struct chunk ch = {.direct = n <= GROUP,
                       .p0 = first / length * length,
                       .vectors = vectors,
                       .dim = dim,
                       .cache = c->data,
                       .cached = c->dtype,
                       .keys = keys};
    ch.data = ch.direct ? c->data : values;
    ch.dtype = ch.direct ? c->dtype : DT_F32;
    /* Positions before `first` may lie in blocks that were given back: they are not looked at. */
    ch.low = first;
    ch.high = ch.p0 + length <= last + 1 ? ch.p0 + length : last + 1;
    locate(it, ch.low, ch.high - ch.low, k_at[0] + (ch.low - ch.p0), v_at[0] + (ch.low - ch.p0));
    for (int here = 0; ch.p0 <= last; here ^= 1) {
        for (int i = 0; i < ch.low - ch.p0; i++) { /* any position will do; nobody uses its score */
            k_at[here][i] = k_at[here][ch.low - ch.p0];
            v_at[here][i] = v_at[here][ch.low - ch.p0];
        }
        ch.k_at = k_at[here];
        ch.v_at = ch.direct ? v_at[here] : scratch_at;
        if (c->dtype == DT_I8)
            load_scales(it, ch.low, ch.high - ch.low, ch.k_scale + (ch.low - ch.p0),
                        ch.v_scale + (ch.low - ch.p0));
        for (int v = 0; v < vectors && !ch.direct; v++) {
            int count = ch.high - ch.p0 - v * P;
            if (count > 0)
                load_positions(c, k_at[here] + v * P, v_at[here] + v * P, count < P ? count : P, v, keys,
                               values);
        }
        int next = ch.p0 + length, end = next + length <= last + 1 ? next + length : last + 1;
        if (next < end)
            locate(it, next, end - next, k_at[here ^ 1], v_at[here ^ 1]);
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
            attend_rows(rows + r, n - r < GROUP ? n - r : GROUP, &ch);
        ch.p0 = ch.low = next;
        ch.high = end;
    }
}

/* The item's rows, nothing summed yet; sums go to `out` [rows][stride], or where it is NULL to the results.
 */
static int item_rows(const struct item *it, struct row *rows, int16_t *q_16, float *out, size_t stride)
{
    const struct attention_job *j = it->j;
    int dim = j->c->head_dim, tiled = ceil_div(dim, KEY_TILE) * KEY_TILE, n = 0;
    for (int t = it->t0; t < it->t1; t++) {
        for (int h = it->h0; h < it->h1; h++, n++) {
            size_t at = ((size_t)t * (size_t)j->a->n_heads + (size_t)h) * (size_t)dim;
            int last = j->batch->positions[t];
            rows[n] = (struct row){.q = j->a->q + at,
                                   .q_16 = q_16 + n * tiled,
                                   .out = out ? out + (size_t)n * stride : j->a->out + at,
                                   .first = attention_first(j->a, last),
                                   .last = last,
                                   .scale = j->a->scale,
                                   .max = -INFINITY};
            if (j->c->dtype == DT_I8)
                rows[n].scale *= query_pairs(rows[n].q, dim, q_16 + n * tiled, rows[n].out);
            memset(rows[n].out, 0, (size_t)dim * sizeof(float));
        }
    }
    return n;
}

/* total, of weight *weight and maximum *max, and the sums of the next span, joined; nothing summed has weight
 * 0. */
static void join(float *total, float *max, float *weight, const float *next, float next_max,
                 float next_weight, int dim)
{
    if (next_weight == 0)
        return;
    float shrink[2] = {0, 1};
    if (*weight != 0) {
        float e[P] = {0}, most = *max > next_max ? *max : next_max;
        e[0] = *max - most;
        e[1] = next_max - most;
        vf_store(e, vf_exp(vf_load(e)));
        shrink[0] = e[0];
        shrink[1] = e[1];
        *max = most;
    } else {
        *max = next_max;
    }
    for (int d = 0; d < dim; d += P) {
        vmask on = vmask_left(d, dim);
        vf x = vf_mul(vf_load_masked(next + d, on), vf_set1(shrink[1]));
        if (*weight != 0)
            x = vf_fma(vf_load_masked(total + d, on), vf_set1(shrink[0]), x);
        vf_store_masked(total + d, on, x);
    }
    *weight = *weight * shrink[0] + next_weight * shrink[1];
}

static void divide(float *out, const float *sums, float weight, int dim)
{
    vf inverse = vf_set1(1.0f / weight);
    for (int d = 0; d < dim; d += P) {
        vmask on = vmask_left(d, dim);
        vf_store_masked(out + d, on, vf_mul(vf_load_masked(sums + d, on), inverse));
    }
}

/* A thread's scratch: keys and values of a chunk, then q in 16 bits, then totals of closed spans. */
static uint8_t *row_scratch(const struct attention_job *j, uint8_t *scratch)
{
    return scratch +
           2 * (size_t)(chunk_vectors(j->c->head_dim) * P * padded_dim(j->c->head_dim)) * sizeof(float);
}

/* A whole item, span after span. */
static void attend(struct item *it, uint8_t *scratch)
{
    const struct attention_job *j = it->j;
    int dim = j->c->head_dim, padded = padded_dim(dim), last = it->last;
    int16_t *q_16 = (int16_t *)row_scratch(j, scratch);
    float *totals = (float *)(q_16 + j->item_tokens * j->item_heads * ceil_div(dim, KEY_TILE) * KEY_TILE);
    float max[MAX_ROWS], weight[MAX_ROWS] = {0};
    struct row rows[MAX_ROWS];
    int n = item_rows(it, rows, q_16, NULL, 0);
    bool closed = false; /* there are totals */
    for (; it->first <= last; it->first = it->last + 1) {
        it->last = it->first / SPAN * SPAN + SPAN - 1;
        it->last = it->last < last ? it->last : last;
        attend_span(it, rows, n, scratch);
        closed |= it->last < last;
        for (int r = 0; r < n && closed; r++) {
            join(totals + r * padded, &max[r], &weight[r], rows[r].out, rows[r].max, rows[r].sum, dim);
            rows[r].max = -INFINITY;
            rows[r].sum = 0;
            memset(rows[r].out, 0, (size_t)dim * sizeof(float));
        }
    }
    for (int r = 0; r < n; r++)
        divide(rows[r].out, closed ? totals + r * padded : rows[r].out, closed ? weight[r] : rows[r].sum,
               dim);
}

/* One span of an item, to its place among the parts: sums, maximum, weight. */
static void attend_part(const struct item *it, float *part, uint8_t *scratch)
{
    int padded = padded_dim(it->j->c->head_dim);
    struct row rows[MAX_ROWS];
    int n = item_rows(it, rows, (int16_t *)row_scratch(it->j, scratch), part, (size_t)padded + 2);
    attend_span(it, rows, n, scratch);
    for (int r = 0; r < n; r++) {
        rows[r].out[padded] = rows[r].max;
        rows[r].out[padded + 1] = rows[r].sum;
    }
}

/* The results of an item out of the parts of its n_spans spans. */
static void join_parts(const struct item *it, const float *part, size_t part_floats, int n_spans,
                       uint8_t *scratch)
{
    const struct attention_job *j = it->j;
    int dim = j->c->head_dim, padded = padded_dim(dim), row = 0;
    float *total = (float *)scratch;
    for (int t = it->t0; t < it->t1; t++) {
        for (int h = it->h0; h < it->h1; h++, row++) {
            float max = 0, weight = 0;
            for (int s = 0; s < n_spans; s++) {
                const float *p = part + (size_t)s * part_floats + row * (padded + 2);
                join(total, &max, &weight, p, p[padded], p[padded + 1], dim);
            }
            divide(j->a->out + ((size_t)t * (size_t)j->a->n_heads + (size_t)h) * (size_t)dim, total, weight,
                   dim);
        }
    }
}

/* --- all items --- */

/* Items: for every sequence its tiles of tokens; for every tile, if split, the spans; for those the kv heads;
 * for those the head parts. The order of all of them, walked from item 0. */
struct walk {
    const struct attention_job *j;
    const struct seq_slice *seq;
    int t0, first, last; /* the tile: its first token in the slice, what its tokens see */
    int64_t base, spans; /* number of its first item; its spans, or 1 */
};

static void walk_tile(struct walk *w)
{
    const int32_t *positions = w->j->batch->positions + w->seq->first;
    int end = w->t0 + w->j->item_tokens < w->seq->count ? w->t0 + w->j->item_tokens : w->seq->count;
    w->first = attention_first(w->j->a, positions[w->t0]);
    w->last = positions[end - 1];
    w->spans = w->j->split ? w->last / SPAN - w->first / SPAN + 1 : 1;
}

static struct walk walk_begin(const struct attention_job *j)
{
    struct walk w = {.j = j, .seq = j->batch->seqs};
    walk_tile(&w);
    return w;
}

static void walk_next(struct walk *w)
{
    w->base += w->spans * w->j->c->n_kv_heads * w->j->head_parts;
    w->t0 += w->j->item_tokens;
    if (w->t0 >= w->seq->count) {
        w->seq++;
        w->t0 = 0;
    }
    walk_tile(w);
}

/* Part `rest` (kv head, head part) of the tile. */
static struct item walk_item(const struct walk *w, int rest)
{
    const struct attention_job *j = w->j;
    int kv_head = rest / j->head_parts, part = rest % j->head_parts, h0 = part * j->item_heads;
    int t1 = w->t0 + j->item_tokens < w->seq->count ? w->t0 + j->item_tokens : w->seq->count;
    int h1 = h0 + j->item_heads < j->group ? h0 + j->item_heads : j->group;
    return (struct item){.j = j,
                         .seq = w->seq,
                         .t0 = w->seq->first + w->t0,
                         .t1 = w->seq->first + t1,
                         .kv_head = kv_head,
                         .h0 = kv_head * j->group + h0,
                         .h1 = kv_head * j->group + h1,
                         .first = w->first,
                         .last = w->last};
}

static size_t part_floats(const struct attention_job *j)
{
    return (size_t)(j->item_tokens * j->item_heads) * (size_t)(padded_dim(j->c->head_dim) + 2);
}

static void attention_items(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *j = arg;
    int per_span = j->c->n_kv_heads * j->head_parts;
    struct walk w = walk_begin(j);
    for (int64_t i = begin; i < end; i++) {
        while (i >= w.base + w.spans * per_span)
            walk_next(&w);
        struct item it = walk_item(&w, (int)((i - w.base) % per_span));
        if (!j->split) {
            attend(&it, thread_scratch(j->cpu, thread));
            continue;
        }
        int from = (w.first / SPAN + (int)((i - w.base) / per_span)) * SPAN;
        it.first = it.first > from ? it.first : from;
        it.last = it.last < from + SPAN - 1 ? it.last : from + SPAN - 1;
        attend_part(&it, j->parts + (size_t)i * part_floats(j), thread_scratch(j->cpu, thread));
    }
}

/* The second half of a split job: items are those that were cut. */
static void join_items(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *j = arg;
    int per_span = j->c->n_kv_heads * j->head_parts;
    struct walk w = walk_begin(j);
    for (int64_t i = begin, tile = 0; i < end; i++) {
        for (; tile < i / per_span; tile++)
            walk_next(&w);
        int rest = (int)(i % per_span);
        struct item it = walk_item(&w, rest);
        join_parts(&it, j->parts + (size_t)(w.base + rest) * part_floats(j),
                   (size_t)per_span * part_floats(j), (int)w.spans, thread_scratch(j->cpu, thread));
    }
}

void LEVEL_NAME(cpu_attention)(struct backend *b, const struct kv_cache *c, const struct attention *a,
                               const struct batch *batch)
{
    struct attention_job j = {.c = c, .a = a, .batch = batch, .cpu = cpu_of(b)};
    assert(c->head_dim <=
           j.cpu->max_cols); /* room in thread_scratch: the output projection has more columns */
    int threads = pool_threads(j.cpu->pool), most_rows = ROW_FLOATS / padded_dim(c->head_dim);
    most_rows = most_rows < 1 ? 1 : most_rows < MAX_ROWS ? most_rows : MAX_ROWS;
    j.group = a->n_heads / c->n_kv_heads;
    j.item_heads = j.group < most_rows ? j.group : most_rows;
    j.head_parts = ceil_div(j.group, j.item_heads);
    j.item_tokens = most_rows / j.item_heads;
    int64_t tiles = 0, pieces = 0;            /* pieces: spans of all tiles */
    uint64_t seen = 0, read = 0, longest = 0; /* positions by all queries; loaded, once a tile; by one tile */
    for (int s = 0; s < batch->n_seqs; s++) {
        const struct seq_slice *seq = &batch->seqs[s];
        const int32_t *positions = batch->positions + seq->first;
        for (int t = 0, end; t < seq->count; t = end, tiles++) {
            end = t + j.item_tokens < seq->count ? t + j.item_tokens : seq->count;
            int first = attention_first(a, positions[t]), last = positions[end - 1];
            uint64_t here = (uint64_t)(last - first + 1);
            read += here;
            longest = here > longest ? here : longest;
            pieces += last / SPAN - first / SPAN + 1;
            for (int i = t; i < end; i++)
                seen += (uint64_t)(positions[i] - attention_first(a, positions[i]) + 1);
        }
    }
    uint64_t dim = (uint64_t)c->head_dim;
    int per_span = c->n_kv_heads * j.head_parts;
    b->count.flops += 4 * seen * (uint64_t)a->n_heads * dim;
    b->count.kv_read_bytes += 2 * read * (uint64_t)per_span * kv_row_bytes(c->dtype, c->head_dim);
    int64_t cost = (int64_t)(seen * (uint64_t)a->n_heads * dim) / (tiles * per_span) / 4;
    /* Worth splitting: one item is more than half a thread's share. The parts lie where matmul keeps its
     * quantised input, which is not alive now. */
    j.parts = (float *)thread_scratch(j.cpu, threads);
    size_t room = j.cpu->scratch_bytes - (size_t)((uint8_t *)j.parts - (uint8_t *)j.cpu->scratch);
    if (threads > 1 && pieces > tiles && longest * 2 * (uint64_t)threads > read * (uint64_t)per_span &&
        (size_t)pieces <= room / (part_floats(&j) * sizeof(float)) / (size_t)per_span) {
        j.split = true;
        run_items(b, attention_items, &j, pieces * per_span, cost * tiles / pieces);
        run_items(b, join_items, &j, tiles * per_span, (int64_t)dim * j.item_heads * pieces / tiles);
        return;
    }
    run_items(b, attention_items, &j, tiles * per_span, cost);
}
