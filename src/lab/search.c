/* The learning rate of an arm, by the same small search for every arm: a short training with each rate of `lab.rates`, from a seed
 * that no result is made with. The rate with the least training loss is taken. The test set is not looked at. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/status.h"
#include "lab/lab.h"

enum { SEED = 1000, RATES = 8 }; /* SEED: above all that MHLA_LAB_SEEDS allows */
_Static_assert((int)SEED > (int)MHLA_LAB_SEEDS, "the search has a seed of its own");

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
    fprintf(out, " train.rate=%s seed=%d", rate, SEED);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

/* A rate with which the training breaks off, as its loss is not finite, is worse than any other. *loss NaN: stopped. */
static mhla_status try_rate(mhla_lab_part *part, const char *rate, double *loss) {
    char run[MHLA_LAB_PATH];
    mhla_lab_part one = *part;
    *loss = NAN;
    one.measures = json_object();
    one.settings = settings_of(part->settings, rate);
    mhla_status status = one.settings && one.measures ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a part");
    if (status == MHLA_OK) status = mhla_part_train(&one, run);
    if (status == MHLA_ERANGE) {
        *loss = INFINITY;
        status = MHLA_OK;
    } else if (status == MHLA_OK && *run)
        status = late_loss(loss, run);
    free(one.settings);
    json_decref(one.measures);
    return status;
}

/* ---- All of them ---- */

static mhla_status use(mhla_lab_part *part, double rate) {
    char *more = NULL;
    if (asprintf(&more, "%s train.rate=%g", part->settings, rate) < 0)
        return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    free(part->settings);
    part->settings = more;
    return MHLA_OK;
}

/* What another seed of the arm has found counts for this one. */
static mhla_status from_results(mhla_lab_part *part, int *found) {
    static const char *const names[] = {"rate", "search_runs", "search_seconds", "search_end"};
    *found = 0;
    for (int i = 0; i < part->lab->count && !*found; i++) {
        const mhla_lab_row *row = &part->lab->rows[i];
        if (row->arm != part->arm || !json_object_get(row->measures, "rate")) continue;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            MHLA_TRY(mhla_part_put(part, names[k], json_number_value(json_object_get(row->measures, names[k])), NAN));
        MHLA_TRY(use(part, json_number_value(json_object_get(row->measures, "rate"))));
        *found = 1;
    }
    return MHLA_OK;
}

mhla_status mhla_part_search(mhla_lab_part *part) {
    char list[160], rates[160], *rest = NULL;
    int found, n = 0, best = -1;
    double values[RATES], least = INFINITY;
    const double begin = mhla_seconds();
    if (!mhla_part_setting(part, "lab.rates", list, sizeof list) || *list == '\0') return MHLA_OK;
    snprintf(rates, sizeof rates, "%s", list); /* is cut into pieces */
    MHLA_TRY(from_results(part, &found));
    if (found) return MHLA_OK;
    for (char *rate = strtok_r(rates, ",", &rest); rate && n < RATES; rate = strtok_r(NULL, ",", &rest)) {
        double loss;
        MHLA_TRY(try_rate(part, rate, &loss));
        if (isnan(loss)) return MHLA_OK; /* stopped */
        values[n] = strtod(rate, NULL);
        if (loss < least) least = loss, best = n;
        n++;
    }
    if (best < 0) return mhla_fail(MHLA_ERANGE, "no learning rate of %s trains this arm", list);
    MHLA_TRY(mhla_part_put(part, "rate", values[best], NAN));
    MHLA_TRY(mhla_part_put(part, "search_runs", n, NAN));
    MHLA_TRY(mhla_part_put(part, "search_seconds", mhla_seconds() - begin, NAN));
    MHLA_TRY(mhla_part_put(part, "search_end", n > 1 && (best == 0 || best == n - 1), NAN));
    return use(part, values[best]);
}
