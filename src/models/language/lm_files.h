/* What the readers of language models' files share. */
#ifndef MHLA_MODELS_LM_FILES_H
#define MHLA_MODELS_LM_FILES_H

#include "file/gguf.h"
#include "models/language/lm.h"
#include "models/language/mixers/mamba.h"
#include "models/language/mixers/softmax.h"
#include "models/model.h"

/* All tokens that end a text, where there are several: a key of our own beside those of eos, eot and eom. */
#define MHLA_LM_GGUF_ENDS "mhla.eos_token_ids"

/* llama.cpp writes so many tokens of context where there is no limit. */
enum { MHLA_LM_GGUF_ENDLESS = 1 << 20 };

/* A GGUF file of ours or of llama.cpp's llama, gemma2, gemma3, mamba or mamba2: is it one; the network that its metadata describe, matrices kept as `storage`
 * (-1: as they are); its tensors. */
int mhla_lm_gguf_fits(const mhla_gguf *file);
mhla_status mhla_lm_gguf_read(mhla_lm **lm, const mhla_gguf *file, int storage);
mhla_status mhla_lm_gguf_load(mhla_model *model, const mhla_gguf *file, int storage);

/* "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight", llama.cpp's name for it; as it is if that has none. */
void mhla_lm_gguf_name(char *theirs, size_t size, const char *ours, int naming);
/* Is this the weight of a norm to which llama.cpp adds the 1? */
int mhla_lm_gguf_plus_one(const mhla_lm_config *c, const char *name);
/* What the metadata of a transformer say of the decoder and of its attention. */
mhla_status mhla_lm_gguf_softmax_read(mhla_lm_config *c, mhla_softmax_settings *a, const mhla_gguf *f,
                                      const char *architecture);

/* lm_gguf_gemma.c: the config of a file; what llama.cpp calls a model of this config, NULL if it has none. */
mhla_status mhla_lm_gguf_gemma_read(mhla_lm_config *c, const mhla_gguf *f, const char *architecture);
const char *mhla_lm_gguf_as_gemma(const mhla_lm_config *c);

/* lm_gguf_mamba.c: what llama.cpp calls a model of this config, "mamba" or "mamba2", and what it has to know; the config of a file. */
typedef struct mhla_lm_gguf_mamba {
    const char *architecture; /* NULL: it has none of them */
    const mhla_mamba_settings *m;
    int rank;   /* of time steps; Mamba2: heads */
    int groups; /* of Mamba2; 0: it is Mamba */
} mhla_lm_gguf_mamba;
mhla_lm_gguf_mamba mhla_lm_gguf_as_mamba(const mhla_lm_config *c);
mhla_status mhla_lm_gguf_mamba_read(mhla_lm_config *c, const mhla_gguf *f, const char *architecture);
/* Axes of a parameter under its name in a GGUF; their number. */
int mhla_lm_gguf_shape(int64_t shape[MHLA_GGUF_RANK], const mhla_param *param, const char *name, int groups);
/* Is it -exp(A_log) there? Then what was read is made A_log. */
int mhla_lm_gguf_rates(const char *name);
mhla_status mhla_lm_gguf_rates_read(mhla_param *p, const mhla_gguf_tensor *s);

#endif
