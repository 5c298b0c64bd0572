/* The memory plan: how many bytes everything takes, decided and refused before anything is loaded. */
#ifndef SLUICE_ENGINE_PLAN_H
#define SLUICE_ENGINE_PLAN_H

#include "base/error.h"
#include "engine/dtypes.h"
#include "model/model.h"
#include "sluice.h"

/* Staging slots between the KV cache and the disk (sched/offload.h), beside plan->offload_blocks for writing
 * blocks. A state is large, so few are on their way at a time. */
enum { OFFLOAD_READ_BLOCKS = 32, OFFLOAD_WRITE_STATES = 2, OFFLOAD_READ_STATES = 1 };

/* Resolves the options against the model and the machine's memory into *plan. ERR_NO_MEMORY with the settings
 * that would fit, if it does not. */
int plan_make(const struct model *m, const struct sluice_options *o, const struct dtypes *types, int threads,
              struct sluice_plan *plan, struct err *e);

/* The same for a given amount of memory: 0, or 1 with what was needed in *plan, or -1 and *e where a setting
 * is wrong by itself. quiet: no words in the log. */
int plan_try(const struct model *m, const struct sluice_options *o, const struct dtypes *types, int threads,
             size_t available, bool quiet, struct sluice_plan *plan, struct err *e);

/* Rows of logits a step can hold under this plan. */
int plan_max_logits(const struct sluice_plan *plan);

#endif
