/* How long ranks take to tell each other something, and to make a training step together: for `mhla bench mpi`. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/status.h"
#include "dist/dist.h"
#include "models/model.h"
#include "models/roles.h"
#include "train/parts.h"

/* ---- One exchange ---- */

/* There and back, which takes twice as long. */
static mhla_status there_and_back(char *data, size_t bytes) {
    const int rank = mhla_dist_rank(), last = mhla_dist_ranks() - 1;
    mhla_message_t m = {0};
    if (rank != 0 && rank != last) return MHLA_OK;
    for (int i = 0; i < 2; i++) {
        if ((rank == 0) == (i == 0))
            MHLA_TRY(mhla_dist_send(&m, data, bytes, rank ? 0 : last, 0));
        else
            MHLA_TRY(mhla_dist_receive(&m, data, bytes, rank ? 0 : last, 0));
        MHLA_TRY(mhla_dist_wait(&m, 1));
    }
    return MHLA_OK;
}

/* As gradients are: to each rank its share. */
static mhla_status exchange(char *out, char *in, size_t bytes, mhla_message_t *messages) {
    const int rank = mhla_dist_rank(), ranks = mhla_dist_ranks();
    const size_t share = bytes / (size_t)ranks;
    int n = 0;
    for (int r = 0; r < ranks; r++) {
        if (r == rank) continue;
        MHLA_TRY(mhla_dist_receive(&messages[n++], in + (size_t)r * share, share, r, 0));
        MHLA_TRY(mhla_dist_send(&messages[n++], out + (size_t)r * share, share, r, 0));
    }
    return mhla_dist_wait(messages, n);
}

mhla_status mhla_ranks_time(mhla_ranks_work work, size_t bytes, double budget, double *seconds) {
    const int ranks = mhla_dist_ranks();
    const size_t gathered = work == MHLA_RANKS_GATHER ? bytes * (size_t)ranks : bytes;
    *seconds = 0.0;
    if (ranks == 1) return MHLA_OK;
    char *out = malloc(bytes + 1), *in = malloc(gathered + 1);
    mhla_message_t *messages = calloc(2 * (size_t)ranks, sizeof *messages);
    mhla_status status =
        out && in && messages ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for messages of %zu bytes", bytes);
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) memset(out, 1, bytes), memset(in, 0, gathered);
    double best = 0.0, spent = 0.0;
    for (int i = 0; status == MHLA_OK && (i < 3 || spent < budget) && i < 10000; i++) {
        status = mhla_dist_agree(MHLA_OK); /* all begin together */
        const double begin = mhla_seconds();
        if (status != MHLA_OK) break;
        status = work == MHLA_RANKS_MESSAGE    ? there_and_back(out, bytes)
                 : work == MHLA_RANKS_EXCHANGE ? exchange(out, in, bytes, messages)
                                               : mhla_dist_gather_all(in, out, bytes);
        double took = mhla_seconds() - begin;
        if (status == MHLA_OK) status = mhla_dist_spread(&took, sizeof took, 0); /* rank 0 decides how often */
        spent += took;
        if (i > 0 && (best == 0.0 || took < best)) best = took;
    }
    *seconds = work == MHLA_RANKS_MESSAGE ? best / 2.0 : best;
    free(out);
    free(in);
    free(messages);
    return status;
}

/* ---- A training step ---- */

typedef struct stepping {
    mhla_model *model;
    mhla_optim *optim;
    mhla_parts *sums;
    mhla_tape *tape;
    int64_t parts, batch, tokens;
    float *images;            /* [batch,channels,height,width] */
    int32_t *inputs, *labels; /* of texts [batch,tokens]; of images [batch] */
    mhla_classifier_info images_of;
    int text;
} stepping;

static mhla_status make_samples(stepping *s) {
    mhla_text_info text = {0};
    int64_t pixels = 0, words = s->batch;
    int vocabulary = 1;
    s->text = mhla_model_has(s->model, MHLA_ROLE_DECODER);
    if (s->text) {
        MHLA_TRY(mhla_text_query(s->model, &text));
        words = s->batch * s->tokens;
        vocabulary = text.vocabulary;
    } else {
        MHLA_TRY(mhla_classifier_query(s->model, &s->images_of));
        pixels = s->batch * s->images_of.channels * s->images_of.height * s->images_of.width;
        vocabulary = s->images_of.classes;
    }
    s->images = mhla_alloc((size_t)(pixels + 1) * sizeof *s->images);
    s->inputs = mhla_alloc((size_t)words * sizeof *s->inputs);
    s->labels = mhla_alloc((size_t)words * sizeof *s->labels);
    if (!s->images || !s->inputs || !s->labels) return mhla_fail(MHLA_ENOMEM, "no memory for samples");
    for (int64_t i = 0; i < pixels; i++) s->images[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
    for (int64_t i = 0; i < words; i++) s->inputs[i] = s->labels[i] = (int32_t)(i * 37 % vocabulary);
    return MHLA_OK;
}

static mhla_tensor *loss_of(const stepping *s, unsigned mode, float share) {
    mhla_tape_begin(s->tape, MHLA_TAPE_RECORD | MHLA_TAPE_DROP | mode);
    if (s->text) {
        mhla_tensor *x = mhla_text_forward(s->tape, s->model, &(mhla_text_run){0}, s->inputs, s->batch, s->tokens);
        return mhla_text_loss(s->tape, s->model, x, s->labels, share, NULL);
    }
    const mhla_classifier_info *c = &s->images_of;
    mhla_tensor *x = mhla_nn_input(s->tape, s->images, MHLA_SHAPE(s->batch, c->channels, c->height, c->width));
    mhla_tensor *y = mhla_classifier_forward(s->tape, s->model, &(mhla_network_run){0}, x);
    return mhla_nn_cross_entropy(s->tape, y, s->labels, NULL, 0.0f, NULL);
}

static mhla_status own_parts(stepping *s) {
    const float share = (float)(1.0 / (double)s->parts);
    int64_t first, last;
    mhla_parts_own(s->parts, mhla_dist_rank(), mhla_dist_ranks(), &first, &last);
    for (int64_t part = first; part < last; part++) {
        mhla_parts_begin(s->sums);
        if (part == last - 1) mhla_parts_overlap(s->sums, s->tape, s->model->context);
        mhla_tensor *loss = loss_of(s, 0, share);
        MHLA_TRY(mhla_tape_status(s->tape));
        MHLA_TRY(mhla_tape_backward(s->tape, loss, share));
        mhla_tape_after(s->tape, NULL, NULL);
        MHLA_TRY(mhla_parts_end(s->sums, part, 1, s->model->context));
    }
    return MHLA_OK;
}

static mhla_status step(stepping *s, double seconds[MHLA_RANKS_TIMES]) {
    double at[MHLA_RANKS_TIMES];
    const mhla_context *context = s->model->context;
    MHLA_TRY(mhla_dist_agree(MHLA_OK));
    const double begin = mhla_seconds();
    mhla_status status = own_parts(s);
    at[0] = mhla_seconds();
    MHLA_TRY(status);
    MHLA_TRY(mhla_parts_reduce(s->sums, context));
    at[1] = mhla_seconds();
    MHLA_TRY(mhla_optim_update(s->optim, 1e-5, context, NULL));
    at[2] = mhla_seconds();
    MHLA_TRY(mhla_parts_share(s->sums));
    MHLA_TRY(mhla_optim_finish(s->optim, context));
    at[3] = mhla_seconds();
    seconds[0] = at[3] - begin;
    seconds[1] = at[0] - begin;
    seconds[2] = at[1] - at[0];
    seconds[3] = at[2] - at[1];
    return MHLA_OK;
}

mhla_status mhla_ranks_step(mhla_model *model, int64_t parts, int64_t batch, int64_t tokens, double budget,
                            double seconds[MHLA_RANKS_TIMES], size_t *activations) {
    const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW,
                                   .weight_decay = 0.05,
                                   .clip_norm = 1.0,
                                   .rank = mhla_dist_rank(),
                                   .ranks = mhla_dist_ranks()};
    stepping s = {.model = model, .parts = parts, .batch = batch, .tokens = tokens};
    double spent = 0.0;
    if (parts < mhla_dist_ranks() || batch < 1 || (mhla_model_has(model, MHLA_ROLE_DECODER) && tokens < 1))
        return mhla_fail(MHLA_EINVAL, "%lld parts of %lld samples for %d ranks", (long long)parts, (long long)batch,
                         mhla_dist_ranks());
    memset(seconds, 0, MHLA_RANKS_TIMES * sizeof *seconds);
    mhla_status status = mhla_tape_create(&s.tape, model->context);
    if (status == MHLA_OK) status = make_samples(&s);
    if (status == MHLA_OK) status = mhla_tape_backward(s.tape, loss_of(&s, MHLA_TAPE_DRY, 1.0f), 1.0f);
    if (status == MHLA_OK && activations) *activations = mhla_tape_peak(s.tape);
    if (budget > 0.0 && status == MHLA_OK) status = mhla_optim_create(&s.optim, model->params, &adamw);
    if (budget > 0.0 && status == MHLA_OK) status = mhla_parts_create(&s.sums, model->params, s.optim, parts);
    if (budget > 0.0) status = mhla_dist_agree(status);
    for (int i = 0; budget > 0.0 && status == MHLA_OK && (i < 3 || spent < budget); i++) {
        double took[MHLA_RANKS_TIMES] = {0.0};
        status = step(&s, took);
        if (status == MHLA_OK) status = mhla_dist_spread(took, sizeof took, 0);
        spent += took[0];
        if (i > 0 && (seconds[0] == 0.0 || took[0] < seconds[0])) memcpy(seconds, took, sizeof took);
    }
    mhla_parts_free(s.sums);
    mhla_optim_free(s.optim);
    mhla_tape_free(s.tape);
    mhla_free(s.images);
    mhla_free(s.inputs);
    mhla_free(s.labels);
    return status;
}
