/* The learning rate of an arm, by the same small search for every arm: a short training with each rate of `lab.rates`, from a seed
 * that no result is made with. The rate with the least training loss is taken. The test set is not looked at. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/status.h"
#include "lab/lab.h"

enum { RATES = 8 };
_Static_assert((int)MHLA_LAB_SEARCH_SEED > (int)MHLA_LAB_SEEDS, "the search has a seed of its own");

/* ---- The loss of a run: the mean over the last quarter of its updates ---- */

typedef struct losses {
    double *values;
    int count;
} losses;

static mhla_status take_loss(void *user, const json_t *line) {
    losses *l = user;
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (kind == NULL || strcmp(kind, "step") != 0) return MHLA_OK;
    double *more = realloc(l->values, ((size_t)l->count + 1) * sizeof *more);
    if (more == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the losses of a run");
    l->values = more;
    more[l->count++] = json_number_value(json_object_get(line, "loss"));
    return MHLA_OK;
}

static mhla_status late_loss(double *loss, const char *run) {
    char path[MHLA_LAB_PATH + 32];
    losses l = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    mhla_status status = mhla_jsonl_read(path, take_loss, &l);
    if (status == MHLA_OK && l.count == 0) status = mhla_fail(MHLA_EDATA, "%s: no update in it", path);
    const int from = l.count - (l.count + 3) / 4;
    *loss = 0.0;
    for (int i = from; i < l.count && status == MHLA_OK; i++) *loss += l.values[i] / (l.count - from);
    free(l.values);
    return status;
}

/* ---- One rate ---- */

/* All settings, then those that begin with "search." without that, then rate and seed. */
static char *settings_of(const char *settings, const char *rate) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return NULL;
    fputs(settings, out);
    for (const char *at = settings; *at; at += strspn(at, " ")) {
        const int n = (int)strcspn(at, " ");
        if (strncmp(at, "search.", 7) == 0) fprintf(out, " %.*s", n - 7, at + 7);
        at += n;
    }
    fprintf(out, " train.rate=%s seed=%d", rate, MHLA_LAB_SEARCH_SEED);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

static mhla_status try_rate(mhla_lab_part *part, const char *rate, double *loss) {
    char run[MHLA_LAB_PATH];
    mhla_lab_part one = *part;
    one.measures = json_object();
    one.settings = settings_of(part->settings, rate);
    mhla_status status = one.settings && one.measures ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a part");
    if (status == MHLA_OK) status = mhla_part_train(&one, run);
    if (status == MHLA_OK && *run) status = late_loss(loss, run);
    free(one.settings);
    json_decref(one.measures);
    return status;
}

/* ---- All of them ---- */

static const char *const names[] = {"rate", "search_runs", "search_seconds", "search_end"};
enum { NAMES = sizeof names / sizeof *names };

/* What another seed of the arm has found counts for this one. */
static mhla_status from_results(mhla_lab_part *part, const char *prefix, double *rate) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, names[0]);
    for (int i = 0; i < part->lab->count; i++) {
        const mhla_lab_row *row = &part->lab->rows[i];
        if (row->arm != part->arm || !json_object_get(row->measures, name)) continue;
        *rate = json_number_value(json_object_get(row->measures, name));
        for (int k = 0; k < NAMES; k++) {
            snprintf(name, sizeof name, "%s%s", prefix, names[k]);
            MHLA_TRY(mhla_part_put(part, name, json_number_value(json_object_get(row->measures, name)), NAN));
        }
        return MHLA_OK;
    }
    return MHLA_OK;
}

mhla_status mhla_search_rate(mhla_lab_part *part, const char *list, const char *prefix, mhla_try_fn try_one,
                             double *rate) {
    char rates[160], name[64], *rest = NULL;
    int n = 0, best = -1;
    double values[RATES], least = INFINITY;
    const double begin = mhla_seconds();
    snprintf(rates, sizeof rates, "%s", list); /* is cut into pieces */
    *rate = 0.0;
    MHLA_TRY(from_results(part, prefix, rate));
    if (*rate > 0.0) return MHLA_OK;
    for (char *one = strtok_r(rates, ",", &rest); one && n < RATES; one = strtok_r(NULL, ",", &rest)) {
        double loss = NAN;
        const mhla_status status = try_one(part, one, &loss);
        if (status == MHLA_ERANGE) /* it broke off, as its loss is not finite: worse than any other */
            loss = INFINITY;
        else if (status != MHLA_OK || isnan(loss)) /* NaN: stopped */
            return status;
        values[n] = strtod(one, NULL);
        if (loss < least) least = loss, best = n;
        n++;
    }
    if (best < 0) return mhla_fail(MHLA_ERANGE, "no learning rate of %s trains this arm", list);
    *rate = values[best];
    const double found[NAMES] = {*rate, n, mhla_seconds() - begin, n > 1 && (best == 0 || best == n - 1)};
    for (int k = 0; k < NAMES; k++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[k]);
        MHLA_TRY(mhla_part_put(part, name, found[k], NAN));
    }
    return MHLA_OK;
}

mhla_status mhla_part_search(mhla_lab_part *part) {
    char list[160], *more = NULL;
    double rate;
    if (!mhla_part_setting(part, "lab.rates", list, sizeof list) || *list == '\0') return MHLA_OK;
    MHLA_TRY(mhla_search_rate(part, list, "", try_rate, &rate));
    if (rate == 0.0) return MHLA_OK; /* stopped */
    if (asprintf(&more, "%s train.rate=%g", part->settings, rate) < 0)
        return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    free(part->settings);
    part->settings = more;
    return MHLA_OK;
}
