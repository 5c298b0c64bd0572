/* Swap space: where preempted requests leave what was computed for them, when bringing that back costs less
 * than computing it again.
 *
 * It is a host buffer of pages, each as large as a KV block; a request's blocks and then its recurrent state,
 * cut into pages, form a chain. What either way costs is measured while it happens: bytes a second of the
 * copies, tokens a second of steps that compute prompts, and which share of what preemption took had really
 * to be computed again (the prefix cache may still have the rest). Private to src/sched. */
#ifndef SLUICE_SCHED_SWAP_H
#define SLUICE_SCHED_SWAP_H

#include "engine/engine.h"
#include "sched/request.h"

struct swap_space {
    int32_t *next; /* [n_pages] the page after it in its chain; -1 ends */
    int32_t free;  /* first of the chain of free pages */
    int n_pages, n_free;
    size_t page_bytes;
    int state_pages; /* that a state takes; 0 = no state */
    move_fn *move;
    void *move_arg;
    double copy_rate, prefill_rate; /* running averages, bytes and tokens a second; 0 = not yet known */
    double lost_share;              /* of what preemption took, the share that was computed again */
    bool fixed;                     /* tests: the rates are given */
};

void swap_init(struct swap_space *w, int n_pages, size_t page_bytes, int state_pages, move_fn *move,
               void *arg);
void swap_free(struct swap_space *w);

/* A step computed tokens, at least half of them of prompts. */
void swap_saw_prefill(struct swap_space *w, int tokens, double seconds);
/* A request came back without swap: of `lost` tokens `again` had to be computed once more. */
void swap_saw_recompute(struct swap_space *w, int lost, int again);

static inline bool swap_holds(const struct sluice_request *r)
{
    return r->swapped >= 0;
}

/* Copies what is computed of r out, if there is room and it pays. Returns the bytes; 0 = r is to be computed
 * again. */
size_t swap_out(struct swap_space *w, struct sluice_request *r, int block_size);
/* Copies it back into r's blocks, which hold as many tokens, and its state slot, and frees the pages. Returns
 * the bytes. */
size_t swap_in(struct swap_space *w, struct sluice_request *r, int block_size);
void swap_discard(struct swap_space *w, struct sluice_request *r);

#endif
