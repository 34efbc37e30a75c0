/* Wan's files: names of its authors, which are ours and those of its variants with MHLA, and names of diffusers; sizes from tensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "models/denoisers/wan.h"

enum { MOST = 1 << 20 /* of any size in a file */ };

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }
static int is_diffusers(const mhla_safetensors *file) { return has(file, "blocks.0.attn1.to_q.weight"); }

int mhla_wan_fits_tensors(const mhla_safetensors *file) {
    return has(file, "patch_embedding.weight") &&
           ((has(file, "blocks.0.modulation") && has(file, "blocks.0.self_attn.q.weight")) ||
            (has(file, "blocks.0.scale_shift_table") && is_diffusers(file)));
}

/* ---- Names ---- */

typedef struct rule {
    const char *ours, *theirs;
} rule;

static const rule around[] = {
    {"text_embedding.0.", "condition_embedder.text_embedder.linear_1."},
    {"text_embedding.2.", "condition_embedder.text_embedder.linear_2."},
    {"time_embedding.0.", "condition_embedder.time_embedder.linear_1."},
    {"time_embedding.2.", "condition_embedder.time_embedder.linear_2."},
    {"time_projection.1.", "condition_embedder.time_proj."},
    {"head.head.", "proj_out."},
    {"head.modulation", "scale_shift_table"},
};
static const rule inside[] = {
    {"modulation", "scale_shift_table"},
    {"norm3.", "norm2."},
    {"ffn.0.", "ffn.net.0.proj."},
    {"ffn.2.", "ffn.net.2."},
    {"self_attn.q.", "attn1.to_q."},
    {"self_attn.k.", "attn1.to_k."},
    {"self_attn.v.", "attn1.to_v."},
    {"self_attn.o.", "attn1.to_out.0."},
    {"self_attn.", "attn1."},
    {"cross_attn.q.", "attn2.to_q."},
    {"cross_attn.k.", "attn2.to_k."},
    {"cross_attn.v.", "attn2.to_v."},
    {"cross_attn.o.", "attn2.to_out.0."},
    {"cross_attn.", "attn2."},
};

static const char *rename_rest(const rule *rules, size_t count, const char **rest) {
    for (size_t i = 0; i < count; i++) {
        const size_t n = strlen(rules[i].ours);
        if (strncmp(*rest, rules[i].ours, n) != 0) continue;
        *rest += n;
        return rules[i].theirs;
    }
    return "";
}

const char *mhla_wan_name(const char *ours, int diffusers) {
    static _Thread_local char name[256];
    const char *rest = ours;
    if (!diffusers) return ours;
    if (strncmp(ours, "blocks.", 7) == 0) rest = strchr(ours + 7, '.') + 1;
    const int front = (int)(rest - ours);
    const char *to = front ? rename_rest(inside, sizeof inside / sizeof *inside, &rest)
                           : rename_rest(around, sizeof around / sizeof *around, &rest);
    snprintf(name, sizeof name, "%.*s%s%s", front, ours, to, rest);
    return name;
}

/* Names are one to one, so that only a file with more tensors than the model has one that is not of it. */
static mhla_status name_extra(const mhla_wan *m, const mhla_safetensors *file, int diffusers) {
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        int known = 0;
        for (int k = 0; k < mhla_params_count(m->params) && !known; k++)
            known = strcmp(mhla_wan_name(mhla_params_at(m->params, k)->name, diffusers), s->name) == 0;
        if (!known)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of the model", s->path, MHLA_QUOTE(s->name));
    }
    return MHLA_OK;
}

/* ---- Mixing matrices of a file ---- */

/* Training without a bound leaves numbers below 0, and rows that sum up to anything. They count as they are. */
static mhla_status note_mixing(mhla_wan *m) {
    int64_t negative = 0, all = 0;
    double low = INFINITY, high = -INFINITY;
    int broken = 0;
    for (int i = 0; i < m->config.depth; i++) {
        const mhla_param *p = m->blocks[i].attn.mix;
        const int64_t M = p ? p->shape[0] : 0;
        int rows = 0, columns = 0; /* that do not sum to 1: a matrix may be normalised by either */
        for (int64_t r = 0; r < M; r++) {
            double sum = 0.0, column = 0.0;
            for (int64_t k = 0; k < M; k++) {
                const float x = p->data[r * M + k];
                negative += x < 0.0f;
                sum += (double)x;
                column += (double)p->data[k * M + r];
            }
            low = fmin(low, sum);
            high = fmax(high, sum);
            rows |= !(fabs(sum - 1.0) < 1e-3);
            columns |= !(fabs(column - 1.0) < 1e-3);
        }
        all += M * M;
        broken |= rows && columns;
    }
    if (negative == 0 && !broken) return MHLA_OK;
    char text[200];
    snprintf(text, sizeof text,
             "mixing matrices: %lld of %lld numbers are negative, rows sum to %.4g to %.4g; they are kept as they are",
             (long long)negative, (long long)all, low, high);
    m->note = strdup(text);
    return m->note ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a note");
}

mhla_status mhla_wan_load(mhla_wan *m, const mhla_safetensors *file) {
    const int diffusers = is_diffusers(file), count = mhla_params_count(m->params);
    for (int i = 0; i < count; i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        const mhla_stored *s;
        MHLA_TRY(mhla_safetensors_need(&s, file, mhla_wan_name(p->name, diffusers)));
        if (!mhla_stored_alike(s, p->dims, p->shape)) MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_param_read(p, s));
    }
    if (mhla_safetensors_count(file) != count) MHLA_TRY(name_extra(m, file, diffusers));
    return note_mixing(m);
}

/* ---- What tensors tell ---- */

static const mhla_stored *part_of(const mhla_safetensors *file, int block, const char *part) {
    char name[128];
    snprintf(name, sizeof name, "blocks.%d.%s", block, part);
    return mhla_safetensors_find(file, mhla_wan_name(name, is_diffusers(file)));
}

/* The blocks of M of the released sizes, else what is there already if it fits. */
static mhla_status lay_out(int blocks[3], int64_t M, const char *path) {
    if ((int64_t)blocks[0] * blocks[1] * blocks[2] == M) return MHLA_OK;
    static const int known[][3] = {{3, 5, 10}, {7, 3, 5}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((int64_t)known[i][0] * known[i][1] * known[i][2] == M) {
            memcpy(blocks, known[i], sizeof known[i]);
            return MHLA_OK;
        }
    return mhla_fail(MHLA_EDATA,
                     "%s: mixing matrices of %lld blocks, and no config.json says how many lie along frames, rows and "
                     "columns (blocks, or block_layout); known are 150 (3 x 5 x 10) and 105 (7 x 3 x 5)",
                     path, (long long)M);
}

mhla_status mhla_wan_complete(mhla_wan_config *c, const mhla_safetensors *file) {
    int first = 1;
    for (int i = 0; i < c->depth; i++) {
        const mhla_stored *mix = part_of(file, i, "self_attn.block_attn.conv.weight");
        if (mix == NULL && c->kinds[i] == MHLA_GRID_MHLA) c->kinds[i] = MHLA_GRID_SOFTMAX;
        if (mix == NULL) continue;
        c->kinds[i] = MHLA_GRID_MHLA;
        if (!first) continue; /* the others must be alike, as loading finds */
        first = 0;
        if (mix->rank < 1 || mix->shape[0] < 1 || mix->shape[0] > 65536)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not a mixing matrix", mix->path, MHLA_QUOTE(mix->name));
        MHLA_TRY(lay_out(c->blocks, mix->shape[0], mix->path));
        c->gate = part_of(file, i, "self_attn.g.weight") != NULL;
        c->lepe = part_of(file, i, "self_attn.lepe.weight") != NULL;
    }
    return MHLA_OK;
}

static mhla_status need(const mhla_stored **s, const mhla_safetensors *file, const char *ours, int rank) {
    MHLA_TRY(mhla_safetensors_need(s, file, mhla_wan_name(ours, is_diffusers(file))));
    int fine = (*s)->rank == rank;
    for (int a = 0; a < (*s)->rank && fine; a++) fine = (*s)->shape[a] >= 1 && (*s)->shape[a] <= MOST;
    if (fine) return MHLA_OK;
    char text[128];
    return mhla_fail(MHLA_EDATA, "%s: tensor %s has the shape %s: expected %d sizes of 1 to %d", (*s)->path,
                     MHLA_QUOTE((*s)->name), mhla_io_shape_text(text, sizeof text, (*s)->rank, (*s)->shape), rank,
                     MOST);
}

static mhla_status sizes_of(mhla_wan_config *c, const mhla_safetensors *file) {
    const mhla_stored *patch, *up, *text, *time, *head, *norm = NULL;
    MHLA_TRY(need(&patch, file, "patch_embedding.weight", 5));
    MHLA_TRY(need(&up, file, "blocks.0.ffn.0.weight", 2));
    MHLA_TRY(need(&text, file, "text_embedding.0.weight", 2));
    MHLA_TRY(need(&time, file, "time_embedding.0.weight", 2));
    MHLA_TRY(need(&head, file, "head.head.weight", 2));
    const int64_t p = patch->shape[4], channels = patch->shape[1];
    if (patch->shape[2] != 1 || patch->shape[3] != p || p > 256 || channels > 64 || head->shape[0] != p * p * channels)
        return mhla_fail(MHLA_ENOTSUP,
                         "%s: patches of %lld x %lld x %lld of %lld channels, %lld numbers of an answer: a model from "
                         "text to clips has patches of one frame and answers with as many numbers as it reads",
                         patch->path, (long long)patch->shape[2], (long long)patch->shape[3], (long long)p,
                         (long long)channels, (long long)head->shape[0]);
    c->patch = (int)p;
    c->channels = (int)channels;
    c->dim = (int)patch->shape[0];
    c->ffn = (int)up->shape[0];
    c->text_width = (int)text->shape[1];
    c->frequencies = (int)time->shape[1];
    for (c->depth = 0; c->depth < MHLA_WAN_DEPTH && part_of(file, c->depth, "modulation");) c->depth++;
    for (int i = 0; i < c->depth && norm == NULL; i++) norm = part_of(file, i, "self_attn.g_norm.weight");
    c->heads = c->dim < 128 ? 1 : c->dim / 128;
    if (norm && norm->count > 0 && c->dim % norm->count == 0) c->heads = (int)(c->dim / norm->count);
    return MHLA_OK;
}

/* One of several keys of config.json, which must be what the tensors say. */
static mhla_status agree(int found, const json_t *tree, const char *const *keys, const char *path) {
    for (; *keys; keys++) {
        int said = found;
        MHLA_TRY(mhla_settings_read_int(&said, tree, *keys, 0, MOST, path));
        if (said != found)
            return mhla_fail(MHLA_EDATA, "%s: %s is %d, and the tensors have %d", path, *keys, said, found);
    }
    return MHLA_OK;
}
#define AGREE(found, ...) MHLA_TRY(agree(found, tree, (const char *const[]){__VA_ARGS__, NULL}, path))

/* The layers in `linear_attn_idx` have linear attention where no tensor says MHLA. */
static mhla_status read_kinds(mhla_wan_config *c, const json_t *tree, const char *path) {
    const json_t *type = json_object_get(tree, "self_attn_type"), *list = json_object_get(tree, "linear_attn_idx");
    const char *name = json_string_value(type);
    if (name && strcmp(name, "linear") != 0 && strcmp(name, "mhla_uni") != 0 && strcmp(name, "softmax") != 0)
        return mhla_fail(MHLA_ENOTSUP, "%s: self_attn_type is %s: known are mhla_uni, linear and softmax", path,
                         MHLA_QUOTE(name));
    if (name == NULL || strcmp(name, "linear") != 0) return MHLA_OK;
    c->attention = MHLA_GRID_LINEAR;
    for (int i = 0; i < c->depth && !json_is_array(list); i++) c->kinds[i] = MHLA_GRID_LINEAR;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) >= c->depth)
            return mhla_fail(MHLA_EDATA, "%s: linear_attn_idx[%zu] is not a layer of %d", path, i, c->depth);
        c->kinds[json_integer_value(x)] = MHLA_GRID_LINEAR;
    }
    return MHLA_OK;
}

static mhla_status read_layout(mhla_wan_config *c, const json_t *tree, const char *path) {
    const json_t *list = json_object_get(tree, "block_layout");
    for (int a = 0; a < 3 && list; a++) {
        const json_t *x = json_array_get(list, (size_t)a);
        if (json_array_size(list) != 3 || !json_is_integer(x) || json_integer_value(x) < 1 ||
            json_integer_value(x) > 1024)
            return mhla_fail(MHLA_EDATA, "%s: block_layout is not a list of 3 numbers from 1 to 1024", path);
        c->blocks[a] = (int)json_integer_value(x);
    }
    return MHLA_OK;
}

static mhla_status read_others(mhla_wan_config *c, const json_t *tree, const char *path) {
    int normalised = 0, image = 0, heads = 0;
    AGREE(c->dim, "dim");
    AGREE(c->ffn, "ffn_dim");
    AGREE(c->depth, "num_layers");
    AGREE(c->channels, "in_dim", "in_channels", "out_dim", "out_channels");
    AGREE(c->frequencies, "freq_dim");
    AGREE(c->text_width, "text_dim");
    MHLA_TRY(mhla_settings_read_int(&heads, tree, "num_heads", 1, 1024, path));
    MHLA_TRY(mhla_settings_read_int(&heads, tree, "num_attention_heads", 1, 1024, path));
    if (heads) c->heads = heads;
    if (c->heads) AGREE(c->dim / c->heads, "attention_head_dim");
    MHLA_TRY(mhla_settings_read_int(&c->text_length, tree, "text_len", 1, 65536, path));
    MHLA_TRY(mhla_settings_read_int(&image, tree, "image_dim", 0, MOST, path));
    if (image) return mhla_fail(MHLA_ENOTSUP, "%s: image_dim is %d: only models from text to clips", path, image);
    MHLA_TRY(mhla_settings_read_real(&c->eps, tree, "eps", 0, 1, path));
    MHLA_TRY(mhla_settings_read_bool(&normalised, tree, "norm_output", path));
    if (normalised) c->denominator = MHLA_DEN_RELEASED;
    MHLA_TRY(read_layout(c, tree, path));
    return read_kinds(c, tree, path);
}

/* How often one softmax layer comes, from the first on; 0: never, or in no such order. */
static int hybrid_of(const mhla_wan_config *c) {
    for (int n = 1; n <= c->depth; n++) {
        int fits = 1;
        for (int i = 0; i < c->depth; i++) fits &= (c->kinds[i] == MHLA_GRID_SOFTMAX) == (i % n == 0);
        if (fits) return n;
    }
    return 0;
}

mhla_status mhla_wan_guess(mhla_wan_config *c, const mhla_safetensors *file, const json_t *tree, const char *path) {
    MHLA_TRY(mhla_wan_preset(c, "wan_1300m"));
    MHLA_TRY(sizes_of(c, file));
    c->mix = MHLA_MIX_RELEASED_LINEAR;
    c->mix_clip = 0;
    memset(c->blocks, 0, sizeof c->blocks);
    memset(c->kinds, MHLA_GRID_SOFTMAX, sizeof c->kinds);
    if (tree) MHLA_TRY(read_others(c, tree, path));
    MHLA_TRY(mhla_wan_complete(c, file));
    int of[3] = {0, 0, 0};
    for (int i = 0; i < c->depth; i++) of[c->kinds[i]]++;
    c->attention = of[MHLA_GRID_MHLA] ? MHLA_GRID_MHLA : of[MHLA_GRID_LINEAR] ? MHLA_GRID_LINEAR : MHLA_GRID_SOFTMAX;
    c->hybrid = c->attention == MHLA_GRID_SOFTMAX ? 0 : hybrid_of(c);
    for (int a = 0; a < 3 && c->blocks[a] == 0; a++) c->blocks[a] = 1;
    if (c->attention == MHLA_GRID_SOFTMAX) c->image[1] = 104; /* 480 x 832 pixels */
    for (int a = 0; a < 2; a++) c->image[a] = c->image[a] / 2 * c->patch;
    return mhla_blame(mhla_wan_check(c), path);
}
