/* Mamba and Mamba2 in llama.cpp's layout: the keys of its metadata, and tensors whose axes or numbers differ from ours. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm_files.h"

mhla_lm_gguf_mamba mhla_lm_gguf_as_mamba(const mhla_lm_config *c) {
    const mhla_lm_group *g = mhla_lm_group_of(c, 0);
    const mhla_lm_gguf_mamba none = {0};
    for (int i = 0; i < c->layers; i++)
        if (c->group_of[i] != c->group_of[0]) return none;
    if ((g->mixer != &mhla_mixer_mamba && g->mixer != &mhla_mixer_mamba2) || c->naming != MHLA_LM_NAMES_MAMBA)
        return none;
    const mhla_mamba_settings *m = (const void *)&g->settings;
    if (m->use_bias || !m->use_conv_bias) return none;
    if (g->mixer == &mhla_mixer_mamba)
        return (mhla_lm_gguf_mamba){"mamba", m, ((const mhla_mamba1_settings *)(const void *)m)->time_step_rank, 0};
    const mhla_mamba2_settings *s = (const void *)m;
    /* it norms each of several groups by itself */
    if ((s->n_groups > 1 && s->norm_groups != s->n_groups) || s->limit[0] > 0.0 || !isinf(s->limit[1])) return none;
    return (mhla_lm_gguf_mamba){"mamba2", m, s->num_heads, s->n_groups};
}

mhla_status mhla_lm_gguf_mamba_read(mhla_lm_config *c, const mhla_gguf *f, const char *architecture) {
    int64_t layers = 0, width = 0, conv = 0, inner = 0, states = 0, rank = 0, groups = 1, positions = 0;
    int64_t bos = -1, eos = -1;
    double eps = 1e-5;
    char key[64];
    const struct {
        int64_t *to;
        const char *key;
        int64_t least, most;
    } keys[] = {{&layers, "block_count", 1, MHLA_LM_LAYERS}, {&width, "embedding_length", 1, 1 << 16},
                {&conv, "ssm.conv_kernel", 1, 64},           {&inner, "ssm.inner_size", 1, 1 << 20},
                {&states, "ssm.state_size", 1, 1024},        {&rank, "ssm.time_step_rank", 1, 1 << 16},
                {&groups, "ssm.group_count", 0, 1 << 16},    {&positions, "context_length", 0, 1 << 30}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, keys[i].key);
        MHLA_TRY(mhla_gguf_get_int(keys[i].to, f, key, keys[i].least, keys[i].most));
        if (i < 6 && *keys[i].to == 0) return mhla_fail(MHLA_EDATA, "%s: no %s", mhla_gguf_path(f), key);
    }
    MHLA_TRY(mhla_gguf_get_int(&bos, f, "tokenizer.ggml.bos_token_id", -1, 1 << 24));
    MHLA_TRY(mhla_gguf_get_int(&eos, f, "tokenizer.ggml.eos_token_id", -1, 1 << 24));
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    MHLA_TRY(mhla_gguf_get_real(&eps, f, key));
    const mhla_gguf_tensor *embedding;
    MHLA_TRY(mhla_gguf_need_tensor(&embedding, f, "token_embd.weight"));
    if (embedding->rank != 2 || embedding->shape[0] > 1 << 24)
        return mhla_fail(MHLA_EDATA, "%s: tensor token_embd.weight is not a matrix of tokens", mhla_gguf_path(f));
    if (inner % width != 0 || inner / width > 64 || !(eps >= 0.0 && eps <= 1.0))
        return mhla_fail(MHLA_EDATA, "%s: ssm.inner_size %lld, embedding_length %lld, layer_norm_rms_epsilon %g: no %s",
                         mhla_gguf_path(f), (long long)inner, (long long)width, eps, architecture);
    *c = (mhla_lm_config){.naming = MHLA_LM_NAMES_MAMBA,
                          .layers = (int)layers,
                          .vocabulary = (int)embedding->shape[0],
                          .width = (int)width,
                          .norm_eps = eps,
                          .tied = mhla_gguf_find_tensor(f, "output.weight") == NULL,
                          .positions = positions >= MHLA_LM_GGUF_ENDLESS ? 0 : (int)positions,
                          .bos = (int)bos,
                          .eos = (int)eos,
                          .deviation = 0.02};
    snprintf(c->model, sizeof c->model, "%s", architecture);
    while (strcmp(mhla_mixer_at(c->attention)->name, architecture) != 0) c->attention++;
    mhla_lm_group *g = mhla_lm_add_group(c, mhla_mixer_at(c->attention), NULL);
    if (g == NULL) return MHLA_EINVAL;
    mhla_mamba_settings *m = (void *)&g->settings;
    m->expand = (int)(inner / width);
    m->state_size = (int)states;
    m->conv_kernel = (int)conv;
    if (g->mixer == &mhla_mixer_mamba) {
        ((mhla_mamba1_settings *)(void *)m)->time_step_rank = (int)rank;
    } else {
        mhla_mamba2_settings *s = (void *)m;
        s->num_heads = (int)rank;
        s->head_dim = 0;
        s->n_groups = groups > 1 ? (int)groups : 1;
        s->norm_groups = groups > 1 ? (int)groups : 0;
    }
    return mhla_blame(mhla_lm_settle(c), mhla_gguf_path(f));
}

/* "blk.3.ssm_a" is "ssm_a". */
static int is(const char *name, const char *part) {
    const size_t n = strlen(name), k = strlen(part);
    return n > k && name[n - k - 1] == '.' && strcmp(name + n - k, part) == 0;
}

int mhla_lm_gguf_shape(int64_t shape[MHLA_GGUF_RANK], const mhla_param *p, const char *name, int groups) {
    int rank = p->dims;
    while (rank > 2 && p->shape[rank - 1] == 1) rank--; /* a mixing matrix [M,M,1,1,1,1] */
    for (int i = 0; i < rank && i < MHLA_GGUF_RANK; i++) shape[i] = p->shape[i];
    if (is(name, "ssm_conv1d.weight") && rank == 3) { /* [X,1,W] */
        shape[1] = shape[2];
        return 2;
    }
    if (groups && (is(name, "ssm_a") || is(name, "ssm_d"))) { /* a number for each head */
        shape[1] = 1;
        return 2;
    }
    if (groups && is(name, "ssm_norm.weight")) { /* [groups, channels] */
        shape[1] = shape[0] / groups;
        shape[0] = groups;
        return 2;
    }
    return rank;
}

int mhla_lm_gguf_rates(const char *name) { return is(name, "ssm_a"); }

mhla_status mhla_lm_gguf_rates_read(mhla_param *p, const mhla_gguf_tensor *s) {
    for (int64_t i = 0; i < p->count; i++) {
        if (!(p->data[i] < 0.0f))
            return mhla_fail(MHLA_EDATA, "%s: tensor %s: number %lld is %g, not below 0", s->path, s->name,
                             (long long)i, (double)p->data[i]);
        p->data[i] = logf(-p->data[i]);
    }
    mhla_param_touch(p);
    return MHLA_OK;
}
