/* Every call of diffusion.h that takes or fills a struct with a size, and what callbacks are told: see structs.h. */
#include "structs.h"

#include <mhla/diffusion.h>
#include <sys/stat.h>

#include "file/npy.h"
#include "files.h"
#include "pipeline_case.h"

enum { SIDE = 8, EACH = SIDE * SIDE, PICTURES = 4 };

static mhla_context *context;
static mhla_model *model;
static float images[PICTURES * EACH], answer[EACH];
static const float when[] = {500.0f};
static int32_t classes[] = {1, 2};
static uint64_t seeds[] = {5, 6};
static char *record_text;

/* ---- Samplers and the network ---- */

static mhla_status mhla_sampler_create__mhla_sampler_desc(void *given) {
    mhla_sampler *s = NULL;
    const mhla_status status = mhla_sampler_create(&s, given);
    mhla_sampler_free(s);
    return status;
}

static int states;
static int watch(void *user, const mhla_sample_state *s) {
    (void)user;
    IS_TOLD(mhla_sample_fn, mhla_sample_state, s);
    states++;
    return 1;
}
static mhla_status mhla_model_sample__mhla_sample_desc(void *given) {
    return mhla_model_sample(model, answer, given, NULL);
}
static mhla_status mhla_model_sample_settle__mhla_sample_desc(void *given) {
    return mhla_model_sample_settle(model, given);
}
static mhla_status mhla_model_denoise__mhla_denoise(void *given) { return mhla_model_denoise(model, answer, given); }
static mhla_status mhla_model_denoise_step__mhla_denoise(void *given) {
    return mhla_model_denoise_step(model, NULL, given, images, 1e-9);
}

/* ---- Autoencoders ---- */

static mhla_model *codec;
static float small[3 * 16 * 16];
static mhla_status mhla_codec_query__mhla_codec_info(void *given) { return mhla_codec_query(codec, given); }
static mhla_status mhla_coding_settle__mhla_coding(void *given) { return mhla_coding_settle(codec, given, 1); }
static mhla_status mhla_model_encode__mhla_coding(void *given) {
    return mhla_model_encode(codec, answer, NULL, small, 1, given);
}
static mhla_status mhla_model_decode__mhla_coding(void *given) {
    return mhla_model_decode(codec, small, answer, 1, given);
}

static char data[256], latents[256];
static mhla_latents_desc latents_desc = {.size = sizeof latents_desc, .source = data, .out = latents};
static mhla_status mhla_latents_make__mhla_latents_desc(void *given) { return mhla_latents_make(codec, given, NULL); }
static mhla_status mhla_latents_make__mhla_latents_made(void *given) {
    return mhla_latents_make(codec, &latents_desc, given);
}

static void make_dataset(void) {
    const int64_t shape[] = {PICTURES, SIDE, SIDE}, labels[PICTURES] = {0};
    char path[400];
    snprintf(data, sizeof data, "%s", in_folder("data"));
    snprintf(latents, sizeof latents, "%s", in_folder("latents"));
    assert_int_equal(mkdir(data, 0777), 0);
    for (int test = 0; test < 2; test++) {
        snprintf(path, sizeof path, "%s/%s_images.npy", data, test ? "test" : "train");
        ASSERT_OK(mhla_npy_write(path, MHLA_IO_U8, 3, shape, images));
        snprintf(path, sizeof path, "%s/%s_labels.npy", data, test ? "test" : "train");
        ASSERT_OK(mhla_npy_write(path, MHLA_IO_I64, 1, shape, labels));
    }
}

static void coding(void **state) {
    (void)state;
    static const mhla_coding sizes = {.size = sizeof sizes, .height = 16, .width = 16};
    const struct_case rows[] = {
        FILLS(mhla_codec_query, mhla_codec_info, .least = 0),
        CHANGES(mhla_coding_settle, mhla_coding, .value = &sizes),
        TAKES(mhla_model_encode, mhla_coding, .value = &sizes),
        TAKES(mhla_model_decode, mhla_coding, .value = &sizes),
        TAKES(mhla_latents_make, mhla_latents_desc, .value = &latents_desc),
        FILLS(mhla_latents_make, mhla_latents_made, .optional = 1),
    };
    ASSERT_OK(mhla_model_create(&codec, "sd_vae_nano", NULL, 0, 1));
    make_dataset();
    ASSERT_OK(mhla_latents_make(codec, &latents_desc, NULL)); /* once: later calls find all of them there */
    STRUCTS_TRY(rows);
    mhla_model_free(codec);
}

static void sampling(void **state) {
    (void)state;
    static const mhla_sampler_desc sampler_desc = {
        .size = sizeof sampler_desc, .steps = 4, .batch = 1, .channels = 1, .pixels = 4};
    static const mhla_sample_desc sample_desc = {
        .size = sizeof sample_desc, .images = 1, .classes = classes, .seeds = seeds, .steps = 2, .report = watch};
    static const mhla_denoise denoise = {
        .size = sizeof denoise, .count = 1, .x = images, .times = when, .labels = classes};
    const struct_case rows[] = {
        TAKES(mhla_sampler_create, mhla_sampler_desc, .value = &sampler_desc),
        TAKES(mhla_model_sample, mhla_sample_desc, .value = &sample_desc),
        CHANGES(mhla_model_sample_settle, mhla_sample_desc, .value = &sample_desc),
        TAKES(mhla_model_denoise, mhla_denoise, .value = &denoise),
        TAKES(mhla_model_denoise_step, mhla_denoise, .value = &denoise),
    };
    STRUCTS_TRY(rows);
    assert_true(states > 0);
}

/* ---- Pictures and records ---- */

static mhla_status mhla_picture_tile__mhla_picture(void *given) {
    return mhla_picture_tile(given, images, PICTURES, 1, SIDE, SIDE, 2);
}
static mhla_status mhla_picture_read__mhla_picture(void *given) {
    return mhla_picture_read(given, in_folder("picture.png"));
}
static mhla_status mhla_picture_write__mhla_picture(void *given) {
    const double seconds[] = {1.0, 1.0};
    const mhla_status status = mhla_picture_write(in_folder("frames.png"), given, 2, seconds);
    assert_int_equal(exists(in_folder("frames.png")), status == MHLA_OK);
    unlink(in_folder("frames.png"));
    return status;
}
static mhla_status mhla_picture_free__mhla_picture(void *given) {
    mhla_picture_free(given);
    return MHLA_OK;
}
static void free_picture(void *given) { mhla_picture_free(given); }

static mhla_status mhla_sample_record_write__mhla_sample_record(void *given) {
    char *text;
    const mhla_status status = mhla_sample_record_write(&text, given);
    free(text);
    return status;
}
static mhla_status mhla_sample_record_read__mhla_sample_record(void *given) {
    const mhla_status status = mhla_sample_record_read(given, record_text, "test");
    const mhla_sample_record *r = given;
    if (status == MHLA_OK) assert_true(r->images == 2 && r->seeds[1] == seeds[1] && strcmp(r->weights, "abc") == 0);
    return status;
}
static mhla_status mhla_sample_record_free__mhla_sample_record(void *given) {
    mhla_sample_record_free(given);
    return MHLA_OK;
}
static void free_record(void *given) { mhla_sample_record_free(given); }

static void pictures(void **state) {
    (void)state;
    static uint8_t pixels[4] = {0, 80, 160, 240};
    static char model_name[] = "model";
    static const mhla_picture none = {.size = sizeof none},
                              frames[] = {
                                  {.size = sizeof *frames, .width = 2, .height = 2, .channels = 1, .pixels = pixels},
                                  {.size = sizeof *frames, .width = 2, .height = 2, .channels = 1, .pixels = pixels}};
    static const mhla_sample_record nothing = {.size = sizeof nothing}, record = {.size = sizeof record,
                                                                                  .model = model_name,
                                                                                  .weights = "abc",
                                                                                  .images = 2,
                                                                                  .classes = classes,
                                                                                  .seeds = seeds,
                                                                                  .method = "ddim",
                                                                                  .steps = 2,
                                                                                  .height = SIDE,
                                                                                  .width = SIDE,
                                                                                  .columns = 2};
    const size_t own_picture = MHLA_UP_TO(mhla_picture, text), own_record = MHLA_UP_TO(mhla_sample_record, seeds);
    ASSERT_OK(mhla_sample_record_write(&record_text, &record));
    const struct_case rows[] = {
        FILLS(mhla_picture_tile, mhla_picture, .value = &none, .least = own_picture,
              .compared = offsetof(mhla_picture, pixels), .release = free_picture),
        FILLS(mhla_picture_read, mhla_picture, .value = &none, .least = own_picture,
              .compared = offsetof(mhla_picture, pixels), .release = free_picture),
        TAKES(mhla_picture_write, mhla_picture, .value = frames, .count = 2),
        FREES(mhla_picture_free, mhla_picture, .value = &none, .least = own_picture),
        TAKES(mhla_sample_record_write, mhla_sample_record, .value = &record),
        FILLS(mhla_sample_record_read, mhla_sample_record, .least = own_record, .compared = sizeof(size_t),
              .release = free_record),
        FREES(mhla_sample_record_free, mhla_sample_record, .value = &nothing, .least = own_record),
    };
    STRUCTS_TRY(rows);
    free(record_text);
}

/* ---- Pipelines ---- */

static mhla_pipeline *pipeline;
static char pipeline_folder[256], *made_text;
static const char *const words[] = {"the age"};
static mhla_status mhla_pipeline_open__mhla_pipeline_desc(void *given) {
    mhla_pipeline *p;
    const mhla_status status = mhla_pipeline_open(&p, given);
    mhla_pipeline_free(p);
    return status;
}
static mhla_status mhla_pipeline_query__mhla_pipeline_info(void *given) { return mhla_pipeline_query(pipeline, given); }
static mhla_status mhla_pipeline_settle__mhla_make_desc(void *given) { return mhla_pipeline_settle(pipeline, given); }
static int told(void *user, const mhla_make_state *s) {
    (void)user;
    IS_TOLD(mhla_make_fn, mhla_make_state, s);
    return 0;
}
static mhla_status mhla_pipeline_make__mhla_make_desc(void *given) {
    return mhla_pipeline_make(pipeline, NULL, given, NULL);
}
static const mhla_make_desc make_desc = {.size = sizeof make_desc,
                                         .images = 1,
                                         .prompts = words,
                                         .seeds = seeds,
                                         .instruction = "it ",
                                         .steps = 1,
                                         .guidance = 1.0,
                                         .report = told};
static mhla_status mhla_pipeline_plan__mhla_make_desc(void *given) {
    mhla_component_plan plan = {.size = sizeof plan};
    return mhla_pipeline_plan(pipeline, MHLA_TRANSFORMER, &plan, given);
}
static mhla_status mhla_pipeline_plan__mhla_component_plan(void *given) {
    return mhla_pipeline_plan(pipeline, MHLA_TRANSFORMER, given, &make_desc);
}
static mhla_status mhla_made_write__mhla_make_desc(void *given) {
    char *text;
    const mhla_status status = mhla_made_write(&text, pipeline, given, 1);
    free(text);
    return status;
}
static mhla_made *made;
static mhla_status mhla_made_pipeline__mhla_pipeline_desc(void *given) { return mhla_made_pipeline(made, given); }
static mhla_status mhla_made_desc__mhla_make_desc(void *given) { return mhla_made_desc(made, given); }
static mhla_status mhla_made_query__mhla_made_info(void *given) { return mhla_made_query(made, given); }
static mhla_status mhla_video_write__mhla_picture(void *given) {
    const mhla_status status = mhla_video_write(in_folder("video.y4m"), given, 2, 0.1);
    assert_int_equal(exists(in_folder("video.y4m")), status == MHLA_OK);
    unlink(in_folder("video.y4m"));
    return status;
}

static void pipelines(void **state) {
    (void)state;
    static uint8_t pixels[12];
    static const mhla_picture frames[] = {
        {.size = sizeof *frames, .width = 2, .height = 2, .channels = 3, .pixels = pixels},
        {.size = sizeof *frames, .width = 2, .height = 2, .channels = 3, .pixels = pixels}};
    static mhla_pipeline_desc desc = {.size = sizeof desc, .folder = pipeline_folder};
    make_pipeline();
    snprintf(pipeline_folder, sizeof pipeline_folder, "%s", in_folder("pipe"));
    ASSERT_OK(mhla_pipeline_open(&pipeline, &desc));
    ASSERT_OK(mhla_made_write(&made_text, pipeline, &make_desc, 1));
    ASSERT_OK(mhla_made_read(&made, made_text, "test"));
    const struct_case rows[] = {
        TAKES(mhla_pipeline_open, mhla_pipeline_desc, .value = &desc),
        FILLS(mhla_pipeline_query, mhla_pipeline_info, .least = 0),
        CHANGES(mhla_pipeline_settle, mhla_make_desc, .value = &make_desc),
        TAKES(mhla_pipeline_make, mhla_make_desc, .value = &make_desc),
        TAKES(mhla_pipeline_plan, mhla_make_desc, .value = &make_desc),
        FILLS(mhla_pipeline_plan, mhla_component_plan, .least = 0),
        TAKES(mhla_made_write, mhla_make_desc, .value = &make_desc),
        FILLS(mhla_made_pipeline, mhla_pipeline_desc, .least = 0),
        FILLS(mhla_made_desc, mhla_make_desc, .least = 0),
        FILLS(mhla_made_query, mhla_made_info, .least = 0),
        TAKES(mhla_video_write, mhla_picture, .value = frames, .count = 2),
    };
    STRUCTS_TRY(rows);
    mhla_made_free(made);
    free(made_text);
    mhla_pipeline_free(pipeline);
}

/* ---- Measures ---- */

static char npy[256], features[256];
static mhla_status mhla_measure__mhla_measure_desc(void *given) {
    mhla_measures result = {.size = sizeof result};
    return mhla_measure(&result, given);
}
static mhla_status mhla_measure__mhla_measures(void *given) {
    const mhla_measure_desc desc = {.size = sizeof desc, .real = npy, .generated = npy, .features = features};
    return mhla_measure(given, &desc);
}

static char clip[256], prompts[256], tokenizer[256];
static mhla_status mhla_clip_score__mhla_clip_desc(void *given) {
    mhla_clip_scores result = {.size = sizeof result};
    return mhla_clip_score(&result, given);
}
static mhla_status mhla_clip_score__mhla_clip_scores(void *given) {
    const mhla_clip_desc desc = {
        .size = sizeof desc, .model = clip, .images = npy, .prompts = prompts, .tokenizer = tokenizer};
    return mhla_clip_score(given, &desc);
}

static void clip_scores(void **state) {
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    mhla_model *m;
    snprintf(clip, sizeof clip, "%s", in_folder("clip"));
    snprintf(npy, sizeof npy, "%s", in_folder("images.npy"));
    snprintf(prompts, sizeof prompts, "%s", in_folder("prompts.txt"));
    snprintf(tokenizer, sizeof tokenizer, "%s", in_folder("clip/tokenizer.json"));
    ASSERT_OK(mhla_model_create(&m, "clip_nano", NULL, 0, 1));
    ASSERT_OK(mhla_model_save(m, clip));
    mhla_model_free(m);
    write_file(tokenizer, json, strlen(json));
    FILE *f = fopen(prompts, "w");
    for (int i = 0; i < PICTURES; i++) fprintf(f, "ab\n");
    fclose(f);
    const mhla_clip_desc desc = {
        .size = sizeof desc, .model = clip, .images = npy, .prompts = prompts, .tokenizer = tokenizer};
    const struct_case rows[] = {
        TAKES(mhla_clip_score, mhla_clip_desc, .value = &desc),
        FILLS(mhla_clip_score, mhla_clip_scores),
    };
    STRUCTS_TRY(rows);
}

static void measures(void **state) {
    (void)state;
    snprintf(npy, sizeof npy, "%s", in_folder("images.npy"));
    snprintf(features, sizeof features, "%s", in_folder("classifier"));
    static const mhla_measure_desc desc = {
        .size = sizeof desc, .real = npy, .generated = npy, .features = features, .limit = 3};
    const struct_case rows[] = {
        TAKES(mhla_measure, mhla_measure_desc, .value = &desc),
        FILLS(mhla_measure, mhla_measures),
    };
    STRUCTS_TRY(rows);
}

static int begin(void **state) {
    if (make_folder(state) != 0) return -1;
    const char *dit[] = {"image=8", "channels=1", "patch=2", "dim=16", "depth=1", "heads=2", "classes=5"};
    const char *deit[] = {"image=8,8", "channels=1", "padding=0,0", "patch=2", "dim=16", "depth=1", "classes=4"};
    const mhla_context_desc one = {.size = sizeof one, .threads = 1};
    mhla_model *classifier;
    mhla_picture picture = {.size = sizeof picture};
    rng r = {1};
    for (int i = 0; i < PICTURES * EACH; i++) images[i] = rng_signed(&r);
    ASSERT_OK(mhla_context_create(&context, &one));
    ASSERT_OK(mhla_model_create(&model, "dit_micro", dit, 7, 1));
    mhla_model_set_context(model, context);
    ASSERT_OK(mhla_model_create(&classifier, "deit_nano", deit, 7, 1));
    ASSERT_OK(mhla_model_save(classifier, in_folder("classifier")));
    mhla_model_free(classifier);
    ASSERT_OK(mhla_npy_write(in_folder("images.npy"), MHLA_IO_U8, 3, (const int64_t[]){PICTURES, SIDE, SIDE}, images));
    ASSERT_OK(mhla_picture_tile(&picture, images, 1, 1, SIDE, SIDE, 1));
    ASSERT_OK(mhla_picture_write(in_folder("picture.png"), &picture, 1, NULL));
    mhla_picture_free(&picture);
    return 0;
}

static int end(void **state) {
    mhla_model_free(model);
    mhla_context_free(context);
    return remove_folder(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sampling),    cmocka_unit_test(pictures),
                                       cmocka_unit_test(pipelines),   cmocka_unit_test(measures),
                                       cmocka_unit_test(clip_scores), cmocka_unit_test(coding)};
    return cmocka_run_group_tests(tests, begin, end);
}
