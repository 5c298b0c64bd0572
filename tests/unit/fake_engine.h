/* A test double of sluice.h: an engine without a model. Its answers are a script of ids, or ids made from the
 * prompt, and its steps are taken by the test (fake_step) or by a thread that waits between them, so that
 * tests of the rooms above control what happens when. Include it in one file of a test program: it defines
 * the functions of sluice.h, and the real engine is then not linked. */
#ifndef SLUICE_TESTS_FAKE_ENGINE_H
#define SLUICE_TESTS_FAKE_ENGINE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "sluice.h"

struct sluice {
    struct sluice_info info;
    struct sluice_plan plan;
    pthread_mutex_t lock;
    struct sluice_request *requests; /* not ended */
    const int32_t *script;           /* [n_script] ids of every answer; NULL = made from the prompt */
    int n_script;
    _Atomic int prefill_steps;   /* before a request's first token */
    _Atomic double step_seconds; /* of the thread's steps */
    _Atomic bool fails;          /* every request ends with SLUICE_ERROR at the next step */
    _Atomic bool frozen;         /* the thread makes no steps: a stalled engine */
    struct sluice_stats stats;
    void (*notify)(void *arg);
    void *notify_arg;
    pthread_t thread;
    bool threaded, stopping;
    int n_submitted, n_freed;
};

struct sluice_request {
    struct sluice *s;
    struct sluice_request *next;
    int32_t *prompt, *tokens, *stop_ids;
    struct sluice_prob *probs, *prompt_probs;
    int n_prompt, max_tokens, min_tokens, n_stop_ids, n_logprobs, n_prompt_logprobs;
    int waited;
    bool cancelled, freed;
    struct sluice_progress progress;
};

static inline void fake_engine_init(struct sluice *s, int vocab, int max_model_len)
{
    memset(s, 0, sizeof *s);
    s->info = (struct sluice_info){"fake", "none", 1, 1, vocab, 1};
    s->plan = (struct sluice_plan){.kv_blocks = 100,
                                   .block_size = 16,
                                   .max_model_len = max_model_len,
                                   .max_num_seqs = 8,
                                   .max_num_batched_tokens = 64,
                                   .threads = 1};
    s->stats.kv_blocks = 100;
    s->stats.engine_heartbeat = clock_now();
    pthread_mutex_init(&s->lock, NULL);
}

const struct sluice_plan *sluice_plan(const struct sluice *s)
{
    return &s->plan;
}

const struct sluice_info *sluice_info(const struct sluice *s)
{
    return &s->info;
}

void sluice_sampling_init(struct sluice_sampling *p)
{
    *p = (struct sluice_sampling){
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 16, .n_logprobs = -1, .n_prompt_logprobs = -1};
}

/* The last parameters that were submitted, for tests that look at them. */
static struct sluice_sampling fake_submitted;

static inline void fake_probs(struct sluice_prob *p, int k, int32_t id, int vocab)
{
    p[0] = (struct sluice_prob){id, -0.25f};
    for (int j = 1; j <= k; j++)
        p[j] = (struct sluice_prob){(id + j - 1) % vocab, -0.25f * (float)j};
}

struct sluice_request *sluice_submit(struct sluice *s, const int32_t *prompt, int n_prompt,
                                     const struct sluice_sampling *p, struct err *e)
{
    if (n_prompt > s->plan.kv_blocks * s->plan.block_size) {
        err_set(e, ERR_LIMIT, "the prompt does not fit the KV pool");
        return NULL;
    }
    struct sluice_request *r = calloc(1, sizeof *r);
    r->s = s;
    r->n_prompt = n_prompt;
    r->max_tokens = p->max_tokens;
    r->min_tokens = p->min_tokens;
    r->n_logprobs = p->n_logprobs;
    r->n_prompt_logprobs = p->n_prompt_logprobs;
    r->prompt = malloc((size_t)n_prompt * sizeof *r->prompt);
    memcpy(r->prompt, prompt, (size_t)n_prompt * sizeof *r->prompt);
    r->tokens = calloc((size_t)p->max_tokens + 1, sizeof *r->tokens);
    r->n_stop_ids = p->n_stop_ids;
    r->stop_ids = calloc((size_t)p->n_stop_ids + 1, sizeof *r->stop_ids);
    if (p->n_stop_ids)
        memcpy(r->stop_ids, p->stop_ids, (size_t)p->n_stop_ids * sizeof *r->stop_ids);
    if (p->n_logprobs >= 0)
        r->probs = calloc((size_t)(p->max_tokens + 1) * (size_t)(p->n_logprobs + 1), sizeof *r->probs);
    if (p->n_prompt_logprobs >= 0)
        r->prompt_probs =
            calloc((size_t)n_prompt * (size_t)(p->n_prompt_logprobs + 1), sizeof *r->prompt_probs);
    r->progress.arrived = clock_now();
    pthread_mutex_lock(&s->lock);
    fake_submitted = *p;
    s->n_submitted++;
    struct sluice_request **last = &s->requests;
    while (*last)
        last = &(*last)->next;
    *last = r;
    s->stats.waiting++;
    pthread_mutex_unlock(&s->lock);
    return r;
}

int sluice_submit_group(struct sluice *s, const int32_t *prompt, int n_prompt,
                        const struct sluice_sampling *p, int n, struct sluice_request **out, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct sluice_sampling own = *p;
        own.seed += (uint64_t)i;
        if (!(out[i] = sluice_submit(s, prompt, n_prompt, &own, e))) {
            while (i > 0)
                sluice_request_free(out[--i]);
            return -1;
        }
    }
    return 0;
}

static inline void fake_release(struct sluice_request *r)
{
    r->s->n_freed++;
    free(r->prompt);
    free(r->tokens);
    free(r->stop_ids);
    free(r->probs);
    free(r->prompt_probs);
    free(r);
}

void sluice_cancel(struct sluice_request *r)
{
    pthread_mutex_lock(&r->s->lock);
    r->cancelled = true;
    pthread_mutex_unlock(&r->s->lock);
}

void sluice_request_free(struct sluice_request *r)
{
    struct sluice *s = r->s;
    pthread_mutex_lock(&s->lock);
    r->cancelled = r->freed = true;
    if (r->progress.finish != SLUICE_RUNNING)
        fake_release(r);
    pthread_mutex_unlock(&s->lock);
}

void sluice_request_progress(const struct sluice_request *r, struct sluice_progress *out)
{
    pthread_mutex_lock(&r->s->lock);
    *out = r->progress;
    pthread_mutex_unlock(&r->s->lock);
}

const int32_t *sluice_request_tokens(const struct sluice_request *r)
{
    return r->tokens;
}

const struct sluice_prob *sluice_request_logprobs(const struct sluice_request *r, int i, int *rank)
{
    if (rank)
        *rank = 1;
    return r->probs ? r->probs + (size_t)i * (size_t)(r->n_logprobs + 1) : NULL;
}

const struct sluice_prob *sluice_request_prompt_logprobs(const struct sluice_request *r, int i, int *rank)
{
    if (rank)
        *rank = 2;
    return r->prompt_probs ? r->prompt_probs + (size_t)i * (size_t)(r->n_prompt_logprobs + 1) : NULL;
}

const char *sluice_request_error(const struct sluice_request *r)
{
    return r->progress.finish == SLUICE_ERROR ? "the fake engine was told to fail" : NULL;
}

/* Token i of the answer to r. */
static inline int32_t fake_token(const struct sluice_request *r, int i)
{
    const struct sluice *s = r->s;
    if (s->script)
        return s->script[i % s->n_script];
    uint32_t h = 17;
    for (int k = 0; k < r->n_prompt; k++)
        h = h * 31 + (uint32_t)r->prompt[k];
    return (int32_t)(300 + (h + (uint32_t)i * 7) % 500);
}

/* One request's share of a step; its end, if it ends. */
static inline enum sluice_finish fake_advance(struct sluice_request *r)
{
    struct sluice *s = r->s;
    struct sluice_progress *p = &r->progress;
    double now = clock_now();
    if (p->scheduled == 0) {
        p->scheduled = now;
        s->stats.waiting--;
        s->stats.running++;
    }
    if (r->cancelled)
        return SLUICE_ABORTED;
    if (s->fails)
        return SLUICE_ERROR;
    if (r->waited++ < s->prefill_steps)
        return SLUICE_RUNNING;
    if (p->n_tokens == 0) {
        for (int i = 1; r->prompt_probs && i < r->n_prompt; i++)
            fake_probs(r->prompt_probs + (size_t)i * (size_t)(r->n_prompt_logprobs + 1), r->n_prompt_logprobs,
                       r->prompt[i], s->info.vocab);
        p->n_prompt_scored = r->n_prompt;
        s->stats.prompt_tokens += (uint64_t)r->n_prompt;
        s->stats.total.prompt_tokens += (uint64_t)r->n_prompt;
        if (r->max_tokens == 0)
            return SLUICE_LENGTH;
        p->first_token = now;
    }
    int i = p->n_tokens;
    int32_t id = fake_token(r, i);
    r->tokens[i] = id;
    if (r->probs)
        fake_probs(r->probs + (size_t)i * (size_t)(r->n_logprobs + 1), r->n_logprobs, id, s->info.vocab);
    p->last_token = now;
    p->n_tokens++;
    s->stats.generation_tokens++;
    s->stats.total.decode_tokens++;
    for (int k = 0; k < r->n_stop_ids; k++)
        if (r->stop_ids[k] == id && p->n_tokens > r->min_tokens)
            return SLUICE_STOP;
    return p->n_tokens == r->max_tokens ? SLUICE_LENGTH : SLUICE_RUNNING;
}

/* One step for all requests. */
int sluice_step(struct sluice *s)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    s->stats.engine_heartbeat = clock_now();
    struct sluice_request **at = &s->requests;
    while (*at) {
        struct sluice_request *r = *at;
        enum sluice_finish finish = fake_advance(r);
        n++;
        if (finish == SLUICE_RUNNING) {
            at = &r->next;
            continue;
        }
        r->progress.finish = finish;
        s->stats.finished[finish]++;
        s->stats.running--;
        *at = r->next;
        if (r->freed)
            fake_release(r);
    }
    if (n) {
        s->stats.steps++;
        s->stats.total.weight_bytes += 1000;
        s->stats.total.seqs += (uint64_t)n;
        s->stats.total.seconds += 0.001;
    }
    s->stats.kv_blocks_used = s->stats.running;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void sluice_wait(struct sluice *s, double seconds)
{
    (void)s;
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static inline void *fake_main(void *arg)
{
    struct sluice *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool stop = s->stopping, frozen = s->frozen;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;
        if (!frozen && sluice_step(s) && s->notify)
            s->notify(s->notify_arg);
        sluice_wait(s, s->step_seconds > 0 ? s->step_seconds : 0.0002);
    }
}

int sluice_start(struct sluice *s, void (*notify)(void *arg), void *arg, struct err *e)
{
    (void)e;
    s->notify = notify;
    s->notify_arg = arg;
    s->threaded = pthread_create(&s->thread, NULL, fake_main, s) == 0;
    return s->threaded ? 0 : -1;
}

/* Stops the thread and ends what is left; the struct is the test's. */
void sluice_close(struct sluice *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    if (s->threaded)
        pthread_join(s->thread, NULL);
    for (struct sluice_request *r = s->requests, *next; r; r = next) {
        next = r->next;
        r->progress.finish = SLUICE_ABORTED;
        if (r->freed)
            fake_release(r);
    }
    s->requests = NULL;
    pthread_mutex_destroy(&s->lock);
}

void sluice_stats(struct sluice *s, struct sluice_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

#endif
