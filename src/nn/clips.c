/* Clips [B,C,F,H,W], frame by frame: a frame as tokens [B,H*W,C], and frames of tokens as a clip. And what lives on while a tape that
 * does not record goes from frame to frame. */
#include <string.h>

#include "nn/op.h"

/* ---- A frame of a clip ---- */

typedef struct frames {
    mhla_tensor *clip;
    int64_t f; /* the frame */
    mhla_tensor *tokens;
    float *data, *rows; /* of the clip and of the tokens, or of their gradients */
    int64_t ld;
    int out, add; /* out: into the clip; add: to what is there */
} frames;

/* A row of pixels: its tokens' channels from, or into, the planes of the clip. */
static void frame_task(void *arg, int64_t task, int worker) {
    const frames *w = arg;
    (void)worker;
    const int64_t *s = w->clip->shape, C = s[1], F = s[2], H = s[3], W = s[4], b = task / H, h = task % H;
    for (int64_t c = 0; c < C; c++) {
        float *line = w->data + (((b * C + c) * F + w->f) * H + h) * W, *token = w->rows + task * W * w->ld + c;
        for (int64_t i = 0; i < W; i++, token += w->ld) {
            float *to = w->out ? line + i : token;
            const float value = w->out ? *token : line[i];
            *to = w->add ? *to + value : value;
        }
    }
}

static void copy_frame(mhla_tape *t, frames *w) {
    mhla_tape_run(t, w->clip->shape[0] * w->clip->shape[3], frame_task, w);
}

typedef struct frame {
    mhla_record r;
    frames w;
} frame;

/* dx[f] += dy; the other frames of dx are zeros where nothing is there yet */
static void frame_backward(mhla_tape *t, void *p) {
    frames w = ((frame *)p)->w;
    const mhla_slot dx = mhla_tape_grad(t, w.clip);
    if (!dx.wanted) return;
    if (!dx.add && !mhla_tape_dry(t) && t->status == MHLA_OK)
        memset(dx.data, 0, sizeof(float) * (size_t)(w.clip->rows * w.clip->cols));
    w.data = dx.data;
    w.rows = mhla_tape_arrived(w.tokens);
    w.ld = w.tokens->ld;
    w.out = w.add = 1;
    copy_frame(t, &w);
}

mhla_tensor *mhla_nn_frame(mhla_tape *t, int64_t f, mhla_tensor *clip) {
    MHLA_GIVEN(t, clip);
    char text[96];
    const int64_t *s = clip->shape;
    MHLA_NEED(t, clip->dims == 5 && clip->ld == clip->cols && f >= 0 && f < s[2], "frame %lld of clips of shape %s",
              (long long)f, mhla_shape_text(text, s, clip->dims));
    frame *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(s[0], s[3] * s[4], s[1])) : NULL;
    if (y == NULL) return NULL;
    op->w = (frames){.clip = clip, .f = f, .tokens = y, .data = clip->data, .rows = y->data, .ld = y->ld};
    copy_frame(t, &op->w);
    return mhla_tape_record(t, &op->r, frame_backward, y, clip->needs_grad);
}

/* ---- A clip of frames ---- */

struct mhla_nn_clip {
    mhla_record r;
    mhla_tensor *y, **frames; /* [F], kept while the tape records */
    int64_t count;
    int needs;
};

/* dx_f (=, +=) dy[f] */
static void clip_backward(mhla_tape *t, void *p) {
    const mhla_nn_clip *op = p;
    for (int64_t f = 0; f < op->count; f++) {
        const mhla_slot dx = mhla_tape_grad(t, op->frames[f]);
        frames w = {.clip = op->y, .f = f, .rows = dx.data, .ld = dx.ld, .add = dx.add};
        if (!dx.wanted) continue;
        w.data = mhla_tape_arrived(op->y);
        copy_frame(t, &w);
    }
}

mhla_nn_clip *mhla_nn_clip_begin(mhla_tape *t, int64_t B, int64_t C, int64_t F, int64_t H, int64_t W) {
    mhla_nn_clip *op = mhla_tape_op(t, sizeof *op);
    if (op) op->y = mhla_tape_tensor(t, MHLA_SHAPE(B, C, F, H, W));
    if (op && op->y && t->recording) op->frames = mhla_tape_op(t, (size_t)F * sizeof *op->frames);
    return t->status == MHLA_OK ? op : NULL;
}

void mhla_nn_clip_put(mhla_tape *t, mhla_nn_clip *op, mhla_tensor *x) {
    char text[96];
    if (t->status != MHLA_OK || op == NULL || x == NULL) return;
    const int64_t *s = op->y->shape;
    if (op->count == s[2] || x->dims != 3 || x->shape[0] != s[0] || x->shape[1] != s[3] * s[4] || x->cols != s[1]) {
        mhla_tape_fail(t, MHLA_EINVAL, "frame %lld of a clip is %s", (long long)op->count,
                       mhla_shape_text(text, x->shape, x->dims));
        return;
    }
    frames w = {.clip = op->y, .f = op->count, .data = op->y->data, .rows = x->data, .ld = x->ld, .out = 1};
    copy_frame(t, &w);
    if (op->frames) op->frames[op->count] = x;
    op->needs |= x->needs_grad;
    op->count++;
}

mhla_tensor *mhla_nn_clip_end(mhla_tape *t, mhla_nn_clip *op) {
    if (t->status != MHLA_OK) return NULL;
    MHLA_GIVEN(t, op);
    MHLA_NEED(t, op->count == op->y->shape[2], "%lld frames of a clip of %lld", (long long)op->count,
              (long long)op->y->shape[2]);
    return mhla_tape_record(t, &op->r, clip_backward, op->y, op->needs);
}

/* ---- What lives on ---- */

typedef struct keeping {
    const mhla_tensor *x;
    float *to;
} keeping;

enum { ROWS = 256 }; /* of a task */

static void keep_task(void *arg, int64_t task, int worker) {
    const keeping *k = arg;
    (void)worker;
    const int64_t cols = k->x->cols, last = (task + 1) * ROWS < k->x->rows ? (task + 1) * ROWS : k->x->rows;
    for (int64_t r = task * ROWS; r < last; r++)
        memcpy(k->to + r * cols, k->x->data + r * k->x->ld, sizeof(float) * (size_t)cols);
}

mhla_tensor *mhla_tape_keep(mhla_tape *t, mhla_tensor *place, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    if (t->recording) return x;
    MHLA_GIVEN(t, place);
    char text[96], other[96];
    MHLA_NEED(t, mhla_same_shape(place, x) && place->ld == place->cols, "%s is kept where there is room for %s",
              mhla_shape_text(text, x->shape, x->dims), mhla_shape_text(other, place->shape, place->dims));
    mhla_tape_run(t, (x->rows + ROWS - 1) / ROWS, keep_task, &(keeping){x, place->data});
    return place;
}

mhla_tensor *mhla_tape_room(mhla_tape *t, const int64_t *shape, int dims) {
    return t->status == MHLA_OK && !t->recording ? mhla_tape_tensor(t, shape, dims) : NULL;
}
