/* The list of architectures, and which of them files are of. To add one: its files, and a line here
 * (docs/adding-a-model.md). */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "file/gguf.h"
#include "file/text.h"
#include "models/model.h"

#define ARCHITECTURES(X)                                                                                               \
    X(deit)                                                                                                            \
    X(dit)                                                                                                             \
    X(lm)

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
    const void *const roles[] = {a->classifier, a->denoiser, a->decoder, a->encoder, a->autoencoder};
    return roles[role] != NULL;
}

const char *mhla_role_name(mhla_role role) {
    static const char *const names[] = {"an image classifier", "a diffusion model", "a language model",
                                        "a text encoder", "an autoencoder"};
    return names[role];
}

/* ---- Detection ---- */

/* What files say of themselves, for the message that nothing or too much matched. */
static void describe(char *text, size_t size, const mhla_evidence *e) {
    static const char *const keys[] = {"model_type", "_class_name", "architecture", "model"};
    size_t n = 0;
    text[0] = '\0';
#define SAY(...) (n += n < size ? (size_t)snprintf(text + n, size - n, __VA_ARGS__) : 0)
    if (e->gguf) {
        char *name = NULL;
        if (mhla_gguf_get_text(&name, e->gguf, "general.architecture") == MHLA_OK && name)
            SAY("general.architecture %s", MHLA_QUOTE(name));
        else
            SAY("no general.architecture");
        free(name);
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = json_string_value(json_object_get(e->config, keys[i]));
        if (value) SAY("%s%s %s", n ? ", " : "", keys[i], MHLA_QUOTE(value));
    }
    if (e->config && n == 0) SAY("config.json without model_type, _class_name, architecture or model");
    const int64_t tensors = e->file ? mhla_safetensors_count(e->file) : 0;
    if (tensors > 0) SAY("%s%lld tensors (", n ? ", " : "", (long long)tensors);
    for (int64_t i = 0; i < tensors && i < 3; i++)
        SAY("%s%s", i ? ", " : "", MHLA_QUOTE(mhla_safetensors_at(e->file, i)->name));
    if (tensors > 0) SAY(tensors > 3 ? ", ...)" : ")");
#undef SAY
}

mhla_status mhla_architecture_detect(const mhla_architecture **found, const mhla_evidence *e) {
    char said[512], known[1024] = "", both[128] = "";
    int matches = 0;
    *found = NULL;
    for (int i = 0; i < COUNT; i++) {
        const size_t n = strlen(known), m = strlen(both);
        snprintf(known + n, sizeof known - n, "%s%s: %s", i ? "; " : "", list[i]->name, list[i]->known);
        if (!list[i]->fits(e)) continue;
        matches++;
        *found = list[i];
        snprintf(both + m, sizeof both - m, "%s%s", m ? " and " : "", list[i]->name);
    }
    if (matches == 1) return MHLA_OK;
    *found = NULL;
    describe(said, sizeof said, e);
    return matches ? mhla_fail(MHLA_EDATA, "%s: this could be %s. Found: %s", e->path, both, said)
                   : mhla_fail(MHLA_ENOTSUP, "%s: not a model that is known here. Found: %s. Known are %s", e->path,
                               said, known);
}
