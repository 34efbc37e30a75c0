/* The CLIP score: what it says of images and prompts, by the two towers alone; prompts that are too long or too few; OpenAI's names. */
#include <math.h>
#include <mhla/diffusion.h>

#include "file/npy.h"
#include "files.h"
#include "models/encoders/clip.h"
#include "models/model.h"

enum { N = 5, SIDE = 32, DIMS = 24, TOKENS = 16 };
static const char *const texts[N] = {"a", "ba", "bbbb", "aabb", "abababababababababab"};
static uint8_t pixels[N][SIDE][SIDE][3];

static void write_text(const char *name, const char *text) { write_file(in_folder(name), text, strlen(text)); }

/* A model, a tokenizer of two letters and their ends, images of the model's size, prompts. */
static int begin(void **state) {
    if (make_folder(state) != 0) return -1;
    mhla_model *m;
    rng r = {3};
    ASSERT_OK(mhla_model_create(&m, "clip_nano", NULL, 0, 7));
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        for (int64_t k = 0; k < p->count; k++) p->data[k] += 0.2f * rng_signed(&r);
    }
    ASSERT_OK(mhla_model_save(m, in_folder("clip")));
    mhla_model_free(m);
    write_text(
        "clip/tokenizer.json",
        "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},{\"id\":3,\"content\":\"</s>\","
        "\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<s>\":2,\"</s>\":3},"
        "\"merges\":[]},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":"
        "\"</s>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[2],\"tokens\":["
        "\"<s>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[3],\"tokens\":[\"</s>\"]}}}}");
    for (size_t i = 0; i < sizeof pixels; i++) ((uint8_t *)pixels)[i] = (uint8_t)rng_below(&r, 256);
    ASSERT_OK(mhla_npy_write(in_folder("images.npy"), MHLA_IO_U8, 4, (const int64_t[]){N, SIDE, SIDE, 3}, pixels));
    FILE *f = fopen(in_folder("prompts.txt"), "w");
    for (int i = 0; i < N; i++) fprintf(f, i + 1 < N ? "%s\r\n" : "%s", texts[i]);
    fclose(f);
    return 0;
}

static mhla_clip_desc usual(float *scores) {
    static char paths[3][256];
    static const char *const names[] = {"clip", "images.npy", "prompts.txt"};
    for (int i = 0; i < 3; i++) snprintf(paths[i], sizeof paths[i], "%s", in_folder(names[i]));
    return (mhla_clip_desc){
        .size = sizeof(mhla_clip_desc), .model = paths[0], .images = paths[1], .prompts = paths[2], .scores = scores};
}

static double cosine(const float *x, const float *y) {
    double xy = 0.0, xx = 0.0, yy = 0.0;
    for (int i = 0; i < DIMS; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xy / sqrt(xx * yy);
}

/* All images and all texts at once. */
static void expect(double score[N]) {
    mhla_model *m;
    mhla_tape *t;
    static float x[N][3][SIDE][SIDE];
    int32_t ids[N][TOKENS] = {{0}};
    float text[N][DIMS];
    ASSERT_OK(mhla_model_open(&m, in_folder("clip")));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_comparer_info info;
    ASSERT_OK(mhla_comparer_query(m, &info));
    assert_int_equal(info.tokens, TOKENS);
    for (int i = 0; i < N; i++) {
        int n = 0;
        ids[i][n++] = 2;
        for (const char *c = texts[i]; *c && n < TOKENS - 1; c++) ids[i][n++] = *c == 'b';
        ids[i][n] = 3;
        for (int k = 0; k < 3 * SIDE * SIDE; k++) {
            const int c = k / (SIDE * SIDE), y = k / SIDE % SIDE, at = k % SIDE;
            x[i][c][y][at] = (float)(((double)pixels[i][y][at][c] / 255.0 - info.mean[c]) / info.deviation[c]);
        }
    }
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = mhla_comparer_texts(t, m, ids[0], N);
    ASSERT_OK(mhla_tape_status(t));
    memcpy(text, y->data, sizeof text);
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    y = mhla_comparer_images(t, m, mhla_nn_input(t, &x[0][0][0][0], MHLA_SHAPE(N, 3, SIDE, SIDE)));
    ASSERT_OK(mhla_tape_status(t));
    for (int i = 0; i < N; i++) score[i] = 100.0 * cosine(y->data + i * y->ld, text[i]);
    mhla_tape_free(t);
    mhla_model_free(m);
}

static void scores(void **state) {
    (void)state;
    double want[N], mean = 0.0;
    float got[N], some[2];
    expect(want);
    mhla_clip_scores r = {.size = sizeof r};
    mhla_clip_desc d = usual(got);
    ASSERT_OK(mhla_clip_score(&r, &d));
    for (int i = 0; i < N; i++) {
        assert_true(fabs((double)got[i] - want[i]) < 1e-3);
        mean += want[i] / N;
    }
    assert_true(fabs(got[0] - got[1]) > 0.01f); /* it is not one number for all */
    assert_true(fabs(r.score - mean) < 1e-3 && r.error > 0.0);
    assert_int_equal(r.pairs, N);
    assert_int_equal(r.cut, 1);
    assert_int_equal(r.side, SIDE);
    d.scores = some;
    d.limit = 2; /* the first and the middle one, each with its own prompt */
    ASSERT_OK(mhla_clip_score(&r, &d));
    assert_true(some[0] == got[0] && some[1] == got[2]);
}

static void refused(void **state) {
    (void)state;
    mhla_clip_scores r = {.size = sizeof r};
    mhla_clip_desc d = usual(NULL);
    mhla_model *m;
    write_text("few.txt", "a\nb\n");
    d.prompts = in_folder("few.txt");
    ASSERT_FAILS(mhla_clip_score(&r, &d), MHLA_EINVAL, "few.txt has 2 lines");
    d = usual(NULL);
    d.tokenizer = in_folder("nowhere");
    ASSERT_FAILS(mhla_clip_score(&r, &d), MHLA_EIO, "nowhere");
    d = usual(NULL);
    d.prompts = NULL;
    ASSERT_FAILS(mhla_clip_score(&r, &d), MHLA_EINVAL, "prompts is NULL");
    write_text("broken.txt", "a\nb\n\xff\na\nb\n");
    d = usual(NULL);
    d.prompts = in_folder("broken.txt");
    ASSERT_FAILS(mhla_clip_score(&r, &d), MHLA_EDATA, "line 3");
    ASSERT_OK(mhla_model_create(&m, "lm_micro", NULL, 0, 1));
    ASSERT_OK(mhla_model_save(m, in_folder("lm")));
    mhla_model_free(m);
    d = usual(NULL);
    d.model = in_folder("lm");
    ASSERT_FAILS(mhla_clip_score(&r, &d), MHLA_EINVAL, "this needs a model that matches images and texts");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, begin, remove_folder);
}
