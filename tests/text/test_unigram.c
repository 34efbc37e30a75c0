/* Unigram models: ids of the Python libraries sentencepiece 0.2.2 and tokenizers 0.23 for a small model with rules of
 * normalisation, a piece of the user and an unused one; long texts; what is wrong in such files. */
#include <libgen.h>

#include "files.h"
#include "text/tokenizer.h"

static const char *seed(const char *name) {
    static char path[1024];
    char here[] = __FILE__;
    snprintf(path, sizeof path, "%s/../fuzz/corpus/fuzz_tokenizer_%s", dirname(here), name);
    return path;
}

typedef struct row {
    const char *text;
    int count;
    int32_t ids[12];
} row;

static void check_rows(const char *path, const char *kind, const row *rows, size_t n) {
    mhla_tokenizer *t;
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_open(&t, path));
    ASSERT_OK(mhla_tokenizer_query(t, &info));
    assert_string_equal(info.kind, kind);
    assert_int_equal(info.unk, 0);
    for (size_t i = 0; i < n; i++) {
        mhla_ids ids = {0};
        ASSERT_OK(mhla_tokenizer_encode(t, &ids, rows[i].text, strlen(rows[i].text), 0));
        int same = ids.count == rows[i].count;
        for (int k = 0; k < rows[i].count && same; k++) same = ids.data[k] == rows[i].ids[k];
        if (!same) fail_msg("%s: text %zu, \"%s\": other ids", kind, i, rows[i].text);
        mhla_ids_free(&ids);
    }
    mhla_tokenizer_free(t);
}

static void sentencepiece_ids(void **state) {
    (void)state;
    static const row rows[] = {
        {"It was the best of times", 11, {4, 38, 30, 8, 7, 4, 52, 13, 30, 6, 11}},
        {"  fishes \x09 and\xc2\xa0\xe3\x80\x80"
         "fish  ",
         6,
         {24, 13, 25, 18, 35, 24}},
        {"\xef\xac\x81nal \xef\xbd\x83"
         "afe\xcc\x81 cafe\xcc\x81\xcc\x81",
         12,
         {41, 18, 29, 17, 4, 0, 29, 56, 40, 22, 40, 0}},
        {"a\xcc\x88\xcc\x84 a\xcc\x88 \xe3\x8d\xbfx", 8, {4, 0, 4, 0, 19, 4, 42, 0}},
        {"\xc2\xa8 \xc2\xa8\xc2\xa8", 6, {4, 0, 4, 0, 4, 0}},
        {"\xe2\x80\x8b", 0, {0}},
        {"\xe2\x80\x8b \xe2\x80\x8bit", 1, {12}},
        {"100011 1111", 5, {28, 16, 45, 26, 45}},
        {"x\xe2\x98\x83\xe2\x98\x83y\xe2\x98\x83", 2, {4, 0}},
        {"<sep>times<sep><sep> of", 9, {4, 3, 30, 57, 39, 13, 3, 3, 6}},
        {"\xe2\x96\x81 it \xe2\x96\x81\xe2\x96\x81", 3, {4, 4, 12}},
        {"\xe2\x91\xa0\xef\xbd\x81", 2, {28, 29}},
        {"</s><unk>", 6, {4, 0, 14, 0, 18, 0}},
        {"it\xe2\x96\x81", 1, {12}},
        {"\xef\xac\x81\xef\xac\x81\xef\xac\x81", 5, {41, 56, 57, 56, 57}},
        {"bests best", 9, {4, 52, 13, 30, 14, 4, 52, 13, 30}},
        {"\x09\x09", 0, {0}},
        {"a \xe2\x80\x8b b", 3, {25, 4, 52}},
    };
    check_rows(seed("model/unigram_rules"), "SentencePiece unigram", rows, sizeof rows / sizeof *rows);
}

static void json_ids(void **state) {
    (void)state;
    static const row rows[] = {
        {"It was the best of times", 8, {4, 38, 30, 8, 7, 10, 6, 11}},
        {"  fishes \x09 and\xc2\xa0\xe3\x80\x80"
         "fish  ",
         6,
         {24, 13, 25, 18, 35, 24}},
        {"\xef\xac\x81nal \xef\xbd\x83"
         "afe\xcc\x81 cafe\xcc\x81\xcc\x81",
         11,
         {41, 18, 29, 17, 4, 0, 29, 56, 40, 22, 40}},
        {"a\xcc\x88\xcc\x84 a\xcc\x88 \xe3\x8d\xbfx", 8, {4, 0, 4, 0, 19, 4, 42, 0}},
        {"\xc2\xa8 \xc2\xa8\xc2\xa8", 6, {4, 0, 4, 0, 4, 0}},
        {"\xe2\x80\x8b", 0, {0}},
        {"\xe2\x80\x8b \xe2\x80\x8bit", 1, {12}},
        {"100011 1111", 5, {28, 16, 45, 26, 45}},
        {"x\xe2\x98\x83\xe2\x98\x83y\xe2\x98\x83", 2, {4, 0}},
        {"<sep>times<sep><sep> of", 9, {4, 3, 30, 57, 39, 13, 3, 3, 6}},
        {"\xe2\x96\x81 it \xe2\x96\x81\xe2\x96\x81", 5, {4, 12, 4, 4, 4}},
        {"\xe2\x91\xa0\xef\xbd\x81", 2, {28, 29}},
        {"</s><unk>", 3, {4, 2, 0}},
        {"it\xe2\x96\x81", 2, {12, 4}},
        {"\xef\xac\x81\xef\xac\x81\xef\xac\x81", 5, {41, 56, 57, 56, 57}},
        {"bests best", 3, {10, 14, 10}},
        {"\x09\x09", 0, {0}},
        {"a \xe2\x80\x8b b", 3, {25, 4, 52}},
    };
    check_rows(seed("json/unigram"), "unigram", rows, sizeof rows / sizeof *rows);
}

static void decoded(void **state) {
    (void)state;
    static const char *const texts[][2] = {{"  fishes \t and\xc2\xa0\xe3\x80\x80"
                                            "fish  ",
                                            "fishes and fish"},
                                           {"\xef\xac\x81nal x", "final  \xe2\x81\x87 "}};
    mhla_tokenizer *t;
    ASSERT_OK(mhla_tokenizer_open(&t, seed("model/unigram_rules")));
    for (int i = 0; i < 2; i++) {
        mhla_ids ids = {0};
        mhla_chars text = {0};
        ASSERT_OK(mhla_tokenizer_encode(t, &ids, texts[i][0], strlen(texts[i][0]), 0));
        ASSERT_OK(mhla_tokenizer_decode(t, &text, ids.data, ids.count, 0));
        assert_int_equal(text.count, strlen(texts[i][1]));
        assert_memory_equal(text.data, texts[i][1], text.count);
        mhla_ids_free(&ids);
        mhla_chars_free(&text);
    }
    mhla_tokenizer_free(t);
}

/* ---- Models by hand ---- */

static size_t put_piece(unsigned char *to, const char *piece, float score, int type) {
    const size_t n = strlen(piece);
    unsigned char *at = to;
    *at++ = 0x0a;
    *at++ = (unsigned char)(n + 2 + 5 + 2);
    *at++ = 0x0a;
    *at++ = (unsigned char)n;
    memcpy(at, piece, n);
    at += n;
    *at++ = 0x15;
    memcpy(at, &score, 4);
    at += 4;
    *at++ = 0x18;
    *at++ = (unsigned char)type;
    return (size_t)(at - to);
}

/* Far into a text, two ways that differ by less than float32 holds of the whole sum. */
static void far(void **state) {
    (void)state;
    enum { TIMES = 30000 };
    static const struct {
        const char *piece;
        float score;
    } pieces[] = {{"\xe2\x96\x81x", -10.0f},
                  {"para", -9.692312f},
                  {"ted", -8.047321f},
                  {"par", -9.520638f},
                  {"ated", -8.219701f}};
    unsigned char bytes[256];
    size_t n = put_piece(bytes, "<unk>", 0.0f, 2);
    for (int i = 0; i < 5; i++) n += put_piece(bytes + n, pieces[i].piece, pieces[i].score, 1);
    mhla_tokenizer *t;
    ASSERT_OK(mhla_tokenizer_parse_model(&t, bytes, n, "x"));
    char *text = new_bytes(2 * TIMES + 8);
    for (int i = 0; i < TIMES; i++) memcpy(text + (size_t)2 * (size_t)i, " x", 2);
    strcpy(text + (size_t)2 * TIMES, "parated");
    mhla_ids ids = {0};
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, strlen(text), 0));
    assert_int_equal(ids.count, TIMES + 2);
    for (int i = 0; i < TIMES; i++) assert_int_equal(ids.data[i], 1);
    assert_int_equal(ids.data[TIMES], 2);
    assert_int_equal(ids.data[TIMES + 1], 3);
    mhla_ids_free(&ids);
    free(text);
    mhla_tokenizer_free(t);
}

/* Equal scores, a piece of the user, marks at the end that were in the text: what SentencePiece 0.2.3 says. */
static void ties(void **state) {
    (void)state;
#define MARK "\xe2\x96\x81"
    static const struct {
        const char *piece;
        float score;
        int type;
    } pieces[] = {{"<unk>", 0, 2}, {"a", -1, 1},      {"b", -1, 1},          {"ab", -2, 1},
                  {"ba", -2, 1},   {MARK, -1, 1},     {MARK MARK, -2, 1},    {"bab", -9, 4},
                  {"abab", -1, 5}, {MARK "b", -2, 1}, {"cb" MARK "c", -3, 1}};
    static const struct {
        const char *text;
        int32_t unigram[7],
            bpe[7]; /* -1 ends them; of BPE the mark and the unused piece are left out of the vocabulary */
    } rows[] = {{"ab", {5, 3, -1}, {0, 3, -1}},
                {"aba", {5, 1, 4, -1}, {0, 3, 1, -1}},
                {"abab", {5, 1, 7, -1}, {0, 1, 6, -1}},
                {"ababab", {5, 1, 4, 7, -1}, {0, 1, 6, 3, -1}},
                {"b bab", {9, 5, 7, -1}, {7, 0, 6, -1}},
                {"a" MARK " ", {5, 1, -1}, {0, 1, -1}},
                {"a  " MARK " ", {5, 1, -1}, {0, 1, -1}},
                {MARK " ", {-1}, {-1}},
                {"x " MARK "y", {5, 0, 6, 0, -1}, {0, 5, 0, -1}},
                {"ab  b" MARK, {5, 3, 9, -1}, {0, 3, 7, -1}},
                {"y x" MARK "x", {5, 0, 5, 0, 5, 0, -1}, {0, -1}}};
#undef MARK
    for (int bpe = 0; bpe < 2; bpe++) {
        unsigned char bytes[512];
        size_t n = 0;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            if (!bpe || (i != 5 && i != 8)) n += put_piece(bytes + n, pieces[i].piece, pieces[i].score, pieces[i].type);
        const unsigned char spec[] = {0x12, 2, 0x18, (unsigned char)(1 + bpe)};
        memcpy(bytes + n, spec, 4);
        mhla_tokenizer *t;
        ASSERT_OK(mhla_tokenizer_parse_model(&t, bytes, n + 4, "x"));
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const int32_t *wanted = bpe ? rows[i].bpe : rows[i].unigram;
            int64_t count = 0;
            while (count < 7 && wanted[count] >= 0) count++;
            mhla_ids ids = {0};
            ASSERT_OK(mhla_tokenizer_encode(t, &ids, rows[i].text, strlen(rows[i].text), 0));
            if (ids.count != count || (count && memcmp(ids.data, wanted, (size_t)count * sizeof *wanted) != 0))
                fail_msg("%s: \"%s\" has other ids", bpe ? "bpe" : "unigram", rows[i].text);
            mhla_ids_free(&ids);
        }
        mhla_tokenizer_free(t);
    }
}

static void wrong_models(void **state) {
    (void)state;
    mhla_tokenizer *t;
    unsigned char bytes[128];
    size_t n = put_piece(bytes, "a", -1.0f, 1);
    memcpy(bytes + n, "\x12\x02\x18\x03", 4); /* trainer_spec.model_type */
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, bytes, n + 4, "x"), MHLA_ENOTSUP,
                 "x: a SentencePiece model of type word: only unigram and BPE are known");
    memcpy(bytes + n, "\x1a\x05\x12\x03zzz", 7); /* normalizer_spec.precompiled_charsmap */
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, bytes, n + 7, "x"), MHLA_EDATA, "rules of normalisation of 3 bytes");
    n = put_piece(bytes, "a", NAN, 1);
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, bytes, n, "x"), MHLA_EDATA, "piece 0 has no number as its score");
    /* a rule that changes a piece of the user: ①, of the seed, as one */
    size_t size;
    char *file = read_file(seed("model/unigram_rules"), &size), *at = memmem(file, size, "<sep>", 5);
    assert_non_null(at);
    memcpy(at, "\xe2\x91\xa0zz", 5);
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, (unsigned char *)file, size, "x"), MHLA_ENOTSUP, "a piece of the user");
    free(file);
    static const struct {
        const char *json;
        mhla_status status;
        const char *says;
    } wrong[] = {
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", MHLA_EDATA, "\"vocab\""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", MHLA_EDATA, "not a list of pieces"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"b\"]]}}", MHLA_EDATA, "number 1"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"a\",1]]}}", MHLA_EDATA, "a"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", MHLA_EDATA, "unk_id"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", MHLA_ENOTSUP, "only BPE and Unigram are known"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]},\"normalizer\":{\"type\":\"Precompiled\"}}",
         MHLA_EDATA, "precompiled_charsmap"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]},\"normalizer\":{\"type\":\"Precompiled\","
         "\"precompiled_charsmap\":\"AA?A\"}}",
         MHLA_EDATA, "not Base64 at byte 2"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]},\"normalizer\":{\"type\":\"Precompiled\","
         "\"precompiled_charsmap\":\"AAAA\"}}",
         MHLA_EDATA, "rules of normalisation of 3 bytes"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         MHLA_ENOTSUP, "after ByteLevel"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ASSERT_FAILS(mhla_tokenizer_parse_json(&t, wrong[i].json, strlen(wrong[i].json), "x"), wrong[i].status,
                     wrong[i].says);
    /* without a token for the unknown */
    static const char plain[] = "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}";
    mhla_ids ids = {0};
    ASSERT_OK(mhla_tokenizer_parse_json(&t, plain, sizeof plain - 1, "x"));
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, "aa", 2, 0));
    assert_int_equal(ids.count, 2);
    ASSERT_FAILS(mhla_tokenizer_encode(t, &ids, "aba", 3, 0), MHLA_EDATA, "\"b\" is not a piece");
    assert_int_equal(ids.count, 2);
    mhla_ids_free(&ids);
    mhla_tokenizer_free(t);
}

/* Rules that point anywhere: no read outside of them. */
static void hostile_rules(void **state) {
    (void)state;
    size_t size;
    char *file = read_file(seed("model/unigram_rules"), &size);
    rng r = {7};
    for (int i = 0; i < 400; i++) {
        unsigned char *copy = new_bytes(size);
        memcpy(copy, file, size);
        for (int k = 0; k < 8; k++)
            copy[size / 3 + (size_t)rng_below(&r, (int)(size - size / 3))] ^= (unsigned char)(1 << rng_below(&r, 8));
        mhla_tokenizer *t;
        if (mhla_tokenizer_parse_model(&t, copy, size, "x") == MHLA_OK) {
            mhla_ids ids = {0};
            static const char text[] = "\xef\xac\x81nal \xe3\x8d\xbf a\xcc\x88\xcc\x84 \xe2\x91\xa0";
            mhla_tokenizer_encode(t, &ids, text, sizeof text - 1, 0);
            mhla_ids_free(&ids);
        }
        mhla_tokenizer_free(t);
        free(copy);
    }
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece_ids),
        cmocka_unit_test(json_ids),
        cmocka_unit_test(decoded),
        cmocka_unit_test(far),
        cmocka_unit_test(ties),
        cmocka_unit_test(wrong_models),
        cmocka_unit_test(hostile_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
