/* Sequences: what a language model remembers of some tokens, one memory per layer, which the layer's mixer knows. sequence.c makes,
 * forks and rolls back; sequence_file.c knows bytes; feed.c reads tokens; reader.c holds what all sequences of a model share.
 *
 * A sequence is its ids; what its layers hold is a memory of the first `ready` of them. Whoever cannot go on, or goes
 * back, leaves the layers at a place that all of them have and lowers `ready`: the next feed reads the rest first. So a
 * failure half-way through the layers costs time, and never the sequence. */
#ifndef MHLA_MODELS_SEQUENCE_H
#define MHLA_MODELS_SEQUENCE_H

#include <mhla/lm.h>

#include "models/language/lm.h"

enum { MHLA_MARKS = 8 };

/* What the mixers do past the trained length, shared by the sequences that have the same policy. */
typedef struct mhla_rules {
    struct mhla_rules *next;
    int64_t refs;
    mhla_terms terms;
    int64_t limit;    /* tokens that a sequence may have; INT64_MAX: any number */
    void *policies[]; /* [groups] of the mixers; NULL where a group has no layers */
} mhla_rules;

/* What all sequences of a model share. */
typedef struct mhla_reader {
    mhla_model *model;
    mhla_lm *lm;
    const mhla_lm_config *config;
    mhla_tape *tape;
    mhla_rules *rules;
    int marking;       /* some layer cannot go back by itself: marks are taken */
    int64_t grid;      /* parts of a prompt end at multiples of so many tokens: where marks are taken, or chunks end */
    int64_t sequences; /* that live */
    struct mhla_reading *reading;
    uint64_t print, print_of; /* fingerprint, and the versions of the parameters that it was made of */
    int printed;
} mhla_reader;

/* A place that layers which cannot go back by themselves can be brought back to: the marks of their mixers. Shared by forks. */
typedef struct mhla_mark_at {
    int64_t refs, tokens;
    size_t bytes;
    unsigned char data[];
} mhla_mark_at;

struct mhla_sequence {
    mhla_reader *reader;
    mhla_rules *rules;
    int64_t max_tokens; /* of the description; 0 = none */
    int32_t *ids;       /* [capacity] */
    int64_t tokens, capacity;
    int64_t ready;                   /* tokens that all layers have read */
    void **memory;                   /* [layers] the mixers' */
    mhla_mark_at *marks[MHLA_MARKS]; /* ascending */
    int n_marks;
    int fed;    /* by the feed at hand */
    char *note; /* the caller's, or NULL */
};

/* ---- reader.c ---- */

/* The reader of a model, made when first asked for. MHLA_EINVAL if it is no language model. */
mhla_status mhla_model_reader(mhla_reader **reader, mhla_model *model);
void mhla_reader_free(mhla_reader *reader); /* NULL is legal */
/* The rules of a policy, made or found; another reference. */
mhla_status mhla_rules_get(mhla_rules **rules, mhla_reader *reader, const mhla_terms *terms);
void mhla_rules_drop(mhla_reader *reader, mhla_rules *rules); /* NULL is legal */
/* Of config and weights. Reads all weights the first time. */
mhla_status mhla_reader_print(uint64_t *print, mhla_reader *reader);

/* ---- sequence.c ---- */

/* With fresh memories. */
mhla_status mhla_sequence_make(mhla_sequence **sequence, mhla_reader *reader, const mhla_terms *terms);
/* Room for n more. */
mhla_status mhla_sequence_reserve(mhla_sequence *s, int64_t n);
/* The most tokens, `tokens` at most, that all layers have or can go back to. */
int64_t mhla_sequence_nearest(const mhla_sequence *s, int64_t tokens);
/* All layers to such a place, or, without memory for that, to 0. MHLA_EINVAL: the weights have changed. */
mhla_status mhla_sequence_return(mhla_sequence *s, int64_t place);
/* Where all layers stand at s->ready: perhaps keeps a mark. Never fails. */
void mhla_sequence_mark(mhla_sequence *s);

/* ---- sequence_file.c ---- */

mhla_status mhla_sequence_load_bytes(mhla_sequence **sequence, mhla_model *model, const void *bytes, size_t size,
                                     const char *name);

/* ---- feed.c ---- */

void mhla_reading_free(struct mhla_reading *p);

#endif
