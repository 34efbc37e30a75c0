/* Chat templates: templates.json beside this file holds templates, conversations and what jinja2 3.1.6 with transformers'
 * settings makes of them; refusals name the line and the construct; hostile templates come to an end. */
#include <mhla/lm.h>
#include <time.h>

#include "file/json.h"
#include "support.h"

static const mhla_message_desc one[] = {{"user", "Hi"}};

static void against_jinja2(void **state) {
    (void)state;
    char path[1024] = __FILE__;
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "templates.json"); /* NOLINT: shorter than this file's name and some */
    json_t *rows, *row;
    ASSERT_OK(mhla_json_load(&rows, path));
    assert_true(json_array_size(rows) > 50);
    size_t i;
    json_array_foreach(rows, i, row) {
        const json_t *list = json_object_get(row, "messages");
        mhla_message_desc messages[16];
        const int n = (int)json_array_size(list);
        for (int k = 0; k < n; k++) {
            const json_t *m = json_array_get(list, (size_t)k);
            messages[k].role = json_string_value(json_object_get(m, "role"));
            messages[k].content = json_string_value(json_object_get(m, "content"));
        }
        const char *source = json_string_value(json_object_get(row, "template")),
                   *expected = json_string_value(json_object_get(row, "expected"));
        mhla_chars text = {0};
        const mhla_status status = mhla_template_render(source, &text, messages, n,
                                                        json_is_true(json_object_get(row, "prompt")), "<s>", "</s>");
        if (json_object_get(row, "refused")) {
            assert_int_not_equal(status, MHLA_OK);
        } else {
            if (status != MHLA_OK) fail_msg("%s\n%s", source, mhla_message());
            if (text.count != strlen(expected) || (text.count && memcmp(text.data, expected, text.count) != 0))
                fail_msg("%s\nexpected: %s\ngot:      %.*s", source, expected, (int)text.count,
                         text.data ? text.data : "");
        }
        mhla_chars_free(&text);
    }
    json_decref(rows);
}

static void appends(void **state) {
    (void)state;
    mhla_chars text = {0};
    ASSERT_OK(mhla_template_render("a{{ messages[0].content }}", &text, one, 1, 0, NULL, NULL));
    ASSERT_OK(mhla_template_render("{{ bos_token }}b", &text, one, 1, 0, NULL, NULL));
    assert_int_equal(text.count, 4);
    assert_memory_equal(text.data, "aHib", 4);
    /* what fails half-way leaves nothing */
    ASSERT_FAILS(mhla_template_render("x\ny{{ nothing.at.all }}", &text, one, 1, 0, NULL, NULL), MHLA_EDATA, "line 2");
    assert_int_equal(text.count, 4);
    mhla_chars_free(&text);
}

static void dates(void **state) {
    (void)state;
    mhla_chars text = {0};
    ASSERT_OK(mhla_template_render("{{ strftime_now('%Y-%m-%d') }}", &text, one, 1, 0, NULL, NULL));
    assert_int_equal(text.count, 10);
    assert_true(text.data[0] == '2' && text.data[4] == '-' && text.data[7] == '-');
    mhla_chars_free(&text);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *source;
        mhla_status status;
        const char *text;
    } cases[] = {
        {"\n{% include 'x' %}", MHLA_ENOTSUP, "line 2: the statement \"include\""},
        {"{{ 1|frobnicate }}", MHLA_ENOTSUP, "line 1: the filter \"frobnicate\""},
        {"{{ 1 is frobnicated }}", MHLA_ENOTSUP, "the test \"frobnicated\""},
        {"{{ 'a'.encode() }}", MHLA_ENOTSUP, "no method \"encode\""},
        {"{{ lipsum() }}", MHLA_ENOTSUP, "no function \"lipsum\""},
        {"{{ 'a' % 1 }}", MHLA_ENOTSUP, "formatting"},
        {"{{ f(*a) }}", MHLA_ENOTSUP, "arguments by *"},
        {"{% for a in b recursive %}{% endfor %}", MHLA_ENOTSUP, "recursive"},
        {"{% if x %}\n\n", MHLA_EDATA, "endif of line 1"},
        {"{% endif %}", MHLA_EDATA, "unexpected \"endif\""},
        {"{{ 'abc }}", MHLA_EDATA, "no end"},
        {"{{ 1 + }}", MHLA_EDATA, "unexpected"},
        {"{{ (1 }}", MHLA_EDATA, "unexpected \"}\""},
        {"{{ 1 ", MHLA_EDATA, "no end"},
        {"{# x", MHLA_EDATA, "comment"},
        {"{% raw %}x", MHLA_EDATA, "endraw"},
        {"{{ 'a' + 1 }}", MHLA_EDATA, "text + a number"},
        {"{{ 'a' + none }}", MHLA_EDATA, "text + none"},
        {"{{ 'a' + gone }}", MHLA_EDATA, "\"gone\" is undefined"},
        {"{{ 1 // 0 }}", MHLA_EDATA, "zero"},
        {"{{ 9223372036854775807 }}", MHLA_ENOTSUP, "too large"},
        {"{{ 999999999999999999 * 1000 }}", MHLA_ERANGE, "too large"},
        {"{{ 1 < 'a' }}", MHLA_EDATA, "no order"},
        {"{% for a, b in [1] %}{% endfor %}", MHLA_EDATA, "goes over"},
        {"{% for a, b in [[1]] %}{% endfor %}", MHLA_EDATA, "1 values for 2 names"},
        {"{% set x = 1 %}{% set x.y = 2 %}", MHLA_EDATA, "namespace"},
        {"{% break %}", MHLA_EDATA, "outside"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", MHLA_EDATA, "takes 1"},
        {"{{ raise_exception('No \x01 system') }}", MHLA_EINVAL, "No ? system"},
        {"{{ '\\ud800' }}", MHLA_EDATA, "escape"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_chars text = {0};
        ASSERT_FAILS(mhla_template_render(cases[i].source, &text, one, 1, 0, NULL, NULL), cases[i].status,
                     cases[i].text);
        assert_int_equal(text.count, 0);
        mhla_chars_free(&text);
    }
    mhla_chars text = {0};
    const mhla_message_desc hollow = {"user", NULL};
    ASSERT_FAILS(mhla_template_render("", &text, &hollow, 1, 0, NULL, NULL), MHLA_EINVAL, "message 0");
    ASSERT_FAILS(mhla_template_render(NULL, &text, one, 1, 0, NULL, NULL), MHLA_EINVAL, "source");
    ASSERT_FAILS(mhla_template_render("", &text, NULL, 1, 0, NULL, NULL), MHLA_EINVAL, "messages");
}

/* Each of these would run for ever, fill memory or overflow the stack. */
static void hostile(void **state) {
    (void)state;
    static const char *const cases[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(999999999999999999) %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a|tojson }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s.replace('a', 'b')|length }}{% endfor %}",
        "{% for i in range(1000000) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% set d = dict() %}{% set l = range(100000)|list %}{% for i in l %}{% if i in l %}{% endif %}{% endfor %}",
        "{{ (range(30000)|list)|sort(reverse=true)|length }}",
        "{{ ('ab' * 1000000).strip('ab' * 1000000) }}",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_chars text = {0};
        const mhla_status status = mhla_template_render(cases[i], &text, one, 1, 0, NULL, NULL);
        if (status == MHLA_OK) fail_msg("accepted: %s", cases[i]);
        mhla_chars_free(&text);
    }
    /* nesting of every kind, in the source */
    static const char *const pairs[][3] = {
        {"{{ ", "(", " }}"},
        {"{{ ", "[", " }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ 1", "+1", " }}"},
        {"{{ x", ".y", " }}"},
        {"{{ x", "[0]", " }}"},
        {"{{ x", "|list", " }}"},
        {"{{ 1", " if 1 else 1", " }}"},
        {"{% if 1 %}", "{% if 1 %}", ""},
        {"{{ 1", " and 1", " }}"},
        {"{{ 1", " is odd", " }}"},
        {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
        {"{{ x", "()", " }}"},
        {"{{ '", "\\", "' }}"},
        {"{{ 1", "~1", " }}"},
    };
    char *source = new_bytes(1 << 20);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        strcpy(source, pairs[i][0]); /* NOLINT */
        size_t n = strlen(source);
        for (int k = 0; k < 20000; k++) {
            memcpy(source + n, pairs[i][1], strlen(pairs[i][1]));
            n += strlen(pairs[i][1]);
        }
        strcpy(source + n, pairs[i][2]); /* NOLINT */
        mhla_chars text = {0};
        (void)mhla_template_render(source, &text, one, 1, 0, NULL, NULL); /* it returns */
        mhla_chars_free(&text);
    }
    free(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_jinja2), cmocka_unit_test(appends), cmocka_unit_test(dates),
        cmocka_unit_test(refusals),       cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
