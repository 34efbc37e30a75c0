/* mhla bench mpi: what ranks take to tell each other something, a training step that they share, and what follows from these for other
 * models, links and numbers of ranks. The formula is in docs/clusters.md. */
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { STRETCH = 16384, BUCKET = 64, FLIGHTS = 4, PARTS = 8, TOKENS = 512, COUNTS = 16 };

static struct {
    const char *model, *predict, *ranks, *link;
    int64_t parts, batch, tokens, threads;
    double seconds, gflops;
    int json;
} given;

static const char verb[] = "bench mpi";
static const cli_option options[] = {
    {"model", CLI_TEXT, &given.model, "PRESET",
     "classifier or language model of the training step; default: deit_tiny"},
    {"parts", CLI_INT, &given.parts, "N", "parts of a batch; default: 8, or the number of ranks if that is more"},
    {"batch", CLI_INT, &given.batch, "B", "samples of a part; default: 4, texts 1"},
    {"tokens", CLI_INT, &given.tokens, "T", "tokens of a text; default: 512, or the model's context if that is less"},
    {"predict", CLI_TEXT, &given.predict, "PRESET", "predict time and memory of a step of this model instead"},
    {"ranks", CLI_TEXT, &given.ranks, "LIST", "--predict: numbers of ranks, powers of two; default: 1,2,4,8,64,512"},
    {"link", CLI_TEXT, &given.link, "GBIT,US",
     "--predict: bandwidth in Gbit/s and latency in microseconds; default: measured between the ranks"},
    {"gflops", CLI_REAL, &given.gflops, "X",
     "--predict: GFLOP/s of a rank in training; default: measured with --model"},
    {"seconds", CLI_REAL, &given.seconds, "S", "time for each measurement; default: 1"},
    {"threads", CLI_INT, &given.threads, "N", "threads of a rank; default: what OpenMP would use"},
    {"json", CLI_FLAG, &given.json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = verb,
    .arguments = "",
    .options = options,
    .text =
        "Measures what ranks take to exchange messages and to make a training step together. Start it with mpirun or\n"
        "srun. With --predict: what a step of another model, on another link or by more ranks would take, by the "
        "formula\n"
        "of docs/clusters.md.\n"
        "\n"
        "  mpirun -n 2 mhla bench mpi\n"
        "  mpirun -n 2 mhla bench mpi --model lm_340m\n"
        "  mhla bench mpi --predict lm_340m --tokens 2048 --link 100,2 --gflops 500\n",
};

/* ---- What is measured ---- */

typedef struct constants {
    double latency, bandwidth; /* of a message: seconds, bytes/s */
    double rate;               /* multiply-adds and additions of a rank in a second, in training */
    double update;             /* seconds of an update for each parameter, by one rank */
} constants;

typedef struct work {         /* of a model */
    double parameters, flops; /* flops: of a part, forward and backward */
    double samples;           /* images or tokens of a part */
    size_t activations;       /* bytes; 0: not known */
    const char *unit;
} work;

static mhla_status describe(work *w, mhla_model *model, int64_t batch, int64_t tokens) {
    double unused[MHLA_RANKS_TIMES];
    mhla_model_info info = {.size = sizeof info};
    mhla_status status = mhla_model_query(model, &info);
    if (status != MHLA_OK) return status;
    const int text = mhla_model_has(model, MHLA_ROLE_DECODER);
    const double samples = (double)batch * (text ? (double)tokens : 1.0);
    *w = (work){.parameters = (double)info.parameters,
                .flops = 6.0 * (double)info.multiply_adds * samples,
                .samples = samples,
                .unit = text ? "tokens" : "images"};
    if (!text && !mhla_model_has(model, MHLA_ROLE_CLASSIFIER)) return MHLA_OK; /* how much it keeps is not told */
    return mhla_ranks_step(model, mhla_ranks(), batch, tokens, 0.0, unused, &w->activations);
}

static int64_t batch_of(const mhla_model *model) {
    return given.batch ? given.batch : mhla_model_has(model, MHLA_ROLE_DECODER) ? 1 : 4;
}

static int64_t tokens_of(const mhla_model *model) {
    mhla_lm_info info = {.size = sizeof info};
    if (given.tokens || !mhla_model_has(model, MHLA_ROLE_DECODER) || mhla_lm_query(model, &info) != MHLA_OK)
        return given.tokens;
    return info.context > 0 && info.context < TOKENS ? info.context : TOKENS;
}

static int64_t parts_of(int64_t ranks) { return given.parts ? given.parts : ranks > PARTS ? ranks : PARTS; }

static mhla_status measure_step(constants *c, work *w, double seconds[MHLA_RANKS_TIMES], const mhla_context *context) {
    mhla_model *model = NULL;
    mhla_status status = mhla_model_create(&model, given.model, NULL, 0, 1);
    if (status == MHLA_OK && context) mhla_model_set_context(model, context);
    if (status == MHLA_OK) status = describe(w, model, batch_of(model), tokens_of(model));
    const int64_t parts = parts_of(mhla_ranks()), own = (parts + mhla_ranks() - 1) / mhla_ranks();
    if (status == MHLA_OK)
        status = mhla_ranks_step(model, parts, batch_of(model), tokens_of(model), given.seconds, seconds, NULL);
    if (status == MHLA_OK) {
        c->rate = w->flops * (double)own / seconds[1];
        c->update = seconds[3] * mhla_ranks() / w->parameters;
    }
    mhla_model_free(model);
    return status;
}

static mhla_status measure_link(constants *c) {
    const size_t large = (size_t)16 << 20;
    double one, many;
    mhla_status status = mhla_ranks_time(MHLA_RANKS_MESSAGE, 1, given.seconds, &one);
    if (status == MHLA_OK) status = mhla_ranks_time(MHLA_RANKS_EXCHANGE, large, given.seconds, &many);
    if (status != MHLA_OK) return status;
    c->latency = one;
    c->bandwidth = (double)large * (mhla_ranks() - 1) / mhla_ranks() / many;
    return MHLA_OK;
}

/* ---- What follows ---- */

typedef struct prediction {
    int64_t ranks, parts;
    double compute, exchange, exposed, update, step, memory;
} prediction;

static prediction predict(const constants *c, const work *w, int64_t ranks) {
    prediction p = {.ranks = ranks, .parts = parts_of(ranks)};
    const double part = w->flops / c->rate, own = (double)p.parts / (double)ranks;
    const double size = ranks * FLIGHTS > BUCKET ? (double)ranks * FLIGHTS : BUCKET;
    const double buckets = w->parameters / (size * STRETCH) + 1.0, share = (double)(ranks - 1) / (double)ranks;
    int waiting = 0; /* sums of parts that wait for their neighbours */
    while ((double)(2 << waiting) <= own) waiting++;
    p.compute = own * part;
    if (ranks > 1) p.exchange = 4.0 * w->parameters * share / c->bandwidth + buckets * c->latency;
    p.exposed = p.exchange > 2.0 / 3.0 * part ? p.exchange - 2.0 / 3.0 * part : 0.0; /* two thirds are backward */
    p.update = c->update * w->parameters / (double)ranks;
    p.step = p.compute + p.exposed + p.update + p.exchange; /* gradients, then as many weights */
    p.memory = 4.0 * w->parameters * (2.0 + 2.0 / (double)ranks + waiting) + (double)w->activations +
               (ranks > 1 ? 8.0 * FLIGHTS * size * STRETCH : 0.0);
    return p;
}

static void print_predictions(const constants *c, const work *w, const int64_t *ranks, int count) {
    char a[32], b[32], d[32], e[32], f[32], g[32];
    if (given.json) {
        json_put_open(NULL, '{');
        json_put_text("model", given.predict);
        json_put_real("latency_us", 1e6 * c->latency);
        json_put_real("gbit_per_second", 8e-9 * c->bandwidth);
        json_put_real("gflops", 1e-9 * c->rate);
        json_put_real("update_ns_per_parameter", 1e9 * c->update);
        json_put_open("ranks", '[');
    } else {
        printf("%s: %s parameters, parts of %.0f %s; rank: %.1f GFLOP/s; link: %.1f Gbit/s, %s\n", given.predict,
               text_count(a, sizeof a, (int64_t)w->parameters), w->samples, w->unit, 1e-9 * c->rate,
               8e-9 * c->bandwidth, text_time(b, sizeof b, c->latency));
        printf("%6s %6s %10s %10s %10s %10s %10s %12s %8s %10s\n", "ranks", "parts", "compute", "gradients",
               "not hidden", "update", "step", w->unit, "of ideal", "memory");
    }
    const prediction one = predict(c, w, 1);
    for (int i = 0; i < count; i++) {
        const prediction p = predict(c, w, ranks[i]);
        const double pace = (double)p.parts * w->samples / p.step;
        const double ideal = (double)p.ranks * (double)one.parts * w->samples / one.step;
        if (given.json) {
            json_put_open(NULL, '{');
            json_put_int("ranks", p.ranks);
            json_put_int("parts", p.parts);
            json_put_real("compute_ms", 1e3 * p.compute);
            json_put_real("gradients_ms", 1e3 * p.exchange);
            json_put_real("not_hidden_ms", 1e3 * p.exposed);
            json_put_real("update_ms", 1e3 * p.update);
            json_put_real("step_ms", 1e3 * p.step);
            json_put_real("samples_per_second", pace);
            json_put_int("memory", (int64_t)p.memory);
            json_put_close('}');
        } else {
            printf("%6lld %6lld %10s %10s %10s %10s %10s %10.*f/s %6.1f %% %10s\n", (long long)p.ranks,
                   (long long)p.parts, text_time(a, sizeof a, p.compute), text_time(b, sizeof b, p.exchange),
                   text_time(d, sizeof d, p.exposed), text_time(e, sizeof e, p.update), text_time(f, sizeof f, p.step),
                   pace < 10.0     ? 3
                   : pace < 1000.0 ? 1
                                   : 0,
                   pace, 100.0 * pace / ideal, text_bytes(g, sizeof g, p.memory));
        }
    }
    if (given.json) {
        json_put_close(']');
        json_put_close('}');
    } else if (w->activations == 0)
        printf("memory: without activations\n");
}

static mhla_status run_predict(const int64_t *ranks, int count, const double link[2], const mhla_context *context) {
    constants c = {0};
    double seconds[MHLA_RANKS_TIMES];
    mhla_model *model = NULL;
    work w, measured;
    mhla_status status = mhla_model_outline(&model, given.predict, NULL, 0);
    if (status == MHLA_OK) status = describe(&w, model, batch_of(model), tokens_of(model));
    mhla_model_free(model);
    if (status == MHLA_OK) status = measure_step(&c, &measured, seconds, context);
    if (status == MHLA_OK && given.gflops > 0.0) c.rate = 1e9 * given.gflops;
    if (status == MHLA_OK && link[0] > 0.0) {
        c.bandwidth = 1e9 / 8.0 * link[0];
        c.latency = 1e-6 * link[1];
    } else if (status == MHLA_OK)
        status = measure_link(&c);
    if (status == MHLA_OK) print_predictions(&c, &w, ranks, count);
    return status;
}

/* ---- Measuring ---- */

static mhla_status run_messages(void) {
    static const struct {
        mhla_ranks_work work;
        const char *name, *what;
        size_t bytes;
    } rows[] = {{MHLA_RANKS_MESSAGE, "latency", "a byte to another rank", 1},
                {MHLA_RANKS_MESSAGE, "message", "1 MiB to another rank", (size_t)1 << 20},
                {MHLA_RANKS_MESSAGE, "message", "16 MiB to another rank", (size_t)16 << 20},
                {MHLA_RANKS_EXCHANGE, "gradients", "16 MiB, to each rank its share", (size_t)16 << 20},
                {MHLA_RANKS_GATHER, "summaries", "2 MiB of each rank to all", (size_t)2 << 20}};
    mhla_status status = MHLA_OK;
    if (given.json) json_put_open("messages", '[');
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == MHLA_OK && mhla_ranks() > 1; i++) {
        double took;
        char a[32], b[32];
        const double others = mhla_ranks() - 1.0;
        status = mhla_ranks_time(rows[i].work, rows[i].bytes, given.seconds, &took);
        const double sent = (double)rows[i].bytes * (rows[i].work == MHLA_RANKS_MESSAGE    ? 1.0
                                                     : rows[i].work == MHLA_RANKS_EXCHANGE ? others / mhla_ranks()
                                                                                           : others);
        if (status != MHLA_OK) break;
        if (given.json) {
            json_put_open(NULL, '{');
            json_put_text("name", rows[i].name);
            json_put_int("bytes", (int64_t)rows[i].bytes);
            json_put_real("seconds", took);
            json_put_real("bytes_per_second", sent / took);
            json_put_close('}');
        } else
            printf("%-10s %-32s %10s %10s/s\n", rows[i].name, rows[i].what, text_time(a, sizeof a, took),
                   text_bytes(b, sizeof b, sent / took));
    }
    if (given.json) json_put_close(']');
    return status;
}

static mhla_status run_measure(const mhla_context *context) {
    static const char *const names[MHLA_RANKS_TIMES] = {"step", "forward_backward", "gradients_not_hidden", "update"};
    constants c = {0};
    work w = {0};
    char text[32];
    double s[MHLA_RANKS_TIMES] = {0};
    if (given.json) {
        json_put_open(NULL, '{');
        json_put_int("ranks", mhla_ranks());
    } else
        printf("%d rank%s%s\n", mhla_ranks(), mhla_ranks() == 1 ? "" : "s",
               mhla_ranks() == 1 ? ": start several with mpirun or srun to measure messages" : "");
    mhla_status status = run_messages();
    if (status == MHLA_OK) status = measure_step(&c, &w, s, context);
    if (status == MHLA_OK && mhla_ranks() > 1) status = measure_link(&c);
    if (status != MHLA_OK) return status;
    const double pace = (double)parts_of(mhla_ranks()) * w.samples / s[0];
    const prediction p = predict(&c, &w, mhla_ranks());
    const int power = (mhla_ranks() & (mhla_ranks() - 1)) == 0;
    if (given.json) {
        json_put_open("training", '{');
        json_put_text("model", given.model);
        json_put_int("parts", parts_of(mhla_ranks()));
        for (int i = 0; i < MHLA_RANKS_TIMES; i++) json_put_real(names[i], s[i]);
        json_put_real("new_weights", s[0] - s[1] - s[2] - s[3]);
        json_put_real("samples_per_second", pace);
        if (power) json_put_real("predicted", p.step);
        json_put_close('}');
        json_put_close('}');
        return MHLA_OK;
    }
    printf("training   %s, %lld parts of %.0f %s: %s a step, %.4g %s/s\n", given.model,
           (long long)parts_of(mhla_ranks()), w.samples, w.unit, text_time(text, sizeof text, s[0]), pace, w.unit);
    printf("           forward and backward %s", text_time(text, sizeof text, s[1]));
    printf(", gradients not hidden %s", text_time(text, sizeof text, s[2]));
    printf(", update %s", text_time(text, sizeof text, s[3]));
    printf(", new weights %s\n", text_time(text, sizeof text, s[0] - s[1] - s[2] - s[3]));
    if (power) printf("           predicted from these messages: %s a step\n", text_time(text, sizeof text, p.step));
    return MHLA_OK;
}

/* ---- The verb ---- */

/* "8,64": how many; 0 if the list is wrong. */
static int read_ranks(int64_t ranks[COUNTS], const char *text) {
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        const long long x = strtoll(at, &end, 10);
        if (end == at || n == COUNTS || x < 1 || x > 1 << 20 || (x & (x - 1)) || (*end && *end != ',')) return 0;
        if (given.parts && (given.parts % x || (given.parts / x & (given.parts / x - 1)))) return 0;
        ranks[n++] = x;
        at = end;
        if (*at == '\0') return n;
    }
}

int bench_mpi(int argc, char **argv) {
    int64_t ranks[COUNTS];
    double link[2] = {0.0, 0.0};
    char rest;
    int count = 0;
    mhla_context *context = NULL;
    int code = cli_parse(&usage, argc, argv, NULL);
    if (code >= 0) return code;
    if (given.predict == NULL && (given.ranks || given.link || given.gflops > 0.0))
        return cli_wrong(verb, "--ranks, --link and --gflops are for --predict");
    if (given.threads > 1024) return cli_wrong(verb, "--threads is %lld: at most 1024", (long long)given.threads);
    if (given.link &&
        (sscanf(given.link, "%lf,%lf%c", &link[0], &link[1], &rest) != 2 || !(link[0] > 0.0) || !(link[1] >= 0.0)))
        return cli_wrong(verb, "--link is \"%s\": expected Gbit/s and microseconds, as in 10,50", given.link);
    if (given.predict && (count = read_ranks(ranks, given.ranks ? given.ranks : "1,2,4,8,64,512")) == 0)
        return cli_wrong(verb, "--ranks is \"%s\": expected powers of two%s, as in 1,8,64",
                         given.ranks ? given.ranks : "", given.parts ? " that divide --parts into powers of two" : "");
    if (given.predict && given.link == NULL && mhla_ranks() == 1)
        return cli_wrong(verb, "one rank has no link to measure: give --link, or start several ranks");
    if (given.parts && given.parts < mhla_ranks())
        return cli_wrong(verb, "--parts is %lld for %d ranks", (long long)given.parts, mhla_ranks());
    if (given.model == NULL) given.model = "deit_tiny";
    if (given.seconds == 0.0) given.seconds = 1.0;
    mhla_status status = MHLA_OK;
    if (given.threads)
        status = mhla_context_create(
            &context, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)given.threads});
    if (status == MHLA_OK) status = given.predict ? run_predict(ranks, count, link, context) : run_measure(context);
    mhla_context_free(context);
    return status == MHLA_OK ? CLI_OK : cli_failed(verb, status);
}
