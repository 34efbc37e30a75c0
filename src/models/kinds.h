/* Choices that more than one family of models has. */
#ifndef MHLA_MODELS_KINDS_H
#define MHLA_MODELS_KINDS_H

/* Which attention a model, or one of its layers, has; config: attention. The last four are DeiT's alone. */
enum {
    MHLA_ATTENTION_MHLA,
    MHLA_ATTENTION_LINEAR,
    MHLA_ATTENTION_SOFTMAX,
    MHLA_ATTENTION_FOCUSED,
    MHLA_ATTENTION_INLINE,
    MHLA_ATTENTION_MALA,
    MHLA_ATTENTION_RALA,
    MHLA_ATTENTIONS
};

/* Everything but the attention the same for all attentions, or as published; config: structure. */
enum { MHLA_STRUCTURE_EQUAL, MHLA_STRUCTURE_RELEASED };

#endif
