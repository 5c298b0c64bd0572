/* The public face: one engine, one scheduler, and the door between client threads and the engine's thread.
 * Clients leave requests in an inbox under a short lock; everything else they read is published by the
 * requests themselves. */
#include "sluice.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "sample/grammar.h"
#include "sched/offload_engine.h"
#include "sched/scheduler.h"

struct sluice {
    struct engine *engine;
    struct scheduler sched; /* engine thread only */
    struct trace *trace;
    struct offload *offload; /* NULL without kv_offload_dir */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct sluice_request *inbox_first, *inbox_last; /* under lock, linked by next */
    int inbox_n;
    int64_t inbox_tokens; /* of their prompts, each counted once */
    bool poked, stopping;
    int max_queued, max_queued_tokens; /* 0 = no bound */
    struct sluice_stats
        stats; /* under lock: a copy made after each step; who runs and who waits, before it */
    uint64_t refused, refused_tokens; /* under lock */

    _Atomic double heartbeat;
    pthread_t thread;
    bool threaded;
    void (*notify)(void *arg);
    void *notify_arg;
};

/* Who was admitted is known now, and must show while the step lasts: max_queued goes by it. */
static void run_engine(void *arg, const struct batch *batch, struct row_job *rows,
                       struct sluice_ledger *ledger)
{
    struct sluice *s = arg;
    pthread_mutex_lock(&s->lock);
    s->stats.running = s->sched.running.n;
    s->stats.waiting = s->sched.waiting.n;
    s->stats.queued_tokens = scheduler_queued_tokens(&s->sched);
    pthread_mutex_unlock(&s->lock);
    engine_step(s->engine, batch, rows, ledger);
}

enum { SPILL_SECONDS = 30 }; /* for writing the prefix cache to disk at the end */

/* From the thread that reads prefixes from disk: the engine has something to collect. */
static void poke(void *arg)
{
    struct sluice *s = arg;
    pthread_mutex_lock(&s->lock);
    s->poked = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

struct sluice *sluice_open(const struct model_file *file, const struct sluice_options *o, struct err *e)
{
    struct trace *trace = o->trace_path ? trace_open(o->trace_path, e) : NULL;
    if (o->trace_path && !trace)
        return NULL;
    struct engine *engine = engine_open(file, o, e);
    if (!engine) {
        trace_close(trace);
        return NULL;
    }
    struct sluice *s = mem_zalloc(1, sizeof *s);
    const struct sluice_plan *p = engine_plan(engine);
    size_t page = engine_block_bytes(engine);
    s->engine = engine;
    s->max_queued = o->max_queued;
    s->max_queued_tokens = o->max_queued_tokens;
    struct scheduler_config c = {.max_num_seqs = p->max_num_seqs,
                                 .max_num_batched_tokens = p->max_num_batched_tokens,
                                 .long_prefill_threshold = o->long_prefill_threshold,
                                 .max_prefills = o->max_prefills,
                                 .priority_scheduling = o->priority_scheduling,
                                 .n_blocks = p->kv_blocks,
                                 .block_size = p->block_size,
                                 .max_logits = engine_max_logits(engine),
                                 .has_state = p->state_bytes_per_seq > 0,
                                 .n_snapshots = p->state_snapshots,
                                 .prefix_cache = !o->no_prefix_cache,
                                 .swap_pages = (int)(p->swap / page),
                                 .state_pages = (int)((p->state_bytes_per_seq + page - 1) / page),
                                 .page_bytes = page,
                                 .step = run_engine,
                                 .step_arg = s,
                                 .move = engine_move,
                                 .move_arg = engine};
    scheduler_init(&s->sched, &c);
    s->sched.trace = s->trace = trace;
    enum { REQUESTS_SHARE = 8 }; /* of the granted memory, for what requests hold beside the KV cache */
    request_limit_memory(p->available / REQUESTS_SHARE);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    if (o->kv_offload_dir && !o->no_prefix_cache) {
        if (!(s->offload = offload_for_engine(engine, file, o, poke, s, e))) {
            sluice_close(s);
            return NULL;
        }
        prefix_use_disk(&s->sched.prefix, s->offload);
        prefix_disk_stats(&s->sched.prefix, &s->sched.stats.offload);
    }
    s->stats = s->sched.stats;
    atomic_store(&s->heartbeat, clock_now());
    return s;
}

int sluice_plan_only(const struct model_file *file, const struct sluice_options *o, struct sluice_plan *plan,
                     struct sluice_info *info, struct err *e)
{
    return engine_plan_only(file, o, plan, info, e);
}

const struct sluice_plan *sluice_plan(const struct sluice *s)
{
    return engine_plan(s->engine);
}

const struct sluice_info *sluice_info(const struct sluice *s)
{
    return engine_info(s->engine);
}

static int check_ids(const char *what, const int32_t *ids, int n, int vocab, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_set(e, ERR_INVALID, "%s: token id %d is outside 0 … %d", what, ids[i], vocab - 1);
    return 0;
}

static int check_number(const char *what, double v, double min, double max, struct err *e)
{
    if (!(v >= min && v <= max))
        return err_set(e, ERR_INVALID, "%s is %g, outside %g … %g", what, v, min, max);
    return 0;
}

static int check_sampling(const struct sluice_sampling *p, int vocab, struct err *e)
{
    if (check_number("temperature", p->temperature, 0, 1e6, e) || check_number("top_p", p->top_p, 0, 1, e) ||
        check_number("min_p", p->min_p, 0, 1, e) || check_number("top_k", p->top_k, 0, INT32_MAX, e) ||
        check_number("repetition_penalty", p->repetition_penalty, 1e-6f, 1e6, e) ||
        check_number("presence_penalty", p->presence_penalty, -1e3, 1e3, e) ||
        check_number("frequency_penalty", p->frequency_penalty, -1e3, 1e3, e) ||
        check_number("logprobs", p->n_logprobs, -1,
                     p->logprob_ids ? SLUICE_MAX_LOGPROB_IDS : SLUICE_MAX_LOGPROBS, e) ||
        check_ids("logprob_token_ids", p->logprob_ids, p->logprob_ids ? p->n_logprobs : 0, vocab, e) ||
        check_number("prompt_logprobs", p->n_prompt_logprobs, -1, SLUICE_MAX_LOGPROBS, e) ||
        check_number("max_tokens", p->max_tokens, 0, INT32_MAX, e) ||
        check_number("min_tokens", p->min_tokens, 0, INT32_MAX, e) ||
        check_ids("stop_token_ids", p->stop_ids, p->n_stop_ids, vocab, e) ||
        check_ids("allowed_token_ids", p->allowed_ids, p->n_allowed_ids, vocab, e) ||
        check_ids("thinking_end", p->thinking_end, p->n_thinking_end, vocab, e) ||
        check_number("thinking_budget", p->thinking_budget, 0, INT32_MAX, e))
        return -1;
    for (int i = 0; i < p->n_bad_words; i++)
        if (check_number("bad_words", p->bad_words[i].n, 1, INT32_MAX, e) ||
            check_ids("bad_words", p->bad_words[i].ids, p->bad_words[i].n, vocab, e))
            return -1;
    if (p->grammar && grammar_mask_words(p->grammar) != (vocab + 31) / 32)
        return err_set(e, ERR_INVALID, "the grammar is not bound to a vocabulary of %d tokens", vocab);
    if (p->n_thinking_end && !p->texts)
        return err_set(e, ERR_INVALID, "thinking_end needs the texts of the tokens");
    for (int i = 0; i < p->n_borders; i++)
        if (check_number("borders", p->borders[i], 0, INT32_MAX, e))
            return -1;
    for (int i = 0; i < p->n_logit_bias; i++)
        if (check_ids("logit_bias", &p->logit_bias[i].id, 1, vocab, e) ||
            check_number("logit_bias", p->logit_bias[i].bias, -1e9, 1e9, e))
            return -1;
    return 0;
}

/* Makes the requests of a group. -1 and *e, with nothing made, if one cannot be. */
static int create_group(struct sluice *s, const int32_t *prompt, int n_prompt,
                        const struct sluice_sampling *p, int n, struct sluice_request **out, struct err *e)
{
    int made = 0, block_size = sluice_plan(s)->block_size;
    for (; made < n; made++) {
        struct sluice_sampling own = *p;
        own.seed += (uint64_t)made;
        out[made] =
            request_create(prompt, n_prompt, &own, own.max_tokens, sluice_info(s)->vocab, block_size, e);
        if (!out[made])
            goto fail;
        atomic_store(&out[made]->owner, s);
    }
    if (n > 1 && !fork_group_create(out, n, block_size)) {
        err_set(e, ERR_NO_MEMORY, "no memory for a prompt of %d tokens", n_prompt);
        goto fail;
    }
    return 0;
fail:
    while (made > 0)
        request_unref(out[--made]);
    return -1;
}

/* Whether `n` requests with a prompt of n_prompt tokens may still queue. Under lock. */
static int may_queue(struct sluice *s, int n_prompt, int n, struct err *e)
{
    if (s->stopping)
        return err_set(e, ERR_BUSY, "the engine is shutting down");
    if (s->max_queued > 0 && n > s->max_queued - s->stats.waiting - s->inbox_n) {
        s->refused++;
        return err_set(e, ERR_BUSY,
                       "%d requests are waiting, and no more may than %d (--max-num-queued-reqs): "
                       "try again later",
                       s->stats.waiting + s->inbox_n, s->max_queued);
    }
    int64_t queued = s->stats.queued_tokens + s->inbox_tokens;
    if (s->max_queued_tokens > 0 && queued > 0 && queued + n_prompt > s->max_queued_tokens) {
        s->refused_tokens++;
        return err_set(e, ERR_BUSY,
                       "%lld prompt tokens are waiting, and no more may than %d "
                       "(--max-num-queued-tokens): try again later",
                       (long long)queued, s->max_queued_tokens);
    }
    return 0;
}

int sluice_submit_group(struct sluice *s, const int32_t *prompt, int n_prompt,
                        const struct sluice_sampling *p, int n, struct sluice_request **out, struct err *e)
{
    const struct sluice_plan *plan = sluice_plan(s);
    int vocab = sluice_info(s)->vocab;
    if (n_prompt < 1)
        return err_set(e, ERR_INVALID, "the prompt is empty: give at least one token");
    if (check_number("n", n, 1, 1 << 20, e))
        return -1;
    int room = plan->max_model_len - n_prompt;
    if (room < (p->max_tokens > 0 ? 1 : 0))
        return err_set(e, ERR_LIMIT,
                       "this model's maximum context length is %d tokens, and the prompt alone has %d",
                       plan->max_model_len, n_prompt);
    if (check_ids("prompt", prompt, n_prompt, vocab, e) || check_sampling(p, vocab, e))
        return -1;
    struct sluice_sampling own = *p;
    own.max_tokens = p->max_tokens < room ? p->max_tokens : room;
    if (create_group(s, prompt, n_prompt, &own, n, out, e))
        return -1;
    pthread_mutex_lock(&s->lock);
    int rc = may_queue(s, n_prompt, n, e);
    if (rc == 0) {
        for (int i = 0; i < n; i++) {
            atomic_fetch_add(&out[i]->refs, 1); /* the engine's */
            *(s->inbox_last ? &s->inbox_last->next : &s->inbox_first) = out[i];
            s->inbox_last = out[i];
        }
        s->inbox_n += n;
        s->inbox_tokens += n_prompt;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; rc && i < n; i++)
        request_unref(out[i]);
    return rc;
}

struct sluice_request *sluice_submit(struct sluice *s, const int32_t *prompt, int n_prompt,
                                     const struct sluice_sampling *p, struct err *e)
{
    struct sluice_request *r;
    return sluice_submit_group(s, prompt, n_prompt, p, 1, &r, e) == 0 ? r : NULL;
}

void sluice_cancel(struct sluice_request *r)
{
    if (atomic_load(&r->finish) != SLUICE_RUNNING)
        return;
    struct sluice *s = atomic_load(&r->owner);
    atomic_store(&r->cancelled, true);
    if (!s)
        return;
    poke(s);
}

void sluice_request_free(struct sluice_request *r)
{
    if (!r)
        return;
    sluice_cancel(r);
    request_unref(r);
}

static void take_inbox(struct sluice *s)
{
    pthread_mutex_lock(&s->lock);
    struct sluice_request *r = s->inbox_first;
    s->inbox_first = s->inbox_last = NULL;
    s->stats.waiting += s->inbox_n; /* until the step says better: they are never out of both counts */
    s->inbox_n = 0;
    s->stats.queued_tokens += s->inbox_tokens;
    s->inbox_tokens = 0;
    s->poked = false;
    pthread_mutex_unlock(&s->lock);
    while (r) {
        struct sluice_request *next = r->next;
        r->next = NULL;
        scheduler_add(&s->sched, r);
        r = next;
    }
}

static int step(struct sluice *s, bool *published)
{
    atomic_store(&s->heartbeat, clock_now());
    take_inbox(s);
    int n = scheduler_step(&s->sched, published);
    pthread_mutex_lock(&s->lock);
    s->stats = s->sched.stats;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int sluice_step(struct sluice *s)
{
    bool published;
    return step(s, &published);
}

void sluice_wait(struct sluice *s, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->inbox_first && !s->poked && !s->stopping && scheduler_rests(&s->sched))
        if (pthread_cond_timedwait(&s->wake, &s->lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&s->lock);
}

static void *engine_main(void *arg)
{
    struct sluice *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool stop = s->stopping;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;
        bool published = false;
        int n = step(s, &published);
        if (published && s->notify)
            s->notify(s->notify_arg);
        if (n == 0)
            sluice_wait(s, 1.0);
    }
}

int sluice_start(struct sluice *s, void (*notify)(void *arg), void *arg, struct err *e)
{
    s->notify = notify;
    s->notify_arg = arg;
    int rc = pthread_create(&s->thread, NULL, engine_main, s);
    if (rc)
        return err_set(e, ERR_IO, "the system refused the engine's thread (error %d)", rc);
    s->threaded = true;
    return 0;
}

void sluice_close(struct sluice *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->threaded)
        pthread_join(s->thread, NULL);
    take_inbox(s);
    for (struct sluice_request *r = s->sched.waiting.first; r; r = r->next)
        atomic_store(&r->owner, NULL);
    for (struct sluice_request *r = s->sched.running.first; r; r = r->next)
        atomic_store(&r->owner, NULL);
    scheduler_abort_all(&s->sched);
    prefix_spill_all(&s->sched.prefix, SPILL_SECONDS);
    scheduler_free(&s->sched);
    offload_close(s->offload, SPILL_SECONDS);
    trace_close(s->trace);
    if (s->notify)
        s->notify(s->notify_arg);
    engine_free(s->engine);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void sluice_stats(struct sluice *s, struct sluice_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->waiting += s->inbox_n;
    out->queued_tokens += s->inbox_tokens;
    out->refused = s->refused;
    out->refused_tokens = s->refused_tokens;
    pthread_mutex_unlock(&s->lock);
    out->engine_heartbeat = atomic_load(&s->heartbeat);
}
