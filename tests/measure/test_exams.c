/* Tasks of lm-evaluation-harness: the pairs of context and continuation that it made of the files in tests/measure/tasks (0.4.13,
 * kept in requests.json), rows that are not as they should be, and figures of a whole task. */
#include <libgen.h>
#include <unistd.h>

#include "goldens.h"
#include "measure/exams.h"

static const char *in_tasks(const char *name) {
    static char path[1024];
    char here[] = __FILE__;
    snprintf(path, sizeof path, "%s/tasks/%s", dirname(here), name);
    return path;
}

/* ---- Strings ---- */

typedef struct compared {
    const mhla_exam *exam;
    const json_t *pairs; /* that the harness asked */
    size_t seen;
    int golds[4], rows;
} compared;

static mhla_status compare(void *user, json_t *row, const char *name, int *stop) {
    compared *x = user;
    mhla_question q;
    (void)stop;
    ASSERT_OK(mhla_exam_read(x->exam, &q, row, name));
    for (int i = 0; i < q.count; i++, x->seen++) {
        const json_t *pair = json_array_get(x->pairs, x->seen);
        const char *before = q.ending ? q.choices[i] : q.context, *after = q.ending ? q.ending : q.choices[i];
        char text[512];
        snprintf(text, sizeof text, "%s%s", q.delimiter, after);
        assert_string_equal(before, json_string_value(json_array_get(pair, 0)));
        assert_string_equal(text, json_string_value(json_array_get(pair, 1)));
    }
    assert_true(x->rows < 4);
    assert_int_equal(q.gold, x->golds[x->rows++]);
    mhla_question_release(&q);
    return MHLA_OK;
}

static json_t *requests(void) {
    json_t *tree = NULL;
    ASSERT_OK(mhla_json_load(&tree, in_tasks("requests.json")));
    return tree;
}

static void strings(void **state) {
    (void)state;
    static const struct {
        const char *task, *file;
        int golds[4], rows;
    } cases[] = {{"piqa", "piqa", {0, 1}, 2},         {"arc_easy", "arc", {1, 2}, 2},
                 {"arc_challenge", "arc", {1, 2}, 2}, {"openbookqa", "openbookqa", {0, 1}, 2},
                 {"boolq", "boolq", {0, 1}, 2},       {"winogrande", "winogrande", {0, 1}, 2},
                 {"mmlu", "mmlu", {1, 0}, 2},         {"lambada_openai", "lambada_openai", {0, 0, 0}, 3}};
    json_t *wanted = requests();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[64];
        compared x = {.pairs = json_object_get(wanted, cases[i].file)};
        memcpy(x.golds, cases[i].golds, sizeof x.golds);
        ASSERT_OK(mhla_exam_find(&x.exam, cases[i].task));
        snprintf(file, sizeof file, "%s.jsonl", cases[i].file);
        ASSERT_OK(mhla_rows_read(in_tasks(file), 0, compare, &x));
        assert_int_equal(x.rows, cases[i].rows);
        assert_int_equal(x.seen, json_array_size(x.pairs));
    }
    json_decref(wanted);
}

static mhla_status compare_page(void *user, json_t *row, const char *name, int *stop) {
    compared *x = user;
    mhla_chars plain = {0};
    (void)name;
    (void)stop;
    ASSERT_OK(mhla_wikitext_plain(&plain, json_string_value(json_object_get(row, "page"))));
    ASSERT_OK(mhla_chars_append(&plain, "", 1));
    assert_string_equal(plain.data, json_string_value(json_array_get(json_array_get(x->pairs, x->seen++), 0)));
    mhla_chars_free(&plain);
    return MHLA_OK;
}

static void pages(void **state) {
    (void)state;
    json_t *wanted = requests();
    compared x = {.pairs = json_object_get(wanted, "wikitext")};
    ASSERT_OK(mhla_rows_read(in_tasks("wikitext.jsonl"), 0, compare_page, &x));
    assert_int_equal(x.seen, 2);
    json_decref(wanted);
    mhla_chars plain = {0}; /* edges: nothing, a mark alone, one that is never closed */
    ASSERT_OK(mhla_wikitext_plain(&plain, ""));
    assert_int_equal(plain.count, 0);
    ASSERT_OK(mhla_wikitext_plain(&plain, "( ) ( a"));
    assert_int_equal(plain.count, 6);
    assert_memory_equal(plain.data, "() ( a", 6);
    mhla_chars_free(&plain);
}

/* ---- Rows that are wrong ---- */

static void wrong_rows(void **state) {
    (void)state;
    static const struct {
        const char *task, *row, *message;
    } cases[] = {
        {"piqa", "[]", "f: line 1: an array where an object with \"goal\" was expected"},
        {"piqa", "{\"sol1\": \"a\"}", "f: line 1: no \"goal\""},
        {"piqa", "{\"goal\": 3}", "f: line 1: \"goal\" is an integer where text was expected"},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": null}", "no \"sol2\""},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"\", \"label\": 0}", "choice 1 is empty"},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}", "no \"label\""},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": -1}",
         "\"label\" is -1, which is none of the 2 choices"},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1.5}", "\"label\" is"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": [\"a\"], \"answerKey\": \"A\"}",
         "an array where an object with \"text\" was expected"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": [\"a\", 1], \"label\": []}}",
         "choice 1 is not a string"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": []}, \"answerKey\": \"A\"}", "0 choices"},
        {"arc_easy",
         "{\"question\": \"q\", \"choices\": {\"text\": [\"a\"], \"label\": [\"A\"]}, \"answerKey\": \"E\"}",
         "\"answerKey\" is \"E\", which is none of the 1 choices"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": [\"a\"], \"label\": [\"A\"]}, \"answerKey\": 0}",
         "\"answerKey\" is 0, which is none"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": [\"a\"]}, \"answerKey\": \"A\"}",
         "no \"choices.label\""},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": [\"a\"], \"label\": []}, \"answerKey\": \"A\"}",
         "0 of \"choices.label\" for 1 choices"},
        {"boolq", "{\"question\": \"q\", \"passage\": \"p\", \"label\": \"maybe\"}", "\"label\" is \"maybe\""},
        {"boolq", "{\"question\": \"q\", \"passage\": \"p\"}", "no \"label\""},
        {"mmlu", "{\"question\": \"q\", \"subject\": \"s\", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": 0}",
         "\"choices\" has no item 3"},
        {"mmlu", "{\"question\": \"q\", \"subject\": \"s\", \"choices\": \"abcd\", \"answer\": 0}",
         "\"choices\" is text where an array was expected"},
        {"mmlu", "{\"question\": \"q\", \"choices\": [], \"answer\": 0}", "no \"subject\""},
        {"winogrande", "{\"sentence\": \"no gap\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}",
         "no gap"},
        {"winogrande", "{\"sentence\": \"gap _ \", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}",
         "nothing"},
        {"winogrande", "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"\"}",
         "\"answer\" is \"\", which is none"},
        {"winogrande", "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": 1}",
         "\"answer\" is 1"},
        {"lambada_openai", "{\"text\": \"ends with a space \"}", "does not end with a word"},
        {"lambada_openai", "{\"page\": \"x\"}", "no \"text\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mhla_exam *exam = NULL;
        mhla_question q;
        json_t *row = NULL;
        ASSERT_OK(mhla_exam_find(&exam, cases[i].task));
        ASSERT_OK(mhla_json_parse(&row, cases[i].row, strlen(cases[i].row), "row"));
        ASSERT_FAILS(mhla_exam_read(exam, &q, row, "f: line 1"), MHLA_EDATA, cases[i].message);
        json_decref(row);
    }
    mhla_question q; /* what other files of the same sets have */
    const mhla_exam *exam = NULL;
    json_t *row = json_pack("{s:s, s:s, s:b}", "question", "q", "passage", "p", "answer", 1);
    ASSERT_OK(mhla_exam_find(&exam, "boolq"));
    ASSERT_OK(mhla_exam_read(exam, &q, row, "row"));
    assert_int_equal(q.gold, 1);
    mhla_question_release(&q);
    json_decref(row);
    mhla_task_info info = {.size = sizeof info};
    ASSERT_FAILS(mhla_task_query("pica", &info), MHLA_EINVAL, "unknown task \"pica\": expected one of piqa, arc_easy");
    ASSERT_OK(mhla_task_query("boolq", &info));
    assert_int_equal(info.normalised, 0);
}

/* ---- Through a model ---- */

static mhla_model *open_model(void) {
    char path[512];
    mhla_model *model;
    ASSERT_OK(mhla_model_open(&model, golden_path(path, "lm/models/llama-hf")));
    return model;
}

typedef struct sums {
    double sum, squares;
    int64_t count, greedy;
} sums;

static void take(void *user, const mhla_choice_event *e) {
    sums *x = user;
    x->sum += e->loglikelihood[e->gold];
    x->squares += e->loglikelihood[e->gold] * e->loglikelihood[e->gold];
    x->greedy += e->greedy[e->gold];
    assert_int_equal(e->best, e->greedy[0] ? 0 : -1);
    x->count++;
}

/* Several files are one task; a limit counts over all; a wrong row in the last file is found before the first is asked. */
static void whole(void **state) {
    (void)state;
    mhla_model *model = open_model();
    char first[1024], second[1024];
    snprintf(first, sizeof first, "%s", in_tasks("lambada_openai.jsonl"));
    snprintf(second, sizeof second, "%s", in_tasks("wikitext.jsonl"));
    const char *paths[] = {first, first}, *mixed[] = {first, second};
    mhla_choices c = {.size = sizeof c};
    sums x = {0};
    ASSERT_OK(mhla_lm_task(model, &c, "lambada_openai", paths, 2, 0, take, &x));
    assert_int_equal(c.questions, 6);
    assert_int_equal(x.count, 6);
    assert_int_equal(c.greedy, x.greedy);
    assert_int_equal(c.right, x.greedy); /* of one choice: not the likeliest of one, but of all words */
    const double mean = x.sum / 6.0;
    assert_true(fabs(c.loglikelihood - x.sum) < 1e-9 && c.loglikelihood < 0.0);
    assert_true(fabs(c.deviation - sqrt((x.squares - 6.0 * mean * mean) / 5.0)) < 1e-6);
    ASSERT_OK(mhla_lm_task(model, &c, "lambada_openai", paths, 2, 4, NULL, NULL));
    assert_int_equal(c.questions, 4);
    x.count = 0;
    ASSERT_FAILS(mhla_lm_task(model, &c, "lambada_openai", mixed, 2, 0, take, &x), MHLA_EDATA, "line 1");
    assert_int_equal(x.count, 0);
    ASSERT_FAILS(mhla_lm_task(model, &c, "wikitext", mixed, 1, 0, NULL, NULL), MHLA_EINVAL, "pages");
    mhla_perplexity p = {.size = sizeof p}, plain = {.size = sizeof plain};
    const char *page = second;
    ASSERT_FAILS(mhla_lm_task_pages(model, &p, "piqa", &page, 1, NULL, NULL, NULL), MHLA_EINVAL, "questions");
    ASSERT_OK(mhla_lm_task_pages(model, &p, "wikitext", &page, 1, NULL, NULL, NULL));
    assert_int_equal(p.documents, 2);
    /* as the texts themselves, but counted by what the file has */
    json_t *wanted = requests(), *list = json_object_get(wanted, "wikitext");
    const char *texts[2];
    size_t bytes[2];
    for (size_t i = 0; i < 2; i++) {
        texts[i] = json_string_value(json_array_get(json_array_get(list, i), 0));
        bytes[i] = strlen(texts[i]);
    }
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    const mhla_perplexity_desc full = {.size = sizeof full,
                                       .window = info.context + 1}; /* a window reads the whole context */
    ASSERT_OK(mhla_lm_perplexity(model, &plain, texts, bytes, 2, &full, NULL, NULL));
    assert_int_equal(p.tokens, plain.tokens);
    assert_true(p.loglikelihood == plain.loglikelihood);
    assert_int_equal(p.words, 126); /* len(re.split(r"\s+", page)) and len(page.encode()), both pages */
    assert_int_equal(p.bytes, 446);
    assert_true(fabs(p.word_perplexity / exp(-p.loglikelihood / 126.0) - 1.0) < 1e-12);
    assert_true(fabs(p.bits_per_byte + p.loglikelihood / (446.0 * log(2.0))) < 1e-12);
    mhla_perplexity_free(&p);
    mhla_perplexity_free(&plain);
    const mhla_perplexity_desc one = {.size = sizeof one, .limit = 1};
    ASSERT_OK(mhla_lm_task_pages(model, &p, "wikitext", &page, 1, &one, NULL, NULL));
    assert_int_equal(p.documents, 1);
    mhla_perplexity_free(&p);
    json_decref(wanted);
    mhla_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings),
        cmocka_unit_test(pages),
        cmocka_unit_test(wrong_rows),
        cmocka_unit_test(whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
