/* What several processes of one program say to each other. Without a launcher there is one process, and every call is trivial. Under
 * mpirun or srun a plugin with MPI is opened; the library itself does not know MPI.
 *
 * One thread of a process may call these functions. Calls that are marked collective are made by all ranks in the same order. */
#ifndef MHLA_DIST_DIST_H
#define MHLA_DIST_DIST_H

#include <mhla/mhla.h>

/* Joins the other processes if a launcher has started this one; MHLA_EIO where they cannot be reached. Once per process. */
mhla_status mhla_dist_begin(void);
/* code 0 is collective: it waits for the others. Else this process has told its failure and will exit with that code; the others exit
 * with it, too, and say nothing. */
void mhla_dist_end(int code);
/* Asked before a failure is told: one that all ranks have, or know of by mhla_dist_agree, is told by rank 0. Another rank waits a
 * moment here, and is ended here if rank 0 has told it; else 1. */
int mhla_dist_tells(void);

int mhla_dist_rank(void);
int mhla_dist_ranks(void);
int mhla_dist_launched(void);     /* by a launcher, maybe as the only process */
int mhla_dist_local(void);        /* ranks on this host */
const char *mhla_dist_name(void); /* "Open MPI v4.1.4"; "" for one process */
const char *mhla_dist_host(void);

/* Collective. `bytes` of each rank into all [ranks][bytes]; those of rank `root` to all. */
mhla_status mhla_dist_gather_all(void *all, const void *mine, size_t bytes);
mhla_status mhla_dist_spread(void *data, size_t bytes, int root);
/* Collective. rows [n][bytes] of which this rank has filled rank, rank + ranks, ..: all of them, at all ranks. */
mhla_status mhla_dist_merge(void *rows, int64_t n, size_t bytes);
/* Collective: MHLA_OK where all have it, else the failure of the lowest rank that has one, with its message, at all ranks. */
mhla_status mhla_dist_agree(mhla_status mine);

/* Collective: MHLA_EINVAL at all ranks where the text of one is not that of rank 0; `what` names it: "the recipe". */
mhla_status mhla_dist_same(const char *what, const char *text);

/* From here to mhla_dist_together this process works as if it were alone: one rank, no launcher. For work that ranks divide among them
 * as a whole, such as trainings. Neither is collective. */
void mhla_dist_alone(void);
void mhla_dist_together(void);

/* Messages between two ranks, under way until mhla_dist_wait. Those of one tag arrive in the order of sending. */
typedef struct mhla_message {
    void *handle; /* NULL: nothing is under way */
} mhla_message_t;
mhla_status mhla_dist_send(mhla_message_t *m, const void *data, size_t bytes, int to, int tag);
mhla_status mhla_dist_receive(mhla_message_t *m, void *data, size_t bytes, int from, int tag);
mhla_status mhla_dist_wait(mhla_message_t *list, int count);
/* Are all of them done? Also what lets messages move on during long work. */
mhla_status mhla_dist_test(mhla_message_t *list, int count, int *all);

/* What the user may do after a process was lost, in one sentence; told by whoever notices. */
void mhla_dist_advise(const char *text);

#endif
