/* A peer of `sluice bench`: another program's benchmark, run as a command between our own repeats, so that
 * both meet the same machine at the same time. */
#ifndef SLUICE_CLI_BENCH_PEER_H
#define SLUICE_CLI_BENCH_PEER_H

#include "base/error.h"

/* What a repeat is about: the values of the command's placeholders {model}, {batch}, {prompt}, {gen} and
 * {threads}. */
struct peer_work {
    const char *model;
    int batch, prompt, gen, threads;
};

struct peer_speed {
    double prefill_tok_s, decode_tok_s;
};

/* Runs `command` with the shell and reads the speeds from its standard output: lines that are JSON objects
 * with speed_pp and speed_tg (llama-batched-bench --output-format jsonl), or with n_prompt, n_gen and avg_ts
 * (llama-bench -o jsonl, one object for prefill, one for decode). -1 and *e if it fails or says neither. */
int peer_run(const char *command, const struct peer_work *w, struct peer_speed *out, struct err *e);

#endif
