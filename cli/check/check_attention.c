/* The check's attention operators: tables of awkward sizes, each run forward and backward on every instruction set and
 * compared, tensor by tensor, with the reference. */
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

#define CUTS(...) .axes = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .blocks = {__VA_ARGS__}

static const int64_t packed[] = {0, 1, 1, 66, 130};

typedef struct attention_case {
    const char *name;
    int64_t B, T;
    mhla_plan_desc plan; /* kind, dtype and eps are filled in */
    int64_t kv_tokens, past;
    const int64_t *cu_seqlens;
    int64_t sequences;
    int second_pair, state;
} attention_case;

#define HKV(h, k, v) .heads = (h), .key_dim = (k), .value_dim = (v)

/* Where a denominator makes o independent of q, k or mix (one token, one block, K = 1), the gradient is 0 but for
 * rounding and says nothing: such cases have none. */
static const attention_case bidirectional_cases[] = {
    {"16x16 in 4x4, 64x64", 2, 256, .plan = {HKV(3, 64, 64), .grid = {16, 16}, CUTS(4, 4)}},
    {"10x13 in 3x4, 72x60", 1, 130, .plan = {HKV(2, 72, 60), .grid = {10, 13}, CUTS(3, 4)}},
    {"one token", 2, 1, .plan = {HKV(1, 7, 1), .grid = {1}, CUTS(1), .denominator = MHLA_DEN_NONE}},
    {"63 tokens in 63 blocks, 1x7", 1, 63,
     .plan = {HKV(2, 1, 7), .grid = {63}, CUTS(63), .denominator = MHLA_DEN_NONE}},
    {"65 tokens in 1 block, 60x128", 1, 65,
     .plan = {HKV(1, 60, 128), .grid = {65}, CUTS(1), .denominator = MHLA_DEN_NONE}},
    {"501 tokens in 7, 32x40", 1, 501, .plan = {HKV(1, 32, 40), .grid = {501}, CUTS(7)}},
    {"3x5x6 in 3x2x2, rotary", 1, 90,
     .plan = {HKV(2, 48, 33), .grid = {3, 5, 6}, CUTS(3, 2, 2), .rope = MHLA_ROPE_HALF}},
    {"8x8 in 2x2, interleaved rotary, none", 2, 64,
     .plan = {HKV(2, 64, 64), .grid = {8, 8}, CUTS(2, 2), .rope = MHLA_ROPE_INTERLEAVED, .denominator = MHLA_DEN_NONE}},
    {"8x8 in 4x2, released", 2, 64,
     .plan = {HKV(2, 64, 72), .grid = {8, 8}, CUTS(4, 2), .denominator = MHLA_DEN_RELEASED}},
    {"elu, mix per head, block order", 1, 96,
     .plan = {HKV(3, 24, 16), .grid = {8, 12}, CUTS(2, 3), .feature = MHLA_FEATURE_ELU, .mix_per_head = 1,
              .order = MHLA_ORDER_BLOCKS}},
    {"second pair", 1, 77, .plan = {HKV(2, 40, 24), .grid = {7, 11}, CUTS(2, 5)}, .second_pair = 1},
    {"128x256", 1, 128, .plan = {HKV(1, 128, 256), .grid = {128}, CUTS(4), .denominator = MHLA_DEN_NONE}},
    {"256x7", 1, 50, .plan = {HKV(1, 256, 7), .grid = {50}, CUTS(5)}},
};

/* Cross attention, and linear attention of other keys than queries. */
#define KEY_CUTS(...) .key_axes = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .key_blocks = {__VA_ARGS__}
static const attention_case cross_cases[] = {
    {"16x16 in 4x4 to 12x20 in 3x5, 64x64", 2, 256,
     .plan = {HKV(3, 64, 64), .grid = {16, 16}, CUTS(4, 4), .key_grid = {12, 20}, KEY_CUTS(3, 5)}},
    {"10x13 in 3x4 to 77 in 5, 72x60, rotary", 1, 130,
     .plan = {HKV(2, 72, 60), .grid = {10, 13}, CUTS(3, 4), .key_grid = {77}, KEY_CUTS(5), .rope = MHLA_ROPE_HALF}},
    {"one query to 63 keys in 7", 2, 1, .plan = {HKV(1, 7, 20), .grid = {1}, CUTS(1), .key_grid = {63}, KEY_CUTS(7)}},
    {"63 queries in 7 to one key", 2, 63,
     .plan = {HKV(1, 60, 1), .grid = {63}, CUTS(7), .key_grid = {1}, KEY_CUTS(1), .denominator = MHLA_DEN_NONE}},
    {"65 in 65 to 2x3x4 in 2x1x4, 1x7", 1, 65,
     .plan = {HKV(2, 1, 7), .grid = {65}, CUTS(65), .key_grid = {2, 3, 4}, KEY_CUTS(2, 1, 4),
              .denominator = MHLA_DEN_NONE}},
    {"elu, mix per head, interleaved rotary", 1, 96,
     .plan = {HKV(3, 24, 16), .grid = {8, 12}, CUTS(2, 3), .key_grid = {5, 7}, KEY_CUTS(5, 2),
              .feature = MHLA_FEATURE_ELU, .rope = MHLA_ROPE_INTERLEAVED, .mix_per_head = 1}},
    {"second pair, 501 in 7 to 300 in 3", 1, 501,
     .plan = {HKV(1, 40, 128), .grid = {501}, CUTS(7), .key_grid = {300}, KEY_CUTS(3)}, .second_pair = 1},
    {"linear, 65 to 1100, 60x64, rotary", 2, 65,
     .plan = {.kind = MHLA_KIND_LINEAR, HKV(2, 60, 64), .rope = MHLA_ROPE_HALF}, .kv_tokens = 1100},
    {"linear, 1100 to 65, 72x33", 1, 1100, .plan = {.kind = MHLA_KIND_LINEAR, HKV(1, 72, 33)}, .kv_tokens = 65},
};

static const attention_case causal_cases[] = {
    {"130 tokens, 128x256", 1, 130, .plan = {HKV(2, 128, 256), .chunks = 3, .denominator = MHLA_DEN_NONE}},
    {"501 tokens, chunks of 64", 1, 501, .plan = {HKV(1, 32, 24), .chunks = 8, .denominator = MHLA_DEN_NONE}},
    {"one token", 2, 1, .plan = {HKV(1, 7, 1), .chunks = 1, .denominator = MHLA_DEN_NONE}},
    {"65 tokens, chunks of 1", 1, 65, .plan = {HKV(1, 60, 64), .chunk = 1, .chunks = 65, .denominator = MHLA_DEN_NONE}},
    {"eq4, chunks of 16", 2, 63, .plan = {HKV(2, 72, 40), .chunk = 16, .chunks = 4}},
    {"fewer kv heads, rotary, mix per head", 1, 100,
     .plan = {HKV(4, 64, 48), .kv_heads = 2, .chunk = 32, .chunks = 4, .rope = MHLA_ROPE_HALF, .mix_per_head = 1,
              .denominator = MHLA_DEN_NONE}},
    {"packed sequences", 1, 130, .plan = {HKV(2, 33, 64), .chunk = 16, .chunks = 5, .denominator = MHLA_DEN_NONE},
     .cu_seqlens = packed, .sequences = 4},
    {"clamp beyond 3 chunks", 1, 100,
     .plan = {HKV(2, 16, 20), .chunk = 8, .chunks = 3, .beyond = MHLA_BEYOND_CLAMP, .denominator = MHLA_DEN_NONE}},
    {"state in and out", 2, 50, .plan = {HKV(2, 24, 30), .chunk = 16, .chunks = 6, .denominator = MHLA_DEN_NONE},
     .past = 23, .state = 1},
    {"state in and out, eq4", 1, 40, .plan = {HKV(2, 24, 16), .chunk = 16, .chunks = 6}, .past = 32, .state = 1},
};

static const attention_case linear_cases[] = {
    {"256 tokens, 64x64", 2, 256, .plan = {.kind = MHLA_KIND_LINEAR, HKV(3, 64, 64)}},
    {"501 tokens, 72x60", 1, 501, .plan = {.kind = MHLA_KIND_LINEAR, HKV(1, 72, 60)}},
    {"causal, 130 tokens, 128x256", 1, 130,
     .plan = {.kind = MHLA_KIND_LINEAR_CAUSAL, HKV(1, 128, 256), .denominator = MHLA_DEN_NONE}},
    {"one token, 7x1", 2, 1, .plan = {.kind = MHLA_KIND_LINEAR, HKV(1, 7, 1), .denominator = MHLA_DEN_NONE}},
    {"65 tokens, no denominator, rotary", 1, 65,
     .plan = {.kind = MHLA_KIND_LINEAR, HKV(2, 60, 128), .denominator = MHLA_DEN_NONE, .rope = MHLA_ROPE_HALF}},
    {"causal, eq4, fewer kv heads", 1, 99, .plan = {.kind = MHLA_KIND_LINEAR_CAUSAL, HKV(4, 40, 24), .kv_heads = 2}},
    {"causal, packed", 1, 130, .plan = {.kind = MHLA_KIND_LINEAR_CAUSAL, HKV(2, 33, 20), .denominator = MHLA_DEN_NONE},
     .cu_seqlens = packed, .sequences = 4},
    {"causal, state in and out", 2, 70,
     .plan = {.kind = MHLA_KIND_LINEAR_CAUSAL, HKV(2, 24, 30), .denominator = MHLA_DEN_NONE}, .past = 9, .state = 1},
};

static const attention_case softmax_cases[] = {
    {"256 tokens, 64x64", 2, 256, .plan = {HKV(3, 64, 64)}},
    {"causal, 200 tokens, 128x96", 1, 200, .plan = {HKV(2, 128, 96), .causal = 1}},
    {"one token", 2, 1, .plan = {HKV(1, 7, 1)}},
    {"501 tokens, 24x20", 1, 501, .plan = {HKV(1, 24, 20)}},
    {"3 queries, 131 keys, causal", 1, 3, .plan = {HKV(2, 60, 72), .causal = 1}, .kv_tokens = 131},
    {"window of 17, fewer kv heads, rotary", 1, 100,
     .plan = {HKV(4, 32, 64), .kv_heads = 2, .causal = 1, .window = 17, .rope = MHLA_ROPE_HALF}},
    {"packed sequences", 1, 130, .plan = {HKV(2, 64, 33), .causal = 1}, .cu_seqlens = packed, .sequences = 4},
};

/* The baselines of vision models. One token, or K = 1, says little: see above. */
static const attention_case vision_cases[] = {
    {"focused, 256 tokens, 64x64", 2, 256, .plan = {.kind = MHLA_KIND_FOCUSED, HKV(3, 64, 64)}},
    {"inline, 256 tokens, 32x32", 2, 256, .plan = {.kind = MHLA_KIND_INLINE, HKV(6, 32, 32)}},
    {"mala, 256 tokens, 64x64, rotary", 2, 256,
     .plan = {.kind = MHLA_KIND_MALA, HKV(3, 64, 64), .rope = MHLA_ROPE_INTERLEAVED}},
    {"rala, 256 tokens, 64x64, rotary", 2, 256,
     .plan = {.kind = MHLA_KIND_RALA, HKV(3, 64, 64), .rope = MHLA_ROPE_INTERLEAVED}},
    {"focused, 63 tokens, 60x24, power 4", 1, 63,
     .plan = {.kind = MHLA_KIND_FOCUSED, HKV(2, 60, 24), .focus_power = 4}},
    {"inline, 600 tokens, 72x40", 1, 600, .plan = {.kind = MHLA_KIND_INLINE, HKV(1, 72, 40)}},
    {"mala, 65 tokens, 20x33", 1, 65, .plan = {.kind = MHLA_KIND_MALA, HKV(2, 20, 33)}},
    {"rala, 600 tokens, 36x64", 1, 600,
     .plan = {.kind = MHLA_KIND_RALA, HKV(1, 36, 64), .rope = MHLA_ROPE_INTERLEAVED, .rope_dim = 16}},
};

/* Recurrences with decay. */
static const attention_case decay_cases[] = {
    {"simple GLA, 130 tokens, 128x64, 4 heads share q and k", 1, 130,
     .plan = {.kind = MHLA_KIND_SIMPLE_GLA, HKV(4, 128, 64), .key_heads = 1, .denominator = MHLA_DEN_NONE}},
    {"GLA, 130 tokens, 128x256", 1, 130,
     .plan = {.kind = MHLA_KIND_GLA, HKV(1, 128, 256), .denominator = MHLA_DEN_NONE}},
    {"delta rule, 130 tokens, 128x256, 2 heads share q and k", 1, 130,
     .plan = {.kind = MHLA_KIND_GATED_DELTA,
              HKV(2, 128, 256),
              .key_heads = 1,
              .denominator = MHLA_DEN_NONE,
              .qk_l2norm = 1}},
    {"simple GLA, one token, 7x1", 2, 1,
     .plan = {.kind = MHLA_KIND_SIMPLE_GLA, HKV(1, 7, 1), .denominator = MHLA_DEN_NONE}, .past = 1, .state = 1},
    {"GLA, state in and out, chunks of 48", 2, 100,
     .plan = {.kind = MHLA_KIND_GLA, HKV(2, 60, 33), .chunk = 48, .denominator = MHLA_DEN_NONE}, .past = 1, .state = 1},
    {"simple GLA, packed", 1, 130, .plan = {.kind = MHLA_KIND_SIMPLE_GLA, HKV(2, 33, 20), .denominator = MHLA_DEN_NONE},
     .cu_seqlens = packed, .sequences = 4},
    {"GLA, packed, 1x20", 1, 130, .plan = {.kind = MHLA_KIND_GLA, HKV(2, 1, 20), .denominator = MHLA_DEN_NONE},
     .cu_seqlens = packed, .sequences = 4},
    {"delta rule, state in and out, chunks of 48", 2, 100,
     .plan = {.kind = MHLA_KIND_GATED_DELTA, HKV(2, 60, 33), .chunk = 48, .denominator = MHLA_DEN_NONE, .qk_l2norm = 1},
     .past = 1, .state = 1},
    {"delta rule, packed", 1, 130,
     .plan = {.kind = MHLA_KIND_GATED_DELTA, HKV(2, 33, 20), .denominator = MHLA_DEN_NONE, .qk_l2norm = 1},
     .cu_seqlens = packed, .sequences = 4},
};

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))
enum { BRIEF = 2 };

/* ---- Tensors of a problem that are compared ---- */

typedef struct compared {
    const char *name;
    void *got;
    int64_t count;
    mhla_dtype dtype;
    double *want;
} compared;

enum { MOST_COMPARED = 14 };

static int list_compared(compared *t, const problem *p) {
    const mhla_grads *g = &p->grads;
    const compared all[] = {
        {"o", p->o, p->n_o, p->dtype, NULL},
        {"final_state", p->call.final_state, p->n_state, MHLA_F32, NULL},
        {"final_z", p->call.final_z, p->n_z, MHLA_F32, NULL},
        {"dq", g->dq, p->n_q, MHLA_F32, NULL},
        {"dk", g->dk, p->n_k, MHLA_F32, NULL},
        {"dv", g->dv, p->n_v, MHLA_F32, NULL},
        {"dmix", g->dmix, p->n_mix, MHLA_F32, NULL},
        {"dq2", g->dq2, p->n_q, MHLA_F32, NULL},
        {"dk2", g->dk2, p->n_k, MHLA_F32, NULL},
        {"dinitial_state", g->dinitial_state, p->n_state0, MHLA_F32, NULL},
        {"dinitial_z", g->dinitial_z, p->n_z0, MHLA_F32, NULL},
        {"dfocus", g->dfocus, p->n_focus, MHLA_F32, NULL},
        {"ddecay", g->ddecay, p->n_decay, MHLA_F32, NULL},
        {"dbeta", g->dbeta, p->n_beta, MHLA_F32, NULL},
    };
    int n = 0;
    for (int i = 0; i < COUNT(all); i++)
        if (all[i].got) t[n++] = all[i];
    return n;
}

/* What the reference has just written, kept as double; then the buffers are poisoned for the operator. */
static int keep(compared *t, int n) {
    for (int i = 0; i < n; i++) {
        t[i].want = malloc((size_t)t[i].count * sizeof(double) + 1);
        if (t[i].want == NULL) return 0;
        for (int64_t j = 0; j < t[i].count; j++) {
            float x;
            if (t[i].dtype == MHLA_F32) {
                x = ((const float *)t[i].got)[j];
            } else {
                const uint32_t bits = (uint32_t)((const uint16_t *)t[i].got)[j] << 16;
                memcpy(&x, &bits, sizeof x);
            }
            t[i].want[j] = (double)x;
        }
    }
    return 1;
}

static void poison(const compared *t, int n) {
    for (int i = 0; i < n; i++) memset(t[i].got, 0xff, (size_t)t[i].count * (t[i].dtype == MHLA_F32 ? 4 : 2));
}

static problem_desc describe(const attention_case *c, mhla_kind kind, mhla_dtype dtype, uint64_t seed) {
    problem_desc d = {.plan = c->plan, .backward = 1, .second_pair = c->second_pair, .state = c->state, .seed = seed};
    d.plan.kind = c->plan.kind ? c->plan.kind : kind;
    d.plan.dtype = dtype;
    if (kind < MHLA_KIND_SOFTMAX) {
        d.plan.feature_eps = d.plan.feature == MHLA_FEATURE_RELU ? 1e-6f : 0.0f;
        d.plan.den_eps = 1e-6f;
    }
    d.call = (mhla_call){.size = sizeof d.call,
                         .batch = c->B,
                         .tokens = c->T,
                         .kv_tokens = c->kv_tokens,
                         .past = c->past,
                         .cu_seqlens = c->cu_seqlens,
                         .sequences = c->sequences};
    return d;
}

/* ---- Forward and backward against the reference ---- */

static mhla_status check_case(check_row *row, const check_isas *isas, const attention_case *c, mhla_kind kind,
                              uint64_t seed) {
    problem p;
    compared t[MOST_COMPARED] = {{0}};
    const problem_desc desc = describe(c, kind, row->dtype, seed);
    mhla_status status = problem_create(&p, &desc);
    if (status != MHLA_OK) return status;
    p.ws = p.ws_backward = NULL; /* its size is the instruction set's affair: let each call allocate */
    const int n = list_compared(t, &p);
    status = mhla_forward_reference(p.plan, &p.call, p.o, p.q, p.k, p.v, p.mix);
    if (status == MHLA_OK) status = mhla_backward_reference(p.plan, &p.call, &p.grads, p.dO, p.q, p.k, p.v, p.mix);
    if (status == MHLA_OK && !keep(t, n)) status = MHLA_ENOMEM;
    for (int i = 0; i < isas->count && status == MHLA_OK; i++) {
        poison(t, n);
        status = mhla_set_isa(isas->name[i]);
        if (status == MHLA_OK) status = problem_forward(&p);
        if (status == MHLA_OK) status = problem_backward(&p);
        for (int j = 0; j < n && status == MHLA_OK; j++)
            check_compare(row, i, t[j].name, c->name, t[j].got, t[j].dtype, t[j].want, t[j].count);
    }
    row->cases++;
    for (int j = 0; j < n; j++) free(t[j].want);
    problem_free(&p);
    return status;
}

static mhla_status check_cases(check_row *row, const check_isas *isas, const attention_case *cases, int count,
                               mhla_kind kind) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count && status == MHLA_OK; i++)
        status = check_case(row, isas, &cases[i], kind, (uint64_t)i + 1);
    return status;
}

mhla_status check_bidirectional(check_row *row, const check_isas *isas, int brief) {
    return check_cases(row, isas, bidirectional_cases, brief ? BRIEF : COUNT(bidirectional_cases),
                       MHLA_KIND_BIDIRECTIONAL);
}

mhla_status check_cross(check_row *row, const check_isas *isas, int brief) {
    return check_cases(row, isas, cross_cases, brief ? BRIEF : COUNT(cross_cases), MHLA_KIND_BIDIRECTIONAL);
}

mhla_status check_causal(check_row *row, const check_isas *isas, int brief) {
    return check_cases(row, isas, causal_cases, brief ? BRIEF : COUNT(causal_cases), MHLA_KIND_CAUSAL);
}

mhla_status check_linear(check_row *row, const check_isas *isas, int brief) {
    return check_cases(row, isas, linear_cases, brief ? BRIEF : COUNT(linear_cases), MHLA_KIND_LINEAR);
}

mhla_status check_softmax(check_row *row, const check_isas *isas, int brief) {
    return check_cases(row, isas, softmax_cases, brief ? BRIEF : COUNT(softmax_cases), MHLA_KIND_SOFTMAX);
}

mhla_status check_vision(check_row *row, const check_isas *isas, int brief) {
    enum { KINDS = 4 };
    return check_cases(row, isas, vision_cases, brief ? KINDS : COUNT(vision_cases), MHLA_KIND_FOCUSED);
}

mhla_status check_decay(check_row *row, const check_isas *isas, int brief) {
    enum { KINDS = 3 };
    return check_cases(row, isas, decay_cases, brief ? KINDS : COUNT(decay_cases), MHLA_KIND_SIMPLE_GLA);
}
