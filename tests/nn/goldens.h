/* Where the goldens of the published code lie: the folder that MHLA_GOLDENS names, or shared/goldens beside this tree.
 * Tests that read them are skipped, and say so, where there are none. */
#ifndef MHLA_TESTS_GOLDENS_H
#define MHLA_TESTS_GOLDENS_H

#include <unistd.h>

#include "io/safetensors.h"
#include "support.h"

/* Where a golden lies, in path [512]; skips the test if it is not there. */
static inline const char *golden_path(char *path, const char *name) {
    const char *given = getenv("MHLA_GOLDENS");
    const char *folders[] = {given ? given : "../../shared/goldens", "../shared/goldens"};
    for (int i = 0; i < (given ? 1 : 2); i++) {
        snprintf(path, 512, "%s/%s", folders[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    print_message("[   SKIP   ] no %s: set MHLA_GOLDENS\n", name);
    skip();
    return NULL;
}

/* The file `name`.safetensors, open; skips the test if it is not there. */
static inline mhla_safetensors *open_golden(const char *name) {
    char file[300], path[512];
    mhla_safetensors *f;
    snprintf(file, sizeof file, "%s.safetensors", name);
    ASSERT_OK(mhla_safetensors_open(&f, golden_path(path, file)));
    return f;
}

/* The tensor `prefix``name` as float32, whole numbers too; free() it. */
static inline float *golden(const mhla_safetensors *f, const char *prefix, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, f, full));
    float *x = new_bytes(sizeof(float) * (size_t)(s->count + 1));
    if (s->dtype != MHLA_IO_I64) {
        ASSERT_OK(mhla_stored_read(x, s));
        return x;
    }
    for (int64_t i = 0; i < s->count; i++) {
        int64_t whole;
        memcpy(&whole, s->data + sizeof whole * (size_t)i, sizeof whole);
        x[i] = (float)whole;
    }
    return x;
}

#endif
