/* The encoder of umT5: the names of its files, of any type; weights that stay in their file; texts together as alone; what is refused. Its
 * numbers are compared with transformers' by the goldens. */
#include <math.h>
#include <mhla/lm.h>
#include <unistd.h>

#include "models/encoders/umt5.h"
#include "names_case.h"

enum { T = 40, B = 3, WIDTH = 64 };
static char folder[40];
static mhla_model *model;
static int32_t ids[B * T];
static const int32_t lengths[B] = {T, 0, 7};

static int set_up(void **state) {
    (void)state;
    for (int i = 0; i < B * T; i++) ids[i] = i * 37 % 384;
    new_folder(folder);
    return mhla_model_create(&model, "umt5_nano", NULL, 0, 3) == MHLA_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    mhla_model_free(model);
    remove_folder(folder);
    return 0;
}

static void name_of(char name[256], const void *of, const char *parameter) {
    mhla_umt5_name(name, *(const int *)of, parameter);
}

static void names(void **state) {
    (void)state;
    static const int both[] = {0, 1};
    mhla_umt5 *full;
    mhla_umt5_config c;
    ASSERT_OK(mhla_umt5_config_read(&c, NULL, "none"));
    ASSERT_OK(mhla_umt5_create(&full, &c, 1, MHLA_F32)); /* no memory for the matrices */
    assert_int_equal(mhla_params_elements(mhla_umt5_params(full)), 5680910336);
    check_names(mhla_umt5_params(full), "names/umt5_xxl_encoder_hf.txt", name_of, &both[0]);
    check_names(mhla_umt5_params(full), "names/umt5_xxl_encoder_original.txt", name_of, &both[1]);
    mhla_umt5_free(full);
}

static float *encoded(mhla_model *m) {
    float *rows = new_poisoned(B * T * WIDTH);
    ASSERT_OK(mhla_text_encode_ids(m, rows, ids, lengths, B, T));
    return rows;
}

static double difference(const float *a, const float *b) {
    double d = 0.0, s = 0.0;
    for (int64_t i = 0; i < B * T * WIDTH; i++) d += pow((double)(a[i] - b[i]), 2.0), s += pow((double)b[i], 2.0);
    return sqrt(d / s);
}

/* Both layouts, bare and with a config.json, in each type; what is read from the file gives what memory gives. */
static void files(void **state) {
    (void)state;
    static const mhla_io_dtype types[] = {MHLA_IO_F32, MHLA_IO_BF16, MHLA_IO_F16};
    static const int both[] = {0, 1};
    mhla_model *m;
    char path[512];
    float *want = encoded(model);
    for (int i = 0; i < 6; i++) {
        const mhla_io_dtype type = types[i % 3];
        const mhla_open_desc exact = {.size = sizeof exact, .storage = "float32"};
        snprintf(path, sizeof path, "%s/bare%d.safetensors", folder, i);
        write_named(path, model->params, name_of, &both[i / 3], type, "",
                    i == 0 ? "encoder.embed_tokens.weight" : NULL);
        ASSERT_OK(mhla_model_open_as(&m, path, i % 3 == 1 ? &exact : NULL));
        assert_true(mhla_params_lent(m->params));
        assert_true(mhla_params_bytes(m->params, 0) < 20000); /* norms and distances alone */
        float *got = encoded(m), *again = encoded(m);
        assert_memory_equal(got, again, sizeof(float) * B * T * WIDTH);
        if (type == MHLA_IO_F32)
            assert_memory_equal(got, want, sizeof(float) * B * T * WIDTH);
        else
            assert_true(difference(got, want) < (type == MHLA_IO_BF16 ? 2e-2 : 2e-3));
        for (int p = 0; p < mhla_params_count(m->params); p++) /* nothing is kept */
            if (m->params && mhla_params_at(m->params, p)->lender) assert_null(mhla_params_at(m->params, p)->packed);
        ASSERT_OK(mhla_model_save(m, in_folder(folder, "saved"))); /* and from the file into another */
        mhla_model_free(m);
        ASSERT_OK(mhla_model_open_as(&m, in_folder(folder, "saved"), &exact));
        float *third = encoded(m);
        if (i % 3 != 2) assert_memory_equal(third, got, sizeof(float) * B * T * WIDTH);
        mhla_model_free(m);
        free(third);
        free(got);
        free(again);
    }
    ASSERT_OK(mhla_model_open(&m, (snprintf(path, sizeof path, "%s/bare1.safetensors", folder), path)));
    float *rough = encoded(m); /* products as the file has them */
    assert_true(difference(rough, want) < 4e-2);
    const mhla_optim_desc adamw = {.kind = MHLA_OPTIM_ADAMW};
    mhla_optim *optim;
    ASSERT_FAILS(mhla_optim_create(&optim, m->params, &adamw), MHLA_EINVAL, "read from its file");
    mhla_model_free(m);
    free(rough);
    free(want);
}

/* Rows are those of each text alone, for any number of threads; behind a text are zeros. */
static void together(void **state) {
    (void)state;
    float *all = encoded(model);
    for (int n = 1; n < 4; n += 2) {
        mhla_context *context = new_context(n);
        mhla_model_set_context(model, context);
        for (int b = 0; b < B; b++) {
            float *one = new_poisoned(T * WIDTH);
            if (lengths[b]) ASSERT_OK(mhla_text_encode_ids(model, one, ids + b * T, NULL, 1, lengths[b]));
            assert_memory_equal(one, all + b * T * WIDTH, sizeof(float) * (size_t)(lengths[b] * WIDTH));
            for (int64_t i = lengths[b] * WIDTH; i < T * WIDTH; i++) assert_true(all[b * T * WIDTH + i] == 0.0f);
            free(one);
        }
        mhla_model_set_context(model, NULL);
        mhla_context_free(context);
    }
    free(all);
}

/* By definition: distances one by one, then in equal ratios. */
static void buckets(void **state) {
    (void)state;
    assert_int_equal(mhla_position_bucket(0, 32, 128), 0);
    assert_int_equal(mhla_position_bucket(-7, 32, 128), 7);
    assert_int_equal(mhla_position_bucket(7, 32, 128), 23);
    assert_int_equal(mhla_position_bucket(-8, 32, 128), 8);
    assert_int_equal(mhla_position_bucket(-127, 32, 128), 15);
    assert_int_equal(mhla_position_bucket(-100000, 32, 128), 15);
    assert_int_equal(mhla_position_bucket(100000, 32, 128), 31);
    for (int r = 1; r < 600; r++)
        assert_true(mhla_position_bucket(r, 32, 128) >= mhla_position_bucket(r - (r > 1), 32, 128));
}

/* Attention over more keys than a tile has, by its definition. */
static void attention(void **state) {
    (void)state;
    enum { LONG = 700, HEADS = 2, K = 12, D = HEADS * K };
    rng r = {5};
    float *x[3];
    mhla_tape *t;
    mhla_params *ps;
    ASSERT_OK(mhla_params_create(&ps));
    mhla_param *w = mhla_params_add(ps, "w", MHLA_SHAPE(8, HEADS), 0, MHLA_NORMAL(1.0));
    ASSERT_OK(mhla_params_init(ps, 1));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int i = 0; i < 3; i++) x[i] = new_random(&r, LONG * D);
    mhla_tensor *in[3];
    for (int i = 0; i < 3; i++) in[i] = mhla_nn_input(t, x[i], MHLA_SHAPE(1, LONG, D));
    const mhla_tensor *o = mhla_nn_position_attention(t, w, 20, in[0], in[1], in[2]);
    ASSERT_OK(mhla_tape_status(t));
    for (int i = 0; i < LONG; i += 33)
        for (int h = 0; h < HEADS; h++) {
            double sum = 0.0, value[K] = {0};
            for (int j = 0; j < LONG; j++) {
                double s = (double)w->data[mhla_position_bucket(j - i, 8, 20) * HEADS + h];
                for (int k = 0; k < K; k++) s += (double)x[0][i * D + h * K + k] * (double)x[1][j * D + h * K + k];
                sum += exp(s);
                for (int k = 0; k < K; k++) value[k] += exp(s) * (double)x[2][j * D + h * K + k];
            }
            for (int k = 0; k < K; k++) assert_true(fabs(value[k] / sum - (double)o->data[i * D + h * K + k]) < 1e-5);
        }
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_nn_position_attention(t, w, 20, mhla_nn_variable(t, x[0], MHLA_SHAPE(1, LONG, D)),
                               mhla_nn_input(t, x[1], MHLA_SHAPE(1, LONG, D)),
                               mhla_nn_input(t, x[2], MHLA_SHAPE(1, LONG, D)));
    ASSERT_FAILS(mhla_tape_status(t), MHLA_EINVAL, "cannot be trained");
    mhla_tape_free(t);
    mhla_params_free(ps);
    for (int i = 0; i < 3; i++) free(x[i]);
}

static void refusals(void **state) {
    (void)state;
    mhla_model *m;
    static const int ours = 0;
    static const char *const wrong[][2] = {
        {"\"d_model\": 64, \"num_layers\": 2, \"feed_forward_proj\": \"relu\"", "feed_forward_proj"},
        {"\"d_model\": 64, \"num_layers\": 2, \"relative_attention_num_buckets\": 30", "multiple of 4"},
        {"\"d_model\": 32, \"num_layers\": 2", "shared.weight"},
        {"\"d_model\": 64, \"num_layers\": 1000000", "num_layers"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"umt5\", \"d_kv\": 16, \"d_ff\": 160, \"num_heads\": 4, "
                 "\"vocab_size\": 384, %s}",
                 wrong[i][0]);
        write_file(folder, "w/config.json", text, strlen(text));
        write_named(in_folder(folder, "w/model.safetensors"), model->params, name_of, &ours, MHLA_IO_F32, "", NULL);
        assert_true(mhla_model_open(&m, in_folder(folder, "w")) != MHLA_OK);
        if (strstr(mhla_message(), wrong[i][1]) == NULL) print_error("%s\n", mhla_message());
        assert_non_null(strstr(mhla_message(), wrong[i][1]));
    }
    write_named(in_folder(folder, "extra.safetensors"), model->params, name_of, &ours, MHLA_IO_F32, "", "decoder.x");
    ASSERT_FAILS(mhla_model_open(&m, in_folder(folder, "extra.safetensors")), MHLA_EDATA, "\"decoder.x\" is not part");
    const mhla_open_desc eight = {.size = sizeof eight, .storage = "q8_0"};
    write_named(in_folder(folder, "f.safetensors"), model->params, name_of, &ours, MHLA_IO_F32, "", NULL);
    ASSERT_FAILS(mhla_model_open_as(&m, in_folder(folder, "f.safetensors"), &eight), MHLA_EINVAL, "q8_0");
    float row[WIDTH];
    const int32_t far = 384;
    ASSERT_FAILS(mhla_text_encode_ids(model, row, &far, NULL, 1, 1), MHLA_EINVAL, "the model has 384 tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),   cmocka_unit_test(files),     cmocka_unit_test(together),
        cmocka_unit_test(buckets), cmocka_unit_test(attention), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
