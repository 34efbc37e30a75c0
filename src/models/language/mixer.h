/* A language mixer is how a layer of a decoder lets tokens see those before them: softmax attention, MHLA, linear attention. Each is
 * a row of functions, listed in mixers.c. It owns its config keys, its parameters, its forward pass, its cost and its memory. The decoder
 * (lm.c) and sequences (sequence.c, feed.c, sequence_file.c) know no mixer by name.
 *
 *   settings   what can be chosen, a plain struct. Layers with the same settings are a group.
 *   shared     what the layers of a group have in common: plans, rotary tables
 *   layer      the parameters of one layer
 *   policy     what a group does under the terms of a sequence, shared by the sequences that have the same
 *   memory     what one layer remembers of one sequence */
#ifndef MHLA_MODELS_MIXER_H
#define MHLA_MODELS_MIXER_H

#include <mhla/lm.h>
#include <stddef.h>
#include <stdint.h>

#include "file/json.h"
#include "file/safetensors.h"
#include "models/settings.h"
#include "nn/nn.h"

struct mhla_lm_config;

enum { MHLA_MIXER_BYTES = 256 }; /* of settings, at most */

/* Sizes of a preset. */
typedef struct mhla_lm_size {
    const char *name;
    int vocabulary, width, layers;
    int heads;        /* few and wide: mixers whose state is a matrix for each head */
    int narrow_heads; /* many and narrow: softmax */
    int chunk, blocks;
    int bos, eos;
    int head_dim;          /* of Gated DeltaNet; 0: 3/4 of width in all */
    const char *attention; /* the mixer that the preset is of; NULL: any */
} mhla_lm_size;

typedef struct mhla_mixer_facts {
    int heads;
    int64_t chunk;   /* its memory can go back to multiples of so many tokens; 0: it has no chunks */
    int64_t longest; /* tokens that its parameters are made for; 0: any number */
    int marks;       /* its memory needs marks (below) to go back */
} mhla_mixer_facts;

/* ---- Tokens on their way through the layers ---- */

/* Rows row .. row+n-1 are tokens at .. at+n-1 of one sequence. */
typedef struct mhla_segment {
    void *const *memory; /* [layers] of the sequence */
    int64_t row, n, at;
} mhla_segment;

enum { MHLA_PASS = 1024 }; /* rows of a pass, at most */

/* Rows of several sequences, one after the other. Segments with the same policies are neighbours. */
typedef struct mhla_pass {
    const mhla_segment *segments;
    int n;
    int64_t rows;
    const mhla_context *alone; /* one thread, for tasks that run side by side */
} mhla_pass;

typedef struct mhla_mixer_run {
    const int64_t *cu_seqlens; /* training, packed: B = 1, sequence s is tokens cu_seqlens[s] .. [s+1]-1 */
    int64_t sequences;
    const mhla_pass *pass; /* with memory: B = 1, T = rows; tapes that do not record only. NULL: whole texts */
} mhla_mixer_run;

/* ---- Bytes of a saved memory: every piece is padded to 8 ---- */

typedef struct mhla_sink mhla_sink; /* sequence_file.c */
void mhla_sink_put(mhla_sink *o, const void *bytes, size_t size);

typedef struct mhla_saved {
    const unsigned char *data;
    size_t at, end; /* what is left */
} mhla_saved;
/* `size` bytes; NULL if there are fewer. */
const unsigned char *mhla_saved_take(mhla_saved *in, uint64_t size);
static inline size_t mhla_saved_size(size_t bytes) { return (bytes + 7) / 8 * 8; } /* with its padding */

/* ---- What sequences may choose ---- */

typedef struct mhla_terms {
    mhla_beyond beyond; /* past the trained length */
    int64_t max_tokens; /* MHLA_BEYOND_CHUNK; else 0 */
    mhla_dtype cache;   /* of keys and values that are kept token by token: MHLA_F32 or MHLA_BF16 */
} mhla_terms;

/* ---- The row ---- */

/* Functions marked * may be NULL. */
typedef struct mhla_mixer {
    const char *name; /* of the key `attention` */
    const char *type; /* model_type of a config.json whose rule it is */
    const char
        *group; /* object in config.json that lists layers which differ from the rule, and prefix of their keys */

    /* Settings. Every key is a key of config.json, of recipes and a flag. */
    size_t bytes;
    mhla_settings keys;
    /* What a preset says; what flash-linear-attention takes where config.json says nothing (size NULL). */
    void (*standard)(void *settings, const mhla_lm_size *size);
    /* What a decoder has otherwise where this mixer is its rule: in a preset, and where config.json says nothing (size NULL).* */
    void (*decoder)(struct mhla_lm_config *c, const mhla_lm_size *size);
    /* Is it the rule of this config.json? By model_type, then by tensors (file may be NULL). */
    int (*claims)(const json_t *tree, const mhla_safetensors *file);
    /* Keys of the rule with a form of their own.* */
    mhla_status (*read)(void *settings, struct mhla_lm_config *c, const json_t *tree, const char *path);
    void (*write)(json_t *tree, const void *settings, const struct mhla_lm_config *c); /* * */
    /* What the tensors under `prefix` say of a layer.* */
    mhla_status (*look)(void *settings, const mhla_safetensors *file, const char *prefix);
    /* Makes the sizes that follow from the rest; do they fit together? */
    mhla_status (*settle)(void *settings, const struct mhla_lm_config *c);
    void (*describe)(const void *settings, mhla_mixer_facts *facts);
    /* Folds all that changes results into the fingerprint of saved sequences. */
    uint64_t (*print)(uint64_t hash, const void *settings, const struct mhla_lm_config *c);
    /* Of one token, mean over a text of `tokens`; bytes of the memory after them. */
    int64_t (*multiply_adds)(const void *settings, const struct mhla_lm_config *c, int64_t tokens);
    int64_t (*state_bytes)(const void *settings, const struct mhla_lm_config *c, int64_t tokens);

    /* Network. The settings and the config live as long as what is made of them. */
    mhla_status (*open)(void **shared, const void *settings, const struct mhla_lm_config *c);
    void (*close)(void *shared);
    /* Adds the parameters of layer `index` under `prefix`. Parameters that cannot be added show in mhla_params_status. */
    mhla_status (*create)(void **layer, void *shared, mhla_params *params, const char *prefix, int index);
    void (*free)(void *layer);
    /* residual (or NULL) + the mixing of h [B,T,width]. */
    mhla_tensor *(*forward)(mhla_tape *t, void *layer, const mhla_mixer_run *run, mhla_tensor *residual,
                            mhla_tensor *h);

    /* Memory. limit: tokens that a sequence may have; lowered, never raised. */
    mhla_status (*policy)(void **policy, void *shared, const mhla_terms *terms, int64_t *limit);
    void (*policy_free)(void *policy);
    mhla_status (*begin)(void *shared, const mhla_pass *pass); /* once for each pass, before its layers.* */
    mhla_status (*remember)(void **memory, void *layer, const void *policy);
    void (*forget)(void *memory);
    mhla_status (*fork)(void **copy, const void *memory);
    size_t (*memory_bytes)(const void *memory);
    /* What the token after `tokens` reads and writes of it. NULL: a mark is read and written. */
    size_t (*step_bytes)(const void *memory, int64_t tokens);
    /* The most tokens, `tokens` at most, that it has or can go back to; `mark` is the place of the newest mark up to there, 0: none. */
    int64_t (*nearest)(const void *memory, int64_t tokens, int64_t mark);
    /* To such a place, with the mark of the place if there is one. To 0 always works. */
    mhla_status (*back)(void *memory, int64_t place, const unsigned char *mark);
    /* A mark: what cannot be had back otherwise. 0 bytes: nothing. */
    size_t (*mark_bytes)(const void *memory);
    void (*mark)(const void *memory, unsigned char *bytes); /* * */
    /* Saving, and loading into a fresh memory that has then read `tokens`. Loaded bytes are hostile. */
    size_t (*saved_bytes)(const void *memory);
    mhla_status (*save)(const void *memory, mhla_sink *sink);
    mhla_status (*load)(void *memory, mhla_saved *in, int64_t tokens);
} mhla_mixer;

/* NULL: there are no more. */
const mhla_mixer *mhla_mixer_at(int i);
/* "mhla|linear|softmax" */
extern const char mhla_mixer_names[];
#define MHLA_MIXER_CHOICES (mhla_mixer_names + 1)

#endif
