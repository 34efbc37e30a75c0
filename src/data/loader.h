/* Batches ahead of their use: worker threads read, decode and augment pictures into a ring of batches. What a batch holds is
 * a function of (seed, epoch, batch) alone: the same bytes for any number of workers, after any seek.
 *
 * Training: an epoch's order is a permutation by (seed, epoch); the last, partial batch is dropped; batches follow one another
 * endlessly. Evaluation: in the data's order, the last batch may be smaller; after it `next` gives a count of 0, once, and
 * starts over. A picture that cannot be read is replaced in training by the next readable one of the data; in evaluation
 * it has label -1 and is zeros. An epoch in which nothing can be read is an error. */
#ifndef MHLA_DATA_LOADER_H
#define MHLA_DATA_LOADER_H

#include "data/dataset.h"
#include "image/augment.h"

typedef struct mhla_loader mhla_loader;

typedef struct mhla_loader_desc {
    mhla_dataset *data; /* kept by the caller, longer than the loader */
    int batch;          /* B */
    int train;          /* shuffled, endless, whole batches; 0: evaluation */
    int workers;        /* threads; 0: `next` does the work itself */
    int ahead;          /* batches of the ring, the one in use among them; 0: 3 */
    uint64_t seed;
    mhla_augment augment;
    mhla_mix mix;   /* training only */
    int classes;    /* of the targets; 0: those of the data. A label beyond is an error */
    int latents;    /* the data are latents (latents.h): of augment, the sizes and flip count */
    int no_targets; /* leave out targets; labels only */
    int64_t limit;  /* evaluation: at most so many pictures, spread over the data; 0: all */
    /* Of several processes each wants a part. Training: rows first .. last-1 of each batch, and what they are mixed with; others
     * are not read, and their labels are 0. last 0: all rows. Evaluation: batches rank, rank + ranks, ..; ranks 0: all. */
    int first, last;
    int rank, ranks;
} mhla_loader_desc;

typedef struct mhla_batch {
    float *images;  /* [count,channels,height,width] */
    float *targets; /* [count,classes], smoothed and mixed; NULL with no_targets */
    int *labels;    /* [count]; -1: could not be read (evaluation) */
    int64_t *index; /* [count]: which pictures of the data these are */
    int count;      /* 0: the end of an evaluation */
    int64_t epoch, batch;
    int64_t start; /* evaluation: number of its first picture among all that are evaluated */
} mhla_batch;

mhla_status mhla_loader_create(mhla_loader **loader, const mhla_loader_desc *desc);
void mhla_loader_free(mhla_loader *loader); /* NULL is legal; stops the workers */

int64_t mhla_loader_batches(const mhla_loader *loader); /* of an epoch */

/* The next batch; valid until the next call. A worker's failure is returned here, with its message; it stays. */
mhla_status mhla_loader_next(mhla_loader *loader, const mhla_batch **batch);

/* Go on with that batch of that epoch, as if all before had been taken. batch may be mhla_loader_batches: the next epoch. */
mhla_status mhla_loader_seek(mhla_loader *loader, int64_t epoch, int64_t batch);

/* Seconds that `next` waited for workers so far: near zero where loading is not the bottleneck. */
double mhla_loader_waited(const mhla_loader *loader);

#endif
