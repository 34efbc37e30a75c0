/* The file of results: a line per part that is complete, appended by one write. It is all that table, figure and verdict are
 * made of. A line carries the key of the settings and the data that it was made with, so that what was made otherwise does
 * not count. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/status.h"
#include "file/sha256.h"
#include "lab/lab.h"

int mhla_experiment_arm(const mhla_experiment *e, const char *name) {
    for (int i = 0; i < MHLA_LAB_ARMS && e->arms[i].name; i++)
        if (strcmp(e->arms[i].name, name) == 0) return i;
    return -1;
}

int mhla_experiment_seeds(const mhla_experiment *e, int quick) {
    if (quick) return 1;
    return e->info.seeds ? e->info.seeds : 3;
}

const char *mhla_lab_form(const mhla_lab *lab) {
    const mhla_experiment *e = lab->experiment;
    const char *form = lab->quick ? e->quick_settings : lab->longer ? e->long_settings : NULL;
    return form ? form : "";
}

/* "mhla,linear,": is the arm among them? */
int mhla_experiment_has(const mhla_experiment *e, int arm, int quick) {
    const size_t n = strlen(e->arms[arm].name);
    if (!quick || e->arm_in_quick == NULL) return 1;
    for (const char *at = e->arm_in_quick; *at; at += strcspn(at, ",") + 1)
        if (strncmp(at, e->arms[arm].name, n) == 0 && at[n] == ',') return 1;
    return 0;
}

/* ---- Parts ---- */

mhla_status mhla_part_begin(mhla_lab_part *part, mhla_lab *lab, int arm, int seed) {
    const mhla_experiment *e = lab->experiment;
    char sum[65];
    *part = (mhla_lab_part){.lab = lab, .arm = arm, .seed = seed, .measures = json_object()};
    const char *form = mhla_lab_form(lab);
    const char *shuffle = lab->shuffle ? " data.shuffle_labels=true" : "";
    if (asprintf(&part->settings, "%s%s%s %s%s seed=%d", e->settings ? e->settings : "", *form ? " " : "", form,
                 e->arms[arm].settings, shuffle, seed) < 0)
        part->settings = NULL;
    if (part->settings == NULL || part->measures == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    mhla_sha256 s;
    mhla_sha256_begin(&s);
    const char *const of[] = {"part 1", e->info.name, part->settings, lab->data_sum};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) mhla_sha256_add(&s, of[i], strlen(of[i]) + 1);
    mhla_sha256_end(&s, sum);
    snprintf(part->key, sizeof part->key, "%.16s", sum);
    return MHLA_OK;
}

void mhla_part_end(mhla_lab_part *part) {
    free(part->settings);
    json_decref(part->measures);
    *part = (mhla_lab_part){0};
}

mhla_status mhla_part_put(mhla_lab_part *part, const char *measure, double value, double error) {
    char name[80];
    if (!isfinite(value)) return mhla_fail(MHLA_ERANGE, "%s came out as %g", measure, value);
    int failed = json_object_set_new(part->measures, measure, json_real(value));
    snprintf(name, sizeof name, "%.60s_error", measure);
    if (isfinite(error)) failed |= json_object_set_new(part->measures, name, json_real(error));
    return failed ? mhla_fail(MHLA_ENOMEM, "no memory for a measure") : MHLA_OK;
}

int mhla_part_setting(const mhla_lab_part *part, const char *key, char *value, size_t size) {
    const size_t n = strlen(key);
    int found = 0;
    for (const char *at = part->settings; *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length > n && strncmp(at, key, n) == 0 && at[n] == '=') {
            snprintf(value, size, "%.*s", (int)(length - n - 1), at + n + 1);
            found = 1;
        }
        at += length;
    }
    return found;
}

int64_t mhla_part_number(const mhla_lab_part *part, const char *key) {
    char text[32] = "0";
    mhla_part_setting(part, key, text, sizeof text);
    return strtoll(text, NULL, 10);
}

/* ---- The file ---- */

static void row_free(mhla_lab_row *row) {
    json_decref(row->measures);
    free(row->program);
    free(row->machine);
    free(row->data);
    free(row->made);
}

void mhla_results_free(mhla_lab *lab) {
    for (int i = 0; i < lab->count; i++) row_free(&lab->rows[i]);
    free(lab->rows);
    lab->rows = NULL;
    lab->count = 0;
}

const mhla_lab_row *mhla_results_find(const mhla_lab *lab, int arm, int seed) {
    for (int i = 0; i < lab->count; i++)
        if (lab->rows[i].arm == arm && lab->rows[i].seed == seed) return &lab->rows[i];
    return NULL;
}

static mhla_status keep(mhla_lab *lab, int arm, int seed, const json_t *line) {
    mhla_lab_row *more = realloc(lab->rows, ((size_t)lab->count + 1) * sizeof *more);
    if (more == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the results");
    lab->rows = more;
    mhla_lab_row *row = &more[lab->count++];
    *row = (mhla_lab_row){.arm = arm, .seed = seed};
    row->measures = json_deep_copy(json_object_get(line, "measures"));
    row->seconds = json_number_value(json_object_get(line, "seconds"));
    char **const texts[] = {&row->program, &row->machine, &row->data, &row->made};
    static const char *const names[] = {"program", "machine", "data", "made"};
    for (int i = 0; i < 4; i++) {
        const char *text = json_string_value(json_object_get(line, names[i]));
        if ((*texts[i] = strdup(text ? text : "")) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the results");
    }
    return row->measures ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the results");
}

typedef struct reading {
    mhla_lab *lab;
    const char *path;
    int line;
} reading;

/* Numbers under names, nothing else: figures are made of them without another look. */
static mhla_status check_measures(const reading *r, const json_t *measures) {
    const char *name;
    json_t *value;
    if (!json_is_object(measures))
        return mhla_fail(MHLA_EDATA,
                         "%s: line %d has no object \"measures\"; remove the line, and its part is made again", r->path,
                         r->line);
    json_object_foreach((json_t *)measures, name, value) {
        if (!json_is_number(value) || !isfinite(json_number_value(value)))
            return mhla_fail(MHLA_EDATA, "%s: line %d: the measure %s is %s, expected a number", r->path, r->line,
                             MHLA_QUOTE(name), mhla_json_type_text(value));
    }
    return MHLA_OK;
}

static mhla_status read_line(void *user, const json_t *line) {
    reading *r = user;
    mhla_lab *lab = r->lab;
    const char *arm = NULL, *key = NULL;
    int64_t seed = 0;
    mhla_lab_part part;
    r->line++;
    if (!json_is_object(line))
        return mhla_fail(MHLA_EDATA, "%s: line %d is %s, expected an object", r->path, r->line,
                         mhla_json_type_text(line));
    MHLA_TRY(mhla_json_get_text(&arm, line, "arm", r->path));
    MHLA_TRY(mhla_json_get_text(&key, line, "key", r->path));
    MHLA_TRY(mhla_json_get_int(&seed, line, "seed", 0, 1 << 30, r->path));
    if (arm == NULL || key == NULL)
        return mhla_fail(MHLA_EDATA, "%s: line %d has no \"arm\" or no \"key\"", r->path, r->line);
    MHLA_TRY(check_measures(r, json_object_get(line, "measures")));
    const int i = mhla_experiment_arm(lab->experiment, arm);
    if (i < 0 || seed < 1 || seed > lab->seeds || !mhla_experiment_has(lab->experiment, i, lab->quick)) return MHLA_OK;
    mhla_status status = mhla_part_begin(&part, lab, i, (int)seed);
    if (status == MHLA_OK && strcmp(part.key, key) == 0 && mhla_results_find(lab, i, (int)seed) == NULL)
        status = keep(lab, i, (int)seed, line);
    mhla_part_end(&part);
    return status;
}

static void results_path(const mhla_lab *lab, char path[4096]) {
    snprintf(path, 4096, "%s/results.jsonl", lab->folder);
}

mhla_status mhla_results_read(mhla_lab *lab) {
    char path[4096];
    reading r = {.lab = lab, .path = path};
    mhla_results_free(lab);
    results_path(lab, path);
    return access(path, F_OK) == 0 ? mhla_jsonl_read(path, read_line, &r) : MHLA_OK;
}

mhla_status mhla_results_add(mhla_lab *lab, const mhla_lab_part *part, double seconds) {
    char path[4096], when[32];
    mhla_jsonl log;
    const time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(when, sizeof when, "%Y-%m-%d", &parts);
    json_t *line = json_pack("{s:s, s:i, s:s, s:O, s:s, s:s, s:s, s:s, s:s, s:f}", "arm",
                             lab->experiment->arms[part->arm].name, "seed", part->seed, "key", part->key, "measures",
                             part->measures, "settings", part->settings, "program", lab->program, "machine",
                             lab->machine, "data", lab->data_sum, "made", when, "seconds", seconds);
    if (line == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the results");
    results_path(lab, path);
    mhla_status status = keep(lab, part->arm, part->seed, line);
    if (status == MHLA_OK) status = mhla_jsonl_open(&log, path);
    if (status != MHLA_OK) {
        json_decref(line);
        return status;
    }
    status = mhla_jsonl_write(&log, line);
    const mhla_status closed = mhla_jsonl_close(&log);
    return status != MHLA_OK ? status : closed;
}

int mhla_results_take(const mhla_lab *lab, int arm, const char *measure, double values[MHLA_LAB_SEEDS],
                      double errors[MHLA_LAB_SEEDS]) {
    char name[80];
    int n = 0;
    snprintf(name, sizeof name, "%.60s_error", measure);
    for (int seed = 1; seed <= lab->seeds && n < MHLA_LAB_SEEDS; seed++) {
        const mhla_lab_row *row = mhla_results_find(lab, arm, seed);
        const json_t *value = row ? json_object_get(row->measures, measure) : NULL;
        if (value == NULL) continue;
        const json_t *error = json_object_get(row->measures, name);
        values[n] = json_number_value(value);
        errors[n++] = error ? json_number_value(error) : NAN;
    }
    return n;
}
