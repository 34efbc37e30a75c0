/* Reading what a report shows of a run. A run may be under way, killed, half copied: whatever is there is shown, whatever
 * is not becomes a remark. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/file.h"
#include "file/safetensors.h"
#include "report/report_parts.h"

enum { PATH = MHLA_REPORT_PATH, MOST_MIX = 512 }; /* MOST_MIX: more numbers on a side are not drawn */

static mhla_status no_memory(const char *folder) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", folder); }

static mhla_status remark(mhla_report_run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static mhla_status remark(mhla_report_run *r, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    const int n = vasprintf(&text, format, args);
    va_end(args);
    char **more = realloc(r->remarks, (size_t)(r->remark_count + 1) * sizeof *more);
    if (more) r->remarks = more;
    if (n < 0 || more == NULL) {
        if (n >= 0) free(text);
        return no_memory(r->folder);
    }
    r->remarks[r->remark_count++] = text;
    return MHLA_OK;
}

static mhla_status path_in(char path[PATH], const char *folder, const char *name) {
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--; /* "run/" is told as "run" */
    if (n >= PATH || snprintf(path, PATH, "%.*s/%s", (int)n, folder, name) >= PATH)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    return MHLA_OK;
}

static int is_there(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* A JSON file that may be missing; what is wrong with it becomes a remark. */
static mhla_status read_json(mhla_report_run *r, json_t **tree, const char *folder, const char *name) {
    char path[PATH];
    MHLA_TRY(path_in(path, folder, name));
    if (!is_there(path)) return MHLA_OK;
    const mhla_status status = mhla_json_load(tree, path);
    if (status == MHLA_ENOMEM) return status;
    if (status != MHLA_OK) return remark(r, "%s; it is skipped.", mhla_message());
    if (json_is_object(*tree)) return MHLA_OK;
    json_decref(*tree);
    *tree = NULL;
    return remark(r, "%s: expected an object; it is skipped.", path);
}

const char *mhla_report_text(const json_t *tree, const char *path) {
    char key[64];
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        tree = json_object_get(tree, key);
    }
    const char *text = json_string_value(json_object_get(tree, path));
    return text ? text : "";
}

const char *mhla_report_class(const mhla_report_run *r, int i) {
    const json_t *names = json_object_get(r->config, "class_names");
    if (!json_is_array(names)) names = json_object_get(r->samples, "classes");
    return i >= 0 ? json_string_value(json_array_get(names, (size_t)i)) : NULL;
}

/* ---- metrics.jsonl ---- */

static double number(const json_t *row, const char *key) {
    const json_t *x = json_object_get(row, key);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

static mhla_status read_step(mhla_report_run *r, const json_t *row, double at) {
    MHLA_TRY(mhla_series_add(&r->loss, at, number(row, "loss")));
    MHLA_TRY(mhla_series_add(&r->accuracy, at, number(row, "accuracy")));
    MHLA_TRY(mhla_series_add(&r->rate, at, number(row, "rate")));
    MHLA_TRY(mhla_series_add(&r->norm, at, number(row, "gradient_norm")));
    const double tokens = number(row, "tokens_per_second");
    r->text |= isfinite(tokens);
    return mhla_series_add(&r->speed, at, isfinite(tokens) ? tokens : number(row, "images_per_second"));
}

static mhla_status read_test(mhla_report_run *r, const json_t *row, double at) {
    MHLA_TRY(mhla_series_add(&r->test_loss, at, number(row, "loss")));
    const double psnr = number(row, "psnr");
    r->codec |= isfinite(psnr);
    r->by_loss |= r->codec || isfinite(number(row, "noise_mse"));
    MHLA_TRY(mhla_series_add(&r->psnr, at, psnr));
    if (r->by_loss) MHLA_TRY(mhla_series_add(&r->ema_loss, at, number(row, "ema_loss")));
    MHLA_TRY(mhla_series_add(&r->test_accuracy, at, number(row, "accuracy")));
    MHLA_TRY(mhla_series_add(&r->ema_accuracy, at, number(row, "ema_accuracy")));
    const double bits = number(row, "bits_per_byte");
    r->text |= isfinite(bits);
    MHLA_TRY(mhla_series_add(&r->test_bits, at, bits));
    MHLA_TRY(mhla_series_add(&r->ema_bits, at, number(row, "ema_bits_per_byte")));
    const json_t *images = json_object_get(row, r->text ? "tokens" : "images");
    if (json_is_integer(images)) r->test_images = json_integer_value(images);
    const json_t *classes = json_object_get(row, "classes");
    if (json_array_size(classes) > 0) {
        json_decref(r->classes);
        r->classes = json_deep_copy(classes);
        if (r->classes == NULL) return no_memory(r->folder);
    }
    return MHLA_OK;
}

/* Other kinds of lines are none of the report's business. */
static mhla_status read_row(mhla_report_run *r, const json_t *row) {
    const char *kind = json_string_value(json_object_get(row, "kind"));
    const double epoch = number(row, "epoch"), step = number(row, "step");
    const double at = isfinite(epoch) ? epoch : step;
    if (kind == NULL || !isfinite(at) || (strcmp(kind, "step") != 0 && strcmp(kind, "test") != 0)) return MHLA_OK;
    if (isfinite(step) && fabs(step) < 1e15) r->steps = (int64_t)step;
    r->epochs = at;
    return *kind == 's' ? read_step(r, row, at) : read_test(r, row, at);
}

/* The best of what is left after lines of a run that went back were replaced. */
static void find_best(mhla_report_run *r) {
    const int lower = r->text || r->by_loss;
    const mhla_series *lists[] = {r->text      ? &r->test_bits
                                  : r->by_loss ? &r->test_loss
                                               : &r->test_accuracy,
                                  r->text      ? &r->ema_bits
                                  : r->by_loss ? &r->ema_loss
                                               : &r->ema_accuracy};
    r->best = NAN;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < lists[k]->count; i++)
            if (!(lower ? lists[k]->y[i] >= r->best : lists[k]->y[i] <= r->best) ||
                (lists[k]->y[i] == r->best && lists[k]->x[i] < r->best_epoch)) {
                r->best = lists[k]->y[i];
                r->best_epoch = lists[k]->x[i];
                r->best_is_average = k;
            }
}

static mhla_status read_metrics(mhla_report_run *r) {
    char path[PATH];
    mhla_file file;
    int64_t line = 0, broken = 0, first = 0;
    int torn = 0;
    MHLA_TRY(path_in(path, r->folder, "metrics.jsonl"));
    if (!is_there(path)) return MHLA_OK;
    if (mhla_file_map(&file, path) != MHLA_OK) return remark(r, "%s; there are no curves.", mhla_message());
    const char *at = (const char *)file.data, *end = at + file.size;
    mhla_status status = MHLA_OK;
    while (at < end && status == MHLA_OK) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t size = (size_t)((stop ? stop : end) - at);
        json_t *row = NULL;
        line++;
        status = size ? mhla_json_parse(&row, at, size, path) : MHLA_OK;
        if (status == MHLA_EDATA || (status == MHLA_OK && size && !json_is_object(row))) {
            status = MHLA_OK;
            if (broken++ == 0) first = line;
            torn = stop == NULL;
        } else if (status == MHLA_OK && row) {
            status = read_row(r, row);
        }
        json_decref(row);
        at = stop ? stop + 1 : end;
    }
    mhla_file_unmap(&file);
    if (status != MHLA_OK) return status;
    find_best(r);
    if (broken == 1 && torn)
        return remark(r, "%s: the last line is incomplete, as after a killed run; it is skipped.", path);
    if (broken > 0)
        return remark(r, "%s: skipped %lld line%s not a JSON object, the first is line %lld.", path, (long long)broken,
                      broken == 1 ? " that is" : "s that are", (long long)first);
    return MHLA_OK;
}

/* ---- The last checkpoint ---- */

/* "step-00001200" -> 1200, anything else -1. */
static int64_t step_of(const char *name) {
    const size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
    if (digits == 0 || digits > 18 || name[5 + digits] != '\0') return -1;
    return strtoll(name + 5, NULL, 10);
}

/* The newest folder of RUN/checkpoints; links such as `last` do not survive every copy. */
static mhla_status find_checkpoint(mhla_report_run *r, char path[PATH]) {
    char all[PATH];
    int64_t newest = -1;
    MHLA_TRY(path_in(all, r->folder, "checkpoints"));
    DIR *dir = opendir(all);
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const int64_t step = step_of(e->d_name);
        if (step <= newest) continue;
        newest = step;
        snprintf(r->checkpoint, sizeof r->checkpoint, "%.40s", e->d_name);
    }
    if (dir) closedir(dir);
    if (newest >= 0) return path_in(path, all, r->checkpoint);
    path[0] = '\0';
    return MHLA_OK;
}

static mhla_status add_mix(mhla_report_run *r, const mhla_stored *t, int64_t head, int64_t heads, const float *values) {
    const size_t M = (size_t)t->shape[heads > 1 ? 1 : 0];
    mhla_report_mix *more = realloc(r->mixes, (size_t)(r->mix_count + 1) * sizeof *more);
    if (more == NULL) return no_memory(r->folder);
    r->mixes = more;
    mhla_report_mix *mix = &more[r->mix_count];
    *mix = (mhla_report_mix){.M = (int)M, .mix = malloc(M * M * sizeof *mix->mix)};
    if (mix->mix == NULL) return no_memory(r->folder);
    memcpy(mix->mix, values + (size_t)head * M * M, M * M * sizeof *mix->mix);
    const char *digit = t->name + strcspn(t->name, "0123456789");
    if (*digit)
        snprintf(mix->name, sizeof mix->name, "layer %ld", strtol(digit, NULL, 10));
    else
        snprintf(mix->name, sizeof mix->name, "%.60s", t->name);
    const size_t n = strlen(mix->name);
    if (heads > 1) snprintf(mix->name + n, sizeof mix->name - n, ", head %lld", (long long)head);
    r->mix_count++;
    return MHLA_OK;
}

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* [M,M], [M,M,1,..] or [H,M,M] under a published name. */
static mhla_status read_mix(mhla_report_run *r, const mhla_stored *t) {
    if (!ends_with(t->name, "piece_attn.conv.weight") && !ends_with(t->name, ".mixing_matrix")) return MHLA_OK;
    if (!mhla_io_dtype_is_float(t->dtype) || t->rank < 2) return MHLA_OK;
    const int64_t heads = t->rank == 3 && t->shape[1] == t->shape[2] && t->shape[1] > 1 ? t->shape[0] : 1;
    const int64_t M = t->shape[heads > 1 ? 1 : 0];
    if (M < 1 || M > MOST_MIX || heads > 64 || t->count != heads * M * M) return MHLA_OK;
    float *values = malloc((size_t)t->count * sizeof *values);
    if (values == NULL) return no_memory(r->folder);
    mhla_status status = mhla_stored_read(values, t);
    for (int64_t h = 0; h < heads && status == MHLA_OK; h++) status = add_mix(r, t, h, heads, values);
    free(values);
    return status;
}

/* Tensors come in the order of their bytes; layers are shown in theirs. */
static int by_layer(const void *a, const void *b) {
    return strverscmp(((const mhla_report_mix *)a)->name, ((const mhla_report_mix *)b)->name);
}

/* The matrix before training follows from the config, unless the run began with another's weights. */
static mhla_status find_before(mhla_report_run *r) {
    const json_t *blocks = json_object_get(r->config, "blocks");
    int64_t M = 1;
    if (json_array_size(blocks) != 2) return MHLA_OK;
    for (int a = 0; a < 2; a++) {
        const int64_t n = json_integer_value(json_array_get(blocks, (size_t)a));
        if (n < 1 || n > MOST_MIX) return MHLA_OK;
        r->grid[a] = (int)n;
        M *= n;
    }
    if (M > MOST_MIX) {
        r->grid[0] = r->grid[1] = 0;
        return MHLA_OK;
    }
    mhla_mix_init init;
    if (*mhla_report_text(r->recipe, "train.init") || r->recipe == NULL ||
        mhla_mix_from_name(&init, mhla_report_text(r->config, "mix")) != MHLA_OK)
        return MHLA_OK;
    r->before = malloc((size_t)(M * M) * sizeof *r->before);
    if (r->before == NULL) return no_memory(r->folder);
    r->before_M = (int)M;
    return mhla_mix_fill(r->before, init, 2, r->grid, 0.0);
}

static mhla_status read_checkpoint(mhla_report_run *r) {
    char folder[PATH], path[PATH];
    mhla_safetensors *file = NULL;
    MHLA_TRY(find_checkpoint(r, folder));
    if (!*folder) return remark(r, "%s: no checkpoint yet, hence no mixing matrices.", r->folder);
    MHLA_TRY(read_json(r, &r->config, folder, "config.json"));
    mhla_status status = find_before(r);
    if (status != MHLA_OK) return status;
    MHLA_TRY(path_in(path, folder, "model.safetensors"));
    if (!is_there(path)) snprintf(path, sizeof path, "%s", folder); /* sharded, or gone: its opening tells */
    status = mhla_safetensors_open(&file, path);
    if (status == MHLA_ENOMEM) return status;
    if (status != MHLA_OK) return remark(r, "%s; there are no mixing matrices.", mhla_message());
    r->parameters = 0;
    for (int64_t i = 0; i < mhla_safetensors_count(file) && status == MHLA_OK; i++) {
        const mhla_stored *t = mhla_safetensors_at(file, i);
        r->parameters += t->count;
        status = read_mix(r, t);
    }
    mhla_safetensors_close(file);
    if (r->mix_count > 1) qsort(r->mixes, (size_t)r->mix_count, sizeof *r->mixes, by_layer);
    return status;
}

/* ---- All of it ---- */

/* The last part of the path; of ".", the name that the folder really has. */
static char *name_of(const char *folder) {
    char *real = realpath(folder, NULL);
    if (real == NULL) return strdup(folder);
    const char *slash = strrchr(real, '/');
    char *name = strdup(slash && slash[1] ? slash + 1 : real);
    free(real);
    return name;
}

static mhla_status read_all(mhla_report_run *r) {
    MHLA_TRY(read_json(r, &r->recipe, r->folder, "recipe.json"));
    MHLA_TRY(read_metrics(r));
    MHLA_TRY(read_checkpoint(r));
    MHLA_TRY(read_json(r, &r->samples, r->folder, "samples.json"));
    MHLA_TRY(read_json(r, &r->rows, r->folder, "samples/rows.json"));
    MHLA_TRY(mhla_report_read_grids(r));
    if (isfinite(r->epochs) || *r->checkpoint) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: not a run: it has no line in metrics.jsonl and no checkpoint", r->folder);
}

mhla_status mhla_report_read(mhla_report_run *r, const char *folder) {
    *r = (mhla_report_run){.folder = folder, .epochs = NAN, .best = NAN, .test_images = -1, .parameters = -1};
    DIR *dir = opendir(folder);
    if (dir == NULL) return mhla_fail(MHLA_EIO, "%s: %s", folder, strerror(errno));
    closedir(dir);
    if ((r->name = name_of(folder)) == NULL) return no_memory(folder);
    const mhla_status status = read_all(r);
    if (status != MHLA_OK) mhla_report_run_free(r);
    return status;
}

void mhla_report_run_free(mhla_report_run *r) {
    mhla_series *lists[] = {&r->loss,      &r->accuracy,      &r->rate,      &r->norm,
                            &r->speed,     &r->test_accuracy, &r->test_loss, &r->ema_accuracy,
                            &r->test_bits, &r->ema_bits,      &r->ema_loss,  &r->psnr};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) mhla_series_free(lists[i]);
    json_decref(r->recipe);
    json_decref(r->config);
    json_decref(r->samples);
    json_decref(r->rows);
    json_decref(r->classes);
    for (int i = 0; i < r->mix_count; i++) free(r->mixes[i].mix);
    free(r->mixes);
    free(r->before);
    for (int i = 0; i < r->grid_count; i++) free(r->grids[i].png);
    free(r->grids);
    for (int i = 0; i < r->remark_count; i++) free(r->remarks[i]);
    free(r->remarks);
    free(r->name);
    *r = (mhla_report_run){0};
}
