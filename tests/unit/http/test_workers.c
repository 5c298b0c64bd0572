/* The workers: light jobs pass heavy ones, heavy ones run one at a time, and all come back. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "http/workers.h"
#include "unit.h"

struct counted {
    struct job job;
    sem_t *begin, *end; /* begin is posted when it runs, end waited for; NULL = neither */
};

static _Atomic int running, most;

static void run(struct job *j)
{
    struct counted *c = (struct counted *)j;
    if (!c->begin)
        return;
    int now = atomic_fetch_add(&running, 1) + 1;
    if (now > atomic_load(&most))
        atomic_store(&most, now);
    sem_post(c->begin);
    sem_wait(c->end);
    atomic_fetch_sub(&running, 1);
}

static void notify(void *arg)
{
    sem_post(arg);
}

static void test_light_jobs_pass(void **state)
{
    (void)state;
    sem_t done, begin, end;
    struct err e = {0};
    sem_init(&done, 0, 0);
    sem_init(&begin, 0, 0);
    sem_init(&end, 0, 0);
    struct workers *w = workers_create(3, notify, &done, &e);
    assert_non_null(w);
    struct counted heavy[4], light[20];
    for (int i = 0; i < 4; i++) {
        heavy[i] = (struct counted){.job = {.run = run, .heavy = true}, .begin = &begin, .end = &end};
        workers_add(w, &heavy[i].job);
    }
    sem_wait(&begin); /* one of them runs, and stays */
    for (int i = 0; i < 20; i++) {
        light[i] = (struct counted){.job = {.run = run}};
        workers_add(w, &light[i].job);
    }
    for (int i = 0; i < 20; i++)
        sem_wait(&done);
    for (int i = 0; i < 20; i++) {
        struct job *j = workers_take(w);
        assert_non_null(j);
        assert_false(j->heavy);
    }
    assert_null(workers_take(w));
    for (int i = 0; i < 4; i++) {
        sem_post(&end);
        sem_wait(&done);
        struct job *j = workers_take(w);
        assert_ptr_equal(j, &heavy[i].job); /* in the order in which they came */
        if (i < 3)
            sem_wait(&begin);
    }
    assert_int_equal(atomic_load(&most), 1);
    workers_stop(w);
    workers_free(w);
    sem_destroy(&done);
    sem_destroy(&begin);
    sem_destroy(&end);
}

static void test_undone(void **state)
{
    (void)state;
    sem_t done;
    struct err e = {0};
    sem_init(&done, 0, 0);
    struct workers *w = workers_create(2, notify, &done, &e);
    assert_non_null(w);
    workers_stop(w);
    struct counted jobs[2] = {{.job = {.run = run, .heavy = true}}, {.job = {.run = run}}};
    workers_add(w, &jobs[0].job);
    workers_add(w, &jobs[1].job);
    assert_null(workers_take(w));
    assert_non_null(workers_take_undone(w));
    assert_non_null(workers_take_undone(w));
    assert_null(workers_take_undone(w));
    workers_free(w);
    sem_destroy(&done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_light_jobs_pass),
        cmocka_unit_test(test_undone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
