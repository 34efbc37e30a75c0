/* Models from hostile or foreign folders: config.json with wrong keys, types and sizes, weights of something else. */
#include <mhla/nn.h>

#include "file/safetensors.h"
#include "files.h"

static void bad(const char *config, const char *word) {
    mhla_model *model;
    write_file(in_folder("config.json"), config, strlen(config));
    if (mhla_model_open(&model, folder) == MHLA_OK) fail_msg("accepted: %s", config);
    assert_null(model);
    message_has(config, word);
}

static void configs(void **state) {
    (void)state;
    const float x = 1.0f;
    const mhla_storable tensor = {"x", 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32};
    assert_int_equal(mhla_safetensors_write(in_folder("model.safetensors"), &tensor, 1, NULL, 0), MHLA_OK);
    bad("", "config.json: empty");
    bad("{", "config.json:1:1");
    bad("[]", "config.json");
    bad("{\"model\":\"deit_nano\",\"atention\":\"softmax\"}", "unknown key \"atention\"; did you mean \"attention\"?");
    bad("{\"model\":\"deit_nano\",\"attention\":3}", "\"attention\" is 3: expected one of mhla, linear, softmax");
    bad("{\"model\":\"deit_nano\",\"depth\":\"many\"}", "\"depth\" is \"many\": expected an integer from 1 to 256");
    bad("{\"model\":\"deit_nano\",\"depth\":1e18}", "\"depth\" is");
    bad("{\"model\":\"deit_nano\",\"class_names\":5}", "class_names");
    bad("{\"model\":\"deit_nano\",\"classes\":2,\"class_names\":[\"a\",5]}", "class_names[1]");
    bad("{\"model\":\"deit_nano\",\"classes\":2,\"class_names\":[\"a\",\"b\"]}", "no tensor \"");
    /* terabytes: told at once, and no memory is taken for them */
    bad("{\"model\":\"deit_nano\",\"attention\":\"softmax\",\"dim\":16384,\"heads\":256,\"depth\":256,\"classes\":2,"
        "\"class_names\":[\"a\",\"b\"]}",
        "model.safetensors: 1 numbers in all; the model that config.json describes has");
    assert_int_equal(unlink(in_folder("model.safetensors")), 0);
    bad("{\"model\":\"deit_nano\",\"classes\":2,\"class_names\":[\"a\",\"b\"]}", "no safetensors file");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(configs)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
