/* AdamW, SGD with momentum, clipping by norm, averages of parameters, schedules. */
#include "nn/optim.h"

#include <math.h>
#include <string.h>

#include "nn/op.h"

struct mhla_optim {
    mhla_params *params;
    mhla_optim_desc d;
    int slots;
    float **state;    /* [count][slots] */
    int64_t *updates; /* [count] */
    double *squares;  /* [stretches of all parameters] */
    int64_t *first;   /* [count+1] stretch of each parameter */
};

enum { STRETCH = 16384 };

static int64_t stretches(const mhla_param *p) { return (p->count + STRETCH - 1) / STRETCH; }

/* ---- Making ---- */

mhla_status mhla_optim_create(mhla_optim **optim, mhla_params *params, const mhla_optim_desc *desc) {
    *optim = NULL;
    mhla_optim_desc d = *desc;
    if (d.beta1 == 0.0) d.beta1 = 0.9;
    if (d.beta2 == 0.0) d.beta2 = 0.999;
    if (d.eps == 0.0) d.eps = 1e-8;
    if (!(d.beta1 > 0.0 && d.beta1 < 1.0 && d.beta2 > 0.0 && d.beta2 < 1.0 && d.eps > 0.0))
        return mhla_fail(MHLA_EINVAL, "betas are %g and %g, eps is %g: expected numbers between 0 and 1", d.beta1,
                         d.beta2, d.eps);
    if (!(d.weight_decay >= 0.0 && d.momentum >= 0.0 && d.momentum < 1.0 && d.clip_norm >= 0.0))
        return mhla_fail(MHLA_EINVAL, "weight_decay is %g, momentum %g, clip_norm %g", d.weight_decay, d.momentum,
                         d.clip_norm);
    const int count = mhla_params_count(params);
    if (d.ranks == 0) d.ranks = 1;
    MHLA_TRY(mhla_params_need_data(params, "trained"));
    mhla_optim *o = mhla_alloc_zero(sizeof *o);
    if (o == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an optimiser");
    *o = (mhla_optim){.params = params, .d = d};
    o->slots = d.kind == MHLA_OPTIM_ADAMW ? 2 : d.momentum > 0.0 ? 1 : 0;
    o->state = mhla_alloc_zero((size_t)(count * o->slots + 1) * sizeof *o->state);
    o->updates = mhla_alloc_zero((size_t)(count + 1) * sizeof *o->updates);
    o->first = mhla_alloc_zero((size_t)(count + 1) * sizeof *o->first);
    int ok = o->state && o->updates && o->first;
    for (int i = 0; ok && i < count; i++) {
        const mhla_param *p = mhla_params_at(params, i);
        o->first[i + 1] = o->first[i] + stretches(p);
        if (p->flags & MHLA_PARAM_BUFFER) continue;
        for (int s = 0; s < o->slots; s++)
            ok = ok && (o->state[i * o->slots + s] =
                            mhla_alloc_zero((size_t)(mhla_optim_owned(o, i, d.rank) + 1) * sizeof(float))) != NULL;
    }
    ok = ok && (o->squares = mhla_alloc((size_t)(o->first[count] + 1) * sizeof *o->squares)) != NULL;
    if (!ok) {
        mhla_optim_free(o);
        return mhla_fail(MHLA_ENOMEM, "no memory for the state of an optimiser of %lld parameters",
                         (long long)mhla_params_elements(params));
    }
    *optim = o;
    return MHLA_OK;
}

void mhla_optim_free(mhla_optim *o) {
    if (o == NULL) return;
    for (int i = 0; o->state && i < mhla_params_count(o->params) * o->slots; i++) mhla_free(o->state[i]);
    mhla_free(o->state);
    mhla_free(o->updates);
    mhla_free(o->first);
    mhla_free(o->squares);
    mhla_free(o);
}

size_t mhla_optim_bytes(const mhla_params *params, const mhla_optim_desc *d) {
    const int slots = d->kind == MHLA_OPTIM_ADAMW ? 2 : d->momentum > 0.0 ? 1 : 0;
    return (size_t)mhla_params_elements(params) * sizeof(float) * (size_t)slots / (size_t)(d->ranks ? d->ranks : 1);
}

int mhla_optim_slots(const mhla_optim *o) { return o->slots; }
const char *mhla_optim_slot_name(const mhla_optim *o, int slot) {
    return o->d.kind == MHLA_OPTIM_SGD ? "momentum_buffer" : slot == 0 ? "exp_avg" : "exp_avg_sq";
}
float *mhla_optim_slot(mhla_optim *o, int i, int slot) { return o->state[i * o->slots + slot]; }
int64_t *mhla_optim_updates(mhla_optim *o, int i) { return &o->updates[i]; }

/* ---- Whose is what ---- */

/* The first stretch of parameter i that is rank's; not of it where it is first[i+1] or more. */
static int64_t first_owned(const mhla_optim *o, int i, int rank) {
    const int64_t first = o->first[i], P = o->d.ranks;
    return first + ((rank - first) % P + P) % P;
}

static int64_t length(const mhla_optim *o, int i, int64_t stretch) {
    const int64_t left = mhla_params_at(o->params, i)->count - (stretch - o->first[i]) * STRETCH;
    return left < STRETCH ? left : STRETCH;
}

int64_t mhla_optim_owned(const mhla_optim *o, int i, int rank) {
    int64_t n = 0;
    for (int64_t s = first_owned(o, i, rank); s < o->first[i + 1]; s += o->d.ranks) n += length(o, i, s);
    return n;
}

void mhla_optim_split(const mhla_optim *o, int i, int rank, float *owned, const float *all) {
    for (int64_t s = first_owned(o, i, rank); s < o->first[i + 1]; s += o->d.ranks) {
        const int64_t n = length(o, i, s);
        memcpy(owned, all + (s - o->first[i]) * STRETCH, (size_t)n * sizeof *owned);
        owned += n;
    }
}

void mhla_optim_join(const mhla_optim *o, int i, int rank, float *all, const float *owned) {
    for (int64_t s = first_owned(o, i, rank); s < o->first[i + 1]; s += o->d.ranks) {
        const int64_t n = length(o, i, s);
        memcpy(all + (s - o->first[i]) * STRETCH, owned, (size_t)n * sizeof *all);
        owned += n;
    }
}

/* ---- A step: tasks are stretches of parameters ---- */

typedef struct step {
    mhla_optim *o;
    const mhla_kernels *kernels;
    double lr, grad_scale;
} step;

static int takes_part(const mhla_param *p) { return mhla_param_trains(p) && p->has_grad; }

/* The parameter of a stretch. */
static int find(const mhla_optim *o, int64_t stretch) {
    int low = 0, high = mhla_params_count(o->params);
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (o->first[middle] <= stretch)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t mhla_optim_stretches(const mhla_optim *o) { return o->first[mhla_params_count(o->params)]; }

mhla_stretch mhla_optim_stretch(const mhla_optim *o, int64_t s) {
    const int i = find(o, s);
    return (mhla_stretch){mhla_params_at(o->params, i), i, (s - o->first[i]) * STRETCH, length(o, i, s)};
}

static void square_task(void *arg, int64_t k, int worker) {
    const step *s = arg;
    (void)worker;
    const int64_t stretch = k * s->o->d.ranks + s->o->d.rank;
    const int i = find(s->o, stretch);
    const mhla_param *p = mhla_params_at(s->o->params, i);
    const int64_t at = (stretch - s->o->first[i]) * STRETCH, n = p->count - at < STRETCH ? p->count - at : STRETCH;
    double sum = 0.0;
    for (int64_t j = 0; takes_part(p) && j < n; j++) sum += (double)p->grad[at + j] * (double)p->grad[at + j];
    s->o->squares[stretch] = sum;
}

/* torch.optim.SGD: g += wd p; v = momentum v + g, the first v = g; p -= lr v, Nesterov: p -= lr (g + momentum v) */
static void sgd(const mhla_optim_desc *d, float *p, float *v, const float *g, int64_t n, double lr, double grad_scale,
                double decay, int first) {
    const float momentum = (float)d->momentum, rate = (float)lr, scale = (float)grad_scale, wd = (float)decay;
    for (int64_t j = 0; j < n; j++) {
        float e = g[j] * scale + wd * p[j];
        if (v) {
            v[j] = first ? e : momentum * v[j] + e;
            e = d->nesterov ? e + momentum * v[j] : v[j];
        }
        p[j] -= rate * e;
    }
}

static void update_task(void *arg, int64_t k, int worker) {
    const step *s = arg;
    (void)worker;
    mhla_optim *o = s->o;
    const mhla_optim_desc *d = &o->d;
    const int64_t stretch = k * d->ranks + d->rank;
    const int i = find(o, stretch);
    mhla_param *p = mhla_params_at(o->params, i);
    if (!takes_part(p)) return;
    const int64_t at = (stretch - o->first[i]) * STRETCH, n = p->count - at < STRETCH ? p->count - at : STRETCH;
    const int64_t own = (stretch - first_owned(o, i, d->rank)) / d->ranks * STRETCH; /* where its state is */
    const double decay = p->flags & MHLA_PARAM_DECAY ? d->weight_decay : 0.0, count = (double)(o->updates[i] + 1);
    if (d->kind == MHLA_OPTIM_SGD) {
        sgd(d, p->data + at, o->slots ? mhla_optim_slot(o, i, 0) + own : NULL, p->grad + at, n, s->lr, s->grad_scale,
            decay, o->updates[i] == 0);
        return;
    }
    const mhla_adamw a = {.grad_scale = (float)s->grad_scale,
                          .one_minus_beta1 = (float)(1.0 - d->beta1),
                          .beta2 = (float)d->beta2,
                          .one_minus_beta2 = (float)(1.0 - d->beta2),
                          .inverse_sqrt_bias2 = (float)(1.0 / sqrt(1.0 - pow(d->beta2, count))),
                          .eps = (float)d->eps,
                          .step = (float)(s->lr / (1.0 - pow(d->beta1, count))),
                          .decay = (float)(1.0 - s->lr * decay)};
    s->kernels->adamw(p->data + at, mhla_optim_slot(o, i, 0) + own, mhla_optim_slot(o, i, 1) + own, p->grad + at, n,
                      &a);
}

/* Linear layers would pack their weight again at the next use, one after the other; here many threads do it. */
static void pack_task(void *arg, int64_t i, int worker) {
    const step *s = arg;
    (void)worker;
    mhla_param *p = mhla_params_at(s->o->params, (int)i);
    if (p->packed == NULL || p->packed_order != 0 || p->packed_version == p->version) return;
    if (mhla_weight_update(p->packed, p->data, MHLA_F32, 0) == MHLA_OK) p->packed_version = p->version;
}

static int64_t owned_stretches(const mhla_optim *o) {
    return (mhla_optim_stretches(o) - o->d.rank + o->d.ranks - 1) / o->d.ranks;
}

double *mhla_optim_measure(mhla_optim *o, const mhla_context *context) {
    step s = {.o = o};
    mhla_parallel(context, owned_stretches(o), square_task, &s);
    return o->squares;
}

mhla_status mhla_optim_update(mhla_optim *o, double lr, const mhla_context *context, double *norm_out) {
    step s = {o, mhla_kernels_get(), lr, 1.0};
    double sum = 0.0;
    for (int64_t i = 0; i < mhla_optim_stretches(o); i++) sum += o->squares[i];
    const double norm = sqrt(sum);
    if (norm_out) *norm_out = norm;
    if (!isfinite(norm)) {
        mhla_params_clear_grads(o->params);
        return mhla_fail(MHLA_ERANGE, "the gradient is not finite: its norm is %g", norm);
    }
    /* torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm */
    if (o->d.clip_norm > 0.0 && o->d.clip_norm / (norm + 1e-6) < 1.0) s.grad_scale = o->d.clip_norm / (norm + 1e-6);
    mhla_parallel(context, owned_stretches(o), update_task, &s);
    return MHLA_OK;
}

mhla_status mhla_optim_finish(mhla_optim *o, const mhla_context *context) {
    const int count = mhla_params_count(o->params);
    step s = {.o = o};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count; i++) {
        mhla_param *p = mhla_params_at(o->params, i);
        if (!takes_part(p)) continue;
        o->updates[i]++;
        if (p->flags & MHLA_PARAM_MIX) { /* [..,M,M,1,1] too: rows of M */
            int last = p->dims - 1;
            while (last > 0 && p->shape[last] == 1) last--;
            const int64_t M = p->shape[last];
            const mhla_status clipped =
                mhla_mix_clip(p->data, p->count / M, M, p->mix_low, p->mix_high,
                              (p->flags & MHLA_PARAM_RENORMALISE) != 0, (p->flags & MHLA_PARAM_CAUSAL) != 0);
            if (status == MHLA_OK) status = clipped;
        }
        mhla_param_touch(p);
    }
    mhla_parallel(context, count, pack_task, &s);
    mhla_params_clear_grads(o->params);
    return status;
}

mhla_status mhla_optim_step(mhla_optim *o, double lr, const mhla_context *context, double *norm) {
    (void)mhla_optim_measure(o, context);
    MHLA_TRY(mhla_optim_update(o, lr, context, norm));
    return mhla_optim_finish(o, context);
}

/* ---- EMA ---- */

struct mhla_ema {
    mhla_params *params;
    double decay;
    int first_copies;
    int64_t updates;
    float **data; /* [count] */
};

mhla_status mhla_ema_create(mhla_ema **ema, mhla_params *params, double decay, int first_copies) {
    *ema = NULL;
    if (!(decay >= 0.0 && decay < 1.0))
        return mhla_fail(MHLA_EINVAL, "the decay of an EMA is %g: expected 0 to 1", decay);
    MHLA_TRY(mhla_params_need_data(params, "averaged"));
    const int count = mhla_params_count(params);
    mhla_ema *e = mhla_alloc_zero(sizeof *e);
    if (e == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an EMA");
    *e = (mhla_ema){.params = params, .decay = decay, .first_copies = first_copies};
    e->data = mhla_alloc_zero((size_t)(count + 1) * sizeof *e->data);
    int ok = e->data != NULL;
    for (int i = 0; ok && i < count; i++) {
        const mhla_param *p = mhla_params_at(params, i);
        e->data[i] = mhla_alloc((size_t)p->count * sizeof(float));
        ok = e->data[i] != NULL;
        if (ok) memcpy(e->data[i], p->data, (size_t)p->count * sizeof(float));
    }
    if (!ok) {
        mhla_ema_free(e);
        return mhla_fail(MHLA_ENOMEM, "no memory for an average of the parameters");
    }
    *ema = e;
    return MHLA_OK;
}

void mhla_ema_free(mhla_ema *e) {
    if (e == NULL) return;
    for (int i = 0; e->data && i < mhla_params_count(e->params); i++) mhla_free(e->data[i]);
    mhla_free(e->data);
    mhla_free(e);
}

static void ema_task(void *arg, int64_t i, int worker) {
    const mhla_ema *e = arg;
    (void)worker;
    const mhla_param *p = mhla_params_at(e->params, (int)i);
    const double exact = (e->first_copies && e->updates == 0) || (p->flags & MHLA_PARAM_COUNTER) ? 0.0 : e->decay;
    const float decay = (float)exact, rest = (float)(1.0 - exact);
    float *average = e->data[i];
    for (int64_t j = 0; j < p->count; j++) {
        const float a = average[j], x = p->data[j];
        average[j] = a == x ? a : decay * a + rest * x; /* what is frozen would else drift by rounding */
    }
}

void mhla_ema_update(mhla_ema *e, const mhla_context *context) {
    mhla_parallel(context, mhla_params_count(e->params), ema_task, e);
    e->updates++;
}

void mhla_ema_swap(mhla_ema *e) {
    for (int i = 0; i < mhla_params_count(e->params); i++) {
        mhla_param *p = mhla_params_at(e->params, i);
        float *data = p->data;
        p->data = e->data[i];
        e->data[i] = data;
        mhla_param_touch(p);
    }
}

float *mhla_ema_data(mhla_ema *e, int i) { return e->data[i]; }
int64_t *mhla_ema_updates(mhla_ema *e) { return &e->updates; }

size_t mhla_ema_bytes(const mhla_params *params) {
    size_t n = 0;
    for (int i = 0; i < mhla_params_count(params); i++) n += (size_t)mhla_params_at(params, i)->count * sizeof(float);
    return n;
}

/* ---- Schedules ---- */

static double cosine(double base, double floor, double part) {
    return floor + 0.5 * (base - floor) * (1.0 + cos(3.14159265358979323846 * part));
}

double mhla_schedule_at(const mhla_schedule *s, int64_t update) {
    const double u = (double)update, warmup = (double)s->warmup, total = (double)s->total;
    if (update < s->warmup) return s->warmup_from + (s->base - s->warmup_from) * u / warmup;
    if (s->kind != MHLA_SCHEDULE_CONSTANT && update >= s->total) return s->floor;
    switch (s->kind) {
    case MHLA_SCHEDULE_COSINE: return cosine(s->base, s->floor, u / total);
    case MHLA_SCHEDULE_COSINE_AFTER: return cosine(s->base, s->floor, (u - warmup) / (total - warmup));
    case MHLA_SCHEDULE_LINEAR: return s->base + (s->floor - s->base) * (u - warmup) / (total - warmup);
    case MHLA_SCHEDULE_CONSTANT: break;
    }
    return s->base;
}
