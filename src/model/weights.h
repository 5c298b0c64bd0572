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
    size_t done, total;
    void (*progress)(void *arg, size_t done, size_t total);
    void *progress_arg;
    const struct tensor **used; /* [n_used]: to tell which tensors of the file nobody asked for */
    int n_used, cap_used;
};

/* How a tensor is called, and in which layer (-1: the names hold no %d). "model." at the start of hf is
 * replaced by the file's prefix. A NULL name: that world has no such tensor. */
struct weight_name {
    const char *hf, *gguf;
    int layer;
};

enum weight_flags {
    WEIGHT_OPTIONAL = 1, /* absent: *out stays NULL */
    WEIGHT_LOOKUP = 2,   /* rows are looked up, not streamed (an untied embedding) */
};

/* Declares the matrix [rows, cols]. row_map as in struct mat_source. */
int weights_mat(struct weights *w, struct weight_name name, int flags, int64_t rows, int64_t cols,
                const int32_t *row_map, struct mat **out, struct err *e);

/* Declares a vector or small array of n floats in all (any shape with that many elements), stored as fp32 in
 * back-end memory with `plus` added to each element. row_map, if given, is [n]. */
int weights_vec(struct weights *w, struct weight_name name, int flags, int64_t n, float plus,
                const int32_t *row_map, float **out, struct err *e);

/* The same, but into host memory at *out [n], which the caller allocated; filled in both passes. Returns 1 if
 * an optional tensor is absent. */
int weights_host(struct weights *w, struct weight_name name, int flags, int64_t n, float *out, struct err *e);

bool weights_has(const struct weights *w, struct weight_name name);

/* Logs one warning if the file holds tensors that were not declared and whose name has none of the prefixes
 * (NULL-terminated list). */
void weights_warn_unused(const struct weights *w, const char *const *ignored);

#endif
