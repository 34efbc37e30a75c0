/* mhla classify: what a model takes pictures for. */
#include <dirent.h>
#include <errno.h>
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli.h"

static const char *path, *weights, *dtype;
static int64_t top = 5;
static int json;

static const cli_option options[] = {
    {"model", CLI_TEXT, &path, "MODEL", "a folder, a run or a shipped model; required"},
    {"top", CLI_INT, &top, "N", "the N most likely classes of each image; default 5"},
    {"weights", CLI_TEXT, &weights, "WHICH", "raw, or ema (averaged); default: whichever scored better in training"},
    {"dtype", CLI_TEXT, &dtype, "TYPE", "weights and products as float32 (default), bfloat16 or q8_0"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "classify",
    .arguments = "IMAGE...",
    .options = options,
    .text = "Prints the most likely classes of PNG and JPEG images. IMAGE is a file, a folder (all images in it) or\n"
            "- (standard input). Files that cannot be read are reported and skipped; the exit code is then 1.\n",
};

static int classes, failures;
static float *probabilities;
static int *order;

static int likelier(const void *a, const void *b) {
    const float x = probabilities[*(const int *)a], y = probabilities[*(const int *)b];
    return (x < y) - (x > y);
}

static const char *class_name(const mhla_model *model, int i, char *number, size_t size) {
    const char *name = mhla_model_class_name(model, i);
    snprintf(number, size, "class %d", i);
    return name && *name ? name : number;
}

static void print(const mhla_model *model, const char *name) {
    char number[32];
    const int n = top < classes ? (int)top : classes;
    for (int i = 0; i < classes; i++) order[i] = i;
    qsort(order, (size_t)classes, sizeof *order, likelier);
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("image", name);
        json_put_open("classes", '[');
        for (int i = 0; i < n; i++) {
            json_put_open(NULL, '{');
            json_put_text("name", class_name(model, order[i], number, sizeof number));
            json_put_int("class", order[i]);
            json_put_real("probability", (double)probabilities[order[i]]);
            json_put_close('}');
        }
        json_put_close(']');
        json_put_close('}');
        return;
    }
    printf("%s\n", name);
    for (int i = 0; i < n; i++)
        printf("  %6.2f %%  %s\n", 100.0 * (double)probabilities[order[i]],
               class_name(model, order[i], number, sizeof number));
}

static void done(const mhla_model *model, mhla_status status, const char *name) {
    if (status == MHLA_OK) {
        print(model, name);
        return;
    }
    cli_failed(usage.verb, status);
    failures++;
}

static void classify_stdin(mhla_model *model) {
    size_t size;
    char *bytes = cli_read_all(usage.verb, "-", &size);
    if (bytes)
        done(model, mhla_model_classify_bytes(model, probabilities, bytes, size, "standard input"), "-");
    else
        failures++;
    free(bytes);
}

static int is_picture(const struct dirent *e) {
    const char *dot = strrchr(e->d_name, '.');
    return dot && dot != e->d_name &&
           (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

static void classify(mhla_model *model, const char *name) {
    struct stat info;
    if (strcmp(name, "-") == 0) {
        classify_stdin(model);
    } else if (stat(name, &info) == 0 && S_ISDIR(info.st_mode)) {
        struct dirent **list = NULL;
        const int n = scandir(name, &list, is_picture, alphasort);
        if (n <= 0) {
            fprintf(stderr, "mhla %s: %s: %s\n", usage.verb, name,
                    n < 0 ? strerror(errno) : "no PNG or JPEG in this folder");
            failures++;
        }
        for (int i = 0; i < n; i++) {
            char file[4096];
            snprintf(file, sizeof file, "%s/%s", name, list[i]->d_name);
            done(model, mhla_model_classify(model, probabilities, file), file);
            free(list[i]);
        }
        free(list);
    } else {
        done(model, mhla_model_classify(model, probabilities, name), name);
    }
}

int cmd_classify(int argc, char **argv) {
    int given = 0;
    /* "-" is no option here */
    static char dash[] = "./-";
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "-") == 0) argv[i] = dash;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (path == NULL) return cli_wrong(usage.verb, "--model is missing");
    if (given == 0) return cli_wrong(usage.verb, "no IMAGE is given");
    mhla_model *model = NULL;
    mhla_model_info info = {.size = sizeof info};
    if (weights && strcmp(weights, "raw") != 0 && strcmp(weights, "ema") != 0)
        return cli_wrong(usage.verb, "--weights is \"%s\": expected raw or ema", weights);
    mhla_status status =
        mhla_model_open_as(&model, model_path(path),
                           &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = dtype, .weights = weights});
    if (status == MHLA_OK) status = mhla_model_query(model, &info);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    classes = info.classes;
    const char *file = info.weights ? strrchr(info.weights, '/') : NULL;
    if (file && strcmp(file, "/ema.safetensors") == 0) fprintf(stderr, "averaged weights: %s\n", info.weights);
    probabilities = malloc((size_t)classes * sizeof *probabilities);
    order = malloc((size_t)classes * sizeof *order);
    if (json) json_put_open(NULL, '[');
    for (int i = 0; i < given && probabilities && order; i++) classify(model, argv[i] == dash ? "-" : argv[i]);
    if (json) json_put_close(']');
    const int memory = probabilities && order;
    free(probabilities);
    free(order);
    mhla_model_free(model);
    if (!memory) return cli_failed(usage.verb, MHLA_ENOMEM);
    return failures ? CLI_FAILED : CLI_OK;
}
