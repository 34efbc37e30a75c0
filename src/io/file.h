/* Whole files: read by mapping, written so that a half-written one never stands under its name. */
#ifndef MHLA_IO_FILE_H
#define MHLA_IO_FILE_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdio.h>

typedef struct mhla_file {
    const unsigned char *data; /* NULL where the file is empty */
    size_t size;
} mhla_file;

/* Maps a regular file for reading. MHLA_EIO with the path and the reason otherwise. */
mhla_status mhla_file_map(mhla_file *file, const char *path);
void mhla_file_unmap(mhla_file *file); /* harmless when repeated */

/* A file in the making: written under a temporary name beside `path`, which keeps what it had until the commit. */
typedef struct mhla_writer {
    FILE *stream;
    char path[4096], temporary[4128];
} mhla_writer;

mhla_status mhla_writer_open(mhla_writer *w, const char *path);
/* Flushed to the disk, then renamed; on failure (no space left, ...) the temporary file is removed. */
mhla_status mhla_writer_commit(mhla_writer *w);
void mhla_writer_discard(mhla_writer *w); /* harmless after a commit */

/* A rename is on the disk only when its folder is: flushes the folder that holds `path`. 0, or -1 with errno. */
int mhla_file_sync_folder(const char *path);

/* A folder and those on the way to it, where they are not there yet. */
mhla_status mhla_folder_make(const char *path);
/* A folder and all that is in it. */
void mhla_folder_remove(const char *path);

#endif
