/* The table of an experiment and its claims, as text for a terminal and as Markdown: the same cells in two dresses. */
#include <math.h>
#include <string.h>

#include "lab/lab.h"

enum { CELL = 64, COLUMNS = MHLA_LAB_COLUMNS + 3 };

typedef struct cells {
    char text[MHLA_LAB_ARMS + 1][COLUMNS][CELL]; /* row 0 is the head */
    int rows, columns;
} cells;

static double scale_of(double scale) { return scale == 0.0 ? 1.0 : scale; }

/* "85.61 ± 0.22"; without a deviation where there is one seed. */
static void put_sample(char *cell, const mhla_lab_column *c, const mhla_seeds *s) {
    const double k = scale_of(c->scale);
    if (s->count == 0)
        snprintf(cell, CELL, "-");
    else if (s->count == 1)
        snprintf(cell, CELL, "%.*f", c->digits, k * s->mean);
    else
        snprintf(cell, CELL, "%.*f ± %.*f", c->digits, k * s->mean, c->digits, k * s->deviation);
}

static void fill(cells *t, const mhla_lab *lab) {
    const mhla_experiment *e = lab->experiment;
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    const mhla_lab_column *shown[MHLA_LAB_COLUMNS];
    memset(t, 0, sizeof *t);
    for (const mhla_lab_column *c = e->columns; c < e->columns + MHLA_LAB_COLUMNS && c->measure; c++) {
        int n = 0; /* what no arm has, as of sizes that a quick run leaves out, is no column */
        for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++)
            n += mhla_results_take(lab, arm, c->measure, values, errors);
        if (n == 0) continue;
        shown[t->columns] = c;
        snprintf(t->text[0][++t->columns], CELL, "%s", c->title);
    }
    const int measured = t->columns++;
    for (int i = 0; i < 2 && e->paper_titles[i]; i++)
        snprintf(t->text[0][t->columns++], CELL, "%s", e->paper_titles[i]);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        if (!mhla_experiment_has(e, arm, lab->quick)) continue;
        char(*row)[CELL] = t->text[++t->rows];
        snprintf(row[0], CELL, "%s", e->arms[arm].title);
        for (int c = 0; c < measured; c++) {
            const int n = mhla_results_take(lab, arm, shown[c]->measure, values, errors);
            const mhla_seeds s = mhla_seeds_of(values, errors, n);
            put_sample(row[c + 1], shown[c], &s);
        }
        for (int i = 0; i < 2 && e->paper_titles[i]; i++) {
            if (e->arms[arm].paper[i] == 0.0)
                snprintf(row[measured + 1 + i], CELL, "-");
            else
                snprintf(row[measured + 1 + i], CELL, "%.*f", e->paper_digits, e->arms[arm].paper[i]);
        }
    }
}

/* Characters, not bytes. */
static int width_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void pad(FILE *out, const char *text, int width, int left) {
    const int gap = width - width_of(text);
    fprintf(out, "%*s%s%*s", left ? 0 : gap, "", text, left ? gap : 0, "");
}

void mhla_table_text(FILE *out, const mhla_lab *lab) {
    static _Thread_local cells t; /* some tens of kilobytes */
    fill(&t, lab);
    for (int r = 0; r <= t.rows; r++)
        for (int c = 0; c < t.columns; c++) {
            int width = 0;
            for (int i = 0; i <= t.rows; i++)
                if (width_of(t.text[i][c]) > width) width = width_of(t.text[i][c]);
            pad(out, t.text[r][c], width, c == 0);
            fputs(c == t.columns - 1 ? "\n" : "  ", out);
        }
}

void mhla_table_markdown(FILE *out, const mhla_lab *lab) {
    static _Thread_local cells t;
    fill(&t, lab);
    for (int r = 0; r <= t.rows; r++) {
        for (int c = 0; c < t.columns; c++) fprintf(out, "| %s ", t.text[r][c]);
        fputs("|\n", out);
        for (int c = 0; c < t.columns && r == 0; c++) fputs(c ? "| ---: " : "| --- ", out);
        if (r == 0) fputs("|\n", out);
    }
}

/* ---- Claims ---- */

static const mhla_lab_column *column_of(const mhla_experiment *e, const char *measure) {
    for (int i = 0; i < MHLA_LAB_COLUMNS && e->columns[i].measure; i++)
        if (strcmp(e->columns[i].measure, measure) == 0) return &e->columns[i];
    return NULL;
}

/* "+0.71, t 3.2 at 3.8 degrees of freedom, p 0.034 (needs 0.025)" */
static void put_test(char *text, size_t size, const mhla_experiment *e, const mhla_lab_claim *c,
                     const mhla_judgement *j) {
    const mhla_lab_column *column = column_of(e, c->measure);
    const double k = column ? scale_of(column->scale) : 1.0;
    const mhla_difference *d = &j->difference;
    int n = 0;
    if (isnan(d->mean)) {
        snprintf(text, size, "%s", j->why);
        return;
    }
    n = snprintf(text, size, "%+.*f", column ? column->digits : 3, k * d->mean);
    if (*j->why)
        snprintf(text + n, size - (size_t)n, "; %s", j->why);
    else if (d->freedom == 0.0)
        snprintf(text + n, size - (size_t)n, ", %.1f errors of the test set (needs 4)", fabs(d->t));
    else
        snprintf(text + n, size - (size_t)n, ", t %.2f at %.1f degrees of freedom, p %.2g (needs %.2g)", d->t,
                 d->freedom, d->p, j->level);
}

static void put_power(char *text, size_t size, const mhla_experiment *e, const mhla_lab_claim *c,
                      const mhla_judgement *j) {
    const mhla_lab_column *column = column_of(e, c->measure);
    if (isnan(j->power))
        snprintf(text, size, "unknown");
    else
        snprintf(text, size, "%.*f", column ? column->digits : 3, (column ? scale_of(column->scale) : 1.0) * j->power);
}

void mhla_claims_text(FILE *out, const mhla_lab *lab, int markdown) {
    const mhla_experiment *e = lab->experiment;
    mhla_judgement judgements[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    const int n = mhla_judge(lab, judgements, &all);
    if (markdown) fputs("| claim | difference | detectable | verdict |\n| --- | --- | ---: | --- |\n", out);
    for (int i = 0; i < n; i++) {
        char test[160], power[32];
        put_test(test, sizeof test, e, &e->claims[i], &judgements[i]);
        put_power(power, sizeof power, e, &e->claims[i], &judgements[i]);
        if (markdown)
            fprintf(out, "| %s | %s | %s | %s |\n", e->claims[i].text, test, power,
                    mhla_verdict_text(judgements[i].verdict));
        else
            fprintf(out, "%s: %s; detectable %s: %s\n", e->claims[i].text, test, power,
                    mhla_verdict_text(judgements[i].verdict));
    }
}
