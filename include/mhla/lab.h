/* lab.h - the experiments of the paper at a size that two cores can train, on top of nn.h and lm.h.
 *
 * An experiment has arms (models that differ in one thing), each trained from several seeds; a table of measurements with the
 * paper's figures beside them; and claims, each decided by a stated test. A part is one arm with one seed. Each finished part
 * is appended to a file of results and is not computed again. A killed training resumes from its last checkpoint. Table,
 * figure and verdict are computed from this file only.
 *
 *   mhla_lab_open(&lab, &desc);  mhla_lab_run(lab, report, user, &finished);  mhla_lab_write(lab, "docs/results");
 *
 * The conventions are those of nn.h. */
#ifndef MHLA_LAB_H
#define MHLA_LAB_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. The experiments ---- */

typedef struct mhla_lab_info {
    size_t size;
    const char *name;  /* "deit" */
    const char *title; /* one line */
    const char *claim; /* the paper's claim, one sentence */
    const char *paper; /* its place in the paper, and the scale there */
    const char *known; /* the result so far at this size */
    const char *data;  /* its dataset (mhla_data_query), or NULL */
    int arms;
    double minutes, quick; /* on two idle cores: all seeds; the quick form */
    int labels;            /* 1: it has labels that can be shuffled */
    int seeds;             /* default number of seeds */
    double hours;          /* on two idle cores: the long form; 0: it has none */
} mhla_lab_info;

/* Experiment i, or MHLA_ERANGE past the last. */
MHLA_API mhla_status mhla_lab_query(int i, mhla_lab_info *info);

/* ---- 2. Running one ---- */

typedef struct mhla_lab mhla_lab;

typedef struct mhla_lab_desc {
    size_t size;
    const char *experiment;
    const char *work;    /* folder of runs and results; NULL: runs/reproduce. Experiments share runs with equal settings */
    const char *data;    /* folder of the data; NULL: the folder of mhla data */
    int seeds;           /* 0 = the default number, 1 if quick; the seeds are 1, 2, .. */
    int quick;           /* smaller and shorter; separate results */
    int shuffle;         /* the control: labels are permuted, so that nothing can be learned; separate results */
    const char *program; /* the program that the results name: "mhla 0.5.0, commit abc"; NULL: the version */
    const mhla_context *context;
    int longer; /* the long form: more tokens or more updates, a night; separate results */
} mhla_lab_desc;

/* Opens the experiment and its results so far. MHLA_EINVAL names the nearest experiment if the name is unknown; MHLA_EDATA an
 * invalid line of the results file; MHLA_EIO a file that cannot be written, or missing data. */
MHLA_API mhla_status mhla_lab_open(mhla_lab **lab, const mhla_lab_desc *desc);
MHLA_API void mhla_lab_free(mhla_lab *lab);

typedef enum mhla_lab_kind {
    MHLA_LAB_PART, /* a part begins */
    MHLA_LAB_STEP, /* progress: train, or done and all */
    MHLA_LAB_DONE  /* a part is finished; text has its measurements */
} mhla_lab_kind;

typedef struct mhla_lab_event {
    size_t size;
    mhla_lab_kind kind;
    int part, parts; /* 1 .. parts */
    const char *arm;
    int seed;
    const mhla_train_event *train; /* progress of its training, or NULL */
    int64_t done, all;             /* progress of anything else */
    const char *text;
} mhla_lab_event;
typedef void (*mhla_lab_fn)(void *user, const mhla_lab_event *event);

/* Computes all missing parts. *finished is 0 if mhla_lab_stop stopped it. report may be NULL. */
MHLA_API mhla_status mhla_lab_run(mhla_lab *lab, mhla_lab_fn report, void *user, int *finished);

/* Asks mhla_lab_run to stop soon; for signal handlers and other threads. Returns 0 if the current part cannot be stopped. It is
 * then safe to end the process: the next run repeats this part. */
MHLA_API int mhla_lab_stop(mhla_lab *lab);

/* ---- 3. Results ---- */

typedef enum mhla_verdict { MHLA_VERDICT_UNDECIDED = 0, MHLA_VERDICT_HOLDS, MHLA_VERDICT_FAILS } mhla_verdict;

/* "holds", "does not hold", "undecided at this size" */
MHLA_API const char *mhla_verdict_text(mhla_verdict verdict);

typedef struct mhla_lab_result {
    size_t size;
    int parts, made;      /* in all, finished */
    mhla_verdict verdict; /* of all claims together */
    const char *folder;   /* of results.jsonl; owned by the lab */
} mhla_lab_result;
MHLA_API mhla_status mhla_lab_result_query(mhla_lab *lab, mhla_lab_result *result);

/* The table, the claims and their verdicts as text for a terminal; the caller frees it. */
MHLA_API mhla_status mhla_lab_text(mhla_lab *lab, char **text);

/* Writes the page NAME.md with its figures NAME-1.svg, .. to `folder`, which is created if it does not exist. The pages of
 * quick runs are called NAME-quick, of long runs NAME-long, of the control NAME-shuffled. */
MHLA_API mhla_status mhla_lab_write(mhla_lab *lab, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
