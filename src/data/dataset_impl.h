/* Between dataset.c and the files that know a format each: what a dataset is inside. */
#ifndef MHLA_DATA_DATASET_IMPL_H
#define MHLA_DATA_DATASET_IMPL_H

#include <pthread.h>

#include "data/dataset.h"

enum { MHLA_DATASET_SENTENCES = 100 }; /* kept of broken files */

struct mhla_dataset {
    const char *format;
    int64_t count;
    int classes, channels, width, height;
    int frames;   /* of a clip; 0: pictures */
    char **names; /* [classes], or NULL */

    mhla_status (*get)(mhla_dataset *d, int64_t index, mhla_image *image);
    int (*label)(const mhla_dataset *d, int64_t index);
    const char *(*file)(const mhla_dataset *d, int64_t index); /* NULL: none */
    void (*close)(mhla_dataset *d);
    void *own; /* the format's */

    int32_t *shuffled; /* [count] labels that changed places, or NULL */

    pthread_mutex_t lock; /* of what follows */
    int64_t broken;
    int kept;
    char *sentences[MHLA_DATASET_SENTENCES];
};

/* Is this folder in that format? Then *d is filled and opened; a format that finds nothing of its own says MHLA_OK and leaves
 * d->format NULL. On failure `close` is called if set. */
typedef mhla_status (*mhla_dataset_opener)(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_idx(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_cifar(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_npy(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_latents(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_clips(mhla_dataset *d, const char *folder, mhla_split split);
mhla_status mhla_dataset_open_folder(mhla_dataset *d, const char *folder, mhla_split split);

/* ---- What formats share ---- */

/* "folder/name" into path, which holds 4096; is there such a file? */
int mhla_dataset_path(char *path, const char *folder, const char *name);

/* Counts a file that cannot be read and keeps mhla_message() about it. */
void mhla_dataset_tell(mhla_dataset *d);

/* Names, one per line, of a file that may be missing; `most` lines at most. */
mhla_status mhla_dataset_read_names(mhla_dataset *d, const char *folder, const char *name, int most);

/* Folders per class. The folder of a split, and that of the classes, 4096 each: train's names hold for the test, too. */
mhla_status mhla_dataset_find_split(char *part, char *classes, const char *folder, mhla_split split);
/* The sorted names of the folders in `path`: the classes. */
mhla_status mhla_dataset_list_classes(mhla_dataset *d, const char *path);
/* A folder of the test that is no class of the training would be passed over in silence. */
mhla_status mhla_dataset_check_classes(const mhla_dataset *d, const char *part, const char *classes);

int mhla_dataset_is_y4m(const char *name); /* by its ending */

/* Pictures of one size in memory: `get`, `label` and `close` for formats that are arrays. */
typedef struct mhla_dataset_array {
    const uint8_t *pixels, *labels; /* of picture i: pixels + i * pixel_step, labels[i * label_step] */
    size_t pixel_step, label_step;
    int planar;             /* [C,H,W] instead of [H,W,C] */
    void *owned[16];        /* freed by close */
    struct mhla_file *maps; /* [map_count], unmapped by close */
    int map_count;
} mhla_dataset_array;

/* Sets the functions and checks every label: all below d->classes where that is set, else it becomes the largest + 1. `name` is
 * the file of the labels, `first` the byte of it where they begin. */
mhla_status mhla_dataset_use_array(mhla_dataset *d, mhla_dataset_array *a, const char *name, size_t first);

/* An IDX file in memory, maybe compressed by gzip: unsigned bytes only. */
typedef struct mhla_idx {
    int axes;
    uint32_t size[3];
    const uint8_t *data;
    uint8_t *owned; /* free() it */
} mhla_idx;
mhla_status mhla_idx_read(mhla_idx *idx, const void *bytes, size_t size, int axes, const char *name);

#endif
