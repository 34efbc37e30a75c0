/* The autoencoder of Stable Diffusion: the names of the published files, their halves, what is refused; the network with and without a
 * tape, in tiles, in bfloat16, for any number of threads. Its numbers are compared with diffusers' by the goldens. */
#include <math.h>
#include <mhla/diffusion.h>

#include "models/autoencoders/sd.h"
#include "names_case.h"

enum { SIDE = 24, LATENTS = 4, F = 4 };
static char folder[40];
static mhla_model *model;

static int set_up(void **state) {
    (void)state;
    new_folder(folder);
    return mhla_model_create(&model, "sd_vae_nano", NULL, 0, 3) == MHLA_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    mhla_model_free(model);
    remove_folder(folder);
    return 0;
}

/* ---- Names ---- */

/* The layout, and what stands in front of each name. */
typedef struct naming {
    mhla_sd_layout layout;
    const char *prefix;
    int levels;
} naming;

static void name_of(char name[256], const void *of, const char *parameter) {
    const naming *n = of;
    mhla_sd_name(name, n->layout, n->prefix, n->levels, parameter);
}

static void names(void **state) {
    (void)state;
    mhla_model *full;
    ASSERT_OK(mhla_model_outline(&full, "sd_vae", NULL, 0));
    assert_int_equal(mhla_params_elements(full->params), 83653863);
    check_names(full->params, "names/sdvae_diffusers.txt", name_of, &(naming){MHLA_SD_CURRENT, "", 4});
    check_names(full->params, "names/sdvae_diffusers_published.txt", name_of, &(naming){MHLA_SD_PUBLISHED, "", 4});
    check_names(full->params, "names/sdvae_original.txt", name_of, &(naming){MHLA_SD_ORIGINAL, "", 4});
    mhla_model_free(full);
}

static void some_names(void **state) {
    (void)state;
    static const char *const rows[][3] = {
        {"decoder.up_blocks.0.resnets.2.conv_shortcut.weight",
         "first_stage_model.decoder.up.3.block.2.nin_shortcut.weight",
         "decoder.up_blocks.0.resnets.2.conv_shortcut.weight"},
        {"encoder.mid_block.attentions.0.to_out.0.bias", "first_stage_model.encoder.mid.attn_1.proj_out.bias",
         "encoder.mid_block.attentions.0.proj_attn.bias"},
        {"encoder.down_blocks.1.downsamplers.0.conv.bias", "first_stage_model.encoder.down.1.downsample.conv.bias",
         "encoder.down_blocks.1.downsamplers.0.conv.bias"},
        {"post_quant_conv.weight", "first_stage_model.post_quant_conv.weight", "post_quant_conv.weight"},
    };
    char name[256];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mhla_sd_name(name, MHLA_SD_ORIGINAL, "first_stage_model.", 4, rows[i][0]);
        assert_string_equal(name, rows[i][1]);
        mhla_sd_name(name, MHLA_SD_PUBLISHED, "", 4, rows[i][0]);
        assert_string_equal(name, rows[i][2]);
    }
}

/* ---- Files ---- */

/* The model's tensors under other names, and perhaps one more; `part`: those that begin so. */
static void write_as(const char *path, mhla_sd_layout layout, const char *prefix, const char *part, const char *more) {
    const naming n = {layout, prefix, mhla_sd_levels(mhla_sd_config_of(model->net))};
    write_named(path, model->params, name_of, &n, MHLA_IO_F32, part, more);
}

static void write_config(const char *name, const char *text) { write_file(folder, name, text, strlen(text)); }

static float *decoded(mhla_model *m, const mhla_coding *coding) {
    rng r = {4};
    const int64_t n = (int64_t)LATENTS * (SIDE / F) * (SIDE / F);
    float *latent = new_random(&r, n), *image = new_poisoned(3 * SIDE * SIDE);
    const mhla_coding usual = {.size = sizeof usual, .height = SIDE, .width = SIDE};
    ASSERT_OK(mhla_model_decode(m, image, latent, 1, coding ? coding : &usual));
    free(latent);
    return image;
}

static void layouts(void **state) {
    (void)state;
    static const char small[] =
        "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [16, 32, 32], \"layers_per_block\": 1, "
        "\"norm_num_groups\": 8, \"sample_size\": 32}";
    static const struct {
        mhla_sd_layout layout;
        const char *prefix, *more;
    } cases[] = {{MHLA_SD_CURRENT, "", NULL},
                 {MHLA_SD_PUBLISHED, "", NULL},
                 {MHLA_SD_ORIGINAL, "", "loss.logvar"},
                 {MHLA_SD_ORIGINAL, "first_stage_model.", "model.diffusion_model.input_blocks.0.0.weight"}};
    float *want = decoded(model, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_model *m;
        write_config("v/config.json", small);
        write_as(in_folder(folder, "v/diffusion_pytorch_model.safetensors"), cases[i].layout, cases[i].prefix, "",
                 cases[i].more);
        ASSERT_OK(mhla_model_open(&m, in_folder(folder, "v")));
        float *got = decoded(m, NULL);
        assert_memory_equal(got, want, sizeof(float) * 3 * SIDE * SIDE);
        free(got);
        ASSERT_OK(mhla_model_save(m, in_folder(folder, "again")));
        mhla_model_free(m);
        ASSERT_OK(mhla_model_open(&m, in_folder(folder, "again")));
        mhla_model_free(m);
    }
    free(want);
}

/* Without a config.json the sizes are the tensors'; groups are 32, as all published ones have. */
static void bare_files(void **state) {
    (void)state;
    static const char *const settings[] = {"block_out_channels=32,64", "norm_num_groups=32",   "layers_per_block=2",
                                           "latent_channels=5",        "use_quant_conv=false", "out_channels=1"};
    mhla_model *wide, *was = model, *m;
    ASSERT_OK(mhla_model_create(&wide, "sd_vae_nano", settings, 6, 1));
    model = wide;
    static const char *const parts[] = {"", "encoder", "decoder"};
    for (int layout = MHLA_SD_CURRENT; layout <= MHLA_SD_ORIGINAL; layout++)
        for (int part = 0; part < 3; part++) {
            char path[512];
            snprintf(path, sizeof path, "%s/bare.safetensors", folder);
            remove(path);
            write_as(path, (mhla_sd_layout)layout, "", parts[part], NULL);
            ASSERT_OK(mhla_model_open(&m, path));
            const mhla_sd_config *c = mhla_sd_config_of(m->net);
            assert_int_equal(mhla_sd_levels(c), 2);
            assert_int_equal(c->widths[0], 32);
            assert_int_equal(c->widths[1], 64);
            assert_int_equal(c->layers, 2);
            assert_int_equal(c->latent_channels, 5);
            assert_int_equal(c->encoder, part != 2);
            assert_int_equal(c->decoder, part != 1);
            if (part != 1) assert_int_equal(c->out_channels, 1);
            mhla_model_free(m);
        }
    model = was;
    mhla_model_free(wide);
}

static void refusals(void **state) {
    (void)state;
    mhla_model *m;
    write_as(in_folder(folder, "half.safetensors"), MHLA_SD_CURRENT, "", "decoder", "encoder_of_another_kind.weight");
    write_config("w/config.json", "{\"_class_name\": \"AutoencoderTiny\", \"latent_channels\": 32}");
    write_as(in_folder(folder, "w/model.safetensors"), MHLA_SD_CURRENT, "", "", NULL);
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_ENOTSUP, "AutoencoderTiny");
    write_config("w/config.json", "{\"_class_name\": \"AutoencoderKL\"}");
    write_as(in_folder(folder, "w/model.safetensors"), MHLA_SD_CURRENT, "x.", "", NULL);
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "the first is \"x.");
    write_as(in_folder(folder, "w/model.safetensors"), MHLA_SD_CURRENT, "", "", "decoder.extra.weight");
    write_config("w/config.json",
                 "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [16, 32, 32], \"layers_per_block\": 1, "
                 "\"norm_num_groups\": 8}");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "decoder.extra.weight");
    write_config("w/config.json", "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [16, \"32\"]}");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "block_out_channels[1]");
    write_config("w/config.json", "{\"_class_name\": \"AutoencoderKL\", \"act_fn\": \"relu\"}");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_ENOTSUP, "act_fn");
    write_config("w/config.json", "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [16, 20]}");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "not a multiple of norm_num_groups");

    float x[3 * SIDE * SIDE] = {0}, z[LATENTS * SIDE * SIDE];
    mhla_coding c = {.size = sizeof c, .height = SIDE + 2, .width = SIDE};
    ASSERT_FAILS(mhla_model_encode(model, z, NULL, x, 1, &c), MHLA_EINVAL,
                 "24 x 26 pixels: each side must be a multiple of 4");
    c.height = SIDE;
    c.tile = 30;
    ASSERT_FAILS(mhla_model_decode(model, x, z, 1, &c), MHLA_EINVAL, "tile is 30");
    c.tile = 0;
    c.memory = 1000;
    ASSERT_FAILS(mhla_coding_settle(model, &c, 1), MHLA_ENOMEM, "memory of 1000 bytes");
    mhla_model *dit;
    ASSERT_OK(mhla_model_outline(&dit, "dit_micro", NULL, 0));
    ASSERT_FAILS(mhla_model_encode(dit, z, NULL, x, 1, &c), MHLA_EINVAL, "this needs an autoencoder");
    mhla_model_free(dit);
}

/* ---- The network ---- */

/* With a tape that records the numbers are the same, and gradients those of small steps along them. */
static void recorded(void **state) {
    (void)state;
    rng r = {8};
    enum { H = 8, W = 12 };
    float *x = new_random(&r, 3 * H * W), *dy = new_random(&r, 3 * H * W), *first = NULL;
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    double values[3], slope = 0.0;
    mhla_params_clear_grads(model->params);
    for (int i = 0; i < 3; i++) {
        const float step = i == 1 ? 5e-4f : -1e-3f;
        for (int p = 0; p < mhla_params_count(model->params) && i > 0; p++) { /* along the gradient of weights */
            mhla_param *w = mhla_params_at(model->params, p);
            for (int64_t e = 0; e < w->count; e++) w->data[e] += step * (w->grad[e] > 0.0f ? 1.0f : -1.0f) * 0.02f;
            mhla_param_touch(w);
        }
        mhla_tape_begin(t, i == 0 ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
        mhla_tensor *m = mhla_sd_encode(t, model->net, mhla_nn_input(t, x, MHLA_SHAPE(1, 3, H, W)));
        mhla_tensor *z = mhla_nn_slice(t, mhla_nn_patches(t, 1, m), 0, LATENTS);
        mhla_tensor *y = mhla_sd_decode(t, model->net, NULL, mhla_nn_unpatch(t, 1, H / F, W / F, z));
        ASSERT_OK(mhla_tape_status(t));
        values[i] = 0.0;
        for (int e = 0; e < 3 * H * W; e++) values[i] += (double)y->data[e] * (double)dy[e];
        if (i == 0) {
            first = new_bytes(sizeof(float) * 3 * H * W);
            memcpy(first, y->data, sizeof(float) * 3 * H * W);
            ASSERT_OK(mhla_tape_backward_from(t, y, dy));
            for (int p = 0; p < mhla_params_count(model->params); p++) {
                const mhla_param *w = mhla_params_at(model->params, p);
                assert_true(w->has_grad);
                for (int64_t e = 0; e < w->count; e++) slope += 0.02 * fabs((double)w->grad[e]);
            }
        }
    }
    assert_true(fabs((values[1] - values[2]) / 1e-3 - slope) < 2e-2 * fabs(slope));
    mhla_tape_free(t);
    mhla_model_free(model); /* as it was */
    ASSERT_OK(mhla_model_create(&model, "sd_vae_nano", NULL, 0, 3));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tensor *m = mhla_sd_encode(t, model->net, mhla_nn_input(t, x, MHLA_SHAPE(1, 3, H, W)));
    mhla_tensor *z = mhla_nn_slice(t, mhla_nn_patches(t, 1, m), 0, LATENTS);
    const mhla_tensor *y = mhla_sd_decode(t, model->net, NULL, mhla_nn_unpatch(t, 1, H / F, W / F, z));
    ASSERT_OK(mhla_tape_status(t));
    for (int e = 0; e < 3 * H * W; e++) assert_true(fabsf(y->data[e] - first[e]) < 1e-5f);
    mhla_tape_free(t);
    free(first);
    free(x);
    free(dy);
}

static double difference(const float *a, const float *b, int64_t n) { /* root mean square, over that of b */
    double d = 0.0, s = 0.0;
    for (int64_t i = 0; i < n; i++) d += pow((double)a[i] - (double)b[i], 2.0), s += pow((double)b[i], 2.0);
    return sqrt(d / s);
}

static void threads_and_precision(void **state) {
    (void)state;
    float *first = NULL;
    for (int threads = 1; threads < 4; threads += 2) {
        mhla_context *context = new_context(threads);
        mhla_model_set_context(model, context);
        float *got = decoded(model, NULL);
        if (first) assert_memory_equal(got, first, sizeof(float) * 3 * SIDE * SIDE);
        if (first) free(got);
        if (!first) first = got;
        mhla_model_set_context(model, NULL);
        mhla_context_free(context);
    }
    mhla_model *half;
    ASSERT_OK(mhla_model_save(model, in_folder(folder, "f32")));
    const mhla_open_desc desc = {.size = sizeof desc, .storage = "bfloat16"},
                         eight = {.size = sizeof eight, .storage = "q8_0"};
    ASSERT_OK(mhla_model_open_as(&half, in_folder(folder, "f32"), &desc));
    float *rough = decoded(half, NULL);
    const double far = difference(rough, first, 3 * SIDE * SIDE);
    assert_true(far > 1e-5 && far < 3e-2);
    mhla_model_free(half);
    ASSERT_FAILS(mhla_model_open_as(&half, in_folder(folder, "f32"), &eight), MHLA_EINVAL, "q8_0");
    free(rough);
    free(first);
}

/* Tiles that overlap cover everything, and come near the whole; a tile as large as the image is the whole. */
static void tiles(void **state) {
    (void)state;
    enum { H = 72, W = 100 };
    rng r = {9};
    float *x = new_random(&r, 3 * H * W), *z[3], *y[3], *deviation = new_poisoned(LATENTS * H * W / F / F);
    for (int i = 0; i < 3; i++) {
        mhla_coding c = {.size = sizeof c, .height = H, .width = W, .tile = i == 0 ? 0 : i == 1 ? 104 : 48};
        z[i] = new_poisoned(LATENTS * H * W / F / F);
        y[i] = new_poisoned(3 * H * W);
        ASSERT_OK(mhla_model_encode(model, z[i], deviation, x, 1, &c));
        ASSERT_OK(mhla_model_decode(model, y[i], z[0], 1, &c));
        ASSERT_OK(mhla_coding_settle(model, &c, 1));
        assert_int_equal(c.tiles, i == 2 ? 6 : 1);
        if (i == 2) { /* what it takes is what memory then allows */
            mhla_coding bound = {.size = sizeof bound, .height = H, .width = W, .memory = c.peak};
            const size_t peak = c.peak;
            ASSERT_OK(mhla_coding_settle(model, &bound, 1));
            assert_int_equal(bound.tile, 48);
            bound = (mhla_coding){.size = sizeof bound, .height = H, .width = W, .memory = peak - 1};
            ASSERT_OK(mhla_coding_settle(model, &bound, 1));
            assert_int_equal(bound.tile, 44);
        }
    }
    assert_memory_equal(y[0], y[1], sizeof(float) * 3 * H * W);
    assert_memory_equal(z[0], z[1], sizeof(float) * LATENTS * H * W / F / F);
    assert_true(difference(y[2], y[0], 3 * H * W) < 0.8); /* norms and attention of noise see another image */
    assert_true(difference(z[2], z[0], LATENTS * H * W / F / F) < 0.2);
    for (int i = 0; i < LATENTS * H * W / F / F; i++) assert_true(deviation[i] > 0.0f);
    for (int i = 0; i < 3; i++) {
        free(z[i]);
        free(y[i]);
    }
    free(deviation);
    free(x);
}

/* A network whose result is the same everywhere: blending changes nothing, so that the weights of tiles add up to 1. */
static void blending(void **state) {
    (void)state;
    enum { H = 72, W = 100 };
    mhla_model *flat;
    ASSERT_OK(mhla_model_create(&flat, "sd_vae_nano", NULL, 0, 5));
    mhla_param *w = mhla_params_find(flat->params, "decoder.conv_norm_out.weight");
    mhla_param *b = mhla_params_find(flat->params, "decoder.conv_norm_out.bias");
    mhla_param *out = mhla_params_find(flat->params, "decoder.conv_out.weight");
    for (int64_t i = 0; i < w->count; i++) w->data[i] = 0.0f, b->data[i] = 1.0f;
    for (int64_t i = 0; i < out->count; i++) out->data[i] = i % 9 == 4 ? 0.5f : 0.0f;
    rng r = {10};
    float *z = new_random(&r, LATENTS * H * W / F / F), *y = new_poisoned(3 * H * W);
    for (int tile = 32; tile < 72; tile += 12) {
        const mhla_coding c = {.size = sizeof c, .height = H, .width = W, .tile = tile};
        ASSERT_OK(mhla_model_decode(flat, y, z, 1, &c));
        for (int i = 0; i < 3 * H * W; i++)
            assert_true(fabsf(y[i] - y[i / (H * W) * H * W]) < 1e-5f && fabsf(y[i]) > 1.0f);
    }
    mhla_model_free(flat);
    free(z);
    free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),      cmocka_unit_test(some_names), cmocka_unit_test(layouts),
        cmocka_unit_test(bare_files), cmocka_unit_test(refusals),   cmocka_unit_test(recorded),
        cmocka_unit_test(tiles),      cmocka_unit_test(blending),   cmocka_unit_test(threads_and_precision),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
