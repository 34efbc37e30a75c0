/* Measures of two sets of pictures, inside: pictures from wherever they lie, features of them, and the numbers that are made of
 * features. Rows of features are float32 [n,dims]; sums are double. Nothing depends on the number of threads. */
#ifndef MHLA_MEASURE_MEASURE_H
#define MHLA_MEASURE_MEASURE_H

#include <mhla/diffusion.h>

#include "image/image.h"
#include "models/roles.h"

/* ---- frechet.c ------------------------------------------------------------------------------------------------------ */

/* |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1 S2)^(1/2) of the means and covariances (over n - 1) of x [nx,dims] and y [ny,dims].
 * nx, ny at least 2. MHLA_ERANGE for features that are not finite. */
mhla_status mhla_frechet_distance(double *distance, const float *x, int64_t nx, const float *y, int64_t ny, int dims);

/* covariance [dims,dims], mean [dims]. */
mhla_status mhla_covariance(double *covariance, double *mean, const float *x, int64_t n, int dims);

/* ---- neighbours.c ----------------------------------------------------------------------------------------------------- */

/* Precision: the share of y within the manifold of x, which is what lies no farther from a row of x than its k-th
 * neighbour in x. Recall: the other way round. (Kynkaanniemi et al., 2019.) More than k rows of each. */
mhla_status mhla_precision_recall(double *precision, double *recall, const float *x, int64_t nx, const float *y,
                                  int64_t ny, int dims, int k);

/* exp of the mean KL divergence of p(class | image) from p(class), over `parts` parts, those of torch-fidelity; mean and
 * deviation of those. p [n,classes]. */
mhla_status mhla_inception_score(double *mean, double *deviation, const float *p, int64_t n, int classes, int parts);

/* ---- gallery.c --------------------------------------------------------------------------------------------------------- */

typedef struct mhla_gallery mhla_gallery;

/* A dataset's split, a folder with pictures in it, a picture, or an .npy of uint8 [N,H,W] or [N,H,W,3]; limit 0: all, else so
 * many, evenly spread. */
mhla_status mhla_gallery_open(mhla_gallery **pictures, const char *source, const char *split, int64_t limit);
/* The same, where an .npy of float32 [N,C,H,W] is latents, which `vae` decodes within so much memory (0: any). */
mhla_status mhla_gallery_decode(mhla_gallery **pictures, const char *source, const char *split, int64_t limit,
                                mhla_model *vae, size_t memory);
/* The same of a dataset of clips of this size; a clip is got as one picture, its frames one below the other. MHLA_EINVAL for pictures
 * and for clips of another size. */
mhla_status mhla_gallery_open_clips(mhla_gallery **clips, const char *source, const char *split, int64_t limit,
                                    mhla_extent extent);
/* From now on the centre of this size, black around what is smaller; 0, 0: as they are. */
void mhla_gallery_frame(mhla_gallery *pictures, int height, int width);
void mhla_gallery_free(mhla_gallery *pictures);
int64_t mhla_gallery_count(const mhla_gallery *pictures);
/* How many there are without the limit, and which of them picture i is. */
int64_t mhla_gallery_all(const mhla_gallery *pictures);
int64_t mhla_gallery_index(const mhla_gallery *pictures, int64_t i);
/* The sentence about a file that is not among them because it cannot be read, or NULL. */
const char *mhla_gallery_left_out(mhla_gallery *pictures);
/* Picture i; *label its class, -1: it has none. May be called by several threads at once. */
mhla_status mhla_gallery_get(mhla_gallery *pictures, int64_t i, mhla_image *image, int *label);
int mhla_gallery_classes(const mhla_gallery *pictures); /* 0: they have none */
const char *mhla_gallery_class_name(const mhla_gallery *pictures, int label);

/* ---- features.c ----------------------------------------------------------------------------------------------------------- */

typedef struct mhla_extractor mhla_extractor;

/* A file with Inception's weights, a model or run of an image classifier, or the name of a set of `mhla data`; resize (of
 * Inception's pictures): "torch" (NULL) or "tf1", see measure/inception.h. */
mhla_status mhla_extractor_open(mhla_extractor **extractor, const char *path, const char *resize);
void mhla_extractor_free(mhla_extractor *extractor); /* NULL is legal */
const char *mhla_extractor_name(const mhla_extractor *extractor);
int mhla_extractor_inception(const mhla_extractor *extractor);
int mhla_extractor_dims(const mhla_extractor *extractor);
int mhla_extractor_classes(const mhla_extractor *extractor); /* 0: it has features only */
const char *mhla_extractor_class_name(const mhla_extractor *extractor, int i);

typedef struct mhla_features {
    int64_t n;
    float *x;             /* [n,dims] */
    float *spatial;       /* [n,2023] of Inception, else NULL */
    float *probabilities; /* [n,classes]; NULL without classes */
    int *labels;          /* [n], -1: none */
} mhla_features;

typedef struct mhla_watch { /* progress: `done` of `all` were done before */
    mhla_progress_fn progress;
    void *user;
    int64_t done, all;
} mhla_watch;

/* Fills the arrays for all pictures. A picture that cannot be read is an error. */
mhla_status mhla_extractor_run(mhla_extractor *extractor, const mhla_features *out, mhla_gallery *pictures,
                               const mhla_watch *watch);

#endif
