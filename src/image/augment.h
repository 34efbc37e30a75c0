/* What happens to a training picture between its file and the batch: crop, flip, RandAugment, normalisation, random
 * erasing; and to a batch: mixup, cutmix, smoothed targets. The operations are Pillow's, the policies timm's.
 * Every random number is a function of (seed, epoch, sample, place), so that the result for a sample does not depend on
 * which worker made it, or when. */
#ifndef MHLA_IMAGE_AUGMENT_H
#define MHLA_IMAGE_AUGMENT_H

#include "image/resize.h"

typedef enum mhla_crop {
    MHLA_CROP_EVAL,   /* shorter side to size / crop_pct, centre: timm's evaluation */
    MHLA_CROP_RANDOM, /* random resized crop: scale, ratio */
    MHLA_CROP_PAD,    /* `pad` black pixels around, then a random crop: small images */
    MHLA_CROP_SQUASH, /* resized to this shape, whatever its own */
    MHLA_CROP_CENTRE  /* the centre as it is, with black around what is smaller: evaluation beside MHLA_CROP_PAD */
} mhla_crop;

/* How a picture becomes [channels,height,width] floats. Zero is a default where 0 makes no sense. */
typedef struct mhla_augment {
    int height, width, channels; /* of the result; width 0: as its height, channels 0: 3 */
    mhla_crop crop;
    mhla_filter filter;        /* of the crop; bicubic */
    double crop_pct;           /* MHLA_CROP_EVAL; 0: 0.875 */
    double scale[2], ratio[2]; /* MHLA_CROP_RANDOM; 0: 0.08 .. 1, 3/4 .. 4/3 */
    int pad;                   /* MHLA_CROP_PAD */
    float flip;                /* probability of a horizontal flip */

    int rand_layers;     /* RandAugment: operations per picture; 0: none. timm's rand-m9-mstd0.5-inc1 is layers 2, */
    double rand_m;       /* magnitude 9, */
    double rand_std;     /* its deviation 0.5, */
    int rand_increasing; /* 1, */
    double rand_prob;    /* and each operation with this probability; 0: 0.5 */
    int rand_bilinear_too; /* rotations and shears: bilinear or bicubic by lot, as timm's interpolation "random"; 0: `filter` */

    float erase;           /* probability of erasing a rectangle with normal noise (timm's mode pixel, count 1) */
    float mean[3], std[3]; /* of the channels, in 0..1; std 0: mean 0, std 1. Also what fills corners of rotations */
} mhla_augment;

/* "rand-m9-mstd0.5-inc1" (m, n, p, mstd, inc; "" or "none": off) into the rand_ fields. MHLA_EINVAL names the piece that is
 * not understood. */
mhla_status mhla_augment_parse(mhla_augment *a, const char *text);
/* Fills in defaults and checks; call once, before the first apply. */
mhla_status mhla_augment_prepare(mhla_augment *a);

/* Scratch images of one thread, so that no picture needs new memory. Start from {0}. */
typedef struct mhla_augment_scratch {
    mhla_image a, b, c;
} mhla_augment_scratch;
void mhla_augment_scratch_free(mhla_augment_scratch *s);

/* out [channels,height,width]: the picture cropped, flipped, changed, (x / 255 - mean) / std, erased. Grey and RGB are
 * converted to `channels` as Pillow does. */
mhla_status mhla_augment_apply(float *out, const mhla_image *image, const mhla_augment *a,
                               mhla_augment_scratch *scratch, uint64_t seed, uint64_t epoch, uint64_t sample);

/* ---- The operations, in place unless said otherwise; grey or RGB ---- */

void mhla_image_flip(mhla_image *image);
void mhla_image_invert(mhla_image *image);
void mhla_image_autocontrast(mhla_image *image);
void mhla_image_equalize(mhla_image *image);
void mhla_image_posterize(mhla_image *image, int bits); /* keeps 0 to 8 */
void mhla_image_solarize(mhla_image *image, int threshold);
void mhla_image_solarize_add(mhla_image *image, int add, int threshold);
void mhla_image_color(mhla_image *image, double factor);
void mhla_image_contrast(mhla_image *image, double factor);
void mhla_image_brightness(mhla_image *image, double factor);
mhla_status mhla_image_sharpness(mhla_image *out, const mhla_image *in, double factor);
/* out(x, y) = in(m0 x + m1 y + m2, m3 x + m4 y + m5), as Image.transform(AFFINE); bicubic or bilinear; fill by channel. */
mhla_status mhla_image_affine(mhla_image *out, const mhla_image *in, const double m[6], mhla_filter filter,
                              const uint8_t fill[3]);
mhla_status mhla_image_rotate(mhla_image *out, const mhla_image *in, double degrees, mhla_filter filter,
                              const uint8_t fill[3]);

/* ---- Batches ---- */

typedef struct mhla_mix {
    double mixup, cutmix;     /* alphas of the beta distributions; 0: off */
    double prob, switch_prob; /* of mixing at all, and of cutmix where both are on. prob 0: 1; switch_prob 0: 0.5 */
    double smoothing;         /* of labels */
} mhla_mix;

/* timm's Mixup in batch mode: image i is mixed with image B-1-i. images [B,C,H,W] in place, targets [B,classes] written;
 * labels [B] in 0..classes-1, or -1: a row of zeros. Keyed by (seed, step). */
void mhla_mix_batch(float *images, float *targets, const int *labels, int B, int C, int H, int W, int classes,
                    const mhla_mix *mix, uint64_t seed, uint64_t step);

/* What augment.crop means for pictures of training; `still`: for those that a test is made of, which chance leaves alone but
 * which have the same scale. */
mhla_crop mhla_crop_named(const char *name, int still);

#endif
