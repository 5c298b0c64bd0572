#include "cli/forward.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/pool.h"
#include "engine/dtypes.h"

enum { BLOCK = 16 };

struct forward {
    struct backend *b;
    struct model *m;
    struct kv_cache kv;
    size_t kv_bytes, state_bytes, logits_bytes;
    void *state;        /* one slot [state_bytes], or NULL */
    float *logits;      /* [max_logits, vocab] */
    int32_t *blocks;    /* [n_blocks] 0, 1, 2 … */
    int32_t *positions; /* [max_tokens] 0, 1, 2 … */
};

/* Bytes that can be had: as in the plan of a server, nine tenths at most of what there is. */
static size_t granted(void)
{
    size_t share = mem_total() / 10 * 9, free_now = mem_available();
    return share < free_now ? share : free_now;
}

static int check_memory(struct forward *f, const struct forward_options *o, const char *path, struct err *e)
{
    size_t weights = model_weight_bytes(f->m),
           scratch = model_scratch_bytes(f->m, o->max_tokens, o->max_logits),
           need = weights + scratch + f->kv_bytes + f->state_bytes + f->logits_bytes + o->others;
    if (need > granted())
        return err_set(
            e, ERR_NO_MEMORY,
            "%s: %.2f GiB are needed (weights %.2f, logits %.2f, the rest of a step %.2f, beside it "
            "%.2f) and this machine grants %.2f: use a shorter --context or a smaller model",
            path, (double)need / 0x1p30, (double)weights / 0x1p30, (double)f->logits_bytes / 0x1p30,
            (double)(scratch + f->kv_bytes + f->state_bytes) / 0x1p30, (double)o->others / 0x1p30,
            (double)granted() / 0x1p30);
    return 0;
}

struct forward *forward_open(const struct model_file *file, const struct forward_options *o, struct err *e)
{
    struct forward *f = mem_zalloc(1, sizeof *f);
    int threads = o->threads ? o->threads : pool_cpu_count(), n_blocks = (o->max_tokens + BLOCK - 1) / BLOCK;
    struct sluice_options names = {
        .kv_dtype = o->kv_dtype, .state_dtype = o->state_dtype, .conv_dtype = o->conv_dtype};
    struct dtypes types;
    if (dtypes_choose(file, &names, &types, e) || !(f->b = backend_cpu(o->cpu_level, threads, e)) ||
        !(f->m = model_open(file, f->b, dtypes_model_flags(&types), e)))
        goto fail;
    const struct model_config *c = model_config(f->m);
    f->kv = model_kv_cache(c, types.kv, n_blocks, BLOCK);
    f->kv_bytes = (size_t)n_blocks * BLOCK * model_kv_token_bytes(c, types.kv);
    f->state_bytes = c->state_bytes;
    f->logits_bytes = (size_t)o->max_logits * (size_t)c->vocab * sizeof(float);
    if (check_memory(f, o, file->path, e) || model_load(f->m, o->progress, o->progress_arg, e) ||
        !(f->kv.data = f->b->ops->alloc(f->b, f->kv_bytes, e)) ||
        !(f->logits = f->b->ops->alloc(f->b, f->logits_bytes, e)) ||
        (f->state_bytes && !(f->state = f->b->ops->alloc(f->b, f->state_bytes, e))) ||
        model_reserve(f->m, o->max_tokens, o->max_logits, e))
        goto fail;
    f->blocks = mem_alloc((size_t)n_blocks * sizeof *f->blocks);
    for (int i = 0; i < n_blocks; i++)
        f->blocks[i] = i;
    f->positions = mem_alloc((size_t)o->max_tokens * sizeof *f->positions);
    for (int i = 0; i < o->max_tokens; i++)
        f->positions[i] = i;
    return f;
fail:
    forward_close(f);
    return NULL;
}

void forward_close(struct forward *f)
{
    if (!f)
        return;
    model_free(f->m);
    if (f->b) {
        f->b->ops->release(f->b, f->kv.data, f->kv_bytes);
        f->b->ops->release(f->b, f->state, f->state_bytes);
        f->b->ops->release(f->b, f->logits, f->logits_bytes);
        f->b->ops->destroy(f->b);
    }
    free(f->blocks);
    free(f->positions);
    free(f);
}

struct model *forward_model(struct forward *f)
{
    return f->m;
}

struct backend *forward_backend(struct forward *f)
{
    return f->b;
}

const float *forward_run(struct forward *f, const int32_t *ids, int n, int n_logits)
{
    struct seq_slice seq = {
        .count = n, .kv_blocks = f->blocks, .state_slot = f->state ? 0 : -1, .n_logits = n_logits};
    struct batch batch = {.n_tokens = n,
                          .tokens = ids,
                          .positions = f->positions,
                          .n_seqs = 1,
                          .seqs = &seq,
                          .n_logits = n_logits};
    struct step step = {.batch = &batch, .kv = &f->kv, .state = f->state, .logits = f->logits};
    model_step(f->m, &step);
    return f->logits;
}
