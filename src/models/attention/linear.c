/* Linear attention over a grid, under the names of MHLA's release: one summary for all tokens. */
#include "models/attention/grid.h"

static void declare(mhla_grid_attention *a, mhla_params *ps, const char *name) {
    mhla_grid_declare_inputs(a, ps, name, "to_qkv");
    mhla_grid_declare_lepe(a, ps, name);
    mhla_grid_declare_outputs(a, ps, name, "to_out.0");
}

static void plan(mhla_plan_desc *desc, const mhla_grid_settings *s, int64_t T) {
    (void)T;
    desc->feature_eps = (float)s->feature_eps;
    desc->den_eps = (float)s->den_eps;
}

static int64_t cost(const mhla_grid_settings *s, int64_t T, int as_paper) {
    return as_paper ? 0 : mhla_grid_linear_cost(s, T);
}

const mhla_grid_kind mhla_grid_linear = {MHLA_KIND_LINEAR, NULL, declare, plan, mhla_grid_plain, cost, NULL};
