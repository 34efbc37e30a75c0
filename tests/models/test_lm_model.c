/* Language models on their own: configs that make sense and that do not, gradients against differences for every
 * attention, packed sequences, files there and back. */
#include <sys/stat.h>
#include <unistd.h>

#include "layer_case.h"
#include "mixer_settings.h"
#include "models/language/lm.h"
#include "models/language/mixers/angles.h"
#include "models/language/mixers/features.h"
#include "models/model.h"

static mhla_model *create(const char *const *settings, int n) {
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, n, 3));
    return m;
}

/* Every kind of layer, small; ended by NULL. */
static const char *const kinds[][16] = {
    {"num_blocks=4", "chunk_size=4"},
    {"num_blocks=4", "chunk_size=4", "use_output_gate=false", "num_heads=4", "num_kv_heads=2", "feature_map=elu"},
    {"num_blocks=4", "chunk_size=4", "feature_map=hedgehog", "use_short_conv=true", "tie_word_embeddings=false"},
    {"num_blocks=4", "chunk_size=4", "feature_map=dpfp_paper", "attn_layers=1", "attn_num_heads=2"},
    {"num_blocks=4", "chunk_size=4", "feature_map=elementwise_product", "parameter_names=llama"},
    {"num_blocks=4", "chunk_size=4", "feature_map=t2r"},
    {"attention=softmax", "num_kv_heads=2", "qkv_bias=true", "qk_norm=true", "window_size=5"},
    {"attention=softmax", "parameter_names=llama", "head_dim=12"},
    {"attention=linear", "norm_q=true", "norm_k=true", "norm_feature_map=true", "feature_map=elu"},
    {"attention=linear"},
    {"num_blocks=4", "chunk_size=4", "linear_layers=1"},
    /* two settings of one kind */
    {"num_blocks=4", "chunk_size=4", "mhla_layers=1", "mhla_num_blocks=4", "mhla_chunk_size=3", "mhla_feature_map=elu"},
    {"attention=softmax", "window_size=4", "attn_layers=0", "attn_window_size=2", "attn_qk_norm=true"},
    /* Gemma's decoder */
    {"attention=softmax", "parameter_names=gemma", "final_logit_softcapping=3", "attn_logit_softcapping=2",
     "query_pre_attn_scalar=7", "attn_layers=1", "attn_window_size=4", "attn_attn_logit_softcapping=2",
     "attn_query_pre_attn_scalar=7"},
    {"num_blocks=4", "chunk_size=4", "parameter_names=gemma", "attn_layers=1", "attn_qk_norm=true"},
    {"num_blocks=4", "chunk_size=4", "num_hidden_layers=4", "attn_layers=0,3", "attn_num_heads=2", "linear_layers=[2]",
     "linear_num_heads=4", "linear_num_kv_heads=2", "linear_expand_k=0.5", "linear_use_short_conv=true",
     "linear_conv_size=3", "linear_norm_q=true", "linear_feature_map=elu", "linear_norm_feature_map=true"},
};
enum { KINDS = sizeof kinds / sizeof *kinds, B = 2, T = 11, VOCABULARY = 24 };

static mhla_model *small(int kind) {
    const char *settings[24] = {"vocab_size=24", "hidden_size=16", "intermediate_size=20"};
    int n = 3;
    for (int i = 0; i < 16 && kinds[kind][i]; i++) settings[n++] = kinds[kind][i];
    mhla_model *m = create(settings, n);
    rng r = {(uint64_t)kind + 1};
    for (int i = 0; i < mhla_params_count(m->params); i++) { /* nothing silent: no zeros, no ones */
        mhla_param *p = mhla_params_at(m->params, i);
        const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.4f : 0.05f;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
        if (p->flags & MHLA_PARAM_MIX) ASSERT_OK(mhla_mix_clip(p->data, 4, 4, p->mix_low, p->mix_high, 0, 1));
        mhla_param_touch(p);
    }
    return m;
}

static void some_ids(int32_t *ids, int n, uint64_t seed) {
    rng r = {seed};
    for (int i = 0; i < n; i++) ids[i] = rng_below(&r, VOCABULARY);
}

/* ---- Before training ---- */

/* What every parameter starts from, and whether the optimiser lets it decay: matrices normal and decaying, norms 1, biases 0,
 * hedgehog the identity, mixing rows 1/(i+1). Norms by 1 + w begin with 0. */
static void start_values(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        const char *settings[24] = {"vocab_size=24", "hidden_size=16", "intermediate_size=20"};
        int n = 3, hedgehog = 0, gemma = 0;
        for (int i = 0; i < 16 && kinds[kind][i]; i++) {
            gemma |= strcmp(kinds[kind][i], "parameter_names=gemma") == 0;
            hedgehog |= strcmp(kinds[kind][i], "feature_map=hedgehog") == 0;
            settings[n++] = kinds[kind][i];
        }
        mhla_model *m = create(settings, n);
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            const mhla_param *p = mhla_params_at(m->params, i);
            const int plus_one = gemma && (strstr(p->name, "layernorm") || strstr(p->name, "model.norm.") ||
                                           strstr(p->name, "q_norm") || strstr(p->name, "k_norm"));
            const int bias = plus_one || strstr(p->name, ".bias") != NULL, map = strstr(p->name, "feature_map") != NULL;
            const int64_t N = p->shape[0];
            assert_int_equal((p->flags & MHLA_PARAM_DECAY) != 0, p->dims > 1);
            double squares = 0.0;
            for (int64_t k = 0; k < p->count; k++) {
                const float x = p->data[k];
                squares += (double)(x * x);
                if (p->flags & MHLA_PARAM_MIX)
                    assert_true(k % N > k / N || fabs((double)x - 1.0 / (double)(k / N + 1)) < 1e-6);
                else if (p->dims == 1)
                    assert_true(x == (bias ? 0.0f : 1.0f));
                else if (hedgehog && map)
                    assert_true(x == (k / N == k % N ? 1.0f : 0.0f));
            }
            if (p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) && !(hedgehog && map) && p->count > 200)
                assert_in_range((int)(1000.0 * sqrt(squares / (double)p->count)), 15, 25); /* deviation 0.02 */
        }
        mhla_model_free(m);
    }
}

/* ---- Gradients ---- */

static double loss_of(mhla_tape *t, mhla_model *m, const int32_t *ids, int backward, int recompute) {
    int32_t labels[B * T];
    for (int i = 0; i < B * T; i++) labels[i] = i % T == T - 1 ? -1 : ids[i + 1];
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *h = mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){.recompute = recompute}, ids, B, T);
    mhla_tensor *loss = mhla_nn_cross_entropy(t, mhla_lm_logits(t, ((mhla_lm *)m->net), h), labels, NULL, 0.0f, NULL);
    ASSERT_OK(mhla_tape_status(t));
    if (backward) ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
    return (double)*loss->data;
}

/* Along the gradient and along random directions d: (loss(p + h d) - loss(p - h d)) / 2h = grad . d. Losses are float32
 * and relu has kinks, so two of three must fit. */
static void check_param(mhla_tape *t, mhla_model *m, mhla_param *p, const int32_t *ids, rng *r, int kind) {
    float *grad = new_bytes((size_t)p->count * sizeof *grad), *kept = new_bytes((size_t)p->count * sizeof *kept);
    memcpy(grad, p->grad, (size_t)p->count * sizeof *grad);
    memcpy(kept, p->data, (size_t)p->count * sizeof *kept);
    double size = 0.0, found = 0.0, along = 0.0;
    for (int64_t k = 0; k < p->count; k++) size += (double)grad[k] * (double)grad[k];
    size = sqrt(size) + 1e-12;
    int fits = 0;
    for (int direction = 0; direction < 3; direction++) {
        float *d = new_random(r, p->count);
        double norm = 0.0, two[2];
        const double h = 1e-3;
        for (int64_t k = 0; k < p->count; k++) {
            if (direction == 0) d[k] = grad[k] / (float)size;
            norm += (double)d[k] * (double)d[k];
        }
        norm = sqrt(norm) + 1e-12;
        along = 0.0;
        for (int64_t k = 0; k < p->count; k++) along += (double)grad[k] * (double)d[k] / norm;
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; k < p->count; k++) p->data[k] = kept[k] + (float)((s ? -h : h) * (double)d[k] / norm);
            mhla_param_touch(p);
            two[s] = loss_of(t, m, ids, 0, 0);
        }
        memcpy(p->data, kept, (size_t)p->count * sizeof *kept);
        mhla_param_touch(p);
        found = (two[0] - two[1]) / (2.0 * h);
        fits += fabs(found - along) <= 0.01 * size + 2e-4;
        free(d);
    }
    if (fits < 2)
        fail_msg("kind %d, %s: %.6g along a direction, by differences %.6g; the gradient is %g long", kind, p->name,
                 along, found, size);
    free(grad);
    free(kept);
}

static void gradients(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        mhla_model *m = small(kind);
        mhla_tape *t;
        int32_t ids[B * T];
        rng r = {(uint64_t)kind};
        some_ids(ids, B * T, 5);
        ASSERT_OK(mhla_tape_create(&t, NULL));
        loss_of(t, m, ids, 1, 0);
        const int n = mhla_params_count(m->params);
        float **kept = new_bytes((size_t)n * sizeof *kept);
        for (int i = 0; i < n; i++) {
            const mhla_param *p = mhla_params_at(m->params, i);
            assert_true(p->has_grad);
            kept[i] = new_bytes((size_t)p->count * sizeof(float));
            memcpy(kept[i], p->grad, (size_t)p->count * sizeof(float));
        }
        for (int i = 0; i < n; i++) check_param(t, m, mhla_params_at(m->params, i), ids, &r, kind);
        mhla_params_clear_grads(m->params);
        loss_of(t, m, ids, 1, 1); /* recomputed layers: the same bits */
        for (int i = 0; i < n; i++) {
            const mhla_param *p = mhla_params_at(m->params, i);
            assert_memory_equal(kept[i], p->grad, (size_t)p->count * sizeof(float));
            free(kept[i]);
        }
        free(kept);
        mhla_tape_free(t);
        mhla_model_free(m);
    }
}

/* Packed sequences see what they would alone. */
static void packed(void **state) {
    (void)state;
    static const int64_t cu[] = {0, 1, 8, 8, 19, 22};
    for (int kind = 0; kind < KINDS; kind++) {
        mhla_model *m = small(kind);
        const int64_t D = mhla_lm_config_of(((mhla_lm *)m->net))->width;
        mhla_tape *t;
        int32_t ids[22];
        some_ids(ids, 22, 8);
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        const mhla_lm_run run = {.mixer = {.cu_seqlens = cu, .sequences = 5}};
        mhla_tensor *h = mhla_lm_forward(t, ((mhla_lm *)m->net), &run, ids, 1, 22);
        ASSERT_OK(mhla_tape_status(t));
        float *all = new_bytes(sizeof(float) * (size_t)(22 * D));
        memcpy(all, h->data, sizeof(float) * (size_t)(22 * D));
        for (int s = 0; s < 5; s++) {
            const int64_t n = cu[s + 1] - cu[s];
            if (n == 0) continue;
            mhla_tape_begin(t, MHLA_TAPE_INFER);
            h = mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids + cu[s], 1, n);
            ASSERT_OK(mhla_tape_status(t));
            for (int64_t i = 0; i < n * D; i++)
                assert_true(fabs((double)h->data[i] - (double)all[cu[s] * D + i]) < 2e-5);
        }
        free(all);
        mhla_tape_free(t);
        mhla_model_free(m);
    }
}

/* ---- Configs ---- */

/* Layers of another kind have as many heads as the model, unless they are given: 60 dims in 5 heads are 12 each. */
static void heads_of_a_hybrid(void **state) {
    (void)state;
    static const char *const settings[] = {"hidden_size=60",   "num_heads=5",       "expand_k=1",
                                           "attn_layers=1",    "linear_layers=2",   "num_hidden_layers=3",
                                           "attn_num_heads=6", "linear_num_heads=3"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 6, 1));
    const mhla_lm_config *c = mhla_lm_config_of(((mhla_lm *)m->net));
    for (int i = 0; i < 3; i++) assert_int_equal(int_of(c, i, "num_heads"), 5);
    assert_int_equal(mhla_params_find(m->params, "model.layers.1.attn.k_proj.weight")->shape[0], 60);
    mhla_model_free(m);
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 8, 1));
    c = mhla_lm_config_of(((mhla_lm *)m->net));
    assert_int_equal(int_of(c, 1, "num_heads"), 6);
    assert_int_equal(int_of(c, 2, "num_heads"), 3);
    mhla_model_free(m);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {{"num_heads=3", "no multiple of 3 heads"},
                 {"attention=sofmax", "softmax"},
                 {"atention=softmax", "attention"},
                 {"num_hidden_layers=0", "num_hidden_layers"},
                 {"attn_layers=7", "attn.layers[0] is not a layer"},
                 {"linear_layers=0,7", "linear.layers[1] is not a layer"},
                 {"bos_token_id=512", "512"},
                 {"hidden_size=many", "integer"},
                 {"num_kv_heads=7", "num_kv_heads"},
                 {"feature_map=sigmoid", "elementwise"},
                 {"hidden_size=4096", "too large"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        assert_int_equal(mhla_model_create(&m, "lm_micro", &wrong[i].setting, 1, 0), MHLA_EINVAL);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
}

static void config_round_trip(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        mhla_model *m = small(kind);
        mhla_lm_config back;
        const mhla_lm_config *c = mhla_lm_config_of(((mhla_lm *)m->net));
        json_t *tree = mhla_lm_config_tree(c);
        assert_non_null(tree);
        ASSERT_OK(mhla_lm_config_read(&back, tree, NULL, "config.json"));
        json_t *again = mhla_lm_config_tree(&back);
        if (!json_equal(tree, again)) fail_msg("%s\n%s", json_dumps(tree, 0), json_dumps(again, 0));
        for (int i = 0; i < c->layers; i++) {
            const mhla_lm_group *one = mhla_lm_group_of(c, i), *other = mhla_lm_group_of(&back, i);
            assert_ptr_equal(one->mixer, other->mixer);
            assert_int_equal(one->mixer->print(1, &one->settings, c), other->mixer->print(1, &other->settings, &back));
        }
        json_decref(tree);
        json_decref(again);
        mhla_model_free(m);
    }
}

/* Three kinds of attention, each with settings of its own. */
static void mixed(void **state) {
    (void)state;
    mhla_model *m = small(KINDS - 1);
    const mhla_lm_config *c = mhla_lm_config_of(((mhla_lm *)m->net));
    static const char *const wanted[] = {"softmax", "mhla", "linear", "softmax"};
    for (int i = 0; i < 4; i++) assert_string_equal(mixer_name(c, i), wanted[i]);
    assert_int_equal(int_of(c, 1, "feature_map"), MHLA_LM_RELU);
    assert_int_equal(int_of(c, 1, "use_short_conv"), 0);
    assert_int_equal(int_of(c, 1, "num_heads"), 2);
    assert_int_equal(int_of(c, 2, "feature_map"), MHLA_LM_ELU);
    assert_int_equal(int_of(c, 2, "use_short_conv"), 1);
    assert_int_equal(int_of(c, 2, "conv_size"), 3);
    assert_int_equal(int_of(c, 2, "num_heads"), 4);
    assert_int_equal(int_of(c, 2, "num_kv_heads"), 2);
    assert_true(int_of(c, 2, "norm_q") && !int_of(c, 2, "norm_k") && int_of(c, 2, "norm_feature_map"));
    assert_int_equal(int_of(c, 3, "num_heads"), 2);
    static const struct {
        const char *name;
        int rows;
    } shapes[] = {{"model.layers.1.attn.k_proj.weight", 8},
                  {"model.layers.2.attn.q_proj.weight", 8},
                  {"model.layers.2.attn.k_proj.weight", 4},
                  {"model.layers.2.attn.v_proj.weight", 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        assert_int_equal(mhla_params_find(m->params, shapes[i].name)->shape[0], shapes[i].rows);
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(m, &info));
    assert_string_equal(info.attention, "mhla, linear and softmax");
    assert_int_equal(info.context, 16);
    mhla_model_free(m);
}

static void config_files(void **state) {
    (void)state;
    static const struct {
        const char *text;
        mhla_status status;
        const char *says;
    } files[] = {
        {"{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_size\":8.0,"
         "\"eos_token_id\":[3,5],\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}",
         MHLA_OK, ""},
        {"{\"model_type\":\"llama\",\"hidden_size\":64,\"rope_scaling\":{\"rope_type\":\"llama3\"}}", MHLA_EDATA,
         "factor"},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", MHLA_ENOTSUP, "hidden_act"},
        {"{\"model_type\":\"gla\",\"attn_extends\":\"gla\"}", MHLA_OK, ""},
        {"{\"model_type\":\"gla\",\"attn_extends\":\"glb\"}", MHLA_ENOTSUP, "attn_extends is \"glb\""},
        {"{\"model_type\":\"gla\",\"attn_extends\":7}", MHLA_ENOTSUP,
         "attn_extends is an integer: known are mhla and gla"},
        {"{\"model_type\":\"gla\",\"attn_extends\":\"gla\",\"attnres_block_size\":4}", MHLA_ENOTSUP,
         "attnres_block_size"},
        {"{\"model_type\":\"mamba2\",\"rmsnorm\":false}", MHLA_ENOTSUP, "without its norm"},
        {"{\"model_type\":\"mamba2\",\"norm_before_gate\":true}", MHLA_ENOTSUP, "norm_before_gate"},
        {"{\"model_type\":\"mamba2\",\"D_has_hdim\":true}", MHLA_ENOTSUP, "D_has_hdim"},
        {"{\"model_type\":\"mamba2\",\"dt_limit\":[2,1]}", MHLA_EDATA, "\"dt_limit\" is not a list"},
        {"{\"model_type\":\"mamba\",\"dt_rank\":0}", MHLA_EDATA, "\"dt_rank\""},
        {"{\"model_type\":\"gated_deltanet\",\"output_gate_activation\":\"tanh\"}", MHLA_ENOTSUP, "tanh"},
        {"{\"model_type\":\"rwkv7\"}", MHLA_ENOTSUP, "rwkv7"},
        {"{\"model_type\":\"mhla\",\"hidden_size\":1.5}", MHLA_EDATA, "hidden_size"},
        {"{\"model_type\":\"mhla\",\"hidden_size\":1e300}", MHLA_EDATA, "hidden_size"},
        {"{\"model_type\":\"mhla\",\"num_heads\":3,\"hidden_size\":64}", MHLA_EDATA, "3 heads"},
        {"{\"model_type\":\"mhla\",\"attn\":{\"layers\":[99]}}", MHLA_EDATA, "attn.layers[0]"},
        {"{\"model_type\":\"mhla\",\"attn\":[7]}", MHLA_EDATA, "layers"},
        {"{\"model_type\":\"mhla\",\"attn\":\"all\"}", MHLA_EDATA, "layers"},
        {"{\"model_type\":\"mhla\",\"linear\":{\"layers\":[-1]}}", MHLA_EDATA, "linear.layers[0]"},
        {"{\"model_type\":\"mhla\",\"linear\":{\"layers\":[1],\"norm_q\":1}}", MHLA_EDATA, "\"norm_q\""},
        {"{\"model_type\":\"mhla\",\"linear\":{\"layers\":[1,2]},\"attn\":{\"layers\":[2]}}", MHLA_EDATA,
         "layer 2 is listed both"},
        {"{\"model_type\":\"mhla\",\"tie_word_embeddings\":1}", MHLA_EDATA, "tie_word_embeddings"},
        {"{\"model_type\":\"mhla\",\"feature_map\":\"cosine\"}", MHLA_ENOTSUP, "cosine"},
        {"{\"model_type\":\"gemma2\",\"hidden_activation\":\"gelu\"}", MHLA_ENOTSUP, "hidden_activation"},
        {"{\"model_type\":\"gemma2\",\"layer_types\":[\"full_attention\"]}", MHLA_EDATA, "layer_types"},
        {"{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true}", MHLA_ENOTSUP, "use_bidirectional"},
        {"{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":{"
         "\"rope_type\":\"linear\",\"factor\":2}}}",
         MHLA_ENOTSUP, "sliding_attention"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"head_dim\":3}}", MHLA_EDATA,
         "even number of dims"},
        {"{\"model_type\":[]}", MHLA_EDATA, "model_type"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        json_t *tree;
        mhla_lm_config c;
        ASSERT_OK(mhla_json_parse(&tree, files[i].text, strlen(files[i].text), "c"));
        assert_int_equal(mhla_lm_config_read(&c, tree, NULL, "c.json"), files[i].status);
        if (files[i].status != MHLA_OK && strstr(mhla_message(), files[i].says) == NULL)
            fail_msg("\"%s\" does not speak of \"%s\"", mhla_message(), files[i].says);
        if (i == 0) {
            assert_int_equal(c.eos, 3);
            assert_int_equal(c.hidden, 8);
            assert_true(real_of(&c, 0, "rope_theta") == 5e5);
        }
        json_decref(tree);
    }
}

/* Qwen's layers that see a window only: by "layer_types", or by "max_window_layers"; written so that it reads again. */
static void windows(void **state) {
    (void)state;
    static const struct {
        const char *more;
        int window[3];
        const char *says; /* an error */
    } known[] = {{"\"use_sliding_window\":false,\"max_window_layers\":0", {0, 0, 0}, NULL},
                 {"\"use_sliding_window\":true,\"max_window_layers\":1", {0, 7, 7}, NULL},
                 {"\"use_sliding_window\":true,\"max_window_layers\":0", {7, 7, 7}, NULL},
                 {"\"use_sliding_window\":true", {0, 0, 0}, NULL},
                 {"\"use_sliding_window\":true,\"max_window_layers\":3,\"layer_types\":[\"sliding_attention\","
                  "\"full_attention\",\"sliding_attention\"]",
                  {7, 0, 7},
                  NULL},
                 {"\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]", {0}, "layer_types"},
                 {"\"use_sliding_window\":true,\"layer_types\":[\"full_attention\",\"full_attention\",3]", {0}, "[2]"},
                 {"\"use_sliding_window\":true,\"layer_types\":[\"a\",\"a\",\"a\"]", {0}, "[0]"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int type = 2; type < 4; type++) {
            char text[512];
            json_t *tree;
            mhla_lm_config *c = new_bytes(sizeof *c), *again = new_bytes(sizeof *again);
            snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen%d\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_hidden_layers\":3,"
                     "\"sliding_window\":7,%s}",
                     type, known[i].more);
            ASSERT_OK(mhla_json_parse(&tree, text, strlen(text), "c"));
            const mhla_status status = mhla_lm_config_read(c, tree, NULL, "c.json");
            json_decref(tree);
            if (known[i].says) {
                assert_true(status == MHLA_EDATA || status == MHLA_ENOTSUP);
                assert_non_null(strstr(mhla_message(), known[i].says));
            } else {
                ASSERT_OK(status);
                tree = mhla_lm_config_tree(c);
                ASSERT_OK(mhla_lm_config_read(again, tree, NULL, "again.json"));
                for (int k = 0; k < 3; k++) {
                    assert_int_equal(int_of(c, k, "window_size"), known[i].window[k]);
                    assert_int_equal(int_of(again, k, "window_size"), known[i].window[k]);
                    assert_int_equal(int_of(again, k, "qkv_bias"), type == 2);
                    assert_int_equal(int_of(again, k, "qk_norm"), type == 3);
                }
                json_decref(tree);
            }
            free(c);
            free(again);
        }
}

/* Gemma's files leave out what is usual: which layers see a window, bases and scalings, older keys and newer ones. */
static void gemma_files(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int layer, window;
        double theta, cap, final;
        int scaling, unscaled;
    } files[] = {
        {"{\"model_type\":\"gemma2\"}", 0, 4096, 1e4, 50, 30, 0, 0},
        {"{\"model_type\":\"gemma2\",\"rope_theta\":5e4,\"attn_logit_softcapping\":null}", 1, 0, 5e4, 0, 30, 0, 0},
        {"{\"model_type\":\"gemma3_text\",\"sliding_window\":512}", 4, 512, 1e4, 0, 0, 0, 0},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},"
         "\"rope_local_base_freq\":2e4}",
         6, 4096, 2e4, 0, 0, MHLA_SCALING_LINEAR, 1},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"rope_parameters\":{"
         "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":3e6},\"sliding_attention\":{"
         "\"rope_theta\":3e4}},\"sliding_window_pattern\":3}}",
         2, 0, 3e6, 0, 0, MHLA_SCALING_LINEAR, 0},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        json_t *tree;
        mhla_lm_config *c = new_bytes(sizeof *c), *again = new_bytes(sizeof *again);
        ASSERT_OK(mhla_json_parse(&tree, files[i].text, strlen(files[i].text), "c"));
        ASSERT_OK(mhla_lm_config_read(c, tree, NULL, "c.json"));
        json_decref(tree);
        assert_non_null(tree = mhla_lm_config_tree(c));
        ASSERT_OK(mhla_lm_config_read(again, tree, NULL, "again.json"));
        json_decref(tree);
        for (int written = 0; written < 2; written++) {
            const mhla_lm_config *x = written ? again : c;
            assert_int_equal(int_of(x, files[i].layer, "window_size"), files[i].window);
            assert_true(real_of(x, files[i].layer, "rope_theta") == files[i].theta);
            assert_true(real_of(x, files[i].layer, "attn_logit_softcapping") == files[i].cap);
            assert_true(x->softcap == files[i].final);
            assert_int_equal(x->scaling.kind, files[i].scaling);
            assert_int_equal(int_of(x, files[i].layer, "rope_unscaled"), files[i].unscaled);
            assert_int_equal(int_of(x, 0, "qk_norm"), i > 1);
        }
        free(c);
        free(again);
    }
}

/* ---- Use and misuse ---- */

static void misuse(void **state) {
    (void)state;
    mhla_model *m = small(0), *images;
    mhla_tape *t;
    float logits[8], pixels[3] = {0};
    int32_t ids[40] = {0};
    ASSERT_OK(mhla_model_create(&images, "deit_nano", NULL, 0, 1));
    assert_int_equal(mhla_model_forward(m, logits, pixels, 1), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "a language model"));
    assert_int_equal(mhla_model_classify(m, logits, "x.png"), MHLA_EINVAL);
    assert_int_equal(mhla_model_step(m, NULL, pixels, ids, 1, 0.1), MHLA_EINVAL);
    mhla_lm_info info = {.size = sizeof info};
    assert_int_equal(mhla_lm_query(images, &info), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "an image classifier"));
    assert_null(mhla_lm_tokenizer(images));
    assert_null(mhla_lm_tokenizer(m));
    assert_null(mhla_model_class_name(m, 0));
    ASSERT_OK(mhla_lm_query(m, &info));
    assert_string_equal(info.attention, "mhla");
    assert_int_equal(info.context, 16);
    assert_int_equal(info.parameters, mhla_params_elements(m->params));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids, 1, 17)); /* 4 blocks of 4 */
    assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "17 tokens"));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    ids[2] = VOCABULARY;
    assert_null(mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids, 1, 4));
    assert_non_null(strstr(mhla_message(), "ids[2]"));
    mhla_tape_free(t);
    mhla_model_free(m);
    mhla_model_free(images);
}

/* The table grows; a row is the same however it is made. */
static void rotary_tables(void **state) {
    (void)state;
    static const mhla_scaling none;
    mhla_angles angles = {.dims = 4, .theta = 10000.0, .scaling = &none};
    const float *cos, *sin, *old;
    float row[2][16];
    int64_t have;
    ASSERT_OK(mhla_angles_table(&angles, 10, &old, &sin, &have));
    assert_true(have >= 10);
    ASSERT_OK(mhla_angles_table(&angles, 5000, &cos, &sin, &have));
    assert_true(have >= 5000);
    assert_memory_equal(old, cos, 10 * 2 * sizeof *cos);
    mhla_scaling_rows(row[0], row[1], &none, angles.theta, angles.dims, 4711, 1);
    for (int j = 0; j < 2; j++) {
        assert_true(fabs((double)row[0][j] - (double)cos[4711 * 2 + j]) < 1e-6);
        assert_true(fabs((double)row[1][j] - (double)sin[4711 * 2 + j]) < 1e-6);
    }
    mhla_angles_free(&angles);
}

/* ---- Files ---- */

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void files(void **state) {
    (void)state;
    char folder[] = "/tmp/mhla_lm_XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    for (int kind = 0; kind < KINDS; kind++) {
        mhla_model *m = small(kind), *back;
        ASSERT_OK(mhla_model_save(m, folder));
        ASSERT_OK(mhla_model_open(&back, folder));
        assert_int_equal(mhla_params_count(m->params), mhla_params_count(back->params));
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            const mhla_param *a = mhla_params_at(m->params, i), *b = mhla_params_at(back->params, i);
            assert_string_equal(a->name, b->name);
            assert_memory_equal(a->data, b->data, (size_t)a->count * sizeof(float));
        }
        mhla_model_free(back);
        mhla_model_free(m);
    }
    /* keys that nobody here knows stay; M comes from the matrix */
    mhla_model *m = small(0), *back;
    json_t *tree = mhla_lm_config_tree(mhla_lm_config_of(((mhla_lm *)m->net)));
    json_object_set_new(tree, "somebody", json_pack("{s:i}", "else", 7));
    json_object_set_new(tree, "num_blocks", json_integer(9));
    ASSERT_OK(mhla_model_save(m, folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    ASSERT_OK(mhla_json_save(tree, path));
    ASSERT_OK(mhla_model_open(&back, folder));
    assert_int_equal(int_of(mhla_lm_config_of(back->net), 0, "num_blocks"), 4);
    ASSERT_OK(mhla_model_save(back, folder));
    mhla_model_free(back);
    json_t *saved;
    ASSERT_OK(mhla_json_load(&saved, path));
    assert_true(json_equal(tree, saved));
    json_decref(saved);
    json_decref(tree);

    /* tied weights, and an output matrix beside them that is the same, or is not */
    char weights[128];
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    enum { MOST = 64 };
    mhla_storable list[MOST];
    int n = 0;
    for (; n < mhla_params_count(m->params); n++) {
        const mhla_param *p = mhla_params_at(m->params, n);
        list[n] = (mhla_storable){p->name, p->dims, p->shape, p->data, MHLA_IO_F32, MHLA_IO_F32};
    }
    list[n] = list[0];
    list[n].name = "lm_head.weight";
    ASSERT_OK(mhla_safetensors_write(weights, list, n + 1, NULL, 0));
    ASSERT_OK(mhla_model_open(&back, folder));
    mhla_model_free(back);
    float *other = new_bytes((size_t)(VOCABULARY * 16) * sizeof *other);
    memcpy(other, list[0].data, (size_t)(VOCABULARY * 16) * sizeof *other);
    other[5] += 1.0f;
    list[n].data = other;
    ASSERT_OK(mhla_safetensors_write(weights, list, n + 1, NULL, 0));
    assert_int_equal(mhla_model_open(&back, folder), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "tie_word_embeddings"));
    free(other);
    /* one more, one less */
    list[n].name = "model.layers.7.attn.q_proj.weight";
    list[n].data = list[0].data;
    ASSERT_OK(mhla_safetensors_write(weights, list, n + 1, NULL, 0));
    assert_int_equal(mhla_model_open(&back, folder), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "model.layers.7"));
    ASSERT_OK(mhla_safetensors_write(weights, list + 1, n - 1, NULL, 0));
    assert_int_equal(mhla_model_open(&back, folder), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "model.embeddings.weight"));
    /* storage that is none */
    mhla_open_desc desc = {.size = sizeof desc, .storage = "int3"};
    assert_int_equal(mhla_model_open_as(&back, folder, &desc), MHLA_EINVAL);
    /* far too large for the file */
    put_text(path, "{\"model_type\":\"llama\",\"hidden_size\":65536,\"num_attention_heads\":64,\"vocab_size\":16000000,"
                   "\"num_hidden_layers\":256}");
    assert_int_equal(mhla_model_open(&back, folder), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "numbers in all"));
    mhla_model_free(m);
    unlink(path);
    unlink(weights);
    rmdir(folder);
}

/* Other storage: what bfloat16 rounds is what comes out and is saved; what is not known is refused. */
static void storage(void **state) {
    (void)state;
    char folder[] = "/tmp/mhla_lm_XXXXXX", again[64], path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(again, sizeof again, "%s/again", folder);
    const char *const settings[] = {"vocab_size=24", "hidden_size=32", "intermediate_size=64"};
    mhla_model *m = create(settings, 3), *kept[2], *back;
    static const char *const names[] = {"bfloat16", "q8_0"};
    ASSERT_OK(mhla_model_save(m, folder));
    for (int k = 0; k < 2; k++) {
        mhla_open_desc desc = {.size = sizeof desc, .storage = names[k]};
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_model_open_as(&kept[k], folder, &desc));
        ASSERT_OK(mhla_lm_query(kept[k], &info));
        assert_string_equal(info.storage, names[k]);
        assert_true(info.weight_bytes < (size_t)info.parameters * (k ? 3 : 4));
        const mhla_param *a = mhla_params_at(m->params, 0), *b = mhla_params_at(kept[k]->params, 0);
        float *row = new_bytes(sizeof(float) * 32);
        ASSERT_OK(mhla_param_get_rows(row, b, 7, 1));
        for (int i = 0; i < 32; i++) {
            const float x = a->data[7 * 32 + i];
            if (k == 0) assert_true(row[i] == from_bf16(to_bf16(x)));
            if (k == 1) assert_true(fabsf(row[i] - x) < 5e-4f); /* 0.06 / 127 */
        }
        free(row);
    }
    ASSERT_OK(mhla_model_save(kept[0], again)); /* as bfloat16, and opened as what it is */
    ASSERT_OK(mhla_model_open(&back, again));
    for (int i = 0; i < mhla_params_count(back->params); i++) {
        const mhla_param *a = mhla_params_at(kept[0]->params, i), *b = mhla_params_at(back->params, i);
        float *x = new_bytes(sizeof(float) * (size_t)a->count), *y = new_bytes(sizeof(float) * (size_t)a->count);
        assert_int_equal(a->dtype, b->dtype);
        ASSERT_OK(mhla_param_get_rows(x, a, 0, a->shape[0]));
        ASSERT_OK(mhla_param_get_rows(y, b, 0, b->shape[0]));
        assert_memory_equal(x, y, sizeof(float) * (size_t)a->count);
        free(x);
        free(y);
    }
    mhla_model_free(back);
    for (int k = 0; k < 2; k++) mhla_model_free(kept[k]);
    mhla_model_free(m);
    for (int k = 0; k < 4; k++) {
        snprintf(path, sizeof path, "%s/%s", k < 2 ? again : folder, k % 2 ? "config.json" : "model.safetensors");
        unlink(path);
    }
    rmdir(again);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_values),
        cmocka_unit_test(gradients),
        cmocka_unit_test(packed),
        cmocka_unit_test(refused),
        cmocka_unit_test(heads_of_a_hybrid),
        cmocka_unit_test(config_round_trip),
        cmocka_unit_test(mixed),
        cmocka_unit_test(config_files),
        cmocka_unit_test(windows),
        cmocka_unit_test(gemma_files),
        cmocka_unit_test(misuse),
        cmocka_unit_test(rotary_tables),
        cmocka_unit_test(files),
        cmocka_unit_test(storage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
