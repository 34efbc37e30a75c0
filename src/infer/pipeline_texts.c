/* Rows of the prompts of a pipeline. A text is encoded once: its rows are kept with the pipeline, and in a folder if there is one for it, so
 * that the encoder, often the largest component, need not be opened again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/file.h"
#include "file/sha256.h"
#include "infer/pipeline.h"

typedef struct mhla_prompt {
    struct mhla_prompt *next;
    char key[65]; /* of the text and everything that its rows depend on */
    float *rows;  /* [length,width], NULL: not encoded yet */
    int32_t length;
    int64_t cut; /* tokens that did not fit */
    char *text;  /* cleaned */
    int instructed, number;
} prompt;

void mhla_prompts_free(prompt *p) {
    while (p) {
        prompt *next = p->next;
        free(p->rows);
        free(p->text);
        free(p);
        p = next;
    }
}

/* ---- What is wanted ---- */

typedef struct job {
    mhla_pipeline *p;
    const mhla_make_desc *d;
    mhla_tokenizer *own; /* of the pipeline; NULL: the encoder's */
    int texts;
} job;

static void name_prompt(const job *j, char key[65], const char *text, int instructed) {
    mhla_sha256 h;
    const mhla_pipeline *p = j->p;
    const char *tokenizer =
        p->parts[MHLA_PART_TOKENIZER] && p->given[MHLA_PART_TOKENIZER] ? p->parts[MHLA_PART_TOKENIZER] : "";
    const char *parts[] = {p->fingerprints[MHLA_TEXT_ENCODER], p->storage ? p->storage : "", tokenizer,
                           instructed ? j->d->instruction : "", text};
    mhla_sha256_begin(&h);
    mhla_sha256_add(&h, &j->d->rows, sizeof j->d->rows);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) mhla_sha256_add(&h, parts[i], strlen(parts[i]) + 1);
    mhla_sha256_end(&h, key);
}

/* The prompt of this text, which may be new. */
static mhla_status want(job *j, prompt **found, const char *text, int instructed) {
    char *clean, key[65];
    MHLA_TRY(j->p->kind->clean(&clean, text));
    name_prompt(j, key, clean, instructed);
    prompt *at = j->p->prompts;
    while (at && strcmp(at->key, key) != 0) at = at->next;
    if (at == NULL && (at = calloc(1, sizeof *at)) != NULL) {
        *at = (prompt){.next = j->p->prompts, .text = clean, .instructed = instructed, .number = -1};
        memcpy(at->key, key, sizeof key);
        j->p->prompts = at;
        clean = NULL;
    }
    free(clean);
    *found = at;
    return at ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a prompt");
}

/* ---- The folder ---- */

static int path_of(const job *j, char path[4096], const prompt *at) {
    return j->p->texts && snprintf(path, 4096, "%s/%s.safetensors", j->p->texts, at->key) < 4096;
}

static mhla_status read_kept(const job *j, prompt *at) {
    char path[4096];
    struct stat info;
    mhla_safetensors *file;
    const mhla_stored *s;
    const int64_t known = mhla_pipeline_run_known(j->p, at->text);
    if (known >= 0 && (at->instructed || *j->p->kind->instruction == '\0')) {
        const mhla_captions *c = &j->p->known;
        at->length = c->lengths[known];
        at->rows = malloc((size_t)(at->length * c->about.width + 1) * sizeof *at->rows);
        if (at->rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a text");
        (void)mhla_captions_get(c, at->rows, at->length, known);
        return MHLA_OK;
    }
    if (!path_of(j, path, at) || stat(path, &info) != 0) return MHLA_OK;
    MHLA_TRY(mhla_safetensors_open(&file, path));
    mhla_status status = mhla_safetensors_need(&s, file, "rows");
    if (status == MHLA_OK && (s->rank != 2 || s->shape[1] != j->p->encoder.width || s->shape[0] > INT32_MAX))
        status = mhla_fail(MHLA_EDATA, "%s: not a text that this encoder has encoded: remove it", path);
    float *rows = status == MHLA_OK ? malloc((size_t)(s->count + 1) * sizeof *rows) : NULL;
    if (status == MHLA_OK && rows == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory for a text");
    if (status == MHLA_OK) status = mhla_stored_read(rows, s);
    if (status == MHLA_OK) {
        at->rows = rows;
        at->length = (int32_t)s->shape[0];
        const char *cut = mhla_safetensors_metadata(file, "cut");
        at->cut = cut ? strtoll(cut, NULL, 10) : 0;
    } else {
        free(rows);
    }
    mhla_safetensors_close(file);
    return status;
}

static mhla_status keep(const job *j, const prompt *at) {
    char path[4096], cut[24];
    if (!path_of(j, path, at)) return MHLA_OK;
    snprintf(cut, sizeof cut, "%lld", (long long)at->cut);
    const int64_t shape[] = {at->length, j->p->encoder.width};
    const mhla_storable rows = {"rows", 2, shape, at->rows, MHLA_IO_F32, MHLA_IO_F32};
    const mhla_pair pairs[] = {{"text", at->text}, {"cut", cut}};
    MHLA_TRY(mhla_folder_make(j->p->texts));
    return mhla_safetensors_write(path, &rows, 1, pairs, 2);
}

/* ---- Encoding ---- */

static mhla_status encode(const job *j, mhla_model *encoder, prompt *at) {
    mhla_text_rows rows = {.size = sizeof rows};
    const char *text = at->text;
    const mhla_encoder_desc how = {.size = sizeof how,
                                   .tokenizer = j->own,
                                   .longest = j->d->rows,
                                   .instruction = at->instructed ? j->d->instruction : NULL};
    const mhla_status status = mhla_text_encode(encoder, &rows, &text, 1, &how);
    if (status == MHLA_OK) {
        at->length = rows.lengths[0];
        at->cut = rows.cut[0];
        at->rows = rows.rows;
        rows.rows = NULL;
    }
    mhla_text_rows_free(&rows);
    return status == MHLA_OK ? keep(j, at) : status;
}

static int report(const job *j, int64_t done, const char *note) {
    const mhla_make_state state = {
        .size = sizeof state, .component = MHLA_TEXT_ENCODER, .done = done, .all = j->texts, .note = note};
    return j->d->report ? j->d->report(j->d->user, &state) : 0;
}

/* What is not there yet; the encoder is open only as long as it takes. */
static mhla_status encode_missing(job *j, prompt *const *list, int *stopped) {
    mhla_model *encoder = NULL;
    mhla_status status = MHLA_OK;
    if (report(j, 0, NULL)) *stopped = 1;
    for (int i = 0; i < j->texts && status == MHLA_OK && !*stopped; i++) {
        if (list[i]->rows == NULL) status = read_kept(j, list[i]);
        if (status == MHLA_OK && list[i]->rows == NULL && encoder == NULL) {
            const int own = j->p->kind == &j->p->own;
            if (own) status = mhla_pipeline_run_encoder(j->p, list[i]->text);
            if (status == MHLA_OK) status = mhla_pipeline_part(&encoder, j->p, MHLA_TEXT_ENCODER, 0);
            if (status == MHLA_OK && own) status = mhla_pipeline_run_check(j->p, encoder);
            if (status == MHLA_OK && j->p->parts[MHLA_PART_TOKENIZER])
                status = mhla_tokenizer_open(&j->own, j->p->parts[MHLA_PART_TOKENIZER]);
        }
        if (status == MHLA_OK && list[i]->rows == NULL) status = encode(j, encoder, list[i]);
        if (status == MHLA_OK && list[i]->cut) {
            char note[256];
            snprintf(note, sizeof note, "the prompt %s is %lld token%s too long: its end is cut off",
                     MHLA_QUOTE(list[i]->text), (long long)list[i]->cut, list[i]->cut == 1 ? "" : "s");
            (void)report(j, i, note);
        }
        if (status == MHLA_OK && report(j, i + 1, NULL)) *stopped = 1;
    }
    mhla_tokenizer_free(j->own);
    mhla_model_free(encoder);
    return status;
}

/* Every text that desc has, once; numbers of them in prompts and, with guidance, *negative. */
static mhla_status list_texts(job *j, prompt ***list, int32_t *prompts, int32_t *negative) {
    const mhla_make_desc *d = j->d;
    for (prompt *at = j->p->prompts; at; at = at->next) at->number = -1;
    *list = calloc((size_t)d->images + 2, sizeof **list);
    if (*list == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld prompts", (long long)d->images);
    *negative = 0;
    for (int64_t i = d->guidance == 1.0 ? 0 : -1; i < d->images; i++) {
        prompt *at;
        MHLA_TRY(want(j, &at, i < 0 ? d->negative : d->prompts[i],
                      (i >= 0 || j->p->kind->instructs_negative) && *d->instruction));
        if (at->number < 0) {
            at->number = j->texts++;
            (*list)[at->number] = at;
        }
        *(i < 0 ? negative : &prompts[i]) = at->number;
    }
    return MHLA_OK;
}

mhla_status mhla_pipeline_texts(mhla_pipeline *p, mhla_text_rows *rows, int32_t *prompts, int32_t *negative,
                                const mhla_make_desc *desc, int *stopped) {
    job j = {.p = p, .d = desc};
    prompt **list = NULL;
    mhla_text_rows all = {.size = sizeof all, .width = p->encoder.width};
    mhla_status status = list_texts(&j, &list, prompts, negative);
    if (status == MHLA_OK) status = encode_missing(&j, list, stopped);
    if (status == MHLA_OK && !*stopped) {
        all.texts = j.texts;
        for (int i = 0; i < j.texts; i++)
            if (list[i]->length > all.longest) all.longest = list[i]->length;
        if (all.longest == 0) all.longest = 1;
        const size_t each = (size_t)(all.longest * all.width);
        all.rows = calloc((size_t)j.texts * each + 1, sizeof *all.rows);
        all.lengths = calloc((size_t)j.texts + 1, sizeof *all.lengths);
        all.cut = calloc((size_t)j.texts + 1, sizeof *all.cut);
        if (all.rows == NULL || all.lengths == NULL || all.cut == NULL)
            status = mhla_fail(MHLA_ENOMEM, "no memory for the rows of %d texts", j.texts);
        for (int i = 0; i < j.texts && status == MHLA_OK; i++) {
            memcpy(all.rows + (size_t)i * each, list[i]->rows,
                   (size_t)(list[i]->length * all.width) * sizeof *all.rows);
            all.lengths[i] = list[i]->length;
            all.cut[i] = list[i]->cut;
        }
    }
    free(list);
    if (status == MHLA_OK)
        *rows = all;
    else
        mhla_text_rows_free(&all);
    return status;
}

mhla_status mhla_pipeline_tokens(mhla_pipeline *p, int64_t *tokens, mhla_model *encoder, const mhla_make_desc *desc) {
    job j = {.p = p, .d = desc};
    prompt **list = NULL;
    int32_t *numbers = calloc((size_t)desc->images, sizeof *numbers), negative;
    mhla_status status = numbers ? list_texts(&j, &list, numbers, &negative)
                                 : mhla_fail(MHLA_ENOMEM, "no memory for %lld prompts", (long long)desc->images);
    *tokens = 0;
    if (status == MHLA_OK && p->parts[MHLA_PART_TOKENIZER])
        status = mhla_tokenizer_open(&j.own, p->parts[MHLA_PART_TOKENIZER]);
    const mhla_tokenizer *tokenizer = status == MHLA_OK && j.own == NULL ? mhla_lm_tokenizer(encoder) : j.own;
    if (status == MHLA_OK && tokenizer == NULL) status = MHLA_EIO;
    for (int i = 0; i < j.texts && status == MHLA_OK; i++) {
        char path[4096];
        struct stat info;
        if (list[i]->rows || (path_of(&j, path, list[i]) && stat(path, &info) == 0)) continue;
        for (int k = 0; k < 2 && status == MHLA_OK; k++) {
            const char *text = k ? list[i]->text : list[i]->instructed ? desc->instruction : "";
            mhla_ids ids = {0};
            status = mhla_tokenizer_encode(tokenizer, &ids, text, strlen(text), k ? MHLA_ENCODE_SPECIAL : 0);
            *tokens += ids.count;
            mhla_ids_free(&ids);
        }
    }
    mhla_tokenizer_free(j.own);
    free(numbers);
    free(list);
    return status;
}
