/* DiG: counts and names of the published sizes, every attention with its options against a reference in double that turns the
 * tokens literally, other sizes, the same bits in any batch, files, fine-tuning, weights of MHLA that were trained with scans. */
#include "dit_case.h"

#include <sys/stat.h>

#include "core/status.h"
#include "folders.h"
#include "goldens.h"
#include "models/model.h"
#include "train/train.h"

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention;
        int64_t depth, D, hidden;
        double millions; /* trainable, as published */
    } known[] = {
        {"dig_s", MHLA_DIG_GLA, 12, 384, 1024, 32.98},   {"dig_b", MHLA_DIG_GLA, 12, 768, 2048, 130.55},
        {"dig_l", MHLA_DIG_GLA, 24, 1024, 2816, 464.76}, {"dig_xl", MHLA_DIG_GLA, 28, 1152, 3072, 675.66},
        {"dig_s", MHLA_DIG_MHLA, 12, 384, 1024, 0.0},    {"dig_s", MHLA_DIG_MHLA_DIT, 12, 384, 1024, 0.0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const int64_t D = known[i].D, K = D / 2, M = 16, attention = known[i].attention;
        mhla_frame_config c;
        mhla_frame *m;
        ASSERT_OK(mhla_dig_preset(&c, known[i].model, (int)attention, MHLA_PROCESS_LINEAR));
        c.mlp_hidden = (int)known[i].hidden;
        if (D > 768) c.depth = 1; /* the others are as large as the first, and memory is not for them */
        ASSERT_OK(mhla_frame_create(&m, &mhla_dig_kind, &c));
        const int64_t own = attention == MHLA_DIG_GLA    ? 4 * D * D + 16 * D + 16 * K + K + 64
                            : attention == MHLA_DIG_MHLA ? 4 * D * D + M * M + 64
                                                         : 4 * D * D + 16 * D + M * M;
        const int64_t each = own + 3 * D * known[i].hidden + 6 * D * D + 6 * D + 10 * D;
        const int64_t around = 17 * D + 256 * D + D + D * D + D + 1001 * D + 32 * D + 32 + 2 * D * D + 2 * D;
        assert_int_equal(mhla_params_elements(m->params), 256 * D + around + c.depth * each);
        if (known[i].millions > 0.0)
            assert_true(fabs((double)(around + known[i].depth * each) / 1e6 - known[i].millions) < 0.00501);
        mhla_frame_free(m);
    }
    /* the width of the MLP follows from dim */
    static const struct {
        const char *model;
        int hidden;
    } widths[] = {{"dig_s", 1024}, {"dig_b", 2048}, {"dig_l", 2816}, {"dig_xl", 3072}};
    for (int i = 0; i < 4; i++) {
        mhla_model *m;
        const char *const shallow[] = {"depth=1", "classes=1"};
        ASSERT_OK(mhla_model_outline(&m, widths[i].model, shallow, 2));
        assert_int_equal(((const mhla_frame *)m->net)->config.mlp_hidden, widths[i].hidden);
        mhla_model_free(m);
    }
}

static void names(void **state) {
    (void)state;
    char path[512], line[256], name[160];
    FILE *f = fopen(golden_path(path, "names/dig_s2.txt"), "r");
    assert_non_null(f);
    mhla_model *m;
    ASSERT_OK(mhla_model_outline(&m, "dig_s", NULL, 0));
    int i = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%159s", name), 1);
        const char *at = strchr(line, '[');
        assert_non_null(at);
        assert_in_range(i, 0, mhla_params_count(m->params) - 1);
        const mhla_param *p = mhla_params_at(m->params, i++);
        assert_string_equal(p->name, name);
        for (int a = 0; a < p->dims; a++) {
            char *end;
            assert_int_equal(strtoll(at + 1, &end, 10), p->shape[a]);
            at = end;
        }
        assert_int_equal(*at, ']');
    }
    assert_int_equal(i, mhla_params_count(m->params));
    fclose(f);
    mhla_model_free(m);
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting[2], *says;
    } wrong[] = {
        {{"attention=softmax"}, "gla, mhla, mhla-dit"},
        {{"lepe=3"}, "only the attention mhla-dit has one"},
        {{"attention=mhla-dit", "expand_v=1"}, "expand_v is not 0"},
        {{"attention=mhla", "gate_low_rank_dim=16"}, "MHLA has no decays"},
        {{"gate_logit_normalizer=0"}, "GLA needs both above 0"},
        {{"expand_k=0.3"}, "multiple of heads 3"},
        {{"expand_k=0"}, "expand_k 0 makes keys of 0"},
        {{"attention=mhla", "scan=four"}, "scan raster"},
        {{"attention=mhla-dit", "blocks=5"}, "equal blocks"},
        {{"attention=mhla", "blocks=17"}, "at most one block per patch"},
        {{"cpe=folded"}, "none, grid"},
        {{"structure=released"}, "structure"},
        {{"learn_sigma=true", "process=flow"}, "flow"},
    };
    mhla_model *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(mhla_model_create(&m, "dig_micro", wrong[i].setting, wrong[i].setting[1] ? 2 : 1, 0),
                             MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting[0], mhla_message(), wrong[i].says);
    }
    assert_int_not_equal(mhla_model_create(&m, "dig_huge", NULL, 0, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "dig_xl"));
}

static void config_round_trip(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++)
        for (int process = 0; process < 3; process++) {
            mhla_frame_config c, back = {0};
            ASSERT_OK(mhla_dig_preset(&c, "dig_l", attention, process));
            c.mlp_hidden = 100;
            c.image[0] = 64;
            c.cpe = MHLA_CPE_NONE;
            c.attn.gate = 0;
            json_t *tree = mhla_frame_config_tree(&c, &mhla_dig_kind);
            ASSERT_OK(mhla_frame_config_read(&back, &mhla_dig_kind, tree, "config.json"));
            json_t *again = mhla_frame_config_tree(&back, &mhla_dig_kind);
            assert_true(json_equal(tree, again));
            json_decref(again);
            json_decref(tree);
        }
}

/* ---- Every combination against the reference ---- */

static mhla_frame_config small(int attention, int cpe, int gate, int depth) {
    mhla_frame_config c;
    ASSERT_OK(mhla_dig_preset(&c, "dig_micro", attention, MHLA_PROCESS_LINEAR));
    c.image[0] = 4;
    c.image[1] = 12; /* 2 x 6 patches, which columns make 6 x 2 */
    c.channels = 2;
    c.attn.dim = 16;
    c.attn.heads = 2;
    c.depth = depth;
    c.classes = 3;
    c.mlp_hidden = 10;
    c.attn.blocks[0] = 2;
    c.attn.blocks[1] = 3;
    c.cpe = cpe;
    c.attn.gate = gate;
    c.attn.feature_eps = 0.05;
    c.learn_sigma = 1;
    return c;
}

static void combinations(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++)
        for (int cpe = 0; cpe < 2; cpe++)
            for (int gate = 0; gate < 2; gate++) {
                char what[64];
                const mhla_frame_config c = small(attention, cpe, gate, 1 + 4 * (cpe && gate));
                snprintf(what, sizeof what, "attention %d, cpe %d, gate %d", attention, cpe, gate);
                check_combination(&mhla_dig_kind, &c, (uint64_t)(100 * attention + 10 * cpe + gate), what);
            }
    /* square, and a depth that 4 does not divide: the final order is what results */
    for (int depth = 1; depth < 6; depth++) {
        mhla_frame_config c = small(MHLA_DIG_GLA, MHLA_CPE_GRID, 1, depth);
        c.image[0] = c.image[1] = 6;
        c.attn.expand_k = 0.25;
        c.attn.expand_v = 1.5;
        c.attn.rank = 3;
        c.attn.divisor = 4.0;
        check_combination(&mhla_dig_kind, &c, 3, "other widths, decays that decay");
    }
    mhla_frame_config rows = small(MHLA_DIG_GLA, MHLA_CPE_GRID, 1, 3);
    rows.scan = MHLA_SCAN_RASTER;
    check_combination(&mhla_dig_kind, &rows, 4, "rows forward alone");
}

static void sizes(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++) {
        mhla_frame_config c = small(attention, MHLA_CPE_GRID, 1, 3);
        c.attn.denominator = MHLA_DEN_EQ4;
        check_sizes(&mhla_dig_kind, &c, (uint64_t)attention);
    }
}

static void bits(void **state) {
    (void)state;
    const char *isas[8];
    const int n = isa_names(isas, 8);
    for (int i = 0; i < n; i++) {
        check_bits("dig_micro", "attention=gla", isas[i]);
        check_bits("dig_micro", "attention=mhla", isas[i]);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- Files ---- */

static void answer(mhla_model *m, float *y, const float *x) {
    ASSERT_OK(mhla_model_denoise(
        m, y,
        &(mhla_denoise){
            .size = sizeof(mhla_denoise), .count = 1, .x = x, .times = (float[]){321.0f}, .labels = (int32_t[]){2}}));
}

static void check_same(const mhla_model *m, const char *path, const char *storage, double tolerance) {
    mhla_model *back;
    enum { X = 4 * 8 * 8, Y = 2 * X };
    rng r = {4};
    float *x = new_random(&r, X), y[Y], z[Y];
    answer((mhla_model *)(uintptr_t)m, y, x);
    ASSERT_OK(mhla_model_open_as(&back, path, &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = storage}));
    answer(back, z, x);
    if (tolerance > 0.0)
        ASSERT_CLOSE(z, y, Y, tolerance, "%s", storage);
    else
        assert_memory_equal(y, z, sizeof y);
    assert_string_equal(back->config, m->config);
    mhla_model_free(back);
    free(x);
}

static char notes[4096];
static void note(void *user, const char *text) {
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

static void files(void **state) {
    (void)state;
    char folder[40], bare[128];
    new_folder(folder);
    snprintf(bare, sizeof bare, "%s", in_folder(folder, "bare.safetensors"));
    static const char *const settings[][7] = {
        {"attention=gla"},
        {"attention=gla", "gate=false", "expand_k=0.25", "heads=3", "gate_low_rank_dim=5"},
        {"attention=mhla", "cpe=none", "blocks=2"},
        {"attention=mhla-dit", "lepe=5", "gate=true"},
        {"attention=mhla-dit", "lepe=0"},
    };
    rng r = {9};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *list[12] = {"depth=2", "classes=5", "image=8"};
        int n = 3;
        for (; settings[i][n - 3]; n++) list[n] = settings[i][n - 3];
        mhla_model *m;
        ASSERT_OK(mhla_model_create(&m, "dig_s", list, n, 3));
        stir(m->params, &r);
        ASSERT_OK(mhla_model_save(m, in_folder(folder, "saved")));
        check_same(m, in_folder(folder, "saved"), "float32", 0.0);
        check_same(m, in_folder(folder, "saved"), "bfloat16", 0.1);
        check_same(m, in_folder(folder, "saved"), "q8_0", 0.1);
        ASSERT_OK(mhla_params_save(m->params, bare, NULL, NULL));
        check_same(m, bare, NULL, 0.0);
        mhla_model_free(m);
    }
    /* from GLA to MHLA: the decays are not used, the mixing matrix is new */
    const char *const gla[] = {"depth=4", "classes=5", "image=8"}, *const mhla[] = {"depth=4", "classes=5", "image=8",
                                                                                    "blocks=2", "attention=mhla"};
    mhla_model *from, *to;
    ASSERT_OK(mhla_model_create(&from, "dig_micro", gla, 3, 3));
    stir(from->params, &r);
    ASSERT_OK(mhla_model_save(from, in_folder(folder, "gla")));
    ASSERT_OK(mhla_model_create(&to, "dig_micro", mhla, 5, 4));
    ASSERT_OK(mhla_model_adopt(to, in_folder(folder, "gla"), note, NULL));
    assert_non_null(strstr(notes, "new, initialised (4): blocks.*.attn.piece_attn.conv.weight\n"));
    assert_non_null(strstr(notes, "not used (12): blocks.*.attn.gk_proj.0.weight, blocks.*.attn.gk_proj.1.weight, "
                                  "blocks.*.attn.gk_proj.1.bias\n"));
    const char *name = "blocks.1.attn.g_norm_swish_gate.weight";
    assert_memory_equal(mhla_params_find(from->params, name)->data, mhla_params_find(to->params, name)->data, 32 * 4);
    name = "blocks.1.attn.q_proj.weight";
    assert_memory_equal(mhla_params_find(from->params, name)->data, mhla_params_find(to->params, name)->data,
                        48 * 96 * 4);
    /* 3x3 kernels look where the block did: forward, backward, transposed, both */
    for (int block = 0; block < 4; block++) {
        char kernel[64];
        snprintf(kernel, sizeof kernel, "blocks.%d.dw_conv.weight", block);
        const float *w = mhla_params_find(from->params, kernel)->data,
                    *got = mhla_params_find(to->params, kernel)->data;
        for (int i = 0; i < 96 * 9; i++) {
            const int y = i % 9 / 3, x = i % 3;
            const int at[] = {y * 3 + x, (2 - y) * 3 + 2 - x, x * 3 + y, (2 - x) * 3 + 2 - y};
            assert_true(got[i] == w[i / 9 * 9 + at[block]]);
        }
    }
    mhla_model_free(from);
    mhla_model_free(to);
    remove_folder(folder);
}

/* ---- MHLA that was trained with scans ---- */

/* The folder's config.json says "scan": "four". */
static void say_four(const char *path) {
    char config[160];
    snprintf(config, sizeof config, "%s/config.json", path);
    json_t *tree = json_load_file(config, 0, NULL);
    assert_non_null(tree);
    json_object_set_new(tree, "scan", json_string("four"));
    assert_int_equal(json_dump_file(tree, config, 0), 0);
    json_decref(tree);
}

static void check_scans(const char *attention, const char *const *more, int count) {
    char folder[40];
    const char *list[12] = {attention, "classes=5", "image=12",      "patch=2",
                            "dim=24",  "heads=2",   "mlp_hidden=10", "channels=2"};
    mhla_model *m, *turned;
    mhla_tape *t;
    rng r = {5};
    new_folder(folder);
    for (int i = 0; i < count; i++) list[8 + i] = more[i];
    ASSERT_OK(mhla_model_create(&m, "dig_micro", list, 8 + count, 3));
    stir(m->params, &r);
    ASSERT_OK(mhla_model_save(m, folder));
    say_four(folder);
    ASSERT_OK(mhla_model_open(&turned, folder));
    assert_non_null(strstr(turned->config, "\"scan\": \"raster\""));
    /* the weights as trained, the tokens turned literally after each block */
    const mhla_frame *net = m->net;
    drawn s = draw(&r, &net->config, 12, 12);
    dit_ref *ref = dit_ref_of(net, 12, 12);
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ref->scan = 1;
    check_answer(turned->net, ref, &s, t, attention);
    /* it matters, and once is enough: what is saved is of the raster */
    float *mix = mhla_params_find(m->params, "blocks.1.attn.piece_attn.conv.weight")->data;
    assert_memory_not_equal(mix, mhla_params_find(turned->params, "blocks.1.attn.piece_attn.conv.weight")->data, 64);
    ASSERT_OK(mhla_model_save(turned, folder));
    mhla_model_free(turned);
    ASSERT_OK(mhla_model_open(&turned, folder));
    check_answer(turned->net, ref, &s, t, attention);
    mhla_model_free(turned);
    dit_ref_free(ref);
    drop(&s);
    mhla_tape_free(t);
    mhla_model_free(m);
    remove_folder(folder);
}

static void scans(void **state) {
    (void)state;
    check_scans("attention=mhla", (const char *[]){"depth=4", "blocks=3"}, 2);
    check_scans("attention=mhla", (const char *[]){"depth=8", "blocks=2", "cpe=none"}, 3);
    check_scans("attention=mhla-dit", (const char *[]){"depth=4", "blocks=3", "lepe=5"}, 3);
    static const struct {
        const char *setting, *says;
    } wrong[] = {{"depth=5", "depth 5"},
                 {"blocks=3,3", "3 x 3 blocks"},
                 {"blocks=2,4", "2 x 4 blocks"},
                 {"image=16,8", "8 x 4 patches"}};
    for (int i = 0; i < 4; i++) {
        char folder[40];
        mhla_model *m;
        const char *const list[] = {"attention=mhla", "image=16", "blocks=2", "dim=12", "classes=2", wrong[i].setting};
        new_folder(folder);
        ASSERT_OK(mhla_model_create(&m, "dig_micro", list, 6, 3));
        ASSERT_OK(mhla_model_save(m, folder));
        mhla_model_free(m);
        say_four(folder);
        assert_int_equal(mhla_model_open(&m, folder), MHLA_EDATA);
        if (strstr(mhla_message(), wrong[i].says) == NULL ||
            strstr(mhla_message(), "config.json: scan is four") == NULL)
            fail_msg("%s: %s", wrong[i].setting, mhla_message());
        remove_folder(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),       cmocka_unit_test(names),
        cmocka_unit_test(refused),      cmocka_unit_test(config_round_trip),
        cmocka_unit_test(combinations), cmocka_unit_test(sizes),
        cmocka_unit_test(bits),         cmocka_unit_test(files),
        cmocka_unit_test(scans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
