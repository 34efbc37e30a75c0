/* What the parts of run_model share: results by name, inputs by name. */
#ifndef MHLA_TESTS_RUN_H
#define MHLA_TESTS_RUN_H

#include "io/safetensors.h"

/* A copy of data under a name made by printf. */
void run_keep(const float *data, int dims, const int64_t *shape, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The tensor as float32, whole numbers too, malloc'ed; NULL, and *stored NULL, where there is none. */
float *run_floats(const mhla_safetensors *in, const char *name, const mhla_stored **stored);

/* run_diffusion.c: see the head of run_model.c. */
mhla_status run_levels(char **arg);
mhla_status run_diffusion_steps(const mhla_safetensors *in, const char *respacing, int clip);
mhla_status run_flow(const mhla_safetensors *in, const char *method, const char *table, int steps, double shift);

#endif
