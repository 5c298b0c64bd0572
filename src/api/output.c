#include "api/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void output_init(struct output *o, const struct tokenizer *t, bool skip_special,
                 const struct stop_string *stops, int n_stops, bool include_stop, int min_tokens,
                 const struct output_parsing *parsing)
{
    *o = (struct output){.stops = stops,
                         .n_stops = n_stops,
                         .include_stop = include_stop,
                         .min_tokens = min_tokens,
                         .must_call = parsing->must_call,
                         .named_call = parsing->named_call,
                         .parses = parsing->reasoning || parsing->format != TOOLS_NONE};
    detokenizer_init(&o->detok, t, skip_special);
    reasoning_init(&o->reasoning, parsing->start);
    o->reasoning.exact = parsing->constrained;
    tool_calls_init(&o->calls, parsing->format, parsing->tools, parsing->only_first_call);
    o->calls.json.only_tagged = parsing->constrained;
    if (parsing->format != TOOLS_NONE) {
        o->reasoning.call_begins = tool_calls_begin_at;
        o->reasoning.arg = &o->calls;
    }
}

void output_free(struct output *o)
{
    str_free(&o->fresh);
    str_free(&o->held);
    str_free(&o->text);
    str_free(&o->rest);
    free(o->starts);
    reasoning_free(&o->reasoning);
    tool_calls_free(&o->calls);
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

/* The token's text. Marks are text to the parsers even where the model flags them special. */
static void detokenize(struct output *o, int32_t id, struct str *text)
{
    static const char *const marks[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    size_t len;
    const char *bytes = tokenizer_bytes(o->detok.t, id, &len);
    if (o->parses && o->detok.skip_special && tokenizer_is_special(o->detok.t, id))
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            if (len == strlen(marks[i]) && memcmp(bytes, marks[i], len) == 0) {
                str_add(text, bytes, len);
                return;
            }
    detokenizer_add(&o->detok, id, text);
}

/* Text of the newest token -> text that is certain, and the stop string that it completes. */
static int pass_stops(struct output *o, struct str *out)
{
    if (o->n_stops == 0) {
        str_add(out, str_text(&o->fresh), o->fresh.len);
        return -1;
    }
    bool may_stop = o->n_tokens > o->min_tokens;
    for (size_t i = 0; i < o->fresh.len; i++) {
        str_addc(&o->held, o->fresh.data[i]);
        int hit = may_stop ? stop_ending_at(o, o->held.len) : -1;
        if (hit >= 0) {
            release(o, o->held.len - (o->include_stop ? 0 : o->stops[hit].len), out);
            str_clear(&o->held);
            return hit;
        }
    }
    release(o, o->held.len - pending(o), out);
    return -1;
}

/* Counts the tokens about which the reasoning parser has decided. */
static void count_reasoning(struct output *o)
{
    const struct reasoning *r = &o->reasoning;
    int n = 0;
    while (n < o->n_starts && o->starts[n] < r->decided) {
        size_t at = o->starts[n++];
        bool thinks = r->state == INSIDE || r->over > 0;
        o->n_reasoning += thinks && at >= r->begin && at < r->end;
        o->n_thought += thinks && (r->over == 0 || at < r->over);
    }
    if (n == 0)
        return;
    memmove(o->starts, o->starts + n, (size_t)(o->n_starts - n) * sizeof *o->starts);
    o->n_starts -= n;
}

/* Certain text -> parts. */
static void parse(struct output *o, const struct str *text, struct parts *delta)
{
    if (!o->parses) {
        str_add(&delta->content, str_text(text), text->len);
        return;
    }
    str_clear(&o->rest);
    reasoning_add(&o->reasoning, str_text(text), text->len, &delta->reasoning, &o->rest);
    tool_calls_add(&o->calls, str_text(&o->rest), o->rest.len, delta);
    count_reasoning(o);
}

static void finish_parsing(struct output *o, enum text_end end, struct parts *delta)
{
    if (!o->parses)
        return;
    str_clear(&o->rest);
    reasoning_finish(&o->reasoning, &delta->reasoning, &o->rest);
    tool_calls_add(&o->calls, str_text(&o->rest), o->rest.len, delta);
    tool_calls_finish(&o->calls, end, delta);
    count_reasoning(o);
}

int output_add(struct output *o, int32_t id, struct parts *delta)
{
    o->n_tokens++;
    str_clear(&o->fresh);
    str_clear(&o->text);
    detokenize(o, id, &o->fresh);
    if (o->parses) {
        if (o->n_starts == o->cap_starts) {
            o->cap_starts = o->cap_starts ? 2 * o->cap_starts : 16;
            o->starts = mem_realloc(o->starts, (size_t)o->cap_starts, sizeof *o->starts);
        }
        o->starts[o->n_starts++] = o->n_bytes;
        o->n_bytes += o->fresh.len;
    }
    int hit = pass_stops(o, &o->text);
    parse(o, &o->text, delta);
    if (hit >= 0)
        finish_parsing(o, TEXT_STOPPED, delta);
    return hit;
}

void output_skip(struct output *o)
{
    o->n_tokens++;
}

void output_finish(struct output *o, enum text_end end, struct parts *delta)
{
    str_clear(&o->text);
    release(o, o->held.len, &o->text);
    detokenizer_flush(&o->detok, &o->text);
    parse(o, &o->text, delta);
    finish_parsing(o, end, delta);
}
