/* check.h - the parts of `mhla check`: a row of its table, and the groups of cases that fill it. */
#ifndef MHLA_CLI_CHECK_H
#define MHLA_CLI_CHECK_H

#include "cli.h"

enum { CHECK_ISAS = 8 };

typedef struct check_isas {
    int count;
    char name[CHECK_ISAS][16];
} check_isas;

/* One line of the table: a group of cases in one dtype. Each case runs on every instruction set; errors are the largest
 * difference from the reference over the reference's largest magnitude, tensor by tensor. */
typedef struct check_row {
    const char *group;
    mhla_dtype dtype;
    double limit;
    int cases;
    double error[CHECK_ISAS];
    char worst[CHECK_ISAS][96]; /* which tensor of which case had it */
} check_row;

/* Folds the error of `got` (dtype, [count]) against `want` into the row; NaN counts as infinite. */
void check_compare(check_row *row, int isa, const char *tensor, const char *name, const void *got, mhla_dtype dtype,
                   const double *want, int64_t count);

/* A group fills its row: all its cases, or the first few if brief. A status stops the check. */
typedef mhla_status (*check_group_fn)(check_row *row, const check_isas *isas, int brief);

mhla_status check_bidirectional(check_row *row, const check_isas *isas, int brief);
mhla_status check_cross(check_row *row, const check_isas *isas, int brief);
mhla_status check_causal(check_row *row, const check_isas *isas, int brief);
mhla_status check_linear(check_row *row, const check_isas *isas, int brief);
mhla_status check_softmax(check_row *row, const check_isas *isas, int brief);
mhla_status check_decay(check_row *row, const check_isas *isas, int brief);
mhla_status check_vision(check_row *row, const check_isas *isas, int brief);
mhla_status check_streaming(check_row *row, const check_isas *isas, int brief);
mhla_status check_mamba(check_row *row, const check_isas *isas, int brief);
mhla_status check_layers(check_row *row, const check_isas *isas, int brief);

#endif
