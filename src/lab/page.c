/* What an experiment leaves: text for the terminal, and a page of Markdown with figures. Both are made of the results alone. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "lab/lab.h"

static mhla_verdict verdict_of(const mhla_lab *lab) {
    mhla_judgement judgements[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    mhla_judge(lab, judgements, &all);
    return all;
}

static void put_seeds(FILE *out, const mhla_lab *lab) {
    if (lab->seeds == 1)
        fputs("one seed", out);
    else
        fprintf(out, "mean ± deviation over %d seeds", lab->seeds);
}

/* What a verdict is worth. */
static void put_caution(FILE *out, const mhla_lab *lab) {
    if (lab->shuffle)
        fputs(
            " This is the control: the labels are shuffled, so there is nothing to learn, and no claim may be decided.",
            out);
    if (lab->quick) fputs(" This is the quick form, small and short, which only checks that everything works.", out);
}

mhla_status mhla_lab_text(mhla_lab *lab, char **text) {
    const mhla_experiment *e = lab->experiment;
    size_t size = 0;
    *text = NULL;
    FILE *out = open_memstream(text, &size);
    if (out == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the table");
    fprintf(out, "%s (", e->info.title);
    put_seeds(out, lab);
    fprintf(out, "%s%s%s)\n\n", lab->quick ? ", quick" : "", lab->longer ? ", long" : "",
            lab->shuffle ? ", labels shuffled" : "");
    mhla_table_text(out, lab);
    fputc('\n', out);
    if (e->paper_titles[0])
        fprintf(out, "Paper: %s.\n", e->info.paper);
    else if (e->paper_note)
        fprintf(out, "%s\n", e->paper_note);
    if (e->remark) e->remark(out, lab);
    fputc('\n', out);
    mhla_claims_text(out, lab, 0);
    fprintf(out, "\nVerdict: %s.", mhla_verdict_text(verdict_of(lab)));
    put_caution(out, lab);
    fputc('\n', out);
    return fclose(out) == 0 && *text ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the table");
}

/* ---- The page ---- */

/* Each different text of the rows once: "a; b". which: offset of the member. */
static void put_distinct(FILE *out, const mhla_lab *lab, size_t which) {
    for (int i = 0; i < lab->count; i++) {
        const char *text = *(char *const *)((const char *)&lab->rows[i] + which);
        int seen = 0;
        for (int k = 0; k < i && !seen; k++)
            seen = strcmp(*(char *const *)((const char *)&lab->rows[k] + which), text) == 0;
        if (!seen) fprintf(out, "%s%s", i ? "; " : "", text);
    }
}

/* Is the key of the setting at `at` set again behind it? */
static int set_again(const char *at) {
    const size_t key = strcspn(at, "=") + 1;
    for (const char *next = strchr(at, ' '); next; next = strchr(next + 1, ' '))
        if (strncmp(next + 1, at, key) == 0) return 1;
    return 0;
}

static void put_settings(FILE *out, const char *settings) {
    int column = 0;
    for (const char *at = settings; at && *at; at += strspn(at, " ")) {
        const int n = (int)strcspn(at, " ");
        if (set_again(at)) {
            at += n;
            continue;
        }
        if (column && column + n > 100) column = 0, fputs("\n ", out);
        fprintf(out, " %.*s", n, at);
        column += n + 1;
        at += n;
    }
}

static void put_making(FILE *out, const mhla_lab *lab) {
    const mhla_experiment *e = lab->experiment;
    double seconds = 0.0;
    for (int i = 0; i < lab->count; i++) seconds += lab->rows[i].seconds;
    fprintf(out, "## How it was made\n\n    mhla reproduce %s%s%s%s", e->info.name, lab->quick ? " --quick" : "",
            lab->longer ? " --long" : "", lab->shuffle ? " --shuffle-labels" : "");
    if (lab->seeds != mhla_experiment_seeds(e, lab->quick)) fprintf(out, " --seeds %d", lab->seeds);
    if (e->info.data && strcmp(lab->data_name, e->info.data) != 0) fprintf(out, " --data %s", lab->data_name);
    fputs(" --out docs/results\n\n", out);
    fprintf(out, "* seed%s 1%s%.0d; %d parts in %.1f minutes\n* program: ", lab->seeds > 1 ? "s" : "",
            lab->seeds > 1 ? " to " : "", lab->seeds > 1 ? lab->seeds : 0, lab->count, seconds / 60.0);
    put_distinct(out, lab, offsetof(mhla_lab_row, program));
    fputs("\n* machine: ", out);
    put_distinct(out, lab, offsetof(mhla_lab_row, machine));
    fputs("\n* day: ", out);
    put_distinct(out, lab, offsetof(mhla_lab_row, made));
    if (e->info.data) {
        fprintf(out, "\n* data: %s, SHA-256 of all its files ", lab->data_name);
        put_distinct(out, lab, offsetof(mhla_lab_row, data));
    }
    fprintf(out,
            "\n\nSettings of all arms, as `mhla train` takes them (keys that begin with `lab.` belong to the "
            "experiment, keys with `search.` to the search of the learning rate%s), then the settings of each arm:\n\n"
            "```\nall:",
            strstr(e->settings, " recall.") ? ", keys with `recall.` to the model that learns recall" : "");
    char all[2048];
    const char *form = mhla_lab_form(lab);
    snprintf(all, sizeof all, "%s%s%s%s", e->settings, *form ? " " : "", form,
             lab->shuffle ? " data.shuffle_labels=true" : "");
    put_settings(out, all);
    fputc('\n', out);
    for (int i = 0; i < MHLA_LAB_ARMS && e->arms[i].name; i++) {
        if (!mhla_experiment_has(e, i, lab->quick)) continue;
        fprintf(out, "%s:", e->arms[i].name);
        put_settings(out, e->arms[i].settings);
        fputc('\n', out);
    }
    fputs("```\n", out);
}

/* ---- Clips: files that the parts have made, which play in the page ---- */

void mhla_lab_clips_path(char *path, size_t size, const mhla_lab *lab, const char *folder, const char *arm) {
    snprintf(path, size, "%s/%s-clips-%s.png", folder, lab->name, arm);
}

/* The i-th thing with clips: the data, then the arms. NULL: there are no more. */
static const char *clips_of(const mhla_lab *lab, int i, const char **title) {
    const mhla_lab_arm *arm = &lab->experiment->arms[i > 0 ? i - 1 : 0];
    *title = i ? arm->title : "the data";
    return i == 0 ? "data" : i <= MHLA_LAB_ARMS ? arm->name : NULL;
}

static int has_clips(const mhla_lab *lab, const char *name) {
    char path[MHLA_LAB_PATH + 128];
    mhla_lab_clips_path(path, sizeof path, lab, lab->folder, name);
    return access(path, F_OK) == 0;
}

static void put_clips(FILE *out, const mhla_lab *lab) {
    const char *title;
    int n = 0;
    for (int i = 0; lab->experiment->clips && clips_of(lab, i, &title); i++) {
        const char *name = clips_of(lab, i, &title);
        if (!has_clips(lab, name)) continue;
        if (n++ == 0) fprintf(out, "\n## Clips\n\n%s\n\n| | |\n| --- | --- |\n", lab->experiment->clips);
        fprintf(out, "| %s | ![%s: clips, %s](%s-clips-%s.png) |\n", title, lab->name, title, lab->name, name);
    }
}

/* Beside a page in another folder than that of the results. */
static mhla_status copy_clips(const mhla_lab *lab, const char *folder) {
    char from[MHLA_LAB_PATH + 128], to[4096 + 128];
    const char *title;
    for (int i = 0; lab->experiment->clips && clips_of(lab, i, &title); i++) {
        const char *name = clips_of(lab, i, &title);
        mhla_file file;
        mhla_lab_clips_path(from, sizeof from, lab, lab->folder, name);
        mhla_lab_clips_path(to, sizeof to, lab, folder, name);
        if (!has_clips(lab, name) || strcmp(from, to) == 0) continue;
        MHLA_TRY(mhla_file_map(&file, from));
        const mhla_status status = mhla_file_write(to, file.data, file.size);
        mhla_file_unmap(&file);
        MHLA_TRY(status);
    }
    return MHLA_OK;
}

/* The figures of a page, by what they show: the text in their place for who cannot see them. */
typedef struct drawn {
    const char *titles[MHLA_LAB_FIGURES + MHLA_LAB_COLUMNS];
    int count;
} drawn;

static void put_page(FILE *out, const mhla_lab *lab, const drawn *figures) {
    const mhla_experiment *e = lab->experiment;
    fprintf(out, "# %s\n\n", e->info.title);
    fprintf(out, "**Verdict: %s.**", mhla_verdict_text(verdict_of(lab)));
    put_caution(out, lab);
    fprintf(out, "\n\nClaim of the paper: %s (%s.)\n\n", e->info.claim, e->info.paper);
    fputs("Results (", out);
    put_seeds(out, lab);
    fputs("):\n\n", out);
    mhla_table_markdown(out, lab);
    if (e->paper_titles[0])
        fprintf(out, "\nThe paper's figures come from models of another scale: %s.\n", e->info.paper);
    else if (e->paper_note)
        fprintf(out, "\n%s\n", e->paper_note);
    for (int i = 0; i < figures->count; i++)
        fprintf(out, "\n![%s: %s](%s-%d.svg)\n", lab->name, figures->titles[i], lab->name, i + 1);
    if (e->remark) {
        fputc('\n', out);
        e->remark(out, lab);
    }
    put_clips(out, lab);
    fputs("\n## Claims\n\n", out);
    mhla_claims_text(out, lab, 1);
    fprintf(out, "\n%s\n", mhla_judge_rule);
    if (e->gate_text) fprintf(out, "%s\n", e->gate_text);
    if (e->info.known) fprintf(out, "\nNotes: %s\n", e->info.known);
    mhla_fair_markdown(out, lab);
    fputc('\n', out);
    put_making(out, lab);
}

/* A file by a function; `what` is its. */
typedef int (*draw_fn)(FILE *out, const mhla_lab *lab, const void *what);

static int draw_dots(FILE *out, const mhla_lab *lab, const void *what) {
    mhla_figure_dots(out, lab, what);
    return 1;
}
static int draw_lines(FILE *out, const mhla_lab *lab, const void *what) { return mhla_figure_lines(out, lab, what); }
static int draw_page(FILE *out, const mhla_lab *lab, const void *what) {
    put_page(out, lab, what);
    return 1;
}

/* *made is 0 where there was nothing to draw; no file then. */
static mhla_status write_file(const mhla_lab *lab, const char *folder, const char *ending, draw_fn draw,
                              const void *what, int *made) {
    char path[4096];
    mhla_writer w;
    if (snprintf(path, sizeof path, "%s/%s%s", folder, lab->name, ending) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_writer_open(&w, path));
    *made = draw(w.stream, lab, what);
    if (*made) return mhla_writer_commit(&w);
    mhla_writer_discard(&w);
    return MHLA_OK;
}

/* The next figure, NAME-<count>.svg, unless there is nothing to draw. */
static mhla_status add_figure(const mhla_lab *lab, const char *folder, drawn *figures, draw_fn draw, const void *what,
                              const char *title) {
    char ending[24];
    int made = 0;
    snprintf(ending, sizeof ending, "-%d.svg", figures->count + 1);
    MHLA_TRY(write_file(lab, folder, ending, draw, what, &made));
    if (made) figures->titles[figures->count++] = title;
    return MHLA_OK;
}

mhla_status mhla_lab_write(mhla_lab *lab, const char *folder) {
    const mhla_experiment *e = lab->experiment;
    drawn figures = {0};
    int made = 0;
    MHLA_TRY(mhla_folder_make(folder));
    for (int i = 0; i < MHLA_LAB_FIGURES && e->lines[i].prefix; i++)
        MHLA_TRY(add_figure(lab, folder, &figures, draw_lines, &e->lines[i], e->lines[i].title));
    for (int i = 0; i < MHLA_LAB_COLUMNS && e->columns[i].measure && i < e->dots; i++)
        MHLA_TRY(add_figure(lab, folder, &figures, draw_dots, &e->columns[i], e->columns[i].title));
    MHLA_TRY(copy_clips(lab, folder));
    return write_file(lab, folder, ".md", draw_page, &figures, &made);
}
