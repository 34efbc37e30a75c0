/* Wan: what the published models are made of, names, configs that make sense and that do not, gradients against differences, the same bits
 * in any batch and with any number of threads, texts and what is kept of them, files of every origin. tests/goldens has the published
 * numbers. */
#include <malloc.h>
#include <mhla/diffusion.h>
#include <mhla/nn.h>

#include "files.h"
#include "goldens.h"
#include "models/denoisers/wan.h"
#include "train/train.h"

/* Nothing silent: no zeros, no ones. */
static void stir(mhla_params *ps, rng *r) {
    for (int i = 0; i < mhla_params_count(ps); i++) {
        mhla_param *p = mhla_params_at(ps, i);
        const float size = p->dims > 1 && !(p->flags & MHLA_PARAM_MIX) ? 0.3f : 0.05f;
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(r);
        mhla_param_touch(p);
    }
}

static int failing(mhla_status status, const char *says) {
    if (status != MHLA_OK && strstr(mhla_message(), says)) return 1;
    print_error("%s: %s\n", says, status == MHLA_OK ? "it works" : mhla_message());
    return 0;
}

/* ---- What the published models are made of ---- */

static void published(void **state) {
    (void)state;
    static const struct {
        const char *list, *settings[3];
        int count;
        int64_t parameters,
            tera; /* operations as the paper of the numbers counts: two a multiply-add, in units of 1e11 */
    } known[] = {
        {"wan21_t2v_1p3b_original", {"attention=softmax"}, 1, 1418996800, 2648},
        {"wan_1300m_mhla", {"gate=false"}, 1, 1419675640, 829},
        {"wan_1300m_mhla_gated", {"gate=true"}, 1, 1490500600, 874},
        {"wan_1300m_hybrid_mhla", {"hybrid=3"}, 1, 1419449360, 1436},
        {"wan_1300m_hybrid_mhla_gated", {"hybrid=3", "gate=true"}, 2, 1466666000, 1465},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mhla_model *m;
        mhla_model_info info = {.size = sizeof info};
        char name[64], path[512], line[300], tensor[128], shape[128];
        ASSERT_OK(mhla_model_outline(&m, "wan_1300m", known[i].settings, known[i].count));
        ASSERT_OK(mhla_model_query(m, &info));
        assert_int_equal(info.parameters, known[i].parameters);
        assert_int_equal((2 * info.multiply_adds + 50000000000) / 100000000000, known[i].tera);
        assert_int_equal(info.tokens, 31500);
        assert_int_equal(info.frames, 21);
        snprintf(name, sizeof name, "names/%s.txt", known[i].list);
        FILE *f = golden_there(path, name) ? fopen(path, "r") : NULL;
        int k = 0;
        while (f && fgets(line, sizeof line, f)) {
            if (*line == '#' || sscanf(line, "%127s %127[^\n]", tensor, shape) != 2) continue;
            mhla_tensor_info t = {.size = sizeof t};
            ASSERT_OK(mhla_model_tensor(m, k++, &t));
            assert_string_equal(t.name, tensor);
            int64_t n = 1; /* both ways of writing a shape: its numbers, in order */
            int axis = 0;
            for (const char *at = shape; *at; at++)
                if (*at >= '0' && *at <= '9') {
                    char *end;
                    assert_int_equal(strtoll(at, &end, 10), t.shape[axis]);
                    n *= t.shape[axis++];
                    at = end - 1;
                }
            assert_int_equal(n, t.count);
        }
        if (f) {
            assert_int_equal(k, info.tensors);
            fclose(f);
        } else {
            print_message("[   SKIP   ] no %s: set MHLA_GOLDENS\n", name);
        }
        mhla_model_free(m);
    }
}

static void names(void **state) {
    (void)state;
    char path[512], line[300], ours[128], theirs[128];
    FILE *f = fopen(golden_path(path, "names/wan21_t2v_1p3b_map.txt"), "r");
    int n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (*line != '#' && sscanf(line, "%127s %127s", ours, theirs) == 2) {
            assert_string_equal(mhla_wan_name(ours, 1), theirs);
            assert_string_equal(mhla_wan_name(ours, 0), ours);
            n++;
        }
    assert_int_equal(n, 825);
    fclose(f);
}

/* ---- Configs ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"patch=5", "multiple of patch 5"},
        {"heads=5", "dim 96 is not a multiple of heads 5"},
        {"heads=96", "1 per head: expected an even number"},
        {"blocks=9,2,2", "at most one block per token"},
        {"blocks=2,2", "2 numbers: expected 1 or 3"},
        {"attention=mala", "mhla, linear, softmax"},
        {"frames=0", "frames"},
        {"image=4100", "up to 4096"},
        {"frequencies=3", "even"},
        {"hybrid=-1", "hybrid"},
        {"process=flow", "process"},
    };
    mhla_model *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_true(failing(mhla_model_create(&m, "wan_micro", &wrong[i].setting, 1, 0), wrong[i].says));
    const char *const uneven[] = {"denominator=released", "blocks=3,2,2"};
    assert_true(failing(mhla_model_create(&m, "wan_micro", uneven, 2, 0), "needs equal blocks: 8 frames"));
    assert_true(failing(mhla_model_create(&m, "wan_14b", NULL, 0, 0), "wan_1300m"));
}

static void config_round_trip(void **state) {
    (void)state;
    static const char *const some[][4] = {{"hybrid=2", "gate=true", "lepe=true", "blocks=2,4,1"},
                                          {"attention=linear", "classes=0", "eps=0.001", "mix=uniform"},
                                          {"attention=softmax", "frames=3", "image=16,24", "mix_clip=false"}};
    for (int i = 0; i < 3; i++) {
        mhla_model *m;
        mhla_wan_config c;
        ASSERT_OK(mhla_model_outline(&m, "wan_nano", some[i], 4));
        json_t *tree = mhla_wan_config_tree(&((mhla_wan *)m->net)->config), *again;
        ASSERT_OK(mhla_wan_config_read(&c, tree, "config.json"));
        again = mhla_wan_config_tree(&c);
        assert_true(json_equal(tree, again));
        json_decref(tree);
        json_decref(again);
        mhla_model_free(m);
    }
}

/* ---- A small model of text: 2 frames x 2 x 3 tokens ---- */

enum { N = 4, WIDTH = 5, LONGEST = 6, PIXELS = 2 * 2 * 4 * 6 };

static mhla_model *small(const char *const *more, int count) {
    const char *settings[16] = {"frames=2", "image=4,6", "channels=2", "patch=2",      "dim=24",        "ffn=20",
                                "heads=2",  "depth=3",   "classes=0",  "text_width=5", "text_length=7", "blocks=2,1,2"};
    mhla_model *m;
    rng r = {5};
    for (int i = 0; i < count; i++) settings[12 + i] = more[i];
    ASSERT_OK(mhla_model_create(&m, "wan_micro", settings, 12 + count, 3));
    stir(m->params, &r);
    return m;
}

typedef struct batch {
    float x[N * PIXELS], rows[N * LONGEST * WIDTH], times[N], dy[N * PIXELS];
    int32_t lengths[N];
} batch;

static batch draw(uint64_t seed) {
    static const int32_t lengths[N] = {6, 0, 3, 6};
    rng r = {seed};
    batch b;
    for (int i = 0; i < N * PIXELS; i++) b.x[i] = rng_signed(&r), b.dy[i] = rng_signed(&r);
    for (int i = 0; i < N * LONGEST * WIDTH; i++) b.rows[i] = rng_signed(&r);
    for (int i = 0; i < N; i++) {
        b.times[i] = 333.3f * (float)i;
        b.lengths[i] = lengths[i];
        for (int k = lengths[i] * WIDTH; k < LONGEST * WIDTH; k++) b.rows[i * LONGEST * WIDTH + k] = NAN; /* not read */
    }
    return b;
}

/* Samples first .. first+count-1, recorded: the answer, which lives as long as the tape. */
static mhla_tensor *recorded(mhla_tape *t, const mhla_model *m, const batch *b, int first, int count, int recompute) {
    const mhla_condition condition = {
        .rows = b->rows + first * LONGEST * WIDTH, .lengths = b->lengths + first, .longest = LONGEST};
    mhla_condition *kept = malloc(sizeof kept[0]);
    *kept = condition;
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *x = mhla_nn_input(t, b->x + first * PIXELS, MHLA_SHAPE(count, 2, 2, 4, 6));
    mhla_tensor *y =
        mhla_denoiser_forward(t, m, &(mhla_network_run){.recompute = recompute}, x, b->times + first, kept);
    free(kept);
    ASSERT_OK(mhla_tape_status(t));
    return y;
}

static void denoise(mhla_model *m, float *y, const batch *b, int first, int count) {
    ASSERT_OK(mhla_model_denoise(m, y,
                                 &(mhla_denoise){.size = sizeof(mhla_denoise),
                                                 .count = count,
                                                 .x = b->x + first * PIXELS,
                                                 .times = b->times + first,
                                                 .rows = b->rows + first * LONGEST * WIDTH,
                                                 .lengths = b->lengths + first,
                                                 .longest = LONGEST}));
}

static double loss(mhla_model *m, const batch *b) {
    float y[N * PIXELS];
    double sum = 0.0;
    denoise(m, y, b, 0, N);
    for (int i = 0; i < N * PIXELS; i++) sum += (double)y[i] * (double)b->dy[i];
    return sum;
}

static const char *const kinds[][3] = {{"attention=mhla", "gate=true", "lepe=true"},
                                       {"hybrid=2", "denominator=released", "blocks=1,2,3"},
                                       {"attention=linear", "hybrid=0", "eps=0.01"},
                                       {"attention=softmax", "hybrid=0", "eps=0.01"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Along a random direction of each parameter; what is kept of texts must follow every change. */
static void gradients(void **state) {
    (void)state;
    const batch b = draw(1);
    for (int kind = 0; kind < KINDS; kind++) {
        mhla_model *m = small(kinds[kind], 3);
        mhla_params *ps = m->params;
        mhla_tape *t;
        rng r = {9};
        ASSERT_OK(mhla_tape_create(&t, NULL));
        float **kept = new_bytes((size_t)mhla_params_count(ps) * sizeof *kept);
        for (int recompute = 1; recompute >= 0; recompute--) {
            mhla_params_clear_grads(ps);
            ASSERT_OK(mhla_tape_backward_from(t, recorded(t, m, &b, 0, N, recompute), b.dy));
            for (int i = 0; i < mhla_params_count(ps); i++) {
                const mhla_param *p = mhla_params_at(ps, i);
                const size_t bytes = (size_t)p->count * sizeof(float);
                if (!p->has_grad) fail_msg("%s has no gradient", p->name);
                if (recompute) memcpy(kept[i] = new_bytes(bytes), p->grad, bytes);
                if (recompute) continue;
                assert_memory_equal(kept[i], p->grad, bytes);
                free(kept[i]);
            }
        }
        free(kept);
        for (int i = 0; i < mhla_params_count(ps); i++) {
            mhla_param *p = mhla_params_at(ps, i);
            const double h = 5e-4;
            double along = 0.0, size = 0.0, two[2];
            float *d = new_random(&r, p->count), *old = new_bytes((size_t)p->count * sizeof *old);
            memcpy(old, p->data, (size_t)p->count * sizeof *old);
            for (int64_t k = 0; k < p->count; k++) {
                along += (double)p->grad[k] * (double)d[k];
                size += (double)p->grad[k] * (double)p->grad[k];
            }
            for (int sign = 0; sign < 2; sign++) {
                for (int64_t k = 0; k < p->count; k++) p->data[k] = old[k] + (float)(sign ? -h : h) * d[k];
                mhla_param_touch(p);
                two[sign] = loss(m, &b);
            }
            memcpy(p->data, old, (size_t)p->count * sizeof *old);
            mhla_param_touch(p);
            const double found = (two[0] - two[1]) / (2.0 * h);
            if (!(fabs(found - along) <= 0.03 * fabs(along) + 0.03 * sqrt(size) + 0.02))
                fail_msg("%s, %s: %.6g, by differences %.6g; the gradient is %g long", kinds[kind][0], p->name, along,
                         found, sqrt(size));
            free(d);
            free(old);
        }
        mhla_tape_free(t);
        mhla_model_free(m);
    }
}

/* ---- Bits ---- */

static void bits(void **state) {
    (void)state;
    const char *isas[8];
    const int n = isa_names(isas, 8);
    const batch b = draw(2);
    float first[N * PIXELS], y[N * PIXELS];
    for (int isa = 0; isa < n; isa++)
        for (int kind = 0; kind < KINDS; kind++) {
            ASSERT_OK(mhla_set_isa(isas[isa]));
            mhla_model *m = small(kinds[kind], 3);
            for (int threads = 1; threads < 4; threads++)
                for (int piece = 1; piece <= N; piece++) {
                    mhla_context *context = new_context(threads);
                    mhla_tape *t;
                    mhla_model_set_context(m, context);
                    ASSERT_OK(mhla_tape_create(&t, context));
                    for (int at = 0; at < N; at += piece)
                        denoise(m, y + at * PIXELS, &b, at, N - at < piece ? N - at : piece);
                    if (threads == 1 && piece == 1) memcpy(first, y, sizeof y);
                    assert_memory_equal(first, y, sizeof y);
                    /* without what is kept of texts */
                    for (int at = 0; at < N; at += piece) {
                        const int count = N - at < piece ? N - at : piece;
                        const mhla_tensor *z = recorded(t, m, &b, at, count, 0);
                        assert_memory_equal(first + at * PIXELS, z->data, sizeof *y * (size_t)(count * PIXELS));
                    }
                    mhla_model_set_context(m, NULL);
                    mhla_tape_free(t);
                    mhla_context_free(context);
                }
            mhla_model_free(m);
        }
    ASSERT_OK(mhla_set_isa(NULL));
}

/* ---- Texts ---- */

/* Zeros behind a text, one by one, are what one row that counts as many is. */
static void zeros(void **state) {
    (void)state;
    mhla_model *m = small(NULL, 0);
    batch b = draw(3);
    float y[N * PIXELS], z[N * PIXELS], rows[N * 7 * WIDTH] = {0};
    denoise(m, y, &b, 0, N);
    for (int i = 0; i < N; i++)
        memcpy(rows + i * 7 * WIDTH, b.rows + i * LONGEST * WIDTH, sizeof *rows * (size_t)(b.lengths[i] * WIDTH));
    mhla_denoise d = {.size = sizeof d, .count = N, .x = b.x, .times = b.times, .rows = rows, .longest = 7};
    ASSERT_OK(mhla_model_denoise(m, z, &d));
    ASSERT_CLOSE(z, y, N * PIXELS, 2e-6, "all rows given");
    /* and they do count */
    d.longest = 3;
    float three[N * 3 * WIDTH];
    for (int i = 0; i < N; i++) memcpy(three + i * 3 * WIDTH, rows + i * 7 * WIDTH, 3 * WIDTH * sizeof *three);
    d.rows = three;
    ASSERT_OK(mhla_model_denoise(m, z, &d)); /* texts of 3: their zeros still are */
    ASSERT_CLOSE(z + PIXELS, y + PIXELS, 2 * PIXELS, 2e-6, "texts that are no longer than 3");
    mhla_model_free(m);
}

/* More texts than are kept, again and again. */
static void many_texts(void **state) {
    (void)state;
    enum { TEXTS = 23 };
    mhla_model *m = small(NULL, 0);
    float y[TEXTS][PIXELS], z[PIXELS];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < TEXTS; i++) {
            const batch b = draw((uint64_t)(100 + i));
            denoise(m, round ? z : y[i], &b, i % N, 1);
            if (round) assert_memory_equal(y[i], z, sizeof z);
        }
    mhla_model_free(m);
}

static void wrong_texts(void **state) {
    (void)state;
    mhla_model *m = small(NULL, 0), *of_classes;
    batch b = draw(4);
    float y[N * PIXELS];
    int32_t label = 0;
    mhla_denoise d = {.size = sizeof d, .count = 1, .x = b.x, .times = b.times, .rows = b.rows, .longest = LONGEST};
    d.longest = 8;
    assert_true(failing(mhla_model_denoise(m, y, &d), "a text of 8 rows: the model takes at most 7"));
    d.longest = LONGEST;
    d.rows = NULL;
    assert_true(failing(mhla_model_denoise(m, y, &d), "the model takes text"));
    d.rows = b.rows;
    d.labels = &label;
    assert_true(failing(mhla_model_denoise(m, y, &d), "the model takes no classes"));
    d.labels = NULL;
    d.width = 5;
    assert_true(failing(mhla_model_denoise(m, y, &d), "width is 5: expected a multiple of patch 2"));
    d.width = 0;
    d.frames = 1;
    assert_true(failing(mhla_model_denoise_step(m, y, &d, b.dy, 1e-2), "1 x 2 x 3 tokens are too few to learn of"));
    d.frames = 0;
    b.times[0] = NAN;
    assert_true(failing(mhla_model_denoise(m, y, &d), "times[0] is not finite"));
    b.times[0] = 5.0f;
    /* of classes: it learns, other sizes too */
    const char *const tiny[] = {"frames=2", "image=8", "patch=4", "dim=24", "depth=1", "blocks=1,2,2", "classes=3"};
    ASSERT_OK(mhla_model_create(&of_classes, "wan_micro", tiny, 7, 1));
    label = 4;
    d = (mhla_denoise){.size = sizeof d, .count = 1, .x = b.x, .times = b.times, .labels = &label};
    assert_true(failing(mhla_model_denoise(of_classes, y, &d), "labels[0] is 4: the model has 3 classes"));
    label = 3; /* none */
    float loss[30];
    for (int i = 0; i < 30; i++) ASSERT_OK(mhla_model_denoise_step(of_classes, &loss[i], &d, b.dy, 1e-2));
    assert_true(loss[29] < 0.5f * loss[0]);
    d.frames = 3;
    d.height = 8;
    d.width = 12;
    ASSERT_OK(mhla_model_denoise(of_classes, y, &d));
    int64_t tokens, cost;
    ASSERT_OK(mhla_model_denoise_cost(of_classes, &cost, &tokens, 16, 8));
    assert_int_equal(tokens, 2 * 4 * 2);
    mhla_model_free(of_classes);
    mhla_model_free(m);
}

/* A grid with fewer tokens than blocks: what is left of the matrix is that of a model of fewer blocks. */
static void small_grid(void **state) {
    (void)state;
    mhla_model *m = small((const char *const[]){"blocks=2,1,3"}, 1),
               *few = small((const char *const[]){"frames=1", "blocks=1,1,2"}, 2);
    const batch b = draw(6);
    float y[2][PIXELS];
    /* of 2 blocks the frame is in the last, of 3 the two columns are in the second and the third */
    static const int kept[] = {4, 5};
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *from = mhla_params_at(m->params, i);
        mhla_param *to = mhla_params_at(few->params, i);
        const int64_t M = from->shape[0];
        if (from->count == to->count) memcpy(to->data, from->data, (size_t)to->count * sizeof *to->data);
        for (int64_t k = 0; from->count != to->count && k < to->count; k++)
            to->data[k] = from->data[kept[k / 2] * M + kept[k % 2]];
        to->version++;
    }
    const mhla_denoise d = {.size = sizeof d,
                            .count = 1,
                            .x = b.x,
                            .times = b.times,
                            .rows = b.rows,
                            .longest = LONGEST,
                            .frames = 1,
                            .height = 4,
                            .width = 4};
    ASSERT_OK(mhla_model_denoise(m, y[0], &d));
    ASSERT_OK(mhla_model_denoise(few, y[1], &d));
    assert_memory_equal(y[0], y[1], 2 * 4 * 4 * sizeof(float));
    mhla_model_free(few);
    mhla_model_free(m);
}

/* ---- Files ---- */

/* The weights under our names or diffusers', as `file`; where `skip` is in a name, without it. */
static void save_as(const mhla_params *ps, const char *file, int diffusers, const char *skip) {
    const int n = mhla_params_count(ps);
    mhla_storable *list = new_bytes((size_t)n * sizeof *list);
    char(*text)[256] = new_bytes((size_t)n * sizeof *text);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        if (skip && strstr(p->name, skip)) continue;
        snprintf(text[kept], sizeof *text, "%s", mhla_wan_name(p->name, diffusers));
        list[kept] = (mhla_storable){text[kept], p->dims, p->shape, p->data, MHLA_IO_F32, MHLA_IO_F32};
        kept++;
    }
    ASSERT_OK(mhla_safetensors_write(in_folder(file), list, kept, NULL, 0));
    free(list);
    free(text);
}

static void put(const char *name, const char *text) { write_file(in_folder(name), text, strlen(text)); }

static void same_answers(mhla_model *m, const char *path) {
    const batch b = draw(6);
    mhla_model *back;
    float y[N * PIXELS], z[N * PIXELS];
    int64_t size[2] = {4, 6};
    denoise(m, y, &b, 0, N);
    ASSERT_OK(mhla_model_open(&back, path));
    ASSERT_OK(mhla_model_denoise(back, z,
                                 &(mhla_denoise){.size = sizeof(mhla_denoise),
                                                 .count = N,
                                                 .x = b.x,
                                                 .times = b.times,
                                                 .rows = b.rows,
                                                 .lengths = b.lengths,
                                                 .longest = LONGEST,
                                                 .frames = 2,
                                                 .height = (int)size[0],
                                                 .width = (int)size[1]}));
    assert_memory_equal(y, z, sizeof y);
    mhla_model_free(back);
}

static void clear(void) {
    remove_folder(NULL);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void files(void **state) {
    (void)state;
    mhla_model *m, *back;
    mhla_model_info info = {.size = sizeof info};
    static const char *const layers[][2] = {
        {"hybrid=3", "gate=true"}, {"lepe=true", "gate=false"}, {"attention=softmax", "hybrid=0"}};
    for (int i = 0; i < 3; i++) {
        clear();
        m = small(layers[i], 2);
        const char *model = in_folder("a");
        char path[64];
        snprintf(path, sizeof path, "%s", model);
        ASSERT_OK(mhla_model_save(m, path));
        same_answers(m, path);
        /* its authors', with blocks as the release writes them */
        put("config.json",
            "{\"_class_name\": \"WanModel\", \"model_type\": \"t2v\", \"dim\": 24, \"ffn_dim\": 20, \"num_heads\": 2, "
            "\"num_layers\": 3, \"in_dim\": 2, \"out_dim\": 2, \"freq_dim\": 256, \"text_len\": 7, \"eps\": 1e-06, "
            "\"is_gated\": true, \"block_layout\": [2, 1, 2], \"linear_attn_idx\": [1, 2], "
            "\"self_attn_type\": \"mhla_uni\"}");
        save_as(m->params, "diffusion_pytorch_model.safetensors", 0, NULL);
        same_answers(m, folder);
        ASSERT_OK(mhla_model_open(&back, folder));
        ASSERT_OK(mhla_model_query(back, &info));
        assert_int_equal(info.parameters, mhla_params_elements(m->params));
        assert_int_equal(strstr(info.config, "\"hybrid\": 3") != NULL, i == 0);
        assert_int_equal(strstr(info.config, "\"gate\": true") != NULL, i == 0); /* as the tensors say */
        mhla_model_free(back);
        /* diffusers' */
        put("config.json",
            "{\"_class_name\": \"WanTransformer3DModel\", \"attention_head_dim\": 12, \"num_attention_heads\": 2, "
            "\"num_layers\": 3, \"in_channels\": 2, \"text_len\": 7, \"block_layout\": [2, 1, 2], \"image_dim\": "
            "null}");
        save_as(m->params, "diffusion_pytorch_model.safetensors", 1, NULL);
        same_answers(m, folder);
        mhla_model_free(m);
    }
}

static void broken_files(void **state) {
    (void)state;
    static const char *const layers[] = {"hybrid=3", "gate=true"};
    static const struct {
        const char *config, *says;
    } wrong[] = {
        {"{\"_class_name\": \"WanModel\", \"dim\": 32}", "dim is 32, and the tensors have 24"},
        {"{\"_class_name\": \"WanModel\", \"num_layers\": 30}", "num_layers is 30, and the tensors have 3"},
        {"{\"_class_name\": \"WanModel\", \"num_heads\": 5, \"block_layout\": [2, 1, 2]}",
         "dim 24 is not a multiple of heads 5"},
        {"{\"_class_name\": \"WanModel\", \"num_heads\": 2}", "mixing matrices of 4 blocks, and no config.json says"},
        {"{\"_class_name\": \"WanModel\", \"block_layout\": [2, 2]}", "block_layout is not a list of 3"},
        {"{\"_class_name\": \"WanModel\", \"self_attn_type\": \"mllalepe\"}", "self_attn_type is \"mllalepe\""},
        {"{\"_class_name\": \"WanModel\", \"image_dim\": 1280}", "image_dim is 1280: only models from text"},
        {"{\"_class_name\": \"WanModel\", \"in_dim\": 36}", "in_dim is 36, and the tensors have 2"},
        {"{\"_class_name\": \"WanModel\", \"eps\": \"x\"}", "eps"},
    };
    mhla_model *m = small(layers, 2), *back;
    clear();
    save_as(m->params, "model.safetensors", 0, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put("config.json", wrong[i].config);
        assert_true(failing(mhla_model_open(&back, folder), wrong[i].says));
    }
    /* a tensor too few, a tensor too many */
    put("config.json", "{\"_class_name\": \"WanModel\", \"num_heads\": 2, \"block_layout\": [2, 1, 2]}");
    save_as(m->params, "model.safetensors", 1, "blocks.1.cross_attn.norm_q");
    assert_true(failing(mhla_model_open(&back, folder), "no tensor \"blocks.1.attn2.norm_q.weight\""));
    save_as(m->params, "model.safetensors", 0, "blocks.2.self_attn.g.");
    assert_true(failing(mhla_model_open(&back, folder), "no tensor \"blocks.2.self_attn.g.weight\""));
    save_as(m->params, "model.safetensors", 0, "blocks.1.self_attn.g.");
    assert_true(
        failing(mhla_model_open(&back, folder), "tensor \"blocks.2.self_attn.g.bias\" is not part of the model"));
    /* without any word about the model */
    put("config.json", "{}");
    save_as(m->params, "model.safetensors", 0, NULL);
    assert_true(failing(mhla_model_open(&back, folder), "mixing matrices of 4 blocks"));
    put("config.json", "{\"_class_name\": \"WanAnimate\"}");
    assert_true(failing(mhla_model_open(&back, folder), "not a model that is known here"));
    mhla_model_free(m);
}

/* Layers in no order that `hybrid` could name: what was opened is saved and opened again. And matrices that training left as they are. */
static void odd_layers(void **state) {
    (void)state;
    mhla_model *m = small(NULL, 0), *back;
    mhla_model_info info = {.size = sizeof info};
    clear();
    mhla_param *mix = mhla_params_find(m->params, "blocks.0.self_attn.block_attn.conv.weight");
    save_as(m->params, "model.safetensors", 0, "blocks.1.self_attn.block_attn");
    put("config.json", "{\"_class_name\": \"WanModel\", \"num_heads\": 2, \"block_layout\": [2, 1, 2]}");
    assert_true(failing(mhla_model_open(&back, folder), "\"blocks.1.self_attn.g_norm.weight\" is not part"));
    mhla_model_free(m);
    const char *const softmax[] = {"attention=softmax"}, *const four[] = {"depth=2"};
    m = small(softmax, 1);
    mhla_model *of_mhla = small(four, 1);
    for (int i = 0; i < mhla_params_count(of_mhla->params); i++) { /* layer 1 with MHLA, 0 and 2 without */
        const mhla_param *p = mhla_params_at(of_mhla->params, i);
        if (strncmp(p->name, "blocks.1.self_attn.", 19) == 0 && mhla_params_find(m->params, p->name) == NULL) {
            mhla_param *q = mhla_params_add(m->params, p->name, p->shape, p->dims, 0, MHLA_ZERO);
            memcpy(q->data, p->data, (size_t)p->count * sizeof *q->data);
        }
    }
    mix = mhla_params_find(m->params, "blocks.1.self_attn.block_attn.conv.weight");
    for (int i = 0; i < 16; i++) mix->data[i] = i == 1 ? -0.25f : 0.25f;
    save_as(m->params, "model.safetensors", 0, NULL);
    ASSERT_OK(mhla_model_open(&back, folder));
    ASSERT_OK(mhla_model_query(back, &info));
    assert_non_null(info.note);
    assert_non_null(strstr(info.note, "1 of 16 numbers are negative"));
    assert_true(mhla_params_find(back->params, mix->name)->data[1] == -0.25f);
    const char *again = in_folder("again");
    char path[64];
    snprintf(path, sizeof path, "%s", again);
    ASSERT_OK(mhla_model_save(back, path));
    mhla_model_free(back);
    ASSERT_OK(mhla_model_open(&back, path));
    for (int i = 0; i < 3; i++)
        assert_int_equal(((mhla_wan *)back->net)->config.kinds[i], i == 1 ? MHLA_GRID_MHLA : MHLA_GRID_SOFTMAX);
    mhla_model_free(back);
    mhla_model_free(of_mhla);
    mhla_model_free(m);
}

/* ---- From softmax to MHLA ---- */

static char notes[4096];

static void note(void *user, const char *text) {
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

static void from_softmax(void **state) {
    (void)state;
    static const char *const softmax[] = {"attention=softmax"}, *const mhla[] = {"hybrid=3", "gate=true", "lepe=true"};
    mhla_model *m = small(softmax, 1), *to = small(mhla, 3);
    clear();
    put("config.json", m->config);
    save_as(m->params, "model.safetensors", 0, NULL);
    ASSERT_OK(mhla_params_init(to->params, 1));
    ASSERT_OK(mhla_model_adopt(to, folder, note, NULL));
    assert_non_null(strstr(notes, "new, initialised (12): blocks.*.self_attn.g.weight, blocks.*.self_attn.g.bias, "
                                  "blocks.*.self_attn.g_norm.weight, blocks.*.self_attn.lepe.weight, "
                                  "blocks.*.self_attn.lepe.bias, blocks.*.self_attn.block_attn.conv.weight\n"));
    assert_null(strstr(notes, "not used"));
    const mhla_param *from = mhla_params_find(m->params, "blocks.1.self_attn.o.weight"),
                     *taken = mhla_params_find(to->params, "blocks.1.self_attn.o.weight"),
                     *mix = mhla_params_find(to->params, "blocks.1.self_attn.block_attn.conv.weight");
    assert_memory_equal(from->data, taken->data, (size_t)from->count * sizeof(float));
    float want[16];
    const int blocks[] = {2, 1, 2};
    ASSERT_OK(mhla_mix_fill(want, MHLA_MIX_PAPER, 3, blocks, 0.0));
    assert_memory_equal(mix->data, want, sizeof want);
    mhla_model_free(m);
    mhla_model_free(to);
}

/* A dry run counts what the real one takes. */
static void dry_run(void **state) {
    (void)state;
    const batch b = draw(8);
    size_t peak[2];
    mhla_model *m = small(kinds[0], 3);
    for (int dry = 0; dry < 2; dry++) {
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_RECORD | (dry ? MHLA_TAPE_DRY : 0));
        const mhla_condition condition = {
            .rows = dry ? NULL : b.rows, .lengths = dry ? NULL : b.lengths, .longest = LONGEST};
        mhla_tensor *x = mhla_nn_input(t, dry ? NULL : b.x, MHLA_SHAPE(N, 2, 2, 4, 6));
        mhla_tensor *y = mhla_denoiser_forward(t, m, &(mhla_network_run){0}, x, dry ? NULL : b.times, &condition);
        ASSERT_OK(mhla_tape_backward(t, mhla_nn_mse(t, y, b.dy), 1.0f));
        peak[dry] = mhla_tape_peak(t);
        mhla_tape_free(t);
    }
    assert_int_equal(peak[0], peak[1]);
    mhla_model_free(m);
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* outlines of large models never touch their memory */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published),    cmocka_unit_test(names),        cmocka_unit_test(refused),
        cmocka_unit_test(gradients),    cmocka_unit_test(bits),         cmocka_unit_test(config_round_trip),
        cmocka_unit_test(zeros),        cmocka_unit_test(many_texts),   cmocka_unit_test(wrong_texts),
        cmocka_unit_test(files),        cmocka_unit_test(broken_files), cmocka_unit_test(odd_layers),
        cmocka_unit_test(from_softmax), cmocka_unit_test(dry_run),      cmocka_unit_test(small_grid),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
