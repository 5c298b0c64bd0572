/* The scheduler: one token budget a step. Decode tokens of all running requests come first, then prompt
 * chunks of the running ones, then new requests in order of arrival. It counts tokens, blocks and slots,
 * and knows nothing of tensors: the step itself is a callback. Private to src/sched. */
#ifndef SLUICE_SCHED_SCHEDULER_H
#define SLUICE_SCHED_SCHEDULER_H

#include "engine/engine.h"
#include "sched/fork.h"
#include "sched/prefix.h"
#include "sched/prefix_disk.h"
#include "sched/request.h"
#include "sched/swap.h"
#include "sched/trace.h"

/* Runs a batch (engine_step, or a test's recorder). */
typedef void step_fn(void *arg, const struct batch *batch, struct row_job *rows,
                     struct sluice_ledger *ledger);

struct scheduler_config {
    int max_num_seqs, max_num_batched_tokens, long_prefill_threshold;
    int max_prefills;         /* prompts computed in one step; 0 = no cap */
    bool priority_scheduling; /* lower priority first; within one priority by arrival */
    int n_blocks, block_size;
    int max_logits;  /* rows of logits of a step: at least max_num_seqs */
    bool has_state;  /* sequences own a state slot: 0 … max_num_seqs - 1 */
    int n_snapshots; /* state slots after those, for the prefix cache and for forks */
    bool prefix_cache;
    int swap_pages, state_pages; /* pages of swap space, and those that a state takes */
    size_t page_bytes;           /* of a page, and of a block */
    step_fn *step;
    move_fn *move;
    void *step_arg, *move_arg;
};

struct request_list {
    struct sluice_request *first, *last;
    int n;
};

struct scheduler {
    struct scheduler_config config;
    struct block_pool pool;
    struct prefix_cache prefix;
    struct fork_list forks;
    struct swap_space swap;
    struct request_list waiting, running; /* both in order of turn: arrival, or priority and then arrival */
    int32_t *free_slots;                  /* [n_free_slots] */
    int n_free_slots;
    /* the batch under construction */
    struct batch batch;
    int n_prefills;              /* slices in it that are not a decode token … */
    int prefill_tokens;          /* … and their tokens */
    bool ended;                  /* a request ended in this step */
    int32_t *tokens, *positions; /* [max_num_batched_tokens] */
    struct seq_slice *slices;    /* [max_num_seqs] */
    struct sluice_request **who; /* [max_num_seqs] */
    struct row_job *rows;        /* [max_logits] */
    uint64_t next_order;
    struct trace *trace;       /* not owned; NULL = none */
    struct sluice_stats stats; /* all but engine_heartbeat and refused */
};

void scheduler_init(struct scheduler *s, const struct scheduler_config *c);
void scheduler_free(struct scheduler *s);

/* Takes over one reference to r. */
void scheduler_add(struct scheduler *s, struct sluice_request *r);
/* One step. Returns tokens computed; *published tells whether any request has news. */
int scheduler_step(struct scheduler *s, bool *published);
/* Prompt tokens of requests here that are not computed yet. */
int64_t scheduler_queued_tokens(const struct scheduler *s);
/* Whether no step can do anything before there is news: nobody runs, and all who wait, wait for the disk. */
bool scheduler_rests(const struct scheduler *s);
/* Ends every request as aborted. */
void scheduler_abort_all(struct scheduler *s);

#endif
