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
    for (int i = 0; i < steps; i++) {
        double u = 0.0;
        switch (table) {
        case MHLA_FLOW_EULER: u = spaced(1.0, (double)(float)shifted(0.001, shift), i, steps - 1); break;
        case MHLA_FLOW_DPM: u = 1.0 - spaced(1.0, 0.001, steps - i, steps); break;
        case MHLA_FLOW_UNIPC: u = spaced(1.0, 0.001, i, steps); break;
        case MHLA_FLOW_WAN_UNIPC: u = spaced((double)0.999f, 0.0, i, steps); break;
        case MHLA_FLOW_WAN_DPM: u = spaced(1.0, 0.0, i, steps); break;
        }
        double s = shifted(u, shift);
        if (table == MHLA_FLOW_UNIPC && i == 0 && fabs(s - 1.0) < 1e-6) s -= 1e-6; /* keeps lambda finite */
        time[i] = table == MHLA_FLOW_EULER ? 1000.0 * s : trunc(1000.0 * s);
        sigma[i] = (double)(float)s;
    }
    sigma[steps] = 0.0;
}
