/* The order of operations is vLLM's: allowed ids, biases, minimum length, penalties, temperature, min_p,
 * top_k, top_p, draw. The vocabulary is never sorted: only the candidates that can still win are. */
#include "sample/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/constraint.h"
#include "sample/softmax.h"

/* How often a token occurred: an open-addressing table sized at creation for every token there can be. */
struct seen {
    int32_t id; /* -1 = free */
    int in_prompt, in_answer;
};

struct sampler {
    struct sluice_sampling p; /* its arrays are copies */
    int vocab;
    uint8_t *allowed;              /* [vocab] or NULL */
    struct constraint *constraint; /* or NULL */
    struct seen *seen;             /* [n_slots], NULL without penalties */
    int32_t *distinct;             /* [n_distinct] ids in seen, in order of first occurrence */
    uint32_t n_slots;
    int n_distinct;
};

void sluice_sampling_init(struct sluice_sampling *p)
{
    *p = (struct sluice_sampling){
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 16, .n_logprobs = -1, .n_prompt_logprobs = -1};
}

void sample_scratch_init(struct sample_scratch *s, int vocab)
{
    s->vocab = vocab;
    s->cand = mem_zalloc((size_t)vocab, sizeof *s->cand);
    s->bits = mem_zalloc((size_t)(vocab + 31) / 32, sizeof *s->bits);
}

void sample_scratch_free(struct sample_scratch *s)
{
    free(s->cand);
    free(s->bits);
    *s = (struct sample_scratch){0};
}

size_t sample_scratch_bytes(int vocab)
{
    return (size_t)vocab * sizeof(struct sluice_prob) + (size_t)(vocab + 31) / 32 * sizeof(uint32_t);
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A uniform number in [0, 1) from (seed, index): splitmix64's finaliser over both, twice. */
static double uniform(uint64_t seed, int index)
{
    uint64_t x = mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    x = mix(x ^ (uint64_t)index * UINT64_C(0xd1342543de82ef95) ^ UINT64_C(0x632be59bd9b4e019));
    return (double)(x >> 11) * 0x1p-53;
}

static struct seen *slot_of(struct sampler *s, int32_t id)
{
    uint32_t at = (uint32_t)mix((uint64_t)id) & (s->n_slots - 1);
    while (s->seen[at].id != id && s->seen[at].id != -1)
        at = (at + 1) & (s->n_slots - 1);
    if (s->seen[at].id == -1) {
        s->seen[at].id = id;
        s->distinct[s->n_distinct++] = id;
    }
    return &s->seen[at];
}

static void *copy(const void *src, int n, size_t size)
{
    void *p = mem_alloc((size_t)n * size);
    if (n)
        memcpy(p, src, (size_t)n * size);
    return p;
}

size_t sampler_bytes(const struct sluice_sampling *p, size_t n_tokens, size_t vocab)
{
    size_t most = n_tokens < vocab ? n_tokens : vocab, bytes = sizeof(struct sampler);
    if (p->n_allowed_ids)
        bytes += vocab;
    if (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0)
        bytes += 4 * most * sizeof(struct seen) + most * sizeof(int32_t);
    if (p->grammar || p->n_bad_words || p->n_thinking_end)
        bytes += constraint_bytes(p);
    return bytes;
}

struct sampler *sampler_create(const struct sluice_sampling *p, int vocab, const int32_t *prompt,
                               int n_prompt)
{
    struct sampler *s = mem_zalloc(1, sizeof *s);
    s->p = *p;
    s->vocab = vocab;
    s->p.logit_bias = copy(p->logit_bias, p->n_logit_bias, sizeof *p->logit_bias);
    s->p.stop_ids = copy(p->stop_ids, p->n_stop_ids, sizeof *p->stop_ids);
    s->p.allowed_ids = NULL;
    s->constraint = constraint_create(p);
    if (p->n_allowed_ids) {
        s->allowed = mem_zalloc((size_t)vocab, 1);
        for (int i = 0; i < p->n_allowed_ids; i++)
            s->allowed[p->allowed_ids[i]] = 1;
    }
    if (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0) {
        int64_t most = (int64_t)n_prompt + p->max_tokens;
        most = most < vocab ? most : vocab;
        s->n_slots = 16;
        while (s->n_slots < 2 * (uint64_t)most)
            s->n_slots *= 2;
        s->seen = mem_alloc(s->n_slots * sizeof *s->seen);
        for (uint32_t i = 0; i < s->n_slots; i++)
            s->seen[i] = (struct seen){.id = -1};
        s->distinct = mem_zalloc((size_t)most, sizeof *s->distinct);
        if (p->repetition_penalty != 1)
            for (int i = 0; i < n_prompt; i++)
                slot_of(s, prompt[i])->in_prompt++;
    }
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free((void *)s->p.logit_bias);
    free((void *)s->p.stop_ids);
    free(s->allowed);
    free(s->seen);
    free(s->distinct);
    constraint_free(s->constraint);
    free(s);
}

bool sampler_accept(struct sampler *s, int32_t token)
{
    if (s->constraint && !constraint_accept(s->constraint, token))
        return false;
    if (s->seen)
        slot_of(s, token)->in_answer++;
    return true;
}

int32_t sampler_forced(const struct sampler *s)
{
    return s->constraint ? constraint_forced(s->constraint) : -1;
}

bool sampler_done(const struct sampler *s)
{
    return s->constraint && constraint_done(s->constraint);
}

const char *sampler_error(const struct sampler *s)
{
    return s->constraint ? constraint_error(s->constraint) : "";
}

/* Masks, biases and penalties, in place. */
static void adjust(struct sampler *s, float *logits, int index)
{
    if (s->allowed)
        for (int i = 0; i < s->vocab; i++)
            if (!s->allowed[i])
                logits[i] = -INFINITY;
    for (int i = 0; i < s->p.n_logit_bias; i++)
        logits[s->p.logit_bias[i].id] += s->p.logit_bias[i].bias;
    if (index < s->p.min_tokens)
        for (int i = 0; i < s->p.n_stop_ids; i++)
            logits[s->p.stop_ids[i]] = -INFINITY;
    for (int i = 0; i < s->n_distinct; i++) {
        int32_t id = s->distinct[i];
        const struct seen *t = slot_of(s, id);
        float *x = &logits[id];
        if (s->p.repetition_penalty != 1)
            *x = *x > 0 ? *x / s->p.repetition_penalty : *x * s->p.repetition_penalty;
        if (t->in_answer)
            *x -= s->p.frequency_penalty * (float)t->in_answer + s->p.presence_penalty;
    }
}

static int32_t argmax(const float *logits, int n)
{
    int32_t best = -1;
    float max = -INFINITY;
    for (int i = 0; i < n; i++)
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const struct sluice_prob *x = a, *y = b;
    if (x->logprob != y->logprob)
        return x->logprob > y->logprob ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The k largest logits that are >= floor, as a min-heap over (logit, then lower id first), then sorted
 * descending. */
static bool heap_less(const struct sluice_prob *a, const struct sluice_prob *b)
{
    return a->logprob < b->logprob || (a->logprob == b->logprob && a->id > b->id);
}

static void sift_down(struct sluice_prob *h, int n, int at)
{
    for (;;) {
        int least = at, l = 2 * at + 1, r = l + 1;
        if (l < n && heap_less(&h[l], &h[least]))
            least = l;
        if (r < n && heap_less(&h[r], &h[least]))
            least = r;
        if (least == at)
            return;
        struct sluice_prob t = h[at];
        h[at] = h[least];
        h[least] = t;
        at = least;
    }
}

static int top_k_candidates(const float *logits, int vocab, int k, float lowest, struct sluice_prob *cand)
{
    int n = 0;
    for (int i = 0; i < vocab; i++) {
        if (!(logits[i] >= lowest))
            continue;
        if (n < k) {
            cand[n++] = (struct sluice_prob){i, logits[i]};
            if (n == k)
                for (int j = k / 2 - 1; j >= 0; j--)
                    sift_down(cand, k, j);
        } else if (logits[i] > cand[0].logprob) {
            cand[0] = (struct sluice_prob){i, logits[i]};
            sift_down(cand, k, 0);
        }
    }
    qsort(cand, (size_t)n, sizeof *cand, by_logit);
    return n;
}

/* Without top_k: the candidates that top_p can reach, sorted. Widens the cut below the maximum until what it
 * keeps holds `top_p` of the whole mass, so that only those are sorted. */
static int top_p_candidates(const float *logits, int vocab, float max, float scale, float top_p, float lowest,
                            struct sluice_prob *cand, double *total)
{
    *total = softmax_mass(logits, vocab, max, scale, lowest);
    for (float depth = 4;; depth *= 2) {
        float cut = max - depth / scale;
        cut = cut > lowest ? cut : lowest;
        double kept = 0;
        int n = 0;
        for (int i = 0; i < vocab; i++)
            if (logits[i] >= cut) {
                cand[n++] = (struct sluice_prob){i, logits[i]};
                kept += (double)softmax_exp((logits[i] - max) * scale);
            }
        if (kept >= (double)top_p * *total || cut <= lowest) {
            qsort(cand, (size_t)n, sizeof *cand, by_logit);
            return n;
        }
    }
}

/* Draws from candidates sorted descending, cut where their mass passes top_p. */
static int32_t draw_sorted(struct sluice_prob *cand, int n, float max, float scale, float top_p, double total,
                           double u)
{
    double mass = 0;
    int kept = 0;
    for (; kept < n; kept++) {
        cand[kept].logprob = softmax_exp((cand[kept].logprob - max) * scale);
        mass += (double)cand[kept].logprob;
        if (mass >= (double)top_p * total) {
            kept++;
            break;
        }
    }
    double target = u * mass, sum = 0;
    for (int i = 0; i < kept; i++) {
        sum += (double)cand[i].logprob;
        if (target < sum)
            return cand[i].id;
    }
    return cand[kept - 1].id;
}

/* Draws from the whole vocabulary at or above `lowest`, in the order of ids. */
static int32_t draw_all(const float *logits, int vocab, float max, float scale, float lowest, double u)
{
    double total = softmax_mass(logits, vocab, max, scale, lowest), sum = 0;
    int32_t last = 0;
    for (int i = 0; i < vocab; i++) {
        if (!(logits[i] >= lowest))
            continue;
        float p = softmax_exp((logits[i] - max) * scale);
        sum += (double)p;
        if (p > 0)
            last = i;
        if (u * total < sum)
            return i;
    }
    return last;
}

int32_t sampler_pick(struct sampler *s, float *logits, int index, struct sample_scratch *scratch)
{
    const struct sluice_sampling *p = &s->p;
    int32_t forced = sampler_forced(s);
    if (forced >= 0)
        return forced;
    if (s->constraint &&
        !constraint_mask(s->constraint, logits, s->vocab, index >= p->min_tokens, scratch->bits))
        return PICK_STUCK;
    adjust(s, logits, index);
    int32_t best = argmax(logits, s->vocab);
    if (best < 0) { /* nothing above -inf */
        for (int i = 0; i < s->vocab; i++)
            if (isnan(logits[i]))
                return PICK_BROKEN;
        if (p->grammar)
            return constraint_no_token(s->constraint) ? PICK_END : PICK_STUCK;
        for (best = 0; s->allowed && best < s->vocab - 1 && !s->allowed[best];)
            best++;
        return best;
    }
    if (p->temperature < 1e-5f || isinf(logits[best]))
        return best;
    float max = logits[best], scale = 1 / p->temperature;
    /* min_p keeps p >= min_p * p_max: logits within log(min_p) * temperature of the maximum */
    float lowest = p->min_p > 0 ? max + logf(p->min_p) * p->temperature : -FLT_MAX;
    double u = uniform(p->seed, index);
    struct sluice_prob *cand = scratch->cand;
    if (p->top_k > 0 && p->top_k < s->vocab) {
        int n = top_k_candidates(logits, s->vocab, p->top_k, lowest, cand);
        double total = 0;
        for (int i = 0; i < n; i++)
            total += (double)softmax_exp((cand[i].logprob - max) * scale);
        return draw_sorted(cand, n, max, scale, p->top_p, total, u);
    }
    if (p->top_p < 1) {
        double total;
        int n = top_p_candidates(logits, s->vocab, max, scale, p->top_p, lowest, cand, &total);
        return draw_sorted(cand, n, max, scale, p->top_p, total, u);
    }
    return draw_all(logits, s->vocab, max, scale, lowest, u);
}
