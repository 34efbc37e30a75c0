/* mhla reproduce: experiments of papers, each by one command. Those of the lab (lab.h) have options in common; recall (MQAR) has
 * its own. Alone it lists them. */
#include <mhla/lab.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "reproduce.h"

static void usage(FILE *out) {
    mhla_lab_info info = {.size = sizeof info};
    fprintf(out,
            "usage: mhla reproduce EXPERIMENT [OPTIONS]\n\n"
            "Downloads the data, trains, measures, and ends with a table, the paper's figures and a verdict:\n"
            "holds, does not hold, or undecided at this size. The same command resumes an interrupted experiment.\n\n");
    fprintf(out, "  %-10s %5s %6s %9s %8s %7s\n", "", "arms", "seeds", "minutes", "--quick", "--long");
    for (int i = 0; mhla_lab_query(i, &info) == MHLA_OK; i++) {
        char hours[16] = "-";
        if (info.hours > 0.0) snprintf(hours, sizeof hours, "%.0f h", info.hours);
        fprintf(out, "  %-10s %5d %6d %9.0f %8.0f %7s  %s\n", info.name, info.arms, info.seeds, info.minutes,
                info.quick, hours, info.title);
        if (info.known) fprintf(out, "             known: %s\n", info.known);
    }
    fprintf(out, "  %-10s %5d %6d %9d %8s %7s  %s\n", "mqar", 3, 1, 15, "-", "-",
            "Recall of values by their keys (zoology); has separate options");
    fprintf(out,
            "\nMinutes and hours are estimates for all seeds on two idle cores, with the search of learning rates. "
            "Results so far: docs/results.\n\n"
            "  mhla reproduce EXPERIMENT --help   its options\n");
}

/* Before and after what can be stopped, and where nothing can: the exit code is that of a stopped run all the same. */
static void on_signal(int number) { _exit(128 + number); }

int cmd_reproduce(int argc, char **argv) {
    mhla_lab_info info = {.size = sizeof info};
    if (argc < 1 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    interrupt_watch(on_signal);
    if (strcmp(argv[0], "mqar") == 0 && mhla_ranks() > 1)
        return cli_wrong("reproduce", "mqar runs in one process, %d were started", mhla_ranks());
    if (strcmp(argv[0], "mqar") == 0) return reproduce_mqar(argc - 1, argv + 1);
    for (int i = 0; mhla_lab_query(i, &info) == MHLA_OK; i++)
        if (strcmp(argv[0], info.name) == 0) return reproduce_lab(info.name, argc - 1, argv + 1);
    mhla_lab *lab = NULL; /* the library knows the nearest name */
    mhla_lab_open(&lab, &(mhla_lab_desc){.size = sizeof(mhla_lab_desc), .experiment = argv[0]});
    mhla_lab_free(lab);
    return cli_wrong("reproduce", "%s%s", mhla_message(), strstr(mhla_message(), " one of ") ? ", mqar" : "");
}
