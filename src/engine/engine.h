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
    int32_t token; /* in: the token to score when sampler is NULL; out: the token picked, or PICK_… */
    int n_probs;   /* entries of probs besides the token's own; -1 = no log-probabilities */
    const int32_t *score_ids;  /* [n_probs] that probs are of; NULL = the most likely ones */
    struct sluice_prob *probs; /* [1 + n_probs], filled */
    int *rank;                 /* filled with the token's rank if not NULL */
    struct row_job *next;      /* another job on the same row; NULL ends */
};

/* Copies that the scheduler asks for between steps: of KV blocks, and of recurrent states in parts of a
 * block's size. A page of swap space holds one of either. */
enum move {
    MOVE_BLOCK,     /* block `from` to block `to` */
    MOVE_BLOCK_OUT, /* block to page */
    MOVE_BLOCK_IN,  /* page to block */
    MOVE_STATE_OUT, /* part `part` of the state in slot `from` to page `to` */
    MOVE_STATE_IN,
};
typedef void move_fn(void *arg, enum move what, int32_t from, int32_t to, int part);

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
void *engine_state(struct engine *en); /* slot 0 of the recurrent states; NULL if none */

/* A move_fn. */
void engine_move(void *engine, enum move what, int32_t from, int32_t to, int part);
/* Bytes of a KV block of all layers, which is also those of a page of swap space. */
size_t engine_block_bytes(const struct engine *en);

/* Runs one step. rows [batch->n_logits] in the order of logits. Adds to *ledger what the step moved and
 * computed. */
void engine_step(struct engine *en, const struct batch *batch, struct row_job *rows,
                 struct sluice_ledger *ledger);

#endif
