/* What the two files of the reference level share. */
#ifndef SLUICE_OPS_CPU_REFERENCE_H
#define SLUICE_OPS_CPU_REFERENCE_H

#include "ops/cpu/cpu.h"

float ref_dot(const float *a, const float *b, int64_t n);
void ref_kv_write(struct backend *b, struct kv_cache *c, int layer, const float *k, const float *v,
                  const struct batch *batch);
void ref_attention(struct backend *b, const struct kv_cache *c, const struct attention *a,
                   const struct batch *batch);
void ref_conv1d(struct backend *b, const struct conv1d *c, const struct batch *batch);
void ref_delta_net(struct backend *b, const struct delta_net *d, const struct batch *batch);

#endif
