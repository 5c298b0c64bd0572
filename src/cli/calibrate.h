/* The calibration pass: runs a text through a model and keeps, for each weight matrix, how its inputs vary
 * together (quant/feedback.h). */
#ifndef SLUICE_CLI_CALIBRATE_H
#define SLUICE_CLI_CALIBRATE_H

#include "base/pool.h"
#include "file/model_file.h"
#include "quant/feedback.h"

struct calibration;

struct calibrate_options {
    const char *text_path;
    int context, chunks; /* tokens of a chunk; chunks at most, 0 = all */
    int threads;
    bool show; /* progress on stderr */
};

/* NULL and *e on failure. */
struct calibration *calibrate(const struct model_file *file, const struct calibrate_options *o,
                              struct err *e);
void calibration_free(struct calibration *c); /* may be NULL */

/* What is known about the inputs of the file's tensor `name`. NULL if nothing is: it is no matrix of a step.
 * `*whole` tells whether errors may be fed back; otherwise its importance is all that should be used (a head
 * that is also the embedding, or too few inputs). */
struct error_feedback *calibration_find(struct calibration *c, const char *name, bool *whole);

#endif
