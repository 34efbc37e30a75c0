/* Small language models for tests: a letter per layer (m MHLA, s softmax, w softmax with a window, l linear), weights large
 * enough that every layer shows, and what the parallel form makes of tokens under any policy. */
#ifndef MHLA_TESTS_LM_CASE_H
#define MHLA_TESTS_LM_CASE_H

#include <mhla/lm.h>
#include <unistd.h>

#include "models/language/lm.h"
#include "models/language/sequence.h"
#include "models/model.h"
#include "support.h"

enum { VOCABULARY = 61 };

typedef struct lm_case {
    const char *layers;
    int C, M; /* of MHLA layers */
    int feature, conv;
    const char *const *settings; /* instead: the config of these, ended by NULL; layers is still what comes of them */
} lm_case;

/* One thread: such small work is slower with more. */
static inline mhla_context *single_thread(void) {
    static mhla_context *context;
    if (context == NULL) context = new_context(1);
    return context;
}

/* Every layer shows: large weights, mixing weights that are all different. */
static inline mhla_model *filled(mhla_model *model, uint64_t seed) {
    rng r = {seed};
    mhla_model_set_context(model, single_thread());
    ASSERT_OK(mhla_params_init(mhla_lm_params(((mhla_lm *)model->net)), seed));
    for (int i = 0; i < mhla_lm_config_of(((mhla_lm *)model->net))->layers; i++) {
        mhla_param *mix = mhla_lm_mix(((mhla_lm *)model->net), i);
        for (int64_t j = 0; mix && j < mix->count; j++) mix->data[j] = 0.55f + 0.45f * rng_signed(&r);
        if (mix) mhla_param_touch(mix);
    }
    return model;
}

static inline mhla_model *new_lm_of(const lm_case *c, uint64_t seed) {
    const char *all[32] = {"vocab_size=61", "hidden_size=32", "intermediate_size=48", "initializer_range=0.2"};
    mhla_model *model;
    int n = 4;
    for (int i = 0; c->settings[i]; i++) all[n++] = c->settings[i];
    ASSERT_OK(mhla_model_create(&model, "lm_micro", all, n, seed));
    const mhla_lm_config *k = mhla_lm_config_of(((mhla_lm *)model->net));
    for (int i = 0; i < k->layers; i++)
        assert_int_equal(k->kind[i], c->layers[i] == 'm'   ? MHLA_ATTENTION_MHLA
                                     : c->layers[i] == 'l' ? MHLA_ATTENTION_LINEAR
                                                           : MHLA_ATTENTION_SOFTMAX);
    return filled(model, seed);
}

static inline mhla_model *new_lm(const lm_case *c, uint64_t seed) {
    if (c->settings) return new_lm_of(c, seed);
    mhla_lm_config k;
    memset(&k, 0, sizeof k);
    k.naming = MHLA_LM_NAMES_FLA;
    k.layers = (int)strlen(c->layers);
    snprintf(k.model, sizeof k.model, "mhla");
    k.vocabulary = VOCABULARY;
    k.width = 32;
    k.hidden = 48;
    k.norm_eps = 1e-6;
    k.tied = 1;
    k.bos = k.eos = -1;
    k.deviation = 0.2;
    for (int i = 0; i < k.layers; i++) {
        const char kind = c->layers[i];
        k.kind[i] = kind == 'm' ? MHLA_ATTENTION_MHLA : kind == 'l' ? MHLA_ATTENTION_LINEAR : MHLA_ATTENTION_SOFTMAX;
        mhla_lm_mixer *m = &k.mixer[k.kind[i]];
        *m = (mhla_lm_mixer){.heads = 4, .kv_heads = 2, .key_dim = 8, .value_dim = 8};
        if (kind != 'l') {
            m->rope = MHLA_ROPE_HALF;
            m->rope_dim = 8;
            m->rope_theta = 10000.0;
        }
        if (kind == 'w') m->window = 20;
        if (kind == 'm') {
            m->key_dim = 4;
            m->rope_dim = 4;
            m->gate = 1;
            m->chunk = c->C;
            m->blocks = c->M;
        }
        if (kind == 'm' || kind == 'l') m->feature = c->feature;
        if (kind == 'm' || kind == 'l') m->conv = c->conv;
    }
    mhla_model *model;
    mhla_lm *lm;
    ASSERT_OK(mhla_lm_create(&lm, &k));
    ASSERT_OK(mhla_model_wrap(&model, mhla_architecture_of_preset("lm_nano"), lm, NULL));
    return filled(model, seed);
}

static inline int32_t *new_ids(rng *r, int64_t n) {
    int32_t *ids = new_bytes(sizeof *ids * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) ids[i] = rng_below(r, VOCABULARY);
    return ids;
}

/* The parallel form under a policy: the operator over all tokens instead of states. */
typedef struct parallel_form {
    mhla_lm *lm;
    mhla_plan *plans[64];
} parallel_form;

static inline mhla_tensor *parallel_attend(void *user, mhla_tape *t, const mhla_lm_attend *a) {
    parallel_form *p = user;
    mhla_call call = {.size = sizeof call};
    const int64_t T = a->q ? a->q->shape[1] : 1;
    ASSERT_OK(mhla_lm_rope(p->lm, a->layer, T, &call.rope_cos, &call.rope_sin, &call.rope_rows));
    return mhla_nn_attention(t, p->plans[a->layer], &call, a->mix, a->q, a->k, a->v);
}

/* logits [T, VOCABULARY] of ids [T]. */
static inline float *parallel_logits(mhla_model *model, mhla_beyond beyond, int64_t max_tokens, const int32_t *ids,
                                     int64_t T) {
    const mhla_lm_config *c = mhla_lm_config_of(((mhla_lm *)model->net));
    parallel_form p = {.lm = ((mhla_lm *)model->net)};
    mhla_lm_run run = {0};
    if (beyond != MHLA_BEYOND_ERROR) {
        for (int i = 0; i < c->layers; i++) {
            mhla_plan_desc d;
            mhla_lm_plan_desc(((mhla_lm *)model->net), i, &d);
            if (c->kind[i] == MHLA_ATTENTION_MHLA) {
                d.beyond = beyond;
                d.max_tokens = beyond == MHLA_BEYOND_CHUNK ? max_tokens : 0;
                if (beyond == MHLA_BEYOND_CHUNK) d.chunk = 0;
            }
            ASSERT_OK(mhla_plan_create(&p.plans[i], &d));
        }
        run.attend = parallel_attend;
        run.user = &p;
    }
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, single_thread()));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y =
        mhla_lm_logits(t, ((mhla_lm *)model->net), mhla_lm_forward(t, ((mhla_lm *)model->net), &run, ids, 1, T));
    ASSERT_OK(mhla_tape_status(t));
    float *logits = new_bytes(sizeof *logits * (size_t)(T * VOCABULARY));
    for (int64_t r = 0; r < T; r++) memcpy(logits + r * VOCABULARY, y->data + r * y->ld, sizeof *logits * VOCABULARY);
    mhla_tape_free(t);
    for (int i = 0; i < 64; i++) mhla_plan_free(p.plans[i]);
    return logits;
}

static inline mhla_sequence *new_sequence(mhla_model *model, mhla_beyond beyond, int64_t max_tokens) {
    mhla_sequence *s;
    const mhla_sequence_desc d = {.size = sizeof d, .beyond = beyond, .max_tokens = max_tokens};
    ASSERT_OK(mhla_sequence_create(&s, model, &d));
    return s;
}

/* Feeds n tokens and gets logits [n, VOCABULARY]. */
static inline mhla_status feed_one(mhla_model *model, mhla_sequence *s, const int32_t *ids, int64_t n, float *logits) {
    const mhla_feed f = {.size = sizeof f, .sequence = s, .ids = ids, .count = n, .all_logits = logits};
    return mhla_lm_feed(model, &f, 1);
}

#endif
