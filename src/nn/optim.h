/* Optimisers, averages and schedules. All of it acts on a list of parameters, in their order; sums are in a fixed order,
 * so that results are bit-identical for any number of threads. State is reached by parameter, for checkpoints. */
#ifndef MHLA_NN_OPTIM_H
#define MHLA_NN_OPTIM_H

#include "nn/nn.h"

typedef enum mhla_optim_kind { MHLA_OPTIM_ADAMW = 0, MHLA_OPTIM_SGD } mhla_optim_kind;

typedef struct mhla_optim_desc {
    mhla_optim_kind kind;
    double beta1, beta2, eps; /* AdamW; 0 = .9, .999, 1e-8 */
    double weight_decay;      /* on parameters with MHLA_PARAM_DECAY. AdamW: decoupled; SGD: added to the gradient */
    double momentum;          /* SGD, as torch's: v = momentum v + g, the first one v = g; no dampening */
    int nesterov;
    double clip_norm; /* > 0: gradients are scaled so that the norm over all of them is at most this */
} mhla_optim_desc;

typedef struct mhla_optim mhla_optim;

/* params must outlive it. Memory for the state is taken here, for what is frozen too. */
mhla_status mhla_optim_create(mhla_optim **optim, mhla_params *params, const mhla_optim_desc *desc);
void mhla_optim_free(mhla_optim *optim);

/* One update of all parameters that have a gradient and are not frozen, then the mixing matrices are clipped, packed
 * copies are outdated, gradients are cleared. *norm, unless NULL, is the gradient's norm before clipping, NaN or
 * infinite where a gradient is: nothing is changed then but the gradients cleared, and MHLA_ERANGE is returned. */
mhla_status mhla_optim_step(mhla_optim *optim, double lr, const mhla_context *context, double *norm);

/* State for checkpoints. AdamW: "exp_avg" (0), "exp_avg_sq" (1); SGD: "momentum_buffer" (0). [count] of parameter i.
 * A parameter's own number of updates is kept because one that was frozen for a while is behind. */
int mhla_optim_slots(const mhla_optim *optim);
const char *mhla_optim_slot_name(const mhla_optim *optim, int slot);
float *mhla_optim_slot(mhla_optim *optim, int i, int slot);
int64_t *mhla_optim_updates(mhla_optim *optim, int i);
size_t mhla_optim_bytes(const mhla_params *params, const mhla_optim_desc *desc); /* that the state will take */

/* ---- EMA: average = decay average + (1 - decay) parameter, after each update; buffers are included ---- */

typedef struct mhla_ema mhla_ema;

/* Starts as a copy of the parameters. first_copies: the first update copies again (decay 0). */
mhla_status mhla_ema_create(mhla_ema **ema, mhla_params *params, double decay, int first_copies);
void mhla_ema_free(mhla_ema *ema);
void mhla_ema_update(mhla_ema *ema, const mhla_context *context);
/* Exchanges parameters and averages, for evaluation and for saving; twice is as never. */
void mhla_ema_swap(mhla_ema *ema);
float *mhla_ema_data(mhla_ema *ema, int i); /* [count] of parameter i */
int64_t *mhla_ema_updates(mhla_ema *ema);
size_t mhla_ema_bytes(const mhla_params *params);

/* ---- Schedules: the learning rate of update u = 0, 1, ... ---- */

typedef enum mhla_schedule_kind {
    MHLA_SCHEDULE_CONSTANT = 0,
    MHLA_SCHEDULE_COSINE, /* from base to floor over updates 0..total, as timm's: warm-up cuts off its beginning */
    MHLA_SCHEDULE_COSINE_AFTER, /* over updates warmup..total, as transformers' cosine_with_min_lr */
    MHLA_SCHEDULE_LINEAR        /* straight from base at `warmup` to floor at `total` */
} mhla_schedule_kind;

typedef struct mhla_schedule {
    mhla_schedule_kind kind;
    double base, floor;
    double warmup_from;    /* rate of update 0; update `warmup` has the schedule's own */
    int64_t warmup, total; /* updates */
} mhla_schedule;

double mhla_schedule_at(const mhla_schedule *schedule, int64_t update);

#endif
