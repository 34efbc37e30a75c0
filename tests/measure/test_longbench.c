/* LongBench: scores beside those of its own metrics (Python, with the packages rouge, fuzzywuzzy and python-Levenshtein), prompts,
 * truncation, and a folder of tasks through a model. */
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "goldens.h"
#include "measure/longbench.h"

typedef struct pair {
    const char *answer, *wanted;
    double score;
} pair;

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void near(double got, double wanted, const char *what) {
    if (!(fabs(got - wanted) < 1e-12)) fail_msg("%s: got %.15g, wanted %.15g", what, got, wanted);
}

static void f1(void **state) {
    (void)state;
    static const pair cases[] = {
        {"The cat sat on a mat.", "a cat sat on the red mat", 0.888888888888889},
        {"Paris, France", "paris", 0.6666666666666666},
        {"", "x", 0.0},
        {"the", "a", 0.0},
        {"An apple a day: the doctor's away!", "doctors, away; apple apple", 0.75},
        {"\xe2\x80\x9cthe\xe2\x80\x9d Na\xc3\xafve CAF\xc3\x89", "na\xc3\xafve caf\xc3\xa9", 0.6666666666666666},
        {"the theatre anthem", "theatre anthem a", 1.0},
        {"no match here", "other words", 0.0}};
    for (size_t i = 0; i < COUNT(cases); i++)
        near(mhla_score_f1(cases[i].answer, cases[i].wanted, 0), cases[i].score, cases[i].answer);
    /* by character: 2 * 2 / (3 + 2), marks and spaces apart */
    near(mhla_score_f1("\xe5\x8c\x97 \xe4\xba\xac\xe5\xb8\x82\xe3\x80\x82", "\xe5\x8c\x97\xe4\xba\xac", 1), 0.8, "zh");
}

static void rouge(void **state) {
    (void)state;
    static const pair cases[] = {
        {"the cat sat on the mat", "the cat was on the mat", 0.7999999950000002},
        {"Hello world. It is late.", "It is late. Hello there.", 0.7999999950000002},
        {"a b c d e", "e d c b a", 0.19999999500000015},
        {"one. ", "one", 0.6666666622222223},
        {"", "x", 0.0},
        {"...", "x", 0.0},
        {"The report says that the bridge is old. It must be repaired soon. Costs are high.",
         "The bridge is old, the report says. Costs are very high and it must be repaired.", 0.562499995},
        {"w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 0.6153846106508877},
        {"a b a c b", "b a c a b", 0.999999995},
        {"b a c a d d", "d d b a d a", 0.5714285665306124}}; /* of several subsequences, those with few words */
    for (size_t i = 0; i < COUNT(cases); i++)
        near(mhla_score_rouge(cases[i].answer, cases[i].wanted, 0), cases[i].score, cases[i].answer);
    near(mhla_score_rouge("\xe5\x8c\x97\xe4\xba\xac", "\xe5\x8c\x97\xe4\xba\xac", 1), 0.999999995, "zh");
}

static void code(void **state) {
    (void)state;
    static const pair cases[] = {{"\n# c\n    return x + 1\nfoo", "    return x + 2", 0.94},
                                 {"```python\nint a = 0;\n", "int a = 0;", 1.0},
                                 {"// only\n# comments", "x", 0.0},
                                 {"", "x", 0.0},
                                 {"x", "x", 1.0},
                                 {"na\xc3\xafve = '\xc3\xa9'", "naive = 'e'", 0.82},
                                 {"for i in range(10):", "for (i = 0; i < 10; i++) {", 0.49},
                                 {"# a\n# b", "", 1.0}};
    for (size_t i = 0; i < COUNT(cases); i++)
        near(mhla_score_code(cases[i].answer, cases[i].wanted), cases[i].score, cases[i].answer);
}

static void numbers_and_classes(void **state) {
    (void)state;
    static const pair cases[] = {{"Paragraph 12", "Paragraph 12", 1.0},
                                 {"It is 3 or 12, not 4", "Paragraph 12", 1.0 / 3.0},
                                 {"none", "Paragraph 1", 0.0},
                                 {"Paragraph 012", "Paragraph 12", 0.0}};
    static const pair named[] = {{"Fast food", "Fast food", 1.0},
                                 {"Location City", "City", 0.5},
                                 {"nothing", "Food", 0.0},
                                 {"Food and City", "Food", 0.5}};
    static const char *const classes[] = {"Food", "Fast food", "Location", "Fast", "City"};
    for (size_t i = 0; i < COUNT(cases); i++)
        near(mhla_score_number(cases[i].answer, cases[i].wanted, "Paragraph "), cases[i].score, cases[i].answer);
    near(mhla_score_number("there are 7 of 9", "7", ""), 0.5, "count");
    near(mhla_score_number("seven", "7", ""), 0.0, "count");
    for (size_t i = 0; i < COUNT(named); i++)
        near(mhla_score_class(named[i].answer, named[i].wanted, classes, 5), named[i].score, named[i].answer);
}

static void prompts(void **state) {
    (void)state;
    json_t *row = json_pack("{s:s, s:s, s:i}", "context", "C {input}", "input", "I", "length", 3);
    mhla_chars text = {0};
    ASSERT_OK(mhla_prompt_fill(&text, "a {context} {{b}} {input}", row, "f: line 1"));
    assert_int_equal(text.count, 17);
    assert_memory_equal(text.data, "a C {input} {b} I", 17);
    text.count = 0;
    ASSERT_FAILS(mhla_prompt_fill(&text, "{question}", row, "f: line 1"), MHLA_EDATA,
                 "f: line 1: no text \"question\"");
    ASSERT_FAILS(mhla_prompt_fill(&text, "{length}", row, "f: line 1"), MHLA_EDATA, "\"length\"");
    ASSERT_FAILS(mhla_prompt_fill(&text, "a { b", row, "f: line 1"), MHLA_EDATA, "brace");
    ASSERT_FAILS(mhla_prompt_fill(&text, "a } b", row, "f: line 1"), MHLA_EDATA, "brace");
    ASSERT_FAILS(mhla_prompt_fill(&text, "a {} b", row, "f: line 1"), MHLA_EDATA, "brace");
    mhla_chars_free(&text);
    json_decref(row);
    int32_t list[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    mhla_ids ids = {list, 9, 9};
    mhla_ids_cut_middle(&ids, 9);
    assert_int_equal(ids.count, 9);
    mhla_ids_cut_middle(&ids, 5);
    const int32_t wanted[5] = {1, 2, 7, 8, 9};
    assert_int_equal(ids.count, 5);
    assert_memory_equal(list, wanted, sizeof wanted);
}

/* ---- A folder through a model ---- */

typedef struct seen {
    int64_t count;
    double sum;
    char prompt[4096];
} seen;

static void take(void *user, const mhla_longbench_event *e) {
    seen *x = user;
    assert_string_equal(e->task, "qasper");
    assert_int_equal(e->question, x->count++);
    assert_int_equal(e->questions, 2);
    double best = 0.0; /* the best of all answers */
    for (int i = 0; i < e->wanteds; i++) {
        const double score = mhla_score_f1(e->answer, e->wanted[i], 0);
        if (score > best) best = score;
    }
    near(e->score, best, "score");
    x->sum += best;
    snprintf(x->prompt, sizeof x->prompt, "%s", e->prompt);
}

static void put(const char *name, const char *text) { write_file(in_folder(name), text, strlen(text)); }

static void folder_of_tasks(void **state) {
    (void)state;
    char path[512];
    mhla_model *model;
    ASSERT_OK(mhla_model_open(&model, golden_path(path, "lm/models/llama-hf")));
    mhla_longbench_result r = {.size = sizeof r};
    mhla_longbench_desc d = {.size = sizeof d, .context = 48};
    seen x = {0};
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_EIO, "dataset2prompt.json");
    put("dataset2prompt.json", "{\"qasper\": \"Read {context}\\nQ: {input}\\nA:\", \"trec\": \"{context}\"}");
    put("dataset2maxlen.json", "{\"qasper\": 8, \"trec\": 0}");
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_EDATA, "no file of a task");
    assert_int_equal(mkdir(in_folder("data"), 0755), 0);
    put("data/qasper.jsonl",
        "{\"input\": \"who?\", \"context\": \"short\", \"answers\": [\"x\", \"the a\"]}\n"
        "{\"input\": \"what?\", \"context\": \"begin a b c d e f g h i j k l m n o p q r s t u v w x y z a b "
        "c d e f g h i j k l m n o p q r s t u v w x y z end\", \"answers\": [\"y\"]}\n");
    ASSERT_OK(mhla_lm_longbench(model, &r, folder, &d, take, &x));
    assert_int_equal(r.count, 1);
    assert_int_equal(x.count, 2);
    assert_int_equal(r.rows[0].questions, 2);
    assert_int_equal(r.rows[0].cut, 1);
    near(r.rows[0].score, 50.0 * x.sum, "mean");
    assert_non_null(strstr(x.prompt, "Read")); /* the middle is gone, both ends are there */
    assert_non_null(strstr(x.prompt, "what?\nA:"));
    assert_null(strstr(x.prompt, "z a b c"));
    d.limit = 1;
    ASSERT_OK(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL));
    assert_int_equal(r.rows[0].questions, 1);
    d.limit = 0;
    put("trec.jsonl", "{}");
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_EDATA, "dataset2maxlen.json: no number");
    put("dataset2maxlen.json", "{\"qasper\": 8, \"trec\": 8}");
    x = (seen){0};
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, take, &x), MHLA_EDATA, "trec.jsonl: line 1: no \"answers\"");
    assert_int_equal(x.count, 0); /* nothing is asked before all is read */
    put("trec.jsonl", "{\"answers\": [\"a\"], \"context\": \"c\"}");
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_EDATA, "\"all_classes\"");
    put("trec.jsonl", "");
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_EDATA, "no questions");
    d.context = 8;
    ASSERT_FAILS(mhla_lm_longbench(model, &r, folder, &d, NULL, NULL), MHLA_ERANGE, "a context of 8 tokens");
    mhla_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f1),      cmocka_unit_test(rouge),
        cmocka_unit_test(code),    cmocka_unit_test(numbers_and_classes),
        cmocka_unit_test(prompts), cmocka_unit_test_setup_teardown(folder_of_tasks, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
