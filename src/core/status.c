/* The message of the last failure, per thread, and the texts of the statuses. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[4096];

const char *mhla_message(void) { return message; }

const char *mhla_status_text(mhla_status status) {
    switch (status) {
#define X(name, value, text)                                                                                           \
    case MHLA_##name: return text;
        MHLA_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const char *mhla_version(void) {
    return TEXT(MHLA_VERSION_MAJOR) "." TEXT(MHLA_VERSION_MINOR) "." TEXT(MHLA_VERSION_PATCH);
}

mhla_status mhla_fail(mhla_status status, const char *format, ...) {
    va_list args;
    char text[sizeof message] = ""; /* arguments may be the message before, which is then part of this one */
    va_start(args, format);
    size_t n = sizeof text - sizeof "...";
    if (vsnprintf(text, sizeof text, format, args) >= (int)sizeof text) { /* what was cut shows, at a whole character */
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
        memcpy(text + n, "...", sizeof "...");
    }
    va_end(args);
    memcpy(message, text, sizeof message);
    return status;
}

mhla_status mhla_blame(mhla_status status, const char *path) {
    return status == MHLA_EINVAL ? mhla_fail(MHLA_EDATA, "%s: %s", path, mhla_message()) : status;
}

/* ---- Structs that begin with their size ---- */

enum {
    STRUCT_LEAST = 2 * sizeof(size_t),
    STRUCT_MOST = 65536
}; /* bytes: a size and one field; more than anybody needs */

static size_t size_of(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

int mhla_struct_holds(const void *given, size_t least) {
    const size_t size = given ? size_of(given) : 0; /* sizeof of a struct is a multiple of its alignment */
    return size >= STRUCT_LEAST && size <= STRUCT_MOST && size % sizeof size == 0 && size >= least;
}

mhla_status mhla_struct_check(const void *given, size_t least, const char *name) {
    if (mhla_struct_holds(given, least)) return MHLA_OK;
    if (given == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", name);
    const size_t size = size_of(given);
    if (!mhla_struct_holds(given, 0))
        return mhla_fail(MHLA_EINVAL, "%s.size is %zu: set it to sizeof(%s)", name, size, name);
    return mhla_fail(MHLA_EINVAL, "%s.size is %zu: expected at least %zu, to hold memory that you free", name, size,
                     least);
}

mhla_status mhla_struct_in_at(void *to, size_t to_size, const void *array, int64_t i, const char *name) {
    MHLA_TRY(mhla_struct_check(array, 0, name));
    const size_t size = size_of(array);
    const unsigned char *from = (const unsigned char *)array + (size_t)i * size;
    if (size_of(from) != size)
        return mhla_fail(MHLA_EINVAL, "%s %lld has size %zu, the first has %zu: expected the same", name, (long long)i,
                         size_of(from), size);
    for (size_t at = to_size; at < size; at++)
        if (from[at] != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s has a field at byte %zu that this library (%s) does not know", name, at,
                             mhla_version());
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    memcpy(to, &to_size, sizeof to_size);
    return MHLA_OK;
}

mhla_status mhla_struct_in(void *to, size_t to_size, const void *from, const char *name) {
    return mhla_struct_in_at(to, to_size, from, 0, name);
}

mhla_status mhla_struct_out(void *to, const void *from, size_t from_size, const char *name) {
    MHLA_TRY(mhla_struct_check(to, 0, name));
    const size_t size = size_of(to), known = size < from_size ? size : from_size;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, known - sizeof size);
    memset((char *)to + known, 0, size - known);
    return MHLA_OK;
}
