/* Tables of noise levels of flow samplers, as the library of each has them. */
#ifndef MHLA_DIFFUSION_SIGMAS_H
#define MHLA_DIFFUSION_SIGMAS_H

enum mhla_flow_table {
    MHLA_FLOW_EULER, /* FlowMatchEuler of the public library */
    MHLA_FLOW_DPM,   /* its DPM-Solver++ */
    MHLA_FLOW_UNIPC, /* its UniPC */
    MHLA_FLOW_WAN_UNIPC,
    MHLA_FLOW_WAN_DPM /* Wan's own code */
};

/* sigma [steps+1], rounded to float32 as the libraries do, ends with 0; time [steps], what the network is told: 1000 sigma,
 * cut to a whole number by all but Euler's. */
void mhla_flow_sigmas(double *sigma, double *time, enum mhla_flow_table table, int steps, double shift);

#endif
