/* DiT, the diffusion transformer, with MHLA, linear, softmax or LiT's attention, on the frame of frame.h. */
#ifndef MHLA_MODELS_DENOISERS_DIT_H
#define MHLA_MODELS_DENOISERS_DIT_H

#include "models/denoisers/frame.h"

extern const mhla_frame_kind mhla_dit_kind;

/* The sizes of a preset in a structure (MHLA_STRUCTURE_*), for an attention (MHLA_GRID_*) and a process. MHLA_EINVAL lists the
 * presets. */
mhla_status mhla_dit_preset(mhla_frame_config *c, const char *model, int structure, int attention, int process);

#endif
