/* The shapes of released models, for `sluice make-model`: the sizes in their public config.json files, and
 * the metadata and tensors that a GGUF of such a model holds. */
#ifndef SLUICE_CLI_MODEL_LIKE_H
#define SLUICE_CLI_MODEL_LIKE_H

#include "file/gguf_write.h"

struct model_like {
    const char *name, *title; /* "qwen3.5-4b", "Qwen3.5 4B" */
    const char *arch, *pre;   /* general.architecture, tokenizer.ggml.pre */
    int layers, hidden, ffn, heads, kv_heads, head_dim, vocab, context;
    int rope_dims; /* of head_dim */
    float rope_theta, eps;
    bool tied;                                 /* no output.weight */
    int k_heads, v_heads, state_dim, interval; /* qwen35: the delta net; each interval-th layer attends */
    bool mtp;                                  /* qwen35: a block more, which drafts */
};

#define MODEL_LIKE_NAMES "qwen3.5-0.8b|qwen3.5-2b|qwen3.5-4b|qwen3.5-9b|qwen3.5-27b|qwen3-0.6b|smollm2-135m"

/* NULL if there is none of that name. */
const struct model_like *model_like_find(const char *name);

/* Declares the metadata but for the tokenizer's; dtype is that of the matrices. */
void model_like_metadata(const struct model_like *m, enum dtype dtype, struct gguf_writer *w);

/* What a tensor's random values are like. */
enum weight_kind {
    WEIGHTS_MATRIX, /* mean 0, variance 1 / columns, in the type that was asked for; the others are F32 */
    WEIGHTS_NORM,   /* about 1 */
    WEIGHTS_CONV,   /* mean 0, variance 1 / columns */
    WEIGHTS_DECAY,  /* ssm_a: -16 … -1 */
    WEIGHTS_DT,     /* ssm_dt: softplus of it is 0.001 … 0.1 */
};

/* Calls add for each tensor in the file's order. shape [n_dims] outermost first. */
void model_like_tensors(const struct model_like *m,
                        void (*add)(void *arg, const char *name, enum weight_kind kind, int n_dims,
                                    const int64_t *shape),
                        void *arg);

#endif
