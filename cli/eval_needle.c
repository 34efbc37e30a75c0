/* mhla eval --needle: a number that was told far back, found again by length and depth; a table, JSON, a page. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval.h"

enum { MOST = 64 };

/* "0,25,50" to numbers; returns how many, or 0 if the text is not such a list. */
static int numbers_of(double x[MOST], const char *text) {
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        if (n == MOST) return 0;
        x[n++] = strtod(at, &end);
        if (end == at || errno || (*end && *end != ',')) return 0;
        at = end;
        if (*at == '\0') return n;
    }
}

static void print_table(const mhla_needle_result *r) {
    char a[32];
    printf("needle          %s, %lld of each; found in percent, chance is 10\n\n%10s", r->ids ? "token ids" : "text",
           (long long)r->cells[0].asked, "tokens");
    for (int i = 0; i < r->depth_count; i++) printf(" %7g %%", r->cells[i].depth);
    printf(" %9s %9s\n", "mean", "share");
    for (int l = 0; l < r->length_count; l++) {
        const mhla_needle_cell *row = r->cells + l * r->depth_count;
        double found = 0.0, share = 0.0;
        printf("%10s", text_count(a, sizeof a, row->length));
        for (int i = 0; i < r->depth_count; i++) {
            const double x = (double)row[i].right / (double)row[i].asked;
            printf(" %9.1f", 100.0 * x);
            found += x;
            share += row[i].probability;
        }
        printf(" %9.1f %9.3f\n", 100.0 * found / r->depth_count, share / r->depth_count);
    }
    printf("\nmean: over depths; share: of the right number among the ten, 0.1 by chance\n");
}

static void print_json(const mhla_needle_result *r) {
    json_put_bool("ids", r->ids);
    json_put_real("seconds", r->seconds);
    json_put_open("cells", '[');
    for (int i = 0; i < r->length_count * r->depth_count; i++) {
        json_put_open(NULL, '{');
        json_put_int("tokens", r->cells[i].length);
        json_put_real("depth", r->cells[i].depth);
        json_put_int("asked", r->cells[i].asked);
        json_put_int("right", r->cells[i].right);
        json_put_real("share", r->cells[i].probability);
        json_put_close('}');
    }
    json_put_close(']');
    json_put_close('}');
}

int eval_needle(mhla_model *model, const eval_options *o) {
    double depths[MOST], given[MOST];
    int64_t lengths[MOST];
    mhla_needle_desc desc = {
        .size = sizeof desc, .samples = (int)o->repeats, .seed = (uint64_t)o->seed, .beyond = eval_beyond(o)};
    mhla_needle_result result = {.size = sizeof result};
    if (o->repeats > 1000000)
        return cli_wrong("eval", "--samples is %lld: expected 1 to 1000000", (long long)o->repeats);
    if (o->lengths) {
        desc.length_count = numbers_of(given, o->lengths);
        for (int i = 0; i < desc.length_count; i++) {
            lengths[i] = given[i] >= 1.0 && given[i] < 1e8 ? (int64_t)given[i] : 0;
            if ((double)lengths[i] != given[i]) desc.length_count = 0;
        }
        if (desc.length_count == 0)
            return cli_wrong("eval", "--lengths is \"%s\": expected whole numbers such as 512,1024", o->lengths);
        desc.lengths = lengths;
    }
    if (o->depths) {
        desc.depth_count = numbers_of(depths, o->depths);
        for (int i = 0; i < desc.depth_count; i++)
            if (!(depths[i] >= 0.0 && depths[i] <= 100.0)) desc.depth_count = 0;
        if (desc.depth_count == 0)
            return cli_wrong("eval", "--depths is \"%s\": expected numbers from 0 to 100 such as 0,50,100", o->depths);
        desc.depths = depths;
    }
    if (o->out && mhla_rank() == 0 && !cli_writable(o->out)) {
        fprintf(stderr, "mhla eval: %s: cannot be written: %s\n", o->out, strerror(errno));
        return CLI_FAILED;
    }
    mhla_status status = mhla_lm_needle(model, &result, &desc, isatty(STDERR_FILENO) ? eval_progress : NULL, NULL);
    if (status == MHLA_OK && o->out && mhla_rank() == 0) status = mhla_needle_page(o->out, &result, o->path);
    if (status == MHLA_OK) status = eval_print_model(model, o->json);
    if (status == MHLA_OK) (o->json ? print_json : print_table)(&result);
    if (status == MHLA_OK && o->out && !o->json) printf("page            %s\n", o->out);
    mhla_needle_free(&result);
    return status == MHLA_OK ? CLI_OK : cli_failed("eval", status);
}
