/* Noise levels, noising and samplers against the published code's numbers. */
#include "diffusion/levels.h"
#include "diffusion/noising.h"
#include "diffusion/sigmas.h"
#include "diffusion/steps.h"
#include "nn/goldens.h"

/* ---- Noise levels ---- */

static void check_table(const mhla_safetensors *f, const char *schedule, const char *name, const double *ours, int n) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", schedule, name);
    float *want = golden(f, "out.", full);
    for (int i = 0; i < n; i++) { /* each entry by itself: they span ten decades */
        const double gap = fabs(ours[i] - (double)want[i]);
        if (gap > 1.3e-7 * fabs((double)want[i]) + 1e-30)
            fail_msg("%s[%d]: %.9g, wanted %.9g", full, i, ours[i], (double)want[i]);
    }
    free(want);
}

static void check_schedule(const mhla_safetensors *f, const char *schedule, int process, int original,
                           const char *respacing) {
    mhla_levels l;
    ASSERT_OK(mhla_levels_create(&l, process, original, respacing));
    char full[128];
    snprintf(full, sizeof full, "out.%s.betas", schedule);
    const mhla_stored *stored;
    ASSERT_OK(mhla_safetensors_need(&stored, f, full));
    assert_int_equal(stored->count, l.count);
    static const char *const names[] = {"betas",
                                        "alphas_cumprod",
                                        "alphas_cumprod_prev",
                                        "posterior_variance",
                                        "posterior_log_variance_clipped",
                                        "posterior_mean_coef1",
                                        "posterior_mean_coef2",
                                        "sqrt_alphas_cumprod",
                                        "sqrt_one_minus_alphas_cumprod",
                                        "sqrt_recip_alphas_cumprod",
                                        "sqrt_recipm1_alphas_cumprod",
                                        "timestep_map"};
    double *column = new_bytes(sizeof *column * (size_t)l.count);
    for (int k = 0; k < (process == MHLA_PROCESS_COSINE ? 1 : 12); k++) {
        for (int i = 0; i < l.count; i++) {
            const mhla_level *v = &l.levels[i];
            const double values[] = {v->beta,
                                     v->kept,
                                     v->kept_before,
                                     v->variance,
                                     v->log_variance,
                                     v->mean_data,
                                     v->mean_noisy,
                                     sqrt(v->kept),
                                     sqrt(1.0 - v->kept),
                                     sqrt(1.0 / v->kept),
                                     sqrt(1.0 / v->kept - 1.0),
                                     v->time};
            column[i] = values[k];
        }
        check_table(f, schedule, names[k], column, l.count);
    }
    free(column);
    mhla_levels_free(&l);
}

static void golden_schedules(void **state) {
    (void)state;
    mhla_safetensors *f = open_golden("06_diffusion/schedules");
    check_schedule(f, "linear1000", MHLA_PROCESS_LINEAR, 1000, NULL);
    check_schedule(f, "respaced250", MHLA_PROCESS_LINEAR, 1000, "250");
    check_schedule(f, "respaced7", MHLA_PROCESS_LINEAR, 1000, "7");
    check_schedule(f, "ddim50", MHLA_PROCESS_LINEAR, 1000, "ddim50");
    check_schedule(f, "sections_10_15_20_of_300", MHLA_PROCESS_LINEAR, 300, "10,15,20");
    check_schedule(f, "squaredcos1000", MHLA_PROCESS_COSINE, 1000, NULL);
    mhla_safetensors_close(f);
}

/* ---- Noising and losses ---- */

static void check_losses(const mhla_safetensors *f, int B, const char *respacing) {
    enum { N = 4 * 4 * 4 };
    float *x0 = golden(f, "in.", "x_start"), *noise = golden(f, "in.", "noise"),
          *output = golden(f, "in.", "model_output"), *t = golden(f, "in.", "t"),
          *want_xt = golden(f, "out.", "q_sample"), *want_mse = golden(f, "out.", "train.mse"),
          *want_vb = golden(f, "out.", "train.vb"), *want_loss = golden(f, "out.", "train.loss"),
          *want_gradient = golden(f, "out.", "train.grad_model_output");
    mhla_noising *noising;
    ASSERT_OK(mhla_noising_create_spaced(&noising, MHLA_PROCESS_LINEAR, 1, 1000, respacing));
    float xt[N], gradient[2 * N], only[2 * N];
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < 2 * N; i++) gradient[i] = only[i] = NAN;
        mhla_noising_apply(noising, xt, x0 + b * N, noise + b * N, (double)t[b], N);
        ASSERT_CLOSE(xt, want_xt + b * N, N, 1e-6, "sample %d", b);
        const mhla_noising_loss l = mhla_noising_judge(noising, gradient, 1.0 / B, output + 2L * b * N, xt, x0 + b * N,
                                                       noise + b * N, (double)t[b], N);
        assert_true(fabs(l.mse - (double)want_mse[b]) <= 1e-6 * (double)want_mse[b]);
        assert_true(fabs(l.vb - (double)want_vb[b]) <= 2e-6 * (double)want_vb[b]);
        assert_true(fabs(l.loss - (double)want_loss[b]) <= 1e-6 * (double)want_loss[b]);
        /* halves by themselves: the variance's is up to 1e10 times smaller */
        ASSERT_CLOSE(gradient, want_gradient + 2L * b * N, N, 1e-6, "noise, sample %d", b);
        ASSERT_CLOSE(gradient + N, want_gradient + 2L * b * N + N, N, 5e-6, "variance, sample %d", b);
        const mhla_noising_loss again =
            mhla_noising_judge(noising, NULL, 1.0, output + 2L * b * N, xt, x0 + b * N, noise + b * N, (double)t[b], N);
        assert_true(again.loss == l.loss);
    }
    mhla_noising_free(noising);
    free(x0), free(noise), free(output), free(t), free(want_xt), free(want_mse), free(want_vb), free(want_loss);
    free(want_gradient);
}

static const struct {
    const char *name, *respacing;
    int batch, clip;
} step_cases[] = {{"steps_1000", NULL, 6, 0},
                  {"steps_1000_clip", NULL, 4, 1},
                  {"steps_250", "250", 5, 0},
                  {"steps_ddim50", "ddim50", 5, 0}};
enum { STEP_CASES = sizeof step_cases / sizeof *step_cases };

static void golden_losses(void **state) {
    (void)state;
    for (int c = 0; c < STEP_CASES; c++) {
        char name[64];
        snprintf(name, sizeof name, "06_diffusion/%s", step_cases[c].name);
        mhla_safetensors *f = open_golden(name);
        check_losses(f, step_cases[c].batch, step_cases[c].respacing);
        mhla_safetensors_close(f);
    }
}

/* ---- Single steps ---- */

static void check_steps(const mhla_safetensors *f, int B, const char *respacing, int clip) {
    enum { N = 4 * 4 * 4 };
    float *start = golden(f, "out.", "q_sample"), *output = golden(f, "in.", "model_output"),
          *t = golden(f, "in.", "t"), *noise = golden(f, "in.", "sample_noise"),
          *told = golden(f, "out.", "t_for_model");
    static const char *const names[] = {"p_sample",  "pmv.mean",  "pmv.pred_xstart", "pmv.log_variance",
                                        "ddim_eta0", "ddim_eta1", "ddim_reverse"};
    const int kinds = mhla_safetensors_find(f, "out.ddim_reverse") ? 7 : 6;
    mhla_levels l;
    ASSERT_OK(mhla_levels_create(&l, MHLA_PROCESS_LINEAR, 1000, respacing));
    for (int k = 0; k < kinds; k++) {
        float *want = golden(f, "out.", names[k]);
        for (int b = 0; b < B; b++) {
            const mhla_level *level = &l.levels[(int)t[b]];
            assert_true((double)level->time == (double)told[b]);
            const float *out = output + 2L * b * N, *z = t[b] > 0.0f ? noise + b * N : NULL;
            float x[N], data[N];
            memcpy(x, start + b * N, sizeof x);
            for (int i = 0; i < N; i++) data[i] = NAN;
            if (k < 3) mhla_ddpm_step(x, data, out, out + N, k == 0 ? z : NULL, N, level, clip);
            if (k == 4) mhla_ddim_step(x, data, out, NULL, N, level, 0.0, clip);
            if (k == 5) mhla_ddim_step(x, data, out, z, N, level, 1.0, clip);
            if (k == 6) mhla_ddim_reverse(x, data, out, N, level, clip);
            for (int i = 0; k == 3 && i < N; i++) x[i] = (float)mhla_level_log_variance(level, (double)out[N + i]);
            /* what is seen, and a clipped step backwards at the first level, are differences, and x is given in float32 only */
            const double tolerance = k == 6 && clip ? 3e-5 : k == 2 ? 2e-6 : 1e-6;
            ASSERT_CLOSE(k == 2 ? data : x, want + b * N, N, tolerance, "%s, sample %d", names[k], b);
        }
        free(want);
    }
    mhla_levels_free(&l);
    free(start), free(output), free(t), free(noise), free(told);
}

static void golden_steps(void **state) {
    (void)state;
    for (int c = 0; c < STEP_CASES; c++) {
        char name[64];
        snprintf(name, sizeof name, "06_diffusion/%s", step_cases[c].name);
        mhla_safetensors *f = open_golden(name);
        check_steps(f, step_cases[c].batch, step_cases[c].respacing, step_cases[c].clip);
        mhla_safetensors_close(f);
    }
}

/* ---- Flows, step for step ---- */

static void check_flow(const char *kind, const char *method, const char *table, int steps, int shift) {
    char name[96];
    snprintf(name, sizeof name, "generation/sched_%s_n%d_shift%d", kind, steps, shift);
    mhla_safetensors *f = open_golden(name);
    enum { N = 2 * 3 * 2 * 2 };
    const mhla_sampler_desc desc = {.size = sizeof desc,
                                    .process = "flow",
                                    .method = method,
                                    .table = table,
                                    .steps = steps,
                                    .shift = shift,
                                    .batch = 2,
                                    .channels = 3,
                                    .pixels = 4};
    mhla_sampler *s;
    ASSERT_OK(mhla_sampler_create(&s, &desc));
    float *x = golden(f, "in.", "sample"), *times = golden(f, "out.", "timesteps"),
          *sigmas = golden(f, "out.", "sigmas");
    assert_int_equal(mhla_sampler_steps(s), steps);
    double sigma[32], time[32];
    mhla_flow_sigmas(sigma, time,
                     strcmp(method, "euler") == 0   ? MHLA_FLOW_EULER
                     : strcmp(method, "dpm++") == 0 ? (table ? MHLA_FLOW_WAN_DPM : MHLA_FLOW_DPM)
                                                    : (table ? MHLA_FLOW_WAN_UNIPC : MHLA_FLOW_UNIPC),
                     steps, shift);
    for (int i = 0; i <= steps; i++)
        if (sigma[i] != (double)sigmas[i])
            fail_msg("%s: sigma %d is %.9g, not %.9g", name, i, sigma[i], (double)sigmas[i]);
    for (int i = 0; i < steps; i++) {
        if ((float)mhla_sampler_time(s, i) != times[i])
            fail_msg("%s: time %d is %.9g, not %.9g", name, i, mhla_sampler_time(s, i), (double)times[i]);
        char key[32];
        snprintf(key, sizeof key, "model_output.%02d", i);
        float *output = golden(f, "in.", key);
        snprintf(key, sizeof key, "sample.%02d", i);
        float *want = golden(f, "out.", key);
        assert_false(mhla_sampler_wants_noise(s, i));
        ASSERT_OK(mhla_sampler_step(s, i, x, output, NULL));
        ASSERT_CLOSE(x, want, N, 1e-6, "%s, step %d", name, i);
        free(output), free(want);
    }
    free(x), free(times), free(sigmas);
    mhla_sampler_free(s);
    mhla_safetensors_close(f);
}

static void golden_flows(void **state) {
    (void)state;
    static const struct {
        const char *kind, *method, *table;
    } kinds[] = {{"flow_euler", "euler", NULL},
                 {"dpmpp_flow", "dpm++", NULL},
                 {"unipc_flow", "unipc", NULL},
                 {"wan_unipc", "unipc", "wan"},
                 {"wan_dpmpp", "dpm++", "wan"}};
    for (int k = 0; k < 5; k++)
        for (int c = 0; c < 4; c++)
            check_flow(kinds[k].kind, kinds[k].method, kinds[k].table, c & 1 ? 20 : 6, c & 2 ? 5 : 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_schedules),
        cmocka_unit_test(golden_losses),
        cmocka_unit_test(golden_steps),
        cmocka_unit_test(golden_flows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
