/* Pictures that a diffusion model made after each evaluation, always from the same noise, or an autoencoder of test images:
 * RUN/samples/step-NNNNNNNN.png. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "image/image.h"
#include "report/html.h"
#include "report/report_parts.h"

enum {
    MOST = 12,
    SMALL = 400,
    LARGE = 4096
}; /* grids of a run that are shown; pixels: enlarged below, left out above */

static int by_number(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Steps of all grids in order; *steps is malloc'ed. */
static int64_t list_steps(const char *folder, int64_t **steps) {
    int64_t count = 0;
    DIR *dir = opendir(folder);
    *steps = NULL;
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const size_t digits = strncmp(e->d_name, "step-", 5) == 0 ? strspn(e->d_name + 5, "0123456789") : 0;
        if (digits == 0 || digits > 18 || strcmp(e->d_name + 5 + digits, ".png") != 0) continue;
        int64_t *more = realloc(*steps, (size_t)(count + 1) * sizeof *more);
        if (more == NULL) break;
        *steps = more;
        more[count++] = strtoll(e->d_name + 5, NULL, 10);
    }
    if (dir) closedir(dir);
    if (count > 1) qsort(*steps, (size_t)count, sizeof **steps, by_number);
    return count;
}

mhla_status mhla_report_read_grids(mhla_report_run *r) {
    char folder[MHLA_REPORT_PATH], path[MHLA_REPORT_PATH + 64];
    int64_t *steps = NULL;
    if (snprintf(folder, sizeof folder, "%s/samples", r->folder) >= (int)sizeof folder) return MHLA_OK;
    const int64_t all = list_steps(folder, &steps), shown = all < MOST ? all : MOST;
    mhla_status status = MHLA_OK;
    r->grids = shown ? calloc((size_t)shown, sizeof *r->grids) : NULL;
    if (shown && r->grids == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", r->folder);
    for (int64_t i = 0; i < shown && status == MHLA_OK; i++) { /* spread evenly, the first and the last among them */
        const int64_t step = steps[shown > 1 ? i * (all - 1) / (shown - 1) : 0];
        mhla_report_grid *g = &r->grids[r->grid_count];
        mhla_file file;
        int channels;
        snprintf(path, sizeof path, "%s/step-%08lld.png", folder, (long long)step);
        if (mhla_file_map(&file, path) != MHLA_OK) continue;
        *g = (mhla_report_grid){.step = step};
        if (mhla_image_probe(&g->width, &g->height, &channels, file.data, file.size, path) == MHLA_OK &&
            g->width <= LARGE && g->height <= LARGE) {
            g->png = mhla_base64(file.data, file.size);
            if (g->png == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", path);
            if (g->png) r->grid_count++;
        }
        mhla_file_unmap(&file);
    }
    free(steps);
    return status;
}

/* The captions of the rows, as task_text_to_image.c writes them; 0: there are none, or not as many as rows. */
static int write_captions(FILE *out, const mhla_report_run *r, const mhla_report_grid *g) {
    const json_t *names = json_object_get(r->rows, "rows"), *held = json_object_get(r->rows, "held_out");
    const size_t rows = json_array_size(names);
    if (rows == 0 || (size_t)(g->height + MHLA_IMAGE_GAP) % rows != 0) return 0;
    fputs("<div class=\"rows\">", out);
    for (size_t i = 0; i < rows; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        fputs(json_is_true(json_array_get(held, i)) ? "<span>held out: " : "<span>", out);
        mhla_html_text(out, name ? name : "");
        fputs("</span>", out);
    }
    fputs("</div>", out);
    return 1;
}

/* The class of each row beside it, where picture and config agree on how many there are. */
static void write_rows(FILE *out, const mhla_report_run *r, const mhla_report_grid *g) {
    const json_t *size = json_object_get(r->config, "image");
    const int64_t high = json_integer_value(json_array_get(size, 0));
    const int64_t classes = (int64_t)json_array_size(json_object_get(r->config, "class_names"));
    if (r->rows && write_captions(out, r, g)) return;
    if (high < 1 || high > LARGE || (g->height + MHLA_IMAGE_GAP) % (high + MHLA_IMAGE_GAP) != 0) return;
    const int64_t rows = (g->height + MHLA_IMAGE_GAP) / (high + MHLA_IMAGE_GAP);
    if (rows > classes) return;
    fputs("<div class=\"rows\">", out);
    for (int64_t i = 0; i < rows; i++) {
        const char *name = mhla_report_class(r, (int)(i * classes / rows)); /* as task_diffusion.c spreads them */
        fputs("<span>", out);
        mhla_html_text(out, name ? name : "");
        fputs("</span>", out);
    }
    fputs("</div>", out);
}

/* Those of autoencoders, or of diffusions. */
static void write_section(FILE *out, const mhla_report_run *runs, int count, int codec) {
    static const char *const heads[] = {
        "<section id=\"grids\"><h2>Samples</h2>\n<p>Generated after evaluations, from the same noise each time: a "
        "class or a caption in each row.</p>\n",
        "<section id=\"reconstructions\"><h2>Reconstructions</h2>\n<p>Test images, spread over all of them, and "
        "below each row what the autoencoder made of it after an evaluation.</p>\n"};
    int any = 0;
    for (int k = 0; k < count; k++) {
        const mhla_report_run *r = &runs[k];
        if (r->grid_count == 0 || r->codec != codec) continue;
        if (any++ == 0) fputs(heads[codec], out);
        if (count > 1) {
            fputs("<h3>", out);
            mhla_html_text(out, r->name);
            fputs("</h3>\n", out);
        }
        fputs("<ul class=\"cards\">\n", out);
        for (int i = 0; i < r->grid_count; i++) {
            const mhla_report_grid *g = &r->grids[i];
            const int scale = g->width < SMALL && g->height < SMALL ? 2 : 1;
            fputs("<li class=\"card\"><div class=\"grid\">", out);
            if (!codec) write_rows(out, r, g);
            fprintf(out,
                    "\n<img class=\"pixels\" width=\"%d\" height=\"%d\" alt=\"images after step %lld\" "
                    "src=\"data:image/png;base64,%s\"></div><p>step %lld</p></li>\n",
                    scale * g->width, scale * g->height, (long long)g->step, g->png, (long long)g->step);
        }
        fputs("</ul>\n", out);
    }
    if (any) fputs("</section>\n", out);
}

void mhla_report_write_grids(FILE *out, const mhla_report_run *runs, int count) {
    for (int codec = 0; codec < 2; codec++) write_section(out, runs, count, codec);
}
