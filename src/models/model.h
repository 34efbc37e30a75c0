/* The model behind a public handle: a network of one of the families below with what belongs around it, its tape for
 * inference, its files. A family is a row of functions; model.c knows no more of any of them. */
#ifndef MHLA_MODELS_MODEL_H
#define MHLA_MODELS_MODEL_H

#include <mhla/lm.h>
#include <mhla/nn.h>

#include "io/json.h"
#include "io/recipe.h"
#include "io/safetensors.h"
#include "models/deit.h"
#include "models/dit.h"
#include "models/lm.h"
#include "nn/optim.h"

typedef struct mhla_family {
    const char *what;    /* "an image classifier", for messages */
    const char *presets; /* "deit_nano|deit_tiny|..." */
    const mhla_recipe_row *(*rows)(void);
    /* Is this the config.json of such a model? */
    int (*fits)(const json_t *tree);
    /* Opens files of the family's own kind: MHLA_OK and *model NULL where the path is none. NULL: it has no such kind. */
    mhla_status (*open)(mhla_model **model, const char *path, const mhla_open_desc *desc);
    /* A model of what a recipe says, or of config.json and the tensors beside it. Parameters are zeros. */
    mhla_status (*create)(mhla_model **model, const mhla_recipe *given, const char *prefix);
    mhla_status (*read)(mhla_model **model, const json_t *tree, const mhla_safetensors *file,
                        const mhla_open_desc *desc, const char *path);
    mhla_status (*init)(mhla_model *model, uint64_t seed);
    mhla_status (*load)(mhla_model *model, const mhla_safetensors *file);
    void (*query)(const mhla_model *model, mhla_model_info *info); /* what only the family knows of it */
    void (*release)(mhla_model *model);
} mhla_family;

extern const mhla_family mhla_family_deit, mhla_family_dit, mhla_family_lm;

struct mhla_model {
    const mhla_family *family;
    mhla_params *params; /* the network's */
    mhla_deit *deit;     /* one of these, as the family is; the others are NULL */
    mhla_dit *dit;
    mhla_lm *lm;
    const mhla_context *context;
    mhla_tape *tape;     /* of inference; made when first needed */
    mhla_tape *training; /* of mhla_model_step, and its optimiser; the same */
    mhla_optim *optim;
    char *config;  /* the text of config.json */
    char *origin;  /* the folder or file that it was opened from, or NULL */
    char *weights; /* the file that its weights were read from, or NULL */
    /* image classifiers and diffusion models */
    char **class_names; /* [classes], or NULL */
    /* language models */
    mhla_tokenizer *tokenizer;  /* opened when first asked for */
    int32_t end;                /* the token that ends a text where the config names one or none */
    struct mhla_reader *reader; /* of its sequences (sequence.h), likewise; `release` frees it: mhla_reader_free */
};

/* A model of a network's config. The first two take over the class names (an array of malloc'ed texts, or NULL). The third
 * keeps `tree` (may be NULL), the config.json that it was read from, as the text to be saved again. Parameters are zeros. */
mhla_status mhla_model_of_deit(mhla_model **model, const mhla_deit_config *config, char **class_names);
mhla_status mhla_model_of_dit(mhla_model **model, const mhla_dit_config *config, char **class_names);
mhla_status mhla_model_of_lm(mhla_model **model, const mhla_lm_config *config, const json_t *tree);

/* MHLA_EINVAL that says what the model is instead, unless it is of this family. */
mhla_status mhla_model_need(const mhla_model *model, const mhla_family *family);

/* Where the weights of `path` are (see mhla_model_open_weights for `which`): the folder that has config.json, and the file or folder to open
 * as safetensors. */
mhla_status mhla_model_locate(const char *path, const char *which, char *folder, char *weights, size_t size);
/* config.json of a folder with an image classifier; *class_names may come back NULL. */
mhla_status mhla_deit_config_load(mhla_deit_config *config, char ***class_names, const char *folder);

/* What a diffusion model without config.json is, by its tensors: facebookresearch's DiT, or MHLA's as released. MHLA_EDATA
 * for anything else. */
mhla_status mhla_dit_config_guess(mhla_dit_config *config, const mhla_safetensors *file);

/* Every parameter from the file, which has nothing else. */
mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file);
/* Writes values to `path`: of every parameter i, data(user, i), or its own where data is NULL. */
mhla_status mhla_params_save(const mhla_params *params, const char *path, const float *(*data)(void *user, int i),
                             void *user);

/* logits [n,classes], in pieces that keep memory small. */
mhla_status mhla_model_infer(mhla_model *model, float *logits, const float *images, int64_t n);

/* ---- names.c: what models of images share ---- */

char **mhla_names_copy(char *const *names, int count); /* NULL without memory or of NULL */
void mhla_names_free(char **names, int count);
/* The array class_names of config.json; *names NULL where there is none. */
mhla_status mhla_names_read(char ***names, const json_t *list, int classes, const char *path);
/* The text of config.json, to be freed: a tree, which is taken over, and the names of classes or NULL. */
char *mhla_config_text(json_t *tree, char *const *names, int classes);
/* A config.json that asks for far more than the file holds is told before memory for it is taken. What is of a usual size
 * is left to mhla_params_load, which names the tensor. */
mhla_status mhla_config_fits(const mhla_safetensors *file, double least);

#endif
