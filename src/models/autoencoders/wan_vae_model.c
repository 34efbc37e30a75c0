/* AutoencoderKLWan as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/wan_vae.h"
#include "models/model.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_wan_vae_config config;
    MHLA_TRY(mhla_wan_vae_from_recipe(&config, given, prefix));
    return mhla_wan_vae_create((mhla_wan_vae **)net, &config);
}

static void release(void *net) { mhla_wan_vae_free(net); }
static mhla_params *params(const void *net) { return mhla_wan_vae_params(net); }
static json_t *tree(const void *net) { return mhla_wan_vae_config_tree(mhla_wan_vae_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *name = json_string_value(json_object_get(e->config, "_class_name"));
    mhla_wan_vae_layout layout;
    if (name) return strcmp(name, "AutoencoderKLWan") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_wan_vae_layout_of(&layout, e->file);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_wan_vae_config c = {0};
    (void)desc; /* storage is asked for below */
    const int guess = json_object_get(e->config, "base_dim") == NULL;
    MHLA_TRY(mhla_wan_vae_config_read(&c, e->config, e->config ? e->config_path : e->path));
    if (e->file) MHLA_TRY(mhla_wan_vae_config_complete(&c, e->file, guess));
    double least = 0.0;
    for (int i = 0; i < mhla_wan_vae_levels(&c); i++)
        least += (c.encoder + c.decoder) * c.layers * 54.0 * (c.base * c.widths[i]) * (c.base * c.widths[i]) / 2.0;
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, least));
    return mhla_wan_vae_create((mhla_wan_vae **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage == MHLA_Q8_0)
        return mhla_fail(MHLA_EINVAL, "storage \"q8_0\": an autoencoder's weights are kept as float32 or bfloat16");
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    return mhla_wan_vae_load(m->params, mhla_wan_vae_config_of(m->net), e->file);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_wan_vae_config *c = mhla_wan_vae_config_of(m->net);
    info->name = *c->model ? c->model : "AutoencoderKLWan";
    info->channels = c->in_channels;
    info->height = info->width = c->side;
    info->tokens = (int64_t)(c->side / mhla_wan_vae_factor(c)) * (c->side / mhla_wan_vae_factor(c));
    for (int decode = 0; decode < 2; decode++)
        if (decode ? c->decoder : c->encoder)
            info->multiply_adds += mhla_wan_vae_multiply_adds(c, (mhla_extent){1, c->side, c->side}, decode);
    info->multiply_adds_paper = info->multiply_adds;
}

static void describe(const void *net, mhla_autoencoder_info *info) {
    const mhla_wan_vae_config *c = mhla_wan_vae_config_of(net);
    *info = (mhla_autoencoder_info){.channels = c->in_channels,
                                    .outputs = c->out_channels,
                                    .latents = c->latents,
                                    .factor = mhla_wan_vae_factor(c),
                                    .frames = mhla_wan_vae_frames(c),
                                    .side = c->side,
                                    .scale = 1.0,
                                    .mean = c->mean,
                                    .deviation = c->deviation,
                                    .encodes = c->encoder,
                                    .decodes = c->decoder};
}

static int64_t cost(const void *net, mhla_extent extent, int decode) {
    return mhla_wan_vae_multiply_adds(mhla_wan_vae_config_of(net), extent, decode);
}

static mhla_tensor *encode(mhla_tape *t, void *net, mhla_tensor *pixels) {
    return mhla_wan_vae_encode(t, net, NULL, pixels);
}
static mhla_tensor *decode(mhla_tape *t, void *net, mhla_tensor *latents) {
    return mhla_wan_vae_decode(t, net, NULL, latents);
}

static const mhla_autoencoder autoencoder = {.describe = describe, .cost = cost, .encode = encode, .decode = decode};

const mhla_architecture mhla_architecture_wan_vae = {
    .name = "wan_vae",
    .kind = "autoencoder",
    .what = "an autoencoder",
    .known = "config.json with \"_class_name\": \"AutoencoderKLWan\", or a bare file with encoder.down_blocks, "
             "encoder.downsamples "
             "or the like",
    .presets = MHLA_WAN_VAE_PRESETS,
    .rows = mhla_wan_vae_rows,
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
