/* Parts of the language experiment: small decoders on text, measured in bits by position, and on recall (MQAR). Linear attention is
 * MHLA of one block, so that everything around the attention is the same. */
#include <math.h>
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "lab/lab.h"

enum { EVERY = 8, VOCABULARY = 1024, BUCKETS = 8, FAR_BUCKET = 1024 };

/* ---- A small corpus: every eighth document, and a tokenizer of its own ---- */

static mhla_status write_some(const char *from, const char *to, int every) {
    mhla_documents *documents = NULL;
    mhla_writer w;
    MHLA_TRY(mhla_documents_open(&documents, &from, 1));
    mhla_status status = mhla_writer_open(&w, to);
    for (int64_t i = 0; status == MHLA_OK && i < mhla_documents_count(documents); i += every) {
        size_t bytes;
        const char *text = mhla_documents_text(documents, i, &bytes);
        fwrite(text, 1, bytes, w.stream);
        fputs("\n\f\n", w.stream); /* a line with a form feed ends a document */
    }
    mhla_documents_free(documents);
    return status == MHLA_OK ? mhla_writer_commit(&w) : status;
}

static mhla_status make_corpus(const mhla_lab *lab, const char *folder) {
    char in[2][MHLA_LAB_PATH + 32], out[4][MHLA_LAB_PATH + 64];
    static const char *const names[] = {"train.txt", "validation.txt", "tokenizer.json", "train.shard"};
    for (int i = 0; i < 4; i++) snprintf(out[i], sizeof out[i], "%s/%s", folder, names[i]);
    for (int i = 0; i < 2; i++) {
        snprintf(in[i], sizeof in[i], "%s/%s", lab->source, names[i]);
        MHLA_TRY(write_some(in[i], out[i], i ? 1 : EVERY));
    }
    const char *files[] = {out[0]};
    MHLA_TRY(mhla_tokenizer_train(out[2], files, 1,
                                  &(mhla_tokenizer_training){.size = sizeof(mhla_tokenizer_training),
                                                             .vocabulary = VOCABULARY,
                                                             .context = lab->context},
                                  NULL, NULL));
    MHLA_TRY(mhla_shard_make(out[3], out[2], files, 1, lab->context, NULL, NULL, NULL));
    return remove(out[0]) == 0 ? MHLA_OK : mhla_fail(MHLA_EIO, "%s: it cannot be removed", out[0]);
}

/* work/text-SUM, made once; under another name until it is complete. */
static mhla_status find_corpus(mhla_lab_part *part) {
    const mhla_lab *lab = part->lab;
    char folder[MHLA_LAB_PATH];
    if (snprintf(folder, sizeof folder, "%s/text-%.12s", lab->work, lab->data_sum) >= (int)sizeof folder)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", lab->work);
    if (access(folder, F_OK) != 0) {
        mhla_new_folder made;
        MHLA_TRY(mhla_new_folder_open(&made, folder));
        mhla_status status = make_corpus(lab, made.temporary);
        if (status == MHLA_OK) status = mhla_new_folder_commit(&made);
        mhla_new_folder_discard(&made);
        MHLA_TRY(status);
    }
    char *real = realpath(folder, NULL); /* the run goes on from anywhere */
    if (real == NULL) return mhla_fail(MHLA_EIO, "%s: it is not there", folder);
    snprintf(part->source, sizeof part->source, "%.*s", (int)sizeof part->source - 1, real);
    free(real);
    return MHLA_OK;
}

/* ---- Bits by position ---- */

static void tell_done(void *user, int64_t done, int64_t all) { mhla_part_tell(user, done, all); }

typedef struct texts {
    mhla_documents *documents;
    const char **text; /* [count] */
    size_t *bytes;
    int64_t count;
} texts;

static void texts_free(texts *t) {
    free(t->text);
    free(t->bytes);
    mhla_documents_free(t->documents);
}

/* The validation documents of `least` bytes or more. */
static mhla_status texts_open(texts *t, const mhla_lab_part *part, size_t least) {
    char path[MHLA_LAB_PATH + 32];
    const char *paths[] = {path};
    *t = (texts){0};
    snprintf(path, sizeof path, "%s/validation.txt", part->source);
    MHLA_TRY(mhla_documents_open(&t->documents, paths, 1));
    const int64_t n = mhla_documents_count(t->documents);
    t->text = calloc((size_t)n + 1, sizeof *t->text);
    t->bytes = calloc((size_t)n + 1, sizeof *t->bytes);
    if (t->text == NULL || t->bytes == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for %lld documents", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        t->text[t->count] = mhla_documents_text(t->documents, i, &t->bytes[t->count]);
        t->count += t->bytes[t->count] >= least;
    }
    return MHLA_OK;
}

/* Bits per token by position as PREFIX_<end of the bucket>, and bits per byte where `total` names them. */
static mhla_status put_bits(mhla_lab_part *part, mhla_model *model, const texts *t, const mhla_perplexity_desc *d,
                            const char *prefix, const char *total) {
    mhla_perplexity r = {.size = sizeof r};
    char name[48];
    mhla_status status = mhla_lm_perplexity(model, &r, t->text, t->bytes, t->count, d, tell_done, part);
    if (status == MHLA_OK && total) status = mhla_part_put(part, total, r.bits_per_byte, NAN);
    for (int i = 0; status == MHLA_OK && i < r.buckets; i++) {
        if (r.bucket_tokens[i] == 0) continue;
        snprintf(name, sizeof name, "%s_%lld", prefix, (long long)(i + 1) * (long long)r.bucket);
        status = mhla_part_put(part, name, r.bucket_bits[i], NAN);
    }
    mhla_perplexity_free(&r);
    return status;
}

/* Past the trained length, by each policy, on the documents that are long enough for it. */
static mhla_status measure_far(mhla_lab_part *part, mhla_model *model) {
    static const struct {
        const char *name;
        mhla_beyond beyond;
    } policies[] = {{"clamp", MHLA_BEYOND_CLAMP}, {"chunk", MHLA_BEYOND_CHUNK}};
    const int64_t far = mhla_part_number(part, "lab.far");
    texts t;
    if (far <= 0) return MHLA_OK;
    mhla_status status = texts_open(&t, part, 4 * (size_t)far); /* a token of these has three or four bytes at most */
    for (size_t i = 0; i < sizeof policies / sizeof *policies && status == MHLA_OK && t.count > 0; i++)
        status = put_bits(part, model, &t,
                          &(mhla_perplexity_desc){.size = sizeof(mhla_perplexity_desc),
                                                  .window = far,
                                                  .bucket = FAR_BUCKET,
                                                  .beyond = policies[i].beyond,
                                                  .limit = mhla_part_number(part, "lab.measured")},
                          policies[i].name, NULL);
    texts_free(&t);
    return status;
}

static mhla_status measure_text(mhla_lab_part *part, const char *run) {
    char path[MHLA_LAB_PATH + 32];
    mhla_model *model = NULL;
    mhla_lm_info info = {.size = sizeof info};
    texts t = {0};
    snprintf(path, sizeof path, "%s/last", run);
    mhla_status status = mhla_model_open_weights(&model, path, "raw");
    if (status == MHLA_OK && part->lab->context) mhla_model_set_context(model, part->lab->context);
    if (status == MHLA_OK) status = mhla_lm_query(model, &info);
    if (status == MHLA_OK) status = texts_open(&t, part, 0);
    if (status == MHLA_OK)
        status = put_bits(part, model, &t,
                          &(mhla_perplexity_desc){.size = sizeof(mhla_perplexity_desc),
                                                  .window = info.context,
                                                  .bucket = info.context / BUCKETS,
                                                  .limit = mhla_part_number(part, "lab.measured")},
                          "bits", "bpb");
    if (status == MHLA_OK) status = measure_far(part, model);
    texts_free(&t);
    mhla_model_free(model);
    return status;
}

static mhla_status make_text(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH];
    MHLA_TRY(mhla_part_train(part, run));
    return *run ? measure_text(part, run) : MHLA_OK;
}

/* ---- Recall ---- */

static void tell_step(void *user, const mhla_mqar_event *e) { mhla_part_tell(user, e->step, e->steps); }

static mhla_status make_recall(mhla_lab_part *part, const char *attention) {
    char rate[32] = "0", name[48];
    mhla_part_setting(part, "lab.rate", rate, sizeof rate);
    mhla_mqar_result r = {.size = sizeof r};
    MHLA_TRY(mhla_mqar_run(&r,
                           &(mhla_mqar_desc){.size = sizeof(mhla_mqar_desc),
                                             .attention = attention,
                                             .width = (int)mhla_part_number(part, "lab.width"),
                                             .chunk = (int)mhla_part_number(part, "lab.chunk"),
                                             .conv = (int)mhla_part_number(part, "lab.conv"),
                                             .steps = mhla_part_number(part, "lab.steps"),
                                             .tests = mhla_part_number(part, "lab.tests"),
                                             .rate = strtod(rate, NULL),
                                             .seed = (uint64_t)part->seed,
                                             .context = part->lab->context},
                           tell_step, part));
    MHLA_TRY(mhla_part_put(part, "parameters_recall", (double)r.parameters, NAN));
    for (int i = 0; i < MHLA_MQAR_ROWS; i++) {
        const double asked = (double)r.rows[i].asked, share = (double)r.rows[i].right / asked;
        snprintf(name, sizeof name, "recall_%d", r.rows[i].pairs);
        MHLA_TRY(mhla_part_put(part, name, share, sqrt(share * (1.0 - share) / asked)));
    }
    return MHLA_OK;
}

mhla_status mhla_part_corpus(mhla_lab_part *part) {
    char attention[32];
    return mhla_part_setting(part, "lab.recall", attention, sizeof attention) ? MHLA_OK : find_corpus(part);
}

mhla_status mhla_part_language(mhla_lab_part *part) {
    char attention[32];
    if (mhla_part_setting(part, "lab.recall", attention, sizeof attention)) return make_recall(part, attention);
    return make_text(part);
}
