/* A model and a dataset: how many it gets right; a model and a picture: its class. */
#ifndef MHLA_MEASURE_EVALUATE_H
#define MHLA_MEASURE_EVALUATE_H

#include <mhla/nn.h>
#include <signal.h>

#include "data/loader.h"
#include "models/model.h"

enum { MHLA_RUN_PATH = 4096 };
/* Batches ahead of their use, and images of a batch. */
enum { MHLA_EVALUATE_AHEAD = 2, MHLA_EVALUATE_BATCH = 64 };

/* reference NULL: none. */
mhla_status mhla_evaluate(mhla_model *model, mhla_model *reference, mhla_evaluation *result, mhla_dataset *data,
                          int workers, int64_t limit, volatile sig_atomic_t *stop, mhla_progress_fn progress,
                          void *user);
/* What the run that a model was opened from was trained on: data.source of its recipe. */
mhla_status mhla_data_of_run(char *source, size_t size, const mhla_model *model);
/* How a model wants its pictures where nothing is left to chance; of a diffusion model also by the run that it came from. */
mhla_augment mhla_model_augment(const mhla_model *model);
/* probabilities [classes] of a picture, cropped and normalised as for evaluation. */
mhla_status mhla_model_classify_image(mhla_model *model, float *probabilities, const mhla_image *image);

#endif
