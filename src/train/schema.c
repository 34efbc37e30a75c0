/* What a recipe may say: a row per key, with its default; those of the model come from its own table. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT
#define BOOL MHLA_RECIPE_BOOL

static const mhla_recipe_row own[] = {
    {"seed", INT, "0", 0, 9e15, NULL, "of initial values, order, augmentation, dropping"},
    {"data.source", TEXT, "fashion-mnist", 0, 0, NULL,
     "a folder, or what mhla data fetched: fashion-mnist, cifar10-test"},
    {"data.workers", INT, "1", 0, 256, NULL, "threads that read and augment"},

    {"train.epochs", REAL, "10", 0.001, 100000, NULL, "passes over the training images"},
    {"train.steps", INT, "0", 0, 1e12, NULL, "updates in all; 0: by epochs"},
    {"train.batch", INT, "64", 1, 65536, NULL, "images of an update"},
    {"train.accumulate", INT, "1", 1, 65536, NULL, "the batch in so many parts, one after the other: less memory"},
    {"train.recompute", BOOL, "false", 0, 0, NULL, "compute blocks again in the backward pass: less memory"},
    {"train.optimizer", TEXT, "adamw", 0, 0, "adamw|sgd", "which optimiser"},
    {"train.rate", REAL, "0.001", 0, 1e30, NULL, "peak learning rate"},
    {"train.min_rate", REAL, "0", 0, 1000, NULL, "what it falls to"},
    {"train.schedule", TEXT, "cosine", 0, 0, "cosine|cosine-after|linear|constant",
     "how: cosine as timm's, or beginning after the warm-up"},
    {"train.warmup_epochs", REAL, "0", 0, 100000, NULL, "how long it rises"},
    {"train.warmup_rate", REAL, "1e-6", 0, 1000, NULL, "from what"},
    {"train.weight_decay", REAL, "0.05", 0, 100, NULL, "of all but norms, biases and position embeddings"},
    {"train.beta1", REAL, "0.9", 0, 0.999999, NULL, "AdamW"},
    {"train.beta2", REAL, "0.999", 0, 0.999999999, NULL, "AdamW"},
    {"train.eps", REAL, "1e-8", 0, 1, NULL, "AdamW"},
    {"train.momentum", REAL, "0.9", 0, 0.999999, NULL, "SGD"},
    {"train.clip", REAL, "0", 0, 1e9, NULL, "largest norm of the gradient; 0: any"},
    {"train.ema", REAL, "0", 0, 0.9999999, NULL, "decay of an average of the weights; 0: none"},
    {"train.smoothing", REAL, "0", 0, 0.99, NULL, "of labels"},
    {"train.drop_path", REAL, "0", 0, 0.99, NULL, "of branches, at the last block; grows from 0"},
    {"train.mix_renormalise", BOOL, "false", 0, 0, NULL, "rows of mixing matrices sum to 1 after each update"},
    {"train.init", TEXT, "", 0, 0, NULL, "a model or run to start from; what does not fit is made anew"},
    {"train.freeze", MHLA_RECIPE_TEXTS, NULL, 0, 0, NULL, "patterns of parameters that stay as they are"},

    {"augment.crop", TEXT, "none", 0, 0, "none|random|pad",
     "random: a resized part; pad: shifted by at most augment.pad pixels"},
    {"augment.scale", MHLA_RECIPE_REALS, "0.08,1", 0, 1, NULL, "random crop: part of the area, from, to"},
    {"augment.pad", INT, "4", 0, 256, NULL, "pad: black pixels around"},
    {"augment.flip", REAL, "0", 0, 1, NULL, "probability of a horizontal flip"},
    {"augment.randaugment", TEXT, "none", 0, 0, NULL, "timm's words: rand-m9-mstd0.5-inc1"},
    {"augment.erasing", REAL, "0", 0, 1, NULL, "probability of random erasing"},
    {"augment.mixup", REAL, "0", 0, 100, NULL, "alpha of mixup"},
    {"augment.cutmix", REAL, "0", 0, 100, NULL, "alpha of cutmix"},
    {"augment.mix_prob", REAL, "1", 0, 1, NULL, "probability that a batch is mixed"},

    {"eval.epochs", REAL, "1", 0, 100000, NULL, "evaluate after so many epochs, and at the end; 0: at the end only"},
    {"eval.limit", INT, "0", 0, 1e12, NULL, "with at most so many images; 0: all"},
    {"checkpoint.steps", INT, "0", 0, 1e12, NULL, "a checkpoint after so many updates, besides those of evaluations"},
    {"checkpoint.minutes", REAL, "10", 0, 1e6, NULL, "and after so many minutes; 0: never"},
    {"log.steps", INT, "10", 1, 1e9, NULL, "a line of metrics.jsonl after so many updates"},
};
enum { OWN = sizeof own / sizeof *own, MOST = 128 };

const mhla_recipe_row *mhla_train_rows(void) {
    static mhla_recipe_row rows[MOST + 1]; /* filled with the same bytes by everybody who comes */
    static char names[MOST][48];
    int n = 0;
    for (int i = 0; i < OWN; i++) rows[n++] = own[i];
    for (const mhla_recipe_row *r = mhla_deit_rows(); r->name && n < MOST; r++) {
        rows[n] = *r;
        snprintf(names[n], sizeof names[n], "model.%s", r->name);
        rows[n].name = names[n];
        n++;
    }
    return rows;
}

mhla_status mhla_recipe_query(int i, mhla_recipe_key *key) {
    static const char *const kinds[] = {"yes or no", "integer", "number", "text", "integers", "numbers", "texts"};
    const mhla_recipe_row *rows = mhla_train_rows();
    for (int k = 0; k <= i; k++)
        if (rows[k].name == NULL) return MHLA_ERANGE;
    const mhla_recipe_row *r = &rows[i];
    const mhla_recipe_key full = {key->size, r->name, r->choices ? r->choices : kinds[r->type],
                                  r->fallback ? r->fallback : "", r->help};
    if (key->size < sizeof key->size || key->size > sizeof full)
        return mhla_fail(MHLA_EINVAL, "key.size is %zu: set it to sizeof the structure", key->size);
    memcpy(key, &full, key->size);
    return MHLA_OK;
}
