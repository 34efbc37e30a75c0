/* Measures of two sets: eigenvalues and distances that are known on paper, numbers that SciPy gave once, and the same numbers
 * however few the rows are. */
#include <mhla/diffusion.h>

#include "file/npy.h"
#include "folders.h"
#include "measure/lapack.h"
#include "measure/measure.h"

static double normal(rng *r) {
    const double u = ((double)(rng_next(r) >> 11) + 1.0) * 0x1p-53, v = (double)(rng_next(r) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void near(double got, double expected, double tolerance) {
    if (!(fabs(got - expected) <= tolerance)) fail_msg("%.12g: expected %.12g within %g", got, expected, tolerance);
}

/* 2 on the diagonal, -1 beside it: 2 - 2 cos(i pi / (n + 1)), turned by reflections so that nothing of it is seen. */
static void test_eigenvalues(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 7, 40, 133};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int n = sizes[s];
        rng r = {7};
        double *A = calloc((size_t)(n * n), sizeof *A), *v = calloc((size_t)n, sizeof *v),
               *values = new_bytes((size_t)n * 8);
        for (int i = 0; i < n; i++) {
            A[i * n + i] = 2.0;
            if (i > 0) A[i * n + i - 1] = A[(i - 1) * n + i] = -1.0;
        }
        for (int turn = 0; turn < 3; turn++) { /* H A H with H = 1 - 2 v v^T */
            double norm = 0.0;
            for (int i = 0; i < n; i++) v[i] = normal(&r), norm += v[i] * v[i];
            for (int side = 0; side < 2; side++)
                for (int i = 0; i < n; i++) {
                    double dot = 0.0;
                    for (int j = 0; j < n; j++) dot += v[j] * (side ? A[j * n + i] : A[i * n + j]);
                    for (int j = 0; j < n; j++) *(side ? &A[j * n + i] : &A[i * n + j]) -= 2.0 * dot / norm * v[j];
                }
        }
        ASSERT_OK(mhla_eigenvalues(values, A, n));
        qsort(values, (size_t)n, sizeof *values, by_size);
        for (int i = 0; i < n; i++) near(values[i], 2.0 - 2.0 * cos((i + 1) * 3.14159265358979323846 / (n + 1)), 1e-12);
        free(A), free(v), free(values);
    }
    double zeros[9] = {0}, none[3] = {1, 1, 1};
    ASSERT_OK(mhla_eigenvalues(none, zeros, 3));
    for (int i = 0; i < 3; i++) near(none[i], 0.0, 0.0);
    double split[16] = {1, 0, 0, 0, 0, 5, 2, 0, 0, 2, 2, 0, 0, 0, 0, -3}, four[4]; /* blocks: 1; 6 and 1; -3 */
    ASSERT_OK(mhla_eigenvalues(four, split, 4));
    qsort(four, 4, sizeof *four, by_size);
    near(four[0], -3, 1e-14), near(four[1], 1, 1e-14), near(four[2], 1, 1e-14), near(four[3], 6, 1e-14);
}

/* L L^T = S, also where S has less than full rank. */
static void test_cholesky(void **state) {
    (void)state;
    enum { N = 23, ROWS = 9 };
    rng r = {3};
    float *x = new_bytes(sizeof(float) * ROWS * N);
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)normal(&r);
    double S[N * N], factor[N * N], L[N * N], mean[N];
    int rank;
    ASSERT_OK(mhla_covariance(S, mean, x, ROWS, N));
    memcpy(factor, S, sizeof S);
    ASSERT_OK(mhla_cholesky(L, &rank, factor, N));
    assert_int_equal(rank, ROWS - 1);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0.0, own = 0.0, mi = 0.0, mj = 0.0;
            for (int k = 0; k < rank; k++) sum += L[i * N + k] * L[j * N + k];
            for (int k = 0; k < ROWS; k++) mi += x[k * N + i] / (double)ROWS, mj += x[k * N + j] / (double)ROWS;
            for (int k = 0; k < ROWS; k++) own += (x[k * N + i] - mi) * (x[k * N + j] - mj) / (ROWS - 1);
            near(S[i * N + j], own, 1e-13);
            near(sum, S[i * N + j], 1e-12);
        }
    free(x);
}

/* Points whose mean and covariance are exact: m +- s_i sqrt((2 D - 1) / 2) along each axis. The distance of diagonal Gaussians is
 * the sum of (m1 - m2)^2 + (s1 - s2)^2. */
static void test_distance_on_paper(void **state) {
    (void)state;
    enum { D = 19, N = 2 * D };
    float *x = calloc(N * D, sizeof *x), *y = calloc(N * D, sizeof *y);
    double expected = 0.0;
    for (int i = 0; i < D; i++) {
        const double s1 = 1.0 + i, s2 = 3.0 + 0.25 * i, m1 = i, m2 = 0.5 * i - 1.0, f = sqrt((N - 1) / 2.0);
        for (int r = 0; r < N; r++) x[r * D + i] = (float)m1, y[r * D + i] = (float)m2;
        x[2 * i * D + i] = (float)(m1 + s1 * f), x[(2 * i + 1) * D + i] = (float)(m1 - s1 * f);
        y[2 * i * D + i] = (float)(m2 + s2 * f), y[(2 * i + 1) * D + i] = (float)(m2 - s2 * f);
        expected += (m1 - m2) * (m1 - m2) + (s1 - s2) * (s1 - s2);
    }
    double d;
    ASSERT_OK(mhla_frechet_distance(&d, x, N, y, N, D));
    near(d, expected, 1e-4); /* float32 points */
    double back;
    ASSERT_OK(mhla_frechet_distance(&back, y, N, x, N, D));
    near(back, d, 1e-9);
    ASSERT_OK(mhla_frechet_distance(&d, x, N, x, N, D));
    near(d, 0.0, 1e-9);
    x[5] = NAN;
    ASSERT_FAILS(mhla_frechet_distance(&d, x, N, y, N, D), MHLA_ERANGE, "not finite");
    ASSERT_FAILS(mhla_frechet_distance(&d, y, 1, y, N, D), MHLA_EINVAL, "at least two");
    free(x), free(y);
}

/* Sines: what SciPy's sqrtm and NumPy's distances gave for these rows. */
static void fill(float *x, int rows, int dims, double f, double g, float scale, float shift) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < dims; c++) x[r * dims + c] = (float)sin((r + 1.0) * (c + 2.0) * f + g * r) * scale + shift;
}

static void test_numbers_of_scipy(void **state) {
    (void)state;
    static const struct {
        int nx, ny, dims;
        double distance, precision, recall;
    } cases[] = {{400, 350, 12, 2.2589415938426196, 0.3514285714285714, 0.005},
                 {120, 90, 33, 11.349216114833876, 1.0, 0.016666666666666666},
                 {30, 40, 64, 34.240158176311496, 0.975, 0.03333333333333333},
                 {300, 280, 2, 0.3770468837246961, 0.9142857142857143, 0.12666666666666668}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int nx = cases[i].nx, ny = cases[i].ny, D = cases[i].dims;
        float *x = new_poisoned(nx * D), *y = new_poisoned(ny * D);
        fill(x, nx, D, 0.731, 0.3, 1.0f, 0.0f);
        fill(y, ny, D, 0.419, 0.7, 0.5f, 0.25f);
        double d, precision, recall;
        ASSERT_OK(mhla_frechet_distance(&d, x, nx, y, ny, D));
        near(d, cases[i].distance, 1e-6 * cases[i].distance);
        ASSERT_OK(mhla_precision_recall(&precision, &recall, x, nx, y, ny, D, 3));
        near(precision, cases[i].precision, 1e-12);
        near(recall, cases[i].recall, 1e-12);
        free(x), free(y);
    }
}

/* Two clusters, of which the generated ones know only one, and some that are nowhere. */
static void test_precision_recall(void **state) {
    (void)state;
    enum { N = 300, D = 5 };
    rng r = {11};
    float *x = new_bytes(sizeof(float) * N * D), *y = new_bytes(sizeof(float) * N * D);
    for (int i = 0; i < N * D; i++) x[i] = (float)(0.1 * normal(&r) + (i / D % 2 ? 1000.0 : 0.0));
    for (int i = 0; i < N * D; i++) /* a third nowhere, the others of the first cluster */
        y[i] = i / D < N / 3 ? 5000.0f + 100.0f * (float)(i / D) : x[(i / D * 2 % N) * D + i % D];
    double precision, recall;
    ASSERT_OK(mhla_precision_recall(&precision, &recall, x, N, y, N, D, 3));
    near(precision, 2.0 / 3.0, 1e-9);
    assert_true(recall <= 0.5 + 1e-9 && recall > 0.2);
    ASSERT_OK(mhla_precision_recall(&precision, &recall, x, N, x, N, D, 3));
    near(precision, 1.0, 0.0);
    near(recall, 1.0, 0.0);
    ASSERT_FAILS(mhla_precision_recall(&precision, &recall, x, 3, y, N, D, 3), MHLA_EINVAL, "3 neighbours of 3");
    ASSERT_FAILS(mhla_precision_recall(&precision, &recall, x, N, y, N, D, 65), MHLA_EINVAL, "65 neighbours");
    free(x), free(y);
}

/* Certain and evenly spread: as many as classes. All alike: 1. */
static void test_score(void **state) {
    (void)state;
    enum { N = 200, C = 4 };
    float p[N * C] = {0};
    double mean, deviation;
    for (int i = 0; i < N; i++) p[i * C + i / 50] = 1.0f; /* sorted by class, as folders are */
    ASSERT_OK(mhla_inception_score(&mean, &deviation, p, N, C, 1));
    near(mean, 4.0, 1e-9);
    near(deviation, 0.0, 1e-9);
    for (int i = 0; i < N * C; i++) p[i] = 0.25f;
    ASSERT_OK(mhla_inception_score(&mean, &deviation, p, N, C, 10));
    near(mean, 1.0, 1e-9);
    const float two[] = {0.9f, 0.1f, 0.3f, 0.7f, 0.5f, 0.5f}; /* three of two classes, one part */
    ASSERT_OK(mhla_inception_score(&mean, &deviation, two, 3, 2, 1));
    const double m = 1.7 / 3.0, q = 1.3 / 3.0;
    const double kl = (0.9 * log(0.9 / m) + 0.1 * log(0.1 / q) + 0.3 * log(0.3 / m) + 0.7 * log(0.7 / q) +
                       0.5 * log(0.5 / m) + 0.5 * log(0.5 / q)) /
                      3.0;
    near(mean, exp(kl), 1e-6);
}

/* The parts of torch-fidelity, its default settings (10 splits, shuffled, seed 2020). Its numbers for this table, sorted by class
 * and of a length that ten does not divide: 1.6779343, 0.0540878; interleaved parts or parts in order give others. */
static void test_score_parts(void **state) {
    (void)state;
    enum { N = 203, C = 7 };
    static float p[N * C];
    double mean, deviation;
    for (int i = 0; i < N; i++) {
        float sum = 0.0f;
        for (int c = 0; c < C; c++)
            sum += p[i * C + c] = 1.0f + (float)((i * 7 + c * 13) % 11) + (c == i * C / N ? 40.0f : 0.0f);
        for (int c = 0; c < C; c++) p[i * C + c] /= sum;
    }
    ASSERT_OK(mhla_inception_score(&mean, &deviation, p, N, C, 10));
    near(mean, 1.6779342962685, 1e-6);
    near(deviation, 0.0540877539688, 1e-6);
}

/* ---- All of it: a fresh classifier, pictures as arrays, folders, folders of classes ---- */

enum { SIDE = 16, IMAGES = 40 };

static void make_pictures(const char *folder) {
    static uint8_t pixels[IMAGES * SIDE * SIDE * 3];
    rng r = {5};
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(rng_below(&r, 100) + (int)(i / (SIDE * SIDE * 3)) * 3);
    const int64_t shape[] = {IMAGES, SIDE, SIDE, 3};
    ASSERT_OK(mhla_npy_write(in_folder(folder, "images.npy"), MHLA_IO_U8, 4, shape, pixels));
    static const char *const classes[] = {"0", "ankle_boot", "2"};
    for (int i = 0; i < IMAGES; i++) {
        mhla_image image = {0};
        uint8_t *bytes;
        size_t size;
        char name[64];
        ASSERT_OK(mhla_image_reserve(&image, SIDE, SIDE, 3));
        memcpy(image.data, pixels + (size_t)i * SIDE * SIDE * 3, SIDE * SIDE * 3);
        ASSERT_OK(mhla_image_encode_png(&bytes, &size, &image, NULL, 0));
        snprintf(name, sizeof name, "flat/%03d.png", i);
        write_file(folder, name, bytes, size);
        snprintf(name, sizeof name, "classes/%s/%03d.png", classes[i % 3], i);
        write_file(folder, name, bytes, size);
        free(bytes);
        mhla_image_free(&image);
    }
}

static mhla_measure_desc describe(const char *real, const char *generated, const char *features) {
    return (mhla_measure_desc){
        .size = sizeof(mhla_measure_desc), .real = real, .generated = generated, .features = features};
}

static void test_measure(void **state) {
    (void)state;
    char folder[40], array[64], flat[64], classes[64], model_path[64];
    new_folder(folder);
    make_pictures(folder);
    snprintf(array, sizeof array, "%s/images.npy", folder);
    snprintf(flat, sizeof flat, "%s/flat", folder);
    snprintf(classes, sizeof classes, "%s/classes", folder);
    snprintf(model_path, sizeof model_path, "%s/model", folder);
    static const char *const settings[] = {"image=16", "padding=0", "patch=4",   "dim=12",
                                           "depth=1",  "heads=2",   "classes=3", "crop=1"};
    mhla_model *model;
    ASSERT_OK(mhla_model_create(&model, "deit_nano", settings, 8, 1));
    ASSERT_OK(mhla_model_save(model, model_path));
    mhla_model_free(model);

    mhla_measures a = {.size = sizeof a}, b = a;
    mhla_measure_desc d = describe(array, flat, model_path);
    ASSERT_OK(mhla_measure(&a, &d)); /* the same pictures, as they lie in two forms */
    assert_int_equal(a.real, IMAGES);
    assert_int_equal(a.generated, IMAGES);
    assert_int_equal(a.dims, 12);
    assert_int_equal(a.inception, 0);
    assert_non_null(strstr(a.features, "deit_nano (12 features) of "));
    near(a.distance, 0.0, 1e-9);
    near(a.precision, 1.0, 0.0);
    near(a.recall, 1.0, 0.0);
    assert_int_equal(a.labelled, 0);
    assert_true(isnan(a.accuracy));
    assert_true(a.score >= 1.0 && a.score < 3.0);
    /* a part of them, and a folder per class of which one has a name that the model does not know */
    d.limit = 10;
    ASSERT_OK(mhla_measure(&b, &d));
    assert_int_equal(b.real, 10);
    near(b.distance, 0.0, 1e-9);
    d = describe(array, classes, model_path);
    ASSERT_OK(mhla_measure(&b, &d));
    assert_int_equal(b.labelled, 0);
    near(b.distance, 0.0, 1e-9); /* in another order */
    near(b.score, a.score, 0.05);
    char renamed[64];
    snprintf(renamed, sizeof renamed, "%s/classes/1-Trouser", folder);
    assert_int_equal(rename(in_folder(folder, "classes/ankle_boot"), renamed), 0);
    ASSERT_OK(mhla_measure(&b, &d));
    assert_int_equal(b.labelled, 1);
    int right = 0; /* picture i lies in folder i % 3 */
    ASSERT_OK(mhla_model_open(&model, model_path));
    for (int i = 0; i < IMAGES; i++) {
        float p[3];
        char name[32];
        snprintf(name, sizeof name, "flat/%03d.png", i);
        ASSERT_OK(mhla_model_classify(model, p, in_folder(folder, name)));
        right += p[i % 3] >= p[0] && p[i % 3] >= p[1] && p[i % 3] >= p[2];
    }
    mhla_model_free(model);
    near(b.accuracy, right / (double)IMAGES, 1e-9);

    /* the features that the numbers are of, as files */
    char dumped[64];
    snprintf(dumped, sizeof dumped, "%s/features", folder);
    d = describe(array, flat, model_path);
    d.limit = 20;
    d.generated = array;
    d.real = classes;
    d.dump = dumped;
    ASSERT_OK(mhla_measure(&b, &d));
    ASSERT_OK(mhla_measure(&b, &d)); /* a folder that is there will do */
    mhla_npy rows[3];
    static const char *const names[] = {"features/real.npy", "features/generated.npy",
                                        "features/generated.probabilities.npy"};
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(mhla_npy_open(&rows[i], in_folder(folder, names[i])));
        assert_int_equal(rows[i].rank, 2);
        assert_int_equal(rows[i].shape[0], 20);
        assert_int_equal(rows[i].shape[1], i < 2 ? 12 : 3);
    }
    double distance, score, deviation;
    ASSERT_OK(mhla_frechet_distance(&distance, (const float *)rows[0].data, 20, (const float *)rows[1].data, 20, 12));
    near(distance, b.distance, 0.0);
    ASSERT_OK(mhla_inception_score(&score, &deviation, (const float *)rows[2].data, 20, 3, 10));
    near(score, b.score, 0.0);
    for (int i = 0; i < 3; i++) mhla_npy_close(&rows[i]);
    d.dump = in_folder(folder, "no/where");
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EIO, "no/where");

    /* a part is spread over the whole, and comes with its labels */
    mhla_gallery *some, *all;
    ASSERT_OK(mhla_gallery_open(&all, classes, NULL, 0));
    ASSERT_OK(mhla_gallery_open(&some, classes, NULL, 10));
    for (int i = 0; i < 10; i++) {
        mhla_image one = {0}, other = {0};
        int label, same;
        ASSERT_OK(mhla_gallery_get(some, i, &one, &label));
        ASSERT_OK(mhla_gallery_get(all, (int64_t)i * 4, &other, &same));
        assert_int_equal(label, same);
        assert_memory_equal(one.data, other.data, SIDE * SIDE * 3);
        mhla_image_free(&one);
        mhla_image_free(&other);
    }
    mhla_gallery_free(some);
    mhla_gallery_free(all);

    /* the middle of pictures that differ around it */
    static uint8_t wide[4 * 8 * 9], narrow[4 * 6 * 4];
    for (int p = 0; p < 4; p++)
        for (int y = 0; y < 8; y++)
            for (int x = 0; x < 9; x++) wide[(p * 8 + y) * 9 + x] = (uint8_t)(p * 50 + y * 9 + x);
    for (int p = 0; p < 4; p++)
        for (int y = 0; y < 6; y++)
            for (int x = 0; x < 4; x++) narrow[(p * 6 + y) * 4 + x] = wide[(p * 8 + y + 1) * 9 + x + 2];
    ASSERT_OK(mhla_npy_write(in_folder(folder, "wide.npy"), MHLA_IO_U8, 3, (const int64_t[]){4, 8, 9}, wide));
    ASSERT_OK(mhla_npy_write(in_folder(folder, "narrow.npy"), MHLA_IO_U8, 3, (const int64_t[]){4, 6, 4}, narrow));
    d = describe(in_folder(folder, "wide.npy"), in_folder(folder, "narrow.npy"), model_path);
    ASSERT_OK(mhla_measure(&b, &d));
    assert_true(b.distance > 1e-4);
    d.height = 6, d.width = 4;
    ASSERT_OK(mhla_measure(&b, &d));
    near(b.distance, 0.0, 1e-9);
    d.height = 0;
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EINVAL, "height x width is 0 x 4");

    /* what cannot be */
    d = describe(array, folder, model_path);
    d.split = "neither";
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EINVAL, "split is \"neither\"");
    d = describe(array, array, array);
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EDATA, "images.npy: no config.json beside it says what model this is");
    d = describe(array, in_folder(folder, "nowhere"), model_path);
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EIO, "nowhere: no such folder");
    mkdir(in_folder(folder, "empty"), 0777);
    d = describe(array, in_folder(folder, "empty"), model_path);
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EDATA, "no folder in it: expected one for each class");
    d = describe(array, array, model_path);
    d.limit = 1;
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EDATA, "at least two");
    d = describe(array, flat, model_path);
    d.resize = "area";
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EINVAL, "resize is \"area\"");
    write_file(folder, "flat/020.png", "broken", 6);
    d = describe(array, flat, model_path);
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EDATA, "020.png: neither PNG nor JPEG");
    write_file(folder, "classes/2/020.png", "broken", 6); /* there, too: no picture is missing without a word */
    d = describe(array, classes, model_path);
    ASSERT_FAILS(mhla_measure(&b, &d), MHLA_EDATA, "020.png: neither PNG nor JPEG");
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigenvalues),       cmocka_unit_test(test_cholesky),
        cmocka_unit_test(test_distance_on_paper), cmocka_unit_test(test_numbers_of_scipy),
        cmocka_unit_test(test_precision_recall),  cmocka_unit_test(test_score),
        cmocka_unit_test(test_score_parts),       cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
