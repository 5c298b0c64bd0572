/* Refusing a plan that does not fit, in words that help. Private to src/engine. */
#ifndef SLUICE_ENGINE_PLAN_REFUSAL_H
#define SLUICE_ENGINE_PLAN_REFUSAL_H

#include "engine/plan.h"

/* What plan_try came to (it returned 1) becomes the error: what takes how much, and for each setting the
 * value that would fit if only it were changed. Always -1. */
int plan_refuse(const struct model *m, const struct sluice_options *o, const struct dtypes *types,
                const struct sluice_plan *p, struct err *e);

#endif
