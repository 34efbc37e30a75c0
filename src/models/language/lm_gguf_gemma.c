/* Gemma 2 and 3 in llama.cpp's layout: the keys of its metadata. Its norms have the 1 added already (lm_gguf.c, lm_gguf_write.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm_files.h"

enum { LOCAL = 1 }; /* the group of layers with a window */

/* llama.cpp knows no key for it: scores are divided by the root of the dims of a head, but of the width of a head in the models of 27
 * thousand million parameters, which it knows by their layers. */
static double query_scalar(const mhla_lm_config *c, const mhla_softmax_settings *a, int third) {
    return c->layers == (third ? 62 : 46) ? (double)c->width / a->num_heads : (double)a->head_dim;
}

/* ---- Reading ---- */

static mhla_status get_real(double *to, const mhla_gguf *f, const char *architecture, const char *name, double least) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    MHLA_TRY(mhla_gguf_get_real(to, f, key));
    if (*to >= least && *to <= 1e12) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %s is %g", mhla_gguf_path(f), key, *to);
}

/* A period, or a flag for each layer. */
static mhla_status read_layers(mhla_lm_config *c, const mhla_gguf *f, const char *architecture, int third) {
    char key[64];
    int64_t period = third ? 6 : 2;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", architecture);
    const mhla_gguf_value *value = mhla_gguf_find_value(f, key);
    if (value && value->array) {
        MHLA_TRY(mhla_gguf_get_numbers(&value, f, key));
        if (value->count != c->layers)
            return mhla_fail(MHLA_EDATA, "%s: %s has %lld flags: there are %d layers", mhla_gguf_path(f), key,
                             (long long)value->count, c->layers);
        for (int i = 0; i < c->layers; i++) c->group_of[i] = mhla_gguf_int_at(value, i) ? LOCAL : 0;
        return MHLA_OK;
    }
    MHLA_TRY(mhla_gguf_get_int(&period, f, key, 1, 1 << 16));
    for (int i = 0; i < c->layers; i++) c->group_of[i] = (i + 1) % period == 0 ? 0 : LOCAL;
    return MHLA_OK;
}

static mhla_status read_scaling(mhla_scaling *s, const mhla_gguf *f, const char *architecture) {
    char *type = NULL, key[64];
    double factor = 1.0;
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    MHLA_TRY(mhla_gguf_get_text(&type, f, key));
    const int linear = type && strcmp(type, "linear") == 0, none = type == NULL || strcmp(type, "none") == 0;
    const mhla_status status =
        linear || none
            ? MHLA_OK
            : mhla_fail(MHLA_ENOTSUP, "%s: %s is \"%.40s\": known are none and linear", mhla_gguf_path(f), key, type);
    free(type);
    MHLA_TRY(status);
    if (linear) MHLA_TRY(get_real(&factor, f, architecture, "rope.scaling.factor", 1e-6));
    *s = (mhla_scaling){.kind = factor != 1.0 ? MHLA_SCALING_LINEAR : MHLA_SCALING_NONE, .factor = factor};
    return MHLA_OK;
}

mhla_status mhla_lm_gguf_gemma_read(mhla_lm_config *c, const mhla_gguf *f, const char *architecture) {
    const int third = strcmp(architecture, "gemma3") == 0;
    mhla_softmax_settings a;
    char key[64];
    int64_t window = third ? 0 : 4096;
    MHLA_TRY(mhla_lm_gguf_softmax_read(c, &a, f, architecture));
    snprintf(key, sizeof key, "%s.attention.sliding_window", architecture);
    MHLA_TRY(mhla_gguf_get_int(&window, f, key, 0, 1 << 30));
    c->naming = MHLA_LM_NAMES_GEMMA;
    c->softcap = third ? 0.0 : 30.0;
    a.softcap = third ? 0.0 : 50.0;
    MHLA_TRY(get_real(&c->softcap, f, architecture, "final_logit_softcapping", 0.0));
    if (!third) MHLA_TRY(get_real(&a.softcap, f, architecture, "attn_logit_softcapping", 0.0));
    a.query_scalar = query_scalar(c, &a, third);
    a.qk_norm = third;
    if (third) a.qk_norm_eps = c->norm_eps;
    mhla_softmax_settings local = a;
    local.window_size = (int)window;
    if (third) local.rope_theta = 1e4;
    MHLA_TRY(get_real(&local.rope_theta, f, architecture, "rope.freq_base_swa", 1.0));
    MHLA_TRY(read_scaling(&c->scaling, f, architecture));
    local.unscaled = third && c->scaling.kind;
    const mhla_softmax_settings *both[] = {&a, &local};
    for (int i = 0; i < 2; i++) {
        mhla_lm_group *g = mhla_lm_add_group(c, &mhla_mixer_softmax, NULL);
        if (g == NULL) return mhla_blame(MHLA_EINVAL, mhla_gguf_path(f));
        memcpy(&g->settings, both[i], sizeof a);
    }
    if (window > 0) MHLA_TRY(read_layers(c, f, architecture, third));
    return mhla_blame(mhla_lm_settle(c), mhla_gguf_path(f));
}

/* ---- Writing ---- */

const char *mhla_lm_gguf_as_gemma(const mhla_lm_config *c) {
    mhla_softmax_settings kinds[2], *s = &kinds[0];
    if (!mhla_lm_gemma_kinds(kinds, c) || s->qkv_bias) return NULL;
    const int third = s->qk_norm;
    const double scalar = s->query_scalar != 0.0 ? s->query_scalar : (double)s->dim;
    mhla_softmax_settings sized = *s;
    sized.head_dim = s->dim;
    if (fabs(scalar - query_scalar(c, &sized, third)) > 1e-9 * scalar) return NULL;
    if (c->scaling.kind && (c->scaling.kind != MHLA_SCALING_LINEAR || !third || !kinds[LOCAL].unscaled)) return NULL;
    if (third ? s->softcap != 0.0 : s->softcap == 0.0 || c->softcap == 0.0) return NULL;
    return third ? "gemma3" : "gemma2";
}
