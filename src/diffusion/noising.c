/* What a network is shown in training, data with noise, and how its answer is judged: mean square of the noise (or of a
 * flow's velocity), and for a learned variance the variational bound of Nichol and Dhariwal, in bits per dimension. */
#include <math.h>

#include "core/memory.h"
#include "core/status.h"
#include "diffusion/noising.h"

struct mhla_noising {
    int process, learned_sigma, logit_normal;
    double shift;
    mhla_levels levels;
};

mhla_status mhla_noising_create_spaced(mhla_noising **noising, int process, int learned_sigma, int original,
                                       const char *respacing) {
    *noising = NULL;
    mhla_levels levels = {0};
    if (process != MHLA_PROCESS_FLOW) MHLA_TRY(mhla_levels_create(&levels, process, original, respacing));
    mhla_noising *n = mhla_alloc_zero(sizeof *n);
    if (n == NULL) {
        mhla_levels_free(&levels);
        return mhla_fail(MHLA_ENOMEM, "no memory for noise levels");
    }
    *n = (mhla_noising){.process = process, .learned_sigma = learned_sigma, .shift = 1.0, .levels = levels};
    *noising = n;
    return MHLA_OK;
}

mhla_status mhla_noising_create(mhla_noising **noising, int process, int learned_sigma, int logit_normal,
                                double shift) {
    *noising = NULL;
    if (process < MHLA_PROCESS_LINEAR || process > MHLA_PROCESS_FLOW)
        return mhla_fail(MHLA_EINVAL, "process %d: expected linear, cosine or flow", process);
    if (process == MHLA_PROCESS_FLOW && learned_sigma)
        return mhla_fail(MHLA_EINVAL, "a flow has no variance to learn: learned sigma is for linear and cosine");
    if (!(shift >= 0.0 && shift <= 1e6)) return mhla_fail(MHLA_EINVAL, "shift %g: expected a number above 0", shift);
    if (process != MHLA_PROCESS_FLOW && (logit_normal || (shift != 0.0 && shift != 1.0)))
        return mhla_fail(MHLA_EINVAL, "%s is for flows: the times of a diffusion are drawn evenly",
                         logit_normal ? "logit_normal" : "shift");
    MHLA_TRY(mhla_noising_create_spaced(noising, process, learned_sigma, MHLA_NOISE_LEVELS, NULL));
    (*noising)->logit_normal = logit_normal;
    if (shift > 0.0) (*noising)->shift = shift;
    return MHLA_OK;
}

void mhla_noising_free(mhla_noising *noising) {
    if (noising == NULL) return;
    mhla_levels_free(&noising->levels);
    mhla_free(noising);
}

double mhla_noising_time(const mhla_noising *noising, double draw) {
    const double u = noising->logit_normal ? 1.0 / (1.0 + exp(-draw)) : draw;
    if (noising->process == MHLA_PROCESS_FLOW) {
        const double s = noising->shift, t = 1000.0 * (s * u / (1.0 + (s - 1.0) * u));
        return t < 1e-3 ? 1e-3 : t > 999.999 ? 999.999 : t;
    }
    const int last = noising->levels.count - 1, t = (int)(u * (last + 1));
    return t < 0 ? 0.0 : t > last ? last : t;
}

void mhla_noising_apply(const mhla_noising *noising, float *xt, const float *x0, const float *noise, double t,
                        int64_t n) {
    double data = 1.0 - t / 1000.0, sigma = t / 1000.0;
    if (noising->process != MHLA_PROCESS_FLOW) {
        const mhla_level *level = &noising->levels.levels[(int)t];
        data = sqrt(level->kept);
        sigma = sqrt(1.0 - level->kept);
    }
    for (int64_t i = 0; i < n; i++) xt[i] = (float)(data * (double)x0[i] + sigma * (double)noise[i]);
}

/* ---- The variance's term ---- */

/* Share of a normal below x as the public code approximates it, and its derivative. */
static double normal_below(double x, double *density) {
    const double c = 0.7978845608028654 /* sqrt(2/pi) */, th = tanh(c * (x + 0.044715 * x * x * x));
    *density = 0.5 * (1.0 - th * th) * c * (1.0 + 3.0 * 0.044715 * x * x);
    return 0.5 * (1.0 + th);
}

/* -log of the probability of the one of 256 grey values that x is, under a normal of this mean and log variance; *slope is
 * its derivative by the log variance. The outermost values have all of their tail. */
static double grey_nll(double x, double mean, double log_variance, double *slope) {
    const double inverse = exp(-0.5 * log_variance), above = inverse * (x - mean + 1.0 / 255.0),
                 below = inverse * (x - mean - 1.0 / 255.0);
    double above_density, below_density, share, share_slope;
    const double above_share = normal_below(above, &above_density), below_share = normal_below(below, &below_density);
    /* d above / d log_variance = -above / 2 */
    if (x < -0.999) {
        share = above_share;
        share_slope = -0.5 * above_density * above;
    } else if (x > 0.999) {
        share = 1.0 - below_share;
        share_slope = 0.5 * below_density * below;
    } else {
        share = above_share - below_share;
        share_slope = -0.5 * (above_density * above - below_density * below);
    }
    *slope = share < 1e-12 ? 0.0 : -share_slope / share;
    return -log(share < 1e-12 ? 1e-12 : share);
}

/* Kullback-Leibler divergence of two normals by the second's log variance, and its derivative by that. */
static double normal_kl(double mean_gap, double log1, double log2, double *slope) {
    const double spread = exp(log1 - log2) + mean_gap * mean_gap * exp(-log2);
    *slope = 0.5 * (1.0 - spread);
    return 0.5 * (-1.0 + log2 - log1 + spread);
}

mhla_noising_loss mhla_noising_judge(const mhla_noising *noising, float *gradient, double scale, const float *output,
                                     const float *xt, const float *x0, const float *noise, double t, int64_t n) {
    mhla_noising_loss loss = {0};
    const int flow = noising->process == MHLA_PROCESS_FLOW;
    for (int64_t i = 0; i < n; i++) {
        const double gap = (double)output[i] - ((double)noise[i] - (flow ? (double)x0[i] : 0.0));
        loss.mse += gap * gap;
        if (gradient) gradient[i] = (float)(scale * 2.0 * gap / (double)n);
    }
    loss.mse /= (double)n;
    if (noising->learned_sigma) {
        const mhla_level *v = &noising->levels.levels[(int)t];
        const double least = v->log_variance, most = log(v->beta), bits = 1.0 / ((double)n * 0.6931471805599453);
        const double recip = sqrt(1.0 / v->kept), recip_noise = sqrt(1.0 / v->kept - 1.0);
        for (int64_t i = 0; i < n; i++) { /* the network says where between the two the log variance lies */
            const double share = 0.5 * ((double)output[n + i] + 1.0),
                         log_variance = share * most + (1.0 - share) * least;
            const double seen = recip * (double)xt[i] - recip_noise * (double)output[i]; /* data behind the noise */
            double slope;
            if (v == noising->levels.levels)
                loss.vb +=
                    grey_nll((double)x0[i], v->mean_data * seen + v->mean_noisy * (double)xt[i], log_variance, &slope);
            else
                loss.vb += normal_kl(v->mean_data * ((double)x0[i] - seen), least, log_variance, &slope);
            if (gradient) gradient[n + i] = (float)(scale * bits * slope * 0.5 * (most - least));
        }
        loss.vb *= bits;
    }
    loss.loss = loss.mse + loss.vb;
    return loss;
}
