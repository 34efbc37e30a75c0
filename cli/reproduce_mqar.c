/* mhla reproduce mqar: attentions learn to recall values by their keys; accuracy by number of pairs. */
#include <errno.h>
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "reproduce.h"

enum { ATTENTIONS = 8, STANDARD = 3 }; /* STANDARD: the first ones, where none is named */

static const char *only, *out;
static int64_t width, layers, heads, vocabulary, chunk, conv, steps, tokens, tests, seed = 1, threads;
static double rate;
static int json, dense;

#define ATTENTION_NAMES "mhla, linear, softmax, gla, retnet, mamba, mamba2 or gated_deltanet"
static const cli_option options[] = {
    {"attention", CLI_TEXT, &only, "NAME", ATTENTION_NAMES "; default: the first three, one after the other"},
    {"width", CLI_INT, &width, "N", "of the model; default 64"},
    {"layers", CLI_INT, &layers, "N", "default 2"},
    {"heads", CLI_INT, &heads, "N", "default 2"},
    {"vocabulary", CLI_INT, &vocabulary, "N", "half of it keys, half of it values; default 8192"},
    {"chunk", CLI_INT, &chunk, "N", "tokens in a chunk of MHLA; default 16"},
    {"dense", CLI_FLAG, &dense, NULL, "sequences as short as the pairs allow: 64 tokens, 256 for 64 pairs"},
    {"conv", CLI_COUNT, &conv, "N",
     "a causal convolution of N tokens in all mixers but softmax; default: none, in Mamba 4"},
    {"steps", CLI_INT, &steps, "N", "largest number of updates; default 4000"},
    {"tokens", CLI_INT, &tokens, "N", "in a batch; default 8192"},
    {"rate", CLI_REAL, &rate, "R", "learning rate; default 0.005"},
    {"tests", CLI_INT, &tests, "N", "sequences of each length that are tested; default 250"},
    {"seed", CLI_COUNT, &seed, "N", "of weights and data; default 1"},
    {"threads", CLI_INT, &threads, "N", "default: what OpenMP would use"},
    {"out", CLI_TEXT, &out, "FILE", "also write the JSON document to this file"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "reproduce mqar",
    .arguments = "[KEY=VALUE]...",
    .options = options,
    .text = "Multi-query associative recall with zoology's recipe at one width. A sequence has pairs of a key and a\n"
            "value, then keys again; for each of these the model must predict the value. Data is made from the seed.\n"
            "One model per attention learns all lengths. Accuracy is that of the likeliest token on new sequences.\n"
            "KEY=VALUE sets any key of the models' config: state_size=16 of mamba2, parameter_names=mamba for layers\n"
            "without MLPs.\n",
};

static const char *const attentions[ATTENTIONS] = {"mhla",   "linear", "softmax", "gla",
                                                   "retnet", "mamba",  "mamba2",  "gated_deltanet"};
static char **settings; /* [given] KEY=VALUE */
static int given;

typedef struct show {
    const char *attention;
    double begin, shown;
} show;

static void progress(void *user, const mhla_mqar_event *e) {
    show *s = user;
    const int terminal = isatty(STDERR_FILENO);
    if (now_seconds() - s->shown < (terminal ? 0.3 : 20.0)) return;
    s->shown = now_seconds();
    char left[32];
    text_time(left, sizeof left, (now_seconds() - s->begin) / (double)e->step * (double)(e->steps - e->step));
    fprintf(stderr,
            terminal ? "\r%-8s step %lld of %lld, loss %.3f at %d pairs, %s left at most\033[K"
                     : "%-8s step %lld of %lld, loss %.3f at %d pairs, %s left at most\n",
            s->attention, (long long)e->step, (long long)e->steps, e->loss, e->pairs, left);
}

static mhla_status run(mhla_mqar_result *r, const char *attention, const mhla_context *context) {
    show s = {.attention = attention, .begin = now_seconds(), .shown = now_seconds()};
    const mhla_mqar_desc desc = {.size = sizeof desc,
                                 .attention = attention,
                                 .vocabulary = (int)vocabulary,
                                 .width = (int)width,
                                 .layers = (int)layers,
                                 .heads = (int)heads,
                                 .chunk = (int)chunk,
                                 .conv = (int)conv,
                                 .steps = steps,
                                 .tokens = tokens,
                                 .rate = rate,
                                 .tests = tests,
                                 .seed = (uint64_t)seed,
                                 .context = context,
                                 .settings = (const char *const *)settings,
                                 .setting_count = given,
                                 .dense = dense};
    *r = (mhla_mqar_result){.size = sizeof *r};
    const mhla_status status = mhla_mqar_run(r, &desc, progress, &s);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    return status;
}

static double accuracy(const mhla_mqar_row *row) { return (double)row->right / (double)row->asked; }

static void print_head(const mhla_mqar_result *r) {
    printf("\naccuracy at queries\n%-14s", "pairs");
    for (int i = 0; i < MHLA_MQAR_ROWS; i++) printf(" %9d", r->rows[i].pairs);
    printf("\n%-14s", "tokens");
    for (int i = 0; i < MHLA_MQAR_ROWS; i++) printf(" %9d", r->rows[i].length);
    printf(" %11s %7s %8s\n", "parameters", "steps", "time");
}

static void print_row(const char *name, const mhla_mqar_result *r) {
    char a[32], b[32];
    printf("%-14s", name);
    for (int i = 0; i < MHLA_MQAR_ROWS; i++) printf(" %7.1f %%", 100.0 * accuracy(&r->rows[i]));
    printf(" %11s %7lld %8s\n", text_count(a, sizeof a, r->parameters), (long long)r->steps,
           text_time(b, sizeof b, r->seconds));
    fflush(stdout);
}

static void put_json(const char *const *names, const mhla_mqar_result *results, int n) {
    json_put_open(NULL, '{');
    json_put_text("experiment", "mqar");
    json_put_int("seed", seed);
    json_put_open("results", '[');
    for (int i = 0; i < n; i++) {
        const mhla_mqar_result *r = &results[i];
        json_put_open(NULL, '{');
        json_put_text("attention", names[i]);
        json_put_int("parameters", r->parameters);
        json_put_int("steps", r->steps);
        json_put_real("loss", r->loss);
        json_put_real("seconds", r->seconds);
        json_put_open("rows", '[');
        for (int j = 0; j < MHLA_MQAR_ROWS; j++) {
            json_put_open(NULL, '{');
            json_put_int("pairs", r->rows[j].pairs);
            json_put_int("length", r->rows[j].length);
            json_put_int("asked", r->rows[j].asked);
            json_put_real("accuracy", accuracy(&r->rows[j]));
            json_put_close('}');
        }
        json_put_close(']');
        json_put_close('}');
    }
    json_put_close(']');
    json_put_close('}');
}

static mhla_status write_out(const char *const *names, const mhla_mqar_result *results, int n) {
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file == NULL) return MHLA_ENOMEM;
    json_put_to(file);
    put_json(names, results, n);
    json_put_to(NULL);
    const mhla_status status = fclose(file) == 0 ? mhla_file_write(out, text, size) : MHLA_ENOMEM;
    free(text);
    return status;
}

static mhla_status run_all(const char *const *names, int n, mhla_mqar_result *results, const mhla_context *context) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        status = run(&results[i], names[i], context);
        if (status != MHLA_OK || json) continue;
        if (i == 0) print_head(&results[0]);
        print_row(names[i], &results[i]);
    }
    return status;
}

int reproduce_mqar(int argc, char **argv) {
    mhla_mqar_result results[STANDARD];
    mhla_context *context = NULL;
    int known = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    settings = argv;
    for (int i = 0; i < ATTENTIONS; i++) known |= only && strcmp(only, attentions[i]) == 0;
    if (only && !known) return cli_wrong(usage.verb, "--attention is \"%s\": expected " ATTENTION_NAMES, only);
    const int64_t small[] = {width, layers, heads, vocabulary, chunk, conv};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (small[i] > 1 << 20) return cli_wrong(usage.verb, "%lld is too large", (long long)small[i]);
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    const char *const *names = only ? &only : attentions;
    const int n = only ? 1 : STANDARD;
    if (out && !cli_writable(out)) { /* now, not after minutes of work */
        fprintf(stderr, "mhla %s: %s: cannot be written: %s\n", usage.verb, out, strerror(errno));
        return CLI_FAILED;
    }
    mhla_status status = MHLA_OK;
    if (threads)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    if (status == MHLA_OK) status = run_all(names, n, results, context);
    if (status == MHLA_OK && out) status = write_out(names, results, n);
    if (status == MHLA_OK && json) put_json(names, results, n);
    mhla_context_free(context);
    return status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
}
