/* The zip archive of a PyTorch checkpoint, as hostile input: entries by name, stored without compression. */
#ifndef MHLA_FILE_TORCH_ZIP_H
#define MHLA_FILE_TORCH_ZIP_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mhla_zip_entry {
    const char *name; /* not ended by a NUL */
    size_t name_size;
    const unsigned char *data; /* inside the archive */
    size_t size;
    uint32_t crc;
    int compressed;
} mhla_zip_entry;

typedef struct mhla_zip {
    const char *path;        /* for messages */
    mhla_zip_entry *entries; /* [count], sorted by name */
    size_t count;
} mhla_zip;

mhla_status mhla_zip_open(mhla_zip *zip, const unsigned char *bytes, size_t size, const char *path);
void mhla_zip_close(mhla_zip *zip);

/* prefix + name, its checksum verified. MHLA_EDATA if there is none or it is compressed. */
mhla_status mhla_zip_find(const mhla_zip_entry **entry, const mhla_zip *zip, const char *prefix, size_t prefix_size,
                          const char *name, size_t name_size);

#endif
