/* Sequences of multi-query associative recall, from a seed. */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "core/status.h"
#include "train/mqar.h"

enum { LONGEST = 1 << 20 };

mhla_status mhla_mqar_check(const mhla_mqar_shape *s) {
    if (s->length < 4 || s->length % 2 || s->length > LONGEST)
        return mhla_fail(MHLA_EINVAL, "length is %d: expected an even number, 4 to %d", s->length, LONGEST);
    if (s->pairs < 1 || s->pairs > s->length / 4)
        return mhla_fail(MHLA_EINVAL, "pairs is %d: expected 1 to a quarter of the length, %d", s->pairs,
                         s->length / 4);
    if (s->vocabulary <= s->length || s->vocabulary / 2 - 1 < s->pairs)
        return mhla_fail(MHLA_EINVAL, "vocabulary is %d: expected more than the length, %d", s->vocabulary, s->length);
    if (s->power < 0.0 || s->power > 10.0) return mhla_fail(MHLA_EINVAL, "power is %g: expected 0 to 10", s->power);
    return MHLA_OK;
}

/* n different numbers out of first .. first+count-1. n is small beside count, or count is small. */
static void draw_different(int32_t *out, int n, int32_t first, int count, mhla_rng *r) {
    for (int i = 0; i < n;) {
        out[i] = first + (int32_t)mhla_rng_below(r, (uint32_t)count);
        int j = 0;
        while (out[j] != out[i]) j++;
        i += j == i;
    }
}

typedef struct arrival {
    double time;
    int32_t slot;
} arrival;

static int earlier(const void *a, const void *b) {
    const arrival *x = a, *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

/* slots [n] out of 0 .. space-1, one after the other without putting back, slot i with weight (i+1)^(a-1): of clocks that
 * tick at these rates, the order of their first ticks. */
static void draw_slots(arrival *clocks, int space, double power, mhla_rng *r) {
    for (int i = 0; i < space; i++) {
        const double u = ((double)mhla_rng_next(r) + 0.5) * 0x1p-32;
        clocks[i] = (arrival){-log(u) * pow((double)i + 1.0, 1.0 - power), i};
    }
    qsort(clocks, (size_t)space, sizeof *clocks, earlier);
}

mhla_status mhla_mqar_make(int32_t *ids, int32_t *labels, const mhla_mqar_shape *s, uint64_t seed, uint64_t number) {
    const int D = s->pairs, half = s->vocabulary / 2, space = (s->length - 2 * D) / 2;
    const double power = s->power > 0.0 ? s->power : 0.01;
    mhla_rng r = mhla_rng_make(seed, number, ((uint64_t)s->length << 32) | (uint64_t)D, MHLA_PLACE_RECALL);
    int32_t *pairs = malloc(2 * (size_t)D * sizeof *pairs); /* keys, then values */
    arrival *clocks = malloc((size_t)space * sizeof *clocks);
    if (pairs == NULL || clocks == NULL) {
        free(pairs);
        free(clocks);
        return mhla_fail(MHLA_ENOMEM, "no memory for %d pairs", D);
    }
    draw_different(pairs, D, 1, half - 1, &r);
    draw_different(pairs + D, D, half, s->vocabulary - half, &r);
    draw_slots(clocks, space, power, &r);
    for (int t = 0; t < s->length; t++) {
        ids[t] = 0;
        labels[t] = -1;
    }
    for (int i = 0; i < D; i++) {
        const int at = 2 * D + 2 * clocks[i].slot;
        ids[2 * i] = ids[at] = pairs[i];
        ids[2 * i + 1] = labels[at] = pairs[D + i];
    }
    for (int t = 0; t < s->length && s->random_filler; t++)
        if (ids[t] == 0) ids[t] = (int32_t)mhla_rng_below(&r, (uint32_t)s->vocabulary);
    free(pairs);
    free(clocks);
    return MHLA_OK;
}
