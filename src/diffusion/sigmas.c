/* The spacing follows numpy's linspace to the last bit, because a time is cut to a whole number, and 399 or 400 is decided
 * by that bit: start + i * ((stop - start) / n), in this order, without fused multiply-adds. */
#include "diffusion/sigmas.h"

#include <math.h>

static double spaced(double start, double stop, int i, int n) {
    if (n == 0) return start;
    const double step = (stop - start) / n;
    return i == n ? stop : start + i * step;
}

static double shifted(double u, double shift) { return shift * u / (1.0 + (shift - 1.0) * u); }

void mhla_flow_sigmas(double *sigma, double *time, enum mhla_flow_table table, int steps, double shift) {
    /* Euler's lower end is shifted by itself first, in float32 */
    const float low = (float)shift * 0.001f / (1.0f + ((float)shift - 1.0f) * 0.001f);
    for (int i = 0; i < steps; i++) {
        double u = 0.0;
        switch (table) {
        case MHLA_FLOW_EULER: u = spaced(1000.0, 1000.0 * (double)low, i, steps - 1) / 1000.0; break;
        case MHLA_FLOW_DPM: u = 1.0 - spaced(1.0, 0.001, steps - i, steps); break;
        case MHLA_FLOW_UNIPC: u = spaced(1.0, 0.001, i, steps); break;
        case MHLA_FLOW_WAN_UNIPC: u = spaced((double)0.999f, 0.0, i, steps); break;
        case MHLA_FLOW_WAN_DPM: u = spaced(1.0, 0.0, i, steps); break;
        }
        double s = shifted(u, shift);
        if (table == MHLA_FLOW_UNIPC && i == 0 && fabs(s - 1.0) < 1e-6) s -= 1e-6; /* keeps lambda finite */
        sigma[i] = (double)(float)s;
        time[i] = table == MHLA_FLOW_EULER ? (double)(1000.0f * (float)s) : trunc(1000.0 * s);
    }
    sigma[steps] = 0.0;
}
