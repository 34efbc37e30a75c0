/* Tests of models whose files have several names for the same tensors: against the published lists, and written under such names. */
#ifndef MHLA_TESTS_NAMES_CASE_H
#define MHLA_TESTS_NAMES_CASE_H

#include <inttypes.h>

#include "folders.h"
#include "goldens.h"
#include "models/model.h"

/* What a parameter is called in a file of the layout that `of` says. */
typedef void (*naming_fn)(char name[256], const void *of, const char *parameter);

/* Every parameter is in the list under its name of that layout, with its numbers, and nothing else is. */
static inline void check_names(const mhla_params *params, const char *list, naming_fn name_of, const void *of) {
    char path[512], line[512], name[256], found[256];
    FILE *f = fopen(golden_path(path, list), "r");
    assert_non_null(f);
    int count = 0;
    while (fgets(line, sizeof line, f)) {
        int64_t shape[5], n = 1;
        if (*line == '#') continue;
        const int axes = sscanf(line, "%255s [%" SCNd64 ", %" SCNd64 ", %" SCNd64 ", %" SCNd64 ", %" SCNd64, found,
                                &shape[0], &shape[1], &shape[2], &shape[3], &shape[4]) -
                         1;
        assert_true(axes >= 1);
        for (int a = 0; a < axes; a++) n *= shape[a];
        int hits = 0;
        for (int i = 0; i < mhla_params_count(params); i++) {
            const mhla_param *p = mhla_params_at(params, i);
            name_of(name, of, p->name);
            if (strcmp(name, found) != 0) continue;
            hits++;
            assert_int_equal(p->count, n);
        }
        if (hits != 1) print_error("%s: %d parameters\n", found, hits);
        assert_int_equal(hits, 1);
        count++;
    }
    fclose(f);
    assert_int_equal(count, mhla_params_count(params));
}

/* The model's tensors under other names, as `dtype`, and perhaps one more; `part`: those that begin so. */
static inline void write_named(const char *path, const mhla_params *params, naming_fn name_of, const void *of,
                               mhla_io_dtype dtype, const char *part, const char *more) {
    static char text[512][256];
    mhla_storable list[512];
    int n = 0;
    for (int i = 0; i < mhla_params_count(params); i++) {
        const mhla_param *p = mhla_params_at(params, i);
        if (strncmp(p->name, part, strlen(part)) != 0) continue;
        name_of(text[n], of, p->name);
        list[n] = (mhla_storable){text[n], p->dims, p->shape, p->data, MHLA_IO_F32, dtype};
        n++;
    }
    if (more) {
        list[n] = list[0];
        list[n++].name = more;
    }
    ASSERT_OK(mhla_safetensors_write(path, list, n, NULL, 0));
}

#endif
