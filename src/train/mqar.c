/* Training and testing a small decoder at associative recall. Sequences of all kinds come in turn, each drawn once; only
 * positions with a query have a loss, so that only their rows meet the output matrix. */
#include "train/mqar.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/status.h"
#include "models/model.h"
#include "nn/optim.h"

/* Tests are drawn from another seed than training. */
static const uint64_t TEST_SEED = 0x7465737400000000u;

typedef struct mqar_kind {
    int length, pairs;
} mqar_kind;

/* Lengths and pairs of zoology's Figure 2, and as short as the pairs allow. */
static const mqar_kind figure[MHLA_MQAR_ROWS] = {{64, 4}, {128, 8}, {256, 16}, {512, 64}},
                       dense[MHLA_MQAR_ROWS] = {{64, 4}, {64, 8}, {64, 16}, {256, 64}};

enum { TEST_EVERY = 200, EARLY_TESTS = 32, MEAN = 100, MOST_SETTINGS = 32 };

typedef struct recall {
    mhla_mqar_desc d;
    const mqar_kind *kinds; /* [MHLA_MQAR_ROWS], the longest one at the end */
    mhla_model *model;
    mhla_tape *tape;
    mhla_optim *optim;
    int32_t *ids, *labels;     /* [tokens] */
    int32_t *rows, *row_label; /* [tokens] where a query is, and its value */
    int64_t capacity;          /* tokens */
} recall;

/* ---- The model ---- */

static mhla_status make_model(mhla_model **model, const mhla_mqar_desc *d, int longest) {
    enum { SETTINGS = 14, ROOM = 48 };
    char text[SETTINGS][ROOM];
    const char *settings[SETTINGS + MOST_SETTINGS];
    int n = 0;
    if (d->setting_count < 0 || d->setting_count > MOST_SETTINGS || (d->setting_count && d->settings == NULL))
        return mhla_fail(MHLA_EINVAL, "%d settings of the model: expected at most %d", d->setting_count, MOST_SETTINGS);
    if (d->heads < 1 || d->width < 1 || d->width % d->heads)
        return mhla_fail(MHLA_EINVAL, "width is %d: expected a multiple of the %d heads", d->width, d->heads);
#define SET(...) (snprintf(text[n], ROOM, __VA_ARGS__), settings[n] = text[n], n++)
    SET("attention=%.30s", d->attention);
    SET("num_hidden_layers=%d", d->layers);
    SET("vocab_size=%d", d->vocabulary);
    SET("hidden_size=%d", d->width);
    SET("intermediate_size=%d", 2 * d->width);
    SET("max_position_embeddings=%d", longest);
    SET("tie_word_embeddings=true");
    SET("num_heads=%d", d->heads);
    SET("expand_k=1");
    SET("expand_v=1");
    SET("chunk_size=%d", d->chunk);
    SET("num_blocks=%d", (longest + d->chunk - 1) / d->chunk);
    SET("use_short_conv=%s", d->conv ? "true" : "false");
    if (d->conv) SET("conv_size=%d", d->conv);
#undef SET
    for (int i = 0; i < d->setting_count; i++) settings[n++] = d->settings[i];
    return mhla_model_create(model, "lm_nano", settings, n, d->seed);
}

static void recall_free(recall *r) {
    mhla_optim_free(r->optim);
    mhla_tape_free(r->tape);
    mhla_model_free(r->model);
    mhla_free(r->ids);
    mhla_free(r->labels);
    mhla_free(r->rows);
    mhla_free(r->row_label);
}

static mhla_status recall_create(recall *r) {
    r->kinds = r->d.dense ? dense : figure;
    const int longest = r->kinds[MHLA_MQAR_ROWS - 1].length;
    for (int i = 0; i < MHLA_MQAR_ROWS; i++)
        MHLA_TRY(mhla_mqar_check(&(mhla_mqar_shape){
            .vocabulary = r->d.vocabulary, .length = r->kinds[i].length, .pairs = r->kinds[i].pairs}));
    MHLA_TRY(make_model(&r->model, &r->d, longest));
    MHLA_TRY(mhla_tape_create(&r->tape, r->d.context));
    MHLA_TRY(mhla_optim_create(&r->optim, r->model->params, &(mhla_optim_desc){.weight_decay = 0.1}));
    r->capacity = r->d.tokens > longest ? r->d.tokens : longest;
    const size_t bytes = (size_t)r->capacity * sizeof(int32_t);
    r->ids = mhla_alloc(bytes);
    r->labels = mhla_alloc(bytes);
    r->rows = mhla_alloc(bytes);
    r->row_label = mhla_alloc(bytes);
    if (!r->ids || !r->labels || !r->rows || !r->row_label)
        return mhla_fail(MHLA_ENOMEM, "no memory for a batch of %lld tokens", (long long)r->capacity);
    return MHLA_OK;
}

/* ---- A batch: `count` sequences of a kind, the first of them number `first` of the seed; *n queries ---- */

static mhla_status draw(recall *r, int kind, uint64_t seed, uint64_t first, int64_t count, int64_t *n) {
    const int L = r->kinds[kind].length;
    const mhla_mqar_shape shape = {.vocabulary = r->d.vocabulary, .length = L, .pairs = r->kinds[kind].pairs};
    for (int64_t i = 0; i < count; i++)
        MHLA_TRY(mhla_mqar_make(r->ids + i * L, r->labels + i * L, &shape, seed, first + (uint64_t)i));
    *n = 0;
    for (int64_t i = 0; i < count * L; i++)
        if (r->labels[i] >= 0) {
            r->rows[*n] = (int32_t)i;
            r->row_label[(*n)++] = r->labels[i];
        }
    return MHLA_OK;
}

static mhla_status train_step(recall *r, int64_t step, int kind, double *loss) {
    const int L = r->kinds[kind].length;
    const int64_t count = r->capacity / L;
    /* as transformers' cosine: to 0 at the end, after a short rise */
    const mhla_schedule schedule = {
        .kind = MHLA_SCHEDULE_COSINE_AFTER, .base = r->d.rate, .warmup = r->d.steps / 20, .total = r->d.steps};
    int64_t n;
    MHLA_TRY(draw(r, kind, r->d.seed, (uint64_t)(step * count), count, &n));
    mhla_tape *t = r->tape;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_text_forward(t, r->model, &(mhla_text_run){0}, r->ids, count, L);
    x = mhla_nn_take_rows(t, r->rows, n, x);
    mhla_tensor *mean = mhla_text_loss(t, r->model, x, r->row_label, 1.0f, NULL);
    MHLA_TRY(mhla_tape_status(t));
    MHLA_TRY(mhla_tape_backward(t, mean, 1.0f));
    *loss = (double)*mean->data;
    return mhla_optim_step(r->optim, mhla_schedule_at(&schedule, step), r->d.context, NULL);
}

static int64_t likeliest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static mhla_status test(recall *r, int kind, int64_t sequences, mhla_mqar_row *row) {
    const int L = r->kinds[kind].length;
    *row = (mhla_mqar_row){.length = L, .pairs = r->kinds[kind].pairs};
    for (int64_t done = 0; done < sequences;) {
        const int64_t most = r->capacity / L, count = sequences - done < most ? sequences - done : most;
        int64_t n;
        MHLA_TRY(draw(r, kind, r->d.seed ^ TEST_SEED, (uint64_t)done, count, &n));
        mhla_tape *t = r->tape;
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_tensor *x = mhla_text_forward(t, r->model, &(mhla_text_run){0}, r->ids, count, L);
        x = mhla_nn_linear(t, mhla_text_output(r->model), NULL, MHLA_ACT_NONE, NULL,
                           mhla_nn_take_rows(t, r->rows, n, x));
        MHLA_TRY(mhla_tape_status(t));
        row->asked += n;
        for (int64_t i = 0; i < n; i++) row->right += likeliest(x->data + i * x->ld, x->cols) == r->row_label[i];
        done += count;
    }
    return MHLA_OK;
}

/* Every kind 99 of 100 right, by a few sequences each: there is nothing left to learn. */
static mhla_status learned(recall *r, int *done) {
    *done = 1;
    for (int i = 0; i < MHLA_MQAR_ROWS && *done; i++) {
        mhla_mqar_row row;
        MHLA_TRY(test(r, i, EARLY_TESTS, &row));
        *done = (double)row.right >= 0.99 * (double)row.asked;
    }
    return MHLA_OK;
}

static mhla_status run(recall *r, mhla_mqar_result *result, mhla_mqar_fn report, void *user) {
    double recent[MEAN] = {0};
    MHLA_TRY(recall_create(r));
    result->parameters = mhla_params_elements(r->model->params);
    for (int done = 0; result->steps < r->d.steps && !done;) {
        const int64_t step = result->steps++;
        const int kind = (int)(step % MHLA_MQAR_ROWS);
        double loss;
        MHLA_TRY(train_step(r, step, kind, &loss));
        recent[step % MEAN] = loss;
        if (report)
            report(user, &(mhla_mqar_event){.size = sizeof(mhla_mqar_event),
                                            .step = step + 1,
                                            .steps = r->d.steps,
                                            .loss = loss,
                                            .length = r->kinds[kind].length,
                                            .pairs = r->kinds[kind].pairs});
        if ((step + 1) % TEST_EVERY == 0) MHLA_TRY(learned(r, &done));
    }
    const int64_t n = result->steps < MEAN ? result->steps : MEAN;
    for (int64_t i = 0; i < n; i++) result->loss += recent[i] / (double)n;
    for (int i = 0; i < MHLA_MQAR_ROWS; i++) MHLA_TRY(test(r, i, r->d.tests, &result->rows[i]));
    return MHLA_OK;
}

mhla_status mhla_mqar_run(mhla_mqar_result *result, const mhla_mqar_desc *desc, mhla_mqar_fn report, void *user) {
    recall r = {0};
    mhla_mqar_desc *d = &r.d;
    mhla_mqar_result full = {.size = sizeof full};
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_mqar_result"));
    if (desc) MHLA_TRY(mhla_struct_in(d, sizeof *d, desc, "mhla_mqar_desc"));
    if (d->attention == NULL) d->attention = "mhla";
    if (d->vocabulary == 0) d->vocabulary = 8192;
    if (d->width == 0) d->width = 64;
    if (d->layers == 0) d->layers = 2;
    if (d->heads == 0) d->heads = 2;
    if (d->chunk == 0) d->chunk = 16;
    if (d->steps == 0) d->steps = 4000;
    if (d->tokens == 0) d->tokens = 8192;
    if (d->rate == 0.0) d->rate = 5e-3;
    if (d->tests == 0) d->tests = 250;
    if (d->layers < 1 || d->layers > 256 || d->chunk < 1 || d->steps < 1 || d->tokens < 1 || d->tokens > 1 << 24 ||
        d->tests < 1 || !(d->rate > 0.0))
        return mhla_fail(MHLA_EINVAL, "layers, chunk, steps, tokens, tests and rate must be positive");
    const double begin = mhla_seconds();
    const mhla_status status = run(&r, &full, report, user);
    full.seconds = mhla_seconds() - begin;
    recall_free(&r);
    return status == MHLA_OK ? mhla_struct_out(result, &full, sizeof full, "mhla_mqar_result") : status;
}
