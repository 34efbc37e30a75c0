/* Roles, by a denoiser that no family has: clips of four axes, conditioned on rows of text. What the public calls check and
 * hand on to it, and what code is told that asks a model for a role it does not have. */
#include <mhla/analysis.h>
#include <mhla/diffusion.h>

#include "core/status.h"
#include "models/model.h"
#include "support.h"

enum { CHANNELS = 2, FRAMES = 3, HEIGHT = 4, WIDTH = 5, TEXT = 2 };

/* answer = w x + (1 + time) * sum of the text rows that count, the same for every number of a sample */
typedef struct toy {
    mhla_params *params;
    mhla_param *w; /* [1,1] */
} toy;

static void describe(const void *net, mhla_denoiser_info *info) {
    (void)net;
    *info = (mhla_denoiser_info){
        .channels = CHANNELS, .answers = CHANNELS, .extent = {FRAMES, HEIGHT, WIDTH}, .text_width = TEXT};
}
static mhla_status check_extent(const void *net, mhla_extent e) {
    (void)net;
    return e.frames > 8 ? mhla_fail(MHLA_EINVAL, "%lld frames: at most 8", (long long)e.frames) : MHLA_OK;
}
static int64_t tokens(const void *net, mhla_extent e) {
    (void)net;
    return mhla_extent_pixels(e);
}
static int64_t cost(const void *net, mhla_extent e, int as_paper) {
    (void)net;
    (void)as_paper;
    return CHANNELS * mhla_extent_pixels(e);
}

static float text_sum(const mhla_condition *c, int64_t sample) {
    const int64_t count = c->lengths ? c->lengths[sample] : c->longest;
    float sum = 0.0f;
    for (int64_t i = 0; i < count * TEXT; i++) sum += c->rows[sample * c->longest * TEXT + i];
    return sum;
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_network_run *run, mhla_tensor *x, const float *times,
                            const mhla_condition *condition) {
    static float text[4096];
    const toy *m = net;
    (void)run;
    assert_int_equal(x->dims, 5);
    const int64_t B = x->shape[0], each = x->shape[1] * x->shape[2] * x->shape[3] * x->shape[4];
    assert_true(B * each <= 4096);
    for (int64_t i = 0; i < B * each; i++) text[i] = (1.0f + times[i / each]) * text_sum(condition, i / each);
    mhla_tensor *flat = mhla_nn_reshape(t, x, MHLA_SHAPE(B * each, 1));
    mhla_tensor *y =
        mhla_nn_linear(t, m->w, NULL, MHLA_ACT_NONE, mhla_nn_input(t, text, MHLA_SHAPE(B * each, 1)), flat);
    return mhla_nn_reshape(t, y, x->shape, x->dims);
}

static void release(void *net) {
    toy *m = net;
    mhla_params_free(m->params);
    free(m);
}
static mhla_params *params(const void *net) { return ((const toy *)net)->params; }
static json_t *tree(const void *net) {
    (void)net;
    return json_pack("{s:s}", "model", "toy");
}
static void query(const mhla_model *m, mhla_model_info *info) {
    (void)m;
    info->name = "toy";
}

static const mhla_denoiser denoiser = {describe, check_extent, tokens, cost, forward};
static const mhla_architecture architecture = {.name = "toy",
                                               .kind = "denoiser",
                                               .what = "a toy denoiser",
                                               .known = "nothing",
                                               .presets = "",
                                               .free = release,
                                               .params = params,
                                               .tree = tree,
                                               .query = query,
                                               .denoiser = &denoiser};

static mhla_model *make(void) {
    toy *m = new_bytes(sizeof *m);
    mhla_model *model;
    ASSERT_OK(mhla_params_create(&m->params));
    m->w = mhla_params_add(m->params, "w", MHLA_SHAPE(1, 1), 0, MHLA_ZERO);
    ASSERT_OK(mhla_params_status(m->params));
    m->w->data[0] = 0.5f;
    ASSERT_OK(mhla_model_wrap(&model, &architecture, m, NULL));
    return model;
}

enum { COUNT = 3, EACH = CHANNELS * FRAMES * HEIGHT * WIDTH, LONGEST = 4 };

static void clips_with_text(void **state) {
    (void)state;
    mhla_model *model = make();
    float x[COUNT * EACH], y[COUNT * EACH], rows[COUNT * LONGEST * TEXT];
    const float times[COUNT] = {0.0f, 1.0f, 3.0f};
    const int32_t lengths[COUNT] = {4, 0, 2};
    for (int i = 0; i < COUNT * EACH; i++) x[i] = (float)(i % 17) - 8.0f;
    for (int i = 0; i < COUNT * LONGEST * TEXT; i++) rows[i] = (float)i;
    mhla_denoise d = {
        .size = sizeof d, .count = COUNT, .x = x, .times = times, .rows = rows, .lengths = lengths, .longest = LONGEST};
    for (int given = 0; given < 2; given++) { /* all rows where no lengths are given */
        d.lengths = given ? lengths : NULL;
        ASSERT_OK(mhla_model_denoise(model, y, &d));
        for (int i = 0; i < COUNT * EACH; i++) {
            const mhla_condition c = {.rows = rows, .lengths = d.lengths, .longest = LONGEST};
            const float want = 0.5f * x[i] + (1.0f + times[i / EACH]) * text_sum(&c, i / EACH);
            if (y[i] != want) fail_msg("number %d is %g: wanted %g", i, y[i], want);
        }
    }
    float loss;
    ASSERT_OK(mhla_model_denoise_step(model, &loss, &d, x, 1e-3));
    assert_true(isfinite(loss) && loss > 0.0f);

    const int32_t labels[COUNT] = {0}, long_one[COUNT] = {4, 5, 2};
#define REFUSED(field, value, says)                                                                                    \
    do {                                                                                                               \
        mhla_denoise wrong = d;                                                                                        \
        wrong.field = value;                                                                                           \
        ASSERT_FAILS(mhla_model_denoise(model, y, &wrong), MHLA_EINVAL, says);                                         \
    } while (0)
    REFUSED(labels, labels, "takes no classes");
    REFUSED(rows, NULL, "rows is NULL: the model takes text");
    REFUSED(lengths, long_one, "lengths[1] is 5: expected 0 to 4");
    REFUSED(longest, 0, "longest is 0");
    REFUSED(frames, 9, "9 frames: at most 8");
    mhla_model_free(model);
}

/* A model of classes takes no text and no frames. */
static void images_with_labels(void **state) {
    (void)state;
    mhla_model *model;
    ASSERT_OK(mhla_model_create(&model, "dit_nano", NULL, 0, 0));
    float x[2] = {0}, y[2];
    const float times[1] = {0};
    const int32_t labels[1] = {0};
    mhla_denoise d = {.size = sizeof d, .count = 1, .x = x, .times = times, .labels = labels};
    REFUSED(rows, x, "takes no text");
    REFUSED(labels, NULL, "labels is NULL");
    REFUSED(frames, 3, "3 frames");
    mhla_model_free(model);
}

static void missing_roles(void **state) {
    (void)state;
    mhla_model *model = make();
    static const mhla_role others[] = {MHLA_ROLE_CLASSIFIER, MHLA_ROLE_DECODER, MHLA_ROLE_ENCODER,
                                       MHLA_ROLE_AUTOENCODER};
    ASSERT_OK(mhla_model_need(model, MHLA_ROLE_DENOISER));
    assert_int_equal(mhla_model_has(model, MHLA_ROLE_DENOISER), 1);
    assert_int_equal(mhla_model_has(model, (mhla_role)99), 0);
    assert_int_equal(mhla_model_has(NULL, MHLA_ROLE_DENOISER), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(mhla_model_has(model, others[i]), 0);
        ASSERT_FAILS(mhla_model_need(model, others[i]), MHLA_EINVAL, "the model is a toy denoiser: this needs ");
        assert_non_null(strstr(mhla_message(), mhla_role_name(others[i])));
    }
    float logits[1];
    ASSERT_FAILS(mhla_model_forward(model, logits, logits, 1), MHLA_EINVAL, "an image classifier");
    mhla_analysis *analysis; /* a model that tells no layers of attention */
    const mhla_analysis_desc look = {.size = sizeof look};
    ASSERT_FAILS(mhla_analysis_create(&analysis, model, &look), MHLA_ENOTSUP, "toy has no attention to look into");
    mhla_sequence *sequence;
    ASSERT_FAILS(mhla_sequence_create(&sequence, model, NULL), MHLA_EINVAL, "a language model");
    mhla_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(clips_with_text), cmocka_unit_test(images_with_labels),
                                       cmocka_unit_test(missing_roles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
