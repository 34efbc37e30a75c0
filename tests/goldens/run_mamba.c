/* run_model's part about the operators of Mamba: selective scan and short convolution, by the engine and by definition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "run.h"

enum { MOST_TENSORS = 16 };

/* The tensors of a case by name, and as much room for what is made of each. */
typedef struct tensors {
    const char *const *names;
    int count;
    float *x[MOST_TENSORS], *made[MOST_TENSORS];
    const mhla_stored *s[MOST_TENSORS];
    int64_t *cu, sequences;
} tensors;

static void load(tensors *d, const mhla_safetensors *in, const char *const *names, int count) {
    *d = (tensors){.names = names, .count = count};
    for (int i = 0; i < count; i++) {
        d->x[i] = run_floats(in, names[i], &d->s[i]);
        if (d->x[i]) d->made[i] = calloc((size_t)d->s[i]->count + 1, sizeof(float));
    }
    const mhla_stored *cu = mhla_safetensors_find(in, "in.cu_seqlens");
    if (cu && (d->cu = malloc(cu->bytes)) != NULL) {
        memcpy(d->cu, cu->data, cu->bytes);
        d->sequences = cu->count - 1;
    }
}

static void drop(tensors *d) {
    for (int i = 0; i < d->count; i++) {
        free(d->x[i]);
        free(d->made[i]);
    }
    free(d->cu);
}

/* What was made: out.X where dout.X is, grad.X where in.X or param.X is. */
static void keep(const tensors *d, const char *by) {
    for (int i = 0; i < d->count; i++) {
        const char *name = strchr(d->names[i], '.') + 1;
        if (d->made[i])
            run_keep(d->made[i], d->s[i]->rank, d->s[i]->shape, "%s.%s%s", d->names[i][0] == 'd' ? "out" : "grad", name,
                     by);
    }
}

enum { U, DELTA, B, C, A, Z, D, BIAS, INITIAL, DY, DFINAL, SCAN_TENSORS };
static const char *const scan_names[] = {
    "in.u",   "in.delta",        "in.B", "in.C", "param.A", "in.z", "param.D", "param.delta_bias", "in.initial_state",
    "dout.y", "dout.final_state"};

static mhla_status scan(tensors *d, int softplus, int reference) {
    float *const *x = d->x, *const *m = d->made;
    for (int i = U; i <= A; i++)
        if (x[i] == NULL) return mhla_fail(MHLA_EDATA, "no %s", scan_names[i]);
    if (x[DY] == NULL) return mhla_fail(MHLA_EDATA, "no dout.y");
    const int64_t *u = d->s[U]->shape, groups = d->s[B]->rank == 4 ? d->s[B]->shape[2] : 1;
    const mhla_scan_call call = {.size = sizeof call,
                                 .batch = u[0],
                                 .tokens = u[1],
                                 .channels = u[2],
                                 .states = d->s[A]->shape[1],
                                 .groups = groups,
                                 .delta_softplus = softplus,
                                 .D = x[D],
                                 .delta_bias = x[BIAS],
                                 .z = x[Z],
                                 .cu_seqlens = d->cu,
                                 .sequences = d->sequences,
                                 .initial_state = x[INITIAL],
                                 .final_state = m[DFINAL]};
    const mhla_scan_grads grads = {.size = sizeof grads,
                                   .du = m[U],
                                   .ddelta = m[DELTA],
                                   .dz = m[Z],
                                   .dB = m[B],
                                   .dC = m[C],
                                   .dA = m[A],
                                   .dD = m[D],
                                   .ddelta_bias = m[BIAS],
                                   .dinitial_state = m[INITIAL],
                                   .dfinal_state = x[DFINAL]};
    if (reference) {
        MHLA_TRY(mhla_scan_forward_reference(&call, m[DY], x[U], x[DELTA], x[A], x[B], x[C]));
        return mhla_scan_backward_reference(&call, &grads, x[DY], x[U], x[DELTA], x[A], x[B], x[C]);
    }
    MHLA_TRY(mhla_scan_forward(&call, m[DY], x[U], x[DELTA], x[A], x[B], x[C], NULL));
    return mhla_scan_backward(&call, &grads, x[DY], x[U], x[DELTA], x[A], x[B], x[C], NULL);
}

enum { X, WEIGHT, CONV_BIAS, CACHE, CONV_DY, DCACHE, CONV_TENSORS };
static const char *const conv_names[] = {"in.x",     "param.weight", "param.bias",
                                         "in.cache", "dout.y",       "dout.final_cache"};

static mhla_status short_conv(tensors *d, int silu, int reference) {
    float *const *x = d->x, *const *m = d->made;
    if (x[X] == NULL || x[WEIGHT] == NULL || x[CONV_DY] == NULL)
        return mhla_fail(MHLA_EDATA, "no in.x, param.weight or dout.y");
    const int64_t *shape = d->s[X]->shape;
    const mhla_short_conv_call call = {.size = sizeof call,
                                       .batch = shape[0],
                                       .tokens = shape[1],
                                       .channels = shape[2],
                                       .width = (int)(d->s[WEIGHT]->count / shape[2]),
                                       .activation = silu ? MHLA_ACT_SILU : MHLA_ACT_NONE,
                                       .bias = x[CONV_BIAS],
                                       .cu_seqlens = d->cu,
                                       .sequences = d->sequences,
                                       .initial_cache = x[CACHE],
                                       .final_cache = m[DCACHE]};
    const mhla_short_conv_grads grads = {.size = sizeof grads,
                                         .dx = m[X],
                                         .dw = m[WEIGHT],
                                         .dbias = m[CONV_BIAS],
                                         .dinitial_cache = m[CACHE],
                                         .dfinal_cache = x[DCACHE]};
    if (reference) {
        MHLA_TRY(mhla_short_conv_forward_reference(&call, m[CONV_DY], x[X], x[WEIGHT]));
        return mhla_short_conv_backward_reference(&call, &grads, x[CONV_DY], x[X], x[WEIGHT]);
    }
    MHLA_TRY(mhla_short_conv_forward(&call, m[CONV_DY], x[X], x[WEIGHT], NULL));
    return mhla_short_conv_backward(&call, &grads, x[CONV_DY], x[X], x[WEIGHT], NULL);
}

mhla_status run_mamba(char **arg) { /* NAME IN OUT FLAG */
    const int scans = strcmp(arg[0], "selective_scan") == 0, flag = atoi(arg[3]);
    mhla_safetensors *in;
    tensors d;
    MHLA_TRY(mhla_safetensors_open(&in, arg[1]));
    load(&d, in, scans ? scan_names : conv_names, scans ? SCAN_TENSORS : CONV_TENSORS);
    mhla_status status = MHLA_OK;
    for (int reference = 0; reference < 2 && status == MHLA_OK; reference++) {
        status = scans ? scan(&d, flag, reference) : short_conv(&d, flag, reference);
        if (status == MHLA_OK) keep(&d, reference ? ".reference" : "");
    }
    drop(&d);
    mhla_safetensors_close(in);
    return status;
}
