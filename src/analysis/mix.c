/* Mixing matrices of an analysis: as they are and as training began, where their weight lies, and what they say of one axis alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/look.h"
#include "core/status.h"

int mhla_mix_places(const mhla_mix_analysis *x, int axis) {
    return axis == MHLA_MIX_FRAMES ? (x->frames ? x->frames : 1) : x->grid[axis - MHLA_MIX_ROWS];
}

/* Where block i of the matrix lies. */
static void place_of(int64_t at[MHLA_MIX_AXES], const mhla_mix_analysis *x, int64_t i) {
    const int64_t frame = (int64_t)x->grid[0] * x->grid[1], p = i - x->first;
    at[MHLA_MIX_FRAMES] = p / frame;
    at[MHLA_MIX_ROWS] = p % frame / x->grid[1];
    at[MHLA_MIX_COLUMNS] = p % x->grid[1];
}

/* Shares of the rows of m [M,M] by distance between blocks; a class token's row and column stay out. */
static void share_mix(double *own, double *near, double *far, const float *m, const mhla_mix_analysis *x, int causal) {
    const int64_t M = x->blocks;
    int64_t rows = 0;
    *own = *near = *far = 0.0;
    for (int64_t i = x->first; i < M; i++) {
        double part[3] = {0.0, 0.0, 0.0};
        int64_t p[MHLA_MIX_AXES], q[MHLA_MIX_AXES];
        place_of(p, x, i);
        for (int64_t b = x->first; b < (causal ? i + 1 : M); b++) {
            int64_t d2 = 0;
            place_of(q, x, b);
            for (int a = 0; a < MHLA_MIX_AXES; a++) d2 += (p[a] - q[a]) * (p[a] - q[a]);
            part[d2 == 0 ? 0 : d2 <= 2 ? 1 : 2] += fmax((double)m[i * M + b], 0.0);
        }
        const double all = part[0] + part[1] + part[2];
        if (!(all > 0.0)) continue;
        rows++;
        *own += part[0] / all;
        *near += part[1] / all;
        *far += part[2] / all;
    }
    *own = rows ? *own / (double)rows : NAN;
    *near = rows ? *near / (double)rows : NAN;
    *far = rows ? *far / (double)rows : NAN;
}

void mhla_mix_along(float *share, const float *m, const mhla_mix_analysis *x, int axis) {
    const int64_t M = x->blocks;
    const int n = mhla_mix_places(x, axis);
    int64_t rows = 0;
    memset(share, 0, (size_t)n * (size_t)n * sizeof *share);
    for (int64_t i = x->first; i < M; i++) {
        int64_t p[MHLA_MIX_AXES], q[MHLA_MIX_AXES];
        double all = 0.0;
        place_of(p, x, i);
        rows += p[axis] == 0;
        for (int64_t b = x->first; b < M; b++) all += fmax((double)m[i * M + b], 0.0);
        for (int64_t b = x->first; b < M && all > 0.0; b++) {
            place_of(q, x, b);
            share[p[axis] * n + q[axis]] += (float)(fmax((double)m[i * M + b], 0.0) / all);
        }
    }
    for (int i = 0; i < n * n; i++) share[i] /= (float)rows;
}

/* As its config would make it: in its own place, which then gets back what it had. */
mhla_status mhla_mix_read(mhla_analysis *a, mhla_found_layer *l, mhla_param *p) {
    const size_t bytes = (size_t)p->count * sizeof(float);
    float *before = malloc(bytes), *after = malloc(bytes);
    l->mix = (mhla_mix_analysis){.size = sizeof l->mix, .before = before, .after = after};
    if (before == NULL || after == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %s", p->name);
    memcpy(after, p->data, bytes);
    const mhla_status status = mhla_param_init(p, 0);
    memcpy(before, p->data, bytes);
    memcpy(p->data, after, bytes);
    mhla_param_touch(p);
    MHLA_TRY(status);
    mhla_mix_analysis *x = &l->mix;
    x->blocks = p->shape[0];
    const int causal = (p->flags & MHLA_PARAM_CAUSAL) != 0;
    x->first = causal ? 0 : a->first;
    x->grid[0] = causal ? (int)x->blocks : a->blocks[0];
    x->grid[1] = causal ? 1 : a->blocks[1];
    x->frames = causal ? 0 : a->frame_blocks;
    share_mix(&x->own[0], &x->near[0], &x->far[0], before, x, causal);
    share_mix(&x->own[1], &x->near[1], &x->far[1], after, x, causal);
    return MHLA_OK;
}
