/* Sampling with a model: an image depends on its seed, class and settings alone; guidance; bad input. */
#include <mhla/diffusion.h>

#include "core/rng.h"
#include "models/denoisers/dit.h"
#include "models/model.h"
#include "support.h"

/* A small model whose answer is not zero, as that of a fresh one is. */
static mhla_model *small(const char *const *settings, int count) {
    mhla_model *m;
    const char *all[16] = {"image=8", "channels=3", "patch=2", "dim=16", "depth=2", "heads=2", "classes=5"};
    for (int i = 0; i < count; i++) all[7 + i] = settings[i];
    ASSERT_OK(mhla_model_create(&m, "dit_micro", all, 7 + count, 1));
    rng r = {21};
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        if (p->flags & (MHLA_PARAM_BUFFER | MHLA_PARAM_MIX)) continue;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += 0.2f * rng_signed(&r);
        mhla_param_touch(p);
    }
    return m;
}

enum { IMAGES = 7, EACH = 3 * 8 * 8 };
static const int32_t classes[IMAGES] = {0, 1, 2, 3, 4, 5, 1};
static const uint64_t seeds[IMAGES] = {5, 5, 6, 7, 1ull << 40, 5, 6};

static mhla_sample_desc described(const char *method, int steps) {
    return (mhla_sample_desc){.size = sizeof(mhla_sample_desc),
                              .images = IMAGES,
                              .classes = classes,
                              .seeds = seeds,
                              .guidance = 3.0,
                              .method = method,
                              .steps = steps};
}

/* The same bits for any batch and any number of threads, alone or among others. */
static void bits(void **state) {
    (void)state;
    static const char *const kinds[][3] = {{"process=linear", "attention=mhla", "ddpm"},
                                           {"process=cosine", "attention=softmax", "ddim"},
                                           {"process=flow", "attention=linear", "unipc"}};
    for (int k = 0; k < 3; k++) {
        const char *settings[] = {kinds[k][0], kinds[k][1], "learn_sigma=true"};
        mhla_model *m = small(settings, k == 0 ? 3 : 2);
        mhla_sample_desc d = described(kinds[k][2], 4);
        if (k == 1) d.eta = 0.5;
        float all[IMAGES * EACH], other[IMAGES * EACH];
        ASSERT_OK(mhla_model_sample(m, all, &d, NULL));
        double largest = 0.0;
        for (int i = 0; i < IMAGES * EACH; i++) largest = fmax(largest, fabs((double)all[i]));
        assert_true(largest > 0.1);
        for (int way = 0; way < 6; way++) {
            mhla_context *c = new_context(1 + way % 3);
            mhla_model_set_context(m, c);
            d.batch = (const int[]){1, 2, 3, 4, 7, 16}[way];
            for (int i = 0; i < IMAGES * EACH; i++) other[i] = NAN;
            ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
            assert_memory_equal(all, other, sizeof all);
            mhla_model_set_context(m, NULL);
            mhla_context_free(c);
        }
        d.images = 1, d.classes = classes + 4, d.seeds = seeds + 4;
        ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
        assert_memory_equal(all + 4 * EACH, other, EACH * sizeof *all);
        /* another seed, class or setting makes another image */
        d.seeds = seeds + 3;
        ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
        assert_memory_not_equal(all + 4 * EACH, other, EACH * sizeof *all);
        d.seeds = seeds + 4, d.guidance = 2.0;
        ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
        assert_memory_not_equal(all + 4 * EACH, other, EACH * sizeof *all);
        mhla_model_free(m);
    }
}

/* One step against the network and the sampler by hand: the two answers, the channels that are guided, the noise. */
typedef struct watch {
    float first[EACH];
    int steps, stop_at;
    int64_t done[64];
} watch;
static int keep(void *user, const mhla_sample_state *s) {
    watch *w = user;
    if (w->steps == 0) memcpy(w->first, s->x, sizeof w->first);
    w->done[w->steps++] = s->done;
    return w->steps == w->stop_at;
}

static void guidance(void **state) {
    (void)state;
    mhla_model *m = small((const char *[]){"process=linear", "learn_sigma=true"}, 2);
    const int learned = ((const mhla_frame *)m->net)->config.learn_sigma;
    assert_true(learned);
    for (int guided = 0; guided <= 3; guided++) {
        watch w = {0};
        mhla_sample_desc d = described("ddim", 5);
        d.images = 1, d.classes = classes + 3, d.seeds = seeds + 3, d.guided_channels = guided, d.report = keep,
        d.user = &w;
        float image[EACH], x[2 * EACH], got[2 * 2 * EACH];
        ASSERT_OK(mhla_model_sample(m, image, &d, NULL));
        assert_int_equal(w.steps, 5);
        mhla_sampler *s;
        const mhla_sampler_desc sd = {.size = sizeof sd,
                                      .method = "ddim",
                                      .steps = 5,
                                      .learned_sigma = 1,
                                      .batch = 1,
                                      .channels = 3,
                                      .pixels = 64};
        ASSERT_OK(mhla_sampler_create(&s, &sd));
        ASSERT_OK(mhla_sample_noise(x, EACH, seeds[3], 0));
        const mhla_rng r = mhla_rng_make(seeds[3], 0, 0, 0x6e6f6973);
        mhla_rng_normals(&r, x + EACH, EACH);
        assert_memory_equal(x, x + EACH, EACH * sizeof *x);
        memcpy(x + EACH, x, EACH * sizeof *x);
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        const float time = (float)mhla_sampler_time(s, 0), times[2] = {time, time};
        const int32_t labels[2] = {classes[3], 5};
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        const mhla_tensor *y = mhla_frame_forward(t, ((mhla_frame *)m->net), &(mhla_network_run){0},
                                                  mhla_nn_input(t, x, MHLA_SHAPE(2, 3, 8, 8)), times, labels);
        ASSERT_OK(mhla_tape_status(t));
        for (int i = 0; i < 2 * EACH; i++) {
            const float with = y->data[i], without = y->data[2 * EACH + i];
            got[i] = i < 64 * (guided ? guided : 3) ? without + 3.0f * (with - without) : with;
        }
        ASSERT_OK(mhla_sampler_step(s, 0, x, got, NULL));
        ASSERT_CLOSE(w.first, x, EACH, 1e-6, "guidance on %d channels", guided);
        mhla_tape_free(t);
        mhla_sampler_free(s);
    }
    /* guidance 1 is the class alone, whatever the channels */
    float one[EACH], none[EACH];
    mhla_sample_desc d = described("ddim", 5);
    d.images = 1, d.guidance = 1.0;
    ASSERT_OK(mhla_model_sample(m, one, &d, NULL));
    d.guidance = 0.0, d.guided_channels = 2;
    ASSERT_OK(mhla_model_sample(m, none, &d, NULL));
    assert_memory_equal(one, none, sizeof one);
    mhla_model_free(m);
}

/* Noise of the caller's: what would be drawn gives the same image, anything else another. */
static void given_noise(void **state) {
    (void)state;
    enum { STEPS = 3 };
    mhla_model *m = small(NULL, 0);
    mhla_sample_desc d = described("ddpm", STEPS);
    float *start = new_bytes(sizeof(float) * IMAGES * EACH), *noise = new_bytes(sizeof(float) * STEPS * IMAGES * EACH);
    float drawn[IMAGES * EACH], given[IMAGES * EACH];
    for (int i = 0; i < IMAGES; i++)
        for (int s = 0; s <= STEPS; s++) {
            const mhla_rng r = mhla_rng_make(seeds[i], (uint64_t)s, 0, 0x6e6f6973);
            mhla_rng_normals(&r, s == 0 ? start + i * EACH : noise + ((s - 1) * IMAGES + i) * EACH, EACH);
        }
    ASSERT_OK(mhla_model_sample(m, drawn, &d, NULL));
    d.start = start, d.noise = noise, d.batch = 2;
    ASSERT_OK(mhla_model_sample(m, given, &d, NULL));
    assert_memory_equal(drawn, given, sizeof drawn);
    noise[(1 * IMAGES + 6) * EACH] += 1.0f; /* of the second step of the last image */
    ASSERT_OK(mhla_model_sample(m, given, &d, NULL));
    assert_memory_equal(drawn, given, 6 * EACH * sizeof *drawn);
    assert_memory_not_equal(drawn + 6 * EACH, given + 6 * EACH, EACH * sizeof *drawn);
    free(start), free(noise);
    mhla_model_free(m);
}

static void progress(void **state) {
    (void)state;
    mhla_model *m = small(NULL, 0);
    watch w = {.stop_at = 7};
    mhla_sample_desc d = described("ddim", 5);
    d.batch = 3, d.report = keep, d.user = &w;
    float images[IMAGES * EACH];
    int stopped = 0;
    ASSERT_OK(mhla_model_sample(m, images, &d, &stopped));
    assert_true(stopped == 1 && w.steps == 7);
    assert_int_equal(w.done[0], 3);
    assert_int_equal(w.done[4], 15);
    assert_int_equal(w.done[6], 15 + 2 * 3);
    w = (watch){0};
    ASSERT_OK(mhla_model_sample(m, images, &d, &stopped));
    assert_true(stopped == 0 && w.steps == 15 && w.done[14] == 35);
    d.images = 0, d.report = NULL;
    ASSERT_OK(mhla_model_sample(m, NULL, &d, NULL));
    mhla_model_free(m);
}

/* Other sizes than in training, rectangles too; latents. */
static void sizes(void **state) {
    (void)state;
    mhla_model *m = small(NULL, 0);
    mhla_sample_desc d = described("ddim", 2);
    d.images = 2, d.height = 12, d.width = 20;
    float images[2 * 3 * 12 * 20];
    ASSERT_OK(mhla_model_sample(m, images, &d, NULL));
    for (int i = 0; i < 2 * 3 * 12 * 20; i++) assert_true(isfinite(images[i]));
    ASSERT_OK(mhla_model_sample_settle(m, &d));
    assert_true(d.steps == 2 && d.height == 12 && d.guided_channels == 3 && d.batch >= 1 && d.shift == 1.0);
    d = (mhla_sample_desc){.size = sizeof d, .images = 1, .classes = classes, .seeds = seeds};
    ASSERT_OK(mhla_model_sample_settle(m, &d));
    assert_string_equal(d.method, "ddpm");
    assert_true(d.steps == 250 && d.guidance == 1.0 && d.height == 8 && d.width == 8);
    d = described("ddim", 2); /* of a program that knows fewer fields */
    d.size = offsetof(mhla_sample_desc, start);
    d.start = images;
    ASSERT_OK(mhla_model_sample_settle(m, &d));
    assert_true(d.size == offsetof(mhla_sample_desc, start) && d.height == 8 && d.start == images);
    mhla_model_free(m);
}

static void bad_input(void **state) {
    (void)state;
    float noise[2];
    ASSERT_FAILS(mhla_sample_noise(NULL, 2, 0, 0), MHLA_EINVAL, "noise is NULL");
    ASSERT_FAILS(mhla_sample_noise(noise, -1, 0, 0), MHLA_EINVAL, "count is -1");
    ASSERT_FAILS(mhla_sample_noise(noise, 2, 0, -1), MHLA_EINVAL, "step is -1");
    mhla_model *m = small(NULL, 0);
    float images[IMAGES * EACH];
    mhla_sample_desc d = described("ddim", 3);
    d.classes = (const int32_t[IMAGES]){0, 9};
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL,
                 "class 9 of image 1: the model has classes 0 to 4");
    d = described("ddim", 3), d.classes = (const int32_t[IMAGES]){-1};
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "class -1");
    d = described("ddim", 3), d.height = 9;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "9");
    d = described("ddim", 3), d.guidance = NAN;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "guidance nan");
    d = described("ddim", 3), d.guidance = -1.0;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "guidance -1");
    d = described("ddim", 3), d.guided_channels = 4;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "4 channels: the model has 3");
    d = described("euler", 3);
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "euler is for flows");
    d = described("ddim", 3), d.seeds = NULL;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "seeds is NULL");
    d = described("ddim", 3), d.batch = -1;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "negative");

    /* a weight that is not a number: which step, which image */
    mhla_param *p = mhla_params_find(m->params, "final_layer.linear.bias");
    assert_non_null(p);
    p->data[0] = NAN;
    mhla_param_touch(p);
    d = described("ddim", 3), d.images = 2;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_ERANGE, "step 1 of 3: image 0 (class 0, seed 5)");
    mhla_model_free(m);

    /* no null label */
    m = small((const char *[]){"null_label=false"}, 1);
    d = described("ddim", 3), d.images = 2;
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "guidance 3 needs a null label");
    d.guidance = 0.0;
    ASSERT_OK(mhla_model_sample(m, images, &d, NULL));
    d.classes = (const int32_t[]){0, 5};
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "image 1 is to be of no class");
    int c;
    ASSERT_FAILS(mhla_model_class_find(m, "none", &c), MHLA_EINVAL, "no null label");
    ASSERT_FAILS(mhla_model_class_find(m, "5", &c), MHLA_EINVAL, "classes 0 to 4");
    ASSERT_FAILS(mhla_model_class_find(m, "bag", &c), MHLA_EINVAL, "have no names");
    ASSERT_OK(mhla_model_class_find(m, "4", &c));
    assert_int_equal(c, 4);
    mhla_model_free(m);

    ASSERT_OK(mhla_model_create(&m, "deit_nano", NULL, 0, 1));
    d = described("ddim", 3);
    ASSERT_FAILS(mhla_model_sample(m, images, &d, NULL), MHLA_EINVAL, "the model is an image classifier");
    mhla_model_free(m);
}

static void hashes(void **state) {
    (void)state;
    mhla_model *a = small(NULL, 0), *b = small(NULL, 0);
    char first[65], second[65];
    ASSERT_OK(mhla_model_hash(a, first));
    ASSERT_OK(mhla_model_hash(b, second));
    assert_string_equal(first, second);
    assert_int_equal(strlen(first), 64);
    mhla_params_at(b->params, 0)->data[0] += 1e-3f;
    ASSERT_OK(mhla_model_hash(b, second));
    assert_string_not_equal(first, second);
    mhla_model_free(a);
    mhla_model_free(b);
}

/* A model that takes text: the loop by hand, with guidance away from the empty text; the same bits in any batch, alone, with rows of
 * no meaning behind the texts; what is wrong with them. */
enum { TEXTS = 3, LONGEST = 4, WIDTH = 32, LATENT = 4 * 8 * 8 };

static void text(void **state) {
    (void)state;
    static const int32_t which[IMAGES] = {1, 2, 2, 0, 1, 2, 1}, lengths[TEXTS] = {0, 4, 2};
    mhla_model *m;
    rng r = {31};
    ASSERT_OK(mhla_model_create(&m, "sana_nano", (const char *[]){"attention=mhla", "blocks=2"}, 2, 3));
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        for (int64_t k = 0; k < p->count && !(p->flags & MHLA_PARAM_MIX); k++) p->data[k] += 0.2f * rng_signed(&r);
        mhla_param_touch(p);
    }
    float rows[TEXTS * LONGEST * WIDTH], all[IMAGES * LATENT], other[IMAGES * LATENT];
    for (int i = 0; i < TEXTS * LONGEST * WIDTH; i++) rows[i] = rng_signed(&r);
    mhla_sample_desc d = described("euler", 3);
    d.classes = which, d.rows = rows, d.lengths = lengths, d.texts = TEXTS, d.longest = LONGEST;
    ASSERT_OK(mhla_model_sample(m, all, &d, NULL));
    for (int way = 0; way < 4; way++) {
        mhla_context *c = new_context(1 + way % 2);
        mhla_model_set_context(m, c);
        d.batch = (const int[]){1, 2, 3, 16}[way];
        ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
        assert_memory_equal(all, other, sizeof all);
        mhla_model_set_context(m, NULL);
        mhla_context_free(c);
    }
    /* image 2, of text 2, which has two rows */
    float x[2 * LATENT], answers[2 * LATENT], alone[2 * 2 * WIDTH];
    memcpy(alone, rows + 2 * LONGEST * WIDTH, 2 * WIDTH * sizeof *alone);
    mhla_sampler *s;
    const mhla_sampler_desc sd = {
        .size = sizeof sd, .process = "flow", .method = "euler", .steps = 3, .batch = 1, .channels = 4, .pixels = 64};
    ASSERT_OK(mhla_sampler_create(&s, &sd));
    ASSERT_OK(mhla_sample_noise(x, LATENT, seeds[2], 0));
    for (int i = 0; i < 3; i++) {
        const float time = (float)mhla_sampler_time(s, i), times[2] = {time, time};
        memcpy(x + LATENT, x, LATENT * sizeof *x);
        const mhla_denoise asked = {.size = sizeof asked,
                                    .count = 2,
                                    .x = x,
                                    .times = times,
                                    .rows = alone,
                                    .lengths = (const int32_t[]){2, 0},
                                    .longest = 2};
        ASSERT_OK(mhla_model_denoise(m, answers, &asked));
        for (int k = 0; k < LATENT; k++) answers[k] = answers[LATENT + k] + 3.0f * (answers[k] - answers[LATENT + k]);
        ASSERT_OK(mhla_sampler_step(s, i, x, answers, NULL));
    }
    assert_memory_equal(x, all + 2 * LATENT, LATENT * sizeof *x);
    mhla_sampler_free(s);
    /* another text to lead away from makes another image */
    d.negative = 1;
    ASSERT_OK(mhla_model_sample(m, other, &d, NULL));
    assert_memory_not_equal(all + 2 * LATENT, other + 2 * LATENT, LATENT * sizeof *all);
    d.negative = 3;
    assert_int_equal(mhla_model_sample(m, other, &d, NULL), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "negative is 3: there are texts 0 to 2");
    d.negative = 0, d.texts = 2;
    assert_int_equal(mhla_model_sample(m, other, &d, NULL), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "text 2 of image 1: there are texts 0 to 1");
    d.texts = TEXTS, d.lengths = (const int32_t[]){0, 5, 1};
    assert_int_equal(mhla_model_sample(m, other, &d, NULL), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "lengths[1] is 5: expected 0 to 4");
    d.rows = NULL;
    assert_int_equal(mhla_model_sample(m, other, &d, NULL), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "the model takes text: rows is NULL, texts is 3, longest is 4");
    mhla_model_free(m);
    m = small(NULL, 0);
    d.rows = rows;
    assert_int_equal(mhla_model_sample(m, other, &d, NULL), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "rows of text are given, and the model takes classes");
    mhla_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits),  cmocka_unit_test(guidance),  cmocka_unit_test(progress), cmocka_unit_test(given_noise),
        cmocka_unit_test(sizes), cmocka_unit_test(bad_input), cmocka_unit_test(hashes),   cmocka_unit_test(text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
