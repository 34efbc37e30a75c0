/* mhla sample: images that a diffusion model makes out of noise, as one PNG or a folder of them; each tells how it was made, and
 * --like makes it again. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sample.h"

static const char *model, *classes, *sampler, *weights, *dtype, *out, *like, *vae;
static int64_t count = 1, seed, steps, channels, batch, threads, memory, frames;
static double guidance = -1.0, eta, shift;
static cli_grid size;
static int no_clip, animate, json, quiet, any_model;

static const cli_option options[] = {
    {"model,m", CLI_TEXT, &model, "MODEL", "a folder, a run or a shipped model; required"},
    {"classes,c", CLI_TEXT, &classes, "LIST", "names or numbers separated by commas, none, or all (the default)"},
    {"count,n", CLI_INT, &count, "N", "images of each class; default 1"},
    {"seed,s", CLI_COUNT, &seed, "S", "images of a class have the seeds S, S+1, ...; default 0"},
    {"guidance,g", CLI_AMOUNT, &guidance, "X",
     "strength of the class, 1: no guidance; default 2 if the model supports it, else 1"},
    {"guided-channels", CLI_INT, &channels, "N", "apply guidance to the first N channels; default all"},
    {"sampler", CLI_TEXT, &sampler, "NAME",
     "ddim (default), ddpm, dpm++, unipc; of flows euler (default), dpm++, unipc"},
    {"steps", CLI_INT, &steps, "N", "default 50; ddpm 250"},
    {"eta", CLI_AMOUNT, &eta, "X", "ddim: amount of added noise, 0 to 1; default 0"},
    {"shift", CLI_REAL, &shift, "X", "flows: values above 1 take more steps at high noise; default 1"},
    {"no-clip", CLI_FLAG, &no_clip, NULL, "do not clip predicted pixels between steps"},
    {"size", CLI_GRID, &size, "WxH",
     "pixels, multiples of the patch (times the factor of --vae); default: as in training"},
    {"frames", CLI_INT, &frames, "N", "models of clips: frames of a clip; default: as in training"},
    {"vae", CLI_TEXT, &vae, "MODEL", "the autoencoder that decodes the latents of a model of latents"},
    {"memory", CLI_BYTES, &memory, "BYTES",
     "--vae: decode in overlapping tiles that need at most this much, for example 2G"},
    {"weights", CLI_TEXT, &weights, "WHICH", "raw, or ema (averaged); default: whichever scored better in training"},
    {"dtype", CLI_TEXT, &dtype, "TYPE", "weights and products as float32 (default), bfloat16 or q8_0"},
    {"out,o", CLI_TEXT, &out, "PATH", "FILE.png: one image or a grid; FILE.npy: an array; otherwise a folder"},
    {"animate", CLI_FLAG, &animate, NULL, "animated PNG of all steps"},
    {"like", CLI_TEXT, &like, "FILE.png", "make this image of mhla sample again and compare"},
    {"any-model", CLI_FLAG, &any_model, NULL, "--like: allow other weights"},
    {"batch", CLI_INT, &batch, "N", "images per batch; does not change the result"},
    {"threads", CLI_INT, &threads, "N", "default: OpenMP's; does not change the result"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"quiet", CLI_FLAG, &quiet, NULL, "no progress"},
    {0},
};
static const cli_usage usage = {
    .verb = "sample",
    .arguments = "",
    .options = options,
    .text = "Generates images, or clips as animated PNGs, with a diffusion model. An image depends only on its class,\n"
            "its seed and the options, and its PNG records all of them: mhla sample --like FILE.png makes it again.\n"
            "An output folder has a folder for each class; the same command resumes an incomplete one. Ctrl-C stops.\n",
};

enum { IMAGES_MOST = 1000000, MANY_CLASSES = 100 };
static const double usual_guidance = 2.0;

static int ends(const char *path, const char *ending) {
    const size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}
static int is_png(const char *path) { return ends(path, ".png"); }
static int is_array(const char *path) { return ends(path, ".npy"); }

/* ---- What is asked for ---- */

static int refuse(void) {
    if (like) {
        if (classes || sampler || steps || channels || frames || size.axes || weights || dtype || guidance >= 0.0 ||
            eta > 0.0 || shift != 0.0 || no_clip || animate || count != 1 || seed)
            return cli_wrong(
                usage.verb,
                "--like takes everything from the picture: only --model, --vae, --any-model, --out, --batch, "
                "--memory, --threads, --json and --quiet go with it");
        if (out && !is_png(out))
            return cli_wrong(usage.verb, "--out is \"%s\": with --like a name that ends with .png", out);
    } else {
        if (model == NULL) return cli_wrong(usage.verb, "--model is missing");
        if (any_model) return cli_wrong(usage.verb, "--any-model is for --like");
        if (animate && out && is_array(out))
            return cli_wrong(usage.verb, "--animate makes pictures, --out is \"%s\"", out);
    }
    if (memory && !vae && !like) return cli_wrong(usage.verb, "--memory is for --vae");
    if (out && *out == '\0') return cli_wrong(usage.verb, "--out is empty"); /* a folder of that name would be / */
    if (out && (ends(out, ".jpg") || ends(out, ".jpeg") || ends(out, ".gif")))
        return cli_wrong(usage.verb, "--out is \"%s\": images and animations are written as .png", out);
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (batch > 65536) return cli_wrong(usage.verb, "--batch is %lld: expected 1 to 65536", (long long)batch);
    if (steps > 1000) return cli_wrong(usage.verb, "--steps is %lld: expected 1 to 1000", (long long)steps);
    if (frames > 65536) return cli_wrong(usage.verb, "--frames is %lld: too many", (long long)frames);
    if (channels > 65536) return cli_wrong(usage.verb, "--guided-channels is %lld: too many", (long long)channels);
    if (count > IMAGES_MOST)
        return cli_wrong(usage.verb, "--count is %lld: expected 1 to %d", (long long)count, IMAGES_MOST);
    if (seed > INT64_MAX - count) return cli_wrong(usage.verb, "--seed is %lld: too large", (long long)seed);
    if (guidance == 0.0) return cli_wrong(usage.verb, "--guidance is 0: expected more; 1 is none");
    if (size.axes == 3) return cli_wrong(usage.verb, "--size has three sizes: expected WxH");
    if (weights && strcmp(weights, "raw") != 0 && strcmp(weights, "ema") != 0)
        return cli_wrong(usage.verb, "--weights is \"%s\": expected raw or ema", weights);
    return -1;
}

/* The class of the `length` letters at `text`, without spaces behind them. */
static mhla_status find_class(const sample_work *w, const char *text, size_t length, int *class_) {
    char name[256];
    while (length > 0 && text[length - 1] == ' ') length--;
    snprintf(name, sizeof name, "%.*s", (int)(length < 255 ? length : 255), text);
    return mhla_model_class_find(w->model, name, class_);
}

/* The numbers of the classes in --classes, *list [*n]. -1, or the code to exit with. */
static int read_classes(const sample_work *w, int **list, int *n) {
    const char *text = classes ? classes : "all";
    const int all = strcmp(text, "all") == 0;
    int room = all ? w->info.classes : 1;
    for (const char *c = text; *c; c++) room += *c == ',';
    *n = 0;
    *list = calloc((size_t)room, sizeof **list);
    if (*list == NULL) return cli_failed(usage.verb, MHLA_ENOMEM);
    if (all && classes == NULL && w->info.classes > MANY_CLASSES)
        return cli_wrong(usage.verb, "--classes is missing: the model has %d", w->info.classes);
    for (int i = 0; all && i < w->info.classes; i++) (*list)[(*n)++] = i;
    for (const char *at = text; !all; at++) {
        at += strspn(at, " ");
        const size_t first = strcspn(at, ",");
        size_t end = first;
        mhla_status status = find_class(w, at, end, &(*list)[*n]);
        while (status != MHLA_OK && at[end] != '\0') { /* a name may have commas of its own */
            end += 1 + strcspn(at + end + 1, ",");
            status = find_class(w, at, end, &(*list)[*n]);
        }
        if (first == 0 && status != MHLA_OK)
            return cli_wrong(usage.verb, "--classes is \"%s\": a name is missing", text);
        if (status != MHLA_OK) return cli_failed(usage.verb, find_class(w, at, first, &(*list)[*n]));
        (*n)++;
        at += end;
        if (*at == '\0') break;
    }
    return -1;
}

/* The list of images: class by class, seed by seed. -1, or the code to exit with. */
static int list_images(sample_work *w) {
    int *list = NULL, n = 0, code = read_classes(w, &list, &n);
    mhla_sample_record *r = &w->record;
    if (code < 0 && (int64_t)n * count > IMAGES_MOST) code = cli_wrong(usage.verb, "more than %d images", IMAGES_MOST);
    if (code < 0) {
        r->images = n * count;
        r->classes = calloc((size_t)r->images + 1, sizeof *r->classes);
        r->seeds = calloc((size_t)r->images + 1, sizeof *r->seeds);
        if (r->classes == NULL || r->seeds == NULL) code = cli_failed(usage.verb, MHLA_ENOMEM);
    }
    for (int64_t i = 0; code < 0 && i < r->images; i++) {
        r->classes[i] = list[i / count];
        r->seeds[i] = (uint64_t)(seed + i % count);
    }
    r->columns = count > 1 ? (int)count : (int)ceil(sqrt((double)n)); /* a class per row, unless there is one of each */
    free(list);
    return code;
}

/* Names every setting, also those that were left to the model. */
static mhla_status settle(sample_work *w, const char *method) {
    mhla_sample_record *r = &w->record;
    mhla_sample_desc d = sample_desc(r);
    d.method = method;
    d.batch = (int)batch;
    mhla_status status = mhla_model_sample_settle(w->model, &d);
    if (status == MHLA_OK && method == NULL && strcmp(d.method, "ddpm") == 0) {
        d.method = "ddim"; /* a fifth of the steps do */
        d.steps = r->steps;
        status = mhla_model_sample_settle(w->model, &d);
    }
    if (status != MHLA_OK) return status;
    snprintf(r->method, sizeof r->method, "%s", d.method);
    r->steps = d.steps;
    r->shift = d.shift;
    r->guidance = d.guidance;
    r->guided_channels = d.guided_channels;
    r->height = d.height;
    r->width = d.width;
    r->frames = d.frames;
    w->batch = d.batch;
    return MHLA_OK;
}

/* ---- The model ---- */

/* Whether the image of --like was made with these weights; -1, or the code to exit with. */
static int same_weights(const char *was, const char *hash, const char *path) {
    if (!like || strcmp(hash, was) == 0) return -1;
    fprintf(stderr, "mhla %s: %s was made with weights %.12s, those of %s are %.12s%s\n", usage.verb, like, was, path,
            hash, any_model ? "" : ": the image would differ (--any-model makes it)");
    return any_model ? -1 : CLI_FAILED;
}

static int open_vae(sample_work *w, mhla_context *context) {
    mhla_sample_record *r = &w->record;
    char hash[65];
    const int half = strcmp(r->dtype, "bfloat16") == 0; /* of its convolutions there is no other form */
    mhla_status status =
        mhla_model_open_as(&w->vae, model_path(r->vae),
                           &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = half ? "bfloat16" : NULL});
    if (status == MHLA_OK && context) mhla_model_set_context(w->vae, context);
    if (status == MHLA_OK) status = mhla_codec_query(w->vae, &w->codec);
    if (status == MHLA_OK) status = mhla_model_hash(w->vae, hash);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (w->codec.latents != w->info.channels) {
        fprintf(stderr, "mhla %s: %s decodes latents of %d channels, %s makes %d\n", usage.verb, r->vae,
                w->codec.latents, r->model, w->info.channels);
        return CLI_FAILED;
    }
    const int code = same_weights(r->vae_weights, hash, r->vae);
    memcpy(r->vae_weights, hash, sizeof hash);
    return code;
}

/* How latents of this size are decoded; said before the work begins. */
static int settle_vae(sample_work *w) {
    char bytes[32];
    const mhla_sample_record *r = &w->record;
    if (w->vae == NULL) return -1;
    w->coding = (mhla_coding){.size = sizeof w->coding,
                              .height = r->height * w->codec.factor,
                              .width = r->width * w->codec.factor,
                              .memory = (size_t)memory};
    const mhla_status status = mhla_coding_settle(w->vae, &w->coding, 1);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (quiet) return -1;
    fprintf(stderr, "decoding: %s", text_bytes(bytes, sizeof bytes, (double)w->coding.peak));
    if (w->coding.tiles > 1) fprintf(stderr, ", %d tiles of %d pixels", w->coding.tiles, w->coding.tile);
    fprintf(stderr, "\n");
    return -1;
}

static int open_model(sample_work *w, mhla_context **context) {
    mhla_sample_record *r = &w->record;
    struct stat info;
    mhla_cpu_info machine = {.size = sizeof machine};
    w->info.size = sizeof w->info;
    mhla_status status = mhla_model_open_as(&w->model, model_path(r->model),
                                            &(mhla_open_desc){.size = sizeof(mhla_open_desc),
                                                              .storage = *r->dtype ? r->dtype : NULL,
                                                              .weights = *r->choice ? r->choice : NULL});
    if (status == MHLA_OK && threads) {
        status = mhla_context_create(context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status == MHLA_OK) mhla_model_set_context(w->model, *context);
    }
    if (status == MHLA_OK) status = mhla_model_query(w->model, &w->info);
    if (status == MHLA_OK) status = mhla_cpu_query(&machine);
    int none;
    if (status == MHLA_OK && mhla_model_class_find(w->model, "0", &none) != MHLA_OK)
        status = MHLA_EINVAL; /* no diffusion model */
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    w->codec = (mhla_codec_info){.size = sizeof w->codec, .outputs = w->info.channels, .factor = 1};
    const int code = r->vae ? open_vae(w, *context) : -1;
    if (code >= 0) return code;
    const int latents = w->codec.outputs != 1 && w->codec.outputs != 3;
    if (latents && !(out && is_array(out))) {
        fprintf(stderr,
                "mhla %s: %s makes latents of %d channels, not pixels (1 or 3): --vae names the autoencoder that "
                "decodes them, --out FILE.npy writes them as they are\n",
                usage.verb, r->model, w->info.channels);
        return CLI_FAILED;
    }
    char hash[65];
    status = mhla_model_hash(w->model, hash);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (same_weights(r->weights, hash, r->model) >= 0) return CLI_FAILED;
    memcpy(r->weights, hash, sizeof hash);
    snprintf(r->version, sizeof r->version, "%s", mhla_version());
    snprintf(r->isa, sizeof r->isa, "%s", machine.isa);
    /* which weights were taken is part of how an image was made */
    const char *file = w->info.weights ? strrchr(w->info.weights, '/') : NULL;
    if (stat(model_path(r->model), &info) == 0 && S_ISDIR(info.st_mode) && file)
        snprintf(r->choice, sizeof r->choice, "%s", strcmp(file, "/ema.safetensors") == 0 ? "ema" : "raw");
    return -1;
}

/* ---- Making a picture again ---- */

static int read_like(sample_work *w, mhla_picture *original) {
    mhla_status status = mhla_picture_read(original, like);
    if (status == MHLA_OK) status = mhla_sample_record_read(&w->record, original->text, like);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    struct stat info;
    if (model == NULL && stat(w->record.model ? model_path(w->record.model) : "", &info) != 0) {
        fprintf(stderr, "mhla %s: %s was made with the model %s, which is not there: name it with --model\n",
                usage.verb, like, w->record.model ? w->record.model : "");
        return CLI_FAILED;
    }
    if (model) {
        free(w->record.model);
        w->record.model = strdup(model);
    }
    if (vae) {
        free(w->record.vae);
        w->record.vae = strdup(vae);
    }
    animate = w->record.animated > 0 && w->record.frames == 0;
    return -1;
}

static int compare(const mhla_picture *original, const char *path, const mhla_sample_record *was, const char *isa) {
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
        fprintf(stderr, "mhla %s: %lld of %lld pixels of %s are others than those of %s", usage.verb, (long long)differ,
                (long long)n, path, like);
    else
        fprintf(stderr, "mhla %s: %s has another size than %s", usage.verb, path, like);
    if (strcmp(was->isa, isa) != 0)
        fprintf(stderr, ": it was made with the kernels of %s, these are %s's", was->isa, isa);
    fprintf(stderr, "\n");
    return CLI_FAILED;
}

/* ---- The result ---- */

static void print(const sample_work *w, int same) {
    const mhla_sample_record *r = &w->record;
    char time[32];
    const double evaluations = (double)(w->made * r->steps);
    if (!json && w->made == 0) {
        printf("%s: all %lld images were there\n", w->out, (long long)w->kept);
        return;
    }
    if (!json) {
        printf("%s: ", w->out);
        if (w->folder && w->kept) printf("%lld images were there, ", (long long)w->kept);
        printf("%lld %s%s of ", (long long)w->made, r->frames ? "clip" : "image", w->made == 1 ? "" : "s");
        if (r->frames) printf("%d frames of ", r->frames);
        printf("%d x %d, %s, %d step%s, guidance %g, %s", w->codec.factor * r->width, w->codec.factor * r->height,
               r->method, r->steps, r->steps == 1 ? "" : "s", r->guidance, text_time(time, sizeof time, w->seconds));
        printf(" (%s a step of an image)\n", text_time(time, sizeof time, w->seconds / evaluations));
        if (same) printf("%s: the same pixels as %s\n", w->out, like);
        return;
    }
    json_put_open(NULL, '{');
    json_put_text("out", w->out);
    json_put_text("model", r->model);
    json_put_text("weights", r->weights);
    json_put_text("dtype", *r->dtype ? r->dtype : "float32");
    json_put_int("images", r->images);
    json_put_int("made", w->made);
    json_put_int("width", (int64_t)w->codec.factor * r->width);
    json_put_int("height", (int64_t)w->codec.factor * r->height);
    if (r->frames) json_put_int("frames", r->frames);
    json_put_int("channels", w->codec.outputs);
    if (r->vae) json_put_text("vae", r->vae);
    json_put_text("sampler", r->method);
    json_put_int("steps", r->steps);
    json_put_real("guidance", r->guidance);
    json_put_int("guided_channels", r->guided_channels);
    json_put_real("eta", r->eta);
    json_put_real("shift", r->shift);
    json_put_bool("clip", r->clip);
    json_put_int("batch", w->batch);
    json_put_real("seconds", w->seconds);
    json_put_real("seconds_per_step", w->made ? w->seconds / evaluations : NAN);
    if (like) json_put_bool("same_pixels", same);
    if (w->folder) {
        json_put_open("files", '[');
        for (int64_t i = 0; i < r->images; i++) {
            char path[4096];
            size_t length;
            if (sample_path(w, i, path, &length)) json_put_text(NULL, path);
        }
        json_put_close(']');
    }
    json_put_close('}');
}

static int run(sample_work *w, mhla_picture *original, mhla_context **context) {
    mhla_sample_record *r = &w->record;
    mhla_sample_record was = {.size = sizeof was};
    static char again[4096];
    int code = -1, none;
    if (like) {
        code = read_like(w, original);
        snprintf(was.isa, sizeof was.isa, "%s", r->isa);
    } else {
        r->model = strdup(model);
        r->vae = vae ? strdup(vae) : NULL;
        snprintf(r->choice, sizeof r->choice, "%s", weights ? weights : "");
        snprintf(r->dtype, sizeof r->dtype, "%s", dtype ? dtype : "");
    }
    if (code < 0 && (r->model == NULL || (vae && r->vae == NULL))) code = cli_failed(usage.verb, MHLA_ENOMEM);
    if (code < 0) code = open_model(w, context);
    if (code < 0 && !like) {
        code = list_images(w);
        if (code < 0 && w->info.frames && animate)
            code = cli_wrong(usage.verb, "--animate shows the steps of images: %s makes clips", model);
        if (code < 0 && frames && w->info.frames == 0)
            code = cli_wrong(usage.verb, "--frames is %lld: %s makes images", (long long)frames, model);
        r->guidance = guidance > 0.0                                              ? guidance
                      : mhla_model_class_find(w->model, "none", &none) == MHLA_OK ? usual_guidance
                                                                                  : 1.0;
        r->guided_channels = (int)channels;
        r->steps = (int)steps;
        r->eta = eta;
        r->shift = shift;
        r->clip = !no_clip && !w->vae && (w->info.channels == 1 || w->info.channels == 3);
        r->frames = (int)frames;
        r->width = size.axes ? size.size[0] : 0;
        r->height = size.axes ? size.size[size.axes - 1] : 0;
        if (r->width % w->codec.factor || r->height % w->codec.factor)
            code = cli_wrong(usage.verb, "--size is %dx%d: the autoencoder makes multiples of %d", r->width, r->height,
                             w->codec.factor);
        r->width /= w->codec.factor;
        r->height /= w->codec.factor;
    }
    if (code >= 0) return code;
    const mhla_status status = settle(w, like ? r->method : sampler);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    code = settle_vae(w);
    if (code >= 0) return code;
    if (!quiet &&
        (r->frames != w->info.frames || (r->frames && (r->height != w->info.height || r->width != w->info.width))))
        fprintf(stderr, "trained on clips of %d frames of %d x %d: others may be worse\n", w->info.frames,
                w->info.width, w->info.height);
    const char *name = like && strrchr(like, '/') ? strrchr(like, '/') + 1 : like;
    if (like)
        snprintf(again, sizeof again, "%.*s-again.png", (int)(is_png(name) ? strlen(name) - 4 : strlen(name)), name);
    w->out = out ? out : like ? again : "samples.png";
    w->array = is_array(w->out);
    w->folder = !is_png(w->out) && !w->array;
    w->animate = animate;
    w->quiet = quiet;
    if (!cli_writable(w->out) && !(w->folder && errno == EISDIR && access(w->out, W_OK | X_OK) == 0)) {
        fprintf(stderr, "mhla %s: %s: cannot be written: %s\n", usage.verb, w->out, strerror(errno));
        return CLI_FAILED;
    }
    code = sample_run(w);
    if (code != CLI_OK) return code;
    if (like) code = compare(original, w->out, &was, r->isa);
    print(w, like && code == CLI_OK);
    return code;
}

int cmd_sample(int argc, char **argv) {
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code < 0) code = refuse();
    if (code >= 0) return code;
    sample_work w = {.verb = usage.verb, .record = {.size = sizeof w.record}};
    mhla_picture original = {.size = sizeof original};
    mhla_context *context = NULL;
    code = run(&w, &original, &context);
    mhla_picture_free(&original);
    mhla_sample_record_free(&w.record);
    mhla_model_free(w.model);
    mhla_model_free(w.vae);
    mhla_context_free(context);
    return code;
}
