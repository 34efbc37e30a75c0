/* mhla plot: one HTML page about one or several runs. */
#include <mhla/nn.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const char *output;

static const cli_option options[] = {
    {"output", CLI_TEXT, &output, "FILE",
     "output file; default: report.html in the run, or in the current folder for several runs"},
    {0},
};
static const cli_usage usage = {
    .verb = "plot",
    .arguments = "RUN...",
    .options = options,
    .text = "Writes one self-contained HTML page about runs of mhla train, finished or not: their\n"
            "curves side by side, accuracy by class, sample predictions, and the mixing matrices\n"
            "that MHLA has learned. It works offline in any browser. Prints its path.\n",
};

static void tell(void *user, const char *text) {
    (void)user;
    fprintf(stderr, "mhla %s: %s\n", usage.verb, text);
}

int cmd_plot(int argc, char **argv) {
    int given = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given == 0) return cli_wrong(usage.verb, "no RUN is given");
    char path[4200] = "report.html";
    if (output == NULL && given == 1) {
        size_t n = strlen(argv[0]);
        while (n > 1 && argv[0][n - 1] == '/') n--; /* "run/" makes run/report.html */
        snprintf(path, sizeof path, "%.*s/report.html", (int)n, argv[0]);
    }
    if (output == NULL) output = path;
    const mhla_status status = mhla_report_make(output, (const char *const *)argv, given, tell, NULL);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    printf("%s\n", output);
    return CLI_OK;
}
