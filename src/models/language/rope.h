/* Rotary frequencies, and how they are stretched so that a model reads further than it was trained at first. Pair j of dims
 * turns by theta^(-2j/dims) per token; every scaling divides that by a number for each pair and multiplies cosines and sines
 * by one number for all. The kinds are those of Hugging Face's rope_scaling; a list also is a GGUF's rope_freqs.weight. */
#ifndef MHLA_MODELS_ROPE_H
#define MHLA_MODELS_ROPE_H

#include <jansson.h>
#include <mhla/mhla.h>
#include <stdint.h>

enum { MHLA_ROPE_PAIRS = 512 }; /* at most */

typedef enum mhla_scaling_kind {
    MHLA_SCALING_NONE,
    MHLA_SCALING_LINEAR, /* all by factor */
    MHLA_SCALING_LLAMA3, /* pairs that turn less than `low` times in `original` tokens by factor, more than `high` not */
    MHLA_SCALING_YARN, /* a ramp over the pairs, from those that turn beta_fast times to those that do beta_slow times */
    MHLA_SCALING_LIST
} mhla_scaling_kind;

typedef struct mhla_scaling {
    mhla_scaling_kind kind;
    double factor;               /* all but LIST */
    double original;             /* LLAMA3, YARN: tokens that it was trained for at first */
    double low, high;            /* LLAMA3 */
    double beta_fast, beta_slow; /* YARN */
    int exact;                   /* YARN: the ends of the ramp are not rounded to whole pairs */
    double attention;            /* of cosines and sines; 0 stands for 1 */
    int count;                   /* LIST */
    float list[MHLA_ROPE_PAIRS];
} mhla_scaling;

/* What the frequencies of pairs 0 .. dims/2-1 are divided by. */
void mhla_scaling_divisors(double *divisors, const mhla_scaling *s, double theta, int dims);

/* Rows first .. first+n-1 of cosines and sines [n, dims/2]. */
void mhla_scaling_rows(float *cosine, float *sine, const mhla_scaling *s, double theta, int dims, int64_t first,
                       int64_t n);

/* rope_config.c: what config.json says of the scaling and of theta, of a model made for `positions` tokens; the object "rope_scaling"
 * that says it again, a new reference, NULL where nothing is scaled. MHLA_ENOTSUP names a kind that is not known. */
mhla_status mhla_rope_read(mhla_scaling *scaling, double *theta, int positions, const json_t *tree, const char *path);
json_t *mhla_rope_tree(const mhla_scaling *s);
/* For mixers whose angles nobody has ever scaled: MHLA_ENOTSUP if config.json asks for it. */
mhla_status mhla_rope_refuse(const json_t *tree, const char *path);
/* Can `dims` of the dims of a head turn, scaled like this? */
mhla_status mhla_rope_check(int dims, int head, double theta, const mhla_scaling *scaling);

#endif
