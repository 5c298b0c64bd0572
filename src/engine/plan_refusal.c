#include "engine/plan_refusal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/str.h"

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

struct search {
    const struct model *m;
    const struct sluice_options *o;
    const struct dtypes *types;
    const struct sluice_plan *p; /* what did not fit */
    struct str text;             /* of what would */
};

/* A setting that takes memory: a number of the options, int or size_t; `in_gib` says how it is written. */
struct knob {
    const char *name;
    int *number;
    size_t *bytes;
    size_t now;
    bool in_gib;
};

static void set(const struct knob *k, size_t v)
{
    if (k->number)
        *k->number = (int)v;
    else
        *k->bytes = v;
}

static bool fits(struct search *s, const struct sluice_options *o, const struct dtypes *types)
{
    struct sluice_plan plan;
    struct err e;
    return plan_try(s->m, o, types, s->p->threads, s->p->available, true, &plan, &e) == 0;
}

static void suggest(struct search *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void suggest(struct search *s, const char *fmt, ...)
{
    char words[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    str_addf(&s->text, "%s%s", s->text.len ? ", or " : "it fits with ", words);
}

/* The largest value below the present one that fits, everything else as it is. `o` are the options that the
 * knob changes. */
static void try_knob(struct search *s, struct sluice_options *o, const struct knob *k)
{
    size_t good = 0, bad = k->now;
    while (bad - good > 1) {
        size_t v = good + (bad - good) / 2;
        set(k, v);
        *(fits(s, o, s->types) ? &good : &bad) = v;
    }
    if (k->in_gib && gib(good) >= 1e-4)
        suggest(s, "--%s %.4f (now %.4f)", k->name, floor(gib(good) * 1e4) / 1e4, gib(k->now));
    else if (good && !k->in_gib)
        suggest(s, "--%s %zu (now %zu)", k->name, good, k->now);
    set(k, k->now);
}

int plan_refuse(const struct model *m, const struct sluice_options *o, const struct dtypes *types,
                const struct sluice_plan *p, struct err *e)
{
    struct search s = {m, o, types, p, {0}};
    struct sluice_options changed = *o;
    const struct knob knobs[] = {
        {"max-model-len", &changed.max_model_len, NULL, (size_t)o->max_model_len, false},
        {"num-gpu-blocks-override", &changed.num_kv_blocks, NULL, (size_t)o->num_kv_blocks, false},
        {"kv-cache-memory-bytes", NULL, &changed.kv_cache_bytes, o->kv_cache_bytes, false},
        {"state-cache-memory-bytes", NULL, &changed.state_cache_bytes, o->state_cache_bytes, false},
        {"swap-space", NULL, &changed.swap_bytes, o->swap_bytes, true},
        {"max-num-batched-tokens", &changed.max_num_batched_tokens, NULL, (size_t)p->max_num_batched_tokens,
         false},
    };
    for (size_t i = 0; i < sizeof knobs / sizeof knobs[0]; i++)
        if (knobs[i].now)
            try_knob(&s, &changed, &knobs[i]);
    struct dtypes smaller = *types;
    smaller.kv = DT_I8;
    if (types->kv != DT_I8 && fits(&s, o, &smaller))
        suggest(&s, "--kv-cache-dtype int8_per_token_head (now %s)", p->kv_dtype);
    double share = ceil(100 * (double)p->total / (double)mem_total()) / 100;
    if (share <= 1 && mem_available() >= p->total)
        suggest(&s, "--memory-utilization %.2f", share);

    struct sluice_options least = *o;
    struct sluice_plan smallest = *p;
    least.max_model_len = least.max_num_batched_tokens = 1;
    least.num_kv_blocks = 0;
    least.kv_cache_bytes = least.state_cache_bytes = least.swap_bytes = 0;
    plan_try(m, &least, types, p->threads, p->available, true, &smallest, e);
    if (smallest.total > p->available)
        err_set(
            e, ERR_NO_MEMORY,
            "the model needs at least %.2f GiB (weights %.2f GiB) and this machine grants %.2f GiB: use a "
            "smaller model or fewer bits a weight, or free memory%s%s",
            gib(smallest.total), gib(p->weights), gib(p->available), s.text.len ? "; " : "",
            str_text(&s.text));
    else
        err_set(e, ERR_NO_MEMORY,
                "the plan needs %.2f GiB (weights %.2f, KV %.2f, state %.2f, scratch %.2f, logits %.2f, swap "
                "and staging %.2f, bookkeeping %.2f) and this machine grants %.2f GiB: %s",
                gib(p->total), gib(p->weights), gib(p->kv_pool), gib(p->state + p->state_cache),
                gib(p->scratch), gib(p->logits), gib(p->swap + p->offload), gib(p->bookkeeping),
                gib(p->available),
                s.text.len ? str_text(&s.text) : "no one setting alone makes it fit, several would");
    str_free(&s.text);
    return -1;
}
