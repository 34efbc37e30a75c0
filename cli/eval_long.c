/* mhla eval --longbench: answers to long prompts, scored task by task. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "eval.h"

typedef struct answers_log {
    FILE *file; /* NULL: nowhere */
    int bar;
} answers_log;

static void take_answer(void *user, const mhla_longbench_event *e) {
    const answers_log *log = user;
    if (log->file) {
        eval_samples_begin(log->file);
        json_put_text("task", e->task);
        json_put_int("question", e->question);
        json_put_text("prompt", e->prompt);
        json_put_text("answer", e->answer);
        json_put_open("answers", '[');
        for (int i = 0; i < e->wanteds; i++) json_put_text(NULL, e->wanted[i]);
        json_put_close(']');
        json_put_real("score", e->score);
        json_put_close('}');
        json_put_flat(0);
        json_put_to(NULL);
    }
    if (log->bar)
        fprintf(stderr, "\r%s: %lld of %lld\033[K", e->task, (long long)e->question + 1, (long long)e->questions);
}

/* Mean score of the rows of one group (NULL: of all), or of those that the paper averages; how many there are. */
static int mean_of(double *mean, const mhla_longbench_result *r, const char *group, int paper) {
    double sum = 0.0;
    int n = 0;
    for (int i = 0; i < r->count; i++) {
        const mhla_longbench_row *row = &r->rows[i];
        if ((group && strcmp(row->group, group) != 0) || (paper && !row->paper)) continue;
        sum += row->score;
        n++;
    }
    *mean = n ? sum / n : NAN;
    return n;
}

enum { PAPER = 14 };

static void print_table(const mhla_longbench_result *r) {
    double mean;
    char a[32], b[32];
    printf("\n%-21s %-20s %-20s %9s %9s %8s\n", "task", "group", "metric", "questions", "cut", "score");
    for (int i = 0; i < r->count; i++) {
        const mhla_longbench_row *x = &r->rows[i];
        printf("%-21s %-20s %-20s %9s %9s %8.2f  (+- %.2f)\n", x->task, x->group, x->metric,
               text_count(a, sizeof a, x->questions), text_count(b, sizeof b, x->cut), x->score, x->error);
    }
    printf("\n");
    for (int i = 0; i < r->count; i++) /* groups follow each other */
        if (i == 0 || strcmp(r->rows[i].group, r->rows[i - 1].group) != 0) {
            const int n = mean_of(&mean, r, r->rows[i].group, 0);
            printf("%-21s %d %s %*.2f\n", r->rows[i].group, n, n == 1 ? "task " : "tasks", 64, mean);
        }
    int n = mean_of(&mean, r, NULL, 0);
    printf("%-21s %d %s %*.2f\n", "average", n, n == 1 ? "task " : "tasks", n > 9 ? 63 : 64, mean);
    n = mean_of(&mean, r, NULL, 1);
    if (n == PAPER) printf("%-21s %d tasks %*.2f\n", "average of the paper", n, 63, mean);
    printf("\ncut: prompts that lost their middle; scores from 0 to 100\n");
}

static void print_json(const mhla_longbench_result *r) {
    double mean;
    json_put_open("tasks", '[');
    for (int i = 0; i < r->count; i++) {
        const mhla_longbench_row *x = &r->rows[i];
        json_put_open(NULL, '{');
        json_put_text("task", x->task);
        json_put_text("group", x->group);
        json_put_text("metric", x->metric);
        json_put_int("questions", x->questions);
        json_put_int("cut", x->cut);
        json_put_real("score", x->score);
        json_put_real("score_stderr", x->error);
        json_put_close('}');
    }
    json_put_close(']');
    mean_of(&mean, r, NULL, 0);
    json_put_real("average", mean);
    if (mean_of(&mean, r, NULL, 1) == PAPER) json_put_real("average_paper", mean);
    json_put_real("seconds", r->seconds);
    json_put_close('}');
}

int eval_longbench(mhla_model *model, const eval_options *o) {
    const mhla_longbench_desc desc = {
        .size = sizeof desc, .context = o->max_tokens, .beyond = eval_beyond(o), .limit = o->limit};
    mhla_longbench_result result = {.size = sizeof result};
    answers_log log = {.file = o->samples ? eval_samples_open(o->samples) : NULL, .bar = isatty(STDERR_FILENO)};
    int unwritten = o->samples && log.file == NULL ? errno : 0;
    mhla_status status = MHLA_OK;
    if (!unwritten) status = mhla_lm_longbench(model, &result, o->longbench, &desc, take_answer, &log);
    if (log.bar) fprintf(stderr, "\r\033[K");
    if (log.file) unwritten = eval_samples_end(log.file);
    if (unwritten) fprintf(stderr, "mhla eval: %s: cannot be written: %s\n", o->samples, strerror(unwritten));
    if (status == MHLA_OK && !unwritten) status = eval_print_model(model, o->json);
    if (status == MHLA_OK && !unwritten) (o->json ? print_json : print_table)(&result);
    if (status != MHLA_OK) return cli_failed("eval", status);
    return unwritten ? CLI_FAILED : CLI_OK;
}
