/* The model alone, without scheduler or sampler: one sequence at a time in one step, logits out. For commands
 * that look at what a model computes (eval, quantize). */
#ifndef SLUICE_CLI_FORWARD_H
#define SLUICE_CLI_FORWARD_H

#include "model/model.h"

struct forward;

struct forward_options {
    const char *cpu_level;                           /* NULL = best */
    int threads;                                     /* 0 = one a CPU */
    int max_tokens;                                  /* the longest sequence */
    int max_logits;                                  /* rows of logits of a sequence, at most */
    const char *kv_dtype, *state_dtype, *conv_dtype; /* as in sluice_options */
    size_t others;                                   /* bytes of memory that the caller needs besides */
    void (*progress)(void *arg, size_t done, size_t total); /* while loading; may be NULL */
    void *progress_arg;
};

/* Adds up the memory that it takes, refuses what is more than there is, loads. The file may be closed
 * afterwards. NULL and *e on failure. */
struct forward *forward_open(const struct model_file *file, const struct forward_options *o, struct err *e);
void forward_close(struct forward *f); /* f may be NULL */

struct model *forward_model(struct forward *f);
struct backend *forward_backend(struct forward *f);

/* Runs ids [n] (1 … max_tokens, each below the vocabulary) from position 0. Returns the logits of the last
 * n_logits of them [n_logits, vocab], good until the next run. */
const float *forward_run(struct forward *f, const int32_t *ids, int n, int n_logits);

#endif
