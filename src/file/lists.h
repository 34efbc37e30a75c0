/* Lists that grow, and a hash of bytes. mhla_ids and mhla_chars are public (mhla/lm.h). */
#ifndef MHLA_FILE_LISTS_H
#define MHLA_FILE_LISTS_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

/* Each leaves the list as it was when it returns MHLA_ENOMEM. */

/* Room for `more` beyond the count; what is there stays. */
mhla_status mhla_ids_reserve(mhla_ids *ids, int64_t more);
mhla_status mhla_chars_reserve(mhla_chars *text, size_t more);

/* An array that grows: `data` to at least `need` elements of `size` bytes; *capacity is in elements. */
mhla_status mhla_list_grow(void **data, size_t *capacity, size_t need, size_t size);

/* A hash of bytes that every program run computes alike. */
uint64_t mhla_bytes_hash(const char *bytes, size_t count);

#endif
