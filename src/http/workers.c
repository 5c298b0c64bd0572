#include "http/workers.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

struct job_list {
    struct job *first, *last;
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job_list light, heavy, done;
    bool heavy_runs;
    bool stopping;
    void (*notify)(void *arg);
    void *notify_arg;
    int n_threads;
    pthread_t threads[];
};

static void push(struct job_list *l, struct job *j)
{
    j->next = NULL;
    *(l->last ? &l->last->next : &l->first) = j;
    l->last = j;
}

static struct job *pop(struct job_list *l)
{
    struct job *j = l->first;
    if (j && !(l->first = j->next))
        l->last = NULL;
    return j;
}

/* What a free thread does next: a heavy job if none runs, or else a light one. */
static struct job *next_job(struct workers *w)
{
    struct job *j = w->heavy_runs ? NULL : pop(&w->heavy);
    return j ? j : pop(&w->light);
}

static void *work(void *arg)
{
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        struct job *j = next_job(w);
        if (!j) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        bool heavy = j->heavy;
        w->heavy_runs |= heavy;
        pthread_mutex_unlock(&w->lock);
        j->run(j);
        pthread_mutex_lock(&w->lock);
        if (heavy) {
            w->heavy_runs = false;
            pthread_cond_signal(&w->wake); /* the next heavy one may have waited for this */
        }
        push(&w->done, j);
        w->notify(w->notify_arg);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct workers *workers_create(int n_threads, void (*notify)(void *arg), void *arg, struct err *e)
{
    struct workers *w = mem_zalloc(1, sizeof *w + (size_t)n_threads * sizeof w->threads[0]);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->notify = notify;
    w->notify_arg = arg;
    for (; w->n_threads < n_threads; w->n_threads++) {
        int rc = pthread_create(&w->threads[w->n_threads], NULL, work, w);
        if (rc) {
            err_set(e, ERR_IO, "the system refused a worker thread (error %d)", rc);
            workers_stop(w);
            workers_free(w);
            return NULL;
        }
    }
    return w;
}

void workers_stop(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    w->n_threads = 0;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void workers_add(struct workers *w, struct job *j)
{
    pthread_mutex_lock(&w->lock);
    push(j->heavy ? &w->heavy : &w->light, j);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

struct job *workers_take(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    struct job *j = pop(&w->done);
    pthread_mutex_unlock(&w->lock);
    return j;
}

struct job *workers_take_undone(struct workers *w)
{
    struct job *j = pop(&w->light);
    return j ? j : pop(&w->heavy);
}
