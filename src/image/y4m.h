/* YUV4MPEG2 (.y4m), raw clips as ffmpeg and mjpegtools write them: 8 bits, 4:2:0, 4:4:4 or grey, progressive. Hostile input: a file that
 * lies about its size, is cut off or makes no sense is refused with one sentence that begins with its name and names the byte. */
#ifndef MHLA_IMAGE_Y4M_H
#define MHLA_IMAGE_Y4M_H

#include "image/image.h"

typedef struct mhla_y4m {
    int width, height;
    int subsampled; /* chroma has half the sides, rounded up */
    int grey;       /* there is none */
    int full;       /* all 256 levels; else 16 .. 235, as usual */
    int64_t frames; /* at least 1 */
    size_t *at;     /* [frames] where their planes begin */
    const uint8_t *data;
} mhla_y4m;

/* `bytes` must outlive it. MHLA_EDATA, MHLA_ENOTSUP for more than 8 bits, other chroma and interlaced frames, MHLA_ENOMEM. */
mhla_status mhla_y4m_open(mhla_y4m *v, const void *bytes, size_t size, const char *name);
void mhla_y4m_close(mhla_y4m *v); /* harmless when repeated */
/* rgb [height,width,3] of frame i < frames, by BT.601; a pixel of chroma counts for all that it covers. */
void mhla_y4m_frame(const mhla_y4m *v, int64_t i, uint8_t *rgb);

#endif
