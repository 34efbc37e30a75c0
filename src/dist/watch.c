/* The connections to rank 0 and the thread that looks after them. One byte is one message: alive, ends as it should, has failed and
 * told it, lost. Only this thread reads them; it ends the process without asking anyone, because the main thread may wait for a
 * message that never comes. Checkpoints get their names when they are complete, so nothing is half-written by that. */
#include "dist/watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/status.h"
#include "dist/dist.h"

enum { ADDRESSES = 8, BEAT_MS = 1000 };
static const double patience = 7.0; /* seconds without a sign of life */
static const double joining = 20.0; /* for all connections */

enum { ALIVE = 'a', ENDS = 'e', FAILED = 'f', LOST = 'l' };

/* Where rank 0 listens, and what a connection has to begin with. */
typedef struct meeting {
    uint32_t address[ADDRESSES];
    int32_t count;
    uint16_t port;
    unsigned char token[16];
    char host[128];
} meeting;

typedef struct hello {
    unsigned char token[16];
    int32_t rank, pid;
    char host[128];
} hello;

typedef struct peer {
    int fd; /* -1: has ended */
    double heard;
    hello who;
} peer;

static struct {
    int rank, ranks, count;
    peer *peers; /* of rank 0 [ranks], itself unused; of others one, rank 0 */
    pthread_t thread;
    int running;
    atomic_int ending;
    pid_t parent;
    char advice[1024];
} watch;

void mhla_dist_advise(const char *text) { snprintf(watch.advice, sizeof watch.advice, "%s", text); }

/* ---- What the thread does ---- */

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *format, ...) {
    char text[2048] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t n = strnlen(text, sizeof text - 2);
    if (*watch.advice) snprintf(text + n, sizeof text - n, " %s", watch.advice);
    n = strnlen(text, sizeof text - 2);
    text[n++] = '\n';
    (void)!write(STDERR_FILENO, text, n);
    for (int i = 0; i < watch.count; i++)
        if (watch.peers[i].fd >= 0) (void)!send(watch.peers[i].fd, &(char){LOST}, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    _exit(1);
}

static const char *time_text(double seconds, char text[48]) {
    snprintf(text, 48, "has not answered for %.0f s", seconds);
    return text;
}

/* `how` says what became of it. */
static void lose(const peer *p, const char *how) {
    if (watch.rank == 0)
        give_up("mhla: rank %d (%s, process %d) %s; the other ranks stop.", p->who.rank, p->who.host, p->who.pid, how);
    if (watch.rank == 1) give_up("mhla: rank 0 (%s) %s; the other ranks stop.", p->who.host, how);
    _exit(1); /* rank 1 tells it */
}

/* 0: it has gone, as it should. */
static int hear(peer *p) {
    char bytes[64];
    const ssize_t n = recv(p->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    if (n <= 0) lose(p, "ended unexpectedly");
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == LOST) _exit(1);
        if (bytes[i] == FAILED) {
            const char word[2] = {FAILED, i + 1 < n ? bytes[i + 1] : 1};
            for (int k = 0; k < watch.count; k++) /* rank 0 passes it on */
                if (watch.peers[k].fd >= 0) (void)!send(watch.peers[k].fd, word, 2, MSG_NOSIGNAL | MSG_DONTWAIT);
            _exit((unsigned char)word[1]);
        }
        if (bytes[i] == ENDS) {
            close(p->fd);
            p->fd = -1;
            return 0;
        }
    }
    p->heard = mhla_seconds();
    return 1;
}

static void *look(void *unused) {
    (void)unused;
    struct pollfd *list = calloc((size_t)watch.count, sizeof *list);
    double beaten = 0.0, looked = mhla_seconds();
    while (list && !atomic_load(&watch.ending)) {
        for (int i = 0; i < watch.count; i++) list[i] = (struct pollfd){.fd = watch.peers[i].fd, .events = POLLIN};
        poll(list, (nfds_t)watch.count, BEAT_MS / 4);
        const double now = mhla_seconds();
        if (atomic_load(&watch.ending)) break;
        /* This process itself was stopped for a while: what others have said meanwhile is still to be read. */
        for (int i = 0; now - looked > 3.0 && i < watch.count; i++) watch.peers[i].heard = now;
        looked = now;
        for (int i = 0; i < watch.count; i++) {
            peer *p = &watch.peers[i];
            if (p->fd < 0) continue;
            char text[48];
            if ((list[i].revents && !hear(p)) || p->fd < 0) continue;
            if (now - p->heard > patience) lose(p, time_text(now - p->heard, text));
        }
        if (now - beaten > 1e-3 * BEAT_MS) {
            for (int i = 0; i < watch.count; i++)
                if (watch.peers[i].fd >= 0)
                    (void)!send(watch.peers[i].fd, &(char){ALIVE}, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            beaten = now;
        }
        if (getppid() != watch.parent) {
            if (watch.rank == 0) give_up("mhla: the launcher ended; all ranks stop.");
            _exit(1);
        }
    }
    free(list);
    return NULL;
}

/* ---- Meeting ---- */

static int listen_anywhere(meeting *m) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t length = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &length) != 0) {
        close(fd);
        return -1;
    }
    m->port = at.sin_port;
    m->address[m->count++] = htonl(INADDR_LOOPBACK);
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) == 0)
        for (const struct ifaddrs *i = list; i && m->count < ADDRESSES; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK) &&
                (i->ifa_flags & IFF_UP))
                m->address[m->count++] = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(list);
    return fd;
}

static int wait_for(int fd, short events, double until) {
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        const double left = until - mhla_seconds();
        if (left <= 0.0) return 0;
        const int n = poll(&p, 1, (int)(1e3 * left) + 1);
        if (n > 0) return 1;
        if (n < 0 && errno != EINTR) return 0;
    }
}

static int take_all(int fd, void *to, size_t bytes, double until) {
    for (size_t at = 0; at < bytes;) {
        if (!wait_for(fd, POLLIN, until)) return 0;
        const ssize_t n = recv(fd, (char *)to + at, bytes - at, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return 0;
        if (n > 0) at += (size_t)n;
    }
    return 1;
}

static int connect_to(uint32_t address, uint16_t port, double until) {
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int problem = 0;
    socklen_t length = sizeof problem;
    if (fd < 0) return -1;
    if ((connect(fd, (const struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) ||
        !wait_for(fd, POLLOUT, until) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &length) != 0 || problem) {
        close(fd);
        return -1;
    }
    fcntl(fd, F_SETFL, 0);
    return fd;
}

/* To the first address that answers; the loopback only on rank 0's own host, where it is the first. */
static mhla_status meet(const meeting *m) {
    peer *p = &watch.peers[0];
    hello mine = {.rank = watch.rank, .pid = (int32_t)getpid()};
    memcpy(mine.token, m->token, sizeof mine.token);
    snprintf(mine.host, sizeof mine.host, "%s", mhla_dist_host());
    p->who.rank = 0;
    snprintf(p->who.host, sizeof p->who.host, "%s", m->host);
    const int here = strcmp(m->host, mine.host) == 0;
    for (int i = !here; i < m->count && p->fd < 0; i++)
        p->fd = connect_to(m->address[i], m->port, mhla_seconds() + 3.0);
    if (p->fd < 0 && !here) p->fd = connect_to(m->address[0], m->port, mhla_seconds() + 1.0);
    if (p->fd < 0 || send(p->fd, &mine, sizeof mine, MSG_NOSIGNAL) != (ssize_t)sizeof mine)
        return mhla_fail(MHLA_EIO, "rank 0 on %s cannot be reached over TCP from %s", m->host, mine.host);
    return MHLA_OK;
}

static mhla_status welcome(int listening, const meeting *m) {
    const double until = mhla_seconds() + joining;
    for (int missing = watch.ranks - 1; missing > 0;) {
        if (!wait_for(listening, POLLIN, until))
            return mhla_fail(MHLA_EIO, "%d of %d ranks did not connect to rank 0 on %s within %.0f s", missing,
                             watch.ranks, m->host, joining);
        const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        hello who;
        if (fd < 0) continue;
        if (!take_all(fd, &who, sizeof who, mhla_seconds() + 3.0) ||
            memcmp(who.token, m->token, sizeof who.token) != 0 || who.rank < 1 || who.rank >= watch.ranks ||
            watch.peers[who.rank].fd >= 0) {
            close(fd); /* a stranger */
            continue;
        }
        who.host[sizeof who.host - 1] = '\0';
        watch.peers[who.rank].fd = fd;
        watch.peers[who.rank].who = who;
        missing--;
    }
    return MHLA_OK;
}

static mhla_status start_thread(void) {
    sigset_t all, before; /* signals are the business of the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&watch.thread, NULL, look, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch.running = code == 0;
    return code == 0 ? MHLA_OK
                     : mhla_fail(MHLA_ENOMEM, "the thread that watches the other ranks cannot be started: %s",
                                 strerror(code));
}

mhla_status mhla_watch_begin(int rank, int ranks) {
    meeting m = {0};
    int listening = -1;
    mhla_status status = MHLA_OK;
    watch.rank = rank;
    watch.ranks = ranks;
    watch.count = rank == 0 ? ranks : 1;
    watch.parent = getppid();
    watch.peers = calloc((size_t)watch.count, sizeof *watch.peers);
    if (watch.peers == NULL) status = mhla_fail(MHLA_ENOMEM, "no memory for %d ranks", ranks);
    for (int i = 0; watch.peers && i < watch.count; i++) watch.peers[i].fd = -1;
    if (rank == 0 && status == MHLA_OK) {
        snprintf(m.host, sizeof m.host, "%s", mhla_dist_host());
        if (getrandom(m.token, sizeof m.token, 0) != (ssize_t)sizeof m.token || (listening = listen_anywhere(&m)) < 0)
            status = mhla_fail(MHLA_EIO, "rank 0 cannot listen for the others: %s", strerror(errno));
    }
    status = mhla_dist_agree(status);
    if (status == MHLA_OK) status = mhla_dist_spread(&m, sizeof m, 0);
    if (status == MHLA_OK) status = rank == 0 ? welcome(listening, &m) : meet(&m);
    if (listening >= 0) close(listening);
    status = mhla_dist_agree(status);
    for (int i = 0; watch.peers && i < watch.count; i++) {
        peer *p = &watch.peers[i];
        p->heard = mhla_seconds();
        if (p->fd >= 0) setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    }
    return status == MHLA_OK ? start_thread() : status;
}

void mhla_watch_end(int code) {
    if (!watch.running) return;
    atomic_store(&watch.ending, 1);
    pthread_join(watch.thread, NULL);
    watch.running = 0;
    for (int i = 0; i < watch.count; i++) {
        if (watch.peers[i].fd < 0) continue;
        const char word[2] = {code ? FAILED : ENDS, (char)code};
        (void)!send(watch.peers[i].fd, word, code ? 2 : 1, MSG_NOSIGNAL);
        close(watch.peers[i].fd);
    }
    free(watch.peers);
    watch.peers = NULL;
    watch.count = 0;
}
