/* Parts of the experiments language and mixers: small decoders on text, measured in bits by position and by needles, and on recall (MQAR).
 * Linear attention is MHLA of one block, so that everything around the attention is the same. */
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
    if (real == NULL) return mhla_fail(MHLA_EIO, "%s is missing", folder);
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

/* Is the right number the likeliest of ten? As needle_LENGTH at each length of lab.needle; other texts for each seed. */
static mhla_status measure_needle(mhla_lab_part *part, mhla_model *model) {
    char list[64] = "", name[48], *rest = NULL;
    int64_t lengths[8];
    int n = 0;
    mhla_part_setting(part, "lab.needle", list, sizeof list);
    for (char *at = strtok_r(list, ",", &rest); at && n < 8; at = strtok_r(NULL, ",", &rest))
        lengths[n++] = strtoll(at, NULL, 10);
    if (n == 0) return MHLA_OK;
    mhla_needle_result r = {.size = sizeof r};
    mhla_status status = mhla_lm_needle(model, &r,
                                        &(mhla_needle_desc){.size = sizeof(mhla_needle_desc),
                                                            .lengths = lengths,
                                                            .length_count = n,
                                                            .samples = (int)mhla_part_number(part, "lab.needles"),
                                                            .seed = (uint64_t)part->seed},
                                        tell_done, part);
    for (int i = 0; status == MHLA_OK && i < n; i++) {
        double asked = 0.0, right = 0.0;
        const mhla_needle_cell *cells = &r.cells[i * r.depth_count];
        for (int k = 0; k < r.depth_count; k++) asked += (double)cells[k].asked, right += (double)cells[k].right;
        const double share = right / asked;
        snprintf(name, sizeof name, "needle_%lld", (long long)lengths[i]);
        /* the depths have the same texts: they do not count as independent */
        status = mhla_part_put(part, name, share, sqrt(share * (1.0 - share) * r.depth_count / asked));
    }
    mhla_needle_free(&r);
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
    if (status == MHLA_OK) status = measure_needle(part, model);
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

enum { RECALL_SETTINGS = 16 };

/* What begins with "recall." in the settings, without that; `text` is cut into pieces. */
static int split_recall(char *text, const char *settings[RECALL_SETTINGS]) {
    int n = 0;
    char *rest = NULL;
    for (char *at = strtok_r(text, " ", &rest); at && n < RECALL_SETTINGS; at = strtok_r(NULL, " ", &rest))
        if (strncmp(at, "recall.", 7) == 0) settings[n++] = at + 7;
    return n;
}

static mhla_status train_recall(mhla_mqar_result *r, mhla_lab_part *part, const char *attention, const char *rate,
                                uint64_t seed, int64_t steps) {
    const char *settings[RECALL_SETTINGS];
    char *text = strdup(part->settings);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a part");
    const mhla_mqar_desc desc = {.size = sizeof desc,
                                 .attention = attention,
                                 .vocabulary = (int)mhla_part_number(part, "lab.vocabulary"),
                                 .width = (int)mhla_part_number(part, "lab.width"),
                                 .chunk = (int)mhla_part_number(part, "lab.chunk"),
                                 .conv = (int)mhla_part_number(part, "lab.conv"),
                                 .steps = steps,
                                 .tokens = mhla_part_number(part, "lab.batch"),
                                 .tests = mhla_part_number(part, "lab.tests"),
                                 .rate = strtod(rate, NULL),
                                 .seed = seed,
                                 .context = part->lab->context,
                                 .settings = settings,
                                 .setting_count = split_recall(text, settings),
                                 .dense = (int)mhla_part_number(part, "lab.dense")};
    const mhla_status status = mhla_mqar_run(r, &desc, tell_step, part);
    free(text);
    return status;
}

static mhla_status make_recall(mhla_lab_part *part, const char *attention, const char *rate) {
    char name[48];
    mhla_mqar_result r = {.size = sizeof r};
    MHLA_TRY(train_recall(&r, part, attention, rate, (uint64_t)part->seed, mhla_part_number(part, "lab.steps")));
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
    char attention[32], rate[32] = "0";
    mhla_part_setting(part, "lab.rate", rate, sizeof rate);
    if (mhla_part_setting(part, "lab.recall", attention, sizeof attention)) return make_recall(part, attention, rate);
    return make_text(part);
}

/* ---- A mixer: text, held-out loss during training, needles, recall ---- */

static mhla_status take_curve(void *user, const json_t *line) {
    mhla_lab_part *part = user;
    char name[48];
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (kind == NULL || strcmp(kind, "test") != 0) return MHLA_OK;
    snprintf(name, sizeof name, "curve_%lld", (long long)json_integer_value(json_object_get(line, "step")));
    return mhla_part_put(part, name, json_number_value(json_object_get(line, "bits_per_byte")), NAN);
}

static mhla_status try_recall(mhla_lab_part *part, const char *rate, double *loss) {
    char attention[32] = "";
    mhla_mqar_result r = {.size = sizeof r};
    mhla_part_setting(part, "model.attention", attention, sizeof attention);
    MHLA_TRY(train_recall(&r, part, attention, rate, MHLA_LAB_SEARCH_SEED, mhla_part_number(part, "lab.search_steps")));
    *loss = isfinite(r.loss) ? r.loss : INFINITY;
    return MHLA_OK;
}

mhla_status mhla_part_mixer(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH], path[MHLA_LAB_PATH + 32], attention[32] = "", rates[160] = "", rate[32];
    double best;
    MHLA_TRY(mhla_part_train(part, run));
    if (*run == '\0') return MHLA_OK;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    MHLA_TRY(mhla_jsonl_read(path, take_curve, part));
    MHLA_TRY(measure_text(part, run));
    mhla_part_setting(part, "model.attention", attention, sizeof attention);
    mhla_part_setting(part, "lab.recall_rates", rates, sizeof rates);
    MHLA_TRY(mhla_search_rate(part, rates, "recall_", try_recall, &best));
    snprintf(rate, sizeof rate, "%g", best);
    return make_recall(part, attention, rate);
}

/* Does held-out loss fall in each arm? First and last point of every curve, means over the seeds. */
void mhla_mixer_remark(FILE *out, const mhla_lab *lab) {
    const mhla_experiment *e = lab->experiment;
    const mhla_lab_lines *l = &e->lines[0];
    const double *x = lab->quick ? l->x_quick : l->x;
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    char name[64];
    int said = 0;
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        double first = NAN, last = NAN, before = INFINITY;
        int rises = 0;
        for (int i = 0; i < MHLA_LAB_LINES && x[i] > 0.0; i++) {
            snprintf(name, sizeof name, "%s%.0f", l->prefix, x[i]);
            const mhla_seeds s = mhla_seeds_of(values, errors, mhla_results_take(lab, arm, name, values, errors));
            if (s.count == 0) continue;
            if (isnan(first)) first = s.mean;
            rises += s.mean > before;
            before = last = s.mean;
        }
        if (isnan(first)) continue;
        fprintf(out, "%s %s %.3f to %.3f",
                said++ ? "," : "Held-out bits per byte from the first to the last evaluation:", e->arms[arm].title,
                first, last);
        if (rises) fprintf(out, " (rising %d times in between)", rises);
    }
    if (said) fputs(".\n", out);
}
