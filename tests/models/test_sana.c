/* SANA: names and sizes of the published models, files under both kinds of names, MHLA of ones against linear attention, the same bits in
 * any batch and with any number of threads, recomputation, training, what is refused. Its numbers are compared with diffusers' by the
 * goldens. */
#include <inttypes.h>
#include <math.h>
#include <mhla/diffusion.h>

#include "diffusion/steps.h"
#include "folders.h"
#include "goldens.h"
#include "models/denoisers/sana.h"
#include "models/model.h"

enum { B = 3, SIDE = 8, CHANNELS = 4, EACH = CHANNELS * SIDE * SIDE, WIDTH = 32, LONGEST = 9 };
static char folder[40];
static const int32_t lengths[B] = {9, 1, 4};

static int set_up(void **state) {
    (void)state;
    new_folder(folder);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

/* ---- Names ---- */

static void names(void **state) {
    (void)state;
    char path[512], line[512], name[256];
    FILE *f = fopen(golden_path(path, "names/sana_600m_diffusers.txt"), "r");
    mhla_model *m;
    assert_non_null(f);
    ASSERT_OK(mhla_model_outline(&m, "sana_600m", NULL, 0));
    assert_int_equal(mhla_params_elements(m->params), 591747872);
    int count = 0;
    while (fgets(line, sizeof line, f)) {
        int64_t shape[4];
        if (*line == '#') continue;
        const int axes = sscanf(line, "%255s [%" SCNd64 ", %" SCNd64 ", %" SCNd64 ", %" SCNd64, name, &shape[0],
                                &shape[1], &shape[2], &shape[3]) -
                         1;
        const mhla_param *p = mhla_params_find(m->params, name);
        assert_non_null(p);
        assert_int_equal(p->dims, axes);
        assert_memory_equal(p->shape, shape, sizeof *shape * (size_t)axes);
        count++;
    }
    fclose(f);
    assert_int_equal(count, mhla_params_count(m->params));
    mhla_model_free(m);
}

/* Parameters as published; the largest with two blocks, because memory is not for it. */
static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int layers;
        int64_t parameters;
    } known[] = {{"sana_1600m", 20, 1604462752}, {"sana15_1600m", 20, 1604641952}, {"sana15_4800m", 60, 4721825952}};
    for (size_t i = 0; i < 3; i++) {
        int64_t n[2];
        for (int k = 0; k < 2; k++) {
            mhla_model *m;
            const char *const settings[] = {k ? "num_layers=2" : "num_layers=1"};
            ASSERT_OK(mhla_model_outline(&m, known[i].model, settings, 1));
            n[k] = mhla_params_elements(m->params);
            mhla_model_free(m);
        }
        assert_int_equal(n[0] + (known[i].layers - 1) * (n[1] - n[0]), known[i].parameters);
    }
}

/* ---- A small model and what it is asked ---- */

static mhla_model *small(const char *attention, const char *norm) {
    mhla_model *m;
    rng r = {5};
    const char *const settings[] = {attention, norm, "blocks=2,4"};
    ASSERT_OK(mhla_model_create(&m, "sana_nano", settings, 3, 3));
    for (int i = 0; i < mhla_params_count(m->params); i++) { /* nothing silent */
        mhla_param *p = mhla_params_at(m->params, i);
        const float size = p->flags & MHLA_PARAM_MIX ? 0.05f : 0.3f;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
        mhla_param_touch(p);
    }
    return m;
}

typedef struct asked {
    float *x, *rows, times[B];
} asked;

static asked ask(void) {
    rng r = {6};
    asked a = {
        new_random(&r, (int64_t)B * EACH), new_random(&r, (int64_t)B * LONGEST * WIDTH), {17.5f, 999.0f, 400.0f}};
    for (int b = 0; b < B; b++) /* what is behind the lengths does not matter */
        for (int64_t i = lengths[b] * WIDTH; i < LONGEST * WIDTH; i++) a.rows[b * LONGEST * WIDTH + i] = 1e3f;
    return a;
}
static void drop(asked *a) { free(a->x), free(a->rows); }

/* Answers of samples first .. first+n-1, with texts cut at `longest`. */
static float *answer(mhla_model *m, const asked *a, int first, int n, int64_t longest) {
    float *y = new_poisoned((int64_t)n * EACH), *rows = new_poisoned(n * longest * WIDTH);
    for (int b = 0; b < n; b++)
        memcpy(rows + b * longest * WIDTH, a->rows + (int64_t)(first + b) * LONGEST * WIDTH,
               sizeof *rows * (size_t)(longest * WIDTH));
    const mhla_denoise d = {.size = sizeof d,
                            .count = n,
                            .x = a->x + (int64_t)first * EACH,
                            .times = a->times + first,
                            .rows = rows,
                            .lengths = lengths + first,
                            .longest = longest};
    ASSERT_OK(mhla_model_denoise(m, y, &d));
    free(rows);
    return y;
}

static void same_bits(void **state) {
    (void)state;
    static const char *const storages[] = {"float32", "bfloat16"};
    asked a = ask();
    const char *isas[8];
    for (int isa = isa_names(isas, 8) - 1; isa >= 0; isa--)
        for (int kind = 0; kind < 4; kind++) {
            ASSERT_OK(mhla_set_isa(isas[isa]));
            mhla_model *m = small(kind % 2 ? "attention=mhla" : "attention=linear",
                                  kind % 2 ? "qk_norm=rms_norm_across_heads" : "qk_norm=none");
            ASSERT_OK(mhla_model_store(m, storages[kind / 2]));
            float *all = answer(m, &a, 0, B, LONGEST);
            assert_true(mhla_all_finite(all, (int64_t)B * EACH));
            for (int threads = 1; threads <= 3; threads++) {
                mhla_context *context = new_context(threads);
                mhla_model_set_context(m, context);
                for (int b = 0; b < B; b++) {
                    float *one = answer(m, &a, b, 1, lengths[b]);
                    assert_memory_equal(one, all + (int64_t)b * EACH, sizeof *one * EACH);
                    free(one);
                }
                mhla_model_set_context(m, NULL);
                mhla_context_free(context);
            }
            free(all);
            mhla_model_free(m);
        }
    ASSERT_OK(mhla_set_isa(NULL));
    drop(&a);
}

/* MHLA whose blocks take from all alike is linear attention. */
static void ones(void **state) {
    (void)state;
    asked a = ask();
    mhla_model *linear = small("attention=linear", "qk_norm=none"), *mhla = small("attention=mhla", "qk_norm=none");
    for (int i = 0; i < mhla_params_count(mhla->params); i++) {
        mhla_param *p = mhla_params_at(mhla->params, i);
        const mhla_param *from = mhla_params_find(linear->params, p->name);
        assert_true((from == NULL) == ((p->flags & MHLA_PARAM_MIX) != 0));
        for (int64_t k = 0; k < p->count; k++) p->data[k] = from ? from->data[k] : 1.0f;
        mhla_param_touch(p);
    }
    float *y = answer(linear, &a, 0, B, LONGEST), *z = answer(mhla, &a, 0, B, LONGEST);
    ASSERT_CLOSE(z, y, B * EACH, 3e-6, "ones");
    mhla_param *mix = mhla_params_find(mhla->params, "transformer_blocks.0.attn1.piece_attn.conv.weight");
    assert_int_equal(mix->shape[0], 8);
    mix->data[1] = 0.0f;
    mhla_param_touch(mix);
    free(z);
    z = answer(mhla, &a, 0, B, LONGEST);
    assert_memory_not_equal(y, z, sizeof *y * B * EACH);
    free(y), free(z);
    mhla_model_free(linear);
    mhla_model_free(mhla);
    drop(&a);
}

/* ---- Files ---- */

/* How the authors call a parameter of ours; it is piece *part of *parts. */
static void their_name(char to[256], const char *ours, int *part, int *parts) {
    static const struct {
        const char *ours, *theirs;
        int part, parts;
    } rules[] = {{"attn1.to_q", "attn.qkv", 0, 3},
                 {"attn1.to_k", "attn.qkv", 1, 3},
                 {"attn1.to_v", "attn.qkv", 2, 3},
                 {"attn1.to_out.0", "attn.proj", 0, 1},
                 {"attn1.norm_", "attn.", 0, 1}, /* and _norm behind */
                 {"attn1.piece", "attn.piece", 0, 1},
                 {"attn2.to_q", "cross_attn.q_linear", 0, 1},
                 {"attn2.to_k", "cross_attn.kv_linear", 0, 2},
                 {"attn2.to_v", "cross_attn.kv_linear", 1, 2},
                 {"attn2.to_out.0", "cross_attn.proj", 0, 1},
                 {"attn2.norm_", "cross_attn.", 0, 1},
                 {"ff.conv_inverted", "mlp.inverted_conv.conv", 0, 1},
                 {"ff.conv_depth", "mlp.depth_conv.conv", 0, 1},
                 {"ff.conv_point", "mlp.point_conv.conv", 0, 1},
                 {"patch_embed.proj", "x_embedder.proj", 0, 1},
                 {"time_embed.emb.timestep_embedder.linear_1", "t_embedder.mlp.0", 0, 1},
                 {"time_embed.emb.timestep_embedder.linear_2", "t_embedder.mlp.2", 0, 1},
                 {"time_embed.linear", "t_block.1", 0, 1},
                 {"caption_projection.linear_", "y_embedder.y_proj.fc", 0, 1},
                 {"caption_norm", "attention_y_norm", 0, 1},
                 {"proj_out", "final_layer.linear", 0, 1}};
    const int in_block = strncmp(ours, "transformer_", 12) == 0;
    const char *rest = in_block ? strchr(ours + 19, '.') + 1 : ours;
    char front[64] = "";
    *part = 0;
    *parts = 1;
    if (in_block) snprintf(front, sizeof front, "%.*s", (int)(rest - ours - 12), ours + 12);
    snprintf(to, 256, "%s%s%s", front, in_block ? "" : "final_layer.", rest);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const size_t n = strlen(rules[i].ours);
        if (strncmp(rest, rules[i].ours, n) != 0) continue;
        *part = rules[i].part;
        *parts = rules[i].parts;
        if (rest[n - 1] == '_' && strstr(rules[i].ours, "norm_"))
            snprintf(to, 256, "%s%s%c_norm%s", front, rules[i].theirs, rest[n], rest + n + 1);
        else
            snprintf(to, 256, "%s%s%s", front, rules[i].theirs, rest + n);
        return;
    }
}

/* The model's tensors as the authors have them, with what they have beside it. */
static void write_original(const mhla_model *m, const char *path, mhla_io_dtype dtype) {
    static char text[1024][256];
    static float *fused[1024];
    mhla_storable list[1024];
    static int64_t shapes[1024][MHLA_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        char name[256];
        int part, parts, at = 0;
        their_name(name, p->name, &part, &parts);
        while (at < n && strcmp(text[at], name) != 0) at++;
        if (at == n) {
            memcpy(text[n], name, sizeof name);
            memcpy(shapes[n], p->shape, sizeof *shapes);
            shapes[n][0] *= parts;
            fused[n] = new_poisoned(p->count * parts);
            list[n] = (mhla_storable){text[n], p->dims, shapes[n], fused[n], MHLA_IO_F32, dtype};
            n++;
        }
        memcpy(fused[at] + part * p->count, p->data, sizeof(float) * (size_t)p->count);
    }
    static const float nothing[6];
    list[n++] = (mhla_storable){"pos_embed", 1, (const int64_t[]){6}, nothing, MHLA_IO_F32, MHLA_IO_F32};
    list[n++] = (mhla_storable){"y_embedder.y_embedding", 1, (const int64_t[]){6}, nothing, MHLA_IO_F32, MHLA_IO_F32};
    ASSERT_OK(mhla_safetensors_write(path, list, n, NULL, 0));
    for (int i = 0; i < n - 2; i++) free(fused[i]);
}

static void check_same(const mhla_model *m, const char *path, double tolerance) {
    asked a = ask();
    mhla_model *back;
    ASSERT_OK(mhla_model_open(&back, path));
    assert_string_equal(m->config, back->config);
    float *y = answer((mhla_model *)(uintptr_t)m, &a, 0, B, LONGEST), *z = answer(back, &a, 0, B, LONGEST);
    if (tolerance > 0.0)
        ASSERT_CLOSE(z, y, B * EACH, tolerance, "%s", path);
    else
        assert_memory_equal(y, z, sizeof *y * B * EACH);
    free(y), free(z);
    mhla_model_free(back);
    drop(&a);
}

static void files(void **state) {
    (void)state;
    static const char *const attentions[] = {"attention=linear", "attention=mhla"};
    static const mhla_io_dtype types[] = {MHLA_IO_F32, MHLA_IO_F16, MHLA_IO_BF16};
    char name[64];
    for (int i = 0; i < 2; i++) {
        mhla_model *m = small(attentions[i], i ? "qk_norm=rms_norm_across_heads" : "qk_norm=none");
        ASSERT_OK(mhla_model_save(m, in_folder(folder, "saved")));
        /* a config is written once more as it was read, and says what diffusers says */
        json_t *tree = json_loads(m->config, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(tree, "_class_name")), "SanaTransformer2DModel");
        assert_int_equal(json_is_null(json_object_get(tree, "qk_norm")), !i);
        json_decref(tree);
        check_same(m, in_folder(folder, "saved"), 0.0);
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "o%d%d/config.json", i, k);
            tree = json_loads(m->config, 0, NULL);
            json_object_del(tree, "_class_name"); /* then the tensors tell */
            char *text = json_dumps(tree, 0);
            write_file(folder, name, text, strlen(text));
            free(text);
            json_decref(tree);
            snprintf(name, sizeof name, "o%d%d/model.safetensors", i, k);
            write_original(m, in_folder(folder, name), types[k]);
            name[3] = '\0';
            check_same(m, in_folder(folder, name), k ? 0.05 : 0.0);
        }
        mhla_model_free(m);
    }
}

/* In pieces under diffusers' name of the index, beside files of another precision. */
static void shards(void **state) {
    (void)state;
    mhla_model *m = small("attention=mhla", "qk_norm=none");
    const int n = mhla_params_count(m->params);
    json_t *map = json_object();
    for (int half = 0; half < 2; half++) {
        mhla_storable list[256];
        char name[64], path[256];
        int k = 0;
        snprintf(name, sizeof name, "diffusion_pytorch_model-0000%d-of-00002.safetensors", half + 1);
        for (int i = half; i < n; i += 2) {
            const mhla_param *p = mhla_params_at(m->params, i);
            list[k++] = (mhla_storable){p->name, p->dims, p->shape, p->data, MHLA_IO_F32, MHLA_IO_F32};
            json_object_set_new(map, p->name, json_string(name));
        }
        write_file(folder, "sharded/config.json", m->config, strlen(m->config));
        snprintf(path, sizeof path, "sharded/%s", name);
        ASSERT_OK(mhla_safetensors_write(in_folder(folder, path), list, k, NULL, 0));
    }
    json_t *index = json_object();
    json_object_set_new(index, "weight_map", map);
    char *text = json_dumps(index, 0);
    write_file(folder, "sharded/diffusion_pytorch_model.safetensors.index.json", text, strlen(text));
    write_file(folder, "sharded/diffusion_pytorch_model.fp16.safetensors", "x", 1);
    free(text);
    json_decref(index);
    check_same(m, in_folder(folder, "sharded"), 0.0);
    mhla_model_free(m);
}

/* As diffusers writes a model into which MHLA was put: config.json does not say so, the mixing matrices do. */
static void put_in(void **state) {
    (void)state;
    static const char *const settings[] = {"attention=mhla", "blocks=2"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "sana_nano", settings, 2, 3));
    ASSERT_OK(mhla_model_save(m, in_folder(folder, "put")));
    json_t *tree = json_loads(m->config, 0, NULL);
    json_object_del(tree, "attention");
    json_object_del(tree, "blocks");
    char *text = json_dumps(tree, 0);
    write_file(folder, "put/config.json", text, strlen(text));
    check_same(m, in_folder(folder, "put"), 0.0);
    free(text);
    json_decref(tree);
    mhla_model_free(m);
}

/* Without config.json, at the width of the published model. */
static void bare(void **state) {
    (void)state;
    static const char *const settings[] = {"num_layers=1",  "caption_channels=8", "mlp_ratio=0.0625",
                                           "in_channels=4", "attention=mhla",     "blocks=2"};
    mhla_model *m, *back;
    ASSERT_OK(mhla_model_create(&m, "sana_600m", settings, 6, 3));
    write_original(m, in_folder(folder, "bare.safetensors"), MHLA_IO_BF16);
    ASSERT_OK(mhla_model_open(&back, in_folder(folder, "bare.safetensors")));
    const mhla_sana_config *c = &((const mhla_sana *)back->net)->config;
    assert_int_equal(c->heads, 36);
    assert_int_equal(c->cross_heads, 16);
    assert_int_equal(c->depth, 1);
    assert_int_equal(c->attention, MHLA_SANA_MHLA);
    assert_int_equal(c->attn.blocks[1], 2);
    assert_int_equal(mhla_sana_hidden(c), 72);
    mhla_model_free(back);
    mhla_model_free(m);
}

static void wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"\"guidance_embeds\": true", "guidance_embeds is set: only models without it are known"},
        {"\"interpolation_scale\": 1.0", "interpolation_scale is set: only models without it are known"},
        {"\"qk_norm\": \"layer_norm\"", "\"qk_norm\" is \"layer_norm\": known are none|rms_norm_across_heads"},
        {"\"cross_attention_dim\": 33", "cross_attention_dim is 33: expected the width of a token, 32"},
        {"\"blocks\": [2, 3, 4]", "blocks has 3 numbers: expected 2"},
        {"\"mix\": 3", "no such initialisation of the mixing matrix"},
        {"\"num_layers\": 0", "\"num_layers\" is 0: expected an integer from 1 to 256"},
        {"\"attention\": \"mhla\", \"blocks\": [9, 4]", "blocks is 9 on an axis of 8 patches"},
        {"\"num_layers\": 3", "no tensor \"transformer_blocks.2.scale_shift_table\""},
        {"\"caption_channels\": 31", "caption_projection.linear_1.weight\" has the shape [32, 32], expected [32, 31]"},
        {"\"num_layers\": 1", "tensor \"transformer_blocks.1.attn1.to_k.weight\" is not part of the model"},
    };
    mhla_model *m = small("attention=linear", "qk_norm=none"), *back;
    ASSERT_OK(mhla_model_save(m, in_folder(folder, "wrong")));
    char *sound = strdup(m->config);
    mhla_model_free(m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        json_t *tree = json_loads(sound, 0, NULL);
        snprintf(text, sizeof text, "{%s}", cases[i].config);
        json_t *wrong = json_loads(text, 0, NULL);
        assert_int_equal(json_object_update(tree, wrong), 0);
        char *made = json_dumps(tree, 0);
        json_decref(tree);
        json_decref(wrong);
        write_file(folder, "wrong/config.json", made, strlen(made));
        free(made);
        assert_int_not_equal(mhla_model_open(&back, in_folder(folder, "wrong")), MHLA_OK);
        if (strstr(mhla_message(), cases[i].says) == NULL) fail_msg("%s", mhla_message());
        assert_non_null(strstr(mhla_message(), "wrong/"));
    }
    free(sound);
}

/* ---- Training ---- */

static float *gradients(mhla_model *m, const asked *a, int recompute, int64_t *count) {
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_params_clear_grads(m->params);
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_input(t, a->x, MHLA_SHAPE(B, CHANNELS, SIDE, SIDE));
    mhla_tensor *y = mhla_denoiser_forward(t, m, &(mhla_network_run){.recompute = recompute}, x, a->times,
                                           &(mhla_condition){NULL, a->rows, lengths, LONGEST});
    ASSERT_OK(mhla_tape_backward(t, mhla_nn_mse(t, y, a->x), 1.0f));
    *count = mhla_params_elements(m->params);
    float *all = new_poisoned(*count), *at = all;
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        assert_true(p->has_grad);
        memcpy(at, p->grad, sizeof *at * (size_t)p->count);
        at += p->count;
    }
    mhla_tape_free(t);
    return all;
}

static void training(void **state) {
    (void)state;
    asked a = ask();
    mhla_model *m = small("attention=mhla", "qk_norm=rms_norm_across_heads");
    int64_t n;
    float *kept = gradients(m, &a, 0, &n), *again = gradients(m, &a, 1, &n), first = 0.0f, last = 0.0f;
    assert_memory_equal(kept, again, sizeof *kept * (size_t)n);
    free(kept), free(again);
    mhla_params_clear_grads(m->params);
    const mhla_denoise d = {.size = sizeof d,
                            .count = B,
                            .x = a.x,
                            .times = a.times,
                            .rows = a.rows,
                            .lengths = lengths,
                            .longest = LONGEST};
    for (int i = 0; i < 30; i++) ASSERT_OK(mhla_model_denoise_step(m, i ? &last : &first, &d, a.x, 3e-3));
    if (!(last < 0.5f * first)) fail_msg("the loss went from %g to %g", (double)first, (double)last);
    mhla_model_free(m);
    drop(&a);
}

static void refused(void **state) {
    (void)state;
    asked a = ask();
    mhla_model *m = small("attention=mhla", "qk_norm=none");
    float y[B * EACH];
    mhla_denoise d = {.size = sizeof d, .count = B, .x = a.x, .times = a.times};
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "rows is NULL: the model takes text");
    d.rows = a.rows;
    d.lengths = lengths;
    d.longest = 8;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "lengths[0] is 9: expected 0 to 8");
    d.longest = LONGEST;
    d.width = 3;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "blocks is 4 on an axis of 3 patches: at most one block per patch");
    d.width = 0;
    d.frames = 2;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "2 frames: the model makes single images");
    mhla_model_free(m);
    drop(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),       cmocka_unit_test(counts),  cmocka_unit_test(same_bits), cmocka_unit_test(ones),
        cmocka_unit_test(files),       cmocka_unit_test(shards),  cmocka_unit_test(put_in),    cmocka_unit_test(bare),
        cmocka_unit_test(wrong_files), cmocka_unit_test(refused), cmocka_unit_test(training),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
