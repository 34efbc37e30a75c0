/* The model behind a public handle: a network with what belongs around it, its tape for inference, its files. What kind of
 * network it is, its architecture knows, a row of functions in the list of architectures.c; what it can do, its roles say
 * (roles.h). */
#ifndef MHLA_MODELS_MODEL_H
#define MHLA_MODELS_MODEL_H

#include <mhla/lm.h>
#include <mhla/nn.h>

#include "file/json.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "models/roles.h"
#include "nn/optim.h"

/* What is known of files before they are opened as a model: whatever there is of it. */
typedef struct mhla_evidence {
    const char *path;             /* as given */
    const json_t *config;         /* config.json, an object, or NULL */
    const char *config_path;      /* for messages; NULL without */
    const json_t *index;          /* model_index.json, an object: a pipeline of several models; or NULL */
    const mhla_safetensors *file; /* the tensors, or NULL */
    const struct mhla_gguf *gguf; /* a GGUF file, or NULL; then there is nothing else */
} mhla_evidence;

typedef struct mhla_architecture {
    const char *name;                     /* "deit" */
    const char *kind;                     /* "classifier": mhla_model_info.kind */
    const char *what;                     /* "an image classifier", for messages */
    const char *known;                    /* what its files say of themselves, for the message that nothing matched */
    const char *(*types)(void);           /* more of that, where a list of its own decides; may be NULL */
    const char *presets;                  /* "deit_nano|deit_tiny|..." */
    const mhla_recipe_row *(*rows)(void); /* its settings */
    const char *task;                     /* of training; NULL: the first with its role */
    /* Are these files a model of this architecture? Exactly one must say so. A config.json that names what it is of
     * (mhla_evidence_named) is asked before its tensors are opened: names of tensors count where nothing else does. */
    int (*fits)(const mhla_evidence *e);

    /* A network of what a recipe says, or of files. Parameters are zeros. */
    mhla_status (*create)(void **net, const mhla_recipe *given, const char *prefix);
    mhla_status (*read)(void **net, const mhla_evidence *e, const mhla_open_desc *desc);
    mhla_status (*load)(mhla_model *model, const mhla_evidence *e,
                        const mhla_open_desc *desc); /* NULL: mhla_params_load */
    /* Weights of `from`, of the same architecture, become such as `to`, which takes them, reads; NULL: they are. */
    mhla_status (*adapt)(mhla_model *from, const mhla_model *to);
    void (*free)(void *net);
    mhla_params *(*params)(const void *net);
    json_t *(*tree)(const void *net); /* config.json without class names: a new reference, NULL without memory */
    void (*query)(const mhla_model *model, mhla_model_info *info); /* what only the architecture knows of it */

    /* its roles; NULL: it has none such */
    const mhla_classifier *classifier;
    const mhla_denoiser *denoiser;
    const mhla_text_decoder *decoder;
    const mhla_encoder *encoder;
    const mhla_autoencoder *autoencoder;
    const mhla_comparer *comparer;
} mhla_architecture;

struct mhla_model {
    const mhla_architecture *architecture;
    void *net;
    mhla_params *params; /* the network's */
    const mhla_context *context;
    mhla_tape *tape;     /* of inference; made when first needed */
    mhla_tape *training; /* of mhla_model_step, and its optimiser; the same */
    mhla_optim *optim;
    char *config;           /* the text of config.json */
    char *origin;           /* the folder or file that it was opened from, or NULL */
    char *weights;          /* the file that its weights were read from, or NULL */
    mhla_safetensors *file; /* that lends its weights, or NULL */
    char **class_names;     /* [classes], or NULL */
    int classes;
    char vae[65]; /* hash of the autoencoder on whose latents it was trained, or "" */
    /* decoders */
    mhla_tokenizer *tokenizer;  /* opened when first asked for */
    int32_t end;                /* the token that ends a text where the config names one or none */
    struct mhla_reader *reader; /* of its sequences (language/sequence.h), likewise */
};

/* ---- architectures.c: the list ---- */

/* The i-th architecture, NULL behind the last. */
const mhla_architecture *mhla_architecture_at(int i);
/* The one that has this preset, or NULL. */
const mhla_architecture *mhla_architecture_of_preset(const char *preset);
/* Does config.json or model_index.json say by name what it is of? */
int mhla_evidence_named(const mhla_evidence *e);
/* The one whose files these are. MHLA_ENOTSUP (none) or MHLA_EDATA (several, or no files) lists what was found and what is supported. */
mhla_status mhla_architecture_detect(const mhla_architecture **found, const mhla_evidence *e);
/* The same without a message: NULL unless it is exactly one. */
const mhla_architecture *mhla_architecture_only(const mhla_evidence *e);
int mhla_architecture_has(const mhla_architecture *a, mhla_role role);
const char *mhla_role_name(mhla_role role); /* "an image classifier" */

/* ---- model.c ---- */

/* A model around a network, which is taken over, also on failure. `tree`, the config.json that it was read from, is kept as
 * the text to be saved again; NULL: the architecture writes it. */
mhla_status mhla_model_wrap(mhla_model **model, const mhla_architecture *a, void *net, const json_t *tree);
/* A model of settings: a recipe with `prefix` before their names; where it names no preset, of the first architecture with
 * this role. Parameters are zeros: mhla_params_init fills them. */
mhla_status mhla_model_of_recipe(mhla_model **model, mhla_role role, const mhla_recipe *given, const char *prefix);
/* MHLA_EINVAL that says what the model is instead, unless it has this role. */
mhla_status mhla_model_need(const mhla_model *model, mhla_role role);
/* Names of classes, copied; NULL: none. They become part of config.json. */
mhla_status mhla_model_name_classes(mhla_model *model, char *const *names, int classes);
/* mhla_model_hash of the autoencoder on whose latents a denoiser is trained. It becomes part of config.json. */
mhla_status mhla_model_name_vae(mhla_model *model, const char *hash);
/* How many classes a classifier or a denoiser has; 0: none. */
int mhla_model_classes(const mhla_model *model);

/* mhla_model_open_as without reading the weights, which are zeros that take no memory: what the model is, what it will cost. */
mhla_status mhla_model_look(mhla_model **model, const char *path, const mhla_open_desc *given);

/* Where the weights of `path` are (see mhla_model_open_weights for `which`): the folder that has config.json, and the file or folder to open
 * as safetensors. */
mhla_status mhla_model_locate(const char *path, const char *which, char *folder, char *weights, size_t size);

/* mhla_dtype of "float32", "bfloat16", "q8_0"; -1 for NULL; MHLA_EINVAL else. */
mhla_status mhla_storage_named(int *dtype, const char *storage);

/* All of a tensor into a parameter of any storage, a piece of rows at a time. */
mhla_status mhla_param_read(mhla_param *p, const mhla_stored *s);
/* The tensor stays where it is in its file, if the parameter is a MATRIX, and is read whenever it is needed (mhla_param_lend). The model
 * keeps the file open. */
mhla_status mhla_param_lend_stored(mhla_param *p, const mhla_stored *s);
/* Every parameter from the file, which has nothing else. */
mhla_status mhla_params_load(mhla_params *params, const mhla_safetensors *file);
/* The same of a file with other names: name() makes what a parameter is called in it. What others() knows, NULL: nothing, may be there as
 * well. take(), NULL: mhla_param_read, gets a tensor of the right shape into its parameter. */
typedef struct mhla_naming {
    void (*name)(char name[256], const void *of, const char *parameter);
    int (*others)(const void *of, const char *name);
    mhla_status (*take)(mhla_param *param, const mhla_stored *stored);
    const void *of;
    const char *what; /* "the autoencoder": what a tensor that is left over is no part of */
} mhla_naming;
mhla_status mhla_params_load_named(mhla_params *params, const mhla_safetensors *file, const mhla_naming *naming);
/* Writes values to `path`: of every parameter i, data(user, i), or its own where data is NULL. */
mhla_status mhla_params_save(const mhla_params *params, const char *path, const float *(*data)(void *user, int i),
                             void *user);
/* A config.json that asks for far more than the file holds is told before memory for it is taken. What is of a usual size
 * is left to mhla_params_load, which names the tensor. */
mhla_status mhla_config_fits(const mhla_safetensors *file, double least);

/* logits [n,classes], in pieces that keep memory small. */
mhla_status mhla_model_infer(mhla_model *model, float *logits, const float *images, int64_t n);

/* ---- names.c: lists of texts ---- */

char **mhla_names_copy(char *const *names, int count); /* NULL without memory or of NULL */
void mhla_names_free(char **names, int count);
/* The array class_names of config.json; *names NULL where there is none. */
mhla_status mhla_names_read(char ***names, const json_t *list, int classes, const char *path);

#endif
