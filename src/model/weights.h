/* The weight loader: an architecture declares its weights through it, once to plan and once to load. A
 * declaration names the tensor in both worlds and its exact shape; anything else is refused with the
 * tensor's name. Private to src/model. */
#ifndef SLUICE_MODEL_WEIGHTS_H
#define SLUICE_MODEL_WEIGHTS_H

#include "model/arch.h"

struct weights {
    struct model *m;
    bool load; /* false: check and add up; true: allocate and copy */
    const char
        *hf_prefix; /* what stands for "model." in Hugging Face names: "model.language_model." in some */
    char hf_layer[80], gguf_layer[80]; /* what stands before names that start with '.' */
    size_t done, total;
    void (*progress)(void *arg, size_t done, size_t total);
    void *progress_arg;
    const struct tensor **used; /* [n_used]: to tell which tensors of the file nobody asked for */
    int n_used, cap_used;
};

/* How a tensor is called in each world. "model." at the start of hf is replaced by the file's prefix; names
 * that start with '.' belong to the current layer. A NULL name: that world has no such tensor. */
struct weight_name {
    const char *hf, *gguf;
};

/* Makes (hf, hf_index) and (gguf, gguf_index) the current layer: "model.layers" with 3 and "blk" with 3. */
void weights_layer(struct weights *w, const char *hf, int hf_index, const char *gguf, int gguf_index);

enum weight_flags {
    WEIGHT_OPTIONAL = 1, /* absent: *out stays NULL */
    WEIGHT_LOOKUP = 2,   /* rows are looked up, not streamed (an untied embedding) */
    WEIGHT_NEG_EXP = 4,  /* a vector x is stored as -exp(x) */
};

/* Declares the matrix [rows, cols]. row_map as in struct mat_source. */
int weights_mat(struct weights *w, struct weight_name name, int flags, int64_t rows, int64_t cols,
                const int32_t *row_map, struct mat **out, struct err *e);

/* Declares a vector or small array of n floats in all (any shape with that many elements), stored as fp32 in
 * back-end memory with `plus` added to each element. row_map, if given, is [n]. */
int weights_vec(struct weights *w, struct weight_name name, int flags, int64_t n, float plus,
                const int32_t *row_map, float **out, struct err *e);

/* Logs one warning if the file holds tensors that were not declared and whose name has none of the prefixes
 * (NULL-terminated list). */
void weights_warn_unused(const struct weights *w, const char *const *ignored);

#endif
