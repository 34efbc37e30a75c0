/* The Inception network of 2015-12-05, whose features the Fréchet distance is called FID with: inference only. 94 convolutions
 * without bias, each followed by batch normalisation without a factor (folded into it at loading) and ReLU; pools; 2,048 features.
 *
 * Weights are read under the names of the TorchScript file that `mhla data inception` takes them from ("net.layers.conv.weight"),
 * or of pytorch-fid ("Conv2d_1a_3x3.conv.weight"), which also has the classifier ("fc.weight") for the Inception score. */
#ifndef MHLA_MEASURE_INCEPTION_H
#define MHLA_MEASURE_INCEPTION_H

#include "file/safetensors.h"
#include "image/image.h"

enum {
    MHLA_INCEPTION_SIZE = 299,
    MHLA_INCEPTION_FEATURES = 2048,
    MHLA_INCEPTION_SIDE = 17, /* of the map of spatial features, and how many of its channels are taken */
    MHLA_INCEPTION_CHANNELS = 7,
    MHLA_INCEPTION_SPATIAL = MHLA_INCEPTION_SIDE * MHLA_INCEPTION_SIDE * MHLA_INCEPTION_CHANNELS
};

typedef struct mhla_inception mhla_inception;

/* Does the file hold such a network? */
int mhla_inception_fits(const mhla_safetensors *file);
/* MHLA_EDATA names the tensor that is missing or of another shape. */
mhla_status mhla_inception_open(mhla_inception **model, const mhla_safetensors *file, const mhla_context *context);
void mhla_inception_free(mhla_inception *model);         /* NULL is legal */
int mhla_inception_classes(const mhla_inception *model); /* 0: without classifier; 1008 */

/* features [n,2048] and, unless NULL, spatial features [n,17,17,7] and logits [n,classes] of x [n,299,299,3], values about
 * -1..1. Spatial features are the first channels of what "mixed_6.conv" ("Mixed_6d.branch1x1") makes: those of sFID. */
mhla_status mhla_inception_run(mhla_inception *model, float *features, float *spatial, float *logits, const float *x,
                               int64_t n);

/* How a picture of 0..255 becomes such an x [299,299,3]; never antialiased. */
typedef enum mhla_inception_resize {
    MHLA_INCEPTION_TORCH, /* bilinear between centres of pixels, x / 127.5 - 1: pytorch-fid */
    MHLA_INCEPTION_TF1    /* bilinear from the first pixel's corner, (x - 128) / 128: the first code, and ADM's */
} mhla_inception_resize;
mhla_status mhla_inception_input(float *x, const mhla_image *image, mhla_inception_resize how);
/* The same of any values [height,width,channels], without the change of range: out [299,299,3]. */
void mhla_inception_scale(float *out, const float *in, int height, int width, int channels, mhla_inception_resize how);

#endif
