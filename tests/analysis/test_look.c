/* Analysis of whole models: a mixing matrix that says nothing leaves linear attention, whose rank it then has; numbers of
 * files that can be read back; pages that are whole; rows, maps, positions; what is refused. */
#include "support.h"

#include <mhla/analysis.h>

#include "analysis/look.h"
#include "core/status.h"
#include "file/json.h"
#include "file/npy.h"
#include "folders.h"
#include "lm_case.h"
#include "models/model.h"

enum { PICTURES = 6, SIDE = 16 };

/* A folder of its own with pictures.npy of noise. */
static void new_pictures(char folder[40]) {
    static unsigned char pixels[PICTURES * SIDE * SIDE];
    rng r = {9};
    new_folder(folder);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)rng_below(&r, 256);
    ASSERT_OK(mhla_npy_write(in_folder(folder, "pictures.npy"), MHLA_IO_U8, 3, (const int64_t[]){PICTURES, SIDE, SIDE},
                             pixels));
}

/* 64 tokens, keys of 16. */
static mhla_model *new_deit(const char *attention, const char *blocks, const char *mix) {
    char kind[40];
    mhla_model *m;
    snprintf(kind, sizeof kind, "attention=%s", attention);
    const char *settings[] = {kind,      blocks,   mix,       "image=16,16", "channels=1", "padding=0,0",
                              "patch=2", "dim=32", "heads=2", "depth=2",     "classes=4"};
    ASSERT_OK(mhla_model_create(&m, "deit_nano", settings, 11, 3));
    mhla_model_set_context(m, single_thread());
    return m;
}

static mhla_analysis *look(mhla_model *m, const char *data, mhla_analysis_desc d) {
    mhla_analysis *a;
    d.size = sizeof d;
    d.data = data;
    ASSERT_OK(mhla_analysis_create(&a, m, &d));
    return a;
}

static mhla_head_analysis head_of(const mhla_analysis *a, int layer, int head) {
    mhla_head_analysis x = {.size = sizeof x};
    ASSERT_OK(mhla_analysis_head(a, layer, head, &x));
    return x;
}

/* The paper's claim at its ends: one block, or a uniform matrix, is linear attention; the real thing has more rank. */
static void linear_is_a_case(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    const char *data = in_folder(folder, "pictures.npy");
    const struct {
        const char *attention, *blocks, *mix;
        int64_t bound;
    } cases[] = {{"linear", "blocks=2,2", "mix=paper", 16},
                 {"mhla", "blocks=1,1", "mix=paper", 16},
                 {"mhla", "blocks=2,2", "mix=uniform", 64},
                 {"mhla", "blocks=2,2", "mix=paper", 64}};
    mhla_head_analysis x[4][2];
    for (int i = 0; i < 4; i++) {
        mhla_model *m = new_deit(cases[i].attention, cases[i].blocks, cases[i].mix);
        mhla_analysis *a = look(m, data, (mhla_analysis_desc){.samples = 3});
        for (int h = 0; h < 2; h++) {
            x[i][h] = head_of(a, 1, h);
            assert_int_equal(x[i][h].bound, cases[i].bound);
            assert_true(x[i][h].rank <= (double)cases[i].bound);
        }
        mhla_analysis_free(a);
        mhla_model_free(m);
    }
    for (int h = 0; h < 2; h++) {
        assert_true(x[0][h].rank > 8.0 && x[0][h].rank <= 16.0);
        for (int i = 1; i < 3; i++) { /* the same weights, drawn by name: the same matrix */
            assert_true(fabs(x[i][h].rank - x[0][h].rank) < 1e-9);
            assert_true(fabs(x[i][h].effective_rank - x[0][h].effective_rank) < 1e-4);
            assert_true(fabs(x[i][h].entropy - x[0][h].entropy) < 1e-5);
        }
        assert_true(x[3][h].rank > 2.0 * x[0][h].rank);
        assert_true(x[3][h].own > x[0][h].own);
        assert_true(x[3][h].distance < x[0][h].distance);
    }
    remove_folder(folder);
}

/* Some rows are rows of the whole; maps are rows; shares add up. */
static void rows_and_maps(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    const char *data = in_folder(folder, "pictures.npy");
    mhla_model *m = new_deit("mhla", "blocks=4,4", "mix=paper");
    mhla_analysis *whole = look(m, data, (mhla_analysis_desc){.maps = 2}),
                  *some = look(m, data, (mhla_analysis_desc){.rows = 10, .rank_samples = -1});
    mhla_analysis_info info = {.size = sizeof info};
    ASSERT_OK(mhla_analysis_query(whole, &info));
    assert_int_equal(info.tokens, 64);
    assert_int_equal(info.samples, PICTURES);
    assert_int_equal(info.rank_samples, PICTURES);
    assert_int_equal(info.maps, 2);
    assert_string_equal(info.attention, "mhla");
    assert_true(isnan(info.loss) && !info.causal && info.grid[0] == 8 && info.blocks[1] == 4);
    float a[64], b[64];
    for (int64_t i = 0; i < 10; i++) {
        double sum = 0.0;
        ASSERT_OK(mhla_analysis_map(whole, a, 1, 1, 0, i * 64 / 10));
        ASSERT_OK(mhla_analysis_map(some, b, 1, 1, 0, i * 64 / 10));
        assert_memory_equal(a, b, sizeof a);
        for (int u = 0; u < 64; u++) sum += (double)a[u];
        assert_true(fabs(sum - 1.0) < 1e-3);
    }
    const mhla_head_analysis x = head_of(whole, 0, 1), y = head_of(some, 0, 1);
    assert_true(fabs(x.own + x.near + x.far - 1.0) < 1e-9 && x.far > 0.0);
    assert_int_equal(y.bound, 10);
    assert_true(isnan(y.rank) && isnan(y.effective_rank) && y.entropy > 0.0);
    mhla_mix_analysis mix = {.size = sizeof mix};
    ASSERT_OK(mhla_analysis_mix(whole, 1, &mix));
    assert_int_equal(mix.blocks, 16);
    assert_memory_equal(mix.before, mix.after, 256 * sizeof(float)); /* not trained */
    assert_true(fabs(mix.own[0] + mix.near[0] + mix.far[0] - 1.0) < 1e-9);
    /* refused */
    const double *loss;
    int64_t positions;
    mhla_head_analysis h = {.size = sizeof h};
    assert_int_equal(mhla_analysis_map(some, b, 0, 0, 0, 1), MHLA_EINVAL); /* no such row */
    assert_int_equal(mhla_analysis_map(whole, a, 2, 0, 0, 0), MHLA_EINVAL);
    assert_int_equal(mhla_analysis_map(whole, a, 0, 0, 0, 64), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "tokens 0 to 63"));
    assert_int_equal(mhla_analysis_head(whole, 2, 0, &h), MHLA_EINVAL);
    assert_int_equal(mhla_analysis_head(whole, 0, -1, &h), MHLA_EINVAL);
    assert_int_equal(mhla_analysis_positions(whole, &loss, &positions), MHLA_EINVAL);
    mhla_analysis *none;
    mhla_analysis_desc d = {.size = sizeof d, .data = data, .dump = folder, .dump_layer = 2};
    assert_int_equal(mhla_analysis_create(&none, m, &d), MHLA_EINVAL);
    d.dump_layer = 0;
    d.dump_sample = PICTURES;
    assert_int_equal(mhla_analysis_create(&none, m, &d), MHLA_EINVAL);
    assert_null(none);
    mhla_analysis_free(some);
    mhla_analysis_free(whole);
    mhla_model_free(m);
    remove_folder(folder);
}

/* DiG's layers read the grid in turns: maps are by rows. Layers of the same weights that only read in another direction have
 * maps with the same rows in another place; causal is what comes before in the layer's own order. */
static void directions(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    const char *settings[] = {"image=16,16", "channels=1", "patch=4", "depth=4", "dim=48", "heads=1"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "dig_micro", settings, 6, 3));
    mhla_analysis *a =
        look(m, in_folder(folder, "pictures.npy"), (mhla_analysis_desc){.samples = 1, .maps = 1, .rank_samples = -1});
    mhla_analysis *some = look(m, in_folder(folder, "pictures.npy"),
                               (mhla_analysis_desc){.samples = 1, .maps = 1, .rows = 5, .rank_samples = -1});
    /* the place of a token of the 4 x 4 grid in the order of each layer */
    for (int layer = 0; layer < 4; layer++) {
        int turn[16];
        for (int t = 0; t < 16; t++) {
            turn[t] = layer < 2 ? t : t % 4 * 4 + t / 4;
            if (layer % 2) turn[t] = 15 - turn[t];
        }
        for (int t = 0; t < 16; t++) {
            float row[16], again[16];
            int seen = 0;
            ASSERT_OK(mhla_analysis_map(a, row, 0, layer, 0, t));
            for (int u = 0; u < 16; u++) {
                if (turn[u] > turn[t]) assert_true(row[u] == 0.0f);
                seen += row[u] != 0.0f;
            }
            assert_int_equal(seen, turn[t] + 1);
            for (int i = 0; i < 5; i++)
                if (t == i * 16 / 5) {
                    ASSERT_OK(mhla_analysis_map(some, again, 0, layer, 0, t));
                    assert_memory_equal(row, again, sizeof row);
                }
        }
    }
    mhla_analysis_free(some);
    mhla_analysis_free(a);
    mhla_model_free(m);
    remove_folder(folder);
}

/* Means do not depend on the number of threads. */
static void threads(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    mhla_model *m = new_deit("mala", "blocks=2,2", "mix=paper");
    mhla_context *many = new_context(3);
    mhla_head_analysis x[2];
    for (int i = 0; i < 2; i++) {
        mhla_model_set_context(m, i ? many : single_thread());
        mhla_analysis *a = look(m, in_folder(folder, "pictures.npy"), (mhla_analysis_desc){.samples = 5});
        x[i] = head_of(a, 1, 1);
        mhla_analysis_free(a);
    }
    assert_true(x[0].rank == x[1].rank && x[0].effective_rank == x[1].effective_rank);
    assert_true(x[0].entropy == x[1].entropy && x[0].clipped == x[1].clipped && x[0].distance == x[1].distance);
    assert_true(x[0].clipped > 0.0 && x[0].bound == 17);
    mhla_model_free(m);
    mhla_context_free(many);
    remove_folder(folder);
}

/* What training changed is told apart from what it began with, and the model keeps what it has. */
static void mixing(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    mhla_model *m = new_deit("mhla", "blocks=2,2", "mix=paper");
    mhla_param *p = mhla_params_find(m->params, "blocks.1.attn.piece_attn.conv.weight");
    assert_non_null(p);
    float began[16];
    memcpy(began, p->data, sizeof began);
    for (int i = 0; i < 16; i++) p->data[i] = i % 5 == 0 ? 1.0f : 0.0f;
    mhla_param_touch(p);
    mhla_analysis *a = look(m, in_folder(folder, "pictures.npy"), (mhla_analysis_desc){.samples = 1});
    mhla_mix_analysis mix = {.size = sizeof mix};
    ASSERT_OK(mhla_analysis_mix(a, 1, &mix));
    assert_memory_equal(mix.before, began, sizeof began);
    assert_memory_equal(mix.after, p->data, sizeof began);
    assert_true(p->data[0] == 1.0f && p->data[1] == 0.0f);
    assert_true(mix.own[1] == 1.0 && mix.own[0] < 1.0);
    const mhla_head_analysis x = head_of(a, 1, 0);
    assert_true(x.own > 0.9999);
    mhla_analysis_free(a);
    mhla_model_free(m);
    remove_folder(folder);
}

/* ---- Files ---- */

static char *read_text(const char *path, size_t *size) {
    mhla_file file;
    ASSERT_OK(mhla_file_map(&file, path));
    char *text = new_bytes(file.size + 1);
    memcpy(text, file.data, file.size);
    text[file.size] = '\0';
    *size = file.size;
    mhla_file_unmap(&file);
    return text;
}

/* Every tag that is opened is closed, in order; nothing is fetched from anywhere. */
static void check_page(const char *path, int models) {
    size_t size;
    char *text = read_text(path, &size), open[64][16];
    int depth = 0, looks = 0;
    assert_true(size < 5000000);
    assert_null(strstr(text, "http:"));
    assert_null(strstr(text, "https:"));
    for (char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        char name[16] = "";
        if (at[1] == '!') continue;
        sscanf(at[1] == '/' ? at + 2 : at + 1, "%15[a-z0-9]", name);
        char *end = strchr(at, '>');
        assert_non_null(end);
        looks += strncmp(at, "<figure class=\"look\"", 20) == 0;
        if (strcmp(name, "meta") == 0 || strcmp(name, "br") == 0 || strcmp(name, "img") == 0 ||
            strcmp(name, "input") == 0 || strcmp(name, "col") == 0 || end[-1] == '/')
            continue;
        if (at[1] == '/') {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else {
            assert_true(depth < 64);
            strcpy(open[depth++], name);
            if (strcmp(name, "script") == 0) end = strstr(end, "</script>") - 1;
            assert_non_null(end);
        }
        at = end;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(looks, models);
    free(text);
}

static void files(void **state) {
    (void)state;
    char folder[40];
    new_pictures(folder);
    const char *names[] = {"soft, <b>\"max\"</b>", "mhla"};
    mhla_model *m[2] = {new_deit("softmax", "blocks=2,2", "mix=paper"), new_deit("mhla", "blocks=2,2", "mix=paper")};
    mhla_analysis *a[2];
    const char *data = in_folder(folder, "pictures.npy");
    char path[3][64];
    for (int i = 0; i < 2; i++)
        a[i] = look(m[i], data,
                    (mhla_analysis_desc){.samples = 2,
                                         .dump = i ? folder : NULL,
                                         .dump_sample = 1,
                                         .tokens = (const int64_t[]){7, 63},
                                         .token_count = 2});
    static const char *const ends[] = {"a.json", "a.csv", "a.html"};
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, ends[i]);
        ASSERT_OK(mhla_analysis_write(path[i], (const mhla_analysis *const *)a, names, 2));
    }
    /* JSON */
    json_t *tree;
    ASSERT_OK(mhla_json_load(&tree, path[0]));
    const json_t *models = json_object_get(tree, "models"), *soft = json_array_get(models, 0),
                 *own = json_array_get(models, 1);
    assert_string_equal(json_string_value(json_object_get(soft, "name")), names[0]);
    assert_int_equal(json_array_size(json_object_get(soft, "by_head")), 4);
    assert_int_equal(json_array_size(json_object_get(soft, "mixing")), 0);
    assert_int_equal(json_array_size(json_object_get(own, "mixing")), 2);
    const mhla_head_analysis x = head_of(a[1], 1, 1);
    const json_t *row = json_array_get(json_object_get(own, "by_head"), 3);
    assert_true(json_number_value(json_object_get(row, "entropy")) == x.entropy);
    assert_true(json_number_value(json_object_get(row, "rank")) == x.rank);
    const json_t *map = json_array_get(json_object_get(own, "maps"), 2 * 2 * 2 * 2 - 1);
    assert_int_equal(json_array_size(json_object_get(own, "maps")), 2 * 2 * 2 * 2); /* samples, layers, heads, tokens */
    assert_int_equal(json_integer_value(json_object_get(map, "token")), 63);
    float weights[64];
    ASSERT_OK(mhla_analysis_map(a[1], weights, 1, 1, 1, 63));
    for (size_t u = 0; u < 64; u++)
        assert_true((float)json_number_value(json_array_get(json_object_get(map, "weights"), u)) == weights[u]);
    json_decref(tree);
    /* CSV: a head line and one per head; the name in quotes */
    size_t size;
    char *text = read_text(path[1], &size);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) lines++;
    assert_int_equal(lines, 1 + 2 * 4);
    assert_non_null(strstr(text, "\n\"soft, <b>\"\"max\"\"</b>\",deit_nano,softmax,64,2,2,0,0,64,"));
    free(text);
    check_page(path[2], 2);
    /* what was dumped: A v = o */
    mhla_npy A, v, o;
    ASSERT_OK(mhla_npy_open(&A, in_folder(folder, "sample-1.layer-0.head-0.A.npy")));
    ASSERT_OK(mhla_npy_open(&v, in_folder(folder, "sample-1.layer-0.head-0.v.npy")));
    ASSERT_OK(mhla_npy_open(&o, in_folder(folder, "sample-1.layer-0.head-0.o.npy")));
    assert_true(A.dtype == MHLA_IO_F64 && A.shape[0] == 64 && A.shape[1] == 64 && v.shape[1] == 16);
    for (int t = 0; t < 64; t++)
        for (int j = 0; j < 16; j++) {
            double sum = 0.0;
            for (int u = 0; u < 64; u++)
                sum += ((const double *)A.data)[t * 64 + u] * (double)((const float *)v.data)[u * 16 + j];
            assert_true(fabs(sum - (double)((const float *)o.data)[t * 16 + j]) < 1e-5);
        }
    mhla_npy_close(&A);
    mhla_npy_close(&v);
    mhla_npy_close(&o);
    /* refused */
    assert_int_equal(mhla_analysis_write(in_folder(folder, "a.txt"), (const mhla_analysis *const *)a, names, 2),
                     MHLA_EINVAL);
    assert_int_equal(mhla_analysis_write(in_folder(folder, "no/a.csv"), (const mhla_analysis *const *)a, names, 2),
                     MHLA_EIO);
    assert_int_equal(mhla_analysis_write(path[0], (const mhla_analysis *const *)a, names, 0), MHLA_EINVAL);
    for (int i = 0; i < 2; i++) {
        mhla_analysis_free(a[i]);
        mhla_model_free(m[i]);
    }
    mhla_analysis_free(NULL);
    remove_folder(folder);
}

/* Models that differ: the page offers the layers of the one that has most, though another kept maps of more samples. */
static void different_models(void **state) {
    (void)state;
    char folder[40], path[64];
    new_pictures(folder);
    const char *names[] = {"deep", "flat"}, *data = in_folder(folder, "pictures.npy");
    const char *small[] = {"image=16,16", "channels=1", "padding=0,0", "patch=4", "dim=16", "heads=2", "depth=1"};
    mhla_model *m[2] = {new_deit("mhla", "blocks=2,2", "mix=paper")};
    ASSERT_OK(mhla_model_create(&m[1], "deit_nano", small, 7, 3));
    mhla_model_set_context(m[1], single_thread());
    mhla_analysis *a[2];
    for (int i = 0; i < 2; i++)
        a[i] = look(m[i], data, (mhla_analysis_desc){.samples = 2, .rank_samples = -1, .maps = i + 1});
    snprintf(path, sizeof path, "%s/a.html", folder);
    ASSERT_OK(mhla_analysis_write(path, (const mhla_analysis *const *)a, names, 2));
    check_page(path, 2);
    size_t size;
    char *text = read_text(path, &size);
    const char *layers = strstr(text, "id=\"choose-layer\"");
    assert_non_null(layers);
    assert_int_equal(strncmp(strchr(layers, '>') + 1, "<option value=\"0\">0</option><option value=\"1\">1<", 48), 0);
    free(text);
    for (int i = 0; i < 2; i++) {
        mhla_analysis_free(a[i]);
        mhla_model_free(m[i]);
    }
    remove_folder(folder);
}

/* ---- Language models ---- */

static void text(void **state) {
    (void)state;
    char folder[40];
    static const char words[] = "It was the best of times, it was the worst of times.\nIt was the age of wisdom.\n";
    new_folder(folder);
    write_file(folder, "text.txt", words, sizeof words - 1);
    const char *data = in_folder(folder, "text.txt"), *names[] = {"lm"};
    const char *settings[] = {"num_hidden_layers=2", "hidden_size=32", "chunk_size=8",
                              "num_blocks=8",        "vocab_size=256", "intermediate_size=48"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 6, 1));
    mhla_model_set_context(m, single_thread());
    mhla_analysis *a = look(m, data, (mhla_analysis_desc){.samples = 2, .window = 40});
    mhla_analysis_info info = {.size = sizeof info};
    const double *loss;
    int64_t positions;
    double sum = 0.0;
    ASSERT_OK(mhla_analysis_query(a, &info));
    assert_true(info.causal && info.tokens == 40 && info.blocks[0] == 5 && info.blocks[1] == 1);
    ASSERT_OK(mhla_analysis_positions(a, &loss, &positions));
    assert_int_equal(positions, 40);
    for (int i = 0; i < 40; i++) sum += loss[i] / 40.0;
    assert_true(fabs(sum - info.loss) < 1e-9 && fabs(info.loss - log(256.0)) < 0.5); /* it knows nothing yet */
    float row[40];
    ASSERT_OK(mhla_analysis_map(a, row, 0, 1, 0, 20));
    for (int u = 21; u < 40; u++) assert_true(row[u] == 0.0f); /* nothing of what follows */
    mhla_mix_analysis mix = {.size = sizeof mix};
    ASSERT_OK(mhla_analysis_mix(a, 0, &mix));
    assert_true(mix.blocks == 8 && mix.grid[0] == 8 && mix.grid[1] == 1);
    char page[64];
    snprintf(page, sizeof page, "%s/lm.html", folder);
    ASSERT_OK(mhla_analysis_write(page, (const mhla_analysis *const *)&a, names, 1));
    check_page(page, 1);
    size_t size;
    char *written = read_text(page, &size);
    assert_non_null(strstr(written, "(of 8 tokens)")); /* what own, near and far are told by */
    assert_non_null(
        strstr(written, "<td>2.758</td>")); /* ln(40!) / 40: a causal row t cannot have more than ln(t + 1) */
    free(written);
    /* Blocks of another size, as beside a model that has those; a head of zeros has no entropy, the other one has. */
    mhla_param *p = mhla_params_find(m->params, "model.layers.0.attn.q_proj.weight");
    assert_non_null(p);
    memset(p->data, 0, (size_t)(p->count / 2) * sizeof *p->data);
    mhla_param_touch(p);
    mhla_analysis *b = look(m, data, (mhla_analysis_desc){.samples = 2, .window = 40, .chunk = 20});
    mhla_head_analysis dead = {.size = sizeof dead}, alive = {.size = sizeof alive};
    ASSERT_OK(mhla_analysis_query(b, &info));
    assert_true(info.chunk == 20 && info.blocks[0] == 2);
    ASSERT_OK(mhla_analysis_head(b, 0, 0, &dead));
    ASSERT_OK(mhla_analysis_head(b, 0, 1, &alive));
    assert_true(isnan(dead.entropy) && dead.dead == 1.0 && alive.entropy > 0.0 && alive.far == 0.0);
    ASSERT_OK(mhla_analysis_write(page, (const mhla_analysis *const *)&b, names, 1));
    written = read_text(page, &size);
    const char *summary = strstr(written, "class=\"summary");
    assert_non_null(summary);
    assert_null(
        memmem(summary, (size_t)(strstr(summary, "</table>") - summary), "<td>-</td>", 10)); /* means of the rest */
    free(written);
    mhla_analysis_free(b);
    mhla_analysis *none;
    mhla_analysis_desc d = {.size = sizeof d, .data = data, .window = 65};
    assert_int_equal(mhla_analysis_create(&none, m, &d), MHLA_ERANGE);
    d = (mhla_analysis_desc){.size = sizeof d, .data = data, .chunk = -1};
    assert_int_equal(mhla_analysis_create(&none, m, &d), MHLA_EINVAL);
    mhla_analysis_free(a);
    mhla_model_free(m);
    remove_folder(folder);
}

/* ---- Clips: frames are an axis of their own ---- */

enum { CLIPS = 3, FRAMES = 4, CLIP = 8 }; /* tokens 4 x 4 x 4 of patches of 2 x 2; blocks 2 x 2 x 2 */

/* A dataset of clips of noise. */
static void new_clips(char folder[40]) {
    static unsigned char pixels[CLIPS * FRAMES * CLIP * CLIP], labels[CLIPS];
    const int64_t shape[] = {CLIPS, FRAMES, CLIP, CLIP};
    rng r = {5};
    new_folder(folder);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)rng_below(&r, 256);
    ASSERT_OK(mhla_npy_write(in_folder(folder, "test_clips.npy"), MHLA_IO_U8, 4, shape, pixels));
    ASSERT_OK(mhla_npy_write(in_folder(folder, "test_labels.npy"), MHLA_IO_U8, 1, shape, labels));
}

static mhla_model *new_wan(const char *attention, const char *mix, const char *frames) {
    const char *settings[] = {attention, mix,       frames,    "image=8,8", "patch=2",     "dim=24",
                              "ffn=32",  "depth=2", "heads=2", "classes=2", "blocks=2,2,2"};
    mhla_model *m;
    ASSERT_OK(mhla_model_create(&m, "wan_micro", settings, 11, 3));
    mhla_model_set_context(m, single_thread());
    return m;
}

/* Shares of what a block takes along an axis of two places, by hand: m [8,8], bit `bit` of a block's number is its place. */
static void check_along(const mhla_mix_analysis *x, const float *m, int axis, int bit) {
    double share[4] = {0.0};
    float found[4];
    for (int i = 0; i < 8; i++) {
        double all = 0.0;
        for (int b = 0; b < 8; b++) all += (double)m[i * 8 + b];
        for (int b = 0; b < 8; b++) share[(i >> bit & 1) * 2 + (b >> bit & 1)] += (double)m[i * 8 + b] / all / 4.0;
    }
    assert_int_equal(mhla_mix_places(x, axis), 2);
    mhla_mix_along(found, m, x, axis);
    for (int i = 0; i < 4; i++) assert_true(fabs((double)found[i] - share[i]) < 1e-6);
}

static void clips(void **state) {
    (void)state;
    char folder[40], pictures[40];
    new_clips(folder);
    mhla_model *m = new_wan("attention=mhla", "mix=paper", "frames=4"), *soft;
    mhla_param *p = mhla_params_find(m->params, "blocks.1.self_attn.block_attn.conv.weight");
    assert_non_null(p);
    for (int i = 0; i < 64; i++) p->data[i] = (float)(1 + i * 7 % 13) / 13.0f;
    mhla_param_touch(p);
    mhla_analysis *a =
        look(m, folder, (mhla_analysis_desc){.maps = 2, .tokens = (const int64_t[]){9}, .token_count = 1});
    mhla_analysis_info info = {.size = sizeof info};
    ASSERT_OK(mhla_analysis_query(a, &info));
    assert_true(info.tokens == 64 && info.samples == CLIPS && info.layers == 2); /* not those to the class */
    assert_true(info.frames == 4 && info.frame_blocks == 2 && info.grid[0] == 4 && info.grid[1] == 4);
    mhla_head_analysis x = head_of(a, 1, 1);
    assert_true(fabs(x.own + x.near + x.far - 1.0) < 1e-9 && x.far > 0.0 && x.bound == 64 && x.rank > 12.0);
    mhla_mix_analysis mix = {.size = sizeof mix};
    ASSERT_OK(mhla_analysis_mix(a, 1, &mix));
    assert_true(mix.blocks == 8 && mix.frames == 2 && mix.grid[0] == 2 && mix.grid[1] == 2);
    assert_memory_equal(mix.after, p->data, 64 * sizeof(float));
    for (int i = 0; i < 2; i++)
        for (int axis = 0; axis < 3; axis++)
            check_along(&mix, i ? mix.after : mix.before, MHLA_MIX_FRAMES + axis, 2 - axis);
    double far = 0.0; /* the corner across: all three axes differ */
    for (int i = 0; i < 8; i++) {
        double all = 0.0;
        for (int b = 0; b < 8; b++) all += (double)mix.after[i * 8 + b];
        far += (double)mix.after[i * 8 + 7 - i] / all / 8.0;
    }
    assert_true(fabs(mix.far[1] - far) < 1e-6);
    static const char *const ends[] = {"clips.json", "clips.html"};
    const char *name = "clips";
    for (int i = 0; i < 2; i++)
        ASSERT_OK(mhla_analysis_write(in_folder(folder, ends[i]), (const mhla_analysis *const *)&a, &name, 1));
    check_page(in_folder(folder, ends[1]), 1);
    json_t *tree;
    ASSERT_OK(mhla_json_load(&tree, in_folder(folder, ends[0])));
    const json_t *rows = json_object_get(json_array_get(json_object_get(tree, "models"), 0), "mixing");
    rows = json_object_get(json_object_get(json_array_get(rows, 1), "along_after"), "frames");
    assert_int_equal(json_array_size(rows), 2);
    json_decref(tree);
    mhla_analysis_free(a);
    /* some rows of softmax attention: of many columns, where every 8th token would be of one; distances by hand */
    soft = new_wan("attention=softmax", "mix=paper", "frames=4");
    for (int i = 0; i < mhla_params_count(soft->params); i++) {
        mhla_param *q = mhla_params_at(soft->params, i);
        if (strstr(q->name, "self_attn.q.")) memset(q->data, 0, (size_t)q->count * sizeof *q->data); /* even rows */
        mhla_param_touch(q);
    }
    a = look(soft, folder, (mhla_analysis_desc){.rows = 8, .rank_samples = -1, .maps = 1, .samples = 1});
    x = head_of(a, 0, 0);
    assert_true(fabs(x.entropy - log(64.0)) < 1e-6 && fabs(x.own - 0.125) < 1e-6 && fabs(x.far - 0.125) < 1e-6);
    int columns = 0;
    double distance = 0.0;
    for (int64_t t = 0, found = 0; t < 64; t++) {
        float row[64];
        if (mhla_analysis_map(a, row, 0, 0, 0, t) != MHLA_OK) continue;
        columns |= 1 << t % 4;
        found++;
        for (int64_t u = 0; u < 64; u++) {
            const int64_t f = t / 16 - u / 16, r = t / 4 % 4 - u / 4 % 4, c = t % 4 - u % 4;
            distance += sqrt((double)(f * f + r * r + c * c)) / 64.0 / 8.0;
        }
    }
    assert_true(columns == 15 && fabs(x.distance - distance) < 1e-6);
    mhla_analysis_free(a);
    mhla_model_free(soft);
    /* what is no clip of this size */
    mhla_analysis *none;
    mhla_analysis_desc d = {.size = sizeof d, .data = folder};
    soft = new_wan("attention=softmax", "mix=paper", "frames=3");
    assert_int_equal(mhla_analysis_create(&none, soft, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "clips of 4 frames of 8 x 8, and the model makes 3"));
    new_pictures(pictures);
    ASSERT_OK(mhla_npy_write(in_folder(pictures, "test_images.npy"), MHLA_IO_U8, 3, (const int64_t[]){1, 8, 8},
                             (const unsigned char[64]){0}));
    ASSERT_OK(mhla_npy_write(in_folder(pictures, "test_labels.npy"), MHLA_IO_U8, 1, (const int64_t[]){1},
                             (const unsigned char[1]){0}));
    d.data = pictures;
    assert_int_equal(mhla_analysis_create(&none, m, &d), MHLA_EINVAL);
    assert_non_null(strstr(mhla_message(), "holds images"));
    mhla_model_free(soft);
    mhla_model_free(m);
    remove_folder(pictures);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_a_case), cmocka_unit_test(rows_and_maps), cmocka_unit_test(threads),
        cmocka_unit_test(mixing),           cmocka_unit_test(files),         cmocka_unit_test(text),
        cmocka_unit_test(different_models), cmocka_unit_test(directions),    cmocka_unit_test(clips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
