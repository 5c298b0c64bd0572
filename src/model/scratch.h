/* The activation planner: an architecture declares its buffers through it, once to add up and once to
 * allocate. Private to src/model. */
#ifndef SLUICE_MODEL_SCRATCH_H
#define SLUICE_MODEL_SCRATCH_H

#include "model/arch.h"

struct scratch {
    struct model *m;
    bool allocate;
    size_t bytes;
    bool failed;
    struct err *e;
};

/* A buffer of rows * cols floats in back-end memory; NULL while planning or after a failure. */
static inline float *scratch_floats(struct scratch *s, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    s->bytes += bytes;
    if (!s->allocate || s->failed)
        return NULL;
    float *p = model_buffer(s->m, bytes, s->e);
    s->failed = !p;
    return p;
}

#endif
