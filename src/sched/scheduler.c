#include "sched/scheduler.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

static void list_remove(struct request_list *l, struct sluice_request *r)
{
    *(r->prev ? &r->prev->next : &l->first) = r->next;
    *(r->next ? &r->next->prev : &l->last) = r->prev;
    r->next = r->prev = NULL;
    l->n--;
}

/* Whether a's turn comes after b's. */
static bool comes_after(const struct scheduler *s, const struct sluice_request *a,
                        const struct sluice_request *b)
{
    if (s->config.priority_scheduling && a->priority != b->priority)
        return a->priority > b->priority;
    return a->order > b->order;
}

/* Inserts by turn. New requests mostly go to the end at once; a preempted one walks past those that came
 * after it. */
static void list_insert(const struct scheduler *s, struct request_list *l, struct sluice_request *r)
{
    struct sluice_request *after = l->last;
    while (after && comes_after(s, after, r))
        after = after->prev;
    r->prev = after;
    r->next = after ? after->next : l->first;
    *(r->prev ? &r->prev->next : &l->first) = r;
    *(r->next ? &r->next->prev : &l->last) = r;
    l->n++;
}

void scheduler_init(struct scheduler *s, const struct scheduler_config *c)
{
    size_t seqs = (size_t)c->max_num_seqs, tokens = (size_t)c->max_num_batched_tokens;
    *s = (struct scheduler){.config = *c};
    block_pool_init(&s->pool, c->n_blocks, c->block_size);
    prefix_init(&s->prefix, &s->pool, c->prefix_cache, c->has_state, c->max_num_seqs, c->n_snapshots);
    s->forks = (struct fork_list){.pool = &s->pool, .prefix = &s->prefix};
    swap_init(&s->swap, c->swap_pages, c->page_bytes, c->state_pages, c->move, c->move_arg);
    s->free_slots = mem_zalloc(seqs, sizeof *s->free_slots);
    for (int i = 0; i < c->max_num_seqs && c->has_state; i++)
        s->free_slots[s->n_free_slots++] = c->max_num_seqs - 1 - i;
    s->tokens = mem_zalloc(tokens, sizeof *s->tokens);
    s->positions = mem_zalloc(tokens, sizeof *s->positions);
    s->slices = mem_zalloc(seqs, sizeof *s->slices);
    s->who = mem_zalloc(seqs, sizeof *s->who);
    s->rows = mem_zalloc((size_t)c->max_logits, sizeof *s->rows);
    s->stats.kv_blocks = c->n_blocks;
    s->stats.swap_size = (size_t)c->swap_pages * c->page_bytes;
}

void scheduler_free(struct scheduler *s)
{
    scheduler_abort_all(s);
    prefix_free(&s->prefix);
    swap_free(&s->swap);
    block_pool_free(&s->pool);
    free(s->free_slots);
    free(s->tokens);
    free(s->positions);
    free(s->slices);
    free(s->who);
    free(s->rows);
}

void scheduler_add(struct scheduler *s, struct sluice_request *r)
{
    r->order = s->next_order++;
    list_insert(s, &s->waiting, r);
}

/* Gives back what a running request holds. */
static void release(struct scheduler *s, struct sluice_request *r)
{
    block_table_clear(&s->pool, &r->table);
    if (r->state_slot >= 0)
        s->free_slots[s->n_free_slots++] = r->state_slot;
    r->state_slot = -1;
    list_remove(&s->running, r);
}

/* Puts a request's life into the trace. */
static void trace_request(struct scheduler *s, struct sluice_request *r, enum sluice_finish why)
{
    if (!s->trace)
        return;
    double scheduled = atomic_load(&r->scheduled), first = atomic_load(&r->first_token), now = clock_now();
    trace_span(s->trace, r->order, "queued", atomic_load(&r->arrived), scheduled > 0 ? scheduled : now);
    trace_span(s->trace, r->order, "prefill", scheduled, first > 0 ? first : now);
    trace_span(s->trace, r->order, "decode", first, now);
    if (why == SLUICE_ABORTED)
        trace_mark(s->trace, r->order, "aborted", now);
}

/* The end of a request, from whichever list it is in. The only place where a sequence leaves. `finish` is
 * already published unless `why` says it is still to be. */
static void retire(struct scheduler *s, struct sluice_request *r, bool running, enum sluice_finish why)
{
    if (running)
        release(s, r);
    else
        list_remove(&s->waiting, r);
    fork_leave(&s->forks, r);
    swap_discard(&s->swap, r);
    s->stats.finished[why]++;
    trace_request(s, r, why);
    s->ended = true;
    if (atomic_load(&r->finish) == SLUICE_RUNNING)
        request_finish(r, why);
    request_unref(r);
}

static void drop_cancelled(struct scheduler *s)
{
    struct sluice_request *next;
    for (struct sluice_request *r = s->waiting.first; r; r = next) {
        next = r->next;
        if (atomic_load(&r->cancelled))
            retire(s, r, false, SLUICE_ABORTED);
    }
    for (struct sluice_request *r = s->running.first; r; r = next) {
        next = r->next;
        if (atomic_load(&r->cancelled))
            retire(s, r, true, SLUICE_ABORTED);
    }
}

/* Whether preempting a is less of a loss than preempting b: lower priority, less computed, later turn. */
static bool better_victim(const struct scheduler *s, const struct sluice_request *a,
                          const struct sluice_request *b)
{
    if (s->config.priority_scheduling && a->priority != b->priority)
        return a->priority > b->priority;
    if (a->n_computed != b->n_computed)
        return a->n_computed < b->n_computed;
    return comes_after(s, a, b);
}

/* Takes the memory of the running request that loses least. It waits again in its old place. What it had is
 * brought back from swap space or computed again (less what the prefix cache still holds), whichever costs
 * less; its tokens will be the same (law 3). Returns the victim. */
static struct sluice_request *preempt_one(struct scheduler *s)
{
    struct sluice_request *victim = s->running.first;
    for (struct sluice_request *r = s->running.first; r; r = r->next)
        if (better_victim(s, r, victim))
            victim = r;
    s->stats.preemptions++;
    atomic_fetch_add(&victim->preemptions, 1);
    size_t swapped = swap_out(&s->swap, victim, s->config.block_size);
    victim->n_lost = swapped ? 0 : victim->n_computed;
    s->stats.swapped_out += swapped > 0;
    s->stats.swapped_out_bytes += swapped;
    trace_mark(s->trace, victim->order, swapped ? "swapped out" : "preempted", clock_now());
    release(s, victim);
    victim->n_computed = 0;
    list_insert(s, &s->waiting, victim);
    return victim;
}

static bool is_decode(const struct sluice_request *r)
{
    return r->n_tokens - r->n_computed <= 1 + r->n_forced;
}

/* How many tokens of a decoding request go into this step: its newest, and those that were forced behind it
 * as far as the budget allows. `later` others come after it. */
static int decode_size(const struct scheduler *s, const struct sluice_request *r, int later)
{
    int room = s->config.max_num_batched_tokens - s->batch.n_tokens - later;
    return r->n_tokens - r->n_computed < room ? r->n_tokens - r->n_computed : room;
}

/* Makes sure that every decoding request has a block for its next token. When the pool is empty, those that
 * wait let go of what is held for them, then running ones are preempted. */
static void secure_decodes(struct scheduler *s)
{
    struct sluice_request *r = s->running.first;
    while (r) {
        if (!is_decode(r) || block_table_grow(&s->pool, &r->table, r->n_tokens)) {
            r = r->next;
            continue;
        }
        if (fork_reclaim(&s->forks, false))
            continue;
        struct sluice_request *next = r->next, *victim = preempt_one(s);
        if (victim == r)
            r = next;
    }
}

/* Rows of logits that a slice of `count` tokens needs: the prompt positions still to be scored, and the last
 * token's when it yields an answer token. */
static int rows_needed(const struct sluice_request *r, int count)
{
    int end = r->n_computed + count;
    int from = end; /* first position whose row is needed */
    if (end == r->n_tokens && r->max_tokens > 0)
        from = end - 1;
    if (r->n_prompt_logprobs >= 0) {
        int next = atomic_load(&r->n_scored) - 1; /* row p scores position p + 1 */
        if (next < r->n_prompt - 1 && next < from)
            from = next;
    }
    return end - from;
}

/* Adds r's next `count` tokens to the batch. */
static void add_slice(struct scheduler *s, struct sluice_request *r, int count)
{
    struct batch *b = &s->batch;
    int rows = rows_needed(r, count), start = r->n_computed;
    prefix_plan_saves(&s->prefix, r, count);
    r->slice = b->n_seqs;
    s->who[b->n_seqs] = r;
    s->slices[b->n_seqs++] = (struct seq_slice){.first = b->n_tokens,
                                                .count = count,
                                                .kv_blocks = r->table.blocks,
                                                .state_slot = r->state_slot,
                                                .state_from = r->state_from,
                                                .saves = r->saves,
                                                .n_logits = rows};
    for (int i = 0; i < count; i++) {
        s->tokens[b->n_tokens] = r->tokens[start + i];
        s->positions[b->n_tokens++] = start + i;
    }
    for (int i = 0; i < rows; i++) {
        int p = start + count - rows + i; /* this row's position */
        struct row_job *job = &s->rows[b->n_logits++];
        *job = (struct row_job){.n_probs = -1};
        if (p == r->n_tokens - 1) {
            if (r->max_tokens == 0)
                continue;
            *job = request_answer_row(r);
            if (fork_leads(r))
                fork_share_row(&s->forks, r, count, job);
        } else {
            job->token = r->tokens[p + 1];
            job->n_probs = r->n_prompt_logprobs;
            job->probs = r->prompt_probs + (size_t)(p + 1) * (size_t)(1 + r->n_prompt_logprobs);
            job->rank = &r->prompt_ranks[p + 1];
        }
    }
    s->slices[r->slice].n_saves = r->n_saves;
}

/* How many of r's prompt tokens go into this step. */
static int chunk_size(const struct scheduler *s, const struct sluice_request *r)
{
    const struct scheduler_config *c = &s->config;
    int count = r->n_tokens - r->n_computed, budget = c->max_num_batched_tokens - s->batch.n_tokens;
    if (count > budget)
        count = budget;
    bool alone = s->running.n + s->waiting.n == 1;
    if (c->long_prefill_threshold > 0 && count > c->long_prefill_threshold && !alone)
        count = c->long_prefill_threshold;
    /* Scoring a prompt takes a row of logits for each token: leave one row for each sequence that may still
     * join. */
    int spare = c->max_logits - s->batch.n_logits - (c->max_num_seqs - s->batch.n_seqs) + 1;
    while (count > 1 && rows_needed(r, count) > spare)
        count -= rows_needed(r, count) - spare < count ? rows_needed(r, count) - spare : count - 1;
    return count;
}

static bool may_prefill(const struct scheduler *s)
{
    return s->batch.n_tokens < s->config.max_num_batched_tokens &&
           (s->config.max_prefills == 0 || s->n_prefills < s->config.max_prefills);
}

static void add_prefill(struct scheduler *s, struct sluice_request *r)
{
    int count = chunk_size(s, r);
    add_slice(s, r, count);
    s->prefill_tokens += count;
    s->n_prefills++;
}

/* Says in the counters what the lookup of a newcomer's prompt found, and why it was not more. */
static void count_lookup(struct scheduler *s, struct sluice_request *r, const struct prefix_match *m)
{
    if (r->n_lost > 0) {
        int again = r->n_lost > m->usable ? r->n_lost - m->usable : 0;
        s->stats.recomputed_tokens += (uint64_t)again;
        if (atomic_load(&r->preemptions) > 0)
            swap_saw_recompute(&s->swap, r->n_lost, again);
        return;
    }
    if (!s->config.prefix_cache)
        return;
    int from_disk = prefix_count_disk(&s->prefix, r, m);
    atomic_store(&r->cached_tokens, m->usable);
    atomic_store(&r->disk_tokens, from_disk);
    s->stats.cached_tokens += (uint64_t)(m->usable - from_disk);
    s->stats.lookups++;
    if (r->n_prompt_logprobs >= 0) {
        s->stats.lookups_bypassed++;
        return;
    }
    s->stats.looked_up_tokens += (uint64_t)r->n_prompt;
    if (m->usable > 0)
        s->stats.lookups_hit++;
    else if (r->n_tokens <= s->config.block_size)
        s->stats.lookups_short++;
    else if (m->shared > 0)
        s->stats.lookups_no_state++;
    else
        s->stats.lookups_unknown++;
}

/* Gives a waiting request blocks for all its tokens and a state slot, and what was computed of them before:
 * by itself (swap), by its group, or by whoever had the same beginning. false, with nothing changed, if there
 * are too few blocks. */
static bool take_memory(struct scheduler *s, struct sluice_request *r)
{
    bool swapped = swap_holds(r), forked = !swapped && r->expects;
    struct prefix_match m = {0};
    if (forked)
        m = fork_take(&s->forks, r);
    else if (!swapped)
        m = prefix_take(&s->prefix, r);
    /* one block to spare keeps a newcomer from taking the block that a neighbour's next token needs */
    int spare = s->running.n > 0 ? 1 : 0;
    if (blocks_for(&s->pool, r->n_tokens) - r->table.n + spare > blocks_available(&s->pool)) {
        prefix_give_back(&s->prefix, r);
        return false;
    }
    block_table_grow(&s->pool, &r->table, r->n_tokens);
    if (s->config.has_state)
        r->state_slot = s->free_slots[--s->n_free_slots];
    if (swapped) {
        s->stats.swapped_in_bytes += swap_in(&s->swap, r, s->config.block_size);
        s->stats.swapped_in++;
        trace_mark(s->trace, r->order, "swapped in", clock_now());
        return true;
    }
    if (forked) {
        fork_take_rest(&s->forks, r, s->config.move, s->config.move_arg);
        s->stats.forked++;
        trace_mark(s->trace, r->order, "forked", clock_now());
    }
    count_lookup(s, r, &m);
    return true;
}

/* Moves waiting requests to running while tokens, slots and blocks are there. Where nobody runs, there is
 * room for one once nothing is held for others. */
static void admit(struct scheduler *s, double now)
{
    struct sluice_request *next;
    for (struct sluice_request *r = s->waiting.first; r; r = next) {
        next = r->next;
        if (fork_defers(r))
            continue;
        if (s->running.n == s->config.max_num_seqs || !may_prefill(s))
            return;
        if (!swap_holds(r) && !r->expects && prefix_waits_for_disk(&s->prefix, r))
            continue;
        while (!take_memory(s, r))
            if (s->running.n > 0 || !fork_reclaim(&s->forks, true))
                return;
        list_remove(&s->waiting, r);
        list_insert(s, &s->running, r);
        if (atomic_load(&r->scheduled) == 0)
            atomic_store(&r->scheduled, now);
        if (is_decode(r))
            add_slice(s, r, decode_size(s, r, 0));
        else
            add_prefill(s, r);
    }
}

static void build_batch(struct scheduler *s, double now)
{
    s->n_prefills = s->prefill_tokens = 0;
    s->batch = (struct batch){.tokens = s->tokens, .positions = s->positions, .seqs = s->slices};
    secure_decodes(s);
    int decodes = 0;
    for (struct sluice_request *r = s->running.first; r; r = r->next)
        decodes += is_decode(r);
    for (struct sluice_request *r = s->running.first; r; r = r->next) {
        r->slice = -1;
        if (is_decode(r))
            add_slice(s, r, decode_size(s, r, --decodes));
    }
    for (struct sluice_request *r = s->running.first; r; r = r->next)
        if (r->slice < 0 && may_prefill(s))
            add_prefill(s, r);
    admit(s, now);
}

/* Publishes r's new token, or its end. */
static void deliver_token(struct scheduler *s, struct sluice_request *r, bool running, int32_t token,
                          double now)
{
    if (token == PICK_END) {
        retire(s, r, running, SLUICE_STOP);
        return;
    }
    if (token < 0) {
        if (token == PICK_STUCK)
            snprintf(r->error, sizeof r->error, "%s", sampler_error(r->sampler));
        else
            snprintf(r->error, sizeof r->error, "the model's logits are not numbers at position %d",
                     r->n_tokens - 1);
        retire(s, r, running, SLUICE_ERROR);
        return;
    }
    int before = r->n_tokens;
    bool over = request_append(r, token, now) || request_append_forced(r, now);
    s->stats.generation_tokens += (uint64_t)(r->n_tokens - before);
    if (over)
        retire(s, r, running, (enum sluice_finish)atomic_load(&r->finish));
}

/* r has computed the prompt of its group: the others' first tokens, and what they need to go on. */
static void deliver_fork(struct scheduler *s, struct sluice_request *r, double now)
{
    struct sluice_request *next;
    fork_hold(&s->forks, r);
    for (struct sluice_request *q = r->group->members; q; q = next) {
        next = q->sibling;
        if (q == r)
            continue;
        request_copy_scores(q, r);
        atomic_store(&q->scheduled, atomic_load(&r->scheduled));
        atomic_store(&q->cached_tokens, atomic_load(&r->cached_tokens));
        q->n_lost = q->n_prompt; /* unless it can continue from what is held */
        if (q->max_tokens == 0)
            retire(s, q, false, SLUICE_LENGTH);
        else
            deliver_token(s, q, false, q->first_row.token, now);
    }
}

/* Publishes what the step computed for one slice: scored prompt positions, the new token, the end. */
static void deliver(struct scheduler *s, struct sluice_request *r, const struct seq_slice *slice,
                    const struct row_job *rows, double now)
{
    int prompt_part = r->n_prompt - r->n_computed;
    prompt_part = prompt_part < 0 ? 0 : prompt_part < slice->count ? prompt_part : slice->count;
    s->stats.last.prompt_tokens += (uint64_t)prompt_part;
    s->stats.last.decode_tokens += (uint64_t)(slice->count - prompt_part);
    r->n_computed += slice->count;
    prefix_learn(&s->prefix, r);
    if (r->n_prompt_logprobs >= 0) {
        int scored = r->n_computed + 1 < r->n_prompt ? r->n_computed + 1 : r->n_prompt;
        if (scored > atomic_load(&r->n_scored))
            atomic_store_explicit(&r->n_scored, scored, memory_order_release);
    }
    if (r->n_computed < r->n_tokens)
        return;
    if (r->n_tokens == r->n_prompt) {
        s->stats.prompt_tokens += (uint64_t)r->n_prompt;
        s->stats.prompt_tokens_cached += (uint64_t)atomic_load(&r->cached_tokens);
        s->stats.prompt_tokens_disk += (uint64_t)atomic_load(&r->disk_tokens);
    }
    if (fork_leads(r))
        deliver_fork(s, r, now);
    if (r->max_tokens == 0)
        retire(s, r, true, SLUICE_LENGTH);
    else
        deliver_token(s, r, true, rows[slice->n_logits - 1].token, now);
}

static void add_ledger(struct sluice_ledger *sum, const struct sluice_ledger *x)
{
    sum->weight_bytes += x->weight_bytes;
    sum->kv_read_bytes += x->kv_read_bytes;
    sum->kv_write_bytes += x->kv_write_bytes;
    sum->state_bytes += x->state_bytes;
    sum->flops += x->flops;
    sum->prompt_tokens += x->prompt_tokens;
    sum->decode_tokens += x->decode_tokens;
    sum->seqs += x->seqs;
    sum->seconds += x->seconds;
    sum->sampling_seconds += x->sampling_seconds;
}

int scheduler_step(struct scheduler *s, bool *published)
{
    s->ended = false;
    prefix_collect(&s->prefix);
    drop_cancelled(s);
    double start = clock_now();
    build_batch(s, start);
    double built = clock_now();
    const struct batch *b = &s->batch;
    if (b->n_tokens > 0) {
        s->stats.last = (struct sluice_ledger){0};
        s->config.step(s->config.step_arg, b, s->rows, &s->stats.last);
        double now = clock_now();
        const struct row_job *rows = s->rows;
        uint64_t share = s->stats.last.weight_bytes / (uint64_t)b->n_seqs;
        for (int i = 0; i < b->n_seqs; i++) {
            atomic_fetch_add(&s->who[i]->steps, 1);
            atomic_fetch_add(&s->who[i]->weight_bytes, share);
            deliver(s, s->who[i], &s->slices[i], rows, now);
            rows += s->slices[i].n_logits;
        }
        const struct sluice_ledger *l = &s->stats.last;
        struct trace_step step = {.start = start,
                                  .built = built,
                                  .computed = now,
                                  .end = clock_now(),
                                  .sampling = l->sampling_seconds,
                                  .prompt_tokens = (int)l->prompt_tokens,
                                  .decode_tokens = (int)l->decode_tokens,
                                  .seqs = b->n_seqs,
                                  .waiting = s->waiting.n,
                                  .weight_bytes = l->weight_bytes,
                                  .kv_bytes = l->kv_read_bytes + l->kv_write_bytes,
                                  .state_bytes = l->state_bytes};
        trace_step(s->trace, &step);
        s->stats.steps++;
        add_ledger(&s->stats.total, &s->stats.last);
    }
    if (2 * s->prefill_tokens >= b->n_tokens && b->n_tokens > 0) {
        swap_saw_prefill(&s->swap, b->n_tokens, s->stats.last.seconds);
        prefix_saw_prefill(&s->prefix, b->n_tokens, s->stats.last.seconds);
    }
    prefix_disk_stats(&s->prefix, &s->stats.offload);
    *published = s->ended || b->n_logits > 0; /* an answer of no tokens ends without a row of logits */
    s->stats.running = s->running.n;
    s->stats.waiting = s->waiting.n;
    s->stats.waiting_for_disk = s->prefix.n_fetching;
    s->stats.swap_used = (size_t)(s->swap.n_pages - s->swap.n_free) * s->swap.page_bytes;
    s->stats.queued_tokens = scheduler_queued_tokens(s);
    s->stats.kv_blocks_used = s->pool.n_blocks - blocks_available(&s->pool);
    return b->n_tokens;
}

int64_t scheduler_queued_tokens(const struct scheduler *s)
{
    const struct request_list *lists[] = {&s->waiting, &s->running};
    int64_t sum = 0;
    for (int i = 0; i < 2; i++)
        for (const struct sluice_request *r = lists[i]->first; r; r = r->next)
            if (r->n_tokens == r->n_prompt && !fork_defers(r))
                sum += r->n_prompt - r->n_computed;
    return sum;
}

bool scheduler_rests(const struct scheduler *s)
{
    if (s->running.n > 0)
        return false;
    for (const struct sluice_request *r = s->waiting.first; r; r = r->next)
        if (r->disk != DISK_READS && !fork_defers(r))
            return false;
    return true;
}

void scheduler_abort_all(struct scheduler *s)
{
    while (s->running.first)
        retire(s, s->running.first, true, SLUICE_ABORTED);
    while (s->waiting.first)
        retire(s, s->waiting.first, false, SLUICE_ABORTED);
}
