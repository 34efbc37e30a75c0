/* Language models as GGUF files. A Llama (softmax, rotary, no biases) has llama.cpp's names, its q and k with interleaved
 * rotary pairs; so do Gemma, whose norms get the 1 added, Mamba and Mamba2; every other decoder goes under the architecture "mhla": its own names, and config.json as one text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "models/language/lm_files.h"
#include "models/language/mixers/softmax.h"
#include "text/gguf_tokens.h"

enum { PAIRS = 32 };

typedef struct piece { /* one tensor on its way */
    const mhla_param *p;
    int dims;     /* of a head whose rows are to be interleaved; 0: as they are */
    int64_t cols; /* of a row in the file */
    int rates;    /* -exp of it is written */
    int plus_one; /* 1 is added */
    char name[128];
} piece;

static mhla_status fill(float *rows, int64_t first, int64_t count, void *arg) {
    const piece *s = arg;
    const int64_t cols = s->p->count / s->p->shape[0];
    if (s->p->data && s->dims == 0) { /* whose rows need not be ours: a vector is one of them */
        memcpy(rows, s->p->data + first * s->cols, sizeof(float) * (size_t)(count * s->cols));
        for (int64_t i = 0; i < count * s->cols && s->rates; i++) rows[i] = -expf(rows[i]);
        for (int64_t i = 0; i < count * s->cols && s->plus_one; i++) rows[i] += 1.0f;
        return MHLA_OK;
    }
    if (s->dims == 0) return mhla_param_get_rows(rows, s->p, first, count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (first + i) % s->dims, head = (first + i) / s->dims;
        MHLA_TRY(mhla_param_get_rows(rows + i * cols, s->p, head * s->dims + at % 2 * (s->dims / 2) + at / 2, 1));
    }
    return MHLA_OK;
}

/* rope_freqs.weight: what the rotary frequencies are divided by. */
static mhla_status fill_divisors(float *rows, int64_t first, int64_t count, void *arg) {
    const mhla_lm_config *c = arg;
    const mhla_softmax_settings *a = mhla_softmax_alone(c);
    double divisors[MHLA_ROPE_PAIRS];
    mhla_scaling_divisors(divisors, &c->scaling, a->rope_theta, a->dim);
    for (int j = 0; first == 0 && count > 0 && j < a->dim / 2; j++) rows[j] = (float)divisors[j];
    return MHLA_OK;
}

static int has_divisors(const mhla_scaling *s) {
    return s->kind == MHLA_SCALING_LLAMA3 || s->kind == MHLA_SCALING_LIST;
}

/* The settings of its attention if llama.cpp's llama can be it; NULL otherwise. */
static const mhla_softmax_settings *as_llama(const mhla_lm_config *c) {
    const mhla_softmax_settings *a = mhla_softmax_alone(c);
    const mhla_scaling *s = &c->scaling;
    if (a == NULL || c->naming == MHLA_LM_NAMES_GEMMA || a->softcap != 0.0 || a->query_scalar != 0.0 ||
        c->softcap != 0.0)
        return NULL;
    if (a->unscaled || s->exact || (s->kind == MHLA_SCALING_YARN && s->factor < 1.0)) return NULL;
    return a->qkv_bias || a->out_bias || a->qk_norm || a->window_size || c->mlp_bias ? NULL : a;
}

/* ---- Metadata ---- */

typedef struct head {
    mhla_gguf_pair pairs[PAIRS + MHLA_GGUF_TOKEN_PAIRS];
    int64_t count;
    char keys[PAIRS][64]; /* made here */
    int keys_made;
    uint32_t numbers[PAIRS];
    float reals[8];
    uint8_t flags[MHLA_LM_LAYERS];
    mhla_gguf_string texts[3];
    int32_t ends[MHLA_LM_ENDS];
    mhla_gguf_tokens tokens;
} head;

static void put_text(head *h, const char *key, const char *text, int place) {
    h->texts[place] = (mhla_gguf_string){text, strlen(text)};
    h->pairs[h->count++] = (mhla_gguf_pair){key, MHLA_GGUF_STRING, 0, 1, NULL, &h->texts[place]};
}
static void put_int(head *h, const char *key, int64_t n) {
    h->numbers[h->count] = (uint32_t)n;
    h->pairs[h->count] = (mhla_gguf_pair){key, MHLA_GGUF_UINT32, 0, 1, &h->numbers[h->count], NULL};
    h->count++;
}
static void put_real(head *h, const char *key, double x, int place) {
    h->reals[place] = (float)x;
    h->pairs[h->count++] = (mhla_gguf_pair){key, MHLA_GGUF_FLOAT32, 0, 1, &h->reals[place], NULL};
}

/* A key of the architecture. */
static const char *key_of(head *h, const char *architecture, const char *name) {
    char *key = h->keys[h->keys_made++];
    snprintf(key, sizeof h->keys[0], "%s.%s", architecture, name);
    return key;
}

static const mhla_gguf_pair *token_pair(const head *h, const char *key) {
    for (int64_t i = 0; i < h->tokens.count; i++)
        if (strcmp(h->tokens.pairs[i].key, key) == 0) return &h->tokens.pairs[i];
    return NULL;
}

/* llama.cpp multiplies cosines and sines of yarn by 1 + 0.1 log(factor) without being told. */
static void put_scaling(head *h, const mhla_scaling *s) {
    const int yarn = s->kind == MHLA_SCALING_YARN;
    const double attention = (s->attention != 0.0 ? s->attention : 1.0) / (yarn ? 1.0 + 0.1 * log(s->factor) : 1.0);
    if (yarn || s->kind == MHLA_SCALING_LINEAR) {
        put_text(h, "llama.rope.scaling.type", yarn ? "yarn" : "linear", 2);
        put_real(h, "llama.rope.scaling.factor", s->factor, 2);
    }
    if (fabs(attention - 1.0) > 1e-7) put_real(h, "llama.rope.scaling.attn_factor", attention, 3);
    if (!yarn) return;
    put_int(h, "llama.rope.scaling.original_context_length", (int64_t)s->original);
    put_real(h, "llama.rope.scaling.yarn_beta_fast", s->beta_fast, 4);
    put_real(h, "llama.rope.scaling.yarn_beta_slow", s->beta_slow, 5);
}

/* What ends a text: the three keys that others know, as far as they go and the vocabulary has not taken them; and, unless
 * that is one eos and the same, all of it under a key of our own. */
static void put_ends(head *h, const mhla_lm_config *c) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const mhla_gguf_pair *eos = token_pair(h, keys[0]);
    int count = 0, k = 1;
    if (c->end_count == 0 && c->eos >= 0) h->ends[count++] = c->eos;
    for (int i = 0; i < c->end_count; i++) h->ends[count++] = c->ends[i];
    if (count == 0) return;
    uint32_t said = (uint32_t)(c->eos >= 0 ? c->eos : h->ends[0]);
    if (eos && eos->kind == MHLA_GGUF_UINT32) memcpy(&said, eos->data, sizeof said);
    if (eos == NULL) put_int(h, keys[0], said);
    for (int i = 0; i < count && k < 3; i++) {
        if (h->ends[i] == (int32_t)said) continue;
        if (token_pair(h, keys[k]) == NULL) put_int(h, keys[k], h->ends[i]);
        k++;
    }
    if (count > 1 || h->ends[0] != (int32_t)said)
        h->pairs[h->count++] = (mhla_gguf_pair){MHLA_LM_GGUF_ENDS, MHLA_GGUF_INT32, 1, count, h->ends, NULL};
}

static void put_mamba(head *h, const mhla_lm_config *c, const mhla_lm_gguf_mamba *x) {
    const struct {
        const char *key;
        int64_t n;
    } keys[] = {{"block_count", c->layers},
                {"context_length", c->positions ? c->positions : MHLA_LM_GGUF_ENDLESS},
                {"embedding_length", c->width},
                {"feed_forward_length", 0},
                {"attention.head_count", 0},
                {"vocab_size", c->vocabulary},
                {"ssm.conv_kernel", x->m->conv_kernel},
                {"ssm.inner_size", x->m->inner},
                {"ssm.state_size", x->m->state_size},
                {"ssm.time_step_rank", x->rank},
                {"ssm.group_count", x->groups}};
    const int n = sizeof keys / sizeof *keys - (x->groups == 0);
    for (int i = 0; i < n; i++) put_int(h, key_of(h, x->architecture, keys[i].key), keys[i].n);
    put_real(h, key_of(h, x->architecture, "attention.layer_norm_rms_epsilon"), c->norm_eps, 0);
}

static void put_softmax(head *h, const mhla_lm_config *c, const mhla_softmax_settings *a, const char *architecture) {
    const struct {
        const char *key;
        int64_t n;
    } keys[] = {{"block_count", c->layers},
                {"context_length", c->positions ? c->positions : 2048},
                {"embedding_length", c->width},
                {"feed_forward_length", c->hidden},
                {"attention.head_count", a->num_heads},
                {"attention.head_count_kv", a->kv_heads},
                {"attention.key_length", a->dim},
                {"attention.value_length", a->dim},
                {"rope.dimension_count", a->dim},
                {"vocab_size", c->vocabulary}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) put_int(h, key_of(h, architecture, keys[i].key), keys[i].n);
    put_real(h, key_of(h, architecture, "rope.freq_base"), a->rope_theta, 0);
    put_real(h, key_of(h, architecture, "attention.layer_norm_rms_epsilon"), c->norm_eps, 1);
}

/* Which layers see a window: a period where there is one, else a flag for each. */
static void put_windows(head *h, const mhla_lm_config *c, const char *architecture) {
    int period = 0;
    for (int i = 0; i < c->layers; i++) {
        mhla_softmax_settings s;
        memcpy(&s, &mhla_lm_group_of(c, i)->settings, sizeof s);
        h->flags[i] = s.window_size > 0;
        if (!h->flags[i] && period == 0) period = i + 1;
    }
    for (int i = 0; i < c->layers && period; i++)
        if (h->flags[i] != ((i + 1) % period != 0)) period = 0;
    const char *key = key_of(h, architecture, "attention.sliding_window_pattern");
    if (period)
        put_int(h, key, period);
    else
        h->pairs[h->count++] = (mhla_gguf_pair){key, MHLA_GGUF_BOOL, 1, c->layers, h->flags, NULL};
}

static void put_gemma(head *h, const mhla_lm_config *c, const char *architecture) {
    mhla_softmax_settings kinds[2];
    mhla_lm_gemma_kinds(kinds, c);
    put_softmax(h, c, &kinds[0], architecture);
    put_int(h, key_of(h, architecture, "attention.sliding_window"), kinds[1].window_size);
    put_windows(h, c, architecture);
    if (kinds[0].qk_norm) put_real(h, key_of(h, architecture, "rope.freq_base_swa"), kinds[1].rope_theta, 2);
    if (c->scaling.kind) {
        put_text(h, key_of(h, architecture, "rope.scaling.type"), "linear", 2);
        put_real(h, key_of(h, architecture, "rope.scaling.factor"), c->scaling.factor, 3);
    }
    if (kinds[0].softcap != 0.0) put_real(h, key_of(h, architecture, "attn_logit_softcapping"), kinds[0].softcap, 4);
    if (c->softcap != 0.0) put_real(h, key_of(h, architecture, "final_logit_softcapping"), c->softcap, 5);
}

static mhla_status make_head(head *h, const mhla_model *m, const char *path, const mhla_softmax_settings *llama,
                             mhla_gguf_type type) {
    const mhla_lm_config *c = mhla_lm_config_of(m->net);
    const mhla_lm_gguf_mamba mamba = mhla_lm_gguf_as_mamba(c);
    MHLA_TRY(mhla_gguf_tokens_make(&h->tokens, path, c->vocabulary));
    const char *gemma = mhla_lm_gguf_as_gemma(c);
    put_text(h, "general.architecture",
             llama                ? "llama"
             : gemma              ? gemma
             : mamba.architecture ? mamba.architecture
                                  : "mhla",
             0);
    put_int(h, "general.file_type", /* llama.cpp's numbers of what most tensors are */
            type == MHLA_GGUF_F32    ? 0
            : type == MHLA_GGUF_F16  ? 1
            : type == MHLA_GGUF_Q8_0 ? 7
                                     : 32);
    if (llama) {
        put_softmax(h, c, llama, "llama");
        put_scaling(h, &c->scaling);
    } else if (gemma) {
        put_gemma(h, c, gemma);
    } else if (mamba.architecture) {
        put_mamba(h, c, &mamba);
    } else {
        put_text(h, "mhla.config", m->config, 1);
    }
    put_ends(h, c);
    for (int64_t i = 0; i < h->tokens.count; i++) h->pairs[h->count++] = h->tokens.pairs[i];
    return MHLA_OK;
}

/* ---- Writing ---- */

static mhla_status write_model(const char *out, const mhla_model *m, const char *path, int type,
                               mhla_convert_result *result) {
    const mhla_lm_config *c = mhla_lm_config_of(m->net);
    const mhla_softmax_settings *llama = as_llama(c);
    const mhla_lm_gguf_mamba mamba = mhla_lm_gguf_as_mamba(c);
    const int theirs = llama || mhla_lm_gguf_as_gemma(c) || mamba.architecture, n = mhla_params_count(m->params);
    piece *pieces = calloc((size_t)n, sizeof *pieces);
    mhla_gguf_storable *list = calloc((size_t)n + 1, sizeof *list);
    head *h = calloc(1, sizeof *h);
    mhla_status status = pieces && list && h ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory to write %s", out);
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        const mhla_param *p = mhla_params_at(m->params, i);
        piece *s = &pieces[i];
        const mhla_gguf_type own = p->dtype == MHLA_Q8_0   ? MHLA_GGUF_Q8_0
                                   : p->dtype == MHLA_BF16 ? MHLA_GGUF_BF16
                                                           : MHLA_GGUF_F32;
        s->p = p;
        snprintf(s->name, sizeof s->name, "%s", p->name);
        if (theirs) mhla_lm_gguf_name(s->name, sizeof s->name, p->name, c->naming);
        s->plus_one = theirs && mhla_lm_gguf_plus_one(c, s->name);
        s->rates = theirs && mhla_lm_gguf_rates(s->name);
        const int rank = mhla_lm_gguf_shape(list[i].shape, p, s->name, mamba.groups);
        const int64_t cols = s->cols = list[i].shape[rank - 1];
        if (llama && (strstr(s->name, ".attn_q.") || strstr(s->name, ".attn_k."))) s->dims = llama->dim;
        list[i].name = s->name;
        list[i].rank = rank;
        list[i].type = MHLA_GGUF_F32;
        list[i].fill = fill;
        list[i].arg = s;
        if (p->flags & MHLA_PARAM_MATRIX) list[i].type = type < 0 ? own : (mhla_gguf_type)type;
        if (list[i].type == MHLA_GGUF_Q8_0 && cols % 32 != 0) list[i].type = MHLA_GGUF_F32;
        result->numbers += p->count;
        result->bytes += (int64_t)mhla_gguf_row_bytes(list[i].type, cols) * (p->count / cols);
    }
    if (status == MHLA_OK) status = make_head(h, m, path, llama, list[0].type);
    const int more = llama && has_divisors(&c->scaling), pairs = more ? llama->dim / 2 : 0;
    if (more && status == MHLA_OK)
        list[n] = (mhla_gguf_storable){.name = "rope_freqs.weight",
                                       .rank = 1,
                                       .shape = {pairs},
                                       .type = MHLA_GGUF_F32,
                                       .fill = fill_divisors,
                                       .arg = (void *)(uintptr_t)c};
    if (status == MHLA_OK) status = mhla_gguf_write(out, h->pairs, h->count, list, n + more);
    result->tensors = n + more;
    result->numbers += pairs;
    result->bytes += pairs * 4;
    result->files = 1;
    if (h) mhla_gguf_tokens_free(&h->tokens);
    free(h);
    free(list);
    free(pieces);
    return status;
}

mhla_status mhla_lm_convert(const char *out, const char *in, const mhla_convert_desc *desc,
                            mhla_convert_result *result) {
    if (out == NULL || in == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", out ? "in" : "out");
    static const struct {
        const char *name;
        mhla_gguf_type type;
    } types[] = {
        {"float32", MHLA_GGUF_F32}, {"float16", MHLA_GGUF_F16}, {"bfloat16", MHLA_GGUF_BF16}, {"q8_0", MHLA_GGUF_Q8_0}};
    mhla_convert_desc d = {.size = sizeof d};
    mhla_convert_result r = {.size = sizeof r};
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_convert_desc"));
    if (result) MHLA_TRY(mhla_struct_check(result, 0, "mhla_convert_result"));
    int type = -1;
    for (int i = 0; i < 4 && d.dtype; i++)
        if (strcmp(d.dtype, types[i].name) == 0) type = (int)types[i].type;
    if (d.dtype && type < 0)
        return mhla_fail(MHLA_EINVAL, "dtype is %s: expected float32, bfloat16, float16 or q8_0", MHLA_QUOTE(d.dtype));
    if (d.shard_bytes) return mhla_fail(MHLA_EINVAL, "shard_bytes is %lld: out is one file", (long long)d.shard_bytes);
    mhla_model *m;
    MHLA_TRY(mhla_model_open(&m, in));
    mhla_status status = mhla_model_need(m, MHLA_ROLE_DECODER);
    if (status == MHLA_OK) status = write_model(out, m, m->origin ? m->origin : in, type, &r);
    mhla_model_free(m);
    if (status == MHLA_OK && result) status = mhla_struct_out(result, &r, sizeof r, "mhla_convert_result");
    return status;
}
