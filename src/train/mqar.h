/* Multi-query associative recall, the recipe of zoology (Arora et al., "Zoology: Measuring and improving recall in efficient
 * language models"): D pairs of a key and a value, then queries of these keys at distances that follow a power law; the
 * value is to be said at each query. docs/mqar.md has the conventions. */
#ifndef MHLA_TRAIN_MQAR_H
#define MHLA_TRAIN_MQAR_H

#include <mhla/lm.h>
#include <stdint.h>

typedef struct mhla_mqar_shape {
    int vocabulary;    /* keys are 1 .. vocabulary/2-1, values vocabulary/2 .. vocabulary-1 */
    int length, pairs; /* L, even; D, 4 D <= L */
    double power;      /* a of the power law a i^(a-1) of distances; 0 = 0.01 */
    int random_filler; /* what is neither pair nor query is any token instead of 0 */
} mhla_mqar_shape;

mhla_status mhla_mqar_check(const mhla_mqar_shape *shape);

/* Sequence `number` of a seed, a function of both and of the shape: ids [L]; labels [L], the value at a query, else -1. The
 * shape is a checked one. */
mhla_status mhla_mqar_make(int32_t *ids, int32_t *labels, const mhla_mqar_shape *shape, uint64_t seed, uint64_t number);

#endif
