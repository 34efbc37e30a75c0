/* The benchmark's operators of Mamba, at the sizes of the 340M language model: selective scan and short convolution. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { CHANNELS = 2048, STATES = 16, WIDTH = 4 };

static const struct mamba_shape {
    const char *name;
    int64_t batch, tokens;
    int scan, backward;
} rows[] = {
    {"scan-2048", 1, 2048, 1, 0}, {"scan-2048-both", 1, 2048, 1, 1}, {"scan-1", 1, 1, 1, 0},
    {"conv-2048", 1, 2048, 0, 0}, {"conv-2048-both", 1, 2048, 0, 1},
};
enum { ROWS = sizeof rows / sizeof *rows, ARRAYS = 16 };

int bench_mamba_has(const char *shape) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, shape) == 0) return 1;
    return 0;
}

typedef struct work {
    mhla_scan_call scan;
    mhla_short_conv_call conv;
    mhla_scan_grads scan_grads;
    mhla_short_conv_grads conv_grads;
    float *memory[ARRAYS];
    int count, backward;
    float *u, *delta, *A, *B, *C, *y, *dy, *w;
} work;

/* An array of random numbers from low to high; NULL without memory. */
static float *array(work *k, int64_t count, float low, float high, uint64_t *seed) {
    float *x = aligned_new((size_t)count * sizeof *x);
    k->memory[k->count++] = x;
    if (x == NULL) return NULL;
    random_fill(x, MHLA_F32, count, seed);
    for (int64_t i = 0; i < count; i++) x[i] = low + (high - low) * 0.5f * (x[i] + 1.0f);
    return x;
}

static mhla_status run_scan(void *arg) {
    const work *k = arg;
    const mhla_status status = mhla_scan_forward(&k->scan, k->y, k->u, k->delta, k->A, k->B, k->C, NULL);
    if (status != MHLA_OK || !k->backward) return status;
    return mhla_scan_backward(&k->scan, &k->scan_grads, k->dy, k->u, k->delta, k->A, k->B, k->C, NULL);
}

static mhla_status run_conv(void *arg) {
    const work *k = arg;
    const mhla_status status = mhla_short_conv_forward(&k->conv, k->y, k->u, k->w, NULL);
    if (status != MHLA_OK || !k->backward) return status;
    return mhla_short_conv_backward(&k->conv, &k->conv_grads, k->dy, k->u, k->w, NULL);
}

static mhla_status make(work *k, const struct mamba_shape *s, const mhla_context *context) {
    uint64_t seed = 1;
    const int64_t tokens = s->batch * s->tokens, all = tokens * CHANNELS, states = tokens * STATES;
    *k = (work){.backward = s->backward};
    k->u = array(k, all, -1.0f, 1.0f, &seed);
    k->delta = array(k, all, -4.0f, 0.0f, &seed);
    k->A = array(k, CHANNELS * STATES, -16.0f, -0.1f, &seed);
    k->B = array(k, states, -1.0f, 1.0f, &seed);
    k->C = array(k, states, -1.0f, 1.0f, &seed);
    k->y = array(k, all, 0.0f, 0.0f, &seed);
    k->dy = array(k, all, -1.0f, 1.0f, &seed);
    k->w = array(k, CHANNELS * WIDTH, -1.0f, 1.0f, &seed);
    float *z = array(k, all, -1.0f, 1.0f, &seed), *channel = array(k, CHANNELS, -1.0f, 1.0f, &seed);
    float *grads[] = {array(k, all, 0.0f, 0.0f, &seed),    array(k, all, 0.0f, 0.0f, &seed),
                      array(k, all, 0.0f, 0.0f, &seed),    array(k, states, 0.0f, 0.0f, &seed),
                      array(k, states, 0.0f, 0.0f, &seed), array(k, CHANNELS * (STATES + 2), 0.0f, 0.0f, &seed)};
    for (int i = 0; i < k->count; i++)
        if (k->memory[i] == NULL) return MHLA_ENOMEM;
    k->scan = (mhla_scan_call){.size = sizeof k->scan,
                               .context = context,
                               .batch = s->batch,
                               .tokens = s->tokens,
                               .channels = CHANNELS,
                               .states = STATES,
                               .delta_softplus = 1,
                               .D = channel,
                               .delta_bias = channel,
                               .z = z};
    k->conv = (mhla_short_conv_call){.size = sizeof k->conv,
                                     .context = context,
                                     .batch = s->batch,
                                     .tokens = s->tokens,
                                     .channels = CHANNELS,
                                     .width = WIDTH,
                                     .activation = MHLA_ACT_SILU,
                                     .bias = channel};
    k->scan_grads = (mhla_scan_grads){.size = sizeof k->scan_grads,
                                      .du = grads[0],
                                      .ddelta = grads[1],
                                      .dz = grads[2],
                                      .dB = grads[3],
                                      .dC = grads[4],
                                      .dA = grads[5],
                                      .dD = grads[5] + CHANNELS * STATES,
                                      .ddelta_bias = grads[5] + CHANNELS * (STATES + 1)};
    k->conv_grads = (mhla_short_conv_grads){
        .size = sizeof k->conv_grads, .dx = grads[0], .dw = grads[5], .dbias = grads[5] + CHANNELS * WIDTH};
    return MHLA_OK;
}

/* Of a scan, for each token, channel and state: an exponential as two, and six for d A, e h + x B, + h C. Backward as twice that. */
static double flops_of(const struct mamba_shape *s) {
    const double each = s->scan ? 8.0 * STATES : 2.0 * WIDTH + 4.0;
    return each * (double)(s->batch * s->tokens) * CHANNELS * (s->backward ? 3.0 : 1.0);
}

mhla_status bench_mamba(bench *b) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < ROWS && status == MHLA_OK; i++) {
        const struct mamba_shape *s = &rows[i];
        if (!bench_wants(b, "mamba", s->name) || !(b->dtypes & 1 << MHLA_F32)) continue;
        bench_row row = {.group = "mamba", .shape = s->name, .variant = "", .dtype = MHLA_F32, .flops = flops_of(s)};
        snprintf(row.sizes, sizeof row.sizes, "%lldx%lldx%d, %d %s", (long long)s->batch, (long long)s->tokens,
                 CHANNELS, s->scan ? STATES : WIDTH, s->scan ? "states" : "taps");
        work k;
        status = make(&k, s, b->context);
        if (status == MHLA_OK) {
            row.workspace =
                s->scan
                    ? (s->backward ? mhla_scan_backward_workspace : mhla_scan_forward_workspace)(&k.scan)
                    : (s->backward ? mhla_short_conv_backward_workspace : mhla_short_conv_forward_workspace)(&k.conv);
            status = timing_run(&row.time, s->scan ? run_scan : run_conv, &k, b->context, MHLA_F32, b->seconds,
                                bench_rates(b));
        }
        if (status == MHLA_OK) bench_report(b, &row);
        for (int j = 0; j < k.count; j++) free(k.memory[j]);
    }
    return status;
}
