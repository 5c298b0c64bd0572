#include "cli/load.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/plan_table.h"

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
        plan_table_print(stderr, sluice_plan(s), sluice_info(s));
    return s;
}
