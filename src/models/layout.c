/* Files under other names than ours. */
#include "models/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "models/model.h"

enum { NAME = 256, MOST = 1 << 20 /* of any size in a file */ };

typedef struct named {
    char name[NAME]; /* without the layout's levels */
    const mhla_stored *stored;
    int used;
} named;

struct mhla_layout_names {
    const mhla_layout *layout;
    const mhla_safetensors *file;
    named *list; /* [count], by name */
    size_t count;
};

/* ---- Names ---- */

typedef struct place {
    char name[NAME];
    int part, parts;
} place;

static int begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static void append(char to[NAME], const char *text) {
    const size_t n = strlen(to);
    snprintf(to + n, NAME - n, "%s", text);
}

static place place_of(const mhla_layout *layout, const char *ours) {
    place p = {.parts = 1};
    for (const char *at = ours; *at;) {
        const mhla_rename *r = layout ? layout->rules : NULL;
        if (at == ours || at[-1] == '.')
            while (r && r->ours && !(*r->ours == '^' ? at == ours && begins(at, r->ours + 1) : begins(at, r->ours)))
                r++;
        else
            r = NULL;
        if (r && r->ours) {
            append(p.name, r->theirs);
            at += strlen(r->ours) - (*r->ours == '^');
            if (r->parts > 1) p.part = r->part, p.parts = r->parts;
        } else {
            append(p.name, (const char[]){*at++, '\0'});
        }
    }
    return p;
}

static void without_levels(char to[NAME], const mhla_layout *layout, const char *name) {
    *to = '\0';
    for (const char *at = name; *at;) {
        const char *const *level = layout ? layout->levels : NULL;
        if (at == name || at[-1] == '.')
            while (level && *level && !begins(at, *level)) level++;
        else
            level = NULL;
        if (level && *level)
            at += strlen(*level);
        else
            append(to, (const char[]){*at++, '\0'});
    }
}

static int by_name(const void *a, const void *b) { return strcmp(((const named *)a)->name, ((const named *)b)->name); }

mhla_status mhla_layout_open(mhla_layout_names **names, const mhla_layout *layout, const mhla_safetensors *file) {
    const int64_t count = mhla_safetensors_count(file);
    mhla_layout_names *n = calloc(1, sizeof *n);
    *names = NULL;
    if (n) n->list = calloc((size_t)count + 1, sizeof *n->list);
    if (n == NULL || n->list == NULL) {
        mhla_layout_close(n);
        return mhla_fail(MHLA_ENOMEM, "no memory for the names of %lld tensors", (long long)count);
    }
    n->layout = layout;
    n->file = file;
    n->count = (size_t)count;
    for (int64_t i = 0; i < count; i++) {
        n->list[i].stored = mhla_safetensors_at(file, i);
        without_levels(n->list[i].name, layout, n->list[i].stored->name);
    }
    qsort(n->list, n->count, sizeof *n->list, by_name);
    for (size_t i = 1; i < n->count; i++) /* cut names, or levels that were no levels */
        if (strcmp(n->list[i - 1].name, n->list[i].name) == 0) {
            const mhla_status status = mhla_fail(MHLA_EDATA, "%s: two tensors are the parameter %s",
                                                 mhla_safetensors_path(file), MHLA_QUOTE(n->list[i].name));
            mhla_layout_close(n);
            return status;
        }
    *names = n;
    return MHLA_OK;
}

void mhla_layout_close(mhla_layout_names *n) {
    if (n) free(n->list);
    free(n);
}

static named *find(const mhla_layout_names *n, const char *name) {
    named key;
    snprintf(key.name, sizeof key.name, "%s", name);
    return bsearch(&key, n->list, n->count, sizeof key, by_name);
}

const mhla_stored *mhla_layout_find(const mhla_layout_names *n, const char *ours) {
    const named *found = find(n, place_of(n->layout, ours).name);
    return found ? found->stored : NULL;
}

static mhla_status missing(const mhla_layout_names *n, const char *name) {
    mhla_nearest nearest = mhla_nearest_begin(name);
    for (size_t i = 0; i < n->count; i++) mhla_nearest_offer(&nearest, n->list[i].name);
    return mhla_fail(MHLA_EDATA, "%s: no tensor %s%s%s", mhla_safetensors_path(n->file), MHLA_QUOTE(name),
                     nearest.best ? "; the nearest is " : "", nearest.best ? MHLA_QUOTE(nearest.best) : "");
}

mhla_status mhla_layout_need(const mhla_stored **tensor, const mhla_layout_names *n, const char *ours, int rank) {
    const mhla_stored *s = *tensor = mhla_layout_find(n, ours);
    if (s == NULL) return missing(n, place_of(n->layout, ours).name);
    int fine = s->rank == rank;
    for (int a = 0; a < s->rank; a++) fine &= s->shape[a] >= 1 && s->shape[a] <= MOST;
    if (fine) return MHLA_OK;
    char text[96];
    return mhla_fail(MHLA_EDATA, "%s: tensor %s has the shape %s: expected %d sizes of 1 to %d", s->path,
                     MHLA_QUOTE(s->name), mhla_io_shape_text(text, sizeof text, s->rank, s->shape), rank, MOST);
}

/* ---- Loading ---- */

static mhla_status read_param(mhla_param *p, mhla_layout_names *n) {
    const place at = place_of(n->layout, p->name);
    named *found = find(n, at.name);
    int64_t shape[MHLA_MAX_DIMS];
    if (found == NULL) return missing(n, at.name);
    const mhla_stored *s = found->stored;
    memcpy(shape, p->shape, sizeof shape);
    shape[0] *= at.parts;
    if (!mhla_stored_alike(s, p->dims, shape)) MHLA_TRY(mhla_stored_check(s, p->dims, shape));
    found->used = 1;
    mhla_stored piece = *s;
    piece.count /= at.parts;
    piece.bytes /= (size_t)at.parts;
    piece.data += (size_t)at.part * piece.bytes;
    return mhla_param_read(p, &piece);
}

static int is_beside(const mhla_layout *layout, const char *name) {
    const char *const *b = layout ? layout->beside : NULL;
    while (b && *b && strcmp(*b, name) != 0) b++;
    return b && *b;
}

mhla_status mhla_layout_load(mhla_params *params, const mhla_layout *layout, const mhla_safetensors *file) {
    mhla_layout_names *n;
    MHLA_TRY(mhla_layout_open(&n, layout, file));
    mhla_status status = MHLA_OK;
    for (int i = 0; i < mhla_params_count(params) && status == MHLA_OK; i++)
        status = read_param(mhla_params_at(params, i), n);
    for (size_t i = 0; i < n->count && status == MHLA_OK; i++)
        if (!n->list[i].used && !is_beside(layout, n->list[i].name))
            status = mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of the model", n->list[i].stored->path,
                               MHLA_QUOTE(n->list[i].stored->name));
    mhla_layout_close(n);
    return status;
}
