/* The autoencoder of SANA: the goldens of diffusers, the names of the published files in any precision and in pieces, halves, what is
 * refused; the network with and without a tape, in tiles, in bfloat16, for any number of threads. */
#include <math.h>
#include <mhla/diffusion.h>

#include "models/autoencoders/dc.h"
#include "names_case.h"

enum { SIDE = 32, LATENTS = 8, F = 8, SMALL = LATENTS * (SIDE / F) * (SIDE / F), PIXELS = 3 * SIDE * SIDE };
static char folder[40];
static mhla_model *model;

static int set_up(void **state) {
    (void)state;
    new_folder(folder);
    return mhla_model_create(&model, "dc_ae_nano", NULL, 0, 3) == MHLA_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    mhla_model_free(model);
    remove_folder(folder);
    return 0;
}

/* ---- Goldens ---- */

static void fill(const mhla_params *params, const mhla_safetensors *f) {
    int of_half = 0;
    for (int i = 0; i < mhla_params_count(params); i++) {
        mhla_param *p = mhla_params_at(params, i);
        char name[256];
        snprintf(name, sizeof name, "param.%s", p->name);
        const mhla_stored *s = mhla_safetensors_find(f, name);
        if (s == NULL) continue; /* a golden has one half */
        assert_int_equal(s->count, p->count);
        ASSERT_OK(mhla_stored_read(p->data, s));
        mhla_param_touch(p);
        of_half++;
    }
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++)
        of_half -= strncmp(mhla_safetensors_at(f, i)->name, "param.", 6) == 0;
    assert_int_equal(of_half, 0);
}

/* Tokens of a grid as an image, against a golden of that name where there is one. */
static void compare(const mhla_safetensors *f, const char *name, const mhla_tensor *x, const char *path) {
    const mhla_stored *s = mhla_safetensors_find(f, name);
    assert_non_null(s);
    assert_int_equal(s->count, x->rows * x->cols);
    float *want = golden(f, name, ""), *got = new_poisoned(s->count);
    const int64_t C = s->shape[1], n = s->shape[2] * s->shape[3];
    for (int64_t i = 0; i < s->count; i++) got[i] = x->dims == 4 ? x->data[i] : x->data[i % n * C + i / n];
    ASSERT_CLOSE(got, want, s->count, 2e-6, "%s of %s", name, path);
    free(want);
    free(got);
}

static void check_golden(const char *path, const mhla_safetensors *f, const json_t *said) {
    mhla_dc_config c;
    mhla_dc *net;
    mhla_tape *t;
    char name[64];
    const mhla_stored *s;
    json_t *tree = json_copy((json_t *)(uintptr_t)said);
    json_object_set_new(tree, "_class_name", json_string("AutoencoderDC"));
    ASSERT_OK(mhla_dc_config_read(&c, tree, path));
    json_decref(tree);
    ASSERT_OK(mhla_dc_create(&net, &c));
    fill(mhla_dc_params(net), f);
    ASSERT_OK(mhla_tape_create(&t, NULL));
    const int decode = mhla_safetensors_find(f, "in.latent") != NULL, count = mhla_dc_count(&c.decoder);
    ASSERT_OK(mhla_safetensors_need(&s, f, decode ? "in.latent" : "in.image"));
    float *x = golden(f, s->name, "");
    for (int64_t i = 0; i < s->count && decode; i++) x[i] = (float)((double)x[i] / c.scale);
    for (int recorded = 0; recorded < 2; recorded++) {
        mhla_tensor *trace[MHLA_DC_STAGES + 2] = {NULL}, *y;
        mhla_tape_begin(t, recorded ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
        mhla_tensor *in = mhla_nn_variable(t, x, s->shape, s->rank);
        y = decode ? mhla_dc_decode(t, net, recorded ? trace : NULL, in) : mhla_dc_encode(t, net, in);
        ASSERT_OK(mhla_tape_status(t));
        compare(f, decode ? "out.sample" : "out.latent", y, path);
        if (!decode || !recorded) continue;
        compare(f, "out.decoder.conv_in", trace[0], path);
        snprintf(name, sizeof name, "out.decoder.up_blocks.%d.0.attn", count - 1);
        compare(f, name, trace[1], path);
        for (int i = 0; i < count; i++) {
            snprintf(name, sizeof name, "out.decoder.up_blocks.%d", i);
            compare(f, name, trace[count + 1 - i], path);
        }
    }
    mhla_tape_free(t);
    mhla_dc_free(net);
    free(x);
}

static void goldens(void **state) {
    (void)state;
    each_golden("case", "dcae_*", check_golden);
}

/* ---- Names ---- */

/* How the authors call a parameter; levels that not all files have are there, but for `level` 1, and the convolution on the way up or down
 * is `conv` or, as their modules would say it, twice that. Queries, keys and values have one name. */
static void their_name(char name[256], const char *ours, int level, int *part) {
    static const char *const rules[][2] = {
        {"encoder.conv_in", "encoder.project_in.conv"},      {"encoder.conv_out", "encoder.project_out.main.0.conv"},
        {"decoder.conv_in", "decoder.project_in.main.conv"}, {"decoder.norm_out", "decoder.project_out.0"},
        {"decoder.conv_out", "decoder.project_out.2.conv"},
    };
    static const char *const parts[][2] = {
        {"conv1", "main.conv1.conv"},
        {"conv2", "main.conv2.conv"},
        {"norm", "main.conv2.norm"},
        {"conv", "main.conv"},
        {"attn.to_q", "context_module.main.qkv.conv"},
        {"attn.to_k", "context_module.main.qkv.conv"},
        {"attn.to_v", "context_module.main.qkv.conv"},
        {"attn.to_qkv_multiscale.0.proj_in", "context_module.main.aggreg.0.0"},
        {"attn.to_qkv_multiscale.0.proj_out", "context_module.main.aggreg.0.1"},
        {"attn.to_out", "context_module.main.proj.conv"},
        {"attn.norm_out", "context_module.main.proj.norm"},
        {"conv_out.conv_inverted", "local_module.main.inverted_conv.conv"},
        {"conv_out.conv_depth", "local_module.main.depth_conv.conv"},
        {"conv_out.conv_point", "local_module.main.point_conv.conv"},
        {"conv_out.norm", "local_module.main.point_conv.norm"},
    };
    const char *end = strrchr(ours, '.');
    char half[16], list[16], rest[128];
    int stage, block, n = 0;
    *part = -1;
    if (sscanf(ours, "%15[a-z].%15[a-z_].%d.%d.%n", half, list, &stage, &block, &n) == 4 && n) {
        snprintf(rest, sizeof rest, "%.*s", (int)(end - ours - n), ours + n);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (strcmp(rest, parts[i][0]) == 0) {
                if (strncmp(rest, "attn.to_", 8) == 0 && strlen(rest) == 9)
                    *part = rest[8] == 'q' ? 0 : rest[8] == 'k' ? 1 : 2;
                snprintf(name, 256, "%s.stages.%d.op_list.%d.%s%s%s", half, stage, block, parts[i][1],
                         level == 2 && strcmp(rest, "conv") == 0 ? ".conv" : "", end);
            }
    } else {
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
            if (strncmp(ours, rules[i][0], (size_t)(end - ours)) == 0) snprintf(name, 256, "%s%s", rules[i][1], end);
    }
    for (char *at; level == 1 && (at = strstr(name, "main.")) != NULL;) memmove(at, at + 5, strlen(at + 5) + 1);
}

static void same_name(char name[256], const void *of, const char *parameter) {
    (void)of;
    snprintf(name, 256, "%s", parameter);
}

/* Every parameter is in the list of the published files, under its name or as the authors call it. */
static void names(void **state) {
    (void)state;
    mhla_model *full;
    char path[512], line[512], found[256], name[256];
    int hits = 0, count = 0, part;
    ASSERT_OK(mhla_model_outline(&full, "dc_ae", NULL, 0));
    assert_int_equal(mhla_params_elements(full->params), 312250275);
    check_names(full->params, "names/dcae_f32c32_sana_diffusers.txt", same_name, NULL);
    FILE *f = fopen(golden_path(path, "names/dcae_f32c32_sana_original.txt"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (*line == '#' || sscanf(line, "%255s", found) != 1) continue;
        const int before = hits;
        for (int i = 0; i < mhla_params_count(full->params); i++) {
            their_name(name, mhla_params_at(full->params, i)->name, 0, &part);
            hits += strcmp(name, found) == 0;
        }
        if (hits != before + (strstr(found, "qkv") ? 3 : 1)) fail_msg("%s: %d parameters", found, hits - before);
        count++;
    }
    fclose(f);
    assert_int_equal(hits, mhla_params_count(full->params));
    assert_int_equal(count, hits - 2 * 18); /* as many blocks with attention */
    mhla_model_free(full);
}

/* ---- Files ---- */

/* The tensors of m as the authors have them, those that begin with `half`, and perhaps one more. */
static void write_original(const mhla_model *m, const char *path, int level, mhla_io_dtype dtype, const char *half) {
    static char text[512][256];
    static int64_t shapes[512][MHLA_MAX_DIMS];
    static float *fused[512];
    mhla_storable list[512];
    int n = 0, part;
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (strncmp(p->name, half, strlen(half)) != 0) continue;
        their_name(text[n], p->name, level, &part);
        if (part > 0) { /* behind the queries */
            for (int at = 0; at < n; at++)
                if (strcmp(text[at], text[n]) == 0)
                    memcpy(fused[at] + part * p->count, p->data, sizeof(float) * (size_t)p->count);
            continue;
        }
        const int matrix = p->dims == 2; /* theirs are convolutions */
        memcpy(shapes[n], p->shape, sizeof *shapes);
        if (matrix) shapes[n][2] = shapes[n][3] = 1;
        if (part == 0) shapes[n][0] *= 3;
        fused[n] = new_poisoned(p->count * 3);
        memcpy(fused[n], p->data, sizeof(float) * (size_t)p->count);
        list[n] = (mhla_storable){text[n], matrix ? 4 : p->dims, shapes[n], fused[n], MHLA_IO_F32, dtype};
        n++;
    }
    ASSERT_OK(mhla_safetensors_write(path, list, n, NULL, 0));
    for (int i = 0; i < n; i++) free(fused[i]);
}

static void write_ours(const char *path, mhla_io_dtype dtype, const char *half, const char *more) {
    remove(path);
    write_named(path, model->params, same_name, NULL, dtype, half, more);
}
static void write_config(const char *name, const char *text) { write_file(folder, name, text, strlen(text)); }

static float *decoded(mhla_model *m, const mhla_coding *coding) {
    rng r = {4};
    float *latent = new_random(&r, SMALL), *image = new_poisoned(PIXELS);
    const mhla_coding usual = {.size = sizeof usual, .height = SIDE, .width = SIDE};
    ASSERT_OK(mhla_model_decode(m, image, latent, 1, coding ? coding : &usual));
    free(latent);
    return image;
}

static double difference(const float *a, const float *b, int64_t n) { /* root mean square, over that of b */
    double d = 0.0, s = 0.0;
    for (int64_t i = 0; i < n; i++) d += pow((double)a[i] - (double)b[i], 2.0), s += pow((double)b[i], 2.0);
    return sqrt(d / s);
}

/* Both kinds of names in three precisions, with config.json and without, whole and by halves. */
static void files(void **state) {
    (void)state;
    static const mhla_io_dtype types[] = {MHLA_IO_F32, MHLA_IO_F16, MHLA_IO_BF16};
    float *want = decoded(model, NULL);
    for (int kind = 0; kind < 4; kind++) /* ours, theirs with all levels, fewer, more */
        for (int type = 0; type < 3; type++)
            for (int config = 0; config < 2; config++) {
                mhla_model *m;
                remove(in_folder(folder, "v/config.json"));
                write_config(config ? "v/config.json" : "v/nothing", config ? model->config : "");
                remove(in_folder(folder, "v/diffusion_pytorch_model.safetensors"));
                char path[512];
                snprintf(path, sizeof path, "%s/v/diffusion_pytorch_model.safetensors", folder);
                if (kind)
                    write_original(model, path, kind - 1, types[type], "");
                else
                    write_ours(path, types[type], "", NULL);
                ASSERT_OK(mhla_model_open(&m, config ? in_folder(folder, "v") : path));
                float *got = decoded(m, NULL);
                const double far = difference(got, want, PIXELS);
                assert_true(type == 0 ? far == 0.0 : far > 0.0 && far < (type == 1 ? 4e-3 : 3e-2));
                free(got);
                ASSERT_OK(mhla_model_save(m, in_folder(folder, "again")));
                mhla_model_free(m);
                ASSERT_OK(mhla_model_open(&m, in_folder(folder, "again")));
                mhla_model_free(m);
            }
    free(want);
}

/* Without a config.json the sizes are the tensors'; either half alone is half an autoencoder. */
static void bare_files(void **state) {
    (void)state;
    static const char *const settings[] = {"encoder_block_out_channels=8,16,32",
                                           "decoder_block_out_channels=8,32,64",
                                           "encoder_layers_per_block=1,2,1",
                                           "decoder_layers_per_block=2",
                                           "latent_channels=4",
                                           "upsample_block_type=pixel_shuffle",
                                           "attention_head_dim=4",
                                           "downsample_block_type=pixel_unshuffle",
                                           "in_channels=1"};
    static const char *const parts[] = {"", "encoder", "decoder"};
    mhla_model *wide, *was = model, *m;
    ASSERT_OK(mhla_model_create(&wide, "dc_ae_nano", settings, 9, 1));
    model = wide;
    for (int theirs = 0; theirs < 2; theirs++)
        for (int part = 0; part < 3; part++) {
            char path[512];
            snprintf(path, sizeof path, "%s/bare.safetensors", folder);
            if (theirs)
                write_original(model, path, 0, MHLA_IO_F32, parts[part]);
            else
                write_ours(path, MHLA_IO_F32, parts[part], NULL);
            ASSERT_OK(mhla_model_open(&m, path));
            const mhla_dc_config *c = mhla_dc_config_of(m->net), *all = mhla_dc_config_of(wide->net);
            assert_int_equal(c->encodes, part != 2);
            assert_int_equal(c->decodes, part != 1);
            if (c->encodes) assert_memory_equal(&c->encoder, &all->encoder, sizeof c->encoder);
            if (c->decodes) assert_memory_equal(&c->decoder, &all->decoder, sizeof c->decoder);
            assert_int_equal(c->head_dim, 4);
            assert_int_equal(c->latents, 4);
            assert_int_equal(c->channels, 1);
            assert_true(c->scale == 0.41407);
            if (part != 2) assert_int_equal(c->unshuffle, 1);
            if (part != 1) assert_int_equal(c->shuffle, 1);
            float x[16 * 16] = {0}, z[4 * 16] = {0};
            const mhla_coding d = {.size = sizeof d, .height = 16, .width = 16};
            if (part == 1) ASSERT_FAILS(mhla_model_decode(m, x, z, 1, &d), MHLA_EINVAL, "has no decoder");
            if (part == 2) ASSERT_FAILS(mhla_model_encode(m, z, NULL, x, 1, &d), MHLA_EINVAL, "has no encoder");
            mhla_model_free(m);
        }
    model = was;
    mhla_model_free(wide);
}

/* In pieces under diffusers' name of the index. */
static void shards(void **state) {
    (void)state;
    mhla_model *m;
    json_t *map = json_object(), *index = json_object();
    for (int half = 0; half < 2; half++) {
        char name[64], path[128];
        snprintf(name, sizeof name, "diffusion_pytorch_model-0000%d-of-00002.safetensors", half + 1);
        write_config("sharded/config.json", model->config);
        snprintf(path, sizeof path, "sharded/%s", name);
        write_ours(in_folder(folder, path), MHLA_IO_F32, half ? "decoder" : "encoder", NULL);
        for (int i = 0; i < mhla_params_count(model->params); i++) {
            const char *p = mhla_params_at(model->params, i)->name;
            if (*p == (half ? 'd' : 'e')) json_object_set_new(map, p, json_string(name));
        }
    }
    json_object_set_new(index, "weight_map", map);
    char *text = json_dumps(index, 0);
    write_config("sharded/diffusion_pytorch_model.safetensors.index.json", text);
    free(text);
    json_decref(index);
    ASSERT_OK(mhla_model_open(&m, in_folder(folder, "sharded")));
    float *got = decoded(m, NULL), *want = decoded(model, NULL);
    assert_memory_equal(got, want, sizeof *got * PIXELS);
    free(got);
    free(want);
    mhla_model_free(m);
}

/* The config of the small model with other keys. */
static void change_config(const char *changes) {
    json_t *tree = json_loads(model->config, 0, NULL), *other = json_loads(changes, 0, NULL);
    assert_non_null(other);
    json_object_update(tree, other);
    char *text = json_dumps(tree, 0);
    write_config("w/config.json", text);
    free(text);
    json_decref(tree);
    json_decref(other);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *changes, *says;
    } configs[] = {
        {"{\"decoder_norm_types\": [\"batch_norm\", \"rms_norm\", \"rms_norm\", \"rms_norm\"]}",
         "decoder_norm_types has \"batch_norm\": known is rms_norm"},
        {"{\"decoder_act_fns\": \"relu\"}", "decoder_act_fns has \"relu\": known is silu"},
        {"{\"encoder_layers_per_block\": [0, 1, 1, 1]}", "encoder_layers_per_block[0] is 0"},
        {"{\"encoder_layers_per_block\": [1, 1, 1]}",
         "encoder_layers_per_block has 3 numbers, encoder_block_out_channels 4"},
        {"{\"decoder_block_types\": [\"ResBlock\", \"X\", \"ResBlock\", \"ResBlock\"]}",
         "decoder_block_types has \"X\""},
        {"{\"decoder_block_types\": [\"ResBlock\"]}", "decoder_block_types is neither a text nor a list of 4 texts"},
        {"{\"encoder_qkv_multiscales\": [[], [], [4], [5]]}", "encoder_qkv_multiscales[2][0] is not an odd number"},
        {"{\"encoder_qkv_multiscales\": [5]}", "encoder_qkv_multiscales is not a list of 4 lists"},
        {"{\"upsample_block_type\": \"bilinear\"}",
         "\"upsample_block_type\" is \"bilinear\": known are interpolate|pixel_shuffle"},
        {"{\"attention_head_dim\": 12}", "encoder_block_out_channels 32 is not a multiple of attention_head_dim 12"},
        {"{\"latent_channels\": 9}", "encoder_block_out_channels 32 is not a multiple of latent_channels 9"},
        {"{\"encoder_block_out_channels\": [16, 24, 32, 32]}", "encoder_block_out_channels 16 and 24"},
        {"{\"decoder_block_out_channels\": [16, 32, 32], \"decoder_layers_per_block\": [1, 1, 1], "
         "\"decoder_block_types\": "
         "\"ResBlock\", \"decoder_qkv_multiscales\": null}",
         "the encoder has 4 stages, the decoder 3"},
        {"{\"decoder_layers_per_block\": [1, 2, 1, 1]}", "no tensor \"decoder.up_blocks.1.2.conv1.weight\""},
        {"{\"encoder_block_out_channels\": [16, 32, 32, 32]}",
         "tensor \"encoder.down_blocks.0.1.conv.weight\" has the shape [16, 16, 3, 3], expected [32, 16, 3, 3]"},
        {"{\"_class_name\": \"AutoencoderKL\"}", "no tensors of an AutoencoderKL"},
    };
    mhla_model *m, *other;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        change_config(configs[i].changes);
        write_ours(in_folder(folder, "w/model.safetensors"), MHLA_IO_F32, "", NULL);
        assert_int_not_equal(mhla_model_open(&m, in_folder(folder, "w")), MHLA_OK);
        if (strstr(mhla_message(), configs[i].says) == NULL) fail_msg("%s", mhla_message());
    }
    write_config("w/config.json", model->config);
    write_ours(in_folder(folder, "w/model.safetensors"), MHLA_IO_F32, "", "decoder.extra.weight");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA,
                 "\"decoder.extra.weight\" is not part of the model");
    write_ours(in_folder(folder, "w/model.safetensors"), MHLA_IO_F32, "encoder.down_blocks.0.0", NULL);
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "w")), MHLA_EDATA, "no tensor \"encoder.conv_in.weight\"");
    ASSERT_OK(mhla_model_create(&other, "sd_vae_nano", NULL, 0, 1)); /* tensors of another family */
    ASSERT_OK(mhla_model_save(other, in_folder(folder, "other")));
    write_config("other/config.json", model->config);
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "other")), MHLA_EDATA, "no tensors of an AutoencoderDC");
    mhla_model_free(other);

    float x[PIXELS] = {0}, z[SMALL] = {0};
    mhla_coding c = {.size = sizeof c, .height = SIDE + 4, .width = SIDE};
    ASSERT_FAILS(mhla_model_encode(model, z, NULL, x, 1, &c), MHLA_EINVAL,
                 "32 x 36 pixels: each side must be a multiple of 8");
    c.height = SIDE;
    c.memory = 1000;
    ASSERT_FAILS(mhla_coding_settle(model, &c, 1), MHLA_ENOMEM, "memory of 1000 bytes");
    static const char *const bad[] = {"encoder_block_out_channels=16,32"};
    ASSERT_FAILS(mhla_model_create(&m, "dc_ae_nano", bad, 1, 1), MHLA_EINVAL, "encoder_layers_per_block has 4 numbers");
}

/* ---- The network ---- */

/* Images [B,3,H,W] there and back, both forms of the way up and down. */
static mhla_tensor *there_and_back(mhla_tape *t, const mhla_model *m, const float *x, int64_t B, int64_t H, int64_t W) {
    mhla_tensor *z = mhla_dc_encode(t, m->net, mhla_nn_input(t, x, MHLA_SHAPE(B, 3, H, W)));
    return mhla_dc_decode(t, m->net, NULL, z);
}

static mhla_model *shuffling(void) {
    static const char *const settings[] = {"upsample_block_type=pixel_shuffle", "downsample_block_type=pixel_unshuffle",
                                           "decoder_conv_act_fn=silu"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "dc_ae_nano", settings, 3, 3));
    return m;
}

/* Gradients are those of small steps along them, and the same where blocks are computed again. */
static void gradients(void **state) {
    (void)state;
    enum { H = 16, W = 24, N = 3 * H * W };
    rng r = {8};
    float *x = new_random(&r, N), *dy = new_random(&r, N);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int kind = 0; kind < 2; kind++) {
        mhla_model *m;
        if (kind)
            m = shuffling();
        else
            ASSERT_OK(mhla_model_create(&m, "dc_ae_nano", NULL, 0, 3));
        const int64_t all = mhla_params_elements(m->params);
        float *first = new_poisoned(all), *result = new_poisoned(N);
        for (int again = 0; again < 2; again++) {
            mhla_params_clear_grads(m->params);
            mhla_tape_begin(t, MHLA_TAPE_RECORD | (again ? MHLA_TAPE_RECOMPUTE : 0));
            mhla_tensor *y = there_and_back(t, m, x, 1, H, W);
            ASSERT_OK(mhla_tape_status(t));
            if (again)
                assert_memory_equal(y->data, result, sizeof *result * N);
            else
                memcpy(result, y->data, sizeof *result * N);
            ASSERT_OK(mhla_tape_backward_from(t, y, dy));
            float *at = first;
            for (int i = 0; i < mhla_params_count(m->params); i++) {
                const mhla_param *p = mhla_params_at(m->params, i);
                assert_true(p->has_grad);
                if (again)
                    assert_memory_equal(p->grad, at, sizeof *at * (size_t)p->count);
                else
                    memcpy(at, p->grad, sizeof *at * (size_t)p->count);
                at += p->count;
            }
        }
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        const mhla_tensor *plain = there_and_back(t, m, x, 1, H, W);
        ASSERT_OK(mhla_tape_status(t));
        assert_memory_equal(plain->data, result, sizeof *result * N);
        for (int k = 0; k < mhla_params_count(m->params); k++) { /* a small step along each parameter's gradient */
            mhla_param *p = mhla_params_at(m->params, k);
            float *was = new_bytes(sizeof *was * (size_t)p->count);
            double sum = 0.0, values[2] = {0.0};
            memcpy(was, p->data, sizeof *was * (size_t)p->count);
            for (int64_t e = 0; e < p->count; e++) sum += pow((double)p->grad[e], 2.0);
            const double step = 2e-3 / sum;
            for (int i = 0; i < 2; i++) {
                for (int64_t e = 0; e < p->count; e++)
                    p->data[e] = (float)((double)was[e] + (i ? -step : step) * (double)p->grad[e]);
                mhla_param_touch(p);
                mhla_tape_begin(t, MHLA_TAPE_INFER);
                const mhla_tensor *y = there_and_back(t, m, x, 1, H, W);
                ASSERT_OK(mhla_tape_status(t));
                for (int e = 0; e < N; e++) values[i] += (double)y->data[e] * (double)dy[e];
            }
            memcpy(p->data, was, sizeof *was * (size_t)p->count);
            mhla_param_touch(p);
            free(was);
            const double slope = (values[0] - values[1]) / 4e-3;
            if (!(fabs(slope - 1.0) < 1e-2))
                fail_msg("kind %d, %s: %g of the slope that its gradient says", kind, p->name, slope);
        }
        free(first);
        free(result);
        mhla_model_free(m);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
}

/* An image's result is the same in any batch. */
static void batches(void **state) {
    (void)state;
    enum { B = 3, H = 16, W = 24, N = 3 * H * W };
    rng r = {6};
    float *x = new_random(&r, B * N), *all = new_poisoned(B * N);
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int i = -1; i < B; i++) {
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        const mhla_tensor *y = there_and_back(t, model, i < 0 ? x : x + i * N, i < 0 ? B : 1, H, W);
        ASSERT_OK(mhla_tape_status(t));
        if (i < 0)
            memcpy(all, y->data, sizeof *all * B * N);
        else
            assert_memory_equal(y->data, all + i * N, sizeof *all * N);
    }
    mhla_tape_free(t);
    free(x);
    free(all);
}

static void threads_and_precision(void **state) {
    (void)state;
    float *first = NULL;
    for (int threads = 1; threads < 4; threads += 2) {
        mhla_context *context = new_context(threads);
        mhla_model_set_context(model, context);
        float *got = decoded(model, NULL);
        if (first) assert_memory_equal(got, first, sizeof(float) * PIXELS);
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
    const double far = difference(rough, first, PIXELS);
    assert_true(far > 1e-5 && far < 3e-2);
    mhla_model_free(half);
    ASSERT_FAILS(mhla_model_open_as(&half, in_folder(folder, "f32"), &eight), MHLA_EINVAL, "q8_0");
    free(rough);
    free(first);
}

/* Tiles that overlap cover everything, and come near the whole; a tile as large as the image is the whole. Latents are certain. */
static void tiles(void **state) {
    (void)state;
    enum { H = 96, W = 136, Z = LATENTS * (H / F) * (W / F), N = 3 * H * W };
    rng r = {9};
    float *x = new_random(&r, N), *z[3], *y[3], *deviation = new_poisoned(Z);
    for (int i = 0; i < 3; i++) {
        mhla_coding c = {.size = sizeof c, .height = H, .width = W, .tile = i == 0 ? 0 : i == 1 ? 136 : 64};
        z[i] = new_poisoned(Z);
        y[i] = new_poisoned(N);
        ASSERT_OK(mhla_model_encode(model, z[i], deviation, x, 1, &c));
        ASSERT_OK(mhla_model_decode(model, y[i], z[0], 1, &c));
        ASSERT_OK(mhla_coding_settle(model, &c, 1));
        assert_int_equal(c.tiles, i == 2 ? 6 : 1);
        if (i == 2) { /* what it takes is what memory then allows */
            mhla_coding bound = {.size = sizeof bound, .height = H, .width = W, .memory = c.peak};
            ASSERT_OK(mhla_coding_settle(model, &bound, 1));
            assert_int_equal(bound.tile, 64);
        }
    }
    assert_memory_equal(y[0], y[1], sizeof(float) * N);
    assert_memory_equal(z[0], z[1], sizeof(float) * Z);
    assert_true(difference(y[2], y[0], N) < 0.3); /* attention sees another image */
    assert_true(difference(z[2], z[0], Z) < 0.3);
    for (int i = 0; i < Z; i++) assert_true(deviation[i] == 0.0f);
    for (int i = 0; i < 3; i++) {
        free(z[i]);
        free(y[i]);
    }
    free(deviation);
    free(x);
}

/* Products of the published decoder at 32 x 32 pixels, one latent, counted by hand: stages from the last to the first. */
static void cost(void **state) {
    (void)state;
    mhla_model *m;
    mhla_coding c = {.size = sizeof c, .height = 32, .width = 32, .tile = 256};
    ASSERT_OK(mhla_model_outline(&m, "dc_ae", NULL, 0));
    int64_t want = 9 * 32 * 1024 + 1024 * 9 * 128 * 3;
    const int64_t widths[] = {1024, 1024, 512, 512, 256, 128};
    for (int i = 0; i < 6; i++) {
        const int64_t C = widths[i], T = (int64_t)1 << (2 * i);
        const int64_t attention = 3 * C * C + 3 * C * (25 + 32) + 2 * C * (2 * 32 + 1) + 2 * C * C;
        const int64_t mlp = 8 * C * C + 8 * C * 9 + 4 * C * C;
        want += T * 3 * (i < 3 ? attention + mlp : 18 * C * C);
        if (i) want += T * 9 * widths[i - 1] * C;
    }
    ASSERT_OK(mhla_coding_settle(m, &c, 1));
    assert_int_equal(c.multiply_adds, want);
    mhla_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),    cmocka_unit_test(names),   cmocka_unit_test(files),
        cmocka_unit_test(bare_files), cmocka_unit_test(shards),  cmocka_unit_test(refusals),
        cmocka_unit_test(gradients),  cmocka_unit_test(batches), cmocka_unit_test(threads_and_precision),
        cmocka_unit_test(tiles),      cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
