/* What this machine can do, measured with the engine's own threads and instructions: the figures that speeds
 * are given as a share of. */
#ifndef SLUICE_OPS_CPU_LIMITS_H
#define SLUICE_OPS_CPU_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cpu_limits {
    double read_gbs;    /* 10^9 bytes a second read from memory */
    double fp32_gflops; /* multiply-adds times two */
    double int8_gops;   /* the same, of 8-bit integers */
    double
        bf16_gflops; /* the same, of pairs of bf16 added to fp32; 0 where the CPU has no such instruction */
};

/* Measures level (as for backend_cpu) with n_threads threads: takes about a second and half a gigabyte, freed
 * again. Best of several repeats, since other programs take their share. Returns 0, or -1 and *e. */
int cpu_limits_measure(const char *level, int n_threads, struct cpu_limits *out, struct err *e);

/* A level's loops. Each returns something that depends on all its work, so that none of it is left out. */
struct cpu_peak {
    float (*read)(const void *p, size_t bytes); /* bytes: a multiple of 4096 */
    float (*fp32)(int64_t rounds);
    float (*int8)(int64_t rounds);
    double fp32_ops, int8_ops;     /* operations a round */
    float (*bf16)(int64_t rounds); /* NULL where the level has none; the CPU may still lack it */
    double bf16_ops;
};

#endif
