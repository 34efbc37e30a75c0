/* What tests of DiT and DiG share: a sample of noise, answers and gradients against the reference in double, other sizes, bits. */
#ifndef MHLA_TESTS_DIT_CASE_H
#define MHLA_TESTS_DIT_CASE_H

#include "support.h"

#include <mhla/diffusion.h>

#include "dit_ref.h"

enum { B = 2 };

/* Nothing silent: no zeros, no ones. */
static void stir(mhla_params *ps, rng *r) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        if (strcmp(p->name, "pos_embed") == 0) continue;
        const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(r);
        mhla_param_touch(p);
    }
}

typedef struct drawn {
    float *x, *dy;
    float times[B];
    int32_t labels[B];
    int64_t pixels, answer; /* numbers of one sample */
    int height, width;
} drawn;

static drawn draw(rng *r, const mhla_frame_config *c, int height, int width) {
    drawn s = {.times = {17.0f, 999.0f}, .labels = {1, c->classes}, .height = height, .width = width};
    s.pixels = (int64_t)c->channels * height * width;
    s.answer = s.pixels * (c->learn_sigma ? 2 : 1);
    s.x = new_random(r, B * s.pixels);
    s.dy = new_random(r, B * s.answer);
    return s;
}

static void drop(drawn *s) {
    free(s->x);
    free(s->dy);
}

static mhla_tensor *forward(mhla_tape *t, mhla_frame *m, const drawn *s, int recompute) {
    const mhla_frame_config *c = &m->config;
    return mhla_frame_forward(t, m, &(mhla_network_run){.recompute = recompute},
                              mhla_nn_input(t, s->x, MHLA_SHAPE(B, c->channels, s->height, s->width)), s->times,
                              s->labels);
}

static double ref_loss(const dit_ref *d, const drawn *s) {
    double sum = 0.0;
    for (int b = 0; b < B; b++) {
        double *y = dit_ref_answer(d, s->x + b * s->pixels, (double)s->times[b], s->labels[b]);
        for (int64_t i = 0; i < s->answer; i++) sum += y[i] * (double)s->dy[b * s->answer + i];
        free(y);
    }
    return sum;
}

static void check_answer(mhla_frame *m, const dit_ref *d, const drawn *s, mhla_tape *t, const char *what) {
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = forward(t, m, s, 0);
    ASSERT_OK(mhla_tape_status(t));
    float *want = new_poisoned(B * s->answer);
    for (int b = 0; b < B; b++) {
        double *exact = dit_ref_answer(d, s->x + b * s->pixels, (double)s->times[b], s->labels[b]);
        for (int64_t i = 0; i < s->answer; i++) want[b * s->answer + i] = (float)exact[i];
        free(exact);
    }
    ASSERT_CLOSE(y->data, want, B * s->answer, 5e-6, "%s", what);
    free(want);
}

/* Along a random direction of each parameter: (loss(p + h d) - loss(p - h d)) / 2h = grad . d, losses in double. */
static void check_gradients(const dit_ref *ref, const drawn *s, rng *r, const char *what) {
    const double h = 1e-6;
    for (int i = 0; i < mhla_params_count(ref->r.params); i++) {
        const mhla_param *p = mhla_params_at(ref->r.params, i);
        if (p->flags & MHLA_PARAM_FROZEN) continue;
        assert_true(p->has_grad);
        float *d = new_random(r, p->count);
        double along = 0.0, norm = 0.0, size = 0.0, two[2];
        for (int64_t k = 0; k < p->count; k++) {
            along += (double)p->grad[k] * (double)d[k];
            norm += (double)d[k] * (double)d[k];
            size += (double)p->grad[k] * (double)p->grad[k];
        }
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t k = 0; k < p->count; k++)
                ref->r.data[i][k] = (double)p->data[k] + (sign ? -h : h) * (double)d[k];
            two[sign] = ref_loss(ref, s);
        }
        for (int64_t k = 0; k < p->count; k++) ref->r.data[i][k] = (double)p->data[k];
        const double found = (two[0] - two[1]) / (2.0 * h);
        /* float32 makes errors of the gradient's size, not of its part along d */
        if (!(fabs(found - along) <= 1e-4 * fabs(along) + 1e-5 * sqrt(size * norm) + 1e-7))
            fail_msg("%s, %s: %.9g, by differences %.9g; the gradient is %g long", what, p->name, along, found,
                     sqrt(size));
        free(d);
    }
}

static void check_combination(const mhla_frame_kind *kind, const mhla_frame_config *c, uint64_t seed,
                              const char *what) {
    rng r = {seed};
    mhla_frame *m;
    mhla_tape *t;
    ASSERT_OK(mhla_frame_create(&m, kind, c));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_params_init(mhla_frame_params(m), 7));
    mhla_params *ps = mhla_frame_params(m);
    stir(ps, &r);
    drawn s = draw(&r, c, c->image[0], c->image[1]);
    dit_ref *ref = dit_ref_of(m, s.height, s.width);
    check_answer(m, ref, &s, t, what);
    /* recomputed blocks: the same bits */
    float **kept = new_bytes((size_t)mhla_params_count(ps) * sizeof *kept);
    for (int recompute = 1; recompute >= 0; recompute--) {
        mhla_params_clear_grads(ps);
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *y = forward(t, m, &s, recompute);
        ASSERT_OK(mhla_tape_backward_from(t, y, s.dy));
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            const size_t bytes = (size_t)p->count * sizeof(float);
            if (p->flags & MHLA_PARAM_FROZEN) continue;
            if (!recompute) assert_memory_equal(kept[i], p->grad, bytes);
            if (!recompute) free(kept[i]);
            if (recompute) memcpy(kept[i] = new_bytes(bytes), p->grad, bytes);
        }
    }
    check_gradients(ref, &s, &r, what);
    free(kept);
    drop(&s);
    dit_ref_free(ref);
    mhla_tape_free(t);
    mhla_frame_free(m);
}

/* Other sizes than in training: rectangular, larger, smaller, back again; a width of 7 is none. */
static void check_sizes(const mhla_frame_kind *kind, const mhla_frame_config *c, uint64_t seed) {
    static const int sides[][2] = {{8, 20}, {4, 6}, {12, 6}, {4, 16}, {8, 20}};
    rng r = {seed};
    mhla_frame *m;
    mhla_tape *t;
    ASSERT_OK(mhla_frame_create(&m, kind, c));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_params_init(mhla_frame_params(m), 7));
    stir(mhla_frame_params(m), &r);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        drawn s = draw(&r, c, sides[i][0], sides[i][1]);
        dit_ref *ref = dit_ref_of(m, s.height, s.width);
        check_answer(m, ref, &s, t, "another size");
        if (i == 0) {
            mhla_params_clear_grads(mhla_frame_params(m));
            mhla_tape_begin(t, MHLA_TAPE_RECORD);
            ASSERT_OK(mhla_tape_backward_from(t, forward(t, m, &s, 0), s.dy));
            check_gradients(ref, &s, &r, "another size");
        }
        dit_ref_free(ref);
        drop(&s);
    }
    drawn s = draw(&r, c, 6, 7);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(forward(t, m, &s, 0));
    assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "width is 7"));
    drop(&s);
    mhla_tape_free(t);
    mhla_frame_free(m);
}

/* ---- The same bits in any batch and with any number of threads ---- */

static void check_bits(const char *preset, const char *attention, const char *isa) {
    enum { N = 9 };
    static const int batches[] = {1, 2, 7, 8, 9};
    const char *const settings[] = {attention, "gate=true", "cpe=grid", "image=8,12", "depth=2", "dim=72"};
    mhla_model *m;
    rng r = {1};
    ASSERT_OK(mhla_set_isa(isa));
    ASSERT_OK(mhla_model_create(&m, preset, settings, 6, 1));
    stir(m->params, &r);
    const int64_t n = (int64_t)3 * 8 * 12;
    float *x = new_random(&r, N * n), *first = new_poisoned(N * n), *y = new_poisoned(N * n), times[N];
    int32_t labels[N];
    for (int i = 0; i < N; i++) {
        times[i] = 111.0f * (float)i;
        labels[i] = (i * 3) % 11;
    }
    for (int threads = 1; threads <= 64; threads = threads < 3 ? threads + 1 : 64 + (threads == 64)) {
        mhla_context *context = new_context(threads);
        mhla_model_set_context(m, context);
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            for (int at = 0; at < N; at += batches[b])
                ASSERT_OK(mhla_model_denoise(m, y + at * n,
                                             &(mhla_denoise){.size = sizeof(mhla_denoise),
                                                             .count = N - at < batches[b] ? N - at : batches[b],
                                                             .x = x + at * n,
                                                             .times = times + at,
                                                             .labels = labels + at}));
            if (threads == 1 && b == 0) memcpy(first, y, sizeof *y * (size_t)(N * n));
            assert_memory_equal(first, y, sizeof *y * (size_t)(N * n));
        }
        mhla_model_set_context(m, NULL);
        mhla_context_free(context);
    }
    free(x);
    free(y);
    free(first);
    mhla_model_free(m);
}

#endif
