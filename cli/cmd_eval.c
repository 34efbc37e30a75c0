/* mhla eval: how many images of a dataset a model gets right. */
#include <mhla/nn.h>
#include <stdio.h>
#include <unistd.h>

#include "cli.h"

static const char *data, *split = "test";
static int64_t limit, threads;
static int json, classes;

static const cli_option options[] = {
    {"data", CLI_TEXT, &data, "DATA", "a folder, fashion-mnist or cifar10-test; default: what the run was trained on"},
    {"split", CLI_TEXT, &split, "SPLIT", "test (default) or train"},
    {"limit", CLI_INT, &limit, "N", "the first N images only"},
    {"classes", CLI_FLAG, &classes, NULL, "a line for each class, too"},
    {"threads", CLI_INT, &threads, "N", "default: what OpenMP would use"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "eval",
    .arguments = "MODEL",
    .options = options,
    .text = "Runs a model over labelled images and prints its accuracy. MODEL is a folder with config.json and\n"
            "model.safetensors, a .safetensors file beside a config.json, or a run (its best checkpoint).\n",
};

static void progress(void *user, int64_t done, int64_t all) {
    static double shown;
    (void)user;
    if (now_seconds() - shown < 0.2 && done < all) return;
    shown = now_seconds();
    fprintf(stderr, "\r%lld of %lld%s", (long long)done, (long long)all, done == all ? "\r\033[K" : "");
}

static void print_text(mhla_model *model, const mhla_evaluation *r) {
    const double n = (double)r->images;
    printf("images      %lld\n", (long long)r->images);
    printf("accuracy    %.2f %%\n", 100.0 * (double)r->top1 / n);
    if (r->classes > 5) printf("among 5     %.2f %%\n", 100.0 * (double)r->top5 / n);
    printf("loss        %.4f\n", r->loss);
    printf("speed       %.0f images/s\n", n / r->seconds);
    for (int i = 0; classes && i < r->classes; i++) {
        const char *name = mhla_model_class_name(model, i);
        if (r->class_images[i] == 0) continue;
        printf("  %6.2f %%  %5lld images  %s\n", 100.0 * (double)r->class_right[i] / (double)r->class_images[i],
               (long long)r->class_images[i], name ? name : "");
    }
}

static void print_json(mhla_model *model, const mhla_evaluation *r) {
    const double n = (double)r->images;
    json_put_open(NULL, '{');
    json_put_int("images", r->images);
    json_put_real("accuracy", (double)r->top1 / n);
    json_put_real("top5", (double)r->top5 / n);
    json_put_real("loss", r->loss);
    json_put_real("images_per_second", n / r->seconds);
    json_put_open("classes", '[');
    for (int i = 0; i < r->classes; i++) {
        const char *name = mhla_model_class_name(model, i);
        json_put_open(NULL, '{');
        json_put_text("name", name ? name : "");
        json_put_int("images", r->class_images[i]);
        json_put_int("right", r->class_right[i]);
        json_put_close('}');
    }
    json_put_close(']');
    json_put_close('}');
}

int cmd_eval(int argc, char **argv) {
    int given = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given != 1) return cli_wrong(usage.verb, "one MODEL is expected, %d are given", given);
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    mhla_model *model = NULL;
    mhla_context *context = NULL;
    mhla_evaluation result = {.size = sizeof result};
    mhla_status status = mhla_model_open(&model, argv[0]);
    if (status == MHLA_OK && threads) {
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status == MHLA_OK) mhla_model_set_context(model, context);
    }
    if (status == MHLA_OK)
        status = mhla_model_evaluate(model, &result, data, split, limit, isatty(STDERR_FILENO) ? progress : NULL, NULL);
    if (status == MHLA_OK) (json ? print_json : print_text)(model, &result);
    mhla_evaluation_free(&result);
    mhla_model_free(model);
    mhla_context_free(context);
    return status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
}
