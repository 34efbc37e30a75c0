/* cli.h - what the verbs of the program share: options as tables, JSON, attention problems with their buffers, timing.
 * The program knows the library by its public header only. Exit codes: 0 success, 1 failure, 2 a command line that
 * makes no sense, 128 + N stopped by signal N. */
#ifndef MHLA_CLI_H
#define MHLA_CLI_H

#include <mhla/mhla.h>
#include <mhla/nn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* ---- Verbs: a row each in main.c, a file each ---- */

int cmd_info(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_measure(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_reproduce(int argc, char **argv);
int cmd_sample(int argc, char **argv);
int cmd_reconstruct(int argc, char **argv);
int cmd_captions(int argc, char **argv);
int cmd_latents(int argc, char **argv);
int cmd_analyze(int argc, char **argv);

/* ---- Recipes and models by name (recipes.c) ---- */

/* The path of the recipe `name`: a file of that name; else, if it has no slash, recipes/NAME.toml (or .json) in the current folder, then among
 * the installed recipes, PREFIX/share/mhla/recipes. Returns -1 with the path set, or prints the known names and returns the exit code. */
int recipe_find(const char *verb, char path[4096], const char *name);
/* The path of the model `name`: unless such a file exists or the name has a slash, models/NAME in the current folder, then among the
 * installed models, PREFIX/share/mhla/models. The name itself if there is none. Valid until the next call. */
const char *model_path(const char *name);

/* ---- Printing (print.c): texts from elsewhere never steer the terminal ---- */

/* As fprintf; what %s brings in is foreign and shown without control characters: \x1b, \n, \u202e. The program's own line
 * breaks and escape sequences belong into the format. Returns 0. */
int text_print(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vprint(FILE *to, const char *format, va_list *args);
#undef printf
#undef fprintf
#define printf(...) text_print(stdout, __VA_ARGS__)
#define fprintf(...) text_print(__VA_ARGS__)

/* A text of several lines: \n and \t stay. */
void text_put(FILE *to, const char *text, size_t bytes);
/* The text that a command is for (generated, decoded) on standard output: byte for byte, on a terminal by text_put. */
void text_write(const char *text, size_t bytes);

/* Bytes of the character that the text begins with; 0 if that is no UTF-8. And its code if it must be escaped, else 0. */
int text_character(const char *text, size_t bytes);
unsigned text_hidden(const char *text, int length);

/* ---- Options (options.c): one table per verb feeds the parser and --help ---- */

typedef enum cli_kind {
    CLI_FLAG,   /* int: set to 1 */
    CLI_INT,    /* int64_t: 1 or more */
    CLI_COUNT,  /* int64_t: 0 or more */
    CLI_REAL,   /* double: more than 0 */
    CLI_AMOUNT, /* double: 0 or more */
    CLI_SIGNED, /* double: any finite one */
    CLI_BYTES,  /* int64_t: 1 or more, with K, M, G behind it 1024 times that, and so on */
    CLI_TEXT,   /* const char * */
    CLI_TEXTS,  /* cli_texts: may be given several times */
    CLI_GRID    /* cli_grid: 16x16 */
} cli_kind;

typedef struct cli_texts {
    const char *text[64];
    int count;
} cli_texts;

typedef struct cli_grid {
    int axes; /* 0: not given */
    int size[3];
} cli_grid;

typedef struct cli_option {
    const char *name; /* without the dashes; "model,m" is also -m */
    cli_kind kind;
    void *value;
    const char *argument; /* as --help calls it; NULL for flags */
    const char *help;
} cli_option;

typedef struct cli_usage {
    const char *verb;
    const char *arguments;     /* positional ones, or "" */
    const char *text;          /* what the verb does, whole lines */
    const cli_option *options; /* ends with a row without a name */
} cli_usage;

/* Fills the options' values and moves the positional arguments to argv[0..*positional-1] (NULL: none allowed). Returns
 * -1 to go on, else the code to exit with: --help has printed the usage, or stderr has a message. */
int cli_parse(const cli_usage *usage, int argc, char **argv, int *positional);

/* "mhla VERB: ..." on stderr; both return the code to exit with. */
int cli_wrong(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_failed(const char *verb, mhla_status status);

/* All of a file, "-" being standard input; malloc'ed. NULL with a message on stderr. */
char *cli_read_all(const char *verb, const char *path, size_t *size);

/* Can a file of this path be written? Asked before the work, not after it; errno says why not. */
int cli_writable(const char *path);
/* Does it name a preset, or one that does not exist of a family that does, and no file? */
int cli_is_preset(const char *name);

/* This program as it was called ("build/mhla"), for commands that the reader may want to type. */
extern const char *cli_program;

/* "4x4" */
const char *cli_grid_text(char *text, size_t size, int axes, const int *sizes);

/* ---- JSON on standard output, or in a file (json.c); key NULL inside arrays. Not json_real and the like: those are jansson's ---- */

void json_put_to(FILE *to); /* from now on; NULL: standard output */
void json_put_flat(int on); /* each document on one line */
void json_put_open(const char *key, char bracket);
void json_put_close(char bracket); /* the last one ends the line */
void json_put_text(const char *key, const char *value);
void json_put_int(const char *key, int64_t value);
void json_put_real(const char *key, double value); /* null where not finite */
void json_put_bool(const char *key, int value);
void json_put_quoted(FILE *to, const char *text, size_t bytes); /* "..." alone */

/* ---- Attention with all its buffers (problem.c) ---- */

typedef struct problem_desc {
    mhla_plan_desc plan;
    mhla_call call;  /* sizes, context, cu_seqlens, past; addresses are the problem's business */
    int backward;    /* make dO, the gradients and their workspace, too */
    int second_pair; /* the denominator has its own q2, k2 */
    int state;       /* causal kinds: final state out; in, too, if call.past > 0 */
    uint64_t seed;
} problem_desc;

typedef struct problem {
    mhla_plan *plan;
    mhla_call call;
    mhla_grads grads;
    mhla_dtype dtype;
    void *q, *k, *v, *o, *dO; /* [B,T,H,*], dtype */
    float *mix;
    void *ws, *ws_backward;
    size_t ws_bytes, ws_backward_bytes;
    int64_t n_q, n_k, n_v, n_o, n_mix, n_focus, n_decay, n_beta, n_state, n_z, n_state0,
        n_z0; /* elements; *0 of the initial state */
    void *owned[40];
    int owned_count;
} problem;

/* Random inputs, outputs full of NaN. On failure nothing is left to free. */
mhla_status problem_create(problem *p, const problem_desc *desc);
void problem_free(problem *p);
mhla_status problem_forward(problem *p);
mhla_status problem_backward(problem *p);

/* Random numbers from -1 to 1, the same for the same seed. */
double random_unit(uint64_t *seed);
void random_fill(void *x, mhla_dtype dtype, int64_t count, uint64_t *seed);

/* 64-byte aligned, NULL if there is no memory; free() releases. */
void *aligned_new(size_t bytes);
extern int small_pages; /* do not ask for pages of 2 MiB, which the library's own memory has where the system allows */

/* ---- Time (timing.c) ---- */

typedef struct timing {
    double best, median; /* seconds of one call */
    double peak;         /* GFLOP/s of the CPU, measured between the calls and in this run before */
    double *samples;     /* [count] seconds, in order of time */
    int64_t count;
} timing;

typedef mhla_status (*work_fn)(void *arg);

double now_seconds(void);
double thread_seconds(void); /* of the CPU, for this thread */
/* The clock of what is measured, read before and after a call: now_seconds, or that of simulated threads
 * (bench/bench_simulate.c). Calls of one kind do the same. */
extern double (*work_begin)(int64_t kind);
extern double (*work_end)(void);

/* Calls work for about `seconds` after a first call to warm up (which counts if it took longer than that), in slices
 * between which the peak of `dtype` is measured; with_peak 0 leaves that out. */
mhla_status timing_run(timing *t, work_fn work, void *arg, const mhla_context *context, mhla_dtype dtype,
                       double seconds, int with_peak);

/* best and median from samples; and their end. */
void timing_close(timing *t);
void timing_free(timing *t);

/* The rate that a dtype's products could reach: bfloat16's own where the CPU multiplies it, else float32's; and that of
 * reading memory. Each is the best of all measurements of this run, which has one context and instruction set. */
double peak_of(mhla_dtype dtype, const mhla_context *context, double seconds);
double bandwidth_of(const mhla_context *context, double seconds);

/* The peak again and again until the best has been reached twice, a second at most: for the first rows of a table. */
double peak_settled(mhla_dtype dtype, const mhla_context *context);

/* ---- Ctrl-C (interrupt.c) ---- */

/* Ctrl-C, SIGTERM and SIGHUP are told to the function, once: a later one ends the program at once. SIGHUP stays ignored under
 * nohup. interrupt_forget makes all as it was before. */
void interrupt_watch(void (*told)(int number));
void interrupt_forget(void);
/* From now on a write to a pipe that nobody reads fails instead of ending the program: Ctrl-C ends tee(1), too, and the
 * next line of progress must not cost the checkpoint. */
void interrupt_outlive_reader(void);
int interrupt_signal(void); /* the one that was told since interrupt_watch, 0: none */
int interrupt_code(void);   /* to exit with where work was cut short: 128 + that signal, as a shell has it */

/* ---- Training (cmd_train.c), also run by the demo ---- */

/* mhla_trainer_run that Ctrl-C stops at the end of a step. */
mhla_status train_run(mhla_trainer *trainer, mhla_train_fn report, void *user, int *finished);
/* The progress bar, or lines, for train_run; and its end. */
void train_show(void *user, const mhla_train_event *event);
void train_clear_bar(void);

/* ---- Text for people (text.c) ---- */

const char *text_time(char *text, size_t size, double seconds); /* "3.45 ms" */
const char *text_bytes(char *text, size_t size, double bytes);  /* "1.5 MiB" */
const char *text_left(char *text, size_t size, double left);    /* seconds to go: "1:05", "2.5 h", "-" */
const char *text_count(char *text, size_t size, int64_t count); /* "31500" -> "31,500" */

/* "12 of 400 images, 1:05 left" on stderr: one line of a terminal, else now and then a line. count_show takes a count_line as user. */
typedef struct count_line {
    const char *things;
    double begin, shown;
    int64_t before; /* done before it began, -1: not known yet */
} count_line;
count_line count_begin(const char *things);
void count_show(void *line, int64_t done, int64_t all);

/* Arithmetic per (batch, head), as the literature counts it. */
double flops_mhla(double T, double K, double V, double M);
double flops_linear(double T, double K, double V);
double flops_softmax(double T, double K, double V);
double flops_causal_mhla(double T, double K, double V, double C);
double flops_causal_linear(double T, double K, double V, double C);

/* ---- The check, also run by the demo (check_run.c) ---- */

typedef struct check_options {
    const char *isa; /* NULL: all of this CPU */
    int brief;       /* the chosen instruction set and a few sizes only */
    int json;
} check_options;

/* Prints its table; CLI_OK if all errors are within their limits. */
int check_run(const check_options *options);

#endif
