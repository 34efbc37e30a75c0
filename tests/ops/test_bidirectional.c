/* Bidirectional MHLA, cross attention and linear attention: every kernel of every instruction set against the reference over a seeded
 * array of awkward shapes, outputs and gradients; the properties that the mathematics promises. */
#include "ops/op.h"
#include "support.h"

/* What is drawn: MHLA or linear attention, of one set of tokens, or of queries and keys that have their own. */
typedef enum family { SELF, LINEAR, CROSS, CROSS_LINEAR } family;

static int is_linear(family f) { return f == LINEAR || f == CROSS_LINEAR; }
static int is_cross(family f) { return f >= CROSS; }

/* One randomly drawn description with its inputs. */
typedef struct shape_case {
    mhla_plan_desc d;
    int64_t B, T, M, Tk, Mk;
    mhla_plan *plan;
    mhla_call call;
    placed q, k, v, o, q2, k2;
    float *mix, *cos, *sin, *key_cos, *key_sin;
    int64_t mix_count;
    int64_t *offsets, *key_offsets;
    int32_t *permutation, *key_permutation;
    char text[200];
} shape_case;

static void fill(rng *r, const placed *p, int64_t B, int64_t T, int64_t H, int64_t D) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t j = 0; j < D; j++) placed_at(p, b, t, h)[j] = rng_signed(r);
}

static void draw_layout(rng *r, shape_case *c) {
    static const int sides[] = {1, 2, 3, 5, 7, 8, 12};
    static const int lengths[] = {1, 2, 63, 64, 65, 130, 257};
    mhla_plan_desc *d = &c->d;
    const int style = rng_below(r, 5);
    if (style == 4) { /* explicit blocks, with or without a permutation */
        c->T = RNG_PICK(r, lengths);
        c->M = 1 + rng_below(r, c->T < 7 ? (int)c->T : 7);
        c->offsets = new_bytes((size_t)(c->M + 1) * sizeof *c->offsets);
        for (int64_t b = 0; b <= c->M; b++) c->offsets[b] = b * c->T / c->M;
        if (c->M > 1 && c->offsets[1] + 1 < c->offsets[2]) c->offsets[1]++;
        d->n_blocks = c->M;
        d->n_tokens = c->T;
        d->block_offsets = c->offsets;
        if (rng_below(r, 2)) {
            c->permutation = new_bytes((size_t)c->T * sizeof *c->permutation);
            for (int64_t i = 0; i < c->T; i++) c->permutation[i] = (int32_t)i;
            for (int64_t i = c->T - 1; i > 0; i--) {
                const int64_t j = rng_below(r, (int)i + 1);
                const int32_t t = c->permutation[i];
                c->permutation[i] = c->permutation[j];
                c->permutation[j] = t;
            }
            d->permutation = c->permutation;
        }
        return;
    }
    d->axes = style == 3 ? 1 : style + 1;
    d->order = rng_below(r, 2) ? MHLA_ORDER_RASTER : MHLA_ORDER_BLOCKS;
    c->T = c->M = 1;
    for (int a = 0; a < d->axes; a++) {
        d->grid[a] = d->axes == 1 ? RNG_PICK(r, lengths) : RNG_PICK(r, sides);
        const int most = d->axes == 1 && d->grid[a] > 17 && style == 0 ? 17 : d->grid[a] < 5 ? d->grid[a] : 5;
        d->blocks[a] = 1 + rng_below(r, most);
        if (style == 3 && d->grid[a] <= 65) d->blocks[a] = d->grid[a]; /* M = T */
        c->T *= d->grid[a];
        c->M *= d->blocks[a];
    }
}

/* The layout of the keys is drawn as that of another case. */
static void draw_key_layout(rng *r, shape_case *c) {
    shape_case other = {.d.size = sizeof other.d};
    mhla_plan_desc *d = &c->d;
    draw_layout(r, &other);
    if (other.offsets == NULL) other.d.order = d->order; /* both have it */
    d->key_axes = other.d.axes;
    memcpy(d->key_grid, other.d.grid, sizeof d->key_grid);
    memcpy(d->key_blocks, other.d.blocks, sizeof d->key_blocks);
    d->key_n_blocks = other.d.n_blocks;
    d->key_n_tokens = other.d.n_tokens;
    d->key_block_offsets = c->key_offsets = other.offsets;
    d->key_permutation = c->key_permutation = other.permutation;
    c->Tk = other.T;
    c->Mk = other.M;
}

static shape_case draw(uint64_t seed, family kind) {
    const int linear = is_linear(kind), cross = is_cross(kind);
    static const int dims[] = {1, 7, 16, 60, 64, 72, 100, 128};
    rng r = {seed};
    shape_case c = {.B = 1 + rng_below(&r, 2)};
    mhla_plan_desc *d = &c.d;
    d->size = sizeof *d;
    d->heads = 1 + rng_below(&r, 3);
    d->key_dim = RNG_PICK(&r, dims);
    d->value_dim = RNG_PICK(&r, dims);
    d->feature = (mhla_feature)rng_below(&r, 3);
    d->feature_eps = rng_below(&r, 2) ? 1e-6f : 0.125f;
    d->denominator = (mhla_denominator)rng_below(&r, linear ? 2 : 3);
    if (linear && d->denominator) d->denominator = MHLA_DEN_NONE;
    if (d->feature == MHLA_FEATURE_IDENTITY && d->denominator != MHLA_DEN_NONE) d->feature = MHLA_FEATURE_ELU;
    if (d->denominator != MHLA_DEN_NONE) d->feature_eps = 0.125f; /* keep away from 1/0 */
    d->scale = rng_below(&r, 2) ? 0.0f : 0.75f;
    if (linear) {
        static const int lengths[] = {1, 2, 63, 64, 65, 1000, 1100, 2049};
        d->kind = MHLA_KIND_LINEAR;
        c.T = RNG_PICK(&r, lengths);
        c.Tk = cross ? RNG_PICK(&r, lengths) : c.T;
    } else {
        d->mix_per_head = rng_below(&r, 2);
        draw_layout(&r, &c);
        int equal = c.offsets == NULL;
        for (int a = 0; a < d->axes; a++) equal = equal && d->grid[a] % d->blocks[a] == 0;
        if (d->denominator == MHLA_DEN_RELEASED && (!equal || cross)) d->denominator = MHLA_DEN_EQ4;
        c.Tk = c.T;
        c.Mk = c.M;
        if (cross) draw_key_layout(&r, &c);
    }
    d->den_eps = 0.25f * (float)(c.Tk * d->key_dim); /* with a small one, M = 1 has dmix = 0 but for rounding */
    if (d->key_dim >= 2 && rng_below(&r, 2)) {
        d->rope = rng_below(&r, 2) ? MHLA_ROPE_HALF : MHLA_ROPE_INTERLEAVED;
        d->rope_dim = rng_below(&r, 2) ? d->key_dim / 2 * 2 : 2 * (1 + rng_below(&r, d->key_dim / 2));
    }
    ASSERT_OK(mhla_plan_create(&c.plan, d));
    if (!linear) {
        assert_int_equal(mhla_plan_tokens(c.plan), c.T);
        assert_int_equal(mhla_plan_blocks(c.plan), c.M);
        assert_int_equal(mhla_plan_key_tokens(c.plan), c.Tk);
        assert_int_equal(mhla_plan_key_blocks(c.plan), c.Mk);
    }
    c.call = (mhla_call){.size = sizeof c.call, .batch = c.B, .tokens = c.T, .kv_tokens = cross ? c.Tk : 0};
    const int H = d->heads, K = d->key_dim, V = d->value_dim;
    c.q = place(rng_below(&r, 3), c.B, c.T, H, K);
    c.k = place(rng_below(&r, 3), c.B, c.Tk, H, K);
    c.v = place(rng_below(&r, 3), c.B, c.Tk, H, V);
    c.o = place(rng_below(&r, 3), c.B, c.T, H, V);
    fill(&r, &c.q, c.B, c.T, H, K);
    fill(&r, &c.k, c.B, c.Tk, H, K);
    fill(&r, &c.v, c.B, c.Tk, H, V);
    c.call.q = c.q.s;
    c.call.k = c.k.s;
    c.call.v = c.v.s;
    c.call.o = c.o.s;
    if (d->denominator != MHLA_DEN_NONE && rng_below(&r, 3) == 0) {
        c.q2 = place(rng_below(&r, 3), c.B, c.T, H, K);
        c.k2 = place(rng_below(&r, 3), c.B, c.Tk, H, K);
        fill(&r, &c.q2, c.B, c.T, H, K);
        fill(&r, &c.k2, c.B, c.Tk, H, K);
        c.call.q2 = c.q2.data;
        c.call.k2 = c.k2.data;
        c.call.q2_strides = c.q2.s;
        c.call.k2_strides = c.k2.s;
    }
    if (!linear) {
        c.mix_count = c.M * c.Mk * (d->mix_per_head ? H : 1);
        c.mix = new_random(&r, c.mix_count);
        for (int64_t i = 0; i < c.mix_count; i++)
            c.mix[i] = d->denominator == MHLA_DEN_NONE ? c.mix[i] : 0.1f + fabsf(c.mix[i]);
    }
    if (d->rope != MHLA_ROPE_NONE) {
        const int tables = cross && rng_below(&r, 4) > 0 ? 2 : 1;
        const int64_t rows = tables == 1 && c.Tk > c.T ? c.Tk : c.T;
        c.cos = new_random(&r, rows * d->rope_dim / 2);
        c.sin = new_random(&r, rows * d->rope_dim / 2);
        c.call.rope_cos = c.cos;
        c.call.rope_sin = c.sin;
        c.call.rope_rows = rows;
        if (tables == 2) {
            c.call.key_rope_cos = c.key_cos = new_random(&r, c.Tk * d->rope_dim / 2);
            c.call.key_rope_sin = c.key_sin = new_random(&r, c.Tk * d->rope_dim / 2);
            c.call.key_rope_rows = c.Tk;
        }
    }
    snprintf(c.text, sizeof c.text,
             "seed %llu kind %d B %lld T %lld, %lld H %d K %d V %d M %lld, %lld axes %d, %d order %d den %d feature %d "
             "rope %d "
             "pair %d",
             (unsigned long long)seed, (int)d->kind, (long long)c.B, (long long)c.T, (long long)c.Tk, H, K, V,
             (long long)c.M, (long long)c.Mk, d->axes, d->key_axes, (int)d->order, (int)d->denominator, (int)d->feature,
             (int)d->rope, c.call.q2 != NULL);
    return c;
}

static void drop(shape_case *c) {
    mhla_plan_free(c->plan);
    placed *all[] = {&c->q, &c->k, &c->v, &c->o, &c->q2, &c->k2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    free(c->mix);
    free(c->cos);
    free(c->sin);
    free(c->key_cos);
    free(c->key_sin);
    free(c->offsets);
    free(c->permutation);
    free(c->key_offsets);
    free(c->key_permutation);
}

/* All gradients of one case, contiguous, poisoned until written. */
enum { DQ, DK, DV, DQ2, DK2, DMIX, GRADS };
typedef struct gradients {
    float *x[GRADS];
    int64_t n[GRADS];
} gradients;

static gradients new_gradients(const shape_case *c, float value) {
    const int64_t rows = c->B * c->d.heads, q = rows * c->T * c->d.key_dim, k = rows * c->Tk * c->d.key_dim;
    const int pair = c->call.q2 != NULL;
    gradients g = {.n = {q, k, rows * c->Tk * c->d.value_dim, pair ? q : 0, pair ? k : 0, c->mix_count}};
    for (int i = 0; i < GRADS; i++)
        if (g.n[i]) {
            g.x[i] = new_poisoned(g.n[i]);
            for (int64_t e = 0; e < g.n[i]; e++) g.x[i][e] = value;
        }
    return g;
}
static mhla_grads as_grads(const gradients *g, int accumulate) {
    return (mhla_grads){.size = sizeof(mhla_grads),
                        .dq = g->x[DQ],
                        .dk = g->x[DK],
                        .dv = g->x[DV],
                        .dq2 = g->x[DQ2],
                        .dk2 = g->x[DK2],
                        .dmix = g->x[DMIX],
                        .accumulate = accumulate};
}
static void free_gradients(gradients *g) {
    for (int i = 0; i < GRADS; i++) free(g->x[i]);
}

static void compare_case(uint64_t seed, family kind, mhla_context *context) {
    static const char *names[GRADS] = {"dq", "dk", "dv", "dq2", "dk2", "dmix"};
    const int half_vectors = mhla_half_vectors;
    mhla_half_vectors = (int)(seed % 2); /* as on a CPU that is not this one, in every second case */
    shape_case c = draw(seed, kind);
    rng r = {seed ^ 77};
    placed truth = c.o, dO = c.o;
    truth.memory = new_poisoned(c.o.count);
    truth.data = truth.memory + (c.o.data - c.o.memory);
    dO.memory = new_poisoned(c.o.count);
    dO.data = dO.memory + (c.o.data - c.o.memory);
    fill(&r, &dO, c.B, c.T, c.d.heads, c.d.value_dim);
    c.call.context = context;
    ASSERT_OK(mhla_forward_reference(c.plan, &c.call, truth.data, c.q.data, c.k.data, c.v.data, c.mix));
    gradients want = new_gradients(&c, NAN);
    const mhla_grads want_grads = as_grads(&want, 0);
    ASSERT_OK(mhla_backward_reference(c.plan, &c.call, &want_grads, dO.data, c.q.data, c.k.data, c.v.data, c.mix));
    const char *isa[8];
    const int isas = isa_names(isa, 8);
    for (int i = 0; i < isas; i++) {
        ASSERT_OK(mhla_set_isa(isa[i]));
        for (int64_t e = 0; e < c.o.count; e++) c.o.memory[e] = NAN;
        ASSERT_OK(mhla_forward(c.plan, &c.call, c.o.data, c.q.data, c.k.data, c.v.data, c.mix, NULL));
        ASSERT_CLOSE(c.o.memory, truth.memory, c.o.count, 2e-5, "%s %s", isa[i],
                     c.text); /* also: nothing else is written */
        gradients got = new_gradients(&c, NAN);
        const mhla_grads got_grads = as_grads(&got, 0);
        ASSERT_OK(mhla_backward(c.plan, &c.call, &got_grads, dO.data, c.q.data, c.k.data, c.v.data, c.mix, NULL));
        for (int g = 0; g < GRADS; g++)
            if (got.n[g]) ASSERT_CLOSE(got.x[g], want.x[g], got.n[g], 5e-5, "%s %s %s", names[g], isa[i], c.text);
        /* accumulated onto 1 */
        gradients more = new_gradients(&c, 1.0f);
        const mhla_grads more_grads = as_grads(&more, 1);
        ASSERT_OK(mhla_backward(c.plan, &c.call, &more_grads, dO.data, c.q.data, c.k.data, c.v.data, c.mix, NULL));
        for (int g = 0; g < GRADS; g++) {
            for (int64_t e = 0; e < got.n[g]; e++) got.x[g][e] += 1.0f;
            if (got.n[g])
                ASSERT_CLOSE(more.x[g], got.x[g], got.n[g], 2e-6, "accumulated %s %s %s", names[g], isa[i], c.text);
        }
        free_gradients(&more);
        free_gradients(&got);
    }
    ASSERT_OK(mhla_set_isa(NULL));
    mhla_half_vectors = half_vectors;
    free_gradients(&want);
    free(truth.memory);
    free(dO.memory);
    drop(&c);
}

static void test_mhla_against_reference(void **state) {
    (void)state;
    mhla_context *context = new_context(3);
    for (uint64_t seed = 1; seed <= 150; seed++) compare_case(seed, SELF, context);
    mhla_context_free(context);
}

static void test_linear_against_reference(void **state) {
    (void)state;
    mhla_context *context = new_context(2);
    for (uint64_t seed = 1; seed <= 24; seed++) compare_case(1000 + seed, LINEAR, context);
    mhla_context_free(context);
}

static void test_cross_against_reference(void **state) {
    (void)state;
    mhla_context *context = new_context(3);
    for (uint64_t seed = 1; seed <= 100; seed++) compare_case(2000 + seed, CROSS, context);
    for (uint64_t seed = 1; seed <= 16; seed++) compare_case(3000 + seed, CROSS_LINEAR, context);
    mhla_context_free(context);
}

/* The reference's gradients against central differences of its own forward in double precision of the loss. */
static double loss(const shape_case *c, const float *weights) {
    const int64_t n = c->B * c->T * c->d.heads * c->d.value_dim;
    float *o = new_poisoned(n);
    mhla_call call = c->call;
    call.o = (mhla_strides){0};
    ASSERT_OK(mhla_forward_reference(c->plan, &call, o, c->q.data, c->k.data, c->v.data, c->mix));
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)o[i] * (double)weights[i];
    free(o);
    return sum;
}

static double difference(const shape_case *c, const float *weights, float *at) {
    const float x = *at, step = 0.01f;
    *at = x + step;
    const double up = loss(c, weights), x1 = (double)*at;
    *at = x - step;
    const double down = loss(c, weights), x0 = (double)*at;
    *at = x;
    return (up - down) / (x1 - x0);
}

static void test_reference_gradients(void **state) {
    (void)state;
    int checked = 0;
    for (uint64_t seed = 5000; checked < 24; seed++) {
        shape_case c = draw(seed, (family)(checked % 4));
        if (c.T > 70 || c.Tk > 70 || c.d.key_dim > 16 || c.d.value_dim > 16) {
            drop(&c);
            continue;
        }
        checked++;
        rng r = {seed};
        float *weights = new_random(&r, c.B * c.T * c.d.heads * c.d.value_dim);
        mhla_call call = c.call;
        call.o = (mhla_strides){0};
        gradients g = new_gradients(&c, NAN);
        const mhla_grads grads = as_grads(&g, 0);
        ASSERT_OK(mhla_backward_reference(c.plan, &call, &grads, weights, c.q.data, c.k.data, c.v.data, c.mix));
        const placed *inputs[] = {&c.q, &c.k, &c.v, &c.q2, &c.k2};
        for (int i = 0; i < DMIX; i++) {
            if (!g.n[i]) continue;
            const int64_t D = i == DV ? c.d.value_dim : c.d.key_dim, H = c.d.heads;
            double size = 1e-3;
            for (int64_t e = 0; e < g.n[i]; e++) size = fmax(size, fabs((double)g.x[i][e]));
            for (int tries = 0; tries < 6; tries++) {
                const int64_t e = rng_below(&r, (int)g.n[i]), row = e / D;
                const int64_t T = i == DQ || i == DQ2 ? c.T : c.Tk;
                float *at = placed_at(inputs[i], row / H / T, row / H % T, row % H) + e % D;
                if (i != DV && fabsf(*at) < 0.02f) continue; /* the kink of relu */
                const double want = difference(&c, weights, at);
                if (fabs(want - (double)g.x[i][e]) > 2e-3 * size)
                    fail_msg("gradient %d: %g, differences give %g: %s", i, (double)g.x[i][e], want, c.text);
            }
        }
        for (int tries = 0; tries < 6 && c.mix; tries++) {
            const int64_t e = rng_below(&r, (int)c.mix_count);
            double size = 1e-3;
            for (int64_t j = 0; j < c.mix_count; j++) size = fmax(size, fabs((double)g.x[DMIX][j]));
            const double want = difference(&c, weights, c.mix + e);
            if (fabs(want - (double)g.x[DMIX][e]) > 2e-3 * size)
                fail_msg("dmix: %g, differences give %g: %s", (double)g.x[DMIX][e], want, c.text);
        }
        free(weights);
        free_gradients(&g);
        drop(&c);
    }
}

/* ---- Properties ---- */

static float *forward(const shape_case *c, mhla_context *context) {
    float *o = new_poisoned(c->B * c->T * c->d.heads * c->d.value_dim);
    mhla_call call = c->call;
    call.context = context;
    call.o = (mhla_strides){0};
    ASSERT_OK(mhla_forward(c->plan, &call, o, c->q.data, c->k.data, c->v.data, c->mix, NULL));
    return o;
}

static gradients backward(const shape_case *c, mhla_context *context, const float *dO) {
    gradients g = new_gradients(c, NAN);
    const mhla_grads grads = as_grads(&g, 0);
    mhla_call call = c->call;
    call.context = context;
    call.o = (mhla_strides){0};
    ASSERT_OK(mhla_backward(c->plan, &call, &grads, dO, c->q.data, c->k.data, c->v.data, c->mix, NULL));
    return g;
}

static void test_threads_change_no_bit(void **state) {
    (void)state;
    for (uint64_t seed = 200; seed < 250; seed++) {
        shape_case c = draw(seed, (family)((seed % 5 == 0) + (seed < 230 ? 0 : CROSS)));
        const int64_t n = c.B * c.T * c.d.heads * c.d.value_dim;
        rng r = {seed};
        float *dO = new_random(&r, n);
        mhla_context *one = new_context(1);
        float *want = forward(&c, one);
        gradients want_grads = backward(&c, one, dO);
        mhla_context_free(one);
        for (int threads = 2; threads <= 64; threads = threads < 5 ? threads + 1 : 64 + (threads == 64)) {
            mhla_context *many = new_context(threads);
            float *got = forward(&c, many);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
            gradients got_grads = backward(&c, many, dO);
            for (int g = 0; g < GRADS; g++)
                if (got_grads.n[g]) assert_memory_equal(got_grads.x[g], want_grads.x[g], (size_t)got_grads.n[g] * 4);
            free_gradients(&got_grads);
            free(got);
            mhla_context_free(many);
        }
        free_gradients(&want_grads);
        free(want);
        free(dO);
        drop(&c);
    }
}

/* One block with m = 1 is linear attention; the first of two batch entries alone gives the same bits. */
static void test_one_block_is_linear_attention(void **state) {
    (void)state;
    enum { B = 2, T = 90, H = 2, K = 24, V = 40 };
    rng r = {9};
    float *q = new_random(&r, B * T * H * K), *k = new_random(&r, B * T * H * K), *v = new_random(&r, B * T * H * V);
    float *a = new_poisoned(B * T * H * V), *b = new_poisoned(B * T * H * V);
    const float one = 1.0f;
    mhla_plan_desc d = {.size = sizeof d,
                        .heads = H,
                        .key_dim = K,
                        .value_dim = V,
                        .feature_eps = 0.01f,
                        .axes = 2,
                        .grid = {9, 10},
                        .blocks = {1, 1}};
    mhla_plan *mhla, *linear;
    ASSERT_OK(mhla_plan_create(&mhla, &d));
    mhla_plan_desc l = {
        .size = sizeof l, .kind = MHLA_KIND_LINEAR, .heads = H, .key_dim = K, .value_dim = V, .feature_eps = 0.01f};
    ASSERT_OK(mhla_plan_create(&linear, &l));
    mhla_call call = {.size = sizeof call, .batch = B, .tokens = T};
    ASSERT_OK(mhla_forward(mhla, &call, a, q, k, v, &one, NULL));
    ASSERT_OK(mhla_forward(linear, &call, b, q, k, v, NULL, NULL));
    ASSERT_CLOSE(a, b, B * T * H * V, 1e-6, "one block");
    call.batch = 1;
    float *first = new_poisoned(T * H * V);
    ASSERT_OK(mhla_forward(mhla, &call, first, q, k, v, &one, NULL));
    assert_memory_equal(first, a, T * H * V * sizeof *a);
    mhla_plan_free(mhla);
    mhla_plan_free(linear);
    free(q), free(k), free(v), free(a), free(b), free(first);
}

/* Keys that lie in another order in memory, and so have another layout, but make the same sums in the same order: everything
 * has the bits of the operator that has one layout. */
static void test_square_cross_changes_no_bit(void **state) {
    (void)state;
    for (uint64_t seed = 400; seed < 440; seed++) {
        shape_case c = draw(seed, SELF);
        const mhla_layout *l = c.plan->queries;
        const int64_t H = c.d.heads, K = c.d.key_dim, V = c.d.value_dim, n = c.B * c.T * H;
        if (l->perm == NULL || c.call.q2 || c.d.denominator == MHLA_DEN_RELEASED) {
            drop(&c);
            continue;
        }
        shape_case moved = c;
        moved.d.key_axes = 0;
        moved.d.key_n_blocks = c.M;
        moved.d.key_n_tokens = c.T;
        moved.d.key_block_offsets = l->offsets;
        ASSERT_OK(mhla_plan_create(&moved.plan, &moved.d));
        assert_ptr_equal(c.plan->keys, c.plan->queries);
        moved.k = place(0, c.B, c.T, H, K);
        moved.v = place(0, c.B, c.T, H, V);
        moved.call.k = moved.k.s;
        moved.call.v = moved.v.s;
        const int64_t half = c.d.rope_dim / 2;
        for (int64_t p = 0; p < c.T; p++)
            for (int64_t b = 0; b < c.B; b++)
                for (int64_t h = 0; h < H; h++) {
                    memcpy(placed_at(&moved.k, b, p, h), placed_at(&c.k, b, l->perm[p], h), (size_t)K * sizeof(float));
                    memcpy(placed_at(&moved.v, b, p, h), placed_at(&c.v, b, l->perm[p], h), (size_t)V * sizeof(float));
                }
        if (half) { /* rows of the table move, too */
            moved.call.key_rope_cos = moved.key_cos = new_poisoned(c.T * half);
            moved.call.key_rope_sin = moved.key_sin = new_poisoned(c.T * half);
            moved.call.key_rope_rows = c.T;
        }
        for (int64_t p = 0; p < c.T && half; p++) {
            memcpy(moved.key_cos + p * half, c.cos + l->perm[p] * half, (size_t)half * sizeof(float));
            memcpy(moved.key_sin + p * half, c.sin + l->perm[p] * half, (size_t)half * sizeof(float));
        }
        rng r = {seed};
        float *dO = new_random(&r, n * V);
        mhla_context *context = new_context(3);
        float *want = forward(&c, context), *got = forward(&moved, context);
        assert_memory_equal(got, want, (size_t)(n * V) * sizeof *got);
        gradients a = backward(&c, context, dO), b = backward(&moved, context, dO);
        assert_memory_equal(b.x[DQ], a.x[DQ], (size_t)a.n[DQ] * sizeof(float));
        assert_memory_equal(b.x[DMIX], a.x[DMIX], (size_t)a.n[DMIX] * sizeof(float));
        for (int64_t i = 0; i < c.B; i++)
            for (int64_t p = 0; p < c.T; p++) {
                const int64_t to = i * c.T + p, from = i * c.T + l->perm[p];
                assert_memory_equal(b.x[DK] + to * H * K, a.x[DK] + from * H * K, (size_t)(H * K) * sizeof(float));
                assert_memory_equal(b.x[DV] + to * H * V, a.x[DV] + from * H * V, (size_t)(H * V) * sizeof(float));
            }
        free_gradients(&a);
        free_gradients(&b);
        free(want), free(got), free(dO);
        mhla_context_free(context);
        mhla_plan_free(moved.plan);
        free(moved.k.memory), free(moved.v.memory), free(moved.key_cos), free(moved.key_sin);
        drop(&c);
    }
}

/* mhla_cross_attention is its plan; keys with the queries' layout, said again, are the operator with one layout. */
static void test_one_shot(void **state) {
    (void)state;
    enum { B = 2, TQ = 15, TK = 24, H = 2, K = 12, V = 20 };
    static const int grid[] = {3, 5}, blocks[] = {2, 2}, key_grid[] = {24}, key_blocks[] = {5};
    rng r = {12};
    float *q = new_random(&r, B * TQ * H * K), *k = new_random(&r, B * TK * H * K), *v = new_random(&r, B * TK * H * V);
    float *mix = new_random(&r, 4 * 5), *a = new_poisoned(B * TQ * H * V), *b = new_poisoned(B * TQ * H * V);
    for (int i = 0; i < 4 * 5; i++) mix[i] = 0.1f + fabsf(mix[i]);
    mhla_plan_desc d = {.size = sizeof d,
                        .heads = H,
                        .key_dim = K,
                        .value_dim = V,
                        .feature_eps = 1e-6f,
                        .den_eps = 1e-6f,
                        .axes = 2,
                        .grid = {3, 5},
                        .blocks = {2, 2},
                        .key_axes = 1,
                        .key_grid = {24},
                        .key_blocks = {5}};
    mhla_plan *plan;
    ASSERT_OK(mhla_plan_create(&plan, &d));
    const mhla_call call = {.size = sizeof call, .batch = B, .tokens = TQ};
    ASSERT_OK(mhla_forward(plan, &call, a, q, k, v, mix, NULL));
    ASSERT_OK(mhla_cross_attention(b, q, k, v, mix, B, TQ, TK, H, K, V, 2, grid, blocks, 1, key_grid, key_blocks));
    assert_memory_equal(a, b, B * TQ * H * V * sizeof *a);
    ASSERT_FAILS(mhla_cross_attention(b, q, k, v, mix, B, TQ, TK, H, K, V, 2, grid, blocks, 4, key_grid, key_blocks),
                 MHLA_EINVAL, "key_axes is 4");
    ASSERT_FAILS(mhla_cross_attention(b, q, k, v, mix, B, TQ, TK, H, K, V, 2, grid, blocks, 1, NULL, key_blocks),
                 MHLA_EINVAL, "key_grid or key_blocks is NULL");
    ASSERT_FAILS(mhla_cross_attention(b, q, k, v, mix, B, TQ, 23, H, K, V, 2, grid, blocks, 1, key_grid, key_blocks),
                 MHLA_EINVAL, "kv_tokens is 23: the plan's keys are 24");
    mhla_plan_free(plan);
    ASSERT_OK(mhla_cross_attention(a, q, k, v, mix, 1, TQ, TQ, H, K, V, 2, grid, blocks, 2, grid, blocks));
    ASSERT_OK(mhla_attention(b, q, k, v, mix, 1, TQ, H, K, V, 2, grid, blocks));
    assert_memory_equal(a, b, TQ * H * V * sizeof *a);
    free(q), free(k), free(v), free(mix), free(a), free(b);
}

/* bfloat16 storage: inputs read exactly, results within bfloat16 of the reference on the same inputs. */
static void test_bf16(void **state) {
    (void)state;
    for (uint64_t seed = 300; seed < 350; seed++) {
        shape_case c = draw(seed, (family)((seed % 6 == 0) + (seed < 330 ? 0 : CROSS)));
        const int64_t H = c.d.heads, K = c.d.key_dim, V = c.d.value_dim, n = c.B * c.T * H * V;
        const int64_t queries = c.B * c.T * H, keys = c.B * c.Tk * H, count = (queries + keys) * (K + V);
        rng r = {seed};
        float *x = new_random(&r, count);
        uint16_t *all = new_bf16(x, count);
        const uint16_t *q = all, *k = q + queries * K, *v = k + keys * K, *dO = v + keys * V;
        mhla_plan_desc d = c.d;
        d.dtype = MHLA_BF16;
        mhla_plan *plan;
        ASSERT_OK(mhla_plan_create(&plan, &d));
        mhla_call call = c.call;
        call.q = call.k = call.v = call.o = call.q2_strides = call.k2_strides = (mhla_strides){0};
        if (call.q2) call.q2 = c.T == c.Tk ? k : q, call.k2 = c.T == c.Tk ? q : k;
        uint16_t *want = new_bytes((size_t)n * 2), *got = new_bytes((size_t)n * 2);
        ASSERT_OK(mhla_forward_reference(plan, &call, want, q, k, v, c.mix));
        gradients want_grads = new_gradients(&c, NAN);
        const mhla_grads wg = as_grads(&want_grads, 0);
        ASSERT_OK(mhla_backward_reference(plan, &call, &wg, dO, q, k, v, c.mix));
        const char *isa[8];
        const int isas = isa_names(isa, 8);
        for (int i = 0; i < isas; i++) {
            ASSERT_OK(mhla_set_isa(isa[i]));
            memset(got, 0xff, (size_t)n * 2);
            ASSERT_OK(mhla_forward(plan, &call, got, q, k, v, c.mix, NULL));
            float *a = new_poisoned(n), *b = new_poisoned(n);
            for (int64_t e = 0; e < n; e++) a[e] = from_bf16(got[e]), b[e] = from_bf16(want[e]);
            ASSERT_CLOSE(a, b, n, 0.02, "bf16 %s %s", isa[i], c.text);
            free(a), free(b);
            gradients got_grads = new_gradients(&c, NAN);
            const mhla_grads gg = as_grads(&got_grads, 0);
            ASSERT_OK(mhla_backward(plan, &call, &gg, dO, q, k, v, c.mix, NULL));
            for (int g = 0; g < GRADS; g++)
                if (got_grads.n[g])
                    ASSERT_CLOSE(got_grads.x[g], want_grads.x[g], got_grads.n[g], 0.02, "bf16 grad %d %s %s", g, isa[i],
                                 c.text);
            free_gradients(&got_grads);
        }
        ASSERT_OK(mhla_set_isa(NULL));
        free_gradients(&want_grads);
        mhla_plan_free(plan);
        free(x), free(all), free(want), free(got);
        drop(&c);
    }
}

/* NaN goes where the mathematics takes it, no further: a NaN query spoils its own row only (eq4, none). */
static void test_nan_stays_in_its_row(void **state) {
    (void)state;
    enum { T = 64, K = 20, V = 24, H = 2 };
    rng r = {4};
    float *q = new_random(&r, T * H * K), *k = new_random(&r, T * H * K), *v = new_random(&r, T * H * V);
    float *clean = new_poisoned(T * H * V), *dirty = new_poisoned(T * H * V), mix[16];
    mhla_plan_desc d = {.size = sizeof d,
                        .heads = H,
                        .key_dim = K,
                        .value_dim = V,
                        .feature_eps = 0.1f,
                        .axes = 2,
                        .grid = {8, 8},
                        .blocks = {2, 2}};
    const int blocks[] = {2, 2};
    ASSERT_OK(mhla_mix_fill(mix, MHLA_MIX_PAPER, 2, blocks, 0));
    mhla_plan *plan;
    ASSERT_OK(mhla_plan_create(&plan, &d));
    const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = T};
    ASSERT_OK(mhla_forward(plan, &call, clean, q, k, v, mix, NULL));
    q[(37 * H + 1) * K + 3] = NAN;
    ASSERT_OK(mhla_forward(plan, &call, dirty, q, k, v, mix, NULL));
    for (int row = 0; row < T * H; row++) {
        if (row == 37 * H + 1)
            for (int j = 0; j < V; j++) assert_true(isnan(dirty[row * V + j]));
        else
            assert_memory_equal(dirty + row * V, clean + row * V, V * sizeof *clean);
    }
    mhla_plan_free(plan);
    free(q), free(k), free(v), free(clean), free(dirty);
}

/* ---- Bad input: a status, a sentence, nothing written ---- */

static void test_bad_plans(void **state) {
    (void)state;
    const mhla_plan_desc good = {
        .size = sizeof good, .heads = 2, .key_dim = 8, .value_dim = 8, .axes = 2, .grid = {4, 4}, .blocks = {2, 2}};
    mhla_plan *plan;
    ASSERT_FAILS(mhla_plan_create(NULL, &good), MHLA_EINVAL, "plan is NULL");
    ASSERT_FAILS(mhla_plan_create(&plan, NULL), MHLA_EINVAL, "plan_desc is NULL");
#define BAD(change, text)                                                                                              \
    do {                                                                                                               \
        mhla_plan_desc d = good;                                                                                       \
        change;                                                                                                        \
        plan = (mhla_plan *)&d;                                                                                        \
        ASSERT_FAILS(mhla_plan_create(&plan, &d), MHLA_EINVAL, text);                                                  \
        assert_null(plan);                                                                                             \
    } while (0)
    BAD(d.size = 0, "size is 0");
    BAD(d.heads = 0, "heads is 0");
    BAD(d.heads = -1, "heads is -1");
    BAD(d.key_dim = 0, "key_dim is 0");
    BAD(d.key_dim = 1025, "key_dim is 1025");
    BAD(d.value_dim = 513, "value_dim is 513");
    BAD(d.kv_heads = 3, "not a multiple");
    BAD(d.kv_heads = 1, "kv_heads is 1");
    BAD(d.dtype = (mhla_dtype)7, "dtype is 7");
    BAD(d.kind = (mhla_kind)(MHLA_KIND_GATED_DELTA + 1), "kind is 12");
    BAD(d.feature = (mhla_feature)9, "feature is 9");
    BAD(d.axes = 4, "axes is 4");
    BAD(d.axes = 0, "n_tokens is 0");
    BAD(d.grid[1] = 0, "grid[1] is 0");
    BAD(d.blocks[1] = 5, "blocks[1] is 5");
    BAD(d.blocks[0] = 0, "blocks[0] is 0");
    BAD((d.grid[0] = 1 << 20, d.grid[1] = 1 << 20), "more than");
    BAD((d.denominator = MHLA_DEN_RELEASED, d.blocks[0] = 3), "equal blocks");
    BAD(d.rope_dim = 4, "rope_dim is 4");
    BAD((d.rope = MHLA_ROPE_HALF, d.rope_dim = 10), "rope_dim is 10");
    BAD((d.rope = MHLA_ROPE_HALF, d.rope_dim = 3), "rope_dim is 3");
    BAD(d.chunk = 64, "chunk");
    BAD(d.n_blocks = 2, "choose one");
    BAD(d.scale = NAN, "NaN");
    const int64_t offsets[] = {0, 3, 3, 16}, decreasing[] = {0, 9, 4, 16};
    const int32_t twice[16] = {0, 1, 2, 3, 3};
    BAD((d.axes = 0, d.n_tokens = 16, d.n_blocks = 3, d.block_offsets = offsets), "may not be empty");
    BAD((d.axes = 0, d.n_tokens = 16, d.n_blocks = 3, d.block_offsets = decreasing), "block_offsets[2] is 4");
    BAD((d.axes = 0, d.n_tokens = 17, d.n_blocks = 3, d.block_offsets = offsets), "expected 0 to n_tokens");
    BAD((d.axes = 0, d.n_tokens = 2, d.n_blocks = 3, d.block_offsets = offsets), "n_blocks is 3");
    const int64_t one[] = {0, 16};
    BAD((d.axes = 0, d.n_tokens = 16, d.n_blocks = 1, d.block_offsets = one, d.permutation = twice),
        "permutation[4] is 3");
    /* the layout of keys */
    BAD((d.key_axes = 4), "key_axes is 4");
    BAD((d.key_axes = 1), "key_grid[0] is 0");
    BAD((d.key_axes = 1, d.key_grid[0] = 4, d.key_blocks[0] = 5), "key_blocks[0] is 5: expected 1 to key_grid[0] = 4");
    BAD((d.key_n_blocks = 2), "key_n_tokens is 0");
    BAD((d.key_axes = 1, d.key_n_blocks = 2), "choose one");
    BAD((d.key_n_tokens = 16, d.key_n_blocks = 3), "key_block_offsets is NULL");
    BAD((d.key_n_tokens = 16, d.key_n_blocks = 3, d.key_block_offsets = offsets), "key_block_offsets[2] is 3");
    BAD((d.key_n_tokens = 16, d.key_n_blocks = 1, d.key_block_offsets = one, d.key_permutation = twice),
        "key_permutation[4] is 3");
    BAD((d.denominator = MHLA_DEN_RELEASED, d.key_axes = 1, d.key_grid[0] = 16, d.key_blocks[0] = 4), "equal layouts");
    BAD((d.kind = MHLA_KIND_LINEAR, d.axes = 0, d.key_axes = 1, d.key_grid[0] = 16, d.key_blocks[0] = 4),
        "only bidirectional MHLA has a layout of keys");
#undef BAD
    struct {
        mhla_plan_desc d;
        int extra;
    } newer = {.d = good, .extra = 1};
    newer.d.size = sizeof newer;
    ASSERT_FAILS(mhla_plan_create(&plan, &newer.d), MHLA_ENOTSUP, "does not know");
}

static void test_bad_calls(void **state) {
    (void)state;
    enum { N = 16 * 2 * 8 };
    float memory[5][N], o[N], mix[16];
    for (int i = 0; i < N; i++) o[i] = 7.0f;
    const mhla_plan_desc desc = {
        .size = sizeof desc, .heads = 2, .key_dim = 8, .value_dim = 8, .axes = 2, .grid = {4, 4}, .blocks = {2, 2}};
    mhla_plan *plan;
    ASSERT_OK(mhla_plan_create(&plan, &desc));
    const mhla_call good = {.size = sizeof good, .batch = 1, .tokens = 16};
    float *q = memory[0], *k = memory[1], *v = memory[2];
    ASSERT_FAILS(mhla_forward(NULL, &good, o, q, k, v, mix, NULL), MHLA_EINVAL, "plan is NULL");
    ASSERT_FAILS(mhla_forward(plan, NULL, o, q, k, v, mix, NULL), MHLA_EINVAL, "call is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, NULL, q, k, v, mix, NULL), MHLA_EINVAL, "o is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, o, NULL, k, v, mix, NULL), MHLA_EINVAL, "q is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, o, q, NULL, v, mix, NULL), MHLA_EINVAL, "k is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, o, q, k, NULL, mix, NULL), MHLA_EINVAL, "v is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, o, q, k, v, NULL, NULL), MHLA_EINVAL, "mix is NULL");
    ASSERT_FAILS(mhla_forward(plan, &good, q, q, k, v, mix, NULL), MHLA_EINVAL, "o overlaps q");
    ASSERT_FAILS(mhla_forward(plan, &good, k + 8, q, k, v, mix, NULL), MHLA_EINVAL, "o overlaps k");
    ASSERT_FAILS(mhla_forward(plan, &good, o, q, k, v, mix, (char *)memory[3] + 4), MHLA_EINVAL, "not aligned");
#define BAD(change, text)                                                                                              \
    do {                                                                                                               \
        mhla_call c = good;                                                                                            \
        change;                                                                                                        \
        ASSERT_FAILS(mhla_forward(plan, &c, o, q, k, v, mix, NULL), MHLA_EINVAL, text);                                \
        assert_int_equal(mhla_forward_workspace(plan, &c), 0);                                                         \
    } while (0)
    BAD(c.size = 4, "size is 4");
    BAD(c.batch = 0, "batch is 0");
    BAD(c.tokens = -1, "tokens is -1");
    BAD(c.tokens = 17, "tokens is 17: the plan's grid has 16");
    BAD(c.batch = INT64_MAX / 2, "too many");
    BAD((c.q = (mhla_strides){INT64_MAX / 2, 8, 8}, c.batch = 3), "too large");
    BAD((c.k = (mhla_strides){1, -8, 8}), "negative");
    const int64_t cu[] = {0, 16};
    BAD((c.cu_seqlens = cu, c.sequences = 1), "cu_seqlens is given");
    BAD(c.past = 3, "past");
    BAD(c.q2 = q, "one of q2 and k2");
    BAD(c.kv_tokens = 15, "kv_tokens is 15: the plan's keys are 16");
    BAD((c.key_rope_cos = q, c.key_rope_sin = q, c.key_rope_rows = 16), "rope is MHLA_ROPE_NONE");
#undef BAD
    mhla_call self = good;
    self.o = (mhla_strides){128, 4, 8};
    ASSERT_FAILS(mhla_forward(plan, &self, o, q, k, v, mix, NULL), MHLA_EINVAL, "overlap");
    mhla_grads grads = {.size = sizeof grads, .dq = q};
    ASSERT_FAILS(mhla_backward(plan, &good, &grads, o, q, k, v, mix, NULL), MHLA_EINVAL, "dq overlaps q");
    ASSERT_FAILS(mhla_backward(plan, &good, NULL, o, q, k, v, mix, NULL), MHLA_EINVAL, "grads is NULL");
    grads.dq = memory[3];
    grads.dk = memory[3] + 4;
    ASSERT_FAILS(mhla_backward(plan, &good, &grads, o, q, k, v, mix, NULL), MHLA_EINVAL, "dk overlaps dq");
    for (int i = 0; i < N; i++) assert_true(o[i] == 7.0f);
    mhla_plan_free(plan);
}

/* Slices of one fused qkv buffer, with the output in a fourth slice of the same rows, are no overlap. */
static void test_interleaved_slices(void **state) {
    (void)state;
    enum { T = 16, H = 2, K = 8 };
    rng r = {11};
    float *fused = new_random(&r, T * 4 * H * K), mix[4] = {1, 0.5f, 0.25f, 1};
    mhla_plan_desc d = {.size = sizeof d,
                        .heads = H,
                        .key_dim = K,
                        .value_dim = K,
                        .feature_eps = 0.1f,
                        .axes = 1,
                        .grid = {T},
                        .blocks = {2}};
    mhla_plan *plan;
    ASSERT_OK(mhla_plan_create(&plan, &d));
    const mhla_strides s = {T * 4 * H * K, 4 * H * K, K};
    const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = T, .q = s, .k = s, .v = s, .o = s};
    ASSERT_OK(mhla_forward(plan, &call, fused + 3 * H * K, fused, fused + H * K, fused + 2 * H * K, mix, NULL));
    mhla_plan_free(plan);
    free(fused);
}

/* ---- Out of memory ---- */

static void test_out_of_memory(void **state) {
    (void)state;
    enum { T = 12, H = 1, K = 4 };
    float q[T * K] = {0}, o[T * K], mix[4] = {1, 1, 1, 1}, dq[T * K];
    mhla_set_allocator(scarce_alloc, scarce_free);
    int done = 0;
    for (int n = 0; !done; n++) {
        scarce.allowed = n;
        mhla_plan *plan = NULL;
        mhla_plan_desc d = {.size = sizeof d,
                            .heads = H,
                            .key_dim = K,
                            .value_dim = K,
                            .axes = 2,
                            .grid = {4, 3},
                            .blocks = {2, 1},
                            .key_axes = 2,
                            .key_grid = {3, 4},
                            .key_blocks = {1, 2}};
        mhla_status status = mhla_plan_create(&plan, &d);
        const mhla_call call = {.size = sizeof call, .batch = 1, .tokens = T};
        const mhla_grads grads = {.size = sizeof grads, .dq = dq};
        if (status == MHLA_OK) status = mhla_forward(plan, &call, o, q, q, q, mix, NULL);
        if (status == MHLA_OK) status = mhla_forward_reference(plan, &call, o, q, q, q, mix);
        if (status == MHLA_OK) status = mhla_backward(plan, &call, &grads, o, q, q, q, mix, NULL);
        if (status == MHLA_OK) status = mhla_backward_reference(plan, &call, &grads, o, q, q, q, mix);
        assert_true(status == MHLA_OK || status == MHLA_ENOMEM);
        done = status == MHLA_OK;
        mhla_plan_free(plan);
        assert_int_equal(scarce.living, 0);
        assert_in_range(n, 0, 50);
    }
    mhla_set_allocator(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mhla_against_reference),
        cmocka_unit_test(test_linear_against_reference),
        cmocka_unit_test(test_cross_against_reference),
        cmocka_unit_test(test_reference_gradients),
        cmocka_unit_test(test_threads_change_no_bit),
        cmocka_unit_test(test_one_block_is_linear_attention),
        cmocka_unit_test(test_square_cross_changes_no_bit),
        cmocka_unit_test(test_one_shot),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_nan_stays_in_its_row),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_interleaved_slices),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
