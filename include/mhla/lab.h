/* lab.h - the experiments of the paper at a size that two cores can train, on top of nn.h and lm.h.
 *
 * An experiment has arms (models that differ in one thing), each trained from several seeds; a table of what was measured
 * with the paper's own figures beside it; and claims, each judged by a stated test. Its parts, an arm with a seed each, go
 * into a file of results one after the other: what is there is not computed again, and a training that was killed goes on from
 * its last checkpoint. Table, figure and verdict are functions of that file alone.
 *
 *   mhla_lab_open(&lab, &desc);  mhla_lab_run(lab, report, user, &finished);  mhla_lab_write(lab, "docs/results");
 *
 * Manners are those of nn.h. */
#ifndef MHLA_LAB_H
#define MHLA_LAB_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. What there is ---- */

typedef struct mhla_lab_info {
    size_t size;
    const char *name;  /* "deit" */
    const char *title; /* one line */
    const char *claim; /* what the paper says, in a sentence */
    const char *paper; /* where in the paper, and at what scale */
    const char *known; /* what is known of it at our size */
    const char *data;  /* what it needs of mhla_data_query, or NULL */
    int arms;
    double minutes, quick; /* on two idle cores: all seeds; --quick */
    int labels;            /* it has labels that can be shuffled */
    int seeds;             /* of the whole experiment, unless another number is asked for */
    double hours;          /* on two idle cores: the long form; 0: it has none */
} mhla_lab_info;

/* Experiment i, or MHLA_ERANGE past the last. */
MHLA_API mhla_status mhla_lab_query(int i, mhla_lab_info *info);

/* ---- 2. Running one ---- */

typedef struct mhla_lab mhla_lab;

typedef struct mhla_lab_desc {
    size_t size;
    const char *experiment;
    const char *work;    /* where runs and results lie; NULL: runs/reproduce. Experiments share what they train alike */
    const char *data;    /* folder of the data; NULL: where mhla data puts it */
    int seeds;           /* 0 = the experiment's own number, or 1 if quick; the seeds are 1, 2, .. */
    int quick;           /* smaller and shorter; kept apart from the whole experiment */
    int shuffle;         /* the control: labels change places, so that nothing can be learned; kept apart, too */
    const char *program; /* what stands in the results as the maker: "mhla 0.5.0, commit abc"; NULL: the version */
    const mhla_context *context;
    int longer; /* the long form: more tokens or more updates, a night; kept apart */
} mhla_lab_desc;

/* Finds the experiment and what there is of its results. MHLA_EINVAL names the nearest experiment where there is none of that
 * name, MHLA_EDATA the line of a results file that makes no sense, MHLA_EIO what cannot be written, or data that is not there. */
MHLA_API mhla_status mhla_lab_open(mhla_lab **lab, const mhla_lab_desc *desc);
MHLA_API void mhla_lab_free(mhla_lab *lab);

typedef enum mhla_lab_kind {
    MHLA_LAB_PART, /* a part begins */
    MHLA_LAB_STEP, /* train, or done of all */
    MHLA_LAB_DONE  /* a part is in the results; text says what was measured */
} mhla_lab_kind;

typedef struct mhla_lab_event {
    size_t size;
    mhla_lab_kind kind;
    int part, parts; /* 1 .. parts */
    const char *arm;
    int seed;
    const mhla_train_event *train; /* of its training, or NULL */
    int64_t done, all;             /* of what is no training */
    const char *text;
} mhla_lab_event;
typedef void (*mhla_lab_fn)(void *user, const mhla_lab_event *event);

/* Makes what is missing of the results. *finished is 0 where mhla_lab_stop ended it early. report may be NULL. */
MHLA_API mhla_status mhla_lab_run(mhla_lab *lab, mhla_lab_fn report, void *user, int *finished);

/* Asks mhla_lab_run to stop soon; for signal handlers and other threads. 0: the present part cannot be stopped, and it is
 * safe to end the process: that part is made again the next time. */
MHLA_API int mhla_lab_stop(mhla_lab *lab);

/* ---- 3. What came out ---- */

typedef enum mhla_verdict { MHLA_VERDICT_UNDECIDED = 0, MHLA_VERDICT_HOLDS, MHLA_VERDICT_FAILS } mhla_verdict;

/* "holds", "does not hold", "undecided at this size" */
MHLA_API const char *mhla_verdict_text(mhla_verdict verdict);

typedef struct mhla_lab_result {
    size_t size;
    int parts, made;      /* in all, in the results */
    mhla_verdict verdict; /* of all claims together */
    const char *folder;   /* that holds results.jsonl; the lab's */
} mhla_lab_result;
MHLA_API mhla_status mhla_lab_result_query(mhla_lab *lab, mhla_lab_result *result);

/* The table, the claims and their verdicts as text for a terminal; the caller frees it. */
MHLA_API mhla_status mhla_lab_text(mhla_lab *lab, char **text);

/* The page NAME.md with its figures NAME-1.svg, .. into `folder`, which is made if it is not there. Those of a quick run are
 * called NAME-quick, of a long one NAME-long, of the control NAME-shuffled. */
MHLA_API mhla_status mhla_lab_write(mhla_lab *lab, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
