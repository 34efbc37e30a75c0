/* Diffusion models behind the public handle: their config.json, or what their tensors tell where there is none
 * (facebookresearch's DiT comes as a bare file), and single evaluations of the network. */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "models/model.h"
#include "nn/op.h"

enum {
    PATH = 4096,
    MOST = 1 << 20,
    PIECE = 2048
}; /* tokens at a time for each thread: what lies between two layers stays in cache */

/* ---- Making ---------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_of_dit(mhla_model **model, const mhla_dit_config *config, char **class_names) {
    *model = NULL;
    mhla_model *m = calloc(1, sizeof *m);
    char *text = mhla_config_text(mhla_dit_config_tree(config), class_names, config->classes);
    if (m == NULL || text == NULL) {
        free(m);
        free(text);
        mhla_names_free(class_names, config->classes);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    m->family = &mhla_family_dit;
    m->config = text;
    const mhla_status status = mhla_dit_create(&m->dit, config);
    if (status != MHLA_OK) {
        mhla_names_free(class_names, config->classes);
        mhla_model_free(m);
        return status;
    }
    m->class_names = class_names;
    m->params = mhla_dit_params(m->dit);
    *model = m;
    return MHLA_OK;
}

static mhla_status dit_create(mhla_model **model, const mhla_recipe *given, const char *prefix) {
    mhla_dit_config config;
    MHLA_TRY(mhla_dit_from_recipe(&config, given, prefix));
    return mhla_model_of_dit(model, &config, NULL);
}

static mhla_status dit_init(mhla_model *m, uint64_t seed) { return mhla_dit_init(m->dit, seed); }

static void dit_release(mhla_model *m) {
    if (m->dit) mhla_names_free(m->class_names, mhla_dit_config_of(m->dit)->classes);
    mhla_dit_free(m->dit);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int dit_fits(const json_t *tree) {
    const char *type = json_string_value(json_object_get(tree, "model_type"));
    return type && strcmp(type, "mhla_dit") == 0;
}

static double least_numbers(const mhla_dit_config *c) {
    const double dim = c->dim;
    const double tokens = (double)mhla_dit_tokens(c, c->image[0], c->image[1]);
    return c->depth * dim * dim * (10.0 + 2.0 * c->mlp_ratio) + (c->classes + tokens) * dim;
}

static mhla_status refuse_storage(const mhla_open_desc *desc) {
    if (desc && desc->storage && strcmp(desc->storage, "float32") != 0)
        return mhla_fail(MHLA_ENOTSUP, "storage \"%s\": diffusion models are kept as float32", desc->storage);
    return MHLA_OK;
}

static mhla_status dit_read(mhla_model **model, const json_t *tree, const mhla_safetensors *file,
                            const mhla_open_desc *desc, const char *path) {
    mhla_dit_config config = {0};
    char **names = NULL;
    MHLA_TRY(refuse_storage(desc));
    MHLA_TRY(mhla_dit_config_read(&config, tree, path));
    MHLA_TRY(mhla_config_fits(file, least_numbers(&config)));
    MHLA_TRY(mhla_names_read(&names, json_object_get(tree, "class_names"), config.classes, path));
    return mhla_model_of_dit(model, &config, names);
}

static mhla_status dit_load(mhla_model *m, const mhla_safetensors *file) { return mhla_params_load(m->params, file); }

/* The side of a square number, or 0. */
static int64_t root(int64_t n) {
    const int64_t r = (int64_t)(sqrt((double)n) + 0.5);
    return r * r == n ? r : 0;
}

static mhla_status need(const mhla_stored **tensor, const mhla_safetensors *file, const char *name, int rank) {
    MHLA_TRY(mhla_safetensors_need(tensor, file, name));
    const mhla_stored *s = *tensor;
    char text[96];
    int fine = s->rank == rank;
    for (int a = 0; a < s->rank; a++) fine &= s->shape[a] >= 1 && s->shape[a] <= MOST;
    if (fine) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensor \"%s\" has the shape %s: expected %d sizes of 1 to %d", s->path, name,
                     mhla_shape_text(text, s->shape, s->rank), rank, MOST);
}

static int has(const mhla_safetensors *file, const char *name) { return mhla_safetensors_find(file, name) != NULL; }

mhla_status mhla_dit_config_guess(mhla_dit_config *c, const mhla_safetensors *file) {
    const mhla_stored *patch, *position, *labels, *fc1, *last, *mix, *lepe, *head;
    const int softmax = !has(file, "blocks.0.attn.to_qkv.weight");
    const int mhla = has(file, "blocks.0.attn.piece_attn.conv.weight");
    MHLA_TRY(need(&patch, file, "x_embedder.proj.weight", 4));
    MHLA_TRY(need(&position, file, "pos_embed", 3));
    MHLA_TRY(need(&labels, file, "y_embedder.embedding_table.weight", 2));
    MHLA_TRY(need(&fc1, file, "blocks.0.mlp.fc1.weight", 2));
    MHLA_TRY(need(&last, file, "final_layer.linear.weight", 2));
    if (mhla) MHLA_TRY(need(&mix, file, "blocks.0.attn.piece_attn.conv.weight", 4));
    const int64_t dim = patch->shape[0], channels = patch->shape[1], p = patch->shape[2];
    static const char *const presets[] = {"dit_s_2", "dit_b_2", "dit_l_2", "dit_xl_2"};
    int known = 0;
    for (int i = 0; i < 4 && !known; i++) {
        MHLA_TRY(mhla_dit_preset(c, presets[i], MHLA_STRUCTURE_RELEASED,
                                 mhla      ? MHLA_ATTENTION_MHLA
                                 : softmax ? MHLA_ATTENTION_SOFTMAX
                                           : MHLA_ATTENTION_LINEAR,
                                 MHLA_DIT_LINEAR));
        known = c->dim == dim;
    }
    const char *path = mhla_safetensors_path(file);
    if (!known)
        return mhla_fail(MHLA_EDATA,
                         "%s: a DiT of width %lld, and no config.json beside it: how many heads it has is told by "
                         "widths of 384, 768, 1024 and 1152 only",
                         path, (long long)dim);
    const int64_t side = root(position->shape[1]), pieces = mhla ? root(mix->shape[0]) : 1;
    if (pieces == 0)
        return mhla_fail(MHLA_EDATA, "%s: a mixing matrix of %lld blocks, which are no square of them", path,
                         (long long)mix->shape[0]);
    if (side == 0 || side > 512 || p > 64 || channels > 64)
        return mhla_fail(MHLA_EDATA, "%s: %lld tokens, patches of %lld: no DiT of a square image", path,
                         (long long)position->shape[1], (long long)p);
    c->patch = (int)p;
    c->channels = (int)channels;
    c->image[0] = c->image[1] = (int)(side * p);
    c->mlp_ratio = (double)fc1->shape[0] / (double)dim;
    c->learn_sigma = last->shape[0] == 2 * p * p * channels;
    c->classes = (int)labels->shape[0] - 1;
    c->null_label = 1;
    if (c->classes < 1) return mhla_fail(MHLA_EDATA, "%s: a label table of one row", path);
    if (mhla) c->blocks[0] = c->blocks[1] = (int)pieces;
    c->qkv_bias = has(file, softmax ? "blocks.0.attn.qkv.bias" : "blocks.0.attn.to_qkv.bias");
    c->qk_norm = has(file, "blocks.0.attn.q_norm.weight");
    c->inner_norm = has(file, "blocks.0.attn.norm.weight");
    c->gate = has(file, "blocks.0.attn.g.weight");
    if (c->gate) c->gate_norm = has(file, "blocks.0.attn.g_norm.weight");
    c->lepe = 0;
    if (has(file, "blocks.0.attn.lepe.weight")) {
        MHLA_TRY(need(&lepe, file, "blocks.0.attn.lepe.weight", 4));
        c->lepe = (int)lepe->shape[2];
    }
    if (c->gate && c->gate_norm) { /* it is as wide as a head */
        MHLA_TRY(need(&head, file, "blocks.0.attn.g_norm.weight", 1));
        if (dim % head->shape[0] == 0) c->heads = (int)(dim / head->shape[0]);
    }
    if (has(file, "blocks.0.dw_conv.weight")) c->cpe = MHLA_DIT_CPE_FOLDED;
    for (c->depth = 0; c->depth < 256; c->depth++) {
        char name[64];
        snprintf(name, sizeof name, "blocks.%d.mlp.fc1.weight", c->depth);
        if (mhla_safetensors_find(file, name) == NULL) break;
    }
    snprintf(c->model, sizeof c->model, "dit_%s_%lld",
             dim == 384    ? "s"
             : dim == 768  ? "b"
             : dim == 1024 ? "l"
                           : "xl",
             (long long)p);
    if (p != 2 && p != 4 && p != 8) snprintf(c->model, sizeof c->model, "%s", presets[0]);
    return mhla_dit_config_check(c);
}

static int is_there(const char *folder, int length, const char *name) {
    char path[PATH];
    struct stat info;
    const int n = snprintf(path, sizeof path, "%.*s%s%s", length, folder, length ? "/" : "", name);
    return n < PATH && stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Weights without a config.json beside them: a file, or the folder that `mhla convert` makes of one. */
static int is_bare(const char *path) {
    static const char *const endings[] = {".pt", ".pth", ".bin", ".safetensors"};
    struct stat info;
    const size_t n = strlen(path);
    if (n == 0 || n > PATH - 64 || stat(path, &info) != 0) return 0;
    if (S_ISDIR(info.st_mode))
        return is_there(path, (int)n, "model.safetensors") && !is_there(path, (int)n, "config.json");
    int ends = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t m = strlen(endings[i]);
        ends |= n > m && strcmp(path + n - m, endings[i]) == 0;
    }
    const char *slash = strrchr(path, '/');
    return ends &&
           !is_there(slash == path ? "/." : path, slash ? (int)(slash - path) + (slash == path) : 0, "config.json");
}

/* Those, if they are a DiT. */
static mhla_status dit_open(mhla_model **model, const char *path, const mhla_open_desc *desc) {
    *model = NULL;
    if (!is_bare(path)) return MHLA_OK;
    mhla_safetensors *file = NULL;
    mhla_model *m = NULL;
    mhla_dit_config config = {0};
    mhla_status status = mhla_safetensors_open(&file, path);
    if (status != MHLA_OK || mhla_safetensors_find(file, "x_embedder.proj.weight") == NULL ||
        mhla_safetensors_find(file, "blocks.0.adaLN_modulation.1.weight") == NULL) {
        mhla_safetensors_close(file);
        return status;
    }
    status = refuse_storage(desc);
    if (status == MHLA_OK) status = mhla_dit_config_guess(&config, file);
    if (status == MHLA_OK) status = mhla_config_fits(file, least_numbers(&config));
    if (status == MHLA_OK) status = mhla_model_of_dit(&m, &config, NULL);
    if (status == MHLA_OK) status = mhla_params_load(m->params, file);
    if (status == MHLA_OK && (m->weights = strdup(path)) == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory");
    mhla_safetensors_close(file);
    if (status != MHLA_OK) {
        mhla_model_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

/* ---- Looking into it ------------------------------------------------------------------------------------------------ */

static void dit_query(const mhla_model *m, mhla_model_info *info) {
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    info->name = c->model;
    info->kind = "diffusion";
    info->classes = c->classes;
    info->channels = c->channels;
    info->height = c->image[0];
    info->width = c->image[1];
    info->tokens = mhla_dit_tokens(c, c->image[0], c->image[1]);
    info->multiply_adds = mhla_dit_multiply_adds(c, c->image[0], c->image[1], 0);
    info->multiply_adds_paper = mhla_dit_multiply_adds(c, c->image[0], c->image[1], 1);
}

mhla_status mhla_model_denoise_cost(const mhla_model *m, int64_t *multiply_adds, int64_t *tokens, int height,
                                    int width) {
    MHLA_TRY(mhla_model_need(m, &mhla_family_dit));
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    MHLA_TRY(mhla_dit_check_size(c, height, width));
    if (multiply_adds) *multiply_adds = mhla_dit_multiply_adds(c, height, width, 0);
    if (tokens) *tokens = mhla_dit_tokens(c, height, width);
    return MHLA_OK;
}

/* ---- Using it --------------------------------------------------------------------------------------------------------- */

static mhla_status check(const mhla_model *m, const mhla_denoise *d) {
    MHLA_TRY(mhla_model_need(m, &mhla_family_dit));
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    const int labels = c->classes + c->null_label;
    if (d->x == NULL || d->times == NULL || d->labels == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", d->x == NULL ? "x" : d->times == NULL ? "times" : "labels");
    if (d->count < 1) return mhla_fail(MHLA_EINVAL, "count is %lld: expected at least 1", (long long)d->count);
    MHLA_TRY(mhla_dit_check_size(c, d->height, d->width));
    for (int64_t i = 0; i < d->count; i++)
        if (d->labels[i] < 0 || d->labels[i] >= labels)
            return mhla_fail(MHLA_EINVAL, "labels[%lld] is %d: the model has %d classes%s", (long long)i, d->labels[i],
                             c->classes, c->null_label ? " and one label more for none" : " and no label for none");
    return MHLA_OK;
}

static mhla_status take(mhla_denoise *d, const mhla_model *m, const mhla_denoise *given) {
    if (given == NULL) return mhla_fail(MHLA_EINVAL, "desc is NULL");
    MHLA_TRY(mhla_copy_struct(d, sizeof *d, given, "desc"));
    MHLA_TRY(mhla_model_need(m, &mhla_family_dit));
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    if (d->height == 0) d->height = c->image[0];
    if (d->width == 0) d->width = c->image[1];
    return check(m, d);
}

mhla_status mhla_model_denoise(mhla_model *m, float *output, const mhla_denoise *desc) {
    mhla_denoise d = {.size = sizeof d};
    MHLA_TRY(take(&d, m, desc));
    if (output == NULL) return mhla_fail(MHLA_EINVAL, "output is NULL");
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    const int64_t pixels = (int64_t)c->channels * d.height * d.width, out = c->learn_sigma ? 2 * pixels : pixels;
    const int64_t most = (int64_t)PIECE * mhla_context_threads(m->context);
    const int64_t tokens = mhla_dit_tokens(c, d.height, d.width), piece = most > tokens ? most / tokens : 1;
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    for (int64_t at = 0; at < d.count; at += piece) {
        const int64_t n = d.count - at < piece ? d.count - at : piece;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        mhla_tensor *x = mhla_nn_input(m->tape, d.x + at * pixels, MHLA_SHAPE(n, c->channels, d.height, d.width));
        const mhla_tensor *y = mhla_dit_forward(m->tape, m->dit, &(mhla_dit_run){0}, x, d.times + at, d.labels + at);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(output + at * out, y->data, (size_t)(n * out) * sizeof *output);
    }
    return MHLA_OK;
}

static const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW};

mhla_status mhla_model_denoise_step(mhla_model *m, float *loss, const mhla_denoise *desc, const float *target,
                                    double rate) {
    mhla_denoise d = {.size = sizeof d};
    MHLA_TRY(take(&d, m, desc));
    if (target == NULL) return mhla_fail(MHLA_EINVAL, "target is NULL");
    const mhla_dit_config *c = mhla_dit_config_of(m->dit);
    if (m->training == NULL) MHLA_TRY(mhla_tape_create(&m->training, m->context));
    if (m->optim == NULL) MHLA_TRY(mhla_optim_create(&m->optim, m->params, &adamw));
    mhla_tape *t = m->training;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_input(t, d.x, MHLA_SHAPE(d.count, c->channels, d.height, d.width));
    mhla_tensor *mean = mhla_nn_mse(t, mhla_dit_forward(t, m->dit, &(mhla_dit_run){0}, x, d.times, d.labels), target);
    MHLA_TRY(mhla_tape_status(t));
    MHLA_TRY(mhla_tape_backward(t, mean, 1.0f));
    if (loss) *loss = *mean->data;
    return mhla_optim_step(m->optim, rate, m->context, NULL);
}

const mhla_family mhla_family_dit = {
    .what = "a diffusion model",
    .presets = MHLA_DIT_PRESETS,
    .rows = mhla_dit_rows,
    .fits = dit_fits,
    .open = dit_open,
    .create = dit_create,
    .read = dit_read,
    .init = dit_init,
    .load = dit_load,
    .query = dit_query,
    .release = dit_release,
};
