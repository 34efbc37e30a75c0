/* Whole files: read or mapped, written so that a half-written one never stands under its name. Every file that is read is opened
 * here: nothing but a regular file is opened, and none is waited for. */
#ifndef MHLA_FILE_FILE_H
#define MHLA_FILE_FILE_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdio.h>

#include "file/temporary.h"

enum { MHLA_FILE_SMALL = 1 << 20 }; /* files of up to so many bytes are read into memory, larger ones are mapped */

typedef struct mhla_file {
    const unsigned char *data; /* aligned to 16 bytes; of an empty file not NULL either */
    size_t size;
    struct mhla_mapping *mapping; /* NULL: memory of its own (mapping.h) */
} mhla_file;

/* Opens a regular file for reading and tells its size (NULL: not asked). A FIFO, a device, a folder: MHLA_EIO, at once. */
mhla_status mhla_file_open(int *fd, size_t *size, const char *path);

/* All of a regular file. MHLA_EIO with the path and the reason otherwise. */
mhla_status mhla_file_map(mhla_file *file, const char *path);
void mhla_file_unmap(mhla_file *file); /* harmless when repeated */

/* Why a write failed, by errno: bytes written out of a mapped file that became shorter are told as that. */
const char *mhla_write_problem(int number);

/* A file in the making: written under a temporary name beside `path`, which keeps what it had until the commit. */
typedef struct mhla_writer {
    FILE *stream;
    char path[4096], temporary[4096 + MHLA_TEMPORARY_MORE];
} mhla_writer;

mhla_status mhla_writer_open(mhla_writer *w, const char *path);
/* Flushed to the disk, then renamed; on failure (no space left, ...) the temporary file is removed. */
mhla_status mhla_writer_commit(mhla_writer *w);
void mhla_writer_discard(mhla_writer *w); /* harmless after a commit */

/* A rename is on the disk only when its folder is: flushes the folder that holds `path`. 0, or -1 with errno. */
int mhla_file_sync_folder(const char *path);

/* The same for a folder: filled under the name `temporary`. The commit fails where a folder with files in it has the name by then. */
typedef struct mhla_new_folder {
    char path[3800], temporary[3800 + MHLA_TEMPORARY_MORE]; /* files in it have room for their names */
    int fd;
} mhla_new_folder;

mhla_status mhla_new_folder_open(mhla_new_folder *f, const char *path);
mhla_status mhla_new_folder_commit(mhla_new_folder *f);
void mhla_new_folder_discard(mhla_new_folder *f); /* harmless after a commit */

/* A folder and those on the way to it, where they are not there yet. */
mhla_status mhla_folder_make(const char *path);
/* A folder and all that is in it; of a symbolic link, the link. */
void mhla_folder_remove(const char *path);

#endif
