/* Language models: the goldens of the published code, layer by layer and whole, with every gradient; counts and names of
 * the released configuration. */
#include "goldens.h"
#include "io/json.h"
#include "layer_case.h"
#include "models/model.h"

static double worst(const float *got, const float *want, int64_t n, double *size) {
    double error = 0.0, most = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= error)) error = d;
        if (fabs((double)want[i]) > most) most = fabs((double)want[i]);
    }
    *size = most;
    return error / most;
}

static void assert_equal_numbers(const char *file, const char *what, const float *got, const float *want, int64_t n,
                                 double tolerance) {
    double size;
    const double error = worst(got, want, n, &size);
    if (!(error <= tolerance)) {
        print_error("%s: %s differs by %.2g of its largest, %.2g\n", file, what, error, size);
        fail();
    }
}

/* ---- One layer's attention ---- */

/* The config in a golden's metadata as a config.json of one layer. */
static mhla_lm_config layer_config(const mhla_safetensors *f, const char *name) {
    static const struct {
        const char *theirs, *ours;
    } spelled[] = {{"heads", "num_heads"}, {"hidden", "hidden_size"}, {"kv_heads", "num_kv_heads"},
                   {"M", "num_blocks"},    {"chunk", "chunk_size"},   {"output_gate", "use_output_gate"}};
    json_t *tree;
    const char *text = mhla_safetensors_metadata(f, "config");
    ASSERT_OK(mhla_json_parse(&tree, text, strlen(text), name));
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++) {
        json_t *v = json_object_get(tree, spelled[i].theirs);
        if (v) json_object_set(tree, spelled[i].ours, v);
    }
    const char *kind = json_string_value(json_object_get(tree, "layer"));
    json_object_set_new(tree, "model_type", json_string(kind ? kind : "mhla"));
    json_object_set_new(tree, "num_hidden_layers", json_integer(1));
    json_object_set_new(tree, "vocab_size", json_integer(16));
    mhla_lm_config c;
    ASSERT_OK(mhla_lm_config_read(&c, tree, NULL, name));
    json_decref(tree);
    return c;
}

static void check_layer(const char *name) {
    mhla_safetensors *f = open_golden(name);
    const mhla_lm_config c = layer_config(f, name);
    mhla_lm *lm;
    mhla_tape *t;
    ASSERT_OK(mhla_lm_create(&lm, &c));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_params *ps = mhla_lm_params(lm);
    const char *start = "model.layers.0.attn.";
    int64_t found = 0;
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        char full[256];
        if (strncmp(p->name, start, strlen(start)) != 0) continue;
        snprintf(full, sizeof full, "param.%s", p->name + strlen(start));
        ASSERT_OK(mhla_safetensors_load(p->data, f, full, p->dims, p->shape));
        mhla_param_touch(p);
        found++;
    }
    const mhla_stored *x_stored, *y_stored;
    ASSERT_OK(mhla_safetensors_need(&x_stored, f, "in.x"));
    ASSERT_OK(mhla_safetensors_need(&y_stored, f, "out.y"));
    float *x = golden(f, "in.", "x"), *y = golden(f, "out.", "y"), *dy = golden(f, "dout.", "y");
    const char *gradient = mhla_safetensors_find(f, "grad.in.x") ? "grad.in." : "grad.";
    const char *parameter = mhla_safetensors_find(f, "grad.in.x") ? "grad.param." : "grad.";
    float *dx = golden(f, gradient, "x");
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *in = mhla_nn_variable(t, x, x_stored->shape, x_stored->rank);
    mhla_tensor *out = mhla_lm_attention(t, lm, &(mhla_lm_run){0}, 0, NULL, in);
    ASSERT_OK(mhla_tape_status(t));
    assert_equal_numbers(name, "y", out->data, y, y_stored->count, 1e-5);
    ASSERT_OK(mhla_tape_backward_from(t, out, dy));
    assert_equal_numbers(name, "dx", mhla_tensor_grad(in), dx, x_stored->count, 2e-5);
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (strncmp(p->name, start, strlen(start)) != 0) continue;
        float *want = golden(f, parameter, p->name + strlen(start));
        /* one chunk, whose only weight the norm behind it divides out again: what is left of its gradient is rounding */
        const int cancels = p->flags & MHLA_PARAM_MIX && strcmp(name, "07_lm/layer_t60") == 0;
        assert_equal_numbers(name, p->name, p->grad, want, p->count, cancels ? 2e-2 : 2e-5);
        free(want);
    }
    int64_t there = 0;
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++)
        there += strncmp(mhla_safetensors_at(f, i)->name, "param.", 6) == 0;
    assert_int_equal(found, there);
    free(x);
    free(y);
    free(dy);
    free(dx);
    mhla_tape_free(t);
    mhla_lm_free(lm);
    mhla_safetensors_close(f);
}

static void layers(void **state) {
    (void)state;
    static const char *const names[] = {
        "07_lm/layer_t130",
        "07_lm/layer_t130_nogate",
        "07_lm/layer_t60",
        "07_lm/layer_t100_gqa",
        "07_lm/layer_t96_elu",
        "07_lm/layer_t96_identity",
        "07_lm/layer_t96_t2r",
        "07_lm/layer_t96_hedgehog",
        "07_lm/layer_t96_elementwise_product",
        "07_lm/layer_t96_dpfp",
        "lm/layers/attn",
        "lm/layers/attn_gqa_bias_qknorm",
        "lm/layers/linear_attn",
        "lm/layers/linear_attn_elu_norm",
        "lm/layers/linear_attn_hedgehog",
        "lm/layers/mhla",
        "lm/layers/mhla_conv",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_layer(names[i]);
}

/* ---- Whole models ---- */

/* Labels of position t are the ids of t+1, -100 ignored, as the goldens have them: [B,T] labels shifted here. */
static int32_t *shifted(const mhla_stored *s, int64_t B, int64_t T) {
    int32_t *labels = new_bytes(sizeof *labels * (size_t)(B * T));
    const int64_t *from = (const int64_t *)(const void *)s->data;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            int64_t v = -100;
            if (t + 1 < T) memcpy(&v, from + b * T + t + 1, sizeof v);
            labels[b * T + t] = v < 0 ? -1 : (int32_t)v;
        }
    return labels;
}

static int32_t *read_ids(const mhla_stored *s) {
    int32_t *ids = new_bytes(sizeof *ids * (size_t)s->count);
    for (int64_t i = 0; i < s->count; i++) {
        int64_t v;
        memcpy(&v, s->data + i * 8, sizeof v);
        ids[i] = (int32_t)v;
    }
    return ids;
}

/* Logits, loss and every gradient (where the golden has them), with and without recomputing. */
static void check_model(const char *name, mhla_lm *lm, const mhla_safetensors *g, const char *ids_name,
                        const char *labels_name, const char *gradient) {
    const mhla_stored *ids_stored, *logits_stored, *labels_stored = mhla_safetensors_find(g, labels_name);
    ASSERT_OK(mhla_safetensors_need(&ids_stored, g, ids_name));
    ASSERT_OK(mhla_safetensors_need(&logits_stored, g, "out.logits"));
    const int64_t B = ids_stored->shape[0], T = ids_stored->shape[1];
    int32_t *ids = read_ids(ids_stored), *labels = labels_stored ? shifted(labels_stored, B, T) : NULL;
    float *logits = golden(g, "out.", "logits"), *loss = labels ? golden(g, "out.", "loss") : NULL;
    mhla_params *ps = mhla_lm_params(lm);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int recompute = 0; recompute < (labels ? 2 : 1); recompute++) {
        mhla_tape_begin(t, labels ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
        mhla_tensor *h = mhla_lm_forward(t, lm, &(mhla_lm_run){.recompute = recompute}, ids, B, T);
        mhla_tensor *y = mhla_lm_logits(t, lm, h);
        ASSERT_OK(mhla_tape_status(t));
        assert_equal_numbers(name, "logits", y->data, logits, logits_stored->count, 1e-5);
        if (labels == NULL) break;
        mhla_tensor *mean = mhla_nn_cross_entropy(t, y, labels, NULL, 0.0f, NULL);
        ASSERT_OK(mhla_tape_status(t));
        assert_true(fabs((double)*mean->data - (double)*loss) < 2e-6 * fabs((double)*loss));
        mhla_params_clear_grads(ps);
        ASSERT_OK(mhla_tape_backward(t, mean, 1.0f));
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            float *want = golden(g, gradient, p->name);
            assert_equal_numbers(name, p->name, p->grad, want, p->count, 3e-5);
            free(want);
        }
    }
    mhla_tape_free(t);
    free(ids);
    free(labels);
    free(logits);
    free(loss);
}

/* Folders as the Python world writes them. */
static void models(void **state) {
    (void)state;
    static const struct {
        const char *model, *golden;
    } folders[] = {{"mhla", "mhla"},
                   {"transformer", "transformer"},
                   {"linear_attn", "linear_attn"},
                   {"llama-hf", "llama-hf"},
                   {"llama-hf-sharded", "llama-hf"},
                   {"llama-hf-bf16", "llama-hf-bf16"},
                   {"llama-hf-f16", "llama-hf-f16"}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char name[256], path[512];
        snprintf(name, sizeof name, "lm/models/%s", folders[i].model);
        golden_path(path, name);
        mhla_model *m;
        mhla_open_desc desc = {.size = sizeof desc, .storage = "float32"};
        ASSERT_OK(mhla_model_open_as(&m, path, &desc));
        snprintf(name, sizeof name, "lm/models/%s/golden", folders[i].golden);
        mhla_safetensors *g = open_golden(name);
        check_model(folders[i].model, m->lm, g, "in.input_ids", "in.labels", "grad.");
        mhla_safetensors_close(g);
        mhla_model_free(m);
    }
}

/* What is not known here is named. */
static void unknown_parts(void **state) {
    (void)state;
    static const struct {
        const char *model, *says;
    } folders[] = {{"gla", "gk_proj"},
                   {"gla_hybrid", "GLA"},
                   {"mamba", "model_type \"mamba\""},
                   {"mamba2", "model_type \"mamba2\""},
                   {"gated_deltanet", "model_type \"gated_deltanet\""}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char name[256], path[512];
        snprintf(name, sizeof name, "lm/models/%s", folders[i].model);
        mhla_model *m;
        assert_int_equal(mhla_model_open(&m, golden_path(path, name)), MHLA_ENOTSUP);
        assert_non_null(strstr(mhla_message(), folders[i].says));
    }
}

/* The released code's own models: parameters are in the golden. */
static void released_models(void **state) {
    (void)state;
    static const char *const names[] = {"07_lm/model_t130", "07_lm/model_t70_untied"};
    for (int k = 0; k < 2; k++) {
        mhla_safetensors *f = open_golden(names[k]);
        json_t *tree;
        const char *text = mhla_safetensors_metadata(f, "config");
        ASSERT_OK(mhla_json_parse(&tree, text, strlen(text), names[k]));
        static const char *const spelled[][2] = {{"heads", "num_heads"},
                                                 {"hidden", "hidden_size"},
                                                 {"layers", "num_hidden_layers"},
                                                 {"vocab", "vocab_size"}};
        for (int i = 0; i < 4; i++) json_object_set(tree, spelled[i][1], json_object_get(tree, spelled[i][0]));
        json_object_set_new(tree, "model_type", json_string("gla"));
        mhla_lm_config c;
        ASSERT_OK(mhla_lm_config_read(&c, tree, NULL, names[k]));
        json_decref(tree);
        mhla_lm *lm;
        ASSERT_OK(mhla_lm_create(&lm, &c));
        for (int i = 0; i < mhla_params_count(mhla_lm_params(lm)); i++) {
            mhla_param *p = mhla_params_at(mhla_lm_params(lm), i);
            char full[256];
            snprintf(full, sizeof full, "param.%s", p->name);
            ASSERT_OK(mhla_safetensors_load(p->data, f, full, p->dims, p->shape));
            mhla_param_touch(p);
        }
        check_model(names[k], lm, f, "in.ids", "in.ids", "grad.param.");
        mhla_lm_free(lm);
        mhla_safetensors_close(f);
    }
}

/* ---- The released configuration ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention;
        int64_t parameters;
        int tensors;
    } known[] = {{"lm_340m", MHLA_ATTENTION_MHLA, 341130240, 290},
                 {"lm_340m", MHLA_ATTENTION_SOFTMAX, 341099520, 218},
                 {"lm_340m", MHLA_ATTENTION_LINEAR, 347421696, 434}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_lm_config c;
        int64_t parameters[3], tensors[3]; /* of one layer, of two: the others are as the second */
        ASSERT_OK(mhla_lm_preset(&c, known[i].model, known[i].attention));
        assert_int_equal(c.layers, 24);
        for (int n = 1; n < 3; n++) {
            mhla_lm *lm;
            c.layers = n;
            ASSERT_OK(mhla_lm_create(&lm, &c));
            parameters[n] = mhla_params_elements(mhla_lm_params(lm));
            tensors[n] = mhla_params_count(mhla_lm_params(lm));
            mhla_lm_free(lm);
        }
        assert_int_equal(parameters[1] + 23 * (parameters[2] - parameters[1]), known[i].parameters);
        assert_int_equal(tensors[1] + 23 * (tensors[2] - tensors[1]), known[i].tensors);
    }
}

/* Names, shapes and order of the published list. */
static void released_names(void **state) {
    (void)state;
    char path[512], name[128], shape[64];
    mhla_lm_config c;
    mhla_lm *lm;
    golden_path(path, "names/lm_340m_mhla.txt");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    ASSERT_OK(mhla_lm_preset(&c, "lm_340m", MHLA_ATTENTION_MHLA));
    c.layers = 2; /* the others take memory only */
    ASSERT_OK(mhla_lm_create(&lm, &c));
    char line[256];
    int n = 0, layer;
    while (fgets(line, sizeof line, f)) {
        if (*line == '#' || (sscanf(line, "model.layers.%d", &layer) == 1 && layer > 1)) continue;
        assert_int_equal(sscanf(line, "%127s %63s", name, shape), 2);
        const mhla_param *p = mhla_params_at(mhla_lm_params(lm), n++);
        char ours[64] = "";
        for (int a = 0; a < p->dims; a++)
            snprintf(ours + strlen(ours), sizeof ours - strlen(ours), "%s%lld", a ? "x" : "", (long long)p->shape[a]);
        assert_string_equal(p->name, name);
        assert_string_equal(ours, shape);
    }
    assert_int_equal(n, mhla_params_count(mhla_lm_params(lm)));
    fclose(f);
    mhla_lm_free(lm);
}

/* A real size, its parameters by formula. Needs 3 GB and some seconds, so only if asked for. */
static void full_size(void **state) {
    (void)state;
    if (getenv("MHLA_FULL") == NULL) {
        print_message("[   SKIP   ] the 340M model at its size: set MHLA_FULL=1\n");
        skip();
    }
    mhla_safetensors *f = open_golden("07_lm/full_lm_340m");
    mhla_lm_config c;
    mhla_lm *lm;
    ASSERT_OK(mhla_lm_preset(&c, "lm_340m", MHLA_ATTENTION_MHLA));
    ASSERT_OK(mhla_lm_create(&lm, &c));
    for (int j = 0; j < mhla_params_count(mhla_lm_params(lm)); j++) {
        mhla_param *p = mhla_params_at(mhla_lm_params(lm), j);
        float base = 0.0f, amp = sqrtf(3.0f / (float)(p->count / p->shape[0]));
        if (p->flags & MHLA_PARAM_MIX) {
            base = 1.0f / (float)p->shape[0];
            amp = 0.5f / (float)p->shape[0];
        } else if (p->dims == 1) {
            base = 1.0f;
            amp = 0.1f;
        }
        for (int64_t i = 0; i < p->count; i++) {
            uint64_t z = ((uint64_t)j * 0x100000000u + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
            z = (z ^ z >> 27) * 0x94D049BB133111EBu;
            z ^= z >> 31;
            const volatile float product = amp * ((float)(z >> 40) / 8388608.0f - 1.0f);
            p->data[i] = base + product;
        }
        mhla_param_touch(p);
    }
    static const int32_t positions[] = {0, 1, 63, 64, 127, 128, 159};
    int32_t ids[160];
    for (int i = 0; i < 160; i++) ids[i] = (int32_t)((7919LL * i + 13) % 32000);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *h = mhla_lm_forward(t, lm, &(mhla_lm_run){0}, ids, 1, 160);
    mhla_tensor *y = mhla_lm_logits(t, lm, mhla_nn_take_rows(t, positions, 7, h));
    ASSERT_OK(mhla_tape_status(t));
    float *want = golden(f, "out.", "logits");
    assert_equal_numbers("full_lm_340m", "logits", y->data, want, 7 * 32000, 2e-5);
    free(want);
    mhla_tape_free(t);
    mhla_lm_free(lm);
    mhla_safetensors_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),          cmocka_unit_test(models), cmocka_unit_test(unknown_parts),
        cmocka_unit_test(released_models), cmocka_unit_test(counts), cmocka_unit_test(released_names),
        cmocka_unit_test(full_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
