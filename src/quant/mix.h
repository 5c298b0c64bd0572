/* Which type each tensor of a model gets, when most shall have a given one. The rule, in words:
 *
 *   - vectors, norms, convolutions, and the small matrices that steer a delta net's decay (ssm_alpha,
 * ssm_beta) stay as they are: they are next to nothing in bytes and errors in them spread far;
 *   - the embedding and the output head get Q6_K where the others get four bits;
 *   - with Q4_K, half of attn_v and ffn_down get Q6_K (the first and last eighths of the layers and every
 * third between), and attn_qkv gets Q5_K, as in what is known as Q4_K_M;
 *   - rows that are not whole blocks of 256 get the next larger simple type: Q4_K → Q5_0, Q5_K → Q5_1,
 *     Q6_K → Q8_0; and rows that are not whole blocks of 32, F16. */
#ifndef SLUICE_QUANT_MIX_H
#define SLUICE_QUANT_MIX_H

#include "quant/dtype.h"

/* The choices of --type and --quantization. */
#define MIX_NAMES "q8_0|q6_k|q4_k|q4_0|q4_1"

/* The type that a name among MIX_NAMES, f16, bf16 or f32 stands for; -1 for others. */
int mix_type(const char *name);

/* The type for the tensor that GGUF calls `name`, of matrices of rows of `cols`, in a model of n_layers,
 * stored as `from`; `from` itself where it stays. */
enum dtype mix_choose(enum dtype target, const char *name, int n_dims, int64_t cols, int n_layers,
                      enum dtype from);

/* GGUF's number for "most tensors are of this type" (general.file_type). */
uint32_t mix_file_type(enum dtype target);

#endif
