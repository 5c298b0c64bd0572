/* The activation planner: an architecture declares its buffers through it, once to add up and once to
 * allocate. Private to src/model. */
#ifndef SLUICE_MODEL_SCRATCH_H
#define SLUICE_MODEL_SCRATCH_H

#include "model/arch.h"

struct scratch {
    struct model *m;
    float *base;     /* where the buffers lie, in back-end memory; NULL while adding up */
    size_t at, most; /* bytes from base: where the next buffer goes, and where the farthest one ends */
};

/* A buffer of rows * cols floats; NULL while adding up. */
static inline float *scratch_floats(struct scratch *s, int64_t rows, int64_t cols)
{
    size_t begin = s->at;
    s->at += ((size_t)rows * (size_t)cols * sizeof(float) + 63) / 64 * 64;
    s->most = s->at > s->most ? s->at : s->most;
    return s->base ? s->base + begin / sizeof(float) : NULL;
}

/* Buffers declared from here on take the place of those declared since `mark` (an earlier s->at): for parts
 * of a layer of which one is over before the next begins. */
static inline void scratch_reuse(struct scratch *s, size_t mark)
{
    s->at = mark;
}

#endif
