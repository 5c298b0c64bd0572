/* A model of the fixtures, opened as an engine. */
#ifndef SLUICE_TESTS_OPENED_H
#define SLUICE_TESTS_OPENED_H

#include "file/model_file.h"
#include "sluice.h"
#include "unit.h"

static inline struct sluice *open_model(const char *path, const struct sluice_options *o)
{
    struct err e = {0};
    struct model_file *f = model_file_open(fixture(path), &e);
    struct sluice *s = f ? sluice_open(f, o, &e) : NULL;
    if (!s)
        fail_msg("%s", e.msg);
    model_file_close(f);
    return s;
}

#endif
