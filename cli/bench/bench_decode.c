/* The benchmark's decoding: the time of one layer-token of the 340M language model (4 heads, 128x256, chunks of 64).
 *
 * "step": many sequences in turn, so that no state is in a cache when its token comes, as with the layers of a model.
 * Beside it stands the time of reading what a token has to read, the mixture P and half a chunk of keys and values, at
 * the bandwidth measured in the same run. "clamp": one sequence under MHLA_BEYOND_CLAMP, far beyond its 32 chunks.
 *
 * A token's cost depends on its place in the chunk, and a chunk that closes costs more: calls are timed one by one and
 * kept by place; what is printed is the mean over the places of the best, or the median, at each, and the best of the
 * slowest place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { H = 4, K = 128, V = 256, C = 64, M = 32, STEPS_KEPT = 3 * C };
enum { PLACES = 24 * C, KEPT = 32 }; /* 24 chunks: work done ahead for 2, 3, 4, 6 or 8 chunks is seen at its place */

static const struct decode_row {
    const char *name;
    int batch;      /* step: sequences in one call */
    int64_t tokens; /* clamp: where in the sequence */
} rows[] = {
    {"step", 1, 0},          {"step-16", 16, 0},        {"clamp-2k", 1, 2048},
    {"clamp-16k", 1, 16384}, {"clamp-128k", 1, 131072}, {"clamp-1m", 1, 1000000},
};
enum { ROWS = sizeof rows / sizeof *rows };

int bench_decode_has(const char *shape) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, shape) == 0) return 1;
    return 0;
}

typedef struct decoder {
    problem p; /* plan, mix, and inputs of PIECE tokens for feeding */
    const bench *b;
    mhla_state **states;
    int count, batch;
} decoder;

enum { PIECE = 4096 };

static mhla_status decoder_create(decoder *d, const bench *b, mhla_dtype dtype, int beyond) {
    *d = (decoder){.b = b};
    const problem_desc desc = {
        .seed = 1,
        .call = {.batch = 1, .tokens = beyond ? PIECE : M * C, .context = b->context},
        .plan = {.kind = MHLA_KIND_CAUSAL,
                 .dtype = dtype,
                 .heads = H,
                 .key_dim = K,
                 .value_dim = V,
                 .chunk = C,
                 .chunks = M,
                 .denominator = MHLA_DEN_NONE,
                 .beyond = beyond ? MHLA_BEYOND_CLAMP : MHLA_BEYOND_ERROR},
    };
    return problem_create(&d->p, &desc);
}

static void decoder_free(decoder *d) {
    for (int i = 0; i < d->count; i++) mhla_state_free(d->states[i]);
    free(d->states);
    problem_free(&d->p);
}

/* `tokens` tokens to each of `n` states; inputs are the first n * tokens of the problem's. */
static mhla_status feed(decoder *d, mhla_state *const *states, int n, int64_t tokens) {
    mhla_call call = d->p.call;
    call.batch = n;
    call.tokens = tokens;
    return mhla_step(d->p.plan, &call, states, n, d->p.o, d->p.q, d->p.k, d->p.v, d->p.mix);
}

/* ---- Out of cache ---- */

/* What a token reads: P and, on average, half a chunk of k and v. */
static double bytes_read(mhla_dtype dtype) {
    return 4.0 * H * K * V + (dtype == MHLA_F32 ? 4.0 : 2.0) * H * (K + V) * C / 2.0;
}

/* States at staggered places of their third chunk, so that every round has its share of chunks that close. */
static mhla_status stagger(decoder *d) {
    mhla_status status = MHLA_OK;
    for (int i = 0; i < d->count && status == MHLA_OK; i++) {
        if (mhla_state_tokens(d->states[i]) > 2 * C)
            status = mhla_state_rollback(d->states[i], 2 * C, d->p.plan, d->p.mix);
        else
            status = feed(d, &d->states[i], 1, 2 * C);
        const int64_t more = (int64_t)(i / d->batch * d->batch) * C / d->count; /* alike within a call */
        if (status == MHLA_OK && more) status = feed(d, &d->states[i], 1, more);
    }
    return status;
}

static mhla_status make_states(decoder *d, mhla_dtype dtype, int batch) {
    mhla_cpu_info info = {.size = sizeof info};
    mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return status;
    double cache = info.l3 ? (double)info.l3 : 32e6;
    if (cache > 64e6) cache = 64e6; /* what one core of a large CPU has; some report the sum of all */
    d->batch = batch;
    int count = (int)(2.0 * cache / bytes_read(dtype)) + 1;
    count = (count + batch - 1) / batch * batch;
    d->states = calloc((size_t)count, sizeof(mhla_state *));
    if (d->states == NULL) return MHLA_ENOMEM;
    while (d->count < count && status == MHLA_OK) {
        status = mhla_state_create(&d->states[d->count], d->p.plan, d->p.mix);
        if (status == MHLA_OK) d->count++;
    }
    return status == MHLA_OK ? stagger(d) : status;
}

/* ---- Times by place ---- */

typedef struct places {
    float seconds[PLACES][KEPT]; /* the latest, per token */
    float best[PLACES];
    int64_t count[PLACES];
} places;

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* One token for each of `n` states at the same place. */
static mhla_status timed_step(decoder *d, mhla_state *const *states, int n, places *at, double *spent) {
    const int place = (int)(mhla_state_tokens(states[0]) % PLACES);
    const double since = now_seconds(), start = work_begin(place);
    const mhla_status status = feed(d, states, n, 1);
    const double took = work_end() - start;
    const float each = (float)(took / n);
    if (at->count[place] == 0 || each < at->best[place]) at->best[place] = each;
    at->seconds[place][at->count[place]++ % KEPT] = each;
    *spent += now_seconds() - since;
    return status;
}

/* Go on? Until the time is over and every place was seen, but not for ever on a machine that is busy. */
static int unfinished(const decoder *d, double spent, int64_t done, int64_t least) {
    return spent < d->b->seconds || (done < least && spent < 5.0 * d->b->seconds);
}

/* Means over the places; returns the best of the slowest place, where a chunk closes. */
static double summarise(places *at, timing *t) {
    double best = 0.0, median = 0.0, slowest = 0.0;
    int visited = 0;
    for (int i = 0; i < PLACES; i++) {
        const int n = at->count[i] < KEPT ? (int)at->count[i] : KEPT;
        if (n == 0) continue;
        qsort(at->seconds[i], (size_t)n, sizeof(float), by_value);
        best += (double)at->best[i];
        if ((double)at->best[i] > slowest) slowest = (double)at->best[i];
        median += (double)at->seconds[i][n / 2];
        visited++;
    }
    t->best = best / visited;
    t->median = median / visited;
    return slowest;
}

static mhla_status time_steps(decoder *d, places *at, double *bandwidth) {
    mhla_status status = MHLA_OK;
    *bandwidth = bench_rates(d->b) ? bandwidth_of(d->b->context, 0.1) : 0.0;
    double spent = 0.0;
    for (int round = 0; status == MHLA_OK && unfinished(d, spent, round, C); round++) {
        if (round > 0 && round % STEPS_KEPT == 0) status = stagger(d);
        for (int i = 0; i < d->count && status == MHLA_OK; i += d->batch)
            status = timed_step(d, d->states + i, d->batch, at, &spent);
    }
    if (bench_rates(d->b)) *bandwidth = bandwidth_of(d->b->context, 0.1);
    return status;
}

/* ---- Far beyond M ---- */

static mhla_status time_clamp(decoder *d, int64_t from, places *at) {
    mhla_status status = MHLA_OK;
    while (mhla_state_tokens(d->states[0]) < from && status == MHLA_OK) {
        const int64_t left = from - mhla_state_tokens(d->states[0]);
        status = feed(d, d->states, 1, left < PIECE ? left : PIECE);
    }
    double spent = 0.0;
    for (int i = 0; status == MHLA_OK && unfinished(d, spent, i, PLACES); i++)
        status = timed_step(d, d->states, 1, at, &spent);
    return status;
}

/* ---- Rows ---- */

static void report(bench *b, const struct decode_row *r, mhla_dtype dtype, const timing *t, double slowest,
                   double floor, size_t state_bytes) {
    static int head;
    if (b->format == BENCH_SIMULATE) {
        bench_simulated("decode", r->name, "", dtype, t->best);
        return;
    }
    char best[32], median[32], most[32], least[32] = "", bytes[32];
    char name[48];
    bench_begin(b);
    snprintf(name, sizeof name, "%s%s", r->name, dtype == MHLA_BF16 ? " bf16" : "");
    if (b->format == BENCH_ENGINE) {
        printf("{\"variant\": \"engine-%s%s\", \"ms\": [%.6g]}\n", r->name, dtype == MHLA_BF16 ? "-bf16" : "",
               1e3 * t->median);
        return;
    }
    if (b->format == BENCH_JSON) {
        json_put_open(NULL, '{');
        json_put_text("group", "decode");
        json_put_text("shape", r->name);
        json_put_text("dtype", bench_dtype_names[dtype]);
        json_put_int("batch", r->batch);
        json_put_real("best_us_per_token", 1e6 * t->best);
        json_put_real("median_us_per_token", 1e6 * t->median);
        json_put_real("slowest_us", 1e6 * slowest);
        if (floor > 0.0) {
            json_put_real("read_us", 1e6 * floor);
            json_put_real("ratio", t->best / floor);
        }
        json_put_int("state_bytes", (int64_t)state_bytes);
        json_put_close('}');
    } else {
        if (!head++)
            printf("\none token of one layer, %d heads of %dx%d, chunks of %d; read: P and half a chunk at measured "
                   "bandwidth\n"
                   "%-22s %-33s %10s %10s %9s %8s %6s %10s\n",
                   H, K, V, C, "", "", "best", "median", "slowest", "read", "ratio", "state");
        char sizes[40];
        if (r->tokens)
            snprintf(sizes, sizeof sizes, "after %s tokens, clamped", text_count(least, sizeof least, r->tokens));
        else
            snprintf(sizes, sizeof sizes, "out of cache, %d sequence%s a call", r->batch, r->batch == 1 ? "" : "s");
        text_time(best, sizeof best, t->best);
        text_time(median, sizeof median, t->median);
        text_bytes(bytes, sizeof bytes, (double)state_bytes);
        char ratio[16] = "";
        least[0] = '\0';
        if (floor > 0.0) {
            text_time(least, sizeof least, floor);
            snprintf(ratio, sizeof ratio, "%.2f", t->best / floor);
        }
        text_time(most, sizeof most, slowest);
        printf("%-22s %-33s %10s %10s %9s %8s %6s %10s\n", name, sizes, best, median, most, least, ratio, bytes);
        fflush(stdout);
    }
}

static mhla_status bench_step(bench *b, const struct decode_row *r, mhla_dtype dtype, places *at) {
    decoder d;
    timing t = {0};
    double bandwidth = 0.0;
    mhla_status status = decoder_create(&d, b, dtype, 0);
    if (status != MHLA_OK) return status;
    status = make_states(&d, dtype, r->batch);
    if (status == MHLA_OK) status = time_steps(&d, at, &bandwidth);
    if (status == MHLA_OK) {
        const double slowest = summarise(at, &t);
        report(b, r, dtype, &t, slowest, bandwidth > 0.0 ? bytes_read(dtype) / (1e9 * bandwidth) : 0.0,
               mhla_state_bytes(d.states[0]));
    }
    decoder_free(&d);
    return status;
}

/* The clamp rows share one sequence, which grows from row to row. */
static mhla_status bench_clamp(bench *b, mhla_dtype dtype, places *at) {
    decoder d;
    mhla_status status = decoder_create(&d, b, dtype, 1);
    if (status != MHLA_OK) return status;
    d.states = calloc(1, sizeof(mhla_state *));
    status = d.states ? mhla_state_create(&d.states[0], d.p.plan, d.p.mix) : MHLA_ENOMEM;
    d.count = status == MHLA_OK;
    for (int i = 0; i < ROWS && status == MHLA_OK; i++) {
        if (rows[i].tokens == 0 || !bench_wants(b, "decode", rows[i].name)) continue;
        timing t = {0};
        memset(at, 0, sizeof *at);
        status = time_clamp(&d, rows[i].tokens, at);
        if (status != MHLA_OK) break;
        const double slowest = summarise(at, &t);
        report(b, &rows[i], dtype, &t, slowest, 0.0, mhla_state_bytes(d.states[0]));
    }
    decoder_free(&d);
    return status;
}

mhla_status bench_decode(bench *b) {
    mhla_status status = MHLA_OK;
    places *at = malloc(sizeof *at);
    if (at == NULL) return MHLA_ENOMEM;
    for (int dtype = MHLA_F32; dtype <= MHLA_BF16 && status == MHLA_OK; dtype++) {
        if (!(b->dtypes & 1 << dtype)) continue;
        int clamp = 0;
        for (int i = 0; i < ROWS && status == MHLA_OK; i++) {
            if (!bench_wants(b, "decode", rows[i].name)) continue;
            memset(at, 0, sizeof *at);
            if (rows[i].tokens)
                clamp = 1;
            else
                status = bench_step(b, &rows[i], (mhla_dtype)dtype, at);
        }
        if (clamp && status == MHLA_OK) status = bench_clamp(b, (mhla_dtype)dtype, at);
    }
    free(at);
    return status;
}
