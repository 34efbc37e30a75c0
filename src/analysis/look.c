/* Looking into a model: its attentions are watched while it runs over samples; each matrix is written out, measured and
 * forgotten, one per thread at a time. What is kept is a row of numbers for each sample, layer and head, so that means do not
 * depend on the number of threads. */
#include "analysis/look.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "file/npy.h"
#include "measure/lapack.h"
#include "ops/op.h"

enum { SAMPLES = 500, WINDOWS = 16, MAPS = 4, WINDOW = 512, PIECE = 2048, MOST_BATCH = 16 };

/* ---- What kind of model ---------------------------------------------------------------------------------------------- */

static mhla_status describe_grid(mhla_analysis *a, const mhla_token_view *v) {
    if (v->layers < 1 || v->heads < 1 || v->grid[0] < 1 || v->grid[1] < 1)
        return mhla_fail(MHLA_ENOTSUP, "%s has no attention to look into", a->model);
    a->from = v->from;
    a->layers = v->layers;
    a->heads = v->heads;
    a->first = v->first;
    a->frames = v->frames;
    a->frame_blocks = v->frame_blocks;
    a->T = v->first + (int64_t)(v->frames ? v->frames : 1) * v->grid[0] * v->grid[1];
    for (int i = 0; i < 2; i++) {
        a->grid[i] = v->grid[i];
        a->blocks[i] = v->blocks[i];
    }
    a->orders = v->orders;
    a->cycle = v->cycle;
    return MHLA_OK;
}

/* Chunks are those that were asked for, or of the MHLA layers, or of 64 tokens. */
static mhla_status describe_text(mhla_analysis *a, const mhla_text_info *c, int64_t window, int chunk) {
    a->layers = c->layers;
    a->heads = c->heads;
    a->chunk = chunk ? chunk : c->chunk ? c->chunk : 64;
    a->T = window ? window : c->context && c->context < WINDOW ? c->context : WINDOW;
    if (a->T < 2 || (c->longest && a->T > c->longest))
        return mhla_fail(MHLA_ERANGE, "window is %lld: the model takes 2 to %lld tokens", (long long)a->T,
                         (long long)c->longest);
    a->grid[0] = (int)a->T;
    a->grid[1] = 1;
    a->blocks[0] = (int)((a->T + a->chunk - 1) / a->chunk);
    a->blocks[1] = 1;
    return MHLA_OK;
}

static mhla_status check_stage(const mhla_analysis *a, int stage, int stages) {
    if (stage >= 0 && stage <= stages) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, stages > 1 ? "stage is %d: %s has stages 1 to %d" : "stage is %d: %s has one stage",
                     stage, a->model, stages);
}

static mhla_status describe(mhla_analysis *a, const mhla_model *m, const mhla_analysis_desc *d) {
    mhla_classifier_info classifier;
    mhla_denoiser_info denoiser;
    mhla_text_info decoder;
    if (!m->architecture->classifier) MHLA_TRY(check_stage(a, d->stage, 1));
    if (m->architecture->decoder) {
        MHLA_TRY(mhla_text_query(m, &decoder));
        return describe_text(a, &decoder, d->window, d->chunk);
    }
    if (m->architecture->denoiser) {
        MHLA_TRY(mhla_denoiser_query(m, &denoiser));
        return describe_grid(a, &denoiser.view);
    }
    MHLA_TRY(mhla_classifier_query(m, &classifier));
    MHLA_TRY(check_stage(a, d->stage, classifier.stages));
    a->staged = classifier.stages > 1;
    return describe_grid(a, &classifier.view[d->stage ? d->stage - 1 : 0]);
}

/* The block of every token: cut at floor(i g / m), as the operator cuts; a text in chunks. */
static mhla_status place_tokens(mhla_analysis *a) {
    a->place = malloc((size_t)a->T * sizeof *a->place);
    if (a->place == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld tokens", (long long)a->T);
    for (int64_t t = 0; t < a->T; t++) {
        mhla_place_of *p = &a->place[t];
        *p = (mhla_place_of){{-1, -1, -1}, {0, 0, 0}};
        if (a->chunk) {
            *p = (mhla_place_of){{(int32_t)(t / a->chunk), 0, 0}, {(int32_t)t, 0, 0}};
        } else if (t >= a->first) {
            const int64_t frame = (int64_t)a->grid[0] * a->grid[1], at = (t - a->first) % frame;
            p->at[0] = (int32_t)(at / a->grid[1]);
            p->at[1] = (int32_t)(at % a->grid[1]);
            p->at[2] = (int32_t)((t - a->first) / frame);
            for (int i = 0; i < 2; i++) /* the block i with floor(i g/m) <= at < floor((i+1) g/m) */
                p->block[i] = ((p->at[i] + 1) * a->blocks[i] - 1) / a->grid[i];
            p->block[2] = a->frames ? ((p->at[2] + 1) * a->frame_blocks - 1) / a->frames : 0;
        }
    }
    return MHLA_OK;
}

/* ---- Watching ------------------------------------------------------------------------------------------------------------ */

typedef struct look {
    mhla_analysis *a;
    const mhla_analysis_desc *d;
    mhla_model *model;
    const mhla_context *context;
    unsigned char *ranked; /* [samples] */
    int64_t first;         /* sample of batch entry 0 */
    int64_t done;
    const mhla_attended *seen;
    int layer;
    const int32_t *order; /* [T] tokens of the layer in turn, or NULL: by rows */
    int64_t *turns;       /* [rows] of the rows that are formed, in this order */
    int failed;           /* set once, by whichever task comes first */
    mhla_status status;
    char message[300];
} look;

static void fail(look *x, mhla_status status) {
    if (__atomic_exchange_n(&x->failed, 1, __ATOMIC_ACQ_REL)) return;
    x->status = status;
    snprintf(x->message, sizeof x->message, "%s", mhla_message());
}

/* A of the rows asked for, rows and columns by the place of tokens on the grid, whatever the layer's order. */
static mhla_status form(double *A, const look *x, int64_t b, int h, int masked) {
    const mhla_analysis *a = x->a;
    if (x->order == NULL) return mhla_matrix_form(A, x->seen, b, h, a->which, a->rows, masked);
    double *row = malloc((size_t)a->T * sizeof *row);
    if (row == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a row of %lld tokens", (long long)a->T);
    const mhla_status status = mhla_matrix_form(A, x->seen, b, h, x->turns, a->rows, masked);
    for (int64_t i = 0; i < a->rows && status == MHLA_OK; i++) {
        memcpy(row, A + i * a->T, (size_t)a->T * sizeof *row);
        for (int64_t t = 0; t < a->T; t++) A[i * a->T + x->order[t]] = row[t];
    }
    free(row);
    return status;
}

static void take_order(look *x) {
    const mhla_analysis *a = x->a;
    x->order = a->orders ? a->orders + x->layer % a->cycle * a->T : NULL;
    for (int64_t t = 0; t < a->T && x->order; t++)
        for (int64_t i = 0; i < a->rows; i++)
            if ((a->which ? a->which[i] : i) == x->order[t]) x->turns[i] = t;
}

static mhla_status dump_array(const char *folder, int64_t sample, int layer, int head, const char *what,
                              mhla_io_dtype type, int64_t n, int64_t m, const void *data) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/sample-%lld.layer-%d.head-%d.%s.npy", folder, (long long)sample, layer, head,
                 what) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    return mhla_npy_write(path, type, m ? 2 : 1, (const int64_t[]){n, m}, data);
}

/* A as it was formed, and v and o of its head; of causal attention also the scores that the rank is of. */
static mhla_status dump(const look *x, const double *A, int64_t b, int h) {
    const mhla_analysis *a = x->a;
    const mhla_attended *s = x->seen;
    const mhla_plan_desc *p = &s->plan->d;
    const int64_t T = a->T, V = p->value_dim, sample = x->first + b;
    float *values = malloc((size_t)(T * V) * sizeof *values);
    if (values == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for what is dumped");
    mhla_status status = dump_array(x->d->dump, sample, x->layer, h, "A", MHLA_IO_F64, a->rows, T, A);
    double *scores =
        status == MHLA_OK && mhla_matrix_causal(s->plan) ? mhla_alloc((size_t)(a->rows * T) * sizeof *A) : NULL;
    if (scores) status = form(scores, x, b, h, 0);
    if (scores && status == MHLA_OK)
        status = dump_array(x->d->dump, sample, x->layer, h, "scores", MHLA_IO_F64, a->rows, T, scores);
    mhla_free(scores);
    for (int which = 0; which < 2 && status == MHLA_OK; which++) {
        const mhla_strides *st = which ? &s->call->o : &s->call->v;
        const float *from =
            (which ? s->o : s->v) + b * st->batch + (which ? h : h / (p->heads / p->kv_heads)) * st->head;
        for (int64_t t = 0; t < T; t++)
            memcpy(values + (x->order ? x->order[t] : t) * V, from + t * st->token, (size_t)V * sizeof *values);
        status = dump_array(x->d->dump, sample, x->layer, h, which ? "o" : "v", MHLA_IO_F32, T, V, values);
    }
    if (status == MHLA_OK && a->which)
        status = dump_array(x->d->dump, sample, x->layer, h, "rows", MHLA_IO_I64, a->rows, 0, a->which);
    free(values);
    return status;
}

static int dumped(const look *x, int64_t sample, int h) {
    const mhla_analysis_desc *d = x->d;
    return d->dump && sample == d->dump_sample && (d->dump_layer < 0 || d->dump_layer == x->layer) &&
           (d->dump_head < 0 || d->dump_head == h);
}

static mhla_status measure(look *x, double *A, int64_t b, int h) {
    mhla_analysis *a = x->a;
    const int64_t sample = x->first + b, cells = a->rows * a->T;
    mhla_found *f = mhla_found_at(a, x->layer, h, sample);
    if (x->ranked[sample] && mhla_matrix_causal(x->seen->plan)) /* the rank first, of the scores without a mask */
        MHLA_TRY(form(A, x, b, h, 0));
    else
        MHLA_TRY(form(A, x, b, h, 1));
    for (int64_t i = 0; i < cells; i++)
        if (!isfinite(A[i]))
            return mhla_fail(MHLA_ERANGE, "the attention matrix is not finite at row %lld, column %lld",
                             (long long)(a->which ? a->which[i / a->T] : i / a->T), (long long)(i % a->T));
    double *copy = A + cells;
    if (x->ranked[sample]) {
        int64_t rank;
        memcpy(copy, A, (size_t)cells * sizeof *A);
        const double begin = mhla_seconds();
        MHLA_TRY(mhla_spectrum(&rank, &f->effective, NULL, copy, a->rows, a->T));
        f->svd_seconds = mhla_seconds() - begin;
        f->rank = (double)rank;
        if (mhla_matrix_causal(x->seen->plan)) MHLA_TRY(form(A, x, b, h, 1));
    }
    if (sample < a->maps) {
        float *map = mhla_map_at(a, sample, x->layer, h);
        for (int64_t i = 0; i < cells; i++) map[i] = (float)A[i];
    }
    if (dumped(x, sample, h)) MHLA_TRY(dump(x, A, b, h));
    mhla_rows_measure(&f->rows, A, a->which, a->rows, a->T, a->place);
    return MHLA_OK;
}

static void measure_task(void *arg, int64_t i, int worker) {
    look *x = arg;
    const int heads = x->seen->plan->d.heads;
    (void)worker;
    if (__atomic_load_n(&x->failed, __ATOMIC_ACQUIRE)) return;
    double *A = mhla_alloc((size_t)(2 * x->a->rows * x->a->T) * sizeof *A);
    mhla_status status = A ? MHLA_OK
                           : mhla_fail(MHLA_ENOMEM, "no memory for a matrix of %lld x %lld; rows may be sampled",
                                       (long long)x->a->rows, (long long)x->a->T);
    if (status == MHLA_OK) status = measure(x, A, i / heads, (int)(i % heads));
    mhla_free(A);
    if (status == MHLA_OK) return;
    char why[256];
    snprintf(why, sizeof why, "%s", mhla_message());
    fail(x, mhla_fail(status, "sample %lld, layer %d, head %d: %s", (long long)(x->first + i / heads), x->layer,
                      (int)(i % heads), why));
}

static void watch(void *user, const mhla_attended *seen) {
    look *x = user;
    mhla_analysis *a = x->a;
    const int64_t layer = seen->index - a->from;
    if (x->failed || layer < 0 || (a->staged && layer >= a->layers)) return;
    mhla_status status = mhla_matrix_check(seen);
    if (status == MHLA_OK && (layer >= a->layers || seen->plan->d.heads > a->heads || seen->call->tokens != a->T))
        status = mhla_fail(MHLA_ENOTSUP, "attention %d has %d heads of %lld tokens: not what the config says",
                           (int)seen->index, seen->plan->d.heads, (long long)seen->call->tokens);
    if (status != MHLA_OK) {
        fail(x, status);
        return;
    }
    x->seen = seen;
    x->layer = (int)layer;
    take_order(x);
    mhla_found_layer *l = &a->layer[x->layer];
    l->attention = mhla_matrix_name(seen->plan);
    l->heads = seen->plan->d.heads;
    l->causal = mhla_matrix_causal(seen->plan);
    l->bound = mhla_matrix_bound(seen->plan, a->T, a->rows);
    if (seen->mix && l->mix.before == NULL) {
        status = mhla_mix_read(a, l, (mhla_param *)seen->mix); /* the model is the caller's to change */
        if (status != MHLA_OK) fail(x, status);
    }
    mhla_parallel(x->context, seen->call->batch * l->heads, measure_task, x);
    x->done += seen->call->batch;
    if (x->d->progress && !x->failed) x->d->progress(x->d->user, x->done, a->samples * a->layers);
}

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

static mhla_status check_desc(const mhla_analysis_desc *d, const mhla_analysis *a, const mhla_model *m) {
    if (d->samples < 0 || d->rows < 0 || d->window < 0 || d->chunk < 0)
        return mhla_fail(MHLA_EINVAL, "%s is negative",
                         d->samples < 0  ? "samples"
                         : d->rows < 0   ? "rows"
                         : d->window < 0 ? "window"
                                         : "chunk");
    if (a->T > MHLA_ANALYSIS_TOKENS && d->rows == 0)
        return mhla_fail(
            MHLA_ERANGE,
            "%lld tokens: a matrix of %lld x %lld (%.1f GB) is too large; sample its rows: --rows 256, or `rows`",
            (long long)a->T, (long long)a->T, (long long)a->T, (double)a->T * (double)a->T * sizeof(double) / 1e9);
    if (!(d->time >= 0.0 && d->time <= 1000.0))
        return mhla_fail(MHLA_EINVAL, "time is %g: expected 0 to 1000", d->time);
    if ((d->time > 0.0 && !m->architecture->denoiser) || (d->window > 0 && !m->architecture->decoder))
        return mhla_fail(MHLA_EINVAL, "%s, and %s is none",
                         d->window > 0 ? "window is for language models" : "time is for diffusion models", a->model);
    for (int i = 0; i < d->token_count; i++)
        if (d->tokens[i] < 0 || d->tokens[i] >= a->T)
            return mhla_fail(MHLA_EINVAL, "token %lld: there are tokens 0 to %lld", (long long)d->tokens[i],
                             (long long)a->T - 1);
    if (d->dump_layer < -1 || d->dump_layer >= a->layers)
        return mhla_fail(MHLA_EINVAL, "layer %d: the model has layers 0 to %d", d->dump_layer, a->layers - 1);
    if (d->dump_head < -1 || d->dump_head >= a->heads)
        return mhla_fail(MHLA_EINVAL, "head %d: the model has heads 0 to %d", d->dump_head, a->heads - 1);
    return MHLA_OK;
}

static mhla_status choose_rows(mhla_analysis *a, int64_t rows) {
    a->rows = rows && rows < a->T ? rows : a->T;
    if (a->rows == a->T) return MHLA_OK;
    a->which = malloc((size_t)a->rows * sizeof *a->which);
    if (a->which == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld rows", (long long)a->rows);
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t from = i * a->T / a->rows, room = (i + 1) * a->T / a->rows - from;
        /* of clips not always the first one of its stretch: rows of tokens would all lie in a few columns of the grid */
        a->which[i] = from + (a->frames ? (int64_t)(fmod((double)i * 0.6180339887498949, 1.0) * (double)room) : 0);
    }
    return MHLA_OK;
}

/* The time of an SVD grows with the cube of the tokens. */
static int64_t usual_ranks(int64_t T) { return T <= 128 ? 64 : T <= 256 ? 16 : 4; }

static mhla_status reserve(mhla_analysis *a, const mhla_analysis_desc *d, look *x) {
    const int64_t each = (int64_t)a->layers * a->heads, cells = a->rows * a->T;
    a->rank_samples = d->rank_samples < 0 ? 0 : d->rank_samples ? d->rank_samples : usual_ranks(a->T);
    if (a->rank_samples > a->samples) a->rank_samples = a->samples;
    a->maps = d->maps < 0 ? 0 : d->maps ? d->maps : MAPS;
    if (a->maps > a->samples) a->maps = a->samples;
    const int64_t room = MHLA_ANALYSIS_MAPS / (int64_t)sizeof(float) / (each * cells);
    if (a->maps > room) a->maps = room;
    a->layer = calloc((size_t)a->layers, sizeof *a->layer);
    a->found = malloc((size_t)(each * a->samples) * sizeof *a->found);
    a->map = a->maps ? calloc((size_t)(a->maps * each * cells), sizeof *a->map) : NULL;
    a->pictures = calloc((size_t)a->maps + 1, sizeof *a->pictures);
    a->titles = calloc((size_t)a->maps + 1, sizeof *a->titles);
    a->pieces = calloc((size_t)(a->maps * a->T) + 1, sizeof *a->pieces);
    a->position = calloc((size_t)a->T, sizeof *a->position);
    x->ranked = calloc((size_t)a->samples, 1);
    x->turns = calloc((size_t)a->rows, sizeof *x->turns);
    a->tokens = malloc((size_t)d->token_count * sizeof *a->tokens + 1);
    if (!a->layer || !a->found || (a->maps && !a->map) || !a->pictures || !a->titles || !a->pieces || !a->position ||
        !x->ranked || !x->turns || !a->tokens)
        return mhla_fail(MHLA_ENOMEM, "no memory for %lld samples of %d layers", (long long)a->samples, a->layers);
    if (d->token_count) memcpy(a->tokens, d->tokens, (size_t)d->token_count * sizeof *a->tokens);
    a->token_count = d->token_count;
    for (int64_t i = 0; i < each * a->samples; i++) a->found[i] = (mhla_found){.rank = NAN, .effective = NAN};
    for (int64_t i = 0; i < a->rank_samples; i++) x->ranked[i * a->samples / a->rank_samples] = 1;
    return MHLA_OK;
}

static mhla_status run(mhla_analysis *a, mhla_model *m, const mhla_analysis_desc *d, mhla_inputs *inputs) {
    mhla_tape *tape = NULL;
    look x = {.a = a, .d = d, .model = m, .context = m->context};
    mhla_status status = reserve(a, d, &x);
    if (status == MHLA_OK && (d->dump_sample < 0 || d->dump_sample >= a->samples))
        status = mhla_fail(MHLA_EINVAL, "sample %lld: there are samples 0 to %lld", (long long)d->dump_sample,
                           (long long)a->samples - 1);
    if (status == MHLA_OK && a->rank_samples) status = mhla_lapack_load();
    if (status == MHLA_OK && d->dump && mkdir(d->dump, 0777) != 0 && errno != EEXIST)
        status = mhla_fail(MHLA_EIO, "%s: %s", d->dump, strerror(errno));
    if (status == MHLA_OK) status = mhla_tape_create(&tape, m->context);
    if (status == MHLA_OK) mhla_tape_watch(tape, watch, &x);
    const int threads = mhla_context_threads(m->context);
    int64_t piece = (int64_t)PIECE * threads / a->T;
    piece = piece < 1 ? 1 : piece > MOST_BATCH ? MOST_BATCH : piece;
    for (int64_t at = 0; at < a->samples && status == MHLA_OK; at += piece) {
        x.first = at;
        status = mhla_inputs_run(inputs, tape, a, at, at + piece < a->samples ? piece : a->samples - at);
        if (x.failed) status = mhla_fail(x.status, "%s", x.message);
        if (status == MHLA_OK && a->text && a->layer[a->layers - 1].attention == NULL)
            status = mhla_fail(MHLA_ENOTSUP,
                               "%s has a layer whose mixer is not a matrix: Mamba's selective scan is none", a->model);
    }
    for (int64_t i = 0; status == MHLA_OK && i < (int64_t)a->layers * a->heads * a->samples; i++)
        a->svd_seconds += a->found[i].svd_seconds / threads;
    mhla_tape_free(tape);
    free(x.ranked);
    free(x.turns);
    return status;
}

static mhla_status finish(mhla_analysis *a) {
    a->loss = a->text ? 0.0 : NAN;
    for (int64_t t = 0; t < a->T; t++) {
        a->position[t] /= (double)a->samples;
        a->loss += a->position[t] / (double)a->T;
    }
    snprintf(a->attention, sizeof a->attention, "%s", a->layer[0].attention ? a->layer[0].attention : "none");
    for (int i = 1; i < a->layers; i++)
        if (a->layer[i].attention && strcmp(a->layer[i].attention, a->attention) != 0)
            snprintf(a->attention, sizeof a->attention, "mixed");
    return MHLA_OK;
}

mhla_status mhla_analysis_create(mhla_analysis **analysis, mhla_model *model, const mhla_analysis_desc *desc) {
    if (analysis == NULL || model == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", analysis ? "model" : "analysis");
    *analysis = NULL;
    mhla_analysis_desc d = {.size = sizeof d};
    MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_analysis_desc"));
    mhla_analysis *a = calloc(1, sizeof *a);
    mhla_inputs *inputs = NULL;
    if (a == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an analysis");
    const double begin = mhla_seconds();
    mhla_model_info info = {.size = sizeof info};
    mhla_status status = mhla_model_query(model, &info);
    if (status == MHLA_OK) {
        snprintf(a->model, sizeof a->model, "%s", info.name);
        snprintf(a->kind, sizeof a->kind, "%s", info.kind);
        a->text = mhla_model_has(model, MHLA_ROLE_DECODER);
        status = describe(a, model, &d);
    }
    if (status == MHLA_OK) status = check_desc(&d, a, model);
    if (status == MHLA_OK) status = choose_rows(a, d.rows);
    if (status == MHLA_OK) status = place_tokens(a);
    if (status == MHLA_OK) {
        a->samples = d.samples ? d.samples : a->text ? WINDOWS : SAMPLES;
        d.samples = a->samples;
        status = mhla_inputs_open(&inputs, model, &d, a);
    }
    if (status == MHLA_OK) {
        a->samples = mhla_inputs_count(inputs);
        status = run(a, model, &d, inputs);
    }
    if (status == MHLA_OK) status = finish(a);
    a->seconds = mhla_seconds() - begin;
    mhla_inputs_free(inputs);
    if (status != MHLA_OK) {
        mhla_analysis_free(a);
        return status;
    }
    *analysis = a;
    return MHLA_OK;
}

void mhla_analysis_free(mhla_analysis *a) {
    if (a == NULL) return;
    for (int i = 0; a->layer && i < a->layers; i++) {
        free((float *)a->layer[i].mix.before);
        free((float *)a->layer[i].mix.after);
    }
    for (int64_t i = 0; a->pictures && i < a->maps; i++) mhla_image_free(&a->pictures[i]);
    for (int64_t i = 0; a->titles && i < a->maps; i++) free(a->titles[i]);
    for (int64_t i = 0; a->pieces && i < a->maps * a->T; i++) free(a->pieces[i]);
    free(a->pictures);
    free(a->titles);
    free(a->pieces);
    free(a->which);
    free(a->place);
    free(a->layer);
    free(a->found);
    free(a->map);
    free(a->position);
    free(a->tokens);
    free(a);
}

/* ---- What was found --------------------------------------------------------------------------------------------------------- */

mhla_status mhla_analysis_query(const mhla_analysis *a, mhla_analysis_info *info) {
    const mhla_analysis_info full = {.model = a->model,
                                     .kind = a->kind,
                                     .attention = a->attention,
                                     .layers = a->layers,
                                     .heads = a->heads,
                                     .tokens = a->T,
                                     .rows = a->rows,
                                     .grid = {a->grid[0], a->grid[1]},
                                     .first = a->first,
                                     .blocks = {a->blocks[0], a->blocks[1]},
                                     .samples = a->samples,
                                     .rank_samples = a->rank_samples,
                                     .maps = a->maps,
                                     .seconds = a->seconds,
                                     .svd_seconds = a->svd_seconds,
                                     .causal = a->layer[0].causal,
                                     .loss = a->loss,
                                     .chunk = a->chunk,
                                     .frames = a->frames,
                                     .frame_blocks = a->frame_blocks};
    return mhla_struct_out(info, &full, sizeof full, "mhla_analysis_info");
}

static mhla_status check_place(const mhla_analysis *a, int layer, int head) {
    if (layer < 0 || layer >= a->layers)
        return mhla_fail(MHLA_EINVAL, "layer %d: the model has layers 0 to %d", layer, a->layers - 1);
    if (head < 0 || head >= a->layer[layer].heads)
        return mhla_fail(MHLA_EINVAL, "head %d: layer %d has heads 0 to %d", head, layer, a->layer[layer].heads - 1);
    return MHLA_OK;
}

/* Mean and deviation (over n - 1) of the finite ones; NaN of none. */
static void moments(double *mean, double *deviation, const mhla_found *f, int64_t n, size_t member) {
    double sum = 0.0, squares = 0.0;
    int64_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, (const char *)&f[i] + member, sizeof x);
            if (!isfinite(x)) continue;
            if (pass)
                squares += (x - *mean) * (x - *mean);
            else
                sum += x, count++;
        }
        *mean = count ? sum / (double)count : NAN;
    }
    if (deviation) *deviation = count > 1 ? sqrt(squares / (double)(count - 1)) : count ? 0.0 : NAN;
}

mhla_status mhla_analysis_head(const mhla_analysis *a, int layer, int head, mhla_head_analysis *result) {
    MHLA_TRY(check_place(a, layer, head));
    const mhla_found *f = mhla_found_at(a, layer, head, 0);
    const int64_t n = a->samples;
    mhla_head_analysis x = {.attention = a->layer[layer].attention, .bound = a->layer[layer].bound};
    moments(&x.rank, &x.rank_deviation, f, n, offsetof(mhla_found, rank));
    moments(&x.effective_rank, &x.effective_rank_deviation, f, n, offsetof(mhla_found, effective));
    moments(&x.entropy, &x.entropy_deviation, f, n, offsetof(mhla_found, rows.entropy));
    moments(&x.clipped, NULL, f, n, offsetof(mhla_found, rows.clipped));
    moments(&x.dead, NULL, f, n, offsetof(mhla_found, rows.dead));
    moments(&x.own, NULL, f, n, offsetof(mhla_found, rows.own));
    moments(&x.near, NULL, f, n, offsetof(mhla_found, rows.near));
    moments(&x.far, NULL, f, n, offsetof(mhla_found, rows.far));
    moments(&x.distance, NULL, f, n, offsetof(mhla_found, rows.distance));
    return mhla_struct_out(result, &x, sizeof x, "mhla_head_analysis");
}

mhla_status mhla_analysis_mix(const mhla_analysis *a, int layer, mhla_mix_analysis *result) {
    MHLA_TRY(check_place(a, layer, 0));
    const mhla_found_layer *l = &a->layer[layer];
    if (l->mix.blocks == 0)
        return mhla_fail(MHLA_EINVAL, "layer %d: its attention (%s) has no mixing matrix", layer, l->attention);
    return mhla_struct_out(result, &l->mix, sizeof l->mix, "mhla_mix_analysis");
}

mhla_status mhla_analysis_map(const mhla_analysis *a, float *weights, int64_t sample, int layer, int head,
                              int64_t token) {
    MHLA_TRY(check_place(a, layer, head));
    if (sample < 0 || sample >= a->maps)
        return mhla_fail(MHLA_EINVAL, "sample %lld: maps were kept of samples 0 to %lld", (long long)sample,
                         (long long)a->maps - 1);
    if (token < 0 || token >= a->T)
        return mhla_fail(MHLA_EINVAL, "token %lld: there are tokens 0 to %lld", (long long)token, (long long)a->T - 1);
    int64_t row = a->which ? -1 : token;
    for (int64_t i = 0; a->which && i < a->rows; i++)
        if (a->which[i] == token) row = i;
    if (row < 0)
        return mhla_fail(MHLA_EINVAL, "token %lld is none of the %lld rows that were formed", (long long)token,
                         (long long)a->rows);
    memcpy(weights, mhla_map_at(a, sample, layer, head) + row * a->T, (size_t)a->T * sizeof *weights);
    return MHLA_OK;
}

mhla_status mhla_analysis_positions(const mhla_analysis *a, const double **loss, int64_t *positions) {
    if (!a->text) return mhla_fail(MHLA_EINVAL, "%s is not a language model: it has no loss by position", a->model);
    *loss = a->position;
    *positions = a->T;
    return MHLA_OK;
}
