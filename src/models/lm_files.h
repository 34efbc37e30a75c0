/* What the readers of language models' files share. */
#ifndef MHLA_MODELS_LM_FILES_H
#define MHLA_MODELS_LM_FILES_H

#include "models/model.h"

/* mhla_dtype of "float32", "bfloat16", "q8_0"; -1 for NULL; MHLA_EINVAL else. */
mhla_status mhla_storage_named(int *dtype, const char *storage);

/* mhla_model_of_lm with matrices kept as `storage`. */
mhla_status mhla_lm_make(mhla_model **model, const mhla_lm_config *config, const json_t *tree, mhla_dtype storage);

/* All tokens that end a text, where there are several: a key of our own beside those of eos, eot and eom. */
#define MHLA_LM_GGUF_ENDS "mhla.eos_token_ids"

/* A GGUF file, or a folder that has one and no config.json. MHLA_OK and *model NULL if the path is neither. */
mhla_status mhla_lm_open_gguf(mhla_model **model, const char *path, const mhla_open_desc *desc);

/* "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight", llama.cpp's name; as it is if that has none. */
void mhla_lm_gguf_name(char *theirs, size_t size, const char *ours);
/* Axes of a parameter in a GGUF: without the ones at the end of a mixing matrix [M,M,1,1,1,1]. */
int mhla_lm_gguf_rank(const mhla_param *param);

#endif
