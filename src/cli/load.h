/* What the commands that run a model share: the engine's options, and opening a model with its progress
 * shown. */
#ifndef SLUICE_CLI_LOAD_H
#define SLUICE_CLI_LOAD_H

#include "cli/options.h"
#include "file/model_file.h"
#include "sluice.h"

/* Entries of an option table for the fields of `struct sluice_options o` that suit every command. */
#define ENGINE_OPTIONS(o)                                                                               \
    {.group = "Engine"},                                                                                \
        {.name = "threads",                                                                             \
         .num = &(o).threads,                                                                           \
         .min = 0,                                                                                      \
         .max = 1024,                                                                                   \
         .initial = "one a CPU",                                                                        \
         .value = "N",                                                                                  \
         .help = "threads that compute a step"},                                                        \
        {.name = "cpu-level",                                                                           \
         .text = &(o).cpu_level,                                                                        \
         .choices = "reference|avx2|avx512",                                                            \
         .initial = "best",                                                                             \
         .value = "LEVEL",                                                                              \
         .help = "instruction set, at most what the CPU has"},                                          \
        {.name = "kv-cache-dtype",                                                                      \
         .text = &(o).kv_dtype,                                                                         \
         .choices = "auto|fp16|bf16|fp32",                                                              \
         .initial = "auto",                                                                             \
         .value = "TYPE",                                                                               \
         .help = "type of cached keys and values; auto = fp16"},                                        \
    {                                                                                                   \
        .name = "memory-utilization", .real = &(o).memory_utilization, .min = 0.01, .max = 1,           \
        .initial = "0.9", .value = "F", .help = "share of the memory that everything together may take" \
    }

/* Plans and loads `file`, with a progress line on stderr when that is a terminal and the plan as one table
 * when `verbose`. NULL after printing the error as "sluice COMMAND: …". */
struct sluice *load_engine(const char *command, const struct model_file *file, struct sluice_options *o,
                           bool verbose);

/* Prints the memory plan to stderr. */
void print_plan(const struct sluice *s);

#endif
