/* Ctrl-C as a request: a verb says what it means, and a second one ends the program whatever the first one did. `mhla data`
 * alone has its own way: it must not end before what it fetched half of is gone. */
#include <signal.h>

#include "cli.h"

static const int signals[] = {SIGINT, SIGTERM};
static struct sigaction was[2]; /* a shell may have made a job in the background ignore them */

void interrupt_watch(void (*told)(int number)) {
    struct sigaction action = {.sa_handler = told, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 2; i++) sigaction(signals[i], &action, &was[i]);
}

void interrupt_forget(void) {
    for (int i = 0; i < 2; i++) sigaction(signals[i], &was[i], NULL);
}
