/* Searching scales. For given codes the best scale (and min) of a group is a weighted least squares problem
 * with one or two unknowns; for a given scale the best codes are the nearest ones. So from each of a ladder
 * of starting scales, some of which clip the largest weights, codes and scale are improved in turn, and the
 * best pair is kept. Written over four lanes: the sums' order is fixed, and any compiler makes vectors of it.
 */
#include <stdbool.h>

#include "quant/encode.h"

typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lane_mask __attribute__((vector_size(16)));

static inline lanes load_lanes(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline lanes all_lanes(float x)
{
    return (lanes){x, x, x, x};
}

static inline float sum_lanes(lanes v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}

static inline lanes select_lanes(lane_mask m, lanes a, lanes b)
{
    return (lanes)(((lane_mask)a & m) | ((lane_mask)b & ~m));
}

/* The nearest codes, as floats. */
static inline lanes code_lanes(lanes x, lanes inverse, lanes lo, lanes hi)
{
    const lanes magic = all_lanes(12582912.0f);
    lanes q = x * inverse;
    q = select_lanes(q < lo, lo, q);
    q = select_lanes(q > hi, hi, q);
    return q + magic - magic;
}

float fit_error(const float *x, const float *w, int n, int lo, int hi, float s, float m)
{
    lanes sum = all_lanes(0), l = all_lanes((float)lo), h = all_lanes((float)hi);
    lanes inverse = all_lanes(s == 0 ? 0 : 1 / s), vs = all_lanes(s), vm = all_lanes(m);
    for (int i = 0; i < n; i += 4) {
        lanes v = load_lanes(x + i) - vm;
        lanes e = v - vs * code_lanes(v, inverse, l, h);
        sum += load_lanes(w + i) * e * e;
    }
    return sum_lanes(sum);
}

/* With the codes nearest to x / s: what the best scale for them gains, (Σwxq)²/Σwq², and that scale. */
static float gain_of_scale(const float *x, const float *w, int n, float lo, float hi, float s, float *best)
{
    lanes xq = all_lanes(0), qq = all_lanes(0), l = all_lanes(lo), h = all_lanes(hi), inv = all_lanes(1 / s);
    for (int i = 0; i < n; i += 4) {
        lanes v = load_lanes(x + i), q = code_lanes(v, inv, l, h), wq = load_lanes(w + i) * q;
        xq += wq * v;
        qq += wq * q;
    }
    float a = sum_lanes(xq), b = sum_lanes(qq);
    if (!(b > 0))
        return 0;
    *best = a / b;
    return a * (a / b);
}

float search_scale(const float *x, const float *w, int n, int lo, int hi)
{
    float peak = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(peak))
            peak = x[i];
    if (!(fabsf(peak) > 1e-30f))
        return 0;
    /* The side with one code more is for the largest weight; then, a few steps with the other side. */
    enum { RUNGS = 16, OTHER_RUNGS = 6, ROUNDS = 2 };
    float best_gain = 0, best = peak / (float)lo;
    for (int k = 0; k < RUNGS + OTHER_RUNGS; k++) {
        float s = k < RUNGS ? peak / (float)lo * (1.06f - 0.03f * (float)k)
                            : peak / (float)hi * (1.03f - 0.05f * (float)(k - RUNGS));
        for (int round = 0; round < ROUNDS; round++) {
            float next = s, gain = gain_of_scale(x, w, n, (float)lo, (float)hi, s, &next);
            if (gain > best_gain) {
                best_gain = gain;
                best = next;
            }
            if (next == s || next == 0)
                break;
            s = next;
        }
    }
    for (int round = 0; round < 3; round++) {
        float next = best, gain = gain_of_scale(x, w, n, (float)lo, (float)hi, best, &next);
        if (gain < best_gain || next == best)
            break;
        best_gain = gain;
        best = next;
    }
    return best;
}

struct moments {
    float w, x, xx; /* Σw, Σwx, Σwx²: the same for all codes */
};

/* With the codes nearest to (x - m) / s: the least error that any scale and min can have, and those. */
static float error_of_pair(const float *x, const float *w, int n, float hi, bool below, struct moments t,
                           float *s, float *m)
{
    lanes q1 = all_lanes(0), q2 = q1, xq = q1, l = q1, h = all_lanes(hi), inv = all_lanes(1 / *s),
          vm = all_lanes(*m);
    for (int i = 0; i < n; i += 4) {
        lanes v = load_lanes(x + i), q = code_lanes(v - vm, inv, l, h), wq = load_lanes(w + i) * q;
        q1 += wq;
        q2 += wq * q;
        xq += wq * v;
    }
    float a = sum_lanes(q1), b = sum_lanes(q2), c = sum_lanes(xq), det = t.w * b - a * a;
    float scale = 0, min = 0;
    if (det > 0) {
        scale = (t.w * c - a * t.x) / det;
        min = (b * t.x - a * c) / det;
    }
    if (det <= 0 || scale <= 0 || (below && min > 0)) {
        if (!below || !(b > 0) || c <= 0)
            return INFINITY;
        scale = c / b;
        min = 0;
    }
    *s = scale;
    *m = min;
    return t.xx - 2 * (scale * c + min * t.x) + scale * (scale * b + 2 * min * a) + min * min * t.w;
}

void search_scale_min(const float *x, const float *w, int n, int hi, bool below, float *s, float *m)
{
    float least = x[0], most = x[0];
    struct moments t = {0};
    for (int i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        t.w += w[i];
        t.x += w[i] * x[i];
        t.xx += w[i] * x[i] * x[i];
    }
    if (below && least > 0)
        least = 0;
    *s = 0;
    *m = below && least > 0 ? 0 : least;
    if (!(most - least > 1e-30f)) { /* all alike: a min alone says it, where it may */
        if (below && most > 0)
            *s = most / (float)hi;
        return;
    }
    /* Ends of the range are drawn in, both, or one of them. */
    static const float ends[][2] = {{0, 0},         {.02f, .02f}, {.04f, .04f}, {.06f, .06f}, {.09f, .09f},
                                    {-.03f, -.03f}, {.06f, 0},    {0, .06f},    {.12f, 0},    {0, .12f},
                                    {.12f, .04f},   {.04f, .12f}, {.13f, .13f}, {.18f, .06f}, {.06f, .18f}};
    enum { N_ENDS = sizeof ends / sizeof ends[0], ROUNDS = 3 };
    float best = INFINITY, range = most - least;
    *s = range / (float)hi;
    *m = least;
    for (int k = 0; k < N_ENDS; k++) {
        float scale = range * (1 - ends[k][0] - ends[k][1]) / (float)hi, min = least + range * ends[k][0];
        float before = INFINITY;
        for (int round = 0; round < ROUNDS; round++) {
            float e = error_of_pair(x, w, n, (float)hi, below, t, &scale, &min);
            if (e < best) {
                best = e;
                *s = scale;
                *m = min;
            }
            if (!(e < before) || e == INFINITY)
                break;
            before = e;
        }
    }
}
