/* Pictures made by a formula, and a hash of pixels: what Pillow makes of the same pictures stands in the tests as hashes. */
#ifndef MHLA_TESTS_PICTURES_H
#define MHLA_TESTS_PICTURES_H

#include "image/image.h"
#include "support.h"

/* FNV-1a */
static inline uint64_t fnv(const uint8_t *x, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ x[i]) * 0x100000001b3u;
    return h;
}

static inline uint64_t image_hash(const mhla_image *m) {
    return fnv(m->data, (size_t)m->width * (size_t)m->height * (size_t)m->channels);
}

/* Squares of a gradient and of its negative with some noise in it. */
static inline mhla_image picture(int width, int height, int channels) {
    mhla_image m = {0};
    ASSERT_OK(mhla_image_reserve(&m, width, height, channels));
    for (int i = 0; i < width * height * channels; i++) {
        const int p = i / channels, c = i % channels, x = p % width, y = p / width, v = (x * 5 + y * 3 + c * 40) % 256;
        const int noise = (int)(((uint32_t)i * 2654435761u + 12345u) >> 24);
        m.data[i] = (uint8_t)((x / 4 + y / 4) % 2 == 0 ? v : (p * 7 + c) % 5 == 0 ? noise : 255 - v / 2);
    }
    return m;
}

#endif
