/* What the two files of `mhla sample` share: the work that was asked for (cmd_sample.c) and how it is done (sample_run.c). */
#ifndef MHLA_CLI_SAMPLE_H
#define MHLA_CLI_SAMPLE_H

#include <mhla/diffusion.h>

#include "cli.h"

typedef struct sample_work {
    const char *verb, *out;  /* out: a PNG file, a .npy file, or a folder */
    mhla_model *model, *vae; /* vae: of a model of latents, or NULL */
    mhla_model_info info;
    mhla_codec_info codec; /* the vae's; else outputs are the model's channels, the factor 1 */
    mhla_coding coding;
    mhla_sample_record record; /* all images, their classes and seeds, and how they are made; columns of the grid */
    int folder;                /* a file for each image instead of one grid */
    int array;                 /* numbers as they are, in a .npy */
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

#endif
