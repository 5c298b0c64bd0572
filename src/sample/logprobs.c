/* Log-probabilities of a row of logits: one pass for the maximum, one for the sum, one for the k best. All
 * sums run in the order of ids, so they are the same bits wherever the row sits in a batch. */
#include <math.h>

#include "sample/sampler.h"
#include "sample/softmax.h"

/* The log of the softmax's denominator: logprob(id) = logits[id] - it. */
static double log_sum_of(const float *logits, int vocab)
{
    float max = -INFINITY;
    for (int i = 0; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    if (!(max > -INFINITY))
        return 0;
    double sum = softmax_mass(logits, vocab, max, 1.0f, -INFINITY);
    return (double)max + log(sum);
}

void sample_logprobs(const float *logits, int vocab, int32_t token, int k, struct sluice_prob *out, int *rank)
{
    double log_sum = log_sum_of(logits, vocab);
    struct sluice_prob *top = out + 1;
    int n = 0, above = 0;
    for (int i = 0; i < vocab; i++) {
        above += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
        if (k == 0 || (n == k && !(logits[i] > top[n - 1].logprob)))
            continue;
        int at = n < k ? n++ : k - 1; /* insertion from the end keeps equal logits in the order of ids */
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct sluice_prob){i, logits[i]};
    }
    for (int i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - log_sum);
    for (int i = n; i < k; i++)
        top[i] = (struct sluice_prob){-1, -INFINITY};
    out[0] = (struct sluice_prob){token, (float)((double)logits[token] - log_sum)};
    if (rank)
        *rank = above + 1;
}

void sample_logprobs_of(const float *logits, int vocab, int32_t token, const int32_t *ids, int k,
                        struct sluice_prob *out, int *rank)
{
    double log_sum = log_sum_of(logits, vocab);
    int above = 0;
    for (int i = 0; i < vocab; i++)
        above += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    out[0] = (struct sluice_prob){token, (float)((double)logits[token] - log_sum)};
    for (int i = 0; i < k; i++)
        out[1 + i] = (struct sluice_prob){ids[i], (float)((double)logits[ids[i]] - log_sum)};
    if (rank)
        *rank = above + 1;
}
