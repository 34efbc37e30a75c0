/* umT5's encoder as an architecture: its files, whose matrices stay mapped, and its role. */
#include <string.h>

#include "core/status.h"
#include "models/encoders/umt5.h"
#include "models/model.h"

enum { TOKENS = 512 }; /* of a text, as diffusions use it */

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_umt5_config config;
    MHLA_TRY(mhla_umt5_from_recipe(&config, given, prefix));
    return mhla_umt5_create((mhla_umt5 **)net, &config, 0, MHLA_F32);
}

static void release(void *net) { mhla_umt5_free(net); }
static mhla_params *params(const void *net) { return mhla_umt5_params(net); }
static json_t *tree(const void *net) { return mhla_umt5_config_tree(mhla_umt5_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *type = json_string_value(json_object_get(e->config, "model_type"));
    int original;
    if (type) return strcmp(type, "umt5") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_umt5_layout_of(&original, e->file);
}

/* As the matrices of the file are, unless the caller says otherwise. */
static mhla_status choose_precision(mhla_dtype *precision, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage == MHLA_Q8_0)
        return mhla_fail(MHLA_EINVAL, "storage \"q8_0\": this encoder's weights are read as float32 or bfloat16");
    *precision = storage > 0 ? (mhla_dtype)storage : MHLA_F32;
    for (int64_t i = 0; storage < 0 && e->file && i < mhla_safetensors_count(e->file); i++)
        if (mhla_safetensors_at(e->file, i)->dtype == MHLA_IO_BF16) *precision = MHLA_BF16;
    return MHLA_OK;
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_umt5_config c;
    mhla_dtype precision = MHLA_F32;
    MHLA_TRY(choose_precision(&precision, e, desc));
    MHLA_TRY(mhla_umt5_config_read(&c, e->config, e->config ? e->config_path : e->path));
    if (e->file && json_object_get(e->config, "d_model") == NULL) MHLA_TRY(mhla_umt5_config_guess(&c, e->file));
    if (e->file)
        MHLA_TRY(mhla_config_fits(e->file, (double)c.width * ((double)c.vocabulary + 3.0 * c.layers * c.hidden)));
    return mhla_umt5_create((mhla_umt5 **)net, &c, 1, precision);
}

static void name_of(char name[256], const void *of, const char *parameter) {
    mhla_umt5_name(name, *(const int *)of, parameter);
}

/* The embedding by its other name. */
static int is_other(const void *of, const char *name) {
    (void)of;
    return strcmp(name, "encoder.embed_tokens.weight") == 0;
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int original = 0;
    (void)desc;
    if (!mhla_umt5_layout_of(&original, e->file)) original = 0; /* then the first tensor that is missing is named */
    return mhla_params_load_named(m->params, e->file,
                                  &(mhla_naming){.name = name_of,
                                                 .others = is_other,
                                                 .take = mhla_param_lend_stored,
                                                 .of = &original,
                                                 .what = "the encoder"});
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_umt5_config *c = mhla_umt5_config_of(m->net);
    info->name = *c->model ? c->model : "UMT5EncoderModel";
    info->tokens = TOKENS;
    info->multiply_adds = info->multiply_adds_paper = mhla_umt5_multiply_adds(c, TOKENS);
}

static void describe(const void *net, mhla_encoder_info *info) {
    const mhla_umt5_config *c = mhla_umt5_config_of(net);
    *info = (mhla_encoder_info){.vocabulary = c->vocabulary, .width = c->width, .together = 1};
}

static mhla_tensor *forward(mhla_tape *t, void *net, const int32_t *ids, const int32_t *lengths, int64_t B, int64_t T) {
    return mhla_umt5_forward(t, net, NULL, ids, lengths, B, T);
}

static const mhla_encoder encoder = {describe, forward};

const mhla_architecture mhla_architecture_umt5 = {
    .name = "umt5",
    .kind = "encoder",
    .what = "a text encoder",
    .known =
        "config.json with \"model_type\": \"umt5\", or a bare file with shared.weight and encoder.block tensors or "
        "with token_embedding.weight and pos_embedding tensors",
    .presets = MHLA_UMT5_PRESETS,
    .rows = mhla_umt5_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .encoder = &encoder,
};
