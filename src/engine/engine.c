#include "engine/engine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/plan.h"
#include "quant/mix.h"

/* What one thread needs to finish rows of logits. */
struct row_worker {
    float *row; /* [vocab] a row on the host, free to be bent */
    struct sample_scratch scratch;
};

struct engine {
    struct backend *b;
    struct model *m;
    struct sluice_plan plan;
    struct sluice_info info;
    struct kv_cache kv;
    size_t kv_bytes, state_bytes, logits_bytes;
    void *state;                /* back end [max_num_seqs, state_bytes] or NULL */
    float *logits;              /* back end [max_logits, vocab] */
    char *swap, *bounce;        /* host: [swap_pages] pages, and one for copies from block to block */
    struct row_worker *workers; /* [n_workers] one a thread */
    int n_workers;
};

static int allocate(struct engine *en, const struct dtypes *types, struct err *e)
{
    const struct model_config *c = model_config(en->m);
    const struct sluice_plan *p = &en->plan;
    int rows = plan_max_logits(p);
    en->kv = model_kv_cache(c, types->kv, p->kv_blocks, p->block_size);
    en->kv_bytes = p->kv_pool;
    en->kv.data = en->b->ops->alloc(en->b, en->kv_bytes, e);
    en->logits_bytes = (size_t)rows * (size_t)c->vocab * sizeof(float);
    en->logits = en->kv.data ? en->b->ops->alloc(en->b, en->logits_bytes, e) : NULL;
    if (!en->logits)
        return -1;
    en->state_bytes = p->state + p->state_cache;
    if (en->state_bytes && !(en->state = en->b->ops->alloc(en->b, en->state_bytes, e)))
        return -1;
    en->bounce = mem_try_alloc(1, engine_block_bytes(en));
    en->swap = p->swap ? mem_map(p->swap) : NULL;
    if (!en->bounce || (p->swap && !en->swap))
        return err_set(e, ERR_NO_MEMORY, "the system refused %zu bytes of swap space (--swap-space)",
                       p->swap);
    en->n_workers = en->b->ops->threads(en->b);
    en->workers = mem_zalloc((size_t)en->n_workers, sizeof *en->workers);
    for (int i = 0; i < en->n_workers; i++) {
        en->workers[i].row = mem_zalloc((size_t)c->vocab, sizeof(float));
        sample_scratch_init(&en->workers[i].scratch, c->vocab);
    }
    return model_reserve(en->m, p->max_num_batched_tokens, rows, e);
}

/* All but memory: the back end, the model as the file describes it, the plan. NULL and *e on failure. */
static struct engine *prepare(const struct model_file *file, const struct sluice_options *o,
                              struct dtypes *types, struct err *e)
{
    struct engine *en = mem_zalloc(1, sizeof *en);
    int threads = o->threads ? o->threads : pool_cpu_count();
    unsigned flags = o->mtp ? MODEL_MTP : 0;
    if (o->quantization) {
        if (mix_type(o->quantization) < 0) {
            err_set(e, ERR_INVALID, "quantization: \"%.40s\" is not one of " MIX_NAMES, o->quantization);
            engine_free(en);
            return NULL;
        }
        flags |= MODEL_QUANTIZATION(mix_type(o->quantization));
    }
    if (!(en->b = backend_cpu(o->cpu_level, threads, e)) || dtypes_choose(file, o, types, e) ||
        !(en->m = model_open(file, en->b, flags | dtypes_model_flags(types), e)) ||
        plan_make(en->m, o, types, threads, &en->plan, e)) {
        engine_free(en);
        return NULL;
    }
    const struct model_config *c = model_config(en->m);
    en->info = (struct sluice_info){.arch = model_arch(en->m),
                                    .backend = en->b->ops->name,
                                    .n_layers = c->n_layers,
                                    .hidden = c->hidden,
                                    .vocab = c->vocab,
                                    .n_params = model_params(en->m)};
    return en;
}

struct engine *engine_open(const struct model_file *file, const struct sluice_options *o, struct err *e)
{
    struct dtypes types;
    struct engine *en = prepare(file, o, &types, e);
    if (!en)
        return NULL;
    if (model_load(en->m, o->progress, o->progress_arg, e) || allocate(en, &types, e)) {
        engine_free(en);
        return NULL;
    }
    return en;
}

int engine_plan_only(const struct model_file *file, const struct sluice_options *o, struct sluice_plan *plan,
                     struct sluice_info *info, struct err *e)
{
    struct dtypes types;
    struct engine *en = prepare(file, o, &types, e);
    if (!en)
        return -1;
    *plan = en->plan;
    *info = en->info;
    engine_free(en);
    return 0;
}

void engine_free(struct engine *en)
{
    if (!en)
        return;
    if (en->b) {
        en->b->ops->release(en->b, en->kv.data, en->kv_bytes);
        en->b->ops->release(en->b, en->logits, en->logits_bytes);
        en->b->ops->release(en->b, en->state, en->state_bytes);
    }
    mem_unmap(en->swap, en->plan.swap);
    free(en->bounce);
    for (int i = 0; i < en->n_workers; i++) {
        sample_scratch_free(&en->workers[i].scratch);
        free(en->workers[i].row);
    }
    free(en->workers);
    model_free(en->m);
    if (en->b)
        en->b->ops->destroy(en->b);
    free(en);
}

/* One job on one row of logits: log-probabilities are raw, so they are taken before the sampler bends the
 * row; but which token they are for may only be known after, so the row is read twice from the back end. */
static void finish_job(struct engine *en, struct row_worker *w, int row, struct row_job *job)
{
    int vocab = en->info.vocab;
    size_t bytes = (size_t)vocab * sizeof(float);
    const float *src = en->logits + (size_t)row * (size_t)vocab;
    if (job->sampler) {
        en->b->ops->read(en->b, w->row, src, bytes);
        job->token = sampler_pick(job->sampler, w->row, job->index, &w->scratch);
        if (job->token >= 0 && !sampler_accept(job->sampler, job->token))
            job->token = PICK_STUCK;
    }
    if (job->n_probs >= 0 && job->token >= 0) {
        en->b->ops->read(en->b, w->row, src, bytes);
        if (job->score_ids)
            sample_logprobs_of(w->row, vocab, job->token, job->score_ids, job->n_probs, job->probs,
                               job->rank);
        else
            sample_logprobs(w->row, vocab, job->token, job->n_probs, job->probs, job->rank);
    }
}

/* The jobs of a step, counted through row after row: many answers may begin from one row. */
struct rows_job {
    struct engine *en;
    struct row_job *rows; /* [n_rows] */
    int n_rows;
    _Atomic int64_t claimed; /* jobs that some thread does or has done */
};

static int64_t count_jobs(const struct row_job *rows, int n_rows)
{
    int64_t n = 0;
    for (int i = 0; i < n_rows; i++)
        for (const struct row_job *job = &rows[i]; job; job = job->next)
            n++;
    return n;
}

/* Does jobs that nobody has claimed until there are none: called once by each thread. */
static void finish_jobs(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)begin, (void)end;
    struct rows_job *j = arg;
    int64_t k = 0, mine = atomic_fetch_add(&j->claimed, 1);
    for (int i = 0; i < j->n_rows; i++)
        for (struct row_job *job = &j->rows[i]; job; job = job->next, k++)
            if (k == mine) {
                finish_job(j->en, &j->en->workers[thread], i, job);
                mine = atomic_fetch_add(&j->claimed, 1);
            }
}

void engine_step(struct engine *en, const struct batch *batch, struct row_job *rows,
                 struct sluice_ledger *ledger)
{
    double start = clock_now();
    en->b->count = (struct op_counts){0};
    struct step s = {.batch = batch, .kv = &en->kv, .state = en->state, .logits = en->logits};
    model_step(en->m, &s);
    double sampling = clock_now();
    struct rows_job jobs = {.en = en, .rows = rows, .n_rows = batch->n_logits};
    int64_t n_jobs = count_jobs(rows, batch->n_logits);
    en->b->ops->parallel(en->b, finish_jobs, &jobs, n_jobs < en->n_workers ? n_jobs : en->n_workers);
    const struct op_counts *n = &en->b->count;
    ledger->weight_bytes += n->weight_bytes;
    ledger->kv_read_bytes += n->kv_read_bytes;
    ledger->kv_write_bytes += n->kv_write_bytes;
    ledger->state_bytes += n->state_bytes;
    ledger->flops += n->flops;
    ledger->seqs += (uint64_t)batch->n_seqs;
    double end = clock_now();
    ledger->seconds += end - start;
    ledger->sampling_seconds += end - sampling;
}

size_t engine_block_bytes(const struct engine *en)
{
    return en->plan.kv_bytes_per_token * (size_t)en->plan.block_size;
}

void engine_move(void *engine, enum move what, int32_t from, int32_t to, int part)
{
    struct engine *en = engine;
    const struct backend_ops *ops = en->b->ops;
    size_t page = engine_block_bytes(en), state = en->plan.state_bytes_per_seq;
    size_t first = (size_t)part * page, left = state > first ? state - first : 0;
    size_t some = left < page ? left : page; /* of the state */
    char *kv = en->kv.data, *states = (char *)en->state;
    switch (what) {
    case MOVE_BLOCK:
        ops->read(en->b, en->bounce, kv + (size_t)from * page, page);
        ops->write(en->b, kv + (size_t)to * page, en->bounce, page);
        break;
    case MOVE_BLOCK_OUT:
        ops->read(en->b, en->swap + (size_t)to * page, kv + (size_t)from * page, page);
        break;
    case MOVE_BLOCK_IN:
        ops->write(en->b, kv + (size_t)to * page, en->swap + (size_t)from * page, page);
        break;
    case MOVE_STATE_OUT:
        ops->read(en->b, en->swap + (size_t)to * page, states + (size_t)from * state + first, some);
        break;
    case MOVE_STATE_IN:
        ops->write(en->b, states + (size_t)to * state + first, en->swap + (size_t)from * page, some);
        break;
    }
}

const struct sluice_plan *engine_plan(const struct engine *en)
{
    return &en->plan;
}

const struct sluice_info *engine_info(const struct engine *en)
{
    return &en->info;
}

int engine_max_logits(const struct engine *en)
{
    return plan_max_logits(&en->plan);
}

struct model *engine_model(struct engine *en)
{
    return en->m;
}

struct backend *engine_backend(struct engine *en)
{
    return en->b;
}

struct kv_cache *engine_kv(struct engine *en)
{
    return &en->kv;
}

void *engine_state(struct engine *en)
{
    return en->state;
}
