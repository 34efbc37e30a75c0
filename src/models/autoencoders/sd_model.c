/* AutoencoderKL as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/sd.h"
#include "models/model.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_sd_config config;
    MHLA_TRY(mhla_sd_from_recipe(&config, given, prefix));
    return mhla_sd_create((mhla_sd **)net, &config);
}

static void release(void *net) { mhla_sd_free(net); }
static mhla_params *params(const void *net) { return mhla_sd_params(net); }
static json_t *tree(const void *net) { return mhla_sd_config_tree(mhla_sd_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *name = json_string_value(json_object_get(e->config, "_class_name"));
    mhla_sd_layout layout;
    const char *prefix;
    if (name) return strcmp(name, "AutoencoderKL") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_sd_layout_of(&layout, &prefix, e->file);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_sd_config c = {0};
    (void)desc; /* storage is asked for below */
    const int guess = json_object_get(e->config, "block_out_channels") == NULL;
    MHLA_TRY(mhla_sd_config_read(&c, e->config, e->config ? e->config_path : e->path));
    if (e->file) MHLA_TRY(mhla_sd_config_complete(&c, e->file, guess));
    double least = 0.0;
    for (int i = 0; i < mhla_sd_levels(&c); i++)
        least += (c.encoder + c.decoder) * c.layers * 18.0 * c.widths[i] * c.widths[i];
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, least));
    return mhla_sd_create((mhla_sd **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage == MHLA_Q8_0)
        return mhla_fail(MHLA_EINVAL, "storage \"q8_0\": an autoencoder's weights are kept as float32 or bfloat16");
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    return mhla_sd_load(m->params, mhla_sd_config_of(m->net), e->file);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_sd_config *c = mhla_sd_config_of(m->net);
    info->name = *c->model ? c->model : "AutoencoderKL";
    info->channels = c->in_channels;
    info->height = info->width = c->side;
    info->tokens = (int64_t)(c->side / mhla_sd_factor(c)) * (c->side / mhla_sd_factor(c));
    for (int decode = 0; decode < 2; decode++)
        if (decode ? c->decoder : c->encoder) info->multiply_adds += mhla_sd_multiply_adds(c, c->side, c->side, decode);
    info->multiply_adds_paper = info->multiply_adds;
}

static void describe(const void *net, mhla_autoencoder_info *info) {
    const mhla_sd_config *c = mhla_sd_config_of(net);
    *info = (mhla_autoencoder_info){.channels = c->in_channels,
                                    .outputs = c->out_channels,
                                    .latents = c->latent_channels,
                                    .factor = mhla_sd_factor(c),
                                    .side = c->side,
                                    .scale = c->scale,
                                    .shift = c->shift,
                                    .encodes = c->encoder,
                                    .decodes = c->decoder};
}

static int64_t cost(const void *net, mhla_extent extent, int decode) {
    return mhla_sd_multiply_adds(mhla_sd_config_of(net), extent.height, extent.width, decode);
}

static mhla_tensor *encode(mhla_tape *t, void *net, mhla_tensor *pixels) { return mhla_sd_encode(t, net, pixels); }
static mhla_tensor *decode(mhla_tape *t, void *net, mhla_tensor *latents) {
    return mhla_sd_decode(t, net, NULL, latents);
}

static void rescale(void *net, double scale) { mhla_sd_rescale(net, scale); }

static const mhla_autoencoder autoencoder = {describe, cost, encode, decode, rescale};

const mhla_architecture mhla_architecture_sd_vae = {
    .name = "sd_vae",
    .kind = "autoencoder",
    .what = "an autoencoder",
    .known = "config.json with \"_class_name\": \"AutoencoderKL\", or a bare file with encoder, decoder and mid_block "
             "(or mid) "
             "tensors",
    .presets = MHLA_SD_PRESETS,
    .rows = mhla_sd_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .autoencoder = &autoencoder,
};
