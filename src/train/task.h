/* What is trained on what: a task is a row of functions that the trainer calls, and keys of a recipe of its own. The trainer
 * knows steps, schedules, evaluations, checkpoints and logs; a task knows data, the model's forward pass and its measure.
 * To add one, write task_<what>.c and give it a row in schema.c. */
#ifndef MHLA_TRAIN_TASK_H
#define MHLA_TRAIN_TASK_H

#include <mhla/nn.h>

#include "file/json.h"
#include "file/recipe.h"
#include "models/model.h"

/* What an evaluation found. */
typedef struct mhla_score {
    double loss;
    double value; /* what is compared, see `measure` */
    double seconds;
    double deviation; /* autoencoders: of the latents */
} mhla_score;

typedef struct mhla_task {
    const char *name; /* recipe: task */
    mhla_role role;   /* of its models */
    const mhla_recipe_row
        *rows; /* keys of its own, ended by an empty one; those of the model come from its architecture */
    const mhla_recipe_row *shared; /* keys that it has in common with other tasks, or NULL */
    const char *measure;           /* "accuracy", "bits_per_byte": the name of the score in files */
    int lower;                     /* less of it is better */
    const char *unit;              /* "images", "tokens": what a second is measured in */

    /* From a recipe that is complete: opens the data, makes the model with fresh values (what the recipe leaves open
     * follows from the data and is set in it), fills t->model, t->per_epoch and, with what is its own, t->job. */
    mhla_status (*open)(mhla_trainer *t);
    void (*close)(mhla_trainer *t); /* also of what `open` has left half done */
    mhla_status (*seek)(mhla_trainer *t, int64_t epoch, int64_t batch);

    /* The batch of the next update; then its loss on a tape, in parts: *share is the part's weight, backward is called
     * with it. NULL with a healthy tape: the part is empty. In a dry run there is no batch: shapes only. */
    mhla_status (*next)(mhla_trainer *t);
    mhla_tensor *(*loss)(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share);
    /* After the update: how many units it saw, and what more there is to tell in the event. */
    double (*count)(mhla_trainer *t, mhla_train_event *e);
    double (*data_bytes)(const mhla_trainer *t);

    /* Measures the model as it stands; adds its own keys to `row`. Stops early where t->stop is set. */
    mhla_status (*evaluate)(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress, void *user);
    /* After an evaluation: what follows for the model from the score of the weights that count; may be NULL. */
    mhla_status (*settle)(mhla_trainer *t, const mhla_score *score);
    /* Something to look at, after an evaluation, made by the model as it stands then; may be NULL. */
    mhla_status (*show)(mhla_trainer *t);
    /* The scores, of the model and of its average (NULL without), into the event. */
    void (*tell)(mhla_train_event *e, const mhla_score *plain, const mhla_score *average);

    /* Values of another model where they fit. */
    mhla_status (*adopt)(mhla_trainer *t, const char *path, void (*note)(void *user, const char *text), void *user);
    /* What belongs to a checkpoint besides the model; may be NULL. */
    mhla_status (*save)(const mhla_trainer *t, const char *folder);
    /* From a checkpoint, whose weights are there: what the recipe does not say of the model; may be NULL. */
    mhla_status (*load)(mhla_trainer *t, const char *folder);
    /* Sentences about the data that were not told yet; may be NULL. */
    void (*complain)(mhla_trainer *t, void (*note)(mhla_trainer *t, const char *text));
    /* The data of a task on pictures, with the present batch; NULL for others. */
    const struct mhla_pictures *(*pictures)(const mhla_trainer *t);
    /* At the end of a run, for the report; may be NULL. */
    mhla_status (*finish)(mhla_trainer *t);
} mhla_task;

extern const mhla_task mhla_task_images, mhla_task_text, mhla_task_diffusion, mhla_task_autoencoder,
    mhla_task_text_to_image;

#endif
