/* mhla sample with a pipeline: prompts, the components and what they report, one file or a folder of them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sample.h"
#include "sample_files.h"
#include "speak.h"

static const char verb[] = "sample";
enum { IMAGES_MOST = 1000000, GROUP = 16 }; /* images of a folder that go through the components together */

typedef struct work {
    mhla_pipeline *pipeline;
    mhla_pipeline_info info;
    mhla_make_desc desc; /* of all images, settled */
    mhla_made_info was;  /* of the image of --like */
    int columns;
    const char **prompts;
    uint64_t *seeds;
    char *lines; /* the file of prompts */
    int prompt_count;
    sample_files files;
    char state[4096], preview[4096];
    int64_t made, kept;
    double seconds;
} work;

int sample_is_pipeline(void) {
    const sample_options *g = &sample_given;
    return g->prompt || g->prompts || g->transformer || (g->model && mhla_pipeline_is(model_path(g->model)));
}

/* ---- What is asked for ---- */

/* Prompts of a file, one a line; empty lines are none. -1, or the code to exit with. */
static int read_prompts(work *w, const char ***list) {
    size_t size;
    char *bytes = cli_read_all(verb, sample_given.prompts, &size);
    if (bytes == NULL) return CLI_FAILED;
    w->lines = realloc(bytes, size + 1);
    if (w->lines == NULL) {
        free(bytes);
        return cli_failed(verb, MHLA_ENOMEM);
    }
    w->lines[size] = '\0';
    if (strlen(w->lines) < size) return cli_wrong(verb, "%s: not a file of text", sample_given.prompts);
    int most = 1;
    for (const char *c = w->lines; *c; c++) most += *c == '\n';
    *list = calloc((size_t)most, sizeof **list);
    if (*list == NULL) return cli_failed(verb, MHLA_ENOMEM);
    for (char *line = strtok(w->lines, "\r\n"); line; line = strtok(NULL, "\r\n"))
        if (line[strspn(line, " \t")]) (*list)[w->prompt_count++] = line;
    if (w->prompt_count == 0) return cli_wrong(verb, "%s: no prompts in this file", sample_given.prompts);
    return -1;
}

/* The list of images: prompt by prompt, seed by seed. */
static int list_images(work *w) {
    const sample_options *g = &sample_given;
    const char *one[] = {g->prompt}, **list = one;
    int code = -1;
    if (g->prompt && g->prompts) return cli_wrong(verb, "--prompt and --prompts: expected one of them");
    if (g->prompt == NULL && g->prompts == NULL) return cli_wrong(verb, "--prompt is missing");
    if (g->prompts)
        code = read_prompts(w, &list);
    else
        w->prompt_count = 1;
    if (code < 0 && w->prompt_count * g->count > IMAGES_MOST)
        code = cli_wrong(verb, "more than %d images", IMAGES_MOST);
    const int64_t n = w->desc.images = code < 0 ? w->prompt_count * g->count : 0;
    w->prompts = calloc((size_t)n + 1, sizeof *w->prompts);
    w->seeds = calloc((size_t)n + 1, sizeof *w->seeds);
    if (code < 0 && !(w->prompts && w->seeds)) code = cli_failed(verb, MHLA_ENOMEM);
    for (int64_t i = 0; code < 0 && i < n; i++) {
        w->prompts[i] = list[i / g->count];
        w->seeds[i] = (uint64_t)(g->seed + i % g->count);
    }
    if (list != one) free(list);
    w->columns = w->prompt_count > 1 && g->count > 1 ? (int)g->count : (int)ceil(sqrt((double)n));
    w->desc.prompts = w->prompts;
    w->desc.negative = g->negative;
    w->desc.seeds = w->seeds;
    return code;
}

static int open_pipeline(work *w, const mhla_made *made, mhla_context **context) {
    const sample_options *g = &sample_given;
    static char folder[4096]; /* model_path has one place for all names */
    mhla_pipeline_desc d = {.size = sizeof d};
    if (made) (void)mhla_made_pipeline(made, &d); /* its size is right */
    const char *model = g->model ? g->model : d.folder;
    if (model) snprintf(folder, sizeof folder, "%s", model_path(model));
    d.folder = model ? folder : NULL;
    if (g->transformer) d.transformer = g->transformer;
    if (g->vae) d.vae = g->vae;
    if (g->text_encoder) d.text_encoder = g->text_encoder;
    if (g->tokenizer) d.tokenizer = g->tokenizer;
    if (g->scheduler) d.scheduler = g->scheduler;
    if (g->dtype) d.storage = g->dtype;
    d.texts = g->texts;
    mhla_status status = MHLA_OK;
    if (g->threads)
        status = mhla_context_create(
            context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)g->threads});
    d.context = *context;
    if (status == MHLA_OK) status = mhla_pipeline_open(&w->pipeline, &d);
    w->info.size = sizeof w->info;
    if (status == MHLA_OK) status = mhla_pipeline_query(w->pipeline, &w->info);
    if (status != MHLA_OK) return cli_failed(verb, status);
    return made ? sample_same_weights(w->was.weights, w->info.weights, model ? model : d.transformer) : -1;
}

static int settle(work *w, const mhla_made *made) {
    const sample_options *g = &sample_given;
    mhla_make_desc *d = &w->desc;
    if (made) {
        (void)mhla_made_desc(made, d);
        w->columns = w->was.columns;
    } else {
        const int code = list_images(w);
        if (code >= 0) return code;
        d->method = g->sampler;
        d->steps = (int)g->steps;
        d->shift = g->shift;
        d->guidance = g->guidance > 0.0 ? g->guidance : 0.0;
        d->instruction = g->no_instruction ? "" : NULL;
        d->exact = g->exact;
        d->frames = (int)g->frames;
        sample_size(&d->height, &d->width, w->info.clips);
    }
    d->batch = (int)g->batch;
    if (g->memory) d->memory = (size_t)g->memory;
    d->preview = (int)g->preview;
    const mhla_status status = mhla_pipeline_settle(w->pipeline, d);
    return status == MHLA_OK ? -1 : cli_failed(verb, status);
}

/* ---- Beforehand ---- */

/* ", decoded exactly", or that the pixels are not quite those of the whole; "" of a model of pixels. */
static const char *decoded(char *text, size_t size, const work *w) {
    *text = '\0';
    if (w->desc.tiles > 1)
        snprintf(text, size, ", decoded in %d blended tiles of %d pixels", w->desc.tiles, w->desc.tile);
    else if (w->info.vae)
        snprintf(text, size, ", decoded exactly");
    return text;
}

static int dry_run(work *w) {
    static const char *const names[MHLA_COMPONENTS] = {"text encoder", "transformer", "autoencoder"};
    const char *paths[MHLA_COMPONENTS] = {w->info.text_encoder, w->info.transformer, w->info.vae};
    const int half = sample_given.dtype && strcmp(sample_given.dtype, "bfloat16") == 0;
    /* of what the machine can do, models reach about this share */
    const double rate = 0.6 * 1e9 * peak_settled(half ? MHLA_BF16 : MHLA_F32, NULL);
    double all = 0.0, most = 0.0;
    char text[3][32], how[64];
    if (sample_given.json) json_put_open(NULL, '{');
    if (sample_given.json) json_put_open("components", '[');
    for (int i = 0; i < MHLA_COMPONENTS; i++) {
        mhla_component_plan plan = {.size = sizeof plan};
        const mhla_status status = mhla_pipeline_plan(w->pipeline, (mhla_component)i, &plan, &w->desc);
        if (status != MHLA_OK) return cli_failed(verb, status);
        const double bytes = (double)plan.weights + (double)plan.work, seconds = 2.0 * plan.multiply_adds / rate;
        all += seconds;
        most = fmax(most, bytes);
        if (paths[i] == NULL) continue; /* a model of pixels has no autoencoder */
        if (sample_given.json) {
            json_put_open(NULL, '{');
            json_put_text("component", names[i]);
            json_put_text("path", paths[i]);
            json_put_int("parameters", plan.parameters);
            json_put_int("weight_bytes", (int64_t)plan.weights);
            json_put_int("work_bytes", (int64_t)plan.work);
            json_put_real("multiply_adds", plan.multiply_adds);
            json_put_real("seconds", seconds);
            json_put_close('}');
        } else if (i == MHLA_TEXT_ENCODER && plan.parameters == 0) {
            printf("%-13s not needed: the rows of all prompts are there\n", names[i]);
        } else {
            printf("%-13s %s of weights, %s of work, about %s%s  %s\n", names[i],
                   text_bytes(text[0], sizeof text[0], (double)plan.weights),
                   text_bytes(text[1], sizeof text[1], (double)plan.work), text_left(text[2], sizeof text[2], seconds),
                   i == MHLA_VAE ? decoded(how, sizeof how, w) : "", paths[i]);
        }
    }
    if (sample_given.json) {
        json_put_close(']');
        json_put_real("peak_bytes", most);
        json_put_real("seconds", all);
        json_put_close('}');
    } else {
        printf("%-13s %s of memory, about %s\n", "all", text_bytes(text[0], sizeof text[0], most),
               text_left(text[2], sizeof text[2], all));
    }
    return CLI_OK;
}

/* ---- Progress ---- */

static struct {
    int component, bar;
    double begun, shown;
    int64_t first; /* done when this began: a run that continues has steps behind it */
} at = {.component = -1};

static void clear_bar(void) {
    if (at.bar) fprintf(stderr, "\r\033[K");
    at.bar = 0;
}

static void show(const mhla_make_state *s) {
    static const char *const names[] = {"text encoder", "transformer", "autoencoder"};
    static const char *const units[] = {"texts", "steps", "parts"};
    const int terminal = isatty(STDERR_FILENO);
    const double now = now_seconds();
    if (sample_given.quiet) return;
    if ((int)s->component != at.component) {
        clear_bar();
        at.component = (int)s->component;
        at.begun = at.shown = now;
        at.first = s->done;
    }
    if (now - at.shown < (terminal ? 0.2 : 10.0)) return; /* what is over sooner is not worth a line */
    at.shown = now;
    char left[32];
    const double each = s->done > at.first ? (now - at.begun) / (double)(s->done - at.first) : NAN;
    text_left(left, sizeof left, each * (double)(s->all - s->done));
    fprintf(stderr, "%s%s: %lld of %lld %s, %s left%s", terminal ? "\r" : "", names[s->component], (long long)s->done,
            (long long)s->all, units[s->component], left, terminal ? "\033[K" : "\n");
    at.bar = terminal;
}

/* One image of those that are made together: its place in the whole list. */
typedef struct group {
    work *w;
    const int64_t *index; /* NULL: all of them */
    int failed;
} group;

static mhla_make_desc one_of(const work *w, int64_t i) {
    mhla_make_desc d = w->desc;
    d.images = 1;
    d.prompts += i;
    d.seeds += i;
    return d;
}

/* What an image of a folder says of itself; NULL, said why not. */
static char *text_of(const work *w, int64_t i) {
    char *text;
    const mhla_make_desc d = one_of(w, i);
    const mhla_status status = mhla_made_write(&text, w->pipeline, &d, 1);
    if (status != MHLA_OK) cli_failed(verb, status);
    return text;
}

static int on_report(void *user, const mhla_make_state *s) {
    group *g = user;
    work *w = g->w;
    if (s->note) {
        clear_bar();
        if (!sample_given.quiet) fprintf(stderr, "mhla %s: %s\n", verb, s->note);
    } else if (s->preview) {
        clear_bar();
        if (sample_files_preview(&w->files, w->preview, s->pixels) != MHLA_OK) cli_failed(verb, MHLA_EIO);
    } else if (s->pixels && g->index) {
        const int64_t i = g->index[s->image];
        char *text = text_of(w, i);
        clear_bar();
        if (text == NULL || sample_files_one(&w->files, i, w->seeds[i], s->pixels, text) != CLI_OK) g->failed = 1;
        free(text);
        w->made += !g->failed;
    } else if (s->pixels == NULL) {
        show(s);
    }
    return g->failed || speak_interrupted != 0;
}

/* ---- One file ---- */

static int run_file(work *w) {
    const mhla_make_desc *d = &w->desc;
    group g = {.w = w};
    struct stat info;
    int stopped = 0;
    mhla_make_desc desc = *d;
    if (!w->files.standard) {
        if (snprintf(w->state, sizeof w->state, "%s.state", w->files.out) >= (int)sizeof w->state)
            return cli_wrong(verb, "--out is too long");
        desc.state = w->state;
        if (stat(w->state, &info) == 0 && !sample_given.resume) {
            fprintf(stderr, "mhla %s: %s exists, from a run that was stopped: --resume resumes it\n", verb, w->state);
            return CLI_FAILED;
        }
    }
    const size_t each = sample_files_each(&w->files);
    float *pixels = malloc((size_t)d->images * each * sizeof *pixels);
    char *text = NULL;
    desc.report = on_report;
    desc.user = &g;
    mhla_status status = pixels ? mhla_made_write(&text, w->pipeline, d, w->columns) : MHLA_ENOMEM;
    if (status == MHLA_OK) status = mhla_pipeline_make(w->pipeline, pixels, &desc, &stopped);
    clear_bar();
    if (status == MHLA_OK && !stopped) status = sample_files_all(&w->files, pixels, d->images, w->columns, text);
    free(pixels);
    free(text);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (stopped) {
        fprintf(stderr, "mhla %s: stopped; %s\n", verb,
                stat(w->state, &info) == 0 ? "the same command with --resume resumes it" : "nothing is written");
        return interrupt_code();
    }
    unlink(w->state);
    unlink(w->preview);
    w->made = d->images;
    return CLI_OK;
}

/* ---- A folder ---- */

static int run_folder(work *w) {
    int64_t *missing = calloc((size_t)w->desc.images + 1, sizeof *missing), count = 0;
    int stopped = 0, code = missing ? -1 : cli_failed(verb, MHLA_ENOMEM);
    /* a clip takes hours: each is made alone, with its state beside it */
    const int together = w->desc.frames ? 1 : GROUP;
    for (int64_t i = 0; i < w->desc.images && code < 0; i++) {
        char *text = text_of(w, i);
        const int there = text ? sample_files_there(&w->files, i, w->seeds[i], text) : -1;
        free(text);
        if (there < 0) code = CLI_FAILED;
        if (there == 0) missing[count++] = i;
    }
    w->kept = w->desc.images - count;
    for (int64_t first = 0; first < count && code < 0 && !stopped; first += together) {
        const char *prompts[GROUP];
        uint64_t seeds[GROUP];
        group g = {.w = w, .index = missing + first};
        mhla_make_desc d = w->desc;
        d.images = count - first < together ? count - first : together;
        if (w->desc.frames && !sample_files_state(&w->files, w->state, g.index[0], w->seeds[g.index[0]])) {
            code = CLI_FAILED;
            break;
        }
        if (w->desc.frames) d.state = w->state;
        for (int64_t k = 0; k < d.images; k++) {
            prompts[k] = w->prompts[g.index[k]];
            seeds[k] = w->seeds[g.index[k]];
        }
        d.prompts = prompts;
        d.seeds = seeds;
        d.report = on_report;
        d.user = &g;
        at.component = -1;
        const mhla_status status = mhla_pipeline_make(w->pipeline, NULL, &d, &stopped);
        clear_bar();
        if (status != MHLA_OK || g.failed) code = g.failed ? CLI_FAILED : cli_failed(verb, status);
        if (code < 0 && !stopped && d.state) unlink(d.state);
    }
    free(missing);
    unlink(w->preview);
    if (code >= 0) return code;
    if (!stopped) return CLI_OK;
    fprintf(stderr, "mhla %s: stopped; %lld of %lld images are there. The same command resumes.\n", verb,
            (long long)(w->kept + w->made), (long long)w->desc.images);
    return interrupt_code();
}

/* ---- The result ---- */

static void print(const work *w, int same) {
    const mhla_make_desc *d = &w->desc;
    char time[32], how[64];
    if (sample_given.json) {
        json_put_open(NULL, '{');
        json_put_text("out", w->files.out);
        json_put_text("pipeline", w->info.name);
        json_put_text("transformer", w->info.transformer);
        json_put_text("text_encoder", w->info.text_encoder);
        if (w->info.vae) json_put_text("vae", w->info.vae);
        json_put_text("weights", w->info.weights);
        json_put_int("images", d->images);
        json_put_int("made", w->made);
        json_put_int("width", d->width);
        json_put_int("height", d->height);
        if (d->frames) json_put_int("frames", d->frames);
        json_put_text("sampler", d->method);
        json_put_int("steps", d->steps);
        json_put_real("shift", d->shift);
        json_put_real("guidance", d->guidance);
        json_put_int("tiles", d->tiles);
        if (d->tiles > 1) json_put_int("tile", d->tile);
        json_put_real("seconds", w->seconds);
        if (sample_given.like) json_put_bool("same_pixels", same);
        json_put_close('}');
        return;
    }
    FILE *to = w->files.standard ? stderr : stdout;
    fprintf(to, "%s: ", w->files.out);
    if (w->made == 0) {
        fprintf(to, "all %lld images were there\n", (long long)w->kept);
        return;
    }
    if (w->kept) fprintf(to, "%lld images were there, ", (long long)w->kept);
    fprintf(to, "%lld %s%s of ", (long long)w->made, d->frames ? "clip" : "image", w->made == 1 ? "" : "s");
    if (d->frames) fprintf(to, "%d frames of ", d->frames);
    fprintf(to, "%d x %d, %s, %d step%s, guidance %g%s, %s\n", d->frames ? d->height : d->width,
            d->frames ? d->width : d->height, d->method, d->steps, d->steps == 1 ? "" : "s", d->guidance,
            decoded(how, sizeof how, w), text_time(time, sizeof time, w->seconds));
    if (same) fprintf(to, "%s: the same pixels as %s\n", w->files.out, sample_given.like);
}

static int run(work *w, const mhla_picture *original, const mhla_made *made, mhla_context **context) {
    mhla_cpu_info machine = {.size = sizeof machine};
    const sample_options *g = &sample_given;
    int code = open_pipeline(w, made, context);
    if (code < 0) code = settle(w, made);
    if (code >= 0) return code;
    if (g->dry_run) return dry_run(w);
    code = sample_files_open(&w->files, g->out ? g->out : g->like ? sample_again() : "samples.png", &w->info, &w->desc);
    if (code >= 0) return code;
    w->files.only = w->was.frame;
    if (!w->files.standard && !sample_writable(w->files.out, w->files.kind == SAMPLE_FOLDER)) return CLI_FAILED;
    if (g->preview) sample_files_preview_path(&w->files, w->preview);
    speak_watch();
    const double begun = now_seconds();
    code = w->files.kind == SAMPLE_FOLDER ? run_folder(w) : run_file(w);
    w->seconds = now_seconds() - begun;
    if (code == CLI_OK && g->like && mhla_cpu_query(&machine) == MHLA_OK)
        code = sample_compare(original, w->files.out, w->was.isa, machine.isa);
    if (code == CLI_OK) print(w, g->like != NULL);
    return code;
}

int sample_pipeline(const mhla_picture *original, const mhla_made *made) {
    work w = {.desc = {.size = sizeof w.desc}, .was = {.size = sizeof w.was}};
    mhla_context *context = NULL;
    if (made) (void)mhla_made_query(made, &w.was);
    const int code = run(&w, original, made, &context);
    mhla_pipeline_free(w.pipeline);
    mhla_context_free(context);
    free(w.prompts);
    free(w.seeds);
    free(w.lines);
    return code;
}
