/* demo.h - what the parts of `mhla demo` measure. Each part prints its table and fills its fields; the verdict and the page are made from
 * them alone. */
#ifndef MHLA_CLI_DEMO_H
#define MHLA_CLI_DEMO_H

#include <mhla/lm.h>

#include "cli.h"

enum { DEMO_ARMS = 3, DEMO_LENGTHS = 5, DEMO_VERDICTS = 12, DEMO_PATH = 160 };

/* "mhla", "linear", "softmax", and as people write them: "MHLA", ... */
extern const char *const demo_attention[DEMO_ARMS], *const demo_name[DEMO_ARMS];

/* How much of the time of its threads a part got: seconds of the clock, and of the CPU on all threads. */
typedef struct demo_share {
    double wall, cpu;
} demo_share;

typedef struct demo {
    /* options */
    const char *data; /* Fashion-MNIST, or a folder like it */
    int quick;
    int64_t steps;
    char folder[64]; /* of this demo: images, runs, the page */

    /* 1. shipped models */
    mhla_chars sentence; /* ends with a zero; empty: no model. The caller frees it */
    double sentence_seconds, image_seconds;
    char image[DEMO_PATH]; /* "": no model */
    int image_right, image_all;

    /* 2. cost */
    int lengths;
    double tokens[DEMO_LENGTHS], seconds[DEMO_ARMS][DEMO_LENGTHS], bytes[DEMO_ARMS][DEMO_LENGTHS],
        matrix[DEMO_LENGTHS]; /* bytes of T x T scores */
    demo_share cost_share;    /* of the measurements from 4,096 tokens on, which keep all threads at work */

    /* 3. learning */
    int learned; /* arms that are trained and tested */
    double accuracy[DEMO_ARMS], learn_seconds[DEMO_ARMS];
    int64_t test_images, parameters[DEMO_ARMS], batch;
    double *step, *loss[DEMO_ARMS]; /* [steps], the caller frees them */
    demo_share learn_share;         /* of all trainings */
    int threads;

    /* 4. attention */
    int looked; /* arms that are analysed */
    double rank[DEMO_ARMS], effective[DEMO_ARMS], entropy[DEMO_ARMS], own[DEMO_ARMS];
    int64_t bound[DEMO_ARMS], attention_tokens;
    int grid[2], query;
    float *map[DEMO_ARMS]; /* [grid], what the query attends to; the caller frees them */
    char seen[DEMO_PATH];  /* the test image */

    char verdict[DEMO_VERDICTS][400];
    int verdicts;
} demo;

/* Each prints a section. They return an exit code; CLI_OK: go on. A missing model is not a failure. */
int demo_models(demo *d);
int demo_cost(demo *d);
int demo_learn(demo *d);
int demo_look(demo *d);

/* Adds the time since the last call with begin = 1. */
void demo_clock(demo_share *share, int begin);

/* The sentences, from the figures; and the page. */
void demo_judge(demo *d);
mhla_status demo_page(const demo *d, const char *path);

#endif
