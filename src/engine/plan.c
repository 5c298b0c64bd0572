#include "engine/plan.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/plan_refusal.h"
#include "sample/sampler.h"

/* Rows of logits beyond one a sequence: what prompt scoring (echo with logprobs) may use in a step. */
enum { SCORING_ROWS = 64 };

/* What the scheduler and the prefix cache remember of the pool: the tokens in it, and of each block its key,
 * its links and where it is (sched/blocks.h, sched/prefix.h). Checked by tests/unit/sched/test_plan.c. */
enum { BYTES_A_TOKEN = 4, BYTES_A_BLOCK = 96 };

int plan_max_logits(const struct sluice_plan *plan)
{
    return plan->max_num_seqs + SCORING_ROWS;
}

/* Bytes of a block in the pool, and with what is remembered of it. */
static size_t block_bytes(const struct sluice_plan *p)
{
    return p->kv_bytes_per_token * (size_t)p->block_size;
}

static size_t block_cost(const struct sluice_plan *p)
{
    return block_bytes(p) + BYTES_A_BLOCK + BYTES_A_TOKEN * (size_t)p->block_size;
}

static int check_range(const char *what, long long v, long long min, long long max, struct err *e)
{
    if (v < min || v > max)
        return err_set(e, ERR_INVALID, "%s is %lld, outside %lld … %lld", what, v, min, max);
    return 0;
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

/* Settings that do not depend on memory. */
static int read_options(const struct model_config *c, const struct sluice_options *o,
                        const struct dtypes *types, struct sluice_plan *p, bool quiet, struct err *e)
{
    if (check_range("block size", p->block_size, 1, 1024, e) ||
        check_range("max_num_seqs", p->max_num_seqs, 1, 16384, e) ||
        check_range("max_num_batched_tokens", p->max_num_batched_tokens, 1, 1 << 20, e) ||
        check_range("max_model_len", p->max_model_len, 1, 1 << 27, e) ||
        check_range("num_kv_blocks", o->num_kv_blocks, 0, INT32_MAX, e))
        return -1;
    if (o->memory_utilization > 1)
        return err_set(e, ERR_INVALID, "memory utilization %g is above 1", o->memory_utilization);
    if (p->max_model_len > c->max_positions)
        return err_set(e, ERR_INVALID, "max_model_len %d is longer than the model's context of %d",
                       p->max_model_len, c->max_positions);
    if (p->max_num_seqs > p->max_num_batched_tokens) {
        if (!quiet)
            log_warn("max_num_seqs %d is clamped to max_num_batched_tokens %d: a step gives each sequence a "
                     "token",
                     p->max_num_seqs, p->max_num_batched_tokens);
        p->max_num_seqs = p->max_num_batched_tokens;
    }
    p->kv_bytes_per_token = model_kv_token_bytes(c, types->kv);
    p->kv_bytes_per_token_8bit = model_kv_token_bytes(c, DT_I8);
    p->kv_dtype = dtypes_name(types->kv);
    if (c->state_bytes) {
        p->state_dtype = dtypes_name(types->state);
        p->conv_dtype = dtypes_name(types->conv);
    } else if (!quiet && (o->state_dtype || o->conv_dtype)) {
        log_warn("--mamba-cache-dtype and --mamba-ssm-cache-dtype change nothing: the model has no recurrent "
                 "state");
    }
    if (p->kv_bytes_per_token == 0)
        return err_set(e, ERR_UNSUPPORTED, "a model without any attention layer is not supported");
    p->swap = o->swap_bytes / block_bytes(p) * block_bytes(p);
    if (o->swap_bytes && (!p->swap || p->swap / block_bytes(p) > INT32_MAX))
        return err_set(e, ERR_INVALID, "swap space of %zu bytes is %s: a block takes %zu", o->swap_bytes,
                       p->swap ? "too large" : "less than one block", block_bytes(p));
    if (o->kv_cache_bytes && o->kv_cache_bytes < block_bytes(p) && !o->num_kv_blocks)
        return err_set(e, ERR_INVALID, "kv_cache_bytes %zu is less than one block of %zu bytes",
                       o->kv_cache_bytes, block_bytes(p));
    return 0;
}

static size_t granted_memory(const struct sluice_options *o)
{
    double share = o->memory_utilization > 0 ? o->memory_utilization : 0.9;
    size_t granted = (size_t)(share * (double)mem_total()), free_now = mem_available();
    if (free_now >= granted)
        return granted;
    log_debug("%zu MiB of memory are free now, less than the granted %zu MiB", free_now >> 20, granted >> 20);
    return free_now;
}

static size_t times(size_t a, size_t b) /* or as much as there can be */
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Blocks of one sequence at full length, and of all: more are never used. */
static size_t longest_seq(const struct sluice_plan *p)
{
    return ((size_t)p->max_model_len + (size_t)p->block_size - 1) / (size_t)p->block_size;
}

/* Blocks that were asked for; 0 = as many as there is room for. */
static size_t asked_blocks(const struct sluice_plan *p, const struct sluice_options *o)
{
    return o->num_kv_blocks ? (size_t)o->num_kv_blocks : o->kv_cache_bytes / block_bytes(p);
}

/* Bytes of KV that n sequences must leave room for: the pool that was asked for, as far as they could fill
 * it, or the length that was asked for, or just something. */
static size_t least_kv(const struct sluice_plan *p, const struct sluice_options *o, int n)
{
    size_t blocks = asked_blocks(p, o), most = times(longest_seq(p), (size_t)n);
    if (blocks && !o->num_kv_blocks)
        blocks = blocks < most ? blocks : most;
    else if (!blocks)
        blocks = o->max_model_len ? longest_seq(p) : 2;
    return times(blocks, block_cost(p));
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
static void choose_seqs(const struct model *m, const struct sluice_options *o, struct sluice_plan *p,
                        bool quiet)
{
    int asked = p->max_num_seqs;
    p->max_num_seqs = most_seqs(m, o, p, o->max_num_seqs > 0);
    fixed_parts(m, p);
    if (quiet || p->max_num_seqs == asked || !seqs_fit(m, o, p, p->max_num_seqs, true))
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

int plan_try(const struct model *m, const struct sluice_options *o, const struct dtypes *types, int threads,
             size_t available, bool quiet, struct sluice_plan *plan, struct err *e)
{
    const struct model_config *c = model_config(m);
    struct sluice_plan p = {
        .threads = threads,
        .block_size = o->block_size ? o->block_size : 16,
        .max_num_seqs = o->max_num_seqs ? o->max_num_seqs : 128,
        .max_num_batched_tokens = o->max_num_batched_tokens ? o->max_num_batched_tokens : 2048,
        .max_model_len = o->max_model_len ? o->max_model_len : c->max_positions,
        .available = available,
        .memory_utilization = o->memory_utilization > 0 ? o->memory_utilization : 0.9,
        .prefix_cache = !o->no_prefix_cache,
    };
    if (read_options(c, o, types, &p, quiet, e))
        return -1;
    plan_offload(&p, o, c->state_bytes);
    choose_seqs(m, o, &p, quiet);

    size_t fixed = p.weights + p.scratch + p.logits + p.state + p.swap + p.offload;
    plan_snapshots(&p, o, fixed);
    fixed += p.state_cache;
    size_t blocks = asked_blocks(&p, o);
    if (!blocks)
        blocks = fixed < available ? (available - fixed) / block_cost(&p) : 0;
    size_t most = times(longest_seq(&p), (size_t)p.max_num_seqs); /* never more are used */
    if (blocks > most && !o->num_kv_blocks)
        blocks = most;
    if (o->max_model_len && !asked_blocks(&p, o) && blocks < longest_seq(&p))
        blocks = longest_seq(&p); /* which does not fit */
    blocks = blocks < 1 ? 1 : blocks > INT32_MAX ? INT32_MAX : blocks;
    p.kv_blocks = (int)blocks;
    p.kv_pool = times(blocks, block_bytes(&p));
    p.bookkeeping = times(blocks, block_cost(&p)) - p.kv_pool;
    if (__builtin_add_overflow(fixed, times(blocks, block_cost(&p)), &p.total))
        p.total = SIZE_MAX;
    *plan = p;
    if (p.total > available)
        return 1;
    int64_t pool_tokens = (int64_t)p.kv_blocks * p.block_size;
    if (pool_tokens < p.max_model_len) {
        if (!quiet)
            log_warn("max_model_len is lowered from %d to the %lld tokens that the KV pool holds",
                     p.max_model_len, (long long)pool_tokens);
        /* What can never fit is refused at admission, not left to wait. */
        plan->max_model_len = (int)pool_tokens;
    }
    return 0;
}

int plan_make(const struct model *m, const struct sluice_options *o, const struct dtypes *types, int threads,
              struct sluice_plan *plan, struct err *e)
{
    int rc = plan_try(m, o, types, threads, granted_memory(o), false, plan, e);
    return rc > 0 ? plan_refuse(m, o, types, plan, e) : rc;
}
