/* One reader for a model's parameters, whether they stand in config.json or in GGUF metadata: each getter is
 * given the key of both worlds. Private to src/model. */
#ifndef SLUICE_MODEL_PARAMS_H
#define SLUICE_MODEL_PARAMS_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "file/model_file.h"

struct params {
    const struct model_file *file;
    const json_t *config; /* HF: the text model's object (text_config where there is one); NULL for GGUF */
    const json_t *root;   /* HF: the whole config.json */
    const char *prefix;   /* GGUF: "llama", put before each key with a dot */
};

/* Getters: *out keeps its value when the key is absent, unless `required`. A NULL key means the other world
 * alone has it. Values of the wrong type or outside min … max are errors that name the key and the file. */
int params_int(const struct params *p, const char *hf, const char *gguf, bool required, int min, int max,
               int *out, struct err *e);
int params_float(const struct params *p, const char *hf, const char *gguf, bool required, double min,
                 double max, float *out, struct err *e);
int params_bool(const struct params *p, const char *hf, const char *gguf, bool *out, struct err *e);
/* NULL if absent or null; owned by the file. A value of another type is an error. */
int params_str(const struct params *p, const char *hf, const char *gguf, const char **out, struct err *e);

#endif
