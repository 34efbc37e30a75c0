/* DiT against the published code: outputs and gradients of small models, one of real size, the attention alone, the tables of
 * times and positions, the lists of names, three updates with their average. */
#include "goldens.h"

#include "models/denoisers/dit.h"
#include "models/model.h"
#include "nn/optim.h"

static const double OUT = 1e-5, GRAD = 2e-5;

/* ---- A model of what a file says ---- */

static int64_t number(const json_t *tree, const char *key) { return json_integer_value(json_object_get(tree, key)); }

static int attention_of(const json_t *said) {
    const char *name = json_string_value(json_object_get(said, "case"));
    return name && strstr(name, "softmax") ? MHLA_GRID_SOFTMAX : MHLA_GRID_MHLA;
}

/* The image is as large as what goes in; as many blocks as the mixing matrix has rows lie in a square, unless the file says how
 * they lie; heads and classes are said; all other sizes are those of the parameters, and what `f` has parameters for is there. */
static mhla_frame_config configure(const json_t *said, const mhla_safetensors *f, int attention) {
    const json_t *blocks = json_object_get(said, "blocks");
    mhla_frame_config c;
    ASSERT_OK(mhla_dit_preset(&c, "dit_s_2", MHLA_STRUCTURE_RELEASED, attention, MHLA_PROCESS_LINEAR));
    const mhla_stored *patches, *answer, *hidden, *labels, *lepe, *mix, *x = mhla_safetensors_find(f, "in.x");
    if (x == NULL) ASSERT_OK(mhla_safetensors_need(&x, f, "in.x.0"));
    mix = mhla_safetensors_find(f, "param.blocks.0.attn.piece_attn.conv.weight");
    for (int a = 0; a < 2; a++) {
        c.image[a] = (int)x->shape[2 + a];
        if (mix) c.attn.blocks[a] = (int)sqrt((double)mix->shape[0]);
        if (blocks) c.attn.blocks[a] = (int)json_integer_value(json_array_get(blocks, (size_t)a));
    }
    c.attn.heads = (int)number(said, "heads");
    c.classes = (int)number(said, "classes");
    ASSERT_OK(mhla_safetensors_need(&patches, f, "param.x_embedder.proj.weight"));
    ASSERT_OK(mhla_safetensors_need(&answer, f, "param.final_layer.linear.weight"));
    ASSERT_OK(mhla_safetensors_need(&hidden, f, "param.blocks.0.mlp.fc1.weight"));
    ASSERT_OK(mhla_safetensors_need(&labels, f, "param.y_embedder.embedding_table.weight"));
    lepe = mhla_safetensors_find(f, "param.blocks.0.attn.lepe.weight");
    c.attn.dim = (int)patches->shape[0];
    c.channels = (int)patches->shape[1];
    c.patch = (int)patches->shape[3];
    c.depth = 0;
    for (char name[48];
         snprintf(name, sizeof name, "param.blocks.%d.mlp.fc1.weight", c.depth), mhla_safetensors_find(f, name);)
        c.depth++;
    c.learn_sigma = answer->shape[0] == 2L * c.channels * c.patch * c.patch;
    c.mlp_ratio = (double)hidden->shape[0] / (double)hidden->shape[1];
    c.null_label = labels->shape[0] > c.classes;
    if (lepe) c.attn.lepe = (int)lepe->shape[3];
    c.attn.qkv_bias = mhla_safetensors_find(f, "param.blocks.0.attn.to_qkv.bias") ||
                      mhla_safetensors_find(f, "param.blocks.0.attn.qkv.bias");
    c.attn.qk_norm = mhla_safetensors_find(f, "param.blocks.0.attn.q_norm.weight") != NULL;
    if (mhla_safetensors_find(f, "param.blocks.0.dw_conv.weight")) c.cpe = MHLA_CPE_FOLDED;
    return c;
}

static mhla_frame *model_of(const mhla_frame_config *c, const mhla_safetensors *f) {
    mhla_frame *m;
    ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, c));
    mhla_params *ps = mhla_frame_params(m);
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

static void check_model(const char *name, const mhla_safetensors *f, const json_t *said) {
    const mhla_frame_config c = configure(said, f, attention_of(said));
    mhla_frame *m = model_of(&c, f);
    mhla_params *ps = mhla_frame_params(m);
    batch b = read_batch(f, "");
    float *want = golden(f, "out.y", ""), *dy = golden(f, "dout.y", ""), *dx = golden(f, "grad.in.x", "");
    for (int recompute = 0; recompute < 2; recompute++) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *x = mhla_nn_variable(t, b.x, b.shape, 4);
        mhla_tensor *y = mhla_frame_forward(t, m, &(mhla_network_run){.recompute = recompute}, x, b.t, b.labels);
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
            char full[160];
            snprintf(full, sizeof full, "grad.param.%s", p->name);
            if (!mhla_safetensors_find(f, full)) continue;
            float *g = golden(f, full, "");
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
    mhla_frame_free(m);
}

static void with_mhla(void **state) {
    (void)state;
    each_golden("case", "dit-mhla-model", check_model);
}
static void with_softmax(void **state) {
    (void)state;
    each_golden("case", "dit-softmax-model", check_model);
}

/* ---- Guidance: unguided answers, and what is made of them ---- */

/* Says the same of its model, but for what belongs to guidance. */
static int same_model(const json_t *a, const json_t *b) {
    static const char *const own[] = {"B", "case", "cfg_scale", "note", "f32_vs_f64_maxabs", "f32_vs_f64_rel"};
    json_t *x = json_copy((json_t *)(uintptr_t)a), *y = json_copy((json_t *)(uintptr_t)b);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) json_object_del(x, own[i]), json_object_del(y, own[i]);
    const int same = json_equal(x, y) && attention_of(a) == attention_of(b);
    json_decref(x);
    json_decref(y);
    return same;
}

/* The file beside `path` that has the parameters of its model; NULL if there is none. */
static mhla_safetensors *parameters_of(const char *path, const json_t *said) {
    char folder[1024];
    golden_list list = {0};
    mhla_safetensors *found = NULL;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    golden_collect(&list, folder, ".safetensors");
    for (int i = 0; i < list.count && found == NULL; i++) {
        ASSERT_OK(mhla_safetensors_open(&found, list.paths[i]));
        json_t *other = golden_said(found);
        const int fits = mhla_safetensors_find(found, "param.pos_embed") && same_model(said, other);
        json_decref(other);
        if (fits) break;
        mhla_safetensors_close(found);
        found = NULL;
    }
    golden_list_free(&list);
    return found;
}

static void check_guided(const char *file, const mhla_safetensors *f, const json_t *said) {
    mhla_safetensors *parameters = parameters_of(file, said);
    if (parameters == NULL) fail_msg("%s: no file beside it has its parameters", file);
    const mhla_frame_config c = configure(said, parameters, attention_of(said));
    mhla_frame *m = model_of(&c, parameters);
    batch b = read_batch(f, "");
    float *plain = golden(f, "out.plain", ""), *guided = golden(f, "out.y", "");
    const float scale = (float)json_number_value(json_object_get(said, "cfg_scale"));
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *y = mhla_frame_forward(t, m, &(mhla_network_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
    ASSERT_OK(mhla_tape_status(t));
    const int64_t half = b.B / 2, each = y->rows * y->cols / b.B, noise = b.shape[1] * b.shape[2] * b.shape[3];
    float *mine = new_poisoned(b.B * each);
    /* the first half of the batch goes through twice, the second time with the labels of the other half */
    memcpy(b.x + half * noise, b.x, (size_t)(half * noise) * sizeof(float));
    ASSERT_CLOSE(y->data, plain, b.B * each, OUT, "%s", file);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    y = mhla_frame_forward(t, m, &(mhla_network_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
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
    mhla_frame_free(m);
    mhla_safetensors_close(parameters);
}

static void guided(void **state) {
    (void)state;
    each_golden("case", "dit-mhla-model-cfg", check_guided);
}
static void guided_softmax(void **state) {
    (void)state;
    each_golden("case", "dit-softmax-model-cfg", check_guided);
}

/* ---- Tables: pos_embed_d<dim>_g<side> or g<rows>x<columns> ---- */

static void check_tables(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)path, (void)said;
    int found = 0;
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
        const mhla_stored *s = mhla_safetensors_at(f, i);
        int dim, grid[2];
        const int sizes = sscanf(s->name, "out.pos_embed_d%d_g%dx%d", &dim, &grid[0], &grid[1]);
        if (sizes < 2) continue;
        if (sizes == 2) grid[1] = grid[0];
        mhla_frame_config c;
        ASSERT_OK(mhla_dit_preset(&c, "dit_micro", MHLA_STRUCTURE_EQUAL, MHLA_GRID_LINEAR, MHLA_PROCESS_LINEAR));
        c.attn.dim = dim;
        for (c.attn.heads = 1; dim % c.attn.heads || dim / c.attn.heads > 128;) c.attn.heads++;
        c.depth = 1;
        for (int a = 0; a < 2; a++) c.image[a] = c.patch * grid[a];
        mhla_frame *m;
        ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
        const mhla_param *p = mhla_params_find(mhla_frame_params(m), "pos_embed");
        assert_int_equal(p->count, s->count);
        float *want = golden(f, s->name, "");
        ASSERT_CLOSE(p->data, want, p->count, 1e-7, "%s", s->name);
        free(want);
        mhla_frame_free(m);
        found++;
    }
    assert_true(found > 0);
}

static void tables(void **state) {
    (void)state;
    each_golden("case", "dit-embeddings", check_tables);
}

/* ---- Names, and the real size ---- */

static int check_names(const char *list, const char *model, int cpe) {
    char path[512], line[256], name[160], shape[64], file[64];
    snprintf(file, sizeof file, "names/%s.txt", list);
    mhla_frame_config c;
    ASSERT_OK(mhla_dit_preset(&c, model, MHLA_STRUCTURE_RELEASED, MHLA_GRID_MHLA, MHLA_PROCESS_LINEAR));
    if (cpe) c.cpe = MHLA_CPE_FOLDED;
    if (!golden_there(path, file)) return 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    mhla_frame *m;
    ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
    const mhla_params *ps = mhla_frame_params(m);
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
    mhla_frame_free(m);
    fclose(f);
    return 1;
}

static void names(void **state) {
    (void)state;
    int found = check_names("DiT-S-2_mhla", "dit_s_2", 0);
    found += check_names("DiT-S-2_mhla_cpe", "dit_s_2", 1);
    found += check_names("DiT-B-2_mhla", "dit_b_2", 0);
    if (found) return;
    print_message("[   SKIP   ] no list of names: set MHLA_GOLDENS\n");
    skip();
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

/* Does a list of names, a file among the goldens, have this in it? */
static int list_has(const char *list, const char *part) {
    char path[512], line[256];
    FILE *f = list && golden_there(path, list) ? fopen(path, "r") : NULL;
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) found = *line != '#' && strstr(line, part) != NULL;
    if (f) fclose(f);
    return found;
}

static void check_full(const char *path, const mhla_safetensors *f, const json_t *said) {
    mhla_frame_config c;
    ASSERT_OK(mhla_dit_preset(&c, "dit_s_2", MHLA_STRUCTURE_RELEASED, MHLA_GRID_MHLA, MHLA_PROCESS_LINEAR));
    batch b = read_batch(f, "");
    const int inner = (int)sqrt((double)number(said, "block_size"));
    for (int a = 0; a < 2; a++) {
        c.image[a] = (int)b.shape[2 + a];
        if (inner) c.attn.blocks[a] = c.image[a] / c.patch / inner;
    }
    if (list_has(json_string_value(json_object_get(said, "names")), "dw_conv.weight")) c.cpe = MHLA_CPE_FOLDED;
    mhla_frame *m;
    ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
    mhla_params *ps = mhla_frame_params(m);
    assert_int_equal(mhla_params_elements(ps), number(said, "params"));
    for (int i = 0; i < mhla_params_count(ps); i++)
        if (strcmp(mhla_params_at(ps, i)->name, "pos_embed") != 0) fill_formula(mhla_params_at(ps, i), i);
    float *want = golden(f, "out.y", "");
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *y = mhla_frame_forward(t, m, &(mhla_network_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
    ASSERT_OK(mhla_tape_status(t));
    ASSERT_CLOSE(y->data, want, y->rows * y->cols, OUT, "%s", path);
    const json_t *cost = json_object_get(said, "mac");
    if (cost)
        assert_int_equal(mhla_frame_multiply_adds(&mhla_dit_kind, &c, (int)b.shape[2], (int)b.shape[3], 0),
                         (int64_t)json_number_value(cost));
    free(want);
    drop_batch(&b);
    mhla_tape_free(t);
    mhla_frame_free(m);
}

static void full_size(void **state) {
    (void)state;
    each_golden("case", "DiT-S/2 full size*", check_full);
}

/* ---- Updates and their average ---- */

static void check_updates(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)path;
    const mhla_frame_config c = configure(json_object_get(said, "config"), f, MHLA_GRID_MHLA);
    mhla_frame *m = model_of(&c, f);
    const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW,
                                   .weight_decay = json_number_value(json_object_get(said, "weight_decay")),
                                   .beta1 = json_number_value(json_array_get(json_object_get(said, "betas"), 0)),
                                   .beta2 = json_number_value(json_array_get(json_object_get(said, "betas"), 1)),
                                   .eps = json_number_value(json_object_get(said, "eps"))};
    mhla_params *ps = mhla_frame_params(m);
    mhla_tape *t;
    mhla_optim *optim;
    mhla_ema *ema;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_optim_create(&optim, ps, &adamw));
    ASSERT_OK(mhla_ema_create(&ema, ps, json_number_value(json_object_get(said, "ema_decay")), 0));
    for (int step = 0;; step++) {
        char suffix[16], name[32];
        snprintf(suffix, sizeof suffix, ".%d", step);
        snprintf(name, sizeof name, "in.target.%d", step);
        if (!mhla_safetensors_find(f, name)) break;
        batch b = read_batch(f, suffix);
        float *target = golden(f, name, "");
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *y =
            mhla_frame_forward(t, m, &(mhla_network_run){0}, mhla_nn_input(t, b.x, b.shape, 4), b.t, b.labels);
        mhla_tensor *loss = mhla_nn_mse(t, y, target);
        ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
        snprintf(name, sizeof name, "out.loss.%d", step);
        float *want = golden(f, name, "");
        ASSERT_CLOSE(loss->data, want, 1, OUT, "loss %d", step);
        free(want);
        ASSERT_OK(mhla_optim_step(optim, json_number_value(json_object_get(said, "lr")), NULL, NULL));
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
    mhla_frame_free(m);
}

static void updates(void **state) {
    (void)state;
    each_golden("case", "optimiser-dit", check_updates);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_mhla),      cmocka_unit_test(with_softmax), cmocka_unit_test(guided),
        cmocka_unit_test(guided_softmax), cmocka_unit_test(tables),       cmocka_unit_test(names),
        cmocka_unit_test(full_size),      cmocka_unit_test(updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
