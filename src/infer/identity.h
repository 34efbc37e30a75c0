/* Fingerprints of models: as good as mhla_model_hash for telling published weights from each other, but read in milliseconds. */
#ifndef MHLA_INFER_IDENTITY_H
#define MHLA_INFER_IDENTITY_H

#include <mhla/diffusion.h>

/* Of the config and some bytes of each tensor of the files that the model was opened from; where they lie and how they are divided does
 * not matter. The model's weights need not have been read. */
mhla_status mhla_model_fingerprint(const mhla_model *model, char text[65]);

#endif
