/* What evaluation makes of texts before a model sees them: windows as the harness cuts them, words, questions. */
#include "file/json.h"
#include "goldens.h"
#include "measure/evaluate_lm.h"

/* Every token is scored once, by windows that are full if they can be. */
static void windows_cover(void **state) {
    (void)state;
    for (int64_t n = 0; n < 40; n++)
        for (int64_t m = 1; m < 20; m++) {
            mhla_window w = {0};
            int64_t scored = 0;
            while (mhla_window_next(&w, n, m)) {
                assert_int_equal(w.begin + w.inputs - w.scored, scored);
                assert_int_equal(w.inputs, w.begin == 0 && n < m ? n : m);
                assert_true(w.begin >= 0 && w.scored >= 1 && w.scored <= w.inputs);
                scored += w.scored;
            }
            assert_int_equal(scored, n);
        }
}

static void same_ids(const json_t *wanted, const int32_t *ids, int64_t count) {
    assert_int_equal(json_array_size(wanted), count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(json_integer_value(json_array_get(wanted, (size_t)i)), ids[i]);
}

static int64_t integer(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* Windows and counts of the harness itself. */
static void windows_golden(void **state) {
    (void)state;
    char path[512];
    json_t *cases = NULL;
    golden_path(path, "lm/eval/rolling.json");
    ASSERT_OK(mhla_json_load(&cases, path));
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *tokens = json_object_get(c, "tokens");
        const json_t *windows = json_object_get(c, "windows");
        const char *text = json_string_value(json_object_get(c, "text"));
        const int64_t n = (int64_t)json_array_size(tokens);
        int32_t *v = new_bytes(sizeof *v * (size_t)(n + 1)); /* the prefix, then the tokens */
        v[0] = (int32_t)integer(c, "prefix_token");
        for (int64_t t = 0; t < n; t++) v[t + 1] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)t));
        mhla_window w = {0};
        size_t count = 0;
        for (; mhla_window_next(&w, n, integer(c, "max_length") - 1); count++) {
            const json_t *wanted = json_array_get(windows, count);
            const int64_t context = w.inputs - w.scored + 1;
            same_ids(json_object_get(wanted, "context"), v + w.begin, context);
            same_ids(json_object_get(wanted, "continuation"), v + w.begin + context, w.scored);
        }
        assert_int_equal(count, json_array_size(windows));
        assert_int_equal(mhla_text_words(text, strlen(text)), integer(c, "words"));
        assert_int_equal(strlen(text), integer(c, "bytes"));
        free(v);
    }
    json_decref(cases);
}

static void words(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t words; /* len(re.split(r"\s+", text)) */
        size_t stripped;
        int64_t characters;
    } cases[] = {
        {"", 1, 0, 0},
        {" ", 2, 0, 1},
        {"a", 1, 1, 1},
        {" a  b\n", 4, 5, 6},
        {"a\xc2\xa0"
         "b",
         2, 4, 3}, /* no-break space */
        {"a\xe2\x80\x8b"
         "b",
         1, 5, 3},                          /* zero width space is none */
        {"a\xe3\x80\x80\xc2\x85", 2, 1, 3}, /* ideographic space, next line */
        {"a\x1c"
         "b\x1f",
         3, 3, 4},
        {"\xf0\x9f\x90\x8d x", 2, 6, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].text);
        assert_int_equal(mhla_text_words(cases[i].text, n), cases[i].words);
        assert_int_equal(mhla_text_stripped(cases[i].text, n), cases[i].stripped);
        assert_int_equal(mhla_text_characters(cases[i].text, n), cases[i].characters);
    }
}

static json_t *parse(const char *text) {
    json_t *row = NULL;
    ASSERT_OK(mhla_json_parse(&row, text, strlen(text), "row"));
    return row;
}

static void questions(void **state) {
    (void)state;
    static const struct {
        const char *row, *context, *delimiter, *first;
        int count, gold;
    } cases[] = {
        {"{\"context\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": 1}", "Q", " ", "a", 2, 1},
        {"{\"query\": \"Q\", \"choices\": [\"a\", \"b\"], \"target_delimiter\": \"\"}", "Q", "", "a", 2, -1},
        {"{\"question\": \"Q\", \"choices\": {\"text\": [\"x\", \"y\", \"z\"], \"label\": [\"1\", \"2\", \"3\"]}, "
         "\"answerKey\": \"2\"}",
         "Q", " ", "x", 3, 1},
        {"{\"question\": \"Q\", \"choices\": [\"x\", \"y\", \"z\"], \"answer\": \"C\"}", "Q", " ", "x", 3, 2},
        {"{\"ctx\": \"Q\", \"endings\": [\"x\", \"y\", \"z\"], \"label\": \"2\"}", "Q", " ", "x", 3, 2},
        {"{\"prompt\": \"Q\", \"options\": [\"no\", \"yes\"], \"answer\": \"yes\"}", "Q", " ", "no", 2, 1},
        {"{\"input\": \"Q\", \"target_scores\": {\"t\": 0, \"u\": 1.0}}", "Q", " ", "t", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *row = parse(cases[i].row);
        mhla_question q;
        ASSERT_OK(mhla_question_read(&q, row, "row"));
        assert_string_equal(q.context, cases[i].context);
        assert_string_equal(q.delimiter, cases[i].delimiter);
        assert_string_equal(q.choices[0], cases[i].first);
        assert_int_equal(q.count, cases[i].count);
        assert_int_equal(q.gold, cases[i].gold);
        assert_null(q.ending);
        mhla_question_release(&q);
        json_decref(row);
    }
}

/* Contexts that one ending follows, in both ways to write them. */
static void contexts(void **state) {
    (void)state;
    static const struct {
        const char *row, *first, *second, *ending;
        int gold;
    } cases[] = {
        {"{\"contexts\": [\"a b\", \"a c\"], \"ending\": \"d\", \"gold\": 1}", "a b", "a c", "d", 1},
        {"{\"contexts\": [\"a b\", \"a c\"], \"continuation\": \" d\", \"target_delimiter\": \"\"}", "a b", "a c", " d",
         -1},
        {"{\"sentence\": \"It was _  cold _ here. \", \"option1\": \"so\", \"option2\": \"t\\u00f6o\", \"answer\": "
         "\"2\"}",
         "It was so", "It was t\xc3\xb6o", "cold _ here.", 1},
        {"{\"sentence\": \"_ \\u3000x\", \"option1\": \"A\", \"option2\": \"B\", \"answer\": \"1\"}", "A", "B", "x", 0},
        {"{\"sentence\": \"_x\", \"option1\": \"A\", \"option2\": \"B\", \"answer\": \"\"}", "A", "B", "x", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *row = parse(cases[i].row);
        mhla_question q;
        ASSERT_OK(mhla_question_read(&q, row, "row"));
        assert_int_equal(q.count, 2);
        assert_string_equal(q.choices[0], cases[i].first);
        assert_string_equal(q.choices[1], cases[i].second);
        assert_string_equal(q.ending, cases[i].ending);
        assert_string_equal(q.delimiter, i == 1 ? "" : " ");
        assert_int_equal(q.gold, cases[i].gold);
        mhla_question_release(&q);
        json_decref(row);
    }
}

static void bad_questions(void **state) {
    (void)state;
    static const struct {
        const char *row, *message;
    } cases[] = {
        {"[1]", "row: an array where an object was expected"},
        {"{\"choices\": [\"a\"]}", "row: no \"context\""},
        {"{\"context\": 3, \"choices\": [\"a\"]}", "\"context\" is"},
        {"{\"context\": \"Q\"}", "row: no \"choices\""},
        {"{\"context\": \"Q\", \"choices\": []}", "0 choices"},
        {"{\"context\": \"Q\", \"choices\": \"ab\"}", "where an array of texts was expected"},
        {"{\"context\": \"Q\", \"choices\": {\"label\": []}}", "an object without \"text\""},
        {"{\"context\": \"Q\", \"choices\": [\"a\", 1]}", "choice 1 is not a string"},
        {"{\"context\": \"Q\", \"choices\": [\"a\", \"\"]}", "choice 1 is empty"},
        {"{\"context\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": 2}", "\"gold\" is 2: there are 2 choices"},
        {"{\"context\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": \"D\"}", "which is none of the 2 choices"},
        {"{\"context\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": 0.5}", "where an index or the text"},
        {"{\"context\": \"Q\", \"choices\": [\"a\"], \"target_delimiter\": 1}", "target_delimiter"},
        {"{\"context\": \"Q\", \"target_scores\": {\"a\": \"b\"}}", "the score of \"a\""},
        {"{\"contexts\": [\"a\", \"b\"]}", "\"contexts\" without an \"ending\""},
        {"{\"contexts\": [\"a\", \"b\"], \"ending\": \"\"}", "\"contexts\" without an \"ending\""},
        {"{\"contexts\": \"a\", \"ending\": \"b\"}", "\"contexts\" is"},
        {"{\"sentence\": \"a\", \"option1\": \"b\", \"option2\": \"c\"}", "\"sentence\" has no gap"},
        {"{\"sentence\": \"a _ \", \"option1\": \"b\", \"option2\": \"c\"}", "nothing stands after the gap"},
        {"{\"sentence\": \"_ a\", \"option1\": \"b\", \"option2\": \"c\", \"answer\": \"3\"}", "expected 1 or 2"},
        {"{\"sentence\": \"_ a\", \"option1\": \"b\"}", "choice 1 is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *row = parse(cases[i].row);
        mhla_question q;
        ASSERT_FAILS(mhla_question_read(&q, row, "row"), MHLA_EDATA, cases[i].message);
        assert_null(q.choices);
        json_decref(row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_cover), cmocka_unit_test(windows_golden), cmocka_unit_test(words),
        cmocka_unit_test(questions),     cmocka_unit_test(bad_questions),  cmocka_unit_test(contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
