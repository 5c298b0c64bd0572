#include "api/output.h"

#include <string.h>

void output_init(struct output *o, const struct tokenizer *t, bool skip_special,
                 const struct stop_string *stops, int n_stops, bool include_stop, int min_tokens)
{
    *o = (struct output){
        .stops = stops, .n_stops = n_stops, .include_stop = include_stop, .min_tokens = min_tokens};
    detokenizer_init(&o->detok, t, skip_special);
}

void output_free(struct output *o)
{
    str_free(&o->fresh);
    str_free(&o->held);
}

/* The longest stop string that ends at byte `len` of held, or -1. */
static int stop_ending_at(const struct output *o, size_t len)
{
    int best = -1;
    for (int i = 0; i < o->n_stops; i++) {
        const struct stop_string *s = &o->stops[i];
        if (s->len <= len && memcmp(o->held.data + len - s->len, s->text, s->len) == 0 &&
            (best < 0 || s->len > o->stops[best].len))
            best = i;
    }
    return best;
}

/* Bytes at the end of held that are a proper prefix of some stop string: the longest such. O(stops x length²)
 * at worst, over strings that are short. */
static size_t pending(const struct output *o)
{
    size_t best = 0;
    for (int i = 0; i < o->n_stops; i++) {
        const struct stop_string *s = &o->stops[i];
        size_t n = s->len - 1 < o->held.len ? s->len - 1 : o->held.len;
        while (n > best && memcmp(o->held.data + o->held.len - n, s->text, n) != 0)
            n--;
        if (n > best)
            best = n;
    }
    return best;
}

/* Moves the first n bytes of held to *delta. */
static void release(struct output *o, size_t n, struct str *delta)
{
    if (n == 0)
        return;
    str_add(delta, o->held.data, n);
    memmove(o->held.data, o->held.data + n, o->held.len - n + 1);
    o->held.len -= n;
}

int output_add(struct output *o, int32_t id, struct str *delta)
{
    o->n_tokens++;
    if (o->n_stops == 0) {
        detokenizer_add(&o->detok, id, delta);
        return -1;
    }
    str_clear(&o->fresh);
    detokenizer_add(&o->detok, id, &o->fresh);
    bool may_stop = o->n_tokens > o->min_tokens;
    for (size_t i = 0; i < o->fresh.len; i++) {
        str_addc(&o->held, o->fresh.data[i]);
        int hit = may_stop ? stop_ending_at(o, o->held.len) : -1;
        if (hit >= 0) {
            release(o, o->held.len - (o->include_stop ? 0 : o->stops[hit].len), delta);
            str_clear(&o->held);
            return hit;
        }
    }
    release(o, o->held.len - pending(o), delta);
    return -1;
}

void output_skip(struct output *o)
{
    o->n_tokens++;
}

void output_finish(struct output *o, struct str *delta)
{
    release(o, o->held.len, delta);
    detokenizer_flush(&o->detok, delta);
}
