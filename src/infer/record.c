/* How a picture was made, as a JSON text: written into every picture, read back as what it is, a text from anywhere. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/json.h"

#include <mhla/diffusion.h>

enum {
    IMAGES_MOST = 1000000,
    OWNED = MHLA_UP_TO(mhla_sample_record, seeds),
    VAE = MHLA_UP_TO(mhla_sample_record, vae)
};
static const char made_by[] = "mhla sample";

mhla_status mhla_sample_record_write(char **text, const mhla_sample_record *record) {
    mhla_sample_record own, *const r = &own;
    *text = NULL;
    MHLA_TRY(mhla_struct_in(r, sizeof *r, record, "mhla_sample_record"));
    if (r->images > 0 && (r->classes == NULL || r->seeds == NULL))
        return mhla_fail(MHLA_EINVAL, "%s is NULL", r->classes ? "seeds" : "classes");
    const unsigned lost = mhla_json_lost();
    json_t *classes = json_array(), *seeds = json_array();
    for (int64_t i = 0; i < r->images; i++) {
        if (r->seeds[i] > INT64_MAX) {
            json_decref(classes);
            json_decref(seeds);
            return mhla_fail(MHLA_EINVAL, "seed %llu: expected less than 2^63", (unsigned long long)r->seeds[i]);
        }
        mhla_json_add(classes, json_integer(r->classes[i]));
        mhla_json_add(seeds, json_integer((json_int_t)r->seeds[i]));
    }
    json_t *tree =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:s, s:i, s:f, s:f, s:f, s:i, s:b, s:i, s:i, "
                  "s:i, s:i, s:s}",
                  "made_by", made_by, "version", r->version, "isa", r->isa, "model", r->model ? r->model : "",
                  "weights", r->weights, "choice", r->choice, "classes", classes, "seeds", seeds, "sampler", r->method,
                  "steps", r->steps, "eta", r->eta, "shift", r->shift, "guidance", r->guidance, "guided_channels",
                  r->guided_channels, "clip", r->clip, "height", r->height, "width", r->width, "columns", r->columns,
                  "animated", r->animated, "dtype", *r->dtype ? r->dtype : "float32");
    if (tree && r->frames) mhla_json_put(tree, "frames", json_integer(r->frames));
    if (tree && r->vae) {
        mhla_json_put(tree, "vae", json_string(r->vae));
        mhla_json_put(tree, "vae_weights", json_string(r->vae_weights));
    }
    if (tree && mhla_json_lost() == lost) *text = mhla_json_text(tree, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(tree);
    if (*text) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s: neither text nor memory for how an image was made", /* a path that is no UTF-8 */
                     r->model ? MHLA_QUOTE(r->model) : "a model");
}

/* ---- Reading ---- */

static mhla_status not_ours(const char *name) {
    return mhla_fail(MHLA_EDATA, "%s: its text is not one of mhla sample: it does not say how the image was made",
                     name);
}

static mhla_status read_lists(mhla_sample_record *r, const json_t *tree, const char *name) {
    const json_t *classes = json_object_get(tree, "classes"), *seeds = json_object_get(tree, "seeds");
    const size_t n = json_array_size(classes);
    if (n < 1 || n > IMAGES_MOST || json_array_size(seeds) != n)
        return mhla_fail(MHLA_EDATA, "%s: its text has %zu classes and %zu seeds: expected as many, 1 to %d", name, n,
                         json_array_size(seeds), IMAGES_MOST);
    r->classes = calloc(n, sizeof *r->classes);
    r->seeds = calloc(n, sizeof *r->seeds);
    if (r->classes == NULL || r->seeds == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    r->images = (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(classes, i), *s = json_array_get(seeds, i);
        if (!json_is_integer(c) || json_integer_value(c) < 0 || json_integer_value(c) > INT32_MAX ||
            !json_is_integer(s) || json_integer_value(s) < 0)
            return mhla_fail(MHLA_EDATA, "%s: its text: class or seed %zu is not a whole number, 0 or more", name, i);
        r->classes[i] = (int32_t)json_integer_value(c);
        r->seeds[i] = (uint64_t)json_integer_value(s);
    }
    return MHLA_OK;
}

/* A stranger's text may reach the terminal: no control characters. */
static mhla_status check_text(const char *text, const char *key, const char *name) {
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return mhla_fail(MHLA_EDATA, "%s: its text: \"%s\" has a control character", name, key);
    return MHLA_OK;
}

static mhla_status read_text(char *to, size_t room, const json_t *tree, const char *key, const char *name) {
    const char *text = NULL;
    MHLA_TRY(mhla_json_get_text(&text, tree, key, name));
    if (text == NULL) return mhla_fail(MHLA_EDATA, "%s: its text lacks \"%s\"", name, key);
    if (strlen(text) >= room) return mhla_fail(MHLA_EDATA, "%s: its text: \"%s\" is too long", name, key);
    MHLA_TRY(check_text(text, key, name));
    memcpy(to, text, strlen(text) + 1);
    return MHLA_OK;
}

static mhla_status read_record(mhla_sample_record *r, const json_t *tree, const char *name) {
    const struct {
        const char *key;
        char *to;
        size_t room;
    } texts[] = {{"weights", r->weights, sizeof r->weights},
                 {"choice", r->choice, sizeof r->choice},
                 {"sampler", r->method, sizeof r->method},
                 {"version", r->version, sizeof r->version},
                 {"isa", r->isa, sizeof r->isa}};
    const struct {
        const char *key;
        int *to, least, most;
    } numbers[] = {{"steps", &r->steps, 1, 1000},
                   {"guided_channels", &r->guided_channels, 0, 1 << 20},
                   {"height", &r->height, 1, 1 << 20},
                   {"width", &r->width, 1, 1 << 20},
                   {"columns", &r->columns, 1, IMAGES_MOST},
                   {"animated", &r->animated, 0, 1 << 16}};
    const struct {
        const char *key;
        double *to;
    } reals[] = {{"eta", &r->eta}, {"shift", &r->shift}, {"guidance", &r->guidance}};
    const char *model = NULL, *vae = NULL;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        MHLA_TRY(read_text(texts[i].to, texts[i].room, tree, texts[i].key, name));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t x = INT64_MIN;
        MHLA_TRY(mhla_json_get_int(&x, tree, numbers[i].key, numbers[i].least, numbers[i].most, name));
        if (x == INT64_MIN) return mhla_fail(MHLA_EDATA, "%s: its text lacks \"%s\"", name, numbers[i].key);
        *numbers[i].to = (int)x;
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        *reals[i].to = NAN;
        MHLA_TRY(mhla_json_get_real(reals[i].to, tree, reals[i].key, name));
        if (!isfinite(*reals[i].to)) return mhla_fail(MHLA_EDATA, "%s: its text lacks \"%s\"", name, reals[i].key);
    }
    MHLA_TRY(mhla_json_get_bool(&r->clip, tree, "clip", name));
    if (json_object_get(tree, "dtype"))
        MHLA_TRY(read_text(r->dtype, sizeof r->dtype, tree, "dtype", name)); /* 0.1 has none */
    MHLA_TRY(mhla_json_get_text(&model, tree, "model", name));
    if (model) MHLA_TRY(check_text(model, "model", name));
    if (model && (r->model = strdup(model)) == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    int64_t frames = 0;
    MHLA_TRY(mhla_json_get_int(&frames, tree, "frames", 0, 1 << 16, name));
    r->frames = (int)frames;
    MHLA_TRY(mhla_json_get_text(&vae, tree, "vae", name));
    if (vae) {
        MHLA_TRY(check_text(vae, "vae", name));
        MHLA_TRY(read_text(r->vae_weights, sizeof r->vae_weights, tree, "vae_weights", name));
        if ((r->vae = strdup(vae)) == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    }
    return read_lists(r, tree, name);
}

mhla_status mhla_sample_record_read(mhla_sample_record *record, const char *text, const char *name) {
    MHLA_TRY(mhla_struct_check(record, OWNED, "mhla_sample_record"));
    if (text == NULL) return not_ours(name);
    json_t *tree = NULL;
    mhla_sample_record r = {.size = sizeof r};
    mhla_status status = mhla_json_parse(&tree, text, strlen(text), name);
    if (status == MHLA_EDATA) return not_ours(name);
    if (status != MHLA_OK) return status;
    const char *by = json_string_value(json_object_get(tree, "made_by"));
    if (by == NULL || strcmp(by, made_by) != 0) status = not_ours(name);
    if (status == MHLA_OK) status = read_record(&r, tree, name);
    json_decref(tree);
    if (!mhla_struct_holds(record, VAE)) { /* nor could it be freed */
        free(r.vae);
        r.vae = NULL;
    }
    if (status == MHLA_OK) return mhla_struct_out(record, &r, sizeof r, "mhla_sample_record");
    mhla_sample_record_free(&r);
    return status;
}

void mhla_sample_record_free(mhla_sample_record *record) {
    const mhla_sample_record empty = {.size = sizeof empty};
    if (!mhla_struct_holds(record, OWNED)) return;
    if (mhla_struct_holds(record, VAE)) free(record->vae);
    free(record->model);
    free(record->classes);
    free(record->seeds);
    mhla_struct_out(record, &empty, sizeof empty, "mhla_sample_record");
}
