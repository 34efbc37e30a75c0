#include "measure/longbench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/status.h"

typedef enum metric { F1, F1_ZH, ROUGE, ROUGE_ZH, CODE, RETRIEVAL, RETRIEVAL_ZH, COUNT, CLASS } metric;

static const char *const metric_names[] = {
    "F1",        "F1 by character", "ROUGE-L", "ROUGE-L by character", "edit similarity",
    "retrieval", "retrieval",       "count",   "classification"};

/* A task of LongBench. */
typedef struct long_task {
    const char *name, *group;
    metric metric;
    int paper; /* the paper averages it */
    int line;  /* only the first line of an answer counts: examples in the prompt have one line each */
} long_task;

static const char SINGLE[] = "single-document QA", MULTI[] = "multi-document QA", SUMMARY[] = "summarization",
                  FEW[] = "few-shot", SYNTHETIC[] = "synthetic", PROGRAMS[] = "code";

static const long_task table[MHLA_LONGBENCH_TASKS] = {
    {"narrativeqa", SINGLE, F1, 1, 0},
    {"qasper", SINGLE, F1, 1, 0},
    {"multifieldqa_en", SINGLE, F1, 0, 0},
    {"multifieldqa_zh", SINGLE, F1_ZH, 0, 0},
    {"hotpotqa", MULTI, F1, 1, 0},
    {"2wikimqa", MULTI, F1, 1, 0},
    {"musique", MULTI, F1, 1, 0},
    {"dureader", MULTI, ROUGE_ZH, 0, 0},
    {"gov_report", SUMMARY, ROUGE, 1, 0},
    {"qmsum", SUMMARY, ROUGE, 1, 0},
    {"multi_news", SUMMARY, ROUGE, 1, 0},
    {"vcsum", SUMMARY, ROUGE_ZH, 0, 0},
    {"trec", FEW, CLASS, 0, 1},
    {"triviaqa", FEW, F1, 1, 1},
    {"samsum", FEW, ROUGE, 1, 1},
    {"lsht", FEW, CLASS, 0, 1},
    {"passage_count", SYNTHETIC, COUNT, 0, 0},
    {"passage_retrieval_en", SYNTHETIC, RETRIEVAL, 1, 0},
    {"passage_retrieval_zh", SYNTHETIC, RETRIEVAL_ZH, 1, 0},
    {"lcc", PROGRAMS, CODE, 1, 0},
    {"repobench-p", PROGRAMS, CODE, 1, 0},
};

static const char *mark_of(metric m) {
    return m == RETRIEVAL ? "Paragraph " : m == RETRIEVAL_ZH ? "\xe6\xae\xb5\xe8\x90\xbd" : "";
}

static double score_one(metric m, const char *answer, const char *wanted, const char *const *classes, int count) {
    switch (m) {
    case F1:
    case F1_ZH: return mhla_score_f1(answer, wanted, m == F1_ZH);
    case ROUGE:
    case ROUGE_ZH: return mhla_score_rouge(answer, wanted, m == ROUGE_ZH);
    case CODE: return mhla_score_code(answer, wanted);
    case CLASS: return mhla_score_class(answer, wanted, classes, count);
    case RETRIEVAL:
    case RETRIEVAL_ZH:
    case COUNT: break;
    }
    return mhla_score_number(answer, wanted, mark_of(m));
}

/* ---- Prompts ---- */

mhla_status mhla_prompt_fill(mhla_chars *text, const char *template, const json_t *row, const char *name) {
    for (const char *at = template; *at;) {
        const size_t plain = strcspn(at, "{}");
        MHLA_TRY(mhla_chars_append(text, at, plain));
        at += plain;
        if (*at == '\0') break;
        if (at[1] == at[0]) {
            MHLA_TRY(mhla_chars_append(text, at, 1));
            at += 2;
            continue;
        }
        const size_t n = *at == '{' ? strcspn(at + 1, "{}") : 0;
        char key[64];
        if (n == 0 || at[1 + n] != '}' || n >= sizeof key)
            return mhla_fail(MHLA_EDATA, "%s: the prompt has a brace that is not closed, or closes nothing", name);
        snprintf(key, sizeof key, "%.*s", (int)n, at + 1);
        const json_t *value = json_object_get(row, key);
        if (!json_is_string(value))
            return mhla_fail(MHLA_EDATA, "%s: no text \"%s\", which the prompt of its task has", name, key);
        MHLA_TRY(mhla_chars_append(text, json_string_value(value), json_string_length(value)));
        at += n + 2;
    }
    return MHLA_OK;
}

void mhla_ids_cut_middle(mhla_ids *ids, int64_t most) {
    if (ids->count <= most) return;
    const int64_t first = most / 2, last = most - first;
    memmove(ids->data + first, ids->data + ids->count - last, (size_t)last * sizeof *ids->data);
    ids->count = most;
}

/* ---- A task ---- */

typedef struct bench {
    mhla_model *model;
    const mhla_tokenizer *tokenizer;
    mhla_sequence_desc sequence;
    int64_t context, limit;
    mhla_longbench_fn report;
    void *user;
    /* of the task at hand */
    const long_task *task;
    const char *prompt;
    int64_t new_tokens;
    mhla_longbench_row *row;
    double sum, squares;
    int check;
    int64_t asked, all;
} bench;

typedef struct texts {
    const char **list; /* [count] of an array of the row */
    int count;
} texts;

/* Texts of an array; none where the key is null and may be. */
static mhla_status read_texts(texts *t, const json_t *row, const char *key, int needed, const char *name) {
    const json_t *array = json_object_get(row, key);
    const size_t n = json_array_size(array);
    if (!needed && (array == NULL || json_is_null(array))) return MHLA_OK;
    if (array == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"%s\"", name, key);
    if (!json_is_array(array))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where an array of texts was expected", name, key,
                         mhla_json_type_text(array));
    if (n == 0) return mhla_fail(MHLA_EDATA, "%s: \"%s\" is empty: expected one text or more", name, key);
    t->list = malloc(n * sizeof *t->list);
    if (t->list == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its texts", name);
    for (size_t i = 0; i < n; i++, t->count++) {
        t->list[i] = json_string_value(json_array_get(array, i));
        if (t->list[i] == NULL) return mhla_fail(MHLA_EDATA, "%s: \"%s\": item %zu is not a string", name, key, i);
    }
    return MHLA_OK;
}

/* The likeliest tokens after the prompt, as text. */
static mhla_status answer_to(const bench *b, mhla_chars *answer, const mhla_ids *prompt) {
    mhla_sequence *sequence = NULL;
    mhla_generation *generation = NULL;
    const mhla_generation_desc desc = {.size = sizeof desc, .max_tokens = b->new_tokens};
    mhla_status status = mhla_sequence_create(&sequence, b->model, &b->sequence);
    if (status == MHLA_OK) status = mhla_generation_create(&generation, sequence, prompt->data, prompt->count, &desc);
    while (status == MHLA_OK && mhla_generation_finish(generation) == MHLA_FINISH_NONE) {
        mhla_piece piece = {.size = sizeof piece};
        status = mhla_generation_step(b->model, &generation, 1);
        if (status == MHLA_OK) status = mhla_generation_piece(generation, &piece);
        if (status == MHLA_OK) status = mhla_chars_append(answer, piece.text, piece.bytes);
        const char *line = answer->data;
        size_t left = answer->count;
        while (left && *line == '\n') line++, left--;
        if (b->task->line && left && memchr(line, '\n', left)) break; /* no more of it counts */
    }
    mhla_generation_free(generation);
    mhla_sequence_free(sequence);
    return status == MHLA_OK ? mhla_chars_append(answer, "", 1) : status;
}

/* What of an answer is scored: all of it, or its first line that is not empty. Cut in place. */
static const char *scored_part(const bench *b, char *answer) {
    if (!b->task->line) return answer;
    answer += strspn(answer, "\n");
    answer[strcspn(answer, "\n")] = '\0';
    return answer;
}

/* Ids of the prompt, cut in the middle where it is too long; `text` becomes what is left of it. */
static mhla_status encode_prompt(const bench *b, mhla_ids *ids, mhla_chars *text) {
    const int64_t room = b->context ? b->context - b->new_tokens : INT64_MAX;
    MHLA_TRY(mhla_tokenizer_encode(b->tokenizer, ids, text->data, text->count, MHLA_ENCODE_SPECIAL));
    if (ids->count <= room) return MHLA_OK;
    mhla_ids_cut_middle(ids, room);
    text->count = 0;
    b->row->cut++;
    return mhla_tokenizer_decode(b->tokenizer, text, ids->data, ids->count, MHLA_DECODE_SKIP_SPECIAL);
}

static mhla_status ask(bench *b, mhla_chars *text, const texts *wanted, const texts *classes) {
    mhla_ids ids = {0};
    mhla_chars answer = {0};
    double best = 0.0;
    mhla_status status = encode_prompt(b, &ids, text);
    if (status == MHLA_OK) status = answer_to(b, &answer, &ids);
    if (status == MHLA_OK) status = mhla_chars_append(text, "", 1);
    if (status == MHLA_OK) {
        const char *part = scored_part(b, answer.data);
        for (int i = 0; i < wanted->count; i++) {
            const double score = score_one(b->task->metric, part, wanted->list[i], classes->list, classes->count);
            if (score > best) best = score;
        }
        if (b->report)
            b->report(b->user, &(mhla_longbench_event){.size = sizeof(mhla_longbench_event),
                                                       .task = b->task->name,
                                                       .question = b->row->questions,
                                                       .questions = b->all,
                                                       .prompt = text->data,
                                                       .answer = part,
                                                       .wanted = wanted->list,
                                                       .wanteds = wanted->count,
                                                       .score = best});
        b->row->questions++;
        b->sum += best;
        b->squares += best * best;
    }
    mhla_ids_free(&ids);
    mhla_chars_free(&answer);
    return status;
}

static mhla_status take_row(void *user, json_t *row, const char *name, int *stop) {
    bench *b = user;
    texts wanted = {0}, classes = {0};
    mhla_chars text = {0};
    b->asked++;
    *stop = b->limit && b->asked == b->limit;
    mhla_status status = json_is_object(row) ? read_texts(&wanted, row, "answers", 1, name)
                                             : mhla_fail(MHLA_EDATA, "%s: %s where an object was expected", name,
                                                         mhla_json_type_text(row));
    if (status == MHLA_OK) status = read_texts(&classes, row, "all_classes", b->task->metric == CLASS, name);
    for (int i = 0; i < wanted.count && status == MHLA_OK; i++)
        if (strstr(wanted.list[i], mark_of(b->task->metric)) == NULL)
            status = mhla_fail(MHLA_EDATA, "%s: \"answers\": %s has no \"%s\"", name, MHLA_QUOTE(wanted.list[i]),
                               mark_of(b->task->metric));
    if (status == MHLA_OK) status = mhla_prompt_fill(&text, b->prompt, row, name);
    if (status == MHLA_OK && !b->check) status = ask(b, &text, &wanted, &classes);
    free(wanted.list);
    free(classes.list);
    mhla_chars_free(&text);
    return status;
}

/* ---- A folder ---- */

/* The task's file: FOLDER/NAME.jsonl or FOLDER/data/NAME.jsonl; 0 if neither is there. */
static int file_of(char path[4096], const char *folder, const char *name) {
    struct stat info;
    for (int i = 0; i < 2; i++)
        if (snprintf(path, 4096, "%s/%s%s.jsonl", folder, i ? "data/" : "", name) < 4096 && stat(path, &info) == 0)
            return 1;
    return 0;
}

static mhla_status run_task(bench *b, const long_task *task, const char *path, const json_t *prompts,
                            const json_t *lengths, const char *folder) {
    const json_t *prompt = json_object_get(prompts, task->name), *length = json_object_get(lengths, task->name);
    if (!json_is_string(prompt))
        return mhla_fail(MHLA_EDATA, "%s/dataset2prompt.json: no text \"%s\"", folder, task->name);
    if (!json_is_integer(length) || json_integer_value(length) < 1 || json_integer_value(length) > 1 << 20)
        return mhla_fail(MHLA_EDATA, "%s/dataset2maxlen.json: no number of tokens \"%s\"", folder, task->name);
    b->task = task;
    b->prompt = json_string_value(prompt);
    b->new_tokens = json_integer_value(length);
    b->sum = b->squares = 0.0;
    b->asked = 0;
    if (b->context && b->context < b->new_tokens + 4)
        return mhla_fail(MHLA_ERANGE, "a context of %lld tokens: answers of %s alone take %lld", (long long)b->context,
                         task->name, (long long)b->new_tokens);
    MHLA_TRY(mhla_rows_read(path, 0, take_row, b));
    if (b->asked == 0) return mhla_fail(MHLA_EDATA, "%s: no questions", path);
    b->all = b->asked; /* of the check, before anything is asked */
    if (b->check) return MHLA_OK;
    const double n = (double)b->row->questions, mean = b->sum / n;
    const double rest = b->squares / n - mean * mean;
    b->row->score = 100.0 * mean;
    b->row->error = n > 1.0 && rest > 0.0 ? 100.0 * sqrt(rest / (n - 1.0)) : 0.0;
    return MHLA_OK;
}

static mhla_status run_tasks(bench *b, mhla_longbench_result *full, const char *folder, const json_t *prompts,
                             const json_t *lengths) {
    int64_t counts[MHLA_LONGBENCH_TASKS] = {0};
    for (b->check = 1; b->check >= 0; b->check--) {
        full->count = 0;
        for (int i = 0; i < MHLA_LONGBENCH_TASKS; i++) {
            char path[4096];
            if (!file_of(path, folder, table[i].name)) continue;
            b->row = &full->rows[full->count++];
            *b->row = (mhla_longbench_row){.task = table[i].name,
                                           .group = table[i].group,
                                           .metric = metric_names[table[i].metric],
                                           .paper = table[i].paper};
            b->all = counts[i];
            MHLA_TRY(run_task(b, &table[i], path, prompts, lengths, folder));
            counts[i] = b->all;
        }
        if (full->count == 0)
            return mhla_fail(MHLA_EDATA, "%s: no file of a task, such as qasper.jsonl or data/qasper.jsonl", folder);
    }
    return MHLA_OK;
}

/* FOLDER/NAME, or FOLDER/config/NAME as in LongBench's repository. */
static mhla_status load_object(json_t **tree, const char *folder, const char *name) {
    char path[4096];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/config/%s", folder, name) >= (int)sizeof path)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    if (stat(path, &info) != 0) snprintf(path, sizeof path, "%s/%s", folder, name);
    MHLA_TRY(mhla_json_load(tree, path));
    return json_is_object(*tree) ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: it holds no object", path);
}

mhla_status mhla_lm_longbench(mhla_model *model, mhla_longbench_result *result, const char *folder,
                              const mhla_longbench_desc *desc, mhla_longbench_fn report, void *user) {
    mhla_longbench_desc d = {.size = sizeof d};
    mhla_longbench_result full = {.size = sizeof full};
    mhla_lm_info info = {.size = sizeof info};
    json_t *prompts = NULL, *lengths = NULL;
    if (model == NULL || folder == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", model ? "folder" : "model");
    MHLA_TRY(mhla_struct_check(result, 0, "mhla_longbench_result"));
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_longbench_desc"));
    if (d.context < 0 || d.limit < 0)
        return mhla_fail(MHLA_EINVAL, "%s is negative", d.context < 0 ? "context" : "limit");
    MHLA_TRY(mhla_lm_query(model, &info));
    bench b = {.model = model, .tokenizer = mhla_lm_tokenizer(model), .limit = d.limit, .report = report, .user = user};
    if (b.tokenizer == NULL) return MHLA_EINVAL; /* with its message */
    b.context = d.context ? d.context : info.context;
    if (d.beyond == MHLA_BEYOND_ERROR && info.context && b.context > info.context)
        return mhla_fail(MHLA_ERANGE, "a context of %lld tokens: the model was made for %lld", (long long)b.context,
                         (long long)info.context);
    b.sequence = (mhla_sequence_desc){.size = sizeof(mhla_sequence_desc),
                                      .beyond = d.beyond,
                                      .max_tokens = d.beyond == MHLA_BEYOND_CHUNK ? b.context : 0};
    const double begin = mhla_seconds();
    mhla_status status = load_object(&prompts, folder, "dataset2prompt.json");
    if (status == MHLA_OK) status = load_object(&lengths, folder, "dataset2maxlen.json");
    if (status == MHLA_OK) status = run_tasks(&b, &full, folder, prompts, lengths);
    full.seconds = mhla_seconds() - begin;
    json_decref(prompts);
    json_decref(lengths);
    return status == MHLA_OK ? mhla_struct_out(result, &full, sizeof full, "mhla_longbench_result") : status;
}
