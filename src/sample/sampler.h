/* Choosing the next token from a row of logits. One sampler a request, made at submission: afterwards it
 * allocates nothing.
 *
 * The answer depends on (prompt, parameters, seed) alone: the random number of answer token i is a hash of
 * (seed, i), so preemption, company and thread counts cannot move it. */
#ifndef SLUICE_SAMPLE_SAMPLER_H
#define SLUICE_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "sluice.h"

struct sampler;

/* Scratch that one thread uses for any number of samplers over the same vocabulary. */
struct sample_scratch {
    struct sluice_prob *cand; /* [vocab] */
    uint32_t *bits;           /* [vocab / 32, rounded up] a mask of tokens */
    int vocab;
};
void sample_scratch_init(struct sample_scratch *s, int vocab);
void sample_scratch_free(struct sample_scratch *s);
size_t sample_scratch_bytes(int vocab);

/* Copies what it needs of *p. prompt [n_prompt] feeds the repetition penalty. Ids in p are below vocab
 * (checked by the caller). */
size_t sampler_bytes(const struct sluice_sampling *p, size_t n_tokens,
                     size_t vocab); /* what it will take, about;
                                     n_tokens of prompt and answer */
struct sampler *sampler_create(const struct sluice_sampling *p, int vocab, const int32_t *prompt,
                               int n_prompt);
void sampler_free(struct sampler *s);

/* What sampler_pick says instead of a token. */
enum {
    PICK_BROKEN = -1, /* no logit is above minus infinity and some are not numbers: the model is broken */
    PICK_END = -2,    /* the answer may end here, and nothing that may follow is left */
    PICK_STUCK = -3,  /* the grammar cannot be followed: sampler_error says why */
};

/* Picks the token of answer position `index` (0 = first). logits [vocab] are changed: biases, masks,
 * penalties. If every token is masked, the result is the lowest allowed id, or with a grammar no token. */
int32_t sampler_pick(struct sampler *s, float *logits, int index, struct sample_scratch *scratch);
/* Records the picked token. false if the grammar turns out not to allow it: the token does not count. */
bool sampler_accept(struct sampler *s, int32_t token);
/* The token that must come next, whatever the logits say; -1 = there is a choice. */
int32_t sampler_forced(const struct sampler *s);
/* The answer is complete and nothing may follow. */
bool sampler_done(const struct sampler *s);
const char *sampler_error(const struct sampler *s);

/* Raw log-probabilities of one row: out[0] = `token`, out[1 … k] = the k most likely, descending (ties: lower
 * id first); *rank = the token's, from 1. k <= SLUICE_MAX_LOGPROBS. logits [vocab] are only read: call before
 * sampler_pick. */
void sample_logprobs(const float *logits, int vocab, int32_t token, int k, struct sluice_prob *out,
                     int *rank);
/* The same, but out[1 … k] = those of ids [k], each 0 … vocab-1, in their order. */
void sample_logprobs_of(const float *logits, int vocab, int32_t token, const int32_t *ids, int k,
                        struct sluice_prob *out, int *rank);

#endif
