/* Sequences: what a language model remembers of some tokens, one state per layer. sequence.c makes, forks and rolls back;
 * sequence_file.c knows bytes; feed.c reads tokens; reader.c holds what all sequences of a model share.
 *
 * A sequence is its ids; what its layers hold is a memory of the first `ready` of them. Whoever cannot go on, or goes
 * back, leaves the layers at a place that all of them have and lowers `ready`: the next feed reads the rest first. So a
 * failure half-way through the layers costs time, and never the sequence. */
#ifndef MHLA_MODELS_SEQUENCE_H
#define MHLA_MODELS_SEQUENCE_H

#include <mhla/lm.h>

#include "models/language/lm.h"

enum { MHLA_KINDS = 3, MHLA_MARKS = 8 };

/* The plans of one policy beyond the trained length, shared by the sequences that have it. */
typedef struct mhla_rules {
    struct mhla_rules *next;
    int64_t refs;
    mhla_beyond beyond;
    int64_t max_tokens; /* MHLA_BEYOND_CHUNK */
    int64_t limit;      /* tokens that MHLA layers can take; INT64_MAX: any number */
    mhla_plan *plans[MHLA_KINDS];
} mhla_rules;

/* How layers of one kind are fed: what is done to q and k before the plan sees them. */
typedef struct mhla_entry {
    int used;
    int turned; /* q and k go through `turn` first, the plan has neither map nor rotary */
    int layer;  /* the first one of this kind */
    mhla_turn turn;
    float *cos, *sin; /* [MHLA_PASS, rope_dim/2] of the pass at hand; the reader's */
} mhla_entry;

/* What all sequences of a model share. */
typedef struct mhla_reader {
    mhla_model *model;
    mhla_lm *lm;
    const mhla_lm_config *config;
    mhla_tape *tape;
    mhla_rules *rules;
    mhla_entry entry[MHLA_KINDS];
    int marking;       /* some layer cannot go back by itself: marks are taken */
    int64_t interval;  /* tokens from mark to mark */
    int64_t C;         /* tokens of a chunk of MHLA layers as trained; 1 without */
    int64_t sequences; /* that live */
    struct mhla_pass *pass;
    uint64_t print, print_of; /* fingerprint, and the versions of the parameters that it was made of */
    int printed;
} mhla_reader;

/* Keys (turned) and values of a softmax layer. */
typedef struct mhla_cache {
    float *k, *v;                   /* [capacity, G*K], [capacity, G*V] */
    int64_t first, count, capacity; /* tokens first .. first+count-1 */
} mhla_cache;

typedef struct mhla_layer_memory {
    mhla_state *stream; /* MHLA, linear */
    mhla_cache cache;   /* softmax */
    float *conv[3];     /* the last width-1 inputs of the convolutions of q, k, v, or NULL */
    int64_t conv_at[3]; /* how many tokens they have seen */
} mhla_layer_memory;

/* A place that layers which cannot go back by themselves can be brought back to: saved bytes of each. Shared by forks. */
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
    int64_t ready; /* tokens that all layers have read */
    mhla_layer_memory *layers;
    mhla_mark_at *marks[MHLA_MARKS]; /* ascending */
    int n_marks;
    int fed;    /* by the feed at hand */
    char *note; /* the caller's, or NULL */
};

/* ---- reader.c ---- */

/* The reader of a model, made when first asked for. MHLA_EINVAL if it is no language model. */
mhla_status mhla_model_reader(mhla_reader **reader, mhla_model *model);
void mhla_reader_free(mhla_reader *reader); /* NULL is legal */
/* Rows of cos and sin for positions first .. first+n-1 of a kind, into entry->cos + row. */
mhla_status mhla_reader_positions(mhla_reader *reader, int64_t row, int64_t first, int64_t n);
/* The rules of a policy, made or found; another reference. */
mhla_status mhla_rules_get(mhla_rules **rules, mhla_reader *reader, mhla_beyond beyond, int64_t max_tokens);
void mhla_rules_drop(mhla_reader *reader, mhla_rules *rules); /* NULL is legal */
/* Of config and weights. Reads all weights the first time. */
mhla_status mhla_reader_print(uint64_t *print, mhla_reader *reader);

/* ---- sequence.c ---- */

/* Without layers' states. */
mhla_status mhla_sequence_make(mhla_sequence **sequence, mhla_reader *reader, mhla_beyond beyond, int64_t max_tokens);
/* Floats of what a convolution (0 q, 1 k, 2 v) remembers; 0: there is none. */
static inline int64_t mhla_conv_floats(const mhla_lm_mixer *m, int which) {
    const int64_t heads = which == 0 ? m->heads : m->kv_heads;
    return m->conv > 1 ? (m->conv - 1) * heads * (which == 2 ? m->value_dim : m->key_dim) : 0;
}

/* Room for n more. */
mhla_status mhla_sequence_reserve(mhla_sequence *s, int64_t n);
mhla_status mhla_cache_reserve(mhla_cache *c, const mhla_lm_mixer *m, int64_t n);
/* The most tokens, `tokens` at most, that all layers have or can go back to. */
int64_t mhla_sequence_nearest(const mhla_sequence *s, int64_t tokens);
/* All layers to such a place. Without memory: MHLA_ENOMEM and unchanged, or, where `must`, to 0. */
mhla_status mhla_sequence_return(mhla_sequence *s, int64_t place, int must);
/* Where all layers stand at s->ready: perhaps keeps a mark. Never fails. */
void mhla_sequence_mark(mhla_sequence *s);

/* ---- sequence_file.c ---- */

mhla_status mhla_sequence_load_bytes(mhla_sequence **sequence, mhla_model *model, const void *bytes, size_t size,
                                     const char *name);

/* ---- feed.c ---- */

enum { MHLA_PASS = 1024 }; /* tokens that go through the layers at once */
void mhla_pass_free(struct mhla_pass *pass);

#endif
