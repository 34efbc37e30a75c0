/* The report: one HTML page about one or several runs (mhla_report_write of mhla/nn.h). This room's files: report*.[ch],
 * chart.[ch], samples.c; io/html.[ch]; cli/cmd_plot.c.
 *
 * What it reads of a run's folder, each part of which may be missing or half-written (a remark then says so on the page):
 *
 *   recipe.json              shown as it is; data.source and train.init are looked at
 *   metrics.jsonl            one object per line; other kinds and keys are passed over, numbers that are not finite are null:
 *     {"kind":"step","step":10,"epoch":0.1,"loss":2.3,"accuracy":0.1,"rate":1e-3,"gradient_norm":1.2,
 *      "images_per_second":900}
 *     {"kind":"test","step":100,"epoch":1,"images":10000,"loss":0.5,"accuracy":0.8,"ema_accuracy":0.81,
 *      "ema_loss":0.49,"weights":"ema","classes":[0.9,..]}   accuracies are 0..1; classes: of each class with the weights
 *                            that did better, null where there is no image of it
 *   checkpoints/step-NNNNNNNN/   the newest one: config.json (model, attention, blocks, mix, class_names) and
 *                            model.safetensors, of which *.piece_attn.conv.weight and *.mixing_matrix are shown
 *   samples.json             what mhla_samples_write leaves
 *   samples/step-NNNNNNNN.png    pictures that a diffusion model or an autoencoder made after that step
 *
 * It needs neither the model nor the data: a run that was copied from elsewhere shows as well. */
#ifndef MHLA_REPORT_REPORT_H
#define MHLA_REPORT_REPORT_H

#include <mhla/nn.h>

#include "image/image.h"

enum { MHLA_SAMPLES = 24, MHLA_SAMPLE_TOP = 5 };

/* A picture of the test split and what a model takes it for. */
typedef struct mhla_sampled {
    int64_t index;           /* in the test split; runs on the same data are shown side by side */
    const mhla_image *image; /* as it is in the data; kept at 160 pixels a side at most */
    int label;
    const float *probabilities; /* [classes] */
} mhla_sampled;

/* For the end of training: writes RUN/samples.json, whole or not at all, with the pictures inside. class_names [classes] or
 * NULL. MHLA_SAMPLES pictures, evenly spread over the split, are a good number. */
mhla_status mhla_samples_write(const char *run, int64_t step, const mhla_sampled *samples, int count, int classes,
                               const char *const *class_names);

#endif
