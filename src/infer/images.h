/* How sampling divides its work: what a plan of it has to know. */
#ifndef MHLA_INFER_IMAGES_H
#define MHLA_INFER_IMAGES_H

#include "models/model.h"

/* Images that go through the network at once; asked 0: as many as are worth it. With guidance each is there twice, or (apart) the two go
 * through one after the other. */
int64_t mhla_sample_batch(int *apart, const mhla_model *model, mhla_extent extent, int guided, int64_t asked,
                          int64_t images);

/* ", as has tensor NAME of FILE": the first tensor of the weights with a number that is not finite, of a file of float16 one that did not
 * fit; "" if there is none. */
enum { MHLA_BROKEN = 4400 };
const char *mhla_model_broken(char text[MHLA_BROKEN], const mhla_model *m);

#endif
