/* The first part of the demo: the shipped models write a sentence, draw ten images and classify them. */
#include <mhla/diffusion.h>
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"

enum { TOKENS = 40, CLASSES = 10, INNER = 28 }; /* INNER: pixels of a side that the classifier was trained on */

static const char prompt[] = "In the beginning";

static mhla_status generate(mhla_model *model, mhla_chars *text) {
    const mhla_sampling sampling = {
        .size = sizeof sampling, .temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .seed = 0};
    const mhla_generation_desc desc = {.size = sizeof desc, .sampling = &sampling, .max_tokens = TOKENS};
    const mhla_sequence_desc plain = {.size = sizeof plain};
    mhla_sequence *sequence = NULL;
    mhla_generation *generation = NULL;
    mhla_ids ids = {0};
    mhla_status status =
        mhla_tokenizer_encode(mhla_lm_tokenizer(model), &ids, prompt, strlen(prompt), MHLA_ENCODE_SPECIAL);
    if (status == MHLA_OK) status = mhla_sequence_create(&sequence, model, &plain);
    if (status == MHLA_OK) status = mhla_generation_create(&generation, sequence, ids.data, ids.count, &desc);
    while (status == MHLA_OK && mhla_generation_finish(generation) == MHLA_FINISH_NONE) {
        mhla_piece piece = {.size = sizeof piece};
        status = mhla_generation_step(model, &generation, 1);
        if (status == MHLA_OK) status = mhla_generation_piece(generation, &piece);
        if (status == MHLA_OK) status = mhla_chars_append(text, piece.text, piece.bytes);
    }
    mhla_generation_free(generation);
    mhla_sequence_free(sequence);
    mhla_ids_free(&ids);
    return status;
}

static mhla_status write_sentence(demo *d) {
    const double begin = now_seconds();
    mhla_model *model = NULL;
    mhla_chars text = {0};
    mhla_status status = mhla_model_open(&model, model_path("lm-small"));
    if (status == MHLA_OK) status = mhla_chars_append(&text, prompt, strlen(prompt));
    if (status == MHLA_OK) status = generate(model, &text);
    if (status == MHLA_OK) status = mhla_chars_append(&text, "", 1);
    mhla_model_free(model);
    if (status != MHLA_OK) {
        mhla_chars_free(&text);
        return status;
    }
    d->sentence = text;
    d->sentence_seconds = now_seconds() - begin;
    char time[32];
    printf("lm-small continues \"%s\" (%s):\n\n", prompt, text_time(time, sizeof time, d->sentence_seconds));
    text_put(stdout, text.data, text.count - 1);
    printf("\n\n");
    fflush(stdout);
    return MHLA_OK;
}

/* Does the classifier give the centre of image i [high, wide] its class? */
static mhla_status classify_one(demo *d, mhla_model *classifier, const float *image, int high, int wide, int i) {
    float inner[INNER * INNER], probabilities[CLASSES];
    char path[DEMO_PATH];
    mhla_picture picture = {.size = sizeof picture};
    for (int y = 0; y < INNER; y++)
        for (int x = 0; x < INNER; x++)
            inner[y * INNER + x] = image[(y + (high - INNER) / 2) * wide + x + (wide - INNER) / 2];
    snprintf(path, sizeof path, "%s/drawn-%d.png", d->folder, i);
    mhla_status status = mhla_picture_tile(&picture, inner, 1, 1, INNER, INNER, 1);
    if (status == MHLA_OK) status = mhla_picture_write(path, &picture, 1, NULL);
    if (status == MHLA_OK) status = mhla_model_classify(classifier, probabilities, path);
    mhla_picture_free(&picture);
    if (status != MHLA_OK) return status;
    int best = 0;
    for (int k = 1; k < CLASSES; k++)
        if (probabilities[k] > probabilities[best]) best = k;
    d->image_all++;
    d->image_right += best == i;
    return MHLA_OK;
}

static mhla_status classify(demo *d, const float *images, int high, int wide) {
    mhla_model *classifier = NULL;
    mhla_status status = mhla_model_open(&classifier, model_path("deit-fashion"));
    for (int i = 0; i < CLASSES && status == MHLA_OK; i++)
        status = classify_one(d, classifier, images + (size_t)i * (size_t)(high * wide), high, wide, i);
    mhla_model_free(classifier);
    return status;
}

static mhla_status draw_images(demo *d) {
    const double begin = now_seconds();
    mhla_model *model = NULL;
    mhla_model_info info = {.size = sizeof info};
    mhla_picture picture = {.size = sizeof picture};
    int32_t classes[CLASSES];
    uint64_t seeds[CLASSES];
    for (int i = 0; i < CLASSES; i++) {
        classes[i] = i;
        seeds[i] = (uint64_t)i;
    }
    const mhla_sample_desc desc = {.size = sizeof desc,
                                   .images = CLASSES,
                                   .classes = classes,
                                   .seeds = seeds,
                                   .guidance = 2.0,
                                   .method = "euler",
                                   .steps = 25};
    mhla_status status = mhla_model_open(&model, model_path("dit-fashion"));
    if (status == MHLA_OK) status = mhla_model_query(model, &info);
    float *images = status == MHLA_OK ? malloc(sizeof *images * CLASSES * (size_t)(info.height * info.width)) : NULL;
    if (status == MHLA_OK && images == NULL) status = MHLA_ENOMEM;
    if (status == MHLA_OK) status = mhla_model_sample(model, images, &desc, NULL);
    char path[DEMO_PATH];
    snprintf(path, sizeof path, "%s/images.png", d->folder);
    if (status == MHLA_OK)
        status = mhla_picture_tile(&picture, images, CLASSES, 1, info.height, info.width, CLASSES / 2);
    if (status == MHLA_OK) status = mhla_picture_write(path, &picture, 1, NULL);
    if (status == MHLA_OK) {
        char time[32];
        memcpy(d->image, path, sizeof path);
        d->image_seconds = now_seconds() - begin;
        printf("dit-fashion draws one image of each of %d classes (%s): %s\n", CLASSES,
               text_time(time, sizeof time, d->image_seconds), path);
        status = classify(d, images, info.height, info.width);
    }
    if (status == MHLA_OK)
        printf("deit-fashion assigns %d of these %d images to the intended class.\n", d->image_right, d->image_all);
    free(images);
    mhla_picture_free(&picture);
    mhla_model_free(model);
    return status;
}

int demo_models(demo *d) {
    static const char *const names[] = {"lm-small", "dit-fashion", "deit-fashion"};
    printf("\n1. Shipped models, trained by the recipes of the same name\n\n");
    for (int i = 0; i < 3; i++)
        if (strchr(model_path(names[i]), '/') == NULL) {
            printf("models/%s was not found, so this part is skipped. Run the demo in the source folder, or run make "
                   "install.\n",
                   names[i]);
            return CLI_OK;
        }
    mhla_status status = write_sentence(d);
    if (status == MHLA_OK) status = draw_images(d);
    return status == MHLA_OK ? CLI_OK : cli_failed("demo", status);
}
