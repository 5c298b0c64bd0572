/* Prefixes on disk: what the prefix cache gives up goes to files, and comes back when a prompt begins like
 * that again, in this process or a later one.
 *
 * The engine's thread never waits for the disk. To write, it copies a block into a staging slot and queues
 * it for the writer's thread; without a free slot the block is simply lost. To read, it asks the list of
 * files (memory), queues a fetch for the reader's thread, and goes on; the request waits with the others.
 * The reader hands over verified blocks in staging slots; before its next step the engine copies them into
 * the pool, and the request then finds them there like any others. All memory is allocated at the start.
 *
 * A fetch is only begun when it should be faster than computing: both are measured. Private to src/sched. */
#ifndef SLUICE_SCHED_OFFLOAD_H
#define SLUICE_SCHED_OFFLOAD_H

#include <stdbool.h>

#include "base/error.h"
#include "sched/offload_file.h"
#include "sched/request.h"
#include "sluice.h"

struct offload;

/* Copies between the engine's memory and the host: block `index` of the KV pool, or state slot `index`. */
typedef void offload_save(void *arg, enum offload_kind kind, int index, void *host);
typedef void offload_load(void *arg, enum offload_kind kind, int index, const void *host);

struct offload_config {
    const char *dir;
    uint64_t limit;    /* bytes on disk; 0 = see offload_store_open */
    uint64_t model[2]; /* what bits depend on besides salt and tokens */
    int block_size, max_model_len;
    size_t block_bytes, state_bytes; /* state_bytes 0 = the model has none */
    int write_blocks;                /* staging slots of the writer: a burst of evictions that is not lost */
    offload_save *save;
    offload_load *load;
    void *copy_arg;          /* of both */
    void (*wake)(void *arg); /* from the reader's thread: there is something to collect. Must not block */
    void *wake_arg;
};

int offload_max_tokens(const struct offload *o); /* that a slot can hold: max_model_len */
size_t offload_limit(struct offload *o);         /* bytes on disk */
size_t offload_size(const struct offload *o, enum offload_kind kind, int n_tokens); /* of a file */
/* Bytes of staging memory. */
size_t offload_staging_bytes(const struct offload_config *c);
struct offload *offload_open(const struct offload_config *c, struct err *e);
/* Writes what is queued (for at most `seconds`), ends the threads and forgets unfinished fetches. NULL is
 * fine. */
void offload_close(struct offload *o, double seconds);

/* The key of a block: its parent's (NULL: the first) and its tokens, so that it stands for all before. */
void offload_key(const uint64_t *parent, const uint64_t salt[2], const int32_t *tokens, int n,
                 uint64_t key[2]);

/* --- writing (engine's thread) --- */

struct offload_slot {
    struct offload_slot *next;
    enum offload_kind kind;
    uint64_t key[2], salt[2];
    int n_tokens;
    int32_t *tokens; /* [max_model_len] */
    void *data;      /* [block_bytes or state_bytes] */
    struct offload_fetch *fetch;
    int block; /* reading: number of the block in its sequence */
};

/* A slot to write this key from; NULL when the file exists already or no slot is free (with `patient`, for
 * the end of the program, waits up to a second for one). The caller fills salt, tokens and n_tokens. */
struct offload_slot *offload_begin(struct offload *o, enum offload_kind kind, const uint64_t key[2],
                                   bool patient);
/* Copies the block or state `index` and queues the slot; with index -1 gives it back unused. */
void offload_commit(struct offload *o, struct offload_slot *s, int index);

/* --- reading (engine's thread) --- */

bool offload_has(struct offload *o, enum offload_kind kind, const uint64_t key[2]);

struct offload_fetch {
    struct sluice_request *r; /* one reference; NULL = unused */
    int first, end;           /* blocks first … end - 1 are to be read … */
    int coming;               /* … of which this one is taken in next (engine's thread) … */
    bool with_state;          /* … and the state after the last */
    int32_t parent;           /* the block before, as the pool knows it; -1 = none */
    uint32_t parent_generation;
    /* filled and used by offload.c, under its lock */
    bool stopped;        /* what comes is not wanted any more */
    bool done;           /* the reader is through */
    bool failed;         /* a file was not what the list promised */
    int n_slots;         /* handed over and not released */
    uint64_t bytes_left; /* yet to be read */
    struct offload_fetch *next;
};

/* Whether bringing in n_blocks (and a state) should take less time than computing n_tokens. Counts the ones
 * that would not. */
bool offload_worthwhile(struct offload *o, int n_blocks, bool with_state, int n_tokens);
/* Queues a fetch (its fields from r to parent_generation are given); false if too many are under way. */
bool offload_fetch(struct offload *o, const struct offload_fetch *f);

/* What the reader has handed over: a slot (copied out with offload_take), or NULL. */
struct offload_slot *offload_arrived(struct offload *o);
/* Copies a slot's data to block or state `index`. The slot stays until offload_release. */
void offload_take(struct offload *o, const struct offload_slot *s, int index);
void offload_release(struct offload *o, struct offload_slot *s);
/* Nothing more of this fetch is wanted. */
void offload_stop(struct offload *o, struct offload_fetch *f);
/* A fetch that is through, and all its slots released: the caller drops its reference to *r. *failed: it
 * ended early because of a file, so looking again may find another way. NULL if there is none. */
struct sluice_request *offload_finished(struct offload *o, bool *failed);

/* A step computed so many prompt tokens, and little else, in this time. */
void offload_note_prefill(struct offload *o, int n_tokens, double seconds);
/* A request's tokens that were looked up on disk, and found there. */
void offload_note_lookup(struct offload *o, int n_tokens, int n_found);
void offload_stats(struct offload *o, struct sluice_offload_stats *out);

#endif
