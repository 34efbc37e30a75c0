/* run_model's part about one mixer of a language model: its parameters are param.*, its input in.x [B,T,D]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm.h"
#include "models/language/mixers/carry.h"
#include "run.h"

/* The parameters of the layer's mixer from param.*; the others stay as they are. */
static mhla_status fill(mhla_lm *lm, const mhla_safetensors *in) {
    const mhla_lm_config *c = mhla_lm_config_of(lm);
    char prefix[64], name[256];
    snprintf(prefix, sizeof prefix, "%s.0.%s.", mhla_lm_names_of[c->naming].layers, mhla_lm_names_of[c->naming].mixer);
    for (int64_t i = 0; i < mhla_safetensors_count(in); i++) {
        const mhla_stored *s = mhla_safetensors_at(in, i);
        if (strncmp(s->name, "param.", 6) != 0) continue;
        snprintf(name, sizeof name, "%s%.180s", prefix, s->name + 6);
        mhla_param *p = mhla_params_find(mhla_lm_params(lm), name);
        if (p == NULL) return mhla_fail(MHLA_EDATA, "%s is not a parameter of this mixer", s->name);
        MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_stored_read(p->data, s));
        mhla_param_touch(p);
    }
    return MHLA_OK;
}

static void keep_grads(const mhla_lm *lm) {
    const mhla_params *ps = mhla_lm_params(lm);
    const mhla_lm_config *c = mhla_lm_config_of(lm);
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.0.%s.", mhla_lm_names_of[c->naming].layers, mhla_lm_names_of[c->naming].mixer);
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (p->has_grad && strncmp(p->name, prefix, strlen(prefix)) == 0)
            run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name + strlen(prefix));
    }
}

/* All sequences once more, in pieces, with a memory; then what each remembers. */
static mhla_status stream(mhla_tape *t, mhla_lm *lm, const float *x, const int64_t shape[3]) {
    const mhla_mixer *m = mhla_lm_group_of(mhla_lm_config_of(lm), 0)->mixer;
    const int64_t B = shape[0], T = shape[1], D = shape[2];
    void *policy = NULL;
    int64_t limit = INT64_MAX;
    float *y = malloc(sizeof *y * (size_t)(B * T * D));
    MHLA_TRY(m->policy(&policy, mhla_lm_shared(lm, 0), &(mhla_terms){.beyond = MHLA_BEYOND_CLAMP}, &limit));
    for (int64_t b = 0; b < B; b++) {
        void *memory = NULL;
        MHLA_TRY(m->remember(&memory, mhla_lm_layer(lm, 0), policy));
        for (int64_t at = 0, n, step = 1; at < T; at += n, step = step * 5 % 97) {
            n = T - at < step ? T - at : step;
            const mhla_segment segment = {&memory, 0, n, at};
            const mhla_pass pass = {&segment, 1, n, NULL};
            if (m->begin) MHLA_TRY(m->begin(mhla_lm_shared(lm, 0), &pass));
            mhla_tape_begin(t, MHLA_TAPE_INFER);
            mhla_tensor *h = mhla_nn_input(t, x + (b * T + at) * D, MHLA_SHAPE(1, n, D));
            const mhla_tensor *out = mhla_lm_mix(t, lm, &(mhla_lm_run){.mixer = {.pass = &pass}}, 0, NULL, h);
            MHLA_TRY(mhla_tape_status(t));
            memcpy(y + (b * T + at) * D, out->data, sizeof *y * (size_t)(n * D));
        }
        const mhla_carry *c = memory;
        if (c->stream) { /* its numbers stand before the sum at the end */
            const size_t size = mhla_state_save_size(c->stream), head = 64, sum = 8;
            const int64_t n = (int64_t)((size - head - sum) / sizeof(float));
            unsigned char *bytes = malloc(size);
            if (bytes == NULL || mhla_state_save(c->stream, bytes, size) != MHLA_OK) return MHLA_ENOMEM;
            memmove(bytes, bytes + head, (size_t)n * sizeof(float));
            run_keep((const float *)(const void *)bytes, 1, &n, "out.state.%d", (int)b);
            free(bytes);
        } else {
            run_keep(c->state, 1, &c->size->state, "out.state.%d", (int)b);
        }
        for (int i = 0; i < MHLA_CARRY_CONVS; i++)
            if (c->past[i].rows)
                run_keep(c->past[i].rows, 2, (const int64_t[]){c->size->width - 1, c->size->convs[i]}, "out.past%d.%d",
                         i, (int)b);
        m->forget(memory);
    }
    run_keep(y, 3, shape, "out.streamed");
    free(y);
    m->policy_free(policy);
    return MHLA_OK;
}

mhla_status run_mixer(char **arg) { /* CONFIG IN OUT */
    json_t *tree = NULL;
    mhla_safetensors *in = NULL;
    mhla_lm_config config;
    mhla_lm *lm = NULL;
    mhla_tape *t = NULL;
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = NULL, *dy = NULL;
    mhla_status status = mhla_json_load(&tree, arg[0]);
    if (status == MHLA_OK) status = mhla_lm_config_read(&config, tree, NULL, arg[0]);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = mhla_lm_create(&lm, &config);
    if (status == MHLA_OK) status = fill(lm, in);
    if (status == MHLA_OK) status = mhla_tape_create(&t, NULL);
    if (status == MHLA_OK) {
        x = run_floats(in, "in.x", &sx);
        dy = run_floats(in, "dout.y", &sd);
        if (x == NULL || sx->rank != 3) status = mhla_fail(MHLA_EDATA, "no in.x [B, T, D]");
    }
    if (status == MHLA_OK) {
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *h = mhla_nn_variable(t, x, sx->shape, sx->rank);
        mhla_tensor *y = mhla_lm_mix(t, lm, &(mhla_lm_run){0}, 0, NULL, h);
        status = mhla_tape_status(t);
        if (status == MHLA_OK) run_keep(y->data, y->dims, y->shape, "out.y");
        if (status == MHLA_OK && dy) status = mhla_tape_backward_from(t, y, dy);
        if (status == MHLA_OK && dy) {
            run_keep(mhla_tensor_grad(h), sx->rank, sx->shape, "grad.in.x");
            keep_grads(lm);
        }
    }
    if (status == MHLA_OK) status = stream(t, lm, x, sx->shape);
    free(x);
    free(dy);
    mhla_tape_free(t);
    mhla_lm_free(lm);
    mhla_safetensors_close(in);
    json_decref(tree);
    return status;
}
