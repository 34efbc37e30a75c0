/* Models of every family as files: config.json and model.safetensors, read and written; and what the public header says of
 * a model. What only one family knows stands in its own file (model_deit.c, model_dit.c, model_lm.c). */
#include "models/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "io/file.h"

enum { PATH = 4096 };

static const mhla_family *const families[] = {&mhla_family_deit, &mhla_family_lm, &mhla_family_dit};
enum { FAMILIES = sizeof families / sizeof *families };

/* ---- Making ---------------------------------------------------------------------------------------------------- */

static int has_preset(const mhla_family *f, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = f->presets; n && at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == n && strncmp(at, name, n) == 0) return 1;
    return 0;
}

mhla_status mhla_model_outline(mhla_model **model, const char *preset, const char *const *settings, int count) {
    *model = NULL;
    const mhla_family *f = NULL;
    char all[512] = "";
    for (int i = 0; i < FAMILIES; i++) {
        const size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i ? "|" : "", families[i]->presets);
        if (has_preset(families[i], preset)) f = families[i];
    }
    if (f == NULL) {
        for (char *at = all; *at; at++)
            if (*at == '|') *at = ' ';
        return mhla_fail(MHLA_EINVAL, "\"%.60s\" is no model: there are %s", preset, all);
    }
    mhla_recipe *recipe = NULL;
    mhla_status status = mhla_recipe_create(&recipe, f->rows());
    if (status == MHLA_OK) status = mhla_recipe_set(recipe, "model", preset);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = mhla_recipe_assign(recipe, settings[i]);
    if (status == MHLA_OK) status = f->create(model, recipe, "");
    mhla_recipe_free(recipe);
    return status;
}

mhla_status mhla_model_create(mhla_model **model, const char *preset, const char *const *settings, int count,
                              uint64_t seed) {
    MHLA_TRY(mhla_model_outline(model, preset, settings, count));
    const mhla_status status = (*model)->family->init(*model, seed);
    if (status != MHLA_OK) {
        mhla_model_free(*model);
        *model = NULL;
    }
    return status;
}

mhla_status mhla_model_need(const mhla_model *m, const mhla_family *family) {
    if (m == NULL) return mhla_fail(MHLA_EINVAL, "model is NULL");
    if (m->family == family) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "the model is %s: this needs %s", m->family->what, family->what);
}

void mhla_model_free(mhla_model *m) {
    if (m == NULL) return;
    mhla_tape_free(m->tape);
    mhla_tape_free(m->training);
    mhla_optim_free(m->optim);
    m->family->release(m);
    free(m->config);
    free(m->origin);
    free(m->weights);
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

mhla_status mhla_model_locate(const char *path, const char *which, char *folder, char *weights, size_t size) {
    struct stat info;
    const int raw = which && strcmp(which, "raw") == 0, average = which && strcmp(which, "ema") == 0;
    if (which && !raw && !average) return mhla_fail(MHLA_EINVAL, "weights is \"%s\": expected raw or ema", which);
    if (stat(path, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (strlen(path) + 32 > size) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    snprintf(folder, size, "%s", path);
    if (S_ISDIR(info.st_mode)) {
        static const char *const places[] = {"", "/best", "/last"};
        for (int i = 0; i < 3; i++) {
            snprintf(folder, size, "%s%s", path, places[i]);
            if (!is_file(folder, "config.json")) continue;
            const char *file = average ? "ema.safetensors" : "model.safetensors";
            if (average && !is_file(folder, file))
                return mhla_fail(MHLA_EDATA, "%s: no ema.safetensors here: no average of the weights was kept", folder);
            snprintf(weights, size, "%s", folder);
            if (average || (raw && is_file(folder, file))) snprintf(weights, size, "%s%s/%s", path, places[i], file);
            return MHLA_OK;
        }
        return mhla_fail(MHLA_EDATA, "%s: no config.json here, nor in best/ or last/: neither a model nor a run", path);
    }
    if (which) return mhla_fail(MHLA_EINVAL, "%s is a file: weights=%s chooses in a folder only", path, which);
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

mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file) {
    for (int i = 0; i < mhla_params_count(params); i++) {
        mhla_param *p = mhla_params_at(params, i);
        const mhla_stored *s;
        MHLA_TRY(mhla_safetensors_need(&s, file, p->name));
        if (!mhla_stored_alike(s, p->dims, p->shape)) MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_stored_read(p->data, s));
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
    float **wide = calloc((size_t)n, sizeof *wide); /* of what is not kept as float32 */
    mhla_status status = list && wide ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of %d tensors", n);
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        const mhla_param *p = mhla_params_at(params, i);
        list[i] = (mhla_storable){p->name, p->dims, p->shape, data ? data(user, i) : p->data, MHLA_IO_F32, MHLA_IO_F32};
        if (list[i].data) continue;
        wide[i] = malloc((size_t)p->count * sizeof(float));
        status = wide[i] ? mhla_param_get_rows(wide[i], p, 0, p->shape[0])
                         : mhla_fail(MHLA_ENOMEM, "no memory for tensor %s", p->name);
        list[i].data = wide[i];
        if (p->dtype == MHLA_BF16) list[i].dtype = MHLA_IO_BF16;
    }
    if (status == MHLA_OK) status = mhla_safetensors_write(path, list, n, &(mhla_pair){"format", "pt"}, 1);
    for (int i = 0; i < n && wide; i++) free(wide[i]);
    free(wide);
    free(list);
    return status;
}

static mhla_status read_config(json_t **tree, const mhla_family **family, const char *folder, char *path, size_t room) {
    if (snprintf(path, room, "%s/config.json", folder) >= (int)room)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_json_load(tree, path));
    if (!json_is_object(*tree)) return mhla_fail(MHLA_EDATA, "%s: no JSON object", path);
    for (int i = FAMILIES; i-- > 0;) { /* the first one takes what no other does, and says what is
                                             wrong with it; language models take any model_type that is not known before */
        *family = families[i];
        if ((*family)->fits(*tree)) break;
    }
    return MHLA_OK;
}

/* `which`: see mhla_model_open_weights. */
static mhla_status open_model(mhla_model **model, const char *path, const mhla_open_desc *desc, const char *which) {
    *model = NULL;
    char folder[PATH], weights[PATH], config[PATH];
    json_t *tree = NULL;
    const mhla_family *family = NULL;
    mhla_safetensors *file = NULL;
    mhla_model *m = NULL;
    if (desc && desc->size != sizeof *desc)
        return mhla_fail(MHLA_EINVAL, "desc.size is %zu: set it to sizeof the structure", desc->size);
    for (int i = 0; i < FAMILIES; i++) {
        if (families[i]->open) MHLA_TRY(families[i]->open(model, path, desc));
        if (*model) return MHLA_OK;
    }
    MHLA_TRY(mhla_model_locate(path, which, folder, weights, sizeof folder - 16));
    mhla_status status = read_config(&tree, &family, folder, config, sizeof config);
    if (status == MHLA_OK) status = mhla_safetensors_open(&file, weights);
    if (status == MHLA_OK) status = family->read(&m, tree, file, desc, config);
    if (status == MHLA_OK) status = family->load(m, file);
    if (status == MHLA_OK) {
        m->origin = strdup(folder);
        m->weights = strdup(mhla_safetensors_path(file));
        if (m->origin == NULL || m->weights == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory");
    }
    mhla_safetensors_close(file);
    json_decref(tree);
    if (status != MHLA_OK) {
        mhla_model_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

mhla_status mhla_model_open(mhla_model **model, const char *path) { return open_model(model, path, NULL, NULL); }
mhla_status mhla_model_open_as(mhla_model **model, const char *path, const mhla_open_desc *desc) {
    return open_model(model, path, desc, NULL);
}
mhla_status mhla_model_open_weights(mhla_model **model, const char *path, const char *weights) {
    return open_model(model, path, NULL, weights);
}

mhla_status mhla_model_save(const mhla_model *m, const char *folder) {
    char path[PATH];
    if (snprintf(path, sizeof path, "%s/model.safetensors", folder) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    MHLA_TRY(mhla_params_save(m->params, path, NULL, NULL));
    snprintf(path, sizeof path, "%s/config.json", folder);
    mhla_writer w;
    MHLA_TRY(mhla_writer_open(&w, path));
    fprintf(w.stream, "%s\n", m->config);
    return mhla_writer_commit(&w);
}

/* ---- Looking into it ------------------------------------------------------------------------------------------------ */

mhla_status mhla_model_query(const mhla_model *m, mhla_model_info *info) {
    mhla_model_info full = {
        .size = info->size,
        .config = m->config,
        .parameters = mhla_params_elements(m->params),
        .tensors = mhla_params_count(m->params),
        .weights = m->weights,
    };
    if (info->size < sizeof info->size || info->size > sizeof full)
        return mhla_fail(MHLA_EINVAL, "info.size is %zu: set it to sizeof the structure", info->size);
    for (int i = 0; i < full.tensors; i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (!(p->flags & (MHLA_PARAM_FROZEN | MHLA_PARAM_BUFFER))) full.trainable += p->count;
    }
    m->family->query(m, &full);
    memcpy(info, &full, info->size);
    return MHLA_OK;
}

mhla_status mhla_model_tensor(const mhla_model *m, int i, mhla_tensor_info *info) {
    const mhla_params *ps = m->params;
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
