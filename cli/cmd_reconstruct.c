/* mhla reconstruct: an image or a clip through an autoencoder and back, and how near it comes. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli.h"

static const char *model, *out, *latents, *dtype;
static int64_t memory, tile, threads;
static int json, quiet;

static const cli_option options[] = {
    {"model,m", CLI_TEXT, &model, "MODEL", "an autoencoder: a folder or a file; required"},
    {"out,o", CLI_TEXT, &out, "FILE.png", "the result; default: reconstructed.png"},
    {"latents", CLI_TEXT, &latents, "FILE.npy", "also write the latents, as a diffusion model sees them"},
    {"memory", CLI_BYTES, &memory, "BYTES", "work in overlapping tiles that need at most this much, for example 2G"},
    {"tile", CLI_INT, &tile, "N", "side of the tiles in pixels; default: the whole image, or what --memory allows"},
    {"dtype", CLI_TEXT, &dtype, "TYPE", "weights and products as float32 (default) or bfloat16"},
    {"threads", CLI_INT, &threads, "N", "default: OpenMP's; does not change the result"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"quiet", CLI_FLAG, &quiet, NULL, "do not print memory and tiles in advance"},
    {0},
};
static const cli_usage usage = {
    .verb = "reconstruct",
    .arguments = "IMAGE|FOLDER",
    .options = options,
    .text = "Encodes a PNG or JPEG image with an autoencoder, decodes the latents and writes the result. Prints the\n"
            "peak signal-to-noise ratio between the two. Each side of the image must be a multiple of the\n"
            "autoencoder's factor (Stable Diffusion's 8, SANA's 32).\n\n"
            "An autoencoder of clips (Wan's) takes a FOLDER with one image per frame, in the order of their names:\n"
            "1, 5, 9, ... frames of one size. The result is then an animation of 16 frames per second. A clip goes\n"
            "through frame by frame, exactly; with --memory or --tile in tiles that are blended.\n",
};

typedef struct work {
    mhla_model *model;
    mhla_codec_info codec;
    mhla_coding coding[2]; /* on the way in, on the way out */
    char **paths;          /* [count] */
    mhla_picture *frames;  /* [count] of one size */
    int count, latent_frames, height, width;
    float *image, *latent, *made; /* [channels,count,height,width] */
    double ratio, seconds[2];
} work;

/* "encoding: 1.2 GiB, 4 tiles of 256 pixels" */
static void announce(const work *w, int decode) {
    const mhla_coding *c = &w->coding[decode];
    char bytes[32];
    if (quiet) return;
    fprintf(stderr, "%s: %s", decode ? "decoding" : "encoding", text_bytes(bytes, sizeof bytes, (double)c->peak));
    if (w->count > 1 && c->tiles == 1) fprintf(stderr, ", frame by frame");
    if (c->tiles > 1) fprintf(stderr, ", %d tiles of %d pixels", c->tiles, c->tile);
    fprintf(stderr, "\n");
}

/* ---- Frames ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int is_image(const char *name) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg"};
    for (int i = 0; i < 3 && *name != '.'; i++) {
        const size_t n = strlen(name), k = strlen(endings[i]);
        if (n > k && strcasecmp(name + n - k, endings[i]) == 0) return 1;
    }
    return 0;
}

static int add_path(work *w, const char *folder, const char *name) {
    char **more = realloc(w->paths, ((size_t)w->count + 1) * sizeof *more);
    if (more) w->paths = more;
    char *path = more ? malloc(strlen(folder) + strlen(name) + 2) : NULL;
    if (path == NULL) {
        fprintf(stderr, "mhla %s: no memory for a list of frames\n", usage.verb);
        return 0;
    }
    sprintf(path, "%s%s%s", folder, *name ? "/" : "", name);
    w->paths[w->count++] = path;
    return 1;
}

/* The images of a folder, in the order of their names; `path` itself if it is not a folder. 0: a message was printed. */
static int list_frames(work *w, const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL && errno == ENOTDIR) return add_path(w, path, "");
    if (folder == NULL) {
        fprintf(stderr, "mhla %s: %s: %s\n", usage.verb, path, strerror(errno));
        return 0;
    }
    int fine = 1;
    for (const struct dirent *e; fine && (e = readdir(folder)) != NULL;)
        if (is_image(e->d_name)) fine = add_path(w, path, e->d_name);
    closedir(folder);
    if (fine && w->count == 0)
        fprintf(stderr, "mhla %s: %s: no PNG or JPEG in this folder\n", usage.verb, path);
    else if (fine)
        qsort(w->paths, (size_t)w->count, sizeof *w->paths, by_name);
    return fine && w->count > 0;
}

static mhla_status read_frames(work *w) {
    w->frames = calloc((size_t)w->count, sizeof *w->frames);
    if (w->frames == NULL) return MHLA_ENOMEM;
    for (int i = 0; i < w->count; i++) {
        mhla_picture *p = &w->frames[i];
        p->size = sizeof *p;
        const mhla_status status = mhla_picture_read(p, w->paths[i]);
        if (status != MHLA_OK) return status;
    }
    w->height = w->frames->height;
    w->width = w->frames->width;
    return MHLA_OK;
}

static int same_sizes(const work *w) {
    for (int i = 0; i < w->count; i++) {
        const mhla_picture *p = &w->frames[i];
        if (p->height == w->height && p->width == w->width) continue;
        fprintf(stderr, "mhla %s: %s is %d x %d, the first frame is %d x %d\n", usage.verb, w->paths[i], p->width,
                p->height, w->width, w->height);
        return 0;
    }
    return 1;
}

static mhla_status open_all(work *w, mhla_context **context) {
    mhla_status status = mhla_model_open_as(&w->model, model_path(model),
                                            &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = dtype});
    if (status == MHLA_OK && threads) {
        status = mhla_context_create(context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status == MHLA_OK) mhla_model_set_context(w->model, *context);
    }
    if (status == MHLA_OK) status = mhla_codec_query(w->model, &w->codec);
    if (status == MHLA_OK) status = read_frames(w);
    for (int decode = 0; decode < 2 && status == MHLA_OK; decode++) {
        w->coding[decode] = (mhla_coding){.size = sizeof w->coding[decode],
                                          .height = w->height,
                                          .width = w->width,
                                          .memory = (size_t)memory,
                                          .tile = (int)tile,
                                          .frames = w->count};
        status = mhla_coding_settle(w->model, &w->coding[decode], decode);
    }
    if (status == MHLA_OK) w->latent_frames = w->codec.frames ? 1 + (w->count - 1) / w->codec.frames : 1;
    return status;
}

/* Pixels -1..1 of the model's channels, or back to how far they are from each other. */
static int fill_image(work *w) {
    const int64_t plane = (int64_t)w->height * w->width, n = plane * w->count, f = w->codec.factor;
    const int C = w->codec.channels;
    if ((C != 1 && C != 3) || w->codec.outputs != C) {
        fprintf(stderr, "mhla %s: %s has images of %d and %d channels: expected 1 or 3\n", usage.verb, model, C,
                w->codec.outputs);
        return 0;
    }
    w->image = malloc((size_t)(C * n) * sizeof(float));
    w->made = malloc((size_t)(C * n) * sizeof(float));
    w->latent = malloc((size_t)(w->codec.latents * w->latent_frames * (plane / f / f)) * sizeof(float));
    if (w->image == NULL || w->made == NULL || w->latent == NULL) {
        fprintf(stderr, "mhla %s: no memory for %d images of %d x %d\n", usage.verb, w->count, w->width, w->height);
        return 0;
    }
    for (int64_t i = 0; i < C * n; i++) {
        const mhla_picture *p = &w->frames[i / plane % w->count];
        const uint8_t *from = p->pixels + i % plane * p->channels;
        const int64_t channel = i / n;
        const float value = p->channels == C ? (float)from[channel]
                            : p->channels == 1
                                ? (float)from[0] /* grey in colour */
                                : 0.299f * (float)from[0] + 0.587f * (float)from[1] + 0.114f * (float)from[2];
        w->image[i] = value / 127.5f - 1.0f;
    }
    return 1;
}

/* Of pixels of 8 bits, as they are written. */
static double ratio_of(const work *w) {
    const int64_t n = (int64_t)w->codec.channels * w->count * w->height * w->width;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double was = round(((double)w->image[i] + 1.0) * 127.5);
        const double is = round(fmin(fmax(((double)w->made[i] + 1.0) * 127.5, 0.0), 255.0));
        sum += (was - is) * (was - is);
    }
    return sum > 0.0 ? 10.0 * log10(255.0 * 255.0 * (double)n / sum) : INFINITY;
}

/* What was made, as a PNG or an animation of 16 frames per second. */
static mhla_status write_frames(const work *w) {
    const int64_t plane = (int64_t)w->height * w->width;
    mhla_picture *made = calloc((size_t)w->count, sizeof *made);
    double *seconds = calloc((size_t)w->count, sizeof *seconds);
    float *one = malloc((size_t)(w->codec.outputs * plane) * sizeof *one);
    mhla_status status = made && seconds && one ? MHLA_OK : MHLA_ENOMEM;
    for (int i = 0; i < w->count && status == MHLA_OK; i++) {
        for (int c = 0; c < w->codec.outputs; c++)
            memcpy(one + c * plane, w->made + (c * w->count + i) * plane, (size_t)plane * sizeof *one);
        made[i].size = sizeof *made;
        seconds[i] = 1.0 / 16.0;
        status = mhla_picture_tile(&made[i], one, 1, w->codec.outputs, w->height, w->width, 1);
    }
    if (status == MHLA_OK) status = mhla_picture_write(out, made, w->count, seconds);
    for (int i = 0; i < w->count && made; i++) mhla_picture_free(&made[i]);
    free(made);
    free(seconds);
    free(one);
    return status;
}

static mhla_status write_latents(const work *w) {
    const int f = w->codec.factor, h = w->height / f, v = w->width / f, C = w->codec.latents;
    return w->count > 1 ? mhla_images_write(latents, w->latent, C, w->latent_frames, h, v)
                        : mhla_images_write(latents, w->latent, 1, C, h, v);
}

static mhla_status convert(work *w) {
    double begin = now_seconds();
    announce(w, 0);
    mhla_status status = mhla_model_encode(w->model, w->latent, NULL, w->image, 1, &w->coding[0]);
    w->seconds[0] = now_seconds() - begin;
    if (status != MHLA_OK) return status;
    begin = now_seconds();
    announce(w, 1);
    status = mhla_model_decode(w->model, w->made, w->latent, 1, &w->coding[1]);
    w->seconds[1] = now_seconds() - begin;
    if (status == MHLA_OK && latents) status = write_latents(w);
    return status == MHLA_OK ? write_frames(w) : status;
}

static void print(const work *w, const char *path) {
    const int f = w->codec.factor;
    char encode[32], decode[32];
    if (!json) {
        printf("%s: ", out);
        if (w->count > 1) printf("%d frames of ", w->count);
        printf("%d x %d, latents %d x ", w->width, w->height, w->codec.latents);
        if (w->count > 1) printf("%d x ", w->latent_frames);
        printf("%d x %d, PSNR %.2f dB; encoded in %s, decoded in %s\n", w->height / f, w->width / f, w->ratio,
               text_time(encode, sizeof encode, w->seconds[0]), text_time(decode, sizeof decode, w->seconds[1]));
        return;
    }
    json_put_open(NULL, '{');
    json_put_text("image", path);
    json_put_text("out", out);
    json_put_int("width", w->width);
    json_put_int("height", w->height);
    if (w->codec.frames) json_put_int("frames", w->count);
    json_put_int("latents", w->codec.latents);
    json_put_real("psnr", w->ratio);
    for (int i = 0; i < 2; i++) {
        json_put_open(i ? "decode" : "encode", '{');
        json_put_int("bytes", (int64_t)w->coding[i].peak);
        json_put_int("tiles", w->coding[i].tiles);
        json_put_int("tile", w->coding[i].tile);
        json_put_int("multiply_adds", w->coding[i].multiply_adds);
        json_put_real("seconds", w->seconds[i]);
        json_put_close('}');
    }
    json_put_close('}');
}

int cmd_reconstruct(int argc, char **argv) {
    int given = 0;
    int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given != 1) return cli_wrong(usage.verb, "one IMAGE or FOLDER is expected, %d given", given);
    if (model == NULL) return cli_wrong(usage.verb, "--model is missing");
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (tile > 1 << 20) return cli_wrong(usage.verb, "--tile is %lld: too large", (long long)tile);
    if (out == NULL) out = "reconstructed.png";
    const size_t n = strlen(out);
    if (n < 5 || strcmp(out + n - 4, ".png") != 0)
        return cli_wrong(usage.verb, "--out is \"%s\": expected a name that ends with .png", out);
    work w = {.codec = {.size = sizeof w.codec}};
    mhla_context *context = NULL;
    mhla_status status = MHLA_OK;
    if (!list_frames(&w, argv[0])) code = CLI_FAILED;
    if (code < 0 && (status = open_all(&w, &context)) != MHLA_OK) code = cli_failed(usage.verb, status);
    if (code < 0 && (!same_sizes(&w) || !fill_image(&w))) code = CLI_FAILED;
    if (code < 0 && (status = convert(&w)) != MHLA_OK) code = cli_failed(usage.verb, status);
    if (code < 0) {
        w.ratio = ratio_of(&w);
        print(&w, argv[0]);
        code = CLI_OK;
    }
    free(w.image);
    free(w.latent);
    free(w.made);
    for (int i = 0; i < w.count; i++) {
        if (w.frames) mhla_picture_free(&w.frames[i]);
        free(w.paths[i]);
    }
    free(w.paths);
    free(w.frames);
    mhla_model_free(w.model);
    mhla_context_free(context);
    return code;
}
