/* Where data lies: a folder as it is, or one of the sets that `mhla data` lays out, by its name. */
#include <mhla/nn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "data/dataset.h"

mhla_status mhla_data_locate(char *folder, size_t size, const char *source) {
    struct stat at;
    mhla_data_info info = {.size = sizeof info};
    char names[256] = "";
    const char *place = source;
    for (int i = 0; mhla_data_query(i, &info) == MHLA_OK; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", info.name);
        if (strcmp(source, info.name) == 0) place = info.folder;
    }
    if (snprintf(folder, size, "%s", place) >= (int)size)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", place);
    if (stat(folder, &at) == 0) return MHLA_OK;
    if (place != source) return mhla_fail(MHLA_EIO, "%s is not there: mhla data %s fetches it", place, source);
    return mhla_fail(MHLA_EIO, "%s: no such folder; known datasets: %s", source, names);
}
