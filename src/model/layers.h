/* Parts that several architectures share: the gated MLP, the embedding and the output head. Private to
 * src/model. */
#ifndef SLUICE_MODEL_LAYERS_H
#define SLUICE_MODEL_LAYERS_H

#include "model/arch.h"
#include "model/scratch.h"
#include "model/weights.h"

/* down(act(gate h) * (up h)) */
struct mlp {
    struct mat *gate, *up, *down;
};

/* Activations of the MLP, shared by all layers. */
struct mlp_buffers {
    float *gate, *up; /* [T, ffn] */
};

/* The current layer's mlp.{gate,up,down}_proj / ffn_{gate,up,down}. */
int mlp_weights(struct model *m, struct weights *w, struct mlp *mlp, struct err *e);
void mlp_buffers(struct model *m, struct scratch *s, int max_tokens, struct mlp_buffers *b);
/* x += the MLP of h (x, h: [n, hidden]); with out instead of x: out = the MLP of h. gelu: tanh-approximated
 * GELU instead of SiLU. */
void mlp_step(struct model *m, const struct mlp *mlp, const struct mlp_buffers *b, int n, const float *h,
              bool gelu, float *out, bool add);

/* The embedding, the final norm and the head (the embedding again where tied). */
struct ends {
    struct mat *embed, *head;
    float *final_norm;   /* [hidden] */
    float *last;         /* [max_logits, hidden] */
    int32_t *logit_rows; /* [max_logits] which rows of x yield logits */
};

/* norm_plus is added to the final norm's weights. */
int ends_weights(struct model *m, struct weights *w, float norm_plus, struct ends *ends, struct err *e);
void ends_buffers(struct model *m, struct scratch *s, int max_logits, struct ends *ends);
void ends_release(struct ends *ends);
/* Gathers the rows of x [T, hidden] that yield logits into ends->last. */
void ends_gather(struct model *m, const struct batch *batch, const float *x, struct ends *ends);
/* Gathers the rows of x that yield logits, norms them and multiplies with the head into s->logits. */
void ends_logits(struct model *m, const struct step *s, const float *x, struct ends *ends);

/* Reads what every decoder has: hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, max_positions, eps,
 * tied, vocab; sets max_cols for attention and MLP. Refuses an activation other than `act` and mixtures of
 * experts. act_key is config.json's key for it. */
int decoder_config(struct model *m, const struct params *p, const char *act_key, const char *act,
                   struct err *e);

#endif
