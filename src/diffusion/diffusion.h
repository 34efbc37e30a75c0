/* Diffusion and flow matching, inside: tables of noise levels, noising for training and its losses, and the methods behind
 * mhla_sampler. This room knows arrays of floats and nothing of models. */
#ifndef MHLA_DIFFUSION_DIFFUSION_H
#define MHLA_DIFFUSION_DIFFUSION_H

#include <mhla/diffusion.h>

enum { MHLA_PROCESS_LINEAR, MHLA_PROCESS_COSINE, MHLA_PROCESS_FLOW }; /* "linear|cosine|flow" */
extern const char *const mhla_process_names[3];
enum { MHLA_NOISE_LEVELS = 1000 };

/* What a sampler remembers between steps, arrays [batch,channels,pixels]: returns how many, at most 4. Who saved them after step i
 * writes them into a new sampler of the same settings, and goes on with step i + 1. */
int mhla_sampler_memory(const mhla_sampler *sampler, float *arrays[4]);
void mhla_sampler_continue(mhla_sampler *sampler, int next);

/* ---- Training: what a network is shown and how its answer is judged ------------------------------------------------ */

typedef struct mhla_noising mhla_noising;

/* `process` as above, all 1000 levels. logit_normal, shift: of flows alone, how times are drawn, as in the training of Wan;
 * 0: evenly. */
mhla_status mhla_noising_create(mhla_noising **noising, int process, int learned_sigma, int logit_normal, double shift);
void mhla_noising_free(mhla_noising *noising);

/* The time of a sample of a uniform u in (0,1), or of a standard normal where logit_normal: 0..999 whole, or 0 < t < 1000 of a
 * flow. */
double mhla_noising_time(const mhla_noising *noising, double draw);
/* x_t [n] of data x0 [n] and noise [n] at time t. */
void mhla_noising_apply(const mhla_noising *noising, float *xt, const float *x0, const float *noise, double t,
                        int64_t n);

typedef struct mhla_noising_loss {
    double mse, vb, loss; /* of one sample: mean square, bits per dim, their sum (vb 0 without learned sigma) */
} mhla_noising_loss;
/* The loss of one sample with answer output [n] or [2n] and, unless NULL, the gradient of `scale * loss` by output
 * (written, not added). The variance's term does not reach the noise. */
mhla_noising_loss mhla_noising_judge(const mhla_noising *noising, float *gradient, double scale, const float *output,
                                     const float *xt, const float *x0, const float *noise, double t, int64_t n);

#endif
