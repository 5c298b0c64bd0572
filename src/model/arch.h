/* What an architecture's file implements, and the helpers it is written with. Private to src/model.
 *
 * Weights and activations are both declared by one function that runs twice: first to plan (check and add
 * up), then to allocate and load. So the plan cannot disagree with what is done. */
#ifndef SLUICE_MODEL_ARCH_H
#define SLUICE_MODEL_ARCH_H

#include "model/model.h"
#include "model/params.h"

struct weights; /* the loader: weights.h */
struct scratch; /* the activation planner: scratch.h */

struct arch {
    const char *name;              /* "qwen2" */
    const char *const *gguf_names; /* general.architecture values, NULL-terminated */
    const char *const *hf_names;   /* config.json architectures[0] values, NULL-terminated */
    size_t priv_bytes;             /* size of the architecture's own struct, zeroed at open */

    /* Fills m->config and the private struct from the file's parameters. */
    int (*configure)(struct model *m, const struct params *p, struct err *e);
    /* Declares every weight (weights_mat, weights_vec). */
    int (*weights)(struct model *m, struct weights *w, struct err *e);
    /* Declares every activation buffer (scratch_floats). */
    void (*buffers)(struct model *m, struct scratch *s, int max_tokens, int max_logits);
    void (*step)(struct model *m, const struct step *s);
    /* NULL where the architecture has no drafting head: see model_hidden and model_draft. */
    const float *(*hidden)(const struct model *m);
    void (*draft)(struct model *m, const struct step *s, const float *hidden, float *out);
    void (*release)(
        struct model *m); /* frees what configure allocated; weights and buffers are freed for it */
};

extern const struct arch arch_llama, arch_qwen2, arch_qwen3, arch_qwen35, arch_gemma3;

struct owned_mat {
    struct mat *w;
    char *name;
    bool streamed; /* false for an embedding that is only looked up */
};

struct owned_buffer {
    void *p;
    size_t bytes;
};

struct model {
    const struct arch *arch;
    struct model_config config;
    const struct model_file *file; /* until loaded */
    struct backend *b;
    int quantization;                   /* type for matrices as they are loaded; -1 = as in the file */
    bool want_mtp, has_mtp;             /* asked for; asked for and in the file */
    enum dtype state_dtype, conv_dtype; /* of recurrent states */
    void *priv;                         /* the architecture's own struct */

    int64_t n_params;
    size_t weight_bytes, stream_bytes;
    struct owned_mat *mats;       /* [n_mats] */
    struct owned_buffer *buffers; /* [n_buffers]: vectors and activations */
    int n_mats, cap_mats, n_buffers, cap_buffers;

    model_probe *probe;
    void *probe_arg;
};

/* Allocates a zeroed back-end buffer that model_free releases. NULL and *e if the back end has no memory. */
void *model_buffer(struct model *m, size_t bytes, struct err *e);

static inline void model_show(const struct model *m, const char *name, int layer, const float *data, int rows,
                              int cols)
{
    if (m->probe)
        m->probe(m->probe_arg, m->b, name, layer, data, rows, cols);
}

#endif
