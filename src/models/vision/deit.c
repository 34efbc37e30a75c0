/* DeiT: an image is cut into patches, a stack of transformer blocks lets them look at each other, the mean of all of them
 * (or a class token) says what the image shows. With MHLA for attention this is the classifier of the paper; the attentions
 * of its comparison stand in the same place (models/attention). deit_config.c has the choices.
 *
 *   x = patches + position
 *   x = x + attention(norm(x)),  x = x + mlp(norm(x))      depth times
 *   logits = head(norm(mean(x))) */
#include "models/vision/deit.h"

#include <stdlib.h>

#include "core/status.h"

/* ---- Parameters, under the names of the published checkpoints ---------------------------------------------------- */

typedef struct block {
    const mhla_deit *model;
    float drop_path;
    mhla_layer cpe; /* [D,1,3,3] */
    mhla_layer norm1, norm2;
    mhla_grid_attention attn;
    mhla_layer fc1, fc2; /* [4D,D], [D,4D] */
} block;

struct mhla_deit {
    mhla_deit_config config;
    mhla_params *params;
    mhla_grid_place place;
    mhla_param *cls_token, *pos_embed;
    mhla_layer patch, norm, head;
    block *blocks; /* [depth] */
};

static const mhla_initial usual = {.kind = MHLA_INITIAL_TRUNC_NORMAL, .number = 0.02};

/* In the order of the published lists. */
static void add_block(block *b, mhla_params *ps, const mhla_deit_config *c, int i) {
    char name[64];
    const int64_t D = c->attn.dim, hidden = (int64_t)(c->attn.dim * c->mlp_ratio);
    const int bias = c->norm == MHLA_NORM_LAYER;
#define NAME(suffix) (snprintf(name, sizeof name, "blocks.%d.%s", i, suffix), name)
    if (c->cpe) b->cpe = mhla_layer_depthwise(ps, D, c->cpe, MHLA_TORCH(c->cpe * c->cpe), NAME("cpe"));
    b->norm1 = mhla_layer_norm(ps, D, bias, NAME("norm1"));
    mhla_grid_declare(&b->attn, ps, &c->attn, NAME("attn"));
    b->norm2 = mhla_layer_norm(ps, D, bias, NAME("norm2"));
    b->fc1 = mhla_layer_matrix(ps, hidden, D, 1, usual, NAME("mlp.fc1"));
    b->fc2 = mhla_layer_matrix(ps, D, hidden, 1, usual, NAME("mlp.fc2"));
#undef NAME
}

static void add_all(mhla_deit *m) {
    const mhla_deit_config *c = &m->config;
    mhla_params *ps = m->params;
    const int64_t D = c->attn.dim, p = c->patch, T = mhla_deit_tokens(c);
    if (c->attn.class_token) m->cls_token = mhla_params_add(ps, "cls_token", MHLA_SHAPE(1, 1, D), 0, usual);
    m->pos_embed = mhla_params_add(ps, "pos_embed", MHLA_SHAPE(1, T, D), 0, usual);
    if (m->pos_embed)
        m->pos_embed->grid = (mhla_param_grid){
            c->attn.class_token,
            {(c->image[0] + 2 * c->padding[0]) / c->patch, (c->image[1] + 2 * c->padding[1]) / c->patch},
            {(double)c->padding[0] / c->patch, (double)c->padding[1] / c->patch}};
    m->patch = mhla_layer_patches(ps, D, c->channels, p, MHLA_TORCH(c->channels * p * p), "patch_embed.proj");
    for (int i = 0; i < c->depth; i++) {
        m->blocks[i].model = m;
        add_block(&m->blocks[i], ps, c, i);
    }
    m->norm = mhla_layer_norm(ps, D, c->norm == MHLA_NORM_LAYER, c->attn.class_token ? "norm" : "fc_norm");
    m->head = mhla_layer_matrix(ps, c->classes, D, 1, usual, "head");
}

mhla_status mhla_deit_create(mhla_deit **model, const mhla_deit_config *config) {
    *model = NULL;
    MHLA_TRY(mhla_deit_config_check(config));
    mhla_deit *m = calloc(1, sizeof *m);
    block *blocks = calloc((size_t)config->depth, sizeof *blocks);
    if (m == NULL || blocks == NULL) {
        free(m);
        free(blocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for a model of %d blocks", config->depth);
    }
    m->config = *config;
    m->blocks = blocks;
    mhla_deit_config *c = &m->config;
    c->attn.tokens = mhla_deit_tokens(c);
    c->attn.weights = usual;
    c->attn.filters = MHLA_TORCH(c->attn.lepe * c->attn.lepe);
    mhla_status status = mhla_params_create(&m->params);
    if (status == MHLA_OK) {
        add_all(m);
        status = mhla_params_status(m->params);
    }
    if (status == MHLA_OK)
        status = mhla_grid_place_make(&m->place, &c->attn, (c->image[0] + 2 * c->padding[0]) / c->patch,
                                      (c->image[1] + 2 * c->padding[1]) / c->patch);
    if (status != MHLA_OK) {
        mhla_deit_free(m);
        return status;
    }
    *model = m;
    return MHLA_OK;
}

void mhla_deit_free(mhla_deit *m) {
    if (m == NULL) return;
    mhla_grid_place_free(&m->place);
    mhla_params_free(m->params);
    free(m->blocks);
    free(m);
}

const mhla_deit_config *mhla_deit_config_of(const mhla_deit *m) { return &m->config; }
mhla_params *mhla_deit_params(const mhla_deit *m) { return m->params; }

/* ---- Forward: x is [B,T,D] throughout ------------------------------------------------------------------------------ */

static mhla_tensor *normalise(mhla_tape *t, const mhla_deit_config *c, mhla_layer n, mhla_tensor *x) {
    return c->norm == MHLA_NORM_RMS ? mhla_nn_rms_norm(t, n.w, (float)c->norm_eps, 0, x)
                                    : mhla_nn_layer_norm(t, n.w, n.b, (float)c->norm_eps, x);
}

/* x + the last linear layer of a branch; in training the branch may be dropped for a sample. */
static mhla_tensor *join(mhla_tape *t, const block *b, mhla_layer l, mhla_tensor *x, mhla_tensor *branch) {
    return mhla_nn_linear_drop(t, b->drop_path, l.w, l.b, x, branch);
}

static mhla_tensor *attention(mhla_tape *t, const block *b, mhla_tensor *h) {
    return mhla_grid_forward(t, &b->attn, &b->model->place, h);
}

mhla_tensor *mhla_deit_attention(mhla_tape *t, const mhla_deit *m, int i, mhla_tensor *x) {
    const block *b = &m->blocks[i];
    return mhla_nn_linear(t, b->attn.out.w, b->attn.out.b, MHLA_ACT_NONE, NULL, attention(t, b, x));
}

static mhla_tensor *mlp(mhla_tape *t, const block *b, mhla_tensor *x, mhla_tensor *h) {
    return join(t, b, b->fc2, x, mhla_nn_linear(t, b->fc1.w, b->fc1.b, MHLA_ACT_GELU_ERF, NULL, h));
}

static mhla_tensor *transformer_block(mhla_tape *t, const void *arg, mhla_tensor *x) {
    const block *b = arg;
    const mhla_deit_config *c = &b->model->config;
    const mhla_grid_place *g = &b->model->place;
    if (c->cpe) x = mhla_nn_depthwise(t, b->cpe.w, b->cpe.b, g->H, g->W, x, x); /* a class token stays out of it */
    x = join(t, b, b->attn.out, x, attention(t, b, normalise(t, c, b->norm1, x)));
    x = mlp(t, b, x, normalise(t, c, b->norm2, x));
    return x;
}

mhla_tensor *mhla_deit_forward(mhla_tape *t, mhla_deit *m, const mhla_network_run *run, mhla_tensor *images) {
    const mhla_deit_config *c = &m->config;
    const int class_token = c->attn.class_token;
    const mhla_mark mark = mhla_tape_mark(t);
    mhla_tensor *x = images;
    if (c->padding[0] || c->padding[1])
        x = mhla_nn_pad_image(t, c->padding[0], c->padding[0], c->padding[1], c->padding[1], x);
    x = mhla_nn_patch_embed(t, m->patch.w, m->patch.b, x);
    if (class_token) x = mhla_nn_prepend(t, m->cls_token, x);
    x = mhla_nn_add_position(t, m->pos_embed, x);
    for (int i = 0; i < c->depth; i++) {
        block *b = &m->blocks[i];
        b->drop_path = c->depth > 1 ? run->drop_path * (float)i / (float)(c->depth - 1) : 0.0f;
        x = run->recompute ? mhla_nn_checkpoint(t, transformer_block, b, x) : transformer_block(t, b, x);
        if (run->trace)
            run->trace[i] = x;
        else
            x = mhla_tape_release(t, mark, x);
    }
    if (class_token) x = normalise(t, c, m->norm, x);
    if (run->trace) run->trace[c->depth] = x;
    if (class_token)
        x = mhla_nn_reshape(t, mhla_nn_slice_tokens(t, x, 0, 1), MHLA_SHAPE(images->shape[0], c->attn.dim));
    else
        x = normalise(t, c, m->norm, mhla_nn_mean_tokens(t, x));
    if (run->features) *run->features = x;
    return mhla_nn_linear(t, m->head.w, m->head.b, MHLA_ACT_NONE, NULL, x);
}

/* ---- What one image costs ---------------------------------------------------------------------------------------------- */

static int64_t tokens(const mhla_deit_config *c, int padded) {
    int64_t T = 1;
    for (int a = 0; a < 2; a++) T *= (c->image[a] + (padded ? 2 * c->padding[a] : 0)) / c->patch;
    return T + c->attn.class_token;
}

int64_t mhla_deit_tokens(const mhla_deit_config *c) { return tokens(c, 1); }

int64_t mhla_deit_multiply_adds(const mhla_deit_config *c, int as_paper) {
    const int64_t T = tokens(c, !as_paper), D = c->attn.dim, hidden = (int64_t)(D * c->mlp_ratio);
    const int64_t patches = T - c->attn.class_token;
    const int64_t each = mhla_grid_cost(&c->attn, T, patches, as_paper) + 2 * T * D * hidden /* fc1, fc2 */
                         + patches * D * c->cpe * c->cpe;
    return patches * c->channels * c->patch * c->patch * D + c->depth * each + D * c->classes;
}
