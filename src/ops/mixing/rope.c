/* Rotary tables over grids of one to three axes, for mhla_call's rope_cos and rope_sin. */
#include <math.h>

#include "core/status.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return mhla_fail(MHLA_EINVAL, __VA_ARGS__);                                                  \
    } while (0)

mhla_status mhla_rope_table(float *cos_table, float *sin_table, int axes, const int *grid, const int *dims,
                            double base) {
    CHECK(cos_table != NULL, "cos is NULL");
    CHECK(sin_table != NULL, "sin is NULL");
    CHECK(axes >= 1 && axes <= 3, "axes is %d: expected 1 to 3", axes);
    CHECK(grid != NULL, "grid is NULL");
    CHECK(dims != NULL, "dims is NULL");
    CHECK(base > 0.0 && isfinite(base), "base is %g: expected a positive number", base);
    int64_t positions = 1, pairs = 0;
    for (int a = 0; a < axes; a++) {
        CHECK(grid[a] >= 1, "grid[%d] is %d: expected 1 or more", a, grid[a]);
        CHECK(dims[a] >= 0 && dims[a] % 2 == 0, "dims[%d] is %d: expected an even number, 0 or more", a, dims[a]);
        CHECK(positions <= INT64_MAX / 4096 / grid[a], "grid multiplies to more positions than memory can hold");
        positions *= grid[a];
        pairs += dims[a] / 2;
    }
    CHECK(pairs >= 1 && pairs <= 512, "dims sum to %lld: expected 2 to 1024", 2 * (long long)pairs);
    CHECK(positions <= INT64_MAX / 64 / pairs, "grid multiplies to %lld positions: too many", (long long)positions);

    /* Row (o, p, n) is position p of axis a, o of the axes before and n of those after it, so that each angle is
     * computed once and written wherever it is needed. */
    int64_t outer = 1, first = 0;
    for (int a = 0; a < axes; a++) {
        const int64_t inner = positions / outer / grid[a];
        for (int64_t j = 0; j < dims[a] / 2; j++) {
            const double frequency = pow(base, -2.0 * (double)j / dims[a]);
            for (int64_t p = 0; p < grid[a]; p++) {
                const float c = (float)cos((double)p * frequency), s = (float)sin((double)p * frequency);
                for (int64_t o = 0; o < outer; o++)
                    for (int64_t n = 0; n < inner; n++) {
                        const int64_t at = ((o * grid[a] + p) * inner + n) * pairs + first + j;
                        cos_table[at] = c;
                        sin_table[at] = s;
                    }
            }
        }
        outer *= grid[a];
        first += dims[a] / 2;
    }
    return MHLA_OK;
}
