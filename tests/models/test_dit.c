/* DiT without the published files: counts, configs that make sense and that do not, every combination of CPE, gate and LePE
 * with every attention against a reference in double and its differences, other resolutions, the same bits in any batch and
 * with any number of threads, files there and back. */
#include "support.h"

#include <mhla/diffusion.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "dit_case.h"
#include "models/model.h"
#include "train/train.h"

static mhla_frame_config configure(const char *model, int structure, int attention) {
    mhla_frame_config c;
    ASSERT_OK(mhla_dit_preset(&c, model, structure, attention, MHLA_PROCESS_LINEAR));
    return c;
}

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention, side;
        int64_t parameters, trainable;
    } known[] = {
        {"dit_s_2", MHLA_GRID_MHLA, 32, 33021728, 32923424},
        {"dit_s_2", MHLA_GRID_MHLA, 64, 33316640, 32923424},
        {"dit_b_2", MHLA_GRID_MHLA, 32, 130626080, 130429472},
        {"dit_b_2", MHLA_GRID_MHLA, 64, 131215904, 130429472},
        /* facebookresearch's */
        {"dit_s_2", MHLA_GRID_SOFTMAX, 32, 32963360, 32865056},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_frame_config c = configure(known[i].model, MHLA_STRUCTURE_RELEASED, known[i].attention);
        c.image[0] = c.image[1] = known[i].side;
        mhla_frame *m;
        ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
        int64_t trainable = 0;
        for (int k = 0; k < mhla_params_count(mhla_frame_params(m)); k++) {
            const mhla_param *p = mhla_params_at(mhla_frame_params(m), k);
            if (!(p->flags & MHLA_PARAM_FROZEN)) trainable += p->count;
        }
        assert_int_equal(mhla_params_elements(mhla_frame_params(m)), known[i].parameters);
        assert_int_equal(trainable, known[i].trainable);
        mhla_frame_free(m);
    }
    mhla_model *m;
    const char *const released[] = {"structure=released"};
    mhla_model_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_create(&m, "dit_s_2", released, 1, 1));
    ASSERT_OK(mhla_model_query(m, &info));
    assert_string_equal(info.kind, "diffusion");
    assert_int_equal(info.parameters, 33021728);
    assert_int_equal(info.trainable, 32923424);
    assert_int_equal(info.multiply_adds, 5690277888);
    assert_int_equal(info.tokens, 256);
    mhla_model_free(m);
}

/* Equal surroundings: but for the mixing matrices the three have the same number of parameters. */
static void equal_surroundings(void **state) {
    (void)state;
    int64_t n[3];
    for (int a = 0; a < 3; a++) {
        const mhla_frame_config c = configure("dit_micro", MHLA_STRUCTURE_EQUAL, a);
        mhla_frame *m;
        ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
        n[a] = mhla_params_elements(mhla_frame_params(m));
        mhla_frame_free(m);
    }
    assert_int_equal(n[1], n[2]);
    assert_int_equal(n[0], n[1] + 4 * 256); /* depth 4, M = 16 */
    static const struct {
        const char *model;
        int heads;
    } lit[] = {{"dit_s_2", 2}, {"dit_b_2", 3}, {"dit_l_2", 4}, {"dit_xl_2", 4}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(configure(lit[i].model, i % 2, MHLA_GRID_LIT).attn.heads, lit[i].heads);
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"patch=5", "multiple of patch 5"},
        {"heads=5", "dim 96 is not a multiple of heads 5"},
        {"blocks=17", "at most one block per patch"},
        {"lepe=4", "odd"},
        {"attention=sofmax", "softmax"},
        {"attention=focused", "mhla, linear, softmax, lit"},
        {"attention=gla", "mhla, linear, softmax, lit"},
        {"cpe=square", "folded"},
        {"proces=flow", "process"},
        {"dim=many", "integer"},
        {"image=32,64,32", "3 numbers"},
    };
    mhla_model *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(mhla_model_create(&m, "dit_micro", &wrong[i].setting, 1, 0), MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
    const char *const flow[] = {"process=flow", "learn_sigma=true"}, *const odd[] = {"cpe=folded", "image=32,36"},
                      *const uneven[] = {"structure=released", "image=28", "blocks=4"};
    assert_int_equal(mhla_model_create(&m, "dit_micro", flow, 2, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "flow"));
    assert_int_equal(mhla_model_create(&m, "dit_micro", odd, 2, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "square"));
    assert_int_equal(mhla_model_create(&m, "dit_micro", uneven, 3, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "equal blocks"));
    assert_int_not_equal(mhla_model_create(&m, "dit_huge", NULL, 0, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "dit_xl_2"));
}

static void config_round_trip(void **state) {
    (void)state;
    for (int structure = 0; structure < 2; structure++)
        for (int attention = 0; attention < 3; attention++)
            for (int process = 0; process < 3; process++) {
                mhla_frame_config c, back = {0};
                ASSERT_OK(mhla_dit_preset(&c, "dit_l_4", structure, attention, process));
                assert_int_equal(c.learn_sigma, process != MHLA_PROCESS_FLOW);
                c.image[0] = 64;
                c.cpe = MHLA_CPE_GRID;
                c.attn.gate = 1;
                c.dropout = 0.25;
                json_t *tree = mhla_frame_config_tree(&c, &mhla_dit_kind);
                assert_non_null(tree);
                ASSERT_OK(mhla_frame_config_read(&back, &mhla_dit_kind, tree, "config.json"));
                json_t *again = mhla_frame_config_tree(&back, &mhla_dit_kind);
                assert_true(json_equal(tree, again));
                json_decref(again);
                json_object_set_new(tree, "heads", json_integer(5)); /* no number is wrong, the two together are */
                assert_int_equal(mhla_frame_config_read(&back, &mhla_dit_kind, tree, "at/config.json"), MHLA_EDATA);
                assert_non_null(strstr(mhla_message(), "at/config.json: dim 1024 is not a multiple of heads 5"));
                json_decref(tree);
            }
}

/* ---- Every combination against the reference ---- */

static mhla_frame_config small(int attention, int cpe, int gate, int lepe, int released) {
    mhla_frame_config c = configure("dit_micro", released ? MHLA_STRUCTURE_RELEASED : MHLA_STRUCTURE_EQUAL, attention);
    c.image[0] = 4;
    c.image[1] = 16; /* 2 x 8 patches: a number that is a square, on a grid that is none */
    c.channels = 2;
    c.attn.dim = 12;
    c.attn.heads = 2;
    c.depth = released ? 2 : 1;
    c.classes = 3;
    c.mlp_ratio = 2.0;
    c.attn.blocks[0] = 2;
    c.attn.blocks[1] = released ? 2 : 3;
    c.cpe = cpe;
    c.attn.gate = gate > 0;
    c.attn.gate_norm = gate == 1;
    c.attn.lepe = lepe;
    c.learn_sigma = released;
    c.attn.feature_eps = 0.05; /* of six features all may be nothing: rounding would then decide where they point */
    c.attn.qk_norm = gate == 2;
    return c;
}

static void combinations(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++)
        for (int cpe = 0; cpe < 3; cpe++)
            for (int gate = 0; gate < 3; gate++)
                for (int lepe = 0; lepe < 2; lepe++) {
                    char what[64];
                    snprintf(what, sizeof what, "attention %d, cpe %d, gate %d, lepe %d", attention, cpe, gate, lepe);
                    const mhla_frame_config c = small(attention, cpe, gate, 3 * lepe, 0);
                    check_combination(&mhla_dit_kind, &c, (uint64_t)(100 * attention + 10 * cpe + gate), what);
                }
    const mhla_frame_config released = small(MHLA_GRID_MHLA, MHLA_CPE_FOLDED, 0, 3, 1);
    check_combination(&mhla_dit_kind, &released, 5, "as released");
    const mhla_frame_config facebook = small(MHLA_GRID_SOFTMAX, MHLA_CPE_NONE, 0, 0, 1);
    check_combination(&mhla_dit_kind, &facebook, 6, "facebookresearch's");
    for (int lepe = 0; lepe < 6; lepe += 5) {
        const mhla_frame_config lit = small(MHLA_GRID_LIT, lepe ? MHLA_CPE_GRID : MHLA_CPE_NONE, 0, lepe, 1);
        check_combination(&mhla_dit_kind, &lit, 7, "LiT");
    }
}

static void sizes(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++) {
        const mhla_frame_config c = small(attention, MHLA_CPE_GRID, 0, 3, 0);
        check_sizes(&mhla_dit_kind, &c, (uint64_t)attention);
    }
}

/* ---- The same bits in any batch and with any number of threads ---- */

static void bits(void **state) {
    (void)state;
    const char *isas[8];
    const int n = isa_names(isas, 8);
    for (int i = 0; i < n; i++) {
        check_bits("dit_micro", "attention=mhla", isas[i]);
        check_bits("dit_micro", "attention=linear", isas[i]);
        check_bits("dit_micro", "attention=softmax", isas[i]);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- The public handle ---- */

static void denoise(void **state) {
    (void)state;
    const char *const settings[] = {"image=8", "blocks=2", "channels=1", "depth=1", "null_label=false"};
    mhla_model *m, *other;
    rng r = {3};
    ASSERT_OK(mhla_model_create(&m, "dit_micro", settings, 5, 1));
    float *x = new_random(&r, 2 * 64), *target = new_random(&r, 2 * 64), y[2 * 64], times[2] = {1.0f, 500.0f};
    int32_t labels[2] = {0, 9};
    mhla_denoise d = {.size = sizeof d, .count = 2, .x = x, .times = times, .labels = labels};
    ASSERT_OK(mhla_model_denoise(m, y, &d));
    for (int i = 0; i < 2 * 64; i++) assert_true(y[i] == 0.0f); /* the last layer starts at zero */
    float loss[40];
    for (int i = 0; i < 40; i++) ASSERT_OK(mhla_model_denoise_step(m, &loss[i], &d, target, 1e-2));
    assert_true(loss[39] < 0.5f * loss[0]);
    /* what cannot be */
    labels[1] = 10;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "labels[1] is 10: the model has 10 classes and no label for none"));
    labels[1] = 9;
    d.height = 9;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "height is 9: expected a multiple of patch 2"));
    d.height = 0;
    times[0] = NAN;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "times[0]"));
    d.times = NULL;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    int64_t tokens, cost;
    ASSERT_OK(mhla_model_denoise_cost(m, &cost, &tokens, 16, 24));
    assert_int_equal(tokens, 96);
    /* other kinds of models */
    assert_int_equal(mhla_model_forward(m, y, x, 1), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "diffusion"));
    ASSERT_OK(mhla_model_create(&other, "deit_nano", NULL, 0, 1));
    assert_int_equal(mhla_model_denoise(other, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "classifier"));
    mhla_model_free(other);
    mhla_model_free(m);
    free(x);
    free(target);
}

/* ---- Files ---- */

static char folder[64];

static const char *in_folder(char path[128], const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static void answer(mhla_model *m, float *y, const float *x) {
    const float time = 321.0f;
    const int32_t label = 2;
    ASSERT_OK(mhla_model_denoise(
        m, y, &(mhla_denoise){.size = sizeof(mhla_denoise), .count = 1, .x = x, .times = &time, .labels = &label}));
}

static char notes[4096];

static void note(void *user, const char *text) {
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

/* Of files without config.json: what the released code can switch is told by the tensors. */
static void bare_files(const char *path) {
    const char *const settings[][9] = {
        {"attention=mhla", "gate=true", "lepe=5", "cpe=folded", "blocks=2"},
        {"attention=mhla", "gate=true", "gate_norm=false", "lepe=0", "qk_norm=true", "qkv_bias=false", "blocks=2"},
        {"attention=mhla", "gate=true", "heads=12", "inner_norm=false", "blocks=4"},
        {"attention=linear", "lepe=3"},
        {"attention=softmax", "lepe=3", "qk_norm=true"},
        {"attention=lit", "heads=6", "cpe=folded"},
        {"attention=lit", "heads=2", "lepe=0", "qkv_bias=false"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *list[13] = {"structure=released", "depth=1", "classes=5", "image=8"};
        int n = 4;
        while (settings[i][n - 4]) {
            list[n] = settings[i][n - 4];
            n++;
        }
        mhla_model *m, *back;
        ASSERT_OK(mhla_model_create(&m, "dit_s_2", list, n, 3));
        ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
        ASSERT_OK(mhla_model_open(&back, path));
        assert_string_equal(back->config, m->config);
        mhla_model_free(back);
        mhla_model_free(m);
    }
}

static void files(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_dit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[128], other[128];
    /* widths of a published size, so that a bare file of weights tells everything */
    const char *const settings[] = {"structure=released", "attention=softmax", "depth=1", "classes=5", "image=8"};
    enum { X = 4 * 8 * 8, Y = 2 * X };
    mhla_model *m, *back;
    rng r = {9};
    float *x = new_random(&r, X), y[Y], z[Y];
    ASSERT_OK(mhla_model_create(&m, "dit_s_2", settings, 5, 3));
    stir(m->params, &r);
    answer(m, y, x);
    ASSERT_OK(mhla_model_save(m, in_folder(path, "a")));
    ASSERT_OK(mhla_model_open(&back, path));
    answer(back, z, x);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    /* without config.json */
    in_folder(path, "bare.safetensors");
    ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
    ASSERT_OK(mhla_model_open(&back, path));
    mhla_model_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_query(back, &info));
    assert_string_equal(info.name, "dit_s_2");
    assert_int_equal(info.classes, 5);
    assert_string_equal(info.config, m->config);
    answer(back, z, x);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    bare_files(path);
    ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
    /* the start of one with MHLA, on images of another size: what is new is told */
    const char *const mhla[] = {"attention=mhla", "depth=1", "classes=5", "image=16,8", "blocks=2", "gate=true"};
    ASSERT_OK(mhla_model_create(&back, "dit_s_2", mhla, 6, 3));
    ASSERT_OK(mhla_model_adopt(back, path, note, NULL));
    assert_non_null(strstr(notes, "pos_embed: computed for this size"));
    assert_non_null(strstr(notes, "22 of 28 tensors"));
    assert_non_null(strstr(notes, "new, initialised (6): blocks.*.attn.lepe.weight, blocks.*.attn.lepe.bias, "
                                  "blocks.*.attn.piece_attn.conv.weight, blocks.*.attn.g.weight, blocks.*.attn.g.bias, "
                                  "blocks.*.attn.g_norm.weight\n"));
    assert_null(strstr(notes, "not used"));
    const mhla_param *from = mhla_params_find(m->params, "blocks.0.attn.qkv.weight"),
                     *to = mhla_params_find(back->params, "blocks.0.attn.to_qkv.weight");
    assert_memory_equal(from->data, to->data, (size_t)to->count * sizeof(float));
    mhla_model_free(back);
    /* another model's weights, and none at all */
    const char *const nano[] = {"blocks=4"};
    ASSERT_OK(mhla_model_create(&back, "deit_nano", nano, 1, 3));
    ASSERT_OK(mhla_params_save(back->params, in_folder(other, "deit.safetensors"), NULL, NULL));
    mhla_model_free(back);
    assert_int_equal(mhla_model_open(&back, other), MHLA_ENOTSUP);
    assert_non_null(strstr(mhla_message(), "config.json"));
    ASSERT_OK(mhla_model_create(&back, "dit_s_2", mhla, 6, 3));
    assert_int_equal(mhla_model_adopt(back, other, note, NULL), MHLA_ENOTSUP);
    assert_non_null(strstr(mhla_message(), "not a model that is known here"));
    mhla_model_free(back);
    /* a width that does not tell the heads */
    const char *const wide[] = {"structure=released", "attention=softmax", "depth=1", "dim=64", "heads=2"};
    ASSERT_OK(mhla_model_create(&back, "dit_micro", wide, 5, 3));
    ASSERT_OK(mhla_params_save(back->params, other, NULL, NULL));
    mhla_model_free(back);
    assert_int_equal(mhla_model_open(&back, other), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "width 64"));
    unlink(other);
    unlink(path);
    unlink(in_folder(path, "a/config.json"));
    unlink(in_folder(path, "a/model.safetensors"));
    rmdir(in_folder(path, "a"));
    rmdir(folder);
    mhla_model_free(m);
    free(x);
}

/* A dry run counts what the real one takes. */
static void dry_run(void **state) {
    (void)state;
    mhla_frame_config c = small(MHLA_GRID_MHLA, MHLA_CPE_FOLDED, 1, 3, 0);
    mhla_frame *m;
    size_t peak[2];
    ASSERT_OK(mhla_frame_create(&m, &mhla_dit_kind, &c));
    ASSERT_OK(mhla_params_init(mhla_frame_params(m), 1));
    rng r = {1};
    drawn s = draw(&r, &c, c.image[0], c.image[1]);
    for (int dry = 0; dry < 2; dry++) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD | (dry ? MHLA_TAPE_DRY : 0));
        mhla_tensor *x = mhla_nn_input(t, dry ? NULL : s.x, MHLA_SHAPE(B, c.channels, s.height, s.width));
        mhla_tensor *y =
            mhla_frame_forward(t, m, &(mhla_network_run){0}, x, dry ? NULL : s.times, dry ? NULL : s.labels);
        ASSERT_OK(mhla_tape_backward(t, mhla_nn_mse(t, y, s.dy), 1.0f));
        peak[dry] = mhla_tape_peak(t);
        mhla_tape_free(t);
    }
    assert_int_equal(peak[0], peak[1]);
    drop(&s);
    mhla_frame_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),       cmocka_unit_test(equal_surroundings),
        cmocka_unit_test(refused),      cmocka_unit_test(config_round_trip),
        cmocka_unit_test(combinations), cmocka_unit_test(sizes),
        cmocka_unit_test(bits),         cmocka_unit_test(denoise),
        cmocka_unit_test(dry_run),      cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
