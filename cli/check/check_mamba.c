/* The check's operators of Mamba: selective scan and short convolution, forward and backward, against their definitions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

static const struct mamba_case {
    int64_t B, T, I, N, G; /* N: states, or the width of a convolution */
    int scan, full;        /* full: gate, bias, initial state */
} cases[] = {
    {1, 65, 40, 16, 1, 1, 1}, {2, 37, 33, 4, 0, 0, 1}, {1, 1, 1, 1, 1, 1, 0},    {2, 63, 5, 3, 1, 1, 1},
    {1, 130, 64, 8, 2, 1, 1}, {1, 1, 600, 4, 0, 0, 1}, {1, 200, 17, 3, 0, 0, 0}, {3, 2, 7, 8, 0, 0, 1},
};
enum { CASES = sizeof cases / sizeof *cases, BRIEF = 2, RESULTS = 11, INPUTS = 10 };

enum { Y, FINAL, DU, DDELTA, DZ, DB, DC, DA, DD, DBIAS, DINITIAL };
static const char *const names[RESULTS] = {"y",  "final", "du", "ddelta", "dz",      "dB",
                                           "dC", "dA",    "dD", "dbias",  "dinitial"};
enum { U, DELTA, Z, INB, INC, A, D, BIAS, INITIAL, DY };

typedef struct mamba_work {
    const struct mamba_case *c;
    float *in[INPUTS], *out[RESULTS];
    double *want[RESULTS];
    int64_t size[RESULTS]; /* 0: not of this operator */
} mamba_work;

static void drop(mamba_work *w) {
    for (int i = 0; i < INPUTS; i++) free(w->in[i]);
    for (int i = 0; i < RESULTS; i++) {
        free(w->out[i]);
        free(w->want[i]);
    }
}

static int make(mamba_work *w, const struct mamba_case *c, uint64_t seed) {
    const int64_t rows = c->B * c->T, all = rows * c->I, groups = rows * (c->G ? c->G : 1) * c->N, flat = c->I * c->N;
    const int64_t in[INPUTS] = {all, all, all, groups, groups, flat, c->I, c->I, c->B * flat, all};
    const int scan = c->scan, full = c->full;
    *w = (mamba_work){.c = c,
                      .size = {all, c->B * flat, all, scan ? all : 0, scan && full ? all : 0, scan ? groups : 0,
                               scan ? groups : 0, flat, scan && full ? c->I : 0, full ? c->I : 0, c->B * flat}};
    for (int i = 0; i < INPUTS; i++) {
        if (!(w->in[i] = aligned_new((size_t)in[i] * sizeof(float)))) return 0;
        random_fill(w->in[i], MHLA_F32, in[i], &seed);
    }
    for (int64_t i = 0; scan && i < flat; i++) w->in[A][i] = -1.0f - w->in[A][i]; /* decays */
    for (int i = 0; i < RESULTS; i++) {
        const size_t n = (size_t)(w->size[i] ? w->size[i] : 1);
        if (!(w->out[i] = aligned_new(n * sizeof(float))) || !(w->want[i] = aligned_new(n * sizeof(double)))) return 0;
    }
    return 1;
}

static mhla_status run_scan(const mamba_work *w, int reference) {
    const struct mamba_case *c = w->c;
    float *const *in = w->in, *const *out = w->out;
    const mhla_scan_call call = {.size = sizeof call,
                                 .batch = c->B,
                                 .tokens = c->T,
                                 .channels = c->I,
                                 .states = c->N,
                                 .groups = c->G,
                                 .delta_softplus = c->full,
                                 .D = c->full ? in[D] : NULL,
                                 .delta_bias = c->full ? in[BIAS] : NULL,
                                 .z = c->full ? in[Z] : NULL,
                                 .initial_state = c->full ? in[INITIAL] : NULL,
                                 .final_state = out[FINAL]};
    const mhla_scan_grads grads = {.size = sizeof grads,
                                   .du = out[DU],
                                   .ddelta = out[DDELTA],
                                   .dz = c->full ? out[DZ] : NULL,
                                   .dB = out[DB],
                                   .dC = out[DC],
                                   .dA = out[DA],
                                   .dD = c->full ? out[DD] : NULL,
                                   .ddelta_bias = c->full ? out[DBIAS] : NULL,
                                   .dinitial_state = out[DINITIAL]};
    mhla_status status = reference
                             ? mhla_scan_forward_reference(&call, out[Y], in[U], in[DELTA], in[A], in[INB], in[INC])
                             : mhla_scan_forward(&call, out[Y], in[U], in[DELTA], in[A], in[INB], in[INC], NULL);
    if (status != MHLA_OK) return status;
    return reference ? mhla_scan_backward_reference(&call, &grads, in[DY], in[U], in[DELTA], in[A], in[INB], in[INC])
                     : mhla_scan_backward(&call, &grads, in[DY], in[U], in[DELTA], in[A], in[INB], in[INC], NULL);
}

static mhla_status run_conv(const mamba_work *w, int reference) {
    const struct mamba_case *c = w->c;
    float *const *in = w->in, *const *out = w->out;
    const mhla_short_conv_call call = {.size = sizeof call,
                                       .batch = c->B,
                                       .tokens = c->T,
                                       .channels = c->I,
                                       .width = (int)c->N,
                                       .activation = c->full ? MHLA_ACT_SILU : MHLA_ACT_NONE,
                                       .bias = c->full ? in[BIAS] : NULL,
                                       .initial_cache = c->full ? in[INITIAL] : NULL,
                                       .final_cache = out[FINAL]};
    const mhla_short_conv_grads grads = {.size = sizeof grads,
                                         .dx = out[DU],
                                         .dw = out[DA],
                                         .dbias = c->full ? out[DBIAS] : NULL,
                                         .dinitial_cache = out[DINITIAL]};
    mhla_status status = reference ? mhla_short_conv_forward_reference(&call, out[Y], in[U], in[A])
                                   : mhla_short_conv_forward(&call, out[Y], in[U], in[A], NULL);
    if (status != MHLA_OK) return status;
    return reference ? mhla_short_conv_backward_reference(&call, &grads, in[DY], in[U], in[A])
                     : mhla_short_conv_backward(&call, &grads, in[DY], in[U], in[A], NULL);
}

static mhla_status run(const mamba_work *w, int reference) {
    for (int i = 0; i < RESULTS; i++) memset(w->out[i], 0xff, (size_t)w->size[i] * sizeof(float)); /* NaN */
    return w->c->scan ? run_scan(w, reference) : run_conv(w, reference);
}

mhla_status check_mamba(check_row *row, const check_isas *isas, int brief) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < (brief ? BRIEF : CASES) && status == MHLA_OK; i++) {
        mamba_work w;
        char name[80];
        snprintf(name, sizeof name, "%s %lldx%lldx%lldx%lld", cases[i].scan ? "scan" : "convolution",
                 (long long)cases[i].B, (long long)cases[i].T, (long long)cases[i].I, (long long)cases[i].N);
        status = make(&w, &cases[i], (uint64_t)i + 300) ? run(&w, 1) : MHLA_ENOMEM;
        for (int k = 0; k < RESULTS && status == MHLA_OK; k++)
            for (int64_t e = 0; e < w.size[k]; e++) w.want[k][e] = (double)w.out[k][e];
        for (int isa = 0; isa < isas->count && status == MHLA_OK; isa++) {
            status = mhla_set_isa(isas->name[isa]);
            if (status == MHLA_OK) status = run(&w, 0);
            for (int k = 0; k < RESULTS && status == MHLA_OK; k++)
                check_compare(row, isa, names[k], name, w.out[k], MHLA_F32, w.want[k], w.size[k]);
        }
        row->cases++;
        drop(&w);
    }
    return status;
}
