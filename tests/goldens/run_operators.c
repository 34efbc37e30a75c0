/* run_model's part about operators that no layer of the engine has yet: recurrences with decay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "run.h"

enum { Q, K, V, DECAY, BETA, INITIAL, DO, DFINAL, INPUTS };
static const char *const names[INPUTS] = {
    "in.q", "in.k", "in.v", "in.decay", "in.beta", "in.initial_state", "dout.o", "dout.final_state"};

typedef struct operator_data {
    float *x[INPUTS];
    const mhla_stored *s[INPUTS];
    float *made[INPUTS]; /* gradients of the first six, then o and final_state */
    int64_t *cu, n_cu;
} operator_data;

static float *room(int64_t count) { return calloc((size_t)count + 1, sizeof(float)); }

static mhla_status compute(operator_data *d, const char *kind, float scale) {
    for (int i = Q; i <= DECAY; i++)
        if (d->x[i] == NULL || d->s[i]->rank < 3) return mhla_fail(MHLA_EDATA, "no %s", names[i]);
    const int64_t *q = d->s[Q]->shape, *v = d->s[V]->shape;
    const int gla = strcmp(kind, "gla") == 0, normed = strcmp(kind, "gated_delta_l2norm") == 0;
    const int delta = normed || strcmp(kind, "gated_delta") == 0;
    const mhla_plan_desc desc = {.size = sizeof desc,
                                 .kind = gla     ? MHLA_KIND_GLA
                                         : delta ? MHLA_KIND_GATED_DELTA
                                                 : MHLA_KIND_SIMPLE_GLA,
                                 .heads = (int)v[2],
                                 .key_heads = gla ? 0 : (int)q[2],
                                 .key_dim = (int)q[3],
                                 .value_dim = (int)v[3],
                                 .scale = scale,
                                 .qk_l2norm = normed};
    const mhla_call call = {.size = sizeof call,
                            .batch = q[0],
                            .tokens = q[1],
                            .cu_seqlens = d->cu,
                            .sequences = d->cu ? d->n_cu - 1 : 0,
                            .decay = d->x[DECAY],
                            .beta = d->x[BETA],
                            .initial_state = d->x[INITIAL],
                            .final_state = d->made[DFINAL]};
    mhla_plan *plan;
    MHLA_TRY(mhla_plan_create(&plan, &desc));
    mhla_status status = mhla_forward(plan, &call, d->made[DO], d->x[Q], d->x[K], d->x[V], NULL, NULL);
    const mhla_grads grads = {.size = sizeof grads,
                              .dq = d->made[Q],
                              .dk = d->made[K],
                              .dv = d->made[V],
                              .ddecay = d->made[DECAY],
                              .dbeta = d->made[BETA],
                              .dinitial_state = d->made[INITIAL],
                              .dfinal_state = d->x[DFINAL]};
    if (status == MHLA_OK && d->x[DO])
        status = mhla_backward(plan, &call, &grads, d->x[DO], d->x[Q], d->x[K], d->x[V], NULL, NULL);
    mhla_plan_free(plan);
    return status;
}

mhla_status run_operator(char **arg) { /* NAME IN OUT SCALE */
    operator_data d = {0};
    mhla_safetensors *in;
    MHLA_TRY(mhla_safetensors_open(&in, arg[1]));
    for (int i = 0; i < INPUTS; i++) d.x[i] = run_floats(in, names[i], &d.s[i]);
    const mhla_stored *cu = mhla_safetensors_find(in, "in.cu_seqlens");
    if (cu && (d.cu = malloc(cu->bytes)) != NULL) {
        memcpy(d.cu, cu->data, cu->bytes);
        d.n_cu = cu->count;
    }
    mhla_status status = MHLA_OK;
    if (d.x[Q] == NULL || d.x[V] == NULL) status = mhla_fail(MHLA_EDATA, "no in.q or no in.v");
    if (status == MHLA_OK) {
        const int64_t sequences = d.cu ? d.n_cu - 1 : d.s[Q]->shape[0];
        const int64_t state[4] = {sequences, d.s[V]->shape[2], d.s[Q]->shape[3], d.s[V]->shape[3]};
        for (int i = 0; i <= INITIAL; i++) d.made[i] = d.x[i] ? room(d.s[i]->count) : NULL;
        d.made[DO] = room(d.s[V]->count);
        d.made[DFINAL] = room(state[0] * state[1] * state[2] * state[3]);
        status = compute(&d, arg[0], (float)atof(arg[3]));
        if (status == MHLA_OK) {
            run_keep(d.made[DO], 4, d.s[V]->shape, "out.o");
            run_keep(d.made[DFINAL], 4, state, "out.final_state");
            for (int i = 0; d.x[DO] && i <= INITIAL; i++)
                if (d.made[i]) run_keep(d.made[i], d.s[i]->rank, d.s[i]->shape, "grad.%s", names[i]);
        }
    }
    for (int i = 0; i < INPUTS; i++) {
        free(d.x[i]);
        free(d.made[i]);
    }
    free(d.cu);
    mhla_safetensors_close(in);
    return status;
}
