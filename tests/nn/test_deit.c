/* DeiT: counts and names of the published models, configs that make sense and that do not, gradients of a whole small
 * model against finite differences for every attention, files there and back. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "models/model.h"

static mhla_deit_config configure(const char *model, int structure, int attention) {
    mhla_deit_config c;
    assert_int_equal(mhla_deit_preset(&c, model, structure, attention), MHLA_OK);
    return c;
}

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention;
        int64_t parameters, tensors, multiply_adds, layers;
    } known[] = {
        {"deit_tiny", MHLA_ATTENTION_MHLA, 5793832, 223, 1525624320, 0},
        {"deit_small", MHLA_ATTENTION_MHLA, 22200424, 223, 0, 0},
        {"deit_base", MHLA_ATTENTION_MHLA, 86864104, 223, 0, 0},
        {"deit_small", MHLA_ATTENTION_LINEAR, 22035688, 138, 0, 4220},
        {"deit_base", MHLA_ATTENTION_LINEAR, 86537704, 138, 0, 0},
        {"deit_small", MHLA_ATTENTION_SOFTMAX, 22050664, 152, 0, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const mhla_deit_config c = configure(known[i].model, MHLA_STRUCTURE_RELEASED, known[i].attention);
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        assert_int_equal(mhla_params_elements(mhla_deit_params(m)), known[i].parameters);
        assert_int_equal(mhla_params_count(mhla_deit_params(m)), known[i].tensors);
        if (known[i].multiply_adds) assert_int_equal(mhla_deit_multiply_adds(&c, 0), known[i].multiply_adds);
        if (known[i].layers) assert_int_equal((mhla_deit_multiply_adds(&c, 1) + 500000) / 1000000, known[i].layers);
        mhla_deit_free(m);
    }
    /* the paper's 1.1 and 4.2 G, here with LePE */
    mhla_deit_config c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_MHLA);
    assert_in_range(mhla_deit_multiply_adds(&c, 1), 1070000000, 1100000000);
}

static void names(void **state) {
    (void)state;
    static const char *const mhla[] = {
        "pos_embed",
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
        "blocks.0.norm1.weight",
        "blocks.0.norm1.bias",
        "blocks.0.attn.norm.weight",
        "blocks.0.attn.norm.bias",
        "blocks.0.attn.to_qkv.weight",
        "blocks.0.attn.q_norm.weight",
        "blocks.0.attn.k_norm.weight",
        "blocks.0.attn.lepe.weight",
        "blocks.0.attn.lepe.bias",
        "blocks.0.attn.piece_attn.conv.weight",
        "blocks.0.attn.to_out.0.weight",
        "blocks.0.attn.to_out.0.bias",
        "blocks.0.norm2.weight",
        "blocks.0.norm2.bias",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc1.bias",
        "blocks.0.mlp.fc2.weight",
        "blocks.0.mlp.fc2.bias",
        "blocks.1.norm1.weight",
    };
    static const char *const timm[] = {"cls_token", "pos_embed", "patch_embed.proj.weight"};
    mhla_deit_config c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_MHLA);
    mhla_deit *m;
    assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
    for (size_t i = 0; i < sizeof mhla / sizeof *mhla; i++)
        assert_string_equal(mhla_params_at(mhla_deit_params(m), (int)i)->name, mhla[i]);
    assert_int_equal(mhla_params_at(mhla_deit_params(m), 12)->shape[0], 16);
    mhla_deit_free(m);
    c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_SOFTMAX);
    assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
    for (size_t i = 0; i < 3; i++) assert_string_equal(mhla_params_at(mhla_deit_params(m), (int)i)->name, timm[i]);
    assert_non_null(mhla_params_find(mhla_deit_params(m), "blocks.11.attn.qkv.bias"));
    assert_non_null(mhla_params_find(mhla_deit_params(m), "norm.weight"));
    assert_null(mhla_params_find(mhla_deit_params(m), "fc_norm.weight"));
    assert_int_equal(mhla_params_find(mhla_deit_params(m), "pos_embed")->shape[1], 197);
    mhla_deit_free(m);
}

/* Equal surroundings: but for the mixing matrices the three have the same number of parameters. */
static void equal_surroundings(void **state) {
    (void)state;
    int64_t n[3];
    for (int a = 0; a < 3; a++) {
        const mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, a);
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        n[a] = mhla_params_elements(mhla_deit_params(m));
        mhla_deit_free(m);
    }
    assert_int_equal(n[1], n[2]);
    assert_int_equal(n[0], n[1] + 4 * 16); /* depth 4, M = 4 */
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"patch=5", "no multiple of patch 5"},
        {"heads=3", "dim 64 is no multiple of heads 3"},
        {"blocks=9", "at most one block per patch"},
        {"lepe=4", "odd"},
        {"class_token=true", "class_token"},
        {"attention=sofmax", "softmax"},
        {"atention=softmax", "attention"},
        {"dim=many", "integer"},
        {"image=28,28,28", "3 numbers"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        assert_int_not_equal(mhla_model_create(&m, "deit_nano", &wrong[i].setting, 1, 0), MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
    mhla_model *m;
    assert_int_not_equal(mhla_model_create(&m, "deit_huge", NULL, 0, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "deit_tiny"));
}

static void config_round_trip(void **state) {
    (void)state;
    for (int structure = 0; structure < 2; structure++)
        for (int attention = 0; attention < 3; attention++) {
            mhla_deit_config c = configure("deit_small", structure, attention), back;
            c.image[0] = 96;
            c.padding[1] = 16;
            c.crop = 0.875;
            json_t *tree = mhla_deit_config_tree(&c);
            assert_non_null(tree);
            assert_int_equal(mhla_deit_config_read(&back, tree, "config.json"), MHLA_OK);
            assert_memory_equal(&c, &back, sizeof c);
            json_decref(tree);
        }
}

/* ---- A whole model against finite differences ---- */

static mhla_deit_config small(int attention, int variant) {
    mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, attention);
    c.image[0] = 12;
    c.image[1] = 8;
    c.padding[0] = c.padding[1] = 2;
    c.patch = 4;
    c.channels = 2;
    c.dim = 12;
    c.heads = 2;
    c.depth = 2;
    c.classes = 5;
    c.mlp_ratio = 2.0;
    if (variant == 1) {
        c.cpe = 3;
        c.lepe = 0;
        c.qkv_bias = 1;
        c.norm = MHLA_NORM_RMS;
        c.class_token = attention != MHLA_ATTENTION_MHLA;
    }
    if (variant == 2) {
        c.inner_norm = 1;
        c.class_token = attention != MHLA_ATTENTION_MHLA;
        if (attention == MHLA_ATTENTION_MHLA) c.denominator = MHLA_DEN_RELEASED;
        if (attention == MHLA_ATTENTION_MHLA) c.blocks[1] = 3;
    }
    return c;
}

static double loss_of(mhla_tape *t, mhla_deit *m, const float *x, const int32_t *labels, int B, int record) {
    const mhla_deit_config *c = mhla_deit_config_of(m);
    mhla_tape_begin(t, record ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(B, c->channels, c->image[0], c->image[1]));
    mhla_tensor *loss = mhla_nn_cross_entropy(
        t, mhla_deit_forward(t, m, &(mhla_deit_run){.recompute = record == 2}, in), labels, NULL, 0.1f, NULL);
    if (record) assert_int_equal(mhla_tape_backward(t, loss, 1.0f), MHLA_OK);
    assert_int_equal(mhla_tape_status(t), MHLA_OK);
    return (double)loss->data[0];
}

static void gradients(void **state) {
    (void)state;
    enum { B = 2 };
    const int32_t labels[B] = {3, 1};
    for (int attention = 0; attention < 3; attention++)
        for (int variant = 0; variant < 3; variant++) {
            const mhla_deit_config c = small(attention, variant);
            rng r = {(uint64_t)(10 * attention + variant)};
            mhla_deit *m;
            mhla_tape *t;
            assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
            assert_int_equal(mhla_tape_create(&t, NULL), MHLA_OK);
            assert_int_equal(mhla_deit_init(m, 7), MHLA_OK);
            mhla_params *ps = mhla_deit_params(m);
            for (int i = 0; i < mhla_params_count(ps); i++) { /* nothing silent: no zeros, no ones */
                mhla_param *p = mhla_params_at(ps, i);
                const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
                for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
                mhla_param_touch(p);
            }
            float *x = new_random(&r, (int64_t)B * c.channels * c.image[0] * c.image[1]);
            loss_of(t, m, x, labels, B, 1);
            float **kept = new_bytes((size_t)mhla_params_count(ps) * sizeof *kept);
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                assert_true(p->has_grad);
                kept[i] = new_bytes((size_t)p->count * sizeof(float));
                memcpy(kept[i], p->grad, (size_t)p->count * sizeof(float));
            }
            /* recomputed blocks: the same bits */
            mhla_params_clear_grads(ps);
            loss_of(t, m, x, labels, B, 2);
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                assert_memory_equal(kept[i], p->grad, (size_t)p->count * sizeof(float));
            }
            /* along a random direction of each parameter: (loss(p + h d) - loss(p - h d)) / 2h = grad . d. Relu has kinks,
             * which vanish with h, and float32 has noise, which grows: one h must do, in two of three directions. */
            for (int i = 0; i < mhla_params_count(ps); i++) {
                mhla_param *p = mhla_params_at(ps, i);
                float *was = new_bytes((size_t)p->count * sizeof(float));
                memcpy(was, p->data, (size_t)p->count * sizeof(float));
                double along = NAN, found = NAN;
                int fits = 0;
                for (int direction = 0; direction < 3; direction++) {
                    float *d = new_random(&r, p->count);
                    double norm = 0.0, two[2];
                    int fit = 0;
                    along = 0.0;
                    for (int64_t k = 0; k < p->count; k++) {
                        along += (double)kept[i][k] * (double)d[k];
                        norm += (double)d[k] * (double)d[k];
                    }
                    for (double h = 8e-3 / sqrt(norm); h > 2e-4 / sqrt(norm) && !fit; h *= 0.5) {
                        for (int s = 0; s < 2; s++) {
                            for (int64_t k = 0; k < p->count; k++)
                                p->data[k] = (float)((double)was[k] + (s ? -h : h) * (double)d[k]);
                            mhla_param_touch(p);
                            two[s] = loss_of(t, m, x, labels, B, 0);
                        }
                        found = (two[0] - two[1]) / (2.0 * h);
                        fit = fabs(found - along) <= 0.01 * fabs(along) + 1e-4 * sqrt(norm);
                    }
                    fits += fit;
                    free(d);
                }
                memcpy(p->data, was, (size_t)p->count * sizeof(float));
                mhla_param_touch(p);
                if (fits < 2)
                    fail_msg("attention %d, variant %d, %s: %g, by differences %g", attention, variant, p->name, along,
                             found);
                free(was);
            }
            for (int i = 0; i < mhla_params_count(ps); i++) free(kept[i]);
            free(kept);
            free(x);
            mhla_tape_free(t);
            mhla_deit_free(m);
        }
}

/* An image's logits do not depend on what else is in the batch. */
static void batches(void **state) {
    (void)state;
    const char *const settings[] = {"classes=7"};
    mhla_model *m;
    rng r = {5};
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 1, 3), MHLA_OK);
    enum { N = 41, PIXELS = 3 * 28 * 28 };
    float *x = new_random(&r, (int64_t)N * PIXELS), *all = new_poisoned(N * 7), one[7];
    assert_int_equal(mhla_model_forward(m, all, x, N), MHLA_OK);
    for (int i = 0; i < N; i += 8) {
        assert_int_equal(mhla_model_forward(m, one, x + (int64_t)i * PIXELS, 1), MHLA_OK);
        assert_memory_equal(one, all + 7 * i, sizeof one);
    }
    free(x);
    free(all);
    mhla_model_free(m);
}

/* ---- Files ---- */

static char folder[64];

static void files(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_deit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char a[128], path[256];
    snprintf(a, sizeof a, "%s/a", folder);
    const char *const settings[] = {"classes=4", "depth=2"};
    mhla_model *m, *back;
    rng r = {9};
    float *x = new_random(&r, 2 * 3 * 28 * 28), y[8], z[8];
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 2, 3), MHLA_OK);
    assert_int_equal(mhla_model_forward(m, y, x, 2), MHLA_OK);
    assert_int_equal(mhla_model_save(m, a), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_OK);
    assert_int_equal(mhla_model_forward(back, z, x, 2), MHLA_OK);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    /* a file instead of its folder */
    snprintf(path, sizeof path, "%s/model.safetensors", a);
    assert_int_equal(mhla_model_open(&back, path), MHLA_OK);
    mhla_model_free(back);
    /* weights of another model */
    const char *const other[] = {"classes=4", "depth=2", "attention=softmax"};
    mhla_model *softmax;
    assert_int_equal(mhla_model_create(&softmax, "deit_nano", other, 3, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(mhla_deit_params(softmax->deit), path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "blocks.0.attn.to_qkv.weight"));
    const char *const wider[] = {"classes=5", "depth=2"};
    mhla_model *wide;
    assert_int_equal(mhla_model_create(&wide, "deit_nano", wider, 2, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(mhla_deit_params(wide->deit), path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "head.weight"));
    /* more than the model has */
    const char *const deeper[] = {"classes=4", "depth=3"};
    mhla_model *deep;
    assert_int_equal(mhla_model_create(&deep, "deit_nano", deeper, 2, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(mhla_deit_params(deep->deit), path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "blocks.2."));
    /* not there */
    unlink(path);
    assert_int_not_equal(mhla_model_open(&back, a), MHLA_OK);
    snprintf(path, sizeof path, "%s/config.json", a);
    unlink(path);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    rmdir(a);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EIO);
    rmdir(folder);
    mhla_model_free(m);
    mhla_model_free(softmax);
    mhla_model_free(wide);
    mhla_model_free(deep);
    free(x);
}

/* timm's own config.json. */
static void timm_config(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_deit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[128], **list = NULL;
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"architecture\": \"deit_small_patch16_224\", \"num_classes\": 10, \"num_features\": 384,"
          " \"pretrained_cfg\": {\"crop_pct\": 0.95, \"mean\": [0.5, 0.5, 0.5], \"std\": [0.5, 0.5, 0.5]}}",
          f);
    fclose(f);
    mhla_deit_config c;
    assert_int_equal(mhla_model_read_config(&c, &list, folder), MHLA_OK);
    assert_int_equal(c.dim, 384);
    assert_int_equal(c.classes, 10);
    assert_int_equal(c.class_token, 1);
    assert_true(c.crop == 0.95 && c.mean[2] == 0.5 && c.deviation[0] == 0.5);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(names),
        cmocka_unit_test(equal_surroundings),
        cmocka_unit_test(refused),
        cmocka_unit_test(config_round_trip),
        cmocka_unit_test(gradients),
        cmocka_unit_test(batches),
        cmocka_unit_test(files),
        cmocka_unit_test(timm_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
