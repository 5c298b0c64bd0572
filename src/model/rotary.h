/* Rotary position frequencies from a model's parameters: plain, linear and llama3 scaling. Private to
 * src/model. */
#ifndef SLUICE_MODEL_ROTARY_H
#define SLUICE_MODEL_ROTARY_H

#include "model/params.h"
#include "ops/ops.h"

/* Fills *r for the first `dims` dimensions (even) of a head: inv_freq [dims/2] is allocated, rotary_free
 * frees it. Formulas: inv_freq[i] = theta^(-2i/dims); "linear" divides by factor; "llama3" divides by factor
 * where the wavelength 2π/inv_freq is longer than original_context / low_freq_factor, keeps it where shorter
 * than original_context / high_freq_factor, and blends linearly in original_context / wavelength between. A
 * GGUF may hold the divisors as the tensor rope_freqs.weight. Other scaling types are refused by name. Where
 * config.json keeps rope parameters per kind of layer, those of "full_attention" are read. */
int rotary_read(const struct params *p, int dims, struct rope *r, struct err *e);
/* The same for a given base, without scaling. */
void rotary_plain(float theta, int dims, struct rope *r);
void rotary_free(struct rope *r);

#endif
