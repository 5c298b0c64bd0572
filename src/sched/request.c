#include "sched/request.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sched/fork.h"

static _Atomic size_t live_bytes, most_bytes = SIZE_MAX;

void request_limit_memory(size_t bytes)
{
    atomic_store(&most_bytes, bytes);
}

/* What request_create allocates for such a request, within a few hundred bytes. */
static size_t bytes_of(const struct sluice_sampling *p, size_t n_prompt, size_t max_tokens, size_t vocab)
{
    size_t total = n_prompt + max_tokens, prob = sizeof(struct sluice_prob),
           bytes = sizeof(struct sluice_request);
    bytes += total * (sizeof(int32_t) + 1) + (size_t)p->n_borders * sizeof(int);
    bytes += (size_t)p->n_stop_ids * 2 * sizeof(int32_t) + (size_t)p->n_logit_bias * sizeof *p->logit_bias;
    if (p->n_logprobs >= 0)
        bytes += max_tokens * ((size_t)(1 + p->n_logprobs) * prob + sizeof(int));
    if (p->n_prompt_logprobs >= 0)
        bytes += n_prompt * ((size_t)(1 + p->n_prompt_logprobs) * prob + sizeof(int));
    return bytes + sampler_bytes(p, total, vocab);
}

static void destroy(struct sluice_request *r)
{
    atomic_fetch_sub(&live_bytes, r->bytes);
    sampler_free(r->sampler);
    fork_group_unref(r->group);
    free(r->stop_ids);
    free(r->logprob_ids);
    free(r->borders);
    free(r->tokens);
    free(r->probs);
    free(r->ranks);
    free(r->prompt_probs);
    free(r->prompt_ranks);
    free(r->table.blocks);
    free(r);
}

struct sluice_request *request_create(const int32_t *prompt, int n_prompt, const struct sluice_sampling *p,
                                      int max_tokens, int vocab, int block_size, struct err *e)
{
    size_t bytes = bytes_of(p, (size_t)n_prompt, (size_t)max_tokens, (size_t)vocab);
    if (atomic_fetch_add(&live_bytes, bytes) + bytes > atomic_load(&most_bytes)) {
        atomic_fetch_sub(&live_bytes, bytes);
        err_set(e, ERR_BUSY,
                "this request takes %zu bytes and all requests together may hold %zu: try again later, or "
                "ask for "
                "fewer tokens or log-probabilities",
                bytes, atomic_load(&most_bytes));
        return NULL;
    }
    struct sluice_request *r = mem_zalloc(1, sizeof *r);
    size_t total = (size_t)n_prompt + (size_t)max_tokens;
    r->bytes = bytes;
    r->n_prompt = r->n_tokens = n_prompt;
    r->max_tokens = max_tokens;
    r->priority = p->priority;
    r->n_logprobs = p->n_logprobs;
    r->n_prompt_logprobs = p->n_prompt_logprobs;
    r->n_stop_ids = p->n_stop_ids;
    r->state_slot = r->slice = r->parent = r->rolling = r->swapped = -1;
    memcpy(r->salt, p->cache_salt, sizeof r->salt);
    r->n_borders = p->n_borders;
    r->borders = mem_alloc((size_t)p->n_borders * sizeof *r->borders);
    if (p->n_borders)
        memcpy(r->borders, p->borders, (size_t)p->n_borders * sizeof *r->borders);
    r->table.capacity = (int)(total / (size_t)block_size + 1);
    atomic_store(&r->refs, 1);
    atomic_store(&r->n_scored, 1);
    atomic_store(&r->arrived, clock_now());

    bool ok = (r->tokens = mem_try_alloc(total, sizeof *r->tokens)) &&
              (r->table.blocks = mem_try_alloc((size_t)r->table.capacity, sizeof *r->table.blocks));
    if (ok && p->n_logprobs >= 0)
        ok = (r->probs = mem_try_alloc((size_t)max_tokens, (size_t)(1 + p->n_logprobs) * sizeof *r->probs)) &&
             (r->ranks = mem_try_alloc((size_t)max_tokens, sizeof *r->ranks));
    if (ok && p->n_prompt_logprobs >= 0)
        ok = (r->prompt_probs = mem_try_alloc((size_t)n_prompt, (size_t)(1 + p->n_prompt_logprobs) *
                                                                    sizeof *r->prompt_probs)) &&
             (r->prompt_ranks = mem_try_alloc((size_t)n_prompt, sizeof *r->prompt_ranks));
    if (!ok) {
        err_set(e, ERR_NO_MEMORY,
                "no memory to keep the answer of %d tokens with its log-probabilities: ask for fewer",
                max_tokens);
        destroy(r);
        return NULL;
    }
    memcpy(r->tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    r->stop_ids = mem_alloc((size_t)p->n_stop_ids * sizeof *r->stop_ids);
    if (p->n_stop_ids)
        memcpy(r->stop_ids, p->stop_ids, (size_t)p->n_stop_ids * sizeof *r->stop_ids);
    if (p->logprob_ids && p->n_logprobs > 0) {
        r->logprob_ids = mem_alloc((size_t)p->n_logprobs * sizeof *r->logprob_ids);
        memcpy(r->logprob_ids, p->logprob_ids, (size_t)p->n_logprobs * sizeof *r->logprob_ids);
    }
    struct sluice_sampling sampling = *p;
    sampling.max_tokens = max_tokens;
    r->sampler = sampler_create(&sampling, vocab, prompt, n_prompt);
    return r;
}

void request_unref(struct sluice_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        destroy(r);
}

void request_finish(struct sluice_request *r, enum sluice_finish why)
{
    atomic_store_explicit(&r->finish, (int)why, memory_order_release);
}

struct row_job request_answer_row(struct sluice_request *r)
{
    int made = r->n_tokens - r->n_prompt;
    struct row_job job = {
        .sampler = r->sampler, .index = made, .n_probs = r->n_logprobs, .score_ids = r->logprob_ids};
    if (r->probs) {
        job.probs = r->probs + (size_t)made * (size_t)(1 + r->n_logprobs);
        job.rank = &r->ranks[made];
    }
    return job;
}

void request_copy_scores(struct sluice_request *r, const struct sluice_request *from)
{
    if (!r->prompt_probs)
        return;
    size_t n = (size_t)r->n_prompt, entries = n * (size_t)(1 + r->n_prompt_logprobs);
    memcpy(r->prompt_probs, from->prompt_probs, entries * sizeof *r->prompt_probs);
    memcpy(r->prompt_ranks, from->prompt_ranks, n * sizeof *r->prompt_ranks);
    atomic_store_explicit(&r->n_scored, r->n_prompt, memory_order_release);
}

bool request_append(struct sluice_request *r, int32_t token, double now)
{
    int made = r->n_tokens - r->n_prompt;
    r->tokens[r->n_tokens++] = token;
    if (made == 0)
        atomic_store(&r->first_token, now);
    atomic_store(&r->last_token, now);
    atomic_store_explicit(&r->n_out, ++made, memory_order_release);
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == token) {
            request_finish(r, SLUICE_STOP);
            return true;
        }
    if (sampler_done(r->sampler)) {
        request_finish(r, SLUICE_STOP);
        return true;
    }
    if (made >= r->max_tokens) {
        request_finish(r, SLUICE_LENGTH);
        return true;
    }
    return false;
}

bool request_append_forced(struct sluice_request *r, double now)
{
    int32_t token;
    r->n_forced = 0;
    if (r->n_logprobs >= 0) /* each token's row of logits is wanted */
        return false;
    while (r->n_forced < REQUEST_MAX_FORCED && (token = sampler_forced(r->sampler)) >= 0) {
        if (!sampler_accept(r->sampler, token)) {
            snprintf(r->error, sizeof r->error, "%s", sampler_error(r->sampler));
            request_finish(r, SLUICE_ERROR);
            return true;
        }
        r->n_forced++;
        if (request_append(r, token, now))
            return true;
    }
    return false;
}

void sluice_request_progress(const struct sluice_request *r, struct sluice_progress *out)
{
    struct sluice_request *q = (struct sluice_request *)r; /* C17 atomics cannot be loaded through const */
    out->finish = (enum sluice_finish)atomic_load_explicit(&q->finish, memory_order_acquire);
    out->n_tokens = atomic_load_explicit(&q->n_out, memory_order_acquire);
    out->n_prompt_scored = atomic_load_explicit(&q->n_scored, memory_order_acquire);
    out->cached_tokens = atomic_load(&q->cached_tokens);
    out->disk_tokens = atomic_load(&q->disk_tokens);
    out->preemptions = atomic_load(&q->preemptions);
    out->steps = atomic_load(&q->steps);
    out->weight_bytes = atomic_load(&q->weight_bytes);
    out->arrived = atomic_load(&q->arrived);
    out->scheduled = atomic_load(&q->scheduled);
    out->first_token = atomic_load(&q->first_token);
    out->last_token = atomic_load(&q->last_token);
}

const int32_t *sluice_request_tokens(const struct sluice_request *r)
{
    return r->tokens + r->n_prompt;
}

const struct sluice_prob *sluice_request_logprobs(const struct sluice_request *r, int i, int *rank)
{
    if (!r->probs)
        return NULL;
    if (rank)
        *rank = r->ranks[i];
    return r->probs + (size_t)i * (size_t)(1 + r->n_logprobs);
}

const struct sluice_prob *sluice_request_prompt_logprobs(const struct sluice_request *r, int i, int *rank)
{
    if (!r->prompt_probs)
        return NULL;
    if (rank)
        *rank = r->prompt_ranks[i];
    return r->prompt_probs + (size_t)i * (size_t)(1 + r->n_prompt_logprobs);
}

const char *sluice_request_error(const struct sluice_request *r)
{
    return r->error;
}
