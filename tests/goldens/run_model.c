/* run_model: what tests/goldens/goldens.py and other comparisons need of a model, without a binding.
 *
 *   run_model forward MODEL IN OUT        in.x and in.target or dout.logits -> out.*, grad.in.x, grad.param.*
 *                                         of a diffusion model in.x, in.t, in.label (or in.rows [B,T,width], in.lengths) and dout.y
 *                                         or not -> the same
 *   run_model training MODEL IN OUT       the same of a classifier that trains, and out.buf.*: running statistics after it
 *   run_model attention MODEL IN OUT      a classifier's first block: in.x [B,T,D], dout.y -> out.y, grad.in.x, grad.param.*
 *   run_model frame WHAT CONFIG IN OUT    a block (WHAT block: in.x [B,T,D], in.c [B,D]) or its attention (attention: in.x) of a
 *                                         diffusion model, param.* by their names in it, dout.y -> out.y, grad.*
 *   run_model sana CONFIG IN OUT          a block of a SANA: in.x [B,T,D], in.time_mod [B,6D], in.encoder [B,n,D], in.lengths, param.*, in.gy
 *                                         -> out.y, out.attn1, out.attn2, grad.*
 *   run_model wan-model MODEL IN OUT      a diffusion model of clips: in.x [B,C,F,H,W], in.t, in.rows [B,L,W], in.lengths or not (or
 *                                         in.label), dout.y or not -> out.y, out.inferred (the same as in sampling), out.blocks.N, grad.*
 *   run_model wan WHAT CONFIG IN OUT      a block of Wan (in.x, in.e, in.context), its attention (in.x) or cross attention (cross: in.x,
 *                                         in.context), param.* by their names in it, dout.y or not -> out.y, grad.*
 *   run_model autoencoder MODEL IN OUT    in.image -> out.moments, out.latent_mode; in.latent -> out.sample and what is between; with
 *                                         in.gy the gradients of sum(y * in.gy) as well
 *   run_model deep MODEL IN OUT           an AutoencoderDC: in.image -> out.latent; in.latent -> out.sample and what is between
 *   run_model clips MODEL IN OUT          in.video, in.noise -> out.moments, out.latent_mode, out.latent_sampled; in.latent -> out.sample;
 *                                         and what is between
 *   run_model encoder MODEL IN OUT        in.input_ids, in.attention_mask (texts, then padding) -> out.last_hidden_state, out.block.N;
 *                                         in.bucket_rel -> out.bucket
 *   run_model pipeline FOLDER IN OUT PROMPT NEGATIVE INSTRUCTION ROWS STEPS GUIDANCE   in.noise -> out.text_rows, out.negative_rows,
 *                                         out.latent.N after each step, out.pixels
 *   run_model steps MODEL IN OUT RATE DECAY EMA BETA1 BETA2 EPS   in.x.0, in.target.0, ... -> out.loss.N, out.stepN.*,
 *                                         out.emaN.*
 *   run_model schedule KIND OUT BASE FLOOR FROM WARMUP TOTAL COUNT   -> out.rates
 *   run_model levels linear|cosine OUT LEVELS RESPACING   tables of noise levels
 *   run_model diffusion IN OUT PROCESS LEVELS RESPACING CLIP   in.x_start, in.noise, in.t, in.model_output, in.sample_noise
 *                                         -> steps, losses
 *   run_model flow IN OUT METHOD library|wan STEPS SHIFT   in.sample, in.model_output.NN -> out.sample.NN, out.sigmas
 *   run_model layer NAME IN OUT EPS GROUP in.*, param.* and dout.y of a layer -> out.y, grad.*
 *   run_model operator NAME IN OUT SCALE  gla, simple_gla, gated_delta or gated_delta_l2norm: in.q, in.k, in.v, in.decay, ... and
 *                                         dout.o or not -> out.*, grad.in.*
 *   run_model mamba NAME IN OUT FLAG      selective_scan (FLAG 1: softplus) or short_conv (1: silu): in.*, param.*, dout.* -> out.*,
 *                                         grad.*, and the same with .reference behind, by definition
 *   run_model mixer CONFIG IN OUT         one mixer of a language model: in.x [B,T,D], param.*, dout.y -> out.*, grad.*
 *   run_model resize IN OUT SIZE ACROSS   pictures in.* [H,W,3] -> out.*, the shorter side SIZE pixels long
 *   run_model dequantize IN OUT TYPE NUMBER   in.TYPE [rows, bytes] -> out.TYPE
 *   run_model lm MODEL IN OUT NEW         in.input_ids, in.labels or not -> out.logits, out.loss, grad.param.*; with NEW > 0
 *                                         in.prompt_ids, so many tokens longer -> out.greedy_ids, out.greedy_logits
 *   run_model tokens TOKENIZER IN OUT     texts to ids and back, see run_text.c; IN and OUT of this and the next are JSON
 *   run_model candidates IN OUT           what sampling leaves of logits
 *   run_model evaluation MODEL IN OUT     rolling windows, or questions with choices (.jsonl)
 *
 * IN and OUT are safetensors. MODEL is a folder with config.json and model.safetensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"
#include "models/vision/deit.h"
#include "nn/optim.h"
#include "run.h"

enum { MOST = 8192 };
static mhla_storable results[MOST];
static int64_t shapes[MOST][MHLA_MAX_DIMS];
static int count, lost; /* lost: results that found no room */

void run_keep(const float *data, int dims, const int64_t *shape, const char *format, ...) {
    if (count == MOST || data == NULL) {
        lost++;
        return;
    }
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    int64_t n = 1;
    for (int a = 0; a < dims; a++) n *= shapes[count][a] = shape[a];
    float *copy = malloc((size_t)n * sizeof *copy);
    if (copy == NULL) {
        lost++;
        return;
    }
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

int32_t *run_labels(const mhla_safetensors *in, const char *name) {
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

void run_keep_grads(const mhla_params *ps) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (p->has_grad) run_keep(p->grad, p->dims, p->shape, "grad.param.%s", p->name);
    }
}

mhla_status run_fill(const mhla_params *ps, const mhla_safetensors *in, const char *prefix) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        char name[128];
        const mhla_stored *s;
        if (strncmp(p->name, prefix, strlen(prefix)) != 0) continue;
        snprintf(name, sizeof name, "param.%s", p->name + strlen(prefix));
        MHLA_TRY(mhla_safetensors_need(&s, in, name));
        MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_stored_read(p->data, s));
        mhla_param_touch(p);
    }
    return MHLA_OK;
}

/* The times of a batch, and its labels or rows of text; `suffix` is that of its names. */
typedef struct told {
    float *times, *rows;
    int32_t *labels, *lengths;
    mhla_condition condition;
} told;

static told read_told(const mhla_safetensors *in, const char *suffix) {
    char t[64], label[64];
    const mhla_stored *s;
    snprintf(t, sizeof t, "in.t%s", suffix);
    snprintf(label, sizeof label, "in.label%s", suffix);
    told d = {.times = run_floats(in, t, &s), .labels = run_labels(in, label)};
    d.rows = run_floats(in, "in.rows", &s);
    d.lengths = run_labels(in, "in.lengths");
    d.condition = (mhla_condition){d.labels, d.rows, d.lengths, d.rows ? s->shape[1] : 0};
    return d;
}

static void drop_told(told d) {
    free(d.times);
    free(d.labels);
    free(d.rows);
    free(d.lengths);
}

static int is_denoiser(const mhla_model *m) { return mhla_architecture_has(m->architecture, MHLA_ROLE_DENOISER); }

static mhla_status forward_denoiser(mhla_model *m, const mhla_safetensors *in) {
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.y", &sd);
    const told d = read_told(in, "");
    if (x == NULL || d.times == NULL || (d.labels == NULL && d.rows == NULL))
        return mhla_fail(MHLA_EDATA, "no in.x, in.t or in.label");
    mhla_tensor *trace[256] = {0};
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
    mhla_tensor *y = mhla_denoiser_forward(t, m, &(mhla_network_run){.trace = trace}, input, d.times, &d.condition);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(y, "out.y");
    mhla_denoiser_info info;
    MHLA_TRY(mhla_denoiser_query(m, &info));
    for (int i = 0; i < info.view.layers; i++)
        run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.blocks.%d", i);
    if (dy) {
        MHLA_TRY(mhla_tape_backward_from(t, y, dy));
        run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
        run_keep_grads(m->params);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
    drop_told(d);
    return MHLA_OK;
}

static mhla_status attention(mhla_model *m, const mhla_safetensors *in, char **arg) {
    (void)arg;
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.y", &sd);
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_CLASSIFIER));
    if (x == NULL || dy == NULL) return mhla_fail(MHLA_EDATA, "no in.x or dout.y");
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank);
    mhla_tensor *y = mhla_deit_attention(t, m->net, 0, input);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(y, "out.y");
    MHLA_TRY(mhla_tape_backward_from(t, y, dy));
    run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
    run_keep_grads(m->params);
    mhla_tape_free(t);
    free(x);
    free(dy);
    return MHLA_OK;
}

static mhla_status forward_classifier(mhla_model *m, const mhla_safetensors *in, unsigned mode) {
    mhla_classifier_info info;
    MHLA_TRY(mhla_classifier_query(m, &info));
    const mhla_stored *sx = NULL, *sd = NULL;
    float *x = run_floats(in, "in.x", &sx), *dy = run_floats(in, "dout.logits", &sd);
    int32_t *labels = run_labels(in, "in.target");
    if (x == NULL) return mhla_fail(MHLA_EDATA, "no in.x");
    int depth = 0;
    for (int i = 0; i < info.stages; i++) depth += info.view[i].layers;
    mhla_tensor *trace[257] = {0}, *loss = NULL;
    mhla_tape *t;
    MHLA_TRY(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, mode | (labels || dy ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER));
    mhla_tensor *input = mhla_nn_variable(t, x, sx->shape, sx->rank), *rows = NULL;
    mhla_tensor *logits = mhla_classifier_forward(t, m, &(mhla_network_run){.trace = trace, .features = &rows}, input);
    if (labels) loss = mhla_nn_cross_entropy(t, logits, labels, NULL, 0.0f, NULL);
    MHLA_TRY(mhla_tape_status(t));
    keep_tensor(logits, "out.logits");
    keep_tensor(trace[depth], "out.features");
    keep_tensor(rows, "out.rows");
    for (int i = 0; i < depth; i++) run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "out.blocks.%d", i);
    if (loss) run_keep(loss->data, 0, NULL, "out.loss");
    if (loss) MHLA_TRY(mhla_tape_backward(t, loss, 1.0f));
    if (loss == NULL && dy) MHLA_TRY(mhla_tape_backward_from(t, logits, dy));
    if (loss || dy) {
        run_keep(mhla_tensor_grad(input), sx->rank, sx->shape, "grad.in.x");
        run_keep_grads(m->params);
    }
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (p->flags & MHLA_PARAM_BUFFER) run_keep(p->data, p->dims, p->shape, "out.buf.%s", p->name);
    }
    mhla_tape_free(t);
    free(x);
    free(dy);
    free(labels);
    return MHLA_OK;
}

static mhla_status forward(mhla_model *m, const mhla_safetensors *in, char **arg) {
    (void)arg;
    return is_denoiser(m) ? forward_denoiser(m, in) : forward_classifier(m, in, MHLA_TAPE_INFER);
}

static mhla_status training(mhla_model *m, const mhla_safetensors *in, char **arg) {
    (void)arg;
    return forward_classifier(m, in, MHLA_TAPE_DROP);
}

/* AdamW as the DeiT script sets it, or DiT's: update, clip of the mixing matrices, average. */
static mhla_status steps(mhla_model *m, const mhla_safetensors *in, char **arg) {
    const double rate = atof(arg[3]), average = atof(arg[5]);
    const mhla_optim_desc desc = {.kind = MHLA_OPTIM_ADAMW,
                                  .weight_decay = atof(arg[4]),
                                  .beta1 = atof(arg[6]),
                                  .beta2 = atof(arg[7]),
                                  .eps = atof(arg[8])};
    const int denoiser = is_denoiser(m);
    if (!denoiser) MHLA_TRY(mhla_model_need(m, MHLA_ROLE_CLASSIFIER));
    mhla_params *ps = m->params;
    mhla_optim *optim;
    mhla_ema *ema;
    mhla_tape *t;
    MHLA_TRY(mhla_optim_create(&optim, ps, &desc));
    MHLA_TRY(mhla_ema_create(&ema, ps, average, !denoiser));
    MHLA_TRY(mhla_tape_create(&t, NULL));
    for (int step = 0;; step++) {
        char name[32];
        const mhla_stored *sx;
        snprintf(name, sizeof name, "in.x.%d", step);
        float *x = run_floats(in, name, &sx);
        snprintf(name, sizeof name, "in.target.%d", step);
        const mhla_stored *st;
        int32_t *labels = denoiser ? NULL : run_labels(in, name);
        float *target = denoiser ? run_floats(in, name, &st) : NULL;
        if (x == NULL || (labels == NULL && target == NULL)) break;
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *input = mhla_nn_input(t, x, sx->shape, sx->rank), *loss;
        snprintf(name, sizeof name, ".%d", step);
        const told d = denoiser ? read_told(in, name) : (told){0};
        const mhla_network_run run = {0};
        if (denoiser)
            loss = mhla_nn_mse(t, mhla_denoiser_forward(t, m, &run, input, d.times, &d.condition), target);
        else
            loss = mhla_nn_cross_entropy(t, mhla_classifier_forward(t, m, &run, input), labels, NULL, 0.0f, NULL);
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

/* What reads a model and inputs. */
static mhla_status with_model(char **arg, mhla_status (*run)(mhla_model *, const mhla_safetensors *, char **)) {
    mhla_model *model = NULL;
    mhla_safetensors *in = NULL;
    mhla_status status = mhla_model_open(&model, arg[0]);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = run(model, in, arg);
    mhla_safetensors_close(in);
    mhla_model_free(model);
    return status;
}
static mhla_status run_forward(char **arg) { return with_model(arg, forward); }
static mhla_status run_training(char **arg) { return with_model(arg, training); }
static mhla_status run_attention(char **arg) { return with_model(arg, attention); }
static mhla_status run_denoiser(char **arg) { return with_model(arg, run_wan_model); }
static mhla_status run_codec(char **arg) { return with_model(arg, run_autoencoder); }
static mhla_status run_codec_deep(char **arg) { return with_model(arg, run_deep); }
static mhla_status run_codec_clips(char **arg) { return with_model(arg, run_clips); }
static mhla_status run_text_encoder(char **arg) { return with_model(arg, run_encoder); }
static mhla_status run_steps(char **arg) { return with_model(arg, steps); }

/* Arguments after the verb, and which of them is OUT; -1: the verb writes it itself. */
static const struct verb {
    const char *name;
    int arguments, out;
    mhla_status (*run)(char **arg);
} verbs[] = {
    {"forward", 3, 2, run_forward},
    {"training", 3, 2, run_training},
    {"attention", 3, 2, run_attention},
    {"frame", 4, 3, run_frame},
    {"sana", 3, 2, run_sana},
    {"wan-model", 3, 2, run_denoiser},
    {"wan", 4, 3, run_wan},
    {"autoencoder", 3, 2, run_codec},
    {"deep", 3, 2, run_codec_deep},
    {"clips", 3, 2, run_codec_clips},
    {"encoder", 3, 2, run_text_encoder},
    {"pipeline", 9, 2, run_pipeline},
    {"steps", 9, 2, run_steps},
    {"schedule", 8, 1, schedule},
    {"levels", 4, 1, run_levels},
    {"diffusion", 6, 1, run_diffusion_steps},
    {"flow", 6, 1, run_flow},
    {"layer", 5, 2, run_layer},
    {"operator", 4, 2, run_operator},
    {"mamba", 4, 2, run_mamba},
    {"mixer", 3, 2, run_mixer},
    {"resize", 4, 1, run_resize},
    {"dequantize", 4, 1, run_dequantize},
    {"clip", 3, 2, run_clip},
    {"lm", 4, 2, run_lm},
    {"tokens", 3, -1, run_tokens},
    {"candidates", 2, -1, run_candidates},
    {"evaluation", 3, -1, run_evaluation},
};

int main(int argc, char **argv) {
    const struct verb *verb = NULL;
    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(argv[1], verbs[i].name) == 0 && argc == 2 + verbs[i].arguments) verb = &verbs[i];
    if (verb == NULL) {
        fprintf(stderr, "usage: see the head of run_model.c\n");
        return 2;
    }
    mhla_status status = verb->run(argv + 2);
    if (status == MHLA_OK && lost > 0) status = mhla_fail(MHLA_ENOMEM, "%d results found no room", lost);
    if (status == MHLA_OK && verb->out >= 0)
        status = mhla_safetensors_write(argv[2 + verb->out], results, count, NULL, 0);
    if (status != MHLA_OK) fprintf(stderr, "run_model: %s: %s\n", mhla_status_text(status), mhla_message());
    for (int i = 0; i < count; i++) {
        free((void *)(uintptr_t)results[i].name);
        free((void *)(uintptr_t)results[i].data);
    }
    return status == MHLA_OK ? 0 : 1;
}
