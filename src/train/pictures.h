/* What tasks on pictures share: the two parts of the data, class names for the model, batches, and sentences about files
 * that could not be read. */
#ifndef MHLA_TRAIN_PICTURES_H
#define MHLA_TRAIN_PICTURES_H

#include <mhla/diffusion.h>

#include "train/train.h"

typedef struct mhla_pictures {
    mhla_dataset *train, *test;
    mhla_loader *loader;     /* of `train` */
    const mhla_batch *batch; /* of the present update */
    int64_t told[2];         /* broken files of the training and test data that were told */
} mhla_pictures;

/* The keys of a recipe that all of them have. */
extern const mhla_recipe_row mhla_picture_keys[];

/* Opens what data.source names; the number of classes and channels, where the recipe leaves them open, follow from it and
 * are set in the recipe; of latents, the model's sides as well. */
mhla_status mhla_pictures_open(mhla_pictures *p, mhla_recipe *recipe, int may_be_latents);
/* Batches for training; batch, workers, seed and what the recipe says of cropping and flipping are filled in here. Of a batch only the
 * rows are read that this rank needs. */
mhla_status mhla_pictures_load(mhla_pictures *p, const mhla_trainer *t, mhla_loader_desc desc);
void mhla_pictures_close(mhla_pictures *p);

/* Part `part` of `parts` of the present batch, rows *first .. *first + the result - 1; *share of all are in it. In a dry run the
 * largest part of what the recipe says, of part 0, or else the smallest. */
int64_t mhla_pictures_part(const mhla_pictures *p, const mhla_recipe *recipe, int dry, int64_t part, int64_t parts,
                           int64_t *first, double *share);

/* Test pictures as the model sees them, in batches, the first of which is number `first`; at most `limit` (0: all), spread over the
 * data. fn adds its results to sums[0 .. n-1], which begin at 0 with each batch; all batches are then added up in their order, so that
 * it does not matter which rank took which. Ends early where t->stop is set. Pictures that could not be read have label -1. */
typedef mhla_status (*mhla_pictures_fn)(mhla_trainer *t, const mhla_batch *batch, int64_t first, double *sums);
mhla_status mhla_pictures_each(mhla_trainer *t, const mhla_pictures *p, int64_t limit, mhla_pictures_fn fn,
                               double *sums, int n, mhla_progress_fn progress, void *user);
/* How many of them: all that there are, or the limit. */
int64_t mhla_pictures_tested(const mhla_pictures *p, int64_t limit);
/* The grid of this step, RUN/samples/step-NNNNNNNN.png; of clips a grid for each frame, played one after the other. */
mhla_status mhla_pictures_save(const mhla_trainer *t, const mhla_picture *grids, int64_t frames);

/* Names of `classes` classes, malloc'ed; MHLA_EINVAL where the data has more. */
mhla_status mhla_pictures_names(const mhla_pictures *p, char ***names, int classes);
/* Bytes of pictures that are kept: those of a set whose pictures have one size, and batches of `numbers` floats a picture
 * ahead of training and evaluation. */
double mhla_pictures_bytes(const mhla_pictures *p, const mhla_recipe *recipe, double numbers);

/* ---- For the rows of tasks: their job begins with its mhla_pictures ---- */

const mhla_pictures *mhla_pictures_of(const mhla_trainer *t);
mhla_status mhla_pictures_seek(mhla_trainer *t, int64_t epoch, int64_t batch);
mhla_status mhla_pictures_next(mhla_trainer *t);
double mhla_pictures_count(mhla_trainer *t, mhla_train_event *e);
void mhla_pictures_tell_loss(mhla_train_event *e, const mhla_score *plain, const mhla_score *average);
mhla_status mhla_pictures_adopt(mhla_trainer *t, const char *path, void (*note)(void *user, const char *text),
                                void *user);
void mhla_pictures_complain(mhla_trainer *t, void (*note)(mhla_trainer *t, const char *text));

#endif
