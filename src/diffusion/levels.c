#include "diffusion/levels.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "diffusion/diffusion.h"

/* ---- Betas ---- */

static double cosine_kept(double share) {
    const double c = cos((share + 0.008) / 1.008 * 3.141592653589793 / 2.0);
    return c * c;
}

/* Linear: 1e-4 .. 0.02 for 1000 levels, more for fewer, so that the last has the same noise. */
static double beta_of(int process, int i, int original) {
    if (process == MHLA_PROCESS_COSINE) {
        const double beta = 1.0 - cosine_kept((double)(i + 1) / original) / cosine_kept((double)i / original);
        return beta < 0.999 ? beta : 0.999;
    }
    const double scale = 1000.0 / original, first = scale * 0.0001, last = scale * 0.02;
    return original == 1 ? first : first + i * ((last - first) / (original - 1));
}

/* ---- Which levels are kept: keep[i] is set ---- */

static mhla_status no_respacing(const char *respacing, int original, const char *why) {
    return mhla_fail(MHLA_EINVAL, "levels \"%.40s\" of %d: %s", respacing, original, why);
}

/* A whole number at *text, which moves behind it; 0 where there is none. */
static int take_number(const char **text) {
    int n = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        if (n > 1000000) return 0;
        n = 10 * n + (**text - '0');
    }
    return n;
}

static mhla_status keep_strides(char *keep, const char *respacing, int original) {
    const char *text = respacing + 4;
    const int wanted = take_number(&text);
    if (wanted == 0 || *text) return no_respacing(respacing, original, "expected ddim and a number");
    for (int stride = 1; stride <= original; stride++)
        if ((original + stride - 1) / stride == wanted) {
            for (int i = 0; i < original; i += stride) keep[i] = 1;
            return MHLA_OK;
        }
    return no_respacing(respacing, original, "no whole stride makes exactly so many");
}

static mhla_status keep_solver(char *keep, const char *respacing, int original) {
    const char *text = respacing + 6;
    const int wanted = take_number(&text);
    if (wanted == 0 || *text || wanted >= original)
        return no_respacing(respacing, original, "expected solver and a number below that of all levels");
    const double stride = (double)(original - 1) / wanted;
    for (int i = 1; i <= wanted; i++) keep[(int)nearbyint(i * stride)] = 1;
    return MHLA_OK;
}

static mhla_status keep_sections(char *keep, const char *respacing, int original) {
    int sections = 1, begin = 0;
    for (const char *c = respacing; *c; c++) sections += *c == ',';
    const char *text = respacing;
    for (int s = 0; s < sections; s++, text += *text == ',') {
        const int size = original / sections + (s < original % sections), wanted = take_number(&text);
        if (wanted == 0 || (*text != ',' && *text != '\0'))
            return no_respacing(respacing, original, "expected numbers from 1 up with commas between them");
        if (wanted > size) return no_respacing(respacing, original, "more levels are wanted than there are");
        const double stride = wanted == 1 ? 1.0 : (double)(size - 1) / (wanted - 1);
        double at = 0.0; /* summed, and rounded to even, as the public code does */
        for (int i = 0; i < wanted; i++, at += stride) keep[begin + (int)nearbyint(at)] = 1;
        begin += size;
    }
    return MHLA_OK;
}

/* ---- What follows ---- */

static void derive(mhla_levels *l) {
    for (int i = 0; i < l->count; i++) {
        mhla_level *v = &l->levels[i];
        v->kept_before = i ? v[-1].kept : 1.0;
        v->kept_after = i + 1 < l->count ? v[1].kept : 0.0;
        v->variance = v->beta * (1.0 - v->kept_before) / (1.0 - v->kept);
        v->mean_data = v->beta * sqrt(v->kept_before) / (1.0 - v->kept);
        v->mean_noisy = (1.0 - v->kept_before) * sqrt(1.0 - v->beta) / (1.0 - v->kept);
    }
    for (int i = 0; i < l->count; i++) { /* the first has no variance; alone it gets that of its beta */
        const mhla_level *v = &l->levels[i ? i : l->count > 1];
        l->levels[i].log_variance = log(v->variance > 0.0 ? v->variance : v->beta);
    }
}

mhla_status mhla_levels_create(mhla_levels *levels, int process, int original, const char *respacing) {
    *levels = (mhla_levels){0};
    if (original < 1 || original > 1000000)
        return mhla_fail(MHLA_EINVAL, "%d noise levels: expected 1 to 1000000", original);
    char *keep = calloc((size_t)original, 1);
    mhla_status status = keep ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %d noise levels", original);
    if (status == MHLA_OK && (respacing == NULL || *respacing == '\0'))
        memset(keep, 1, (size_t)original);
    else if (status == MHLA_OK)
        status = (strncmp(respacing, "ddim", 4) == 0     ? keep_strides
                  : strncmp(respacing, "solver", 6) == 0 ? keep_solver
                                                         : keep_sections)(keep, respacing, original);
    int count = 0;
    for (int i = 0; status == MHLA_OK && i < original; i++) count += keep[i];
    if (status == MHLA_OK && (levels->levels = mhla_alloc_zero((size_t)count * sizeof *levels->levels)) == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory for %d noise levels", count);
    double kept = 1.0, kept_before = 1.0; /* over all levels; of the last that stays */
    for (int i = 0; status == MHLA_OK && i < original; i++) {
        kept *= 1.0 - beta_of(process, i, original);
        if (!keep[i]) continue;
        mhla_level *v = &levels->levels[levels->count++];
        v->time = i;
        v->beta = 1.0 - kept / kept_before;
        kept_before = kept;
    }
    kept = 1.0;
    for (int i = 0; i < levels->count; i++) levels->levels[i].kept = kept *= 1.0 - levels->levels[i].beta;
    if (status == MHLA_OK) derive(levels);
    free(keep);
    return status;
}

void mhla_levels_free(mhla_levels *levels) {
    mhla_free(levels->levels);
    *levels = (mhla_levels){0};
}
