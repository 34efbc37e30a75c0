/* Pipelines: the same bits for any batch, number of threads and list of images; going on after every step; components by name; images made
 * again from what they say of themselves; sizes; what is refused. The numbers are compared with diffusers' by the goldens. */
#include <math.h>

#include "infer/pipeline.h"
#include "lm_case.h"
#include "pipeline_case.h"

enum { IMAGES = 3, EACH = 3 * 32 * 32, STEPS = 4 };
static const char *const prompts[IMAGES] = {"the worst of times", "The Age ", "the worst of times"};
static const uint64_t seeds[IMAGES] = {7, 8, 9};

static mhla_make_desc wanted(void) {
    return (mhla_make_desc){.size = sizeof(mhla_make_desc),
                            .images = IMAGES,
                            .prompts = prompts,
                            .seeds = seeds,
                            .instruction = "it was ",
                            .steps = STEPS};
}

static mhla_pipeline *opened(const char *storage, const mhla_context *context) {
    mhla_pipeline *p;
    const mhla_pipeline_desc d = {.size = sizeof d,
                                  .folder = in_folder("pipe"),
                                  .storage = storage,
                                  .context = context ? context : single_thread()};
    ASSERT_OK(mhla_pipeline_open(&p, &d));
    return p;
}

/* ---- The same bits ---- */

static void same_bits(void **state) {
    (void)state;
    static const char *const storages[] = {"float32", "bfloat16"};
    for (int s = 0; s < 2; s++) {
        float all[IMAGES * EACH], other[IMAGES * EACH];
        mhla_make_desc d = wanted();
        mhla_pipeline *p = opened(storages[s], NULL);
        ASSERT_OK(mhla_pipeline_make(p, all, &d, NULL));
        assert_memory_not_equal(all, all + 2 * EACH, sizeof *all * EACH);
        for (int i = 0; i < IMAGES; i++) {
            mhla_make_desc one = d;
            one.images = 1;
            one.prompts += i;
            one.seeds += i;
            ASSERT_OK(mhla_pipeline_make(p, other, &one, NULL));
            assert_memory_equal(other, all + i * EACH, sizeof *all * EACH);
        }
        mhla_pipeline_free(p);
        for (int threads = 1; threads <= 3; threads++) {
            mhla_context *c = new_context(threads);
            p = opened(storages[s], c);
            d.batch = threads;
            ASSERT_OK(mhla_pipeline_make(p, other, &d, NULL));
            assert_memory_equal(other, all, sizeof all);
            mhla_pipeline_free(p);
            mhla_context_free(c);
        }
    }
}

/* ---- Going on ---- */

static int reports, stop_at;
static int stop(void *user, const mhla_make_state *s) {
    (void)user;
    return s->component == MHLA_TRANSFORMER && s->latents && ++reports == stop_at;
}

static void resumed(void **state) {
    (void)state;
    static const char *const methods[] = {"dpm++", "unipc", "euler"};
    for (int k = 0; k < 3; k++) {
        float all[IMAGES * EACH], other[IMAGES * EACH];
        char path[256];
        int stopped;
        mhla_make_desc d = wanted();
        mhla_pipeline *p = opened(NULL, NULL);
        d.method = methods[k];
        ASSERT_OK(mhla_pipeline_make(p, all, &d, NULL));
        snprintf(path, sizeof path, "%s", in_folder("state"));
        d.state = path;
        d.report = stop;
        d.batch = 2; /* two batches of four steps: eight reports */
        for (stop_at = 1; stop_at <= 8; stop_at++) {
            reports = 0;
            ASSERT_OK(mhla_pipeline_make(p, other, &d, &stopped));
            assert_int_equal(stopped, 1);
            reports = 100;
            if (stop_at % 3 == 0) d.batch = 1; /* what is under way stays together */
            memset(other, 0x7f, sizeof other);
            ASSERT_OK(mhla_pipeline_make(p, other, &d, &stopped));
            assert_int_equal(stopped, 0);
            assert_int_equal(reports, 100 + 8 - stop_at);
            assert_memory_equal(other, all, sizeof all);
            d.batch = 2;
            assert_int_equal(unlink(path), 0);
        }
        mhla_pipeline_free(p);
    }
}

/* A state of other images is not taken for one of these. */
static void other_states(void **state) {
    (void)state;
    static const uint64_t others[IMAGES] = {7, 8, 10};
    float pixels[IMAGES * EACH];
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("state"));
    mhla_pipeline *p = opened(NULL, NULL);
    mhla_make_desc d = wanted();
    d.state = path;
    ASSERT_OK(mhla_pipeline_make(p, pixels, &d, NULL));
    mhla_make_desc changed[5] = {d, d, d, d, d};
    changed[0].seeds = others;
    changed[1].guidance = 2.0;
    changed[2].negative = "wisdom";
    changed[3].shift = 2.0;
    changed[4].method = "unipc";
    for (int i = 0; i < 5; i++)
        ASSERT_FAILS(mhla_pipeline_make(p, pixels, &changed[i], NULL), MHLA_EINVAL, "a state of other images");
    write_words("state", "no state");
    ASSERT_FAILS(mhla_pipeline_make(p, pixels, &d, NULL), MHLA_EDATA, "state");
    unlink(path);
    mhla_pipeline_free(p);
}

/* ---- Components ---- */

static void by_name(void **state) {
    (void)state;
    float all[EACH], other[EACH];
    char paths[5][256], cache[256];
    static const char *const names[] = {"text_encoder", "transformer", "vae", "tokenizer",
                                        "scheduler/scheduler_config.json"};
    for (int i = 0; i < 5; i++) snprintf(paths[i], sizeof paths[i], "%s/pipe/%s", folder, names[i]);
    snprintf(cache, sizeof cache, "%s", in_folder("cache"));
    mhla_make_desc d = wanted();
    d.images = 1;
    mhla_pipeline *p = opened(NULL, NULL);
    ASSERT_OK(mhla_pipeline_make(p, all, &d, NULL));
    mhla_pipeline_free(p);
    mhla_pipeline_desc parts = {.size = sizeof parts,
                                .text_encoder = paths[0],
                                .transformer = paths[1],
                                .vae = paths[2],
                                .scheduler = paths[4],
                                .texts = cache,
                                .context = single_thread()};
    for (int k = 0; k < 3; k++) { /* the last ones with rows from the folder */
        parts.tokenizer = k == 2 ? paths[3] : NULL;
        ASSERT_OK(mhla_pipeline_open(&p, &parts));
        ASSERT_OK(mhla_pipeline_make(p, other, &d, NULL));
        assert_memory_equal(all, other, sizeof all);
        assert_int_equal(entries(cache), k == 2 ? 4 : 2);
        mhla_component_plan plan = {.size = sizeof plan};
        mhla_pipeline_free(p);
        ASSERT_OK(mhla_pipeline_open(&p, &parts));
        ASSERT_OK(mhla_pipeline_plan(p, MHLA_TEXT_ENCODER, &plan, &d));
        assert_true(plan.parameters == 0);
        ASSERT_OK(mhla_pipeline_plan(p, MHLA_TRANSFORMER, &plan, &d));
        assert_true(plan.parameters > 50000 && plan.work > 0 && plan.multiply_adds > 1e6 * 2 * STEPS);
        mhla_pipeline_free(p);
    }
    parts.vae = NULL;
    ASSERT_FAILS(mhla_pipeline_open(&p, &parts), MHLA_EINVAL, "vae is not named");
}

/* ---- Made again ---- */

static void made_again(void **state) {
    (void)state;
    float all[IMAGES * EACH], other[IMAGES * EACH];
    char *text;
    mhla_pipeline *p = opened("bfloat16", NULL), *q;
    mhla_make_desc d = wanted();
    d.guidance = 3.0;
    d.negative = "";
    d.width = 24;
    ASSERT_OK(mhla_pipeline_make(p, NULL, &d, NULL));
    ASSERT_OK(mhla_pipeline_make(p, all, &d, NULL));
    ASSERT_OK(mhla_made_write(&text, p, &d, 2));
    mhla_made *made;
    mhla_made_info info = {.size = sizeof info};
    mhla_pipeline_desc was = {.size = sizeof was};
    mhla_make_desc again = {.size = sizeof again};
    ASSERT_OK(mhla_made_read(&made, text, "text"));
    ASSERT_OK(mhla_made_query(made, &info));
    ASSERT_OK(mhla_made_pipeline(made, &was));
    ASSERT_OK(mhla_made_desc(made, &again));
    assert_int_equal(info.columns, 2);
    assert_string_equal(was.storage, "bfloat16");
    assert_null(was.vae);
    ASSERT_OK(mhla_pipeline_open(&q, &was));
    ASSERT_OK(mhla_pipeline_make(q, other, &again, NULL));
    assert_memory_equal(all, other, sizeof *all * IMAGES * 3 * 32 * 24);
    mhla_pipeline_free(q);
    mhla_pipeline_free(p);
    mhla_made_free(made);
    for (char *at = strstr(text, "\"seeds\""); at; at = NULL) memcpy(at, "\"Seeds\"", 7);
    ASSERT_FAILS(mhla_made_read(&made, text, "text"), MHLA_EDATA, "text: its text has 0 seeds");
    ASSERT_FAILS(mhla_made_read(&made, "{\"made_by\": \"mhla sample\"}", "text"), MHLA_EDATA, "does not say how");
    ASSERT_FAILS(mhla_made_read(&made, "{", "text"), MHLA_EDATA, "does not say how");
    free(text);
}

/* ---- Sizes ---- */

static void bins(void **state) {
    (void)state;
    static const int sizes[][4] = {{512, 512, 512, 512},   {512, 768, 416, 608},  {1024, 1024, 512, 512},
                                   {1920, 1088, 672, 384}, {32, 1024, 256, 1024}, {1024, 32, 1024, 256},
                                   {480, 512, 480, 512}};
    int (*const bin)(int *, int *, int) = mhla_pipeline_kind_at(0)->bin;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int h = sizes[i][0], w = sizes[i][1];
        assert_int_equal(bin(&h, &w, 512), 1);
        assert_int_equal(h, sizes[i][2]);
        assert_int_equal(w, sizes[i][3]);
    }
    int h = 40, w = 32;
    assert_int_equal(bin(&h, &w, 32), 0);
    assert_true(h == 40 && w == 32);
}

static int wide(int *height, int *width, int side) {
    *height = *width = side;
    return 1;
}

/* Bilinear between pixel centres, the middle of it. */
static void resizing(void **state) {
    (void)state;
    enum { H = 32, W = 48, ALL = 48, TOP = 8 };
    float made[EACH], sized[3 * H * W];
    mhla_pipeline *p = opened(NULL, NULL);
    mhla_pipeline_kind kind = *p->kind;
    mhla_make_desc d = wanted();
    d.images = 1;
    ASSERT_OK(mhla_pipeline_make(p, made, &d, NULL));
    kind.bin = wide;
    p->kind = &kind;
    d.height = H;
    d.width = W;
    ASSERT_OK(mhla_pipeline_make(p, sized, &d, NULL));
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                const double v = (y + TOP + 0.5) * 32.0 / ALL - 0.5, u = (x + 0.5) * 32.0 / ALL - 0.5;
                double sum = 0.0;
                for (int k = 0; k < 4; k++) {
                    const int y0 = (int)floor(v) + k / 2, x0 = (int)floor(u) + k % 2;
                    const int yc = y0 < 0 ? 0 : y0 > 31 ? 31 : y0, xc = x0 < 0 ? 0 : x0 > 31 ? 31 : x0;
                    sum += (1.0 - fabs(v - y0)) * (1.0 - fabs(u - x0)) * (double)made[(c * 32 + yc) * 32 + xc];
                }
                assert_true(fabs(sum - (double)sized[(c * H + y) * W + x]) < 1e-5);
            }
    d.exact = 1;
    ASSERT_OK(mhla_pipeline_settle(p, &d));
    assert_true(d.made_height == H && d.made_width == W);
    mhla_pipeline_free(p);
}

/* ---- What is refused ---- */

static void refuse_scheduler(const char *words, mhla_status status, const char *message) {
    mhla_pipeline *p;
    const mhla_pipeline_desc d = {.size = sizeof d, .folder = in_folder("pipe")};
    write_words("pipe/scheduler/scheduler_config.json", words);
    ASSERT_FAILS(mhla_pipeline_open(&p, &d), status, message);
    write_words("pipe/scheduler/scheduler_config.json", pipeline_scheduler);
}

static void refused_folders(void **state) {
    (void)state;
    mhla_pipeline *p;
    char path[256], vae[256], gone[256];
    snprintf(path, sizeof path, "%s", in_folder("pipe"));
    snprintf(vae, sizeof vae, "%s", in_folder("pipe/vae"));
    snprintf(gone, sizeof gone, "%s", in_folder("gone"));
    const mhla_pipeline_desc d = {.size = sizeof d, .folder = path};
    assert_int_equal(rename(vae, gone), 0);
    ASSERT_FAILS(mhla_pipeline_open(&p, &d), MHLA_EIO,
                 "no folder vae here, in which model_index.json has \"AutoencoderDC\"");
    assert_int_equal(rename(gone, vae), 0);
    refuse_scheduler("{\"_class_name\": \"EulerAncestral\"}", MHLA_ENOTSUP,
                     "scheduler \"EulerAncestral\" is not known");
    refuse_scheduler("{\"_class_name\": \"UniPCMultistepScheduler\", \"prediction_type\": \"epsilon\"}", MHLA_ENOTSUP,
                     "\"prediction_type\" is \"epsilon\": only \"flow_prediction\"");
    refuse_scheduler("{\"_class_name\": \"DPMSolverMultistepScheduler\", \"prediction_type\": \"flow_prediction\"}",
                     MHLA_ENOTSUP, "\"use_flow_sigmas\" is absent: only true");
    refuse_scheduler("{\"_class_name\": \"FlowMatchEulerDiscreteScheduler\", \"use_dynamic_shifting\": true}",
                     MHLA_ENOTSUP, "\"use_dynamic_shifting\" is true: only false");
    refuse_scheduler("{\"_class_name\": \"FlowMatchEulerDiscreteScheduler\", \"shift\": 0}", MHLA_EDATA, "shift is 0");
    write_words("other/model_index.json", "{\"_class_name\": \"FluxPipeline\"}");
    const mhla_pipeline_desc other = {.size = sizeof other, .folder = in_folder("other")};
    ASSERT_FAILS(mhla_pipeline_open(&p, &other), MHLA_ENOTSUP,
                 "pipeline \"FluxPipeline\" is not known: SanaPipeline and WanPipeline");
    const mhla_pipeline_desc swapped = {.size = sizeof swapped, .folder = path, .transformer = vae};
    ASSERT_FAILS(mhla_pipeline_open(&p, &swapped), MHLA_EINVAL, "an autoencoder");
    const mhla_pipeline_desc q8 = {.size = sizeof q8, .folder = path, .storage = "q8_0"};
    ASSERT_FAILS(mhla_pipeline_open(&p, &q8), MHLA_EINVAL, "float32 or bfloat16");
    assert_true(mhla_pipeline_is(path) && !mhla_pipeline_is(vae));
}

static void refused_work(void **state) {
    (void)state;
    mhla_pipeline *p = opened(NULL, NULL);
    const struct {
        mhla_make_desc d;
        const char *message;
    } wrong[] = {{{.width = 33}, "33 x 32 pixels: each side must be a multiple of 4; the nearest is 32 x 32"},
                 {{.frames = 5}, "5 frames: SanaPipeline makes images"},
                 {{.method = "ddim"}, "sampler ddim is not for flows"},
                 {{.guidance = -1.0}, "guidance -1"},
                 {{.shift = 1000.0}, "shift 1000"},
                 {{.height = 4, .width = 4, .exact = 1}, "4 x 4 pixels"},
                 {{.steps = 2000}, "2000 steps"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_make_desc d = wrong[i].d;
        d.size = sizeof d;
        d.images = 1;
        d.prompts = prompts;
        d.seeds = seeds;
        ASSERT_FAILS(mhla_pipeline_settle(p, &d), MHLA_EINVAL, wrong[i].message);
    }
    mhla_make_desc none = wanted();
    none.images = 0;
    ASSERT_FAILS(mhla_pipeline_settle(p, &none), MHLA_EINVAL, "0 images");
    const char *bad[] = {"\xff"};
    float pixels[EACH];
    mhla_make_desc d = wanted();
    d.images = 1;
    d.prompts = bad;
    ASSERT_FAILS(mhla_pipeline_make(p, pixels, &d, NULL), MHLA_EDATA, "is not UTF-8");
    mhla_pipeline_free(p);
}

static char note[512];
static int take_note(void *user, const mhla_make_state *s) {
    (void)user;
    if (s->note) snprintf(note, sizeof note, "%s", s->note);
    return 0;
}

/* The end of a text that is too long is left out, and how much of it is said. */
static void long_prompts(void **state) {
    (void)state;
    float pixels[EACH];
    mhla_pipeline *p = opened(NULL, NULL);
    mhla_make_desc d = wanted();
    d.images = 1;
    d.rows = 3;
    d.report = take_note;
    ASSERT_OK(mhla_pipeline_make(p, pixels, &d, NULL));
    assert_non_null(strstr(note, "\"the worst of times\" is "));
    assert_non_null(strstr(note, " too long: its end is cut off"));
    mhla_pipeline_free(p);
}

/* A number that did not fit float16 is infinite in its file. */
static void broken_weights(void **state) {
    (void)state;
    float pixels[EACH];
    mhla_model *m;
    ASSERT_OK(mhla_model_open(&m, in_folder("pipe/transformer")));
    mhla_param *bias = mhla_params_find(m->params, "proj_out.bias");
    bias->data[1] = INFINITY;
    ASSERT_OK(mhla_model_save(m, in_folder("broken")));
    mhla_model_free(m);
    mhla_pipeline *p;
    const mhla_pipeline_desc desc = {
        .size = sizeof desc, .folder = in_folder("pipe"), .transformer = in_folder("broken")};
    ASSERT_OK(mhla_pipeline_open(&p, &desc));
    mhla_make_desc d = wanted();
    d.images = 1;
    ASSERT_FAILS(mhla_pipeline_make(p, pixels, &d, NULL), MHLA_ERANGE,
                 "has a number that is not finite, as has tensor proj_out.bias of ");
    mhla_pipeline_free(p);
}

/* A model that is looked at has no memory for its matrices: a text encoder of bfloat16 takes gigabytes of it. */
static void looks(void **state) {
    (void)state;
    mhla_model *m;
    int matrices = 0;
    ASSERT_OK(mhla_model_open(&m, in_folder("pipe/text_encoder")));
    const int64_t elements = mhla_params_elements(m->params);
    ASSERT_OK(mhla_model_store(m, "bfloat16"));
    ASSERT_OK(mhla_model_save(m, in_folder("half")));
    mhla_model_free(m);
    ASSERT_OK(mhla_model_look(&m, in_folder("half"), NULL));
    assert_int_equal(mhla_params_elements(m->params), elements);
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        if (!(p->flags & MHLA_PARAM_MATRIX)) continue;
        assert_true(p->dtype == MHLA_BF16 && p->data == NULL && p->packed == NULL);
        matrices++;
    }
    assert_true(matrices > 5);
    mhla_model_free(m);
    ASSERT_OK(mhla_model_look(&m, in_folder("pipe/transformer"), NULL));
    assert_null(mhla_params_find(m->params, "time_embed.linear.weight")->data);
    mhla_model_free(m);
    ASSERT_OK(mhla_model_open(&m, in_folder("half"))); /* and one that is opened has */
    assert_true(mhla_params_bytes(m->params, 0) > (size_t)elements);
    mhla_model_free(m);
}

/* Folders that have a variant of float16 alone are opened as they are. */
static void variants(void **state) {
    (void)state;
    float all[EACH], other[EACH];
    char from[256], to[256];
    mhla_pipeline *p = opened(NULL, NULL);
    mhla_make_desc d = wanted();
    d.images = 1;
    ASSERT_OK(mhla_pipeline_make(p, all, &d, NULL));
    mhla_pipeline_free(p);
    snprintf(from, sizeof from, "%s", in_folder("pipe/vae/model.safetensors"));
    snprintf(to, sizeof to, "%s", in_folder("pipe/vae/diffusion_pytorch_model.fp16.safetensors"));
    assert_int_equal(rename(from, to), 0);
    write_words("pipe/vae/other.safetensors", "not this one");
    p = opened(NULL, NULL);
    ASSERT_OK(mhla_pipeline_make(p, other, &d, NULL));
    assert_memory_equal(all, other, sizeof all);
    mhla_pipeline_free(p);
    unlink(in_folder("pipe/vae/other.safetensors"));
    assert_int_equal(rename(to, from), 0);
}

static int begin(void **state) {
    if (make_folder(state) != 0) return -1;
    make_pipeline();
    return mkdir(in_folder("other"), 0777);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),     cmocka_unit_test(resumed),      cmocka_unit_test(other_states),
        cmocka_unit_test(by_name),       cmocka_unit_test(made_again),   cmocka_unit_test(bins),
        cmocka_unit_test(resizing),      cmocka_unit_test(refused_work), cmocka_unit_test(refused_folders),
        cmocka_unit_test(long_prompts),  cmocka_unit_test(looks),        cmocka_unit_test(variants),
        cmocka_unit_test(broken_weights)};
    return cmocka_run_group_tests(tests, begin, remove_folder);
}
