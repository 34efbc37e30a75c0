/* For tests against published numbers: noising with other levels than all of 1000. */
#ifndef MHLA_DIFFUSION_NOISING_H
#define MHLA_DIFFUSION_NOISING_H

#include "diffusion/diffusion.h"
#include "diffusion/levels.h"

/* t of the other functions is then the number of a level that was kept. */
mhla_status mhla_noising_create_spaced(mhla_noising **noising, int process, int learned_sigma, int original,
                                       const char *respacing);

#endif
