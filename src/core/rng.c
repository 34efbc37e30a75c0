/* Many normal numbers at a time: two of a pair of words, four of a block. And that no two places are the same. */
#include "core/rng.h"

/* Never called: two places that overlap are two equal cases, which is an error. */
__attribute__((unused)) static int places_are_distinct(uint32_t place) {
    switch (place) {
#define X(NAME, first, count) case (first)...(first) + (count)-1:
        MHLA_PLACE_LIST(X)
#undef X
        return 1;
    default: return 0;
    }
}

void mhla_rng_normals(const mhla_rng *r, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t w[4];
        float four[4];
        mhla_rng_block(r, (uint32_t)(i / 4), w);
        for (int k = 0; k < 4; k += 2) {
            const double radius = sqrt(-2.0 * log(((double)w[k] + 1.0) * 0x1p-32));
            const double angle = 6.283185307179586 * 0x1p-32 * (double)w[k + 1];
            four[k] = (float)(radius * cos(angle));
            four[k + 1] = (float)(radius * sin(angle));
        }
        for (int64_t k = 0; k < 4 && i + k < n; k++) out[i + k] = four[k];
    }
}
