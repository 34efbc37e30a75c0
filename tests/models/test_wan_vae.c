/* The autoencoder of Wan: the names of the published files, their halves, what is refused; clips frame by frame, with and without a tape, in
 * tiles, for any number of threads. Its numbers are compared with diffusers' by the goldens. */
#include <math.h>
#include <mhla/diffusion.h>

#include "models/autoencoders/wan_vae.h"
#include "names_case.h"

enum {
    H = 16,
    W = 24,
    FRAMES = 9,
    LATENTS = 16,
    F = 8,
    N = 4,
    Z = LATENTS * 3 * (H / F) * (W / F),
    X = 3 * FRAMES * H * W
};
static char folder[40];
static mhla_model *model;
static const mhla_coding usual = {.size = sizeof usual, .height = H, .width = W, .frames = FRAMES};

static int set_up(void **state) {
    (void)state;
    new_folder(folder);
    return mhla_model_create(&model, "wan_vae_nano", NULL, 0, 3) == MHLA_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    mhla_model_free(model);
    remove_folder(folder);
    return 0;
}

/* ---- Names and files ---- */

typedef struct naming {
    mhla_wan_vae_layout layout;
    const mhla_wan_vae_config *config;
} naming;

static void name_of(char name[256], const void *of, const char *parameter) {
    const naming *n = of;
    mhla_wan_vae_name(name, n->layout, n->config, parameter);
}

static void names(void **state) {
    (void)state;
    mhla_model *full;
    ASSERT_OK(mhla_model_outline(&full, "wan_vae", NULL, 0));
    const mhla_wan_vae_config *c = mhla_wan_vae_config_of(full->net);
    assert_int_equal(mhla_params_elements(full->params), 126892531);
    check_names(full->params, "names/wan21_vae_diffusers.txt", name_of, &(naming){MHLA_WAN_VAE_CURRENT, c});
    check_names(full->params, "names/wan21_vae_original.txt", name_of, &(naming){MHLA_WAN_VAE_ORIGINAL, c});
    mhla_model_free(full);
}

static float *decoded(mhla_model *m, const mhla_coding *coding) {
    rng r = {4};
    float *latent = new_random(&r, Z), *clip = new_poisoned(X);
    ASSERT_OK(mhla_model_decode(m, clip, latent, 1, coding));
    free(latent);
    return clip;
}

static void write_as(const char *path, mhla_wan_vae_layout layout, const char *part, const char *more) {
    write_named(path, model->params, name_of, &(naming){layout, mhla_wan_vae_config_of(model->net)}, MHLA_IO_F32, part,
                more);
}

static void write_text(const char *name, const char *text) { write_file(folder, name, text, strlen(text)); }

/* Files with a config.json, and bare ones of either half, whose sizes are those of the tensors. */
static void layouts(void **state) {
    (void)state;
    static const char *const parts[] = {"", "encoder", "decoder"};
    float *want = decoded(model, &usual);
    mhla_model *m;
    write_text("v/config.json", "{\"_class_name\": \"AutoencoderKLWan\", \"base_dim\": 8, \"num_res_blocks\": 1}");
    for (int layout = 0; layout < 2; layout++) {
        write_as(in_folder(folder, "v/diffusion_pytorch_model.safetensors"), (mhla_wan_vae_layout)layout, "", NULL);
        ASSERT_OK(mhla_model_open(&m, in_folder(folder, "v")));
        float *got = decoded(m, &usual);
        assert_memory_equal(got, want, sizeof(float) * X);
        free(got);
        ASSERT_OK(mhla_model_save(m, in_folder(folder, "again")));
        mhla_model_free(m);
        ASSERT_OK(mhla_model_open(&m, in_folder(folder, "again")));
        got = decoded(m, &usual);
        assert_memory_equal(got, want, sizeof(float) * X);
        free(got);
        mhla_model_free(m);
        for (int part = 0; part < 3; part++) {
            char path[512];
            snprintf(path, sizeof path, "%s/bare.safetensors", folder);
            remove(path);
            write_as(path, (mhla_wan_vae_layout)layout, parts[part], NULL);
            if (part) { /* what lies outside of the halves */
                static const char *const ends[] = {"", "quant_conv", "post_quant_conv"};
                static char all[512][256];
                mhla_storable list[512];
                int n = 0;
                for (int i = 0; i < mhla_params_count(model->params); i++) {
                    const mhla_param *p = mhla_params_at(model->params, i);
                    if (strncmp(p->name, parts[part], 7) != 0 && strncmp(p->name, ends[part], strlen(ends[part])) != 0)
                        continue;
                    name_of(all[n], &(naming){(mhla_wan_vae_layout)layout, mhla_wan_vae_config_of(model->net)},
                            p->name);
                    list[n] = (mhla_storable){all[n], p->dims, p->shape, p->data, MHLA_IO_F32, MHLA_IO_F32};
                    n++;
                }
                ASSERT_OK(mhla_safetensors_write(path, list, n, NULL, 0));
            }
            ASSERT_OK(mhla_model_open(&m, path));
            const mhla_wan_vae_config *c = mhla_wan_vae_config_of(m->net);
            assert_int_equal(mhla_wan_vae_levels(c), 4);
            assert_int_equal(c->base, 8);
            assert_int_equal(c->widths[0] * 1000 + c->widths[1] * 100 + c->widths[2] * 10 + c->widths[3], 1244);
            assert_int_equal(c->time[0] * 100 + c->time[1] * 10 + c->time[2], 11);
            assert_int_equal(c->layers, 1);
            assert_int_equal(c->encoder, part != 2);
            assert_int_equal(c->decoder, part != 1);
            mhla_model_free(m);
        }
    }
    free(want);
}

/* A file that is named by itself is what its tensors say, whatever config.json stands beside it. */
static void another_config(void **state) {
    (void)state;
    mhla_model *m;
    write_text("wan/config.json", "{\"_class_name\": \"DiTTransformer2DModel\"}");
    write_as(in_folder(folder, "wan/Wan_VAE.safetensors"), MHLA_WAN_VAE_ORIGINAL, "", NULL);
    ASSERT_OK(mhla_model_open(&m, in_folder(folder, "wan/Wan_VAE.safetensors")));
    assert_true(mhla_model_has(m, MHLA_ROLE_AUTOENCODER));
    mhla_model_free(m);
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "wan")), MHLA_ENOTSUP, "DiTTransformer2DModel");
}

static void refusals(void **state) {
    (void)state;
    mhla_model *m;
    static const char *const wrong[][2] = {
        {"\"is_residual\": true", "is_residual"},
        {"\"patch_size\": 2", "patch_size"},
        {"\"latents_mean\": [1, 2]", "latents_mean is not a list of 16"},
        {"\"latents_std\": [0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "latents_std[0]"},
        {"\"temperal_downsample\": [true]", "temperal_downsample is not a list of 3"},
        {"\"base_dim\": 1000", "attention is over at most 1024"},
    };
    write_text("w/config.json", "{}");
    write_text("w/config.json", "{}");
    write_as(in_folder(folder, "w/model.safetensors"), MHLA_WAN_VAE_CURRENT, "", NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"_class_name\": \"AutoencoderKLWan\", \"num_res_blocks\": 1, %s}", wrong[i][0]);
        write_text("w/config.json", text);
        assert_true(mhla_model_open(&m, in_folder(folder, "w")) != MHLA_OK);
        if (strstr(mhla_message(), wrong[i][1]) == NULL) print_error("%s\n", mhla_message());
        assert_non_null(strstr(mhla_message(), wrong[i][1]));
    }
    write_text("w/config.json", "{\"_class_name\": \"AutoencoderKLWan\", \"base_dim\": 8, \"num_res_blocks\": 1}");
    write_as(in_folder(folder, "w/model.safetensors"), MHLA_WAN_VAE_CURRENT, "", "decoder.extra.weight");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "decoder.extra.weight");

    float *x = new_poisoned(X), *z = new_poisoned(Z);
    mhla_coding c = usual;
    c.frames = 8;
    ASSERT_FAILS(mhla_model_encode(model, z, NULL, x, 1, &c), MHLA_EINVAL, "8 frames: expected 1 plus a multiple of 4");
    c.frames = -3;
    ASSERT_FAILS(mhla_model_encode(model, z, NULL, x, 1, &c), MHLA_EINVAL, "frames is -3");
    c = usual;
    c.width = 20;
    ASSERT_FAILS(mhla_model_decode(model, x, z, 1, &c), MHLA_EINVAL, "each side must be a multiple of 8");
    free(x);
    free(z);
}

/* ---- The network ---- */

/* A clip that is longer begins with the same frames, bit by bit; an image is a clip of one frame. */
static void prefixes(void **state) {
    (void)state;
    rng r = {5};
    float *x = new_random(&r, X), *z = new_poisoned(Z), *one = new_poisoned(Z / 3),
          *first = new_bytes(sizeof(float) * X / FRAMES);
    const int64_t plane = (int64_t)H * W, small = (int64_t)(H / F) * (W / F);
    mhla_coding c = usual;
    ASSERT_OK(mhla_model_encode(model, z, NULL, x, 1, &c));
    for (int i = 0; i < 3; i++) memcpy(first + i * plane, x + i * FRAMES * plane, sizeof(float) * (size_t)plane);
    c.frames = 0;
    ASSERT_OK(mhla_model_encode(model, one, NULL, first, 1, &c));
    for (int i = 0; i < LATENTS; i++)
        assert_memory_equal(one + i * small, z + i * 3 * small, sizeof(float) * (size_t)small);
    float *clip = decoded(model, &usual);
    rng again = {4};
    float *latent = new_random(&again, Z), *start = new_poisoned(X);
    for (int i = 0; i < LATENTS; i++)
        memmove(latent + i * 2 * small, latent + i * 3 * small, sizeof(float) * (size_t)(2 * small));
    c.frames = 5;
    ASSERT_OK(mhla_model_decode(model, start, latent, 1, &c));
    for (int i = 0; i < 3; i++)
        assert_memory_equal(start + i * 5 * plane, clip + i * FRAMES * plane, sizeof(float) * (size_t)(5 * plane));
    free(x);
    free(z);
    free(one);
    free(first);
    free(clip);
    free(latent);
    free(start);
}

/* A clip through both halves, and sum(y dy). */
static double through(mhla_tape *t, const float *x, const float *dy, mhla_tensor **y) {
    double sum = 0.0;
    mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(1, 3, 5, 8, 16));
    mhla_tensor *m = mhla_wan_vae_encode(t, model->net, NULL, in);
    mhla_nn_clip *mean = mhla_nn_clip_begin(t, 1, LATENTS, 2, 1, 2);
    for (int f = 0; f < 2; f++) mhla_nn_clip_put(t, mean, mhla_nn_slice(t, mhla_nn_frame(t, f, m), 0, LATENTS));
    *y = mhla_wan_vae_decode(t, model->net, NULL, mhla_nn_clip_end(t, mean));
    ASSERT_OK(mhla_tape_status(t));
    for (int e = 0; e < 3 * 5 * 8 * 16; e++) sum += (double)(*y)->data[e] * (double)dy[e];
    return sum;
}

/* With a tape that records the numbers are the same, and gradients those of small steps along their signs. */
static void recorded(void **state) {
    (void)state;
    enum { COUNT = 3 * 5 * 8 * 16 };
    rng r = {8};
    float *x = new_random(&r, COUNT), *dy = new_random(&r, COUNT), *first = new_bytes(sizeof(float) * COUNT);
    mhla_tape *t;
    mhla_tensor *y;
    double values[2], slope = 0.0;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    through(t, x, dy, &y);
    memcpy(first, y->data, sizeof(float) * COUNT);
    mhla_params_clear_grads(model->params);
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    through(t, x, dy, &y);
    assert_memory_equal(first, y->data, sizeof(float) * COUNT);
    ASSERT_OK(mhla_tape_backward_from(t, y, dy));
    for (int p = 0; p < mhla_params_count(model->params); p++) {
        const mhla_param *w = mhla_params_at(model->params, p);
        assert_true(w->has_grad);
        for (int64_t e = 0; e < w->count; e++) slope += fabs((double)w->grad[e]);
    }
    for (int i = 0; i < 2; i++) {
        for (int p = 0; p < mhla_params_count(model->params); p++) {
            mhla_param *w = mhla_params_at(model->params, p);
            for (int64_t e = 0; e < w->count; e++)
                w->data[e] += (i ? -4e-5f : 2e-5f) * (w->grad[e] > 0.0f ? 1.0f : -1.0f);
            mhla_param_touch(w);
        }
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        values[i] = through(t, x, dy, &y);
    }
    if (fabs((values[0] - values[1]) / 4e-5 - slope) > 3e-2 * slope)
        print_error("slope %g, steps %g\n", slope, (values[0] - values[1]) / 4e-5);
    assert_true(fabs((values[0] - values[1]) / 4e-5 - slope) < 3e-2 * slope);
    mhla_tape_free(t);
    mhla_model_free(model); /* as it was */
    ASSERT_OK(mhla_model_create(&model, "wan_vae_nano", NULL, 0, 3));
    free(x);
    free(dy);
    free(first);
}

static void threads(void **state) {
    (void)state;
    float *first = NULL;
    for (int n = 1; n < 4; n += 2) {
        mhla_context *context = new_context(n);
        mhla_model_set_context(model, context);
        float *got = decoded(model, &usual);
        if (first) assert_memory_equal(got, first, sizeof(float) * X);
        if (first) free(got);
        if (!first) first = got;
        mhla_model_set_context(model, NULL);
        mhla_context_free(context);
    }
    free(first);
}

/* Frames cost memory for what comes out alone; tiles come near the whole. */
static void memory_and_tiles(void **state) {
    (void)state;
    mhla_coding some = {.size = sizeof some, .height = 64, .width = 96, .frames = 5}, many = some;
    many.frames = 81;
    ASSERT_OK(mhla_coding_settle(model, &some, 1));
    ASSERT_OK(mhla_coding_settle(model, &many, 1));
    assert_true(many.peak < some.peak + (size_t)76 * 3 * 64 * 96 * 4 + (1 << 20));
    const int64_t n = (int64_t)3 * 5 * 64 * 96, z = (int64_t)LATENTS * 2 * 8 * 12;
    rng r = {11};
    float *latent = new_random(&r, z), *whole = new_poisoned(n), *tiled = new_poisoned(n);
    ASSERT_OK(mhla_model_decode(model, whole, latent, 1, &some));
    mhla_coding tiles = {.size = sizeof tiles, .height = 64, .width = 96, .frames = 5, .tile = 64};
    ASSERT_OK(mhla_model_decode(model, tiled, latent, 1, &tiles));
    ASSERT_OK(mhla_coding_settle(model, &tiles, 1));
    assert_int_equal(tiles.tiles, 2);
    double d = 0.0, s = 0.0;
    for (int64_t i = 0; i < n; i++) d += pow((double)(whole[i] - tiled[i]), 2.0), s += pow((double)whole[i], 2.0);
    assert_true(d > 0.0 && sqrt(d / s) < 0.2);
    free(latent);
    free(whole);
    free(tiled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),    cmocka_unit_test(layouts),          cmocka_unit_test(another_config),
        cmocka_unit_test(refusals), cmocka_unit_test(prefixes),         cmocka_unit_test(recorded),
        cmocka_unit_test(threads),  cmocka_unit_test(memory_and_tiles),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
