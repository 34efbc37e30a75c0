/* What tasks on pictures share: the two parts of the data, class names for the model, batches, and sentences about files
 * that could not be read. */
#ifndef MHLA_TRAIN_PICTURES_H
#define MHLA_TRAIN_PICTURES_H

#include "train/train.h"

typedef struct mhla_pictures {
    mhla_dataset *train, *test;
    mhla_loader *loader;     /* of `train` */
    const mhla_batch *batch; /* of the present update */
    int64_t told[2];         /* broken files of the training and test data that were told */
} mhla_pictures;

/* Opens what data.source names; the number of classes and channels, where the recipe leaves them open, follow from it and
 * are set in the recipe. */
mhla_status mhla_pictures_open(mhla_pictures *p, mhla_recipe *recipe);
/* Batches for training; batch, workers, seed and what the recipe says of cropping and flipping are filled in here. */
mhla_status mhla_pictures_load(mhla_pictures *p, const mhla_recipe *recipe, mhla_loader_desc desc);
void mhla_pictures_close(mhla_pictures *p);

/* Names of `classes` classes, malloc'ed; MHLA_EINVAL where the data has more. */
mhla_status mhla_pictures_names(const mhla_pictures *p, char ***names, int classes);
/* Bytes of pictures that are kept: those of a set whose pictures have one size, and batches of `numbers` floats a picture
 * ahead of training and evaluation. */
double mhla_pictures_bytes(const mhla_pictures *p, const mhla_recipe *recipe, double numbers);
void mhla_pictures_complain(mhla_pictures *p, mhla_trainer *t, void (*note)(mhla_trainer *t, const char *text));

#endif
