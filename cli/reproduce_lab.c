/* mhla reproduce EXPERIMENT: an experiment of the lab from its data to its page. */
#include <commit.h> /* made by the build */
#include <mhla/lab.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "reproduce.h"

static int64_t seeds, threads;
static int quick, longer, shuffle, json;
static const char *work, *out, *data;

static const cli_option options[] = {
    {"quick", CLI_FLAG, &quick, NULL, "smaller, shorter, one seed: takes minutes and checks that everything works"},
    {"long", CLI_FLAG, &longer, NULL, "more tokens or more updates: takes a night; some experiments only"},
    {"seeds", CLI_INT, &seeds, "N", "number of seeds, from 1; default 3 or 5, with --quick 1"},
    {"shuffle-labels", CLI_FLAG, &shuffle, NULL, "the control: shuffled labels; the verdict must be undecided"},
    {"out", CLI_TEXT, &out, "FOLDER", "folder of the page and its figures; default: beside the results in --work"},
    {"work", CLI_TEXT, &work, "FOLDER",
     "folder of runs and results, which the next call resumes; default runs/reproduce"},
    {"data", CLI_TEXT, &data, "FOLDER", "folder of the data; default: it is downloaded"},
    {"threads", CLI_INT, &threads, "N", "default: what OpenMP would use"},
    {"json", CLI_FLAG, &json, NULL, "print the verdict and the folder of the results as JSON instead of the table"},
    {0},
};

static mhla_lab *running;

static const char stopped[] = "Stopped. The same command resumes it.\n";

static void on_signal(int number) {
    if (running && mhla_lab_stop(running)) return;
    (void)!write(STDERR_FILENO, stopped, sizeof stopped - 1);
    _exit(128 + number); /* a part that cannot be stopped is made again the next time */
}

static void show(void *user, const mhla_lab_event *e) {
    (void)user;
    static double shown;
    if (mhla_rank() > 0 && e->kind != MHLA_LAB_PART && e->kind != MHLA_LAB_DONE) return;
    if (e->kind == MHLA_LAB_PART)
        fprintf(stderr, "part %d of %d: %s, seed %d\n", e->part, e->parts, e->arm, e->seed);
    else if (e->train && (e->train->kind == MHLA_TRAIN_STEP || e->train->kind == MHLA_TRAIN_EVALUATING))
        train_show(NULL, e->train);
    else if (e->kind == MHLA_LAB_STEP && !e->train && now_seconds() - shown > 10.0) {
        shown = now_seconds();
        fprintf(stderr, "%s: %lld of %lld\n", e->arm, (long long)e->done, (long long)e->all);
    } else if (e->kind == MHLA_LAB_DONE) {
        train_clear_bar();
        fprintf(stderr, "part %d of %d: %s\n", e->part, e->parts, e->text);
    }
}

static mhla_status run(mhla_lab *lab, int *finished) {
    running = lab;
    interrupt_outlive_reader();
    interrupt_watch(on_signal);
    const mhla_status status = mhla_lab_run(lab, show, NULL, finished);
    interrupt_forget();
    running = NULL;
    train_clear_bar();
    return status;
}

/* Can the folder be written to, or be made? Asked before an hour of work, not after it. */
static int can_write(const char *folder) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) return 0;
    while (access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            snprintf(path, sizeof path, "%s", slash ? "/" : ".");
            break;
        }
        *slash = '\0';
    }
    return access(path, W_OK | X_OK) == 0;
}

/* Finished results may lie where nothing can be written: the table is printed, and the page that is there stays. */
static mhla_status print_result(mhla_lab *lab, const char *name) {
    mhla_lab_result result = {.size = sizeof result};
    char *text = NULL;
    mhla_status status = mhla_lab_result_query(lab, &result);
    const char *pages = out ? out : result.folder;
    const int written = status == MHLA_OK && (out || can_write(result.folder));
    if (written) status = mhla_lab_write(lab, pages);
    if (status == MHLA_OK) status = mhla_lab_text(lab, &text);
    if (status != MHLA_OK) return status;
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("experiment", name);
        json_put_int("parts", result.parts);
        json_put_text("verdict", mhla_verdict_text(result.verdict));
        json_put_text("results", result.folder);
        if (written) json_put_text("page", pages);
        json_put_close('}');
    } else {
        text_put(stdout, text, strlen(text));
        printf("\nResults: %s/results.jsonl", result.folder);
        printf(written ? "; page and figures: %s\n" : "\n", pages);
    }
    if (!written)
        fprintf(stderr, "mhla reproduce %s: %s cannot be written: no new page; --out FOLDER writes one elsewhere\n",
                name, result.folder);
    free(text);
    return MHLA_OK;
}

/* The data, unless it is there. */
static int fetch(const char *name) {
    mhla_data_info set = {.size = sizeof set};
    char text[64], *arguments[] = {text};
    int there = 0;
    for (int i = 0; mhla_data_query(i, &set) == MHLA_OK; i++)
        if (strcmp(set.name, name) == 0 && mhla_data_check(name, set.folder, &there) == MHLA_OK && there) return CLI_OK;
    snprintf(text, sizeof text, "%s", name);
    return cmd_data(1, arguments);
}

int reproduce_lab(const char *name, int argc, char **argv) {
    mhla_lab *lab = NULL;
    mhla_context *context = NULL;
    mhla_lab_info info = {.size = sizeof info};
    int finished = 0;
    char verb[64], program[128], text[2048];
    for (int i = 0; mhla_lab_query(i, &info) == MHLA_OK; i++)
        if (strcmp(info.name, name) == 0) break;
    snprintf(verb, sizeof verb, "reproduce %s", name);
    snprintf(text, sizeof text,
             "%s\n\nThe paper says: %s (%s)\nKnown: %s\n%d arms, %d seeds; about %.0f minutes on two idle cores, %.0f "
             "with --quick",
             info.title, info.claim, info.paper, info.known, info.arms, info.seeds, info.minutes, info.quick);
    const size_t used = strlen(text);
    if (info.hours > 0.0)
        snprintf(text + used, sizeof text - used, ", %.0f hours with --long.\n", info.hours);
    else
        snprintf(text + used, sizeof text - used, ".\n");
    const cli_usage usage = {.verb = verb, .arguments = "", .text = text, .options = options};
    const int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    if (seeds > 100) return cli_wrong(verb, "--seeds is %lld: expected 1 to 100", (long long)seeds);
    if (threads > 1024) return cli_wrong(verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (shuffle && !info.labels) return cli_wrong(verb, "%s has no labels to shuffle", name);
    if (longer && quick) return cli_wrong(verb, "--quick and --long exclude each other");
    if (longer && info.hours == 0.0) return cli_wrong(verb, "%s has no long form", name);
    if (data && info.data == NULL) return cli_wrong(verb, "%s takes no data", name);
    if (out && !can_write(out)) {
        fprintf(stderr, "mhla %s: %s cannot be written\n", verb, out);
        return CLI_FAILED;
    }
    if (info.data && data == NULL) { /* by one rank, for all */
        const int fetched = mhla_rank() == 0 ? fetch(info.data) : CLI_OK;
        if (fetched != CLI_OK) return fetched;
        const mhla_status there = mhla_ranks_agree(MHLA_OK);
        if (there != MHLA_OK) return cli_failed(verb, there);
    }
    snprintf(program, sizeof program, "mhla %s, commit %s", mhla_version(), MHLA_COMMIT);
    mhla_status status = MHLA_OK;
    if (threads)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    if (status == MHLA_OK)
        status = mhla_lab_open(&lab, &(mhla_lab_desc){.size = sizeof(mhla_lab_desc),
                                                      .experiment = name,
                                                      .work = work,
                                                      .data = data,
                                                      .seeds = (int)seeds,
                                                      .quick = quick,
                                                      .shuffle = shuffle,
                                                      .program = program,
                                                      .context = context,
                                                      .longer = longer});
    if (status == MHLA_OK) status = run(lab, &finished);
    if (status == MHLA_OK && finished && mhla_rank() == 0) status = print_result(lab, name);
    mhla_lab_free(lab);
    mhla_context_free(context);
    if (status != MHLA_OK) return cli_failed(verb, status);
    if (!finished) {
        if (mhla_rank() == 0) fputs(stopped, stderr);
        return interrupt_code();
    }
    return CLI_OK;
}
