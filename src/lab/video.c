/* Parts of the video experiment: a small Wan, trained on clips from scratch, or begun as the trained softmax model of the same seed
 * with its attention replaced; held-out loss during training, time of an evaluation by number of tokens, and clips. At a second number
 * of tokens, by one seed alone, with the settings that begin with "lab.long."; where it begins as softmax, with those of "lab.adapted." and
 * "lab.long_adapted.". */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/status.h"
#include "data/dataset.h"
#include "lab/lab.h"

enum {
    CLIPS = 4,
    TIMES = 3,
    SIZES = 8
}; /* clips of an arm; how much larger they are shown; numbers of tokens that are timed */

static const char base_name[] = "softmax";

/* ---- Settings ---- */

/* What follows `prefix` in those settings that begin with it. */
static void put_settings(FILE *out, const char *settings, const char *prefix) {
    for (const char *at = settings; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " "), skip = strlen(prefix);
        if (strncmp(at, prefix, skip) == 0) fprintf(out, " %.*s", (int)(n - skip), at + skip);
        at += n;
    }
}

static int is_adapted(const mhla_lab_part *part) { return (int)mhla_part_number(part, "lab.adapted"); }

/* The part at its first or its second number of tokens; freed by part_free. */
static mhla_status part_at(mhla_lab_part *one, const mhla_lab_part *like, int longer) {
    char *all = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&all, &size);
    *one = *like;
    one->measures = json_object();
    one->settings = NULL;
    if (out) {
        fputs(like->settings, out);
        if (is_adapted(like)) put_settings(out, like->settings, "lab.adapted.");
        if (longer) put_settings(out, like->settings, "lab.long.");
        if (longer && is_adapted(like)) put_settings(out, like->settings, "lab.long_adapted.");
        if (fclose(out) == 0)
            one->settings = all;
        else
            free(all);
    }
    return one->settings && one->measures ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a part");
}

static void part_free(mhla_lab_part *one) {
    free(one->settings);
    json_decref(one->measures);
}

/* ---- Training ---- */

typedef struct curve {
    mhla_lab_part *part;
    const char *prefix; /* of its points */
    double last, first; /* NaN: none */
} curve;

static mhla_status take_line(void *user, const json_t *line) {
    curve *c = user;
    char name[64];
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const double loss = json_number_value(json_object_get(line, "loss"));
    if (kind && strcmp(kind, "step") == 0 && isnan(c->first))
        c->first = loss; /* of the update before which nothing is learned */
    if (kind == NULL || strcmp(kind, "test") != 0) return MHLA_OK;
    c->last = loss;
    snprintf(name, sizeof name, "%s%lld", c->prefix, (long long)json_integer_value(json_object_get(line, "step")));
    return mhla_part_put(c->part, name, loss, NAN);
}

static mhla_status put_losses(mhla_lab_part *part, const char *run, int adapted, int longer) {
    char path[MHLA_LAB_PATH + 32];
    curve c = {.part = part,
               .prefix = adapted  ? longer ? "adapted_long_" : "adapted_"
                         : longer ? "scratch_long_"
                                  : "scratch_",
               .last = NAN,
               .first = NAN};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    MHLA_TRY(mhla_jsonl_read(path, take_line, &c));
    MHLA_TRY(mhla_part_put(part, longer ? "loss_long" : "loss", c.last, NAN));
    return adapted ? MHLA_OK : mhla_part_put(part, longer ? "untrained_long" : "untrained", c.first, NAN);
}

/* The run of the softmax model of this seed and size, which its own part has trained, or which is trained now. "" if stopped. */
static mhla_status find_base(mhla_lab_part *part, char run[MHLA_LAB_PATH], int longer) {
    mhla_lab_part base, one = {0};
    *run = '\0';
    mhla_status status =
        mhla_part_begin(&base, part->lab, mhla_experiment_arm(part->lab->experiment, base_name), part->seed);
    if (status == MHLA_OK) status = mhla_part_search(&base);
    if (status == MHLA_OK && !part->lab->stop) {
        status = part_at(&one, &base, longer);
        if (status == MHLA_OK) status = mhla_part_train(&one, run);
        part_free(&one);
    }
    mhla_part_end(&base);
    return status;
}

static mhla_status train(mhla_lab_part *part, char run[MHLA_LAB_PATH], int longer) {
    char base[MHLA_LAB_PATH];
    mhla_lab_part one;
    const int adapted = is_adapted(part);
    *run = '\0';
    mhla_status status = part_at(&one, part, longer);
    if (status == MHLA_OK && adapted) {
        status = find_base(part, base, longer);
        snprintf(one.init, sizeof one.init, "%s", base);
    }
    if (status == MHLA_OK && !(adapted && *base == '\0')) status = mhla_part_train(&one, run);
    if (status == MHLA_OK && *run) {
        const json_t *count = json_object_get(one.measures, "parameters");
        status = put_losses(part, run, adapted, longer);
        if (status == MHLA_OK && !longer) status = mhla_part_put(part, "parameters", json_number_value(count), NAN);
    }
    part_free(&one);
    return status;
}

/* ---- Time of an evaluation ---- */

/* The best of a few: what else the machine does only adds; how far apart the two best are stands for the error. */
typedef struct watch {
    mhla_model *model;
    double best, second; /* seconds */
} watch;

static mhla_status time_once(watch *w, float *y, const mhla_denoise *d, int counts) {
    const double start = mhla_seconds();
    MHLA_TRY(mhla_model_denoise(w->model, y, d));
    const double took = mhla_seconds() - start;
    if (counts && took < w->best)
        w->second = w->best, w->best = took;
    else if (counts && took < w->second)
        w->second = took;
    return MHLA_OK;
}

/* In turn with the softmax model, if there is one: what slows one down slows down the other, and their ratio stays. */
static mhla_status time_size(mhla_lab_part *part, watch *own, watch *base, const int size[3], int patch,
                             double budget) {
    const int64_t T = (int64_t)size[0] * size[1] * size[2], n = T * patch * patch;
    float *x = calloc((size_t)n, sizeof *x), *y = malloc((size_t)n * sizeof *y), time = 500.0f;
    char name[32];
    mhla_status status = x && y ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a clip of %lld tokens", (long long)T);
    if (status == MHLA_OK) status = mhla_sample_noise(x, n, (uint64_t)part->seed, 0);
    const mhla_denoise d = {.size = sizeof d,
                            .count = 1,
                            .x = x,
                            .times = &time,
                            .labels = &(int32_t){0},
                            .frames = size[0],
                            .height = size[1] * patch,
                            .width = size[2] * patch};
    const double begin = mhla_seconds();
    own->best = own->second = base->best = base->second = INFINITY;
    for (int i = 0; i < 40 && (i < 5 || mhla_seconds() - begin < budget) && status == MHLA_OK && !part->lab->stop;
         i++) { /* the first one meets fresh memory */
        status = time_once(own, y, &d, i > 0);
        if (status == MHLA_OK && base->model) status = time_once(base, y, &d, i > 0);
    }
    free(x);
    free(y);
    MHLA_TRY(status);
    if (part->lab->stop) return MHLA_OK;
    snprintf(name, sizeof name, "ms_%lld", (long long)T);
    MHLA_TRY(mhla_part_put(part, name, 1e3 * own->best, 1e3 * (own->second - own->best)));
    if (base->model == NULL) return MHLA_OK;
    snprintf(name, sizeof name, "share_%lld", (long long)T);
    return mhla_part_put(part, name, own->best / base->best, NAN); /* seeds tell how sure it is */
}

/* At each of "8x16x16,8x32x32": frames, rows, columns of tokens. */
static mhla_status time_sizes(mhla_lab_part *part, mhla_model *model, mhla_model *softmax) {
    char grids[128] = "", seconds[32] = "1";
    double load = 0.0;
    watch own = {.model = model}, base = {.model = softmax};
    const int patch = (int)mhla_part_number(part, "model.patch");
    mhla_part_setting(part, "lab.grids", grids, sizeof grids);
    mhla_part_setting(part, "lab.seconds", seconds, sizeof seconds);
    if (*grids && getloadavg(&load, 1) == 1) MHLA_TRY(mhla_part_put(part, "load", load, NAN));
    for (const char *at = grids; *at && !part->lab->stop; at += strcspn(at, ","), at += *at == ',') {
        int size[3] = {0};
        char *end = (char *)at;
        for (int i = 0; i < 3; i++) size[i] = (int)strtol(i ? end + 1 : end, &end, 10);
        MHLA_TRY(time_size(part, &own, &base, size, patch, strtod(seconds, NULL)));
        mhla_part_tell(part, at - grids + 1, (int64_t)strlen(grids));
    }
    return MHLA_OK;
}

/* ---- Clips ---- */

/* Frame f of clips [n,channels,frames,height,width] as one picture, every pixel TIMES x TIMES. */
static mhla_status draw_frame(mhla_picture *picture, const float *clips, int n, const mhla_model_info *m, int f) {
    const int64_t H = m->height, W = m->width, planes = (int64_t)n * m->channels;
    float *large = malloc((size_t)(planes * H * W * TIMES * TIMES) * sizeof *large), *to = large;
    if (large == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for clips");
    for (int64_t p = 0; p < planes; p++)
        for (int64_t y = 0; y < H * TIMES; y++)
            for (int64_t x = 0; x < W * TIMES; x++)
                *to++ = clips[((p * m->frames + f) * H + y / TIMES) * W + x / TIMES];
    const mhla_status status = mhla_picture_tile(picture, large, n, m->channels, (int)H * TIMES, (int)W * TIMES, n);
    free(large);
    return status;
}

static mhla_status write_clips(const mhla_lab *lab, const char *name, const float *clips, const mhla_model_info *m) {
    char path[MHLA_LAB_PATH + 128];
    mhla_picture *pictures = calloc((size_t)m->frames, sizeof *pictures);
    double *seconds = calloc((size_t)m->frames, sizeof *seconds);
    mhla_status status = pictures && seconds ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for clips");
    for (int f = 0; f < m->frames && status == MHLA_OK; f++) {
        pictures[f].size = sizeof *pictures;
        seconds[f] = MHLA_FRAME_SECONDS;
        status = draw_frame(&pictures[f], clips, CLIPS, m, f);
    }
    mhla_lab_clips_path(path, sizeof path, lab, lab->folder, name);
    if (status == MHLA_OK) status = mhla_picture_write(path, pictures, m->frames, seconds);
    for (int f = 0; f < m->frames && pictures; f++) mhla_picture_free(&pictures[f]);
    free(pictures);
    free(seconds);
    return status;
}

/* The classes of the clips: the first ones. */
static int32_t class_of(int i, const mhla_model_info *m) { return i % (m->classes > 0 ? m->classes : 1); }

static int told_to_stop(void *user, const mhla_sample_state *state) {
    const mhla_lab_part *part = user;
    (void)state;
    return part->lab->stop != 0;
}

static mhla_status sample(mhla_lab_part *part, mhla_model *model, float *clips, const mhla_model_info *m) {
    int32_t classes[CLIPS];
    uint64_t seeds[CLIPS];
    int stopped = 0;
    for (int i = 0; i < CLIPS; i++) classes[i] = class_of(i, m), seeds[i] = (uint64_t)i;
    MHLA_TRY(mhla_model_sample(model, clips,
                               &(mhla_sample_desc){.size = sizeof(mhla_sample_desc),
                                                   .images = CLIPS,
                                                   .classes = classes,
                                                   .seeds = seeds,
                                                   .guidance = 2.0,
                                                   .steps = (int)mhla_part_number(part, "lab.sampled"),
                                                   .clip = 1,
                                                   .report = told_to_stop,
                                                   .user = part},
                               &stopped));
    return stopped ? MHLA_OK : write_clips(part->lab, part->lab->experiment->arms[part->arm].name, clips, m);
}

/* The first clips of the test set of the same classes: what the others are held against. */
static mhla_status show_data(const mhla_lab *lab, float *clips, const mhla_model_info *m) {
    mhla_dataset *data = NULL;
    mhla_image image = {0};
    int label;
    const int64_t n = (int64_t)m->channels * m->frames * m->height * m->width, plane = n / m->channels;
    mhla_status status = mhla_dataset_open(&data, lab->source, MHLA_SPLIT_TEST);
    for (int i = 0; i < CLIPS && status == MHLA_OK; i++) {
        int64_t at = 0;
        for (int64_t k = i / (m->classes > 0 ? m->classes : 1); at < mhla_dataset_count(data) - 1; at++)
            if (mhla_dataset_label(data, at) == class_of(i, m) && k-- == 0) break;
        status = mhla_dataset_get(data, at, &image, &label);
        for (int64_t k = 0; k < n && status == MHLA_OK; k++) {
            const uint8_t *pixel = image.data + k % plane * m->channels + k / plane;
            clips[i * n + k] = (float)*pixel / 127.5f - 1.0f;
        }
    }
    if (status == MHLA_OK) status = write_clips(lab, "data", clips, m);
    mhla_dataset_free(data);
    mhla_image_free(&image);
    return status;
}

/* Of the first seed. */
static mhla_status show_clips(mhla_lab_part *part, mhla_model *model) {
    char path[MHLA_LAB_PATH + 128];
    mhla_model_info m = {.size = sizeof m};
    MHLA_TRY(mhla_model_query(model, &m));
    float *clips = malloc((size_t)CLIPS * (size_t)m.channels * (size_t)m.frames * (size_t)m.height * (size_t)m.width *
                          sizeof *clips);
    if (clips == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for clips");
    mhla_status status = sample(part, model, clips, &m);
    mhla_lab_clips_path(path, sizeof path, part->lab, part->lab->folder, "data");
    if (status == MHLA_OK && access(path, F_OK) != 0) status = show_data(part->lab, clips, &m);
    free(clips);
    return status;
}

/* ---- A part ---- */

static mhla_status open_run(mhla_model **model, const mhla_lab_part *part, const char *run) {
    char path[MHLA_LAB_PATH + 16];
    snprintf(path, sizeof path, "%s/last", run);
    MHLA_TRY(mhla_model_open_weights(model, path, "raw"));
    if (part->lab->context) mhla_model_set_context(*model, part->lab->context);
    return MHLA_OK;
}

/* Beside the softmax model of the same seed, where the arm is another. */
static mhla_status time_arm(mhla_lab_part *part, mhla_model *model) {
    char run[MHLA_LAB_PATH];
    mhla_model *softmax = NULL;
    mhla_status status = MHLA_OK;
    if (part->arm != mhla_experiment_arm(part->lab->experiment, base_name)) {
        status = find_base(part, run, 0);
        if (status == MHLA_OK && *run) status = open_run(&softmax, part, run);
    }
    if (status == MHLA_OK && !part->lab->stop) status = time_sizes(part, model, softmax);
    mhla_model_free(softmax);
    return status;
}

mhla_status mhla_part_video(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH];
    mhla_model *model = NULL;
    MHLA_TRY(train(part, run, 0));
    if (*run == '\0') return MHLA_OK;
    MHLA_TRY(open_run(&model, part, run));
    mhla_status status = MHLA_OK;
    if (!is_adapted(part)) status = time_arm(part, model);
    if (status == MHLA_OK && part->seed == 1 && !part->lab->stop) status = show_clips(part, model);
    mhla_model_free(model);
    MHLA_TRY(status);
    if (part->seed != mhla_part_number(part, "lab.long_seed") || part->lab->stop) return MHLA_OK;
    return train(part, run, 1);
}

/* ---- What follows from the numbers ---- */

static double mean_of(const mhla_lab *lab, const char *arm, const char *measure) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    const int n = mhla_results_take(lab, mhla_experiment_arm(lab->experiment, arm), measure, values, errors);
    return n ? mhla_seeds_of(values, errors, n).mean : NAN;
}

static void remark_load(FILE *out, const mhla_lab *lab) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS], most = 0.0;
    mhla_cpu_info cpu = {.size = sizeof cpu};
    for (int arm = 0; arm < MHLA_LAB_ARMS && lab->experiment->arms[arm].name; arm++)
        for (int i = 0, n = mhla_results_take(lab, arm, "load", values, errors); i < n; i++)
            if (values[i] > most) most = values[i];
    if (mhla_cpu_query(&cpu) == MHLA_OK && most > cpu.threads + 1.0)
        fprintf(out,
                "The machine was busy with other things while this was measured (load %.1f): milliseconds are too "
                "long. Shares of softmax's time suffer less, because the two models were evaluated in turn.\n\n",
                most);
}

static void remark_times(FILE *out, const mhla_lab *lab) {
    const mhla_lab_lines *l = lab->experiment->lines;
    while (l->prefix && strcmp(l->prefix, "ms_") != 0) l++;
    const double *x = lab->quick ? l->x_quick : l->x;
    int said = 0;
    for (int i = 0; i < MHLA_LAB_LINES && x[i] > 0.0; i++) {
        char name[32];
        snprintf(name, sizeof name, "share_%.0f", x[i]);
        const double own = mean_of(lab, "mhla", name), hybrid = mean_of(lab, "mhla-hybrid", name),
                     linear = mean_of(lab, "linear", name);
        if (isnan(own + hybrid + linear)) continue;
        fprintf(out, "%s %.0f tokens MHLA takes %.2f of softmax's time, the hybrid %.2f, linear attention %.2f",
                said++ ? "; at" : "One evaluation of the whole network: at", x[i], own, hybrid, linear);
    }
    if (said)
        fputs(". The paper reports about one half for MHLA at 31,500 tokens, in a model of other proportions.\n\n",
              out);
}

/* How much of the way from an untrained model to the softmax arm `best` linear attention has come; 0: not known. */
static int remark_linear(FILE *out, const mhla_lab *lab, const char *arm, const char *best, const char *loss,
                         const char *untrained, const char *what) {
    const double top = mean_of(lab, base_name, untrained), own = mean_of(lab, arm, loss),
                 aim = mean_of(lab, best, loss);
    if (isnan(top + own + aim) || !(top > aim)) return 0;
    const double way = (top - own) / (top - aim);
    fprintf(out, "* %s: linear attention covers %.1f %% of softmax's decrease: it %s.\n", what, 100.0 * way,
            way < 0.5 ? "fails at this size as well" : "does not fail at this size");
    return 1;
}

void mhla_video_remark(FILE *out, const mhla_lab *lab) {
    remark_load(out, lab);
    remark_times(out, lab);
    char *text = NULL;
    size_t size = 0;
    int said = 0;
    FILE *list = open_memstream(&text, &size);
    if (list == NULL) return;
    said |= remark_linear(list, lab, "linear", "softmax", "loss", "untrained", "from scratch");
    said |= remark_linear(list, lab, "linear-adapted", "softmax-adapted", "loss", "untrained", "begun as softmax");
    said |= remark_linear(list, lab, "linear", "softmax", "loss_long", "untrained_long", "from scratch, more tokens");
    said |= remark_linear(list, lab, "linear-adapted", "softmax-adapted", "loss_long", "untrained_long",
                          "started from softmax, more tokens");
    if (fclose(list) == 0 && said)
        fprintf(out,
                "Does linear attention fail to train, as the paper reports at 31,500 tokens? It counts as failed if "
                "its test loss decreases by less than half as much as softmax's, both from the loss of an untrained "
                "model:\n\n%s",
                text);
    free(text);
}
