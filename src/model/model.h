/* A model: an architecture's arithmetic over weights that live in a back end. It knows nothing of requests:
 * a step comes in as a struct batch, logits go out.
 *
 * An architecture is one file (llama.c, …) that fills one struct arch, and one row of the table in model.c.
 */
#ifndef SLUICE_MODEL_MODEL_H
#define SLUICE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "file/model_file.h"
#include "ops/ops.h"

/* What every architecture has, read from the file and checked. The rest is the architecture's own. */
struct model_config {
    int vocab, hidden, n_layers;
    int n_heads, n_kv_heads, head_dim; /* of attention layers */
    int ffn;                           /* inner width of the MLP */
    int max_positions;                 /* longest context the model was made for */
    float eps;                         /* of the norms */
    bool tied;                         /* the output head is the embedding */
    int n_kv_layers;                   /* layers with keys and values */
    size_t state_bytes;                /* recurrent state of one sequence; 0 for pure attention */
    int max_cols;                      /* widest matrix input: what ops->reserve needs */
};

/* Everything one step reads and writes besides the weights. */
struct step {
    const struct batch *batch;
    struct kv_cache *kv;
    void *state;   /* slot 0 of the recurrent states [n_slots, state_bytes]; NULL if the model has none */
    float *logits; /* [batch->n_logits, vocab], back-end memory */
};

/* Bytes of one token's keys and values of all layers in a cache of this type. */
size_t model_kv_token_bytes(const struct model_config *c, enum dtype dtype);
/* A cache for such a model, without its memory (data): n_blocks * block_size * model_kv_token_bytes bytes. */
struct kv_cache model_kv_cache(const struct model_config *c, enum dtype dtype, int n_blocks, int block_size);

struct model;

/* Tests look inside a step through a probe: data [rows, cols] in back-end memory, valid during the call.
 * `name` is "embed", "layer", "final_norm", "q_proj" …; layer is -1 where there is none. */
typedef void model_probe(void *arg, struct backend *b, const char *name, int layer, const float *data,
                         int rows, int cols);

enum model_flags {
    MODEL_MTP =
        1, /* load the multi-token prediction head, where the file has one, with a KV layer of its own */
    MODEL_STATE_BF16 = 2, /* recurrent states in bf16 instead of fp32 … */
    MODEL_CONV_BF16 = 4,  /* … and what convolutions remember */
};
/* A flag too: matrices are encoded in this type as they are loaded, as quant/mix.h says, unless the file has
 * them in as few bits already. */
#define MODEL_QUANTIZATION(dtype) ((unsigned)((dtype) + 1) << 8)

/* Reads and checks the architecture, the configuration and the list of weights (names, shapes, types); loads
 * nothing. *e names what is unsupported or missing. The file must stay open until model_load returns. */
struct model *model_open(const struct model_file *file, struct backend *b, unsigned flags, struct err *e);
void model_free(struct model *m);

const char *model_arch(const struct model *m);
const struct model_config *model_config(const struct model *m);
int64_t model_params(const struct model *m); /* number of weights */
size_t model_weight_bytes(
    const struct model *m); /* memory the weights take in the back end: the plan's first line */
size_t model_stream_bytes(const struct model *m); /* bytes of matrices that a step with logits streams */
/* Bytes of activations for steps of up to max_tokens tokens and max_logits rows of logits (the logits
 * themselves not counted). */
size_t model_scratch_bytes(const struct model *m, int max_tokens, int max_logits);

/* Copies the weights into the back end. progress (may be NULL) is called with bytes done of
 * model_weight_bytes. */
int model_load(struct model *m, void (*progress)(void *arg, size_t done, size_t total), void *arg,
               struct err *e);
/* Allocates the activations. After it, model_step allocates nothing. */
int model_reserve(struct model *m, int max_tokens, int max_logits, struct err *e);

/* Runs one step: batch->n_tokens <= max_tokens, batch->n_logits <= max_logits, ids and blocks checked by the
 * caller. */
void model_step(struct model *m, const struct step *s);
/* Hidden states after the final norm of the last model_step's rows of logits [n_logits, hidden], back-end
 * memory. NULL where the architecture does not draft. */
const float *model_hidden(const struct model *m);
bool model_has_mtp(const struct model *m); /* loaded */
/* Runs the MTP head over pairs: the batch's tokens x and hidden states [n_tokens, hidden] of the tokens
 * before them (in back-end memory). s->logits as in model_step; out [n_tokens, hidden] (back end, not
 * aliasing hidden) receives the head's own normed states, which are the hidden states of a further draft.
 * Needs model_has_mtp. */
void model_draft(struct model *m, const struct step *s, const float *hidden, float *out);
void model_set_probe(struct model *m, model_probe *probe, void *arg);

/* Visits every matrix that a step streams (law 1's test counts their reads). */
void model_each_mat(const struct model *m, void (*fn)(void *arg, const char *name, const struct mat *w),
                    void *arg);

#endif
