/* What a transport offers: the table between the library and the plugin mhla-mpi.so, which alone knows MPI. Bytes go from one process to
 * another or to all; nothing is added up on the way, because an order of sums that MPI may choose would show in the weights. */
#ifndef MHLA_DIST_TRANSPORT_H
#define MHLA_DIST_TRANSPORT_H

#include <stddef.h>

enum { MHLA_TRANSPORT_ABI = 1, MHLA_TRANSPORT_TEXT = 128 };

typedef struct mhla_transport {
    int abi;               /* MHLA_TRANSPORT_ABI of the header that it was compiled with; stays the first field */
    const char *built_for; /* version of the MPI whose header it was compiled with */

    /* 0, or another number: `problem` then has a sentence. `name`: of the MPI that is at work. local: ranks on this host. */
    int (*begin)(int *rank, int *ranks, int *local, char name[MHLA_TRANSPORT_TEXT], char problem[MHLA_TRANSPORT_TEXT]);
    void (*end)(void);         /* all of them end */
    void (*abandon)(int code); /* this process ends now, and all others with it */

    /* Begin something and return its handle, or NULL. `done` frees the handle once it is done; < 0: it failed. */
    void *(*send)(const void *data, size_t bytes, int to, int tag);
    void *(*receive)(void *data, size_t bytes, int from, int tag);
    void *(*gather_all)(void *all, const void *mine, size_t bytes); /* `bytes` of each rank, in order of rank */
    void *(*spread)(void *data, size_t bytes, int root);
    int (*done)(void *handle);
} mhla_transport;

/* The plugin's only symbol. */
#define MHLA_TRANSPORT_SYMBOL "mhla_transport_mpi"

#endif
