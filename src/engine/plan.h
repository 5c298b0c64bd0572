/* The memory plan: how many bytes everything takes, decided and refused before anything is loaded. */
#ifndef SLUICE_ENGINE_PLAN_H
#define SLUICE_ENGINE_PLAN_H

#include "base/error.h"
#include "model/model.h"
#include "sluice.h"

/* Resolves the options against the model and the machine's memory into *plan; *kv_dtype is the cache's
 * element type. ERR_NO_MEMORY with the largest setting that would fit, if it does not. */
int plan_make(const struct model *m, const struct sluice_options *o, int threads, struct sluice_plan *plan,
              enum dtype *kv_dtype, struct err *e);

/* Rows of logits a step can hold under this plan. */
int plan_max_logits(const struct sluice_plan *plan);

#endif
