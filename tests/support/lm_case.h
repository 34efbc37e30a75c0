/* Small language models for tests: a letter per layer (m MHLA, s softmax, w softmax with a window, l linear), weights large
 * enough that every layer shows, and what the parallel form makes of tokens under any policy. */
#ifndef MHLA_TESTS_LM_CASE_H
#define MHLA_TESTS_LM_CASE_H

#include <mhla/lm.h>
#include <unistd.h>

#include "mixer_settings.h"
#include "models/language/lm.h"
#include "models/language/mixers/stream.h"
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
    for (int i = 0; i < mhla_params_count(model->params); i++) {
        mhla_param *mix = mhla_params_at(model->params, i);
        if (!(mix->flags & MHLA_PARAM_MIX)) continue;
        for (int64_t j = 0; j < mix->count; j++) mix->data[j] = 0.55f + 0.45f * rng_signed(&r);
        mhla_param_touch(mix);
    }
    return model;
}

static inline const char *mixer_of_letter(char letter) {
    return letter == 'm' ? "mhla" : letter == 'l' ? "linear" : "softmax";
}

static inline mhla_lm_group *new_group(mhla_lm_config *k, const lm_case *c, char letter) {
    const mhla_mixer *m;
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL && strcmp(m->name, mixer_of_letter(letter)) != 0;) i++;
    mhla_lm_group *g = mhla_lm_add_group(k, m, NULL);
    set_int(g, "num_heads", 4);
    set_int(g, "num_kv_heads", 2);
    if (letter == 'w') set_int(g, "window_size", 20);
    if (letter == 'm') {
        set_int(g, "chunk_size", c->C);
        set_int(g, "num_blocks", c->M);
    }
    if (letter == 'm' || letter == 'l') {
        set_real(g, "expand_k", letter == 'm' ? 0.5 : 1.0);
        set_int(g, "feature_map", c->feature);
        set_int(g, "use_short_conv", c->conv > 0);
        set_int(g, "conv_size", c->conv);
    }
    return g;
}

static inline mhla_model *new_lm_of(const lm_case *c, uint64_t seed) {
    const char *all[32] = {"vocab_size=61", "hidden_size=32", "intermediate_size=48", "initializer_range=0.2"};
    mhla_model *model;
    int n = 4;
    for (int i = 0; c->settings[i]; i++) all[n++] = c->settings[i];
    ASSERT_OK(mhla_model_create(&model, "lm_micro", all, n, seed));
    const mhla_lm_config *k = mhla_lm_config_of(((mhla_lm *)model->net));
    for (int i = 0; i < k->layers; i++) assert_string_equal(mixer_name(k, i), mixer_of_letter(c->layers[i]));
    return filled(model, seed);
}

static inline mhla_model *new_lm(const lm_case *c, uint64_t seed) {
    if (c->settings) return new_lm_of(c, seed);
    mhla_lm_config k = {.model = "mhla",
                        .naming = MHLA_LM_NAMES_FLA,
                        .layers = (int)strlen(c->layers),
                        .vocabulary = VOCABULARY,
                        .width = 32,
                        .hidden = 48,
                        .norm_eps = 1e-6,
                        .tied = 1,
                        .bos = -1,
                        .eos = -1,
                        .deviation = 0.2};
    int group[256];
    memset(group, -1, sizeof group);
    for (int i = 0; i < k.layers; i++) { /* layers of the same letter are a group */
        int *g = &group[(unsigned char)c->layers[i]];
        if (*g < 0) *g = (int)(new_group(&k, c, c->layers[i]) - k.group);
        k.group_of[i] = (short)*g;
    }
    ASSERT_OK(mhla_lm_settle(&k));
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

/* logits [T, VOCABULARY] of ids [T] by the parallel form, the operator over all tokens instead of states, under a policy: MHLA's
 * plans are exchanged for those of the policy meanwhile. */
static inline float *parallel_logits(mhla_model *model, mhla_beyond beyond, int64_t max_tokens, const int32_t *ids,
                                     int64_t T) {
    const mhla_lm_config *c = mhla_lm_config_of(((mhla_lm *)model->net));
    mhla_plan *own[MHLA_LM_LAYERS] = {0};
    mhla_lm_run run = {0};
    for (int i = 0; i < c->layers && beyond != MHLA_BEYOND_ERROR; i++) {
        mhla_stream *x = mhla_lm_shared(model->net, i);
        if (strcmp(mhla_lm_group_of(c, i)->mixer->name, "mhla") != 0 || own[c->group_of[i]]) continue;
        mhla_plan_desc d = x->desc;
        d.beyond = beyond;
        d.max_tokens = beyond == MHLA_BEYOND_CHUNK ? max_tokens : 0;
        if (beyond == MHLA_BEYOND_CHUNK) d.chunk = 0;
        own[c->group_of[i]] = x->plan;
        ASSERT_OK(mhla_plan_create(&x->plan, &d));
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
    for (int i = 0; i < c->layers; i++) {
        mhla_stream *x = mhla_lm_shared(model->net, i);
        mhla_plan **plan = &own[c->group_of[i]];
        if (*plan == NULL) continue;
        mhla_plan_free(x->plan);
        x->plan = *plan;
        *plan = NULL;
    }
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
