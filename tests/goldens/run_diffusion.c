/* run_model's part about diffusion: tables of noise levels, single steps and losses, whole runs of flow samplers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "diffusion/noising.h"
#include "diffusion/sigmas.h"
#include "diffusion/steps.h"
#include "run.h"

static void keep_column(const mhla_levels *l, const char *name, double (*value)(const mhla_level *)) {
    float *x = malloc((size_t)l->count * sizeof *x);
    for (int i = 0; x && i < l->count; i++) x[i] = (float)value(&l->levels[i]);
    if (x) run_keep(x, 1, (const int64_t[]){l->count}, "out.%s", name);
    free(x);
}
static double beta(const mhla_level *v) { return v->beta; }
static double kept(const mhla_level *v) { return v->kept; }
static double kept_before(const mhla_level *v) { return v->kept_before; }
static double variance(const mhla_level *v) { return v->variance; }
static double log_variance(const mhla_level *v) { return v->log_variance; }
static double mean_data(const mhla_level *v) { return v->mean_data; }
static double mean_noisy(const mhla_level *v) { return v->mean_noisy; }
static double root(const mhla_level *v) { return sqrt(v->kept); }
static double root_rest(const mhla_level *v) { return sqrt(1.0 - v->kept); }
static double recip(const mhla_level *v) { return sqrt(1.0 / v->kept); }
static double recip_rest(const mhla_level *v) { return sqrt(1.0 / v->kept - 1.0); }
static double time_of(const mhla_level *v) { return v->time; }

static int process_of(const char *name) {
    return strcmp(name, "cosine") == 0 ? MHLA_PROCESS_COSINE : MHLA_PROCESS_LINEAR;
}

mhla_status run_levels(char **arg) { /* PROCESS OUT LEVELS RESPACING */
    static const struct {
        const char *name;
        double (*value)(const mhla_level *);
    } columns[] = {{"betas", beta},
                   {"alphas_cumprod", kept},
                   {"alphas_cumprod_prev", kept_before},
                   {"posterior_variance", variance},
                   {"posterior_log_variance_clipped", log_variance},
                   {"posterior_mean_coef1", mean_data},
                   {"posterior_mean_coef2", mean_noisy},
                   {"sqrt_alphas_cumprod", root},
                   {"sqrt_one_minus_alphas_cumprod", root_rest},
                   {"sqrt_recip_alphas_cumprod", recip},
                   {"sqrt_recipm1_alphas_cumprod", recip_rest},
                   {"timestep_map", time_of}};
    mhla_levels l;
    MHLA_TRY(mhla_levels_create(&l, process_of(arg[0]), atoi(arg[2]), arg[3]));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) keep_column(&l, columns[i].name, columns[i].value);
    mhla_levels_free(&l);
    return MHLA_OK;
}

/* ---- Single steps ---- */

/* What every sample makes, each [B,n] or [B,2n] or [B]. */
enum { Q, GRADIENT, MSE, VB, LOSS, MEAN, SEEN, VARIANCE, LOG_VARIANCE, P_SAMPLE, DDIM0, DDIM1, REVERSE, TIME, KINDS };
static const char *const kinds[KINDS] = {"q_sample",         "train.grad_model_output",
                                         "train.mse",        "train.vb",
                                         "train.loss",       "pmv.mean",
                                         "pmv.pred_xstart",  "pmv.variance",
                                         "pmv.log_variance", "p_sample",
                                         "ddim_eta0",        "ddim_eta1",
                                         "ddim_reverse",     "t_for_model"};

static void one_sample(float *out[KINDS], const mhla_noising *noising, const mhla_level *level, double t, double scale,
                       const float *x0, const float *noise, const float *output, const float *drawn, int64_t n,
                       int learned, int clip) {
    float *seen = out[SEEN];
    mhla_noising_apply(noising, out[Q], x0, noise, t, n);
    const mhla_noising_loss loss = mhla_noising_judge(noising, out[GRADIENT], scale, output, out[Q], x0, noise, t, n);
    *out[MSE] = (float)loss.mse;
    *out[VB] = (float)loss.vb;
    *out[LOSS] = (float)loss.loss;
    *out[TIME] = (float)level->time;
    const float *v = learned ? output + n : NULL, *added = t > 0.0 ? drawn : NULL;
    for (int k = MEAN; k <= REVERSE; k++)
        if (k != VARIANCE && k != LOG_VARIANCE && k != SEEN) memcpy(out[k], out[Q], (size_t)n * sizeof *seen);
    mhla_ddpm_step(out[P_SAMPLE], seen, output, v, added, n, level, clip);
    mhla_ddim_step(out[DDIM0], seen, output, NULL, n, level, 0.0, clip);
    mhla_ddim_step(out[DDIM1], seen, output, added, n, level, 1.0, clip);
    mhla_ddim_reverse(out[REVERSE], seen, output, n, level, clip);
    mhla_ddpm_step(out[MEAN], seen, output, v, NULL, n, level, clip);
    for (int64_t i = 0; i < n; i++) {
        const double fixed = t > 0.0 ? log(level->beta) : level->log_variance;
        const double l = v ? mhla_level_log_variance(level, (double)v[i]) : fixed;
        out[LOG_VARIANCE][i] = (float)l;
        out[VARIANCE][i] = (float)exp(l);
    }
}

mhla_status run_diffusion_steps(char **arg) { /* IN OUT PROCESS LEVELS RESPACING CLIP */
    const int process = process_of(arg[2]), original = atoi(arg[3]), clip = atoi(arg[5]);
    mhla_safetensors *in;
    MHLA_TRY(mhla_safetensors_open(&in, arg[0]));
    const mhla_stored *sx, *so, *s;
    float *x0 = run_floats(in, "in.x_start", &sx), *output = run_floats(in, "in.model_output", &so),
          *noise = run_floats(in, "in.noise", &s), *drawn = run_floats(in, "in.sample_noise", &s),
          *t = run_floats(in, "in.t", &s);
    if (!x0 || !output || !noise || !drawn || !t) return mhla_fail(MHLA_EDATA, "an input is missing");
    const int64_t B = sx->shape[0], n = sx->count / B, wide = so->count / B;
    mhla_noising *noising;
    mhla_levels l;
    MHLA_TRY(mhla_levels_create(&l, process, original, arg[4]));
    MHLA_TRY(mhla_noising_create_spaced(&noising, process, wide > n, original, arg[4]));
    float *all[KINDS];
    for (int k = 0; k < KINDS; k++)
        if ((all[k] = calloc((size_t)(B * wide), sizeof(float))) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
    for (int64_t b = 0; b < B; b++) {
        if (t[b] < 0.0f || t[b] >= (float)l.count)
            return mhla_fail(MHLA_EDATA, "in.t has %g: there are %d levels", (double)t[b], l.count);
        float *out[KINDS];
        for (int k = 0; k < KINDS; k++)
            out[k] = all[k] + b * (k == GRADIENT ? wide : (k >= MSE && k <= LOSS) || k == TIME ? 1 : n);
        one_sample(out, noising, &l.levels[(int)t[b]], (double)t[b], 1.0 / (double)B, x0 + b * n, noise + b * n,
                   output + b * wide, drawn + b * n, n, wide > n, clip);
    }
    for (int k = 0; k < KINDS; k++) {
        const int single = (k >= MSE && k <= LOSS) || k == TIME;
        const mhla_stored *shape = k == GRADIENT ? so : sx;
        run_keep(all[k], single ? 1 : shape->rank, single ? &B : shape->shape, "out.%s", kinds[k]);
        free(all[k]);
    }
    mhla_noising_free(noising);
    mhla_levels_free(&l);
    mhla_safetensors_close(in);
    free(x0), free(output), free(noise), free(drawn), free(t);
    return MHLA_OK;
}

/* ---- Flows ---- */

mhla_status run_flow(char **arg) { /* IN OUT METHOD TABLE STEPS SHIFT */
    const char *method = arg[2], *table = arg[3];
    const int steps = atoi(arg[4]);
    const double shift = atof(arg[5]);
    mhla_safetensors *in;
    MHLA_TRY(mhla_safetensors_open(&in, arg[0]));
    const mhla_stored *sx, *s;
    float *x = run_floats(in, "in.sample", &sx), times[1000], sigmas[1001];
    double time[1000], sigma[1001];
    if (x == NULL || steps < 1 || steps > 1000) return mhla_fail(MHLA_EDATA, "no in.sample, or %d steps", steps);
    const int wan = strcmp(table, "wan") == 0;
    const mhla_sampler_desc desc = {.size = sizeof desc,
                                    .process = "flow",
                                    .method = method,
                                    .table = wan ? "wan" : NULL,
                                    .steps = steps,
                                    .shift = shift,
                                    .batch = sx->shape[0],
                                    .channels = 1,
                                    .pixels = sx->count / sx->shape[0]};
    mhla_sampler *sampler;
    MHLA_TRY(mhla_sampler_create(&sampler, &desc));
    mhla_flow_sigmas(sigma, time,
                     strcmp(method, "euler") == 0   ? MHLA_FLOW_EULER
                     : strcmp(method, "dpm++") == 0 ? (wan ? MHLA_FLOW_WAN_DPM : MHLA_FLOW_DPM)
                                                    : (wan ? MHLA_FLOW_WAN_UNIPC : MHLA_FLOW_UNIPC),
                     steps, shift);
    for (int i = 0; i <= steps; i++) sigmas[i] = (float)sigma[i];
    for (int i = 0; i < steps; i++) {
        char name[40];
        times[i] = (float)mhla_sampler_time(sampler, i);
        snprintf(name, sizeof name, "in.model_output.%02d", i);
        float *output = run_floats(in, name, &s);
        if (output == NULL) return mhla_fail(MHLA_EDATA, "no %s", name);
        MHLA_TRY(mhla_sampler_step(sampler, i, x, output, NULL));
        run_keep(x, sx->rank, sx->shape, "out.sample.%02d", i);
        free(output);
    }
    run_keep(times, 1, (const int64_t[]){steps}, "out.timesteps");
    run_keep(sigmas, 1, (const int64_t[]){steps + 1}, "out.sigmas");
    mhla_sampler_free(sampler);
    mhla_safetensors_close(in);
    free(x);
    return MHLA_OK;
}
