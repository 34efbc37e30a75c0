/* Models as files and handles: opened, saved, looked into. What only one architecture knows stands in its own folder. */
#include "models/model.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "file/gguf.h"
#include "file/mapping.h"
#include "file/text.h"
#include "models/language/sequence.h"

enum { PATH = 4096 };

/* ---- Making ---------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_wrap(mhla_model **model, const mhla_architecture *a, void *net, const json_t *tree) {
    mhla_model *m = calloc(1, sizeof *m);
    json_t *written = tree ? NULL : a->tree(net);
    char *text = tree || written ? mhla_json_text(tree ? tree : written, JSON_INDENT(2)) : NULL;
    json_decref(written);
    *model = NULL;
    if (m == NULL || text == NULL) {
        free(m);
        free(text);
        a->free(net);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model");
    }
    *m = (mhla_model){.architecture = a, .net = net, .params = a->params(net), .config = text};
    *model = m;
    return MHLA_OK;
}

static mhla_status make(mhla_model **model, const mhla_architecture *a, const mhla_recipe *given, const char *prefix) {
    void *net = NULL;
    MHLA_TRY(a->create(&net, given, prefix));
    return mhla_model_wrap(model, a, net, NULL);
}

mhla_status mhla_model_of_recipe(mhla_model **model, mhla_role role, const mhla_recipe *given, const char *prefix) {
    char key[MHLA_RECIPE_KEY];
    snprintf(key, sizeof key, "%smodel", prefix);
    const char *preset = mhla_recipe_text(given, key);
    const mhla_architecture *a = mhla_architecture_of_preset(preset);
    *model = NULL;
    for (int i = 0; *preset == '\0' && (a = mhla_architecture_at(i)) != NULL; i++)
        if (mhla_architecture_has(a, role)) break;
    if (a == NULL || !mhla_architecture_has(a, role))
        return mhla_fail(MHLA_EINVAL, "%s is %s: expected %s", key, MHLA_QUOTE(preset), mhla_role_name(role));
    return make(model, a, given, prefix);
}

static mhla_status no_preset(const char *wrong) {
    char *all = NULL, name[64];
    size_t size = 0;
    FILE *out = open_memstream(&all, &size);
    if (out == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a message");
    for (int i = 0; mhla_model_preset(i, name) == MHLA_OK; i++) fprintf(out, " %s", name);
    const mhla_status status =
        fclose(out) != 0 ? mhla_fail(MHLA_ENOMEM, "no memory for a message")
                         : mhla_fail(MHLA_EINVAL, "%s is not a model: expected one of%s", MHLA_QUOTE(wrong), all);
    free(all);
    return status;
}

mhla_status mhla_model_outline(mhla_model **model, const char *preset, const char *const *settings, int count) {
    *model = NULL;
    const mhla_architecture *a = mhla_architecture_of_preset(preset);
    if (a == NULL) return no_preset(preset);
    mhla_recipe *recipe = NULL;
    mhla_status status = mhla_recipe_create(&recipe, a->rows());
    if (status == MHLA_OK) status = mhla_recipe_set(recipe, "model", preset);
    for (int i = 0; i < count && status == MHLA_OK; i++) status = mhla_recipe_assign(recipe, settings[i]);
    if (status == MHLA_OK) status = make(model, a, recipe, "");
    mhla_recipe_free(recipe);
    return status;
}

mhla_status mhla_model_create(mhla_model **model, const char *preset, const char *const *settings, int count,
                              uint64_t seed) {
    MHLA_TRY(mhla_model_outline(model, preset, settings, count));
    const mhla_status status = mhla_params_init((*model)->params, seed);
    if (status != MHLA_OK) {
        mhla_model_free(*model);
        *model = NULL;
    }
    return status;
}

void mhla_model_free(mhla_model *m) {
    if (m == NULL) return;
    mhla_tape_free(m->tape);
    mhla_tape_free(m->training);
    mhla_optim_free(m->optim);
    mhla_reader_free(m->reader);
    mhla_tokenizer_free(m->tokenizer);
    mhla_names_free(m->class_names, m->classes);
    m->architecture->free(m->net);
    mhla_safetensors_close(m->file);
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

/* ---- Classes ----------------------------------------------------------------------------------------------------- */

mhla_status mhla_model_name_classes(mhla_model *m, char *const *names, int classes) {
    const unsigned lost = mhla_json_lost();
    char **copy = mhla_names_copy(names, classes);
    json_t *tree = m->architecture->tree(m->net), *list = copy ? json_array() : NULL;
    for (int i = 0; copy && i < classes; i++) { /* what is not UTF-8 has no name */
        const size_t n = strlen(copy[i]);
        const int broken = mhla_utf8_broken((const unsigned char *)copy[i], n) < n;
        mhla_json_add(list, json_string(broken ? "" : copy[i]));
    }
    if (list) mhla_json_put(tree, "class_names", list);
    if (*m->vae) mhla_json_put(tree, "vae_sha256", json_string(m->vae));
    char *text = tree && mhla_json_lost() == lost ? mhla_json_text(tree, JSON_INDENT(2)) : NULL;
    json_decref(tree);
    if ((names && copy == NULL) || text == NULL) {
        mhla_names_free(copy, classes);
        free(text);
        return mhla_fail(MHLA_ENOMEM, "no memory for the names of %d classes", classes);
    }
    mhla_names_free(m->class_names, m->classes);
    free(m->config);
    m->class_names = copy;
    m->classes = copy ? classes : 0;
    m->config = text;
    return MHLA_OK;
}

mhla_status mhla_model_name_vae(mhla_model *m, const char *hash) {
    snprintf(m->vae, sizeof m->vae, "%s", hash);
    return mhla_model_name_classes(m, m->class_names, m->classes); /* writes the text of config.json anew */
}

const char *mhla_model_vae(const mhla_model *m) { return m->vae; }

int mhla_model_classes(const mhla_model *m) {
    if (m->architecture->classifier) {
        mhla_classifier_info c;
        m->architecture->classifier->describe(m->net, &c);
        return c.classes;
    }
    mhla_denoiser_info d = {0};
    if (m->architecture->denoiser) m->architecture->denoiser->describe(m->net, &d);
    return d.classes;
}

const char *mhla_model_class_name(const mhla_model *m, int i) {
    return m->class_names && i >= 0 && i < m->classes ? m->class_names[i] : NULL;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static const char *const places[] = {"", "/best", "/last"}; /* of config.json in a model's folder or a run's */

/* Is something there that can be opened as a file, or told why not? */
static int is_file(const char *folder, const char *name) {
    char path[PATH];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &info) == 0 &&
           !S_ISDIR(info.st_mode);
}

mhla_status mhla_model_locate(const char *path, const char *which, char *folder, char *weights, size_t size) {
    struct stat info;
    const int raw = which && strcmp(which, "raw") == 0, average = which && strcmp(which, "ema") == 0;
    if (which && !raw && !average) return mhla_fail(MHLA_EINVAL, "weights is \"%s\": expected raw or ema", which);
    if (stat(path, &info) != 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) return mhla_fail(MHLA_EIO, "%s: not a regular file", path);
    if (strlen(path) + 32 > size) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
    snprintf(folder, size, "%s", path);
    if (S_ISDIR(info.st_mode)) {
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

enum { PIECE = 1 << 20 }; /* numbers at a time */

/* An int64; of a file that was converted, a number of another type. */
static mhla_status read_counter(mhla_param *p, const mhla_stored *s) {
    int64_t whole = 0;
    if (s->dtype != MHLA_IO_I64)
        MHLA_TRY(mhla_stored_read(p->data, s));
    else
        memcpy(&whole, s->data, sizeof whole);
    if (s->dtype == MHLA_IO_I64) p->data[0] = (float)whole;
    if (!(p->data[0] >= 0.0f && p->data[0] == floorf(p->data[0])))
        return mhla_fail(MHLA_EDATA, "%s: tensor %s is %g: expected a count", s->path, MHLA_QUOTE(s->name),
                         (double)p->data[0]);
    mhla_param_touch(p);
    return MHLA_OK;
}

mhla_status mhla_param_read(mhla_param *p, const mhla_stored *s) {
    if (p->flags & MHLA_PARAM_COUNTER) return read_counter(p, s);
    if (p->data) {
        MHLA_TRY(mhla_stored_read(p->data, s));
        mhla_param_touch(p);
        return MHLA_OK;
    }
    const int64_t cols = p->count / p->shape[0], most = cols < PIECE ? PIECE / cols : 1;
    const size_t bytes = s->count > 0 ? s->bytes / (size_t)s->count : 0;
    float *rows = malloc((size_t)(most * cols) * sizeof *rows);
    mhla_status status = rows ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for tensor %s", s->name);
    for (int64_t at = 0; at < p->shape[0] && status == MHLA_OK; at += most) {
        const int64_t n = p->shape[0] - at < most ? p->shape[0] - at : most;
        mhla_stored piece = *s;
        piece.data = s->data + (size_t)(at * cols) * bytes;
        piece.count = n * cols;
        piece.bytes = (size_t)piece.count * bytes;
        status = mhla_stored_read(rows, &piece);
        if (status == MHLA_OK) status = mhla_param_set_rows(p, at, n, rows, MHLA_F32);
    }
    free(rows);
    return status;
}

static void read_stored(const void *of, float *rows, int64_t first, int64_t count, int64_t cols) {
    const mhla_stored *s = of;
    mhla_stored piece = *s;
    const size_t bytes = s->bytes / (size_t)s->count;
    piece.data = s->data + (size_t)(first * cols) * bytes;
    piece.count = count * cols;
    piece.bytes = (size_t)piece.count * bytes;
    (void)mhla_stored_read(rows, &piece); /* of a type that was asked for */
}

static void leave_stored(const void *of) {
    const mhla_stored *s = of;
    mhla_mapping_leave(s->data, s->bytes);
}

mhla_status mhla_param_lend_stored(mhla_param *p, const mhla_stored *s) {
    static const mhla_lender lender = {read_stored, leave_stored};
    if (!(p->flags & MHLA_PARAM_MATRIX) || s->count < 1) return mhla_param_read(p, s);
    float one;
    mhla_stored first = *s;
    first.count = 1;
    first.bytes = s->bytes / (size_t)s->count;
    MHLA_TRY(mhla_stored_read(&one, &first)); /* numbers of a type that is not known are refused now */
    mhla_param_lend(p, s->dtype == MHLA_IO_BF16 ? MHLA_BF16 : MHLA_F32, &lender, s);
    return MHLA_OK;
}

mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file) {
    for (int i = 0; i < mhla_params_count(params); i++) {
        mhla_param *p = mhla_params_at(params, i);
        const mhla_stored *s = mhla_safetensors_find(file, p->name);
        /* what a formula makes, and counts, which only newer files have */
        if (s == NULL && (p->flags & MHLA_PARAM_BUFFER) && (p->flags & (MHLA_PARAM_FROZEN | MHLA_PARAM_COUNTER))) {
            MHLA_TRY(mhla_param_init(p, 0));
            continue;
        }
        MHLA_TRY(mhla_safetensors_need(&s, file, p->name));
        if (!mhla_stored_alike(s, p->dims, p->shape)) MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_param_read(p, s));
    }
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        if (mhla_params_find(params, s->name) == NULL)
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of the model that config.json describes", s->path,
                             s->name);
    }
    return MHLA_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

mhla_status mhla_params_load_named(mhla_params *params, const mhla_safetensors *file, const mhla_naming *naming) {
    const int count = mhla_params_count(params);
    char(*names)[256] = malloc((size_t)count * sizeof *names);
    mhla_status status = names ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the names of %d tensors", count);
    for (int i = 0; i < count && status == MHLA_OK; i++) {
        mhla_param *p = mhla_params_at(params, i);
        const mhla_stored *s;
        naming->name(names[i], naming->of, p->name);
        status = mhla_safetensors_need(&s, file, names[i]);
        if (status == MHLA_OK && !mhla_stored_alike(s, p->dims, p->shape))
            status = mhla_stored_check(s, p->dims, p->shape);
        if (status == MHLA_OK) status = naming->take ? naming->take(p, s) : mhla_param_read(p, s);
    }
    if (status == MHLA_OK) qsort(names, (size_t)count, sizeof *names, by_name);
    for (int64_t i = 0; i < mhla_safetensors_count(file) && status == MHLA_OK; i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        if (bsearch(s->name, names, (size_t)count, sizeof *names, by_name) == NULL &&
            (naming->others == NULL || !naming->others(naming->of, s->name)))
            status =
                mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of %s", s->path, MHLA_QUOTE(s->name), naming->what);
    }
    free(names);
    return status;
}

mhla_status mhla_params_save(const mhla_params *params, const char *path, const float *(*data)(void *user, int i),
                             void *user) {
    const int n = mhla_params_count(params);
    mhla_storable *list = calloc((size_t)n, sizeof *list);
    float **wide = calloc((size_t)n, sizeof *wide); /* of what is not kept as float32 */
    int64_t *counts = calloc((size_t)n, sizeof *counts);
    mhla_status status =
        list && wide && counts ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of %d tensors", n);
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        const mhla_param *p = mhla_params_at(params, i);
        list[i] = (mhla_storable){p->name, p->dims, p->shape, data ? data(user, i) : p->data, MHLA_IO_F32, MHLA_IO_F32};
        if (p->flags & MHLA_PARAM_COUNTER) {
            counts[i] = (int64_t) * (const float *)list[i].data;
            list[i] = (mhla_storable){p->name, 0, p->shape, &counts[i], MHLA_IO_I64, MHLA_IO_I64};
        }
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
    free(counts);
    free(list);
    return status;
}

mhla_status mhla_config_fits(const mhla_safetensors *file, double least) {
    double held = 0.0;
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) held += (double)mhla_safetensors_at(file, i)->count;
    if (least <= held || least < 0x1p28) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %.0f numbers in all; the model that config.json describes has %.0f or more",
                     mhla_safetensors_path(file), held, least);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Weights that no config.json stands beside: a file, or the folder that `mhla convert` makes of one. */
static int is_bare(const char *path) {
    static const char *const endings[] = {".pt", ".pth", ".bin", ".ckpt", ".safetensors"};
    char folder[PATH];
    struct stat info;
    const size_t n = strlen(path);
    if (n == 0 || n > PATH - 64 || stat(path, &info) != 0) return 0;
    if (S_ISDIR(info.st_mode)) return is_file(path, "model.safetensors") && !is_file(path, "config.json");
    int ends = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t m = strlen(endings[i]);
        ends |= n > m && strcmp(path + n - m, endings[i]) == 0;
    }
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = '\0';
    return ends && !is_file(slash ? folder : ".", "config.json");
}

/* A GGUF file: `path` itself, or the only one of a folder without config.json. *is 0: there is none, 2: there are several. */
static mhla_status is_gguf(char *file, int *is, const char *path) {
    struct stat info;
    *is = 0;
    if (stat(path, &info) != 0) return MHLA_OK; /* others say so */
    if (!S_ISDIR(info.st_mode)) {
        char magic[4];
        int fd;
        MHLA_TRY(mhla_file_open(&fd, NULL, path));
        const ssize_t n = read(fd, magic, 4);
        const int why = errno;
        close(fd);
        if (n < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(why));
        *is = n == 4 && mhla_gguf_is(magic, 4) && snprintf(file, PATH, "%s", path) < PATH;
        return MHLA_OK;
    }
    int found = 0;
    if (is_file(path, "config.json")) return MHLA_OK;
    DIR *folder = opendir(path);
    if (folder == NULL) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        const size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".gguf") == 0 && ++found == 1)
            found = snprintf(file, PATH, "%s/%s", path, e->d_name) < PATH;
    }
    closedir(folder);
    *is = found < 2 ? found : 2;
    return MHLA_OK;
}

/* What `path` holds. `weights` gets the name of what is opened, `config` room for a path. */
typedef struct sources {
    mhla_evidence e;
    char folder[PATH], weights[PATH], config[PATH + 16];
    mhla_safetensors *file;
    mhla_gguf *gguf;
    json_t *tree, *index;
} sources;

static mhla_status load_object(json_t **tree, const char *path) {
    MHLA_TRY(mhla_json_load(tree, path));
    return json_is_object(*tree) ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: no JSON object", path);
}

/* Weights named by themselves, in a folder whose config.json is of another model: models that are published together share one. */
static mhla_status look_at_weights(sources *s, const char *path, int *done) {
    struct stat info;
    *done = 0;
    if (!mhla_evidence_named(&s->e) || stat(path, &info) != 0 || S_ISDIR(info.st_mode)) return MHLA_OK;
    MHLA_TRY(mhla_safetensors_open(&s->file, path));
    const mhla_evidence alone = {.path = path, .file = s->file};
    const mhla_architecture *of = mhla_architecture_only(&alone);
    *done = of && of != mhla_architecture_only(&s->e);
    if (*done) {
        s->e = alone;
        json_decref(s->tree);
        s->tree = NULL;
    } else {
        mhla_safetensors_close(s->file);
        s->file = NULL;
    }
    return MHLA_OK;
}

/* A folder that is neither a model nor a run: a pipeline, which has an index, or nothing that is known. */
static mhla_status look_into_folder(sources *s, const char *path, int *done) {
    struct stat info;
    *done = stat(path, &info) == 0 && S_ISDIR(info.st_mode) && strlen(path) < PATH - 32;
    for (int i = 0; i < 3 && *done; i++) {
        snprintf(s->folder, sizeof s->folder, "%s%s", path, places[i]);
        if (is_file(s->folder, "config.json")) *done = 0;
    }
    if (!*done || !is_file(path, "model_index.json")) return MHLA_OK;
    snprintf(s->config, sizeof s->config, "%s/model_index.json", path);
    MHLA_TRY(load_object(&s->index, s->config));
    s->e.index = s->index;
    return MHLA_OK;
}

static mhla_status look_at(sources *s, const char *path, const char *which) {
    int gguf = 0;
    s->e.path = path;
    if (which == NULL) MHLA_TRY(is_gguf(s->weights, &gguf, path));
    if (gguf == 1) {
        MHLA_TRY(mhla_gguf_open(&s->gguf, s->weights));
        snprintf(s->folder, sizeof s->folder, "%s", s->weights);
        s->e.gguf = s->gguf;
        return MHLA_OK;
    }
    if (which == NULL && is_bare(path)) {
        MHLA_TRY(mhla_safetensors_open(&s->file, path));
        s->e.file = s->file;
        return MHLA_OK;
    }
    int done = 0;
    if (which == NULL) MHLA_TRY(look_into_folder(s, path, &done));
    if (done && gguf && s->index == NULL)
        return mhla_fail(MHLA_EDATA, "%s: several .gguf files: name one of them", path);
    if (done) return MHLA_OK;
    MHLA_TRY(mhla_model_locate(path, which, s->folder, s->weights, sizeof s->folder - 16));
    snprintf(s->config, sizeof s->config, "%s/config.json", s->folder);
    MHLA_TRY(load_object(&s->tree, s->config));
    s->e = (mhla_evidence){.path = path, .config = s->tree, .config_path = s->config};
    if (which == NULL) MHLA_TRY(look_at_weights(s, path, &done));
    if (done) return MHLA_OK;
    /* what another program's model is comes before how its weights are called */
    const mhla_architecture *a;
    if (mhla_evidence_named(&s->e)) MHLA_TRY(mhla_architecture_detect(&a, &s->e));
    MHLA_TRY(mhla_safetensors_open(&s->file, s->weights));
    s->e.file = s->file;
    return MHLA_OK;
}

static mhla_status read_names(mhla_model *m, const sources *s) {
    char **names = NULL;
    const int classes = mhla_model_classes(m);
    const char *vae = json_string_value(json_object_get(s->tree, "vae_sha256"));
    if (vae) snprintf(m->vae, sizeof m->vae, "%s", vae);
    if (classes == 0) return MHLA_OK;
    MHLA_TRY(mhla_names_read(&names, json_object_get(s->tree, "class_names"), classes, s->config));
    if (names == NULL) return MHLA_OK;
    const mhla_status status = mhla_model_name_classes(m, names, classes);
    mhla_names_free(names, classes);
    return status;
}

static mhla_status remember(mhla_model *m, const sources *s) {
    if (*s->folder && (m->origin = strdup(s->folder)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
    if (s->file && (m->weights = strdup(mhla_safetensors_path(s->file))) == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory");
    return MHLA_OK;
}

mhla_status mhla_storage_named(int *dtype, const char *storage) {
    static const char *const names[] = {"float32", "bfloat16", "q8_0"};
    *dtype = -1;
    for (int i = 0; i < 3 && storage; i++)
        if (strcmp(storage, names[i]) == 0) *dtype = i; /* in the order of mhla_dtype */
    if (storage && *dtype < 0)
        return mhla_fail(MHLA_EINVAL, "storage \"%.40s\": there are float32, bfloat16 and q8_0", storage);
    return MHLA_OK;
}

static mhla_status open_model(mhla_model **model, const char *path, const mhla_open_desc *given, int weights) {
    *model = NULL;
    mhla_open_desc own = {.size = sizeof own}, *desc = &own;
    int storage;
    if (given) MHLA_TRY(mhla_struct_in(&own, sizeof own, given, "mhla_open_desc"));
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    sources *s = calloc(1, sizeof *s);
    if (s == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to open a model");
    const mhla_architecture *a = NULL;
    mhla_model *m = NULL;
    void *net = NULL;
    mhla_status status = look_at(s, path, desc->weights);
    if (status == MHLA_OK) status = mhla_architecture_detect(&a, &s->e);
    mhla_params_outline(!weights);
    if (status == MHLA_OK) status = a->read(&net, &s->e, desc);
    mhla_params_outline(0);
    /* a decoder keeps the keys of its file, which may be another program's */
    if (status == MHLA_OK) status = mhla_model_wrap(&m, a, net, a->decoder ? s->tree : NULL);
    if (status == MHLA_OK) status = read_names(m, s);
    if (status == MHLA_OK && weights && a->load == NULL && storage > MHLA_F32)
        status = mhla_params_store(m->params, (mhla_dtype)storage); /* zeros still: float32 is never held as a whole */
    if (status == MHLA_OK && weights) status = a->load ? a->load(m, &s->e, desc) : mhla_params_load(m->params, s->file);
    if (status == MHLA_OK) status = remember(m, s);
    if (status == MHLA_OK && mhla_params_lent(m->params)) { /* open as long as the model */
        m->file = s->file;
        s->file = NULL;
    }
    mhla_safetensors_close(s->file);
    mhla_gguf_close(s->gguf);
    json_decref(s->tree);
    json_decref(s->index);
    free(s);
    if (status != MHLA_OK) {
        mhla_model_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

mhla_status mhla_model_open_as(mhla_model **model, const char *path, const mhla_open_desc *given) {
    return open_model(model, path, given, 1);
}

mhla_status mhla_model_look(mhla_model **model, const char *path, const mhla_open_desc *given) {
    return open_model(model, path, given, 0);
}

mhla_status mhla_model_open(mhla_model **model, const char *path) { return mhla_model_open_as(model, path, NULL); }
mhla_status mhla_model_open_weights(mhla_model **model, const char *path, const char *weights) {
    return mhla_model_open_as(model, path, &(mhla_open_desc){.size = sizeof(mhla_open_desc), .weights = weights});
}

static mhla_status unused(const mhla_model *m, int *dtype, const char *name, const char *what) {
    if (m == NULL) return mhla_fail(MHLA_EINVAL, "model is NULL");
    if (name == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", what);
    MHLA_TRY(mhla_storage_named(dtype, name));
    if (m->reader || m->training)
        return mhla_fail(MHLA_EINVAL, "%s is changed before a model is used, not after", what);
    return MHLA_OK;
}

mhla_status mhla_model_store(mhla_model *m, const char *storage) {
    int dtype = MHLA_F32;
    MHLA_TRY(unused(m, &dtype, storage, "storage"));
    return mhla_params_store(m->params, (mhla_dtype)dtype);
}

mhla_status mhla_model_set_precision(mhla_model *m, const char *precision) {
    int dtype = MHLA_F32;
    MHLA_TRY(unused(m, &dtype, precision, "precision"));
    if (dtype == MHLA_Q8_0) return mhla_fail(MHLA_EINVAL, "precision is \"q8_0\": there are float32 and bfloat16");
    mhla_params_set_precision(m->params, (mhla_dtype)dtype);
    return MHLA_OK;
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
        .size = sizeof full,
        .config = m->config,
        .parameters = mhla_params_elements(m->params),
        .tensors = mhla_params_count(m->params),
        .weights = m->weights,
    };
    for (int i = 0; i < full.tensors; i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (!(p->flags & (MHLA_PARAM_FROZEN | MHLA_PARAM_BUFFER))) full.trainable += p->count;
    }
    full.kind = m->architecture->kind;
    full.classes = mhla_model_classes(m);
    if (m->architecture->classifier) {
        mhla_classifier_info c;
        m->architecture->classifier->describe(m->net, &c);
        full.channels = c.channels;
        full.height = c.height;
        full.width = c.width;
        full.tokens = c.tokens;
    }
    if (m->architecture->denoiser) {
        mhla_denoiser_info d;
        m->architecture->denoiser->describe(m->net, &d);
        full.channels = d.channels;
        full.height = (int)d.extent.height;
        full.text_width = d.text_width;
        full.width = (int)d.extent.width;
        full.tokens = m->architecture->denoiser->tokens(m->net, d.extent);
    }
    m->architecture->query(m, &full);
    return mhla_struct_out(info, &full, sizeof full, "mhla_model_info");
}

mhla_status mhla_model_tensor(const mhla_model *m, int i, mhla_tensor_info *info) {
    const mhla_params *ps = m->params;
    if (i < 0 || i >= mhla_params_count(ps))
        return mhla_fail(MHLA_EINVAL, "tensor %d: the model has %d", i, mhla_params_count(ps));
    const mhla_param *p = mhla_params_at(ps, i);
    mhla_tensor_info full = {sizeof full, p->name, p->dims, {0}, p->count, p->data};
    if (p->flags & MHLA_PARAM_COUNTER) full.axes = 0;
    for (int a = 0; a < full.axes; a++) full.shape[a] = p->shape[a];
    return mhla_struct_out(info, &full, sizeof full, "mhla_tensor_info");
}
