/* mhla analyze: what attention does inside models: ranks, entropies, maps, mixing matrices; as text, files and a page. */
#include <errno.h>
#include <math.h>
#include <mhla/analysis.h>
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

enum { MODELS = 16, SETTINGS = 32, PATH = 4096 };

static cli_texts given;
static const char *data, *split, *out, *html, *json, *csv, *dump;
static int64_t samples, rank_samples, rows, window, stage, threads, image, layer = -1, head = -1, token = -1;
static double at_time;
static int no_rank;

static const cli_option options[] = {
    {"model,m", CLI_TEXTS, &given, "MODEL", "a model to analyze; may be repeated"},
    {"data", CLI_TEXT, &data, "DATA",
     "a dataset, a folder with images, an image; a text file; for clips a dataset of\n"
     "                         clips. Default: what the model was trained on"},
    {"split", CLI_TEXT, &split, "SPLIT", "of a dataset: test (default) or train"},
    {"samples", CLI_INT, &samples, "N", "images, or windows of text; default: 500, 16"},
    {"rank-samples", CLI_INT, &rank_samples, "N",
     "measure the rank of N samples; default: 64 up to 128 tokens, 16 up to 256, else 4"},
    {"no-rank", CLI_FLAG, &no_rank, NULL, "do not measure ranks"},
    {"rows", CLI_INT, &rows, "N", "form only N rows of every matrix, evenly spread: for long sequences"},
    {"window", CLI_INT, &window, "N", "tokens of a window of text; default: the model's context, 512 at most"},
    {"stage", CLI_INT, &stage, "N", "models of several stages: analyze the layers of stage N, from 1; default: 1"},
    {"time", CLI_REAL, &at_time, "T", "diffusion models: noise of this time, up to 1000; default: 500"},
    {"out", CLI_TEXT, &out, "DIR", "write report.html, analysis.json and analysis.csv there"},
    {"html", CLI_TEXT, &html, "FILE", "the page alone"},
    {"json", CLI_TEXT, &json, "FILE", "all figures"},
    {"csv", CLI_TEXT, &csv, "FILE", "a line per layer and head"},
    {"token", CLI_COUNT, &token, "N",
     "print what token N attends to, of --image, --layer (the last), --head (0);\n"
     "                         --json has it for all of them"},
    {"dump", CLI_TEXT, &dump, "DIR",
     "A, v and o as .npy, of --image (0), --layer and --head (all of them); with several\n                         "
     "models one folder for each"},
    {"image", CLI_COUNT, &image, "N", "sample N, from 0"},
    {"layer", CLI_COUNT, &layer, "N", "layer N, from 0"},
    {"head", CLI_COUNT, &head, "N", "head N, from 0"},
    {"threads", CLI_INT, &threads, "N", "default: OpenMP's"},
    {0},
};
static const cli_usage usage = {
    .verb = "analyze",
    .arguments = "[MODEL]...",
    .options = options,
    .text =
        "Forms the attention matrix of every layer and head, as the model uses it, and measures it: rank and its\n"
        "upper bound, effective rank, entropy, weight on near and far blocks; mixing matrices before and after\n"
        "training; for a language model the loss by position. --out and --html write one page with attention\n"
        "maps that follow the pointer or the arrow keys, for all models side by side.\n"
        "\n"
        "MODEL is a run, a folder or file with a model, a shipped model, or a preset (untrained), also with settings:\n"
        "    mhla analyze -m runs/softmax -m runs/linear -m runs/mhla --out analysis\n"
        "    mhla analyze -m deit_nano,attention=mala --data fashion-mnist\n",
};

typedef struct looked {
    char name[200];
    const char *spec;
    mhla_model *model;
    mhla_analysis *analysis;
} looked;

/* ---- Models ---- */

/* PRESET[,KEY=VALUE]...; what has no = belongs to the value before it: image=28,28. */
static mhla_status make_preset(mhla_model **model, const char *spec) {
    char *text = strdup(spec);
    const char *settings[SETTINGS];
    int count = 0;
    if (text == NULL) return MHLA_ENOMEM;
    for (char *comma = strchr(text, ','); comma && count < SETTINGS;) {
        char *next = strchr(comma + 1, ',');
        while (next && memchr(next + 1, '=', strcspn(next + 1, ",")) == NULL) next = strchr(next + 1, ',');
        *comma = '\0';
        settings[count++] = comma + 1;
        comma = next;
    }
    const mhla_status status = mhla_model_create(model, text, settings, count, 0);
    free(text);
    return status;
}

static mhla_status open_model(looked *x) {
    return cli_is_preset(x->spec) ? make_preset(&x->model, x->spec) : mhla_model_open(&x->model, model_path(x->spec));
}

/* The last part of a path, or a preset and its attention; all of it where two would be called the same. */
static void name_models(looked *list, int n) {
    for (int i = 0; i < n; i++) {
        size_t length = strlen(list[i].spec);
        while (length > 1 && list[i].spec[length - 1] == '/') length--;
        size_t begin = length;
        while (begin > 0 && list[i].spec[begin - 1] != '/') begin--;
        const char *attention = cli_is_preset(list[i].spec) ? strstr(list[i].spec, ",attention=") : NULL;
        if (attention)
            snprintf(list[i].name, sizeof list[i].name, "%.*s %.*s", (int)strcspn(list[i].spec, ","), list[i].spec,
                     (int)strcspn(attention + 11, ","), attention + 11);
        else
            snprintf(list[i].name, sizeof list[i].name, "%.*s", (int)(length - begin), list[i].spec + begin);
    }
    int twice[MODELS] = {0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) twice[i] |= j != i && strcmp(list[i].name, list[j].name) == 0;
    for (int i = 0; i < n; i++)
        if (twice[i]) snprintf(list[i].name, sizeof list[i].name, "%.190s", list[i].spec);
}

/* ---- Progress ---- */

typedef struct progress {
    const char *name;
    double begin, shown;
} progress;

static void show(void *user, int64_t done, int64_t all) {
    progress *p = user;
    const double now = now_seconds();
    const int terminal = isatty(STDERR_FILENO);
    if (now - p->shown < (terminal ? 0.2 : 10.0) || done == all) return;
    p->shown = now;
    char left[32];
    text_left(left, sizeof left, (now - p->begin) * (double)(all - done) / (double)done);
    fprintf(stderr, terminal ? "\r%s: %.0f %%, %s left \033[K" : "%s: %.0f %%, %s left\n", p->name,
            100.0 * (double)done / (double)all, left);
}

/* ---- For people ---- */

/* Means over heads, of each measure over those that have it: a head of nothing but zeros has no entropy. */
typedef struct means {
    double sum[9];
    int count[9];
} means;

static void print_row(const char *name, const means *mean) {
    printf("  %-6s", name);
    static const char *const formats[] = {" %8.1f",   " %8.0f",   " %10.2f",  " %8.3f", " %8.1f%%",
                                          " %6.1f%%", " %6.1f%%", " %6.1f%%", " %9.2f"};
    for (int i = 0; i < 9; i++)
        if (mean->count[i] == 0)
            printf("%*s", i == 2 ? 11 : i == 8 ? 10 : i == 4 ? 10 : i > 4 ? 8 : 9, "-");
        else
            printf(formats[i], mean->sum[i] / mean->count[i]); /* NOLINT(clang-diagnostic-format-nonliteral): ours */
    printf("\n");
}

static void add_head(means *m, const mhla_head_analysis *x) {
    const double all[] = {x->rank,        (double)x->bound, x->effective_rank, x->entropy, 100.0 * x->clipped,
                          100.0 * x->own, 100.0 * x->near,  100.0 * x->far,    x->distance};
    for (int i = 0; i < 9; i++)
        if (!isnan(all[i])) m->sum[i] += all[i], m->count[i]++;
}

static void print_analysis(const looked *x) {
    mhla_analysis_info info = {.size = sizeof info};
    mhla_head_analysis h = {.size = sizeof h};
    if (mhla_analysis_query(x->analysis, &info) != MHLA_OK) return;
    printf("%s: %s, %s attention, %d layers, %d heads, %lld tokens in ", x->name, info.model, info.attention,
           info.layers, info.heads, (long long)info.tokens);
    if (info.chunk)
        printf("blocks of %d\n", info.chunk);
    else if (info.frames)
        printf("%d x %d x %d blocks\n", info.frame_blocks, info.blocks[0], info.blocks[1]);
    else
        printf("%d x %d blocks\n", info.blocks[0], info.blocks[1]);
    printf("  %-6s %8s %8s %10s %8s %9s %7s %7s %7s %9s\n", "layer", "rank", "at most", "effective", "entropy",
           "negative", "own", "near", "far", "distance");
    means all = {0};
    for (int l = 0; l < info.layers; l++) {
        means m = {0};
        char name[16];
        for (int n = 0; mhla_analysis_head(x->analysis, l, n, &h) == MHLA_OK; n++) {
            add_head(&m, &h);
            add_head(&all, &h);
        }
        snprintf(name, sizeof name, "%d", l);
        print_row(name, &m);
    }
    print_row("mean", &all);
    if (info.causal) printf("  rank: of the scores without the causal mask\n");
    if (info.rows < info.tokens) printf("  %lld of %lld rows\n", (long long)info.rows, (long long)info.tokens);
    if (!isnan(info.loss)) printf("  loss %.4f nats per token\n", info.loss);
    char time[32];
    text_time(time, sizeof time, info.seconds);
    printf("  %lld sample%s, %lld for ranks; %s, %.0f %% of it for the SVD\n", (long long)info.samples,
           info.samples == 1 ? "" : "s", (long long)info.rank_samples, time,
           info.seconds > 0.0 ? 100.0 * info.svd_seconds / info.seconds : 0.0);
}

/* Percents of a row, on the grid where there is one. */
static mhla_status print_map(const looked *x) {
    mhla_analysis_info info = {.size = sizeof info};
    mhla_status status = mhla_analysis_query(x->analysis, &info);
    if (status != MHLA_OK) return status;
    const int l = layer < 0 ? info.layers - 1 : (int)layer, h = head < 0 ? 0 : (int)head;
    float *w = malloc((size_t)info.tokens * sizeof *w);
    status = w ? mhla_analysis_map(x->analysis, w, image, l, h, token) : MHLA_ENOMEM;
    if (status == MHLA_OK) {
        double sum = 0.0, all = 0.0;
        for (int64_t u = 0; u < info.tokens; u++) sum += (double)w[u], all += fmax((double)w[u], 0.0);
        const int plain =
            fabs(sum - 1.0) < 0.01 || !(all > 0.0); /* attention without a denominator: its rows sum to anything */
        for (int64_t u = 0; u < info.tokens && !plain; u++) w[u] = (float)((double)w[u] / all);
        printf("%s: what token %lld of sample %lld attends to in layer %d, head %d, in percent%s\n", x->name,
               (long long)token, (long long)image, l, h, plain ? "" : " of the positive weight of its row");
        const int columns = info.grid[1] > 1 ? info.grid[1] : 16;
        const int64_t frame = (int64_t)info.grid[0] * columns;
        for (int64_t u = 0; u < info.tokens; u++) {
            if (info.frames && u % frame == 0) printf("  frame %lld\n", (long long)(u / frame));
            if (u < info.first)
                printf("  class token %.1f\n", 100.0 * (double)w[u]);
            else
                printf((u - info.first) % columns == columns - 1 || u == info.tokens - 1 ? "%6.1f\n" : "%6.1f",
                       100.0 * (double)w[u]);
        }
    }
    free(w);
    return status;
}

/* ---- Running ---- */

/* One that can be written to: said before the work, not after it. */
static mhla_status make_folder(const char *path) {
    char inside[PATH + 8];
    snprintf(inside, sizeof inside, "%s/./file", path);
    if ((mkdir(path, 0777) == 0 || errno == EEXIST) && cli_writable(inside)) return MHLA_OK;
    fprintf(stderr, "mhla analyze: %s: %s\n", path, strerror(errno));
    return MHLA_EIO;
}

/* Language models side by side are measured in the same blocks: the chunks of the first that has some. */
static mhla_status find_chunk(int *chunk, looked *list, int n) {
    *chunk = 0;
    for (int i = 0; i < n && n > 1 && *chunk == 0; i++) {
        mhla_lm_info lm = {.size = sizeof lm};
        const mhla_status status = open_model(&list[i]);
        if (status != MHLA_OK) return status;
        if (mhla_lm_query(list[i].model, &lm) == MHLA_OK) *chunk = lm.chunk;
        mhla_model_free(list[i].model);
        list[i].model = NULL;
    }
    return MHLA_OK;
}

static mhla_status analyze(looked *x, int count, int chunk, const mhla_context *context) {
    char folder[PATH];
    progress p = {.name = x->name, .begin = now_seconds(), .shown = now_seconds()};
    mhla_analysis_desc d = {.size = sizeof d,
                            .data = data,
                            .split = split,
                            .samples = samples,
                            .rank_samples = no_rank ? -1 : rank_samples,
                            .rows = rows,
                            .window = window,
                            .maps = token >= 0 && image >= 4 ? image + 1 : 0,
                            .time = at_time,
                            .dump_sample = image,
                            .dump_layer = (int)layer,
                            .dump_head = (int)head,
                            .progress = show,
                            .user = &p,
                            .tokens = &token,
                            .token_count = token >= 0,
                            .chunk = chunk,
                            .stage = (int)stage};
    if (dump) {
        snprintf(folder, sizeof folder, count > 1 ? "%s/%s" : "%s", dump, x->name);
        for (char *at = folder + strlen(dump) + 1; count > 1 && (at = strpbrk(at, "/ ,")) != NULL;) *at = '-';
        d.dump = folder;
    }
    mhla_status status = open_model(x);
    if (status == MHLA_OK) {
        mhla_model_set_context(x->model, context);
        status = mhla_analysis_create(&x->analysis, x->model, &d);
        if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
        mhla_lm_info lm = {.size = sizeof lm};
        if (status == MHLA_OK && window > 0 && mhla_lm_query(x->model, &lm) == MHLA_OK && lm.context > 0 &&
            window > lm.context)
            fprintf(stderr,
                    "mhla analyze: windows of %lld tokens are longer than the %lld that the model was made for\n",
                    (long long)window, (long long)lm.context);
    }
    mhla_model_free(x->model); /* what was found is enough */
    x->model = NULL;
    return status;
}

static mhla_status write_one(const looked *list, int n, const char *folder, const char *path) {
    const mhla_analysis *analyses[MODELS];
    const char *names[MODELS];
    char whole[PATH], size[32];
    struct stat info;
    for (int i = 0; i < n; i++) {
        analyses[i] = list[i].analysis;
        names[i] = list[i].name;
    }
    snprintf(whole, sizeof whole, folder ? "%s/%s" : "%s%s", folder ? folder : "", path);
    const mhla_status status = mhla_analysis_write(whole, analyses, names, n);
    if (status == MHLA_OK && stat(whole, &info) == 0)
        printf("wrote %s (%s)\n", whole, text_bytes(size, sizeof size, (double)info.st_size));
    return status;
}

static mhla_status write_files(const looked *list, int n) {
    static const char *const all[] = {"report.html", "analysis.json", "analysis.csv"};
    const char *const single[] = {html, json, csv};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < 3 && status == MHLA_OK; i++) {
        if (out) status = write_one(list, n, out, all[i]);
        if (single[i] && status == MHLA_OK) status = write_one(list, n, NULL, single[i]);
    }
    return status;
}

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* What can be told before the work; CLI_OK: all well. */
static int check(int n) {
    static const char *const endings[] = {".html", ".json", ".csv"};
    const char *const files[] = {html, json, csv};
    if (n == 0) return cli_wrong(usage.verb, "no model is given: mhla analyze -m MODEL");
    if (n > MODELS) return cli_wrong(usage.verb, "%d models: at most %d", n, MODELS);
    if (no_rank && rank_samples) return cli_wrong(usage.verb, "--rank-samples and --no-rank exclude each other");
    if (at_time > 1000.0) return cli_wrong(usage.verb, "--time is %g: at most 1000", at_time);
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: at most 1024", (long long)threads);
    if (layer > 4096 || head > 4096)
        return cli_wrong(usage.verb, "%s is %lld: no model has that many", layer > 4096 ? "--layer" : "--head",
                         (long long)(layer > 4096 ? layer : head));
    for (int i = 0; i < 3; i++) {
        if (files[i] == NULL) continue;
        if (!ends_with(files[i], endings[i]))
            return cli_wrong(usage.verb, "--%s %s: the name must end with %s", endings[i] + 1, files[i], endings[i]);
        if (!cli_writable(files[i])) {
            fprintf(stderr, "mhla analyze: %s: %s\n", files[i], strerror(errno));
            return CLI_FAILED;
        }
    }
    if ((out && make_folder(out) != MHLA_OK) || (dump && make_folder(dump) != MHLA_OK)) return CLI_FAILED;
    return CLI_OK;
}

int cmd_analyze(int argc, char **argv) {
    int positional = 0;
    int code = cli_parse(&usage, argc, argv, &positional);
    if (code >= 0) return code;
    const int n = given.count + positional;
    code = check(n);
    if (code != CLI_OK) return code;
    looked list[MODELS];
    memset(list, 0, sizeof list);
    for (int i = 0; i < n; i++) list[i].spec = i < given.count ? given.text[i] : argv[i - given.count];
    name_models(list, n);
    mhla_context *context = NULL;
    int chunk;
    mhla_status status = find_chunk(&chunk, list, n);
    if (threads && status == MHLA_OK)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        status = analyze(&list[i], n, chunk, context);
        if (status == MHLA_OK) print_analysis(&list[i]);
        if (status == MHLA_OK && token >= 0) status = print_map(&list[i]);
        fflush(stdout);
    }
    if (status == MHLA_OK) status = write_files(list, n);
    for (int i = 0; i < n; i++) mhla_analysis_free(list[i].analysis);
    mhla_context_free(context);
    return status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
}
