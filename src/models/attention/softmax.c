/* Softmax attention over a grid, under the names of timm. */
#include "models/attention/grid.h"

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    mhla_grid_declare_inputs(a, ps, name, "qkv");
    mhla_grid_declare_lepe(a, ps, name);
    mhla_grid_declare_outputs(a, ps, name, "proj");
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : 2 * T * T * s->dim; /* scores, their use */
}

const mhla_grid_kind mhla_grid_softmax = {MHLA_KIND_SOFTMAX, NULL, declare, NULL, mhla_grid_plain, cost, NULL};
