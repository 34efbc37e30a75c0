/* Notices that another process of the run has ended, or its host: each rank has a connection to rank 0, over which a thread of
 * its own says every second that it lives. MPI alone waits for a lost host for minutes. */
#ifndef MHLA_DIST_WATCH_H
#define MHLA_DIST_WATCH_H

#include <mhla/mhla.h>

/* Collective. */
mhla_status mhla_watch_begin(int rank, int ranks);
/* This process ends as it should; or, with a code, has told its failure, and the others exit with that code at once without a word. */
void mhla_watch_end(int code);

#endif
