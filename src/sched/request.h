/* A request: what the client asked for, how far it is, and what it may read so far.
 *
 * Two sides touch it. The engine thread owns everything under "engine's side". It publishes tokens by
 * writing an entry and then raising a counter with release order; readers load the counter with acquire and
 * see the entries below it. Arrays are sized at submission, so a step allocates nothing and no reader can
 * hold it up (law 7). Private to src/sched. */
#ifndef SLUICE_SCHED_REQUEST_H
#define SLUICE_SCHED_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/engine.h"
#include "ops/batch.h"
#include "sample/sampler.h"
#include "sched/blocks.h"
#include "sluice.h"

enum { REQUEST_MAX_SAVES = 16 }; /* snapshots of one request in one step */

struct fork_group;

struct sluice_request {
    /* fixed at submission */
    int n_prompt, max_tokens, priority;
    int n_logprobs, n_prompt_logprobs; /* -1 = none */
    int32_t *logprob_ids;              /* [n_logprobs] or NULL */
    int32_t *stop_ids;                 /* [n_stop_ids] */
    int n_stop_ids;
    struct sampler *sampler;

    /* written by the engine, published by the counters */
    int32_t *tokens;                  /* [n_prompt + max_tokens] prompt, then answer */
    struct sluice_prob *probs;        /* [max_tokens, 1 + n_logprobs] or NULL */
    int *ranks;                       /* [max_tokens] */
    struct sluice_prob *prompt_probs; /* [n_prompt, 1 + n_prompt_logprobs] or NULL */
    int *prompt_ranks;                /* [n_prompt] */
    char error[200];

    _Atomic int n_out;    /* answer tokens published */
    _Atomic int n_scored; /* prompt positions published: entries 1 … n_scored - 1 */
    _Atomic int finish;   /* enum sluice_finish; n_out is final once it is not RUNNING */
    _Atomic int preemptions, cached_tokens, disk_tokens;
    _Atomic uint64_t steps, weight_bytes;
    _Atomic double arrived, scheduled, first_token, last_token;

    /* set by the client */
    _Atomic bool cancelled;
    size_t bytes;     /* counted against request_limit_memory */
    _Atomic int refs; /* client's and engine's */
    struct sluice *_Atomic owner;

    /* engine's side */
    int n_tokens;   /* prompt + answer so far */
    int n_lost;     /* tokens that were computed for it and taken; 0 = never, or swapped */
    int n_computed; /* of them, in the KV cache (and the recurrent state) */
    int n_forced;   /* tokens appended behind the last one that was sampled: its next step has so many more */
    struct block_table table;
    int state_slot; /* -1 = none */
    uint64_t order; /* arrival: FCFS, and the tie-break of everything */
    struct sluice_request *next, *prev;
    int slice; /* this step's slice; -1 = none */

    /* prefix cache (sched/prefix.c) */
    uint64_t salt[2];
    int *borders; /* [n_borders] prompt positions where messages end */
    int n_borders;
    int n_learned;  /* blocks whose keys are known to the cache … */
    int32_t parent; /* … the last of them (or its twin that came first); -1 = none yet, -2 = chain lost */
    uint32_t parent_generation;
    int branch;        /* grid position up to which a lookup found tokens without state; 0 = none */
    int state_from;    /* slot that the next step's state starts from; 0 = its own */
    int last_snapshot; /* position of the latest snapshot in its chain */
    int32_t rolling, rolling_block; /* the answer's latest snapshot and its block; -1 = none */
    struct state_save saves[REQUEST_MAX_SAVES + 1]; /* [n_saves] of the step under way (the last may be
                                                       a fork's) … */
    int save_positions[REQUEST_MAX_SAVES + 1];      /* … and the positions they are for; -1 = a fork's */
    int n_saves;

    /* prefixes on disk (sched/prefix_disk.h) */
    enum { DISK_UNASKED, DISK_READS, DISK_DONE } disk; /* DISK_READS: waits until it is brought in */
    int disk_tries;
    int local_tokens; /* what memory had when the disk was asked */

    /* several answers to one prompt (sched/fork.h) */
    struct fork_group *group;       /* NULL = alone */
    struct sluice_request *sibling; /* next member */
    bool expects;                   /* waits to continue from what the group holds */
    struct row_job first_row;       /* picks its first token from the leader's row */

    /* swapped out (sched/swap.h) */
    int32_t swapped; /* first page; -1 = not */
    int n_swapped;   /* tokens there */
};

/* Bounds what all requests of this process together may hold beside the KV cache (their tokens,
 * log-probabilities and sampler tables): a submission beyond it is refused with ERR_BUSY. No bound until it
 * is called. */
void request_limit_memory(size_t bytes);

/* Validated copy of a submission, with one reference. NULL and *e (ERR_NO_MEMORY) if its arrays do not fit.
 * Limits were checked by sluice_submit; max_tokens is already clamped. */
struct sluice_request *request_create(const int32_t *prompt, int n_prompt, const struct sluice_sampling *p,
                                      int max_tokens, int vocab, int block_size, struct err *e);
void request_unref(struct sluice_request *r);

/* The job that picks r's next answer token from a row of logits. */
struct row_job request_answer_row(struct sluice_request *r);

enum { REQUEST_MAX_FORCED = 31 }; /* tokens that one step may append without computing them */

/* Engine's side: r's prompt is scored as that of `from`, a request with the same one, is. */
void request_copy_scores(struct sluice_request *r, const struct sluice_request *from);

/* Engine's side: appends and publishes an answer token; decides whether the answer is over (sets finish).
 * Returns true if it is. */
bool request_append(struct sluice_request *r, int32_t token, double now);
/* Appends the tokens that must come next (sampler_forced), counted in n_forced. Returns true if the answer is
 * over, maybe by an error. */
bool request_append_forced(struct sluice_request *r, double now);
/* Publishes the end. */
void request_finish(struct sluice_request *r, enum sluice_finish why);

#endif
