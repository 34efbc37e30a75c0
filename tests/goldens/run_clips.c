/* The verb of run_model for autoencoders of clips: pixels to moments and latents, latents to pixels, with what lies between. What callers
 * get comes from the public functions, the rest from the network. */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/wan_vae.h"
#include "models/model.h"
#include "run.h"

enum { PARTS = 64, FRAMES = 256 };

/* Frames that parts of the network made, as [C][H*W] each. */
static struct part {
    char name[64];
    int count;
    int64_t C, H, W;
    float *frames[FRAMES];
} parts[PARTS];

static void collect(void *user, const char *name, int level, const mhla_tensor *x, int64_t H, int64_t W) {
    char text[64];
    struct part *p = parts;
    (void)user;
    snprintf(text, sizeof text, level < 0 ? "%s" : "%s.%d", name, level);
    while (p < parts + PARTS && *p->name && strcmp(p->name, text) != 0) p++;
    if (p == parts + PARTS || p->count == FRAMES) return;
    snprintf(p->name, sizeof p->name, "%s", text);
    p->C = x->cols;
    p->H = H;
    p->W = W;
    float *frame = p->frames[p->count++] = malloc(sizeof *frame * (size_t)(x->cols * H * W));
    for (int64_t i = 0; frame && i < x->cols * H * W; i++) frame[i] = x->data[i % (H * W) * x->ld + i / (H * W)];
}

/* All of them as clips, and none from now on. */
static void keep_parts(void) {
    for (struct part *p = parts; p < parts + PARTS && *p->name; p++) {
        const int64_t n = p->H * p->W, shape[] = {1, p->C, p->count, p->H, p->W};
        float *clip = malloc(sizeof *clip * (size_t)(p->C * p->count * n));
        for (int64_t i = 0; clip && i < p->C * p->count; i++)
            memcpy(clip + i * n, p->frames[i % p->count] + i / p->count * n, sizeof *clip * (size_t)n);
        if (clip) run_keep(clip, 5, shape, "out.%s", p->name);
        for (int i = 0; i < p->count; i++) free(p->frames[i]);
        free(clip);
        *p = (struct part){0};
    }
}

static mhla_status run_encode(mhla_model *m, const mhla_safetensors *in, mhla_tape *t) {
    const mhla_stored *s, *sn;
    float *x = run_floats(in, "in.video", &s), *noise = run_floats(in, "in.noise", &sn);
    if (x == NULL) return MHLA_OK;
    const mhla_wan_vae_watch watch = {collect, NULL};
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = mhla_wan_vae_encode(t, m->net, &watch, mhla_nn_input(t, x, s->shape, s->rank));
    MHLA_TRY(mhla_tape_status(t));
    keep_parts();
    run_keep(y->data, y->dims, y->shape, "out.moments");
    const int64_t half[] = {1, y->shape[1] / 2, y->shape[2], y->shape[3], y->shape[4]};
    const int64_t n = half[1] * half[2] * half[3] * half[4];
    run_keep(y->data, 5, half, "out.mean");
    float *a = malloc(sizeof *a * (size_t)n), *b = malloc(sizeof *b * (size_t)n);
    for (int64_t i = 0; a && i < n; i++) a[i] = fminf(fmaxf(y->data[n + i], -30.0f), 20.0f);
    run_keep(a, 5, half, "out.logvar");
    const mhla_coding coding = {
        .size = sizeof coding, .frames = (int)s->shape[2], .height = (int)s->shape[3], .width = (int)s->shape[4]};
    MHLA_TRY(mhla_model_encode(m, a, b, x, 1, &coding));
    run_keep(a, 5, half, "out.latent_mode");
    for (int64_t i = 0; noise && i < n; i++) a[i] += b[i] * noise[i];
    if (noise) run_keep(a, 5, half, "out.latent_sampled");
    free(a);
    free(b);
    free(x);
    free(noise);
    return MHLA_OK;
}

static mhla_status run_decode(mhla_model *m, const mhla_safetensors *in, mhla_tape *t) {
    const mhla_stored *s;
    mhla_autoencoder_info info;
    float *x = run_floats(in, "in.latent", &s);
    if (x == NULL) return MHLA_OK;
    MHLA_TRY(mhla_autoencoder_query(m, &info));
    const mhla_coding coding = {.size = sizeof coding,
                                .frames = 1 + (int)(s->shape[2] - 1) * info.frames,
                                .height = (int)s->shape[3] * info.factor,
                                .width = (int)s->shape[4] * info.factor};
    const int64_t shape[] = {1, info.outputs, coding.frames, coding.height, coding.width};
    const int64_t n = shape[1] * shape[2] * shape[3] * shape[4], plane = s->count / info.latents;
    float *y = malloc(sizeof *y * (size_t)n);
    MHLA_TRY(mhla_model_decode(m, y, x, 1, &coding));
    run_keep(y, 5, shape, "out.sample_unclamped");
    for (int64_t i = 0; y && i < n; i++) y[i] = fminf(fmaxf(y[i], -1.0f), 1.0f);
    run_keep(y, 5, shape, "out.sample");
    for (int64_t i = 0; i < s->count; i++) x[i] = x[i] * info.deviation[i / plane] + info.mean[i / plane];
    run_keep(x, 5, s->shape, "out.denormalised");
    const mhla_wan_vae_watch watch = {collect, NULL};
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_wan_vae_decode(t, m->net, &watch, mhla_nn_input(t, x, s->shape, s->rank));
    MHLA_TRY(mhla_tape_status(t));
    keep_parts();
    free(x);
    free(y);
    return MHLA_OK;
}

mhla_status run_clips(mhla_model *m, const mhla_safetensors *in, char **arg) {
    mhla_tape *t;
    (void)arg;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_status status = run_encode(m, in, t);
    if (status == MHLA_OK) status = run_decode(m, in, t);
    mhla_tape_free(t);
    return status;
}
