/* Pipelines, inside: from a sentence to an image or a clip by a text encoder, a denoiser and an autoencoder.
 *
 * pipeline.c opens one and looks at its components, pipeline_kinds.c has what is particular to each class, flow_schedule.c reads a scheduler's
 * settings, pipeline_texts.c makes rows of prompts, pipeline_make.c is the work, pipeline_plan.c tells beforehand what it takes,
 * pipeline_record.c writes down how images were made. */
#ifndef MHLA_INFER_PIPELINE_H
#define MHLA_INFER_PIPELINE_H

#include <mhla/diffusion.h>
#include <mhla/lm.h>

#include "file/json.h"
#include "models/model.h"
#include "text/caption_rows.h"

/* ---- flow_schedule.c ---- */

typedef struct mhla_flow_schedule {
    char method[8];
    double shift;
} mhla_flow_schedule;

/* Of a scheduler_config.json. MHLA_ENOTSUP names a class or a setting that is not known here. */
mhla_status mhla_flow_schedule_read(mhla_flow_schedule *schedule, const char *path);

/* ---- pipeline_kinds.c: one row per class ---- */

enum {
    MHLA_PART_TEXT_ENCODER,
    MHLA_PART_TRANSFORMER,
    MHLA_PART_VAE,
    MHLA_PART_TOKENIZER,
    MHLA_PART_SCHEDULER,
    MHLA_PARTS
};
extern const char *const mhla_part_names[MHLA_PARTS]; /* keys of model_index.json, and folders */

typedef struct mhla_pipeline_kind {
    const char *name;         /* _class_name of model_index.json */
    const char *architecture; /* of its transformer */
    const char *instruction, *negative;
    int instructs_negative; /* the instruction is put in front of the negative prompt, too */
    int64_t rows;           /* of a text, at most */
    mhla_status (*clean)(char **to, const char *prompt);
    mhla_flow_schedule schedule; /* where no file says it */
    int steps;
    double guidance;
    double seconds;                /* that a frame of a clip is shown */
    const char *files[MHLA_PARTS]; /* of its authors' own folder, which has no model_index.json; or NULLs */
    /* The size nearest in shape that the model of images of this side was trained on; 0: any size is right. NULL: likewise. */
    int (*bin)(int *height, int *width, int side);
} mhla_pipeline_kind;

const mhla_pipeline_kind *mhla_pipeline_kind_at(int i); /* NULL behind the last */

/* ---- pipeline.c ---- */

struct mhla_pipeline {
    const mhla_pipeline_kind *kind;
    char *parts[MHLA_PARTS]; /* paths; the tokenizer's and the scheduler's may be NULL */
    char *folder, *storage, *texts;
    const mhla_context *context;
    mhla_flow_schedule schedule;
    mhla_denoiser_info denoiser;
    mhla_autoencoder_info autoencoder; /* its lists of numbers are the model's: not used */
    mhla_encoder_info encoder;
    char fingerprints[MHLA_COMPONENTS][65], weights[65];
    char given[MHLA_PARTS];      /* 1: by name, not from the folder */
    struct mhla_prompt *prompts; /* rows of what has been encoded */
    /* of a run: */
    mhla_pipeline_kind own;
    char *instruction, encoder_sum[65]; /* mhla_model_hash of its encoder, */
    int checked;                        /* and whether the encoder has been compared with it */
    mhla_captions known;                /* rows of texts that need no encoder; none: texts is 0 */
};

/* A component with its weights, or (look) without. */
mhla_status mhla_pipeline_part(mhla_model **model, const mhla_pipeline *p, mhla_component part, int look);
/* Checks what is given, fills in what it leaves open: into d. */
mhla_status mhla_make_settle(const mhla_pipeline *p, mhla_make_desc *d, const mhla_make_desc *given);
/* Of the latents of desc, which is settled. */
mhla_extent mhla_make_extent(const mhla_pipeline *p, const mhla_make_desc *desc);
/* How its pixels are decoded. */
mhla_coding mhla_make_coding(const mhla_make_desc *desc);

/* ---- pipeline_run.c: a model that was trained here ---- */

int mhla_pipeline_run_is(const char *folder);
/* Its kind and its parts, but for those that are named; it may have no autoencoder, and a text encoder that is not there. */
mhla_status mhla_pipeline_run_find(mhla_pipeline *p);
/* The number of a text of p->known, or -1. */
int64_t mhla_pipeline_run_known(const mhla_pipeline *p, const char *text);
/* Is the encoder there that this text needs, and is it that of the training? */
mhla_status mhla_pipeline_run_encoder(const mhla_pipeline *p, const char *text);
mhla_status mhla_pipeline_run_check(mhla_pipeline *p, const mhla_model *encoder);

/* ---- pipeline_texts.c ---- */

/* Rows of all texts of desc, which is settled, each once; prompts [images] and *negative are their numbers. */
mhla_status mhla_pipeline_texts(mhla_pipeline *p, mhla_text_rows *rows, int32_t *prompts, int32_t *negative,
                                const mhla_make_desc *desc, int *stopped);
/* How many tokens the encoder would have to read for that. *encoder, NULL before, is the caller's: without its weights, or NULL where all
 * rows are there. */
mhla_status mhla_pipeline_tokens(mhla_pipeline *p, mhla_model **encoder, int64_t *tokens, const mhla_make_desc *desc);
void mhla_prompts_free(struct mhla_prompt *prompts);

#endif
