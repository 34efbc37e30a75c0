/* The program: a table of verbs. To add one, write cmd_<verb>.c, declare it in cli.h and give it a row here. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"demo", cmd_demo, "use the shipped models; compare MHLA, linear and softmax attention: cost, learning, rank"},
    {"train", cmd_train, "train a model from a recipe, or resume a run"},
    {"eval", cmd_eval, "evaluate a model: accuracy on images, perplexity of text, multiple choice"},
    {"classify", cmd_classify, "classify images"},
    {"measure", cmd_measure, "compare generated with real images: Fréchet distance, precision, recall"},
    {"generate", cmd_generate, "continue a prompt with a language model"},
    {"chat", cmd_chat, "talk with a language model"},
    {"sample", cmd_sample, "generate images with a diffusion model"},
    {"reconstruct", cmd_reconstruct, "encode and decode an image with an autoencoder"},
    {"latents", cmd_latents, "encode a dataset with an autoencoder, once, to train a diffusion model on the latents"},
    {"captions", cmd_captions, "encode a dataset's captions with a text encoder, once, to train a text-to-image model"},
    {"analyze", cmd_analyze, "measure attention inside models: ranks, entropies, maps, mixing matrices; one page"},
    {"info", cmd_info, "describe this machine (instruction set, threads, caches, measured peak) or a model"},
    {"check", cmd_check, "compare every operator with its reference, on this CPU"},
    {"bench", cmd_bench, "measure time, GFLOP/s and percent of this machine's peak"},
    {"plot", cmd_plot, "write one HTML page about one or more training runs"},
    {"convert", cmd_convert, "convert checkpoints to another type or file format"},
    {"tokenize", cmd_tokenize, "convert text to token ids and back; train a tokenizer; write shards"},
    {"data", cmd_data, "download datasets and models: images, emoji, English text, SmolLM2, Inception"},
    {"reproduce", cmd_reproduce, "run the paper's experiments on this machine, each with a verdict"},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void usage(FILE *out) {
    fprintf(out, "usage: mhla VERB [OPTIONS]\n\nMulti-Head Linear Attention on the CPU.\n\n");
    for (int i = 0; i < VERBS; i++) fprintf(out, "  %-11s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(out, "\n  mhla VERB --help   the options of a verb\n  mhla --version     the version\n");
}

const char *cli_program = "mhla";

/* GNU's OpenMP lets a thread that waits for others spin for milliseconds: with other programs at work it then takes the core
 * that those others need, and everything is several times slower. Some microseconds cost nothing on a quiet machine. The
 * runtime reads its variables when it is loaded, before main: so the program begins once more. */
static void wait_briefly(char **argv) {
    char path[4096]; /* by its name: valgrind and emulators know that of the program, /proc/self/exe is their own */
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0 || n >= (ssize_t)sizeof path - 1 || setenv("GOMP_SPINCOUNT", "6000", 1) != 0) return;
    path[n] = '\0';
    execv(path, argv);
    /* where that is not possible it goes on as it is */
}

/* A mapped file became shorter while a verb read it (mhla_files_watch). Nothing but write(2) and _exit is allowed here, so what
 * text_print would escape becomes a question mark. What a verb was writing has no name yet, and a run keeps its last checkpoint. */
static void file_lost(const char *path) {
    static const char before[] = "mhla: ", after[] = ": became shorter while it was in use, or its disk failed\n";
    char line[sizeof before + 4096 + sizeof after];
    size_t used = 0, n;
    if (isatty(STDERR_FILENO)) line[used++] = '\n'; /* a progress bar may stand there */
    for (const char *at = before; *at; at++) line[used++] = *at;
    for (size_t left = strnlen(path, 4000); left > 0; path += n, left -= n) {
        const int length = text_character(path, left), shown = length && !text_hidden(path, length);
        n = length ? (size_t)length : 1;
        for (size_t i = 0; i < (shown ? n : 1); i++) line[used++] = shown ? path[i] : '?';
    }
    for (const char *at = after; *at; at++) line[used++] = *at;
    (void)!write(STDERR_FILENO, line, used);
    _exit(CLI_FAILED);
}

/* Whoever starts us may have closed standard input, output or error: the next file that is opened would take its number, and
 * messages would go into that file. What is put there fails as a closed one does. */
static void keep_standard_numbers(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Under mpirun or srun several processes share its work; other verbs run in one. */
static int is_shared(const struct verb *v) {
    return v->run == cmd_train || v->run == cmd_eval || v->run == cmd_sample || v->run == cmd_latents ||
           v->run == cmd_reproduce || v->run == cmd_bench;
}

/* All of them were started with the same words; a training compares its recipe, which may come from several files. */
static mhla_status same_command(const struct verb *v, int argc, char **argv) {
    char text[1024];
    size_t used = (size_t)snprintf(text, sizeof text, "mhla %s", v->name);
    for (int i = 0; i < argc && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", argv[i]);
    return v->run == cmd_train ? MHLA_OK : mhla_ranks_same("the command", text);
}

/* One of several processes, if a launcher has started more. What a command prints is printed by rank 0. */
static int run_verb(const struct verb *v, int argc, char **argv) {
    const mhla_status status = mhla_ranks_begin();
    if (status != MHLA_OK) return cli_failed(v->name, status);
    int code;
    const mhla_status same = same_command(v, argc, argv);
    if (same != MHLA_OK) {
        code = cli_failed(v->name, same);
    } else if (mhla_ranks() > 1 && !is_shared(v)) {
        code = cli_wrong(v->name, "%d processes were started, but this verb runs in one", mhla_ranks());
    } else {
        if (mhla_rank() > 0 && freopen("/dev/null", "w", stdout) == NULL) return CLI_FAILED;
        code = v->run(argc, argv);
    }
    mhla_ranks_end(code < 128 ? code : CLI_OK); /* a process that was told to stop has not failed */
    return code;
}

static int run(int argc, char **argv) {
    const char *name = argv[1];
    for (int i = 0; i < VERBS; i++)
        if (strcmp(name, verbs[i].name) == 0) return run_verb(&verbs[i], argc - 2, argv + 2);
    if (strcmp(name, "--version") == 0 && argc == 2) {
        printf("mhla %s\n", mhla_version());
        return CLI_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    fprintf(stderr, "mhla: \"%s\" is not a verb; mhla --help lists them\n", name);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    keep_standard_numbers();
    if (argc > 0) cli_program = argv[0];
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    wait_briefly(argv);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is told like a full disk, and what was begun of it removed */
    mhla_files_watch(file_lost);
    const int code = run(argc, argv);
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    /* why an earlier write failed is not known any more */
    fprintf(stderr, "mhla: standard output: %s\n", errno ? strerror(errno) : "it could not be written");
    return CLI_FAILED;
}
