/* Timing on a machine that may be busy with other things: single calls, many of them, in short slices between which
 * the CPU's peak is measured again, so that both have seen the same machine. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double now_seconds(void) { return seconds_of(CLOCK_MONOTONIC); }
double thread_seconds(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

static double begin_now(int64_t kind) {
    (void)kind;
    return now_seconds();
}

double (*work_begin)(int64_t kind) = begin_now;
double (*work_end)(void) = now_seconds;

/* The best of this run so far: a burst of other work makes the peak of one slice too low, never too high. */
static double raise_best(mhla_dtype dtype, double peak) {
    static double best[2];
    if (peak > best[dtype]) best[dtype] = peak;
    return best[dtype];
}

/* Q8_0 is widened and multiplied as float32. */
static mhla_dtype multiplied(mhla_dtype dtype) { return dtype == MHLA_Q8_0 ? MHLA_F32 : dtype; }

double peak_of(mhla_dtype dtype, const mhla_context *context, double seconds) {
    dtype = multiplied(dtype);
    double peak = mhla_measure_peak(dtype, context, seconds);
    if (peak == 0.0) peak = mhla_measure_peak(MHLA_F32, context, seconds);
    return raise_best(dtype, peak);
}

double peak_settled(mhla_dtype dtype, const mhla_context *context) {
    dtype = multiplied(dtype);
    double best = 0.0, second = 0.0;
    for (int i = 0; i < 30 && (i < 4 || second < 0.985 * best); i++) {
        double peak = mhla_measure_peak(dtype, context, 0.04);
        if (peak == 0.0) peak = mhla_measure_peak(MHLA_F32, context, 0.04);
        if (peak > best) {
            second = best;
            best = peak;
        } else if (peak > second) {
            second = peak;
        }
    }
    return raise_best(dtype, best);
}

double bandwidth_of(const mhla_context *context, double seconds) {
    static double best;
    const double rate = mhla_measure_bandwidth(context, seconds);
    if (rate > best) best = rate;
    return best;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void timing_close(timing *t) {
    double *sorted = malloc((size_t)t->count * sizeof *sorted);
    t->best = t->median = t->count > 0 ? t->samples[0] : 0.0;
    for (int64_t i = 1; i < t->count; i++)
        if (t->samples[i] < t->best) t->best = t->samples[i];
    if (sorted == NULL) return; /* the median is then one sample: no reason to fail */
    memcpy(sorted, t->samples, (size_t)t->count * sizeof *sorted);
    qsort(sorted, (size_t)t->count, sizeof *sorted, by_value);
    t->median = sorted[t->count / 2];
    free(sorted);
}

void timing_free(timing *t) {
    free(t->samples);
    t->samples = NULL;
}

static void raise_peak(timing *t, mhla_dtype dtype, const mhla_context *context) {
    const double peak = peak_of(dtype, context, 0.012);
    if (peak > t->peak) t->peak = peak;
}

mhla_status timing_run(timing *t, work_fn work, void *arg, const mhla_context *context, mhla_dtype dtype,
                       double seconds, int with_peak) {
    enum { MOST = 1 << 16 };
    *t = (timing){.samples = malloc(MOST * sizeof *t->samples)};
    if (t->samples == NULL) return MHLA_ENOMEM;
    if (with_peak) raise_peak(t, dtype, context);
    mhla_status status = work(arg); /* the first one packs weights and meets fresh memory */
    const double slice = seconds / 12.0;
    for (double spent = 0.0; status == MHLA_OK && spent < seconds && t->count < MOST;) {
        for (double used = 0.0; status == MHLA_OK && used < slice && t->count < MOST;) {
            const double since = now_seconds(), begin = work_begin(0);
            status = work(arg);
            t->samples[t->count++] = work_end() - begin;
            const double took = now_seconds() - since;
            used += took;
            spent += took;
        }
        if (with_peak) raise_peak(t, dtype, context);
    }
    if (with_peak && t->count == 1) raise_peak(t, dtype, context);
    if (status == MHLA_OK)
        timing_close(t);
    else
        timing_free(t);
    return status;
}
