/* What files say about a language model besides its weights, from Hugging Face's folders to GGUF and back: the tokens that
 * end a text. */
#include "files.h"
#include "io/json.h"
#include "models/model.h"

static void put_text(const char *path, const char *text) { write_file(path, text, strlen(text)); }

/* A small Llama in folder/model, key by key as `changes` (an object, or NULL) says. */
static void write_model(const char *attention, const char *changes) {
    char setting[64];
    snprintf(setting, sizeof setting, "attention=%s", attention);
    const char *settings[] = {"vocab_size=24", "hidden_size=32",      "intermediate_size=64", "parameter_names=llama",
                              setting,         "num_hidden_layers=1", "num_heads=2"};
    mhla_model *m;
    json_t *tree, *more;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 7, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("model")));
    mhla_model_free(m);
    unlink(in_folder("model/generation_config.json"));
    if (changes == NULL) return;
    ASSERT_OK(mhla_json_load(&tree, in_folder("model/config.json")));
    ASSERT_OK(mhla_json_parse(&more, changes, strlen(changes), "changes"));
    json_object_update(tree, more);
    ASSERT_OK(mhla_json_save(tree, in_folder("model/config.json")));
    json_decref(tree);
    json_decref(more);
}

/* ---- The end of a text ---- */

static void expect_ends(const char *path, int32_t eos, const int32_t *ends, int count) {
    mhla_model *m;
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_open(&m, path));
    ASSERT_OK(mhla_lm_query(m, &info));
    assert_int_equal(info.eos, eos);
    assert_int_equal(info.end_count, count);
    for (int i = 0; i < count; i++) assert_int_equal(info.ends[i], ends[i]);
    mhla_model_free(m);
}

/* The same of a folder and of the GGUF that it becomes, and of that GGUF's own copy. */
static void expect_everywhere(int32_t eos, const int32_t *ends, int count) {
    expect_ends(in_folder("model"), eos, ends, count);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    expect_ends(in_folder("a.gguf"), eos, ends, count);
    ASSERT_OK(mhla_lm_convert(in_folder("b.gguf"), in_folder("a.gguf"), NULL, NULL));
    expect_ends(in_folder("b.gguf"), eos, ends, count);
}

static void ends(void **state) {
    (void)state;
    static const char *const attentions[] = {"softmax", "mhla"};
    for (int i = 0; i < 2; i++) {
        write_model(attentions[i], "{\"eos_token_id\": 4}");
        expect_everywhere(4, (const int32_t[]){4}, 1);
        write_model(attentions[i], "{\"eos_token_id\": null}");
        expect_ends(in_folder("model"), i ? 2 : -1, (const int32_t[]){2}, i); /* fla's default, Llama's none */
        write_model(attentions[i], "{\"eos_token_id\": [3, 5.0, 8]}");
        expect_everywhere(3, (const int32_t[]){3, 5, 8}, 3);
        /* generation_config.json counts more, and may say nothing */
        put_text(in_folder("model/generation_config.json"), "{\"temperature\": 0.6, \"eos_token_id\": [7, 5, 9, 11]}");
        expect_everywhere(3, (const int32_t[]){7, 5, 9, 11}, 4);
        put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": 6}");
        expect_everywhere(3, (const int32_t[]){6}, 1);
        put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": null}");
        expect_everywhere(3, (const int32_t[]){3, 5, 8}, 3);
    }
    write_model("softmax", "{\"eos_token_id\": null}");
    put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": [9, 2]}");
    expect_everywhere(9, (const int32_t[]){9, 2}, 2);
    /* a folder takes the file along */
    ASSERT_OK(mhla_convert(in_folder("copy"), in_folder("model"), NULL, NULL));
    expect_ends(in_folder("copy"), 9, (const int32_t[]){9, 2}, 2);
}

/* A GGUF of others: the ends of text, turn and message, without our own key. */
static void gguf_ends(void **state) {
    (void)state;
    size_t size;
    write_model("softmax", "{\"eos_token_id\": [3, 5, 8, 3]}");
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    char *bytes = read_file(in_folder("a.gguf"), &size);
    static const char key[] = "mhla.eos_token_ids";
    char *at = memmem(bytes, size, key, sizeof key - 1);
    assert_non_null(at);
    *at = 'n';
    write_file(in_folder("b.gguf"), bytes, size);
    expect_ends(in_folder("b.gguf"), 3, (const int32_t[]){3, 5, 8}, 3);
    *at = 'm';
    at += sizeof key - 1 + 4 + 4 + 8; /* kind, kind of the elements, count */
    at[4] = 24;                       /* the second token */
    write_file(in_folder("b.gguf"), bytes, size);
    mhla_model *m;
    ASSERT_FAILS(mhla_model_open(&m, in_folder("b.gguf")), MHLA_EDATA, "mhla.eos_token_ids is 24: there are 24 tokens");
    free(bytes);
}

static void wrong_ends(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *says;
    } wrong[] = {
        {"config.json", "{\"eos_token_id\": [1, 24]}", "config.json: \"eos_token_id\"[1] is no token from 0 to 23"},
        {"config.json", "{\"eos_token_id\": [1, \"2\"]}", "\"eos_token_id\"[1]"},
        {"config.json", "{\"eos_token_id\": [0.5]}", "\"eos_token_id\"[0]"},
        {"generation_config.json", "{\"eos_token_id\": \"</s>\"}", "generation_config.json: \"eos_token_id\"[0]"},
        {"generation_config.json", "{\"eos_token_id\": [-1]}", "generation_config.json: \"eos_token_id\"[0]"},
        {"generation_config.json", "[1]", "generation_config.json: no JSON object"},
        {"generation_config.json", "{\"eos_token_id\": [", "generation_config.json"},
        {"generation_config.json",
         "{\"eos_token_id\": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
         "has 33 tokens: expected 32 at most"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        const int own = strcmp(wrong[i].file, "config.json") == 0;
        write_model("softmax", own ? wrong[i].text : NULL);
        if (!own) put_text(in_folder("model/generation_config.json"), wrong[i].text);
        ASSERT_FAILS(mhla_model_open(&m, in_folder("model")), MHLA_EDATA, wrong[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends),
        cmocka_unit_test(gguf_ends),
        cmocka_unit_test(wrong_ends),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
