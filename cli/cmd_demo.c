/* mhla demo: what the shipped models do; what MHLA costs beside linear and softmax attention; how the three learn at 1,024 tokens, and
 * what they attend to. Ends with a verdict made from the figures, and one page. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "demo.h"

const char *const demo_attention[DEMO_ARMS] = {"mhla", "linear", "softmax"};
const char *const demo_name[DEMO_ARMS] = {"MHLA", "linear", "softmax"};

static demo d = {.data = "fashion-mnist"};

static const cli_option options[] = {
    {"quick", CLI_FLAG, &d.quick, NULL, "cost up to 4,096 tokens only, 20 updates: about a minute"},
    {"steps", CLI_INT, &d.steps, "N", "train for N updates; default 150"},
    {"data", CLI_TEXT, &d.data, "FOLDER", "the folder of Fashion-MNIST; default: it is downloaded"},
    {0},
};
static const cli_usage usage = {
    .verb = "demo",
    .arguments = "",
    .options = options,
    .text = "Shows in about five minutes what MHLA is for. The shipped models write a sentence and draw\n"
            "images. Then MHLA, linear and softmax attention are compared: time and memory from 256 to\n"
            "31,500 tokens, learning at 1,024 tokens, and the attention matrices of the trained models.\n"
            "Ends with a verdict computed from these figures and the path of an HTML page with all of\n"
            "them, runs/demo-N/demo.html.\n",
};

void demo_clock(demo_share *share, int begin) {
    static double wall, cpu;
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    const double used = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec, now = now_seconds();
    if (begin) {
        wall = now;
        cpu = used;
    } else {
        share->wall += now - wall;
        share->cpu += used - cpu;
    }
}

/* runs/demo-N, the first that does not exist. */
static int make_folder(void) {
    mkdir("runs", 0777);
    for (int n = 1; n < 10000; n++) {
        snprintf(d.folder, sizeof d.folder, "runs/demo-%d", n);
        if (mkdir(d.folder, 0777) == 0) return CLI_OK;
        if (errno != EEXIST) break;
    }
    fprintf(stderr, "mhla demo: %s: %s\n", d.folder, strerror(errno));
    return CLI_FAILED;
}

static void release(void) {
    mhla_chars_free(&d.sentence);
    free(d.step);
    for (int arm = 0; arm < DEMO_ARMS; arm++) {
        free(d.loss[arm]);
        free(d.map[arm]);
    }
}

static int run(void) {
    char path[DEMO_PATH];
    int code = demo_models(&d);
    if (code == CLI_OK) code = demo_cost(&d);
    if (code != CLI_OK) return code;
    code = demo_learn(&d);
    if (code == CLI_OK) code = demo_look(&d);
    if (code > 128) return code; /* interrupted */
    demo_judge(&d);
    snprintf(path, sizeof path, "%s/demo.html", d.folder);
    const mhla_status status = demo_page(&d, path);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    printf("\nAll of it on one page: %s\n", path);
    return code;
}

int cmd_demo(int argc, char **argv) {
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    if (d.steps > 1000000) return cli_wrong(usage.verb, "--steps is %lld: at most 1000000", (long long)d.steps);
    if (d.steps == 0) d.steps = d.quick ? 20 : 150;
    mhla_cpu_info info = {.size = sizeof info};
    const mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    d.threads = info.threads;
    printf("mhla %s on %s, %d thread%s, %s kernels\n", mhla_version(), info.model, info.threads,
           info.threads == 1 ? "" : "s", info.isa);
    fflush(stdout);
    code = make_folder();
    if (code == CLI_OK) code = run();
    release();
    return code;
}
