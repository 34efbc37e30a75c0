/* Decoders of text: what a model of this family is (its config), its parameters by name, its forward pass. How tokens see each other is
 * chosen per layer, from the mixers of mixer.h. lm.c is the paper; lm_config.c has what can be chosen, lm_config_file.c and lm_llama.c
 * read and write it.
 *
 *   training      hidden = mhla_lm_forward(t, lm, &run, ids, B, T); loss from hidden and mhla_lm_output(lm), in pieces
 *   inference     the same, with `pass` of the run set: layers read and extend the memories of its sequences */
#ifndef MHLA_MODELS_LM_H
#define MHLA_MODELS_LM_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

#include "models/language/mixer.h"
#include "models/language/rope.h"

enum { MHLA_LM_LAYERS = 256, MHLA_LM_ENDS = 32 }; /* at most */

/* Under which names the parameters go: flash-linear-attention's, or Hugging Face's Llama, the same network; or Mamba's, whose layers are a norm
 * and a mixer, without an MLP; or Gemma's, whose layers have norms behind the mixer and the MLP, too, all of them with 1 + w. */
enum { MHLA_LM_NAMES_FLA, MHLA_LM_NAMES_HF, MHLA_LM_NAMES_MAMBA, MHLA_LM_NAMES_GEMMA, MHLA_LM_NAMES };

/* Layers that have the same mixer with the same settings. */
typedef struct mhla_lm_group {
    const mhla_mixer *mixer;
    union {
        max_align_t align;
        unsigned char bytes[MHLA_MIXER_BYTES];
    } settings;
} mhla_lm_group;

typedef struct mhla_lm_config {
    char model[MHLA_SETTING_CHARS]; /* the preset that the sizes come from, or the model_type of the file */
    int attention;                  /* which of the mixers is the rule */
    int naming;
    int layers;
    int groups;
    short group_of[MHLA_LM_LAYERS];          /* of each layer */
    mhla_lm_group group[MHLA_LM_LAYERS + 1]; /* [groups]; the first is the rule, of which there may be no layer left */
    int vocabulary, width;
    int hidden; /* of the SwiGLU MLP; 0, before mhla_lm_settle: by hidden_ratio, and behind it: there is none */
    double hidden_ratio;
    double norm_eps;
    int mlp_bias;
    int tied;                   /* the output matrix is the embedding */
    int positions;              /* max_position_embeddings, 0 = unknown */
    int bos, eos;               /* -1: none */
    int32_t ends[MHLA_LM_ENDS]; /* [end_count] all that end a text, eos perhaps among them; none: eos alone does */
    int end_count;
    double softcap;       /* of the logits; 0: none */
    double deviation;     /* of fresh weights */
    mhla_scaling scaling; /* of the rotary embedding, for mixers that know it */
} mhla_lm_config;

/* Parts of the names of parameters, in the order of the names above, and what else a network of these names has. */
typedef struct mhla_lm_names {
    const char *embeddings, *layers, *mixer_norm, *mixer, *mlp_norm, *norm; /* layers: "%s.%d"; mlp_norm NULL: no MLP */
    const char *mixed_norm, *fed_norm; /* behind the mixer and the MLP, before their results are added; NULL: none */
    int plus_one;                      /* norms multiply by 1 + w */
    int gelu;                          /* the MLP's gate is GELU in its tanh form, not SiLU */
    int scaled;                        /* embeddings are multiplied by sqrt(width) */
} mhla_lm_names;
extern const mhla_lm_names mhla_lm_names_of[];

static inline const mhla_lm_group *mhla_lm_group_of(const mhla_lm_config *c, int layer) {
    return &c->group[c->group_of[layer]];
}

/* The sizes of a preset ("lm_nano", "lm_340m", ...) with one mixer ("mhla", ...) in all layers. */
mhla_status mhla_lm_preset(mhla_lm_config *c, const char *model, const char *mixer);

/* The keys of `key=value`: rows as a recipe wants them, without values of their own (presets give those), ended by an
 * empty one: those of the decoder, of every mixer, and of every mixer once more with its group before their names. NULL without memory.
 * Preset, then what `given`, a recipe of these rows with `prefix` before their names, was
 * given. */
const mhla_recipe_row *mhla_lm_rows(void);
mhla_status mhla_lm_from_recipe(mhla_lm_config *c, const mhla_recipe *given, const char *prefix);

/* Another group of layers, with the mixer's standard settings. NULL and a message if there are too many. Then the layers of the list
 * that are its: MHLA_EINVAL names one that does not exist or is listed twice. */
mhla_lm_group *mhla_lm_add_group(mhla_lm_config *c, const mhla_mixer *mixer, const mhla_lm_size *size);
mhla_status mhla_lm_set_layers(mhla_lm_config *c, const json_t *layers);
/* Makes the sizes that follow from the rest, and checks that all fit together. Everything else trusts a settled config. */
mhla_status mhla_lm_settle(mhla_lm_config *c);

/* config.json and back. Reading takes fla's model types and Hugging Face's Llama and its kin; what the tensors of `file` (may be NULL)
 * say counts more than the keys. MHLA_ENOTSUP names the part that is not known here. `path` is for messages. Writing makes an object with
 * every key, a new reference, NULL without memory; who re-saves an opened model keeps the keys of its file instead. */
mhla_status mhla_lm_config_read(mhla_lm_config *c, const json_t *tree, const mhla_safetensors *file, const char *path);
json_t *mhla_lm_config_tree(const mhla_lm_config *c);
/* Tokens that end a text: `key` of an object, a number or a list of them. Nothing changes where it is absent. */
mhla_status mhla_lm_ends_read(mhla_lm_config *c, const json_t *tree, const char *key, const char *path);
/* Is this the config.json of a language model? By its model_type. */
int mhla_lm_config_fits(const json_t *tree);
const char *mhla_lm_types(void); /* "llama, mistral, qwen2, qwen3, mhla, ...": all that there are */
/* The keys of the decoder, for its readers and writers; the first MHLA_LM_CHOOSE choose the preset. */
extern const mhla_settings mhla_lm_table;
enum { MHLA_LM_CHOOSE = 2 };

/* A dialect of config.json that is Hugging Face's: Llama and its kin (lm_llama.c), Gemma (lm_gemma.c). */
typedef struct mhla_lm_dialect {
    const char *types; /* "llama, mistral, qwen2, qwen3" */
    int naming;
    /* What a model of the dialect has where config.json says nothing.* */
    void (*standard)(mhla_lm_config *c, const char *model_type);
    /* The decoder's keys have been read. */
    mhla_status (*read)(mhla_lm_config *c, const json_t *tree, const char *path);
    /* Can it say this config, which has its names? Then say it. */
    int (*fits)(const mhla_lm_config *c);
    void (*write)(json_t *tree, const mhla_lm_config *c);
} mhla_lm_dialect;
extern const mhla_lm_dialect mhla_lm_llama, mhla_lm_gemma;
/* Layers that see a window only are group 1, the others group 0: as "layer_types" says, if it is there; how many. And the list. */
mhla_status mhla_lm_layer_types_read(mhla_lm_config *c, int *windowed, const json_t *tree, const char *path);
void mhla_lm_layer_types_write(json_t *tree, const mhla_lm_config *c);

/* Of the mixers of all layers: tokens that the model was made for (its parameters, else positions; 0 = no limit known), and what
 * mhla_mixer_facts says: the most heads, the chunks' common multiple, the shortest `longest`, whether marks are needed. */
int64_t mhla_lm_context(const mhla_lm_config *c);
mhla_mixer_facts mhla_lm_facts(const mhla_lm_config *c);

/* ---- The model ---- */

typedef struct mhla_lm mhla_lm;

/* All parameters zero; mhla_params_init or a file fills them. */
mhla_status mhla_lm_create(mhla_lm **lm, const mhla_lm_config *config);
/* The same with its matrices kept as bfloat16 or Q8_0: to infer, not to train (nn.h, storage). */
mhla_status mhla_lm_create_as(mhla_lm **lm, const mhla_lm_config *config, mhla_dtype storage);
void mhla_lm_free(mhla_lm *lm); /* NULL is legal */
const mhla_lm_config *mhla_lm_config_of(const mhla_lm *lm);
mhla_params *mhla_lm_params(const mhla_lm *lm);
/* The matrix of the output [vocabulary, width]: the embedding where tied. logits = hidden x its transpose. */
mhla_param *mhla_lm_output(const mhla_lm *lm);
/* The mixers that occur: "mhla and softmax". */
const char *mhla_lm_attention_text(const mhla_lm *lm);
/* Of the mixer of layer i: what its group shares, and the layer itself. */
void *mhla_lm_shared(const mhla_lm *lm, int i);
void *mhla_lm_layer(const mhla_lm *lm, int i);

/* What a forward pass may be told. Zero: none of these. */
typedef struct mhla_lm_run {
    int recompute;        /* layers are computed again in the backward pass instead of kept */
    mhla_mixer_run mixer; /* what it points to lives until backward */
    mhla_tensor **trace;  /* [layers + 1] gets the embedding and what comes out of each layer */
} mhla_lm_run;

/* Hidden states [B,T,width] after the last norm, of ids [B*T], which live until backward. An id out of range fails the
 * tape with MHLA_EINVAL. */
mhla_tensor *mhla_lm_forward(mhla_tape *t, mhla_lm *lm, const mhla_lm_run *run, const int32_t *ids, int64_t B,
                             int64_t T);
/* residual (or NULL) + the mixer of one layer, of its normed input h [B,T,width]: for tests, for looking into a model. */
mhla_tensor *mhla_lm_mix(mhla_tape *t, mhla_lm *lm, const mhla_lm_run *run, int i, mhla_tensor *residual,
                         mhla_tensor *h);
/* hidden [...,width] -> logits [...,vocabulary], all at once: for few rows. */
mhla_tensor *mhla_lm_logits(mhla_tape *t, mhla_lm *lm, mhla_tensor *hidden);

/* Multiply-adds of one token, the output matrix included, where `tokens` are seen (mean over them, for the parallel form);
 * bytes of the state of one sequence after so many tokens. */
int64_t mhla_lm_multiply_adds(const mhla_lm_config *c, int64_t tokens);
int64_t mhla_lm_state_bytes(const mhla_lm_config *c, int64_t tokens);

#endif
