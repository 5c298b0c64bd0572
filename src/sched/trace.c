#include "sched/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { RING = 1 << 14 }; /* events: about a minute of a fast small model */

enum kind { STEP, SPAN, MARK };

struct event {
    enum kind kind;
    const char *name; /* a literal */
    uint64_t id;
    double start, end;
    struct trace_step step;
};

struct trace {
    FILE *file;
    char *path;
    pthread_t writer;
    _Atomic bool stop;
    _Atomic uint64_t head, tail; /* events put in by the engine's thread, taken out by the writer */
    uint64_t dropped;            /* engine's thread */
    struct event ring[RING];
};

static void put_complete(struct trace *t, const char *name, int track, double start, double end,
                         const char *args)
{
    fprintf(t->file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{%s}}",
            name, track, start * 1e6, (end - start) * 1e6, args);
}

static void write_step(struct trace *t, const struct trace_step *s)
{
    char args[400];
    double chosen = s->computed - s->sampling;
    snprintf(args, sizeof args,
             "\"prompt_tokens\":%d,\"decode_tokens\":%d,\"seqs\":%d,\"waiting\":%d,\"weight_bytes\":%llu,"
             "\"kv_bytes\":%llu,"
             "\"state_bytes\":%llu,\"weight_gb_per_s\":%.3f",
             s->prompt_tokens, s->decode_tokens, s->seqs, s->waiting, (unsigned long long)s->weight_bytes,
             (unsigned long long)s->kv_bytes, (unsigned long long)s->state_bytes,
             (double)s->weight_bytes / (s->computed - s->built) * 1e-9);
    put_complete(t,
                 s->prompt_tokens == 0 ? "decode step"
                 : s->decode_tokens    ? "mixed step"
                                       : "prefill step",
                 0, s->start, s->end, args);
    put_complete(t, "schedule", 0, s->start, s->built, "");
    put_complete(t, "forward", 0, s->built, chosen, "");
    put_complete(t, "sample", 0, chosen, s->computed, "");
    put_complete(t, "publish", 0, s->computed, s->end, "");
}

/* A request's stretches are asynchronous events: they overlap those of others. */
static void write_span(struct trace *t, const struct event *e)
{
    fprintf(
        t->file,
        ",\n{\"name\":\"%s\",\"cat\":\"request\",\"ph\":\"b\",\"pid\":1,\"tid\":1,\"id\":%llu,\"ts\":%.3f},\n"
        "{\"name\":\"%s\",\"cat\":\"request\",\"ph\":\"e\",\"pid\":1,\"tid\":1,\"id\":%llu,\"ts\":%.3f}",
        e->name, (unsigned long long)e->id, e->start * 1e6, e->name, (unsigned long long)e->id, e->end * 1e6);
}

static void write_mark(struct trace *t, const struct event *e)
{
    fprintf(
        t->file,
        ",\n{\"name\":\"%s\",\"cat\":\"request\",\"ph\":\"n\",\"pid\":1,\"tid\":1,\"id\":%llu,\"ts\":%.3f}",
        e->name, (unsigned long long)e->id, e->start * 1e6);
}

static void *writer_main(void *arg)
{
    struct trace *t = arg;
    for (;;) {
        bool stopping = atomic_load(&t->stop); /* read first: what was put in before it is then seen below */
        uint64_t tail = atomic_load(&t->tail), head = atomic_load_explicit(&t->head, memory_order_acquire);
        for (; tail < head; tail++) {
            const struct event *e = &t->ring[tail % RING];
            if (e->kind == STEP)
                write_step(t, &e->step);
            else if (e->kind == SPAN)
                write_span(t, e);
            else
                write_mark(t, e);
            atomic_store_explicit(&t->tail, tail + 1, memory_order_release);
        }
        if (stopping)
            return NULL;
        fflush(t->file);
        usleep(20000);
    }
}

struct trace *trace_open(const char *path, struct err *e)
{
    FILE *file = fopen(path, "w");
    if (!file) {
        err_set(e, ERR_IO, "the trace file %s cannot be written: %s", path, strerror(errno));
        return NULL;
    }
    struct trace *t = mem_zalloc(1, sizeof *t);
    t->file = file;
    t->path = mem_strdup(path);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
          "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"steps\"}},\n"
          "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"requests\"}}",
          file);
    int rc = pthread_create(&t->writer, NULL, writer_main, t);
    if (rc) {
        fclose(file);
        free(t->path);
        free(t);
        err_set(e, ERR_IO, "the system refused the trace's thread (error %d)", rc);
        return NULL;
    }
    return t;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    pthread_join(t->writer, NULL);
    fprintf(t->file, "\n],\"otherData\":{\"dropped_events\":%llu}}\n", (unsigned long long)t->dropped);
    if (ferror(t->file) | fclose(t->file))
        log_warn("the trace file %s is incomplete: %s", t->path, strerror(errno));
    free(t->path);
    free(t);
}

/* The next free event of the ring; NULL (counted) if the writer is a whole ring behind. */
static struct event *next_event(struct trace *t)
{
    uint64_t head = atomic_load_explicit(&t->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&t->tail, memory_order_acquire) >= RING) {
        t->dropped++;
        return NULL;
    }
    return &t->ring[head % RING];
}

static void publish(struct trace *t)
{
    atomic_fetch_add_explicit(&t->head, 1, memory_order_release);
}

void trace_step(struct trace *t, const struct trace_step *s)
{
    struct event *e = t ? next_event(t) : NULL;
    if (!e)
        return;
    e->kind = STEP;
    e->step = *s;
    publish(t);
}

void trace_span(struct trace *t, uint64_t id, const char *name, double start, double end)
{
    struct event *e = t && start > 0 && end >= start ? next_event(t) : NULL;
    if (!e)
        return;
    *e = (struct event){.kind = SPAN, .name = name, .id = id, .start = start, .end = end};
    publish(t);
}

void trace_mark(struct trace *t, uint64_t id, const char *name, double at)
{
    struct event *e = t ? next_event(t) : NULL;
    if (!e)
        return;
    *e = (struct event){.kind = MARK, .name = name, .id = id, .start = at};
    publish(t);
}
