/* DiT without the published files: counts, configs that make sense and that do not, every combination of CPE, gate and LePE
 * with every attention against a reference in double and its differences, other resolutions, the same bits in any batch and
 * with any number of threads, files there and back. */
#include "support.h"

#include <mhla/diffusion.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "dit_ref.h"
#include "models/model.h"
#include "train/train.h"

static mhla_dit_config configure(const char *model, int structure, int attention) {
    mhla_dit_config c;
    ASSERT_OK(mhla_dit_preset(&c, model, structure, attention, MHLA_DIT_LINEAR));
    return c;
}

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int attention, side;
        int64_t parameters, trainable;
    } known[] = {
        {"dit_s_2", MHLA_GRID_MHLA, 32, 33021728, 32923424},
        {"dit_s_2", MHLA_GRID_MHLA, 64, 33316640, 32923424},
        {"dit_b_2", MHLA_GRID_MHLA, 32, 130626080, 130429472},
        {"dit_b_2", MHLA_GRID_MHLA, 64, 131215904, 130429472},
        /* facebookresearch's */
        {"dit_s_2", MHLA_GRID_SOFTMAX, 32, 32963360, 32865056},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_dit_config c = configure(known[i].model, MHLA_STRUCTURE_RELEASED, known[i].attention);
        c.image[0] = c.image[1] = known[i].side;
        mhla_dit *m;
        ASSERT_OK(mhla_dit_create(&m, &c));
        int64_t trainable = 0;
        for (int k = 0; k < mhla_params_count(mhla_dit_params(m)); k++) {
            const mhla_param *p = mhla_params_at(mhla_dit_params(m), k);
            if (!(p->flags & MHLA_PARAM_FROZEN)) trainable += p->count;
        }
        assert_int_equal(mhla_params_elements(mhla_dit_params(m)), known[i].parameters);
        assert_int_equal(trainable, known[i].trainable);
        mhla_dit_free(m);
    }
    mhla_model *m;
    const char *const released[] = {"structure=released"};
    mhla_model_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_create(&m, "dit_s_2", released, 1, 1));
    ASSERT_OK(mhla_model_query(m, &info));
    assert_string_equal(info.kind, "diffusion");
    assert_int_equal(info.parameters, 33021728);
    assert_int_equal(info.trainable, 32923424);
    assert_int_equal(info.multiply_adds, 5690277888);
    assert_int_equal(info.tokens, 256);
    mhla_model_free(m);
}

/* Equal surroundings: but for the mixing matrices the three have the same number of parameters. */
static void equal_surroundings(void **state) {
    (void)state;
    int64_t n[3];
    for (int a = 0; a < 3; a++) {
        const mhla_dit_config c = configure("dit_micro", MHLA_STRUCTURE_EQUAL, a);
        mhla_dit *m;
        ASSERT_OK(mhla_dit_create(&m, &c));
        n[a] = mhla_params_elements(mhla_dit_params(m));
        mhla_dit_free(m);
    }
    assert_int_equal(n[1], n[2]);
    assert_int_equal(n[0], n[1] + 4 * 256); /* depth 4, M = 16 */
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"patch=5", "multiple of patch 5"},
        {"heads=5", "dim 96 is not a multiple of heads 5"},
        {"blocks=17", "at most one block per patch"},
        {"lepe=4", "odd"},
        {"attention=sofmax", "softmax"},
        {"cpe=square", "folded"},
        {"proces=flow", "process"},
        {"dim=many", "integer"},
        {"image=32,64,32", "3 numbers"},
    };
    mhla_model *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_not_equal(mhla_model_create(&m, "dit_micro", &wrong[i].setting, 1, 0), MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
    const char *const flow[] = {"process=flow", "learn_sigma=true"}, *const odd[] = {"cpe=folded", "image=32,36"},
                      *const uneven[] = {"structure=released", "image=28", "blocks=4"};
    assert_int_equal(mhla_model_create(&m, "dit_micro", flow, 2, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "flow"));
    assert_int_equal(mhla_model_create(&m, "dit_micro", odd, 2, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "square"));
    assert_int_equal(mhla_model_create(&m, "dit_micro", uneven, 3, 0), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "equal blocks"));
    assert_int_not_equal(mhla_model_create(&m, "dit_huge", NULL, 0, 0), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "dit_xl_2"));
}

static void config_round_trip(void **state) {
    (void)state;
    for (int structure = 0; structure < 2; structure++)
        for (int attention = 0; attention < 3; attention++)
            for (int process = 0; process < 3; process++) {
                mhla_dit_config c, back = {0};
                ASSERT_OK(mhla_dit_preset(&c, "dit_l_4", structure, attention, process));
                assert_int_equal(c.learn_sigma, process != MHLA_DIT_FLOW);
                c.image[0] = 64;
                c.cpe = MHLA_DIT_CPE_GRID;
                c.attn.gate = 1;
                c.dropout = 0.25;
                json_t *tree = mhla_dit_config_tree(&c);
                assert_non_null(tree);
                ASSERT_OK(mhla_dit_config_read(&back, tree, "config.json"));
                json_t *again = mhla_dit_config_tree(&back);
                assert_true(json_equal(tree, again));
                json_decref(again);
                json_object_set_new(tree, "heads", json_integer(5)); /* no number is wrong, the two together are */
                assert_int_equal(mhla_dit_config_read(&back, tree, "at/config.json"), MHLA_EDATA);
                assert_non_null(strstr(mhla_message(), "at/config.json: dim 1024 is not a multiple of heads 5"));
                json_decref(tree);
            }
}

/* ---- Every combination against the reference ---- */

enum { B = 2 };

static mhla_dit_config small(int attention, int cpe, int gate, int lepe, int released) {
    mhla_dit_config c = configure("dit_micro", released ? MHLA_STRUCTURE_RELEASED : MHLA_STRUCTURE_EQUAL, attention);
    c.image[0] = 4;
    c.image[1] = 16; /* 2 x 8 patches: a number that is a square, on a grid that is none */
    c.channels = 2;
    c.attn.dim = 12;
    c.attn.heads = 2;
    c.depth = released ? 2 : 1;
    c.classes = 3;
    c.mlp_ratio = 2.0;
    c.attn.blocks[0] = 2;
    c.attn.blocks[1] = released ? 2 : 3;
    c.cpe = cpe;
    c.attn.gate = gate > 0;
    c.attn.gate_norm = gate == 1;
    c.attn.lepe = lepe;
    c.learn_sigma = released;
    c.attn.feature_eps = 0.05; /* of six features all may be nothing: rounding would then decide where they point */
    c.attn.qk_norm = gate == 2;
    return c;
}

/* Nothing silent: no zeros, no ones. */
static void stir(mhla_params *ps, rng *r) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        if (strcmp(p->name, "pos_embed") == 0) continue;
        const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(r);
        mhla_param_touch(p);
    }
}

typedef struct sample {
    float *x, *dy;
    float times[B];
    int32_t labels[B];
    int64_t pixels, answer; /* numbers of one sample */
    int height, width;
} sample;

static sample draw(rng *r, const mhla_dit_config *c, int height, int width) {
    sample s = {.times = {17.0f, 999.0f}, .labels = {1, c->classes}, .height = height, .width = width};
    s.pixels = (int64_t)c->channels * height * width;
    s.answer = s.pixels * (c->learn_sigma ? 2 : 1);
    s.x = new_random(r, B * s.pixels);
    s.dy = new_random(r, B * s.answer);
    return s;
}

static void drop(sample *s) {
    free(s->x);
    free(s->dy);
}

static mhla_tensor *forward(mhla_tape *t, mhla_dit *m, const sample *s, int recompute) {
    const mhla_dit_config *c = mhla_dit_config_of(m);
    return mhla_dit_forward(t, m, &(mhla_network_run){.recompute = recompute},
                            mhla_nn_input(t, s->x, MHLA_SHAPE(B, c->channels, s->height, s->width)), s->times,
                            s->labels);
}

static double ref_loss(const dit_ref *d, const sample *s) {
    double sum = 0.0;
    for (int b = 0; b < B; b++) {
        double *y = dit_ref_answer(d, s->x + b * s->pixels, (double)s->times[b], s->labels[b]);
        for (int64_t i = 0; i < s->answer; i++) sum += y[i] * (double)s->dy[b * s->answer + i];
        free(y);
    }
    return sum;
}

static void check_answer(mhla_dit *m, const dit_ref *d, const sample *s, mhla_tape *t, const char *what) {
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y = forward(t, m, s, 0);
    ASSERT_OK(mhla_tape_status(t));
    float *want = new_poisoned(B * s->answer);
    for (int b = 0; b < B; b++) {
        double *exact = dit_ref_answer(d, s->x + b * s->pixels, (double)s->times[b], s->labels[b]);
        for (int64_t i = 0; i < s->answer; i++) want[b * s->answer + i] = (float)exact[i];
        free(exact);
    }
    ASSERT_CLOSE(y->data, want, B * s->answer, 5e-6, "%s", what);
    free(want);
}

/* Along a random direction of each parameter: (loss(p + h d) - loss(p - h d)) / 2h = grad . d, losses in double. */
static void check_gradients(const dit_ref *ref, const sample *s, rng *r, const char *what) {
    const double h = 1e-6;
    for (int i = 0; i < mhla_params_count(ref->r.params); i++) {
        const mhla_param *p = mhla_params_at(ref->r.params, i);
        if (p->flags & MHLA_PARAM_FROZEN) continue;
        assert_true(p->has_grad);
        float *d = new_random(r, p->count);
        double along = 0.0, norm = 0.0, size = 0.0, two[2];
        for (int64_t k = 0; k < p->count; k++) {
            along += (double)p->grad[k] * (double)d[k];
            norm += (double)d[k] * (double)d[k];
            size += (double)p->grad[k] * (double)p->grad[k];
        }
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t k = 0; k < p->count; k++)
                ref->r.data[i][k] = (double)p->data[k] + (sign ? -h : h) * (double)d[k];
            two[sign] = ref_loss(ref, s);
        }
        for (int64_t k = 0; k < p->count; k++) ref->r.data[i][k] = (double)p->data[k];
        const double found = (two[0] - two[1]) / (2.0 * h);
        /* float32 makes errors of the gradient's size, not of its part along d */
        if (!(fabs(found - along) <= 1e-4 * fabs(along) + 1e-5 * sqrt(size * norm) + 1e-7))
            fail_msg("%s, %s: %.9g, by differences %.9g; the gradient is %g long", what, p->name, along, found,
                     sqrt(size));
        free(d);
    }
}

static void check_combination(const mhla_dit_config *c, uint64_t seed, const char *what) {
    rng r = {seed};
    mhla_dit *m;
    mhla_tape *t;
    ASSERT_OK(mhla_dit_create(&m, c));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    ASSERT_OK(mhla_params_init(mhla_dit_params(m), 7));
    mhla_params *ps = mhla_dit_params(m);
    stir(ps, &r);
    sample s = draw(&r, c, c->image[0], c->image[1]);
    dit_ref *ref = dit_ref_of(m, s.height, s.width);
    check_answer(m, ref, &s, t, what);
    /* recomputed blocks: the same bits */
    float **kept = new_bytes((size_t)mhla_params_count(ps) * sizeof *kept);
    for (int recompute = 1; recompute >= 0; recompute--) {
        mhla_params_clear_grads(ps);
        mhla_tape_begin(t, MHLA_TAPE_RECORD);
        mhla_tensor *y = forward(t, m, &s, recompute);
        ASSERT_OK(mhla_tape_backward_from(t, y, s.dy));
        for (int i = 0; i < mhla_params_count(ps); i++) {
            const mhla_param *p = mhla_params_at(ps, i);
            const size_t bytes = (size_t)p->count * sizeof(float);
            if (p->flags & MHLA_PARAM_FROZEN) continue;
            if (!recompute) assert_memory_equal(kept[i], p->grad, bytes);
            if (!recompute) free(kept[i]);
            if (recompute) memcpy(kept[i] = new_bytes(bytes), p->grad, bytes);
        }
    }
    check_gradients(ref, &s, &r, what);
    free(kept);
    drop(&s);
    dit_ref_free(ref);
    mhla_tape_free(t);
    mhla_dit_free(m);
}

static void combinations(void **state) {
    (void)state;
    for (int attention = 0; attention < 3; attention++)
        for (int cpe = 0; cpe < 3; cpe++)
            for (int gate = 0; gate < 3; gate++)
                for (int lepe = 0; lepe < 2; lepe++) {
                    char what[64];
                    snprintf(what, sizeof what, "attention %d, cpe %d, gate %d, lepe %d", attention, cpe, gate, lepe);
                    const mhla_dit_config c = small(attention, cpe, gate, 3 * lepe, 0);
                    check_combination(&c, (uint64_t)(100 * attention + 10 * cpe + gate), what);
                }
    const mhla_dit_config released = small(MHLA_GRID_MHLA, MHLA_DIT_CPE_FOLDED, 0, 3, 1);
    check_combination(&released, 5, "as released");
    const mhla_dit_config facebook = small(MHLA_GRID_SOFTMAX, MHLA_DIT_CPE_NONE, 0, 0, 1);
    check_combination(&facebook, 6, "facebookresearch's");
}

/* ---- Other sizes than in training: rectangular, larger, smaller, back again ---- */

static void sizes(void **state) {
    (void)state;
    static const int sides[][2] = {{8, 20}, {4, 6}, {12, 6}, {4, 16}, {8, 20}};
    for (int attention = 0; attention < 3; attention++) {
        rng r = {(uint64_t)attention};
        mhla_dit_config c = small(attention, MHLA_DIT_CPE_GRID, 0, 3, 0);
        mhla_dit *m;
        mhla_tape *t;
        ASSERT_OK(mhla_dit_create(&m, &c));
        ASSERT_OK(mhla_tape_create(&t, NULL));
        ASSERT_OK(mhla_params_init(mhla_dit_params(m), 7));
        stir(mhla_dit_params(m), &r);
        for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
            sample s = draw(&r, &c, sides[i][0], sides[i][1]);
            dit_ref *ref = dit_ref_of(m, s.height, s.width);
            check_answer(m, ref, &s, t, "another size");
            if (i == 0) {
                mhla_params_clear_grads(mhla_dit_params(m));
                mhla_tape_begin(t, MHLA_TAPE_RECORD);
                ASSERT_OK(mhla_tape_backward_from(t, forward(t, m, &s, 0), s.dy));
                check_gradients(ref, &s, &r, "another size");
            }
            dit_ref_free(ref);
            drop(&s);
        }
        sample s = draw(&r, &c, 6, 7);
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        assert_null(forward(t, m, &s, 0));
        assert_int_equal(mhla_tape_status(t), MHLA_EINVAL);
        assert_non_null(strstr(mhla_message(), "width is 7"));
        drop(&s);
        mhla_tape_free(t);
        mhla_dit_free(m);
    }
}

/* ---- The same bits in any batch and with any number of threads ---- */

static void check_bits(const char *attention, const char *isa) {
    enum { N = 9 };
    static const int batches[] = {1, 2, 7, 8, 9};
    const char *const settings[] = {attention, "gate=true", "cpe=grid", "image=8,12", "depth=2", "dim=72"};
    mhla_model *m;
    rng r = {1};
    ASSERT_OK(mhla_set_isa(isa));
    ASSERT_OK(mhla_model_create(&m, "dit_micro", settings, 6, 1));
    stir(m->params, &r);
    const int64_t n = (int64_t)3 * 8 * 12;
    float *x = new_random(&r, N * n), *first = new_poisoned(N * n), *y = new_poisoned(N * n), times[N];
    int32_t labels[N];
    for (int i = 0; i < N; i++) {
        times[i] = 111.0f * (float)i;
        labels[i] = (i * 3) % 11;
    }
    for (int threads = 1; threads <= 64; threads = threads < 3 ? threads + 1 : 64 + (threads == 64)) {
        mhla_context *context = new_context(threads);
        mhla_model_set_context(m, context);
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            for (int at = 0; at < N; at += batches[b])
                ASSERT_OK(mhla_model_denoise(m, y + at * n,
                                             &(mhla_denoise){.size = sizeof(mhla_denoise),
                                                             .count = N - at < batches[b] ? N - at : batches[b],
                                                             .x = x + at * n,
                                                             .times = times + at,
                                                             .labels = labels + at}));
            if (threads == 1 && b == 0) memcpy(first, y, sizeof *y * (size_t)(N * n));
            assert_memory_equal(first, y, sizeof *y * (size_t)(N * n));
        }
        mhla_model_set_context(m, NULL);
        mhla_context_free(context);
    }
    free(x);
    free(y);
    free(first);
    mhla_model_free(m);
}

static void bits(void **state) {
    (void)state;
    const char *isas[8];
    const int n = isa_names(isas, 8);
    for (int i = 0; i < n; i++) {
        check_bits("attention=mhla", isas[i]);
        check_bits("attention=linear", isas[i]);
        check_bits("attention=softmax", isas[i]);
    }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- The public handle ---- */

static void denoise(void **state) {
    (void)state;
    const char *const settings[] = {"image=8", "blocks=2", "channels=1", "depth=1", "null_label=false"};
    mhla_model *m, *other;
    rng r = {3};
    ASSERT_OK(mhla_model_create(&m, "dit_micro", settings, 5, 1));
    float *x = new_random(&r, 2 * 64), *target = new_random(&r, 2 * 64), y[2 * 64], times[2] = {1.0f, 500.0f};
    int32_t labels[2] = {0, 9};
    mhla_denoise d = {.size = sizeof d, .count = 2, .x = x, .times = times, .labels = labels};
    ASSERT_OK(mhla_model_denoise(m, y, &d));
    for (int i = 0; i < 2 * 64; i++) assert_true(y[i] == 0.0f); /* the last layer starts at zero */
    float loss[40];
    for (int i = 0; i < 40; i++) ASSERT_OK(mhla_model_denoise_step(m, &loss[i], &d, target, 1e-2));
    assert_true(loss[39] < 0.5f * loss[0]);
    /* what cannot be */
    labels[1] = 10;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "labels[1] is 10: the model has 10 classes and no label for none"));
    labels[1] = 9;
    d.height = 9;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "height is 9: expected a multiple of patch 2"));
    d.height = 0;
    times[0] = NAN;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "times[0]"));
    d.times = NULL;
    assert_int_equal(mhla_model_denoise(m, y, &d), MHLA_EINVAL);
    int64_t tokens, cost;
    ASSERT_OK(mhla_model_denoise_cost(m, &cost, &tokens, 16, 24));
    assert_int_equal(tokens, 96);
    /* other kinds of models */
    assert_int_equal(mhla_model_forward(m, y, x, 1), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "diffusion"));
    ASSERT_OK(mhla_model_create(&other, "deit_nano", NULL, 0, 1));
    assert_int_equal(mhla_model_denoise(other, y, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "classifier"));
    mhla_model_free(other);
    mhla_model_free(m);
    free(x);
    free(target);
}

/* ---- Files ---- */

static char folder[64];

static const char *in_folder(char path[128], const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static void answer(mhla_model *m, float *y, const float *x) {
    const float time = 321.0f;
    const int32_t label = 2;
    ASSERT_OK(mhla_model_denoise(
        m, y, &(mhla_denoise){.size = sizeof(mhla_denoise), .count = 1, .x = x, .times = &time, .labels = &label}));
}

static char notes[4096];

static void note(void *user, const char *text) {
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

/* Of files without config.json: what the released code can switch is told by the tensors. */
static void bare_files(const char *path) {
    const char *const settings[][9] = {
        {"attention=mhla", "gate=true", "lepe=5", "cpe=folded", "blocks=2"},
        {"attention=mhla", "gate=true", "gate_norm=false", "lepe=0", "qk_norm=true", "qkv_bias=false", "blocks=2"},
        {"attention=mhla", "gate=true", "heads=12", "inner_norm=false", "blocks=4"},
        {"attention=linear", "lepe=3"},
        {"attention=softmax", "lepe=3", "qk_norm=true"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *list[13] = {"structure=released", "depth=1", "classes=5", "image=8"};
        int n = 4;
        while (settings[i][n - 4]) {
            list[n] = settings[i][n - 4];
            n++;
        }
        mhla_model *m, *back;
        ASSERT_OK(mhla_model_create(&m, "dit_s_2", list, n, 3));
        ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
        ASSERT_OK(mhla_model_open(&back, path));
        assert_string_equal(back->config, m->config);
        mhla_model_free(back);
        mhla_model_free(m);
    }
}

static void files(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mhla_dit_XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[128], other[128];
    /* widths of a published size, so that a bare file of weights tells everything */
    const char *const settings[] = {"structure=released", "attention=softmax", "depth=1", "classes=5", "image=8"};
    enum { X = 4 * 8 * 8, Y = 2 * X };
    mhla_model *m, *back;
    rng r = {9};
    float *x = new_random(&r, X), y[Y], z[Y];
    ASSERT_OK(mhla_model_create(&m, "dit_s_2", settings, 5, 3));
    stir(m->params, &r);
    answer(m, y, x);
    ASSERT_OK(mhla_model_save(m, in_folder(path, "a")));
    ASSERT_OK(mhla_model_open(&back, path));
    answer(back, z, x);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    /* without config.json */
    in_folder(path, "bare.safetensors");
    ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
    ASSERT_OK(mhla_model_open(&back, path));
    mhla_model_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_query(back, &info));
    assert_string_equal(info.name, "dit_s_2");
    assert_int_equal(info.classes, 5);
    assert_string_equal(info.config, m->config);
    answer(back, z, x);
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
    bare_files(path);
    ASSERT_OK(mhla_params_save(m->params, path, NULL, NULL));
    /* the start of one with MHLA, on images of another size: what is new is told */
    const char *const mhla[] = {"attention=mhla", "depth=1", "classes=5", "image=16,8", "blocks=2", "gate=true"};
    ASSERT_OK(mhla_model_create(&back, "dit_s_2", mhla, 6, 3));
    ASSERT_OK(mhla_model_adopt(back, path, note, NULL));
    assert_non_null(strstr(notes, "pos_embed: made anew"));
    assert_non_null(strstr(notes, "22 of 28 tensors"));
    assert_non_null(strstr(notes, "new, initialised (6): blocks.*.attn.lepe.weight, blocks.*.attn.lepe.bias, "
                                  "blocks.*.attn.piece_attn.conv.weight, blocks.*.attn.g.weight, blocks.*.attn.g.bias, "
                                  "blocks.*.attn.g_norm.weight\n"));
    assert_null(strstr(notes, "left out"));
    const mhla_param *from = mhla_params_find(m->params, "blocks.0.attn.qkv.weight"),
                     *to = mhla_params_find(back->params, "blocks.0.attn.to_qkv.weight");
    assert_memory_equal(from->data, to->data, (size_t)to->count * sizeof(float));
    mhla_model_free(back);
    /* another model's weights, and none at all */
    const char *const nano[] = {"blocks=4"};
    ASSERT_OK(mhla_model_create(&back, "deit_nano", nano, 1, 3));
    ASSERT_OK(mhla_params_save(back->params, in_folder(other, "deit.safetensors"), NULL, NULL));
    mhla_model_free(back);
    assert_int_equal(mhla_model_open(&back, other), MHLA_ENOTSUP);
    assert_non_null(strstr(mhla_message(), "config.json"));
    ASSERT_OK(mhla_model_create(&back, "dit_s_2", mhla, 6, 3));
    assert_int_equal(mhla_model_adopt(back, other, note, NULL), MHLA_ENOTSUP);
    assert_non_null(strstr(mhla_message(), "not a model that is known here"));
    mhla_model_free(back);
    /* a width that does not tell the heads */
    const char *const wide[] = {"structure=released", "attention=softmax", "depth=1", "dim=64", "heads=2"};
    ASSERT_OK(mhla_model_create(&back, "dit_micro", wide, 5, 3));
    ASSERT_OK(mhla_params_save(back->params, other, NULL, NULL));
    mhla_model_free(back);
    assert_int_equal(mhla_model_open(&back, other), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "width 64"));
    unlink(other);
    unlink(path);
    unlink(in_folder(path, "a/config.json"));
    unlink(in_folder(path, "a/model.safetensors"));
    rmdir(in_folder(path, "a"));
    rmdir(folder);
    mhla_model_free(m);
    free(x);
}

/* A dry run counts what the real one takes. */
static void dry_run(void **state) {
    (void)state;
    mhla_dit_config c = small(MHLA_GRID_MHLA, MHLA_DIT_CPE_FOLDED, 1, 3, 0);
    mhla_dit *m;
    size_t peak[2];
    ASSERT_OK(mhla_dit_create(&m, &c));
    ASSERT_OK(mhla_params_init(mhla_dit_params(m), 1));
    rng r = {1};
    sample s = draw(&r, &c, c.image[0], c.image[1]);
    for (int dry = 0; dry < 2; dry++) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD | (dry ? MHLA_TAPE_DRY : 0));
        mhla_tensor *x = mhla_nn_input(t, dry ? NULL : s.x, MHLA_SHAPE(B, c.channels, s.height, s.width));
        mhla_tensor *y = mhla_dit_forward(t, m, &(mhla_network_run){0}, x, dry ? NULL : s.times, dry ? NULL : s.labels);
        ASSERT_OK(mhla_tape_backward(t, mhla_nn_mse(t, y, s.dy), 1.0f));
        peak[dry] = mhla_tape_peak(t);
        mhla_tape_free(t);
    }
    assert_int_equal(peak[0], peak[1]);
    drop(&s);
    mhla_dit_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),       cmocka_unit_test(equal_surroundings),
        cmocka_unit_test(refused),      cmocka_unit_test(config_round_trip),
        cmocka_unit_test(combinations), cmocka_unit_test(sizes),
        cmocka_unit_test(bits),         cmocka_unit_test(denoise),
        cmocka_unit_test(dry_run),      cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
