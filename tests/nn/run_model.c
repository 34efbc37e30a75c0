/* run_model: what tests/goldens.py and other comparisons need of a model, without a binding.
 *
 *   run_model forward MODEL IN OUT        in.x and in.target or dout.logits -> out.*, grad.in.x, grad.param.*
 *                                         of a diffusion model in.x, in.t, in.label and dout.y or not -> the same
 *   run_model attention MODEL IN OUT      a classifier's first block: in.x [B,T,D], dout.y -> out.y, grad.in.x, grad.param.*
 *   run_model steps MODEL IN OUT RATE DECAY EMA   in.x.0, in.target.0, ... -> out.loss.N, out.stepN.*, out.emaN.*
 *   run_model schedule KIND OUT BASE FLOOR FROM WARMUP TOTAL COUNT   -> out.rates
 *   run_model levels linear|cosine OUT LEVELS RESPACING   tables of noise levels
 *   run_model diffusion IN OUT RESPACING CLIP   in.x_start, in.noise, in.t, in.model_output, in.sample_noise -> steps, losses
 *   run_model flow IN OUT METHOD library|wan STEPS SHIFT   in.sample, in.model_output.NN -> out.sample.NN, out.sigmas
 *
 * IN and OUT are safetensors. MODEL is a folder with config.json and model.safetensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"
#include "nn/optim.h"
#include "nn/run.h"

enum { MOST = 8192 };
static mhla_storable results[MOST];
static int64_t shapes[MOST][MHLA_MAX_DIMS];
static int count;

void run_keep(const float *data, int dims, const int64_t *shape, const char *format, ...) {
    if (count == MOST) return;
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    int64_t n = 1;
    for (int a = 0; a < dims; a++) n *= shapes[count][a] = shape[a];
    float *copy = malloc((size_t)n * sizeof *copy);
    if (copy == NULL) return;
    memcpy(copy, data, (size_t)n * sizeof *copy);
    results[count] = (mhla_storable){strdup(name), dims, shapes[count], copy, MHLA_IO_F32, MHLA_IO_F32};
    count++;
}

static void keep_tensor(const mhla_tensor *x, const char *name) { run_keep(x->data, x->dims, x->shape, "%s", name); }

float *run_floats(const mhla_safetensors *in, const char *name, const mhla_stored **stored) {
    const mhla_stored *s = *stored = mhla_safetensors_find(in, name);
    float *x = s ? malloc((size_t)s->count * sizeof *x) : NULL;
    if (x == NULL) return NULL;
    if (s->dtype == MHLA_IO_I64) {
        for (int64_t i = 0; i < s->count; i++) {
            int64_t whole;
            memcpy(&whole, s->data + 8 * i, 8);
            x[i] = (float)whole;
        }
        return x;
    }
    if (mhla_stored_read(x, s) == MHLA_OK) return x;
    free(x);
    return NULL;
}

static int32_t *read_labels(const mhla_safetensors *in, const char *name) {
    const mhla_stored *s = mhla_safetensors_find(in, name);
    if (s == NULL || s->dtype != MHLA_IO_I64) return NULL;
    int32_t *x = malloc((size_t)s->count * sizeof *x);
    for (int64_t i = 0; x && i < s->count; i++) {
        int64_t v;
        memcpy(&v, s->data + 8 * i, 8);
        x[i] = (int32_t)v;
    }
    return x;
}

static void keep_grads(const mhla_params *ps) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (p->has_grad) run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name);
    }
}

/* The times and labels of a batch; `suffix` is that of its names. */
typedef struct told {
    float *times;
    int32_t *labels;
} told;

static told read_told(const mhla_safetensors *in, const char *suffix) {
    char t[32], label[32];
    const mhla_stored *s;
    snprintf(t, sizeof t, "in.t%s", suffix);
    snprintf(label, sizeof label, "in.label%s", suffix);
    return (told){run_floats(in, t, &s), read_labels(in, label)};
}

static void drop_told(told d) {
    free(d.times);
    free(d.labels);
}

static mhla_status forward_dit(mhla_model *m, const mhla_safetensors *in) {
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.y", &sd);
    const told d = read_told(in, "");
    if (x == NULL || d.times == NULL || d.labels == NULL) return mhla_fail(MHLA_EDATA, "no in.x, in.t or in.label");
    mhla_tensor *trace[256] = {0};
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
    mhla_tensor *y = mhla_dit_forward(t, m->dit, &(mhla_dit_run){.trace = trace}, input, d.times, d.labels);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(y, "out.y");
    for (int i = 0; i < mhla_dit_config_of(m->dit)->depth; i++)
        run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.blocks.%d", i);
    if (dy) {
        MHLA_TRY(mhla_tape_backward_from(t, y, dy));
        run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
        keep_grads(m->params);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
    drop_told(d);
    return MHLA_OK;
}

static mhla_status attention(mhla_model *m, const mhla_safetensors *in) {
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.y", &sd);
    if (x == NULL || dy == NULL || m->deit == NULL) return mhla_fail(MHLA_EDATA, "no in.x or dout.y, or no classifier");
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
    mhla_tensor *y = mhla_deit_attention(t, m->deit, 0, input);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(y, "out.y");
    MHLA_TRY(mhla_tape_backward_from(t, y, dy));
    run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
    keep_grads(m->params);
    mhla_tape_free(t);
    free(x);
    free(dy);
    return MHLA_OK;
}

static mhla_status forward(mhla_model *m, const mhla_safetensors *in) {
    if (m->dit) return forward_dit(m, in);
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.logits", &sd);
    int32_t *labels = read_labels(in, "in.target");
    if (x == NULL) return mhla_fail(MHLA_EDATA, "no in.x");
    const int depth = mhla_deit_config_of(m->deit)->depth;
    mhla_tensor *trace[257] = {0}, *loss = NULL;
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, labels || dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
    mhla_tensor *logits = mhla_deit_forward(t, m->deit, &(mhla_deit_run){.trace = trace}, input);
    if (labels) loss = mhla_nn_cross_entropy(t, logits, labels, NULL, 0.0f, NULL);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(logits, "out.logits");
    keep_tensor(trace[depth], "out.features");
    for (int i = 0; i < depth; i++) run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.blocks.%d", i);
    if (loss) run_keep(loss->data, 0, NULL, "out.loss");
    if (loss) MHLA_TRY(mhla_tape_backward(t, loss, 1.0f));
    if (loss == NULL && dy) MHLA_TRY(mhla_tape_backward_from(t, logits, dy));
    if (loss || dy) {
        run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
        keep_grads(m->params);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
    free(labels);
    return MHLA_OK;
}

/* AdamW as the DeiT script sets it, or DiT's: update, clip of the mixing matrices, average. */
static mhla_status steps(mhla_model *m, const mhla_safetensors *in, double rate, double decay, double average) {
    mhla_params *ps = m->params;
    mhla_optim *optim;
    mhla_ema *ema;
    mhla_tape *t;
    MHLA_TRY(mhla_optim_create(&optim, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_ADAMW, .weight_decay = decay}));
    MHLA_TRY(mhla_ema_create(&ema, ps, average, m->deit != NULL));
    MHLA_TRY(mhla_tape_create(&t, NULL));
    for (int step = 0;; step++) {
        char name[32];
        const mhla_stored *sx;
        snprintf(name, sizeof name, "in.x.%d", step);
        float *x = run_floats(in, name, &sx);
        snprintf(name, sizeof name, "in.target.%d", step);
        const mhla_stored *st;
        int32_t *labels = m->deit ? read_labels(in, name) : NULL;
        float *target = m->dit ? run_floats(in, name, &st) : NULL;
        if (x == NULL || (labels == NULL && target == NULL)) break;
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *input = mhla_nn_input(t, x, sx->shape, sx->rank), *loss;
        snprintf(name, sizeof name, ".%d", step);
        const told d = m->dit ? read_told(in, name) : (told){0};
        if (m->dit)
            loss = mhla_nn_mse(t, mhla_dit_forward(t, m->dit, &(mhla_dit_run){0}, input, d.times, d.labels), target);
        else
            loss = mhla_nn_cross_entropy(t, mhla_deit_forward(t, m->deit, &(mhla_deit_run){0}, input), labels, NULL,
                                         0.0f, NULL);
        MHLA_TRY(mhla_tape_backward(t, loss, 1.0f));
        MHLA_TRY(mhla_tape_status(t));
        run_keep(loss->data, 0, NULL, "out.loss.%d", step);
        MHLA_TRY(mhla_optim_step(optim, rate, NULL, NULL));
        mhla_ema_update(ema, NULL);
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            run_keep(p->data, p->dims, p->shape, "out.step%d.%s", step + 1, p->name);
            run_keep(mhla_ema_data(ema, i), p->dims, p->shape, "out.ema%d.%s", step + 1, p->name);
        }
        free(x);
        free(labels);
        free(target);
        drop_told(d);
    }
    mhla_tape_free(t);
    mhla_ema_free(ema);
    mhla_optim_free(optim);
    return MHLA_OK;
}

static mhla_status schedule(char **arg) {
    static const char *const kinds[] = {"constant", "cosine", "cosine-after", "linear"};
    mhla_schedule s = {.base = atof(arg[2]),
                       .floor = atof(arg[3]),
                       .warmup_from = atof(arg[4]),
                       .warmup = atoll(arg[5]),
                       .total = atoll(arg[6])};
    for (int i = 0; i < 4; i++)
        if (strcmp(arg[0], kinds[i]) == 0) s.kind = (mhla_schedule_kind)i;
    const int64_t n = atoll(arg[7]);
    float *rates = malloc((size_t)n * sizeof *rates);
    if (rates == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
    for (int64_t i = 0; i < n; i++) rates[i] = (float)mhla_schedule_at(&s, i);
    run_keep(rates, 1, &n, "out.rates");
    free(rates);
    return MHLA_OK;
}

int main(int argc, char **argv) {
    mhla_model *model = NULL;
    mhla_safetensors *in = NULL;
    mhla_status status = MHLA_OK;
    const char *out = NULL;
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "schedule") == 0 && argc == 10) {
        out = argv[3];
        status = schedule(argv + 2);
    } else if ((argc == 5 && (strcmp(verb, "forward") == 0 || strcmp(verb, "attention") == 0)) ||
               (strcmp(verb, "steps") == 0 && argc == 8)) {
        out = argv[4];
        status = mhla_model_open(&model, argv[2]);
        if (status == MHLA_OK) status = mhla_safetensors_open(&in, argv[3]);
        if (status == MHLA_OK)
            status = argc == 8                        ? steps(model, in, atof(argv[5]), atof(argv[6]), atof(argv[7]))
                     : strcmp(verb, "attention") == 0 ? attention(model, in)
                                                      : forward(model, in);
    } else if (strcmp(verb, "levels") == 0 && argc == 6) {
        out = argv[3];
        status = run_levels(argv + 2);
    } else if ((strcmp(verb, "diffusion") == 0 && argc == 6) || (strcmp(verb, "flow") == 0 && argc == 8)) {
        out = argv[3];
        status = mhla_safetensors_open(&in, argv[2]);
        if (status == MHLA_OK)
            status = argc == 6 ? run_diffusion_steps(in, argv[4], atoi(argv[5]))
                               : run_flow(in, argv[4], argv[5], atoi(argv[6]), atof(argv[7]));
    } else {
        fprintf(stderr, "usage: see the head of run_model.c\n");
        return 2;
    }
    if (status == MHLA_OK) status = mhla_safetensors_write(out, results, count, NULL, 0);
    if (status != MHLA_OK) fprintf(stderr, "run_model: %s: %s\n", mhla_status_text(status), mhla_message());
    for (int i = 0; i < count; i++) {
        free((void *)(uintptr_t)results[i].name);
        free((void *)(uintptr_t)results[i].data);
    }
    mhla_safetensors_close(in);
    mhla_model_free(model);
    return status == MHLA_OK ? 0 : 1;
}
