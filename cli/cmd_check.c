/* mhla check: the operators against their references on this very CPU. */
#include "cli.h"

static check_options chosen;

static const cli_option options[] = {
    {"isa", CLI_TEXT, &chosen.isa, "NAME", "plain, avx2, avx512, avx512bf16 or neon only"},
    {"brief", CLI_FLAG, &chosen.brief, NULL, "the chosen kernels and a few sizes only"},
    {"json", CLI_FLAG, &chosen.json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "check",
    .arguments = "",
    .options = options,
    .text = "Runs every operator, forward and backward, at awkward sizes, with every instruction\n"
            "set that this CPU has (or the one that MHLA_ISA names), and compares with the\n"
            "definition computed in double. Fails if one is off by more than rounding explains:\n"
            "2e-5 of the largest value in float32, 2e-2 in bfloat16.\n",
};

int cmd_check(int argc, char **argv) {
    const int code = cli_parse(&usage, argc, argv, NULL);
    return code >= 0 ? code : check_run(&chosen);
}
