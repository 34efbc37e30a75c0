/* Inside the report: a run as it was read, and the sections of the page. */
#ifndef MHLA_REPORT_REPORT_PARTS_H
#define MHLA_REPORT_REPORT_PARTS_H

#include "file/json.h"
#include "report/chart.h"
#include "report/report.h"

enum { MHLA_REPORT_PATH = 4096 };

/* A mixing matrix of the last checkpoint. */
typedef struct mhla_report_mix {
    char name[96]; /* "layer 3", "layer 3, head 1" */
    int M;
    float *mix; /* [M,M] */
} mhla_report_mix;

/* Pictures that a diffusion model or an autoencoder made after a step. */
typedef struct mhla_report_grid {
    int64_t step;
    int width, height;
    char *png; /* base64 */
} mhla_report_grid;

typedef struct mhla_report_run {
    const char *folder;                /* as given */
    char *name;                        /* foreign text, as all of the strings here */
    int colour;                        /* for mhla_chart_class: its attention's */
    json_t *recipe, *config, *samples; /* NULL where there is none */
    json_t *rows;                      /* samples/rows.json, the captions beside the grids; NULL: classes */

    mhla_series loss, accuracy, rate, norm, speed; /* of the steps */
    mhla_series test_accuracy, test_loss, ema_accuracy;
    mhla_series test_bits, ema_bits; /* per byte, of a language model */
    mhla_series ema_loss, psnr;
    int text;      /* it is one: bits per byte, tokens */
    int by_loss;   /* it makes pictures: measured by the loss */
    int codec;     /* an autoencoder */
    double epochs; /* of the last line; NaN without lines */
    int64_t steps;
    int64_t test_images; /* of the last test, or its tokens; -1: not told */
    double best;         /* accuracy, bits per byte or loss; NaN without tests */
    double best_epoch;
    int best_is_average;
    json_t *classes; /* accuracy of each at the last test that told it */

    int64_t parameters;  /* numbers in the checkpoint, -1: none */
    char checkpoint[64]; /* "step-00001200" */
    mhla_report_mix *mixes;
    int mix_count;
    int grid[2];   /* blocks on two axes, zeros: not known */
    float *before; /* [M,M] as training began, NULL: not known */
    int before_M;

    mhla_report_grid *grids;
    int grid_count;

    char **remarks;
    int remark_count;
} mhla_report_run;

/* ---- report_run.c ---- */

/* MHLA_EDATA or MHLA_EIO where nothing of a run is there, MHLA_ENOMEM; everything else becomes a remark. */
mhla_status mhla_report_read(mhla_report_run *run, const char *folder);
void mhla_report_run_free(mhla_report_run *run);
/* Text of recipe or config by a path of keys such as "data.source", or "". */
const char *mhla_report_text(const json_t *tree, const char *path);
/* The name of a class, or NULL. */
const char *mhla_report_class(const mhla_report_run *run, int i);

/* ---- report_grids.c ---- */

/* Fills in grids; what cannot be read is left out. */
mhla_status mhla_report_read_grids(mhla_report_run *run);
void mhla_report_write_grids(FILE *out, const mhla_report_run *runs, int count);

/* ---- report_mix.c, report_samples.c: sections; they write nothing where there is nothing to show ---- */

mhla_status mhla_report_write_mixing(FILE *out, const mhla_report_run *run);
void mhla_report_write_samples(FILE *out, const mhla_report_run *runs, int count);

/* The colour of 0 (little) to 1 (much), also for those who see no colours. */
void mhla_report_shade(uint8_t rgb[3], double part);

/* ---- report.c ---- */

/* A page: _begin, its title as text, _body, its heading, "</h1></header><main>", its contents, _end. */
void mhla_report_begin(FILE *out);
void mhla_report_body(FILE *out);
void mhla_report_end(FILE *out);

/* Which colour is which run; nothing for a single one. */
void mhla_report_write_keys(FILE *out, const mhla_report_run *runs, int count);

/* ---- palette.css, report.css, report.js: what the page looks like, and what it does when one points at it. Colours are variables,
 * one set for light and one for dark. Without the script only the values under the pointer are missing. ---- */

extern const char mhla_palette_css[], mhla_report_css[], mhla_report_js[];

#endif
