/* Fine-tuning: the values of one model for another that differs in classes, resolution or attention. What fits is taken,
 * a learned position embedding is interpolated and DiT's table made anew, the rest keeps its fresh values; all of it is
 * told. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/train.h"

typedef void (*note_fn)(void *user, const char *text);

/* ---- Position embeddings --------------------------------------------------------------------------------------------- */

/* The cubic kernel that images are resized with (a = -0.5). */
static double cubic(double x) {
    x = fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
    return x < 2.0 ? ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 : 0.0;
}

/* weights [to,from] of one axis: place i of the new grid lies at the same part of the image as what it is made of in the
 * old one. Padding lies outside of the image on both; a place beyond the old grid takes its edge. */
static double *axis_weights(const mhla_deit_config *to, const mhla_deit_config *from, int axis, int *n_to,
                            int *n_from) {
    *n_to = (to->image[axis] + 2 * to->padding[axis]) / to->patch;
    *n_from = (from->image[axis] + 2 * from->padding[axis]) / from->patch;
    const double pad_to = (double)to->padding[axis] / to->patch, pad_from = (double)from->padding[axis] / from->patch;
    const double scale = ((double)from->image[axis] / from->patch) / ((double)to->image[axis] / to->patch);
    const double wide = fmax(scale, 1.0); /* shrinking averages over more */
    double *w = calloc((size_t)*n_to * (size_t)*n_from, sizeof *w);
    for (int i = 0; w && i < *n_to; i++) {
        double centre = (i + 0.5 - pad_to) * scale + pad_from;
        if (centre < 0.0) centre = 0.5;
        if (centre > *n_from) centre = *n_from - 0.5;
        double sum = 0.0;
        for (int j = 0; j < *n_from; j++) sum += w[i * *n_from + j] = cubic((j + 0.5 - centre) / wide);
        for (int j = 0; j < *n_from; j++) w[i * *n_from + j] /= sum;
    }
    return w;
}

/* old [1, c + h*w, D] -> data [1, C + H*W, D]; a class token's row is taken as it is, or left out. */
static mhla_status interpolate(float *data, const float *old, const mhla_deit_config *to,
                               const mhla_deit_config *from) {
    int H, W, h, w;
    const int D = to->dim;
    double *rows = axis_weights(to, from, 0, &H, &h), *columns = axis_weights(to, from, 1, &W, &w);
    if (rows == NULL || columns == NULL) {
        free(rows);
        free(columns);
        return mhla_fail(MHLA_ENOMEM, "no memory for a position embedding");
    }
    if (to->class_token && from->class_token) memcpy(data, old, (size_t)D * sizeof *data);
    data += (int64_t)to->class_token * D;
    old += (int64_t)from->class_token * D;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int d = 0; d < D; d++) {
                double sum = 0.0;
                for (int i = 0; i < h; i++) {
                    double part = 0.0;
                    if (rows[y * h + i] == 0.0) continue;
                    for (int j = 0; j < w; j++) part += columns[x * w + j] * (double)old[((int64_t)i * w + j) * D + d];
                    sum += rows[y * h + i] * part;
                }
                data[((int64_t)y * W + x) * D + d] = (float)sum;
            }
    free(rows);
    free(columns);
    return MHLA_OK;
}

/* ---- Names ------------------------------------------------------------------------------------------------------------- */

/* The same layer under the name that another attention, or another way to read out, gives it. */
static const mhla_stored *find(const mhla_safetensors *file, const char *name) {
    static const char *const pairs[][2] = {{".attn.qkv.", ".attn.to_qkv."},
                                           {".attn.qkv.", ".attn.qkvo."},
                                           {".attn.to_qkv.", ".attn.qkvo."},
                                           {".attn.proj.", ".attn.to_out.0."},
                                           {"fc_norm.", "norm."}};
    enum { PAIRS = sizeof pairs / sizeof *pairs };
    const mhla_stored *s = mhla_safetensors_find(file, name);
    for (int i = 0; i < 2 * PAIRS && s == NULL; i++) {
        const char *mine = pairs[i / 2][i % 2], *other = pairs[i / 2][1 - i % 2], *at = strstr(name, mine);
        char changed[256];
        if (at == NULL || (i / 2 == PAIRS - 1 && at != name)) continue;
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - name), name, other, at + strlen(mine));
        s = mhla_safetensors_find(file, changed);
    }
    return s;
}

/* A list of names for people: "blocks.0.attn.x", "blocks.1.attn.x", ... is told once, as "blocks.*.attn.x". */
typedef struct name_list {
    char text[768];
    int count;
} name_list;

static void list_add(name_list *l, const char *name) {
    char general[256], quoted[264];
    const char *dot = strncmp(name, "blocks.", 7) == 0 ? strchr(name + 7, '.') : NULL;
    snprintf(general, sizeof general, "%s%s", dot ? "blocks.*" : name, dot ? dot : "");
    snprintf(quoted, sizeof quoted, " %s,", general);
    l->count++;
    if (strstr(l->text, quoted)) return;
    const size_t used = strlen(l->text);
    if (used + strlen(quoted) + 8 < sizeof l->text)
        strcat(l->text, quoted);
    else if (used < 4 || strcmp(l->text + used - 4, " ..,") != 0)
        strcat(l->text, " ..,");
}

static void list_tell(const name_list *l, const char *what, note_fn note, void *user) {
    char text[900];
    if (l->count == 0) return;
    snprintf(text, sizeof text, "%s (%d):%s", what, l->count, l->text);
    text[strlen(text) - 1] = '\0'; /* the last comma */
    note(user, text);
}

static int same_shape(const mhla_stored *s, const mhla_param *p) { return mhla_stored_alike(s, p->dims, p->shape); }

/* ---- The work ------------------------------------------------------------------------------------------------------------ */

/* Positions of another grid than `p` has, interpolated; *taken is 0 where they are of another model altogether. */
static mhla_status move_positions(int *taken, mhla_param *p, const mhla_stored *s, const mhla_deit_config *to,
                                  const mhla_deit_config *from, note_fn note, void *user) {
    char text[160];
    *taken = s->rank == 3 && s->shape[2] == to->dim && s->shape[1] == mhla_deit_tokens(from);
    if (!*taken) return MHLA_OK;
    float *old = malloc((size_t)s->count * sizeof *old);
    mhla_status status = old ? mhla_stored_read(old, s) : mhla_fail(MHLA_ENOMEM, "no memory for %s", p->name);
    if (status == MHLA_OK) status = interpolate(p->data, old, to, from);
    free(old);
    MHLA_TRY(status);
    mhla_param_touch(p);
    snprintf(text, sizeof text, "pos_embed: interpolated from %lld to %lld positions", (long long)s->shape[1],
             (long long)p->shape[1]);
    note(user, text);
    return MHLA_OK;
}

/* q, k and v of a projection that has a gate as its fourth part, or for one that has: the first three parts go over. *taken is 0
 * where the tensors are of other shapes. */
static mhla_status move_parts(int *taken, mhla_param *p, const mhla_stored *s) {
    const int64_t mine = p->shape[0], other = s->rank > 0 ? s->shape[0] : 0, width = p->count / mine;
    *taken = (3 * mine == 4 * other || 4 * mine == 3 * other) && s->count == other * width;
    if (!*taken || s->count == 0) return MHLA_OK;
    float *all = malloc((size_t)s->count * sizeof *all);
    const mhla_status status = all ? mhla_stored_read(all, s) : mhla_fail(MHLA_ENOMEM, "no memory for %s", p->name);
    if (status == MHLA_OK) memcpy(p->data, all, (size_t)((mine < other ? mine : other) * width) * sizeof *all);
    free(all);
    mhla_param_touch(p);
    return status;
}

/* `from` is the config of a classifier, NULL for diffusion models: their table of positions is a formula, not learned. */
static mhla_status adopt(mhla_model *model, const mhla_safetensors *file, const mhla_deit_config *from, note_fn note,
                         void *user) {
    mhla_params *ps = model->params;
    const mhla_deit_config *to = from ? mhla_deit_config_of(model->deit) : NULL;
    name_list fresh = {0}, shapes = {0}, unused = {0}, parts = {0};
    int taken = 0, formula = 0;
    char text[160];
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        const mhla_stored *s = find(file, p->name);
        if (s == NULL) {
            list_add(&fresh, p->name);
            continue;
        }
        const int positions = strcmp(p->name, "pos_embed") == 0;
        /* The same number of positions may still stand for another grid, so configs decide, not shapes. */
        const int moved = positions && from &&
                          (!same_shape(s, p) || memcmp(to->image, from->image, sizeof to->image) != 0 ||
                           memcmp(to->padding, from->padding, sizeof to->padding) != 0 || to->patch != from->patch);
        int done = 0;
        if (moved) MHLA_TRY(move_positions(&done, p, s, to, from, note, user));
        if (positions && from == NULL) {
            if (s->count != p->count) note(user, "pos_embed: made anew for this size");
            done = formula = 1;
        }
        if (strstr(p->name, "qkv") && !done && !same_shape(s, p)) {
            MHLA_TRY(move_parts(&done, p, s));
            if (done) list_add(&parts, p->name);
        }
        if (done) {
            taken++;
        } else if (same_shape(s, p)) {
            MHLA_TRY(mhla_stored_read(p->data, s));
            mhla_param_touch(p);
            taken++;
        } else {
            list_add(&shapes, p->name);
        }
    }
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const char *name = mhla_safetensors_at(file, i)->name;
        int used = 0;
        for (int k = 0; k < mhla_params_count(ps) && !used; k++) {
            const mhla_stored *s = find(file, mhla_params_at(ps, k)->name);
            used = s && strcmp(s->name, name) == 0;
        }
        if (!used) list_add(&unused, name);
    }
    if (taken == formula)
        return mhla_fail(MHLA_EDATA, "%s: not one tensor fits this model", mhla_safetensors_path(file));
    snprintf(text, sizeof text, "taken from %.100s: %d tensors of %d", mhla_safetensors_path(file), taken,
             mhla_params_count(ps));
    note(user, text);
    list_tell(&fresh, "new, initialised", note, user);
    list_tell(&parts, "of q, k and v alone, without the gate", note, user);
    list_tell(&shapes, "of another shape, initialised", note, user);
    list_tell(&unused, "left out", note, user);
    return MHLA_OK;
}

mhla_status mhla_model_adopt(mhla_model *model, const char *path, note_fn note, void *user) {
    char folder[MHLA_RUN_PATH], weights[MHLA_RUN_PATH], **names = NULL;
    mhla_deit_config from;
    mhla_safetensors *file = NULL;
    const int diffusion = model->dit != NULL; /* needs no config.json: facebookresearch's files have none */
    const mhla_status located = mhla_model_locate(path, NULL, folder, weights, sizeof folder);
    if (!diffusion) {
        MHLA_TRY(located);
        MHLA_TRY(mhla_deit_config_load(&from, &names, folder));
        mhla_names_free(names, from.classes);
    }
    MHLA_TRY(mhla_safetensors_open(&file, located == MHLA_OK ? weights : path));
    const mhla_status status = adopt(model, file, diffusion ? NULL : &from, note, user);
    mhla_safetensors_close(file);
    return status;
}

mhla_status mhla_params_freeze(mhla_params *params, const json_t *patterns) {
    for (size_t k = 0; k < json_array_size(patterns); k++) {
        const char *pattern = json_string_value(json_array_get(patterns, k));
        int found = 0;
        for (int i = 0; i < mhla_params_count(params); i++) {
            mhla_param *p = mhla_params_at(params, i);
            if (fnmatch(pattern, p->name, 0) != 0) continue;
            p->flags |= MHLA_PARAM_FROZEN;
            found = 1;
        }
        if (!found)
            return mhla_fail(MHLA_EINVAL, "train.freeze: no parameter is called like \"%s\"; mhla info lists them",
                             pattern);
    }
    return MHLA_OK;
}
