#include "eval.h"
int eval_longbench(mhla_model *model, const eval_options *options) {
    (void)model;
    (void)options;
    return CLI_FAILED;
}
