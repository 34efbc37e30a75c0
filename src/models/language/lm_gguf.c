/* A GGUF file of the llama architecture as a language model: its metadata are the config, its tensors have other names, and
 * the rows of q and k lie in the order of interleaved rotary pairs, which is undone here. Mamba and Mamba2: lm_gguf_mamba.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/numbers.h"
#include "core/status.h"
#include "file/file.h"
#include "file/gguf.h"
#include "models/language/lm_files.h"
#include "models/language/mixers/softmax.h"

enum { PIECE = 1 << 20 }; /* numbers at a time */

/* ---- The config ---------------------------------------------------------------------------------------------------- */

/* ---- Scaled rotary embeddings, as llama.cpp computes them ---- */

static mhla_status positive(double *to, const mhla_gguf *f, const char *key) {
    MHLA_TRY(mhla_gguf_get_real(to, f, key));
    if (*to >= 1e-6 && *to <= 1e12) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %s is %g", mhla_gguf_path(f), key, *to);
}

static mhla_status read_yarn(mhla_scaling *s, const mhla_gguf *f) {
    double extension = 1.0, attention = 1.0, weight = 0.0;
    s->kind = MHLA_SCALING_YARN;
    s->beta_fast = 32.0;
    s->beta_slow = 1.0;
    MHLA_TRY(positive(&s->beta_fast, f, "llama.rope.scaling.yarn_beta_fast"));
    MHLA_TRY(positive(&s->beta_slow, f, "llama.rope.scaling.yarn_beta_slow"));
    MHLA_TRY(mhla_gguf_get_real(&extension, f, "llama.rope.scaling.yarn_ext_factor"));
    MHLA_TRY(mhla_gguf_get_real(&attention, f, "llama.rope.scaling.yarn_attn_factor"));
    MHLA_TRY(mhla_gguf_get_real(&weight, f, "llama.rope.scaling.yarn_log_multiplier"));
    if ((extension >= 0.0 && extension != 1.0) || attention != 1.0 || weight != 0.0)
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: llama.rope.scaling: yarn_ext_factor %g, yarn_attn_factor %g, yarn_log_multiplier %g are "
                         "not known here: known are 1, 1, 0",
                         mhla_gguf_path(f), extension, attention, weight);
    if (s->beta_fast < s->beta_slow)
        return mhla_fail(MHLA_EDATA, "%s: llama.rope.scaling.yarn_beta_fast is %g, less than yarn_beta_slow, %g",
                         mhla_gguf_path(f), s->beta_fast, s->beta_slow);
    s->attention *= 1.0 + 0.1 * log(s->factor);
    if (s->attention > 0.0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: llama.rope.scaling.factor is %g", mhla_gguf_path(f), s->factor);
}

/* rope_freqs.weight: a divisor of each pair's frequency, besides a factor of all. */
static mhla_status read_list(mhla_scaling *s, const mhla_gguf *f, const mhla_gguf_tensor *list, int64_t pairs) {
    MHLA_TRY(mhla_gguf_check_shape(list, 1, &pairs));
    if (s->kind == MHLA_SCALING_YARN)
        return mhla_fail(MHLA_ENOTSUP, "%s: tensor rope_freqs.weight together with yarn is not known here",
                         mhla_gguf_path(f));
    mhla_gguf_read_rows(s->list, list, 0, 1);
    for (int64_t j = 0; j < pairs; j++) {
        if (!(s->list[j] >= 1e-6f && s->list[j] <= 1e6f))
            return mhla_fail(MHLA_EDATA, "%s: tensor rope_freqs.weight: number %lld is %g", mhla_gguf_path(f),
                             (long long)j, (double)s->list[j]);
        s->list[j] *= (float)s->factor;
    }
    return MHLA_OK;
}

static mhla_status read_scaling(mhla_scaling *s, const mhla_gguf *f, int64_t positions, int64_t pairs) {
    char *type = NULL;
    const mhla_gguf_tensor *list = mhla_gguf_find_tensor(f, "rope_freqs.weight");
    double factor = 0.0;
    *s = (mhla_scaling){.original = positions ? (double)positions : 2048.0, .attention = 1.0, .factor = 1.0};
    if (pairs > MHLA_ROPE_PAIRS) return MHLA_OK;                         /* told by the check of the config */
    MHLA_TRY(mhla_gguf_get_real(&factor, f, "llama.rope.scale_linear")); /* older */
    MHLA_TRY(mhla_gguf_get_real(&factor, f, "llama.rope.scaling.factor"));
    if (factor != 0.0 && !(factor >= 1e-6 && factor <= 1e6))
        return mhla_fail(MHLA_EDATA, "%s: llama.rope.scaling.factor is %g", mhla_gguf_path(f), factor);
    MHLA_TRY(positive(&s->original, f, "llama.rope.scaling.original_context_length"));
    MHLA_TRY(positive(&s->attention, f, "llama.rope.scaling.attn_factor"));
    MHLA_TRY(mhla_gguf_get_text(&type, f, "llama.rope.scaling.type"));
    const int none = type && strcmp(type, "none") == 0, yarn = type && strcmp(type, "yarn") == 0;
    mhla_status status = MHLA_OK;
    if (type && !none && !yarn && strcmp(type, "linear") != 0)
        status = mhla_fail(MHLA_ENOTSUP,
                           "%s: llama.rope.scaling.type is \"%.40s\": known are none, linear and yarn, and the tensor "
                           "rope_freqs.weight",
                           mhla_gguf_path(f), type);
    free(type);
    if (!none && factor != 0.0) s->factor = factor;
    if (status == MHLA_OK && yarn) status = read_yarn(s, f);
    if (status == MHLA_OK && list) status = read_list(s, f, list, pairs);
    if (status != MHLA_OK || s->kind) return status;
    if (list || s->attention != 1.0) {
        s->kind = MHLA_SCALING_LIST;
        s->count = (int)pairs;
        for (int64_t j = 0; j < pairs && !list; j++) s->list[j] = (float)s->factor;
    } else if (s->factor != 1.0) {
        s->kind = MHLA_SCALING_LINEAR;
    }
    return MHLA_OK;
}

/* What ends a text: our own list, or the end of the text, of a turn, of a message. */
static mhla_status read_ends(mhla_lm_config *c, const mhla_gguf *f) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const mhla_gguf_value *list;
    MHLA_TRY(mhla_gguf_get_numbers(&list, f, MHLA_LM_GGUF_ENDS));
    if (list && list->count > MHLA_LM_ENDS)
        return mhla_fail(MHLA_EDATA, "%s: %s has %lld tokens: expected %d at most", mhla_gguf_path(f),
                         MHLA_LM_GGUF_ENDS, (long long)list->count, MHLA_LM_ENDS);
    const int n = list ? (int)list->count : 3;
    int count = 0;
    for (int i = 0; i < n; i++) {
        int64_t id = -1;
        if (list)
            id = mhla_gguf_int_at(list, i);
        else
            MHLA_TRY(mhla_gguf_get_int(&id, f, keys[i], -1, 1 << 24));
        if ((list && id < 0) || id >= c->vocabulary)
            return mhla_fail(MHLA_EDATA, "%s: %s is %lld: there are %d tokens", mhla_gguf_path(f),
                             list ? MHLA_LM_GGUF_ENDS : keys[i], (long long)id, c->vocabulary);
        int known = id < 0;
        for (int k = 0; k < count; k++) known |= c->ends[k] == id;
        if (!known) c->ends[count++] = (int32_t)id;
    }
    if (list || count) c->end_count = count;
    return MHLA_OK;
}

mhla_status mhla_lm_gguf_softmax_read(mhla_lm_config *c, mhla_softmax_settings *a, const mhla_gguf *f,
                                      const char *architecture) {
    int64_t layers = 0, width = 0, hidden = 0, heads = 0, kv = 0, dims = 0, values = 0, turned = 0, positions = 0;
    int64_t bos = -1, eos = -1;
    double theta = 10000.0, eps = 1e-5;
    char key[64];
    const struct {
        int64_t *to;
        const char *key;
        int64_t least, most;
    } keys[] = {{&layers, "block_count", 1, MHLA_LM_LAYERS},  {&width, "embedding_length", 1, 1 << 16},
                {&hidden, "feed_forward_length", 1, 1 << 18}, {&heads, "attention.head_count", 1, 256},
                {&kv, "attention.head_count_kv", 1, 256},     {&dims, "attention.key_length", 1, 1024},
                {&values, "attention.value_length", 1, 1024}, {&turned, "rope.dimension_count", 2, 1024},
                {&positions, "context_length", 1, 1 << 30}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, keys[i].key);
        MHLA_TRY(mhla_gguf_get_int(keys[i].to, f, key, keys[i].least, keys[i].most));
        if (i < 4 && *keys[i].to == 0) return mhla_fail(MHLA_EDATA, "%s: no %s", mhla_gguf_path(f), key);
    }
    MHLA_TRY(mhla_gguf_get_int(&bos, f, "tokenizer.ggml.bos_token_id", -1, 1 << 24));
    MHLA_TRY(mhla_gguf_get_int(&eos, f, "tokenizer.ggml.eos_token_id", -1, 1 << 24));
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    MHLA_TRY(mhla_gguf_get_real(&theta, f, key));
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    MHLA_TRY(mhla_gguf_get_real(&eps, f, key));
    const mhla_gguf_tensor *embedding;
    MHLA_TRY(mhla_gguf_need_tensor(&embedding, f, "token_embd.weight"));
    if (embedding->rank != 2 || embedding->shape[0] > 1 << 24)
        return mhla_fail(MHLA_EDATA, "%s: tensor token_embd.weight is not a matrix of tokens", mhla_gguf_path(f));
    if (dims == 0 && width % heads != 0)
        return mhla_fail(MHLA_EDATA, "%s: embedding_length %lld is not a multiple of %lld heads", mhla_gguf_path(f),
                         (long long)width, (long long)heads);
    if (dims == 0) dims = width / heads;
    if ((values && values != dims) || (turned && turned != dims))
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: heads of %lld dims, %lld of values, %lld of them turned, are not known here",
                         mhla_gguf_path(f), (long long)dims, (long long)values, (long long)turned);
    if (!(theta >= 1.0 && theta <= 1e12 && eps >= 0.0 && eps <= 1.0))
        return mhla_fail(MHLA_EDATA, "%s: rope.freq_base %g, layer_norm_rms_epsilon %g", mhla_gguf_path(f), theta, eps);
    *c = (mhla_lm_config){
        .layers = (int)layers,
        .vocabulary = (int)embedding->shape[0],
        .width = (int)width,
        .hidden = (int)hidden,
        .norm_eps = eps,
        .tied = mhla_gguf_find_tensor(f, "output.weight") == NULL,
        .positions = (int)positions,
        .bos = (int)bos,
        .eos = (int)eos,
        .deviation = 0.02,
    };
    snprintf(c->model, sizeof c->model, "%s", architecture);
    while (mhla_mixer_at(c->attention) != &mhla_mixer_softmax) c->attention++;
    *a = (mhla_softmax_settings){.num_heads = (int)heads,
                                 .num_kv_heads = (int)kv,
                                 .head_dim = (int)dims,
                                 .rope_theta = theta,
                                 .qk_norm_eps = 1e-5};
    return MHLA_OK;
}

static mhla_status read_llama(mhla_lm_config *c, const mhla_gguf *f) {
    mhla_softmax_settings a = {0};
    MHLA_TRY(mhla_lm_gguf_softmax_read(c, &a, f, "llama"));
    c->naming = MHLA_LM_NAMES_HF;
    memcpy(&mhla_lm_add_group(c, &mhla_mixer_softmax, NULL)->settings, &a, sizeof a);
    MHLA_TRY(read_scaling(&c->scaling, f, c->positions, a.head_dim / 2));
    return mhla_blame(mhla_lm_settle(c), mhla_gguf_path(f));
}

/* Metadata that ask for far more than the file holds are told before memory is taken. */
static mhla_status check_size(const mhla_lm_config *c, const mhla_gguf *f) {
    double held = 0.0, least = (double)c->vocabulary * c->width + 3.0 * c->layers * (double)c->width * c->hidden;
    for (int64_t i = 0; i < mhla_gguf_tensor_count(f); i++) held += (double)mhla_gguf_tensor_at(f, i)->count;
    if (least <= held) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %.0f numbers in all; the model that its metadata describe has %.0f or more",
                     mhla_gguf_path(f), held, least);
}

/* ---- The tensors ---------------------------------------------------------------------------------------------------- */

/* "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight" */
void mhla_lm_gguf_name(char *theirs, size_t size, const char *ours, int naming) {
    static const char *const parts[][2] = {{"post_attention_layernorm.weight", "post_attention_norm.weight"},
                                           {"input_layernorm.weight", "attn_norm.weight"},
                                           {"self_attn.q_norm.weight", "attn_q_norm.weight"},
                                           {"self_attn.k_norm.weight", "attn_k_norm.weight"},
                                           {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
                                           {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
                                           {"self_attn.q_proj.weight", "attn_q.weight"},
                                           {"self_attn.k_proj.weight", "attn_k.weight"},
                                           {"self_attn.v_proj.weight", "attn_v.weight"},
                                           {"self_attn.o_proj.weight", "attn_output.weight"},
                                           {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                           {"mlp.gate_proj.weight", "ffn_gate.weight"},
                                           {"mlp.up_proj.weight", "ffn_up.weight"},
                                           {"mlp.down_proj.weight", "ffn_down.weight"},
                                           {"attn_norm.weight", "attn_norm.weight"},
                                           {"attn.q_proj.weight", "attn_q.weight"},
                                           {"attn.k_proj.weight", "attn_k.weight"},
                                           {"attn.v_proj.weight", "attn_v.weight"},
                                           {"attn.o_proj.weight", "attn_output.weight"},
                                           {"mlp_norm.weight", "ffn_norm.weight"},
                                           {"norm.weight", "attn_norm.weight"},
                                           {"mixer.in_proj.weight", "ssm_in.weight"},
                                           {"mixer.conv1d.weight", "ssm_conv1d.weight"},
                                           {"mixer.conv1d.bias", "ssm_conv1d.bias"},
                                           {"mixer.x_proj.weight", "ssm_x.weight"},
                                           {"mixer.dt_proj.weight", "ssm_dt.weight"},
                                           {"mixer.dt_proj.bias", "ssm_dt.bias"},
                                           {"mixer.dt_bias", "ssm_dt.bias"},
                                           {"mixer.A_log", "ssm_a"},
                                           {"mixer.D", "ssm_d"},
                                           {"mixer.norm.weight", "ssm_norm.weight"},
                                           {"mixer.out_proj.weight", "ssm_out.weight"}};
    static const char *const whole[][2] = {
        {"model.embed_tokens.weight", "token_embd.weight"}, {"model.embeddings.weight", "token_embd.weight"},
        {"model.norm.weight", "output_norm.weight"},        {"backbone.embeddings.weight", "token_embd.weight"},
        {"backbone.norm_f.weight", "output_norm.weight"},   {"lm_head.weight", "output.weight"}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(ours, whole[i][0]) == 0) snprintf(theirs, size, "%s", whole[i][1]);
    int layer, at = 0;
    if ((sscanf(ours, "model.layers.%d.%n", &layer, &at) != 1 || at == 0) &&
        (sscanf(ours, "backbone.layers.%d.%n", &layer, &at) != 1 || at == 0))
        return;
    /* the first row is Gemma's, which has Llama's name for another norm */
    for (size_t i = naming != MHLA_LM_NAMES_GEMMA; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(ours + at, parts[i][0]) == 0) {
            snprintf(theirs, size, "blk.%d.%s", layer, parts[i][1]);
            return;
        }
}

int mhla_lm_gguf_plus_one(const mhla_lm_config *c, const char *name) {
    const size_t n = strlen(name), k = strlen("norm.weight");
    return mhla_lm_names_of[c->naming].plus_one && n >= k && strcmp(name + n - k, "norm.weight") == 0;
}

/* What the numbers of a tensor are kept as without being asked: as they are, if there is such a storage; blocks of fewer bits as
 * Q8_0. */
static mhla_dtype natural_storage(const mhla_gguf_tensor *s) {
    switch (s->type) {
    case MHLA_GGUF_F32:
    case MHLA_GGUF_F16: return MHLA_F32;
    case MHLA_GGUF_BF16: return MHLA_BF16;
    default: return s->cols % MHLA_Q8_COUNT == 0 ? MHLA_Q8_0 : MHLA_BF16;
    }
}

/* `dims` 0: row i is row i. Else heads of so many rows lie as pairs: 0, dims/2, 1, dims/2 + 1, ... */
static mhla_status fill(mhla_param *p, const mhla_gguf_tensor *s, int dims) {
    const int same =
        p->dtype == MHLA_Q8_0 ? s->type == MHLA_GGUF_Q8_0 : p->dtype == MHLA_BF16 && s->type == MHLA_GGUF_BF16;
    const size_t row_bytes = mhla_gguf_row_bytes(s->type, s->cols);
    const int64_t N = p->shape[0], cols = p->count / N, most = dims ? 1 : cols < PIECE ? PIECE / cols : 1;
    float *rows = malloc((size_t)(most * cols) * sizeof *rows);
    mhla_status status = rows ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for tensor %s", s->name);
    for (int64_t at = 0; at < N && status == MHLA_OK; at += most) {
        const int64_t n = N - at < most ? N - at : most;
        int64_t from = at;
        if (dims) { /* half and place in it */
            const int64_t head = at / dims, half = at % dims / (dims / 2), j = at % dims % (dims / 2);
            from = head * dims + 2 * j + half;
        }
        if (same) {
            const unsigned char *data = s->data + (size_t)from * row_bytes;
            status = mhla_param_set_rows(p, at, n, data, p->dtype);
        } else if (p->data && dims == 0) {
            mhla_gguf_read_rows(p->data, s, 0, s->rows);
            mhla_param_touch(p);
            break;
        } else {
            mhla_gguf_read_rows(rows, s, from, n);
            status = mhla_param_set_rows(p, at, n, rows, MHLA_F32);
        }
    }
    free(rows);
    return status;
}

/* Our own architecture: config.json is one of its texts, tensors have our names. */
static mhla_status read_own(mhla_lm_config *c, json_t **tree, const mhla_gguf *f) {
    char *text = NULL;
    MHLA_TRY(mhla_gguf_get_text(&text, f, "mhla.config"));
    if (text == NULL) return mhla_fail(MHLA_EDATA, "%s: no mhla.config", mhla_gguf_path(f));
    mhla_status status = mhla_json_parse(tree, text, strlen(text), mhla_gguf_path(f));
    if (status == MHLA_OK) status = mhla_lm_config_read(c, *tree, NULL, mhla_gguf_path(f));
    free(text);
    return status;
}

static mhla_status load(mhla_model *m, const mhla_gguf *f, int storage, int own) {
    const mhla_lm_config *c = mhla_lm_config_of(m->net);
    const mhla_softmax_settings *a = mhla_softmax_alone(c);
    const int dims = a && !own && c->naming == MHLA_LM_NAMES_HF ? a->dim : 0;
    const mhla_lm_gguf_mamba mamba = own ? (mhla_lm_gguf_mamba){0} : mhla_lm_gguf_as_mamba(c);
    const int n = mhla_params_count(m->params);
    for (int i = 0; i < n; i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        const mhla_gguf_tensor *s;
        char name[96] = "";
        snprintf(name, sizeof name, "%s", p->name);
        if (!own) mhla_lm_gguf_name(name, sizeof name, p->name, c->naming);
        MHLA_TRY(mhla_gguf_need_tensor(&s, f, name));
        int64_t shape[MHLA_GGUF_RANK];
        const int rank = mhla_lm_gguf_shape(shape, p, name, mamba.groups);
        MHLA_TRY(mhla_gguf_check_shape(s, rank, shape));
        if (storage < 0 && (p->flags & MHLA_PARAM_MATRIX) && p->dtype != natural_storage(s))
            MHLA_TRY(mhla_param_store(p, natural_storage(s)));
        MHLA_TRY(fill(p, s, strstr(name, ".attn_q.") || strstr(name, ".attn_k.") ? dims : 0));
        if (!own && mhla_lm_gguf_rates(name)) MHLA_TRY(mhla_lm_gguf_rates_read(p, s));
        for (int64_t k = 0; k < p->count && !own && mhla_lm_gguf_plus_one(c, name); k++) p->data[k] -= 1.0f;
    }
    if (mhla_gguf_tensor_count(f) == n) return MHLA_OK;
    for (int64_t i = 0; i < mhla_gguf_tensor_count(f); i++) {
        int known = !own && strcmp(mhla_gguf_tensor_at(f, i)->name, "rope_freqs.weight") == 0;
        for (int k = 0; k < n && !known; k++) {
            char name[96] = "";
            snprintf(name, sizeof name, "%s", mhla_params_at(m->params, k)->name);
            if (!own) mhla_lm_gguf_name(name, sizeof name, mhla_params_at(m->params, k)->name, c->naming);
            known = strcmp(name, mhla_gguf_tensor_at(f, i)->name) == 0;
        }
        if (!known)
            return mhla_fail(MHLA_ENOTSUP, "%s: tensor %s is not part of a %s as it is known here", mhla_gguf_path(f),
                             mhla_gguf_tensor_at(f, i)->name, own ? "mhla" : c->model);
    }
    return MHLA_OK;
}

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

/* Our own, or llama.cpp's. */
static int named(const mhla_gguf *f, const char *name) {
    const mhla_gguf_value *a = mhla_gguf_find_value(f, "general.architecture");
    return a && a->strings && !a->array && a->strings->length == strlen(name) &&
           memcmp(a->strings->data, name, strlen(name)) == 0;
}

/* Other programs' architectures, and who reads their metadata. */
static mhla_status read_mamba(mhla_lm_config *c, const mhla_gguf *f) { return mhla_lm_gguf_mamba_read(c, f, "mamba"); }
static mhla_status read_mamba2(mhla_lm_config *c, const mhla_gguf *f) {
    return mhla_lm_gguf_mamba_read(c, f, "mamba2");
}
static mhla_status read_gemma2(mhla_lm_config *c, const mhla_gguf *f) {
    return mhla_lm_gguf_gemma_read(c, f, "gemma2");
}
static mhla_status read_gemma3(mhla_lm_config *c, const mhla_gguf *f) {
    return mhla_lm_gguf_gemma_read(c, f, "gemma3");
}
static const struct {
    const char *name;
    mhla_status (*read)(mhla_lm_config *c, const mhla_gguf *f);
} others[] = {{"llama", read_llama},
              {"gemma2", read_gemma2},
              {"gemma3", read_gemma3},
              {"mamba", read_mamba},
              {"mamba2", read_mamba2}};
enum { OTHERS = sizeof others / sizeof *others };

int mhla_lm_gguf_fits(const mhla_gguf *f) {
    for (int i = 0; i < OTHERS; i++)
        if (named(f, others[i].name)) return 1;
    return named(f, "mhla");
}

mhla_status mhla_lm_gguf_read(mhla_lm **lm, const mhla_gguf *f, int storage) {
    mhla_lm_config config = {0};
    json_t *tree = NULL;
    const int own = named(f, "mhla");
    mhla_status status = own ? read_own(&config, &tree, f) : MHLA_OK;
    for (int i = 0; i < OTHERS && !own; i++)
        if (named(f, others[i].name)) status = others[i].read(&config, f);
    if (status == MHLA_OK && (!own || mhla_gguf_find_value(f, MHLA_LM_GGUF_ENDS))) status = read_ends(&config, f);
    if (status == MHLA_OK) status = check_size(&config, f);
    const mhla_gguf_tensor *first = mhla_gguf_find_tensor(f, own ? mhla_lm_names_of[config.naming].embeddings
                                                             : config.hidden ? "blk.0.ffn_up.weight"
                                                                             : "blk.0.ssm_in.weight");
    const mhla_dtype most = first ? natural_storage(first) : MHLA_F32;
    if (status == MHLA_OK) status = mhla_lm_create_as(lm, &config, storage < 0 ? most : (mhla_dtype)storage);
    json_decref(tree);
    return status;
}

mhla_status mhla_lm_gguf_load(mhla_model *m, const mhla_gguf *f, int storage) {
    return load(m, f, storage, named(f, "mhla"));
}
