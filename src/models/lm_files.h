/* What the readers of language models' files share. */
#ifndef MHLA_MODELS_LM_FILES_H
#define MHLA_MODELS_LM_FILES_H

#include "models/model.h"

/* mhla_dtype of "float32", "bfloat16", "q8_0"; -1 for NULL; MHLA_EINVAL else. */
mhla_status mhla_storage_named(int *dtype, const char *storage);

#endif
