/* The offload directory as a cache of bounded size: which files there are, and which has to go next.
 *
 *   DIR/lock           held while a server uses the directory: one server each
 *   DIR/MODEL/KEY.kv   MODEL is the first half of the model's identity, KEY a hash of salt and tokens
 *   DIR/MODEL/KEY.state
 *
 * The list of files is kept in memory, so that whoever asks what is there waits for no disk; it is read from
 * the directory at the start, the ages from the files' times. Files of other models count against the bound
 * and age like ours. Directories are made for the user alone (0700). Private to src/sched. */
#ifndef SLUICE_SCHED_OFFLOAD_STORE_H
#define SLUICE_SCHED_OFFLOAD_STORE_H

#include <stdbool.h>

#include "base/error.h"
#include "sched/offload_file.h"

struct offload_store;

/* Opens or makes the directory. limit: bytes of all files; 0 = 16 GiB, or half of what the disk has free if
 * that is less. typical: size of a usual file, from which the length of the list is chosen. NULL and *e if
 * the directory cannot be used; one that cannot be written is warned of and only read. */
struct offload_store *offload_store_open(const char *dir, const uint64_t model[2], uint64_t limit,
                                         size_t typical, struct err *e);
void offload_store_close(struct offload_store *s);

/* Any thread, never waits for the disk. A hit makes the file the youngest. */
bool offload_store_has(struct offload_store *s, enum offload_kind kind, const uint64_t key[2]);
struct offload_usage {
    uint64_t files, bytes, limit, evicted;
};
void offload_store_usage(struct offload_store *s, struct offload_usage *out);

/* One thread writes: makes room, then writes the file. 0 or errno. EFBIG if it is larger than the bound. */
int offload_store_put(struct offload_store *s, const struct offload_file *f, const void *data);
/* Another reads. A file that is not what it should be is removed. */
enum offload_result offload_store_get(struct offload_store *s, const struct offload_file *want, void *data);

#endif
