/* The selective scan, backward. A task is a slab of channels of a part of the sequences. It walks each sequence forward once to
 * know the state at the begin of every chunk, then goes back chunk by chunk: states of one chunk are made again and kept, and the
 * gradients follow from them. What is summed over channels (B, C) or over sequences (A, D, bias) is summed in a fixed order. */
#include "ops/scan/scan.h"
#include "ops/tensors.h"

enum { TILE = MHLA_SCAN_TILE, CHUNK = MHLA_SCAN_CHUNK, SLAB = MHLA_SCAN_SLAB, MOST_PARTS = 16, SUM_ROWS = 64 };

typedef struct back_scratch {
    mhla_scan_scratch f;
    float *starts;            /* [chunks][tiles][N][16] states at the begins of the chunks */
    float *g;                 /* [tiles][N][16] */
    float *states, *decays;   /* [CHUNK][N][16] */
    float *dB, *dC;           /* [CHUNK][N][16] */
    float *dsum, *dx, *dstep; /* [CHUNK][16] */
    float *ones;              /* [16] */
} back_scratch;

typedef struct back_job {
    const mhla_scan_run *run;
    back_scratch *scratch; /* [threads] */
    int64_t parts, rows;   /* parts of the sequences; B*T */
    float *dA;             /* [parts][slabs][SLAB][N] as tiles [N][16] */
    float *dD, *dbias;     /* [parts][slabs][SLAB] */
    float *dB, *dC;        /* [slabs][rows][N] */
} back_job;

static back_scratch carve_scratch(mhla_carver *c, const mhla_scan_run *run, int64_t chunks) {
    const int64_t tile = run->N * TILE;
    back_scratch z = {.f = mhla_scan_carve(c, run)};
    z.starts = mhla_carve_floats(c, chunks * SLAB * run->N);
    z.g = mhla_carve_floats(c, SLAB * run->N);
    z.states = mhla_carve_floats(c, CHUNK * tile);
    z.decays = mhla_carve_floats(c, CHUNK * tile);
    z.dB = mhla_carve_floats(c, CHUNK * tile);
    z.dC = mhla_carve_floats(c, CHUNK * tile);
    z.dsum = mhla_carve_floats(c, CHUNK * TILE);
    z.dx = mhla_carve_floats(c, CHUNK * TILE);
    z.dstep = mhla_carve_floats(c, CHUNK * TILE);
    z.ones = mhla_carve_floats(c, TILE);
    for (int i = 0; c->base && i < TILE; i++) z.ones[i] = 1.0f;
    return z;
}

static back_job carve_job(mhla_carver *c, const mhla_scan_run *run) {
    const mhla_scan_call *call = &run->call;
    const int64_t S = mhla_scan_sequences(call);
    int64_t longest = 0;
    for (int64_t s = 0; s < S; s++) {
        const int64_t tokens = mhla_scan_span(call, s).tokens;
        if (tokens > longest) longest = tokens;
    }
    back_job job = {.run = run, .parts = S < MOST_PARTS ? S : MOST_PARTS, .rows = call->batch * call->tokens};
    job.dA = mhla_carve_floats(c, job.parts * run->slabs * SLAB * run->N);
    job.dD = mhla_carve_floats(c, job.parts * run->slabs * SLAB);
    job.dbias = mhla_carve_floats(c, job.parts * run->slabs * SLAB);
    job.dB = mhla_carve_floats(c, run->slabs * job.rows * run->N);
    job.dC = mhla_carve_floats(c, run->slabs * job.rows * run->N);
    job.scratch = mhla_carve(c, sizeof *job.scratch * (size_t)run->threads);
    for (int w = 0; w < run->threads; w++) {
        const back_scratch one = carve_scratch(c, run, (longest + CHUNK - 1) / CHUNK);
        if (job.scratch) job.scratch[w] = one;
    }
    return job;
}

static int chunk_tokens(const mhla_span *span, int64_t chunk) {
    const int64_t left = span->tokens - chunk * CHUNK;
    return left < CHUNK ? (int)left : CHUNK;
}

/* The states at the begins of all chunks. */
static void walk_forward(const mhla_scan_run *run, back_scratch *z, const mhla_slab_range *slab,
                         const mhla_span *span) {
    const int64_t floats = SLAB * run->N;
    for (int64_t chunk = 0; chunk * CHUNK < span->tokens; chunk++) {
        memcpy(z->starts + chunk * floats, z->f.h, sizeof(float) * (size_t)floats);
        if ((chunk + 1) * CHUNK >= span->tokens) break; /* nobody asks for the state at the end */
        for (int tile = 0; tile < slab->tiles; tile++) {
            const mhla_scan p = mhla_scan_at(run, &z->f, slab, span, chunk * CHUNK, chunk_tokens(span, chunk), tile);
            run->kernels->scan_forward(&p);
        }
    }
}

static float *gradient_at(float *x, const mhla_strides *s, const mhla_span *span, int64_t t, int64_t at) {
    return x ? x + span->batch * s->batch + (span->begin + t) * s->token + at : NULL;
}

/* One tile of one chunk: states again, then back. Sums of the slab i of part `part` are added to. */
static void back_tile(const back_job *job, back_scratch *z, const mhla_slab_range *slab, const mhla_span *span,
                      int64_t chunk, int tile, int64_t place) {
    const mhla_scan_run *run = job->run;
    const mhla_scan_grads *g = &run->grads;
    const int64_t t = chunk * CHUNK, at = slab->first + tile * TILE, states = tile * run->N * TILE;
    mhla_scan p = mhla_scan_at(run, &z->f, slab, span, t, chunk_tokens(span, chunk), tile);
    memcpy(p.h, z->starts + chunk * SLAB * run->N + states, sizeof(float) * (size_t)(run->N * TILE));
    p.states = z->states;
    p.decays = z->decays;
    run->kernels->scan_forward(&p);
    p.dy = gradient_at((float *)run->dy, &run->call.y, span, t, at);
    p.g = z->g + states;
    p.du = gradient_at(g->du, &g->du_strides, span, t, at);
    p.ddelta = gradient_at(g->ddelta, &g->ddelta_strides, span, t, at);
    p.dz = gradient_at(g->dz, &g->dz_strides, span, t, at);
    p.lddu = g->du_strides.token;
    p.ldddelta = g->ddelta_strides.token;
    p.lddz = g->dz_strides.token;
    p.add = g->accumulate;
    p.dsum = z->dsum;
    p.dx = z->dx;
    p.dstep = z->dstep;
    p.dB = z->dB;
    p.dC = z->dC;
    p.dA = job->dA + place * SLAB * run->N + states;
    p.dD = job->dD + place * SLAB + tile * TILE;
    p.dbias = job->dbias + place * SLAB + tile * TILE;
    run->kernels->scan_backward(&p);
}

static void back_sequence(const back_job *job, back_scratch *z, const mhla_slab_range *slab, int64_t s, int64_t i,
                          int64_t place) {
    const mhla_scan_run *run = job->run;
    const mhla_scan_call *c = &run->call;
    const mhla_span span = mhla_scan_span(c, s);
    const int64_t each = c->channels * run->N;
    const int lanes = slab->count < TILE ? slab->count : TILE; /* of a slab of one tile not all are there */
    mhla_scan_state_in(run, z->f.h, c->initial_state ? c->initial_state + s * each : NULL, slab);
    walk_forward(run, z, slab, &span);
    mhla_scan_state_in(run, z->g, run->grads.dfinal_state ? run->grads.dfinal_state + s * each : NULL, slab);
    for (int64_t chunk = (span.tokens + CHUNK - 1) / CHUNK - 1; chunk >= 0; chunk--) {
        const int64_t n = chunk_tokens(&span, chunk) * run->N;
        memset(z->dB, 0, sizeof(float) * (size_t)(n * TILE));
        memset(z->dC, 0, sizeof(float) * (size_t)(n * TILE));
        for (int tile = 0; tile < slab->tiles; tile++) back_tile(job, z, slab, &span, chunk, tile, place);
        const int64_t row = i * job->rows + span.batch * c->tokens + span.begin + chunk * CHUNK;
        run->kernels->row_dots(job->dB + row * run->N, z->dB, TILE, z->ones, 0, (int)n, lanes);
        run->kernels->row_dots(job->dC + row * run->N, z->dC, TILE, z->ones, 0, (int)n, lanes);
    }
    float *dinitial = run->grads.dinitial_state;
    if (dinitial == NULL) return;
    dinitial += s * each;
    if (!run->grads.accumulate) {
        mhla_scan_state_out(run, dinitial, z->g, slab);
        return;
    }
    for (int64_t ch = 0; ch < slab->count; ch++)
        for (int64_t k = 0; k < run->N; k++)
            dinitial[(slab->first + ch) * run->N + k] += z->g[(ch / TILE * run->N + k) * TILE + ch % TILE];
}

static void back_task(void *arg, int64_t i, int worker) {
    const back_job *job = arg;
    const mhla_scan_run *run = job->run;
    back_scratch *z = &job->scratch[worker];
    const int64_t S = mhla_scan_sequences(&run->call), part = i / run->slabs, at = i % run->slabs;
    const mhla_slab_range slab = mhla_scan_slab(run, at);
    mhla_scan_load(run, &z->f, &slab);
    memset(job->dA + i * SLAB * run->N, 0, sizeof(float) * (size_t)(SLAB * run->N));
    memset(job->dD + i * SLAB, 0, sizeof(float) * SLAB);
    memset(job->dbias + i * SLAB, 0, sizeof(float) * SLAB);
    for (int64_t s = part * S / job->parts; s < (part + 1) * S / job->parts; s++)
        back_sequence(job, z, &slab, s, at, i);
}

static void give(float *to, float value, int add) { *to = add ? *to + value : value; }

/* dA, dD and dbias of a slab: the parts in their order. */
static void sum_parts(void *arg, int64_t at, int worker) {
    (void)worker;
    const back_job *job = arg;
    const mhla_scan_run *run = job->run;
    const mhla_scan_grads *g = &run->grads;
    const mhla_slab_range slab = mhla_scan_slab(run, at);
    const int64_t N = run->N, step = run->slabs * SLAB;
    for (int64_t ch = 0; ch < slab.count; ch++) {
        const int64_t i = slab.first + ch;
        for (int64_t k = 0; g->dA && k < N; k++) {
            const float *from = job->dA + at * SLAB * N + (ch / TILE * N + k) * TILE + ch % TILE;
            float sum = 0.0f;
            for (int64_t part = 0; part < job->parts; part++) sum += from[part * step * N];
            give(g->dA + i * N + k, sum, g->accumulate);
        }
        float dD = 0.0f, dbias = 0.0f;
        for (int64_t part = 0; part < job->parts; part++) {
            dD += job->dD[part * step + at * SLAB + ch];
            dbias += job->dbias[part * step + at * SLAB + ch];
        }
        if (g->dD) give(g->dD + i, dD, g->accumulate);
        if (g->ddelta_bias) give(g->ddelta_bias + i, dbias, g->accumulate);
    }
}

/* dB or dC of a token: the slabs of each group in their order. */
static void sum_slabs(const back_job *job, float *to, const mhla_strides *strides, const float *from, int64_t row) {
    const mhla_scan_run *run = job->run;
    const int64_t N = run->N, T = run->call.tokens;
    if (to == NULL) return;
    for (int64_t g = 0; g < run->G; g++) {
        float *d = to + row / T * strides->batch + row % T * strides->token + g * strides->head;
        const float *first = from + (g * run->group_slabs * job->rows + row) * N;
        for (int64_t k = 0; k < N; k++) {
            float sum = first[k];
            for (int64_t i = 1; i < run->group_slabs; i++) sum += first[i * job->rows * N + k];
            give(d + k, sum, run->grads.accumulate);
        }
    }
}

static void sum_rows(void *arg, int64_t i, int worker) {
    (void)worker;
    const back_job *job = arg;
    const mhla_scan_grads *g = &job->run->grads;
    for (int64_t row = i * SUM_ROWS; row < (i + 1) * SUM_ROWS && row < job->rows; row++) {
        sum_slabs(job, g->dB, &g->dB_strides, job->dB, row);
        sum_slabs(job, g->dC, &g->dC_strides, job->dC, row);
    }
}

size_t mhla_scan_backward_workspace(const mhla_scan_call *call) {
    mhla_scan_run run;
    if (mhla_scan_check(&run, call) != MHLA_OK) return 0;
    mhla_carver c = {0};
    carve_job(&c, &run);
    return c.used;
}

mhla_status mhla_scan_backward(const mhla_scan_call *call, const mhla_scan_grads *grads, const float *dy,
                               const float *u, const float *delta, const float *A, const float *B, const float *C,
                               void *ws) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check_backward(&run, call, grads, dy, u, delta, A, B, C));
    void *own;
    mhla_carver count = {0};
    carve_job(&count, &run);
    MHLA_TRY(take_workspace(&run.ws, &own, ws, count.used));
    mhla_carver c = {.base = run.ws};
    back_job job = carve_job(&c, &run);
    mhla_parallel(run.call.context, job.parts * run.slabs, back_task, &job);
    mhla_parallel(run.call.context, run.slabs, sum_parts, &job);
    mhla_parallel(run.call.context, (job.rows + SUM_ROWS - 1) / SUM_ROWS, sum_rows, &job);
    mhla_free(own);
    return MHLA_OK;
}
