/* Language models behind the public handle: folders as the Python world has them, with the names of flash-linear-attention
 * or of Hugging Face's Llama; the tokenizer beside them; what they cost. GGUF files: lm_gguf.c. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "models/language/lm_files.h"
#include "models/language/sequence.h"
#include "models/model.h"

static mhla_status create(void **net, const mhla_recipe *given, const char *prefix) {
    mhla_lm_config config;
    MHLA_TRY(mhla_lm_from_recipe(&config, given, prefix));
    return mhla_lm_create((mhla_lm **)net, &config);
}

static void release(void *net) { mhla_lm_free(net); }
static mhla_params *params(const void *net) { return mhla_lm_params(net); }
static json_t *tree(const void *net) { return mhla_lm_config_tree(mhla_lm_config_of(net)); }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int fits(const mhla_evidence *e) {
    return e->gguf ? mhla_lm_gguf_fits(e->gguf) : e->config && mhla_lm_config_fits(e->config);
}

/* Matrices as most of their numbers are in the file. */
static mhla_dtype natural_storage(const mhla_safetensors *file) {
    double all = 0.0, bf16 = 0.0;
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        if (s->rank != 2) continue;
        all += (double)s->count;
        if (s->dtype == MHLA_IO_BF16) bf16 += (double)s->count;
    }
    return 2.0 * bf16 > all ? MHLA_BF16 : MHLA_F32;
}

/* generation_config.json beside config.json: its tokens for the end count more, as they do in Hugging Face's generate. */
static mhla_status read_generation(mhla_lm_config *c, const char *config) {
    char path[4096];
    const char *slash = strrchr(config, '/');
    json_t *tree = NULL;
    const int n =
        snprintf(path, sizeof path, "%.*sgeneration_config.json", slash ? (int)(slash - config) + 1 : 0, config);
    if (n >= (int)sizeof path || access(path, F_OK) != 0) return MHLA_OK;
    MHLA_TRY(mhla_json_load(&tree, path));
    mhla_status status = json_is_object(tree) ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: no JSON object", path);
    if (status == MHLA_OK) status = mhla_lm_ends_read(c, tree, "eos_token_id", path);
    if (status == MHLA_OK && c->eos < 0 && c->end_count) c->eos = c->ends[0];
    json_decref(tree);
    return status;
}

static mhla_status read_files(void **net, const mhla_evidence *e, const mhla_open_desc *desc) {
    mhla_lm_config c;
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc ? desc->storage : NULL));
    if (e->gguf) return mhla_lm_gguf_read((mhla_lm **)net, e->gguf, storage);
    MHLA_TRY(mhla_lm_config_read(&c, e->config, e->file, e->config_path));
    MHLA_TRY(read_generation(&c, e->config_path));
    MHLA_TRY(mhla_config_fits(e->file, (double)c.vocabulary * c.width + 3.0 * c.layers * (double)c.width * c.hidden));
    return mhla_lm_create_as((mhla_lm **)net, &c, storage < 0 ? natural_storage(e->file) : (mhla_dtype)storage);
}

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* What stands in a file for the "model." before our names: nothing in a bare network, more in one that sees images, too. */
static const char *prefix_of(const mhla_safetensors *file, const char *embeddings) {
    static const char *const known[] = {"model.", "", "language_model.model.", "model.language_model."};
    char name[128];
    for (int i = 0; i < 4 && strncmp(embeddings, known[0], strlen(known[0])) == 0; i++) {
        snprintf(name, sizeof name, "%s%s", known[i], embeddings + strlen(known[0]));
        if (mhla_safetensors_find(file, name)) return known[i];
    }
    return known[0];
}

/* Under which name a tensor of ours is in the file, and the other way round. */
static const char *renamed(char to[256], const char *name, const char *from, const char *prefix) {
    const size_t n = strlen(from);
    if (strncmp(name, from, n) != 0 || ends_with(name, "lm_head.weight")) return name;
    snprintf(to, 256, "%s%s", prefix, name + n);
    return to;
}

/* Parts of a model that sees images, too. */
static int of_images(const mhla_evidence *e, const char *name) {
    static const char *const parts[] = {"vision_tower.", "multi_modal_projector."};
    if (!json_is_object(json_object_get(e->config, "text_config"))) return 0;
    if (strncmp(name, "model.", 6) == 0) name += 6;
    for (int i = 0; i < 2; i++)
        if (strncmp(name, parts[i], strlen(parts[i])) == 0) return 1;
    return 0;
}

/* The tensor of a parameter; the norm behind a gate has two names in the wild. */
static mhla_status find(const mhla_stored **s, const mhla_safetensors *file, const char *ours, const char *prefix) {
    char made[256];
    const char *name = renamed(made, ours, "model.", prefix);
    *s = mhla_safetensors_find(file, name);
    if (*s == NULL && ends_with(name, ".g_norm_swish_gate.weight")) {
        char other[256];
        snprintf(other, sizeof other, "%.*s.g_norm.weight", (int)(strlen(name) - strlen(".g_norm_swish_gate.weight")),
                 name);
        *s = mhla_safetensors_find(file, other);
    }
    return *s ? MHLA_OK : mhla_safetensors_need(s, file, name);
}

/* The output matrix of tied weights may be in the file as well, and must then be the embedding. */
static mhla_status check_tied(const mhla_stored *head, const mhla_safetensors *file, const mhla_param *embedding,
                              const char *prefix) {
    char name[256];
    const mhla_stored *s = mhla_safetensors_find(file, renamed(name, embedding->name, "model.", prefix));
    if (s && s->dtype == head->dtype && s->bytes == head->bytes && memcmp(s->data, head->data, s->bytes) == 0)
        return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: tensor %s differs from %s, though tie_word_embeddings is true", head->path,
                     head->name, embedding->name);
}

static mhla_status load(mhla_model *m, const mhla_evidence *e, const mhla_open_desc *desc) {
    const mhla_safetensors *file = e->file;
    mhla_params *ps = m->params;
    int storage;
    MHLA_TRY(mhla_storage_named(&storage, desc ? desc->storage : NULL));
    if (e->gguf) return mhla_lm_gguf_load(m, e->gguf, storage);
    const char *prefix = prefix_of(file, mhla_lm_names_of[mhla_lm_config_of(m->net)->naming].embeddings);
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        const mhla_stored *s;
        MHLA_TRY(find(&s, file, p->name, prefix));
        MHLA_TRY(mhla_stored_check(s, p->dims, p->shape));
        MHLA_TRY(mhla_param_read(p, s));
        if (p->flags & MHLA_PARAM_MIX) /* the released code does so at the start of every pass */
            MHLA_TRY(mhla_mix_clip(p->data, p->shape[0], p->shape[1], p->mix_low, p->mix_high, 0, 1));
    }
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        char name[256];
        if (mhla_params_find(ps, renamed(name, s->name, prefix, "model.")) || of_images(e, s->name) ||
            ends_with(s->name, ".inv_freq") ||
            ends_with(s->name, ".g_norm.weight")) /* rotary frequencies, which follow from the config */
            continue;
        if (strcmp(s->name, "lm_head.weight") == 0 || strcmp(s->name, "language_model.lm_head.weight") == 0)
            MHLA_TRY(check_tied(s, file, mhla_lm_output(m->net), prefix));
        else
            return mhla_fail(MHLA_EDATA, "%s: tensor %s is not part of the model that config.json describes", s->path,
                             s->name);
    }
    return MHLA_OK;
}

/* ---- Looking into it ------------------------------------------------------------------------------------------------ */

static void query(const mhla_model *m, mhla_model_info *info) {
    const mhla_lm_config *c = mhla_lm_config_of(m->net);
    info->name = c->model;
    info->tokens = mhla_lm_context(c);
    info->multiply_adds = mhla_lm_multiply_adds(c, info->tokens ? info->tokens : 1);
    info->multiply_adds_paper = info->multiply_adds;
}

mhla_status mhla_lm_query(const mhla_model *m, mhla_lm_info *info) {
    static const char *const names[] = {"float32", "bfloat16", "q8_0"};
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DECODER));
    const mhla_lm_config *c = mhla_lm_config_of(m->net);
    mhla_lm_info full = {
        .size = sizeof full,
        .vocabulary = c->vocabulary,
        .width = c->width,
        .layers = c->layers,
        .context = mhla_lm_context(c),
        .bos = c->bos,
        .eos = c->eos,
        .attention = mhla_lm_attention_text(m->net),
        .storage = names[mhla_lm_output(m->net)->dtype],
        .parameters = mhla_params_elements(m->params),
    };
    full.chunk = (int)mhla_lm_facts(c).chunk;
    full.multiply_adds = mhla_lm_multiply_adds(c, full.context ? full.context : 1);
    full.state_bytes = (size_t)mhla_lm_state_bytes(c, full.context ? full.context : 1);
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if ((p->flags & MHLA_PARAM_MATRIX) && p->dtype != mhla_lm_output(m->net)->dtype) full.storage = "mixed";
        if (i == 0 && !c->tied) continue; /* of the embedding one row is read */
        full.weight_bytes += p->dtype == MHLA_F32    ? (size_t)p->count * 4
                             : p->dtype == MHLA_BF16 ? (size_t)p->count * 2
                                                     : (size_t)(p->count / 32 * 34);
    }
    if ((c->bos < 0 || c->eos < 0) && m->origin && mhla_lm_tokenizer(m)) { /* what config.json does not say */
        mhla_tokenizer_info t = {.size = sizeof t};
        if (mhla_tokenizer_query(m->tokenizer, &t) == MHLA_OK) {
            if (c->bos < 0) full.bos = t.bos;
            if (c->eos < 0) full.eos = t.eos;
        }
    }
    mhla_model *own = (mhla_model *)(uintptr_t)m;
    own->end = full.eos;
    full.ends = c->end_count ? c->ends : &m->end;
    full.end_count = c->end_count ? c->end_count : full.eos >= 0;
    return mhla_struct_out(info, &full, sizeof full, "mhla_lm_info");
}

/* Beside the weights; of a checkpoint, in its run's folder; of a pipeline's text encoder, in the pipeline's folder `tokenizer`, or where
 * Wan's files have it. */
const mhla_tokenizer *mhla_lm_tokenizer(const mhla_model *model) {
    mhla_model *m = (mhla_model *)(uintptr_t)model; /* opened once, when first asked for */
    static const char *const places[] = {"/../tokenizer", "/google/umt5-xxl", "/..", "/../.."};
    enum { PLACES = sizeof places / sizeof *places };
    char path[4096];
    if (mhla_model_has(m, MHLA_ROLE_ENCODER) ? m->tokenizer != NULL : mhla_model_need(m, MHLA_ROLE_DECODER) != MHLA_OK)
        return m ? m->tokenizer : NULL;
    if (m->origin == NULL) {
        mhla_fail(MHLA_EINVAL, "a model that was not opened from files has no tokenizer");
        return NULL;
    }
    const mhla_status status = mhla_tokenizer_open(&m->tokenizer, m->origin);
    if (status != MHLA_EIO) return m->tokenizer; /* there is one: if it is not readable, no other one is right */
    char first[1024];
    snprintf(first, sizeof first, "%s", mhla_message());
    for (int i = 0; i < PLACES; i++) {
        snprintf(path, sizeof path, "%.3000s%s", m->origin, places[i]);
        if (mhla_tokenizer_open(&m->tokenizer, path) == MHLA_OK) return m->tokenizer;
    }
    mhla_fail(MHLA_EIO, "%s", first);
    return NULL;
}

mhla_status mhla_lm_store(mhla_model *m, const char *storage) {
    MHLA_TRY(mhla_model_need(m, MHLA_ROLE_DECODER));
    return mhla_model_store(m, storage);
}

/* ---- Role -------------------------------------------------------------------------------------------------------- */

static void describe(const void *net, mhla_text_info *info) {
    const mhla_lm_config *c = mhla_lm_config_of(net);
    const mhla_mixer_facts facts = mhla_lm_facts(c);
    *info = (mhla_text_info){.vocabulary = c->vocabulary,
                             .width = c->width,
                             .layers = c->layers,
                             .heads = facts.heads,
                             .chunk = (int)facts.chunk,
                             .context = mhla_lm_context(c),
                             .longest = facts.longest,
                             .softcap = c->softcap};
}

static mhla_tensor *forward(mhla_tape *t, void *net, const mhla_text_run *run, const int32_t *ids, int64_t B,
                            int64_t T) {
    const mhla_mixer_run mixer = {.cu_seqlens = run->cu_seqlens, .sequences = run->sequences};
    return mhla_lm_forward(t, net, &(mhla_lm_run){.recompute = run->recompute, .mixer = mixer}, ids, B, T);
}

static mhla_param *output(const void *net) { return mhla_lm_output(net); }

static const mhla_text_decoder decoder = {describe, forward, output};

static void describe_rows(const void *net, mhla_encoder_info *info) {
    const mhla_lm_config *c = mhla_lm_config_of(net);
    *info = (mhla_encoder_info){.vocabulary = c->vocabulary, .width = c->width, .longest = mhla_lm_context(c)};
}

/* No token sees those behind it, so that lengths are of no concern. */
static mhla_tensor *encode(mhla_tape *t, void *net, const int32_t *ids, const int32_t *lengths, int64_t B, int64_t T) {
    (void)lengths;
    return mhla_lm_forward(t, net, &(mhla_lm_run){0}, ids, B, T);
}

static const mhla_encoder encoder = {describe_rows, encode};

const mhla_architecture mhla_architecture_lm = {
    .name = "lm",
    .kind = "language",
    .what = "a language model",
    .known = "GGUF with the general.architecture llama, gemma2, gemma3, mamba, mamba2 or mhla, or config.json with the "
             "model_type ",
    .types = mhla_lm_types,
    .presets = "lm_micro|lm_nano|lm_340m|lm_480m",
    .rows = mhla_lm_rows,
    .fits = fits,
    .create = create,
    .read = read_files,
    .load = load,
    .free = release,
    .params = params,
    .tree = tree,
    .query = query,
    .decoder = &decoder,
    .encoder = &encoder,
};
