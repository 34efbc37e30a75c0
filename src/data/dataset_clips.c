/* Clips of one's own: as an image folder is laid out, but in a class each .y4m file is a clip, and so is each folder, whose images are
 * the frames in the order of their names. clips.json beside the parts says what is learned of them:
 *
 *   {"frames": 16, "height": 32, "width": 32, "step": 1}
 *
 * A longer clip is as many samples as it has stretches of that many frames, one behind the other; of each `step` frames one is taken.
 * Height and width may be left out: then they are the first clip's. Other frames are resized to cover that, and their centre is taken. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/file.h"
#include "file/json.h"
#include "image/resize.h"
#include "image/y4m.h"

typedef struct clip {
    char *path;
    char **files; /* [frames] names of a folder's images; NULL: a .y4m */
    int64_t frames;
    int64_t first; /* number of its first sample */
    int label, broken;
} clip;

typedef struct clips {
    clip *all;
    int count, room;
    int step;
} clips;

static mhla_status no_memory(const char *path) { return mhla_fail(MHLA_ENOMEM, "%s: no memory for listing it", path); }

static void clip_free(clip *c) {
    for (int64_t i = 0; c->files && i < c->frames; i++) free(c->files[i]);
    free(c->files);
    free(c->path);
    *c = (clip){0};
}

int mhla_dataset_is_y4m(const char *name) {
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".y4m") == 0;
}

static int by_text(const void *x, const void *y) { return strcmp(*(char *const *)x, *(char *const *)y); }
static int by_path(const void *x, const void *y) {
    const clip *a = x, *b = y;
    return a->label != b->label ? (a->label < b->label ? -1 : 1) : strcmp(a->path, b->path);
}

/* ---- clips.json ---- */

static mhla_status read_about(mhla_dataset *d, clips *all, const char *path) {
    static const char *const keys[] = {"frames", "height", "width", "step", NULL};
    json_t *tree = NULL;
    int64_t frames = 0, height = 0, width = 0, step = 1;
    MHLA_TRY(mhla_json_load(&tree, path));
    mhla_status status = mhla_json_check_keys(tree, keys, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&frames, tree, "frames", 1, 1024, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&height, tree, "height", 1, 8192, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&width, tree, "width", 1, 8192, path);
    if (status == MHLA_OK) status = mhla_json_get_int(&step, tree, "step", 1, 1024, path);
    json_decref(tree);
    MHLA_TRY(status);
    if (frames == 0) return mhla_fail(MHLA_EDATA, "%s: frames is missing, the number of frames of a clip", path);
    if ((height == 0) != (width == 0))
        return mhla_fail(MHLA_EDATA, "%s: %s is there without %s", path, height ? "height" : "width",
                         height ? "width" : "height");
    if (frames * height > 1 << 20)
        return mhla_fail(MHLA_EDATA, "%s: frames times height is more than %d", path, 1 << 20);
    d->frames = (int)frames;
    d->height = (int)height;
    d->width = (int)width;
    all->step = (int)step;
    return MHLA_OK;
}

/* ---- Listing ---- */

/* The images of a folder by name, malloc'ed; *count 0 and NULL where there are none. */
static mhla_status list_frames(char ***files, int64_t *count, const char *folder) {
    DIR *dir = opendir(folder);
    int64_t room = 0;
    mhla_status status = MHLA_OK;
    *files = NULL;
    *count = 0;
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.' || !mhla_image_name(e->d_name)) continue;
        if (*count == room) {
            room = 2 * room + 32;
            char **more = realloc(*files, (size_t)room * sizeof *more);
            if (more == NULL)
                status = no_memory(folder);
            else
                *files = more;
        }
        if (status == MHLA_OK && ((*files)[*count] = strdup(e->d_name)) == NULL) status = no_memory(folder);
        if (status == MHLA_OK) ++*count;
    }
    closedir(dir);
    if (*count) qsort(*files, (size_t)*count, sizeof **files, by_text);
    return status;
}

/* How many frames a clip has, and how large the first one is. */
static mhla_status look_at(clip *c, int *height, int *width) {
    mhla_file file;
    mhla_status status;
    if (c->files) {
        char path[4096];
        int channels;
        if (!mhla_dataset_path(path, c->path, c->files[0])) return mhla_fail(MHLA_EIO, "%s: too long a path", c->path);
        MHLA_TRY(mhla_file_map(&file, path));
        status = mhla_image_probe(width, height, &channels, file.data, file.size, path);
    } else {
        mhla_y4m y4m;
        MHLA_TRY(mhla_file_map(&file, c->path));
        status = mhla_y4m_open(&y4m, file.data, file.size, c->path);
        if (status == MHLA_OK) {
            c->frames = y4m.frames;
            *width = y4m.width;
            *height = y4m.height;
            mhla_y4m_close(&y4m);
        }
    }
    mhla_file_unmap(&file);
    return status;
}

/* Takes what c owns, or frees it. A clip that cannot be read or is too short is told and left out. */
static mhla_status add_clip(mhla_dataset *d, clips *all, clip c) {
    int height = 0, width = 0;
    const int64_t needed = (int64_t)(d->frames - 1) * all->step + 1;
    mhla_status status = look_at(&c, &height, &width);
    if (status == MHLA_OK && c.frames < needed)
        status = mhla_fail(MHLA_EDATA, "%s: %lld frames: a sample takes %lld", c.path, (long long)c.frames,
                           (long long)needed);
    if (status != MHLA_OK) {
        clip_free(&c);
        if (status == MHLA_ENOMEM) return status;
        mhla_dataset_tell(d);
        return MHLA_OK;
    }
    if (all->count == all->room) {
        const int room = 2 * all->room + 64;
        clip *more = realloc(all->all, (size_t)room * sizeof *more);
        if (more == NULL) {
            clip_free(&c);
            return no_memory("clips");
        }
        all->all = more;
        all->room = room;
    }
    all->all[all->count++] = c;
    return MHLA_OK;
}

static mhla_status list_class(mhla_dataset *d, clips *all, const char *folder, int label) {
    DIR *dir = opendir(folder);
    mhla_status status = MHLA_OK;
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    for (struct dirent *e; status == MHLA_OK && (e = readdir(dir)) != NULL;) {
        char path[4096];
        struct stat info;
        clip c = {.label = label};
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path ||
            stat(path, &info) != 0)
            continue;
        if (S_ISDIR(info.st_mode)) status = list_frames(&c.files, &c.frames, path);
        if (status == MHLA_OK && (c.files || (!S_ISDIR(info.st_mode) && mhla_dataset_is_y4m(e->d_name)))) {
            c.path = strdup(path);
            status = c.path ? add_clip(d, all, c) : no_memory(path);
            if (c.path) continue; /* it is the list's, or gone */
        }
        clip_free(&c);
    }
    closedir(dir);
    return status;
}

/* Numbers of samples, and the size where clips.json leaves it open. */
static mhla_status number(mhla_dataset *d, clips *all, const char *part) {
    if (all->count) qsort(all->all, (size_t)all->count, sizeof *all->all, by_path);
    for (int i = 0; i < all->count; i++) {
        clip *c = &all->all[i];
        const int64_t stretch = (int64_t)d->frames * all->step;
        c->first = d->count;
        d->count += (c->frames + all->step - 1) / stretch; /* the last one may end before its last step */
        if (d->height == 0) MHLA_TRY(look_at(c, &d->height, &d->width));
    }
    if ((int64_t)d->frames * d->height > 1 << 20 || (int64_t)d->frames * d->height * d->width > MHLA_IMAGE_MAX_PIXELS)
        return mhla_fail(MHLA_EDATA,
                         "%s: clips of %d frames of %d x %d are too large: clips.json can set a smaller size", part,
                         d->frames, d->width, d->height);
    if (d->count) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: no clip in it%s%s", part, d->kept ? "; for example " : "",
                     d->kept ? d->sentences[0] : "");
}

/* ---- Samples ---- */

static clip *clip_of(const clips *all, int64_t index) {
    int low = 0, high = all->count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (all->all[middle].first <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &all->all[low];
}

/* Frame f of the sample: `image` resized and cropped into it. */
static mhla_status put_frame(const mhla_dataset *d, mhla_image *sample, const mhla_image *image, mhla_image *fitted,
                             int f) {
    const size_t bytes = (size_t)d->width * (size_t)d->height * 3;
    const int fits = image->width == d->width && image->height == d->height;
    if (!fits) MHLA_TRY(mhla_image_eval_crop(fitted, image, d->width, d->height, 1.0, MHLA_FILTER_BICUBIC));
    memcpy(sample->data + (size_t)f * bytes, fits ? image->data : fitted->data, bytes);
    return MHLA_OK;
}

static mhla_status get_files(const mhla_dataset *d, const clip *c, int64_t from, mhla_image *sample,
                             mhla_image two[2]) {
    const clips *all = d->own;
    for (int f = 0; f < d->frames; f++) {
        char path[4096];
        if (!mhla_dataset_path(path, c->path, c->files[from + (int64_t)f * all->step]))
            return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
        MHLA_TRY(mhla_image_read(&two[0], path, 3));
        MHLA_TRY(put_frame(d, sample, &two[0], &two[1], f));
    }
    return MHLA_OK;
}

static mhla_status get_y4m(const mhla_dataset *d, const clip *c, int64_t from, mhla_image *sample, mhla_image two[2]) {
    const clips *all = d->own;
    mhla_file file;
    mhla_y4m y4m = {0};
    MHLA_TRY(mhla_file_map(&file, c->path));
    mhla_status status = mhla_y4m_open(&y4m, file.data, file.size, c->path);
    if (status == MHLA_OK && y4m.frames != c->frames)
        status = mhla_fail(MHLA_EDATA, "%s: %lld frames, and there were %lld", c->path, (long long)y4m.frames,
                           (long long)c->frames);
    if (status == MHLA_OK) status = mhla_image_reserve(&two[0], y4m.width, y4m.height, 3);
    for (int f = 0; f < d->frames && status == MHLA_OK; f++) {
        mhla_y4m_frame(&y4m, from + (int64_t)f * all->step, two[0].data);
        status = put_frame(d, sample, &two[0], &two[1], f);
    }
    mhla_y4m_close(&y4m);
    mhla_file_unmap(&file);
    return status;
}

static mhla_status clips_get(mhla_dataset *d, int64_t index, mhla_image *sample) {
    const clips *all = d->own;
    clip *c = clip_of(all, index);
    const int64_t from = (index - c->first) * d->frames * all->step;
    mhla_image two[2] = {{0}, {0}};
    mhla_status status = mhla_image_reserve(sample, d->width, d->height * d->frames, 3);
    if (status == MHLA_OK) status = (c->files ? get_files : get_y4m)(d, c, from, sample, two);
    mhla_image_free(&two[0]);
    mhla_image_free(&two[1]);
    if (status == MHLA_OK || status == MHLA_ENOMEM) return status;
    pthread_mutex_lock(&d->lock);
    const int first = !c->broken;
    c->broken = 1;
    pthread_mutex_unlock(&d->lock);
    if (first) mhla_dataset_tell(d);
    return status;
}

static int clips_label(const mhla_dataset *d, int64_t index) { return clip_of(d->own, index)->label; }
static const char *clips_file(const mhla_dataset *d, int64_t index) { return clip_of(d->own, index)->path; }

static void clips_close(mhla_dataset *d) {
    clips *all = d->own;
    for (int i = 0; i < all->count; i++) clip_free(&all->all[i]);
    free(all->all);
    free(all);
}

mhla_status mhla_dataset_open_clips(mhla_dataset *d, const char *folder, mhla_split split) {
    char about[4096], part[4096], classes[4096];
    if (!mhla_dataset_path(about, folder, "clips.json")) return MHLA_OK;
    clips *all = calloc(1, sizeof *all);
    if (all == NULL) return no_memory(folder);
    d->format = "clips of files";
    d->own = all;
    d->get = clips_get;
    d->label = clips_label;
    d->file = clips_file;
    d->close = clips_close;
    d->channels = 3;
    MHLA_TRY(read_about(d, all, about));
    MHLA_TRY(mhla_dataset_find_split(part, classes, folder, split));
    MHLA_TRY(mhla_dataset_list_classes(d, classes));
    if (d->classes == 0)
        return mhla_fail(MHLA_EDATA, "%s: no folder in it: expected one for each class, with its clips", classes);
    MHLA_TRY(mhla_dataset_check_classes(d, part, classes));
    for (int i = 0; i < d->classes; i++) {
        char path[4096];
        const int before = all->count;
        if (!mhla_dataset_path(path, part, d->names[i])) continue; /* a test without that class */
        MHLA_TRY(list_class(d, all, path, i));
        if (all->count == before && split == MHLA_SPLIT_TRAIN)
            return mhla_fail(MHLA_EDATA, "%s: no clip of this class that can be read%s%s", path,
                             d->kept ? "; for example " : "", d->kept ? d->sentences[d->kept - 1] : "");
    }
    return number(d, all, part);
}
