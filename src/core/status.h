/* Statuses with a sentence: every failure goes through mhla_fail, which keeps the message per thread. */
#ifndef MHLA_CORE_STATUS_H
#define MHLA_CORE_STATUS_H

#include <mhla/mhla.h>

/* Keeps the formatted sentence for mhla_message() and returns `status`. */
mhla_status mhla_fail(mhla_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Of settings that a file holds: what is wrong with them, MHLA_EINVAL, is wrong with the file, MHLA_EDATA, and told with its path.
 * Other statuses are passed on. */
mhla_status mhla_blame(mhla_status status, const char *path);

#define MHLA_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const mhla_status try_status_ = (expression);                                                                  \
        if (try_status_ != MHLA_OK) return try_status_;                                                                \
    } while (0)

/* Copies a caller's structure of another age: what it does not have is zero. A larger one must hold zeros in what we do not know. The first
 * member of both is size_t size. */
mhla_status mhla_copy_struct(void *to, size_t to_size, const void *from, const char *name);

#endif
