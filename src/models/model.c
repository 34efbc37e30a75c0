/* Models as files: config.json and model.safetensors, read and written; and what the public header says of a model. */
#include "models/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "io/file.h"

enum { PATH = 4096, PIECE = 2048 }; /* tokens at a time for each thread: what lies between two layers stays in cache */

/* ---- Making ---------------------------------------------------------------------------------------------------- */

void mhla_names_free(char **names, int count) {
    for (int i = 0; names && i < count; i++) free(names[i]);
    free(names);
}

char **mhla_names_copy(char *const *names, int count) {
    char **copy = names ? calloc((size_t)count, sizeof *copy) : NULL;
    for (int i = 0; copy && i < count; i++)
        if ((copy[i] = strdup(names[i])) == NULL) {
            mhla_names_free(copy, count);
            return NULL;
        }
    return copy;
}

static char *config_text(const mhla_deit_config *c, char *const *names) {
    json_t *tree = mhla_deit_config_tree(c);
    if (tree && names) {
        json_t *list = json_array();
        for (int i = 0; i < c->classes; i++) json_array_append_new(list, json_string(names[i]));
        json_object_set_new(tree, "class_names", list);
    }
    char *text = tree ? json_dumps(tree, JSON_INDENT(2)) : NULL;
    json_decref(tree);
    return text;
}

mhla_status mhla_model_make(mhla_model **model, const mhla_deit_config *config, char **class_names) {
    *model = NULL;
    mhla_model *m = calloc(1, sizeof *m);
    char *text = config_text(config, class_names);
    if (m == NULL || text == NULL) {
        free(m);
        free(text);
        mhla_names_free(class_names, config->classes);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    m->config = text;
    m->class_names = class_names;
    const mhla_status status = mhla_deit_create(&m->deit, config);
    if (status != MHLA_OK) {
        mhla_names_free(m->class_names, config->classes);
        m->class_names = NULL;
        mhla_model_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

mhla_status mhla_model_create(mhla_model **model, const char *preset, const char *const *settings, int count,
                              uint64_t seed) {
    *model = NULL;
    mhla_recipe *recipe = NULL;
    mhla_deit_config config;
    mhla_status status = mhla_recipe_create(&recipe, mhla_deit_rows());
    if (status == MHLA_OK) status = mhla_recipe_set(recipe, "model", preset);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = mhla_recipe_assign(recipe, settings[i]);
    if (status == MHLA_OK) status = mhla_deit_from_recipe(&config, recipe, "");
    if (status == MHLA_OK) status = mhla_model_make(model, &config, NULL);
    if (status == MHLA_OK) status = mhla_deit_init((*model)->deit, seed);
    if (status != MHLA_OK) {
        mhla_model_free(*model);
        *model = NULL;
    }
    mhla_recipe_free(recipe);
    return status;
}

void mhla_model_free(mhla_model *m) {
    if (m == NULL) return;
    if (m->deit) mhla_names_free(m->class_names, mhla_deit_config_of(m->deit)->classes);
    mhla_tape_free(m->tape);
    mhla_tape_free(m->training);
    mhla_optim_free(m->optim);
    mhla_deit_free(m->deit);
    free(m->config);
    free(m->origin);
    free(m);
}

void mhla_model_set_context(mhla_model *m, const mhla_context *context) {
    mhla_tape_free(m->tape);
    mhla_tape_free(m->training);
    m->tape = m->training = NULL;
    m->context = context;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int is_file(const char *folder, const char *name) {
    char path[PATH];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode);
}

mhla_status mhla_model_locate(const char *path, char *folder, char *weights, size_t size) {
    struct stat info;
    if (stat(path, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (strlen(path) + 16 > size) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    snprintf(folder, size, "%s", path);
    if (S_ISDIR(info.st_mode)) {
        static const char *const places[] = {"", "/best", "/last"};
        for (int i = 0; i < 3; i++) {
            snprintf(folder, size, "%s%s", path, places[i]);
            if (!is_file(folder, "config.json")) continue;
            snprintf(weights, size, "%s", folder);
            return MHLA_OK;
        }
        return mhla_fail(MHLA_EDATA, "%s: no config.json here, nor in best/ or last/: neither a model nor a run", path);
    }
    snprintf(weights, size, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    else
        snprintf(folder, size, ".");
    if (!is_file(folder, "config.json"))
        return mhla_fail(MHLA_EDATA, "%s: no config.json beside it says what model this is", path);
    return MHLA_OK;
}

/* timm's config.json: {"architecture": "deit_tiny_patch16_224", "num_classes": 1000, "pretrained_cfg": {...}}. */
static mhla_status read_timm(mhla_deit_config *c, const json_t *tree, const char *path) {
    const char *architecture = json_string_value(json_object_get(tree, "architecture"));
    const char *end = architecture ? strstr(architecture, "_patch") : NULL;
    char model[32];
    int patch, side;
    if (end == NULL || end - architecture > 20 || sscanf(end, "_patch%d_%d", &patch, &side) != 2 || patch < 1 ||
        side < 1 || side > 16384)
        return mhla_fail(MHLA_EDATA,
                         "%s: architecture \"%.60s\" is none that is known here (deit_tiny_patch16_224, ...)", path,
                         architecture ? architecture : "");
    snprintf(model, sizeof model, "%.*s", (int)(end - architecture), architecture);
    MHLA_TRY(mhla_deit_preset(c, model, MHLA_STRUCTURE_RELEASED, MHLA_ATTENTION_SOFTMAX));
    c->patch = patch;
    c->image[0] = c->image[1] = side;
    int64_t classes = c->classes;
    MHLA_TRY(mhla_json_get_int(&classes, tree, "num_classes", 1, 1000000, path));
    c->classes = (int)classes;
    const json_t *cfg = json_object_get(tree, "pretrained_cfg"), *crop = json_object_get(cfg, "crop_pct");
    if (json_is_number(crop) && json_number_value(crop) > 0.05 && json_number_value(crop) <= 1.0)
        c->crop = json_number_value(crop);
    for (int i = 0; i < 3; i++) {
        const json_t *mean = json_array_get(json_object_get(cfg, "mean"), (size_t)i);
        const json_t *std = json_array_get(json_object_get(cfg, "std"), (size_t)i);
        if (json_is_number(mean)) c->mean[i] = json_number_value(mean);
        if (json_is_number(std) && json_number_value(std) > 0.0) c->deviation[i] = json_number_value(std);
    }
    return mhla_deit_config_check(c);
}

static mhla_status read_names(char ***names, const json_t *list, int classes, const char *path) {
    *names = NULL;
    if (list == NULL) return MHLA_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)classes)
        return mhla_fail(MHLA_EDATA, "%s: class_names is no list of %d texts", path, classes);
    char **copy = calloc((size_t)classes + 1, sizeof *copy);
    for (int i = 0; copy && i < classes; i++) {
        const char *text = json_string_value(json_array_get(list, (size_t)i));
        copy[i] = text ? strdup(text) : NULL;
        if (copy[i] == NULL) {
            mhla_names_free(copy, classes);
            return mhla_fail(MHLA_EDATA, "%s: class_names[%d] is no text", path, i);
        }
    }
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d names", classes);
    *names = copy;
    return MHLA_OK;
}

mhla_status mhla_model_read_config(mhla_deit_config *config, char ***class_names, const char *folder) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *tree = NULL;
    mhla_status status = mhla_json_load(&tree, path);
    *class_names = NULL;
    *config = (mhla_deit_config){0};
    if (status == MHLA_OK && !json_is_object(tree)) status = mhla_fail(MHLA_EDATA, "%s: no JSON object", path);
    if (status == MHLA_OK)
        status = json_object_get(tree, "architecture") ? read_timm(config, tree, path)
                                                       : mhla_deit_config_read(config, tree, path);
    if (status == MHLA_OK)
        status = read_names(class_names, json_object_get(tree, "class_names"), config->classes, path);
    json_decref(tree);
    return status;
}

mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file) {
    for (int i = 0; i < mhla_params_count(params); i++) {
        mhla_param *p = mhla_params_at(params, i);
        MHLA_TRY(mhla_safetensors_load(p->data, file, p->name, p->dims, p->shape));
        mhla_param_touch(p);
    }
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        if (mhla_params_find(params, s->name) == NULL)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of the model that config.json describes", s->path,
                             s->name);
    }
    return MHLA_OK;
}

mhla_status mhla_params_save(const mhla_params *params, const char *path, const float *(*data)(void *user, int i),
                             void *user) {
    const int n = mhla_params_count(params);
    mhla_storable *list = calloc((size_t)n, sizeof *list);
    if (list == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a list of %d tensors", n);
    for (int i = 0; i < n; i++) {
        const mhla_param *p = mhla_params_at(params, i);
        list[i] = (mhla_storable){p->name, p->dims, p->shape, data ? data(user, i) : p->data, MHLA_IO_F32, MHLA_IO_F32};
    }
    const mhla_status status = mhla_safetensors_write(path, list, n, &(mhla_pair){"format", "pt"}, 1);
    free(list);
    return status;
}

/* A config.json that asks for far more than the file holds is told before memory for it is taken. What is of a usual size
 * is left to mhla_params_load, which names the tensor. */
static mhla_status check_size(const mhla_deit_config *c, const mhla_safetensors *file) {
    double held = 0.0;
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) held += (double)mhla_safetensors_at(file, i)->count;
    const double dim = c->dim, least = c->depth * dim * dim * (4.0 + 2.0 * c->mlp_ratio) + c->classes * dim;
    if (least <= held || least < 0x1p28) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %.0f numbers in all; the model that config.json describes has %.0f or more",
                     mhla_safetensors_path(file), held, least);
}

mhla_status mhla_model_open(mhla_model **model, const char *path) {
    *model = NULL;
    char folder[PATH], weights[PATH], **names = NULL;
    mhla_deit_config config = {0};
    mhla_safetensors *file = NULL;
    mhla_model *m = NULL;
    MHLA_TRY(mhla_model_locate(path, folder, weights, sizeof folder));
    mhla_status status = mhla_model_read_config(&config, &names, folder);
    if (status == MHLA_OK) status = mhla_safetensors_open(&file, weights);
    if (status == MHLA_OK) status = check_size(&config, file);
    if (status == MHLA_OK) status = mhla_model_make(&m, &config, names), names = NULL;
    if (status == MHLA_OK) status = mhla_params_load(mhla_deit_params(m->deit), file);
    mhla_safetensors_close(file);
    if (status == MHLA_OK && (m->origin = strdup(folder)) == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory");
    if (status != MHLA_OK) {
        mhla_names_free(names, config.classes);
        mhla_model_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

mhla_status mhla_model_save(const mhla_model *m, const char *folder) {
    char path[PATH];
    if (snprintf(path, sizeof path, "%s/model.safetensors", folder) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    MHLA_TRY(mhla_params_save(mhla_deit_params(m->deit), path, NULL, NULL));
    snprintf(path, sizeof path, "%s/config.json", folder);
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    fprintf(w.stream, "%s\n", m->config);
    return mhla_writer_commit(&w);
}

/* ---- Looking into it ------------------------------------------------------------------------------------------------ */

mhla_status mhla_model_query(const mhla_model *m, mhla_model_info *info) {
    const mhla_deit_config *c = mhla_deit_config_of(m->deit);
    const mhla_params *ps = mhla_deit_params(m->deit);
    const mhla_model_info full = {
        .size = info->size,
        .name = c->model,
        .config = m->config,
        .classes = c->classes,
        .channels = c->channels,
        .height = c->image[0],
        .width = c->image[1],
        .tokens = mhla_deit_tokens(c),
        .parameters = mhla_params_elements(ps),
        .tensors = mhla_params_count(ps),
        .multiply_adds = mhla_deit_multiply_adds(c, 0),
        .multiply_adds_paper = mhla_deit_multiply_adds(c, 1),
    };
    if (info->size < sizeof info->size || info->size > sizeof full)
        return mhla_fail(MHLA_EINVAL, "info.size is %zu: set it to sizeof the structure", info->size);
    memcpy(info, &full, info->size);
    return MHLA_OK;
}

mhla_status mhla_model_tensor(const mhla_model *m, int i, mhla_tensor_info *info) {
    const mhla_params *ps = mhla_deit_params(m->deit);
    if (i < 0 || i >= mhla_params_count(ps))
        return mhla_fail(MHLA_EINVAL, "tensor %d: the model has %d", i, mhla_params_count(ps));
    const mhla_param *p = mhla_params_at(ps, i);
    mhla_tensor_info full = {info->size, p->name, p->dims, {0}, p->count, p->data};
    for (int a = 0; a < p->dims; a++) full.shape[a] = p->shape[a];
    if (info->size < sizeof info->size || info->size > sizeof full)
        return mhla_fail(MHLA_EINVAL, "info.size is %zu: set it to sizeof the structure", info->size);
    memcpy(info, &full, info->size);
    return MHLA_OK;
}

const char *mhla_model_class_name(const mhla_model *m, int i) {
    return m->class_names && i >= 0 && i < mhla_deit_config_of(m->deit)->classes ? m->class_names[i] : NULL;
}

/* ---- Using it --------------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_infer(mhla_model *m, float *logits, const float *images, int64_t n) {
    const mhla_deit_config *c = mhla_deit_config_of(m->deit);
    const int64_t pixels = (int64_t)c->channels * c->image[0] * c->image[1];
    const int64_t most = (int64_t)PIECE * mhla_context_threads(m->context), tokens = mhla_deit_tokens(c);
    const int64_t piece = most > tokens ? most / tokens : 1;
    if (m->tape == NULL) MHLA_TRY(mhla_tape_create(&m->tape, m->context));
    for (int64_t at = 0; at < n; at += piece) {
        const int64_t count = n - at < piece ? n - at : piece;
        mhla_tape_begin(m->tape, MHLA_TAPE_INFER);
        mhla_tensor *x =
            mhla_nn_input(m->tape, images + at * pixels, MHLA_SHAPE(count, c->channels, c->image[0], c->image[1]));
        const mhla_tensor *y = mhla_deit_forward(m->tape, m->deit, &(mhla_deit_run){0}, x);
        MHLA_TRY(mhla_tape_status(m->tape));
        memcpy(logits + at * c->classes, y->data, (size_t)(count * c->classes) * sizeof *logits);
    }
    return MHLA_OK;
}

mhla_status mhla_model_forward(mhla_model *m, float *logits, const float *images, int64_t n) {
    if (m == NULL || logits == NULL || images == NULL || n < 0)
        return mhla_fail(MHLA_EINVAL, "%s",
                         m == NULL        ? "model is NULL"
                         : logits == NULL ? "logits is NULL"
                         : images == NULL ? "images is NULL"
                                          : "n is negative");
    return mhla_model_infer(m, logits, images, n);
}
