/* DiT against the published code: outputs and gradients of small models, one of real size, the attention alone, the tables of
 * times and positions, the lists of names, three updates with their average. */
#include "goldens.h"

#include "models/model.h"
#include "nn/optim.h"

static const double OUT = 1e-5, GRAD = 2e-5;

/* ---- A model of what a file says ---- */

static int64_t number(const json_t *tree, const char *key) { return json_integer_value(json_object_get(tree, key)); }

static json_t *said(const mhla_safetensors *f) {
    json_t *tree = json_loads(mhla_safetensors_metadata(f, "config"), 0, NULL);
    assert_non_null(tree);
    return tree;
}

/* tokens of the square image are cut into blocks of block_size */
static mhla_dit_config configure(const json_t *said, int attention) {
    const json_t *more = json_object_get(said, "block_kwargs");
    if (more == NULL) more = said;
    mhla_dit_config c;
    ASSERT_OK(mhla_dit_preset(&c, "dit_s_2", MHLA_STRUCTURE_RELEASED, attention, MHLA_DIT_LINEAR));
    c.image[0] = c.image[1] = (int)number(said, "input_size");
    c.patch = (int)number(said, "patch");
    c.dim = (int)number(said, "hidden");
    c.depth = (int)number(said, "depth");
    c.heads = (int)number(said, "heads");
    c.classes = (int)number(said, "classes");
    const int pieces = c.image[0] / c.patch / (int)sqrt((double)number(more, "block_size"));
    c.blocks[0] = c.blocks[1] = pieces;
    c.qk_norm = json_is_true(json_object_get(more, "qk_norm"));
    if (json_is_true(json_object_get(more, "dwconv"))) c.cpe = MHLA_DIT_CPE_FOLDED;
    return c;
}

static mhla_dit *model_of(const mhla_dit_config *c, const mhla_safetensors *f) {
    mhla_dit *m;
    ASSERT_OK(mhla_dit_create(&m, c));
    mhla_params *ps = mhla_dit_params(m);
    for (int i = 0; i < mhla_params_count(ps); i++) {
        char name[128];
        mhla_param *p = mhla_params_at(ps, i);
        snprintf(name, sizeof name, "param.%s", p->name);
        float *own = p->dims == 3 ? new_bytes((size_t)p->count * sizeof *own) : NULL;
        if (own) memcpy(own, p->data, (size_t)p->count * sizeof *own); /* the table of positions is made, not read */
        ASSERT_OK(mhla_safetensors_load(p->data, f, name, p->dims, p->shape));
        if (own) ASSERT_CLOSE(own, p->data, p->count, 1e-7, "%s", p->name);
        free(own);
        mhla_param_touch(p);
    }
    return m;
}

typedef struct batch {
    float *x, *t;
    int32_t *labels;
    int64_t B, shape[4];
} batch;

static batch read_batch(const mhla_safetensors *f, const char *suffix) {
    char name[32];
    const mhla_stored *s;
    snprintf(name, sizeof name, "in.x%s", suffix);
    ASSERT_OK(mhla_safetensors_need(&s, f, name));
    batch b = {.x = golden(f, name, ""), .B = s->shape[0]};
    memcpy(b.shape, s->shape, sizeof b.shape);
    snprintf(name, sizeof name, "in.t%s", suffix);
    b.t = golden(f, name, "");
    snprintf(name, sizeof name, "in.label%s", suffix);
    float *labels = golden(f, name, "");
    b.labels = new_bytes((size_t)b.B * sizeof *b.labels);
    for (int64_t i = 0; i < b.B; i++) b.labels[i] = (int32_t)labels[i];
    free(labels);
    return b;
}

static void drop_batch(batch *b) {
    free(b->x);
    free(b->t);
    free(b->labels);
}

/* ---- Whole models ---- */

static void check_model(const char *name, int attention) {
    mhla_safetensors *f = open_golden(name);
    json_t *tree = said(f);
    const mhla_dit_config c = configure(tree, attention);
    mhla_dit *m = model_of(&c, f);
    mhla_params *ps = mhla_dit_params(m);
    batch b = read_batch(f, "");
    float *want = golden(f, "out.y", ""), *dy = golden(f, "dout.y", ""), *dx = golden(f, "grad.in.x", "");
    for (int recompute = 0; recompute < 2; recompute++) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *x = mhla_nn_variable(t, b.x, b.shape, 4);
        mhla_tensor *y = mhla_dit_forward(t, m, &(mhla_dit_run){.recompute = recompute}, x, b.t, b.labels);
        ASSERT_OK(mhla_tape_status(t));
        const int64_t n = y->rows * y->cols;
        ASSERT_CLOSE(y->data, want, n, OUT, "%s", name);
        ASSERT_OK(mhla_tape_backward_from(t, y, dy));
        ASSERT_CLOSE(mhla_tensor_grad(x), dx, x->rows * x->cols, GRAD, "%s", name);
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            if (p->flags & MHLA_PARAM_FROZEN) {
                assert_false(p->has_grad);
                continue;
            }
            assert_true(p->has_grad);
            float *g = golden(f, "grad.param.", p->name);
            ASSERT_CLOSE(p->grad, g, p->count, GRAD, "%s: %s", name, p->name);
            free(g);
        }
        mhla_params_clear_grads(ps);
        mhla_tape_free(t);
    }
    free(want);
    free(dy);
    free(dx);
    drop_batch(&b);
    mhla_dit_free(m);
    json_decref(tree);
    mhla_safetensors_close(f);
}

static void with_mhla(void **state) {
    (void)state;
    check_model("05_dit_model/dit_mhla", MHLA_ATTENTION_MHLA);
}
static void with_cpe(void **state) {
    (void)state;
    check_model("05_dit_model/dit_mhla_cpe", MHLA_ATTENTION_MHLA);
}
static void with_qk_norm(void **state) {
    (void)state;
    check_model("05_dit_model/dit_mhla_cos_qknorm", MHLA_ATTENTION_MHLA);
}
static void with_softmax(void **state) {
    (void)state;
    check_model("05_dit_model/dit_softmax", MHLA_ATTENTION_SOFTMAX);
}

/* ---- Guidance: unguided answers, and what is made of them ---- */

static void check_guided(const char *name, int attention) {
    char file[128];
    snprintf(file, sizeof file, "%s_cfg", name);
    mhla_safetensors *f = open_golden(file), *parameters = open_golden(name);
    json_t *tree = said(f);
    const mhla_dit_config c = configure(tree, attention);
    mhla_dit *m = model_of(&c, parameters);
    batch b = read_batch(f, "");
    float *plain = golden(f, "out.plain", ""), *guided = golden(f, "out.y", "");
    const float scale = (float)json_number_value(json_object_get(tree, "cfg_scale"));
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *y = mhla_dit_forward(t, m, &(mhla_dit_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
    ASSERT_OK(mhla_tape_status(t));
    const int64_t half = b.B / 2, each = y->rows * y->cols / b.B, noise = each / 2;
    float *mine = new_poisoned(b.B * each);
    /* the first half of the batch goes through twice, the second time with the labels of the other half */
    memcpy(b.x + half * each / 2, b.x, (size_t)(half * each / 2) * sizeof(float));
    ASSERT_CLOSE(y->data, plain, b.B * each, OUT, "%s", file);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    y = mhla_dit_forward(t, m, &(mhla_dit_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
    ASSERT_OK(mhla_tape_status(t));
    for (int64_t i = 0; i < b.B * each; i++) {
        const int64_t s = i / each, e = i % each;
        const float with = y->data[s % half * each + e], without = y->data[(half + s % half) * each + e];
        mine[i] = e < noise ? without + scale * (with - without) : y->data[i];
    }
    ASSERT_CLOSE(mine, guided, b.B * each, OUT, "%s", file);
    free(mine);
    free(plain);
    free(guided);
    drop_batch(&b);
    mhla_tape_free(t);
    mhla_dit_free(m);
    json_decref(tree);
    mhla_safetensors_close(f);
    mhla_safetensors_close(parameters);
}

static void guided(void **state) {
    (void)state;
    check_guided("05_dit_model/dit_mhla", MHLA_ATTENTION_MHLA);
    check_guided("05_dit_model/dit_mhla_cpe", MHLA_ATTENTION_MHLA);
    check_guided("05_dit_model/dit_softmax", MHLA_ATTENTION_SOFTMAX);
}

/* ---- Tables ---- */

static void tables(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int dim, grid;
    } known[] = {{"out.pos_embed_d384_g16", 384, 16}, {"out.pos_embed_d48_g4", 48, 4}, {"out.pos_embed_d64_g8", 64, 8}};
    mhla_safetensors *f = open_golden("05_dit_model/dit_embeddings");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_dit_config c;
        ASSERT_OK(mhla_dit_preset(&c, "dit_micro", MHLA_STRUCTURE_EQUAL, MHLA_ATTENTION_LINEAR, MHLA_DIT_LINEAR));
        c.dim = known[i].dim;
        c.heads = 4;
        c.depth = 1;
        c.image[0] = c.image[1] = 2 * known[i].grid;
        mhla_dit *m;
        ASSERT_OK(mhla_dit_create(&m, &c));
        const mhla_param *p = mhla_params_find(mhla_dit_params(m), "pos_embed");
        float *want = golden(f, known[i].name, "");
        ASSERT_CLOSE(p->data, want, p->count, 1e-7, "%s", known[i].name);
        free(want);
        mhla_dit_free(m);
    }
    mhla_safetensors_close(f);
}

/* ---- Names, and the real size ---- */

static void check_names(const char *list, const char *model, int cpe) {
    char path[512], line[256], name[160], shape[64], file[64];
    snprintf(file, sizeof file, "names/%s.txt", list);
    mhla_dit_config c;
    ASSERT_OK(mhla_dit_preset(&c, model, MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_MHLA, MHLA_DIT_LINEAR));
    if (cpe) c.cpe = MHLA_DIT_CPE_FOLDED;
    FILE *f = fopen(golden_path(path, file), "r");
    assert_non_null(f);
    mhla_dit *m;
    ASSERT_OK(mhla_dit_create(&m, &c));
    const mhla_params *ps = mhla_dit_params(m);
    int i = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%159s %63s", name, shape), 2);
        assert_in_range(i, 0, mhla_params_count(ps) - 1);
        const mhla_param *p = mhla_params_at(ps, i++);
        assert_string_equal(p->name, name);
        const char *at = shape;
        for (int a = 0; a < p->dims; a++) {
            char *end;
            assert_int_equal(strtoll(at, &end, 10), p->shape[a]);
            at = end + (*end == 'x');
        }
        assert_int_equal(*at, '\0');
    }
    assert_int_equal(i, mhla_params_count(ps));
    mhla_dit_free(m);
    fclose(f);
}

static void names(void **state) {
    (void)state;
    check_names("DiT-S-2_mhla", "dit_s_2", 0);
    check_names("DiT-S-2_mhla_cpe", "dit_s_2", 1);
    check_names("DiT-B-2_mhla", "dit_b_2", 0);
}

/* The goldens' README: parameter j, element i. */
static void fill_formula(mhla_param *p, int j) {
    const size_t n = strlen(p->name);
    const int bias = n > 4 && strcmp(p->name + n - 4, "bias") == 0;
    float base = 0.0f, amp = (float)sqrt(3.0 / ((double)p->count / (double)p->shape[0]));
    if (p->flags & MHLA_PARAM_MIX) {
        base = (float)(1.0 / (double)p->shape[0]);
        amp = (float)(0.5 / (double)p->shape[0]);
    } else if (bias) {
        amp = 0.1f;
    } else if (p->dims == 1) {
        base = 1.0f;
        amp = 0.1f;
    }
    for (int64_t i = 0; i < p->count; i++) {
        rng r = {((uint64_t)j << 32) * 0x9E3779B97F4A7C15u + (uint64_t)i * 0x9E3779B97F4A7C15u};
        volatile float product = amp * rng_signed(&r);
        p->data[i] = base + product;
    }
    mhla_param_touch(p);
}

static void full_size(void **state) {
    (void)state;
    mhla_safetensors *f = open_golden("05_dit_model/full_dit_s_2");
    json_t *tree = said(f);
    mhla_dit_config c;
    ASSERT_OK(mhla_dit_preset(&c, "dit_s_2", MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_MHLA, MHLA_DIT_LINEAR));
    mhla_dit *m;
    ASSERT_OK(mhla_dit_create(&m, &c));
    mhla_params *ps = mhla_dit_params(m);
    assert_int_equal(mhla_params_elements(ps), number(tree, "params"));
    for (int i = 0; i < mhla_params_count(ps); i++)
        if (strcmp(mhla_params_at(ps, i)->name, "pos_embed") != 0) fill_formula(mhla_params_at(ps, i), i);
    batch b = read_batch(f, "");
    float *want = golden(f, "out.y", "");
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *y = mhla_dit_forward(t, m, &(mhla_dit_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
    ASSERT_OK(mhla_tape_status(t));
    ASSERT_CLOSE(y->data, want, y->rows * y->cols, OUT, "full_dit_s_2");
    assert_int_equal(mhla_dit_multiply_adds(&c, 32, 32, 0), (int64_t)json_number_value(json_object_get(tree, "mac")));
    free(want);
    drop_batch(&b);
    mhla_tape_free(t);
    mhla_dit_free(m);
    json_decref(tree);
    mhla_safetensors_close(f);
}

/* ---- Updates and their average ---- */

static void updates(void **state) {
    (void)state;
    mhla_safetensors *f = open_golden("09_optimiser/dit_adamw_ema");
    json_t *tree = said(f);
    const mhla_dit_config c = configure(json_object_get(tree, "config"), MHLA_ATTENTION_MHLA);
    mhla_dit *m = model_of(&c, f);
    mhla_params *ps = mhla_dit_params(m);
    mhla_tape *t;
    mhla_optim *optim;
    mhla_ema *ema;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_optim_create(&optim, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_ADAMW}));
    ASSERT_OK(mhla_ema_create(&ema, ps, json_number_value(json_object_get(tree, "ema_decay")), 0));
    for (int step = 0; step < 3; step++) {
        char suffix[8], name[32];
        snprintf(suffix, sizeof suffix, ".%d", step);
        snprintf(name, sizeof name, "in.target.%d", step);
        batch b = read_batch(f, suffix);
        float *target = golden(f, name, "");
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *y = mhla_dit_forward(t, m, &(mhla_dit_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
        mhla_tensor *loss = mhla_nn_mse(t, y, target);
        ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
        snprintf(name, sizeof name, "out.loss.%d", step);
        float *want = golden(f, name, "");
        ASSERT_CLOSE(loss->data, want, 1, OUT, "loss %d", step);
        free(want);
        ASSERT_OK(mhla_optim_step(optim, json_number_value(json_object_get(tree, "lr")), NULL, NULL));
        mhla_ema_update(ema, NULL);
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            char full[128];
            snprintf(full, sizeof full, "out.step%d.%s", step + 1, p->name);
            if (mhla_safetensors_find(f, full)) {
                want = golden(f, full, "");
                ASSERT_CLOSE(p->data, want, p->count, OUT, "%s", full);
                free(want);
            }
            snprintf(full, sizeof full, "out.ema%d.%s", step + 1, p->name);
            if (mhla_safetensors_find(f, full)) {
                want = golden(f, full, "");
                ASSERT_CLOSE(mhla_ema_data(ema, i), want, p->count, OUT, "%s", full);
                free(want);
            }
        }
        free(target);
        drop_batch(&b);
    }
    mhla_ema_free(ema);
    mhla_optim_free(optim);
    mhla_tape_free(t);
    mhla_dit_free(m);
    json_decref(tree);
    mhla_safetensors_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_mhla),    cmocka_unit_test(with_cpe),  cmocka_unit_test(with_qk_norm),
        cmocka_unit_test(with_softmax), cmocka_unit_test(guided),    cmocka_unit_test(tables),
        cmocka_unit_test(names),        cmocka_unit_test(full_size), cmocka_unit_test(updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
