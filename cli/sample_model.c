/* mhla sample with a model that takes classes: its classes and settings, its autoencoder, making an image again, what is printed. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sample.h"

enum { IMAGES_MOST = 1000000, MANY_CLASSES = 100 };
static const double usual_guidance = 2.0;
static const char verb[] = "sample";

/* The class of the `length` letters at `text`, without spaces behind them. */
static mhla_status find_class(const sample_work *w, const char *text, size_t length, int *class_) {
    char name[256];
    while (length > 0 && text[length - 1] == ' ') length--;
    snprintf(name, sizeof name, "%.*s", (int)(length < 255 ? length : 255), text);
    return mhla_model_class_find(w->model, name, class_);
}

/* The numbers of the classes in --classes, *list [*n]. -1, or the code to exit with. */
static int read_classes(const sample_work *w, int **list, int *n) {
    const char *text = sample_given.classes ? sample_given.classes : "all";
    const int all = strcmp(text, "all") == 0;
    int room = all ? w->info.classes : 1;
    for (const char *c = text; *c; c++) room += *c == ',';
    *n = 0;
    *list = calloc((size_t)room, sizeof **list);
    if (*list == NULL) return cli_failed(verb, MHLA_ENOMEM);
    if (all && sample_given.classes == NULL && w->info.classes > MANY_CLASSES)
        return cli_wrong(verb, "--classes is missing: the model has %d", w->info.classes);
    for (int i = 0; all && i < w->info.classes; i++) (*list)[(*n)++] = i;
    for (const char *at = text; !all; at++) {
        at += strspn(at, " ");
        const size_t first = strcspn(at, ",");
        size_t end = first;
        mhla_status status = find_class(w, at, end, &(*list)[*n]);
        while (status != MHLA_OK && at[end] != '\0') { /* the name of a class may contain commas */
            end += 1 + strcspn(at + end + 1, ",");
            status = find_class(w, at, end, &(*list)[*n]);
        }
        if (first == 0 && status != MHLA_OK) return cli_wrong(verb, "--classes is \"%s\": a name is missing", text);
        if (status != MHLA_OK) return cli_failed(verb, find_class(w, at, first, &(*list)[*n]));
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
    if (code < 0 && (int64_t)n * sample_given.count > IMAGES_MOST)
        code = cli_wrong(verb, "more than %d images", IMAGES_MOST);
    if (code < 0) {
        r->images = n * sample_given.count;
        r->classes = calloc((size_t)r->images + 1, sizeof *r->classes);
        r->seeds = calloc((size_t)r->images + 1, sizeof *r->seeds);
        if (r->classes == NULL || r->seeds == NULL) code = cli_failed(verb, MHLA_ENOMEM);
    }
    for (int64_t i = 0; code < 0 && i < r->images; i++) {
        r->classes[i] = list[i / sample_given.count];
        r->seeds[i] = (uint64_t)(sample_given.seed + i % sample_given.count);
    }
    r->columns = sample_given.count > 1 ? (int)sample_given.count
                                        : (int)ceil(sqrt((double)n)); /* a class per row, unless there is one of each */
    free(list);
    return code;
}

/* Names every setting, also those that were left to the model. */
static mhla_status settle(sample_work *w, const char *method) {
    mhla_sample_record *r = &w->record;
    mhla_sample_desc d = sample_desc(r);
    d.method = method;
    d.batch = (int)sample_given.batch;
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

static int open_vae(sample_work *w, mhla_context *context) {
    mhla_sample_record *r = &w->record;
    char hash[65];
    const int half = strcmp(r->dtype, "bfloat16") == 0; /* convolutions have no q8_0 form */
    mhla_status status =
        mhla_model_open_as(&w->vae, model_path(r->vae),
                           &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = half ? "bfloat16" : NULL});
    if (status == MHLA_OK && context) mhla_model_set_context(w->vae, context);
    if (status == MHLA_OK) status = mhla_codec_query(w->vae, &w->codec);
    if (status == MHLA_OK) status = mhla_model_hash(w->vae, hash);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (w->codec.latents != w->info.channels) {
        fprintf(stderr, "mhla %s: %s decodes latents of %d channels, %s makes %d\n", verb, r->vae, w->codec.latents,
                r->model, w->info.channels);
        return CLI_FAILED;
    }
    const char *own = mhla_model_vae(w->model);
    if (*own && strcmp(own, hash) != 0 && !half) /* not an error: decoders are trained further alone */
        fprintf(stderr, "mhla %s: %s was trained on latents of another autoencoder: SHA-256 %.12s, not %.12s of %s\n",
                verb, r->model, own, hash, r->vae);
    const int code = sample_same_weights(r->vae_weights, hash, r->vae);
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
                              .memory = (size_t)sample_given.memory};
    if (r->frames) w->coding.frames = w->codec.frames ? 1 + (r->frames - 1) * w->codec.frames : r->frames;
    const mhla_status status = mhla_coding_settle(w->vae, &w->coding, 1);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (sample_given.quiet || mhla_rank() > 0) return -1;
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
    if (status == MHLA_OK && sample_given.threads) {
        status = mhla_context_create(
            context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)sample_given.threads});
        if (status == MHLA_OK) mhla_model_set_context(w->model, *context);
    }
    if (status == MHLA_OK) status = mhla_model_query(w->model, &w->info);
    if (status == MHLA_OK) status = mhla_cpu_query(&machine);
    int none;
    if (status == MHLA_OK && mhla_model_class_find(w->model, "0", &none) != MHLA_OK)
        status = MHLA_EINVAL; /* no diffusion model */
    if (status != MHLA_OK) return cli_failed(verb, status);
    w->codec = (mhla_codec_info){.size = sizeof w->codec, .outputs = w->info.channels, .factor = 1};
    const int code = r->vae ? open_vae(w, *context) : -1;
    if (code >= 0) return code;
    const int latents = w->codec.outputs != 1 && w->codec.outputs != 3;
    if (latents && !(sample_given.out && sample_ends(sample_given.out, ".npy"))) {
        fprintf(stderr,
                "mhla %s: %s makes latents of %d channels, not pixels (1 or 3): --vae names the autoencoder that "
                "decodes them, --out FILE.npy writes them as they are\n",
                verb, r->model, w->info.channels);
        return CLI_FAILED;
    }
    char hash[65];
    status = mhla_model_hash(w->model, hash);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (sample_same_weights(r->weights, hash, r->model) >= 0) return CLI_FAILED;
    memcpy(r->weights, hash, sizeof hash);
    status = mhla_ranks_same("SHA-256 of the model", hash);
    if (status == MHLA_OK && r->vae) status = mhla_ranks_same("SHA-256 of the autoencoder", r->vae_weights);
    if (status != MHLA_OK) return cli_failed(verb, status);
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
    mhla_status status = mhla_picture_read(original, sample_given.like);
    if (status == MHLA_OK) status = mhla_sample_record_read(&w->record, original->text, sample_given.like);
    if (status != MHLA_OK) return cli_failed(verb, status);
    struct stat info;
    if (sample_given.model == NULL && stat(w->record.model ? model_path(w->record.model) : "", &info) != 0) {
        fprintf(stderr, "mhla %s: %s was made with the model %s, which is missing: give its path with --model\n", verb,
                sample_given.like, w->record.model ? w->record.model : "");
        return CLI_FAILED;
    }
    if (sample_given.model) {
        free(w->record.model);
        w->record.model = strdup(sample_given.model);
    }
    if (sample_given.vae) {
        free(w->record.vae);
        w->record.vae = strdup(sample_given.vae);
    }
    sample_given.animate = w->record.animated > 0 && w->record.frames == 0;
    return -1;
}

/* ---- The result ---- */

static void print(const sample_work *w, int same) {
    const mhla_sample_record *r = &w->record;
    char time[32];
    const double evaluations = (double)(w->made * r->steps);
    if (!sample_given.json && w->made == 0) {
        printf("%s: all %lld images were there\n", w->out, (long long)w->kept);
        return;
    }
    if (!sample_given.json) {
        FILE *to = strcmp(w->out, "-") == 0 ? stderr : stdout;
        fprintf(to, "%s: ", w->out);
        if (w->folder && w->kept) fprintf(to, "%lld images were there, ", (long long)w->kept);
        fprintf(to, "%lld %s%s of ", (long long)w->made, r->frames ? "clip" : "image", w->made == 1 ? "" : "s");
        if (r->frames) fprintf(to, "%d frames of ", w->vae ? w->coding.frames : r->frames);
        fprintf(to, "%d x %d, %s, %d step%s, guidance %g, %s", w->codec.factor * (r->frames ? r->height : r->width),
                w->codec.factor * (r->frames ? r->width : r->height), r->method, r->steps, r->steps == 1 ? "" : "s",
                r->guidance, text_time(time, sizeof time, w->seconds));
        fprintf(to, " (%s a step of an image)\n", text_time(time, sizeof time, w->seconds / evaluations));
        if (same) fprintf(to, "%s: the same pixels as %s\n", w->out, sample_given.like);
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
    if (sample_given.like) json_put_bool("same_pixels", same);
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
    char was[sizeof r->isa] = "";
    int code = -1, none;
    if (sample_given.like) {
        code = read_like(w, original);
        snprintf(was, sizeof was, "%s", r->isa);
    } else {
        r->model = strdup(sample_given.model);
        r->vae = sample_given.vae ? strdup(sample_given.vae) : NULL;
        snprintf(r->choice, sizeof r->choice, "%s", sample_given.weights ? sample_given.weights : "");
        snprintf(r->dtype, sizeof r->dtype, "%s", sample_given.dtype ? sample_given.dtype : "");
    }
    if (code < 0 && (r->model == NULL || (sample_given.vae && r->vae == NULL))) code = cli_failed(verb, MHLA_ENOMEM);
    if (code < 0) code = open_model(w, context);
    if (code < 0 && !sample_given.like) {
        code = list_images(w);
        if (code < 0 && w->info.frames && sample_given.animate)
            code = cli_wrong(verb, "--animate shows the steps of images: %s makes clips", sample_given.model);
        if (code < 0 && sample_given.frames && w->info.frames == 0)
            code = cli_wrong(verb, "--frames is %lld: %s makes images", (long long)sample_given.frames,
                             sample_given.model);
        r->guidance = sample_given.guidance > 0.0                                 ? sample_given.guidance
                      : mhla_model_class_find(w->model, "none", &none) == MHLA_OK ? usual_guidance
                                                                                  : 1.0;
        r->guided_channels = (int)sample_given.channels;
        r->steps = (int)sample_given.steps;
        r->eta = sample_given.eta;
        r->shift = sample_given.shift;
        r->clip = !sample_given.no_clip && !w->vae && (w->info.channels == 1 || w->info.channels == 3);
        r->frames = (int)sample_given.frames;
        sample_size(&r->height, &r->width, w->info.frames > 0);
        if (r->width % w->codec.factor || r->height % w->codec.factor)
            code = cli_wrong(verb, "--size is %dx%d: the autoencoder makes multiples of %d", sample_given.size.size[0],
                             sample_given.size.size[sample_given.size.axes - 1], w->codec.factor);
        r->width /= w->codec.factor;
        r->height /= w->codec.factor;
    }
    if (code >= 0) return code;
    const mhla_status status = settle(w, sample_given.like ? r->method : sample_given.sampler);
    if (status != MHLA_OK) return cli_failed(verb, status);
    code = settle_vae(w);
    if (code >= 0) return code;
    if (!sample_given.quiet && mhla_rank() == 0 &&
        (r->frames != w->info.frames || (r->frames && (r->height != w->info.height || r->width != w->info.width))))
        fprintf(stderr, "trained on clips of %d frames of %d x %d: other sizes may look worse\n", w->info.frames,
                w->info.height, w->info.width);
    w->out = sample_given.out ? sample_given.out : sample_given.like ? sample_again() : "samples.png";
    w->array = sample_ends(w->out, ".npy");
    const int standard = strcmp(w->out, "-") == 0;
    w->video = standard || sample_ends(w->out, ".y4m");
    if (w->video && (r->frames == 0 || sample_given.animate))
        return cli_wrong(verb, "--out is \"%s\": that is for clips, and the model makes images", w->out);
    if (w->video && w->codec.outputs != 3 && w->codec.outputs != 1)
        return cli_wrong(verb, "--out is \"%s\": a video has 1 or 3 channels, the model makes %d", w->out,
                         w->codec.outputs);
    w->folder = !sample_is_picture(w->out) && !w->array && !w->video;
    w->animate = sample_given.animate;
    w->quiet = sample_given.quiet;
    if (!standard && (w->folder || mhla_rank() == 0) && !sample_writable(w->out, w->folder)) return CLI_FAILED;
    code = sample_run(w);
    if (code != CLI_OK || mhla_rank() > 0) return code;
    if (sample_given.like) code = sample_compare(original, w->out, was, r->isa);
    print(w, sample_given.like && code == CLI_OK);
    return code;
}

int sample_model(void) {
    sample_work w = {.verb = verb, .record = {.size = sizeof w.record}};
    mhla_picture original = {.size = sizeof original};
    mhla_context *context = NULL;
    const int code = run(&w, &original, &context);
    mhla_picture_free(&original);
    mhla_sample_record_free(&w.record);
    mhla_model_free(w.model);
    mhla_model_free(w.vae);
    mhla_context_free(context);
    return code;
}
