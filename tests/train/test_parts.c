/* Parts of a batch: their gradients are added up in the order of the tree, whatever is missing; a shared optimiser does, stretch by
 * stretch, what one alone does; running statistics follow part after part. */
#include "train/parts.h"

#include "core/memory.h"
#include "nn/op.h"
#include "support.h"

enum { BIG = 40000, SMALL = 7, MOST = 13 };

static mhla_params *make(void) {
    mhla_params *ps;
    ASSERT_OK(mhla_params_create(&ps));
    mhla_params_add(ps, "big", MHLA_SHAPE(BIG), MHLA_PARAM_DECAY, MHLA_ZERO);
    mhla_params_add(ps, "small", MHLA_SHAPE(SMALL), 0, MHLA_ZERO);
    mhla_params_add(ps, "frozen", MHLA_SHAPE(SMALL), MHLA_PARAM_FROZEN, MHLA_ZERO);
    mhla_param *p = mhla_params_add(ps, "mean", MHLA_SHAPE(SMALL), MHLA_PARAM_BUFFER, MHLA_ZERO);
    p->kept = 0.75f;
    p->data[0] = 2.0f;
    return ps;
}

/* Numbers whose sum depends on its order. */
static void numbers(float *x, int64_t n, uint64_t seed) {
    rng r = {seed};
    for (int64_t i = 0; i < n; i++) x[i] = rng_signed(&r) * (rng_signed(&r) > 0.0f ? 1.0f : 1e-3f);
}

static void give(mhla_param *p, uint64_t seed) {
    if (p->grad == NULL) p->grad = mhla_alloc((size_t)p->count * sizeof(float));
    numbers(p->grad, p->count, seed);
    p->has_grad = 1;
}

/* A part has no gradient for a parameter where this says so. */
static int missing(int part, int param, int64_t parts) { return (part + param) % 4 == 3 && parts > 2; }

/* The tree by its definition: level by level, 2i and 2i+1. */
static void tree(float *sum, int param, int64_t count, int64_t parts) {
    float *level[MOST];
    for (int i = 0; i < parts; i++) {
        level[i] = missing(i, param, parts) ? NULL : malloc((size_t)count * sizeof(float));
        if (level[i]) numbers(level[i], count, (uint64_t)(100 * i + param + 1));
    }
    for (int64_t n = parts; n > 1; n = (n + 1) / 2)
        for (int64_t i = 0; i < n; i += 2) {
            float *a = level[i], *b = i + 1 < n ? level[i + 1] : NULL;
            for (int64_t k = 0; a && b && k < count; k++) a[k] = a[k] + b[k];
            if (a && b) free(b);
            level[i / 2] = a ? a : b;
        }
    assert_non_null(level[0]);
    memcpy(sum, level[0], (size_t)count * sizeof *sum);
    free(level[0]);
}

static void order(void **state) {
    (void)state;
    float *want = malloc(BIG * sizeof *want);
    for (int64_t parts = 1; parts <= MOST; parts++) {
        mhla_params *ps = make();
        mhla_optim *o;
        mhla_parts *x;
        ASSERT_OK(mhla_optim_create(&o, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_SGD}));
        ASSERT_OK(mhla_parts_create(&x, ps, o, parts));
        for (int step = 0; step < 2; step++) { /* nothing stays of the step before */
            for (int part = 0; part < parts; part++) {
                mhla_parts_begin(x);
                for (int i = 0; i < 2; i++)
                    if (!missing(part, i, parts)) give(mhla_params_at(ps, i), (uint64_t)(100 * part + i + 1));
                ASSERT_OK(mhla_parts_end(x, part, 1, NULL));
            }
            ASSERT_OK(mhla_parts_reduce(x, NULL));
            for (int i = 0; i < 2; i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                assert_true(p->has_grad);
                tree(want, i, p->count, parts);
                assert_memory_equal(p->grad, want, (size_t)p->count * sizeof *want);
            }
            assert_false(mhla_params_at(ps, 2)->has_grad);
        }
        mhla_parts_free(x);
        mhla_optim_free(o);
        mhla_params_free(ps);
    }
    free(want);
}

static void sums(void **state) {
    (void)state;
    double five[] = {1.0, 1e16, -1e16, 1.0, 3.0};
    assert_true(mhla_parts_sum(five, 5) == ((1.0 + 1e16) + (-1e16 + 1.0)) + 3.0);
    assert_true(mhla_parts_sum(five, 0) == 0.0);
    for (int64_t parts = 1; parts < 20; parts++)
        for (int ranks = 1; ranks <= parts; ranks++)
            for (int64_t r = 0, first, last, at = 0; r < ranks; r++, at = last) {
                mhla_parts_own(parts, (int)r, ranks, &first, &last);
                assert_true(first == at && last > first && (r < ranks - 1 || last == parts));
            }
}

/* r becomes kept^passes r + what the part adds to zeros, one part after the other. */
static void statistics(void **state) {
    (void)state;
    mhla_params *ps = make();
    mhla_optim *o;
    mhla_parts *x;
    mhla_param *mean = mhla_params_at(ps, 3);
    ASSERT_OK(mhla_optim_create(&o, ps, &(mhla_optim_desc){.kind = MHLA_OPTIM_SGD}));
    ASSERT_OK(mhla_parts_create(&x, ps, o, 3));
    for (int part = 0; part < 3; part++) {
        mhla_parts_begin(x);
        assert_true(mean->data[0] == 0.0f);
        for (int pass = 0; pass < part; pass++) mean->data[0] = 0.75f * mean->data[0] + 0.25f * (float)(part + 1);
        ASSERT_OK(mhla_parts_end(x, part, part, NULL));
    }
    ASSERT_OK(mhla_parts_reduce(x, NULL));
    float want = 2.0f; /* passes with 2, 3, 3 */
    for (int pass = 0; pass < 3; pass++) want = 0.75f * want + 0.25f * (pass == 0 ? 2.0f : 3.0f);
    assert_float_equal(mean->data[0], want, 1e-6);
    mhla_parts_free(x);
    mhla_optim_free(o);
    mhla_params_free(ps);
}

/* Three optimisers that share the work have together the values and the state of one. */
static void shared(void **state) {
    (void)state;
    enum { RANKS = 3, STEPS = 3 };
    for (int kind = 0; kind < 2; kind++) {
        mhla_params *ps[RANKS + 1];
        mhla_optim *o[RANKS + 1];
        for (int r = 0; r <= RANKS; r++) { /* the last one is alone */
            mhla_optim_desc d = {.kind = (mhla_optim_kind)kind, .momentum = 0.9, .weight_decay = 0.1, .clip_norm = 1.0};
            if (r < RANKS) d.rank = r, d.ranks = RANKS;
            ps[r] = make();
            for (int i = 0; i < 2; i++) numbers(mhla_params_at(ps[r], i)->data, mhla_params_at(ps[r], i)->count, 77);
            ASSERT_OK(mhla_optim_create(&o[r], ps[r], &d));
        }
        for (int step = 0; step < STEPS; step++) {
            double norm, want;
            for (int r = 0; r <= RANKS; r++)
                for (int i = 0; i < 2; i++) give(mhla_params_at(ps[r], i), (uint64_t)(10 * step + i + 1));
            ASSERT_OK(mhla_optim_step(o[RANKS], 0.01, NULL, &want));
            double *squares[RANKS];
            for (int r = 0; r < RANKS; r++) squares[r] = mhla_optim_measure(o[r], NULL);
            for (int r = 0; r < RANKS; r++)
                for (int64_t s = 0; s < mhla_optim_stretches(o[r]); s++) squares[r][s] = squares[s % RANKS][s];
            for (int r = 0; r < RANKS; r++) {
                ASSERT_OK(mhla_optim_update(o[r], 0.01, NULL, &norm));
                assert_true(norm == want);
            }
            for (int r = 0; r < RANKS; r++)
                for (int64_t s = 0; s < mhla_optim_stretches(o[r]); s++) {
                    const mhla_stretch to = mhla_optim_stretch(o[r], s), from = mhla_optim_stretch(o[s % RANKS], s);
                    memmove(to.param->data + to.at, from.param->data + from.at, (size_t)to.count * sizeof(float));
                }
            for (int r = 0; r < RANKS; r++) ASSERT_OK(mhla_optim_finish(o[r], NULL));
        }
        for (int i = 0; i < 2; i++) {
            const mhla_param *p = mhla_params_at(ps[RANKS], i);
            float *joined = malloc((size_t)p->count * sizeof *joined), *part = malloc((size_t)p->count * sizeof *part);
            for (int slot = 0; slot < mhla_optim_slots(o[0]); slot++) {
                int64_t all = 0;
                for (int r = 0; r < RANKS; r++) {
                    mhla_optim_join(o[r], i, r, joined, mhla_optim_slot(o[r], i, slot));
                    all += mhla_optim_owned(o[r], i, r);
                }
                assert_true(all == p->count);
                assert_memory_equal(joined, mhla_optim_slot(o[RANKS], i, slot), (size_t)p->count * sizeof *joined);
                mhla_optim_split(o[1], i, 1, part, joined);
                assert_memory_equal(part, mhla_optim_slot(o[1], i, slot),
                                    (size_t)mhla_optim_owned(o[1], i, 1) * sizeof *part);
            }
            for (int r = 0; r < RANKS; r++)
                assert_memory_equal(mhla_params_at(ps[r], i)->data, p->data, (size_t)p->count * sizeof *joined);
            free(joined);
            free(part);
        }
        for (int r = 0; r <= RANKS; r++) {
            mhla_optim_free(o[r]);
            mhla_params_free(ps[r]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),
        cmocka_unit_test(sums),
        cmocka_unit_test(statistics),
        cmocka_unit_test(shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
