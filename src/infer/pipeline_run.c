/* A text-to-image model that was trained here, as a pipeline: text.json beside its weights names the encoder of its captions and how grids
 * were sampled. It may make pixels itself, without an autoencoder. A folder captions/ beside it has rows of known texts (data/captions.h), so
 * that a model can go without its encoder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/text.h"
#include "infer/pipeline.h"
#include "text/clean.h"

static int is_there(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* text.json and config.json are in the model's folder, or in a run's best or last checkpoint. */
static int find(char path[4096], const char *folder, const char *name) {
    static const char *const places[] = {"", "/best", "/last"};
    for (int i = 0; folder && i < 3; i++)
        if (snprintf(path, 4096, "%s%s/%s", folder, places[i], name) < 4096 && is_there(path)) return 1;
    return 0;
}

int mhla_pipeline_run_is(const char *folder) {
    char path[4096];
    return find(path, folder, "text.json");
}

static mhla_status read_sum(char to[65], const json_t *tree, const char *path) {
    const char *text = "";
    MHLA_TRY(mhla_json_get_text(&text, tree, "encoder_sha256", path));
    if (strlen(text) != 64) return mhla_fail(MHLA_EDATA, "%s: encoder_sha256 is not a SHA-256", path);
    snprintf(to, 65, "%s", text);
    return MHLA_OK;
}

static mhla_status read_text_json(mhla_pipeline *p, const json_t *tree, const char *path) {
    mhla_pipeline_kind *k = &p->own;
    const char *encoder = "", *instruction = "", *sampler = "euler";
    int64_t rows = 0, width = 0, steps = 25;
    double guidance = 2.0;
    MHLA_TRY(mhla_json_get_text(&encoder, tree, "encoder", path));
    MHLA_TRY(mhla_json_get_text(&instruction, tree, "instruction", path));
    MHLA_TRY(mhla_json_get_text(&sampler, tree, "sampler", path));
    MHLA_TRY(mhla_json_get_int(&rows, tree, "longest", 0, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_int(&width, tree, "width", 1, 65536, path));
    MHLA_TRY(mhla_json_get_int(&steps, tree, "steps", 1, 1000, path));
    MHLA_TRY(mhla_json_get_real(&guidance, tree, "guidance", path));
    MHLA_TRY(read_sum(p->encoder_sum, tree, path));
    if (strcmp(sampler, "euler") != 0 && strcmp(sampler, "dpm++") != 0 && strcmp(sampler, "unipc") != 0)
        return mhla_fail(MHLA_EDATA, "%s: sampler is %s: expected euler, dpm++ or unipc", path, MHLA_QUOTE(sampler));
    if (width < 1 || !(guidance >= 1.0)) return mhla_fail(MHLA_EDATA, "%s: width is missing, or guidance is", path);
    if ((p->instruction = strdup(instruction)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a pipeline");
    *k = (mhla_pipeline_kind){.name = "text-to-image",
                              .instruction = p->instruction,
                              .instructs_negative = 1,
                              .negative = "",
                              .rows = rows,
                              .clean = mhla_clean_ends,
                              .schedule = {.shift = 1.0},
                              .steps = (int)steps,
                              .seconds = MHLA_FRAME_SECONDS,
                              .guidance = guidance};
    snprintf(k->schedule.method, sizeof k->schedule.method, "%s", sampler);
    p->encoder.width = (int)width;
    char **to = &p->parts[MHLA_PART_TEXT_ENCODER];
    if (*to == NULL && *encoder && (*to = strdup(encoder)) == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for a pipeline");
    return MHLA_OK;
}

mhla_status mhla_pipeline_run_find(mhla_pipeline *p) {
    char path[4096];
    json_t *tree = NULL;
    (void)find(path, p->folder, "text.json");
    MHLA_TRY(mhla_json_load(&tree, path));
    mhla_status status = read_text_json(p, tree, path);
    json_decref(tree);
    p->kind = &p->own;
    if (status == MHLA_OK && p->parts[MHLA_PART_TRANSFORMER] == NULL &&
        (p->parts[MHLA_PART_TRANSFORMER] = strdup(p->folder)) == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory for a pipeline");
    if (status != MHLA_OK || snprintf(path, sizeof path, "%s/captions", p->folder) >= (int)sizeof path ||
        !mhla_captions_there(path))
        return status;
    MHLA_TRY(mhla_captions_open(&p->known, path));
    if (strcmp(p->known.about.encoder_hash, p->encoder_sum) == 0 &&
        strcmp(p->known.about.instruction, p->instruction) == 0 && p->known.about.limit == p->own.rows)
        return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: it was encoded by another encoder or with another instruction than the model's",
                     path);
}

int64_t mhla_pipeline_run_known(const mhla_pipeline *p, const char *text) {
    for (int64_t i = 0; i < p->known.texts; i++)
        if (strcmp(mhla_captions_text(&p->known, i), text) == 0) return i;
    return -1;
}

/* Some of the texts, for a message. */
static void some_texts(char *to, size_t size, const mhla_captions *c) {
    size_t n = 0;
    *to = '\0';
    for (int64_t i = 1; i < c->texts && i <= 5; i++)
        n += (size_t)snprintf(to + n, n < size ? size - n : 0, "%s%s", i > 1 ? ", " : "",
                              MHLA_QUOTE(mhla_captions_text(c, i)));
}

mhla_status mhla_pipeline_run_encoder(const mhla_pipeline *p, const char *text) {
    char some[600] = "";
    const char *path = p->parts[MHLA_PART_TEXT_ENCODER];
    if (path && is_there(path)) return MHLA_OK;
    if (p->known.texts) some_texts(some, sizeof some, &p->known);
    return mhla_fail(MHLA_EIO, "the prompt %s needs the text encoder %s, which is missing: --text-encoder names it%s%s",
                     MHLA_QUOTE(text), path ? path : "of the training",
                     *some ? "; without it, only the texts of captions/ work: " : "", some);
}

mhla_status mhla_pipeline_run_check(mhla_pipeline *p, const mhla_model *encoder) {
    char sum[65];
    if (p->checked) return MHLA_OK;
    MHLA_TRY(mhla_model_hash(encoder, sum));
    p->checked = strcmp(sum, p->encoder_sum) == 0;
    if (p->checked) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL,
                     "%s is not the encoder of the training: the SHA-256 of its weights is %.12s, not %.12s",
                     p->parts[MHLA_PART_TEXT_ENCODER], sum, p->encoder_sum);
}
