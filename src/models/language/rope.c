#include "models/language/rope.h"

#include <math.h>

static const double turn = 6.283185307179586476925286766559;

/* Between turning often enough to be left alone and so seldom that all is divided, a mean of both by how often. */
static double of_llama3(const mhla_scaling *s, double frequency) {
    const double turns = s->original * frequency / turn;
    if (turns > s->high) return 1.0;
    if (turns < s->low) return s->factor;
    const double smooth = (turns - s->low) / (s->high - s->low);
    return 1.0 / ((1.0 - smooth) / s->factor + smooth);
}

/* The pair that turns so many times in `original` tokens, a fraction in general. */
static double pair_of(const mhla_scaling *s, double turns, double theta, int dims) {
    return dims * log(s->original / (turns * turn)) / (2.0 * log(theta));
}

static double of_yarn(const mhla_scaling *s, double theta, int dims, int j) {
    double low = pair_of(s, s->beta_fast, theta, dims), high = pair_of(s, s->beta_slow, theta, dims);
    if (!s->exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, dims - 1);
    if (low == high) high += 0.001;
    const double ramp = fmin(fmax((j - low) / (high - low), 0.0), 1.0);
    return 1.0 / (ramp / s->factor + 1.0 - ramp);
}

void mhla_scaling_divisors(double *divisors, const mhla_scaling *s, double theta, int dims) {
    for (int j = 0; j < dims / 2; j++) switch (s->kind) {
        case MHLA_SCALING_NONE: divisors[j] = 1.0; break;
        case MHLA_SCALING_LINEAR: divisors[j] = s->factor; break;
        case MHLA_SCALING_LLAMA3: divisors[j] = of_llama3(s, pow(theta, -2.0 * j / dims)); break;
        case MHLA_SCALING_YARN: divisors[j] = of_yarn(s, theta, dims, j); break;
        case MHLA_SCALING_LIST: divisors[j] = (double)s->list[j]; break;
        }
}

void mhla_scaling_rows(float *cosine, float *sine, const mhla_scaling *s, double theta, int dims, int64_t first,
                       int64_t n) {
    const int half = dims / 2;
    const double size = s->attention != 0.0 ? s->attention : 1.0;
    double frequency[MHLA_ROPE_PAIRS];
    mhla_scaling_divisors(frequency, s, theta, dims);
    for (int j = 0; j < half; j++) frequency[j] = pow(theta, -2.0 * j / dims) / frequency[j];
    for (int64_t row = 0; row < n; row++)
        for (int j = 0; j < half; j++) {
            const double angle = (double)(first + row) * frequency[j];
            cosine[row * half + j] = (float)(size * cos(angle));
            sine[row * half + j] = (float)(size * sin(angle));
        }
}
