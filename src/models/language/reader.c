/* What all sequences of a model share: the plans of each policy, how q and k are turned on their way in, rotary tables, and
 * the fingerprint that saved sequences carry. */
#include <math.h>
#include <string.h>

#include "core/hash.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "models/language/sequence.h"
#include "models/model.h"

/* Up to here rows of the rotary table come from the model's own; beyond, each is computed when it is needed. */
enum { TABLE = 16384, MARK_EVERY = 256 };

/* ---- Making ---- */

static mhla_status make_entry(mhla_reader *r, int layer) {
    const int kind = r->config->kind[layer];
    mhla_entry *e = &r->entry[kind];
    if (e->used) return MHLA_OK;
    mhla_plan_desc d;
    mhla_lm_plan_desc(r->lm, layer, &d);
    *e = (mhla_entry){.used = 1, .layer = layer, .turned = d.rope != MHLA_ROPE_NONE};
    if (kind == MHLA_ATTENTION_MHLA) r->C = d.chunk ? d.chunk : 64;
    if (!e->turned) return MHLA_OK;
    const int softmax = kind == MHLA_ATTENTION_SOFTMAX, dim = d.rope_dim ? d.rope_dim : d.key_dim;
    if (!softmax && d.denominator != MHLA_DEN_NONE)
        return mhla_fail(MHLA_ENOTSUP,
                         "layer %d has both a rotary embedding and a denominator: its sequences cannot be kept", layer);
    e->turn = (mhla_turn){.head_dim = d.key_dim,
                          .feature = softmax ? MHLA_FEATURE_IDENTITY : d.feature,
                          .eps = softmax ? 0.0f : d.feature_eps,
                          .rope = d.rope,
                          .rope_dim = dim};
    float *table = mhla_alloc(sizeof *table * (size_t)(dim / 2) * 2 * MHLA_PASS);
    if (table == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a rotary table of %d rows", MHLA_PASS);
    e->cos = table;
    e->sin = table + (int64_t)(dim / 2) * MHLA_PASS;
    e->turn.cos = e->cos;
    e->turn.sin = e->sin;
    return MHLA_OK;
}

mhla_status mhla_model_reader(mhla_reader **reader, mhla_model *model) {
    MHLA_TRY(mhla_model_need(model, MHLA_ROLE_DECODER));
    *reader = model->reader;
    if (model->reader) return MHLA_OK;
    mhla_reader *r = mhla_alloc_zero(sizeof *r);
    if (r == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reader of sequences");
    *r = (mhla_reader){.model = model, .lm = model->net, .config = mhla_lm_config_of(model->net), .C = 1};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < r->config->layers && status == MHLA_OK; i++) {
        const int kind = r->config->kind[i];
        status = make_entry(r, i);
        r->marking |= kind == MHLA_ATTENTION_LINEAR || r->config->mixer[kind].conv > 1;
    }
    r->interval = (MARK_EVERY + r->C - 1) / r->C * r->C;
    if (status != MHLA_OK) {
        mhla_reader_free(r);
        return status;
    }
    *reader = model->reader = r;
    return MHLA_OK;
}

static void rules_free(mhla_rules *x) {
    if (x == NULL) return;
    for (int k = 0; k < MHLA_KINDS; k++) mhla_plan_free(x->plans[k]);
    mhla_free(x);
}

void mhla_reader_free(mhla_reader *r) {
    if (r == NULL) return;
    for (mhla_rules *x = r->rules, *next; x; x = next) {
        next = x->next;
        rules_free(x);
    }
    for (int k = 0; k < MHLA_KINDS; k++) mhla_free(r->entry[k].cos);
    mhla_pass_free(r->pass);
    mhla_tape_free(r->tape);
    mhla_free(r);
}

mhla_status mhla_reader_positions(mhla_reader *r, int64_t row, int64_t first, int64_t n) {
    for (int k = 0; k < MHLA_KINDS; k++) {
        const mhla_entry *e = &r->entry[k];
        if (!e->turned) continue;
        const int64_t half = e->turn.rope_dim / 2;
        float *c = e->cos + row * half, *s = e->sin + row * half;
        if (first + n > TABLE) {
            mhla_lm_rope_rows(r->lm, e->layer, c, s, first, n);
            continue;
        }
        const float *cos, *sin;
        int64_t have;
        MHLA_TRY(mhla_lm_rope(r->lm, e->layer, first + n, &cos, &sin, &have));
        memcpy(c, cos + first * half, sizeof *c * (size_t)(n * half));
        memcpy(s, sin + first * half, sizeof *s * (size_t)(n * half));
    }
    return MHLA_OK;
}

/* ---- Rules ---- */

/* The policy is the same for all attentions: past the trained length it is an error unless one says otherwise. Softmax and
 * linear layers then go on as they are; MHLA's need weights for chunks that they were not trained for. */
static mhla_status make_plans(mhla_rules *x, mhla_reader *r) {
    const int64_t context = mhla_lm_context(r->config);
    x->limit = x->beyond == MHLA_BEYOND_ERROR && context > 0 ? context : INT64_MAX;
    for (int k = 0; k < MHLA_KINDS; k++) {
        const mhla_entry *e = &r->entry[k];
        if (!e->used) continue;
        mhla_plan_desc d;
        mhla_lm_plan_desc(r->lm, e->layer, &d);
        if (e->turned) {
            d.rope = MHLA_ROPE_NONE;
            d.rope_dim = 0;
            if (k != MHLA_ATTENTION_SOFTMAX) {
                d.feature = MHLA_FEATURE_IDENTITY;
                d.feature_eps = 0.0f;
            }
        }
        if (k == MHLA_ATTENTION_MHLA) {
            const int64_t trained = d.chunks * r->C;
            d.beyond = x->beyond;
            if (x->beyond == MHLA_BEYOND_CHUNK && x->max_tokens <= trained) d.beyond = MHLA_BEYOND_ERROR;
            if (d.beyond == MHLA_BEYOND_CHUNK) { /* which chooses C */
                d.max_tokens = x->max_tokens;
                d.chunk = 0;
            }
            x->limit = d.beyond == MHLA_BEYOND_CLAMP   ? INT64_MAX
                       : d.beyond == MHLA_BEYOND_CHUNK ? d.max_tokens
                                                       : trained;
        }
        MHLA_TRY(mhla_plan_create(&x->plans[k], &d));
    }
    return MHLA_OK;
}

mhla_status mhla_rules_get(mhla_rules **rules, mhla_reader *r, mhla_beyond beyond, int64_t max_tokens) {
    if (beyond != MHLA_BEYOND_CHUNK) max_tokens = 0;
    *rules = NULL;
    for (mhla_rules *x = r->rules; x; x = x->next)
        if (x->beyond == beyond && x->max_tokens == max_tokens) {
            x->refs++;
            *rules = x;
            return MHLA_OK;
        }
    mhla_rules *x = mhla_alloc_zero(sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the plans of a sequence");
    *x = (mhla_rules){.refs = 1, .beyond = beyond, .max_tokens = max_tokens};
    const mhla_status status = make_plans(x, r);
    if (status != MHLA_OK) {
        rules_free(x);
        return status;
    }
    x->next = r->rules;
    *rules = r->rules = x;
    return MHLA_OK;
}

void mhla_rules_drop(mhla_reader *r, mhla_rules *rules) {
    if (rules == NULL || --rules->refs > 0) return;
    for (mhla_rules **at = &r->rules; *at; at = &(*at)->next)
        if (*at == rules) {
            *at = rules->next;
            break;
        }
    rules_free(rules);
}

/* ---- The fingerprint ---- */

static uint64_t print_mixer(uint64_t h, const mhla_lm_mixer *m) {
    const double fields[] = {m->heads,    m->kv_heads,    m->key_dim,        m->value_dim, m->rope,
                             m->rope_dim, m->rope_theta,  m->qkv_bias,       m->out_bias,  m->qk_norm,
                             m->feature,  m->qk_norm_eps, (double)m->window, m->chunk,     m->blocks,
                             m->gate,     m->conv,        m->norm_q,         m->norm_k,    m->norm_features};
    h = mhla_hash_fold(h, fields, sizeof fields);
    const mhla_scaling *s = &m->scaling;
    if (s->kind == MHLA_SCALING_NONE) return h;
    const double scaling[] = {s->kind,      s->factor,    s->original, s->low,       s->high,
                              s->beta_fast, s->beta_slow, s->exact,    s->attention, s->count};
    return mhla_hash_fold(mhla_hash_fold(h, scaling, sizeof scaling), s->list, sizeof s->list);
}

static uint64_t print_config(const mhla_lm_config *c) {
    const double fields[] = {c->layers, c->vocabulary, c->width, c->hidden, c->norm_eps, c->mlp_bias, c->tied};
    uint64_t h = mhla_hash_fold(1, fields, sizeof fields);
    for (int i = 0; i < c->layers; i++) {
        const uint64_t kind = c->kind[i];
        h = print_mixer(mhla_hash_fold(h, &kind, sizeof kind), &c->mixer[kind]);
    }
    return h;
}

typedef struct prints {
    const mhla_params *params;
    uint64_t *each;
    float **line; /* [threads] one row of a matrix that is not kept as float32 */
} prints;

static void print_task(void *arg, int64_t i, int worker) {
    const prints *p = arg;
    const mhla_param *x = mhla_params_at(p->params, (int)i);
    const int64_t N = x->shape[0], K = x->count / N;
    const uint64_t dtype = x->dtype;
    uint64_t h = mhla_hash_fold(2, &dtype, sizeof dtype);
    if (x->data)
        h = mhla_hash_fold(h, x->data, sizeof(float) * (size_t)x->count);
    else
        for (int64_t n = 0; n < N; n++) {
            mhla_param_get_rows(p->line[worker], x, n, 1);
            h = mhla_hash_fold(h, p->line[worker], sizeof(float) * (size_t)K);
        }
    p->each[i] = h;
}

mhla_status mhla_reader_print(uint64_t *print, mhla_reader *r) {
    const mhla_params *params = mhla_lm_params(r->lm);
    const int count = mhla_params_count(params);
    const mhla_context *context = r->tape ? mhla_tape_context(r->tape) : NULL;
    const int threads = mhla_context_threads(context);
    uint64_t versions = 0;
    int64_t longest = 0;
    for (int i = 0; i < count; i++) {
        const mhla_param *x = mhla_params_at(params, i);
        versions += x->version + ((uint64_t)x->dtype << 56);
        if (x->data == NULL && x->count / x->shape[0] > longest) longest = x->count / x->shape[0];
    }
    if (!r->printed || r->print_of != versions) {
        mhla_carver c = {0};
        prints p = {params, NULL, NULL};
        void *memory = NULL;
        for (int pass = 0; pass < 2; pass++) { /* count, then cut */
            c = (mhla_carver){memory, 0};
            p.each = mhla_carve(&c, sizeof *p.each * (size_t)count);
            p.line = mhla_carve(&c, sizeof *p.line * (size_t)threads);
            for (int i = 0; i < threads; i++) {
                float *line = mhla_carve_floats(&c, longest);
                if (memory) p.line[i] = line;
            }
            if (memory == NULL && (memory = mhla_alloc(c.used)) == NULL)
                return mhla_fail(MHLA_ENOMEM, "no memory for the fingerprint of the weights");
        }
        mhla_parallel(context, count, print_task, &p);
        r->print = mhla_hash_fold(print_config(r->config), p.each, sizeof *p.each * (size_t)count);
        r->print_of = versions;
        r->printed = 1;
        mhla_free(memory);
    }
    *print = r->print;
    return MHLA_OK;
}
