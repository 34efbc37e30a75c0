/* mhla train: a recipe and flags that override it; progress on stderr, a bar on a terminal, lines elsewhere. */
#include <math.h>
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

static const char verb[] = "train";

static void print_help(void) {
    printf("usage: mhla train [RECIPE] [--out RUN] [--KEY VALUE]...\n"
           "       mhla train --resume RUN\n\n"
           "Trains a model and writes checkpoints, a log and a report into the folder RUN.\n\n"
           "RECIPE is a TOML or JSON file, or the name of a recipe: fashion-mnist means recipes/fashion-mnist.toml\n"
           "in the current folder, or else the recipe of that name that was installed with the program.\n"
           "Every key of a recipe is also a flag and overrides the recipe: --train.rate 5e-4. You can leave out\n"
           "\"train.\", and any other section if only one key has that name.\n"
           "Ctrl-C, SIGTERM and SIGHUP write a checkpoint and print the command that resumes the run.\n\n"
           "Options:\n"
           "  --out RUN              folder of the run (default: runs/RECIPE, or runs/MODEL-ATTENTION)\n"
           "  --resume RUN           resume the run from its last checkpoint\n"
           "  --init MODEL           start from the weights of a model or run; tensors that do not fit are initialized "
           "and listed\n"
           "  --threads N            number of threads (default: OpenMP's)\n"
           "  --quiet                print only the result\n\n"
           "Keys of a recipe:\n");
    mhla_recipe_key key = {.size = sizeof key};
    for (int i = 0; mhla_recipe_query(i, &key) == MHLA_OK; i++) {
        printf("  --%-22s %s", key.name, key.help);
        if (strchr(key.kind, '|')) printf(" [%s]", key.kind);
        if (*key.standard) printf(" (%s)", key.standard);
        printf("\n");
    }
}

/* The recipe's key that a flag means: its full name, or train.NAME, or the only one that ends with .NAME. NULL: none, or
 * several. */
static const char *full_key(const char *flag, size_t length) {
    mhla_recipe_key key = {.size = sizeof key};
    const char *found = NULL;
    int several = 0;
    for (int i = 0; mhla_recipe_query(i, &key) == MHLA_OK; i++) {
        const size_t n = strlen(key.name);
        if (n == length && strncmp(key.name, flag, n) == 0) return key.name;
        if (n <= length || key.name[n - length - 1] != '.' || strncmp(key.name + n - length, flag, length) != 0)
            continue;
        if (strncmp(key.name, "train.", 6) == 0) return key.name;
        several = found != NULL;
        found = key.name;
    }
    return several ? NULL : found;
}

typedef struct command {
    const char *recipe, *out, *resume, *model, *attention;
    int64_t threads;
    int quiet, count, help;
    char **settings; /* [count] "key=value" */
} command;

static int add_setting(command *c, const char *key, size_t length, const char *value) {
    char *text = malloc(length + strlen(value) + 2);
    char **more = realloc(c->settings, ((size_t)c->count + 1) * sizeof *more);
    if (more) c->settings = more;
    if (text == NULL || more == NULL) {
        free(text);
        return cli_failed(verb, MHLA_ENOMEM);
    }
    sprintf(text, "%.*s=%s", (int)length, key, value);
    c->settings[c->count++] = text;
    return -1;
}

/* -1 to go on, else the code to exit with. */
static int parse(command *c, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            c->help = 1;
            return -1;
        }
        if (strncmp(a, "--", 2) != 0) {
            if (c->recipe) return cli_wrong(verb, "\"%s\" is not expected: there is one recipe", a);
            c->recipe = a;
            continue;
        }
        if (strcmp(a, "--quiet") == 0) {
            c->quiet = 1;
            continue;
        }
        const size_t length = strcspn(a + 2, "=");
        const char *value = a[2 + length] == '=' ? a + 3 + length : i + 1 < argc ? argv[++i] : NULL;
        if (value == NULL) return cli_wrong(verb, "%s needs a value", a);
        const char *const names[] = {"out", "resume"};
        const char **const places[] = {&c->out, &c->resume};
        int known = 0;
        for (int k = 0; k < 2; k++)
            if (strlen(names[k]) == length && strncmp(a + 2, names[k], length) == 0) *places[k] = value, known = 1;
        if (known) continue;
        if (length == 7 && strncmp(a + 2, "threads", 7) == 0) {
            char *end;
            c->threads = strtoll(value, &end, 10);
            if (*end || c->threads < 1 || c->threads > 1024)
                return cli_wrong(verb, "--threads is \"%s\": expected 1 to 1024", value);
            continue;
        }
        const char *key = full_key(a + 2, length);
        if (key && strcmp(key, "model.model") == 0) c->model = value;
        if (key && strcmp(key, "model.attention") == 0) c->attention = value;
        /* an unknown one goes as it is: the library knows the nearest right key */
        const int code = add_setting(c, key ? key : a + 2, key ? strlen(key) : length, value);
        if (code >= 0) return code;
    }
    if (c->resume && (c->recipe || c->out || c->count))
        return cli_wrong(verb, "--resume uses the settings of the run: remove the recipe, --out and other keys");
    return -1;
}

/* ---- Progress ------------------------------------------------------------------------------------------------------- */

static mhla_trainer *running;
static char
    hurried[4400]; /* of several processes: what to do if the launcher ends them before the checkpoint is there */

static void on_signal(int number) {
    (void)number;
    if (running) mhla_trainer_stop(running);
    if (*hurried) (void)!write(STDERR_FILENO, hurried, strlen(hurried));
}

static int terminal, quiet, bar_shown;
static double last_shown;

void train_clear_bar(void) {
    if (bar_shown) fprintf(stderr, "\r\033[K");
    bar_shown = 0;
}

/* A line that is longer than the terminal is wide could not be written over: without the bar then, and cut. */
static void show_line(const char *bar, const char *line) {
    struct winsize size = {0};
    int wide = 1 << 20;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) wide = size.ws_col - 1;
    if ((int)(strlen(bar) + strlen(line)) > wide) bar = "";
    fprintf(stderr, "\r%s%.*s\033[K", bar, wide, line);
    bar_shown = 1;
}

static void show_step(const mhla_train_event *e) {
    const double now = now_seconds();
    const int final = e->step == e->steps;
    if (!final && now - last_shown < (terminal ? 0.2 : 10.0)) return;
    last_shown = now;
    char left[32], accuracy[32] = "", bar[] = "[....................] ", line[256];
    text_left(left, sizeof left, e->seconds_left);
    if (isfinite(e->accuracy))
        snprintf(accuracy, sizeof accuracy, terminal ? "  accuracy %.1f %%" : ", accuracy %.1f %%",
                 100.0 * e->accuracy);
    const int filled = (int)(20.0 * (double)e->step / (double)e->steps);
    for (int i = 0; i < filled && i < 20; i++) bar[1 + i] = '#';
    const int text = isfinite(e->tokens_per_second);
    const double pace = text ? e->tokens_per_second : e->images_per_second;
    const char *unit = text ? "tokens/s" : "images/s";
    if (terminal) {
        snprintf(line, sizeof line, "%3.0f %%  %s left  %.0f %s  loss %.4f%s  rate %.2e",
                 100.0 * (double)e->step / (double)e->steps, left, pace, unit, e->loss, accuracy, e->rate);
        show_line(bar, line);
    } else {
        fprintf(stderr, "step %lld of %lld, epoch %.2f, %s left, %.0f %s, loss %.4f%s, rate %.2e\n", (long long)e->step,
                (long long)e->steps, e->epoch, left, pace, unit, e->loss, accuracy, e->rate);
    }
}

void train_show(void *user, const mhla_train_event *e) {
    (void)user;
    if (quiet || mhla_rank() > 0) return;
    terminal = isatty(STDERR_FILENO);
    switch (e->kind) {
    case MHLA_TRAIN_NOTE:
        train_clear_bar();
        fprintf(stderr, "%s\n", e->text);
        break;
    case MHLA_TRAIN_STEP: show_step(e); break;
    case MHLA_TRAIN_EVALUATING:
        if (terminal && now_seconds() - last_shown > 0.2) {
            fprintf(stderr, "\rtesting: %lld of %lld\033[K", (long long)e->done, (long long)e->all);
            last_shown = now_seconds();
            bar_shown = 1;
        }
        break;
    case MHLA_TRAIN_EVALUATED:
        train_clear_bar();
        if (isnan(e->test_accuracy) && isnan(e->test_bits_per_byte)) { /* measured by its loss */
            fprintf(stderr, "step %lld: test loss %.4f", (long long)e->step, e->test_loss);
            if (isfinite(e->ema_loss)) fprintf(stderr, ", of the average %.4f", e->ema_loss);
        } else if (isfinite(e->test_bits_per_byte)) {
            fprintf(stderr, "step %lld: %.4f bits per byte of validation text", (long long)e->step,
                    e->test_bits_per_byte);
            if (isfinite(e->ema_bits_per_byte)) fprintf(stderr, ", the average %.4f", e->ema_bits_per_byte);
            fprintf(stderr, ", loss %.4f", e->test_loss);
        } else {
            fprintf(stderr, "epoch %.4g: test accuracy %.2f %%", e->epoch, 100.0 * e->test_accuracy);
            if (isfinite(e->ema_accuracy)) fprintf(stderr, ", of the average %.2f %%", 100.0 * e->ema_accuracy);
            fprintf(stderr, ", loss %.4f", e->test_loss);
        }
        fprintf(stderr, "%s\n", e->best ? ", the best so far" : "");
        break;
    case MHLA_TRAIN_CHECKPOINT: break;
    }
}

mhla_status train_run(mhla_trainer *trainer, mhla_train_fn report, void *user, int *finished) {
    running = trainer;
    interrupt_watch(on_signal);
    const mhla_status status = mhla_trainer_run(trainer, report, user, finished);
    interrupt_forget();
    running = NULL;
    return status;
}

/* ---- The page: there from the start, renewed after each evaluation and at the end ---- */

static mhla_status write_report(const char *folder) {
    char report[4200];
    if (mhla_rank() > 0) return MHLA_OK;
    snprintf(report, sizeof report, "%s/report.html", folder);
    return mhla_report_write(report, &folder, 1);
}

static void show(void *folder, const mhla_train_event *e) {
    static int evaluated;
    train_show(NULL, e);
    if (e->kind == MHLA_TRAIN_EVALUATED) evaluated = 1;
    if (e->kind != MHLA_TRAIN_CHECKPOINT || !evaluated) return; /* it shows the weights of a checkpoint */
    evaluated = 0;
    if (write_report(folder) != MHLA_OK) {
        train_clear_bar();
        fprintf(stderr, "mhla %s: the report was not written: %s\n", verb, mhla_message());
    }
}

/* ---- The verb ---------------------------------------------------------------------------------------------------------- */

static int run(const command *c, char *folder, mhla_trainer *trainer) {
    mhla_context *context = NULL;
    mhla_status status = MHLA_OK;
    int finished = 0;
    interrupt_outlive_reader();
    if (c->threads) {
        status = mhla_context_create(
            &context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)c->threads});
        if (status == MHLA_OK) mhla_trainer_set_context(trainer, context);
    }
    mhla_model_info info = {.size = sizeof info};
    if (status == MHLA_OK) status = mhla_model_query(mhla_trainer_model(trainer), &info);
    if (status == MHLA_OK && !quiet && mhla_rank() == 0) {
        char count[32];
        fprintf(stderr, "%s, %s parameters, into %s\n", info.name, text_count(count, sizeof count, info.parameters),
                folder);
    }
    if (mhla_ranks() > 1 && mhla_rank() == 0)
        snprintf(hurried, sizeof hurried,
                 "Stopping after this step. If the launcher does not wait for the checkpoint, resume from the one "
                 "before with: %s train "
                 "--resume %s\n",
                 cli_program, folder);
    if (status == MHLA_OK) write_report(folder); /* nothing to draw yet may be a failure */
    if (status == MHLA_OK) status = train_run(trainer, show, folder, &finished);
    train_clear_bar();
    mhla_trainer_free(trainer);
    mhla_context_free(context);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (!finished) {
        write_report(folder);
        if (mhla_rank() == 0)
            fprintf(stderr, "Stopped; a checkpoint is written. Resume with: %s train --resume %s\n", cli_program,
                    folder);
        return interrupt_code();
    }
    status = write_report(folder);
    if (status != MHLA_OK) return cli_failed(verb, status);
    printf("Finished: %s/best is the best checkpoint, %s/report.html shows the run.\n", folder, folder);
    return CLI_OK;
}

int cmd_train(int argc, char **argv) {
    command c = {0};
    mhla_trainer *trainer = NULL;
    char folder[4096], recipe[4096];
    int code = parse(&c, argc, argv);
    if (code < 0 && c.help) {
        print_help();
        code = CLI_OK;
    }
    if (code < 0 && c.recipe) code = recipe_find(verb, recipe, c.recipe);
    if (code < 0) {
        quiet = c.quiet;
        mhla_status status;
        if (c.resume) {
            snprintf(folder, sizeof folder, "%s", c.resume);
            status = mhla_trainer_resume(&trainer, folder);
        } else {
            if (c.out) {
                snprintf(folder, sizeof folder, "%s", c.out);
            } else if (c.recipe) {
                const char *name = strrchr(c.recipe, '/') ? strrchr(c.recipe, '/') + 1 : c.recipe;
                snprintf(folder, sizeof folder, "runs/%.*s%s%s", (int)strcspn(name, "."), name, c.attention ? "-" : "",
                         c.attention ? c.attention : "");
            } else {
                char usual[64] = "";
                mhla_model_preset(0, usual);
                snprintf(folder, sizeof folder, "runs/%s-%s", c.model ? c.model : usual,
                         c.attention ? c.attention : "mhla");
            }
            status = mhla_trainer_create(&trainer, folder, c.recipe ? recipe : NULL, (const char *const *)c.settings,
                                         c.count);
        }
        code = status == MHLA_OK ? run(&c, folder, trainer) : cli_failed(verb, status);
        if (trainer == NULL && status == MHLA_EINVAL && c.count) code = CLI_USAGE; /* a file's is MHLA_EDATA */
    }
    for (int i = 0; i < c.count; i++) free(c.settings[i]);
    free(c.settings);
    return code;
}
