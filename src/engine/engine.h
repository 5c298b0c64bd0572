/* The step: batch -> forward -> sample -> tokens out, over memory that was planned at start. The engine
 * knows sequences only as slices of a batch; who they are is the scheduler's business. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include "base/error.h"
#include "model/model.h"
#include "ops/batch.h"
#include "sample/sampler.h"
#include "sluice.h"

struct engine;

/* What to do with one row of logits. */
struct row_job {
    struct sampler *sampler; /* pick answer token `index`; NULL: score only */
    int index;
    int32_t token;             /* in: the token to score when sampler is NULL; out: the token picked, or PICK_… */
    int n_probs;               /* entries of probs besides the token's own; -1 = no log-probabilities */
    struct sluice_prob *probs; /* [1 + n_probs], filled */
    int *rank;                 /* filled with the token's rank if not NULL */
};

/* Plans memory and, if it fits, loads. As sluice_open. */
struct engine *engine_open(const struct model_file *file, const struct sluice_options *o, struct err *e);
void engine_free(struct engine *en);
/* As sluice_plan_only. */
int engine_plan_only(const struct model_file *file, const struct sluice_options *o, struct sluice_plan *plan,
                     struct sluice_info *info, struct err *e);

const struct sluice_plan *engine_plan(const struct engine *en);
const struct sluice_info *engine_info(const struct engine *en);
int engine_max_logits(
    const struct engine *en); /* rows of logits a step can hold: max_num_seqs and some for scoring */
struct model *engine_model(struct engine *en);
struct backend *engine_backend(struct engine *en);
struct kv_cache *engine_kv(struct engine *en);
float *engine_state(struct engine *en); /* slot 0 of the recurrent states; NULL if none */

/* Runs one step. rows [batch->n_logits] in the order of logits. Adds to *ledger what the step moved and
 * computed. */
void engine_step(struct engine *en, const struct batch *batch, struct row_job *rows,
                 struct sluice_ledger *ledger);

#endif
