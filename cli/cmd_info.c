/* mhla info: what the library found on this machine and what it chose. */
#include <stdio.h>

#include "cli.h"

static int json, no_measure;
static int64_t threads;

static const cli_option options[] = {
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"threads", CLI_INT, &threads, "N", "measure with N threads; default: what OpenMP would use"},
    {"no-measure", CLI_FLAG, &no_measure, NULL, "leave out what takes time: peak and bandwidth"},
    {0},
};
static const cli_usage usage = {
    .verb = "info",
    .arguments = "",
    .options = options,
    .text = "Prints the version, the kernels chosen for this CPU and why, threads, caches, and\n"
            "what the machine can do at most: its rates of multiply-adds and of reading memory.\n"
            "MHLA_ISA in the environment forces the kernels.\n",
};

static void print_text(const mhla_cpu_info *info, int n, const double *peak, double bandwidth) {
    char l1[32], l2[32], l3[32];
    printf("mhla        %s\n", mhla_version());
    printf("kernels     %s (%s)\n", info->isa, info->why);
    printf("available   %s\n", info->available);
    printf("CPU         %s\n", info->model);
    printf("CPUs        %d\n", info->cpus);
    printf("threads     %d\n", n);
    text_bytes(l1, sizeof l1, (double)info->l1d);
    text_bytes(l2, sizeof l2, (double)info->l2);
    text_bytes(l3, sizeof l3, (double)info->l3);
    printf("caches      L1d %s, L2 %s, L3 %s\n", info->l1d ? l1 : "unknown", info->l2 ? l2 : "unknown",
           info->l3 ? l3 : "unknown");
    if (no_measure) return;
    printf("float32     %.0f GFLOP/s at most\n", peak[MHLA_F32]);
    if (peak[MHLA_BF16] > 0.0)
        printf("bfloat16    %.0f GFLOP/s at most\n", peak[MHLA_BF16]);
    else
        printf("bfloat16    not multiplied by this CPU: widened to float32\n");
    printf("memory      %.1f GB/s read\n", bandwidth);
}

static void print_json(const mhla_cpu_info *info, int n, const double *peak, double bandwidth) {
    json_open(NULL, '{');
    json_text("version", mhla_version());
    json_text("isa", info->isa);
    json_text("why", info->why);
    json_text("available", info->available);
    json_text("model", info->model);
    json_int("cpus", info->cpus);
    json_int("threads", n);
    json_int("l1d", (int64_t)info->l1d);
    json_int("l2", (int64_t)info->l2);
    json_int("l3", (int64_t)info->l3);
    if (!no_measure) {
        json_real("peak_f32_gflops", peak[MHLA_F32]);
        json_real("peak_bf16_gflops", peak[MHLA_BF16]);
        json_real("read_gbytes_per_s", bandwidth);
    }
    json_close('}');
}

int cmd_info(int argc, char **argv) {
    const int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    mhla_cpu_info info = {.size = sizeof info};
    mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    mhla_context *context = NULL;
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (threads) {
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status != MHLA_OK) return cli_failed(usage.verb, status);
    }
    double peak[2] = {0}, bandwidth = 0.0;
    if (!no_measure) {
        peak[MHLA_F32] = peak_settled(MHLA_F32, context);
        peak[MHLA_BF16] = mhla_measure_peak(MHLA_BF16, context, 0.25);
        bandwidth = mhla_measure_bandwidth(context, 0.25);
    }
    (json ? print_json : print_text)(&info, mhla_context_threads(context), peak, bandwidth);
    mhla_context_free(context);
    return CLI_OK;
}
