/* What the tasks share that train a denoiser: noise goes into pictures, clips or latents, the network's answer is judged; the loss on test
 * pictures, each at a time and with a noise of its own that stay the same, so that evaluations can be compared; grids of what the model
 * makes, from the same noise as ever. A task adds what its model is conditioned on. */
#ifndef MHLA_TRAIN_DENOISING_H
#define MHLA_TRAIN_DENOISING_H

#include "diffusion/diffusion.h"
#include "train/pictures.h"
#include "train/train.h"

typedef struct mhla_denoising {
    mhla_pictures p;         /* first */
    mhla_denoiser_info info; /* of the model */
    mhla_noising *noising;
    mhla_model *vae;           /* of latents, for grids; or NULL */
    int64_t rows;              /* room for so many pictures */
    int64_t pixels, answers;   /* numbers of a picture, of the network's answer */
    float *noise, *noisy;      /* [rows,pixels] */
    float *gradient;           /* [rows,answers] */
    float *times;              /* [rows] */
    int32_t *labels;           /* [rows] what the task calls a picture: its class, or which text */
    mhla_noising_loss *losses; /* [rows] */
    mhla_tape *measuring;

    /* The task's: the share of pictures that are trained as `none`, what a picture is called, and what the network is told of `rows`
     * pictures, whose labels are there (in a dry run they are not). */
    double drop;
    int32_t none;
    int32_t (*label)(const struct mhla_denoising *d, const mhla_batch *batch, int64_t i, int test);
    mhla_condition (*condition)(struct mhla_denoising *d, int64_t rows, int dry);
} mhla_denoising;

/* The keys of a recipe that these tasks have, besides mhla_picture_keys: as a list for a task's own table. */
#define MHLA_DENOISING_KEYS                                                                                            \
    {                                                                                                                  \
        "train.logit_normal",                                                                                          \
        MHLA_RECIPE_BOOL,                                                                                              \
        "false",                                                                                                       \
        0,                                                                                                             \
        0,                                                                                                             \
        NULL,                                                                                                          \
        "flows: draw times from a logit-normal distribution"},                                                         \
        {"train.shift", MHLA_RECIPE_REAL, "1", 0.01, 100, NULL, "flows: shift of times towards noise"},                \
        {"augment.crop",                                                                                               \
         MHLA_RECIPE_TEXT,                                                                                             \
         "none",                                                                                                       \
         0,                                                                                                            \
         0,                                                                                                            \
         "none|centre|random|pad",                                                                                     \
         "none: resized; centre: as it is, with black around; random: a resized part; pad: shifted"},                  \
        {"sample.sampler", MHLA_RECIPE_TEXT, "dpm++", 0, 0, "ddpm|ddim|dpm++|unipc|euler", "how it is made"},          \
        {"sample.steps", MHLA_RECIPE_INT, "20", 1, 1000, NULL, "sampling steps"},                                      \
        {"sample.guidance", MHLA_RECIPE_REAL, "2", 1, 100, NULL, "guidance towards the class or text; 1: none"}, {     \
        "sample.vae", MHLA_RECIPE_TEXT, "", 0, 0, NULL,                                                                \
            "latents: the autoencoder that decodes them; without it no "                                               \
            "grids"                                                                                                    \
    }

/* Clips are learned as they are: as many frames, of the same size. MHLA_EINVAL where data and model differ. */
mhla_status mhla_denoising_check_clips(const mhla_trainer *t, const mhla_denoising *j);
/* In the order of a task's `open`: are the latents what the rest takes them for; batches of the data, the check that the model can be
 * sampled as the recipe says, and room. Between them the task makes its model and sets info. */
mhla_status mhla_denoising_open_latents(const mhla_trainer *t, mhla_denoising *j);
mhla_status mhla_denoising_prepare(mhla_trainer *t, mhla_denoising *j);
void mhla_denoising_close(mhla_denoising *j);

/* Can grids be shown? Not of latents without their autoencoder. */
int mhla_denoising_shows(const mhla_denoising *j);
/* The grid of this step: rows * columns images, row i of classes[i], which may be numbers of desc's texts. Columns
 * differ in their noise, which is the same for each row. `desc` has what the task knows of them. Told to stop meanwhile, it writes none: the evaluation is made again when the run goes
 * on, and this with it. */
mhla_status mhla_denoising_show(mhla_trainer *t, const mhla_sample_desc *desc, const int32_t *classes, int rows,
                                int columns);

/* ---- For the rows of tasks ---- */

mhla_tensor *mhla_denoising_loss(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share);
double mhla_denoising_data_bytes(const mhla_trainer *t);
mhla_status mhla_denoising_evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress,
                                    void *user);

#endif
