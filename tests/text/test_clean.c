/* Prompts cleaned as SANA and Wan have them; Wan's also against what its own cleaner made, where that is not repair of text that was decoded
 * wrongly. */
#include "goldens.h"
#include "text/clean.h"

static void check(mhla_status (*clean)(char **, const char *), const char *text, const char *wanted) {
    char *got;
    ASSERT_OK(clean(&got, text));
    assert_string_equal(got, wanted);
    free(got);
}

static void lower(void **state) {
    (void)state;
    check(mhla_clean_lower, "", "");
    check(mhla_clean_lower, " \t\n\u00a0", "");
    check(mhla_clean_lower, "\n  A Cyberpunk  CAT\u3000", "a cyberpunk  cat");
    check(mhla_clean_lower, "ÄÖÜ Привет 猫", "äöü привет 猫");
    char *got;
    ASSERT_FAILS(mhla_clean_lower(&got, "a\xff"), MHLA_EDATA, "not UTF-8 at byte 1");
    ASSERT_FAILS(mhla_clean_repair(&got, "\xc3"), MHLA_EDATA, "not UTF-8 at byte 0");
}

static void repair(void **state) {
    (void)state;
    check(mhla_clean_repair, "  a\r\n\tcat &amp;amp;  &#x41;&#0;&bogus; &", "a cat & A&bogus; &");
    check(mhla_clean_repair, "色调艳丽，“过曝”", "色调艳丽,\"过曝\"");
    check(mhla_clean_repair, "e\u0301 \u200bx\x01", "é \u200bx");
}

/* What only a model of wrong decodings could tell. */
static int decoded_wrongly(const char *text) { return strstr(text, "Ã") || strstr(text, "â€"); }

static void as_published(void **state) {
    (void)state;
    char path[512];
    json_t *tree =
        json_load_file(golden_path(path, "generation/tokenizers/wan_prompt_clean_cases.json"), JSON_ALLOW_NUL, NULL);
    assert_non_null(tree);
    const json_t *cases = json_object_get(tree, "cases");
    int checked = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *row = json_array_get(cases, i), *text = json_object_get(row, "text");
        if (strlen(json_string_value(text)) != json_string_length(text)) continue; /* a zero inside: no prompt in C */
        if (decoded_wrongly(json_string_value(text))) continue;
        check(mhla_clean_repair, json_string_value(text), json_string_value(json_object_get(row, "cleaned")));
        checked++;
    }
    assert_true(checked > 70);
    json_decref(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lower), cmocka_unit_test(repair),
                                       cmocka_unit_test(as_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
