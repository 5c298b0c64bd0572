/* Running averages of what steps and copies were seen to cost. Private to src/sched. */
#ifndef SLUICE_SCHED_AVERAGE_H
#define SLUICE_SCHED_AVERAGE_H

/* Moves *mean by `weight` of the way to x. 0 is "not yet known": the first value is taken as it is. */
static inline void average_add(double *mean, double x, double weight)
{
    *mean = *mean > 0 ? *mean + weight * (x - *mean) : x;
}

#endif
