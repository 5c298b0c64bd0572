/* A timeline for Perfetto or chrome://tracing: each step with its phases, each request's life from arrival
 * to end. The engine's thread puts events into a ring and never waits; a thread of its own writes them. When
 * the disk is too slow for the ring, events are dropped and counted, not waited for. Private to src/sched. */
#ifndef SLUICE_SCHED_TRACE_H
#define SLUICE_SCHED_TRACE_H

#include <stdint.h>

#include "base/error.h"

struct trace;

/* Starts a trace in `path` (overwritten). NULL and *e if the file cannot be made. */
struct trace *trace_open(const char *path, struct err *e);
/* Writes what is left, and how many events were dropped. NULL is fine. */
void trace_close(struct trace *t);

/* Times are clock_now() seconds. All do nothing for a NULL trace. */
struct trace_step {
    double start, built, computed,
        end;         /* scheduling up to built, the engine up to computed, publishing up to end */
    double sampling; /* seconds of the engine's time that went into choosing tokens */
    int prompt_tokens, decode_tokens, seqs, waiting;
    uint64_t weight_bytes, kv_bytes, state_bytes;
};
void trace_step(struct trace *t, const struct trace_step *s);
/* One stretch of request `id`: "queued", "prefill", "decode". */
void trace_span(struct trace *t, uint64_t id, const char *name, double start, double end);
/* A moment of it: "preempted", "aborted". */
void trace_mark(struct trace *t, uint64_t id, const char *name, double at);

#endif
