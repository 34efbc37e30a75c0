/* mhla reconstruct: an image through an autoencoder and back, and how near it comes. */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    .arguments = "IMAGE",
    .options = options,
    .text = "Encodes a PNG or JPEG image with an autoencoder, decodes the latents and writes the result. Prints the\n"
            "peak signal-to-noise ratio between the two. Each side of the image must be a multiple of the\n"
            "autoencoder's factor (8).\n",
};

typedef struct work {
    mhla_model *model;
    mhla_codec_info codec;
    mhla_coding coding[2]; /* on the way in, on the way out */
    mhla_picture picture;
    float *image, *latent, *made;
    double ratio, seconds[2];
} work;

/* "encoding: 1.2 GiB, 4 tiles of 256 pixels" */
static void announce(const work *w, int decode) {
    const mhla_coding *c = &w->coding[decode];
    char bytes[32];
    if (quiet) return;
    fprintf(stderr, "%s: %s", decode ? "decoding" : "encoding", text_bytes(bytes, sizeof bytes, (double)c->peak));
    if (c->tiles > 1) fprintf(stderr, ", %d tiles of %d pixels", c->tiles, c->tile);
    fprintf(stderr, "\n");
}

static mhla_status open_all(work *w, const char *path, mhla_context **context) {
    mhla_status status = mhla_model_open_as(&w->model, model_path(model),
                                            &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = dtype});
    if (status == MHLA_OK && threads) {
        status = mhla_context_create(context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status == MHLA_OK) mhla_model_set_context(w->model, *context);
    }
    if (status == MHLA_OK) status = mhla_codec_query(w->model, &w->codec);
    if (status == MHLA_OK) status = mhla_picture_read(&w->picture, path);
    for (int decode = 0; decode < 2 && status == MHLA_OK; decode++) {
        w->coding[decode] = (mhla_coding){.size = sizeof w->coding[decode],
                                          .height = w->picture.height,
                                          .width = w->picture.width,
                                          .memory = (size_t)memory,
                                          .tile = (int)tile};
        status = mhla_coding_settle(w->model, &w->coding[decode], decode);
    }
    return status;
}

/* Pixels -1..1 of the model's channels, or back to how far they are from each other. */
static int fill_image(work *w) {
    const mhla_picture *p = &w->picture;
    const int64_t n = (int64_t)p->height * p->width, f = w->codec.factor;
    const int C = w->codec.channels;
    if ((C != 1 && C != 3) || w->codec.outputs != C) {
        fprintf(stderr, "mhla %s: %s has images of %d and %d channels, which are no pictures (1 or 3)\n", usage.verb,
                model, C, w->codec.outputs);
        return 0;
    }
    w->image = malloc((size_t)(C * n) * sizeof(float));
    w->made = malloc((size_t)(C * n) * sizeof(float));
    w->latent = malloc((size_t)(w->codec.latents * (n / f / f)) * sizeof(float));
    if (w->image == NULL || w->made == NULL || w->latent == NULL) {
        fprintf(stderr, "mhla %s: no memory for an image of %d x %d\n", usage.verb, p->width, p->height);
        return 0;
    }
    for (int c = 0; c < C; c++)
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *from = p->pixels + i * p->channels;
            const float value = p->channels == C ? (float)from[c]
                                : p->channels == 1
                                    ? (float)from[0] /* grey in colour */
                                    : 0.299f * (float)from[0] + 0.587f * (float)from[1] + 0.114f * (float)from[2];
            w->image[c * n + i] = value / 127.5f - 1.0f;
        }
    return 1;
}

/* Of pixels of 8 bits, as they are written. */
static double ratio_of(const work *w) {
    const int64_t n = (int64_t)w->codec.channels * w->picture.height * w->picture.width;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double was = round(((double)w->image[i] + 1.0) * 127.5);
        const double is = round(fmin(fmax(((double)w->made[i] + 1.0) * 127.5, 0.0), 255.0));
        sum += (was - is) * (was - is);
    }
    return sum > 0.0 ? 10.0 * log10(255.0 * 255.0 * (double)n / sum) : INFINITY;
}

static mhla_status convert(work *w) {
    const int f = w->codec.factor, height = w->picture.height, width = w->picture.width;
    double begin = now_seconds();
    announce(w, 0);
    mhla_status status = mhla_model_encode(w->model, w->latent, NULL, w->image, 1, &w->coding[0]);
    w->seconds[0] = now_seconds() - begin;
    if (status != MHLA_OK) return status;
    begin = now_seconds();
    announce(w, 1);
    status = mhla_model_decode(w->model, w->made, w->latent, 1, &w->coding[1]);
    w->seconds[1] = now_seconds() - begin;
    if (status == MHLA_OK && latents)
        status = mhla_images_write(latents, w->latent, 1, w->codec.latents, height / f, width / f);
    mhla_picture result = {.size = sizeof result};
    if (status == MHLA_OK) status = mhla_picture_tile(&result, w->made, 1, w->codec.outputs, height, width, 1);
    if (status == MHLA_OK) status = mhla_picture_write(out, &result, 1, NULL);
    mhla_picture_free(&result);
    return status;
}

static void print(const work *w, const char *path) {
    const int f = w->codec.factor;
    char encode[32], decode[32];
    if (!json) {
        printf("%s: %d x %d, latents %d x %d x %d, PSNR %.2f dB; encoded in %s, decoded in %s\n", out, w->picture.width,
               w->picture.height, w->codec.latents, w->picture.height / f, w->picture.width / f, w->ratio,
               text_time(encode, sizeof encode, w->seconds[0]), text_time(decode, sizeof decode, w->seconds[1]));
        return;
    }
    json_put_open(NULL, '{');
    json_put_text("image", path);
    json_put_text("out", out);
    json_put_int("width", w->picture.width);
    json_put_int("height", w->picture.height);
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
    if (given != 1) return cli_wrong(usage.verb, "one IMAGE is expected, %d given", given);
    if (model == NULL) return cli_wrong(usage.verb, "--model is missing");
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (tile > 1 << 20) return cli_wrong(usage.verb, "--tile is %lld: too large", (long long)tile);
    if (out == NULL) out = "reconstructed.png";
    const size_t n = strlen(out);
    if (n < 5 || strcmp(out + n - 4, ".png") != 0)
        return cli_wrong(usage.verb, "--out is \"%s\": expected a name that ends with .png", out);
    work w = {.codec = {.size = sizeof w.codec}, .picture = {.size = sizeof w.picture}};
    mhla_context *context = NULL;
    mhla_status status = open_all(&w, argv[0], &context);
    if (status != MHLA_OK) code = cli_failed(usage.verb, status);
    if (code < 0 && !fill_image(&w)) code = CLI_FAILED;
    if (code < 0 && (status = convert(&w)) != MHLA_OK) code = cli_failed(usage.verb, status);
    if (code < 0) {
        w.ratio = ratio_of(&w);
        print(&w, argv[0]);
        code = CLI_OK;
    }
    free(w.image);
    free(w.latent);
    free(w.made);
    mhla_picture_free(&w.picture);
    mhla_model_free(w.model);
    mhla_context_free(context);
    return code;
}
