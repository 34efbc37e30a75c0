/* The gradient of a batch that is cut into parts, on one process or on several, with the same bytes for any number of them.
 *
 * The recipe cuts the batch into N parts (train.parts). The gradient is the sum over parts in a fixed binary tree: level by level, node
 * 2i is added to node 2i+1; a node without a neighbour goes up as it is. Rank r of P has the neighbouring parts r N / P to
 * (r+1) N / P - 1 and adds up what lies wholly in them. What is left of the tree is added up by whoever owns the stretch of
 * parameters (mhla_optim_stretch), from the nodes that all ranks have sent. The owner updates its stretches and sends the new values
 * to all. Nothing of this order depends on P.
 *
 * A part in which a parameter had no gradient is not in that parameter's sum. */
#ifndef MHLA_TRAIN_PARTS_H
#define MHLA_TRAIN_PARTS_H

#include "nn/optim.h"

typedef struct mhla_parts mhla_parts;

/* For `parts` >= ranks. params and optim stay the caller's and outlive it. */
mhla_status mhla_parts_create(mhla_parts **parts, mhla_params *params, mhla_optim *optim, int64_t count);
void mhla_parts_free(mhla_parts *x);

/* The parts of this rank: first .. last-1. */
void mhla_parts_own(int64_t count, int rank, int ranks, int64_t *first, int64_t *last);
/* The most memory that sums and messages take. */
size_t mhla_parts_bytes(const mhla_params *params, int64_t count, int ranks);

/* ---- A step: for each own part in order: begin, forward and backward, end. Then reduce, and after it share. ---- */

/* Nothing has a gradient, running statistics are zero. */
void mhla_parts_begin(mhla_parts *x);
/* Before the last forward and backward pass of the last part: gradients are sent while it runs, once they are complete. What a
 * pass needs for that it learns from the one of the step before. */
void mhla_parts_overlap(mhla_parts *x, mhla_tape *tape, const mhla_context *context);
/* batches: how many forward passes the part had. */
mhla_status mhla_parts_end(mhla_parts *x, int64_t part, int64_t batches, const mhla_context *context);

/* Collective: the gradients of the own stretches are complete, has_grad of all, running statistics, the squares of all stretches. */
mhla_status mhla_parts_reduce(mhla_parts *x, const mhla_context *context);
/* Collective: fetches the stretches that others have updated. */
mhla_status mhla_parts_share(mhla_parts *x);

/* The sum of one number for each of n parts, in the order of the tree; changes the list. */
double mhla_parts_sum(double *list, int64_t n);

#endif
