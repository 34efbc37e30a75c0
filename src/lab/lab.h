/* The lab, inside: what an experiment is (a row of experiments.c), its results in memory, how claims are judged, and the ways in
 * which a part is made. */
#ifndef MHLA_LAB_LAB_H
#define MHLA_LAB_LAB_H

#include <mhla/lab.h>
#include <signal.h>
#include <stdio.h>

#include "file/json.h"

enum {
    MHLA_LAB_ARMS = 16,
    MHLA_LAB_SEEDS = 100,
    MHLA_LAB_SEARCH_SEED = 1000, /* of the search of learning rates: above all that MHLA_LAB_SEEDS allows */
    MHLA_LAB_COLUMNS = 16,
    MHLA_LAB_CLAIMS = 16,
    MHLA_LAB_LINES = 12,
    MHLA_LAB_FIGURES = 8,
    MHLA_LAB_PATH = 4096 - 256,
    MHLA_LAB_KEY = 17 /* 16 hexadecimal digits */
};

/* ---- An experiment ---- */

typedef struct mhla_lab_arm {
    const char *name;     /* "mhla": in results and messages */
    const char *title;    /* of the table */
    const char *settings; /* "model.attention=mhla model.blocks=2,2": what it has of its own, after the experiment's */
    double paper[2];      /* the paper's figures, in the order of `paper_titles`; 0: none */
} mhla_lab_arm;

typedef struct mhla_lab_column {
    const char *measure; /* ended by a row without */
    const char *title;   /* "accuracy, %" */
    double scale;        /* shown times this; 0 = 1 */
    int digits;
} mhla_lab_column;

/* "`a` has more (or less) of the measure than `b`", or than `value` where b is NULL. */
typedef struct mhla_lab_claim {
    const char *text; /* ended by a row without */
    const char *measure, *a, *b;
    int less;
    double value;
} mhla_lab_claim;

/* Lines over x: arm `arm` has the measures PREFIX<x> for each x of the list. */
typedef struct mhla_lab_lines {
    const char *title, *x_name, *y_name, *prefix;
    double x[MHLA_LAB_LINES], x_quick[MHLA_LAB_LINES]; /* ended by 0 */
    int log_x, log_y;
    double scale; /* of y; 0 = 1 */
} mhla_lab_lines;

struct mhla_lab_part;
typedef struct mhla_experiment {
    mhla_lab_info info;                    /* size and arms are filled in by mhla_lab_query */
    const char *settings, *quick_settings; /* of all arms, the second ones added in a quick run */
    const char *long_settings;             /* and these in a long one; NULL: there is no long form */
    const char *paper_titles[2];           /* "paper: top-1, %"; NULL: none */
    const char *paper_note;                /* where there are no figures to quote */
    mhla_lab_arm arms[MHLA_LAB_ARMS];      /* ended by one without a name */
    mhla_lab_column columns[MHLA_LAB_COLUMNS];
    mhla_lab_claim claims[MHLA_LAB_CLAIMS];
    const char *gate; /* the measure that must be above `gate_least` for an arm to count as trained; NULL: none */
    double gate_least;
    const char *gate_text;                  /* the same in words */
    mhla_lab_lines lines[MHLA_LAB_FIGURES]; /* figures; ended by one without a prefix */
    const char
        *clips; /* of its clips, a file for each arm that has some (mhla_lab_clips_path): what they show; NULL: none */
    int dots;   /* and so many columns, the first ones, with a dot for each seed */
    int timed;  /* it measures times: its parts do not run beside each other */
    int paper_digits;                                   /* behind the point, of the paper's figures */
    const char *arm_in_quick;                           /* arms of a quick run, "mhla,linear,"; NULL: all */
    mhla_status (*prepare)(struct mhla_lab_part *part); /* what its trainings need beside the data; may be NULL */
    /* What a part measures: puts numbers into part->measures. */
    mhla_status (*make)(struct mhla_lab_part *part);
    /* Sentences that follow from the results: Markdown, or nothing. May be NULL. */
    void (*remark)(FILE *out, const struct mhla_lab *lab);
} mhla_experiment;

extern const mhla_experiment mhla_experiments[];
extern const int mhla_experiment_count;
/* By name; MHLA_EINVAL with the nearest one otherwise. */
mhla_status mhla_experiment_find(const mhla_experiment **experiment, const char *name);
/* mhla_lab_open of a row that need not be in the table. */
mhla_status mhla_experiment_open(mhla_lab **lab, const mhla_experiment *experiment, const mhla_lab_desc *desc);
/* Is the arm part of this run? */
int mhla_experiment_has(const mhla_experiment *e, int arm, int quick);

/* ---- Results ---- */

typedef struct mhla_lab_row {
    int arm, seed;
    json_t
        *measures; /* an object: "accuracy": 0.85, and "accuracy_error" where the error of the measurement is known */
    char *program, *machine, *data, *made;
    double seconds;
} mhla_lab_row;

struct mhla_lab {
    const mhla_experiment *experiment;
    int seeds, quick, longer, shuffle;
    int shared;                 /* other ranks make other parts */
    char name[64];              /* "deit-quick-shuffled" */
    char work[MHLA_LAB_PATH];   /* runs of all experiments */
    char folder[MHLA_LAB_PATH]; /* of this one's results */
    char source[MHLA_LAB_PATH]; /* data */
    char data_name[64];         /* the experiment's own, or that of the folder which was given instead */
    char data_sum[80];          /* its SHA-256, or "" without data */
    char program[128], machine[160];
    const mhla_context *context;

    mhla_lab_row *rows; /* [count] the results */
    int count;

    volatile sig_atomic_t stop;
    mhla_trainer *volatile trainer; /* at work, or NULL */
    mhla_lab_fn report;
    void *user;
    int part, parts; /* at work, of all */
};

/* Fills lab->rows with what lab->folder/results.jsonl has of this experiment as it is now: rows whose settings are others, whose
 * data was another or whose arm or seed is not asked for are passed over. A torn last line is, too. */
mhla_status mhla_results_read(mhla_lab *lab);
mhla_status mhla_results_add(mhla_lab *lab, const struct mhla_lab_part *part, double seconds);
void mhla_results_free(mhla_lab *lab);
const mhla_lab_row *mhla_results_find(const mhla_lab *lab, int arm, int seed);
/* The measure of an arm by seeds: values and errors (NaN where unknown), as many as there are. */
int mhla_results_take(const mhla_lab *lab, int arm, const char *measure, double values[MHLA_LAB_SEEDS],
                      double errors[MHLA_LAB_SEEDS]);
int mhla_experiment_arm(const mhla_experiment *e, const char *name); /* -1: none */
int mhla_experiment_seeds(const mhla_experiment *e, int quick);      /* of a run that asks for no number */
/* What the form of this run adds to the settings of all arms, or "". */
const char *mhla_lab_form(const mhla_lab *lab);

/* ---- A part at work ---- */

typedef struct mhla_lab_part {
    mhla_lab *lab;
    int arm, seed;
    char *settings;         /* all of them, separated by blanks: experiment, quick, arm, shuffle, seed */
    char key[MHLA_LAB_KEY]; /* of settings, data and way of measuring */
    json_t *measures;
    char source[MHLA_LAB_PATH]; /* the data of its training; "": the lab's */
    char init[MHLA_LAB_PATH];   /* the run of the lab that its training begins with the weights of; "": none */
} mhla_lab_part;

mhla_status mhla_part_begin(mhla_lab_part *part, mhla_lab *lab, int arm, int seed);
void mhla_part_end(mhla_lab_part *part);
mhla_status mhla_part_put(mhla_lab_part *part, const char *measure, double value,
                          double error); /* error NaN: unknown */
void mhla_part_tell(const mhla_lab_part *part, int64_t done, int64_t all);
/* The value of a setting of the part ("task"), the last one that was given; 0 if there is none. */
int mhla_part_setting(const mhla_lab_part *part, const char *key, char *value, size_t size);
int64_t mhla_part_number(const mhla_lab_part *part, const char *key); /* the same of a whole number; 0 without */

/* search.c: before a part is made. Where its settings have `lab.rates`, the arm's learning rate is searched, put among the measures
 * ("rate") and added to the settings, behind the key: it follows from what is in there. */
mhla_status mhla_part_search(mhla_lab_part *part);
/* The same of another training: `try_one` makes one and says its loss, NaN if it was stopped. PREFIXrate, PREFIXsearch_runs and so on are put
 * among the measures. *rate 0: stopped. */
typedef mhla_status (*mhla_try_fn)(mhla_lab_part *part, const char *rate, double *loss);
mhla_status mhla_search_rate(mhla_lab_part *part, const char *list, const char *prefix, mhla_try_fn try_one,
                             double *rate);

/* Ways of making one. trained.c: to the end, and "parameters" is put; MHLA_OK with run "" if stopped */
mhla_status mhla_part_train(mhla_lab_part *part, char run[MHLA_LAB_PATH]);
/* accuracy and loss of its last evaluation; `early`, the accuracy of its first one if there are several */
mhla_status mhla_part_accuracy(mhla_lab_part *part, const char *run);
mhla_status mhla_part_images(mhla_lab_part *part);    /* accuracy */
mhla_status mhla_part_diffusion(mhla_lab_part *part); /* test loss */
/* collapse.c: rank and entropy of a trained classifier, besides */
mhla_status mhla_part_collapse(mhla_lab_part *part);
/* length.c: the same at each number of tokens of lab.tokens, as accuracy_64 and so on; at those of lab.once by one seed alone, lab.once_seed */
mhla_status mhla_part_length(mhla_lab_part *part);
/* scaling.c: */
mhla_status mhla_part_scaling(mhla_lab_part *part);
void mhla_scaling_remark(FILE *out, const mhla_lab *lab);
/* Of parts that measure times and put "load": were other things at work, so that times are too long, and not all alike? */
void mhla_load_remark(FILE *out, const mhla_lab *lab);
/* language.c: */
mhla_status mhla_part_corpus(mhla_lab_part *part); /* to be prepared */
mhla_status mhla_part_language(mhla_lab_part *part);
/* Text and recall in one part, and the held-out loss during training as curve_STEP. */
mhla_status mhla_part_mixer(mhla_lab_part *part);
void mhla_mixer_remark(FILE *out, const mhla_lab *lab);

/* video.c: loss from scratch or begun as softmax, time of an evaluation, clips */
mhla_status mhla_part_video(mhla_lab_part *part);
void mhla_video_remark(FILE *out, const mhla_lab *lab);

/* ---- Judging: stats.c, no files and no models ---- */

typedef struct mhla_seeds {
    int count;
    double mean, deviation; /* deviation NaN for less than two */
    double error;           /* of a single measurement, the largest; NaN where one is unknown */
} mhla_seeds;
mhla_seeds mhla_seeds_of(const double *values, const double *errors, int count);

/* Probability that |t| is as large or larger by chance, with so many degrees of freedom. */
double mhla_student_p(double t, double freedom);

/* How two samples differ (b NULL: from `value`). With two or more each: Welch's t, where a deviation below the error of a
 * measurement counts as that error. With one: the number of errors of measurement, as z; `p` is NaN where those are unknown. */
typedef struct mhla_difference {
    double mean;          /* a - b */
    double t, freedom, p; /* freedom 0: by the error of measurement alone */
} mhla_difference;
mhla_difference mhla_difference_of(const mhla_seeds *a, const mhla_seeds *b, double value);

typedef struct mhla_judgement {
    mhla_verdict verdict;
    mhla_difference difference;
    double level;    /* what p was held against, after Holm */
    double power;    /* the smallest difference that it would find four times of five; NaN where that is unknown */
    const char *why; /* "" or the reason of being undecided in words */
} mhla_judgement;
/* The t that is passed by chance, upwards, with probability p < 0.5. */
double mhla_student_t(double p, double freedom);
/* The smallest true difference that a test at this level finds with probability 0.8, by the pooled deviation of the seeds (or by
 * the error of the test set where that is larger). NaN with less than two seeds each. */
double mhla_power_of(const mhla_seeds *a, const mhla_seeds *b, double level);
/* Judges all claims of a lab's results; judgements [MHLA_LAB_CLAIMS]; returns how many. *all: holds if each does, fails if any does. */
int mhla_judge(const mhla_lab *lab, mhla_judgement judgements[MHLA_LAB_CLAIMS], mhla_verdict *all);
/* How it is done, for the page. */
extern const char mhla_judge_rule[];

/* ---- The page ---- */

/* table.c: the table as text for a terminal, or as Markdown. */
void mhla_table_text(FILE *out, const mhla_lab *lab);
void mhla_table_markdown(FILE *out, const mhla_lab *lab);
void mhla_claims_text(FILE *out, const mhla_lab *lab, int markdown);

/* page.c: "FOLDER/video-clips-mhla.png", of an arm or "data". */
void mhla_lab_clips_path(char *path, size_t size, const mhla_lab *lab, const char *folder, const char *arm);

/* fair.c: what makes the arms comparable: parameters, learning rates and what their search took, data, power. Markdown. */
void mhla_fair_markdown(FILE *out, const mhla_lab *lab);

/* figure.c: SVG documents that stand alone. */
void mhla_figure_dots(FILE *out, const mhla_lab *lab, const mhla_lab_column *column);
int mhla_figure_lines(FILE *out, const mhla_lab *lab, const mhla_lab_lines *lines); /* 0: there is nothing to draw */

#endif
