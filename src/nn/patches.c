/* Images and their patches: the patch embedding, a linear layer in disguise, and the way back from tokens to an image. A clip
 * is patches of one frame each, frame after frame. */
#include <string.h>

#include "nn/op.h"

/* ---- Image to tokens: the convolution whose stride is its size is a linear layer of the patches ---- */

typedef struct patches {
    mhla_record r;
    mhla_tensor *x, *y; /* [B,C,H,W] or [B,C,F,H,W], [B, F*H/p*W/p, C*p*p] */
    int p;              /* side of a patch; of upsampling, columns */
    int64_t C, F, H, W; /* of the images */
    mhla_slot dx;
} patches;

/* A row of patches of one frame: y[token][c][i][j] = x[c][token's i, j]; or back. */
static void patches_task(void *arg, int64_t task, int worker) {
    const patches *op = arg;
    (void)worker;
    const int64_t C = op->C, F = op->F, H = op->H, W = op->W, p = op->p;
    const int64_t row = task % (H / p), f = task / (H / p) % F, b = task / (H / p) / F;
    float *y = (op->dx.wanted ? mhla_tape_arrived(op->y) : op->y->data) + task * (W / p) * C * p * p;
    for (int64_t token = 0; token < W / p; token++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t i = 0; i < p; i++, y += p) {
                const int64_t at = (((b * C + c) * F + f) * H + row * p + i) * W + token * p;
                if (!op->dx.wanted)
                    memcpy(y, op->x->data + at, sizeof(float) * (size_t)p);
                else
                    for (int64_t j = 0; j < p; j++)
                        op->dx.data[at + j] = op->dx.add ? op->dx.data[at + j] + y[j] : y[j];
            }
}

static void patches_backward(mhla_tape *t, void *p) {
    patches *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->shape[0] * op->F * (op->H / op->p), patches_task, op);
}

mhla_tensor *mhla_nn_patches(mhla_tape *t, int p, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    const int clip = x->dims == 5;
    MHLA_NEED(
        t, p >= 1 && (x->dims == 4 || clip) && x->ld == x->cols && x->shape[x->dims - 2] % p == 0 && x->cols % p == 0,
        "patches of %d of images of shape %s", p, mhla_shape_text(text, x->shape, x->dims));
    const int64_t C = x->shape[1], F = clip ? x->shape[2] : 1, H = x->shape[x->dims - 2], W = x->cols;
    patches *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], F * (H / p) * (W / p), C * p * p)) : NULL;
    if (y == NULL) return NULL;
    *op = (patches){.x = x, .y = y, .p = p, .C = C, .F = F, .H = H, .W = W};
    mhla_tape_run(t, x->shape[0] * F * (H / p), patches_task, op);
    return mhla_tape_record(t, &op->r, patches_backward, y, x->needs_grad);
}

mhla_tensor *mhla_nn_patch_embed(mhla_tape *t, mhla_param *w, mhla_param *b, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    MHLA_GIVEN(t, w);
    char text[96], other[96];
    const int n = w->dims;
    const int64_t p = w->shape[n - 1];
    MHLA_NEED(t, (n == 4 || (n == 5 && w->shape[2] == 1)) && w->shape[n - 2] == p,
              "%s is %s: expected [D, C, p, p] or [D, C, 1, p, p]", w->name, mhla_shape_text(text, w->shape, n));
    MHLA_NEED(t, x->dims == n && x->shape[1] == w->shape[1] && x->shape[n - 2] % p == 0 && x->shape[n - 1] % p == 0,
              "%s is %s: its images are %s", w->name, mhla_shape_text(text, w->shape, n),
              mhla_shape_text(other, x->shape, x->dims));
    return mhla_nn_linear(t, w, b, MHLA_ACT_NONE, NULL, mhla_nn_patches(t, (int)p, x));
}

/* ---- Tokens to image ---- */

/* A row of patches of one frame: y[c][token's i, j] = x[token][i][j][c]; or back. */
static void image_task(void *arg, int64_t task, int worker) {
    const patches *op = arg;
    (void)worker;
    const int64_t C = op->C, F = op->F, H = op->H, W = op->W, p = op->p, ld = op->dx.wanted ? op->dx.ld : op->x->ld;
    const int64_t row = task % (H / p), f = task / (H / p) % F, b = task / (H / p) / F;
    float *x = (op->dx.wanted ? op->dx.data : op->x->data) + task * (W / p) * ld;
    float *y = op->dx.wanted ? mhla_tape_arrived(op->y) : op->y->data;
    for (int64_t c = 0; c < C; c++)
        for (int64_t i = 0; i < p; i++) {
            float *line = y + (((b * C + c) * F + f) * H + row * p + i) * W;
            for (int64_t w = 0; w < W; w++) {
                float *from = x + w / p * ld + (i * p + w % p) * C + c;
                if (!op->dx.wanted)
                    line[w] = *from;
                else
                    *from = op->dx.add ? *from + line[w] : line[w];
            }
        }
}

static void image_backward(mhla_tape *t, void *p) {
    patches *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->y->shape[0] * op->F * (op->H / op->p), image_task, op);
}

/* F 0: images without an axis of frames. */
static mhla_tensor *unpatch(mhla_tape *t, int p, int64_t F, int64_t H, int64_t W, mhla_tensor *x) {
    char text[96];
    const int64_t frames = F ? F : 1;
    MHLA_NEED(t, p >= 1 && x->dims == 3 && x->shape[1] == frames * H * W && x->cols % ((int64_t)p * p) == 0,
              "%lld x %lld x %lld patches of %d from tokens of shape %s", (long long)frames, (long long)H, (long long)W,
              p, mhla_shape_text(text, x->shape, x->dims));
    const int64_t B = x->shape[0], C = x->cols / ((int64_t)p * p);
    patches *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op == NULL ? NULL
                     : F        ? mhla_tape_tensor(t, MHLA_SHAPE(B, C, F, H * p, W * p))
                                : mhla_tape_tensor(t, MHLA_SHAPE(B, C, H * p, W * p));
    if (y == NULL) return NULL;
    *op = (patches){.x = x, .y = y, .p = p, .C = C, .F = frames, .H = H * p, .W = W * p};
    mhla_tape_run(t, B * frames * H, image_task, op);
    return mhla_tape_record(t, &op->r, image_backward, y, x->needs_grad);
}

mhla_tensor *mhla_nn_unpatch(mhla_tape *t, int p, int64_t H, int64_t W, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return unpatch(t, p, 0, H, W, x);
}

mhla_tensor *mhla_nn_unpatch_clip(mhla_tape *t, int p, const int64_t grid[3], mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    return unpatch(t, p, grid[0], grid[1], grid[2], x);
}

/* ---- Pixels twice along both sides ---- */

/* A row of the smaller grid: its pixel to the four of y; or dx (=, +=) the sum of the four. */
static void upsample_task(void *arg, int64_t row, int worker) {
    const patches *op = arg;
    (void)worker;
    const int64_t C = op->x->cols, W = op->p, ldy = op->y->ld, back = op->dx.wanted;
    for (int64_t w = 0; w < W; w++) {
        const int64_t at = row * W + w;
        float *y = (back ? mhla_tape_arrived(op->y) : op->y->data) + (row * 4 * W + 2 * w) * ldy;
        float *four[4] = {y, y + ldy, y + 2 * W * ldy, y + (2 * W + 1) * ldy};
        for (int i = 0; i < 4 && !back; i++) memcpy(four[i], op->x->data + at * op->x->ld, sizeof(float) * (size_t)C);
        if (!back) continue;
        float *dx = op->dx.data + at * op->dx.ld;
        for (int64_t c = 0; c < C; c++) {
            const float sum = four[0][c] + four[1][c] + (four[2][c] + four[3][c]);
            dx[c] = op->dx.add ? dx[c] + sum : sum;
        }
    }
}

static void upsample_backward(mhla_tape *t, void *p) {
    patches *op = p;
    op->dx = mhla_tape_grad(t, op->x);
    if (op->dx.wanted) mhla_tape_run(t, op->x->rows / op->p, upsample_task, op);
}

mhla_tensor *mhla_nn_upsample(mhla_tape *t, int64_t H, int64_t W, mhla_tensor *x) {
    MHLA_GIVEN(t, x);
    char text[96];
    MHLA_NEED(t, x->dims == 3 && H > 0 && W > 0 && W < INT32_MAX && x->shape[1] == H * W,
              "a grid of %lld x %lld from tokens of shape %s", (long long)H, (long long)W,
              mhla_shape_text(text, x->shape, x->dims));
    patches *op = mhla_tape_op(t, sizeof *op);
    mhla_tensor *y = op ? mhla_tape_tensor(t, MHLA_SHAPE(x->shape[0], 4 * H * W, x->cols)) : NULL;
    if (y == NULL) return NULL;
    *op = (patches){.x = x, .y = y, .p = (int)W};
    mhla_tape_run(t, x->rows / W, upsample_task, op);
    return mhla_tape_record(t, &op->r, upsample_backward, y, x->needs_grad);
}
