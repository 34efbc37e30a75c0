/* Pipelines: which components there are, where they lie, and whether they fit together. */
#include "infer/pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/sha256.h"
#include "infer/identity.h"

enum { PATH = 4096 };

static int is_there(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static int in_folder(char path[PATH], const char *folder, const char *name) {
    const char *between = *name ? "/" : "";
    return snprintf(path, PATH, "%s%s%s", folder, between, name) < PATH;
}

/* ---- Which class ---- */

static const mhla_pipeline_kind *kind_named(const char *name) {
    for (int i = 0; name && mhla_pipeline_kind_at(i); i++)
        if (strcmp(mhla_pipeline_kind_at(i)->name, name) == 0) return mhla_pipeline_kind_at(i);
    return NULL;
}

/* Of the authors' own folder. */
static const mhla_pipeline_kind *kind_by_files(const char *folder) {
    char path[PATH];
    for (int i = 0; mhla_pipeline_kind_at(i); i++) {
        const mhla_pipeline_kind *k = mhla_pipeline_kind_at(i);
        int all = k->files[MHLA_PART_TRANSFORMER] != NULL;
        for (int part = 0; part < MHLA_PARTS && all; part++)
            all = k->files[part] == NULL || (in_folder(path, folder, k->files[part]) && is_there(path));
        if (all) return k;
    }
    return NULL;
}

int mhla_pipeline_is(const char *folder) {
    char path[PATH];
    return folder && ((in_folder(path, folder, "model_index.json") && is_there(path)) || mhla_pipeline_run_is(folder) ||
                      kind_by_files(folder));
}

static mhla_status unknown_kind(const char *path, const char *name) {
    char known[256] = "";
    for (int i = 0; mhla_pipeline_kind_at(i); i++) {
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? " and " : "", mhla_pipeline_kind_at(i)->name);
    }
    return mhla_fail(MHLA_ENOTSUP, "%s: pipeline %s is not known: %s are", path,
                     name ? MHLA_QUOTE(name) : "without _class_name", known);
}

/* ---- Where the components are ---- */

static mhla_status set(char **to, const char *text) {
    if (text && (*to = strdup(text)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a pipeline");
    return MHLA_OK;
}

/* The class of a component in model_index.json, for messages; NULL: it has none. */
static const char *class_of(const json_t *index, int part) {
    return json_string_value(json_array_get(json_object_get(index, mhla_part_names[part]), 1));
}

static mhla_status find_part(mhla_pipeline *p, int part, const json_t *index) {
    char path[PATH];
    const char *name = index ? mhla_part_names[part] : p->kind->files[part];
    if (name == NULL) return MHLA_OK;
    if (!in_folder(path, p->folder, name)) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", p->folder);
    if (is_there(path)) return set(&p->parts[part], path);
    if (part >= MHLA_COMPONENTS) return MHLA_OK;
    const char *class_ = class_of(index, part);
    if (class_)
        return mhla_fail(MHLA_EIO, "%s: no folder %s here, in which model_index.json has %s", p->folder, name,
                         MHLA_QUOTE(class_));
    return mhla_fail(MHLA_EIO, "%s: no %s here: the pipeline is not complete", p->folder, name);
}

/* A pipeline may have more than is known here: other clips would come out than its authors mean. */
static mhla_status check_index(const json_t *index, const char *path) {
    static const char *const keys[] = {"transformer_2", "boundary_ratio", "expand_timesteps"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(index, keys[i]);
        if (json_is_array(value)) value = json_array_get(value, 0);
        if (value && !json_is_null(value) && !json_is_false(value))
            return mhla_fail(MHLA_ENOTSUP, "%s: the pipeline has %s, as Wan 2.2 does: only Wan 2.1 is supported", path,
                             keys[i]);
    }
    return MHLA_OK;
}

/* What the folder has of the parts that were not named. */
static mhla_status find_parts(mhla_pipeline *p) {
    char path[PATH];
    json_t *index = NULL;
    mhla_status status = MHLA_OK;
    if (!in_folder(path, p->folder, "model_index.json"))
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", p->folder);
    if (is_there(path)) {
        MHLA_TRY(mhla_json_load(&index, path));
        const char *name = json_string_value(json_object_get(index, "_class_name"));
        p->kind = kind_named(name);
        status = p->kind ? check_index(index, path) : unknown_kind(path, name);
    } else if ((p->kind = kind_by_files(p->folder)) == NULL) {
        status = is_there(p->folder) ? mhla_fail(MHLA_EDATA, "%s: no model_index.json here: not a pipeline", p->folder)
                                     : mhla_fail(MHLA_EIO, "%s: %s", p->folder, strerror(errno));
    }
    for (int part = 0; part < MHLA_PARTS && status == MHLA_OK; part++)
        if (p->parts[part] == NULL) status = find_part(p, part, index);
    json_decref(index);
    if (status != MHLA_OK || p->parts[MHLA_PART_SCHEDULER] == NULL || p->given[MHLA_PART_SCHEDULER]) return status;
    if (!in_folder(path, p->parts[MHLA_PART_SCHEDULER], "scheduler_config.json"))
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", p->folder);
    free(p->parts[MHLA_PART_SCHEDULER]);
    p->parts[MHLA_PART_SCHEDULER] = NULL;
    return set(&p->parts[MHLA_PART_SCHEDULER], path);
}

/* ---- Components ---- */

mhla_status mhla_pipeline_part(mhla_model **model, const mhla_pipeline *p, mhla_component part, int look) {
    /* a run's encoder as it was when the captions were made */
    const int own = part == MHLA_TEXT_ENCODER && p->kind == &p->own;
    const mhla_open_desc desc = {.size = sizeof desc, .storage = own ? NULL : p->storage};
    MHLA_TRY(look ? mhla_model_look(model, p->parts[part], &desc) : mhla_model_open_as(model, p->parts[part], &desc));
    if (p->context) mhla_model_set_context(*model, p->context);
    return MHLA_OK;
}

/* A run's model without an autoencoder makes pixels itself. */
static mhla_status make_pixels(mhla_pipeline *p) {
    const int channels = p->denoiser.channels;
    if (channels != 1 && channels != 3)
        return mhla_fail(MHLA_EINVAL, "%s makes latents of %d channels: --vae names the autoencoder that decodes them",
                         p->parts[MHLA_PART_TRANSFORMER], channels);
    p->autoencoder = (mhla_autoencoder_info){
        .channels = channels, .outputs = channels, .latents = channels, .factor = 1, .decodes = 1};
    memset(p->fingerprints[MHLA_VAE], '0', 64);
    return MHLA_OK;
}

static mhla_status look_at(mhla_pipeline *p, mhla_component part) {
    mhla_model *m;
    if (p->parts[part] == NULL && part == MHLA_VAE) return make_pixels(p);
    if (p->kind == &p->own && part == MHLA_TEXT_ENCODER) { /* it may not be there, and need not */
        memcpy(p->fingerprints[part], p->encoder_sum, sizeof p->encoder_sum);
        return MHLA_OK;
    }
    MHLA_TRY(mhla_pipeline_part(&m, p, part, 1));
    mhla_status status = part == MHLA_TEXT_ENCODER  ? mhla_encoder_query(m, &p->encoder)
                         : part == MHLA_TRANSFORMER ? mhla_denoiser_query(m, &p->denoiser)
                                                    : mhla_autoencoder_query(m, &p->autoencoder);
    if (status != MHLA_OK) status = mhla_fail(status, "%s: %s", p->parts[part], mhla_message());
    if (status == MHLA_OK && part == MHLA_TRANSFORMER && p->kind == NULL) { /* of single files */
        for (int i = 0; mhla_pipeline_kind_at(i) && p->kind == NULL; i++)
            if (strcmp(mhla_pipeline_kind_at(i)->architecture, m->architecture->name) == 0)
                p->kind = mhla_pipeline_kind_at(i);
        if (p->kind == NULL)
            status = mhla_fail(MHLA_ENOTSUP, "%s: this model cannot be part of a pipeline", p->parts[part]);
    }
    if (status == MHLA_OK) status = mhla_model_fingerprint(m, p->fingerprints[part]);
    mhla_model_free(m);
    return status;
}

static mhla_status check(const mhla_pipeline *p) {
    const mhla_denoiser_info *d = &p->denoiser;
    const mhla_autoencoder_info *a = &p->autoencoder;
    char *const *at = p->parts;
    if (d->text_width == 0)
        return mhla_fail(MHLA_EINVAL, "%s: the model takes classes, not text: it is not part of a pipeline",
                         at[MHLA_PART_TRANSFORMER]);
    if (d->text_width != p->encoder.width)
        return mhla_fail(MHLA_EINVAL, "%s makes %d numbers per token, %s takes %d", at[MHLA_PART_TEXT_ENCODER],
                         p->encoder.width, at[MHLA_PART_TRANSFORMER], d->text_width);
    if (!a->decodes) return mhla_fail(MHLA_EINVAL, "%s: the autoencoder has no decoder", at[MHLA_PART_VAE]);
    if (d->channels != a->latents)
        return mhla_fail(MHLA_EINVAL, "%s makes latents of %d channels, %s decodes %d", at[MHLA_PART_TRANSFORMER],
                         d->channels, at[MHLA_PART_VAE], a->latents);
    if ((d->extent.frames > 0) != (a->frames > 0))
        return mhla_fail(MHLA_EINVAL, "%s makes %s, %s decodes %s", at[MHLA_PART_TRANSFORMER],
                         d->extent.frames ? "clips" : "images", at[MHLA_PART_VAE], a->frames ? "clips" : "images");
    return MHLA_OK;
}

/* ---- Opening ---- */

static mhla_status open_parts(mhla_pipeline *p, const mhla_pipeline_desc *d) {
    const char *const given[MHLA_PARTS] = {d->text_encoder, d->transformer, d->vae, d->tokenizer, d->scheduler};
    mhla_sha256 h;
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, d->storage));
    if (storage > MHLA_BF16)
        return mhla_fail(MHLA_EINVAL, "storage \"%s\": components are kept as float32 or bfloat16", d->storage);
    for (int part = 0; part < MHLA_PARTS; part++) {
        MHLA_TRY(set(&p->parts[part], given[part]));
        p->given[part] = given[part] != NULL;
        if (d->folder == NULL && part < MHLA_COMPONENTS && given[part] == NULL)
            return mhla_fail(MHLA_EINVAL, "%s is not named, and there is no folder of a pipeline",
                             mhla_part_names[part]);
    }
    MHLA_TRY(set(&p->folder, d->folder));
    MHLA_TRY(set(&p->storage, d->storage));
    MHLA_TRY(set(&p->texts, d->texts));
    if (p->folder && mhla_pipeline_run_is(p->folder))
        MHLA_TRY(mhla_pipeline_run_find(p));
    else if (p->folder)
        MHLA_TRY(find_parts(p));
    if (p->given[MHLA_PART_TEXT_ENCODER] && !p->given[MHLA_PART_TOKENIZER]) { /* the folder's is another one's */
        free(p->parts[MHLA_PART_TOKENIZER]);
        p->parts[MHLA_PART_TOKENIZER] = NULL;
    }
    for (int part = 0; part < MHLA_COMPONENTS; part++) MHLA_TRY(look_at(p, (mhla_component)part));
    if (p->kind == &p->own && p->denoiser.extent.frames && p->autoencoder.frames == 0)
        p->autoencoder.frames = 1; /* as many frames of latents, or of pixels without one, as of the clip */
    p->schedule = p->kind->schedule;
    if (p->parts[MHLA_PART_SCHEDULER]) MHLA_TRY(mhla_flow_schedule_read(&p->schedule, p->parts[MHLA_PART_SCHEDULER]));
    mhla_sha256_begin(&h);
    for (int part = 0; part < MHLA_COMPONENTS; part++) mhla_sha256_add(&h, p->fingerprints[part], 64);
    mhla_sha256_end(&h, p->weights);
    return check(p);
}

mhla_status mhla_pipeline_open(mhla_pipeline **pipeline, const mhla_pipeline_desc *desc) {
    mhla_pipeline_desc d;
    *pipeline = NULL;
    MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_pipeline_desc"));
    mhla_pipeline *p = calloc(1, sizeof *p);
    if (p == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a pipeline");
    p->context = d.context;
    const mhla_status status = open_parts(p, &d);
    if (status != MHLA_OK) {
        mhla_pipeline_free(p);
        return status;
    }
    *pipeline = p;
    return MHLA_OK;
}

void mhla_pipeline_free(mhla_pipeline *p) {
    if (p == NULL) return;
    for (int part = 0; part < MHLA_PARTS; part++) free(p->parts[part]);
    free(p->folder);
    free(p->storage);
    free(p->texts);
    mhla_prompts_free(p->prompts);
    mhla_captions_free(&p->known);
    free(p->instruction);
    free(p);
}

mhla_status mhla_pipeline_query(const mhla_pipeline *p, mhla_pipeline_info *info) {
    mhla_pipeline_info full = {.size = sizeof full,
                               .name = p->kind->name,
                               .transformer = p->parts[MHLA_PART_TRANSFORMER],
                               .vae = p->parts[MHLA_PART_VAE],
                               .text_encoder = p->parts[MHLA_PART_TEXT_ENCODER],
                               .tokenizer = p->parts[MHLA_PART_TOKENIZER],
                               .negative = p->kind->negative,
                               .clips = p->autoencoder.frames > 0,
                               .outputs = p->autoencoder.outputs,
                               .factor = p->autoencoder.factor * (p->denoiser.patch ? p->denoiser.patch : 1),
                               .frames = p->autoencoder.frames,
                               .seconds = p->kind->seconds};
    memcpy(full.weights, p->weights, sizeof full.weights);
    return mhla_struct_out(info, &full, sizeof full, "mhla_pipeline_info");
}
