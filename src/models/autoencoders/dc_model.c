/* AutoencoderDC as an architecture: its files, its role. */
#include <string.h>

#include "core/status.h"
#include "models/autoencoders/dc.h"
#include "models/model.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_dc_config config;
    MHLA_TRY(mhla_dc_from_recipe(&config, given, prefix));
    return mhla_dc_create((mhla_dc **)net, &config);
}

static void release(void *net) { mhla_dc_free(net); }
static mhla_params *params(const void *net) { return mhla_dc_params(net); }
static json_t *tree(const void *net) { return mhla_dc_config_tree(mhla_dc_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    const char *name = json_string_value(json_object_get(e->config, "_class_name"));
    if (name) return strcmp(name, "AutoencoderDC") == 0;
    return e->file && e->index == NULL && (e->config == NULL || !mhla_evidence_named(e)) &&
           mhla_dc_fits_tensors(e->file);
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_dc_config c;
    (void)desc; /* storage is asked for below */
    const int guess = json_object_get(e->config, "_class_name") == NULL;
    MHLA_TRY(mhla_dc_config_read(&c, e->config, e->config ? e->config_path : e->path));
    if (e->file) MHLA_TRY(mhla_dc_config_complete(&c, e->file, guess));
    double least = 0.0;
    for (int decode = 0; decode < 2; decode++) {
        const mhla_dc_stages *s = decode ? &c.decoder : &c.encoder;
        for (int i = 0; i < mhla_dc_count(s) && (decode ? c.decodes : c.encodes); i++)
            least += s->layers[i] * 16.0 * s->widths[i] * s->widths[i]; /* a block has 17 or 18 times the square */
    }
    if (e->file) MHLA_TRY(mhla_config_fits(e->file, least));
    return mhla_dc_create((mhla_dc **)net, &c);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc->storage));
    if (storage == MHLA_Q8_0)
        return mhla_fail(MHLA_EINVAL, "storage \"q8_0\": an autoencoder's weights are kept as float32 or bfloat16");
    if (storage > MHLA_F32) MHLA_TRY(mhla_params_store(m->params, (mhla_dtype)storage));
    return mhla_dc_load(m->params, e->file);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_dc_config *c = mhla_dc_config_of(m->net);
    info->name = *c->model ? c->model : "AutoencoderDC";
    info->channels = c->channels;
    info->height = info->width = c->side;
    info->tokens = (int64_t)(c->side / mhla_dc_factor(c)) * (c->side / mhla_dc_factor(c));
    for (int decode = 0; decode < 2; decode++)
        if (decode ? c->decodes : c->encodes) info->multiply_adds += mhla_dc_multiply_adds(c, c->side, c->side, decode);
    info->multiply_adds_paper = info->multiply_adds;
}

static void describe(const void *net, mhla_autoencoder_info *info) {
    const mhla_dc_config *c = mhla_dc_config_of(net);
    *info = (mhla_autoencoder_info){.channels = c->channels,
                                    .outputs = c->channels,
                                    .latents = c->latents,
                                    .factor = mhla_dc_factor(c),
                                    .side = c->side,
                                    .scale = c->scale,
                                    .certain = 1,
                                    .encodes = c->encodes,
                                    .decodes = c->decodes};
}

static int64_t cost(const void *net, mhla_extent extent, int decode) {
    return mhla_dc_multiply_adds(mhla_dc_config_of(net), extent.height, extent.width, decode);
}

static mhla_tensor *encode(mhla_tape *t, void *net, mhla_tensor *pixels) { return mhla_dc_encode(t, net, pixels); }
static mhla_tensor *decode(mhla_tape *t, void *net, mhla_tensor *latents) {
    return mhla_dc_decode(t, net, NULL, latents);
}

static void rescale(void *net, double scale) { mhla_dc_rescale(net, scale); }

static const mhla_autoencoder autoencoder = {describe, cost, encode, decode, rescale};

const mhla_architecture mhla_architecture_dc_ae = {
    .name = "dc_ae",
    .kind = "autoencoder",
    .what = "an autoencoder",
    .known = "config.json with \"_class_name\": \"AutoencoderDC\", or a bare file with encoder.down_blocks.0.0, "
             "decoder.up_blocks.0.0 or encoder.stages.0.op_list tensors",
    .presets = MHLA_DC_PRESETS,
    .rows = mhla_dc_rows,
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
