/* The tape as a whole, on a small vision transformer: threads, accumulation, recomputation, dry runs, memory, failures. */
#include "nn/nn.h"
#include "nn/optim.h"
#include "support.h"

enum { B = 4, D = 48, SIDE = 16, DEPTH = 3, CLASSES = 10, IMAGE = 64, HIDDEN = 4 * D };

typedef struct block {
    mhla_param *norm1_w, *norm1_b, *qkv, *q_norm, *k_norm, *lepe_w, *lepe_b, *mix, *out_w, *out_b;
    mhla_param *norm2_w, *norm2_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
    const struct model *m;
} block;

typedef struct model {
    mhla_params *ps;
    mhla_plan *plan;
    mhla_param *patch_w, *patch_b, *pos, *cls, *head_w, *head_b;
    block blocks[DEPTH];
    int checkpoint, marks;
    float drop;
} model;

static void model_make(model *m) {
    memset(m, 0, sizeof *m);
    ASSERT_OK(mhla_params_create(&m->ps));
    mhla_params *ps = m->ps;
    const mhla_plan_desc d = {.size = sizeof d,
                              .heads = 3,
                              .key_dim = D / 3,
                              .value_dim = D / 3,
                              .feature_eps = 1e-6f,
                              .den_eps = 1e-6f,
                              .axes = 2,
                              .grid = {SIDE, SIDE},
                              .blocks = {4, 4}};
    ASSERT_OK(mhla_plan_create(&m->plan, &d));
    m->patch_w = mhla_params_add(ps, "patch.weight", MHLA_SHAPE(D, 3, 4, 4), MHLA_PARAM_DECAY, MHLA_ZERO);
    m->patch_b = mhla_params_add(ps, "patch.bias", MHLA_SHAPE(D), 0, MHLA_ZERO);
    m->pos = mhla_params_add(ps, "pos", MHLA_SHAPE(1, SIDE * SIDE, D), 0, MHLA_ZERO);
    for (int i = 0; i < DEPTH; i++) {
        block *b = &m->blocks[i];
        b->m = m;
        b->norm1_w = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.norm1.weight", i);
        b->norm1_b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.norm1.bias", i);
        b->qkv = mhla_params_addf(ps, MHLA_SHAPE(3 * D, D), MHLA_PARAM_DECAY, MHLA_ZERO, "blocks.%d.qkv.weight", i);
        b->q_norm = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.q_norm.weight", i);
        b->k_norm = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.k_norm.weight", i);
        b->lepe_w =
            mhla_params_addf(ps, MHLA_SHAPE(D, 1, 5, 5), MHLA_PARAM_DECAY, MHLA_ZERO, "blocks.%d.lepe.weight", i);
        b->lepe_b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.lepe.bias", i);
        b->mix = mhla_params_addf(ps, MHLA_SHAPE(16, 16, 1, 1), MHLA_PARAM_MIX, MHLA_ZERO, "blocks.%d.mix", i);
        b->out_w = mhla_params_addf(ps, MHLA_SHAPE(D, D), MHLA_PARAM_DECAY, MHLA_ZERO, "blocks.%d.out.weight", i);
        b->out_b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.out.bias", i);
        b->norm2_w = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.norm2.weight", i);
        b->norm2_b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.norm2.bias", i);
        b->fc1_w = mhla_params_addf(ps, MHLA_SHAPE(HIDDEN, D), MHLA_PARAM_DECAY, MHLA_ZERO, "blocks.%d.fc1.weight", i);
        b->fc1_b = mhla_params_addf(ps, MHLA_SHAPE(HIDDEN), 0, MHLA_ZERO, "blocks.%d.fc1.bias", i);
        b->fc2_w = mhla_params_addf(ps, MHLA_SHAPE(D, HIDDEN), MHLA_PARAM_DECAY, MHLA_ZERO, "blocks.%d.fc2.weight", i);
        b->fc2_b = mhla_params_addf(ps, MHLA_SHAPE(D), 0, MHLA_ZERO, "blocks.%d.fc2.bias", i);
    }
    m->head_w = mhla_params_add(ps, "head.weight", MHLA_SHAPE(CLASSES, D), MHLA_PARAM_DECAY, MHLA_ZERO);
    m->head_b = mhla_params_add(ps, "head.bias", MHLA_SHAPE(CLASSES), 0, MHLA_ZERO);
    ASSERT_OK(mhla_params_status(ps));
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        if (strstr(p->name, "mix"))
            ASSERT_OK(mhla_mix_fill(p->data, MHLA_MIX_PAPER, 2, d.blocks, 0.0));
        else
            p->initial = MHLA_NORMAL(p->dims == 1 ? 0.5 : 0.1), (void)mhla_param_init(p, 1);
    }
}
static void model_free(model *m) {
    mhla_params_free(m->ps);
    mhla_plan_free(m->plan);
}

static mhla_tensor *run_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const model *m = b->m;
    mhla_tensor *qkv =
        mhla_nn_linear(t, b->qkv, NULL, MHLA_ACT_NONE, NULL, mhla_nn_layer_norm(t, b->norm1_w, b->norm1_b, 1e-6f, x));
    mhla_tensor *q = mhla_nn_rms_norm(t, b->q_norm, 1e-6f, 0, mhla_nn_slice(t, qkv, 0, D));
    mhla_tensor *k = mhla_nn_rms_norm(t, b->k_norm, 1e-6f, 0, mhla_nn_slice(t, qkv, D, D));
    mhla_tensor *v = mhla_nn_slice(t, qkv, 2 * D, D);
    mhla_tensor *lepe = mhla_nn_depthwise(t, b->lepe_w, b->lepe_b, SIDE, SIDE, NULL, v);
    mhla_tensor *o = mhla_nn_attention_onto(t, m->plan, NULL, b->mix, lepe, q, k, v);
    o = mhla_nn_dropout(t, m->drop, mhla_nn_linear(t, b->out_w, b->out_b, MHLA_ACT_NONE, NULL, o));
    x = mhla_nn_drop_path_add(t, m->drop, x, o);
    mhla_tensor *h = mhla_nn_linear(t, b->fc1_w, b->fc1_b, MHLA_ACT_GELU_ERF, NULL,
                                    mhla_nn_layer_norm(t, b->norm2_w, b->norm2_b, 1e-6f, x));
    return mhla_nn_linear_drop(t, m->drop, b->fc2_w, b->fc2_b, x, h);
}

static mhla_tensor *logits_of(mhla_tape *t, const model *m, const float *images, int64_t n) {
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = mhla_nn_input(t, images, MHLA_SHAPE(n, 3, IMAGE - 4, IMAGE - 4));
    x = mhla_nn_patch_embed(t, m->patch_w, m->patch_b, mhla_nn_pad_image(t, 2, 2, 2, 2, x));
    x = mhla_nn_add_position(t, m->pos, x);
    for (int i = 0; i < DEPTH; i++) {
        x = m->checkpoint ? mhla_nn_checkpoint(t, run_block, &m->blocks[i], x) : run_block(t, &m->blocks[i], x);
        if (m->marks) x = mhla_tape_release(t, mark, x);
    }
    return mhla_nn_linear(t, m->head_w, m->head_b, MHLA_ACT_NONE, NULL, mhla_nn_mean_tokens(t, x));
}

static mhla_tensor *loss_of(mhla_tape *t, const model *m, const float *images, const int32_t *labels, int64_t n) {
    return mhla_nn_cross_entropy(t, logits_of(t, m, images, n), labels, NULL, 0.1f, NULL);
}

static const int32_t labels[B] = {3, 1, 4, 1};
static float *new_images(void) {
    rng r = {5};
    return new_random(&r, (int64_t)B * 3 * (IMAGE - 4) * (IMAGE - 4));
}
enum { TRAIN = MHLA_TAPE_RECORD | MHLA_TAPE_DROP };

/* All gradients, one after the other; and the loss. */
static float *gradients(const model *m, const mhla_context *context, const float *images, int parts, int64_t *count,
                        float *loss) {
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, context));
    mhla_params_clear_grads(m->ps);
    *loss = 0.0f;
    for (int i = 0; i < parts; i++) {
        const int64_t n = B / parts, size = 3 * (IMAGE - 4) * (IMAGE - 4);
        mhla_tape_begin(t, TRAIN);
        mhla_tape_key(t, 11, 2, (uint64_t)(i * n));
        mhla_tensor *l = loss_of(t, m, images + i * n * size, labels + i * n, n);
        ASSERT_OK(mhla_tape_backward(t, l, 1.0f / (float)parts));
        *loss += l->data[0] / (float)parts;
    }
    *count = mhla_params_elements(m->ps);
    float *all = new_poisoned(*count);
    int64_t at = 0;
    for (int i = 0; i < mhla_params_count(m->ps); i++) {
        const mhla_param *p = mhla_params_at(m->ps, i);
        assert_true(p->has_grad);
        memcpy(all + at, p->grad, (size_t)p->count * sizeof(float));
        at += p->count;
    }
    mhla_tape_free(t);
    return all;
}

static void threads(void **state) {
    (void)state;
    model m;
    model_make(&m);
    m.drop = 0.2f;
    float *images = new_images(), loss, first_loss = 0.0f, *first = NULL;
    for (int n = 1; n <= 64; n = n < 3 ? n + 1 : 64 + (n == 64)) {
        mhla_context *c = new_context(n);
        int64_t count;
        float *g = gradients(&m, c, images, 1, &count, &loss);
        if (first == NULL) {
            first = g;
            first_loss = loss;
            for (int64_t i = 0; i < count; i++) assert_true(isfinite(g[i]));
        } else {
            assert_true(loss == first_loss);
            assert_memory_equal(g, first, (size_t)count * sizeof *g);
            free(g);
        }
        mhla_context_free(c);
    }
    free(first);
    free(images);
    model_free(&m);
}

static void accumulation(void **state) {
    (void)state;
    model m;
    model_make(&m);
    m.drop = 0.2f; /* the halves draw what the whole draws */
    float *images = new_images(), loss, other;
    int64_t count;
    float *whole = gradients(&m, NULL, images, 1, &count, &loss);
    for (int parts = 2; parts <= 4; parts += 2) {
        float *sum = gradients(&m, NULL, images, parts, &count, &other);
        assert_true(fabsf(loss - other) < 1e-6f);
        int64_t at = 0;
        for (int i = 0; i < mhla_params_count(m.ps); i++) {
            const mhla_param *p = mhla_params_at(m.ps, i);
            ASSERT_CLOSE(sum + at, whole + at, p->count, 2e-5, "%s in %d parts", p->name, parts);
            at += p->count;
        }
        free(sum);
    }
    free(whole);
    free(images);
    model_free(&m);
}

static void recomputation(void **state) {
    (void)state;
    model m;
    model_make(&m);
    m.drop = 0.2f;
    float *images = new_images(), loss, other;
    int64_t count;
    float *plain = gradients(&m, NULL, images, 1, &count, &loss);
    m.checkpoint = 1;
    float *again = gradients(&m, NULL, images, 1, &count, &other);
    assert_true(loss == other);
    assert_memory_equal(plain, again, (size_t)count * sizeof *plain);
    free(plain);
    free(again);
    free(images);
    model_free(&m);
}

/* ---- Memory: an allocator that counts, and can fail ---- */

static size_t live, high, calls, fail_at;
static void *count_alloc(size_t n) {
    calls++;
    if (fail_at && calls >= fail_at) return NULL;
    size_t *p = malloc(n + 16);
    if (p == NULL) return NULL;
    memset(p, 0xff, n + 16); /* NaN: what is read before it is written shows */
    *p = n;
    live += n;
    if (live > high) high = live;
    return p + 2;
}
static void count_free(void *p) {
    if (p == NULL) return;
    live -= ((size_t *)p)[-2];
    free((size_t *)p - 2);
}
static void count_begin(size_t fail) {
    live = high = calls = 0;
    fail_at = fail;
    mhla_set_allocator(count_alloc, count_free);
}

static mhla_status train_step(mhla_tape *t, const model *m, mhla_optim *o, mhla_ema *e, const float *images,
                              unsigned mode) {
    mhla_tape_begin(t, TRAIN | mode);
    mhla_status status = mhla_tape_backward(t, loss_of(t, m, images, labels, B), 1.0f);
    if (status == MHLA_OK && !(mode & MHLA_TAPE_DRY)) {
        status = mhla_optim_step(o, 1e-3, NULL, NULL);
        mhla_ema_update(e, NULL);
    }
    return status;
}

static void memory(void **state) {
    (void)state;
    float *images = new_images();
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        for (int dry_first = 0; dry_first < 2; dry_first++) {
            count_begin(0);
            model m;
            model_make(&m);
            m.drop = 0.2f;
            m.checkpoint = checkpoint;
            mhla_tape *dry, *t;
            mhla_optim *o;
            mhla_ema *e;
            const mhla_optim_desc d = {.kind = MHLA_OPTIM_ADAMW};
            ASSERT_OK(mhla_optim_create(&o, m.ps, &d));
            ASSERT_OK(mhla_ema_create(&e, m.ps, 0.999, 1));
            ASSERT_OK(mhla_tape_create(&dry, NULL));
            ASSERT_OK(train_step(dry, &m, o, e, NULL, MHLA_TAPE_DRY));
            const size_t told =
                mhla_tape_peak(dry) + mhla_params_bytes(m.ps, 1) + mhla_optim_bytes(m.ps, &d) + mhla_ema_bytes(m.ps);
            mhla_tape_free(dry);
            ASSERT_OK(mhla_tape_create(&t, NULL));
            if (dry_first) ASSERT_OK(train_step(t, &m, o, e, NULL, MHLA_TAPE_DRY));
            for (int i = 0; i < 2; i++) ASSERT_OK(train_step(t, &m, o, e, images, 0));
            const size_t before = calls;
            high = live;
            for (int i = 0; i < 3; i++) ASSERT_OK(train_step(t, &m, o, e, images, 0));
            assert_int_equal(calls, before); /* nothing is allocated any more */
            if (!(fabs((double)told - (double)high) < 0.05 * (double)high)) {
                print_error("told %zu bytes, took %zu\n", told, high);
                fail();
            }
            mhla_tape_free(t);
            mhla_optim_free(o);
            mhla_ema_free(e);
            model_free(&m);
            assert_int_equal(live, 0);
            mhla_set_allocator(NULL, NULL);
        }
    }
    free(images);
}

/* Steps in memory that holds NaN, and the values of the steps before, give what steps in fresh memory give. */
static void poisoned(void **state) {
    (void)state;
    float *images = new_images(), loss, other;
    int64_t count;
    model m;
    model_make(&m);
    m.drop = 0.2f;
    float *want = gradients(&m, NULL, images, 1, &count, &loss);
    model_free(&m);
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        count_begin(0);
        model_make(&m);
        m.drop = 0.2f;
        m.checkpoint = checkpoint;
        float *got = gradients(&m, NULL, images, 1, &count, &other);
        assert_true(loss == other);
        assert_memory_equal(got, want, (size_t)count * sizeof *got);
        free(got);
        model_free(&m);
        mhla_set_allocator(NULL, NULL);
    }
    free(want);
    free(images);
}

static void no_memory(void **state) {
    (void)state;
    float *images = new_images();
    int failed = 0, passed = 0;
    for (size_t at = 1; !passed && at < 400; at++) {
        model m;
        count_begin(0);
        model_make(&m);
        m.checkpoint = at % 2 == 0;
        mhla_tape *t = NULL;
        fail_at = calls + at;
        mhla_status status = mhla_tape_create(&t, NULL);
        if (status == MHLA_OK) {
            mhla_tape_begin(t, TRAIN);
            status = mhla_tape_backward(t, loss_of(t, &m, images, labels, B), 1.0f);
            mhla_tape_free(t);
        }
        fail_at = 0;
        assert_true(status == MHLA_OK || status == MHLA_ENOMEM);
        failed += status != MHLA_OK;
        passed += status == MHLA_OK;
        model_free(&m);
        assert_int_equal(live, 0);
        mhla_set_allocator(NULL, NULL);
    }
    assert_true(passed && failed > 20);
    free(images);
}

static void inference(void **state) {
    (void)state;
    model m;
    model_make(&m);
    float *images = new_images(), want[B * CLASSES];
    size_t peaks[3];
    for (int way = 0; way < 3; way++) { /* recorded, inference, inference with marks */
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, way == 0 ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
        m.marks = way == 2;
        const mhla_tensor *y = logits_of(t, &m, images, B);
        ASSERT_OK(mhla_tape_status(t));
        if (way == 0)
            memcpy(want, y->data, sizeof want);
        else
            assert_memory_equal(y->data, want, sizeof want);
        peaks[way] = mhla_tape_peak(t);
        mhla_tape_free(t);
    }
    assert_true(peaks[1] < peaks[0] && peaks[2] < peaks[1] / 2);
    free(images);
    model_free(&m);
}

static void frozen(void **state) {
    (void)state;
    model m;
    model_make(&m);
    float *images = new_images();
    for (int i = 0; i < mhla_params_count(m.ps); i++) mhla_params_at(m.ps, i)->flags |= MHLA_PARAM_FROZEN;
    m.head_w->flags &= ~(unsigned)MHLA_PARAM_FROZEN;
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    ASSERT_OK(mhla_tape_backward(t, loss_of(t, &m, images, labels, B), 1.0f));
    for (int i = 0; i < mhla_params_count(m.ps); i++) {
        const mhla_param *p = mhla_params_at(m.ps, i);
        assert_int_equal(p->has_grad, p == m.head_w);
    }
    mhla_tape_free(t);
    free(images);
    model_free(&m);
}

static void failures(void **state) {
    (void)state;
    model m;
    model_make(&m);
    float *images = new_images();
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tensor *x = mhla_nn_input(t, images, MHLA_SHAPE(2, 5, 7));
    assert_null(mhla_nn_add(t, x, mhla_nn_linear(t, m.head_w, NULL, MHLA_ACT_NONE, NULL, x)));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "head.weight is [10, 48]: its input has rows of 7");
    assert_null(mhla_nn_scale(t, 1.0f, x)); /* the failure sticks */
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    x = mhla_nn_input(t, images, MHLA_SHAPE(2, 5, 7));
    assert_non_null(mhla_nn_scale(t, 1.0f, x));
    assert_null(mhla_nn_slice(t, x, 3, 5));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "columns 3 to 8: there are 7");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_nn_reshape(t, mhla_nn_input(t, images, MHLA_SHAPE(2, 5, 7)), MHLA_SHAPE(3, 5)));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "[2, 5, 7] to [3, 5]");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const int32_t wrong[] = {0, 10};
    assert_null(mhla_nn_cross_entropy(t, mhla_nn_input(t, images, MHLA_SHAPE(2, 10)), wrong, NULL, 0.0f, NULL));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "labels[1] is 10: there are 10 classes");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    assert_null(mhla_nn_embedding(t, m.head_w, wrong, 1, 2));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "ids[1] is 10");
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    ASSERT_FAILS(mhla_tape_backward(t, mhla_nn_input(t, images, MHLA_SHAPE(1)), 1.0f), MHLA_EINVAL, "not recorded");
    assert_null(mhla_params_add(m.ps, "head.bias", MHLA_SHAPE(3), 0, MHLA_ZERO));
    ASSERT_FAILS(mhla_params_status(m.ps), MHLA_EINVAL, "two parameters head.bias");
    assert_ptr_equal(mhla_params_find(m.ps, "blocks.2.fc1.bias"), m.blocks[2].fc1_b);
    assert_null(mhla_params_find(m.ps, "blocks.3.fc1.bias"));
    mhla_tape_free(t);
    free(images);
    model_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),   cmocka_unit_test(accumulation), cmocka_unit_test(recomputation),
        cmocka_unit_test(memory),    cmocka_unit_test(no_memory),    cmocka_unit_test(poisoned),
        cmocka_unit_test(inference), cmocka_unit_test(frozen),       cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
