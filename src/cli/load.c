#include "cli/load.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

struct progress {
    double shown; /* clock_now() of the last line; 0 = none yet */
    bool tty;
};

static void show_progress(void *arg, size_t done, size_t total)
{
    struct progress *p = arg;
    double now = clock_now();
    if (!p->tty || (done < total && now - p->shown < 0.1))
        return;
    p->shown = now;
    fprintf(stderr, "\rLoading %5.1f of %.1f MB", (double)done / 1e6, (double)total / 1e6);
    if (done >= total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

void print_plan(const struct sluice *s)
{
    const struct sluice_plan *p = sluice_plan(s);
    const struct sluice_info *info = sluice_info(s);
    const struct {
        const char *what;
        size_t bytes;
    } rows[] = {
        {"weights", p->weights}, {"KV pool", p->kv_pool}, {"state", p->state},       {"scratch", p->scratch},
        {"logits", p->logits},   {"total", p->total},     {"granted", p->available},
    };
    fprintf(stderr, "%s: %d layers, %.1f M parameters, %s, %d threads\n", info->arch, info->n_layers,
            (double)info->n_params / 1e6, info->backend, p->threads);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(stderr, "  %-8s %10.1f MB\n", rows[i].what, (double)rows[i].bytes / 1e6);
    fprintf(stderr, "  %d requests a step of up to %d tokens; %d tokens a request; %d KV blocks of %d\n",
            p->max_num_seqs, p->max_num_batched_tokens, p->max_model_len, p->kv_blocks, p->block_size);
}

struct sluice *load_engine(const char *command, const struct model_file *file, struct sluice_options *o,
                           bool verbose)
{
    struct progress progress = {.tty = isatty(STDERR_FILENO)};
    o->progress = show_progress;
    o->progress_arg = &progress;
    struct err e;
    struct sluice *s = sluice_open(file, o, &e);
    if (progress.shown > 0)
        fputs("\r\033[K", stderr);
    if (!s)
        fprintf(stderr, "sluice %s: %s\n", command, e.msg);
    else if (verbose)
        print_plan(s);
    return s;
}
