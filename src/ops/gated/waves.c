/* The order of a backward pass: units in waves whose states fit into WAVE floats, or one by one; in each, states front to back,
 * their gradients back to front, then all chunks at once. And what the passes of all recurrences share. */
#include "ops/gated/gated.h"

enum { WAVE = 4 << 20 };

int64_t mhla_gated_unit_chunks(const mhla_gated *w, int64_t unit) {
    const int64_t s = unit / w->G;
    return w->first[s + 1] - w->first[s];
}

/* A unit's states, of all its heads: [R][chunks + 1]. The same for all units of a sequence. */
static int64_t sequence_states(const mhla_gated *w, int64_t s) {
    const mhla_call *c = &w->run->call;
    const int64_t T = mhla_seq_end(c, s) - mhla_seq_begin(c, s);
    return ((T + w->C - 1) / w->C + 1) * w->R;
}

/* One past the last unit of the wave that begins with `begin`; its states. */
static int64_t wave_end(const mhla_gated *w, int64_t begin, int64_t *states) {
    const int64_t floats = w->E + (w->delta ? w->C * w->ldv : 0);
    int64_t end = begin;
    *states = 0;
    while (end < w->N * w->G) {
        const int64_t more = sequence_states(w, end / w->G);
        if (end > begin && (*states + more) * floats > WAVE) break;
        *states += more;
        end++;
    }
    return end;
}

int64_t mhla_gated_state_number(const mhla_gated_back *job, int64_t unit, int64_t r, int64_t c) {
    return job->unit_states[unit - job->begin] + r * (mhla_gated_unit_chunks(job->w, unit) + 1) + c;
}

/* ---- What the passes share ---- */

void mhla_gated_put_decay(const mhla_gated *w, mhla_gated_scratch *z, const mhla_gated_chunk *c, int64_t h,
                          const float *x, const float *y, int64_t ldy, const float *early, const float *late,
                          float through) {
    const mhla_kernels *k = w->run->kernels;
    const mhla_grads *grads = &w->run->grads;
    float *below = z->sums, *dg = z->db; /* below[u] = sum_{s>=t} x[s][u] y[s][u] */
    memset(below, 0, (size_t)w->ldc * sizeof *below);
    for (int t = c->n - 1; t >= 0; t--) {
        const mhla_blend add = {
            .n = 1, .cols = t, .y = below, .x = x + t * w->ldc, .z = y + t * ldy, .alpha = 1.0f, .add = 1};
        k->blend(&add);
        k->row_dots(&dg[t], below, 0, z->ones, 0, 1, t);
    }
    float sum = through;
    for (int t = 0; t < c->n; t++) {
        dg[t] += sum;
        sum += early[t];
    }
    const mhla_rows out = mhla_gated_rows(c, grads->ddecay, MHLA_F32, &grads->ddecay_strides, h);
    sum = 0.0f;
    for (int t = c->n - 1; t >= 0; t--) {
        sum += late[t];
        float *to = (float *)out.base + t * out.stride;
        *to = dg[t] + sum + (grads->accumulate ? *to : 0.0f);
    }
}

void mhla_gated_square_backward(const mhla_gated *w, mhla_gated_scratch *z, int n) {
    mhla_gated_times_lower(w, z->dq, z->M, z->k, n, 1);
    mhla_gated_times_turned(w, z, z->dk, z->M, z->q, n, 1, 1);
}

/* ---- Waves ---- */

static void run_states(const mhla_gated_back *job, int64_t i, int worker, int back) {
    const mhla_gated *w = job->w;
    const int panels = job->passes->panels->count, piece = (int)(i % job->pieces);
    const int64_t r = i / job->pieces % w->R, unit = job->begin + i / job->pieces / w->R;
    job->passes->states(job, &job->scratch[worker], unit, r, piece * panels / job->pieces,
                        (piece + 1) * panels / job->pieces, back);
}

static void run_forward(void *arg, int64_t i, int worker) { run_states(arg, i, worker, 0); }
static void run_back(void *arg, int64_t i, int worker) { run_states(arg, i, worker, 1); }

static void store_keys(const mhla_gated *w, const mhla_gated_chunk *c, int64_t key_head, float *to,
                       const mhla_strides *strides, const float *from) {
    if (to == NULL) return;
    const mhla_rows out = mhla_gated_rows(c, to, MHLA_F32, strides, key_head);
    w->run->kernels->store_rows(&out, from, w->ldk, c->n, w->K, w->run->grads.accumulate);
}

/* Chunk i of the wave's units. */
static void run_chunk(void *arg, int64_t i, int worker) {
    const mhla_gated_back *job = arg;
    const mhla_gated *w = job->w;
    const mhla_grads *grads = &w->run->grads;
    mhla_gated_scratch *z = &job->scratch[worker];
    int64_t unit = job->begin;
    for (; i >= mhla_gated_unit_chunks(w, unit); unit++) i -= mhla_gated_unit_chunks(w, unit);
    const mhla_gated_chunk c = mhla_gated_at(w, w->first[unit / w->G] + i);
    job->passes->chunk(job, z, &c, unit);
    store_keys(w, &c, unit % w->G, grads->dq, &grads->dq_strides, z->dq);
    store_keys(w, &c, unit % w->G, grads->dk, &grads->dk_strides, z->dk);
}

static mhla_gated_back carve_job(mhla_carver *c, const mhla_gated *w) {
    mhla_gated_back job = {.w = w, .scratch = mhla_gated_carve_all(c, w, 1)};
    int64_t most = 0, units = 0;
    for (int64_t begin = 0; begin < w->N * w->G;) {
        int64_t states;
        const int64_t end = wave_end(w, begin, &states);
        if (states > most) most = states;
        if (end - begin > units) units = end - begin;
        begin = end;
    }
    job.unit_states = mhla_carve(c, (size_t)(units + 1) * sizeof *job.unit_states);
    job.S = mhla_carve_floats(c, most * w->E);
    job.D = mhla_carve_floats(c, most * w->E);
    if (w->delta) {
        job.Y = mhla_carve_floats(c, most * w->C * w->ldv);
        job.dX = mhla_carve_floats(c, most * w->C * w->ldv);
    }
    return job;
}

size_t mhla_gated_backward_workspace(const mhla_run *run) {
    mhla_carver c = {0};
    mhla_gated w;
    mhla_gated_make(&w, run, &c, 1);
    carve_job(&c, &w);
    return c.used;
}

mhla_status mhla_gated_run_backward(const mhla_run *run, mhla_gated_passes *passes) {
    MHLA_TRY(mhla_gated_check_decay(run));
    mhla_carver c = {.base = run->ws};
    mhla_gated w;
    mhla_gated_make(&w, run, &c, 1);
    passes->panels = w.delta ? &w.pv : &w.pk;
    mhla_gated_back job = carve_job(&c, &w);
    job.passes = passes;
    mhla_gated_score_all(&w, job.scratch, passes->score);
    for (job.begin = 0; job.begin < w.N * w.G; job.begin = job.end) {
        int64_t states, chunks = 0, before = 0;
        job.end = wave_end(&w, job.begin, &states);
        for (int64_t unit = job.begin; unit < job.end; unit++) {
            job.unit_states[unit - job.begin] = before;
            before += sequence_states(&w, unit / w.G);
            chunks += mhla_gated_unit_chunks(&w, unit);
        }
        const int64_t heads = (job.end - job.begin) * w.R;
        job.pieces = mhla_gated_pieces(heads, passes->panels->count, run->threads);
        mhla_parallel(run->call.context, heads * job.pieces, run_forward, &job);
        mhla_parallel(run->call.context, heads * job.pieces, run_back, &job);
        mhla_parallel(run->call.context, chunks, run_chunk, &job);
    }
    return MHLA_OK;
}
