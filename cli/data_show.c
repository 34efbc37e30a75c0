/* mhla data show: a grid of training images after a recipe's augmentation, and their labels. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"

static const char *recipe, *out;
static int64_t count = 32, columns = 8, seed = -1;
static cli_texts set;

static const cli_option options[] = {
    {"recipe,r", CLI_TEXT, &recipe, "RECIPE",
     "the recipe whose augmentation to show: a file or a name, as for mhla train (default: none)"},
    {"out,o", CLI_TEXT, &out, "FILE", "the image to write, .png or .jpg; required"},
    {"count,n", CLI_INT, &count, "N", "number of images, at most 400 (default: 32)"},
    {"columns", CLI_INT, &columns, "N", "images in a row (default: 8)"},
    {"seed", CLI_COUNT, &seed, "N", "random seed (default: the recipe's)"},
    {"set", CLI_TEXTS, &set, "KEY=VALUE", "a key of the recipe, such as augment.mixup=0.8; may be repeated"},
    {0},
};
static const cli_usage usage = {
    .verb = "data show",
    .arguments = "[DATA]",
    .options = options,
    .text =
        "Writes the first training images of a recipe after augmentation (crop, flip, RandAugment, erasing, mixup,\n"
        "cutmix), and prints the classes of each image. DATA is a folder or the name of a dataset of mhla data\n"
        "(default: the recipe's).\n",
};

static void print_labels(void *user, const mhla_preview_picture *p) {
    const int64_t across = *(const int64_t *)user;
    printf("row %lld column %lld  image %lld ", (long long)(p->number / across + 1),
           (long long)(p->number % across + 1), (long long)p->index);
    for (int i = 0; i < p->labels; i++) {
        printf(i ? " + " : " ");
        if (*p->name[i])
            printf("%s", p->name[i]);
        else
            printf("class %d", p->label[i]);
        if (p->labels > 1) printf(" %.2f", p->share[i]);
    }
    printf("\n");
}

int data_show(int argc, char **argv) {
    enum { OWN = 2 };
    int given;
    const char *settings[sizeof set.text / sizeof *set.text + OWN];
    char source[4200], number[40];
    int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given > 1) return cli_wrong(usage.verb, "\"%s\" is not expected", argv[1]);
    if (out == NULL) return cli_wrong(usage.verb, "--out is missing");
    if (count > 400) return cli_wrong(usage.verb, "--count is %lld: expected 1 to 400", (long long)count);
    if (columns > count) columns = count;
    if (!cli_writable(out)) {
        fprintf(stderr, "mhla %s: %s: cannot be written: %s\n", usage.verb, out, strerror(errno));
        return CLI_FAILED;
    }
    int n = 0;
    for (; n < set.count; n++) settings[n] = set.text[n];
    if (given) {
        if (snprintf(source, sizeof source, "data.source=%s", argv[0]) >= (int)sizeof source)
            return cli_wrong(usage.verb, "the name of the data is too long");
        settings[n++] = source;
    }
    if (seed >= 0) {
        snprintf(number, sizeof number, "seed=%lld", (long long)seed);
        settings[n++] = number;
    }
    char path[4096];
    if (recipe && (code = recipe_find(usage.verb, path, recipe)) >= 0) return code;
    const mhla_status status =
        mhla_train_preview(out, recipe ? path : NULL, settings, n, count, (int)columns, print_labels, &columns);
    if (status == MHLA_OK) return CLI_OK;
    cli_failed(usage.verb, status);
    return status == MHLA_EINVAL ? CLI_USAGE : CLI_FAILED; /* a file's is MHLA_EDATA */
}
