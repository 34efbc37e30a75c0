/* mhla eval: how well a model does: images of a dataset that it gets right; text that it predicts, questions that it
 * answers (eval_lm.c). */
#include <mhla/lm.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "eval.h"

static cli_texts data;
static const char *split, *weights;
static int64_t limit, threads;
static int json, classes;
static eval_options language;

static const cli_option options[] = {
    {"data", CLI_TEXTS, &data, "DATA", "data to evaluate on, as after MODEL; may be repeated"},
    {"split", CLI_TEXT, &split, "SPLIT", "images: test (default) or train"},
    {"classes", CLI_FLAG, &classes, NULL, "images: also print a line for each class"},
    {"choices", CLI_TEXT, &language.choices, "FILE", "text: questions with choices, JSON lines"},
    {"task", CLI_TEXT, &language.task, "TASK", "text: DATA are files of this task, JSON lines"},
    {"longbench", CLI_TEXT, &language.longbench, "DIR",
     "text: the tasks of LongBench in DIR, with its dataset2prompt.json and dataset2maxlen.json"},
    {"needle", CLI_FLAG, &language.needle, NULL, "text: find a number far back in the text, by length and depth"},
    {"lengths", CLI_TEXT, &language.lengths, "LIST",
     "--needle: tokens; default: a quarter, half and all of the model's context"},
    {"depths", CLI_TEXT, &language.depths, "LIST", "--needle: percent of the text; default: 0,25,50,75,100"},
    {"samples", CLI_INT, &language.repeats, "N", "--needle: texts of each length and depth; default: 10"},
    {"seed", CLI_COUNT, &language.seed, "N", "--needle: of the texts; default: 0"},
    {"out", CLI_TEXT, &language.out, "PAGE", "--needle: a page of HTML with the heat map"},
    {"log-samples", CLI_TEXT, &language.samples, "FILE",
     "--choices, --task, --longbench: write a line of JSON for each question, with the answer"},
    {"context", CLI_INT, &language.max_tokens, "N",
     "--longbench: tokens of prompt and answer; default: the model's context"},
    {"window", CLI_INT, &language.window, "N", "text: tokens of a rolling window; default: the model's context"},
    {"by-position", CLI_FLAG, &language.by_position, NULL, "text: also print bits per token by position in the window"},
    {"bucket", CLI_INT, &language.bucket, "N",
     "text: positions in a line of this table; default: a sixteenth of the window"},
    {"beyond", CLI_TEXT, &language.beyond, "POLICY", "text: past the trained length: error (default), clamp, chunk"},
    {"dtype", CLI_TEXT, &language.storage, "TYPE",
     "weights and products as float32, bfloat16, q8_0; or all, one after the other"},
    {"storage", CLI_TEXT, &language.storage, "TYPE", NULL},
    {"batch", CLI_INT, &language.batch, "N", "text: windows read at once"},
    {"limit", CLI_INT, &limit, "N", "the first N images, tokens, pages or questions (of each task) only"},
    {"weights", CLI_TEXT, &weights, "WHICH", "raw, or ema (averaged); default: whichever scored better in training"},
    {"threads", CLI_INT, &threads, "N", "default: what OpenMP would use"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "eval",
    .arguments = "MODEL [DATA...]",
    .options = options,
    .text = "Evaluates a model. MODEL is a folder with config.json and model.safetensors, a .safetensors file with\n"
            "config.json in the same folder, a .gguf file, or a run: its best checkpoint, with whichever scored\n"
            "better, the raw weights or their average.\n"
            "\n"
            "A classifier: accuracy on labelled images. DATA is by default the dataset of the run.\n"
            "\n"
            "A language model: perplexity and bits per byte of texts, and accuracy at multiple choice, both as\n"
            "lm-evaluation-harness computes them. DATA are files and folders of UTF-8 text. A .jsonl file has a\n"
            "document per line, under the key \"text\"; in other files a line with only a form feed ends a document.\n"
            "\n"
            "Tasks: --task reads the files of one task as published on the Hugging Face hub: piqa, arc_easy, "
            "arc_challenge,\n"
            "openbookqa, boolq, winogrande, mmlu, lambada_openai, wikitext. --longbench reads a folder of LongBench.\n"
            "--needle needs no files. docs/evaluation.md describes them.\n",
};

void eval_progress(void *user, int64_t done, int64_t all) {
    static double shown;
    (void)user;
    if (mhla_rank() > 0 || (now_seconds() - shown < 0.2 && done < all)) return;
    shown = now_seconds();
    if (all < 1 << 20)
        fprintf(stderr, done == all ? "\r\033[K" : "\r%lld of %lld", (long long)done, (long long)all);
    else
        fprintf(stderr, done == all ? "\r\033[K" : "\r%.0f %%", 100.0 * (double)done / (double)all);
}

static const char *file_of(const mhla_model *model) {
    mhla_model_info info = {.size = sizeof info};
    return mhla_model_query(model, &info) == MHLA_OK && info.weights ? info.weights : "";
}

/* One type of weights: what came out. */
typedef struct image_row {
    const char *dtype;
    mhla_evaluation r;
} image_row;

static void print_classes(const mhla_model *model, const mhla_evaluation *r) {
    for (int i = 0; i < r->classes; i++) {
        const char *name = mhla_model_class_name(model, i);
        if (r->class_images[i] == 0) continue;
        printf("  %6.2f %%  %5lld images  %s\n", 100.0 * (double)r->class_right[i] / (double)r->class_images[i],
               (long long)r->class_images[i], name ? name : "");
    }
}

/* What each type costs: its accuracy, and how far its logits are from the first one's. */
static void print_dtypes(const image_row *rows, int n) {
    printf("\n%-9s %9s %9s %12s %12s %9s\n", "dtype", "accuracy", "loss", "logits, max", "rms", "images/s");
    for (int i = 0; i < n; i++) {
        const mhla_evaluation *r = &rows[i].r;
        printf("%-9s %7.2f %% %9.4f ", rows[i].dtype, 100.0 * (double)r->top1 / (double)r->images, r->loss);
        if (i)
            printf("%12.3g %12.3g", r->logits_max, r->logits_rms);
        else
            printf("%12s %12s", "-", "-");
        printf(" %9.0f\n", (double)r->images / r->seconds);
    }
    printf("\nlogits: differences from those of %s\n", rows[0].dtype);
}

static void print_text(mhla_model *model, const image_row *rows, int count) {
    const mhla_evaluation *r = &rows[0].r;
    const double n = (double)r->images;
    printf("weights     %s\n", file_of(model));
    printf("images      %lld\n", (long long)r->images);
    if (r->unreadable) printf("unreadable  %lld files, not counted\n", (long long)r->unreadable);
    printf("accuracy    %.2f %%\n", 100.0 * (double)r->top1 / n);
    if (r->classes > 5) printf("among 5     %.2f %%\n", 100.0 * (double)r->top5 / n);
    printf("loss        %.4f\n", r->loss);
    printf("speed       %.0f images/s\n", n / r->seconds);
    if (classes) print_classes(model, r);
    if (count > 1) print_dtypes(rows, count);
}

static void put_dtypes(const image_row *rows, int n) {
    json_put_open("dtypes", '[');
    for (int i = 0; i < n; i++) {
        const mhla_evaluation *r = &rows[i].r;
        json_put_open(NULL, '{');
        json_put_text("dtype", rows[i].dtype);
        json_put_real("accuracy", (double)r->top1 / (double)r->images);
        json_put_real("loss", r->loss);
        json_put_real("logits_max", r->logits_max);
        json_put_real("logits_rms", r->logits_rms);
        json_put_real("images_per_second", (double)r->images / r->seconds);
        json_put_close('}');
    }
    json_put_close(']');
}

static void print_json(mhla_model *model, const image_row *rows, int count) {
    const mhla_evaluation *r = &rows[0].r;
    const double n = (double)r->images;
    json_put_open(NULL, '{');
    json_put_text("weights", file_of(model));
    json_put_int("images", r->images);
    json_put_int("unreadable", r->unreadable);
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
    if (count > 1) put_dtypes(rows, count);
    json_put_close('}');
}

static mhla_status open_as(mhla_model **model, const char *path, const char *dtype, const mhla_context *context) {
    const mhla_status status =
        mhla_model_open_as(model, model_path(path),
                           &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = dtype, .weights = weights});
    if (status == MHLA_OK) mhla_model_set_context(*model, context);
    return status;
}

/* `model`, which is freed here, and the other types of it, each beside it. */
static int eval_images(mhla_model *model) {
    image_row rows[EVAL_STORAGES] = {{.dtype = "float32"}};
    int n = 0;
    const char *wrong = language.choices       ? "choices"
                        : language.task        ? "task"
                        : language.longbench   ? "longbench"
                        : language.needle      ? "needle"
                        : language.lengths     ? "lengths"
                        : language.depths      ? "depths"
                        : language.repeats     ? "samples"
                        : language.seed        ? "seed"
                        : language.out         ? "out"
                        : language.max_tokens  ? "context"
                        : language.samples     ? "log-samples"
                        : language.window      ? "window"
                        : language.by_position ? "by-position"
                        : language.bucket      ? "bucket"
                        : language.beyond      ? "beyond"
                        : language.batch       ? "batch"
                                               : NULL;
    if (wrong || language.files > 1) {
        mhla_model_free(model);
        return wrong ? cli_wrong(usage.verb, "--%s is for language models, this one classifies images", wrong)
                     : cli_wrong(usage.verb, "%d DATA are given: a classifier takes one", language.files);
    }
    mhla_status status = MHLA_OK;
    for (; status == MHLA_OK && (n == 0 || eval_storage(language.storage, n)); n++) {
        mhla_model *other = NULL;
        rows[n].dtype = eval_storage(language.storage, n);
        rows[n].r.size = sizeof rows[n].r;
        if (n) status = open_as(&other, language.path, rows[n].dtype, language.context);
        if (status == MHLA_OK)
            status = mhla_model_evaluate_beside(n ? other : model, n ? model : NULL, &rows[n].r,
                                                language.files ? language.data[0] : NULL, split ? split : "test", limit,
                                                isatty(STDERR_FILENO) ? eval_progress : NULL, NULL);
        mhla_model_free(other);
    }
    if (status == MHLA_OK) (json ? print_json : print_text)(model, rows, n);
    for (int i = 0; i < n; i++) mhla_evaluation_free(&rows[i].r);
    mhla_model_free(model);
    return status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
}

int cmd_eval(int argc, char **argv) {
    int given = 0;
    int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given < 1) return cli_wrong(usage.verb, "a MODEL is expected");
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (weights && strcmp(weights, "raw") != 0 && strcmp(weights, "ema") != 0)
        return cli_wrong(usage.verb, "--weights is \"%s\": expected raw or ema", weights);
    for (int i = 1; i < given; i++) {
        if (data.count == (int)(sizeof data.text / sizeof *data.text))
            return cli_wrong(usage.verb, "more than %d DATA; name a folder", data.count);
        data.text[data.count++] = argv[i];
    }
    language.path = argv[0];
    language.data = data.text;
    language.files = data.count;
    language.limit = limit;
    language.json = json;
    mhla_model *model = NULL;
    mhla_context *context = NULL;
    mhla_status status = MHLA_OK;
    if (threads)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    if (status == MHLA_OK) status = open_as(&model, argv[0], eval_storage(language.storage, 0), context);
    if (status == MHLA_OK) {
        language.context = context;
        language.weights = weights;
        code = mhla_model_has(model, MHLA_ROLE_DECODER) ? eval_language(model, &language) : eval_images(model);
    } else
        code = cli_failed(usage.verb, status);
    mhla_context_free(context);
    return code;
}
