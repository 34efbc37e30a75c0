/* Files whose tensors have other names than our parameters: rules that make one of the other, and the loading of such files. */
#ifndef MHLA_MODELS_LAYOUT_H
#define MHLA_MODELS_LAYOUT_H

#include "file/safetensors.h"
#include "nn/nn.h"

/* What begins with `ours` at the beginning of a name or behind a '.' becomes `theirs`; with '^' in front only at the beginning. The parameter
 * is then piece `part` of `parts` equal ones of the rows of the file's tensor. The first rule that fits counts. */
typedef struct mhla_rename {
    const char *ours, *theirs;
    int part, parts; /* parts 0: 1 */
} mhla_rename;

typedef struct mhla_layout {
    const mhla_rename *rules; /* ended by {NULL} */
    const char *const *
        levels; /* parts of names, "main.", that a file may have or not, and that no rule makes; ended by NULL. Or NULL */
    const char *const *beside; /* tensors that are not read, ended by NULL; or NULL */
} mhla_layout;

/* Names of a file under a layout, to be asked often. layout NULL: the file's names are ours. */
typedef struct mhla_layout_names mhla_layout_names;
mhla_status mhla_layout_open(mhla_layout_names **names, const mhla_layout *layout, const mhla_safetensors *file);
void mhla_layout_close(mhla_layout_names *names); /* NULL is legal */
/* The tensor that holds the parameter, perhaps with others, or NULL. */
const mhla_stored *mhla_layout_find(const mhla_layout_names *names, const char *ours);
/* The same with that many axes, each of a size that can be; MHLA_EDATA else. */
mhla_status mhla_layout_need(const mhla_stored **tensor, const mhla_layout_names *names, const char *ours, int rank);

/* Every parameter from the file, which has nothing else. */
mhla_status mhla_layout_load(mhla_params *params, const mhla_layout *layout, const mhla_safetensors *file);

#endif
