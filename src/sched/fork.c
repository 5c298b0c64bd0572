#include "sched/fork.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct fork_group *fork_group_create(struct sluice_request **requests, int n, int block_size)
{
    struct fork_group *g = mem_zalloc(1, sizeof *g);
    g->held.capacity = (requests[0]->n_prompt + block_size - 1) / block_size;
    g->held.blocks = mem_try_alloc((size_t)g->held.capacity, sizeof *g->held.blocks);
    if (!g->held.blocks) {
        free(g);
        return NULL;
    }
    g->state_slot = -1;
    g->leader = g->members = requests[0];
    atomic_store(&g->refs, n);
    for (int i = 0; i < n; i++) {
        requests[i]->group = g;
        requests[i]->sibling = i + 1 < n ? requests[i + 1] : NULL;
    }
    return g;
}

void fork_group_unref(struct fork_group *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    free(g->held.blocks);
    free(g);
}

bool fork_defers(const struct sluice_request *r)
{
    return r->group && r->group->leader && r->group->leader != r;
}

bool fork_leads(const struct sluice_request *r)
{
    return r->group && r->group->leader == r;
}

/* Ends what g holds. Members that expected it will compute the prompt themselves. */
static void let_go(struct fork_list *f, struct fork_group *g)
{
    for (struct sluice_request *q = g->members; q; q = q->sibling)
        q->expects = false;
    g->n_expecting = 0;
    block_table_clear(f->pool, &g->held);
    if (g->state_slot >= 0)
        prefix_drop_state(f->prefix, g->state_slot);
    g->state_slot = -1;
    *(g->older ? &g->older->newer : &f->oldest) = g->newer;
    *(g->newer ? &g->newer->older : &f->newest) = g->older;
}

static void expect_no_more(struct fork_list *f, struct sluice_request *r)
{
    if (!r->expects)
        return;
    r->expects = false;
    if (--r->group->n_expecting == 0)
        let_go(f, r->group);
}

void fork_share_row(struct fork_list *f, struct sluice_request *r, int count, struct row_job *row)
{
    struct fork_group *g = r->group;
    for (struct sluice_request *q = g->members; q; q = q->sibling) {
        if (q == r)
            continue;
        q->first_row = request_answer_row(q);
        row->next = &q->first_row;
        row = &q->first_row;
    }
    if (!f->prefix->has_state || !g->members->sibling)
        return;
    g->state_slot = prefix_keep_state(f->prefix);
    if (g->state_slot >= 0) {
        r->save_positions[r->n_saves] = -1; /* the cache is not to take it for its own */
        r->saves[r->n_saves++] = (struct state_save){.after = count, .slot = g->state_slot};
    }
}

void fork_hold(struct fork_list *f, struct sluice_request *r)
{
    struct fork_group *g = r->group;
    g->leader = NULL;
    if (r->max_tokens == 0 || !g->members->sibling || (f->prefix->has_state && g->state_slot < 0)) {
        if (g->state_slot >= 0)
            prefix_drop_state(f->prefix, g->state_slot);
        g->state_slot = -1;
        return;
    }
    for (; g->held.n < g->held.capacity; g->held.n++) {
        g->held.blocks[g->held.n] = r->table.blocks[g->held.n];
        block_ref(f->pool, r->table.blocks[g->held.n]);
    }
    g->n_learned = r->n_learned;
    g->last_snapshot = r->last_snapshot;
    g->parent = r->parent;
    g->parent_generation = r->parent_generation;
    for (struct sluice_request *q = g->members; q; q = q->sibling)
        if (q != r) {
            q->expects = true;
            g->n_expecting++;
        }
    g->older = f->newest;
    g->newer = NULL;
    *(f->newest ? &f->newest->newer : &f->oldest) = g;
    f->newest = g;
}

struct prefix_match fork_take(struct fork_list *f, struct sluice_request *r)
{
    const struct fork_group *g = r->group;
    int full = r->n_prompt / f->pool->block_size;
    for (r->table.n = 0; r->table.n < full; r->table.n++) {
        r->table.blocks[r->table.n] = g->held.blocks[r->table.n];
        block_ref(f->pool, g->held.blocks[r->table.n]);
    }
    r->n_computed = r->n_prompt;
    r->n_learned = g->n_learned;
    r->last_snapshot = g->last_snapshot;
    r->parent = g->parent;
    r->parent_generation = g->parent_generation;
    r->rolling = -1;
    r->branch = r->state_from = 0;
    if (g->state_slot >= 0)
        prefix_resume_from(f->prefix, r, g->state_slot);
    return (struct prefix_match){r->n_prompt, r->n_prompt};
}

void fork_take_rest(struct fork_list *f, struct sluice_request *r, move_fn *move, void *arg)
{
    int full = r->n_prompt / f->pool->block_size;
    if (r->n_prompt % f->pool->block_size)
        move(arg, MOVE_BLOCK, r->group->held.blocks[full], r->table.blocks[full], 0);
    expect_no_more(f, r);
}

bool fork_reclaim(struct fork_list *f, bool any)
{
    for (struct fork_group *g = f->newest; g; g = g->older) {
        bool frees = any;
        for (int i = 0; i < g->held.n && !frees; i++)
            frees = f->pool->blocks[g->held.blocks[i]].refs == 1;
        if (frees) {
            let_go(f, g);
            return true;
        }
    }
    return false;
}

void fork_leave(struct fork_list *f, struct sluice_request *r)
{
    struct fork_group *g = r->group;
    if (!g)
        return;
    expect_no_more(f, r);
    struct sluice_request **link = &g->members;
    while (*link != r)
        link = &(*link)->sibling;
    *link = r->sibling;
    if (g->leader == r)
        g->leader = g->members;
}
