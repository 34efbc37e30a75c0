#include "ops/op.h"
const mhla_op mhla_op_softmax = {.name = "softmax"};
