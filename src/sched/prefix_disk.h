/* The prefix cache's way to disk and back (sched/offload.h). A block or a state that memory gives up is
 * written with the whole text before it; a request whose text goes on on disk waits until the blocks are in
 * the pool again, and then finds them as if they had never left. Without a directory all of this does
 * nothing. Private to src/sched. */
#ifndef SLUICE_SCHED_PREFIX_DISK_H
#define SLUICE_SCHED_PREFIX_DISK_H

#include "sched/offload.h"
#include "sched/prefix.h"

/* From now on what c gives up goes to `o` (not owned), which must outlive c's use. */
void prefix_use_disk(struct prefix_cache *c, struct offload *o);

/* The pool is about to give up this cached block (and its snapshot), or the cache the snapshot alone.
 * `patient` as in offload_begin. Both return about how many bytes of the directory that takes. */
size_t prefix_spill(struct prefix_cache *c, int32_t block, bool patient);
size_t prefix_spill_state(struct prefix_cache *c, int32_t block, bool patient);
/* The end of the program: writes all that is cached, newest first, for at most `seconds`. Nothing may be in
 * use. */
void prefix_spill_all(struct prefix_cache *c, double seconds);

/* Whether waiting request r, which holds nothing, should not be admitted now because what comes next in its
 * text is being brought in from disk. The first call for r finds out. */
bool prefix_waits_for_disk(struct prefix_cache *c, struct sluice_request *r);
/* Before a step: takes in what was read, and lets those requests go on that waited for it. */
void prefix_collect(struct prefix_cache *c);
void prefix_saw_prefill(struct prefix_cache *c, int n_tokens, double seconds); /* as offload_note_prefill */
void prefix_disk_stats(struct prefix_cache *c, struct sluice_offload_stats *out);
/* r was admitted with *m: counts what the disk gave. Returns those tokens. */
int prefix_count_disk(struct prefix_cache *c, struct sluice_request *r, const struct prefix_match *m);

#endif
