/* What a pipeline's images and clips are written to: one file with all of them, or a folder. */
#ifndef MHLA_CLI_SAMPLE_FILES_H
#define MHLA_CLI_SAMPLE_FILES_H

#include <mhla/diffusion.h>

typedef enum sample_kind { SAMPLE_PNG, SAMPLE_ARRAY, SAMPLE_Y4M, SAMPLE_FOLDER } sample_kind;

typedef struct sample_files {
    const char *out;
    sample_kind kind;
    int standard; /* out is standard output */
    int channels, frames, height, width;
    double seconds; /* of a frame */
    int only;       /* one frame of the clip is written, counted from 1; 0: all */
} sample_files;

/* By the ending of `out`; "-" is clips on standard output. -1, or the code to exit with. */
int sample_files_open(sample_files *files, const char *out, const mhla_pipeline_info *info, const mhla_make_desc *desc);
size_t sample_files_each(const sample_files *files); /* numbers of an image or clip */
/* All of them in the file, tiled. */
mhla_status sample_files_all(const sample_files *files, const float *pixels, int64_t n, int columns, const char *text);
/* The file beside the i-th clip of a folder that keeps its latents while it is made; the folder is made. 0: it cannot be, said why. */
int sample_files_state(const sample_files *f, char path[4096], int64_t i, uint64_t seed);
/* Image i in the folder: a PNG; of a clip, a folder with one for each frame. CLI_OK, or the code to exit with, said why. */
int sample_files_one(const sample_files *files, int64_t i, uint64_t seed, const float *pixels, const char *text);
/* 1: image i is there, made as this text says; 0: it is not there; -1: something else is, which is said. */
int sample_files_there(const sample_files *files, int64_t i, uint64_t seed, const char *text);

void sample_files_preview_path(const sample_files *files, char path[4096]);
/* pixels [channels,height,width] */
mhla_status sample_files_preview(const sample_files *files, const char *path, const float *pixels);

#endif
