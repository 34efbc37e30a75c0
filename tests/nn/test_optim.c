/* Optimisers, averages, schedules: against their definitions in double, and against three steps of the published DeiT. */
#include "core/memory.h"
#include "goldens.h"
#include "nn/nn.h"
#include "nn/optim.h"

/* ---- AdamW and SGD in double ---- */

typedef struct reference {
    double p, m, v;
} reference;

static void adamw_reference(reference *r, double g, double lr, double wd, double b1, double b2, double eps, int step) {
    r->p *= 1.0 - lr * wd;
    r->m = b1 * r->m + (1.0 - b1) * g;
    r->v = b2 * r->v + (1.0 - b2) * g * g;
    r->p -= lr / (1.0 - pow(b1, step)) * r->m / (sqrt(r->v) / sqrt(1.0 - pow(b2, step)) + eps);
}

static void sgd_reference(reference *r, double g, double lr, double wd, double momentum, int nesterov, int step) {
    g += wd * r->p;
    r->m = step == 1 ? g : momentum * r->m + g;
    r->p -= lr * (momentum == 0.0 ? g : nesterov ? g + momentum * r->m : r->m);
}

enum { N = 37, STEPS = 5 };

static void give_gradient(rng *r, mhla_param *p) {
    if (p->grad == NULL) p->grad = mhla_alloc((size_t)p->count * sizeof(float));
    for (int64_t i = 0; i < p->count; i++) p->grad[i] = rng_signed(r);
    p->has_grad = 1;
}

static void definitions(void **state) {
    (void)state;
    const mhla_optim_desc descs[] = {
        {.kind = MHLA_OPTIM_ADAMW, .weight_decay = 0.05},
        {.kind = MHLA_OPTIM_ADAMW, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .clip_norm = 1.0},
        {.kind = MHLA_OPTIM_SGD},
        {.kind = MHLA_OPTIM_SGD, .momentum = 0.9, .weight_decay = 0.1},
        {.kind = MHLA_OPTIM_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.1, .clip_norm = 0.5},
    };
    const char *isas[8];
    const int n_isas = isa_names(isas, 8);
    for (size_t k = 0; k < sizeof descs / sizeof *descs * (size_t)n_isas; k++) {
        ASSERT_OK(mhla_set_isa(isas[k % (size_t)n_isas]));
        const mhla_optim_desc *d = &descs[k / (size_t)n_isas];
        const double b1 = d->beta1 > 0.0 ? d->beta1 : 0.9, b2 = d->beta2 > 0.0 ? d->beta2 : 0.999;
        const double eps = d->eps > 0.0 ? d->eps : 1e-8;
        rng r = {k + 1};
        mhla_params *ps;
        ASSERT_OK(mhla_params_create(&ps));
        mhla_param *p[3] = {mhla_params_add(ps, "decays", MHLA_SHAPE(N), MHLA_PARAM_DECAY, MHLA_ZERO),
                            mhla_params_add(ps, "plain", MHLA_SHAPE(N), 0, MHLA_ZERO),
                            mhla_params_add(ps, "frozen", MHLA_SHAPE(N), MHLA_PARAM_FROZEN, MHLA_ZERO)};
        reference ref[3][N] = {{{0}}};
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < N; j++) ref[i][j].p = (double)(p[i]->data[j] = rng_signed(&r));
        mhla_optim *o;
        ASSERT_OK(mhla_optim_create(&o, ps, d));
        for (int step = 1; step <= STEPS; step++) {
            double norm = 0.0, told;
            const double lr = 0.01 / step;
            for (int i = 0; i < 3; i++) give_gradient(&r, p[i]);
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < N; j++) norm += (double)p[i]->grad[j] * (double)p[i]->grad[j];
            norm = sqrt(norm);
            const double clip = d->clip_norm > 0.0 && norm > d->clip_norm ? d->clip_norm / (norm + 1e-6) : 1.0;
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < N; j++) {
                    const double g = clip * (double)p[i]->grad[j], wd = i == 0 ? d->weight_decay : 0.0;
                    if (d->kind == MHLA_OPTIM_ADAMW)
                        adamw_reference(&ref[i][j], g, lr, wd, b1, b2, eps, step);
                    else
                        sgd_reference(&ref[i][j], g, lr, wd, d->momentum, d->nesterov, step);
                }
            ASSERT_OK(mhla_optim_step(o, lr, NULL, &told));
            assert_true(fabs(told - norm) < 1e-9);
            assert_false(p[0]->has_grad);
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < N; j++) assert_true(fabs((double)p[i]->data[j] - ref[i][j].p) < 2e-6);
        assert_int_equal(*mhla_optim_updates(o, 0), STEPS);
        assert_int_equal(*mhla_optim_updates(o, 2), 0);
        mhla_optim_free(o);
        mhla_params_free(ps);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

static void not_finite(void **state) {
    (void)state;
    rng r = {3};
    mhla_params *ps;
    ASSERT_OK(mhla_params_create(&ps));
    mhla_param *p = mhla_params_add(ps, "p", MHLA_SHAPE(N), 0, MHLA_ZERO);
    mhla_optim *o;
    ASSERT_OK(mhla_optim_create(&o, ps, &(mhla_optim_desc){0}));
    give_gradient(&r, p);
    p->grad[7] = NAN;
    double norm;
    ASSERT_FAILS(mhla_optim_step(o, 0.1, NULL, &norm), MHLA_ERANGE, "not finite");
    assert_true(isnan(norm));
    for (int i = 0; i < N; i++) assert_true(p->data[i] == 0.0f && mhla_optim_slot(o, 0, 0)[i] == 0.0f);
    assert_int_equal(*mhla_optim_updates(o, 0), 0);
    mhla_optim_free(o);
    ASSERT_FAILS(mhla_optim_create(&o, ps, &(mhla_optim_desc){.beta1 = 1.5}), MHLA_EINVAL, "betas are 1.5");
    assert_null(o);
    mhla_params_free(ps);
}

static void mixing(void **state) {
    (void)state;
    mhla_params *ps;
    ASSERT_OK(mhla_params_create(&ps));
    mhla_param *p =
        mhla_params_add(ps, "mix", MHLA_SHAPE(3, 3, 1, 1), MHLA_PARAM_MIX | MHLA_PARAM_RENORMALISE, MHLA_ZERO);
    p->mix_low = 1e-6f;
    mhla_optim *o;
    ASSERT_OK(mhla_optim_create(&o, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_SGD}));
    rng r = {4};
    for (int i = 0; i < 9; i++) p->data[i] = 0.5f;
    give_gradient(&r, p);
    float want[9];
    for (int i = 0; i < 9; i++) want[i] = fminf(1.0f, fmaxf(1e-6f, 0.5f - p->grad[i]));
    for (int i = 0; i < 9; i += 3) {
        const float sum = want[i] + want[i + 1] + want[i + 2];
        for (int j = 0; j < 3; j++) want[i + j] /= sum;
    }
    const uint64_t version = p->version;
    ASSERT_OK(mhla_optim_step(o, 1.0, NULL, NULL));
    ASSERT_CLOSE(p->data, want, 9, 1e-6, "clipped and renormalised");
    assert_true(p->version != version);
    mhla_optim_free(o);
    mhla_params_free(ps);
}

/* Many stretches: the number of threads does not show, also in the norm. */
static void threads(void **state) {
    (void)state;
    float *first = NULL;
    double first_norm = 0.0;
    const int64_t count = 100003;
    for (int n = 1; n <= 3; n++) {
        mhla_context *c = new_context(n);
        rng r = {5};
        mhla_params *ps;
        ASSERT_OK(mhla_params_create(&ps));
        mhla_param *p = mhla_params_add(ps, "p", MHLA_SHAPE(count), MHLA_PARAM_DECAY, MHLA_ZERO);
        mhla_params_add(ps, "q", MHLA_SHAPE(5), 0, MHLA_ZERO);
        mhla_optim *o;
        ASSERT_OK(mhla_optim_create(&o, ps, &(mhla_optim_desc){.weight_decay = 0.1, .clip_norm = 1.0}));
        double norm;
        for (int i = 0; i < 2; i++) {
            give_gradient(&r, p);
            ASSERT_OK(mhla_optim_step(o, 0.01, c, &norm));
        }
        if (first == NULL) {
            first = new_bytes(sizeof(float) * (size_t)count);
            memcpy(first, p->data, sizeof(float) * (size_t)count);
            first_norm = norm;
        }
        assert_memory_equal(first, p->data, sizeof(float) * (size_t)count);
        assert_true(norm == first_norm);
        mhla_optim_free(o);
        mhla_params_free(ps);
        mhla_context_free(c);
    }
    free(first);
}

static void averages(void **state) {
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        mhla_params *ps;
        ASSERT_OK(mhla_params_create(&ps));
        mhla_param *p = mhla_params_add(ps, "p", MHLA_SHAPE(2), 0, MHLA_ZERO);
        p->data[0] = 1.0f;
        mhla_ema *e;
        ASSERT_OK(mhla_ema_create(&e, ps, 0.75, copies));
        p->data[0] = 5.0f;
        mhla_ema_update(e, NULL);
        assert_true(mhla_ema_data(e, 0)[0] == (copies ? 5.0f : 2.0f));
        p->data[0] = 9.0f;
        mhla_ema_update(e, NULL);
        assert_true(mhla_ema_data(e, 0)[0] == (copies ? 6.0f : 3.75f));
        assert_int_equal(*mhla_ema_updates(e), 2);
        const uint64_t version = p->version;
        mhla_ema_swap(e);
        assert_true(p->data[0] == (copies ? 6.0f : 3.75f) && mhla_ema_data(e, 0)[0] == 9.0f && p->version > version);
        mhla_ema_swap(e);
        assert_true(p->data[0] == 9.0f);
        mhla_ema_free(e);
        mhla_params_free(ps);
    }
}

/* ---- Schedules ---- */

static void schedules(void **state) {
    (void)state;
    mhla_schedule s = {.kind = MHLA_SCHEDULE_LINEAR, .base = 1.0, .floor = 0.5, .warmup = 4, .total = 14};
    const double want[] = {0.0, 0.25, 0.5, 0.75, 1.0, 0.95};
    for (int i = 0; i < 6; i++) assert_true(fabs(mhla_schedule_at(&s, i) - want[i]) < 1e-15);
    assert_true(mhla_schedule_at(&s, 14) == 0.5 && mhla_schedule_at(&s, 99) == 0.5);
    s.kind = MHLA_SCHEDULE_CONSTANT;
    assert_true(mhla_schedule_at(&s, 2) == 0.5 && mhla_schedule_at(&s, 99) == 1.0);
    s.kind = MHLA_SCHEDULE_COSINE_AFTER;
    assert_true(fabs(mhla_schedule_at(&s, 9) - 0.75) < 1e-15);
    s.kind = MHLA_SCHEDULE_COSINE;
    assert_true(fabs(mhla_schedule_at(&s, 7) - 0.75) < 1e-15);
}

/* What the config says of a schedule is a sentence. */
static void check_schedules(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)path;
    double epochs, updates, warmup, from, base, least, steps;
    const char *text = json_string_value(json_object_get(said, "deit"));
    const mhla_stored *s = mhla_safetensors_find(f, "out.deit_timm_cosine");
    if (s) {
        assert_int_equal(sscanf(text,
                                "timm cosine per update, %lf epochs of %lf updates here, %lf warm-up epochs from %lf, "
                                "base %lf, min %lf",
                                &epochs, &updates, &warmup, &from, &base, &least),
                         6);
        const mhla_schedule deit = {MHLA_SCHEDULE_COSINE,       base, least, from, (int64_t)(warmup * updates),
                                    (int64_t)(epochs * updates)};
        float *want = golden(f, s->name, "");
        for (int64_t i = 0; i < s->count; i++)
            assert_true(fabs(mhla_schedule_at(&deit, i) - (double)want[i]) < 1e-7 * base);
        free(want);
    }
    text = json_string_value(json_object_get(said, "lm"));
    for (int64_t k = 0; k < mhla_safetensors_count(f); k++) {
        int every = 1, first;
        s = mhla_safetensors_at(f, k);
        if (sscanf(s->name, "out.lm_cosine_min_lr_every%d", &every) != 1 &&
            sscanf(s->name, "out.lm_cosine_min_lr_first%d", &first) != 1)
            continue;
        assert_int_equal(sscanf(text, "cosine_with_min_lr, base %lf, %lf warm-up, %lf steps, floor %lf", &base, &warmup,
                                &steps, &least),
                         4);
        const mhla_schedule lm = {MHLA_SCHEDULE_COSINE_AFTER, base, least, 0.0, (int64_t)warmup, (int64_t)steps};
        float *want = golden(f, s->name, "");
        for (int64_t i = 0; i < s->count; i++)
            assert_true(fabs(mhla_schedule_at(&lm, i * every) - (double)want[i]) < 1e-7 * base);
        free(want);
    }
}

static void golden_schedules(void **state) {
    (void)state;
    each_golden("case", "lr-schedules", check_schedules);
}

/* ---- Steps of the published DeiT: sizes as the file has them; grids and blocks are squares ---- */

typedef struct deit {
    mhla_params *ps;
    mhla_plan *plan;
    int depth, side, padding; /* patches per side; zero pixels around an image */
} deit;

static mhla_param *part(const deit *m, int i, const char *name) {
    char full[128];
    if (i < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blocks.%d.%s", i, name);
    mhla_param *p = mhla_params_find(m->ps, full);
    if (p == NULL) fail_msg("no parameter %s", full);
    return p;
}

static mhla_tensor *norm(mhla_tape *t, const deit *m, int i, const char *name, float eps, mhla_tensor *x) {
    char w[64], b[64];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(b, sizeof b, "%s.bias", name);
    return mhla_nn_layer_norm(t, part(m, i, w), part(m, i, b), eps, x);
}

static mhla_tensor *deit_loss(mhla_tape *t, const deit *m, const mhla_stored *stored, const float *images,
                              const int32_t *target) {
    const int p = m->padding;
    const int64_t D = part(m, -1, "pos_embed")->shape[2];
    mhla_tensor *x = mhla_nn_input(t, images, stored->shape, stored->rank);
    x = mhla_nn_patch_embed(t, part(m, -1, "patch_embed.proj.weight"), part(m, -1, "patch_embed.proj.bias"),
                            mhla_nn_pad_image(t, p, p, p, p, x));
    x = mhla_nn_add_position(t, part(m, -1, "pos_embed"), x);
    for (int i = 0; i < m->depth; i++) {
        mhla_tensor *y = norm(t, m, i, "attn.norm", 1e-5f, norm(t, m, i, "norm1", 1e-6f, x));
        mhla_tensor *qkv = mhla_nn_linear(t, part(m, i, "attn.to_qkv.weight"), NULL, MHLA_ACT_NONE, NULL, y);
        mhla_tensor *q =
            mhla_nn_rms_norm(t, part(m, i, "attn.q_norm.weight"), 1.1920929e-07f, 0, mhla_nn_slice(t, qkv, 0, D));
        mhla_tensor *k =
            mhla_nn_rms_norm(t, part(m, i, "attn.k_norm.weight"), 1.1920929e-07f, 0, mhla_nn_slice(t, qkv, D, D));
        mhla_tensor *v = mhla_nn_slice(t, qkv, 2 * D, D);
        mhla_tensor *lepe = mhla_nn_depthwise(t, part(m, i, "attn.lepe.weight"), part(m, i, "attn.lepe.bias"), m->side,
                                              m->side, NULL, v);
        y = mhla_nn_attention_onto(t, m->plan, NULL, part(m, i, "attn.piece_attn.conv.weight"), lepe, q, k, v);
        x = mhla_nn_linear(t, part(m, i, "attn.to_out.0.weight"), part(m, i, "attn.to_out.0.bias"), MHLA_ACT_NONE, x,
                           y);
        y = mhla_nn_linear(t, part(m, i, "mlp.fc1.weight"), part(m, i, "mlp.fc1.bias"), MHLA_ACT_GELU_ERF, NULL,
                           norm(t, m, i, "norm2", 1e-6f, x));
        x = mhla_nn_linear(t, part(m, i, "mlp.fc2.weight"), part(m, i, "mlp.fc2.bias"), MHLA_ACT_NONE, x, y);
    }
    x = norm(t, m, -1, "fc_norm", 1e-6f, mhla_nn_mean_tokens(t, x));
    x = mhla_nn_linear(t, part(m, -1, "head.weight"), part(m, -1, "head.bias"), MHLA_ACT_NONE, NULL, x);
    return mhla_nn_cross_entropy(t, x, target, NULL, 0.0f, NULL);
}

/* Adam divides a gradient by its own size: where one is nearly 0, rounding decides, so a few entries may be off by a
 * part of the learning rate. */
static void compare(const mhla_safetensors *f, const char *prefix, const mhla_param *p, const float *data) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, p->name);
    if (!mhla_safetensors_find(f, full)) return;
    float *want = golden(f, full, "");
    int off = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const double error = fabs((double)data[i] - (double)want[i]);
        if (error > 2e-4)
            fail_msg("%s%s[%lld] is %g: expected %g", prefix, p->name, (long long)i, (double)data[i], (double)want[i]);
        off += error > 2e-6;
    }
    if (off > 1 + p->count / 1000)
        fail_msg("%s%s: %d of %lld entries are off", prefix, p->name, off, (long long)p->count);
    free(want);
}

static void check_deit(const char *path, const mhla_safetensors *f, const json_t *said) {
    (void)path;
    const json_t *c = json_object_get(said, "config");
    const mhla_stored *table, *mix, *image, *patches;
    ASSERT_OK(mhla_safetensors_need(&table, f, "param.pos_embed"));
    ASSERT_OK(mhla_safetensors_need(&mix, f, "param.blocks.0.attn.piece_attn.conv.weight"));
    ASSERT_OK(mhla_safetensors_need(&image, f, "in.x.0"));
    ASSERT_OK(mhla_safetensors_need(&patches, f, "param.patch_embed.proj.weight"));
    const int heads = (int)json_integer_value(json_object_get(c, "heads")), K = (int)table->shape[2] / heads,
              blocks = (int)sqrt((double)mix->shape[0]);
    deit m = {.depth = (int)json_integer_value(json_object_get(c, "depth")),
              .side = (int)sqrt((double)table->shape[1])};
    m.padding = (m.side * (int)patches->shape[2] - (int)image->shape[2]) / 2;
    ASSERT_OK(mhla_params_create(&m.ps));
    const mhla_plan_desc d = {.size = sizeof d,
                              .heads = heads,
                              .key_dim = K,
                              .value_dim = K,
                              .feature_eps = 1e-6f,
                              .den_eps = 1e-6f,
                              .denominator = MHLA_DEN_RELEASED,
                              .axes = 2,
                              .grid = {m.side, m.side},
                              .blocks = {blocks, blocks}};
    const mhla_optim_desc adamw = {.weight_decay = json_number_value(json_object_get(said, "weight_decay")),
                                   .beta1 = json_number_value(json_array_get(json_object_get(said, "betas"), 0)),
                                   .beta2 = json_number_value(json_array_get(json_object_get(said, "betas"), 1)),
                                   .eps = json_number_value(json_object_get(said, "eps"))};
    ASSERT_OK(mhla_plan_create(&m.plan, &d));
    for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
        const mhla_stored *s = mhla_safetensors_at(f, i);
        if (strncmp(s->name, "param.", 6) != 0) continue;
        const unsigned decay = s->rank == 1 || strstr(s->name, "pos_embed") ? 0 : MHLA_PARAM_DECAY;
        mhla_param *p = mhla_params_add(m.ps, s->name + 6, s->shape, s->rank,
                                        decay | (strstr(s->name, "piece_attn") ? MHLA_PARAM_MIX : 0), MHLA_ZERO);
        assert_non_null(p);
        ASSERT_OK(mhla_stored_read(p->data, s));
    }
    mhla_optim *o;
    mhla_ema *e;
    mhla_tape *t;
    ASSERT_OK(mhla_optim_create(&o, m.ps, &adamw));
    ASSERT_OK(mhla_ema_create(&e, m.ps, json_number_value(json_object_get(said, "ema_decay")), 1));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int step = 0;; step++) {
        char name[32];
        snprintf(name, sizeof name, "in.x.%d", step);
        image = mhla_safetensors_find(f, name);
        if (image == NULL) break;
        float *images = golden(f, "", name);
        snprintf(name, sizeof name, "in.target.%d", step);
        float *labels = golden(f, "", name);
        int32_t *target = new_bytes(sizeof *target * (size_t)image->shape[0]);
        for (int64_t i = 0; i < image->shape[0]; i++) target[i] = (int32_t)labels[i];
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *loss = deit_loss(t, &m, image, images, target);
        ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
        snprintf(name, sizeof name, "out.loss.%d", step);
        float *want = golden(f, "", name);
        assert_true(fabsf(loss->data[0] - want[0]) < 2e-6f);
        free(want);
        free(images);
        free(labels);
        free(target);
        for (int i = 0; step == 0 && i < mhla_params_count(m.ps); i++) {
            const mhla_param *p = mhla_params_at(m.ps, i);
            char full[160];
            snprintf(full, sizeof full, "grad.param.%s", p->name);
            if (!mhla_safetensors_find(f, full)) continue;
            want = golden(f, full, "");
            ASSERT_CLOSE(p->grad, want, p->count, 1e-5, "%s", p->name);
            free(want);
        }
        ASSERT_OK(mhla_optim_step(o, json_number_value(json_object_get(said, "lr")), NULL, NULL));
        mhla_ema_update(e, NULL);
        for (int i = 0; i < mhla_params_count(m.ps); i++) {
            const mhla_param *p = mhla_params_at(m.ps, i);
            snprintf(name, sizeof name, "out.step%d.", step + 1);
            compare(f, name, p, p->data);
            snprintf(name, sizeof name, "out.ema%d.", step + 1);
            if (step > 0) compare(f, name, p, mhla_ema_data(e, i));
        }
    }
    mhla_tape_free(t);
    mhla_ema_free(e);
    mhla_optim_free(o);
    mhla_plan_free(m.plan);
    mhla_params_free(m.ps);
}

static void golden_steps(void **state) {
    (void)state;
    each_golden("case", "optimiser-deit", check_deit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definitions),  cmocka_unit_test(not_finite),       cmocka_unit_test(mixing),
        cmocka_unit_test(threads),      cmocka_unit_test(averages),         cmocka_unit_test(schedules),
        cmocka_unit_test(golden_steps), cmocka_unit_test(golden_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
