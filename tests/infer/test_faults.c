/* Without memory, with files that cannot be opened, read or written, at the n-th call for every n: models are opened from all
 * formats, saved, converted, sampled from and asked to write; each ends with a status, holds nothing, and what it does not
 * refuse to do is what it does without faults. */
#include "faults.h"

#include <mhla/diffusion.h>
#include <mhla/lm.h>

#include "file/safetensors.h"
#include "files.h"
#include "lm_case.h"

static float straight[4096], got[4096];
static size_t result; /* floats */

static void compare(mhla_status status) {
    if (status == MHLA_OK) assert_memory_equal(straight, got, result * sizeof *got);
}

static void try_case(fault_case c) {
    memset(got, 0, sizeof got);
    if (c.before) c.before();
    ASSERT_OK(c.run());
    memcpy(straight, got, sizeof got);
    if (c.after == NULL) c.after = compare;
    faults_try(&c);
}

/* ---- Classifiers ---- */

static mhla_status classify(void) {
    mhla_model *m = NULL;
    float images[64];
    for (int i = 0; i < 64; i++) images[i] = (float)(i % 7) / 7.0f;
    mhla_status status = mhla_model_open(&m, in_folder("deit"));
    if (status == MHLA_OK) {
        mhla_model_set_context(m, single_thread());
        status = mhla_model_forward(m, got, images, 1);
    }
    mhla_model_free(m);
    return status;
}

static void classifier(void **state) {
    (void)state;
    const char *settings[] = {"image=8", "channels=1", "padding=0", "patch=2", "dim=16", "depth=1", "classes=4"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "deit_nano", settings, 7, 1));
    ASSERT_OK(mhla_model_save(m, in_folder("deit")));
    mhla_model_free(m);
    result = 4;
    try_case((fault_case){.name = "classify", .run = classify});
}

/* ---- Weights of PyTorch: a sum of all tensors' bytes ---- */

static const char *torch_path;

static mhla_status sum_tensors(void) {
    mhla_safetensors *f = NULL;
    const mhla_status status = mhla_safetensors_open(&f, torch_path);
    got[0] = 0.0f;
    for (int64_t i = 0; status == MHLA_OK && i < mhla_safetensors_count(f); i++) {
        const mhla_stored *t = mhla_safetensors_at(f, i);
        for (size_t b = 0; b < t->bytes; b++) got[0] += t->data[b];
    }
    mhla_safetensors_close(f);
    return status;
}

static void torch_files(void **state) {
    (void)state;
    static const char *const names[] = {"zip", "zip4", "old", "old_wrapped"};
    char path[512];
    result = 1;
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/fuzz/corpus/fuzz_torch/%s", MHLA_TESTS, names[i]);
        torch_path = path;
        try_case((fault_case){.name = names[i], .run = sum_tensors});
    }
}

/* ---- Language models ---- */

static char lm_path[256];

static mhla_status generate_of(mhla_model *m) {
    mhla_sequence *s = NULL, *again = NULL;
    mhla_generation *g = NULL;
    mhla_ids ids = {0};
    mhla_piece piece = {.size = sizeof piece};
    const mhla_sequence_desc sequence = {.size = sizeof sequence, .max_tokens = 64};
    const char *const stop[] = {"never"};
    const mhla_generation_desc how = {
        .size = sizeof how, .max_tokens = 5, .ignore_eos = 1, .logprobs = 2, .stop = stop, .stops = 1};
    mhla_model_set_context(m, single_thread());
    mhla_status status = mhla_sequence_create(&s, m, &sequence);
    const mhla_tokenizer *tokenizer = status == MHLA_OK ? mhla_lm_tokenizer(m) : NULL;
    if (status == MHLA_OK && tokenizer == NULL) status = MHLA_ENOMEM; /* it has no status, but a message */
    if (status == MHLA_OK) status = mhla_tokenizer_encode(tokenizer, &ids, "it was the", 10, 0);
    const mhla_feed feed = {.size = sizeof feed, .sequence = s, .ids = ids.data, .count = ids.count};
    if (status == MHLA_OK) status = mhla_lm_feed(m, &feed, 1);
    if (status == MHLA_OK) status = mhla_sequence_save(s, in_folder("state"));
    if (status == MHLA_OK) status = mhla_sequence_load(&again, m, in_folder("state"));
    if (status == MHLA_OK) status = mhla_generation_create(&g, again, ids.data, 1, &how);
    for (int i = 0; i < 5 && status == MHLA_OK; i++) {
        status = mhla_generation_step(m, &g, 1);
        mhla_generation_piece(g, &piece);
        got[i] = (float)piece.id;
    }
    mhla_generation_free(g);
    mhla_sequence_free(again);
    mhla_sequence_free(s);
    mhla_ids_free(&ids);
    return status;
}

static mhla_status generate(void) {
    mhla_model *m = NULL;
    mhla_status status = mhla_model_open(&m, lm_path);
    if (status == MHLA_OK) status = generate_of(m);
    mhla_model_free(m);
    return status;
}

static mhla_status learn_tokens(void) {
    const char *files[] = {in_folder("text.txt")};
    const mhla_tokenizer_training how = {.size = sizeof how, .vocabulary = 280, .context = single_thread()};
    return mhla_tokenizer_train(in_folder("tokenizer.json"), files, 1, &how, NULL, NULL);
}

static void before_convert(void) { unlink(in_folder("new.gguf")); }
static mhla_status convert(void) { return mhla_lm_convert(in_folder("new.gguf"), in_folder("lm"), NULL, NULL); }
static void after_convert(mhla_status status) {
    if (status == MHLA_OK || !exists(in_folder("new.gguf"))) return;
    snprintf(lm_path, sizeof lm_path, "%s",
             in_folder("new.gguf")); /* a failure after it was put in place: it is whole */
    ASSERT_OK(generate());
}

static void language(void **state) {
    (void)state;
    static const char text[] = "it was the best of times, it was the worst of times, it was the age of wisdom\n";
    const char *settings[] = {"vocab_size=280", "hidden_size=32", "intermediate_size=48", "num_hidden_layers=1"};
    mhla_model *m;
    write_file(in_folder("text.txt"), text, sizeof text - 1);
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 4, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("lm")));
    mhla_model_free(m);
    result = 0;
    try_case((fault_case){.name = "train a tokenizer", .run = learn_tokens});
    assert_int_equal(rename(in_folder("tokenizer.json"), in_folder("lm/tokenizer.json")), 0);
    ASSERT_OK(mhla_lm_convert(in_folder("lm.gguf"), in_folder("lm"), NULL, NULL));
    result = 5;
    snprintf(lm_path, sizeof lm_path, "%s", in_folder("lm"));
    try_case((fault_case){.name = "generate, from safetensors", .run = generate});
    snprintf(lm_path, sizeof lm_path, "%s", in_folder("lm.gguf"));
    try_case((fault_case){.name = "generate, from GGUF", .run = generate});
    try_case((fault_case){.name = "convert", .before = before_convert, .run = convert, .after = after_convert});
}

/* ---- Diffusion models: images to files ---- */

static mhla_status sample_images(void) {
    static const int32_t classes[2] = {0, 1};
    static const uint64_t seeds[2] = {1, 2};
    mhla_model *m = NULL;
    mhla_picture picture = {.size = sizeof picture};
    const mhla_sample_desc d = {
        .size = sizeof d, .images = 2, .classes = classes, .seeds = seeds, .guidance = 2.0, .steps = 2};
    mhla_status status = mhla_model_open(&m, in_folder("dit"));
    if (status == MHLA_OK) {
        mhla_model_set_context(m, single_thread());
        status = mhla_model_sample(m, got, &d, NULL);
    }
    if (status == MHLA_OK) status = mhla_picture_tile(&picture, got, 2, 1, 8, 8, 2);
    if (status == MHLA_OK) status = mhla_picture_write(in_folder("out.png"), &picture, 1, NULL);
    mhla_picture_free(&picture);
    if (status == MHLA_OK) status = mhla_picture_read(&picture, in_folder("out.png"));
    mhla_picture_free(&picture);
    mhla_model_free(m);
    return status;
}

static void diffusion(void **state) {
    (void)state;
    const char *settings[] = {"image=8", "channels=1", "patch=2", "dim=16", "depth=1", "heads=2", "classes=4"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "dit_micro", settings, 7, 1));
    ASSERT_OK(mhla_model_save(m, in_folder("dit")));
    mhla_model_free(m);
    result = 128;
    try_case((fault_case){.name = "sample", .run = sample_images});
}

int main(void) {
    faults_start();
    const struct CMUnitTest tests[] = {cmocka_unit_test(classifier), cmocka_unit_test(torch_files),
                                       cmocka_unit_test(language), cmocka_unit_test(diffusion)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
