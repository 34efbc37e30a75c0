/* The selective scan, forward: a task is a slab of channels of one sequence, which it walks chunk by chunk. */
#include "ops/scan/scan.h"
#include "ops/tensors.h"

mhla_scan_scratch mhla_scan_carve(mhla_carver *c, const mhla_scan_run *run) {
    mhla_scan_scratch z;
    z.A = mhla_carve_floats(c, MHLA_SCAN_SLAB * run->N);
    z.h = mhla_carve_floats(c, MHLA_SCAN_SLAB * run->N);
    z.D = mhla_carve_floats(c, MHLA_SCAN_SLAB);
    z.bias = mhla_carve_floats(c, MHLA_SCAN_SLAB);
    z.step = mhla_carve_floats(c, MHLA_SCAN_CHUNK * MHLA_SCAN_TILE);
    z.x = mhla_carve_floats(c, MHLA_SCAN_CHUNK * MHLA_SCAN_TILE);
    z.sum = mhla_carve_floats(c, MHLA_SCAN_CHUNK * MHLA_SCAN_TILE);
    return z;
}

/* One panel of `width` columns, of which n mean something. */
static mhla_panels one_panel(int n, int width) {
    return (mhla_panels){.n = n, .unit = width, .vectors = 1, .count = 1, .base = 1};
}

static int tile_channels(const mhla_slab_range *slab, int tile) {
    const int left = slab->count - tile * MHLA_SCAN_TILE;
    return left < MHLA_SCAN_TILE ? left : MHLA_SCAN_TILE;
}

void mhla_scan_state_in(const mhla_scan_run *run, float *h, const float *state, const mhla_slab_range *slab) {
    const int64_t N = run->N;
    if (state == NULL) {
        memset(h, 0, sizeof *h * (size_t)(slab->tiles * N * MHLA_SCAN_TILE));
        return;
    }
    for (int i = 0; i < slab->tiles; i++) {
        const mhla_panels p = one_panel(tile_channels(slab, i), MHLA_SCAN_TILE);
        run->kernels->transpose(h + i * N * MHLA_SCAN_TILE, &p, state + (slab->first + i * MHLA_SCAN_TILE) * N, N,
                                (int)N);
    }
}

void mhla_scan_state_out(const mhla_scan_run *run, float *state, const float *h, const mhla_slab_range *slab) {
    const int64_t N = run->N;
    const mhla_panels p = one_panel((int)N, (int)N);
    for (int i = 0; i < slab->tiles; i++)
        run->kernels->transpose(state + (slab->first + i * MHLA_SCAN_TILE) * N, &p, h + i * N * MHLA_SCAN_TILE,
                                MHLA_SCAN_TILE, tile_channels(slab, i));
}

static void load_channels(float *to, const float *from, const mhla_slab_range *slab) {
    memset(to, 0, sizeof *to * MHLA_SCAN_SLAB);
    if (from) memcpy(to, from + slab->first, sizeof *to * (size_t)slab->count);
}

void mhla_scan_load(const mhla_scan_run *run, mhla_scan_scratch *z, const mhla_slab_range *slab) {
    mhla_scan_state_in(run, z->A, run->A, slab);
    load_channels(z->D, run->call.D, slab);
    load_channels(z->bias, run->call.delta_bias, slab);
}

static const float *rows_at(const float *x, const mhla_strides *s, const mhla_span *span, int64_t t, int64_t head,
                            int64_t at) {
    return x ? x + span->batch * s->batch + (span->begin + t) * s->token + head * s->head + at : NULL;
}

mhla_scan mhla_scan_at(const mhla_scan_run *run, const mhla_scan_scratch *z, const mhla_slab_range *slab,
                       const mhla_span *span, int64_t t, int n, int tile) {
    const mhla_scan_call *c = &run->call;
    const int64_t at = slab->first + tile * MHLA_SCAN_TILE, states = tile * run->N * MHLA_SCAN_TILE;
    return (mhla_scan){.n = n,
                       .channels = tile_channels(slab, tile),
                       .N = (int)run->N,
                       .softplus = c->delta_softplus,
                       .u = rows_at(run->u, &c->u, span, t, 0, at),
                       .delta = rows_at(run->delta, &c->delta, span, t, 0, at),
                       .z = rows_at(c->z, &c->z_strides, span, t, 0, at),
                       .ldu = c->u.token,
                       .lddelta = c->delta.token,
                       .ldz = c->z_strides.token,
                       .B = rows_at(run->B, &c->B, span, t, slab->g, 0),
                       .C = rows_at(run->C, &c->C, span, t, slab->g, 0),
                       .ldB = c->B.token,
                       .ldC = c->C.token,
                       .A = z->A + states,
                       .D = z->D + tile * MHLA_SCAN_TILE,
                       .bias = z->bias + tile * MHLA_SCAN_TILE,
                       .h = z->h + states,
                       .ldy = c->y.token,
                       .step = z->step,
                       .x = z->x,
                       .sum = z->sum};
}

typedef struct forward_job {
    const mhla_scan_run *run;
    mhla_scan_scratch *scratch; /* [threads] */
} forward_job;

static void forward_task(void *arg, int64_t i, int worker) {
    const forward_job *job = arg;
    const mhla_scan_run *run = job->run;
    const mhla_scan_call *c = &run->call;
    mhla_scan_scratch *z = &job->scratch[worker];
    const int64_t s = i / run->slabs, each = c->channels * run->N;
    const mhla_slab_range slab = mhla_scan_slab(run, i % run->slabs);
    const mhla_span span = mhla_scan_span(c, s);
    const float *before = run->states ? run->states[s] : c->initial_state ? c->initial_state + s * each : NULL;
    float *after = run->states ? run->states[s] : c->final_state ? c->final_state + s * each : NULL;
    mhla_scan_load(run, z, &slab);
    mhla_scan_state_in(run, z->h, before, &slab);
    for (int64_t t = 0; t < span.tokens; t += MHLA_SCAN_CHUNK) {
        const int n = span.tokens - t < MHLA_SCAN_CHUNK ? (int)(span.tokens - t) : MHLA_SCAN_CHUNK;
        for (int tile = 0; tile < slab.tiles; tile++) {
            mhla_scan p = mhla_scan_at(run, z, &slab, &span, t, n, tile);
            p.y = (float *)rows_at(run->y, &c->y, &span, t, 0, slab.first + tile * MHLA_SCAN_TILE);
            p.accumulate = c->accumulate;
            run->kernels->scan_forward(&p);
        }
    }
    if (after) mhla_scan_state_out(run, after, z->h, &slab);
}

static mhla_scan_scratch *carve_forward(mhla_carver *c, const mhla_scan_run *run) {
    mhla_scan_scratch *z = mhla_carve(c, sizeof *z * (size_t)run->threads);
    for (int w = 0; w < run->threads; w++) {
        const mhla_scan_scratch one = mhla_scan_carve(c, run);
        if (z) z[w] = one;
    }
    return z;
}

static size_t forward_bytes(const mhla_scan_run *run) {
    mhla_carver c = {0};
    carve_forward(&c, run);
    return c.used;
}

static mhla_status forward(mhla_scan_run *run, void *ws) {
    void *own;
    MHLA_TRY(take_workspace(&run->ws, &own, ws, forward_bytes(run)));
    mhla_carver c = {.base = run->ws};
    forward_job job = {run, carve_forward(&c, run)};
    mhla_parallel(run->call.context, mhla_scan_sequences(&run->call) * run->slabs, forward_task, &job);
    mhla_free(own);
    return MHLA_OK;
}

size_t mhla_scan_forward_workspace(const mhla_scan_call *call) {
    mhla_scan_run run;
    return mhla_scan_check(&run, call) == MHLA_OK ? forward_bytes(&run) : 0;
}

mhla_status mhla_scan_forward(const mhla_scan_call *call, float *y, const float *u, const float *delta, const float *A,
                              const float *B, const float *C, void *ws) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check_forward(&run, call, y, u, delta, A, B, C));
    return forward(&run, ws);
}

mhla_status mhla_scan_continue(const mhla_scan_call *call, float *const *states, float *y, const float *u,
                               const float *delta, const float *A, const float *B, const float *C, void *ws) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check_forward(&run, call, y, u, delta, A, B, C));
    run.states = states;
    return forward(&run, ws);
}
