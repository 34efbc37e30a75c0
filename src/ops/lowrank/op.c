/* Heads to threads: what each stage of forward and backward is, the workspace, and who does which head. A thread takes a
 * whole head; heads that would leave threads idle are split by blocks, with the same arithmetic. */
#include "ops/lowrank/head.h"

enum {
    BLOCK = 512, /* tokens whose features are kept at a time: in L2, beside the summary */
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A row stride that is an odd number of cache lines, so that the same column of many rows spreads over all sets. */
static int64_t odd_lines(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

static mhla_low_geometry make_geometry(const mhla_run *run, int backward) {
    const mhla_plan_desc *d = &run->plan->d;
    mhla_low_geometry g = {.K = d->key_dim, .V = d->value_dim, .rotated = d->rope != MHLA_ROPE_NONE};
    run->kernels->panels(&g.pv, g.V);
    run->kernels->panels(&g.pk, g.K);
    g.T = run->call.tokens;
    g.blocks = (g.T + BLOCK - 1) / BLOCK;
    g.most = (g.T + g.blocks - 1) / g.blocks;
    g.ldk = odd_lines(g.K);
    g.ldv = odd_lines(g.V);
    g.size = backward ? (int64_t)g.V * mhla_panels_width(&g.pk) : (int64_t)g.K * mhla_panels_width(&g.pv);
    g.ks = round_up(g.size, 16);
    g.vs = g.ks + round_up(g.K, 16);
    g.ld = g.vs + round_up(g.V, 16);
    return g;
}

typedef struct low_job {
    const mhla_run *run;
    const mhla_lowrank *op;
    mhla_low_geometry g;
    mhla_low_focus focus;
    mhla_low_buffers *buffers; /* [threads] */
    mhla_low_memory *memory;   /* [threads] */
    const mhla_low_stage *stages;
    int n_stages, stage;
    int team;      /* heads of a batch entry that a thread takes one after the other */
    int64_t first; /* head, or batch entry, of task 0 */
    int64_t group; /* focused, backward: batch entries whose gradients are kept at a time */
} low_job;

/* ---- Workspace ---- */

static mhla_low_buffers make_buffers(mhla_carver *w, const mhla_low_geometry *g, int backward) {
    mhla_low_buffers b = {.queries_of = -1, .keys_of = -1};
    const int64_t most = round_up(g->most, 16), piece = most < MHLA_LOW_PIECE ? most : MHLA_LOW_PIECE;
    b.q = mhla_carve_floats(w, most * g->ldk);
    b.k = mhla_carve_floats(w, most * g->ldk);
    b.q_plain = g->rotated ? mhla_carve_floats(w, most * g->ldk) : b.q;
    b.k_plain = g->rotated ? mhla_carve_floats(w, most * g->ldk) : b.k;
    b.v = mhla_carve_floats(w, piece * g->ldv);
    float **rows[] = {&b.x, &b.alpha, &b.ratio, &b.dalpha, &b.dbeta, &b.dx, &b.ones};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) *rows[i] = mhla_carve_floats(w, most);
    if (backward) {
        b.g = mhla_carve_floats(w, piece * g->ldv);
        b.h = mhla_carve_floats(w, piece * g->ldk);
    }
    for (int64_t i = 0; w->base && i < most; i++) b.ones[i] = 1.0f;
    return b;
}

static mhla_low_memory make_memory(mhla_carver *w, const mhla_low_geometry *g, int weighted, int backward) {
    mhla_low_memory m = {.S = mhla_carve_floats(w, g->blocks * g->ld)};
    if (backward) {
        m.D = mhla_carve_floats(w, g->blocks * g->ld);
        m.t = mhla_carve_floats(w, (int64_t)g->K * mhla_panels_width(&g->pv));
    }
    if (!weighted) return m;
    float **per_block[] = {&m.peak, &m.total, &m.shift};
    for (size_t i = 0; i < 3; i++) *per_block[i] = mhla_carve_floats(w, g->blocks);
    m.mean = mhla_carve_floats(w, g->blocks * g->ldk);
    m.a = mhla_carve_floats(w, g->T);
    if (backward) {
        m.dmean = mhla_carve_floats(w, g->blocks * g->ldk);
        m.da = mhla_carve_floats(w, g->T);
    }
    return m;
}

static mhla_low_focus make_focus(mhla_carver *w, const low_job *job, int backward) {
    const mhla_low_geometry *g = &job->g;
    const int64_t H = job->run->plan->d.heads, tokens = job->run->call.batch * g->T;
    mhla_low_focus f = {.inverse = mhla_carve_floats(w, H * g->ldk)};
    for (int i = 0; i < 2; i++) {
        f.reach[i] = mhla_carve_floats(w, tokens);
        f.gain[i] = mhla_carve_floats(w, tokens);
        f.unit[i] = mhla_carve_floats(w, tokens);
        if (!backward) continue;
        f.df[i] = mhla_carve_floats(w, job->group * H * g->T * g->ldk);
        f.along[i] = mhla_carve_floats(w, job->group * H * g->T);
    }
    if (!backward) return f;
    f.sums = mhla_carve_floats(w, job->group * g->blocks * H * g->ldk);
    f.total = mhla_carve_floats(w, H * g->ldk);
    return f;
}

/* Carves everything; with a counting carver this is the size of the workspace. */
static low_job make_job(const mhla_run *run, const mhla_lowrank *op, mhla_carver *w, int backward) {
    const int threads = run->threads;
    low_job job = {.run = run, .op = op, .g = make_geometry(run, backward)};
    job.group = run->call.batch < threads ? run->call.batch : threads;
    job.buffers = mhla_carve(w, (size_t)threads * sizeof *job.buffers);
    job.memory = mhla_carve(w, (size_t)threads * sizeof *job.memory);
    for (int i = 0; i < threads; i++) {
        const mhla_low_buffers buffers = make_buffers(w, &job.g, backward);
        const mhla_low_memory memory = make_memory(w, &job.g, op->weighted, backward);
        if (w->base == NULL) continue;
        job.buffers[i] = buffers;
        job.memory[i] = memory;
    }
    if (op->focused) job.focus = make_focus(w, &job, backward);
    return job;
}

size_t mhla_lowrank_workspace(const mhla_run *run, const mhla_lowrank *op, int backward) {
    mhla_carver w = {0};
    make_job(run, op, &w, backward);
    return w.used;
}

/* ---- Heads to threads ---- */

/* Rows of one token lie beside each other, and what comes next can be fetched: all heads of an entry are one thread's,
 * unless that leaves others idle. */
static int choose_team(const mhla_run *run, int64_t heads) {
    const int H = run->plan->d.heads;
    return heads / H % run->threads == 0 ? H : 1;
}

static mhla_low_head head_at(const low_job *job, int64_t index, int worker, int64_t memory) {
    const int64_t head = job->first + index, H = job->run->plan->d.heads;
    return (mhla_low_head){.run = job->run,
                           .op = job->op,
                           .g = &job->g,
                           .focus = &job->focus,
                           .buf = &job->buffers[worker],
                           .m = &job->memory[memory],
                           .b = head / H,
                           .h = head % H,
                           .next = -1};
}

static void whole_team(void *arg, int64_t task, int worker) {
    const low_job *job = arg;
    for (int i = 0; i < job->team; i++) {
        mhla_low_head x = head_at(job, task * job->team + i, worker, worker);
        if (i + 1 < job->team) x.next = x.h + 1;
        for (int s = 0; s < job->n_stages; s++) {
            for (int64_t b = 0; b < job->g.blocks; b++) job->stages[s].step(&x, b);
            if (job->stages[s].join) job->stages[s].join(&x);
        }
    }
}

static void split_step(void *arg, int64_t task, int worker) {
    const low_job *job = arg;
    const int64_t i = task / job->g.blocks;
    const mhla_low_head x = head_at(job, i, worker, i);
    job->stages[job->stage].step(&x, task % job->g.blocks);
}

static void split_join(void *arg, int64_t i, int worker) {
    const low_job *job = arg;
    const mhla_low_head x = head_at(job, i, worker, i);
    job->stages[job->stage].join(&x);
}

/* All stages on `count` heads from `first` on. */
static void run_heads(low_job *job, int64_t first, int64_t count) {
    const mhla_context *context = job->run->call.context;
    const int64_t left = job->g.blocks > 1 ? count % job->run->threads : 0;
    job->first = first;
    job->team = choose_team(job->run, count);
    mhla_parallel(context, (count - left) / job->team, whole_team, job);
    job->first = first + count - left;
    for (job->stage = 0; left > 0 && job->stage < job->n_stages; job->stage++) {
        mhla_parallel(context, left * job->g.blocks, split_step, job);
        if (job->stages[job->stage].join) mhla_parallel(context, left, split_join, job);
    }
}

/* ---- Entry points ---- */

static void norms_task(void *arg, int64_t task, int worker) {
    const low_job *job = arg;
    (void)worker;
    mhla_low_focus_norms(job->run, &job->g, &job->focus, job->first + task / job->g.blocks, task % job->g.blocks);
}

static void finish_task(void *arg, int64_t task, int worker) {
    const low_job *job = arg;
    mhla_low_focus_finish(job->run, &job->g, &job->focus, job->buffers[worker].x, job->first + task / job->g.blocks,
                          task % job->g.blocks);
}

mhla_status mhla_lowrank_forward(const mhla_run *run, const mhla_lowrank *op) {
    static const mhla_low_stage plain[] = {{mhla_low_summary_step, mhla_low_summary_join},
                                           {mhla_low_output_step, NULL}},
                                weighted[] = {{mhla_low_mean_step, mhla_low_mean_join},
                                              {mhla_low_summary_step, mhla_low_summary_join},
                                              {mhla_low_output_step, NULL}};
    mhla_carver w = {.base = run->ws};
    low_job job = make_job(run, op, &w, 0);
    const int64_t B = run->call.batch;
    job.stages = op->weighted ? weighted : plain;
    job.n_stages = op->weighted ? 3 : 2;
    if (op->focused) {
        mhla_low_focus_inverse(run, &job.g, &job.focus);
        mhla_parallel(run->call.context, B * job.g.blocks, norms_task, &job);
    }
    run_heads(&job, 0, B * run->plan->d.heads);
    return MHLA_OK;
}

mhla_status mhla_lowrank_backward(const mhla_run *run, const mhla_lowrank *op) {
    static const mhla_low_stage plain[] = {{mhla_low_summary_step, mhla_low_summary_join},
                                           {mhla_low_query_step, mhla_low_query_join},
                                           {mhla_low_key_step, NULL}},
                                weighted[] = {{mhla_low_mean_step, mhla_low_mean_join},
                                              {mhla_low_summary_step, mhla_low_summary_join},
                                              {mhla_low_query_step, mhla_low_query_join},
                                              {mhla_low_key_step, NULL},
                                              {mhla_low_weight_step, mhla_low_weight_join},
                                              {mhla_low_spread_step, NULL}};
    mhla_carver w = {.base = run->ws};
    low_job job = make_job(run, op, &w, 1);
    const int64_t B = run->call.batch, H = run->plan->d.heads;
    job.stages = op->weighted ? weighted : plain;
    job.n_stages = op->weighted ? 6 : 3;
    if (!op->focused) {
        run_heads(&job, 0, B * H);
        return MHLA_OK;
    }
    mhla_low_focus_inverse(run, &job.g, &job.focus);
    for (int64_t b = 0; b < B; b += job.group) { /* the map needs all heads of a token: some entries at a time */
        const int64_t entries = B - b < job.group ? B - b : job.group;
        job.focus.first = job.first = b;
        mhla_parallel(run->call.context, entries * job.g.blocks, norms_task, &job);
        run_heads(&job, b * H, entries * H);
        job.first = b;
        mhla_parallel(run->call.context, entries * job.g.blocks, finish_task, &job);
        mhla_low_focus_add(run, &job.g, &job.focus, entries);
    }
    mhla_low_focus_store(run, &job.g, &job.focus);
    return MHLA_OK;
}
