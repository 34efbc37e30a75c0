/* mhla bench: the operators at the shapes of real models, or at any given on the command line, and whole models, rated by
 * their arithmetic against the peak of this CPU measured between the calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

typedef struct shape {
    const char *name;
    int64_t B;
    int H, G; /* G 0 = H */
    int64_t T;
    int K, V;
    int axes, grid[3], blocks[3];
    int chunk;      /* causal groups */
    int64_t chunks; /* 0 = as many as T needs */
    mhla_denominator denominator;
    int causal, long_backward; /* belongs to the causal groups; backward only where asked for by name */
    int only;                  /* the one operator that it is for; 0 = all */
} shape;

static const shape shapes[] = {
    {"deit-t", 32, 3, 0, 256, 64, 64, 2, {16, 16}, {4, 4}, .denominator = MHLA_DEN_EQ4},
    {"dit-s-512", 8, 6, 0, 1024, 64, 64, 2, {32, 32}, {4, 4}, .denominator = MHLA_DEN_EQ4},
    {"wan-480p", 1, 12, 0, 31500, 128, 128, 3, {21, 30, 50}, {7, 3, 5}, .denominator = MHLA_DEN_NONE},
    {"lm", 1, 4, 0, 2048, 128, 256, 1, {2048}, {32}, .denominator = MHLA_DEN_NONE},
    {"dit-xl", 1, 16, 0, 4096, 72, 72, 2, {64, 64}, {4, 4}, .denominator = MHLA_DEN_EQ4},
    {"T2048", 1, 4, 0, 2048, 128, 256, .chunk = 64, .denominator = MHLA_DEN_NONE, .causal = 1},
    {"T8192", 1, 4, 0, 8192, 128, 256, .chunk = 64, .denominator = MHLA_DEN_NONE, .causal = 1},
    {"T65536", 1, 4, 0, 65536, 128, 256, .chunk = 64, .denominator = MHLA_DEN_NONE, .causal = 1, .long_backward = 1},
    /* layers of 340M language models */
    {"mamba2", 1, 32, 1, 2048, 128, 64, .chunk = 64, .causal = 1, .only = OPERATOR_SIMPLE_GLA},
    {"deltanet", 1, 6, 0, 2048, 128, 256, .chunk = 64, .causal = 1, .only = OPERATOR_GATED_DELTA},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct group {
    const char *name;
    int causal, backward;
    mhla_status (*own)(bench *b); /* groups with rows of their own kind */
} groups[] = {
    {"forward", 0, 0, NULL},         {"backward", 0, 1, NULL},       {"causal", 1, 0, NULL},
    {"causal-backward", 1, 1, NULL}, {"layers", 0, 0, bench_layers}, {"decode", 0, 0, bench_decode},
    {"mamba", 0, 0, bench_mamba},    {"models", 0, 0, bench_models}, {"resolution", 0, 0, bench_resolution},
    {"lm-340m", 0, 0, bench_lm},
};
enum { GROUPS = sizeof groups / sizeof *groups };

/* ---- The command line ---- */

#define OPERATOR_LIST                                                                                                  \
    "mhla,linear,softmax,focused,inline,mala,rala,simple-gla,gla,gated-delta,retnet,mamba,mamba2,gated_deltanet"

static struct {
    int64_t batch, heads, kv_heads, tokens, key, value, chunk, chunks, threads;
    cli_grid grid, blocks;
    const char *denominator, *feature, *dtype, *operators, *backend, *isa;
    double seconds;
    const char *simulate;
    int compare, json, engine;
} given;

static const cli_option options[] = {
    {"compare", CLI_FLAG, &given.compare, NULL, "compare MHLA with linear and softmax attention"},
    {"operator", CLI_TEXT, &given.operators, "LIST", "some of " OPERATOR_LIST "; default: mhla"},
    {"dtype", CLI_TEXT, &given.dtype, "LIST",
     "some of float32,bfloat16,q8_0 (layers, models and lm-340m); default: float32"},
    {"batch", CLI_INT, &given.batch, "B", "a shape of your own, or a change to the one named;"},
    {"heads", CLI_INT, &given.heads, "H", "  batch and heads are 1 if not given"},
    {"kv-heads", CLI_INT, &given.kv_heads, "G", "  causal: key/value heads; simple-gla and gated-delta: of q and k"},
    {"tokens", CLI_INT, &given.tokens, "T", "  tokens, or a grid of them"},
    {"key", CLI_INT, &given.key, "K", "  size of a key; default: 64"},
    {"value", CLI_INT, &given.value, "V", "  size of a value; default: 64"},
    {"grid", CLI_GRID, &given.grid, "16x16", "  grid of the tokens; default: one axis"},
    {"blocks", CLI_GRID, &given.blocks, "4x4", "  pieces per axis; default: the root of its length"},
    {"chunk", CLI_INT, &given.chunk, "C", "  causal: tokens of a chunk; default: 64"},
    {"chunks", CLI_INT, &given.chunks, "M", "  causal: side of the mixing matrix; default: T/C"},
    {"denominator", CLI_TEXT, &given.denominator, "NAME", "  eq4, released or none"},
    {"feature", CLI_TEXT, &given.feature, "NAME", "relu, elu or identity; default: relu"},
    {"seconds", CLI_REAL, &given.seconds, "S", "time for each row; default: 1, or $BENCH_SECONDS"},
    {"threads", CLI_INT, &given.threads, "N", "threads; default: what OpenMP would use"},
    {"backend", CLI_TEXT, &given.backend, "NAME", "openmp or pthreads"},
    {"simulate-threads", CLI_TEXT, &given.simulate, "N,N",
     "estimate the speed-up for more threads than this machine has"},
    {"isa", CLI_TEXT, &given.isa, "NAME", "plain, avx2, avx512, avx512bf16 or neon"},
    {"small-pages", CLI_FLAG, &small_pages, NULL, "data on ordinary pages; default: pages of 2 MiB where possible"},
    {"json", CLI_FLAG, &given.json, NULL, "one JSON document instead of text"},
    {"engine", CLI_FLAG, &given.engine, NULL, "{\"variant\": \"engine\", \"ms\": [..]}: for a harness"},
    {0},
};
static const cli_usage usage = {
    .verb = "bench",
    .arguments = "[NAME...]",
    .options = options,
    .text = "Times the operators and prints how much of this machine's peak they reach. A NAME\n"
            "selects a group, a shape, or with both a shape in a group; none means everything.\n"
            "\n"
            "Groups: forward, backward, causal, causal-backward, layers, decode, mamba, models; only if you name\n"
            "them: resolution, DiT-S/2 from 256 to 65,536 tokens, and lm-340m, a language model, which needs\n"
            "gigabytes and minutes. mhla bench mpi has other options: it measures ranks and predicts more of them.\n"
            "Shapes: deit-t, dit-s-512, wan-480p, lm, dit-xl; causal T2048, T8192, T65536, and mamba2 for simple-gla,\n"
            "deltanet for gated-delta;\n"
            "rows of layers, decode, mamba, models, resolution and lm-340m (also train-2048, decode-8192,\n"
            "decode-65536) by their names.\n"
            "\n"
            "  mhla bench forward --compare\n"
            "  mhla bench forward backward deit-t --operator focused,mala,rala\n"
            "  mhla bench forward backward dit-xl --dtype float32,bfloat16\n"
            "  mhla bench --heads 8 --grid 24x24 --blocks 4x4 --key 96 --value 96\n"
            "  mhla bench causal --tokens 16384 --chunk 128 --heads 4\n"
            "  mhla bench causal causal-backward T2048 --operator gla\n"
            "  mhla bench mamba scan-2048 scan-2048-both\n"
            "  mhla bench lm-340m decode-128 --operator mhla,softmax --dtype bfloat16,q8_0\n"
            "  mhla bench lm-340m decode-128 prompt-512 --operator gla,retnet,mamba,mamba2,gated_deltanet\n"
            "  mhla bench resolution --compare\n"
            "  mhla bench forward models --simulate-threads 8,32,64\n"
            "  mhla bench --engine forward deit-t\n",
};

/* Index of text in names[count], or -1. */
static int index_of(const char *text, size_t n, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == n && strncmp(names[i], text, n) == 0) return i;
    return -1;
}

/* A list with commas to bits; 0 if a name is unknown. */
static int bits_of(const char *list, const char *const *names, int count) {
    int bits = 0;
    for (const char *at = list;; at++) {
        const size_t n = strcspn(at, ",");
        const int i = index_of(at, n, names, count);
        if (i < 0) return 0;
        bits |= 1 << i;
        at += n;
        if (*at == '\0') return bits;
    }
}

static const char *const operator_names[OPERATORS] = {"mhla",   "linear", "softmax",    "focused",       "inline",
                                                      "mala",   "rala",   "simple-gla", "gla",           "gated-delta",
                                                      "retnet", "mamba",  "mamba2",     "gated_deltanet"};
static const char *const denominator_names[] = {"eq4", "released", "none"};
static const char *const feature_names[] = {"relu", "elu", "identity"};
static const char *const backend_names[] = {"openmp", "pthreads"};

static int is_group(const char *name) {
    for (int i = 0; i < GROUPS; i++)
        if (strcmp(groups[i].name, name) == 0) return 1;
    return 0;
}

int bench_wants(const bench *b, const char *group, const char *shape_name) {
    int groups_named = 0, group_found = 0, shapes_named = 0, shape_found = shape_name == NULL;
    for (int i = 0; i < b->names; i++) {
        if (is_group(b->name[i])) {
            groups_named = 1;
            group_found |= strcmp(b->name[i], group) == 0;
        } else {
            shapes_named = 1;
            shape_found |= shape_name && strcmp(b->name[i], shape_name) == 0;
        }
    }
    return (!groups_named || group_found) && (!shapes_named || shape_found);
}

double bench_estimate(const bench *b, double flops, mhla_dtype dtype) {
    static double peak[2];
    if (peak[dtype] == 0.0) peak[dtype] = peak_of(dtype, b->format == BENCH_SIMULATE ? NULL : b->context, 0.03);
    return flops / (1e9 * peak[dtype]);
}

/* ---- A shape of the user's own ---- */

static int custom(void) {
    return given.batch || given.heads || given.kv_heads || given.tokens || given.key || given.value ||
           given.grid.axes || given.blocks.axes || given.chunk || given.chunks;
}

static int fits_int(int64_t x) { return x <= 1 << 30; }

/* Fills `s` from the named shape, if one was, and the options. Returns -1 or the code to exit with. */
static int make_custom(shape *s, const bench *b) {
    *s = (shape){"custom", 1, 1, 0, 0, 64, 64, .chunk = 64};
    for (int i = 0; i < b->names; i++)
        for (int j = 0; j < SHAPES; j++)
            if (strcmp(b->name[i], shapes[j].name) == 0) *s = shapes[j];
    if (!fits_int(given.heads) || !fits_int(given.kv_heads) || !fits_int(given.key) || !fits_int(given.value) ||
        !fits_int(given.chunk) || !fits_int(given.tokens))
        return cli_wrong(usage.verb, "a size is too large");
    if (given.batch) s->B = given.batch;
    if (given.heads) s->H = (int)given.heads;
    if (given.kv_heads) s->G = (int)given.kv_heads;
    if (given.key) s->K = (int)given.key;
    if (given.value) s->V = (int)given.value;
    if (given.chunk) s->chunk = (int)given.chunk;
    if (given.chunks) s->chunks = given.chunks;
    if (given.tokens || given.grid.axes) {
        if (given.grid.axes == 0) given.grid = (cli_grid){1, {(int)given.tokens}};
        s->axes = given.grid.axes;
        memcpy(s->grid, given.grid.size, sizeof s->grid);
        for (int a = 0; a < s->axes; a++) s->blocks[a] = (int)sqrt((double)s->grid[a]); /* so that M * M <= T */
        s->T = 1;
        for (int a = 0; a < s->axes; a++)
            if (__builtin_mul_overflow(s->T, (int64_t)s->grid[a], &s->T) || !fits_int(s->T))
                return cli_wrong(usage.verb, "the grid has too many tokens");
        if (given.tokens && given.tokens != s->T)
            return cli_wrong(usage.verb, "--tokens is %lld but the grid has %lld", (long long)given.tokens,
                             (long long)s->T);
    }
    if (s->T == 0) return cli_wrong(usage.verb, "a shape of your own needs --tokens or --grid");
    if (given.blocks.axes) {
        if (given.blocks.axes != s->axes)
            return cli_wrong(usage.verb, "--blocks has %d axes, the grid has %d", given.blocks.axes, s->axes);
        memcpy(s->blocks, given.blocks.size, sizeof s->blocks);
    }
    return -1;
}

/* ---- Rows of attention ---- */

static int64_t blocks_of(const shape *s) {
    int64_t M = 1;
    for (int a = 0; a < s->axes; a++) M *= s->blocks[a];
    return M;
}

/* Per (batch, head), forward. */
static double flops_of(const shape *s, bench_operator op, int causal) {
    const double T = (double)s->T, K = s->K, V = s->V, C = s->chunk ? s->chunk : 64;
    switch (op) {
    case OPERATOR_MHLA: return causal ? flops_causal_mhla(T, K, V, C) : flops_mhla(T, K, V, (double)blocks_of(s));
    case OPERATOR_LINEAR: return causal ? flops_causal_linear(T, K, V, C) : flops_linear(T, K, V);
    case OPERATOR_SOFTMAX: break;
    case OPERATOR_SIMPLE_GLA: /* q k^T is made once for the heads that share it */
        return 4.0 * T * K * V + T * (C + 1.0) * (K * (s->G ? s->G : s->H) / s->H + V);
    case OPERATOR_GATED_DELTA: /* so are q k^T and k k^T */
        return 6.0 * T * K * V + 2.0 * T * (C + 1.0) * (K * (s->G ? s->G : s->H) / s->H + V);
    case OPERATOR_GLA: return flops_causal_linear(T, K, V, C);
    default: return flops_linear(T, K, V);
    }
    return causal ? flops_softmax(T, K, V) / 2.0 : flops_softmax(T, K, V);
}

static problem_desc describe(const shape *s, bench_operator op, const struct group *g, mhla_dtype dtype) {
    static const mhla_kind kinds[][2] = {[OPERATOR_MHLA] = {MHLA_KIND_BIDIRECTIONAL, MHLA_KIND_CAUSAL},
                                         [OPERATOR_LINEAR] = {MHLA_KIND_LINEAR, MHLA_KIND_LINEAR_CAUSAL},
                                         [OPERATOR_SOFTMAX] = {MHLA_KIND_SOFTMAX, MHLA_KIND_SOFTMAX},
                                         [OPERATOR_FOCUSED] = {MHLA_KIND_FOCUSED},
                                         [OPERATOR_INLINE] = {MHLA_KIND_INLINE},
                                         [OPERATOR_MALA] = {MHLA_KIND_MALA},
                                         [OPERATOR_RALA] = {MHLA_KIND_RALA},
                                         [OPERATOR_SIMPLE_GLA] = {0, MHLA_KIND_SIMPLE_GLA},
                                         [OPERATOR_GLA] = {0, MHLA_KIND_GLA},
                                         [OPERATOR_GATED_DELTA] = {0, MHLA_KIND_GATED_DELTA}};
    problem_desc d = {.backward = g->backward, .seed = 1, .call = {.batch = s->B, .tokens = s->T, .precision = dtype}};
    d.plan = (mhla_plan_desc){.kind = kinds[op][g->causal],
                              .dtype = dtype,
                              .heads = s->H,
                              .kv_heads = s->G,
                              .key_dim = s->K,
                              .value_dim = s->V};
    if (op == OPERATOR_SOFTMAX) {
        d.plan.causal = g->causal;
        return d;
    }
    if (op >= OPERATOR_SIMPLE_GLA) {
        d.plan.kv_heads = 0;
        d.plan.key_heads = op == OPERATOR_GLA ? 0 : s->G;
        d.plan.qk_l2norm = op == OPERATOR_GATED_DELTA;
        d.plan.chunk = s->chunk;
        return d;
    }
    if (op >= OPERATOR_FOCUSED) {
        if (op >= OPERATOR_MALA && s->K % 2 == 0) d.plan.rope = MHLA_ROPE_INTERLEAVED; /* as published */
        return d;
    }
    d.plan.feature = given.feature ? (mhla_feature)index_of(given.feature, strlen(given.feature), feature_names, 3)
                                   : MHLA_FEATURE_RELU;
    d.plan.feature_eps = d.plan.den_eps = 1e-6f;
    d.plan.denominator = s->denominator;
    if (op == OPERATOR_LINEAR && s->denominator == MHLA_DEN_RELEASED) d.plan.denominator = MHLA_DEN_EQ4;
    if (g->causal) {
        d.plan.chunk = s->chunk;
        if (op == OPERATOR_MHLA) d.plan.chunks = s->chunks ? s->chunks : (s->T + s->chunk - 1) / s->chunk;
    } else if (op == OPERATOR_MHLA) {
        d.plan.axes = s->axes;
        memcpy(d.plan.grid, s->grid, sizeof d.plan.grid);
        memcpy(d.plan.blocks, s->blocks, sizeof d.plan.blocks);
    }
    return d;
}

static mhla_status work_forward(void *arg) { return problem_forward(arg); }
static mhla_status work_both(void *arg) {
    const mhla_status status = problem_forward(arg);
    return status != MHLA_OK ? status : problem_backward(arg);
}

/* One row. Softmax that would take long is measured on fewer heads; what is still too long, not at all. */
static mhla_status bench_attention(bench *b, const shape *s, const struct group *g, bench_operator op,
                                   mhla_dtype dtype) {
    const double factor = g->backward ? 3.0 : 1.0, unit = factor * flops_of(s, op, g->causal);
    bench_row row = {.group = g->name,
                     .shape = s->name,
                     .dtype = dtype,
                     .variant = operator_names[op],
                     .flops = unit * (double)s->B * s->H};
    char more[32] = "";
    if (op == OPERATOR_MHLA && g->causal) snprintf(more, sizeof more, ", chunk %d", s->chunk);
    if (op == OPERATOR_MHLA && !g->causal) snprintf(more, sizeof more, ", %lld blocks", (long long)blocks_of(s));
    snprintf(row.sizes, sizeof row.sizes, "%lldx%dx%lldx%dx%d%s", (long long)s->B, s->H, (long long)s->T, s->K, s->V,
             more);

    problem_desc desc = describe(s, op, g, dtype);
    const int per_group = s->G ? s->H / s->G : 1; /* query heads of a kv head stay together */
    const double seconds = bench_estimate(b, unit, dtype);
    if (op == OPERATOR_SOFTMAX && seconds * per_group > 10.0) {
        row.note = NOTE_TOO_LONG;
        bench_report(b, &row);
        return MHLA_OK;
    }
    if (op == OPERATOR_SOFTMAX && seconds * (double)s->B * s->H > 3.0) {
        const int64_t fit = (int64_t)(3.0 / seconds / per_group), most = s->G ? s->G : s->H;
        const int64_t kept = fit < 1 ? 1 : fit > most ? most : fit;
        desc.call.batch = 1;
        desc.plan.heads = (int)(kept * per_group);
        if (s->G) desc.plan.kv_heads = (int)kept;
        row.multiple = (double)s->B * s->H / desc.plan.heads;
        row.note = row.multiple > 1.0 ? NOTE_HEADS : 0;
    }
    desc.call.context = b->context;
    problem p;
    mhla_status status = problem_create(&p, &desc);
    if (status != MHLA_OK) return status;
    row.workspace = p.ws_backward_bytes > p.ws_bytes ? p.ws_backward_bytes : p.ws_bytes;
    status = timing_run(&row.time, g->backward ? work_both : work_forward, &p, b->context, dtype, b->seconds,
                        bench_rates(b));
    if (status == MHLA_OK) bench_report(b, &row);
    problem_free(&p);
    return status;
}

/* Operators of vision models are bidirectional, recurrences with decay causal, the others both; some are whole models only. */
static int has_operator(const struct group *g, const shape *s, int op) {
    if (s->only && s->only != op) return 0;
    if (op >= OPERATOR_RETNET) return 0;
    return g->causal ? op < OPERATOR_FOCUSED || op >= OPERATOR_SIMPLE_GLA : op < OPERATOR_SIMPLE_GLA;
}

static mhla_status bench_shape(bench *b, const shape *s, const struct group *g) {
    mhla_status status = MHLA_OK;
    for (int dtype = MHLA_F32; dtype <= MHLA_BF16; dtype++)
        for (int op = OPERATOR_MHLA; op < OPERATORS && status == MHLA_OK; op++)
            if ((b->dtypes & 1 << dtype) && (b->operators & 1 << op) && has_operator(g, s, op))
                status = bench_attention(b, s, g, (bench_operator)op, (mhla_dtype)dtype);
    return status;
}

static mhla_status bench_group(bench *b, const struct group *g) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < SHAPES && status == MHLA_OK; i++) {
        const shape *s = &shapes[i];
        if (s->causal != g->causal || !bench_wants(b, g->name, s->name)) continue;
        if (s->long_backward && g->backward && b->names < 2) continue;
        shape changed = *s;
        if (given.denominator)
            changed.denominator =
                (mhla_denominator)index_of(given.denominator, strlen(given.denominator), denominator_names, 3);
        status = bench_shape(b, &changed, g);
    }
    return status;
}

static mhla_status bench_custom(bench *b, const shape *s) {
    mhla_status status = MHLA_OK;
    int named = 0;
    for (int i = 0; i < b->names; i++) named |= is_group(b->name[i]);
    const int causal = s->causal || given.chunk || given.chunks;
    for (int i = 0; i < GROUPS && status == MHLA_OK; i++)
        if (groups[i].own == NULL && (named ? bench_wants(b, groups[i].name, NULL) : groups[i].causal == causal))
            status = bench_shape(b, s, &groups[i]);
    return status;
}

/* ---- The verb ---- */

static int check_names(const bench *b) {
    for (int i = 0; i < b->names; i++) {
        int known = is_group(b->name[i]) || bench_layers_has(b->name[i]) || bench_decode_has(b->name[i]) ||
                    bench_mamba_has(b->name[i]) || bench_models_has(b->name[i]) || bench_resolution_has(b->name[i]) ||
                    bench_lm_has(b->name[i]);
        for (int j = 0; j < SHAPES; j++) known |= strcmp(b->name[i], shapes[j].name) == 0;
        if (!known) return cli_wrong(usage.verb, "\"%s\" is neither a group nor a shape", b->name[i]);
    }
    return -1;
}

/* The options that are names; -1 or the code to exit with. */
static int check_options_given(bench *b) {
    static const char *const short_names[] = {"f32", "bf16", "q8_0"};
    if (given.operators && !(b->operators = bits_of(given.operators, operator_names, OPERATORS)))
        return cli_wrong(usage.verb, "--operator is \"%s\": expected some of " OPERATOR_LIST, given.operators);
    if (given.dtype && !(b->dtypes = bits_of(given.dtype, bench_dtype_names, 3)) &&
        !(b->dtypes = bits_of(given.dtype, short_names, 3)))
        return cli_wrong(usage.verb, "--dtype is \"%s\": expected some of float32,bfloat16,q8_0", given.dtype);
    if (given.denominator && index_of(given.denominator, strlen(given.denominator), denominator_names, 3) < 0)
        return cli_wrong(usage.verb, "--denominator is \"%s\": expected eq4, released or none", given.denominator);
    if (given.feature && index_of(given.feature, strlen(given.feature), feature_names, 3) < 0)
        return cli_wrong(usage.verb, "--feature is \"%s\": expected relu, elu or identity", given.feature);
    if (given.backend && index_of(given.backend, strlen(given.backend), backend_names, 2) < 0)
        return cli_wrong(usage.verb, "--backend is \"%s\": expected openmp or pthreads", given.backend);
    if (given.json && given.engine) return cli_wrong(usage.verb, "--json and --engine exclude each other");
    if (given.simulate && (given.engine || given.threads || given.backend))
        return cli_wrong(usage.verb, "--simulate-threads goes with neither --engine nor --threads nor --backend");
    if (given.threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: at most 1024", (long long)given.threads);
    if (given.compare) b->operators = 1 << OPERATOR_MHLA | 1 << OPERATOR_LINEAR | 1 << OPERATOR_SOFTMAX;
    b->format = given.json ? BENCH_JSON : given.engine ? BENCH_ENGINE : BENCH_TEXT;
    const char *seconds = getenv("BENCH_SECONDS");
    b->seconds = given.seconds > 0.0 ? given.seconds : seconds && atof(seconds) > 0.0 ? atof(seconds) : 1.0;
    return check_names(b);
}

static mhla_status bench_all(bench *b, const void *arg) {
    const shape *own = arg;
    mhla_status status = MHLA_OK;
    for (int dtype = MHLA_F32; dtype <= MHLA_BF16; dtype++)
        if (bench_rates(b) && (b->dtypes & 1 << dtype)) peak_settled((mhla_dtype)dtype, b->context);
    if (own) {
        status = bench_custom(b, own);
    } else {
        for (int i = 0; i < GROUPS && status == MHLA_OK; i++)
            status = groups[i].own ? groups[i].own(b) : bench_group(b, &groups[i]);
    }
    if (b->format != BENCH_SIMULATE) bench_end(b);
    return status;
}

int cmd_bench(int argc, char **argv) {
    bench b = {.dtypes = 1 << MHLA_F32, .operators = 1 << OPERATOR_MHLA, .name = argv};
    if (argc > 0 && strcmp(argv[0], "mpi") == 0) return bench_mpi(argc - 1, argv + 1);
    if (mhla_ranks() > 1)
        return cli_wrong(usage.verb, "%d processes were started, but only mhla bench mpi runs in several",
                         mhla_ranks());
    int code = cli_parse(&usage, argc, argv, &b.names);
    if (code < 0) code = check_options_given(&b);
    shape own = {0};
    if (code < 0 && custom()) code = make_custom(&own, &b);
    if (code >= 0) return code;
    if (custom() && given.denominator)
        own.denominator =
            (mhla_denominator)index_of(given.denominator, strlen(given.denominator), denominator_names, 3);
    int workers[BENCH_SIMULATED], simulated = 0;
    if (given.simulate && (simulated = bench_simulate_parse(workers, given.simulate)) == 0)
        return cli_wrong(usage.verb,
                         "--simulate-threads is \"%s\": expected up to %d numbers from 2 to 1024, as in 8,32,64",
                         given.simulate, BENCH_SIMULATED - 1);
    mhla_status status = given.isa ? mhla_set_isa(given.isa) : MHLA_OK;
    mhla_context *context = NULL;
    if (status == MHLA_OK && (given.threads || given.backend)) {
        const mhla_context_desc desc = {.size = sizeof desc,
                                        .threads = (int)given.threads,
                                        .backend = given.backend && strcmp(given.backend, "pthreads") == 0
                                                       ? MHLA_BACKEND_PTHREADS
                                                       : MHLA_BACKEND_OPENMP};
        status = mhla_context_create(&context, &desc);
    }
    b.context = context;
    const shape *shown = custom() ? &own : NULL;
    if (status == MHLA_OK)
        status = simulated ? bench_simulate(&b, workers, simulated, bench_all, shown) : bench_all(&b, shown);
    code = status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
    if (status == MHLA_OK && !b.begun)
        code = cli_wrong(usage.verb, "nothing to measure: no row of what is named has this --dtype and --operator");
    mhla_context_free(context);
    return (status == MHLA_EINVAL || status == MHLA_ERANGE) && custom() ? CLI_USAGE : code;
}
