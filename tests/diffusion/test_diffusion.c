/* Noise levels, noising and samplers against the published code's numbers. */
#include "diffusion/levels.h"
#include "diffusion/noising.h"
#include "diffusion/sigmas.h"
#include "diffusion/steps.h"
#include "goldens.h"

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
    for (int k = 0; k < 12; k++) {
        snprintf(full, sizeof full, "out.%s.%s", schedule, names[k]);
        if (!mhla_safetensors_find(f, full)) continue;
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

/* Names say the levels: linear1000, squaredcos500, respaced250, ddim50, sections_10_15_20_of_300. */
static void check_schedules(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)said;
    int found = 0;
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
        char schedule[64], respacing[64] = "";
        int end = 0, levels = 1000, some = 0, cosine = 0;
        const char *name = mhla_safetensors_at(f, i)->name;
        if (sscanf(name, "out.%63[^.].%nbetas%n", schedule, &end, &end) != 1 || end == 0 || strcmp(name + end, "") != 0)
            continue;
        const char *of = strstr(schedule, "_of_");
        if (of) levels = atoi(of + 4);
        if (sscanf(schedule, "sections_%63[0-9_]", respacing) == 1) {
            for (char *c = respacing; *c; c++)
                if (*c == '_') *c = ',';
            while (respacing[strlen(respacing) - 1] == ',') respacing[strlen(respacing) - 1] = '\0';
        } else if (sscanf(schedule, "respaced%d", &some) == 1) {
            snprintf(respacing, sizeof respacing, "%d", some);
        } else if (sscanf(schedule, "ddim%d", &some) == 1) {
            snprintf(respacing, sizeof respacing, "ddim%d", some);
        } else if (sscanf(schedule, "linear%d", &levels) != 1) {
            cosine = sscanf(schedule, "squaredcos%d", &levels) == 1;
            if (!cosine) fail_msg("%s: %s is not a schedule that is known here", path, schedule);
        }
        check_schedule(f, schedule, cosine ? MHLA_PROCESS_COSINE : MHLA_PROCESS_LINEAR, levels, respacing);
        found++;
    }
    assert_true(found > 0);
}

static void golden_schedules(void **state) {
    (void)state;
    each_golden("case", "diffusion-schedules", check_schedules);
}

/* ---- Noising and losses ---- */

/* Numbers of one sample, and how many there are. */
static int64_t sample_size(const mhla_safetensors *f, int64_t *B) {
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, f, "in.x_start"));
    *B = s->shape[0];
    return s->count / s->shape[0];
}

static const char *respacing_of(const json_t *said) { return json_string_value(json_object_get(said, "respacing")); }

/* The first of these keys that the file has; NULL if it has none. */
static const json_t *first_said(const json_t *said, const char *const keys[3]) {
    const json_t *found = NULL;
    for (int i = 0; i < 3 && found == NULL; i++) found = json_object_get(said, keys[i]);
    return found;
}

/* Linear unless the file says a cosine. */
static int process_of(const json_t *said) {
    const char *name =
        json_string_value(first_said(said, (const char *const[]){"noise_schedule", "schedule", "betas"}));
    return name && strstr(name, "cos") ? MHLA_PROCESS_COSINE : MHLA_PROCESS_LINEAR;
}

static int levels_of(const json_t *said) {
    const json_t *found =
        first_said(said, (const char *const[]){"diffusion_steps", "num_timesteps", "num_train_timesteps"});
    return found ? (int)json_integer_value(found) : 1000;
}

static void check_losses(const char *path, const mhla_safetensors *f, const json_t *said) {
    int64_t B;
    const int64_t N = sample_size(f, &B);
    if (!mhla_safetensors_find(f, "out.train.vb")) return; /* without a learned variance */
    float *x0 = golden(f, "in.", "x_start"), *noise = golden(f, "in.", "noise"),
          *output = golden(f, "in.", "model_output"), *t = golden(f, "in.", "t"),
          *want_xt = golden(f, "out.", "q_sample"), *want_mse = golden(f, "out.", "train.mse"),
          *want_vb = golden(f, "out.", "train.vb"), *want_loss = golden(f, "out.", "train.loss"),
          *want_gradient = golden(f, "out.", "train.grad_model_output");
    mhla_noising *noising;
    ASSERT_OK(mhla_noising_create_spaced(&noising, process_of(said), 1, levels_of(said), respacing_of(said)));
    float *xt = new_poisoned(N), *gradient = new_poisoned(2 * N);
    for (int64_t b = 0; b < B; b++) {
        const float *given = output + 2 * b * N;
        const double time = (double)t[b];
        for (int64_t i = 0; i < 2 * N; i++) gradient[i] = NAN;
        mhla_noising_apply(noising, xt, x0 + b * N, noise + b * N, time, N);
        ASSERT_CLOSE(xt, want_xt + b * N, N, 1e-6, "%s, sample %d", path, (int)b);
        const mhla_noising_loss l =
            mhla_noising_judge(noising, gradient, 1.0 / (double)B, given, xt, x0 + b * N, noise + b * N, time, N);
        assert_true(fabs(l.mse - (double)want_mse[b]) <= 1e-6 * (double)want_mse[b]);
        assert_true(fabs(l.vb - (double)want_vb[b]) <= 2e-6 * (double)want_vb[b]);
        assert_true(fabs(l.loss - (double)want_loss[b]) <= 1e-6 * (double)want_loss[b]);
        /* halves by themselves: the variance's is up to 1e10 times smaller */
        ASSERT_CLOSE(gradient, want_gradient + 2 * b * N, N, 1e-6, "%s, noise, sample %d", path, (int)b);
        ASSERT_CLOSE(gradient + N, want_gradient + 2 * b * N + N, N, 5e-6, "%s, variance, sample %d", path, (int)b);
        const mhla_noising_loss again =
            mhla_noising_judge(noising, NULL, 1.0, given, xt, x0 + b * N, noise + b * N, time, N);
        assert_true(again.loss == l.loss);
    }
    mhla_noising_free(noising);
    free(x0), free(noise), free(output), free(t), free(want_xt), free(want_mse), free(want_vb), free(want_loss);
    free(want_gradient), free(xt), free(gradient);
}

static void golden_losses(void **state) {
    (void)state;
    each_golden("case", "diffusion-steps", check_losses);
}

/* ---- Single steps ---- */

static void check_steps(const char *path, const mhla_safetensors *f, const json_t *said) {
    int64_t B;
    const int64_t N = sample_size(f, &B);
    const mhla_stored *answers;
    ASSERT_OK(mhla_safetensors_need(&answers, f, "in.model_output"));
    const int64_t wide = answers->count / B;
    const int clip = json_is_true(json_object_get(said, "clip_denoised"));
    float *start = golden(f, "out.", "q_sample"), *output = golden(f, "in.", "model_output"),
          *t = golden(f, "in.", "t"), *noise = golden(f, "in.", "sample_noise"),
          *told = golden(f, "out.", "t_for_model"), *x = new_poisoned(N), *data = new_poisoned(N);
    static const char *const names[] = {"p_sample",  "pmv.mean",  "pmv.pred_xstart", "pmv.log_variance",
                                        "ddim_eta0", "ddim_eta1", "ddim_reverse"};
    mhla_levels l;
    ASSERT_OK(mhla_levels_create(&l, process_of(said), levels_of(said), respacing_of(said)));
    for (int k = 0; k < 7; k++) {
        char full[64];
        snprintf(full, sizeof full, "out.%s", names[k]);
        if (!mhla_safetensors_find(f, full) || (k == 3 && wide == N)) continue;
        float *want = golden(f, full, "");
        for (int64_t b = 0; b < B; b++) {
            const mhla_level *level = &l.levels[(int)t[b]];
            assert_true((double)level->time == (double)told[b]);
            const float *out = output + b * wide, *v = wide > N ? out + N : NULL,
                        *z = t[b] > 0.0f ? noise + b * N : NULL;
            memcpy(x, start + b * N, sizeof *x * (size_t)N);
            for (int64_t i = 0; i < N; i++) data[i] = NAN;
            if (k < 3) mhla_ddpm_step(x, data, out, v, k == 0 ? z : NULL, N, level, clip);
            if (k == 4) mhla_ddim_step(x, data, out, NULL, N, level, 0.0, clip);
            if (k == 5) mhla_ddim_step(x, data, out, z, N, level, 1.0, clip);
            if (k == 6) mhla_ddim_reverse(x, data, out, N, level, clip);
            for (int64_t i = 0; k == 3 && i < N; i++) x[i] = (float)mhla_level_log_variance(level, (double)v[i]);
            /* what is seen, and a clipped step backwards at the first level, are differences, and x is given in float32 only */
            const double tolerance = k == 6 && clip ? 3e-5 : k == 2 ? 2e-6 : 1e-6;
            ASSERT_CLOSE(k == 2 ? data : x, want + b * N, N, tolerance, "%s: %s, sample %d", path, names[k], (int)b);
        }
        free(want);
    }
    mhla_levels_free(&l);
    free(start), free(output), free(t), free(noise), free(told), free(x), free(data);
}

static void golden_steps(void **state) {
    (void)state;
    each_golden("case", "diffusion-steps", check_steps);
}

/* ---- Flows, step for step ---- */

static void check_flow(const char *path, const mhla_safetensors *f, const json_t *said) {
    const char *kind = json_string_value(json_object_get(said, "kind"));
    const int steps = (int)json_integer_value(json_object_get(said, "steps"));
    const double shift = json_number_value(json_object_get(said, "shift"));
    assert_non_null(kind);
    const char *method = *kind == 'F' ? "euler" : *kind == 'D' ? "dpm++" : "unipc";
    const char *table = strstr(kind, "Wan") ? "wan" : NULL;
    const mhla_stored *stored;
    ASSERT_OK(mhla_safetensors_need(&stored, f, "in.sample"));
    const mhla_sampler_desc desc = {.size = sizeof desc,
                                    .process = "flow",
                                    .method = method,
                                    .table = table,
                                    .steps = steps,
                                    .shift = shift,
                                    .batch = stored->shape[0],
                                    .channels = stored->shape[1],
                                    .pixels = stored->count / stored->shape[0] / stored->shape[1]};
    mhla_sampler *s;
    ASSERT_OK(mhla_sampler_create(&s, &desc));
    float *x = golden(f, "in.", "sample"), *sigmas = golden(f, "out.", "sigmas"),
          *times = mhla_safetensors_find(f, "out.timesteps") ? golden(f, "out.", "timesteps") : NULL;
    assert_int_equal(mhla_sampler_steps(s), steps);
    double *sigma = new_bytes(sizeof *sigma * (size_t)(steps + 1)),
           *time = new_bytes(sizeof *time * (size_t)(steps + 1));
    mhla_flow_sigmas(sigma, time,
                     strcmp(method, "euler") == 0   ? MHLA_FLOW_EULER
                     : strcmp(method, "dpm++") == 0 ? (table ? MHLA_FLOW_WAN_DPM : MHLA_FLOW_DPM)
                                                    : (table ? MHLA_FLOW_WAN_UNIPC : MHLA_FLOW_UNIPC),
                     steps, shift);
    for (int i = 0; i <= steps; i++)
        if (sigma[i] != (double)sigmas[i])
            fail_msg("%s: sigma %d is %.9g, not %.9g", path, i, sigma[i], (double)sigmas[i]);
    for (int i = 0; i < steps; i++) {
        if (times && (float)mhla_sampler_time(s, i) != times[i])
            fail_msg("%s: time %d is %.9g, not %.9g", path, i, mhla_sampler_time(s, i), (double)times[i]);
        char key[32];
        snprintf(key, sizeof key, "model_output.%02d", i);
        float *output = golden(f, "in.", key);
        snprintf(key, sizeof key, "sample.%02d", i);
        float *want = golden(f, "out.", key);
        assert_false(mhla_sampler_wants_noise(s, i));
        ASSERT_OK(mhla_sampler_step(s, i, x, output, NULL));
        ASSERT_CLOSE(x, want, stored->count, 1e-6, "%s, step %d", path, i);
        free(output), free(want);
    }
    free(x), free(times), free(sigmas), free(sigma), free(time);
    mhla_sampler_free(s);
}

static void golden_flows(void **state) {
    (void)state;
    each_golden("case", "sched_*", check_flow);
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
