/* The message of the last failure, per thread, and the texts of the statuses. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[512];

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
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    return status;
}

mhla_status mhla_blame(mhla_status status, const char *path) {
    return status == MHLA_EINVAL ? mhla_fail(MHLA_EDATA, "%s: %s", path, mhla_message()) : status;
}

mhla_status mhla_copy_struct(void *to, size_t to_size, const void *from, const char *name) {
    if (from == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", name);
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < 2 * sizeof size || size > 65536)
        return mhla_fail(MHLA_EINVAL, "%s.size is %zu: set it to sizeof the structure", name, size);
    for (size_t i = to_size; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return mhla_fail(MHLA_ENOTSUP, "%s has a field at byte %zu that this library (%s) does not know", name, i,
                             mhla_version());
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    memcpy(to, &to_size, sizeof to_size);
    return MHLA_OK;
}
