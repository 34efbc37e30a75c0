/* Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) as a request: a verb says what it means, and a second one ends the
 * program whatever the first one did. `mhla data` alone has its own way: it must not end before what it fetched half of is
 * gone. */
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "cli.h"

enum { SIGNALS = 3 };
static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction was[SIGNALS]; /* a shell may have made a job in the background ignore them */
static volatile sig_atomic_t by;      /* the signal that asked, 0: none */
static void (*asked)(int number);
static atomic_llong first; /* when it was asked, ms; 0: not yet */

/* timeout(1) sends one request twice, to the process and to its group, and any thread may get either: what comes within half
 * a second belongs to the first. */
static void on_signal(int number) {
    struct timespec t;
    long long before = 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const long long now = (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 1;
    if (atomic_compare_exchange_strong(&first, &before, now)) {
        by = number;
        asked(number);
    } else if (now - before > 500) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void interrupt_watch(void (*told)(int number)) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    asked = told;
    by = 0;
    atomic_store(&first, 0);
    for (int i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &was[i]);
        if (signals[i] == SIGHUP && was[i].sa_handler == SIG_IGN) continue; /* nohup(1) */
        sigaction(signals[i], &action, NULL);
    }
}

void interrupt_forget(void) {
    for (int i = 0; i < SIGNALS; i++) sigaction(signals[i], &was[i], NULL);
}

void interrupt_outlive_reader(void) { signal(SIGPIPE, SIG_IGN); }

int interrupt_signal(void) { return by; }

int interrupt_code(void) {
    if (by) return 128 + by;
    return mhla_ranks() > 1 ? 128 + SIGTERM : CLI_FAILED; /* another rank was told */
}
