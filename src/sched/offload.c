#include "sched/offload.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/plan.h"
#include "sched/average.h"
#include "sched/offload_store.h"

enum {
    MAX_FETCHES = 16,  /* requests that wait for the disk */
    LEAST_GAIN = 16,   /* tokens: less is not worth a wait */
    PAUSE_SECONDS = 10 /* without writing, after the disk refused */
};

struct slot_list {
    struct offload_slot *first, *last;
};

struct offload {
    struct offload_config config;
    struct offload_store *store;
    struct offload_slot *slots; /* [n_slots] all of them */
    int n_slots;
    char *memory; /* their data and tokens */
    size_t memory_bytes;

    pthread_mutex_t lock; /* of all below; held for moments only, never during a read or write */
    pthread_cond_t work;  /* for the threads: something to write, to fetch, a slot to read into, or the end */
    pthread_cond_t room;  /* for a patient offload_begin: the writer gave a slot back */
    struct slot_list to_write, arrived;
    struct slot_list free_write[OFFLOAD_KINDS], free_read[OFFLOAD_KINDS];
    struct offload_fetch fetches[MAX_FETCHES];
    struct offload_fetch *fetch_first, *fetch_last; /* the reader's queue */
    bool stopping;
    double give_up; /* clock_now() after which what is queued is not written; 0 = never */
    double paused_until;
    double read_rate;         /* bytes a second; 0 = not measured */
    double seconds_per_token; /* of prompts; 0 = not measured */
    struct sluice_offload_stats stats;

    pthread_t writer, reader;
    bool has_writer, has_reader;
};

void offload_key(const uint64_t *parent, const uint64_t salt[2], const int32_t *tokens, int n,
                 uint64_t key[2])
{
    struct hash h;
    hash_init(&h);
    hash_add(&h, parent ? parent : salt, 2 * sizeof *salt);
    hash_add(&h, tokens, (size_t)n * sizeof *tokens);
    hash_end(&h, key);
}

static void push(struct slot_list *l, struct offload_slot *s)
{
    s->next = NULL;
    *(l->last ? &l->last->next : &l->first) = s;
    l->last = s;
}

static struct offload_slot *pop(struct slot_list *l)
{
    struct offload_slot *s = l->first;
    if (s && !(l->first = s->next))
        l->last = NULL;
    return s;
}

static size_t bytes_of(const struct offload *o, enum offload_kind kind)
{
    return kind == OFFLOAD_KV ? o->config.block_bytes : o->config.state_bytes;
}

static uint64_t *missed(struct offload *o, enum offload_result r)
{
    struct sluice_offload_stats *s = &o->stats;
    switch (r) {
    case OFFLOAD_ABSENT:
        return &s->missed_absent;
    case OFFLOAD_FOREIGN:
        return &s->missed_foreign;
    case OFFLOAD_OTHER:
        return &s->missed_other;
    case OFFLOAD_DAMAGED:
        return &s->missed_damaged;
    default:
        return &s->missed_failed;
    }
}

/* --- the writer's thread ------------------------------------------------------------------------- */

/* Once: it will not get better by saying it again. */
static void warn_of_disk(const struct offload *o, int why)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true))
        log_warn(
            "writing to the offload directory %s failed (%s): serving goes on without; tried again every "
            "%d s",
            o->config.dir, strerror(why), PAUSE_SECONDS);
}

static void write_slot(struct offload *o, const struct offload_slot *s)
{
    const struct offload_file f = {.kind = s->kind,
                                   .model = {o->config.model[0], o->config.model[1]},
                                   .key = {s->key[0], s->key[1]},
                                   .salt = {s->salt[0], s->salt[1]},
                                   .tokens = s->tokens,
                                   .n_tokens = (size_t)s->n_tokens,
                                   .bytes = bytes_of(o, s->kind)};
    pthread_mutex_lock(&o->lock);
    double now = clock_now();
    bool skip = now < o->paused_until || (o->give_up > 0 && now > o->give_up);
    pthread_mutex_unlock(&o->lock);
    int why = skip ? 0 : offload_store_put(o->store, &f, s->data);
    if (why)
        warn_of_disk(o, why);
    pthread_mutex_lock(&o->lock);
    if (why) {
        o->stats.errors++;
        o->paused_until = clock_now() + PAUSE_SECONDS;
    }
    if (why || skip) {
        o->stats.dropped++;
    } else {
        o->stats.bytes_written += offload_file_size(&f);
        (*(s->kind == OFFLOAD_KV ? &o->stats.blocks_written : &o->stats.states_written))++;
    }
    pthread_mutex_unlock(&o->lock);
}

static void *writer_main(void *arg)
{
    struct offload *o = arg;
    pthread_mutex_lock(&o->lock);
    for (;;) {
        struct offload_slot *s = pop(&o->to_write);
        if (!s && o->stopping)
            break;
        if (!s) {
            pthread_cond_wait(&o->work, &o->lock);
            continue;
        }
        pthread_mutex_unlock(&o->lock);
        write_slot(o, s);
        pthread_mutex_lock(&o->lock);
        push(&o->free_write[s->kind], s);
        pthread_cond_signal(&o->room);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* --- the reader's thread ------------------------------------------------------------------------- */

static bool unwanted(const struct offload *o, const struct offload_fetch *f)
{
    return o->stopping || f->stopped;
}

/* A free slot to read into, or NULL when the fetch is not wanted any more. Under the lock. */
static struct offload_slot *wait_for_slot(struct offload *o, const struct offload_fetch *f,
                                          enum offload_kind kind)
{
    struct offload_slot *s = NULL;
    while (!unwanted(o, f) && !(s = pop(&o->free_read[kind])))
        pthread_cond_wait(&o->work, &o->lock);
    return s;
}

/* Reads the file of f's block i, or the state after it. Under the lock, which it leaves while it reads. NULL
 * when there is nothing to hand over. */
static struct offload_slot *read_one(struct offload *o, struct offload_fetch *f, enum offload_kind kind,
                                     int i, const uint64_t key[2])
{
    struct offload_slot *s = wait_for_slot(o, f, kind);
    if (!s)
        return NULL;
    const struct sluice_request *r = f->r;
    const struct offload_file want = {.kind = kind,
                                      .model = {o->config.model[0], o->config.model[1]},
                                      .key = {key[0], key[1]},
                                      .salt = {r->salt[0], r->salt[1]},
                                      .tokens = r->tokens,
                                      .n_tokens = (size_t)(i + 1) * (size_t)o->config.block_size,
                                      .bytes = bytes_of(o, kind)};
    pthread_mutex_unlock(&o->lock);
    double start = clock_now();
    enum offload_result result = offload_store_get(o->store, &want, s->data);
    double seconds = clock_now() - start;
    pthread_mutex_lock(&o->lock);
    f->bytes_left -= want.bytes;
    if (result != OFFLOAD_OK) {
        (*missed(o, result))++;
        f->failed = true;
        push(&o->free_read[kind], s);
        return NULL;
    }
    average_add(&o->read_rate, (double)want.bytes / (seconds > 1e-6 ? seconds : 1e-6), 0.1);
    o->stats.bytes_read += offload_file_size(&want);
    (*(kind == OFFLOAD_KV ? &o->stats.blocks_read : &o->stats.states_read))++;
    s->fetch = f;
    s->block = i;
    return s;
}

static void hand_over(struct offload *o, struct offload_slot *s)
{
    s->fetch->n_slots++;
    push(&o->arrived, s);
    pthread_mutex_unlock(&o->lock);
    o->config.wake(o->config.wake_arg);
    pthread_mutex_lock(&o->lock);
}

/* Under the lock. The state first: without it the blocks are no use to this request. */
static void read_fetch(struct offload *o, struct offload_fetch *f)
{
    const struct sluice_request *r = f->r;
    int bs = o->config.block_size;
    uint64_t key[2] = {0};
    struct offload_slot *state = NULL;
    if (f->with_state) {
        pthread_mutex_unlock(&o->lock); /* hashing a long prompt takes a moment */
        for (int i = 0; i < f->end; i++)
            offload_key(i ? key : NULL, r->salt, r->tokens + i * bs, bs, key);
        pthread_mutex_lock(&o->lock);
        if (!(state = read_one(o, f, OFFLOAD_STATE, f->end - 1, key)))
            return;
    }
    for (int i = 0; i < f->end; i++) {
        offload_key(i ? key : NULL, r->salt, r->tokens + i * bs, bs, key);
        if (i < f->first)
            continue;
        struct offload_slot *s = read_one(o, f, OFFLOAD_KV, i, key);
        if (!s)
            break;
        hand_over(o, s);
    }
    if (state) /* last, when the engine has the block that it belongs to */
        hand_over(o, state);
}

static void *reader_main(void *arg)
{
    struct offload *o = arg;
    pthread_mutex_lock(&o->lock);
    while (!o->stopping) {
        struct offload_fetch *f = o->fetch_first;
        if (!f) {
            pthread_cond_wait(&o->work, &o->lock);
            continue;
        }
        if (!(o->fetch_first = f->next))
            o->fetch_last = NULL;
        read_fetch(o, f);
        f->done = true;
        f->bytes_left = 0;
        pthread_mutex_unlock(&o->lock);
        o->config.wake(o->config.wake_arg);
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* --- opening ------------------------------------------------------------------------------------- */

static int slots_of(const struct offload_config *c, bool reads, enum offload_kind kind)
{
    if (kind == OFFLOAD_STATE)
        return c->state_bytes ? (reads ? OFFLOAD_READ_STATES : OFFLOAD_WRITE_STATES) : 0;
    return reads ? OFFLOAD_READ_BLOCKS : c->write_blocks;
}

/* Bytes of one slot: its data, a multiple of 64 from the start, and for the writer the tokens. */
static size_t slot_bytes(const struct offload_config *c, bool reads, enum offload_kind kind)
{
    size_t data = kind == OFFLOAD_KV ? c->block_bytes : c->state_bytes;
    size_t tokens = reads ? 0 : (size_t)c->max_model_len * sizeof(int32_t);
    return (data + 63) / 64 * 64 + (tokens + 63) / 64 * 64;
}

size_t offload_staging_bytes(const struct offload_config *c)
{
    size_t bytes = 0;
    for (int reads = 0; reads < 2; reads++)
        for (int kind = 0; kind < OFFLOAD_KINDS; kind++)
            bytes += (size_t)slots_of(c, reads, (enum offload_kind)kind) *
                     slot_bytes(c, reads, (enum offload_kind)kind);
    return bytes;
}

static void make_slots(struct offload *o)
{
    const struct offload_config *c = &o->config;
    char *at = o->memory;
    for (int reads = 0; reads < 2; reads++)
        for (int k = 0; k < OFFLOAD_KINDS; k++) {
            enum offload_kind kind = (enum offload_kind)k;
            for (int i = slots_of(c, reads, kind); i > 0; i--) {
                struct offload_slot *s = &o->slots[o->n_slots++];
                s->kind = kind;
                s->data = at;
                if (!reads)
                    s->tokens = (int32_t *)(at + (bytes_of(o, kind) + 63) / 64 * 64);
                at += slot_bytes(c, reads, kind);
                push(reads ? &o->free_read[kind] : &o->free_write[kind], s);
            }
        }
}

int offload_max_tokens(const struct offload *o)
{
    return o->config.max_model_len;
}

size_t offload_limit(struct offload *o)
{
    struct offload_usage u;
    offload_store_usage(o->store, &u);
    return u.limit;
}

size_t offload_size(const struct offload *o, enum offload_kind kind, int n_tokens)
{
    const struct offload_file f = {.n_tokens = (size_t)n_tokens, .bytes = bytes_of(o, kind)};
    return offload_file_size(&f);
}

struct offload *offload_open(const struct offload_config *c, struct err *e)
{
    struct offload *o = mem_zalloc(1, sizeof *o);
    o->config = *c;
    pthread_condattr_t attr;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->work, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->room, &attr);
    pthread_condattr_destroy(&attr);
    size_t typical = c->block_bytes + (size_t)c->block_size * sizeof(int32_t);
    o->store = offload_store_open(c->dir, c->model, c->limit, typical, e);
    if (!o->store)
        goto fail;
    o->memory_bytes = offload_staging_bytes(c);
    o->memory = mem_map(o->memory_bytes);
    if (!o->memory) {
        err_set(e, ERR_NO_MEMORY, "no memory for the %zu bytes between the KV cache and %s", o->memory_bytes,
                c->dir);
        goto fail;
    }
    o->slots = mem_zalloc(
        (size_t)(c->write_blocks + OFFLOAD_READ_BLOCKS + OFFLOAD_WRITE_STATES + OFFLOAD_READ_STATES),
        sizeof *o->slots);
    make_slots(o);
    o->stats.enabled = true;
    signal(SIGXFSZ, SIG_IGN); /* a file over the system's limit (ulimit -f) is an error like others */
    o->has_writer = pthread_create(&o->writer, NULL, writer_main, o) == 0;
    o->has_reader = pthread_create(&o->reader, NULL, reader_main, o) == 0;
    if (!o->has_writer || !o->has_reader) {
        err_set(e, ERR_IO, "the system refused a thread for %s", c->dir);
        goto fail;
    }
    struct offload_usage u;
    offload_store_usage(o->store, &u);
    log_info("prefix cache on disk: %s, %.1f MB of at most %.1f MB", c->dir, (double)u.bytes / 1e6,
             (double)u.limit / 1e6);
    return o;
fail:
    offload_close(o, 0);
    return NULL;
}

void offload_close(struct offload *o, double seconds)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->stopping = true;
    o->give_up = clock_now() + seconds;
    pthread_cond_broadcast(&o->work);
    pthread_mutex_unlock(&o->lock);
    if (o->has_writer)
        pthread_join(o->writer, NULL);
    if (o->has_reader)
        pthread_join(o->reader, NULL);
    for (int i = 0; i < MAX_FETCHES; i++)
        if (o->fetches[i].r)
            request_unref(o->fetches[i].r);
    offload_store_close(o->store);
    if (o->memory)
        mem_unmap(o->memory, o->memory_bytes);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->work);
    pthread_cond_destroy(&o->room);
    free(o->slots);
    free(o);
}

/* --- the engine's side: writing ------------------------------------------------------------------ */

struct offload_slot *offload_begin(struct offload *o, enum offload_kind kind, const uint64_t key[2],
                                   bool patient)
{
    if (offload_store_has(o->store, kind, key))
        return NULL;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_mutex_lock(&o->lock);
    struct offload_slot *s = pop(&o->free_write[kind]);
    while (!s && patient && pthread_cond_timedwait(&o->room, &o->lock, &until) != ETIMEDOUT)
        s = pop(&o->free_write[kind]);
    o->stats.dropped += !s;
    pthread_mutex_unlock(&o->lock);
    if (s)
        memcpy(s->key, key, sizeof s->key);
    return s;
}

void offload_commit(struct offload *o, struct offload_slot *s, int index)
{
    if (index >= 0)
        o->config.save(o->config.copy_arg, s->kind, index, s->data);
    pthread_mutex_lock(&o->lock);
    push(index >= 0 ? &o->to_write : &o->free_write[s->kind], s);
    pthread_cond_broadcast(&o->work);
    pthread_mutex_unlock(&o->lock);
}

/* --- the engine's side: reading ------------------------------------------------------------------ */

bool offload_has(struct offload *o, enum offload_kind kind, const uint64_t key[2])
{
    return offload_store_has(o->store, kind, key);
}

bool offload_worthwhile(struct offload *o, int n_blocks, bool with_state, int n_tokens)
{
    double bytes =
        (double)n_blocks * (double)o->config.block_bytes + (with_state ? (double)o->config.state_bytes : 0);
    pthread_mutex_lock(&o->lock);
    if (n_tokens < LEAST_GAIN) {
        o->stats.missed_absent++;
        pthread_mutex_unlock(&o->lock);
        return false;
    }
    for (int i = 0; i < MAX_FETCHES; i++)
        bytes += (double)o->fetches[i].bytes_left;
    bool faster = o->read_rate <= 0 || o->seconds_per_token <= 0 ||
                  bytes / o->read_rate < n_tokens * o->seconds_per_token;
    if (!faster) {
        o->stats.missed_slow++;
        o->read_rate *= 1.05; /* or a bad moment of the disk would be believed for ever */
    }
    pthread_mutex_unlock(&o->lock);
    return faster;
}

bool offload_fetch(struct offload *o, const struct offload_fetch *f)
{
    struct offload_fetch *mine = NULL;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MAX_FETCHES && !mine; i++)
        if (!o->fetches[i].r)
            mine = &o->fetches[i];
    if (mine) {
        *mine = *f;
        mine->bytes_left = (uint64_t)(f->end - f->first) * o->config.block_bytes +
                           (f->with_state ? o->config.state_bytes : 0);
        atomic_fetch_add(&f->r->refs, 1);
        *(o->fetch_first ? &o->fetch_last->next : &o->fetch_first) = mine;
        o->fetch_last = mine;
        pthread_cond_broadcast(&o->work);
    } else {
        o->stats.missed_busy++;
    }
    pthread_mutex_unlock(&o->lock);
    return mine != NULL;
}

struct offload_slot *offload_arrived(struct offload *o)
{
    pthread_mutex_lock(&o->lock);
    struct offload_slot *s = pop(&o->arrived);
    pthread_mutex_unlock(&o->lock);
    return s;
}

void offload_take(struct offload *o, const struct offload_slot *s, int index)
{
    o->config.load(o->config.copy_arg, s->kind, index, s->data);
}

void offload_release(struct offload *o, struct offload_slot *s)
{
    pthread_mutex_lock(&o->lock);
    s->fetch->n_slots--;
    push(&o->free_read[s->kind], s);
    pthread_cond_broadcast(&o->work);
    pthread_mutex_unlock(&o->lock);
}

void offload_stop(struct offload *o, struct offload_fetch *f)
{
    pthread_mutex_lock(&o->lock);
    f->stopped = true;
    pthread_cond_broadcast(&o->work);
    pthread_mutex_unlock(&o->lock);
}

struct sluice_request *offload_finished(struct offload *o, bool *failed)
{
    struct sluice_request *r = NULL;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MAX_FETCHES && !r; i++) {
        struct offload_fetch *f = &o->fetches[i];
        if (!f->r)
            continue;
        if (atomic_load(&f->r->cancelled))
            f->stopped = true;
        if (f->done && f->n_slots == 0) {
            r = f->r;
            *failed = f->failed;
            f->r = NULL;
        }
    }
    pthread_mutex_unlock(&o->lock);
    return r;
}

void offload_note_prefill(struct offload *o, int n_tokens, double seconds)
{
    pthread_mutex_lock(&o->lock);
    average_add(&o->seconds_per_token, seconds / n_tokens, 0.2);
    pthread_mutex_unlock(&o->lock);
}

void offload_note_lookup(struct offload *o, int n_tokens, int n_found)
{
    pthread_mutex_lock(&o->lock);
    o->stats.looked_up_tokens += (uint64_t)n_tokens;
    o->stats.found_tokens += (uint64_t)n_found;
    pthread_mutex_unlock(&o->lock);
}

void offload_stats(struct offload *o, struct sluice_offload_stats *out)
{
    struct offload_usage u;
    offload_store_usage(o->store, &u);
    pthread_mutex_lock(&o->lock);
    *out = o->stats;
    out->read_bytes_per_second = o->read_rate;
    pthread_mutex_unlock(&o->lock);
    out->files = u.files;
    out->bytes = u.bytes;
    out->limit = u.limit;
    out->evicted = u.evicted;
}
