/* Work on rows for whoever keeps states of sequences: heads mapped and turned, each row by a position of its own, and what
 * logits say about tokens. No gradients, no tape. */
#include <math.h>
#include <string.h>

#include "nn/op.h"

/* ---- Turning ---- */

enum { ROWS = 16, MAX_K = 1024 }; /* of a task; of a plan */

typedef struct turn {
    const mhla_kernels *kernels;
    mhla_turn a;
    float *y;
    const float *x;
    int64_t ldy, ldx, rows;
} turn;

/* The kernel fills rows up to a multiple of 16: heads of other sizes go through a line of their own. */
static void turn_task(void *arg, int64_t task, int worker) {
    const turn *p = arg;
    (void)worker;
    const int64_t first = task * ROWS, n = p->rows - first < ROWS ? p->rows - first : ROWS;
    const int K = p->a.head_dim, whole = K % 16 == 0;
    _Alignas(64) float line[MAX_K + 16];
    mhla_pack k = {.ld = whole ? p->ldy : 0,
                   .dst = line,
                   .n = whole ? (int)n : 1,
                   .K = K,
                   .feature = p->a.feature,
                   .eps = p->a.eps,
                   .rope = p->a.rope,
                   .rope_dim = p->a.rope_dim,
                   .cos = p->a.cos,
                   .sin = p->a.sin};
    for (int64_t h = 0; h < p->a.heads; h++)
        for (int64_t r = first; r < first + n; r += k.n) {
            float *y = p->y + r * p->ldy + h * K;
            k.src = (mhla_rows){(void *)(uintptr_t)(p->x + r * p->ldx + h * K), NULL, p->ldx, MHLA_F32};
            k.rope_row = r;
            if (whole) k.dst = y;
            p->kernels->pack(&k);
            if (!whole) memcpy(y, line, sizeof *y * (size_t)K);
        }
}

void mhla_nn_turn(const mhla_context *context, const mhla_turn *a, float *y, int64_t ldy, const float *x, int64_t ldx,
                  int64_t rows) {
    turn p = {mhla_kernels_get(), *a, y, x, ldy, ldx, rows};
    mhla_parallel(context, (rows + ROWS - 1) / ROWS, turn_task, &p);
}

/* ---- Likelihoods ---- */

typedef struct likelihood {
    const mhla_kernels *kernels;
    float *logprobs;
    int32_t *best;
    const float *logits;
    const int32_t *targets;
    int64_t N;
} likelihood;

/* log p(target) = x_target - max - log sum exp(x - max) */
static void likelihood_task(void *arg, int64_t r, int worker) {
    const likelihood *p = arg;
    (void)worker;
    const float *x = p->logits + r * p->N;
    int64_t most = 0;
    for (int64_t j = 1; j < p->N; j++)
        if (x[j] > x[most]) most = j;
    if (p->best) p->best[r] = (int32_t)most;
    if (p->logprobs == NULL) return;
    p->logprobs[r] = 0.0f;
    if (p->targets[r] < 0) return;
    double sum = 0.0;
    for (int64_t j = 0; j < p->N;) {
        float e[512];
        const int64_t n = p->N - j < 512 ? p->N - j : 512;
        for (int64_t i = 0; i < n; i++) e[i] = x[j + i] - x[most];
        p->kernels->vexp(e, e, n);
        for (int64_t i = 0; i < n; i++) sum += (double)e[i];
        j += n;
    }
    p->logprobs[r] = (float)((double)x[p->targets[r]] - (double)x[most] - log(sum));
}

void mhla_nn_likelihoods(const mhla_context *context, float *logprobs, int32_t *best, const float *logits,
                         const int32_t *targets, int64_t rows, int64_t N) {
    likelihood p = {mhla_kernels_get(), targets ? logprobs : NULL, best, logits, targets, N};
    mhla_parallel(context, rows, likelihood_task, &p);
}
