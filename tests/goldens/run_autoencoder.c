/* The verbs of run_model for autoencoders of images: an image to its moments or its latent, a latent to an image with what lies between. */
#include <stdlib.h>

#include "core/status.h"
#include "models/autoencoders/dc.h"
#include "models/autoencoders/sd.h"
#include "models/model.h"
#include "run.h"

static void keep_grid(const mhla_tensor *x, int64_t H, int64_t W, const char *name, int level) {
    const int64_t C = x->cols, n = H * W, shape[] = {x->shape[0], C, H, W};
    float *images = malloc((size_t)(x->rows * C) * sizeof *images);
    for (int64_t i = 0; images && i < x->rows * C; i++) images[(i / C / n * C + i % C) * n + i / C % n] = x->data[i];
    run_keep(images, 4, shape, name, level);
    free(images);
}

/* The inputs of one half, and what is sent back through it: sum(y * in.gy). */
static mhla_status run_half(mhla_model *m, const mhla_safetensors *in, mhla_tape *t, int decode) {
    const mhla_stored *s, *sy;
    mhla_autoencoder_info info;
    MHLA_TRY(mhla_autoencoder_query(m, &info));
    float *x = run_floats(in, decode ? "in.latent" : "in.image", &s), *dy = run_floats(in, "in.gy", &sy);
    if (x == NULL) return MHLA_OK;
    mhla_tape_begin(t, dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    const int64_t H = s->shape[2], W = s->shape[3];
    mhla_tensor *input = mhla_nn_variable(t, x, s->shape, s->rank), *trace[16] = {NULL}, *y;
    if (decode) {
        mhla_tensor *z = mhla_nn_scale(t, (float)(1.0 / info.scale), input); /* no shift in any golden */
        y = mhla_sd_decode(t, m->net, dy ? trace : NULL, z);
    } else {
        y = mhla_sd_encode(t, m->net, input);
    }
    MHLA_TRY(mhla_tape_status(t));
    run_keep(y->data, y->dims, y->shape, decode ? "out.sample" : "out.moments");
    const int64_t n = y->shape[2] * y->shape[3], mode[] = {y->shape[0], info.latents, y->shape[2], y->shape[3]};
    if (!decode) {
        float *latent = malloc((size_t)(y->shape[0] * info.latents * n) * sizeof *latent);
        for (int64_t i = 0; latent && i < y->shape[0] * info.latents * n; i++)
            latent[i] = (float)((double)y->data[i + i / (info.latents * n) * info.latents * n] * info.scale);
        run_keep(latent, 4, mode, "out.latent_mode");
        free(latent);
    }
    if (dy) {
        MHLA_TRY(mhla_tape_backward_from(t, y, dy));
        run_keep(mhla_tensor_grad(input), s->rank, s->shape, decode ? "grad.in.latent" : "grad.in.image");
        run_keep_grads(m->params);
    }
    if (decode) { /* again, and kept: what is between lives only where the tape records */
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        input = mhla_nn_variable(t, x, s->shape, s->rank);
        mhla_sd_decode(t, m->net, trace, mhla_nn_scale(t, (float)(1.0 / info.scale), input));
        MHLA_TRY(mhla_tape_status(t));
        keep_grid(trace[0], H, W, "out.post_quant_conv", 0);
        keep_grid(trace[1], H, W, "out.decoder.conv_in", 0);
        keep_grid(trace[2], H, W, "out.decoder.mid_block", 0);
        for (int i = 0; trace[3 + i] && i < 12; i++) {
            const int64_t scale = (int64_t)1 << (i + 1 < mhla_sd_levels(mhla_sd_config_of(m->net)) ? i + 1 : i);
            keep_grid(trace[3 + i], H * scale, W * scale, "out.decoder.up_blocks.%d", i);
        }
    }
    free(x);
    free(dy);
    return MHLA_OK;
}

/* The same of an AutoencoderDC. */
static mhla_status run_dc_half(mhla_model *m, const mhla_safetensors *in, mhla_tape *t, int decode) {
    const mhla_stored *s;
    const mhla_dc_config *c = mhla_dc_config_of(m->net);
    float *x = run_floats(in, decode ? "in.latent" : "in.image", &s);
    if (x == NULL) return MHLA_OK;
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    mhla_tensor *input = mhla_nn_input(t, x, s->shape, s->rank), *trace[MHLA_DC_STAGES + 2];
    if (!decode) {
        const mhla_tensor *y = mhla_dc_encode(t, m->net, input);
        MHLA_TRY(mhla_tape_status(t));
        run_keep(y->data, y->dims, y->shape, "out.latent");
        free(x);
        return MHLA_OK;
    }
    const float factor = (float)(1.0 / c->scale);
    const mhla_tensor *y = mhla_dc_decode(t, m->net, NULL, mhla_nn_scale(t, factor, input));
    MHLA_TRY(mhla_tape_status(t));
    run_keep(y->data, y->dims, y->shape, "out.sample");
    mhla_tape_begin(t, MHLA_TAPE_RECORD); /* again: what is between lives only where the tape records */
    input = mhla_nn_variable(t, x, s->shape, s->rank);
    mhla_dc_decode(t, m->net, trace, mhla_nn_scale(t, factor, input));
    MHLA_TRY(mhla_tape_status(t));
    const int count = mhla_dc_count(&c->decoder);
    int64_t H = s->shape[2], W = s->shape[3];
    keep_grid(trace[0], H, W, "out.decoder.conv_in", 0);
    keep_grid(trace[1], H, W, "out.decoder.up_blocks.%d.0.attn", count - 1);
    for (int i = count - 1; i >= 0; i--, H *= 2, W *= 2)
        keep_grid(trace[2 + count - 1 - i], H, W, "out.decoder.up_blocks.%d", i);
    free(x);
    return MHLA_OK;
}

mhla_status run_deep(mhla_model *m, const mhla_safetensors *in, char **arg) {
    mhla_tape *t;
    (void)arg;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_status status = run_dc_half(m, in, t, 0);
    if (status == MHLA_OK) status = run_dc_half(m, in, t, 1);
    mhla_tape_free(t);
    return status;
}

mhla_status run_autoencoder(mhla_model *m, const mhla_safetensors *in, char **arg) {
    mhla_tape *t;
    (void)arg;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_status status = run_half(m, in, t, 0);
    if (status == MHLA_OK) status = run_half(m, in, t, 1);
    mhla_tape_free(t);
    return status;
}
