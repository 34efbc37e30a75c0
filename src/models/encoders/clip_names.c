/* The files of CLIP: under Hugging Face's names, which are ours, or OpenAI's, which open_clip has, too: there q, k and v lie in one
 * matrix, and the projections are transposed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/encoders/clip.h"
#include "models/model.h"

/* open_clip's newer models have "text." in front of what is of texts. */
static const char *text_prefix(const mhla_safetensors *file) {
    return mhla_safetensors_find(file, "text.token_embedding.weight") ? "text." : "";
}

static int is_openai(const mhla_safetensors *file) {
    return mhla_safetensors_find(file, "visual.conv1.weight") != NULL;
}

int mhla_clip_fits(const mhla_safetensors *file) {
    char name[64];
    snprintf(name, sizeof name, "%stoken_embedding.weight", text_prefix(file));
    return is_openai(file) ? mhla_safetensors_find(file, name) != NULL
                           : mhla_safetensors_find(file, "vision_model.embeddings.class_embedding") &&
                                 mhla_safetensors_find(file, "text_model.embeddings.token_embedding.weight");
}

/* ---- Names ---- */

typedef struct place {
    char name[192];
    int part, parts; /* it is these rows of the tensor */
    int transposed;
} place;

static const char *const whole[][2] = {
    {"text_model.embeddings.token_embedding.weight", "token_embedding.weight"},
    {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
    {"text_model.final_layer_norm.weight", "ln_final.weight"},
    {"text_model.final_layer_norm.bias", "ln_final.bias"},
    {"text_projection.weight", "text_projection"},
    {"vision_model.embeddings.class_embedding", "visual.class_embedding"},
    {"vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"},
    {"vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"},
    {"vision_model.pre_layrnorm.weight", "visual.ln_pre.weight"},
    {"vision_model.pre_layrnorm.bias", "visual.ln_pre.bias"},
    {"vision_model.post_layernorm.weight", "visual.ln_post.weight"},
    {"vision_model.post_layernorm.bias", "visual.ln_post.bias"},
    {"visual_projection.weight", "visual.proj"},
    {"logit_scale", "logit_scale"}};
static const char *const parts[][2] = {{"self_attn.out_proj.", "attn.out_proj."},
                                       {"layer_norm1.", "ln_1."},
                                       {"layer_norm2.", "ln_2."},
                                       {"mlp.fc1.", "mlp.c_fc."},
                                       {"mlp.fc2.", "mlp.c_proj."}};

/* Where a parameter of ours is in a file of OpenAI's kind. */
static place place_of(const char *ours, const char *texts) {
    place p = {.parts = 1};
    const int image = strncmp(ours, "vision_model.", 13) == 0;
    int layer = 0, at = 0;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(ours, whole[i][0]) == 0) {
            const int text = strncmp(ours, "text_", 5) == 0;
            snprintf(p.name, sizeof p.name, "%s%s", text ? texts : "", whole[i][1]);
            p.transposed = strstr(ours, "_projection.") || strstr(ours, "visual_projection") != NULL;
            return p;
        }
    if (sscanf(ours, image ? "vision_model.encoder.layers.%d.%n" : "text_model.encoder.layers.%d.%n", &layer, &at) != 1)
        return p;
    char start[64];
    snprintf(start, sizeof start, "%stransformer.resblocks.%d", image ? "visual." : texts, layer);
    const char *rest = ours + at;
    for (int i = 0; i < 3; i++) {
        const char name[] = {"qkv"[i], '\0'};
        char from[32];
        snprintf(from, sizeof from, "self_attn.%s_proj.", name);
        if (strncmp(rest, from, strlen(from)) != 0) continue;
        snprintf(p.name, sizeof p.name, "%s.attn.in_proj_%s", start, rest + strlen(from));
        p.part = i;
        p.parts = 3;
        return p;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(rest, parts[i][0], strlen(parts[i][0])) == 0)
            snprintf(p.name, sizeof p.name, "%s.%s%s", start, parts[i][1], rest + strlen(parts[i][0]));
    return p;
}

/* ---- Loading ---- */

static mhla_status read_place(mhla_param *p, const place *at, const mhla_safetensors *file) {
    const mhla_stored *s;
    int64_t shape[MHLA_MAX_DIMS];
    MHLA_TRY(mhla_safetensors_need(&s, file, at->name));
    memcpy(shape, p->shape, sizeof shape);
    shape[0] *= at->parts;
    if (at->transposed) {
        shape[0] = p->shape[1];
        shape[1] = p->shape[0];
    }
    if (!mhla_stored_alike(s, p->dims, shape)) MHLA_TRY(mhla_stored_check(s, p->dims, shape));
    float *all = malloc((size_t)s->count * sizeof *all);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for tensor %s", s->name);
    const mhla_status status = mhla_stored_read(all, s);
    const int64_t rows = shape[0], cols = p->dims > 1 ? shape[1] : 1;
    if (status == MHLA_OK && at->transposed)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) p->data[j * rows + i] = all[i * cols + j];
    else if (status == MHLA_OK)
        memcpy(p->data, all + at->part * p->count, (size_t)p->count * sizeof *all);
    mhla_param_touch(p);
    free(all);
    return status;
}

static int is_buffer(const char *name) {
    static const char *const known[] = {"input_resolution", "context_length", "vocab_size"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, known[i]) == 0) return 1;
    const char *last = strrchr(name, '.');
    return last && strcmp(last, ".position_ids") == 0;
}

static int by_name(const void *a, const void *b) { return strcmp(((const place *)a)->name, ((const place *)b)->name); }

mhla_status mhla_clip_load(mhla_params *params, const mhla_clip_config *c, const mhla_safetensors *file) {
    const int count = mhla_params_count(params), openai = is_openai(file);
    const char *texts = text_prefix(file);
    place *places = calloc((size_t)count, sizeof *places);
    mhla_status status = places ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the names of %d tensors", count);
    (void)c;
    for (int i = 0; i < count && status == MHLA_OK; i++) {
        mhla_param *p = mhla_params_at(params, i);
        if (openai)
            places[i] = place_of(p->name, texts);
        else {
            places[i].parts = 1;
            snprintf(places[i].name, sizeof places[i].name, "%s", p->name);
        }
        status = read_place(p, &places[i], file);
    }
    if (status == MHLA_OK) qsort(places, (size_t)count, sizeof *places, by_name);
    for (int64_t i = 0; i < mhla_safetensors_count(file) && status == MHLA_OK; i++) {
        place wanted = {.parts = 1};
        const mhla_stored *s = mhla_safetensors_at(file, i);
        snprintf(wanted.name, sizeof wanted.name, "%s", s->name);
        if (!is_buffer(s->name) && bsearch(&wanted, places, (size_t)count, sizeof *places, by_name) == NULL)
            status = mhla_fail(MHLA_EDATA, "%s: tensor \"%.150s\" is not part of the CLIP that is described", s->path,
                               s->name);
    }
    free(places);
    return status;
}

/* ---- Sizes ---- */

/* Axis `axis` of the tensor that a parameter of ours is. */
static mhla_status axis_of(int *to, const mhla_safetensors *file, const char *ours, int axis, int transposed) {
    const mhla_stored *s;
    place p = {.parts = 1};
    if (is_openai(file))
        p = place_of(ours, text_prefix(file));
    else
        snprintf(p.name, sizeof p.name, "%s", ours);
    MHLA_TRY(mhla_safetensors_need(&s, file, p.name));
    if (transposed && p.transposed) axis = 1 - axis;
    if (s->rank <= axis || s->shape[axis] < 1 || s->shape[axis] > 1 << 24)
        return mhla_fail(MHLA_EDATA, "%s: tensor \"%s\" is none of a CLIP", s->path, p.name);
    *to = (int)s->shape[axis];
    return MHLA_OK;
}

static mhla_status guess_tower(mhla_clip_tower *c, const mhla_safetensors *file, const char *prefix) {
    char name[128];
    snprintf(name, sizeof name, "%s.encoder.layers.0.mlp.fc1.weight", prefix);
    MHLA_TRY(axis_of(&c->hidden, file, name, 0, 0));
    MHLA_TRY(axis_of(&c->width, file, name, 1, 0));
    for (c->layers = 1; c->layers < 256; c->layers++) {
        snprintf(name, sizeof name, "%s.encoder.layers.%d.layer_norm1.weight", prefix, c->layers);
        place p = {.parts = 1};
        if (is_openai(file))
            p = place_of(name, text_prefix(file));
        else
            snprintf(p.name, sizeof p.name, "%s", name);
        if (mhla_safetensors_find(file, p.name) == NULL) break;
    }
    c->heads = c->width % 64 == 0 ? c->width / 64 : 1;
    c->activation = 0;
    c->eps = 1e-5;
    return MHLA_OK;
}

mhla_status mhla_clip_config_guess(mhla_clip_config *c, const mhla_safetensors *file) {
    static const double mean[] = {0.48145466, 0.4578275, 0.40821073},
                        deviation[] = {0.26862954, 0.26130258, 0.27577711};
    int tokens = 0, side = 0;
    *c = (mhla_clip_config){.channels = 3};
    memcpy(c->mean, mean, sizeof mean);
    memcpy(c->deviation, deviation, sizeof deviation);
    MHLA_TRY(guess_tower(&c->text, file, "text_model"));
    MHLA_TRY(guess_tower(&c->image, file, "vision_model"));
    MHLA_TRY(axis_of(&c->vocabulary, file, "text_model.embeddings.token_embedding.weight", 0, 0));
    MHLA_TRY(axis_of(&c->positions, file, "text_model.embeddings.position_embedding.weight", 0, 0));
    MHLA_TRY(axis_of(&c->patch, file, "vision_model.embeddings.patch_embedding.weight", 3, 0));
    MHLA_TRY(axis_of(&tokens, file, "vision_model.embeddings.position_embedding.weight", 0, 0));
    MHLA_TRY(axis_of(&c->dims, file, "text_projection.weight", 0, 1));
    while (side < 4096 && side * side < tokens - 1) side++;
    if (side * side != tokens - 1 || (int64_t)side * c->patch > 4096 || c->positions > 1 << 16)
        return mhla_fail(MHLA_EDATA, "%s: %d positions of patches: no square and a class vector",
                         mhla_safetensors_path(file), tokens);
    c->side = side * c->patch;
    return mhla_blame(mhla_clip_config_check(c), mhla_safetensors_path(file));
}
