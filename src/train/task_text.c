/* The task `text`: a language model learns the next token of documents; measured in bits per byte of held-out text, so that
 * tokenizers can be compared, and with programs that compress. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/status.h"
#include "data/packer.h"
#include "dist/dist.h"
#include "text/tokenizer.h"
#include "text/tokenizer_copy.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define TEXT MHLA_RECIPE_TEXT

static const mhla_recipe_row keys[] = {
    {"data.source", TEXT, "text", 0, 0, NULL, "a folder with train and validation, or a dataset of mhla data: text"},
    {"data.validation", TEXT, "", 0, 0, NULL, "validation text or shards, if the folder has none"},
    {"data.tokenizer", TEXT, "", 0, 0, NULL, "tokenizer file or folder; default: the one beside the data"},
    {"train.context", INT, "1024", 2, 1e9, NULL, "text: tokens of a window"},
    {"train.packing", TEXT, "documents", 0, 0, "documents|concatenation",
     "text: documents are separate, or windows continue across their borders"},
    {0},
};

typedef struct job {
    mhla_corpus *train, *validation;
    mhla_packer *packer;
    const mhla_token_batch *batch; /* of the present update */
    int64_t context, packed;       /* T; documents do not see each other */
    int32_t bos, eos;
    char tokenizer[MHLA_RUN_PATH]; /* "" without */
    mhla_tape *measuring;
    int64_t *cu; /* [cu_room] borders of sequences of the part at work */
    int64_t cu_room;
} job;

enum { MEASURE = 8192 }; /* tokens at a time in evaluation */

/* ---- Making ------------------------------------------------------------------------------------------------------------- */

static int has_tokenizer(const char *folder) {
    char file[4096];
    struct stat info;
    return stat(folder, &info) == 0 && S_ISDIR(info.st_mode) && mhla_tokenizer_file(file, sizeof file, folder);
}

/* The one that the recipe names; or beside the data; or that of the model that is adapted. */
static void find_tokenizer(job *j, const mhla_recipe *r, const char *folder) {
    const char *given = mhla_recipe_text(r, "data.tokenizer"), *init = mhla_recipe_text(r, "train.init");
    const char *chosen = *given ? given : has_tokenizer(folder) ? folder : init;
    const size_t n = strlen(init);
    char inner[MHLA_RUN_PATH];
    if (chosen == init && *init && !(n > 5 && strcmp(init + n - 5, ".gguf") == 0) && !has_tokenizer(init)) {
        snprintf(inner, sizeof inner, "%.*s/best", MHLA_RUN_PATH - 8, init); /* a run */
        chosen = has_tokenizer(inner) ? inner : "";
    }
    snprintf(j->tokenizer, sizeof j->tokenizer, "%s", chosen);
}

static mhla_status open_data(mhla_trainer *t, job *j) {
    const mhla_recipe *r = t->recipe;
    const char *source = mhla_recipe_text(r, "data.source"), *validation = mhla_recipe_text(r, "data.validation");
    char folder[MHLA_RUN_PATH], path[MHLA_RUN_PATH];
    struct stat info;
    MHLA_TRY(mhla_data_locate(folder, sizeof folder, source));
    find_tokenizer(j, r, folder);
    const char *tokenizer = *j->tokenizer ? j->tokenizer : NULL;
    const int is_folder = stat(folder, &info) == 0 && S_ISDIR(info.st_mode);
    if (!is_folder || !mhla_corpus_part(path, sizeof path, folder, "train")) snprintf(path, sizeof path, "%s", folder);
    MHLA_TRY(mhla_corpus_open(&j->train, path, tokenizer, t->context));
    if (*validation)
        snprintf(path, sizeof path, "%s", validation);
    else if (!is_folder || !mhla_corpus_part(path, sizeof path, folder, "validation"))
        return mhla_fail(MHLA_EIO,
                         "%s: no validation.shard, .txt, .jsonl or folder in it; data.validation may name one", folder);
    MHLA_TRY(mhla_corpus_open(&j->validation, path, tokenizer, t->context));
    const mhla_shard_head *a = mhla_corpus_head(j->train), *b = mhla_corpus_head(j->validation);
    if (memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) != 0)
        return mhla_fail(MHLA_EDATA, "%s: made with another tokenizer than the training data", path);
    j->bos = a->bos;
    j->eos = a->eos;
    return MHLA_OK;
}

static mhla_status set_default(mhla_recipe *r, const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return mhla_recipe_find(r, key) && !mhla_recipe_has(r, key) ? mhla_recipe_set(r, key, text) : MHLA_OK;
}

/* What the recipe leaves open about the model follows from the tokenizer and the window. */
static mhla_status make_model(mhla_trainer *t, job *j) {
    const int vocabulary = mhla_corpus_head(j->train)->vocabulary;
    MHLA_TRY(set_default(t->recipe, "model.vocab_size", vocabulary));
    MHLA_TRY(set_default(t->recipe, "model.bos_token_id", j->bos));
    MHLA_TRY(set_default(t->recipe, "model.eos_token_id", j->eos));
    if (mhla_recipe_has(t->recipe, "model.attention") &&
        strcmp(mhla_recipe_text(t->recipe, "model.attention"), "mhla") != 0)
        MHLA_TRY(set_default(t->recipe, "model.max_position_embeddings", j->context));
    MHLA_TRY(mhla_model_of_recipe(&t->model, MHLA_ROLE_DECODER, t->recipe, "model."));
    mhla_text_info c;
    MHLA_TRY(mhla_text_query(t->model, &c));
    if (c.vocabulary < vocabulary)
        return mhla_fail(MHLA_EINVAL, "model.vocab_size is %d, but the tokenizer has %d tokens", c.vocabulary,
                         vocabulary);
    if (c.longest && c.longest < j->context)
        return mhla_fail(
            MHLA_EINVAL,
            "train.context is %lld, but the model takes %lld tokens: see model.num_blocks, model.chunk_size",
            (long long)j->context, (long long)c.longest);
    return mhla_params_init(t->model->params, (uint64_t)mhla_recipe_int(t->recipe, "seed"));
}

static mhla_packer_desc describe(const mhla_trainer *t, const job *j, int train) {
    const int rows = (int)(MEASURE / j->context);
    return (mhla_packer_desc){.corpus = train ? j->train : j->validation,
                              .window = j->context,
                              .rows = train      ? (int)mhla_recipe_int(t->recipe, "train.batch")
                                      : rows > 0 ? rows
                                                 : 1,
                              .documents = train ? (int)j->packed : 1,
                              .train = train,
                              .limit = train ? 0 : mhla_recipe_int(t->recipe, "eval.limit"),
                              .bos = j->bos,
                              .eos = j->eos,
                              .seed = (uint64_t)mhla_recipe_int(t->recipe, "seed")};
}

static mhla_status open_job(mhla_trainer *t) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a trainer");
    t->job = j;
    j->context = mhla_recipe_int(t->recipe, "train.context");
    j->packed = strcmp(mhla_recipe_text(t->recipe, "train.packing"), "documents") == 0;
    MHLA_TRY(open_data(t, j));
    MHLA_TRY(make_model(t, j));
    const mhla_packer_desc d = describe(t, j, 1);
    MHLA_TRY(mhla_packer_create(&j->packer, &d));
    t->per_epoch = mhla_packer_batches(j->packer);
    return MHLA_OK;
}

static void close_job(mhla_trainer *t) {
    job *j = t->job;
    if (j == NULL) return;
    mhla_tape_free(j->measuring);
    mhla_packer_free(j->packer);
    mhla_corpus_free(j->train);
    mhla_corpus_free(j->validation);
    free(j->cu);
    free(j);
}

static mhla_status seek(mhla_trainer *t, int64_t epoch, int64_t batch) {
    const job *j = t->job;
    return mhla_packer_seek(j->packer, epoch, batch);
}

/* ---- A step ------------------------------------------------------------------------------------------------------------- */

static mhla_status next(mhla_trainer *t) {
    job *j = t->job;
    return mhla_packer_next(j->packer, &j->batch);
}

/* Mean loss of tokens first .. first+n-1 of a batch, which are whole windows. */
static mhla_tensor *loss_of(mhla_trainer *t, mhla_tape *tape, const mhla_token_batch *b, int64_t first, int64_t n,
                            float scale) {
    job *j = t->job;
    const int dry = b == NULL;
    mhla_text_run run = {.recompute = mhla_recipe_bool(t->recipe, "train.recompute")};
    int64_t B = n / j->context, T = j->context;
    if (!dry && (b->sequences != (b->tokens + T - 1) / T || B * T != n)) { /* a document ends inside of a window */
        int64_t s = 0, count = 0;
        while (b->cu_seqlens[s] < first) s++;
        while (b->cu_seqlens[s + count] < first + n) count++;
        if (count >= j->cu_room) {
            free(j->cu);
            j->cu_room = 2 * count + 64;
            j->cu = malloc((size_t)j->cu_room * sizeof *j->cu);
            if (j->cu == NULL) {
                j->cu_room = 0;
                return mhla_tape_fail(tape, MHLA_ENOMEM, "no memory for the borders of %lld documents",
                                      (long long)count);
            }
        }
        for (int64_t i = 0; i <= count; i++) j->cu[i] = b->cu_seqlens[s + i] - first;
        run.cu_seqlens = j->cu;
        run.sequences = count;
        B = 1;
        T = n;
    }
    mhla_tensor *hidden = mhla_text_forward(tape, t->model, &run, dry ? NULL : b->ids + first, B, T);
    return mhla_text_loss(tape, t->model, hidden, dry ? NULL : b->labels + first, scale, NULL);
}

static mhla_tensor *loss(mhla_trainer *t, mhla_tape *tape, int64_t part, int64_t parts, double *share) {
    const job *j = t->job;
    const int dry = (mhla_tape_mode(tape) & MHLA_TAPE_DRY) != 0;
    const int64_t windows = mhla_recipe_int(t->recipe, "train.batch");
    const int64_t first = dry ? 0 : part * windows / parts * j->context;
    const int64_t n =
        dry ? (windows + parts - 1) / parts * j->context : (part + 1) * windows / parts * j->context - first;
    int64_t counted = 0;
    for (int64_t i = first; i < first + n && !dry; i++) counted += j->batch->labels[i] >= 0;
    *share = dry ? 1.0 : (double)counted / (double)(j->batch->counted ? j->batch->counted : 1);
    if (n == 0 || (counted == 0 && !dry)) return NULL;
    mhla_tape_key(tape, (uint64_t)mhla_recipe_int(t->recipe, "seed"), (uint64_t)t->step, (uint64_t)first);
    return loss_of(t, tape, dry ? NULL : j->batch, first, n, (float)*share);
}

static double count(mhla_trainer *t, mhla_train_event *e) {
    const job *j = t->job;
    (void)e;
    return (double)j->batch->tokens;
}

static double data_bytes(const mhla_trainer *t) {
    const job *j = t->job;
    const mhla_shard_head *a = mhla_corpus_head(j->train), *b = mhla_corpus_head(j->validation);
    return (double)mhla_packer_memory(j->packer) + 4.0 * (double)(a->tokens + b->tokens);
}

/* ---- Evaluation ---------------------------------------------------------------------------------------------------------- */

/* Every token of every document once, each with what stands before it in its window. The end of a document is predicted as
 * well and counts, but adds no bytes. */
static mhla_status evaluate(mhla_trainer *t, mhla_score *score, json_t *row, mhla_progress_fn progress, void *user) {
    job *j = t->job;
    const mhla_packer_desc d = describe(t, j, 0);
    mhla_packer *p = NULL;
    const double begin = mhla_seconds();
    if (j->measuring == NULL) MHLA_TRY(mhla_tape_create(&j->measuring, t->context));
    MHLA_TRY(mhla_packer_create(&p, &d));
    const int64_t batches = mhla_packer_batches(p);
    double(*sums)[2] = calloc((size_t)batches + 1, sizeof *sums); /* of each batch: loss, tokens */
    mhla_status status = sums ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for an evaluation");
    for (int64_t i = 0; status == MHLA_OK && i < batches && !t->stop; i++) {
        const mhla_token_batch *b;
        status = mhla_packer_next(p, &b);
        if (status != MHLA_OK || b->tokens == 0) break;
        if (i % mhla_dist_ranks() != mhla_dist_rank()) continue;
        mhla_tape_begin(j->measuring, MHLA_TAPE_INFER);
        const mhla_tensor *mean = loss_of(t, j->measuring, b, 0, b->tokens, 1.0f);
        status = mhla_tape_status(j->measuring);
        if (status != MHLA_OK) break;
        sums[i][0] = (double)mean->data[0] * (double)b->counted;
        sums[i][1] = (double)b->counted;
        if (progress) progress(user, i + 1, batches);
    }
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_merge(sums, batches, sizeof *sums);
    double sum = 0.0, tokens = 0.0;
    for (int64_t i = 0; status == MHLA_OK && i < batches; i++) {
        sum += sums[i][0];
        tokens += sums[i][1];
    }
    const double bytes = (double)mhla_packer_bytes(p);
    mhla_packer_free(p);
    free(sums);
    MHLA_TRY(status);
    *score = (mhla_score){
        .loss = sum / fmax(tokens, 1.0), .value = sum / log(2.0) / bytes, .seconds = mhla_seconds() - begin};
    mhla_json_put(row, "tokens", json_integer((json_int_t)tokens));
    mhla_json_put(row, "bytes", json_integer((int64_t)bytes));
    mhla_json_put(row, "loss", mhla_json_real(score->loss));
    mhla_json_put(row, "bits_per_byte", mhla_json_real(score->value));
    return MHLA_OK;
}

static void tell(mhla_train_event *e, const mhla_score *plain, const mhla_score *average) {
    e->test_loss = plain->loss;
    e->test_bits_per_byte = plain->value;
    if (average) e->ema_bits_per_byte = average->value;
}

static mhla_status adopt(mhla_trainer *t, const char *path, void (*note)(void *user, const char *text), void *user) {
    return mhla_model_adopt(t->model, path, note, user);
}

/* The tokenizer goes with the model. */
static mhla_status save(const mhla_trainer *t, const char *folder) {
    const job *j = t->job;
    return *j->tokenizer ? mhla_tokenizer_copy(folder, j->tokenizer) : MHLA_OK;
}

const mhla_task mhla_task_text = {
    .name = "text",
    .role = MHLA_ROLE_DECODER,
    .rows = keys,
    .measure = "bits_per_byte",
    .lower = 1,
    .unit = "tokens",
    .open = open_job,
    .close = close_job,
    .seek = seek,
    .next = next,
    .loss = loss,
    .count = count,
    .data_bytes = data_bytes,
    .evaluate = evaluate,
    .tell = tell,
    .adopt = adopt,
    .save = save,
};
