/* mhla latents: a dataset through an autoencoder's encoder, once; a diffusion model is then trained on what it makes. */
#include <mhla/diffusion.h>
#include <stdio.h>

#include "cli.h"

static const char *vae, *out;
static int64_t threads;
static int json, quiet;
static cli_grid size;

static const cli_option options[] = {
    {"vae", CLI_TEXT, &vae, "MODEL", "the autoencoder: a folder or a file; required"},
    {"size", CLI_GRID, &size, "WxH",
     "pixels of an image, multiples of the autoencoder's factor; N: a square;\n"
     "                         default: as in its training"},
    {"out,o", CLI_TEXT, &out, "DIR", "the folder to write; required"},
    {"threads", CLI_INT, &threads, "N", "default: OpenMP's; does not change the result"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"quiet", CLI_FLAG, &quiet, NULL, "no progress"},
    {0},
};
static const cli_usage usage = {
    .verb = "latents",
    .arguments = "DATA",
    .options = options,
    .text =
        "Encodes every image of a dataset (\"emoji\", or any folder of images that mhla train takes) with an\n"
        "autoencoder. Images are resized so that the shorter side fits, then cropped to the centre. Mean and\n"
        "deviation of each image are kept, and of the image flipped horizontally, so that every epoch of\n"
        "training draws its latents anew.\n"
        "\n"
        "mhla train takes DIR as data: --source DIR. If the command is stopped or killed, run it again:\nit makes what "
        "is missing and ends with the same bytes. DIR records the SHA-256 of the autoencoder\nand of the data.\n",
};

static void print(const mhla_latents_made *m) {
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("out", out);
        json_put_int("train", m->train);
        json_put_int("test", m->test);
        json_put_int("kept", m->kept);
        json_put_int("unreadable", m->unreadable);
        json_put_int("channels", m->channels);
        json_put_int("height", m->height);
        json_put_int("width", m->width);
        json_put_close('}');
        return;
    }
    printf("%s: latents of %d x %d x %d of %lld images to train and %lld to test", out, m->channels, m->height,
           m->width, (long long)m->train, (long long)m->test);
    if (m->kept) printf("; %lld were there", (long long)m->kept);
    if (m->unreadable) printf("; %lld could not be read", (long long)m->unreadable);
    printf("\n");
}

int cmd_latents(int argc, char **argv) {
    int given = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given != 1) return cli_wrong(usage.verb, "one DATA is expected, %d given", given);
    if (vae == NULL) return cli_wrong(usage.verb, "--vae is missing");
    if (out == NULL || *out == '\0') return cli_wrong(usage.verb, "--out is missing");
    if (size.axes > 2) return cli_wrong(usage.verb, "--size: expected WxH");
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    mhla_model *model = NULL;
    mhla_context *context = NULL;
    mhla_latents_made made = {.size = sizeof made};
    mhla_status status = mhla_model_open(&model, model_path(vae));
    if (status == MHLA_OK && threads)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    if (status == MHLA_OK && context) mhla_model_set_context(model, context);
    count_line line = count_begin("images");
    if (status == MHLA_OK)
        status = mhla_latents_make(model,
                                   &(mhla_latents_desc){.size = sizeof(mhla_latents_desc),
                                                        .source = argv[0],
                                                        .out = out,
                                                        .height = size.size[size.axes == 2],
                                                        .width = size.size[0],
                                                        .progress = quiet || mhla_rank() > 0 ? NULL : count_show,
                                                        .user = &line},
                                   &made);
    mhla_model_free(model);
    mhla_context_free(context);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    print(&made);
    return CLI_OK;
}
