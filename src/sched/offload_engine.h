/* Ties prefixes on disk to an engine: whose bits they are, and how they are copied. Private to src/sched. */
#ifndef SLUICE_SCHED_OFFLOAD_ENGINE_H
#define SLUICE_SCHED_OFFLOAD_ENGINE_H

#include "engine/engine.h"
#include "file/model_file.h"
#include "sched/offload.h"

/* Opens o->kv_offload_dir for this engine, which was opened from `file` and outlives the result. `wake` as in
 * offload_config. NULL and *e on failure. */
struct offload *offload_for_engine(struct engine *en, const struct model_file *file,
                                   const struct sluice_options *o, void (*wake)(void *arg), void *wake_arg,
                                   struct err *e);

#endif
