/* Labelled pictures, whatever they lie in: count, names of the classes, picture and label by index.
 *
 *   IDX           folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-.. (each also .gz): Fashion-MNIST
 *   CIFAR binary  folder with data_batch_1.bin .. and test_batch.bin, or train.bin and test.bin (1 byte of label, then 3 planes
 *                 of 32 x 32), names in batches.meta.txt or classes.txt
 *   npy           folder with train_images.npy [N,H,W] or [N,H,W,3], train_labels.npy [N], test_.. 
 *   clips         the same of clips: train_clips.npy [N,F,H,W] or [N,F,H,W,3], which a diffusion of clips learns
 *   clips of files  as an image folder, with a folder of frames or a .y4m file for each clip, and clips.json
 *   latents       what `mhla latents` makes of any of these (latents.h): numbers, which a diffusion of latents learns
 *   image folder  train/CLASS/..., val/CLASS/... as ImageNet has it (also test/, validation/), or only CLASS/...; classes
 *                 are the sorted folder names, files are found at any depth
 *
 * An image folder is listed, its files' first bytes looked at, at opening: what is no picture is left out and told. What turns out
 * to be broken later is told by `get` and remembered. All of it may be called by several threads at once, after opening. */
#ifndef MHLA_DATA_DATASET_H
#define MHLA_DATA_DATASET_H

#include "image/image.h"

typedef struct mhla_dataset mhla_dataset;

typedef enum mhla_split { MHLA_SPLIT_TRAIN, MHLA_SPLIT_TEST } mhla_split;

/* *data is freed with mhla_dataset_free. MHLA_EIO, MHLA_EDATA with one sentence otherwise. */
mhla_status mhla_dataset_open(mhla_dataset **data, const char *folder, mhla_split split);
/* The same without clips, which are MHLA_EINVAL. */
mhla_status mhla_dataset_open_images(mhla_dataset **data, const char *folder, mhla_split split);
void mhla_dataset_free(mhla_dataset *data); /* NULL is legal */

const char *mhla_dataset_format(const mhla_dataset *data); /* "IDX", "CIFAR binary", "npy", "image folder" */
int64_t mhla_dataset_count(const mhla_dataset *data);
int mhla_dataset_classes(const mhla_dataset *data);
const char *mhla_dataset_class_name(const mhla_dataset *data, int label); /* "" if it has none */
int mhla_dataset_channels(const mhla_dataset *data);                      /* 1 or 3; an image folder says 3 */
/* Where all pictures have one size; 0 otherwise. */
int mhla_dataset_width(const mhla_dataset *data);
int mhla_dataset_height(const mhla_dataset *data);
/* Of a clip; 0: these are pictures. A clip is got as one picture, its frames one below the other; width and height are a frame's. */
int mhla_dataset_frames(const mhla_dataset *data);
int mhla_dataset_label(const mhla_dataset *data, int64_t index); /* without reading the picture */
/* The file of a picture, or "" where it has none of its own; for reports. */
const char *mhla_dataset_file(const mhla_dataset *data, int64_t index);

/* From now on the labels are a permutation of the true ones, a function of the seed: a control, in which there is nothing to
 * be learned. */
mhla_status mhla_dataset_shuffle(mhla_dataset *data, uint64_t seed);

mhla_status mhla_dataset_get(mhla_dataset *data, int64_t index, mhla_image *image, int *label);

/* Files that could not be read: how many up to now, and up to `capacity` of the sentences about them (each begins with the
 * file's name; valid until the dataset is freed). Returns the number of sentences given. */
int64_t mhla_dataset_broken(mhla_dataset *data, int64_t *count, const char **sentences, int64_t capacity);

/* ---- source.c ---- */

/* The folder of a dataset: a known name's, or the path itself. */
mhla_status mhla_data_locate(char *folder, size_t size, const char *source);
/* The same folder as an absolute path. */
mhla_status mhla_data_whole_path(char *folder, size_t size);
/* The version of the data: SHA-256 of the names and bytes of all files in the folder, in the order of the names. */
mhla_status mhla_data_sum(char text[65], const char *folder);

#endif
