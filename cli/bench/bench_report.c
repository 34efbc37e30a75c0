/* The benchmark's page: an aligned table, one JSON document, or the lines that a peer's harness reads. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

const char *const bench_dtype_names[] = {[MHLA_F32] = "float32", [MHLA_BF16] = "bfloat16", [MHLA_Q8_0] = "q8_0"};

void bench_begin(bench *b) {
    mhla_cpu_info info = {.size = sizeof info};
    if (b->begun++ || mhla_cpu_query(&info) != MHLA_OK) return;
    const int threads = mhla_context_threads(b->context);
    if (b->format == BENCH_JSON) {
        json_put_open(NULL, '{');
        json_put_text("version", mhla_version());
        json_put_text("isa", info.isa);
        json_put_text("model", info.model);
        json_put_int("threads", threads);
        json_put_real("peak_f32_gflops", peak_of(MHLA_F32, b->context, 0.01));
        json_put_real("peak_bf16_gflops", mhla_measure_peak(MHLA_BF16, b->context, 0.1));
        json_put_open("rows", '[');
    } else if (b->format == BENCH_TEXT) {
        printf("mhla %s, %s, %s, %d thread%s\n", mhla_version(), info.model, info.isa, threads,
               threads == 1 ? "" : "s");
    }
}

void bench_end(bench *b) {
    if (!b->begun) return;
    if (b->format == BENCH_JSON) {
        json_put_close(']');
        json_put_close('}');
    }
    if (b->format != BENCH_TEXT || !b->rated) return;
    printf("\nTime of one call, best and median; GFLOP/s and percent from the best; percent of the rate of\n"
           "multiply-adds measured between the calls: float32 %.0f",
           peak_of(MHLA_F32, b->context, 0.01));
    if (b->dtypes & 1 << MHLA_BF16) printf(", bfloat16 %.0f", peak_of(MHLA_BF16, b->context, 0.01));
    printf(" GFLOP/s.\n");
    if (b->notes & NOTE_HEADS) printf("*  measured on some of the heads and multiplied.\n");
    if (b->notes & NOTE_TOO_LONG) printf("-  would take more than ten seconds a call.\n");
}

static void print_head(const char *group) {
    static const struct {
        const char *group, *text;
    } titles[] = {
        {"forward", "forward"},
        {"backward", "forward and backward, rated at three times the forward's arithmetic"},
        {"causal", "causal forward"},
        {"causal-backward", "causal forward and backward"},
        {"layers", "linear layers: rows x outputs x inputs"},
        {"mamba", "operators of Mamba: batch x tokens x channels; an exponential counts as two operations"},
        {"models", "whole models, every product counted; a training step as three times inference"},
        {"resolution", "DiT-S/2 on ever larger images, every product counted"},
    };
    const char *text = group;
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (strcmp(titles[i].group, group) == 0) text = titles[i].text;
    const int models = strcmp(group, "models") == 0 || strcmp(group, "resolution") == 0;
    printf("\n%s\n%-22s %-33s %10s %10s %8s %8s %10s%s\n", text, "", "", "best", "median", "GFLOP/s", "of peak",
           models ? "memory" : "workspace", models ? "   images/s" : "");
}

static void text_row(const bench_row *r, double multiple) {
    char name[48], best[32], median[32], bytes[32] = "";
    snprintf(name, sizeof name, "%s%s%s%s", r->shape, *r->variant ? " " : "", r->variant,
             r->dtype == MHLA_BF16   ? " bf16"
             : r->dtype == MHLA_Q8_0 ? " q8_0"
                                     : "");
    if (r->note == NOTE_TOO_LONG) {
        printf("%-22s %-33s %10s %10s\n", name, r->sizes, "-", "-");
        return;
    }
    const double rate = r->flops / (multiple * r->time.best) * 1e-9;
    text_time(best, sizeof best, multiple * r->time.best);
    text_time(median, sizeof median, multiple * r->time.median);
    if (r->workspace) text_bytes(bytes, sizeof bytes, (double)r->workspace);
    printf("%-22s %-33s %10s %10s %8.*f %6.1f %%%*s%s", name, r->sizes, best, median, rate < 10.0 ? 1 : 0, rate,
           100.0 * rate / r->time.peak, *bytes ? 11 : 0, bytes, r->note == NOTE_HEADS ? " *" : "");
    if (r->images > 0.0) printf(" %10.1f", r->images / r->time.best);
    printf("\n");
}

static void json_row(const bench_row *r, double multiple) {
    json_put_open(NULL, '{');
    json_put_text("group", r->group);
    json_put_text("shape", r->shape);
    json_put_text("variant", r->variant);
    json_put_text("sizes", r->sizes);
    json_put_text("dtype", bench_dtype_names[r->dtype]);
    if (r->note == NOTE_TOO_LONG) {
        json_put_text("skipped", "would take more than ten seconds a call");
    } else {
        const double rate = r->flops / (multiple * r->time.best) * 1e-9;
        json_put_real("best_ms", 1e3 * multiple * r->time.best);
        json_put_real("median_ms", 1e3 * multiple * r->time.median);
        json_put_int("calls", r->time.count);
        json_put_real("gflop", r->flops * 1e-9);
        json_put_real("gflops", rate);
        json_put_real("peak_gflops", r->time.peak);
        json_put_real("percent_of_peak", 100.0 * rate / r->time.peak);
        json_put_int(r->images > 0.0 ? "memory_bytes" : "workspace_bytes", (int64_t)r->workspace);
        if (r->images > 0.0) json_put_real("images_per_second", r->images / r->time.best);
        if (r->note == NOTE_HEADS) json_put_real("measured_part", 1.0 / multiple);
    }
    json_put_close('}');
}

/* {"variant": "engine", "ms": [...]}: single calls, in order. */
static void engine_row(const bench_row *r, double multiple) {
    if (r->note == NOTE_TOO_LONG) return;
    const int plain = *r->variant == '\0' || strcmp(r->variant, "mhla") == 0;
    printf("{\"variant\": \"engine%s%s%s\", \"ms\": [", plain ? "" : "-", plain ? "" : r->variant,
           r->dtype == MHLA_BF16   ? "-bf16"
           : r->dtype == MHLA_Q8_0 ? "-q8_0"
                                   : "");
    for (int64_t i = 0; i < r->time.count; i++) printf("%s%.6g", i ? ", " : "", 1e3 * multiple * r->time.samples[i]);
    printf("]}\n");
}

/* A call faster than the peak: the machine was busy whenever that was measured. */
static void mend_peak(const bench *b, bench_row *row, double multiple) {
    for (int i = 0; i < 3 && row->flops * 1e-9 > row->time.peak * multiple * row->time.best; i++)
        row->time.peak = peak_settled(row->dtype, b->context);
}

void bench_report(bench *b, bench_row *row) {
    static char group[32];
    const double multiple = row->multiple > 0.0 ? row->multiple : 1.0;
    if (b->format == BENCH_SIMULATE) {
        if (row->note != NOTE_TOO_LONG)
            bench_simulated(row->group, row->shape, row->variant, row->dtype, multiple * row->time.best);
        timing_free(&row->time);
        return;
    }
    if (bench_rates(b) && row->note != NOTE_TOO_LONG) mend_peak(b, row, multiple);
    b->notes |= (int)row->note;
    bench_begin(b);
    b->rated = 1;
    switch (b->format) {
    case BENCH_TEXT:
        if (strcmp(group, row->group) != 0) print_head(row->group);
        snprintf(group, sizeof group, "%s", row->group);
        text_row(row, multiple);
        break;
    case BENCH_JSON: json_row(row, multiple); break;
    case BENCH_ENGINE:
    case BENCH_SIMULATE: engine_row(row, multiple); break;
    }
    fflush(stdout);
    timing_free(&row->time);
}
