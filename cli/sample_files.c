#include "sample_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sample.h"

static const char verb[] = "sample";

int sample_files_open(sample_files *f, const char *out, const mhla_pipeline_info *info, const mhla_make_desc *desc) {
    *f = (sample_files){.out = out,
                        .standard = strcmp(out, "-") == 0,
                        .channels = info->outputs,
                        .frames = desc->frames,
                        .height = desc->height,
                        .width = desc->width,
                        .seconds = info->seconds};
    f->kind = f->standard || sample_ends(out, ".y4m") ? SAMPLE_Y4M
              : sample_is_picture(out)                ? SAMPLE_PNG
              : sample_ends(out, ".npy")              ? SAMPLE_ARRAY
                                                      : SAMPLE_FOLDER;
    if (f->kind == SAMPLE_Y4M && f->frames == 0)
        return cli_wrong(verb, "--out is \"%s\": that is for clips, and the pipeline makes images", out);
    if (f->kind == SAMPLE_Y4M && f->channels != 3 && f->channels != 1)
        return cli_wrong(verb, "--out is \"%s\": a video has 1 or 3 channels, the pipeline makes %d", out, f->channels);
    return -1;
}

size_t sample_files_each(const sample_files *f) {
    return (size_t)f->channels * (size_t)(f->frames ? f->frames : 1) * (size_t)f->height * (size_t)f->width;
}

/* ---- Pictures ---- */

/* Frame t of n clips [channels,frames,height,width], tiled. */
static mhla_status tile(const sample_files *f, mhla_picture *picture, const float *pixels, int64_t n, int t,
                        int columns) {
    const size_t plane = (size_t)f->height * (size_t)f->width;
    const int frames = f->frames ? f->frames : 1;
    if (frames == 1) return mhla_picture_tile(picture, pixels, n, f->channels, f->height, f->width, columns);
    float *one = malloc((size_t)n * (size_t)f->channels * plane * sizeof *one);
    if (one == NULL) return MHLA_ENOMEM;
    for (int64_t p = 0; p < n * f->channels; p++)
        memcpy(one + (size_t)p * plane, pixels + ((size_t)p * (size_t)frames + (size_t)t) * plane, plane * sizeof *one);
    const mhla_status status = mhla_picture_tile(picture, one, n, f->channels, f->height, f->width, columns);
    free(one);
    return status;
}

/* `text` of frame `frame` of a clip, counted from 1; free() it. */
static char *frame_text(const char *text, int frame) {
    char *own = NULL;
    return asprintf(&own, "{\"frame\":%d,%s", frame, text + 1) < 0 ? NULL : own;
}

/* One frame of a clip as a separate picture. */
static mhla_status write_frame(const sample_files *f, const char *path, const float *pixels, int t, const char *text) {
    mhla_picture picture = {.size = sizeof picture};
    mhla_status status = tile(f, &picture, pixels, 1, t, 1);
    if (status == MHLA_OK) picture.text = frame_text(text, t + 1);
    if (status == MHLA_OK) status = mhla_picture_write(path, &picture, 1, NULL);
    mhla_picture_free(&picture);
    return status;
}

static mhla_status write_tiled(const sample_files *f, const float *pixels, int64_t n, int columns, const char *text) {
    const int frames = f->frames ? f->frames : 1;
    mhla_picture *pictures = calloc((size_t)frames, sizeof *pictures);
    double *seconds = calloc((size_t)frames, sizeof *seconds);
    mhla_status status = pictures && seconds ? MHLA_OK : MHLA_ENOMEM;
    for (int t = 0; t < frames && status == MHLA_OK; t++) {
        pictures[t].size = sizeof *pictures;
        seconds[t] = f->seconds;
        status = tile(f, &pictures[t], pixels, n, t, columns);
    }
    if (status == MHLA_OK) {
        pictures[frames - 1].text = strdup(text);
        status = f->kind == SAMPLE_Y4M ? mhla_video_write(f->out, pictures, frames, f->seconds)
                                       : mhla_picture_write(f->out, pictures, frames, seconds);
    }
    for (int t = 0; pictures && t < frames; t++) mhla_picture_free(&pictures[t]);
    free(pictures);
    free(seconds);
    return status;
}

mhla_status sample_files_all(const sample_files *f, const float *pixels, int64_t n, int columns, const char *text) {
    if (f->only) return write_frame(f, f->out, pixels, f->only - 1, text);
    if (f->kind != SAMPLE_ARRAY) return write_tiled(f, pixels, n, columns, text);
    return f->frames ? mhla_clips_write(f->out, pixels, n, f->channels, f->frames, f->height, f->width)
                     : mhla_images_write(f->out, pixels, n, f->channels, f->height, f->width);
}

/* ---- A folder ---- */

/* "out/000012-42.png"; of a clip frame t: "out/000012-42/0003.png", t -1: its folder. 0: too long. */
static int path_of(const sample_files *f, char path[4096], int64_t i, uint64_t seed, int t) {
    char end[32] = "";
    if (f->frames == 0) snprintf(end, sizeof end, ".png");
    if (f->frames && t >= 0) snprintf(end, sizeof end, "/%04d.png", t + 1);
    return snprintf(path, 4096, "%s/%06lld-%llu%s", f->out, (long long)i, (unsigned long long)seed, end) < 4096;
}

static int make_folder(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return 1;
    fprintf(stderr, "mhla %s: %s: %s\n", verb, path, strerror(errno));
    return 0;
}

int sample_files_state(const sample_files *f, char path[4096], int64_t i, uint64_t seed) {
    if (!path_of(f, path, i, seed, -1) || strlen(path) + 7 > 4096) {
        cli_wrong(verb, "--out is too long");
        return 0;
    }
    strcat(path, ".state");
    return make_folder(f->out);
}

int sample_files_one(const sample_files *f, int64_t i, uint64_t seed, const float *pixels, const char *text) {
    char path[4096];
    if (!path_of(f, path, i, seed, -1)) return cli_wrong(verb, "--out is too long");
    if (!make_folder(f->out) || (f->frames && !make_folder(path))) return CLI_FAILED;
    mhla_status status = MHLA_OK;
    for (int t = 0; f->frames && t < f->frames && status == MHLA_OK; t++) {
        if (!path_of(f, path, i, seed, t)) return cli_wrong(verb, "--out is too long");
        status = write_frame(f, path, pixels, t, text);
    }
    if (f->frames == 0) {
        mhla_picture picture = {.size = sizeof picture};
        status = tile(f, &picture, pixels, 1, 0, 1);
        if (status == MHLA_OK) picture.text = strdup(text);
        if (status == MHLA_OK) status = mhla_picture_write(path, &picture, 1, NULL);
        mhla_picture_free(&picture);
    }
    return status == MHLA_OK ? CLI_OK : cli_failed(verb, status);
}

/* Weights are known by their fingerprint: where they lay, and which version of the program made the picture, does not count. */
static int made_alike(const char *a, const char *b) {
    const char *parts[2] = {strstr(a, "\"pipeline\":"), strstr(b, "\"pipeline\":")};
    if (parts[0] == NULL || parts[1] == NULL) return 0;
    const char *ends[2] = {strstr(parts[0], ",\"folder\":"), strstr(parts[1], ",\"folder\":")};
    const size_t n = ends[0] ? (size_t)(ends[0] - parts[0]) : strlen(parts[0]);
    const size_t m = ends[1] ? (size_t)(ends[1] - parts[1]) : strlen(parts[1]);
    return n == m && memcmp(parts[0], parts[1], n) == 0;
}

int sample_files_there(const sample_files *f, int64_t i, uint64_t seed, const char *text) {
    char path[4096];
    struct stat info;
    if (!path_of(f, path, i, seed, f->frames ? f->frames - 1 : -1)) return 0; /* of a clip the last frame */
    if (stat(path, &info) != 0) return 0;
    mhla_picture there = {.size = sizeof there};
    const int same = mhla_picture_read(&there, path) == MHLA_OK && there.text && made_alike(there.text, text);
    mhla_picture_free(&there);
    if (same && f->frames && path_of(f, path, i, seed, -1) && strlen(path) + 7 <= 4096)
        unlink(strcat(path, ".state")); /* of a run that was killed after the last frame */
    if (same) return 1;
    fprintf(stderr, "mhla %s: %s exists and was made with other settings: choose another --out, or remove it\n", verb,
            path);
    return -1;
}

/* ---- Previews ---- */

void sample_files_preview_path(const sample_files *f, char path[4096]) {
    const char *out = f->standard ? "samples" : f->out, *dot = f->kind == SAMPLE_FOLDER ? NULL : strrchr(out, '.');
    snprintf(path, 4096, "%.*s.preview.png", (int)(dot ? (size_t)(dot - out) : strlen(out)), out);
}

mhla_status sample_files_preview(const sample_files *f, const char *path, const float *pixels) {
    mhla_picture picture = {.size = sizeof picture};
    mhla_status status = mhla_picture_tile(&picture, pixels, 1, f->channels, f->height, f->width, 1);
    if (status == MHLA_OK) status = mhla_picture_write(path, &picture, 1, NULL);
    mhla_picture_free(&picture);
    return status;
}
