/* Mixing matrices as heat maps, on the grid of blocks: at the place of each query block stands a small map of what it takes
 * from every block. Without a grid a matrix is shown as it is, row by row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "report/html.h"
#include "report/report_parts.h"

enum { WITH_NUMBERS = 64 }; /* larger matrices are pictures only: their numbers would make the page too heavy */

/* ---- Colours ---- */

typedef struct stop {
    uint8_t rgb[3];
} stop;

/* From little to much, of even steps for the eye, also for one that sees no colours. */
static const stop amount[] = {{{68, 1, 84}},    {{72, 40, 120}},  {{62, 74, 137}},  {{49, 104, 142}}, {{38, 130, 142}},
                              {{31, 158, 137}}, {{53, 183, 121}}, {{109, 205, 89}}, {{180, 222, 44}}, {{253, 231, 37}}};
/* Less, as before, more. */
static const stop change[] = {{{33, 102, 172}},  {{103, 169, 207}}, {{209, 229, 240}}, {{247, 247, 247}},
                              {{253, 219, 199}}, {{239, 138, 98}},  {{178, 24, 43}}};

typedef struct scale {
    const stop *stops;
    int count;
    double low, high;
} scale;

#define SCALE(stops, low, high)                                                                                        \
    (scale) { stops, sizeof(stops) / sizeof *(stops), low, high }

static void colour(uint8_t rgb[3], const scale *s, double v) {
    const double part = s->high > s->low ? (v - s->low) / (s->high - s->low) : 0.0;
    const double at = fmin(fmax(part, 0.0), 1.0) * (s->count - 1); /* NaN becomes 0 */
    const int i = at >= s->count - 1 ? s->count - 2 : (int)at;
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)lround(s->stops[i].rgb[c] + (at - i) * (s->stops[i + 1].rgb[c] - s->stops[i].rgb[c]));
}

void mhla_report_shade(uint8_t rgb[3], double part) {
    const scale s = SCALE(amount, 0.0, 1.0);
    colour(rgb, &s, part);
}

static void write_scale(FILE *out, const scale *s, const char *title) {
    fprintf(out, "<p class=\"scale\">%s <span>%.3g</span><i style=\"background:linear-gradient(90deg", title, s->low);
    for (int i = 0; i < s->count; i++)
        fprintf(out, ",#%02x%02x%02x", s->stops[i].rgb[0], s->stops[i].rgb[1], s->stops[i].rgb[2]);
    fprintf(out, ")\"></i><span>%.3g</span></p>\n", s->high);
}

/* ---- Maps ---- */

/* Where entry (i,b) stands: small maps of rows x cols cells of `cell` pixels, `gap` between them. */
typedef struct layout {
    int query_cols, query_rows, key_cols, key_rows; /* blocks across, down */
    int cell, gap;                                  /* pixels of the picture */
    int width, height;
} layout;

static layout find_layout(int M, const int grid[2]) {
    const int on_grid = grid[0] * grid[1] == M && grid[0] > 0;
    layout l = on_grid ? (layout){grid[1], grid[0], grid[1], grid[0], 0, 0, 0, 0} : (layout){1, M, M, 1, 0, 0, 0, 0};
    const int across = l.query_cols * l.key_cols, down = l.query_rows * l.key_rows,
              most = across > down ? across : down;
    l.cell = most >= 192 ? 1 : 192 / most < 24 ? 192 / most : 24;
    l.gap = on_grid ? l.cell / 6 + 1 : 0;
    l.width = across * l.cell + (l.query_cols - 1) * l.gap;
    l.height = down * l.cell + (l.query_rows - 1) * l.gap;
    return l;
}

static mhla_status paint(mhla_image *image, const layout *l, const float *mix, int M, const scale *s) {
    MHLA_TRY(mhla_image_reserve(image, l->width, l->height, 3));
    memset(image->data, 128, (size_t)l->width * (size_t)l->height * 3); /* gaps: grey, for light and dark pages */
    for (int i = 0; i < M; i++)
        for (int b = 0; b < M; b++) {
            uint8_t rgb[3];
            const int x = i % l->query_cols * (l->key_cols * l->cell + l->gap) + b % l->key_cols * l->cell;
            const int y = i / l->query_cols * (l->key_rows * l->cell + l->gap) + b / l->key_cols * l->cell;
            colour(rgb, s, mix[(size_t)i * M + b]);
            for (int v = 0; v < l->cell; v++)
                for (int u = 0; u < l->cell; u++)
                    memcpy(image->data + 3 * ((size_t)(y + v) * l->width + (size_t)(x + u)), rgb, 3);
        }
    return MHLA_OK;
}

static void range_of(const float *mix, int M, double *low, double *high) {
    for (int64_t i = 0; i < (int64_t)M * M; i++) {
        if (!isfinite(mix[i])) continue;
        *low = fmin(*low, mix[i]);
        *high = fmax(*high, mix[i]);
    }
}

static mhla_status write_map(FILE *out, const char *title, const float *mix, int M, const layout *l, const scale *s,
                             const char *what) {
    char alt[192], note[64] = "no finite number";
    double low = INFINITY, high = -INFINITY;
    mhla_image image = {0};
    range_of(mix, M, &low, &high);
    if (low <= high) snprintf(note, sizeof note, "%.3g to %.3g", low, high);
    snprintf(alt, sizeof alt, "%s, %s: %s", title, what, note);
    MHLA_TRY(paint(&image, l, mix, M, s));
    fprintf(out, "<figure class=\"map\" data-layout=\"[%d,%d,%d,%d,%d,%d,%d,%d]\"%s><div>", l->query_cols,
            l->query_rows, l->key_cols, l->key_rows, l->cell, l->gap, l->width, l->height,
            M <= WITH_NUMBERS ? " tabindex=\"0\"" : "");
    const mhla_status status = mhla_html_image(out, &image, l->width, l->height, alt);
    mhla_image_free(&image);
    fputs("</div><figcaption>", out);
    mhla_html_text(out, title);
    fprintf(out, "<br><span class=\"small\" aria-live=\"polite\">%s</span></figcaption>", note);
    if (M <= WITH_NUMBERS) {
        fputs("<script type=\"application/json\">[", out);
        for (int64_t i = 0; i < (int64_t)M * M; i++) {
            if (i) fputc(',', out);
            if (isfinite(mix[i]))
                fprintf(out, "%.4g", (double)mix[i]);
            else
                fputs("null", out);
        }
        fputs("]</script>", out);
    }
    fputs("</figure>\n", out);
    return status;
}

/* ---- The section of a run ---- */

static mhla_status write_changes(FILE *out, const mhla_report_run *r) {
    const size_t count = (size_t)r->before_M * (size_t)r->before_M;
    const layout l = find_layout(r->before_M, r->grid);
    float *difference = malloc(count * sizeof *difference);
    double low = 0.0, high = 0.0;
    if (difference == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a matrix");
    for (int pass = 0; pass < 2; pass++) { /* the range of all first */
        const double most = fmax(fmax(-low, high), 1e-12);
        const scale s = SCALE(change, -most, most);
        if (pass) {
            fputs("<h4>What training changed</h4>\n", out);
            write_scale(out, &s, "learned minus before:");
            fputs("<div class=\"maps\">\n", out);
        }
        for (int k = 0; k < r->mix_count; k++) {
            if (r->mixes[k].M != r->before_M) continue;
            for (size_t i = 0; i < count; i++) difference[i] = r->mixes[k].mix[i] - r->before[i];
            if (pass == 0) {
                range_of(difference, r->before_M, &low, &high);
                continue;
            }
            const mhla_status status = write_map(out, r->mixes[k].name, difference, r->before_M, &l, &s, "change");
            if (status != MHLA_OK) {
                free(difference);
                return status;
            }
        }
    }
    fputs("</div>\n", out);
    free(difference);
    return MHLA_OK;
}

mhla_status mhla_report_write_mixing(FILE *out, const mhla_report_run *r) {
    if (r->mix_count == 0) return MHLA_OK;
    char classes[MHLA_CHART_CLASS];
    double low = 0.0, high = 0.0;
    int comparable = 0;
    for (int k = 0; k < r->mix_count; k++) {
        range_of(r->mixes[k].mix, r->mixes[k].M, &low, &high);
        comparable |= r->mixes[k].M == r->before_M;
    }
    if (comparable) range_of(r->before, r->before_M, &low, &high);
    const scale s = SCALE(amount, low, high);
    fprintf(out, "<h3><span class=\"key %s\"></span>", mhla_chart_class(classes, r->colour));
    mhla_html_text(out, r->name);
    fputs(" <span class=\"small\">", out);
    mhla_html_text(out, r->checkpoint);
    fputs("</span></h3>\n", out);
    write_scale(out, &s, "weight:");
    fputs("<div class=\"maps\">\n", out);
    if (comparable) {
        const layout l = find_layout(r->before_M, r->grid);
        MHLA_TRY(write_map(out, "before training", r->before, r->before_M, &l, &s, "mixing matrix"));
    }
    for (int k = 0; k < r->mix_count; k++) {
        const layout l = find_layout(r->mixes[k].M, r->grid);
        MHLA_TRY(write_map(out, r->mixes[k].name, r->mixes[k].mix, r->mixes[k].M, &l, &s, "mixing matrix"));
    }
    fputs("</div>\n", out);
    return comparable ? write_changes(out, r) : MHLA_OK;
}
