/* The pool runs every item exactly once, whatever the chunk, the thread count and how fast jobs follow. */
#include "unit.h"

#include <stdatomic.h>

#include "base/pool.h"

struct job {
    _Atomic int hits[5000];
};

static void hit(void *arg, int64_t begin, int64_t end, int thread)
{
    struct job *j = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(&j->hits[i], 1, memory_order_relaxed);
}

static void every_item_once(void **state)
{
    (void)state;
    static struct job j;
    for (int threads = 1; threads <= 4; threads++) {
        struct err e = {0};
        struct pool *p = pool_create(threads, &e);
        assert_non_null(p);
        for (int round = 0; round < 3000; round++) {
            int64_t n = 1 + round * 7 % 61;
            memset((void *)j.hits, 0, sizeof j.hits);
            pool_run(p, hit, &j, n, 1 + round % 5);
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(j.hits[i], 1);
            assert_int_equal(j.hits[n], 0);
        }
        pool_free(p);
    }
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(pool_create(0, &e));
    assert_non_null(strstr(e.msg, "thread count 0"));
    assert_null(pool_create(100000, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once),
                                       cmocka_unit_test(bad_counts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
