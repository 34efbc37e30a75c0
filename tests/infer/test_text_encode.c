/* Texts to rows: what a language model makes of each text alone, whatever the texts around it; texts that are cut; SANA's
 * instruction, of which few rows are kept. */
#include "files.h"
#include "lm_case.h"
#include "models/roles.h"

static mhla_model *model;
static const mhla_tokenizer *tokenizer;
static const char text[] = "It was the best of times, it was the worst of times, it was the age of wisdom.\n";
static const char *const texts[] = {"the age", "it was the worst of times, the worst", "", "w"};
enum { TEXTS = 4, WIDTH = 16 };

/* Hidden states [n,WIDTH] of a text by the forward pass of training. */
static float *wanted_rows(const mhla_ids *ids) {
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, single_thread()));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = mhla_lm_forward(t, model->net, &(mhla_lm_run){0}, ids->data, 1, ids->count);
    ASSERT_OK(mhla_tape_status(t));
    float *rows = new_bytes((size_t)(ids->count * WIDTH) * sizeof *rows);
    for (int64_t i = 0; i < ids->count; i++) memcpy(rows + i * WIDTH, y->data + i * y->ld, WIDTH * sizeof *rows);
    mhla_tape_free(t);
    return rows;
}

static mhla_ids ids_of(const char *first, const char *then) {
    char all[256];
    mhla_ids ids = {0};
    const int n = snprintf(all, sizeof all, "%s%s", first, then);
    ASSERT_OK(mhla_tokenizer_encode(tokenizer, &ids, all, (size_t)n, MHLA_ENCODE_SPECIAL));
    return ids;
}

static void rows_of_texts(void **state) {
    (void)state;
    mhla_text_rows rows = {.size = sizeof rows}, alone = rows;
    ASSERT_OK(mhla_text_encode(model, &rows, texts, TEXTS, NULL));
    assert_int_equal(rows.texts, TEXTS);
    assert_int_equal(rows.width, WIDTH);
    for (int i = 0; i < TEXTS; i++) {
        mhla_ids ids = ids_of("", texts[i]);
        const float *got = rows.rows + i * rows.longest * WIDTH;
        assert_int_equal(rows.lengths[i], ids.count);
        assert_int_equal(rows.cut[i], 0);
        if (ids.count) {
            float *wanted = wanted_rows(&ids);
            ASSERT_CLOSE(got, wanted, ids.count * WIDTH, 1e-6, "text %d", i);
            free(wanted);
        }
        for (int64_t k = ids.count * WIDTH; k < rows.longest * WIDTH; k++) assert_true(got[k] == 0.0f);
        ASSERT_OK(mhla_text_encode(model, &alone, texts + i, 1, NULL));
        assert_memory_equal(alone.rows, got, (size_t)(ids.count * WIDTH) * sizeof *got);
        mhla_text_rows_free(&alone);
        mhla_ids_free(&ids);
    }
    mhla_text_rows_free(&rows);
    ASSERT_OK(mhla_text_encode(model, &rows, texts, 0, NULL));
    assert_int_equal(rows.texts, 0);
    mhla_text_rows_free(&rows);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    const mhla_encoder_desc d = {.size = sizeof d, .longest = 3};
    mhla_text_rows rows = {.size = sizeof rows}, all = rows;
    mhla_ids ids = ids_of("", texts[1]);
    ASSERT_OK(mhla_text_encode(model, &rows, texts, TEXTS, &d));
    ASSERT_OK(mhla_text_encode(model, &all, texts + 1, 1, NULL));
    assert_int_equal(rows.longest, 3);
    assert_int_equal(rows.lengths[1], 3);
    assert_int_equal(rows.cut[1], ids.count - 3);
    assert_int_equal(rows.cut[3], 0);
    assert_memory_equal(rows.rows + 3 * WIDTH, all.rows, 3 * WIDTH * sizeof(float));
    mhla_text_rows_free(&rows);
    mhla_text_rows_free(&all);
    mhla_ids_free(&ids);
}

static void instruction_before_texts(void **state) {
    (void)state;
    static const char instruction[] = "It was the age of: ";
    mhla_ids own = ids_of(instruction, ""), ids = ids_of(instruction, "wisdom");
    const mhla_encoder_desc d = {.size = sizeof d, .instruction = instruction, .longest = 4};
    mhla_text_rows rows = {.size = sizeof rows};
    const char *prompt = "wisdom";
    ASSERT_OK(mhla_text_encode(model, &rows, &prompt, 1, &d));
    const int64_t skip = own.count - 2, kept = ids.count - skip > 4 ? 4 : ids.count - skip;
    assert_true(skip > 0 && kept > 1);
    assert_int_equal(rows.lengths[0], kept);
    assert_int_equal(rows.cut[0], ids.count - skip - kept);
    float *wanted = wanted_rows(&ids);
    ASSERT_CLOSE(rows.rows, wanted, WIDTH, 1e-6, "the first row");
    ASSERT_CLOSE(rows.rows + WIDTH, wanted + (skip + 1) * WIDTH, (kept - 1) * WIDTH, 1e-6, "the others");
    free(wanted);
    mhla_text_rows_free(&rows);
    mhla_ids_free(&own);
    mhla_ids_free(&ids);
}

static void what_is_refused(void **state) {
    (void)state;
    mhla_text_rows rows = {.size = sizeof rows};
    float some[6 * WIDTH];
    const int32_t ids[] = {1, 2, 300, 4, 5, 6}, lengths[] = {2, 3}, wrong[] = {2, 4};
    ASSERT_OK(mhla_text_encode_ids(model, some, ids, lengths, 2, 3)); /* the 300 is behind the first text */
    for (int k = 2 * WIDTH; k < 3 * WIDTH; k++) assert_true(some[k] == 0.0f);
    ASSERT_FAILS(mhla_text_encode_ids(model, some, ids, NULL, 2, 3), MHLA_EINVAL, "ids[2] of text 0 is 300");
    ASSERT_FAILS(mhla_text_encode_ids(model, some, ids, wrong, 2, 3), MHLA_EINVAL, "lengths[1] is 4: expected 0 to 3");
    ASSERT_FAILS(mhla_text_encode_ids(model, NULL, ids, NULL, 2, 3), MHLA_EINVAL, "rows is NULL");
    ASSERT_FAILS(mhla_text_encode(model, &rows, NULL, 1, NULL), MHLA_EINVAL, "texts is NULL");
    const char *none[] = {"it", NULL}, *bad[] = {"it", "\xff"};
    ASSERT_FAILS(mhla_text_encode(model, &rows, none, 2, NULL), MHLA_EINVAL, "texts[1] is NULL");
    ASSERT_FAILS(mhla_text_encode(model, &rows, bad, 2, NULL), MHLA_EDATA, "text 1: ");
    const mhla_encoder_desc one = {.size = sizeof one, .longest = 1};
    ASSERT_FAILS(mhla_text_encode(model, &rows, texts, 1, &one), MHLA_EINVAL, "longest is 1");
    mhla_model *image;
    ASSERT_OK(mhla_model_create(&image, "dit_nano", NULL, 0, 0));
    ASSERT_FAILS(mhla_text_encode(image, &rows, texts, 1, NULL), MHLA_EINVAL, "this needs a text encoder");
    mhla_model_free(image);
}

/* As in a pipeline's folder: the tokenizer is in a folder beside the encoder's. */
static int begin(void **state) {
    if (make_folder(state) != 0) return -1;
    const char *settings[] = {"vocab_size=300", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=2",
                              "attention=softmax"};
    const char *const special[] = {"<|endoftext|>"}, *files[] = {in_folder("text.txt")};
    const mhla_tokenizer_training training = {
        .size = sizeof training, .vocabulary = 300, .special = special, .specials = 1};
    mhla_model *fresh;
    write_file(files[0], text, sizeof text - 1);
    ASSERT_OK(mhla_model_create(&fresh, "lm_micro", settings, 5, 5));
    ASSERT_OK(mhla_model_save(fresh, in_folder("text_encoder")));
    mhla_model_free(fresh);
    assert_int_equal(mkdir(in_folder("tokenizer"), 0777), 0);
    ASSERT_OK(mhla_tokenizer_train(in_folder("tokenizer/tokenizer.json"), files, 1, &training, NULL, NULL));
    ASSERT_OK(mhla_model_open(&model, in_folder("text_encoder")));
    mhla_model_set_context(model, single_thread());
    tokenizer = mhla_lm_tokenizer(model);
    assert_non_null(tokenizer);
    return 0;
}

static int end(void **state) {
    mhla_model_free(model);
    return remove_folder(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_texts), cmocka_unit_test(long_texts_are_cut),
                                       cmocka_unit_test(instruction_before_texts), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, begin, end);
}
