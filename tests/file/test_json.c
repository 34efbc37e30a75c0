/* JSON: limits, typed access and its sentences, nearest names, JSON lines and what a killed writer leaves. */
#include <fcntl.h>
#include <float.h>

#include "file/json.h"
#include "files.h"

static void bad(const char *text, const char *word) {
    json_t *tree;
    if (mhla_json_parse(&tree, text, strlen(text), "c.json") == MHLA_OK) fail_msg("accepted: %s", text);
    assert_null(tree);
    message_has(text, word);
}

static void parsing(void **state) {
    (void)state;
    json_t *tree;
    const char *fine = "{\"a\": [1, 2.5, \"x\", true, null, {}]}\n";
    assert_int_equal(mhla_json_parse(&tree, fine, strlen(fine), "c.json"), MHLA_OK);
    json_decref(tree);
    bad("", "c.json: empty");
    bad("{", "c.json:1:1:");
    bad("{\n \"a\": 1,\n \"b\" 2}", "c.json:3:6:");
    bad("{\"a\":1,\"a\":2}", "duplicate");
    bad("{} x", "end of file");
    bad("{\"a\":1e999}", "real number overflow");
    bad("{\"\\u0000\":1}", "c.json:1");
    bad("\"\xff\"", "0xff");
    bad("{\"\x1b[31m\"", "c.json:1");
    assert_null(strchr(mhla_message(), '\x1b'));

    /* bombs: depth, number of values, size */
    enum { N = 1 << 20 };
    char *text = new_bytes(9 << 20);
    memset(text, '[', N), text[N] = '\0';
    bad(text, "nested more than 64");
    for (int i = 0; i < N; i++) memcpy(text + (size_t)i * 4, "{\"\":", 4);
    text[(size_t)4 * N] = '\0';
    bad(text, "nested");
    memset(text, '[', 64), memset(text + 64, ']', 64), text[128] = '\0';
    assert_int_equal(mhla_json_parse(&tree, text, 128, "c.json"), MHLA_OK);
    json_decref(tree);
    text[0] = '[';
    for (size_t i = 1; i < (9 << 20) - 1; i += 2) memcpy(text + i, "0,", 2);
    text[(9 << 20) - 1] = '\0';
    bad(text, "more than 4194304 values");
    free(text);
    assert_int_equal(mhla_json_parse(&tree, "[]", (size_t)MHLA_JSON_BYTES + 1, "c.json"), MHLA_EDATA);
    assert_int_equal(mhla_json_load(&tree, in_folder("none.json")), MHLA_EIO);
    message_has("none", "No such file");
}

/* Integers beyond int64 are numbers all the same (transformers writes model_max_length so); who needs an integer refuses them. */
static void large_integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double real; /* 0: it stays an integer */
        json_int_t integer;
    } rows[] = {{"[9223372036854775807]", 0, INT64_MAX},
                {"[-9223372036854775808]", 0, INT64_MIN},
                {"[9223372036854775808]", 9223372036854775808.0, 0},
                {"[-9223372036854775809]", -9223372036854775808.0, 0},
                {"[18446744073709551615]", 18446744073709551615.0, 0},
                {"[1000000000000000019884624838656]", 1e30, 0},
                {"[-1000000000000000019884624838656 ,1]", -1e30, 0},
                {"[9223372036854775808.5e1]", 92233720368547758085.0, 0},
                {"[Infinity, 1]", DBL_MAX, 0}, /* as Python writes it; jansson has no infinity */
                {"[-Infinity]", -DBL_MAX, 0},
                {"[-0]", 0, 0}};
    json_t *tree;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (mhla_json_parse(&tree, rows[i].text, strlen(rows[i].text), "c.json") != MHLA_OK)
            fail_msg("%s: %s", rows[i].text, mhla_message());
        const json_t *v = json_array_get(tree, 0);
        assert_int_equal(json_is_integer(v), rows[i].real == 0);
        if (json_is_integer(v)) assert_true(json_integer_value(v) == rows[i].integer);
        if (json_is_real(v)) assert_true(json_real_value(v) == rows[i].real);
        json_decref(tree);
    }
    const char *config =
        "{\"model_max_length\": 1000000000000000019884624838656, \"text\": \"99999999999999999999 Infinity\"}";
    int64_t n = 7;
    double x = 0;
    const char *text = NULL;
    assert_int_equal(mhla_json_parse(&tree, config, strlen(config), "c.json"), MHLA_OK);
    assert_int_equal(mhla_json_get_real(&x, tree, "model_max_length", "c.json"), MHLA_OK);
    assert_true(x == 1e30);
    assert_int_equal(mhla_json_get_text(&text, tree, "text", "c.json"), MHLA_OK);
    assert_string_equal(text, "99999999999999999999 Infinity");
    assert_int_equal(mhla_json_get_int(&n, tree, "model_max_length", 1, 4096, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: \"model_max_length\" is 1e+30: expected 1 to 4096");
    assert_int_equal(n, 7);
    json_decref(tree);
    bad("[00000000000000000000000001]", "c.json:1");
    bad("[99999999999999999999 1]", "c.json:1");
    bad("[99999999999999999999x]", "c.json:1");
    bad("[1e400]", "real number overflow");
    for (int i = 0; i < 8; i++)
        bad((const char *[]){"[Infinit]", "[Infinity1]", "[1Infinity]", "[xInfinity]", "[+Infinity]", "[Infinity.0]",
                             "[InfinityInfinity]", "[NaN]"}[i],
            "c.json:1");
    char huge[402];
    memset(huge, '9', 401);
    huge[0] = '[', huge[400] = ']', huge[401] = '\0';
    bad(huge, "real number overflow");
}

/* Every truncation and every flipped bit of a small file: an answer, no crash. */
static void damage(void **state) {
    (void)state;
    const char *text = "{\"a\":[1,-2.5e3,\"x\\u00e9\\\"\"],\"b\":{\"c\":true,\"d\":null}}";
    const size_t size = strlen(text);
    json_t *tree;
    for (size_t n = 0; n < size; n++) {
        char *cut = new_bytes(n);
        memcpy(cut, text, n);
        assert_int_equal(mhla_json_parse(&tree, cut, n, "x"), MHLA_EDATA);
        free(cut);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        char *copy = new_bytes(size);
        memcpy(copy, text, size);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        if (mhla_json_parse(&tree, copy, size, "x") == MHLA_OK) json_decref(tree);
        free(copy);
    }
}

static void getters(void **state) {
    (void)state;
    const char *text =
        "{\"depth\":12,\"rate\":0.5,\"name\":\"deit\",\"bias\":true,\"list\":[],\"inner\":{},\"none\":null}";
    json_t *tree;
    assert_int_equal(mhla_json_parse(&tree, text, strlen(text), "c.json"), MHLA_OK);
    int64_t n = -1;
    double x = -1;
    int b = -1;
    const char *s = NULL;
    const json_t *j = NULL;
    assert_int_equal(mhla_json_get_int(&n, tree, "depth", 1, 100, "c.json"), MHLA_OK);
    assert_int_equal(n, 12);
    assert_int_equal(mhla_json_get_int(&n, tree, "absent", 1, 100, "c.json"), MHLA_OK);
    assert_int_equal(n, 12);
    assert_int_equal(mhla_json_get_int(&n, tree, "depth", 1, 11, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: \"depth\" is 12: expected 1 to 11");
    assert_int_equal(mhla_json_get_int(&n, tree, "name", 1, 11, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: \"name\" is \"deit\": expected an integer");
    assert_int_equal(mhla_json_get_int(&n, tree, "rate", 0, 11, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: \"rate\" is 0.5: expected an integer");
    assert_int_equal(n, 12);
    assert_int_equal(mhla_json_get_real(&x, tree, "rate", "c.json"), MHLA_OK);
    assert_true(x == 0.5);
    assert_int_equal(mhla_json_get_real(&x, tree, "depth", "c.json"), MHLA_OK);
    assert_true(x == 12);
    assert_int_equal(mhla_json_get_real(&x, tree, "bias", "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: \"bias\" is true: expected a number");
    assert_int_equal(mhla_json_get_bool(&b, tree, "bias", "c.json"), MHLA_OK);
    assert_int_equal(b, 1);
    assert_int_equal(mhla_json_get_bool(&b, tree, "none", "c.json"), MHLA_EDATA);
    assert_int_equal(mhla_json_get_text(&s, tree, "name", "c.json"), MHLA_OK);
    assert_string_equal(s, "deit");
    assert_int_equal(mhla_json_get_text(&s, tree, "list", "c.json"), MHLA_EDATA);
    assert_int_equal(mhla_json_get_object(&j, tree, "inner", "c.json"), MHLA_OK);
    assert_non_null(j);
    assert_int_equal(mhla_json_get_object(&j, tree, "list", "c.json"), MHLA_EDATA);
    assert_int_equal(mhla_json_get_array(&j, tree, "list", "c.json"), MHLA_OK);
    assert_int_equal(mhla_json_get_array(&j, tree, "inner", "c.json"), MHLA_EDATA);

    static const char *const choices[] = {"vit", "deit", "swin", NULL}, *const others[] = {"mhla", "deits", NULL};
    int choice = -1;
    assert_int_equal(mhla_json_get_choice(&choice, tree, "name", choices, "c.json"), MHLA_OK);
    assert_int_equal(choice, 1);
    assert_int_equal(mhla_json_get_choice(&choice, tree, "name", others, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(),
                        "c.json: \"name\" is \"deit\": expected one of mhla, deits; the nearest is deits");
    static const char *const keys[] = {"depths", "rate", "name", "bias", "list", "inner", "none", NULL};
    assert_int_equal(mhla_json_check_keys(tree, keys, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: unknown key \"depth\"; did you mean \"depths\"?");
    static const char *const far[] = {"colour", NULL};
    assert_int_equal(mhla_json_check_keys(tree, far, "c.json"), MHLA_EDATA);
    assert_string_equal(mhla_message(), "c.json: unknown key \"depth\"");
    assert_int_equal(mhla_json_check_keys(j, keys, "c.json"), MHLA_EDATA); /* an array */
    json_decref(tree);
}

static void nearest(void **state) {
    (void)state;
    assert_int_equal(mhla_edit_distance("", "", 5), 0);
    assert_int_equal(mhla_edit_distance("abc", "", 5), 3);
    assert_int_equal(mhla_edit_distance("kitten", "sitting", 5), 3);
    assert_int_equal(mhla_edit_distance("weigth", "weight", 5), 1);
    assert_int_equal(mhla_edit_distance("abcdef", "uvwxyz", 3), 4); /* more than the limit */
    char a[600], b[600];
    memset(a, 'a', 599), memset(b, 'b', 599), a[599] = b[599] = '\0';
    assert_int_equal(mhla_edit_distance(a, b, 9), 10);
    assert_int_equal(mhla_edit_distance(a, a, 9), 0);
    assert_true(strlen(MHLA_QUOTE(a)) < 110);
    assert_string_equal(MHLA_QUOTE("a\x1b[1m\n\x7f\xff\xc2\x9b é"), "\"a?[1m???? é\"");
}

static void numbers(void **state) {
    (void)state;
    json_t *x = mhla_json_float(0.1f);
    assert_true(json_real_value(x) == 0.1);
    json_decref(x);
    rng r = {5};
    for (int i = 0; i < 10000; i++) {
        const float f = rng_signed(&r) * powf(10.0f, (float)rng_below(&r, 60) - 30.0f);
        x = mhla_json_float(f);
        assert_true((float)json_real_value(x) == f);
        json_decref(x);
    }
    json_decref(x = mhla_json_float(NAN));
    assert_true(json_is_null(x));
    json_decref(x = mhla_json_real(-INFINITY));
    assert_true(json_is_null(x));
}

static void saving(void **state) {
    (void)state;
    json_t *tree = json_pack("{s:i,s:f,s:[s]}", "b", 1, "a", 0.1, "c", "x"), *again;
    const char *path = in_folder("saved.json");
    assert_int_equal(mhla_json_save(tree, path), MHLA_OK);
    size_t size;
    char *text = read_file(path, &size);
    assert_string_equal(text, "{\n  \"b\": 1,\n  \"a\": 0.1,\n  \"c\": [\n    \"x\"\n  ]\n}\n");
    free(text);
    assert_int_equal(mhla_json_load(&again, path), MHLA_OK);
    assert_true(json_equal(tree, again));
    json_decref(again);
    assert_int_equal(mhla_json_save(tree, in_folder("nowhere/x.json")), MHLA_EIO);
    json_decref(tree);
}

/* ---- Lines ---- */

/* The fewest digits that give the number back, as Python writes it; texts and integers as they are. */
static void digits(void **state) {
    (void)state;
    static const char *const texts[] = {"0.0008",
                                        "1e-06",
                                        "-2.5e-10",
                                        "0.0",
                                        "-0.0",
                                        "1.0",
                                        "10000.0",
                                        "1e+16",
                                        "5e-324",
                                        "1e+22",
                                        "123.0",
                                        "0.30000000000000004",
                                        "0.1",
                                        "7",
                                        "-7",
                                        "\"0.00080000000000000004\"",
                                        "9223372036854775807",
                                        "1.7976931348623157e+308",
                                        "123456.789",
                                        "[1e-05,\"\\\"1.50\",2.5]",
                                        "{\"0.10000000000000001\":0.25}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *x = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        char *text = mhla_json_text(x, JSON_COMPACT);
        assert_non_null(text);
        assert_string_equal(text, texts[i]);
        json_decref(x);
        free(text);
    }
    for (int i = 0; i < 1000; i++) {
        const double a = (i * 7919 % 1000 + 0.5) * pow(10.0, i % 600 - 300) / 3.0;
        json_t *x = json_real(a), *again = NULL;
        char *text = mhla_json_text(x, 0);
        again = json_loads(text, JSON_DECODE_ANY, NULL);
        if (json_real_value(again) != a) fail_msg("%.17g: %s", a, text);
        json_decref(x);
        json_decref(again);
        free(text);
    }
}

static mhla_status add_up(void *user, const json_t *value) {
    *(int64_t *)user += json_integer_value(json_object_get(value, "n"));
    return MHLA_OK;
}

static int small(const void *user, const json_t *value) {
    return json_integer_value(json_object_get(value, "n")) < *(const int *)user;
}

/* What stays is not written again: it keeps its spaces and its digits. */
static void cutting(void **state) {
    (void)state;
    static const char text[] = "{ \"n\": 1, \"x\":0.50 }\n{\"n\":2}\n{\"n\":9}\n{\"n\":1}\n{\"n\"";
    static const size_t stays[] = {0, 0, 21, 29, 29}; /* bytes of lines below n */
    const char *path = in_folder("cut.jsonl");
    for (int n = 1; n <= 4; n++) {
        size_t size;
        write_file(path, text, sizeof text - 1);
        assert_int_equal(mhla_jsonl_cut(path, small, &n), MHLA_OK);
        char *left = read_file(path, &size);
        assert_int_equal(size, stays[n]);
        assert_memory_equal(left, text, size);
        free(left);
    }
    write_file(path, "", 0);
    assert_int_equal(mhla_jsonl_cut(path, small, &(int){1}), MHLA_OK);
    /* after a loss of power the last lines may be damaged; a damaged one among those that stay is not that */
    size_t size;
    write_file(path, "{\"n\":0}\nno\n\0\0\n{\"n\":1}\n", 22);
    assert_int_equal(mhla_jsonl_cut(path, small, &(int){1}), MHLA_OK);
    char *left = read_file(path, &size);
    assert_int_equal(size, 8);
    free(left);
    write_file(path, "{\"n\":0}\nno\n{\"n\":0}\n", 19);
    assert_int_equal(mhla_jsonl_cut(path, small, &(int){1}), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "line 2"));
}

static void lines(void **state) {
    (void)state;
    const char *path = in_folder("log.jsonl");
    mhla_jsonl log;
    assert_int_equal(mhla_jsonl_open(&log, path), MHLA_OK);
    for (int i = 1; i <= 3; i++)
        assert_int_equal(mhla_jsonl_write(&log, json_pack("{s:i,s:o}", "n", i, "x", mhla_json_real(0.5))), MHLA_OK);
    assert_int_equal(mhla_jsonl_write(&log, NULL), MHLA_ENOMEM);
    assert_int_equal(mhla_jsonl_close(&log), MHLA_OK);
    assert_int_equal(mhla_jsonl_close(&log), MHLA_OK);
    size_t size;
    char *text = read_file(path, &size);
    assert_string_equal(text, "{\"n\":1,\"x\":0.5}\n{\"n\":2,\"x\":0.5}\n{\"n\":3,\"x\":0.5}\n");

    /* the writer was killed inside its last line, wherever: the others stay, and the next run goes on behind them */
    for (size_t n = 0; n <= size; n++) {
        write_file(path, text, n);
        const int64_t whole = (int64_t)(n / 16);
        int64_t sum = 0;
        assert_int_equal(mhla_jsonl_read(path, add_up, &sum), MHLA_OK);
        assert_int_equal(sum, whole * (whole + 1) / 2);
        assert_int_equal(mhla_jsonl_open(&log, path), MHLA_OK);
        assert_int_equal(mhla_jsonl_write(&log, json_pack("{s:i}", "n", 100)), MHLA_OK);
        assert_int_equal(mhla_jsonl_close(&log), MHLA_OK);
        sum = 0;
        assert_int_equal(mhla_jsonl_read(path, add_up, &sum), MHLA_OK);
        assert_int_equal(sum, whole * (whole + 1) / 2 + 100);
    }
    free(text);
    write_file(path, "{\"n\":1}\n{\"n\"\n{}\n", 17);
    int64_t sum = 0;
    assert_int_equal(mhla_jsonl_read(path, add_up, &sum), MHLA_EDATA);
    message_has("line 2", "log.jsonl: line 2:");
    assert_int_equal(mhla_jsonl_open(&log, in_folder("nowhere/log")), MHLA_EIO);
    assert_int_equal(mhla_jsonl_open(&log, "/dev/full"), MHLA_EIO);
    message_has("/dev/full", "not a regular file");
    log.fd = open("/dev/full", O_WRONLY); /* a disk without space */
    assert_int_equal(mhla_jsonl_write(&log, json_object()), MHLA_EIO);
    message_has("/dev/full", "No space left");
    mhla_jsonl_close(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsing),        cmocka_unit_test(damage),  cmocka_unit_test(getters),
        cmocka_unit_test(nearest),        cmocka_unit_test(numbers), cmocka_unit_test(digits),
        cmocka_unit_test(large_integers), cmocka_unit_test(saving),  cmocka_unit_test(lines),
        cmocka_unit_test(cutting),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
