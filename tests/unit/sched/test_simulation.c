/* The scheduler in thousands of random worlds, on a fake model that remembers only what it was fed through
 * blocks and state slots: pools too small, budgets of a few tokens, shared beginnings, several answers to one
 * prompt, cancels, preemptions with and without swap space, cache hits, snapshots. A request's tokens must
 * equal what its own history alone yields (and its seed); so must the scores of its prompt. Blocks, slots and
 * pages come back, decoding requests advance at every step, no step passes its budgets or allocates memory,
 * and every step that ends a request says that there is news. */
#include "unit.h"

#include "allocations.h"
#include "sched/scheduler.h"

enum { VOCAB = 50, MAX_LEN = 160, MAX_BLOCKS = 64, MAX_SLOTS = 40, MAX_REQUESTS = 24, MAX_PAGES = 80 };

static uint64_t rng_state;

static int rnd(int n)
{
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((rng_state >> 33) % (uint64_t)n);
}

static uint64_t absorb(uint64_t h, int32_t token)
{
    return (h ^ (uint64_t)(token + 1)) * UINT64_C(0x100000001b3) + 7;
}

/* The token after a history: attention's part is a hash over all its tokens, the recurrent part another. */
static uint64_t logits_of(uint64_t attended, uint64_t state, bool has_state)
{
    uint64_t h = attended ^ (has_state ? state * 31 : 0);
    return h ^ h >> 29;
}

/* What a request with this seed makes of them. */
static int32_t pick(uint64_t logits, uint64_t seed)
{
    return (int32_t)((logits + seed * 7) % VOCAB);
}

struct world {
    struct scheduler s;
    int32_t block_tokens[MAX_BLOCKS][16]; /* "keys and values" */
    uint64_t state[MAX_SLOTS];
    union {
        int32_t tokens[16];
        uint64_t state; /* its parts: one byte a page, from the first on, when it takes several */
    } page[MAX_PAGES];
    struct client *clients; /* [MAX_REQUESTS] */
};

struct client {
    struct sluice_request *r;
    int32_t prompt[MAX_LEN];
    int n_prompt, max_tokens;
    uint64_t seed;
    bool scored;
};

/* The fake engine's copies. A state is eight bytes, in as many parts as the world says. */
static void fake_move(void *arg, enum move what, int32_t from, int32_t to, int part)
{
    struct world *w = arg;
    int parts = w->s.config.state_pages;
    size_t piece = parts ? sizeof *w->state / (size_t)parts : 0;
    switch (what) {
    case MOVE_BLOCK:
        memcpy(w->block_tokens[to], w->block_tokens[from], sizeof w->block_tokens[to]);
        break;
    case MOVE_BLOCK_OUT:
        memcpy(w->page[to].tokens, w->block_tokens[from], sizeof w->block_tokens[from]);
        break;
    case MOVE_BLOCK_IN:
        memcpy(w->block_tokens[to], w->page[from].tokens, sizeof w->block_tokens[to]);
        break;
    case MOVE_STATE_OUT:
        memcpy(&w->page[to].state, (char *)&w->state[from] + (size_t)part * piece, piece);
        break;
    case MOVE_STATE_IN:
        memcpy((char *)&w->state[to] + (size_t)part * piece, &w->page[from].state, piece);
        break;
    }
}

/* One row's answer: what the model would say after position p of the slice's sequence. */
static uint64_t row_of(const struct world *w, const struct seq_slice *q, int p, uint64_t state)
{
    uint64_t h = 1;
    int bs = w->s.config.block_size;
    for (int i = 0; i <= p; i++)
        h = absorb(h, w->block_tokens[q->kv_blocks[i / bs]][i % bs]);
    return logits_of(h, state, w->s.config.has_state);
}

/* Whose sampler this is. */
static uint64_t seed_of(const struct world *w, const struct sampler *sampler)
{
    for (int i = 0; i < MAX_REQUESTS; i++)
        if (w->clients[i].r && w->clients[i].r->sampler == sampler)
            return w->clients[i].seed;
    return 0; /* its client has gone */
}

static void run_slice(struct world *w, const struct batch *b, const struct seq_slice *q, struct row_job *job)
{
    const struct scheduler_config *c = &w->s.config;
    uint64_t *state = c->has_state ? &w->state[q->state_slot] : NULL;
    if (state && q->state_from > 0)
        *state = w->state[q->state_from];
    int save = 0;
    for (int t = 0; t < q->count; t++) {
        int p = b->positions[q->first + t];
        assert_int_equal(p, b->positions[q->first] + t);
        w->block_tokens[q->kv_blocks[p / c->block_size]][p % c->block_size] = b->tokens[q->first + t];
        if (state) {
            *state = absorb(p == 0 ? 1 : *state, b->tokens[q->first + t]);
            for (; save < q->n_saves && q->saves[save].after == t + 1; save++)
                w->state[q->saves[save].slot] = *state;
        }
        if (t < q->count - q->n_logits)
            continue;
        uint64_t row = row_of(w, q, p, state ? *state : 0);
        for (struct row_job *j = job; j; j = j->next)
            if (j->sampler)
                j->token = pick(row, seed_of(w, j->sampler));
            else if (j->probs) /* a scored prompt token: its "probability" is what the model said */
                j->probs[0] = (struct sluice_prob){j->token, (float)pick(row, 0)};
        job++;
    }
    assert_int_equal(save, q->n_saves);
}

static void fake_step(void *arg, const struct batch *b, struct row_job *rows, struct sluice_ledger *ledger)
{
    struct world *w = arg;
    const struct scheduler_config *c = &w->s.config;
    (void)ledger;
    assert_in_range(b->n_tokens, 1, c->max_num_batched_tokens);
    assert_in_range(b->n_seqs, 1, c->max_num_seqs);
    assert_true(b->n_logits <= c->max_logits);
    int tokens = 0, logits = 0, prefills = 0, first_row[8];
    for (int i = 0; i < b->n_seqs; i++) {
        const struct seq_slice *q = &b->seqs[i];
        assert_int_equal(q->first, tokens);
        assert_in_range(q->n_logits, 0, q->count);
        first_row[i] = logits;
        tokens += q->count;
        logits += q->n_logits;
        prefills += q->count > 1;
    }
    assert_true(c->max_prefills == 0 || prefills <= c->max_prefills);
    assert_int_equal(tokens, b->n_tokens);
    assert_int_equal(logits, b->n_logits);
    /* the ops run sequences side by side: any order must do */
    int from = rnd(b->n_seqs), way = rnd(2) ? 1 : b->n_seqs - 1;
    for (int k = 0; k < b->n_seqs; k++) {
        int i = (from + k * way) % b->n_seqs;
        run_slice(w, b, &b->seqs[i], &rows[first_row[i]]);
    }
}

/* The request's tokens follow from its own history. */
static void check_answer(const struct world *w, const struct client *c)
{
    struct sluice_progress g;
    sluice_request_progress(c->r, &g);
    const int32_t *got = sluice_request_tokens(c->r);
    uint64_t h = 1;
    for (int i = 0; i < c->n_prompt + g.n_tokens - 1; i++) {
        h = absorb(h, i < c->n_prompt ? c->prompt[i] : got[i - c->n_prompt]);
        uint64_t row = logits_of(h, h, w->s.config.has_state);
        if (i >= c->n_prompt - 1)
            assert_int_equal(got[i - c->n_prompt + 1], pick(row, c->seed));
        else if (c->scored && i + 1 < g.n_prompt_scored)
            assert_int_equal((int)sluice_request_prompt_logprobs(c->r, i + 1, NULL)[0].logprob, pick(row, 0));
    }
    if (g.finish == SLUICE_LENGTH) {
        assert_int_equal(g.n_tokens, c->max_tokens);
        if (c->scored)
            assert_int_equal(g.n_prompt_scored, c->n_prompt);
    }
}

/* Clients [n], all free, ask for n answers to one prompt. */
static void arrive(struct world *w, struct client *c, int n, int max_len)
{
    struct err e = {0};
    struct sluice_request *group[4];
    struct sluice_sampling p;
    sluice_sampling_init(&p);
    c->n_prompt = 1 + rnd(max_len - 1);
    c->max_tokens = rnd(8) == 0 ? 0 : 1 + rnd(max_len - c->n_prompt);
    c->scored = rnd(6) == 0;
    int family = rnd(2), shared = rnd(3) ? c->n_prompt - rnd(c->n_prompt < 9 ? c->n_prompt : 9)
                                         : rnd(c->n_prompt); /* a common beginning, then its own */
    for (int i = 0; i < c->n_prompt; i++)
        c->prompt[i] = i < shared ? (family * 17 + i * 7) % VOCAB : rnd(VOCAB);
    p.n_prompt_logprobs = c->scored ? 0 : -1;
    int borders[2] = {rnd(c->n_prompt), rnd(c->n_prompt)};
    p.borders = borders;
    p.n_borders = rnd(3);
    p.cache_salt[0] = (uint64_t)rnd(2);
    p.priority = rnd(3) - 1;
    for (int i = 0; i < n; i++) {
        if (i > 0)
            c[i] = c[0];
        c[i].seed = (uint64_t)i;
        group[i] = c[i].r =
            request_create(c->prompt, c->n_prompt, &p, c->max_tokens, VOCAB, w->s.config.block_size, &e);
        assert_non_null(c[i].r);
    }
    if (n > 1)
        assert_non_null(fork_group_create(group, n, w->s.config.block_size));
    for (int i = 0; i < n; i++) {
        atomic_fetch_add(&c[i].r->refs, 1);
        scheduler_add(&w->s, c[i].r);
    }
}

/* How many of the clients from i on are free, 4 at most. */
static int n_free(const struct client *clients, int i)
{
    int n = 0;
    while (n < 4 && i + n < MAX_REQUESTS && !clients[i + n].r)
        n++;
    return n;
}

static struct sluice_stats sum; /* over all worlds: that they do what they are for */

static void one_world(uint64_t seed)
{
    static struct world w;
    struct client clients[MAX_REQUESTS] = {0};
    rng_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    memset(&w, 0, sizeof w);
    w.clients = clients;
    for (int i = 0; i < MAX_SLOTS; i++)
        w.state[i] = (uint64_t)rnd(1 << 30); /* garbage: what a last user left */
    struct scheduler_config c = {.max_num_seqs = 1 + rnd(8),
                                 .block_size = 1 << rnd(5),
                                 .has_state = rnd(2),
                                 .prefix_cache = rnd(4) > 0,
                                 .page_bytes = 64,
                                 .step = fake_step,
                                 .move = fake_move,
                                 .step_arg = &w,
                                 .move_arg = &w};
    c.max_num_batched_tokens = c.max_num_seqs + rnd(60);
    c.long_prefill_threshold = rnd(2) ? rnd(20) : 0;
    c.max_prefills = rnd(3);
    c.priority_scheduling = rnd(2);
    c.n_blocks = 4 + rnd(MAX_BLOCKS - 4);
    c.max_logits = c.max_num_seqs + 1 + rnd(10);
    c.n_snapshots = rnd(rnd(2) ? 4 : MAX_SLOTS - 8);
    c.swap_pages = rnd(2) ? rnd(MAX_PAGES) : 0;
    c.state_pages = c.has_state ? 1 << rnd(3) : 0;
    int max_len = c.n_blocks * c.block_size < MAX_LEN ? c.n_blocks * c.block_size : MAX_LEN;
    scheduler_init(&w.s, &c);
    w.s.swap.fixed = true; /* and of what swap costs, all cases: always, never, for long ones */
    w.s.swap.copy_rate = 1e6;
    w.s.swap.prefill_rate = rnd(2) ? 1 : 1e3 * rnd(20);
    int to_come = 4 + rnd(MAX_REQUESTS - 4), open = 0;
    for (int step = 0; to_come > 0 || open > 0; step++) {
        assert_true(step < 30000); /* nothing starves */
        for (int i = 0; i < MAX_REQUESTS; i++) {
            struct client *k = &clients[i];
            if (k->r) {
                struct sluice_progress g;
                sluice_request_progress(k->r, &g);
                if (g.finish != SLUICE_RUNNING || rnd(200) == 0) {
                    check_answer(&w, k);
                    atomic_store(&k->r->cancelled, true);
                    request_unref(k->r);
                    k->r = NULL;
                    open--;
                }
            } else if (to_come > 0 && rnd(10) == 0) {
                int n = rnd(3) ? 1 : 1 + rnd(n_free(clients, i));
                arrive(&w, k, n, max_len);
                to_come -= n;
                open += n;
            }
        }
        /* every request that decodes before the step has one token more after it, unless it was preempted */
        int before[MAX_REQUESTS], preempted[MAX_REQUESTS];
        for (int i = 0; i < MAX_REQUESTS; i++) {
            const struct sluice_request *r = clients[i].r;
            before[i] = r && atomic_load(&clients[i].r->finish) == SLUICE_RUNNING &&
                                r->n_tokens - r->n_computed == 1 && r->n_computed > 0
                            ? r->n_tokens
                            : -1;
            preempted[i] = r ? atomic_load(&clients[i].r->preemptions) : 0;
        }
        bool published;
        int allocated = allocations;
        if (scheduler_step(&w.s, &published) == 0)
            assert_int_equal(w.s.running.n + w.s.waiting.n, 0); /* no deadlock */
        assert_int_equal(allocations, allocated);
        for (int i = 0; i < MAX_REQUESTS; i++)
            if (before[i] >= 0 && clients[i].r && preempted[i] == atomic_load(&clients[i].r->preemptions))
                assert_true(clients[i].r->n_tokens == before[i] + 1 || clients[i].max_tokens == 0);
        for (int i = 0; i < MAX_REQUESTS; i++)
            if (clients[i].r && atomic_load(&clients[i].r->finish) != SLUICE_RUNNING)
                assert_true(published); /* those that ended before left the table above */
    }
    bool published;
    scheduler_step(&w.s, &published);
    assert_int_equal(w.s.running.n + w.s.waiting.n, 0);
    assert_int_equal(blocks_available(&w.s.pool), c.n_blocks);
    assert_int_equal(w.s.n_free_slots, c.has_state ? c.max_num_seqs : 0);
    assert_int_equal(w.s.swap.n_free, c.swap_pages);
    assert_null(w.s.forks.oldest);
    assert_null(w.s.forks.newest);
    sum.swapped_out += w.s.stats.swapped_out;
    sum.swapped_in += w.s.stats.swapped_in;
    sum.forked += w.s.stats.forked;
    sum.preemptions += w.s.stats.preemptions;
    sum.recomputed_tokens += w.s.stats.recomputed_tokens;
    for (int i = 0; i < w.s.prefix.n_snapshots; i++) {
        assert_int_equal(w.s.prefix.snapshots[i].resuming, 0);
        assert_true(w.s.prefix.snapshots[i].block >= -1); /* none stays reserved */
    }
    scheduler_free(&w.s);
}

static void thousands_of_worlds(void **state)
{
    (void)state;
    const char *n = getenv("SLUICE_WORLDS");
    for (uint64_t seed = 1; seed <= (n ? strtoull(n, NULL, 10) : 5000); seed++)
        one_world(seed);
    assert_true(sum.swapped_out > 100 && sum.swapped_in > 100 && sum.preemptions > sum.swapped_out);
    assert_true(sum.forked > 1000 && sum.recomputed_tokens > 1000);
    if (getenv("SLUICE_WORLDS"))
        print_message("swapped out %llu, in %llu; preempted %llu; forked %llu; recomputed %llu tokens\n",
                      (unsigned long long)sum.swapped_out, (unsigned long long)sum.swapped_in,
                      (unsigned long long)sum.preemptions, (unsigned long long)sum.forked,
                      (unsigned long long)sum.recomputed_tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(thousands_of_worlds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
