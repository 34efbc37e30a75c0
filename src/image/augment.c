#include "image/augment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "image/image_codec.h"

/* ---- Settings ---- */

mhla_status mhla_augment_parse(mhla_augment *a, const char *text) {
    a->rand_layers = 0;
    if (*text == '\0' || strcmp(text, "none") == 0) return MHLA_OK;
    if (strncmp(text, "rand", 4) != 0 || (text[4] != '\0' && text[4] != '-'))
        return mhla_fail(MHLA_EINVAL, "augmentation \"%s\": expected none or rand-..., as in rand-m9-mstd0.5-inc1",
                         text);
    mhla_augment r = *a;
    r.rand_layers = 2;
    r.rand_m = 10.0;
    r.rand_std = 0.0;
    r.rand_prob = 0.5;
    r.rand_increasing = 0;
    for (const char *at = text + 4; *at == '-';) {
        const char *piece = ++at;
        const size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        char *end;
        const double x = strtod(at + name, &end);
        const int good = end != at + name && (*end == '-' || *end == '\0') && x >= 0.0 && x <= 100.0;
        at = end;
        if (good && name == 1 && *piece == 'm')
            r.rand_m = x;
        else if (good && name == 4 && strncmp(piece, "mstd", 4) == 0)
            r.rand_std = x;
        else if (good && name == 1 && *piece == 'n' && x == floor(x))
            r.rand_layers = (int)x;
        else if (good && name == 1 && *piece == 'p' && x > 0.0 && x <= 1.0)
            r.rand_prob = x;
        else if (good && name == 3 && strncmp(piece, "inc", 3) == 0 && (x == 0.0 || x == 1.0))
            r.rand_increasing = (int)x;
        else
            return mhla_fail(MHLA_EINVAL,
                             "augmentation \"%s\": \"%.*s\" is not understood: expected m, n, p, mstd or inc "
                             "and a number",
                             text, (int)strcspn(piece, "-"), piece);
    }
    *a = r;
    return MHLA_OK;
}

static mhla_status check_range(const char *name, double range[2], double low, double high, double most) {
    if (range[0] == 0.0 && range[1] == 0.0) {
        range[0] = low;
        range[1] = high;
    }
    if (range[0] > 0.0 && range[0] <= range[1] && range[1] <= most) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s of random crops from %g to %g: expected a range above 0, up to %g", name,
                     range[0], range[1], most);
}

mhla_status mhla_augment_prepare(mhla_augment *a) {
    enum { MOST = 16384 };
    if (a->channels == 0) a->channels = 3;
    if (a->channels != 1 && a->channels != 3)
        return mhla_fail(MHLA_EINVAL, "%d channels: expected 1 or 3", a->channels);
    if (a->width == 0) a->width = a->height;
    if (a->height < 1 || a->height > MOST || a->width < 1 || a->width > MOST)
        return mhla_fail(MHLA_EINVAL, "image size %d x %d: expected 1 to %d each", a->height, a->width, MOST);
    if (a->crop_pct == 0.0) a->crop_pct = 0.875;
    if (!(a->crop_pct > 0.0 && a->crop_pct <= 1.0))
        return mhla_fail(MHLA_EINVAL, "crop_pct %g: expected more than 0, at most 1", a->crop_pct);
    MHLA_TRY(check_range("the area", a->scale, 0.08, 1.0, 1.0));
    MHLA_TRY(check_range("width over height", a->ratio, 3.0 / 4.0, 4.0 / 3.0, 100.0));
    if (a->pad < 0 || a->pad > 4096) return mhla_fail(MHLA_EINVAL, "pad %d: expected 0 to 4096", a->pad);
    if (!(a->flip >= 0.0f && a->flip <= 1.0f && a->erase >= 0.0f && a->erase <= 1.0f))
        return mhla_fail(MHLA_EINVAL, "flip %g, erase %g: expected probabilities", (double)a->flip, (double)a->erase);
    if (a->rand_layers < 0 || a->rand_layers > 100 || !(a->rand_m >= 0.0 && a->rand_std >= 0.0))
        return mhla_fail(MHLA_EINVAL, "RandAugment of %d operations, magnitude %g, deviation %g", a->rand_layers,
                         a->rand_m, a->rand_std);
    if (a->rand_prob == 0.0) a->rand_prob = 0.5;
    if (a->std[0] == 0.0f && a->std[1] == 0.0f && a->std[2] == 0.0f)
        for (int c = 0; c < 3; c++) {
            a->mean[c] = 0.0f;
            a->std[c] = 1.0f;
        }
    for (int c = 0; c < a->channels; c++)
        if (!(a->std[c] > 0.0f && isfinite(a->mean[c])))
            return mhla_fail(MHLA_EINVAL, "mean %g and deviation %g of channel %d", (double)a->mean[c],
                             (double)a->std[c], c);
    return MHLA_OK;
}

void mhla_augment_scratch_free(mhla_augment_scratch *s) {
    mhla_image_free(&s->a);
    mhla_image_free(&s->b);
    mhla_image_free(&s->c);
}

/* ---- RandAugment ---- */

typedef enum operation {
    AUTOCONTRAST,
    EQUALIZE,
    INVERT,
    ROTATE,
    POSTERIZE,
    SOLARIZE,
    SOLARIZE_ADD,
    COLOR,
    CONTRAST,
    BRIGHTNESS,
    SHARPNESS,
    SHEAR_X,
    SHEAR_Y,
    TRANSLATE_X,
    TRANSLATE_Y,
    OPERATIONS
} operation;

/* level 0..10; sign +1 or -1. The argument that timm gives to the operation. */
static double argument_of(operation op, double level, double sign, int increasing) {
    const double part = level / 10.0;
    switch (op) {
    case ROTATE: return sign * part * 30.0;
    case POSTERIZE: return increasing ? 4 - (int)(part * 4.0) : (int)(part * 4.0);
    case SOLARIZE: return increasing ? 256 - (int)fmin(256.0, part * 256.0) : (int)fmin(256.0, part * 256.0);
    case SOLARIZE_ADD: return (int)fmin(128.0, part * 110.0);
    case COLOR:
    case CONTRAST:
    case BRIGHTNESS:
    case SHARPNESS: return increasing ? fmax(0.1, 1.0 + sign * part * 0.9) : part * 1.8 + 0.1;
    case SHEAR_X:
    case SHEAR_Y: return sign * part * 0.3;
    case TRANSLATE_X:
    case TRANSLATE_Y: return sign * part * 0.45;
    default: return 0.0;
    }
}

static void swap(mhla_image *a, mhla_image *b) {
    const mhla_image x = *a;
    *a = *b;
    *b = x;
}

/* In place, with `other` for the operations that cannot. */
static mhla_status operate(mhla_image *image, mhla_image *other, operation op, double x, mhla_filter filter,
                           const uint8_t fill[3]) {
    switch (op) {
    case AUTOCONTRAST: mhla_image_autocontrast(image); return MHLA_OK;
    case EQUALIZE: mhla_image_equalize(image); return MHLA_OK;
    case INVERT: mhla_image_invert(image); return MHLA_OK;
    case POSTERIZE: mhla_image_posterize(image, (int)x); return MHLA_OK;
    case SOLARIZE: mhla_image_solarize(image, (int)x); return MHLA_OK;
    case SOLARIZE_ADD: mhla_image_solarize_add(image, (int)x, 128); return MHLA_OK;
    case COLOR: mhla_image_color(image, x); return MHLA_OK;
    case CONTRAST: mhla_image_contrast(image, x); return MHLA_OK;
    case BRIGHTNESS: mhla_image_brightness(image, x); return MHLA_OK;
    case SHARPNESS: MHLA_TRY(mhla_image_sharpness(other, image, x)); break;
    case ROTATE: MHLA_TRY(mhla_image_rotate(other, image, x, filter, fill)); break;
    default: {
        double m[6] = {1.0, 0.0, 0.0, 0.0, 1.0, 0.0};
        if (op == SHEAR_X) m[1] = x;
        if (op == SHEAR_Y) m[3] = x;
        if (op == TRANSLATE_X) m[2] = x * image->width;
        if (op == TRANSLATE_Y) m[5] = x * image->height;
        MHLA_TRY(mhla_image_affine(other, image, m, filter, fill));
    }
    }
    swap(image, other);
    return MHLA_OK;
}

static mhla_status rand_augment(mhla_image *image, mhla_image *other, const mhla_augment *a, mhla_rng *rng) {
    uint8_t fill[3];
    for (int c = 0; c < 3; c++) fill[c] = (uint8_t)fmin(255.0, fmax(0.0, rint(255.0 * (double)a->mean[c])));
    for (int i = 0; i < a->rand_layers; i++) {
        const operation op = (operation)mhla_rng_below(rng, OPERATIONS);
        const int applied = (double)mhla_rng_uniform(rng) < a->rand_prob;
        const double m = a->rand_m + a->rand_std * mhla_rng_normal(rng);
        const double sign = mhla_rng_next(rng) & 1 ? 1.0 : -1.0;
        const int bilinear = mhla_rng_next(rng) & 1;
        if (!applied) continue;
        const double x = argument_of(op, fmax(0.0, fmin(m, 10.0)), sign, a->rand_increasing);
        const mhla_filter filter = a->rand_bilinear_too && bilinear ? MHLA_FILTER_BILINEAR : MHLA_FILTER_BICUBIC;
        MHLA_TRY(operate(image, other, op, x, a->rand_bilinear_too ? filter : a->filter, fill));
    }
    return MHLA_OK;
}

/* ---- A picture ---- */

/* The part of the picture whose corner is at x, y; black outside of it. */
static mhla_status crop_or_pad(mhla_image *out, const mhla_image *in, const mhla_augment *a, int x, int y) {
    const int W = a->width, H = a->height;
    MHLA_TRY(mhla_image_reserve(out, W, H, in->channels));
    const int64_t C = in->channels;
    const int from = x < 0 ? -x : 0, to = x + W > in->width ? in->width - x : W; /* columns that the picture has */
    memset(out->data, 0, (size_t)W * (size_t)H * (size_t)C);
    for (int row = 0; row < H && from < to; row++)
        if (y + row >= 0 && y + row < in->height)
            memcpy(out->data + ((int64_t)row * W + from) * C,
                   in->data + ((int64_t)(y + row) * in->width + x + from) * C, (size_t)((to - from) * C));
    return MHLA_OK;
}

/* Pillow's convert(): as many channels as wanted. */
static mhla_status convert(mhla_image *image, mhla_image *other, int channels) {
    if (image->channels == channels) return MHLA_OK;
    if (channels == 1) {
        mhla_image_to_grey(image);
        return MHLA_OK;
    }
    MHLA_TRY(mhla_image_reserve(other, image->width, image->height, 3));
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < n; i++)
        other->data[3 * i] = other->data[3 * i + 1] = other->data[3 * i + 2] = image->data[i];
    swap(image, other);
    return MHLA_OK;
}

static mhla_status crop(mhla_image *out, const mhla_image *in, const mhla_augment *a, mhla_rng rng) {
    switch (a->crop) {
    case MHLA_CROP_EVAL: return mhla_image_eval_crop(out, in, a->width, a->height, a->crop_pct, a->filter);
    case MHLA_CROP_RANDOM: {
        const mhla_rect part = mhla_random_crop(&rng, in->width, in->height, a->scale, a->ratio);
        return mhla_image_resize(out, in, a->width, a->height, a->filter, &part);
    }
    case MHLA_CROP_PAD: {
        const int wide = in->width + 2 * a->pad - a->width, high = in->height + 2 * a->pad - a->height;
        if (wide < 0 || high < 0)
            return mhla_fail(MHLA_EDATA, "an image of %d x %d pixels with %d around is too small for a crop of %d x %d",
                             in->width, in->height, a->pad, a->width, a->height);
        const int y = (int)mhla_rng_below(&rng, (uint32_t)high + 1), x = (int)mhla_rng_below(&rng, (uint32_t)wide + 1);
        return crop_or_pad(out, in, a, x - a->pad, y - a->pad);
    }
    case MHLA_CROP_SQUASH: return mhla_image_resize(out, in, a->width, a->height, a->filter, NULL);
    case MHLA_CROP_CENTRE:
        return crop_or_pad(out, in, a, (int)rint((in->width - a->width) / 2.0),
                           (int)rint((in->height - a->height) / 2.0));
    }
    return mhla_fail(MHLA_EINVAL, "crop %d is none", (int)a->crop);
}

/* Four numbers of a normal distribution from a block of the stream: two pairs by Box and Muller. */
static void normals(const mhla_rng *rng, uint32_t block, float out[4]) {
    uint32_t w[4];
    mhla_rng_block(rng, block, w);
    for (int i = 0; i < 4; i += 2) {
        const float u = ((float)(w[i] >> 8) + 1.0f) * 0x1p-24f,
                    angle = (float)(w[i + 1] >> 8) * (0x1p-24f * 6.2831853f);
        const float r = sqrtf(-2.0f * logf(u));
        out[i] = r * cosf(angle);
        out[i + 1] = r * sinf(angle);
    }
}

/* timm's RandomErasing: a rectangle of 2 % to a third of the area, 0.3 to 1 / 0.3 high over wide, full of noise. */
static void erase(float *out, const mhla_augment *a, mhla_rng rng) {
    const int C = a->channels, H = a->height, W = a->width;
    if (mhla_rng_uniform(&rng) >= a->erase) return;
    for (int attempt = 0; attempt < 10; attempt++) {
        const double area = (0.02 + (1.0 / 3.0 - 0.02) * mhla_rng_uniform(&rng)) * H * W;
        const double aspect = exp(log(0.3) + 2.0 * -log(0.3) * mhla_rng_uniform(&rng));
        const int h = (int)rint(sqrt(area * aspect)), w = (int)rint(sqrt(area / aspect));
        if (w >= W || h >= H) continue;
        const int top = (int)mhla_rng_below(&rng, (uint32_t)(H - h + 1));
        const int left = (int)mhla_rng_below(&rng, (uint32_t)(W - w + 1));
        uint32_t block = 64; /* behind those of the attempts */
        float noise[4];
        int used = 4;
        for (int c = 0; c < C; c++)
            for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++) {
                    if (used == 4) normals(&rng, block++, noise), used = 0;
                    out[((size_t)c * (size_t)H + (size_t)(top + y)) * (size_t)W + (size_t)(left + x)] = noise[used++];
                }
        return;
    }
}

/* (x / 255 - mean) / std, in float as torchvision does it. */
static void normalise(float *out, const mhla_image *image, const mhla_augment *a) {
    const size_t n = (size_t)image->width * (size_t)image->height, C = (size_t)image->channels;
    for (size_t c = 0; c < C; c++) {
        float value[256];
        for (int i = 0; i < 256; i++) value[i] = ((float)i / 255.0f - a->mean[c]) / a->std[c];
        for (size_t i = 0; i < n; i++) out[c * n + i] = value[image->data[i * C + c]];
    }
}

mhla_status mhla_augment_apply(float *out, const mhla_image *image, const mhla_augment *a,
                               mhla_augment_scratch *scratch, uint64_t seed, uint64_t epoch, uint64_t sample) {
    mhla_image *x = &scratch->a, *other = &scratch->b;
    mhla_rng rng = mhla_rng_make(seed, epoch, sample, MHLA_PLACE_CROP);
    const mhla_image *from = image;
    if (image->channels == 3 && a->channels == 1) { /* grey before anything else, as when Pillow loads it so */
        MHLA_TRY(mhla_image_crop(&scratch->c, image, (mhla_rect){0, 0, image->width, image->height}));
        mhla_image_to_grey(&scratch->c);
        from = &scratch->c;
    }
    MHLA_TRY(crop(x, from, a, rng));
    MHLA_TRY(convert(x, other, a->channels));
    rng = mhla_rng_make(seed, epoch, sample, MHLA_PLACE_FLIP);
    if (a->flip > 0.0f && mhla_rng_uniform(&rng) < a->flip) mhla_image_flip(x);
    rng = mhla_rng_make(seed, epoch, sample, MHLA_PLACE_RANDAUGMENT);
    if (a->rand_layers > 0) MHLA_TRY(rand_augment(x, other, a, &rng));
    normalise(out, x, a);
    if (a->erase > 0.0f) erase(out, a, mhla_rng_make(seed, epoch, sample, MHLA_PLACE_ERASE));
    return MHLA_OK;
}

/* ---- Batches ---- */

/* Gamma with this shape, 1 or more: Marsaglia and Tsang. */
static double gamma_of(mhla_rng *rng, double shape) {
    const double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        const double x = mhla_rng_normal(rng), v = pow(1.0 + c * x, 3.0);
        const double u = ((double)mhla_rng_next(rng) + 0.5) * 0x1p-32;
        if (1.0 + c * x > 0.0 && log(u) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* Beta(alpha, alpha). */
static double beta_of(mhla_rng *rng, double alpha) {
    if (alpha > 1.0) {
        const double x = gamma_of(rng, alpha), y = gamma_of(rng, alpha);
        return x / (x + y);
    }
    for (;;) { /* Joehnk, in logarithms: U^(1/alpha) underflows for small alpha */
        const double x = log(((double)mhla_rng_next(rng) + 0.5) * 0x1p-32) / alpha;
        const double y = log(((double)mhla_rng_next(rng) + 0.5) * 0x1p-32) / alpha;
        const double most = fmax(x, y), sum = most + log(exp(x - most) + exp(y - most));
        if (sum <= 0.0) return exp(x - sum);
    }
}

static int clamp(int x, int n) { return x < 0 ? 0 : x > n ? n : x; }

static void mix_images(float *images, int B, size_t n, float lambda) {
    for (int i = 0; 2 * i < B; i++) {
        float *a = images + (size_t)i * n, *b = images + (size_t)(B - 1 - i) * n;
        for (size_t j = 0; j < n; j++) {
            const float x = a[j], y = b[j];
            a[j] = x * lambda + y * (1.0f - lambda);
            b[j] = y * lambda + x * (1.0f - lambda);
        }
    }
}

/* Images exchange the rectangle with their partners; returns the part of each that stayed. */
static double cut_images(float *images, int B, int C, int H, int W, double lambda, mhla_rng *rng) {
    const double ratio = sqrt(1.0 - lambda);
    const int high = (int)(H * ratio), wide = (int)(W * ratio);
    const int cy = (int)mhla_rng_below(rng, (uint32_t)H), cx = (int)mhla_rng_below(rng, (uint32_t)W);
    const int top = clamp(cy - high / 2, H), bottom = clamp(cy + (high + 1) / 2, H);
    const int left = clamp(cx - wide / 2, W), right = clamp(cx + (wide + 1) / 2, W);
    for (int i = 0; i < B / 2; i++)
        for (int c = 0; c < C; c++)
            for (int y = top; y < bottom; y++)
                for (int x = left; x < right; x++) {
                    const size_t at = ((size_t)c * (size_t)H + (size_t)y) * (size_t)W + (size_t)x;
                    const size_t n = (size_t)C * (size_t)H * (size_t)W;
                    float *a = images + (size_t)i * n + at, *b = images + (size_t)(B - 1 - i) * n + at;
                    const float swapped = *a;
                    *a = *b;
                    *b = swapped;
                }
    return 1.0 - (double)(bottom - top) * (right - left) / ((double)H * W);
}

void mhla_mix_batch(float *images, float *targets, const int *labels, int B, int C, int H, int W, int classes,
                    const mhla_mix *mix, uint64_t seed, uint64_t step) {
    mhla_rng rng = mhla_rng_make(seed, step, 0, MHLA_PLACE_MIX);
    const double prob = mix->prob > 0.0 ? mix->prob : 1.0, choice = mix->switch_prob > 0.0 ? mix->switch_prob : 0.5;
    double lambda = 1.0;
    if ((mix->mixup > 0.0 || mix->cutmix > 0.0) && (double)mhla_rng_uniform(&rng) < prob) {
        const double u = mhla_rng_uniform(&rng);
        const int cut = mix->cutmix > 0.0 && (mix->mixup <= 0.0 || u < choice);
        lambda = beta_of(&rng, cut ? mix->cutmix : mix->mixup);
        if (cut)
            lambda = cut_images(images, B, C, H, W, lambda, &rng);
        else
            mix_images(images, B, (size_t)C * (size_t)H * (size_t)W, (float)lambda);
    }
    const double off = mix->smoothing / classes, on = 1.0 - mix->smoothing + off;
    for (int i = 0; i < B; i++) {
        float *t = targets + (size_t)i * (size_t)classes;
        const int mine = labels[i], other = labels[B - 1 - i];
        for (int c = 0; c < classes; c++) t[c] = mine < 0 ? 0.0f : (float)off;
        if (mine < 0 || other < 0) {
            if (mine >= 0) t[mine] = (float)on;
        } else if (mine == other) {
            t[mine] = (float)on;
        } else {
            t[mine] = (float)(on * lambda + off * (1.0 - lambda));
            t[other] = (float)(off * lambda + on * (1.0 - lambda));
        }
    }
}

mhla_crop mhla_crop_named(const char *name, int still) {
    static const struct {
        const char *name;
        mhla_crop moved, still;
    } crops[] = {{"none", MHLA_CROP_EVAL, MHLA_CROP_EVAL},
                 {"random", MHLA_CROP_RANDOM, MHLA_CROP_EVAL},
                 {"pad", MHLA_CROP_PAD, MHLA_CROP_CENTRE},
                 {"centre", MHLA_CROP_CENTRE, MHLA_CROP_CENTRE}};
    int i = 3;
    while (i > 0 && strcmp(name, crops[i].name) != 0) i--;
    return still ? crops[i].still : crops[i].moved;
}
