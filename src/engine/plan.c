#include "engine/plan.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "sample/sampler.h"

/* Rows of logits beyond one a sequence: what prompt scoring (echo with logprobs) may use in a step. */
enum { SCORING_ROWS = 64 };

int plan_max_logits(const struct sluice_plan *plan)
{
    return plan->max_num_seqs + SCORING_ROWS;
}

static int parse_kv_dtype(const char *name, enum dtype *out, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } known[] = {{"auto", DT_F16},    {"fp16", DT_F16},      {"float16", DT_F16},
                 {"bf16", DT_BF16},   {"bfloat16", DT_BF16}, {"fp32", DT_F32},
                 {"float32", DT_F32}, {"int8", DT_I8},       {"int8_per_token_head", DT_I8},
                 {"q8_0", DT_I8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!name || strcmp(name, known[i].name) == 0)
            return *out = known[i].dtype, 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "KV cache type \"%s\" is not one this build has: use auto (float16), float16, bfloat16, "
                   "float32 or, in 8 bits, int8_per_token_head",
                   name);
}

static int check_range(const char *what, long long v, long long min, long long max, struct err *e)
{
    if (v < min || v > max)
        return err_set(e, ERR_INVALID, "%s is %lld, outside %lld … %lld", what, v, min, max);
    return 0;
}

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* Bytes that do not depend on the KV pool, for a given number of sequences. */
static void fixed_parts(const struct model *m, struct sluice_plan *p)
{
    const struct model_config *c = model_config(m);
    size_t rows = (size_t)plan_max_logits(p);
    p->weights = model_weight_bytes(m);
    p->scratch = model_scratch_bytes(m, p->max_num_batched_tokens, plan_max_logits(p)) +
                 (size_t)p->threads * (sample_scratch_bytes(c->vocab) + (size_t)c->vocab * sizeof(float));
    p->logits = rows * (size_t)c->vocab * sizeof(float);
    p->state_bytes_per_seq = c->state_bytes;
    p->state = p->state_bytes_per_seq * (size_t)p->max_num_seqs;
}

static int refuse(const struct model *m, const struct sluice_plan *p, size_t need, struct err *e)
{
    struct sluice_plan least = *p;
    least.max_num_seqs = 1;
    fixed_parts(m, &least);
    size_t smallest = least.weights + least.scratch + least.logits + least.state + least.swap +
                      least.offload + p->kv_bytes_per_token * (size_t)p->block_size;
    if (smallest > p->available)
        return err_set(
            e, ERR_NO_MEMORY,
            "the model needs at least %.2f GiB (weights %.2f GiB) and this machine grants %.2f GiB: use a "
            "smaller model or fewer bits a weight, raise --memory-utilization, or lower "
            "--max-num-batched-tokens (now %d)",
            gib(smallest), gib(p->weights), gib(p->available), p->max_num_batched_tokens);
    size_t left = p->available - (smallest - p->kv_bytes_per_token * (size_t)p->block_size);
    size_t tokens = p->kv_bytes_per_token ? left / p->kv_bytes_per_token : 0;
    return err_set(
        e, ERR_NO_MEMORY,
        "the plan needs %.2f GiB (weights %.2f, KV %.2f, state %.2f, scratch %.2f, logits %.2f, swap %.2f) "
        "and this "
        "machine grants %.2f GiB; with --max-num-seqs 1 the largest --max-model-len that fits is %zu",
        gib(need), gib(p->weights), gib(p->kv_pool), gib(p->state + p->state_cache), gib(p->scratch),
        gib(p->logits), gib(p->swap), gib(p->available),
        tokens / (size_t)p->block_size * (size_t)p->block_size);
}

/* Settings that do not depend on memory. */
static int read_options(const struct model_config *c, const struct sluice_options *o, struct sluice_plan *p,
                        enum dtype *kv_dtype, struct err *e)
{
    if (parse_kv_dtype(o->kv_dtype, kv_dtype, e) || check_range("block size", p->block_size, 1, 1024, e) ||
        check_range("max_num_seqs", p->max_num_seqs, 1, 16384, e) ||
        check_range("max_num_batched_tokens", p->max_num_batched_tokens, 1, 1 << 20, e) ||
        check_range("max_model_len", p->max_model_len, 1, 1 << 27, e))
        return -1;
    if (o->memory_utilization > 1)
        return err_set(e, ERR_INVALID, "memory utilization %g is above 1", o->memory_utilization);
    if (p->max_model_len > c->max_positions)
        return err_set(e, ERR_INVALID, "max_model_len %d is longer than the model's context of %d",
                       p->max_model_len, c->max_positions);
    if (p->max_num_seqs > p->max_num_batched_tokens) {
        log_warn(
            "max_num_seqs %d is clamped to max_num_batched_tokens %d: a step gives each sequence a token",
            p->max_num_seqs, p->max_num_batched_tokens);
        p->max_num_seqs = p->max_num_batched_tokens;
    }
    p->kv_bytes_per_token =
        2 * (size_t)c->n_kv_layers * (size_t)c->n_kv_heads * kv_row_bytes(*kv_dtype, c->head_dim);
    if (p->kv_bytes_per_token == 0)
        return err_set(e, ERR_UNSUPPORTED, "a model without any attention layer is not supported");
    return 0;
}

static size_t granted_memory(const struct sluice_options *o)
{
    double share = o->memory_utilization > 0 ? o->memory_utilization : 0.9;
    size_t granted = (size_t)(share * (double)mem_total()), free_now = mem_available();
    if (free_now >= granted)
        return granted;
    log_debug("%.2f GiB of memory are free now, less than the granted %.2f GiB", gib(free_now), gib(granted));
    return free_now;
}

static size_t times(size_t a, size_t b) /* or as much as there can be */
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Bytes of KV of one sequence at full length. */
static size_t longest_seq(const struct sluice_plan *p)
{
    size_t blocks = ((size_t)p->max_model_len + (size_t)p->block_size - 1) / (size_t)p->block_size;
    return times(blocks, p->kv_bytes_per_token * (size_t)p->block_size);
}

/* Bytes of KV that n sequences must leave room for: the pool that was asked for, as far as they could fill
 * it, or the length that was asked for, or just something. */
static size_t least_kv(const struct sluice_plan *p, const struct sluice_options *o, int n)
{
    if (o->kv_cache_bytes) {
        size_t most = times(longest_seq(p), (size_t)n);
        return o->kv_cache_bytes < most ? o->kv_cache_bytes : most;
    }
    return o->max_model_len ? longest_seq(p) : 2 * p->kv_bytes_per_token * (size_t)p->block_size;
}

/* May there be n sequences: beside the KV that is wanted, and as long as nobody asked for a number (`lavish`
 * is false then), with state and logits in a quarter of what the weights leave. */
static bool seqs_fit(const struct model *m, const struct sluice_options *o, const struct sluice_plan *plan,
                     int n, bool lavish)
{
    struct sluice_plan p = *plan;
    size_t need, left = p.available;
    p.max_num_seqs = n;
    fixed_parts(m, &p);
    if (p.weights > left || p.swap + p.offload > left - p.weights)
        return false;
    left -= p.weights + p.swap + p.offload;
    if (!lavish && p.state + p.logits > left / 4)
        return false;
    return !__builtin_add_overflow(p.scratch + p.logits + p.state, least_kv(&p, o, n), &need) && need <= left;
}

/* The largest number of sequences up to p->max_num_seqs that fits, at least 1. */
static int most_seqs(const struct model *m, const struct sluice_options *o, const struct sluice_plan *p,
                     bool lavish)
{
    int fits = 1, fails = p->max_num_seqs + 1;
    while (fails - fits > 1) {
        int n = fits + (fails - fits) / 2;
        *(seqs_fit(m, o, p, n, lavish) ? &fits : &fails) = n;
    }
    return fits;
}

/* The state pool and the logits grow with max_num_seqs: it is lowered rather than refused, as long as one
 * sequence fits. A default that nobody chose also leaves most of the memory to the KV pool. */
static void choose_seqs(const struct model *m, const struct sluice_options *o, struct sluice_plan *p)
{
    int asked = p->max_num_seqs;
    p->max_num_seqs = most_seqs(m, o, p, o->max_num_seqs > 0);
    fixed_parts(m, p);
    if (p->max_num_seqs == asked || !seqs_fit(m, o, p, p->max_num_seqs, true))
        return; /* as asked; or not even one fits, which is refused later */
    if (o->max_num_seqs)
        log_warn("max_num_seqs is clamped from %d to %d: that is what state and logits leave room for", asked,
                 p->max_num_seqs);
    else
        log_info("max_num_seqs is %d, not %d, so that states and logits take at most a quarter of what the "
                 "weights leave",
                 p->max_num_seqs, asked);
}

/* Slots for kept recurrent states: the budget's worth, but no more than could matter. A budget that nobody
 * gave does not crowd out the KV pool. Without the prefix cache, a few for prompts with several answers. */
static void plan_snapshots(struct sluice_plan *p, const struct sluice_options *o, size_t fixed)
{
    enum { SNAPSHOTS_PER_SEQ = 16, FORKS = 4 };
    if (!p->state_bytes_per_seq || fixed >= p->available)
        return;
    size_t left = p->available - fixed, kv = least_kv(p, o, p->max_num_seqs);
    size_t budget = left / 10 < left - kv ? left / 10 : left - kv;
    if (o->state_cache_bytes)
        budget = o->state_cache_bytes;
    else if (kv >= left)
        return;
    size_t n = budget / p->state_bytes_per_seq,
           most = o->no_prefix_cache ? FORKS : (size_t)p->max_num_seqs * SNAPSHOTS_PER_SEQ;
    p->state_snapshots = (int)(n < most ? n : most);
    p->state_cache = (size_t)p->state_snapshots * p->state_bytes_per_seq;
}

/* Staging memory between the KV cache and the disk (sched/offload.c): enough slots for what one step's
 * newcomers push out of the cache, as far as that is not out of proportion. */
static void plan_offload(struct sluice_plan *p, const struct sluice_options *o, size_t state_bytes)
{
    const size_t most = (size_t)128 << 20, tokens = (size_t)p->max_model_len * sizeof(int32_t) + 64;
    size_t block = p->kv_bytes_per_token * (size_t)p->block_size + 64, least = 8;
    size_t fits = most / (block + tokens), step = (size_t)(p->max_num_batched_tokens / p->block_size) + 16;
    if (!o->kv_offload_dir || o->no_prefix_cache)
        return;
    p->offload_blocks = (int)(fits < least ? least : fits < step ? fits : step);
    p->offload = (size_t)p->offload_blocks * (block + tokens) + OFFLOAD_READ_BLOCKS * block;
    if (state_bytes)
        p->offload += OFFLOAD_WRITE_STATES * (state_bytes + tokens) + OFFLOAD_READ_STATES * state_bytes;
}

int plan_make(const struct model *m, const struct sluice_options *o, int threads, struct sluice_plan *plan,
              enum dtype *kv_dtype, struct err *e)
{
    const struct model_config *c = model_config(m);
    struct sluice_plan p = {
        .threads = threads,
        .block_size = o->block_size ? o->block_size : 16,
        .max_num_seqs = o->max_num_seqs ? o->max_num_seqs : 128,
        .max_num_batched_tokens = o->max_num_batched_tokens ? o->max_num_batched_tokens : 2048,
        .max_model_len = o->max_model_len ? o->max_model_len : c->max_positions,
        .available = granted_memory(o),
    };
    if (read_options(c, o, &p, kv_dtype, e))
        return -1;
    size_t block = p.kv_bytes_per_token * (size_t)p.block_size;
    p.swap = o->swap_bytes / block * block;
    if (o->swap_bytes && (!p.swap || p.swap / block > INT32_MAX))
        return err_set(e, ERR_INVALID, "swap space of %zu bytes is %s: a block takes %zu", o->swap_bytes,
                       p.swap ? "too large" : "less than one block", block);
    plan_offload(&p, o, c->state_bytes);
    choose_seqs(m, o, &p);

    size_t fixed = p.weights + p.scratch + p.logits + p.state + p.swap + p.offload;
    plan_snapshots(&p, o, fixed);
    fixed += p.state_cache;
    size_t wanted =
        times(longest_seq(&p), (size_t)p.max_num_seqs); /* every sequence at full length: never more */
    if (o->kv_cache_bytes)
        p.kv_pool = o->kv_cache_bytes / block * block;
    else
        p.kv_pool = fixed < p.available ? (p.available - fixed) / block * block : 0;
    if (p.kv_pool > wanted)
        p.kv_pool = wanted;
    p.kv_blocks = p.kv_pool / block > INT32_MAX ? INT32_MAX : (int)(p.kv_pool / block);
    p.total = fixed + p.kv_pool;
    if (p.kv_blocks < 1 && o->kv_cache_bytes)
        return err_set(e, ERR_INVALID, "kv_cache_bytes %zu is less than one block of %zu bytes",
                       o->kv_cache_bytes, block);
    if (p.kv_blocks < 1 || p.total > p.available)
        return refuse(m, &p, fixed + (p.kv_pool ? p.kv_pool : block), e);
    int64_t pool_tokens = (int64_t)p.kv_blocks * p.block_size;
    if (pool_tokens < p.max_model_len) {
        if (o->max_model_len && !o->kv_cache_bytes)
            return refuse(m, &p, fixed + longest_seq(&p), e);
        log_warn("max_model_len is lowered from %d to the %lld tokens that the KV pool holds",
                 p.max_model_len, (long long)pool_tokens);
        p.max_model_len = (int)pool_tokens; /* what can never fit is refused at admission, not left to wait */
    }
    *plan = p;
    return 0;
}
