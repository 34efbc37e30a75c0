/* Parts of the length experiment: one attention, trained on the same images cut into more and more tokens with the same number of
 * updates; accuracy early and late, loss, and what its attention matrices are like at each length. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "lab/lab.h"

enum {
    IMAGE = 28,
    SIDE = 32,
    RANKED = 4096
}; /* pixels of an image, without and with padding; RANKED / T images have their rank measured: each takes T^3 */

/* Moves the measure `name` of `from` to NAME_T of `part`, with its error. */
static mhla_status put_at(mhla_lab_part *part, const mhla_lab_part *from, const char *name, int64_t T) {
    char key[80];
    const json_t *value = json_object_get(from->measures, name);
    snprintf(key, sizeof key, "%.60s_error", name);
    const json_t *error = json_object_get(from->measures, key);
    snprintf(key, sizeof key, "%.40s_%lld", name, (long long)T);
    if (value == NULL) return MHLA_OK;
    return mhla_part_put(part, key, json_number_value(value), error ? json_number_value(error) : NAN);
}

/* The same image as `side` x `side` tokens: larger patches, or beyond one pixel a token the image enlarged. */
static int cut(char settings[96], int64_t T) {
    const int side = (int)lround(sqrt((double)T)), times = side > SIDE ? side / SIDE : 1;
    if (side < 1 || (int64_t)side * side != T || times * SIDE % side != 0) return 0;
    snprintf(settings, 96, "model.image=%d,%d model.padding=%d,%d model.patch=%d", times * IMAGE, times * IMAGE,
             times * (SIDE - IMAGE) / 2, times * (SIDE - IMAGE) / 2, times * SIDE / side);
    return 1;
}

/* Trains and measures at T tokens; nothing is put if the lab was stopped. */
static mhla_status at_length(mhla_lab_part *part, int64_t T) {
    char image[96];
    if (!cut(image, T))
        return mhla_fail(MHLA_EINVAL, "%lld tokens do not cut %d x %d pixels into squares", (long long)T, SIDE, SIDE);
    mhla_lab_part one = *part;
    one.measures = json_object();
    mhla_status status = MHLA_OK;
    if (asprintf(&one.settings, "%s %s lab.ranked=%lld", part->settings, image,
                 (long long)(T < RANKED ? RANKED / T : 1)) < 0)
        one.settings = NULL;
    if (one.settings == NULL || one.measures == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory for a part");
    else
        status = mhla_part_collapse(&one);
    static const char *const names[] = {"early", "accuracy", "loss", "rank", "effective", "entropy", "parameters"};
    for (size_t i = 0; i < sizeof names / sizeof *names && status == MHLA_OK; i++)
        status = put_at(part, &one, names[i], T);
    free(one.settings);
    json_decref(one.measures);
    return status;
}

/* At each number of a list: "64,256". */
static mhla_status at_lengths(mhla_lab_part *part, const char *setting) {
    char tokens[128] = "";
    mhla_part_setting(part, setting, tokens, sizeof tokens);
    for (const char *at = tokens; *at && !part->lab->stop; at += strcspn(at, ","), at += *at == ',')
        MHLA_TRY(at_length(part, strtoll(at, NULL, 10)));
    return MHLA_OK;
}

mhla_status mhla_part_length(mhla_lab_part *part) {
    MHLA_TRY(at_lengths(part, "lab.tokens"));
    return part->seed == mhla_part_number(part, "lab.once_seed") ? at_lengths(part, "lab.once") : MHLA_OK;
}
