/* Time and memory of one layer of attention by number of tokens: the operators themselves, on random inputs. A repetition
 * takes the place of a seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/status.h"
#include "lab/lab.h"

enum { HEADS = 6, DIM = 64 };

typedef struct layer {
    mhla_plan *plan;
    mhla_call call;
    float *q, *k, *v, *o, *mix; /* [T,H,K] each; [M,M] or NULL */
    void *ws;
    size_t ws_bytes;
} layer;

static void layer_free(layer *l) {
    mhla_plan_free(l->plan);
    mhla_free(l->q);
    mhla_free(l->k);
    mhla_free(l->v);
    mhla_free(l->o);
    mhla_free(l->mix);
    mhla_free(l->ws);
}

static mhla_status layer_create(layer *l, const mhla_lab_part *part, int64_t T) {
    char kind[32] = "";
    mhla_part_setting(part, "lab.kind", kind, sizeof kind);
    const int side = (int)lround(sqrt((double)T)), cut = (int)mhla_part_number(part, "lab.blocks");
    const size_t count = (size_t)T * HEADS * DIM;
    mhla_plan_desc d = {.size = sizeof d, .heads = HEADS, .key_dim = DIM, .value_dim = DIM, .kind = MHLA_KIND_SOFTMAX};
    *l = (layer){.call = {.size = sizeof l->call, .context = part->lab->context, .batch = 1, .tokens = T}};
    if (strcmp(kind, "softmax") != 0) {
        d.kind = strcmp(kind, "mhla") == 0 ? MHLA_KIND_BIDIRECTIONAL : MHLA_KIND_LINEAR;
        d.feature_eps = d.den_eps = 1e-6f;
    }
    if (d.kind == MHLA_KIND_BIDIRECTIONAL) {
        d.axes = 2;
        d.grid[0] = d.grid[1] = side;
        d.blocks[0] = d.blocks[1] = cut;
        if ((l->mix = mhla_alloc((size_t)cut * cut * cut * cut * sizeof *l->mix)) == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for %d blocks", cut * cut);
        MHLA_TRY(mhla_mix_fill(l->mix, MHLA_MIX_PAPER, 2, d.blocks, 0.0));
    }
    MHLA_TRY(mhla_plan_create(&l->plan, &d));
    if ((l->ws_bytes = mhla_forward_workspace(l->plan, &l->call)) == 0) return MHLA_EINVAL;
    float **const tensors[] = {&l->q, &l->k, &l->v, &l->o};
    for (int i = 0; i < 4; i++) {
        if ((*tensors[i] = mhla_alloc(count * sizeof(float))) == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for %lld tokens", (long long)T);
        const mhla_rng r = mhla_rng_make((uint64_t)part->seed, (uint64_t)i, 0, 1);
        mhla_rng_normals(&r, *tensors[i], (int64_t)count);
    }
    l->ws = mhla_alloc(l->ws_bytes);
    return l->ws ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a workspace of %zu bytes", l->ws_bytes);
}

/* Seconds of a call: the best of many, as whatever else the machine does only adds; how far the bests of the even and of the
 * odd calls lie apart stands for its error. */
static mhla_status time_layer(const layer *l, double budget, double *best, double *error) {
    enum { LEAST = 6, MOST = 400 };
    double bests[2] = {INFINITY, INFINITY};
    MHLA_TRY(mhla_forward(l->plan, &l->call, l->o, l->q, l->k, l->v, l->mix, l->ws)); /* meets fresh memory */
    const double begin = mhla_seconds();
    for (int n = 0; n < MOST && (n < LEAST || mhla_seconds() - begin < budget); n++) {
        const double start = mhla_seconds();
        MHLA_TRY(mhla_forward(l->plan, &l->call, l->o, l->q, l->k, l->v, l->mix, l->ws));
        const double took = mhla_seconds() - start;
        if (took < bests[n % 2]) bests[n % 2] = took;
    }
    *best = bests[0] < bests[1] ? bests[0] : bests[1];
    *error = fabs(bests[0] - bests[1]);
    return MHLA_OK;
}

mhla_status mhla_part_scaling(mhla_lab_part *part) {
    char tokens[128] = "", seconds[32] = "0.5", name[48];
    double first = 0.0, first_error = 0.0, first_T = 0.0, last = 0.0, last_error = 0.0, last_T = 0.0;
    mhla_part_setting(part, "lab.tokens", tokens, sizeof tokens);
    mhla_part_setting(part, "lab.seconds", seconds, sizeof seconds);
    const int64_t cut = mhla_part_number(part, "lab.blocks");
    double load = 0.0; /* what else the machine was doing */
    if (getloadavg(&load, 1) == 1) MHLA_TRY(mhla_part_put(part, "load", load, NAN));
    for (const char *at = tokens; *at && !part->lab->stop; at += strcspn(at, ","), at += *at == ',') {
        const int64_t T = strtoll(at, NULL, 10);
        if (cut * cut > T) continue; /* more blocks than tokens on an axis */
        layer l;
        double best = 0.0, error = 0.0;
        mhla_status status = layer_create(&l, part, T);
        if (status == MHLA_OK) status = time_layer(&l, atof(seconds), &best, &error);
        const double bytes = (double)l.ws_bytes;
        layer_free(&l);
        MHLA_TRY(status);
        snprintf(name, sizeof name, "ms_%lld", (long long)T);
        MHLA_TRY(mhla_part_put(part, name, 1e3 * best, 1e3 * error));
        snprintf(name, sizeof name, "mib_%lld", (long long)T);
        MHLA_TRY(mhla_part_put(part, name, bytes / 0x1p20, 0.0));
        if (T >= 1024 && first_T == 0.0) first = best, first_error = error, first_T = (double)T;
        last = best, last_error = error, last_T = (double)T;
        mhla_part_tell(part, at - tokens + 1, (int64_t)strlen(tokens));
    }
    if (!(last_T > first_T) || part->lab->stop) return MHLA_OK;
    /* time grows as a power of the tokens: which one, from 1,024 tokens on */
    const double a = first_error / first, b = last_error / last, span = log(last_T / first_T);
    return mhla_part_put(part, "exponent", log(last / first) / span, sqrt(a * a + b * b) / span);
}

/* ---- Where softmax begins to lose ---- */

static double time_at(const mhla_lab *lab, const char *arm, double T) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    char name[48];
    snprintf(name, sizeof name, "ms_%.0f", T);
    const int n = mhla_results_take(lab, mhla_experiment_arm(lab->experiment, arm), name, values, errors);
    return n ? mhla_seeds_of(values, errors, n).mean : NAN;
}

void mhla_load_remark(FILE *out, const mhla_lab *lab) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS], most = 0.0;
    mhla_cpu_info cpu = {.size = sizeof cpu};
    for (int arm = 0; arm < MHLA_LAB_ARMS && lab->experiment->arms[arm].name; arm++)
        for (int i = 0, n = mhla_results_take(lab, arm, "load", values, errors); i < n; i++)
            if (values[i] > most) most = values[i];
    if (mhla_cpu_query(&cpu) == MHLA_OK && most > cpu.threads + 1.0)
        fprintf(out, "The machine was busy during the measurement (load %.1f): do not trust the times.\n\n", most);
}

void mhla_scaling_remark(FILE *out, const mhla_lab *lab) {
    mhla_load_remark(out, lab);
    static const char *const arms[] = {"linear", "mhla-4", "mhla-16", "mhla-64", "mhla-256"};
    static const double sizes[] = {64, 256, 1024, 4096, 16384};
    fputs("Softmax attention takes longer from about this many tokens on (interpolated between measured lengths, on "
          "logarithmic axes):",
          out);
    for (int i = 0; i < 5; i++) {
        double before = NAN, at = NAN;
        for (int k = 0; k < 5 && isnan(at); k++) {
            const double ratio = log(time_at(lab, "softmax", sizes[k]) / time_at(lab, arms[i], sizes[k]));
            if (isnan(ratio)) continue;
            if (ratio > 0.0) at = isnan(before) ? -sizes[k] : sizes[k] * pow(4.0, -ratio / (ratio - before));
            before = ratio;
        }
        fprintf(out, "%s %s: ", i ? ";" : "", arms[i]);
        if (isnan(at))
            fputs("none that was measured", out);
        else if (at < 0.0)
            fprintf(out, "fewer than %.0f", -at);
        else
            fprintf(out, "%.0f", at);
    }
    fputs(".\n", out);
}
