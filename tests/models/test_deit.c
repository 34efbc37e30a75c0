/* DeiT: counts and names of the published models, configs that make sense and that do not, gradients of a whole small
 * model against finite differences for every attention, files there and back. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "deit_ref.h"
#include "models/model.h"

static mhla_deit_config configure(const char *model, int structure, int attention) {
    mhla_deit_config c;
    assert_int_equal(mhla_deit_preset(&c, model, structure, attention), MHLA_OK);
    return c;
}

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention;
        int64_t parameters, tensors, multiply_adds, layers;
    } known[] = {
        {"deit_tiny", MHLA_GRID_MHLA, 5793832, 223, 1525624320, 0},
        {"deit_small", MHLA_GRID_MHLA, 22200424, 223, 0, 0},
        {"deit_base", MHLA_GRID_MHLA, 86864104, 223, 0, 0},
        {"deit_small", MHLA_GRID_LINEAR, 22035688, 138, 0, 4220},
        {"deit_base", MHLA_GRID_LINEAR, 86537704, 138, 0, 0},
        {"deit_small", MHLA_GRID_SOFTMAX, 22050664, 152, 0, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const mhla_deit_config c = configure(known[i].model, MHLA_STRUCTURE_RELEASED, known[i].attention);
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        assert_int_equal(mhla_params_elements(mhla_deit_params(m)), known[i].parameters);
        assert_int_equal(mhla_params_count(mhla_deit_params(m)), known[i].tensors);
        if (known[i].multiply_adds) assert_int_equal(mhla_deit_multiply_adds(&c, 0), known[i].multiply_adds);
        if (known[i].layers) assert_int_equal((mhla_deit_multiply_adds(&c, 1) + 500000) / 1000000, known[i].layers);
        mhla_deit_free(m);
    }
    /* the paper's 1.1 and 4.2 G, here with LePE */
    mhla_deit_config c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_GRID_MHLA);
    assert_in_range(mhla_deit_multiply_adds(&c, 1), 1070000000, 1100000000);
}

/* The table of the comparison: 1000 classes, no class token, LayerNorm; multiply-adds, in 10 M, at 196 tokens without CPE. */
static void table(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention;
        int64_t parameters[4]; /* 196 tokens, 196 and CPE, 256 tokens, 256 and CPE */
        int layers, all;
    } known[] = {
        {"deit_tiny", MHLA_GRID_SOFTMAX, {5717032, 5740072, 5728552, 5751592}, 107, 125},
        {"deit_tiny", MHLA_GRID_LINEAR, {5714728, 5737768, 5726248, 5749288}, 107, 113},
        {"deit_tiny", MHLA_GRID_FOCUSED, {6190888, 6213928, 6340648, 6363688}, 108, 114},
        {"deit_tiny", MHLA_GRID_INLINE, {6477352, 6500392, 6488872, 6511912}, 107, 110},
        {"deit_tiny", MHLA_GRID_MALA, {6221608, 6244648, 6233128, 6256168}, 117, 123},
        {"deit_tiny", MHLA_GRID_RALA, {6221608, 6244648, 6233128, 6256168}, 117, 123},
        {"deit_small", MHLA_GRID_SOFTMAX, {22049896, 22095976, 22072936, 22119016}, 422, 457},
        {"deit_small", MHLA_GRID_LINEAR, {22045288, 22091368, 22068328, 22114408}, 422, 434},
        {"deit_small", MHLA_GRID_FOCUSED, {22977640, 23023720, 23277160, 23323240}, 424, 436},
        {"deit_small", MHLA_GRID_INLINE, {23570536, 23616616, 23593576, 23639656}, 423, 429},
        {"deit_small", MHLA_GRID_MALA, {23943784, 23989864, 23966824, 24012904}, 459, 471},
        {"deit_small", MHLA_GRID_RALA, {23943784, 23989864, 23966824, 24012904}, 459, 471},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int column = 0; column < 4; column += strcmp(known[i].model, "deit_tiny") ? 3 : 1) {
            mhla_deit_config c = configure(known[i].model, MHLA_STRUCTURE_RELEASED, known[i].attention);
            c.attn.class_token = 0;
            c.norm = MHLA_NORM_LAYER;
            c.padding[0] = c.padding[1] = column < 2 ? 0 : 16;
            c.cpe = column % 2 ? 3 : 0;
            mhla_deit *m;
            assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
            assert_int_equal(mhla_params_elements(mhla_deit_params(m)), known[i].parameters[column]);
            mhla_deit_free(m);
            if (column) continue;
            assert_int_equal((mhla_deit_multiply_adds(&c, 1) + 5000000) / 10000000, known[i].layers);
            assert_int_equal((mhla_deit_multiply_adds(&c, 0) + 5000000) / 10000000, known[i].all);
        }
    /* in equal surroundings an attention's own parts are all that differs: the same numbers */
    for (size_t i = 2; i < 6; i++) {
        const mhla_deit_config c = configure(known[i].model, MHLA_STRUCTURE_EQUAL, known[i].attention);
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        assert_int_equal(mhla_params_elements(mhla_deit_params(m)), known[i].parameters[2]);
        mhla_deit_free(m);
    }
}

/* Names, shapes and first values of the attentions of other authors. */
static void baselines(void **state) {
    (void)state;
    static const struct {
        int attention;
        const char *name;
        int dims;
        int64_t shape[4];
        double bound; /* of its values; they reach at least half of it. Negative: truncated normal 0.02 */
    } known[] = {
        {MHLA_GRID_FOCUSED, "qkv.weight", 2, {576, 192}, -1},
        {MHLA_GRID_FOCUSED, "qkv.bias", 1, {576}, 0},
        {MHLA_GRID_FOCUSED, "scale", 3, {1, 1, 192}, 0},
        {MHLA_GRID_FOCUSED, "positional_encoding", 3, {1, 256, 192}, 0},
        {MHLA_GRID_FOCUSED, "dwc.weight", 4, {64, 1, 5, 5}, 0.2},
        {MHLA_GRID_FOCUSED, "dwc.bias", 1, {64}, 0.2},
        {MHLA_GRID_FOCUSED, "proj.weight", 2, {192, 192}, -1},
        {MHLA_GRID_INLINE, "qkv.weight", 2, {576, 192}, -1},
        {MHLA_GRID_INLINE, "residual.0.weight", 3, {192, 32, 1}, 0.1767767},
        {MHLA_GRID_INLINE, "residual.0.bias", 1, {192}, 0.1767767},
        {MHLA_GRID_INLINE, "residual.2.weight", 3, {1728, 32, 1}, 0.1767767},
        {MHLA_GRID_INLINE, "residual.2.bias", 1, {1728}, 0.1767767},
        {MHLA_GRID_INLINE, "proj.bias", 1, {192}, 0},
        {MHLA_GRID_MALA, "qkvo.weight", 4, {768, 192, 1, 1}, -1},
        {MHLA_GRID_MALA, "qkvo.bias", 1, {768}, 0},
        {MHLA_GRID_MALA, "lepe.weight", 4, {192, 1, 5, 5}, -1},
        {MHLA_GRID_MALA, "lepe.bias", 1, {192}, 0},
        {MHLA_GRID_MALA, "proj.weight", 4, {192, 192, 1, 1}, -1},
        {MHLA_GRID_RALA, "qkvo.weight", 4, {768, 192, 1, 1}, -1},
        {MHLA_GRID_RALA, "proj.bias", 1, {192}, 0},
    };
    for (int attention = MHLA_GRID_FOCUSED; attention <= MHLA_GRID_RALA; attention++) {
        mhla_deit_config c = configure("deit_tiny", MHLA_STRUCTURE_EQUAL, attention);
        c.depth = 1;
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        assert_int_equal(mhla_params_init(mhla_deit_params(m), 5), MHLA_OK);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (known[i].attention != attention) continue;
            char name[64];
            snprintf(name, sizeof name, "blocks.0.attn.%s", known[i].name);
            const mhla_param *p = mhla_params_find(mhla_deit_params(m), name);
            if (p == NULL) fail_msg("no %s", name);
            assert_int_equal(p->dims, known[i].dims);
            for (int a = 0; a < p->dims; a++) assert_int_equal(p->shape[a], known[i].shape[a]);
            assert_int_equal(!!(p->flags & MHLA_PARAM_DECAY), p->dims > 1);
            double most = 0.0, square = 0.0;
            for (int64_t k = 0; k < p->count; k++) {
                most = fmax(most, fabs((double)p->data[k]));
                square += (double)p->data[k] * (double)p->data[k] / (double)p->count;
            }
            if (known[i].bound < 0.0)
                assert_true(fabs(sqrt(square) - 0.02) < 0.002);
            else
                assert_true(most <= known[i].bound && most >= 0.5 * known[i].bound);
        }
        mhla_deit_free(m);
    }
    /* heads of InLine: 32 channels each */
    assert_int_equal(configure("deit_small", MHLA_STRUCTURE_EQUAL, MHLA_GRID_INLINE).attn.heads, 12);
    assert_int_equal(configure("deit_nano", MHLA_STRUCTURE_EQUAL, MHLA_GRID_INLINE).attn.heads, 2);
    assert_int_equal(configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_GRID_INLINE).attn.class_token, 1);
}

static void names(void **state) {
    (void)state;
    static const char *const mhla[] = {
        "pos_embed",
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
        "blocks.0.norm1.weight",
        "blocks.0.norm1.bias",
        "blocks.0.attn.norm.weight",
        "blocks.0.attn.norm.bias",
        "blocks.0.attn.to_qkv.weight",
        "blocks.0.attn.q_norm.weight",
        "blocks.0.attn.k_norm.weight",
        "blocks.0.attn.lepe.weight",
        "blocks.0.attn.lepe.bias",
        "blocks.0.attn.piece_attn.conv.weight",
        "blocks.0.attn.to_out.0.weight",
        "blocks.0.attn.to_out.0.bias",
        "blocks.0.norm2.weight",
        "blocks.0.norm2.bias",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc1.bias",
        "blocks.0.mlp.fc2.weight",
        "blocks.0.mlp.fc2.bias",
        "blocks.1.norm1.weight",
    };
    static const char *const timm[] = {"cls_token", "pos_embed", "patch_embed.proj.weight"};
    mhla_deit_config c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_GRID_MHLA);
    mhla_deit *m;
    assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
    for (size_t i = 0; i < sizeof mhla / sizeof *mhla; i++)
        assert_string_equal(mhla_params_at(mhla_deit_params(m), (int)i)->name, mhla[i]);
    assert_int_equal(mhla_params_at(mhla_deit_params(m), 12)->shape[0], 16);
    mhla_deit_free(m);
    c = configure("deit_tiny", MHLA_STRUCTURE_RELEASED, MHLA_GRID_SOFTMAX);
    assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
    for (size_t i = 0; i < 3; i++) assert_string_equal(mhla_params_at(mhla_deit_params(m), (int)i)->name, timm[i]);
    assert_non_null(mhla_params_find(mhla_deit_params(m), "blocks.11.attn.qkv.bias"));
    assert_non_null(mhla_params_find(mhla_deit_params(m), "norm.weight"));
    assert_null(mhla_params_find(mhla_deit_params(m), "fc_norm.weight"));
    assert_int_equal(mhla_params_find(mhla_deit_params(m), "pos_embed")->shape[1], 197);
    mhla_deit_free(m);
}

/* Equal surroundings: but for the mixing matrices the first three have the same number of parameters. */
static void equal_surroundings(void **state) {
    (void)state;
    int64_t n[3];
    for (int a = 0; a < 3; a++) {
        const mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, a);
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        n[a] = mhla_params_elements(mhla_deit_params(m));
        mhla_deit_free(m);
    }
    assert_int_equal(n[1], n[2]);
    assert_int_equal(n[0], n[1] + 4 * 16); /* depth 4, M = 4 */
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"patch=5", "no multiple of patch 5"},
        {"heads=3", "dim 64 is not a multiple of heads 3"},
        {"blocks=9", "at most one block per patch"},
        {"lepe=4", "odd"},
        {"attention=sofmax", "softmax"},
        {"atention=softmax", "attention"},
        {"dim=many", "integer"},
        {"image=28,28,28", "3 numbers"},
        {"gate=true", "only the attentions mala and rala have it"},
        {"power=3", "the attention focused has one"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        assert_int_not_equal(mhla_model_create(&m, "deit_nano", &wrong[i].setting, 1, 0), MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
    const char *const token[] = {"structure=released", "class_token=true"};
    mhla_model *m;
    assert_int_not_equal(mhla_model_create(&m, "deit_nano", token, 2, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "set denominator to eq4"));
    const char *const turned[] = {"attention=mala", "heads=32"};
    assert_int_not_equal(mhla_model_create(&m, "deit_nano", turned, 2, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "2 per head: an axial rotary embedding (rope) needs a multiple of 4"));
    const char *const wide[] = {"attention=inline", "dim=128", "depth=1"};
    assert_int_equal(mhla_model_create(&m, "deit_nano", wide, 3, 0), MHLA_OK);
    assert_int_equal(mhla_params_find(m->params, "blocks.0.attn.residual.0.weight")->shape[1], 32);
    mhla_model_free(m);
    const char *const elsewhere[] = {"attention=mala"};
    assert_int_not_equal(mhla_model_create(&m, "dit_nano", elsewhere, 1, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "expected one of mhla, linear, softmax"));
    assert_int_not_equal(mhla_model_create(&m, "deit_huge", NULL, 0, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "deit_tiny"));
}

static void config_round_trip(void **state) {
    (void)state;
    for (int structure = 0; structure < 2; structure++)
        for (int attention = 0; attention <= MHLA_GRID_RALA; attention++) {
            mhla_deit_config c = configure("deit_small", structure, attention), back;
            c.image[0] = 96;
            c.padding[1] = 16;
            c.crop = 0.875;
            json_t *tree = mhla_deit_config_tree(&c);
            assert_non_null(tree);
            assert_int_equal(mhla_deit_config_read(&back, tree, "config.json"), MHLA_OK);
            json_t *again = mhla_deit_config_tree(&back); /* trees, because the structures have padding */
            assert_true(json_equal(tree, again));
            json_decref(again);
            assert_int_equal(back.image[0], 96);
            assert_int_equal(back.padding[1], 16);
            assert_true(back.crop == 0.875);
            assert_int_equal(back.structure, c.structure);
            assert_int_equal(back.attn.attention, c.attn.attention);
            json_object_set_new(tree, "heads", json_integer(5)); /* no number is wrong, the two together are */
            assert_int_equal(mhla_deit_config_read(&back, tree, "at/config.json"), MHLA_EDATA);
            assert_non_null(strstr(mhla_message(), "at/config.json: dim "));
            json_decref(tree);
        }
}

/* ---- A whole model against its reference, and against differences of that ---- */

enum { VARIANTS = 4 };

static mhla_deit_config small(int attention, int variant) {
    mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, attention);
    c.image[0] = 12;
    c.image[1] = 8;
    c.padding[0] = c.padding[1] = 2;
    c.patch = 4;
    c.channels = 2;
    c.attn.dim = 12;
    c.attn.heads = 2;
    c.depth = 2;
    c.classes = 5;
    c.mlp_ratio = 2.0;
    if (c.attn.rope) c.attn.dim = 16; /* two frequencies for each axis; variant 3: one */
    if (variant == 1) {
        c.cpe = 3;
        c.attn.lepe = 0;
        c.attn.qkv_bias = 1;
        c.norm = MHLA_NORM_RMS;
        c.attn.class_token = 1;
    }
    if (variant == 2) {
        c.attn.inner_norm = 1;
        c.attn.class_token = attention != MHLA_GRID_MHLA;
        if (attention == MHLA_GRID_MHLA) c.attn.denominator = MHLA_DEN_RELEASED;
        if (attention == MHLA_GRID_MHLA) c.attn.blocks[1] = 3;
    }
    if (variant == 3) { /* blocks of unequal size, with a class token before them */
        c.attn.class_token = 1;
        c.attn.qk_norm = 0;
        c.attn.blocks[0] = 3;
        c.attn.denominator = MHLA_DEN_NONE;
        if (c.attn.gate) c.attn.heads = 4;
        if (c.attn.gate) c.attn.qk_norm = 1;
        c.attn.gate = 0;
        if (attention == MHLA_GRID_RALA) c.attn.rope = 0;
        if (attention == MHLA_GRID_FOCUSED) c.attn.power = 2;
    }
    return c;
}

static double loss_of(mhla_tape *t, mhla_deit *m, const float *x, const int32_t *labels, int B, int recompute) {
    const mhla_deit_config *c = mhla_deit_config_of(m);
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(B, c->channels, c->image[0], c->image[1]));
    mhla_tensor *loss = mhla_nn_cross_entropy(
        t, mhla_deit_forward(t, m, &(mhla_network_run){.recompute = recompute}, in), labels, NULL, 0.1f, NULL);
    assert_int_equal(mhla_tape_backward(t, loss, 1.0f), MHLA_OK);
    assert_int_equal(mhla_tape_status(t), MHLA_OK);
    return (double)loss->data[0];
}

/* Along random directions of a parameter: (loss(p + h d) - loss(p - h d)) / 2h = grad . d, the losses of the reference in
 * double. h is so small that a kink of relu lies between the two points once in many thousand times. */
static void check_directions(const deit_ref *ref, int i, const float *grad, rng *r, const float *x,
                             const int32_t *labels, int B) {
    const mhla_param *p = mhla_params_at(ref->params, i);
    const double h = 1e-6;
    double size = 0.0;
    for (int64_t k = 0; k < p->count; k++) size += (double)grad[k] * (double)grad[k];
    for (int direction = 0; direction < 2; direction++) {
        float *d = new_random(r, p->count);
        double along = 0.0, norm = 0.0, two[2];
        for (int64_t k = 0; k < p->count; k++) {
            along += (double)grad[k] * (double)d[k];
            norm += (double)d[k] * (double)d[k];
        }
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; k < p->count; k++) ref->data[i][k] = (double)p->data[k] + (s ? -h : h) * (double)d[k];
            two[s] = deit_ref_loss(ref, x, labels, B, 0.1);
        }
        for (int64_t k = 0; k < p->count; k++) ref->data[i][k] = (double)p->data[k];
        const double found = (two[0] - two[1]) / (2.0 * h);
        /* float32 makes errors of the gradient's size, not of its part along d */
        if (!(fabs(found - along) <= 1e-4 * fabs(along) + 1e-5 * sqrt(size * norm) + 1e-9))
            fail_msg("%s, direction %d: %.9g, by differences %.9g; the gradient is %g long", p->name, direction, along,
                     found, sqrt(size));
        free(d);
    }
}

static void gradients(void **state) {
    (void)state;
    enum { B = 2 };
    const int32_t labels[B] = {3, 1};
    for (int attention = 0; attention <= MHLA_GRID_RALA; attention++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            const mhla_deit_config c = small(attention, variant);
            rng r = {(uint64_t)(10 * attention + variant)};
            mhla_deit *m;
            mhla_tape *t;
            assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
            assert_int_equal(mhla_tape_create(&t, NULL), MHLA_OK);
            assert_int_equal(mhla_params_init(mhla_deit_params(m), 7), MHLA_OK);
            mhla_params *ps = mhla_deit_params(m);
            for (int i = 0; i < mhla_params_count(ps); i++) { /* nothing silent: no zeros, no ones */
                mhla_param *p = mhla_params_at(ps, i);
                const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
                for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
                mhla_param_touch(p);
            }
            float *x = new_random(&r, (int64_t)B * c.channels * c.image[0] * c.image[1]);
            deit_ref ref = deit_ref_of(m);
            const double loss = loss_of(t, m, x, labels, B, 0), exact = deit_ref_loss(&ref, x, labels, B, 0.1);
            if (!(fabs(loss - exact) <= 2e-6 * fabs(exact)))
                fail_msg("attention %d, variant %d: loss %.9g, in double %.9g", attention, variant, loss, exact);
            float **kept = new_bytes((size_t)mhla_params_count(ps) * sizeof *kept);
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                assert_true(p->has_grad);
                kept[i] = new_bytes((size_t)p->count * sizeof(float));
                memcpy(kept[i], p->grad, (size_t)p->count * sizeof(float));
            }
            /* recomputed blocks: the same bits */
            mhla_params_clear_grads(ps);
            loss_of(t, m, x, labels, B, 1);
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                assert_memory_equal(kept[i], p->grad, (size_t)p->count * sizeof(float));
            }
            for (int i = 0; i < mhla_params_count(ps); i++) check_directions(&ref, i, kept[i], &r, x, labels, B);
            for (int i = 0; i < mhla_params_count(ps); i++) free(kept[i]);
            free(kept);
            free(x);
            deit_ref_free(&ref);
            mhla_tape_free(t);
            mhla_deit_free(m);
        }
}

/* Every attention: the same bits with one thread, three and more than there are tasks, and a dry run that counts the memory of the real one. */
static void threads_and_memory(void **state) {
    (void)state;
    enum { B = 5 };
    const int32_t labels[B] = {3, 1, 0, 4, 2};
    for (int attention = 0; attention <= MHLA_GRID_RALA; attention++) {
        mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, attention);
        c.depth = 1;
        c.classes = 5;
        c.attn.class_token = attention % 2;
        rng r = {(uint64_t)attention};
        float *x = new_random(&r, (int64_t)B * c.channels * c.image[0] * c.image[1]), *kept = NULL;
        mhla_deit *m;
        assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
        assert_int_equal(mhla_params_init(mhla_deit_params(m), 7), MHLA_OK);
        mhla_params *ps = mhla_deit_params(m);
        int64_t all = 0;
        for (int i = 0; i < mhla_params_count(ps); i++) all += mhla_params_at(ps, i)->count;
        for (int threads = 1; threads <= 40; threads = threads == 1 ? 3 : threads + 37) {
            mhla_context *context = new_context(threads);
            float *grads = new_poisoned(all);
            size_t peak[2];
            mhla_params_clear_grads(ps);
            for (int dry = 0; dry < 2; dry++) {
                mhla_tape *t;
                assert_int_equal(mhla_tape_create(&t, context), MHLA_OK);
                mhla_tape_begin(t, MHLA_TAPE_RECORD | (dry ? MHLA_TAPE_DRY : 0));
                mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(B, c.channels, c.image[0], c.image[1]));
                mhla_tensor *y = mhla_deit_forward(t, m, &(mhla_network_run){0}, in);
                mhla_tensor *loss = mhla_nn_cross_entropy(t, y, labels, NULL, 0.1f, NULL);
                assert_int_equal(mhla_tape_backward(t, loss, 1.0f), MHLA_OK);
                peak[dry] = mhla_tape_peak(t);
                mhla_tape_free(t);
            }
            assert_int_equal(peak[0], peak[1]);
            int64_t at = 0;
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                memcpy(grads + at, p->grad, (size_t)p->count * sizeof(float));
                at += p->count;
            }
            if (kept) assert_memory_equal(kept, grads, (size_t)all * sizeof(float));
            free(kept);
            kept = grads;
            mhla_context_free(context);
        }
        free(kept);
        free(x);
        mhla_deit_free(m);
    }
}

/* MHLA with a class token: one block more, which gives and takes from the beginning; rows sum to 1 as without. */
static void class_token(void **state) {
    (void)state;
    mhla_deit_config c = configure("deit_nano", MHLA_STRUCTURE_EQUAL, MHLA_GRID_MHLA);
    c.attn.class_token = 1;
    c.attn.blocks[1] = 3; /* 2 x 3 on 8 x 8 patches */
    float plain[6 * 6];
    assert_int_equal(mhla_mix_fill(plain, MHLA_MIX_PAPER, 2, c.attn.blocks, 0.0), MHLA_OK);
    mhla_deit *m;
    assert_int_equal(mhla_deit_create(&m, &c), MHLA_OK);
    assert_int_equal(mhla_params_init(mhla_deit_params(m), 1), MHLA_OK);
    const mhla_param *p = mhla_params_find(mhla_deit_params(m), "blocks.0.attn.piece_attn.conv.weight");
    assert_int_equal(p->shape[0], 7);
    assert_int_equal(p->shape[1], 7);
    for (int i = 0; i < 7; i++) {
        double sum = 0.0;
        for (int b = 0; b < 7; b++) sum += (double)p->data[i * 7 + b];
        assert_true(fabs(sum - 1.0) < 1e-6);
        assert_true(i == 0 ? p->data[i] == p->data[6] : p->data[i * 7] == p->data[i * 7 + i]);
        for (int b = 1; b < 7 && i > 0; b++) /* among the patches as before */
            assert_true(fabs((double)p->data[i * 7 + b] * (double)plain[(i - 1) * 6 + i - 1] -
                             (double)plain[(i - 1) * 6 + b - 1] * (double)p->data[i * 7 + i]) < 1e-7);
    }
    mhla_deit_free(m);
}

/* An image's logits do not depend on what else is in the batch. */
static void batches(void **state) {
    (void)state;
    const char *const settings[] = {"classes=7"};
    mhla_model *m;
    rng r = {5};
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 1, 3), MHLA_OK);
    enum { N = 41, PIXELS = 3 * 28 * 28 };
    float *x = new_random(&r, (int64_t)N * PIXELS), *all = new_poisoned(N * 7), one[7];
    assert_int_equal(mhla_model_forward(m, all, x, N), MHLA_OK);
    for (int i = 0; i < N; i += 8) {
        assert_int_equal(mhla_model_forward(m, one, x + (int64_t)i * PIXELS, 1), MHLA_OK);
        assert_memory_equal(one, all + 7 * i, sizeof one);
    }
    free(x);
    free(all);
    mhla_model_free(m);
}

/* ---- Files ---- */

static char folder[64];

static void files(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_deit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char a[128], path[256];
    snprintf(a, sizeof a, "%s/a", folder);
    const char *const settings[] = {"classes=4", "depth=2"};
    mhla_model *m, *back;
    rng r = {9};
    float *x = new_random(&r, 2 * 3 * 28 * 28), y[8], z[8];
    assert_int_equal(mhla_model_create(&m, "deit_nano", settings, 2, 3), MHLA_OK);
    assert_int_equal(mhla_model_forward(m, y, x, 2), MHLA_OK);
    assert_int_equal(mhla_model_save(m, a), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_OK);
    assert_int_equal(mhla_model_forward(back, z, x, 2), MHLA_OK);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    /* a file instead of its folder */
    snprintf(path, sizeof path, "%s/model.safetensors", a);
    assert_int_equal(mhla_model_open(&back, path), MHLA_OK);
    mhla_model_free(back);
    /* 1x1 convolutions as the linear layers that they are */
    const char *const convolved[] = {"classes=4", "depth=2", "attention=mala"};
    mhla_model *mala;
    float w[8], flat[8];
    char b[128];
    snprintf(b, sizeof b, "%s/b", folder);
    assert_int_equal(mhla_model_create(&mala, "deit_nano", convolved, 3, 3), MHLA_OK);
    assert_int_equal(mhla_model_forward(mala, w, x, 2), MHLA_OK);
    assert_int_equal(mhla_model_save(mala, b), MHLA_OK);
    mhla_params_find(mala->params, "blocks.1.attn.qkvo.weight")->dims = 2;
    mhla_params_find(mala->params, "blocks.0.attn.proj.weight")->dims = 2;
    snprintf(path, sizeof path, "%s/model.safetensors", b);
    assert_int_equal(mhla_params_save(mala->params, path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, b), MHLA_OK);
    assert_int_equal(mhla_model_forward(back, flat, x, 2), MHLA_OK);
    assert_memory_equal(w, flat, sizeof w);
    mhla_model_free(back);
    mhla_model_free(mala);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", b);
    unlink(path);
    rmdir(b);
    /* weights of another model */
    snprintf(path, sizeof path, "%s/model.safetensors", a);
    const char *const other[] = {"classes=4", "depth=2", "attention=softmax"};
    mhla_model *softmax;
    assert_int_equal(mhla_model_create(&softmax, "deit_nano", other, 3, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(softmax->params, path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "blocks.0.attn.to_qkv.weight"));
    const char *const wider[] = {"classes=5", "depth=2"};
    mhla_model *wide;
    assert_int_equal(mhla_model_create(&wide, "deit_nano", wider, 2, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(wide->params, path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "head.weight"));
    /* more than the model has */
    const char *const deeper[] = {"classes=4", "depth=3"};
    mhla_model *deep;
    assert_int_equal(mhla_model_create(&deep, "deit_nano", deeper, 2, 3), MHLA_OK);
    assert_int_equal(mhla_params_save(deep->params, path, NULL, NULL), MHLA_OK);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "blocks.2."));
    /* not there */
    unlink(path);
    assert_int_not_equal(mhla_model_open(&back, a), MHLA_OK);
    snprintf(path, sizeof path, "%s/config.json", a);
    unlink(path);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EDATA);
    rmdir(a);
    assert_int_equal(mhla_model_open(&back, a), MHLA_EIO);
    rmdir(folder);
    mhla_model_free(m);
    mhla_model_free(softmax);
    mhla_model_free(wide);
    mhla_model_free(deep);
    free(x);
}

/* timm's own config.json. */
static void timm_config(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_deit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"architecture\": \"deit_small_patch16_224\", \"num_classes\": 10, \"num_features\": 384,"
          " \"pretrained_cfg\": {\"crop_pct\": 0.95, \"mean\": [0.5, 0.5, 0.5], \"std\": [0.5, 0.5, 0.5]}}",
          f);
    fclose(f);
    mhla_deit_config c;
    json_t *timm;
    assert_int_equal(mhla_json_load(&timm, path), MHLA_OK);
    assert_int_equal(mhla_deit_config_read(&c, timm, path), MHLA_OK);
    json_decref(timm);
    assert_int_equal(c.attn.dim, 384);
    assert_int_equal(c.classes, 10);
    assert_int_equal(c.attn.class_token, 1);
    assert_true(c.crop == 0.95 && c.mean[2] == 0.5 && c.deviation[0] == 0.5);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(table),
        cmocka_unit_test(baselines),
        cmocka_unit_test(names),
        cmocka_unit_test(equal_surroundings),
        cmocka_unit_test(refused),
        cmocka_unit_test(config_round_trip),
        cmocka_unit_test(gradients),
        cmocka_unit_test(threads_and_memory),
        cmocka_unit_test(class_token),
        cmocka_unit_test(batches),
        cmocka_unit_test(files),
        cmocka_unit_test(timm_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
