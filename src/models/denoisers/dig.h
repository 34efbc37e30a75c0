/* DiG, the diffusion model of gated linear attention, with GLA or with MHLA in its place, on the frame of frame.h. */
#ifndef MHLA_MODELS_DENOISERS_DIG_H
#define MHLA_MODELS_DENOISERS_DIG_H

#include "models/denoisers/frame.h"

/* config: attention. MHLA with GLA's projections and gate; or, MHLA_DIT, the attention released with MHLA's DiT. */
enum { MHLA_DIG_GLA, MHLA_DIG_MHLA, MHLA_DIG_MHLA_DIT };

/* The order in which blocks read the grid: by rows, from the first token to the last; or rows forward, rows backward, columns
 * forward, columns backward, and again. */
enum { MHLA_SCAN_RASTER, MHLA_SCAN_FOUR };

extern const mhla_frame_kind mhla_dig_kind;

mhla_status mhla_dig_preset(mhla_frame_config *c, const char *model, int attention, int process);

#endif
