/* What the files of `mhla sample` share: its options and what is refused (cmd_sample.c); models that take classes (sample_model.c) and how
 * their images are made (sample_run.c); pipelines, which take prompts (sample_pipeline.c), their files (sample_files.c). */
#ifndef MHLA_CLI_SAMPLE_H
#define MHLA_CLI_SAMPLE_H

#include <mhla/diffusion.h>

#include "cli.h"

typedef struct sample_options {
    const char *model, *classes, *sampler, *weights, *dtype, *out, *like, *vae;
    int64_t count, seed, steps, channels, batch, threads, memory, frames;
    double guidance, eta, shift; /* guidance -1: not given */
    cli_grid size;
    int no_clip, animate, json, quiet, any_model;
    /* pipelines */
    const char *prompt, *prompts, *negative, *transformer, *text_encoder, *tokenizer, *scheduler, *texts;
    int64_t preview;
    int no_instruction, exact, dry_run, resume;
} sample_options;
extern sample_options sample_given;

int sample_model(void); /* the verb, for a model that takes classes */

/* ---- cmd_sample.c ---- */

int sample_ends(const char *path, const char *ending); /* 1 or 0, upper or lower case */
int sample_is_picture(const char *path);               /* .png or .webp */
/* --size in pixels, 0: not given. Of images the width is said first, of clips the height. */
void sample_size(int *height, int *width, int clips);
/* Can it be written, as a file or (folder) as one? Else says why not. */
int sample_writable(const char *path, int folder);
/* Where the image of --like is made again if --out does not say it. */
const char *sample_again(void);
/* Whether the image of --like was made with these weights; -1, or the code to exit with. */
int sample_same_weights(const char *was, const char *hash, const char *path);
/* The picture at `path` against that of --like; was, isa: kernels of then and now. CLI_OK, or the code to exit with. */
int sample_compare(const mhla_picture *original, const char *path, const char *was, const char *isa);

/* ---- Models that take classes ---- */

typedef struct sample_work {
    const char *verb, *out;  /* out: a PNG file, a .npy file, or a folder */
    mhla_model *model, *vae; /* vae: of a model of latents, or NULL */
    mhla_model_info info;
    mhla_codec_info codec; /* the vae's; else outputs are the model's channels, the factor 1 */
    mhla_coding coding;
    mhla_sample_record record; /* all images, their classes and seeds, and how they are made; columns of the grid */
    int folder;                /* a file for each image instead of one grid */
    int array;                 /* numbers as they are, in a .npy */
    int video;                 /* a .y4m, or standard output */
    int batch, animate, quiet;
    int64_t made, kept; /* images that were made, and that were there already */
    double seconds;
} sample_work;

/* Makes the images or clips and writes them. CLI_OK, or the code to exit with, said why. */
int sample_run(sample_work *w);

/* What a record says, for the library; texts and lists are the record's. */
mhla_sample_desc sample_desc(const mhla_sample_record *record);

/* The path of one image in the folder of `out`: "out/3-Dress/000007.png"; *folder_length of it is the class's folder. */
int sample_path(const sample_work *w, int64_t i, char path[4096], size_t *folder_length);

/* ---- sample_pipeline.c ---- */

int sample_is_pipeline(void);
/* The verb, for a pipeline; made: of the image of --like, or NULL. */
int sample_pipeline(const mhla_picture *original, const mhla_made *made);

#endif
