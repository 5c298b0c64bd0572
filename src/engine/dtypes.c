/* One table of names, vLLM's and the short ones, with the uses that each type has; and --dtype, which there
 * chooses what weights and arithmetic are rounded to. Here nothing is rounded, so it can only be agreed with:
 * it must name the type that the file's plain matrices have, or float32, which loses nothing of any. What it
 * then decides is the type of keys and values, where --kv-cache-dtype leaves that open. */
#include "engine/dtypes.h"

#include <string.h>

enum { FOR_KV = 1, FOR_STATE = 2, FOR_MODEL = 4 };

static const struct {
    const char *name;
    enum dtype dtype;
    unsigned uses;
} known[] = {
    {"float16", DT_F16, FOR_KV | FOR_MODEL},
    {"bfloat16", DT_BF16, FOR_KV | FOR_STATE | FOR_MODEL},
    {"float32", DT_F32, FOR_KV | FOR_STATE | FOR_MODEL},
    {"int8_per_token_head", DT_I8, FOR_KV},
    {"half", DT_F16, FOR_MODEL},
    {"float", DT_F32, FOR_MODEL},
    {"fp16", DT_F16, FOR_KV},
    {"bf16", DT_BF16, FOR_KV | FOR_STATE},
    {"fp32", DT_F32, FOR_KV | FOR_STATE},
    {"int8", DT_I8, FOR_KV},
    {"q8_0", DT_I8, FOR_KV},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

const char *dtypes_name(enum dtype dtype)
{
    int i = 0;
    while (known[i].dtype != dtype)
        i++;
    return known[i].name;
}

unsigned dtypes_model_flags(const struct dtypes *d)
{
    return (d->state == DT_BF16 ? MODEL_STATE_BF16 : 0) | (d->conv == DT_BF16 ? MODEL_CONV_BF16 : 0);
}

/* NULL and "auto" leave *out as it is. `there` lists what there is, for the message. */
static int choose(const char *option, const char *name, unsigned use, const char *there, enum dtype *out,
                  struct err *e)
{
    if (!name || strcmp(name, "auto") == 0)
        return 0;
    for (int i = 0; i < N_KNOWN; i++)
        if (known[i].uses & use && strcmp(name, known[i].name) == 0)
            return *out = known[i].dtype, 0;
    return err_set(e, ERR_UNSUPPORTED, "--%s: there is no \"%.40s\" here: use %s", option, name, there);
}

/* The type that most bytes of the file's matrices have which are not quantised; DT_COUNT if all are. Vectors,
 * and matrices as thin as a convolution's, are float32 in many files whatever else is in them. */
static enum dtype plain_type(const struct model_file *file)
{
    static const enum dtype plain[] = {DT_BF16, DT_F16, DT_F32};
    enum dtype best = DT_COUNT;
    size_t most = 0;
    for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++) {
        size_t sum = 0;
        for (int i = 0; i < file->n_tensors; i++) {
            const struct tensor *t = &file->tensors[i];
            if (t->dtype == plain[k] && t->n_dims == 2 && t->shape[0] >= 64 && t->shape[1] >= 64)
                sum += t->bytes;
        }
        if (sum > most) {
            most = sum;
            best = plain[k];
        }
    }
    return best;
}

int dtypes_choose(const struct model_file *file, const struct sluice_options *o, struct dtypes *d,
                  struct err *e)
{
    *d = (struct dtypes){.kv = DT_F16, .state = DT_F32, .conv = DT_F32};
    enum dtype asked = DT_COUNT;
    if (choose("dtype", o->dtype, FOR_MODEL, "auto, float16, bfloat16 or float32", &asked, e))
        return -1;
    if (asked != DT_COUNT) {
        enum dtype plain = plain_type(file);
        if (asked != DT_F32 && plain != DT_COUNT && asked != plain)
            return err_set(
                e, ERR_UNSUPPORTED,
                "--dtype %s: the model's matrices are %s, and weights keep the type of their file: "
                "use auto, %s or float32 (arithmetic is in float32 in any case); --quantization makes "
                "weights smaller, --kv-cache-dtype keys and values",
                o->dtype, dtypes_name(plain), dtypes_name(plain));
        d->kv = asked;
    }
    const char *states = "auto (float32), float32 or bfloat16";
    return choose("kv-cache-dtype", o->kv_dtype, FOR_KV,
                  "auto (float16), float16, bfloat16, float32 or, in 8 bits, int8_per_token_head", &d->kv,
                  e) ||
                   choose("mamba-ssm-cache-dtype", o->state_dtype, FOR_STATE, states, &d->state, e) ||
                   choose("mamba-cache-dtype", o->conv_dtype, FOR_STATE, states, &d->conv, e)
               ? -1
               : 0;
}
