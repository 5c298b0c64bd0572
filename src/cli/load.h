/* What the commands that run a model share: the engine's options, and opening a model with its progress
 * shown. */
#ifndef SLUICE_CLI_LOAD_H
#define SLUICE_CLI_LOAD_H

#include "cli/options.h"
#include "file/model_file.h"
#include "quant/mix.h"
#include "sluice.h"

/* Entries of an option table for the fields of `struct sluice_options o` that suit every command. */
#define ENGINE_OPTIONS(o)                                                                                  \
    {.group = "Engine"},                                                                                   \
        {.name = "threads",                                                                                \
         .num = &(o).threads,                                                                              \
         .min = 0,                                                                                         \
         .max = 1024,                                                                                      \
         .initial = "one a CPU",                                                                           \
         .value = "N",                                                                                     \
         .help = "threads that compute a step"},                                                           \
        {.name = "cpu-level",                                                                              \
         .text = &(o).cpu_level,                                                                           \
         .choices = "reference|avx2|avx512",                                                               \
         .initial = "best",                                                                                \
         .value = "LEVEL",                                                                                 \
         .help = "instruction set, at most what the CPU has"},                                             \
        {.name = "kv-cache-dtype",                                                                         \
         .text = &(o).kv_dtype,                                                                            \
         .choices = "auto|float16|fp16|bfloat16|bf16|float32|fp32|int8_per_token_head|int8|q8_0",          \
         .initial = "auto",                                                                                \
         .value = "TYPE",                                                                                  \
         .help = "type of cached keys and values; auto = float16, int8 = 8 bits and a scale a head"},      \
        {.name = "quantization",                                                                           \
         .alias = "q",                                                                                     \
         .text = &(o).quantization,                                                                        \
         .choices = MIX_NAMES,                                                                             \
         .initial = "as in the file",                                                                      \
         .value = "TYPE",                                                                                  \
         .help = "encode matrices so as they are loaded, if the file has them in more bits"},              \
        {.name = "dtype",                                                                                  \
         .text = &(o).dtype,                                                                               \
         .choices = "auto|half|float16|bfloat16|float|float32",                                            \
         .initial = "auto",                                                                                \
         .value = "TYPE",                                                                                  \
         .help =                                                                                           \
             "must be what the file's matrices have, which are never converted, or float32, in which all " \
             "arithmetic is; cached keys and values follow it"},                                           \
        {.name = "mamba-ssm-cache-dtype",                                                                  \
         .text = &(o).state_dtype,                                                                         \
         .choices = "auto|float32|bfloat16",                                                               \
         .initial = "auto",                                                                                \
         .value = "TYPE",                                                                                  \
         .help = "type of recurrent states; auto = float32"},                                              \
        {.name = "mamba-cache-dtype",                                                                      \
         .text = &(o).conv_dtype,                                                                          \
         .choices = "auto|float32|bfloat16",                                                               \
         .initial = "auto",                                                                                \
         .value = "TYPE",                                                                                  \
         .help = "type of what convolutions remember; auto = float32"},                                    \
        {.name = "memory-utilization",                                                                     \
         .real = &(o).memory_utilization,                                                                  \
         .min = 0.01,                                                                                      \
         .max = 1,                                                                                         \
         .initial = "0.9",                                                                                 \
         .value = "F",                                                                                     \
         .help = "share of the memory that everything together may take"},                                 \
    {                                                                                                      \
        .name = "gpu-memory-utilization", .real = &(o).memory_utilization, .min = 0.01, .max = 1,          \
        .initial = "0.9", .value = "F", .help = "the same, by vLLM's name"                                 \
    }

/* Entries for those that size the pools of a server. kv_bytes (uint64_t) goes to kv_cache_bytes, and a
 * negative max_model_len, which is "auto", becomes 0. */
#define POOL_OPTIONS(o, kv_bytes)                                                                  \
    {.name = "max-model-len",                                                                      \
     .num = &(o).max_model_len,                                                                    \
     .min = 0,                                                                                     \
     .auto_is = "auto",                                                                            \
     .initial = "the model's, or what fits",                                                       \
     .value = "N",                                                                                 \
     .help = "context: tokens of prompt and answer"},                                              \
        {.name = "max-num-seqs",                                                                   \
         .num = &(o).max_num_seqs,                                                                 \
         .min = 0,                                                                                 \
         .max = 65536,                                                                             \
         .initial = "128, or what fits",                                                           \
         .value = "N",                                                                             \
         .help = "requests that share a step"},                                                    \
        {.name = "max-num-batched-tokens",                                                         \
         .num = &(o).max_num_batched_tokens,                                                       \
         .min = 0,                                                                                 \
         .initial = "2048",                                                                        \
         .value = "N",                                                                             \
         .help = "tokens of a step, decoding and prompts together"},                               \
        {.name = "block-size",                                                                     \
         .num = &(o).block_size,                                                                   \
         .min = 0,                                                                                 \
         .max = 1024,                                                                              \
         .initial = "16",                                                                          \
         .value = "N",                                                                             \
         .help = "tokens of a KV block"},                                                          \
        {.name = "kv-cache-memory-bytes",                                                          \
         .big = &(kv_bytes),                                                                       \
         .initial = "from --memory-utilization",                                                   \
         .value = "N",                                                                             \
         .help = "size of the KV cache"},                                                          \
    {                                                                                              \
        .name = "num-gpu-blocks-override", .num = &(o).num_kv_blocks, .min = 0, .max = INT32_MAX,  \
        .initial = "from the size", .value = "N", .help = "exactly so many blocks in the KV cache" \
    }

/* Entry for the host memory of preempted requests. gib (double) goes to swap_bytes by way of swap_bytes_of.
 */
#define SWAP_OPTION(gib)                                                                                     \
    {                                                                                                        \
        .name = "swap-space", .real = &(gib), .min = 0, .max = 1 << 20, .initial = "0", .value = "GIB",      \
        .help =                                                                                              \
            "memory where preempted requests may leave what was computed, when bringing it back costs less " \
            "than computing it again; on a CPU the same memory does more in the KV cache"                    \
    }
static inline size_t swap_bytes_of(double gib)
{
    return (size_t)(gib * 0x1p30);
}

/* Plans and loads `file`, with a progress line on stderr when that is a terminal and the plan as one table
 * when `verbose`. NULL after printing the error as "sluice COMMAND: …". */
struct sluice *load_engine(const char *command, const struct model_file *file, struct sluice_options *o,
                           bool verbose);

#endif
