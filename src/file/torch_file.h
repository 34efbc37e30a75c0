/* PyTorch checkpoints (.pth, .pt, .bin; torch.save's zip archives and its older format) as a list of tensors. Nothing in
 * them is run. Private to the safetensors files of this room, which open them by the same call. */
#ifndef MHLA_FILE_TORCH_FILE_H
#define MHLA_FILE_TORCH_FILE_H

#include "file/safetensors_header.h"

/* Do the bytes begin like one? */
int mhla_torch_file_is(const unsigned char *bytes, size_t size);

/* The tensors of the state_dict: the dictionary itself, or its "ema", "model", "state_dict", "model_state_dict" or "module". A
 * "module." that begins every name is taken off. Those that lie in order are used where they are, others are copied. */
mhla_status mhla_torch_file_read(mhla_st_header *h, const unsigned char *bytes, size_t size, const char *path);

#endif
