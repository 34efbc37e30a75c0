/* Clips as YUV4MPEG2: a line of text, then each frame as brightness and two planes of colour. Colours are those of BT.601 in their limited
 * range; where sides are even, colour has half of them, as programs that play videos expect. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"

#include <mhla/diffusion.h>

typedef struct video {
    int width, height, half; /* half: sides of the planes of colour are halved */
    uint8_t *planes;
    size_t bytes;
} video;

static uint8_t level(double x) { return (uint8_t)fmin(fmax(floor(x + 0.5), 0.0), 255.0); }

/* One value of the planes: a sum of weights of the mean of some pixels. */
static double mean(const mhla_picture *p, int y, int x, int side, int channel) {
    double sum = 0.0;
    for (int i = 0; i < side * side; i++) {
        const int64_t row = (int64_t)y * side + i / side, column = (int64_t)x * side + i % side;
        sum += p->pixels[(row * p->width + column) * p->channels + (p->channels == 3 ? channel : 0)];
    }
    return sum / (side * side);
}

static void fill(const video *v, const mhla_picture *p) {
    static const double weights[3][4] = {
        {16.0, 65.481, 128.553, 24.966}, {128.0, -37.797, -74.203, 112.0}, {128.0, 112.0, -93.786, -18.214}};
    uint8_t *to = v->planes;
    for (int plane = 0; plane < 3; plane++) {
        const int side = plane && v->half ? 2 : 1;
        const double *w = weights[plane];
        for (int y = 0; y < v->height / side; y++)
            for (int x = 0; x < v->width / side; x++) {
                double value = w[0];
                for (int c = 0; c < 3; c++) value += w[1 + c] / 255.0 * mean(p, y, x, side, c);
                *to++ = level(value);
            }
    }
}

static mhla_status put(FILE *to, const mhla_picture *frames, int64_t count, double seconds, const char *path) {
    video v = {0};
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < count && status == MHLA_OK; i++) {
        mhla_picture p = {0};
        status = mhla_struct_in_at(&p, sizeof p, frames, i, "mhla_picture");
        if (status == MHLA_OK && i == 0) {
            v = (video){.width = p.width, .height = p.height, .half = p.width % 2 == 0 && p.height % 2 == 0};
            const size_t n = (size_t)v.width * (size_t)v.height;
            v.bytes = v.half ? n + n / 2 : 3 * n;
            v.planes = malloc(v.bytes + 1);
            if (v.planes == NULL) status = mhla_fail(MHLA_ENOMEM, "%s: no memory for a frame", path);
            const int thousandths = (int)(1000.0 / seconds + 0.5), whole = thousandths % 1000 == 0;
            fprintf(to, "YUV4MPEG2 W%d H%d F%d:%d Ip A1:1 C%s XCOLORRANGE=LIMITED\n", v.width, v.height,
                    whole ? thousandths / 1000 : thousandths, whole ? 1 : 1000, v.half ? "420jpeg" : "444");
        }
        if (status == MHLA_OK &&
            (p.pixels == NULL || (p.channels != 3 && p.channels != 1) || p.width != v.width || p.height != v.height))
            status =
                mhla_fail(MHLA_EINVAL, "%s: frame %lld has %d x %d pixels of %d channels: expected %d x %d of 1 or 3",
                          path, (long long)i, p.width, p.height, p.channels, v.width, v.height);
        if (status != MHLA_OK) break;
        fill(&v, &p);
        fputs("FRAME\n", to);
        if (fwrite(v.planes, 1, v.bytes, to) != v.bytes)
            status = mhla_fail(MHLA_EIO, "%s: %s", path, mhla_write_problem(errno));
    }
    free(v.planes);
    return status;
}

mhla_status mhla_video_write(const char *path, const mhla_picture *frames, int64_t count, double seconds) {
    mhla_writer w;
    if (path == NULL || frames == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", path ? "frames" : "path");
    if (count < 1) return mhla_fail(MHLA_EINVAL, "%s: %lld frames", path, (long long)count);
    if (!(seconds >= 0.001 && seconds <= 1000.0))
        return mhla_fail(MHLA_EINVAL, "%s: a frame of %g seconds: expected 0.001 to 1000", path, seconds);
    if (strcmp(path, "-") == 0) {
        MHLA_TRY(put(stdout, frames, count, seconds, "standard output"));
        if (fflush(stdout) != 0) return mhla_fail(MHLA_EIO, "standard output: %s", mhla_write_problem(errno));
        return MHLA_OK;
    }
    MHLA_TRY(mhla_writer_open(&w, path));
    const mhla_status status = put(w.stream, frames, count, seconds, path);
    if (status == MHLA_OK) return mhla_writer_commit(&w);
    mhla_writer_discard(&w);
    return status;
}
