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
    int rank,
        ranks; /* the state is shared out: this one has every ranks-th stretch, beginning at `rank`. 0, 0: all of it */
} mhla_optim_desc;

typedef struct mhla_optim mhla_optim;

/* params must outlive it. Memory for the state is taken here, for what is frozen too. */
mhla_status mhla_optim_create(mhla_optim **optim, mhla_params *params, const mhla_optim_desc *desc);
void mhla_optim_free(mhla_optim *optim);

/* One update of all parameters that have a gradient and are not frozen, then the mixing matrices are clipped, packed
 * copies are outdated, gradients are cleared. *norm, unless NULL, is the gradient's norm before clipping, NaN or
 * infinite where a gradient is: nothing is changed then but the gradients cleared, and MHLA_ERANGE is returned. */
mhla_status mhla_optim_step(mhla_optim *optim, double lr, const mhla_context *context, double *norm);

/* ---- The same in three steps, for several processes. All work is done by stretches: at most 16,384 neighbouring elements of one
 * parameter, numbered through all parameters. Stretch s belongs to rank s % ranks. */
typedef struct mhla_stretch {
    mhla_param *param;
    int index;         /* of the parameter */
    int64_t at, count; /* elements at .. at+count-1 of it */
} mhla_stretch;
int64_t mhla_optim_stretches(const mhla_optim *optim);
mhla_stretch mhla_optim_stretch(const mhla_optim *optim, int64_t s);

/* Sums of squared gradients of the own stretches, into [stretches]; those of others are then filled in by the caller. */
double *mhla_optim_measure(mhla_optim *optim, const mhla_context *context);
/* Updates the own stretches, with the norm that follows from all sums. The caller then fetches the others' values. */
mhla_status mhla_optim_update(mhla_optim *optim, double lr, const mhla_context *context, double *norm);
/* All values are there: clips mixing matrices, packs, clears gradients. */
mhla_status mhla_optim_finish(mhla_optim *optim, const mhla_context *context);

/* State for checkpoints. AdamW: "exp_avg" (0), "exp_avg_sq" (1); SGD: "momentum_buffer" (0). [count] of parameter i; where the state is
 * shared out the stretches of this rank alone, one behind the other (mhla_optim_owned elements).
 * A parameter's own number of updates is kept because one that was frozen for a while is behind. */
int mhla_optim_slots(const mhla_optim *optim);
const char *mhla_optim_slot_name(const mhla_optim *optim, int slot);
float *mhla_optim_slot(mhla_optim *optim, int i, int slot);
int64_t *mhla_optim_updates(mhla_optim *optim, int i);
int64_t mhla_optim_owned(const mhla_optim *optim, int i, int rank);
/* Between all of parameter i, [count], and what `rank` has of it. */
void mhla_optim_split(const mhla_optim *optim, int i, int rank, float *owned, const float *all);
void mhla_optim_join(const mhla_optim *optim, int i, int rank, float *all, const float *owned);
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
