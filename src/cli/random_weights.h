/* Random weights at the speed of a disk: any part of a tensor by itself, from a counter, so that threads can
 * make parts in any order and the file depends on the seed alone. */
#ifndef SLUICE_CLI_RANDOM_WEIGHTS_H
#define SLUICE_CLI_RANDOM_WEIGHTS_H

#include "cli/model_like.h"

struct random_tensor {
    enum dtype dtype; /* DT_BF16, DT_Q8_0, DT_Q4_0 or DT_Q4_K for a matrix, DT_F32 for the rest */
    enum weight_kind kind;
    int64_t cols;
    uint64_t key; /* tells tensors and seeds apart: random_key */
};

uint64_t random_key(uint64_t seed, int tensor);

/* Parts begin and end at multiples of this, or at the tensor's end. */
size_t random_unit_bytes(enum dtype dtype);

/* Makes bytes offset … offset+n-1 of the tensor. */
void random_weights(const struct random_tensor *t, size_t offset, void *out, size_t n);

#endif
