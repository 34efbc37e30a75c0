/* Adaptation: a language model takes what fits from another whose attention is of another kind, or whose file has other
 * names. Embedding, norms and MLPs are kept, projections where their shapes agree; mixing matrices and what else is new
 * keep their fresh values. All of it is told. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/train.h"

/* The names of flash-linear-attention, whichever a model goes by. */
static const char *common_name(char name[256], const char *given) {
    static const char *const pairs[][2] = {{"model.embed_tokens.", "model.embeddings."},
                                           {".input_layernorm.", ".attn_norm."},
                                           {".post_attention_layernorm.", ".mlp_norm."},
                                           {".self_attn.", ".attn."}};
    snprintf(name, 256, "%s", given);
    for (int i = 0; i < 4; i++) {
        char rest[256];
        char *at = strstr(name, pairs[i][0]);
        if (at == NULL) continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(pairs[i][0]));
        snprintf(at, 256 - (size_t)(at - name), "%s%s", pairs[i][1], rest);
    }
    return name;
}

static const mhla_param *find(const mhla_model *from, const char *name) {
    char wanted[256], other[256];
    common_name(wanted, name);
    for (int i = 0; i < mhla_params_count(from->params); i++) {
        const mhla_param *p = mhla_params_at(from->params, i);
        if (strcmp(common_name(other, p->name), wanted) == 0) return p;
    }
    /* an output matrix of its own begins as the embedding of a model that ties them */
    return strcmp(wanted, "lm_head.weight") == 0 ? mhla_lm_output(from->lm) : NULL;
}

static int same_shape(const mhla_param *a, const mhla_param *b) {
    return a->dims == b->dims && memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->dims) == 0;
}

/* Names for people: "model.layers.0.attn.x", "model.layers.1.attn.x", ... are told once, as "model.layers.*.attn.x". */
typedef struct name_list {
    char text[640];
    int count;
} name_list;

static void list_add(name_list *l, const char *name) {
    static const char start[] = "model.layers.";
    char quoted[264];
    const char *dot = strncmp(name, start, strlen(start)) == 0 ? strchr(name + strlen(start), '.') : NULL;
    snprintf(quoted, sizeof quoted, " %s%s,", dot ? "model.layers.*" : name, dot ? dot : "");
    l->count++;
    if (strstr(l->text, quoted) == NULL && strlen(l->text) + strlen(quoted) < sizeof l->text) strcat(l->text, quoted);
}

static void list_tell(const name_list *l, const char *what, void (*note)(void *user, const char *text), void *user) {
    char text[720];
    if (l->count == 0) return;
    snprintf(text, sizeof text, "%s (%d):%s", what, l->count, l->text);
    text[strlen(text) - 1] = '\0'; /* the last comma */
    note(user, text);
}

static mhla_status take(mhla_model *to, const mhla_model *from, const char *path,
                        void (*note)(void *user, const char *text), void *user) {
    name_list fresh = {0}, shapes = {0}, unused = {0};
    const int n = mhla_params_count(to->params), others = mhla_params_count(from->params);
    char *used = calloc((size_t)others + 1, 1), text[300];
    int taken = 0;
    if (used == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a list of tensors");
    for (int i = 0; i < n; i++) {
        mhla_param *p = mhla_params_at(to->params, i);
        const mhla_param *q = find(from, p->name);
        for (int k = 0; k < others && q; k++) used[k] |= mhla_params_at(from->params, k) == q;
        if (q && same_shape(p, q)) {
            memcpy(p->data, q->data, sizeof(float) * (size_t)p->count);
            mhla_param_touch(p);
            taken++;
        } else {
            list_add(q ? &shapes : &fresh, p->name);
        }
    }
    for (int k = 0; k < others; k++)
        if (!used[k]) list_add(&unused, mhla_params_at(from->params, k)->name);
    free(used);
    if (taken == 0) return mhla_fail(MHLA_EDATA, "%s: not one tensor fits this model", path);
    snprintf(text, sizeof text, "taken from %.200s: %d tensors of %d", path, taken, n);
    note(user, text);
    list_tell(&fresh, "new, initialised", note, user);
    list_tell(&shapes, "of another shape, initialised", note, user);
    list_tell(&unused, "left out", note, user);
    return MHLA_OK;
}

mhla_status mhla_lm_adopt(mhla_model *model, const char *path, void (*note)(void *user, const char *text), void *user) {
    mhla_model *from = NULL;
    MHLA_TRY(mhla_model_open_as(&from, path, &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = "float32"}));
    mhla_status status = mhla_model_need(from, &mhla_family_lm);
    if (status == MHLA_OK) status = take(model, from, path, note, user);
    mhla_model_free(from);
    return status;
}
