/* Training, inside: the table of what a recipe may say, a run's state, its checkpoints, evaluation, fine-tuning. */
#ifndef MHLA_TRAIN_TRAIN_H
#define MHLA_TRAIN_TRAIN_H

#include <mhla/nn.h>
#include <signal.h>

#include "data/loader.h"
#include "file/json.h"
#include "file/recipe.h"
#include "measure/evaluate.h"
#include "models/model.h"
#include "nn/optim.h"
#include "train/parts.h"
#include "train/task.h"

enum { MHLA_TRAIN_AHEAD = 4 }; /* batches ahead of their use */

struct mhla_trainer {
    char run[MHLA_RUN_PATH - 128]; /* its folder */
    mhla_recipe *recipe;
    const mhla_context *context;
    volatile sig_atomic_t stop;

    const mhla_task *task;
    void *job; /* the task's own */
    mhla_model *model;
    mhla_tape *tape;
    int lock; /* of the folder of its checkpoints, -1: none */
    mhla_optim *optim;
    mhla_ema *ema; /* NULL without */
    mhla_schedule schedule;

    /* Where it stands; all of this but `log` is in a checkpoint. */
    int64_t step, steps, per_epoch; /* updates done, of all, of an epoch */
    int64_t evaluated;              /* the step of the last evaluation, -1: none */
    int average_counts;             /* the average did better there than the weights themselves */
    int64_t best_step;              /* -1: none */
    double best;                    /* by the task's measure */
    int64_t saved;                  /* the step of the newest checkpoint, -1: none */

    /* A batch is cut into `parts`, and those of them that are this rank's into `pieces` each, one after the other. */
    int64_t parts, pieces;
    mhla_parts *sums; /* NULL: one part, one process */
    int64_t right;    /* images of the present update that this rank's parts got right */
    int stopping;     /* all ranks know that one was asked to stop */
    int save_due;     /* by rank 0's clock */

    char *notes; /* of its making, told when it runs */
    mhla_jsonl log;
    mhla_train_fn report;
    void *user;
};

/* ---- trainer.c ---- */

/* A trainer with its task and its recipe, and nothing else yet; also where it fails. */
mhla_status mhla_trainer_start(mhla_trainer **trainer, const char *run, const char *recipe, const char *const *settings,
                               int count);

/* ---- ranks.c: a run on several processes ---- */

/* train.parts, where the recipe leaves it open; MHLA_EINVAL where there are more ranks than parts. old: a run of a recipe without. */
mhla_status mhla_ranks_cut(mhla_trainer *trainer, int old);
/* Collective: all ranks have the same program, recipe, data and weights, or all fail with a sentence that says which rank differs. */
mhla_status mhla_ranks_compare(const mhla_trainer *trainer);
/* Collective: what each has found in its parts of an update; the sum of the losses [own parts] of all parts. It fails at all ranks if it
 * fails at one. */
mhla_status mhla_ranks_meet(mhla_trainer *trainer, mhla_status mine, const double *losses, double *loss);
/* Collective: t->stopping, from what each rank was told. */
mhla_status mhla_ranks_stop(mhla_trainer *trainer);
/* A line about ranks, threads and what travels, for the start of a run. */
void mhla_ranks_describe(const mhla_trainer *trainer, char *text, size_t size);
/* Batch rows first .. last-1 are all that this rank needs. */
void mhla_ranks_rows(const mhla_trainer *trainer, int64_t rows, int64_t *first, int64_t *last);

/* ---- schema.c ---- */

/* The rows of a recipe: the trainer's own, the task's, and those of its models under "model.". NULL: of all tasks. */
const mhla_recipe_row *mhla_train_rows(const mhla_task *task, const mhla_architecture *arch);
/* The task that a recipe (a path, or NULL) and settings mean: by the key `task`, or by the model. */
mhla_status mhla_task_find(const mhla_task **task, const mhla_architecture **arch, const char *recipe,
                           const char *const *settings, int count);

/* ---- checkpoint.c: RUN/checkpoints/step-NNNNNNNN, complete once it has that name ---- */

/* Writes what the trainer holds, points `last` and `best` to it, removes what is neither. */
mhla_status mhla_checkpoint_write(mhla_trainer *trainer);
/* The newest one of a run: its folder, MHLA_EDATA if there is none. Removes what a killed writer left. */
mhla_status mhla_checkpoint_find(char *folder, size_t size, const char *run);
/* Fills model, optimiser, average and state of a trainer that has been made for the same recipe. */
mhla_status mhla_checkpoint_read(mhla_trainer *trainer, const char *folder);

/* ---- init.c ---- */

/* Values of `path` for all parameters that fit; position embeddings are interpolated; what is new keeps its fresh values.
 * note() is told what. Of a diffusion model `path` may also be a bare file of weights, as facebookresearch's. */
mhla_status mhla_model_adopt(mhla_model *model, const char *path, void (*note)(void *user, const char *text),
                             void *user);
/* The same of a language model, from a folder, a run or a GGUF file, whatever the names: where attention is of another kind,
 * projections of the same shape are kept. */
/* Freezes the parameters that a shell pattern of the array matches; MHLA_EINVAL for one that matches none. */
mhla_status mhla_params_freeze(mhla_params *params, const json_t *patterns);

/* ---- samples.c ---- */

/* Pictures evenly spread over `data` and what the model takes them for, into RUN/samples.json. */
mhla_status mhla_samples_take(const char *run, int64_t step, mhla_model *model, mhla_dataset *data);

#endif
