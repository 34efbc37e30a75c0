/* How sampling divides its work: what a plan of it has to know. */
#ifndef MHLA_INFER_IMAGES_H
#define MHLA_INFER_IMAGES_H

#include "models/model.h"

/* Images that go through the network at once; asked 0: as many as are worth it. With guidance each is there twice, or (apart) the two go
 * through one after the other. */
int64_t mhla_sample_batch(int *apart, const mhla_model *model, mhla_extent extent, int guided, int64_t asked,
                          int64_t images);

#endif
