/* Structs of other versions of the library, in calls that make rows of captions. */
#include "structs.h"
#include "train_case.h"

#include <mhla/diffusion.h>
#include <mhla/lm.h>

static void write_text_file(const char *path, const char *text, const char *mode) {
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void make_encoder(const char *folder, uint64_t seed) {
    const char *settings[] = {"vocab_size=300", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=2",
                              "attention=softmax"};
    const char *const special[] = {"<|endoftext|>"}, *files[] = {in_root("text.txt")};
    const mhla_tokenizer_training training = {
        .size = sizeof training, .vocabulary = 300, .special = special, .specials = 1};
    mhla_model *fresh;
    char path[300];
    ASSERT_OK(mhla_model_create(&fresh, "lm_micro", settings, 5, seed));
    ASSERT_OK(mhla_model_save(fresh, folder));
    mhla_model_free(fresh);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    ASSERT_OK(mhla_tokenizer_train(path, files, 1, &training, NULL, NULL));
}

static mhla_model *frozen;
static char words[300], words_rows[300];
static mhla_captions_desc words_desc = {.size = sizeof words_desc, .source = words, .out = words_rows, .longest = 12};
static mhla_status mhla_captions_make__mhla_captions_desc(void *given) {
    return mhla_captions_make(frozen, given, NULL);
}
static mhla_status mhla_captions_make__mhla_captions_made(void *given) {
    return mhla_captions_make(frozen, &words_desc, given);
}

static void captions(void **state) {
    (void)state;
    const struct_case rows[] = {
        TAKES(mhla_captions_make, mhla_captions_desc, .value = &words_desc),
        FILLS(mhla_captions_make, mhla_captions_made, .optional = 1),
    };
    snprintf(words, sizeof words, "%s", in_root("words.txt"));
    snprintf(words_rows, sizeof words_rows, "%s", in_root("words"));
    write_text_file(in_root("text.txt"), "red on the left, green on the right\n", "w");
    write_text_file(words, "red heart\nblue\n", "w");
    make_encoder(in_root("encoder"), 5);
    ASSERT_OK(mhla_model_open(&frozen, in_root("encoder")));
    STRUCTS_TRY(rows);
    mhla_model_free(frozen);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(captions)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
