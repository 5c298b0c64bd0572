/* JSON numbers within bounds, digit by digit. The automaton compares what was written so far with both
 * bounds: as long as it equals a bound's own digits it is "tight" on that side, afterwards it is free. For a
 * multiple it also keeps the remainder. So bounds cost states in the number of their digits, not in their
 * size.
 *
 * Numbers have an end here: at most 32 digits before the point, so that an answer cannot be one endless
 * number. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum {
    MAX_DIGITS = 32,          /* before the point */
    MAX_DIGITS_MULTIPLE = 15, /* the same with multipleOf, which has states for every remainder */
    MAX_FRACTION = 31,
    MAX_NUMBER_STATES = 40000,
    MAX_DIVISOR = 1000000,
};

/* A bound of the magnitude: the digits before and after the point. */
struct decimal {
    char whole[64], fraction[64]; /* no leading zeros in whole, but "0"; no trailing zeros in fraction */
    bool none;                    /* no bound */
    bool open;
};

/* What is allowed of a magnitude. */
struct magnitude {
    struct decimal lo, hi;
    int max_fraction; /* digits after the point; 0 = whole numbers only */
    uint32_t divisor; /* 0 = any; else value * 10^scale must be a multiple of it */
    int scale;
};

/* Where a number is, digits read so far being legal. */
struct place {
    bool fraction;
    bool low, high;      /* tight */
    int16_t at;          /* digits read of this side of the point, where that matters */
    int16_t least, most; /* digits still to come before the point */
    uint32_t rest;
};

struct number_graph {
    struct grammar_builder *b;
    const struct magnitude *m;
    struct place *places; /* places[i] is state i + 2 */
    struct graph_edge *edges;
    int n_places, n_edges, cap_places, cap_edges;
    int32_t *slots; /* [2 * MAX_NUMBER_STATES] open addressing: an index of places, -1 = free */
    grammar_node digit[10], point, empty;
};

static bool all_zero(const char *digits)
{
    return strspn(digits, "0") == strlen(digits);
}

/* The state of a place; -1 (and the builder's error) if there are too many. */
static int state_of(struct number_graph *g, struct place p)
{
    if (!p.low && !p.high && !p.fraction)
        p.at = 0; /* only the digits to come matter */
    uint32_t h = p.rest * 0x9e3779b9u ^
                 ((uint32_t)p.at << 16 | (uint32_t)p.least << 8 | (uint32_t)p.most) * 0x85ebca6bu;
    h ^= (uint32_t)(p.fraction << 2 | p.low << 1 | p.high);
    for (h %= 2 * MAX_NUMBER_STATES; g->slots[h] >= 0; h = (h + 1) % (2 * MAX_NUMBER_STATES)) {
        const struct place *q = &g->places[g->slots[h]];
        if (q->fraction == p.fraction && q->low == p.low && q->high == p.high && q->at == p.at &&
            q->least == p.least && q->most == p.most && q->rest == p.rest)
            return g->slots[h] + 2;
    }
    if (g->n_places >= MAX_NUMBER_STATES)
        return builder_fail(g->b, ERR_UNSUPPORTED, "multipleOf a number of so many digits is not supported");
    GROW(g->places, g->n_places, g->cap_places, 1);
    g->slots[h] = g->n_places;
    g->places[g->n_places] = p;
    return g->n_places++ + 2;
}

static void link(struct number_graph *g, int from, int to, grammar_node label)
{
    if (to < 0)
        return;
    GROW(g->edges, g->n_edges, g->cap_edges, 1);
    g->edges[g->n_edges++] = (struct graph_edge){from, to, label};
}

static char digit_at(const char *digits, int at)
{
    return at < (int)strlen(digits) ? digits[at] : '0';
}

/* Reads digit d at p; false if a bound forbids it. */
static bool read_digit(const struct magnitude *m, struct place *p, int d)
{
    const char *lo = p->fraction ? m->lo.fraction : m->lo.whole,
               *hi = p->fraction ? m->hi.fraction : m->hi.whole;
    char c = (char)('0' + d);
    if (p->low) {
        if (c < digit_at(lo, p->at))
            return false;
        p->low = c == digit_at(lo, p->at);
    }
    if (p->high) {
        if (c > digit_at(hi, p->at))
            return false;
        p->high = c == digit_at(hi, p->at);
    }
    p->at++;
    if (m->divisor)
        p->rest = (uint32_t)(((uint64_t)p->rest * 10 + (unsigned)d) % m->divisor);
    if (!p->fraction) {
        p->least -= p->least > 0;
        p->most--;
    }
    return true;
}

/* May the number end at p (where its form allows it)? */
static bool may_end(const struct magnitude *m, const struct place *p)
{
    const char *lo =
        p->fraction ? (int)strlen(m->lo.fraction) > p->at ? m->lo.fraction + p->at : "" : m->lo.fraction;
    const char *hi =
        p->fraction ? (int)strlen(m->hi.fraction) > p->at ? m->hi.fraction + p->at : "" : m->hi.fraction;
    if (p->low && (!all_zero(lo) || m->lo.open))
        return false;
    if (p->high && all_zero(hi) && m->hi.open)
        return false;
    if (m->divisor) {
        uint64_t rest = p->rest;
        for (int i = p->fraction ? p->at : 0; i < m->scale; i++)
            rest = rest * 10 % m->divisor;
        return rest == 0;
    }
    return true;
}

/* Adds the ways on from place i. */
static void explore(struct number_graph *g, int i)
{
    const struct magnitude *m = g->m;
    struct place p = g->places[i];
    int from = i + 2;
    bool first = !p.fraction && p.least >= 1 && p.at == -1;
    for (int d = 0; d <= 9 && (p.fraction ? p.at < m->max_fraction : p.most > 0); d++) {
        struct place q = p;
        if (first) {
            q.at = 0;
            if (d == 0 && p.least > 1)
                continue; /* no leading zero */
        }
        if (!read_digit(m, &q, d))
            continue;
        if (first && d == 0)
            q.most = 0;
        link(g, from, state_of(g, q), g->digit[d]);
    }
    bool whole_done = !p.fraction && p.least == 0;
    if (whole_done && m->max_fraction > 0) {
        struct place q = p;
        q.fraction = true;
        q.at = 0;
        q.least = q.most = 0;
        link(g, from, state_of(g, q), g->point);
    }
    if ((whole_done || (p.fraction && p.at > 0)) && may_end(m, &p))
        link(g, from, 1, g->empty);
}

/* The numbers whose whole part has least … most digits and is tight to a bound or not. */
static void add_lengths(struct number_graph *g, int least, int most, bool low, bool high)
{
    if (least > most)
        return;
    struct place p = {.low = low, .high = high, .at = -1, .least = (int16_t)least, .most = (int16_t)most};
    /* at = -1 says that no digit was read; state_of forgets it for free places, so make the state by hand. */
    GROW(g->places, g->n_places, g->cap_places, 1);
    g->places[g->n_places] = p;
    link(g, 0, g->n_places++ + 2, g->empty);
}

static grammar_node magnitude_node(struct grammar_builder *b, const struct magnitude *m)
{
    struct number_graph g = {.b = b, .m = m, .point = grammar_text(b, "."), .empty = grammar_text(b, "")};
    for (int d = 0; d <= 9; d++)
        g.digit[d] = grammar_literal(b, &"0123456789"[d], 1);
    g.slots = mem_alloc(2 * MAX_NUMBER_STATES * sizeof *g.slots);
    memset(g.slots, 0xFF, 2 * MAX_NUMBER_STATES * sizeof *g.slots);
    int most = m->divisor ? MAX_DIGITS_MULTIPLE : MAX_DIGITS;
    int low = (int)strlen(m->lo.whole), high = m->hi.none ? most : (int)strlen(m->hi.whole);
    high = m->hi.none && low > high ? low : high;
    if (low == high) {
        add_lengths(&g, low, low, true, !m->hi.none);
    } else if (low < high) {
        add_lengths(&g, low, low, true, false);
        add_lengths(&g, low + 1, m->hi.none ? high : high - 1, false, false);
        if (!m->hi.none)
            add_lengths(&g, high, high, false, true);
    }
    for (int i = 0; i < g.n_places && !builder_failed(b); i++)
        explore(&g, i);
    grammar_node n = grammar_graph(b, g.n_places + 2, g.edges, g.n_edges);
    free(g.places);
    free(g.edges);
    free(g.slots);
    return n;
}

/* --- from bounds to magnitudes ------------------------------------------------------------------- */

/* Splits a plain decimal without its sign; true if it is negative (and not zero). */
static bool split(const char *text, struct decimal *d)
{
    bool minus = *text == '-';
    text += minus;
    const char *point = strchr(text, '.');
    size_t whole = point ? (size_t)(point - text) : strlen(text);
    const char *start = text;
    while (whole > 1 && *start == '0')
        start++, whole--;
    snprintf(d->whole, sizeof d->whole, "%.*s", (int)whole, start);
    snprintf(d->fraction, sizeof d->fraction, "%s", point ? point + 1 : "");
    for (size_t n = strlen(d->fraction); n && d->fraction[n - 1] == '0'; n--)
        d->fraction[n - 1] = '\0';
    return minus && !(strcmp(d->whole, "0") == 0 && !d->fraction[0]);
}

static const struct decimal zero = {.whole = "0"}, no_bound = {.whole = "0", .none = true};

bool number_decimal(const json_t *n, char out[64])
{
    char text[64];
    if (json_is_integer(n)) {
        snprintf(out, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(n));
        return true;
    }
    double v = json_real_value(n);
    if (!isfinite(v))
        return false;
    /* The shortest text that reads back as the same number is what was meant. */
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, v);
        if (strtod(text, NULL) == v)
            break;
    }
    char digits[32];
    int n_digits = 0, exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (const char *p = text; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n_digits++] = *p;
    digits[n_digits] = '\0';
    int len = 0, point = exponent + 1; /* digits before the point */
    if (point > 45 || point < -10)
        return false;
    if (v < 0)
        out[len++] = '-';
    if (point <= 0)
        out[len++] = '0';
    for (int i = 0; i < point; i++)
        out[len++] = i < n_digits ? digits[i] : '0';
    if (n_digits > point) {
        out[len++] = '.';
        for (int i = point; i < 0; i++)
            out[len++] = '0';
        for (int i = point > 0 ? point : 0; i < n_digits; i++)
            out[len++] = digits[i];
    }
    out[len] = '\0';
    return true;
}

/* multiple_of as divisor / 10^scale. */
static int set_divisor(struct grammar_builder *b, struct magnitude *m, const char *multiple_of, bool integer)
{
    struct decimal d = {0};
    if (split(multiple_of, &d) || (strcmp(d.whole, "0") == 0 && !d.fraction[0]))
        return builder_fail(b, ERR_INVALID, "multipleOf must be greater than 0");
    m->scale = (int)strlen(d.fraction);
    char all[128];
    snprintf(all, sizeof all, "%s%s", d.whole, d.fraction);
    double divisor = strtod(all, NULL);
    if (divisor > MAX_DIVISOR)
        return builder_fail(b, ERR_UNSUPPORTED, "multipleOf with more than six digits is not supported");
    m->divisor = (uint32_t)divisor;
    m->max_fraction = integer ? 0 : m->scale;
    return 0;
}

static grammar_node unbounded(struct grammar_builder *b, bool integer)
{
    /* Exponents up to 269: with 32 digits before the point no number overflows a double. */
    static const char whole[] = "-?(0|[1-9][0-9]{0,31})";
    static const char any[] =
        "-?(0|[1-9][0-9]{0,31})(\\.[0-9]{1,31})?([eE][+-]?([0-9]{1,2}|1[0-9][0-9]|2[0-6][0-9]))?";
    return integer ? grammar_regex(b, whole, sizeof whole - 1) : grammar_regex(b, any, sizeof any - 1);
}

grammar_node grammar_number(struct grammar_builder *b, const struct number_form *f)
{
    if (!f->has_min && !f->has_max && !f->multiple_of[0])
        return unbounded(b, f->integer);
    struct magnitude m = {0};
    struct decimal min = no_bound, max = no_bound;
    bool min_minus = true, max_minus = false; /* signs; without a bound, the far side */
    if (f->has_min) {
        min.none = false;
        min.open = f->open_min;
        min_minus = split(f->min, &min);
    }
    if (f->has_max) {
        max.none = false;
        max.open = f->open_max;
        max_minus = split(f->max, &max);
    }
    /* Digits beyond what a double tells apart would make numbers that compare equal to an open bound. */
    int digits = (int)(strlen(min.whole) > strlen(max.whole) ? strlen(min.whole) : strlen(max.whole));
    int given =
        (int)(strlen(min.fraction) > strlen(max.fraction) ? strlen(min.fraction) : strlen(max.fraction));
    int fraction = 15 - digits < 1 ? 1 : 15 - digits > 12 ? 12 : 15 - digits;
    fraction = fraction < given ? given : fraction;
    m.max_fraction = f->integer ? 0 : fraction < MAX_FRACTION ? fraction : MAX_FRACTION;
    if (f->multiple_of[0] && set_divisor(b, &m, f->multiple_of, f->integer))
        return -1;
    grammar_node ways[2];
    int n = 0;
    if (!max_minus) { /* zero and above */
        m.lo = min_minus ? zero : min;
        m.lo.none = false;
        m.hi = max;
        ways[n++] = magnitude_node(b, &m);
    }
    if (min_minus) { /* below zero: the magnitude's bounds are the other way round; "-0" is left out */
        m.lo = max_minus ? max : zero;
        m.lo.open |= !max_minus;
        m.lo.none = false;
        m.hi = min;
        ways[n++] = grammar_seq2(b, grammar_text(b, "-"), magnitude_node(b, &m));
    }
    return grammar_alt(b, ways, n);
}
