/* What a recipe may say: a row per key, with its default; those of a task and of its models come from tables of their own. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "file/toml.h"
#include "train/train.h"

#define INT MHLA_RECIPE_INT
#define REAL MHLA_RECIPE_REAL
#define TEXT MHLA_RECIPE_TEXT
#define BOOL MHLA_RECIPE_BOOL

static const mhla_recipe_row own[] = {
    {"task", TEXT, "images", 0, 0, "images|text|diffusion|video|autoencoder|text-to-image",
     "what to learn: classes of images, the next token of text, images of a class, clips of a class or (with "
     "data.captions) of a caption, latents of images, images of captions"},
    {"seed", INT, "0", 0, 9e15, NULL, "seed of initial weights, data order, augmentation and dropout"},

    {"train.epochs", REAL, "10", 0.001, 100000, NULL, "passes over the training data"},
    {"train.steps", INT, "0", 0, 1e12, NULL, "updates in all; 0: by epochs"},
    {"train.batch", INT, "64", 1, 65536, NULL, "images, or windows of text, per update"},
    {"train.accumulate", INT, "1", 1, 65536, NULL, "split the batch into N pieces, one after the other: less memory"},
    {"train.parts", INT, "0", 0, 65536, NULL,
     "cut the batch into N parts for at most N processes, which all get the same bytes; 0: 8 under mpirun or srun, "
     "else 1"},
    {"train.recompute", BOOL, "false", 0, 0, NULL, "compute blocks again in the backward pass: less memory"},
    {"train.dtype", TEXT, "float32", 0, 0, "float32|bfloat16",
     "of products; bfloat16 is faster on CPUs that multiply it; weights, gradients and optimiser stay float32"},
    {"train.optimizer", TEXT, "adamw", 0, 0, "adamw|sgd", "which optimiser"},
    {"train.rate", REAL, "0.001", 0, 1e30, NULL, "peak learning rate"},
    {"train.min_rate", REAL, "0", 0, 1000, NULL, "final learning rate"},
    {"train.schedule", TEXT, "cosine", 0, 0, "cosine|cosine-after|linear|constant",
     "how: cosine as timm's, or beginning after the warm-up"},
    {"train.warmup_epochs", REAL, "0", 0, 100000, NULL, "epochs of warm-up"},
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
    {"train.init", TEXT, "", 0, 0, NULL, "a model or run to start from; tensors that do not fit are initialized"},
    {"train.freeze", MHLA_RECIPE_TEXTS, NULL, 0, 0, NULL, "patterns of parameters that are not trained"},

    {"eval.epochs", REAL, "1", 0, 100000, NULL, "evaluate every N epochs and at the end; 0: only at the end"},
    {"eval.steps", INT, "0", 0, 1e12, NULL, "the same in updates; 0: by epochs"},
    {"eval.limit", INT, "0", 0, 1e12, NULL, "evaluate at most N images, or about N tokens; 0: all"},
    {"checkpoint.steps", INT, "0", 0, 1e12, NULL, "also write a checkpoint every N updates"},
    {"checkpoint.minutes", REAL, "10", 0, 1e6, NULL, "also write a checkpoint every N minutes; 0: never"},
    {"log.steps", INT, "10", 1, 1e9, NULL, "write a line of metrics.jsonl every N updates"},
    {0},
};
static const mhla_task *const tasks[] = {&mhla_task_images, &mhla_task_text, &mhla_task_diffusion,
                                         &mhla_task_autoencoder, &mhla_task_text_to_image};
enum { TASKS = sizeof tasks / sizeof *tasks };

/* A table in the making: a name that is there already is not added again. Kept as long as the program. */
typedef struct table {
    struct table *next;
    const mhla_task *task;         /* NULL: all of them */
    const mhla_architecture *arch; /* NULL: all that have the task's role */
    mhla_recipe_row *rows;         /* [capacity], ended by an empty one */
    int count, capacity;
} table;

static int add_row(table *t, const mhla_recipe_row *r, const char *prefix) {
    const size_t n = strlen(prefix);
    for (int i = 0; i < t->count; i++) /* the first that has it: tasks and architectures share keys */
        if (strncmp(t->rows[i].name, prefix, n) == 0 && strcmp(t->rows[i].name + n, r->name) == 0) return 1;
    if (t->count + 1 >= t->capacity) {
        const int capacity = t->capacity ? 2 * t->capacity : 128;
        mhla_recipe_row *rows = realloc(t->rows, (size_t)capacity * sizeof *rows);
        if (rows == NULL) return 0;
        t->rows = rows;
        t->capacity = capacity;
    }
    const size_t size = n + strlen(r->name) + 1;
    char *name = malloc(size);
    if (name == NULL) return 0;
    snprintf(name, size, "%s%s", prefix, r->name);
    t->rows[t->count] = *r;
    t->rows[t->count].name = name;
    t->rows[++t->count] = (mhla_recipe_row){0};
    return 1;
}

static int add_rows(table *t, const mhla_recipe_row *r, const char *prefix) {
    int fine = r != NULL;
    for (; fine && r->name; r++) fine = add_row(t, r, prefix);
    return fine;
}

static int fill(table *t) {
    int fine = add_rows(t, own, "");
    for (int i = 0; i < TASKS && fine; i++) {
        if (t->task && tasks[i] != t->task) continue;
        if (tasks[i]->shared) fine = add_rows(t, tasks[i]->shared, "");
        fine = fine && add_rows(t, tasks[i]->rows, "");
    }
    const mhla_architecture *a;
    for (int i = 0; i < TASKS && fine; i++)
        for (int k = 0; (a = mhla_architecture_at(k)) != NULL && fine; k++)
            if ((t->task == NULL || tasks[i] == t->task) && (t->arch == NULL || a == t->arch) &&
                mhla_architecture_has(a, tasks[i]->role))
                fine = add_rows(t, a->rows(), "model.");
    return fine;
}

static void table_free(table *t) {
    for (int i = 0; t && i < t->count; i++) free((char *)(uintptr_t)t->rows[i].name);
    if (t) free(t->rows);
    free(t);
}

const mhla_recipe_row *mhla_train_rows(const mhla_task *task, const mhla_architecture *arch) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static table *all;
    pthread_mutex_lock(&lock);
    table *t = all;
    while (t && (t->task != task || t->arch != arch)) t = t->next;
    if (t == NULL && (t = calloc(1, sizeof *t)) != NULL) {
        t->task = task;
        t->arch = arch;
        if (fill(t)) {
            t->next = all;
            all = t;
        } else {
            table_free(t);
            t = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return t ? t->rows : NULL;
}

/* ---- Which task ---- */

typedef struct wanted {
    char task[64], model[64];
    int captions; /* data.captions is there */
} wanted;

static void see(wanted *w, const char *task, const char *model, const char *captions) {
    if (captions) w->captions = *captions != '\0';
    if (task) snprintf(w->task, sizeof w->task, "%s", task);
    if (model) snprintf(w->model, sizeof w->model, "%s", model);
}

/* The keys of a recipe that tell the task; whatever else is in it is checked later, by its table. */
static mhla_status see_file(wanted *w, const char *path) {
    const size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        json_t *tree = NULL;
        MHLA_TRY(mhla_json_load(&tree, path));
        see(w, json_string_value(json_object_get(tree, "task")),
            json_string_value(json_object_get(json_object_get(tree, "model"), "model")),
            json_string_value(json_object_get(json_object_get(tree, "data"), "captions")));
        json_decref(tree);
        return MHLA_OK;
    }
    mhla_file file;
    mhla_toml *document;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_toml_parse(&document, (const char *)file.data, file.size, path);
    if (status == MHLA_OK) {
        const mhla_toml_node *root = mhla_toml_root(document);
        see(w, mhla_toml_text(mhla_toml_find(root, "task")),
            mhla_toml_text(mhla_toml_find(mhla_toml_find(root, "model"), "model")),
            mhla_toml_text(mhla_toml_find(mhla_toml_find(root, "data"), "captions")));
        mhla_toml_free(document);
    }
    mhla_file_unmap(&file);
    return status;
}

/* Is this what a model of the architecture is trained for where no task is named? */
static int is_for(const mhla_architecture *a, const mhla_task *task) {
    return a->task ? strcmp(a->task, task->name) == 0 : mhla_architecture_has(a, task->role);
}

mhla_status mhla_task_find(const mhla_task **task, const mhla_architecture **arch, const char *recipe,
                           const char *const *settings, int count) {
    wanted w = {0};
    *task = tasks[0];
    if (recipe) MHLA_TRY(see_file(&w, recipe));
    for (int i = 0; i < count; i++) {
        if (strncmp(settings[i], "task=", 5) == 0) snprintf(w.task, sizeof w.task, "%s", settings[i] + 5);
        if (strncmp(settings[i], "model.model=", 12) == 0) snprintf(w.model, sizeof w.model, "%s", settings[i] + 12);
        if (strncmp(settings[i], "data.captions=", 14) == 0) w.captions = settings[i][14] != '\0';
    }
    if (strcmp(w.task, "video") == 0 || (*w.task == '\0' && w.captions)) /* clips are learned as images are */
        snprintf(w.task, sizeof w.task, "%s", w.captions ? "text-to-image" : "diffusion");
    int known = *w.task == '\0';
    *arch = mhla_architecture_of_preset(w.model);
    for (int i = TASKS - 1; i >= 0; i--) /* of several, the first */
        if (*w.task ? strcmp(w.task, tasks[i]->name) == 0 : *arch && is_for(*arch, tasks[i])) {
            *task = tasks[i];
            known = 1;
        }
    if (!known)
        return mhla_fail(MHLA_EINVAL, "the task is %s: expected %s, %s, %s, video, %s or %s", MHLA_QUOTE(w.task),
                         tasks[0]->name, tasks[1]->name, tasks[2]->name, tasks[3]->name, tasks[4]->name);
    if (*arch && !mhla_architecture_has(*arch, (*task)->role)) *arch = NULL; /* its table says what there is */
    return MHLA_OK;
}

mhla_status mhla_recipe_query(int i, mhla_recipe_key *key) {
    static const char *const kinds[] = {"yes or no", "integer", "number", "text", "integers", "numbers", "texts"};
    const mhla_recipe_row *rows = mhla_train_rows(NULL, NULL);
    if (rows == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a table of settings");
    for (int k = 0; k <= i; k++)
        if (rows[k].name == NULL) return MHLA_ERANGE;
    const mhla_recipe_row *r = &rows[i];
    const mhla_recipe_key full = {sizeof full, r->name, r->choices ? r->choices : kinds[r->type],
                                  r->fallback ? r->fallback : "", r->help};
    return mhla_struct_out(key, &full, sizeof full, "mhla_recipe_key");
}
