/* Parameters: a list of handles found by name, their packed copies, and their initial values. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/numbers.h"
#include "core/parallel.h"
#include "nn/op.h"
#include "ops/product/product.h"

struct mhla_params {
    mhla_param **list; /* [capacity]; handles stay where they are */
    int count, capacity;
    int *table; /* [slots] of 1 + index by name, open addressing; slots a power of two, 0 = empty */
    int slots;
    mhla_dtype storage;   /* of matrices that are added */
    int lending;          /* they have no memory */
    mhla_dtype precision; /* of products */
    mhla_slab *slab;      /* packed copies */
    mhla_status status;
};

mhla_status mhla_params_create(mhla_params **params) {
    *params = mhla_alloc_zero(sizeof **params);
    return *params ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of parameters");
}

static void param_free(mhla_param *p) {
    if (p == NULL) return;
    mhla_weight_free(p->packed);
    mhla_free(p->data);
    mhla_free(p->grad);
    mhla_free(p);
}

void mhla_params_free(mhla_params *params) {
    if (params == NULL) return;
    for (int i = 0; i < params->count; i++) param_free(params->list[i]);
    mhla_slab_free(params->slab);
    mhla_free(params->list);
    mhla_free(params->table);
    mhla_free(params);
}

/* FNV-1a */
static uint64_t name_hash(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

/* The slot of a name, or the empty one where it would stand. */
static int find_slot(const mhla_params *params, const char *name) {
    int i = (int)(name_hash(name) & (uint64_t)(params->slots - 1));
    while (params->table[i] && strcmp(params->list[params->table[i] - 1]->name, name) != 0)
        i = (i + 1) & (params->slots - 1);
    return i;
}

static int make_room(mhla_params *params) {
    if (params->count < params->capacity) return 1;
    const int capacity = params->capacity ? 2 * params->capacity : 64;
    mhla_param **list = mhla_alloc((size_t)capacity * sizeof *list);
    int *table = mhla_alloc_zero((size_t)(2 * capacity) * sizeof *table);
    if (list == NULL || table == NULL) {
        mhla_free(list);
        mhla_free(table);
        return 0;
    }
    if (params->count) memcpy(list, params->list, (size_t)params->count * sizeof(*list));
    mhla_free(params->list);
    mhla_free(params->table);
    params->list = list;
    params->table = table;
    params->capacity = capacity;
    params->slots = 2 * capacity;
    for (int i = 0; i < params->count; i++) params->table[find_slot(params, list[i]->name)] = i + 1;
    return 1;
}

static mhla_param *add_failed(mhla_params *params, mhla_status status) {
    if (params->status == MHLA_OK) params->status = status;
    return NULL;
}

/* Can a matrix with rows of so many numbers be kept so? */
static int fits(mhla_dtype dtype, int64_t cols) { return dtype != MHLA_Q8_0 || cols % 32 == 0; }

/* Its numbers are elsewhere, or will be. */
static int is_lent(const mhla_param *p) { return p->data == NULL && (p->lender || p->packed == NULL); }

static _Thread_local int outlined;
void mhla_params_outline(int on) { outlined = on; }

void mhla_params_set_lending(mhla_params *params, int lending) { params->lending = lending; }

void mhla_params_set_storage(mhla_params *params, mhla_dtype dtype) {
    params->storage = dtype;
    if (dtype == MHLA_BF16) mhla_params_set_precision(params, MHLA_BF16);
}

void mhla_params_set_precision(mhla_params *params, mhla_dtype precision) {
    params->precision = precision;
    for (int i = 0; i < params->count; i++) {
        mhla_param *p = params->list[i];
        if ((p->data == NULL && !is_lent(p)) || p->packs_as == precision) continue;
        mhla_weight_free(p->packed);
        p->packed = NULL;
        p->packs_as = precision;
    }
}

mhla_dtype mhla_params_precision(const mhla_params *params) { return params->precision; }

mhla_param *mhla_params_add(mhla_params *params, const char *name, const int64_t *shape, int dims, unsigned flags,
                            mhla_initial initial) {
    int64_t count = 1;
    if (dims < 1 || dims > MHLA_MAX_DIMS)
        return add_failed(
            params, mhla_fail(MHLA_EINVAL, "parameter %s has %d axes: expected 1 to %d", name, dims, MHLA_MAX_DIMS));
    for (int i = 0; i < dims; i++)
        if (shape[i] < 1 || __builtin_mul_overflow(count, shape[i], &count) || count > INT64_MAX / 64)
            return add_failed(params, mhla_fail(MHLA_EINVAL, "parameter %s: axis %d has %lld elements", name, i,
                                                (long long)shape[i]));
    if (!make_room(params)) return add_failed(params, mhla_fail(MHLA_ENOMEM, "no memory for parameter %s", name));
    const int slot = find_slot(params, name);
    if (params->table[slot]) return add_failed(params, mhla_fail(MHLA_EINVAL, "there are two parameters %s", name));
    mhla_param *p = mhla_alloc_zero(sizeof *p + strlen(name) + 1);
    if (p && (flags & MHLA_PARAM_MATRIX) && fits(params->storage, count / shape[0])) p->dtype = params->storage;
    if (p) p->packs_as = p->dtype == MHLA_F32 ? params->precision : p->dtype;
    if (p) p->slab = &params->slab;
    const int matrix = (flags & MHLA_PARAM_MATRIX) != 0, kept = params->lending && matrix,
              lent = kept || (outlined && matrix);
    if (p && kept) p->dtype = MHLA_F32;
    if (p && kept) p->packs_as = params->precision;
    if (p && !lent && p->dtype != MHLA_F32)
        (void)mhla_weight_create_in(&p->packed, p->slab, p->dtype, shape[0], count / shape[0]);
    else if (p && !lent)
        p->data = mhla_alloc_zero((size_t)count * sizeof(float));
    if (p == NULL || (p->data == NULL && p->packed == NULL && !lent)) {
        param_free(p);
        return add_failed(params, mhla_fail(MHLA_ENOMEM, "no memory for parameter %s", name));
    }
    p->packed_version = p->packed ? 1 : 0;
    char *copy = (char *)(p + 1);
    strcpy(copy, name);
    p->name = copy;
    p->dims = dims;
    memcpy(p->shape, shape, (size_t)dims * sizeof *shape);
    p->count = count;
    p->flags = flags;
    p->initial = initial;
    p->mix_high = 1.0f;
    p->version = 1;
    params->list[params->count++] = p;
    params->table[slot] = params->count;
    return p;
}

mhla_param *mhla_params_addf(mhla_params *params, const int64_t *shape, int dims, unsigned flags, mhla_initial initial,
                             const char *format, ...) {
    char name[256];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    return mhla_params_add(params, name, shape, dims, flags, initial);
}

mhla_status mhla_params_status(const mhla_params *params) { return params->status; }
int mhla_params_count(const mhla_params *params) { return params->count; }
mhla_param *mhla_params_at(const mhla_params *params, int i) {
    return i >= 0 && i < params->count ? params->list[i] : NULL;
}

mhla_param *mhla_params_find(const mhla_params *params, const char *name) {
    if (params->count == 0) return NULL;
    const int i = params->table[find_slot(params, name)];
    return i ? params->list[i - 1] : NULL;
}

int64_t mhla_params_elements(const mhla_params *params) {
    int64_t n = 0;
    for (int i = 0; i < params->count; i++)
        if (!(params->list[i]->flags & MHLA_PARAM_BUFFER)) n += params->list[i]->count;
    return n;
}

void mhla_param_touch(mhla_param *p) { p->version++; }

void mhla_params_clear_grads(mhla_params *params) {
    for (int i = 0; i < params->count; i++) params->list[i]->has_grad = 0;
}

/* Matrices are the ones that linear layers pack; convolutions of one channel and tables that are only looked up are
 * counted as if they were, a few per cent at most. */
size_t mhla_params_bytes(const mhla_params *params, int training) {
    size_t n = 0;
    for (int i = 0; i < params->count; i++) {
        const mhla_param *p = params->list[i];
        const int packs = p->dims > 1 && p->shape[0] > 1 && p->count / p->shape[0] > 32;
        const size_t values = (size_t)p->count * sizeof(float);
        if (is_lent(p)) continue; /* for a short time only */
        n += p->data ? values * (size_t)(1 + (training && mhla_param_trains(p))) : mhla_weight_bytes(p->packed);
        if (p->data && packs) n += p->packs_as == MHLA_BF16 ? values / 2 : values;
    }
    return n;
}

/* ---- Lent numbers ---- */

void mhla_param_lend(mhla_param *p, mhla_dtype dtype, const mhla_lender *lender, const void *of) {
    mhla_free(p->data);
    mhla_weight_free(p->packed);
    p->data = NULL;
    p->packed = NULL;
    p->dtype = dtype;
    p->lender = lender;
    p->of = of;
    mhla_param_touch(p);
}

int mhla_params_lent(const mhla_params *params) {
    int any = 0;
    for (int i = 0; i < params->count; i++) any |= params->list[i]->lender != NULL;
    return any;
}

static mhla_status read_lent(float *rows, const mhla_param *p, int64_t first, int64_t count) {
    if (p->lender == NULL) return mhla_fail(MHLA_EINVAL, "%s has no numbers yet", p->name);
    p->lender->read(p->of, rows, first, count, p->count / p->shape[0]);
    return MHLA_OK;
}

typedef struct borrowing {
    const mhla_param *p;
    mhla_weight *w;
    float *rows;           /* per worker: those of a panel */
    mhla_status *statuses; /* per panel */
} borrowing;

/* A panel, which is packed as if it were a weight. */
static void borrow_task(void *arg, int64_t i, int worker) {
    const borrowing *b = arg;
    const mhla_weight *w = b->w;
    const int begin = mhla_panel_begin(&w->panels, (int)i);
    mhla_weight panel = *w;
    panel.panels = mhla_one_panel(&w->panels, (int)i);
    panel.N = panel.panels.n;
    panel.data = (char *)w->data + mhla_storage_bytes(w->dtype, w->K, begin);
    float *rows = b->rows + worker * MHLA_WIDEST * w->K;
    b->p->lender->read(b->p->of, rows, begin, panel.N, w->K);
    b->statuses[i] = mhla_weight_update(&panel, rows, MHLA_F32, w->K);
}

/* The packed copy of a lent parameter, until it is returned. */
static mhla_weight *borrow(mhla_tape *t, mhla_param *p) {
    const int64_t N = p->shape[0], K = p->count / N;
    if (p->packed) return p->packed;
    if (p->lender == NULL) {
        mhla_tape_fail(t, MHLA_EINVAL, "%s has no numbers yet", p->name);
        return NULL;
    }
    const int threads = mhla_context_threads(t->context);
    borrowing b = {.p = p, .rows = mhla_alloc(sizeof(float) * (size_t)(threads * MHLA_WIDEST * K))};
    mhla_status status = mhla_weight_create_in(&b.w, NULL, p->packs_as, N, K);
    if (status == MHLA_OK) b.statuses = mhla_alloc_zero((size_t)b.w->panels.count * sizeof *b.statuses);
    if (b.rows == NULL || b.statuses == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory to read it from its file");
    else
        mhla_parallel(t->context, b.w->panels.count, borrow_task, &b);
    for (int i = 0; status == MHLA_OK && i < b.w->panels.count; i++) status = b.statuses[i];
    mhla_free(b.rows);
    mhla_free(b.statuses);
    if (status != MHLA_OK) {
        mhla_weight_free(b.w);
        mhla_tape_fail(t, status, "%s: %s", p->name, status == MHLA_ENOMEM ? "no memory for it" : mhla_message());
        return NULL;
    }
    p->packed_order = 0;
    return p->packed = b.w;
}

void mhla_param_return(mhla_param *p) {
    if (p->lender == NULL) return;
    mhla_weight_free(p->packed);
    p->packed = NULL;
    if (p->lender->done) p->lender->done(p->of);
}

/* ---- Packed copies ---- */

mhla_weight *mhla_param_place(mhla_tape *t, mhla_param *p, int64_t N, int64_t K, int order, int *old) {
    *old = 0;
    if (t->status != MHLA_OK || mhla_tape_dry(t)) return NULL;
    if (p->data == NULL) return is_lent(p) ? borrow(t, p) : p->packed;
    if (p->packed && p->packed_order != order) {
        mhla_weight_free(p->packed);
        p->packed = NULL;
    }
    *old = p->packed == NULL || p->packed_version != p->version;
    const mhla_status status = p->packed ? MHLA_OK : mhla_weight_create_in(&p->packed, p->slab, p->packs_as, N, K);
    if (status != MHLA_OK) {
        *old = 0;
        mhla_tape_fail(t, status, "%s: %s", p->name, mhla_message());
        return NULL;
    }
    p->packed_order = order;
    p->packed_version = p->version;
    return p->packed;
}

const mhla_weight *mhla_param_pack(mhla_tape *t, mhla_param *p) {
    const int64_t N = p->shape[0], K = p->count / N;
    int old;
    mhla_weight *w = mhla_param_place(t, p, N, K, 0, &old);
    const mhla_status status = old ? mhla_weight_update(w, p->data, MHLA_F32, K) : MHLA_OK;
    if (status == MHLA_OK) return w;
    p->packed_version = 0;
    mhla_tape_fail(t, status, "%s: %s", p->name, mhla_message());
    return NULL;
}

/* ---- Storage ---- */

static int64_t rows_of(const mhla_param *p) { return p->shape[0]; }
static int64_t cols_of(const mhla_param *p) { return p->count / p->shape[0]; }

static mhla_status check_rows(const mhla_param *p, int64_t first, int64_t count) {
    if (first >= 0 && count >= 1 && count <= rows_of(p) && first <= rows_of(p) - count) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s has %lld rows: no rows %lld to %lld", p->name, (long long)rows_of(p),
                     (long long)first, (long long)(first + count - 1));
}

/* count numbers (of Q8_0: whole blocks) to float32; any alignment. */
static void widen(float *to, const char *from, mhla_dtype dtype, int64_t count) {
    if (dtype == MHLA_F32) memcpy(to, from, (size_t)count * sizeof(float));
    for (int64_t i = 0; dtype == MHLA_BF16 && i < count; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, sizeof h);
        to[i] = mhla_bf16_to_float(h);
    }
    for (int64_t i = 0; dtype == MHLA_Q8_0 && i < count; i += MHLA_Q8_COUNT) {
        mhla_q8_block block;
        memcpy(&block, from + i / MHLA_Q8_COUNT * (int64_t)sizeof block, sizeof block);
        mhla_q8_widen(to + i, &block);
    }
}

mhla_status mhla_param_set_rows(mhla_param *p, int64_t first, int64_t count, const void *rows, mhla_dtype dtype) {
    MHLA_TRY(check_rows(p, first, count));
    if ((unsigned)dtype > MHLA_Q8_0 || (dtype == MHLA_Q8_0 && cols_of(p) % MHLA_Q8_COUNT != 0))
        return mhla_fail(MHLA_EINVAL, "%s: its rows of %lld cannot come as type %d", p->name, (long long)cols_of(p),
                         (int)dtype);
    mhla_param_touch(p);
    if (is_lent(p)) return mhla_fail(MHLA_EINVAL, "%s is read from its file: its rows cannot be set", p->name);
    if (p->data) {
        widen(p->data + first * cols_of(p), rows, dtype, count * cols_of(p));
        return MHLA_OK;
    }
    p->packed_version = p->version;
    return mhla_weight_set_rows(p->packed, first, count, rows, dtype, 0);
}

mhla_status mhla_param_get_rows(float *rows, const mhla_param *p, int64_t first, int64_t count) {
    MHLA_TRY(check_rows(p, first, count));
    if (is_lent(p)) return read_lent(rows, p, first, count);
    if (p->data == NULL) return mhla_weight_get_rows(p->packed, first, count, rows, 0);
    memcpy(rows, p->data + first * cols_of(p), (size_t)(count * cols_of(p)) * sizeof(float));
    return MHLA_OK;
}

mhla_status mhla_params_need_data(const mhla_params *params, const char *what) {
    for (int i = 0; i < params->count; i++)
        if (params->list[i]->data == NULL)
            return mhla_fail(MHLA_EINVAL, "%s is %s: it cannot be %s", params->list[i]->name,
                             is_lent(params->list[i])              ? "read from its file whenever it is needed"
                             : params->list[i]->dtype == MHLA_Q8_0 ? "stored as q8_0"
                                                                   : "stored as bfloat16",
                             what);
    return MHLA_OK;
}

mhla_status mhla_param_store(mhla_param *p, mhla_dtype dtype) {
    if (is_lent(p)) return mhla_fail(MHLA_EINVAL, "%s is read from its file and has no storage", p->name);
    if (dtype == p->dtype) return MHLA_OK;
    if (!(p->flags & MHLA_PARAM_MATRIX) || (unsigned)dtype > MHLA_Q8_0 || !fits(dtype, cols_of(p)))
        return mhla_fail(MHLA_EINVAL, "%s cannot be stored as type %d: %s", p->name, (int)dtype,
                         p->flags & MHLA_PARAM_MATRIX ? "Q8_0 needs rows of a multiple of 32" : "it is not a matrix");
    const int64_t rows = rows_of(p), cols = cols_of(p);
    mhla_weight *packed = NULL;
    float *data = NULL, *row = mhla_alloc((size_t)cols * sizeof(float));
    mhla_status status = row ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory to store %s", p->name);
    if (status == MHLA_OK && dtype != MHLA_F32) status = mhla_weight_create_in(&packed, p->slab, dtype, rows, cols);
    if (status == MHLA_OK && dtype == MHLA_F32 && (data = mhla_alloc((size_t)p->count * sizeof(float))) == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory to store %s", p->name);
    for (int64_t i = 0; i < rows && status == MHLA_OK; i++) {
        status = mhla_param_get_rows(data ? data + i * cols : row, p, i, 1);
        if (status == MHLA_OK && packed) status = mhla_weight_set_rows(packed, i, 1, row, MHLA_F32, 0);
    }
    mhla_free(row);
    if (status != MHLA_OK) {
        mhla_weight_free(packed);
        mhla_free(data);
        return status;
    }
    mhla_weight_free(p->packed);
    mhla_free(p->data);
    mhla_free(p->grad);
    p->grad = NULL;
    p->has_grad = 0;
    p->data = data;
    p->packed = packed;
    p->dtype = p->packs_as = dtype;
    mhla_param_touch(p);
    p->packed_version = packed ? p->version : 0;
    return MHLA_OK;
}

mhla_status mhla_params_store(mhla_params *params, mhla_dtype dtype) {
    for (int i = 0; i < params->count; i++) {
        mhla_param *p = params->list[i];
        if (is_lent(p)) continue; /* stays in its file */
        if ((p->flags & MHLA_PARAM_MATRIX) && fits(dtype, cols_of(p))) MHLA_TRY(mhla_param_store(p, dtype));
    }
    mhla_params_set_precision(params, dtype == MHLA_BF16 ? MHLA_BF16 : MHLA_F32);
    return MHLA_OK;
}

/* ---- Initial values ---- */

static mhla_rng init_rng(const mhla_param *p, uint64_t seed) {
    return mhla_rng_make(seed, 0, name_hash(p->name), MHLA_PLACE_INITIAL);
}

static void fill_normal(mhla_param *p, uint64_t seed, double deviation, double most) {
    mhla_rng r = init_rng(p, seed);
    for (int64_t i = 0; i < p->count; i++) {
        double x = deviation * mhla_rng_normal(&r);
        while (x < -most || x > most) x = deviation * mhla_rng_normal(&r);
        p->data[i] = (float)x;
    }
}

static void fill_uniform(mhla_param *p, uint64_t seed, double bound) {
    mhla_rng r = init_rng(p, seed);
    for (int64_t i = 0; i < p->count; i++) p->data[i] = (float)(bound * (2.0 * (double)mhla_rng_uniform(&r) - 1.0));
}

static double xavier_bound(const mhla_param *p) {
    int64_t field = 1; /* of a convolution */
    for (int i = 2; i < p->dims; i++) field *= p->shape[i];
    const int64_t in = p->dims > 1 ? p->shape[1] : 1;
    return sqrt(6.0 / (double)((p->shape[0] + in) * field));
}

/* Of log U(0, number); and b with log softplus(b) uniform from log 0.001 to log 0.1, not below log 0.0001, as Mamba's time steps begin. */
static void fill_logarithms(mhla_param *p, uint64_t seed) {
    mhla_rng r = init_rng(p, seed);
    for (int64_t i = 0; i < p->count; i++) {
        const double u = (double)mhla_rng_uniform(&r);
        const double step = fmax(exp(log(0.001) + u * (log(0.1) - log(0.001))), 1e-4);
        p->data[i] = p->initial.kind == MHLA_INITIAL_LOG_UNIFORM ? (float)log(fmax(u, 0x1p-24) * p->initial.number)
                                                                 : (float)(step + log(-expm1(-step)));
    }
}

mhla_status mhla_param_init(mhla_param *p, uint64_t seed) {
    const mhla_initial *x = &p->initial;
    const int64_t row = p->count / p->shape[0];
    mhla_status status = MHLA_OK;
    if (p->data == NULL) return MHLA_OK;
    switch (x->kind) {
    case MHLA_INITIAL_NORMAL: fill_normal(p, seed, x->number, INFINITY); break;
    case MHLA_INITIAL_TRUNC_NORMAL: fill_normal(p, seed, x->number, 2.0); break;
    case MHLA_INITIAL_XAVIER: fill_uniform(p, seed, xavier_bound(p) * (x->number > 0.0 ? x->number : 1.0)); break;
    case MHLA_INITIAL_TORCH: fill_uniform(p, seed, 1.0 / sqrt(x->number)); break;
    case MHLA_INITIAL_LOG_UNIFORM:
    case MHLA_INITIAL_TIME_STEPS: fill_logarithms(p, seed); break;
    case MHLA_INITIAL_CALL: status = x->fill(p, x->of); break;
    default:
        for (int64_t i = 0; i < p->count; i++)
            p->data[i] = x->kind == MHLA_INITIAL_CONSTANT    ? (float)x->number
                         : x->kind == MHLA_INITIAL_IDENTITY  ? (float)(i / row == i % row)
                         : x->kind == MHLA_INITIAL_LOG_COUNT ? (float)log(1.0 + (double)(i % p->shape[p->dims - 1]))
                                                             : (float)(i % row == row / 2);
    }
    mhla_param_touch(p);
    return status;
}

typedef struct initials {
    mhla_params *params;
    uint64_t seed;
} initials;

static void init_task(void *arg, int64_t i, int worker) {
    const initials *x = arg;
    mhla_param *p = mhla_params_at(x->params, (int)i);
    (void)worker;
    if (p->initial.kind != MHLA_INITIAL_CALL) (void)mhla_param_init(p, x->seed); /* then it does not fail */
}

mhla_status mhla_params_init(mhla_params *params, uint64_t seed) {
    mhla_parallel(NULL, params->count, init_task, &(initials){params, seed});
    for (int i = 0; i < params->count; i++)
        if (params->list[i]->initial.kind == MHLA_INITIAL_CALL) MHLA_TRY(mhla_param_init(params->list[i], seed));
    return MHLA_OK;
}
