/* bench.h - the parts of `mhla bench`: what was asked for, and one measured row on its way to the page. */
#ifndef MHLA_CLI_BENCH_H
#define MHLA_CLI_BENCH_H

#include "cli.h"

/* SIMULATE: rows are kept until all numbers of workers have been simulated. */
typedef enum bench_format { BENCH_TEXT, BENCH_JSON, BENCH_ENGINE, BENCH_SIMULATE } bench_format;

typedef struct bench {
    const mhla_context *context;
    bench_format format;
    double seconds; /* per row */
    int dtypes;     /* bit 1 << mhla_dtype */
    int operators;  /* bit 1 << bench_operator */
    int names;      /* what is selected: groups and shapes by name; none of a sort = all of it */
    char **name;
    int begun; /* the page has its head: it waits for the first row, lest a failure leave one alone */
    int rated; /* it has rows with GFLOP/s */
    int notes; /* footnotes that the table needs, bits of bench_note */
} bench;

typedef enum bench_operator {
    OPERATOR_MHLA,
    OPERATOR_LINEAR,
    OPERATOR_SOFTMAX,
    OPERATOR_FOCUSED, /* from here on: bidirectional only, no whole models */
    OPERATOR_INLINE,
    OPERATOR_MALA,
    OPERATOR_RALA,
    OPERATOR_SIMPLE_GLA, /* from here on: causal only */
    OPERATOR_GLA,
    OPERATOR_GATED_DELTA,
    OPERATOR_RETNET, /* from here on: whole language models only */
    OPERATOR_MAMBA,
    OPERATOR_MAMBA2,
    OPERATOR_GATED_DELTANET,
    OPERATORS
} bench_operator;

typedef enum bench_note {
    NOTE_HEADS = 1,   /* measured on fewer heads, multiplied */
    NOTE_TOO_LONG = 2 /* not measured */
} bench_note;

typedef struct bench_row {
    const char *group, *shape; /* "forward", "deit-t" */
    const char *variant;       /* "mhla" */
    char sizes[64];            /* "32x3x256x64x64, 16 blocks" */
    mhla_dtype dtype;
    double flops;     /* of one call as printed */
    double multiple;  /* what was timed is 1/multiple of the call; 0 = 1 */
    size_t workspace; /* bytes; of whole models the most that the process has had */
    double images;    /* of one call, for whole models; else 0 */
    timing time;
    bench_note note;
} bench_row;

/* Is the group, the shape in it, asked for? */
int bench_wants(const bench *b, const char *group, const char *shape);

/* Prints the row and frees its samples. Under a new group a head comes first. */
void bench_report(bench *b, bench_row *row);

/* Are rows compared with the machine's peak? Not where a harness reads them, or they are simulated. */
static inline int bench_rates(const bench *b) { return b->format == BENCH_TEXT || b->format == BENCH_JSON; }

enum { BENCH_SIMULATED = 9 }; /* numbers of workers, 1 among them */
/* "8,32" to 1, 8, 32: how many; 0 if the list is wrong. Then all rows for each, and the page. */
int bench_simulate_parse(int *workers, const char *list);
mhla_status bench_simulate(bench *b, const int *workers, int n, mhla_status (*all)(bench *b, const void *arg),
                           const void *arg);
/* A row's best time, in seconds. */
void bench_simulated(const char *group, const char *shape, const char *variant, mhla_dtype dtype, double best);

/* The page's head, printed once, before the first row; its end. */
void bench_begin(bench *b);
void bench_end(bench *b);

/* The bench's own peak, measured once, to estimate how long something will take. */
double bench_estimate(const bench *b, double flops, mhla_dtype dtype);

/* Groups with rows of their own kind. */
mhla_status bench_layers(bench *b);
mhla_status bench_decode(bench *b);
mhla_status bench_mamba(bench *b);
mhla_status bench_models(bench *b);
mhla_status bench_resolution(bench *b);
mhla_status bench_lm(bench *b);
int bench_layers_has(const char *shape);
int bench_mamba_has(const char *shape);
int bench_decode_has(const char *shape);
int bench_models_has(const char *shape);
int bench_resolution_has(const char *shape);
int bench_lm_has(const char *shape);

/* mhla bench mpi, which has options of its own; argv behind that word. */
int bench_mpi(int argc, char **argv);

extern const char *const bench_dtype_names[];

#endif
