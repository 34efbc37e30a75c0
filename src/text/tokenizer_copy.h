/* A tokenizer's files beside another model: what was trained with one must be used with it. */
#ifndef MHLA_TEXT_TOKENIZER_COPY_H
#define MHLA_TEXT_TOKENIZER_COPY_H

#include <mhla/mhla.h>

/* Copies the files of the tokenizer that mhla_tokenizer_open(path) opens into `folder`, under names that
 * mhla_tokenizer_open finds there, with tokenizer_config.json and chat_template.jinja beside it; of a GGUF its vocabulary
 * alone, as tokenizer.gguf. */
mhla_status mhla_tokenizer_copy(const char *folder, const char *path);

#endif
