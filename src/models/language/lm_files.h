/* What the readers of language models' files share. */
#ifndef MHLA_MODELS_LM_FILES_H
#define MHLA_MODELS_LM_FILES_H

#include "file/gguf.h"
#include "models/language/lm.h"
#include "models/model.h"

/* All tokens that end a text, where there are several: a key of our own beside those of eos, eot and eom. */
#define MHLA_LM_GGUF_ENDS "mhla.eos_token_ids"

/* A GGUF file of ours or of llama.cpp's llama: is it one; the network that its metadata describe, matrices kept as `storage`
 * (-1: as they are); its tensors. */
int mhla_lm_gguf_fits(const mhla_gguf *file);
mhla_status mhla_lm_gguf_read(mhla_lm **lm, const mhla_gguf *file, int storage);
mhla_status mhla_lm_gguf_load(mhla_model *model, const mhla_gguf *file, int storage);

/* "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight", llama.cpp's name; as it is if that has none. */
void mhla_lm_gguf_name(char *theirs, size_t size, const char *ours);
/* Axes of a parameter in a GGUF: without the ones at the end of a mixing matrix [M,M,1,1,1,1]. */
int mhla_lm_gguf_rank(const mhla_param *param);

#endif
