/* VLT: counts and names of the published models, configs that make sense and that do not, whole gradients in evaluation and in
 * training, threads, recomputation and memory, files, fine-tuning with other blocks. */
#include "support.h"

#include <unistd.h>

#include "core/status.h"
#include "goldens.h"
#include "models/model.h"
#include "models/vision/vlt.h"
#include "train/train.h"

static mhla_vlt_config configure(const char *model) {
    mhla_vlt_config c;
    ASSERT_OK(mhla_vlt_preset(&c, model));
    return c;
}

/* ---- What the published models are made of ---- */

static void counts(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int projection; /* 0: the preset's */
        int64_t parameters;
        int convolutions, linear, mixing, softmax; /* multiply-adds, millions */
    } known[] = {
        {"ravlt_tiny", 0, 14897768, 2412, 77, 0, 123},        {"ravlt_small", 0, 25591208, 4506, 141, 0, 228},
        {"ravlt_base", 0, 48241288, 9802, 405, 0, 369},       {"ravlt_large", 0, 95242440, 16092, 434, 0, 679},
        {"mavit_tiny", 0, 16449128, 2439, 77, 0, 123},        {"mavit_small", 0, 27142568, 4533, 141, 0, 228},
        {"mhla_vlt_tiny", 0, 16454442, 2439, 77, 24, 123},    {"mhla_vlt_small", 0, 27151051, 4533, 141, 40, 228},
        {"mhla_vlt_tiny", 1024, 14903082, 2412, 77, 24, 123}, {"mhla_vlt_small", 1024, 25599691, 4506, 141, 40, 228},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_vlt_config c = configure(known[i].model);
        if (known[i].projection) c.projection = known[i].projection;
        mhla_vlt *m;
        ASSERT_OK(mhla_vlt_create(&m, &c));
        assert_int_equal(mhla_params_elements(mhla_vlt_params(m)), known[i].parameters);
        assert_int_equal((mhla_vlt_multiply_adds(&c, 1) + 500000) / 1000000, known[i].convolutions);
        /* the published tables count the cores to within some per cent: a term of T*C more or less */
        const double all = (double)(mhla_vlt_multiply_adds(&c, 0) - mhla_vlt_multiply_adds(&c, 1)) / 1e6;
        assert_true(fabs(all - known[i].linear - known[i].mixing - known[i].softmax) < 0.05 * all);
        mhla_vlt_free(m);
    }
}

/* Parameters in their order, then, after a line, buffers in theirs. */
static int check_names(const char *list, const char *model) {
    char path[512], file[64], line[256], name[160], shape[64];
    snprintf(file, sizeof file, "names/%s.txt", list);
    if (!golden_there(path, file)) return 0;
    const mhla_vlt_config c = configure(model);
    mhla_vlt *m;
    ASSERT_OK(mhla_vlt_create(&m, &c));
    const mhla_params *ps = mhla_vlt_params(m);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int at[2] = {0, 0}, buffers = 0, found = 0;
    while (fgets(line, sizeof line, f)) {
        buffers |= strncmp(line, "# buffers", 9) == 0;
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%159s %63s", name, shape), 2);
        const mhla_param *p = NULL;
        while ((p = mhla_params_at(ps, at[buffers]++)) && ((p->flags & MHLA_PARAM_BUFFER) != 0) != buffers) continue;
        if (p == NULL || strcmp(p->name, name) != 0) fail_msg("%s is %s", name, p ? p->name : "not there");
        char own[64] = "";
        for (int a = 0; a < p->dims; a++)
            snprintf(own + strlen(own), sizeof own - strlen(own), "%s%lld", a ? "x" : "", (long long)p->shape[a]);
        assert_string_equal(p->flags & MHLA_PARAM_COUNTER ? "scalar" : own, shape);
        found++;
    }
    assert_int_equal(found, mhla_params_count(ps));
    fclose(f);
    mhla_vlt_free(m);
    return 1;
}

static void names(void **state) {
    (void)state;
    static const char *const lists[] = {"mhla_vlt_tiny", "mhla_vlt_small", "ravlt_tiny",
                                        "ravlt_small",   "mavit_tiny",     "mavit_small"};
    int found = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) found += check_names(lists[i], lists[i]);
    if (found) return;
    print_message("[   SKIP   ] no list of names: set MHLA_GOLDENS\n");
    skip();
}

/* Which tensors decay, how they begin, what the frequencies are. */
static void initial_values(void **state) {
    (void)state;
    mhla_vlt_config c = configure("ravlt_base");
    c.mix_decay = 0;
    c.attention = 0;
    mhla_vlt *m;
    ASSERT_OK(mhla_vlt_create(&m, &c));
    mhla_params *ps = mhla_vlt_params(m);
    ASSERT_OK(mhla_params_init(ps, 1));
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        const int mix = (p->flags & MHLA_PARAM_MIX) != 0;
        assert_int_equal(!!(p->flags & MHLA_PARAM_DECAY), p->dims > 1 && !mix);
        double square = 0.0;
        for (int64_t k = 0; k < p->count; k++) square += (double)p->data[k] * (double)p->data[k] / (double)p->count;
        if (p->dims == 4 && p->shape[0] > 1 && !mix && p->count > 2000) assert_true(fabs(sqrt(square) - 0.02) < 0.002);
        if (strstr(p->name, "bias") || strstr(p->name, "mean")) assert_true(square == 0.0);
        if (strstr(p->name, "running_var") || strstr(p->name, "norm.weight")) assert_true(fabs(square - 1.0) < 1e-9);
        if (strstr(p->name, "gamma"))
            assert_true(p->data[0] ==
                        (strncmp(p->name, "layers.0", 8) == 0 || strncmp(p->name, "layers.1", 8) == 0 ? 1.0f : 1e-6f));
    }
    const mhla_param *angle = mhla_params_find(ps, "layers.3.RoPE.angle"); /* heads of 64 */
    for (int i = 0; i < 32; i++) assert_true(fabs((double)angle->data[i] - pow(10000.0, -(i / 2) / 15.0)) < 1e-7);
    assert_true(angle->data[31] == 1e-4f);
    mhla_vlt_free(m);
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"image=8", "stage 1, a grid of 2 x 2: blocks is 4 on an axis of 2"},
        {"dims=31,64,96,128", "dims begins with 31"},
        {"dims=32,64", "expected 1 or 4"},
        {"heads=1,2,5,4", "stage 3, a grid of 2 x 2: dim 96 is not a multiple of heads 5"},
        {"heads=16,2,3,4", "needs a multiple of 4"},
        {"lepe=4", "odd"},
        {"attention=softmax", "mhla, rala, mala"},
        {"mlp_ratios=0.01", "less than one"},
        {"depth=2", "depths"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        assert_int_not_equal(mhla_model_create(&m, "vlt_nano", &wrong[i].setting, 1, 0), MHLA_OK);
        if (strstr(mhla_message(), wrong[i].says) == NULL)
            fail_msg("%s: \"%s\" does not speak of \"%s\"", wrong[i].setting, mhla_message(), wrong[i].says);
    }
}

static void config_round_trip(void **state) {
    (void)state;
    static const char *const settings[] = {"attention=mala",  "image=40,24",    "dims=8,16,24,32",
                                           "heads=1,2,2,4",   "depths=1,2,1,1", "layer_scale=1,1,0,0.5",
                                           "blocks=3,2,2,1",  "phi=relu",       "gate=false",
                                           "mix_decay=false", "classes=6",      "projection=20"};
    mhla_model *m, *back;
    ASSERT_OK(mhla_model_create(&m, "vlt_nano", settings, 12, 3));
    char folder[64], path[128];
    snprintf(folder, sizeof folder, "/tmp/mhla_vlt_XXXXXX");
    assert_non_null(mkdtemp(folder));
    mhla_params_find(m->params, "norm.num_batches_tracked")->data[0] = 16000000.0f;
    ASSERT_OK(mhla_model_save(m, folder));
    ASSERT_OK(mhla_model_open(&back, folder));
    assert_string_equal(m->config, back->config);
    rng r = {4};
    float *x = new_random(&r, 2 * 3 * 40 * 24), y[12], z[12];
    ASSERT_OK(mhla_model_forward(m, y, x, 2));
    ASSERT_OK(mhla_model_forward(back, z, x, 2));
    assert_memory_equal(y, z, sizeof y);
    free(x);
    mhla_model_free(m);
    mhla_model_free(back);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

/* ---- Gradients of the whole ---- */

enum { B = 3 };
static const int32_t labels[B] = {3, 1, 0};

static mhla_vlt_config small(int variant) {
    mhla_vlt_config c = configure("vlt_nano");
    const int dims[] = {8, 16, 12, 16}, heads[] = {1, 2, 1, 2}, depths[] = {1, 2, 1, 1}, blocks[] = {3, 2, 2, 2};
    memcpy(c.dims, dims, sizeof dims);
    memcpy(c.heads, heads, sizeof heads);
    memcpy(c.depths, depths, sizeof depths);
    memcpy(c.blocks, blocks, sizeof blocks);
    c.attention = variant % 3;
    c.image[0] = 37;
    c.image[1] = 26;
    c.projection = 20;
    c.classes = 5;
    if (variant < 3) return c;
    c.gate = c.rope = 0;
    c.qk_norm = 1;
    c.phi = MHLA_FEATURE_RELU;
    c.layer_scale[1] = c.layer_scale[2] = 0.0;
    return c;
}

/* Nothing silent: no zeros, no ones. */
static void disturb(mhla_params *ps, rng *r) {
    ASSERT_OK(mhla_params_init(ps, 7));
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
        if (p->flags & (MHLA_PARAM_FROZEN | MHLA_PARAM_COUNTER)) continue;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(r);
        mhla_param_touch(p);
    }
}

static double loss_of(mhla_tape *t, mhla_vlt *m, const float *x, unsigned mode, int recompute) {
    const mhla_vlt_config *c = mhla_vlt_config_of(m);
    mhla_tape_begin(t, MHLA_TAPE_RECORD | mode);
    mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(B, c->channels, c->image[0], c->image[1]));
    const mhla_network_run run = {.recompute = recompute, .drop_path = mode ? 0.2f : 0.0f};
    mhla_tensor *loss = mhla_nn_cross_entropy(t, mhla_vlt_forward(t, m, &run, in), labels, NULL, 0.1f, NULL);
    ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
    return (double)loss->data[0];
}

static float *copy_all(const mhla_params *ps, int grads, int64_t *count) {
    *count = 0;
    for (int i = 0; i < mhla_params_count(ps); i++) *count += mhla_params_at(ps, i)->count;
    float *all = new_bytes((size_t)*count * sizeof *all), *at = all;
    memset(all, 0, (size_t)*count * sizeof *all);
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (grads && !p->has_grad) assert_true(p->flags & MHLA_PARAM_BUFFER);
        if (!grads || p->has_grad) memcpy(at, grads ? p->grad : p->data, (size_t)p->count * sizeof *at);
        at += p->count;
    }
    return all;
}

static void move_all(const mhla_params *ps, const float *from, const float *along, double h) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        for (int64_t k = 0; k < p->count; k++, from++, along++) p->data[k] = *from + (float)(h * (double)*along);
        mhla_param_touch(p);
    }
}

/* Along the gradient the loss grows by its length; recomputed blocks and other numbers of threads make the same bits, running
 * statistics included. */
static void gradients(void **state) {
    (void)state;
    for (int variant = 0; variant < 6; variant++)
        for (int train = 0; train < 2; train++) {
            const unsigned mode = train ? MHLA_TAPE_DROP : 0;
            const mhla_vlt_config c = small(variant);
            rng r = {(uint64_t)variant + 5};
            mhla_vlt *m;
            ASSERT_OK(mhla_vlt_create(&m, &c));
            mhla_params *ps = mhla_vlt_params(m);
            disturb(ps, &r);
            int64_t n;
            float *x = new_random(&r, (int64_t)B * 3 * c.image[0] * c.image[1]), *start = copy_all(ps, 0, &n);
            float *kept = NULL, *moved = NULL;
            for (int way = 0; way < 3; way++) { /* plain, with three threads, recomputed */
                mhla_context *context = new_context(way == 1 ? 3 : 1);
                mhla_tape *t;
                move_all(ps, start, start, 0.0);
                mhla_params_clear_grads(ps);
                ASSERT_OK(mhla_tape_create(&t, context));
                loss_of(t, m, x, mode, way == 2);
                float *grads = copy_all(ps, 1, &n), *values = copy_all(ps, 0, &n);
                if (way) assert_memory_equal(kept, grads, (size_t)n * sizeof *grads);
                if (way) assert_memory_equal(moved, values, (size_t)n * sizeof *grads);
                free(kept);
                free(moved);
                kept = grads;
                moved = values;
                mhla_tape_free(t);
                mhla_context_free(context);
            }
            assert_int_equal(memcmp(start, moved, (size_t)n * sizeof *start) != 0, train);
            double square = 0.0;
            for (int64_t k = 0; k < n; k++) square += (double)kept[k] * (double)kept[k];
            mhla_tape *t;
            ASSERT_OK(mhla_tape_create(&t, NULL));
            const double h = 2e-4 / sqrt(square);
            move_all(ps, start, kept, h);
            const double more = loss_of(t, m, x, mode, 0);
            move_all(ps, start, kept, -h);
            const double less = loss_of(t, m, x, mode, 0), found = (more - less) / (2.0 * h);
            if (!(fabs(found - square) < 5e-3 * square))
                fail_msg("variant %d, training %d: the square of the gradient is %.9g, by differences %.9g", variant,
                         train, square, found);
            free(kept);
            free(moved);
            free(start);
            free(x);
            mhla_tape_free(t);
            mhla_vlt_free(m);
        }
}

/* A dry run counts the memory of the real one, and moves no statistics. */
static void memory(void **state) {
    (void)state;
    const mhla_vlt_config c = small(0);
    rng r = {3};
    mhla_vlt *m;
    ASSERT_OK(mhla_vlt_create(&m, &c));
    mhla_params *ps = mhla_vlt_params(m);
    disturb(ps, &r);
    int64_t n;
    float *x = new_random(&r, (int64_t)B * 3 * c.image[0] * c.image[1]), *before = copy_all(ps, 0, &n);
    size_t peak[2];
    for (int dry = 1; dry >= 0; dry--) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD | MHLA_TAPE_DROP | (dry ? MHLA_TAPE_DRY : 0));
        mhla_tensor *in = mhla_nn_input(t, x, MHLA_SHAPE(B, 3, c.image[0], c.image[1]));
        mhla_tensor *y = mhla_vlt_forward(t, m, &(mhla_network_run){0}, in);
        ASSERT_OK(mhla_tape_backward(t, mhla_nn_cross_entropy(t, y, labels, NULL, 0.1f, NULL), 1.0f));
        peak[dry] = mhla_tape_peak(t);
        mhla_tape_free(t);
        float *after = copy_all(ps, 0, &n);
        assert_int_equal(memcmp(before, after, (size_t)n * sizeof *after) == 0, dry);
        free(after);
    }
    assert_int_equal(peak[0], peak[1]);
    free(x);
    free(before);
    mhla_vlt_free(m);
}

/* An image's logits do not depend on what else is in the batch. */
static void batches(void **state) {
    (void)state;
    const char *const settings[] = {"classes=7"};
    enum { N = 5, PIXELS = 3 * 32 * 32 };
    mhla_model *m;
    rng r = {5};
    ASSERT_OK(mhla_model_create(&m, "vlt_nano", settings, 1, 3));
    float *x = new_random(&r, (int64_t)N * PIXELS), all[N * 7], one[7];
    ASSERT_OK(mhla_model_forward(m, all, x, N));
    for (int i = 0; i < N; i++) {
        ASSERT_OK(mhla_model_forward(m, one, x + (int64_t)i * PIXELS, 1));
        assert_memory_equal(one, all + 7 * i, sizeof one);
    }
    free(x);
    mhla_model_free(m);
}

/* ---- Fine-tuning with other blocks ---- */

static char notes[4000];
static void note(void *user, const char *text) {
    (void)user;
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

static void other_blocks(void **state) {
    (void)state;
    const char *const few[] = {"blocks=2,1,2,2"}, *const many[] = {"blocks=4,1,2,2", "image=64"};
    mhla_model *from, *to, *back;
    char folder[64], path[128];
    snprintf(folder, sizeof folder, "/tmp/mhla_vlt_XXXXXX");
    assert_non_null(mkdtemp(folder));
    ASSERT_OK(mhla_model_create(&from, "vlt_nano", few, 1, 1));
    ASSERT_OK(mhla_model_create(&to, "vlt_nano", many, 2, 2));
    ASSERT_OK(mhla_model_create(&back, "vlt_nano", few, 1, 3));
    const char *name = "layers.0.blocks.0.attn.piece_attn.conv.weight";
    mhla_param *p = mhla_params_find(from->params, name);
    const float m[] = {0.8f, 0.2f, 0.4f, 0.6f};
    memcpy(p->data, m, sizeof m);
    mhla_params_find(from->params, "norm.running_mean")->data[3] = 2.5f;
    ASSERT_OK(mhla_model_save(from, folder));
    notes[0] = '\0';
    ASSERT_OK(mhla_model_adopt(to, folder, note, NULL));
    const mhla_param *q = mhla_params_find(to->params, name);
    const double w[4][2] = {
        {1, 0}, {0.75, 0.25}, {0.25, 0.75}, {0, 1}}; /* old centres at 1/4 and 3/4, new ones at odd eighths */
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            double sum = 0.0;
            for (int a = 0; a < 2; a++)
                for (int b = 0; b < 2; b++) sum += w[i][a] * w[j][b] * (double)m[2 * a + b];
            assert_true(fabs((double)q->data[4 * i + j] - sum) < 1e-6);
        }
    assert_true(mhla_params_find(to->params, "norm.running_mean")->data[3] == 2.5f);
    assert_non_null(strstr(notes, "images: from 32 x 32 to 64 x 64 pixels"));
    assert_non_null(strstr(notes, "mixing matrices, interpolated to the new blocks (1): "
                                  "layers.0.blocks.*.attn.piece_attn.conv.weight from 2 x 1 to 4 x 1"));
    /* and back: blocks that cover two take their mean, weighted by how near they are */
    ASSERT_OK(mhla_model_save(to, folder));
    ASSERT_OK(mhla_model_adopt(back, folder, note, NULL));
    const mhla_param *z = mhla_params_find(back->params, name);
    for (int i = 0; i < 4; i++) assert_true(z->data[i] > 0.2f && z->data[i] < 0.8f);
    assert_true(z->data[0] > z->data[1] && z->data[3] > z->data[2]);
    mhla_model_free(from);
    mhla_model_free(to);
    mhla_model_free(back);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(names),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(refused),
        cmocka_unit_test(config_round_trip),
        cmocka_unit_test(gradients),
        cmocka_unit_test(memory),
        cmocka_unit_test(batches),
        cmocka_unit_test(other_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
