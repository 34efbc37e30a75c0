/* Seconds that only grow, for durations. */
#ifndef MHLA_CORE_CLOCK_H
#define MHLA_CORE_CLOCK_H

#include <time.h>

static inline double mhla_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
