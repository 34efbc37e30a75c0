/* The places where random numbers are drawn (core/rng.h): the one list of them. rng.c does not compile if two overlap. What a
 * place is numbered is part of what a seed means: a number that has been released is never changed. */
#ifndef MHLA_CORE_PLACES_H
#define MHLA_CORE_PLACES_H

/* X(NAME, first, how many) */
#define MHLA_PLACE_LIST(X)                                                                                             \
    X(DOCUMENTS, 101, 1)        /* text: the order of documents in an epoch */                                         \
    X(WINDOWS, 102, 1)          /* text: the order of windows */                                                       \
    X(LAYERS, 1 << 16, 1 << 20) /* dropout: one for each layer of a pass, in the order of calls */                     \
    X(INITIAL, 1 << 24, 1)      /* initial values of parameters */                                                     \
    X(SHUFFLE, 0x0da70000, 1)   /* pictures: their order in an epoch */                                                \
    X(CROP, 0x0da70001, 1)      /* augmentation */                                                                     \
    X(FLIP, 0x0da70002, 1)                                                                                             \
    X(RANDAUGMENT, 0x0da70003, 1)                                                                                      \
    X(ERASE, 0x0da70004, 1)                                                                                            \
    X(MIX, 0x0da70005, 1)                                                                                              \
    X(TIME, 0x0da70100, 1) /* diffusion: times, noise and dropped labels of training */                                \
    X(NOISE, 0x0da70101, 1)                                                                                            \
    X(DROP, 0x0da70102, 1)                                                                                             \
    X(TEST_TIME, 0x0da70103, 1) /* and of its test loss */                                                             \
    X(TEST_NOISE, 0x0da70104, 1)                                                                                       \
    X(LATENT, 0x0da70105, 1)   /* the noise of an image's latent in an epoch */                                        \
    X(ENCODED, 0x0da70106, 2)  /* autoencoders: noise of latents in training, and of their test loss */                \
    X(ANALYSIS, 0x0da80000, 1) /* noise of pictures that a diffusion model is looked into with */                      \
    X(RECALL, 0x6d716172, 1)   /* MQAR's sequences */                                                                  \
    X(NEEDLE, 0x6e65646c, 1)   /* needles and their haystacks */                                                       \
    X(IMAGES, 0x6e6f6973, 1)   /* noise that images are made of */                                                     \
    X(TOKENS, 0x73616d70, 1)   /* tokens that are drawn */                                                             \
    X(CLIPS, 0x636c6970, 1)    /* clips of moving things that are made from pictures */                                \
    X(LABELS, 0x73686666, 1)   /* labels that are shuffled for a control */

enum {
#define X(NAME, first, count) MHLA_PLACE_##NAME = (first),
    MHLA_PLACE_LIST(X)
#undef X
};

#endif
