#include "measure/exams.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/lists.h"

static const mhla_exam tasks[] = {
    {.name = "piqa",
     .source = "baber/piqa",
     .normalised = 1,
     .context = "Question: {goal}\nAnswer:",
     .choices = {"{sol1}", "{sol2}"},
     .gold = "label"},
    {.name = "arc_easy",
     .source = "allenai/ai2_arc, ARC-Easy",
     .normalised = 1,
     .context = "Question: {question}\nAnswer:",
     .list = "choices.text",
     .labels = "choices.label",
     .gold = "answerKey"},
    {.name = "arc_challenge",
     .source = "allenai/ai2_arc, ARC-Challenge",
     .normalised = 1,
     .context = "Question: {question}\nAnswer:",
     .list = "choices.text",
     .labels = "choices.label",
     .gold = "answerKey"},
    {.name = "openbookqa",
     .source = "allenai/openbookqa, main",
     .normalised = 1,
     .context = "{question_stem}",
     .list = "choices.text",
     .labels = "choices.label",
     .gold = "answerKey"},
    {.name = "boolq",
     .source = "aps/super_glue, boolq",
     .context = "{passage}\nQuestion: {question}?\nAnswer:",
     .choices = {"no", "yes"},
     .gold = "label",
     .other_gold = "answer"},
    {.name = "winogrande",
     .source = "allenai/winogrande, winogrande_xl",
     .context = "{sentence}",
     .gap = 1,
     .choices = {"{option1}", "{option2}"},
     .gold = "answer",
     .names = {"1", "2"}},
    {.name = "mmlu",
     .source = "cais/mmlu",
     .context = "The following are multiple choice questions (with answers) about {subject|spaces}.\n\n"
                "{question|strip}\nA. {choices.0}\nB. {choices.1}\nC. {choices.2}\nD. {choices.3}\nAnswer:",
     .choices = {"A", "B", "C", "D"},
     .gold = "answer"},
    {.name = "lambada_openai", .source = "EleutherAI/lambada_openai", .kind = MHLA_TASK_WORD, .context = "text"},
    {.name = "wikitext",
     .source = "EleutherAI/wikitext_document_level, wikitext-2-raw-v1",
     .kind = MHLA_TASK_PAGES,
     .context = "page"},
};

enum { TASKS = sizeof tasks / sizeof *tasks };

mhla_status mhla_exam_find(const mhla_exam **task, const char *name) {
    char all[512] = "";
    size_t used = 0;
    if (name == NULL) return mhla_fail(MHLA_EINVAL, "task is NULL");
    for (int i = 0; i < TASKS; i++) {
        if (strcmp(tasks[i].name, name) == 0) {
            *task = &tasks[i];
            return MHLA_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", tasks[i].name);
    }
    return mhla_fail(MHLA_EINVAL, "unknown task %s: expected one of %s", MHLA_QUOTE(name), all);
}

mhla_status mhla_task_query(const char *name, mhla_task_info *info) {
    const mhla_exam *task = NULL;
    MHLA_TRY(mhla_exam_find(&task, name));
    const mhla_task_info full = {.size = sizeof full,
                                 .name = task->name,
                                 .source = task->source,
                                 .kind = task->kind,
                                 .normalised = task->normalised};
    return mhla_struct_out(info, &full, sizeof full, "mhla_task_info");
}

/* ---- Values of a row ---- */

/* The value at a path of keys and numbers of items; MHLA_EDATA names the part that is missing. */
static mhla_status at_path(const json_t **value, const json_t *row, const char *path, size_t size, const char *name) {
    const json_t *at = row;
    for (size_t done = 0; done < size;) {
        char part[64];
        const size_t n = strcspn(path + done, ".") < size - done ? strcspn(path + done, ".") : size - done;
        snprintf(part, sizeof part, "%.*s", (int)n, path + done);
        const int item = part[0] >= '0' && part[0] <= '9';
        if (item && !json_is_array(at))
            return mhla_fail(MHLA_EDATA, "%s: \"%.*s\" is %s where an array was expected", name, (int)done - 1, path,
                             mhla_json_type_text(at));
        if (!item && !json_is_object(at))
            return mhla_fail(MHLA_EDATA, "%s: %s where an object with \"%s\" was expected", name,
                             mhla_json_type_text(at), part);
        at = item ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
        done += n;
        if (at == NULL && item)
            return mhla_fail(MHLA_EDATA, "%s: \"%.*s\" has no item %s", name, (int)(done - n) - 1, path, part);
        if (at == NULL || json_is_null(at)) return mhla_fail(MHLA_EDATA, "%s: no \"%.*s\"", name, (int)done, path);
        done += done < size;
    }
    *value = at;
    return MHLA_OK;
}

static mhla_status text_at(const char **text, const json_t *row, const char *path, size_t size, const char *name) {
    const json_t *value = NULL;
    MHLA_TRY(at_path(&value, row, path, size, name));
    *text = json_string_value(value);
    if (*text) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: \"%.*s\" is %s where text was expected", name, (int)size, path,
                     mhla_json_type_text(value));
}

static mhla_status array_at(const json_t **list, const json_t *row, const char *path, const char *name) {
    MHLA_TRY(at_path(list, row, path, strlen(path), name));
    if (json_is_array(*list)) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where an array of texts was expected", name, path,
                     mhla_json_type_text(*list));
}

/* Appends what {inside} stands for. */
static mhla_status put_value(mhla_chars *out, const json_t *row, const char *inside, size_t size, const char *name) {
    const size_t path = strcspn(inside, "|}"), from = out->count;
    const char *text = NULL;
    MHLA_TRY(text_at(&text, row, inside, path, name));
    size_t n = strlen(text);
    if (path < size && strncmp(inside + path, "|strip", size - path) == 0) {
        const size_t leading = mhla_text_leading(text, n);
        n = mhla_text_stripped(text, n);
        n -= leading < n ? leading : n;
        text += leading;
    }
    MHLA_TRY(mhla_chars_append(out, text, n));
    if (path < size && strncmp(inside + path, "|spaces", size - path) == 0)
        for (size_t i = from; i < out->count; i++)
            if (out->data[i] == '_') out->data[i] = ' ';
    return MHLA_OK;
}

/* A new text, by the template; *made keeps it. */
static mhla_status fill(const char **text, json_t *made, const char *template, const json_t *row, const char *name) {
    mhla_chars out = {0};
    mhla_status status = MHLA_OK;
    for (const char *at = template; *at && status == MHLA_OK;) {
        const size_t plain = strcspn(at, "{");
        status = mhla_chars_append(&out, at, plain);
        at += plain;
        if (*at == '\0' || status != MHLA_OK) continue;
        const size_t inside = strcspn(at, "}") - 1;
        status = put_value(&out, row, at + 1, inside, name);
        at += inside + 2;
    }
    json_t *string = status == MHLA_OK ? json_stringn(out.count ? out.data : "", out.count) : NULL;
    mhla_chars_free(&out);
    if (status != MHLA_OK) return status;
    *text = json_string_value(string);
    if (json_array_append_new(made, string) != 0) return mhla_fail(MHLA_ENOMEM, "%s: no memory for a question", name);
    return MHLA_OK;
}

/* ---- Questions ---- */

static mhla_status read_choices(const mhla_exam *t, mhla_question *q, const json_t *row, const char *name) {
    const json_t *list = NULL;
    size_t n = 0;
    if (t->list)
        MHLA_TRY(array_at(&list, row, t->list, name));
    else
        while (t->choices[n]) n++;
    MHLA_TRY(mhla_question_room(q, t->list ? json_array_size(list) : n, name));
    for (int i = 0; i < q->count; i++) {
        if (t->list)
            q->choices[i] = json_string_value(json_array_get(list, (size_t)i));
        else
            MHLA_TRY(fill(&q->choices[i], q->made, t->choices[i], row, name));
        MHLA_TRY(mhla_question_check(q->choices[i], i, name));
    }
    return MHLA_OK;
}

/* What the right choice may be called: its label, or else its text. */
static mhla_status label_of(const char **label, const mhla_exam *t, const mhla_question *q, const json_t *row, int i,
                            const char *name) {
    const json_t *labels = NULL;
    if (t->labels == NULL) {
        *label = t->names[0] ? t->names[i] : q->choices[i];
        return MHLA_OK;
    }
    MHLA_TRY(array_at(&labels, row, t->labels, name));
    if (json_array_size(labels) != (size_t)q->count)
        return mhla_fail(MHLA_EDATA, "%s: %zu of \"%s\" for %d choices", name, json_array_size(labels), t->labels,
                         q->count);
    *label = json_string_value(json_array_get(labels, (size_t)i));
    return *label ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: \"%s\": item %d is not a string", name, t->labels, i);
}

static mhla_status read_gold(const mhla_exam *t, mhla_question *q, const json_t *row, const char *name) {
    const char *key = t->other_gold && !json_object_get(row, t->gold) && json_object_get(row, t->other_gold)
                          ? t->other_gold
                          : t->gold;
    const json_t *value = NULL;
    MHLA_TRY(at_path(&value, row, key, strlen(key), name));
    if (json_is_boolean(value) || json_is_integer(value)) {
        const json_int_t n = json_is_integer(value) ? json_integer_value(value) : json_is_true(value);
        if (n < 0 || n >= q->count || t->labels || t->names[0])
            return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %lld, which is none of the %d choices", name, key, (long long)n,
                             q->count);
        q->gold = (int)n;
        return MHLA_OK;
    }
    if (!json_is_string(value))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where the right choice was expected", name, key,
                         mhla_json_type_text(value));
    const char *wanted = json_string_value(value), *label = NULL;
    wanted += mhla_text_leading(wanted, strlen(wanted));
    for (int i = 0; i < q->count; i++) {
        MHLA_TRY(label_of(&label, t, q, row, i, name));
        if (strcmp(label, wanted) != 0) continue;
        q->gold = i;
        return MHLA_OK;
    }
    return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s, which is none of the %d choices", name, key, MHLA_QUOTE(wanted),
                     q->count);
}

/* The last word, with the space before it, after what comes before. */
static mhla_status read_word(const mhla_exam *t, mhla_question *q, const json_t *row, const char *name) {
    const char *text = NULL;
    MHLA_TRY(text_at(&text, row, t->context, strlen(t->context), name));
    const char *space = strrchr(text, ' '), *word = space ? space + 1 : text;
    const size_t before = space ? (size_t)(space - text) : 0, n = strlen(word) + 2;
    char *last = malloc(n);
    if (last == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for a question", name);
    snprintf(last, n, " %s", word);
    mhla_json_add(q->made, json_stringn(text, before));
    mhla_json_add(q->made, json_string(last));
    free(last);
    if (json_array_size(q->made) != 2) return mhla_fail(MHLA_ENOMEM, "%s: no memory for a question", name);
    if (*word == '\0') return mhla_fail(MHLA_EDATA, "%s: \"%s\" does not end with a word", name, t->context);
    q->context = json_string_value(json_array_get(q->made, 0));
    q->delimiter = "";
    MHLA_TRY(mhla_question_room(q, 1, name));
    q->choices[0] = json_string_value(json_array_get(q->made, 1));
    q->gold = 0;
    return MHLA_OK;
}

mhla_status mhla_exam_read(const mhla_exam *t, mhla_question *q, const json_t *row, const char *name) {
    *q = (mhla_question){.delimiter = " ", .gold = -1, .made = json_array()};
    mhla_status status = q->made ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for a question", name);
    if (status == MHLA_OK && t->kind == MHLA_TASK_WORD)
        status = read_word(t, q, row, name);
    else if (status == MHLA_OK) {
        status = fill(&q->context, q->made, t->context, row, name);
        if (status == MHLA_OK) status = read_choices(t, q, row, name);
        if (status == MHLA_OK) status = read_gold(t, q, row, name); /* by the choices as the row has them */
        if (status == MHLA_OK && t->gap) status = mhla_question_gap(q, q->context, name);
    }
    if (status != MHLA_OK) mhla_question_release(q);
    return status;
}

/* ---- Pages ---- */

typedef struct pages {
    const mhla_exam *task;
    char **texts;
    size_t *bytes;
    int64_t count, limit;
    size_t capacity[2];
    int64_t words, original; /* of the pages as they are in the file */
} pages;

static mhla_status add_page(void *user, json_t *row, const char *name, int *stop) {
    pages *p = user;
    const char *page = NULL;
    mhla_chars plain = {0};
    MHLA_TRY(text_at(&page, row, p->task->context, strlen(p->task->context), name));
    MHLA_TRY(mhla_list_grow((void **)&p->texts, &p->capacity[0], (size_t)p->count + 1, sizeof *p->texts));
    MHLA_TRY(mhla_list_grow((void **)&p->bytes, &p->capacity[1], (size_t)p->count + 1, sizeof *p->bytes));
    const mhla_status status = mhla_wikitext_plain(&plain, page);
    if (status != MHLA_OK) {
        mhla_chars_free(&plain);
        return status;
    }
    p->texts[p->count] = plain.data;
    p->bytes[p->count++] = plain.count;
    p->words += mhla_text_words(page, strlen(page));
    p->original += (int64_t)strlen(page);
    *stop = p->limit && p->count == p->limit;
    return MHLA_OK;
}

mhla_status mhla_lm_task_pages(mhla_model *model, mhla_perplexity *result, const char *task, const char *const *paths,
                               int count, const mhla_perplexity_desc *desc, mhla_progress_fn progress, void *user) {
    mhla_perplexity_desc d = {.size = sizeof d};
    pages p = {0};
    if (model == NULL || paths == NULL || count < 1)
        return mhla_fail(MHLA_EINVAL, "%s", model == NULL ? "model is NULL" : "there are no paths");
    MHLA_TRY(mhla_exam_find(&p.task, task));
    if (p.task->kind != MHLA_TASK_PAGES)
        return mhla_fail(MHLA_EINVAL, "task %s has questions: mhla_lm_task reads them", task);
    MHLA_TRY(mhla_struct_check(result, MHLA_UP_TO(mhla_perplexity, bucket_tokens), "mhla_perplexity"));
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_perplexity_desc"));
    p.limit = d.limit;
    d.limit = 0;
    mhla_lm_info info = {.size = sizeof info};
    MHLA_TRY(mhla_lm_query(model, &info));
    if (d.window == 0 && info.context) d.window = info.context + 1; /* the harness reads whole contexts */
    mhla_status status = MHLA_OK;
    for (int i = 0; i < count && status == MHLA_OK && (p.limit == 0 || p.count < p.limit); i++) {
        const int64_t before = p.count;
        status = mhla_rows_read(paths[i], 0, add_page, &p);
        if (status == MHLA_OK && p.count == before) status = mhla_fail(MHLA_EDATA, "%s: no pages", paths[i]);
    }
    mhla_perplexity full = {.size = sizeof full};
    if (status == MHLA_OK)
        status = mhla_lm_perplexity(model, &full, (const char *const *)p.texts, p.bytes, p.count, &d, progress, user);
    if (status == MHLA_OK) { /* what is counted are the words and bytes of the file's own pages */
        full.words = p.words;
        full.bytes = p.original;
        full.word_perplexity = exp(-full.loglikelihood / (double)p.words);
        full.byte_perplexity = exp(-full.loglikelihood / (double)p.original);
        full.bits_per_byte = -full.loglikelihood / ((double)p.original * log(2.0));
        status = mhla_struct_out(result, &full, sizeof full, "mhla_perplexity");
    }
    for (int64_t i = 0; i < p.count; i++) mhla_free(p.texts[i]);
    mhla_free(p.texts);
    mhla_free(p.bytes);
    return status;
}
