/* The list of architectures, and which of them files are of. To add one: its files, and a line here
 * (docs/adding-a-model.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/gguf.h"
#include "file/text.h"
#include "models/model.h"

#define ARCHITECTURES(X)                                                                                               \
    X(deit)                                                                                                            \
    X(vlt)                                                                                                             \
    X(dit)                                                                                                             \
    X(dig)                                                                                                             \
    X(sana)                                                                                                            \
    X(wan)                                                                                                             \
    X(lm)                                                                                                              \
    X(sd_vae)                                                                                                          \
    X(wan_vae)                                                                                                         \
    X(dc_ae)                                                                                                           \
    X(umt5)                                                                                                            \
    X(clip)

#define DECLARE(name) extern const mhla_architecture mhla_architecture_##name;
ARCHITECTURES(DECLARE)
#define ROW(name) &mhla_architecture_##name,
static const mhla_architecture *const list[] = {ARCHITECTURES(ROW)};
enum { COUNT = sizeof list / sizeof *list };

const mhla_architecture *mhla_architecture_at(int i) { return i >= 0 && i < COUNT ? list[i] : NULL; }

mhla_status mhla_model_preset(int i, char name[64]) {
    if (name == NULL) return mhla_fail(MHLA_EINVAL, "name is NULL");
    for (int a = 0, n = 0; a < COUNT; a++)
        for (const char *at = list[a]->presets; at && *at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
            if (n++ == i) {
                snprintf(name, 64, "%.*s", (int)strcspn(at, "|"), at);
                return MHLA_OK;
            }
    return mhla_fail(MHLA_ERANGE, "there is no preset %d", i);
}

const mhla_architecture *mhla_architecture_of_preset(const char *preset) {
    const size_t n = strlen(preset);
    for (int i = 0; i < COUNT; i++)
        for (const char *at = list[i]->presets; n && at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
            if (strcspn(at, "|") == n && strncmp(at, preset, n) == 0) return list[i];
    return NULL;
}

int mhla_architecture_has(const mhla_architecture *a, mhla_role role) {
    const void *const roles[] = {a->classifier, a->denoiser, a->decoder, a->encoder, a->autoencoder, a->comparer};
    return roles[role] != NULL;
}

const char *mhla_role_name(mhla_role role) {
    static const char *const names[] = {"an image classifier", "a diffusion model",
                                        "a language model",    "a text encoder",
                                        "an autoencoder",      "a model that matches images and texts"};
    return names[role];
}

/* ---- Detection ---- */

/* Keys under which a config.json says what it is of. */
static const char *const naming[] = {"model_type", "_class_name", "architecture", "architectures", "model"};
enum { NAMING = sizeof naming / sizeof *naming };

int mhla_evidence_named(const mhla_evidence *e) {
    int named = e->index != NULL;
    for (int i = 0; i < NAMING; i++) named |= json_object_get(e->config, naming[i]) != NULL;
    return named;
}

/* ` key "value"`, or the first of a list */
static void say_key(FILE *out, const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (json_is_array(value)) value = json_array_get(value, 0);
    if (value)
        fprintf(out, ", %s %s", key, json_is_string(value) ? MHLA_QUOTE(json_string_value(value)) : "without a text");
}

/* What files say of themselves, for the message that nothing or too much matched. */
static void describe(FILE *out, const mhla_evidence *e) {
    if (e->gguf) {
        char *name = NULL;
        if (mhla_gguf_get_text(&name, e->gguf, "general.architecture") == MHLA_OK && name)
            fprintf(out, "GGUF, general.architecture %s", MHLA_QUOTE(name));
        else
            fprintf(out, "GGUF without general.architecture");
        free(name);
        return;
    }
    if (e->index) {
        fprintf(out, "model_index.json of a pipeline");
        say_key(out, e->index, "_class_name");
    }
    if (e->config) {
        fprintf(out, "config.json");
        for (int i = 0; i < NAMING; i++) say_key(out, e->config, naming[i]);
        if (!mhla_evidence_named(e)) fprintf(out, " without model_type, _class_name, architecture or model");
    }
    const int64_t tensors = e->file ? mhla_safetensors_count(e->file) : 0;
    if (e->file) fprintf(out, "%s%lld tensors", e->config ? ", " : "no config.json, ", (long long)tensors);
    for (int64_t i = 0; i < tensors && i < 3; i++)
        fprintf(out, "%s%s", i ? ", " : ": ", MHLA_QUOTE(mhla_safetensors_at(e->file, i)->name));
    if (tensors > 3) fprintf(out, " and more");
    if (e->index == NULL && e->config == NULL && e->file == NULL)
        fprintf(out, "no config.json here, nor in best/ or last/, no model_index.json, no weights");
}

const mhla_architecture *mhla_architecture_only(const mhla_evidence *e) {
    const mhla_architecture *match = NULL;
    for (int i = 0; i < COUNT; i++) {
        if (!list[i]->fits(e)) continue;
        if (match) return NULL;
        match = list[i];
    }
    return match;
}

mhla_status mhla_architecture_detect(const mhla_architecture **found, const mhla_evidence *e) {
    int matches = 0;
    *found = mhla_architecture_only(e);
    if (*found) return MHLA_OK;
    for (int i = 0; i < COUNT; i++) matches += list[i]->fits(e) != 0;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size); /* as long as it has to be, however many architectures there are */
    if (out == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a message");
    const int nothing = e->gguf == NULL && e->index == NULL && e->config == NULL && e->file == NULL;
    fprintf(out, matches ? "this could be" : nothing ? "neither a model nor a run" : "not a model that is known here");
    for (int i = 0, n = 0; matches && i < COUNT; i++)
        if (list[i]->fits(e)) fprintf(out, "%s %s", n++ ? " and" : "", list[i]->name);
    fprintf(out, ". Found: ");
    describe(out, e);
    fprintf(out, ". Known are ");
    for (int i = 0; i < COUNT; i++)
        fprintf(out, "%s%s: %s%s", i ? "; " : "", list[i]->name, list[i]->known,
                list[i]->types ? list[i]->types() : "");
    const mhla_status status = fclose(out) != 0
                                   ? mhla_fail(MHLA_ENOMEM, "no memory for a message")
                                   : mhla_fail(matches || nothing ? MHLA_EDATA : MHLA_ENOTSUP, "%s: %s", e->path, text);
    free(text);
    return status;
}
