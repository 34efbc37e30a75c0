/* Sampling for `mhla sample`: progress, frames of animations, one grid or a folder of files. A folder is made batch by batch, and
 * existing images are kept, so that the same command resumes a stopped run. Several processes deal the images out:
 * each writes its own files, a grid is written by rank 0. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sample.h"
#include "speak.h"

enum { FRAMES_MOST = 60 };
static const double frames_seconds = 3.0, last_seconds = 2.0; /* an animation takes so long; its end is held */
static const double frames_bytes = 2e9, pixels_most = 8e7;

/* One call of the library: images first .. first+count-1 of the list `index`. */
typedef struct pass {
    sample_work *work;
    int64_t count, each; /* each: values of one image */
    int64_t before, all; /* evaluations done in passes before this one, and in all */
    int32_t *classes;    /* [count] */
    uint64_t *seeds;     /* [count] */
    float *images;       /* [count,each] */
    float *frames;       /* [frame,count,each] of the steps, or NULL */
    float *pixels;       /* what the autoencoder makes of some images or clips, or NULL */
    float *frame;        /* one frame of some clips, or NULL */
    int frame_count;
} pass;

/* ---- Progress ---- */

static double begun, shown;
static int bar;

static void clear_bar(void) {
    if (bar) fprintf(stderr, "\r\033[K");
    bar = 0;
}

static void show(const pass *p, const mhla_sample_state *s) {
    const int terminal = isatty(STDERR_FILENO);
    const double now = now_seconds();
    const int64_t done = p->before + s->done;
    if (p->work->quiet || mhla_rank() > 0 || (done < p->all && now - shown < (terminal ? 0.2 : 10.0)) ||
        (done == p->all && shown == begun))
        return;
    shown = now;
    char left[32], filled[21];
    text_left(left, sizeof left, (now - begun) * (double)(p->all - done) / (double)done);
    for (int i = 0; i < 20; i++) filled[i] = i < 20 * done / p->all ? '#' : '.';
    filled[20] = '\0';
    char which[64]; /* the images of a batch take their steps together */
    const long long first = p->before / s->steps + s->first + 1;
    if (s->count > 1)
        snprintf(which, sizeof which, "images %lld to %lld", first, first + (long long)s->count - 1);
    else
        snprintf(which, sizeof which, "image %lld", first);
    const double pace = (double)done / (now - begun);
    if (terminal)
        fprintf(stderr, "\r[%s] %3.0f %%  %s left  %s of %lld, step %d of %d, %.1f steps/s\033[K", filled,
                100.0 * (double)done / (double)p->all, left, which, (long long)(p->all / s->steps), s->step, s->steps,
                pace);
    else
        fprintf(stderr, "%s of %lld, step %d of %d, %s left, %.1f steps/s\n", which, (long long)(p->all / s->steps),
                s->step, s->steps, left, pace);
    bar = terminal;
}

/* The frame of an animation that shows this step, or -1; the last frame shows the last step. */
static int frame_of(int step, int steps) {
    const int frames = steps < FRAMES_MOST ? steps : FRAMES_MOST;
    const int at = (int)((int64_t)step * frames / steps);
    return step == steps || at != (int)((int64_t)(step - 1) * frames / steps) ? at - 1 : -1;
}

static int on_step(void *user, const mhla_sample_state *s) {
    pass *p = user;
    const int frame = p->frames ? frame_of(s->step, s->steps) : -1;
    if (frame >= 0)
        memcpy(p->frames + (frame * p->count + s->first) * p->each, s->x,
               (size_t)(s->count * p->each) * sizeof *p->frames);
    show(p, s);
    return speak_interrupted != 0;
}

/* ---- One pass ---- */

mhla_sample_desc sample_desc(const mhla_sample_record *r) {
    return (mhla_sample_desc){.size = sizeof(mhla_sample_desc),
                              .images = r->images,
                              .classes = r->classes,
                              .seeds = r->seeds,
                              .guidance = r->guidance,
                              .guided_channels = r->guided_channels,
                              .method = *r->method ? r->method : NULL,
                              .steps = r->steps,
                              .eta = r->eta,
                              .shift = r->shift,
                              .clip = r->clip,
                              .height = r->height,
                              .width = r->width,
                              .frames = r->frames};
}

static mhla_status open_pass(pass *p, sample_work *w, int64_t most) {
    const mhla_sample_record *r = &w->record;
    *p = (pass){.work = w, .each = (int64_t)w->info.channels * (r->frames ? r->frames : 1) * r->height * r->width};
    p->frame_count = r->steps < FRAMES_MOST ? r->steps : FRAMES_MOST;
    const double bytes = 4.0 * p->frame_count * (double)most * (double)p->each;
    if (w->animate && bytes > frames_bytes) {
        char text[32];
        fprintf(stderr,
                "mhla %s: --animate would keep %s of frames: fewer images, or a smaller --batch into a folder\n",
                w->verb, text_bytes(text, sizeof text, bytes));
        return MHLA_ERANGE;
    }
    p->classes = calloc((size_t)most, sizeof *p->classes);
    p->seeds = calloc((size_t)most, sizeof *p->seeds);
    p->images = calloc((size_t)(most * p->each), sizeof *p->images);
    if (w->animate) p->frames = calloc((size_t)(p->frame_count * most * p->each), sizeof *p->frames);
    if (p->classes && p->seeds && p->images && (p->frames || !w->animate)) return MHLA_OK;
    fprintf(stderr, "mhla %s: no memory for %lld images at a time\n", w->verb, (long long)most);
    return MHLA_ENOMEM;
}

static void close_pass(pass *p) {
    free(p->classes);
    free(p->seeds);
    free(p->images);
    free(p->frames);
    free(p->pixels);
    free(p->frame);
}

/* Frames of a clip as it is shown; 0: images. An autoencoder of clips makes several of one. */
static int shown_frames(const sample_work *w) {
    return w->vae && w->record.frames ? w->coding.frames : w->record.frames;
}

/* The pixels of count images of the model: themselves, or what the autoencoder makes of them. NULL: *status says why not. */
static const float *pixels_of(pass *p, const float *images, int64_t count, mhla_status *status) {
    const sample_work *w = p->work;
    if (w->vae == NULL) return images;
    const int64_t frames = w->coding.frames ? w->coding.frames : 1,
                  each = w->codec.outputs * frames * w->coding.height * w->coding.width;
    free(p->pixels);
    p->pixels = malloc((size_t)(count * each) * sizeof *p->pixels);
    *status = p->pixels ? mhla_model_decode(w->vae, p->pixels, images, count, &w->coding) : MHLA_ENOMEM;
    return *status == MHLA_OK ? p->pixels : NULL;
}

/* Images index[0..count-1] of the record. */
static mhla_status sample_pass(pass *p, const int64_t *index, int64_t count, int *stopped) {
    const mhla_sample_record *r = &p->work->record;
    p->count = count;
    for (int64_t i = 0; i < count; i++) {
        p->classes[i] = r->classes[index[i]];
        p->seeds[i] = r->seeds[index[i]];
    }
    mhla_sample_desc desc = sample_desc(r);
    desc.images = count;
    desc.classes = p->classes;
    desc.seeds = p->seeds;
    desc.batch = p->work->batch;
    desc.report = on_step;
    desc.user = p;
    const mhla_status status = mhla_model_sample(p->work->model, p->images, &desc, stopped);
    p->before += count * r->steps;
    if (status != MHLA_OK) {
        clear_bar();
        cli_failed(p->work->verb, status);
    }
    return status;
}

/* ---- Files ---- */

/* What is shown of some images as frame f: the image itself, a step on the way to it, or the frame of a clip. NULL: *status says why not. */
static const float *frame_of_images(pass *p, int64_t first, int64_t count, int f, mhla_status *status) {
    const sample_work *w = p->work;
    const int frames = shown_frames(w);
    const float *images = p->images + first * p->each;
    if (frames == 0)
        return pixels_of(p, p->frames ? p->frames + (f * p->count + first) * p->each : images, count, status);
    const float *clips = w->vae && f > 0 ? p->pixels : pixels_of(p, images, count, status); /* decoded with the first */
    const int64_t planes = count * w->codec.outputs,
                  pixels = (int64_t)w->record.height * w->record.width * w->codec.factor * w->codec.factor;
    if (clips == NULL) return NULL;
    free(p->frame);
    p->frame = malloc((size_t)(planes * pixels) * sizeof *p->frame);
    *status = p->frame ? MHLA_OK : MHLA_ENOMEM;
    for (int64_t i = 0; i < planes && p->frame; i++)
        memcpy(p->frame + i * pixels, clips + (i * frames + f) * pixels, (size_t)pixels * sizeof *clips);
    return p->frame;
}

/* Images first .. first+count-1 of the pass as one picture, with the text of `record`; frames where there are any. */
static mhla_status write_picture(pass *p, const char *path, int64_t first, int64_t count,
                                 const mhla_sample_record *record) {
    const int clip = shown_frames(p->work), frames = clip ? clip : p->frames ? p->frame_count : 1;
    mhla_picture *pictures = calloc((size_t)frames, sizeof *pictures);
    double *seconds = calloc((size_t)frames, sizeof *seconds);
    mhla_status status = pictures && seconds ? MHLA_OK : MHLA_ENOMEM;
    for (int f = 0; f < frames && status == MHLA_OK; f++) {
        pictures[f].size = sizeof *pictures;
        seconds[f] = clip ? MHLA_FRAME_SECONDS : f + 1 == frames ? last_seconds : frames_seconds / frames;
        const float *pixels = frame_of_images(p, first, count, f, &status);
        const int factor = p->work->codec.factor;
        if (pixels)
            status = mhla_picture_tile(&pictures[f], pixels, count, p->work->codec.outputs, factor * record->height,
                                       factor * record->width, record->columns);
    }
    if (status == MHLA_OK) status = mhla_sample_record_write(&pictures[frames - 1].text, record);
    if (status == MHLA_OK)
        status = p->work->video ? mhla_video_write(path, pictures, frames, MHLA_FRAME_SECONDS)
                                : mhla_picture_write(path, pictures, frames, seconds);
    if (status != MHLA_OK) {
        clear_bar();
        cli_failed(p->work->verb, status);
    }
    for (int f = 0; pictures && f < frames; f++) mhla_picture_free(&pictures[f]);
    free(pictures);
    free(seconds);
    return status;
}

static mhla_status write_array(pass *p) {
    const sample_work *w = p->work;
    mhla_status status = MHLA_OK;
    const float *pixels = pixels_of(p, p->images, p->count, &status);
    const int factor = w->codec.factor;
    if (pixels && w->record.frames)
        status = mhla_clips_write(w->out, pixels, p->count, w->codec.outputs, shown_frames(w),
                                  factor * w->record.height, factor * w->record.width);
    else if (pixels)
        status = mhla_images_write(w->out, pixels, p->count, w->codec.outputs, factor * w->record.height,
                                   factor * w->record.width);
    if (status != MHLA_OK) cli_failed(w->verb, status);
    return status;
}

/* Known before the work, not after it. */
static int grid_is_too_large(const sample_work *w) {
    const mhla_sample_record *r = &w->record;
    const int64_t columns = r->columns < r->images ? r->columns : r->images; /* a text may say any number */
    const int64_t rows = (r->images + columns - 1) / columns;
    const double factor = w->codec.factor;
    const double pixels = (double)columns * (factor * r->width + 2.0) * (double)rows * (factor * r->height + 2.0);
    if (pixels <= pixels_most) return 0;
    fprintf(stderr, "mhla %s: %lld images make a grid of %.0f million pixels, more than %.0f: let --out be a folder\n",
            w->verb, (long long)r->images, pixels / 1e6, pixels_most / 1e6);
    return 1;
}

/* Rows [count][each] of the own images become those of all [all][each], at all ranks. */
static mhla_status gather(float *rows, int64_t count, int64_t all, int64_t each) {
    for (int64_t i = count - 1; i >= 0; i--) {
        const int64_t to = mhla_rank() + i * mhla_ranks();
        if (to != i) memmove(rows + to * each, rows + i * each, (size_t)each * sizeof *rows);
    }
    return mhla_ranks_merge(rows, all, (size_t)each * sizeof *rows);
}

/* The images of the pass are those of all ranks, and so are their steps. */
static mhla_status gather_pass(pass *p, int64_t all, int *stopped) {
    const int ranks = mhla_ranks();
    const int64_t own = p->count;
    p->count = all;
    if (ranks == 1) return MHLA_OK;
    int32_t *stops = calloc((size_t)ranks, sizeof *stops);
    mhla_status status = mhla_ranks_agree(stops ? MHLA_OK : MHLA_ENOMEM);
    if (status == MHLA_OK) {
        stops[mhla_rank()] = *stopped;
        status = mhla_ranks_merge(stops, ranks, sizeof *stops);
    }
    for (int r = 0; r < ranks && status == MHLA_OK; r++) *stopped |= stops[r];
    free(stops);
    if (status == MHLA_OK && !*stopped) status = gather(p->images, own, all, p->each);
    for (int f = p->frame_count - 1; f >= 0 && p->frames && status == MHLA_OK && !*stopped; f--) {
        memmove(p->frames + f * all * p->each, p->frames + f * own * p->each,
                (size_t)(own * p->each) * sizeof *p->frames);
        status = gather(p->frames + f * all * p->each, own, all, p->each);
    }
    if (status != MHLA_OK) cli_failed(p->work->verb, status);
    return status;
}

static int run_grid(sample_work *w) {
    if (!w->array && grid_is_too_large(w)) return CLI_FAILED;
    pass p = {0};
    const int64_t all = w->record.images;
    int64_t own = 0;
    int stopped = 0;
    int64_t *index = calloc((size_t)all, sizeof *index);
    mhla_status status = index ? open_pass(&p, w, all) : MHLA_ENOMEM;
    if (index == NULL) cli_failed(w->verb, status);
    if (status == MHLA_OK) {
        for (int64_t i = mhla_rank(); i < all; i += mhla_ranks()) index[own++] = i;
        p.all = own * w->record.steps;
        if (own) status = sample_pass(&p, index, own, &stopped);
        if (status == MHLA_OK) status = gather_pass(&p, all, &stopped);
        clear_bar();
        if (status == MHLA_OK && !stopped && mhla_rank() == 0) {
            w->record.animated = w->record.frames ? shown_frames(w) : p.frames ? p.frame_count : 0;
            status = w->array ? write_array(&p) : write_picture(&p, w->out, 0, w->record.images, &w->record);
        }
        if (status == MHLA_OK && !stopped) w->made = w->record.images;
    }
    close_pass(&p);
    free(index);
    if (stopped && mhla_rank() == 0) fprintf(stderr, "mhla %s: stopped; nothing is written\n", w->verb);
    return status != MHLA_OK ? CLI_FAILED : stopped ? interrupt_code() : CLI_OK;
}

int sample_path(const sample_work *w, int64_t i, char path[4096], size_t *folder_length) {
    const int c = w->record.classes[i], none = c == w->info.classes;
    const char *name = none ? "none" : mhla_model_class_name(w->model, c);
    int digits = 1;
    for (int most = w->info.classes - 1; most >= 10; most /= 10) digits++;
    char class_[256] = "none";
    if (!none) {
        snprintf(class_, sizeof class_, "%0*d%s%s", digits, c, name && *name ? "-" : "", name ? name : "");
        for (char *at = class_; *at;) { /* no way out of the folder, nothing that shells or terminals mind */
            const int length = text_character(at, strlen(at)), n = length ? length : 1;
            const int plain = n > 1 || isalnum((unsigned char)*at) || strchr("-_.+", *at);
            if (length == 0 || text_hidden(at, length) || !plain) memset(at, '_', (size_t)n);
            at += n;
        }
    }
    const int n = snprintf(path, 4096, "%s/%s", w->out, class_);
    if (n < 0 || n > 4000) return 0;
    *folder_length = (size_t)n;
    snprintf(path + n, 4096 - (size_t)n, "/%06llu.png", (unsigned long long)w->record.seeds[i]);
    return 1;
}

/* The record of one image of a folder. The lists are borrowed. */
static mhla_sample_record one_of(const sample_work *w, int64_t i) {
    mhla_sample_record r = w->record;
    r.classes += i;
    r.seeds += i;
    r.images = r.columns = 1;
    r.animated = r.frames ? shown_frames(w) : !w->animate ? 0 : r.steps < FRAMES_MOST ? r.steps : FRAMES_MOST;
    return r;
}

/* 1: there, and made as it would be made now; 0: not there; -1: something else is. Weights are known by their hash: where
 * they lay, and which version of the program made the picture, does not count. */
static int is_there(const sample_work *w, int64_t i, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return 0;
    mhla_sample_record record = one_of(w, i), found = {.size = sizeof found};
    mhla_picture there = {.size = sizeof there};
    char *texts[2] = {NULL, NULL};
    int same = mhla_picture_read(&there, path) == MHLA_OK && there.text &&
               mhla_sample_record_read(&found, there.text, path) == MHLA_OK;
    if (same) {
        char *const model = found.model, *const vae = found.vae;
        found.model = record.model = found.vae = record.vae = NULL;
        *found.choice = *record.choice = *found.version = *record.version = '\0';
        same = mhla_sample_record_write(&texts[0], &record) == MHLA_OK &&
               mhla_sample_record_write(&texts[1], &found) == MHLA_OK && strcmp(texts[0], texts[1]) == 0;
        found.model = model;
        found.vae = vae;
    }
    free(texts[0]);
    free(texts[1]);
    mhla_sample_record_free(&found);
    mhla_picture_free(&there);
    return same ? 1 : -1;
}

/* The images that are not there yet, in *missing [*count]. */
static int plan(sample_work *w, int64_t **missing, int64_t *count) {
    char path[4096];
    size_t length = 0;
    *count = 0;
    *missing = calloc((size_t)w->record.images, sizeof **missing);
    if (*missing == NULL) return cli_failed(w->verb, MHLA_ENOMEM);
    for (int64_t i = 0; i < w->record.images; i++) {
        if (!sample_path(w, i, path, &length)) {
            fprintf(stderr, "mhla %s: %.60s...: the path is too long\n", w->verb, w->out);
            return CLI_FAILED;
        }
        const int there = is_there(w, i, path);
        if (there < 0) {
            fprintf(stderr,
                    "mhla %s: %s exists and was made with other settings: choose another --out, or "
                    "remove it\n",
                    w->verb, path);
            return CLI_FAILED;
        }
        if (!there) (*missing)[(*count)++] = i;
    }
    w->kept = w->record.images - *count;
    return CLI_OK;
}

/* The path of an image with the folders on the way, which are made when there is something to put into them. */
static int make_way(const sample_work *w, int64_t i, char path[4096]) {
    size_t length;
    sample_path(w, i, path, &length);
    path[length] = '\0';
    const int made = (mkdir(w->out, 0777) == 0 || errno == EEXIST) && (mkdir(path, 0777) == 0 || errno == EEXIST);
    if (!made) fprintf(stderr, "mhla %s: %s: %s\n", w->verb, path, strerror(errno));
    path[length] = '/';
    return made;
}

/* Those of this rank, once all ranks know what is missing. */
static mhla_status share_missing(int64_t *missing, int64_t *count) {
    char text[32];
    int64_t own = 0;
    snprintf(text, sizeof text, "%lld", (long long)*count);
    const mhla_status status = mhla_ranks_same("the number of missing images", text);
    for (int64_t i = mhla_rank(); i < *count; i += mhla_ranks()) missing[own++] = missing[i];
    *count = own;
    return status;
}

/* What all ranks have made, and whether one of them was stopped. */
static mhla_status add_up(sample_work *w, int *stopped) {
    const int ranks = mhla_ranks();
    int64_t(*rows)[2] = calloc((size_t)ranks, sizeof *rows);
    mhla_status status = mhla_ranks_agree(rows ? MHLA_OK : MHLA_ENOMEM);
    if (status == MHLA_OK) {
        rows[mhla_rank()][0] = w->made;
        rows[mhla_rank()][1] = *stopped;
        status = mhla_ranks_merge(rows, ranks, sizeof *rows);
    }
    for (int r = 0; r < ranks && status == MHLA_OK; r++) {
        w->made += r == mhla_rank() ? 0 : rows[r][0];
        *stopped |= rows[r][1] != 0;
    }
    free(rows);
    return status;
}

static int run_folder(sample_work *w) {
    int64_t *missing = NULL, count = 0;
    int code = plan(w, &missing, &count), stopped = 0;
    pass p = {0};
    if (code == CLI_OK && share_missing(missing, &count) != MHLA_OK) code = cli_failed(w->verb, MHLA_EIO);
    const int64_t batch = w->batch < count ? w->batch : count;
    if (code == CLI_OK && count > 0 && open_pass(&p, w, batch) != MHLA_OK) code = CLI_FAILED;
    p.all = count * w->record.steps;
    for (int64_t at = 0; code == CLI_OK && at < count && !stopped; at += batch) {
        const int64_t n = count - at < batch ? count - at : batch;
        if (sample_pass(&p, missing + at, n, &stopped) != MHLA_OK) code = CLI_FAILED;
        for (int64_t i = 0; i < n && code == CLI_OK && !stopped; i++) {
            char path[4096];
            const mhla_sample_record record = one_of(w, missing[at + i]);
            if (!make_way(w, missing[at + i], path) || write_picture(&p, path, i, 1, &record) != MHLA_OK)
                code = CLI_FAILED;
            else
                w->made++;
        }
    }
    clear_bar();
    close_pass(&p);
    free(missing);
    if (code == CLI_OK && add_up(w, &stopped) != MHLA_OK) code = cli_failed(w->verb, MHLA_EIO);
    if (stopped && mhla_rank() > 0) code = interrupt_code();
    if (stopped && mhla_rank() == 0) {
        fprintf(stderr, "mhla %s: stopped; %lld of %lld images are there. The same command resumes.\n", w->verb,
                (long long)(w->kept + w->made), (long long)w->record.images);
        code = interrupt_code();
    }
    return code;
}

int sample_run(sample_work *w) {
    speak_watch();
    begun = shown = now_seconds();
    const int code = w->folder ? run_folder(w) : run_grid(w);
    w->seconds = now_seconds() - begun;
    return code;
}
