/* llama.cpp's importance matrices: for each weight matrix the mean square of each input, as its imatrix tool
 * collects them; in GGUF (tensors NAME.in_sum2 and NAME.counts), or in the older format of its own. */
#ifndef SLUICE_FILE_IMATRIX_H
#define SLUICE_FILE_IMATRIX_H

#include <stdint.h>

#include "base/error.h"

struct imatrix;

struct imatrix *imatrix_open(const char *path, struct err *e); /* NULL and *e on failure */
void imatrix_close(struct imatrix *im);                        /* may be NULL */

/* *out = importance [cols] of the tensor that GGUF calls `name`, owned by im; NULL if the file has none. -1
 * and *e if it has one of another width. */
int imatrix_find(const struct imatrix *im, const char *name, int64_t cols, const float **out, struct err *e);

#endif
