/* A few threads for work that would hold up the event loop: reading a request can take a second. Jobs go in
 * from the loop's thread, and come back to it in the order in which they were finished. Of the heavy ones
 * only one runs at a time, so a megabyte of prompt never stands in the way of a short question. */
#ifndef SLUICE_HTTP_WORKERS_H
#define SLUICE_HTTP_WORKERS_H

#include <stdbool.h>

#include "base/error.h"

struct workers;

struct job {
    struct job *next; /* private */
    bool heavy;       /* may take long: they wait for each other, and nobody for them */
    void (*run)(struct job *j);
};

/* n_threads >= 2: one takes heavy jobs when there are any, the others are always free of them. `notify` is
 * called on a worker thread after each job and must not block. */
struct workers *workers_create(int n_threads, void (*notify)(void *arg), void *arg, struct err *e);
/* Waits for running jobs and stops the threads. Jobs not begun are then found by workers_take_undone,
 * finished ones by workers_take. */
void workers_stop(struct workers *w);
void workers_free(struct workers *w);

void workers_add(struct workers *w, struct job *j);
struct job *workers_take(struct workers *w);        /* a finished job, or NULL; never waits */
struct job *workers_take_undone(struct workers *w); /* after workers_stop */

#endif
