/* The memory plan: how many bytes everything takes, decided and refused before anything is loaded. */
#ifndef SLUICE_ENGINE_PLAN_H
#define SLUICE_ENGINE_PLAN_H

#include "base/error.h"
#include "model/model.h"
#include "sluice.h"

/* Staging slots between the KV cache and the disk (sched/offload.h), beside plan->offload_blocks for writing
 * blocks. A state is large, so few are on their way at a time. */
enum { OFFLOAD_READ_BLOCKS = 32, OFFLOAD_WRITE_STATES = 2, OFFLOAD_READ_STATES = 1 };

/* Resolves the options against the model and the machine's memory into *plan; *kv_dtype is the cache's
 * element type. ERR_NO_MEMORY with the largest setting that would fit, if it does not. */
int plan_make(const struct model *m, const struct sluice_options *o, int threads, struct sluice_plan *plan,
              enum dtype *kv_dtype, struct err *e);

/* Rows of logits a step can hold under this plan. */
int plan_max_logits(const struct sluice_plan *plan);

#endif
