#include "sched/swap.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sched/average.h"

static const double DOUBT = 0.02, WEIGHT = 0.2; /* of a new value */

void swap_init(struct swap_space *w, int n_pages, size_t page_bytes, int state_pages, move_fn *move,
               void *arg)
{
    *w = (struct swap_space){.free = n_pages > 0 ? 0 : -1,
                             .n_pages = n_pages,
                             .n_free = n_pages,
                             .page_bytes = page_bytes,
                             .state_pages = state_pages,
                             .move = move,
                             .move_arg = arg,
                             .lost_share = 1};
    w->next = mem_zalloc((size_t)n_pages, sizeof *w->next);
    for (int i = 0; i < n_pages; i++)
        w->next[i] = i + 1 < n_pages ? i + 1 : -1;
}

void swap_free(struct swap_space *w)
{
    free(w->next);
    w->next = NULL;
}

void swap_saw_prefill(struct swap_space *w, int tokens, double seconds)
{
    if (!w->fixed && seconds > 0)
        average_add(&w->prefill_rate, tokens / seconds, WEIGHT);
}

void swap_saw_recompute(struct swap_space *w, int lost, int again)
{
    if (lost > 0)
        average_add(&w->lost_share, (double)again / lost + 1e-9, WEIGHT); /* never "unknown" */
}

/* Pages that r needs. */
static int pages_of(const struct swap_space *w, const struct sluice_request *r, int block_size)
{
    return (r->n_computed + block_size - 1) / block_size + w->state_pages;
}

/* Whether two copies cost less than computing again. What is not known yet is tried. */
static bool pays(const struct swap_space *w, const struct sluice_request *r, int pages)
{
    if (w->copy_rate <= 0 || w->prefill_rate <= 0)
        return true;
    double copies = 2 * (double)pages * (double)w->page_bytes / w->copy_rate;
    return copies < w->lost_share * r->n_computed / w->prefill_rate;
}

static void saw_copy(struct swap_space *w, size_t bytes, double seconds)
{
    if (!w->fixed && seconds > 0)
        average_add(&w->copy_rate, (double)bytes / seconds, WEIGHT);
}

size_t swap_out(struct swap_space *w, struct sluice_request *r, int block_size)
{
    int pages = pages_of(w, r, block_size), blocks = pages - w->state_pages;
    if (pages > w->n_free)
        return 0;
    bool out = pays(w, r, pages);
    if (!w->fixed) /* the way not taken is not measured: believe it a little better each time, till it is */
        *(out ? &w->lost_share : &w->copy_rate) *= out ? 1 - DOUBT : 1 + DOUBT;
    if (!out)
        return 0;
    double start = clock_now();
    int32_t page = w->free, last = -1;
    r->swapped = page;
    r->n_swapped = r->n_computed;
    for (int i = 0; i < pages; i++, last = page, page = w->next[page]) {
        if (i < blocks)
            w->move(w->move_arg, MOVE_BLOCK_OUT, r->table.blocks[i], page, 0);
        else
            w->move(w->move_arg, MOVE_STATE_OUT, r->state_slot, page, i - blocks);
    }
    w->free = page;
    w->next[last] = -1;
    w->n_free -= pages;
    size_t bytes = (size_t)pages * w->page_bytes;
    saw_copy(w, bytes, clock_now() - start);
    return bytes;
}

void swap_discard(struct swap_space *w, struct sluice_request *r)
{
    int32_t page = r->swapped;
    while (page >= 0) {
        int32_t next = w->next[page];
        w->next[page] = w->free;
        w->free = page;
        w->n_free++;
        page = next;
    }
    r->swapped = -1;
}

size_t swap_in(struct swap_space *w, struct sluice_request *r, int block_size)
{
    double start = clock_now();
    r->n_computed = r->n_swapped;
    r->n_learned = r->branch = r->state_from =
        0; /* the prefix cache may have forgotten its blocks: all anew */
    r->parent = r->rolling = -1;
    int pages = pages_of(w, r, block_size), blocks = pages - w->state_pages;
    int32_t page = r->swapped;
    for (int i = 0; i < pages; i++, page = w->next[page]) {
        if (i < blocks)
            w->move(w->move_arg, MOVE_BLOCK_IN, page, r->table.blocks[i], 0);
        else
            w->move(w->move_arg, MOVE_STATE_IN, page, r->state_slot, i - blocks);
    }
    swap_discard(w, r);
    size_t bytes = (size_t)pages * w->page_bytes;
    saw_copy(w, bytes, clock_now() - start);
    return bytes;
}
