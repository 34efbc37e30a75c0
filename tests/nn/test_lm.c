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
    if (!(error <= tolerance) && !(size < 1e-2 && error * size < 5e-5)) { /* what cancels nearly to zero: absolutely */
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
        assert_equal_numbers(name, p->name, p->grad, want, p->count, 2e-5);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
