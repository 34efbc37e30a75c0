/* Sampling on the disk: what is needed to go on after the last step, in a safetensors file beside the output. */
#ifndef MHLA_INFER_SAMPLE_STATE_H
#define MHLA_INFER_SAMPLE_STATE_H

#include <mhla/diffusion.h>

/* Images before `first` are done; of images first .. first+count-1, `step` steps are. each: numbers of an image. */
typedef struct mhla_sample_place {
    int64_t first, count, each;
    int step;
} mhla_sample_place;

/* Replaces the file. work: what identifies the images, 64 digits. images [first,each], x [count,each]. */
mhla_status mhla_sample_state_write(const mhla_sample_place *place, const char *path, const char *work,
                                    const mhla_sampler *sampler, const float *images, const float *x);
/* Is there a state of this work, of so many images? MHLA_EINVAL: there is one of other images. place->each is given. */
mhla_status mhla_sample_state_find(int *found, mhla_sample_place *place, const char *path, const char *work,
                                   int64_t images);
/* Reads what is not NULL. The sampler is new. */
mhla_status mhla_sample_state_read(mhla_sample_place *place, const char *path, const char *work, mhla_sampler *sampler,
                                   float *images, float *x);

#endif
