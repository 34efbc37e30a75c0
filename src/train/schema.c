/* What a recipe may say: a row per key, with its default; those of a task and of its models come from tables of their own. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "io/file.h"
#include "io/toml.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT
#define BOOL MHLA_RECIPE_BOOL

static const mhla_recipe_row own[] = {
    {"task", TEXT, "images", 0, 0, "images|text|diffusion",
     "what is learnt: classes of pictures, the next token of text, or to make pictures"},
    {"seed", INT, "0", 0, 9e15, NULL, "of initial values, order, augmentation, dropping"},

    {"train.epochs", REAL, "10", 0.001, 100000, NULL, "passes over the training data"},
    {"train.steps", INT, "0", 0, 1e12, NULL, "updates in all; 0: by epochs"},
    {"train.batch", INT, "64", 1, 65536, NULL, "pictures, or windows of text, of an update"},
    {"train.accumulate", INT, "1", 1, 65536, NULL, "the batch in so many parts, one after the other: less memory"},
    {"train.recompute", BOOL, "false", 0, 0, NULL, "compute blocks again in the backward pass: less memory"},
    {"train.optimizer", TEXT, "adamw", 0, 0, "adamw|sgd", "which optimiser"},
    {"train.rate", REAL, "0.001", 0, 1e30, NULL, "peak learning rate"},
    {"train.min_rate", REAL, "0", 0, 1000, NULL, "what it falls to"},
    {"train.schedule", TEXT, "cosine", 0, 0, "cosine|cosine-after|linear|constant",
     "how: cosine as timm's, or beginning after the warm-up"},
    {"train.warmup_epochs", REAL, "0", 0, 100000, NULL, "how long it rises"},
    {"train.warmup_steps", INT, "0", 0, 1e12, NULL, "the same in updates; 0: by epochs"},
    {"train.warmup_rate", REAL, "1e-6", 0, 1000, NULL, "from what"},
    {"train.weight_decay", REAL, "0.05", 0, 100, NULL, "of all but norms, biases and position embeddings"},
    {"train.beta1", REAL, "0.9", 0, 0.999999, NULL, "AdamW"},
    {"train.beta2", REAL, "0.999", 0, 0.999999999, NULL, "AdamW"},
    {"train.eps", REAL, "1e-8", 1e-30, 1, NULL, "AdamW"},
    {"train.momentum", REAL, "0.9", 0, 0.999999, NULL, "SGD"},
    {"train.clip", REAL, "0", 0, 1e9, NULL, "largest norm of the gradient; 0: any"},
    {"train.ema", REAL, "0", 0, 0.9999999, NULL, "decay of an average of the weights; 0: none"},
    {"train.mix_renormalise", BOOL, "false", 0, 0, NULL, "rows of mixing matrices sum to 1 after each update"},
    {"train.init", TEXT, "", 0, 0, NULL, "a model or run to start from; what does not fit is made anew"},
    {"train.freeze", MHLA_RECIPE_TEXTS, NULL, 0, 0, NULL, "patterns of parameters that stay as they are"},

    {"eval.epochs", REAL, "1", 0, 100000, NULL, "evaluate after so many epochs, and at the end; 0: at the end only"},
    {"eval.steps", INT, "0", 0, 1e12, NULL, "the same in updates; 0: by epochs"},
    {"eval.limit", INT, "0", 0, 1e12, NULL, "with at most so many pictures, or about so many tokens; 0: all"},
    {"checkpoint.steps", INT, "0", 0, 1e12, NULL, "a checkpoint after so many updates, besides those of evaluations"},
    {"checkpoint.minutes", REAL, "10", 0, 1e6, NULL, "and after so many minutes; 0: never"},
    {"log.steps", INT, "10", 1, 1e9, NULL, "a line of metrics.jsonl after so many updates"},
    {0},
};
enum { MOST = 192 };

static const mhla_task *const tasks[] = {&mhla_task_images, &mhla_task_text, &mhla_task_diffusion};
enum { TASKS = sizeof tasks / sizeof *tasks };

/* A table in the making: a name that is there already is not added again. */
typedef struct table {
    mhla_recipe_row rows[MOST + 1];
    char names[MOST][48];
    int count;
} table;

static void add_rows(table *t, const mhla_recipe_row *r, const char *prefix) {
    for (; r->name && t->count < MOST; r++) {
        char *name = t->names[t->count];
        int known = 0;
        snprintf(name, sizeof t->names[0], "%s%s", prefix, r->name);
        for (int i = 0; i < t->count && !known; i++) known = strcmp(t->rows[i].name, name) == 0;
        if (known) continue;
        t->rows[t->count] = *r;
        t->rows[t->count++].name = name;
    }
}

const mhla_recipe_row *mhla_train_rows(const mhla_task *task) {
    static table tables[TASKS + 1]; /* filled by whoever comes first; the last one is of all tasks */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int which = TASKS;
    for (int i = 0; i < TASKS; i++)
        if (tasks[i] == task) which = i;
    table *t = &tables[which];
    pthread_mutex_lock(&lock);
    if (t->count == 0) {
        add_rows(t, own, "");
        for (int i = 0; i < TASKS; i++)
            if (which == TASKS || which == i) {
                if (tasks[i]->shared) add_rows(t, tasks[i]->shared, "");
                add_rows(t, tasks[i]->rows, "");
            }
        for (int i = 0; i < TASKS; i++)
            if (which == TASKS || which == i) add_rows(t, tasks[i]->family->rows(), "model.");
    }
    pthread_mutex_unlock(&lock);
    return t->rows;
}

/* ---- Which task ---- */

typedef struct wanted {
    char task[64], model[64];
} wanted;

static mhla_status see_key(void *user, const char *key, const json_t *value, int line) {
    wanted *w = user;
    (void)line;
    const char *text = json_string_value(value);
    if (text && strcmp(key, "task") == 0) snprintf(w->task, sizeof w->task, "%s", text);
    if (text && strcmp(key, "model.model") == 0) snprintf(w->model, sizeof w->model, "%s", text);
    return MHLA_OK;
}

/* The two keys of a recipe that tell the task; whatever else is in it is checked later, by its table. */
static mhla_status see_file(wanted *w, const char *path) {
    const size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        json_t *tree = NULL;
        MHLA_TRY(mhla_json_load(&tree, path));
        see_key(w, "task", json_object_get(tree, "task"), 0);
        see_key(w, "model.model", json_object_get(json_object_get(tree, "model"), "model"), 0);
        json_decref(tree);
        return MHLA_OK;
    }
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_toml_parse((const char *)file.data, file.size, path, see_key, w);
    mhla_file_unmap(&file);
    return status;
}

static int is_one_of(const char *names, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = names; n && at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == '|' || at[n] == '\0')) return 1;
    return 0;
}

mhla_status mhla_task_find(const mhla_task **task, const char *recipe, const char *const *settings, int count) {
    wanted w = {0};
    *task = tasks[0];
    if (recipe) MHLA_TRY(see_file(&w, recipe));
    for (int i = 0; i < count; i++) {
        if (strncmp(settings[i], "task=", 5) == 0) snprintf(w.task, sizeof w.task, "%s", settings[i] + 5);
        if (strncmp(settings[i], "model.model=", 12) == 0) snprintf(w.model, sizeof w.model, "%s", settings[i] + 12);
    }
    int known = *w.task == '\0';
    for (int i = 0; i < TASKS; i++)
        if (*w.task ? strcmp(w.task, tasks[i]->name) == 0 : is_one_of(tasks[i]->family->presets, w.model)) {
            *task = tasks[i];
            known = 1;
        }
    if (known) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "the task is %s: expected %s, %s or %s", MHLA_QUOTE(w.task), tasks[0]->name,
                     tasks[1]->name, tasks[2]->name);
}

mhla_status mhla_recipe_query(int i, mhla_recipe_key *key) {
    static const char *const kinds[] = {"yes or no", "integer", "number", "text", "integers", "numbers", "texts"};
    const mhla_recipe_row *rows = mhla_train_rows(NULL);
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
