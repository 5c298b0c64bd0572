/* Several answers to one prompt (n > 1): the prompt is computed once, and once it is, all answers begin.
 *
 * One member of the group, the leader, computes the prompt; the others wait, deferred. The prompt's last row
 * of logits serves all: each member picks its first token from it with its own sampler. From then on members
 * are requests like any other, except that those that wait for their turn find the prompt *held*: its blocks
 * by reference, and for models with recurrent state the state after it, in a slot lent by the prefix cache.
 * A member that is admitted shares the full blocks and copies the last, partly filled one, which it will
 * write (copy on write; the leader goes on in the original: what it adds lies behind what the others copy).
 *
 * What is held is let go when the last member has been admitted, or when others need the memory: who waits
 * loses before who runs. Those that find nothing held compute the prompt again, and the counters say so.
 * Private to src/sched. */
#ifndef SLUICE_SCHED_FORK_H
#define SLUICE_SCHED_FORK_H

#include "engine/engine.h"
#include "sched/prefix.h"

struct fork_group {
    _Atomic int refs; /* one a member, until it is destroyed */
    /* engine's side */
    struct sluice_request *leader;  /* computes the prompt; NULL once that is done */
    struct sluice_request *members; /* that have not ended, linked by `sibling`, in order of arrival */
    int n_expecting;                /* members that wait to continue from what is held */
    struct block_table held;        /* the prompt's blocks; n = 0: nothing is held */
    int state_slot;                 /* the state after the prompt; -1 = none */
    int n_learned, last_snapshot;   /* of the leader (request.h), for who continues from there */
    int32_t parent;
    uint32_t parent_generation;
    struct fork_group *older, *newer; /* list of groups that hold something */
};

struct fork_list {
    struct block_pool *pool;
    struct prefix_cache *prefix;
    struct fork_group *oldest, *newest; /* groups that hold something */
};

/* Makes a group of requests [n], n > 1, with the same prompt, before the engine sees them. NULL if there is
 * no memory. */
struct fork_group *fork_group_create(struct sluice_request **requests, int n, int block_size);
void fork_group_unref(struct fork_group *g); /* NULL is fine */

/* Whether r's prompt is being computed, or will be, by another member. */
bool fork_defers(const struct sluice_request *r);
/* Whether r computes its prompt for others too. */
bool fork_leads(const struct sluice_request *r);

/* r leads and the slice of `count` tokens now made ends its prompt: its last row, `row`, is for all members.
 */
void fork_share_row(struct fork_list *f, struct sluice_request *r, int count, struct row_job *row);
/* r led and its prompt is computed: holds it for the others, as far as memory for its state was found, and
 * lets them go. */
void fork_hold(struct fork_list *f, struct sluice_request *r);

/* r expects what is held: takes the full blocks into r's empty table; r continues after the prompt. Undone by
 * prefix_give_back, or completed by fork_take_rest once the table has grown. */
struct prefix_match fork_take(struct fork_list *f, struct sluice_request *r);
void fork_take_rest(struct fork_list *f, struct sluice_request *r, move_fn *move, void *arg);

/* Lets go of what the youngest group holds: of those whose blocks nobody else uses, or, with `any`, of all.
 * false if there is none. */
bool fork_reclaim(struct fork_list *f, bool any);
/* r ends. Another member takes its place if it led. */
void fork_leave(struct fork_list *f, struct sluice_request *r);

#endif
