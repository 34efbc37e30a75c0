/* A small pipeline on the disk for tests: SANA's, with an autoencoder of images and a language model as text encoder. */
#ifndef MHLA_TESTS_PIPELINE_CASE_H
#define MHLA_TESTS_PIPELINE_CASE_H

#include <mhla/diffusion.h>
#include <mhla/lm.h>

#include "files.h"
#include "models/model.h"

static inline void write_words(const char *name, const char *words) {
    write_file(in_folder(name), words, strlen(words));
}

/* Every parameter counts: those of a fresh model are zero in many places. */
static inline void save_noisy(const char *preset, const char *const *settings, int count, const char *to, float size) {
    mhla_model *m;
    rng r = {11};
    ASSERT_OK(mhla_model_create(&m, preset, settings, count, 3));
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        for (int64_t k = 0; k < p->count; k++) p->data[k] += size * rng_signed(&r);
        mhla_param_touch(p);
    }
    ASSERT_OK(mhla_model_save(m, in_folder(to)));
    mhla_model_free(m);
}

static const char pipeline_scheduler[] = "{\"_class_name\": \"DPMSolverMultistepScheduler\", \"prediction_type\": "
                                         "\"flow_prediction\", \"use_flow_sigmas\": true, "
                                         "\"flow_shift\": 3.0, \"solver_order\": 2, \"use_karras_sigmas\": false}";

/* in_folder("pipe"): images of 32 x 32, latents of 4 x 8 x 8. */
static inline void make_pipeline(void) {
    static const char text[] = "It was the best of times, it was the worst of times, it was the age of wisdom.\n";
    const char *const encoder[] = {"vocab_size=300", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=1",
                                   "attention=softmax"};
    const char *const transformer[] = {"caption_channels=16", "attention=mhla", "blocks=2,2"};
    const char *const special[] = {"<|endoftext|>"}, *files[] = {in_folder("text.txt")};
    const mhla_tokenizer_training training = {
        .size = sizeof training, .vocabulary = 300, .special = special, .specials = 1};
    assert_int_equal(mkdir(in_folder("pipe"), 0777), 0);
    assert_int_equal(mkdir(in_folder("pipe/tokenizer"), 0777), 0);
    assert_int_equal(mkdir(in_folder("pipe/scheduler"), 0777), 0);
    write_file(files[0], text, sizeof text - 1);
    ASSERT_OK(mhla_tokenizer_train(in_folder("pipe/tokenizer/tokenizer.json"), files, 1, &training, NULL, NULL));
    save_noisy("lm_micro", encoder, 5, "pipe/text_encoder", 0.2f);
    save_noisy("sana_nano", transformer, 3, "pipe/transformer", 0.1f);
    save_noisy("sd_vae_nano", NULL, 0, "pipe/vae", 0.02f);
    write_words("pipe/model_index.json",
                "{\"_class_name\": \"SanaPipeline\", \"vae\": [\"diffusers\", \"AutoencoderDC\"], \"transformer\": "
                "[\"diffusers\", \"SanaTransformer2DModel\"], \"text_encoder\": [\"transformers\", \"Gemma2Model\"]}");
    write_words("pipe/scheduler/scheduler_config.json", pipeline_scheduler);
}

#endif
