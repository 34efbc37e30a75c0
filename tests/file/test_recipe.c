/* Recipes: what TOML they take and what they refuse, with which sentence and line; the same from JSON and from flags. */
#include "file/json.h"
#include "file/recipe.h"
#include "files.h"

static const mhla_recipe_row rows[] = {
    {"seed", MHLA_RECIPE_INT, "0", 0, 0, NULL, "of all random numbers"},
    {"train.epochs", MHLA_RECIPE_INT, "300", 1, 1e6, NULL, "passes over the training images"},
    {"train.rate", MHLA_RECIPE_REAL, "5e-4", 0, 10, NULL, "learning rate"},
    {"train.decay", MHLA_RECIPE_REAL, NULL, 0, INFINITY, NULL, "weight decay"},
    {"train.ema", MHLA_RECIPE_BOOL, "false", 0, 0, NULL, "average of the weights"},
    {"train.mixup.alpha", MHLA_RECIPE_REAL, "0.8", 0, 1, NULL, "mixup"},
    {"model.attention", MHLA_RECIPE_TEXT, "mhla", 0, 0, "mhla|softmax|linear", "which attention"},
    {"model.name", MHLA_RECIPE_TEXT, NULL, 0, 0, NULL, "which model"},
    {"data.size", MHLA_RECIPE_INTS, "224,224", 1, 4096, NULL, "image size"},
    {"data.mean", MHLA_RECIPE_REALS, "0.5", 0, 0, NULL, "of the channels"},
    {"data.folders", MHLA_RECIPE_TEXTS, "", 0, 0, NULL, "where images lie"},
    {0},
};

static mhla_recipe *fresh(void) {
    mhla_recipe *r;
    if (mhla_recipe_create(&r, rows) != MHLA_OK) fail_msg("%s", mhla_message());
    return r;
}

static mhla_status parse(mhla_recipe *r, const char *text, int json) {
    const size_t n = strlen(text); /* exactly so many bytes: a sanitizer sees who reads on */
    char *copy = new_bytes(n);
    memcpy(copy, text, n);
    const mhla_status status = mhla_recipe_parse(r, copy, n, json, json ? "r.json" : "r.toml");
    free(copy);
    return status;
}

static void defaults(void **state) {
    (void)state;
    mhla_recipe *r = fresh();
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 300);
    assert_true(mhla_recipe_real(r, "train.rate") == 5e-4);
    assert_int_equal(mhla_recipe_bool(r, "train.ema"), 0);
    assert_string_equal(mhla_recipe_text(r, "model.attention"), "mhla");
    assert_string_equal(mhla_recipe_text(r, "model.name"), "");
    assert_false(mhla_recipe_has(r, "model.name"));
    assert_false(mhla_recipe_given(r, "train.epochs"));
    assert_int_equal(json_array_size(mhla_recipe_array(r, "data.size")), 2);
    assert_int_equal(json_array_size(mhla_recipe_array(r, "data.folders")), 0);
    mhla_recipe_free(r);
    mhla_recipe_free(NULL);
    static const mhla_recipe_row wrong[] = {{"a", MHLA_RECIPE_INT, "x", 0, 0, NULL, ""}, {0}};
    assert_int_equal(mhla_recipe_create(&r, wrong), MHLA_EINVAL);
    assert_null(r);
    char text[256];
    assert_string_equal(mhla_recipe_expected(text, sizeof text, &rows[1]), "an integer from 1 to 1000000");
    assert_string_equal(mhla_recipe_expected(text, sizeof text, &rows[3]), "a number, 0 or more");
    assert_string_equal(mhla_recipe_expected(text, sizeof text, &rows[6]), "one of mhla, softmax, linear");
    assert_string_equal(mhla_recipe_expected(text, sizeof text, &rows[8]), "an array of integers from 1 to 4096");
}

static void toml(void **state) {
    (void)state;
    mhla_recipe *r = fresh();
    const char *text = "\xef\xbb\xbf# a comment\r\n"
                       "seed = -1_000 # another\n"
                       "model.name = \"de\\u00e9\\\"\\t\" \n"
                       "model.attention = 'softmax'\n"
                       "\n[train]\n"
                       "  epochs=5\r\n"
                       "rate = 1e-3\n"
                       "mixup . alpha = 2.5e-1\n"
                       "ema = true\n"
                       "[data]#x\n"
                       "size = [ 32, # rows\n  48,\n]\n"
                       "mean = [0.5, 1, 2.5e+0]\n"
                       "folders = ['a\\b', \"c, # d\"]\n"
                       "[train.mixup.x]\n"
                       "[other]";
    if (parse(r, text, 0) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_recipe_int(r, "seed"), -1000);
    assert_string_equal(mhla_recipe_text(r, "model.name"), "de\xc3\xa9\"\t");
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 5);
    assert_true(mhla_recipe_given(r, "train.epochs"));
    assert_true(mhla_recipe_real(r, "train.rate") == 1e-3);
    assert_true(mhla_recipe_real(r, "train.mixup.alpha") == 0.25);
    assert_int_equal(mhla_recipe_bool(r, "train.ema"), 1);
    const json_t *size = mhla_recipe_array(r, "data.size"), *mean = mhla_recipe_array(r, "data.mean");
    assert_int_equal(json_integer_value(json_array_get(size, 1)), 48);
    assert_true(json_real_value(json_array_get(mean, 2)) == 2.5);
    assert_true(json_is_real(json_array_get(mean, 1)));
    assert_string_equal(json_string_value(json_array_get(mhla_recipe_array(r, "data.folders"), 0)), "a\\b");
    assert_string_equal(json_string_value(json_array_get(mhla_recipe_array(r, "data.folders"), 1)), "c, # d");
    assert_string_equal(mhla_recipe_text(r, "model.attention"), "softmax");

    /* what a run folder keeps loads again to the same */
    json_t *tree = mhla_recipe_tree(r);
    assert_true(json_is_object(json_object_get(json_object_get(tree, "train"), "mixup")));
    assert_int_equal(mhla_json_save(tree, in_folder("recipe.json")), MHLA_OK);
    mhla_recipe *again = fresh();
    if (mhla_recipe_load(again, in_folder("recipe.json")) != MHLA_OK) fail_msg("%s", mhla_message());
    json_t *tree2 = mhla_recipe_tree(again);
    assert_true(json_equal(tree, tree2));
    json_decref(tree);
    json_decref(tree2);
    mhla_recipe_free(again);
    assert_int_equal(parse(r, "", 0), MHLA_OK);
    assert_int_equal(mhla_recipe_load(r, in_folder("none.toml")), MHLA_EIO);
    mhla_recipe_free(r);
}

static void bad(const char *text, int json, const char *word) {
    mhla_recipe *r = fresh();
    if (parse(r, text, json) == MHLA_OK) fail_msg("accepted: %s", text);
    message_has(text, word);
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 300); /* nothing of a wrong file is taken */
    assert_false(mhla_recipe_given(r, "train.epochs"));
    mhla_recipe_free(r);
}

static void refused(void **state) {
    (void)state;
    bad("seed = 7\n[train]\nepoch = 5", 0, "r.toml:3:1: unknown key \"train.epoch\"; did you mean \"train.epochs\"?");
    bad("[trian]\nepochs = 5", 0, "r.toml:2:1: unknown key \"trian.epochs\"; did you mean \"train.epochs\"?");
    bad("epochs = 5", 0, "did you mean \"train.epochs\"?");
    bad("atention = 'mhla'", 0, "did you mean \"model.attention\"?");
    bad("something.else = 5", 0, "r.toml:1:11: unknown key \"something.else\"");
    bad("train = 5", 0, "unknown key \"train\"");
    bad("[train]\n\nepochs = 'ten'", 0,
        "r.toml:3:10: \"train.epochs\" is \"ten\": expected an integer from 1 to 1000000");
    bad("train.epochs = 5.0", 0, "\"train.epochs\" is 5.0: expected an integer");
    bad("train.epochs = 0", 0, "\"train.epochs\" is 0: expected");
    bad("train.epochs = true", 0, "\"train.epochs\" is true: expected");
    bad("train.epochs = [1]", 0, "\"train.epochs\" is [1]: expected");
    bad("train.decay = -1", 0, "expected a number, 0 or more");
    bad("train.ema = 1", 0, "\"train.ema\" is 1: expected true or false");
    bad("model.attention = 'flash'", 0, "is \"flash\": expected one of mhla, softmax, linear");
    bad("model.attention = 'mhla|softmax'", 0, "expected one of");
    bad("model.attention = ''", 0, "expected one of");
    bad("data.size = 5", 0, "\"data.size\" is 5: expected an array of integers from 1 to 4096");
    bad("data.size = [5, 5000]", 0, "[5,5000]");
    bad("data.size = [5, 'x']", 0, "expected an array of integers");

    bad("[train]\nepochs = 5\nepochs = 6", 0, "r.toml:3:1: \"train.epochs\" occurs twice");
    bad("[train]\n[train]", 0, "r.toml:2:2: \"train\" occurs twice");
    bad("seed = 5\nseed.x = 3", 0, "r.toml:2:1: \"seed\" is a value");
    bad("seed = 5\n[seed]", 0, "\"seed\" is a value");
    bad("[seed]\nx=1", 0, "r.toml:1:2: \"seed\" is {\"x\":1}: expected an integer");
    bad("[train.mixup]\n[train]\nmixup = 1", 0, "\"train.mixup\" is a table");
    bad("train.mixup.alpha = 1\ntrain.mixup = 1", 0, "is a table");
    bad("[[train]]\nepochs = 5", 0, "r.toml:1:3: unknown key \"train\"");
    bad("[[seed]]\nx = 5", 0, "\"seed\" is [{\"x\":5}]: expected an integer");
    bad("[train", 0, "']'");
    bad("[]", 0, "expected a key");
    bad("[train]x", 0, "line should end");
    bad("[train.]", 0, "expected a key");
    bad("= 5", 0, "expected a key");
    bad("seed", 0, "'='");
    bad("seed =", 0, "value is missing");
    bad("seed = \nseed=2", 0, "r.toml:1:8: a value is missing");
    bad("seed = # x", 0, "value is missing");
    bad("seed = 5 6", 0, "line should end");
    bad("seed 5", 0, "'='");
    bad("seed.. = 5", 0, "expected a key");
    bad("seed = {a = 1}", 0, "r.toml:1:8: \"seed\" is {\"a\":1}: expected an integer");
    bad("train = {epochs = 5}\n[train]", 0, "r.toml:2:2: \"train\" is written inline already");
    bad("train = {epochs = 5}\ntrain.ema = true", 0, "\"train\" is written inline already");
    bad("train = {epochs = 5,\n}", 0, "expected a key");
    bad("train = {epochs = 5\n}", 0, "a line ends inside {...}");
    bad("seed = 1979-05-27", 0, "r.toml:1:8: \"seed\" is the date or time 1979-05-27: expected an integer");
    bad("seed = 07:32:00", 0, "is the date or time 07:32:00");
    bad("data.size = [1, 1979-05-27 07:32:00z]", 0,
        "r.toml:1:17: \"data.size\" contains the date or time 1979-05-27T07:32:00Z: expected an array");
    bad("seed = 1979-05-27 1979-05-27 07:32:00", 0, "\"1979-05-27 1979-05-27\" is not a value");
    bad("seed = 1979-02-29", 0, "\"1979-02-29\" is not a value");
    bad("[train.mixup]\n[train]\nmixup.alpha = 1", 0, "r.toml:3:1: \"train.mixup\" has a header already");
    bad("train.epochs = 5\n[train]", 0, "r.toml:2:2: \"train\" occurs twice");
    bad("a = '\xc3\xa9' \n b = 1\r", 0, "r.toml:2:7: \"?\" where the line should end");
    bad("model.name = '\xc3\xa9' 5", 0, "r.toml:1:18: \"5\" where the line should end");
    bad("# \x01", 0, "a control character inside a comment");
    bad("# \xff", 0, "r.toml:1:3: not UTF-8");
    bad("seed = 012", 0, "not a value");
    bad("seed = 1__0", 0, "not a value");
    bad("seed = _1", 0, "not a value");
    bad("seed = 1_", 0, "not a value");
    bad("seed = +", 0, "not a value");
    bad("seed = --1", 0, "not a value");
    bad("seed = True", 0, "not a value");
    bad("seed = truely", 0, "not a value");
    bad("seed = 99999999999999999999", 0, "beyond the range");
    bad("seed = 0x8000000000000000", 0, "beyond the range");
    bad("seed = -9223372036854775809", 0, "beyond the range");
    bad("seed = 0x", 0, "not a value");
    bad("seed = -0x1", 0, "not a value");
    bad("train.rate = 1e999", 0, "beyond the range");
    bad("train.rate = .5", 0, "not a value");
    bad("train.rate = 5.", 0, "not a value");
    bad("train.rate = 5.e1", 0, "not a value");
    bad("train.rate = 1e", 0, "not a value");
    bad("train.rate = 1e5.5", 0, "not a value");
    bad("train.rate = -inf", 0, "r.toml:1:14: \"train.rate\" is -inf: expected a number from 0 to 10");
    bad("data.mean = [nan]", 0, "r.toml:1:14: \"data.mean\" contains nan: expected an array of numbers");
    bad("model.name = \"x", 0, "closing quote");
    bad("model.name = \"x\n\"", 0, "r.toml:1:14: a string lacks");
    bad("model.name = \"\"\"x\n\"\"", 0, "closing quote");
    bad("model.name = '''x''''''", 0, "line should end");
    bad("model.name = \"\"\"a\\ b\"\"\"", 0, "escape");
    bad("model.name = \"\\x41\"", 0, "escape");
    bad("model.name = \"\\u12\"", 0, "escape");
    bad("model.name = \"\\ud800\"", 0, "escape");
    bad("model.name = \"\\u0000\"", 0, "expected text");
    bad("model.name = \"\\", 0, "escape");
    bad("model.name = \"\x01\"", 0, "control character");
    bad("model.name = \"\xff\"", 0, "UTF-8");
    bad("data.size = [1", 0, "',' or ']'");
    bad("data.size = [1 2]", 0, "',' or ']'");
    bad("data.size = [,]", 0, "\",\" where a value should be");
    bad("data.size = [1,,2]", 0, "r.toml:1:16: \",\" where a value");
    bad("data.size = [\n\n[1]]", 0, "\"data.size\" is [[1]]: expected an array of integers");
    bad("\x1b[31m = 1", 0, "expected a key");
    char *text = new_bytes((1 << 20) + 2);
    memset(text, '#', (1 << 20) + 1);
    text[(1 << 20) + 1] = '\0';
    bad(text, 0, "not a recipe");
    memset(text, 'a', 400), strcpy(text + 400, "=1");
    bad(text, 0, "unknown key");
    strcpy(text, "seed = "), memset(text + 7, '1', 300), text[307] = '\0';
    bad(text, 0, "beyond the range");
    memcpy(text, "data.size = [", 13);
    for (int i = 0; i < 70000; i++) memcpy(text + 13 + 2 * i, "1,", 2);
    strcpy(text + 13 + 140000, "]");
    bad(text, 0, "more than 65536 keys and values");
    memset(text, '\0', 400), memcpy(text, "seed = ", 7), memset(text + 7, '[', 200);
    bad(text, 0, "nested more than 64 deep");
    free(text);
}

/* All that TOML 1.0 has and recipes can use. */
static void toml_forms(void **state) {
    (void)state;
    mhla_recipe *r = fresh();
    const char *text = "'seed' = 0xdead_BEEF\r\n"
                       "train = {epochs = 0o17, \"rate\" = 1_0e-1, mixup.alpha = +0.2_5}\r\n"
                       "model.name = \"\"\"\r\n"
                       "one \\\r\n"
                       "   two \"\"quoted\"\"\r\n"
                       "\\U0001f600\"\"\"\"\r\n"
                       "[data]\r\n"
                       "size = [0b1_0, # two\n 3]\n"
                       "folders = ['''\n'a' \\n''', \"\", '''''it''''']\n"
                       "mean = [1e1, -0.0, 0e00]";
    if (parse(r, text, 0) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_true(mhla_recipe_int(r, "seed") == 0xdeadbeef);
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 15);
    assert_true(mhla_recipe_real(r, "train.rate") == 1);
    assert_true(mhla_recipe_real(r, "train.mixup.alpha") == 0.25);
    assert_string_equal(mhla_recipe_text(r, "model.name"), "one two \"\"quoted\"\"\n\xf0\x9f\x98\x80\"");
    const json_t *folders = mhla_recipe_array(r, "data.folders");
    assert_int_equal(json_integer_value(json_array_get(mhla_recipe_array(r, "data.size"), 0)), 2);
    assert_string_equal(json_string_value(json_array_get(folders, 0)), "'a' \\n");
    assert_string_equal(json_string_value(json_array_get(folders, 2)), "''it''");
    assert_int_equal(parse(r, "seed = -9223372036854775808", 0), MHLA_OK);
    assert_true(mhla_recipe_int(r, "seed") == INT64_MIN);
    /* a table may be implied first, by a longer header, and be filled later */
    if (parse(r, "[train.mixup]\nalpha = 0\n[train]\nepochs = 9", 0) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 9);
    mhla_recipe_free(r);
}

static void json(void **state) {
    (void)state;
    mhla_recipe *r = fresh();
    if (parse(r, "{\"seed\":3,\"train\":{\"epochs\":5,\"rate\":1,\"mixup\":{\"alpha\":0}},\"data.size\":[1]}", 1) !=
        MHLA_OK)
        fail_msg("%s", mhla_message());
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 5);
    assert_true(mhla_recipe_real(r, "train.rate") == 1);
    mhla_recipe_free(r);
    bad("{\"train\":{\"epochs\":5,\"epoch\":5}}", 1,
        "r.json: unknown key \"train.epoch\"; did you mean \"train.epochs\"?");
    bad("{\"train\":{\"epochs\":{}}}", 1, "\"train.epochs\" is {}: expected an integer");
    bad("{\"train\":{\"epochs\":null}}", 1, "\"train.epochs\" is null: expected");
    bad("{\"train\":{\"epochs\":5},\"train.epochs\":6}", 1, "twice");
    bad("{\"train\":5}", 1, "unknown key \"train\"");
    bad("{\"model\":{\"name\":\"a\\u001b\"},\"x\\u001b\":1}", 1, "\"x?\"");
    bad("[]", 1, "an array where an object");
    bad("", 1, "empty");
    bad("{", 1, "r.json:1:1");
    bad("{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}}}", 1, "unknown key \"a\"");
}

static void flag(const char *assignment, const char *word) {
    mhla_recipe *r = fresh();
    const mhla_status status = mhla_recipe_assign(r, assignment);
    if (word) {
        assert_int_equal(status, MHLA_EINVAL);
        message_has(assignment, word);
    } else if (status != MHLA_OK) {
        fail_msg("%s: %s", assignment, mhla_message());
    }
    mhla_recipe_free(r);
}

static void flags(void **state) {
    (void)state;
    mhla_recipe *r = fresh();
    assert_int_equal(mhla_recipe_assign(r, "train.epochs=7"), MHLA_OK);
    assert_int_equal(mhla_recipe_assign(r, "model.name=a=b"), MHLA_OK);
    assert_int_equal(mhla_recipe_assign(r, "data.size=[32, 48]"), MHLA_OK);
    assert_int_equal(mhla_recipe_assign(r, "data.folders=a, b,c d"), MHLA_OK);
    assert_int_equal(mhla_recipe_assign(r, "train.ema=true"), MHLA_OK);
    assert_int_equal(mhla_recipe_int(r, "train.epochs"), 7);
    assert_true(mhla_recipe_given(r, "train.epochs"));
    assert_string_equal(mhla_recipe_text(r, "model.name"), "a=b");
    assert_int_equal(json_integer_value(json_array_get(mhla_recipe_array(r, "data.size"), 1)), 48);
    assert_string_equal(json_string_value(json_array_get(mhla_recipe_array(r, "data.folders"), 2)), "c d");
    assert_string_equal(json_string_value(json_array_get(mhla_recipe_array(r, "data.folders"), 1)), "b");
    assert_int_equal(mhla_recipe_bool(r, "train.ema"), 1);
    mhla_recipe_free(r);
    flag("train.rate=1", NULL);
    flag("train.rate=-0", NULL);
    flag("data.size=[]", NULL);
    flag("data.size= ", NULL);
    flag("train.epochs", "expected key=value");
    flag("=5", "expected key=value");
    flag("train.epoch=5", "unknown key \"train.epoch\"; did you mean \"train.epochs\"?");
    flag("train.epochs=", "\"train.epochs\" is \"\": expected an integer from 1 to 1000000");
    flag("train.epochs=5x", "is \"5x\": expected");
    flag("train.epochs=5.5", "expected an integer");
    flag("train.epochs=99999999999999999999", "expected an integer");
    flag("train.rate=nan", "expected a number");
    flag("train.rate=inf", "expected a number");
    flag("train.rate=0x1p3", "expected a number");
    flag("train.rate=1e999", "expected a number");
    flag("train.ema=maybe", "expected true or false");
    flag("data.size=1,,2", "expected an array");
    flag("data.size=1,", "expected an array");
    flag("data.size=,", "expected an array");
    flag("data.size=1 2", "expected an array");
    flag("model.attention=soft", "expected one of");
    char text[600];
    memset(text, 'a', 599), text[500] = '=', text[599] = '\0';
    flag(text, "unknown key");
}

/* Every truncation and every flipped bit: an answer, and nothing half taken. */
static void damage(void **state) {
    (void)state;
    const char *text =
        "seed = 0x1 # x\n[train]\nepochs = 5\nrate = 1.5e-3\nmixup.alpha = 0.5\nema = true\n[data]\nsize = [1, 2]\n"
        "[[a.b]]\n'c' = {d = 1979-05-27 07:32:00Z, \"e\".f = inf}\n[a.b.g]\nh = \"\"\"x\\\n "
        "y\"\"\"\n[[a.b]]\n[data.x]\n"
        "folders = [\"a\\n\", 'b']\n";
    const size_t size = strlen(text);
    mhla_recipe *r = fresh();
    char *copy = new_bytes(size + 1);
    for (size_t n = 0; n < size; n++) {
        memcpy(copy, text, n), copy[n] = '\0';
        (void)parse(r, copy, 0);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        memcpy(copy, text, size + 1);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        (void)parse(r, copy, 0);
    }
    free(copy);
    mhla_recipe_free(r);
}

/* A table is checked before anything is read by it. */
static void tables(void **state) {
    (void)state;
    static const mhla_recipe_row twice[] = {
        {"a.b", MHLA_RECIPE_INT, "0", 0, 0, NULL, ""}, {"a.b", MHLA_RECIPE_TEXT, NULL, 0, 0, NULL, ""}, {0}};
    char name[MHLA_RECIPE_KEY + 1];
    memset(name, 'k', sizeof name);
    mhla_recipe_row longest[] = {{name, MHLA_RECIPE_INT, "7", 0, 0, NULL, ""}, {0}};
    mhla_recipe *r;
    ASSERT_FAILS(mhla_recipe_create(&r, twice), MHLA_EINVAL, "\"a.b\" is in the table twice");
    name[MHLA_RECIPE_KEY] = '\0';
    ASSERT_FAILS(mhla_recipe_create(&r, longest), MHLA_EINVAL, "is too long: at most 63 characters");
    assert_null(r);
    name[MHLA_RECIPE_KEY - 1] = '\0';
    ASSERT_OK(mhla_recipe_create(&r, longest));
    assert_int_equal(mhla_recipe_int(r, name), 7);
    mhla_recipe_free(r);
    ASSERT_FAILS(mhla_recipe_create(&r, NULL), MHLA_ENOMEM, "no memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults), cmocka_unit_test(toml),  cmocka_unit_test(toml_forms), cmocka_unit_test(refused),
        cmocka_unit_test(json),     cmocka_unit_test(flags), cmocka_unit_test(damage),     cmocka_unit_test(tables),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
