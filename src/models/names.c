/* Lists of texts: names of classes. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"

void mhla_names_free(char **names, int count) {
    for (int i = 0; names && i < count; i++) free(names[i]);
    free(names);
}

char **mhla_names_copy(char *const *names, int count) {
    char **copy = names ? calloc((size_t)count, sizeof *copy) : NULL;
    for (int i = 0; copy && i < count; i++)
        if ((copy[i] = strdup(names[i])) == NULL) {
            mhla_names_free(copy, count);
            return NULL;
        }
    return copy;
}

mhla_status mhla_names_read(char ***names, const json_t *list, int classes, const char *path) {
    *names = NULL;
    if (list == NULL) return MHLA_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)classes)
        return mhla_fail(MHLA_EDATA, "%s: class_names is not a list of %d texts", path, classes);
    char **copy = calloc((size_t)classes + 1, sizeof *copy);
    for (int i = 0; copy && i < classes; i++) {
        const char *text = json_string_value(json_array_get(list, (size_t)i));
        copy[i] = text ? strdup(text) : NULL;
        if (copy[i] == NULL) {
            mhla_names_free(copy, classes);
            return text ? mhla_fail(MHLA_ENOMEM, "no memory for %d names", classes)
                        : mhla_fail(MHLA_EDATA, "%s: class_names[%d] is not a string", path, i);
        }
    }
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d names", classes);
    *names = copy;
    return MHLA_OK;
}
