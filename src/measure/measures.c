/* How near two sets of pictures are: features of both, then the numbers of frechet.c and neighbours.c. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/npy.h"
#include "measure/inception.h"
#include "measure/lapack.h"
#include "measure/measure.h"

enum { PARTS = 10, NEIGHBOURS = 3 };

static mhla_status features_make(mhla_features *f, const mhla_extractor *e, int64_t n) {
    f->n = n;
    const size_t classes = (size_t)mhla_extractor_classes(e);
    f->x = mhla_alloc((size_t)n * (size_t)mhla_extractor_dims(e) * sizeof *f->x);
    f->probabilities = classes ? mhla_alloc((size_t)n * classes * sizeof *f->probabilities) : NULL;
    const int spatial = mhla_extractor_inception(e);
    f->spatial = spatial ? mhla_alloc((size_t)n * MHLA_INCEPTION_SPATIAL * sizeof *f->spatial) : NULL;
    f->labels = malloc((size_t)n * sizeof *f->labels);
    if (f->x && f->labels && (f->probabilities || !classes) && (f->spatial || !spatial)) return MHLA_OK;
    return mhla_fail(MHLA_ENOMEM, "no memory for features of %lld images", (long long)n);
}

static void features_free(mhla_features *f) {
    mhla_free(f->x);
    mhla_free(f->spatial);
    mhla_free(f->probabilities);
    free(f->labels);
}

/* ---- Classes ------------------------------------------------------------------------------------------------------------- */

static int counts(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Letters, of whatever script, and digits alone count, so that a folder "T-shirt_top" is the class "T-shirt/top". */
static int same_name(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a && !counts(*a)) a++;
        while (*b && !counts(*b)) b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return 0;
        if (*a == '\0') return 1;
    }
}

/* The classifier's class that a folder's name stands for: by name, or by the number that it is or begins with ("3-Dress");
 * -1: none. */
static int class_of(const mhla_extractor *e, const char *name) {
    const int classes = mhla_extractor_classes(e);
    for (int i = 0; i < classes; i++) {
        const char *known = mhla_extractor_class_name(e, i);
        if (known && same_name(known, name)) return i;
    }
    char *end;
    const long number = strtol(name, &end, 10);
    return end > name && (*end == '\0' || *end == '-') && number >= 0 && number < classes ? (int)number : -1;
}

/* The share of pictures whose likeliest class is that of their folder; NaN where a folder means no class. */
static double share_right(const mhla_extractor *e, const mhla_gallery *pictures, const mhla_features *f) {
    const int classes = mhla_extractor_classes(e), folders = mhla_gallery_classes(pictures);
    int64_t right = 0;
    if (classes == 0 || folders == 0 || mhla_extractor_inception(e)) return NAN;
    for (int64_t i = 0; i < f->n; i++) {
        const char *name = mhla_gallery_class_name(pictures, f->labels[i]);
        const int meant = *name ? class_of(e, name) : folders == classes ? f->labels[i] : -1;
        if (meant < 0) return NAN;
        const float *p = f->probabilities + i * classes;
        int best = 0;
        for (int c = 1; c < classes; c++)
            if (p[c] > p[best]) best = c;
        right += best == meant;
    }
    return (double)right / (double)f->n;
}

/* ---- For NumPy --------------------------------------------------------------------------------------------------------- */

/* Known before the work, not after it. */
static mhla_status make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode))) return MHLA_OK;
    return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
}

static mhla_status write_rows(const char *folder, const char *name, const float *x, int64_t n, int64_t columns) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s.npy", folder, name) >= (int)sizeof path)
        return mhla_fail(MHLA_EINVAL, "%.60s...: the path is too long", folder);
    return mhla_npy_write(path, MHLA_IO_F32, 2, (const int64_t[]){n, columns}, x);
}

static mhla_status dump(const char *folder, const mhla_extractor *e, const mhla_features *real,
                        const mhla_features *made) {
    const int dims = mhla_extractor_dims(e), classes = mhla_extractor_classes(e);
    MHLA_TRY(write_rows(folder, "real", real->x, real->n, dims));
    MHLA_TRY(write_rows(folder, "generated", made->x, made->n, dims));
    if (real->spatial) MHLA_TRY(write_rows(folder, "real.spatial", real->spatial, real->n, MHLA_INCEPTION_SPATIAL));
    if (made->spatial)
        MHLA_TRY(write_rows(folder, "generated.spatial", made->spatial, made->n, MHLA_INCEPTION_SPATIAL));
    return classes ? write_rows(folder, "generated.probabilities", made->probabilities, made->n, classes) : MHLA_OK;
}

/* ---- All of it ------------------------------------------------------------------------------------------------------------ */

static mhla_status compare(mhla_measures *r, const mhla_extractor *e, const mhla_features *real,
                           const mhla_features *made, int k) {
    const int dims = mhla_extractor_dims(e), classes = mhla_extractor_classes(e);
    MHLA_TRY(mhla_frechet_distance(&r->distance, real->x, real->n, made->x, made->n, dims));
    if (real->spatial)
        MHLA_TRY(mhla_frechet_distance(&r->spatial_distance, real->spatial, real->n, made->spatial, made->n,
                                       MHLA_INCEPTION_SPATIAL));
    if (classes)
        MHLA_TRY(mhla_inception_score(&r->score, &r->score_deviation, made->probabilities, made->n, classes, PARTS));
    if (real->n > k && made->n > k)
        MHLA_TRY(mhla_precision_recall(&r->precision, &r->recall, real->x, real->n, made->x, made->n, dims, k));
    return MHLA_OK;
}

static mhla_status check(const mhla_measure_desc *d) {
    if (d->real == NULL || d->generated == NULL || d->features == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL",
                         d->real == NULL        ? "real"
                         : d->generated == NULL ? "generated"
                                                : "features");
    if (d->limit < 0 || d->neighbours < 0 || d->neighbours > 64)
        return mhla_fail(MHLA_EINVAL, "limit is %lld, neighbours %d: expected 0 or more, 0 to 64", (long long)d->limit,
                         d->neighbours);
    if (d->height < 0 || d->width < 0 || (d->height == 0) != (d->width == 0) || d->height > 8192 || d->width > 8192)
        return mhla_fail(MHLA_EINVAL, "height x width is %d x %d: expected 1 to 8192 of both, or 0", d->height,
                         d->width);
    return MHLA_OK;
}

mhla_status mhla_measure(mhla_measures *result, const mhla_measure_desc *desc) {
    mhla_measure_desc given, *const d = &given;
    MHLA_TRY(mhla_struct_in(d, sizeof *d, desc, "mhla_measure_desc"));
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_measures"));
    MHLA_TRY(check(d));
    mhla_measures r = {.size = sizeof r,
                       .score = NAN,
                       .score_deviation = NAN,
                       .precision = NAN,
                       .recall = NAN,
                       .accuracy = NAN,
                       .spatial_distance = NAN};
    mhla_gallery *sets[2] = {NULL, NULL};
    mhla_features features[2] = {{0}, {0}};
    mhla_extractor *e = NULL;
    const char *const sources[2] = {d->real, d->generated};
    mhla_model *vae = NULL;
    mhla_status status = d->vae ? mhla_model_open(&vae, d->vae) : MHLA_OK;
    int64_t done = 0;
    for (int i = 0; i < 2 && status == MHLA_OK; i++) {
        status = mhla_gallery_decode(&sets[i], sources[i], d->split, d->limit, vae, d->memory);
        if (status == MHLA_OK) mhla_gallery_frame(sets[i], d->height, d->width);
        if (status == MHLA_OK && mhla_gallery_left_out(sets[i])) /* the rest would be another set */
            status = mhla_fail(MHLA_EDATA, "%s", mhla_gallery_left_out(sets[i]));
        if (status == MHLA_OK && mhla_gallery_count(sets[i]) < 2)
            status = mhla_fail(MHLA_EDATA, "%s: %lld image: a covariance needs at least two", sources[i],
                               (long long)mhla_gallery_count(sets[i]));
    }
    mhla_model_free(vae); /* its pictures are there */
    if (status == MHLA_OK) status = mhla_extractor_open(&e, d->features, d->resize);
    if (status == MHLA_OK) status = mhla_lapack_load(); /* the distance needs it */
    if (status == MHLA_OK && d->dump) status = make_folder(d->dump);
    for (int i = 0; i < 2 && status == MHLA_OK; i++) {
        const int64_t n = mhla_gallery_count(sets[i]);
        const mhla_watch watch = {d->progress, d->user, done,
                                  mhla_gallery_count(sets[0]) + mhla_gallery_count(sets[1])};
        status = features_make(&features[i], e, n);
        if (status == MHLA_OK) status = mhla_extractor_run(e, &features[i], sets[i], &watch);
        done += n;
    }
    if (status == MHLA_OK && d->dump) status = dump(d->dump, e, &features[0], &features[1]);
    if (status == MHLA_OK) {
        snprintf(r.features, sizeof r.features, "%s", mhla_extractor_name(e));
        r.inception = mhla_extractor_inception(e);
        r.real = features[0].n;
        r.generated = features[1].n;
        r.dims = mhla_extractor_dims(e);
        r.accuracy = share_right(e, sets[1], &features[1]);
        r.labelled = !isnan(r.accuracy);
        status = compare(&r, e, &features[0], &features[1], d->neighbours ? d->neighbours : NEIGHBOURS);
    }
    if (status == MHLA_OK) status = mhla_struct_out(result, &r, sizeof r, "mhla_measures");
    for (int i = 0; i < 2; i++) {
        features_free(&features[i]);
        mhla_gallery_free(sets[i]);
    }
    mhla_extractor_free(e);
    return status;
}
