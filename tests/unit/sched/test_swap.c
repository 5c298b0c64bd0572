/* When swapping pays: the decision by cost, with costs that are given, and the averages that measure them.
 * Blocks and pages are a few bytes here; what is copied comes back. */
#include "unit.h"

#include "sched/swap.h"

enum { BLOCK = 4, BLOCKS = 16, PAGES = 10, PAGE_BYTES = 1000 };

static int32_t blocks[BLOCKS], pages[PAGES], states[2][2];

static void move(void *arg, enum move what, int32_t from, int32_t to, int part)
{
    (void)arg;
    switch (what) {
    case MOVE_BLOCK:
        fail_msg("no fork here");
        break;
    case MOVE_BLOCK_OUT:
        pages[to] = blocks[from];
        break;
    case MOVE_BLOCK_IN:
        blocks[to] = pages[from];
        break;
    case MOVE_STATE_OUT:
        pages[to] = states[from][part];
        break;
    case MOVE_STATE_IN:
        states[to][part] = pages[from];
        break;
    }
}

/* A request with n tokens computed, in blocks first, first + 1, … */
static struct sluice_request *computed(int n, int first, int32_t *table)
{
    static struct sluice_request r[3];
    static int next;
    struct sluice_request *q = &r[next++ % 3];
    *q = (struct sluice_request){.n_computed = n, .swapped = -1, .state_slot = 0};
    q->table = (struct block_table){.blocks = table, .n = (n + BLOCK - 1) / BLOCK, .capacity = BLOCKS};
    for (int i = 0; i < q->table.n; i++)
        table[i] = first + i;
    return q;
}

static void what_goes_out_comes_back(void **state)
{
    (void)state;
    struct swap_space w;
    int32_t table[BLOCKS], other[BLOCKS];
    swap_init(&w, PAGES, PAGE_BYTES, 2, move, NULL);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = 100 + i;
    states[0][0] = 7;
    states[0][1] = 8;
    struct sluice_request *a = computed(10, 0, table), *b = computed(17, 3, other);
    assert_int_equal(swap_out(&w, a, BLOCK), 5 * PAGE_BYTES); /* three blocks and two parts of a state */
    assert_true(swap_holds(a));
    assert_int_equal(w.n_free, 5);
    assert_int_equal(swap_out(&w, b, BLOCK), 0); /* seven pages: no room */
    assert_false(swap_holds(b));
    assert_int_equal(w.n_free, 5);
    b->n_computed = 3;
    assert_true(swap_out(&w, b, BLOCK) > 0);
    swap_discard(&w, b);
    swap_discard(&w, b); /* of nothing, does nothing */
    memset(blocks, 0, sizeof blocks);
    memset(states, 0, sizeof states);
    a->n_computed = 0;
    a->state_slot = 1;
    for (int i = 0; i < 3; i++)
        table[i] = 9 - i;
    assert_int_equal(swap_in(&w, a, BLOCK), 5 * PAGE_BYTES);
    assert_int_equal(a->n_computed, 10);
    for (int i = 0; i < 3; i++)
        assert_int_equal(blocks[9 - i], 100 + i);
    assert_int_equal(states[1][0], 7);
    assert_int_equal(states[1][1], 8);
    assert_int_equal(w.n_free, PAGES);
    swap_free(&w);
}

static void the_cheaper_way_is_taken(void **state)
{
    (void)state;
    struct swap_space w;
    int32_t table[BLOCKS];
    swap_init(&w, PAGES, PAGE_BYTES, 0, move, NULL);
    w.fixed = true;
    w.copy_rate = 1e6; /* 16 tokens are four pages, out and in: 8 ms */
    w.prefill_rate = 1900;
    assert_true(swap_out(&w, computed(16, 0, table), BLOCK) > 0); /* against 8.4 ms */
    w.prefill_rate = 2100;
    assert_int_equal(swap_out(&w, computed(16, 0, table), BLOCK), 0); /* against 7.6 ms */
    w.prefill_rate = 1900;
    for (int i = 0; i < 100; i++)
        swap_saw_recompute(&w, 100, 50); /* half of what was taken is found in the prefix cache */
    assert_int_equal(swap_out(&w, computed(16, 0, table), BLOCK), 0);
    swap_saw_prefill(&w, 1000, 1000); /* given costs stay */
    assert_true(w.prefill_rate == 1900);
    swap_free(&w);
}

static void costs_are_measured(void **state)
{
    (void)state;
    struct swap_space w;
    int32_t table[BLOCKS];
    swap_init(&w, PAGES, PAGE_BYTES, 0, move, NULL);
    swap_saw_prefill(&w, 100, 0.1);
    assert_true(w.prefill_rate == 1000);
    for (int i = 0; i < 50; i++)
        swap_saw_prefill(&w, 200, 0.1);
    assert_in_range((int)w.prefill_rate, 1900, 2000);
    assert_true(w.copy_rate == 0);
    assert_true(swap_out(&w, computed(4, 0, table), BLOCK) > 0); /* not known: tried */
    assert_true(w.copy_rate > 0);
    w.copy_rate = 1; /* and found to be slow */
    assert_int_equal(swap_out(&w, computed(4, 0, table), BLOCK), 0);
    struct sluice_request *r = computed(4, 0, table);
    int tries = 0;
    w.copy_rate = 1e5;
    while (swap_out(&w, r, BLOCK) == 0) /* 20 ms against 2: but it is not given up for ever */
        assert_true(++tries < 1000);
    assert_in_range(tries, 50, 200);
    for (tries = 0; w.n_free > 0 && swap_out(&w, computed(4, 0, table), BLOCK); tries++)
        ;
    assert_true(w.lost_share < 1); /* nor is computing again */
    swap_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_out_comes_back),
        cmocka_unit_test(the_cheaper_way_is_taken),
        cmocka_unit_test(costs_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
