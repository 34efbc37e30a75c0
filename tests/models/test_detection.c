/* What files are of: exactly one architecture says yes, or the message lists what was found and what is known. Folders of other
 * programs, and values that are made to harm. */
#include "file/safetensors.h"
#include "files.h"
#include "models/model.h"

static void clear(void) {
    remove_folder(NULL);
    assert_int_equal(mkdir(folder, 0700), 0);
}
static void put(const char *name, const char *text) { write_file(in_folder(name), text, strlen(text)); }
static void put_tensors(const char *name, const char *first, const char *second) {
    const float x = 1.0f;
    const mhla_storable list[] = {{first, 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32},
                                  {second, 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32}};
    ASSERT_OK(mhla_safetensors_write(in_folder(name), list, 2, NULL, 0));
}
/* Refused, with all that is known, to the last architecture of the list. */
static void refused(mhla_status status, const char *path, const char *found) {
    mhla_model *model;
    const mhla_architecture *a;
    ASSERT_FAILS(mhla_model_open(&model, path), status, found);
    assert_null(model);
    for (int i = 0; (a = mhla_architecture_at(i)) != NULL; i++) {
        message_has(path, a->name);
        message_has(path, a->known);
    }
    for (const char *at = mhla_message(); *at; at++) assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
}

static void of_others(void **state) {
    (void)state;
    clear();
    refused(MHLA_EDATA, folder,
            "neither a model nor a run. Found: no config.json here, nor in best/ or last/, no model_index.json, no "
            "weights.");
    put("model_index.json", "{\"_class_name\": \"StableDiffusionXLPipeline\", \"unet\": [\"diffusers\", \"UNet\"]}");
    refused(MHLA_ENOTSUP, folder, "model_index.json of a pipeline, _class_name \"StableDiffusionXLPipeline\"");
    put("model_index.json", "[]");
    mhla_model *model;
    ASSERT_FAILS(mhla_model_open(&model, folder), MHLA_EDATA, "model_index.json: no JSON object");
    clear();
    /* before weights are looked for under names of ours */
    put("config.json", "{\"model_type\": \"bert\", \"architectures\": [\"BertForMaskedLM\"]}");
    refused(MHLA_ENOTSUP, folder, "Found: config.json, model_type \"bert\", architectures \"BertForMaskedLM\". Known");
    put("config.json", "{\"_class_name\": \"UNet2DConditionModel\"}");
    refused(MHLA_ENOTSUP, folder, "Found: config.json, _class_name \"UNet2DConditionModel\". Known");
    put("config.json", "{\"model_type\": 5, \"architectures\": []}");
    refused(MHLA_ENOTSUP, folder, "model_type without a text");
    put("config.json", "{\"model_type\": \"a\\u001b[31mb\\n\\u0007\\u009b\", \"architectures\": [\"\\u007f\"]}");
    refused(MHLA_ENOTSUP, folder, "model_type \"a?[31mb???\", architectures \"?\"");
}

static void ambiguous(void **state) {
    (void)state;
    clear();
    put("config.json", "{\"model_type\": \"mhla\", \"model\": \"deit_nano\"}");
    refused(MHLA_EDATA, folder,
            "this could be deit and lm. Found: config.json, model_type \"mhla\", model \"deit_nano\"");
    put("config.json", "{\"model_type\": \"mhla_dit\", \"architecture\": \"deit_tiny_patch16_224\"}");
    refused(MHLA_EDATA, folder, "this could be deit and dit");
}

static void by_tensors(void **state) {
    (void)state;
    clear();
    put_tensors("model.safetensors", "encoder.weight", "embeddings.weight");
    refused(MHLA_ENOTSUP, folder, "no config.json, 2 tensors: \"embeddings.weight\", \"encoder.weight\"");
    refused(MHLA_ENOTSUP, in_folder("model.safetensors"), "no config.json, 2 tensors: ");
    put("config.json", "{\"hidden\": 5}");
    refused(MHLA_ENOTSUP, folder, "config.json without model_type, _class_name, architecture or model, 2 tensors");
    /* DeiT's names of tensors count where nothing says what they are of */
    put_tensors("model.safetensors", "patch_embed.proj.weight", "blocks.0.norm1.weight");
    mhla_model *model;
    ASSERT_FAILS(mhla_model_open(&model, folder), MHLA_EDATA, "unknown key \"hidden\"");
    put("config.json", "{\"_class_name\": \"SomeTransformer\"}");
    refused(MHLA_ENOTSUP, folder, "_class_name \"SomeTransformer\"");
}

static void several_gguf(void **state) {
    (void)state;
    clear();
    put("a.gguf", "GGUF");
    put("b.gguf", "GGUF");
    mhla_model *model;
    ASSERT_FAILS(mhla_model_open(&model, folder), MHLA_EDATA, "several .gguf files: name one of them");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_others), cmocka_unit_test(ambiguous),
                                       cmocka_unit_test(by_tensors), cmocka_unit_test(several_gguf)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
