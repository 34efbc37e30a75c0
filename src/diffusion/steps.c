#include "diffusion/steps.h"

#include <math.h>

static double clipped(double x, int clip) { return !clip ? x : x < -1.0 ? -1.0 : x > 1.0 ? 1.0 : x; }

int mhla_all_finite(const float *x, int64_t n) {
    int finite = 1;
    for (int64_t i = 0; i < n; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

double mhla_level_log_variance(const mhla_level *level, double v) {
    const double share = 0.5 * (v + 1.0);
    return share * log(level->beta) + (1.0 - share) * level->log_variance;
}

void mhla_ddpm_step(float *x, float *data, const float *output, const float *variance, const float *noise, int64_t n,
                    const mhla_level *level, int clip) {
    const double recip = sqrt(1.0 / level->kept), recip_noise = sqrt(1.0 / level->kept - 1.0);
    const double fixed = sqrt(level->beta);
    for (int64_t i = 0; i < n; i++) {
        const double seen = clipped(recip * (double)x[i] - recip_noise * (double)output[i], clip);
        double next = level->mean_data * seen + level->mean_noisy * (double)x[i];
        if (noise)
            next +=
                (double)noise[i] * (variance ? exp(0.5 * mhla_level_log_variance(level, (double)variance[i])) : fixed);
        data[i] = (float)seen;
        x[i] = (float)next;
    }
}

/* To a level that keeps `kept`, with `noise` of deviation `added`; the noise that was there follows from what is seen. */
static void move(float *x, float *data, const float *output, const float *noise, int64_t n, const mhla_level *level,
                 double kept, double added, int clip) {
    const double recip = sqrt(1.0 / level->kept), recip_noise = sqrt(1.0 / level->kept - 1.0);
    const double alpha = sqrt(kept), sigma = sqrt(fmax(0.0, 1.0 - kept - added * added));
    for (int64_t i = 0; i < n; i++) {
        const double seen = clipped(recip * (double)x[i] - recip_noise * (double)output[i], clip);
        const double there = clip ? (recip * (double)x[i] - seen) / recip_noise : (double)output[i];
        data[i] = (float)seen;
        x[i] = (float)(alpha * seen + sigma * there + (noise ? added * (double)noise[i] : 0.0));
    }
}

void mhla_ddim_step(float *x, float *data, const float *output, const float *noise, int64_t n, const mhla_level *level,
                    double eta, int clip) {
    const double before = level->kept_before;
    const double added = eta * sqrt((1.0 - before) / (1.0 - level->kept)) * sqrt(1.0 - level->kept / before);
    move(x, data, output, noise, n, level, before, added, clip);
}

void mhla_ddim_reverse(float *x, float *data, const float *output, int64_t n, const mhla_level *level, int clip) {
    move(x, data, output, NULL, n, level, level->kept_after, 0.0, clip);
}

/* ---- Several steps ---- */

/* What a step from level `from` to level `to` has in common for both solvers: x' = keep x + gain D + ... */
typedef struct stride {
    double h, E;       /* of lambda; expm1(-h), -1 where h is infinite */
    double keep, gain; /* sigma ratio; -alpha E */
} stride;

static stride stride_of(const mhla_path *p, int from, int to) {
    stride s = {.h = p->lambda[to] - p->lambda[from]};
    s.E = isinf(s.h) ? -1.0 : expm1(-s.h);
    s.keep = p->sigma[to] / p->sigma[from];
    s.gain = -p->alpha[to] * s.E;
    return s;
}
/* 1/r of the step before, from level `from`-1, over a step of h: 0 where that began at lambda -inf. */
static double inverse_ratio(const mhla_path *p, int from, double h) {
    const double before = p->lambda[from] - p->lambda[from - 1];
    return isinf(before) ? 0.0 : h / before;
}

static int order_of(const mhla_path *p, int i) { return i == 0 || i + 1 == p->steps ? 1 : 2; }

void mhla_dpm_step(float *x, const float *const seen[2], int64_t n, const mhla_path *path, int i) {
    const stride s = stride_of(path, i, i + 1);
    double now = s.gain, before = 0.0; /* of D_i and D_{i-1} */
    if (order_of(path, i) == 2) {
        before = -0.5 * s.gain * inverse_ratio(path, i, s.h);
        now -= before;
    }
    const float *const last = seen[before != 0.0];
    for (int64_t k = 0; k < n; k++)
        x[k] = (float)(s.keep * (double)x[k] + now * (double)seen[0][k] + before * (double)last[k]);
}

/* Redoes the step i-1 -> i from the corrected x_{i-1} with D_i known: x_i = keep x + sum of weight[k] D_{i-k}. */
static void correct(float *x, const float *corrected, const float *const seen[3], int64_t n, const mhla_path *path,
                    int i) {
    const stride s = stride_of(path, i - 1, i);
    double c1 = 0.0, c2 = 0.5; /* of (D_{i-2} - D_{i-1})/r and D_i - D_{i-1} */
    if (order_of(path, i - 1) == 2) {
        const double hh = -s.h, phi1 = s.E / hh - 1.0, phi2 = phi1 / hh - 0.5, b1 = phi1 / s.E, b2 = 2.0 * phi2 / s.E;
        const double inverse = -inverse_ratio(path, i - 1, s.h); /* 1/r; c1 = (b2-b1)/(r-1), and c1/r is what is used */
        const double r_less_1 = inverse == 0.0 ? 0.0 : 1.0 / (1.0 / inverse - 1.0);
        c1 = (b2 - b1) * r_less_1;
        c2 = b1 - c1;
        c1 *= inverse;
    }
    const double weight[3] = {s.gain * c2, s.gain * (1.0 - c1 - c2), s.gain * c1};
    const float *const oldest = seen[weight[2] != 0.0 ? 2 : 1];
    for (int64_t k = 0; k < n; k++)
        x[k] = (float)(s.keep * (double)corrected[k] + weight[0] * (double)seen[0][k] + weight[1] * (double)seen[1][k] +
                       weight[2] * (double)oldest[k]);
}

/* The predictor of order 2 is the step of DPM-Solver++, orders included. */
void mhla_unipc_step(float *x, float *corrected, const float *const seen[3], int64_t n, const mhla_path *path, int i) {
    if (i > 0) correct(x, corrected, seen, n, path, i);
    for (int64_t k = 0; k < n; k++) corrected[k] = x[k];
    mhla_dpm_step(x, seen, n, path, i);
}
