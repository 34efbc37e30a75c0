/* The rotary embedding of a group of layers: tables for whole texts, rows for a pass. */
#ifndef MHLA_MODELS_ANGLES_H
#define MHLA_MODELS_ANGLES_H

#include "models/language/mixer.h"
#include "models/language/rope.h"

typedef struct mhla_angles {
    int dims; /* of a head that turn; 0: there is no rotary embedding */
    double theta;
    const mhla_scaling *scaling;
    struct mhla_angle_table *tables; /* the newest first; older ones stay because a tape may still point to them */
    float *cos, *sin;                /* [MHLA_PASS, dims/2] of the pass at hand */
} mhla_angles;

/* A table of at least `rows` rows [rows, dims/2], and how many it has; it grows by doubling. All NULL and 0 without a rotary
 * embedding. */
mhla_status mhla_angles_table(mhla_angles *r, int64_t rows, const float **cos, const float **sin, int64_t *have);
/* cos and sin of the rows of a pass. */
mhla_status mhla_angles_begin(mhla_angles *r, const mhla_pass *pass);
void mhla_angles_free(mhla_angles *r); /* what it points to */

#endif
