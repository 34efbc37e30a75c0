/* What can be chosen about a decoder. Settings are the keys of config.json as flash-linear-attention spells them; one row
 * per key feeds config.json (lm_config_file.c), the settings of a command line and the `model.` keys of a recipe. The decoder has a
 * table, every mixer has one. Presets, or what a model type means by saying nothing, give the values first; mhla_lm_settle makes sizes
 * of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/language/lm.h"

/* ---- Keys of the decoder ---- */

#define PRESETS "lm_micro|lm_nano|lm_340m|lm_480m"

#define F(name, type, kind, member, least, most, choices, help)                                                        \
    {                                                                                                                  \
        {name, MHLA_RECIPE_##type, NULL, least, most, choices, help}, MHLA_SETTING_##kind,                             \
            offsetof(mhla_lm_config, member)                                                                           \
    }
static const mhla_setting fields[] = {
    F("model", TEXT, TEXT, model, 0, 0, PRESETS, "the preset that sizes come from"),
    F("attention", TEXT, CHOICE, attention, 0, 0, MHLA_MIXER_CHOICES, "which attention"),
    F("vocab_size", INT, INT, vocabulary, 1, 1 << 24, NULL, "how many tokens there are"),
    F("hidden_size", INT, INT, width, 1, 1 << 16, NULL, "width of a token"),
    F("num_hidden_layers", INT, INT, layers, 1, MHLA_LM_LAYERS, NULL, "layers"),
    F("intermediate_size", INT, INT, hidden, 0, 1 << 18, NULL, "hidden width of the MLP, 0: by hidden_ratio"),
    F("hidden_ratio", REAL, REAL, hidden_ratio, 0.01, 64, NULL, "2/3 of this times hidden_size, in steps of 256"),
    F("norm_eps", REAL, REAL, norm_eps, 0, 1, NULL, "eps of the norms"),
    F("tie_word_embeddings", BOOL, BOOL, tied, 0, 0, NULL, "the output matrix is the embedding"),
    F("max_position_embeddings", INT, OPTIONAL, positions, 0, 1 << 30, NULL, "tokens it is made for"),
    F("final_logit_softcapping", REAL, OPTIONAL_REAL, softcap, 0, 1e30, NULL, "soft cap of the logits, 0: none"),
    F("initializer_range", REAL, REAL, deviation, 0, 10, NULL, "deviation of fresh weights"),
    F("bos_token_id", INT, INT, bos, -1, 1 << 24, NULL, "token that begins a text, -1: none"),
    F("eos_token_id", INT, INT, eos, -1, 1 << 24, NULL, "token that ends a text, -1: none"),
    F("parameter_names", TEXT, CHOICE, naming, 0, 0, "fla|llama|mamba|gemma",
      "names of the parameters in files; mamba: without MLPs; gemma: with its norms and GELU"),
};
#undef F
const mhla_settings mhla_lm_table = {fields, sizeof fields / sizeof *fields, 0};

/* ---- Keys of all ---- */

typedef struct rows {
    mhla_recipe_row *all; /* ended by an empty one */
    int count, capacity;
} rows;

static mhla_status add_row(rows *r, const mhla_recipe_row *row, const char *prefix, const char *about) {
    char name[MHLA_RECIPE_KEY + 1], help[192]; /* a name that is cut here is too long for every recipe */
    snprintf(name, sizeof name, "%s%s", prefix, row->name);
    snprintf(help, sizeof help, "%s%s", about, row->help);
    if (r->count + 1 >= r->capacity) {
        const int capacity = r->capacity ? 2 * r->capacity : 64;
        mhla_recipe_row *all = realloc(r->all, (size_t)capacity * sizeof *all);
        if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the keys of a language model");
        r->all = all;
        r->capacity = capacity;
    }
    mhla_recipe_row *to = &r->all[r->count];
    *to = *row;
    to->name = strdup(name);
    to->help = strdup(help);
    r->all[++r->count] = (mhla_recipe_row){0};
    return to->name && to->help ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the keys of a language model");
}

static int same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

/* Where several mixers have a key, its meaning must be the same: the first one's row stands for all. One that means something else is in
 * the table twice, which no recipe takes. */
static mhla_status add_shared(rows *r, const mhla_recipe_row *row) {
    char owners[128] = "";
    const mhla_mixer *m;
    int others = 0;
    for (int i = 0; i < r->count; i++) {
        const mhla_recipe_row *x = &r->all[i];
        if (strcmp(x->name, row->name) == 0 && x->type == row->type && x->least == row->least && x->most == row->most &&
            same_text(x->choices, row->choices))
            return MHLA_OK;
    }
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++) {
        const size_t n = strlen(owners);
        if (mhla_settings_find(&m->keys, row->name) == NULL)
            others++;
        else
            snprintf(owners + n, sizeof owners - n, "%s%s", n ? ", " : "", m->name);
    }
    snprintf(owners + strlen(owners), sizeof owners - strlen(owners), ": ");
    return add_row(r, row, "", others ? owners : "");
}

static mhla_status add_mixer(rows *r, const mhla_mixer *m) {
    char prefix[32], about[64];
    const mhla_recipe_row layers = {"layers", MHLA_RECIPE_INTS, NULL, 0, MHLA_LM_LAYERS - 1, NULL, m->name};
    snprintf(prefix, sizeof prefix, "%s_", m->group);
    snprintf(about, sizeof about, "in %s_layers: ", m->group);
    MHLA_TRY(add_row(r, &layers, prefix, "hybrid: layers of "));
    for (int i = 0; i < m->keys.count; i++) MHLA_TRY(add_row(r, &m->keys.fields[i].row, prefix, about));
    return MHLA_OK;
}

static void free_rows(rows *r) {
    for (int i = 0; i < r->count; i++) {
        free((char *)(uintptr_t)r->all[i].name);
        free((char *)(uintptr_t)r->all[i].help);
    }
    free(r->all);
}

const mhla_recipe_row *mhla_lm_rows(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static rows made;
    pthread_mutex_lock(&lock);
    if (made.all == NULL) {
        rows r = {0};
        const mhla_mixer *m;
        mhla_status status = MHLA_OK;
        for (int i = 0; i < mhla_lm_table.count && status == MHLA_OK; i++) status = add_row(&r, &fields[i].row, "", "");
        for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++)
            for (int k = 0; k < m->keys.count && status == MHLA_OK; k++)
                status = add_shared(&r, &m->keys.fields[k].row);
        for (int i = 0; (m = mhla_mixer_at(i)) != NULL && status == MHLA_OK; i++) status = add_mixer(&r, m);
        if (status == MHLA_OK)
            made = r;
        else
            free_rows(&r);
    }
    pthread_mutex_unlock(&lock);
    return made.all;
}

/* ---- Presets ---- */

static const mhla_lm_size sizes[] = {
    {"lm_micro", 512, 64, 2, 2, 4, 16, 16, 0, 0, 0, NULL},
    {"lm_nano", 8192, 384, 6, 4, 6, 32, 32, 0, 0, 0, NULL},
    {"lm_340m", 32000, 1024, 24, 4, 16, 64, 32, 1, 2, 0, NULL}, /* the released one */
    /* flash-linear-attention's gated_deltanet_340M, which is larger than its name says */
    {"lm_480m", 32000, 1024, 24, 4, 16, 64, 32, 1, 2, 256, "gated_deltanet"},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static mhla_status find_size(const mhla_lm_size **size, const char *model) {
    for (int i = 0; i < SIZES; i++)
        if (strcmp(model, (*size = &sizes[i])->name) == 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "\"%.40s\" is not a language model: expected lm_micro, lm_nano, lm_340m, lm_480m",
                     model);
}

/* A preset of one mixer has no sizes for others. */
static mhla_status check_attention(const mhla_lm_size *size, const mhla_mixer *m) {
    if (size->attention == NULL || strcmp(size->attention, m->name) == 0) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "attention is %s: %s is a preset of %s", m->name, size->name, size->attention);
}

static void take_size(mhla_lm_config *c, const mhla_lm_size *size) {
    *c = (mhla_lm_config){.vocabulary = size->vocabulary,
                          .width = size->width,
                          .layers = size->layers,
                          .hidden_ratio = 4.0,
                          .norm_eps = 1e-6,
                          .tied = 1,
                          .positions = size->chunk * size->blocks,
                          .bos = size->bos,
                          .eos = size->eos,
                          .deviation = 0.02};
    snprintf(c->model, sizeof c->model, "%s", size->name);
}

mhla_lm_group *mhla_lm_add_group(mhla_lm_config *c, const mhla_mixer *mixer, const mhla_lm_size *size) {
    if (c->groups > MHLA_LM_LAYERS || mixer->bytes > MHLA_MIXER_BYTES) {
        mhla_fail(MHLA_EINVAL, "%d groups of layers, the last one with %zu bytes of settings: at most %d and %d",
                  c->groups, mixer->bytes, MHLA_LM_LAYERS, MHLA_MIXER_BYTES);
        return NULL;
    }
    mhla_lm_group *g = &c->group[c->groups++];
    memset(g, 0, sizeof *g);
    g->mixer = mixer;
    mixer->standard(&g->settings, size);
    /* heads of other layers default to the rule's, where both count them */
    const mhla_lm_group *rule = &c->group[0];
    const mhla_setting *from = mhla_settings_find(&rule->mixer->keys, "num_heads"),
                       *to = mhla_settings_find(&mixer->keys, "num_heads");
    if (g != rule && from && to)
        memcpy((char *)&g->settings + to->at, (const char *)&rule->settings + from->at, sizeof(int));
    return g;
}

mhla_status mhla_lm_set_layers(mhla_lm_config *c, const json_t *layers) {
    const int group = c->groups - 1;
    const char *name = c->group[group].mixer->group;
    const json_t *v;
    size_t i;
    json_array_foreach(layers, i, v) {
        const json_int_t at = json_is_integer(v) ? json_integer_value(v) : -1;
        if (at < 0 || at >= c->layers)
            return mhla_fail(MHLA_EINVAL, "%s.layers[%zu] is not a layer from 0 to %d", name, i, c->layers - 1);
        if (c->group_of[at] != 0 && c->group_of[at] != group)
            return mhla_fail(MHLA_EINVAL, "layer %lld is listed both in %s.layers and in %s.layers", (long long)at,
                             c->group[c->group_of[at]].mixer->group, name);
        c->group_of[at] = (short)group;
    }
    return MHLA_OK;
}

mhla_status mhla_lm_preset(mhla_lm_config *c, const char *model, const char *mixer) {
    const mhla_lm_size *size;
    const mhla_mixer *m;
    MHLA_TRY(find_size(&size, model));
    take_size(c, size);
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL && strcmp(m->name, mixer) != 0; i++) c->attention = i + 1;
    if (m == NULL) return mhla_fail(MHLA_EINVAL, "unknown attention \"%.40s\"", mixer);
    MHLA_TRY(check_attention(size, m));
    if (m->decoder) m->decoder(c, size);
    return mhla_lm_add_group(c, m, size) ? mhla_lm_settle(c) : MHLA_EINVAL;
}

/* ---- Recipes ---- */

mhla_status mhla_lm_from_recipe(mhla_lm_config *c, const mhla_recipe *given, const char *prefix) {
    char key[96];
    const mhla_lm_size *size;
    const mhla_mixer *m;
    *c = (mhla_lm_config){.model = "lm_nano"};
    MHLA_TRY(mhla_settings_take(c, &mhla_lm_table, 0, MHLA_LM_CHOOSE, given, prefix));
    int attention = c->attention;
    MHLA_TRY(find_size(&size, c->model));
    snprintf(key, sizeof key, "%sattention", prefix);
    if (size->attention && !mhla_recipe_has(given, key))
        for (attention = 0; strcmp(mhla_mixer_at(attention)->name, size->attention) != 0;) attention++;
    MHLA_TRY(check_attention(size, mhla_mixer_at(attention)));
    take_size(c, size);
    c->attention = attention;
    if (mhla_mixer_at(attention)->decoder) mhla_mixer_at(attention)->decoder(c, size);
    MHLA_TRY(mhla_settings_take(c, &mhla_lm_table, MHLA_LM_CHOOSE, mhla_lm_table.count, given, prefix));
    mhla_lm_group *rule = mhla_lm_add_group(c, mhla_mixer_at(attention), size);
    if (rule == NULL) return MHLA_EINVAL;
    MHLA_TRY(mhla_settings_take(&rule->settings, &rule->mixer->keys, 0, rule->mixer->keys.count, given, prefix));
    for (int i = 0; (m = mhla_mixer_at(i)) != NULL; i++) {
        snprintf(key, sizeof key, "%s%s_layers", prefix, m->group);
        const json_t *layers = mhla_recipe_has(given, key) ? mhla_recipe_array(given, key) : NULL;
        if (layers == NULL || json_array_size(layers) == 0) continue;
        mhla_lm_group *g = mhla_lm_add_group(c, m, size);
        if (g == NULL) return MHLA_EINVAL;
        MHLA_TRY(mhla_lm_set_layers(c, layers));
        snprintf(key, sizeof key, "%s%s_", prefix, m->group);
        MHLA_TRY(mhla_settings_take(&g->settings, &m->keys, 0, m->keys.count, given, key));
    }
    snprintf(key, sizeof key, "%smax_position_embeddings", prefix);
    mhla_mixer_facts facts;
    rule->mixer->describe(&rule->settings, &facts);
    if (!mhla_recipe_has(given, key) && facts.longest > 0 && facts.longest <= 1 << 30)
        c->positions = (int)facts.longest;
    return mhla_lm_settle(c);
}

/* ---- Sense ---- */

mhla_status mhla_lm_settle(mhla_lm_config *c) {
    if (c->layers < 1 || c->layers > MHLA_LM_LAYERS)
        return mhla_fail(MHLA_EINVAL, "%d layers: expected 1 to %d", c->layers, MHLA_LM_LAYERS);
    if (mhla_lm_names_of[c->naming].mlp_norm == NULL)
        c->hidden = 0;
    else if (c->hidden == 0)
        c->hidden = 256 * (int)(((int64_t)(c->width * c->hidden_ratio * 2.0 / 3.0) + 255) / 256);
    if (c->vocabulary < 1 || c->width < 1 || (c->hidden < 1 && mhla_lm_names_of[c->naming].mlp_norm))
        return mhla_fail(MHLA_EINVAL, "vocab_size %d, hidden_size %d, intermediate_size %d: all are at least 1",
                         c->vocabulary, c->width, c->hidden);
    if (c->bos >= c->vocabulary || c->eos >= c->vocabulary)
        return mhla_fail(MHLA_EINVAL, "bos_token_id %d, eos_token_id %d: there are %d tokens", c->bos, c->eos,
                         c->vocabulary);
    unsigned char used[MHLA_LM_LAYERS + 1] = {0};
    for (int i = 0; i < c->layers; i++) used[c->group_of[i]] = 1;
    for (int g = 0; g < c->groups; g++)
        if (used[g]) MHLA_TRY(c->group[g].mixer->settle(&c->group[g].settings, c));
    return MHLA_OK;
}

mhla_mixer_facts mhla_lm_facts(const mhla_lm_config *c) {
    mhla_mixer_facts all = {0};
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_group *g = mhla_lm_group_of(c, i);
        mhla_mixer_facts x;
        g->mixer->describe(&g->settings, &x);
        if (x.heads > all.heads) all.heads = x.heads;
        if (x.longest && (all.longest == 0 || x.longest < all.longest)) all.longest = x.longest;
        all.marks |= x.marks;
        if (x.chunk == 0) continue;
        int64_t multiple = all.chunk ? all.chunk : x.chunk;
        while (multiple % x.chunk) multiple += all.chunk; /* at most 2^32: chunks have 2^16 tokens */
        all.chunk = multiple;
    }
    return all;
}

int64_t mhla_lm_context(const mhla_lm_config *c) {
    const mhla_mixer_facts facts = mhla_lm_facts(c);
    return facts.longest ? facts.longest : c->positions;
}
