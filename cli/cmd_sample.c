/* mhla sample: images or clips that a diffusion model makes out of noise, of a class or, by a pipeline, of a sentence. Each tells how it
 * was made, and --like makes it again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "sample.h"

sample_options sample_given = {.count = 1, .guidance = -1.0};

enum { IMAGES_MOST = 1000000 };

static const cli_option options[] = {
    {"model,m", CLI_TEXT, &sample_given.model, "MODEL",
     "a folder, a run or a shipped model, or the folder of a pipeline; required"},
    {"prompt,p", CLI_TEXT, &sample_given.prompt, "TEXT",
     "pipelines and models trained on captions: what the images show"},
    {"prompts", CLI_TEXT, &sample_given.prompts, "FILE", "pipelines: a prompt on each line; -: standard input"},
    {"negative", CLI_TEXT, &sample_given.negative, "TEXT",
     "pipelines: what the images must not show; default: the pipeline's negative prompt"},
    {"classes,c", CLI_TEXT, &sample_given.classes, "LIST",
     "names or numbers separated by commas, none, or all (the default)"},
    {"count,n", CLI_INT, &sample_given.count, "N", "images of each class or prompt; default 1"},
    {"seed,s", CLI_COUNT, &sample_given.seed, "S", "images of a class or prompt have the seeds S, S+1, ...; default 0"},
    {"guidance,g", CLI_AMOUNT, &sample_given.guidance, "X",
     "strength of the class or prompt; 1: no guidance; default 2 if the model supports it,\n"
     "                         else 1; pipelines: as in their files"},
    {"guided-channels", CLI_INT, &sample_given.channels, "N", "apply guidance to the first N channels; default all"},
    {"sampler", CLI_TEXT, &sample_given.sampler, "NAME",
     "ddim (default), ddpm, dpm++, unipc; flow models: euler (default), dpm++, unipc;\n"
     "                         pipelines: as in their files"},
    {"steps", CLI_INT, &sample_given.steps, "N", "default 50; ddpm 250; SANA 20"},
    {"eta", CLI_AMOUNT, &sample_given.eta, "X", "ddim: amount of added noise, 0 to 1; default 0"},
    {"shift", CLI_REAL, &sample_given.shift, "X",
     "flow models: values above 1 take more steps at high noise; default 1; pipelines: as in their files"},
    {"no-clip", CLI_FLAG, &sample_given.no_clip, NULL, "do not clip predicted pixels between steps"},
    {"size", CLI_GRID, &sample_given.size, "WxH",
     "pixels of images, width first; of clips HxW, height first, for example 480x800; multiples of the patch (times "
     "the factor of --vae); default: as in training"},
    {"frames", CLI_INT, &sample_given.frames, "N", "models of clips: frames of a clip; default: as in training"},
    {"exact-size", CLI_FLAG, &sample_given.exact, NULL,
     "SANA: generate exactly --size; default: the nearest training shape, resized and cropped"},
    {"no-instruction", CLI_FLAG, &sample_given.no_instruction, NULL,
     "SANA: do not put its instruction in front of prompts"},
    {"transformer", CLI_TEXT, &sample_given.transformer, "MODEL",
     "pipelines: this transformer instead of the folder's"},
    {"vae", CLI_TEXT, &sample_given.vae, "MODEL", "the autoencoder that decodes the latents of a model of latents"},
    {"text-encoder", CLI_TEXT, &sample_given.text_encoder, "MODEL",
     "pipelines: this text encoder, which may be a .gguf file"},
    {"tokenizer", CLI_TEXT, &sample_given.tokenizer, "PATH", "pipelines: this tokenizer; default: the text encoder's"},
    {"scheduler", CLI_TEXT, &sample_given.scheduler, "FILE", "pipelines: this scheduler_config.json"},
    {"text-cache", CLI_TEXT, &sample_given.texts, "FOLDER",
     "pipelines: cache the encoded prompts here; the text encoder is not opened for prompts in the cache"},
    {"memory", CLI_BYTES, &sample_given.memory, "BYTES",
     "autoencoder: decode in overlapping tiles that need at most this much, for example 2G"},
    {"weights", CLI_TEXT, &sample_given.weights, "WHICH",
     "raw, or ema (averaged); default: whichever scored better in training"},
    {"dtype", CLI_TEXT, &sample_given.dtype, "TYPE", "weights and products as float32 (default), bfloat16 or q8_0"},
    {"out,o", CLI_TEXT, &sample_given.out, "PATH",
     "FILE.png, .webp: one image, a grid or a clip; FILE.npy: an array; FILE.y4m, -: a video; otherwise a folder"},
    {"preview", CLI_INT, &sample_given.preview, "N", "pipelines: write a preview of the first image every N steps"},
    {"resume", CLI_FLAG, &sample_given.resume, NULL, "pipelines: resume a run that was stopped or killed"},
    {"dry-run", CLI_FLAG, &sample_given.dry_run, NULL, "pipelines: print memory and estimated time, and exit"},
    {"animate", CLI_FLAG, &sample_given.animate, NULL, "animated PNG of all steps"},
    {"like", CLI_TEXT, &sample_given.like, "FILE.png", "generate this image of mhla sample again and compare"},
    {"any-model", CLI_FLAG, &sample_given.any_model, NULL, "--like: allow other weights"},
    {"batch", CLI_INT, &sample_given.batch, "N", "images per batch; does not change the result"},
    {"threads", CLI_INT, &sample_given.threads, "N", "default: OpenMP's; does not change the result"},
    {"json", CLI_FLAG, &sample_given.json, NULL, "one JSON document instead of text"},
    {"quiet", CLI_FLAG, &sample_given.quiet, NULL, "no progress"},
    {0},
};
static const cli_usage usage = {
    .verb = "sample",
    .arguments = "",
    .options = options,
    .text = "Generates images, or clips as animated PNGs, with a diffusion model: from classes, or from prompts with "
            "a\npipeline (a folder of components in the layout of diffusers). An image depends only on its class or "
            "prompt, its seed\n"
            "and the options, and its PNG records all of them: mhla sample --like FILE.png makes it again.\n"
            "An output folder has a folder for each class; the same command resumes an incomplete one. Ctrl-C stops.\n",
};

/* ---- What is asked for ---- */

/* Of a format that another program writes. */
static int is_video(const char *path) {
    static const char *const endings[] = {".mp4", ".m4v", ".mkv", ".mov", ".avi", ".webm"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (sample_ends(path, endings[i])) return 1;
    return 0;
}

static int refuse_like(void) {
    const sample_options *g = &sample_given;
    if (g->classes || g->sampler || g->steps || g->channels || g->frames || g->size.axes || g->weights || g->dtype ||
        g->guidance >= 0.0 || g->eta > 0.0 || g->shift != 0.0 || g->no_clip || g->animate || g->count != 1 || g->seed ||
        g->prompt || g->prompts || g->negative || g->exact || g->no_instruction || g->scheduler)
        return cli_wrong(usage.verb,
                         "--like takes everything from the image: only models, --any-model, --out, --batch, "
                         "--memory, --threads, --json and --quiet go with it");
    if (sample_ends(g->like, ".y4m") || sample_ends(g->like, ".npy"))
        return cli_wrong(usage.verb, "--like is \"%s\": only .png and .webp record how they were made", g->like);
    if (g->out && !sample_is_picture(g->out))
        return cli_wrong(usage.verb, "--out is \"%s\": with --like a name that ends with .png", g->out);
    return -1;
}

/* What a model of classes or a pipeline does not have: the option that was given all the same, or NULL. */
static const char *misplaced(int pipeline) {
    const sample_options *g = &sample_given;
    const struct {
        const char *name;
        int given, pipelines;
    } list[] = {{"classes", g->classes != NULL, 0},
                {"eta", g->eta > 0.0, 0},
                {"no-clip", g->no_clip, 0},
                {"guided-channels", g->channels > 0, 0},
                {"animate", g->animate, 0},
                {"weights", g->weights != NULL, 0},
                {"prompt", g->prompt != NULL, 1},
                {"prompts", g->prompts != NULL, 1},
                {"negative", g->negative != NULL, 1},
                {"exact-size", g->exact, 1},
                {"no-instruction", g->no_instruction, 1},
                {"transformer", g->transformer != NULL, 1},
                {"text-encoder", g->text_encoder != NULL, 1},
                {"tokenizer", g->tokenizer != NULL, 1},
                {"scheduler", g->scheduler != NULL, 1},
                {"text-cache", g->texts != NULL, 1},
                {"preview", g->preview > 0, 1},
                {"resume", g->resume, 1},
                {"dry-run", g->dry_run, 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].given && list[i].pipelines != pipeline) return list[i].name;
    return NULL;
}

static int refuse(void) {
    const sample_options *g = &sample_given;
    if (g->like) {
        const int code = refuse_like();
        if (code >= 0) return code;
    } else {
        if (g->model == NULL && g->transformer == NULL) return cli_wrong(usage.verb, "--model is missing");
        if (g->any_model) return cli_wrong(usage.verb, "--any-model is for --like");
        if (g->animate && g->out && sample_ends(g->out, ".npy"))
            return cli_wrong(usage.verb, "--animate writes an image, --out is \"%s\"", g->out);
    }
    if (g->out && *g->out == '\0')
        return cli_wrong(usage.verb, "--out is empty"); /* a folder of that name would be / */
    if (g->out && strcmp(g->out, "-") == 0 && g->json)
        return cli_wrong(usage.verb, "--out - and --json: both write to standard output");
    if (g->out && is_video(g->out))
        return cli_wrong(usage.verb,
                         "--out is \"%s\": videos are written as .y4m, .webp or .png; -o - | ffmpeg -i - %s", g->out,
                         g->out);
    if (g->out && (sample_ends(g->out, ".jpg") || sample_ends(g->out, ".jpeg") || sample_ends(g->out, ".gif")))
        return cli_wrong(usage.verb, "--out is \"%s\": images and animations are written as .png", g->out);
    if (g->threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)g->threads);
    if (g->batch > 65536) return cli_wrong(usage.verb, "--batch is %lld: expected 1 to 65536", (long long)g->batch);
    if (g->steps > 1000) return cli_wrong(usage.verb, "--steps is %lld: expected 1 to 1000", (long long)g->steps);
    if (g->frames > 65536) return cli_wrong(usage.verb, "--frames is %lld: too many", (long long)g->frames);
    if (g->channels > 65536)
        return cli_wrong(usage.verb, "--guided-channels is %lld: too many", (long long)g->channels);
    if (g->count > IMAGES_MOST)
        return cli_wrong(usage.verb, "--count is %lld: expected 1 to %d", (long long)g->count, IMAGES_MOST);
    if (g->seed > INT64_MAX - g->count) return cli_wrong(usage.verb, "--seed is %lld: too large", (long long)g->seed);
    if (g->guidance == 0.0) return cli_wrong(usage.verb, "--guidance is 0: expected more; 1 is none");
    if (g->size.axes == 3) return cli_wrong(usage.verb, "--size has three sizes: expected WxH");
    if (g->weights && strcmp(g->weights, "raw") != 0 && strcmp(g->weights, "ema") != 0)
        return cli_wrong(usage.verb, "--weights is \"%s\": expected raw or ema", g->weights);
    return -1;
}

/* What is of models of classes, or of pipelines, alone. */
static int refuse_kind(int pipeline) {
    const sample_options *g = &sample_given;
    const char *name = g->like ? NULL : misplaced(pipeline);
    if (name)
        return cli_wrong(usage.verb, "--%s is for %s", name,
                         pipeline ? "models of classes, and this is a pipeline, which takes --prompt" : "pipelines");
    if (!pipeline && g->memory && !g->vae && !g->like) return cli_wrong(usage.verb, "--memory is for --vae");
    return -1;
}

/* ---- What both kinds do ---- */

int sample_ends(const char *path, const char *ending) {
    const size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

void sample_size(int *height, int *width, int clips) {
    const cli_grid *size = &sample_given.size;
    const int first = size->axes ? size->size[0] : 0, second = size->axes ? size->size[size->axes - 1] : 0;
    *height = clips ? first : second;
    *width = clips ? second : first;
}

int sample_is_picture(const char *path) { return sample_ends(path, ".png") || sample_ends(path, ".webp"); }

int sample_writable(const char *path, int folder) {
    if (cli_writable(path) || (folder && errno == EISDIR && access(path, W_OK | X_OK) == 0)) return 1;
    fprintf(stderr, "mhla %s: %s: cannot be written: %s\n", usage.verb, path, strerror(errno));
    return 0;
}

const char *sample_again(void) {
    static char again[4096];
    const char *name = strrchr(sample_given.like, '/') ? strrchr(sample_given.like, '/') + 1 : sample_given.like;
    const char *end = sample_is_picture(name) ? strrchr(name, '.') : name + strlen(name);
    snprintf(again, sizeof again, "%.*s-again%s", (int)(end - name), name, *end ? end : ".png");
    return again;
}

int sample_same_weights(const char *was, const char *hash, const char *path) {
    if (!sample_given.like || strcmp(hash, was) == 0) return -1;
    fprintf(stderr, "mhla %s: %s was made with weights %.12s, those of %s are %.12s%s\n", usage.verb, sample_given.like,
            was, path, hash, sample_given.any_model ? "" : ": the image would differ (--any-model allows it)");
    return sample_given.any_model ? -1 : CLI_FAILED;
}

int sample_compare(const mhla_picture *original, const char *path, const char *was, const char *isa) {
    mhla_picture made = {.size = sizeof made};
    const mhla_status status = mhla_picture_read(&made, path);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    int64_t differ = 0;
    const int alike =
        made.width == original->width && made.height == original->height && made.channels == original->channels;
    const int64_t n = (int64_t)made.width * made.height;
    for (int64_t i = 0; alike && i < n; i++)
        differ +=
            memcmp(made.pixels + i * made.channels, original->pixels + i * made.channels, (size_t)made.channels) != 0;
    mhla_picture_free(&made);
    if (alike && differ == 0) return CLI_OK;
    if (alike)
        fprintf(stderr, "mhla %s: %lld of %lld pixels of %s differ from those of %s", usage.verb, (long long)differ,
                (long long)n, path, sample_given.like);
    else
        fprintf(stderr, "mhla %s: %s has another size than %s", usage.verb, path, sample_given.like);
    if (strcmp(was, isa) != 0) fprintf(stderr, ": it was made with the kernels of %s, these are %s's", was, isa);
    fprintf(stderr, "\n");
    return CLI_FAILED;
}

int cmd_sample(int argc, char **argv) {
    mhla_picture original = {.size = sizeof original};
    mhla_made *made = NULL;
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code < 0) code = refuse();
    if (code >= 0) return code;
    if (sample_given.like && mhla_picture_read(&original, sample_given.like) == MHLA_OK && original.text)
        (void)mhla_made_read(&made, original.text,
                             sample_given.like); /* else it is of a model of classes, or that says why not */
    const int pipeline = made || (!sample_given.like && sample_is_pipeline());
    code = refuse_kind(pipeline);
    if (code < 0 && pipeline && mhla_ranks() > 1)
        code = cli_wrong(usage.verb, "a pipeline runs in one process, %d were started", mhla_ranks());
    if (code < 0) code = pipeline ? sample_pipeline(&original, made) : sample_model();
    mhla_made_free(made);
    mhla_picture_free(&original);
    return code;
}
