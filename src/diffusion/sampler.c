/* mhla_sampler: the levels that a network is asked at, in order, and the step of the chosen method at each. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "diffusion/diffusion.h"
#include "diffusion/levels.h"
#include "diffusion/sigmas.h"
#include "diffusion/steps.h"

enum { DDPM, DDIM, EULER, DPM, UNIPC, METHODS };
static const struct {
    const char *name;
    int diffusions, flows; /* what it is for */
    enum mhla_flow_table table, wan;
} methods[METHODS] = {
    {"ddpm", 1, 0, MHLA_FLOW_EULER, MHLA_FLOW_EULER},      {"ddim", 1, 0, MHLA_FLOW_EULER, MHLA_FLOW_EULER},
    {"euler", 0, 1, MHLA_FLOW_EULER, MHLA_FLOW_EULER},     {"dpm++", 1, 1, MHLA_FLOW_DPM, MHLA_FLOW_WAN_DPM},
    {"unipc", 1, 1, MHLA_FLOW_UNIPC, MHLA_FLOW_WAN_UNIPC},
};
const char *const mhla_process_names[] = {"linear", "cosine", "flow"};
enum { STEPS_MOST = 1000 };

struct mhla_sampler {
    mhla_sampler_desc desc;
    int process, method, next; /* next: the step that is due */
    mhla_levels levels;        /* diffusions */
    double *numbers;           /* the four below, [steps+1] each */
    double *time, *alpha, *sigma, *lambda;
    mhla_path path;
    int64_t each;     /* values of one sample */
    float *seen[3];   /* [batch,each]: data that this step and the two before saw; as many as the method needs */
    float *corrected; /* unipc [batch,each] */
};

/* ---- What is asked for ---- */

static mhla_status check(mhla_sampler *s) {
    mhla_sampler_desc *d = &s->desc;
    const char *process = d->process ? d->process : "linear";
    while (s->process < 3 && strcmp(process, mhla_process_names[s->process]) != 0) s->process++;
    if (s->process == 3) return mhla_fail(MHLA_EINVAL, "process \"%.40s\": expected linear, cosine or flow", process);
    const int flow = s->process == MHLA_PROCESS_FLOW;
    const char *method = d->method ? d->method : flow ? "euler" : "ddpm";
    while (s->method < METHODS && strcmp(method, methods[s->method].name) != 0) s->method++;
    if (s->method == METHODS)
        return mhla_fail(MHLA_EINVAL, "sampler \"%.40s\": expected ddpm, ddim, euler, dpm++ or unipc", method);
    if (!(flow ? methods[s->method].flows : methods[s->method].diffusions))
        return mhla_fail(MHLA_EINVAL,
                         flow ? "sampler %s is not for flows, which is what the network was trained for: "
                                "euler, dpm++ and unipc are"
                              : "sampler %s is for flows, the network was trained for a diffusion: ddpm, "
                                "ddim, dpm++ and unipc are for that",
                         method);
    if (d->steps < 0 || d->steps > STEPS_MOST)
        return mhla_fail(MHLA_EINVAL, "%d steps: expected 1 to %d", d->steps, STEPS_MOST);
    if (!(d->eta >= 0.0 && d->eta <= 1.0)) return mhla_fail(MHLA_EINVAL, "eta %g: expected 0 to 1", d->eta);
    if (d->eta > 0.0 && s->method != DDIM) return mhla_fail(MHLA_EINVAL, "eta is for ddim, the sampler is %s", method);
    if (!(d->shift == 0.0 || (d->shift >= 0.01 && d->shift <= 100.0)))
        return mhla_fail(MHLA_EINVAL, "shift %g: expected 0.01 to 100", d->shift);
    if (d->shift != 0.0 && d->shift != 1.0 && !flow)
        return mhla_fail(MHLA_EINVAL, "shift is for flows, the network was trained for a diffusion");
    if (flow && d->learned_sigma) return mhla_fail(MHLA_EINVAL, "a flow has no learned variance");
    if (flow && d->table && strcmp(d->table, "wan") != 0)
        return mhla_fail(MHLA_EINVAL, "table \"%.40s\": expected wan, or none", d->table);
    if (flow && d->table && s->method == EULER)
        return mhla_fail(MHLA_EINVAL, "table \"wan\" is of dpm++ and unipc, the sampler is euler");
    if (d->batch < 1 || d->channels < 1 || d->pixels < 1 || d->batch > INT32_MAX || d->channels > INT32_MAX ||
        d->pixels > INT32_MAX || d->channels * d->pixels > INT32_MAX)
        return mhla_fail(MHLA_EINVAL, "batch %lld, channels %lld, pixels %lld: expected sizes of at least 1",
                         (long long)d->batch, (long long)d->channels, (long long)d->pixels);
    return MHLA_OK;
}

/* ---- Levels ---- */

/* DDIM takes whole strides where they divide the levels, as its authors do. Solvers do without the level of the least noise:
 * the step down to it is so long in lambda that extrapolation over it costs ten times the error of all others. */
static mhla_status choose_levels(mhla_sampler *s) {
    const mhla_sampler_desc *d = &s->desc;
    const int wanted = d->steps ? d->steps : s->method == DDPM ? 250 : 50;
    char text[32];
    if (d->table && *d->table) {
        MHLA_TRY(mhla_levels_create(&s->levels, s->process, MHLA_NOISE_LEVELS, d->table));
        if (d->steps && d->steps != s->levels.count)
            return mhla_fail(MHLA_EINVAL, "table \"%.40s\" has %d steps, not %d", d->table, s->levels.count, d->steps);
        return MHLA_OK;
    }
    const char *spacing = s->method == DDIM && MHLA_NOISE_LEVELS % wanted == 0                     ? "ddim"
                          : (s->method == DPM || s->method == UNIPC) && wanted < MHLA_NOISE_LEVELS ? "solver"
                                                                                                   : "";
    snprintf(text, sizeof text, "%s%d", spacing, wanted);
    return mhla_levels_create(&s->levels, s->process, MHLA_NOISE_LEVELS, text);
}

static mhla_status make_path(mhla_sampler *s) {
    const mhla_sampler_desc *d = &s->desc;
    const int flow = s->process == MHLA_PROCESS_FLOW;
    if (!flow) MHLA_TRY(choose_levels(s));
    const int N = s->path.steps = !flow ? s->levels.count : d->steps ? d->steps : 50;
    s->numbers = mhla_alloc_zero(4 * (size_t)(N + 1) * sizeof *s->numbers);
    if (s->numbers == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d noise levels", N);
    s->time = s->numbers;
    s->path.alpha = s->alpha = s->time + N + 1;
    s->path.sigma = s->sigma = s->alpha + N + 1;
    s->path.lambda = s->lambda = s->sigma + N + 1;
    if (flow)
        mhla_flow_sigmas(s->sigma, s->time, d->table ? methods[s->method].wan : methods[s->method].table, N,
                         d->shift > 0.0 ? d->shift : 1.0);
    for (int i = 0; i <= N; i++) {
        if (flow || i == N)
            s->alpha[i] = 1.0 - s->sigma[i];
        else {
            const mhla_level *v = &s->levels.levels[N - 1 - i];
            s->time[i] = v->time;
            s->alpha[i] = sqrt(v->kept);
            s->sigma[i] = sqrt(1.0 - v->kept);
        }
        s->lambda[i] = i == N              ? INFINITY
                       : s->alpha[i] > 0.0 ? log(s->alpha[i] / s->sigma[i])
                                           : -INFINITY; /* nothing but noise */
    }
    return MHLA_OK;
}

/* ---- The public side ---- */

mhla_status mhla_sampler_create(mhla_sampler **sampler, const mhla_sampler_desc *desc) {
    *sampler = NULL;
    mhla_sampler *s = mhla_alloc_zero(sizeof *s);
    if (s == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sampler");
    mhla_status status = mhla_struct_in(&s->desc, sizeof s->desc, desc, "mhla_sampler_desc");
    if (status == MHLA_OK) status = check(s);
    if (status == MHLA_OK) status = make_path(s);
    s->each = s->desc.channels * s->desc.pixels;
    const int buffers = s->method == UNIPC ? 4 : s->method == DPM ? 2 : 1;
    for (int k = 0; status == MHLA_OK && k < buffers; k++) {
        float *p = mhla_alloc((size_t)(s->desc.batch * s->each) * sizeof *p);
        if (p == NULL)
            status = mhla_fail(MHLA_ENOMEM, "no memory for a sampler of %lld samples", (long long)s->desc.batch);
        *(k < 3 ? &s->seen[k] : &s->corrected) = p;
    }
    s->desc.process = s->desc.method = s->desc.table = NULL; /* the caller's */
    if (status == MHLA_OK)
        *sampler = s;
    else
        mhla_sampler_free(s);
    return status;
}

void mhla_sampler_free(mhla_sampler *sampler) {
    if (sampler == NULL) return;
    for (int k = 0; k < 3; k++) mhla_free(sampler->seen[k]);
    mhla_free(sampler->corrected);
    mhla_free(sampler->numbers);
    mhla_levels_free(&sampler->levels);
    mhla_free(sampler);
}

int mhla_sampler_steps(const mhla_sampler *sampler) { return sampler->path.steps; }

const char *mhla_sampler_method(const mhla_sampler *sampler) { return methods[sampler->method].name; }

double mhla_sampler_time(const mhla_sampler *sampler, int i) {
    return i >= 0 && i < sampler->path.steps ? sampler->time[i] : 0.0;
}

int mhla_sampler_wants_noise(const mhla_sampler *sampler, int i) {
    return i >= 0 && i + 1 < sampler->path.steps &&
           (sampler->method == DDPM || (sampler->method == DDIM && sampler->desc.eta > 0.0));
}

const float *mhla_sampler_predicted(const mhla_sampler *sampler) { return sampler->seen[0]; }

int mhla_sampler_memory(const mhla_sampler *s, float *arrays[4]) {
    int n = 0;
    for (int k = 0; k < 3; k++)
        if (s->seen[k]) arrays[n++] = s->seen[k];
    if (s->corrected) arrays[n++] = s->corrected;
    return n;
}

void mhla_sampler_continue(mhla_sampler *s, int next) { s->next = next; }

/* What is seen behind the noise, by the solvers. */
static void see(const mhla_sampler *s, float *data, const float *x, const float *output, int i) {
    const double recip = s->process == MHLA_PROCESS_FLOW ? 1.0 : 1.0 / s->alpha[i], noise = recip * s->sigma[i];
    for (int64_t k = 0; k < s->each; k++) {
        const double seen = recip * (double)x[k] - noise * (double)output[k];
        data[k] = (float)(!s->desc.clip ? seen : seen < -1.0 ? -1.0 : seen > 1.0 ? 1.0 : seen);
    }
}

/* Of a flow whose data is clipped, the velocity that leads to it. */
static void euler(const mhla_sampler *s, float *x, const float *data, const float *output, int i) {
    const double step = s->sigma[i + 1] - s->sigma[i];
    for (int64_t k = 0; k < s->each; k++) {
        const double v = s->desc.clip ? ((double)x[k] - (double)data[k]) / s->sigma[i] : (double)output[k];
        x[k] = (float)((double)x[k] + step * v);
    }
}

mhla_status mhla_sampler_step(mhla_sampler *sampler, int i, float *x, const float *output, const float *noise) {
    mhla_sampler *s = sampler;
    const int steps = s->path.steps, clip = s->desc.clip;
    if (i < 0 || i >= steps || (i != 0 && i != s->next))
        return mhla_fail(MHLA_EINVAL, "step %d of %d: step %d is due, or 0", i, steps, s->next);
    if (!mhla_sampler_wants_noise(s, i))
        noise = NULL;
    else if (noise == NULL)
        return mhla_fail(MHLA_EINVAL, "step %d of %d wants noise", i, steps);
    const int64_t answer = s->desc.learned_sigma ? 2 * s->each : s->each;
    for (int64_t b = 0; b < s->desc.batch; b++)
        if (!mhla_all_finite(output + b * answer, answer))
            return mhla_fail(MHLA_ERANGE, "step %d of %d: the network's answer for sample %lld is not finite", i + 1,
                             steps, (long long)b);
    s->next = i + 1;
    float *oldest = s->seen[2] ? s->seen[2] : s->seen[1] ? s->seen[1] : s->seen[0];
    if (s->seen[2]) s->seen[2] = s->seen[1];
    if (s->seen[1]) s->seen[1] = s->seen[0];
    s->seen[0] = oldest;
    const mhla_level *level = s->levels.levels ? &s->levels.levels[steps - 1 - i] : NULL;
    for (int64_t b = 0; b < s->desc.batch; b++) {
        const int64_t at = b * s->each;
        float *xb = x + at, *data = s->seen[0] + at;
        const float *out = output + b * answer, *nb = noise ? noise + at : NULL;
        const float *seen[3] = {data, s->seen[1] ? s->seen[1] + at : NULL, s->seen[2] ? s->seen[2] + at : NULL};
        if (s->method != DDPM && s->method != DDIM) see(s, data, xb, out, i);
        switch (s->method) {
        case DDPM:
            mhla_ddpm_step(xb, data, out, s->desc.learned_sigma ? out + s->each : NULL, nb, s->each, level, clip);
            break;
        case DDIM: mhla_ddim_step(xb, data, out, nb, s->each, level, s->desc.eta, clip); break;
        case EULER: euler(s, xb, data, out, i); break;
        case DPM: mhla_dpm_step(xb, seen, s->each, &s->path, i); break;
        default: mhla_unipc_step(xb, s->corrected + at, seen, s->each, &s->path, i); break;
        }
    }
    return MHLA_OK;
}
