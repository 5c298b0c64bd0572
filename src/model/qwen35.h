/* Qwen3.5's private parts, shared by its trunk (qwen35.c) and its MTP head (qwen35_mtp.c). */
#ifndef SLUICE_MODEL_QWEN35_H
#define SLUICE_MODEL_QWEN35_H

#include "model/layers.h"
#include "model/rotary.h"

struct qwen35_layer {
    bool attention;
    int kv_layer; /* attention: index among the KV layers */
    size_t state,
        conv; /* delta net: offsets of S and of the convolution's inputs in a sequence's state, in bytes */
    float *norm, *ffn_norm; /* [hidden] */
    struct mlp mlp;

    struct mat *q, *k, *v, *o; /* attention; q yields [n_heads, q | gate] */
    float *q_norm, *k_norm;    /* [head_dim] */

    struct mat *in_qkv, *in_z, *in_a, *in_b, *out;
    float *conv_weight;         /* [channels, kernel] */
    float *neg_exp_a, *dt_bias; /* [n_v_heads] */
    float *out_norm;            /* [v_dim] */
};

/* The multi-token prediction head: one attention layer that drafts the token after next (qwen35_mtp.c). */
struct qwen35_mtp {
    struct mat *fc;                             /* [hidden, 2 * hidden] over [embedding | hidden state] */
    float *embed_norm, *hidden_norm, *out_norm; /* [hidden] */
    struct qwen35_layer layer;                  /* its KV layer comes after the trunk's */
    float *pair;                                /* [T, 2 * hidden] */
};

struct qwen35 {
    struct rope rope;
    struct qwen35_layer *layers; /* [n_layers] */
    struct ends ends;
    int n_k_heads, n_v_heads, k_dim, v_dim, kernel; /* of the delta net */
    int channels;                                   /* 2 * n_k_heads * k_dim + n_v_heads * v_dim */
    bool tiled;                                     /* value head v uses key head v mod n_k_heads */
    float norm_plus;                                /* 1 for zero-centred norms */

    /* activations; T = tokens of the step */
    float *x, *h;          /* [T, hidden] */
    float *qg;             /* [T, n_heads, 2 * head_dim] */
    float *q, *gate, *att; /* [T, n_heads, head_dim] */
    float *k, *v;          /* [T, n_kv_heads, head_dim] */
    float *raw, *mixed;    /* [T, channels] before and after the convolution */
    float *z, *o;          /* [T, n_v_heads, v_dim] */
    float *a, *b;          /* [T, n_v_heads] */
    struct mlp_buffers mlp;
    struct qwen35_mtp mtp;
};

/* The current layer's norms, mixer and MLP. */
int qwen35_layer_weights(struct model *m, struct weights *w, struct qwen35_layer *layer, struct err *e);
/* x += mixer(norm(x)); x += mlp(norm(x)) for the step's tokens; i names the layer to probes. */
void qwen35_layer_step(struct model *m, const struct step *s, const struct qwen35_layer *w, int i);

bool qwen35_has_mtp(const struct model_file *f, int n_layers);
int qwen35_mtp_weights(struct model *m, struct weights *w, struct err *e);
void qwen35_mtp_buffers(struct model *m, struct scratch *s, int max_tokens);
void qwen35_draft(struct model *m, const struct step *s, const float *hidden, float *out);

#endif
