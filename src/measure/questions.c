/* A question with several answers, as data files write it: the keys of the harness's own tasks and of the sets that they
 * come from. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "measure/evaluate_lm.h"

static const json_t *find(const json_t *row, const char *const *names, const char **name) {
    for (int i = 0; names[i]; i++) {
        const json_t *value = json_object_get(row, names[i]);
        *name = names[i];
        if (value && !json_is_null(value)) return value;
    }
    return NULL;
}

/* "A" or "a" is 0, unless the answers have labels of their own. -1: no such answer. */
static int gold_of_text(const mhla_question *q, const json_t *labels, const char *text) {
    char *end;
    for (size_t i = 0; i < json_array_size(labels) && (int)i < q->count; i++) {
        const char *label = json_string_value(json_array_get(labels, i));
        if (label && strcmp(label, text) == 0) return (int)i;
    }
    for (int i = 0; i < q->count; i++)
        if (strcmp(q->choices[i], text) == 0) return i;
    int index = -1;
    if (text[0] && text[1] == '\0' && ((text[0] >= 'A' && text[0] <= 'Z') || (text[0] >= 'a' && text[0] <= 'z')))
        index = (text[0] | 0x20) - 'a';
    else if (text[0]) {
        const long n = strtol(text, &end, 10);
        if (*end == '\0' && n >= 0 && n < MHLA_CHOICES_MOST) index = (int)n;
    }
    return index < q->count ? index : -1;
}

static mhla_status read_gold(mhla_question *q, const json_t *row, const json_t *labels, const char *name) {
    static const char *const names[] = {"gold",      "gold_index", "answer", "answer_index",
                                        "answerKey", "label",      "target", NULL};
    const char *key;
    const json_t *value = find(row, names, &key);
    q->gold = -1;
    if (value == NULL) return MHLA_OK;
    if (json_is_string(value)) {
        q->gold = gold_of_text(q, labels, json_string_value(value));
        if (q->gold >= 0) return MHLA_OK;
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s, which is none of the %d choices", name, key,
                         MHLA_QUOTE(json_string_value(value)), q->count);
    }
    if (!json_is_integer(value))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where an index or the text of a choice was expected", name, key,
                         mhla_json_type_text(value));
    const json_int_t n = json_integer_value(value);
    if (n < 0 || n >= q->count)
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %lld: there are %d choices", name, key, (long long)n, q->count);
    q->gold = (int)n;
    return MHLA_OK;
}

mhla_status mhla_question_room(mhla_question *q, size_t count, const char *name) {
    if (count < 1 || count > MHLA_CHOICES_MOST)
        return mhla_fail(MHLA_EDATA, "%s: %zu choices: expected 1 to %d", name, count, MHLA_CHOICES_MOST);
    q->count = (int)count;
    q->choices = malloc(count * sizeof *q->choices);
    return q->choices ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %zu choices", count);
}

mhla_status mhla_question_check(const char *choice, int i, const char *name) {
    if (choice == NULL) return mhla_fail(MHLA_EDATA, "%s: choice %d is not a string", name, i);
    if (*choice == '\0') return mhla_fail(MHLA_EDATA, "%s: choice %d is empty", name, i);
    return MHLA_OK;
}

/* {"yes": 1, "no": 0}: the choices with their scores; the highest is the right one. */
static mhla_status read_scores(mhla_question *q, const json_t *scores, const char *name) {
    const char *text;
    const json_t *value;
    double best = -INFINITY;
    int i = 0;
    MHLA_TRY(mhla_question_room(q, json_object_size(scores), name));
    json_object_foreach((json_t *)(uintptr_t)scores, text, value) {
        if (!json_is_number(value))
            return mhla_fail(MHLA_EDATA, "%s: the score of %s is %s where a number was expected", name,
                             MHLA_QUOTE(text), mhla_json_type_text(value));
        if (json_number_value(value) > best) {
            best = json_number_value(value);
            q->gold = i;
        }
        q->choices[i] = text;
        MHLA_TRY(mhla_question_check(text, i, name));
        i++;
    }
    return MHLA_OK;
}

static mhla_status read_choices(mhla_question *q, const json_t *row, const char *const *names, const char *name) {
    const char *key;
    const json_t *list = find(row, names, &key), *labels = NULL;
    if (list == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"choices\"", name);
    if (json_is_object(list) && strcmp(key, "target_scores") == 0) return read_scores(q, list, name);
    if (json_is_object(list)) { /* {"text": [...], "label": ["A", ...]} */
        labels = json_object_get(list, "label");
        list = json_object_get(list, "text");
    }
    if (!json_is_array(list))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where an array of texts was expected", name, key,
                         list ? mhla_json_type_text(list) : "an object without \"text\"");
    MHLA_TRY(mhla_question_room(q, json_array_size(list), name));
    for (int i = 0; i < q->count; i++) {
        q->choices[i] = json_string_value(json_array_get(list, (size_t)i));
        MHLA_TRY(mhla_question_check(q->choices[i], i, name));
    }
    return read_gold(q, row, labels, name);
}

mhla_status mhla_question_gap(mhla_question *q, const char *sentence, const char *name) {
    const char *gap = strchr(sentence, '_');
    if (gap == NULL) return mhla_fail(MHLA_EDATA, "%s: \"sentence\" has no gap, _", name);
    const char *rest = gap + 1 + mhla_text_leading(gap + 1, strlen(gap + 1));
    json_t *ending = json_stringn(rest, mhla_text_stripped(rest, strlen(rest)));
    mhla_json_add(q->made, ending);
    q->ending = json_string_value(ending);
    if (ending && *q->ending == '\0')
        return mhla_fail(MHLA_EDATA, "%s: nothing stands after the gap of \"sentence\"", name);
    for (int i = 0; i < q->count; i++) {
        json_t *context = json_sprintf("%.*s%s", (int)(gap - sentence), sentence, q->choices[i]);
        mhla_json_add(q->made, context);
        q->choices[i] = json_string_value(context);
        if (ending == NULL || context == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a question");
    }
    return MHLA_OK;
}

/* A sentence with a gap and two options, as WinoGrande has them. */
static mhla_status read_gap(mhla_question *q, const json_t *row, const char *name) {
    const char *sentence = "", *answer = "";
    q->made = json_array();
    MHLA_TRY(mhla_question_room(q, 2, name));
    q->choices[0] = q->choices[1] = "";
    MHLA_TRY(mhla_json_get_text(&sentence, row, "sentence", name));
    MHLA_TRY(mhla_json_get_text(&q->choices[0], row, "option1", name));
    MHLA_TRY(mhla_json_get_text(&q->choices[1], row, "option2", name));
    MHLA_TRY(mhla_json_get_text(&answer, row, "answer", name));
    if (*answer && strcmp(answer, "1") != 0 && strcmp(answer, "2") != 0)
        return mhla_fail(MHLA_EDATA, "%s: \"answer\" is %s: expected 1 or 2", name, MHLA_QUOTE(answer));
    MHLA_TRY(mhla_question_gap(q, sentence, name));
    for (int i = 0; i < 2; i++) MHLA_TRY(mhla_question_check(q->choices[i], i, name));
    q->gold = *answer ? *answer - '1' : -1;
    return MHLA_OK;
}

static mhla_status read_contexts(mhla_question *q, const json_t *row, const char *name) {
    static const char *const names[] = {"ending", "continuation", NULL}, *const lists[] = {"contexts", NULL};
    const char *key;
    const json_t *ending = find(row, names, &key);
    if (!json_is_string(ending) || *json_string_value(ending) == '\0')
        return mhla_fail(MHLA_EDATA, "%s: \"contexts\" without an \"ending\" that follows them, a text", name);
    q->ending = json_string_value(ending);
    return read_choices(q, row, lists, name);
}

/* Usually one context is followed by each choice. */
static mhla_status read_context(mhla_question *q, const json_t *row, const char *name) {
    static const char *const names[] = {"context", "query", "question", "prompt", "input", "ctx", NULL};
    static const char *const lists[] = {"choices", "endings", "options", "target_scores", NULL};
    const char *key;
    const json_t *context = find(row, names, &key);
    if (context == NULL) return mhla_fail(MHLA_EDATA, "%s: no \"context\"", name);
    if (!json_is_string(context))
        return mhla_fail(MHLA_EDATA, "%s: \"%s\" is %s where text was expected", name, key,
                         mhla_json_type_text(context));
    q->context = json_string_value(context);
    return read_choices(q, row, lists, name);
}

mhla_status mhla_question_read(mhla_question *q, const json_t *row, const char *name) {
    *q = (mhla_question){.delimiter = " ", .gold = -1};
    if (!json_is_object(row))
        return mhla_fail(MHLA_EDATA, "%s: %s where an object was expected", name, mhla_json_type_text(row));
    MHLA_TRY(mhla_json_get_text(&q->delimiter, row, "target_delimiter", name));
    const int gap = json_object_get(row, "sentence") && json_object_get(row, "option1");
    const mhla_status status = gap                                ? read_gap(q, row, name)
                               : json_object_get(row, "contexts") ? read_contexts(q, row, name)
                                                                  : read_context(q, row, name);
    if (status != MHLA_OK) mhla_question_release(q);
    return status;
}

void mhla_question_release(mhla_question *q) {
    free(q->choices);
    json_decref(q->made);
    q->choices = NULL;
    q->made = NULL;
}
