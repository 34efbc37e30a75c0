/* The operations on pixels that RandAugment chooses from, with Pillow's results to the last bit: tables by channel, blends with
 * a plainer picture, affine maps. Compiled without fused multiply-add. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "image/augment.h"
#include "image/image_codec.h"

static size_t bytes_of(const mhla_image *m) { return (size_t)m->width * (size_t)m->height * (size_t)m->channels; }

void mhla_image_flip(mhla_image *image) {
    const size_t C = (size_t)image->channels, row = (size_t)image->width * C;
    for (int y = 0; y < image->height; y++) {
        uint8_t *left = image->data + (size_t)y * row, *right = left + row - C;
        for (; left < right; left += C, right -= C)
            for (size_t c = 0; c < C; c++) {
                const uint8_t x = left[c];
                left[c] = right[c];
                right[c] = x;
            }
    }
}

/* ---- Tables: a byte becomes another ---- */

typedef uint8_t table[256];

static void apply(mhla_image *image, const table *tables) { /* [channels] */
    const size_t n = bytes_of(image);
    uint8_t *x = image->data;
    if (image->channels == 1)
        for (size_t i = 0; i < n; i++) x[i] = tables[0][x[i]];
    else
        for (size_t i = 0; i < n; i += 3) {
            x[i] = tables[0][x[i]];
            x[i + 1] = tables[1][x[i + 1]];
            x[i + 2] = tables[2][x[i + 2]];
        }
}

static void apply_one(mhla_image *image, const table t) {
    const size_t n = bytes_of(image);
    for (size_t i = 0; i < n; i++) image->data[i] = t[image->data[i]];
}

static void histograms(const mhla_image *image, int h[3][256]) {
    const size_t n = bytes_of(image), C = (size_t)image->channels;
    memset(h, 0, 3 * sizeof *h);
    for (size_t i = 0; i < n; i += C)
        for (size_t c = 0; c < C; c++) h[c][image->data[i + c]]++;
}

void mhla_image_invert(mhla_image *image) {
    const size_t n = bytes_of(image);
    for (size_t i = 0; i < n; i++) image->data[i] = (uint8_t)(255 - image->data[i]);
}

void mhla_image_autocontrast(mhla_image *image) {
    int h[3][256];
    table t[3];
    histograms(image, h);
    for (int c = 0; c < image->channels; c++) {
        int low = 0, high = 255;
        while (low < 255 && h[c][low] == 0) low++;
        while (high > 0 && h[c][high] == 0) high--;
        const double scale = high > low ? 255.0 / (high - low) : 1.0, offset = high > low ? -low * scale : 0.0;
        for (int i = 0; i < 256; i++) {
            const int x = (int)(i * scale + offset);
            t[c][i] = (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
        }
    }
    apply(image, t);
}

void mhla_image_equalize(mhla_image *image) {
    int h[3][256];
    table t[3];
    histograms(image, h);
    for (int c = 0; c < image->channels; c++) {
        int different = 0, last = 0;
        long sum = 0;
        for (int i = 0; i < 256; i++)
            if (h[c][i]) {
                different++;
                last = h[c][i];
                sum += last;
            }
        const long step = (sum - last) / 255;
        long n = step / 2;
        for (int i = 0; i < 256; i++) {
            const long x = different > 1 && step > 0 ? n / step : i;
            t[c][i] = (uint8_t)(x > 255 ? 255 : x);
            n += h[c][i];
        }
    }
    apply(image, t);
}

void mhla_image_posterize(mhla_image *image, int bits) {
    const uint8_t mask = (uint8_t)(bits >= 8 ? 255 : bits <= 0 ? 0 : 255 << (8 - bits));
    const size_t n = bytes_of(image);
    for (size_t i = 0; i < n; i++) image->data[i] &= mask;
}

void mhla_image_solarize(mhla_image *image, int threshold) {
    table t;
    for (int i = 0; i < 256; i++) t[i] = (uint8_t)(i < threshold ? i : 255 - i);
    apply_one(image, t);
}

void mhla_image_solarize_add(mhla_image *image, int add, int threshold) {
    table t;
    for (int i = 0; i < 256; i++) t[i] = (uint8_t)(i >= threshold ? i : i + add > 255 ? 255 : i + add);
    apply_one(image, t);
}

/* ---- Blends: from the plain picture through the given one and beyond ---- */

static inline uint8_t blend(int plain, int given, float factor) {
    const float x = (float)plain + factor * (float)(given - plain);
    return (uint8_t)(x <= 0.0f ? 0.0f : x >= 255.0f ? 255.0f : x);
}

static inline uint8_t luma(const uint8_t *p) {
    return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
}

static void blend_with(mhla_image *image, int plain, double factor) {
    table t;
    for (int i = 0; i < 256; i++) t[i] = blend(plain, i, (float)factor);
    apply_one(image, t);
}

void mhla_image_brightness(mhla_image *image, double factor) { blend_with(image, 0, factor); }

void mhla_image_contrast(mhla_image *image, double factor) {
    const size_t n = bytes_of(image), C = (size_t)image->channels, pixels = n / C;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += C) sum += C == 3 ? luma(image->data + i) : image->data[i];
    blend_with(image, (int)((double)sum / (double)pixels + 0.5), factor);
}

void mhla_image_color(mhla_image *image, double factor) {
    if (image->channels == 1) return;
    const size_t n = bytes_of(image);
    for (size_t i = 0; i < n; i += 3) {
        uint8_t *p = image->data + i;
        const int grey = luma(p);
        for (int c = 0; c < 3; c++) p[c] = blend(grey, p[c], (float)factor);
    }
}

/* The plain picture is smoothed by 1 1 1 / 1 5 1 / 1 1 1 over 13, but for its border. */
mhla_status mhla_image_sharpness(mhla_image *out, const mhla_image *in, double factor) {
    MHLA_TRY(mhla_image_reserve(out, in->width, in->height, in->channels));
    const size_t C = (size_t)in->channels, row = (size_t)in->width * C;
    const float k = 1.0f / 13.0f, centre = 5.0f / 13.0f, f = (float)factor;
    memcpy(out->data, in->data, bytes_of(in));
    for (int y = 1; y < in->height - 1; y++) {
        const uint8_t *b = in->data + (size_t)y * row, *a = b - row, *c = b + row;
        uint8_t *o = out->data + (size_t)y * row;
        for (size_t x = C; x + C < row; x++) {
            float sum = 0.5f;
            sum += (float)c[x - C] * k + (float)c[x] * k + (float)c[x + C] * k;
            sum += (float)b[x - C] * k + (float)b[x] * centre + (float)b[x + C] * k;
            sum += (float)a[x - C] * k + (float)a[x] * k + (float)a[x + C] * k;
            o[x] = blend((int)sum, b[x], f);
        }
    }
    return MHLA_OK;
}

/* ---- Affine maps ---- */

/* A pixel's channels side by side, in double as Pillow computes. */
typedef double double4 __attribute__((vector_size(32)));
typedef uint8_t byte4 __attribute__((vector_size(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE void load(double4 *to, const uint8_t *p) { /* may read what follows: the slack of mhla_image */
    byte4 b;
    memcpy(&b, p, 4);
    *to = __builtin_convertvector(b, double4);
}

INLINE void cubic(double4 *out, const double4 v[4], double d) {
    const double4 p2 = v[2] - v[0], p3 = 2.0 * (v[0] - v[1]) + v[2] - v[3], p4 = v[1] - v[0] - v[2] + v[3];
    *out = v[1] + d * (p2 + d * (p3 + d * p4));
}

INLINE int clamp(int x, int n) { return x < 0 ? 0 : x < n ? x : n - 1; }

/* Where the distance d is 0, the sum is its one pixel, exactly; shears and shifts live on that. */
INLINE void cubic_row(double4 *out, const uint8_t *row, const int x[4], double dx, int C) {
    double4 v[4];
    if (dx == 0.0) {
        load(out, row + x[1] * C);
        return;
    }
    for (int i = 0; i < 4; i++) load(&v[i], row + x[i] * C);
    cubic(out, v, dx);
}

INLINE void linear_row(double4 *out, const uint8_t *row, const int x[4], double dx, int C) {
    double4 a, b;
    load(&a, row + x[1] * C);
    load(&b, row + x[2] * C);
    *out = a + (b - a) * dx;
}

INLINE void affine_body(uint8_t *out, const mhla_image *in, const double m[6], int cubically, const uint8_t *fill,
                        int C) {
    const int W = in->width, H = in->height;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++, out += C) {
            const double xo = x + 0.5, yo = y + 0.5;
            double xi = m[0] * xo + m[1] * yo + m[2], yi = m[3] * xo + m[4] * yo + m[5];
            if (!(xi >= 0.0 && xi < W && yi >= 0.0 && yi < H)) {
                for (int c = 0; c < C; c++) out[c] = fill[c];
                continue;
            }
            xi -= 0.5;
            yi -= 0.5;
            const int left = (int)floor(xi), top = (int)floor(yi);
            const double dx = xi - left, dy = yi - top;
            int at[4];
            const uint8_t *row[4];
            for (int i = 0; i < 4; i++) {
                at[i] = clamp(left - 1 + i, W);
                row[i] = in->data + (size_t)clamp(top - 1 + i, H) * (size_t)W * (size_t)C;
            }
            double4 v;
            if (cubically && dy == 0.0) {
                cubic_row(&v, row[1], at, dx, C);
            } else if (cubically) {
                double4 r[4];
                for (int i = 0; i < 4; i++) cubic_row(&r[i], row[i], at, dx, C);
                cubic(&v, r, dy);
            } else {
                double4 a, b;
                linear_row(&a, row[1], at, dx, C);
                linear_row(&b, row[2], at, dx, C);
                v = a + (b - a) * dy;
            }
            for (int c = 0; c < C; c++) out[c] = (uint8_t)(v[c] <= 0.0 ? 0.0 : v[c] >= 255.0 ? 255.0 : v[c]);
        }
}

static void affine1(uint8_t *out, const mhla_image *in, const double m[6], int cubically, const uint8_t *fill) {
    affine_body(out, in, m, cubically, fill, 1);
}
static void affine3(uint8_t *out, const mhla_image *in, const double m[6], int cubically, const uint8_t *fill) {
    if (cubically)
        affine_body(out, in, m, 1, fill, 3);
    else
        affine_body(out, in, m, 0, fill, 3);
}
#ifdef MHLA_X86
__attribute__((target("avx2"))) static void affine3_avx2(uint8_t *out, const mhla_image *in, const double m[6],
                                                         int cubically, const uint8_t *fill) {
    if (cubically)
        affine_body(out, in, m, 1, fill, 3);
    else
        affine_body(out, in, m, 0, fill, 3);
}
#endif

mhla_status mhla_image_affine(mhla_image *out, const mhla_image *in, const double m[6], mhla_filter filter,
                              const uint8_t fill[3]) {
    MHLA_TRY(mhla_image_reserve(out, in->width, in->height, in->channels));
    void (*run)(uint8_t *, const mhla_image *, const double *, int, const uint8_t *) = affine1;
    if (in->channels == 3) {
        run = affine3;
#ifdef MHLA_X86
        if (mhla_image_avx2()) run = affine3_avx2;
#endif
    }
    run(out->data, in, m, filter != MHLA_FILTER_BILINEAR, fill);
    return MHLA_OK;
}

/* Rounded to 15 decimals as Python's round() does. */
static double round15(double x) {
    char text[40];
    snprintf(text, sizeof text, "%.15f", x);
    return strtod(text, NULL);
}

mhla_status mhla_image_rotate(mhla_image *out, const mhla_image *in, double degrees, mhla_filter filter,
                              const uint8_t fill[3]) {
    degrees = fmod(degrees, 360.0);
    if (degrees < 0.0) degrees += 360.0;
    const double angle = -(degrees * (M_PI / 180.0)), cx = in->width / 2.0, cy = in->height / 2.0;
    const double c = round15(cos(angle)), s = round15(sin(angle));
    const double m[6] = {c, s, c * -cx + s * -cy + 0.0 + cx, -s, c, -s * -cx + c * -cy + 0.0 + cy};
    return mhla_image_affine(out, in, m, filter, fill);
}
