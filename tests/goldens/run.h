/* What the parts of run_model share: results by name, inputs by name. */
#ifndef MHLA_TESTS_RUN_H
#define MHLA_TESTS_RUN_H

#include <mhla/nn.h>

#include "file/safetensors.h"
#include "nn/nn.h"

/* A copy of data under a name made by printf. */
void run_keep(const float *data, int dims, const int64_t *shape, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The tensor as float32, whole numbers too, malloc'ed; NULL, and *stored NULL, where there is none. */
float *run_floats(const mhla_safetensors *in, const char *name, const mhla_stored **stored);

/* Whole numbers of 64 bits as ids or labels, malloc'ed; NULL where there are none. */
int32_t *run_labels(const mhla_safetensors *in, const char *name);
/* param.* of the file are all parameters whose names begin with `prefix`, which they leave out. */
mhla_status run_fill(const mhla_params *params, const mhla_safetensors *in, const char *prefix);
/* The gradients of all parameters that have one, as grad.param.NAME. */
void run_keep_grads(const mhla_params *params);

/* Verbs; see the head of run_model.c for their arguments. run_diffusion.c: */
mhla_status run_levels(char **arg);
mhla_status run_diffusion_steps(char **arg);
mhla_status run_flow(char **arg);
/* run_frame.c: */
mhla_status run_frame(char **arg);
/* run_sana.c: */
mhla_status run_sana(char **arg);
/* run_wan.c: */
mhla_status run_wan_model(mhla_model *m, const mhla_safetensors *in, char **arg);
mhla_status run_wan(char **arg);
/* run_autoencoder.c: */
mhla_status run_autoencoder(mhla_model *m, const mhla_safetensors *in, char **arg);
mhla_status run_deep(mhla_model *m, const mhla_safetensors *in, char **arg);
/* run_clips.c: */
mhla_status run_clips(mhla_model *m, const mhla_safetensors *in, char **arg);
/* run_encoder.c: */
mhla_status run_encoder(mhla_model *m, const mhla_safetensors *in, char **arg);
/* run_pipeline.c: */
mhla_status run_pipeline(char **arg);
/* run_layers.c: */
mhla_status run_layer(char **arg);
mhla_status run_resize(char **arg);
mhla_status run_dequantize(char **arg);
/* run_operators.c: */
mhla_status run_operator(char **arg);
/* run_mamba.c: */
mhla_status run_mamba(char **arg);
/* run_mixer.c: */
mhla_status run_mixer(char **arg);
/* run_clip.c: */
mhla_status run_clip(char **arg);
/* run_text.c: */
mhla_status run_lm(char **arg);
mhla_status run_tokens(char **arg);
mhla_status run_candidates(char **arg);
mhla_status run_evaluation(char **arg);

#endif
