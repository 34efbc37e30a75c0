/* run_model's part about single layers, pictures and quantised rows: in.* are variables, param.* parameters, dout.y sends
 * gradients back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/gguf_types.h"
#include "image/resize.h"
#include "nn/nn.h"
#include "run.h"

enum { MOST_INPUTS = 8 };

/* What a layer reads. */
typedef struct reading {
    const mhla_safetensors *in;
    mhla_tape *t;
    mhla_params *params;
    float *data[MOST_INPUTS];
    mhla_tensor *tensors[MOST_INPUTS];
    const char *names[MOST_INPUTS];
    int count;
} reading;

/* in.`name`, or NULL with a tape that has failed. */
static mhla_tensor *variable(reading *r, const char *name) {
    char full[64];
    const mhla_stored *s;
    snprintf(full, sizeof full, "in.%s", name);
    float *x = r->count < MOST_INPUTS ? run_floats(r->in, full, &s) : NULL;
    if (x == NULL) return mhla_tape_fail(r->t, MHLA_EDATA, "no %s", full);
    r->data[r->count] = x;
    r->names[r->count] = name;
    return r->tensors[r->count++] = mhla_nn_variable(r->t, x, s->shape, s->rank);
}

static mhla_param *parameter(const reading *r, const char *name) { return mhla_params_find(r->params, name); }

static mhla_status read_params(mhla_params *params, const mhla_safetensors *in) {
    for (int64_t i = 0; i < mhla_safetensors_count(in); i++) {
        const mhla_stored *s = mhla_safetensors_at(in, i);
        if (strncmp(s->name, "param.", 6) != 0) continue;
        mhla_param *p = mhla_params_add(params, s->name + 6, s->shape, s->rank, 0, MHLA_ZERO);
        if (p == NULL) return mhla_params_status(params);
        MHLA_TRY(mhla_stored_read(p->data, s));
        mhla_param_touch(p);
    }
    return MHLA_OK;
}

/* A norm behind its gate, as Mamba2 has it, of each `group` channels (0: all); or before another gate than silu, as Gated DeltaNet. */
static mhla_tensor *gated_norm(reading *r, const char *name, float eps, int64_t group) {
    mhla_tape *t = r->t;
    mhla_param *w = parameter(r, "weight");
    mhla_tensor *x = variable(r, "x"), *g = variable(r, "g");
    if (strcmp(name, "gate_rms_norm") == 0)
        return mhla_nn_channels(t, w, mhla_nn_rms_norm(t, NULL, eps, group, mhla_nn_swiglu(t, g, x)));
    return mhla_nn_mul(t, mhla_nn_rms_norm(t, w, eps, 0, x), mhla_nn_sigmoid(t, 1.0f, g));
}

/* y of the layer; *loss is 1 where it is a loss. */
static mhla_tensor *compute(reading *r, const char *name, float eps, int64_t group, int32_t **labels, int *loss) {
    mhla_tape *t = r->t;
    if (strcmp(name, "rms_norm") == 0) return mhla_nn_rms_norm(t, parameter(r, "weight"), eps, 0, variable(r, "x"));
    if (strcmp(name, "rms_norm_gated") == 0) {
        mhla_tensor *x = variable(r, "x");
        return mhla_nn_rms_norm_gated(t, parameter(r, "weight"), eps, 0, x, variable(r, "g"));
    }
    if (strcmp(name, "gate_rms_norm") == 0 || strcmp(name, "rms_norm_sigmoid") == 0)
        return gated_norm(r, name, eps, group);
    if (strcmp(name, "swiglu") == 0) {
        mhla_tensor *gate = variable(r, "gate");
        return mhla_nn_swiglu(t, gate, variable(r, "up"));
    }
    if (strcmp(name, "swiglu_mlp") == 0) {
        mhla_tensor *x = variable(r, "x");
        mhla_tensor *gate = mhla_nn_linear(t, parameter(r, "gate_proj_w"), NULL, MHLA_ACT_NONE, NULL, x);
        mhla_tensor *up = mhla_nn_linear(t, parameter(r, "up_proj_w"), NULL, MHLA_ACT_NONE, NULL, x);
        return mhla_nn_linear(t, parameter(r, "down_proj_w"), NULL, MHLA_ACT_NONE, NULL, mhla_nn_swiglu(t, gate, up));
    }
    if (strcmp(name, "cross_entropy") == 0) {
        *loss = 1;
        *labels = run_labels(r->in, "in.labels");
        return mhla_nn_cross_entropy(t, variable(r, "logits"), *labels, NULL, 0.0f, NULL);
    }
    return mhla_tape_fail(t, MHLA_EINVAL, "no layer \"%s\"", name);
}

mhla_status run_layer(char **arg) { /* NAME IN OUT EPS GROUP */
    reading r = {0};
    mhla_safetensors *in = NULL;
    const mhla_stored *s;
    int32_t *labels = NULL;
    float *dy = NULL;
    int loss = 0;
    mhla_status status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = mhla_params_create(&r.params);
    if (status == MHLA_OK) status = read_params(r.params, in);
    if (status == MHLA_OK) status = mhla_tape_create(&r.t, NULL);
    if (status != MHLA_OK) goto done;
    r.in = in;
    mhla_tape_begin(r.t, MHLA_TAPE_RECORD);
    mhla_tensor *y = compute(&r, arg[0], (float)atof(arg[3]), atoll(arg[4]), &labels, &loss);
    if ((status = mhla_tape_status(r.t)) != MHLA_OK) goto done;
    run_keep(y->data, loss ? 0 : y->dims, y->shape, loss ? "out.loss" : "out.y");
    dy = run_floats(in, loss ? "dout.loss" : "dout.y", &s);
    if (dy == NULL) goto done;
    status = loss ? mhla_tape_backward(r.t, y, *dy) : mhla_tape_backward_from(r.t, y, dy);
    if (status != MHLA_OK) goto done;
    for (int i = 0; i < r.count; i++)
        run_keep(mhla_tensor_grad(r.tensors[i]), r.tensors[i]->dims, r.tensors[i]->shape, "grad.in.%s", r.names[i]);
    run_keep_grads(r.params);
done:
    mhla_tape_free(r.t);
    mhla_params_free(r.params);
    for (int i = 0; i < r.count; i++) free(r.data[i]);
    free(dy);
    free(labels);
    mhla_safetensors_close(in);
    return status;
}

/* ---- Pictures: every in.NAME [H,W,3] so that its shorter side is SIZE, out.NAME. ACROSS 1: by two calls, columns first, as
 * Pillow did it before version 13 ---- */

mhla_status run_resize(char **arg) { /* IN OUT SIZE ACROSS */
    const int across = atoi(arg[3]);
    mhla_safetensors *in;
    mhla_image from = {0}, between = {0}, to = {0};
    MHLA_TRY(mhla_safetensors_open(&in, arg[0]));
    mhla_status status = MHLA_OK;
    const int64_t size = atoll(arg[2]);
    for (int64_t i = 0; status == MHLA_OK && i < mhla_safetensors_count(in); i++) {
        const mhla_stored *s = mhla_safetensors_at(in, i);
        if (strncmp(s->name, "in.", 3) != 0 || s->rank != 3 || s->dtype != MHLA_IO_U8) continue;
        const int64_t H = s->shape[0], W = s->shape[1], C = s->shape[2];
        const int64_t height = H < W ? size : size * H / W, width = H < W ? size * W / H : size;
        status = mhla_image_reserve(&from, (int)W, (int)H, (int)C);
        if (status != MHLA_OK) break;
        memcpy(from.data, s->data, s->bytes);
        if (across) status = mhla_image_resize(&between, &from, (int)width, (int)H, MHLA_FILTER_BICUBIC, NULL);
        if (status == MHLA_OK)
            status =
                mhla_image_resize(&to, across ? &between : &from, (int)width, (int)height, MHLA_FILTER_BICUBIC, NULL);
        float *pixels = malloc(sizeof *pixels * (size_t)(width * height * C));
        for (int64_t k = 0; status == MHLA_OK && pixels && k < width * height * C; k++) pixels[k] = to.data[k];
        if (status == MHLA_OK && pixels)
            run_keep(pixels, 3, (const int64_t[]){height, width, C}, "out.%s", s->name + 3);
        free(pixels);
    }
    mhla_image_free(&from);
    mhla_image_free(&between);
    mhla_image_free(&to);
    mhla_safetensors_close(in);
    return status;
}

/* ---- Quantised rows: in.`NAME` [rows, bytes] of GGUF's type NUMBER ---- */

mhla_status run_dequantize(char **arg) { /* IN OUT NAME NUMBER */
    const mhla_gguf_layout *layout = mhla_gguf_layout_of((uint32_t)atoi(arg[3]));
    if (layout == NULL || !layout->readable) return mhla_fail(MHLA_ENOTSUP, "no %s here yet", arg[2]);
    char name[64];
    mhla_safetensors *in;
    const mhla_stored *s;
    MHLA_TRY(mhla_safetensors_open(&in, arg[0]));
    snprintf(name, sizeof name, "in.%s", arg[2]);
    mhla_status status = mhla_safetensors_need(&s, in, name);
    if (status == MHLA_OK && (s->rank != 2 || s->shape[1] % layout->bytes != 0))
        status = mhla_fail(MHLA_EDATA, "%s has no whole blocks of %d bytes", name, layout->bytes);
    if (status == MHLA_OK) {
        const int64_t numbers = (int64_t)s->bytes / layout->bytes * layout->block;
        float *x = malloc(sizeof *x * (size_t)(numbers + 1));
        if (x == NULL) {
            status = mhla_fail(MHLA_ENOMEM, "no memory");
        } else {
            mhla_gguf_to_f32(x, s->data, (mhla_gguf_type)atoi(arg[3]), numbers);
            run_keep(x, 2, (const int64_t[]){s->shape[0], numbers / s->shape[0]}, "out.%s", arg[2]);
        }
        free(x);
    }
    mhla_safetensors_close(in);
    return status;
}
