/* Samplers and noising without outside files: a whole trajectory against a plain reference in double, exact solutions of a
 * Gaussian, bad input. The published numbers are in test_diffusion.c. */
#include "diffusion/diffusion.h"
#include "diffusion/sigmas.h"
#include "support.h"

static mhla_sampler_desc described(const char *process, const char *method, int steps) {
    return (mhla_sampler_desc){.size = sizeof(mhla_sampler_desc),
                               .process = process,
                               .method = method,
                               .steps = steps,
                               .batch = 1,
                               .channels = 1,
                               .pixels = 1};
}

/* ---- 250 steps of DDPM with learned variance, and of DDIM, from fixed noise ---- */

/* A network of no meaning, but smooth and different at every time. */
static double told_noise(double x, double t) { return 0.9 * sin(1.3 * x + 0.01 * t) + 0.2 * x; }
static double told_variance(double x, double t) { return cos(2.0 * x - 0.02 * t); }

/* The definition, from the papers: betas, the 250 of them that are kept, the posterior. eta < 0: DDPM. */
static void reference(double *x, const float *noise, int n, int64_t stride, const int *times, int steps, double eta) {
    double kept[1000], product = 1.0;
    for (int i = 0; i < 1000; i++) kept[i] = product *= 1.0 - (1e-4 + i * (0.02 - 1e-4) / 999.0);
    for (int s = steps - 1; s >= 0; s--) {
        const double t = times[s], ab = kept[times[s]], ab_before = s ? kept[times[s - 1]] : 1.0;
        const double beta = 1.0 - ab / ab_before, tilde = beta * (1.0 - ab_before) / (1.0 - ab);
        for (int i = 0; i < n; i++) {
            const double z = (double)noise[(int64_t)(steps - 1 - s) * stride + i], eps = told_noise(x[i], t);
            const double data = (x[i] - sqrt(1.0 - ab) * eps) / sqrt(ab);
            if (eta < 0.0) {
                const double mean = sqrt(ab_before) * beta / (1.0 - ab) * data +
                                    sqrt(ab / ab_before) * (1.0 - ab_before) / (1.0 - ab) * x[i];
                const double v = (told_variance(x[i], t) + 1.0) / 2.0;
                x[i] = s ? mean + z * exp(0.5 * (v * log(beta) + (1.0 - v) * log(tilde))) : mean;
            } else {
                const double sigma = eta * sqrt(tilde);
                x[i] = sqrt(ab_before) * data + sqrt(1.0 - ab_before - sigma * sigma) * eps + sigma * z;
            }
        }
    }
}

static void trajectory(const char *method, const int *times, int steps, double eta) {
    enum { B = 3, C = 2, P = 5, N = B * C * P };
    mhla_sampler_desc d = described("linear", method, steps);
    d.learned_sigma = 1, d.batch = B, d.channels = C, d.pixels = P, d.eta = eta < 0.0 ? 0.0 : eta;
    mhla_sampler *s;
    ASSERT_OK(mhla_sampler_create(&s, &d));
    assert_int_equal(mhla_sampler_steps(s), steps);
    rng r = {5};
    float x[N], output[2 * N], *noise = new_random(&r, (int64_t)steps * N), got[N];
    double want[N];
    for (int i = 0; i < N; i++) want[i] = (double)(x[i] = 2.0f * rng_signed(&r));
    for (int i = 0; i < steps; i++) {
        const double t = mhla_sampler_time(s, i);
        assert_true(t == times[steps - 1 - i]);
        assert_int_equal(mhla_sampler_wants_noise(s, i), i + 1 < steps && (eta < 0.0 || eta > 0.0));
        for (int b = 0; b < B; b++)
            for (int k = 0; k < C * P; k++) {
                const double at = (double)x[b * C * P + k];
                output[b * 2 * C * P + k] = (float)told_noise(at, t);
                output[b * 2 * C * P + C * P + k] = (float)told_variance(at, t);
            }
        ASSERT_OK(mhla_sampler_step(s, i, x, output, noise + (int64_t)i * N));
        for (int k = 0; k < N; k++) assert_true(isfinite(mhla_sampler_predicted(s)[k]));
    }
    reference(want, noise, N, N, times, steps, eta);
    for (int i = 0; i < N; i++) got[i] = (float)want[i];
    ASSERT_CLOSE(x, got, N, 1e-5, "%s, %d steps, eta %g", method, steps, eta);
    free(noise);
    mhla_sampler_free(s);
}

static void trajectories(void **state) {
    (void)state;
    int evenly[250], strides[250], few[7];
    for (int i = 0; i < 250; i++) evenly[i] = (int)nearbyint(i * 999.0 / 249.0), strides[i] = 4 * i;
    for (int i = 0; i < 7; i++) few[i] = (int)nearbyint(i * 999.0 / 6.0); /* no whole stride makes seven */
    trajectory("ddpm", evenly, 250, -1.0);
    trajectory("ddim", strides, 250, 0.0);
    trajectory("ddim", strides, 250, 0.7);
    trajectory("ddim", few, 7, 1.0);
}

/* ---- A Gaussian's ODE has an exact solution ---- */

enum { MU = 1, POINTS = 9 };
static const double spread = 0.5; /* data is N(MU, spread^2) */

/* The largest error of x_0 = MU + spread z, where x began as alpha MU + sqrt(alpha^2 spread^2 + sigma^2) z. */
static double gaussian_error(const char *process, const char *method, const char *table, int steps) {
    mhla_sampler_desc d = described(process, method, steps);
    d.pixels = POINTS, d.table = table;
    mhla_sampler *s;
    ASSERT_OK(mhla_sampler_create(&s, &d));
    const int flow = strcmp(process, "flow") == 0;
    double sigmas[1001], times[1000], kept[1000], product = 1.0;
    mhla_flow_sigmas(sigmas, times,
                     strcmp(method, "euler") == 0   ? MHLA_FLOW_EULER
                     : strcmp(method, "dpm++") == 0 ? (table ? MHLA_FLOW_WAN_DPM : MHLA_FLOW_DPM)
                                                    : (table ? MHLA_FLOW_WAN_UNIPC : MHLA_FLOW_UNIPC),
                     steps, 1.0);
    for (int i = 0; i < 1000; i++) {
        const double cosine = pow(cos(((i + 1) / 1000.0 + 0.008) / 1.008 * acos(-1.0) / 2.0), 2.0) /
                              pow(cos((i / 1000.0 + 0.008) / 1.008 * acos(-1.0) / 2.0), 2.0);
        kept[i] = product *= strcmp(process, "cosine") == 0 ? fmax(0.001, cosine) : 1.0 - (1e-4 + i * 0.0199 / 999.0);
    }
    float x[POINTS], output[POINTS];
    double worst = 0.0;
    for (int i = 0; i < steps; i++) {
        const double t = mhla_sampler_time(s, i), ab = flow ? 0.0 : kept[(int)t];
        const double sigma = flow ? sigmas[i] : sqrt(1.0 - ab), alpha = flow ? 1.0 - sigma : sqrt(ab);
        const double V = alpha * alpha * spread * spread + sigma * sigma;
        for (int k = 0; k < POINTS; k++) {
            if (i == 0) x[k] = (float)(alpha * MU + sqrt(V) * (k - 4) / 2.0);
            const double gap = ((double)x[k] - alpha * MU) / V, noise = sigma * gap;
            output[k] = (float)(flow ? noise - (MU + alpha * spread * spread * gap) : noise);
        }
        ASSERT_OK(mhla_sampler_step(s, i, x, output, NULL));
    }
    for (int k = 0; k < POINTS; k++) worst = fmax(worst, fabs((double)x[k] - (MU + spread * (k - 4) / 2.0)));
    mhla_sampler_free(s);
    return worst;
}

static void exact_solutions(void **state) {
    (void)state;
    static const struct {
        const char *process, *method, *table;
        double at_25, gain; /* the error allowed; how much smaller it gets with four times the steps */
    } cases[] = {
        {"linear", "ddim", NULL, 0.12, 3.0},   {"cosine", "ddim", NULL, 0.07, 3.0},
        {"linear", "dpm++", NULL, 0.03, 8.0},  {"linear", "unipc", NULL, 0.03, 8.0},
        {"cosine", "dpm++", NULL, 0.003, 2.0}, {"cosine", "unipc", NULL, 0.003, 2.0},
        {"flow", "euler", NULL, 0.07, 3.0},    {"flow", "dpm++", NULL, 0.01, 8.0},
        {"flow", "unipc", NULL, 0.007, 8.0},   {"flow", "dpm++", "wan", 0.01, 8.0},
        {"flow", "unipc", "wan", 0.007, 8.0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const double coarse = gaussian_error(cases[c].process, cases[c].method, cases[c].table, 25),
                     fine = gaussian_error(cases[c].process, cases[c].method, cases[c].table, 100);
        if (!(coarse <= cases[c].at_25 && fine <= coarse / cases[c].gain))
            fail_msg("%s %s %s: error %.3g with 25 steps, %.3g with 100", cases[c].process, cases[c].method,
                     cases[c].table ? cases[c].table : "", coarse, fine);
    }
}

/* ---- What a sampler promises ---- */

/* A sample's numbers do not depend on its neighbours; step 0 starts anew. */
static void samples_are_alone(void **state) {
    (void)state;
    enum { B = 5, N = 13, STEPS = 6 };
    static const char *const kinds[][2] = {{"linear", "ddpm"},  {"cosine", "ddim"}, {"linear", "dpm++"},
                                           {"cosine", "unipc"}, {"flow", "euler"},  {"flow", "dpm++"},
                                           {"flow", "unipc"}};
    rng r = {7};
    float *start = new_random(&r, B * N), *noise = new_random(&r, STEPS * B * N),
          *output = new_random(&r, STEPS * B * N);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        mhla_sampler_desc d = described(kinds[k][0], kinds[k][1], STEPS);
        d.pixels = N, d.clip = k % 2 == 0;
        mhla_sampler *alone, *together;
        ASSERT_OK(mhla_sampler_create(&alone, &d));
        d.batch = B;
        ASSERT_OK(mhla_sampler_create(&together, &d));
        float all[B * N], one[N];
        for (int round = 0; round < 2; round++) {
            memcpy(all, start, sizeof all);
            for (int i = 0; i < STEPS; i++)
                ASSERT_OK(mhla_sampler_step(together, i, all, output + i * B * N, noise + i * B * N));
        }
        memcpy(one, start + 3 * N, sizeof one);
        for (int i = 0; i < STEPS; i++)
            ASSERT_OK(mhla_sampler_step(alone, i, one, output + (i * B + 3) * N, noise + (i * B + 3) * N));
        assert_memory_equal(one, all + 3 * N, sizeof one);
        mhla_sampler_free(alone);
        mhla_sampler_free(together);
    }
    free(start), free(noise), free(output);
}

/* With clipping the end is within [-1,1] whatever the network says. */
static void clipping(void **state) {
    (void)state;
    static const char *const kinds[][2] = {
        {"linear", "ddpm"}, {"linear", "ddim"}, {"linear", "dpm++"}, {"flow", "euler"}, {"flow", "unipc"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        mhla_sampler_desc d = described(kinds[k][0], kinds[k][1], 5);
        d.clip = 1;
        mhla_sampler *s;
        ASSERT_OK(mhla_sampler_create(&s, &d));
        float x = 0.5f;
        for (int i = 0; i < 5; i++) ASSERT_OK(mhla_sampler_step(s, i, &x, &(float){30.0f}, &(float){0.0f}));
        assert_true(fabsf(x + 1.0f) < 1e-4f);
        assert_true(mhla_sampler_predicted(s)[0] == -1.0f);
        mhla_sampler_free(s);
    }
}

static void bad_input(void **state) {
    (void)state;
    mhla_sampler *s;
    mhla_sampler_desc d = described("diffusion", NULL, 0);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "process \"diffusion\"");
    assert_null(s);
    d = described(NULL, "heun", 0);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "sampler \"heun\": expected ddpm");
    d = described("flow", "ddim", 0);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "ddim is not for flows");
    d = described("cosine", "euler", 0);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "euler is for flows");
    d = described(NULL, NULL, 1001);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "1001 steps");
    d = described(NULL, NULL, -1);
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "-1 steps");
    d = described(NULL, "ddim", 0), d.eta = 1.5;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "eta 1.5");
    d = described(NULL, "ddpm", 0), d.eta = 0.5;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "eta is for ddim");
    d = described("flow", NULL, 0), d.shift = NAN;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "shift nan");
    d = described(NULL, NULL, 0), d.shift = 3.0;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "shift is for flows");
    d = described("flow", NULL, 0), d.learned_sigma = 1;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "no learned variance");
    d = described("flow", NULL, 0), d.table = "wan";
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "of dpm++ and unipc");
    d = described(NULL, "ddim", 0), d.table = "ddim600";
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "no whole stride");
    d = described(NULL, NULL, 0), d.table = "10,,5";
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "commas");
    d = described(NULL, NULL, 0), d.table = "10,900";
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "more levels");
    d = described(NULL, NULL, 20), d.table = "10,5";
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "has 15 steps, not 20");
    d = described(NULL, NULL, 0), d.channels = 0;
    ASSERT_FAILS(mhla_sampler_create(&s, &d), MHLA_EINVAL, "channels 0");

    d = described(NULL, NULL, 0), d.batch = 2, d.pixels = 3, d.learned_sigma = 1;
    ASSERT_OK(mhla_sampler_create(&s, &d));
    assert_int_equal(mhla_sampler_steps(s), 250);
    float x[6] = {1, 2, 3, 4, 5, 6}, output[12] = {0}, noise[6] = {0};
    ASSERT_FAILS(mhla_sampler_step(s, 1, x, output, noise), MHLA_EINVAL, "step 0 is due");
    ASSERT_FAILS(mhla_sampler_step(s, 0, x, output, NULL), MHLA_EINVAL, "wants noise");
    ASSERT_OK(mhla_sampler_step(s, 0, x, output, noise));
    output[10] = NAN; /* in the variance of the second */
    const float before = x[0];
    ASSERT_FAILS(mhla_sampler_step(s, 1, x, output, noise), MHLA_ERANGE,
                 "step 2 of 250: the network's answer for sample 1");
    assert_true(x[0] == before);
    mhla_sampler_free(s);
    mhla_sampler_free(NULL);
}

/* ---- Noising ---- */

static void flow_noising(void **state) {
    (void)state;
    enum { N = 7 };
    mhla_noising *n;
    ASSERT_OK(mhla_noising_create(&n, MHLA_PROCESS_FLOW, 0, 1, 3.0));
    assert_true(fabs(mhla_noising_time(n, 0.0) - 750.0) < 1e-9); /* 3 u / (1 + 2 u) at u = 1/2 */
    assert_true(mhla_noising_time(n, 80.0) < 1000.0 && mhla_noising_time(n, -80.0) > 0.0);
    rng r = {9};
    float *x0 = new_random(&r, N), *noise = new_random(&r, N), *output = new_random(&r, N), xt[N], gradient[N];
    mhla_noising_apply(n, xt, x0, noise, 250.0, N);
    double square = 0.0;
    for (int i = 0; i < N; i++) {
        assert_true(fabsf(xt[i] - (0.75f * x0[i] + 0.25f * noise[i])) < 1e-6f);
        square += pow((double)output[i] - ((double)noise[i] - (double)x0[i]), 2.0) / N;
    }
    const mhla_noising_loss l = mhla_noising_judge(n, gradient, 3.0, output, xt, x0, noise, 250.0, N);
    assert_true(fabs(l.loss - square) < 1e-12 && l.mse == l.loss && l.vb == 0.0);
    for (int i = 0; i < N; i++) assert_true(fabsf(gradient[i] - 6.0f / N * (output[i] - noise[i] + x0[i])) < 1e-6f);
    mhla_noising_free(n);
    free(x0), free(noise), free(output);

    ASSERT_OK(mhla_noising_create(&n, MHLA_PROCESS_COSINE, 1, 0, 0.0));
    assert_true(mhla_noising_time(n, 0.0) == 0.0 && mhla_noising_time(n, 0.9999) == 999.0);
    assert_true(mhla_noising_time(n, 1.0) == 999.0 && mhla_noising_time(n, 0.5) == 500.0);
    mhla_noising_free(n);
    ASSERT_FAILS(mhla_noising_create(&n, MHLA_PROCESS_FLOW, 1, 0, 0.0), MHLA_EINVAL, "no variance to learn");
    ASSERT_FAILS(mhla_noising_create(&n, 3, 0, 0, 0.0), MHLA_EINVAL, "process 3");
    ASSERT_FAILS(mhla_noising_create(&n, MHLA_PROCESS_FLOW, 0, 0, NAN), MHLA_EINVAL, "shift nan");
    mhla_noising_free(NULL);
}

/* The gradient of the variance's term by differences, where the data is black, grey and white. */
static void variance_gradient(void **state) {
    (void)state;
    enum { N = 6 };
    mhla_noising *n;
    ASSERT_OK(mhla_noising_create(&n, MHLA_PROCESS_LINEAR, 1, 0, 0.0));
    const float x0[N] = {-1.0f, 1.0f, 0.0f, 0.3f, -0.7f, 1.0f};
    float noise[N], output[2 * N], xt[N], gradient[2 * N];
    rng r = {11};
    for (int i = 0; i < N; i++) noise[i] = rng_signed(&r);
    for (int i = 0; i < 2 * N; i++) output[i] = 0.8f * rng_signed(&r);
    for (int t = 0; t < 1000; t += 333) {
        mhla_noising_apply(n, xt, x0, noise, t, N);
        mhla_noising_judge(n, gradient, 1.0, output, xt, x0, noise, t, N);
        for (int i = N; i < 2 * N; i++) {
            const float was = output[i], h = 0.0078125f;
            output[i] = was + h;
            const double up = mhla_noising_judge(n, NULL, 1.0, output, xt, x0, noise, t, N).loss;
            output[i] = was - h;
            const double down = mhla_noising_judge(n, NULL, 1.0, output, xt, x0, noise, t, N).loss;
            output[i] = was;
            assert_true(fabs((up - down) / (2.0 * (double)h) - (double)gradient[i]) <=
                        1e-3 * fabs((double)gradient[i]) + 1e-9);
        }
    }
    mhla_noising_free(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trajectories),      cmocka_unit_test(exact_solutions), cmocka_unit_test(samples_are_alone),
        cmocka_unit_test(clipping),          cmocka_unit_test(bad_input),       cmocka_unit_test(flow_noising),
        cmocka_unit_test(variance_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
