/* What all sequences of a model share: the policies of their mixers, and the fingerprint that saved sequences carry. */
#include <string.h>

#include "core/hash.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "models/language/sequence.h"
#include "models/model.h"

enum { MARK_EVERY = 256 }; /* tokens, at least */

/* ---- Making ---- */

mhla_status mhla_model_reader(mhla_reader **reader, mhla_model *model) {
    MHLA_TRY(mhla_model_need(model, MHLA_ROLE_DECODER));
    *reader = model->reader;
    if (model->reader) return MHLA_OK;
    mhla_reader *r = mhla_alloc_zero(sizeof *r);
    if (r == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a reader of sequences");
    *r = (mhla_reader){.model = model, .lm = model->net, .config = mhla_lm_config_of(model->net)};
    const mhla_mixer_facts facts = mhla_lm_facts(r->config);
    const int64_t C = facts.chunk ? facts.chunk : 1;
    r->marking = facts.marks;
    r->grid = facts.marks ? (MARK_EVERY + C - 1) / C * C : C > 1 && C <= MHLA_PASS ? C : 64;
    *reader = model->reader = r;
    return MHLA_OK;
}

static void rules_free(mhla_rules *x, const mhla_reader *r) {
    if (x == NULL) return;
    for (int g = 0; g < r->config->groups; g++)
        if (x->policies[g]) r->config->group[g].mixer->policy_free(x->policies[g]);
    mhla_free(x);
}

void mhla_reader_free(mhla_reader *r) {
    if (r == NULL) return;
    for (mhla_rules *x = r->rules, *next; x; x = next) {
        next = x->next;
        rules_free(x, r);
    }
    mhla_reading_free(r->reading);
    mhla_tape_free(r->tape);
    mhla_free(r);
}

/* ---- Rules ---- */

/* The policy is the same for all mixers: past the trained length it is an error unless one says otherwise. What a mixer does then is
 * its own business. */
static mhla_status make_policies(mhla_rules *x, const mhla_reader *r) {
    const mhla_lm_config *c = r->config;
    const int64_t context = mhla_lm_context(c);
    x->limit = x->terms.beyond == MHLA_BEYOND_ERROR && context > 0 ? context : INT64_MAX;
    for (int i = 0; i < c->layers; i++) {
        void **policy = &x->policies[c->group_of[i]];
        if (*policy == NULL)
            MHLA_TRY(mhla_lm_group_of(c, i)->mixer->policy(policy, mhla_lm_shared(r->lm, i), &x->terms, &x->limit));
    }
    return MHLA_OK;
}

mhla_status mhla_rules_get(mhla_rules **rules, mhla_reader *r, const mhla_terms *terms) {
    mhla_terms t = *terms;
    if (t.beyond != MHLA_BEYOND_CHUNK) t.max_tokens = 0;
    *rules = NULL;
    for (mhla_rules *x = r->rules; x; x = x->next)
        if (x->terms.beyond == t.beyond && x->terms.max_tokens == t.max_tokens && x->terms.cache == t.cache) {
            x->refs++;
            *rules = x;
            return MHLA_OK;
        }
    mhla_rules *x = mhla_alloc_zero(sizeof *x + (size_t)r->config->groups * sizeof *x->policies);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the plans of a sequence");
    x->refs = 1;
    x->terms = t;
    const mhla_status status = make_policies(x, r);
    if (status != MHLA_OK) {
        rules_free(x, r);
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
    rules_free(rules, r);
}

/* ---- The fingerprint ---- */

static uint64_t print_config(const mhla_lm_config *c) {
    const double fields[] = {c->layers, c->vocabulary, c->width, c->hidden, c->norm_eps, c->mlp_bias, c->tied};
    uint64_t h = mhla_hash_fold(1, fields, sizeof fields);
    for (int i = 0; i < c->layers; i++) {
        const mhla_lm_group *g = mhla_lm_group_of(c, i);
        h = g->mixer->print(h, &g->settings, c);
    }
    const uint64_t kind = (uint64_t)c->naming; /* other names are those of one network */
    return mhla_lm_names_of[c->naming].plus_one ? mhla_hash_fold(h, &kind, sizeof kind) : h;
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
