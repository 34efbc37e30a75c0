/* mhla reproduce: experiments of papers, each by one command: a table of them, each a function with options of its own. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "reproduce.h"

static const struct experiment {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} experiments[] = {
    {"mqar", reproduce_mqar,
     "recall of values by their keys (zoology): MHLA, linear and softmax attention, minutes each"},
};
enum { EXPERIMENTS = sizeof experiments / sizeof *experiments };

static void usage(FILE *out) {
    fprintf(out, "usage: mhla reproduce EXPERIMENT [OPTIONS]\n\n"
                 "Makes the data, trains, evaluates and prints whatever comes out.\n\n");
    for (int i = 0; i < EXPERIMENTS; i++) fprintf(out, "  %-8s %s\n", experiments[i].name, experiments[i].summary);
    fprintf(out, "\n  mhla reproduce EXPERIMENT --help   its options\n");
}

int cmd_reproduce(int argc, char **argv) {
    if (argc < 1) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    for (int i = 0; i < EXPERIMENTS; i++)
        if (strcmp(argv[0], experiments[i].name) == 0) return experiments[i].run(argc - 1, argv + 1);
    return cli_wrong("reproduce", "\"%s\" is no experiment", argv[0]);
}
