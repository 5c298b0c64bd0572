#include "quant/mix.h"

#include <stdio.h>
#include <string.h>

int mix_type(const char *name)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } types[] = {{"q8_0", DT_Q8_0}, {"q6_k", DT_Q6_K}, {"q4_k", DT_Q4_K}, {"q4_0", DT_Q4_0},
                 {"q4_1", DT_Q4_1}, {"f16", DT_F16},   {"bf16", DT_BF16}, {"f32", DT_F32}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0)
            return (int)types[i].dtype;
    return -1;
}

uint32_t mix_file_type(enum dtype target)
{
    switch (target) {
    case DT_F16:
        return 1;
    case DT_Q4_0:
        return 2;
    case DT_Q4_1:
        return 3;
    case DT_Q8_0:
        return 7;
    case DT_Q4_K:
        return 15;
    case DT_Q6_K:
        return 18;
    case DT_BF16:
        return 32;
    default:
        return 0; /* F32 */
    }
}

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool stays(const char *name, int n_dims)
{
    size_t len = strlen(name);
    return n_dims < 2 || len < 7 || strcmp(name + len - 7, ".weight") != 0 || has(name, "norm") ||
           has(name, "ssm_conv1d") || has(name, "ssm_alpha") || has(name, "ssm_beta");
}

static bool gets_more(const char *name, int n_layers)
{
    int i, eighth = n_layers / 8;
    if (sscanf(name, "blk.%d.", &i) != 1)
        return false;
    return i < eighth || i >= 7 * n_layers / 8 || (i - eighth) % 3 == 2;
}

static enum dtype fitting(enum dtype t, int64_t cols)
{
    if (!dtype_row_fits(t, cols)) {
        switch (t) {
        case DT_Q4_K:
            t = DT_Q5_0;
            break;
        case DT_Q5_K:
            t = DT_Q5_1;
            break;
        case DT_Q6_K:
            t = DT_Q8_0;
            break;
        default:
            break;
        }
    }
    return dtype_row_fits(t, cols) ? t : DT_F16;
}

enum dtype mix_choose(enum dtype target, const char *name, int n_dims, int64_t cols, int n_layers,
                      enum dtype from)
{
    if (stays(name, n_dims))
        return from;
    enum dtype t = target;
    bool four_bits = target == DT_Q4_0 || target == DT_Q4_1 || target == DT_Q4_K;
    if (four_bits && (strcmp(name, "token_embd.weight") == 0 || strcmp(name, "output.weight") == 0))
        t = DT_Q6_K;
    else if (target == DT_Q4_K && has(name, ".attn_qkv."))
        t = DT_Q5_K;
    else if (target == DT_Q4_K && (has(name, ".attn_v.") || has(name, ".ffn_down.")) &&
             gets_more(name, n_layers))
        t = DT_Q6_K;
    return fitting(t, cols);
}
