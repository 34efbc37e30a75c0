/* Which attention a model, or one of its layers, has; config: attention. */
#ifndef MHLA_MODELS_KINDS_H
#define MHLA_MODELS_KINDS_H

enum { MHLA_ATTENTION_MHLA, MHLA_ATTENTION_LINEAR, MHLA_ATTENTION_SOFTMAX };

#endif
