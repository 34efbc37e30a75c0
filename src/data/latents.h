/* Latents of a dataset, as `mhla latents` writes them and a diffusion of latents is trained on them. A folder with
 *
 *   latents.json                  what they were made of, by what (mhla_latents_about), and the names of the classes
 *   train-00000.safetensors ...   MHLA_LATENTS_SHARD images each, the last one the rest; test-00000.safetensors ...
 *
 * A file holds mean and deviation [n,2,channels,height,width], of clips [n,2,channels,frames,height,width], as a diffusion sees them: of the image, then of the image flipped
 * horizontally; and labels [n], -1 for an image that could not be read. A latent is mean + deviation * noise. */
#ifndef MHLA_DATA_LATENTS_H
#define MHLA_DATA_LATENTS_H

#include "data/dataset.h"
#include "file/json.h"

enum { MHLA_LATENTS_SHARD = 64 };

typedef struct mhla_latents_about {
    char vae[65];              /* mhla_model_hash of the autoencoder */
    double scale, shift;       /* its: latents are (z - shift) * scale */
    int channels, factor;      /* of its latents; pixels of a side per latent */
    int frames, latent_frames; /* of clips: of pixels, of latents; 0: images */
    int height, width;         /* of the images, pixels */
    char source[4096];         /* the folder of the images */
    char data[65];             /* mhla_data_sum of it */
    int64_t train, test;       /* images of each part */
    int classes;
} mhla_latents_about;

/* folder/latents.json; MHLA_EDATA for what it cannot hold. *tree (may be NULL) is all of it. */
mhla_status mhla_latents_read(mhla_latents_about *about, json_t **tree, const char *folder);
/* Is there one? */
int mhla_latents_there(const char *folder);
/* The file of images number * MHLA_LATENTS_SHARD and on. */
void mhla_latents_path(char path[4096], const char *folder, mhla_split split, int64_t number);

/* What a dataset of latents was made of; NULL for pictures. */
const mhla_latents_about *mhla_dataset_latents(const mhla_dataset *data);
/* MHLA_EDATA where the images are still there but have changed. Reads all of them. */
mhla_status mhla_latents_check_source(const mhla_latents_about *about, const char *folder);
/* The latent of an image in an epoch, flipped with that probability, and its label: a function of (seed, epoch, index) alone. */
mhla_status mhla_dataset_draw(mhla_dataset *data, int64_t index, float *latent, int *of, double flip, uint64_t seed,
                              uint64_t epoch);

#endif
