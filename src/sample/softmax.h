/* Sums of exponentials over a row of logits: what probabilities are made of. A row of a large vocabulary is
 * a quarter of a million of them for each token made, so they are computed eight at a time, in a form that
 * compilers vectorise for any CPU. The sums run in eight chains in a fixed order: the same bits on every
 * machine and wherever the row sits in a batch. Private to src/sample. */
#ifndef SLUICE_SAMPLE_SOFTMAX_H
#define SLUICE_SAMPLE_SOFTMAX_H

#include <string.h>

enum { SOFTMAX_LANES = 8 };

/* exp(x) for x <= 0, within 2 units in the last place; 0 below -87 and for NaN. x = n ln 2 + r, and a
 * polynomial for exp(r). */
static inline float softmax_exp(float x)
{
    x = x > -88.0f ? x : -88.0f;
    float n = (float)(int)(x * 1.44269504f - 0.5f);
    float r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    float p = 1.98756915e-4f;
    p = p * r + 1.39819995e-3f;
    p = p * r + 8.33345205e-3f;
    p = p * r + 4.16657962e-2f;
    p = p * r + 1.66666657e-1f;
    p = p * r + 5.00000000e-1f;
    p = p * r * r + r + 1.0f;
    unsigned bits = (unsigned)((int)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

/* Σ exp((logit - max) * scale) over the logits at or above `lowest`. scale > 0; max is at least every logit.
 * NaN logits count as absent. */
static inline double softmax_mass(const float *logits, int n, float max, float scale, float lowest)
{
    double sum[SOFTMAX_LANES] = {0};
    float e[SOFTMAX_LANES];
    int i = 0;
    for (; i + SOFTMAX_LANES <= n; i += SOFTMAX_LANES) {
        for (int k = 0; k < SOFTMAX_LANES; k++) {
            float x = softmax_exp((logits[i + k] - max) * scale);
            e[k] = logits[i + k] >= lowest ? x : 0.0f;
        }
        for (int k = 0; k < SOFTMAX_LANES; k++)
            sum[k] += (double)e[k];
    }
    for (int k = 0; i + k < n; k++) {
        float x = softmax_exp((logits[i + k] - max) * scale);
        sum[k] += logits[i + k] >= lowest ? (double)x : 0.0;
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

#endif
