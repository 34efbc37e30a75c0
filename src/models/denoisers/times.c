/* Times as sinusoids. */
#include "models/denoisers/times.h"

#include <math.h>

#include "core/status.h"
#include "nn/op.h"

/* [cos, sin], in double because float32 would be off by 3e-5 at the last steps. */
static void fill(float numbers[MHLA_TIME_NUMBERS], double time) {
    enum { HALF = MHLA_TIME_NUMBERS / 2 };
    for (int i = 0; i < HALF; i++) {
        const double angle = time * exp(-log(10000.0) * i / HALF);
        numbers[i] = (float)cos(angle);
        numbers[HALF + i] = (float)sin(angle);
    }
}

mhla_tensor *mhla_denoiser_times(mhla_tape *t, const float *times, double scale, int64_t B) {
    const int dry = mhla_tape_dry(t);
    float *numbers = mhla_tape_floats(t, B * MHLA_TIME_NUMBERS);
    if (numbers == NULL) return NULL;
    MHLA_NEED(t, dry || times, "times is NULL");
    for (int64_t b = 0; b < B && !dry; b++) {
        MHLA_NEED(t, isfinite(times[b]), "times[%lld] is not finite", (long long)b);
        fill(numbers + b * MHLA_TIME_NUMBERS, scale * (double)times[b]);
    }
    return mhla_nn_input(t, numbers, MHLA_SHAPE(B, MHLA_TIME_NUMBERS));
}
