/* IDX: the format of MNIST and Fashion-MNIST. Big-endian sizes, then bytes; often compressed by gzip. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "core/status.h"
#include "data/dataset_impl.h"
#include "file/file.h"

/* The whole of a gzip stream, which must be `wanted` bytes. */
static mhla_status inflate_all(uint8_t *out, size_t wanted, const uint8_t *in, size_t size, const char *name) {
    z_stream z = {0};
    z.next_in = (Bytef *)(uintptr_t)in;
    z.next_out = out;
    if (inflateInit2(&z, 15 + 16) != Z_OK) return mhla_fail(MHLA_ENOMEM, "%s: no memory for unpacking it", name);
    size_t used = 0, made = 0;
    int code = Z_OK;
    while (code == Z_OK && made < wanted) {
        const size_t give = size - used < 1u << 30 ? size - used : 1u << 30;
        const size_t take = wanted - made < 1u << 30 ? wanted - made : 1u << 30;
        z.avail_in = (uInt)give;
        z.avail_out = (uInt)take;
        code = inflate(&z, Z_NO_FLUSH);
        used += give - z.avail_in;
        made += take - z.avail_out;
    }
    char why[64];
    snprintf(why, sizeof why, "%s", z.msg ? z.msg : "the file ends in the middle");
    inflateEnd(&z);
    if (made == wanted) return MHLA_OK;
    if (code == Z_STREAM_END)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes when unpacked, expected %zu", name, made, wanted);
    return mhla_fail(MHLA_EDATA, "%s: broken gzip after %zu bytes: %s", name, made, why);
}

mhla_status mhla_idx_read(mhla_idx *idx, const void *bytes, size_t size, int axes, const char *name) {
    *idx = (mhla_idx){.axes = axes};
    const uint8_t *in = bytes;
    const int packed = size >= 2 && in[0] == 0x1f && in[1] == 0x8b;
    const size_t head = 4 + 4 * (size_t)axes;
    uint8_t h[16];
    if (packed)
        MHLA_TRY(inflate_all(h, head, in, size, name));
    else if (size < head)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes are too few for an IDX file", name, size);
    else
        memcpy(h, in, head);
    if (h[0] != 0 || h[1] != 0 || h[2] != 8 || h[3] != axes)
        return mhla_fail(MHLA_EDATA, "%s: begins with %02x %02x %02x %02x, expected 00 00 08 %02x: IDX, bytes, %d %s",
                         name, h[0], h[1], h[2], h[3], (unsigned)axes, axes, axes == 1 ? "axis" : "axes");
    uint64_t count = 1;
    char sizes[40] = "";
    for (int i = 0; i < axes; i++) {
        const uint8_t *p = h + 4 + (size_t)(4 * i);
        idx->size[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), "%s%u", i ? " x " : "", idx->size[i]);
        if (idx->size[i] == 0) return mhla_fail(MHLA_EDATA, "%s: says it holds %s bytes", name, sizes);
        count = count > UINT64_MAX / idx->size[i] ? UINT64_MAX : count * idx->size[i];
    }
    /* believed no further than the file's size allows: gzip packs at most 1,032 to 1 */
    const uint64_t most = packed ? (uint64_t)size * 1040 : size - head;
    if (count > most)
        return mhla_fail(MHLA_EDATA, "%s: says it holds %s bytes, but has only %zu%s", name, sizes,
                         packed ? size : size - head, packed ? " before unpacking" : "");
    if (!packed) {
        if (count < most)
            return mhla_fail(MHLA_EDATA, "%s: %llu bytes are left over after its %s", name,
                             (unsigned long long)(most - count), sizes);
        idx->data = in + head;
        return MHLA_OK;
    }
    idx->owned = malloc(head + (size_t)count);
    if (idx->owned == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its %s bytes", name, sizes);
    const mhla_status status = inflate_all(idx->owned, head + (size_t)count, in, size, name);
    if (status != MHLA_OK) {
        free(idx->owned);
        idx->owned = NULL;
        return status;
    }
    idx->data = idx->owned + head;
    return MHLA_OK;
}

static int find(char *path, const char *folder, const char *start, const char *rest) {
    char name[64];
    snprintf(name, sizeof name, "%s-%s", start, rest);
    if (mhla_dataset_path(path, folder, name)) return 1;
    strcat(name, ".gz");
    return mhla_dataset_path(path, folder, name);
}

/* Maps and reads one of the files; what has to be kept goes into a. */
static mhla_status open_part(mhla_idx *idx, mhla_dataset_array *a, const char *path, int axes) {
    mhla_file *file = &a->maps[a->map_count];
    MHLA_TRY(mhla_file_map(file, path));
    const mhla_status status = mhla_idx_read(idx, file->data, file->size, axes, path);
    if (status != MHLA_OK || idx->owned)
        mhla_file_unmap(file);
    else
        a->map_count++;
    for (size_t i = 0; idx->owned && i < sizeof a->owned / sizeof *a->owned; i++)
        if (a->owned[i] == NULL) {
            a->owned[i] = idx->owned;
            break;
        }
    return status;
}

mhla_status mhla_dataset_open_idx(mhla_dataset *d, const char *folder, mhla_split split) {
    char images[4096], labels[4096];
    const char *start = split == MHLA_SPLIT_TRAIN ? "train" : "t10k";
    const int has_images = find(images, folder, start, "images-idx3-ubyte");
    const int has_labels = find(labels, folder, start, "labels-idx1-ubyte");
    if (!has_images && !has_labels) {
        const char *other = split == MHLA_SPLIT_TRAIN ? "t10k" : "train";
        if (!find(images, folder, other, "images-idx3-ubyte")) return MHLA_OK; /* something else */
    }
    if (!has_images || !has_labels)
        return mhla_fail(MHLA_EIO, "%s: %s-%s is missing", folder, start,
                         has_images ? "labels-idx1-ubyte" : "images-idx3-ubyte");
    d->format = "IDX";
    MHLA_TRY(mhla_dataset_read_names(d, folder, "classes.txt", 256));
    mhla_dataset_array *a = calloc(1, sizeof *a);
    if (a) a->maps = calloc(2, sizeof *a->maps);
    if (a == NULL || a->maps == NULL) {
        free(a);
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for the dataset", folder);
    }
    mhla_idx x = {0}, y = {0};
    mhla_status status = open_part(&x, a, images, 3);
    if (status == MHLA_OK) status = open_part(&y, a, labels, 1);
    if (status == MHLA_OK && x.size[0] != y.size[0])
        status = mhla_fail(MHLA_EDATA, "%s: %u images, but %s has %u labels", images, x.size[0], labels, y.size[0]);
    if (status == MHLA_OK && (x.size[1] > 8192 || x.size[2] > 8192))
        status = mhla_fail(MHLA_EDATA, "%s: images of %u x %u, expected 8192 at most", images, x.size[2], x.size[1]);
    if (status == MHLA_OK) {
        d->count = x.size[0];
        d->height = (int)x.size[1];
        d->width = (int)x.size[2];
        d->channels = 1;
        a->pixels = x.data;
        a->pixel_step = (size_t)d->width * (size_t)d->height;
        a->labels = y.data;
        a->label_step = 1;
    } else {
        d->count = 0;
    }
    const mhla_status used = mhla_dataset_use_array(d, a, labels, 8); /* also makes close() know a */
    return status != MHLA_OK ? status : used;
}
