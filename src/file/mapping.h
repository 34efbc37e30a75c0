/* Files mapped into memory, and who they are: where a mapped file becomes shorter, reading it raises SIGBUS, and the handler
 * (mhla_files_watch of <mhla/nn.h>) finds the name by the address. */
#ifndef MHLA_FILE_MAPPING_H
#define MHLA_FILE_MAPPING_H

#include "file/file.h"

/* Maps `size` bytes of fd, 1 or more. */
mhla_status mhla_mapping_create(mhla_file *file, int fd, size_t size, const char *path);
void mhla_mapping_free(mhla_file *file);
/* Bytes of a mapped file that are not needed soon: they leave the memory of this process and are read again when they are. Nothing
 * happens to bytes that are not mapped. */
void mhla_mapping_leave(const void *data, size_t bytes);

#endif
