/* The model behind a public handle: a DeiT with what belongs around it, its tape for inference, its files. */
#ifndef MHLA_MODELS_MODEL_H
#define MHLA_MODELS_MODEL_H

#include <mhla/nn.h>

#include "io/safetensors.h"
#include "models/deit.h"
#include "nn/optim.h"

struct mhla_model {
    mhla_deit *deit;
    const mhla_context *context;
    mhla_tape *tape;     /* of inference; made when first needed */
    mhla_tape *training; /* of mhla_model_step, and its optimiser; the same */
    mhla_optim *optim;
    char **class_names; /* [classes], or NULL */
    char *config;       /* the text of config.json */
    char *origin;       /* the folder that it was opened from, or NULL */
};

/* Takes over the class names (an array of malloc'ed texts, or NULL). Parameters are zeros. */
mhla_status mhla_model_make(mhla_model **model, const mhla_deit_config *config, char **class_names);

/* Where the weights of `path` are (see mhla_model_open): the folder that has config.json, and the file or folder to open
 * as safetensors. */
mhla_status mhla_model_locate(const char *path, char *folder, char *weights, size_t size);
/* config.json of a folder; *class_names may come back NULL. */
mhla_status mhla_model_read_config(mhla_deit_config *config, char ***class_names, const char *folder);

/* Every parameter from the file, which has nothing else. */
mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file);
/* Writes values to `path`: of every parameter i, data(user, i), or its own where data is NULL. */
mhla_status mhla_params_save(const mhla_params *params, const char *path, const float *(*data)(void *user, int i),
                             void *user);

/* logits [n,classes], in pieces that keep memory small. */
mhla_status mhla_model_infer(mhla_model *model, float *logits, const float *images, int64_t n);

char **mhla_names_copy(char *const *names, int count); /* NULL without memory or of NULL */
void mhla_names_free(char **names, int count);

#endif
