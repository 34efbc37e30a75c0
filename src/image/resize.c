#include "image/resize.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "image/image_codec.h"

#ifdef MHLA_X86
#include <immintrin.h>
#endif

/* ---- Coefficients: in double, then in fixed point with as many bits as leave room for 8 bits of pixel and for sums
 * a little below 0 and above 1. Compiled without fused multiply-add, so that they are the same everywhere. ---- */

enum { BITS = 32 - 8 - 2 };

static double weight(mhla_filter filter, double x) {
    x = fabs(x);
    switch (filter) {
    case MHLA_FILTER_BOX: return x <= 0.5 ? 1.0 : 0.0;
    case MHLA_FILTER_BILINEAR: return x < 1.0 ? 1.0 - x : 0.0;
    case MHLA_FILTER_BICUBIC: /* Keys' cubic convolution with a = -1/2 */
        if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
        return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 : 0.0;
    case MHLA_FILTER_LANCZOS: {
        if (x >= 3.0) return 0.0;
        if (x == 0.0) return 1.0;
        const double wide = x * M_PI, narrow = x / 3.0 * M_PI;
        return sin(wide) / wide * (sin(narrow) / narrow);
    }
    }
    return 0.0;
}

static double support_of(mhla_filter filter) {
    switch (filter) {
    case MHLA_FILTER_BOX: return 0.5;
    case MHLA_FILTER_BILINEAR: return 1.0;
    case MHLA_FILTER_BICUBIC: return 2.0;
    case MHLA_FILTER_LANCZOS: return 3.0;
    }
    return 0.0;
}

/* For `count` outputs from `first` on: output i is the sum of k[i * taps + j] * in[start[i] + j], j < used[i]. */
typedef struct axis {
    int count, taps;
    int *start, *used;
    int32_t *k;
} axis;

static void axis_free(axis *a) {
    free(a->start);
    free(a->k);
    *a = (axis){0}; /* harmless when repeated */
}

/* `in` pixels to `out` pixels, of which first .. first + count - 1 are wanted. */
static mhla_status axis_make(axis *a, int in, int out, int first, int count, mhla_filter filter) {
    const double scale = (double)in / out, stretch = scale < 1.0 ? 1.0 : scale, support = support_of(filter) * stretch;
    *a = (axis){.count = count, .taps = (int)ceil(support) * 2 + 1};
    const size_t n = (size_t)count * (size_t)a->taps;
    a->start = malloc(2 * (size_t)count * sizeof *a->start);
    a->k = malloc(n * sizeof *a->k);
    if (a->start == NULL || a->k == NULL) {
        axis_free(a);
        return mhla_fail(MHLA_ENOMEM, "no memory for the coefficients of resizing %d pixels to %d", in, out);
    }
    a->used = a->start + count;
    double *w = malloc((size_t)a->taps * sizeof *w);
    if (w == NULL) {
        axis_free(a);
        return mhla_fail(MHLA_ENOMEM, "no memory for the coefficients of resizing %d pixels to %d", in, out);
    }
    for (int i = 0; i < count; i++) {
        const double centre = (first + i + 0.5) * scale, inverse = 1.0 / stretch;
        int from = (int)(centre - support + 0.5), to = (int)(centre + support + 0.5);
        if (from < 0) from = 0;
        if (to > in) to = in;
        double sum = 0.0;
        for (int j = 0; j < to - from; j++) {
            w[j] = weight(filter, (j + from - centre + 0.5) * inverse);
            sum += w[j];
        }
        int32_t *k = a->k + (size_t)i * (size_t)a->taps;
        for (int j = 0; j < a->taps; j++) {
            double x = j < to - from ? w[j] : 0.0;
            if (sum != 0.0) x /= sum;
            k[j] = (int32_t)((x < 0.0 ? -0.5 : 0.5) + x * (1 << BITS));
        }
        a->start[i] = from;
        a->used[i] = to - from;
    }
    free(w);
    return MHLA_OK;
}

/* ---- The two passes. Integers only: the same on every CPU, so that the AVX2 copies need no test of their own. ---- */

static inline uint8_t clip(int32_t x) {
    x >>= BITS;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

typedef int32_t pixel4 __attribute__((vector_size(16)));
typedef uint8_t byte4 __attribute__((vector_size(4)));

/* out [rows,count,C] from in, whose rows are `stride` bytes apart. */
static inline __attribute__((always_inline)) void across_body(uint8_t *out, const uint8_t *in, size_t stride, int rows,
                                                              const axis *a, int C) {
    for (int y = 0; y < rows; y++, in += stride, out += (size_t)a->count * (size_t)C)
        for (int x = 0; x < a->count; x++) {
            const int32_t *k = a->k + (size_t)x * (size_t)a->taps;
            const int n = a->used[x];
            if (C == 1) {
                int32_t sum = 1 << (BITS - 1);
                for (int j = 0; j < n; j++) sum += in[a->start[x] + j] * k[j];
                out[x] = clip(sum);
            } else {
                const uint8_t *p = in + 3 * (size_t)a->start[x];
                pixel4 sum = {1 << (BITS - 1), 1 << (BITS - 1), 1 << (BITS - 1), 0};
                for (int j = 0; j < n; j++, p += 3) {
                    byte4 b; /* the fourth is the next pixel's, or slack */
                    memcpy(&b, p, 4);
                    sum += __builtin_convertvector(b, pixel4) * k[j];
                }
                for (int c = 0; c < 3; c++) out[3 * x + c] = clip(sum[c]);
            }
        }
}

/* out [count,row] from in, whose rows are `stride` bytes apart. */
static inline __attribute__((always_inline)) void down_body(uint8_t *out, const uint8_t *in, size_t stride, size_t row,
                                                            const axis *a) {
    enum { WIDE = 64 };
    for (int y = 0; y < a->count; y++, out += row) {
        const int32_t *k = a->k + (size_t)y * (size_t)a->taps;
        const uint8_t *top = in + (size_t)a->start[y] * stride;
        const int n = a->used[y];
        size_t x = 0;
        for (; x + WIDE <= row; x += WIDE) {
            int32_t sum[WIDE];
            for (int i = 0; i < WIDE; i++) sum[i] = 1 << (BITS - 1);
            for (int j = 0; j < n; j++)
                for (int i = 0; i < WIDE; i++) sum[i] += top[(size_t)j * stride + x + (size_t)i] * k[j];
            for (int i = 0; i < WIDE; i++) out[x + (size_t)i] = clip(sum[i]);
        }
        for (; x < row; x++) {
            int32_t sum = 1 << (BITS - 1);
            for (int j = 0; j < n; j++) sum += top[(size_t)j * stride + x] * k[j];
            out[x] = clip(sum);
        }
    }
}

typedef struct passes {
    void (*across1)(uint8_t *, const uint8_t *, size_t, int, const axis *);
    void (*across3)(uint8_t *, const uint8_t *, size_t, int, const axis *);
    void (*down)(uint8_t *, const uint8_t *, size_t, size_t, const axis *);
} passes;

static void across1(uint8_t *out, const uint8_t *in, size_t stride, int rows, const axis *a) {
    across_body(out, in, stride, rows, a, 1);
}
static void across3(uint8_t *out, const uint8_t *in, size_t stride, int rows, const axis *a) {
    across_body(out, in, stride, rows, a, 3);
}
static void down(uint8_t *out, const uint8_t *in, size_t stride, size_t row, const axis *a) {
    down_body(out, in, stride, row, a);
}

#ifdef MHLA_X86
#define AVX2 __attribute__((target("avx2")))
AVX2 static void across1_avx2(uint8_t *out, const uint8_t *in, size_t stride, int rows, const axis *a) {
    across_body(out, in, stride, rows, a, 1);
}

/* Four taps of a pixel's three channels at once. pmaddwd multiplies 16 bits only, so a coefficient is cut into k = 2048 high + low,
 * which loses nothing: sums are taken modulo 2^32, and the whole one fits. */
AVX2 static void across3_avx2(uint8_t *out, const uint8_t *in, size_t stride, int rows, const axis *a) {
    const size_t groups = ((size_t)a->taps + 3) / 4;
    __m256i *k = aligned_alloc(32, (size_t)a->count * groups * 2 * sizeof *k); /* [count,groups]: high, low */
    if (k == NULL) {
        across_body(out, in, stride, rows, a, 3);
        return;
    }
    int16_t *words = (int16_t *)k;
    memset(words, 0, (size_t)a->count * groups * 2 * sizeof *k);
    for (size_t x = 0; x < (size_t)a->count; x++)
        for (size_t j = 0; j < (size_t)a->used[x]; j++) {
            const int32_t c = a->k[x * (size_t)a->taps + j];
            int16_t *at = words + (x * groups + j / 4) * 32 + (j % 4 / 2) * 8 + j % 2; /* words r r g g b b 0 0 */
            for (int i = 0; i < 6; i += 2) {
                at[i] = (int16_t)(c >> 11);
                at[16 + i] = (int16_t)(c & 2047);
            }
        }
    const __m256i spread = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                                            -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m128i half = _mm_set1_epi32(1 << (BITS - 1));
    for (int y = 0; y < rows; y++, in += stride)
        for (int x = 0; x < a->count; x++, out += 3) {
            const uint8_t *p = in + 3 * (size_t)a->start[x];
            const __m256i *c = k + (size_t)x * groups * 2;
            __m256i high = _mm256_setzero_si256(), low = high;
            for (int j = 0; j < a->used[x]; j += 4, p += 12, c += 2) { /* may read slack, times 0 */
                const __m256i pixels =
                    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p)), spread);
                high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, c[0]));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, c[1]));
            }
            const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high, 11), low);
            __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
            sum = _mm_srai_epi32(_mm_add_epi32(sum, half), BITS);
            sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
            const uint32_t rgb = (uint32_t)_mm_cvtsi128_si32(sum);
            memcpy(out, &rgb, 3);
        }
    free(k);
}
AVX2 static void down_avx2(uint8_t *out, const uint8_t *in, size_t stride, size_t row, const axis *a) {
    down_body(out, in, stride, row, a);
}
#endif

static passes choose(void) {
#ifdef MHLA_X86
    if (mhla_image_avx2()) return (passes){across1_avx2, across3_avx2, down_avx2};
#endif
    return (passes){across1, across3, down};
}

/* ---- Images ---- */

static mhla_status check_part(const mhla_image *in, const mhla_rect *part) {
    if (in->data == NULL || part->x < 0 || part->y < 0 || part->width < 1 || part->height < 1 ||
        part->x > in->width - part->width || part->y > in->height - part->height)
        return mhla_fail(MHLA_EINVAL, "%d x %d pixels at %d, %d are not inside of an image of %d x %d", part->width,
                         part->height, part->x, part->y, in->width, in->height);
    return MHLA_OK;
}

mhla_status mhla_image_crop(mhla_image *out, const mhla_image *in, mhla_rect part) {
    MHLA_TRY(check_part(in, &part));
    MHLA_TRY(mhla_image_reserve(out, part.width, part.height, in->channels));
    const size_t C = (size_t)in->channels, row = (size_t)part.width * C, stride = (size_t)in->width * C;
    const uint8_t *from = in->data + (size_t)part.y * stride + (size_t)part.x * C;
    for (int y = 0; y < part.height; y++) memcpy(out->data + (size_t)y * row, from + (size_t)y * stride, row);
    return MHLA_OK;
}

/* What the wanted outputs read: from *first on, that many; starts become relative to it. */
static int reach(axis *a, int *first) {
    const int from = a->start[0], to = a->start[a->count - 1] + a->used[a->count - 1];
    for (int i = 0; i < a->count; i++) a->start[i] -= from;
    *first = from;
    return to - from;
}

static void copy_rows(uint8_t *out, size_t row, const uint8_t *in, size_t stride, int rows) {
    for (int y = 0; y < rows; y++) memcpy(out + (size_t)y * row, in + (size_t)y * stride, row);
}

/* The part of `in`, resized to width x height, of which `window` is computed. A pass that changes no size is left out. */
static mhla_status resample(mhla_image *out, const mhla_image *in, const mhla_rect *part, int width, int height,
                            const mhla_rect *window, mhla_filter filter) {
    const size_t C = (size_t)in->channels, stride = (size_t)in->width * C, row = (size_t)window->width * C;
    const passes pass = choose();
    void (*const across)(uint8_t *, const uint8_t *, size_t, int, const axis *) = C == 3 ? pass.across3 : pass.across1;
    axis ax = {0}, ay = {0};
    uint8_t *between = NULL; /* after the first pass: the rows or columns that the second one reads */
    MHLA_TRY(mhla_image_reserve(out, window->width, window->height, in->channels));
    mhla_status status = axis_make(&ax, part->width, width, window->x, window->width, filter);
    if (status == MHLA_OK) status = axis_make(&ay, part->height, height, window->y, window->height, filter);
    if (status != MHLA_OK) goto end;

    /* the order matters to the last bit, since the first pass rounds and clips; this is the rule of Pillow 13, before
     * which it was always across first */
    const int down_first = height < part->height && part->height - height > 2 * (part->width - width);
    int left, top;
    const int columns = reach(&ax, &left), rows = reach(&ay, &top);
    const uint8_t *from = in->data + (size_t)(part->y + top) * stride + (size_t)(part->x + left) * C;
    const size_t size =
        (down_first ? (size_t)window->height * (size_t)columns : (size_t)rows * (size_t)window->width) * C;
    between = calloc(1, size + MHLA_IMAGE_SLACK);
    if (between == NULL) {
        status = mhla_fail(MHLA_ENOMEM, "no memory for resizing to %d x %d pixels", width, height);
        goto end;
    }
    if (down_first) {
        const size_t wide = (size_t)columns * C;
        pass.down(between, from, stride, wide, &ay);
        if (width == part->width)
            copy_rows(out->data, row, between + (size_t)(window->x - left) * C, wide, window->height);
        else
            across(out->data, between, wide, window->height, &ax);
    } else {
        if (width == part->width)
            copy_rows(between, row, from + (size_t)(window->x - left) * C, stride, rows);
        else
            across(between, from, stride, rows, &ax);
        if (height == part->height)
            memcpy(out->data, between + (size_t)(window->y - top) * row, (size_t)window->height * row);
        else
            pass.down(out->data, between, row, row, &ay);
    }
end:
    free(between);
    axis_free(&ax);
    axis_free(&ay);
    return status;
}

mhla_status mhla_image_resize(mhla_image *out, const mhla_image *in, int width, int height, mhla_filter filter,
                              const mhla_rect *part) {
    const mhla_rect all = {0, 0, in->width, in->height};
    if (part == NULL) part = &all;
    MHLA_TRY(check_part(in, part));
    if (width < 1 || height < 1) return mhla_fail(MHLA_EINVAL, "resizing to %d x %d pixels", width, height);
    if (width == part->width && height == part->height) return mhla_image_crop(out, in, *part);
    return resample(out, in, part, width, height, &(mhla_rect){0, 0, width, height}, filter);
}

/* What a picture of w x h pixels is resized to so that its crop is seen: the shorter side to that of the square. As
 * torchvision, the longer one is cut off to a whole number. */
static void cover_square(int *w, int *h, int side) {
    if (*w <= *h && *w != side) {
        *h = (int)((int64_t)side * *h / *w);
        *w = side;
    } else if (*h < *w && *h != side) {
        *w = (int)((int64_t)side * *w / *h);
        *h = side;
    }
}

/* Of a rectangle, as timm's ResizeKeepRatio: the smallest picture that covers it; both sides rounded to even. */
static void cover(int *w, int *h, int width, int height) {
    const double ratio = fmin((double)*w / width, (double)*h / height);
    *w = (int)rint(*w / ratio);
    *h = (int)rint(*h / ratio);
}

mhla_status mhla_image_eval_crop(mhla_image *out, const mhla_image *in, int width, int height, double crop_pct,
                                 mhla_filter filter) {
    const mhla_rect all = {0, 0, in->width, in->height};
    MHLA_TRY(check_part(in, &all));
    if (width < 1 || height < 1 || !(crop_pct > 0.0 && crop_pct <= 1.0) || fmax(width, height) / crop_pct > INT_MAX / 2)
        return mhla_fail(MHLA_EINVAL, "a crop of %d x %d pixels with crop_pct %g: expected 1 or more, and 0 to 1",
                         width, height, crop_pct);
    const int wide = (int)floor(width / crop_pct), high = (int)floor(height / crop_pct);
    int w = in->width, h = in->height;
    if (fmax(wide, high) * fmax(w, h) / fmin(w, h) > INT_MAX / 2)
        return mhla_fail(MHLA_EDATA, "an image of %d x %d pixels is too thin for a crop of %d x %d", w, h, width,
                         height);
    if (wide == high)
        cover_square(&w, &h, wide);
    else
        cover(&w, &h, wide, high);
    const mhla_rect window = {(int)rint((w - width) / 2.0), (int)rint((h - height) / 2.0), width, height};
    if (w == in->width && h == in->height) return mhla_image_crop(out, in, window);
    return resample(out, in, &all, w, h, &window, filter);
}

mhla_rect mhla_random_crop(mhla_rng *rng, int width, int height, const double scale[2], const double ratio[2]) {
    const double area = (double)width * height, low = log(ratio[0]), high = log(ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        const double part = (scale[0] + (scale[1] - scale[0]) * mhla_rng_uniform(rng)) * area;
        const double aspect = exp(low + (high - low) * mhla_rng_uniform(rng));
        const double w = rint(sqrt(part * aspect)), h = rint(sqrt(part / aspect));
        if (w >= 1.0 && h >= 1.0 && w <= width && h <= height) {
            mhla_rect r = {0, 0, (int)w, (int)h};
            r.y = (int)mhla_rng_below(rng, (uint32_t)(height - r.height + 1));
            r.x = (int)mhla_rng_below(rng, (uint32_t)(width - r.width + 1));
            return r;
        }
    }
    mhla_rect r = {0, 0, width, height};
    if ((double)width / height < ratio[0])
        r.height = (int)rint(width / ratio[0]);
    else if ((double)width / height > ratio[1])
        r.width = (int)rint(height * ratio[1]);
    if (r.height < 1) r.height = 1;
    if (r.width < 1) r.width = 1;
    if (r.height > height) r.height = height;
    if (r.width > width) r.width = width;
    r.y = (height - r.height) / 2;
    r.x = (width - r.width) / 2;
    return r;
}
