/* Where the goldens of the published code lie: the folder that MHLA_GOLDENS names, or shared/goldens beside this tree.
 * Tests that read them are skipped, and say so, where there are none. */
#ifndef MHLA_TESTS_GOLDENS_H
#define MHLA_TESTS_GOLDENS_H

#include <unistd.h>

#include "io/safetensors.h"
#include "support.h"

/* The file, open; skips the test if it is not there. */
static inline mhla_safetensors *open_golden(const char *name) {
    const char *given = getenv("MHLA_GOLDENS");
    const char *folders[] = {given ? given : "../../shared/goldens", "../shared/goldens"};
    for (int i = 0; i < (given ? 1 : 2); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.safetensors", folders[i], name);
        if (access(path, R_OK) != 0) continue;
        mhla_safetensors *f;
        ASSERT_OK(mhla_safetensors_open(&f, path));
        return f;
    }
    print_message("[   SKIP   ] no %s: set MHLA_GOLDENS\n", name);
    skip();
    return NULL;
}

/* The tensor `prefix``name` as float32; free() it. */
static inline float *golden(const mhla_safetensors *f, const char *prefix, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, f, full));
    float *x = new_bytes(sizeof(float) * (size_t)(s->count + 1));
    ASSERT_OK(mhla_stored_read(x, s));
    return x;
}

#endif
