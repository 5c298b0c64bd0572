/* The number types that a command line may choose: of keys and values, and of recurrent states. Weights keep
 * the types of their file, and arithmetic is in float32. */
#ifndef SLUICE_ENGINE_DTYPES_H
#define SLUICE_ENGINE_DTYPES_H

#include "base/error.h"
#include "file/model_file.h"
#include "model/model.h"
#include "sluice.h"

struct dtypes {
    enum dtype kv;          /* DT_F16, DT_BF16, DT_F32 or DT_I8 */
    enum dtype state, conv; /* DT_F32 or DT_BF16 */
};

/* From the options; -1 and *e where one asks for what there is not, or for what would not be true. */
int dtypes_choose(const struct model_file *file, const struct sluice_options *o, struct dtypes *d,
                  struct err *e);

/* The flags of model_open that ask for them. */
unsigned dtypes_model_flags(const struct dtypes *d);

/* As vLLM's flags call it: "float16", "int8_per_token_head". */
const char *dtypes_name(enum dtype dtype);

#endif
