/* The check's table: which groups there are, how far each may be from its reference, what is printed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

static const struct group {
    const char *name;
    check_group_fn run;
    mhla_dtype last; /* of its dtypes */
} groups[] = {
    {"bidirectional", check_bidirectional, MHLA_BF16},
    {"cross", check_cross, MHLA_BF16},
    {"causal", check_causal, MHLA_BF16},
    {"linear", check_linear, MHLA_BF16},
    {"softmax", check_softmax, MHLA_BF16},
    {"vision", check_vision, MHLA_BF16},
    {"decay", check_decay, MHLA_BF16},
    {"streaming", check_streaming, MHLA_BF16},
    {"linear layers", check_layers, MHLA_BF16},
    {"mamba", check_mamba, MHLA_F32},
};
enum { GROUPS = sizeof groups / sizeof *groups };
/* Rounding of sums of hundreds of terms in float32; products of bfloat16 operands, which keep 8 bits. */
static const double limits[] = {[MHLA_F32] = 2e-5, [MHLA_BF16] = 2e-2};
static const char *const dtype_names[] = {[MHLA_F32] = "float32", [MHLA_BF16] = "bfloat16"};

void check_compare(check_row *row, int isa, const char *tensor, const char *name, const void *got, mhla_dtype dtype,
                   const double *want, int64_t count) {
    double largest = 1e-2, error = 0.0; /* inputs are of size 1; what cancels to nothing has no scale of its own */
    for (int64_t i = 0; i < count; i++) {
        float x;
        if (dtype == MHLA_F32) {
            x = ((const float *)got)[i];
        } else {
            const uint32_t bits = (uint32_t)((const uint16_t *)got)[i] << 16;
            memcpy(&x, &bits, sizeof x);
        }
        const double difference = fabs((double)x - want[i]);
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
        if (!(difference <= error)) error = isnan(difference) ? INFINITY : difference;
    }
    error /= largest;
    if (error > row->error[isa] || row->worst[isa][0] == '\0') {
        row->error[isa] = error;
        snprintf(row->worst[isa], sizeof row->worst[isa], "%s of %s", tensor, name);
    }
}

static int row_ok(const check_row *row, int isas) {
    for (int i = 0; i < isas; i++)
        if (!(row->error[i] <= row->limit)) return 0;
    return row->cases > 0;
}

static void print_row(const check_row *row, const check_isas *isas) {
    printf("%-14s %-9s %5d  ", row->group, dtype_names[row->dtype], row->cases);
    for (int i = 0; i < isas->count; i++) printf("%11.1e", row->error[i]);
    printf("   %s\n", row_ok(row, isas->count) ? "OK" : "FAIL");
    for (int i = 0; i < isas->count; i++)
        if (!(row->error[i] <= row->limit))
            printf("    %s: %s is off by %.1e, allowed is %.0e\n", isas->name[i], row->worst[i], row->error[i],
                   row->limit);
    fflush(stdout);
}

static void json_row(const check_row *row, const check_isas *isas) {
    json_put_open(NULL, '{');
    json_put_text("group", row->group);
    json_put_text("dtype", dtype_names[row->dtype]);
    json_put_int("cases", row->cases);
    json_put_real("limit", row->limit);
    json_put_open("error", '{');
    for (int i = 0; i < isas->count; i++) json_put_real(isas->name[i], row->error[i]);
    json_put_close('}');
    json_put_bool("ok", row_ok(row, isas->count));
    json_put_close('}');
}

/* The instruction sets to check: one by name, the chosen one, or all that this CPU has. */
static mhla_status list_isas(check_isas *isas, const check_options *options) {
    mhla_cpu_info info = {.size = sizeof info};
    const mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return status;
    const char *forced = getenv("MHLA_ISA");
    const char *names = options->isa ? options->isa : options->brief || (forced && *forced) ? info.isa : info.available;
    *isas = (check_isas){0};
    for (const char *at = names; *at && isas->count < CHECK_ISAS; isas->count++) {
        const size_t n = strcspn(at, " ");
        snprintf(isas->name[isas->count], sizeof isas->name[0], "%.*s", (int)n, at);
        at += n + strspn(at + n, " ");
    }
    return options->isa ? mhla_set_isa(options->isa) : MHLA_OK;
}

static void print_head(const check_isas *isas) {
    printf("Largest error, relative to the reference computed in double:\n\n%-14s %-9s %5s  ", "", "", "cases");
    for (int i = 0; i < isas->count; i++) printf("%11s", isas->name[i]);
    printf("\n");
}

int check_run(const check_options *options) {
    check_isas isas;
    mhla_status status = list_isas(&isas, options);
    if (status != MHLA_OK) return cli_failed("check", status);
    char before[16];
    snprintf(before, sizeof before, "%s", isas.name[isas.count - 1]);
    if (options->json) {
        json_put_open(NULL, '{');
        json_put_text("version", mhla_version());
        json_put_open("rows", '[');
    } else {
        print_head(&isas);
    }
    int rows = 0, passed = 0, cases = 0;
    for (int g = 0; g < GROUPS && status == MHLA_OK; g++)
        for (int dtype = MHLA_F32; dtype <= (int)(options->brief ? MHLA_F32 : groups[g].last) && status == MHLA_OK;
             dtype++) {
            check_row row = {.group = groups[g].name, .dtype = (mhla_dtype)dtype, .limit = limits[dtype]};
            status = groups[g].run(&row, &isas, options->brief);
            if (status != MHLA_OK) break;
            rows++;
            passed += row_ok(&row, isas.count);
            cases += row.cases * isas.count;
            (options->json ? json_row : print_row)(&row, &isas);
        }
    const int ok = status == MHLA_OK && passed == rows;
    if (options->json) {
        json_put_close(']');
        json_put_bool("ok", ok);
        json_put_close('}');
    } else if (status == MHLA_OK) {
        printf("\n%d comparisons: %s\n", cases, ok ? "all OK" : "FAILED");
    }
    mhla_set_isa(before); /* the best of those checked, for whoever goes on */
    if (status != MHLA_OK) return cli_failed("check", status);
    return ok ? CLI_OK : CLI_FAILED;
}
