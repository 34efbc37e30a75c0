/* mhla-mpi.so: the transport over MPI. The only file that includes mpi.h. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/transport.h"

/* A message of more bytes than an int counts goes as several. */
enum { PIECE = 1 << 30 };

typedef struct handle {
    int count, failed;
    MPI_Request requests[];
} handle;

static int begin(int *rank, int *ranks, int *local, char name[MHLA_TRANSPORT_TEXT], char problem[MHLA_TRANSPORT_TEXT]) {
    int given, length = 0;
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    MPI_Comm host;
    *problem = '\0';
    /* Signals are the program's: a mapped file that became shorter is told by it. */
    setenv("OMPI_MCA_opal_signal", "", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS) {
        snprintf(problem, MHLA_TRANSPORT_TEXT, "MPI_Init_thread failed");
        return 1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
    MPI_Get_library_version(text, &length);
    snprintf(name, MHLA_TRANSPORT_TEXT, "%.*s", (int)strcspn(text, ",\n"), text);
    *local = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, *rank, MPI_INFO_NULL, &host) == MPI_SUCCESS) {
        MPI_Comm_size(host, local);
        MPI_Comm_free(&host);
    }
    return 0;
}

static void end(void) { MPI_Finalize(); }

static void abandon(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static handle *make(size_t bytes) {
    const size_t count = bytes ? (bytes + PIECE - 1) / PIECE : 1;
    handle *h = calloc(1, sizeof *h + count * sizeof *h->requests);
    if (h == NULL) return NULL;
    h->count = (int)count;
    for (int i = 0; i < h->count; i++) h->requests[i] = MPI_REQUEST_NULL;
    return h;
}

static int size_of(size_t bytes, int i) {
    const size_t left = bytes - (size_t)i * PIECE;
    return left < PIECE ? (int)left : PIECE;
}

static void *send_to(const void *data, size_t bytes, int to, int tag) {
    handle *h = make(bytes);
    for (int i = 0; h && i < h->count; i++)
        h->failed |= MPI_Isend((const char *)data + (size_t)i * PIECE, size_of(bytes, i), MPI_BYTE, to, tag,
                               MPI_COMM_WORLD, &h->requests[i]) != MPI_SUCCESS;
    return h;
}

static void *receive(void *data, size_t bytes, int from, int tag) {
    handle *h = make(bytes);
    for (int i = 0; h && i < h->count; i++)
        h->failed |= MPI_Irecv((char *)data + (size_t)i * PIECE, size_of(bytes, i), MPI_BYTE, from, tag, MPI_COMM_WORLD,
                               &h->requests[i]) != MPI_SUCCESS;
    return h;
}

static void *gather_all(void *all, const void *mine, size_t bytes) {
    handle *h = bytes <= PIECE ? make(1) : NULL;
    if (h)
        h->failed = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD,
                                   &h->requests[0]) != MPI_SUCCESS;
    return h;
}

static void *spread(void *data, size_t bytes, int root) {
    handle *h = make(bytes);
    for (int i = 0; h && i < h->count; i++)
        h->failed |= MPI_Ibcast((char *)data + (size_t)i * PIECE, size_of(bytes, i), MPI_BYTE, root, MPI_COMM_WORLD,
                                &h->requests[i]) != MPI_SUCCESS;
    return h;
}

static int done(void *p) {
    handle *h = p;
    int all = 0;
    if (!h->failed && MPI_Testall(h->count, h->requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) h->failed = 1;
    if (!h->failed && !all) return 0;
    const int result = h->failed ? -1 : 1;
    free(h);
    return result;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#ifdef OPEN_MPI
#define BUILT_FOR "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION)
#elif defined MPICH_VERSION
#define BUILT_FOR "MPICH " MPICH_VERSION
#else
#define BUILT_FOR "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION)
#endif

extern const mhla_transport mhla_transport_mpi;
__attribute__((visibility("default"))) const mhla_transport mhla_transport_mpi = {
    .abi = MHLA_TRANSPORT_ABI,
    .built_for = BUILT_FOR,
    .begin = begin,
    .end = end,
    .abandon = abandon,
    .send = send_to,
    .receive = receive,
    .gather_all = gather_all,
    .spread = spread,
    .done = done,
};
