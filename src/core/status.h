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

/* Public structs that begin with their size; the rules stand in mhla.h, section 1. `name` is the struct's type, for messages.
 *
 * in     copies a caller's struct into one of ours: fields that it lacks are zero, fields that we do not know must be zero
 * in_at  the same of element i of an array, whose stride is the caller's size
 * out    fills a caller's struct: only as many bytes as it has, zeros beyond what we know; its size stays
 * check  refuses a size that cannot be right, for calls that fill a struct at the end of their work. Nothing but `size` is
 *        read. `least`: the fewest bytes that are of use, MHLA_UP_TO the last pointer that the caller has to free; 0: any
 * holds  the same as yes or no, without a message, for functions that free what a struct holds */
mhla_status mhla_struct_in(void *to, size_t to_size, const void *from, const char *name);
mhla_status mhla_struct_in_at(void *to, size_t to_size, const void *array, int64_t i, const char *name);
mhla_status mhla_struct_out(void *to, const void *from, size_t from_size, const char *name);
mhla_status mhla_struct_check(const void *given, size_t least, const char *name);
int mhla_struct_holds(const void *given, size_t least);
#define MHLA_UP_TO(type, field) (offsetof(type, field) + sizeof((type *)0)->field)

#endif
